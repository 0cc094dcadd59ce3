/* chat_prompt.h - from a conversation to the text that a model reads.
 * A model's template is tried out once, on small conversations, to learn what it can show; every conversation is
 * then put into the form that the template expects, and rendered. If the model has no template that can be parsed, a
 * built-in one takes its place. The template engine knows nothing of all this. */
#ifndef RATOON_TEXT_CHAT_PROMPT_H
#define RATOON_TEXT_CHAT_PROMPT_H

#include "text/template/template.h"

typedef struct ChatPrompt ChatPrompt;              /* never changes; usable from several threads */

/* What the trial renders showed of the template. */
typedef struct {
    bool system, system_later;             /* shows a system message; also one after other messages */
    bool developer;                        /* knows this role by name */
    bool text_content, typed_content;      /* accepts content as a string; as a list of {"type": "text", "text": ...} */
    bool tools, tool_calls, parallel_calls, tool_results;
    bool results_with_calls;               /* shows a result only behind the message that called the tool */
    bool results_inside;                   /* expects results as "tool_responses" of that message (early Gemma 4) */
    bool text_arguments, object_arguments; /* shows a call's arguments given as JSON text the way it would show an
                                            * object; given as an object */
    bool reasoning;                        /* shows the reasoning of the last assistant message */
    bool thinking;                         /* enable_thinking changes how the answer begins */
    bool keeps_thinking;                   /* has a variable that keeps the reasoning of earlier turns */
    bool shortens, rewrites;               /* the user's next message changes how earlier ones are shown; not only
                                            * how answers are */
    bool answer_apart, system_apart;       /* see chat_prompt_render */
} ChatCaps;

typedef struct {
    const char *source; size_t n;                  /* NULL: the model has no template */
    const char *name;                              /* for error messages: the model's or template's file */
    const char *arch;                              /* as in general.architecture, "": unknown */
    const char *bos, *eos, *pad, *unk;             /* texts of these tokens, NULL: none */
    bool (*has_token)(void *ud, const char *text); /* whether a token with exactly this text exists */
    void *ud;
    bool lax;                                      /* see TemplateInput */
} ChatOptions;

/* ST_UNSUPPORTED: the model has no template, and no built-in one fits the vocabulary. A template that cannot be
 * parsed is replaced, with a warning. */
Status chat_prompt_open(ChatPrompt **out, const ChatOptions *o, TemplateError *err);
void   chat_prompt_close(ChatPrompt *c);
const ChatCaps *chat_prompt_caps(const ChatPrompt *c);
const char *chat_prompt_warning(const ChatPrompt *c);           /* one line for the user to see once; "": none */

typedef struct {
    const json_t *messages;                        /* a list of {"role": ..., "content": ...}, at least one */
    const json_t *tools, *documents, *kwargs;      /* NULL: none; kwargs: an object of further variables */
    bool generation;                               /* end with the beginning of the answer */
    const struct tm *now;
} ChatRequest;

/* The prompt of a conversation, prepared as doc/templates.md says. ST_ARG: the template refused it (its own words), or
 * a message is malformed; otherwise as template_render.
 *
 *     <system> Be kind. <end> <user> One? <end> <assistant> 1. <end> <user> Two? <end> <assistant>
 *                             ^parted                                                ^asked
 *
 * If the trials found the template to be so (answer_apart), out->asked is where the same conversation without
 * `generation` ends; likewise (system_apart), all text before out->parted is the same in every conversation that has
 * the same system messages and tools and continues with a user message. SIZE_MAX: not known. */
Status chat_prompt_render(TemplateText *out, const ChatPrompt *c, const ChatRequest *q, TemplateError *err);

/* Renders without any preparation, with exactly the variables given, as `ratoon render` does. special: an object of
 * texts. */
Status chat_prompt_exact(TemplateText *out, const Template *t, const ChatRequest *q, const json_t *special, bool lax,
                         TemplateError *err);

/* Whether that is the message's role; false for NULL. */
bool role_is(const json_t *message, const char *role);
bool role_is_system(const json_t *message);        /* "system" or "developer" */

#endif
