/* server.h - what the parts of `ratoon serve` share. Everything below "after loading" is written before the state
 * becomes ready and read by all threads afterwards.
 *
 *     HTTP thread ── routes ──▶ tasks ── workers (2) ──▶ jobs ── engine thread ──▶ exchanges
 *       routes.c                 queue.c  prepare.c        queue.c  scheduler.c, choice.c  http.c
 */
#ifndef RATOON_PROGRAMS_SERVE_SERVER_H
#define RATOON_PROGRAMS_SERVE_SERVER_H

#include <stdatomic.h>

#include "programs/program.h"
#include "programs/serve/cache/cache.h"
#include "programs/serve/http/http.h"
#include "programs/serve/metrics.h"
#include "text/chat_prompt.h"
#include "text/reply/reply.h"
#include "text/tokenizer/tokenizer.h"

/* LOADING: the port is open, answers are 503. DRAINING: no new requests; running ones get some time to finish. */
typedef enum { SERVER_LOADING, SERVER_READY, SERVER_DRAINING } ServerState;

typedef struct Server Server;
typedef struct Queue Queue;
typedef struct Constraints Constraints;
typedef struct Store Store;
typedef struct Replay Replay;
typedef struct Scheduler Scheduler;

struct Server {
    Options     o;                              /* with every default filled in */
    Program     p;                              /* its session and step are unused: the engine thread has its own */
    Http       *http;
    Queue      *queue;
    Metrics    *metrics;
    _Atomic int state;                          /* ServerState */
    _Atomic int loaded;                         /* per mille */
    atomic_bool stop;                           /* the engine thread ends as soon as it can */
    atomic_bool failed;                         /* loading failed, or the device is lost: reported, the server ends */
    int64_t     started;                        /* seconds since 1970 */
    char        name[256];                      /* name of the model */
    const char *names[TEXTS_MAX + 1]; int32_t n_names;             /* and its aliases */
    /* after loading */
    ChatPrompt *chat; char chat_trouble[512];   /* NULL: why there is none */
    ReplyStyle  style;
    int32_t     fim[FIM_MARKS];                 /* tokens to fill in text with; -1: none */
    bool        tools, thinks;                  /* the template shows tools to the model; it knows reasoning */
    RequestDefaults defaults;
    Constraints *constraints;
    Cache      *cache;                          /* NULL: off */
    Store      *store;
    Replay     *replay;
    Scheduler *_Atomic scheduler;
    char       *identity;
    char        quant[48];                      /* the type that the model file's name or header mentions; "": none */
    int32_t     vocab, ctx;
    size_t      longest;                        /* bytes of the longest token */
    int64_t     model_time;                     /* modification time of the model file, seconds since 1970 */
};

/* Logs a request and its answer: time, method, path, status, milliseconds, id, and `rest` if it is not "". log.c. */
void server_log(const Server *s, const Exchange *x, int status, double seconds, const char *rest);

/* Unguessable bytes, as answer.h wants them. */
void server_random(void *ud, void *out, size_t n);

#endif
