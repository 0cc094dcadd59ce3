#include "backend/cpu/matmul_layout.h"

#include <string.h>
#include <unistd.h>

#include "base/check.h"

const Layout matmul_layout[T_COUNT] = {
    [T_F32] = {PACK_F32, 1, 1, 0, 0},      [T_F16] = {PACK_16, 1, 0, 0, 0},     [T_BF16] = {PACK_16, 1, 0, 0, 0},
    [T_I32] = {PACK_NONE, 0, 0, 0, 0},
    [T_Q8_0] = {PACK_8, 32, 8, 1, 128},    [T_Q4_0] = {PACK_4, 32, 4, 1, 8},    [T_Q4_1] = {PACK_4, 32, 4, 2, 0},
    [T_Q5_0] = {PACK_5, 32, 5, 1, 16},     [T_Q5_1] = {PACK_5, 32, 5, 2, 0},    [T_IQ4_NL] = {PACK_4, 32, 4, 1, 128},
    [T_Q2_K] = {PACK_K2, 256, 21, 0, 0},   [T_Q3_K] = {PACK_K6, 256, 53, 0, 32},[T_Q4_K] = {PACK_K4, 256, 36, 0, 0},
    [T_Q5_K] = {PACK_K5, 256, 44, 0, 0},
    [T_Q6_K] = {PACK_K6, 256, 53, 0, 32},[T_IQ4_XS] = {PACK_K4X, 256, 35, 0, 128},
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
        cols % matmul_layout[t].block)
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

static void store16(uint8_t *p, uint16_t v)
{
    p[0] = (uint8_t) v;
    p[1] = (uint8_t) (v >> 8);
}

/* Codes are moved four at a time, as the bytes of a word; masks keep shifted bits within their byte. */
enum { LOW4 = 0x0f0f0f0f, LOW2 = 0x03030303 };

static uint32_t load32(const uint8_t *p)
{
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static void store32(uint8_t *p, uint32_t v) { memcpy(p, &v, sizeof v); }

/* -- from the file's blocks ---------------------------------------------------------------------------------------- */

/* Like WeightBlock, but with the codes as stored: plus offset, or indices. Where the file pairs the low and high
 * nibbles of columns in the same way as the lines, they stay in the file's block, and code has only the bits above
 * them. */
typedef struct {
    const uint8_t *nibbles;
    uint8_t  code[256];
    uint8_t  scale[16], min[16];                   /* for K6 and K4X the scales are int8 */
    uint16_t d, dmin;
} FileBlock;

static void nibbles32(uint8_t *code, const uint8_t *q)
{
    for (int i = 0; i < 16; i += 4) {
        store32(code + i, load32(q + i) & LOW4);
        store32(code + 16 + i, load32(q + i) >> 4 & LOW4);
    }
}

static void fifth_bits32(uint8_t *code, const uint8_t *high)
{
    for (int i = 0; i < 32; i++) code[i] = (uint8_t) (((high[i / 8] >> i % 8) & 1) << 4);
}

/* Two low bits of element 128p + 32r + 16c + l of Q2_K and Q3_K. */
static void crumbs256(uint8_t *code, const uint8_t *q)
{
    for (int i = 0; i < 256; i += 4)
        store32(code + i, load32(q + 32 * (i >> 7) + (i & 31)) >> 2 * ((i >> 5) & 3) & LOW2);
}

/* The 6-bit scales and minima of Q4_K and Q5_K: quant_k4_scale four at a time. */
static void k4_scales(FileBlock *f, const uint8_t *b)
{
    const uint32_t low6 = 0x3f3f3f3f, top2 = 0x30303030, s = load32(b), m = load32(b + 4), both = load32(b + 8);
    store32(f->scale, s & low6);
    store32(f->min, m & low6);
    store32(f->scale + 4, (both & LOW4) | (s >> 2 & top2));
    store32(f->min + 4, (both >> 4 & LOW4) | (m >> 2 & top2));
}

static void file_q3_k(FileBlock *f, const uint8_t *b)
{
    const uint8_t *high = b, *sc = b + 96;
    crumbs256(f->code, b + 32);
    /* code - 4 if the high bit is clear, code if it is set: stored plus 32 */
    for (int i = 0; i < 256; i++) f->code[i] = (uint8_t) (f->code[i] + ((high[i & 31] >> (i >> 5)) & 1 ? 32 : 28));
    for (int s = 0; s < 16; s++) {
        int low = s < 8 ? sc[s] & 15 : sc[s - 8] >> 4, up = (sc[8 + (s & 3)] >> 2 * (s >> 2)) & 3;
        f->scale[s] = (uint8_t) ((low | up << 4) - 32);
    }
    f->d = load16(b + 108);
}

static void file_q6_k(FileBlock *f, const uint8_t *b)
{
    for (int i = 0; i < 256; i += 4) {
        int p = i >> 7, r = (i >> 5) & 3, l = i & 31;
        uint32_t low = load32(b + 64 * p + 32 * (r & 1) + l) >> 4 * (r >> 1) & LOW4,
                 up = load32(b + 128 + 32 * p + l) >> 2 * r & LOW2;
        store32(f->code + i, low | up << 4);
    }
    memcpy(f->scale, b + 192, 16);
    f->d = load16(b + 208);
}

static void file_read(FileBlock *f, Type t, const uint8_t *b)
{
    switch (t) {
    case T_Q8_0:
        f->d = load16(b);
        for (int i = 0; i < 32; i += 4) store32(f->code + i, load32(b + 2 + i) ^ 0x80808080u);
        break;
    case T_Q4_0:
    case T_IQ4_NL:
        f->d = load16(b);
        f->nibbles = b + 2;
        break;
    case T_Q4_1:
        f->d = load16(b);
        f->dmin = load16(b + 2);
        f->nibbles = b + 4;
        break;
    case T_Q5_0:
        f->d = load16(b);
        f->nibbles = b + 6;
        fifth_bits32(f->code, b + 2);
        break;
    case T_Q5_1:
        f->d = load16(b);
        f->dmin = load16(b + 2);
        f->nibbles = b + 8;
        fifth_bits32(f->code, b + 4);
        break;
    case T_Q2_K:
        crumbs256(f->code, b + 16);
        for (int s = 0; s < 16; s++) {
            f->scale[s] = b[s] & 15;
            f->min[s] = b[s] >> 4;
        }
        f->d = load16(b + 80);
        f->dmin = load16(b + 82);
        break;
    case T_Q3_K:
        file_q3_k(f, b);
        break;
    case T_Q4_K:
    case T_Q5_K:
        f->d = load16(b);
        f->dmin = load16(b + 2);
        k4_scales(f, b + 4);
        f->nibbles = b + (t == T_Q4_K ? 16 : 48);
        if (t == T_Q5_K) {
            for (int i = 0; i < 256; i += 4)
                store32(f->code + i, (load32(b + 16 + (i & 31)) >> (i >> 5) & 0x01010101) << 4);
        }
        break;
    case T_Q6_K:
        file_q6_k(f, b);
        break;
    default:                                       /* T_IQ4_XS */
        f->d = load16(b);
        for (int s = 0; s < 8; s++) {
            int low = (b[4 + s / 2] >> 4 * (s & 1)) & 15, up = (load16(b + 2) >> 2 * s) & 3;
            f->scale[s] = (uint8_t) ((low | up << 4) - 32);
            nibbles32(f->code + 32 * s, b + 8 + 16 * s);
        }
        break;
    }
}

/* -- into lanes ---------------------------------------------------------------------------------------------------- */

/* The lines start as zeros; each lane adds its bits. */
static void put_nibbles(uint8_t *lines, const uint8_t *code, int vectors, int lane)
{
    /* `vectors` code vectors of a sub-block in the low half, as many of the next one in the high half */
    for (int i = 0; i < vectors; i++) {
        store32(lines + i * LINE + lane * 4,
                (load32(code + 4 * i) & LOW4) | (load32(code + 4 * (vectors + i)) & LOW4) << 4);
    }
}

/* nibbles that are already paired, one vector per line */
static void put_pairs(uint8_t *lines, const uint8_t *nibbles, int vectors, int lane)
{
    for (int i = 0; i < vectors; i++) store32(lines + i * LINE + lane * 4, load32(nibbles + 4 * i));
}

/* bits of four vectors, `width` bits of each from bit 4 up, at bit `step` * i + at of one line */
static void put_high(uint8_t *line, const uint8_t *code, int width, int step, int at, int lane)
{
    uint32_t bits = load32(line + lane * 4), mask = width == 1 ? 0x01010101 : LOW2;
    for (int i = 0; i < 4; i++) bits |= (load32(code + 4 * i) >> 4 & mask) << (step * i + at);
    store32(line + lane * 4, bits);
}

static void put_k4_scales(uint8_t *lines, const FileBlock *f, int lane)
{
    for (int s = 0; s < 8; s++) lines[s * WEIGHT_GROUP + lane] |= f->scale[s];
    for (int s = 0; s < 4; s++) lines[2 * LINE + s / 2 * 32 + lane * 2 + s % 2] |= f->min[s];
    for (int s = 4; s < 8; s++) {
        int at = (s / 2 - 2) * 32 + lane * 2 + s % 2;
        lines[at] |= (uint8_t) ((f->min[s] & 3) << 6);
        lines[LINE + at] |= (uint8_t) (((f->min[s] >> 2) & 3) << 6);
        lines[2 * LINE + at] |= (uint8_t) ((f->min[s] >> 4) << 6);
    }
}

static void put_halves(uint8_t *line, const FileBlock *f, int lane)
{
    store16(line + 2 * lane, f->d);
    store16(line + 2 * WEIGHT_GROUP + 2 * lane, f->dmin);
}

static void put_block(uint8_t *group, const Layout *l, const FileBlock *f, int32_t blocks, int32_t block, int lane)
{
    uint8_t *b = group + (size_t) block * (size_t) l->lines * LINE;
    if (l->block == 32) {
        uint8_t *plane = group + (size_t) blocks * (size_t) l->lines * LINE;
        store16(plane + (size_t) block * WEIGHT_GROUP * 2 + 2 * lane, f->d);
        if (l->planes == 2)
            store16(plane + plane_bytes(blocks) + (size_t) block * WEIGHT_GROUP * 2 + 2 * lane, f->dmin);
    }
    switch (l->pack) {
    case PACK_8:
        for (int v = 0; v < 8; v++) memcpy(b + v * LINE + lane * 4, f->code + 4 * v, 4);
        break;
    case PACK_5:
        put_high(b + 4 * LINE, f->code, 1, 2, 0, lane);
        put_high(b + 4 * LINE, f->code + 16, 1, 2, 1, lane);
        put_pairs(b, f->nibbles, 4, lane);
        break;
    case PACK_4:
        put_pairs(b, f->nibbles, 4, lane);
        break;
    case PACK_K4:
    case PACK_K5:
    case PACK_K4X:
        if (l->pack == PACK_K4X) {
            for (int p = 0; p < 4; p++) put_nibbles(b + p * 8 * LINE, f->code + 64 * p, 8, lane);
            for (int s = 0; s < 8; s++) b[32 * LINE + s * WEIGHT_GROUP + lane] = f->scale[s];
            put_halves(b + 34 * LINE, f, lane);
            break;
        }
        put_pairs(b, f->nibbles, 32, lane);
        if (l->pack == PACK_K5) {
            for (int h = 0; h < 8; h++) {
                const uint8_t *code = f->code + 64 * (h / 2) + 16 * (h % 2);
                put_high(b + (32 + h) * LINE, code, 1, 2, 0, lane);
                put_high(b + (32 + h) * LINE, code + 32, 1, 2, 1, lane);
            }
        }
        put_k4_scales(b + (l->lines - 4) * LINE, f, lane);
        put_halves(b + (l->lines - 1) * LINE, f, lane);
        break;
    case PACK_K6:
        for (int p = 0; p < 8; p++) put_nibbles(b + p * 4 * LINE, f->code + 32 * p, 4, lane);
        for (int s = 0; s < 16; s++) put_high(b + (32 + s) * LINE, f->code + 16 * s, 2, 2, 0, lane);
        for (int s = 0; s < 16; s++) b[48 * LINE + s / 2 * 32 + lane * 2 + s % 2] = f->scale[s];
        put_halves(b + 52 * LINE, f, lane);
        break;
    default:                                       /* PACK_K2 */
        for (int s = 0; s < 16; s++) {
            uint32_t bits = 0;
            for (int i = 0; i < 4; i++) bits |= load32(f->code + 16 * s + 4 * i) << 2 * i;
            store32(b + s * LINE + lane * 4, bits);
        }
        for (int s = 0; s < 16; s++) b[16 * LINE + s * WEIGHT_GROUP + lane] = (uint8_t) (f->scale[s] | f->min[s] << 4);
        put_halves(b + 20 * LINE, f, lane);
        break;
    }
}

void matmul_pack(void *dst, Type t, const void *src, int32_t rows, int32_t cols, int32_t group0, int32_t group1)
{
    const Layout *l = &matmul_layout[t];
    const TypeInfo *info = type_info(t);
    size_t group_bytes = matmul_group_bytes(t, cols), row_bytes = type_row_bytes(t, cols);
    int32_t blocks = cols / l->block;
    for (int32_t g = group0; g < group1; g++) {
        uint8_t *group = (uint8_t *) dst + (size_t) g * group_bytes;
        memset(group, 0, group_bytes);
        int lanes = rows - g * WEIGHT_GROUP < WEIGHT_GROUP ? rows - g * WEIGHT_GROUP : WEIGHT_GROUP;
        const uint8_t *row = (const uint8_t *) src + (size_t) g * WEIGHT_GROUP * row_bytes;
        if (l->block == 1) {
            size_t size = (size_t) info->bytes;
            for (int lane = 0; lane < lanes; lane++, row += row_bytes) {
                for (int32_t k = 0; k < cols; k++)
                    memcpy(group + ((size_t) k * WEIGHT_GROUP + (size_t) lane) * size, row + (size_t) k * size, size);
            }
            continue;
        }
        for (int32_t b = 0; b < blocks; b++) {     /* the lines of a block stay in cache while its lanes are filled */
            for (int lane = 0; lane < lanes; lane++) {
                FileBlock f;
                f.dmin = 0;
                file_read(&f, t, row + (size_t) lane * row_bytes + (size_t) b * (size_t) info->bytes);
                put_block(group, l, &f, blocks, b, lane);
            }
        }
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
    w->d = load16(line + 2 * lane);
    w->dmin = load16(line + 2 * WEIGHT_GROUP + 2 * lane);
}

void matmul_read_block(WeightBlock *w, Type t, const uint8_t *group, int32_t cols, int32_t block, int32_t lane)
{
    const Layout *l = &matmul_layout[t];
    const uint8_t *b = group + (size_t) block * (size_t) l->lines * LINE;
    if (l->block == 32) {
        int32_t blocks = cols / 32;
        const uint8_t *plane = group + (size_t) blocks * (size_t) l->lines * LINE +
                               ((size_t) block * WEIGHT_GROUP + (size_t) lane) * 2;
        w->d = load16(plane);
        w->dmin = l->planes == 2 ? load16(plane + plane_bytes(blocks)) : 0;
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
        if (t == T_IQ4_NL) {
            for (int i = 0; i < 32; i++) w->code[i] = quant_iq4[w->code[i]];
        } else {
            for (int i = 0; i < 32; i++) w->code[i] = (int8_t) (w->code[i] - l->offset);
        }
        break;
    case PACK_K4:
    case PACK_K5:
    case PACK_K4X:
        for (int p = 0; p < 4; p++) get_nibbles(w->code + 64 * p, b + p * 8 * LINE, 8, lane);
        if (l->pack == PACK_K4X) {
            for (int i = 0; i < 256; i++) w->code[i] = quant_iq4[w->code[i]];
            for (int s = 0; s < 16; s++) w->scale[s] = (int8_t) b[32 * LINE + s / 2 * WEIGHT_GROUP + lane];
            get_halves(w, b + 34 * LINE, lane);
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
    default:                                       /* PACK_K2 */
        for (int i = 0; i < 256; i++) w->code[i] = (b[i / 16 * LINE + lane * 4 + i % 4] >> 2 * (i / 4 % 4)) & 3;
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
        float d = half_to_float(w.d), dmin = half_to_float(w.dmin);
        for (int i = 0; i < l->block; i++) {
            if (l->planes == 2) y[i] = d * (float) w.code[i] + dmin;
            else if (l->block == 32) y[i] = d * (float) w.code[i];
            else if (has_min(t)) y[i] = d * (float) w.scale[i / 16] * (float) w.code[i] - dmin * (float) w.min[i / 16];
            else y[i] = d * (float) w.scale[i / 16] * (float) w.code[i];
        }
    }
}

const MatmulKernels *matmul_kernels(CpuLevel l)
{
    static const MatmulKernels *const kernels[LEVEL_COUNT] = LEVEL_PRODUCT_TABLE(matmul);
    return kernels[l];
}
