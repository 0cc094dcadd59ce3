/* simd_matmul_amx.c - the product on tiles: 16 activation rows times 16 weight rows times 64 columns in one
 * instruction.
 *
 * A packed line is a row of a tile: 4 consecutive columns of 16 weight rows. So a tile of weights is 16 lines (64
 * columns), a tile of activations is the q of up to 16 rows, read in place, and a tile of sums is [row][lane]. The
 * instruction takes as many cycles as there are activation rows, whatever the number of columns, and its sums can be
 * read only by storing the tile.
 *
 * Blocks of 256: sums over the whole block should stay in the tile, so the scales are multiplied into the weights, as
 * bytes in two planes whose sums are added at the end. A product of an unsigned code and a few bits of the scale that
 * stays below 256 needs only its own byte: one multiplication of 16-bit words makes two of them.
 *   Q4_K, Q5_K   code * (S & 7) and code * (S >> 3), at most 31 * 7:  isum = low + 8 high
 *   Q2_K         code * S, at most 3 * 15, a single plane:            isum = low
 *   the others   scale * (code - offset) as 16 bits, their bytes:     isum = low + 256 high, low unsigned, high signed
 * Each block of 32 has a float scale, so its sums must leave the tile after half the columns that a tile can hold: for
 * Q8_0, which needs no unpacking, that is still faster than vectors from 12 rows on. Vectors multiply the other types
 * of 32, float weights, and small numbers of rows of any type.
 *
 * Work proceeds in steps, each a block of a group. While the tiles of a step multiply, the vector units unpack the next
 * step's weights and add the sums of earlier steps: these do not depend on each other, so the processor can run them in
 * parallel. The bottleneck is port 0: alongside tile instructions, vector multiplications run only there, one per
 * cycle. */
#ifdef LEVEL_IS_amx
#include <immintrin.h>
#include <string.h>

#include "backend/cpu/matmul_fast.h"

/* GANG: groups that alternate (see Step). METAS: for the current step, the two before and the next. JOBS: tiles in
 * progress, and those waiting to be added. */
enum { TILE = 16, SUMS = TILE * WEIGHT_GROUP, GANG = 6, METAS = 4, JOBS = 3 };

/* The unpacked weights of a step, as the tiles read them. */
typedef struct { uint8_t plane[2][64 * LINE]; } Planes;

/* The factors of a step's sums; minima in pairs, as vpdpwssd takes them. */
typedef struct { float d[WEIGHT_GROUP], dmin[WEIGHT_GROUP]; __m512i min[8]; } Meta;

typedef int32_t Sums[4][SUMS];                     /* four tiles, stored */

/* A product's arguments. */
typedef struct {
    float         *y;
    size_t         y_stride;
    const uint8_t *packed;
    const void    *act;
    int32_t        n, rows, cols, group0, group1;
} TileTask;

/* The rows of a tile: [row, row + n) of the chunk, starting at row `skip` of the tile. */
typedef struct { int32_t row, n, skip; } Rows;

/* Sums waiting to be added to acc. */
typedef struct {
    const Rows *rows;       /* of one tile or two */
    const Sums *sums;
    const Meta *meta;
    const ActBlock256 *act; /* the chunk's first row */
    float      *acc, *y;    /* of the chunk's first row and the group's first lane; y NULL: not the group's last step */
    __mmask16   lanes;
} Pending;

INLINE __m512i load(const uint8_t *p) { return _mm512_load_si512((const void *) p); }
INLINE void store(uint8_t *p, __m512i x) { _mm512_store_si512((void *) p, x); }
INLINE __m512 halves(const uint8_t *p)
{
    return _mm512_cvtph_ps(_mm256_load_si256((const __m256i *) (const void *) p));
}
INLINE __m512i both(uint32_t x) { return _mm512_set1_epi32((int32_t) x); }

/* -- scales -------------------------------------------------------------------------------------------------------- */

/* The byte at + step * lane of the 64 as the lower half of both words of each lane; the upper halves are zero. */
INLINE __m512i spread(__m512i bytes, int at, const int step)
{
    __m512i lane = _mm512_mullo_epi32(_mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0),
                                      both((uint32_t) step * 0x10001u));
    return _mm512_maskz_permutexvar_epi8(0x5555555555555555,
                                         _mm512_add_epi32(lane, both((uint32_t) at * 0x10001u)), bytes);
}

/* Bytes [s][lane] and [s + 1][lane] as the two words of each lane. */
INLINE __m512i pair(__m512i bytes, const int s)
{
    __m512i lane = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    lane = _mm512_or_si512(lane, _mm512_slli_epi32(lane, 16));
    return _mm512_maskz_permutexvar_epi8(0x5555555555555555,
                                         _mm512_add_epi32(lane, both((uint32_t) s * 0x100010u + 0x100000u)), bytes);
}

/* -- unpacking blocks of 256 --------------------------------------------------------------------------------------- */

/* The upper four bits of bytes. A matrix says which bits of a byte are combined into each bit: its byte 7 - i defines
 * bit i. */
INLINE __m512i upper4(__m512i x) { return _mm512_gf2p8affine_epi64_epi8(x, _mm512_set1_epi64(0x1020408000000000), 0); }

/* The upper four bits of bytes as their lower ones, with other bits above. This avoids port 0, the bottleneck, which
 * shifts and multiplies. */
INLINE __m512i upper_down(__m512i x) { return _mm512_multishift_epi64_epi8(_mm512_set1_epi64(0x3c342c241c140c04), x); }

/* n bits of each byte, 1 or 2, from bit `from` on, moved to bit 4; the other bits are zero. */
INLINE __m512i bits_to_4(__m512i x, const int from, const int n)
{
    const unsigned long long one = (1ull << from) << (8 * 3), two = (2ull << from) << (8 * 2);
    return _mm512_gf2p8affine_epi64_epi8(x, _mm512_set1_epi64((long long) (n == 1 ? one : one | two)), 0);
}

/* The lower four bits of low, combined with high, which has bits only above them. */
INLINE __m512i joined(__m512i low, __m512i high)
{
    return _mm512_ternarylogic_epi32(_mm512_set1_epi8(15), low, high, 0xea);
}

/* Weights to prefetch while others are unpacked: into the first-level cache a block needed soon; into the second, lines
 * further on, alternating between two places. The hardware prefetcher follows every sequence of lines that it sees:
 * with two sequences at a time it keeps more lines in flight than with one. */
typedef struct { const uint8_t *near, *far[2]; } LinePrefetch;

/* Prefetches `lines` lines of both from line `line` on. In assembly, or the compiler would move them all to the
 * start. */
INLINE void prefetch_lines(const LinePrefetch *ask, const int line, const int lines)
{
    UNROLL for (int i = line; i < line + lines; i++) {
        __asm__ volatile("prefetcht0 %0\n\tprefetcht1 %1" :: "m"(ask->near[i * LINE]),
                         "m"(ask->far[i % 2][i / 2 * LINE]) : "memory");
    }
}

/* Prefetches part i of `of` of the lines of a quarter. */
INLINE void ask(const LinePrefetch *next, const int quarter, const int i, const int of, const int lines)
{
    const int at = lines / 4 * i / of, to = lines / 4 * (i + 1) / of;
    prefetch_lines(next, quarter * (lines / 4) + at, to - at);
}

/* Each unpacks a quarter of a block, 16 lines of the planes; the first quarter also does what is needed once per
 * block. */

/* Q4_K, Q5_K */
INLINE void unpack_k45(Planes *to, Meta *meta, const uint8_t *b, const LinePrefetch *next, const int p, const Type t)
{
    const int lines = t == T_Q4_K ? 36 : 44;
    const uint8_t *sc = b + (lines - 4) * LINE;
    const __m512i low3 = _mm512_set1_epi8(7), low4 = _mm512_set1_epi8(15), low6 = _mm512_set1_epi8(63);
    if (p == 0) {
        __m512i x = load(sc), y = load(sc + LINE), z = load(sc + 2 * LINE), m[2];
        m[0] = _mm512_and_si512(z, low6);
        m[1] = _mm512_and_si512(_mm512_srli_epi16(x, 6), _mm512_set1_epi8(3));
        m[1] = _mm512_or_si512(m[1], _mm512_and_si512(_mm512_srli_epi16(y, 4), _mm512_set1_epi8(12)));
        m[1] = _mm512_or_si512(m[1], _mm512_and_si512(_mm512_srli_epi16(z, 2), _mm512_set1_epi8(48)));
        for (int i = 0; i < 2; i++) {
            meta->min[2 * i] = _mm512_cvtepu8_epi16(_mm512_castsi512_si256(m[i]));
            meta->min[2 * i + 1] = _mm512_cvtepu8_epi16(_mm512_extracti64x4_epi64(m[i], 1));
        }
        _mm512_store_ps(meta->d, halves(sc + 3 * LINE));
        _mm512_store_ps(meta->dmin, halves(sc + 3 * LINE + 32));
    }
    __m512i s = load(sc + p / 2 * LINE),
            part[2] = {_mm512_and_si512(s, low3), _mm512_and_si512(_mm512_srli_epi16(s, 3), low3)};
    __m512i scale[2][2];                           /* [sub-block][plane] */
    UNROLL for (int i = 0; i < 4; i++) scale[i / 2][i % 2] = spread(part[i % 2], 32 * (p % 2) + 16 * (i / 2), 1);
    if (t == T_Q4_K) for (int i = 0; i < 2; i++) scale[1][i] = _mm512_slli_epi16(scale[1][i], 12);
    const uint8_t *line = b + 8 * p * LINE;
    uint8_t *out = to->plane[0] + 16 * p * LINE;
    UNROLL for (int i = 0; i < 8; i++) {
        __m512i w = load(line + i * LINE), low = _mm512_and_si512(w, low4), high;
        if (t == T_Q5_K) {
            __m512i fifths = load(b + (32 + 2 * p + i / 4) * LINE);
            low = joined(w, bits_to_4(fifths, i % 4 * 2, 1));
            high = joined(upper_down(w), bits_to_4(fifths, i % 4 * 2 + 1, 1));
        } else {
            /* 16 times the codes: times a scale << 12, the product is in the upper half */
            high = _mm512_andnot_si512(low4, w);
        }
        UNROLL for (int j = 0; j < 2; j++) {
            uint8_t *at = out + j * (int) sizeof to->plane[0] + i * LINE;
            store(at, _mm512_mullo_epi16(low, scale[0][j]));
            store(at + 8 * LINE,
                  t == T_Q4_K ? _mm512_mulhi_epu16(high, scale[1][j]) : _mm512_mullo_epi16(high, scale[1][j]));
        }
        ask(next, p, i, 8, lines);
    }
}

INLINE void unpack_k2(Planes *to, Meta *meta, const uint8_t *b, const LinePrefetch *next, const int p)
{
    const __m512i low2 = _mm512_set1_epi8(3), low4 = _mm512_set1_epi8(15);
    if (p == 0) {
        _mm512_store_ps(meta->d, halves(b + 20 * LINE));
        _mm512_store_ps(meta->dmin, halves(b + 20 * LINE + 32));
        prefetch_lines(next, 20, 1);
    }
    __m512i scales = load(b + (16 + p) * LINE), s = _mm512_and_si512(scales, low4), m = upper4(scales);
    meta->min[2 * p] = pair(m, 0);
    meta->min[2 * p + 1] = pair(m, 2);
    UNROLL for (int i = 0; i < 4; i++) {
        __m512i w = load(b + (4 * p + i) * LINE), scale = spread(s, 16 * i, 1);
        uint8_t *out = to->plane[0] + (16 * p + 4 * i) * LINE;
        for (int v = 0; v < 4; v++)
            store(out + v * LINE, _mm512_mullo_epi16(_mm512_and_si512(_mm512_srli_epi16(w, 2 * v), low2), scale));
        ask(next, p, i, 4, 20);
    }
}

/* Scales of a sub-block for wide(): in the lower and in the upper byte of words, and times the offset. */
typedef struct { __m512i even, odd, offset; } Wide;

INLINE Wide wide_scale(__m512i bytes, int at, const int step, const int offset_bits)
{
    __m512i even = spread(bytes, at, step), odd = _mm512_slli_epi16(even, 8);
    return (Wide) {even, odd, _mm512_srai_epi16(odd, (unsigned) (8 - offset_bits))};
}

/* Stores a line of both planes: the bytes of scale * (code - offset). */
INLINE void wide(uint8_t *line, __m512i code, Wide s)
{
    const __m512i low = _mm512_set1_epi16(0xff);
    __m512i even = _mm512_sub_epi16(_mm512_maddubs_epi16(code, s.even), s.offset);
    __m512i odd = _mm512_sub_epi16(_mm512_maddubs_epi16(code, s.odd), s.offset);
    store(line, _mm512_ternarylogic_epi32(low, even, _mm512_bslli_epi128(odd, 1), 0xca));       /* low ? even : odd */
    store(line + sizeof ((Planes *) 0)->plane[0],
          _mm512_ternarylogic_epi32(low, _mm512_bsrli_epi128(even, 1), odd, 0xca));
}

/* Codes whose two low bits are those of `low` and whose third bit is bit `bit` of high. */
INLINE __m512i third(__m512i low, __m512i high, const int bit)
{
    const unsigned long long one = (1ull << bit) << (8 * 5);
    return _mm512_ternarylogic_epi32(_mm512_set1_epi8(3), low,
                                     _mm512_gf2p8affine_epi64_epi8(high, _mm512_set1_epi64((long long) one), 0), 0xea);
}

/* The values of indices, plus the offset that makes them unsigned. */
INLINE __m512i codebook(const Type t, const int offset)
{
    return _mm512_add_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *) (const void *) quant_book(t))),
                           _mm512_set1_epi8((char) offset));
}

/* Q3_K: codes plus 4; IQ2_*: their codebook plus 64 */
INLINE void unpack_k3(Planes *to, Meta *meta, const uint8_t *b, const LinePrefetch *next, const int quarter,
                      const Type t)
{
    const int from = t == T_Q3_K ? 2 : 6;          /* the power of two of the offset */
    const __m512i book = t == T_Q3_K ? _mm512_setzero_si512() : codebook(t, 1 << from);
    const __m512i sc = load(b + (24 + quarter) * LINE);
    if (quarter == 0) {
        _mm512_store_ps(meta->d, _mm512_load_ps((const void *) (b + 28 * LINE)));
        prefetch_lines(next, 28, 1);
    }
    UNROLL for (int half = 0; half < 2; half++) {
        const int32_t p = 2 * quarter + half;
        __m512i w0 = load(b + 2 * p * LINE), w1 = load(b + (2 * p + 1) * LINE), high = load(b + (16 + p) * LINE);
        Wide s0 = wide_scale(sc, 32 * half, 2, from), s1 = wide_scale(sc, 32 * half + 1, 2, from);
        uint8_t *out = to->plane[0] + 8 * p * LINE;
        UNROLL for (int i = 0; i < 4; i++) {
            __m512i x = third(_mm512_srli_epi16(w0, 2 * i), high, 2 * i),
                    z = third(_mm512_srli_epi16(w1, 2 * i), high, 2 * i + 1);
            wide(out + i * LINE, t == T_Q3_K ? x : _mm512_shuffle_epi8(book, x), s0);
            wide(out + (4 + i) * LINE, t == T_Q3_K ? z : _mm512_shuffle_epi8(book, z), s1);
            ask(next, quarter, 4 * half + i, 8, 28);
        }
    }
}

/* Q6_K */
INLINE void unpack_k6(Planes *to, Meta *meta, const uint8_t *b, const LinePrefetch *next, const int quarter)
{
    const __m512i sc = load(b + (48 + quarter) * LINE);
    if (quarter == 0) {
        _mm512_store_ps(meta->d, halves(b + 52 * LINE));
        prefetch_lines(next, 52, 1);
    }
    UNROLL for (int half = 0; half < 2; half++) {
        const int32_t p = 2 * quarter + half;
        __m512i h0 = load(b + (32 + 2 * p) * LINE), h1 = load(b + (33 + 2 * p) * LINE);
        Wide s0 = wide_scale(sc, 32 * half, 2, 5), s1 = wide_scale(sc, 32 * half + 1, 2, 5);
        uint8_t *out = to->plane[0] + 8 * p * LINE;
        UNROLL for (int i = 0; i < 4; i++) {
            __m512i w = load(b + (4 * p + i) * LINE);
            wide(out + i * LINE, joined(w, bits_to_4(h0, 2 * i, 2)), s0);
            wide(out + (4 + i) * LINE, joined(upper_down(w), bits_to_4(h1, 2 * i, 2)), s1);
            ask(next, quarter, 4 * half + i, 8, 52);
        }
    }
}

/* IQ4_XS, IQ3_* */
INLINE void unpack_k4x(Planes *to, Meta *meta, const uint8_t *b, const LinePrefetch *next, const int p, const Type t)
{
    const __m512i low4 = _mm512_set1_epi8(15), sc = load(b + (32 + p / 2) * LINE);
    const __m512i book = codebook(t, 128);
    if (p == 0) {
        _mm512_store_ps(meta->d, _mm512_load_ps((const void *) (b + 34 * LINE)));
        prefetch_lines(next, 32, 3);
    }
    Wide s0 = wide_scale(sc, 32 * (p % 2), 1, 7), s1 = wide_scale(sc, 32 * (p % 2) + 16, 1, 7);
    uint8_t *out = to->plane[0] + 16 * p * LINE;
    UNROLL for (int i = 0; i < 8; i++) {
        __m512i w = load(b + (8 * p + i) * LINE);
        wide(out + i * LINE, _mm512_shuffle_epi8(book, _mm512_and_si512(w, low4)), s0);
        wide(out + (8 + i) * LINE, _mm512_shuffle_epi8(book, upper4(w)), s1);
        ask(next, p, i, 8, 32);
    }
}

INLINE void unpack_256(Planes *to, Meta *meta, const uint8_t *b, const LinePrefetch *next, const int quarter,
                       const Type t)
{
    if (t == T_Q4_K || t == T_Q5_K) unpack_k45(to, meta, b, next, quarter, t);
    else if (t == T_Q2_K) unpack_k2(to, meta, b, next, quarter);
    else if (t == T_Q3_K || t == T_IQ2_S) unpack_k3(to, meta, b, next, quarter, t);
    else if (t == T_Q6_K) unpack_k6(to, meta, b, next, quarter);
    else unpack_k4x(to, meta, b, next, quarter, t);
}

/* -- tiles --------------------------------------------------------------------------------------------------------- */

/* Tile shapes: 0..3 sums, 4 and 5 activations, 6 and 7 weights, of `columns` columns. */
static void tiles_open(int32_t rows, int32_t columns)
{
    struct { uint8_t palette, start, none[14]; uint16_t bytes[16]; uint8_t rows[16]; } s = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        s.bytes[i] = (uint16_t) (i == 4 || i == 5 ? columns : LINE);
        s.rows[i] = (uint8_t) (i < 6 ? rows : columns / 4);
    }
    /* gcc 12's _tile_loadconfig declares only 8 bytes of s as read: stores to the rest may be dropped */
    __asm__ volatile("ldtilecfg %0" :: "m"(s));
}

/* The compiler does not know that tile instructions read memory. */
#define STORES_FIRST() __asm__ volatile("" ::: "memory")

/* Sums S0 and S1 += the planes in tiles 6 and 7 times the activations in tile A. */
#define MULTIPLY(S0, S1, A)                         \
    do {                                            \
        _tile_dpbsud(S0, A, 6);                     \
        if (planes && sign) _tile_dpbssd(S1, A, 7); \
        else if (planes) _tile_dpbsud(S1, A, 7);    \
    } while (0)

/* The tiles of a quarter of a block: for one tile of rows with its sums in tiles 0 and 1 or, if odd, in 2 and 3; or, if
 * two, for two tiles of rows: the rows at a0 into 0 and 1, those at a1 into 2 and 3. */
INLINE void tiles_256(const Planes *w, const ActBlock256 *a0, const ActBlock256 *a1, int32_t k, const bool odd,
                      const bool two, const Type t)
{
    const bool planes = t != T_Q2_K, sign = planes && t != T_Q4_K && t != T_Q5_K;
    const int stride = sizeof(ActBlock256);
    STORES_FIRST();
    if (k == 0 && !odd) {
        _tile_zero(0);
        _tile_zero(1);
    }
    if (k == 0 && (odd || two)) {
        _tile_zero(2);
        _tile_zero(3);
    }
    _tile_loadd(4, a0->q + 64 * k, stride);
    _tile_loadd(6, w->plane[0] + 16 * k * LINE, LINE);
    if (planes) _tile_loadd(7, w->plane[1] + 16 * k * LINE, LINE);
    if (odd) MULTIPLY(2, 3, 4);
    else MULTIPLY(0, 1, 4);
    if (!two) return;
    _tile_loadd(5, a1->q + 64 * k, stride);
    MULTIPLY(2, 3, 5);
}

INLINE void tiles_256_end(Sums *sums, const bool odd, const bool two, const Type t)
{
    const bool planes = t != T_Q2_K;
    if (!odd) {
        _tile_stored(0, (*sums)[0], LINE);
        if (planes) _tile_stored(1, (*sums)[1], LINE);
    }
    if (odd || two) {
        _tile_stored(2, (*sums)[two ? 2 : 0], LINE);
        if (planes) _tile_stored(3, (*sums)[two ? 3 : 1], LINE);
    }
}

/* -- adding the sums ----------------------------------------------------------------------------------------------- */

/* x += the 2 products of each lane's int16 pair w with the pair at q; in assembly for its broadcast from memory. */
#define DOT2(x, w, q) __asm__("vpdpwssd %2%{1to16%}, %1, %0" : "+v"(x) : "v"(w), "m"(*(const word *) (q)))

/* Adds rows [r0, r1) of tile i of the waiting sums. */
INLINE void finish_256(const Pending *p, const int i, int32_t r0, int32_t r1, const Type t)
{
    const bool with_min = t == T_Q2_K || t == T_Q4_K || t == T_Q5_K;
    const int mins = t == T_Q2_K ? 8 : 4;
    const int32_t *low = (*p->sums)[2 * i] + WEIGHT_GROUP * (p->rows[i].skip + r0), *high = low + SUMS;
    const ActBlock256 *a = p->act + (p->rows[i].row + r0);
    float *acc = p->acc + WEIGHT_GROUP * (p->rows[i].row + r0);
    const __m512 d = _mm512_load_ps(p->meta->d), dmin = _mm512_load_ps(p->meta->dmin);
    __m512i min[8];
    if (with_min) for (int j = 0; j < mins; j++) min[j] = p->meta->min[j];
#pragma GCC unroll 1
    for (int32_t r = r0; r < r1; r++, a++, low += WEIGHT_GROUP, high += WEIGHT_GROUP, acc += WEIGHT_GROUP) {
        __m512i isum = _mm512_load_si512(low);
        if (t != T_Q2_K)
            isum = _mm512_add_epi32(isum,
                                    _mm512_slli_epi32(_mm512_load_si512(high), t == T_Q4_K || t == T_Q5_K ? 3 : 8));
        __m512 da = _mm512_set1_ps(a->scale), sum = _mm512_load_ps(acc);
        sum = _mm512_fmadd_ps(_mm512_mul_ps(d, da), _mm512_cvtepi32_ps(isum), sum);
        if (with_min) {
            const int16_t *q = t == T_Q2_K ? a->sum16 : a->sum32;
            __m512i msum = _mm512_madd_epi16(min[0], _mm512_set1_epi32(*(const word *) (const void *) q));
            UNROLL for (int j = 1; j < mins; j++) DOT2(msum, min[j], q + 2 * j);
            sum = _mm512_fnmadd_ps(_mm512_mul_ps(dmin, da), _mm512_cvtepi32_ps(msum), sum);
        }
        _mm512_store_ps(acc, sum);
    }
}

/* During a group's first step: prefetches where its values will be stored, so that the stores do not wait for
 * memory. */
INLINE void prefetch_rows(const TileTask *k, const Rows *rows, const float *y, int tiles)
{
    for (int i = 0; i < tiles; i++) {
        for (int32_t r = 0; r < rows[i].n; r++) __builtin_prefetch(y + (size_t) (rows[i].row + r) * k->y_stride, 1);
    }
}

/* After a group's last step: stores the values of tile i and clears acc for another group. */
INLINE void put_rows(const TileTask *k, const Pending *p, int i)
{
    float *acc = p->acc + WEIGHT_GROUP * p->rows[i].row, *y = p->y + (size_t) p->rows[i].row * k->y_stride;
    for (int32_t r = 0; r < p->rows[i].n; r++, acc += WEIGHT_GROUP, y += k->y_stride) {
        _mm512_mask_storeu_ps(y, p->lanes, _mm512_load_ps(acc));
        _mm512_store_ps(acc, _mm512_setzero_ps());
    }
}

/* -- the loops ----------------------------------------------------------------------------------------------------- */

/* The rows of a chunk are divided evenly over its tiles, which are of one size: 22 become 11 and 11. If they do not
 * divide evenly, the last tiles also cover rows of their neighbours, whose sums they do not add. There is a single
 * tile, or pairs of tiles. */
typedef struct { int32_t tiles, tile_rows; Rows rows[CHUNK_ROWS / TILE]; } Chunk;

static Chunk chunk_of(int32_t n)
{
    Chunk c = {.tiles = (n + TILE - 1) / TILE};
    if (c.tiles > 1) c.tiles += c.tiles % 2;
    c.tile_rows = (n + c.tiles - 1) / c.tiles;
    for (int32_t i = 0, row = 0; i < c.tiles; i++) {
        int32_t left = n - row, from = row < n - c.tile_rows ? row : n - c.tile_rows;
        c.rows[i] = (Rows) {row, left < c.tile_rows ? left : c.tile_rows, row - from};
        row += c.rows[i].n;
    }
    return c;
}

/* All the working memory of a product. */
typedef struct {
    float   acc[GANG][CHUNK_ROWS * WEIGHT_GROUP];
    uint8_t apart1[24 * LINE];          /* a load that follows a store to the same offset in another page waits for
                                         * it */
    Sums    sums[JOBS];
    uint8_t apart2[24 * LINE];
    Planes  planes;
    Meta    meta[METAS];
} Desk;

/* The steps of a product: the blocks of a gang of groups, the groups alternating. So the activations of a block are
 * still in the first-level cache for the gang's other groups, and while these have their turn, the hardware prefetcher
 * reads ahead in each group already visited. */
typedef struct {
    const uint8_t *weights;
    int32_t        gang, group, block;             /* gang: its first group */
} Step;

/* bytes: of a block; a group's blocks are contiguous, and so are groups. */
INLINE Step step_next(Step s, int32_t blocks, int32_t end, const int bytes)
{
    const size_t group_bytes = (size_t) blocks * (size_t) bytes;
    if (s.group >= end) return s;
    if (s.group + 1 < s.gang + GANG && s.group + 1 < end)
        return (Step) {s.weights + group_bytes, s.gang, s.group + 1, s.block};
    if (s.block + 1 < blocks)
        return (Step) {s.weights + bytes - (size_t) (s.group - s.gang) * group_bytes, s.gang, s.gang, s.block + 1};
    return (Step) {s.weights + bytes, s.group + 1, s.group + 1, 0};
}

INLINE __mmask16 lanes_of(const TileTask *k, int32_t group)
{
    int32_t lanes = k->rows - group * WEIGHT_GROUP;
    return lanes < WEIGHT_GROUP ? (__mmask16)((1u << lanes) - 1) : 0xffff;
}

/* Adds a quarter of the waiting sums, so that the vector units have work alongside each quarter of the next tiles. */
INLINE void finish_256_quarter(const TileTask *k, const Pending *p, const int q, const bool two, const Type t)
{
    const int i = two ? q / 2 : 0, of = two ? 2 : 4, at = q % of;
    finish_256(p, i, p->rows[i].n * at / of, p->rows[i].n * (at + 1) / of, t);
    if (at + 1 == of && p->y) put_rows(k, p, i);
}

/* What to prefetch while the weights of step s are unpacked: near, the weights of the next step; far, the next block
 * (or the next gang's first) of two groups, half the lines each. The other group's step prefetches the other halves; a
 * group without a partner is split in two itself. If there is nothing to prefetch, the address is one already in
 * cache. */
INLINE LinePrefetch prefetch_ahead(const Step *s, const Step *after, int32_t blocks, int32_t end, const int lines)
{
    const uint8_t *near = after->group < end ? after->weights : s->weights;
    const size_t group_bytes = (size_t) blocks * (size_t) (lines * LINE), gang_bytes = GANG * group_bytes;
    const bool second = (s->group - s->gang) % 2, wraps = s->block + 1 == blocks;
    const int32_t group = s->group - second + (wraps ? GANG : 0);
    if (group >= end) return (LinePrefetch) {near, {near, near}};
    const uint8_t *a = s->weights + lines * LINE + (wraps ? gang_bytes - group_bytes : 0) - (second ? group_bytes : 0),
                  *b = a + group_bytes;
    if (group + 1 >= end) return (LinePrefetch) {near, {a, a + (lines + 1) / 2 * LINE}};
    if (!second) return (LinePrefetch) {near, {a, b}};
    if (lines % 2) return (LinePrefetch) {near, {b + lines / 2 * LINE, a + (lines + 1) / 2 * LINE}};
    return (LinePrefetch) {near, {a + lines / 2 * LINE, b + lines / 2 * LINE}};
}

/* A tile of rows, or a pair of them, times the block of a step, and all that runs alongside. */
typedef struct {
    const ActBlock256 *a0, *a1;
    const uint8_t     *unpack;  /* the next step's weights; NULL: there are none, or this is not the step's last job */
    Meta              *meta;    /* the factors of the next step */
    const LinePrefetch *next;
    Sums              *before;  /* where the previous job's sums are stored; NULL: there was none */
    const Pending     *due;     /* sums to be added; NULL: none yet */
} Job;

/* Storing a tile waits for its last multiplication. So single tiles alternate between two pairs of sums, and the
 * previous job's sums are stored when this job is half done; pairs of tiles have no sums left for that. */
INLINE void run_job(Desk *desk, const TileTask *k, const Job *j, const bool odd, const bool two, const Type t)
{
    UNROLL for (int q = 0; q < 4; q++) {
        tiles_256(&desk->planes, j->a0, j->a1, q, odd, two, t);
        if (j->unpack) unpack_256(&desk->planes, j->meta, j->unpack, j->next, q, t);
        if (!two && q == 2 && j->before) tiles_256_end(j->before, !odd, false, t);
        if (j->due) finish_256_quarter(k, j->due, q, two, t);
    }
}

/* two: tiles in pairs; otherwise a single one of at most 16 rows. */
INLINE void run_256(Desk *desk, const TileTask *k, const int lines, const bool two, const Type t)
{
    const int32_t blocks = k->cols / 256, most = two ? CHUNK_ROWS : TILE, lag = two ? 1 : 2;
    int32_t rows = 0;
    for (int32_t row0 = 0; row0 < k->n; row0 += most) {
        const Chunk c = chunk_of(k->n - row0 < most ? k->n - row0 : most);
        if (rows != c.tile_rows) tiles_open(rows = c.tile_rows, 64);
        Step at = {k->packed + (size_t) k->group0 * (size_t) blocks * (size_t) (lines * LINE), k->group0, k->group0, 0};
        Step to = step_next(at, blocks, k->group1, lines * LINE), after;
        for (int g = 0; g < GANG; g++)
            memset(desk->acc[g], 0, (size_t) (c.tiles * c.tile_rows) * WEIGHT_GROUP * sizeof desk->acc[0][0]);
        const LinePrefetch first = prefetch_ahead(&at, &to, blocks, k->group1, lines);
        UNROLL for (int q = 0; q < 4; q++) unpack_256(&desk->planes, &desk->meta[0], at.weights, &first, q, t);
        Pending wait[JOBS];
        int32_t n = 0;                             /* jobs so far */
        for (int32_t s = 0; at.group < k->group1; s++, at = to, to = after) {
            after = step_next(to, blocks, k->group1, lines * LINE);
            const LinePrefetch next = prefetch_ahead(&to, &after, blocks, k->group1, lines);
            const uint8_t *b = to.group < k->group1 ? to.weights : NULL;
            const ActBlock256 *a = (const ActBlock256 *) k->act + (size_t) at.block * (size_t) k->n + (size_t) row0;
            for (int32_t i = 0; i < c.tiles; i += 1 + two, n++) {
                const Job job = {.a0 = a + c.rows[i].row - c.rows[i].skip,
                                 .a1 = two ? a + c.rows[i + 1].row - c.rows[i + 1].skip : NULL,
                                 .unpack = i + 1 + two >= c.tiles ? b : NULL, .meta = &desk->meta[(s + 1) % METAS],
                                 .next = &next, .before = n ? &desk->sums[(n - 1) % JOBS] : NULL,
                                 .due = n >= lag ? &wait[(n - lag) % JOBS] : NULL};
                if (!two && n % 2) run_job(desk, k, &job, true, two, t);
                else run_job(desk, k, &job, false, two, t);
                if (two) tiles_256_end(&desk->sums[n % JOBS], false, two, t);
                float *y = k->y + (size_t) row0 * k->y_stride + (size_t) at.group * WEIGHT_GROUP;
                wait[n % JOBS] = (Pending) {.rows = &c.rows[i], .sums = (const Sums *) &desk->sums[n % JOBS],
                                            .meta = &desk->meta[s % METAS],
                                            .act = a, .acc = desk->acc[at.group - at.gang],
                                            .y = at.block + 1 == blocks ? y : NULL, .lanes = lanes_of(k, at.group)};
                if (at.block == 0) prefetch_rows(k, &c.rows[i], y, 1 + two);
            }
        }
        if (!two && n % 2) tiles_256_end(&desk->sums[(n - 1) % JOBS], false, two, t);
        else if (!two) tiles_256_end(&desk->sums[(n - 1) % JOBS], true, two, t);
        for (int32_t i = n < lag ? 0 : n - lag; i < n; i++) {
            UNROLL for (int q = 0; q < 4; q++) finish_256_quarter(k, &wait[i % JOBS], q, two, t);
        }
    }
}
#define RUN_256(type, LINES)                                                                                  \
    static void run_##type##_one(Desk *desk, const TileTask *k) { run_256(desk, k, LINES, false, T_##type); } \
    static void run_##type##_two(Desk *desk, const TileTask *k) { run_256(desk, k, LINES, true, T_##type); }  \
    static void run_##type(Desk *desk, const TileTask *k)                                                     \
    {                                                                                                         \
        if (k->n <= TILE) run_##type##_one(desk, k);                                                          \
        else run_##type##_two(desk, k);                                                                       \
    }
RUN_256(Q2_K, 21)
RUN_256(Q3_K, 29)
RUN_256(Q4_K, 36)
RUN_256(Q5_K, 44)
RUN_256(Q6_K, 53)
RUN_256(IQ4_XS, 35)
RUN_256(IQ2_S, 29)                                 /* and IQ2_XXS, IQ2_XS */
RUN_256(IQ3_XXS, 35)
RUN_256(IQ3_S, 35)

/* -- Q8_0 ---------------------------------------------------------------------------------------------------------- */

/* A block is a tile of 8 packed lines, read in place. Storing the tile's sums to apply scales costs a little over 16
 * cycles regardless of rows; the vector path costs 8 multiplications per row. */
#define TILE_32(S, A, W)                 \
    do {                                 \
        _tile_zero(S);                   \
        _tile_loadd(A, a->q, sizeof *a); \
        _tile_loadd(W, code, LINE);      \
        _tile_dpbsud(S, A, W);           \
    } while (0)

INLINE void tile_32(const ActBlock32 *a, const uint8_t *code, const int i)
{
    if (i == 0) TILE_32(0, 4, 6);
    else if (i == 1) TILE_32(1, 5, 7);
    else if (i == 2) TILE_32(2, 4, 6);
    else TILE_32(3, 5, 7);
}

INLINE void tile_32_end(int32_t *sums, const int i)
{
    if (i == 0) _tile_stored(0, sums, LINE);
    else if (i == 1) _tile_stored(1, sums, LINE);
    else if (i == 2) _tile_stored(2, sums, LINE);
    else _tile_stored(3, sums, LINE);
}

INLINE void finish_32(__m512 *acc, const int32_t *sums, const ActBlock32 *a, const uint8_t *scales, const int R)
{
    const __m512 d = halves(scales);
    UNROLL for (int r = 0; r < R; r++) {
        __m512i isum = _mm512_add_epi32(_mm512_load_si512(sums + WEIGHT_GROUP * r), _mm512_set1_epi32(a[r].less128));
        acc[r] = _mm512_fmadd_ps(_mm512_mul_ps(d, _mm512_set1_ps(a[r].scale)), _mm512_cvtepi32_ps(isum), acc[r]);
    }
}

/* A group times R rows. A block's tile is stored two blocks later and added two blocks after that. The first rows
 * prefetch the next block's lines into the first-level cache, those 16 blocks ahead into the second, and the next
 * group's scales. */
INLINE void group_32(Desk *desk, const TileTask *k, int32_t group, int32_t row, const int R)
{
    enum { TILES = 4, STORED = 2, NEAR = 1, FAR = 16, LINES = 8 };
    const int32_t blocks = k->cols / 32;
    const size_t bytes = matmul_group_bytes(T_Q8_0, k->cols);
    const uint8_t *code = k->packed + (size_t) group * bytes, *scales = code + (size_t) blocks * LINES * LINE;
    const uint8_t *end = k->packed + (size_t) k->group1 * bytes,
                  *then = group + 1 < k->group1 ? scales + bytes : scales;
    const ActBlock32 *act = (const ActBlock32 *) k->act + row;
    __m512 acc[TILE];
    UNROLL for (int r = 0; r < R; r++) acc[r] = _mm512_setzero_ps();
    for (int32_t b0 = 0; b0 < blocks + TILES; b0 += TILES) {
        UNROLL for (int i = 0; i < TILES; i++) {
            const int32_t b = b0 + i, done = b - TILES;
            if (b < blocks) {
                const uint8_t *line = code + (size_t) b * LINES * LINE;
                tile_32(act + (size_t) b * (size_t) k->n, line, i);
                if (row == 0) {
                    const uint8_t *near = end - line > (NEAR + 1) * LINES * LINE ? line + NEAR * LINES * LINE : line;
                    const uint8_t *far = end - line > (FAR + 1) * LINES * LINE ? line + FAR * LINES * LINE : line;
                    prefetch_lines(&(LinePrefetch) {near, {far, far + LINES / 2 * LINE}}, 0, LINES);
                    if (i % 2 == 0) __builtin_prefetch(then + 32 * b, 0, 2);
                }
            }
            if (b >= STORED && b - STORED < blocks)
                tile_32_end(desk->sums[0][(i + TILES - STORED) % TILES], (i + TILES - STORED) % TILES);
            if (done >= 0 && done < blocks)
                finish_32(acc, desk->sums[0][i], act + (size_t) done * (size_t) k->n, scales + 32 * done, R);
        }
    }
    float *y = k->y + (size_t) row * k->y_stride + (size_t) group * WEIGHT_GROUP;
    UNROLL for (int r = 0; r < R; r++) _mm512_mask_storeu_ps(y + (size_t) r * k->y_stride, lanes_of(k, group), acc[r]);
}

/* Rows are divided evenly over tiles of one size; if they do not divide evenly, the last tile repeats rows of its
 * neighbour. */
#define GROUP_32(R)                       \
    case R:                               \
        group_32(desk, k, group, row, R); \
        break

static void run_Q8_0(Desk *desk, const TileTask *k)
{
    const int32_t tiles = (k->n + TILE - 1) / TILE, rows = (k->n + tiles - 1) / tiles;
    tiles_open(rows, 32);
    for (int32_t group = k->group0; group < k->group1; group++) {
        for (int32_t i = 0; i < tiles; i++) {
            const int32_t row = i * rows < k->n - rows ? i * rows : k->n - rows;
            switch (rows) {                 /* constants, so that sums stay in registers; see by_tiles */
                GROUP_32(12);
                GROUP_32(13);
                GROUP_32(14);
                GROUP_32(15);
            default:
                group_32(desk, k, group, row, TILE);
            }
        }
    }
}

/* The number of rows from which tiles are faster than vectors (doc/lab/products.md); types not listed are always
 * multiplied by vectors. */
static const struct { void (*run)(Desk *desk, const TileTask *k); int32_t rows; } tiles[T_COUNT] = {
    [T_Q2_K] = {run_Q2_K, 2},  [T_Q3_K] = {run_Q3_K, 6}, [T_Q4_K] = {run_Q4_K, 7},
    [T_Q5_K] = {run_Q5_K, 4},  [T_Q6_K] = {run_Q6_K, 6}, [T_IQ4_XS] = {run_IQ4_XS, 9},
    [T_IQ2_XXS] = {run_IQ2_S, 9}, [T_IQ2_XS] = {run_IQ2_S, 9}, [T_IQ2_S] = {run_IQ2_S, 9},
    [T_IQ3_XXS] = {run_IQ3_XXS, 9}, [T_IQ3_S] = {run_IQ3_S, 9},
    [T_Q8_0] = {run_Q8_0, 12},
};

/* Q8_0 has nothing to unpack, so a tile of few rows does not get cheaper by following others: what counts is the rows
 * per tile. */
static bool by_tiles(Type t, int32_t n)
{
    const int32_t parts = (n + TILE - 1) / TILE;
    return tiles[t].run && (t == T_Q8_0 ? (n + parts - 1) / parts : n) >= tiles[t].rows;
}

/* By itself, so that products by vectors need no room for a desk on the stack. */
__attribute__((noinline)) static void by_desk(Type t, const TileTask *k)
{
    _Alignas(64) Desk desk;
    tiles[t].run(&desk, k);
    _tile_release();                               /* so that the next context switch on this processor has less to
                                                    * save */
}

static void product(float *y, size_t y_stride, Type t, const void *packed, const void *act, int32_t n, int32_t rows,
                    int32_t cols, int32_t group0, int32_t group1)
{
    if (group0 >= group1 || !by_tiles(t, n)) {
        matmul_avx512.product(y, y_stride, t, packed, act, n, rows, cols, group0, group1);
        return;
    }
    by_desk(t, &(TileTask) {y, y_stride, packed, act, n, rows, cols, group0, group1});
}

static void quantise(void *act, ActForm form, const float *x, int32_t n, int32_t cols, int32_t row0, int32_t row1)
{
    matmul_avx512.quantise(act, form, x, n, cols, row0, row1);
}

const MatmulKernels matmul_amx = {quantise, product};
#endif
