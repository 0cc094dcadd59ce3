/* diffuse.h - writing by denoising: the loop of models with a canvas (Model.diffusion), and its rules as pure
 * functions.
 *
 * A block begins as a canvas of random tokens at the positions after the text. A step runs the canvas through the model
 * as a BLOCK, all positions at once; a pass has the canvases of several sessions. Positions that the model is sure of
 * take a token drawn for them, all others a new random one, and the next step reads that and, as self-conditioning, the
 * tokens' mean embedding by this step's probabilities. Nothing is settled before the last step, whose likeliest tokens
 * are the block. The passes after it commit them as a chain, like a prompt, so that the prefix cache, checkpoints and
 * images work as ever. A session may ask for other rules, by which positions are locked one by one (lock.h,
 * Diffusion.mask).
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

/* One pass for the session whose turn it is: a chunk of its prompt or of its last block, or a step of its canvas. That
 * takes other sessions' steps along, as many as diffuse_most says; after a canvas's last step its line.out is the
 * block. Otherwise as spec_step. Sessions whose pass was cancelled go on with the same step; those whose pass failed
 * begin their blocks anew. */
Status  diffuse_step(Spec *sp, Session *const *s, int32_t n, Error *err);
/* Canvases that a pass has room for, at least 1. */
int32_t diffuse_most(const Spec *sp);
/* A canvas of s, tokens [canvas], whose rows draw as `draw` says. conditioned: on the mean embeddings that the last
 * pass over a canvas of s has left. */
typedef struct { Session *s; const int32_t *token; CanvasDraw draw; bool conditioned; } CanvasTurn;
/* A pass over n canvases of sessions that all differ, n <= diffuse_most; it leaves each one's s->canvas->found and mean
 * embeddings, nothing else. The logits of n_want rows of the first canvas from row `want` on, at most ROWS_DECODE, are
 * computed besides. */
Status  diffuse_pass(Spec *sp, const CanvasTurn *t, int32_t n, int32_t want, int32_t n_want, PassOut *out, Error *err);
/* As spec_largest, the pass over canvases. */
Status  diffuse_largest(Spec *sp, Session *s, Error *err);

#endif
