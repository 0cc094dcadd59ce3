/* replay.h - earlier answers as they were written. What a client sends back of an answer (arguments in another order, no reasoning) makes
 * other tokens than the model wrote, and from the first such token on nothing that was computed can be used again. So the tokens of an
 * answer are remembered under the ids of its calls and under its handle, and when a conversation brings one of these ids back - with the
 * same calls, and the same text if any - the prompt is put together from the template's text around it and the very tokens.
 *
 *     template's rendering with a placeholder    <user turn> <assistant><think></think> @@1@@ <end> <tool results> <assistant>
 *     prompt                                     [tokens of the text] [beginning of an answer] [stored tokens] [tokens of the text]
 */
#ifndef RATOON_SERVE_REPLAY_H
#define RATOON_SERVE_REPLAY_H

#include "programs/serve/job.h"

/* Any thread may use one. */
Replay *replay_new(void);                          /* NULL: out of memory */
void    replay_free(Replay *r);

/* A job has ended whole: its answer is remembered, if a client can name it. Engine thread, before the job is freed. */
void replay_job(Server *s, const Job *j);
/* A fresh handle for an answer of a dialect that has such: out is "" otherwise. */
void replay_handle(char out[96], const Request *q);

/* What of a conversation is remembered; NULL: nothing. */
typedef struct ReplayPlan ReplayPlan;
ReplayPlan *replay_plan(Server *s, const Request *q, const json_t *messages);
const json_t *replay_messages(const ReplayPlan *p);                    /* the conversation with placeholders, to be rendered */
/* The prompt's tokens from that rendering; malloc'd. False: it does not come apart as it should; render the conversation as it is. */
bool replay_tokens(int32_t **t, int32_t *n, const ReplayPlan *p, const rt_engine *g, const TemplateText *text);
void replay_plan_free(ReplayPlan *p);

#endif
