/* run.h - one choice in its session: noting the prompt, and what becomes of each block of tokens. Whatever is done depends on the tokens
 * alone and never on the blocks that brought them: where something has to happen after a token, the rest of its block is given back
 * (rt_take) and drawn again. So a choice's text is the same with speculation, in any company, resumed from anywhere. */
#ifndef RATOON_SERVE_RUN_H
#define RATOON_SERVE_RUN_H

#include "programs/serve/job.h"

/* What the engine thread has for it. */
typedef struct { Server *server; rt_step *step; } Bench;

typedef enum { RUN_GOES_ON, RUN_OVER, RUN_CANCELLED, RUN_FAILED } RunState;

/* The HISTORY places of the prompt that a session was given last, ascending; 0: none. */
typedef struct { int32_t at[HISTORY_PLACES]; } Histories;

/* The session will be this choice's: what it held is left (`h` is of that, and then of this choice's prompt), and it gets what the cache has
 * of the prompt; nothing of it where the request wants no cache. Afterwards c->past.resumed says how much need not be computed; nothing has
 * been told yet. */
void run_ready(Choice *c, const Bench *b, rt_session *s, Histories *h);
/* Notes the prompt; what the answer begins with (an echo, forced tokens) is told. FAILED: *e. */
RunState run_start(Choice *c, const Bench *b, rt_session *s, HttpError *e);
/* After a step: takes what it brought. */
RunState run_block(Choice *c, const Bench *b, rt_session *s, const rt_block *block, HttpError *e);
/* Ends it where it stands: its events are told, its figures taken. */
void run_end(Choice *c, rt_session *s, FinishReason reason);
/* Adds what a running choice has done so far. */
void run_usage(const Choice *c, const rt_session *s, AnswerUsage *u);
/* The session is about to be used for the text t [n]: the places that this text does not go on from go to the cache, HISTORY and END. A text
 * that goes on from the last HISTORY is the same conversation's next turn, or its last one once more: then END has had its time. */
void run_leave(const Bench *b, rt_session *s, const Histories *h, const int32_t *t, size_t n);
/* The session forgets its text: nobody goes on from it, and nothing of it is saved. */
void run_forget(rt_session *s);

#endif
