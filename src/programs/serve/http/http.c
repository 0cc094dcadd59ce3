/* http.c - the daemon, bodies, answers and streams. Lock order: an exchange's lock may be held while telling the
 * library to suspend or resume its connection, never the reverse, and never together with the lock of the list. */
#include "programs/serve/http/http_impl.h"

#include <malloc.h>
#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/grow.h"

enum { HEADERS_SECONDS = 10, BODY_SECONDS = 30, IDLE_SECONDS = 75, SPARE_CONNECTIONS = 64, BODIES_AT_ONCE = 4 };

#define TOO_SLOW "the request came too slowly"

static void set_phase(Conn *c, ConnPhase phase)
{
    static const int seconds[] = { [CONN_HEADERS] = HEADERS_SECONDS, [CONN_BODY] = BODY_SECONDS,
                                   [CONN_IDLE] = IDLE_SECONDS };
    c->phase = phase;
    c->deadline = phase == CONN_ANSWER ? 1e300 : seconds_now() + seconds[phase];
}

/* ---- exchanges ---- */

static void make_id(char id[132])
{
    unsigned char bytes[12];
    if (getrandom(bytes, sizeof bytes, 0) != (ssize_t) sizeof bytes) memset(bytes, 0, sizeof bytes);
    int n = snprintf(id, 132, "req_");
    for (size_t i = 0; i < sizeof bytes; i++) n += snprintf(id + n, 132 - (size_t) n, "%02x", bytes[i]);
}

static Exchange *exchange_new(Http *h, Conn *c, struct MHD_Connection *mhd)
{
    Exchange *x = calloc(1, sizeof *x);
    if (!x) return NULL;
    x->http = h;
    x->conn = c;
    x->mhd = mhd;
    x->refs = 1;
    x->begun = seconds_now();
    pthread_mutex_init(&x->lock, NULL);
    make_id(x->id);
    h->n_exchanges++;
    return x;
}

void exchange_keep(Exchange *x) { x->refs++; }

enum { LARGE_BODY = 1 << 20 };

void exchange_body_free(Exchange *x)
{
    x->http->body_bytes -= x->cap_body;
    x->large |= x->cap_body > LARGE_BODY;
    free(x->body);
    x->body = NULL;
    x->n_body = x->cap_body = 0;
}

void exchange_release(Exchange *x)
{
    if (--x->refs > 0) return;
    if (x->body) exchange_body_free(x);
    free(x->out);
    free(x->reason);
    free(x->path);
    pthread_mutex_destroy(&x->lock);
    x->http->n_exchanges--;
    bool large = x->large;
    free(x);
#ifdef __GLIBC__
    if (large) malloc_trim(0);                     /* the allocator keeps what the JSON values of a large body took */
#else
    (void) large;
#endif
}

uint32_t exchange_method(const Exchange *x) { return x->method; }
const char *exchange_verb(const Exchange *x) { return *x->verb ? x->verb : "-"; }
const Route *exchange_route(const Exchange *x) { return x->route; }
const char *exchange_path(const Exchange *x) { return x->path ? x->path : "/"; }
const char *exchange_tail(const Exchange *x) { return x->tail ? x->tail : ""; }
const char *exchange_id(const Exchange *x) { return x->id; }
int32_t exchange_owner(const Exchange *x) { return x->owner; }
const char *exchange_header(const Exchange *x, const char *name)
{
    return MHD_lookup_connection_value(x->mhd, MHD_HEADER_KIND, name);
}
const char *exchange_query(const Exchange *x, const char *name)
{
    return MHD_lookup_connection_value(x->mhd, MHD_GET_ARGUMENT_KIND, name);
}

char *exchange_body(const Exchange *x, size_t *n)
{
    *n = x->n_body;
    return x->body;
}

/* With the exchange's lock: makes the library call the handler or the stream's reader again. */
static void wake(Exchange *x)
{
    if (!x->asleep || !x->mhd) return;
    x->asleep = false;
    MHD_resume_connection(x->mhd);
}

static void sleep_now(Exchange *x)
{
    x->asleep = true;
    MHD_suspend_connection(x->mhd);
}

void exchange_add(Exchange *x, const char *name, const char *value)
{
    if (x->n_extra == EXTRA_HEADERS) return;
    snprintf(x->extra[x->n_extra].name, sizeof x->extra->name, "%s", name);
    snprintf(x->extra[x->n_extra++].value, sizeof x->extra->value, "%s", value);
}

static void answer_with(Exchange *x, int status, const char *type, struct MHD_Response *r)
{
    MHD_add_response_header(r, MHD_HTTP_HEADER_CONTENT_TYPE, type);
    pthread_mutex_lock(&x->lock);
    bool wanted = !x->answered && x->mhd;
    if (!x->answered) x->status = status;
    x->answered = true;
    if (wanted) x->response = r;
    wake(x);
    pthread_mutex_unlock(&x->lock);
    if (!wanted) MHD_destroy_response(r);          /* a stream's response references the exchange */
}

void exchange_reply(Exchange *x, int status, const char *type, char *body, size_t n)
{
    static char empty[] = "{\"error\":{\"message\":\"out of "
                          "memory\",\"type\":\"server_error\",\"param\":null,\"code\":null}}";
    struct MHD_Response *r = body ? MHD_create_response_from_buffer(n, body, MHD_RESPMEM_MUST_FREE) : NULL;
    if (!r) {
        free(body);
        status = 500;
        exchange_failed(x, "out of memory");
        r = MHD_create_response_from_buffer(sizeof empty - 1, empty, MHD_RESPMEM_PERSISTENT);
    }
    if (r) answer_with(x, status, type ? type : "application/json", r);
    else exchange_drop(x);
}

void exchange_json(Exchange *x, int status, json_t *body)
{
    char *text = body ? json_dumps(body, JSON_COMPACT | JSON_REAL_PRECISION(15)) : NULL;
    json_decref(body);
    exchange_reply(x, status, NULL, text, text ? strlen(text) : 0);
}

void exchange_note(Exchange *x) { x->noted = true; }
bool exchange_noted(const Exchange *x) { return x->noted; }

/* Not once the connection is over, when its thread reads the reason without the lock. */
void exchange_failed(Exchange *x, const char *reason)
{
    pthread_mutex_lock(&x->lock);
    if (x->mhd && !x->answered && !x->reason) x->reason = strdup(reason);
    pthread_mutex_unlock(&x->lock);
}

const char *exchange_reason(const Exchange *x) { return x->reason ? x->reason : ""; }

void exchange_drop(Exchange *x)
{
    pthread_mutex_lock(&x->lock);
    x->gone = true;
    wake(x);
    pthread_mutex_unlock(&x->lock);
}

/* ---- errors ---- */

void exchange_refuse(Exchange *x, const HttpError *e)
{
    size_t n = 0;
    if (e->status == 429 || e->status == 503) exchange_add(x, "Retry-After", "1");
    /* official clients try these again by themselves: a request that was cancelled, and what is not supported */
    if (e->status == 409 || e->status == 501) exchange_add(x, "X-Should-Retry", "false");
    exchange_failed(x, e->message);
    char *body = http_error_body(x->dialect, e, x->id, &n);
    exchange_reply(x, e->status, NULL, body, n);
}

void exchange_error(Exchange *x, int status, const char *code, const char *format, ...)
{
    char text[768];
    HttpError e = { 0 };
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    http_fail(&e, status, code, NULL, "%s", text);
    exchange_refuse(x, &e);
}

/* ---- streams ---- */

/* On the HTTP thread: supplies the next bytes for the client. */
static ssize_t read_stream(void *cls, uint64_t pos, char *buf, size_t max)
{
    Exchange *x = cls;
    (void) pos;
    pthread_mutex_lock(&x->lock);
    size_t n = x->n_out - x->at;
    if (n > max) n = max;
    ssize_t result = (ssize_t) n;
    bool freed = n > 0;
    if (n > 0) {
        memcpy(buf, x->out + x->at, n);
        x->at += n;
        if (x->at == x->n_out) x->at = x->n_out = 0;
    } else if (x->gone || (x->ended && !x->whole)) {
        result = MHD_CONTENT_READER_END_WITH_ERROR;
    } else if (x->ended) {
        result = MHD_CONTENT_READER_END_OF_STREAM;
    } else {
        sleep_now(x);
    }
    pthread_mutex_unlock(&x->lock);
    if (freed && x->http->o.freed) x->http->o.freed(x->http->o.ud);
    return result;
}

static void free_stream(void *cls) { exchange_release(cls); }

void exchange_stream(Exchange *x, const char *type)
{
    exchange_keep(x);
    struct MHD_Response *r = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, STREAM_BLOCK, read_stream, x,
                                                               free_stream);
    if (!r) {
        exchange_release(x);
        exchange_drop(x);
        return;
    }
    MHD_add_response_header(r, MHD_HTTP_HEADER_CACHE_CONTROL, "no-cache, no-store");
    MHD_add_response_header(r, "X-Accel-Buffering", "no");
    answer_with(x, 200, type, r);
}

bool exchange_write(Exchange *x, const char *bytes, size_t n)
{
    pthread_mutex_lock(&x->lock);
    bool good = !x->gone && !x->ended;
    if (good && x->n_out + n > x->cap_out) {
        if (x->at > 0) memmove(x->out, x->out + x->at, x->n_out - x->at);
        x->n_out -= x->at;
        x->at = 0;
        good = grow_to(&x->out, &x->cap_out, x->n_out + n, 4096, 1);
        x->gone = !good;
    }
    if (good) {
        memcpy(x->out + x->n_out, bytes, n);
        x->n_out += n;
    }
    wake(x);
    pthread_mutex_unlock(&x->lock);
    return good;
}

size_t exchange_unread(Exchange *x)
{
    pthread_mutex_lock(&x->lock);
    size_t n = x->n_out - x->at;
    pthread_mutex_unlock(&x->lock);
    return n;
}

void exchange_end(Exchange *x, bool whole)
{
    pthread_mutex_lock(&x->lock);
    x->ended = true;
    x->whole = whole;
    wake(x);
    pthread_mutex_unlock(&x->lock);
}

/* Needed because the library does not watch a suspended connection. */
static bool peer_gone(int fd, bool eof_counts)
{
    struct pollfd p = { .fd = fd, .events = POLLIN | POLLRDHUP };
    if (poll(&p, 1, 0) <= 0) return false;
    if (p.revents & (POLLHUP | POLLERR | POLLNVAL)) return true;
    return eof_counts && (p.revents & POLLRDHUP);
}

bool exchange_gone(Exchange *x)
{
    pthread_mutex_lock(&x->lock);
    if (!x->gone && x->mhd && peer_gone(x->conn->fd, x->http->o.cancel_on_eof)) x->gone = true;
    bool yes = x->gone || !x->mhd;
    pthread_mutex_unlock(&x->lock);
    return yes;
}

/* ---- callbacks of the library ---- */

static void note_connection(void *cls, struct MHD_Connection *mhd, void **context,
                            enum MHD_ConnectionNotificationCode what)
{
    Http *h = cls;
    if (what == MHD_CONNECTION_NOTIFY_STARTED) {
        Conn *c = calloc(1, sizeof *c);
        *context = c;
        if (!c) return;
        const union MHD_ConnectionInfo *info = MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_CONNECTION_FD);
        c->fd = info ? info->connect_fd : -1;
        setsockopt(c->fd, SOL_SOCKET, SO_KEEPALIVE, &(int) { 1 }, sizeof(int));
        set_phase(c, CONN_HEADERS);
        pthread_mutex_lock(&h->lock);
        c->next = h->conns;
        if (c->next) c->next->prev = c;
        h->conns = c;
        h->n_conns++;
        pthread_mutex_unlock(&h->lock);
        return;
    }
    Conn *c = *context;
    if (!c) return;
    pthread_mutex_lock(&h->lock);
    if (c->prev) c->prev->next = c->next;
    else h->conns = c->next;
    if (c->next) c->next->prev = c->prev;
    h->n_conns--;
    pthread_mutex_unlock(&h->lock);
    free(c);
}

/* Gets the raw request line, of which only the length is used; creates the exchange. */
static void *begin_request(void *cls, const char *uri, struct MHD_Connection *mhd)
{
    Http *h = cls;
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    Conn *c = info ? info->socket_context : NULL;
    Exchange *x = c ? exchange_new(h, c, mhd) : NULL;
    if (!x) return NULL;
    x->dropped = strlen(uri);
    pthread_mutex_lock(&h->lock);
    c->exchange = x;
    if (c->phase == CONN_IDLE) set_phase(c, CONN_HEADERS);
    pthread_mutex_unlock(&h->lock);
    return x;
}

/* The status of an exchange that ends before its answer is sent, and its reason: that of the refusal which the client
 * got or would have got, or 499, which no answer has. */
static int end_unanswered(Exchange *x, bool late, bool stopped)
{
    const HttpError *e = &x->refusal;
    exchange_failed(x, late ? TOO_SLOW : e->status ? e->message : stopped ? "the server has stopped"
                                                                          : "the client has gone");
    return late ? 408 : e->status ? e->status : stopped ? 503 : 499;
}

static void end_request(void *cls, struct MHD_Connection *mhd, void **context, enum MHD_RequestTerminationCode why)
{
    Http *h = cls;
    Exchange *x = *context;
    if (!x) return;
    pthread_mutex_lock(&h->lock);
    x->conn->exchange = NULL;
    const bool late = x->conn->late;
    set_phase(x->conn, CONN_IDLE);
    pthread_mutex_unlock(&h->lock);
    MHD_set_connection_option(mhd, MHD_CONNECTION_OPTION_TIMEOUT, 0u);
    const bool stopped = why == MHD_REQUEST_TERMINATED_DAEMON_SHUTDOWN;
    const int status = x->queued ? x->status : end_unanswered(x, late, stopped);
    pthread_mutex_lock(&x->lock);
    if (why != MHD_REQUEST_TERMINATED_COMPLETED_OK) x->gone = true;
    x->mhd = NULL;
    struct MHD_Response *unsent = x->response;     /* a stream's response and its exchange reference each other */
    x->response = NULL;
    pthread_mutex_unlock(&x->lock);
    if (unsent) MHD_destroy_response(unsent);
    if (h->o.logged) h->o.logged(h->o.ud, x, status, seconds_now() - x->begun);
    if (h->o.freed) h->o.freed(h->o.ud);
    exchange_release(x);
    *context = NULL;
}

static enum MHD_Result queue_answer(Exchange *x)
{
    struct MHD_Response *r = x->response;
    bool reflected;
    const char *origin = check_origin(x, &reflected);
    if (origin) MHD_add_response_header(r, MHD_HTTP_HEADER_ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    if (origin) MHD_add_response_header(r, "Access-Control-Expose-Headers", "x-request-id, request-id, retry-after");
    if (origin && reflected) MHD_add_response_header(r, MHD_HTTP_HEADER_VARY, "Origin");
    MHD_add_response_header(r, "X-Request-Id", x->id);
    MHD_add_response_header(r, "Request-Id", x->id);
    for (int32_t i = 0; i < x->n_extra; i++) MHD_add_response_header(r, x->extra[i].name, x->extra[i].value);
    x->queued = true;
    MHD_set_connection_option(x->mhd, MHD_CONNECTION_OPTION_TIMEOUT, (unsigned) x->http->o.write_timeout);
    enum MHD_Result ok = MHD_queue_response(x->mhd, (unsigned) x->status, r);
    MHD_destroy_response(r);                       /* the library holds its own reference */
    x->response = NULL;
    return ok;
}

static void refuse(Exchange *x)
{
    if (x->refusal.status == 204) exchange_reply(x, 204, "text/plain", calloc(1, 1), 0);
    else exchange_refuse(x, &x->refusal);
}

static void refuse_late(Exchange *x, int status, const char *text)
{
    http_fail(&x->refusal, status, NULL, NULL, "%s", text);
    exchange_body_free(x);
}

/* Returns false to close the connection, if the client sends endlessly. */
static bool take_body(Exchange *x, const char *bytes, size_t n)
{
    Http *h = x->http;
    size_t max = h->o.max_body;
    if (!x->refusal.status && n > max - x->n_body) refuse_late(x, 413, "the body is larger than --max-body allows");
    if (!x->refusal.status && x->n_body + n > x->cap_body) {
        size_t cap = x->cap_body ? x->cap_body : 4096;
        while (cap < x->n_body + n) cap *= 2;
        if ((h->body_bytes += cap - x->cap_body) > BODIES_AT_ONCE * max + cap) {
            h->body_bytes -= cap - x->cap_body;
            refuse_late(x, 503, "too many large requests at once");
        } else {
            char *more = realloc(x->body, cap);
            if (more) x->body = more;
            else h->body_bytes -= cap - x->cap_body;
            if (more) x->cap_body = cap;
            else refuse_late(x, 500, "out of memory for the body");
        }
    }
    if (!x->refusal.status) {
        memcpy(x->body + x->n_body, bytes, n);
        x->n_body += n;
        return true;
    }
    x->dropped += n;
    return x->dropped <= 2 * max;
}

static void set_conn_phase(Exchange *x, ConnPhase phase)
{
    pthread_mutex_lock(&x->http->lock);
    set_phase(x->conn, phase);
    pthread_mutex_unlock(&x->http->lock);
}

static enum MHD_Result handle(void *cls, struct MHD_Connection *mhd, const char *url, const char *method,
                              const char *version, const char *bytes, size_t *n, void **context)
{
    Http *h = cls;
    Exchange *x = *context;
    (void) mhd;
    if (!x) return MHD_NO;                         /* out of memory */
    if (!x->checked) {
        x->checked = true;
        size_t line = x->dropped;
        x->dropped = 0;
        check_request(x, url, method, version, line);
        const char *length = exchange_header(x, "Content-Length");
        bool refuse_now = x->refusal.status &&
                          (exchange_header(x, "Expect") || (length && strtoull(length, NULL, 10) > h->o.max_body));
        set_conn_phase(x, refuse_now ? CONN_ANSWER : CONN_BODY);
        if (!refuse_now) return MHD_YES;
        refuse(x);
        return queue_answer(x);
    }
    if (*n > 0) {
        set_conn_phase(x, CONN_BODY);
        bool good = take_body(x, bytes, *n);
        *n = 0;
        return good ? MHD_YES : MHD_NO;
    }
    if (!x->dispatched) {
        x->dispatched = true;
        set_conn_phase(x, CONN_ANSWER);
        if (x->refusal.status) refuse(x);
        else x->route->answer(h->o.ud, x);
    }
    pthread_mutex_lock(&x->lock);
    bool answered = x->answered, gone = x->gone;
    if (!answered && !gone) sleep_now(x);
    pthread_mutex_unlock(&x->lock);
    if (!answered && gone) return MHD_NO;
    return answered && !x->queued ? queue_answer(x) : MHD_YES;
}

/* Leaves "%00" as it is: a path is a C string, and what follows a zero byte must not be lost. */
static size_t unescape(void *cls, struct MHD_Connection *mhd, char *s)
{
    char *out = s;
    (void) cls;
    (void) mhd;
    for (char *p = s; *p;) {
        unsigned v;
        char hex[3] = "";
        if (p[0] == '%' && p[1] && p[2]) memcpy(hex, p + 1, 2);
        if (hex[0] && strspn(hex, "0123456789abcdefABCDEF") == 2 && sscanf(hex, "%2x", &v) == 1 && v > 0) {
            *out++ = (char) v;
            p += 3;
        } else {
            *out++ = *p++;
        }
    }
    *out = 0;
    return (size_t) (out - s);
}

/* ---- opening and closing ---- */

/* Removes the socket that a dead server left at a's path; returns false if a live server listens there, or this cannot
 * be determined. */
static bool make_way(const struct sockaddr_un *a, char text[512])
{
    struct stat st;
    if (lstat(a->sun_path, &st) != 0 || !S_ISSOCK(st.st_mode)) return true;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    bool answers = fd >= 0 && (connect(fd, (const struct sockaddr *) a, sizeof *a) == 0 || errno == EAGAIN);
    int why = errno;
    if (fd >= 0) close(fd);
    if (!answers && why == ECONNREFUSED) {
        if (unlink(a->sun_path) == 0 || errno == ENOENT) return true;
        why = errno;
    }
    snprintf(text, 512, "--host unix:%s: %s", a->sun_path, answers ? "another server listens there" : strerror(why));
    return false;
}

/* Unless another server has taken over the path. */
static void remove_socket(const Http *h)
{
    struct stat st;
    if (!h->socket[0] || lstat(h->socket, &st) != 0) return;
    if (st.st_dev == h->socket_device && st.st_ino == h->socket_inode) unlink(h->socket);
}

static bool listen_unix(Http *h, const char *path, char text[512])
{
    struct sockaddr_un a = { .sun_family = AF_UNIX };
    struct stat st;
    if (!*path || strlen(path) >= sizeof a.sun_path) {
        snprintf(text, 512, "--host unix:%.200s: expected a path of 1 to %zu bytes", path, sizeof a.sun_path - 1);
        return false;
    }
    strcpy(a.sun_path, path);
    if (!make_way(&a, text)) return false;
    h->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    mode_t before = umask(0077);
    bool good = h->listener >= 0 && bind(h->listener, (struct sockaddr *) &a, sizeof a) == 0 &&
                listen(h->listener, 128) == 0;
    umask(before);
    if (!good) snprintf(text, 512, "--host unix:%s: %s", path, strerror(errno));
    if (good && lstat(path, &st) == 0) {
        snprintf(h->socket, sizeof h->socket, "%s", path);
        h->socket_device = st.st_dev;
        h->socket_inode = st.st_ino;
    }
    snprintf(h->url, sizeof h->url, "unix:%s", path);
    h->loopback = true;
    return good;
}

static bool listen_tcp(Http *h, char text[512])
{
    char port[16];
    struct addrinfo hints = { .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE }, *found = NULL;
    snprintf(port, sizeof port, "%d", h->o.port);
    int wrong = getaddrinfo(h->o.host, port, &hints, &found);
    if (wrong) {
        snprintf(text, 512, "--host %s: %s", h->o.host, gai_strerror(wrong));
        return false;
    }
    h->listener = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    int on = 1, off = 0;
    if (h->listener >= 0) setsockopt(h->listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (h->listener >= 0 && found->ai_family == AF_INET6)
        setsockopt(h->listener, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    bool good = h->listener >= 0 && bind(h->listener, found->ai_addr, found->ai_addrlen) == 0 &&
                listen(h->listener, 128) == 0;
    if (!good)
        snprintf(text, 512, "--host %s --port %d: %s%s", h->o.host, h->o.port, strerror(errno),
                 errno == EADDRINUSE ? "; another server listens there, choose another --port" : "");
    freeaddrinfo(found);
    if (!good) return false;
    union { struct sockaddr_storage any; struct sockaddr_in in; struct sockaddr_in6 in6; } a = { 0 };
    socklen_t len = sizeof a;
    char name[INET6_ADDRSTRLEN] = "";
    getsockname(h->listener, (struct sockaddr *) &a, &len);
    h->loopback = address_is_loopback(&a);
    bool six = a.any.ss_family == AF_INET6;
    h->everywhere = six ? IN6_IS_ADDR_UNSPECIFIED(&a.in6.sin6_addr) : a.in.sin_addr.s_addr == htonl(INADDR_ANY);
    inet_ntop(a.any.ss_family, six ? (void *) &a.in6.sin6_addr : (void *) &a.in.sin_addr, name, sizeof name);
    snprintf(h->url, sizeof h->url, "%s://%s%s%s:%d", h->o.tls_cert ? "https" : "http", six ? "[" : "", name,
             six ? "]" : "", ntohs(six ? a.in6.sin6_port : a.in.sin_port));
    return true;
}

bool http_open(Http **out, const HttpOptions *o, char text[512])
{
    Http *h = calloc(1, sizeof *h);
    *out = NULL;
    if (!h) {
        snprintf(text, 512, "out of memory");
        return false;
    }
    h->o = *o;
    h->listener = h->quiesced = -1;
    pthread_mutex_init(&h->lock, NULL);
    bool good = strncmp(o->host, "unix:", 5) == 0 ? listen_unix(h, o->host + 5, text) : listen_tcp(h, text);
    /* Not poll: with it the library ends a connection whose client has closed its half before the answer. */
    unsigned flags = MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME | (o->tls_cert ? MHD_USE_TLS : 0);
    struct MHD_OptionItem more[4] = { { MHD_OPTION_END, 0, NULL } };
    if (o->tls_cert) {
        more[0] = (struct MHD_OptionItem) { MHD_OPTION_HTTPS_MEM_CERT, 0, (void *) o->tls_cert };
        more[1] = (struct MHD_OptionItem) { MHD_OPTION_HTTPS_MEM_KEY, 0, (void *) o->tls_key };
        more[2] = (struct MHD_OptionItem) { MHD_OPTION_END, 0, NULL };
    }
    /* The memory limit is per connection, from its first request on: the library clears all of it for the headers of
     * the next. Its strict mode is not used: for a missing Host the library answers with an HTML page, http_check.c
     * with our error. */
    if (good)
        h->daemon = MHD_start_daemon(flags, 0, NULL, NULL, handle, h, MHD_OPTION_LISTEN_SOCKET, h->listener,
                                     MHD_OPTION_NOTIFY_CONNECTION, note_connection, h, MHD_OPTION_NOTIFY_COMPLETED,
                                     end_request, h, MHD_OPTION_URI_LOG_CALLBACK, begin_request, h,
                                     MHD_OPTION_UNESCAPE_CALLBACK, unescape, h, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
                                     (size_t) (HEADERS_MAX + STREAM_BLOCK + (8 << 10)), MHD_OPTION_CONNECTION_LIMIT,
                                     (unsigned) (o->max_connections + SPARE_CONNECTIONS), MHD_OPTION_CONNECTION_TIMEOUT,
                                     0u, MHD_OPTION_SIGPIPE_HANDLED_BY_APP, 1, MHD_OPTION_ARRAY, more, MHD_OPTION_END);
    if (good && !h->daemon)
        snprintf(text, 512, "%.400s: the HTTP server did not start%s", h->url,
                 o->tls_cert ? " (are --tls-cert and --tls-key a PEM certificate and its key?)" : "");
    if (!h->daemon) {
        remove_socket(h);
        if (h->listener >= 0) close(h->listener);
        pthread_mutex_destroy(&h->lock);
        free(h);
        return false;
    }
    *out = h;
    return true;
}

const char *http_url(const Http *h) { return h->url; }
bool http_loopback(const Http *h) { return h->loopback; }
bool http_everywhere(const Http *h) { return h->everywhere; }
int32_t http_connections(const Http *h) { return h->n_conns; }
int32_t http_exchanges(const Http *h) { return h->n_exchanges; }

/* The client sends no more, and what it sent has been read. */
static bool sent_all(const Conn *c)
{
    int unread = 0;
    return peer_gone(c->fd, true) && ioctl(c->fd, FIONREAD, &unread) == 0 && unread == 0;
}

/* The library limits only idle time, not the duration of a request. Nothing of the answer has been written yet, so our
 * own error can be sent. And it is told only once of a client that leaves with what it sent last, and waits for the
 * rest, if that is not a whole request: whoever has left for a second and has none has left. */
void http_tick(Http *h)
{
    static const char late[] = "HTTP/1.1 408 Request Timeout\r\nContent-Type: application/json\r\nConnection: close\r\n"
                               "Content-Length: 107\r\n\r\n"
                               "{\"error\":{\"message\":\"" TOO_SLOW "\",\"type\":\"invalid_request_error\","
                               "\"param\":null,\"code\":null}}";
    double t = seconds_now();
    pthread_mutex_lock(&h->lock);
    for (Conn *c = h->conns; c; c = c->next) {
        const bool left = c->phase != CONN_ANSWER && sent_all(c);
        if (left && c->left) shutdown(c->fd, SHUT_RDWR);
        c->left = left;
        if (t <= c->deadline || left) continue;
        if (!h->o.tls_cert && c->phase != CONN_IDLE) send(c->fd, late, sizeof late - 1, MSG_DONTWAIT | MSG_NOSIGNAL);
        shutdown(c->fd, SHUT_RDWR);
        c->deadline = 1e300;
        c->late = true;
    }
    pthread_mutex_unlock(&h->lock);
}

void http_quiesce(Http *h)
{
    if (h->quiesced >= 0) return;
    h->quiesced = MHD_quiesce_daemon(h->daemon);
    if (h->quiesced >= 0) shutdown(h->quiesced, SHUT_RDWR);
}

void http_close(Http *h)
{
    if (!h) return;
    http_quiesce(h);
    pthread_mutex_lock(&h->lock);               /* the HTTP thread takes no exchange's lock while it holds this one */
    for (Conn *c = h->conns; c; c = c->next)
        if (c->exchange) exchange_drop(c->exchange);
    pthread_mutex_unlock(&h->lock);
    MHD_stop_daemon(h->daemon);
    remove_socket(h);                              /* while the listener is open no other file has its inode */
    if (h->quiesced >= 0) close(h->quiesced);
    pthread_mutex_destroy(&h->lock);
    free(h);
}
