/* ops_experts.c - mixtures of experts. Which rows an expert has is known to the device alone, so a launch has blocks
 * for the most items that there can be, and those without one leave at once. Lists are made by the router's last
 * block, where the router is the call before; gate and up end with their activation, and down with the sums of the
 * rows. */
#include <string.h>

#include "backend/cpu/matmul_layout.h"
#include "backend/cuda/cuda.h"

enum { ROUTE_TICKET = 3 * TICKETS };

/* Waits for the experts, to make their lists as well. It leaves rows alone, so what is quantised stays. */
static void route(Backend *b, Tensor *ids, Tensor *weight, const Tensor *logits, const Tensor *bias,
                  const Tensor *factor, const Router *r, const Rows *rows)
{
    Cuda *c = cuda_of(b);
    const CudaInput quantised = c->quantised;
    const RouteArgs a = { .ids = ids->data, .ticket = c->tickets + ROUTE_TICKET, .weight = weight->data,
                          .logits = logits->data, .bias = bias ? bias->data : NULL,
                          .factor = factor ? factor->data : NULL, .count = rows->count,
                          .experts = logits->cols, .used = r->used, .gating = r->gating, .scale = r->scale };
    if (a.experts > EXPERTS_MAX || a.used > EXPERTS_USED_MAX || a.used > a.experts) {
        if (!cuda_failed(c)) fail(&c->error, ST_UNSUPPORTED, "router: %d of %d experts", a.used, a.experts);
        return;
    }
    cuda_delay(c, GPU_experts_route, logits->rows, 1, &a, sizeof a, 0, ids);
    c->quantised = quantised;
}

/* ---- the experts ---- */

static GpuKernel choose(Type t)
{
    switch (t) {
    case T_F32: return GPU_experts_f32;
    case T_F16: return GPU_experts_f16;
    case T_BF16: return GPU_experts_bf16;
    case T_Q8_0: return GPU_experts_8;
    case T_Q4_0: return GPU_experts_4;
    case T_Q4_1: return GPU_experts_4m;
    case T_IQ4_NL: return GPU_experts_4x;
    case T_Q5_0: return GPU_experts_5;
    case T_Q5_1: return GPU_experts_5m;
    case T_Q2_K: return GPU_experts_k2;
    case T_Q4_K: return GPU_experts_k4;
    case T_Q5_K: return GPU_experts_k5;
    case T_IQ4_XS: return GPU_experts_k4x;
    case T_Q3_K: return GPU_experts_k3;
    case T_IQ2_XXS:
    case T_IQ2_XS:
    case T_IQ2_S: return GPU_experts_k3x;
    case T_IQ3_XXS: return GPU_experts_iq3_xxs;
    case T_IQ3_S: return GPU_experts_iq3_s;
    case T_MXFP4: return GPU_experts_4f;
    case T_NVFP4: return GPU_experts_4n;
    default: return GPU_experts_k6;
    }
}

/* One call. What it needs besides the tensors lies in the input buffer. */
typedef struct {
    Cuda   *c;
    const Tensor *x;
    const Experts *e;
    int32_t row0, n, used, items;                  /* rows of this part; the most items that they can have */
    bool    quantised;                             /* the rows of x are there, from the product before */
    ActRows act[2], act_h[2];
    ExpertLists lists;
    int32_t *sum_ticket, n_sum;
    const uint64_t *where;                         /* of experts that the store has */
} Mixture;

static int32_t form_of(const Tensor *w) { return 1 << matmul_act_form(w->type); }
static int32_t tiles_of(const Tensor *w) { return (w->rows + EXPERT_COLS - 1) / EXPERT_COLS; }

static void *take(uint8_t **at, size_t bytes)
{
    void *p = *at;
    *at += (bytes + 255) / 256 * 256;
    return p;
}

/* Places all that n rows need; returns false if it does not fit. */
static bool place_all(Mixture *m, int32_t n, const CudaInput *there)
{
    const Experts *e = m->e;
    const int64_t pairs = (int64_t) n * m->used, experts = e->gate->n;
    const int64_t least = pairs < experts ? pairs : experts, items = least + (pairs - least) / EXPERT_ROWS;
    const int64_t parts = (e->gate->rows + 255) / 256, n_sum = (int64_t) n * tiles_of(e->down);
    const int32_t forms = form_of(e->gate) | form_of(e->up);
    const CudaVisitor *v = &m->c->visitor;
    const CudaStack *stored = cuda_store_has(v->store, e->gate);
    if (pairs > INT32_MAX / EXPERT_COLS || items * parts > INT32_MAX || n_sum > INT32_MAX) return false;
    uint8_t *at = m->c->input;
    m->n = n;
    m->items = (int32_t) items;
    m->quantised = there->x == m->x->data && there->rows == n && there->cols == m->x->cols &&
                   (~there->forms & forms & ~(1 << ACT_F32)) == 0;
    if (m->quantised) memcpy(m->act, there->act, sizeof m->act);
    const size_t bytes = m->quantised ? there->bytes : cuda_place_rows(m->act, at, forms, n, m->x->cols);
    at += (bytes + 255) / 256 * 256;
    at += cuda_place_rows(m->act_h, at, form_of(e->down), (int32_t) pairs, e->down->cols);
    m->lists = (ExpertLists) { .item = take(&at, sizeof(ExpertItem) * (size_t) items),
                               .n_items = take(&at, sizeof(int32_t)),
                               .pair = take(&at, sizeof(int32_t) * (size_t) pairs),
                               .clear = take(&at, sizeof(int32_t) * (size_t) (items * parts)),
                               .report = m->c->report,
                               .counts = stored ? v->counts + stored->layer * cuda_store_experts(v->store) : NULL,
                               .pairs = (int32_t) pairs, .experts = e->gate->n,
                               .n_clear = (int32_t) (items * parts) };
    m->sum_ticket = take(&at, sizeof(int32_t) * (size_t) n_sum);
    m->n_sum = (int32_t) n_sum;
    return (size_t) (at - m->c->input) <= WORK_INPUT;
}

static float *row_of(const Tensor *t, int64_t i) { return (float *) t->data + i * t->cols; }
static const float *factors_of(const Tensor *w) { return w->factors ? w->factors->data : NULL; }

static void make_lists(Mixture *m, const Tensor *ids)
{
    RouteArgs waiting;
    const RouteArgs *route = m->n == m->x->rows ? cuda_waiting(m->c, GPU_experts_route, ids) : NULL;
    m->lists.ids = (const int32_t *) ids->data + (int64_t) m->row0 * m->used;
    if (!route) {
        cuda_launch(m->c, GPU_experts_lists, 1, 1, &m->lists, sizeof m->lists);
        return;
    }
    waiting = *route;
    waiting.lists = m->lists;
    m->c->delayed.bytes = 0;
    cuda_launch(m->c, GPU_experts_route, m->n, 1, &waiting, sizeof waiting);
}

/* Behind the lists, which say what is to be found. */
static void find_experts(Mixture *m)
{
    Cuda *c = m->c;
    int code;
    const CudaStack *stored = cuda_store_has(c->visitor.store, m->e->gate);
    if (!stored || cuda_failed(c)) return;
    m->where = cuda_store_table(&c->visitor, stored->layer, c->stream, &code);
    if (c->visitor.fetch) c->early = false;
    cuda_ok(c, code, "reading experts");
}

/* The matrices of w, and of the other one if its kernel is the same. */
static void launch_products(const Mixture *m, ExpertsArgs *a, const Tensor *w, float *y, const Tensor *other,
                            float *other_y)
{
    const Tensor *both[] = { w, other };
    float *to[] = { y, other_y };
    int32_t tiles = 0;
    a->n_products = other ? 2 : 1;
    a->cols = w->cols;
    for (int32_t i = 0; i < a->n_products; i++) {
        ExpertProduct *p = &a->product[i];
        const CudaStack *stored = cuda_store_has(m->c->visitor.store, both[i]);
        *p = (ExpertProduct) { .y = to[i], .rows = both[i]->rows, .tile0 = tiles };
        if (stored) {
            p->where = m->where;
            p->matrix_bytes = (int64_t) stored->at;
        } else {
            p->w = both[i]->data;
            p->matrix_bytes = (int64_t) matmul_packed_bytes(both[i]->type, both[i]->rows, both[i]->cols);
        }
        tiles += tiles_of(both[i]);
    }
    cuda_launch(m->c, choose(w->type), m->items, tiles, a, sizeof *a);
}

static ActRows act_for(const ActRows act[2], const Tensor *w)
{
    return act[matmul_act_form(w->type) == ACT_Q256];
}

static void run_mixture(Mixture *m, Tensor *y, const Tensor *weight)
{
    const Experts *e = m->e;
    float *h = row_of(e->h, 0), *wide = row_of(e->wide, 0), *each = row_of(e->each, 0);
    ExpertsArgs a = {
        .x = row_of(m->x, m->row0), .item = m->lists.item, .n_items = m->lists.n_items, .pair = m->lists.pair,
        .divide = m->used, .clear = m->sum_ticket, .n_clear = m->n_sum,
        .glu = { .ticket = m->lists.clear, .h = h, .wide = wide, .gate = factors_of(e->gate), .up = factors_of(e->up),
                 .cols = e->gate->rows, .function = e->act,
                 .rows = { m->act_h[0], m->act_h[1] } } };
    a.act = act_for(m->act, e->gate);
    if (choose(e->gate->type) == choose(e->up->type)) {
        launch_products(m, &a, e->gate, h, e->up, wide);
    } else {
        launch_products(m, &a, e->gate, h, NULL, NULL);
        a.act = act_for(m->act, e->up);
        a.n_clear = 0;
        launch_products(m, &a, e->up, wide, NULL, NULL);
    }
    ExpertsArgs down = {
        .act = act_for(m->act_h, e->down), .x = h, .item = a.item, .n_items = a.n_items, .pair = a.pair, .divide = 1,
        .sum = { .ticket = m->sum_ticket, .y = row_of(y, m->row0), .each = each, .weight = row_of(weight, m->row0),
                 .cols = e->down->rows, .used = m->used } };
    launch_products(m, &down, e->down, each, NULL, NULL);
}

static void experts(Backend *b, Tensor *y, const Tensor *x, const Tensor *ids, const Tensor *weight, const Experts *e)
{
    Mixture m = { .c = cuda_of(b), .x = x, .e = e, .used = ids->cols };
    const CudaInput there = m.c->quantised;
    int32_t part = x->rows;
    if (cuda_failed(m.c) || x->rows == 0) return;
    if (!m.c->preparing) cuda_visit(m.c);
    while (!place_all(&m, part, &there)) {
        if (part == 1) {
            fail(&m.c->error, ST_UNSUPPORTED, "experts: rows of %d values are too long", x->cols);
            return;
        }
        part = (part + 1) / 2;
    }
    for (; m.row0 < x->rows; m.row0 += part) {
        place_all(&m, x->rows - m.row0 < part ? x->rows - m.row0 : part, &there);
        make_lists(&m, ids);
        find_experts(&m);
        if (!m.quantised && (m.act[0].code || m.act[1].code))
            LAUNCH(m.c, matmul_quantise, (x->cols + 255) / 256, (m.n + 7) / 8, QuantiseArgs,
                   .act = { m.act[0], m.act[1] }, .n = m.n, .cols = x->cols, .x = row_of(x, m.row0));
        run_mixture(&m, y, weight);
    }
}

/* ---- experts of which device memory holds only some ---- */

static Status store_needs(Backend *b, StoreNeeds *out, const Stacked *s, int32_t n, const StoreOptions *o, Error *err)
{
    return cuda_store_needs(out, s, n, b->chunk, o, err);
}

static Status store(Backend *b, const Stacked *s, int32_t n, void *memory, const StoreOptions *o, Error *err)
{
    Cuda *c = cuda_of(b);
    cuda_enter(c);
    if (cuda_failed(c)) return b->sync(b, err);
    return cuda_store_open(&c->visitor.store, c->card->cu, c->card->device, s, n, memory, o, err);
}

static void store_stats(Backend *b, StoreStats *out)
{
    *out = (StoreStats) { 0 };
    if (cuda_of(b)->visitor.store) cuda_store_stats(cuda_of(b)->visitor.store, out);
}

static void store_counts(Backend *b, uint64_t *counts)
{
    if (cuda_of(b)->visitor.store) cuda_store_counts(cuda_of(b)->visitor.store, counts);
}

static void routes(Backend *b, Routes *out)
{
    *out = cuda_of(b)->routes;
    cuda_of(b)->routes = (Routes) { 0 };
}

void cuda_experts_ops(Backend *b)
{
    b->store_needs = store_needs;
    b->store = store;
    b->store_stats = store_stats;
    b->store_counts = store_counts;
    b->routes = routes;
    b->route = route;
    b->experts = experts;
}
