/* ops_rows.c - operations that read rows and write rows. */
#include "backend/cuda/cuda.h"

static int64_t values(const Tensor *t) { return (int64_t) t->rows * t->cols; }

static void norm(Backend *b, Tensor *y, const Tensor *x, const Tensor *w, float eps)
{
    LAUNCH(cuda_of(b), rows_norm, x->rows, 1, NormArgs, .y = y->data, .x = x->data, .w = w ? w->data : NULL,
           .cols = x->cols, .eps = eps);
}

static void add_norm(Backend *b, Tensor *y, Tensor *x, const Tensor *dx, const Tensor *w, float eps)
{
    LAUNCH(cuda_of(b), rows_norm, x->rows, 1, NormArgs, .y = y->data, .x = x->data, .dx = dx->data,
           .w = w ? w->data : NULL, .cols = x->cols, .eps = eps);
}

static void add(Backend *b, Tensor *x, const Tensor *dx)
{
    LAUNCH(cuda_of(b), rows_add, (values(x) + 255) / 256, 1, AddArgs, .y = x->data, .x = dx->data, .n = values(x),
           .period = values(x));
}

static void bias(Backend *b, Tensor *x, const Tensor *v)
{
    LAUNCH(cuda_of(b), rows_add, (values(x) + 255) / 256, 1, AddArgs, .y = x->data, .x = v->data, .n = values(x),
           .period = x->cols);
}

static void glu(Backend *b, Tensor *y, const Tensor *gate, const Tensor *up, Act act)
{
    LAUNCH(cuda_of(b), rows_glu, (values(y) + 255) / 256, 1, GluArgs, .y = y->data, .gate = gate->data, .up = up->data,
           .n = values(y), .act = act, .width = 1);
}

static void gate(Backend *b, Tensor *x, const Tensor *logit, Act act, int32_t width)
{
    LAUNCH(cuda_of(b), rows_glu, (values(x) + 255) / 256, 1, GluArgs, .y = x->data, .gate = logit->data, .up = x->data,
           .n = values(x), .act = act, .width = width);
}

static void scale(Backend *b, Tensor *x, float by, float softcap)
{
    LAUNCH(cuda_of(b), rows_scale, (values(x) + 255) / 256, 1, ScaleArgs, .x = x->data, .n = values(x), .by = by,
           .softcap = softcap);
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
}
