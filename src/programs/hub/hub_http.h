/* hub_http.h - one request to the hub or to where it redirects, by libcurl. Redirects are followed here and not by the
 * library, since the token may go to the hub's own origin (scheme, host and port) only; from https they lead to https
 * only, and http is spoken at all only if HF_ENDPOINT says so. Certificates are always checked. Proxies are libcurl's
 * (https_proxy, no_proxy ...). Nothing here knows the server's requests: the network is asked because the user named a
 * repository. */
#ifndef RATOON_PROGRAMS_HUB_HTTP_H
#define RATOON_PROGRAMS_HUB_HTTP_H

#include <curl/curl.h>

#include "base/bytes.h"
#include "programs/hub/hub_env.h"

enum { HUB_URL = 8192 };

/* What an answer's headers say; "" and -1: nothing. */
typedef struct {
    long    status;                                /* 0: there was no answer */
    char    etag[160], linked_etag[160], commit[96], error[64], next[HUB_URL];
    int64_t linked_size, length, from, total;      /* from, total: of Content-Range */
    int32_t retry_after;                           /* seconds */
} HubReply;

/* A request made ready. It must not move in memory while it exists. */
typedef struct {
    CURL              *easy;
    struct curl_slist *headers;
    HubReply           reply;
    char               trouble[CURL_ERROR_SIZE];
} HubRequest;

/* Returns false after reporting that url may not be asked or memory ran out. if_range: an entity tag, or NULL. */
bool hub_request_open(HubRequest *r, const HubEnv *e, const char *url, const char *if_range);
/* Asks for bytes from..to, both included; to -1: up to the end. */
void hub_request_range(HubRequest *r, int64_t from, int64_t to);
void hub_request_close(HubRequest *r);
/* Before the same request is sent again. */
void hub_request_again(HubRequest *r);
/* Whether sending it again may help: the connection broke, or the server is busy (429, 5xx). */
bool hub_passing(CURLcode code, const HubReply *reply);
/* Seconds to wait before try number `failures` + 1; -1: the server wants more patience than we have. */
double hub_patience(const HubReply *reply, int32_t failures);
/* One line about why a request failed, without the URL's query, which may be signed. */
void hub_trouble(char out[512], const HubRequest *r, CURLcode code, const char *url);
/* The file of certificates that are trusted: SSL_CERT_FILE, or the system's; NULL: what libcurl has. */
const char *hub_trust(void);
bool hub_same_origin(const char *a, const char *b);

/* head: only the headers. stay: a redirect to another origin is the answer, and where it leads becomes *url. The body
 * is at most `most` bytes. */
typedef struct { bool head, stay; int64_t from, to; size_t most; } HubAsk;
/* A GET or HEAD that is repeated while that may help. *url becomes the address that answered. True: there is an answer
 * of any status below 500; false after reporting why there is none, or that Ctrl-C was pressed. */
bool hub_ask(HubReply *out, Bytes *body, const HubEnv *e, char url[HUB_URL], const HubAsk *how);

#endif
