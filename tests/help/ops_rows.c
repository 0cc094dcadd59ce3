/* ops_rows.c - norms and element-wise operations, against formulas in double. */
#include <math.h>
#include <string.h>

#include "ops_cases.h"

/* ---- the operations whose arguments are more than tensors, each called here only ---- */

static const float EPS_ROW = 1e-5f, EPS_HEAD = 1e-6f;

static void call_norm(Run *r, Tensor *y, const Tensor *x, const Tensor *w, float eps)
{
    r->b->norm(r->b, y, x, w, eps);
}
static void call_head_norm(Run *r, Tensor *x, const Tensor *w, int32_t dim)
{
    r->b->head_norm(r->b, x, w, dim, EPS_HEAD);
}
static void call_glu(Run *r, Tensor *y, const Tensor *gate, const Tensor *up)
{
    r->b->glu(r->b, y, gate, up, ACT_SILU);
}
static void call_gate(Run *r, Tensor *x, const Tensor *logit) { r->b->gate(r->b, x, logit, ACT_SIGMOID, 1); }
/* Optional operations: composed of others where the backend lacks them, as a step does. */
static void call_add_norm(Run *r, Tensor *y, Tensor *x, const Tensor *dx, const Tensor *w, float eps)
{
    if (r->b->add_norm) {
        r->b->add_norm(r->b, y, x, dx, w, eps);
        return;
    }
    r->b->add(r->b, x, dx);
    call_norm(r, y, x, w, eps);
}

/* ---- operands, and what is expected of them ---- */

typedef struct { Mat x, z, w; Tensor y; } Operands;        /* w: one row */

static Operands operands(Run *r, const Turn *t)
{
    const uint64_t key = 100 + (uint64_t) t->turn;
    return (Operands) { mat_make(r, t->rows, t->cols, key, 4), mat_make(r, t->rows, t->cols, key + 1, 6),
                        mat_make(r, 1, t->cols, key + 2, 2), mat_blank(r, t->rows, t->cols) };
}

typedef struct { double x, z, w, inverse; } At;            /* inverse: 1 / sqrt(mean(x^2) + eps) of the row */
typedef double Formula(At at);

static double sigmoid(double x) { return 1 / (1 + exp(-x)); }

static void check(Run *r, const Turn *t, const Tensor *y, const Operands *o, float eps, Formula *formula)
{
    const int64_t n = (int64_t) t->rows * t->cols;
    double *want = run_host(r, sizeof *want * (size_t) n);
    for (int32_t i = 0; i < t->rows; i++) {
        const float *x = o->x.h + i * t->cols, *z = o->z.h + i * t->cols;
        double squares = 0;
        for (int32_t j = 0; j < t->cols; j++) squares += (double) x[j] * x[j];
        const double inverse = 1 / sqrt(squares / t->cols + (double) eps);
        for (int32_t j = 0; j < t->cols; j++)
            want[i * t->cols + j] = formula((At) { x[j], z[j], o->w.h[j], inverse });
    }
    const float *got = mat_get(r, y);
    run_expect(r, t->name, got, want, n, 2e-6);
    run_give(r, t->name, got, n);
}

/* ---- one case each ---- */

static double norm_of(At at) { return at.x * at.inverse * at.w; }
void ops_norm(Run *r, const Turn *t)
{
    Operands o = operands(r, t);
    call_norm(r, &o.y, &o.x.t, &o.w.t, EPS_ROW);
    check(r, t, &o.y, &o, EPS_ROW, norm_of);
}

static double x_itself(At at) { return at.x; }
void ops_add_norm(Run *r, const Turn *t)
{
    Operands o = operands(r, t);
    call_add_norm(r, &o.y, &o.x.t, &o.z.t, &o.w.t, EPS_ROW);
    for (int32_t i = 0; i < t->rows * t->cols; i++) o.x.h[i] += o.z.h[i];
    check(r, t, &o.y, &o, EPS_ROW, norm_of);
    check(r, t, &o.x.t, &o, 0, x_itself);
}

void ops_head_norm(Run *r, const Turn *t)
{
    Operands o = operands(r, t);
    call_head_norm(r, &o.x.t, &o.w.t, t->cols);
    check(r, t, &o.x.t, &o, EPS_HEAD, norm_of);
}

static double gated_norm_of(At at) { return at.x * at.inverse * at.w * at.z * sigmoid(at.z); }
void ops_gated_norm(Run *r, const Turn *t)
{
    Operands o = operands(r, t);
    r->b->gated_norm(r->b, &o.x.t, &o.w.t, &o.z.t, t->cols, EPS_HEAD);
    check(r, t, &o.x.t, &o, EPS_HEAD, gated_norm_of);
}

static double sum_of(At at) { return at.x + at.z; }
void ops_add(Run *r, const Turn *t)
{
    Operands o = operands(r, t);
    r->b->add(r->b, &o.x.t, &o.z.t);
    check(r, t, &o.x.t, &o, 0, sum_of);
}

/* What follows an addition and reads only some of its rows does not take the others' place. */
void ops_add_then_few(Run *r, const Turn *t)
{
    Operands o = operands(r, t);
    Tensor first = o.x.t, norm = o.y;
    first.rows = norm.rows = (t->rows + 1) / 2;
    r->b->add(r->b, &o.x.t, &o.z.t);
    r->b->norm(r->b, &norm, &first, NULL, EPS_ROW);
    check(r, t, &o.x.t, &o, 0, sum_of);
}

static double biased(At at) { return at.x + at.w; }
void ops_bias(Run *r, const Turn *t)
{
    Operands o = operands(r, t);
    r->b->bias(r->b, &o.x.t, &o.w.t);
    check(r, t, &o.x.t, &o, 0, biased);
}

static double glu_of(At at) { return at.x * sigmoid(at.x) * at.z; }
void ops_glu(Run *r, const Turn *t)
{
    Operands o = operands(r, t);
    call_glu(r, &o.y, &o.x.t, &o.z.t);
    check(r, t, &o.y, &o, 0, glu_of);
}

static double gated(At at) { return at.x * sigmoid(at.z); }
void ops_gate(Run *r, const Turn *t)
{
    Operands o = operands(r, t);
    call_gate(r, &o.x.t, &o.z.t);
    check(r, t, &o.x.t, &o, 0, gated);
}

static double scaled(At at) { return at.x * (double) 1.7f; }
void ops_scale(Run *r, const Turn *t)
{
    Operands o = operands(r, t);
    r->b->scale(r->b, &o.x.t, 1.7f, 0);
    check(r, t, &o.x.t, &o, 0, scaled);
}

static double capped(At at) { return 3 * tanh(at.x * (double) 0.9f / 3); }
void ops_softcap(Run *r, const Turn *t)
{
    Operands o = operands(r, t);
    r->b->scale(r->b, &o.x.t, 0.9f, 3);
    check(r, t, &o.x.t, &o, 0, capped);
}

/* Norm and its fused forms agree, whatever the other rows are: add_norm = add + norm; head_norm = norm of the heads as
 * rows; with weights for each head, those of a head as the head alone. */
void ops_norms_are_one(Run *r, const Turn *t)
{
    enum { DIM = 40 };
    const int32_t n = t->rows * t->cols;
    Mat x = mat_make(r, t->rows, t->cols, 1, 1), dx = mat_make(r, t->rows, t->cols, 2, 1),
        w = mat_make(r, 1, t->cols, 3, 1), x2 = mat_of(r, t->rows, t->cols, x.h);
    Tensor y = mat_blank(r, t->rows, t->cols), y2 = mat_blank(r, t->rows, t->cols);
    call_add_norm(r, &y, &x.t, &dx.t, &w.t, EPS_HEAD);
    r->b->add(r->b, &x2.t, &dx.t);
    call_norm(r, &y2, &x2.t, &w.t, EPS_HEAD);
    run_same(r, "add_norm", mat_get(r, &y), mat_get(r, &y2), n);
    run_same(r, "add_norm x", mat_get(r, &x.t), mat_get(r, &x2.t), n);
    Mat wide = mat_of(r, t->rows, t->cols, x.h), heads = mat_of(r, n / DIM, DIM, x.h);
    Tensor out = mat_blank(r, n / DIM, DIM), w1 = h_tensor(T_F32, 1, DIM, w.t.data);
    call_norm(r, &out, &heads.t, &w1, EPS_HEAD);
    call_head_norm(r, &wide.t, &w1, DIM);
    run_same(r, "head_norm", mat_get(r, &wide.t), mat_get(r, &out), n);
    Mat each = mat_of(r, t->rows, t->cols, x.h);
    call_head_norm(r, &each.t, &w.t, DIM);
    const float *got = mat_get(r, &each.t);
    for (int32_t h = 0; h < t->cols / DIM; h++) {
        Tensor alone = mat_of(r, n / DIM, DIM, x.h).t, wh = mat_of(r, 1, DIM, w.h + h * DIM).t;
        call_head_norm(r, &alone, &wh, DIM);
        const float *want = mat_get(r, &alone);
        for (int32_t i = 0; i < t->rows; i++)
            run_same(r, "head_norm of heads", got + i * t->cols + h * DIM, want + i * t->cols + h * DIM, DIM);
    }
}
