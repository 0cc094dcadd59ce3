/* console.h - shows the model's output. On a terminal its thinking is dim under a heading, and control characters are
 * shown as '?', so that a text cannot move the cursor or change the window. Elsewhere the answer is written byte for
 * byte, and the thinking goes to standard error. An answer always ends its line. */
#ifndef RATOON_PROGRAMS_CHAT_CONSOLE_H
#define RATOON_PROGRAMS_CHAT_CONSOLE_H

#include "programs/program.h"
#include "text/reply/reply.h"

typedef struct {
    bool   terminal, color, quiet;                 /* quiet: hide thinking if it is not part of the output */
    bool   thinking, broken;                       /* broken: writing standard output failed, reported */
    char   last;                                   /* last byte of the answer, 0: none */
    double since;                                  /* when the thinking began */
    const Options *o;
} Console;

void console_open(Console *v, const Options *o);
/* REPLY_REASON or REPLY_TEXT; reason_tokens: tokens of reasoning so far. */
void console_say(Console *v, const ReplyEvent *e, int32_t reason_tokens);
void console_end(Console *v, int32_t reason_tokens); /* ends thinking and the line */

#endif
