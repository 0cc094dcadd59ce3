/* gpu_packs.h - how products read packed weights (matmul_layout.h says what stands where). A pack is a struct of static
 * functions over a unit: the 256 or 128 columns of a group of 16 weight rows that lie in shared memory at a time.
 *   SCALES, CHUNKS   blocks of a unit, each with a scale (NVFP4: two); steps of 32 columns of a block
 *   MINS, ROW_SUMS   finish reads a second integer, msum of min_sums; or the sum of the row's block of 32
 *   WORDS            of a unit in shared memory
 *   Source           where a thread finds its part of a unit, of those that STEP threads copy, this one as number `at`:
 *                    source(group, blocks, unit, at); skip: on by so many units
 *   stage<STEP>      starts to copy a unit; `left`: how many of its blocks exist
 *   sums             a warp computes isum of a block, for MW groups by 8 NT rows of x, as result fragments have them;
 *                    w: the first group's unit, the others' follow; x: at the block, ROLLED: in few registers
 *   mins             this lane's words for min_sums
 *   finish           the float operations of one output over a block; row: in the group
 * Integers may be summed in any order, by any warp; floats go in one. Codes with an offset become signed bytes by
 * moving them to the top of the byte, where the offset is one bit: sums are a power of two too large, and shifted
 * back.
 * A lane has weight rows 2 g and 2 g + 1 where the matrix instruction says g and g + 8: they are neighbours in a line,
 * and one load brings both. Lines lie swizzled in shared memory: of four that a warp reads at once, two have their
 * halves swapped, so that every lane reads another bank. */
#ifndef RATOON_BACKEND_GPU_GPU_PACKS_H
#define RATOON_BACKEND_GPU_GPU_PACKS_H

#include "backend/gpu/gpu_quantise.h"

enum { LINE_WORDS = 16, LINE_BYTES = 64 };
typedef uint16_t half_word __attribute__((may_alias));

/* Where word i of the lines is: lines 2 and 3 of each four have their halves swapped. */
DEV int swapped(int i) { return i ^ (i >> 2 & 8); }

/* Where half h of a line begins, in words: of a line that the compiler knows it is a constant, so that what is read
 * there costs no address of its own. */
DEV int half_line(int line, int h) { return line * LINE_WORDS + 8 * (h ^ (line >> 1 & 1)); }
DEV uint32_t word_of(const uint32_t *w, int line, int h, int i) { return w[half_line(line, h) + i]; }
DEV uint32_t half_of(const uint32_t *w, int line, int h, int i)
{
    return ((const half_word *) (w + half_line(line, h)))[i];
}
/* Bytes i and i + 1 of a line of which halves are not swapped; i is even. */
DEV uint32_t two_bytes(const uint32_t *w, int line, int i)
{
    return ((const half_word *) w)[(line * LINE_BYTES + i) / 2];
}

/* The words of rows 2 g and 2 g + 1: of the line that word `from` begins, a multiple of 16. */
DEV void words_from(uint32_t q[2], const uint32_t *w, int from, int g)
{
    const uint2 v = *(const uint2 *) (w + swapped(from + 2 * g));
    q[0] = v.x, q[1] = v.y;
}
/* The same, of a line that the compiler knows. */
DEV void row_words(uint32_t q[2], const uint32_t *w, int line, int g)
{
    const uint2 v = *(const uint2 *) (w + line * LINE_WORDS + (2 * g ^ (line >> 1 & 1) * 8));
    q[0] = v.x, q[1] = v.y;
}
/* The same, of line t behind a line that is a multiple of four. */
DEV void lane_words(uint32_t q[2], const uint32_t *w, int line, int g, int t)
{
    words_from(q, w + line * LINE_WORDS, t * LINE_WORDS, g);
}
/* The four words of a pair's codes that a lane needs: those of vectors t and 4 + t. */
DEV void pair_words(uint32_t q[4], const uint32_t *w, int line, int g, int t)
{
    lane_words(q, w, line, g, t);
    lane_words(q + 2, w, line + 4, g, t);
}

/* 64 >> 2 t, for products in place of shifts: multipliers have time where shifters have none. As the compiler does not
 * know it for a power of two, it leaves them as they are. */
DEV uint32_t field_up(int t) { return byte_perm(0x01041040u, 0, 0x4440u + (uint32_t) t); }
/* 0x80808080, which the compiler does not know either: (a & b | tops) ^ (c & d) stay two instructions. */
DEV uint32_t tops() { return byte_perm(0x80, 0, 0); }

/* N words of lines, or as many as there are, by STEP threads of which this is number `at`; from: its part. A round of
 * STEP moves by whole lines of four, so what is swapped stays where it is. All N of them are copied without a question
 * for each. */
template <int N, int STEP> DEV void stage_lines(uint32_t *to, const uint8_t *from, int there, int at)
{
    enum { ROUND = 4 * STEP };
    to += swapped(4 * at);
    if (there >= N) {
        UNROLL
        for (int i = 0; i < N; i += ROUND)
            if (i + ROUND <= N || 4 * at + i < N) copy16_async(to + i, from + 4 * i);
        return;
    }
    UNROLL_BY(1)
    for (int i = 0; 4 * at + i < there; i += ROUND) copy16_async(to + i, from + 4 * i);
}

/* The entries of codebooks, four bytes in a word. */
struct BookIq4 { enum : uint32_t { T0 = 0xbfad9881u, T1 = 0xf6eaddcfu, T2 = 0x26190d01u, T3 = 0x71594535u }; };
struct BookIq3xxs { enum : uint32_t { T0 = 0x1c140c04u, T1 = 0x3e342c24u, T2 = 0xe4ecf4fcu, T3 = 0xc2ccd4dcu }; };
struct BookIq3s { enum : uint32_t { T0 = 0x07050301u, T1 = 0x0f0d0b09u, T2 = 0xf9fbfdffu, T3 = 0xf1f3f5f7u }; };
struct BookFp4 { enum : uint32_t { T0 = 0x03020100u, T1 = 0x0c080604u, T2 = 0xfdfeff00u, T3 = 0xf4f8fafcu }; };

/* The bytes of a word of nibbles, each the entry of a codebook: low nibbles, high nibbles. */
template <class Book> DEV void book_values(uint32_t *low, uint32_t *high, uint32_t nibbles)
{
    const uint32_t t0 = Book::T0, t1 = Book::T1, t2 = Book::T2, t3 = Book::T3;
    const uint32_t at = nibbles & 0x77777777u, which = (nibbles & 0x88888888u) >> 1 | 0x32103210u;
    const uint32_t a = byte_perm(byte_perm(t0, t1, at), byte_perm(t2, t3, at), which);
    const uint32_t b = byte_perm(byte_perm(t0, t1, at >> 16), byte_perm(t2, t3, at >> 16), which >> 16);
    *low = byte_perm(a, b, 0x6420), *high = byte_perm(a, b, 0x7531);
}

/* ---- blocks of 256 ---- */

struct NoMins { DEV void mins(uint32_t min[2], const uint32_t *, int, int) { min[0] = min[1] = 0; } };

/* FLOATS: the last line has d as floats, not halves. */
template <int LINES, bool WITH_MINS, bool FLOATS = false> struct Pack256 : NoMins {
    enum { SCALES = 1, CHUNKS = 8, MINS = WITH_MINS, ROW_SUMS = 0, WORDS = LINES * LINE_WORDS };
    DEV size_t group_bytes(int blocks) { return (size_t) blocks * LINES * LINE_BYTES; }
    struct Source { const uint8_t *lines; };
    DEV Source source(const uint8_t *group, int, int unit, int at)
    {
        return Source{group + (size_t) unit * LINES * LINE_BYTES + 16 * at};
    }
    DEV void skip(Source &s, int units) { s.lines += units * LINES * LINE_BYTES; }
    template <int STEP> DEV void stage(uint32_t *to, const Source &from, int left, int at)
    {
        if (left > 0) stage_lines<WORDS, STEP>(to, from.lines, WORDS, at);
    }
    DEV float finish(float acc, const uint32_t *w, int, int row, int isum, int msum, float da)
    {
        const float d = FLOATS ? f32_of_bits(word_of(w, LINES - 1, row >> 3, row & 7))
                               : f32_of_half(half_of(w, LINES - 1, 0, row));
        acc = f32_fma(f32_mul(d, da), f32_of_int(isum), acc);
        if (!MINS) return acc;
        const float dmin = f32_of_half(half_of(w, LINES - 1, 1, row));
        return f32_fma(-f32_mul(dmin, da), f32_of_int(msum), acc);
    }
};

template <int MW, int NT> DEV void clear_sums(int sum[MW][NT][4])
{
    UNROLL
    for (int m = 0; m < MW; m++)
        UNROLL
        for (int j = 0; j < NT; j++) sum[m][j][0] = sum[m][j][1] = sum[m][j][2] = sum[m][j][3] = 0;
}

/* Sums of codes that are 2^SHIFT times too large. */
template <int MW, int NT, int SHIFT> DEV void shift_sums(int sum[MW][NT][4])
{
    UNROLL
    for (int m = 0; m < MW; m++)
        UNROLL
        for (int j = 0; j < NT; j++)
            UNROLL
            for (int i = 0; i < 4; i++) sum[m][j][i] >>= SHIFT;
}

/* sum += products of d with the scales of the two rows */
DEV void add_scaled(int sum[4], const int d[4], int s0, int s1)
{
    sum[0] += s0 * d[0], sum[1] += s0 * d[1], sum[2] += s1 * d[2], sum[3] += s1 * d[3];
}

/* Sums of minimum times sum of 16 columns, the latter in two halves; min: this lane's words of its two rows. */
DEV void min_sums(int msum[4], const uint32_t min[2], uint2 s)
{
    int high[4] = { 0, 0, 0, 0 };
    mma_16x8x16(high, min, s.y);
    UNROLL
    for (int i = 0; i < 4; i++) msum[i] = 128 * high[i];
    mma_16x8x16(msum, min, s.x);
}

/* The words of all NT tiles of x for a step of 32 columns. */
template <int NT, class Rows> DEV void codes_of(uint2 b[NT], const Rows &x, int chunk)
{
    UNROLL
    for (int j = 0; j < NT; j++) b[j] = code_of(x, chunk, j);
}

/* K4, K5 and K4X: a scale per 32 columns. P has fragments(a, w, pair, g, t): of sub-blocks 2 pair and 2 pair + 1;
 * scales(s, w, sub, g): of the two rows; BYTES: codes are bytes without a sign; SHIFT: what sums are too large by. */
template <class P, int MW, int NT, class Rows>
DEV void sums_of_32(int isum[MW][NT][4], const uint32_t *w, const Rows &x, int lane)
{
    const int g = lane >> 2, t = lane & 3;
    clear_sums<MW, NT>(isum);
    enum { STEPS = Rows::ROLLED && MW * NT > 2 ? 1 : 4 };
    UNROLL_BY(STEPS)
    for (int p = 0; p < 4; p++) {
        uint32_t a[MW][2][4];
        UNROLL
        for (int m = 0; m < MW; m++) P::fragments(a[m], w + m * P::WORDS, p, g, t);
        UNROLL
        for (int h = 0; h < 2; h++) {
            uint2 v[NT];
            codes_of<NT>(v, x, 2 * p + h);
            UNROLL
            for (int m = 0; m < MW; m++) {
                int s[2];
                P::scales(s, w + m * P::WORDS, 2 * p + h, g);
                UNROLL
                for (int j = 0; j < NT; j++) {
                    const uint32_t b[2] = { v[j].x, v[j].y };
                    int d[4] = { 0, 0, 0, 0 };
                    if (P::BYTES) mma_16x8x32_u8(d, a[m][h], b);
                    else mma_16x8x32(d, a[m][h], b);
                    add_scaled(isum[m][j], d, s[0], s[1]);
                }
            }
        }
    }
    shift_sums<MW, NT, P::SHIFT>(isum);
}

/* Minima of K4 and K5 from the lines of scales: those of this lane's sums 4 t .. 4 t + 3, which are two. */
DEV void k4_mins(uint32_t min[2], const uint32_t *w, int line, int g, int t)
{
    /* the first four minima are six bits of one line, the others of three; masks, since branches would cost more */
    const uint32_t low = t < 2 ? 0 : 0x03030303u, middle = t < 2 ? 0 : 0x0c0c0c0cu;
    const uint32_t own = t < 2 ? 0x3f3f3f3fu : 0x30303030u;
    const int h = t & 1, shift = t < 2 ? 0 : 2;
    const uint32_t both = (word_of(w, line, h, g) >> 6 & low) | (word_of(w, line + 1, h, g) >> 4 & middle) |
                          (word_of(w, line + 2, h, g) >> shift & own);
    min[0] = byte_perm(both, 0, 0x1100), min[1] = byte_perm(both, 0, 0x3322);
}

/* K4 and K5: scales and minima of 6 bits in lines from LINES - 4 on. */
template <class P, int LINES> struct PackMins : Pack256<LINES, true> {
    DEV void mins(uint32_t min[2], const uint32_t *w, int g, int t) { k4_mins(min, w, LINES - 4, g, t); }
    template <int MW, int NT, class Rows>
    DEV void sums(int isum[MW][NT][4], const uint32_t *w, int, const Rows &x, int lane)
    {
        sums_of_32<P, MW, NT>(isum, w, x, lane);
    }
};

/* The codes of odd sub-blocks stay at the top of their bytes, 16 times too large; so are the scales of the others. */
struct PackK4 : PackMins<PackK4, 36> {
    enum { BYTES = 1, SHIFT = 4 };
    DEV void fragments(uint32_t a[2][4], const uint32_t *w, int p, int g, int t)
    {
        uint32_t q[4];
        pair_words(q, w, 8 * p, g, t);
        UNROLL
        for (int i = 0; i < 4; i++) a[0][i] = q[i] & 0x0f0f0f0fu, a[1][i] = q[i] & 0xf0f0f0f0u;
    }
    DEV void scales(int s[2], const uint32_t *w, int sub, int g)
    {
        const uint32_t v = two_bytes(w, 32, sub * 16 + 2 * g);
        if (sub & 1) s[0] = (int) (v & 63), s[1] = (int) (v >> 8 & 63);
        else s[0] = (int) (v << 4 & 1008), s[1] = (int) (v >> 4 & 1008);
    }
};

/* Codes times 8. */
struct PackK5 : PackMins<PackK5, 44> {
    enum { BYTES = 1, SHIFT = 3 };
    DEV void fragments(uint32_t a[2][4], const uint32_t *w, int p, int g, int t)
    {
        const uint32_t up = field_up(t);
        uint32_t q[4], fifth[4];
        pair_words(q, w, 8 * p, g, t);
        row_words(fifth, w, 32 + 2 * p, g);
        row_words(fifth + 2, w, 33 + 2 * p, g);
        UNROLL
        for (int i = 0; i < 4; i++) {
            a[0][i] = (q[i] << 3 & 0x78787878u) | (fifth[i] * (2 * up) & 0x80808080u);
            a[1][i] = (q[i] >> 1 & 0x78787878u) | (fifth[i] * up & 0x80808080u);
        }
    }
    DEV void scales(int s[2], const uint32_t *w, int sub, int g)
    {
        const uint32_t v = two_bytes(w, 40, sub * 16 + 2 * g);
        s[0] = (int) (v & 63), s[1] = (int) (v >> 8 & 63);
    }
};

template <class P, class Book> struct PackK4Book : Pack256<35, false, true> {
    enum { BYTES = 0, SHIFT = 0 };
    DEV void fragments(uint32_t a[2][4], const uint32_t *w, int p, int g, int t)
    {
        uint32_t q[4];
        pair_words(q, w, 8 * p, g, t);
        UNROLL
        for (int i = 0; i < 4; i++) book_values<Book>(&a[0][i], &a[1][i], q[i]);
    }
    DEV void scales(int s[2], const uint32_t *w, int sub, int g)
    {
        const uint32_t v = two_bytes(w, 32, sub * 16 + 2 * g);
        s[0] = (int8_t) v, s[1] = (int8_t) (v >> 8);
    }
    template <int MW, int NT, class Rows>
    DEV void sums(int isum[MW][NT][4], const uint32_t *w, int, const Rows &x, int lane)
    {
        sums_of_32<P, MW, NT>(isum, w, x, lane);
    }
};
struct PackK4X : PackK4Book<PackK4X, BookIq4> {};  /* IQ4_XS */
struct PackIq3xxs : PackK4Book<PackIq3xxs, BookIq3xxs> {};
struct PackIq3s : PackK4Book<PackIq3s, BookIq3s> {};

/* K6 and K3: a scale per 16 columns, half a fragment each; SHIFT: what sums are too large by. P has fragments(a, w, p,
 * g, t): words of sub-blocks 2 p and 2 p + 1, of the two rows. */
template <class P, int LINES, bool FLOATS, int SHIFT> struct Pack16s : Pack256<LINES, false, FLOATS> {
    template <int MW, int NT, class Rows>
    DEV void sums(int isum[MW][NT][4], const uint32_t *w, int, const Rows &x, int lane)
    {
        const int g = lane >> 2, t = lane & 3;
        clear_sums<MW, NT>(isum);
        enum { STEPS = Rows::ROLLED && MW * NT > 2 ? 1 : 8 };
        UNROLL_BY(STEPS)
        for (int p = 0; p < 8; p++) {
            uint2 v[NT];
            codes_of<NT>(v, x, p);
            UNROLL
            for (int m = 0; m < MW; m++) {
                const uint32_t *wm = w + m * LINES * LINE_WORDS;
                const uint32_t s = word_of(wm, LINES - 5 + (p >> 1), p & 1, g);
                uint32_t a[2][2];
                P::fragments(a, wm, p, g, t);
                UNROLL
                for (int h = 0; h < 2; h++)
                    UNROLL
                    for (int j = 0; j < NT; j++) {
                        int d[4] = { 0, 0, 0, 0 };
                        mma_16x8x16(d, a[h], h ? v[j].y : v[j].x);
                        add_scaled(isum[m][j], d, (int8_t) (s >> 8 * h), (int8_t) (s >> (16 + 8 * h)));
                    }
            }
        }
        shift_sums<MW, NT, SHIFT>(isum);
    }
};

struct PackK6 : Pack16s<PackK6, 53, false, 2> {
    /* codes - 32, times 4 */
    DEV void fragments(uint32_t a[2][2], const uint32_t *w, int p, int g, int t)
    {
        const uint32_t up = field_up(t), top_bits = tops();
        uint32_t q[2], top[2];
        lane_words(q, w, 4 * p, g, t);
        UNROLL
        for (int h = 0; h < 2; h++) {
            row_words(top, w, 32 + 2 * p + h, g);
            UNROLL
            for (int r = 0; r < 2; r++) {
                const uint32_t low = ((h ? q[r] >> 2 : q[r] << 2) & 0x3c3c3c3cu) | top_bits;
                a[h][r] = low ^ (top[r] * up & 0xc0c0c0c0u);
            }
        }
    }
};

struct PackK3 : Pack16s<PackK3, 29, true, 5> {
    /* codes - 4, times 32 */
    DEV void fragments(uint32_t a[2][2], const uint32_t *w, int p, int g, int t)
    {
        uint32_t third[2], low[2];
        row_words(third, w, 16 + p, g);
        UNROLL
        for (int h = 0; h < 2; h++) {
            row_words(low, w, 2 * p + h, g);
            UNROLL
            for (int r = 0; r < 2; r++)
                a[h][r] = ((low[r] >> 2 * t << 5 & 0x60606060u) | tops()) ^
                          (third[r] >> 2 * t << (7 - h) & 0x80808080u);
        }
    }
};

struct PackK3X : Pack16s<PackK3X, 29, true, 0> {   /* IQ2_*: their codebook */
    DEV void fragments(uint32_t a[2][2], const uint32_t *w, int p, int g, int t)
    {
        uint32_t third[2], low[2];
        row_words(third, w, 16 + p, g);
        UNROLL
        for (int h = 0; h < 2; h++) {
            row_words(low, w, 2 * p + h, g);
            UNROLL
            for (int r = 0; r < 2; r++) {
                const uint32_t codes = (low[r] >> 2 * t & 0x03030303u) | (third[r] >> (2 * t + h) << 2 & 0x04040404u);
                a[h][r] = byte_perm(0x002b1908u, 0x00d5e7f8u, byte_perm(codes | codes >> 4, 0, 0x4420));
            }
        }
    }
};

/* Codes of two bits times scales of four fit a byte: no products after the matrix instruction. */
struct PackK2 : Pack256<21, true> {
    /* Scale and minimum of a sub-block, a byte of each of the two rows. */
    DEV uint32_t both(const uint32_t *w, int sub, int g)
    {
        return ((const half_word *) (w + half_line(16 + (sub >> 2), sub >> 1 & 1)))[(sub & 1) * 8 + g];
    }
    DEV void mins(uint32_t min[2], const uint32_t *w, int g, int t)
    {
        min[0] = min[1] = 0;
        UNROLL
        for (int i = 0; i < 4; i++) {
            const uint32_t v = both(w, 4 * t + i, g);
            min[0] |= (v >> 4 & 15) << 8 * i, min[1] |= v >> 12 << 8 * i;
        }
    }
    template <int MW, int NT, class Rows>
    DEV void sums(int isum[MW][NT][4], const uint32_t *w, int, const Rows &x, int lane)
    {
        const int g = lane >> 2, t = lane & 3;
        clear_sums<MW, NT>(isum);
        enum { STEPS = Rows::ROLLED && MW * NT > 2 ? 1 : 8 };
        UNROLL_BY(STEPS)
        for (int p = 0; p < 8; p++) {
            uint2 v[NT];
            codes_of<NT>(v, x, p);
            UNROLL
            for (int m = 0; m < MW; m++) {
                uint32_t a[4];
                UNROLL
                for (int h = 0; h < 2; h++) {
                    const uint32_t v = both(w + m * WORDS, 2 * p + h, g);
                    uint32_t codes[2];
                    row_words(codes, w + m * WORDS, 2 * p + h, g);
                    a[2 * h] = (codes[0] >> 2 * t & 0x03030303u) * (v & 15);
                    a[2 * h + 1] = (codes[1] >> 2 * t & 0x03030303u) * (v >> 8 & 15);
                }
                UNROLL
                for (int j = 0; j < NT; j++) {
                    const uint32_t b[2] = { v[j].x, v[j].y };
                    mma_16x8x32(isum[m][j], a, b);
                }
            }
        }
    }
};

/* ---- blocks of 32: four to a unit ---- */

/* LINES of codes; PLANES of halves (of NVFP4 twice as many bytes), d and for two also m, behind all codes of a group;
 * SHIFT: what sums are too large by. P has fragment(a, w, block, g, t), and scale_of where d is no half. */
template <class P, int LINES, int PLANES, int SHIFT> struct Pack32 : NoMins {
    enum { SCALES = 4, CHUNKS = 1, MINS = 0, ROW_SUMS = PLANES == 2,
           CODES = SCALES * LINES * LINE_WORDS, WORDS = CODES + PLANES * 32 };
    DEV float scale_of(uint32_t half) { return f32_of_half(half); }
    DEV size_t plane_bytes(int blocks) { return ((size_t) blocks * 32 + 63) / 64 * 64; }
    DEV size_t group_bytes(int blocks)
    {
        return (size_t) blocks * LINES * LINE_BYTES + PLANES * plane_bytes(blocks);
    }
    struct Source { const uint8_t *lines, *plane; };           /* plane: of the first 8 PLANES threads */
    DEV Source source(const uint8_t *group, int blocks, int unit, int at)
    {
        const size_t first = (size_t) unit * SCALES;
        return Source{group + first * LINES * LINE_BYTES + 16 * at, group + (size_t) blocks * LINES * LINE_BYTES +
                      first * 32 + (at >> 3) * plane_bytes(blocks) + 16 * (at & 7)};
    }
    DEV void skip(Source &s, int units)
    {
        s.lines += units * SCALES * LINES * LINE_BYTES, s.plane += units * SCALES * 32;
    }
    template <int STEP> DEV void stage(uint32_t *to, const Source &from, int left, int at)
    {
        stage_lines<CODES, STEP>(to, from.lines, (left < SCALES ? left : SCALES) * LINES * LINE_WORDS, at);
        if (at < 8 * PLANES && (at & 7) < 2 * left) copy16_async(to + CODES + 4 * at, from.plane);
    }
    template <int MW, int NT, class Rows>
    DEV void sums(int isum[MW][NT][4], const uint32_t *w, int block, const Rows &x, int lane)
    {
        uint2 v[NT];
        codes_of<NT>(v, x, 0);
        UNROLL
        for (int m = 0; m < MW; m++) {
            uint32_t a[4];
            P::fragment(a, w + m * WORDS, block, lane >> 2, lane & 3);
            UNROLL
            for (int j = 0; j < NT; j++) {
                const uint32_t b[2] = { v[j].x, v[j].y };
                int d[4] = { 0, 0, 0, 0 };
                mma_16x8x32(d, a, b);
                UNROLL
                for (int i = 0; i < 4; i++) isum[m][j][i] = d[i] >> SHIFT;
            }
        }
    }
    DEV float finish(float acc, const uint32_t *w, int block, int row, int isum, int qsum, float da)
    {
        const half_word *d = (const half_word *) (w + CODES) + 16 * block + row;
        acc = f32_fma(f32_mul(P::scale_of(d[0]), da), f32_of_int(isum), acc);
        return PLANES == 2 ? f32_fma(f32_mul(f32_of_half(d[64]), da), f32_of_int(qsum), acc) : acc;
    }
};

struct Pack8 : Pack32<Pack8, 8, 1, 0> {            /* Q8_0: codes + 128 */
    DEV void fragment(uint32_t a[4], const uint32_t *w, int block, int g, int t)
    {
        pair_words(a, w, 8 * block, g, t);
        UNROLL
        for (int i = 0; i < 4; i++) a[i] ^= 0x80808080u;
    }
};

struct Pack4 : Pack32<Pack4, 4, 1, 4> {            /* Q4_0: codes + 8 */
    DEV void fragment(uint32_t a[4], const uint32_t *w, int block, int g, int t)
    {
        uint32_t q[2];
        lane_words(q, w, 4 * block, g, t);
        UNROLL
        for (int r = 0; r < 2; r++) {
            a[r] = (q[r] << 4 & 0xf0f0f0f0u) ^ 0x80808080u;
            a[2 + r] = (q[r] & 0xf0f0f0f0u) ^ 0x80808080u;
        }
    }
};

struct Pack4M : Pack32<Pack4M, 4, 2, 0> {          /* Q4_1 */
    DEV void fragment(uint32_t a[4], const uint32_t *w, int block, int g, int t)
    {
        uint32_t q[2];
        lane_words(q, w, 4 * block, g, t);
        UNROLL
        for (int r = 0; r < 2; r++) a[r] = q[r] & 0x0f0f0f0fu, a[2 + r] = q[r] >> 4 & 0x0f0f0f0fu;
    }
};

template <class P, class Book> struct PackBook : Pack32<P, 4, 1, 0> {
    DEV void fragment(uint32_t a[4], const uint32_t *w, int block, int g, int t)
    {
        uint32_t q[2];
        lane_words(q, w, 4 * block, g, t);
        UNROLL
        for (int r = 0; r < 2; r++) book_values<Book>(&a[r], &a[2 + r], q[r]);
    }
};

struct Pack4X : PackBook<Pack4X, BookIq4> {};      /* IQ4_NL */

struct Pack4F : PackBook<Pack4F, BookFp4> {        /* MXFP4 */
    DEV float scale_of(uint32_t bf16) { return f32_of_bits(bf16 << 16); }
};

/* NVFP4: a scale per 16 columns, a byte each. Sums of 16 fit 16 bits, at most 12 * 127 * 16: those of the lower columns
 * are the lower half of a block's isum. */
struct Pack4N : PackBook<Pack4N, BookFp4> {
    template <int MW, int NT, class Rows>
    DEV void sums(int isum[MW][NT][4], const uint32_t *w, int block, const Rows &x, int lane)
    {
        uint2 v[NT];
        codes_of<NT>(v, x, 0);
        UNROLL
        for (int m = 0; m < MW; m++) {
            uint32_t a[4];
            fragment(a, w + m * WORDS, block, lane >> 2, lane & 3);
            UNROLL
            for (int j = 0; j < NT; j++) {
                int lower[4] = { 0, 0, 0, 0 }, upper[4] = { 0, 0, 0, 0 };
                mma_16x8x16(lower, a, v[j].x);
                mma_16x8x16(upper, a + 2, v[j].y);
                UNROLL
                for (int i = 0; i < 4; i++)
                    isum[m][j][i] = (int) byte_perm((uint32_t) lower[i], (uint32_t) upper[i], 0x5410);
            }
        }
    }
    DEV float finish(float acc, const uint32_t *w, int block, int row, int isum, int, float da)
    {
        const uint8_t *d = (const uint8_t *) (w + CODES) + 32 * block + row;
        acc = f32_fma(f32_mul(f32_of_ue4m3_half(d[0]), da), f32_of_int((int16_t) isum), acc);
        return f32_fma(f32_mul(f32_of_ue4m3_half(d[16]), da), f32_of_int(isum >> 16), acc);
    }
};

/* Five lines to a block: its words of nibbles. */
DEV void fifth_lines(uint32_t q[2], const uint32_t *w, int block, int g, int t)
{
    words_from(q, w, (5 * block + t) * LINE_WORDS, g);
}

/* The fifth bits of vectors t and 4 + t are bits 2 t and 2 t + 1 of each byte of the block's last line. */
DEV void fifth_words(uint32_t f[2], const uint32_t *w, int block, int g, int t)
{
    words_from(f, w, (5 * block + 4) * LINE_WORDS, g);
    f[0] >>= 2 * t, f[1] >>= 2 * t;
}

struct Pack5 : Pack32<Pack5, 5, 1, 3> {            /* Q5_0: codes + 16 */
    DEV void fragment(uint32_t a[4], const uint32_t *w, int block, int g, int t)
    {
        uint32_t q[2], fifth[2];
        fifth_lines(q, w, block, g, t);
        fifth_words(fifth, w, block, g, t);
        UNROLL
        for (int r = 0; r < 2; r++) {
            a[r] = ((q[r] << 3 & 0x78787878u) | tops()) ^ (fifth[r] << 7 & 0x80808080u);
            a[2 + r] = ((q[r] >> 1 & 0x78787878u) | tops()) ^ (fifth[r] << 6 & 0x80808080u);
        }
    }
};

struct Pack5M : Pack32<Pack5M, 5, 2, 0> {          /* Q5_1 */
    DEV void fragment(uint32_t a[4], const uint32_t *w, int block, int g, int t)
    {
        uint32_t q[2], fifth[2];
        fifth_lines(q, w, block, g, t);
        fifth_words(fifth, w, block, g, t);
        UNROLL
        for (int r = 0; r < 2; r++) {
            a[r] = (q[r] & 0x0f0f0f0fu) | (fifth[r] << 4 & 0x10101010u);
            a[2 + r] = (q[r] >> 4 & 0x0f0f0f0fu) | (fifth[r] << 3 & 0x10101010u);
        }
    }
};

#endif
