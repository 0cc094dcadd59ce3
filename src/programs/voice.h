/* voice.h - what the model says, on its way to the reader. On a terminal its thinking stands dim under a heading, and control characters
 * are shown as '?': a text cannot move the cursor or change the window. Elsewhere the answer is written byte for byte, and the thinking
 * goes to standard error. */
#ifndef RATOON_PROGRAMS_VOICE_H
#define RATOON_PROGRAMS_VOICE_H

#include "programs/program.h"
#include "text/reply.h"

typedef struct {
    bool   terminal, color, quiet;                 /* quiet: thinking is not shown where it is not part of the output */
    bool   thinking, broken;                       /* broken: standard output could not be written, said */
    char   last;                                   /* byte of the answer, 0: none */
    double since;                                  /* the thinking began */
    const Options *o;
} Voice;

void voice_open(Voice *v, const Options *o);
/* REPLY_REASON or REPLY_TEXT; reason_tokens: how many it has taken so far. */
void voice_say(Voice *v, const ReplyEvent *e, int32_t reason_tokens);
void voice_end(Voice *v, int32_t reason_tokens);   /* ends thinking and, on a terminal, the line */

#endif
