/* http_impl.h - what http.c and http_check.c share. */
#ifndef RATOON_SERVE_HTTP_IMPL_H
#define RATOON_SERVE_HTTP_IMPL_H

#include <microhttpd.h>
#include <pthread.h>
#include <stdatomic.h>

#include "programs/serve/http.h"

enum { HEADERS_MAX = 64 << 10, LINE_MAX_BYTES = 8 << 10, EXTRA_HEADERS = 4, STREAM_BLOCK = 8 << 10 };

/* A connection: until `deadline` (seconds of the monotonic clock) what it is doing must be over. */
typedef enum { CONN_HEADERS, CONN_BODY, CONN_ANSWER, CONN_IDLE } ConnPhase;
typedef struct Conn Conn;
struct Conn {
    Conn      *prev, *next;
    Exchange  *exchange;                           /* NULL: none under way */
    int        fd;
    ConnPhase  phase;
    double     deadline;
};

struct Http {
    HttpOptions o;
    struct MHD_Daemon *daemon;
    int         listener, quiesced;
    char        url[512], unlink[512];
    bool        loopback;
    pthread_mutex_t lock;                          /* of the list */
    Conn       *conns;
    _Atomic int32_t n_conns, n_exchanges;
    _Atomic size_t body_bytes;                     /* of all requests */
};

struct Exchange {
    Http       *http;
    atomic_int  refs;
    pthread_mutex_t lock;                          /* of what follows "answer" */
    Conn       *conn;
    struct MHD_Connection *mhd;                    /* NULL: the connection is through with this exchange */
    const Route *route;
    char       *path; const char *tail;
    uint32_t    method;
    char        id[132];
    double      begun;
    bool        checked, dispatched;
    Dialect     dialect;
    HttpError   refusal;                           /* status 0: none; said when the body has been read */
    char       *body; size_t n_body, cap_body, dropped;
    /* answer */
    bool        answered, queued, asleep, ended, whole, gone;
    struct MHD_Response *response;
    int         status;
    char       *out; size_t at, n_out, cap_out;    /* of a stream: [at, n_out) is unread */
    struct { char name[32], value[256]; } extra[EXTRA_HEADERS]; int32_t n_extra;
};

/* Everything that the request line and the headers tell: finds the route, or notes why the request is refused. */
void check_request(Exchange *x, const char *url, const char *method, const char *version, size_t line_bytes);
/* The Access-Control-Allow-Origin of an answer; NULL: none. reflected: it depends on who asks. */
const char *check_origin(const Exchange *x, bool *reflected);
bool address_is_loopback(const void *sockaddr);

#endif
