/* request.h - what a client asks for, in one form for all dialects. It turns the body's JSON into a Request or an
 * HttpError: the conversation as messages of chat_prompt.h, tools as declared functions, and every number checked
 * against one table of fields (fields.h). Pure: no sockets, engine or clock, and no state between requests.
 *
 * A field is honoured, refused with its name (400), or named in `ignored`, which the answer shows. */
#ifndef RATOON_PROGRAMS_SERVE_REQUEST_REQUEST_H
#define RATOON_PROGRAMS_SERVE_REQUEST_REQUEST_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "ratoon.h"

/* OpenAI's Completions, Chat Completions and Responses, Anthropic's Messages, llama.cpp's /completion and /infill,
 * Ollama's /api/chat and /api/generate. */
typedef enum { DIALECT_COMPLETIONS, DIALECT_CHAT, DIALECT_RESPONSES, DIALECT_MESSAGES, DIALECT_LLAMA, DIALECT_INFILL,
               DIALECT_OLLAMA_CHAT, DIALECT_OLLAMA_GENERATE, DIALECTS } Dialect;
bool is_ollama(Dialect d);
bool is_llama(Dialect d);                          /* its own endpoints: /completion, /infill */

/* A refusal. type and code are those of OpenAI's error object (static strings; code NULL: none); the Anthropic form
 * derives its type from status. http_error_body (answer.h) writes it in the dialect's form. */
typedef struct {
    int         status;                            /* 400 ... 503; 0: no error */
    const char *type, *code;
    char        param[96];                         /* the field, such as messages[2].content[0].type; "": none */
    char        message[ERROR_TEXT];
    int64_t     n_prompt, n_ctx;                   /* for context_length_exceeded: also fields of the error; else 0 */
} HttpError;

/* Fills e and returns false. param NULL: none. type follows from the status: 400 invalid_request_error, 401
 * authentication_error, 403 permission_error, 429 rate_limit_error, 501 not_supported_error, 503 unavailable_error,
 * other 5xx server_error. */
bool http_fail(HttpError *e, int status, const char *code, const char *param, const char *format,
               ...) __attribute__((format(printf, 5, 6)));
/* Refuses a prompt that does not fit, in the words that each dialect's clients look for. Returns false. */
bool http_fail_context(HttpError *e, Dialect d, int64_t n_prompt, int64_t n_ctx);

enum { THINK_OFF, THINK_ON, THINK_AUTO };          /* auto: the template decides (enable_thinking is not passed) */
typedef enum { EFFORT_LOW, EFFORT_MEDIUM, EFFORT_HIGH, EFFORT_XHIGH, EFFORT_MAX, EFFORTS } Effort;

/* Finds the stored items of an earlier response; both functions return a new reference or NULL. */
typedef struct {
    void *ud;
    json_t *(*response)(void *ud, const char *id); /* all input and output items of a response, in order */
    json_t *(*item)(void *ud, const char *id);     /* one item by its id */
} RequestLookup;

/* Defaults and limits of requests. The strings outlive every Request. */
typedef struct {
    const char *model;                            /* the name echoed for a request without `model` */
    const char *const *alias; size_t n_alias;     /* other names, for strict_model */
    int32_t     vocab;                            /* token ids are less than this */
    rt_sampling sampling;                         /* bias unused */
    int64_t     max_tokens;                       /* -1: to the end of the context */
    int64_t     responses_max_tokens;             /* the same for Responses, whose clients send no limit (spec 8.5) */
    int64_t     max_tokens_limit;                 /* 0: none */
    int32_t     n_max;                            /* most choices per request */
    int         thinking;                         /* THINK_... */
    int64_t     think_budget;                     /* -1: none */
    int64_t     effort[EFFORTS];                  /* reasoning tokens; 0: no bound for that effort */
    int64_t     reply_budget;                     /* tokens reserved for the answer after the reasoning */
    int         preserve_thinking;                /* THINK_...: keep reasoning of earlier turns in the prompt; auto: if
                                                   * tools are declared */
    bool        template_preserves;               /* ChatCaps.keeps_thinking: the template has a variable for that */
    int         responses_reasoning;              /* SHOW_SUMMARY, SHOW_RAW or SHOW_HIDDEN */
    bool        strict_fields, strict_model, prefill_assistant;
    bool        denoises;                         /* the model writes blocks by denoising (rt_diffusion): requests for
                                                   * what that has not get 400 */
    rt_diffusion diffusion;                       /* of such models */
    bool        no_tools, no_thinking;            /* the model's template shows none: named in `ignored` */
    bool        no_infill;                        /* the model has no tokens for that: such requests get 501 */
    RequestLookup lookup;                         /* response NULL: nothing is stored */
} RequestDefaults;

/* The headers that matter here; any may be NULL. */
typedef struct { const char *anthropic_beta; } RequestHeaders;

/* One prompt that is no conversation: a text of n bytes, or, if text is NULL, a list of texts and token ids, or token
 * ids alone if that is NULL too. */
typedef struct { const char *text; size_t n; const json_t *mixed; int32_t *ids; size_t n_ids; } RequestPrompt;

/* What is to be filled in lies between prefix and suffix and begins with the request's only prompt. extra: NULL or
 * [{text, filename}], other texts of the same project. */
typedef struct { bool is; const char *prefix, *suffix; size_t n_prefix, n_suffix; const json_t *extra; } RequestInfill;

/* A bias on the token id, or, if text is not NULL, on every token of that text. add -INFINITY: forbidden. */
typedef struct { int32_t id; const char *text; size_t n; float add; } RequestBias;

/* A declared function. name is what the model reads and writes; in the client's call it is wire_name, in wire_namespace
 * if not NULL. TOOL_CUSTOM has a single text argument, `input`. TOOL_SHELL: Responses' local_shell, whose arguments are
 * its action. strict: the arguments are always valid. */
typedef enum { TOOL_FUNCTION, TOOL_CUSTOM, TOOL_SHELL } ToolKind;
typedef struct { ToolKind kind; const char *name, *wire_name, *wire_namespace; bool strict; } RequestTool;

typedef enum { CALL_AUTO, CALL_NONE, CALL_REQUIRED, CALL_NAMED } CallChoice;
typedef enum { CONSTRAINT_NONE, CONSTRAINT_SCHEMA, CONSTRAINT_GRAMMAR, CONSTRAINT_REGEX } ConstraintKind;
/* How reasoning is shown. Chat: HIDDEN or RAW. Responses: HIDDEN, HANDLE (an empty item with the opaque handle),
 * SUMMARY, RAW. Messages: HANDLE (display "omitted") or RAW. */
enum { SHOW_HIDDEN, SHOW_HANDLE, SHOW_SUMMARY, SHOW_RAW };

/* Immutable after request_read, so several threads may read it. Strings live as long as the Request. */
typedef struct {
    Dialect dialect;
    const char *model;                             /* as requested; the answer echoes it */
    bool stream, include_usage, include_drafts, return_progress, return_tokens, return_drafted, timings_per_token;

    /* The conversation (if there is no prompt), as ChatRequest wants it. handles has one element per message: null, or
     * the opaque handle that the client sent back with this assistant turn (spec 12.3). tools NULL: none. */
    json_t *messages, *handles, *tools, *kwargs;
    RequestTool *tool; size_t n_tool;              /* one per element of tools */
    CallChoice call_choice; const char *call_name; /* for CALL_NAMED: the model's name of the tool */
    bool parallel_calls;
    bool continue_final;                           /* leave the last (assistant) message open and continue it */

    /* Instead of a conversation. */
    RequestPrompt *prompt; size_t n_prompt;
    RequestInfill infill;
    bool echo, parse_special, show_special;
    bool only_load;             /* Ollama: nothing is asked but whether the model is there */
    int32_t n_indent;           /* the text ends before a line that is indented less; 0: off */
    int64_t predict_ms;         /* the text ends with the line in which it has taken so long; 0 or less: off */
    const json_t *response_fields;                 /* llama.cpp: what of the last object is shown; NULL: all */

    rt_sampling sampling;       /* bias unused, seed only if has_seed; max_tokens unused */
    rt_diffusion diffusion;     /* of models that denoise; draft unused */
    bool has_seed, ignore_eos;
    RequestBias *bias; size_t n_bias;
    const char **stop; size_t n_stop;
    int32_t n;                  /* choices per prompt */
    int64_t max_tokens;         /* -1: to the end of the context; 0: only the prompt. Not yet clamped to the context. */
    bool logprobs; int32_t top_logprobs;

    ConstraintKind constraint;                     /* on the text after the reasoning; never inside a call */
    json_t *schema; const char *grammar;           /* grammar: also the text of a regular expression */
    const char *constraint_field;                  /* for messages: the field that set it */

    int thinking;                           /* THINK_... */
    int64_t think_budget;                   /* reasoning tokens at most; -1: no bound */
    int64_t reply_budget;                   /* if bounded: reasoning also ends when only this many tokens are left */
    const char *effort;                     /* as sent; NULL: none */
    int  show_reasoning;                    /* SHOW_... */
    bool think_inline;                      /* reasoning with its markers stays in the text */
    bool reason_handle;                     /* Responses: encrypted_content was requested */
    bool beta_context_window;               /* Messages: model_context_window_exceeded may be reported */

    bool cached;                        /* false: uses no cached state and leaves none for later requests */
    int32_t spec_budget;                /* 0: plain decoding; otherwise the server's choice */

    json_t *ignored;                               /* names of fields that had no effect; may be an empty list */

    /* Responses */
    bool store;                         /* keep the response for previous_response_id */
    json_t *items;                      /* the whole input as items, those of the previous response first; else NULL */
    const char *previous_response;      /* NULL: none */
    json_t *body;                       /* the request itself: echoed in answers, and owner of the strings */
    json_t *owned;                      /* strings that are not part of the body */
} Request;

/* body: any JSON value; the caller keeps its reference. On true the caller owns *out (request_free); on false *e says
 * why and *out is NULL. */
bool request_read(Request **out, Dialect d, json_t *body, const RequestHeaders *h, const RequestDefaults *defaults,
                  HttpError *e);
void request_free(Request *q);                     /* NULL is fine */
bool request_talks(const Request *q);              /* it has a conversation, and no prompt of its own */
/* Whether a client means the model of this name: Ollama's may add or leave out `:latest`. */
bool same_model(Dialect d, const char *given, const char *name);
/* The declared tool that the model calls by this name; NULL if there is none. */
const RequestTool *request_tool(const Request *q, const char *name, size_t n);

#endif
