/* conversation.h - the prompt of a conversation: its text, its tokens and its cache points. All come from one
 * rendering, which shows where the answer begins and where the system part ends (chat_prompt.h). Where it does not show
 * that (a template that puts the last question first, text without control tokens), a further rendering is compared
 * with it. */
#ifndef RATOON_PROGRAMS_SERVE_RUN_CONVERSATION_H
#define RATOON_PROGRAMS_SERVE_RUN_CONVERSATION_H

#include "programs/serve/run/job.h"

/* Returns true, with the error in e, if a text is too long to fit however it is tokenized, so that tokenizing it is not
 * worthwhile. */
bool conversation_too_long(const Server *s, Dialect d, size_t bytes, HttpError *e);
/* Fills in tokens and text. replay: earlier answers keep their original tokens; otherwise everything is tokenized from
 * the template's text. Returns false and sets e on failure. The caller owns text and tokens in either case. */
bool conversation_prompt(JobPrompt *p, Server *s, const Request *q, bool replay, HttpError *e);
/* Call next: finds cache points and opening; also for prompts that are not conversations. */
void conversation_points(Server *s, const Request *q, JobPrompt *p);

#endif
