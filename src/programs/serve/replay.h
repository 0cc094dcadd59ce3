/* replay.h - earlier answers as they were written. What a client sends back of an answer (arguments in another order, no reasoning) makes
 * other tokens than the model wrote, and from the first such token on nothing that was computed can be used again. So the tokens of an
 * answer are remembered under the ids of its calls and under its handle, and when a conversation brings one of these ids back - with the
 * same calls, and the same text if any - the prompt is put together from the template's text around it and the very tokens.
 *
 * An answer of text alone has no such name. Where its text would not get the tokens that the model wrote - a token may be drawn that never
 * comes of splitting a text, and the first one may merge with the prompt's end - it is known by its text and all of the text before it, as
 * long as a control token follows. The prompt is the same text then, and no more of it is to be computed.
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

/* A job has ended whole: its answers are remembered, if a client can name them or their texts make other tokens.
 * Engine thread, before the job is freed. */
void replay_job(Server *s, const Job *j);
/* A fresh handle for an answer of a dialect that has such: out is "" otherwise. */
void replay_handle(char out[96], const Request *q);

/* What of a conversation is remembered; NULL: nothing. */
typedef struct ReplayPlan ReplayPlan;
ReplayPlan *replay_plan(Server *s, const Request *q, const json_t *messages);
const json_t *replay_messages(const ReplayPlan *p);                    /* the conversation with placeholders, to be rendered */
/* The prompt's tokens from that rendering (p NULL: from a conversation's own), answers that are known by their texts among them if by_text;
 * malloc'd. False: nothing in it is remembered, or it does not come apart as it should; render the conversation as it is. */
bool replay_tokens(int32_t **t, int32_t *n, Server *s, const ReplayPlan *p, const TemplateText *text, bool by_text);
/* What an answer to this prompt is known by, besides its text. */
void replay_key(uint64_t key[2], const TemplateText *text);
void replay_plan_free(ReplayPlan *p);

#endif
