/* blocks.h - the scales of a block of weights, for tests that fill blocks with random bits. */
#ifndef RATOON_TESTS_HELP_BLOCKS_H
#define RATOON_TESTS_HELP_BLOCKS_H

#include <math.h>
#include <string.h>

#include "format/quant.h"

/* Byte offsets in the block of d and dmin (or m), halves but for MXFP4's d and NVFP4's four; -1: the type has none. */
static inline void block_halves(Type t, int *d, int *dmin)
{
    *d = t == T_Q2_K ? 80 : t == T_Q3_K ? 108 : t == T_Q6_K ? 208 : 0;
    *dmin = t == T_Q2_K ? 82 : t == T_Q4_1 || t == T_Q5_1 || t == T_Q4_K || t == T_Q5_K ? 2 : -1;
}

/* The d with which all decoded values are integers. */
static inline float block_unit(Type t)
{
    return t == T_IQ2_XXS || t == T_IQ2_XS || t == T_IQ2_S ? 8 : t == T_IQ3_XXS ? 4 : 1;
}

/* Stores v, a number that is not negative for MXFP4 and NVFP4, whose d is the next power of two below. NVFP4: all four
 * scales, and v from 2^-7 to 2^7. */
static inline void block_put(Type t, uint8_t *at, float v)
{
    int exponent;
    const uint16_t half = half_from_float(v);
    frexpf(v, &exponent);                          /* 2^(exponent - 1) is the next below */
    if (t == T_MXFP4) *at = (uint8_t) (v == 0 ? 0 : exponent - 1 + 128);
    else if (t == T_NVFP4) memset(at, (exponent + 7) << 3, 4);
    else memcpy(at, &half, sizeof half);
}

static inline float block_get(Type t, const uint8_t *at)
{
    return t == T_MXFP4 ? quant_e8m0_half(*at) : t == T_NVFP4 ? quant_ue4m3_half(quant_ue4m3(*at))
                                                              : half_to_float((uint16_t) (at[0] | at[1] << 8));
}

#endif
