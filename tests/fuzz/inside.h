/* inside.h - touches both ends of a part that a reader claims to be inside its input; a sanitizer notices if it is
 * not. */
#ifndef RATOON_TESTS_FUZZ_INSIDE_H
#define RATOON_TESTS_FUZZ_INSIDE_H

#include <stdint.h>
#include <stdlib.h>

static volatile uint8_t sink;                      /* so that reads are not optimised away */

static inline void inside(const uint8_t *bytes, size_t n, const void *part, size_t n_part)
{
    const uint8_t *p = part;
    if (p < bytes || n_part > n || p > bytes + n - n_part) abort();
    if (n_part) sink = (uint8_t) (p[0] + p[n_part - 1]);
}

#endif
