#include "backend/cpu/matmul_layout.h"

#include <string.h>
#include <unistd.h>

#include "base/check.h"

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

static uint32_t load32(const uint8_t *p)
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
enum { QUARTER = 4, LOW1 = 0x01010101, LOW2 = 0x03030303, LOW4 = 0x0f0f0f0f };

/* A block of four lanes: their blocks in the file, and the block's lines, of which they fill quarter q. */
typedef struct { const uint8_t *row[QUARTER]; uint8_t *lines; int q; } Quarter;

static Four words_at(const Quarter *p, size_t at)
{
    return (Four) { load32(p->row[0] + at), load32(p->row[1] + at), load32(p->row[2] + at), load32(p->row[3] + at) };
}

static Four halves_at(const Quarter *p, size_t at)
{
    return (Four) { load16(p->row[0] + at), load16(p->row[1] + at), load16(p->row[2] + at), load16(p->row[3] + at) };
}

/* out: n words (a multiple of 4) of each lane, from byte `at` of its block. */
static void words(Four *out, const Quarter *p, size_t at, int n)
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

static void put_words(const Quarter *p, int line, Four v)
{
    memcpy(p->lines + line * LINE + p->q * (int) sizeof v, &v, sizeof v);
}

/* Lines of scales are added to, since bits of several kinds meet in them. */
static void clear(const Quarter *p, int line, int n)
{
    if (p->q == 0) memset(p->lines + line * LINE, 0, (size_t) n * LINE);
}

/* [byte of the word][lane] */
static void add_bytes(const Quarter *p, int line, Four v)
{
    uint8_t *to = p->lines + line * LINE + p->q * QUARTER;
    for (int s = 0; s < 4; s++, to += WEIGHT_GROUP) {
        const Four x = v >> 8 * s & 0xff;
        store32(to, load32(to) | x[0] | x[1] << 8 | x[2] << 16 | x[3] << 24);
    }
}

/* The lower halves, [lane] */
static void add_lower(uint8_t *to, Four v)
{
    const Four x = v & 0xffff;
    store32(to, load32(to) | x[0] | x[1] << 16);
    store32(to + 4, load32(to + 4) | x[2] | x[3] << 16);
}

/* [half of the word][lane] */
static void add_halves(const Quarter *p, int line, Four v)
{
    uint8_t *to = p->lines + line * LINE + p->q * 2 * QUARTER;
    add_lower(to, v);
    add_lower(to + 2 * WEIGHT_GROUP, v >> 16);
}

static void put_floats(const Quarter *p, int line, const float d[QUARTER])
{
    memcpy(p->lines + line * LINE + p->q * QUARTER * (int) sizeof *d, d, QUARTER * sizeof *d);
}

/* The half at byte `at` of each lane's block, as a float. */
static void put_halves(const Quarter *p, int line, size_t at)
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
    Four w[32];
    words(w, p, at, n);
    for (int v = 0; v < n; v++) put_words(p, v, w[v]);
}

/* The low bits of two vectors in one line. */
static Four pair(Four a, Four b) { return (a & LOW4) | (b & LOW4) << 4; }

/* Two blocks. The file pairs columns of the same 16. */
static void pack_nvfp4(const Quarter *p)
{
    Four w[8];
    words(w, p, 4, 8);
    for (int v = 0; v < 8; v++) {
        const Four *a = w + v / 4 * 4 + v % 2;
        put_words(p, v, v % 4 < 2 ? pair(a[0], a[2]) : pair(a[0] >> 4, a[2] >> 4));
    }
}

/* Four bits, each to the lowest bit of a byte. */
static Four bits_to_bytes(Four v) { return (v | v << 7 | v << 14 | v << 21) & LOW1; }

static void pack_fifth(const Quarter *p, size_t at)
{
    Four bits = words_at(p, at), line = { 0 };
    for (int i = 0; i < 4; i++) {
        line |= bits_to_bytes(bits >> 4 * i & 15) << 2 * i;
        line |= bits_to_bytes(bits >> (16 + 4 * i) & 15) << (2 * i + 1);
    }
    put_words(p, 4, line);
}

/* -- types of 256 -------------------------------------------------------------------------------------------------- */

/* Two bits of four vectors in one line. */
static Four crumbs(const Four v[4], int shift)
{
    Four line = { 0 };
    for (int i = 0; i < 4; i++) line |= (v[i] >> shift & LOW2) << 2 * i;
    return line;
}

/* The 6-bit scales and minima of Q4_K and Q5_K (quant_k4_scale), from line `at`. */
static void pack_k4_scales(const Quarter *p, int at)
{
    const uint32_t low6 = 0x3f3f3f3f, top2 = 0x30303030;
    Four w[4];
    words(w, p, 0, 4);                             /* d and dmin, scales, minima, the rest of both */
    const Four min = (w[3] >> 4 & LOW4) | (w[2] >> 2 & top2);              /* minima 4 to 7 */
    clear(p, at, 4);
    add_bytes(p, at, w[1] & low6);
    add_bytes(p, at + 1, (w[3] & LOW4) | (w[1] >> 2 & top2));
    add_halves(p, at, (min & LOW2) << 6);
    add_halves(p, at + 1, (min >> 2 & LOW2) << 6);
    add_halves(p, at + 2, (w[2] & low6) | (min >> 4 & LOW2) << 6);
    add_halves(p, at + 3, w[0]);
}

static void pack_k5_high(const Quarter *p)
{
    Four bits[8];
    words(bits, p, 16, 8);
    for (int h = 0; h < 8; h++) put_words(p, 32 + h, crumbs(bits + 4 * (h % 2), h / 2 * 2));
}

static void pack_k4x(const Quarter *p)
{
    Four w[32], head = words_at(p, 0), low = words_at(p, 4), scale[2] = { { 0 } };
    words(w, p, 8, 32);
    for (int v = 0; v < 32; v++) {
        const Four *a = w + v / 8 * 8 + v % 4;
        put_words(p, v, v % 8 < 4 ? pair(a[0], a[4]) : pair(a[0] >> 4, a[4] >> 4));
    }
    for (int s = 0; s < 8; s++) {
        Four x = (low >> 4 * s & 15) | (head >> (16 + 2 * s) & 3) << 4;
        scale[s / 4] |= ((x - 32) & 0xff) << 8 * (s % 4);
    }
    clear(p, 32, 2);
    add_bytes(p, 32, scale[0]);
    add_bytes(p, 33, scale[1]);
    put_halves(p, 34, 0);
}

static void pack_k6(const Quarter *p)
{
    Four low[32], high[16], code[64], scale[4];
    words(low, p, 0, 32);
    words(high, p, 128, 16);
    words(scale, p, 192, 4);
    for (int j = 0; j < 64; j++) {                 /* elements 4j to 4j + 3; r: which 32 of a half */
        int half = j / 32, r = j / 8 % 4, l = j % 8;
        code[j] = (low[16 * half + 8 * (r & 1) + l] >> 4 * (r >> 1) & LOW4) | (high[8 * half + l] >> 2 * r & LOW2) << 4;
    }
    for (int v = 0; v < 32; v++) {
        const Four *a = code + v / 4 * 8 + v % 4;
        put_words(p, v, pair(a[0], a[4]));
    }
    for (int s = 0; s < 16; s++) put_words(p, 32 + s, crumbs(code + 4 * s, 4));
    clear(p, 48, 5);
    for (int s = 0; s < 4; s++) add_halves(p, 48 + s, scale[s]);
    add_halves(p, 52, halves_at(p, 208));
}

/* code: 3 bits of each element; scale: int8. */
static void pack_k3(const Quarter *p, const Four code[64], const Four scale[4])
{
    for (int s = 0; s < 16; s++) put_words(p, s, crumbs(code + 4 * s, 0));
    for (int s = 0; s < 16; s += 2) {
        Four line = { 0 };
        for (int i = 0; i < 4; i++)
            line |= (code[4 * s + i] >> 2 & LOW1) << 2 * i | (code[4 * s + 4 + i] >> 2 & LOW1) << (2 * i + 1);
        put_words(p, 16 + s / 2, line);
    }
    clear(p, 24, 4);
    for (int s = 0; s < 4; s++) add_halves(p, 24 + s, scale[s]);
}

/* The high bit is clear where the code is negative. */
static void pack_q3_k(const Quarter *p)
{
    Four high[8], low[16], code[64], scale[4];
    words(high, p, 0, 8);
    words(low, p, 32, 16);
    for (int j = 0; j < 64; j++) {
        int half = j / 32, r = j / 8 % 4, l = j % 8;
        code[j] = (low[8 * half + l] >> 2 * r & LOW2) | (high[l] >> j / 8 & LOW1) << 2;
    }
    const Four s[2] = { words_at(p, 96), words_at(p, 100) }, top = words_at(p, 104);
    for (int k = 0; k < 4; k++) {
        Four x = (s[k % 2] >> 4 * (k / 2) & LOW4) | (top >> 2 * k & LOW2) << 4;
        scale[k] = ((x | 0x80808080u) - 0x20202020u) ^ 0x80808080u;            /* each byte - 32 */
    }
    pack_k3(p, code, scale);
    put_halves(p, 28, 108);
}

/* Types from grids: an index for several values becomes the index of each in the codebook. */
static void pack_iq(const Quarter *p, Type t)
{
    IqBlock q[QUARTER];
    Four code[64], scale[4];
    float d[QUARTER];
    for (int i = 0; i < QUARTER; i++) {
        quant_read_iq(&q[i], t, p->row[i]);
        for (int v = 0; v < 64; v++) code[v][i] = load32(q[i].code + 4 * v);
        for (int s = 0; s < 4; s++) scale[s][i] = load32(q[i].scale + 4 * s);
        d[i] = q[i].d;
    }
    if (matmul_layout[t].pack == PACK_K3) {
        pack_k3(p, code, scale);
        put_floats(p, 28, d);
        return;
    }
    for (int v = 0; v < 32; v++) {
        const Four *a = code + v / 8 * 16 + v % 8;
        put_words(p, v, pair(a[0], a[8]));
    }
    clear(p, 32, 2);
    for (int i = 0; i < 2; i++) {                  /* of each 32, every second of the scales is enough */
        const Four *s = scale + 2 * i;
        add_bytes(p, 32 + i, (s[0] & 0xff) | (s[0] >> 8 & 0xff00) | (s[1] & 0xff) << 16 | (s[1] << 8 & 0xff000000u));
    }
    put_floats(p, 34, d);
}

static void pack_k2(const Quarter *p)
{
    Four scale[4], low[16];
    words(scale, p, 0, 4);
    words(low, p, 16, 16);
    for (int s = 0; s < 16; s++) put_words(p, s, crumbs(low + s / 8 * 8 + 4 * (s % 2), s / 2 % 4 * 2));
    clear(p, 16, 5);
    for (int s = 0; s < 4; s++) add_bytes(p, 16 + s, scale[s]);
    add_halves(p, 20, words_at(p, 80));
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
    case T_Q2_K: pack_k2(p); break;
    case T_Q3_K: pack_q3_k(p); break;
    case T_Q4_K:
        pack_pairs(p, 16, 32);
        pack_k4_scales(p, 32);
        break;
    case T_Q5_K:
        pack_pairs(p, 48, 32);
        pack_k5_high(p);
        pack_k4_scales(p, 40);
        break;
    case T_Q6_K: pack_k6(p); break;
    case T_IQ4_XS: pack_k4x(p); break;
    default: pack_iq(p, t); break;
    }
}

/* The scales of the types of 32, and what stands beside them, in planes behind the lines of all blocks. */
static void pack_planes(const Quarter *p, uint8_t *plane, Type t, int32_t blocks, int32_t block)
{
    const Layout *l = &matmul_layout[t];
    plane += (size_t) block * WEIGHT_GROUP * 2;
    if (t == T_NVFP4) {
        for (int s = 0; s < 4; s++)
            for (int i = 0; i < QUARTER; i++)
                plane[s * WEIGHT_GROUP + p->q * QUARTER + i] = quant_ue4m3(p->row[i][s]);
        return;
    }
    plane += p->q * QUARTER * 2;
    if (t == T_MXFP4) {
        Four d;
        for (int i = 0; i < QUARTER; i++) d[i] = quant_e8m0_half_bf16(p->row[i][0]);
        add_lower(plane, d);
        return;
    }
    for (size_t i = 0; i < (size_t) l->planes; i++, plane += plane_bytes(blocks)) add_lower(plane, halves_at(p, 2 * i));
}

/* Lanes without a row are zeros. */
static void pack_blocks(uint8_t *group, Type t, const uint8_t *row, size_t row_bytes, int lanes, int32_t blocks)
{
    static const uint8_t nothing[256];             /* more than any block */
    const Layout *l = &matmul_layout[t];
    const int32_t together = type_info(t)->block / l->block;   /* blocks that are one in the file */
    const size_t bytes = (size_t) type_info(t)->bytes, lines = (size_t) l->lines * LINE;
    uint8_t *plane = group + (size_t) blocks * lines;
    memset(plane, 0, (size_t) l->planes * plane_bytes(blocks));
    Quarter p[WEIGHT_GROUP / QUARTER];
    size_t step[WEIGHT_GROUP];
    for (int lane = 0; lane < WEIGHT_GROUP; lane++) {
        p[lane / QUARTER].q = lane / QUARTER;
        p[lane / QUARTER].lines = group;
        p[lane / QUARTER].row[lane % QUARTER] = lane < lanes ? row + (size_t) lane * row_bytes : nothing;
        step[lane] = lane < lanes ? bytes : 0;
    }
    /* the lines of a block stay in cache while its lanes are filled */
    for (int32_t b = 0; b < blocks; b += together) {
        for (int q = 0; q < WEIGHT_GROUP / QUARTER; q++) {
            pack_quarter(&p[q], t);
            pack_planes(&p[q], plane, t, blocks, b);
            for (int i = 0; i < QUARTER; i++) p[q].row[i] += step[q * QUARTER + i];
            p[q].lines += lines * (size_t) together;
        }
    }
}

/* Wider types: [column][lane] */
static void pack_values(uint8_t *group, Type t, const uint8_t *row, size_t row_bytes, int lanes, int32_t cols)
{
    const size_t size = (size_t) type_info(t)->bytes;
    memset(group, 0, matmul_group_bytes(t, cols));
    for (int lane = 0; lane < lanes; lane++, row += row_bytes) {
        for (int32_t k = 0; k < cols; k++)
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
