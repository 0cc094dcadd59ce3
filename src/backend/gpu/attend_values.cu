/* attend_values.cu - softmax weights times stored values, a block for each item, 32 columns and split; the last split
 * to be finished merges all. Arithmetic: cpu/simd_attend.c (floats), cpu/kv_values.h (integer codes). */
#include "backend/gpu/gpu_attend.h"

enum { CHUNK = 64, GROUPS = ATTEND_WARPS, LANES_ALL = VALUE_PANEL };
constexpr float VALUE_MOST = 32639, SUM_MOST = 2097152;

struct ValuesShared {
    Sight sight;
    alignas(16) float value[CHUNK][ATTEND_COLS + 4], weight[ATTEND_QUERIES][CHUNK];
};
/* A warp has a group of positions. code: its rounded weights as fragments, [positions or pending rows] [low or high
 * bytes]; then its products. */
struct CodesShared {
    Sight sight;
    alignas(16) uint8_t code[GROUPS][2][2][LANES_ALL / 32][ATTEND_QUERIES][32];
    float    scale[GROUPS][ATTEND_QUERIES], least[GROUPS][ATTEND_QUERIES];
    bool     any[GROUPS][ATTEND_QUERIES];
};

/* ---- the end of a split: thread = query (its warp) and column (its lane) ---- */

/* Merges the splits of an item in ascending order, and writes the result. */
DEV void merge(const AttendArgs &a, const Item &i, int cols, float o, int splits)
{
    const int e = TID >> 5, c = ATTEND_COLS * cols + (TID & 31);
    const int dim = a.spec.value_dim ? a.spec.value_dim : a.spec.head_dim;
    const float nothing = f32_of_bits(0xff800000u);
    if (e >= i.n) return;
    float m = nothing, l = 0, sum = 0;
    for (int n = 0; n < splits; n++) {
        const float2 top = ld((const float2 *) top_of(a, i, e, n));
        if (top.x == nothing) continue;            /* the query saw nothing in this split */
        if (splits > 1) o = ld(partial_of(a, i, e, n) + c);
        if (m == nothing) {
            sum = o, m = top.x, l = top.y;
            continue;
        }
        const float most = m > top.x ? m : top.x, was = f32_exp(f32_sub(m, most)), by = f32_exp(f32_sub(top.x, most));
        sum = f32_fma(sum, was, f32_mul(o, by));
        l = f32_fma(l, was, f32_mul(top.y, by));
        m = most;
    }
    if (c < dim) st(a.y + head_row(a, i, e, dim) + c, f32_div(sum, l));
}

DEV void finish_split(const AttendArgs &a, const Item &i, Sight &v, int cols, int split, float o)
{
    const int splits = split_of(i, i.tiles - 1) + 1, e = TID >> 5;
    if (splits > 1) {
        if (e < i.n) st(partial_of(a, i, e, split) + ATTEND_COLS * cols + (TID & 31), o);
        if (!last_to_come(v, tickets_of(a, i) + a.splits + cols, splits)) return;
    }
    merge(a, i, cols, o, splits);
}

/* ---- values that are floats ---- */

/* Value c of a head; 0 from `dim` on. */
DEV float load_one(Type t, const uint8_t *head, int c, int dim)
{
    if (c >= dim) return 0.0f;
    if (t == T_TQ3_0) return tq3_value(head + c / 32 * 14, c % 32);
    if (t == T_F32) return ld((const float *) head + c);
    const uint32_t h = ld((const uint16_t *) head + c);
    return t == T_F16 ? f32_of_half(h) : f32_of_bits(h << 16);
}

/* Values c to c + 7 of a head, c a multiple of 8. */
DEV void load_eight(float v[8], Type t, const uint8_t *head, int c, int dim)
{
    if ((t == T_F16 || t == T_BF16) && dim % 8 == 0 && c < dim) {
        const uint4 eight = ld((const uint4 *) (head + 2 * c));
        const uint32_t two[4] = { eight.x, eight.y, eight.z, eight.w };
        UNROLL
        for (int k = 0; k < 8; k++) {
            const uint32_t h = two[k / 2] >> 16 * (k % 2) & 0xffffu;
            v[k] = t == T_F16 ? f32_of_half(h) : f32_of_bits(h << 16);
        }
        return;
    }
    if (t == T_F32 && dim % 4 == 0 && c + 8 <= dim) {
        const float4 x = ld((const float4 *) head + c / 4), y = ld((const float4 *) head + c / 4 + 1);
        v[0] = x.x, v[1] = x.y, v[2] = x.z, v[3] = x.w, v[4] = y.x, v[5] = y.y, v[6] = y.z, v[7] = y.w;
        return;
    }
    UNROLL
    for (int k = 0; k < 8; k++) v[k] = load_one(t, head, c + k, dim);
}

/* The part that thread TID brings of the chunk at pos0: eight columns of a position. */
DEV void load_chunk(float v[8], const Item &i, const Head &values, int cols, int pos0)
{
    const int pos = pos0 + TID / 4, c = ATTEND_COLS * cols + 8 * (TID % 4);
    const int slot = pos >= i.lo && pos < i.hi && pos < i.shared ? shared_slot(i, pos) : -1;
    UNROLL
    for (int k = 0; k < 8; k++) v[k] = 0;
    if (slot >= 0) load_eight(v, values.type, slot_of(values, slot), c, values.dim);
}

DEV bool chunk_counts(const Item &i, int pos0)
{
    return pos0 < i.shared && pos0 < i.hi && pos0 + CHUNK > i.lo;
}

/* Pending rows of a tree: each query has its own path. */
DEV float path_values(const Item &i, const Sight &v, const Head &values, const float *weight, int cols, int tile,
                      float o)
{
    const int e = TID >> 5, pos0 = (i.tile0 + tile) * TILE;
    for (uint64_t rest = v.path[e]; rest; rest &= rest - 1) {
        int row = 0;
        while (!(rest >> row & 1)) row++;
        const int pos = i.base + v.depth[row];
        if (pos < pos0 || pos >= pos0 + TILE) continue;
        const float p = ld(weight + (pos - i.tile0 * TILE));
        const float x = load_one(values.type, slot_of(values, pending_slot(i, row)), ATTEND_COLS * cols + (TID & 31),
                                 values.dim);
        o = p < 0 ? o : f32_fma(p, x, o);
    }
    return o;
}

KERNEL(ATTEND_THREADS, attend_values, AttendArgs)
{
    SHARED(ValuesShared, s);
    pass_next();
    pass_wait();
    Item i;
    const int parts = a.v_pad / ATTEND_COLS, cols = BID % parts, split = BID_Y, e = TID >> 5, lane = TID & 31;
    if (!find_item(i, s.sight, a, BID / parts) || split > split_of(i, i.tiles - 1)) return;
    const Head values = head_of(a.spec, i.l, i.kv, true);
    int t0, t1;
    split_tiles(&t0, &t1, i, split);
    const float *weight = weights_of(a, i, e < i.n ? e : 0), *change = change_of(a, i, e < i.n ? e : 0);
    const int end = (i.tile0 + t1) * TILE;
    float o = 0, next[8];
    int pos0 = (i.tile0 + t0) * TILE;
    load_chunk(next, i, values, cols, pos0);
    for (int tile = t0; tile < t1; tile++) {
        o = f32_mul(o, ld(change + tile));
        for (int k = 0; k < TILE / CHUNK; k++, pos0 += CHUNK) {
            const bool counts = chunk_counts(i, pos0);
            sync_block();
            if (counts) {
                float4 *to = (float4 *) &s.value[TID / 4][8 * (TID % 4)];
                to[0] = float4{next[0], next[1], next[2], next[3]};
                to[1] = float4{next[4], next[5], next[6], next[7]};
                *(float2 *) &s.weight[e][2 * lane] = ld((const float2 *) (weight + (pos0 - i.tile0 * TILE)) + lane);
            }
            sync_block();
            if (pos0 + CHUNK < end && chunk_counts(i, pos0 + CHUNK)) load_chunk(next, i, values, cols, pos0 + CHUNK);
            if (!counts) continue;
            const int n = i.shared - pos0 < CHUNK ? i.shared - pos0 : CHUNK;
            for (int j = 0; j < n; j++) {
                const float p = s.weight[e][j];
                o = p < 0 ? o : f32_fma(p, s.value[j][lane], o);
            }
        }
        if (i.kind == SLICE_TREE) o = path_values(i, s.sight, values, weight, cols, tile, o);
    }
    finish_split(a, i, s.sight, cols, split, o);
}

/* ---- values with integer codes ---- */

/* Four slots of a lane: scales and minima of the block, 0 where they are no numbers (bad). */
struct Lane4 { float d[4], m[4]; uint32_t bad; };

DEV void set_scale(Lane4 &x, int k, float d, float m)
{
    const bool is = f32_sub(d, d) != 0 || f32_sub(m, m) != 0;
    x.bad |= is ? 1u << k : 0;
    x.d[k] = is ? 0.0f : d;
    x.m[k] = is ? 0.0f : m;
}

/* Where the code words of four slots are: line `four` of the panel, its 64 bytes for columns 0 to 15. */
struct Four { const uint8_t *code, *fifth; };
DEV Four four_at(const Head &v, int cols, int slot)
{
    const uint8_t *head = slot_of(v, slot);
    const int line = slot % VALUE_PANEL / FOUR;
    return Four{head + v.parts.codes + v.parts.block * (size_t) cols + line * LINE,
                head + v.parts.fifth + 8 * (size_t) (cols * panel_lines(VALUE_PANEL)) + 8 * line};
}

/* Columns g and 16 + g of the four slots. */
DEV void four_words(uint32_t w[2], const Head &v, const Four &f, int g)
{
    const int lines = VALUE_PANEL / FOUR;
    const uint32_t *word = (const uint32_t *) f.code + g;
    if (v.type == T_Q8_0) {
        w[0] = ld(word), w[1] = ld(word + lines * (LINE / 4));
        return;
    }
    const uint32_t both = ld(word);
    w[0] = both & 0x0f0f0f0fu, w[1] = both >> 4 & 0x0f0f0f0fu;
    if (codes_have_fifth(v.type)) {
        const uint8_t *bits = f.fifth + g / 2;
        w[0] |= spread_fifth(ld(bits) >> 4 * (g & 1)), w[1] |= spread_fifth(ld(bits + 8 * lines) >> 4 * (g & 1));
    }
    w[0] = less_code(w[0], code_offset(v.type)), w[1] = less_code(w[1], code_offset(v.type));
}

/* What a warp knows of a group: own, its positions; where pending rows of a tree are at some of them, also pending:
 * these rows, from the slot `first` on, a multiple of four, in `steps` times 32 lanes. */
struct Group { int pos0, first, steps; bool pends; Lane4 own, pending; };

DEV void load_scales(Lane4 &x, const Head &v, int cols, int pos0, int there, const Item &i)
{
    const int lane = TID & 31;
    x.bad = 0;
    UNROLL
    for (int k = 0; k < 4; k++) {
        const int pos = pos0 + 4 * lane + k;
        float d = 0, m = 0;
        if (pos < there) {
            const uint16_t *half = (const uint16_t *) slot_of(v, slot_at(i.wrap, pos)) + VALUE_PANEL * cols +
                                   slot_at(i.wrap, pos) % VALUE_PANEL;
            d = f32_of_half(ld(half));
            if (codes_have_minimum(v.type)) m = f32_of_half(ld(half + v.parts.minima / 2));
        }
        set_scale(x, k, d, m);
    }
}

/* The weights of query e for this lane's pending rows. */
DEV void pending_weights(float p[4], const Item &i, const Sight &v, const Group &g, const float *weight, int e)
{
    UNROLL
    for (int k = 0; k < 4; k++) {
        const int row = g.first + 4 * (TID & 31) + k - i.base;
        p[k] = 0;
        if (row < 0 || row >= i.rows || !(v.path[e] >> row & 1)) continue;
        const int pos = i.base + v.depth[row];
        if (pos >= g.pos0 && pos < g.pos0 + VALUE_PANEL) p[k] = ld(weight + (pos - i.tile0 * TILE));
    }
}

DEV float largest_product(const float p[4], const float d[4])
{
    float a = 0;
    UNROLL
    for (int k = 0; k < 4; k++) a = f32_max(a, f32_mul(p[k], f32_max(d[k], f32_sub(0.0f, d[k]))));
    return a;
}
DEV float max_of_warp(float v)
{
    for (int m = 16; m; m >>= 1) v = f32_max(v, shfl_xor_f(v, m));
    return v;
}

/* Rounds four weights into their places of the fragments. */
DEV void put_weights(uint8_t (*code)[LANES_ALL / 32][ATTEND_QUERIES][32], int e, const float p[4], const float d[4],
                     float up)
{
    const int lane = TID & 31;
    uint32_t high = 0, low = 0;
    UNROLL
    for (int k = 0; k < 4; k++) {
        const int u = (int16_t) (bits_of_f32(f32_fma(f32_mul(p[k], d[k]), up, 12582912.0f)) & 0xffffu);
        high |= (uint32_t) ((u + 128) >> 8 & 255) << 8 * k;
        low |= (uint32_t) (u & 255) << 8 * k;
    }
    const int word = (lane & 3) * 2 + (lane >> 2 & 1);
    ((uint32_t *) code[1][lane >> 3][e])[word] = high;
    ((uint32_t *) code[0][lane >> 3][e])[word] = low;
}

DEV int sum_minima(const float p[4], const float m[4], float up)
{
    uint32_t sum = 0;
    UNROLL
    for (int k = 0; k < 4; k++) sum += bits_of_f32(f32_fma(f32_mul(p[k], m[k]), up, 12582912.0f)) - 0x4b400000u;
    return (int) sum;
}

/* Rounds the weights of query e for the warp's group. */
DEV void round_weights(const AttendArgs &a, const Item &i, CodesShared &s, const Head &v, const Group &g, int e)
{
    const int lane = TID & 31, warp = TID >> 5;
    const float *weight = weights_of(a, i, e);
    const float4 four = ld((const float4 *) (weight + (g.pos0 - i.tile0 * TILE)) + lane);
    float p[4] = { four.x, four.y, four.z, four.w }, q[4] = { 0, 0, 0, 0 };
    bool any = false, meets = false;
    UNROLL
    for (int k = 0; k < 4; k++) {
        any |= !(p[k] < 0);
        p[k] = p[k] < 0 || g.pos0 + 4 * lane + k >= i.shared ? 0.0f : p[k];
        meets |= (g.own.bad >> k & 1) && p[k] != 0;
    }
    if (g.pends) {
        pending_weights(q, i, s.sight, g, weight, e);
        UNROLL
        for (int k = 0; k < 4; k++) {
            q[k] = q[k] < 0 ? 0.0f : q[k];
            meets |= (g.pending.bad >> k & 1) && q[k] != 0;
        }
    }
    const bool minimum = codes_have_minimum(v.type);
    const float most = max_of_warp(f32_max(largest_product(p, g.own.d), largest_product(q, g.pending.d)));
    const float up = most < 0x1p-100f ? 0.0f : f32_div(VALUE_MOST, most);
    put_weights(s.code[warp][0], e, p, g.own.d, up);
    if (g.pends) put_weights(s.code[warp][1], e, q, g.pending.d, up);
    float least = 0;
    if (minimum) {
        const float b = max_of_warp(f32_max(largest_product(p, g.own.m), largest_product(q, g.pending.m)));
        const float by = b < 0x1p-100f ? 0.0f : f32_div(SUM_MOST, b);
        int sum = sum_minima(p, g.own.m, by) + (g.pends ? sum_minima(q, g.pending.m, by) : 0);
        for (int m = 16; m; m >>= 1) sum += shfl_xor(sum, m);
        least = b < 0x1p-100f ? 0.0f : f32_mul(f32_mul(b, 1.0f / SUM_MOST), f32_of_int(sum));
    }
    const bool fine = most < f32_of_bits(0x7f800000u) && warp_ballot(meets) == 0, seen = warp_ballot(any) != 0;
    if (lane == 0) {
        s.scale[warp][e] = most < 0x1p-100f ? 0.0f : fine ? f32_mul(most, 1.0f / VALUE_MOST) : f32_of_bits(0x7fc00000u);
        s.least[warp][e] = least;
        s.any[warp][e] = seen;
    }
}

/* Adds 32 lanes of weights times their codes: fragments of columns 0 to 15 and 16 to 31. */
DEV void multiply(int hi[2][4], int lo[2][4], const uint8_t (*code)[LANES_ALL / 32][ATTEND_QUERIES][32], int step,
                  const Head &v, const Four &low, const Four &high)
{
    const int lane = TID & 31, g = lane >> 2;
    uint32_t f[2][4];                              /* [columns 0 to 15 or 16 to 31] */
    UNROLL
    for (int r = 0; r < 4; r++) {
        uint32_t w[2];
        four_words(w, v, r >> 1 ? high : low, g + 8 * (r & 1));
        f[0][r] = w[0], f[1][r] = w[1];
    }
    const uint2 b1 = *((const uint2 *) code[1][step] + lane), b0 = *((const uint2 *) code[0][step] + lane);
    const uint32_t upper[2] = { b1.x, b1.y }, lower[2] = { b0.x, b0.y };
    UNROLL
    for (int h = 0; h < 2; h++) {
        mma_16x8x32(hi[h], f[h], upper);
        mma_16x8x32(lo[h], f[h], lower);
    }
}

/* The integer products of a group, [query, column]: to shared memory in place of the warp's weights. */
DEV void group_products(CodesShared &s, const Item &i, const Head &v, const Group &g, int cols)
{
    const int lane = TID & 31, warp = TID >> 5, t = lane & 3, row = lane >> 2;
    int hi[2][4] = { { 0, 0, 0, 0 }, { 0, 0, 0, 0 } }, lo[2][4] = { { 0, 0, 0, 0 }, { 0, 0, 0, 0 } };
    for (int k = 0; k < LANES_ALL / 32; k++) {
        const int slot = slot_at(i.wrap, g.pos0) + 32 * k + 4 * t;
        multiply(hi, lo, s.code[warp][0], k, v, four_at(v, cols, slot), four_at(v, cols, slot + 16));
    }
    for (int k = 0; k < g.steps; k++) {            /* slots behind the last row stand for it: their weights are 0 */
        const int last = (i.base + i.rows - 1) / FOUR * FOUR, at = g.first + 32 * k + 4 * t;
        const int p = at < last ? at : last, q = at + 16 < last ? at + 16 : last;
        multiply(hi, lo, s.code[warp][1], k, v, four_at(v, cols, slot_at(i.wrap, p)),
                 four_at(v, cols, slot_at(i.wrap, q)));
    }
    sync_warp();
    float *sum = (float *) s.code[warp];
    UNROLL
    for (int h = 0; h < 2; h++)
        UNROLL
        for (int k = 0; k < 4; k++)
            sum[(2 * t + (k & 1)) * ATTEND_COLS + 16 * h + row + 8 * (k >> 1)] = f32_of_int(256 * hi[h][k] + lo[h][k]);
}

KERNEL(ATTEND_THREADS, attend_values_codes, AttendArgs)
{
    SHARED(CodesShared, s);
    pass_next();
    pass_wait();
    Item i;
    const int parts = a.v_pad / ATTEND_COLS, cols = BID % parts, split = BID_Y, warp = TID >> 5, lane = TID & 31;
    if (!find_item(i, s.sight, a, BID / parts) || split > split_of(i, i.tiles - 1)) return;
    const Head values = head_of(a.spec, i.l, i.kv, true);
    int t0, t1;
    split_tiles(&t0, &t1, i, split);
    const float *change = change_of(a, i, warp < i.n ? warp : 0);
    const int pos0 = (i.tile0 + t0) * TILE, end = (i.tile0 + t1) * TILE < i.hi ? (i.tile0 + t1) * TILE : i.hi;
    const int groups = (end - pos0 + VALUE_PANEL - 1) / VALUE_PANEL;
    const bool minimum = codes_have_minimum(values.type);
    float o = 0;
    for (int round = 0; round < groups; round += GROUPS) {
        Group g;
        g.pos0 = pos0 + VALUE_PANEL * (round + warp);
        g.pends = i.kind == SLICE_TREE && g.pos0 + VALUE_PANEL > i.base;
        g.first = i.base / FOUR * FOUR;
        g.steps = g.pends ? (i.base % FOUR + i.rows + 31) / 32 : 0;
        if (round + warp < groups) {
            load_scales(g.own, values, cols, g.pos0, i.shared, i);
            if (g.pends) load_scales(g.pending, values, cols, g.first, i.base + i.rows, i);
            else g.pending = Lane4{{0, 0, 0, 0}, {0, 0, 0, 0}, 0};
            for (int e = 0; e < i.n; e++) round_weights(a, i, s, values, g, e);
            sync_warp();
            group_products(s, i, values, g, cols);
        }
        sync_block();
        for (int w = 0; warp < i.n && w < GROUPS && round + w < groups; w++) {
            if (w % 2 == 0) o = f32_mul(o, ld(change + t0 + (round + w) / 2));
            if (!s.any[w][warp]) continue;
            o = f32_fma(s.scale[w][warp], ((const float *) s.code[w])[warp * ATTEND_COLS + lane], o);
            if (minimum) o = f32_add(o, s.least[w][warp]);
        }
        sync_block();
    }
    finish_split(a, i, s.sight, cols, split, o);
}

/* ---- TQ3_0 ---- */

KERNEL(ATTEND_THREADS, attend_turn_back, TurnArgs)
{
    struct Turned { float y[ATTEND_WARPS][TQ3]; };
    SHARED(Turned, s);
    pass_next();
    pass_wait();
    const int warp = TID >> 5;
    const int64_t group = (int64_t) BID * ATTEND_WARPS + warp;
    if (group >= a.groups) return;
    float *y = a.y + group * TQ3;
    for (int c = TID & 31; c < TQ3; c += 32) s.y[warp][c] = ld(y + c);
    sync_warp();
    tq3_turn(s.y[warp], true);
    for (int c = TID & 31; c < TQ3; c += 32) st(y + c, s.y[warp][c]);
}
