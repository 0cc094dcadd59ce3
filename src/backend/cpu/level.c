#include "backend/cpu/level.h"

#include <string.h>

static const char *const names[LEVEL_COUNT] = {"portable", "avx2", "avx512"};

/* __builtin_cpu_supports asks the processor and, for the wide registers, whether the operating system saves them (XGETBV). */
bool level_here(CpuLevel l)
{
    switch (l) {
    case LEVEL_PORTABLE:
        return true;
#if defined(__x86_64__)
    case LEVEL_AVX2:
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
    case LEVEL_AVX512:
        return level_here(LEVEL_AVX2) && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni");
#endif
    default:
        return false;
    }
}

CpuLevel level_best(void)
{
    if (level_here(LEVEL_AVX512)) return LEVEL_AVX512;
    return level_here(LEVEL_AVX2) ? LEVEL_AVX2 : LEVEL_PORTABLE;
}

const char *level_name(CpuLevel l) { return names[l]; }

bool level_from_name(CpuLevel *out, const char *name)
{
    for (int l = 0; l < LEVEL_COUNT; l++) {
        if (strcmp(names[l], name) == 0) {
            *out = (CpuLevel)l;
            return true;
        }
    }
    return false;
}
