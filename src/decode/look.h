/* look.h - looking inside a target and its drafter: the logits and taps of rows that nobody keeps, and what a pass costs. Comparisons
 * with other programs, perplexity and benchmarks are made of these; ordinary decoding is not. */
#ifndef RATOON_DECODE_LOOK_H
#define RATOON_DECODE_LOOK_H

#include "decode/spec.h"

typedef void (*LookRow)(void *ud, int32_t i, const float *logits, const float *taps);

/* Commits prefix, then evaluates n rows after it: a chain of any length (parent NULL; it is committed too, as prompts are), or one tree.
 * taps is NULL where the target stores none. Rows come in order. */
Status spec_rows(Spec *sp, Session *s, const int32_t *prefix, int32_t n_prefix, const int32_t *token, const int32_t *parent, int32_t n,
                 LookRow row, void *ud, Error *err);
/* The drafter's logits for [anchor, MASK, ...] after prefix, row 0 being the anchor's. */
Status spec_draft_rows(Spec *sp, Session *s, const int32_t *prefix, int32_t n_prefix, int32_t anchor, LookRow row, void *ud, Error *err);
/* ms [repeats]: time of a decoding pass of n rows that are not kept, as if `after` tokens were committed; -1: those that are. */
Status spec_time(Spec *sp, Session *s, int32_t after, int32_t n, int32_t repeats, double *ms, Error *err);

#endif
