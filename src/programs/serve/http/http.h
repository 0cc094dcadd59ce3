/* http.h - connections and their requests, with libmicrohttpd underneath. One thread of the library serves all clients:
 * it checks the request line and headers (http_check.c), collects the body, and calls the route. The answer may come
 * from any thread, at once or later while the connection is suspended, either whole or as a stream that other threads
 * append to and the client reads at its own pace. An Exchange is one request and its answer. It is reference-counted:
 * by the connection and by whoever works on it. If the client disconnects, its exchange is only marked as gone.
 *
 *     request line, headers ─▶ checks ─▶ body ─▶ route->answer(ud, x) ─▶ asleep ─▶ exchange_reply            one body
 *                                                                                └▶ exchange_stream, _write, _end
 */
#ifndef RATOON_PROGRAMS_SERVE_HTTP_HTTP_H
#define RATOON_PROGRAMS_SERVE_HTTP_HTTP_H

#include "programs/serve/answer/answer.h"

typedef struct Http Http;
typedef struct Exchange Exchange;

enum { METHOD_GET = 1, METHOD_POST = 2, METHOD_DELETE = 4 };
/* OPEN: needs no key; METRICS: needs none with public_metrics; REFUSED: says that this is not supported; TEXT: makes
 * text, and is counted */
enum { ROUTE_OPEN = 1, ROUTE_METRICS = 2, ROUTE_REFUSED = 4, ROUTE_TEXT = 8 };

/* path: such as "/v1/models"; a final "*" matches the rest, which exchange_tail returns. A path is also found with
 * "/v1" added or left out. answer runs on the HTTP thread and must be quick: it answers, or keeps the exchange
 * (exchange_keep) for another thread. */
typedef struct {
    const char *path;
    uint32_t    methods, flags;
    Dialect     dialect;                           /* the form of its errors */
    void      (*answer)(void *ud, Exchange *x);
} Route;

typedef struct {
    const char *host;                              /* an address, a name, or "unix:/path" */
    int32_t     port;                              /* 0: any free one */
    const char *tls_cert, *tls_key;                /* PEM texts; NULL: no TLS */
    const char *cors;                              /* NULL: off; "*", "localhost", or origins separated by commas */
    const char *const *keys; int32_t n_keys;       /* none: no key is required */
    const char *const *hosts; int32_t n_hosts;     /* names besides localhost that the Host header may carry */
    const char *prefix;                            /* a path before every route; "": none */
    size_t      max_body;                          /* bytes */
    int32_t     max_connections, write_timeout;    /* seconds that a client may not read */
    bool        public_metrics;
    bool        cancel_on_eof;                     /* treat a client that closed its sending side as gone */
    const Route *routes; int32_t n_routes;
    void       *ud;                                /* argument of answer, freed and logged */
    void      (*freed)(void *ud);                  /* called when a stream's client has read some of it; may be NULL */
    void      (*logged)(void *ud, const Exchange *x, int status, double seconds);       /* an exchange is over; may be
                                                                                         * NULL */
} HttpOptions;

/* The options and what they point to must outlive the server. On false, text says why. */
bool http_open(Http **out, const HttpOptions *o, char text[512]);
const char *http_url(const Http *h);    /* "http://127.0.0.1:8080" */
bool http_loopback(const Http *h);      /* only reachable from this machine */
bool http_everywhere(const Http *h);    /* listens on all addresses */
void http_tick(Http *h);                /* call about once a second: ends connections whose request is overdue or
                                         * will not become whole */
void http_quiesce(Http *h);             /* stops accepting connections */
int32_t http_connections(const Http *h);
int32_t http_exchanges(const Http *h);      /* requests in progress */
void http_close(Http *h);                   /* ends open connections; afterwards only exchange_release is allowed */

/* ---- an exchange ---- */

/* About the request; strings live as long as the exchange, headers and query arguments until it is answered. */
uint32_t    exchange_method(const Exchange *x);
const char *exchange_verb(const Exchange *x);      /* the method as it was sent, cut to 15 bytes */
const Route *exchange_route(const Exchange *x);
const char *exchange_path(const Exchange *x);
const char *exchange_tail(const Exchange *x);
const char *exchange_id(const Exchange *x);     /* the client's X-Request-Id, or one generated here */
int32_t     exchange_owner(const Exchange *x);  /* number of its key: what is stored is visible only to that key */
const char *exchange_header(const Exchange *x, const char *name);      /* NULL: none */
const char *exchange_query(const Exchange *x, const char *name);       /* NULL: none */
char       *exchange_body(const Exchange *x, size_t *n);            /* NULL: none */
void        exchange_body_free(Exchange *x);       /* once read, so that waiting requests do not hold it */

/* Whoever works on it logs its end; call before another thread can answer. */
void exchange_note(Exchange *x);
bool exchange_noted(const Exchange *x);
/* Why it failed, for the log: call before answering. exchange_error and exchange_refuse do it with their message.
 * exchange_reason returns "" for an answer that is none of a failure; ask once the exchange is over. */
void exchange_failed(Exchange *x, const char *reason);
const char *exchange_reason(const Exchange *x);

void exchange_keep(Exchange *x);
void exchange_release(Exchange *x);

/* Adds a header such as Allow or Retry-After; call before answering. At most 4. */
void exchange_add(Exchange *x, const char *name, const char *value);
/* Sends the whole answer. type NULL: application/json. Takes body, which was malloc'd; body NULL means out of memory
 * and is answered with status 500. */
void exchange_reply(Exchange *x, int status, const char *type, char *body, size_t n);
void exchange_json(Exchange *x, int status, json_t *body);              /* the same, with a value that it releases */
/* Answers with an error in the form of the route's dialect; like http_fail, without a field. */
void exchange_error(Exchange *x, int status, const char *code, const char *format,
                    ...) __attribute__((format(printf, 4, 5)));
void exchange_refuse(Exchange *x, const HttpError *e);

/* Starts a stream: the headers go out now. Unread bytes wait in memory, so a producer should check exchange_unread and
 * wait. */
void   exchange_stream(Exchange *x, const char *type);
bool   exchange_write(Exchange *x, const char *bytes, size_t n);    /* false: out of memory; the stream is aborted */
size_t exchange_unread(Exchange *x);
void   exchange_end(Exchange *x, bool whole);      /* whole false: closes the connection, leaving it unfinished */

/* Returns true if the client has disconnected. Checks its socket, so do not call it in a hot loop. */
bool   exchange_gone(Exchange *x);
/* Closes a connection that will never be answered. */
void   exchange_drop(Exchange *x);

#endif
