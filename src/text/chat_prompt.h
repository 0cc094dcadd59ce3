/* chat_prompt.h - from a conversation to the text that a model reads. A model's template is tried out once, on small conversations, to
 * learn what it can show; every conversation is then put into the form that it wants, and rendered. Where the model carries no template
 * that can be read, one of ours takes its place. The template engine knows nothing of all this. */
#ifndef RATOON_TEXT_CHAT_PROMPT_H
#define RATOON_TEXT_CHAT_PROMPT_H

#include "text/template.h"

typedef struct ChatPrompt ChatPrompt;              /* never changes; usable from several threads */

/* What the trial renders showed. */
typedef struct {
    bool system, system_later;                     /* a system message is shown; also after others */
    bool developer;                                /* the template knows that role by name */
    bool text_content, typed_content;              /* content as a string; as a list of {"type": "text", "text": ...} */
    bool tools, tool_calls, parallel_calls, tool_results;
    bool text_arguments, object_arguments;         /* a call's arguments as JSON text, where an object would look the same; as an object */
    bool reasoning;                                /* of the last assistant message */
    bool thinking;                                 /* enable_thinking changes what the answer begins with */
    bool keeps_thinking;                           /* the template has a variable that keeps the reasoning of earlier turns */
} ChatCaps;

typedef struct {
    const char *source; size_t n;                  /* NULL: the model has no template */
    const char *name;                              /* for messages: the model's or template's file */
    const char *arch;                              /* as in general.architecture, "" unknown */
    const char *bos, *eos, *pad, *unk;             /* texts of these tokens, NULL: none */
    bool (*has_token)(void *ud, const char *text); /* whether a token has exactly this text */
    void *ud;
    bool lax;                                      /* see TemplateInput */
} ChatOptions;

/* ST_UNSUPPORTED: no template, and none of ours fits the vocabulary. A template that cannot be read is replaced with a warning. */
Status chat_prompt_open(ChatPrompt **out, const ChatOptions *o, TemplateError *err);
void   chat_prompt_close(ChatPrompt *c);
const ChatCaps *chat_prompt_caps(const ChatPrompt *c);
const char *chat_prompt_warning(const ChatPrompt *c);                  /* one line that the user should see once; "": none */

typedef struct {
    const json_t *messages;                        /* a list of {"role": ..., "content": ...}, at least one */
    const json_t *tools, *documents, *kwargs;      /* NULL: none; kwargs: an object of further variables */
    bool generation;                               /* end with the beginning of the answer */
    const struct tm *now;
} ChatRequest;

/* The prompt of a conversation, prepared as doc/templates.md says. ST_ARG: the template refused it (its own words), or a message is not
 * in order; otherwise as template_render. */
Status chat_prompt_render(TemplateText *out, const ChatPrompt *c, const ChatRequest *q, TemplateError *err);

/* The same without any preparation, exactly with the variables given: what `ratoon render` shows. special: an object of texts. */
Status chat_prompt_exact(TemplateText *out, const Template *t, const ChatRequest *q, const json_t *special, bool lax, TemplateError *err);

#endif
