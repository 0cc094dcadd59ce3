/* choice.h - one choice in its session: submitting the prompt, and processing each block of tokens. What happens
 * depends on the tokens alone and never on how they were split into blocks: if something must happen after a token, the
 * rest of its block is given back (rt_take) and drawn again. So a choice's text is the same with speculation, in any
 * batch, and resumed from anywhere. */
#ifndef RATOON_PROGRAMS_SERVE_RUN_CHOICE_H
#define RATOON_PROGRAMS_SERVE_RUN_CHOICE_H

#include "programs/serve/run/job.h"

/* What the engine thread provides. */
typedef struct { Server *server; rt_step *step; } RunContext;

/* LOST: FAILED, since the device is lost. */
typedef enum { CHOICE_GOES_ON, CHOICE_OVER, CHOICE_CANCELLED, CHOICE_FAILED, CHOICE_LOST } ChoiceResult;

/* The HISTORY points of the prompt that a session was given last, ascending; 0: none. */
typedef struct { int32_t at[HISTORY_POINTS]; } Histories;

/* Gives the session to this choice: its old text is left (`h` holds the points of that text, afterwards those of this
 * prompt), and what the cache has of the prompt is loaded unless the request disables caching. Afterwards
 * c->past.resumed is the number of tokens that need not be computed; no output was produced yet. */
void choice_ready(RunChoice *c, const RunContext *b, rt_session *s, Histories *h);
/* Scores a piece of the prompt for an `echo` with log-probabilities; call while c->scores is set. On CANCELLED,
 * FAILED or LOST *e is set. */
ChoiceResult choice_score(RunChoice *c, const RunContext *b, rt_session *s, HttpError *e);
/* Call next: submits the prompt and outputs what the answer begins with (an echo, forced tokens). On FAILED *e is
 * set. */
ChoiceResult choice_start(RunChoice *c, rt_session *s, HttpError *e);
/* Processes the choice's block after a step. */
ChoiceResult choice_block(RunChoice *c, rt_session *s, const rt_block *block, HttpError *e);
/* Ends the choice here: outputs its remaining events and adds up its figures. */
void choice_end(RunChoice *c, rt_session *s, FinishReason reason);
/* Ends a running choice whose job has failed: adds up its figures, which count although nobody reads the answer. */
void choice_drop(RunChoice *c, rt_session *s);
/* Adds what a running choice has done so far. */
void choice_usage(const RunChoice *c, const rt_session *s, AnswerUsage *u);
/* The session is about to be used for the text t [n]. Its HISTORY and END points that this text does not continue are
 * saved to the cache. A text that continues the last HISTORY point is the same conversation's next turn, or a repeat of
 * its last one: END is of no more use then. */
void choice_leave(const RunContext *b, rt_session *s, const Histories *h, const int32_t *t, size_t n);
/* Makes the session drop its text: nothing of it is saved or continued. */
void choice_forget(rt_session *s);

#endif
