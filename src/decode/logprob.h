/* logprob.h - what the target thought of a token: log-softmax of a row of its logits, and the row's likeliest tokens.
 * A pure function of the row: it does not matter how many rows shared its pass. */
#ifndef RATOON_DECODE_LOGPROB_H
#define RATOON_DECODE_LOGPROB_H

#include <stdint.h>

enum { TOP_MAX = 20 };
typedef struct { float logprob; int32_t n; struct { int32_t id; float logprob; } top[TOP_MAX]; } Logprob;

/* logits [vocab] are finite or -infinity, but not all -infinity; token in [0, vocab). top in [0, TOP_MAX]: how many of
 * the likeliest ids to list, lower ids first on ties. The sum runs over ascending ids in double. */
void logprob_row(Logprob *out, const float *logits, int32_t vocab, int32_t token, int32_t top);

#endif
