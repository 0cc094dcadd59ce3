/* check.h - arithmetic on sizes that come from outside: every function returns false on overflow. */
#ifndef RATOON_BASE_CHECK_H
#define RATOON_BASE_CHECK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

static inline bool check_mul(size_t *out, size_t a, size_t b) { return !__builtin_mul_overflow(a, b, out); }
static inline bool check_add(size_t *out, size_t a, size_t b) { return !__builtin_add_overflow(a, b, out); }

/* The next multiple of `to`, a power of two. */
static inline bool check_round_up(size_t *out, size_t n, size_t to)
{
    size_t sum;
    if (!check_add(&sum, n, to - 1)) return false;
    *out = sum & ~(to - 1);
    return true;
}

#endif
