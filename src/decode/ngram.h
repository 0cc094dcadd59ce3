/* ngram.h - guesses from the text itself: what followed the last time that the text ended as it does now.
 * Needs no drafting model, so every model gains if the text repeats itself: edits, quotations, code. An index over all
 * tokens of the session records where keys of 2, 4 and 8 tokens ended; among the places found, those with the longest
 * common ending count most. The answer is a pure function of the text; memory is allocated once, when the session
 * opens. */
#ifndef RATOON_DECODE_NGRAM_H
#define RATOON_DECODE_NGRAM_H

#include <stddef.h>

#include "base/error.h"
#include "decode/tree.h"

enum { NGRAM_KEYS = 3, NGRAM_CHAINS = 4 };

/*   text  ... a b c d ... a b c x ... b c          keys that end at a position form a chain, newest first:
 *               ^           ^ ^ head[hash] ──▶ position + 1, prev[position] ──▶ earlier position + 1, 0: none
 *               |           | n - 1: looked up, entered when a token follows it */
typedef struct {
    int32_t *head[NGRAM_KEYS], *prev[NGRAM_KEYS];  /* [mask + 1], [ctx]; one block */
    uint32_t mask;
    int32_t  n, ctx;                               /* positions [0, n) are entered */
} Ngram;

size_t ngram_bytes(int32_t ctx);
Status ngram_open(Ngram *g, int32_t ctx, Error *err);
void   ngram_close(Ngram *g);
/* Call before the text is cut to its first n tokens or changed after them: the text must still be as it was entered. */
void   ngram_cut(Ngram *g, const int32_t *text, int32_t n);

/* Distinct continuations, the likeliest first; raw: log-probability of each token given those before it. match: how
 * many tokens the text's end has in common with the best place. */
typedef struct {
    int32_t n, match, length[NGRAM_CHAINS], token[NGRAM_CHAINS][LAT_DEPTH];
    float   raw[NGRAM_CHAINS][LAT_DEPTH];
} Guess;
/* Enters what is new in text [n] except its last position, then looks up how the text could continue, up to depth_max
 * tokens (at most LAT_DEPTH). */
void   ngram_find(Guess *out, Ngram *g, const int32_t *text, int32_t n, int32_t depth_max);
/* Adds the guesses to the lattice, as columns of their own. */
void   guess_join(Lattice *l, const Guess *g, const Calibration *calib);

#endif
