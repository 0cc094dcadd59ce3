/* delta.cu - the short convolution and the gated delta rule, with the state they keep from pass to pass:
 * cpu/simd_delta.c says what they do, and in which order. */
#include "backend/gpu/gpu_math.h"

/* Rows of the noted path that are not in the stored state yet. */
DEV int pending(const Slice *s, const StateLayer *l, int mark)
{
    const int n = ld_table(&s->n_path);            /* not behind the others */
    return ld(ld_table(&l->mark) + mark) == ld_table(&s->gen) ? 0 : n;
}

/* Marks the state as that of the noted path once all blocks of a slice, `parts`, have come here and know the old mark;
 * by one thread of each. */
DEV void set_mark(const Slice *s, const StateLayer *l, int mark, int32_t *ticket, int parts)
{
    if (ld(&s->kind) != SLICE_TREE || ld(&s->set_in) != ld(&s->set_out)) return;
    fence();
    if (atomic_add(ticket, 1) != parts - 1) return;
    st(ld(&l->mark) + mark, ld(&s->gen));
    st(ticket, 0);
}

/* ---- convolution: a lane has a channel, and warps have rows ---- */

enum { CONV_THREADS = 256, CONV_WARPS = CONV_THREADS / 32 };
struct ConvShared {
    float w[CONV_TAPS][CONV_COLS], past[CONV_TAPS][CONV_COLS];         /* past: the last committed inputs */
    int   up[CONV_ROWS];                                               /* parents */
};

/* The value of row i of rows [from, from + CONV_ROWS), whose own input is own. */
template <int TAPS>
DEV float conv_at(float own, const ConvArgs &a, const ConvShared &s, const float *x, int i, int from)
{
    const int lane = TID & 31;
    float in[TAPS], acc = 0;
    int at = i, committed = a.width - 2;
    UNROLL
    for (int back = 0; back < TAPS; back++) {
        in[back] = own;
        if (back >= a.width) continue;
        if (at < 0) {
            in[back] = s.past[committed--][lane];
            continue;
        }
        if (back) in[back] = ld(x + (size_t) at * (size_t) a.channels);
        at = at < from ? at - 1 : s.up[at - from];             /* only chains have rows before these */
    }
    UNROLL
    for (int back = TAPS - 1; back >= 0; back--)               /* the oldest first */
        if (back < a.width) acc = f32_fma(s.w[a.width - 1 - back][lane], in[back], acc);
    return f32_silu(acc);
}

/* What takes a row time is waiting for one load behind another: all loads are as early as their addresses are known. */
KERNEL(CONV_THREADS, conv_rows, ConvArgs)
{
    SHARED(ConvShared, s);
    const int parts = (a.channels + CONV_COLS - 1) / CONV_COLS, keep = a.width - 1, lane = TID & 31, warp = TID >> 5;
    const int slice = BID / parts, c0 = BID % parts * CONV_COLS, c = c0 + lane, from = BID_Y * CONV_ROWS;
    const size_t ch = (size_t) a.channels;
    const bool there = c < a.channels;
    for (int i = TID; a.w && i < CONV_COLS * a.width && c0 * a.width + i < a.channels * a.width; i += CONV_THREADS)
        s.w[i % a.width][i / a.width] = ld_weight(a.w + c0 * a.width + i);
    pass_next();
    const Slice *sl = a.rows.slices + slice;
    const StateLayer *l = ld_table(&sl->layer) + a.il;
    const int n = ld_table(&sl->n), row0 = ld_table(&sl->row0), kind = ld_table(&sl->kind),
              n_path = ld_table(&sl->n_path), gen = ld_table(&sl->gen);
    const int end = n < from + CONV_ROWS ? n : from + CONV_ROWS;
    const size_t set = (size_t) keep * ch, in = (size_t) ld_table(&sl->set_in) * set,
                 out = (size_t) ld_table(&sl->set_out) * set;
    float *window = ld_table(&l->window) + c, *rec = ld_table(&l->rec_x) + c, own = 0;
    const int32_t *mark = ld_table(&l->mark) + MARK_WINDOW;
    for (int up = from + TID; up < end; up += CONV_THREADS) s.up[up - from] = ld_table(a.rows.parent + row0 + up);
    pass_wait();
    if (from && from >= n) return;
    const float *x = a.x + (size_t) row0 * ch + (size_t) c;
    int i = from + warp;
    if (there && i < end) own = ld(x + (size_t) i * ch);
    if (from == 0 && there) {
        for (int j = warp; j < keep; j += CONV_WARPS) {        /* stored window, then path: the last of them */
            const int at = n_path + j;
            const float stored = ld(window + in + (size_t) j * ch);
            const float noted = ld(at < keep ? window + in + (size_t) at * ch
                                             : rec + (size_t) ld_table(&sl->path[at - keep]) * ch);
            s.past[j][lane] = ld(mark) == gen ? stored : noted;
        }
    }
    sync_block();
    for (; there && i < end; i += CONV_WARPS) {
        const float y = a.width <= 4 ? conv_at<4>(own, a, s, x, i, from) : conv_at<CONV_TAPS>(own, a, s, x, i, from);
        st(a.y + (size_t) (row0 + i) * ch + (size_t) c, y);
        if (kind == SLICE_TREE) st(rec + (size_t) i * ch, own);
        if (i + CONV_WARPS < end) own = ld(x + (size_t) (i + CONV_WARPS) * ch);
    }
    if (from || kind == SLICE_BLOCK) return;
    const int rows = kind == SLICE_CHAIN ? n : 0;
    for (int j = warp; there && j < keep; j += CONV_WARPS) {
        const int last = rows + j - keep;                      /* of the rows, or before them */
        st(window + out + (size_t) j * ch, last < 0 ? s.past[rows + j][lane] : ld(x + (size_t) last * ch));
    }
    if (TID == 0) set_mark(sl, l, MARK_WINDOW, a.tickets + slice, parts);
}

/* ---- delta rule ----
 * A thread has a column of the head's matrix, over all rows of the slice, and keeps it in registers: the matrix is read
 * and written once. Sums are chains of dependent additions, which is what the time goes to, so the output of a row and
 * the first sum of its successor are made in one visit. Two more warps prepare the next rows in shared memory
 * meanwhile: they have schedulers of their own, and the columns wait for nothing else.
 * The work is a list of steps: the noted path's rows with their stored deltas, then the rows of the slice. A tree's
 * rows are visited depth first, smaller subtrees before larger ones, and most continue where the one before has ended.
 * The main line goes on to the largest child each time. The matrix of a row of it that has several children is put
 * aside; one place is enough, since the next row of the main line comes after all other children. A row that cannot
 * continue begins anew at its last ancestor of the main line, with the stored deltas of the rows between them. */

enum { BATCH = 4, SLOTS = 2 * BATCH + 1, PER_LANE = DELTA_KEYS / 16 };
enum { GATES = 32 };                                           /* steps whose gates are made at once, a lane each */
enum { AGAIN = 64, ANEW = 128, COMMITTED = 256, KEPT = 512 };
/* At the most: of a subtree that is not the main line's, at most half of the rows, each may need all before it. */
enum { STEPS = ROWS_DECODE / 2 + ROWS_DECODE / 2 * (ROWS_DECODE / 2 + 1) / 2 };

/* What is known of a tree's rows and steps. */
struct DeltaSteps {
    uint64_t line[ROWS_DECODE];                                /* ancestors, as bits */
    /* Parents, rows of the subtree, rows of siblings that come earlier, place in the order of visits. */
    int     up[ROWS_DECODE], size[ROWS_DECODE], before[ROWS_DECODE], place[ROWS_DECODE];
    int     far[ROWS_DECODE];                                  /* the nearest ancestor that is not known yet */
    int     length[ROWS_DECODE], steps;                        /* steps of a row, and of all */
    uint8_t last[ROWS_DECODE], kept[ROWS_DECODE];              /* the last of its siblings; is put aside */
    uint16_t step[STEPS];                                      /* row, AGAIN, ANEW, COMMITTED, KEPT */
};

/* v: values, or stored deltas; none: a key for which S' = k d + T is T. */
template <int COLS> struct DeltaShared : DeltaSteps {
    alignas(16) float k[SLOTS][DELTA_KEYS];
    float q[SLOTS][DELTA_KEYS], none[DELTA_KEYS], v[SLOTS + 1][COLS], aside[DELTA_KEYS][COLS];
    float a[2 * GATES], b[2 * GATES];
};

/* What one block works on. */
struct DeltaTask {
    const Slice      *slice;
    const StateLayer *l;
    int               k_dim, v_dim, parts, head, k_head, col0, kind, n, row0, gen, n_path;
    bool              tree;
};

/* path: of the noted path, as whose row `row`; again: with its stored delta; anew: from what was put aside on,
 * committed: from the committed matrix on; kept: the result is put aside. */
struct Step { int row; bool path, again, anew, committed, kept; };

/* What the block's number says, before anything is read. FULL: k_dim and v_dim are DELTA_KEYS. */
template <bool FULL, int COLS> DEV DeltaTask delta_task(const DeltaArgs &a)
{
    DeltaTask t = {};
    t.k_dim = FULL ? DELTA_KEYS : a.spec.k_dim;
    t.v_dim = FULL ? DELTA_KEYS : a.spec.v_dim;
    t.parts = (t.v_dim + COLS - 1) / COLS;
    t.slice = a.rows.slices + BID / t.parts / a.spec.v_heads;
    t.head = BID / t.parts % a.spec.v_heads;
    t.k_head = t.head % a.spec.k_heads;
    t.col0 = BID % t.parts * COLS;
    return t;
}

/* What the slice says; n_path follows. */
DEV void read_slice(const DeltaArgs &a, DeltaTask &t)
{
    t.l = ld_table(&t.slice->layer) + a.il;
    t.kind = ld_table(&t.slice->kind);
    t.tree = t.kind == SLICE_TREE;
    t.n = ld_table(&t.slice->n);
    t.row0 = ld_table(&t.slice->row0);
    t.gen = ld_table(&t.slice->gen);
}

DEV int steps_of(const DeltaTask &t, const DeltaSteps &s) { return t.n_path + (t.tree ? s.steps : t.n); }

DEV Step step_at(const DeltaTask &t, const DeltaSteps &s, int m)
{
    if (m < t.n_path) return Step{m, true, true, false, false, false};
    m -= t.n_path;
    if (!t.tree) return Step{m, false, false, false, false, false};
    const int code = s.step[m];
    return Step{code % AGAIN, false, (code & AGAIN) != 0, (code & ANEW) != 0, (code & COMMITTED) != 0,
                (code & KEPT) != 0};
}

/* Ancestors of a tree's rows as bits, by one warp: in each turn twice as many are known. */
DEV void find_lines(const DeltaTask &t, DeltaSteps &s)
{
    const int lane = TID & 31;
    for (int known = 1; known < t.n; known *= 2) {
        uint64_t line[2] = { 0, 0 };
        int far[2] = { -1, -1 };
        UNROLL
        for (int u = 0; u < 2; u++) {
            const int i = lane + 32 * u, r = i < t.n ? s.far[i] : -1;
            if (r >= 0) line[u] = s.line[r], far[u] = s.far[r];
        }
        sync_warp();
        UNROLL
        for (int u = 0; u < 2; u++) {
            const int i = lane + 32 * u;
            if (i < t.n) s.line[i] |= line[u], s.far[i] = far[u];
        }
        sync_warp();
    }
}

/* The tree's shape, by one warp: what a lane knows of rows lane and lane + 32 takes a loop over all rows, but no walk
 * from row to row. */
DEV void measure_tree(const DeltaTask &t, DeltaSteps &s)
{
    const int lane = TID & 31;
    int size[2] = { 1, 1 }, before[2] = { 0, 0 }, later[2] = { 0, 0 };
    find_lines(t, s);
    for (int r = 0; r < t.n; r++) {
        const uint64_t line = s.line[r];
        size[0] += (uint32_t) line >> lane & 1, size[1] += (uint32_t) (line >> 32) >> lane & 1;
    }
    UNROLL
    for (int u = 0; u < 2; u++) {
        const int i = lane + 32 * u;
        if (i < t.n) s.size[i] = size[u], s.kept[i] = 0;
    }
    sync_warp();
    for (int r = 0; r < t.n; r++) {
        const int up = s.up[r], rows = s.size[r];
        UNROLL
        for (int u = 0; u < 2; u++) {
            const int i = lane + 32 * u;
            if (i >= t.n || up != s.up[i] || r == i) continue;
            const bool first = rows < size[u] || (rows == size[u] && r < i);
            before[u] += first ? rows : 0, later[u] += !first;
        }
    }
    UNROLL
    for (int u = 0; u < 2; u++) {
        const int i = lane + 32 * u;
        if (i < t.n) s.before[i] = before[u], s.last[i] = later[u] == 0;
    }
    sync_warp();
}

/* Lists a tree's steps, by one warp, from tables alone. */
DEV void list_steps(const DeltaArgs &a, const DeltaTask &t, DeltaSteps &s)
{
    const int lane = TID & 31;
    bool chain = true;
    for (int i = lane; i < t.n; i += 32) {
        const int up = ld_table(a.rows.parent + t.row0 + i);
        chain = chain && up == i - 1;
        s.up[i] = s.far[i] = up;
        s.line[i] = up < 0 ? 0 : (uint64_t) 1 << up;
        s.step[i] = (uint16_t) i;
    }
    if (lane == 0) s.steps = t.n;
    sync_warp();
    if (warp_ballot(!chain) == 0) return;                      /* as most drafts are */
    measure_tree(t, s);
    for (int i = lane; i < t.n; i += 32) {
        const uint64_t line = s.line[i];
        int place = s.before[i], passed = 0, between = 0;      /* ancestors: all, and those below the main line */
        for (int r = i - 1; r >= 0; r--) {                     /* a parent comes before its children */
            if (!(line >> r & 1)) continue;
            place += 1 + s.before[r];
            passed++;
            if (!s.last[r]) between = passed;
        }
        s.place[i] = place;
        s.length[i] = s.before[i] ? 1 + between : 1;
        if (s.before[i] && between == 0 && s.up[i] >= 0) s.kept[s.up[i]] = 1;
    }
    sync_warp();
    for (int i = lane; i < t.n; i += 32) {
        int at = s.length[i] - 1, r = s.up[i];
        for (int other = 0; other < t.n; other++)
            if (s.place[other] < s.place[i]) at += s.length[other];
        if (s.place[i] == t.n - 1) s.steps = at + 1;
        s.step[at] = (uint16_t) (i | (s.kept[i] ? KEPT : 0));
        if (s.before[i] == 0) continue;
        for (int k = 1; k < s.length[i]; k++, r = s.up[r]) s.step[--at] = (uint16_t) (r | AGAIN);
        s.step[at] |= r < 0 ? ANEW | COMMITTED : ANEW;
    }
    sync_warp();
}

/* Where row `row` is in records with two banks. */
DEV size_t banked(int gen, int row) { return (size_t) (gen & 1) * ROWS_DECODE + (size_t) row; }

/* Decays and betas of steps [m, m + GATES), by one warp; record: the decays are stored. */
DEV void prepare_gates(const DeltaArgs &a, const DeltaTask &t, const DeltaSteps &s, float *decays, float *betas, int m,
                       bool record)
{
    const size_t heads = (size_t) a.spec.v_heads, head = (size_t) t.head;
    const int i = m + (TID & 31);
    if (i >= steps_of(t, s)) return;
    const Step step = step_at(t, s, i);
    if (step.path) {
        const int row = ld(&t.slice->path[step.row]);
        decays[i % (2 * GATES)] = ld(ld(&t.l->rec_a) + banked(t.gen - 1, row) * heads + head);
        return;
    }
    const size_t at = (size_t) (t.row0 + step.row) * heads + head;
    const float alpha = ld(a.alpha + at), beta = ld(a.beta + at), by = ld(a.a + head), dt = ld(a.dt + head);
    const float decay = f32_exp(f32_mul(by, f32_softplus(f32_add(alpha, dt))));
    decays[i % (2 * GATES)] = decay;
    betas[i % (2 * GATES)] = f32_sigmoid(beta);
    if (record && !step.again) st(ld(&t.l->rec_a) + banked(t.gen, step.row) * heads + head, decay);
}

/* What a lane has of a step before it is prepared: half of the warp of the query, the other half of the key. */
template <int COLS> struct DeltaRow { float x[PER_LANE], v[COLS / 32]; };

template <int COLS>
DEV void fetch_row(DeltaRow<COLS> &r, const DeltaArgs &a, const DeltaTask &t, const DeltaSteps &s, int m)
{
    if (m >= steps_of(t, s)) return;
    const int lane = TID & 31, first = lane & 15;
    const size_t key_cols = (size_t) (a.spec.k_heads * t.k_dim), key_at = (size_t) (t.k_head * t.k_dim + first);
    const size_t values = (size_t) (a.spec.v_heads * t.v_dim), at = (size_t) (t.head * t.v_dim + t.col0 + lane);
    const Step step = step_at(t, s, m);
    const float *from, *v;
    if (step.path) {
        const int row = ld(&t.slice->path[step.row]);
        from = ld(&t.l->rec_k) + banked(t.gen - 1, row) * key_cols;
        v = ld(&t.l->rec_d) + (size_t) row * values;
    } else {
        const float *row = a.qkv + (size_t) (t.row0 + step.row) * (2 * key_cols + values);
        from = row + (lane >= 16 ? key_cols : 0);
        v = row + 2 * key_cols;
    }
    UNROLL
    for (int e = 0; e < PER_LANE; e++) r.x[e] = 16 * e + first < t.k_dim ? ld(from + key_at + 16 * e) : 0;
    UNROLL
    for (int u = 0; u < COLS / 32; u++) r.v[u] = t.col0 + lane + 32 * u < t.v_dim ? ld(v + at + 32 * u) : 0;
}

/* Those of steps [m, m + BATCH) that are this warp's, every second one: *next is the first of them, and the one after
 * these in the end. by: for queries. Of all blocks that have the same key or decay, one stores the record. */
template <int COLS>
DEV void prepare(DeltaRow<COLS> &next, const DeltaArgs &a, const DeltaTask &t, DeltaShared<COLS> &s, int m, float by)
{
    const int lane = TID & 31, first = lane & 15, part = (TID - COLS) >> 5, steps = steps_of(t, s);
    const bool keys = lane >= 16, recorder = t.tree && t.col0 == 0;
    if (part == 1 && m % GATES == 0) prepare_gates(a, t, s, s.a, s.b, m, recorder);
    UNROLL_BY(1)
    for (int i = m + part; i < m + BATCH && i < steps; i += 2) {
        DeltaRow<COLS> r = next;
        fetch_row(next, a, t, s, i + 2);
        const Step step = step_at(t, s, i);
        const bool record = recorder && !step.again && t.head < a.spec.k_heads && keys;
        const int slot = i % SLOTS;                /* within the choice, gcc's UBSan leaves it undefined */
        float *to = (keys ? s.k[slot] : s.q[slot]) + first, *stored = nullptr;
        if (record) {
            const size_t row = banked(t.gen, step.row) * (size_t) a.spec.k_heads + (size_t) t.k_head;
            stored = ld(&t.l->rec_k) + row * (size_t) t.k_dim + first;
        }
        float acc = 0, r_by = 1;
        if (!step.path) {                          /* of the path they are normalised */
            UNROLL
            for (int e = 0; e < PER_LANE; e++) acc = f32_fma(r.x[e], r.x[e], acc);
            r_by = f32_div(1.0f, f32_sqrt(f32_add(sum_of_16(acc), a.spec.eps)));
        }
        UNROLL
        for (int e = 0; e < PER_LANE; e++) {
            if (16 * e + first >= t.k_dim) continue;
            const float x = f32_mul(f32_mul(r.x[e], r_by), keys ? 1.0f : by);
            to[16 * e] = x;
            if (record) st(stored + 16 * e, x);
        }
        UNROLL
        for (int u = 0; u < COLS / 32; u++) s.v[slot][lane + 32 * u] = r.v[u];
    }
}

/* A thread's column: in registers, which need its length and the matrix's when compiling; else in shared memory. */
struct FullColumn { enum { COLS = DELTA_COLS }; float S[DELTA_KEYS]; };
struct AnyColumn { enum { COLS = DELTA_ANY_COLS }; float *S; int k_dim, v_dim; };
DEV float &value(FullColumn &c, int i) { return c.S[i]; }
DEV float &value(AnyColumn &c, int i) { return c.S[i * DELTA_ANY_COLS]; }
DEV int rows_of(const FullColumn &) { return DELTA_KEYS; }
DEV int rows_of(const AnyColumn &c) { return c.k_dim; }
DEV int cols_of(const FullColumn &) { return DELTA_KEYS; }
DEV int cols_of(const AnyColumn &c) { return c.v_dim; }

template <class C> DEV void load(C &c, const float *matrix)
{
    UNROLL
    for (int i = 0; i < rows_of(c); i++) value(c, i) = ld(matrix + i * cols_of(c));
}

template <class C> DEV void store(float *matrix, C &c)
{
    UNROLL
    for (int i = 0; i < rows_of(c); i++) st(matrix + i * cols_of(c), value(c, i));
}

/* S' = k d + T ends a row, whose output, the sum of q_i * S'_i, is *sum; T = a S' begins its successor, and *next is
 * the sum of k_next_i * T_i. */
DEV void visit_value(float *sum, float *next, float &value, float k, float d, float q, float k_next, float a_next)
{
    const float full = f32_fma(k, d, value), t = f32_mul(a_next, full);
    *sum = f32_fma(q, full, *sum);
    value = t;
    *next = f32_fma(k_next, t, *next);
}

DEV float visit(float *next, AnyColumn &c, const float *k, float d, const float *q, const float *k_next, float a_next)
{
    float sum = 0, kv = 0;
    for (int i = 0; i < c.k_dim; i++) visit_value(&sum, &kv, value(c, i), k[i], d, q[i], k_next[i], a_next);
    *next = kv;
    return sum;
}

/* Factors are on their way from shared memory while those before them are used. */
enum { AHEAD = 7 };
DEV float visit(float *next, FullColumn &c, const float *k, float d, const float *q, const float *k_next, float a_next)
{
    float4 x[AHEAD + 1], y[AHEAD + 1], z[AHEAD + 1];
    float sum = 0, kv = 0;
    UNROLL
    for (int i = -AHEAD; i < DELTA_KEYS / 4; i++) {
        const int later = i + AHEAD, to = later % (AHEAD + 1), at = i & AHEAD;
        if (later < DELTA_KEYS / 4) {
            x[to] = ((const float4 *) k)[later];
            y[to] = ((const float4 *) q)[later];
            z[to] = ((const float4 *) k_next)[later];
        }
        if (i < 0) continue;
        visit_value(&sum, &kv, c.S[4 * i], x[at].x, d, y[at].x, z[at].x, a_next);
        visit_value(&sum, &kv, c.S[4 * i + 1], x[at].y, d, y[at].y, z[at].y, a_next);
        visit_value(&sum, &kv, c.S[4 * i + 2], x[at].z, d, y[at].z, z[at].z, a_next);
        visit_value(&sum, &kv, c.S[4 * i + 3], x[at].w, d, y[at].w, z[at].w, a_next);
    }
    *next = kv;
    return sum;
}

template <class C> DEV void put_aside(float *aside, C &c)
{
    UNROLL
    for (int i = 0; i < rows_of(c); i++) aside[i * C::COLS] = value(c, i);
}

template <class C> DEV void restore(C &c, const float *aside)
{
    UNROLL
    for (int i = 0; i < rows_of(c); i++) value(c, i) = aside[i * C::COLS];
}

/* The steps of a column, by its thread; the other warps wait for as many barriers. Where something happens to the
 * matrix between two steps, a visit ends the first before another begins the second. They are visits like all others,
 * with factors that change nothing: there is one copy of these instructions, since to fetch them for the first time
 * takes longer than to work them off. An idle visit before all others fetches them, while the launch before runs. */
template <class C> DEV void take_steps(const DeltaArgs &a, DeltaTask &t, DeltaShared<C::COLS> &s, C &c)
{
    const int col = t.col0 + TID;
    const bool there = col < t.v_dim;
    const size_t values = (size_t) (a.spec.v_heads * t.v_dim), at = (size_t) (t.head * t.v_dim + col);
    float *out = nullptr, *deltas = nullptr, *aside = s.aside[0] + TID;
    int steps = 0, open = -1, was = 0;             /* the row whose output is wanted; the slot of the step before */
    bool begun = false, keep = false, folds = false;           /* that step is begun; its result is put aside */
    float d = 1;
    for (int j = -1; j <= steps; j++) {
        const bool idle = j < 0, last = j == steps;
        if (j > 0 && j % BATCH == 0) sync_warp(), sync_block();
        if (!there && !idle) continue;
        const bool stores = (folds && j == t.n_path) || (last && t.kind == SLICE_CHAIN);
        Step step = {};
        if (!idle && !last) step = step_at(t, s, j);
        const int now = idle || last ? was : j % SLOTS, gate = j & (2 * GATES - 1);
        const bool apart = idle || last || stores || keep || step.anew;
        float given = 0, kv = 0;
        if (step.again && !step.path) given = ld(deltas + (size_t) step.row * values);
        for (bool ends = idle || (begun && apart);; ends = false) {
            if (!ends && apart) {
                if (stores) store(out, c);
                if (keep) put_aside(aside, c);
                if (step.committed) load(c, out);
                else if (step.anew) restore(c, aside);
                if (idle || last) break;
            }
            const float *k = idle ? s.aside[0] : begun ? s.k[was] : s.none;
            const float o = visit(&kv, c, k, d, idle ? s.aside[0] : s.q[was], idle ? s.aside[0] : s.k[now],
                                  ends ? 1.0f : s.a[gate]);
            if (open >= 0) st(a.y + (size_t) (t.row0 + open) * values + at, o);
            /* Stored also where nobody reads it, else compilers make the second sum apart from the first. */
            const float v = s.v[idle ? SLOTS : now][TID];
            const float made = f32_mul(ends ? 1.0f : s.b[gate], f32_sub(v, kv));
            s.v[ends ? SLOTS : now][TID] = made;
            d = ends ? 1.0f : !step.again ? made : step.path ? v : given;
            if (!ends) break;
            begun = false, open = -1;
        }
        if (last) break;
        if (idle) {
            read_slice(a, t);
            const int set_in = ld_table(&t.slice->set_in), set_out = ld_table(&t.slice->set_out);
            const size_t one = (size_t) (t.k_dim * t.v_dim), set = one * (size_t) a.spec.v_heads;
            float *matrix = ld_table(&t.l->matrix) + (size_t) t.head * one + (size_t) col;
            deltas = ld_table(&t.l->rec_d) + at;
            pass_wait();
            if (there) load(c, matrix + (size_t) set_in * set);
            out = matrix + (size_t) set_out * set;
            t.n_path = pending(t.slice, t.l, MARK_MATRIX);
            folds = t.tree && (t.n_path || set_in != set_out);
            if (t.tree) sync_block();              /* the steps are listed */
            sync_block();                          /* the first of them are prepared */
            steps = steps_of(t, s);
            continue;
        }
        open = step.again ? -1 : step.row;
        if (t.tree && open >= 0) st(deltas + (size_t) open * values, d);
        begun = true, keep = step.kept, was = now;
    }
}

/* Two warps prepare, a batch ahead of the others, which have columns. */
template <class C> DEV void delta_rule(const DeltaArgs &a, DeltaTask &t, DeltaShared<C::COLS> &s, C &c)
{
    pass_next();
    if (TID < C::COLS) {
        take_steps(a, t, s, c);
        return;
    }
    for (int i = TID - C::COLS; i < DELTA_KEYS; i += 64) s.none[i] = -0.0f;
    const float by = f32_div(1.0f, f32_sqrt(f32_of_int(t.k_dim)));
    read_slice(a, t);
    if (t.tree && TID >= C::COLS + 32) list_steps(a, t, s);
    pass_wait();
    t.n_path = pending(t.slice, t.l, MARK_MATRIX);
    if (t.tree) sync_block();
    const int steps = steps_of(t, s);
    DeltaRow<C::COLS> next;
    fetch_row(next, a, t, s, (TID - C::COLS) >> 5);
    for (int m = 0; m <= steps; m += BATCH) {
        prepare(next, a, t, s, m, by);
        sync_block();
    }
    if (TID == C::COLS)
        set_mark(t.slice, t.l, MARK_MATRIX, a.tickets + (t.slice - a.rows.slices), a.spec.v_heads * t.parts);
}

/* Without the number of blocks nvcc saves registers for sm_100 and waits for each factor. */
KERNEL_BLOCKS(DELTA_COLS + 64, 2, delta_128, DeltaArgs)
{
    SHARED(DeltaShared<DELTA_COLS>, s);
    FullColumn c = {};
    DeltaTask t = delta_task<true, DELTA_COLS>(a);
    delta_rule(a, t, s, c);
}

/* Heads of any size. */
struct DeltaAnyShared { DeltaShared<DELTA_ANY_COLS> s; float S[DELTA_KEYS][DELTA_ANY_COLS]; };
KERNEL(DELTA_ANY_COLS + 64, delta_any, DeltaArgs)
{
    SHARED(DeltaAnyShared, s);
    AnyColumn c = { &s.S[0][TID % DELTA_ANY_COLS], a.spec.k_dim, a.spec.v_dim };
    DeltaTask t = delta_task<false, DELTA_ANY_COLS>(a);
    delta_rule(a, t, s.s, c);
}
