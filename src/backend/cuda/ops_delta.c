/* ops_delta.c - the short convolution and the delta rule, and folding of any layer's noted path. */
#include "backend/cuda/cuda.h"

static int32_t channels(const LayerSpec *s) { return 2 * s->k_heads * s->k_dim + s->v_heads * s->v_dim; }

static void conv_all(Cuda *c, ConvArgs a, const LayerSpec *s)
{
    if (!cuda_has_tickets(c, &a.rows)) return;
    if (s->conv_width < 1 || s->conv_width > CONV_TAPS) {
        fail(&c->error, ST_UNSUPPORTED, "convolution: %d taps, expected 1 to %d", s->conv_width, CONV_TAPS);
        return;
    }
    const int64_t parts = (channels(s) + CONV_COLS - 1) / CONV_COLS, groups = (a.rows.n + CONV_ROWS - 1) / CONV_ROWS;
    a.channels = channels(s);
    a.width = s->conv_width;
    a.tickets = c->tickets + MARK_WINDOW * TICKETS;
    cuda_launch(c, GPU_conv_rows, a.rows.n_slices * parts, groups ? groups : 1, &a, sizeof a);
}

static void delta_all(Cuda *c, DeltaArgs a)
{
    const LayerSpec *s = &a.spec;
    if (!cuda_has_tickets(c, &a.rows)) return;
    if (s->k_dim > DELTA_KEYS) {
        fail(&c->error, ST_UNSUPPORTED, "delta rule: keys of %d values are too wide", s->k_dim);
        return;
    }
    const bool full = s->k_dim == DELTA_KEYS && s->v_dim == DELTA_KEYS;
    const int64_t cols = full ? DELTA_COLS : DELTA_ANY_COLS, parts = (s->v_dim + cols - 1) / cols;
    a.tickets = c->tickets + MARK_MATRIX * TICKETS;
    cuda_launch(c, full ? GPU_delta_128 : GPU_delta_any, a.rows.n_slices * s->v_heads * parts, 1, &a, sizeof a);
}

static void conv(Backend *b, Tensor *y, const Tensor *x, const Tensor *w, const Rows *r, int32_t il, const LayerSpec *s)
{
    conv_all(cuda_of(b), (ConvArgs) { .y = y->data, .x = x->data, .w = w->data, .rows = *r, .il = il }, s);
}

static void delta(Backend *b, Tensor *y, const Tensor *qkv, const Tensor *beta, const Tensor *alpha, const Tensor *a,
                  const Tensor *dt, const Rows *r, int32_t il, const LayerSpec *s)
{
    delta_all(cuda_of(b), (DeltaArgs) { .y = y->data, .qkv = qkv->data, .beta = beta->data, .alpha = alpha->data,
                                        .a = a->data, .dt = dt->data, .rows = *r, .spec = *s, .il = il });
}

static void fold(Backend *b, const Rows *r, int32_t il, const LayerSpec *s)
{
    Cuda *c = cuda_of(b);
    if (s->kind == LAYER_ATTENTION) cuda_kv_move(c, r, il, s);
    if (s->kind != LAYER_DELTA) return;
    conv_all(c, (ConvArgs) { .rows = *r, .il = il }, s);
    delta_all(c, (DeltaArgs) { .rows = *r, .spec = *s, .il = il });
}

void cuda_delta_ops(Backend *b)
{
    b->conv = conv;
    b->delta = delta;
    b->fold = fold;
}
