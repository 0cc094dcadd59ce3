/* draw.h - how the next token is drawn: a pure function of (logits, parameters, history, seed, position), design
 * section 5.7. The target draws with draw_next; the drafter ranks its candidates with draw_top_k under the same noise
 * (section 5.8), so that a good drafter proposes exactly the token that will be drawn. Both are below the backends
 * because a backend's top_k is draw_top_k. */
#ifndef RATOON_BACKEND_DRAW_H
#define RATOON_BACKEND_DRAW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/ranges.h"

enum { HISTORY = REP_WINDOW_MAX, BIAS_MAX = 300 };

/* temperature < 1e-5: greedy. top_k 0: off; top_p 1, min_p 0, rep 1, freq 0, presence 0: off. rep_window in
 * [0, HISTORY]. */
typedef struct {
    float temperature, top_p, min_p, rep, freq, presence;
    int32_t top_k, rep_window;
    uint64_t seed;
} Sampling;
typedef struct { int32_t id; float add; } DrawBias;

/* What drawing needs to know of a session, plain data. The tail is the end of the committed text including the root,
 * oldest token first: a row's penalty window is the last rep_window tokens of tail + the row's own path. */
typedef struct {
    Sampling p;
    int32_t  n_tail, tail[HISTORY];
    int32_t  n_bias;
    DrawBias bias[BIAS_MAX];
} Draw;

/* Sampling with everything off: greedy, seed 0, window 256. */
Sampling draw_default(void);
/* NULL if all values are in range (base/ranges.h), else the name of the first field that is not ("temperature",
 * ...). */
const char *draw_check(const Sampling *p);
/* Sets parameters and tail from the last tokens of text [n], the root included; biases are kept. */
void draw_set(Draw *d, const Sampling *p, const int32_t *text, int32_t n);

/* Gumbel noise of token id at absolute position pos: g = -log(-log1p(-v)), v = (r + 0.5) 2^-32, r = first word of
 * Philox4x32-10(key = seed; counter = (pos low, pos high, id, 0)); in double, by our own log (base/mathd.h). In
 * [-3.131, 22.875]. */
double draw_noise(uint64_t seed, int64_t pos, int32_t id);
/* First word of Philox4x32-10(key; counter): our one random generator, a pure function. */
uint32_t draw_random(uint64_t key, uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3);

enum { DRAW_NAN = -1, DRAW_NONE = -2 };                        /* a logit is NaN (or +inf); no token is allowed */

/* The token at position pos after tail + path[n_path] (path: tokens of the row's ancestors after the root, and its
 * own). Order: penalties, bias, mask; then over the unscaled distribution, sorted by logit descending then id: top-k,
 * top-p, min-p, sums in double in that order; then argmax over the survivors of logit / T + g(pos, id), ties to the
 * lower id. Greedy: argmax of the logits after penalties, bias and mask. allow: one bit per id, NULL: all. logits [n]
 * are not changed. scratch: draw_scratch(n) bytes, aligned to 64. Returns the id or DRAW_*. Ids whose logit / T lies
 * more than 26.01 below the maximum cannot win and get no noise. */
int32_t draw_next(const Draw *d, const int32_t *path, int32_t n_path, const float *logits, int32_t n, int64_t pos,
                  const uint32_t *allow, void *scratch);
size_t  draw_scratch(int32_t n);

/* The drafter's k candidates for the token at pos, best first: the top k of lq / T + g over ids with lq / T at least
 * its maximum - 12, after penalties and bias over the committed tail and min-p; top-k and top-p act on the k that are
 * left. Greedy: the top k of lq itself. Ties by lower id. Writes id[k] and score[k] (float of lq / T + g, or lq); fewer
 * candidates: id -1, score -INFINITY. Any NaN in logits is treated as -INFINITY: a drafter cannot fail a request. */
void draw_top_k(int32_t *id, float *score, int32_t k, const Draw *d, const float *logits, int32_t n, int64_t pos,
                void *scratch);

/* What a denoising step draws with (decode/diffuse.h). block: of the canvas since the prompt, from 0; step: from 1, 0
 * for the canvas that the first one reads; t: temperature of this step; greedy: the sample is the best token; mask: a
 * token that is left out of the distribution, 0: none, so it cannot be token 0. */
typedef struct { uint64_t seed; int32_t block, step; float t; int32_t mask; bool greedy; } CanvasDraw;
/* What such a step finds out about a row, z = logits / t over the whole vocabulary (Backend.canvas). best: the id of
 * the largest z, sample: that of the largest z + g, score; ties to the lower id; -1: no z is a number. top: the largest
 * z, sum: of exp(z - top), lean: of exp(z - top) * (z - top), again: by what the last tile has multiplied the sums
 * before it. entropy: in nats, NaN if any z is not finite. mask: z of the token that is left out, which counts as
 * -infinity in everything else; -infinity: none is. */
typedef struct { double score; float top, sum, lean, again, entropy, mask; int32_t best, sample; } CanvasRow;

/* Whether any of some z could be drawn, of which top is the largest: else draw_canvas leaves the row as it is. */
bool    draw_canvas_may(const CanvasRow *row, float top);
/* Offers z [n] of ids from id0 on, in ascending order, to row->score and row->sample; row->top is at least the largest
 * of all z so far. The noise is that of draw_noise, keyed by (seed; pos, step, id, block). */
void    draw_canvas(CanvasRow *row, const CanvasDraw *d, int64_t pos, const float *z, int32_t n, int32_t id0);
/* A token for a position whose sample was not accepted in this step; each of the vocabulary has the same chance, to
 * within vocab / 2^32. */
int32_t draw_canvas_any(const CanvasDraw *d, int64_t pos, int32_t vocab);

/* How sure a row is: the distance of its two largest logits; NaN where it has not two. */
float draw_margin(const float *logits, int32_t n, void *scratch);

#endif
