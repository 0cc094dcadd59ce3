/* job.h - a request for text on its way: read by a worker, waiting in line, run by the engine thread. A job belongs to one of these at a
 * time; only its `cancel` may be touched by others.
 *
 *     READING ──▶ QUEUED ──▶ PREFILL ──▶ DECODE ──▶ over            cancelled at any place, by whoever finds out
 *     worker      line       engine thread
 */
#ifndef RATOON_SERVE_JOB_H
#define RATOON_SERVE_JOB_H

#include "programs/serve/answer.h"
#include "programs/serve/forms.h"
#include "programs/serve/places.h"
#include "programs/serve/server.h"
#include "text/reply.h"

typedef enum { CANCEL_NONE, CANCEL_GONE, CANCEL_STALLED, CANCEL_LATE, CANCEL_ASKED, CANCEL_SHUTDOWN } CancelWhy;

typedef struct {
    int32_t *t, n;                                 /* tokens */
    char    *text; size_t n_text;                  /* for `echo`, and for the decoder, which looks at its end; may be NULL */
    uint64_t key[2];                               /* of a conversation: replay_key */
    size_t   opening;                              /* of a conversation: where in the text the beginning of the answer is */
    Place    place[RT_MARKS]; int32_t n_place;     /* where it is to be remembered */
} JobPrompt;

/* What a choice's text has to be, from where its reasoning is over: nothing, one form, or a forced call around one (reply_tools.h); HELD: free
 * text in which calls are held to their form. A form may be followed by that. */
typedef enum { SHAPE_FREE, SHAPE_WAITS, SHAPE_FORM, SHAPE_HELD, SHAPE_OVER } Shape;
typedef enum { CHOICE_WAITING, CHOICE_RUNNING, CHOICE_DONE } ChoiceState;

/* One of the answers of a job, in a session while it runs. */
typedef struct {
    struct Job *job;
    JobPrompt  *prompt;
    int32_t     index, slot;
    ChoiceState state;
    bool        noted;                             /* the session's prompt is this choice's */
    bool        reads;                             /* it is not yet computed */
    Reply      *reply;
    Shape       shape;
    GrammarText *text, *held;                      /* of SHAPE_FORM, of SHAPE_HELD */
    int32_t     limit;                             /* tokens at most, those that were forced among them */
    bool        to_context;                        /* the limit is the context's end */
    int32_t     fed;                               /* tokens given to the decoder */
    int32_t    *token, cap_token;                  /* they, for the watchdog and for replay */
    int32_t     next_place, done, saved;           /* of the places; tokens of the prompt that are computed, remembered */
    bool        forced_close;                      /* the reasoning was ended by its budget */
    uint64_t    seed;
    rt_stats    past;                              /* sums over the prompts of this choice that were ended by forced tokens */
    double      first_token, last_token;
    AnswerEnd   end;
    ReplySummary summary;
} Choice;

typedef struct Job Job;
struct Job {
    Job        *next;                              /* in the engine's line */
    Job        *before, *after;                    /* in the queue's list of all jobs */
    Server     *server;
    Exchange   *x;
    Request    *q;
    Answer     *answer;
    JobPrompt  *prompt; int32_t n_prompt;
    Choice     *choice; int32_t n_choice, n_done, n_started;
    Form       *form, *calls;                      /* NULL: none; calls: of SHAPE_HELD */
    int32_t     call_marker;                       /* the token that opens a call instead of the form; -1: none */
    rt_bias     bias[300]; int32_t n_bias;
    char        handle[96];                        /* of this turn, for clients that bring it back; "": none */
    _Atomic int cancel;                            /* CancelWhy */
    double      arrived, began, deadline;          /* deadline 0: none */
    double      written, counted;                  /* when the client last got a byte, and an event that it counts */
    bool        opened, streaming;                 /* answer_open was called; bytes of a stream may be written */
    AnswerUsage usage;
};

void job_free(Job *j);                             /* releases its exchange too */

/* ---- the queue ---- */

Queue *queue_new(int32_t capacity);
void   queue_free(Queue *q);
void   queue_close(Queue *q);                      /* workers end when nothing is left to read */

/* Work for the two workers; x is kept until run has returned. False: out of memory. */
bool   queue_task(Queue *q, void (*run)(Server *s, Exchange *x), Server *s, Exchange *x);
bool   queue_work(Queue *q);                       /* waits for one and runs it; false: closed */

/* A place in line, taken before the request is read; false: there is none. Given back by queue_leave, which a job does when it starts or
 * ends before. */
bool   queue_enter(Queue *q);
void   queue_leave(Queue *q);
int32_t queue_waiting(Queue *q);

void   queue_put(Queue *q, Job *j);                /* read: it waits for the engine thread */
Job   *queue_get(Queue *q);                        /* engine thread: the next new one; NULL: none */
void   queue_remove(Queue *q, Job *j);             /* engine thread: it is over; what may be freed now */
bool   queue_cancel(Queue *q, const char *id, CancelWhy why);      /* by the id of its answer; false: there is no such job */
void   queue_wake(Queue *q);
void   queue_wait(Queue *q, double seconds);       /* engine thread: until there is something new */

/* ---- prepare.c: what the workers do ---- */

void prepare_job(Server *s, Exchange *x);          /* of the four dialects; has entered the queue */
/* The tokens of a conversation's prompt as a request would have them; a count for the answer of count_tokens and its kin. */
void prepare_count(Server *s, Exchange *x);
void prepare_template(Server *s, Exchange *x);
/* Reads the body as JSON; false: answered. */
bool prepare_json(json_t **out, Exchange *x);

#endif
