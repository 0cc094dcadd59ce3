/* random_below.h - random numbers of a seed, the same in every run. */
#ifndef RATOON_TESTS_HELP_RANDOM_BELOW_H
#define RATOON_TESTS_HELP_RANDOM_BELOW_H

#include <stdint.h>

static uint64_t seed;
static inline uint32_t random_below(uint32_t n)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return (uint32_t) (seed >> 32) % n;
}

static inline void reseed(void) { seed = 88172645463325252u; }

#endif
