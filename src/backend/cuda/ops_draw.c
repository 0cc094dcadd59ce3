/* ops_draw.c - the ends of passes: the drafter's candidates, the target's tokens; DFlash2's extras. */
#include "backend/cuda/cuda.h"

/* Both drawings take the same steps; rows go in groups that fit the workspace. */
static void draw(Backend *b, Tensor *id, Tensor *out, const Tensor *logits, const Tensor *mask, const Rows *r,
                 int32_t k, bool picks)
{
    Cuda *c = cuda_of(b);
    const int32_t tiles = (logits->cols + DRAW_TILE - 1) / DRAW_TILE, best = k < DRAW_BEST ? k : DRAW_BEST;
    const size_t stride = sizeof(DrawRow) + (size_t) tiles * (sizeof(DrawTile) + sizeof(DrawBest) * (size_t) best);
    if (tiles > DRAW_TILES) {
        if (!cuda_failed(c))
            fail(&c->error, ST_UNSUPPORTED, "drawing: a vocabulary of %d, expected at most %d", logits->cols,
                 DRAW_TILES * DRAW_TILE);
        return;
    }
    DrawArgs a = { .work = c->draw, .stride = (int64_t) stride, .count = r->count, .logit_row = r->logit_row,
                   .slice = r->slice, .parent = r->parent, .token = r->token, .pos = r->pos, .slices = r->slices,
                   .logits = logits->data, .mask = mask ? mask->data : NULL, .id = id->data, .out = out->data,
                   .vocab = logits->cols, .tiles = tiles, .k = best, .wanted = k, .picks = picks };
    const int32_t fit = (int32_t) (WORK_DRAW / stride);
    for (; a.row0 < r->n_logits; a.row0 += fit) {
        const int32_t n = r->n_logits - a.row0 < fit ? r->n_logits - a.row0 : fit;
        cuda_launch(c, GPU_draw_open, n, 1, &a, sizeof a);
        cuda_launch(c, GPU_draw_peak, tiles, n, &a, sizeof a);
        cuda_launch(c, GPU_draw_best, tiles, n, &a, sizeof a);
        if (picks) cuda_launch(c, GPU_draw_gather, tiles, n, &a, sizeof a);
        cuda_launch(c, picks ? GPU_draw_head : GPU_draw_rank, n, 1, &a, sizeof a);
    }
}

static void top_k(Backend *b, Tensor *id, Tensor *score, const Tensor *logits, const Rows *r, int32_t k)
{
    draw(b, id, score, logits, NULL, r, k, false);
}

static void pick(Backend *b, Tensor *id, Tensor *margin, const Tensor *logits, const Tensor *mask, const Rows *r)
{
    draw(b, id, margin, logits, mask, r, 1, true);
}

static void block_conv(Backend *b, Tensor *y, const Tensor *x, const Tensor *base, const Tensor *delta, int32_t side,
                       int32_t taps, int32_t group, const Rows *r)
{
    const size_t skip = (size_t) side * (size_t) taps;
    LAUNCH(cuda_of(b), draw_block_conv, (x->cols + 127) / 128, x->rows, BlockConvArgs, .y = y->data, .x = x->data,
           .base = (const float *) base->data + skip * (size_t) x->cols,
           .delta = (const float *) delta->data + skip * (size_t) (x->cols / group), .slice = r->slice,
           .slices = r->slices, .cols = x->cols, .taps = taps, .group = group, .deltas = delta->cols);
}

static void pair_scores(Backend *b, Tensor *edge, const Tensor *pred, const Tensor *succ, const Tensor *ids,
                        const Tensor *score, const Tensor *g, const Rows *r)
{
    LAUNCH(cuda_of(b), draw_pairs, score->cols, r->n_logits, PairArgs, .edge = edge->data, .ids = ids->data,
           .count = r->count, .logit_row = r->logit_row, .slice = r->slice, .token = r->token, .score = score->data,
           .g = g->data, .slices = r->slices, .pred = cuda_table(pred), .succ = cuda_table(succ), .k = score->cols);
}

void cuda_draw_ops(Backend *b)
{
    b->pair_scores = pair_scores;
    b->top_k = top_k;
    b->pick = pick;
    b->block_conv = block_conv;
}
