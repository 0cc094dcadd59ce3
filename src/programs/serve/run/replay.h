/* replay.h - exact replay of earlier answers. What a client sends back of an answer (arguments reordered, no reasoning)
 * tokenizes differently from what the model wrote, and from the first different token on the KV cache cannot be reused.
 * So the tokens of an answer are stored under the ids of its calls and under its handle. When a conversation sends such
 * an id back - with the same calls, and the same text if any - the prompt is assembled from the template's text around
 * the answer and the stored tokens.
 *
 * An answer of text alone has no such id. If its text would tokenize differently from what the model wrote - the model
 * may sample a token that the tokenizer never produces, and the first one may merge with the prompt's end - it is
 * stored under its text and all of the text before it, provided a control token follows. The prompt then is the same
 * text, and no more of it has to be computed.
 *
 *     template's rendering with a placeholder    <user turn> <assistant><think></think> @@1@@ <end> <tool
 *                                                results> <assistant>
 *     prompt                                     [tokens of the text] [beginning of an answer] [stored tokens]
 *                                                [tokens of the text]
 */
#ifndef RATOON_PROGRAMS_SERVE_RUN_REPLAY_H
#define RATOON_PROGRAMS_SERVE_RUN_REPLAY_H

#include "programs/serve/run/job.h"

/* Thread-safe. */
Replay *replay_new(void);                          /* NULL: out of memory */
void    replay_free(Replay *r);

/* Called when a job has ended normally: stores those of its answers that a client can name or whose text would tokenize
 * differently. Engine thread, before the job is freed. */
void replay_job(Server *s, const Job *j);
/* A new handle for the answer if its dialect has handles; otherwise out is "". */
void replay_handle(char out[96], const Request *q);

/* The stored answers that a conversation contains; NULL: none. */
typedef struct ReplayPlan ReplayPlan;
ReplayPlan *replay_plan(Server *s, const Request *q, const json_t *messages);
const json_t *replay_messages(const ReplayPlan *p);             /* the conversation with placeholders, to be rendered */
bool replay_holds(const ReplayPlan *p, const json_t *messages);        /* all answers after the user's last message */
/* The prompt's tokens from that rendering (p NULL: from the conversation's own), also replaying answers known by their
 * texts if by_text; malloc'd. Returns false if nothing in it is stored or the rendering cannot be split as expected;
 * then render the conversation as it is. */
bool replay_tokens(int32_t **t, int32_t *n, Server *s, const ReplayPlan *p, const TemplateText *text, bool by_text);
/* The key under which an answer to this prompt is stored, together with its text. */
void replay_key(uint64_t key[2], const TemplateText *text);
void replay_plan_free(ReplayPlan *p);

#endif
