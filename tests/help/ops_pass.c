#include "ops_pass.h"

#include <string.h>

/* ---- sessions ---- */

int32_t sess_channels(const LayerSpec *p) { return 2 * p->k_heads * p->k_dim + p->v_heads * p->v_dim; }
size_t sess_matrix(const LayerSpec *p) { return (size_t) p->v_heads * (size_t) p->k_dim * (size_t) p->v_dim; }
size_t sess_window(const LayerSpec *p) { return (size_t) (p->conv_width - 1) * (size_t) sess_channels(p); }

static void *filled(Run *r, size_t bytes)
{
    void *p = run_memory(r, bytes, NULL);
    r->b->fill(r->b, p, 0xff, bytes);
    return p;
}

static void open_attention(Run *r, StateLayer *l, const LayerSpec *spec, int32_t slots)
{
    l->wrap = spec->ring;
    slots = l->wrap ? l->wrap : slots + ROWS_DECODE;
    l->k = filled(r, r->b->kv_bytes(r->b, spec, false, slots));
    l->v = filled(r, r->b->kv_bytes(r->b, spec, true, slots));
    l->slot_pos = filled(r, sizeof(int32_t) * (size_t) l->ring);             /* all holes */
}

static void open_delta(Run *r, StateLayer *l, const LayerSpec *spec)
{
    const size_t ch = (size_t) sess_channels(spec), heads = (size_t) spec->v_heads, f = sizeof(float);
    l->matrix = run_memory(r, f * H_SETS * sess_matrix(spec), NULL);
    l->window = run_memory(r, f * H_SETS * sess_window(spec), NULL);
    l->rec_x = run_memory(r, f * ROWS_DECODE * ch, NULL);
    l->rec_a = run_memory(r, f * 2 * ROWS_DECODE * heads, NULL);
    l->rec_d = run_memory(r, f * ROWS_DECODE * heads * (size_t) spec->v_dim, NULL);
    l->rec_k = run_memory(r, f * 2 * ROWS_DECODE * (size_t) spec->k_heads * (size_t) spec->k_dim, NULL);
}

Sess *sess_open(Run *r, const LayerSpec *spec, int32_t ctx, int32_t ring)
{
    Sess *s = run_host(r, sizeof *s);
    s->spec = *spec;
    s->gen = 1;
    s->l.ring = ring;
    s->l.mark = run_memory(r, sizeof(int32_t) * 3, NULL);
    if (spec->kind == LAYER_ATTENTION) open_attention(r, &s->l, spec, ring ? ring : ctx);
    else if (spec->kind == LAYER_DELTA) open_delta(r, &s->l, spec);
    s->layer = run_memory(r, sizeof s->l, &s->l);
    return s;
}

void sess_keep(Sess *s, const int32_t *path, int32_t n)
{
    for (int32_t t = 0; t < n; t++) s->text[s->P + t] = s->token[path[t]];
    memcpy(s->path, path, sizeof(int32_t) * (size_t) n);
    s->n_path = n;
    s->P += n;
    s->gen++;
}

void sess_advance(Sess *s)
{
    for (int32_t i = 0; i < s->n; i++) s->text[s->P + i] = s->token[i];
    s->P += s->n;
    s->n_path = 0;
    s->set = (s->set + 1) % 2;
    s->gen++;
}

static uint8_t *attention_state(Run *r, const Sess *s, size_t *n)
{
    size_t k = r->b->kv_bytes(r->b, &s->spec, false, s->P), v = r->b->kv_bytes(r->b, &s->spec, true, s->P);
    uint8_t *host = run_host(r, *n = k + v);
    r->b->kv_save(r->b, &s->spec, false, s->l.k, s->P, NULL, host);
    r->b->kv_save(r->b, &s->spec, true, s->l.v, s->P, NULL, host + k);
    run_settle(r);
    return host;
}

uint8_t *sess_state(Run *r, const Sess *s, size_t *n)
{
    if (s->spec.kind == LAYER_ATTENTION) return attention_state(r, s, n);
    const size_t m = sess_matrix(&s->spec), w = sess_window(&s->spec), set = (size_t) s->set;
    uint8_t *host = run_host(r, *n = sizeof(float) * (m + w));
    run_fetch(r, host, s->l.matrix + set * m, sizeof(float) * m);
    run_fetch(r, host + sizeof(float) * m, s->l.window + set * w, sizeof(float) * w);
    return host;
}

/* ---- passes ---- */

Pass *pass_open(Run *r)
{
    Pass *p = run_host(r, sizeof *p);
    p->t = run_host(r, sizeof *p->t);
    Tables *at = p->there = run_memory(r, sizeof *at, NULL);
    p->r = (Rows) { .span = 1, .count = at->count, .token = at->token, .slice = at->slice, .parent = at->parent,
                    .pos = at->pos, .lane = at->lane, .want = at->want, .tap_slot = at->tap_slot,
                    .logit_row = at->logit_row, .slices = at->slices };
    return p;
}

Slice *pass_add(Pass *p, Sess *s, SliceKind kind, int32_t n, const int32_t *token, const int32_t *parent)
{
    Rows *r = &p->r;
    Tables *t = p->t;
    Slice *sl = &t->slices[r->n_slices];
    *sl = (Slice) { .kind = (int32_t) kind, .row0 = r->n, .n = n, .base = s->P, .gen = s->gen, .n_path = s->n_path,
                    .set_in = s->set, .set_out = kind == SLICE_CHAIN ? (s->set + 1) % 2 : s->set, .layer = s->layer };
    memcpy(sl->path, s->path, sizeof s->path);
    sl->draw.p = draw_default();
    int32_t depth[H_ROWS];
    for (int32_t i = 0; i < n; i++) {
        int32_t row = r->n + i, up = parent && kind == SLICE_TREE ? parent[i] : i - 1;
        depth[i] = kind == SLICE_TREE ? (up < 0 ? 0 : depth[up] + 1) : i;
        t->token[row] = s->token[i] = token[i];
        t->slice[row] = r->n_slices;
        t->parent[row] = s->parent[i] = up;
        t->pos[row] = s->P + depth[i];
        for (int l = 0; l < POS_LANES; l++) t->lane[row * POS_LANES + l] = t->pos[row];
        t->tap_slot[row] = -1;
    }
    s->n = n;
    r->n_slices++;
    r->n += n;
    if (kind != SLICE_CHAIN) r->n_decode += n;
    const int32_t before = s->l.ring && s->l.ring < s->P ? s->l.ring : s->P;
    while (r->span < before) r->span *= 2;
    r->shifted |= before < s->P;
    return sl;
}

void pass_want_all(Pass *p)
{
    p->r.n_logits = p->r.n;
    for (int32_t i = 0; i < p->r.n; i++) p->t->logit_row[i] = i;
}

const Rows *pass_rows(Run *r, const Pass *p)
{
    memcpy(p->t->count, (int32_t[]) { p->r.n, p->r.n_decode, p->r.n_logits }, sizeof p->t->count);
    r->b->copy_in(r->b, p->there, p->t, sizeof *p->t);
    return &p->r;
}

void pass_fill(float *x, int32_t token, int32_t pos, int32_t which, int32_t cols, float by)
{
    h_fill(x, cols, (uint64_t) token << 40 ^ (uint64_t) pos << 8 ^ (uint64_t) which, by);
}

Mat pass_input(Run *r, const Pass *p, int32_t which, int32_t cols, float by)
{
    float *x = run_host(r, sizeof(float) * (size_t) p->r.n * (size_t) cols);
    for (int32_t i = 0; i < p->r.n; i++)
        pass_fill(x + (size_t) i * (size_t) cols, p->t->token[i], p->t->pos[i], which, cols, by);
    return mat_of(r, p->r.n, cols, x);
}

static void put(Run *r, const Pass *p, const LayerSpec *s, const Rows *rows)
{
    Mat k = pass_input(r, p, IN_K, s->kv_heads * s->head_dim, 1),
        v = pass_input(r, p, IN_V, s->kv_heads * value_dim(s), 1);
    r->b->kv_put(r->b, &k.t, &v.t, rows, 0, s);
}

void pass_put(Run *r, const Pass *p, const LayerSpec *s)
{
    const size_t mark = r->n_held;
    put(r, p, s, pass_rows(r, p));
    run_drop(r, mark);
}

/* As in a pass: between what stores and what reads, the host copies nothing and waits for nothing. */
static Tensor attend(Run *r, const Pass *p, const LayerSpec *s)
{
    Mat q = pass_input(r, p, IN_Q, s->heads * s->head_dim, 3);
    Tensor y = mat_blank(r, p->r.n, pass_cols(s));
    const Rows *rows = pass_rows(r, p);
    put(r, p, s, rows);
    r->b->attend(r->b, &y, &q.t, rows, 0, s);
    return y;
}

Mat delta_w(Run *r, const LayerSpec *s) { return mat_make(r, sess_channels(s), s->conv_width, DELTA_W, 0.8f); }
Mat delta_dt(Run *r, const LayerSpec *s) { return mat_make(r, 1, s->v_heads, DELTA_DT, 1); }
Mat delta_a(Run *r, const LayerSpec *s)
{
    float *a = run_host(r, sizeof *a * (size_t) s->v_heads);
    h_fill(a, s->v_heads, DELTA_A, 1);
    for (int32_t i = 0; i < s->v_heads; i++) a[i] = -0.3f - 0.25f * a[i];
    return mat_of(r, 1, s->v_heads, a);
}

/* Convolution, then delta rule. */
static Tensor conv_delta(Run *r, const Pass *p, const LayerSpec *s)
{
    const int32_t ch = sess_channels(s), n = p->r.n;
    Mat x = pass_input(r, p, IN_X, ch, 1), beta = pass_input(r, p, IN_BETA, s->v_heads, 2),
        alpha = pass_input(r, p, IN_ALPHA, s->v_heads, 2), w = delta_w(r, s), a = delta_a(r, s), dt = delta_dt(r, s);
    Tensor u = mat_blank(r, n, ch), y = mat_blank(r, n, pass_cols(s));
    const Rows *rows = pass_rows(r, p);
    r->b->conv(r->b, &u, &x.t, &w.t, rows, 0, s);
    r->b->delta(r->b, &y, &u, &beta.t, &alpha.t, &a.t, &dt.t, rows, 0, s);
    return y;
}

int32_t pass_cols(const LayerSpec *s)
{
    return s->kind == LAYER_ATTENTION ? s->heads * value_dim(s) : s->v_heads * s->v_dim;
}

float *pass_run(Run *r, const Pass *p, const LayerSpec *s)
{
    const size_t bytes = sizeof(float) * (size_t) p->r.n * (size_t) pass_cols(s);
    float *host = run_host(r, bytes);
    const size_t mark = r->n_held;
    Tensor y = s->kind == LAYER_ATTENTION ? attend(r, p, s) : conv_delta(r, p, s);
    run_fetch(r, host, y.data, bytes);
    run_drop(r, mark);
    return host;
}

float *sess_run(Run *r, Sess *s, SliceKind kind, int32_t n, const int32_t *token, const int32_t *parent)
{
    Pass *p = pass_open(r);
    pass_add(p, s, kind, n, token, parent);
    return pass_run(r, p, &s->spec);
}

void sess_fold(Run *r, Sess *s, int32_t set_out)
{
    Pass *p = pass_open(r);
    pass_add(p, s, SLICE_TREE, 0, NULL, NULL)->set_out = set_out;
    r->b->fold(r->b, pass_rows(r, p), 0, &s->spec);
    run_settle(r);
}

void random_tokens(int32_t *token, int32_t n, uint64_t *seed)
{
    for (int32_t i = 0; i < n; i++) token[i] = h_pick(seed, 50);
}

void sess_grow(Run *r, Sess *s, int32_t n, int32_t chunk, uint64_t *seed)
{
    int32_t token[H_ROWS];
    for (int32_t take; n > 0; n -= take) {
        const size_t mark = r->n_held;
        take = n < chunk ? n : chunk;
        random_tokens(token, take, seed);
        Pass *p = pass_open(r);
        pass_add(p, s, SLICE_CHAIN, take, token, NULL);
        if (s->spec.kind == LAYER_ATTENTION) pass_put(r, p, &s->spec);
        else pass_run(r, p, &s->spec);
        sess_advance(s);
        run_drop(r, mark);
    }
}

static void share_slots(Run *r, Sess *s, bool values)
{
    const size_t bytes = r->b->kv_bytes(r->b, &s->spec, values, s->P), mark = r->n_held;
    uint8_t *image = run_host(r, bytes);
    void *slots = values ? s->l.v : s->l.k;
    if (r->reference) r->b->kv_save(r->b, &s->spec, values, slots, s->P, NULL, image);
    run_settle(r);
    run_share(r, image, bytes);
    r->b->kv_load(r->b, &s->spec, values, slots, s->P, image);
    run_drop(r, mark);
}

void sess_grow_once(Run *r, Sess *s, int32_t n, uint64_t *seed)
{
    if (r->reference) {
        sess_grow(r, s, n, 500, seed);
    } else {
        random_tokens(s->text, n, seed);
        s->P = n;
    }
    share_slots(r, s, false);
    share_slots(r, s, true);
}
