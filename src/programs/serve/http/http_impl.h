/* http_impl.h - what http.c and http_check.c share. */
#ifndef RATOON_PROGRAMS_SERVE_HTTP_HTTP_IMPL_H
#define RATOON_PROGRAMS_SERVE_HTTP_HTTP_IMPL_H

#include <microhttpd.h>
#include <pthread.h>
#include <stdatomic.h>

#include "programs/serve/http/http.h"

enum { HEADERS_MAX = 64 << 10, LINE_MAX_BYTES = 8 << 10, EXTRA_HEADERS = 4, STREAM_BLOCK = 8 << 10 };

/* A connection's current phase must be over by `deadline` (seconds of the monotonic clock). */
typedef enum { CONN_HEADERS, CONN_BODY, CONN_ANSWER, CONN_IDLE } ConnPhase;
typedef struct Conn Conn;
struct Conn {
    Conn      *prev, *next;
    Exchange  *exchange;                           /* the current one; NULL: none */
    int        fd;
    ConnPhase  phase;
    double     deadline;
    bool       late;                               /* was closed at its deadline */
    bool       left;                               /* at the last tick the client had, and was owed no answer */
};

struct Http {
    HttpOptions o;
    struct MHD_Daemon *daemon;
    int         listener, quiesced;
    char        url[512];
    char        socket[512];                       /* the path, if it still is our file; "": none */
    uint64_t    socket_device, socket_inode;
    bool        loopback, everywhere;
    pthread_mutex_t lock;                          /* protects the list */
    Conn       *conns;
    _Atomic int32_t n_conns, n_exchanges;
    _Atomic size_t body_bytes;                     /* sum over all requests */
};

struct Exchange {
    Http       *http;
    atomic_int  refs;
    pthread_mutex_t lock;                          /* protects everything from "answer" on */
    Conn       *conn;
    struct MHD_Connection *mhd;                    /* NULL: the connection has finished this exchange */
    const Route *route;
    char       *path; const char *tail;
    uint32_t    method;
    char        verb[16];
    char        id[132];
    int32_t     owner;                             /* number of the key it came with, from 1; 0: none */
    double      begun;
    bool        checked, dispatched;
    atomic_bool noted;                             /* somebody else logs it */
    Dialect     dialect;
    HttpError   refusal;                           /* status 0: none; sent once the body has been read */
    char       *body; size_t n_body, cap_body, dropped;
    bool      large;                               /* the body was: free memory goes back to the system later */
    /* answer */
    bool        answered, queued, asleep, ended, whole, gone;
    struct MHD_Response *response;
    int         status;
    char       *reason;                            /* NULL: none */
    char       *out; size_t at, n_out, cap_out;    /* of a stream: bytes [at, n_out) are unread */
    struct { char name[32], value[256]; } extra[EXTRA_HEADERS]; int32_t n_extra;
};

/* Checks all that the request line and headers say: finds the route, or records why the request is refused. */
void check_request(Exchange *x, const char *url, const char *method, const char *version, size_t line_bytes);
/* The Access-Control-Allow-Origin of an answer; NULL: none. reflected: it depends on the client's origin. */
const char *check_origin(const Exchange *x, bool *reflected);
bool address_is_loopback(const void *sockaddr);

#endif
