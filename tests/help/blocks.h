/* blocks.h - where a block of weights keeps its scales, for tests that fill blocks with random bits. */
#ifndef RATOON_TESTS_HELP_BLOCKS_H
#define RATOON_TESTS_HELP_BLOCKS_H

#include "format/quant.h"

/* Byte offsets in the block of the half-precision d and dmin (or m); -1: the type has none. */
static inline void block_halves(Type t, int *d, int *dmin)
{
    *d = t == T_Q2_K ? 80 : t == T_Q3_K ? 108 : t == T_Q6_K ? 208 : 0;
    *dmin = t == T_Q2_K ? 82 : t == T_Q4_1 || t == T_Q5_1 || t == T_Q4_K || t == T_Q5_K ? 2 : -1;
}

#endif
