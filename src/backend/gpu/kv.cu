/* kv.cu - keys and values on their way into a session's slots: the noted path moves to its final slots, then the rows
 * of the pass are stored in the type of the layer. Layout: cpu/kv_panels.h. Encoders: format/quant_encode.c and
 * quant_tq3.c, the same operations in the same order. */
#include "backend/gpu/gpu_kv.h"

/* x: a head of each of KV_WARPS rows. */
struct KvShared { float x[KV_WARPS][KV_WIDTH], y[KV_WARPS][TQ3]; uint8_t code[KV_WARPS][TQ3]; };

/* One block of 32 columns in the hands of a warp: lane k has byte k of its codes; high: the fifth bits. */
struct Block { uint32_t d, minimum, high; uint32_t byte; };

DEV int code_bytes(Type t) { return t == T_Q8_0 ? CODE_COLS : CODE_COLS / 2; }

/* The nth byte of fifth bits that a slot of a block has bits in, and where they are there. Keys: a nibble in each of 8
 * lines. Values: two bits in each of the 8 bytes of two lines. */
DEV int fifth_bytes(const Head &h) { return h.panel == KEY_PANEL ? 8 : 16; }
DEV uint8_t *fifth_at(const Head &h, uint8_t *head, int s, int c, int n, uint32_t *mask)
{
    uint8_t *fifth = head + h.parts.fifth + 8 * (size_t) (c * panel_lines(h.panel));
    if (h.panel == KEY_PANEL) {
        *mask = 15u << 4 * (s & 1);
        return fifth + 8 * n + s / 2;
    }
    *mask = 0x11u << s % FOUR;
    return fifth + 8 * (n / 8 * (VALUE_PANEL / FOUR) + s / FOUR) + n % 8;
}

/* Bits n of a block's 32 fifth bits, spread as they are stored, and back. */
DEV uint32_t fifth_spread(const Head &h, int s, int n, uint32_t high)
{
    if (h.panel == KEY_PANEL) return (high >> 4 * n & 15u) << 4 * (s & 1);
    const uint32_t two = high >> 2 * n & 3u;
    return (two & 1u) << s % FOUR | (two >> 1) << (4 + s % FOUR);
}
DEV uint32_t fifth_gather(const Head &h, int s, int n, uint32_t byte)
{
    if (h.panel == KEY_PANEL) return (byte >> 4 * (s & 1) & 15u) << 4 * n;
    return ((byte >> s % FOUR & 1u) | (byte >> (4 + s % FOUR) & 1u) << 1) << 2 * n;
}

DEV uint32_t or_of_warp(uint32_t v)
{
    for (int m = 16; m; m >>= 1) v |= (uint32_t) shfl_xor((int) v, m);
    return v;
}

/* A slot's block c, read and written by a warp. */
DEV Block block_get(const Head &h, int slot, int c)
{
    uint8_t *head = slot_of(h, slot);
    const int lane = TID & 31, s = slot % h.panel;
    const uint16_t *halves = (const uint16_t *) head;
    Block b;
    b.d = ld(halves + c * h.panel + s);
    b.minimum = codes_have_minimum(h.type) ? ld((const uint16_t *) (head + h.parts.minima) + c * h.panel + s) : 0;
    b.high = b.byte = 0;
    if (codes_have_fifth(h.type)) {
        uint32_t mask, part = 0;
        if (lane < fifth_bytes(h)) part = fifth_gather(h, s, lane, ld(fifth_at(h, head, s, c, lane, &mask)));
        b.high = or_of_warp(part);
    }
    if (lane < code_bytes(h.type)) {
        int32_t line, byte;
        panel_place(&line, &byte, h.panel, s, lane);
        b.byte = ld(head + h.parts.codes + h.parts.block * (size_t) c + line * LINE + byte);
    }
    return b;
}

DEV void block_put(const Head &h, int slot, int c, const Block &b)
{
    uint8_t *head = slot_of(h, slot);
    const int lane = TID & 31, s = slot % h.panel;
    if (lane == 0) {
        st((uint16_t *) head + c * h.panel + s, (uint16_t) b.d);
        uint16_t *minimum = (uint16_t *) (head + h.parts.minima) + c * h.panel + s;
        if (codes_have_minimum(h.type)) st(minimum, (uint16_t) b.minimum);
    }
    if (codes_have_fifth(h.type) && lane < fifth_bytes(h)) {
        uint32_t mask;
        uint8_t *at = fifth_at(h, head, s, c, lane, &mask);
        st(at, (uint8_t) ((ld(at) & ~mask) | fifth_spread(h, s, lane, b.high)));
    }
    if (lane < code_bytes(h.type)) {
        int32_t line, byte;
        panel_place(&line, &byte, h.panel, s, lane);
        st(head + h.parts.codes + h.parts.block * (size_t) c + line * LINE + byte, (uint8_t) b.byte);
    }
}

/* ---- floats as bits; quant.c's conversions, NaN included ---- */

DEV uint32_t half_bits(float f)
{
    const uint32_t bits = bits_of_f32(f), sign = bits >> 16 & 0x8000u, a = bits & 0x7fffffffu;
    if (a > 0x7f800000u) return sign | 0x7e00u | (a >> 13 & 0x1ffu);
    return half_of_f32(f);
}

DEV uint32_t bf16_bits(float f)
{
    const uint32_t bits = bits_of_f32(f);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (bits >> 16 | 0x40u) & 0xffffu;
    return (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
}

/* NaN becomes lo. */
DEV float clamp_to(float v, float lo, float hi) { return v > lo ? v < hi ? v : hi : lo; }
DEV float inverse_of(float d) { return d != 0 ? f32_div(1.0f, d) : 0.0f; }
DEV float magnitude(float v) { return f32_of_bits(bits_of_f32(v) & 0x7fffffffu); }

/* Half away from zero, |v| < 2^23. */
DEV int round_away(float v)
{
    const float m = magnitude(v);
    const int n = int_of_f32(m), up = f32_sub(m, f32_of_int(n)) >= 0.5f ? n + 1 : n;
    return v < 0 ? -up : up;
}

/* ---- encoders: lane k has value k of the block ---- */

/* The first of the lanes that are marked. */
DEV float first_of(bool is, float v)
{
    const uint32_t lanes = warp_ballot(is);
    int first = 0;
    for (int m = 16; m; m >>= 1)
        if (!(lanes >> first & ((1u << m) - 1))) first += m;
    return shfl_f(v, first);
}

DEV float signed_largest(float x)
{
    float most = magnitude(x);
    for (int m = 16; m; m >>= 1) most = f32_max(most, shfl_xor_f(most, m));
    const float largest = first_of(magnitude(x) == most, x);
    return most > 0 ? largest : 0.0f;
}

DEV void range_of(float *lo, float *hi, float x)
{
    float least = x, most = x;
    for (int m = 16; m; m >>= 1) {
        least = f32_min(least, shfl_xor_f(least, m));
        most = f32_max(most, shfl_xor_f(most, m));
    }
    *lo = first_of(x == least, x);
    *hi = first_of(x == most, x);
}

DEV uint32_t code_up_to(float scaled, int limit)
{
    const int code = int_of_f32(clamp_to(scaled, 0.0f, 255.0f));
    return (uint32_t) (code > limit ? limit : code);
}

DEV Block encode(Type t, float value)
{
    const float x = value != value ? 0.0f : clamp_to(value, -65504.0f, 65504.0f);
    Block b;
    b.minimum = b.high = 0;
    if (t == T_Q8_0) {
        const float d = f32_div(magnitude(signed_largest(x)), 127.0f), by = inverse_of(d);
        b.d = half_bits(d);
        b.byte = (uint32_t) round_away(f32_mul(x, magnitude(by) > 3.4028235e38f ? 0.0f : by)) & 255u;
        return b;
    }
    const int limit = codes_have_fifth(t) ? 31 : 15;
    float shift = 0.5f, d;
    if (codes_have_minimum(t)) {
        float lo, hi;
        range_of(&lo, &hi, x);
        d = f32_div(f32_sub(hi, lo), f32_of_int(limit));
        b.minimum = half_bits(lo);
        value = f32_sub(x, lo);
    } else {
        const int half = (limit + 1) / 2;
        d = f32_div(signed_largest(x), f32_of_int(-half));
        shift = f32_add(f32_of_int(half), 0.5f);
        value = x;
    }
    const uint32_t code = code_up_to(f32_add(f32_mul(value, inverse_of(d)), shift), limit);
    b.d = half_bits(d);
    b.high = codes_have_fifth(t) ? warp_ballot((code >> 4 & 1u) != 0) : 0;
    b.byte = (code & 15u) | ((uint32_t) shfl((int) code, (TID & 31) + 16) & 15u) << 4;
    return b;
}

/* ---- TQ3_0: a warp has a group of 128 values ---- */

DEV_TABLE float tq3_point[7] = { -0.154259f, -0.091775f, -0.043589f, 0, 0.043589f, 0.091775f, 0.154259f };

DEV void tq3_put(uint8_t *to, const float *x, float *y, uint8_t *code)
{
    const int lane = TID & 31;
    double power = 0, codes = 0;
    for (int i = 0; i < TQ3; i++) {                /* ascending, by all lanes alike */
        const double v = f64_of_f32(x[i]);
        power = f64_add(power, f64_mul(v, v));
    }
    const double norm = f64_sqrt(power);
    for (int i = lane; i < TQ3; i += 32) y[i] = norm > 1e-10 ? f32_of_f64(f64_div(f64_of_f32(x[i]), norm)) : 0.0f;
    sync_warp();
    tq3_turn(y, false);
    for (int i = lane; i < TQ3; i += 32) {
        int n = 0;
        while (n < 7 && y[i] >= tq3_point[n]) n++;
        code[i] = (uint8_t) n;
    }
    sync_warp();
    for (int i = 0; i < TQ3; i++) {
        const double v = f64_of_f32(tq3_level[code[i]]);
        codes = f64_add(codes, f64_mul(v, v));
    }
    const double scale = f64_div(norm, f64_sqrt(codes));
    const uint32_t half = half_bits(f32_of_f64(scale < 65504.0 ? scale : 65504.0));
    for (int i = lane; i < TQ3_BYTES; i += 32) {
        const int j = i % 14;
        const uint8_t *c = code + 32 * (i / 14);
        uint32_t v = 0;
        if (j < 2) v = half >> 8 * j & 255u;
        else if (j < 10) for (int k = 0; k < 4; k++) v |= (c[4 * (j - 2) + k] & 3u) << 2 * k;
        else for (int k = 0; k < 8; k++) v |= (uint32_t) (c[8 * (j - 10) + k] >> 2) << k;
        st(to + i, (uint8_t) v);
    }
    sync_warp();
}

/* ---- moving and storing ---- */

/* Row path[t] of the rows from slot_at(first) on becomes row t. A warp, or a thread, has the same part of every slot.
 * path[t] ascends and is not below t, so no slot is written before it has been read, and MOVES may be read at once. */
template <int MOVES> DEV void move_path(const Head &h, int wrap, int first, const int32_t *path, int n)
{
    for (int t0 = 0; t0 < n; t0 += MOVES) {
        int from[MOVES];
        UNROLL
        for (int k = 0; k < MOVES; k++) from[k] = t0 + k < n ? ld(path + t0 + k) : t0 + k;
        if (codes_are_integers(h.type)) {
            UNROLL_BY(1)
            for (int c = TID >> 5; c < h.dim / CODE_COLS; c += KV_WARPS) {
                Block b[MOVES];
                UNROLL
                for (int k = 0; k < MOVES; k++)
                    if (from[k] != t0 + k) b[k] = block_get(h, slot_at(wrap, first + from[k]), c);
                UNROLL
                for (int k = 0; k < MOVES; k++)
                    if (from[k] != t0 + k) block_put(h, slot_at(wrap, first + t0 + k), c, b[k]);
            }
            continue;
        }
        UNROLL_BY(1)
        for (int i = TID; i < row_bytes(h.type, h.dim) / 2; i += KV_THREADS) {
            uint16_t v[MOVES] = {};
            UNROLL
            for (int k = 0; k < MOVES; k++)
                if (from[k] != t0 + k) v[k] = ld((const uint16_t *) slot_of(h, slot_at(wrap, first + from[k])) + i);
            UNROLL
            for (int k = 0; k < MOVES; k++)
                if (from[k] != t0 + k) st((uint16_t *) slot_of(h, slot_at(wrap, first + t0 + k)) + i, v[k]);
        }
    }
}

/* Stores the head in s.x[row]. */
template <bool TURNED> DEV void put_row(const Head &h, int slot, KvShared &s, int row)
{
    const int warp = TID >> 5, lane = TID & 31;
    const float *x = s.x[row];
    if (codes_are_integers(h.type)) {
        UNROLL_BY(1)
        for (int c = warp; c < h.dim / CODE_COLS; c += KV_WARPS)
            block_put(h, slot, c, encode(h.type, x[c * CODE_COLS + lane]));
        return;
    }
    uint8_t *to = slot_of(h, slot);
    if (TURNED && h.type == T_TQ3_0) {             /* a group for a warp, each row's for others */
        const int n = h.dim / TQ3, g = (warp + KV_WARPS - row * n % KV_WARPS) % KV_WARPS;
        if (g < n) tq3_put(to + g * TQ3_BYTES, x + g * TQ3, s.y[warp], s.code[warp]);
        return;
    }
    UNROLL_BY(1)
    for (int i = TID; i < h.dim; i += KV_THREADS) {
        const float v = x[i];
        if (h.type == T_F32) st((float *) to + i, v);
        else st((uint16_t *) to + i, (uint16_t) (h.type == T_F16 ? half_bits(v) : bf16_bits(v)));
    }
}

/* Turns pair k of a head by a cosine and a sine. */
DEV void turn_pair(float *y, const HeadsArgs &h, int k, float c, float s)
{
    float *p = y + (h.neox ? k : 2 * k), *q = y + (h.neox ? h.n_rot / 2 + k : 2 * k + 1);
    const float a = *p, b = *q;
    *p = f32_sub(f32_mul(a, c), f32_mul(b, s));
    *q = f32_add(f32_mul(a, s), f32_mul(b, c));
}

/* A warp brings a head to shared memory, norms it by w and turns it by t; either may be NULL. The first 256 values of
 * both are on their way meanwhile. */
DEV void bring_head(float *y, const float *x, int dim, const HeadsArgs &h, const float *w, const float *t)
{
    enum { EACH = KV_WIDTH / 32, EARLY = 8 };
    const int lane = TID & 31, half = h.n_rot / 2;
    float by[EARLY], cosine[EARLY / 2], sine[EARLY / 2];
    UNROLL_BY(8)
    for (int c = lane; c < dim; c += 32) y[c] = ld(x + c);
    UNROLL
    for (int n = 0; n < EARLY; n++)
        if (w && lane + 32 * n < dim) by[n] = ld_weight(w + lane + 32 * n);
    UNROLL
    for (int n = 0; n < EARLY / 2; n++) {
        if (!t || lane + 32 * n >= half) break;
        cosine[n] = ld(t + lane + 32 * n);
        sine[n] = ld(t + half + lane + 32 * n);
    }
    sync_warp();
    if (w) {
        float sum = 0;                             /* sixteen lanes, twice */
        UNROLL_BY(8)
        for (int c = lane & 15; c < dim; c += 16) sum = f32_fma(y[c], y[c], sum);
        const float mean = f32_div(sum_of_16(sum), f32_of_int(dim)),
                    r = f32_div(1.0f, f32_sqrt(f32_add(mean, h.eps)));
        sync_warp();
        UNROLL
        for (int n = 0; n < EACH; n++) {
            const int c = lane + 32 * n;
            if (c < dim) y[c] = f32_mul(f32_mul(y[c], r), n < EARLY ? by[n % EARLY] : ld_weight(w + c));
        }
        sync_warp();
    }
    UNROLL
    for (int n = 0; n < EARLY / 2; n++)
        if (t && lane + 32 * n < half) turn_pair(y, h, lane + 32 * n, cosine[n], sine[n]);
    UNROLL_BY(1)
    for (int k = lane + 16 * EARLY; t && k < half; k += 32) turn_pair(y, h, k, ld(t + k), ld(t + half + k));
    sync_warp();
}

/* Heads of queries: a warp has one. */
DEV void put_query(const KvPutArgs &a, int block, KvShared &shared)
{
    const int heads = a.spec.heads, dim = a.spec.head_dim, blocks = (heads + KV_WARPS - 1) / KV_WARPS;
    const int row = block / blocks, warp = TID >> 5, head = block % blocks * KV_WARPS + warp;
    if (head >= heads) return;                     /* whole warps, and there is no barrier */
    const size_t at = ((size_t) row * (size_t) heads + (size_t) head) * (size_t) dim;
    const float *x = a.from ? a.from + 2 * at : a.q + at;
    bring_head(shared.x[warp], x, dim, a.heads, a.heads.q_norm,
               a.heads.turn ? a.heads.turn + (size_t) row * (size_t) a.heads.n_rot : NULL);
    for (int c = TID & 31; c < dim; c += 32) {
        st(a.q + at + c, shared.x[warp][c]);
        if (a.from) st(a.gate + at + c, ld(x + dim + c));
    }
}

template <bool TURNED> DEV void put(const KvPutArgs &a, KvShared &shared)
{
    const int parts = 2 * a.spec.kv_heads, all = parts * a.rows.n_slices, group = BID / all;
    const int slice = BID % all / parts, head = BID % parts / 2, warp = TID >> 5;
    if (group >= a.groups) {
        pass_wait();
        put_query(a, BID - a.groups * all, shared);
        return;
    }
    const bool values = BID % parts & 1;
    const Slice *s = a.rows.slices + slice;
    const StateLayer *l = ld_table(&s->layer) + a.il;
    const int base = ld_table(&s->base), gen = ld_table(&s->gen), n = ld_table(&s->n), row0 = ld_table(&s->row0);
    const bool chain = ld_table(&s->kind) == SLICE_CHAIN;
    const int ring = ld_table(&l->ring), wrap = ld_table(&l->wrap);
    int32_t *mark = ld_table(&l->mark) + MARK_KV;
    const Head h = head_of(a.spec, l, head, values);
    pass_wait();
    if (a.move && !ring && ld(mark) != gen) {
        const int n_path = ld(&s->n_path), first = base - n_path;
        move_path<TURNED ? 1 : 4>(h, wrap, first, s->path, n_path);
        sync_block();
        if (TID == 0) {
            fence();
            if (atomic_add(a.tickets + slice, 1) == parts - 1) {
                st(mark, gen);
                st(a.tickets + slice, 0);
            }
        }
    }
    if (!a.put) return;
    const int width = h.heads * h.dim;
    int from = 0, to = n;
    if (a.groups > 1) {
        from = 16 * (base / 16 + group) - base, to = from + 16;
        from = from < 0 ? 0 : from, to = to > n ? n : to;
    }
    const float *x = (values ? a.v : a.k) + (size_t) row0 * (size_t) width + (size_t) (head * h.dim);
    for (int i0 = from; i0 < to; i0 += KV_WARPS) { /* a warp brings a row, all store it */
        const int own = i0 + warp;
        sync_block();
        if (own < to)
            bring_head(shared.x[warp], x + (size_t) own * (size_t) width, h.dim, a.heads,
                       values ? NULL : a.heads.k_norm, values || !a.heads.turn ? NULL :
                       a.heads.turn + (size_t) (row0 + own) * (size_t) a.heads.n_rot);
        sync_block();
        UNROLL_BY(1)
        for (int i = i0; i < to && i < i0 + KV_WARPS; i++) {
            int slot = ring ? ring + i : slot_at(wrap, base + i);
            if (ring && chain) slot = n - i > ring ? -1 : (base + i) % ring;
            if (slot < 0) continue;                /* a later row of the chain takes that slot */
            put_row<TURNED>(h, slot, shared, i - i0);
            if (ring && chain && head == 0 && !values && TID == 0) st(ld(&l->slot_pos) + slot, base + i);
        }
    }
}

KERNEL_BLOCKS(KV_THREADS, 2, kv_put, KvPutArgs)
{
    SHARED(KvShared, shared);
    pass_next();
    put<false>(a, shared);
}

/* Keys or values, or both, of type TQ3_0. */
KERNEL_BLOCKS(KV_THREADS, 2, kv_put_turned, KvPutArgs)
{
    SHARED(KvShared, shared);
    pass_next();
    put<true>(a, shared);
}
