/* attend_values.cu - softmax weights times stored values, blocks for each item, some columns and split; the last split
 * to be finished merges all. Arithmetic: cpu/simd_attend.c (floats), cpu/kv_values.h (integer codes). */
#include "backend/gpu/gpu_attend.h"

enum { VALUE_THREADS = 64, STAGES = 4, GROUPS = ATTEND_WARPS, LANES_ALL = VALUE_PANEL };
constexpr float VALUE_MOST = 32639, SUM_MOST = 2097152;

/* Some positions of a tile from pos0 on, or pending rows of a tree from row0 on, those that are in the tile. */
struct Chunk { int tile, n, pos0, row0; bool pends; };

/* A thread has Q queries and C columns, a block ATTEND_QUERIES by COLS. A chunk is CHUNK positions of half floats, or
 * half as many of floats, STEP of which are added at a time; STAGES of them are here or on their way. */
template <int Q> struct ValuesShared {
    enum { C = Q == 1 ? 2 : 4, COLS = VALUE_THREADS / ATTEND_QUERIES * Q * C, CHUNK = 128 / Q,
           STEP = Q == 4 ? 4 : 8 };
    Sight sight;
    Chunk chunk[STAGES];
    float change[ATTEND_QUERIES][SPLIT_TILES];
    alignas(16) uint8_t value[STAGES][2 * CHUNK * COLS];
    alignas(16) float weight[STAGES][ATTEND_QUERIES][CHUNK + 4];
};
/* A warp has a group of positions. code: its rounded weights as fragments, [positions or pending rows] [low or high
 * bytes]; then its products. */
struct CodesShared {
    Sight sight;
    alignas(16) uint8_t code[GROUPS][2][2][LANES_ALL / 32][ATTEND_QUERIES][32];
    float    scale[GROUPS][ATTEND_QUERIES], least[GROUPS][ATTEND_QUERIES];
    bool     any[GROUPS][ATTEND_QUERIES];
    float    change[ATTEND_QUERIES][SPLIT_TILES];
};

/* The changes of tiles [t0, t1), for a block that waits for its threads later. */
DEV void put_changes(float (&change)[ATTEND_QUERIES][SPLIT_TILES], const AttendArgs &a, const Item &i, int t0, int t1)
{
    if (TID >= VALUE_THREADS) return;
    UNROLL_BY(1)
    for (int k = TID; k < ATTEND_QUERIES * SPLIT_TILES; k += VALUE_THREADS) {
        const int q = k / SPLIT_TILES, t = t0 + k % SPLIT_TILES;
        change[q][k % SPLIT_TILES] = q < i.n && t < t1 ? ld(change_of(a, i, q) + t) : 1.0f;
    }
}

/* ---- the end of a split ---- */

/* N adjacent columns, N 1, 2 or 4. */
DEV void load_cols(float (&o)[1], const float *from) { o[0] = ld(from); }
DEV void load_cols(float (&o)[2], const float *from)
{
    const float2 x = ld((const float2 *) from);
    o[0] = x.x, o[1] = x.y;
}
DEV void load_cols(float (&o)[4], const float *from)
{
    const float4 x = ld((const float4 *) from);
    o[0] = x.x, o[1] = x.y, o[2] = x.z, o[3] = x.w;
}
DEV void store_cols(float *to, const float (&o)[1]) { st(to, o[0]); }
DEV void store_cols(float *to, const float (&o)[2]) { st((float2 *) to, float2{o[0], o[1]}); }
DEV void store_cols(float *to, const float (&o)[4]) { st((float4 *) to, float4{o[0], o[1], o[2], o[3]}); }

/* Merges the splits of query e in ascending order, and writes the result for columns c to c + N - 1. */
template <int N> DEV void merge(const AttendArgs &a, const Item &i, int e, int c, float (&o)[N], int splits)
{
    const int dim = a.spec.value_dim ? a.spec.value_dim : a.spec.head_dim;
    float m = 0, l = 0, sum[N], next[N] = { 0 };
    float2 top = ld((const float2 *) top_of(a, i, e, 0));
    UNROLL
    for (int k = 0; k < N; k++) sum[k] = 0;
    if (splits > 1) load_cols(o, partial_of(a, i, e, 0) + c);
    for (int n = 0; n < splits; n++) {
        const int later = n + 1 < splits ? n + 1 : n;
        const float2 next_top = ld((const float2 *) top_of(a, i, e, later));
        if (splits > 1) load_cols(next, partial_of(a, i, e, later) + c);
        if (top.y != 0) {                          /* else there was nothing in this split that counts */
            const bool first = l == 0;
            const float most = m > top.x ? m : top.x;
            const float was = f32_exp(f32_sub(m, most)), by = f32_exp(f32_sub(top.x, most));
            UNROLL
            for (int k = 0; k < N; k++) sum[k] = first ? o[k] : f32_fma(sum[k], was, f32_mul(o[k], by));
            l = first ? top.y : f32_fma(l, was, f32_mul(top.y, by));
            m = first ? top.x : most;
        }
        top = next_top;
        UNROLL
        for (int k = 0; k < N; k++) o[k] = splits > 1 ? next[k] : o[k];
    }
    float *y = a.y + head_row(a, i, e, dim) + c;
    UNROLL
    for (int k = 0; k < N; k++) sum[k] = f32_div(sum[k], l);
    if (dim % N == 0 && c < dim) store_cols(y, sum);
    UNROLL
    for (int k = 0; k < N; k++)
        if (dim % N && c + k < dim) st(y + k, sum[k]);
}

/* A thread has Q queries from e on, and N columns from c on, of all those of part `part` of the item. */
template <int Q, int N> DEV void finish_split(const AttendArgs &a, const Item &i, Sight &v, int part, int split, int e,
                                              int c, float (&o)[Q][N])
{
    const int splits = split_of(i, i.tiles - 1) + 1;
    if (splits > 1) {
        UNROLL
        for (int q = 0; q < Q; q++)
            if (e + q < i.n && c < a.v_pad) store_cols(partial_of(a, i, e + q, split) + c, o[q]);
        if (!last_to_come(v, tickets_of(a, i) + a.splits + part, splits)) return;
    }
    UNROLL
    for (int q = 0; q < Q; q++)
        if (e + q < i.n && c < a.v_pad) merge<N>(a, i, e + q, c, o[q], splits);
}

/* ---- values that are floats ---- */

/* Finds the first chunk from x on that counts; behind the last, x.tile is t1. */
template <int SIZE> DEV void find_chunk(Chunk &x, const Item &i, int t1)
{
    for (; x.tile < t1; x.tile++, x.n = 0) {
        const int tile_pos = (i.tile0 + x.tile) * TILE;
        const int pending = i.kind == SLICE_TREE && tile_pos + TILE > i.base ? (i.rows + SIZE - 1) / SIZE : 0;
        for (; x.n < TILE / SIZE + pending; x.n++) {
            x.pends = x.n >= TILE / SIZE;
            x.pos0 = tile_pos + SIZE * x.n;
            x.row0 = SIZE * (x.n - TILE / SIZE);
            if (x.pends || (x.pos0 < i.shared && x.pos0 < i.hi && x.pos0 + SIZE > i.lo)) return;
        }
    }
}

/* The weight of query e and a pending row; below 0: the row is not of the query's path, or not in the tile. */
DEV float pending_weight(const AttendArgs &a, const Item &i, const Sight &v, int tile, int e, int row)
{
    if (e >= i.n || row >= i.rows || !(v.path[e] >> row & 1)) return -1.0f;
    const int at = i.base + v.depth[row] - i.tile0 * TILE;
    return at >= tile * TILE && at < (tile + 1) * TILE ? ld(weights_of(a, i, e) + at) : -1.0f;
}

/* Sends for positions of a chunk that lie one behind the other, as those of most caches do. What is behind the last
 * that any query sees is left as it is, and so are columns that do not exist. EARLY: before pass_wait. */
template <bool EARLY, int Q, int SIZE>
DEV void bring_run(ValuesShared<Q> &s, const Item &i, const Head &values, int part, int pos0, int stage)
{
    enum { COLS = ValuesShared<Q>::COLS, PIECES = COLS / 8, ROUND = VALUE_THREADS / PIECES };
    const int j = TID / PIECES, end = (i.hi < i.shared ? i.hi : i.shared) - pos0, c = COLS * part + TID % PIECES * 8;
    const size_t bytes = (size_t) (row_bytes(values.type, values.dim) * values.heads);
    const uint8_t *from = slot_of(values, 0) + 2 * c + bytes * (size_t) (pos0 + j);
    uint8_t *to = s.value[stage] + 16 * TID;
    if (c >= values.dim) return;
    UNROLL_BY(4)
    for (int k = 0; k < SIZE; k += ROUND, from += ROUND * bytes)
        if (j + k < end) send16<EARLY>(to + 16 * k * PIECES, from);
}

/* Before pass_wait: the values of the first chunks, of halves, that this pass does not touch. How many. */
template <int Q, int SIZE> DEV int bring_early(ValuesShared<Q> &s, const Item &i, const Head &values, int part, int t0,
                                               int t1)
{
    Chunk x = { t0, 0, 0, 0, false };
    int n = 0;
    UNROLL_BY(1)
    for (; n < STAGES - 1; n++, x.n++) {
        find_chunk<SIZE>(x, i, t1);
        if (x.tile == t1 || x.pends || x.pos0 + SIZE > i.stored || i.ring || i.wrap) break;
        bring_run<true, Q, SIZE>(s, i, values, part, x.pos0, n);
    }
    return n;
}

/* Sends for a chunk: values as they are stored, T_F16 or T_BF16, or as floats. Those that no query sees, and columns
 * that do not exist, are left as they are. */
template <Type T, int Q, int SIZE> DEV void bring_values(ValuesShared<Q> &s, const Item &i, const Head &values,
                                                         int part, const Chunk &x, int stage)
{
    enum { EACH = T == T_F32 ? 4 : 8, PIECES = ValuesShared<Q>::COLS / EACH };
    const bool floats = values.type == T_F32 && values.dim % EACH == 0;
    if (T != T_F32 && !x.pends && !i.ring && !i.wrap) {
        bring_run<false, Q, SIZE>(s, i, values, part, x.pos0, stage);
        return;
    }
    const int slots = x.pends && i.rows - x.row0 < SIZE ? i.rows - x.row0 : SIZE;
    UNROLL_BY(1)
    for (int k = TID; k < slots * PIECES; k += VALUE_THREADS) {
        const int j = k / PIECES, c = ValuesShared<Q>::COLS * part + k % PIECES * EACH, pos = x.pos0 + j;
        int slot = -1;
        if (x.pends) slot = pending_slot(i, x.row0 + j);
        else if (pos >= i.lo && pos < i.hi && pos < i.shared) slot = shared_slot(i, pos);
        if (slot < 0 || c >= values.dim) continue;
        const uint8_t *head = slot_of(values, slot);
        uint8_t *to = s.value[stage] + 16 * k;
        if (T != T_F32) copy16_async(to, head + 2 * c);
        else if (floats) copy16_async(to, head + 4 * c);
        else {
            UNROLL_BY(1)
            for (int n = 0; n < 4; n++) ((float *) to)[n] = load_one(values.type, head, c + n, values.dim);
        }
    }
}

/* And for their weights. */
template <int Q, int SIZE> DEV void bring_weights(ValuesShared<Q> &s, const AttendArgs &a, const Item &i,
                                                  const Chunk &x, int stage)
{
    if (x.pends) {
        const int rows = i.rows - x.row0 < SIZE ? i.rows - x.row0 : SIZE;
        UNROLL_BY(1)
        for (int k = TID; k < ATTEND_QUERIES * rows; k += VALUE_THREADS) {
            const int e = k % ATTEND_QUERIES, j = k / ATTEND_QUERIES;
            s.weight[stage][e][j] = pending_weight(a, i, s.sight, x.tile, e, x.row0 + j);
        }
        return;
    }
    enum { FOURS = SIZE / 4, ALL = ATTEND_QUERIES * FOURS };   /* of a query, of all */
    const float *from = weights_of(a, i, 0) + (x.pos0 - i.tile0 * TILE) + TID % FOURS * 4;
    const size_t query = (size_t) (weights_of(a, i, 1) - weights_of(a, i, 0));
    UNROLL_BY(4)
    for (int k = 0; k < ALL; k += VALUE_THREADS) {
        if (ALL % VALUE_THREADS && k + TID >= ALL) break;
        const int e = (k + TID) / FOURS;
        copy16_async(&s.weight[stage][e][TID % FOURS * 4], from + query * (size_t) (e < i.n ? e : 0));
    }
}

/* C columns of a position as they are stored. */
template <Type T, int C> struct Stored { uint2 bits; };
template <Type T> struct Stored<T, 2> { uint32_t bits; };
template <> struct Stored<T_F32, 4> { float4 bits; };
template <> struct Stored<T_F32, 2> { float2 bits; };

template <Type T> DEV float2 two_floats(uint32_t x)
{
    return T == T_F16 ? float2{f32_of_half(x & 0xffffu), f32_of_half(x >> 16)}
                      : float2{f32_of_bits(x << 16), f32_of_bits(x & 0xffff0000u)};
}
DEV void floats_of(float (&v)[4], const Stored<T_F32, 4> &x)
{
    v[0] = x.bits.x, v[1] = x.bits.y, v[2] = x.bits.z, v[3] = x.bits.w;
}
DEV void floats_of(float (&v)[2], const Stored<T_F32, 2> &x) { v[0] = x.bits.x, v[1] = x.bits.y; }
template <Type T> DEV void floats_of(float (&v)[4], const Stored<T, 4> &x)
{
    const float2 a = two_floats<T>(x.bits.x), b = two_floats<T>(x.bits.y);
    v[0] = a.x, v[1] = a.y, v[2] = b.x, v[3] = b.y;
}
template <Type T> DEV void floats_of(float (&v)[2], const Stored<T, 2> &x)
{
    const float2 a = two_floats<T>(x.bits);
    v[0] = a.x, v[1] = a.y;
}

/* Some positions of a chunk, weights and values, in a thread's registers. */
template <Type T, int Q> struct Step {
    enum { N = ValuesShared<Q>::STEP };
    float4 weight[Q][N / 4];
    Stored<T, ValuesShared<Q>::C> value[N];
};
template <Type T, int Q>
DEV void load_step(Step<T, Q> &x, const float *weight, const Stored<T, ValuesShared<Q>::C> *value)
{
    enum { EACH = sizeof(((ValuesShared<Q> *) 0)->weight[0][0]) / 4, C = ValuesShared<Q>::C };
    UNROLL
    for (int q = 0; q < Q; q++)
        UNROLL
        for (int k = 0; k < x.N / 4; k++) x.weight[q][k] = *(const float4 *) (weight + q * EACH + 4 * k);
    UNROLL
    for (int k = 0; k < x.N; k++) x.value[k] = value[ValuesShared<Q>::COLS / C * k];
}
template <Type T, int Q, int C> DEV void add_step(float (&o)[Q][C], const Step<T, Q> &x)
{
    UNROLL
    for (int k = 0; k < x.N; k++) {
        float v[C];
        floats_of(v, x.value[k]);
        UNROLL
        for (int q = 0; q < Q; q++) {
            const float4 w = x.weight[q][k / 4];
            const float p = k % 4 == 0 ? w.x : k % 4 == 1 ? w.y : k % 4 == 2 ? w.z : w.w;
            UNROLL
            for (int c = 0; c < C; c++) o[q][c] = p < 0 ? o[q][c] : f32_fma(p, v[c], o[q][c]);
        }
    }
}

/* Adds the first n positions of a chunk, whole steps, to a thread's queries from e on and columns from C * at on. A
 * step is loaded while the one before is added. */
template <Type T, int Q, int C>
DEV void add_chunk(float (&o)[Q][C], const ValuesShared<Q> &s, int stage, int e, int at, int n)
{
    enum { N = Step<T, Q>::N, ROW = ValuesShared<Q>::COLS / C };
    const float *weight = s.weight[stage][e], *end = weight + n - N;
    const Stored<T, C> *value = (const Stored<T, C> *) s.value[stage] + at;
    Step<T, Q> next;
    load_step(next, weight, value);
    UNROLL_BY(2)
    while (weight < end) {
        const Step<T, Q> x = next;
        weight += N, value += N * ROW;
        load_step(next, weight, value);
        add_step(o, x);
    }
    add_step(o, next);
}

/* The weighted values of a split, for queries from e on and the part's columns from C * at on. `early` chunks of values
 * have been sent for. */
template <Type T, int Q, int C> DEV void split_values(float (&o)[Q][C], const AttendArgs &a, const Item &i,
                                                      ValuesShared<Q> &s, const Head &values, int part, int t0, int t1,
                                                      int early, int e, int at)
{
    enum { SIZE = ValuesShared<Q>::CHUNK / (T == T_F32 ? 2 : 1), STEP = ValuesShared<Q>::STEP };
    put_changes(s.change, a, i, t0, t1);
    UNROLL
    for (int q = 0; q < Q; q++)
        UNROLL
        for (int c = 0; c < C; c++) o[q][c] = 0;
    Chunk later = { t0, 0, 0, 0, false };
    UNROLL_BY(1)
    for (int k = 0; k < STAGES - 1; k++, later.n++) {
        find_chunk<SIZE>(later, i, t1);
        if (TID == 0) s.chunk[k] = later;
        if (later.tile < t1) {
            if (k >= early) bring_values<T, Q, SIZE>(s, i, values, part, later, k);
            bring_weights<Q, SIZE>(s, a, i, later, k);
        }
        copy_commit();
    }
    UNROLL_BY(1)
    for (int k = 0, tile = t0;; k = (k + 1) % STAGES, later.n++) {
        find_chunk<SIZE>(later, i, t1);
        copy_wait<STAGES - 2>();
        sync_block();
        const Chunk now = s.chunk[k];
        for (; tile < t1 && tile <= now.tile; tile++)
            UNROLL
            for (int q = 0; q < Q; q++)
                UNROLL
                for (int c = 0; c < C; c++) o[q][c] = f32_mul(o[q][c], s.change[e + q][tile - t0]);
        if (now.tile == t1) break;
        const int next = (k + STAGES - 1) % STAGES;
        if (TID == 0) s.chunk[next] = later;
        if (later.tile < t1) {
            bring_values<T, Q, SIZE>(s, i, values, part, later, next);
            bring_weights<Q, SIZE>(s, a, i, later, next);
        }
        copy_commit();
        const int left = now.pends ? i.rows - now.row0 : i.shared - now.pos0, n = left < SIZE ? left : SIZE;
        if (n % STEP) {                            /* weights behind them are pending rows', which come later */
            const int j = n / STEP * STEP + TID % STEP;
            if (TID < STEP * ATTEND_QUERIES && j >= n) s.weight[k][TID / STEP][j] = -1.0f;
            sync_block();
        }
        add_chunk<T, Q>(o, s, k, e, at, (n + STEP - 1) / STEP * STEP);
    }
    copy_wait<0>();
}

template <int Q> DEV void values(const AttendArgs &a, ValuesShared<Q> &s)
{
    Item i;
    enum { C = ValuesShared<Q>::C, CHUNK = ValuesShared<Q>::CHUNK };
    const int cols = ValuesShared<Q>::COLS, parts = (a.v_pad + cols - 1) / cols, part = BID % parts, split = BID_Y;
    const bool there = find_item(i, s.sight, a, BID / parts) && split <= split_of(i, i.tiles - 1);
    const int dim = a.spec.value_dim ? a.spec.value_dim : a.spec.head_dim, e = TID / (cols / C) * Q,
              at = TID % (cols / C);
    const bool halves = dim % 8 == 0 && (a.spec.v_type == T_F16 || a.spec.v_type == T_BF16);
    int t0 = 0, t1 = 0, early = 0;
    Head head = {};
    if (there) {
        head = head_of(a.spec, i.l, i.kv, true);
        split_tiles(&t0, &t1, i, split);
        if (halves) early = bring_early<Q, CHUNK>(s, i, head, part, t0, t1);
    }
    pass_wait();
    if (!there) return;
    float o[Q][C];
    if (!halves) split_values<T_F32, Q>(o, a, i, s, head, part, t0, t1, early, e, at);
    else if (a.spec.v_type == T_F16) split_values<T_F16, Q>(o, a, i, s, head, part, t0, t1, early, e, at);
    else split_values<T_BF16, Q>(o, a, i, s, head, part, t0, t1, early, e, at);
    finish_split<Q, C>(a, i, s.sight, part, split, e, cols * part + C * at, o);
}

/* For few items: many blocks. */
KERNEL_BLOCKS(VALUE_THREADS, 8, attend_values, AttendArgs)
{
    SHARED(ValuesShared<1>, s);
    pass_next();
    values<1>(a, s);
}

/* For more: values that have been read are used for two queries, or for four. */
KERNEL_BLOCKS(VALUE_THREADS, 8, attend_values_some, AttendArgs)
{
    SHARED(ValuesShared<2>, s);
    pass_next();
    values<2>(a, s);
}
KERNEL_BLOCKS(VALUE_THREADS, 8, attend_values_many, AttendArgs)
{
    SHARED(ValuesShared<4>, s);
    pass_next();
    values<4>(a, s);
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

/* The weights of query e for this lane's positions of a group. */
DEV float4 four_weights(const AttendArgs &a, const Item &i, const Group &g, int e)
{
    return ld((const float4 *) (weights_of(a, i, e) + (g.pos0 - i.tile0 * TILE)) + (TID & 31));
}

/* Rounds the weights of query e for the warp's group; four: this lane's. */
DEV void round_weights(const AttendArgs &a, const Item &i, CodesShared &s, const Head &v, const Group &g, int e,
                       const float4 &four)
{
    const int lane = TID & 31, warp = TID >> 5;
    const float *weight = weights_of(a, i, e);
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
    Item i;
    const int parts = a.v_pad / ATTEND_COLS, cols = BID % parts, split = BID_Y, warp = TID >> 5, lane = TID & 31;
    const bool there = find_item(i, s.sight, a, BID / parts) && split <= split_of(i, i.tiles - 1);
    pass_wait();
    if (!there) return;
    const Head values = head_of(a.spec, i.l, i.kv, true);
    int t0, t1;
    split_tiles(&t0, &t1, i, split);
    put_changes(s.change, a, i, t0, t1);
    const int pos0 = (i.tile0 + t0) * TILE, end = (i.tile0 + t1) * TILE < i.hi ? (i.tile0 + t1) * TILE : i.hi;
    const int groups = (end - pos0 + VALUE_PANEL - 1) / VALUE_PANEL;
    const bool minimum = codes_have_minimum(values.type);
    float o[1][1] = { { 0 } };
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
            float4 next = four_weights(a, i, g, 0);
            UNROLL_BY(1)
            for (int e = 0; e < i.n; e++) {
                const float4 four = next;
                next = four_weights(a, i, g, e + 1 < i.n ? e + 1 : e);
                round_weights(a, i, s, values, g, e, four);
            }
            sync_warp();
            group_products(s, i, values, g, cols);
        }
        sync_block();
        for (int w = 0; warp < i.n && w < GROUPS && round + w < groups; w++) {
            if (w % 2 == 0) o[0][0] = f32_mul(o[0][0], s.change[warp][(round + w) / 2]);
            if (!s.any[w][warp]) continue;
            o[0][0] = f32_fma(s.scale[w][warp], ((const float *) s.code[w])[warp * ATTEND_COLS + lane], o[0][0]);
            if (minimum) o[0][0] = f32_add(o[0][0], s.least[w][warp]);
        }
        sync_block();
    }
    finish_split<1, 1>(a, i, s.sight, cols, split, warp, ATTEND_COLS * cols + lane, o);
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
