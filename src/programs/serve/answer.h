/* answer.h - the encoder of one request's answer: what the model says goes in as events of reply.h, the dialect's bytes come out - server-sent
 * events while it runs, or one JSON body at its end. Pure: sockets, clock and randomness are elsewhere, so the bytes follow from the
 * calls alone. One table of functions per dialect (answer_impl.h); everything they share is done once, in answer.c.
 *
 *     answer_new ─▶ (answer_keepalive)* ─▶ answer_usage, answer_open ─▶ (answer_keepalive)* ─▶ per choice: (answer_token | answer_event)*
 *         answer_end ─▶ ... ─▶ answer_usage, answer_close                       answer_fail at any place ends it
 *
 * After any call answer_take gives what is to be sent. Deltas of one kind are joined until then: one call per pass is one event per pass.
 * Only one thread at a time. */
#ifndef RATOON_PROGRAMS_SERVE_ANSWER_H
#define RATOON_PROGRAMS_SERVE_ANSWER_H

#include "programs/serve/request.h"
#include "text/reply.h"

typedef struct Answer Answer;

typedef struct {
    const Request *request;                        /* outlives the answer */
    const char *version;                           /* of the program, for system_fingerprint */
    const char *request_id;                        /* X-Request-Id, for errors of Messages; copied */
    int64_t     created;                           /* seconds since 1970 */
    /* Fills n random bytes: ids are 12 of them in hex behind the dialect's prefix. Called when an id is needed, in the order of the output. */
    void (*random)(void *ud, void *out, size_t n);
    void *ud;
    const char *handle;                            /* the opaque handle of this turn's reasoning (spec 12.3); NULL: none is given out; copied */
    uint64_t    seed; bool show_seed;              /* the seed that was drawn for a request without one */
} AnswerOptions;

/* Figures of the whole request so far. prompt counts what the client sent, cached of which came from the cache; completion counts what
 * spec 5 says: no end token, but reasoning, calls and forced tokens. Milliseconds; drafted and accepted rows as in rt_stats. */
typedef struct {
    int64_t prompt, cached, cache_write, completion, reasoning;
    double  prompt_ms, predicted_ms;
    int64_t drafted, accepted;
} AnswerUsage;

typedef enum { FINISH_STOP, FINISH_STOP_SEQUENCE, FINISH_LENGTH, FINISH_CONTEXT, FINISH_CALLS, FINISH_DEGENERATE, FINISH_CANCELLED } FinishReason;
typedef struct {
    FinishReason reason;
    const char *stop;                              /* of FINISH_STOP_SEQUENCE: the stop string; else NULL */
    bool    reason_open;                           /* the text ended inside the reasoning */
    bool    forced_close;                          /* the reasoning was ended by its budget */
    bool    call_cut;                              /* the last call was closed for it (ReplySummary) */
    int64_t tokens, reason_tokens;                 /* of this choice */
} AnswerEnd;

/* A token and what else could have stood there, most likely first. logprob NAN: none (the first token of an echoed prompt). */
typedef struct { const char *bytes; size_t n; double logprob; } AnswerAlternative;
typedef struct { int32_t id; const char *bytes; size_t n; double logprob; const AnswerAlternative *top; int32_t n_top; } AnswerToken;

Answer *answer_new(const AnswerOptions *o);        /* NULL: out of memory */
void    answer_free(Answer *a);
const char *answer_id(const Answer *a);            /* of the response: chatcmpl-..., cmpl-..., resp_..., msg_... */

/* A sign of life. Before answer_open a comment, afterwards what the dialect has for it (spec 1.1): a comment with the prompt's progress, a
 * ping, or a prompt_progress chunk where return_progress asks for that; event: an event that clients count (response.in_progress of
 * Responses). Nothing where the answer is not streamed. */
void answer_keepalive(Answer *a, int64_t processed, int64_t total, double ms, bool event);
void answer_usage(Answer *a, const AnswerUsage *u);            /* the figures from now on; before answer_open: those of the prompt */
void answer_open(Answer *a);
/* Choices are numbered 0 .. n * prompts - 1. Several may run at once in Completions and Chat; Responses and Messages have one. */
void answer_echo(Answer *a, int32_t choice, const char *bytes, size_t n);      /* of `echo`: the prompt's text; it owns the tokens given so far */
/* Every generated token, before the event that it leads to; needed only if logprobs or return_tokens are asked for. Copied. Which of them
 * belong to the text is seen from ReplyEvent.from and .tokens. */
void answer_token(Answer *a, int32_t choice, const AnswerToken *t);
void answer_event(Answer *a, int32_t choice, const ReplyEvent *e);
void answer_end(Answer *a, int32_t choice, const AnswerEnd *e);
void answer_close(Answer *a, int64_t now);         /* after the end of every choice */
/* Ends the answer with an error: an event inside a stream that has begun, else the body of an error (the caller sends its status). */
void answer_fail(Answer *a, const HttpError *e, int64_t now);

/* What is to be sent: bytes since the last call, valid until the next call of any function. n 0: nothing yet. NULL: there was no memory
 * once, and the answer cannot go on. */
const char *answer_take(Answer *a, size_t *n);
bool answer_done(const Answer *a);                 /* closed or failed */

/* Ids of the calls of a choice, in order, for the exact replay (spec 12.1); NULL: there is no such call. */
const char *answer_call_id(const Answer *a, int32_t choice, int32_t call);
/* The whole response object of Responses after its end (what GET /v1/responses/{id} shows), NULL otherwise. Valid until answer_free. */
const char *answer_response(const Answer *a, size_t *n);

/* The body of an error in the dialect's shape, NULL: out of memory; the caller frees it. request_id: only for Messages, may be NULL. */
char *http_error_body(Dialect d, const HttpError *e, const char *request_id, size_t *n);

#endif
