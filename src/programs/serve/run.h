/* run.h - one choice in its session: noting the prompt, and what becomes of each block of tokens. Whatever is done depends on the tokens
 * alone and never on the blocks that brought them: where something has to happen after a token, the rest of its block is given back
 * (rt_take) and drawn again. So a choice's text is the same with speculation, in any company, resumed from anywhere. */
#ifndef RATOON_SERVE_RUN_H
#define RATOON_SERVE_RUN_H

#include "programs/serve/job.h"

/* What the engine thread has for it. */
typedef struct { Server *server; rt_step *step; } Bench;

typedef enum { RUN_GOES_ON, RUN_OVER, RUN_CANCELLED, RUN_FAILED } RunState;

/* The session will be this choice's: it gets what the cache has of the prompt. Afterwards c->past.resumed says how much need not be computed;
 * nothing has been told yet. */
void run_ready(Choice *c, const Bench *b, rt_session *s);
/* Notes the prompt; what the answer begins with (an echo, forced tokens) is told. FAILED: *e. */
RunState run_start(Choice *c, const Bench *b, rt_session *s, HttpError *e);
/* After a step: takes what it brought. */
RunState run_block(Choice *c, const Bench *b, rt_session *s, const rt_block *block, HttpError *e);
/* Ends it where it stands: its events are told, its figures taken. */
void run_end(Choice *c, rt_session *s, FinishReason reason);
/* The session is about to be used for another text: what it holds goes to the cache, unless the new text goes on from it. */
void run_leave(const Bench *b, rt_session *s, const int32_t *t, size_t n);

#endif
