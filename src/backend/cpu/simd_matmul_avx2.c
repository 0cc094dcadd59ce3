/* simd_matmul_avx2.c - the product with 8 weight rows in the lanes of a register, a group in two halves; compiled for
 * AVX2 alone, and again with AVX-VNNI.
 *
 * AVX2: vpmaddubsw multiplies unsigned codes by signed activations and adds pairs as int16, saturating, so sums are
 * widened to int32 before they could saturate: 16 codes below 32 (31 * 127 * 8 = 31,496 per int16), 8 codes below 64
 * (63 * 127 * 4 = 32,004). Bytes of Q8_0 and IQ4 are multiplied as |w| * (q with the sign of w), at most 128 * 127 * 2
 * = 32,512 per pair. vpmaddwd widens to int32 and multiplies by the sub-block's scale at once.
 * AVX-VNNI: vpdpbusd adds four products to an int32; vpdpwssd multiplies its lower int16 by the scale, half as many
 * codes at a time. All sums are exact, so the bits are those of the plain product. */
#if defined(LEVEL_IS_avx2) || defined(LEVEL_IS_avxvnni)
#include <immintrin.h>
#include <string.h>

#include "backend/cpu/matmul_fast.h"

#ifdef LEVEL_IS_avxvnni
enum { VNNI = 1 };
#else
enum { VNNI = 0 };
#endif
#define TILE_ROWS 8 /* more sums than there are registers: spilling them costs less than unpacking twice */

INLINE __m256i load(const uint8_t *p) { return _mm256_load_si256((const __m256i *) (const void *) p); }
INLINE __m256 halves(const uint8_t *p) { return _mm256_cvtph_ps(_mm_load_si128((const __m128i *) (const void *) p)); }
INLINE __m256 bf16s(const uint8_t *p)
{
    __m256i wide = _mm256_cvtepu16_epi32(_mm_load_si128((const __m128i *) (const void *) p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}
/* eight scales quant_ue4m3, halved */
INLINE __m256 ue4m3s(const uint8_t *p)
{
    __m128i wide = _mm_cvtepu8_epi16(_mm_loadl_epi64((const __m128i *) (const void *) p));
    return _mm256_mul_ps(_mm256_cvtph_ps(_mm_slli_epi16(wide, 7)), _mm256_set1_ps(0x1p7f));
}
/* 4 bytes, or a pair of int16, or an int32, in every lane */
INLINE __m256i every(const void *p) { return _mm256_set1_epi32(*(const word *) p); }
INLINE __m256i low4(__m256i x) { return _mm256_and_si256(x, _mm256_set1_epi8(15)); }
INLINE __m256i high4(__m256i x) { return low4(_mm256_srli_epi16(x, 4)); }
/* A scale, in the low int16 of each lane, in the form that add_dots needs. */
INLINE __m256i scale_of(__m256i low)
{
#ifdef LEVEL_IS_avxvnni
    return low;                                    /* zero above: the upper half of a negative dot must not count */
#else
    return _mm256_or_si256(low, _mm256_slli_epi32(low, 16));
#endif
}
INLINE __m256i bytes_wide(const uint8_t *p)
{
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *) (const void *) p));
}

/* acc = d da isum + acc */
INLINE __m256 scaled(__m256 d, __m256 da, __m256i isum, __m256 acc)
{
    return _mm256_fmadd_ps(_mm256_mul_ps(d, da), _mm256_cvtepi32_ps(isum), acc);
}

#ifdef LEVEL_IS_avxvnni
/* x + the products of `vectors` code vectors w with the activations at q */
INLINE __m256i plain_dots(__m256i x, const __m256i *w, const int8_t *q, const int vectors)
{
    UNROLL for (int i = 0; i < vectors; i++) x = _mm256_dpbusd_avx_epi32(x, w[i], every(q + 4 * i));
    return x;
}

/* isum + scale * those products; codes are at most `most` */
INLINE __m256i add_dots(__m256i isum, const __m256i *w, const int8_t *q, const int vectors, const int most,
                        __m256i scale)
{
    const int step = most * 127 * 4 * vectors <= INT16_MAX ? vectors : vectors / 2;
    UNROLL for (int i = 0; i < vectors; i += step) {
        isum = _mm256_dpwssd_avx_epi32(isum, plain_dots(_mm256_setzero_si256(), w + i, q + 4 * i, step), scale);
    }
    return isum;
}
#else
/* pairs of int16: the sums of `vectors` products of w with the activations at q */
INLINE __m256i pair_dots(const __m256i *w, const int8_t *q, const int vectors)
{
    __m256i sum = _mm256_maddubs_epi16(w[0], every(q));
    UNROLL for (int i = 1; i < vectors; i++) sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(w[i], every(q + 4 * i)));
    return sum;
}

/* isum + scale * the products of `vectors` code vectors w with the activations at q; codes are at most `most` */
INLINE __m256i add_dots(__m256i isum, const __m256i *w, const int8_t *q, const int vectors, const int most,
                        __m256i scale)
{
    (void) most;                                   /* callers keep most * 127 * 2 * vectors within int16 */
    return _mm256_add_epi32(isum, _mm256_madd_epi16(pair_dots(w, q, vectors), scale));
}

/* the same for one vector of signed codes */
INLINE __m256i add_signed(__m256i isum, __m256i w, const int8_t *q, __m256i scale)
{
    __m256i pair = _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(every(q), w));
    return _mm256_add_epi32(isum, _mm256_madd_epi16(pair, scale));
}
#endif

/* The codebook's values by index, in both halves of the register; plus the offset where codes are unsigned. */
INLINE __m256i codebook(const Type t, const int offset)
{
    __m256i book = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *) (const void *) quant_book(t)));
    return _mm256_add_epi8(book, _mm256_set1_epi8((char) offset));
}

/* -- Q4_K, Q5_K ---------------------------------------------------------------------------------------------------- */

/* The 6-bit scales as bytes: S [s][lane], then M [s/2][lane][s%2]. */
INLINE void k4_scales(uint8_t *sc, const uint8_t *lines)
{
    const __m256i low6 = _mm256_set1_epi8(63);
    for (int i = 0; i < 2; i++) {
        __m256i a = load(lines + 32 * i), b = load(lines + LINE + 32 * i), c = load(lines + 2 * LINE + 32 * i);
        __m256i top = _mm256_and_si256(_mm256_srli_epi16(a, 6), _mm256_set1_epi8(3));
        top = _mm256_or_si256(top, _mm256_and_si256(_mm256_srli_epi16(b, 4), _mm256_set1_epi8(12)));
        top = _mm256_or_si256(top, _mm256_and_si256(_mm256_srli_epi16(c, 2), _mm256_set1_epi8(48)));
        _mm256_store_si256((void *) (sc + 32 * i), _mm256_and_si256(a, low6));
        _mm256_store_si256((void *) (sc + LINE + 32 * i), _mm256_and_si256(b, low6));
        _mm256_store_si256((void *) (sc + 2 * LINE + 32 * i), _mm256_and_si256(c, low6));
        _mm256_store_si256((void *) (sc + 3 * LINE + 32 * i), top);
    }
}

INLINE __m256i fifth(__m256i low, __m256i high, int bit)
{
    __m256i moved = bit < 4 ? _mm256_slli_epi16(high, 4 - bit) : _mm256_srli_epi16(high, bit - 4);
    return _mm256_or_si256(low, _mm256_and_si256(moved, _mm256_set1_epi8(16)));
}

/* fifths: fifth-bit lines of a block, 8 or 0 */
INLINE void tile_k(float *acc, const uint8_t *b, const ActBlock256 *a, const uint8_t *next, const int fifths,
                   const int R)
{
    _Alignas(64) uint8_t sc[4 * LINE];
    k4_scales(sc, b + (32 + fifths) * LINE);
    for (int half = 0; half < 2; half++) {
        const uint8_t *lane = b + 32 * half;
        __m256i isum[TILE_ROWS];
        UNROLL for (int r = 0; r < R; r++) isum[r] = _mm256_setzero_si256();
#pragma GCC unroll 1
        for (int p = 0; p < 4; p++) {
            __m256i s0 = scale_of(bytes_wide(sc + 32 * p + 8 * half)),
                    s1 = scale_of(bytes_wide(sc + 32 * p + 16 + 8 * half));
#pragma GCC unroll 1
            for (int h = 0; h < 2; h++) {
                const uint8_t *line = lane + (8 * p + 4 * h) * LINE;
                prefetch(next, 3 * LINE * (8 * half + 2 * p + h), 3, (36 + fifths) * LINE);
                const char *q = (const char *) a + 64 * p + 16 * h;
                __m256i high = load(lane + (fifths ? 32 + 2 * p + h : 0) * LINE), w[4];
                UNROLL for (int i = 0; i < 4; i++) {
                    w[i] = low4(load(line + i * LINE));
                    if (fifths) w[i] = fifth(w[i], high, 2 * i);
                }
                UNROLL for (int r = 0; r < R; r++) {
                    isum[r] = add_dots(isum[r], w, (const int8_t *) q + r * (int) sizeof *a, 4, fifths ? 31 : 15, s0);
                }
                UNROLL for (int i = 0; i < 4; i++) {
                    w[i] = high4(load(line + i * LINE));
                    if (fifths) w[i] = fifth(w[i], high, 2 * i + 1);
                }
                UNROLL for (int r = 0; r < R; r++) {
                    isum[r] = add_dots(isum[r], w, (const int8_t *) q + r * (int) sizeof *a + 32, 4,
                                       fifths ? 31 : 15, s1);
                }
            }
        }
        const uint8_t *line = b + (35 + fifths) * LINE + 16 * half;
        __m256 d = halves(line), dmin = halves(line + 32);
        UNROLL for (int r = 0; r < R; r++) {
            __m256i msum = _mm256_setzero_si256();
            for (int i = 0; i < 4; i++) {
                __m256i min = _mm256_cvtepu8_epi16(
                    _mm_load_si128((const __m128i *) (const void *) (sc + 2 * LINE + 32 * i + 16 * half)));
                msum = _mm256_add_epi32(msum, _mm256_madd_epi16(min, every(&a[r].sum32[2 * i])));
            }
            float *to = acc + WEIGHT_GROUP * r + 8 * half;
            __m256 da = _mm256_set1_ps(a[r].scale), sum = scaled(d, da, isum[r], _mm256_load_ps(to));
            _mm256_store_ps(to, _mm256_fnmadd_ps(_mm256_mul_ps(dmin, da), _mm256_cvtepi32_ps(msum), sum));
        }
    }
}
INLINE void tile_k4(float *acc, const uint8_t *b, const ActBlock256 *a, const uint8_t *next, const int R)
{
    tile_k(acc, b, a, next, 0, R);
}
INLINE void tile_k5(float *acc, const uint8_t *b, const ActBlock256 *a, const uint8_t *next, const int R)
{
    tile_k(acc, b, a, next, 8, R);
}

/* -- Q6_K ---------------------------------------------------------------------------------------------------------- */

INLINE __m256i sixth(__m256i low, __m256i high, int i)
{
    __m256i moved = i < 2 ? _mm256_slli_epi16(high, 4 - 2 * i) : _mm256_srli_epi16(high, 2 * i - 4);
    return _mm256_or_si256(low, _mm256_and_si256(moved, _mm256_set1_epi8(48)));
}

/* The codes of a sub-block are 0..63 here; the excess from the offset of 32 is summed separately: 32 * scale * sum of
 * q. */
INLINE void tile_k6(float *acc, const uint8_t *b, const ActBlock256 *a, const uint8_t *next, const int R)
{
    for (int half = 0; half < 2; half++) {
        const uint8_t *lane = b + 32 * half;
        __m256i isum[TILE_ROWS];
        UNROLL for (int r = 0; r < R; r++) isum[r] = _mm256_setzero_si256();
#pragma GCC unroll 1
        for (int p = 0; p < 8; p++) {
            prefetch(next, 4 * LINE * (8 * half + p), 4, 53 * LINE);
            const uint8_t *pair = b + 48 * LINE + 32 * p + 16 * half;
            __m256i s01 = _mm256_cvtepi8_epi16(_mm_load_si128((const __m128i *) (const void *) pair));
            UNROLL for (int r = 0; r < R; r++) {
                isum[r] = _mm256_sub_epi32(isum[r],
                                           _mm256_slli_epi32(_mm256_madd_epi16(s01, every(&a[r].sum16[2 * p])), 5));
            }
#pragma GCC unroll 2
            for (int c = 0; c < 2; c++) {
                __m256i s = scale_of(c ? _mm256_srli_epi32(s01, 16) : _mm256_and_si256(_mm256_set1_epi32(0xffff), s01));
                __m256i high = load(lane + (32 + 2 * p + c) * LINE), w[4];
                UNROLL for (int i = 0; i < 4; i++) {
                    __m256i x = load(lane + (4 * p + i) * LINE);
                    w[i] = sixth(c ? high4(x) : low4(x), high, i);
                }
                const int8_t *q = (const int8_t *) a + 32 * p + 16 * c;
                UNROLL for (int r = 0; r < R; r++, q += sizeof *a) {
                    isum[r] = add_dots(isum[r], w, q, 2, 63, s);
                    isum[r] = add_dots(isum[r], w + 2, q + 8, 2, 63, s);
                }
            }
        }
        __m256 d = halves(b + 52 * LINE + 16 * half);
        UNROLL for (int r = 0; r < R; r++) {
            float *to = acc + WEIGHT_GROUP * r + 8 * half;
            _mm256_store_ps(to, scaled(d, _mm256_set1_ps(a[r].scale), isum[r], _mm256_load_ps(to)));
        }
    }
}

/* -- Q3_K, IQ2_* --------------------------------------------------------------------------------------------------- */

/* Codes whose two low bits are those of `low` and whose third bit is bit `bit` of high. */
INLINE __m256i third(__m256i low, __m256i high, int bit)
{
    __m256i moved = bit < 2 ? _mm256_slli_epi16(high, 2 - bit) : _mm256_srli_epi16(high, bit - 2);
    return _mm256_or_si256(_mm256_and_si256(low, _mm256_set1_epi8(3)), _mm256_and_si256(moved, _mm256_set1_epi8(4)));
}

/* As for Q6_K, codes are not negative and the excess is summed separately. Q3_K: 0..7, 4 more than they count. IQ2_*:
 * the codebook plus 64, at most 107, so that a pair of products fits int16, and no more. */
INLINE void tile_3bits(float *acc, const uint8_t *b, const ActBlock256 *a, const uint8_t *next, const Type t,
                       const int R)
{
    const int from = t == T_Q3_K ? 2 : 6;          /* the power of two of the offset */
    const __m256i book = t == T_Q3_K ? _mm256_setzero_si256() : codebook(t, 1 << from);
    for (int half = 0; half < 2; half++) {
        const uint8_t *lane = b + 32 * half;
        __m256i isum[TILE_ROWS];
        UNROLL for (int r = 0; r < R; r++) isum[r] = _mm256_setzero_si256();
#pragma GCC unroll 1
        for (int p = 0; p < 8; p++) {
            prefetch(next, 2 * LINE * (8 * half + p), 2, 29 * LINE);
            const uint8_t *pair = b + 24 * LINE + 32 * p + 16 * half;
            __m256i s01 = _mm256_cvtepi8_epi16(_mm_load_si128((const __m128i *) (const void *) pair)),
                    excess = _mm256_slli_epi16(s01, from), high = load(lane + (16 + p) * LINE);
            UNROLL for (int r = 0; r < R; r++)
                isum[r] = _mm256_sub_epi32(isum[r], _mm256_madd_epi16(excess, every(&a[r].sum16[2 * p])));
#pragma GCC unroll 2
            for (int c = 0; c < 2; c++) {
                __m256i s = scale_of(c ? _mm256_srli_epi32(s01, 16) : _mm256_and_si256(_mm256_set1_epi32(0xffff), s01));
                __m256i four = load(lane + (2 * p + c) * LINE), w[4];
                UNROLL for (int i = 0; i < 4; i++) {
                    w[i] = third(_mm256_srli_epi16(four, 2 * i), high, 2 * i + c);
                    if (t != T_Q3_K) w[i] = _mm256_shuffle_epi8(book, w[i]);
                }
                UNROLL for (int r = 0; r < R; r++) {
                    const int8_t *q = a[r].q + 32 * p + 16 * c;
                    if (t == T_Q3_K) {
                        isum[r] = add_dots(isum[r], w, q, 4, 7, s);
                        continue;
                    }
#ifdef LEVEL_IS_avxvnni
                    /* scales are positive, so that s is one as an int32, too */
                    __m256i x = plain_dots(_mm256_setzero_si256(), w, q, 4);
                    isum[r] = _mm256_add_epi32(isum[r], _mm256_mullo_epi32(x, s));
#else
                    UNROLL for (int i = 0; i < 4; i++) isum[r] = add_dots(isum[r], w + i, q + 4 * i, 1, 107, s);
#endif
                }
            }
        }
        __m256 d = _mm256_load_ps((const void *) (b + 28 * LINE + 32 * half));
        UNROLL for (int r = 0; r < R; r++) {
            float *to = acc + WEIGHT_GROUP * r + 8 * half;
            _mm256_store_ps(to, scaled(d, _mm256_set1_ps(a[r].scale), isum[r], _mm256_load_ps(to)));
        }
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
    _Alignas(64) uint8_t sc[4 * LINE], m[4 * LINE];
    for (int i = 0; i < 8; i++) {
        __m256i x = load(b + 16 * LINE + 32 * i);
        _mm256_store_si256((void *) (sc + 32 * i), low4(x));
        _mm256_store_si256((void *) (m + 32 * i), high4(x));
    }
    for (int half = 0; half < 2; half++) {
        __m256i isum[TILE_ROWS], msum[TILE_ROWS];
        UNROLL for (int r = 0; r < R; r++) isum[r] = msum[r] = _mm256_setzero_si256();
#pragma GCC unroll 1
        for (int p = 0; p < 8; p++) {
            prefetch(next, 2 * LINE * (8 * half + p), 2, 21 * LINE);
            __m256i min = _mm256_or_si256(bytes_wide(m + 32 * p + 8 * half),
                                          _mm256_slli_epi32(bytes_wide(m + 32 * p + 16 + 8 * half), 16));
            UNROLL for (int r = 0; r < R;
                        r++) msum[r] = _mm256_add_epi32(msum[r], _mm256_madd_epi16(min, every(&a[r].sum16[2 * p])));
#pragma GCC unroll 1
            for (int c = 0; c < 2; c++) {
                int s = 2 * p + c;
                __m256i both = load(b + s * LINE + 32 * half),
                        scale = scale_of(bytes_wide(sc + 16 * s + 8 * half)), w[4];
                UNROLL for (int i = 0; i < 4;
                            i++) w[i] = _mm256_and_si256(_mm256_srli_epi16(both, 2 * i), _mm256_set1_epi8(3));
                UNROLL for (int r = 0; r < R; r++) isum[r] = add_dots(isum[r], w, a[r].q + 16 * s, 4, 3, scale);
            }
        }
        __m256 d = halves(b + 20 * LINE + 16 * half), dmin = halves(b + 20 * LINE + 32 + 16 * half);
        UNROLL for (int r = 0; r < R; r++) {
            float *to = acc + WEIGHT_GROUP * r + 8 * half;
            __m256 da = _mm256_set1_ps(a[r].scale), sum = scaled(d, da, isum[r], _mm256_load_ps(to));
            _mm256_store_ps(to, _mm256_fnmadd_ps(_mm256_mul_ps(dmin, da), _mm256_cvtepi32_ps(msum[r]), sum));
        }
    }
}

/* -- IQ4_XS, IQ3_* ------------------------------------------------------------------------------------------------- */

/* AVX2: small codebooks are made unsigned, as they then need no change of q's sign: IQ3_S by 16, at most 31, and
 * IQ3_XXS by 64, at most 126, of which only pairs of products fit int16. The excess is summed separately. */
INLINE void tile_book(float *acc, const uint8_t *b, const ActBlock256 *a, const uint8_t *next, const Type t,
                      const int R)
{
    const int from = VNNI ? 7 : t == T_IQ3_S ? 4 : t == T_IQ3_XXS ? 6 : 0;         /* the power of two of the offset */
    const __m256i book = codebook(t, from ? 1 << from : 0);
    for (int half = 0; half < 2; half++) {
        __m256i isum[TILE_ROWS];
        UNROLL for (int r = 0; r < R; r++) isum[r] = _mm256_setzero_si256();
#pragma GCC unroll 1
        for (int s = 0; s < 8; s++) {
            prefetch(next, 3 * LINE * (8 * half + s), 3, 35 * LINE);
            const uint8_t *line = b + 8 * (s / 2) * LINE + 32 * half;
            const __m128i shift = _mm_cvtsi32_si128(4 * (s % 2));
            __m256i scale = _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *) (const void *) (b + 32 * LINE +
                                                                                                   16 * s + 8 * half)));
#ifdef LEVEL_IS_avxvnni
            /* dots of 32 codebook values need 20 bits, so they are multiplied as int32 */
            __m256i x[TILE_ROWS];
            UNROLL for (int r = 0; r < R; r++) x[r] = _mm256_set1_epi32(-128 * a[r].sum32[s]);
#else
            if (from) {                            /* such scales are positive: the upper int16 is zero */
                __m256i excess = _mm256_slli_epi32(scale, from);
                UNROLL for (int r = 0; r < R; r++)
                    isum[r] = _mm256_sub_epi32(isum[r], _mm256_madd_epi16(excess, _mm256_set1_epi16(a[r].sum32[s])));
            }
            scale = scale_of(_mm256_and_si256(scale, _mm256_set1_epi32(0xffff)));
#endif
#pragma GCC unroll 1
            for (int h = 0; h < 2; h++) {
                __m256i w[4];
                UNROLL for (int i = 0; i < 4; i++) w[i] =
                    _mm256_shuffle_epi8(book, low4(_mm256_srl_epi16(load(line + (4 * h + i) * LINE), shift)));
                UNROLL for (int r = 0; r < R; r++) {
                    const int8_t *q = a[r].q + 32 * s + 16 * h;
#ifdef LEVEL_IS_avxvnni
                    x[r] = plain_dots(x[r], w, q, 4);
#else
                    if (t == T_IQ3_S) isum[r] = add_dots(isum[r], w, q, 4, 31, scale);
                    else UNROLL for (int i = 0; i < 4; i++) {
                        isum[r] = from ? add_dots(isum[r], w + i, q + 4 * i, 1, 126, scale)
                                       : add_signed(isum[r], w[i], q + 4 * i, scale);
                    }
#endif
                }
            }
#ifdef LEVEL_IS_avxvnni
            UNROLL for (int r = 0; r < R; r++) isum[r] = _mm256_add_epi32(isum[r], _mm256_mullo_epi32(x[r], scale));
#endif
        }
        __m256 d = _mm256_load_ps((const void *) (b + 34 * LINE + 32 * half));
        UNROLL for (int r = 0; r < R; r++) {
            float *to = acc + WEIGHT_GROUP * r + 8 * half;
            _mm256_store_ps(to, scaled(d, _mm256_set1_ps(a[r].scale), isum[r], _mm256_load_ps(to)));
        }
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

INLINE void tile_32(float *acc, const uint8_t *code, const uint8_t *plane, const uint8_t *plane_m, const ActBlock32 *a,
                    int32_t n, int32_t nb, const uint8_t *next, const Type t, const int R)
{
    const int lines = t == T_Q8_0 ? 8 : t == T_Q5_0 || t == T_Q5_1 ? 5 : 4;
    const bool wide = t == T_Q8_0 || t == T_IQ4_NL, fives = t == T_Q5_0 || t == T_Q5_1,
               with_m = t == T_Q4_1 || t == T_Q5_1, sixteens = t == T_NVFP4, fp4 = t == T_MXFP4 || sixteens,
               coded = t == T_IQ4_NL || fp4;
    const __m256i ones = _mm256_set1_epi16(1);
    const __m256i book = coded ? codebook(t, fp4 ? 16 : VNNI ? 128 : 0) : ones;
    for (int half = 0; half < 2; half++) {
        const ActBlock32 *at = a;
        const uint8_t *lane = code + 32 * half;
        __m256 sum[TILE_ROWS];
        UNROLL for (int r = 0; r < R; r++) sum[r] = _mm256_load_ps(acc + WEIGHT_GROUP * r + 8 * half);
#pragma GCC unroll 1
        for (int32_t b = 0; b < nb; b++, at += n, lane += lines * LINE) {
            __m256i x[TILE_ROWS], high = load(lane + (fives ? 4 * LINE : 0));
            UNROLL for (int r = 0; r < R; r++) {
                x[r] = t == T_Q4_0 ? every(&at[r].less8)
                     : t == T_Q5_0 || t == T_MXFP4 ? every(&at[r].less16)
                                                   : _mm256_setzero_si256();
#ifdef LEVEL_IS_avxvnni
                if (wide) x[r] = every(&at[r].less128);
#endif
            }
            if (half == 0) prefetch(next, b * lines * LINE, lines, STRIP / 32 * lines * LINE);
#pragma GCC unroll 2
            for (int c = 0; c < 2; c++) {          /* columns 0..15 and 16..31 of the block */
                __m256i w[4];
                UNROLL for (int i = 0; i < 4; i++) {
                    w[i] = load(lane + (t == T_Q8_0 ? 4 * c + i : i) * LINE);
                    if (t != T_Q8_0) w[i] = c ? high4(w[i]) : low4(w[i]);
                    if (fives) w[i] = fifth(w[i], high, 2 * i + c);
                    if (coded) w[i] = _mm256_shuffle_epi8(book, w[i]);
                    if (t == T_Q8_0 && !VNNI) w[i] = _mm256_xor_si256(w[i], _mm256_set1_epi8(-128));
                }
                const __m256 d16 = sixteens ? ue4m3s(plane + 32 * b + 16 * c + 8 * half) : _mm256_setzero_ps();
                UNROLL for (int r = 0; r < R; r++) {
                    const int8_t *q = at[r].q + 16 * c;
                    if (sixteens) {
                        x[r] = every(&at[r].lower_less16);
                        if (c) x[r] = _mm256_sub_epi32(every(&at[r].less16), x[r]);
                    }
#ifdef LEVEL_IS_avxvnni
                    x[r] = plain_dots(x[r], w, q, 4);
#else
                    if (!wide) x[r] = add_dots(x[r], w, q, 4, 31, ones);
                    else UNROLL for (int i = 0; i < 4; i++) x[r] = add_signed(x[r], w[i], q + 4 * i, ones);
#endif
                    if (sixteens) sum[r] = scaled(d16, _mm256_set1_ps(at[r].scale), x[r], sum[r]);
                }
            }
            if (sixteens) continue;
            const uint8_t *scales = plane + 32 * b + 16 * half;
            __m256 d = t == T_MXFP4 ? bf16s(scales) : halves(scales), m = _mm256_setzero_ps();
            if (with_m) m = halves(plane_m + 32 * b + 16 * half);
            UNROLL for (int r = 0; r < R; r++) {
                __m256 da = _mm256_set1_ps(at[r].scale);
                sum[r] = scaled(d, da, x[r], sum[r]);
                if (with_m) sum[r] = scaled(m, da, every(&at[r].sum), sum[r]);
            }
        }
        UNROLL for (int r = 0; r < R; r++) _mm256_store_ps(acc + WEIGHT_GROUP * r + 8 * half, sum[r]);
    }
}

/* -- float weights ------------------------------------------------------------------------------------------------- */

INLINE void tile_float(float *acc, const uint8_t *w, const float *x, int32_t cols, int32_t nk, const uint8_t *next,
                       const Type t, const int R)
{
    const int line = t == T_F32 ? LINE : LINE / 2; /* bytes of a column */
    __m256 s0[TILE_ROWS], s1[TILE_ROWS];
    UNROLL for (int r = 0; r < R; r++) {
        s0[r] = _mm256_load_ps(acc + WEIGHT_GROUP * r);
        s1[r] = _mm256_load_ps(acc + WEIGHT_GROUP * r + 8);
    }
    for (int32_t k = 0; k < nk; k++) {
        __m256 w0, w1;
        const uint8_t *p = w + (size_t) k * (size_t) line;
        if (t == T_F32 || k % 2 == 0) prefetch(next, k * line, 1, STRIP * line);
        if (t == T_F32) {
            w0 = _mm256_load_ps((const void *) p);
            w1 = _mm256_load_ps((const void *) (p + 32));
        } else if (t == T_F16) {
            w0 = halves(p);
            w1 = halves(p + 16);
        } else {
            w0 = bf16s(p);
            w1 = bf16s(p + 16);
        }
        UNROLL for (int r = 0; r < R; r++) {
            __m256 xk = _mm256_set1_ps(x[(size_t) r * (size_t) cols + (size_t) k]);
            s0[r] = _mm256_fmadd_ps(w0, xk, s0[r]);
            s1[r] = _mm256_fmadd_ps(w1, xk, s1[r]);
        }
    }
    UNROLL for (int r = 0; r < R; r++) {
        _mm256_store_ps(acc + WEIGHT_GROUP * r, s0[r]);
        _mm256_store_ps(acc + WEIGHT_GROUP * r + 8, s1[r]);
    }
}

#include "backend/cpu/matmul_strips.h"
#endif
