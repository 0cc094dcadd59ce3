/* cache_points.h - where in a request's prompt the session state is to be cached: a pure function of what is known
 * about the prompt. */
#ifndef RATOON_PROGRAMS_SERVE_CACHE_CACHE_POINTS_H
#define RATOON_PROGRAMS_SERVE_CACHE_CACHE_POINTS_H

#include "programs/serve/cache/cache.h"

/* save: save an image to the cache when the prompt has been read up to here; otherwise the session's own checkpoint is
 * enough until the session is left. */
typedef struct { int32_t at; CacheKind kind; bool save; } CachePoint;

enum { HISTORY_POINTS = 2 };                       /* per prompt, at most */

/* All in tokens. n_prompt: length of the prompt. held: points up to here exist already and are left out. shared: end of
 * system text and tools (the tokens that this prompt has in common with a rendering of them alone), 0: unknown.
 * history: tokens in common with its rendering without generation prompt; kept: with one that is a turn further on, if
 * the template drops what it shows only of the last turn; 0: unknown. fixed [n_fixed]: breakpoints, in any order.
 * interval: --snapshot-interval (0: none). least: points before this, and INTERVAL points closer than this to another
 * point, are not worth saving (the cache's min_tokens). */
typedef struct {
    int32_t n_prompt, held, shared, history, kept, interval, least, n_fixed;
    const int32_t *fixed;
} CachePointsIn;

/* Ascending points in [1, n_prompt), each once under its most valuable kind; at most RT_MARKS, the least valuable being
 * dropped first. INTERVAL points are multiples of the interval counted from 0 (so that other prompts share them); the
 * last ones are kept. Returns the number of points. */
int32_t cache_points_of(CachePoint out[RT_MARKS], const CachePointsIn *in);
/* Number of leading tokens that two renderings share. */
int32_t cache_points_common(const int32_t *a, size_t n_a, const int32_t *b, size_t n_b);

#endif
