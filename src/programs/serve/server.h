/* server.h - what the parts of `ratoon serve` share. Everything below "after loading" is written before the state becomes ready and read
 * by all threads afterwards.
 *
 *     HTTP thread ── routes ──▶ tasks ── workers (2) ──▶ jobs ── engine thread ──▶ exchanges
 *       plain.c                  queue.c  prepare.c        queue.c  runner.c, run.c        http.c
 */
#ifndef RATOON_SERVE_SERVER_H
#define RATOON_SERVE_SERVER_H

#include <stdatomic.h>

#include "programs/program.h"
#include "programs/serve/cache.h"
#include "programs/serve/http.h"
#include "programs/serve/metrics.h"
#include "text/chat_prompt.h"
#include "text/reply.h"

/* LOADING: the port is open, answers are 503. DRAINING: no new requests, those that run have a while. */
typedef enum { SERVER_LOADING, SERVER_READY, SERVER_DRAINING } ServerState;

typedef struct Server Server;
typedef struct Queue Queue;
typedef struct Forms Forms;
typedef struct Store Store;
typedef struct Replay Replay;
typedef struct Runner Runner;

struct Server {
    Options     o;                                 /* with every default filled in */
    Program     p;                                 /* its session and step are not used: the engine thread has its own */
    Http       *http;
    Queue      *queue;
    Metrics    *metrics;
    _Atomic int state;                             /* ServerState */
    _Atomic int loaded;                            /* per mille */
    atomic_bool stop;                              /* the engine thread ends as soon as it can */
    int64_t     started;                           /* seconds since 1970 */
    char        name[256];                         /* of the model */
    const char *names[TEXTS_MAX + 1]; int32_t n_names;             /* and its aliases */
    /* after loading */
    ChatPrompt *chat; char chat_trouble[512];      /* NULL: why there is none */
    ReplyStyle  style;
    RequestDefaults defaults;
    Forms      *forms;
    Cache      *cache;                             /* NULL: off */
    Store      *store;
    Replay     *replay;
    Runner *_Atomic runner;
    char       *identity;
    int32_t     vocab, ctx;
    size_t      longest;                           /* bytes of a token at most */
    int64_t     model_time;                        /* the file's, seconds since 1970 */
};

/* Unguessable bytes, as answer.h wants them. */
void server_random(void *ud, void *out, size_t n);

#endif
