/* lock.h - another way to write by denoising, that of the server diffusion-gemma-http: the rules as pure functions. An
 * experiment, since models are not trained for it (diffuse.h has what they are trained for).
 *
 * A canvas begins as mask tokens. A step looks at each position's likeliest token, the mask left out, and locks some
 * positions for good; the next step reads their tokens, and masks at all others. A position can be locked if its
 * likeliest token is likelier than the mask, has been the same in the steps before, and has a low entropy. Those with
 * the likeliest tokens come first, and no two that are side by side in one step, since they would not know of one
 * another. A token that is the same as a locked one beside it has to wait longer: an echo goes away, a repetition
 * stays. If nothing can be locked, the position with the likeliest token is. If no position's likeliest token is
 * likelier than the mask, in two steps in a row, the text ends at the first of them. */
#ifndef RATOON_DECODE_LOCK_H
#define RATOON_DECODE_LOCK_H

#include <stdbool.h>
#include <stdint.h>

#include "backend/draw.h"

/* A position: the likeliest token of the last step, -1 before the first; in how many steps before it was the same. */
typedef struct { int32_t token, stable; bool locked; } LockRow;

void    lock_begin(LockRow *row, int32_t n);
/* After a step that found [n], with the mask left out: locks positions, whose tokens stay. entropy: below which a
 * position's must be; stability: in how many steps before its token must have been the same. Returns how many it has
 * locked; 0: no open position proposes anything but the mask. n <= CANVAS_MAX. */
int32_t lock_step(LockRow *row, const CanvasRow *found, int32_t n, int32_t stability, float entropy);
/* The first position that is not locked; n: all are. */
int32_t lock_first_open(const LockRow *row, int32_t n);
/* Writes the block's tokens, open positions' likeliest ones among them, and returns their number: n, or, of a text that
 * has ended, those before the first open position and `end` there; -1: what ends a text is unknown, so it goes on. */
int32_t lock_block(int32_t *token, const LockRow *row, int32_t n, bool ended, int32_t end);

#endif
