/* ops_draws.c - pick and top_k under random parameters: penalties, biases, masks, filters, ties, odd logits, several
 * sessions in a pass, rows beyond the true count. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "base/mathd.h"
#include "ops_cases.h"
#include "ops_pass.h"

static const LayerSpec none = { .kind = LAYER_NONE };
enum { SESSIONS = 4, ROWS_MOST = 5, BEYOND = 3 };

static float share(uint64_t *seed) { return (float) h_pick(seed, 1 << 24) / (1 << 24); }

static float normal(uint64_t *seed)
{
    float s = 0;
    for (int i = 0; i < 12; i++) s += share(seed);
    return s - 6;
}

/* A row of logits: flat or steep, with ties or without; odd: perhaps a NaN or an infinity. */
static void fill_logits(float *x, int32_t n, uint64_t *seed)
{
    static const float spreads[] = { 0, 0, 0.01f, 1, 3, 8, 40, 1000 };
    const float spread = spreads[h_pick(seed, 8)];
    const bool steps = h_pick(seed, 3) == 0, plain = h_pick(seed, 4) == 0, odd = h_pick(seed, 8) == 0;
    for (int32_t i = 0; i < n; i++) {
        x[i] = spread > 0 ? spread * normal(seed) : 0;
        if (steps) x[i] = rintf(x[i]);
        if (!plain && h_pick(seed, 64) == 0) x[i] = -INFINITY;
        if (!plain && h_pick(seed, 64) == 0) x[i] = h_pick(seed, 2) ? 0.0f : -0.0f;
    }
    if (odd) x[h_pick(seed, n)] = h_pick(seed, 2) ? NAN : h_pick(seed, 2) ? INFINITY : FLT_MAX;
}

static int compare_down(const void *a, const void *b)
{
    const float x = *(const float *) a, y = *(const float *) b;
    return x > y ? -1 : x < y;
}

/* The share of the first `cut` of the sorted logits: where bounds on the sum cannot tell. */
static float edge_of(Run *r, const float *x, int32_t n, int32_t cut)
{
    float *sorted = run_host(r, sizeof *sorted * (size_t) n);
    double sum = 0, total = 0;
    memcpy(sorted, x, sizeof *sorted * (size_t) n);
    for (int32_t i = 0; i < n; i++) if (!(sorted[i] <= FLT_MAX)) return 0.5f;
    qsort(sorted, (size_t) n, sizeof *sorted, compare_down);
    for (int32_t i = 0; i < n; i++) {
        const double w = mathd_exp((double) sorted[i] - (double) sorted[0]);
        if (i < cut) sum += w;
        total += w;
    }
    return sum > 0 && sum < total ? (float) (sum / total) : 0.5f;
}

static void fill_draw(Run *r, Draw *d, const float *x, int32_t n, uint64_t *seed)
{
    static const float temperatures[] = { 0, 1e-6f, 1e-5f, 0.01f, 0.3f, 0.7f, 1, 1, 2, 50, 10000 };
    static const float shares[] = { 1, 1, 0.95f, 0.5f, 0.25f, 0.999f, 1e-3f, 0.9999999f };
    memset(d, 0, sizeof *d);
    d->p = draw_default();
    d->p.temperature = temperatures[h_pick(seed, 11)];
    d->p.top_p = h_pick(seed, 4) ? shares[h_pick(seed, 8)] : edge_of(r, x, n, 1 + h_pick(seed, n < 20 ? n : 20));
    d->p.min_p = h_pick(seed, 3) ? 0.0f : share(seed) * 0.3f;
    d->p.top_k = h_pick(seed, 3) ? 0 : 1 + h_pick(seed, h_pick(seed, 2) ? 60 : 2 * n);
    if (h_pick(seed, 20) == 0) d->p.top_k = INT32_MAX;
    if (h_pick(seed, 2)) {
        d->p.rep = 0.7f + share(seed);
        d->p.freq = share(seed) * 2 - 1;
        d->p.presence = share(seed) - 0.5f;
        d->p.rep_window = h_pick(seed, HISTORY + 1);
    }
    d->p.seed = h_mix(*seed);
    d->n_tail = h_pick(seed, HISTORY + 1);
    const int32_t kinds = h_pick(seed, 2) ? 5 : n;
    for (int32_t i = 0; i < d->n_tail; i++) d->tail[i] = h_pick(seed, kinds);
    if (d->n_tail > 3) {                           /* ids outside the vocabulary */
        d->tail[d->n_tail - 1] = -1;
        d->tail[d->n_tail - 2] = n;
    }
    d->n_bias = h_pick(seed, 3) ? 0 : h_pick(seed, h_pick(seed, 4) ? 9 : BIAS_MAX + 1);
    for (int32_t i = 0; i < d->n_bias; i++) {
        const float add = h_pick(seed, 5) ? normal(seed) : h_pick(seed, 9) ? -INFINITY : FLT_MAX;
        d->bias[i] = (DrawBias) { h_pick(seed, n + 2) - 1, add };
    }
}

static void *draw_room(Run *r, int32_t vocab)
{
    uint8_t *p = run_host(r, draw_scratch(vocab) + 64);
    return p + (64 - (uintptr_t) p % 64) % 64;
}

/* Sessions with trees, and one with a chunk of its prompt, which come last. */
static Pass *draw_pass(Run *r, const float *x, int32_t vocab, uint64_t *seed)
{
    Pass *p = pass_open(r);
    for (int32_t i = 0; i < SESSIONS; i++) {
        int32_t token[ROWS_MOST], parent[ROWS_MOST], n = 1 + h_pick(seed, ROWS_MOST);
        for (int32_t k = 0; k < n; k++) token[k] = h_pick(seed, vocab);
        h_tree(parent, n, seed);
        Sess *s = sess_open(r, &none, 8, 0);
        s->P = h_pick(seed, 100000);
        const int32_t at = p->r.n;
        Slice *sl = pass_add(p, s, i < SESSIONS - 1 ? SLICE_TREE : SLICE_CHAIN, n, token, parent);
        fill_draw(r, &sl->draw, x + (size_t) at * (size_t) vocab, vocab, seed);
    }
    pass_want_all(p);
    return p;
}

/* What the row is: where it is wrong, this tells which parameters it had. */
static void check_row(const Run *r, const char *what, int32_t row, int32_t got, int32_t want, int32_t vocab,
                      const Draw *d)
{
    if (got != want)
        run_fail(r, "%s, row %d: %d, expected %d (vocabulary %d, T %g, top-k %d, top-p %.9g, min-p %g, %d biases)",
                 what, (int) row, (int) got, (int) want, (int) vocab, (double) d->p.temperature, (int) d->p.top_k,
                 (double) d->p.top_p, (double) d->p.min_p, (int) d->n_bias);
}

static void check_top_k(Run *r, const Pass *p, const Rows *rows, const Mat *logits, int32_t k)
{
    const int32_t n = rows->n_logits, vocab = logits->t.cols;
    const size_t all = (size_t) n * (size_t) k;
    int32_t *id = run_host(r, sizeof *id * all), *want_id = run_host(r, sizeof *want_id * (size_t) k);
    float *want = run_host(r, sizeof *want * (size_t) k);
    void *room = draw_room(r, vocab);
    Tensor ids = mat_ids(r, n, k, NULL), scores = mat_blank(r, n, k);
    r->b->top_k(r->b, &ids, &scores, &logits->t, rows, k);
    run_fetch(r, id, ids.data, sizeof *id * all);
    const float *score = mat_get(r, &scores);
    for (int32_t i = 0; i < p->r.n; i++) {
        const Draw *d = &p->t->slices[p->t->slice[i]].draw;
        draw_top_k(want_id, want, k, d, logits->h + (size_t) i * (size_t) vocab, vocab, p->t->pos[i], room);
        for (int32_t c = 0; c < k; c++) check_row(r, "candidates", i, id[i * k + c], want_id[c], vocab, d);
        run_same(r, "scores", score + i * k, want, k);
    }
}

static void check_pick(Run *r, const Pass *p, const Rows *rows, const Mat *logits, uint64_t *seed)
{
    const int32_t n = rows->n_logits, vocab = logits->t.cols, words = (vocab + 31) / 32;
    uint32_t *mask = h_pick(seed, 2) ? run_host(r, sizeof *mask * (size_t) n * (size_t) words) : NULL;
    const int32_t thin = h_pick(seed, 3);          /* nearly all, half, few are allowed */
    for (int32_t i = 0; mask && i < n * words; i++) {
        const uint64_t u = h_mix(*seed + (uint64_t) i), v = h_mix(u);
        mask[i] = thin == 0 ? (uint32_t) (u | u >> 32 | v) : thin == 1 ? (uint32_t) u : (uint32_t) (u & u >> 32 & v);
    }
    int32_t *id = run_host(r, sizeof *id * (size_t) n);
    float *margin = run_host(r, sizeof *margin * (size_t) n);
    void *room = draw_room(r, vocab);
    Tensor ids = mat_ids(r, 1, n, NULL), margins = mat_blank(r, 1, n), allowed;
    if (mask) allowed = mat_ids(r, n, words, (const int32_t *) (const void *) mask);
    r->b->pick(r->b, &ids, &margins, &logits->t, mask ? &allowed : NULL, rows);
    run_fetch(r, id, ids.data, sizeof *id * (size_t) n);
    run_fetch(r, margin, margins.data, sizeof *margin * (size_t) n);
    for (int32_t i = 0; i < p->r.n; i++) {
        const Slice *sl = &p->t->slices[p->t->slice[i]];
        int32_t path[ROWS_MOST], m = 0;
        if (sl->kind == SLICE_TREE) m = h_path(path, p->t->parent + sl->row0, i - sl->row0);
        for (int32_t k = 0; k < m; k++) path[k] = p->t->token[sl->row0 + path[k]];
        const float *row = logits->h + (size_t) i * (size_t) vocab, sure = draw_margin(row, vocab, room);
        const int32_t want = draw_next(&sl->draw, path + 1, m > 0 ? m - 1 : 0, row, vocab, p->t->pos[i] + 1,
                                       mask ? mask + (size_t) i * (size_t) words : NULL, room);
        check_row(r, "token", i, id[i], want, vocab, &sl->draw);
        run_same(r, "margin", &margin[i], &sure, 1);
    }
}

/* Rounds are seeds. */
void ops_draws(Run *r, const Turn *t)
{
    static const int32_t sizes[] = { 1, 2, 4, 7, 33, 100, 1024, 1500, 2048, 2049, 5000, 8192, 20000 };
    uint64_t seed = 500 + (uint64_t) t->turn;
    const int32_t vocab = sizes[t->turn % 13], most = SESSIONS * ROWS_MOST + BEYOND;
    float *x = run_host(r, sizeof *x * (size_t) most * (size_t) vocab);
    for (int32_t i = 0; i < most; i++) fill_logits(x + (size_t) i * (size_t) vocab, vocab, &seed);
    Pass *p = draw_pass(r, x, vocab, &seed);
    Rows rows = *pass_rows(r, p);
    rows.n_logits += BEYOND;                       /* as a backend with widths is called */
    Mat logits = mat_of(r, rows.n_logits, vocab, x);
    check_top_k(r, p, &rows, &logits, 1 + h_pick(&seed, 18));
    if (r->b->pick) check_pick(r, p, &rows, &logits, &seed);
}

/* Equal logits and a tail whose weights are nearly nothing, top-p exactly at, or by that nothing above, the share of
 * some of the equal ones: bounds on the sum cannot tell how many are kept, only the sum in sorted order. The
 * temperature makes every survivor as likely as any other. */
void ops_draw_edges(Run *r, const Turn *t)
{
    enum { ROWS = 24, VOCAB = 16 };
    static const float depths[] = { INFINITY, 12, 20.5f, 26, 33, 36, 37 };
    uint64_t seed = 900 + (uint64_t) t->turn;
    const int32_t equal = 2 << h_pick(&seed, 3), token[ROWS] = { 0 };
    const float depth = depths[t->turn % 7];
    float *x = run_host(r, sizeof *x * ROWS * VOCAB);
    for (int32_t i = 0; i < ROWS * VOCAB; i++) x[i] = 3 - (i % VOCAB < equal ? 0 : depth);
    for (int32_t i = 0; i < ROWS * VOCAB; i++) {
        const int32_t other = i - i % VOCAB + h_pick(&seed, VOCAB);
        const float l = x[i];
        x[i] = x[other], x[other] = l;
    }
    Pass *p = pass_open(r);
    Slice *sl = pass_add(p, sess_open(r, &none, 8, 0), SLICE_CHAIN, ROWS, token, NULL);
    sl->draw.p.temperature = 10000;
    sl->draw.p.seed = h_mix(seed);
    sl->draw.p.top_p = equal > 2 && h_pick(&seed, 2) ? 0.25f : 0.5f;
    sl->draw.p.top_k = h_pick(&seed, 2) ? 0 : VOCAB;
    pass_want_all(p);
    const Rows *rows = pass_rows(r, p);
    Mat logits = mat_of(r, ROWS, VOCAB, x);
    check_top_k(r, p, rows, &logits, 16);
    if (r->b->pick) check_pick(r, p, rows, &logits, &seed);
}

/* Vocabularies of real size: logits as a model's, and flat ones, of which top-p keeps more than one band holds. */
void ops_draw_large(Run *r, const Turn *t)
{
    enum { ROWS = 2 };
    static const struct { float temperature, top_p, min_p; int32_t top_k; } ways[] = {
        { 0, 1, 0, 0 }, { 0.7f, 1, 0, 0 }, { 2, 1, 0.05f, 0 }, { 0.7f, 0.95f, 0, 20 }, { 1, 0.9999f, 0, 0 },
        { 1, 0.95f, 0, 0 }, { 1, 1, 0, 5000 }, { 1, 0.9f, 0, 3000 },
    };
    uint64_t seed = 1700 + (uint64_t) t->turn;
    const int32_t vocab = t->cols, token[ROWS] = { 0 };
    float *x = run_host(r, sizeof *x * ROWS * (size_t) vocab);
    for (int32_t i = 0; i < ROWS * vocab; i++) x[i] = (t->round & 1 ? 0.5f : 2.5f) * normal(&seed);
    for (int32_t i = 0; i < 30 * ROWS; i++) x[h_pick(&seed, ROWS * vocab)] = 8 + 3 * normal(&seed);
    Pass *p = pass_open(r);
    Slice *sl = pass_add(p, sess_open(r, &none, 8, 0), SLICE_CHAIN, ROWS, token, NULL);
    sl->draw.p.temperature = ways[t->round].temperature;
    sl->draw.p.top_p = ways[t->round].top_p;
    sl->draw.p.min_p = ways[t->round].min_p;
    sl->draw.p.top_k = ways[t->round].top_k;
    sl->draw.p.seed = h_mix(seed);
    pass_want_all(p);
    const Rows *rows = pass_rows(r, p);
    Mat logits = mat_of(r, ROWS, vocab, x);
    check_top_k(r, p, rows, &logits, 16);
    if (r->b->pick) check_pick(r, p, rows, &logits, &seed);
}
