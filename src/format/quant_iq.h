/* quant_iq.h - how a block of the types from grids names its entries. Only quant_iq.c and matmul_pack.c include it;
 * others read codes (quant_read_iq). */
#ifndef RATOON_FORMAT_QUANT_IQ_H
#define RATOON_FORMAT_QUANT_IQ_H

#include "format/quant.h"

/* An entry is one number with 2 bits for each of 8 values, or 3 for each of 4 (IQ3_*), the first lowest. They index the
 * codebook's positive half. */
extern const uint16_t quant_grid_2xxs[256], quant_grid_2xs[512], quant_grid_2s[1024], quant_grid_3xxs[256],
                      quant_grid_3s[512];

/* Entry e of block b, of 32, or of 64 (IQ3_*). */
static inline uint16_t quant_iq_entry(Type t, const uint8_t *b, int e)
{
    switch (t) {
    case T_IQ2_XXS: return quant_grid_2xxs[b[2 + 8 * (e / 4) + e % 4]];
    case T_IQ2_XS:  return quant_grid_2xs[(b[2 + 2 * e] | b[3 + 2 * e] << 8) & 511];
    case T_IQ2_S:   return quant_grid_2s[b[2 + e] | (b[66 + e / 4] >> 2 * (e % 4) & 3) << 8];
    case T_IQ3_XXS: return quant_grid_3xxs[b[2 + e]];
    default:        return quant_grid_3s[b[2 + e] | (b[66 + e / 8] >> e % 8 & 1) << 8];        /* T_IQ3_S */
    }
}

/* IqBlock's d of block b. */
static inline float quant_iq_d(Type t, const uint8_t *b)
{
    return half_to_float((uint16_t) (b[0] | b[1] << 8)) * (t == T_IQ3_S ? 1.0f : t == T_IQ3_XXS ? 0.25f : 0.125f);
}

#endif
