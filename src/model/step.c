#include "model/step.h"

#include <stdlib.h>
#include <string.h>

/* The tables lie in one block, each at the place that the largest pass needs, so their addresses never change:
 *   token slice parent pos | lane x4 | want tap_slot logit_row | slices                                                     */
static size_t place_tables(Rows *r, uint8_t *block, const StepLimits *lim, size_t *slices_at)
{
    size_t n = (size_t) lim->n_max, at = 0;
    int32_t **column[] = { &r->token, &r->slice, &r->parent, &r->pos, &r->lane, &r->want, &r->tap_slot, &r->logit_row };
    for (size_t i = 0; i < sizeof column / sizeof *column; i++) {
        *column[i] = block ? (int32_t *) (void *) (block + at) : NULL;
        at += sizeof(int32_t) * n * (column[i] == &r->lane ? POS_LANES : 1);
    }
    at = (at + 63) / 64 * 64;
    *slices_at = at;
    r->slices = block ? (Slice *) (void *) (block + at) : NULL;
    return at + sizeof(Slice) * (size_t) lim->slices_max;
}

Status step_open(Step *s, Backend *be, const StepLimits *lim, Error *err)
{
    *s = (Step) { .be = be, .lim = *lim };
    s->table_bytes = place_tables(&s->host, NULL, lim, &s->slices_at);
    s->table_host = calloc(1, s->table_bytes);
    s->table = be->alloc(be, s->table_bytes, "step tables");
    if (lim->scratch_bytes) s->scratch = be->alloc(be, lim->scratch_bytes, "step scratch");
    if (lim->tap_width && lim->chunk) s->chunk_taps = be->alloc(be, sizeof(float) * (size_t) lim->tap_width * (size_t) lim->chunk, "taps");
    if (!s->table_host || !s->table || (lim->scratch_bytes && !s->scratch) || (lim->tap_width && lim->chunk && !s->chunk_taps)) {
        step_close(s);
        return fail(err, ST_MEMORY, "step: out of memory (%zu bytes of scratch)", lim->scratch_bytes);
    }
    place_tables(&s->host, s->table_host, lim, &s->slices_at);
    place_tables(&s->rows, s->table, lim, &s->slices_at);
    return ST_OK;
}

void step_close(Step *s)
{
    if (!s->be) return;
    if (s->chunk_taps) s->be->release(s->be, s->chunk_taps, sizeof(float) * (size_t) s->lim.tap_width * (size_t) s->lim.chunk);
    if (s->scratch) s->be->release(s->be, s->scratch, s->lim.scratch_bytes);
    if (s->table) s->be->release(s->be, s->table, s->table_bytes);
    free(s->table_host);
    *s = (Step) { 0 };
}

/* ---- rows ---- */

static void launch_shape(Rows *r, const Rows *from)
{
    r->n = from->n;
    r->n_decode = from->n_decode;
    r->n_slices = from->n_slices;
    r->n_logits = from->n_logits;
    r->span = from->span;
}

void pass_start(Step *s)
{
    s->used = 0;
    s->n_tensors = 0;
    s->overflow = false;
    launch_shape(&s->host, &(Rows) { .span = 1 });
}

Slice *pass_slice(Step *s, State *st, SliceKind kind, int32_t n, const int32_t *token, const int32_t *parent)
{
    Rows *r = &s->host;
    Slice *sl = &r->slices[r->n_slices];
    state_slice(st, kind, sl);
    sl->row0 = r->n;
    sl->n = n;
    sl->taps = NULL;
    sl->draw.n_tail = 0;
    sl->draw.n_bias = 0;
    sl->draw.p = draw_default();
    int32_t depth[ROWS_DECODE];                    /* of TREE rows */
    for (int32_t i = 0; i < n; i++) {
        int32_t row = r->n + i, up = kind == SLICE_TREE && parent ? parent[i] : i - 1, at = i;
        if (kind == SLICE_TREE) at = depth[i] = up < 0 ? 0 : depth[up] + 1;
        r->token[row] = token[i];
        r->slice[row] = r->n_slices;
        r->parent[row] = up;
        r->pos[row] = st->P + at;
        for (int32_t l = 0; l < POS_LANES; l++) r->lane[row * POS_LANES + l] = r->pos[row];
        r->want[row] = 0;
        r->tap_slot[row] = -1;
    }
    r->n += n;
    if (kind != SLICE_CHAIN) r->n_decode += n;
    r->n_slices++;
    while (r->span < st->P) r->span *= 2;
    return sl;
}

void pass_want(Step *s, const Slice *slice, int32_t row, int32_t want, int32_t tap_slot)
{
    int32_t at = slice->row0 + row;
    s->host.want[at] |= want;
    if (want & WANT_TAPS) s->host.tap_slot[at] = tap_slot;
    if (want & WANT_LOGITS) s->host.logit_row[s->host.n_logits++] = at;
}

void pass_tables(Step *s)
{
    launch_shape(&s->rows, &s->host);
    s->be->copy_in(s->be, s->table, s->table_host, s->slices_at);
    s->be->copy_in(s->be, s->rows.slices, s->host.slices, sizeof(Slice) * (size_t) s->host.n_slices);
}

bool pass_commit(Step *s, const void *owner)
{
    /* Two steps of one engine have scratch and tables of their own, so where those lie belongs to the shape, and so do the results. */
    struct { const void *owner, *table, *scratch; size_t used; int32_t shape[5], n_max, host_draws, no_fused; } key;
    memset(&key, 0, sizeof key);
    const Rows *r = &s->host;
    key.owner = owner;
    key.table = s->table;
    key.scratch = s->scratch;
    key.used = s->used;
    memcpy(key.shape, (int32_t[]) { r->n, r->n_decode, r->n_slices, r->n_logits, r->span }, sizeof key.shape);
    key.n_max = s->lim.n_max;
    key.host_draws = s->host_draws;
    key.no_fused = s->no_fused;
    pass_tables(s);
    bool traced = s->hooks && s->hooks->trace;
    return s->be->pass_begin(s->be, traced ? NULL : (const void *) &key, traced ? 0 : sizeof key);
}

/* ---- scratch ---- */

static size_t tensor_bytes(Type type, int32_t rows, int32_t cols)
{
    size_t one = type == T_F32 || type == T_I32 ? 4 : 2;
    return (one * (size_t) rows * (size_t) cols + 63) / 64 * 64;
}

Tensor *new_tensor(Step *s, Type type, int32_t rows, int32_t cols)
{
    size_t bytes = tensor_bytes(type, rows, cols);
    bool measuring = s->lim.scratch_bytes == 0;
    /* What does not fit was not foreseen by the plan: results land on the first tensor and the pass reports it (model_pass). */
    if (s->n_tensors == STEP_TENSORS || (!measuring && bytes > s->lim.scratch_bytes - s->used)) {
        s->overflow = true;
        s->n_tensors = 0;
        s->used = 0;
        if (!measuring && bytes > s->lim.scratch_bytes) rows = 0, bytes = 0;
    }
    Tensor *t = &s->tensor[s->n_tensors++];
    *t = (Tensor) { type, rows, cols, s->scratch + s->used };
    s->used += bytes;
    if (s->used > s->peak) s->peak = s->used;
    return t;
}

Tensor *new_rows(Step *s, int32_t cols) { return new_tensor(s, T_F32, s->host.n, cols); }

StepMark step_mark(const Step *s) { return (StepMark) { s->used, s->n_tensors }; }

void step_reset(Step *s, StepMark m)
{
    s->used = m.used;
    s->n_tensors = m.n_tensors;
}

/* ---- operations ---- */

void linear(Step *s, int32_t n, Tensor **y, const Tensor *const *w, const Tensor *x)
{
    for (int32_t j = 0; j < n; j++) y[j] = new_tensor(s, T_F32, x->rows, w[j]->rows);
    s->be->matmul(s->be, n, y, w, x);
}

Tensor *linear1(Step *s, const Tensor *x, const Tensor *w)
{
    Tensor *y;
    linear(s, 1, &y, &w, x);
    return y;
}

Tensor *norm(Step *s, const Tensor *x, const Tensor *w, float eps)
{
    Tensor *y = new_tensor(s, T_F32, x->rows, x->cols);
    s->be->norm(s->be, y, x, w, eps);
    return y;
}

Tensor *add_norm(Step *s, Tensor *x, const Tensor *dx, const Tensor *w, float eps)
{
    Tensor *y = new_tensor(s, T_F32, x->rows, x->cols);
    if (s->be->add_norm && !s->no_fused) {
        s->be->add_norm(s->be, y, x, dx, w, eps);
    } else {
        s->be->add(s->be, x, dx);
        s->be->norm(s->be, y, x, w, eps);
    }
    return y;
}

void add_bias(Step *s, Tensor *x, const Tensor *bias)
{
    if (bias->data) s->be->bias(s->be, x, bias);
}

Tensor *swiglu(Step *s, const Tensor *x, const Tensor *gate, const Tensor *up, const Tensor *down)
{
    Tensor *y[2];
    linear(s, 2, y, (const Tensor *[]) { gate, up }, x);
    Tensor *h = new_tensor(s, T_F32, x->rows, gate->rows);
    s->be->glu(s->be, h, y[0], y[1]);
    return linear1(s, h, down);
}

Tensor *attend(Step *s, int32_t il, const LayerSpec *sp, Tensor *q, Tensor *k, Tensor *v, const Rope *rope)
{
    s->be->rope(s->be, q, &s->rows, sp->head_dim, rope);
    remember(s, il, sp, k, v, rope);
    Tensor *y = new_rows(s, sp->heads * sp->head_dim);
    s->be->attend(s->be, y, q, &s->rows, il, sp);
    return y;
}

void remember(Step *s, int32_t il, const LayerSpec *sp, Tensor *k, Tensor *v, const Rope *rope)
{
    s->be->rope(s->be, k, &s->rows, sp->head_dim, rope);
    s->be->kv_put(s->be, k, v, &s->rows, il, sp);
}

Tensor *short_conv(Step *s, int32_t il, const LayerSpec *sp, const Tensor *x, const Tensor *w)
{
    Tensor *y = new_rows(s, x->cols);
    s->be->conv(s->be, y, x, w, &s->rows, il, sp);
    return y;
}

Tensor *delta_rule(Step *s, int32_t il, const LayerSpec *sp, const Tensor *qkv, const Tensor *beta, const Tensor *alpha, const Tensor *a, const Tensor *dt)
{
    Tensor *y = new_rows(s, sp->v_heads * sp->v_dim);
    s->be->delta(s->be, y, qkv, beta, alpha, a, dt, &s->rows, il, sp);
    return y;
}

void trace(Step *s, const char *name, int32_t il, const Tensor *t)
{
    if (s->hooks && s->hooks->trace) s->hooks->trace(s->hooks->ud, name, il, t);
}
