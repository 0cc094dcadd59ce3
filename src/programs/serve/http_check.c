/* http_check.c - what the request line and the headers decide: the route, limits, who may ask, and from where. */
#include "programs/serve/http_impl.h"

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

/* The host of "host", "host:port" or "[v6]:port". */
static bool host_part(char out[256], const char *s)
{
    size_t n = s[0] == '[' ? strcspn(s, "]") + (strchr(s, ']') != NULL) : strcspn(s, ":");
    if (n == 0 || n >= 256) return false;
    memcpy(out, s, n);
    out[n] = 0;
    return true;
}

static bool is_address(const char *host)
{
    unsigned char to[16];
    char inner[256];
    if (host[0] != '[') return inet_pton(AF_INET, host, to) == 1;
    snprintf(inner, sizeof inner, "%s", host + 1);
    inner[strcspn(inner, "]")] = 0;
    return inet_pton(AF_INET6, inner, to) == 1;
}

static bool is_localhost(const char *host)
{
    size_t n = strlen(host);
    return strcasecmp(host, "localhost") == 0 || (n > 10 && strcasecmp(host + n - 10, ".localhost") == 0);
}

/* A page in the user's browser can make its own name point here; its requests then carry that name. Where a container listens on every
 * address, its port may still be published on this machine alone, so the rule is not one of loopback. */
static bool host_allowed(const Http *h, const char *host)
{
    char name[256];
    if (h->o.n_keys > 0 || begins(h->url, "unix:")) return true;
    if (!host) return true;                        /* HTTP/1.0; no browser sends such */
    if (!host_part(name, host)) return false;
    if (is_address(name) || is_localhost(name)) return true;
    for (int32_t i = 0; i < h->o.n_hosts; i++)
        if (strcasecmp(name, h->o.hosts[i]) == 0) return true;
    return false;
}

static bool origin_is_local(const char *origin)
{
    const char *p = strstr(origin, "://");
    char name[256];
    if (!p || !host_part(name, p + 3)) return false;
    return is_localhost(name) || begins(name, "127.") || strcmp(name, "[::1]") == 0;
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

/* ---- who asks ---- */

/* The time depends on the length of what was sent, not on what it has in common with a key. */
static bool same_key(const char *given, const char *key)
{
    size_t n = strlen(given), m = strlen(key);
    unsigned char differs = n != m;
    for (size_t i = 0; i < n; i++) differs |= (unsigned char) given[i] ^ (unsigned char) key[m ? i % m : 0];
    return differs == 0;
}

static bool has_key(const Exchange *x)
{
    const HttpOptions *o = &x->http->o;
    const char *given = exchange_header(x, "Authorization");
    if (o->n_keys == 0) return true;
    if (given && strncasecmp(given, "Bearer ", 7) == 0) given += 7;
    else given = NULL;
    if (!given) given = exchange_header(x, "x-api-key");
    if (!given) given = exchange_header(x, "api-key");
    if (!given) return false;
    given += strspn(given, " ");
    bool found = false;
    for (int32_t i = 0; i < o->n_keys; i++) found |= same_key(given, o->keys[i]);
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

static const Route *find_path(const HttpOptions *o, const char *path, uint32_t method, const char **tail, uint32_t *known)
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

/* As it is, with "/v1" in front, and without one or two of them: base URLs are often given with one too few or too many. */
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

static bool set_path(Exchange *x, const char *url)
{
    const char *prefix = x->http->o.prefix;
    size_t n = strlen(prefix);
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
    snprintf(list, sizeof list, "%s%s%sOPTIONS", known & METHOD_GET ? "GET, HEAD, " : "", known & METHOD_POST ? "POST, " : "", known & METHOD_DELETE ? "DELETE, " : "");
    exchange_add(x, "Allow", list);
}

static void preflight(Exchange *x)
{
    if (!x->http->o.cors) return;
    exchange_add(x, "Access-Control-Allow-Methods", "GET, POST, DELETE, OPTIONS");
    exchange_add(x, "Access-Control-Allow-Headers", "*, authorization, content-type, x-api-key, anthropic-version, anthropic-beta, x-request-id");
    exchange_add(x, "Access-Control-Max-Age", "600");
}

/* ---- framing ---- */

typedef struct { const char *length; int lengths; bool contradict, chunked; } Framing;

static enum MHD_Result see_header(void *cls, enum MHD_ValueKind kind, const char *key, const char *value)
{
    Framing *f = cls;
    (void) kind;
    if (strcasecmp(key, "Transfer-Encoding") == 0) f->chunked = true;
    if (strcasecmp(key, "Content-Length") != 0) return MHD_YES;
    if (f->lengths++ && strcmp(f->length, value ? value : "") != 0) f->contradict = true;
    f->length = value ? value : "";
    return MHD_YES;
}

static bool framing_refused(Exchange *x)
{
    Framing f = { .length = "" };
    MHD_get_connection_values(x->mhd, MHD_HEADER_KIND, see_header, &f);
    if (f.contradict || (f.lengths && f.chunked)) {
        exchange_add(x, "Connection", "close");
        return !http_fail(&x->refusal, 400, NULL, NULL, f.contradict ? "there are two different Content-Length headers" : "there can be only one of Content-Length and Transfer-Encoding");
    }
    unsigned long long n = f.lengths ? strtoull(f.length, NULL, 10) : 0;
    if (n > x->http->o.max_body)
        return !http_fail(&x->refusal, 413, NULL, NULL, "the body has %llu bytes, at most %zu are taken (--max-body)", n, x->http->o.max_body);
    const char *coding = exchange_header(x, "Content-Encoding");
    if (coding && strcasecmp(coding, "identity") != 0) return !http_fail(&x->refusal, 415, NULL, NULL, "Content-Encoding '%.40s' is not supported, send the body as it is", coding);
    return false;
}

static bool size_refused(Exchange *x, size_t line_bytes)
{
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(x->mhd, MHD_CONNECTION_INFO_REQUEST_HEADER_SIZE);
    if (line_bytes > LINE_MAX_BYTES) return !http_fail(&x->refusal, 414, NULL, NULL, "the request line is longer than %d bytes", LINE_MAX_BYTES);
    if (info && info->header_size > HEADERS_MAX) return !http_fail(&x->refusal, 431, NULL, NULL, "the headers are longer than %d bytes", HEADERS_MAX);
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
    (void) version;
    take_id(x);
    if (!set_path(x, url)) {
        http_fail(e, 500, NULL, NULL, "out of memory");
        return;
    }
    x->method = method_bit(method);
    x->route = find_route(x, &known);
    if (x->route) x->dialect = x->route->dialect;
    else x->dialect = strstr(x->path, "/messages") ? DIALECT_MESSAGES : DIALECT_CHAT;
    if (size_refused(x, line_bytes) || framing_refused(x)) return;
    const char *host = exchange_header(x, "Host");
    if (h->n_conns > h->o.max_connections) {
        exchange_add(x, "Connection", "close");
        http_fail(e, 503, NULL, NULL, "there are more than %d connections (--max-connections)", h->o.max_connections);
    } else if (!host_allowed(h, host)) {
        http_fail(e, 403, NULL, NULL, "the Host header '%.100s' is not a name of this machine (--allow-host NAME permits one)", host);
    } else if (strcmp(method, "OPTIONS") == 0) {
        if (known) allow_header(x, known);
        preflight(x);
        e->status = 204;
    } else if (!has_key(x) && !(x->route && (x->route->flags & ROUTE_OPEN)) && !(x->route && (x->route->flags & ROUTE_METRICS) && h->o.public_metrics)) {
        http_fail(e, 401, "invalid_api_key", NULL, "the API key is missing or wrong: send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'");
    } else if (!known) {
        http_fail(e, 404, NULL, NULL, "there is no '%.200s' here", x->path);
    } else if (!x->route) {
        allow_header(x, known);
        http_fail(e, 405, NULL, NULL, "'%.200s' takes no %.20s", x->path, method);
    }
}
