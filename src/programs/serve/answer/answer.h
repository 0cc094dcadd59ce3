/* answer.h - the encoder of one request's answer. The model's output goes in as events of reply.h, and the dialect's
 * bytes come out: server-sent events while it runs, or one JSON body at its end. Pure: it has no sockets, clock or
 * randomness, so the bytes depend only on the calls. Each dialect is a table of functions (answer_impl.h); answer.c
 * does what they share.
 *
 *     answer_new ─▶ (answer_keepalive)* ─▶ answer_usage, answer_open ─▶ (answer_keepalive)* ─▶ per choice:
 *     (answer_token | answer_event)*
 *         answer_end ─▶ ... ─▶ answer_usage, answer_close                       answer_fail at any place ends it
 *
 * After any call answer_take gives what is to be sent. Deltas of one kind are joined until then: one call per pass is
 * one event per pass. Only one thread at a time. */
#ifndef RATOON_PROGRAMS_SERVE_ANSWER_ANSWER_H
#define RATOON_PROGRAMS_SERVE_ANSWER_ANSWER_H

#include "programs/serve/request/request.h"
#include "text/reply/reply.h"

typedef struct Answer Answer;

typedef struct {
    const Request *request;                       /* must outlive the answer */
    const char *version;                          /* of the program, for system_fingerprint */
    const char *request_id;                       /* X-Request-Id, for errors of Messages; copied */
    int64_t     created;                          /* seconds since 1970 */
    /* Fills n random bytes; an id is the dialect's prefix and 12 of them in hex. Called when an id is needed, in the
     * order of the output. */
    void (*random)(void *ud, void *out, size_t n);
    void *ud;
    const char *handle;                           /* opaque handle of this turn's reasoning (spec 12.3); NULL: none;
                                                   * copied */
    uint64_t    seed; bool show_seed;             /* seed drawn for a request without one */
} AnswerOptions;

/* Figures of the whole request so far. prompt counts what the client sent; cached: how much of it came from the cache.
 * completion counts as spec 5 says: no end token, but reasoning, calls and forced tokens. Times in milliseconds;
 * drafted and accepted rows, blocks and steps as in rt_stats. */
typedef struct {
    int64_t prompt, cached, cache_write, completion, reasoning;
    double  prompt_ms, predicted_ms;
    int64_t drafted, accepted;
    int64_t blocks, steps;                         /* of models that denoise; else 0 */
} AnswerUsage;

typedef enum { FINISH_STOP, FINISH_STOP_SEQUENCE, FINISH_LENGTH, FINISH_CONTEXT, FINISH_CALLS, FINISH_DEGENERATE,
               FINISH_CANCELLED } FinishReason;
typedef struct {
    FinishReason reason;
    const char *stop;                              /* for FINISH_STOP_SEQUENCE: the stop string; else NULL */
    bool    reason_open;                           /* the text ended inside the reasoning */
    bool    forced_close;                          /* the reasoning was ended by its budget */
    bool    call_cut;                              /* the last call is incomplete (ReplySummary) */
    int64_t tokens, reason_tokens;                 /* of this choice */
} AnswerEnd;

/* A token and its alternatives, most likely first. logprob NAN: none (the first token of an echoed prompt). drafted: it
 * was guessed, and the target accepted it. */
typedef struct { const char *bytes; size_t n; double logprob; int32_t id; } AnswerAlternative;
typedef struct {
    int32_t id;
    bool drafted;
    const char *bytes;
    size_t n;
    double logprob;
    const AnswerAlternative *top;
    int32_t n_top;
} AnswerToken;

Answer *answer_new(const AnswerOptions *o);        /* NULL: out of memory */
void    answer_free(Answer *a);
const char *answer_id(const Answer *a);            /* of the response: chatcmpl-..., cmpl-..., resp_..., msg_... */
const char *answer_type(const Answer *a);          /* media type of the stream */

/* Keeps the connection alive. Before answer_open it sends a comment, afterwards whatever the dialect has (spec 1.1): a
 * comment with the prompt's progress, a ping, or a prompt_progress chunk if return_progress is set; event: an event
 * that clients count (response.in_progress of Responses). Does nothing if the answer is not streamed. */
void answer_keepalive(Answer *a, int64_t processed, int64_t total, double ms, bool event);
/* sets the figures; before answer_open: those of the prompt */
void answer_usage(Answer *a, const AnswerUsage *u);
void answer_open(Answer *a);
/* Choices are numbered 0 .. n * prompts - 1. Several may run at once in Completions and Chat; others have only one. */
/* for `echo`: the prompt's text; it owns the tokens given so far */
void answer_echo(Answer *a, int32_t choice, const char *bytes, size_t n);
/* Adds a generated token, before the event that it causes; only needed for logprobs, return_tokens or return_drafted.
 * Copied. ReplyEvent.from and .tokens tell which of them belong to the text. */
void answer_token(Answer *a, int32_t choice, const AnswerToken *t);
void answer_event(Answer *a, int32_t choice, const ReplyEvent *e);
/* What the choice's next block would be if this step were its last: an event of its own, if the request wants drafts.
 * It is no part of the answer. */
void answer_draft(Answer *a, int32_t choice, const char *bytes, size_t n, int32_t step);
void answer_end(Answer *a, int32_t choice, const AnswerEnd *e);
void answer_close(Answer *a, int64_t now);         /* after every choice has ended */
/* Ends the answer with an error: an event if the stream has begun, else an error body (the caller sends its status). */
void answer_fail(Answer *a, const HttpError *e, int64_t now);

/* The bytes to send since the last call, valid until the next call of any function. n 0: nothing yet. NULL: memory ran
 * out at some point, and the answer cannot continue. */
const char *answer_take(Answer *a, size_t *n);
bool answer_done(const Answer *a);                 /* closed or failed */

/* For exact replay (spec 12.1): the visible text of a choice, malloc'd and NUL-terminated; NULL: out of memory, now or
 * before. */
char *answer_visible(const Answer *a, int32_t choice, size_t *n);
/* Calls of a choice, in order: the id, and the declared name of the tool (malloc'd). NULL: no such call, or out of
 * memory. */
const char *answer_call_id(const Answer *a, int32_t choice, int32_t call);
char *answer_call_name(const Answer *a, int32_t choice, int32_t call);
/* The complete response object of Responses, after its end (what GET /v1/responses/{id} shows); otherwise NULL. Valid
 * until answer_free. */
const char *answer_response(const Answer *a, size_t *n);

/* The body of an error in the dialect's form, to be freed by the caller; NULL: out of memory. request_id: only for
 * Messages, may be NULL. */
char *http_error_body(Dialect d, const HttpError *e, const char *request_id, size_t *n);

#endif
