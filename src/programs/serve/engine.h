/* engine.h - the one thread that owns the sessions. It steps all requests that run together, one pass at a time; between passes new ones
 * join, cancelled ones leave, and every stream gets what the pass brought. A pass reads a chunk of one prompt at most, the prompts taking
 * turns, and every text that is being written grows in each pass.
 *
 * While a pass runs the same thread is called back after every layer: there it looks whether clients are still there and keeps streams
 * alive. It breaks a pass off only if nobody is left who wants it, or if its prompt chunk, the long part of it, was for somebody who has
 * gone; the others lose the time since the pass began and nothing else, since a pass that is broken off has changed nothing. */
#ifndef RATOON_SERVE_ENGINE_H
#define RATOON_SERVE_ENGINE_H

#include "programs/serve/server.h"

/* Makes the sessions and the step object. False: why, said. */
bool engine_open(Engine **out, Server *s);
void engine_close(Engine *e);
void engine_run(Engine *e);                        /* the thread: until server->stop and nothing is left to end */
bool engine_progress(Engine *e);                   /* after a layer of a pass; false: break it off */

typedef struct { int32_t running, used, jobs; } EngineNow;         /* sessions that run, tokens that all hold, requests not over */
void engine_now(const Engine *e, EngineNow *out);  /* any thread */

#endif
