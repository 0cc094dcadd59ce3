/* expert_cache.h - which experts of a mixture are in fast memory, and which of them gives way to another.
 * Fast memory is divided into slots. A slot takes any expert of its kind: the layers whose experts have that many
 * bytes. Most slots are pinned and hold the experts with the highest scores; a score is how often rows chose an expert,
 * older rows counting less and less. The others form a ring, where the expert that was not used for the longest time
 * gives way. Pinned slots and ring differ in nothing but that: an expert of the ring whose score has overtaken a pinned
 * one's changes places with it, and no byte is moved. So what is held follows the traffic at no cost.
 * Bookkeeping only: it touches no memory but its own. One thread at a time. */
#ifndef RATOON_BACKEND_EXPERT_CACHE_H
#define RATOON_BACKEND_EXPERT_CACHE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

/* kind [layers]: -1: a layer without experts. slots [kinds], of which ring [kinds], at least 1, are the ring's; slots
 * of kind 0 come first. half_life: rows after which a row counts half. */
typedef struct {
    int32_t        layers, experts, kinds;
    const int32_t *kind, *slots, *ring;
    double         half_life;
} CacheShape;

typedef struct ExpertCache ExpertCache;
Status  expert_cache_open(ExpertCache **out, const CacheShape *s, Error *err);
void    expert_cache_close(ExpertCache *c);        /* NULL is fine */

/* Begins with the scores that rows of the given counts [layers, experts] would have left in the long run. */
void    expert_cache_seed(ExpertCache *c, const uint64_t *count, int32_t used);
/* n_rows rows of a pass chose these n experts of a layer, each as often as `times` says. The rows of a prompt's chunk
 * count as at most CACHE_ROWS rows. */
enum { CACHE_ROWS = 64 };
void    expert_cache_count(ExpertCache *c, int32_t layer, const int32_t *expert, const int32_t *times, int32_t n,
                           int32_t n_rows);
double  expert_cache_score(const ExpertCache *c, int32_t layer, int32_t expert);

/* -1: it has no slot. */
int32_t expert_cache_find(const ExpertCache *c, int32_t layer, int32_t expert);
bool    expert_cache_pinned(const ExpertCache *c, int32_t slot);
/* Gives the expert, which has none, a slot that is in use until expert_cache_done: an empty one, or that of the ring's
 * expert that gives way. -1: all of the ring are in use. */
int32_t expert_cache_take(ExpertCache *c, int32_t layer, int32_t expert);
/* Whether expert_cache_take would find the expert, which has no slot, an empty one, or one whose expert has a lower
 * score. */
bool    expert_cache_worth(const ExpertCache *c, int32_t layer, int32_t expert);
/* Its expert is used until expert_cache_done; any number of users at once. */
void    expert_cache_use(ExpertCache *c, int32_t slot);
/* first: unless pinned, it is the first to give way: the expert is not worth another one's slot. */
void    expert_cache_done(ExpertCache *c, int32_t slot, bool first);
/* Its only user could not fill it: the slot is empty again. */
void    expert_cache_drop(ExpertCache *c, int32_t slot);

/* Experts that gave way so far; changes of places between ring and pinned slots. */
int64_t expert_cache_evicted(const ExpertCache *c);
int64_t expert_cache_promoted(const ExpertCache *c);

#endif
