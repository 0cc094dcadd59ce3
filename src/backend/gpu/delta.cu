/* delta.cu - the short convolution and the gated delta rule, with the state they keep from pass to pass:
 * cpu/simd_delta.c says what they do, and in which order. */
#include "backend/gpu/gpu_math.h"

/* Rows of the noted path that are not in the stored state yet. */
DEV int pending(const Slice *s, const StateLayer *l, int mark)
{
    return ld(ld(&l->mark) + mark) == ld(&s->gen) ? 0 : ld(&s->n_path);
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

/* The value of row i of rows [from, from + CONV_ROWS), whose own input goes to *own. */
template <int TAPS> DEV float conv_at(float *own, const ConvArgs &a, const ConvShared &s, const float *x, int i,
                                      int from)
{
    const int lane = TID & 31;
    float in[TAPS], acc = 0;
    int at = i, committed = a.width - 2;
    UNROLL
    for (int back = 0; back < TAPS; back++) {
        in[back] = 0;
        if (back >= a.width) continue;
        if (at < 0) {
            in[back] = s.past[committed--][lane];
            continue;
        }
        in[back] = ld(x + (size_t) at * (size_t) a.channels);
        at = at < from ? at - 1 : s.up[at - from];             /* only chains have rows before these */
    }
    UNROLL
    for (int back = TAPS - 1; back >= 0; back--)               /* the oldest first */
        if (back < a.width) acc = f32_fma(s.w[a.width - 1 - back][lane], in[back], acc);
    *own = in[0];
    return f32_silu(acc);
}

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
    pass_wait();
    const Slice *sl = a.rows.slices + slice;
    const StateLayer *l = ld(&sl->layer) + a.il;
    const int n = ld(&sl->n), row0 = ld(&sl->row0), kind = ld(&sl->kind);
    const size_t first = (size_t) row0 * ch + (size_t) c;
    if (from && from >= n) return;
    if (from == 0 && there) {
        const int n_path = pending(sl, l, MARK_WINDOW);
        for (int j = warp; j < keep; j += CONV_WARPS) {        /* stored window, then path: the last of them */
            const int at = n_path + j;
            const float *row = ld(&l->window) + ((size_t) ld(&sl->set_in) * (size_t) keep + (size_t) at) * ch;
            if (at >= keep) row = ld(&l->rec_x) + (size_t) ld(&sl->path[at - keep]) * ch;
            s.past[j][lane] = ld(row + c);
        }
    }
    for (int i = TID; i < CONV_ROWS && from + i < n; i += CONV_THREADS) s.up[i] = ld(a.rows.parent + row0 + from + i);
    sync_block();
    if (from == 0 && TID == 0) set_mark(sl, l, MARK_WINDOW, a.tickets + slice, parts);
    if (!there) return;
    for (int i = from + warp; i < n && i < from + CONV_ROWS; i += CONV_WARPS) {
        const float *x = a.x + first;
        float own;
        const float y = a.width <= 4 ? conv_at<4>(&own, a, s, x, i, from) : conv_at<CONV_TAPS>(&own, a, s, x, i, from);
        st(a.y + first + (size_t) i * ch, y);
        if (kind == SLICE_TREE) st(ld(&l->rec_x) + (size_t) i * ch + (size_t) c, own);
    }
    if (from || kind == SLICE_BLOCK) return;
    const int rows = kind == SLICE_CHAIN ? n : 0;
    float *window = ld(&l->window) + (size_t) ld(&sl->set_out) * (size_t) keep * ch + (size_t) c;
    for (int j = warp; j < keep; j += CONV_WARPS) {
        const int i = rows + j - keep;                         /* of the rows, or before them */
        st(window + (size_t) j * ch, i < 0 ? s.past[rows + j][lane] : ld(a.x + first + (size_t) i * ch));
    }
}

/* ---- delta rule ----
 * Each thread of the first warp has a column of the head's matrix, over all rows of the slice, and keeps it in
 * registers: the matrix is read and written once. Sums are chains of dependent additions, which is what the time goes
 * to, so the output of a row and the first sum of its successor are made in one visit. Meanwhile the second warp
 * prepares the next rows in shared memory.
 * The work is a list of steps: the noted path's rows with their stored deltas, then the rows of the slice. A tree's
 * rows are visited depth first, smaller subtrees before larger ones, and most continue where the one before has ended.
 * The main line goes on to the largest child each time. The matrix of a row of it that has several children is put
 * aside; one place is enough, since the next row of the main line comes after all other children. A row that cannot
 * continue begins anew at its last ancestor of the main line, with the stored deltas of the rows between them. */

enum { DELTA_THREADS = 64, BATCH = 2, SLOTS = 3 * BATCH, PER_LANE = DELTA_KEYS / 16 };
enum { AGAIN = 64, ANEW = 128, COMMITTED = 256, KEPT = 512 };
enum { STEPS = ROWS_DECODE * (ROWS_DECODE + 1) / 2 };          /* at the most */

struct DeltaShared {
    float   k[SLOTS][DELTA_KEYS], q[SLOTS][DELTA_KEYS], a[SLOTS], b[SLOTS];
    float   aside[DELTA_KEYS][DELTA_COLS];
    /* Of a tree: parents, rows of the subtree, rows of siblings that come earlier, place in the order of visits. */
    int     up[ROWS_DECODE], size[ROWS_DECODE], before[ROWS_DECODE], place[ROWS_DECODE];
    int     length[ROWS_DECODE], steps;                        /* steps of a row, and of all */
    uint8_t last[ROWS_DECODE], kept[ROWS_DECODE];              /* the last of its siblings; is put aside */
    uint16_t step[STEPS];                                      /* row, AGAIN, ANEW, COMMITTED, KEPT */
};

/* What one block works on. */
struct DeltaTask {
    const Slice      *slice;
    const StateLayer *l;
    int               k_dim, v_dim, parts, head, k_head, col0, kind, n, row0, gen, n_path;
    bool              tree;
};

/* path: of the noted path; again: with its stored delta; anew: from what was put aside on, committed: from the
 * committed matrix on; kept: the result is put aside. */
struct Step { int row; bool path, again, anew, committed, kept; };

/* FULL: k_dim and v_dim are DELTA_KEYS. */
template <bool FULL> DEV DeltaTask delta_task(const DeltaArgs &a)
{
    DeltaTask t;
    t.k_dim = FULL ? DELTA_KEYS : a.spec.k_dim;
    t.v_dim = FULL ? DELTA_KEYS : a.spec.v_dim;
    t.parts = (t.v_dim + DELTA_COLS - 1) / DELTA_COLS;
    t.slice = a.rows.slices + BID / t.parts / a.spec.v_heads;
    t.l = ld(&t.slice->layer) + a.il;
    t.head = BID / t.parts % a.spec.v_heads;
    t.k_head = t.head % a.spec.k_heads;
    t.col0 = BID % t.parts * DELTA_COLS;
    t.kind = ld(&t.slice->kind);
    t.tree = t.kind == SLICE_TREE;
    t.n = ld(&t.slice->n);
    t.row0 = ld(&t.slice->row0);
    t.gen = ld(&t.slice->gen);
    t.n_path = pending(t.slice, t.l, MARK_MATRIX);
    return t;
}

DEV int steps_of(const DeltaTask &t, const DeltaShared &s) { return t.n_path + (t.tree ? s.steps : t.n); }

DEV Step step_at(const DeltaTask &t, const DeltaShared &s, int m)
{
    if (m < t.n_path) return Step{ld(&t.slice->path[m]), true, true, false, false, false};
    m -= t.n_path;
    if (!t.tree) return Step{m, false, false, false, false, false};
    const int code = s.step[m];
    return Step{code % AGAIN, false, (code & AGAIN) != 0, (code & ANEW) != 0, (code & COMMITTED) != 0,
                (code & KEPT) != 0};
}

/* The tree's shape, by one warp. */
DEV void measure_tree(const DeltaArgs &a, const DeltaTask &t, DeltaShared &s)
{
    const int lane = TID & 31;
    if (lane == 0) s.steps = 0;
    for (int i = lane; i < t.n; i += 32) {
        s.up[i] = ld(a.rows.parent + t.row0 + i);
        s.size[i] = s.kept[i] = 0;
    }
    sync_warp();
    for (int i = lane; i < t.n; i += 32)
        for (int r = i; r >= 0; r = s.up[r]) atomic_add(&s.size[r], 1);
    sync_warp();
    for (int i = lane; i < t.n; i += 32) {
        int before = 0, later = 0;
        for (int r = 0; r < t.n; r++) {
            if (s.up[r] != s.up[i] || r == i) continue;
            if (s.size[r] < s.size[i] || (s.size[r] == s.size[i] && r < i)) before += s.size[r];
            else later++;
        }
        s.before[i] = before;
        s.last[i] = later == 0;
    }
    sync_warp();
}

/* Lists a tree's steps, by one warp. */
DEV void list_steps(const DeltaArgs &a, const DeltaTask &t, DeltaShared &s)
{
    const int lane = TID & 31;
    measure_tree(a, t, s);
    for (int i = lane; i < t.n; i += 32) {
        int place = s.before[i], passed = 0, between = 0;      /* ancestors: all, and those below the main line */
        for (int r = s.up[i]; r >= 0; r = s.up[r]) {
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

/* Decay and beta of a step, by one thread; record: the decay is stored. */
DEV void prepare_gates(const DeltaArgs &a, const DeltaTask &t, DeltaShared &s, const Step &step, int slot, bool record)
{
    const size_t heads = (size_t) a.spec.v_heads, head = (size_t) t.head;
    if (step.path) {
        s.a[slot] = ld(ld(&t.l->rec_a) + banked(t.gen - 1, step.row) * heads + head);
        return;
    }
    const size_t at = (size_t) (t.row0 + step.row) * heads + head;
    const float wide = f32_softplus(f32_add(ld(a.alpha + at), ld(a.dt + head)));
    const float decay = f32_exp(f32_mul(ld(a.a + head), wide));
    s.a[slot] = decay;
    s.b[slot] = f32_sigmoid(ld(a.beta + at));
    if (record) st(ld(&t.l->rec_a) + banked(t.gen, step.row) * heads + head, decay);
}

/* Steps [m, m + BATCH), by one warp: half of it has the query, the other half the key. Of all blocks that have the same
 * key or decay, one stores the record. */
DEV void prepare(const DeltaArgs &a, const DeltaTask &t, DeltaShared &s, int m)
{
    const int lane = TID & 31, first = lane & 15, steps = steps_of(t, s);
    const bool keys = lane >= 16, recorder = t.tree && t.col0 == 0;
    const size_t key_cols = (size_t) (a.spec.k_heads * t.k_dim), key_at = (size_t) (t.k_head * t.k_dim + first);
    const size_t width = 2 * key_cols + (size_t) (a.spec.v_heads * t.v_dim);
    const float by = keys ? 1.0f : f32_div(1.0f, f32_sqrt(f32_of_int(t.k_dim)));
    float x[BATCH][PER_LANE];
    UNROLL
    for (int j = 0; j < BATCH; j++) {
        if (m + j >= steps) break;
        const Step step = step_at(t, s, m + j);
        const float *from = step.path ? ld(&t.l->rec_k) + banked(t.gen - 1, step.row) * key_cols
                                      : a.qkv + (size_t) (t.row0 + step.row) * width + (keys ? key_cols : 0);
        UNROLL
        for (int e = 0; e < PER_LANE; e++) x[j][e] = 16 * e + first < t.k_dim ? ld(from + key_at + 16 * e) : 0;
    }
    if (lane < BATCH && m + lane < steps) {
        const Step step = step_at(t, s, m + lane);
        prepare_gates(a, t, s, step, (m + lane) % SLOTS, recorder && !step.again);
    }
    UNROLL
    for (int j = 0; j < BATCH; j++) {
        if (m + j >= steps) break;
        const Step step = step_at(t, s, m + j);
        const bool record = recorder && !step.again && t.head < a.spec.k_heads && keys;
        const int slot = (m + j) % SLOTS;          /* within the choice, gcc's UBSan leaves it undefined */
        float *to = keys ? s.k[slot] : s.q[slot], acc = 0;
        if (!step.path) {                          /* of the path they are normalised */
            UNROLL
            for (int e = 0; e < PER_LANE; e++) acc = f32_fma(x[j][e], x[j][e], acc);
            const float r = f32_div(1.0f, f32_sqrt(f32_add(sum_of_16(acc), a.spec.eps)));
            UNROLL
            for (int e = 0; e < PER_LANE; e++) x[j][e] = f32_mul(f32_mul(x[j][e], r), by);
        }
        UNROLL
        for (int e = 0; e < PER_LANE; e++) {
            if (16 * e + first >= t.k_dim) continue;
            to[16 * e + first] = x[j][e];
            if (record) st(ld(&t.l->rec_k) + banked(t.gen, step.row) * key_cols + key_at + 16 * e, x[j][e]);
        }
    }
}

/* A thread's column: in registers, which need its length and the matrix's when compiling; else in shared memory. */
struct FullColumn { float S[DELTA_KEYS]; };
struct AnyColumn { float *S; int k_dim, v_dim; };
DEV float &value(FullColumn &c, int i) { return c.S[i]; }
DEV float &value(AnyColumn &c, int i) { return c.S[i * DELTA_COLS]; }
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

/* T = a * S; returns the sum of k_i * T_i. */
template <class C> DEV float begin(C &c, const float *k, float a)
{
    float sum = 0;
    UNROLL
    for (int i = 0; i < rows_of(c); i++) {
        value(c, i) = f32_mul(a, value(c, i));
        sum = f32_fma(k[i], value(c, i), sum);
    }
    return sum;
}

/* S' = k d + T; returns the sum of q_i * S'_i. */
template <class C> DEV float finish(C &c, const float *k, float d, const float *q)
{
    float sum = 0;
    UNROLL
    for (int i = 0; i < rows_of(c); i++) {
        value(c, i) = f32_fma(k[i], d, value(c, i));
        sum = f32_fma(q[i], value(c, i), sum);
    }
    return sum;
}

/* finish for one row and begin for its successor; *next: the latter's sum. */
template <class C> DEV float finish_begin(float *next, C &c, const float *k, float d, const float *q,
                                          const float *k_next, float a_next)
{
    float sum = 0, kv = 0;
    UNROLL
    for (int i = 0; i < rows_of(c); i++) {
        const float full = f32_fma(k[i], d, value(c, i)), t = f32_mul(a_next, full);
        sum = f32_fma(q[i], full, sum);
        value(c, i) = t;
        kv = f32_fma(k_next[i], t, kv);
    }
    *next = kv;
    return sum;
}

template <class C> DEV void put_aside(float *aside, C &c)
{
    UNROLL
    for (int i = 0; i < rows_of(c); i++) aside[i * DELTA_COLS] = value(c, i);
}

template <class C> DEV void restore(C &c, const float *aside)
{
    UNROLL
    for (int i = 0; i < rows_of(c); i++) value(c, i) = aside[i * DELTA_COLS];
}

/* T = a * S, S' = k d + T with a stored delta. */
template <class C> DEV void replay(C &c, const float *k, float a, float d)
{
    UNROLL
    for (int i = 0; i < rows_of(c); i++) value(c, i) = f32_fma(k[i], d, f32_mul(a, value(c, i)));
}

/* Both warps take the same steps: the second is one batch ahead. */
template <class C> DEV void delta_rule(const DeltaArgs &a, const DeltaTask &t, DeltaShared &s, C &c)
{
    const int col = t.col0 + (TID & 31), set_in = ld(&t.slice->set_in), set_out = ld(&t.slice->set_out);
    const bool prepares = TID >= 32, columns = !prepares && col < t.v_dim;
    const size_t values = (size_t) (a.spec.v_heads * t.v_dim), at = (size_t) (t.head * t.v_dim + col);
    const size_t keys = 2 * (size_t) (a.spec.k_heads * t.k_dim), set = (size_t) t.k_dim * values;
    float *matrix = ld(&t.l->matrix) + (size_t) t.head * (size_t) (t.k_dim * t.v_dim) + (size_t) col;
    float *out = matrix + (size_t) set_out * set, *deltas = ld(&t.l->rec_d) + at;
    float *aside = &s.aside[0][TID & 31];
    if (columns) load(c, matrix + (size_t) set_in * set);
    if (prepares && t.tree) list_steps(a, t, s);
    if (prepares) prepare(a, t, s, 0);
    sync_block();
    if (TID == 0)
        set_mark(t.slice, t.l, MARK_MATRIX, a.tickets + (t.slice - a.rows.slices), a.spec.v_heads * t.parts);
    const int steps = steps_of(t, s);
    const bool folds = t.tree && (t.n_path || set_in != set_out);
    int open = -1, was = 0;                        /* the row that is begun; the slot of the step before */
    bool keep = false;
    float d = 0;
    for (int m = 0; m < steps; m += BATCH) {
        if (prepares) prepare(a, t, s, m + BATCH);
        for (int j = m; columns && j < m + BATCH && j < steps; j++) {
            const Step step = step_at(t, s, j);
            const int now = j % SLOTS;
            const float *v = a.qkv + (size_t) (t.row0 + step.row) * (keys + values) + keys + at;
            const float given = step.again ? ld(deltas + (size_t) step.row * values) : ld(v);
            float o = 0, kv = 0;
            if (folds && j == t.n_path) store(out, c);
            if (open >= 0 && !step.again && !step.anew && !keep) {
                o = finish_begin(&kv, c, s.k[was], d, s.q[was], s.k[now], s.a[now]);
            } else {
                if (open >= 0) o = finish(c, s.k[was], d, s.q[was]);
                if (keep) put_aside(aside, c);
                if (step.committed) load(c, out);
                else if (step.anew) restore(c, aside);
                if (step.again) replay(c, s.k[now], s.a[now], given);
                else kv = begin(c, s.k[now], s.a[now]);
            }
            if (open >= 0) st(a.y + (size_t) (t.row0 + open) * values + at, o);
            open = step.again ? -1 : step.row;
            keep = step.kept;
            was = now;
            if (open < 0) continue;
            d = f32_mul(s.b[now], f32_sub(given, kv));
            if (t.tree) st(deltas + (size_t) open * values, d);
        }
        sync_block();
    }
    if (!columns) return;
    if (open >= 0) st(a.y + (size_t) (t.row0 + open) * values + at, finish(c, s.k[was], d, s.q[was]));
    if (t.kind == SLICE_CHAIN || (folds && steps == t.n_path)) store(out, c);
}

KERNEL(DELTA_THREADS, delta_128, DeltaArgs)
{
    SHARED(DeltaShared, s);
    FullColumn c;
    pass_next();
    pass_wait();
    delta_rule(a, delta_task<true>(a), s, c);
}

/* Heads of any size. */
struct DeltaAnyShared { DeltaShared s; float S[DELTA_KEYS][DELTA_COLS]; };
KERNEL(DELTA_THREADS, delta_any, DeltaArgs)
{
    SHARED(DeltaAnyShared, s);
    AnyColumn c = { &s.S[0][TID & 31], a.spec.k_dim, a.spec.v_dim };
    pass_next();
    pass_wait();
    delta_rule(a, delta_task<false>(a), s.s, c);
}
