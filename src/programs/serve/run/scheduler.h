/* scheduler.h - the one thread that owns the sessions. It steps all running requests together, one pass at a time;
 * between passes new ones join, cancelled ones leave, and every stream gets the tokens of the pass. A pass reads a
 * chunk of at most one prompt (prompts take turns), and every request that is decoding advances in each pass.
 *
 * During a pass the same thread is called back after every layer: it then checks whether clients are still connected
 * and keeps streams alive. It aborts a pass only if no client is left that wants it, or if its prompt chunk, the long
 * part of it, was for a client that has gone; the others lose only the time since the pass began, since an aborted pass
 * changes nothing. */
#ifndef RATOON_PROGRAMS_SERVE_RUN_SCHEDULER_H
#define RATOON_PROGRAMS_SERVE_RUN_SCHEDULER_H

#include "programs/serve/server.h"

/* Creates the sessions and the step object. Returns false after reporting an error. */
bool scheduler_open(Scheduler **out, Server *s);
void scheduler_close(Scheduler *e);
void scheduler_run(Scheduler *e);                  /* body of the thread: ends after server->stop, with its work */
bool scheduler_progress(Scheduler *e);             /* called after each layer of a pass; false: abort the pass */

/* running sessions, tokens held by all sessions, requests in progress */
typedef struct { int32_t running, used, jobs; } SchedulerNow;
void scheduler_now(const Scheduler *e, SchedulerNow *out); /* any thread */

/* A session as it was before the current pass. held: tokens in it; the rest is about the request that runs in it. read:
 * tokens of its prompt that are read; left: tokens it may still generate; accept_length: 0 before the first decoding
 * pass. */
typedef struct {
    bool    busy, reads, stream;
    int32_t held, prompt, read, generated, left;
    double  accept_length;
    int32_t owner;                                 /* exchange_owner of the request */
    char    id[64], model[513];                    /* of the answer; as the client named it */
} SchedulerSlot;
enum { SCHEDULER_SLOTS_MAX = 64 };
int32_t scheduler_slots(Scheduler *e, SchedulerSlot out[SCHEDULER_SLOTS_MAX]); /* any thread; returns how many */

#endif
