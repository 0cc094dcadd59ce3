/* generate.h - generates a text from a prompt in one call, for the commands that measure or compare; prints nothing.
 * The clock counts the steps that produced tokens: decoding, including drafting and sampling, without the prompt; or
 * that denoised. */
#ifndef RATOON_PROGRAMS_GENERATE_H
#define RATOON_PROGRAMS_GENERATE_H

#include "programs/program.h"

typedef struct {
    int32_t *token, n;                          /* [max_tokens of the sampling]; without the end token */
    bool     ended;                             /* it ended with an end token */
    double   seconds;
    rt_stats stats;
    int64_t  drafting, reached[64];             /* drafting: passes with drafted rows; reached[d]: how many of them
                                                 * accepted more than d of their tokens */
} Generated;

/* out->token must hold sampling->max_tokens. Returns false after reporting an error, or after Ctrl-C. */
bool generate(Generated *out, Program *p, rt_step *step, rt_session *session, const int32_t *prompt, int32_t n_prompt,
              const rt_sampling *sampling, bool ignore_eos);

#endif
