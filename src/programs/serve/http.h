/* http.h - connections and their requests, with libmicrohttpd underneath. One thread of the library speaks with all clients; it checks
 * what can be checked from the request line and the headers (http_check.c), collects the body, and calls the route. Whoever answers does
 * it from any thread: at once, or later, while the connection sleeps; whole, or as a stream that other threads append to and the client
 * reads at its own pace. An Exchange is one request and its answer, counted by references: the connection's, and that of whoever works
 * on it. A vanished client only marks its exchange as gone.
 *
 *     request line, headers ─▶ checks ─▶ body ─▶ route->answer(ud, x) ─▶ asleep ─▶ exchange_reply            one body
 *                                                                                └▶ exchange_stream, _write, _end
 */
#ifndef RATOON_SERVE_HTTP_H
#define RATOON_SERVE_HTTP_H

#include "programs/serve/answer.h"

typedef struct Http Http;
typedef struct Exchange Exchange;

enum { METHOD_GET = 1, METHOD_POST = 2, METHOD_DELETE = 4 };
enum { ROUTE_OPEN = 1, ROUTE_METRICS = 2 };         /* no key is asked; only with public_metrics */

/* path: "/v1/models"; a last part "*" stands for the rest, which is exchange_tail. A path is also found with "/v1" added or left out.
 * answer is called on the HTTP thread and must be quick: it answers, or keeps the exchange (exchange_keep) for another thread. */
typedef struct {
    const char *path;
    uint32_t    methods, flags;
    Dialect     dialect;                           /* the shape of its errors */
    void      (*answer)(void *ud, Exchange *x);
} Route;

typedef struct {
    const char *host;                              /* an address, a name, or "unix:/path" */
    int32_t     port;                              /* 0: any free one */
    const char *tls_cert, *tls_key;                /* PEM texts; NULL: no TLS */
    const char *cors;                              /* NULL: off; "*", "localhost", or origins between commas */
    const char *const *keys; int32_t n_keys;       /* none: no key is asked */
    const char *const *hosts; int32_t n_hosts;     /* names besides localhost that the Host header may carry */
    const char *prefix;                            /* a path in front of every route, "": none */
    size_t      max_body;                          /* bytes */
    int32_t     max_connections, write_timeout;    /* seconds that a client may not read */
    bool        public_metrics;
    bool        cancel_on_eof;                     /* a client that will send no more is taken for gone */
    const Route *routes; int32_t n_routes;
    void       *ud;                                /* of answer, freed and logged */
    void      (*freed)(void *ud);                  /* a stream's client has read some of it; NULL: nobody asks */
    void      (*logged)(void *ud, const Exchange *x, int status, double seconds);              /* an exchange is over; NULL */
} HttpOptions;

/* The options and what they point to outlive the server. False: why, in text. */
bool http_open(Http **out, const HttpOptions *o, char text[512]);
const char *http_url(const Http *h);               /* "http://127.0.0.1:8080" */
bool http_loopback(const Http *h);                 /* only this machine can reach it */
void http_tick(Http *h);                           /* about once a second: closes connections that are late with their request */
void http_quiesce(Http *h);                        /* takes no new connections */
int32_t http_connections(const Http *h);
int32_t http_exchanges(const Http *h);             /* requests that are not over */
void http_close(Http *h);                          /* ends what is still open; afterwards only exchange_release is allowed */

/* ---- an exchange ---- */

/* Of the request; strings live as long as the exchange, headers and query arguments until it is answered. */
uint32_t    exchange_method(const Exchange *x);
const Route *exchange_route(const Exchange *x);
const char *exchange_path(const Exchange *x);
const char *exchange_tail(const Exchange *x);
const char *exchange_id(const Exchange *x);        /* the client's X-Request-Id, or one of ours */
const char *exchange_header(const Exchange *x, const char *name);      /* NULL: none */
const char *exchange_query(const Exchange *x, const char *name);       /* NULL: none */
const char *exchange_body(const Exchange *x, size_t *n);
void        exchange_body_free(Exchange *x);       /* it has been read: a waiting request need not hold it */

void exchange_keep(Exchange *x);
void exchange_release(Exchange *x);

/* A header of the answer, before it is given: Allow, Retry-After. At most 4. */
void exchange_add(Exchange *x, const char *name, const char *value);
/* The whole answer: type NULL: application/json. body was malloc'd and is taken; NULL: out of memory, which is said with status 500. */
void exchange_reply(Exchange *x, int status, const char *type, char *body, size_t n);
/* An error in the shape of the route's dialect; as http_fail, without a field. */
void exchange_error(Exchange *x, int status, const char *code, const char *format, ...) __attribute__((format(printf, 4, 5)));
void exchange_refuse(Exchange *x, const HttpError *e);

/* A stream: the headers go out now. Bytes that the client has not read yet wait in memory: a producer looks at exchange_unread and waits. */
void   exchange_stream(Exchange *x, const char *type);
bool   exchange_write(Exchange *x, const char *bytes, size_t n);       /* false: out of memory, the stream is broken off */
size_t exchange_unread(Exchange *x);
void   exchange_end(Exchange *x, bool whole);      /* false: the connection is closed without the proper end */

/* The client has gone; looks at its socket, so not for a hot loop. */
bool   exchange_gone(Exchange *x);
/* Lets a connection go whose answer will never come. */
void   exchange_drop(Exchange *x);

#endif
