/* simd_matmul_avx2.c - the product with 8 weight rows in the lanes of a register, a group in two halves.
 *
 * vpmaddubsw multiplies unsigned codes with signed activations and adds pairs as int16, saturating, so sums are taken to int32 before
 * they could: 16 codes below 32 (31 * 127 * 8 = 31,496 per int16), 8 codes below 64 (63 * 127 * 4 = 32,004). Bytes of Q8_0 and IQ4_NL
 * are multiplied as |w| * (q with the sign of w), at most 128 * 127 * 2 = 32,512 a pair. The step to int32, vpmaddwd, multiplies by the
 * sub-block's scale at once. All sums are exact, so the bits are those of the plain product. */
#ifdef LEVEL_IS_avx2
#include <immintrin.h>
#include <string.h>

#include "backend/cpu/matmul_fast.h"

#define TILE_ROWS 4

INLINE __m256i load(const uint8_t *p) { return _mm256_load_si256((const __m256i *)(const void *)p); }
INLINE __m256 halves(const uint8_t *p) { return _mm256_cvtph_ps(_mm_load_si128((const __m128i *)(const void *)p)); }
/* 4 bytes, or a pair of int16, or an int32, in every lane */
INLINE __m256i every(const void *p) { return _mm256_set1_epi32(*(const word *)p); }
INLINE __m256i low4(__m256i x) { return _mm256_and_si256(x, _mm256_set1_epi8(15)); }
INLINE __m256i high4(__m256i x) { return low4(_mm256_srli_epi16(x, 4)); }
/* 8 bytes (unsigned) to both int16 of a lane */
INLINE __m256i both(const uint8_t *p)
{
    __m256i x = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p));
    return _mm256_or_si256(x, _mm256_slli_epi32(x, 16));
}

/* acc = d da isum + acc */
INLINE __m256 scaled(__m256 d, __m256 da, __m256i isum, __m256 acc)
{
    return _mm256_fmadd_ps(_mm256_mul_ps(d, da), _mm256_cvtepi32_ps(isum), acc);
}

/* pairs of int16: the sums of `vectors` products of w with the activations at q */
INLINE __m256i dots(const __m256i *w, const int8_t *q, const int vectors)
{
    __m256i sum = _mm256_maddubs_epi16(w[0], every(q));
    UNROLL for (int i = 1; i < vectors; i++) sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(w[i], every(q + 4 * i)));
    return sum;
}

/* -- Q4_K, Q5_K ------------------------------------------------------------------------------------------------------------------------ */

/* The 6-bit scales as bytes: S [s][lane], then M [s/2][lane][s%2]. */
INLINE void k4_scales(uint8_t *sc, const uint8_t *lines)
{
    const __m256i low6 = _mm256_set1_epi8(63);
    for (int i = 0; i < 2; i++) {
        __m256i a = load(lines + 32 * i), b = load(lines + LINE + 32 * i), c = load(lines + 2 * LINE + 32 * i);
        __m256i top = _mm256_and_si256(_mm256_srli_epi16(a, 6), _mm256_set1_epi8(3));
        top = _mm256_or_si256(top, _mm256_and_si256(_mm256_srli_epi16(b, 4), _mm256_set1_epi8(12)));
        top = _mm256_or_si256(top, _mm256_and_si256(_mm256_srli_epi16(c, 2), _mm256_set1_epi8(48)));
        _mm256_store_si256((void *)(sc + 32 * i), _mm256_and_si256(a, low6));
        _mm256_store_si256((void *)(sc + LINE + 32 * i), _mm256_and_si256(b, low6));
        _mm256_store_si256((void *)(sc + 2 * LINE + 32 * i), _mm256_and_si256(c, low6));
        _mm256_store_si256((void *)(sc + 3 * LINE + 32 * i), top);
    }
}

INLINE __m256i fifth(__m256i low, __m256i high, int bit)
{
    __m256i moved = bit < 4 ? _mm256_slli_epi16(high, 4 - bit) : _mm256_srli_epi16(high, bit - 4);
    return _mm256_or_si256(low, _mm256_and_si256(moved, _mm256_set1_epi8(16)));
}

/* lines: fifth-bit lines of a block, 8 or 0 */
INLINE void tile_k(float *acc, const uint8_t *b, const ActBlock256 *a, const uint8_t *next, const int fifths, const int R)
{
    _Alignas(64) uint8_t sc[4 * LINE];
    k4_scales(sc, b + (32 + fifths) * LINE);
    for (int half = 0; half < 2; half++) {
        const uint8_t *lane = b + 32 * half;
        __m256i isum[TILE_ROWS];
        UNROLL for (int r = 0; r < R; r++) isum[r] = _mm256_setzero_si256();
#pragma GCC unroll 1
        for (int p = 0; p < 4; p++) {
            __m256i s0 = both(sc + 32 * p + 8 * half), s1 = both(sc + 32 * p + 16 + 8 * half);
#pragma GCC unroll 1
            for (int h = 0; h < 2; h++) {
                const uint8_t *line = lane + (8 * p + 4 * h) * LINE;
                prefetch(next + 3 * LINE * (8 * half + 2 * p + h), 3);
                const char *q = (const char *)a + 64 * p + 16 * h;
                __m256i high = load(lane + (fifths ? 32 + 2 * p + h : 0) * LINE), w[4];
                UNROLL for (int i = 0; i < 4; i++) {
                    w[i] = low4(load(line + i * LINE));
                    if (fifths) w[i] = fifth(w[i], high, 2 * i);
                }
                UNROLL for (int r = 0; r < R; r++) {
                    __m256i x = dots(w, (const int8_t *)q + r * (int)sizeof *a, 4);
                    isum[r] = _mm256_add_epi32(isum[r], _mm256_madd_epi16(x, s0));
                }
                UNROLL for (int i = 0; i < 4; i++) {
                    w[i] = high4(load(line + i * LINE));
                    if (fifths) w[i] = fifth(w[i], high, 2 * i + 1);
                }
                UNROLL for (int r = 0; r < R; r++) {
                    __m256i x = dots(w, (const int8_t *)q + r * (int)sizeof *a + 32, 4);
                    isum[r] = _mm256_add_epi32(isum[r], _mm256_madd_epi16(x, s1));
                }
            }
        }
        const uint8_t *line = b + (35 + fifths) * LINE + 16 * half;
        __m256 d = halves(line), dmin = halves(line + 32);
        UNROLL for (int r = 0; r < R; r++) {
            __m256i msum = _mm256_setzero_si256();
            for (int i = 0; i < 4; i++) {
                __m256i min = _mm256_cvtepu8_epi16(_mm_load_si128((const __m128i *)(const void *)(sc + 2 * LINE + 32 * i + 16 * half)));
                msum = _mm256_add_epi32(msum, _mm256_madd_epi16(min, every(&a[r].sum32[2 * i])));
            }
            float *to = acc + GROUP * r + 8 * half;
            __m256 da = _mm256_set1_ps(a[r].scale), sum = scaled(d, da, isum[r], _mm256_load_ps(to));
            _mm256_store_ps(to, _mm256_fnmadd_ps(_mm256_mul_ps(dmin, da), _mm256_cvtepi32_ps(msum), sum));
        }
    }
}
INLINE void tile_k4(float *acc, const uint8_t *b, const ActBlock256 *a, const uint8_t *next, const int R) { tile_k(acc, b, a, next, 0, R); }
INLINE void tile_k5(float *acc, const uint8_t *b, const ActBlock256 *a, const uint8_t *next, const int R) { tile_k(acc, b, a, next, 8, R); }

/* -- Q6_K, Q3_K ------------------------------------------------------------------------------------------------------------------------ */

INLINE __m256i sixth(__m256i low, __m256i high, int i)
{
    __m256i moved = i < 2 ? _mm256_slli_epi16(high, 4 - 2 * i) : _mm256_srli_epi16(high, 2 * i - 4);
    return _mm256_or_si256(low, _mm256_and_si256(moved, _mm256_set1_epi8(48)));
}

/* The codes of a sub-block are 0..63 here; what the offset of 32 adds too much is summed apart: 32 * scale * sum of q. */
INLINE void tile_k6(float *acc, const uint8_t *b, const ActBlock256 *a, const uint8_t *next, const int R)
{
    for (int half = 0; half < 2; half++) {
        const uint8_t *lane = b + 32 * half;
        __m256i isum[TILE_ROWS];
        UNROLL for (int r = 0; r < R; r++) isum[r] = _mm256_setzero_si256();
#pragma GCC unroll 1
        for (int p = 0; p < 8; p++) {
            prefetch(next + 4 * LINE * (8 * half + p), 4);
            const uint8_t *pair = b + 48 * LINE + 32 * p + 16 * half;
            __m256i s01 = _mm256_cvtepi8_epi16(_mm_load_si128((const __m128i *)(const void *)pair));
            UNROLL for (int r = 0; r < R; r++) {
                isum[r] = _mm256_sub_epi32(isum[r], _mm256_slli_epi32(_mm256_madd_epi16(s01, every(&a[r].sum16[2 * p])), 5));
            }
#pragma GCC unroll 2
            for (int c = 0; c < 2; c++) {
                /* the scale in both int16 of its lane */
                __m256i s = c ? _mm256_or_si256(_mm256_srli_epi32(s01, 16), _mm256_andnot_si256(_mm256_set1_epi32(0xffff), s01))
                              : _mm256_or_si256(_mm256_slli_epi32(s01, 16), _mm256_and_si256(_mm256_set1_epi32(0xffff), s01));
                __m256i high = load(lane + (32 + 2 * p + c) * LINE), w[4];
                UNROLL for (int i = 0; i < 4; i++) {
                    __m256i x = load(lane + (4 * p + i) * LINE);
                    w[i] = sixth(c ? high4(x) : low4(x), high, i);
                }
                const int8_t *q = (const int8_t *)a + 32 * p + 16 * c;
                UNROLL for (int r = 0; r < R; r++, q += sizeof *a) {
                    __m256i x = _mm256_madd_epi16(dots(w, q, 2), s), z = _mm256_madd_epi16(dots(w + 2, q + 8, 2), s);
                    isum[r] = _mm256_add_epi32(isum[r], _mm256_add_epi32(x, z));
                }
            }
        }
        __m256 d = halves(b + 52 * LINE + 16 * half);
        UNROLL for (int r = 0; r < R; r++) {
            float *to = acc + GROUP * r + 8 * half;
            _mm256_store_ps(to, scaled(d, _mm256_set1_ps(a[r].scale), isum[r], _mm256_load_ps(to)));
        }
    }
}

/* -- blocks of 32 ---------------------------------------------------------------------------------------------------------------------- */

INLINE void tile_32(float *acc, const uint8_t *code, const uint8_t *plane, const uint8_t *plane_m, const ActBlock32 *a, int32_t n, int32_t nb,
                    const uint8_t *next, const Type t, const int R)
{
    const int lines = t == T_Q8_0 ? 8 : t == T_Q5_0 || t == T_Q5_1 ? 5 : 4;
    const bool wide = t == T_Q8_0 || t == T_IQ4_NL, fives = t == T_Q5_0 || t == T_Q5_1, with_m = t == T_Q4_1 || t == T_Q5_1;
    const __m256i ones = _mm256_set1_epi16(1);
    for (int half = 0; half < 2; half++) {
        const ActBlock32 *at = a;
        const uint8_t *lane = code + 32 * half;
        __m256 sum[TILE_ROWS];
        UNROLL for (int r = 0; r < R; r++) sum[r] = _mm256_load_ps(acc + GROUP * r + 8 * half);
#pragma GCC unroll 1
        for (int32_t b = 0; b < nb; b++, at += n, lane += lines * LINE) {
            __m256i x[TILE_ROWS], high = load(lane + (fives ? 4 * LINE : 0));
            UNROLL for (int r = 0; r < R; r++) {
                x[r] = t == T_Q4_0 ? every(&at[r].less8) : t == T_Q5_0 ? every(&at[r].less16) : _mm256_setzero_si256();
            }
            if (half == 0) prefetch(next + b * lines * LINE, lines);
#pragma GCC unroll 2
            for (int c = 0; c < 2; c++) {          /* columns 0..15 and 16..31 of the block */
                __m256i w[4];
                UNROLL for (int i = 0; i < 4; i++) {
                    w[i] = load(lane + (t == T_Q8_0 ? 4 * c + i : i) * LINE);
                    if (t == T_Q8_0) w[i] = _mm256_xor_si256(w[i], _mm256_set1_epi8(-128));
                    else w[i] = c ? high4(w[i]) : low4(w[i]);
                    if (fives) w[i] = fifth(w[i], high, 2 * i + c);
                    if (t == T_IQ4_NL) {
                        w[i] = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)quant_iq4)), w[i]);
                    }
                }
                UNROLL for (int r = 0; r < R; r++) {
                    const int8_t *q = at[r].q + 16 * c;
                    if (!wide) {
                        x[r] = _mm256_add_epi32(x[r], _mm256_madd_epi16(dots(w, q, 4), ones));
                        continue;
                    }
                    UNROLL for (int i = 0; i < 4; i++) {
                        __m256i pair = _mm256_maddubs_epi16(_mm256_abs_epi8(w[i]), _mm256_sign_epi8(every(q + 4 * i), w[i]));
                        x[r] = _mm256_add_epi32(x[r], _mm256_madd_epi16(pair, ones));
                    }
                }
            }
            __m256 d = halves(plane + 32 * b + 16 * half), m = _mm256_setzero_ps();
            if (with_m) m = halves(plane_m + 32 * b + 16 * half);
            UNROLL for (int r = 0; r < R; r++) {
                __m256 da = _mm256_set1_ps(at[r].scale);
                sum[r] = scaled(d, da, x[r], sum[r]);
                if (with_m) sum[r] = scaled(m, da, every(&at[r].sum), sum[r]);
            }
        }
        UNROLL for (int r = 0; r < R; r++) _mm256_store_ps(acc + GROUP * r + 8 * half, sum[r]);
    }
}

/* -- float weights --------------------------------------------------------------------------------------------------------------------- */

INLINE void tile_float(float *acc, const uint8_t *w, const float *x, int32_t cols, int32_t nk, const uint8_t *next, const Type t, const int R)
{
    __m256 s0[TILE_ROWS], s1[TILE_ROWS];
    UNROLL for (int r = 0; r < R; r++) {
        s0[r] = _mm256_load_ps(acc + GROUP * r);
        s1[r] = _mm256_load_ps(acc + GROUP * r + 8);
    }
    for (int32_t k = 0; k < nk; k++) {
        __m256 w0, w1;
        const uint8_t *p = w + (size_t)k * (t == T_F32 ? LINE : LINE / 2);
        prefetch(next + (size_t)k * (t == T_F32 ? LINE : LINE / 2), 1);
        if (t == T_F32) {
            w0 = _mm256_load_ps((const void *)p);
            w1 = _mm256_load_ps((const void *)(p + 32));
        } else if (t == T_F16) {
            w0 = halves(p);
            w1 = halves(p + 16);
        } else {
            w0 = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_load_si128((const void *)p)), 16));
            w1 = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_load_si128((const void *)(p + 16))), 16));
        }
        UNROLL for (int r = 0; r < R; r++) {
            __m256 xk = _mm256_set1_ps(x[(size_t)r * (size_t)cols + (size_t)k]);
            s0[r] = _mm256_fmadd_ps(w0, xk, s0[r]);
            s1[r] = _mm256_fmadd_ps(w1, xk, s1[r]);
        }
    }
    UNROLL for (int r = 0; r < R; r++) {
        _mm256_store_ps(acc + GROUP * r, s0[r]);
        _mm256_store_ps(acc + GROUP * r + 8, s1[r]);
    }
}

#include "backend/cpu/matmul_strips.h"
#endif
