/* simd_matmul_neon.c - the product on ARM, with 4 weight rows in the lanes of a register, a group in four quarters.
 *
 * Both levels multiply signed bytes and add to int32, so codes are brought to their signed values first, and nothing
 * can overflow.
 *
 *   sdot (neon)    lane j += w_j[0..3] . q[0..3], the 4 activations taken from any quarter of a register: one register
 *                  of activations serves 4 code vectors. An accumulator holds 4 weight rows of one activation row.
 *   smmla (i8mm)   twice the work per instruction, on 2 activation rows and 2 weight rows of 8 columns:
 *
 *                       a  = | r0: q[0..7] | r1: q[0..7] |        x += | r0.l0  r0.l1  r1.l0  r1.l1 |
 *                       w  = | l0: v0, v1  | l1: v0, v1  |
 *
 *                  Two code vectors v0, v1 become w by interleaving their lanes, pairs of activation rows are
 *                  interleaved once per tile. An accumulator pair holds 4 weight rows of 2 activation rows. A single
 *                  row is multiplied with sdot.
 *
 * All sums are exact, and each block ends in the float operations of the plain product, so the bits are those of the
 * plain product. */
#if defined(LEVEL_IS_neon) || defined(LEVEL_IS_i8mm)
#include <arm_neon.h>
#include <string.h>

#include "backend/cpu/matmul_fast.h"

#define TILE_ROWS 8
enum { QUARTERS = 4, PAIR_BYTES = 2 * STRIP };     /* a strip of two interleaved rows */

/* A tile of R rows works in units of one row (sdot) or two (smmla): as many as an accumulator, or a pair of them,
 * holds. */
#ifdef LEVEL_IS_i8mm
enum { MATRIX = 1 };
#else
enum { MATRIX = 0 };
#endif
INLINE int per_unit(const int R) { return MATRIX && R > 1 ? 2 : 1; }
INLINE int units_of(const int R) { return (R + per_unit(R) - 1) / per_unit(R); }
#define ROLLED _Pragma("GCC unroll 1")

typedef struct { int32x4_t v[2]; } Sum;            /* of a unit; with one row only v[0] */

/* The sum of row r, given the sums of its unit: 4 weight rows. */
INLINE int32x4_t sum_row(Sum x, int r, const int R)
{
    if (per_unit(R) == 1) return x.v[0];
    int64x2_t a = vreinterpretq_s64_s32(x.v[0]), b = vreinterpretq_s64_s32(x.v[1]);
    return vreinterpretq_s32_s64(r % 2 ? vtrn2q_s64(a, b) : vtrn1q_s64(a, b));
}

INLINE Sum sum_zero(void) { return (Sum) {{vdupq_n_s32(0), vdupq_n_s32(0)}}; }

/* sum += x * scale, one scale per weight row */
INLINE void sum_scaled(Sum *sum, Sum x, int32x4_t scale, const int R)
{
    if (per_unit(R) == 1) {
        sum->v[0] = vmlaq_s32(sum->v[0], x.v[0], scale);
        return;
    }
    int64x2_t s = vreinterpretq_s64_s32(scale);
    sum->v[0] = vmlaq_s32(sum->v[0], x.v[0], vreinterpretq_s32_s64(vtrn1q_s64(s, s)));
    sum->v[1] = vmlaq_s32(sum->v[1], x.v[1], vreinterpretq_s32_s64(vtrn2q_s64(s, s)));
}

/* The activations of a tile: those of unit u from column k on are at q + u * step + UNIT_ROWS * k. */
typedef struct { const int8_t *q; size_t step; } Acts;

/* The rows, of `columns` activations each, the first at q, in the form that units read. Pairs are interleaved into
 * `pairs`; an odd last row is paired with itself. */
INLINE Acts acts_of(int8_t *pairs, const int8_t *q, size_t stride, int columns, const int R)
{
    const int units = units_of(R);
    if (per_unit(R) == 1) return (Acts) {q, stride};
    UNROLL for (int u = 0; u < units; u++) {
        const int8_t *r0 = q + (size_t) (2 * u) * stride,
                     *r1 = q + (size_t) (2 * u + 1 < R ? 2 * u + 1 : R - 1) * stride;
        int8_t *to = pairs + u * 2 * columns;
        ROLLED for (int k = 0; k < columns; k += 16) {
            int64x2_t a = vreinterpretq_s64_s8(vld1q_s8(r0 + k)), b = vreinterpretq_s64_s8(vld1q_s8(r1 + k));
            vst1q_s8(to + 2 * k, vreinterpretq_s8_s64(vtrn1q_s64(a, b)));
            vst1q_s8(to + 2 * k + 16, vreinterpretq_s8_s64(vtrn2q_s64(a, b)));
        }
    }
    return (Acts) {pairs, (size_t) (2 * columns)};
}

/* Rearranges code vectors in place for the multiplying instruction; n is even. */
INLINE void arrange(int8x16_t *w, int n, const int R)
{
    if (per_unit(R) == 1) return;
    UNROLL for (int i = 0; i < n; i += 2) {
        int32x4_t a = vreinterpretq_s32_s8(w[i]), b = vreinterpretq_s32_s8(w[i + 1]);
        w[i] = vreinterpretq_s8_s32(vzip1q_s32(a, b));
        w[i + 1] = vreinterpretq_s8_s32(vzip2q_s32(a, b));
    }
}

/* x += the products of 4 arranged code vectors with 16 columns of a unit */
INLINE void dot16(Sum *x, const int8x16_t *w, const int8_t *q, const int R)
{
    (void) R;                                      /* without smmla a unit is always one row */
#ifdef LEVEL_IS_i8mm
    if (per_unit(R) == 2) {
        int8x16_t a = vld1q_s8(q), b = vld1q_s8(q + 16);
        x->v[0] = vmmlaq_s32(vmmlaq_s32(x->v[0], a, w[0]), b, w[2]);
        x->v[1] = vmmlaq_s32(vmmlaq_s32(x->v[1], a, w[1]), b, w[3]);
        return;
    }
#endif
    int8x16_t a = vld1q_s8(q);
    x->v[0] = vdotq_laneq_s32(x->v[0], w[0], a, 0);
    x->v[0] = vdotq_laneq_s32(x->v[0], w[1], a, 1);
    x->v[0] = vdotq_laneq_s32(x->v[0], w[2], a, 2);
    x->v[0] = vdotq_laneq_s32(x->v[0], w[3], a, 3);
}

INLINE uint8x16_t low4(uint8x16_t x) { return vandq_u8(x, vdupq_n_u8(15)); }
INLINE uint8x16_t high4(uint8x16_t x) { return vshrq_n_u8(x, 4); }
/* low | the bits of high that `mask` selects, after moving bit `bit` of high to bit 4 */
INLINE uint8x16_t joined(uint8x16_t low, uint8x16_t high, int bit, uint8_t mask)
{
    uint8x16_t moved = bit < 4 ? high << (4 - bit) : high >> (bit - 4);
    return vorrq_u8(low, vandq_u8(moved, vdupq_n_u8(mask)));
}
/* low | bit `bit` of high as bit 2 */
INLINE uint8x16_t third(uint8x16_t low, uint8x16_t high, int bit)
{
    uint8x16_t moved = bit < 2 ? high << (2 - bit) : high >> (bit - 2);
    return vorrq_u8(low, vandq_u8(moved, vdupq_n_u8(4)));
}
INLINE int8x16_t book(const Type t, uint8x16_t index) { return vqtbl1q_s8(vld1q_s8(quant_book(t)), index); }
INLINE int8x16_t less(uint8x16_t code, int8_t offset)
{
    return vsubq_s8(vreinterpretq_s8_u8(code), vdupq_n_s8(offset));
}

INLINE float32x4_t halves(const uint8_t *p)
{
    return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16((const uint16_t *) (const void *) p)));
}
INLINE float32x4_t bf16s(const uint8_t *p)
{
    return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16((const uint16_t *) (const void *) p), 16));
}
/* four scales quant_ue4m3, halved */
INLINE float32x4_t ue4m3s(const uint8_t *p)
{
    uint32_t four;
    memcpy(&four, p, sizeof four);
    uint16x8_t wide = vshll_n_u8(vreinterpret_u8_u32(vdup_n_u32(four)), 7);
    return vmulq_n_f32(vcvt_f32_f16(vreinterpret_f16_u16(vget_low_u16(wide))), 0x1p7f);
}
/* 4 scales of a quarter */
INLINE int32x4_t wide(const int16_t *p) { return vmovl_s16(vld1_s16(p)); }

/* acc = d da isum + acc */
INLINE float32x4_t scaled(float32x4_t d, float da, int32x4_t isum, float32x4_t acc)
{
    return vfmaq_f32(acc, vmulq_n_f32(d, da), vcvtq_f32_s32(isum));
}

/* -- blocks of 256 ------------------------------------------------------------------------------------------------- */

/* 16 bytes as 16 int16 */
INLINE void store_unsigned(int16_t *to, uint8x16_t x)
{
    vst1q_s16(to, vreinterpretq_s16_u16(vmovl_u8(vget_low_u8(x))));
    vst1q_s16(to + 8, vreinterpretq_s16_u16(vmovl_high_u8(x)));
}
INLINE void store_signed(int16_t *to, int8x16_t x)
{
    vst1q_s16(to, vmovl_s8(vget_low_s8(x)));
    vst1q_s16(to + 8, vmovl_high_s8(x));
}

/* The 6-bit scales and minimums of Q4_K and Q5_K: S and M [8][16]. */
INLINE void k4_scales(int16_t *S, int16_t *M, const uint8_t *lines)
{
    const uint8x16_t low6 = vdupq_n_u8(63);
    ROLLED for (int h = 0; h < 2; h++) {
        uint8x16_t min[4];                         /* lanes 0..7 and 8..15 of pair h, the same of pair 2 + h */
        UNROLL for (int i = 0; i < 2; i++) {
            const uint8_t *at = lines + 32 * h + 16 * i;
            uint8x16_t a = vld1q_u8(at), b = vld1q_u8(at + LINE), c = vld1q_u8(at + 2 * LINE);
            store_unsigned(S + (2 * h + i) * WEIGHT_GROUP, vandq_u8(a, low6));
            store_unsigned(S + (4 + 2 * h + i) * WEIGHT_GROUP, vandq_u8(b, low6));
            min[i] = vandq_u8(c, low6);
            min[2 + i] = vsliq_n_u8(vsliq_n_u8(vshrq_n_u8(a, 6), vshrq_n_u8(b, 6), 2), vshrq_n_u8(c, 6), 4);
        }
        UNROLL for (int i = 0; i < 2; i++) {
            store_unsigned(M + (4 * i + 2 * h) * WEIGHT_GROUP, vuzp1q_u8(min[2 * i], min[2 * i + 1]));
            store_unsigned(M + (4 * i + 2 * h + 1) * WEIGHT_GROUP, vuzp2q_u8(min[2 * i], min[2 * i + 1]));
        }
    }
}

/* acc += d da isum for each row of the tile */
INLINE void finish(float *acc, const Sum *isum, float32x4_t dw, const ActBlock256 *a, const int R)
{
    UNROLL for (int r = 0; r < R; r++) {
        float *to = acc + WEIGHT_GROUP * r;
        vst1q_f32(to, scaled(dw, a[r].scale, sum_row(isum[r / per_unit(R)], r, R), vld1q_f32(to)));
    }
}

/* acc -= dmin da msum; n sub-blocks, whose sums of q are `at` bytes into an activation block */
INLINE void finish_min(float *acc, const int16_t *M, const int n, const uint8_t *dmin, const ActBlock256 *a, size_t at,
                       const int R)
{
    int32x4_t msum[TILE_ROWS];
    UNROLL for (int r = 0; r < R; r++) msum[r] = vdupq_n_s32(0);
    ROLLED for (int s = 0; s < n; s++) {
        int16x4_t m = vld1_s16(M + s * WEIGHT_GROUP);
        UNROLL for (int r = 0; r < R; r++) {
            const int16_t *sums = (const int16_t *) (const void *) ((const char *) &a[r] + at);
            msum[r] = vmlal_n_s16(msum[r], m, sums[s]);
        }
    }
    float32x4_t dw = halves(dmin);
    UNROLL for (int r = 0; r < R; r++) {
        float *to = acc + WEIGHT_GROUP * r;
        vst1q_f32(to, vfmsq_f32(vld1q_f32(to), vmulq_n_f32(dw, a[r].scale), vcvtq_f32_s32(msum[r])));
    }
}

/* Sub-blocks of 32: Q4_K, Q5_K, and with codebooks IQ4_XS, IQ3_*. */
INLINE void tile_32s(float *acc, const uint8_t *b, const ActBlock256 *a, const uint8_t *next, const Type t, const int R)
{
    const int units = units_of(R), lines = t == T_Q4_K ? 36 : t == T_Q5_K ? 44 : 35;
    int16_t S[8 * WEIGHT_GROUP], M[8 * WEIGHT_GROUP];
    int8_t pairs[TILE_ROWS / 2 * PAIR_BYTES];
    Acts acts = acts_of(pairs, a->q, sizeof *a, 256, R);
    const bool coded = t != T_Q4_K && t != T_Q5_K;
    if (coded) {
        ROLLED for (int s = 0; s < 8; s++) store_signed(S + s * WEIGHT_GROUP,
                                                        vld1q_s8((const int8_t *) b + 32 * LINE + s * WEIGHT_GROUP));
    } else {
        k4_scales(S, M, b + (lines - 4) * LINE);
    }
    const uint8_t *end = b + (lines - 1) * LINE;
    ROLLED for (int quarter = 0; quarter < QUARTERS; quarter++) {
        const uint8_t *lane = b + 16 * quarter;
        Sum isum[TILE_ROWS];
        UNROLL for (int u = 0; u < units; u++) isum[u] = sum_zero();
        ROLLED for (int p = 0; p < 4; p++) {
            prefetch(next, 3 * LINE * (4 * quarter + p), 3, lines * LINE);
            UNROLL for (int c = 0; c < 2; c++) {
                int8x16_t w[8];
                uint8x16_t high = vdupq_n_u8(0);
                UNROLL for (int i = 0; i < 8; i++) {
                    uint8x16_t both = vld1q_u8(lane + (8 * p + i) * LINE), code = c ? high4(both) : low4(both);
                    if (t == T_Q5_K) {
                        if (i % 4 == 0) high = vld1q_u8(lane + (32 + 2 * p + i / 4) * LINE);
                        code = joined(code, high, 2 * (i % 4) + c, 16);
                    }
                    w[i] = coded ? book(t, code) : vreinterpretq_s8_u8(code);
                }
                arrange(w, 8, R);
                int32x4_t s = wide(S + (2 * p + c) * WEIGHT_GROUP + 4 * quarter);
                UNROLL for (int u = 0; u < units; u++) {
                    const int8_t *q = acts.q + (size_t) u * acts.step + per_unit(R) * (64 * p + 32 * c);
                    Sum x = sum_zero();
                    dot16(&x, w, q, R);
                    dot16(&x, w + 4, q + per_unit(R) * 16, R);
                    sum_scaled(&isum[u], x, s, R);
                }
            }
        }
        finish(acc + 4 * quarter, isum,
               coded ? vld1q_f32((const float *) (const void *) (end + 16 * quarter)) : halves(end + 8 * quarter), a,
               R);
        if (!coded) {
            finish_min(acc + 4 * quarter, M + 4 * quarter, 8, end + 32 + 8 * quarter, a,
                       offsetof(ActBlock256, sum32), R);
        }
    }
}
INLINE void tile_k4(float *acc, const uint8_t *b, const ActBlock256 *a, const uint8_t *next, const int R)
{
    tile_32s(acc, b, a, next, T_Q4_K, R);
}
INLINE void tile_k5(float *acc, const uint8_t *b, const ActBlock256 *a, const uint8_t *next, const int R)
{
    tile_32s(acc, b, a, next, T_Q5_K, R);
}
INLINE void tile_k4x(float *acc, const uint8_t *b, const ActBlock256 *a, const uint8_t *next, const int R)
{
    tile_32s(acc, b, a, next, T_IQ4_XS, R);
}

INLINE void tile_iq3_xxs(float *acc, const uint8_t *b, const ActBlock256 *a, const uint8_t *next, const int R)
{
    tile_32s(acc, b, a, next, T_IQ3_XXS, R);
}
INLINE void tile_iq3_s(float *acc, const uint8_t *b, const ActBlock256 *a, const uint8_t *next, const int R)
{
    tile_32s(acc, b, a, next, T_IQ3_S, R);
}

/* Sub-blocks of 16: Q6_K, Q2_K, of three bits Q3_K and, with a codebook, IQ2_*. */
INLINE void tile_16s(float *acc, const uint8_t *b, const ActBlock256 *a, const uint8_t *next, const Type t, const int R)
{
    const int units = units_of(R), lines = t == T_Q2_K ? 21 : t == T_Q6_K ? 53 : 29;
    const bool three = t == T_Q3_K || t == T_IQ2_S;
    int16_t S[16 * WEIGHT_GROUP], M[16 * WEIGHT_GROUP];
    int8_t pairs[TILE_ROWS / 2 * PAIR_BYTES];
    Acts acts = acts_of(pairs, a->q, sizeof *a, 256, R);
    if (t == T_Q2_K) {
        ROLLED for (int s = 0; s < 16; s++) {
            uint8x16_t both = vld1q_u8(b + 16 * LINE + s * WEIGHT_GROUP);
            store_unsigned(S + s * WEIGHT_GROUP, low4(both));
            store_unsigned(M + s * WEIGHT_GROUP, high4(both));
        }
    } else {
        const int8_t *scales = (const int8_t *) b + (lines - 5) * LINE;
        ROLLED for (int s = 0; s < 16; s += 2) {   /* the file's order: [s/2][lane][s%2] */
            int8x16_t x = vld1q_s8(scales + s * WEIGHT_GROUP), y = vld1q_s8(scales + s * WEIGHT_GROUP + 16);
            store_signed(S + s * WEIGHT_GROUP, vuzp1q_s8(x, y));
            store_signed(S + (s + 1) * WEIGHT_GROUP, vuzp2q_s8(x, y));
        }
    }
    const uint8_t *end = b + (lines - 1) * LINE;
    ROLLED for (int quarter = 0; quarter < QUARTERS; quarter++) {
        const uint8_t *lane = b + 16 * quarter;
        Sum isum[TILE_ROWS];
        UNROLL for (int u = 0; u < units; u++) isum[u] = sum_zero();
        ROLLED for (int p = 0; p < 8; p++) {
            prefetch(next, (t == T_Q6_K ? 2 : 1) * LINE * (8 * quarter + p), t == T_Q6_K ? 2 : 1, lines * LINE);
            UNROLL for (int c = 0; c < 2; c++) {
                int8x16_t w[4];
                if (t != T_Q6_K) {
                    uint8x16_t four = vld1q_u8(lane + (2 * p + c) * LINE), high = four;
                    if (three) high = vld1q_u8(lane + (16 + p) * LINE);
                    UNROLL for (int i = 0; i < 4; i++) {
                        uint8x16_t code = vandq_u8(four >> (2 * i), vdupq_n_u8(3));
                        if (three) code = third(code, high, 2 * i + c);
                        w[i] = t == T_Q3_K ? less(code, 4) : three ? book(t, code) : vreinterpretq_s8_u8(code);
                    }
                } else {
                    uint8x16_t high = vld1q_u8(lane + (32 + 2 * p + c) * LINE);
                    UNROLL for (int i = 0; i < 4; i++) {
                        uint8x16_t both = vld1q_u8(lane + (4 * p + i) * LINE);
                        w[i] = less(joined(c ? high4(both) : low4(both), high, 2 * i, 48), 32);
                    }
                }
                arrange(w, 4, R);
                int32x4_t s = wide(S + (2 * p + c) * WEIGHT_GROUP + 4 * quarter);
                UNROLL for (int u = 0; u < units; u++) {
                    Sum x = sum_zero();
                    dot16(&x, w, acts.q + (size_t) u * acts.step + per_unit(R) * (32 * p + 16 * c), R);
                    sum_scaled(&isum[u], x, s, R);
                }
            }
        }
        finish(acc + 4 * quarter, isum,
               three ? vld1q_f32((const float *) (const void *) (end + 16 * quarter)) : halves(end + 8 * quarter),
               a, R);
        if (t == T_Q2_K)
            finish_min(acc + 4 * quarter, M + 4 * quarter, 16, end + 32 + 8 * quarter, a,
                       offsetof(ActBlock256, sum16), R);
    }
}
INLINE void tile_k6(float *acc, const uint8_t *b, const ActBlock256 *a, const uint8_t *next, const int R)
{
    tile_16s(acc, b, a, next, T_Q6_K, R);
}
INLINE void tile_k3(float *acc, const uint8_t *b, const ActBlock256 *a, const uint8_t *next, const int R)
{
    tile_16s(acc, b, a, next, T_Q3_K, R);
}
INLINE void tile_k3x(float *acc, const uint8_t *b, const ActBlock256 *a, const uint8_t *next, const int R)
{
    tile_16s(acc, b, a, next, T_IQ2_S, R);
}
INLINE void tile_k2(float *acc, const uint8_t *b, const ActBlock256 *a, const uint8_t *next, const int R)
{
    tile_16s(acc, b, a, next, T_Q2_K, R);
}

/* -- blocks of 32 -------------------------------------------------------------------------------------------------- */

/* The 8 code vectors of a block, signed, for a quarter of the lanes. */
INLINE void codes_32(int8x16_t *w, const uint8_t *lane, const Type t)
{
    if (t == T_Q8_0) {
        UNROLL for (int i = 0; i < 8;
                    i++) w[i] = vreinterpretq_s8_u8(veorq_u8(vld1q_u8(lane + i * LINE), vdupq_n_u8(0x80)));
        return;
    }
    UNROLL for (int i = 0; i < 4; i++) {
        uint8x16_t both = vld1q_u8(lane + i * LINE), code[2] = {low4(both), high4(both)};
        UNROLL for (int c = 0; c < 2; c++) {
            if (t == T_Q5_0 || t == T_Q5_1) code[c] = joined(code[c], vld1q_u8(lane + 4 * LINE), 2 * i + c, 16);
            w[4 * c + i] = t == T_IQ4_NL || t == T_MXFP4 || t == T_NVFP4 ? book(t, code[c])
                         : t == T_Q4_0   ? less(code[c], 8)
                         : t == T_Q5_0   ? less(code[c], 16)
                                         : vreinterpretq_s8_u8(code[c]);
        }
    }
}

INLINE void tile_32(float *acc, const uint8_t *code, const uint8_t *plane, const uint8_t *plane_m, const ActBlock32 *a,
                    int32_t n, int32_t nb, const uint8_t *next, const Type t, const int R)
{
    const int per = per_unit(R), units = units_of(R), lines = t == T_Q8_0 ? 8 : t == T_Q5_0 || t == T_Q5_1 ? 5 : 4;
    const bool with_m = t == T_Q4_1 || t == T_Q5_1;
    int8_t pairs[TILE_ROWS / 2 * PAIR_BYTES];
    if (per == 2) {
        ROLLED for (int32_t b = 0; b < nb;
                    b++) acts_of(pairs + b * units * 64, a[(size_t) b * (size_t) n].q, sizeof *a, 32, R);
    }
    ROLLED for (int quarter = 0; quarter < QUARTERS; quarter++) {
        const ActBlock32 *at = a;
        const uint8_t *lane = code + 16 * quarter;
        float32x4_t sum[TILE_ROWS];
        UNROLL for (int r = 0; r < R; r++) sum[r] = vld1q_f32(acc + WEIGHT_GROUP * r + 4 * quarter);
        ROLLED for (int32_t b = 0; b < nb; b++, at += n, lane += lines * LINE) {
            Acts acts = per == 1 ? (Acts) {at->q, sizeof *a} : (Acts) {pairs + b * units * 64, 64};
            int8x16_t w[8];
            if (quarter == 0) prefetch(next, b * lines * LINE, lines, STRIP / 32 * lines * LINE);
            codes_32(w, lane, t);
            arrange(w, 8, R);
            const uint8_t *scales = plane + 32 * b + 8 * quarter, *sixteens = plane + 32 * b + 4 * quarter;
            float32x4_t d = t == T_NVFP4 ? ue4m3s(sixteens) : t == T_MXFP4 ? bf16s(scales) : halves(scales),
                        upper = t == T_NVFP4 ? ue4m3s(sixteens + 16) : d, m = vdupq_n_f32(0);
            if (with_m) m = halves(plane_m + 32 * b + 8 * quarter);
            UNROLL for (int u = 0; u < units; u++) {
                const int8_t *q = acts.q + (size_t) u * acts.step;
                Sum x = sum_zero(), z = sum_zero();
                dot16(&x, w, q, R);
                dot16(t == T_NVFP4 ? &z : &x, w + 4, q + per * 16, R);
                UNROLL for (int i = 0; i < per; i++) {
                    const int r = per * u + i;
                    if (r == R) continue;
                    sum[r] = scaled(d, at[r].scale, sum_row(x, r, R), sum[r]);
                    if (t == T_NVFP4) sum[r] = scaled(upper, at[r].scale, sum_row(z, r, R), sum[r]);
                    if (with_m) sum[r] = scaled(m, at[r].scale, vdupq_n_s32(at[r].sum), sum[r]);
                }
            }
        }
        UNROLL for (int r = 0; r < R; r++) vst1q_f32(acc + WEIGHT_GROUP * r + 4 * quarter, sum[r]);
    }
}

/* -- float weights ------------------------------------------------------------------------------------------------- */

INLINE float32x4_t weights_4(const uint8_t *p, const Type t)
{
    if (t == T_F32) return vld1q_f32((const float *) (const void *) p);
    if (t == T_F16) return halves(p);
    return bf16s(p);
}

/* Half of the lanes at a time: 16 accumulators, and 4 activations of each row. */
INLINE void tile_float(float *acc, const uint8_t *w, const float *x, int32_t cols, int32_t nk, const uint8_t *next,
                       const Type t, const int R)
{
    const size_t size = t == T_F32 ? 4 : 2, line = WEIGHT_GROUP * size;
    for (int half = 0; half < 2; half++) {
        const uint8_t *lane = w + (size_t) half * 8 * size;
        float32x4_t sum[TILE_ROWS][2];
        UNROLL for (int r = 0; r < R; r++) {
            sum[r][0] = vld1q_f32(acc + WEIGHT_GROUP * r + 8 * half);
            sum[r][1] = vld1q_f32(acc + WEIGHT_GROUP * r + 8 * half + 4);
        }
        int32_t k = 0;
        ROLLED for (; k + 4 <= nk; k += 4) {
            float32x4_t xk[TILE_ROWS];
            if (half == 0) prefetch(next, (int) (k * (int32_t) line), (int) (4 * line / LINE), STRIP * (int) line);
            UNROLL for (int r = 0; r < R; r++) xk[r] = vld1q_f32(x + (size_t) r * (size_t) cols + (size_t) k);
#define STEP(i)                                                                   \
    {                                                                             \
        float32x4_t w0 = weights_4(lane + (size_t) (k + i) * line, t),            \
                    w1 = weights_4(lane + (size_t) (k + i) * line + 4 * size, t); \
        UNROLL for (int r = 0; r < R; r++) {                                      \
            sum[r][0] = vfmaq_laneq_f32(sum[r][0], w0, xk[r], i);                 \
            sum[r][1] = vfmaq_laneq_f32(sum[r][1], w1, xk[r], i);                 \
        }                                                                         \
    }
            STEP(0) STEP(1) STEP(2) STEP(3)
#undef STEP
        }
        ROLLED for (; k < nk; k++) {
            float32x4_t w0 = weights_4(lane + (size_t) k * line, t),
                        w1 = weights_4(lane + (size_t) k * line + 4 * size, t);
            UNROLL for (int r = 0; r < R; r++) {
                float32x4_t xk = vdupq_n_f32(x[(size_t) r * (size_t) cols + (size_t) k]);
                sum[r][0] = vfmaq_f32(sum[r][0], w0, xk);
                sum[r][1] = vfmaq_f32(sum[r][1], w1, xk);
            }
        }
        UNROLL for (int r = 0; r < R; r++) {
            vst1q_f32(acc + WEIGHT_GROUP * r + 8 * half, sum[r][0]);
            vst1q_f32(acc + WEIGHT_GROUP * r + 8 * half + 4, sum[r][1]);
        }
    }
}

#include "backend/cpu/matmul_strips.h"
#endif
