/* job.h - a request for text in progress: read by a worker, waiting in the queue, run by the engine thread. Exactly one
 * of these owns the job at a time; others may only touch its `cancel`.
 *
 *     READING ──▶ QUEUED ──▶ PREFILL ──▶ DECODE ──▶ over            cancelled at any place, by whoever finds out
 *     worker      line       engine thread
 */
#ifndef RATOON_PROGRAMS_SERVE_RUN_JOB_H
#define RATOON_PROGRAMS_SERVE_RUN_JOB_H

#include "programs/serve/answer/answer.h"
#include "programs/serve/cache/cache_points.h"
#include "programs/serve/run/constraint.h"
#include "programs/serve/server.h"
#include "text/reply/reply.h"

typedef enum { CANCEL_NONE, CANCEL_GONE, CANCEL_STALLED, CANCEL_LATE, CANCEL_ASKED, CANCEL_SHUTDOWN } CancelWhy;

typedef struct {
    int32_t *t, n;                               /* tokens */
    char    *text; size_t n_text;                /* for `echo`, and for the decoder, which looks at its end; may be
                                                  * NULL */
    uint64_t key[2];                             /* for a conversation: replay_key */
    size_t   opening;                            /* for a conversation: offset in the text at which the answer begins */
    int32_t  history, shared;                    /* for a conversation, from its rendering: tokens before its opening,
                                                  * and before the user's first message; -1: unknown */
    bool     whole;                              /* and the user's next message leaves that part unchanged */
    CachePoint point[RT_MARKS]; int32_t n_point; /* where to save, ascending */
} JobPrompt;

/* What a choice's text must be once its reasoning is over: free, one constraint, or a forced call around one
 * (reply_tools.h). HELD: free text in which calls must follow their constraint; this may also follow a constraint. */
typedef enum { SHAPE_FREE, SHAPE_WAITS, SHAPE_CONSTRAINED, SHAPE_HELD, SHAPE_OVER } Shape;
typedef enum { CHOICE_WAITING, CHOICE_RUNNING, CHOICE_DONE } ChoiceState;

/* One of a job's answers, in a session while it runs. */
typedef struct {
    struct Job *job;
    JobPrompt  *prompt;
    int32_t     index, slot;
    ChoiceState state;
    bool        noted;                       /* the session's prompt is this choice's */
    bool        reads;                       /* its prompt is not yet computed */
    bool        scores;                      /* its prompt is being scored for `echo`, `done` tokens so far; happens
                                              * before the session gets the prompt */
    Reply      *reply;
    Shape       shape;
    GrammarText *text, *held;                /* for SHAPE_CONSTRAINED and SHAPE_HELD */
    int32_t     limit;                       /* most tokens, forced ones included */
    bool        to_context;                  /* the limit is the end of the context */
    int32_t     fed;                         /* tokens given to the decoder */
    int32_t    *token; size_t cap_token;     /* those tokens, for the watchdog and for replay */
    int32_t     next_point, done, saved;     /* index of the next cache point; prompt tokens computed, saved */
    bool        forced_close;                /* the reasoning was ended by its budget */
    bool        lines_over;                  /* the text ended as n_indent or t_max_predict_ms say */
    int32_t     indent;                      /* of the line so far; -1: it has begun, or is the first one */
    uint64_t    seed;
    rt_stats    past;                        /* sums over prompts of this choice that forced tokens ended */
    double      first_token, last_token;
    AnswerEnd   end;
    ReplySummary summary;
} RunChoice;

typedef struct Job Job;
struct Job {
    Job        *next;                              /* in the engine's queue */
    Job        *before, *after;                    /* in the queue's list of all jobs */
    Server     *server;
    Exchange   *x;
    Request    *q;
    Answer     *answer;
    JobPrompt  *prompt; int32_t n_prompt;
    RunChoice  *choice; int32_t n_choice, n_done, n_started;
    Constraint *constraint, *calls;                /* NULL: none; calls: for SHAPE_HELD */
    int32_t     call_marker;                       /* token that opens a call instead of the text; -1: none */
    rt_bias     bias[300]; int32_t n_bias;
    char        handle[96];                        /* of this turn, for clients that send it back; "": none */
    _Atomic int cancel;                            /* CancelWhy */
    double      arrived, began, deadline;          /* deadline 0: none */
    rt_expert_stats experts;                       /* what experts had done when it began */
    double      written, counted;                  /* when the client last got a byte, and an event that it counts */
    bool        opened, streaming;                 /* answer_open was called; stream bytes may be written */
    AnswerUsage usage;
};

void job_free(Job *j);                             /* also releases its exchange */

/* ---- the queue ---- */

Queue *queue_new(int32_t capacity);
void   queue_free(Queue *q);
void   queue_close(Queue *q);                      /* workers end when nothing is left to read */

/* Work for the two workers; x is kept until run returns. Returns false if out of memory. */
bool   queue_task(Queue *q, void (*run)(Server *s, Exchange *x), Server *s, Exchange *x);
/* Work that only needs text (tokens, counts, templates): run one at a time and only when no request waits to be read;
 * as many tasks as requests may wait. */
typedef enum { SIDE_TAKEN, SIDE_FULL, SIDE_NO_MEMORY } SideTask;
SideTask queue_side(Queue *q, void (*run)(Server *s, Exchange *x), Server *s, Exchange *x);
bool   queue_work(Queue *q);                       /* waits for a task and runs it; false: closed */

/* Reserves a place in the queue before the request is read; returns false if the queue is full. queue_leave gives it
 * back; a job does that when it starts or ends earlier. */
bool   queue_enter(Queue *q);
void   queue_leave(Queue *q);
int32_t queue_waiting(Queue *q);

void   queue_put(Queue *q, Job *j);                /* it has been read and waits for the engine thread */
Job   *queue_get(Queue *q);                        /* engine thread: the next new job; NULL: none */
void   queue_remove(Queue *q, Job *j);             /* engine thread: the job is over; frees what may be freed now */
/* Cancels by the id of the answer or the request; returns false if this owner (exchange_owner) has no such job. */
bool   queue_cancel(Queue *q, int32_t owner, const char *id, CancelWhy why);
void   queue_wake(Queue *q);
void   queue_wait(Queue *q, double seconds);       /* engine thread: sleeps until there is something new */

/* The prompt of a text that is to be filled in: tokens of other texts, of what stands before the gap and behind it,
 * each as much as fits. infill.c. */
bool infill_prompt(JobPrompt *p, const Server *s, const Request *q, HttpError *e);

/* ---- prepare.c: what the workers do ---- */

void prepare_job(Server *s, Exchange *x);          /* for all dialects; the request has entered the queue */
/* Counts the tokens that a conversation's prompt would have as a request, and answers count_tokens and similar
 * endpoints. */
void prepare_count(Server *s, Exchange *x);
void prepare_template(Server *s, Exchange *x);
/* Parses the body as JSON; returns false after answering with an error. */
bool prepare_json(json_t **out, Exchange *x);

#endif
