/* ratoon_chat.h - conversations: from messages to a prompt, from tokens to an answer, and texts held to a form.
 *
 * ratoon.h knows tokens only. Here a chat renders a conversation with the model's template, a reply turns blocks of
 * tokens into events (text in whole characters, reasoning, tool calls) and knows where the answer ends, and a grammar
 * says which texts are allowed. rt_generate does all of it in one call:
 *
 *     rt_chat *chat = NULL;  rt_chat_text *asked = NULL;
 *     rt_chat_request q = RT_CHAT_REQUEST(.messages = "[{\"role\": \"user\", \"content\": \"Why is the sky blue?\"}]");
 *     if (rt_chat_new(&chat, engine, NULL, &e) != RT_OK || rt_chat_render(&asked, chat, &q, &e) != RT_OK ||
 *         rt_generate(step, session, NULL, &RT_REPLY_OPTIONS(.conversation = asked), show, NULL, NULL, &e) != RT_OK)
 *         return complain(e.text);
 *     rt_chat_text_free(asked);  rt_chat_free(chat);
 *
 * where show(ud, event) writes event->bytes [event->n]. For the next turn, append what the model said and what the user
 * says to the messages and render again: the session computes only what is new. examples/chat.c is the whole program.
 *
 * Sizes, errors, memory and threads follow the rules of ratoon.h. Strings are UTF-8 and end with a NUL. */
#ifndef RATOON_CHAT_H
#define RATOON_CHAT_H

#include "ratoon.h"

#ifdef __cplusplus
extern "C" {
#else
#define RT_CHAT_REQUEST(...)  (rt_chat_request) { .size = sizeof(rt_chat_request), __VA_ARGS__ }
#define RT_REPLY_OPTIONS(...) (rt_reply_options) { .size = sizeof(rt_reply_options), __VA_ARGS__ }
#endif
#define RT_CHAT_REQUEST_INIT  RT_INIT(rt_chat_request)
#define RT_REPLY_OPTIONS_INIT RT_INIT(rt_reply_options)

/* ---- the prompt of a conversation ---- */

/* A chat template. It never changes, and any number of threads may use it. Free it before the engine. */
typedef struct rt_chat rt_chat;

/* source: a template in Jinja; NULL: the model's own or, if it has none, a built-in one that fits its vocabulary
 * (RT_EUNSUPPORTED: there is none). Errors name the line and column. */
rt_status rt_chat_new(rt_chat **out, const rt_engine *g, const char *source, rt_error *e);
void      rt_chat_free(rt_chat *c);
/* A line to show to the user once, such as that the model's own template cannot be read; "": none. */
const char *rt_chat_warning(const rt_chat *c);
/* What the template was found to show. What it cannot show is left out of a prompt, except for a system message, which
 * is then put in front of the first user message. */
typedef enum { RT_CHAT_SYSTEM, RT_CHAT_TOOLS, RT_CHAT_TOOL_RESULTS, RT_CHAT_THINKING } rt_chat_feature;
bool      rt_chat_can(const rt_chat *c, rt_chat_feature what);

typedef struct {
    size_t      size;          /* RT_CHAT_REQUEST_INIT */
    const char *messages;      /* JSON: a list of {"role": ..., "content": ...} as in OpenAI's Chat Completions, with
                                * tool_calls, tool results (role "tool") and reasoning_content; required */
    const char *tools;         /* JSON: a list of {"type": "function", "function": {"name", "description",
                                * "parameters"}}; NULL: none */
    const char *kwargs;        /* JSON: an object of further variables of the template; NULL: none */
    int64_t     now;           /* the time that a template may show, in seconds since 1970 in the zone to be shown;
                                * 0: the present, in UTC */
    int32_t     thinking;      /* 1: the model reasons before its answer; -1: it does not; 0: the template decides */
    int32_t     complete;      /* not 0: the prompt does not end with the beginning of an answer */
} rt_chat_request;

/* A conversation as the model reads it. The caller only reads it, and frees it. */
typedef struct {
    const char    *text;       /* NUL-terminated */
    size_t         n_text;
    const int32_t *token;
    size_t         n_token;
    const rt_span *client;     /* which bytes of the text were in the request: control tokens in them are plain text */
    size_t         n_client;
    int32_t        marked;     /* tokens before the beginning of the answer: a place for rt_mark, since templates leave
                                * earlier reasoning out; 0: unknown */
} rt_chat_text;

/* RT_EARG: JSON that is wrong, with its field and place, or a conversation that the template refuses, in its words. The
 * chat must outlive *out. */
rt_status rt_chat_render(rt_chat_text **out, const rt_chat *c, const rt_chat_request *q, rt_error *e);
void      rt_chat_text_free(rt_chat_text *t);

/* How many of the tokens t [n] of a rendered prompt come before byte `at` of its text, if a control token begins there
 * or the text ends; -1: unknown. */
int32_t   rt_tokens_before(const rt_engine *g, const int32_t *t, size_t n, const char *text, size_t n_text, size_t at);

/* ---- texts of a given form ---- */

/* Which texts are allowed. It never changes, any number of threads and sessions may use it, and it needs no engine. It
 * may be freed as soon as sessions and replies have been given it. */
typedef struct rt_grammar rt_grammar;
/* RT_GBNF: a grammar in llama.cpp's format. RT_JSON_SCHEMA: a JSON Schema. doc/grammar.md says what is supported; what
 * cannot be enforced is refused, with its place. */
typedef enum { RT_GBNF, RT_JSON_SCHEMA } rt_grammar_kind;
/* name: for errors, such as the name of a file. */
rt_status rt_grammar_new(rt_grammar **out, rt_grammar_kind kind, const char *text, size_t n, const char *name,
                         rt_error *e);
void      rt_grammar_free(rt_grammar *g);
/* From here, the text that the session generates after its prompt must follow the grammar; a later rt_prompt begins it
 * anew. End tokens are allowed where the grammar may end. Once nothing can follow, the block ends there, and the next
 * step returns RT_END. The tokens are those of plain decoding under the same grammar, whatever was guessed. It takes
 * about 24 MB, replaces rt_allow (and is replaced by it), and needs a tokenizer (RT_EUNSUPPORTED). g NULL: no
 * constraint. RT_ENOTOKEN of a later step: the vocabulary cannot spell what the grammar demands. */
rt_status rt_constrain(rt_session *s, const rt_grammar *g);
/* Whether the text generated so far may end here, and whether nothing can follow it (false without a constraint). */
bool      rt_constraint_met(const rt_session *s);
bool      rt_constraint_done(const rt_session *s);

/* ---- an answer ---- */

/* Sets temperature, top_p, min_p, top_k, repetition and (where it is 0) rep_window to what suits answers: what the
 * model file recommends, else temperature 0.7 and top_p 0.9. Greedy answers tend to repeat themselves. The seed is
 * yours. */
void      rt_sampling_recommended(const rt_engine *g, rt_sampling *p);

/* TEXT, REASONING: whole characters of valid UTF-8. CALL: the name of the tool, once per call. ARGUMENTS: a piece of
 * its arguments; together they are one JSON object, or the beginning of one if the answer ended within it. CALL_END:
 * bytes is empty. Calls do not overlap. */
typedef enum { RT_TEXT, RT_REASONING, RT_CALL, RT_ARGUMENTS, RT_CALL_END } rt_event_kind;
typedef struct {
    rt_event_kind kind;
    int32_t     call;          /* which call, from 0; -1 for TEXT and REASONING */
    const char *bytes;         /* not NUL-terminated; valid until the next call on the reply other than rt_reply_next */
    size_t      n;
    int32_t     from, tokens;  /* tokens of the answer that end before the event's first byte, and before its end */
} rt_event;

/* Why an answer ended. STOP: the model ended it, or its grammar is complete; STRING: at a stop string; CALLS: the model
 * ended it to have tools called, of whose calls one at least is whole; LENGTH: max_tokens were made, or the context is
 * full; CANCEL: a callback or rt_step_cancel ended it. */
typedef enum { RT_GOES_ON, RT_FINISH_STOP, RT_FINISH_STRING, RT_FINISH_CALLS, RT_FINISH_LENGTH, RT_FINISH_CANCEL }
    rt_finish;

typedef struct {
    size_t      size;          /* RT_REPLY_OPTIONS_INIT */
    const rt_chat_text *conversation;   /* what is answered: it says how the model writes reasoning and calls, whether
                                * reasoning is open, and which tools there are. NULL: all is text. Not needed later. */
    const rt_grammar *grammar; /* that the text of the answer follows, from its beginning or from the end of reasoning
                                * that the prompt opened; NULL: as rt_constrain said. It replaces what rt_constrain and
                                * rt_allow have set, and after the answer the session has neither. */
    const char *const *stop;   /* texts that end the answer, which are not part of it; copied */
    int32_t     n_stop;
    int32_t     one_call;      /* not 0: the answer ends after its first tool call */
} rt_reply_options;

/* Reads the answer that a session generates, used by the session's thread; free it before the session. Create it after
 * rt_prompt. o NULL: whole characters, nothing more. */
typedef struct rt_reply rt_reply;
rt_status rt_reply_new(rt_reply **out, rt_session *s, const rt_reply_options *o, rt_error *e);
void      rt_reply_free(rt_reply *r);
/* Reads the session's block, before its next step. If the answer ends within the block, the rest is given back to the
 * session (rt_take), which then holds the answer with its end token, if it has one. Of a stop string it also holds what
 * came in earlier blocks, so how much depends on how the text was divided into them. RT_OK: it goes on; RT_END: it has
 * ended (see rt_reply_finish); negative: the block's status, or that of the failure, which ends the answer too. */
rt_status rt_reply_read(rt_reply *r, const rt_block *b);
/* The next event, in order; false: none at the moment. */
bool      rt_reply_next(rt_reply *r, rt_event *event);
/* Ends the answer here, so that what waits (part of a character, of a stop string or of a call) becomes events. Not
 * needed after RT_END. */
rt_status rt_reply_end(rt_reply *r);
/* RT_GOES_ON: not yet. which, if not NULL: the index of the stop string, -1: none. */
rt_finish rt_reply_finish(const rt_reply *r, int32_t *which);

/* Prompt, steps and reply in one call: runs until the answer to o->conversation ends or, if text is not NULL, the text
 * that continues it (as it is: control tokens in it are plain text). Sampling is that of rt_sampling_set. event may be
 * NULL and returns false to end the answer; it may call rt_step_cancel and functions of the engine. RT_OK: *finish
 * (which may be NULL) says why it ended. The session keeps prompt and answer, so that a prompt which begins with them
 * is not computed again. */
rt_status rt_generate(rt_step *st, rt_session *s, const char *text, const rt_reply_options *o,
                      bool (*event)(void *ud, const rt_event *event), void *ud, rt_finish *finish, rt_error *e);

#ifdef __cplusplus
}
#endif
#endif
