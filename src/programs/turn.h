/* turn.h - one answer of a conversation: a question becomes the session's prompt, steps are run until the model ends its turn, and what it
 * says is shown as it comes. Ctrl-C ends it, and what there is of it is the answer. */
#ifndef RATOON_PROGRAMS_TURN_H
#define RATOON_PROGRAMS_TURN_H

#include "programs/talk.h"
#include "programs/voice.h"

/* FULL: the context holds no more; LENGTH: -n tokens. */
typedef enum { TURN_ENDED, TURN_LENGTH, TURN_FULL, TURN_CANCELLED, TURN_FAILED } TurnEnd;

/* out is the caller's (turn_answer_free). TURN_FAILED: said. */
TurnEnd turn_run(TalkAnswer *out, Talk *t, const Question *q, const rt_sampling *s, Voice *v);
void turn_answer_free(TalkAnswer *a);
/* One line of figures about the session's last answer, on standard error. */
void turn_stats(const Program *p);

#endif
