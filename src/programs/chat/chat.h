/* chat.h - conversations on the command line: the prompt of a user's turn, and how template errors are shown. */
#ifndef RATOON_PROGRAMS_CHAT_CHAT_H
#define RATOON_PROGRAMS_CHAT_CHAT_H

#include "programs/program.h"
#include "text/chat_prompt.h"
#include "text/reply/reply.h"

/* Reports an error in a template, with its line and a caret below the position. Returns false. */
bool template_complain(const Options *o, const TemplateError *err);
/* Whether answers are held to a form (--grammar, --json-schema), and then without reasoning. */
static inline bool chat_constrained(const Options *o) { return o->grammar || o->json_schema; }
/* The local time, or the time given by --template-now. */
struct tm clock_now(const Options *o);
/* For ReplyOptions and reply_style: ud is the engine. */
int32_t chat_token(void *engine, const char *text);
/* Opens the model's chat template; a warning about it is printed. */
Status chat_open(ChatPrompt **out, const Program *p, TemplateError *err);
/* out [n_client]: spans of bytes [from, to) of a rendering that clients sent, relative to `from`; returns how many. */
size_t chat_spans(rt_span *out, const TemplateText *t, size_t from, size_t to);
/* Appends the tokens of bytes [from, to) of a rendering, followed by `then`, to (*out)[*n], malloc'd; the tokens that
 * begin a text are only added first. Returns false, with *out unchanged, if out of memory or if there are too many
 * tokens or none. */
bool chat_append(const rt_engine *g, int32_t **out, int32_t *n, const TemplateText *t, size_t from, size_t to,
                 const char *then);
/* How the model writes reasoning and calls. */
ReplyStyle chat_style(rt_engine *g);
/* Tokens of the model's prompt for one user turn, with --system before it; malloc'd. Returns false after reporting an
 * error. */
bool chat_tokens(const Program *p, int32_t **out, int32_t *n, const char *text, size_t len);

#endif
