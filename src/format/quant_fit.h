/* quant_fit.h - what the encoders of blocks share: fields of a block, rounding, and the largest values.
 * Only quant_encode*.c and quant_iq.c include it. The encoders of the latter and of quant_encode_k.c are declared
 * here. */
#ifndef RATOON_FORMAT_QUANT_FIT_H
#define RATOON_FORMAT_QUANT_FIT_H

#include <math.h>
#include <string.h>

#include "format/quant.h"

static inline void store16(uint8_t *p, uint16_t v)
{
    p[0] = (uint8_t) v;
    p[1] = (uint8_t) (v >> 8);
}

/* Stores a scale and returns the value that readers will see. */
static inline float store_half(uint8_t *p, float v)
{
    uint16_t h = half_from_float(v);
    store16(p, h);
    return half_to_float(h);
}

/* NaN becomes lo. */
static inline float clamp(float v, float lo, float hi) { return v > lo ? v < hi ? v : hi : lo; }

static inline float inverse_of(float d) { return d != 0 ? 1.0f / d : 0.0f; }

static inline float signed_largest(const float *x, int n)
{
    float largest = 0, magnitude = 0;
    for (int i = 0; i < n; i++) {
        if (fabsf(x[i]) > magnitude) {
            magnitude = fabsf(x[i]);
            largest = x[i];
        }
    }
    return largest;
}

static inline void range_of(float *lo, float *hi, const float *x, int n)
{
    *lo = *hi = x[0];
    for (int i = 1; i < n; i++) {
        if (x[i] < *lo) *lo = x[i];
        if (x[i] > *hi) *hi = x[i];
    }
}

/* One block of finite values each. */
void quant_encode_q2_k(uint8_t *b, const float *x);
void quant_encode_q3_k(uint8_t *b, const float *x);
void quant_encode_q4_k(uint8_t *b, const float *x);
void quant_encode_q5_k(uint8_t *b, const float *x);
void quant_encode_q6_k(uint8_t *b, const float *x);
void quant_encode_iq4_nl(uint8_t *b, const float *x);
void quant_encode_iq4_xs(uint8_t *b, const float *x);
void quant_encode_iq(uint8_t *b, Type t, const float *x);      /* types from grids */

#endif
