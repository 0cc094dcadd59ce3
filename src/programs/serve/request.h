/* request.h - what a client asks for, in one form for all four dialects. The body's JSON goes in, a Request or an HttpError comes out:
 * the conversation as messages of chat_prompt.h, tools as declared functions, and every number checked against one table of fields
 * (fields.h). Pure: no sockets, no engine, no clock; nothing is kept between requests.
 *
 * A field is honoured, refused with its name (400), or named in `ignored`, which the answer shows. */
#ifndef RATOON_PROGRAMS_SERVE_REQUEST_H
#define RATOON_PROGRAMS_SERVE_REQUEST_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "ratoon.h"

typedef enum { DIALECT_COMPLETIONS, DIALECT_CHAT, DIALECT_RESPONSES, DIALECT_MESSAGES, DIALECTS } Dialect;

/* A refusal. type and code are those of OpenAI's shape (static texts, code NULL: none); the Anthropic shape takes its type from status.
 * http_error_body (answer.h) writes it in the dialect's shape. */
typedef struct {
    int         status;                            /* 400 ... 503; 0: nothing is wrong */
    const char *type, *code;
    char        param[96];                         /* the field, such as messages[2].content[0].type; "": none */
    char        message[ERROR_TEXT];
    int64_t     n_prompt, n_ctx;                   /* of context_length_exceeded: also fields of the error; else 0 */
} HttpError;

/* Fills e and returns false. param NULL: none. type follows from the status: 400 invalid_request_error, 401 authentication_error, 403
 * permission_error, 429 rate_limit_error, 501 not_supported_error, 503 unavailable_error, other 5xx server_error. */
bool http_fail(HttpError *e, int status, const char *code, const char *param, const char *format, ...) __attribute__((format(printf, 5, 6)));
/* The refusal of a prompt that does not fit, in the words that each dialect's clients look for. Returns false. */
bool http_fail_context(HttpError *e, Dialect d, int64_t n_prompt, int64_t n_ctx);

enum { THINK_OFF, THINK_ON, THINK_AUTO };          /* auto: the template decides (enable_thinking is not passed) */
typedef enum { EFFORT_LOW, EFFORT_MEDIUM, EFFORT_HIGH, EFFORT_XHIGH, EFFORT_MAX, EFFORTS } Effort;

/* How the stored items of an earlier response are found; both return a new reference or NULL. */
typedef struct {
    void *ud;
    json_t *(*response)(void *ud, const char *id); /* all items of a response's input and output, in order */
    json_t *(*item)(void *ud, const char *id);     /* one item by its id */
} RequestLookup;

/* What holds where the request says nothing, and what a request may ask for at most. Texts outlive every Request. */
typedef struct {
    const char *model;                             /* the name that is echoed for a request without `model` */
    const char *const *alias; size_t n_alias;      /* other names, for strict_model */
    int32_t     vocab;                             /* token ids are below this */
    rt_sampling sampling;                          /* bias unused */
    int64_t     max_tokens;                        /* -1: to the end of the context */
    int64_t     responses_max_tokens;              /* the same for Responses, where clients send no limit (spec 8.5) */
    int64_t     max_tokens_limit;                  /* 0: none */
    int32_t     n_max;                             /* most choices of one request */
    int         thinking;                          /* THINK_... */
    int64_t     think_budget;                      /* -1: none */
    int64_t     effort[EFFORTS];                   /* reasoning tokens; 0: no bound for that effort */
    int64_t     reply_budget;                      /* tokens kept for the answer after the reasoning */
    int         preserve_thinking;                 /* THINK_...: reasoning of earlier turns stays in the prompt; auto: where tools are declared */
    bool        template_preserves;                /* ChatCaps.keeps_thinking: the template has such a variable */
    int         responses_reasoning;               /* SHOW_SUMMARY, SHOW_RAW or SHOW_HIDDEN */
    bool        strict_fields, strict_model, prefill_assistant;
    bool        no_logprobs, no_grammar;           /* the engine has none: 400 where they are asked for */
    RequestLookup lookup;                          /* response NULL: nothing is stored */
} RequestDefaults;

/* What of the transport matters; any may be NULL. */
typedef struct { const char *anthropic_beta; } RequestHeaders;

/* One prompt of Completions: text of n bytes, or, where text is NULL, ids. */
typedef struct { const char *text; size_t n; int32_t *ids; size_t n_ids; } RequestPrompt;

/* A bias on the token id, or, where text is not NULL, on every token of that text. add -INFINITY: forbidden. */
typedef struct { int32_t id; const char *text; size_t n; float add; } RequestBias;

/* A declared function. name is what the model reads and writes; the client's call has wire_name, in wire_namespace if not NULL, and for
 * TOOL_CUSTOM one text, the argument `input`. TOOL_SHELL: Responses' local_shell, whose arguments are its action. strict: they are always valid. */
typedef enum { TOOL_FUNCTION, TOOL_CUSTOM, TOOL_SHELL } ToolKind;
typedef struct { ToolKind kind; const char *name, *wire_name, *wire_namespace; bool strict; } RequestTool;

typedef enum { CALL_AUTO, CALL_NONE, CALL_REQUIRED, CALL_NAMED } CallChoice;
typedef enum { CONSTRAINT_NONE, CONSTRAINT_SCHEMA, CONSTRAINT_GRAMMAR } ConstraintKind;
/* How reasoning is shown. Chat: HIDDEN or RAW. Responses: HIDDEN, HANDLE (an empty item with the opaque handle), SUMMARY, RAW. Messages:
 * HANDLE (display "omitted") or RAW. */
enum { SHOW_HIDDEN, SHOW_HANDLE, SHOW_SUMMARY, SHOW_RAW };

/* Never changed after request_read; may be read from several threads. Texts live as long as it does. */
typedef struct {
    Dialect dialect;
    const char *model;                             /* as it was asked for; the answer echoes it */
    bool stream, include_usage, return_progress, return_tokens, return_drafted, timings_per_token;

    /* The conversation (not Completions): what ChatRequest wants. handles has one element per message: null, or the opaque handle that the
     * client sent back with this assistant turn (spec 12.3). tools NULL: none. */
    json_t *messages, *handles, *tools, *kwargs;
    RequestTool *tool; size_t n_tool;              /* one per element of tools */
    CallChoice call_choice; const char *call_name; /* of CALL_NAMED: the model's name of it */
    bool parallel_calls;
    bool continue_final;                           /* render the last (assistant) message open and go on with it */

    /* Completions */
    RequestPrompt *prompt; size_t n_prompt;
    bool echo, parse_special, show_special;

    rt_sampling sampling;                          /* bias unused, seed only if has_seed; max_tokens unused */
    bool has_seed, ignore_eos;
    RequestBias *bias; size_t n_bias;
    const char **stop; size_t n_stop;
    int32_t n;                                     /* choices per prompt */
    int64_t max_tokens;                            /* -1: to the end of the context; 0: the prompt only. Not yet clamped to the context. */
    bool logprobs; int32_t top_logprobs;

    ConstraintKind constraint;                     /* for the text, after reasoning; never inside a call */
    json_t *schema; const char *grammar;
    const char *constraint_field;                  /* for messages: where it was given */

    int thinking;                                  /* THINK_... */
    int64_t think_budget;                          /* reasoning tokens at most; -1: no bound */
    int64_t reply_budget;                          /* with a bound: reasoning also ends when only so many tokens are left */
    const char *effort;                            /* as given, NULL: none */
    int  show_reasoning;                           /* SHOW_... */
    bool think_inline;                             /* reasoning with its markers is part of the text */
    bool reason_handle;                            /* Responses: encrypted_content is asked for */
    bool beta_context_window;                      /* Messages: model_context_window_exceeded may be said */

    bool cached;                                   /* false: what was computed before is not used, nor this for what comes after */
    int32_t spec_budget;                           /* 0: plain decoding; anything else: as the server does it */

    json_t *ignored;                               /* names of fields that had no effect; an empty list: none */

    /* Responses */
    bool store;                                    /* keep it for previous_response_id */
    json_t *items;                                 /* the whole input as items, those of the previous response first; else NULL */
    const char *previous_response;                 /* NULL: none */
    json_t *body;                                  /* the request itself, for what an answer echoes; holds the texts */
    json_t *owned;                                 /* texts that are not the body's */
} Request;

/* body: any JSON value (its reference stays the caller's). True: *out is the caller's (request_free). False: *e says why, *out is NULL. */
bool request_read(Request **out, Dialect d, json_t *body, const RequestHeaders *h, const RequestDefaults *defaults, HttpError *e);
void request_free(Request *q);                     /* NULL is fine */
/* The declared tool that the model calls by this name; NULL: none. */
const RequestTool *request_tool(const Request *q, const char *name, size_t n);

#endif
