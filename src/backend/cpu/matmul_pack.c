#include "backend/cpu/matmul_layout.h"

#include <string.h>
#include <unistd.h>

#include "base/check.h"
#include "format/quant_iq.h"

const Layout matmul_layout[T_COUNT] = {
    [T_F32] = {PACK_F32, 1, 1, 0, 0},      [T_F16] = {PACK_16, 1, 0, 0, 0},     [T_BF16] = {PACK_16, 1, 0, 0, 0},
    [T_I32] = {PACK_NONE, 0, 0, 0, 0},          [T_TQ3_0] = {PACK_NONE, 0, 0, 0, 0},         /* keys and values only */
    [T_Q8_0] = {PACK_8, 32, 8, 1, 128},    [T_Q4_0] = {PACK_4, 32, 4, 1, 8},    [T_Q4_1] = {PACK_4, 32, 4, 2, 0},
    [T_Q5_0] = {PACK_5, 32, 5, 1, 16},     [T_Q5_1] = {PACK_5, 32, 5, 2, 0},    [T_IQ4_NL] = {PACK_4, 32, 4, 1, 128},
    [T_MXFP4] = {PACK_4, 32, 4, 1, 16},    [T_NVFP4] = {PACK_4, 32, 4, 1, 16},
    [T_Q2_K] = {PACK_K2, 256, 21, 0, 0},   [T_Q3_K] = {PACK_K3, 256, 29, 0, 4}, [T_Q4_K] = {PACK_K4, 256, 36, 0, 0},
    [T_Q5_K] = {PACK_K5, 256, 44, 0, 0},
    [T_Q6_K] = {PACK_K6, 256, 53, 0, 32},[T_IQ4_XS] = {PACK_K4X, 256, 35, 0, 128},
    [T_IQ2_XXS] = {PACK_K3, 256, 29, 0, 64},   [T_IQ2_XS] = {PACK_K3, 256, 29, 0, 64},
    [T_IQ2_S] = {PACK_K3, 256, 29, 0, 64},
    [T_IQ3_XXS] = {PACK_K4X, 256, 35, 0, 128}, [T_IQ3_S] = {PACK_K4X, 256, 35, 0, 128},
};

size_t matmul_group_bytes(Type t, int32_t cols)
{
    const Layout *l = &matmul_layout[t];
    if (l->pack == PACK_16) return ((size_t) cols * WEIGHT_GROUP * 2 + LINE - 1) / LINE * LINE;
    int32_t blocks = cols / l->block;
    return (size_t) blocks * (size_t) l->lines * LINE + (size_t) l->planes * plane_bytes(blocks);
}

size_t matmul_packed_bytes(Type t, int32_t rows, int32_t cols)
{
    if (t < 0 || t >= T_COUNT || matmul_layout[t].pack == PACK_NONE || rows < 1 || cols < 1 ||
        cols % type_info(t)->block)
        return 0;
    size_t bytes;
    return check_mul(&bytes, ((size_t) rows + WEIGHT_GROUP - 1) / WEIGHT_GROUP, matmul_group_bytes(t, cols))
           ? bytes : 0;
}

ActForm matmul_act_form(Type t)
{
    return matmul_layout[t].block == 256 ? ACT_Q256 : matmul_layout[t].block == 32 ? ACT_Q32 : ACT_F32;
}

size_t matmul_act_bytes(ActForm form, int32_t n, int32_t cols)
{
    size_t blocks = (size_t) n * (size_t) (cols / (form == ACT_Q256 ? 256 : 32));
    size_t bytes = form == ACT_Q256 ? blocks * sizeof(ActBlock256) : form == ACT_Q32 ? blocks * sizeof(ActBlock32) : 0;
    return (bytes + LINE - 1) / LINE * LINE;
}

size_t matmul_part_bytes(void)
{
    const long least = 384 << 10, most = 1 << 20, half = sysconf(_SC_LEVEL2_CACHE_SIZE) / 2;   /* 0 or -1: unknown */
    return (size_t) (half < least ? least : half > most ? most : half);
}

int32_t matmul_part_rows(ActForm form, int32_t cols, size_t cache)
{
    const size_t row = form == ACT_F32 ? sizeof(float) * (size_t) cols : matmul_act_bytes(form, 1, cols);
    size_t rows = cache / row / 8 * 8;
    return rows < 16 ? 16 : rows > 64 ? 64 : (int32_t) rows;
}

static uint16_t load16(const uint8_t *p) { return (uint16_t) (p[0] | p[1] << 8); }

static inline uint32_t load32(const uint8_t *p)
{
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static void store32(uint8_t *p, uint32_t v) { memcpy(p, &v, sizeof v); }

/* -- into lanes ---------------------------------------------------------------------------------------------------- */

/* A vector holds one word of each of four lanes, a quarter of a group: what is done to a word is done to four of them.
 * A word has four codes or scales in its bytes; masks keep shifted bits within their byte. */
typedef uint32_t Four __attribute__((vector_size(16)));
typedef uint8_t Bytes __attribute__((vector_size(16)));
enum { QUARTER = 4, LOW1 = 0x01010101, LOW2 = 0x03030303, LOW4 = 0x0f0f0f0f };

/* A block of four lanes: their blocks in the file, the bytes from these to the next, and the block's lines, of which
 * they fill quarter q. */
typedef struct { const uint8_t *row[QUARTER]; size_t step[QUARTER]; uint8_t *lines; int q; } Quarter;

/* The first blocks, of `bytes` bytes, of a group of rows. Lanes without a row stay in a block of zeros. */
static void first(Quarter p[WEIGHT_GROUP / QUARTER], uint8_t *group, const uint8_t *row, size_t row_bytes, int lanes,
                  size_t bytes)
{
    static const uint8_t nothing[256];             /* more than any block */
    for (int lane = 0; lane < WEIGHT_GROUP; lane++) {
        Quarter *to = &p[lane / QUARTER];
        to->q = lane / QUARTER;
        to->lines = group;
        to->row[lane % QUARTER] = lane < lanes ? row + (size_t) lane * row_bytes : nothing;
        to->step[lane % QUARTER] = lane < lanes ? bytes : 0;
    }
}

static inline void next(Quarter *p, size_t lines)
{
    for (int i = 0; i < QUARTER; i++) p->row[i] += p->step[i];
    p->lines += lines;
}

static Four words_at(const Quarter *p, size_t at)
{
    return (Four) { load32(p->row[0] + at), load32(p->row[1] + at), load32(p->row[2] + at), load32(p->row[3] + at) };
}

static Four halves_at(const Quarter *p, size_t at)
{
    return (Four) { load16(p->row[0] + at), load16(p->row[1] + at), load16(p->row[2] + at), load16(p->row[3] + at) };
}

/* out: n words (a multiple of 4) of each lane, from byte `at` of its block. */
static inline void words(Four *out, const Quarter *p, size_t at, int n)
{
    for (int w = 0; w < n; w += 4, at += sizeof(Four)) {
        Four r[4];
        for (int i = 0; i < 4; i++) memcpy(&r[i], p->row[i] + at, sizeof r[i]);
        Four a = __builtin_shufflevector(r[0], r[1], 0, 4, 1, 5), b = __builtin_shufflevector(r[2], r[3], 0, 4, 1, 5),
             c = __builtin_shufflevector(r[0], r[1], 2, 6, 3, 7), d = __builtin_shufflevector(r[2], r[3], 2, 6, 3, 7);
        out[w] = __builtin_shufflevector(a, b, 0, 1, 4, 5);
        out[w + 1] = __builtin_shufflevector(a, b, 2, 3, 6, 7);
        out[w + 2] = __builtin_shufflevector(c, d, 0, 1, 4, 5);
        out[w + 3] = __builtin_shufflevector(c, d, 2, 3, 6, 7);
    }
}

/* Exchanges the bits `mask` of b with those `shift` above them in a. */
static inline void exchange(Four *a, Four *b, int shift, uint32_t mask)
{
    const Four differ = (*a >> shift ^ *b) & mask;
    *b ^= differ;
    *a ^= differ << shift;
}

/* The same within words. */
static inline Four exchange_within(Four v, int shift, uint32_t mask)
{
    const Four differ = (v >> shift ^ v) & mask;
    return v ^ differ ^ differ << shift;
}

static inline void put_words(const Quarter *p, int line, Four v)
{
    memcpy(p->lines + line * LINE + p->q * (int) sizeof v, &v, sizeof v);
}

/* The first byte of each lane, then the second of each, and so on: taking bytes of the lower two lanes and of the upper
 * two by turns does it in two steps. */
static inline Four by_byte(Four v)
{
    for (int i = 0; i < 2; i++) {
        const Bytes low = (Bytes) v, high = (Bytes) __builtin_shufflevector(v, v, 2, 3, 2, 3);
        v = (Four) __builtin_shufflevector(low, high, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    }
    return v;
}

/* Likewise halves. */
static inline Four by_half(Four v)
{
    typedef uint16_t Halves __attribute__((vector_size(16)));
    for (int i = 0; i < 2; i++) {
        const Halves low = (Halves) v, high = (Halves) __builtin_shufflevector(v, v, 2, 3, 2, 3);
        v = (Four) __builtin_shufflevector(low, high, 0, 8, 1, 9, 2, 10, 3, 11);
    }
    return v;
}

/* [byte of the word][lane] */
static inline void put_bytes(uint8_t *line, int q, Four v)
{
    v = by_byte(v);
    for (int s = 0; s < 4; s++) store32(line + s * WEIGHT_GROUP + q * QUARTER, v[s]);
}

/* [half of the word][lane] */
static inline void put_halves(const Quarter *p, int line, Four v)
{
    uint8_t *to = p->lines + line * LINE + p->q * 2 * QUARTER;
    v = by_half(v);
    for (int i = 0; i < 4; i++) store32(to + i / 2 * 2 * WEIGHT_GROUP + i % 2 * 4, v[i]);
}

static void put_floats(const Quarter *p, int line, const float d[QUARTER])
{
    memcpy(p->lines + line * LINE + p->q * QUARTER * (int) sizeof *d, d, QUARTER * sizeof *d);
}

/* The half at byte `at` of each lane's block, as a float. */
static void put_float_at(const Quarter *p, int line, size_t at)
{
    float d[QUARTER];
    for (int i = 0; i < QUARTER; i++) d[i] = half_to_float(load16(p->row[i] + at));
    put_floats(p, line, d);
}

/* -- types of 32 --------------------------------------------------------------------------------------------------- */

static void pack_8(const Quarter *p)
{
    Four w[8];
    words(w, p, 2, 8);
    for (int v = 0; v < 8; v++) put_words(p, v, w[v] ^ 0x80808080u);
}

/* The file pairs nibbles as the lines do. */
static void pack_pairs(const Quarter *p, size_t at, int n)
{
    for (int v = 0; v < n; v += 4) {
        Four w[4];
        words(w, p, at + (size_t) v * 4, 4);
        for (int i = 0; i < 4; i++) put_words(p, v + i, w[i]);
    }
}

/* Two blocks. The file pairs columns of the same 16. */
static void pack_nvfp4(const Quarter *p)
{
    Four w[8];
    words(w, p, 4, 8);
    for (int v = 0; v < 8; v += 4) {
        exchange(w + v, w + v + 2, 4, LOW4);
        exchange(w + v + 1, w + v + 3, 4, LOW4);
    }
    for (int v = 0; v < 8; v++) put_words(p, v, w[v]);
}

/* Single bits of 32 values: that of value 16h + 4i + c from there to bit 2i + h of byte c. Each step exchanges two
 * digits of a bit's place, which from (h i1 i0 c1 c0) becomes (c1 i1 i0 h c0), (c1 c0 i0 h i1), (c1 c0 i1 h i0) and
 * (c1 c0 i1 i0 h). */
static inline Four bits_to_bytes(Four v)
{
    v = exchange_within(v, 14, 0x0000cccc);
    v = exchange_within(v, 7, 0x00aa00aa);
    v = exchange_within(v, 3, 0x0a0a0a0a);
    return exchange_within(v, 1, 0x22222222);
}

static void pack_fifth(const Quarter *p, size_t at) { put_words(p, 4, bits_to_bytes(words_at(p, at))); }

/* -- types of 256 -------------------------------------------------------------------------------------------------- */

/* Exchanges the upper nibbles of four vectors with the lower ones of the four behind them: what the file pairs within a
 * sub-block of 32 becomes pairs of two of 16. */
static inline void exchange_nibbles(Four w[8])
{
    for (int i = 0; i < 4; i++) exchange(w + i, w + 4 + i, 4, LOW4);
}

/* Bits 2r of four vectors, of vector i to bits 2i of vector r. */
static inline void transpose_crumbs(Four w[4])
{
    exchange(w, w + 2, 4, LOW4);
    exchange(w + 1, w + 3, 4, LOW4);
    exchange(w, w + 1, 2, 0x33333333);
    exchange(w + 2, w + 3, 2, 0x33333333);
}

/* Two bits of each value, from byte `at` on: word 8h + 4c + i has those of vector i of sub-block 8h + 2r + c, the line
 * of which is behind `line`, at 2r. */
static inline void pack_crumbs(const Quarter *p, int line, size_t at, int n)
{
    for (int v = 0; v < n; v += 4) {
        Four w[4];
        words(w, p, at + (size_t) v * 4, 4);
        transpose_crumbs(w);
        for (int r = 0; r < 4; r++) put_words(p, line + v / 8 * 8 + 2 * r + v / 4 % 2, w[r]);
    }
}

static inline void add32(uint8_t *p, uint32_t v) { store32(p, load32(p) | v); }

/* The 6-bit scales and minima of Q4_K and Q5_K (quant_k4_scale), from line `at`. */
static void pack_k4_scales(const Quarter *p, int at)
{
    const uint32_t low6 = 0x3f3f3f3f, top2 = 0x30303030;
    Four w[4];
    words(w, p, 0, 4);                             /* d and dmin, scales, minima, the rest of both */
    const Four min = (w[3] >> 4 & LOW4) | (w[2] >> 2 & top2);              /* minima 4 to 7 */
    const Four byte[2] = { by_byte(w[1] & low6), by_byte((w[3] & LOW4) | (w[1] >> 2 & top2)) };
    const Four half[2] = { by_half((min & LOW2) << 6), by_half((min >> 2 & LOW2) << 6) };
    /* in the first two lines bits of other quarters' lanes stand beside these */
    if (p->q == 0) memset(p->lines + at * LINE, 0, 2 * LINE);
    for (int i = 0; i < 2; i++) {
        uint8_t *to = p->lines + (at + i) * LINE;
        for (int s = 0; s < 4; s++) add32(to + s * WEIGHT_GROUP + p->q * QUARTER, byte[i][s]);
        for (int s = 0; s < 4; s++)
            add32(to + s / 2 * 2 * WEIGHT_GROUP + p->q * 2 * QUARTER + s % 2 * 4, half[i][s]);
    }
    put_halves(p, at + 2, (w[2] & low6) | (min >> 4 & LOW2) << 6);
    put_halves(p, at + 3, w[0]);
}

/* Each byte, 0 to 63, less 32. */
static inline Four less32(Four v) { return ((v | 0x80808080u) - 0x20202020u) ^ 0x80808080u; }

/* Four nibbles, the low half of each word, to its bytes. */
static inline Four nibbles_to_bytes(Four v)
{
    v = (v | v << 8) & 0x00ff00ff;
    return (v | v << 4) & LOW4;
}

static void pack_iq4_xs(const Quarter *p)
{
    for (int v = 0; v < 32; v += 8) {
        Four w[8];
        words(w, p, 8 + (size_t) v * 4, 8);
        exchange_nibbles(w);
        for (int i = 0; i < 8; i++) put_words(p, v + i, w[i]);
    }
    const Four low = words_at(p, 4), top = words_at(p, 0) >> 16;           /* four bits and two of each scale */
    for (int i = 0; i < 2; i++) {
        Four high = top >> 8 * i & 0xff;
        high = (high | high << 12) & 0x000f000f;
        high = (high | high << 6) & LOW2;
        put_bytes(p->lines + (32 + i) * LINE, p->q, less32(nibbles_to_bytes(low >> 16 * i & 0xffff) | high << 4));
    }
    put_float_at(p, 34, 0);
}

static void pack_q6_k(const Quarter *p)
{
    for (int c = 0; c < 4; c++) {                  /* low bits of 32 columns from 128 (c / 2) + 32 (c % 2) and 64 on */
        Four w[8];
        words(w, p, 32 * (size_t) c, 8);
        exchange_nibbles(w);
        for (int i = 0; i < 8; i++) put_words(p, c / 2 * 16 + c % 2 * 4 + i / 4 * 8 + i % 4, w[i]);
    }
    pack_crumbs(p, 32, 128, 16);
    Four scale[4];
    words(scale, p, 192, 4);
    for (int s = 0; s < 4; s++) put_halves(p, 48 + s, scale[s]);
    put_halves(p, 52, halves_at(p, 208));
}

static void pack_q3_k(const Quarter *p)
{
    pack_crumbs(p, 0, 32, 16);
    /* the third bit is clear where the code is negative; that of vector i of sub-block 2P + c is bit P of word 4c + i,
     * which is moved to 2i + c for the transposition of eight by eight bits */
    Four w[8], bit[8];
    words(w, p, 0, 8);
    for (int i = 0; i < 8; i++) bit[i % 4 * 2 + i / 4] = w[i];
    for (int i = 0; i < 4; i++) exchange(bit + i, bit + 4 + i, 4, LOW4);
    for (int i = 0; i < 4; i++) exchange(bit + i / 2 * 4 + i % 2, bit + i / 2 * 4 + i % 2 + 2, 2, 0x33333333);
    for (int i = 0; i < 8; i += 2) exchange(bit + i, bit + i + 1, 1, 0x55555555);
    for (int i = 0; i < 8; i++) put_words(p, 16 + i, bit[i]);
    const Four s[2] = { words_at(p, 96), words_at(p, 100) }, top = words_at(p, 104);
    for (int k = 0; k < 4; k++) {
        const Four scale = (s[k % 2] >> 4 * (k / 2) & LOW4) | (top >> 2 * k & LOW2) << 4;
        put_halves(p, 24 + k, less32(scale));
    }
    put_float_at(p, 28, 108);
}

static void pack_q2_k(const Quarter *p)
{
    pack_crumbs(p, 0, 16, 16);
    Four scale[4];
    words(scale, p, 0, 4);
    for (int s = 0; s < 4; s++) put_bytes(p->lines + (16 + s) * LINE, p->q, scale[s]);
    put_halves(p, 20, words_at(p, 80));
}

/* -- types from grids: an entry for several values becomes their indices in the codebook --------------------------- */

/* Four times seven signs to the bytes of a word, each with an eighth that makes the number of negative values even. */
static inline Four even_signs(Four v)
{
    v = (v & 0x3fff) | (v << 2 & 0x3fff0000);
    v = (v & 0x007f007f) | (v << 1 & 0x7f007f00);
    Four odd = v ^ v >> 4;
    odd ^= odd >> 2;
    odd ^= odd >> 1;
    return v | (odd & LOW1) << 7;
}

/* Four scales of four bits, which stand for odd numbers. */
static inline Four odd_scales(Four nibbles) { return nibbles_to_bytes(nibbles) << 1 | LOW1; }

static inline uint32_t entry_pair(Type t, const uint8_t *b, int low, int high)
{
    return quant_iq_entry(t, b, low) | (uint32_t) quant_iq_entry(t, b, high) << 16;
}

/* IQ2_XXS has two words for each 32 values: the indices of four entries; seven signs of each, and a scale. The others
 * have a scale for each 16 values. */
static inline __attribute__((always_inline)) void pack_iq2(const Quarter *p, const Type t)
{
    Four entries[16];                              /* of a sub-block */
    float d[QUARTER];
    for (int i = 0; i < QUARTER; i++) {
#pragma GCC unroll 16
        for (int s = 0; s < 16; s++)
            entries[s][i] = entry_pair(t, p->row[i], 2 * s, 2 * s + 1);
        d[i] = quant_iq_d(t, p->row[i]);
    }
    for (int s = 0; s < 16; s++)                   /* two bits of value 4i + c to 2i of byte c */
        put_words(p, s, exchange_within(exchange_within(entries[s], 12, 0x0000f0f0), 6, 0x00cc00cc));
    Four w[16], sign[8], scale[4];
    if (t == T_IQ2_XXS) {
        words(w, p, 2, 16);
        for (int i = 0; i < 8; i++) sign[i] = even_signs(w[2 * i + 1] & 0x0fffffff);
        for (int i = 0; i < 4; i++) {
            const Four two = (w[4 * i + 1] >> 28 | w[4 * i + 3] >> 28 << 16) << 1 | 0x00010001;
            scale[i] = two | two << 8;
        }
    } else {
        if (t == T_IQ2_XS) {
            words(w, p, 2, 16);
            for (int i = 0; i < 8; i++) {
                const Four a = w[2 * i] >> 9 & 0x007f007f, b = w[2 * i + 1] >> 9 & 0x007f007f;
                sign[i] = even_signs((a & 127) | a >> 9 | (b & 127) << 14 | b >> 16 << 21);
            }
        } else {
            words(sign, p, 34, 8);
        }
        for (int i = 0; i < 4; i++)
            scale[i] = odd_scales(words_at(p, (t == T_IQ2_XS ? 66 : 74) + i / 2 * 4) >> i % 2 * 16 & 0xffff);
    }
    for (int i = 0; i < 8; i++) put_words(p, 16 + i, bits_to_bytes(sign[i]));
    for (int i = 0; i < 4; i++) put_halves(p, 24 + i, scale[i]);
    put_floats(p, 28, d);
}

/* Three bits of each of four values to the bytes of a word. */
static inline Four threes_to_bytes(Four v)
{
    v = (v | v << 10) & 0x003f003f;
    return (v | v << 5) & 0x07070707;
}

static inline __attribute__((always_inline)) void pack_iq3(const Quarter *p, const Type t)
{
    Four entries[32];                              /* of the vectors in a line */
    float d[QUARTER];
    for (int i = 0; i < QUARTER; i++) {
#pragma GCC unroll 32
        for (int v = 0; v < 32; v++) {
            const int e = v / 8 * 16 + v % 8;
            entries[v][i] = entry_pair(t, p->row[i], e, e + 8);
        }
        d[i] = quant_iq_d(t, p->row[i]);
    }
    Four sign[8], nibbles = { 0 };
    if (t == T_IQ3_XXS) {
        words(sign, p, 66, 8);
        for (int i = 0; i < 8; i++) {
            nibbles |= sign[i] >> 28 << 4 * i;
            sign[i] = even_signs(sign[i] & 0x0fffffff);
        }
    } else {
        words(sign, p, 74, 8);
        nibbles = words_at(p, 106);
    }
    for (int i = 0; i < 8; i += 2) {
        /* vector j's at bit 2 (j % 4) + j / 4, of both sub-blocks; then of half of the vectors, the second sub-block's
         * four bits above the first's */
        sign[i] = bits_to_bytes(sign[i]);
        sign[i + 1] = bits_to_bytes(sign[i + 1]);
        exchange(sign + i, sign + i + 1, 4, LOW4);
        for (int j = 0; j < 8; j++) {
            const Four v = entries[4 * i + j];
            put_words(p, 4 * i + j, threes_to_bytes(v & 0xfff) | threes_to_bytes(v >> 16) << 4 |
                      (sign[i + j % 4 / 2] >> (j % 2 * 2 + j / 4) & 0x11111111) << 3);
        }
    }
    for (int i = 0; i < 2; i++) put_bytes(p->lines + (32 + i) * LINE, p->q, odd_scales(nibbles >> 16 * i & 0xffff));
    put_floats(p, 34, d);
}

static void pack_quarter(const Quarter *p, Type t)
{
    switch (t) {
    case T_Q8_0: pack_8(p); break;
    case T_Q4_0:
    case T_IQ4_NL: pack_pairs(p, 2, 4); break;
    case T_MXFP4: pack_pairs(p, 1, 4); break;
    case T_NVFP4: pack_nvfp4(p); break;
    case T_Q4_1: pack_pairs(p, 4, 4); break;
    case T_Q5_0:
        pack_pairs(p, 6, 4);
        pack_fifth(p, 2);
        break;
    case T_Q5_1:
        pack_pairs(p, 8, 4);
        pack_fifth(p, 4);
        break;
    case T_Q2_K: pack_q2_k(p); break;
    case T_Q3_K: pack_q3_k(p); break;
    case T_Q4_K:
        pack_pairs(p, 16, 32);
        pack_k4_scales(p, 32);
        break;
    case T_Q5_K:
        pack_pairs(p, 48, 32);
        pack_crumbs(p, 32, 16, 8);
        pack_k4_scales(p, 40);
        break;
    case T_Q6_K: pack_q6_k(p); break;
    case T_IQ4_XS: pack_iq4_xs(p); break;
    case T_IQ2_XXS: pack_iq2(p, T_IQ2_XXS); break;
    case T_IQ2_XS: pack_iq2(p, T_IQ2_XS); break;
    case T_IQ2_S: pack_iq2(p, T_IQ2_S); break;
    case T_IQ3_XXS: pack_iq3(p, T_IQ3_XXS); break;
    default: pack_iq3(p, T_IQ3_S); break;
    }
}

/* The scales of the types of 32, and what stands beside them, in planes behind the lines of all blocks. */
static void pack_planes(const Quarter *p, uint8_t *plane, Type t, int32_t blocks, int32_t block)
{
    const Layout *l = &matmul_layout[t];
    plane += (size_t) block * WEIGHT_GROUP * 2;
    if (t == T_NVFP4) {
        const Bytes scale = (Bytes) words_at(p, 0);
        put_bytes(plane, p->q, (Four) (scale & 0x7f & (Bytes) (scale != 0x7f)));           /* quant_ue4m3 */
        return;
    }
    plane += p->q * QUARTER * 2;
    for (int k = 0; k < l->planes; k++, plane += plane_bytes(blocks)) {
        for (int i = 0; i < QUARTER; i++) {
            const uint16_t d = t == T_MXFP4 ? quant_e8m0_half_bf16(p->row[i][0]) : load16(p->row[i] + 2 * k);
            memcpy(plane + 2 * i, &d, sizeof d);
        }
    }
}

static void pack_blocks(uint8_t *group, Type t, const uint8_t *row, size_t row_bytes, int lanes, int32_t blocks)
{
    const Layout *l = &matmul_layout[t];
    const int32_t together = type_info(t)->block / l->block;   /* blocks that are one in the file */
    const size_t lines = (size_t) l->lines * LINE;
    uint8_t *plane = group + (size_t) blocks * lines;
    memset(plane, 0, (size_t) l->planes * plane_bytes(blocks));
    Quarter p[WEIGHT_GROUP / QUARTER];
    first(p, group, row, row_bytes, lanes, (size_t) type_info(t)->bytes);
    /* the lines of a block stay in cache while its lanes are filled */
    for (int32_t b = 0; b < blocks; b += together) {
        for (int q = 0; q < WEIGHT_GROUP / QUARTER; q++) {
            pack_quarter(&p[q], t);
            pack_planes(&p[q], plane, t, blocks, b);
            next(&p[q], lines * (size_t) together);
        }
    }
}

/* Wider types: [column][lane]. Four lines are 16 bytes of each lane; what is left of the columns goes one by one. */
static void pack_values(uint8_t *group, Type t, const uint8_t *row, size_t row_bytes, int lanes, int32_t cols)
{
    const size_t size = (size_t) type_info(t)->bytes;
    const int32_t each = (int32_t) (sizeof(Four) / size), whole = cols / each * each;
    Quarter p[WEIGHT_GROUP / QUARTER];
    first(p, group, row, row_bytes, lanes, sizeof(Four));
    for (int32_t k = 0; k < whole; k += each) {
        for (int q = 0; q < WEIGHT_GROUP / QUARTER; q++) {
            Four w[4];
            words(w, &p[q], 0, 4);
            for (int v = 0; v < 4; v++) {
                if (size == 4) put_words(&p[q], v, w[v]);
                else put_halves(&p[q], v, w[v]);
            }
            next(&p[q], 4 * LINE);
        }
    }
    const size_t done = (size_t) whole * WEIGHT_GROUP * size;
    memset(group + done, 0, matmul_group_bytes(t, cols) - done);
    for (int lane = 0; lane < lanes; lane++, row += row_bytes) {
        for (int32_t k = whole; k < cols; k++)
            memcpy(group + ((size_t) k * WEIGHT_GROUP + (size_t) lane) * size, row + (size_t) k * size, size);
    }
}

void matmul_pack(void *dst, Type t, const void *src, int32_t rows, int32_t cols, int32_t group0, int32_t group1)
{
    const size_t group_bytes = matmul_group_bytes(t, cols), row_bytes = type_row_bytes(t, cols);
    const int32_t block = matmul_layout[t].block;
    for (int32_t g = group0; g < group1; g++) {
        uint8_t *group = (uint8_t *) dst + (size_t) g * group_bytes;
        int lanes = rows - g * WEIGHT_GROUP < WEIGHT_GROUP ? rows - g * WEIGHT_GROUP : WEIGHT_GROUP;
        const uint8_t *row = (const uint8_t *) src + (size_t) g * WEIGHT_GROUP * row_bytes;
        if (block == 1) pack_values(group, t, row, row_bytes, lanes, cols);
        else pack_blocks(group, t, row, row_bytes, lanes, cols / block);
    }
}

/* -- and back ------------------------------------------------------------------------------------------------------ */

static void get_nibbles(int8_t *code, const uint8_t *lines, int vectors, int lane)
{
    for (int i = 0; i < vectors; i++) {
        for (int c = 0; c < 4; c++) {
            uint8_t byte = lines[i * LINE + lane * 4 + c];
            code[4 * i + c] = byte & 15;
            code[4 * (vectors + i) + c] = (int8_t) (byte >> 4);
        }
    }
}

static void get_high(int8_t *code, const uint8_t *line, int width, int step, int at, int lane)
{
    for (int i = 0; i < 4; i++) {
        for (int c = 0; c < 4; c++) {
            code[4 * i + c] = (int8_t) (code[4 * i + c] |
                                        ((line[lane * 4 + c] >> (step * i + at)) & ((1 << width) - 1)) << 4);
        }
    }
}

static int get_crumb(const uint8_t *lines, int i, int lane)
{
    return lines[i / 16 * LINE + lane * 4 + i % 4] >> 2 * (i / 4 % 4) & 3;
}

static void get_k4_scales(WeightBlock *w, const uint8_t *lines, int lane)
{
    for (int s = 0; s < 8; s++) {
        int at = s / 2 % 2 * 32 + lane * 2 + s % 2;
        int min = s < 4 ? lines[2 * LINE + at] & 63
                        : lines[at] >> 6 | lines[LINE + at] >> 6 << 2 | lines[2 * LINE + at] >> 6 << 4;
        w->scale[2 * s] = w->scale[2 * s + 1] = lines[s * WEIGHT_GROUP + lane] & 63;
        w->min[2 * s] = w->min[2 * s + 1] = (int16_t) min;
    }
}

static void get_halves(WeightBlock *w, const uint8_t *line, int lane)
{
    w->d = half_to_float(load16(line + 2 * lane));
    w->dmin = half_to_float(load16(line + 2 * WEIGHT_GROUP + 2 * lane));
}

static void get_float(WeightBlock *w, const uint8_t *line, int lane)
{
    memcpy(&w->d, line + (int) sizeof w->d * lane, sizeof w->d);
    w->dmin = 0;
}

void matmul_read_block(WeightBlock *w, Type t, const uint8_t *group, int32_t cols, int32_t block, int32_t lane)
{
    const Layout *l = &matmul_layout[t];
    const uint8_t *b = group + (size_t) block * (size_t) l->lines * LINE;
    const int8_t *book = quant_book(t);
    if (l->block == 32) {
        int32_t blocks = cols / 32;
        const uint8_t *scales = group + (size_t) blocks * (size_t) l->lines * LINE + (size_t) block * WEIGHT_GROUP * 2,
                      *d = scales + 2 * lane;
        w->d = w->upper = t == T_MXFP4 ? bf16_to_float(load16(d)) : half_to_float(load16(d));
        w->dmin = l->planes == 2 ? half_to_float(load16(d + plane_bytes(blocks))) : 0;
        if (t == T_NVFP4) {
            w->d = quant_ue4m3_half(scales[lane]);
            w->upper = quant_ue4m3_half(scales[WEIGHT_GROUP + lane]);
        }
    }
    switch (l->pack) {
    case PACK_8:
        for (int i = 0; i < 32; i++) w->code[i] = (int8_t) (b[i / 4 * LINE + lane * 4 + i % 4] ^ 0x80);
        break;
    case PACK_4:
    case PACK_5:
        get_nibbles(w->code, b, 4, lane);
        if (l->pack == PACK_5) {
            get_high(w->code, b + 4 * LINE, 1, 2, 0, lane);
            get_high(w->code + 16, b + 4 * LINE, 1, 2, 1, lane);
        }
        if (book) {
            for (int i = 0; i < 32; i++) w->code[i] = book[w->code[i]];
        } else {
            for (int i = 0; i < 32; i++) w->code[i] = (int8_t) (w->code[i] - l->offset);
        }
        break;
    case PACK_K4:
    case PACK_K5:
    case PACK_K4X:
        for (int p = 0; p < 4; p++) get_nibbles(w->code + 64 * p, b + p * 8 * LINE, 8, lane);
        if (l->pack == PACK_K4X) {
            for (int i = 0; i < 256; i++) w->code[i] = book[w->code[i]];
            for (int s = 0; s < 16; s++) w->scale[s] = (int8_t) b[32 * LINE + s / 2 * WEIGHT_GROUP + lane];
            get_float(w, b + 34 * LINE, lane);
            break;
        }
        if (l->pack == PACK_K5) {
            for (int h = 0; h < 8; h++) {
                int8_t *code = w->code + 64 * (h / 2) + 16 * (h % 2);
                get_high(code, b + (32 + h) * LINE, 1, 2, 0, lane);
                get_high(code + 32, b + (32 + h) * LINE, 1, 2, 1, lane);
            }
        }
        get_k4_scales(w, b + (l->lines - 4) * LINE, lane);
        get_halves(w, b + (l->lines - 1) * LINE, lane);
        break;
    case PACK_K6:
        for (int p = 0; p < 8; p++) get_nibbles(w->code + 32 * p, b + p * 4 * LINE, 4, lane);
        for (int s = 0; s < 16; s++) {
            get_high(w->code + 16 * s, b + (32 + s) * LINE, 2, 2, 0, lane);
            w->scale[s] = (int8_t) b[48 * LINE + s / 2 * 32 + lane * 2 + s % 2];
        }
        for (int i = 0; i < 256; i++) w->code[i] = (int8_t) (w->code[i] - 32);
        get_halves(w, b + 52 * LINE, lane);
        break;
    case PACK_K3:
        for (int i = 0; i < 256; i++) {
            int low = get_crumb(b, i, lane),
                high = b[(16 + i / 32) * LINE + lane * 4 + i % 4] >> (2 * (i / 4 % 4) + i / 16 % 2) & 1;
            w->code[i] = (int8_t) (book ? book[low | high << 2] : (low | high << 2) - l->offset);
        }
        for (int s = 0; s < 16; s++) w->scale[s] = (int8_t) b[24 * LINE + s / 2 * 32 + lane * 2 + s % 2];
        get_float(w, b + 28 * LINE, lane);
        break;
    default:                                       /* PACK_K2 */
        for (int i = 0; i < 256; i++) w->code[i] = (int8_t) get_crumb(b, i, lane);
        for (int s = 0; s < 16; s++) {
            uint8_t both = b[16 * LINE + s * WEIGHT_GROUP + lane];
            w->scale[s] = both & 15;
            w->min[s] = both >> 4;
        }
        get_halves(w, b + 20 * LINE, lane);
        break;
    }
}

static bool has_min(Type t) { return t == T_Q2_K || t == T_Q4_K || t == T_Q5_K; }

void matmul_unpack_row(float *y, Type t, const void *packed, int32_t rows, int32_t cols, int32_t row)
{
    (void) rows;
    const Layout *l = &matmul_layout[t];
    const uint8_t *group = (const uint8_t *) packed + (size_t) (row / WEIGHT_GROUP) * matmul_group_bytes(t, cols);
    int lane = row % WEIGHT_GROUP;
    if (l->block == 1) {
        for (int32_t k = 0; k < cols; k++) {
            size_t at = (size_t) k * WEIGHT_GROUP + (size_t) lane;
            if (t == T_F32) memcpy(&y[k], group + at * 4, 4);
            else y[k] = t == T_F16 ? half_to_float(load16(group + at * 2)) : bf16_to_float(load16(group + at * 2));
        }
        return;
    }
    for (int32_t b = 0; b < cols / l->block; b++, y += l->block) {
        WeightBlock w;
        matmul_read_block(&w, t, group, cols, b, lane);
        for (int i = 0; i < l->block; i++) {
            float code = (float) w.code[i], scale = (float) w.scale[i / 16];
            if (l->planes == 2) y[i] = w.d * code + w.dmin;
            else if (l->block == 32) y[i] = (i < 16 ? w.d : w.upper) * code;
            else if (has_min(t)) y[i] = w.d * scale * code - w.dmin * (float) w.min[i / 16];
            else y[i] = w.d * scale * code;
        }
    }
}

const MatmulKernels *matmul_kernels(CpuLevel l)
{
    static const MatmulKernels *const kernels[LEVEL_COUNT] = LEVEL_PRODUCT_TABLE(matmul);
    return kernels[l];
}
