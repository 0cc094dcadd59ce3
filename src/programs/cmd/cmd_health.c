/* ratoon health: whether a server is ready, for those who start servers: container engines, systemd, scripts. The route
 * needs no key, so none is sent. */
#include <curl/curl.h>
#include <string.h>
#include <strings.h>

#include "programs/hub/hub_http.h"
#include "programs/program.h"

enum { URL_MAX = 2048, BODY_MAX = 4096, SECONDS = 10 };

/* Where the server is. ours: on this machine, as the options of `serve` say. */
typedef struct { char url[URL_MAX]; const char *socket; bool ours; } Place;
typedef struct { char text[BODY_MAX + 1]; size_t n; } Body;

static bool begins(const char *s, const char *with) { return strncasecmp(s, with, strlen(with)) == 0; }

static bool put_url(Place *p, const Options *o, const char *base, const char *prefix)
{
    size_t n = strlen(base);
    while (n > 0 && base[n - 1] == '/') n--;
    int written = snprintf(p->url, URL_MAX, "%.*s%s/health/ready", (int) n, base, prefix);
    return written < URL_MAX || complain(o, "the address is longer than %d bytes", URL_MAX) == EXIT_FINE;
}

/* HOST:PORT and PORT, of this machine, are http. */
static bool place_of_word(Place *p, const Options *o, const char *word)
{
    char base[URL_MAX];
    const bool port = *word && strspn(word, "0123456789") == strlen(word);
    if (begins(word, "http://") || begins(word, "https://")) return put_url(p, o, word, "");
    if (!*word || *word == '/' || strstr(word, "://"))
        return complain(o, "%.200s: expected http://HOST:PORT, https://HOST:PORT, HOST:PORT or PORT",
                        word) == EXIT_FINE;
    snprintf(base, sizeof base, "http://%s%s", port ? "127.0.0.1:" : "", word);    /* cut off, it is still too long */
    return put_url(p, o, base, "");
}

/* Linux connects to this machine where the address is that of all addresses (0.0.0.0). */
static bool place_of_options(Place *p, const Options *o)
{
    const char *host = o->host ? o->host : "127.0.0.1", *scheme = o->tls_cert ? "https" : "http";
    const int32_t port = o->port < 0 ? 8080 : o->port;
    char base[URL_MAX];
    p->ours = true;
    if (port == 0) return complain(o, "--port 0 names no port, expected the one that the server took") == EXIT_FINE;
    if (strncmp(host, "unix:", 5) == 0) {
        p->socket = host + 5;
        host = "localhost";
    }
    const bool six = strchr(host, ':') != NULL;
    int n = snprintf(base, sizeof base, "%s://%s%s%s:%d", scheme, six ? "[" : "", host, six ? "]" : "", port);
    if (n >= URL_MAX) return complain(o, "--host is longer than %d bytes", URL_MAX) == EXIT_FINE;
    return put_url(p, o, base, o->api_prefix ? o->api_prefix : "");
}

static size_t on_body(char *s, size_t size, size_t count, void *ud)
{
    Body *b = ud;
    const size_t n = size * count, room = BODY_MAX - b->n, taken = n < room ? n : room;
    memcpy(b->text + b->n, s, taken);
    b->n += taken;
    return n;
}

/* The server's certificate is trusted as it is, and on this machine its name may be any. */
static void set_trust(CURL *c, const Place *p, const Options *o)
{
    const char *trust = o->tls_cert ? o->tls_cert : hub_trust();
    if (trust) curl_easy_setopt(c, CURLOPT_CAINFO, trust);
    if (!p->ours) return;
    curl_easy_setopt(c, CURLOPT_SSL_VERIFYHOST, 0L);
    curl_easy_setopt(c, CURLOPT_NOPROXY, "*");
    if (p->socket) curl_easy_setopt(c, CURLOPT_UNIX_SOCKET_PATH, p->socket);
}

/* The message in an answer of the server, or "". The text lives in *answer. */
static const char *message_of(json_t **answer, const Body *b)
{
    *answer = json_loadb(b->text, b->n, 0, NULL);
    const char *s = json_string_value(json_object_get(json_object_get(*answer, "error"), "message"));
    return s ? s : "";
}

static int tell(const Options *o, const Place *p, const Body *b, CURLcode code, long status, const char *trouble)
{
    json_t *answer = NULL;
    int result = EXIT_FINE;
    if (code != CURLE_OK) {
        result = complain(o, "%s: %s", p->url, *trouble ? trouble : curl_easy_strerror(code));
    } else if (status != 200) {
        const char *message = message_of(&answer, b);
        result = complain(o, "%s: answers %ld%s%.200s", p->url, status, *message ? ", " : "", message);
    } else {
        puts("ready");
        result = output_done(o);
    }
    json_decref(answer);
    return result;
}

static int ask(const Options *o, const Place *p)
{
    char trouble[CURL_ERROR_SIZE] = "";
    Body body = { .n = 0 };
    long status = 0;
    CURL *c = curl_easy_init();
    if (!c) return complain(o, "out of memory");
    curl_easy_setopt(c, CURLOPT_URL, p->url);
    curl_easy_setopt(c, CURLOPT_USERAGENT, "ratoon/" RATOON_VERSION);
    curl_easy_setopt(c, CURLOPT_TIMEOUT, (long) SECONDS);
    curl_easy_setopt(c, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(c, CURLOPT_ERRORBUFFER, trouble);
    curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, on_body);
    curl_easy_setopt(c, CURLOPT_WRITEDATA, &body);
    set_trust(c, p, o);
    const CURLcode code = curl_easy_perform(c);
    curl_easy_getinfo(c, CURLINFO_RESPONSE_CODE, &status);
    curl_easy_cleanup(c);
    return tell(o, p, &body, code, status, trouble);
}

int cmd_health(int argc, char **argv)
{
    Options o;
    Place p = { .socket = NULL };
    int status;
    if (!options_read(&o, argc, argv, &status)) return status;
    const bool good = o.n_words > 0 ? place_of_word(&p, &o, o.word[0]) : place_of_options(&p, &o);
    return good ? ask(&o, &p) : EXIT_FAILED;
}
