/* ops_experts.c - mixtures of experts: which experts a row gets, against a plain reading of the rule; and what they
 * make of it, against the same products one row and one expert at a time. */
#include <math.h>
#include <string.h>

#include "ops_cases.h"

/* The rows of a pass of which `real` count. */
static Rows counted_rows(Run *r, int32_t n, int32_t real)
{
    const int32_t count[3] = { real, real, real };
    int32_t *there = run_memory(r, sizeof count, count);
    return (Rows) { .n = n, .count = there, .token = there, .slices = (Slice *) (void *) there };
}

/* ---- the router ---- */

/* Logits with equal values, and in some rows infinities and NaNs. */
static float *odd_logits(Run *r, int32_t n, int32_t experts, uint64_t *seed)
{
    float *z = run_host(r, sizeof *z * (size_t) n * (size_t) experts);
    for (int32_t i = 0; i < n; i++) {
        float *row = z + (int64_t) i * experts;
        const int32_t kind = h_pick(seed, 8), steps = kind == 0 ? 3 : 4096;
        for (int32_t e = 0; e < experts; e++) row[e] = ((float) h_pick(seed, steps) / (float) steps - 0.5f) * 20;
        if (kind == 1) row[h_pick(seed, experts)] = NAN;
        if (kind == 2) row[h_pick(seed, experts)] = -INFINITY;
        if (kind == 3) for (int32_t e = 0; e < experts; e++) row[e] = NAN;
        if (kind == 4) for (int32_t e = 0; e < experts; e++) row[e] = -100;
    }
    return z;
}

/* The place of an expert is the number of experts that rank before it. */
static int32_t place_of(const float *p, int32_t experts, int32_t e)
{
    int32_t before = 0;
    for (int32_t o = 0; o < experts; o++) {
        const bool higher = p[o] > p[e] || (isnan(p[e]) && !isnan(p[o]));
        const bool equal = p[o] == p[e] || (isnan(p[e]) && isnan(p[o]));
        before += higher || (equal && o < e);
    }
    return before;
}

static void check_softmax(Run *r, const float *z, const int32_t *ids, const float *w, const float *factor,
                          int32_t experts, int32_t used, float scale)
{
    double sum = 0, want[EXPERTS_USED_MAX];
    bool sane = true;
    for (int32_t j = 0; j < used; j++) {
        run_must(r, ids[j] >= 0 && ids[j] < experts && place_of(z, experts, ids[j]) == j, "the experts in their order");
        sum += want[j] = exp((double) z[ids[j]] - (double) z[ids[0]]);
        sane = sane && isfinite(want[j]);
    }
    for (int32_t j = 0; j < used; j++) want[j] *= (double) scale / sum * (factor ? (double) factor[ids[j]] : 1);
    if (sane) run_expect(r, "weights", w, want, used, 2e-6);
}

/* Sigmoids are the backend's, within an error; so is their order. */
static void check_sigmoid(Run *r, const float *z, const float *bias, const int32_t *ids, const float *w,
                          const float *factor, int32_t experts, int32_t used, float scale)
{
    double sum = 0, want[EXPERTS_USED_MAX], worst = INFINITY;
    for (int32_t e = 0; e < experts; e++)
        if (isnan(z[e])) return;
    for (int32_t j = 0; j < used; j++) {
        run_must(r, ids[j] >= 0 && ids[j] < experts, "an expert that there is");
        want[j] = 1 / (1 + exp(-(double) z[ids[j]]));
        sum += want[j];
        const double p = want[j] + (bias ? (double) bias[ids[j]] : 0);
        run_must(r, p <= worst + 1e-6, "the experts in their order");
        worst = p;
    }
    for (int32_t e = 0; e < experts; e++) {
        bool chosen = false;
        for (int32_t j = 0; j < used; j++) chosen = chosen || ids[j] == e;
        run_must(r, chosen || 1 / (1 + exp(-(double) z[e])) + (bias ? (double) bias[e] : 0) <= worst + 1e-6,
                 "the best experts");
    }
    for (int32_t j = 0; j < used; j++)
        want[j] *= (double) scale / fmax(sum, 0x1p-14) * (factor ? (double) factor[ids[j]] : 1);
    run_expect(r, "weights", w, want, used, 2e-6);
}

void ops_route(Run *r, const Turn *t)
{
    static const struct { int32_t experts, used; } sizes[] = { { 1, 1 }, { 4, 2 }, { 8, 8 }, { 40, 3 }, { 128, 8 },
                                                               { 256, 10 }, { 512, 32 } };
    const int32_t experts = sizes[t->round % 7].experts, used = sizes[t->round % 7].used, n = 1 + t->round * 5 % 64;
    const int32_t real = t->round % 3 ? n : (n + 1) / 2;
    uint64_t seed = h_mix((uint64_t) t->round + 5);
    const Router how = { t->round / 7 % 3 ? ROUTE_SIGMOID : ROUTE_SOFTMAX, used, t->round % 2 ? 1 : 2.5f };
    const bool biased = t->round / 7 % 3 == 2, scaled = t->round / 3 % 2;
    const Rows rows = counted_rows(r, n, real);
    Mat z = mat_of(r, n, experts, odd_logits(r, n, experts, &seed)), bias = mat_make(r, 1, experts, seed, 0.3f),
        factor = mat_make(r, 1, experts, seed + 1, 1);
    Tensor ids = mat_ids(r, n, used, NULL), weight = mat_blank(r, n, used);
    r->b->route(r->b, &ids, &weight, &z.t, biased ? &bias.t : NULL, scaled ? &factor.t : NULL, &how, &rows);
    int32_t *id = run_host(r, sizeof *id * (size_t) n * (size_t) used);
    run_fetch(r, id, ids.data, sizeof *id * (size_t) n * (size_t) used);
    run_give_bytes(r, "ids", id, sizeof *id * (size_t) n * (size_t) used);
    const float *w = mat_get(r, &weight);
    run_give(r, "weights", w, (int64_t) real * used);
    for (int32_t i = 0; i < n; i++) {
        const float *row = z.h + (int64_t) i * experts, *wi = w + (int64_t) i * used;
        const int32_t *of_row = id + (int64_t) i * used;
        for (int32_t j = 0; j < used && i >= real; j++) run_must(r, of_row[j] == -1, "no experts for rows beyond");
        if (i >= real) continue;
        const float *f = scaled ? factor.h : NULL;
        if (how.gating == ROUTE_SOFTMAX) check_softmax(r, row, of_row, wi, f, experts, used, how.scale);
        else check_sigmoid(r, row, biased ? bias.h : NULL, of_row, wi, f, experts, used, how.scale);
    }
}

/* ---- the experts ---- */

static const Type types[] = { T_Q4_K, T_Q6_K, T_Q5_K, T_Q8_0, T_IQ4_XS, T_Q2_K, T_Q3_K, T_Q4_0, T_IQ4_NL, T_F16, T_F32,
                              T_MXFP4, T_IQ2_XS, T_IQ3_XXS, T_IQ3_S, T_NVFP4, T_Q5_1 };
static const int32_t counts[] = { 1, 2, 3, 7, 8, 16, 17, 33, 64, 100 };
enum { TYPES = sizeof types / sizeof *types, COUNTS = sizeof counts / sizeof *counts };

/* The type, or one whose blocks divide the columns. */
static Type fitting(Type t, int32_t cols)
{
    return cols % type_info(t)->block == 0 ? t : cols % 32 == 0 ? T_Q8_0 : T_F16;
}

static Tensor stack_of(Run *r, Type t, int32_t experts, int32_t rows, int32_t cols, uint64_t *seed)
{
    const size_t each = r->b->weight_bytes(r->b, t, rows, cols);
    Tensor w = { .type = t, .rows = rows, .cols = cols, .data = run_memory(r, each * (size_t) experts, NULL),
                 .n = experts };
    for (int32_t e = 0; e < experts; e++) r->b->upload(r->b, &w, e, ops_odd_weights(r, t, rows, cols, seed), 0, rows);
    return w;
}

static Tensor matrix_of(Run *r, const Tensor *stack, int32_t e)
{
    const size_t each = r->b->weight_bytes(r->b, stack->type, stack->rows, stack->cols);
    return h_tensor(stack->type, stack->rows, stack->cols, (uint8_t *) stack->data + each * (size_t) e);
}

/* Different experts for each row; skewed: all rows share the first ones; some rows have none. */
static int32_t *choices(Run *r, int32_t n, int32_t experts, int32_t used, int32_t way, uint64_t *seed)
{
    int32_t *id = run_host(r, sizeof *id * (size_t) n * (size_t) used);
    for (int32_t i = 0; i < n; i++) {
        const int32_t first = way == 0 ? 0 : h_pick(seed, experts), step = way == 2 && experts % 2 ? 2 : 1;
        for (int32_t j = 0; j < used; j++)
            id[i * used + j] = way == 3 && i % 4 == 3 ? -1 : (first + j * step) % experts;
    }
    return id;
}

static void times_factor(Run *r, Tensor *y, const Tensor *w, const Mat *factor, int32_t id)
{
    if (w->factors) r->b->scale(r->b, y, factor->h[id], 0);
}

/* One row through one expert, by the operations of dense models. factor [2]: those of gate, of up. */
static Tensor one_expert(Run *r, const Tensor *x, const Experts *e, const Mat *factor, int32_t id)
{
    const Tensor gate = matrix_of(r, e->gate, id), up = matrix_of(r, e->up, id), down = matrix_of(r, e->down, id);
    Tensor h[2] = { mat_blank(r, 1, gate.rows), mat_blank(r, 1, gate.rows) }, wide = mat_blank(r, 1, gate.rows);
    Tensor y = mat_blank(r, 1, down.rows), *out = &y;
    const Tensor *in = &down;
    r->b->matmul(r->b, 2, (Tensor *[]) { &h[0], &h[1] }, (const Tensor *[]) { &gate, &up }, x);
    times_factor(r, &h[0], e->gate, &factor[0], id);
    times_factor(r, &h[1], e->up, &factor[1], id);
    r->b->glu(r->b, &wide, &h[0], &h[1], e->act);
    r->b->matmul(r->b, 1, &out, &in, &wide);
    return y;
}

/* What the backend has counted of one mixture. */
static void check_routes(Run *r, const int32_t *id, int32_t n, int32_t experts)
{
    int64_t chosen = 0, read = 0;
    bool seen[64] = { false };
    Routes routes;
    run_must(r, experts <= 64, "room for these experts in the test");
    for (int32_t i = 0; i < n; i++) {
        if (id[i] < 0) continue;
        chosen++;
        read += !seen[id[i]];
        seen[id[i]] = true;
    }
    r->b->routes(r->b, &routes);
    run_must(r, routes.chosen == chosen && routes.read == read, "routes are counted");
}

void ops_experts(Run *r, const Turn *t)
{
    static const int32_t sizes[][4] = { { 5, 2, 256, 512 }, { 9, 4, 512, 256 }, { 3, 3, 256, 256 },
                                        { 16, 8, 256, 768 }, { 8, 3, 96, 160 }, { 7, 2, 40, 64 }, { 4, 2, 192, 704 } };
    uint64_t seed = h_mix((uint64_t) t->round + 31);
    const int32_t n = counts[t->round % COUNTS], way = h_pick(&seed, 4), *size = sizes[h_pick(&seed, 7)];
    const int32_t experts = size[0], used = size[1], ffn = size[2], dim = size[3];
    const Type first = fitting(types[t->round % TYPES], dim), last = fitting(types[h_pick(&seed, TYPES)], ffn),
               other = h_pick(&seed, 2) ? first : fitting(types[h_pick(&seed, TYPES)], dim);
    Mat x = mat_of(r, n, dim, ops_odd_rows(r, n, dim, &seed));
    Tensor gate = stack_of(r, first, experts, ffn, dim, &seed), up = stack_of(r, other, experts, ffn, dim, &seed);
    const Tensor down = stack_of(r, last, experts, dim, ffn, &seed);
    Mat factor[2] = { mat_make(r, 1, experts, seed + 1, 1), mat_make(r, 1, experts, seed + 2, 1) };
    if (h_pick(&seed, 2)) gate.factors = &factor[0].t;
    if (h_pick(&seed, 2)) up.factors = &factor[1].t;
    const int32_t *id = choices(r, n, experts, used, way, &seed);
    const Tensor ids = mat_ids(r, n, used, id);
    Mat weight = mat_make(r, n, used, seed, 1);
    Tensor y = mat_blank(r, n, dim), h = mat_blank(r, n * used, ffn), wide = mat_blank(r, n * used, ffn),
           each = mat_blank(r, n * used, dim);
    const Experts e = { &gate, &up, &down, t->round % 5 ? ACT_SILU : ACT_GELU_TANH, &h, &wide, &each };
    Routes routes;
    if (r->b->routes) r->b->routes(r->b, &routes);
    r->b->experts(r->b, &y, &x.t, &ids, &weight.t, &e);
    float *got = mat_get(r, &y);
    if (r->b->routes) check_routes(r, id, n * used, experts);
    for (int32_t i = 0; i < n; i++)
        if (id[i * used] < 0) memset(got + (int64_t) i * dim, 0, sizeof *got * (size_t) dim);
    run_give(r, "y", got, (int64_t) n * dim);
    for (int32_t i = 0; i < n; i += 1 + n / 6) {   /* a row depends on itself alone */
        const size_t held = r->n_held;
        float *want = run_host(r, sizeof *want * (size_t) dim);
        const Tensor row = h_tensor(T_F32, 1, dim, (float *) x.t.data + (int64_t) i * dim);
        if (id[i * used] < 0) continue;
        memset(want, 0, sizeof *want * (size_t) dim);
        for (int32_t j = 0; j < used; j++) {
            const Tensor one = one_expert(r, &row, &e, factor, id[i * used + j]);
            const float *v = mat_get(r, &one), w = weight.h[i * used + j];
            for (int32_t c = 0; c < dim; c++) want[c] = fmaf(w, v[c], want[c]);
        }
        run_same(r, "a row by itself", got + (int64_t) i * dim, want, dim);
        run_drop(r, held);
    }
}
