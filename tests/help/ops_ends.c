/* ops_ends.c - drafters' extras and the ends of passes. */
#include <math.h>
#include <string.h>

#include "ops_cases.h"
#include "ops_pass.h"

static const LayerSpec none = { .kind = LAYER_NONE };

/* Two sessions' blocks in one pass, n[0] and n[1] rows. */
static Pass *two_blocks(Run *r, const int32_t n[2], const int32_t *token)
{
    Pass *p = pass_open(r);
    for (int i = 0; i < 2; i++)
        pass_add(p, sess_open(r, &none, 8, 0), SLICE_BLOCK, n[i], token + (i ? n[0] : 0), NULL);
    return p;
}

/* The only place that calls it. */
static void call_block_conv(Run *r, Tensor *y, const Mat *x, const Mat *base, const Mat *delta, int32_t side,
                            int32_t taps, int32_t group, const Pass *p)
{
    r->b->block_conv(r->b, y, &x->t, &base->t, &delta->t, side, taps, group, pass_rows(r, p));
}

/* Rounds are sides. */
void ops_block_conv(Run *r, const Turn *t)
{
    enum { DIM = 48, GROUP_OF = 16, TAPS = 2, N = 13, DELTAS = 2 * TAPS * DIM / GROUP_OF };
    static const int32_t rows[2] = { 5, 8 }, token[N];
    const int32_t side = t->round;
    Pass *p = two_blocks(r, rows, token);
    Mat x = mat_make(r, N, DIM, 1, 1), base = mat_make(r, 2 * TAPS, DIM, 2, 1), delta = mat_make(r, N, DELTAS, 3, 1);
    double want[N * DIM];
    for (int32_t i = 0; i < N; i++)
        for (int32_t c = 0; c < DIM; c++) {
            double sum = 0;
            for (int32_t k = 0; k < TAPS && k <= (i < rows[0] ? i : i - rows[0]); k++)
                sum += ((double) base.h[(side * TAPS + k) * DIM + c] +
                        (double) delta.h[i * DELTAS + (side * TAPS + k) * (DIM / GROUP_OF) + c / GROUP_OF]) *
                       (double) x.h[(i - k) * DIM + c];
            want[i * DIM + c] = sum;
        }
    Tensor y = mat_blank(r, N, DIM);
    call_block_conv(r, &y, &x, &base, &delta, side, TAPS, GROUP_OF, p);
    const float *got = mat_get(r, &y);
    run_expect(r, t->name, got, want, N * DIM, 1e-6);
    run_give(r, t->name, got, N * DIM);
}

/* A codebook: a weight whose rows the operation reads. */
static Mat codebook(Run *r, int32_t rows, int32_t cols, uint64_t key)
{
    float *h = run_host(r, sizeof *h * (size_t) rows * (size_t) cols);
    h_fill(h, (int64_t) rows * cols, key, 1);
    Tensor w = h_tensor(T_F32, rows, cols, run_memory(r, r->b->weight_bytes(r->b, T_F32, rows, cols), NULL));
    r->b->upload(r->b, &w, 0, h, 0, rows);
    return (Mat) { w, h };
}

void ops_pair_scores(Run *r, const Turn *t)
{
    enum { VOCAB = 50, RANK = 40, K = 4, N = 7, LOGITS = 5 };
    static const int32_t rows[2] = { 3, 4 }, token[N] = { 7, 1, 2, 9, 4, 5, 6 }, logit_row[LOGITS] = { 1, 2, 4, 5, 6 };
    int32_t id[LOGITS * K];
    uint64_t seed = 4;
    Pass *p = two_blocks(r, rows, token);
    p->t->slices[1].draw.p.temperature = 0.5f;
    p->r.n_logits = LOGITS;
    memcpy(p->t->logit_row, logit_row, sizeof logit_row);
    Mat pred = codebook(r, VOCAB, RANK, 1), succ = codebook(r, VOCAB, RANK, 2), g = mat_make(r, LOGITS, RANK, 4, 1);
    float *score = run_host(r, sizeof *score * LOGITS * K);
    h_fill(score, LOGITS * K, 3, 5);
    for (int i = 0; i < LOGITS * K; i++) id[i] = h_pick(&seed, VOCAB);
    id[K + 2] = -1;                                /* a place without a candidate */
    score[K + 2] = -INFINITY;
    Tensor ids = mat_ids(r, LOGITS, K, id), edges = mat_blank(r, LOGITS, K * K);
    Mat scores = mat_of(r, LOGITS, K, score);
    r->b->pair_scores(r->b, &edges, &pred.t, &succ.t, &ids, &scores.t, &g.t, pass_rows(r, p));
    const float *edge = mat_get(r, &edges);
    run_give(r, t->name, edge, LOGITS * K * K);
    for (int i = 0; i < LOGITS * K * K; i++) {
        const int j = i / K / K, kp = i / K % K, kk = i % K, prev = j == 0 ? 7 : j == 2 ? 9 : id[(j - 1) * K + kp],
                  next = id[j * K + kk];
        if (prev < 0 || next < 0) {
            run_must(r, edge[i] == -INFINITY, "no edge to or from a place without a candidate");
            continue;
        }
        double want = 0;
        for (int k = 0; k < RANK; k++)
            want += (double) pred.h[prev * RANK + k] * (double) g.h[j * RANK + k] * (double) succ.h[next * RANK + k];
        want = (double) score[j * K + kk] + want / (j < 2 ? 1 : 0.5);
        run_expect(r, t->name, &edge[i], &want, 1, 2e-6);
    }
}

static void *draw_room(Run *r, int32_t vocab)
{
    uint8_t *p = run_host(r, draw_scratch(vocab) + 64);
    return p + (64 - (uintptr_t) p % 64) % 64;
}

/* draw_top_k of every row at its own position. */
void ops_top_k(Run *r, const Turn *t)
{
    enum { K = 5 };
    const int32_t n = t->rows, vocab = t->cols, token[16] = { 0 };
    int32_t *id = run_host(r, sizeof *id * (size_t) n * K), want_id[K];
    float want[K];
    Sess *s = sess_open(r, &none, 8, 0);
    Pass *p = pass_open(r);
    s->P = 123;
    Slice *sl = pass_add(p, s, SLICE_BLOCK, n, token, NULL);
    sl->draw.p.temperature = 0.8f;
    sl->draw.p.seed = 99;
    pass_want_all(p);
    Mat logits = mat_make(r, n, vocab, 5, 8);
    Tensor ids = mat_ids(r, n, K, NULL), scores = mat_blank(r, n, K);
    r->b->top_k(r->b, &ids, &scores, &logits.t, pass_rows(r, p), K);
    run_fetch(r, id, ids.data, sizeof *id * (size_t) n * K);
    const float *score = mat_get(r, &scores);
    for (int32_t i = 0; i < n; i++) {
        draw_top_k(want_id, want, K, &sl->draw, logits.h + i * vocab, vocab, 123 + i, draw_room(r, vocab));
        run_must(r, memcmp(want_id, id + i * K, sizeof want_id) == 0, "the ids of draw_top_k");
        run_same(r, t->name, score + i * K, want, K);
    }
}

/* draw_next and draw_margin of every row of a tree, after its own path, with a mask and without; where the backend has
 * no pick the host draws, and there is nothing to compare. */
void ops_pick(Run *r, const Turn *t)
{
    if (!r->b->pick) return;
    const int32_t n = t->rows, vocab = t->cols, words = (vocab + 31) / 32;
    const bool masked = t->round & 1;
    int32_t token[16], parent[16], path[16], id[16];
    float margin[16];
    uint64_t seed = 61 + (uint64_t) t->turn;
    uint32_t *mask = run_host(r, sizeof *mask * (size_t) n * (size_t) words);
    random_tokens(token, n, &seed);
    h_tree(parent, n, &seed);
    for (int32_t i = 0; i < n * words; i++) mask[i] = (uint32_t) h_mix((uint64_t) i);
    Sess *s = sess_open(r, &none, 8, 0);
    Pass *p = pass_open(r);
    s->P = 40;
    Slice *sl = pass_add(p, s, SLICE_TREE, n, token, parent);
    sl->draw.p.temperature = t->round & 2 ? 0.8f : 0;
    sl->draw.p.rep = 1.3f;
    sl->draw.p.seed = 7;
    pass_want_all(p);
    Mat logits = mat_make(r, n, vocab, 5, 8);
    Tensor ids = mat_ids(r, 1, n, NULL), margins = mat_blank(r, 1, n),
           allowed = mat_ids(r, n, words, (const int32_t *) (const void *) mask);
    r->b->pick(r->b, &ids, &margins, &logits.t, masked ? &allowed : NULL, pass_rows(r, p));
    run_fetch(r, id, ids.data, sizeof *id * (size_t) n);
    run_fetch(r, margin, margins.data, sizeof *margin * (size_t) n);
    for (int32_t i = 0; i < n; i++) {
        const int32_t m = h_path(path, parent, i);
        for (int32_t k = 0; k < m; k++) path[k] = token[path[k]];
        const float *row = logits.h + i * vocab, sure = draw_margin(row, vocab, draw_room(r, vocab));
        const int32_t want = draw_next(&sl->draw, path + 1, m - 1, row, vocab, p->t->pos[i] + 1,
                                       masked ? mask + i * words : NULL, draw_room(r, vocab));
        if (id[i] != want) run_fail(r, "row %d: token %d, expected %d", (int) i, (int) id[i], (int) want);
        run_same(r, "margin", &margin[i], &sure, 1);
    }
}
