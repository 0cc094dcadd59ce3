/* http_check.c - what the request line and headers decide: the route, limits, authentication, and the origin. */
#include "programs/serve/http/http_impl.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static bool begins(const char *s, const char *with) { return strncmp(s, with, strlen(with)) == 0; }

/* ---- where a request comes from ---- */

bool address_is_loopback(const void *sockaddr)
{
    const struct sockaddr *a = sockaddr;
    if (a->sa_family == AF_UNIX) return true;
    if (a->sa_family == AF_INET) return ntohl(((const struct sockaddr_in *) sockaddr)->sin_addr.s_addr) >> 24 == 127;
    const struct in6_addr *six = &((const struct sockaddr_in6 *) sockaddr)->sin6_addr;
    return IN6_IS_ADDR_LOOPBACK(six) || (IN6_IS_ADDR_V4MAPPED(six) && six->s6_addr[12] == 127);
}

/* What a host names: possibly another machine, an address, or certainly this machine only. */
typedef enum { HOST_OTHER, HOST_ADDRESS, HOST_LOCAL } HostKind;

/* Extracts the host from "host", "host:port" or "[v6]:port"; returns false if s is none of these, such as
 * "[::1].evil.com" or "127.0.0.1:abc". */
static bool host_part(char out[256], const char *s)
{
    size_t n = s[0] == '[' ? strcspn(s, "]") + (strchr(s, ']') != NULL) : strcspn(s, ":");
    const char *port = s + n + (s[n] == ':');
    if (n == 0 || n >= 256 || (s[n] && s[n] != ':')) return false;
    if (port[strspn(port, "0123456789")] || strlen(port) > 5) return false;
    memcpy(out, s, n);
    out[n] = 0;
    return true;
}

static HostKind address_kind(const char *host)
{
    union { struct sockaddr any; struct sockaddr_in four; struct sockaddr_in6 six; } a = { .six = { 0 } };
    char inner[256];
    size_t n = strlen(host);
    bool six = host[0] == '[', good;
    a.any.sa_family = six ? AF_INET6 : AF_INET;
    if (six) snprintf(inner, sizeof inner, "%.*s", (int) n - 2, host + 1);
    if (six) good = host[n - 1] == ']' && inet_pton(AF_INET6, inner, &a.six.sin6_addr) == 1;
    else good = inet_pton(AF_INET, host, &a.four.sin_addr) == 1;
    return !good ? HOST_OTHER : address_is_loopback(&a) ? HOST_LOCAL : HOST_ADDRESS;
}

/* Names under localhost cannot belong to anybody else: browsers do not look them up (RFC 6761). */
static bool is_localhost(const char *host)
{
    size_t n = strlen(host);
    return strcasecmp(host, "localhost") == 0 || (n > 10 && strcasecmp(host + n - 10, ".localhost") == 0);
}

/* Classifies a Host header, or what follows :// in an Origin. name: the host without its port. */
static HostKind host_kind(char name[256], const char *s)
{
    name[0] = 0;
    if (!host_part(name, s)) return HOST_OTHER;
    return is_localhost(name) ? HOST_LOCAL : address_kind(name);
}

/* DNS rebinding: a page in the user's browser can make its own name resolve to this machine; its requests then carry
 * that name. The rule is not limited to loopback: a container that listens on every address may have its port published
 * only on this machine. */
static bool host_allowed(const Http *h, const char *host)
{
    char name[256];
    if (h->o.n_keys > 0 || begins(h->url, "unix:")) return true;
    if (!host) return true;                        /* HTTP/1.0; browsers do not send it */
    if (host_kind(name, host) != HOST_OTHER) return true;
    for (int32_t i = 0; i < h->o.n_hosts; i++)
        if (name[0] && strcasecmp(name, h->o.hosts[i]) == 0) return true;
    return false;
}

static bool origin_is_local(const char *origin)
{
    const char *p = strstr(origin, "://");
    char name[256];
    return p && host_kind(name, p + 3) == HOST_LOCAL;
}

const char *check_origin(const Exchange *x, bool *reflected)
{
    const char *cors = x->http->o.cors, *origin = cors && x->mhd ? exchange_header(x, "Origin") : NULL;
    *reflected = false;
    if (!cors) return NULL;
    if (strcmp(cors, "*") == 0) return "*";
    *reflected = true;
    if (!origin) return NULL;
    if (strcmp(cors, "localhost") == 0) return origin_is_local(origin) ? origin : NULL;
    size_t n = strlen(origin);
    for (const char *p = cors; *p;) {
        size_t len = strcspn(p, ",");
        if (len == n && strncasecmp(p, origin, n) == 0) return origin;
        p += len + (p[len] == ',');
    }
    return NULL;
}

static bool same_origin(const Exchange *x, const char *origin)
{
    const char *p = strstr(origin, "://"), *host = exchange_header(x, "Host");
    return p && host && strcasecmp(p + 3, host) == 0 && (!x->http->o.tls_cert || begins(origin, "https://"));
}

/* Whether a page of another site sent the request. Browsers let any page send simple requests to any server and only
 * hide the answer from it, but a page cannot change what the browser says about its origin. Links to open routes are
 * allowed from anywhere. */
static bool from_elsewhere(const Exchange *x)
{
    const char *origin = exchange_header(x, "Origin"), *site = exchange_header(x, "Sec-Fetch-Site");
    if (site && strcasecmp(site, "same-origin") == 0) return false;    /* behind a proxy our name may be different */
    if (origin) return !same_origin(x, origin);
    return site && strcasecmp(site, "none") != 0 && !(x->route && (x->route->flags & ROUTE_OPEN));
}

static bool page_allowed(const Exchange *x)
{
    bool ignored;
    return x->http->o.n_keys > 0 || !from_elsewhere(x) || check_origin(x, &ignored);
}

/* ---- authentication ---- */

/* Constant time with respect to the key: takes as long as `given` is long, wherever the two differ. */
static bool same_key(const char *given, const char *key)
{
    size_t n = strlen(given), m = strlen(key);
    unsigned char differs = n != m;
    for (size_t i = 0; i < n; i++) differs |= (unsigned char) given[i] ^ (unsigned char) key[m ? i % m : 0];
    return differs == 0;
}

/* Number of the key sent with the request, from 1; 0: none of them. */
static int32_t key_of(const Exchange *x)
{
    const HttpOptions *o = &x->http->o;
    const char *given = exchange_header(x, "Authorization");
    int32_t found = 0;
    if (given && strncasecmp(given, "Bearer ", 7) == 0) given += 7;
    else given = NULL;
    if (!given) given = exchange_header(x, "x-api-key");
    if (!given) given = exchange_header(x, "api-key");
    if (!given) return 0;
    given += strspn(given, " ");
    for (int32_t i = o->n_keys; i > 0; i--)
        if (same_key(given, o->keys[i - 1])) found = i;
    return found;
}

/* ---- the route ---- */

static bool path_is(const Route *r, const char *path, const char **tail)
{
    size_t n = strlen(r->path);
    *tail = "";
    if (r->path[n - 1] != '*') return strcmp(r->path, path) == 0;
    if (strncmp(r->path, path, n - 1) != 0 || !path[n - 1]) return false;
    *tail = path + n - 1;
    return true;
}

static const Route *find_path(const HttpOptions *o, const char *path, uint32_t method, const char **tail,
                              uint32_t *known)
{
    const Route *found = NULL;
    for (int32_t i = 0; i < o->n_routes; i++) {
        const char *end;
        if (!path_is(&o->routes[i], path, &end)) continue;
        *known |= o->routes[i].methods;
        if ((o->routes[i].methods & method) && !found) {
            found = &o->routes[i];
            *tail = end;
        }
    }
    return found;
}

/* Tries the path as given, with "/v1" in front, and without one or two of them: base URLs often have one too few or too
 * many. */
static const Route *find_route(Exchange *x, uint32_t *known)
{
    const HttpOptions *o = &x->http->o;
    const char *path = x->path;
    const Route *r = find_path(o, path, x->method, &x->tail, known);
    for (int i = 0; i < 2 && !*known && begins(path, "/v1/"); i++) {
        path += 3;
        r = find_path(o, path, x->method, &x->tail, known);
    }
    if (*known || begins(path, "/v1/")) return r;
    size_t n = strlen(path) + 4;
    char *longer = malloc(n);
    if (!longer) return NULL;
    snprintf(longer, n, "/v1%s", path);
    r = find_path(o, longer, x->method, &x->tail, known);
    if (r) {
        size_t at = (size_t) (x->tail - longer);
        bool ends = !*x->tail;
        free(x->path);
        x->path = longer;
        x->tail = ends ? "" : longer + at;
    } else {
        free(longer);
    }
    return r;
}

/* The host of an absolute target (http://HOST/PATH, as clients send it to proxies), n bytes; NULL: it is a path. */
static const char *target_host(const char *url, size_t *n)
{
    const char *host = strncasecmp(url, "http://", 7) == 0 ? url + 7 : strncasecmp(url, "https://", 8) == 0 ? url + 8
                       : NULL;
    *n = host ? strcspn(host, "/") : 0;
    return host;
}

static bool set_path(Exchange *x, const char *url)
{
    const char *prefix = x->http->o.prefix, *host;
    size_t n;
    if ((host = target_host(url, &n))) url = host + n;
    n = strlen(prefix);
    if (n > 0 && strncmp(url, prefix, n) == 0 && (url[n] == '/' || !url[n])) url += n;
    x->path = strdup(*url ? url : "/");
    if (!x->path) return false;
    n = strlen(x->path);
    if (n > 1 && x->path[n - 1] == '/') x->path[n - 1] = 0;
    return true;
}

static uint32_t method_bit(const char *m)
{
    if (strcmp(m, "GET") == 0 || strcmp(m, "HEAD") == 0) return METHOD_GET;
    return strcmp(m, "POST") == 0 ? METHOD_POST : strcmp(m, "DELETE") == 0 ? METHOD_DELETE : 0;
}

static void allow_header(Exchange *x, uint32_t known)
{
    char list[64];
    snprintf(list, sizeof list, "%s%s%sOPTIONS", known & METHOD_GET ? "GET, HEAD, " : "",
             known & METHOD_POST ? "POST, " : "", known & METHOD_DELETE ? "DELETE, " : "");
    exchange_add(x, "Allow", list);
}

static void preflight(Exchange *x)
{
    if (!x->http->o.cors) return;
    exchange_add(x, "Access-Control-Allow-Methods", "GET, POST, DELETE, OPTIONS");
    exchange_add(x, "Access-Control-Allow-Headers",
                 "*, authorization, content-type, x-api-key, anthropic-version, anthropic-beta, x-request-id");
    exchange_add(x, "Access-Control-Max-Age", "600");
}

/* ---- framing ---- */

typedef struct { const char *length; int lengths, hosts; bool contradict, chunked; } Framing;

static enum MHD_Result see_header(void *cls, enum MHD_ValueKind kind, const char *key, const char *value)
{
    Framing *f = cls;
    (void) kind;
    if (strcasecmp(key, "Transfer-Encoding") == 0) f->chunked = true;
    if (strcasecmp(key, "Host") == 0) f->hosts++;
    if (strcasecmp(key, "Content-Length") != 0) return MHD_YES;
    if (f->lengths++ && strcmp(f->length, value ? value : "") != 0) f->contradict = true;
    f->length = value ? value : "";
    return MHD_YES;
}

static bool framing_refused(Exchange *x)
{
    Framing f = { .length = "" };
    MHD_get_connection_values(x->mhd, MHD_HEADER_KIND, see_header, &f);
    if (f.contradict || (f.lengths && f.chunked) || f.hosts > 1) {
        exchange_add(x, "Connection", "close");
        return !http_fail(&x->refusal, 400, NULL, NULL,
                          f.contradict ? "there are two different Content-Length headers"
                                       : f.hosts > 1 ? "there is more than one Host header"
                                                     : "there can be only one of Content-Length and Transfer-Encoding");
    }
    unsigned long long n = f.lengths ? strtoull(f.length, NULL, 10) : 0;
    if (n > x->http->o.max_body)
        return !http_fail(&x->refusal, 413, NULL, NULL, "the body has %llu bytes, at most %zu are taken (--max-body)",
                          n, x->http->o.max_body);
    const char *coding = exchange_header(x, "Content-Encoding");
    if (coding && strcasecmp(coding, "identity") != 0)
        return !http_fail(&x->refusal, 415, NULL, NULL,
                          "Content-Encoding '%.40s' is not supported, send the body as it is", coding);
    return false;
}

static bool size_refused(Exchange *x, size_t line_bytes)
{
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(x->mhd, MHD_CONNECTION_INFO_REQUEST_HEADER_SIZE);
    if (line_bytes > LINE_MAX_BYTES)
        return !http_fail(&x->refusal, 414, NULL, NULL, "the request line is longer than %d bytes", LINE_MAX_BYTES);
    if (info && info->header_size > HEADERS_MAX)
        return !http_fail(&x->refusal, 431, NULL, NULL, "the headers are longer than %d bytes", HEADERS_MAX);
    return false;
}

static void take_id(Exchange *x)
{
    const char *id = exchange_header(x, "X-Request-Id");
    if (!id || !*id || strlen(id) > 128) return;
    for (const char *p = id; *p; p++)
        if (*p <= ' ' || *p > '~') return;
    snprintf(x->id, sizeof x->id, "%s", id);
}

void check_request(Exchange *x, const char *url, const char *method, const char *version, size_t line_bytes)
{
    Http *h = x->http;
    HttpError *e = &x->refusal;
    uint32_t known = 0;
    take_id(x);
    x->owner = key_of(x);
    if (!set_path(x, url)) {
        http_fail(e, 500, NULL, NULL, "out of memory");
        return;
    }
    x->method = method_bit(method);
    snprintf(x->verb, sizeof x->verb, "%s", method);
    x->route = find_route(x, &known);
    if (x->route) x->dialect = x->route->dialect;
    else x->dialect = strstr(x->path, "/messages") ? DIALECT_MESSAGES
                      : begins(x->path, "/api/") ? DIALECT_OLLAMA_CHAT : DIALECT_CHAT;
    if (size_refused(x, line_bytes) || framing_refused(x)) return;
    size_t n;
    char name[256];
    const char *host = exchange_header(x, "Host"), *target = target_host(url, &n);
    if (target) {
        snprintf(name, sizeof name, "%.*s", (int) (n < sizeof name ? n : sizeof name), target);
        target = name;
    }
    uint32_t flags = x->route ? x->route->flags : 0;
    bool open = (flags & ROUTE_OPEN) || ((flags & ROUTE_METRICS) && h->o.public_metrics);
    if (h->n_conns > h->o.max_connections) {
        exchange_add(x, "Connection", "close");
        http_fail(e, 503, NULL, NULL, "there are more than %d connections (--max-connections)", h->o.max_connections);
    } else if (!host && strcmp(version, "HTTP/1.0") != 0) {
        http_fail(e, 400, NULL, NULL, "the Host header is missing");
    } else if (!host_allowed(h, host) || !host_allowed(h, target)) {
        bool header = !host_allowed(h, host);
        http_fail(e, 403, NULL, NULL, "the %s '%.100s' is not a name of this machine (--allow-host NAME permits one)",
                  header ? "Host header" : "target's host", header ? host : target);
    } else if (strcmp(method, "OPTIONS") == 0) {
        if (known) allow_header(x, known);
        preflight(x);
        e->status = 204;
    } else if (!page_allowed(x)) {
        const char *origin = exchange_header(x, "Origin");
        http_fail(e, 403, NULL, NULL, "a web page of another origin (%.100s) may ask nothing here (--cors permits "
                  "origins)", origin ? origin : "unknown");
    } else if (h->o.n_keys > 0 && !x->owner && !open) {
        http_fail(e, 401, "invalid_api_key", NULL,
                  "the API key is missing or wrong: send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'");
    } else if (!known) {
        http_fail(e, 404, NULL, NULL, "unknown endpoint '%.200s'", x->path);
    } else if (!x->route) {
        allow_header(x, known);
        http_fail(e, 405, NULL, NULL, "'%.200s' does not accept %.20s; use %s", x->path, method,
                  known & METHOD_POST ? "POST" : known & METHOD_GET ? "GET" : "DELETE");
    }
}
