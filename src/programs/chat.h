/* chat.h - conversations on the command line: the prompt of a user's turn, and how a template's failure is shown. */
#ifndef RATOON_PROGRAMS_CHAT_H
#define RATOON_PROGRAMS_CHAT_H

#include "programs/program.h"
#include "text/chat_prompt.h"

/* Says what is wrong with a template, with its line and a caret below the place. Returns false. */
bool template_complain(const Options *o, const TemplateError *err);
/* The local time, or that of --template-now. */
struct tm clock_now(const Options *o);
/* What the model's template makes of conversations; a warning about it is noted. */
Status chat_open(ChatPrompt **out, const Program *p, TemplateError *err);
/* Tokens of the model's prompt for one turn of a user, --system before it; malloc'd. False: said. */
bool chat_tokens(const Program *p, int32_t **out, int32_t *n, const char *text, size_t len);

#endif
