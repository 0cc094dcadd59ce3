/* ops_state.c - rules of state, for attention and the delta net alike: a row's value and the state kept after it depend
 * only on its path, however passes were cut, cancelled, kept in part or shared with other sessions. */
#include <math.h>
#include <string.h>

#include "ops_cases.h"
#include "ops_pass.h"
#include "part.h"

static Sess *session(Run *r, const Turn *t) { return sess_open(r, &t->layer, 700, 0); }
static uint64_t seed_of(const Turn *t) { return 100 + (uint64_t) t->turn; }

static void give_state(Run *r, const char *what, const Sess *s)
{
    size_t n;
    const uint8_t *state = sess_state(r, s, &n);
    run_give_bytes(r, what, state, n);
}

/* Committed state of two sessions with the same text; folds first. */
static void same_state(Run *r, const char *what, const Sess *a, const Sess *b)
{
    size_t n, m;
    const uint8_t *x = sess_state(r, a, &n), *y = sess_state(r, b, &m);
    run_must(r, a->P == b->P && n == m, "texts of one length");
    for (size_t i = 0; i < n; i++)
        if (x[i] != y[i]) run_fail(r, "%s: byte %zu is %d, expected %d", what, i, x[i], y[i]);
}

/* A tree's row equals the last row of a chain over its path. */
void ops_trees(Run *r, const Turn *t)
{
    const int32_t cols = pass_cols(&t->layer);
    uint64_t seed = seed_of(t);
    int32_t token[64], parent[64], path[64], chain[64];
    Sess *s = session(r, t);
    run_use(r, 1);
    int32_t before = t->round < 3 ? h_pick(&seed, 30) : 240 + h_pick(&seed, 20);
    if (t->round & 1) before += (28 - before % 16) % 16;       /* the path begins and ends in different sixteens */
    sess_grow(r, s, before, 64, &seed);
    if (t->round & 1) {                            /* on a path that is not yet applied */
        random_tokens(token, 20, &seed);
        h_tree(parent, 20, &seed);
        sess_run(r, s, SLICE_TREE, 20, token, parent);
        sess_keep(s, path, h_path(path, parent, 12 + h_pick(&seed, 8)));
    }
    const int32_t n = t->round == 5 ? 64 : 1 + h_pick(&seed, 40);
    random_tokens(token, n, &seed);
    h_tree(parent, n, &seed);
    run_use(r, 0);
    const float *tree = sess_run(r, s, SLICE_TREE, n, token, parent);
    run_give(r, "tree", tree, n * cols);
    run_use(r, 1);
    for (int32_t row = 0; row < n; row += 1 + n / 12) {
        const int32_t m = h_path(path, parent, row);
        for (int32_t i = 0; i < m; i++) chain[i] = token[path[i]];
        const float *y = sess_run(r, s, SLICE_CHAIN, m, chain, NULL);
        run_same(r, "row of a tree", tree + row * cols, y + (m - 1) * cols, cols);
    }
}

/* One chain of n rows; n trees of one row; a tree that is a chain; chunks. Outputs and folded state. */
void ops_single_rows(Run *r, const Turn *t)
{
    enum { MOST = 150 };
    const int32_t cols = pass_cols(&t->layer), zero = 0, root = -1,
                  rows = t->layer.head_dim > 256 ? MOST / 2 : MOST;    /* wide heads take long under sanitizers */
    uint64_t seed = seed_of(t);
    int32_t token[MOST], path[64];
    Sess *s[4];
    for (int i = 0; i < 4; i++) s[i] = session(r, t);
    random_tokens(token, rows, &seed);
    const float *y = sess_run(r, s[0], SLICE_CHAIN, rows, token, NULL);
    run_give(r, "chain", y, rows * cols);
    sess_advance(s[0]);
    run_use(r, 1);
    for (int32_t i = 0; i < rows; i++) {
        const size_t mark = r->n_held;
        run_same(r, "single row", sess_run(r, s[1], SLICE_TREE, 1, token + i, &root), y + i * cols, cols);
        sess_keep(s[1], &zero, 1);
        run_drop(r, mark);
    }
    for (int32_t i = 0; i < 64; i++) path[i] = i;
    for (int32_t at = 0, n; at < rows; at += n) {
        n = rows - at < 37 ? rows - at : 37;
        const float *part = sess_run(r, s[2], SLICE_TREE, n, token + at, NULL);
        run_same(r, "tree that is a chain", part, y + at * cols, n * cols);
        sess_keep(s[2], path, n);
    }
    for (int32_t at = 0, n; at < rows; at += n) {
        n = rows - at < 70 ? rows - at : 70;
        run_same(r, "chunk", sess_run(r, s[3], SLICE_CHAIN, n, token + at, NULL), y + at * cols, n * cols);
        sess_advance(s[3]);
    }
    run_use(r, 0);
    for (int i = 1; i < 3; i++) sess_fold(r, s[i], s[i]->set);
    for (int i = 1; i < 4; i++) same_state(r, "state", s[i], s[0]);
    give_state(r, "state", s[0]);
}

/* One step of the rounds below. */
static void keep_some(Run *r, Sess *s, uint64_t *seed)
{
    const int32_t cols = pass_cols(&s->spec);
    int32_t token[64], parent[64], path[64];
    run_use(r, h_pick(seed, 2));
    if (h_pick(seed, 4) == 0) {                    /* abandoned */
        random_tokens(token, 30, seed);
        sess_run(r, s, SLICE_CHAIN, 30, token, NULL);
    }
    if (h_pick(seed, 5) == 0)                   /* a checkpoint: the current set and its noted path stay as they are */
        sess_fold(r, s, 2);
    const int32_t n = 1 + h_pick(seed, 30);
    random_tokens(token, n, seed);
    if (h_pick(seed, 4) == 0) {
        run_give(r, "chunk", sess_run(r, s, SLICE_CHAIN, n, token, NULL), n * cols);
        sess_advance(s);
        return;
    }
    h_tree(parent, n, seed);
    const float *y = sess_run(r, s, SLICE_TREE, n, token, parent);
    run_give(r, "tree", y, n * cols);
    if (h_pick(seed, 2))
        run_same(r, "pass run again", sess_run(r, s, SLICE_TREE, n, token, parent), y, n * cols);
    int32_t kept = h_path(path, parent, h_pick(seed, n));
    if (h_pick(seed, 3) == 0) kept = 1 + h_pick(seed, kept);
    sess_keep(s, path, kept);
}

/* Rounds of trees with random paths, sometimes taken back by some rows, sometimes a chunk between; every pass may run
 * twice, as after a cancelled one, and may follow a chain that is abandoned. The folded state equals that of the text
 * in one chain. */
void ops_keep(Run *r, const Turn *t)
{
    uint64_t seed = seed_of(t);
    Sess *s = session(r, t), *fresh = session(r, t);
    for (int step = 0; step < 9; step++) keep_some(r, s, &seed);
    run_use(r, 0);
    const int32_t set = t->round & 1 ? 2 : s->set;
    sess_fold(r, s, set);
    s->set = set;
    sess_run(r, fresh, SLICE_CHAIN, s->P, s->text, NULL);
    sess_advance(fresh);
    same_state(r, "kept state", s, fresh);
    give_state(r, "kept state", s);
    if (t->round & 1) return;
    sess_fold(r, s, set);                          /* folded in place: folding again changes nothing */
    same_state(r, "folded twice", s, fresh);
}

/* Each operation runs a second time after it has written its mark, as when a pass is cancelled between convolution and
 * delta rule. */
void ops_marks(Run *r, const Turn *t)
{
    enum { N = 10 };
    const LayerSpec *spec = &t->layer;
    uint64_t seed = 77 + (uint64_t) t->turn;
    const int32_t ch = sess_channels(spec);
    int32_t token[N], parent[N], path[N], other[N], mark[3];
    Sess *s = session(r, t), *plain = session(r, t), *both[2] = { s, plain };
    random_tokens(token, N, &seed);
    h_tree(parent, N, &seed);
    for (int i = 0; i < 2; i++) {
        sess_run(r, both[i], SLICE_TREE, N, token, parent);
        sess_keep(both[i], path, h_path(path, parent, N - 1));
    }
    random_tokens(token, N, &seed);
    const float *want = sess_run(r, plain, SLICE_TREE, N, token, parent);
    /* convolution only, with other tokens: its window is folded, the matrix is not */
    run_use(r, 1);
    random_tokens(other, N, &seed);
    Pass *p = pass_open(r);
    pass_add(p, s, SLICE_TREE, N, other, NULL);
    Mat x = pass_input(r, p, IN_X, ch, 1), w = delta_w(r, spec);
    Tensor y = mat_blank(r, N, ch);
    r->b->conv(r->b, &y, &x.t, &w.t, pass_rows(r, p), 0, spec);
    run_fetch(r, mark, s->l.mark, sizeof mark);
    run_must(r, mark[1] == s->gen && mark[2] != s->gen, "the window's mark alone");
    run_use(r, 0);
    run_same(r, "after a cancelled pass", sess_run(r, s, SLICE_TREE, N, token, parent), want, N * pass_cols(spec));
    run_give(r, "tree", want, N * pass_cols(spec));
}

/* Several sessions of different lengths, trees and a chunk in one pass give what each gives alone. */
void ops_neighbours(Run *r, const Turn *t)
{
    enum { N = 4, CHUNK = N - 1 };
    const int32_t cols = pass_cols(&t->layer);
    uint64_t seed = seed_of(t);
    Sess *together[N], *alone[N];
    int32_t token[N][64], parent[N][64], n[N], path[64];
    for (int i = 0; i < N; i++) {
        uint64_t one = seed + (uint64_t) i, two = one;
        together[i] = session(r, t);
        alone[i] = session(r, t);
        sess_grow(r, together[i], 20 * i * i, 64, &one);
        sess_grow(r, alone[i], 20 * i * i, 33, &two);
    }
    for (int round = 0; round < (PART > 1 ? 1 : 3); round++) {
        Pass *p = pass_open(r);
        for (int i = 0; i < N; i++) {
            n[i] = i == CHUNK ? 50 : 1 + h_pick(&seed, 14);
            random_tokens(token[i], n[i], &seed);
            h_tree(parent[i], n[i], &seed);
            pass_add(p, together[i], i == CHUNK ? SLICE_CHAIN : SLICE_TREE, n[i], token[i], parent[i]);
        }
        run_use(r, 0);
        const float *y = pass_run(r, p, &t->layer);
        run_give(r, "rows together", y, p->r.n * cols);
        run_use(r, 1);
        for (int i = 0; i < N; i++) {
            const float *mine = sess_run(r, alone[i], i == CHUNK ? SLICE_CHAIN : SLICE_TREE, n[i], token[i], parent[i]);
            run_same(r, "row next to others", y + p->t->slices[i].row0 * cols, mine, n[i] * cols);
        }
        for (int i = 0; i < CHUNK; i++) {
            const int32_t m = h_path(path, parent[i], n[i] - 1);
            sess_keep(together[i], path, m), sess_keep(alone[i], path, m);
        }
        sess_advance(together[CHUNK]), sess_advance(alone[CHUNK]);
    }
}

/* ---- the delta net in double ---- */

/* Row i of the convolution: u [channels]. */
static void convolve(double *u, const LayerSpec *s, const float *x, const float *w, int32_t i)
{
    const int32_t ch = sess_channels(s), taps = s->conv_width;
    for (int32_t c = 0; c < ch; c++) {
        u[c] = 0;
        for (int32_t t = 0; t < taps; t++) {
            const int32_t at = i - (taps - 1) + t;
            if (at >= 0) u[c] += (double) w[c * taps + t] * (double) x[at * ch + c];
        }
        u[c] /= 1 + exp(-u[c]);
    }
}

/* Value head m of a row: updates matrix M, the output is y. */
static void delta_head(double *y, double *M, const LayerSpec *s, const double *u, int32_t m, double decay, double beta)
{
    const double *q = u + m % s->k_heads * s->k_dim, *k = q + s->k_heads * s->k_dim,
                 *v = u + 2 * s->k_heads * s->k_dim + m * s->v_dim;
    double qq = 0, kk = 0;
    for (int32_t d = 0; d < s->k_dim; d++) qq += q[d] * q[d], kk += k[d] * k[d];
    const double qn = 1 / sqrt(qq + (double) s->eps) / sqrt(s->k_dim), kn = 1 / sqrt(kk + (double) s->eps);
    for (int32_t j = 0; j < s->v_dim; j++) {
        double kv = 0, o = 0;
        for (int32_t d = 0; d < s->k_dim; d++) kv += k[d] * kn * (M[d * s->v_dim + j] *= decay);
        for (int32_t d = 0; d < s->k_dim; d++)
            o += q[d] * qn * (M[d * s->v_dim + j] += k[d] * kn * beta * (v[j] - kv));
        y[j] = o;
    }
}

/* Convolution and delta rule over a text. */
void ops_delta(Run *r, const Turn *t)
{
    enum { N = 90 };
    const LayerSpec *s = &t->layer;
    const int32_t vals = pass_cols(s), heads = s->v_heads;
    uint64_t seed = 300 + (uint64_t) t->turn;
    int32_t token[N];
    random_tokens(token, N, &seed);
    Pass *p = pass_open(r);
    pass_add(p, session(r, t), SLICE_CHAIN, N, token, NULL);
    const float *y = pass_run(r, p, s);
    run_give(r, t->name, y, N * vals);
    if (!r->reference) return;
    const float *x = pass_input(r, p, IN_X, sess_channels(s), 1).h, *beta = pass_input(r, p, IN_BETA, heads, 2).h,
                *alpha = pass_input(r, p, IN_ALPHA, heads, 2).h, *w = delta_w(r, s).h, *a = delta_a(r, s).h,
                *dt = delta_dt(r, s).h;
    double *M = run_host(r, sizeof *M * sess_matrix(s)), *u = run_host(r, sizeof *u * (size_t) sess_channels(s)),
           *want = run_host(r, sizeof *want * (size_t) vals);
    for (int32_t i = 0; i < N; i++) {
        convolve(u, s, x, w, i);
        for (int32_t m = 0; m < heads; m++) {
            const double decay = exp((double) a[m] * log1p(exp((double) alpha[i * heads + m] + (double) dt[m])));
            delta_head(want + m * s->v_dim, M + (size_t) m * (size_t) (s->k_dim * s->v_dim), s, u, m, decay,
                       1 / (1 + exp(-(double) beta[i * heads + m])));
        }
        run_expect(r, t->name, y + i * vals, want, vals, 2e-6);
    }
}
