/* acceptance.h - notices, once in a process, that the drafter guesses almost nothing of this model's text. The text is
 * right all the same and hardly slower, since the controller stops drafting; so nothing else would tell that the
 * drafter belongs to another model. */
#ifndef RATOON_PROGRAMS_ACCEPTANCE_H
#define RATOON_PROGRAMS_ACCEPTANCE_H

#include <stdbool.h>
#include <stdint.h>

#include "ratoon.h"

typedef struct { int64_t proposals, rows, accepted; bool said; } Acceptance;

/* Adds the figures of a text. Returns true the first time that there are enough of them and nearly all guesses of the
 * drafter were wrong. Guesses from the text itself and of an MTP layer do not count. */
bool acceptance_poor(Acceptance *g, const rt_stats *s);

#endif
