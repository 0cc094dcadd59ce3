/* attend_scores.cu - scores of queries with stored keys, blocks for each item and part of a tile; the last block of a
 * split makes them softmax weights. Arithmetic: cpu/simd_attend.c (floats), cpu/kv_scores.h (integer codes). */
#include "backend/gpu/gpu_attend.h"

/* A block has parts of a tile: SCORE_PART positions, and of a tree the pending rows that may be among them. */
enum { SCORE_THREADS = 128, SCORE_WARPS = SCORE_THREADS / 32, UNIT = 16, UNITS = SCORE_PART / UNIT,
       UNITS_ALL = UNITS + (UNIT - 1 + ROWS_DECODE + UNIT - 1) / UNIT,
       KEY_BLOCKS = KV_WIDTH / CODE_COLS, KV_MOST = 32639 };
static_assert(SCORE_THREADS == UNIT * ATTEND_QUERIES, "a thread has a slot and a query of every unit");

/* raw: products of a part's slots with queries, by unit; there: which of its slots exist, as bits. The others are of
 * all tiles of a split, when its last block makes weights: the largest score of a tile, and of all up to it, by which
 * its weights are made; what earlier sums are multiplied by; its sum. */
struct Scores {
    alignas(16) float raw[UNITS_ALL * UNIT][ATTEND_QUERIES + 4];
    uint32_t there[UNITS_ALL];
    float top[ATTEND_QUERIES][SPLIT_TILES], most[ATTEND_QUERIES][SPLIT_TILES], change[ATTEND_QUERIES][SPLIT_TILES],
          sum[ATTEND_QUERIES][SPLIT_TILES];
};
/* slot: where the keys of a warp's unit are. key: KEY_BYTES of each, STAGES times; what lies between slots keeps lanes
 * that read four of them out of each other's banks. */
enum { STAGES = 2, KEY_BYTES = 128 };
struct ScoresShared {
    Sight  sight;
    Item   item;
    Head   keys;
    Scores scores;
    const uint8_t *slot[SCORE_WARPS][UNIT];
    alignas(16) float q[ATTEND_QUERIES][KV_WIDTH];
    alignas(16) uint8_t key[SCORE_WARPS][STAGES][UNIT][KEY_BYTES + 32];
};
/* code: high and low bytes of rounded queries, as fragments: the lane's two words. */
struct CodesShared {
    Sight  sight;
    Item   item;
    Head   keys;
    Scores scores;
    alignas(16) uint8_t code[2][KEY_BLOCKS][ATTEND_QUERIES][CODE_COLS];
    float  scale[KEY_BLOCKS][ATTEND_QUERIES], sum[KEY_BLOCKS][ATTEND_QUERIES];
};

/* Sixteen slots: positions from pos0 on, or pending rows of a tree from row0 on, which may be below 0. */
struct Unit { int pos0, row0; bool pending; };

DEV int part_pos(const Item &i, int part) { return i.tile0 * TILE + part * SCORE_PART; }

/* Pending rows have positions from `base` on. */
DEV int units_of(const Item &i, int part)
{
    const int pos = part_pos(i, part);
    if (i.kind != SLICE_TREE || pos + SCORE_PART <= i.base || pos >= i.base + i.rows) return UNITS;
    return UNITS + (i.base % UNIT + i.rows + UNIT - 1) / UNIT;
}
DEV Unit unit_of(const Item &i, int part, int u)
{
    Unit x;
    x.pending = u >= UNITS;
    x.pos0 = part_pos(i, part) + UNIT * u;
    x.row0 = UNIT * (u - UNITS) - i.base % UNIT;
    return x;
}

/* The units of a part whose scores are needed: [first, end), then pending ones. */
struct Needed { int first, n, pending; };
DEV Needed needed_units(const Item &i, int part)
{
    const int pos = part_pos(i, part), last = (i.shared < i.hi ? i.shared : i.hi) - pos;
    const int first = i.lo > pos ? (i.lo - pos) / UNIT : 0, end = last < SCORE_PART ? (last + UNIT - 1) / UNIT : UNITS;
    return Needed{first, end > first ? end - first : 0, units_of(i, part) - UNITS};
}
/* The n-th of them; -1: they are fewer. */
DEV int needed_unit(const Needed &x, int n)
{
    return n < x.n ? x.first + n : n < x.n + x.pending ? UNITS + n - x.n : -1;
}

DEV float score_of(const AttendArgs &a, float s)
{
    const float x = f32_mul(s, a.spec.scale);
    return a.spec.softcap > 0 ? f32_mul(a.spec.softcap, f32_tanh(f32_div(x, a.spec.softcap))) : x;
}

DEV float max_of_16(float v)
{
    for (int m = 8; m; m >>= 1) v = f32_max(v, shfl_xor_f(v, m));
    return v;
}

/* Products of a part's units become scores, and the largest of each query is kept; of a unit that is not needed, no
 * query sees a position. Short code, since few rows would wait for it to be fetched. */
DEV void put_scores(const AttendArgs &a, const Item &i, const Sight &v, const Scores &s, int part)
{
    const float nothing = f32_of_bits(0xff800000u);
    const int slot = TID % UNIT, e = TID / UNIT, pos0 = part_pos(i, part), shared = i.shared;
    const int lo = v.lo[e], hi = v.hi[e];
    const int pending = e < i.n ? units_of(i, part) - UNITS : 0, units = e < i.n ? UNITS : 0;
    const uint64_t path = v.path[e];
    float *to = weights_of(a, i, e) + part * SCORE_PART, top = nothing;
    UNROLL_BY(1)
    for (int u = 0; u < units; u++) {
        const int at = UNIT * u + slot, pos = pos0 + at;
        if (pos >= shared && pos < hi) continue;               /* of the path, if at all: a pending row's */
        const bool seen = pos >= lo && pos < hi && (s.there[u] >> slot & 1);
        const float x = seen ? score_of(a, s.raw[at][e]) : nothing;
        st(to + at, x);
        top = f32_max(x, top);                     /* never NaN: that comes with the weights */
    }
    UNROLL_BY(1)
    for (int u = 0; u < pending; u++) {
        const int row = unit_of(i, part, UNITS + u).row0 + slot;
        if (row < 0 || row >= i.rows || !(path >> row & 1)) continue;
        const int pos = i.base + v.depth[row];
        if (pos < pos0 || pos >= pos0 + SCORE_PART) continue;
        const bool seen = pos >= lo && pos < hi && (s.there[UNITS + u] >> slot & 1);
        const float x = seen ? score_of(a, s.raw[(UNITS + u) * UNIT + slot][e]) : nothing;
        st(to + (pos - pos0), x);
        top = f32_max(x, top);
    }
    top = max_of_16(top);
    if (slot == 0 && e < i.n) st(tops_of(a, i, e) + part, top);
}

/* ---- weights ---- */

/* A lane of a half warp has scores of eight units of a tile, in the second half of the later ones: where those of tile
 * n % tiles of query n / tiles are; beyond the last it is the last. */
enum { TOGETHER = TILE / UNIT / 2 };
DEV float *tile_weights(const AttendArgs &a, const Item &i, int n, int t0, int tiles)
{
    const int k = n < i.n * tiles ? n : i.n * tiles - 1, lane = TID & 31;
    return weights_of(a, i, k / tiles) + (t0 + k % tiles) * TILE + lane / UNIT * TILE / 2 + lane % UNIT;
}
DEV void load_scores(float x[TOGETHER], const float *from)
{
    UNROLL
    for (int b = 0; b < TOGETHER; b++) x[b] = ld(from + b * UNIT);
}

/* Scores of a split become weights. A warp, lane by lane, has a tile of a query at a time; its sum goes from unit to
 * unit, so the second half goes on with what the first has. */
DEV void split_weights(const AttendArgs &a, const Item &i, Scores &s, int split)
{
    const int lane = TID & 31;
    const float nothing = f32_of_bits(0xff800000u);
    int t0, t1;
    split_tiles(&t0, &t1, i, split);
    const int tiles = t1 - t0, all = i.n * tiles;
    for (int k = TID; k < ATTEND_QUERIES * SPLIT_TILES; k += SCORE_THREADS) {
        const int e = k / SPLIT_TILES, t = k % SPLIT_TILES;
        if (e >= i.n || t >= tiles) continue;
        float part[SCORE_PARTS], top = nothing;
        UNROLL
        for (int p = 0; p < SCORE_PARTS; p++) part[p] = ld(tops_of(a, i, e) + (t0 + t) * SCORE_PARTS + p);
        UNROLL
        for (int p = 0; p < SCORE_PARTS; p++) top = f32_max(top, part[p]);
        s.top[e][t] = top;
    }
    sync_block();
    for (int k = TID; k < ATTEND_QUERIES * SPLIT_TILES; k += SCORE_THREADS) {
        const int e = k / SPLIT_TILES, t = k % SPLIT_TILES;
        if (e >= i.n || t >= tiles) continue;
        float was = nothing;
        for (int j = 0; j < t; j++) was = was > s.top[e][j] ? was : s.top[e][j];
        const float m = was > s.top[e][t] ? was : s.top[e][t], c = m != was ? f32_exp(f32_sub(was, m)) : 1.0f;
        s.most[e][t] = m;
        s.change[e][t] = c;
        st(change_of(a, i, e) + t0 + t, c);
    }
    sync_block();
    float next[TOGETHER];
    load_scores(next, tile_weights(a, i, TID >> 5, t0, tiles));
    UNROLL_BY(1)
    for (int n = TID >> 5; n < all; n += SCORE_WARPS) {
        const int e = n / tiles, t = n % tiles;
        const float m = s.most[e][t];
        float x[TOGETHER], p[TOGETHER], sum = 0;
        float *to = tile_weights(a, i, n, t0, tiles);
        UNROLL
        for (int b = 0; b < TOGETHER; b++) x[b] = next[b];
        load_scores(next, tile_weights(a, i, n + SCORE_WARPS, t0, tiles));
        UNROLL
        for (int b = 0; b < TOGETHER; b++) {
            p[b] = f32_exp(f32_sub(x[b], m));
            st(to + b * UNIT, x[b] != nothing ? p[b] : -1.0f);
        }
        UNROLL
        for (int half = 0; half < 2; half++) {
            UNROLL
            for (int b = 0; b < TOGETHER; b++)
                if (x[b] != nothing && lane / UNIT == half) sum = f32_add(sum, p[b]);
            if (half == 0) sum = shfl_f(sum, lane % UNIT);
        }
        sum = sum_of_16(sum);
        if (lane == UNIT) s.sum[e][t] = sum;
    }
    sync_block();
    if (TID < i.n) {
        float l = 0;
        for (int k = 0; k < tiles; k++) l = f32_fma(l, s.change[TID][k], s.sum[TID][k]);
        st((float2 *) top_of(a, i, TID, split), float2{s.most[TID][tiles - 1], l});
    }
}

/* Behind a block's scores: the last block of a split makes weights of them. */
DEV void finish_parts(const AttendArgs &a, const Item &i, Sight &v, Scores &s, int part0)
{
    const int split = split_of(i, part0 / SCORE_PARTS);
    int t0, t1;
    split_tiles(&t0, &t1, i, split);
    if (last_to_come(v, tickets_of(a, i) + split, (t1 - t0) * SCORE_PARTS / a.parts)) split_weights(a, i, s, split);
}

/* The block's item, in shared memory rather than in registers of every thread; false: it has no such part. What it is
 * found by are tables, so this is done while the launch before still runs. */
DEV bool find_part(Item &i, Head &keys, Sight &v, const AttendArgs &a, int part)
{
    Item found;
    if (!find_item(found, v, a, BID) || part >= found.tiles * SCORE_PARTS) return false;
    if (TID == 0) {
        i = found;
        keys = head_of(a.spec, found.l, found.kv, false);
    }
    sync_block();
    return true;
}

/* ---- keys that are floats ---- */

/* Columns c and c + 1 of a head, as they are stored. T_F32 stands for all types and widths but halves in multiples of
 * 32: already floats, and 0 from `dim` on. */
template <Type T> struct Pair { uint32_t bits; };
template <> struct Pair<T_F32> { float2 bits; };
DEV float2 floats_of(Pair<T_F16> x) { return float2{f32_of_half(x.bits & 0xffffu), f32_of_half(x.bits >> 16)}; }
DEV float2 floats_of(Pair<T_BF16> x) { return float2{f32_of_bits(x.bits << 16), f32_of_bits(x.bits & 0xffff0000u)}; }
DEV float2 floats_of(Pair<T_F32> x) { return x.bits; }

/* Where a warp goes on, from the n-th unit that is needed of a part: the unit, and its part and n; -1: none is left. */
DEV int find_turn(int *part, int *n, const Item &i, int end)
{
    for (; *part < end; ++*part, *n = TID >> 5) {
        const int unit = needed_unit(needed_units(i, *part), *n);
        if (unit >= 0) return unit;
    }
    return -1;
}

/* Sends for KEY_BYTES of a unit's slots, columns from c0 on: a group of eight lanes for slots `four`, four + 4, ..., 16
 * bytes each. SIZE: of a value as it is kept. EARLY: before pass_wait. */
template <int SIZE, bool EARLY> DEV void bring_keys(ScoresShared &s, int c0, int dim)
{
    enum { COLS = KEY_BYTES / SIZE, EACH = 16 / SIZE };
    const int lane = TID & 31, four = lane >> 3, c = c0 + lane % 8 * EACH;
    uint8_t *to = &s.key[TID >> 5][c0 / COLS % STAGES][four][16 * (lane & 7)];
    const bool stored = SIZE == 2 || (s.keys.type == T_F32 && dim % EACH == 0);
    UNROLL
    for (int p = 0; p < 4; p++, to += 4 * sizeof s.key[0][0][0]) {
        const uint8_t *slot = s.slot[TID >> 5][4 * p + four];
        if (stored && c < dim) send16<EARLY>(to, slot + SIZE * c);
        UNROLL
        for (int n = 0; n < EACH && SIZE == 4; n++)
            if (!stored || c >= dim) ((float *) to)[n] = load_one(s.keys.type, slot, c + n, dim);
    }
    copy_commit();
}

/* Finds a unit's slots, and sends for their first columns. Which of them exist, as bits. */
template <int SIZE, bool EARLY> DEV uint32_t begin_unit(ScoresShared &s, const Unit &u, int dim)
{
    const Item &i = s.item;
    const int own = TID % UNIT, row = u.row0 + own;            /* a lane finds a slot; two find the same */
    int slot = -1;
    if (u.pending) slot = row >= 0 && row < i.rows ? pending_slot(i, row) : -1;
    else if (u.pos0 + own < i.shared) slot = shared_slot(i, u.pos0 + own);
    sync_warp();
    if ((TID & UNIT) == 0) s.slot[TID >> 5][own] = slot_of(s.keys, slot >= 0 ? slot : 0);
    sync_warp();
    UNROLL
    for (int n = 0; n < STAGES; n++) bring_keys<SIZE, EARLY>(s, n * (KEY_BYTES / SIZE), dim);
    return warp_ballot(slot >= 0);
}

/* Sums of lanes over eight threads, as v_sum: a step leaves each thread half of its N sums. */
template <int N> DEV void sum_step(float (&s)[32][2], int m)
{
    const bool upper = (TID & m) != 0;
    UNROLL
    for (int n = 0; n < N / 2; n++)
        UNROLL
        for (int b = 0; b < 2; b++) {
            const float gives = upper ? s[n][b] : s[n + N / 2][b], keeps = upper ? s[n + N / 2][b] : s[n][b];
            s[n][b] = f32_add(keeps, shfl_xor_f(gives, m));
        }
}

/* Eight threads have the lanes of sixteen columns, two each, of four slots with all queries. */
template <Type T> DEV void unit_scores(ScoresShared &s, uint32_t there, int u, int dim)
{
    enum { SIZE = T == T_F32 ? 4 : 2, COLS = KEY_BYTES / SIZE };
    const int lane = TID & 31, four = lane >> 3, t = lane & 7, width = (dim + 31) / 32 * 32;
    if (lane == 0) s.scores.there[u] = there;
    float acc[32][2];                              /* [slot, query] */
    UNROLL
    for (int k = 0; k < 32; k++) acc[k][0] = acc[k][1] = 0;
    UNROLL_BY(1)
    for (int c0 = 0; c0 < width; c0 += COLS) {
        const uint8_t *key = &s.key[TID >> 5][c0 / COLS % STAGES][four][0] + t * sizeof(Pair<T>);
        copy_wait<STAGES - 1>();
        sync_warp();
        const int end = c0 + COLS < width ? c0 + COLS : width;
        UNROLL_BY(1)
        for (int c = c0 + 2 * t; c < end; c += 16, key += 8 * sizeof(Pair<T>)) {
            float2 k[4];
            UNROLL
            for (int p = 0; p < 4; p++) k[p] = floats_of(*(const Pair<T> *) (key + 4 * p * sizeof s.key[0][0][0]));
            UNROLL
            for (int e = 0; e < ATTEND_QUERIES; e++) {
                const float2 q = *(const float2 *) &s.q[e][c];
                UNROLL
                for (int p = 0; p < 4; p++) {
                    acc[8 * p + e][0] = f32_fma(q.x, k[p].x, acc[8 * p + e][0]);
                    acc[8 * p + e][1] = f32_fma(q.y, k[p].y, acc[8 * p + e][1]);
                }
            }
        }
        sync_warp();
        bring_keys<SIZE, false>(s, c0 + STAGES * COLS, dim);
    }
    sum_step<32>(acc, 4);
    sum_step<16>(acc, 2);
    sum_step<8>(acc, 1);
    const int p = 2 * (t >> 2 & 1) + (t >> 1 & 1), e0 = 4 * (t & 1);
    *(float4 *) &s.scores.raw[u * UNIT + 4 * p + four][e0] =
        float4{f32_add(acc[0][0], acc[0][1]), f32_add(acc[1][0], acc[1][1]), f32_add(acc[2][0], acc[2][1]),
               f32_add(acc[3][0], acc[3][1])};
}

/* What this pass does not touch is sent for before pass_wait. */
KERNEL_BLOCKS(SCORE_THREADS, 4, attend_scores, AttendArgs)
{
    SHARED(ScoresShared, s);
    pass_next();
    const Item &i = s.item;
    const int part0 = BID_Y * a.parts, end = part0 + a.parts, warp = TID >> 5, dim = a.spec.head_dim;
    const bool there = find_part(s.item, s.keys, s.sight, a, part0),
               halves = dim % 32 == 0 && (a.spec.k_type == T_F16 || a.spec.k_type == T_BF16);
    int at = part0, n = warp, unit = -1;
    uint32_t slots = 0;
    bool early = false;
    if (there) {
        unit = find_turn(&at, &n, i, end);
        const Unit u = unit_of(i, at, unit);
        early = halves && unit >= 0 && !u.pending && u.pos0 + UNIT <= i.stored && !i.ring;
        if (early) slots = begin_unit<2, true>(s, u, dim);
    }
    pass_wait();
    if (!there) return;
    for (int e = warp; e < ATTEND_QUERIES; e += SCORE_WARPS) {
        const float *q = query_of(a, i, e);
        UNROLL_BY(8)
        for (int c = TID & 31; c < (dim + 31) / 32 * 32; c += 32) s.q[e][c] = c < dim ? ld(q + c) : 0.0f;
        sync_warp();
        for (int c = 0; a.spec.k_type == T_TQ3_0 && c < dim; c += TQ3) tq3_turn(&s.q[e][c], false);
    }
    sync_block();
    UNROLL_BY(1)
    for (int part = part0; part < end; part++) {
        UNROLL_BY(1)
        while (unit >= 0 && at == part) {
            const Unit u = unit_of(i, at, unit);
            if (!early) slots = halves ? begin_unit<2, false>(s, u, dim) : begin_unit<4, false>(s, u, dim);
            early = false;
            if (!halves) unit_scores<T_F32>(s, slots, unit, dim);
            else if (a.spec.k_type == T_F16) unit_scores<T_F16>(s, slots, unit, dim);
            else unit_scores<T_BF16>(s, slots, unit, dim);
            n += SCORE_WARPS;
            unit = find_turn(&at, &n, i, end);
        }
        sync_block();
        put_scores(a, i, s.sight, s.scores, part);
        if (part + 1 < end) sync_block();
    }
    copy_wait<0>();
    finish_parts(a, i, s.sight, s.scores, part0);
}

/* ---- keys with integer codes ---- */

DEV uint32_t *code_at(CodesShared &s, int high, int c, int e, int col)
{
    return (uint32_t *) s.code[high][c][e] + (col >> 2 & 3) * 2 + (col >> 4);
}

enum { ROUNDED = 4 };
/* A warp rounds the blocks of a query, some of which it loads at once. */
DEV void round_query(CodesShared &s, const float *q, int e, int blocks)
{
    const int lane = TID & 31;
    for (int c0 = 0; c0 < blocks; c0 += ROUNDED) {
        float some[ROUNDED];
        UNROLL
        for (int k = 0; k < ROUNDED; k++) some[k] = c0 + k < blocks ? ld(q + CODE_COLS * (c0 + k) + lane) : 0.0f;
        UNROLL
        for (int k = 0; k < ROUNDED; k++) {
            const int c = c0 + k;
            if (c >= blocks) break;
            const float x = some[k];
            uint32_t most = bits_of_f32(x) & 0x7fffffffu;
            for (int m = 16; m; m >>= 1) {
                const uint32_t other = (uint32_t) shfl_xor((int) most, m);
                most = other > most ? other : most;
            }
            const float amax = f32_of_bits(most);
            const bool none = most >= 0x7f800000u || amax < 0x1p-100f;
            const float up = none ? 0.0f : f32_div((float) KV_MOST, amax);
            const int u = none ? 0 : (int16_t) (bits_of_f32(f32_add(f32_mul(x, up), 12582912.0f)) & 0xffffu);
            int sum = u;
            for (int m = 16; m; m >>= 1) sum += shfl_xor(sum, m);
            ((uint8_t *) code_at(s, 1, c, e, lane))[lane & 3] = (uint8_t) ((u + 128) >> 8);
            ((uint8_t *) code_at(s, 0, c, e, lane))[lane & 3] = (uint8_t) u;
            if (lane == 0) {
                const float nan = f32_of_bits(0x7fc00000u);
                s.scale[c][e] = most >= 0x7f800000u ? nan : none ? 0.0f : f32_div(amax, (float) KV_MOST);
                s.sum[c][e] = none ? 0.0f : f32_of_int(sum);
            }
        }
    }
}

/* A lane's words of a panel's block: codes as they are stored, of rows g and g + 8, and their scales. */
struct PanelBlock { uint32_t code[4], fifth[4], d[2], m[2]; };

template <bool BYTES> DEV void load_block(PanelBlock &x, const Head &keys, const uint8_t *head, int c)
{
    const int g = (TID & 31) >> 2, t = TID & 3;
    const uint8_t *code = head + keys.parts.codes + keys.parts.block * (size_t) c;
    const uint16_t *halves = (const uint16_t *) head + KEY_PANEL * c;
    UNROLL
    for (int r = 0; r < 2; r++) {                  /* rows g and g + 8: lines t and t + 4 */
        const uint32_t *line = (const uint32_t *) code + t * (LINE / 4) + g + 8 * r;
        x.code[r] = ld(line);
        if (BYTES) x.code[r + 2] = ld(line + 4 * (LINE / 4));
        if (!BYTES && codes_have_fifth(keys.type)) {
            const uint8_t *bits = head + keys.parts.fifth + 8 * 8 * (size_t) c + 8 * t + (g + 8 * r) / 2;
            x.fifth[r] = ld(bits), x.fifth[r + 2] = ld(bits + 8 * 4);
        }
        x.d[r] = ld(halves + g + 8 * r);
        if (!BYTES && codes_have_minimum(keys.type)) x.m[r] = ld(halves + keys.parts.minima / 2 + g + 8 * r);
    }
}

/* A panel: its sixteen slots are rows of the fragments. AHEAD blocks are on their
 * way while one is multiplied. */
template <bool BYTES> DEV void panel_scores(const AttendArgs &a, const Item &i, CodesShared &s, const Head &keys,
                                            const Unit &u, int unit)
{
    enum { AHEAD = BYTES ? 4 : 1 };
    const int lane = TID & 31, g = lane >> 2, t = lane & 3, blocks = a.spec.head_dim / CODE_COLS, last = blocks - 1;
    const Type type = keys.type;
    const bool minimum = !BYTES && codes_have_minimum(type), fifth = codes_have_fifth(type);
    const int slot = u.pending ? slot_at(i.wrap, i.base + u.row0) : slot_at(i.wrap, u.pos0), offset = code_offset(type);
    const uint8_t *head = slot_of(keys, slot);
    float acc[4] = { 0, 0, 0, 0 };
    PanelBlock ahead[AHEAD] = {};
    UNROLL
    for (int n = 0; n < AHEAD; n++) load_block<BYTES>(ahead[n], keys, head, n < last ? n : last);
    for (int c0 = 0; c0 < blocks; c0 += AHEAD)
        UNROLL
        for (int n = 0; n < AHEAD; n++) {
            const int c = c0 + n;
            if (c >= blocks) break;
            const PanelBlock x = ahead[n];
            load_block<BYTES>(ahead[n], keys, head, c + AHEAD < last ? c + AHEAD : last);
            uint32_t f[4] = { x.code[0], x.code[1], x.code[2], x.code[3] };
            UNROLL
            for (int r = 0; r < 2 && !BYTES; r++) {
                uint32_t low = x.code[r] & 0x0f0f0f0fu, high = x.code[r] >> 4 & 0x0f0f0f0fu;
                if (fifth) {
                    low |= spread_fifth(x.fifth[r] >> 4 * (g & 1));
                    high |= spread_fifth(x.fifth[r + 2] >> 4 * (g & 1));
                }
                f[r] = less_code(low, offset), f[r + 2] = less_code(high, offset);
            }
            int hi[4] = { 0, 0, 0, 0 }, lo[4] = { 0, 0, 0, 0 };
            const uint2 b1 = *((const uint2 *) s.code[1][c] + lane), b0 = *((const uint2 *) s.code[0][c] + lane);
            const uint32_t high[2] = { b1.x, b1.y }, low[2] = { b0.x, b0.y };
            mma_16x8x32(hi, f, high);
            mma_16x8x32(lo, f, low);
            UNROLL
            for (int k = 0; k < 4; k++) {
                const int e = 2 * t + (k & 1);
                const float by = s.scale[c][e];
                acc[k] = f32_fma(f32_mul(f32_of_half(x.d[k >> 1]), by), f32_of_int(256 * hi[k] + lo[k]), acc[k]);
                if (minimum) acc[k] = f32_fma(f32_mul(f32_of_half(x.m[k >> 1]), by), s.sum[c][e], acc[k]);
            }
        }
    UNROLL
    for (int r = 0; r < 2; r++)
        *(float2 *) &s.scores.raw[unit * UNIT + g + 8 * r][2 * t] = float2{acc[2 * r], acc[2 * r + 1]};
    if (lane == 0) s.scores.there[unit] = (1u << UNIT) - 1;
}

KERNEL(SCORE_THREADS, attend_scores_codes, AttendArgs)
{
    SHARED(CodesShared, s);
    pass_next();
    const int part0 = BID_Y * a.parts, warp = TID >> 5;
    const bool there = find_part(s.item, s.keys, s.sight, a, part0);
    const Item &i = s.item;
    const Head &keys = s.keys;
    pass_wait();
    if (!there) return;
    for (int e = warp; e < ATTEND_QUERIES; e += SCORE_WARPS)
        round_query(s, query_of(a, i, e), e, a.spec.head_dim / CODE_COLS);
    sync_block();
    UNROLL_BY(1)
    for (int part = part0; part < part0 + a.parts; part++) {
        const Needed needed = needed_units(i, part);
        UNROLL_BY(1)
        for (int n = warp, unit; (unit = needed_unit(needed, n)) >= 0; n += SCORE_WARPS) {
            const Unit u = unit_of(i, part, unit);
            if (keys.type == T_Q8_0) panel_scores<true>(a, i, s, keys, u, unit);
            else panel_scores<false>(a, i, s, keys, u, unit);
        }
        sync_block();
        put_scores(a, i, s.sight, s.scores, part);
        if (part + 1 < part0 + a.parts) sync_block();
    }
    finish_parts(a, i, s.sight, s.scores, part0);
}
