#include "backend/cpu/level.h"

#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#elif defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

static const char *const names[LEVEL_COUNT] = {"portable", "avx2", "avxvnni", "avx512", "amx", "neon", "i8mm"};

#if defined(__x86_64__)
/* Tiles need three permissions: the processor's (CPUID), the operating system's support for saving them (XCR0, bits 17
 * and 18), and the kernel's for this process, which must be requested: without it the first tile instruction faults.
 * The kernel answers for all threads at once. This does not detect a hypervisor that reports all three and still
 * faults: testing that would take a signal handler or a child process, which a library must not install in a host
 * program; the user can then name level avx512. */
static bool tiles_here(void)
{
    enum { ASK = 0x1023, GRANTED = 0x1022, TILES = 18 };       /* arch_prctl's numbers, newer than the headers */
    enum { AMX_TILE = 1 << 24, AMX_INT8 = 1 << 25 };           /* CPUID bits; clang's header has no names for them */
    unsigned a, b, c, d, xcr0, high;
    unsigned long granted = 0;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d & AMX_TILE) || !(d & AMX_INT8)) return false;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE)) return false;
    __asm__ volatile("xgetbv" : "=a"(xcr0), "=d"(high) : "c"(0));
    if ((xcr0 >> 17 & 3) != 3) return false;
    return syscall(SYS_arch_prctl, ASK, (unsigned long) TILES) == 0 &&
           syscall(SYS_arch_prctl, GRANTED, &granted) == 0 && granted >> TILES & 1;
}
#endif

/* __builtin_cpu_supports asks the processor and, for the wide registers, whether the operating system saves them
 * (XGETBV). On ARM the kernel reports what programs may use. */
bool level_here(CpuLevel l)
{
    switch (l) {
    case LEVEL_PORTABLE:
        return true;
#if defined(__x86_64__)
    case LEVEL_AVX2:
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
    case LEVEL_AVXVNNI: {
        unsigned a, b, c, d;                       /* gcc 12 has no name for it; it uses only AVX2's registers */
        return level_here(LEVEL_AVX2) && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & bit_AVXVNNI);
    }
    case LEVEL_AVX512:
        return level_here(LEVEL_AVX2) && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
               __builtin_cpu_supports("avx512vnni");
    case LEVEL_AMX:
        return level_here(LEVEL_AVX512) && __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("gfni") &&
               tiles_here();
#elif defined(__aarch64__)
    case LEVEL_NEON:
        return getauxval(AT_HWCAP) & HWCAP_ASIMDDP;
    case LEVEL_I8MM:
        return level_here(LEVEL_NEON) && getauxval(AT_HWCAP2) & HWCAP2_I8MM;
#endif
    default:
        return false;
    }
}

CpuLevel level_best(void)
{
    int l = LEVEL_COUNT - 1;
    while (!level_here((CpuLevel) l)) l--;         /* portable is always available */
    return (CpuLevel) l;
}

const char *level_name(CpuLevel l) { return names[l]; }

bool level_from_name(CpuLevel *out, const char *name)
{
    for (int l = 0; l < LEVEL_COUNT; l++) {
        if (strcmp(names[l], name) == 0) {
            *out = (CpuLevel) l;
            return true;
        }
    }
    return false;
}
