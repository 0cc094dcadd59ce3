/* places.h - where a request's prompt is to be remembered: a pure function from what is known of the prompt to places in it. */
#ifndef RATOON_PROGRAMS_SERVE_PLACES_H
#define RATOON_PROGRAMS_SERVE_PLACES_H

#include "programs/serve/cache.h"

/* save: an image goes to the cache when the prompt has come there; else the session's own checkpoint is enough until the session is left. */
typedef struct { int32_t at; CacheKind kind; bool save; } Place;

enum { HISTORY_PLACES = 2 };                       /* of a prompt, at most */

/* All in tokens. n_prompt: of the prompt. held: places up to here are already there and are left out. shared: end of system text and tools
 * (the tokens that this prompt has in common with a rendering of them alone), 0: unknown. history: tokens that it has in common with its
 * rendering without generation prompt, kept: with one that is a turn further on, where a template has dropped what it shows of the last turn
 * only; 0: unknown. fixed [n_fixed]: breakpoints, in any order. interval: --snapshot-interval (0: none).
 * least: places before it, and gaps between an INTERVAL place and another that are smaller, are not worth it (cache's min_tokens). */
typedef struct { int32_t n_prompt, held, shared, history, kept, interval, least, n_fixed; const int32_t *fixed; } PlacesIn;

/* Ascending places in [1, n_prompt), each once under its most valued kind; at most RT_MARKS, where the least valued are left out first, and
 * INTERVAL places at multiples of the interval counted from 0 (so that other prompts meet the same ones), the last ones kept. Returns how
 * many. */
int32_t places_of(Place out[RT_MARKS], const PlacesIn *in);
/* Tokens that two renderings have in common. */
int32_t places_common(const int32_t *a, size_t n_a, const int32_t *b, size_t n_b);

#endif
