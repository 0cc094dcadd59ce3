/* cpu_rows.c - operations that read rows and write rows: products, norms, elementwise functions, rotation, and the ends
 * of passes. Rows, and groups of a weight's rows, are the tasks; no sum is ever divided between tasks. */
#include <math.h>
#include <string.h>

#include "backend/cpu/cpu.h"
#include "base/mathd.h"

static float *floats(const Tensor *t) { return t->data; }
static float *row_of(const Tensor *t, int32_t i) { return (float *) t->data + (size_t) i * (size_t) t->cols; }
static int64_t values(const Tensor *t) { return (int64_t) t->rows * t->cols; }

/* ---- products ---- */

typedef struct {
    Cpu            *c;
    int32_t         n, row0, rows;                 /* n: number of products; rows [row0, row0 + rows) of x */
    Tensor *const  *y;
    const Tensor *const *w;
    const Tensor   *x;
    const void     *act[ACT_COUNT];                /* the rows in each form that the products need */
    int32_t         groups[MATMUL_MAX], per_task[MATMUL_MAX], tasks[MATMUL_MAX];
} Product;

typedef struct { Cpu *c; const void *const *act; const Tensor *x; int32_t row0, n, per_task; } Quantising;

static void quantise_task(void *arg, int32_t i, int32_t thread)
{
    (void) thread;
    const Quantising *q = arg;
    int32_t r0 = i * q->per_task, r1 = q->n - r0 < q->per_task ? q->n : r0 + q->per_task;
    for (int form = ACT_F32 + 1; form < ACT_COUNT; form++)
        if (q->act[form])
            q->c->mm->quantise((void *) (uintptr_t) q->act[form], (ActForm) form, row_of(q->x, q->row0), q->n,
                               q->x->cols, r0, r1);
}

void cpu_quantise(Cpu *c, const void *const act[ACT_COUNT], const Tensor *x, int32_t row0, int32_t n)
{
    Quantising q = { c, act, x, row0, n, (n + c->threads * 4 - 1) / (c->threads * 4) };
    if (act[ACT_Q32] || act[ACT_Q256])
        cpu_run(c, quantise_task, &q, (n + q.per_task - 1) / q.per_task, (int64_t) n * x->cols * 2);
}

void cpu_decode_row(const Cpu *c, float *y, const Tensor *w, int32_t row)
{
    if (c->in_place)
        quant_decode(y, w->type, (const uint8_t *) w->data + (size_t) row * type_row_bytes(w->type, w->cols), w->cols);
    else
        matmul_unpack_row(y, w->type, w->data, w->rows, w->cols, row);
}

void cpu_product(const Cpu *c, float *y, size_t y_stride, const Tensor *w, const uint8_t *matrix, const void *act,
                 int32_t n, int32_t group0, int32_t group1, void *scratch)
{
    if (!c->in_place) {
        c->mm->product(y, y_stride, w->type, matrix, act, n, w->rows, w->cols, group0, group1);
        return;
    }
    size_t row_bytes = type_row_bytes(w->type, w->cols);
    for (int32_t g = group0; g < group1; g++) {
        int32_t rows = w->rows - g * WEIGHT_GROUP < WEIGHT_GROUP ? w->rows - g * WEIGHT_GROUP : WEIGHT_GROUP;
        matmul_pack(scratch, w->type, matrix + (size_t) g * WEIGHT_GROUP * row_bytes, rows, w->cols, 0, 1);
        c->mm->product(y + (size_t) g * WEIGHT_GROUP, y_stride, w->type, scratch, act, n, rows, w->cols, 0, 1);
    }
}

static void product_task(void *arg, int32_t i, int32_t thread)
{
    const Product *p = arg;
    int32_t j = 0;
    while (i >= p->tasks[j]) i -= p->tasks[j++];
    const Tensor *w = p->w[j];
    int32_t g0 = i * p->per_task[j], g1 = p->groups[j] - g0 < p->per_task[j] ? p->groups[j] : g0 + p->per_task[j];
    cpu_product(p->c, row_of(p->y[j], p->row0), (size_t) p->y[j]->cols, w, w->data, p->act[matmul_act_form(w->type)],
                p->rows, g0, g1, cpu_scratch(p->c, thread));
}

/* Places the forms that n rows need one after the other in the input buffer; returns false if they do not fit. */
static bool place_forms(Product *p, int32_t n)
{
    size_t at = 0;
    memset(p->act, 0, sizeof p->act);
    for (int32_t j = 0; j < p->n; j++) {
        ActForm form = matmul_act_form(p->w[j]->type);
        if (p->act[form]) continue;
        p->act[form] = form == ACT_F32 ? (const void *) row_of(p->x, p->row0) : p->c->input + at;
        at += (matmul_act_bytes(form, n, p->x->cols) + 63) & ~(size_t) 63;
    }
    return at <= INPUT_BYTES;
}

/* Tasks are large enough to be worth handing out, and small enough that threads finish together. */
static int32_t plan_tasks(Product *p)
{
    int32_t all = 0;
    for (int32_t j = 0; j < p->n; j++) {
        const Tensor *w = p->w[j];
        int64_t group_work = (int64_t) WEIGHT_GROUP * w->cols * p->rows;
        int32_t least = (int32_t) (1 + 65536 / group_work);
        p->groups[j] = (w->rows + WEIGHT_GROUP - 1) / WEIGHT_GROUP;
        p->per_task[j] = p->groups[j] / (p->c->threads * 8);
        if (p->per_task[j] > 64) p->per_task[j] = 64;
        if (p->per_task[j] < least) p->per_task[j] = least;
        p->tasks[j] = (p->groups[j] + p->per_task[j] - 1) / p->per_task[j];
        all += p->tasks[j];
    }
    return all;
}

static void matmul(Backend *b, int32_t n, Tensor *const *y, const Tensor *const *w, const Tensor *x)
{
    Cpu *c = cpu_of(b);
    if (cpu_failed(c) || x->rows == 0) return;
    Product p = { .c = c, .n = n, .rows = x->rows, .y = y, .w = w, .x = x };
    for (int32_t j = 0; j < n; j++) {              /* parts of equal size */
        int32_t most = matmul_part_rows(matmul_act_form(w[j]->type), x->cols, c->part_bytes),
                parts = (x->rows + most - 1) / most;
        if ((x->rows + parts - 1) / parts < p.rows) p.rows = (x->rows + parts - 1) / parts;
    }
    while (!place_forms(&p, p.rows)) {
        if (p.rows == 1) {
            fail(&c->error, ST_UNSUPPORTED, "product: rows of %d values are too long", x->cols);
            return;
        }
        p.rows = (p.rows + 1) / 2;
    }
    for (int32_t part = p.rows; p.row0 < x->rows; p.row0 += part) {
        if (x->rows - p.row0 < part) p.rows = x->rows - p.row0;
        place_forms(&p, p.rows);
        cpu_quantise(c, p.act, x, p.row0, p.rows);
        int64_t work = 0;
        for (int32_t j = 0; j < n; j++) work += (int64_t) p.rows * values(w[j]) / 4;
        cpu_run(c, product_task, &p, plan_tasks(&p), work);
    }
}

typedef struct { Cpu *c; Tensor *x; const Tensor *table, *ids; } EmbedJob;

static void embed_task(void *arg, int32_t i, int32_t thread)
{
    (void) thread;
    const EmbedJob *j = arg;
    cpu_decode_row(j->c, row_of(j->x, i), j->table, ((const int32_t *) j->ids->data)[i]);
}

static void embed(Backend *b, Tensor *x, const Tensor *table, const Tensor *ids)
{
    Cpu *c = cpu_of(b);
    if (cpu_failed(c)) return;
    const int32_t *id = ids->data;
    for (int32_t i = 0; i < x->rows; i++) {
        if (id[i] >= 0 && id[i] < table->rows) continue;
        fail(&c->error, ST_ARG, "embedding: token %d, expected 0 to %d", id[i], table->rows - 1);
        return;
    }
    EmbedJob j = { c, x, table, ids };
    cpu_run(c, embed_task, &j, x->rows, values(x) * 4);
}

/* ---- norms ---- */

typedef struct {
    Cpu *c;
    float *y, *x;
    const float *dx, *w, *z;
    int32_t cols, per_task, period;                /* period: of w, which has a vector for all groups or one each */
    int64_t rows;
    float eps;
} NormJob;
enum { NORM_PLAIN, NORM_ADD, NORM_GATED };

static inline void norm_rows(const NormJob *j, int32_t task, int kind)
{
    int64_t r0 = (int64_t) task * j->per_task, r1 = j->rows - r0 < j->per_task ? j->rows : r0 + j->per_task;
    const RowKernels *k = j->c->rows;
    for (int64_t at = r0 * j->cols; at < r1 * j->cols; at += j->cols) {
        const float *w = j->period ? j->w + at % j->period : j->w;
        if (kind == NORM_PLAIN) k->norm(j->y + at, j->x + at, w, j->cols, j->eps);
        else if (kind == NORM_ADD) k->add_norm(j->y + at, j->x + at, j->dx + at, j->w, j->cols, j->eps);
        else k->gated_norm(j->x + at, j->w, j->z + at, j->cols, j->eps);
    }
}

static void norm_task(void *arg, int32_t i, int32_t thread)
{
    (void) thread;
    norm_rows(arg, i, NORM_PLAIN);
}

static void add_norm_task(void *arg, int32_t i, int32_t thread)
{
    (void) thread;
    norm_rows(arg, i, NORM_ADD);
}

static void gated_norm_task(void *arg, int32_t i, int32_t thread)
{
    (void) thread;
    norm_rows(arg, i, NORM_GATED);
}

static void norm_run(NormJob *j, PoolTask task, int64_t work)
{
    j->per_task = 1 + 2048 / j->cols;
    cpu_run(j->c, task, j, (int32_t) ((j->rows + j->per_task - 1) / j->per_task), j->rows * j->cols * work);
}

static const float *weights(const Tensor *w) { return w ? floats(w) : NULL; }

static void norm(Backend *b, Tensor *y, const Tensor *x, const Tensor *w, float eps)
{
    Cpu *c = cpu_of(b);
    if (cpu_failed(c)) return;
    norm_run(&(NormJob) { .c = c, .y = floats(y), .x = floats(x), .w = weights(w), .cols = x->cols, .rows = x->rows,
                          .eps = eps }, norm_task, 4);
}

static void head_norm(Backend *b, Tensor *x, const Tensor *w, int32_t head_dim, float eps)
{
    Cpu *c = cpu_of(b);
    if (cpu_failed(c)) return;
    norm_run(&(NormJob) { .c = c, .y = floats(x), .x = floats(x), .w = weights(w), .cols = head_dim,
                          .period = w ? w->cols : 0, .rows = values(x) / head_dim, .eps = eps }, norm_task, 4);
}

static void gated_norm(Backend *b, Tensor *x, const Tensor *w, const Tensor *z, int32_t head_dim, float eps)
{
    Cpu *c = cpu_of(b);
    if (cpu_failed(c)) return;
    NormJob j = { .c = c, .x = floats(x), .w = floats(w), .z = floats(z), .cols = head_dim,
                  .rows = values(x) / head_dim, .eps = eps };
    norm_run(&j, gated_norm_task, 16);
}

static void add_norm(Backend *b, Tensor *y, Tensor *x, const Tensor *dx, const Tensor *w, float eps)
{
    Cpu *c = cpu_of(b);
    if (cpu_failed(c)) return;
    NormJob j = { .c = c, .y = floats(y), .x = floats(x), .dx = floats(dx), .w = weights(w), .cols = x->cols,
                  .rows = x->rows, .eps = eps };
    norm_run(&j, add_norm_task, 5);
}

/* ---- elementwise ---- */

enum { PIECE = 8192 };
typedef enum { EACH_ADD, EACH_GLU, EACH_GATE, EACH_SCALE } Each;
typedef struct {
    Cpu *c;
    Each what;
    Act act;
    float *y;
    const float *a, *b;
    int64_t n, piece;                              /* total number of values, and values per task */
    int32_t width;                                 /* values that share one value of a; divides piece */
    float by, softcap;
} EachJob;

static void each_task(void *arg, int32_t i, int32_t thread)
{
    (void) thread;
    const EachJob *j = arg;
    int64_t at = (int64_t) i * j->piece, n = j->n - at < j->piece ? j->n - at : j->piece;
    const RowKernels *k = j->c->rows;
    switch (j->what) {
    case EACH_ADD:   k->add(j->y + at, j->a + at, n); break;
    case EACH_GLU:   k->glu(j->y + at, j->a + at, j->b + at, n, j->act); break;
    case EACH_GATE:  k->gate(j->y + at, j->a + at / j->width, n, j->act, j->width); break;
    case EACH_SCALE: k->scale(j->y + at, n, j->by, j->softcap); break;
    }
}

static void each_run(Backend *b, EachJob j, int64_t work)
{
    j.c = cpu_of(b);
    j.piece = j.width > PIECE ? j.width : j.width > 1 ? PIECE / j.width * j.width : PIECE;
    if (!cpu_failed(j.c)) cpu_run(j.c, each_task, &j, (int32_t) ((j.n + j.piece - 1) / j.piece), j.n * work);
}

static void add(Backend *b, Tensor *x, const Tensor *dx)
{
    each_run(b, (EachJob) { .what = EACH_ADD, .y = floats(x), .a = floats(dx), .n = values(x) }, 1);
}

static void glu(Backend *b, Tensor *y, const Tensor *gate, const Tensor *up, Act act)
{
    each_run(b, (EachJob) { .what = EACH_GLU, .act = act, .y = floats(y), .a = floats(gate), .b = floats(up),
                            .n = values(y) }, 16);
}

static void gate(Backend *b, Tensor *x, const Tensor *logit, Act act, int32_t width)
{
    each_run(b, (EachJob) { .what = EACH_GATE, .act = act, .y = floats(x), .a = floats(logit), .n = values(x),
                            .width = width }, width > 1 ? 2 : 16);
}

static void scale(Backend *b, Tensor *x, float by, float softcap)
{
    each_run(b, (EachJob) { .what = EACH_SCALE, .y = floats(x), .n = values(x), .by = by, .softcap = softcap },
             softcap > 0 ? 30 : 1);
}

/* ---- one task per row ---- */

typedef struct {
    Cpu *c;
    Tensor *y, *y1;
    const Tensor *x, *v;
    const Rows *r;
    int32_t width, j, n_taps;
} RowJob;

static void bias_task(void *arg, int32_t i, int32_t thread)
{
    (void) thread;
    const RowJob *j = arg;
    j->c->rows->add(row_of(j->y, i), floats(j->v), j->y->cols);
}

static void bias(Backend *b, Tensor *x, const Tensor *v)
{
    RowJob j = { .c = cpu_of(b), .y = x, .v = v };
    if (!cpu_failed(j.c)) cpu_run(j.c, bias_task, &j, x->rows, values(x));
}

static void split_task(void *arg, int32_t i, int32_t thread)
{
    (void) thread;
    const RowJob *j = arg;
    float *y[2] = { row_of(j->y, i), row_of(j->y1, i) };
    const float *x = row_of(j->x, i);
    for (int32_t at = 0, turn = 0; at < j->x->cols; at += j->width, turn ^= 1) {
        int32_t n = j->x->cols - at < j->width ? j->x->cols - at : j->width;
        memcpy(y[turn], x + at, sizeof(float) * (size_t) n);
        y[turn] += n;
    }
}

static void split(Backend *b, Tensor *y0, Tensor *y1, const Tensor *x, int32_t width)
{
    RowJob j = { .c = cpu_of(b), .y = y0, .y1 = y1, .x = x, .width = width };
    if (!cpu_failed(j.c)) cpu_run(j.c, split_task, &j, x->rows, values(x));
}

static void join_task(void *arg, int32_t i, int32_t thread)
{
    (void) thread;
    const RowJob *j = arg;
    memcpy(row_of(j->y, i), row_of(j->x, i), sizeof(float) * (size_t) j->x->cols);
    memcpy(row_of(j->y, i) + j->x->cols, row_of(j->v, i), sizeof(float) * (size_t) j->v->cols);
}

static void join(Backend *b, Tensor *y, const Tensor *x0, const Tensor *x1)
{
    RowJob j = { .c = cpu_of(b), .y = y, .x = x0, .v = x1 };
    if (!cpu_failed(j.c)) cpu_run(j.c, join_task, &j, y->rows, values(y));
}

static void logit_row_task(void *arg, int32_t i, int32_t thread)
{
    (void) thread;
    const RowJob *j = arg;
    memcpy(row_of(j->y, i), row_of(j->x, j->r->logit_row[i]), sizeof(float) * (size_t) j->x->cols);
}

static void logit_rows(Backend *b, Tensor *y, const Tensor *x, const Rows *r)
{
    RowJob j = { .c = cpu_of(b), .y = y, .x = x, .r = r };
    if (!cpu_failed(j.c)) cpu_run(j.c, logit_row_task, &j, r->n_logits, (int64_t) r->n_logits * x->cols);
}

static void tap_task(void *arg, int32_t i, int32_t thread)
{
    (void) thread;
    const RowJob *j = arg;
    int32_t slot = j->r->tap_slot[i];
    if (slot < 0) return;
    size_t cols = (size_t) j->x->cols;
    memcpy(j->r->slices[j->r->slice[i]].taps + ((size_t) slot * (size_t) j->n_taps + (size_t) j->j) * cols,
           row_of(j->x, i), sizeof(float) * cols);
}

static void tap(Backend *b, const Tensor *x, const Rows *r, int32_t part, int32_t n_taps)
{
    RowJob j = { .c = cpu_of(b), .x = x, .r = r, .j = part, .n_taps = n_taps };
    if (!cpu_failed(j.c)) cpu_run(j.c, tap_task, &j, x->rows, values(x));
}

static void tap_get_task(void *arg, int32_t i, int32_t thread)
{
    (void) thread;
    const RowJob *j = arg;
    size_t cols = (size_t) j->y->cols;
    memcpy(row_of(j->y, i), j->r->slices[j->r->slice[i]].taps + (size_t) j->r->tap_slot[i] * cols,
           sizeof(float) * cols);
}

static void tap_get(Backend *b, Tensor *f, const Rows *r)
{
    RowJob j = { .c = cpu_of(b), .y = f, .r = r };
    if (!cpu_failed(j.c)) cpu_run(j.c, tap_get_task, &j, f->rows, values(f));
}

/* ---- rotation ---- */

typedef struct {
    Cpu           *c;
    Tensor        *x;
    const Tensor  *turn;                           /* [rows, cos n_rot / 2, sin n_rot / 2] */
    const Rope    *rope;
    const int32_t *lane;
    int32_t        head_dim;
} RopeJob;

static void turn_task(void *arg, int32_t i, int32_t thread)
{
    (void) thread;
    const RopeJob *j = arg;
    int32_t half = j->rope->n_rot / 2;
    float *c = row_of(j->turn, i), *s = c + half;
    for (int32_t p = 0; p < half; p++) {
        int32_t lane = j->rope->lane_of ? j->rope->lane_of[p] : 0;
        double sine, cosine;
        mathd_sincos((double) j->lane[i * POS_LANES + lane] * j->rope->freq[p], &sine, &cosine);
        c[p] = (float) cosine * j->rope->mscale;
        s[p] = (float) sine * j->rope->mscale;
    }
}

static void rope_table(Backend *b, Tensor *t, const Rows *r, const Rope *how)
{
    RopeJob j = { .c = cpu_of(b), .turn = t, .rope = how, .lane = r->lane };
    if (!cpu_failed(j.c)) cpu_run(j.c, turn_task, &j, t->rows, values(t) * 40);
}

static void rope_task(void *arg, int32_t i, int32_t thread)
{
    (void) thread;
    const RopeJob *j = arg;
    const float *turn = row_of(j->turn, i);
    float *x = row_of(j->x, i);
    for (int32_t at = 0; at < j->x->cols; at += j->head_dim)
        j->c->rows->rope(x + at, turn, j->rope->n_rot, j->rope->neox);
}

static void rope(Backend *b, Tensor *x, const Tensor *t, int32_t head_dim, const Rope *how)
{
    RopeJob j = { .c = cpu_of(b), .x = x, .turn = t, .rope = how, .head_dim = head_dim };
    if (cpu_failed(j.c)) return;
    if (how->n_rot > head_dim) {
        fail(&j.c->error, ST_UNSUPPORTED, "rotary embedding: %d values of %d", how->n_rot, head_dim);
        return;
    }
    cpu_run(j.c, rope_task, &j, x->rows, values(x) * 3);
}

/* ---- drafters' extras ---- */

typedef struct {
    Cpu *c;
    Tensor *y;
    const Tensor *x, *base, *delta;
    const Rows *r;
    int32_t side, taps, group;
} ConvJobRows;

static void block_conv_task(void *arg, int32_t i, int32_t thread)
{
    (void) thread;
    const ConvJobRows *j = arg;
    int32_t dim = j->x->cols, row = i - j->r->slices[j->r->slice[i]].row0, taps = row + 1 < j->taps ? row + 1 : j->taps;
    size_t side = (size_t) j->side * (size_t) j->taps;
    j->c->rows->block_conv(row_of(j->y, i), row_of(j->x, i), floats(j->base) + side * (size_t) dim,
                           row_of(j->delta, i) + side * (size_t) (dim / j->group), taps, dim, j->group);
}

static void block_conv(Backend *b, Tensor *y, const Tensor *x, const Tensor *base, const Tensor *delta, int32_t side,
                       int32_t taps, int32_t group, const Rows *r)
{
    ConvJobRows j = { cpu_of(b), y, x, base, delta, r, side, taps, group };
    if (!cpu_failed(j.c)) cpu_run(j.c, block_conv_task, &j, x->rows, values(x) * taps * 3);
}

typedef struct { Cpu *c; Tensor *edge; const Tensor *pred, *succ, *ids, *score, *g; const Rows *r; } PairJob;

static void pair_task(void *arg, int32_t j, int32_t thread)
{
    const PairJob *p = arg;
    int32_t k = p->score->cols, rank = p->pred->cols;
    float *before = cpu_scratch(p->c, thread), *after = before + (size_t) rank * (size_t) k;
    const int32_t *ids = p->ids->data, *id = ids + (size_t) j * (size_t) k;
    const Slice *s = &p->r->slices[p->r->slice[p->r->logit_row[j]]];
    bool first = j == 0 || s != &p->r->slices[p->r->slice[p->r->logit_row[j - 1]]];
    float temperature = s->draw.p.temperature < 1e-5f ? 1.0f : s->draw.p.temperature;
    for (int32_t i = 0; i < k; i++)
        if (id[i] >= 0) cpu_decode_row(p->c, after + (size_t) i * (size_t) rank, p->succ, id[i]);
    for (int32_t kp = 0; kp < k; kp++) {
        float *edge = row_of(p->edge, j) + (size_t) kp * (size_t) k;
        int32_t prev = first ? p->r->token[s->row0] : id[kp - k];
        if (first && kp > 0) {
            memcpy(edge, row_of(p->edge, j), sizeof(float) * (size_t) k);
            continue;
        }
        if (prev >= 0) cpu_decode_row(p->c, before, p->pred, prev);
        for (int32_t i = 0; i < k; i++) {
            float unary = row_of(p->score, j)[i];
            if (prev < 0 || id[i] < 0 || unary == -INFINITY) edge[i] = -INFINITY;
            else
                edge[i] = unary + p->c->rows->pair(before, row_of(p->g, j), after + (size_t) i * (size_t) rank,
                                                   rank) / temperature;
        }
    }
}

static void pair_scores(Backend *b, Tensor *edge, const Tensor *pred, const Tensor *succ, const Tensor *ids,
                        const Tensor *score, const Tensor *g, const Rows *r)
{
    Cpu *c = cpu_of(b);
    if (cpu_failed(c)) return;
    int32_t k = score->cols;
    if (sizeof(float) * (size_t) pred->cols * (size_t) (k + 1) > SCRATCH_BYTES) {
        fail(&c->error, ST_UNSUPPORTED, "selector: codebooks of %d values are too wide", pred->cols);
        return;
    }
    PairJob p = { c, edge, pred, succ, ids, score, g, r };
    cpu_run(c, pair_task, &p, r->n_logits, (int64_t) r->n_logits * k * (k + 2) * pred->cols * 3);
}

/* ---- the end of a drafting pass ---- */

typedef struct { Cpu *c; Tensor *id, *score; const Tensor *logits; const Rows *r; int32_t k; } TopJob;

static void top_k_task(void *arg, int32_t j, int32_t thread)
{
    const TopJob *t = arg;
    int32_t row = t->r->logit_row[j];
    size_t at = (size_t) j * (size_t) t->k;
    draw_top_k((int32_t *) t->id->data + at, (float *) t->score->data + at, t->k, &t->r->slices[t->r->slice[row]].draw,
               row_of(t->logits, j), t->logits->cols, t->r->pos[row], cpu_scratch(t->c, thread));
}

static void top_k(Backend *b, Tensor *id, Tensor *score, const Tensor *logits, const Rows *r, int32_t k)
{
    Cpu *c = cpu_of(b);
    if (cpu_failed(c)) return;
    if (draw_scratch(logits->cols) > SCRATCH_BYTES) {
        fail(&c->error, ST_UNSUPPORTED, "candidates: a vocabulary of %d is too large", logits->cols);
        return;
    }
    TopJob t = { c, id, score, logits, r, k };
    cpu_run(c, top_k_task, &t, r->n_logits, (int64_t) r->n_logits * logits->cols * 8);
}

void cpu_rows_ops(Backend *b)
{
    b->embed = embed;
    b->matmul = matmul;
    b->norm = norm;
    b->head_norm = head_norm;
    b->add = add;
    b->bias = bias;
    b->glu = glu;
    b->gate = gate;
    b->gated_norm = gated_norm;
    b->split = split;
    b->join = join;
    b->scale = scale;
    b->logit_rows = logit_rows;
    b->tap = tap;
    b->tap_get = tap_get;
    b->rope_table = rope_table;
    b->rope = rope;
    b->block_conv = block_conv;
    b->pair_scores = pair_scores;
    b->top_k = top_k;
    b->add_norm = add_norm;
}
