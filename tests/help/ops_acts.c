/* ops_acts.c - norms without weights, the activations of gates, tables of angles, attention in one operation. */
#include <math.h>
#include <string.h>

#include "ops_cases.h"
#include "ops_pass.h"

/* A norm without weights equals one with weights of 1. Heads are a third of the columns. */
void ops_norms_unweighted(Run *r, const Turn *t)
{
    const int32_t n = t->rows * t->cols, dim = t->cols / 3;
    float *one = run_host(r, sizeof *one * (size_t) t->cols), *y[2][4];
    for (int32_t i = 0; i < t->cols; i++) one[i] = 1;
    Mat w = mat_of(r, 1, t->cols, one), x = mat_make(r, t->rows, t->cols, 1, 3),
        dx = mat_make(r, t->rows, t->cols, 2, 1);
    for (int with = 0; with < 2; with++) {
        const Tensor *weights = with ? &w.t : NULL;
        Tensor plain = mat_blank(r, t->rows, t->cols), after = mat_blank(r, t->rows, t->cols),
               heads = mat_of(r, t->rows, t->cols, x.h).t, sum = mat_of(r, t->rows, t->cols, x.h).t;
        r->b->norm(r->b, &plain, &x.t, weights, 1e-6f);
        r->b->head_norm(r->b, &heads, weights, dim, 1e-6f);
        r->b->add_norm(r->b, &after, &sum, &dx.t, weights, 1e-6f);
        y[with][0] = mat_get(r, &plain), y[with][1] = mat_get(r, &heads), y[with][2] = mat_get(r, &after);
        y[with][3] = mat_get(r, &sum);
    }
    for (int i = 0; i < 4; i++) {
        run_same(r, t->name, y[0][i], y[1][i], n);
        run_give(r, t->name, y[0][i], n);
    }
    for (int32_t i = 0; i < n; i++) {
        double squares = 0;
        for (int32_t j = 0; j < dim; j++) squares += (double) x.h[i / dim * dim + j] * (double) x.h[i / dim * dim + j];
        const double want = (double) x.h[i] / sqrt(squares / dim + 1e-6);
        run_expect(r, t->name, &y[0][1][i], &want, 1, 2e-6);
    }
}

/* ---- activations: rounds ---- */

static double act_of(Act act, double x)
{
    switch (act) {
    case ACT_SILU:      return x / (1 + exp(-x));
    case ACT_GELU_TANH: return x / 2 * (1 + tanh(sqrt(2 / 3.14159265358979323846) * (x + 0.044715 * x * x * x)));
    case ACT_SIGMOID:   return 1 / (1 + exp(-x));
    default:            return x > 0 ? x + log1p(exp(-x)) : log1p(exp(x));
    }
}

static void expect_acts(Run *r, const Turn *t, const float *got, const float *x, const float *z)
{
    for (int32_t i = 0; i < t->rows * t->cols; i++) {
        const double want = act_of((Act) t->round, (double) x[i]) * (double) z[i];
        run_expect(r, t->name, &got[i], &want, 1, 3e-7);
    }
    run_give(r, t->name, got, t->rows * t->cols);
}

void ops_glu_acts(Run *r, const Turn *t)
{
    const uint64_t key = (uint64_t) t->turn / 4;
    Mat gate = mat_make(r, t->rows, t->cols, key, 12), up = mat_make(r, t->rows, t->cols, key + 50, 1);
    Tensor y = mat_blank(r, t->rows, t->cols);
    r->b->glu(r->b, &y, &gate.t, &up.t, (Act) t->round);
    expect_acts(r, t, mat_get(r, &y), gate.h, up.h);
}

/* One gate logit per column, and one per head of t->layer.head_dim columns: the latter equals a logit per column that
 * is the same within each head. */
void ops_gate_acts(Run *r, const Turn *t)
{
    const int32_t width = t->layer.head_dim, n = t->rows * t->cols;
    const uint64_t key = (uint64_t) t->turn / 4;
    float *wide = run_host(r, sizeof *wide * (size_t) n);
    Mat x = mat_make(r, t->rows, t->cols, key, 2), y = mat_of(r, t->rows, t->cols, x.h),
        logit = mat_make(r, t->rows, t->cols / width, key + 50, 12);
    for (int32_t i = 0; i < n; i++) wide[i] = logit.h[i / width];
    Mat all = mat_of(r, t->rows, t->cols, wide);
    r->b->gate(r->b, &x.t, &logit.t, (Act) t->round, width);
    r->b->gate(r->b, &y.t, &all.t, (Act) t->round, 1);
    const float *got = mat_get(r, &x.t);
    run_same(r, "a gate for each head", got, mat_get(r, &y.t), n);
    expect_acts(r, t, got, wide, x.h);
}

/* Infinities, NaN, zeros, and arguments outside the exponential's range. */
void ops_act_ends(Run *r, const Turn *t)
{
    float g[9] = { INFINITY, 1e30f, 100, 0, -0.0f, -100, -1e30f, NAN, -INFINITY }, one[9];
    const Act act = (Act) t->round;
    const bool grows = act != ACT_SIGMOID, product = act == ACT_SILU || act == ACT_GELU_TANH;
    const float nothing = act == ACT_SIGMOID ? 0.5f : act == ACT_SOFTPLUS ? 0.69314718f : 0;
    for (int i = 0; i < 9; i++) one[i] = 1;
    Mat gate = mat_of(r, 1, 9, g), up = mat_of(r, 1, 9, one);
    Tensor ty = mat_blank(r, 1, 9);
    r->b->glu(r->b, &ty, &gate.t, &up.t, act);
    const float *y = mat_get(r, &ty);
    run_must(r, y[0] == (grows ? INFINITY : 1) && y[1] == (grows ? 1e30f : 1) && y[2] == (grows ? 100 : 1),
             "large ends");
    run_must(r, fabsf(y[3] - nothing) < 1e-7f && fabsf(y[4] - nothing) < 1e-7f, "the values at zero");
    run_must(r, y[5] == 0 && y[6] == 0 && isnan(y[7]), "small ends, and NaN of NaN");
    run_must(r, product ? isnan(y[8]) : y[8] == 0, "minus infinity times nothing");
}

/* ---- rotation ---- */

/* A row of a table depends only on its lanes, not on the number of rows; heads may be wider than 2048. */
void ops_rope_table(Run *r, const Turn *t)
{
    enum { N = 600, ROT = 2560 };
    static const LayerSpec none = { .kind = LAYER_NONE };
    static const int32_t token[N];
    double *freq = run_host(r, sizeof *freq * ROT / 2), *want = run_host(r, sizeof *want * ROT);
    for (int i = 0; i < ROT / 2; i++) freq[i] = pow(10000, -2.0 * i / ROT);
    const Rope rope = { ROT, true, 1, run_memory(r, sizeof *freq * ROT / 2, freq), NULL };
    Pass *p = pass_open(r);
    pass_add(p, sess_open(r, &none, 8, 0), SLICE_CHAIN, N, token, NULL);
    Tensor all = mat_blank(r, N, ROT), turn = mat_blank(r, 1, ROT);
    r->b->rope_table(r->b, &all, pass_rows(r, p), &rope);
    const float *table = mat_get(r, &all);
    run_give(r, t->name, table, N * ROT);
    Pass *last = pass_open(r);
    Sess *s = sess_open(r, &none, 8, 0);
    s->P = N - 1;
    pass_add(last, s, SLICE_CHAIN, 1, token, NULL);
    r->b->rope_table(r->b, &turn, pass_rows(r, last), &rope);
    run_same(r, "the last row alone", mat_get(r, &turn), table + (N - 1) * ROT, ROT);
    Mat x = mat_make(r, 1, ROT, 3, 1);
    r->b->rope(r->b, &x.t, &turn, ROT, &rope);
    for (int i = 0; i < ROT / 2; i++) {
        const double angle = (N - 1) * freq[i], c = cos(angle), sn = sin(angle), a = (double) x.h[i],
                     b = (double) x.h[i + ROT / 2];
        want[i] = a * c - b * sn;
        want[i + ROT / 2] = a * sn + b * c;
    }
    run_expect(r, t->name, mat_get(r, &x.t), want, ROT, 1e-6);
    r->b->rope(r->b, &x.t, &turn, ROT - 2, &rope);
    run_must(r, r->b->sync(r->b, &(Error) { 0 }) != ST_OK, "more values to rotate than the head has refused");
}

/* Norms, rotation, storing keys and values, attention: in one operation where the backend has it, in its parts
 * elsewhere. Rounds: with weights of the norms, and queries that come from rows with gates between them; without
 * either. */
void ops_attend_block(Run *r, const Turn *t)
{
    enum { N = 12 };
    const LayerSpec *s = &t->layer;
    const int32_t kc = s->kv_heads * s->head_dim;
    const float eps = 1e-6f;
    int32_t token[N], parent[N];
    uint64_t seed = 400 + (uint64_t) t->turn;
    double *freq = run_host(r, sizeof *freq * (size_t) s->head_dim);
    for (int32_t i = 0; i < s->head_dim / 2; i++) freq[i] = pow(10000, -2.0 * i / s->head_dim);
    const Rope rope = { s->head_dim, true, 1, run_memory(r, sizeof *freq * (size_t) s->head_dim, freq), NULL };
    Sess *sess = sess_open(r, s, 400, 0);
    sess_grow(r, sess, 100, 64, &seed);
    random_tokens(token, N, &seed);
    h_tree(parent, N, &seed);
    Pass *p = pass_open(r);
    pass_add(p, sess, SLICE_TREE, N, token, parent);
    Mat q = pass_input(r, p, IN_Q, s->heads * s->head_dim, 3), k = pass_input(r, p, IN_K, kc, 1),
        v = pass_input(r, p, IN_V, s->kv_heads * value_dim(s), 1), q_norm = mat_make(r, 1, s->head_dim, 5, 1),
        k_norm = mat_make(r, 1, s->head_dim, 6, 1);
    Mat mixed = mat_make(r, N, 2 * s->heads * s->head_dim, 7, 3);
    Tensor y = mat_blank(r, N, pass_cols(s)), turn = mat_blank(r, N, s->head_dim), gate = mat_blank(r, N, q.t.cols);
    const bool norms = t->round == 0;
    const Heads heads = { norms ? &q_norm.t : NULL, norms ? &k_norm.t : NULL, &turn, rope, eps };
    const Rows *rows = pass_rows(r, p);
    r->b->rope_table(r->b, &turn, rows, &rope);
    if (norms) r->b->split(r->b, &q.t, &gate, &mixed.t, s->head_dim);
    if (r->b->attend_block) {
        r->b->attend_block(r->b, &y, &q.t, &k.t, &v.t, &heads, rows, 0, s);
    } else {
        if (norms) r->b->head_norm(r->b, &q.t, &q_norm.t, s->head_dim, eps);
        if (norms) r->b->head_norm(r->b, &k.t, &k_norm.t, s->head_dim, eps);
        r->b->rope(r->b, &q.t, &turn, s->head_dim, &rope);
        r->b->rope(r->b, &k.t, &turn, s->head_dim, &rope);
        r->b->kv_put(r->b, &k.t, &v.t, rows, 0, s);
        r->b->attend(r->b, &y, &q.t, rows, 0, s);
    }
    run_give(r, t->name, mat_get(r, &y), N * pass_cols(s));
    if (norms) run_give(r, "gates", mat_get(r, &gate), N * q.t.cols);
    sess_keep(sess, (int32_t[]) { 0 }, 1);
    size_t n;
    const uint8_t *state = sess_state(r, sess, &n);
    run_give_bytes(r, "what was put", state, n);
}
