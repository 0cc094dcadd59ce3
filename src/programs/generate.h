/* generate.h - a text from a prompt in one call, for the commands that measure or compare; `run` shows it as it comes and has its own
 * loop. The clock counts the steps that brought tokens: decoding with its drafting and drawing, without the prompt. */
#ifndef RATOON_PROGRAMS_GENERATE_H
#define RATOON_PROGRAMS_GENERATE_H

#include "programs/program.h"

typedef struct {
    int32_t *token, n;                             /* [max_tokens of the sampling]; without the end token */
    bool     ended;                                /* by an end token */
    double   seconds;
    rt_stats stats;
    int64_t  drafting, reached[64];                /* passes with drafted rows; [d]: those of them that accepted more than d of their tokens */
} Generated;

/* out->token: room for sampling->max_tokens. False: the reason has been said, or Ctrl-C was pressed. */
bool generate(Generated *out, Program *p, rt_step *step, rt_session *session, const int32_t *prompt, int32_t n_prompt,
              const rt_sampling *sampling, bool ignore_eos);

#endif
