/* ops_attention.c - attention against doubles, computed from keys and values as their types store them. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "backend/cpu/kv_panels.h"
#include "ops_cases.h"
#include "ops_pass.h"
#include "part.h"

/* ---- in double ---- */

/* x as attention sees it: rounded to what the type stores. */
static void as_stored(const Run *r, float *x, Type t, int32_t n)
{
    uint8_t row[4096];
    run_must(r, type_row_bytes(t, n) <= sizeof row, "a row of at most 4096 bytes");
    quant_encode(row, t, x, n);
    quant_decode(x, t, row, n);
}

/* Tolerance of attention against the exact result. Where values have integer codes, each weight of 128 positions is off
 * by up to 1 / 65278 of the largest, in either direction, and values are at most 1 here: where one weight is most of
 * the sum, that adds up to some 1e-4; over four seeds the most was 1.6e-4. */
static double allowed(const LayerSpec *s, double otherwise) { return codes_are_integers(s->v_type) ? 2e-4 : otherwise; }

/* q as keys of type t see it: rounded to 16 bits, block by block, if their codes are integers. */
static void as_asked(const Run *r, double *y, const float *q, Type t, int32_t n)
{
    bool ints = codes_are_integers(t);
    for (int32_t i = 0; i < n; i++) {
        float amax = 0;
        for (int32_t k = i / 32 * 32; ints && k < i / 32 * 32 + 32; k++) amax = fmaxf(amax, fabsf(q[k]));
        y[i] = amax > 0 ? (double) (amax / 32639) * (double) rintf(q[i] * (32639 / amax)) : (double) q[i];
        run_must(r, fabs(y[i] - (double) q[i]) <= (double) amax / 64000,
                 "half a unit, and floats rounded on the way");
    }
}

/* One head over positions [first, n). */
static void attend_head(double *y, const LayerSpec *s, const double *q, const float *k, const float *v, int32_t first,
                        int32_t n, double *p)
{
    const int32_t kc = s->kv_heads * s->head_dim, vc = s->kv_heads * value_dim(s);
    double top = -INFINITY, sum = 0;
    for (int32_t i = first; i < n; i++) {
        p[i] = 0;
        for (int32_t c = 0; c < s->head_dim; c++) p[i] += q[c] * (double) k[i * kc + c];
        p[i] *= (double) s->scale;
        if (s->softcap > 0) p[i] = (double) s->softcap * tanh(p[i] / (double) s->softcap);
        top = fmax(top, p[i]);
    }
    for (int32_t i = first; i < n; i++) sum += p[i] = exp(p[i] - top);
    for (int32_t c = 0; c < value_dim(s); c++) {
        double o = 0;
        for (int32_t i = first; i < n; i++) o += p[i] * (double) v[i * vc + c];
        y[c] = o / sum;
    }
}

/* got must be near the double result of the row at position `own` of text[n], which sees positions [first, n).
 * Expensive, so done for the reference only: other backends are compared with its bits. */
static void expect_seen(Run *r, const char *what, const float *got, const LayerSpec *s, const int32_t *text,
                        int32_t first, int32_t own, int32_t n, double tolerance)
{
    if (!r->reference) return;
    const size_t mark = r->n_held;
    const int32_t yc = pass_cols(s), qc = s->heads * s->head_dim, kc = s->kv_heads * s->head_dim,
                  vc = s->kv_heads * value_dim(s);
    float *q = run_host(r, sizeof *q * (size_t) qc), *k = run_host(r, sizeof *k * (size_t) (kc * n)),
          *v = run_host(r, sizeof *v * (size_t) (vc * n));
    double *p = run_host(r, sizeof *p * (size_t) n), *asked = run_host(r, sizeof *asked * (size_t) qc),
           *want = run_host(r, sizeof *want * (size_t) yc);
    for (int32_t i = 0; i < n; i++) {
        pass_fill(k + i * kc, text[i], i, IN_K, kc, 1);
        pass_fill(v + i * vc, text[i], i, IN_V, vc, 1);
        as_stored(r, k + i * kc, s->k_type, kc);
        as_stored(r, v + i * vc, s->v_type, vc);
    }
    pass_fill(q, text[own], own, IN_Q, qc, 3);
    as_asked(r, asked, q, s->k_type, qc);
    for (int32_t h = 0; h < s->heads; h++) {
        const int32_t kv = h / (s->heads / s->kv_heads);
        attend_head(want + h * value_dim(s), s, asked + h * s->head_dim, k + kv * s->head_dim, v + kv * value_dim(s),
                    first, n, p);
    }
    run_expect(r, what, got, want, yc, allowed(s, tolerance));
    run_drop(r, mark);
}

static int32_t first_seen(const LayerSpec *s, int32_t pos)
{
    return s->window && pos >= s->window ? pos - s->window + 1 : 0;
}

/* The same for the last row of a path from position 0. */
static void expect_attention(Run *r, const char *what, const float *got, const LayerSpec *s, const int32_t *text,
                             int32_t n, double tolerance)
{
    expect_seen(r, what, got, s, text, first_seen(s, n - 1), n - 1, n, tolerance);
}

/* ---- linear states ---- */

/* A chunk after t->rows - 1 tokens. */
void ops_attention(Run *r, const Turn *t)
{
    enum { N = 12 };
    const LayerSpec *spec = &t->layer;
    const int32_t cols = pass_cols(spec);
    uint64_t seed = 11 + (uint64_t) t->turn;
    int32_t token[N], all[H_TEXT + N];
    Sess *s = sess_open(r, spec, t->rows + N, 0);
    if (t->rows > 1000) sess_grow_once(r, s, t->rows - 1, &seed);
    else sess_grow(r, s, t->rows - 1, 500, &seed);
    random_tokens(token, N, &seed);
    memcpy(all, s->text, sizeof(int32_t) * (size_t) s->P);
    memcpy(all + s->P, token, sizeof token);
    const float *y = sess_run(r, s, SLICE_CHAIN, N, token, NULL);
    run_give(r, t->name, y, N * cols);
    for (int32_t i = 0; i < N; i += N - 1) expect_attention(r, t->name, y + i * cols, spec, all, s->P + i + 1, 2e-6);
}

static const Type kv_types[] = { T_F16, T_BF16, T_Q8_0, T_Q5_1, T_Q5_0, T_Q4_1, T_Q4_0, T_TQ3_0 };
enum { N_KV = sizeof kv_types / sizeof *kv_types };

static float *run_given(Run *r, Sess *s, SliceKind kind, int32_t n, const int32_t *token, const int32_t *parent,
                        const char *what)
{
    float *y = sess_run(r, s, kind, n, token, parent);
    run_give(r, what, y, n * pass_cols(&s->spec));
    return y;
}

/* Head widths and group sizes alternate, so that all ways of sharing occur. */
static LayerSpec pair_spec(int32_t kt, int32_t vt)
{
    static const struct { int32_t heads, kv_heads; } shapes[] = { { 4, 2 }, { 3, 1 }, { 7, 1 }, { 2, 2 }, { 12, 1 },
                                                                  { 6, 1 }, { 1, 1 } };
    const int32_t turn = kt * 3 + vt;
    const bool wide = kv_types[kt] == T_TQ3_0 || kv_types[vt] == T_TQ3_0;
    return (LayerSpec) { .kind = LAYER_ATTENTION, .heads = shapes[turn % 7].heads,
                         .kv_heads = shapes[turn % 7].kv_heads, .scale = 0.1f,
                         .head_dim = wide ? 128 + 128 * (turn & 1) : turn % 6 == 5 ? 256 : 32 * (1 + turn % 6),
                         .value_dim = turn % 3 != 1 ? 0 : wide ? 256 - 128 * (turn & 1) : 32 * (1 + (turn + 2) % 4),
                         .k_type = kv_types[kt], .v_type = kv_types[vt], .window = turn % 4 == 3 ? 40 : 0,
                         .softcap = turn % 5 == 4 ? 8 : 0 };
}

/* All 64 pairs of types, across the border of a tile: a tree on a path that is not yet applied; its rows against chains
 * of their paths, and against attention in double over the stored values. */
void ops_pairs(Run *r, const Turn *t)
{
    enum { N = 24 };
    const int32_t kt = t->round / N_KV, vt = t->round % N_KV;
    const LayerSpec spec = pair_spec(kt, vt);
    const int32_t cols = pass_cols(&spec);
    uint64_t seed = 21 + (uint64_t) t->turn;
    int32_t token[N], parent[N], path[N], all[400];
    char what[64];
    snprintf(what, sizeof what, "%s/%s", type_info(spec.k_type)->name, type_info(spec.v_type)->name);
    Sess *s = sess_open(r, &spec, 400, 0);
    run_use(r, t->round & 1);
    sess_grow(r, s, ((kt * 3 + vt) & 1 ? 97 : 225) + h_pick(&seed, 20), 50, &seed);
    run_use(r, 0);
    random_tokens(token, 20, &seed);
    h_tree(parent, 20, &seed);
    run_given(r, s, SLICE_TREE, 20, token, parent, what);
    sess_keep(s, path, h_path(path, parent, 10 + h_pick(&seed, 10)));
    random_tokens(token, N, &seed);
    h_tree(parent, N, &seed);
    const float *tree = run_given(r, s, SLICE_TREE, N, token, parent, what);
    run_use(r, 1);
    for (int32_t row = N - 1; row >= 0; row -= 11) {
        const int32_t m = h_path(path, parent, row);
        memcpy(all, s->text, sizeof(int32_t) * (size_t) s->P);
        for (int32_t i = 0; i < m; i++) all[s->P + i] = token[path[i]];
        const float *y = run_given(r, s, SLICE_CHAIN, m, all + s->P, NULL, what);
        run_same(r, what, tree + row * cols, y + (m - 1) * cols, cols);
        expect_attention(r, what, tree + row * cols, &spec, all, s->P + m, 1e-5);
    }
}

/* Texts of several splits (t->rows long): one row alone, which is divided by splits, and the same row among others,
 * which is not. */
void ops_splits(Run *r, const Turn *t)
{
    enum { N = 12 };
    const int32_t way = t->round, length = t->turn / 4, zero = 0, root = -1;
    const LayerSpec spec = { .kind = LAYER_ATTENTION, .heads = 4, .kv_heads = way == 1 ? 4 : 2, .head_dim = 128,
                             .scale = 0.1f, .k_type = kv_types[(2 * length + way) % N_KV],
                             .v_type = kv_types[(length + 3 * way) % N_KV], .window = way == 3 ? 5000 : 0 };
    if (PART > 1 && t->rows > 5000) return;
    const int32_t cols = pass_cols(&spec);
    int32_t token[N];
    uint64_t seed = 31 + (uint64_t) t->turn;
    Sess *s = sess_open(r, &spec, t->rows + 2 * N, 0);
    sess_grow_once(r, s, t->rows, &seed);
    random_tokens(token, N, &seed);
    const float *chain = run_given(r, s, SLICE_CHAIN, N, token, NULL, "chain over splits"),
                *tree = run_given(r, s, SLICE_TREE, N, token, NULL, "tree over splits");
    run_same(r, "tree over splits", tree, chain, N * cols);
    run_use(r, 1);
    for (int32_t row = 0; row < 6; row++) {
        const float *one = run_given(r, s, SLICE_TREE, 1, token + row, &root, "row over splits");
        run_same(r, "row over splits", one, chain + row * cols, cols);
        sess_keep(s, &zero, 1);
    }
    s->text[s->P] = token[6];
    expect_attention(r, "row over splits", chain + 6 * cols, &spec, s->text, s->P + 1, 1e-5);
}

/* A BLOCK on a linear state follows the committed text and sees itself; it first applies a noted path. */
void ops_blocks(Run *r, const Turn *t)
{
    enum { N = 20 };
    uint64_t seed = 8 + (uint64_t) t->turn;
    const int32_t n = pass_cols(&t->layer);
    int32_t token[N], parent[N], path[N];
    Sess *s = sess_open(r, &t->layer, 400, 0);
    sess_grow(r, s, 250, 100, &seed);
    random_tokens(token, N, &seed);
    h_tree(parent, N, &seed);
    sess_run(r, s, SLICE_TREE, N, token, parent);
    sess_keep(s, path, h_path(path, parent, N - 1));
    random_tokens(token, N, &seed);
    const float *chain = sess_run(r, s, SLICE_CHAIN, N, token, NULL);
    s->spec.causal = true;
    run_use(r, 1);
    const float *back = sess_run(r, s, SLICE_BLOCK, N, token, NULL);
    s->spec.causal = false;
    run_use(r, 0);
    const float *both = sess_run(r, s, SLICE_BLOCK, N, token, NULL);
    run_same(r, "causal block", back, chain, N * n);
    run_same(r, "last row of a block", both + (N - 1) * n, chain + (N - 1) * n, n);
    run_must(r, memcmp(both, chain, sizeof(float) * (size_t) n) != 0, "a first row that sees what comes after it");
    run_give(r, "block", both, N * n);
}

/* ---- rings ---- */

/* A windowed layer with a ring of slots gives what it gives with a slot for each position: chunks, trees on noted
 * paths, from the first position to several times around. */
void ops_wraps(Run *r, const Turn *t)
{
    enum { CHUNK = 100, N = 30 };
    LayerSpec round = t->layer;
    round.ring = (round.window + CHUNK + ROWS_DECODE + 127) / 128 * 128;
    const int32_t cols = pass_cols(&round);
    uint64_t seed = 91 + (uint64_t) t->turn;
    int32_t token[CHUNK], parent[N], path[N];
    Sess *s[2] = { sess_open(r, &round, 0, 0), sess_open(r, &t->layer, 1800, 0) };
    for (int step = 0; step < 30; step++) {
        const bool tree = step % 3;
        const int32_t n = tree ? 1 + h_pick(&seed, N) : CHUNK - h_pick(&seed, 40), row = h_pick(&seed, n);
        const float *y[2];
        random_tokens(token, n, &seed);
        h_tree(parent, n < N ? n : N, &seed);
        run_use(r, step & 1);
        for (int i = 0; i < 2; i++) {
            y[i] = sess_run(r, s[i], tree ? SLICE_TREE : SLICE_CHAIN, n, token, parent);
            if (tree) sess_keep(s[i], path, h_path(path, parent, row));
            else sess_advance(s[i]);
        }
        run_same(r, "a layer that wraps", y[0], y[1], n * cols);
        run_give(r, "a layer that wraps", y[0], n * cols);
    }
    run_must(r, s[0]->P > 2 * round.ring, "a text that goes around twice");
}

/* Canvases behind texts of several lengths, each overwritten by what comes after it: their rows see each other and what
 * the first of them sees, with a slot for each position and in a ring alike. */
void ops_canvases(Run *r, const Turn *t)
{
    enum { STEPS = 3, CHUNK = 230 };
    static const int32_t rows[STEPS] = { 256, 32, 100 };
    LayerSpec spec = t->layer, round;
    spec.canvas = true;
    round = spec;
    round.ring = (spec.window + CANVAS_MAX + ROWS_DECODE + 127) / 128 * 128;
    const int32_t cols = pass_cols(&spec), n_sess = spec.window ? 2 : 1;
    uint64_t seed = 61 + (uint64_t) t->turn;
    int32_t token[CANVAS_MAX], all[STEPS * CHUNK + CANVAS_MAX];
    Sess *s[2] = { sess_open(r, &spec, STEPS * CHUNK + CANVAS_MAX, 0), sess_open(r, &round, 0, 0) };
    for (int32_t step = 0; step < STEPS; step++) {
        const int32_t chunk = step == 0 ? t->rows : CHUNK - h_pick(&seed, 60);
        const float *y[2];
        run_use(r, step & 1);
        random_tokens(token, chunk, &seed);
        for (int32_t i = 0; i < n_sess; i++) {
            y[i] = sess_run(r, s[i], SLICE_CHAIN, chunk, token, NULL);
            sess_advance(s[i]);
        }
        if (n_sess > 1) run_same(r, "a text in a ring", y[1], y[0], chunk * cols);
        run_give(r, "a text behind a canvas", y[0], chunk * cols);
        const int32_t n = rows[(step + t->turn) % STEPS], P = s[0]->P;
        random_tokens(token, n, &seed);
        for (int32_t i = 0; i < n_sess; i++) y[i] = sess_run(r, s[i], SLICE_BLOCK, n, token, NULL);
        if (n_sess > 1) run_same(r, "a canvas in a ring", y[1], y[0], n * cols);
        run_give(r, "a canvas", y[0], n * cols);
        memcpy(all, s[0]->text, sizeof *all * (size_t) P);
        memcpy(all + P, token, sizeof *all * (size_t) n);
        for (int32_t i = 0; i < n; i += n - 1)
            expect_seen(r, "a canvas", y[0] + i * cols, &spec, all, first_seen(&spec, P), P + i, P + n, 1e-5);
    }
}

/* Expectation in double for row `row` of a block of n tokens after s; one position is a hole. */
static void expect_ring(Run *r, const float *got, const Sess *s, const int32_t *token, int32_t n, int32_t row,
                        int32_t hole)
{
    enum { DIM = 24, HEADS = 4, KV_HEADS = 2 };
    const LayerSpec *spec = &s->spec;
    const int32_t pos = s->P + row, ring = s->l.ring;
    float q[HEADS * DIM], k[KV_HEADS * DIM], v[KV_HEADS * DIM];
    pass_fill(q, token[row], pos, IN_Q, HEADS * DIM, 3);
    for (int32_t h = 0; h < HEADS; h++) {
        double sum = 0, o[DIM] = { 0 };
        for (int32_t at = s->P > ring ? s->P - ring : 0; at < s->P + n; at++) {
            if (at == hole || (spec->window && pos - at >= spec->window) || (spec->causal && at > pos)) continue;
            const int32_t t = at < s->P ? s->text[at] : token[at - s->P];
            pass_fill(k, t, at, IN_K, KV_HEADS * DIM, 1);
            pass_fill(v, t, at, IN_V, KV_HEADS * DIM, 1);
            as_stored(r, k, T_F16, KV_HEADS * DIM);
            double dot = 0;
            for (int c = 0; c < DIM; c++) dot += (double) q[h * DIM + c] * (double) k[h / 2 * DIM + c];
            const double p = exp(dot * (double) spec->scale);
            sum += p;
            for (int c = 0; c < DIM; c++) o[c] += p * (double) v[h / 2 * DIM + c];
        }
        for (int c = 0; c < DIM; c++) o[c] /= sum;
        run_expect(r, "block on a ring", got + h * DIM, o, DIM, 2e-6);
    }
}

/* A drafter's ring: contexts of any length in pieces of any size, holes, blocks that see each other or only earlier
 * rows. */
void ops_rings(Run *r, const Turn *t)
{
    enum { N = 9 };
    const int32_t round = t->round, ring = 32 + 16 * (round % 4), none = -1;
    const LayerSpec spec = { .kind = LAYER_ATTENTION, .heads = 4, .kv_heads = 2, .head_dim = 24, .scale = 0.2f,
                             .k_type = T_F16, .v_type = T_F32,
                             .window = round % 3 == 0 ? 0 : round % 3 == 1 ? 40 : 13, .causal = round & 1 };
    uint64_t seed = 5 + (uint64_t) t->turn;
    int32_t token[H_ROWS];
    Sess *s = sess_open(r, &spec, 0, ring);
    for (int32_t left = h_pick(&seed, 200), take; left > 0; left -= take) {
        take = 1 + h_pick(&seed, 90);
        random_tokens(token, take, &seed);
        Pass *p = pass_open(r);
        pass_add(p, s, SLICE_CHAIN, take, token, NULL);
        run_use(r, left & 1);
        pass_put(r, p, &spec);
        sess_advance(s);
    }
    const int32_t hole = s->P > 3 ? s->P - 3 : -1;
    run_use(r, 0);
    if (hole >= 0) r->b->copy_in(r->b, s->l.slot_pos + hole % ring, &none, sizeof none);
    random_tokens(token, N, &seed);
    const float *y = run_given(r, s, SLICE_BLOCK, N, token, NULL, "block on a ring");
    for (int32_t row = 0; r->reference && row < N; row++)
        expect_ring(r, y + row * pass_cols(&spec), s, token, N, row, hole);
}

/* ---- values that are no numbers ---- */

enum { ODD_AT = 150, ODD_ROWS = 12, ODD_ROW = 4 };         /* length of the text, rows of the chain, the odd row */

/* Values as they are stored, with a scale of 0 in the text and one odd scale or minimum: written through an image, like
 * a restored session. */
static void make_odd(Run *r, Sess *s, uint16_t odd, bool minimum)
{
    const LayerSpec *spec = &s->spec;
    const int32_t slots = ODD_AT + ODD_ROWS, slot = ODD_AT + ODD_ROW, in_panel = slot % VALUE_PANEL;
    const size_t row = type_row_bytes(spec->v_type, value_dim(spec));
    const PanelHead panel = panel_head(spec->v_type, VALUE_PANEL, value_dim(spec) / CODE_COLS);
    uint8_t *image = run_host(r, r->b->kv_bytes(r->b, spec, true, slots));
    r->b->kv_save(r->b, spec, true, s->l.v, slots, NULL, image);
    run_settle(r);
    memset(image + 2 * 20, 0, 2);
    memcpy(image + panel_offset(row, 1, VALUE_PANEL, slot, 0) + (minimum ? panel.minima : 0) + 2 * in_panel, &odd, 2);
    r->b->kv_load(r->b, spec, true, s->l.v, slots, image);
    run_settle(r);
}

/* Values whose scale or minimum is zero or no number: rows that see one of these have NaN in that block, no other row
 * changes. Rounds: five types, of scales and of minima, and each odd number. */
void ops_odd_scales(Run *r, const Turn *t)
{
    static const uint16_t odd[] = { 0x7e00, 0x7c00, 0xfc00, 0xfe01 };      /* NaN, both infinities, another NaN */
    const int32_t kind = t->round / 4;
    const LayerSpec spec = { .kind = LAYER_ATTENTION, .heads = 4, .kv_heads = 1, .head_dim = 64, .scale = 0.1f,
                             .k_type = T_F16, .v_type = kv_types[2 + kind % 5] };
    const int32_t cols = pass_cols(&spec);
    int32_t token[ODD_ROWS];
    uint64_t seed = 77 + (uint64_t) kind;
    Sess *s = sess_open(r, &spec, 400, 0);
    sess_grow(r, s, ODD_AT, 50, &seed);
    random_tokens(token, ODD_ROWS, &seed);
    Pass *p = pass_open(r);
    pass_add(p, s, SLICE_CHAIN, ODD_ROWS, token, NULL);
    pass_put(r, p, &spec);
    make_odd(r, s, odd[t->round % 4], kind >= 5 && codes_have_minimum(spec.v_type));
    Mat q = mat_make(r, ODD_ROWS, cols, 99, 3);
    Tensor ty = mat_blank(r, ODD_ROWS, cols);
    r->b->attend(r->b, &ty, &q.t, pass_rows(r, p), 0, &spec);
    float *y = mat_get(r, &ty);
    for (int32_t i = 0; i < ODD_ROWS; i++)
        for (int32_t c = 0; c < cols; c++) {
            const bool hit = i >= ODD_ROW && c % spec.head_dim < CODE_COLS;
            if (hit != (bool) isnan(y[i * cols + c]))
                run_fail(r, "%s: value %d of row %d is %g", type_info(spec.v_type)->name, (int) c, (int) i,
                         (double) y[i * cols + c]);
            if (hit) y[i * cols + c] = 0;          /* which NaN it is does not matter */
        }
    run_give(r, type_info(spec.v_type)->name, y, ODD_ROWS * cols);
}

enum { SOME = 100 };

/* Stores SOME rows behind a text, their keys odd in each head's first column or, a NaN, everywhere; 0: not odd. q:
 * their queries, with results on the host. */
static float *put_odd_keys(Run *r, Sess *s, float odd, const Tensor *q)
{
    const LayerSpec *spec = &s->spec;
    const int32_t cols = spec->kv_heads * spec->head_dim;
    int32_t token[SOME] = { 0 };
    Pass *p = pass_open(r);
    pass_add(p, s, SLICE_CHAIN, SOME, token, NULL);
    float *k = run_host(r, sizeof *k * (size_t) (SOME * cols));
    h_fill(k, SOME * cols, 5, 1);
    for (int32_t i = 0; i < SOME * cols; i++)
        if (isnan(odd) || (odd != 0 && i % spec->head_dim == 0)) k[i] = odd;
    Mat keys = mat_of(r, SOME, cols, k), values = mat_make(r, SOME, spec->kv_heads * value_dim(spec), 6, 1);
    Tensor y = mat_blank(r, SOME, pass_cols(spec));
    const Rows *rows = pass_rows(r, p);
    r->b->kv_put(r->b, &keys.t, &values.t, rows, 0, spec);
    r->b->attend(r->b, &y, q, rows, 0, spec);
    sess_advance(s);
    return mat_get(r, &y);
}

/* Scores that are no numbers: SOME rows with good keys, with odd ones and with good ones again, the border of a split
 * before, behind or among the odd ones; their queries see one kind or two, and one query is odd itself. A result is NaN
 * where a NaN is among what the query sees; what has a score of minus infinity does not count. */
void ops_odd_scores(Run *r, const Turn *t)
{
    enum { WINDOW = 40, ODD_QUERY = 75, TYPES = 5, NUMBERS = 3 };
    static const Type types[] = { T_F16, T_BF16, T_F32, T_Q8_0, T_Q4_0 };
    static const float odd[] = { NAN, INFINITY, 1e38f };       /* the last one is infinite in some types only */
    static const int32_t border[] = { SOME, SOME + 30, 2 * SOME };         /* where the split begins */
    const Type type = types[t->round / NUMBERS % TYPES];
    const int32_t number = t->round % NUMBERS;
    const bool codes = codes_are_integers(type), nan = number == 0 && !codes;  /* codes of a NaN are zeros */
    const LayerSpec spec = { .kind = LAYER_ATTENTION, .heads = 4, .kv_heads = 2, .head_dim = 64, .scale = 0.1f,
                             .window = WINDOW, .k_type = type, .v_type = codes ? T_Q8_0 : T_F16 };
    const int32_t cols = pass_cols(&spec), qc = spec.heads * spec.head_dim;
    const int32_t zero = 0;
    Sess *s = sess_open(r, &spec, SPLIT + 4 * SOME, 0);
    s->P = SPLIT - border[t->round / (NUMBERS * TYPES)];       /* where nothing is written before */
    float *q = run_host(r, sizeof *q * (size_t) (SOME * qc));
    h_fill(q, SOME * qc, 7, 3);
    /* Every second head has a negative first column: its scores with infinite keys are minus infinity. */
    for (int32_t i = 0; i < SOME * qc; i += spec.head_dim)
        q[i] = i / spec.head_dim % 2 ? -1 - fabsf(q[i]) : 1 + fabsf(q[i]);
    const Mat whole = mat_of(r, SOME, qc, q);
    for (int32_t i = 0; i < qc; i++) q[ODD_QUERY * qc + i] = NAN;
    const Mat with_odd = mat_of(r, SOME, qc, q);
    put_odd_keys(r, s, 0, &whole.t);               /* its first rows see what was never written */
    const float *there = put_odd_keys(r, s, odd[number], &whole.t), *behind = put_odd_keys(r, s, 0, &with_odd.t);
    run_give(r, "rows with odd keys", there, SOME * cols);
    run_give(r, "rows behind odd keys", behind, SOME * cols);
    for (int32_t i = 0; i < SOME * cols; i++) {
        const int32_t row = i / cols;
        const bool unseen = number == 1 && !codes && i % cols / value_dim(&spec) % 2;  /* minus infinity */
        run_must(r, isnan(there[i]) || !(nan || (unseen && row >= WINDOW - 1)), "NaN where nothing else is seen");
        run_must(r, isfinite(there[i]) || !(unseen && row < WINDOW - 1), "numbers beside minus infinity");
        if (row == ODD_QUERY || (nan && row < WINDOW - 1)) run_must(r, isnan(behind[i]), "NaN of a NaN");
        else if (row >= WINDOW - 1 || unseen) run_must(r, isfinite(behind[i]), "numbers of numbers");
    }
    /* A row alone: its splits may be divided. */
    run_use(r, 1);
    s->P -= SOME;
    const Mat one = mat_of(r, 1, qc, whole.h);
    Tensor y = mat_blank(r, 1, cols);
    Pass *p = pass_open(r);
    pass_add(p, s, SLICE_TREE, 1, &zero, NULL);
    r->b->attend(r->b, &y, &one.t, pass_rows(r, p), 0, &spec);
    run_same(r, "a row alone", mat_get(r, &y), behind, cols);
}
