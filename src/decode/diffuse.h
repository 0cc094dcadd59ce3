/* diffuse.h - writing by denoising: the loop of models with a canvas (Model.diffusion), and its rules as pure
 * functions.
 *
 * A block begins as a canvas of random tokens at the positions after the text. A step runs the canvas through the model
 * as one BLOCK pass, all positions at once. Positions that the model is sure of take a token drawn for them, all others
 * a new random one, and the next step reads that and, as self-conditioning, the tokens' mean embedding by this step's
 * probabilities. Nothing is settled before the last step, whose likeliest tokens are the block. The passes after it
 * commit them as a chain, like a prompt, so that the prefix cache, checkpoints and images work as ever. A session may
 * ask for other rules, by which positions are locked one by one (lock.h, Diffusion.mask).
 *
 * Every number drawn is keyed by (seed; block, step, position, id), so a seed repeats a text to the bit, whatever
 * threads, chunks, caches or other sessions there are. */
#ifndef RATOON_DECODE_DIFFUSE_H
#define RATOON_DECODE_DIFFUSE_H

#include "decode/spec.h"

/* Temperature of a step, from 1: from t_max down to t_min, which the step after the last one would have. */
float   diffuse_temperature(const Diffusion *d, int32_t step);
/* Sets accepted [n]: rows in ascending order of entropy, of equals the lower first, as long as the sum of the entropies
 * before a row is at most bound. The first is always accepted. n <= CANVAS_MAX. Returns how many there are. */
int32_t diffuse_accept(bool *accepted, const CanvasRow *row, int32_t n, float bound);
/* Whether a canvas whose likeliest tokens were the same in so many steps before this one needs no further step. */
bool    diffuse_done(const Diffusion *d, const CanvasRow *row, int32_t n, int32_t same);

/* Where a finished block ends: before the first row from d->trim_from on whose best token has a probability below
 * d->trim and is also that of a row beside it, as an unresolved row copies its neighbour; what is cut off is denoised
 * again with the next block. n: nowhere. */
int32_t diffuse_trim(const Diffusion *d, const CanvasRow *row, int32_t n);

/* One pass for one of the sessions, in turn: a chunk of its prompt or of its last block, or a step of its canvas; after
 * the last step line.out is the block. Otherwise as spec_step. A session whose pass was cancelled goes on with the same
 * step; one whose pass failed begins its block anew. */
Status  diffuse_step(Spec *sp, Session *const *s, int32_t n, Error *err);
/* A pass of s over a canvas of tokens [canvas], whose rows draw as d says; it leaves s->canvas->found and the mean
 * embeddings, nothing else. conditioned: on those that the last such pass of s has left. The logits of n_want rows from
 * row `want` on, at most ROWS_DECODE, are computed besides. */
Status  diffuse_pass(Spec *sp, Session *s, const int32_t *token, const CanvasDraw *d, bool conditioned, int32_t want,
                     int32_t n_want, PassOut *out, Error *err);
/* As spec_largest, the pass over a canvas. */
Status  diffuse_largest(Spec *sp, Session *s, Error *err);

#endif
