/* inspect.h - looking inside a target and its drafter: the logits and taps of rows that are not kept, and pass times.
 * For comparisons with other programs, perplexity and benchmarks; ordinary decoding does not use it. */
#ifndef RATOON_DECODE_INSPECT_H
#define RATOON_DECODE_INSPECT_H

#include "decode/spec.h"

typedef void (*InspectRow)(void *ud, int32_t i, const float *logits, const float *taps);

/* Commits prefix, then evaluates n rows after it: a chain of any length (parent NULL; it is committed too, as prompts
 * are), or one tree. want: WANT_LOGITS, WANT_TAPS or both; row gets NULL for what is not wanted, and that is not
 * computed. Rows come in order. */
Status inspect_rows(Spec *sp, Session *s, const int32_t *prefix, int32_t n_prefix, const int32_t *token,
                    const int32_t *parent, int32_t n, int want, InspectRow row, void *ud, Error *err);
/* The logits of a canvas of n tokens after prefix, for a model that denoises: as in a block's first step or, if
 * `before` is not NULL, as in the step after one over that canvas [n], whose logits were divided by t (0: by the
 * temperature of a block's first step). Forgets the text. */
Status inspect_canvas(Spec *sp, Session *s, const int32_t *prefix, int32_t n_prefix, const int32_t *token, int32_t n,
                      const int32_t *before, float t, InspectRow row, void *ud, Error *err);
/* The drafter's logits for [anchor, MASK, ...] after prefix; row 0 is the anchor's. */
Status inspect_draft_rows(Spec *sp, Session *s, const int32_t *prefix, int32_t n_prefix, int32_t anchor, InspectRow row,
                          void *ud, Error *err);
/* ms [repeats]: times of a decoding pass of n rows that are not kept, as if `after` tokens were committed; -1: as many
 * as are committed. */
Status inspect_time(Spec *sp, Session *s, int32_t after, int32_t n, int32_t repeats, double *ms, Error *err);

#endif
