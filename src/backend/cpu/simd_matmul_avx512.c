/* simd_matmul_avx512.c - the product with 16 weight rows in the lanes of one register, multiplying bytes four at a time
 * (vpdpbusd).
 *
 * Within a tile the rows are the innermost loop: unpacked weights stay in registers, and the multiplying instruction
 * itself broadcasts activations from memory.
 *
 * vpdpwssd multiplies a sub-block's dot by its scale and adds, in one instruction where vpmulld and vpaddd take three;
 * it uses only the lower 16 bits of the dot, so dots are kept within int16: 16 codes of Q4_K (15 * 127 * 16 = 30,480),
 * 16 centred ones of Q5_K (16 * 127 * 16 = 32,512), 8 centred ones of Q6_K (32 * 127 * 8 = 32,512). Centring costs
 * nothing: the accumulator starts at -offset times the sum of the activations instead of at zero. All sums are exact,
 * so the bits are those of the plain product. */
#ifdef LEVEL_IS_avx512
#include <immintrin.h>
#include <string.h>

#include "backend/cpu/matmul_fast.h"

#define TILE_ROWS 16

/* x += the 4 products of each lane's bytes w with the 4 bytes at q. In assembly because gcc 12 loads the broadcast into
 * a separate register, and a tile has none to spare. */
#define DOT4(x, w, q) __asm__("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(x) : "v"(w), "m"(*(const word *) (q)))
/* x += the 2 products of each lane's int16 pair w with the pair at q */
#define DOT2(x, w, q) __asm__("vpdpwssd %2%{1to16%}, %1, %0" : "+v"(x) : "v"(w), "m"(*(const word *) (q)))

INLINE __m512i load(const uint8_t *p) { return _mm512_load_si512((const void *) p); }
INLINE __m512 halves(const uint8_t *p)
{
    return _mm512_cvtph_ps(_mm256_load_si256((const __m256i *) (const void *) p));
}
INLINE __m512 bf16s(const uint8_t *p)
{
    __m512i wide = _mm512_cvtepu16_epi32(_mm256_load_si256((const __m256i *) (const void *) p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}

/* 16 scales quant_ue4m3, halved */
INLINE __m512 ue4m3s(const uint8_t *p)
{
    __m256i wide = _mm256_cvtepu8_epi16(_mm_load_si128((const __m128i *) (const void *) p));
    return _mm512_mul_ps(_mm512_cvtph_ps(_mm256_slli_epi16(wide, 7)), _mm512_set1_ps(0x1p7f));
}

/* the initial value of an integer accumulator, in every lane */
INLINE __m512i first(const void *p) { return _mm512_set1_epi32(*(const word *) p); }

/* The values of the 16 indices plus the offset that makes them unsigned. */
INLINE __m512i codebook(const Type t, const int offset)
{
    return _mm512_add_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *) (const void *) quant_book(t))),
                           _mm512_set1_epi8((char) offset));
}

/* -- Q4_K, and what Q5_K shares with it ---------------------------------------------------------------------------- */

/* The 6-bit scales of Q4_K and Q5_K as bytes: S [s][lane], then M [s/2][lane][s%2]. */
INLINE void k4_scales(uint8_t *sc, const uint8_t *lines)
{
    const __m512i low6 = _mm512_set1_epi8(63);
    __m512i a = load(lines), b = load(lines + LINE), c = load(lines + 2 * LINE);
    __m512i top = _mm512_and_si512(_mm512_srli_epi16(a, 6), _mm512_set1_epi8(3));
    top = _mm512_or_si512(top, _mm512_and_si512(_mm512_srli_epi16(b, 4), _mm512_set1_epi8(12)));
    top = _mm512_or_si512(top, _mm512_and_si512(_mm512_srli_epi16(c, 2), _mm512_set1_epi8(48)));
    _mm512_store_si512((void *) sc, _mm512_and_si512(a, low6));
    _mm512_store_si512((void *) (sc + LINE), _mm512_and_si512(b, low6));
    _mm512_store_si512((void *) (sc + 2 * LINE), _mm512_and_si512(c, low6));
    _mm512_store_si512((void *) (sc + 3 * LINE), top);
}

INLINE __m512i bytes_wide(const uint8_t *p)
{
    return _mm512_cvtepu8_epi32(_mm_load_si128((const __m128i *) (const void *) p));
}

/* acc += d da isum - dmin da msum for each row of the tile */
INLINE void k4_finish(float *acc, const __m512i *isum, const uint8_t *sc, const uint8_t *line, const ActBlock256 *a,
                      const int R)
{
    __m512 d = halves(line), dmin = halves(line + 32);
    __m512i min[4];
    for (int i = 0; i < 4; i++)
        min[i] = _mm512_cvtepu8_epi16(_mm256_load_si256((const __m256i *) (const void *) (sc + 2 * LINE + 32 * i)));
    UNROLL for (int r = 0; r < R; r++) {
        __m512i msum = _mm512_setzero_si512();
        for (int i = 0; i < 4; i++) DOT2(msum, min[i], &a[r].sum32[2 * i]);
        __m512 da = _mm512_set1_ps(a[r].scale), sum = _mm512_load_ps(acc + WEIGHT_GROUP * r);
        sum = _mm512_fmadd_ps(_mm512_mul_ps(d, da), _mm512_cvtepi32_ps(isum[r]), sum);
        sum = _mm512_fnmadd_ps(_mm512_mul_ps(dmin, da), _mm512_cvtepi32_ps(msum), sum);
        _mm512_store_ps(acc + WEIGHT_GROUP * r, sum);
    }
}

INLINE void tile_k4(float *acc, const uint8_t *b, const ActBlock256 *a, const uint8_t *next, const int R)
{
    _Alignas(64) uint8_t sc[4 * LINE];
    k4_scales(sc, b + 32 * LINE);
    const __m512i low4 = _mm512_set1_epi8(15);
    __m512i isum[TILE_ROWS];
    UNROLL for (int r = 0; r < R; r++) isum[r] = _mm512_setzero_si512();
#pragma GCC unroll 1
    for (int p = 0; p < 4; p++) {
        __m512i s0 = bytes_wide(sc + 32 * p), s1 = bytes_wide(sc + 32 * p + 16);
#pragma GCC unroll 1
        for (int h = 0; h < 2; h++) {
            const uint8_t *line = b + (8 * p + 4 * h) * LINE;
            prefetch(next, 5 * LINE * (2 * p + h), 5, 36 * LINE);
            __m512i lo[4], hi[4];
            for (int i = 0; i < 4; i++) {
                __m512i w = load(line + i * LINE);
                lo[i] = _mm512_and_si512(w, low4);
                hi[i] = _mm512_and_si512(_mm512_srli_epi16(w, 4), low4);
            }
            const ActBlock256 *at = (const ActBlock256 *) (const void *) ((const char *) a + 64 * p + 16 * h);
            UNROLL for (int r = 0; r < R; r++) {
                __m512i x = _mm512_setzero_si512(), z = _mm512_setzero_si512();
                for (int i = 0; i < 4; i++) DOT4(x, lo[i], at[r].q + 4 * i);
                for (int i = 0; i < 4; i++) DOT4(z, hi[i], at[r].q + 32 + 4 * i);
                isum[r] = _mm512_dpwssd_epi32(isum[r], x, s0);
                isum[r] = _mm512_dpwssd_epi32(isum[r], z, s1);
            }
        }
    }
    k4_finish(acc, isum, sc, b + 35 * LINE, a, R);
}

/* -- Q5_K ---------------------------------------------------------------------------------------------------------- */

/* Codes whose low four bits are those of the code lines and whose fifth bit is bit `bit` of high, in one of the two
 * halves. */
INLINE __m512i fifth(__m512i low, __m512i high, int bit)
{
    __m512i moved = bit < 4 ? _mm512_slli_epi16(high, 4 - bit) : _mm512_srli_epi16(high, bit - 4);
    return _mm512_ternarylogic_epi32(low, moved, _mm512_set1_epi8(16), 0xf8);      /* low | (moved & 16) */
}

INLINE void tile_k5(float *acc, const uint8_t *b, const ActBlock256 *a, const uint8_t *next, const int R)
{
    _Alignas(64) uint8_t sc[4 * LINE];
    k4_scales(sc, b + 40 * LINE);
    const __m512i low4 = _mm512_set1_epi8(15);
    __m512i isum[TILE_ROWS];
    UNROLL for (int r = 0; r < R; r++) isum[r] = _mm512_setzero_si512();
#pragma GCC unroll 1
    for (int p = 0; p < 4; p++) {
        __m512i s0 = bytes_wide(sc + 32 * p), s1 = bytes_wide(sc + 32 * p + 16);
        /* the dots centre the codes by 16, so 16 * S * sum of q is added back */
        __m512i undo = _mm512_or_si512(_mm512_slli_epi32(s0, 4), _mm512_slli_epi32(s1, 20));
        UNROLL for (int r = 0; r < R; r++) DOT2(isum[r], undo, &a[r].sum32[2 * p]);
#pragma GCC unroll 1
        for (int h = 0; h < 2; h++) {
            const uint8_t *line = b + (8 * p + 4 * h) * LINE;
            prefetch(next, 6 * LINE * (2 * p + h), 6, 44 * LINE);
            __m512i high = load(b + (32 + 2 * p + h) * LINE), lo[4], hi[4];
            UNROLL for (int i = 0; i < 4; i++) {
                __m512i w = load(line + i * LINE);
                lo[i] = fifth(_mm512_and_si512(w, low4), high, 2 * i);
                hi[i] = fifth(_mm512_and_si512(_mm512_srli_epi16(w, 4), low4), high, 2 * i + 1);
            }
            const char *q = (const char *) a + 64 * p + 16 * h;
            const char *less = (const char *) a->less16 + (4 * p + h) * 4;
            UNROLL for (int r = 0; r < R; r++) {
                __m512i x = first(less + r * (int) sizeof *a), z = first(less + r * (int) sizeof *a + 8);
                for (int i = 0; i < 4; i++) DOT4(x, lo[i], q + r * (int) sizeof *a + 4 * i);
                for (int i = 0; i < 4; i++) DOT4(z, hi[i], q + r * (int) sizeof *a + 32 + 4 * i);
                isum[r] = _mm512_dpwssd_epi32(isum[r], x, s0);
                isum[r] = _mm512_dpwssd_epi32(isum[r], z, s1);
            }
        }
    }
    k4_finish(acc, isum, sc, b + 43 * LINE, a, R);
}

/* -- Q6_K ---------------------------------------------------------------------------------------------------------- */

/* low | two bits of high, taken from bit 2i, as bits 4 and 5 */
INLINE __m512i sixth(__m512i low, __m512i high, int i)
{
    __m512i moved = i < 2 ? _mm512_slli_epi16(high, 4 - 2 * i) : _mm512_srli_epi16(high, 2 * i - 4);
    return _mm512_ternarylogic_epi32(low, moved, _mm512_set1_epi8(48), 0xf8);
}

INLINE void tile_k6(float *acc, const uint8_t *b, const ActBlock256 *a, const uint8_t *next, const int R)
{
    const __m512i low4 = _mm512_set1_epi8(15);
    __m512i isum[TILE_ROWS];
    UNROLL for (int r = 0; r < R; r++) isum[r] = _mm512_setzero_si512();
#pragma GCC unroll 1
    for (int p = 0; p < 8; p++) {
        /* int16 scale in the low half of a lane, zero above: the upper half of a negative dot must not count */
        const uint8_t *sc = b + 48 * LINE + 32 * p;
        prefetch(next, 7 * LINE * p, 7, 53 * LINE);
        __m512i s0 = _mm512_maskz_cvtepi8_epi16(0x55555555, _mm256_loadu_si256((const __m256i *) (const void *) sc));
        __m512i s1 = _mm512_maskz_cvtepi8_epi16(0x55555555,
                                                _mm256_loadu_si256((const __m256i *) (const void *) (sc + 1)));
        __m512i h0 = load(b + (32 + 2 * p) * LINE), h1 = load(b + (33 + 2 * p) * LINE), lo[4], hi[4];
        UNROLL for (int i = 0; i < 4; i++) {
            __m512i w = load(b + (4 * p + i) * LINE);
            lo[i] = sixth(_mm512_and_si512(w, low4), h0, i);
            hi[i] = sixth(_mm512_and_si512(_mm512_srli_epi16(w, 4), low4), h1, i);
        }
        const char *q = (const char *) a + 32 * p, *less = (const char *) a->less32 + 16 * p;
        UNROLL for (int r = 0; r < R; r++, q += sizeof *a, less += sizeof *a) {
            __m512i x = first(less), y = first(less + 4), z = first(less + 8), u = first(less + 12);
            for (int i = 0; i < 2; i++) {
                DOT4(x, lo[i], q + 4 * i);
                DOT4(y, lo[2 + i], q + 8 + 4 * i);
                DOT4(z, hi[i], q + 16 + 4 * i);
                DOT4(u, hi[2 + i], q + 24 + 4 * i);
            }
            isum[r] = _mm512_dpwssd_epi32(isum[r], x, s0);
            isum[r] = _mm512_dpwssd_epi32(isum[r], y, s0);
            isum[r] = _mm512_dpwssd_epi32(isum[r], z, s1);
            isum[r] = _mm512_dpwssd_epi32(isum[r], u, s1);
        }
    }
    __m512 d = halves(b + 52 * LINE);
    UNROLL for (int r = 0; r < R; r++) {
        __m512 sum = _mm512_load_ps(acc + WEIGHT_GROUP * r);
        sum = _mm512_fmadd_ps(_mm512_mul_ps(d, _mm512_set1_ps(a[r].scale)), _mm512_cvtepi32_ps(isum[r]), sum);
        _mm512_store_ps(acc + WEIGHT_GROUP * r, sum);
    }
}

/* -- Q3_K, IQ2_* --------------------------------------------------------------------------------------------------- */

/* Codes whose two low bits are those of `low` and whose third bit is bit `bit` of high. */
INLINE __m512i third(__m512i low, __m512i high, int bit)
{
    __m512i moved = bit < 2 ? _mm512_slli_epi16(high, 2 - bit) : _mm512_srli_epi16(high, bit - 2);
    return _mm512_ternarylogic_epi32(_mm512_and_si512(low, _mm512_set1_epi8(3)), moved, _mm512_set1_epi8(4), 0xf8);
}

/* Q3_K: codes are 0..7, so the dots of 16 stay within int16. IQ2_*: the codebook plus 64; the dots need 19 bits, so
 * they are multiplied as int32. -offset * S * sum of q undoes the offset. */
INLINE void tile_3bits(float *acc, const uint8_t *b, const ActBlock256 *a, const uint8_t *next, const Type t,
                       const int R)
{
    const int from = t == T_Q3_K ? 2 : 6;          /* the power of two of the offset */
    const __m512i book = t == T_Q3_K ? _mm512_setzero_si512() : codebook(t, 1 << from);
    __m512i isum[TILE_ROWS];
    UNROLL for (int r = 0; r < R; r++) isum[r] = _mm512_setzero_si512();
#pragma GCC unroll 1
    for (int p = 0; p < 8; p++) {
        prefetch(next, 4 * LINE * p, 4, 29 * LINE);
        /* an int16 for each sub-block; for the products of dots one of them, and zero above */
        __m512i both = _mm512_cvtepi8_epi16(_mm256_load_si256((const __m256i *) (const void *) (b + 24 * LINE +
                                                                                                32 * p)));
        __m512i s0 = _mm512_maskz_mov_epi16(0x55555555, both), s1 = _mm512_srli_epi32(both, 16);
        __m512i undo = _mm512_sub_epi16(_mm512_setzero_si512(), _mm512_slli_epi16(both, from));
        __m512i w0 = load(b + 2 * p * LINE), w1 = load(b + (2 * p + 1) * LINE), high = load(b + (16 + p) * LINE);
        __m512i lo[4], hi[4];
        UNROLL for (int i = 0; i < 4; i++) {
            lo[i] = third(_mm512_srli_epi16(w0, 2 * i), high, 2 * i);
            hi[i] = third(_mm512_srli_epi16(w1, 2 * i), high, 2 * i + 1);
            if (t != T_Q3_K) lo[i] = _mm512_shuffle_epi8(book, lo[i]), hi[i] = _mm512_shuffle_epi8(book, hi[i]);
        }
        const ActBlock256 *at = (const ActBlock256 *) (const void *) ((const char *) a + 32 * p);
        UNROLL for (int r = 0; r < R; r++) {
            __m512i x = _mm512_setzero_si512(), z = _mm512_setzero_si512();
            DOT2(isum[r], undo, &a[r].sum16[2 * p]);
            for (int i = 0; i < 4; i++) DOT4(x, lo[i], at[r].q + 4 * i);
            for (int i = 0; i < 4; i++) DOT4(z, hi[i], at[r].q + 16 + 4 * i);
            if (t == T_Q3_K) {
                isum[r] = _mm512_dpwssd_epi32(isum[r], x, s0);
                isum[r] = _mm512_dpwssd_epi32(isum[r], z, s1);
            } else {                               /* scales are positive: as int32 they are the same */
                isum[r] = _mm512_add_epi32(isum[r], _mm512_mullo_epi32(x, s0));
                isum[r] = _mm512_add_epi32(isum[r], _mm512_mullo_epi32(z, s1));
            }
        }
    }
    __m512 d = _mm512_load_ps((const void *) (b + 28 * LINE));
    UNROLL for (int r = 0; r < R; r++) {
        __m512 sum = _mm512_load_ps(acc + WEIGHT_GROUP * r);
        sum = _mm512_fmadd_ps(_mm512_mul_ps(d, _mm512_set1_ps(a[r].scale)), _mm512_cvtepi32_ps(isum[r]), sum);
        _mm512_store_ps(acc + WEIGHT_GROUP * r, sum);
    }
}

INLINE void tile_k3(float *acc, const uint8_t *b, const ActBlock256 *a, const uint8_t *next, const int R)
{
    tile_3bits(acc, b, a, next, T_Q3_K, R);
}
INLINE void tile_k3x(float *acc, const uint8_t *b, const ActBlock256 *a, const uint8_t *next, const int R)
{
    tile_3bits(acc, b, a, next, T_IQ2_S, R);
}

/* -- Q2_K ---------------------------------------------------------------------------------------------------------- */

INLINE void tile_k2(float *acc, const uint8_t *b, const ActBlock256 *a, const uint8_t *next, const int R)
{
    const __m512i low2 = _mm512_set1_epi8(3), low4 = _mm512_set1_epi8(15);
    _Alignas(64) uint8_t s[4 * LINE], m[4 * LINE];
    for (int i = 0; i < 4; i++) {
        __m512i x = load(b + (16 + i) * LINE);
        _mm512_store_si512((void *) (s + i * LINE), _mm512_and_si512(x, low4));
        _mm512_store_si512((void *) (m + i * LINE), _mm512_and_si512(_mm512_srli_epi16(x, 4), low4));
    }
    __m512i isum[TILE_ROWS];
    UNROLL for (int r = 0; r < R; r++) isum[r] = _mm512_setzero_si512();
#pragma GCC unroll 1
    for (int p = 0; p < 8; p++) {                  /* two sub-blocks of 16; dots of at most 3 * 127 * 16 */
        prefetch(next, 3 * LINE * p, 3, 21 * LINE);
        __m512i s0 = bytes_wide(s + 32 * p), s1 = bytes_wide(s + 32 * p + 16), w0 = load(b + 2 * p * LINE),
                w1 = load(b + (2 * p + 1) * LINE), lo[4], hi[4];
        UNROLL for (int i = 0; i < 4; i++) {
            lo[i] = _mm512_and_si512(_mm512_srli_epi16(w0, 2 * i), low2);
            hi[i] = _mm512_and_si512(_mm512_srli_epi16(w1, 2 * i), low2);
        }
        const ActBlock256 *at = (const ActBlock256 *) (const void *) ((const char *) a + 32 * p);
        UNROLL for (int r = 0; r < R; r++) {
            __m512i x = _mm512_setzero_si512(), z = _mm512_setzero_si512();
            for (int i = 0; i < 4; i++) DOT4(x, lo[i], at[r].q + 4 * i);
            for (int i = 0; i < 4; i++) DOT4(z, hi[i], at[r].q + 16 + 4 * i);
            isum[r] = _mm512_dpwssd_epi32(isum[r], x, s0);
            isum[r] = _mm512_dpwssd_epi32(isum[r], z, s1);
        }
    }
    __m512 d = halves(b + 20 * LINE), dmin = halves(b + 20 * LINE + 32);
    __m512i min[8];
    UNROLL for (int p = 0; p < 8; p++) min[p] = _mm512_or_si512(bytes_wide(m + 32 * p),
                                                                _mm512_slli_epi32(bytes_wide(m + 32 * p + 16), 16));
    UNROLL for (int r = 0; r < R; r++) {
        __m512i msum = _mm512_setzero_si512();
        for (int p = 0; p < 8; p++) DOT2(msum, min[p], &a[r].sum16[2 * p]);
        __m512 da = _mm512_set1_ps(a[r].scale), sum = _mm512_load_ps(acc + WEIGHT_GROUP * r);
        sum = _mm512_fmadd_ps(_mm512_mul_ps(d, da), _mm512_cvtepi32_ps(isum[r]), sum);
        sum = _mm512_fnmadd_ps(_mm512_mul_ps(dmin, da), _mm512_cvtepi32_ps(msum), sum);
        _mm512_store_ps(acc + WEIGHT_GROUP * r, sum);
    }
}

/* -- IQ4_XS, IQ3_* ------------------------------------------------------------------------------------------------- */

/* Dots of 32 codebook values need 20 bits, so they are multiplied as int32. */
INLINE void tile_book(float *acc, const uint8_t *b, const ActBlock256 *a, const uint8_t *next, const Type t,
                      const int R)
{
    const __m512i low4 = _mm512_set1_epi8(15), book = codebook(t, 128);
    __m512i isum[TILE_ROWS];
    UNROLL for (int r = 0; r < R; r++) isum[r] = _mm512_setzero_si512();
#pragma GCC unroll 1
    for (int p = 0; p < 4; p++) {
        const __m128i *sc = (const __m128i *) (const void *) (b + 32 * LINE + 32 * p);
        __m512i s0 = _mm512_cvtepi8_epi32(_mm_load_si128(sc)), s1 = _mm512_cvtepi8_epi32(_mm_load_si128(sc + 1));
        /* the codes are 128 too large, so -128 * S * sum of q is added */
        __m512i undo = _mm512_mask_blend_epi16(0xaaaaaaaa, _mm512_slli_epi32(s0, 7), _mm512_slli_epi32(s1, 23));
        undo = _mm512_sub_epi16(_mm512_setzero_si512(), undo);
        UNROLL for (int r = 0; r < R; r++) DOT2(isum[r], undo, &a[r].sum32[2 * p]);
#pragma GCC unroll 2
        for (int h = 0; h < 2; h++) {
            prefetch(next, 5 * LINE * (2 * p + h), 5, 35 * LINE);
            __m512i w[8], s = h ? s1 : s0;
            UNROLL for (int i = 0; i < 8; i++) {
                __m512i both = load(b + (8 * p + i) * LINE);
                w[i] = _mm512_shuffle_epi8(book, _mm512_and_si512(h ? _mm512_srli_epi16(both, 4) : both, low4));
            }
            const ActBlock256 *at = (const ActBlock256 *) (const void *) ((const char *) a + 64 * p + 32 * h);
            UNROLL for (int r = 0; r < R; r++) {
                __m512i x = _mm512_setzero_si512();
                for (int i = 0; i < 8; i++) DOT4(x, w[i], at[r].q + 4 * i);
                isum[r] = _mm512_add_epi32(isum[r], _mm512_mullo_epi32(x, s));
            }
        }
    }
    __m512 d = _mm512_load_ps((const void *) (b + 34 * LINE));
    UNROLL for (int r = 0; r < R; r++) {
        __m512 sum = _mm512_load_ps(acc + WEIGHT_GROUP * r);
        sum = _mm512_fmadd_ps(_mm512_mul_ps(d, _mm512_set1_ps(a[r].scale)), _mm512_cvtepi32_ps(isum[r]), sum);
        _mm512_store_ps(acc + WEIGHT_GROUP * r, sum);
    }
}

INLINE void tile_k4x(float *acc, const uint8_t *b, const ActBlock256 *a, const uint8_t *next, const int R)
{
    tile_book(acc, b, a, next, T_IQ4_XS, R);
}
INLINE void tile_iq3_xxs(float *acc, const uint8_t *b, const ActBlock256 *a, const uint8_t *next, const int R)
{
    tile_book(acc, b, a, next, T_IQ3_XXS, R);
}
INLINE void tile_iq3_s(float *acc, const uint8_t *b, const ActBlock256 *a, const uint8_t *next, const int R)
{
    tile_book(acc, b, a, next, T_IQ3_S, R);
}

/* -- blocks of 32 -------------------------------------------------------------------------------------------------- */

/* The 8 code vectors of a block, unsigned, as the type's layout defines them; with their offsets. */
INLINE void codes_32(__m512i *w, const uint8_t *b, const Type t)
{
    const __m512i low4 = _mm512_set1_epi8(15);
    if (t == T_Q8_0) {
        for (int i = 0; i < 8; i++) w[i] = load(b + i * LINE);
        return;
    }
    UNROLL for (int i = 0; i < 4; i++) {
        __m512i both = load(b + i * LINE);
        w[i] = _mm512_and_si512(both, low4);
        w[4 + i] = _mm512_and_si512(_mm512_srli_epi16(both, 4), low4);
    }
    if (t == T_Q5_0 || t == T_Q5_1) {
        __m512i high = load(b + 4 * LINE);
        UNROLL for (int i = 0; i < 4; i++) {
            w[i] = fifth(w[i], high, 2 * i);
            w[4 + i] = fifth(w[4 + i], high, 2 * i + 1);
        }
    }
    if (t == T_IQ4_NL || t == T_MXFP4 || t == T_NVFP4) {
        const __m512i book = codebook(t, t == T_IQ4_NL ? 128 : 16);
        UNROLL for (int i = 0; i < 8; i++) w[i] = _mm512_shuffle_epi8(book, w[i]);
    }
}

/* nb blocks of a strip: codes, and the matching part of the planes. */
INLINE void tile_32(float *acc, const uint8_t *code, const uint8_t *plane, const uint8_t *plane_m, const ActBlock32 *a,
                    int32_t n, int32_t nb, const uint8_t *next, const Type t, const int R)
{
    const int lines = t == T_Q8_0 ? 8 : t == T_Q5_0 || t == T_Q5_1 ? 5 : 4;
    __m512 sum[TILE_ROWS];
    UNROLL for (int r = 0; r < R; r++) sum[r] = _mm512_load_ps(acc + WEIGHT_GROUP * r);
#pragma GCC unroll 1
    for (int32_t b = 0; b < nb; b++, a += n, code += lines * LINE) {
        __m512i w[8];
        prefetch(next, b * lines * LINE, lines, STRIP / 32 * lines * LINE);
        codes_32(w, code, t);
        if (t == T_NVFP4) {
            const __m512 lower = ue4m3s(plane + 32 * b), upper = ue4m3s(plane + 32 * b + 16);
            UNROLL for (int r = 0; r < R; r++) {
                __m512i x = first(&a[r].lower_less16), z = _mm512_sub_epi32(first(&a[r].less16), x);
                for (int i = 0; i < 4; i++) DOT4(x, w[i], a[r].q + 4 * i);
                for (int i = 4; i < 8; i++) DOT4(z, w[i], a[r].q + 4 * i);
                __m512 da = _mm512_set1_ps(a[r].scale);
                sum[r] = _mm512_fmadd_ps(_mm512_mul_ps(lower, da), _mm512_cvtepi32_ps(x), sum[r]);
                sum[r] = _mm512_fmadd_ps(_mm512_mul_ps(upper, da), _mm512_cvtepi32_ps(z), sum[r]);
            }
            continue;
        }
        __m512 d = t == T_MXFP4 ? bf16s(plane + 32 * b) : halves(plane + 32 * b), m = _mm512_setzero_ps();
        if (t == T_Q4_1 || t == T_Q5_1) m = halves(plane_m + 32 * b);
        UNROLL for (int r = 0; r < R; r++) {
            __m512i x = _mm512_setzero_si512();
            if (t == T_Q8_0 || t == T_IQ4_NL) x = first(&a[r].less128);
            if (t == T_Q4_0) x = first(&a[r].less8);
            if (t == T_Q5_0 || t == T_MXFP4) x = first(&a[r].less16);
            for (int i = 0; i < 8; i++) DOT4(x, w[i], a[r].q + 4 * i);
            __m512 da = _mm512_set1_ps(a[r].scale);
            sum[r] = _mm512_fmadd_ps(_mm512_mul_ps(d, da), _mm512_cvtepi32_ps(x), sum[r]);
            if (t == T_Q4_1 || t == T_Q5_1) {
                sum[r] = _mm512_fmadd_ps(_mm512_mul_ps(m, da), _mm512_cvtepi32_ps(first(&a[r].sum)), sum[r]);
            }
        }
    }
    UNROLL for (int r = 0; r < R; r++) _mm512_store_ps(acc + WEIGHT_GROUP * r, sum[r]);
}

/* -- float weights ------------------------------------------------------------------------------------------------- */

INLINE void tile_float(float *acc, const uint8_t *w, const float *x, int32_t cols, int32_t nk, const uint8_t *next,
                       const Type t, const int R)
{
    const int line = t == T_F32 ? LINE : LINE / 2; /* bytes of a column */
    __m512 sum[TILE_ROWS];
    UNROLL for (int r = 0; r < R; r++) sum[r] = _mm512_load_ps(acc + WEIGHT_GROUP * r);
    for (int32_t k = 0; k < nk; k++) {
        __m512 wk;
        if (t == T_F32 || k % 2 == 0) prefetch(next, k * line, 1, STRIP * line);
        if (t == T_F32) wk = _mm512_load_ps((const void *) (w + (size_t) k * LINE));
        else if (t == T_F16) wk = halves(w + (size_t) k * 32);
        else wk = bf16s(w + (size_t) k * 32);
        UNROLL for (int r = 0; r < R; r++) sum[r] =
            _mm512_fmadd_ps(wk, _mm512_set1_ps(x[(size_t) r * (size_t) cols + (size_t) k]), sum[r]);
    }
    UNROLL for (int r = 0; r < R; r++) _mm512_store_ps(acc + WEIGHT_GROUP * r, sum[r]);
}

#include "backend/cpu/matmul_strips.h"
#endif
