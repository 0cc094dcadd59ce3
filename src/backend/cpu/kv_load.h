/* kv_load.h - loads stored keys and values as floats, thirty-two columns at a time, into registers: from floats, and
 * from TQ3_0, whose codes name eight levels. kv_load is inlined with a constant type, so each use is only the few
 * instructions of that type. All levels give the bits of quant_decode, except that TQ3_0 stays in its rotated space.
 * Types with integer codes are not decoded (kv_codes.h). */
#ifndef RATOON_BACKEND_CPU_KV_LOAD_H
#define RATOON_BACKEND_CPU_KV_LOAD_H

#include "backend/cpu/kernels.h"
#include "backend/cpu/vec.h"

enum { KV_COLS = 2 * LANES };

#define INLINE static inline __attribute__((always_inline))

/* Arrays of vectors stay in registers only where every loop over them is unrolled. */
#define UNROLLED _Pragma("GCC unroll 16")

/* KV_IN_REGISTERS: kv_load is a few instructions for every type; without it, each row should be widened only once. */
#if defined(LEVEL_IS_avx2) || defined(LEVEL_IS_avxvnni) || defined(LEVEL_IS_avx512)
#define KV_IN_REGISTERS 1
#else
#define KV_IN_REGISTERS 0
#endif

/* Types whose blocks are stored rotated. A model whose heads are not whole blocks is refused when it is opened. */
static inline bool kv_rotated(Type t) { return t == T_TQ3_0; }

/* Bytes of 32 columns of a type that is read as floats. */
static inline size_t kv_bytes(Type t)
{
    return t == T_F32 ? 128 : t == T_F16 || t == T_BF16 ? 64 : 14;
}

#if KV_IN_REGISTERS

/* The vector units are the bottleneck, and converting and broadcasting a half would take three of their instructions
 * per block: a table takes none. */
static inline V kv_scale(const uint8_t *p)
{
    uint16_t h;
    memcpy(&h, p, sizeof h);
    return v_set(half_table[h]);
}

#endif

#if defined(LEVEL_IS_avx2) || defined(LEVEL_IS_avxvnni)

static inline void kv_tq3(V y[2], const uint8_t *b)
{
    const __m256 level = _mm256_setr_ps(-0.190685f, -0.117832f, -0.065717f, -0.021460f, 0.021460f, 0.065717f, 0.117832f,
                                        0.190685f);
    const __m256i at = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), three = _mm256_set1_epi32(3),
                  four = _mm256_set1_epi32(4);
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

/* The block's eight values are computed first, and the codes select among them. The permutation uses only four bits of
 * its index and each level is in the table four times, so the bits of the next code do not matter. */
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

/* y = 32 columns of a head from column c on, c a multiple of 32; `head` points to the head's stored values. */
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
    kv_tq3(y, head + (size_t) (c / KV_COLS) * kv_bytes(t));
#else
    float f[KV_COLS];
    quant_decode_tq3_turned(f, head + (size_t) (c / KV_COLS) * kv_bytes(t));
    y[0] = v_load(f);
    y[1] = v_load(f + LANES);
#endif
}

#endif
