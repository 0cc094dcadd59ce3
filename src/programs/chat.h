/* chat.h - conversations on the command line: the prompt of a user's turn, and how a template's failure is shown. */
#ifndef RATOON_PROGRAMS_CHAT_H
#define RATOON_PROGRAMS_CHAT_H

#include "programs/program.h"
#include "text/chat_prompt.h"
#include "text/reply.h"

/* Says what is wrong with a template, with its line and a caret below the place. Returns false. */
bool template_complain(const Options *o, const TemplateError *err);
/* The local time, or that of --template-now. */
struct tm clock_now(const Options *o);
/* For ReplyOptions and reply_style: ud is the engine. */
int32_t chat_token(void *engine, const char *text);
/* What the model's template makes of conversations; a warning about it is noted. */
Status chat_open(ChatPrompt **out, const Program *p, TemplateError *err);
/* out [n_client]: what clients said of bytes [from, to) of a rendering, counted from `from`; returns how many spans. */
size_t chat_spans(rt_span *out, const TemplateText *t, size_t from, size_t to);
/* Appends the tokens of bytes [from, to) of a rendering, with `then` behind them, to (*out)[*n], malloc'd; what begins a text comes only first.
 * False: out of memory, too many, or none; *out is as it was. */
bool chat_append(const rt_engine *g, int32_t **out, int32_t *n, const TemplateText *t, size_t from, size_t to, const char *then);
/* How the model writes reasoning and calls. */
ReplyStyle chat_style(rt_engine *g);
/* Tokens of the model's prompt for one turn of a user, --system before it; malloc'd. False: said. */
bool chat_tokens(const Program *p, int32_t **out, int32_t *n, const char *text, size_t len);

#endif
