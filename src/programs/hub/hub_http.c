#include "programs/hub/hub_http.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "programs/program.h"

enum { REDIRECTS_MAX = 8, TRIES_MAX = 5, WAIT_MAX = 120 };

/* ---- addresses ---- */

static bool same_part(CURLU *a, CURLU *b, CURLUPart part, unsigned flags)
{
    char *x = NULL, *y = NULL;
    bool same = curl_url_get(a, part, &x, flags) == CURLUE_OK && curl_url_get(b, part, &y, flags) == CURLUE_OK &&
                strcasecmp(x, y) == 0;
    curl_free(x);
    curl_free(y);
    return same;
}

bool hub_same_origin(const char *a, const char *b)
{
    CURLU *x = curl_url(), *y = curl_url();
    bool same = x && y && curl_url_set(x, CURLUPART_URL, a, 0) == CURLUE_OK &&
                curl_url_set(y, CURLUPART_URL, b, 0) == CURLUE_OK && same_part(x, y, CURLUPART_SCHEME, 0) &&
                same_part(x, y, CURLUPART_HOST, 0) && same_part(x, y, CURLUPART_PORT, CURLU_DEFAULT_PORT);
    curl_url_cleanup(x);
    curl_url_cleanup(y);
    return same;
}

static bool secure(const char *url) { return strncasecmp(url, "https://", 8) == 0; }

/* Addresses as they may be shown: without the query, which can be a signature. */
static int shown(const char *url)
{
    size_t n = strcspn(url, "?");
    return (int) (n < 200 ? n : 200);
}

/* ---- a request ---- */

static void start_libcurl(void) { curl_global_init(CURL_GLOBAL_DEFAULT); }

/* libcurl knows one place, that of the system that it was built on; a program that was carried elsewhere looks for the
 * others. */
const char *hub_trust(void)
{
    static const char *const places[] = { "/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt",
                                          "/etc/ssl/ca-bundle.pem", "/etc/ssl/cert.pem" };
    const char *named = getenv("SSL_CERT_FILE");
    if (named && *named) return named;
    for (size_t i = 0; i < sizeof places / sizeof *places; i++)
        if (access(places[i], R_OK) == 0) return places[i];
    return NULL;
}

static bool header_is(const char **value, size_t *n, const char *line, size_t len, const char *name)
{
    size_t m = strlen(name);
    if (len <= m || line[m] != ':' || strncasecmp(line, name, m) != 0) return false;
    *value = line + m + 1;
    *n = len - m - 1;
    while (*n > 0 && strchr(" \t", **value)) { ++*value; --*n; }
    while (*n > 0 && strchr(" \t\r\n", (*value)[*n - 1])) --*n;
    return true;
}

static void keep_text(char *out, size_t cap, const char *s, size_t n)
{
    if (n >= cap) n = 0;
    memcpy(out, s, n);
    out[n] = 0;
}

/* W/"x" and "x" are x. */
static void keep_etag(char *out, size_t cap, const char *s, size_t n)
{
    if (n >= 2 && memcmp(s, "W/", 2) == 0) { s += 2; n -= 2; }
    if (n >= 2 && s[0] == '"' && s[n - 1] == '"') { s++; n -= 2; }
    keep_text(out, cap, s, n);
}

static int64_t number(const char *s, size_t n)
{
    int64_t v = 0;
    if (n == 0 || n > 15) return -1;
    for (size_t i = 0; i < n; i++) {
        if (s[i] < '0' || s[i] > '9') return -1;
        v = v * 10 + (s[i] - '0');
    }
    return v;
}

/* bytes 0-99/1000 */
static void keep_range(HubReply *r, const char *s, size_t n)
{
    const char *slash = memchr(s, '/', n), *dash = memchr(s, '-', n);
    if (n < 7 || strncasecmp(s, "bytes ", 6) != 0 || !slash || !dash || dash > slash || dash < s + 6) return;
    r->from = number(s + 6, (size_t) (dash - s - 6));
    r->total = number(slash + 1, (size_t) (s + n - slash - 1));
}

/* Link: <https://...>; rel="next" */
static void keep_link(HubReply *r, const char *s, size_t n)
{
    const char *close = memchr(s, '>', n);
    if (n > 1 && s[0] == '<' && close && memmem(close, (size_t) (s + n - close), "rel=\"next\"", 10))
        keep_text(r->next, sizeof r->next, s + 1, (size_t) (close - s - 1));
}

static size_t on_header(char *line, size_t size, size_t count, void *ud)
{
    HubReply *r = ud;
    size_t len = size * count, n;
    const char *v;
    if (header_is(&v, &n, line, len, "etag")) keep_etag(r->etag, sizeof r->etag, v, n);
    else if (header_is(&v, &n, line, len, "x-linked-etag")) keep_etag(r->linked_etag, sizeof r->linked_etag, v, n);
    else if (header_is(&v, &n, line, len, "x-linked-size")) r->linked_size = number(v, n);
    else if (header_is(&v, &n, line, len, "x-repo-commit")) keep_text(r->commit, sizeof r->commit, v, n);
    else if (header_is(&v, &n, line, len, "x-error-code")) keep_text(r->error, sizeof r->error, v, n);
    else if (header_is(&v, &n, line, len, "content-length")) r->length = number(v, n);
    else if (header_is(&v, &n, line, len, "content-range")) keep_range(r, v, n);
    else if (header_is(&v, &n, line, len, "retry-after")) r->retry_after = (int32_t) (n < 8 ? number(v, n) : -1);
    else if (header_is(&v, &n, line, len, "link")) keep_link(r, v, n);
    return len;
}

static int on_progress(void *ud, curl_off_t a, curl_off_t b, curl_off_t c, curl_off_t d)
{
    (void) ud, (void) a, (void) b, (void) c, (void) d;
    return interrupts > 0;
}

static bool add_header(HubRequest *r, const char *name, const char *value)
{
    char line[1024];
    snprintf(line, sizeof line, "%s%s", name, value);
    struct curl_slist *more = curl_slist_append(r->headers, line);
    if (more) r->headers = more;
    return more != NULL;
}

static bool set_up(HubRequest *r, const HubEnv *e, const char *url, const char *if_range)
{
    const char *protocols = secure(e->endpoint) ? "https" : "http,https", *trust = hub_trust();
    char tag[256];
    CURL *c = r->easy;
    snprintf(tag, sizeof tag, "\"%s\"", if_range ? if_range : "");
    if (e->token[0] && hub_same_origin(url, e->endpoint) && !add_header(r, "Authorization: Bearer ", e->token))
        return false;
    if (if_range && !add_header(r, "If-Range: ", tag)) return false;
    curl_easy_setopt(c, CURLOPT_URL, url);
    curl_easy_setopt(c, CURLOPT_HTTPHEADER, r->headers);
    curl_easy_setopt(c, CURLOPT_USERAGENT, "ratoon/" RATOON_VERSION);
    curl_easy_setopt(c, CURLOPT_FOLLOWLOCATION, 0L);
#if LIBCURL_VERSION_NUM >= 0x075500
    curl_easy_setopt(c, CURLOPT_PROTOCOLS_STR, protocols);
#else
    curl_easy_setopt(c, CURLOPT_PROTOCOLS, (long) (CURLPROTO_HTTPS | (protocols[4] == ',' ? CURLPROTO_HTTP : 0)));
#endif
    curl_easy_setopt(c, CURLOPT_HTTP_VERSION, (long) CURL_HTTP_VERSION_1_1);   /* a connection for each request */
    curl_easy_setopt(c, CURLOPT_ERRORBUFFER, r->trouble);
    curl_easy_setopt(c, CURLOPT_HEADERFUNCTION, on_header);
    curl_easy_setopt(c, CURLOPT_HEADERDATA, &r->reply);
    curl_easy_setopt(c, CURLOPT_NOPROGRESS, 0L);
    curl_easy_setopt(c, CURLOPT_XFERINFOFUNCTION, on_progress);
    curl_easy_setopt(c, CURLOPT_CONNECTTIMEOUT, 20L);
    curl_easy_setopt(c, CURLOPT_LOW_SPEED_LIMIT, 1L);
    curl_easy_setopt(c, CURLOPT_LOW_SPEED_TIME, 30L);
    curl_easy_setopt(c, CURLOPT_NOSIGNAL, 1L);
    if (trust) curl_easy_setopt(c, CURLOPT_CAINFO, trust);
    return true;
}

bool hub_request_open(HubRequest *r, const HubEnv *e, const char *url, const char *if_range)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, start_libcurl);
    *r = (HubRequest) { 0 };
    if (!secure(url) && (secure(e->endpoint) || strncasecmp(url, "http://", 7) != 0))
        return complain(e->o, "%.*s: expected an https:// address", shown(url), url) == 0;
    r->easy = curl_easy_init();
    hub_request_again(r);
    if (r->easy && set_up(r, e, url, if_range)) return true;
    hub_request_close(r);
    return complain(e->o, "out of memory for a request") == 0;
}

void hub_request_again(HubRequest *r)
{
    r->reply = (HubReply) { .linked_size = -1, .length = -1, .from = -1, .total = -1, .retry_after = -1 };
    r->trouble[0] = 0;
}

void hub_request_range(HubRequest *r, int64_t from, int64_t to)
{
    char range[64];
    if (to >= 0) snprintf(range, sizeof range, "%lld-%lld", (long long) from, (long long) to);
    else snprintf(range, sizeof range, "%lld-", (long long) from);
    curl_easy_setopt(r->easy, CURLOPT_RANGE, range);
}

void hub_request_close(HubRequest *r)
{
    curl_easy_cleanup(r->easy);
    curl_slist_free_all(r->headers);
    r->easy = NULL;
    r->headers = NULL;
}

/* ---- trying again ---- */

bool hub_passing(CURLcode code, const HubReply *reply)
{
    switch (code) {
    case CURLE_OK:
        return reply->status == 429 || reply->status == 408 || reply->status >= 500;
    case CURLE_COULDNT_RESOLVE_HOST: case CURLE_COULDNT_CONNECT: case CURLE_PARTIAL_FILE: case CURLE_GOT_NOTHING:
    case CURLE_OPERATION_TIMEDOUT: case CURLE_SEND_ERROR: case CURLE_RECV_ERROR: case CURLE_SSL_CONNECT_ERROR:
    case CURLE_HTTP2: case CURLE_HTTP2_STREAM: case CURLE_COULDNT_RESOLVE_PROXY: case CURLE_WEIRD_SERVER_REPLY:
        return true;
    default:
        return false;
    }
}

double hub_patience(const HubReply *reply, int32_t failures)
{
    if (reply->retry_after >= 0) return reply->retry_after > WAIT_MAX ? -1 : reply->retry_after;
    return 0.25 * (double) (1 << (failures < 7 ? failures : 7));
}

void hub_trouble(char out[512], const HubRequest *r, CURLcode code, const char *url)
{
    if (code == CURLE_OK && r->reply.retry_after > WAIT_MAX)
        snprintf(out, 512, "%.*s: answers %ld and asks to come back in %d minutes", shown(url), url, r->reply.status,
                 r->reply.retry_after / 60);
    else if (code == CURLE_OK) snprintf(out, 512, "%.*s: answers %ld", shown(url), url, r->reply.status);
    else snprintf(out, 512, "%.*s: %s", shown(url), url, r->trouble[0] ? r->trouble : curl_easy_strerror(code));
}

/* ---- small answers ---- */

typedef struct { Bytes *body; size_t most; bool over; } Sink;

static size_t on_body(char *s, size_t size, size_t count, void *ud)
{
    Sink *sink = ud;
    size_t n = size * count;
    if (!sink->body) return n;
    sink->over = n > sink->most - sink->body->n;
    if (sink->over) return 0;
    bytes_put(sink->body, s, n);
    return sink->body->failed ? 0 : n;
}

/* Waits unless Ctrl-C is pressed. */
static bool wait_for(double s)
{
    for (double left = s; left > 0 && interrupts == 0; left -= 0.05) usleep(50000);
    return interrupts == 0;
}

/* One request, repeated while that may help. to: where a redirect leads, or "". */
static bool ask_once(HubReply *out, Bytes *body, char to[HUB_URL], const HubEnv *e, const char *url, const HubAsk *how)
{
    HubRequest r;
    Sink sink = { .body = body, .most = how->most };
    CURLcode code = CURLE_OK;
    bool good = false;
    if (!hub_request_open(&r, e, url, NULL)) return false;
    if (how->head) curl_easy_setopt(r.easy, CURLOPT_NOBODY, 1L);
    if (how->to > 0) hub_request_range(&r, how->from, how->to);
    curl_easy_setopt(r.easy, CURLOPT_WRITEFUNCTION, on_body);
    curl_easy_setopt(r.easy, CURLOPT_WRITEDATA, &sink);
    for (int32_t failures = 0;; failures++) {
        hub_request_again(&r);
        if (body) body->n = 0;
        code = curl_easy_perform(r.easy);
        curl_easy_getinfo(r.easy, CURLINFO_RESPONSE_CODE, &r.reply.status);
        good = code == CURLE_OK && !hub_passing(code, &r.reply);
        double wait = hub_patience(&r.reply, failures);
        if (good || interrupts || !hub_passing(code, &r.reply) || failures + 1 == TRIES_MAX || wait < 0 ||
            !wait_for(wait)) break;
    }
    char *redirect = NULL, why[512];
    to[0] = 0;
    if (good && curl_easy_getinfo(r.easy, CURLINFO_REDIRECT_URL, &redirect) == CURLE_OK && redirect)
        keep_text(to, HUB_URL, redirect, strlen(redirect));
    hub_trouble(why, &r, code, url);
    *out = r.reply;
    hub_request_close(&r);
    if (good) return true;
    if (interrupts) return complain(e->o, "interrupted") == 0;
    if (sink.over && how->to > 0)
        return complain(e->o, "%.*s: this server does not send parts of files, so the whole has to be fetched (ratoon "
                        "pull)", shown(url), url) == 0;
    if (sink.over)
        return complain(e->o, "%.*s: answers with more than %zu bytes", shown(url), url, how->most) == 0;
    return complain(e->o, "%s", why) == 0;
}

bool hub_ask(HubReply *out, Bytes *body, const HubEnv *e, char url[HUB_URL], const HubAsk *how)
{
    char to[HUB_URL];
    for (int32_t i = 0; i <= REDIRECTS_MAX; i++) {
        if (!ask_once(out, body, to, e, url, how)) return false;
        if (out->status < 300 || out->status > 399) return true;
        if (!to[0]) return complain(e->o, "%.*s: redirects to nowhere", shown(url), url) == 0;
        if (secure(url) && !secure(to))
            return complain(e->o, "%.*s: redirects from https to %.*s, refused", shown(url), url, shown(to), to) == 0;
        bool leaves = !hub_same_origin(to, e->endpoint);
        strcpy(url, to);
        if (how->stay && leaves) return true;
    }
    return complain(e->o, "%.*s: redirects more than %d times", shown(url), url, REDIRECTS_MAX) == 0;
}
