/* kv_codes.h - products of stored keys and values with integer codes (kv_panels.h). The codes are multiplied as stored,
 * by queries (kv_scores.h) or softmax weights (kv_values.h) rounded to 16 bits, block by block, so that the largest
 * becomes KV_MOST: sums of integer products are exact, and their order is free. On processors that multiply bytes, a
 * rounded number is 256 high + low, both in [-128, 127]. */
#ifndef RATOON_BACKEND_CPU_KV_CODES_H
#define RATOON_BACKEND_CPU_KV_CODES_H

#include "backend/cpu/kv_load.h"
#include "backend/cpu/kv_panels.h"

enum { KV_MOST = 32639 };                          /* 127 * 256 + 127 */

#if defined(LEVEL_IS_amx)
#define BY_TILES 1
#else
#define BY_TILES 0
#endif

/* How many of n queries are multiplied together; the number of places is a multiple of it. A tile holds the high and
 * low bytes of eight. */
static inline int32_t together_of(int32_t n) { return !BY_TILES || n <= 4 ? 4 : n <= 8 ? 8 : 16; }

/* ---- what will be read ---- */

/* Data that will be read after some pieces of work, which prefetch it line by line so that memory is always busy: a
 * burst would fill the few line buffers, and prefetching delays work that itself waits for lines of the second-level
 * cache. Two streams, one for each half. half 0: nothing; done: bytes of each half prefetched so far; due: how many
 * should be by now; pace: by how much a piece of work raises due. */
typedef struct { const uint8_t *at; size_t half, done, due, pace; } Prefetch;

/* Called when n pieces of work begin. */
static inline void prefetch_pieces(Prefetch *f, int32_t n)
{
    const size_t due = f->due + (size_t) n * f->pace;
    f->due = due < f->half ? due : f->half;
}

/* Prefetches a line of each half into the second-level cache. */
static inline void prefetch_ask(Prefetch *f)
{
    if (f->done >= f->due) return;
    __builtin_prefetch(f->at + f->done, 0, 2);
    __builtin_prefetch(f->at + f->half + f->done, 0, 2);
    f->done += 64;
}

/* ---- lines ---- */

#if defined(LEVEL_IS_avx2) || defined(LEVEL_IS_avxvnni)

/* Spreads sixteen bits to bit 4 of sixteen bytes. */
static inline __m128i fifth_bits(const uint8_t *at)
{
    const __m128i spread = _mm_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1),
                  bit = _mm_set1_epi64x((long long) 0x8040201008040201u);
    uint16_t bits;
    memcpy(&bits, at, sizeof bits);
    __m128i set = _mm_cmpeq_epi8(_mm_and_si128(_mm_shuffle_epi8(_mm_set1_epi16((short) bits), spread), bit), bit);
    return _mm_and_si128(set, _mm_set1_epi8(16));
}

#endif

/* Unpacks lines of a block of type t, of four or five bits, to signed bytes: n lines from the lower halves of the
 * codes, and as many from the upper halves, which go `half` lines further on, as do their fifth bits. */
INLINE void unpack_lines(uint8_t *to, const uint8_t *codes, const uint8_t *fifth, Type t, const int32_t n,
                         const int32_t half)
{
    const int32_t less = code_offset(t);
    const bool has_fifth = codes_have_fifth(t);
    for (int32_t i = 0; i < n; i++) {
        const uint8_t *x = codes + i * LINE, *bits = fifth + 8 * i;
        uint8_t *low = to + i * LINE, *high = to + (i + half) * LINE;
#if defined(LEVEL_IS_avx512)
        const __m512i nibble = _mm512_set1_epi8(15), sixteen = _mm512_set1_epi8(16),
                      both = _mm512_loadu_si512((const void *) x);
        __m512i a = _mm512_and_si512(both, nibble), b = _mm512_and_si512(_mm512_srli_epi16(both, 4), nibble);
        if (has_fifth) {
            uint64_t ma, mb;
            memcpy(&ma, bits, sizeof ma), memcpy(&mb, bits + 8 * half, sizeof mb);
            a = _mm512_mask_add_epi8(a, ma, a, sixteen);
            b = _mm512_mask_add_epi8(b, mb, b, sixteen);
        }
        _mm512_storeu_si512((void *) low, _mm512_sub_epi8(a, _mm512_set1_epi8((char) less)));
        _mm512_storeu_si512((void *) high, _mm512_sub_epi8(b, _mm512_set1_epi8((char) less)));
#elif defined(LEVEL_IS_avx2) || defined(LEVEL_IS_avxvnni)
        for (int32_t k = 0; k < LINE; k += 16) {
            const __m128i nibble = _mm_set1_epi8(15), both = _mm_loadu_si128((const __m128i *) (const void *) (x + k));
            __m128i a = _mm_and_si128(both, nibble), b = _mm_and_si128(_mm_srli_epi16(both, 4), nibble);
            if (has_fifth)
                a = _mm_or_si128(a, fifth_bits(bits + k / 8)), b = _mm_or_si128(b, fifth_bits(bits + 8 * half + k / 8));
            _mm_storeu_si128((__m128i *) (void *) (low + k), _mm_sub_epi8(a, _mm_set1_epi8((char) less)));
            _mm_storeu_si128((__m128i *) (void *) (high + k), _mm_sub_epi8(b, _mm_set1_epi8((char) less)));
        }
#else
        for (int32_t k = 0; k < LINE; k++) {
            const int32_t a = has_fifth ? (bits[k / 8] >> k % 8 & 1) << 4 : 0,
                          b = has_fifth ? (bits[8 * half + k / 8] >> k % 8 & 1) << 4 : 0;
            low[k] = (uint8_t) (((x[k] & 15) | a) - less), high[k] = (uint8_t) ((x[k] >> 4 | b) - less);
        }
#endif
    }
}

/* The same with a constant type. */
INLINE void unpack_as(uint8_t *to, const uint8_t *codes, const uint8_t *fifth, Type t, const int32_t n,
                      const int32_t half)
{
    switch (t) {
    case T_Q5_1: unpack_lines(to, codes, fifth, T_Q5_1, n, half); break;
    case T_Q5_0: unpack_lines(to, codes, fifth, T_Q5_0, n, half); break;
    case T_Q4_1: unpack_lines(to, codes, fifth, T_Q4_1, n, half); break;
    default:     unpack_lines(to, codes, fifth, T_Q4_0, n, half); break;
    }
}

/* ---- products ---- */

/* Where lines of codes are: PART_LINES in part[0], any further ones in part[1]. Each access prefetches a line. */
enum { PART_LINES = VALUE_PANEL / FOUR };
typedef struct { const uint8_t *part[2]; Prefetch *prefetch; } Lines;

INLINE const uint8_t *line_of(const Lines *l, int32_t n)
{
    prefetch_ask(l->prefetch);
    return l->part[n / PART_LINES] + n % PART_LINES * LINE;
}

/* Multiplies lines of codes by queries. The four numbers of query i for line n are at w + i * next, as put_query and
 * put_weights leave them: their high bytes at 4 n and their low bytes at low + 4 n, or all as words from 8 n on.
 *
 *     y[i] lane j = sum over lines and k < 4 of (code 4 j + k of the line) * (number 4 line + k of query i)
 *
 * whole[i]: the sum of the query's numbers; n: a multiple of 4. */
#if defined(LEVEL_IS_avx512)

/* In assembly, since the compiler copies and spills the sums of the intrinsic. Four bytes at q are broadcast to every
 * lane. Codes are the unsigned operand, so 128 is added to them; the sums start at the value that undoes this. */
typedef int32_t __attribute__((may_alias)) FourBytes;
#define CODE_DOT4(sum, codes, q) \
    __asm__("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(codes), "m"(*(const FourBytes *) (const void *) (q)))

/* sets: number of sets of lines, `apart` bytes from each other. */
INLINE void multiply_lines(V (*y)[4], const int sets, size_t apart, const Lines *lines, int32_t n, const uint8_t *w,
                           size_t next, size_t low, const int32_t whole[4])
{
    __m512i a[2][4], b[2][4];
    UNROLLED for (int h = 0; h < sets; h++) UNROLLED for (int i = 0; i < 4; i++) {
        a[h][i] = _mm512_setzero_si512();
        b[h][i] = _mm512_set1_epi32((int32_t) (0u - 128u * (uint32_t) whole[i]));      /* of NaN it wraps */
    }
    for (int32_t k = 0; k < n; k++) {
        const uint8_t *from = line_of(lines, k);
        __m512i x[2];
        UNROLLED for (int h = 0; h < sets; h++) x[h] =
            _mm512_xor_si512(_mm512_loadu_si512((const void *) (from + (size_t) h * apart)), _mm512_set1_epi8(-128));
        UNROLLED for (int i = 0; i < 4; i++) UNROLLED for (int h = 0; h < sets; h++) {
            CODE_DOT4(a[h][i], x[h], w + (size_t) i * next + 4 * k);
            CODE_DOT4(b[h][i], x[h], w + (size_t) i * next + low + 4 * k);
        }
    }
    UNROLLED for (int h = 0; h < sets; h++) UNROLLED for (int i = 0; i < 4; i++) y[h][i] =
        _mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_slli_epi32(a[h][i], 8), b[h][i]));
}

#elif defined(LEVEL_IS_avx2) || defined(LEVEL_IS_avxvnni)

INLINE __m256i dot_words(__m256i sum, __m256i x, __m256i w)
{
#ifdef LEVEL_IS_avxvnni
    return _mm256_dpwssd_avx_epi32(sum, x, w);
#else
    return _mm256_add_epi32(sum, _mm256_madd_epi16(x, w));
#endif
}

INLINE void multiply_lines(V (*y)[4], const int sets, size_t apart, const Lines *lines, int32_t n, const uint8_t *w,
                           size_t next, size_t low, const int32_t whole[4])
{
    (void) low, (void) whole;
    __m256 half[2][4] = { 0 };
    for (int h = 0; h < sets; h++) for (int part = 0; part < 2; part++) {
        __m256i sum[4][2];
        UNROLLED for (int i = 0; i < 4; i++) sum[i][0] = sum[i][1] = _mm256_setzero_si256();
        for (int32_t k = 0; k < n; k++) {
            const __m128i *from = (const __m128i *) (const void *) (line_of(lines, k) + (size_t) h * apart) + 2 * part;
            const __m256i x0 = _mm256_cvtepi8_epi16(_mm_loadu_si128(from)),
                          x1 = _mm256_cvtepi8_epi16(_mm_loadu_si128(from + 1));
            UNROLLED for (int i = 0; i < 4; i++) {
                int64_t four;
                memcpy(&four, w + (size_t) i * next + 8 * k, sizeof four);
                const __m256i u = _mm256_set1_epi64x(four);
                sum[i][0] = dot_words(sum[i][0], x0, u);
                sum[i][1] = dot_words(sum[i][1], x1, u);
            }
        }
        UNROLLED for (int i = 0; i < 4; i++) half[part][i] =
            _mm256_cvtepi32_ps(_mm256_permute4x64_epi64(_mm256_hadd_epi32(sum[i][0], sum[i][1]), 0xd8));
        if (part) UNROLLED for (int i = 0; i < 4; i++) y[h][i] = (V) { half[0][i], half[1][i] };
    }
}

#elif defined(LEVEL_IS_neon) || defined(LEVEL_IS_i8mm)

INLINE void multiply_lines(V (*y)[4], const int sets, size_t apart, const Lines *lines, int32_t n, const uint8_t *w,
                           size_t next, size_t low, const int32_t whole[4])
{
    (void) whole;
    for (int h = 0; h < sets; h++) for (int i = 0; i < 4; i += 2) {
        int32x4_t a[2][4], b[2][4];
        UNROLLED for (int q = 0; q < 2; q++) UNROLLED for (int k = 0; k < 4; k++) a[q][k] = b[q][k] = vdupq_n_s32(0);
        for (int32_t k = 0; k < n; k += 4) {
            const int8_t *u = (const int8_t *) w + (size_t) i * next + 4 * k;
            const int8x16_t high[2] = { vld1q_s8(u), vld1q_s8(u + next) },
                            small[2] = { vld1q_s8(u + low), vld1q_s8(u + next + low) };
#define ONE_LINE(m)                                                               \
            {                                                                     \
                const int8_t *from = (const int8_t *) line_of(lines, k + (m)) + (size_t) h * apart; \
                UNROLLED for (int c = 0; c < 4; c++) {                            \
                    const int8x16_t x = vld1q_s8(from + 16 * c);                  \
                    UNROLLED for (int q = 0; q < 2; q++) {                        \
                        a[q][c] = vdotq_laneq_s32(a[q][c], x, high[q], m);        \
                        b[q][c] = vdotq_laneq_s32(b[q][c], x, small[q], m);       \
                    }                                                             \
                }                                                                 \
            }
            ONE_LINE(0)
            ONE_LINE(1)
            ONE_LINE(2)
            ONE_LINE(3)
#undef ONE_LINE
        }
        UNROLLED for (int q = 0; q < 2; q++) {
            float out[LANES];
            UNROLLED for (int c = 0; c < 4;
                          c++) vst1q_f32(out + 4 * c, vcvtq_f32_s32(vaddq_s32(vshlq_n_s32(a[q][c], 8), b[q][c])));
            y[h][i + q] = v_load(out);
        }
    }
}

#else

INLINE void multiply_lines(V (*y)[4], const int sets, size_t apart, const Lines *lines, int32_t n, const uint8_t *w,
                           size_t next, size_t low, const int32_t whole[4])
{
    (void) low, (void) whole;
    for (int h = 0; h < sets; h++) for (int i = 0; i < 4; i++) {
        int32_t sum[LANES] = { 0 };
        float out[LANES];
        for (int32_t k = 0; k < n; k++) {
            const int8_t *x = (const int8_t *) line_of(lines, k) + (size_t) h * apart;
            int16_t u[4];
            memcpy(u, w + (size_t) i * next + 8 * k, sizeof u);
            for (int j = 0; j < LANES; j++)
                sum[j] += x[4 * j] * u[0] + x[4 * j + 1] * u[1] + x[4 * j + 2] * u[2] + x[4 * j + 3] * u[3];
        }
        for (int j = 0; j < LANES; j++) out[j] = (float) sum[j];
        y[h][i] = v_load(out);
    }
}

#endif

/* BYTE_NUMBERS: numbers are stored as bytes, high and low, and not as words. NEEDS_WHOLE: products need their sums. */
#if defined(LEVEL_IS_avx512) && !BY_TILES
#define NEEDS_WHOLE 1
#else
#define NEEDS_WHOLE 0
#endif
#if defined(LEVEL_IS_avx512) || defined(LEVEL_IS_neon) || defined(LEVEL_IS_i8mm)
#define BYTE_NUMBERS 1
#else
#define BYTE_NUMBERS 0
#endif

/* ---- tiles ---- */

#if BY_TILES

/* The compiler does not know which memory tile instructions read and write. */
#define MEMORY_IS() __asm__ volatile("" ::: "memory")

/* Configures tile i as rows[i] rows of bytes[i] bytes. */
static inline void tiles_open(const uint8_t rows[8], const uint8_t bytes[8])
{
    struct { uint8_t palette, start, none[14]; uint16_t bytes[16]; uint8_t rows[16]; } shape = { .palette = 1 };
    for (int i = 0; i < 8; i++) shape.bytes[i] = bytes[i], shape.rows[i] = rows[i];
    __asm__ volatile("ldtilecfg %0" :: "m"(shape));
}

static inline void tiles_close(void) { _tile_release(); }

/* The sums of query i from a tile's sums [queries][high or low][16 codes]. */
INLINE V tile_sums(const int32_t *sums, int32_t i)
{
    const __m512i a = _mm512_load_si512((const void *) (sums + 2 * LANES * i)),
                  b = _mm512_load_si512((const void *) (sums + 2 * LANES * i + LANES));
    return _mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_slli_epi32(a, 8), b));
}

#else

static inline void tiles_close(void) { }

#endif

#endif
