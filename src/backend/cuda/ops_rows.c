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

void cuda_rows_ops(Backend *b)
{
    b->norm = norm;
    b->add_norm = add_norm;
    b->add = add;
    b->bias = bias;
}
