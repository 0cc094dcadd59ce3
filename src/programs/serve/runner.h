/* runner.h - the one thread that owns the sessions. It steps all requests that run together, one pass at a time; between passes new ones
 * join, cancelled ones leave, and every stream gets what the pass brought. A pass reads a chunk of one prompt at most, the prompts taking
 * turns, and every text that is being written grows in each pass.
 *
 * While a pass runs the same thread is called back after every layer: there it looks whether clients are still there and keeps streams
 * alive. It breaks a pass off only if nobody is left who wants it, or if its prompt chunk, the long part of it, was for somebody who has
 * gone; the others lose the time since the pass began and nothing else, since a pass that is broken off has changed nothing. */
#ifndef RATOON_SERVE_RUNNER_H
#define RATOON_SERVE_RUNNER_H

#include "programs/serve/server.h"

/* Makes the sessions and the step object. False: why, said. */
bool runner_open(Runner **out, Server *s);
void runner_close(Runner *e);
void runner_run(Runner *e);                        /* the thread: until server->stop and nothing is left to end */
bool runner_progress(Runner *e);                   /* after a layer of a pass; false: break it off */

typedef struct { int32_t running, used, jobs; } RunnerNow;         /* sessions that run, tokens that all hold, requests not over */
void runner_now(const Runner *e, RunnerNow *out);  /* any thread */

/* A session as it was before the present pass. held: tokens in it; the rest is of the request that runs in it. read: of its prompt; left: that
 * it may still generate; accept_length: 0 before the first decoding pass. */
typedef struct {
    bool    busy, reads, stream;
    int32_t held, prompt, read, generated, left;
    double  accept_length;
    char    id[64], model[513];                    /* of the answer; as the client named it */
} RunnerSlot;
enum { RUNNER_SLOTS_MAX = 64 };
int32_t runner_slots(Runner *e, RunnerSlot out[RUNNER_SLOTS_MAX]); /* any thread; how many there are */

#endif
