/* simd_matmul.c - quantisation of activations, and the plain product for every type: the reference that the fast
 * kernels are compared with. Compiled per level: the plain product serves the types without a fast kernel there. */
#include <math.h>
#include <string.h>

#include "backend/cpu/matmul_fast.h"

/* -- activations --------------------------------------------------------------------------------------------------- */

/* Adding and subtracting 1.5 * 2^23 rounds half to even, for |x| < 2^22; the sum's low bits are the integer. */
static inline int32_t round_even(float x)
{
    float shifted = x + 0x1.8p23f;
    int32_t bits;
    memcpy(&bits, &shifted, sizeof bits);
    return bits - 0x4b400000;
}

/* Fills q[n] and returns the block's scale. The largest magnitude is found in the bits of the floats, where a NaN is
 * larger than everything else. */
static inline float quantise_block(int8_t *restrict q, const float *restrict x, int n)
{
    uint32_t most = 0;
    for (int i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], sizeof bits);
        bits &= 0x7fffffffu;
        most = bits > most ? bits : most;
    }
    float amax;
    memcpy(&amax, &most, sizeof amax);
    if (most >= 0x7f800000u || amax < 0x1p-100f) {
        memset(q, 0, (size_t) n);
        return most >= 0x7f800000u ? NAN : 0;
    }
    float up = 127.0f / amax;
    for (int i = 0; i < n; i++) q[i] = (int8_t) round_even(x[i] * up);
    return amax / 127.0f;
}

/* Sums eight bytes at once, as numbers from 0 to 255: neighbours are added to pairs, and a multiplication adds up the
 * pairs in its upper word. A compiler that vectorises the plain loop spends more on shuffling than on the rest of the
 * block. */
static inline int32_t sum_of_8(const int8_t *q)
{
    const uint64_t even = 0x00ff00ff00ff00ffu;
    uint64_t x;
    memcpy(&x, q, sizeof x);
    x ^= 0x8080808080808080u;
    x = (x & even) + (x >> 8 & even);
    return (int32_t) (x * 0x0001000100010001u >> 48) - 8 * 128;
}

static void quantise(void *act, ActForm form, const float *x, int32_t n, int32_t cols, int32_t row0, int32_t row1)
{
    if (form == ACT_Q32) {
        for (int32_t r = row0; r < row1; r++) {
            for (int32_t b = 0; b < cols / 32; b++) {
                ActBlock32 *a = (ActBlock32 *) act + (size_t) b * (size_t) n + (size_t) r;
                a->scale = quantise_block(a->q, x + (size_t) r * (size_t) cols + (size_t) b * 32, 32);
                int32_t lower = 0, upper = 0;
                for (int i = 0; i < 16; i++) lower += a->q[i], upper += a->q[16 + i];
                const int32_t sum = lower + upper;
                a->sum = sum;
                a->less8 = -8 * sum;
                a->less16 = -16 * sum;
                a->less128 = -128 * sum;
                a->lower_less16 = -16 * lower;
            }
        }
    } else if (form == ACT_Q256) {
        for (int32_t r = row0; r < row1; r++) {
            for (int32_t b = 0; b < cols / 256; b++) {
                ActBlock256 *a = (ActBlock256 *) act + (size_t) b * (size_t) n + (size_t) r;
                a->scale = quantise_block(a->q, x + (size_t) r * (size_t) cols + (size_t) b * 256, 256);
                int32_t sum8[32];
                for (int s = 0; s < 32; s++) {
                    sum8[s] = sum_of_8(a->q + 8 * s);
                    a->less32[s] = -32 * sum8[s];
                }
                for (int s = 0; s < 16; s++) {
                    int32_t sum = sum8[2 * s] + sum8[2 * s + 1];
                    a->sum16[s] = (int16_t) sum;
                    a->less16[s] = -16 * sum;
                }
                for (int s = 0; s < 8; s++) a->sum32[s] = (int16_t) (a->sum16[2 * s] + a->sum16[2 * s + 1]);
            }
        }
    }
}

/* -- the plain product --------------------------------------------------------------------------------------------- */

static inline int32_t dot(const int8_t *code, const int8_t *q, int n)
{
    int32_t sum = 0;
    for (int i = 0; i < n; i++) sum += code[i] * q[i];
    return sum;
}

/* acc + the products of a block */
static float plain_block32(float acc, Type t, const WeightBlock *w, const ActBlock32 *a)
{
    if (t == T_NVFP4) {
        acc = fmaf(w->d * a->scale, (float) dot(w->code, a->q, 16), acc);
        return fmaf(w->upper * a->scale, (float) dot(w->code + 16, a->q + 16, 16), acc);
    }
    acc = fmaf(w->d * a->scale, (float) dot(w->code, a->q, 32), acc);
    return matmul_layout[t].planes == 2 ? fmaf(w->dmin * a->scale, (float) a->sum, acc) : acc;
}

static void plain32(float *y, size_t y_stride, Type t, const uint8_t *group, const ActBlock32 *act, int32_t n,
                    int32_t cols, int lane)
{
    for (int32_t b = 0; b < cols / 32; b++) {
        WeightBlock w;
        matmul_read_block(&w, t, group, cols, b, lane);
        for (int32_t i = 0; i < n; i++) {
            float *to = y + (size_t) i * y_stride;
            *to = plain_block32(b ? *to : 0, t, &w, act + (size_t) b * (size_t) n + (size_t) i);
        }
    }
}

static void plain256(float *y, size_t y_stride, Type t, const uint8_t *group, const ActBlock256 *act, int32_t n,
                     int32_t cols, int lane)
{
    bool with_min = t == T_Q2_K || t == T_Q4_K || t == T_Q5_K;
    for (int32_t b = 0; b < cols / 256; b++) {
        WeightBlock w;
        matmul_read_block(&w, t, group, cols, b, lane);
        for (int32_t i = 0; i < n; i++) {
            const ActBlock256 *a = act + (size_t) b * (size_t) n + (size_t) i;
            int32_t isum = 0, msum = 0;
            for (int s = 0; s < 16; s++) isum += w.scale[s] * dot(w.code + 16 * s, a->q + 16 * s, 16);
            float acc = fmaf(w.d * a->scale, (float) isum, b ? y[(size_t) i * y_stride] : 0);
            if (with_min) {
                for (int s = 0; s < 16; s++) msum += w.min[s] * a->sum16[s];
                acc = fmaf(-(w.dmin * a->scale), (float) msum, acc);
            }
            y[(size_t) i * y_stride] = acc;
        }
    }
}

static void plain_float(float *y, size_t y_stride, Type t, const uint8_t *group, const float *x, int32_t n,
                        int32_t cols, int lanes)
{
    for (int32_t i = 0; i < n; i++) {
        float acc[WEIGHT_GROUP] = {0};
        for (int32_t k = 0; k < cols; k++) {
            const uint8_t *w = group + (size_t) k * WEIGHT_GROUP * (t == T_F32 ? 4 : 2);
            float xk = x[(size_t) i * (size_t) cols + (size_t) k];
            for (int j = 0; j < WEIGHT_GROUP; j++) {
                float wk;
                uint16_t half;
                if (t == T_F32) {
                    memcpy(&wk, w + 4 * j, sizeof wk);
                } else {
                    memcpy(&half, w + 2 * j, sizeof half);
                    wk = t == T_F16 ? half_to_float(half) : bf16_to_float(half);
                }
                acc[j] = fmaf(wk, xk, acc[j]);
            }
        }
        memcpy(y + (size_t) i * y_stride, acc, (size_t) lanes * sizeof *y);
    }
}

static void product(float *y, size_t y_stride, Type t, const void *packed, const void *act, int32_t n, int32_t rows,
                    int32_t cols, int32_t group0, int32_t group1)
{
#ifndef LEVEL_IS_portable
    if (LEVEL_NAME(product_fast)(y, y_stride, t, packed, act, n, rows, cols, group0, group1)) return;
#endif
    ActForm form = matmul_act_form(t);
    for (int32_t g = group0; g < group1; g++) {
        const uint8_t *group = (const uint8_t *) packed + (size_t) g * matmul_group_bytes(t, cols);
        int lanes = rows - g * WEIGHT_GROUP < WEIGHT_GROUP ? rows - g * WEIGHT_GROUP : WEIGHT_GROUP;
        float *to = y + (size_t) g * WEIGHT_GROUP;
        if (form == ACT_F32) {
            plain_float(to, y_stride, t, group, act, n, cols, lanes);
            continue;
        }
        for (int lane = 0; lane < lanes; lane++) {
            if (form == ACT_Q32) plain32(to + lane, y_stride, t, group, act, n, cols, lane);
            else plain256(to + lane, y_stride, t, group, act, n, cols, lane);
        }
    }
}

const MatmulKernels LEVEL_NAME(matmul) = {quantise, product};
