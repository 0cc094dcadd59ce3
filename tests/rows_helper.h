/* rows_helper.h - small sessions and passes for tests of backend operations, without state.c and step.c.
 * A Sess is one layer of one session with a text of made-up tokens; what a row brings (queries, keys, ...) is a function of its token
 * and position alone, so that any two ways to the same text can be compared bit by bit. Memory is the CPU backend's, which is ours. */
#ifndef RATOON_TESTS_ROWS_HELPER_H
#define RATOON_TESTS_ROWS_HELPER_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "backend/backend.h"

enum { H_ROWS = 640, H_SLICES = 8, H_TEXT = 12000, H_SETS = 3 };

static inline uint64_t h_mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* Uniform in [0, n). */
static inline int32_t h_pick(uint64_t *seed, int32_t n)
{
    *seed = h_mix(*seed);
    return (int32_t) (*seed % (uint64_t) n);
}

/* n values in about [-1, 1] times by, a function of key. */
static inline void h_fill(float *y, int64_t n, uint64_t key, float by)
{
    uint64_t s = h_mix(key);
    for (int64_t i = 0; i < n; i++) {
        s = s * 6364136223846793005u + 1442695040888963407u;
        y[i] = (float) (int32_t) (s >> 32) * 0x1p-31f * by;
    }
}

static inline float *h_floats(int64_t n, uint64_t key, float by)
{
    float *y = malloc(sizeof(float) * (size_t) (n + 1));
    if (!y) abort();
    h_fill(y, n, key, by);
    return y;
}

static inline Tensor h_tensor(Type type, int32_t rows, int32_t cols, void *data) { return (Tensor) { type, rows, cols, data }; }

typedef struct {
    LayerSpec  spec;
    StateLayer l[1];
    int32_t    mark[3], P, gen, n_path, path[ROWS_DECODE], set;
    int32_t    text[H_TEXT];                       /* committed tokens */
    int32_t    token[H_ROWS], parent[H_ROWS], n;   /* rows of the last pass */
} Sess;

static inline int32_t sess_channels(const LayerSpec *p) { return 2 * p->k_heads * p->k_dim + p->v_heads * p->v_dim; }
static inline size_t  sess_matrix(const LayerSpec *p) { return (size_t) p->v_heads * (size_t) p->k_dim * (size_t) p->v_dim; }
static inline size_t  sess_window(const LayerSpec *p) { return (size_t) (p->conv_width - 1) * (size_t) sess_channels(p); }

static inline void *h_zero(size_t n, size_t size)
{
    void *p = calloc(n + 1, size);
    if (!p) abort();
    return p;
}

static inline Sess *sess_open(const LayerSpec *spec, int32_t ctx, int32_t ring)
{
    Sess *s = h_zero(1, sizeof *s);
    StateLayer *l = s->l;
    s->spec = *spec;
    s->gen = 1;
    l->mark = s->mark;
    l->ring = ring;
    if (spec->kind == LAYER_ATTENTION) {
        size_t slots = (size_t) (ring ? ring : ctx) + ROWS_DECODE, width = (size_t) spec->kv_heads * (size_t) spec->head_dim;
        l->k = h_zero(slots * width, 4);
        l->v = h_zero(slots * width, 4);
        memset(l->k, 0xff, slots * width * 4);     /* NaN where nothing was written: whoever reads it is found out */
        memset(l->v, 0xff, slots * width * 4);
        l->slot_pos = h_zero((size_t) ring, sizeof(int32_t));
        for (int32_t i = 0; i < ring; i++) l->slot_pos[i] = -1;
    } else {
        size_t ch = (size_t) sess_channels(spec), heads = (size_t) spec->v_heads;
        l->matrix = h_zero(H_SETS * sess_matrix(spec), sizeof(float));
        l->window = h_zero(H_SETS * sess_window(spec), sizeof(float));
        l->rec_x = h_zero(ROWS_DECODE * ch, sizeof(float));
        l->rec_a = h_zero(ROWS_DECODE * heads, sizeof(float));
        l->rec_d = h_zero(ROWS_DECODE * heads * (size_t) spec->v_dim, sizeof(float));
        l->rec_k = h_zero(2 * ROWS_DECODE * (size_t) spec->k_heads * (size_t) spec->k_dim, sizeof(float));
    }
    return s;
}

static inline void sess_close(Sess *s)
{
    StateLayer *l = s->l;
    void *all[] = { l->k, l->v, l->slot_pos, l->matrix, l->window, l->rec_x, l->rec_a, l->rec_d, l->rec_k, s };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}

/* A pass. Slices are added with pass_add, decoding ones first. */
typedef struct {
    Rows    r;
    Slice   slices[H_SLICES];
    Sess   *sess[H_SLICES];
    int32_t token[H_ROWS], slice[H_ROWS], parent[H_ROWS], pos[H_ROWS], lane[H_ROWS * POS_LANES], want[H_ROWS], tap_slot[H_ROWS], logit_row[H_ROWS];
} Pass;

static inline void pass_open(Pass *p)
{
    memset(p, 0, sizeof *p);
    p->r = (Rows) { .span = 1, .token = p->token, .slice = p->slice, .parent = p->parent, .pos = p->pos, .lane = p->lane, .want = p->want,
                    .tap_slot = p->tap_slot, .logit_row = p->logit_row, .slices = p->slices };
}

/* parent NULL: each row follows the one before. */
static inline Slice *pass_add(Pass *p, Sess *s, SliceKind kind, int32_t n, const int32_t *token, const int32_t *parent)
{
    Rows *r = &p->r;
    Slice *sl = &p->slices[r->n_slices];
    *sl = (Slice) { .kind = (int32_t) kind, .row0 = r->n, .n = n, .base = s->P, .gen = s->gen, .n_path = s->n_path, .set_in = s->set,
                    .set_out = kind == SLICE_CHAIN ? (s->set + 1) % 2 : s->set, .layer = s->l };
    memcpy(sl->path, s->path, sizeof s->path);
    sl->draw.p = draw_default();
    int32_t depth[H_ROWS];
    for (int32_t i = 0; i < n; i++) {
        int32_t row = r->n + i, up = parent && kind == SLICE_TREE ? parent[i] : i - 1;
        depth[i] = kind == SLICE_TREE ? (up < 0 ? 0 : depth[up] + 1) : i;
        p->token[row] = s->token[i] = token[i];
        p->slice[row] = r->n_slices;
        p->parent[row] = s->parent[i] = up;
        p->pos[row] = s->P + depth[i];
        for (int l = 0; l < POS_LANES; l++) p->lane[row * POS_LANES + l] = p->pos[row];
        p->tap_slot[row] = -1;
    }
    s->n = n;
    p->sess[r->n_slices++] = s;
    r->n += n;
    if (kind != SLICE_CHAIN) r->n_decode += n;
    while (r->span < s->P) r->span *= 2;
    return sl;
}

static inline void pass_want_all(Pass *p)
{
    p->r.n_logits = p->r.n;
    for (int32_t i = 0; i < p->r.n; i++) p->logit_row[i] = i;
}

/* As state_keep after a TREE and state_advance after a CHAIN. */
static inline void sess_keep(Sess *s, const int32_t *path, int32_t n)
{
    for (int32_t t = 0; t < n; t++) s->text[s->P + t] = s->token[path[t]];
    memcpy(s->path, path, sizeof(int32_t) * (size_t) n);
    s->n_path = n;
    s->P += n;
    s->gen++;
}

static inline void sess_advance(Sess *s)
{
    for (int32_t i = 0; i < s->n; i++) s->text[s->P + i] = s->token[i];
    s->P += s->n;
    s->n_path = 0;
    s->set = (s->set + 1) % 2;
    s->gen++;
}

/* A random tree of n rows in any order with parent[i] < i, few branches or many. */
static inline void h_tree(int32_t *parent, int32_t n, uint64_t *seed)
{
    int32_t style = h_pick(seed, 3);
    parent[0] = -1;
    for (int32_t i = 1; i < n; i++) parent[i] = style == 0 ? h_pick(seed, i) : h_pick(seed, 3) ? i - 1 : i - 1 - h_pick(seed, i < 6 ? i : 6);
}

/* Rows from the root to row, at most depth of them; returns how many. */
static inline int32_t h_path(int32_t *path, const int32_t *parent, int32_t row)
{
    int32_t n = 0;
    for (int32_t i = row; i >= 0; i = parent[i]) n++;
    for (int32_t i = row, t = n; i >= 0; i = parent[i]) path[--t] = i;
    return n;
}

/* What the rows of a pass bring: tensor number `which` of `cols` values, a function of token and position. */
static inline float *pass_input(const Pass *p, int32_t which, int32_t cols, float by)
{
    float *x = malloc(sizeof(float) * ((size_t) p->r.n * (size_t) cols + 1));
    if (!x) abort();
    for (int32_t i = 0; i < p->r.n; i++)
        h_fill(x + (size_t) i * (size_t) cols, cols, (uint64_t) p->token[i] << 40 ^ (uint64_t) p->pos[i] << 8 ^ (uint64_t) which, by);
    return x;
}

enum { IN_Q, IN_K, IN_V, IN_X, IN_BETA, IN_ALPHA };

/* Keys and values stored. */
static inline void pass_put(Backend *b, const Pass *p, const LayerSpec *s)
{
    int32_t kc = s->kv_heads * s->head_dim;
    float *k = pass_input(p, IN_K, kc, 1), *v = pass_input(p, IN_V, kc, 1);
    Tensor tk = h_tensor(T_F32, p->r.n, kc, k), tv = h_tensor(T_F32, p->r.n, kc, v);
    b->kv_put(b, &tk, &tv, &p->r, 0, s);
    free(k), free(v);
}

/* And queries answered: y [rows, heads * head_dim]. */
static inline float *pass_attend(Backend *b, const Pass *p, const LayerSpec *s)
{
    int32_t qc = s->heads * s->head_dim;
    float *q = pass_input(p, IN_Q, qc, 3), *y = malloc(sizeof(float) * ((size_t) p->r.n * (size_t) qc + 1));
    if (!y) abort();
    Tensor ty = h_tensor(T_F32, p->r.n, qc, y), tq = h_tensor(T_F32, p->r.n, qc, q);
    pass_put(b, p, s);
    b->attend(b, &ty, &tq, &p->r, 0, s);
    free(q);
    return y;
}

/* Weights of the toy delta layer. */
static inline float *delta_w(const LayerSpec *s) { return h_floats((int64_t) sess_channels(s) * s->conv_width, 77, 0.8f); }
static inline float *delta_a(const LayerSpec *s)
{
    float *a = h_floats(s->v_heads, 78, 1);
    for (int32_t i = 0; i < s->v_heads; i++) a[i] = -0.3f - 0.25f * a[i];
    return a;
}

/* Convolution, then delta rule: y [rows, v_heads * v_dim]. */
static inline float *pass_delta(Backend *b, const Pass *p, const LayerSpec *s)
{
    int32_t ch = sess_channels(s), vals = s->v_heads * s->v_dim, n = p->r.n;
    float *x = pass_input(p, IN_X, ch, 1), *beta = pass_input(p, IN_BETA, s->v_heads, 2), *alpha = pass_input(p, IN_ALPHA, s->v_heads, 2);
    float *w = delta_w(s), *a = delta_a(s), *dt = h_floats(s->v_heads, 79, 1);
    float *u = malloc(sizeof(float) * ((size_t) n * (size_t) ch + 1)), *y = malloc(sizeof(float) * ((size_t) n * (size_t) vals + 1));
    Tensor tx = h_tensor(T_F32, n, ch, x), tu = h_tensor(T_F32, n, ch, u), tw = h_tensor(T_F32, ch, s->conv_width, w), ty = h_tensor(T_F32, n, vals, y);
    Tensor tb = h_tensor(T_F32, n, s->v_heads, beta), tal = h_tensor(T_F32, n, s->v_heads, alpha), ta = h_tensor(T_F32, 1, s->v_heads, a),
           td = h_tensor(T_F32, 1, s->v_heads, dt);
    b->conv(b, &tu, &tx, &tw, &p->r, 0, s);
    b->delta(b, &ty, &tu, &tb, &tal, &ta, &td, &p->r, 0, s);
    free(x), free(beta), free(alpha), free(w), free(a), free(dt), free(u);
    return y;
}

static inline float *pass_run(Backend *b, const Pass *p, const LayerSpec *s) { return s->kind == LAYER_ATTENTION ? pass_attend(b, p, s) : pass_delta(b, p, s); }
static inline int32_t pass_cols(const LayerSpec *s) { return s->kind == LAYER_ATTENTION ? s->heads * s->head_dim : s->v_heads * s->v_dim; }

/* One pass of one session; the caller frees the result. */
static inline float *sess_run(Backend *b, Sess *s, SliceKind kind, int32_t n, const int32_t *token, const int32_t *parent)
{
    Pass *p = malloc(sizeof *p);
    if (!p) abort();
    pass_open(p);
    pass_add(p, s, kind, n, token, parent);
    float *y = pass_run(b, p, &s->spec);
    free(p);
    return y;
}

/* Finishes the noted path, into set_out (s->set: in place). */
static inline void sess_fold(Backend *b, Sess *s, int32_t set_out)
{
    Pass *p = malloc(sizeof *p);
    if (!p) abort();
    pass_open(p);
    pass_add(p, s, SLICE_TREE, 0, NULL, NULL)->set_out = set_out;
    b->fold(b, &p->r, 0, &s->spec);
    free(p);
}

#endif
