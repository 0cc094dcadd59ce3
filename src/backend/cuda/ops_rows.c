/* ops_rows.c - operations that read rows and write rows. */
#include <stddef.h>

#include "backend/cuda/cuda.h"

static int64_t values(const Tensor *t) { return (int64_t) t->rows * t->cols; }

/* Rows of norms wait for the product that reads them. */
static void norm_rows(Cuda *c, const Tensor *t, NormArgs a)
{
    a.cols = t->cols;
    int64_t rows = t->rows;
    if (a.cols / a.group > NORM_GROUPS) {          /* groups do not know of rows */
        rows = values(t) / a.group;
        a.cols = a.group;
    }
    const bool regular = a.cols % 8 == 0 && a.group % 8 == 0 && a.period % 8 == 0 && a.cols <= NORM_COLS;
    cuda_delay(c, regular ? GPU_rows_norm : GPU_rows_norm_any, rows, 1, &a, sizeof a, offsetof(NormArgs, act), t);
}

/* An addition to x that waits is the norm's. */
static void norm(Backend *b, Tensor *y, const Tensor *x, const Tensor *w, float eps)
{
    Cuda *c = cuda_of(b);
    const AddArgs *added = cuda_waiting(c, GPU_rows_add, x);
    NormArgs a = { .y = y->data, .x = x->data, .w = w ? w->data : NULL, .group = x->cols,
                   .period = x->cols, .eps = eps };
    if (added && added->n == added->period && y->data != x->data) {
        a.dx = added->x;
        c->delayed.bytes = 0;
    }
    norm_rows(c, y, a);
}

static void add_norm(Backend *b, Tensor *y, Tensor *x, const Tensor *dx, const Tensor *w, float eps)
{
    norm_rows(cuda_of(b), y, (NormArgs) { .y = y->data, .x = x->data, .dx = dx->data, .w = w ? w->data : NULL,
                                          .group = x->cols, .period = x->cols, .eps = eps });
}

static void glu_rows(Cuda *c, const Tensor *t, GluArgs a)
{
    a.cols = t->cols;
    cuda_delay(c, GPU_rows_glu, t->rows, (t->cols + GLU_COLS - 1) / GLU_COLS, &a, sizeof a, offsetof(GluArgs, act), t);
}

/* Waits for the norm of what has been added to; who makes dx, and waits, adds it as well. */
static void add(Backend *b, Tensor *x, const Tensor *dx)
{
    const GluArgs *waiting = cuda_waiting(cuda_of(b), GPU_rows_glu, dx);
    if (waiting && !waiting->sum && x->data != dx->data) {
        GluArgs both = *waiting;
        both.sum = x->data;
        cuda_of(b)->delayed.bytes = 0;
        glu_rows(cuda_of(b), dx, both);
        return;
    }
    const AddArgs a = { .y = x->data, .x = dx->data, .n = values(x), .period = values(x) };
    cuda_delay(cuda_of(b), GPU_rows_add, (values(x) + 255) / 256, 1, &a, sizeof a, 0, x);
}

static void bias(Backend *b, Tensor *x, const Tensor *v)
{
    LAUNCH(cuda_of(b), rows_add, (values(x) + 255) / 256, 1, AddArgs, .y = x->data, .x = v->data, .n = values(x),
           .period = x->cols);
}

static void glu(Backend *b, Tensor *y, const Tensor *gate, const Tensor *up, Act act)
{
    glu_rows(cuda_of(b), y, (GluArgs) { .y = y->data, .gate = gate->data, .up = up->data, .function = act,
                                        .width = 1 });
}

static void gate(Backend *b, Tensor *x, const Tensor *logit, Act act, int32_t width)
{
    glu_rows(cuda_of(b), x, (GluArgs) { .y = x->data, .gate = logit->data, .up = x->data, .function = act,
                                        .width = width });
}

static void scale(Backend *b, Tensor *x, float by, float softcap)
{
    LAUNCH(cuda_of(b), rows_scale, (values(x) + 255) / 256, 1, ScaleArgs, .x = x->data, .n = values(x), .by = by,
           .softcap = softcap);
}

static void head_norm(Backend *b, Tensor *x, const Tensor *w, int32_t head_dim, float eps)
{
    norm_rows(cuda_of(b), x, (NormArgs) { .y = x->data, .x = x->data, .w = w ? w->data : NULL, .group = head_dim,
                                          .period = w ? w->cols : head_dim, .eps = eps });
}

static void gated_norm(Backend *b, Tensor *x, const Tensor *w, const Tensor *z, int32_t head_dim, float eps)
{
    norm_rows(cuda_of(b), x, (NormArgs) { .y = x->data, .x = x->data, .w = w->data, .z = z->data, .group = head_dim,
                                          .period = head_dim, .eps = eps });
}

/* Waits for attention, which reads its heads from x. */
static void split(Backend *b, Tensor *y0, Tensor *y1, const Tensor *x, int32_t width)
{
    const SplitArgs a = { .y0 = y0->data, .y1 = y1->data, .x = x->data, .cols = x->cols, .cols0 = y0->cols,
                          .cols1 = y1->cols, .width = width };
    cuda_delay(cuda_of(b), GPU_rows_split, x->rows, 1, &a, sizeof a, 0, y0);
}

static void join(Backend *b, Tensor *y, const Tensor *x0, const Tensor *x1)
{
    LAUNCH(cuda_of(b), rows_join, y->rows, 1, JoinArgs, .y = y->data, .x0 = x0->data, .x1 = x1->data,
           .cols0 = x0->cols, .cols1 = x1->cols);
}

static void logit_rows(Backend *b, Tensor *y, const Tensor *x, const Rows *r)
{
    LAUNCH(cuda_of(b), rows_logit_rows, r->n_logits, 1, PickRowsArgs, .y = y->data, .x = x->data, .rows = *r,
           .cols = x->cols);
}

static void tap(Backend *b, const Tensor *x, const Rows *r, int32_t part, int32_t n_taps)
{
    LAUNCH(cuda_of(b), rows_tap, x->rows, 1, PickRowsArgs, .x = x->data, .rows = *r, .cols = x->cols, .part = part,
           .n_taps = n_taps);
}

static void tap_get(Backend *b, Tensor *f, const Rows *r)
{
    LAUNCH(cuda_of(b), rows_tap_get, f->rows, 1, PickRowsArgs, .y = f->data, .rows = *r, .cols = f->cols);
}

static void rope_table(Backend *b, Tensor *t, const Rows *r, const Rope *rope)
{
    LAUNCH(cuda_of(b), rows_rope_table, r->n, 1, RopeTableArgs, .t = t->data, .rows = *r, .rope = *rope);
}

bool cuda_can_turn(Cuda *c, const Rope *rope, int32_t head_dim)
{
    if (rope->n_rot > head_dim && !cuda_failed(c))
        fail(&c->error, ST_UNSUPPORTED, "rotary embedding: %d values of %d", rope->n_rot, head_dim);
    return !cuda_failed(c);
}

static void rope(Backend *b, Tensor *x, const Tensor *t, int32_t head_dim, const Rope *rope)
{
    if (!cuda_can_turn(cuda_of(b), rope, head_dim)) return;
    LAUNCH(cuda_of(b), rows_rope, x->rows, 1, RopeArgs, .x = x->data, .t = t->data, .cols = x->cols,
           .head_dim = head_dim, .n_rot = rope->n_rot, .neox = rope->neox);
}

void cuda_rows_ops(Backend *b)
{
    b->norm = norm;
    b->add_norm = add_norm;
    b->add = add;
    b->bias = bias;
    b->glu = glu;
    b->gate = gate;
    b->scale = scale;
    b->head_norm = head_norm;
    b->gated_norm = gated_norm;
    b->split = split;
    b->join = join;
    b->logit_rows = logit_rows;
    b->tap = tap;
    b->tap_get = tap_get;
    b->rope_table = rope_table;
    b->rope = rope;
}
