/* ops_canvas.c - the end of a denoising step against its definition in double, from logits that the backend's own
 * product has made. */
#include <math.h>
#include <string.h>

#include "base/mathd.h"
#include "ops_cases.h"
#include "ops_pass.h"

static const LayerSpec none = { .kind = LAYER_NONE };
static const Type types[] = { T_F32, T_Q8_0, T_Q4_K, T_F16, T_Q6_K, T_Q5_0 };
_Static_assert(sizeof types / sizeof *types == CANVAS_ROUNDS, "the table of cases has a round for each");

/* Each row is there twice, so the largest logit is. */
static Tensor weight(Run *r, Type t, int32_t rows, int32_t cols, uint64_t key)
{
    const size_t row = type_row_bytes(t, cols);
    float *x = run_host(r, sizeof *x * (size_t) rows * (size_t) cols);
    uint8_t *file = run_host(r, row * (size_t) rows);
    h_fill(x, (int64_t) rows * cols, key, 1);
    memcpy(x + (size_t) (rows - rows / 2) * (size_t) cols, x, sizeof *x * (size_t) (rows / 2) * (size_t) cols);
    for (int32_t i = 0; i < rows; i++) quant_encode(file + row * (size_t) i, t, x + (int64_t) i * cols, cols);
    Tensor w = h_tensor(t, rows, cols, run_memory(r, r->b->weight_bytes(r->b, t, rows, cols), NULL));
    r->b->upload(r->b, &w, 0, file, 0, rows);
    return w;
}

static double noise(const CanvasDraw *d, int32_t pos, int32_t id)
{
    const uint32_t word = draw_random(d->seed, (uint32_t) pos, (uint32_t) d->step, (uint32_t) id,
                                      (uint32_t) d->block << 2 | 1);
    return -mathd_log(-mathd_log1p(-(((double) word + 0.5) * 0x1p-32)));
}

/* z [vocab] of a row are the backend's own floats; table [vocab, cols] the rows that are mixed. */
static void expect_row(Run *r, const CanvasRow *got, const float *soft, const float *z, const float *table,
                       const CanvasDraw *d, int32_t pos, int32_t vocab, int32_t cols, float scale)
{
    int32_t best = 0, sample = 0;                  /* token 0 is never left out */
    double sum = 0, lean = 0, score = -INFINITY, want[512] = { 0 };
    for (int32_t v = 1; v < vocab; v++)
        if (v != d->mask && z[v] > z[best]) best = v;
    for (int32_t v = 0; v < vocab; v++) {
        if (d->mask && v == d->mask) continue;
        const double at = (double) z[v] - (double) z[best], e = exp(at), s = (double) z[v] + noise(d, pos, v);
        sum += e, lean += e * at;
        if (s > score) score = s, sample = v;
        for (int32_t c = 0; c < cols; c++) {
            want[c] += e * (double) table[v * cols + c];
        }
    }
    run_must(r, got->best == best && got->top == z[best], "the largest logit");
    run_must(r, got->mask == (d->mask ? z[d->mask] : -INFINITY), "the token that is left out");
    if (got->sample != (d->greedy ? best : sample)) run_fail(r, "token %d, expected %d", got->sample, sample);
    const double entropy = log(sum) - lean / sum;
    /* of a large vocabulary, what terms that are left out would add */
    run_expect(r, "entropy", &got->entropy, &entropy, 1, vocab > 1000 ? 2e-5 : 4e-6);
    for (int32_t c = 0; c < cols; c++) want[c] *= (double) scale / sum;
    run_expect(r, "soft", soft, want, cols, 1e-5 * (double) scale);
}

/* One weight of the last token is no number, which every row's entropy tells, however unlikely the token would be. */
static void one_odd_weight(Run *r, const Turn *t, const Tensor *x, const CanvasEnd *e, Tensor *soft, const Rows *rows)
{
    const size_t values = (size_t) t->rows * (size_t) t->cols;
    float *w = run_host(r, sizeof *w * values);
    CanvasRow *found = run_host(r, sizeof *found * (size_t) x->rows),
              *at = run_memory(r, sizeof *found * (size_t) x->rows, NULL);
    memset(w, 0, sizeof *w * values);
    for (int32_t c = 0; c < t->cols; c++) w[c] = 10;
    w[values - 1] = NAN;
    CanvasEnd of = *e;
    Tensor packed = h_tensor(T_F32, t->rows, t->cols,
                             run_memory(r, r->b->weight_bytes(r->b, T_F32, t->rows, t->cols), NULL));
    r->b->upload(r->b, &packed, 0, w, 0, t->rows);
    of.head = &packed;
    r->b->canvas(r->b, at, soft, x, &of, rows);
    run_fetch(r, found, at, sizeof *found * (size_t) x->rows);
    for (int32_t i = 0; i < x->rows; i++) run_must(r, isnan(found[i].entropy), "an entropy that tells of a bad weight");
}

/* Two slices, of which each has its own temperature and noise, and leaves another token out, or none; a row that is no
 * numbers changes no other. */
void ops_canvas(Run *r, const Turn *t)
{
    enum { N = 70, SPLIT_AT = 40, ODD = 66 };
    const int32_t vocab = t->rows, cols = t->cols, token[N] = { 0 };
    const Type type = types[t->round];
    if (cols % type_info(type)->block) return;
    Pass *p = pass_open(r);
    Sess *s[2] = { sess_open(r, &none, 8, 0), sess_open(r, &none, 8, 0) };
    s[1]->P = 1000;
    pass_add(p, s[0], SLICE_BLOCK, SPLIT_AT, token, NULL)->canvas =
        (CanvasDraw) { .seed = 7, .block = 3, .step = 5, .t = 0.55f, .mask = t->round ? vocab / t->round - 1 : 0 };
    pass_add(p, s[1], SLICE_BLOCK, N - SPLIT_AT, token, NULL)->canvas =
        (CanvasDraw) { .seed = 8, .step = 1, .t = 0.8f, .greedy = t->round & 1, .mask = t->round == 2 ? 1 : 0 };
    Tensor head = weight(r, type, vocab, cols, 3), other = weight(r, T_Q8_0, vocab, cols, 4),
           *table = t->round % 3 ? &head : &other, soft = mat_blank(r, N, cols), z = mat_blank(r, 2 * N, CANVAS_IDS),
           wide = mat_blank(r, CANVAS_IDS, cols), logits = mat_blank(r, N, vocab), *y = &logits,
           rows = mat_blank(r, vocab, cols);
    const Tensor *w = &head;
    /* from rows that are sure of one token to rows that are not at all */
    float *from = run_host(r, sizeof *from * N * (size_t) cols);
    h_fill(from, (int64_t) N * cols, 5, 1);
    for (int32_t i = 0; i < N; i++)
        for (int32_t c = 0; c < cols; c++) from[i * cols + c] *= i == ODD ? NAN : (float) (i % 7) * 0.4f;
    Mat x = mat_of(r, N, cols, from);
    const float scale = t->round & 1 ? 0.5f : 1, softcap = t->round & 2 ? 0 : 20;
    CanvasRow found[N], *at = run_memory(r, sizeof found, NULL);
    const CanvasEnd e = { &head, table, scale, softcap, 8, &z, &wide };
    r->b->canvas(r->b, at, &soft, &x.t, &e, pass_rows(r, p));
    run_fetch(r, found, at, sizeof found);
    float *mixed = mat_get(r, &soft);
    memset(mixed + ODD * cols, 0, sizeof *mixed * (size_t) cols);              /* which NaN it is does not matter */
    run_must(r, isnan(found[ODD].entropy), "an entropy that is no number");
    for (int32_t i = 0; i < N; i++) {
        const CanvasRow *f = &found[i];
        if (i == ODD) continue;
        run_give(r, "sums", (const float[]) { f->top, f->sum, f->lean, f->entropy, f->mask }, 5);
        run_give_bytes(r, "tokens", (const int32_t[]) { f->best, f->sample }, 2 * sizeof(int32_t));
    }
    run_give(r, t->name, mixed, (int64_t) N * cols);
    if (type == T_F32) one_odd_weight(r, t, &x.t, &e, &soft, pass_rows(r, p));
    if (!r->reference) return;
    int32_t *ids = run_host(r, sizeof *ids * (size_t) vocab);
    for (int32_t v = 0; v < vocab; v++) ids[v] = v;
    Tensor all = mat_ids(r, 1, vocab, ids);
    r->b->matmul(r->b, 1, &y, &w, &x.t);
    if (scale != 1 || softcap > 0) r->b->scale(r->b, &logits, scale, softcap);
    r->b->embed(r->b, &rows, table, &all);
    float *each = mat_get(r, &logits);
    const float *values = mat_get(r, &rows);
    for (int32_t i = 0; i < N; i++) {
        if (i == ODD) continue;
        const CanvasDraw *d = &p->t->slices[i >= SPLIT_AT].canvas;
        for (int32_t v = 0; v < vocab; v++) each[(int64_t) i * vocab + v] /= d->t;
        expect_row(r, &found[i], mixed + (int64_t) i * cols, each + (int64_t) i * vocab, values, d, p->t->pos[i], vocab,
                   cols, 8);
    }
}
