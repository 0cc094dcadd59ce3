/* vec.h - V, sixteen floats side by side, implemented for each kind of machine.
 * Kernels are written once over V and give the same bits at every level: each operation below is a single IEEE
 * operation per lane, or a fixed order of them (v_sum), and nothing is contracted. Only simd_*.c files include this;
 * LEVEL selects the implementation. */
#ifndef RATOON_BACKEND_CPU_VEC_H
#define RATOON_BACKEND_CPU_VEC_H

#include <stdint.h>
#include <string.h>

#include "format/quant.h"

#ifndef LEVEL
#error "vec.h is for simd_*.c files, which are compiled with LEVEL"
#endif

/* Everything but the product is the same at level amx as at avx512, with tiles in addition. */
#ifdef LEVEL_IS_amx
#define LEVEL_IS_avx512
#endif

enum { LANES = 16 };

/* v_max(a, b) is a > b ? a : b and v_min(a, b) is a < b ? a : b: a NaN in b comes through, one in a does not.
 * v_lt(a, b, x, y) is a < b ? x : y.  v_ne(a, b): one bit per lane where a != b, NaN differs from everything.
 * v_pick(bits, a, b): a where the lane's bit is set, else b.
 * v_load_n, v_store_n: the first n lanes; the others are loaded as 0.
 * v_pow2(t, up): with t = n + 1.5 * 2^23 for an integer n, 2^(n + up); n + up in [-126, 127].
 * v_split(u, &k): u = m * 2^k with m in [sqrt(1/2), sqrt(2)), u positive and normal; returns m.
 * v_sum: lanes i and i + 8, then 4, 2, 1.  v_top: the largest lane in the same order. */

#if defined(LEVEL_IS_portable)

#include <math.h>

/* Four small vectors, by the compiler's own vector extension, for any processor. The operations are excluded from the
 * sanitizers, which would turn each into some hundred instructions; loads and stores are not. */
typedef float   F4 __attribute__((vector_size(16)));
typedef int32_t I4 __attribute__((vector_size(16)));
typedef struct { F4 f[4]; } V;

#define V_OP static inline __attribute__((no_sanitize("address", "undefined")))
V_OP V v_set(float x) { F4 v = { x, x, x, x }; return (V) { { v, v, v, v } }; }
static inline V v_load(const float *p) { V r; memcpy(&r, p, sizeof r); return r; }
static inline V v_load_n(const float *p, int n) { V r = v_set(0); memcpy(&r, p, sizeof(float) * (size_t) n); return r; }
static inline void v_store(float *p, V a) { memcpy(p, &a, sizeof a); }
static inline void v_store_n(float *p, V a, int n) { memcpy(p, &a, sizeof(float) * (size_t) n); }
V_OP V v_add(V a, V b) { return (V) { { a.f[0] + b.f[0], a.f[1] + b.f[1], a.f[2] + b.f[2], a.f[3] + b.f[3] } }; }
V_OP V v_sub(V a, V b) { return (V) { { a.f[0] - b.f[0], a.f[1] - b.f[1], a.f[2] - b.f[2], a.f[3] - b.f[3] } }; }
V_OP V v_mul(V a, V b) { return (V) { { a.f[0] * b.f[0], a.f[1] * b.f[1], a.f[2] * b.f[2], a.f[3] * b.f[3] } }; }
V_OP V v_div(V a, V b) { return (V) { { a.f[0] / b.f[0], a.f[1] / b.f[1], a.f[2] / b.f[2], a.f[3] / b.f[3] } }; }

V_OP V v_fma(V a, V b, V c)
{
    for (int i = 0; i < 4; i++)
        c.f[i] = (F4) { fmaf(a.f[i][0], b.f[i][0], c.f[i][0]), fmaf(a.f[i][1], b.f[i][1], c.f[i][1]),
                        fmaf(a.f[i][2], b.f[i][2], c.f[i][2]), fmaf(a.f[i][3], b.f[i][3], c.f[i][3]) };
    return c;
}

V_OP F4 f4_pick(I4 bits, F4 a, F4 b) { return (F4) ((bits & (I4) a) | (~bits & (I4) b)); }
V_OP V v_max(V a, V b)
{
    for (int i = 0; i < 4; i++) a.f[i] = f4_pick(a.f[i] > b.f[i], a.f[i], b.f[i]);
    return a;
}
V_OP V v_min(V a, V b)
{
    for (int i = 0; i < 4; i++) a.f[i] = f4_pick(a.f[i] < b.f[i], a.f[i], b.f[i]);
    return a;
}
V_OP V v_lt(V a, V b, V x, V y)
{
    for (int i = 0; i < 4; i++) a.f[i] = f4_pick(a.f[i] < b.f[i], x.f[i], y.f[i]);
    return a;
}

V_OP uint32_t v_ne(V a, V b)
{
    uint32_t bits = 0;
    for (int i = 0; i < LANES; i++) bits |= (uint32_t) (a.f[i / 4][i % 4] != b.f[i / 4][i % 4]) << i;
    return bits;
}

V_OP V v_pick(uint32_t bits, V a, V b)
{
    const I4 lane = { 1, 2, 4, 8 };
    for (int i = 0; i < 4; i++) {
        int32_t four = (int32_t) (bits >> 4 * i & 15);
        a.f[i] = f4_pick((((I4) { four, four, four, four }) & lane) != 0, a.f[i], b.f[i]);
    }
    return a;
}

V_OP V v_pow2(V t, int up)
{
    uint32_t u[LANES];
    memcpy(u, &t, sizeof u);
    for (int i = 0; i < LANES; i++) u[i] = (u[i] + (uint32_t) (127 + up)) << 23;
    memcpy(&t, u, sizeof u);
    return t;
}

V_OP V v_split(V a, V *k)
{
    uint32_t u[LANES];
    memcpy(u, &a, sizeof u);
    for (int i = 0; i < LANES; i++) {
        int32_t e = (int32_t) (u[i] - 0x3f3504f3u) >> 23;
        k->f[i / 4][i % 4] = (float) e;
        u[i] -= (uint32_t) e << 23;
    }
    memcpy(&a, u, sizeof u);
    return a;
}

V_OP float v_sum(V a)
{
    F4 four = (a.f[0] + a.f[2]) + (a.f[1] + a.f[3]);
    return (four[0] + four[2]) + (four[1] + four[3]);
}

V_OP float v_top(V a)
{
    F4 low = f4_pick(a.f[0] > a.f[2], a.f[0], a.f[2]), high = f4_pick(a.f[1] > a.f[3], a.f[1], a.f[3]),
       four = f4_pick(low > high, low, high);
    float x = four[0] > four[2] ? four[0] : four[2], y = four[1] > four[3] ? four[1] : four[3];
    return x > y ? x : y;
}

static inline V v_load_half(const uint16_t *p)
{
    float f[LANES];
    for (int i = 0; i < LANES; i++) f[i] = half_to_float(p[i]);
    return v_load(f);
}

static inline V v_load_bf16(const uint16_t *p)
{
    float f[LANES];
    for (int i = 0; i < LANES; i++) f[i] = bf16_to_float(p[i]);
    return v_load(f);
}

static inline void v_store_half(uint16_t *p, V a)
{
    for (int i = 0; i < LANES; i++) p[i] = half_from_float(a.f[i / 4][i % 4]);
}

#elif defined(LEVEL_IS_avx2) || defined(LEVEL_IS_avxvnni)

#include <immintrin.h>

typedef struct { __m256 a, b; } V;

static inline V v_set(float x) { __m256 v = _mm256_set1_ps(x); return (V) { v, v }; }
static inline V v_load(const float *p) { return (V) { _mm256_loadu_ps(p), _mm256_loadu_ps(p + 8) }; }
static inline __m256i v_first(int n)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
static inline V v_load_n(const float *p, int n)
{
    return (V) { _mm256_maskload_ps(p, v_first(n)),
                 n > 8 ? _mm256_maskload_ps(p + 8, v_first(n - 8)) : _mm256_setzero_ps() };
}
static inline void v_store(float *p, V a) { _mm256_storeu_ps(p, a.a); _mm256_storeu_ps(p + 8, a.b); }
static inline void v_store_n(float *p, V a, int n)
{
    _mm256_maskstore_ps(p, v_first(n), a.a);
    if (n > 8) _mm256_maskstore_ps(p + 8, v_first(n - 8), a.b);
}
static inline V v_add(V a, V b) { return (V) { _mm256_add_ps(a.a, b.a), _mm256_add_ps(a.b, b.b) }; }
static inline V v_sub(V a, V b) { return (V) { _mm256_sub_ps(a.a, b.a), _mm256_sub_ps(a.b, b.b) }; }
static inline V v_mul(V a, V b) { return (V) { _mm256_mul_ps(a.a, b.a), _mm256_mul_ps(a.b, b.b) }; }
static inline V v_div(V a, V b) { return (V) { _mm256_div_ps(a.a, b.a), _mm256_div_ps(a.b, b.b) }; }
static inline V v_fma(V a, V b, V c) { return (V) { _mm256_fmadd_ps(a.a, b.a, c.a), _mm256_fmadd_ps(a.b, b.b, c.b) }; }
static inline V v_max(V a, V b) { return (V) { _mm256_max_ps(a.a, b.a), _mm256_max_ps(a.b, b.b) }; }
static inline V v_min(V a, V b) { return (V) { _mm256_min_ps(a.a, b.a), _mm256_min_ps(a.b, b.b) }; }
static inline V v_lt(V a, V b, V x, V y)
{
    return (V) { _mm256_blendv_ps(y.a, x.a, _mm256_cmp_ps(a.a, b.a, _CMP_LT_OQ)),
                 _mm256_blendv_ps(y.b, x.b, _mm256_cmp_ps(a.b, b.b, _CMP_LT_OQ)) };
}
static inline uint32_t v_ne(V a, V b)
{
    return (uint32_t) _mm256_movemask_ps(_mm256_cmp_ps(a.a, b.a, _CMP_NEQ_UQ))
         | (uint32_t) _mm256_movemask_ps(_mm256_cmp_ps(a.b, b.b, _CMP_NEQ_UQ)) << 8;
}
static inline __m256 v_pick_half(uint32_t bits, __m256 a, __m256 b)
{
    const __m256i lane = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    __m256i set = _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32((int) bits), lane), lane);
    return _mm256_blendv_ps(b, a, _mm256_castsi256_ps(set));
}
static inline V v_pick(uint32_t bits, V a, V b)
{
    return (V) { v_pick_half(bits, a.a, b.a), v_pick_half(bits >> 8, a.b, b.b) };
}
static inline __m256 v_pow2_half(__m256 t, int up)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_castps_si256(t), _mm256_set1_epi32(127 + up)),
                                                 23));
}
static inline V v_pow2(V t, int up) { return (V) { v_pow2_half(t.a, up), v_pow2_half(t.b, up) }; }
static inline __m256 v_split_half(__m256 u, __m256 *k)
{
    __m256i bits = _mm256_castps_si256(u),
            e = _mm256_srai_epi32(_mm256_sub_epi32(bits, _mm256_set1_epi32(0x3f3504f3)), 23);
    *k = _mm256_cvtepi32_ps(e);
    return _mm256_castsi256_ps(_mm256_sub_epi32(bits, _mm256_slli_epi32(e, 23)));
}
static inline V v_split(V u, V *k)
{
    V m;
    m.a = v_split_half(u.a, &k->a);
    m.b = v_split_half(u.b, &k->b);
    return m;
}
static inline float v_sum(V v)
{
    __m256 eight = _mm256_add_ps(v.a, v.b);
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
static inline float v_top(V v)
{
    __m256 eight = _mm256_max_ps(v.a, v.b);
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}
static inline V v_load_half(const uint16_t *p)
{
    return (V) { _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *) (const void *) p)),
                 _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *) (const void *) (p + 8))) };
}
static inline __m256 v_bf16_half(const uint16_t *p)
{
    __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *) (const void *) p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}
static inline V v_load_bf16(const uint16_t *p) { return (V) { v_bf16_half(p), v_bf16_half(p + 8) }; }
static inline void v_store_half(uint16_t *p, V v)
{
    _mm_storeu_si128((__m128i *) (void *) p, _mm256_cvtps_ph(v.a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    _mm_storeu_si128((__m128i *) (void *) (p + 8), _mm256_cvtps_ph(v.b, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

#elif defined(LEVEL_IS_avx512)

#include <immintrin.h>

typedef __m512 V;

static inline V v_set(float x) { return _mm512_set1_ps(x); }
static inline V v_load(const float *p) { return _mm512_loadu_ps(p); }
static inline V v_load_n(const float *p, int n) { return _mm512_maskz_loadu_ps((__mmask16) ((1u << n) - 1), p); }
static inline void v_store(float *p, V a) { _mm512_storeu_ps(p, a); }
static inline void v_store_n(float *p, V a, int n) { _mm512_mask_storeu_ps(p, (__mmask16) ((1u << n) - 1), a); }
static inline V v_add(V a, V b) { return _mm512_add_ps(a, b); }
static inline V v_sub(V a, V b) { return _mm512_sub_ps(a, b); }
static inline V v_mul(V a, V b) { return _mm512_mul_ps(a, b); }
static inline V v_div(V a, V b) { return _mm512_div_ps(a, b); }
static inline V v_fma(V a, V b, V c) { return _mm512_fmadd_ps(a, b, c); }
static inline V v_max(V a, V b) { return _mm512_max_ps(a, b); }
static inline V v_min(V a, V b) { return _mm512_min_ps(a, b); }
static inline V v_lt(V a, V b, V x, V y) { return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), y, x); }
static inline V v_pick(uint32_t bits, V a, V b) { return _mm512_mask_blend_ps((__mmask16) bits, b, a); }
static inline uint32_t v_ne(V a, V b) { return _mm512_cmp_ps_mask(a, b, _CMP_NEQ_UQ); }
static inline V v_pow2(V t, int up)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(_mm512_castps_si512(t), _mm512_set1_epi32(127 + up)),
                                                 23));
}
static inline V v_split(V u, V *k)
{
    __m512i bits = _mm512_castps_si512(u),
            e = _mm512_srai_epi32(_mm512_sub_epi32(bits, _mm512_set1_epi32(0x3f3504f3)), 23);
    *k = _mm512_cvtepi32_ps(e);
    return _mm512_castsi512_ps(_mm512_sub_epi32(bits, _mm512_slli_epi32(e, 23)));
}
static inline float v_sum(V v)
{
    __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
static inline float v_top(V v)
{
    __m256 eight = _mm256_max_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}
static inline V v_load_half(const uint16_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *) (const void *) p));
}
static inline V v_load_bf16(const uint16_t *p)
{
    __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *) (const void *) p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}
static inline void v_store_half(uint16_t *p, V v)
{
    _mm256_storeu_si256((__m256i *) (void *) p, _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

#elif defined(LEVEL_IS_neon) || defined(LEVEL_IS_i8mm)

#include <arm_neon.h>

typedef float32x4_t F4;
typedef struct { F4 a, b, c, d; } V;

#define V_ONE(f, x)         ((V) { f((x).a), f((x).b), f((x).c), f((x).d) })
#define V_TWO(f, x, y)      ((V) { f((x).a, (y).a), f((x).b, (y).b), f((x).c, (y).c), f((x).d, (y).d) })
#define V_THREE(f, x, y, z) \
    ((V) { f((x).a, (y).a, (z).a), f((x).b, (y).b, (z).b), f((x).c, (y).c, (z).c), f((x).d, (y).d, (z).d) })

static inline V v_set(float x) { F4 v = vdupq_n_f32(x); return (V) { v, v, v, v }; }
static inline V v_load(const float *p)
{
    return (V) { vld1q_f32(p), vld1q_f32(p + 4), vld1q_f32(p + 8), vld1q_f32(p + 12) };
}
static inline V v_load_n(const float *p, int n)
{
    float f[LANES] = { 0 };
    memcpy(f, p, sizeof(float) * (size_t) n);
    return v_load(f);
}
static inline void v_store(float *p, V v)
{
    vst1q_f32(p, v.a);
    vst1q_f32(p + 4, v.b);
    vst1q_f32(p + 8, v.c);
    vst1q_f32(p + 12, v.d);
}
static inline void v_store_n(float *p, V v, int n)
{
    float f[LANES];
    v_store(f, v);
    memcpy(p, f, sizeof(float) * (size_t) n);
}
static inline V v_add(V a, V b) { return V_TWO(vaddq_f32, a, b); }
static inline V v_sub(V a, V b) { return V_TWO(vsubq_f32, a, b); }
static inline V v_mul(V a, V b) { return V_TWO(vmulq_f32, a, b); }
static inline V v_div(V a, V b) { return V_TWO(vdivq_f32, a, b); }
static inline V v_fma(V a, V b, V c) { return V_THREE(vfmaq_f32, c, a, b); }
/* This processor's fmax and fmin treat NaN differently, so these select. */
static inline F4 f4_max(F4 a, F4 b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
static inline F4 f4_min(F4 a, F4 b) { return vbslq_f32(vcltq_f32(a, b), a, b); }
static inline V v_max(V a, V b) { return V_TWO(f4_max, a, b); }
static inline V v_min(V a, V b) { return V_TWO(f4_min, a, b); }
static inline V v_lt(V a, V b, V x, V y)
{
    return (V) { vbslq_f32(vcltq_f32(a.a, b.a), x.a, y.a), vbslq_f32(vcltq_f32(a.b, b.b), x.b, y.b),
                 vbslq_f32(vcltq_f32(a.c, b.c), x.c, y.c), vbslq_f32(vcltq_f32(a.d, b.d), x.d, y.d) };
}
static inline uint32_t v_ne(V a, V b)
{
    static const uint16_t lane[8] = { 1, 2, 4, 8, 16, 32, 64, 128 };
    uint16x8_t low = vcombine_u16(vmovn_u32(vceqq_f32(a.a, b.a)), vmovn_u32(vceqq_f32(a.b, b.b)));
    uint16x8_t high = vcombine_u16(vmovn_u32(vceqq_f32(a.c, b.c)), vmovn_u32(vceqq_f32(a.d, b.d)));
    return (uint32_t) vaddvq_u16(vbicq_u16(vld1q_u16(lane), low)) |
           (uint32_t) vaddvq_u16(vbicq_u16(vld1q_u16(lane), high)) << 8;
}
static inline V v_pick(uint32_t bits, V a, V b)
{
    static const uint32_t lane[4] = { 1, 2, 4, 8 };
    uint32x4_t l = vld1q_u32(lane);
    return (V) { vbslq_f32(vtstq_u32(vdupq_n_u32(bits), l), a.a, b.a),
                 vbslq_f32(vtstq_u32(vdupq_n_u32(bits >> 4), l), a.b, b.b),
                 vbslq_f32(vtstq_u32(vdupq_n_u32(bits >> 8), l), a.c, b.c),
                 vbslq_f32(vtstq_u32(vdupq_n_u32(bits >> 12), l), a.d, b.d) };
}
static inline F4 f4_pow2(F4 t, int32_t up)
{
    return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(vreinterpretq_s32_f32(t), vdupq_n_s32(127 + up)), 23));
}
static inline V v_pow2(V t, int up)
{
    return (V) { f4_pow2(t.a, up), f4_pow2(t.b, up), f4_pow2(t.c, up), f4_pow2(t.d, up) };
}
static inline F4 f4_split(F4 u, F4 *k)
{
    int32x4_t bits = vreinterpretq_s32_f32(u), e = vshrq_n_s32(vsubq_s32(bits, vdupq_n_s32(0x3f3504f3)), 23);
    *k = vcvtq_f32_s32(e);
    return vreinterpretq_f32_s32(vsubq_s32(bits, vshlq_n_s32(e, 23)));
}
static inline V v_split(V u, V *k)
{
    return (V) { f4_split(u.a, &k->a), f4_split(u.b, &k->b), f4_split(u.c, &k->c), f4_split(u.d, &k->d) };
}
static inline float v_sum(V v)
{
    F4 four = vaddq_f32(vaddq_f32(v.a, v.c), vaddq_f32(v.b, v.d));
    float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
    return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}
static inline float v_top(V v)
{
    F4 four = f4_max(f4_max(v.a, v.c), f4_max(v.b, v.d)), two = f4_max(four, vextq_f32(four, four, 2));
    return vgetq_lane_f32(f4_max(two, vextq_f32(two, two, 1)), 0);
}
static inline F4 f4_half(const uint16_t *p) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p))); }
static inline V v_load_half(const uint16_t *p)
{
    return (V) { f4_half(p), f4_half(p + 4), f4_half(p + 8), f4_half(p + 12) };
}
static inline F4 f4_bf16(const uint16_t *p) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16)); }
static inline V v_load_bf16(const uint16_t *p)
{
    return (V) { f4_bf16(p), f4_bf16(p + 4), f4_bf16(p + 8), f4_bf16(p + 12) };
}
static inline void f4_store_half(uint16_t *p, F4 x) { vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(x))); }
static inline void v_store_half(uint16_t *p, V v)
{
    f4_store_half(p, v.a);
    f4_store_half(p + 4, v.b);
    f4_store_half(p + 8, v.c);
    f4_store_half(p + 12, v.d);
}

#else
#error "vec.h does not know this level"
#endif

/* v_sums: out[j] = v_sum(acc[j]) for j in [0, SUMS), as many as the registers hold. With AVX-512 the sixteen sums are
 * made together, two vectors per addition: 15 additions instead of 64; with NEON the last steps of four sums. Lanes are
 * paired as in v_sum, and the order of two terms does not matter. */
#ifdef LEVEL_IS_avx512
enum { SUMS = 16 };
static inline void v_sums(float out[SUMS], const V acc[SUMS])
{
    V eight[8], four[4], two[2];
    for (int i = 0; i < 8; i++) {   /* slot s holds sum 4 (s % 4) + s / 4, so that the last step puts the sums in
                                     * order */
        V a = acc[4 * (2 * i % 4) + 2 * i / 4], b = acc[4 * ((2 * i + 1) % 4) + (2 * i + 1) / 4];
        eight[i] = v_add(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
    }
    for (int i = 0; i < 4; i++)
        four[i] = v_add(_mm512_shuffle_f32x4(eight[2 * i], eight[2 * i + 1], 0x88),
                        _mm512_shuffle_f32x4(eight[2 * i], eight[2 * i + 1], 0xdd));
    for (int i = 0; i < 2; i++)
        two[i] = v_add(_mm512_shuffle_ps(four[2 * i], four[2 * i + 1], 0x44),
                       _mm512_shuffle_ps(four[2 * i], four[2 * i + 1], 0xee));
    v_store(out, v_add(_mm512_shuffle_ps(two[0], two[1], 0x88), _mm512_shuffle_ps(two[0], two[1], 0xdd)));
}
#elif defined(LEVEL_IS_neon) || defined(LEVEL_IS_i8mm)
enum { SUMS = 4 };
static inline F4 f4_halves(F4 a, F4 b)            /* a0 + a2, a1 + a3, b0 + b2, b1 + b3 */
{
    float64x2_t x = vreinterpretq_f64_f32(a), y = vreinterpretq_f64_f32(b);
    return vaddq_f32(vreinterpretq_f32_f64(vtrn1q_f64(x, y)), vreinterpretq_f32_f64(vtrn2q_f64(x, y)));
}
static inline F4 f4_four(V v) { return vaddq_f32(vaddq_f32(v.a, v.c), vaddq_f32(v.b, v.d)); }
static inline void v_sums(float out[SUMS], const V acc[SUMS])
{
    vst1q_f32(out,
              vpaddq_f32(f4_halves(f4_four(acc[0]), f4_four(acc[1])), f4_halves(f4_four(acc[2]), f4_four(acc[3]))));
}
#else
enum { SUMS = 4 };
static inline void v_sums(float out[SUMS], const V acc[SUMS])
{
    for (int i = 0; i < SUMS; i++) out[i] = v_sum(acc[i]);
}
#endif

/* The first n lanes, n in [1, 16]: for the last, possibly partial, step of a loop in steps of 16. */
static inline V v_load_to(const float *p, int64_t n) { return n >= LANES ? v_load(p) : v_load_n(p, (int) n); }
static inline void v_store_to(float *p, V a, int64_t n)
{
    if (n >= LANES) v_store(p, a);
    else v_store_n(p, a, (int) n);
}

#endif
