/* attend_scores.cu - scores of queries with stored keys, a block for each item and tile; the last block of a split
 * makes them softmax weights. Arithmetic: cpu/simd_attend.c (floats), cpu/kv_scores.h (integer codes). */
#include "backend/gpu/gpu_attend.h"

enum { SCORE_THREADS = 512, UNIT = 16, UNITS = TILE / UNIT, KEY_BLOCKS = KV_WIDTH / CODE_COLS, KV_MOST = 32639 };
/* Units of a tile, and of pending rows. */
enum { UNITS_ALL = UNITS + (UNIT - 1 + ROWS_DECODE + UNIT - 1) / UNIT };

/* raw: products of slots with queries, by unit; there: which of its slots exist, as bits. of: the scores of a tile. The
 * others are of all tiles of a split, when its last block makes weights: the largest score of a tile, and of all up to
 * it, by which its weights are made; what earlier sums are multiplied by; its sum. */
struct Scores {
    alignas(16) float raw[UNITS_ALL * UNIT][ATTEND_QUERIES + 4];
    uint32_t there[UNITS_ALL];
    alignas(16) float of[ATTEND_QUERIES][TILE + 4];
    float top[ATTEND_QUERIES][SPLIT_TILES], most[ATTEND_QUERIES][SPLIT_TILES], change[ATTEND_QUERIES][SPLIT_TILES],
          sum[ATTEND_QUERIES][SPLIT_TILES];
};
struct ScoresShared {
    Sight  sight;
    Item   item;
    Head   keys;
    Scores scores;
    alignas(16) float q[ATTEND_QUERIES][KV_WIDTH];
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

/* Sixteen slots: a tile's positions from pos0 on, or pending rows of a tree from row0 on, which may be below 0. */
struct Unit { int pos0, row0; bool pending; };

DEV int pending_units(const Item &i) { return i.kind == SLICE_TREE ? (i.base % UNIT + i.rows + UNIT - 1) / UNIT : 0; }
DEV Unit unit_of(const Item &i, int tile, int u)
{
    Unit x;
    x.pending = u >= UNITS;
    x.pos0 = (i.tile0 + tile) * TILE + UNIT * u;
    x.row0 = UNIT * (u - UNITS) - i.base % UNIT;
    return x;
}

/* Whether the scores of a unit are needed. */
DEV bool unit_counts(const Item &i, const Unit &u)
{
    if (u.pending) return true;
    return u.pos0 < i.shared && u.pos0 < i.hi && u.pos0 + UNIT > i.lo;
}

/* Keeps the score of query e with slot j of a unit; there: the slot exists. */
DEV void put_score(Scores &to, const AttendArgs &a, const Item &i, const Sight &v, const Unit &u, int tile, int e,
                   int j, float s, bool there)
{
    const float nothing = f32_of_bits(0xff800000u);
    const int tile_pos = (i.tile0 + tile) * TILE;
    int pos = u.pos0 + j;
    if (u.pending) {
        const int row = u.row0 + j;
        if (row < 0 || row >= i.rows || !(v.path[e] >> row & 1)) return;
        pos = i.base + v.depth[row];
        if (pos < tile_pos || pos >= tile_pos + TILE) return;
    } else if (pos >= i.shared) {                  /* a position of the path is another unit's */
        if (pos < v.hi[e]) return;
        there = false;
    }
    if (e >= i.n) return;
    float x = f32_mul(s, a.spec.scale);
    if (a.spec.softcap > 0) x = f32_mul(a.spec.softcap, f32_tanh(f32_div(x, a.spec.softcap)));
    to.of[e][pos - tile_pos] = there && pos >= v.lo[e] && pos < v.hi[e] ? x : nothing;
}

/* Products of all units become scores. Short code, since few rows would wait for it to be fetched. */
template <int THREADS> DEV void put_scores(Scores &s, const AttendArgs &a, const Item &i, const Sight &v, int tile)
{
    sync_block();
    UNROLL_BY(1)
    for (int k = TID; k < (UNITS + pending_units(i)) * UNIT * ATTEND_QUERIES; k += THREADS) {
        const int slot = k % UNIT, e = k / UNIT % ATTEND_QUERIES, unit = k / UNIT / ATTEND_QUERIES;
        put_score(s, a, i, v, unit_of(i, tile, unit), tile, e, slot, s.raw[unit * UNIT + slot][e],
                  (s.there[unit] >> slot & 1) != 0);
    }
}

/* ---- weights ---- */

DEV float max_of_16(float v)
{
    for (int m = 8; m; m >>= 1) v = f32_max(v, shfl_xor_f(v, m));
    return v;
}

/* Where the weights of tile n % tiles of query n / tiles are, at this lane; beyond the last it is the last. */
DEV float *tile_weights(const AttendArgs &a, const Item &i, int n, int t0, int tiles)
{
    const int k = n < i.n * tiles ? n : i.n * tiles - 1;
    return weights_of(a, i, k / tiles) + (t0 + k % tiles) * TILE + TID % UNIT;
}
enum { TOGETHER = 4 };                             /* scores of a lane that become weights at once */
DEV void load_scores(float x[TOGETHER], const float *from)
{
    UNROLL
    for (int b = 0; b < TOGETHER; b++) x[b] = ld(from + b * UNIT);
}

/* Scores of a split become weights. Half a warp, lane by lane, has a tile of a query at a time, some scores of which
 * are on their way while those before become weights. */
template <int THREADS> DEV void split_weights(const AttendArgs &a, const Item &i, Scores &s, int split)
{
    const int half = TID >> 4 & 1, lane = TID & 15;
    const float nothing = f32_of_bits(0xff800000u);
    int t0, t1;
    split_tiles(&t0, &t1, i, split);
    const int tiles = t1 - t0, all = i.n * tiles, e = TID / SPLIT_TILES, t = TID % SPLIT_TILES;
    const bool is = e < i.n && t < tiles;
    if (is) s.top[e][t] = ld(change_of(a, i, e) + t0 + t);
    sync_block();
    if (is) {
        float was = nothing;
        for (int k = 0; k < t; k++) was = was > s.top[e][k] ? was : s.top[e][k];
        const float m = was > s.top[e][t] ? was : s.top[e][t], c = m != was ? f32_exp(f32_sub(was, m)) : 1.0f;
        s.most[e][t] = m;
        s.change[e][t] = c;
        st(change_of(a, i, e) + t0 + t, c);
    }
    sync_block();
    UNROLL_BY(1)
    for (int n = 2 * (TID >> 5); n < all; n += THREADS / 16) {
        const int own = n + half < all ? n + half : all - 1;
        const float m = s.most[own / tiles][own % tiles];
        float *at = tile_weights(a, i, own, t0, tiles), next[TOGETHER], sum = 0;
        load_scores(next, at);
        UNROLL_BY(1)
        for (int b = 0; b < UNITS; b += TOGETHER, at += TOGETHER * UNIT) {
            float x[TOGETHER];
            UNROLL
            for (int k = 0; k < TOGETHER; k++) x[k] = next[k];
            load_scores(next, at + (b + TOGETHER < UNITS ? TOGETHER * UNIT : 0));
            UNROLL
            for (int k = 0; k < TOGETHER; k++) {
                const float p = f32_exp(f32_sub(x[k], m));
                if (x[k] != nothing) sum = f32_add(sum, p);
                if (own == n + half) st(at + k * UNIT, x[k] != nothing ? p : -1.0f);
            }
        }
        sum = sum_of_16(sum);
        if (lane == 0 && own == n + half) s.sum[own / tiles][own % tiles] = sum;
    }
    sync_block();
    if (TID < i.n) {
        float l = 0;
        for (int k = 0; k < tiles; k++) l = f32_fma(l, s.change[TID][k], s.sum[TID][k]);
        st((float2 *) top_of(a, i, TID, split), float2{s.most[TID][tiles - 1], l});
    }
}

/* Behind the scores of a tile: a warp brings those of a query to memory, and the largest of them to where split_weights
 * puts the change of the tile. */
template <int THREADS> DEV void finish_tile(const AttendArgs &a, const Item &i, Sight &v, Scores &s, int tile)
{
    put_scores<THREADS>(s, a, i, v, tile);
    const int split = split_of(i, tile), e = TID >> 5, lane = TID & 31;
    int t0, t1;
    split_tiles(&t0, &t1, i, split);
    sync_block();
    if (e < i.n) {
        float4 *to = (float4 *) (weights_of(a, i, e) + tile * TILE);
        float top = f32_of_bits(0xff800000u);
        UNROLL
        for (int h = 0; h < 2; h++) st(to + lane + 32 * h, *(const float4 *) &s.of[e][4 * (lane + 32 * h)]);
        UNROLL
        for (int b = 0; b < UNITS; b++) top = f32_max(top, s.of[e][UNIT * b + lane % UNIT]);
        top = max_of_16(top);
        if (lane == 0) st(change_of(a, i, e) + tile, top);
    }
    if (last_to_come(v, tickets_of(a, i) + split, t1 - t0)) split_weights<THREADS>(a, i, s, split);
}

/* The block's item, in shared memory rather than in registers of every thread; false: it has no such tile. What it is
 * found by are tables, so this is done while the launch before still runs. */
DEV bool find_tile(Item &i, Sight &v, const AttendArgs &a, int tile)
{
    Item found;
    if (!find_item(found, v, a, BID) || tile >= found.tiles) return false;
    if (TID == 0) i = found;
    sync_block();
    return true;
}

/* ---- keys that are floats ---- */

/* Columns c and c + 1 of a head, as they are stored. T_F32 stands for all types and widths but halves in multiples of
 * 32: already floats, and 0 from `dim` on. */
template <Type T> struct Pair { uint32_t bits; };
template <> struct Pair<T_F32> { float2 bits; };

template <Type T> DEV void load_pair(Pair<T> &x, Type, const uint8_t *head, int c, int dim)
{
    x.bits = ld((const uint32_t *) ((const uint16_t *) head + (c < dim ? c : c % 16)));
}
DEV void load_pair(Pair<T_F32> &x, Type t, const uint8_t *head, int c, int dim)
{
    x.bits = float2{load_one(t, head, c, dim), load_one(t, head, c + 1, dim)};
}
DEV float2 floats_of(Pair<T_F16> x) { return float2{f32_of_half(x.bits & 0xffffu), f32_of_half(x.bits >> 16)}; }
DEV float2 floats_of(Pair<T_BF16> x) { return float2{f32_of_bits(x.bits << 16), f32_of_bits(x.bits & 0xffff0000u)}; }
DEV float2 floats_of(Pair<T_F32> x) { return x.bits; }

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

/* Eight threads have the lanes of sixteen columns, two each, of four slots with all queries. The keys of the next AHEAD
 * times sixteen columns are on their way; they move up from register to register, since a copy of the loop for each
 * would take longer to fetch. */
template <Type T> DEV void unit_scores(const AttendArgs &a, const Item &i, ScoresShared &s, const Head &keys,
                                       const Unit &u, int n)
{
    enum { AHEAD = T == T_F32 ? 1 : 3 };
    const int lane = TID & 31, four = lane >> 3, t = lane & 7, dim = a.spec.head_dim, width = (dim + 31) / 32 * 32;
    const int own = lane % UNIT, row = u.row0 + own;           /* a lane finds a slot; two find the same */
    int slot = -1;
    if (u.pending) slot = row >= 0 && row < i.rows ? pending_slot(i, row) : -1;
    else if (u.pos0 + own < i.shared) slot = shared_slot(i, u.pos0 + own);
    const uint32_t there = warp_ballot(slot >= 0);
    if (lane == 0) s.scores.there[n] = there;
    const uint8_t *key[4];
    UNROLL
    for (int p = 0; p < 4; p++) {
        const int of = shfl(slot, 4 * four + p);
        key[p] = slot_of(keys, of >= 0 ? of : 0);
    }
    Pair<T> next[AHEAD][4];
    UNROLL
    for (int n = 0; n < AHEAD; n++)
        UNROLL
        for (int p = 0; p < 4; p++) load_pair(next[n][p], keys.type, key[p], 2 * t + 16 * n, dim);
    float acc[32][2];                              /* [slot, query] */
    UNROLL
    for (int k = 0; k < 32; k++) acc[k][0] = acc[k][1] = 0;
    UNROLL_BY(1)
    for (int c = 2 * t; c < width; c += 16) {
        float2 k[4];
        UNROLL
        for (int p = 0; p < 4; p++) {
            k[p] = floats_of(next[0][p]);
            UNROLL
            for (int n = 1; n < AHEAD; n++) next[n - 1][p] = next[n][p];
            load_pair(next[AHEAD - 1][p], keys.type, key[p], c + 16 * AHEAD, dim);
        }
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
    sum_step<32>(acc, 4);
    sum_step<16>(acc, 2);
    sum_step<8>(acc, 1);
    const int p = 2 * (t >> 2 & 1) + (t >> 1 & 1), e0 = 4 * (t & 1);
    *(float4 *) &s.scores.raw[n * UNIT + 4 * four + p][e0] =
        float4{f32_add(acc[0][0], acc[0][1]), f32_add(acc[1][0], acc[1][1]), f32_add(acc[2][0], acc[2][1]),
               f32_add(acc[3][0], acc[3][1])};
}

KERNEL(SCORE_THREADS, attend_scores, AttendArgs)
{
    SHARED(ScoresShared, s);
    pass_next();
    const int tile = BID_Y, warp = TID >> 5, dim = a.spec.head_dim;
    const bool there = find_tile(s.item, s.sight, a, tile);
    const Item &i = s.item;
    const Head &keys = s.keys;
    if (there && TID == 0) s.keys = head_of(a.spec, i.l, i.kv, false);
    pass_wait();
    if (!there) return;
    if (warp < ATTEND_QUERIES) {
        const float *q = query_of(a, i, warp);
        UNROLL_BY(8)
        for (int c = TID & 31; c < (dim + 31) / 32 * 32; c += 32) s.q[warp][c] = c < dim ? ld(q + c) : 0.0f;
        sync_warp();
        for (int c = 0; a.spec.k_type == T_TQ3_0 && c < dim; c += TQ3) tq3_turn(&s.q[warp][c], false);
    }
    sync_block();
    for (int n = warp; n < UNITS + pending_units(i); n += SCORE_THREADS / 32) {
        const Unit u = unit_of(i, tile, n);
        if (!unit_counts(i, u)) {
            if ((TID & 31) == 0) s.scores.there[n] = 0;
        } else if (dim % 32 == 0 && keys.type == T_F16) unit_scores<T_F16>(a, i, s, keys, u, n);
        else if (dim % 32 == 0 && keys.type == T_BF16) unit_scores<T_BF16>(a, i, s, keys, u, n);
        else unit_scores<T_F32>(a, i, s, keys, u, n);
    }
    finish_tile<SCORE_THREADS>(a, i, s.sight, s.scores, tile);
}

/* ---- keys with integer codes ---- */

DEV uint32_t *code_at(CodesShared &s, int high, int c, int e, int col)
{
    return (uint32_t *) s.code[high][c][e] + (col >> 2 & 3) * 2 + (col >> 4);
}

/* A warp rounds the blocks of a query, four of which it loads at once. */
DEV void round_query(CodesShared &s, const float *q, int e, int blocks)
{
    const int lane = TID & 31;
    for (int c0 = 0; c0 < blocks; c0 += TOGETHER) {
        float four[TOGETHER];
        UNROLL
        for (int k = 0; k < TOGETHER; k++) four[k] = c0 + k < blocks ? ld(q + CODE_COLS * (c0 + k) + lane) : 0.0f;
        UNROLL
        for (int k = 0; k < TOGETHER; k++) {
            const int c = c0 + k;
            if (c >= blocks) break;
            const float x = four[k];
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

KERNEL(ATTEND_THREADS, attend_scores_codes, AttendArgs)
{
    SHARED(CodesShared, s);
    pass_next();
    const int tile = BID_Y, warp = TID >> 5;
    const bool there = find_tile(s.item, s.sight, a, tile);
    const Item &i = s.item;
    const Head &keys = s.keys;
    if (there && TID == 0) s.keys = head_of(a.spec, i.l, i.kv, false);
    pass_wait();
    if (!there) return;
    round_query(s, query_of(a, i, warp), warp, a.spec.head_dim / CODE_COLS);
    sync_block();
    for (int n = warp; n < UNITS + pending_units(i); n += ATTEND_WARPS) {
        const Unit u = unit_of(i, tile, n);
        if (!unit_counts(i, u)) {
            if ((TID & 31) == 0) s.scores.there[n] = 0;
        } else if (keys.type == T_Q8_0) panel_scores<true>(a, i, s, keys, u, n);
        else panel_scores<false>(a, i, s, keys, u, n);
    }
    finish_tile<ATTEND_THREADS>(a, i, s.sight, s.scores, tile);
}
