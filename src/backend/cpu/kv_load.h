/* kv_load.h - stored keys and values as floats, thirty-two columns at a time, in registers.
 * A type is known where kv_load is inlined, so each use is the type's own few instructions. All levels give the bits of quant_decode:
 * scale times code, rounded, and for types with a minimum the sum rounded again; TQ3_0 stays in its rotated space. */
#ifndef RATOON_BACKEND_CPU_KV_LOAD_H
#define RATOON_BACKEND_CPU_KV_LOAD_H

#include "backend/cpu/kernels.h"
#include "backend/cpu/vec.h"

enum { KV_COLS = 2 * LANES };

/* KV_IN_REGISTERS: kv_load is a few instructions for every type; where it is not, each row should be widened once. */
#if defined(LEVEL_IS_avx2) || defined(LEVEL_IS_avxvnni) || defined(LEVEL_IS_avx512)
#define KV_IN_REGISTERS 1
#else
#define KV_IN_REGISTERS 0
#endif

/* Types whose block starts inside a head: rows of heads that they do not divide are refused when a model is opened. */
static inline bool kv_turned(Type t) { return t == T_TQ3_0; }

/* Bytes of 32 columns. */
static inline size_t kv_bytes(Type t)
{
    return t == T_F32 ? 128 : t == T_F16 || t == T_BF16 ? 64 : t == T_Q8_0 ? 34 : t == T_Q5_1 ? 24 : t == T_Q5_0 ? 22 : t == T_Q4_1 ? 20 : t == T_Q4_0 ? 18 : 14;
}

#if KV_IN_REGISTERS

/* The vector units are what limits here, and converting and spreading a half would take three of their instructions a block: a table takes
 * none. */
static inline V kv_scale(const uint8_t *p)
{
    uint16_t h;
    memcpy(&h, p, sizeof h);
    return v_set(half_table[h]);
}

#endif

#if defined(LEVEL_IS_avx2) || defined(LEVEL_IS_avxvnni)

static inline V kv_signed(__m128i codes)
{
    return (V) { _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(codes)), _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(codes, 8))) };
}

/* Sixteen bits into bit 4 of sixteen bytes. */
static inline __m128i kv_fifth(uint16_t bits)
{
    const __m128i spread = _mm_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1), bit = _mm_set1_epi64x((long long) 0x8040201008040201u);
    __m128i set = _mm_cmpeq_epi8(_mm_and_si128(_mm_shuffle_epi8(_mm_set1_epi16((short) bits), spread), bit), bit);
    return _mm_and_si128(set, _mm_set1_epi8(16));
}

/* Four-bit codes with a fifth bit each where there are any (high NULL: none), less `less`, times the scale, plus the minimum. */
static inline __attribute__((always_inline)) void kv_nibbles(V y[2], const uint8_t *q, const uint8_t *high, int less, V d, const V *m)
{
    __m128i bytes = _mm_loadu_si128((const __m128i *) (const void *) q), nibble = _mm_set1_epi8(15);
    __m128i code[2] = { _mm_and_si128(bytes, nibble), _mm_and_si128(_mm_srli_epi16(bytes, 4), nibble) };
    for (int i = 0; i < 2; i++) {
        if (high) {
            uint16_t bits;
            memcpy(&bits, high + 2 * i, sizeof bits);
            code[i] = _mm_or_si128(code[i], kv_fifth(bits));
        }
        if (less) code[i] = _mm_sub_epi8(code[i], _mm_set1_epi8((char) less));
        y[i] = v_mul(kv_signed(code[i]), d);
        if (m) y[i] = v_add(y[i], *m);
    }
}

static inline void kv_tq3(V y[2], const uint8_t *b)
{
    const __m256 level = _mm256_setr_ps(-0.190685f, -0.117832f, -0.065717f, -0.021460f, 0.021460f, 0.065717f, 0.117832f, 0.190685f);
    const __m256i at = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), three = _mm256_set1_epi32(3), four = _mm256_set1_epi32(4);
    V d = kv_scale(b);
    for (int i = 0; i < 2; i++) {
        __m256 half[2];
        for (int k = 0; k < 2; k++) {
            uint16_t low;
            memcpy(&low, b + 2 + 4 * i + 2 * k, sizeof low);
            __m256i code = _mm256_and_si256(_mm256_srlv_epi32(_mm256_set1_epi32(low), _mm256_slli_epi32(at, 1)), three);
            __m256i high = _mm256_srlv_epi32(_mm256_set1_epi32(b[10 + 2 * i + k] << 2), at);
            half[k] = _mm256_permutevar8x32_ps(level, _mm256_or_si256(code, _mm256_and_si256(high, four)));
        }
        y[i] = v_mul((V) { half[0], half[1] }, d);
    }
}

#elif defined(LEVEL_IS_avx512)

static inline V kv_signed(__m128i codes) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(codes)); }

/* The block's sixteen (or, with fifth bits, thirty-two) values are made first, and the codes pick from them: a permutation looks at four
 * bits of its index only. */
static inline __attribute__((always_inline)) void kv_nibbles(V y[2], const uint8_t *q, const uint8_t *high, int less, V d, const V *m)
{
    const V count = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    V value = v_mul(v_sub(count, v_set((float) less)), d), upper = v_mul(v_sub(count, v_set((float) (less - 16))), d);
    if (m) value = v_add(value, *m), upper = v_add(upper, *m);
    __m512i code = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *) (const void *) q)), code2 = _mm512_srli_epi32(code, 4);
    y[0] = _mm512_permutexvar_ps(code, value);
    y[1] = _mm512_permutexvar_ps(code2, value);
    if (!high) return;
    uint16_t bits[2];
    memcpy(bits, high, sizeof bits);
    y[0] = _mm512_mask_permutexvar_ps(y[0], bits[0], code, upper);
    y[1] = _mm512_mask_permutexvar_ps(y[1], bits[1], code2, upper);
}

/* As kv_nibbles: each level stands four times in the table, so that the bits of the next code do not matter. */
static inline void kv_tq3(V y[2], const uint8_t *b)
{
    const V low = _mm512_broadcast_f32x4(_mm_setr_ps(-0.190685f, -0.117832f, -0.065717f, -0.021460f));
    const V high = _mm512_broadcast_f32x4(_mm_setr_ps(0.021460f, 0.065717f, 0.117832f, 0.190685f));
    const __m512i at = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    V d = kv_scale(b), below = v_mul(low, d), above = v_mul(high, d);
    uint32_t code[2];
    uint16_t bits[2];
    memcpy(code, b + 2, sizeof code);
    memcpy(bits, b + 10, sizeof bits);
    for (int i = 0; i < 2; i++) {
        __m512i index = _mm512_srlv_epi32(_mm512_set1_epi32((int) code[i]), at);
        y[i] = _mm512_mask_permutexvar_ps(_mm512_permutexvar_ps(index, below), bits[i], index, above);
    }
}

#endif

/* y = columns c and on of a head, c a multiple of 32; `head` is where the head's stored values begin. */
static inline __attribute__((always_inline)) void kv_load(V y[2], Type t, const uint8_t *head, int32_t c)
{
    if (t == T_F32) {
        y[0] = v_load((const float *) (const void *) head + c);
        y[1] = v_load((const float *) (const void *) head + c + LANES);
        return;
    }
    if (t == T_F16) {
        y[0] = v_load_half((const uint16_t *) (const void *) head + c);
        y[1] = v_load_half((const uint16_t *) (const void *) head + c + LANES);
        return;
    }
    if (t == T_BF16) {
        y[0] = v_load_bf16((const uint16_t *) (const void *) head + c);
        y[1] = v_load_bf16((const uint16_t *) (const void *) head + c + LANES);
        return;
    }
#if KV_IN_REGISTERS
    if (t == T_Q8_0) {
        const uint8_t *b = head + (size_t) (c / KV_COLS) * kv_bytes(t);
        V d = kv_scale(b);
        y[0] = v_mul(kv_signed(_mm_loadu_si128((const __m128i *) (const void *) (b + 2))), d);
        y[1] = v_mul(kv_signed(_mm_loadu_si128((const __m128i *) (const void *) (b + 18))), d);
    } else if (t == T_Q4_0) {
        const uint8_t *b = head + (size_t) (c / KV_COLS) * kv_bytes(t);
        kv_nibbles(y, b + 2, NULL, 8, kv_scale(b), NULL);
    } else if (t == T_Q4_1) {
        const uint8_t *b = head + (size_t) (c / KV_COLS) * kv_bytes(t);
        V m = kv_scale(b + 2);
        kv_nibbles(y, b + 4, NULL, 0, kv_scale(b), &m);
    } else if (t == T_Q5_0) {
        const uint8_t *b = head + (size_t) (c / KV_COLS) * kv_bytes(t);
        kv_nibbles(y, b + 6, b + 2, 16, kv_scale(b), NULL);
    } else if (t == T_Q5_1) {
        const uint8_t *b = head + (size_t) (c / KV_COLS) * kv_bytes(t);
        V m = kv_scale(b + 2);
        kv_nibbles(y, b + 8, b + 4, 0, kv_scale(b), &m);
    } else {
        kv_tq3(y, head + (size_t) (c / KV_COLS) * kv_bytes(t));
    }
#else
    float f[KV_COLS];
    if (t == T_TQ3_0) quant_decode_tq3_turned(f, head + (size_t) (c / KV_COLS) * kv_bytes(t));
    else quant_decode(f, t, head + (size_t) (c / KV_COLS) * kv_bytes(t), KV_COLS);
    y[0] = v_load(f);
    y[1] = v_load(f + LANES);
#endif
}

#endif
