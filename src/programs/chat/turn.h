/* turn.h - one answer of a conversation: a question becomes the session's prompt, steps run until the model ends its
 * turn, and the output is shown as it arrives. Ctrl-C ends the turn; the answer is what was generated so far. */
#ifndef RATOON_PROGRAMS_CHAT_TURN_H
#define RATOON_PROGRAMS_CHAT_TURN_H

#include "programs/chat/console.h"
#include "programs/chat/talk.h"

/* FULL: the context is full; LENGTH: the limit -n was reached. */
typedef enum { TURN_ENDED, TURN_LENGTH, TURN_FULL, TURN_CANCELLED, TURN_FAILED } TurnEnd;

/* The caller owns out (turn_answer_free). TURN_FAILED: reported. */
TurnEnd turn_run(TalkAnswer *out, Talk *t, const Question *q, const rt_sampling *s, Console *v);
void turn_answer_free(TalkAnswer *a);
/* Prints one line of figures about the session's last answer on standard error. */
void turn_stats(const Program *p);

#endif
