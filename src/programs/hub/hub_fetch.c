#include "programs/hub/hub_fetch.h"

#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "programs/hub/hub_part.h"
#include "programs/program.h"

enum { LANES = 4, FAILURES_MAX = 8, EXPIRED_MAX = 4 };
static const double SAVE_EVERY = 5;

typedef struct Fetch Fetch;

/* One connection and the piece it fetches. */
typedef struct {
    Fetch     *f;
    HubRequest r;
    bool       open, sent;                         /* a request exists; it is with libcurl */
    size_t     piece;
    uint64_t   begun;                              /* done[piece] when the request was sent */
    int32_t    failures;                           /* one after the other, without a byte between that stays */
    double     not_before;
} Lane;

struct Fetch {
    const HubEnv  *env;
    const HubRepo *repo;
    const HubFile *file;
    HubPlace       place;
    HubPart        part;
    CURLM         *multi;
    Lane           lane[LANES];
    bool          *taken;                          /* [part.n] pieces that a lane has */
    bool           whole;                          /* the server knows no ranges: one request for all */
    bool           foreign;                        /* place.url is not the hub's own */
    int32_t        expired;                        /* links, one after the other, that had expired */
    Progress       bar;
    double         saved;
    Status         status;                         /* anything but ST_OK ends it; `reported`: it has been said */
    bool           reported;
    Error          err;
};

void hub_size(char out[32], uint64_t bytes)
{
    double b = (double) bytes;
    if (b >= 1e9) snprintf(out, 32, "%.2f GB", b / 1e9);
    else if (b >= 1e6) snprintf(out, 32, "%.1f MB", b / 1e6);
    else snprintf(out, 32, "%.1f kB", b / 1e3);
}

static size_t stop(Fetch *f, Status status)
{
    if (f->status == ST_OK) f->status = status;
    return 0;
}

static void reported(Fetch *f)
{
    f->reported = true;
    stop(f, ST_IO);
}

/* ---- bytes that arrive ---- */

/* Whether the answer is the range that was asked for. */
static bool range_fits(Lane *l)
{
    Fetch *f = l->f;
    const HubReply *r = &l->r.reply;
    uint64_t at = l->piece * f->part.piece + l->begun;
    if (f->whole) return r->status == 200;
    return r->status == 206 && r->from == (int64_t) at && r->total == (int64_t) f->part.size;
}

static uint64_t lane_length(const Lane *l)
{
    return l->f->whole ? l->f->part.size : hub_part_length(&l->f->part, l->piece);
}

/* In a request for the whole file, done[0] counts all bytes until they are spread over the pieces. */
static size_t on_bytes(char *s, size_t size, size_t count, void *ud)
{
    Lane *l = ud;
    Fetch *f = l->f;
    size_t n = size * count;
    uint64_t *done = &f->part.done[l->piece];
    curl_easy_getinfo(l->r.easy, CURLINFO_RESPONSE_CODE, &l->r.reply.status);
    if (l->r.reply.status >= 300) return n;        /* a page about an error */
    if (!range_fits(l) || n > lane_length(l) - *done) {
        if (f->whole || l->r.reply.status != 200)
            stop(f, fail(&f->err, ST_IO, "%s: the server sends other bytes than those that were asked for",
                         f->file->path));
        return 0;
    }
    if (hub_part_write(&f->part, l->piece * f->part.piece + *done, s, n, &f->err) != ST_OK)
        return stop(f, f->err.code);
    *done += n;
    if (!f->whole) l->failures = 0;                /* else what has come is fetched again */
    f->expired = 0;
    return n;
}

/* ---- sending ---- */

static bool take_piece(Fetch *f, size_t *piece)
{
    size_t n = f->whole ? 1 : f->part.n;
    for (size_t i = 0; i < n; i++) {
        uint64_t length = f->whole ? f->part.size : hub_part_length(&f->part, i);
        if (f->taken[i] || f->part.done[i] == length) continue;
        f->taken[i] = true;
        *piece = i;
        return true;
    }
    return false;
}

static bool send_lane(Lane *l)
{
    Fetch *f = l->f;
    uint64_t start = l->piece * f->part.piece;
    if (!hub_request_open(&l->r, f->env, f->place.url, f->foreign || f->whole ? NULL : f->place.etag)) {
        reported(f);
        return false;
    }
    l->open = true;
    if (f->whole) f->part.done[0] = 0;
    l->begun = f->part.done[l->piece];
    if (!f->whole)
        hub_request_range(&l->r, (int64_t) (start + l->begun),
                          (int64_t) (start + hub_part_length(&f->part, l->piece) - 1));
    curl_easy_setopt(l->r.easy, CURLOPT_WRITEFUNCTION, on_bytes);
    curl_easy_setopt(l->r.easy, CURLOPT_WRITEDATA, l);
    curl_easy_setopt(l->r.easy, CURLOPT_PRIVATE, l);
    l->sent = curl_multi_add_handle(f->multi, l->r.easy) == CURLM_OK;
    if (!l->sent) stop(f, fail(&f->err, ST_MEMORY, "%s: out of memory", f->file->path));
    return l->sent;
}

static void retire(Lane *l)
{
    if (l->sent) curl_multi_remove_handle(l->f->multi, l->r.easy);
    if (l->open) hub_request_close(&l->r);
    l->sent = l->open = false;
}

/* Gives lanes without a request their next one. Returns how many lanes have something to do. */
static int32_t send_more(Fetch *f)
{
    int32_t busy = 0;
    double now = seconds_now();
    for (int32_t i = 0; i < LANES && f->status == ST_OK; i++) {
        Lane *l = &f->lane[i];
        bool waits = l->not_before > 0;            /* it has a piece, to be asked for again */
        if (!l->sent && !waits && !take_piece(f, &l->piece)) continue;
        busy++;
        if (l->sent || (waits && now < l->not_before)) continue;
        l->not_before = 0;
        send_lane(l);
    }
    return busy;
}

/* ---- answers ---- */

/* All lanes let go; the file is fetched from its start in one request. */
static void without_ranges(Fetch *f)
{
    for (int32_t i = 0; i < LANES; i++) {
        retire(&f->lane[i]);
        f->lane[i].not_before = 0;
        f->lane[i].failures = 0;
    }
    memset(f->taken, 0, f->part.n * sizeof *f->taken);
    hub_part_restart(&f->part);
    f->whole = true;
}

static void again(Lane *l, double wait) { l->not_before = seconds_now() + wait; }

static void resolve_anew(Lane *l)
{
    Fetch *f = l->f;
    if (++f->expired > EXPIRED_MAX) {
        complain(f->env->o, "%s: the server of its bytes refuses every link (%ld)", f->file->path, l->r.reply.status);
        reported(f);
    } else if (!hub_resolve(&f->place, f->env, f->repo, f->file)) {
        reported(f);
    } else {
        f->foreign = !hub_same_origin(f->place.url, f->env->endpoint);
        again(l, 0.01);
    }
}

static void give_up(Lane *l, CURLcode code)
{
    char why[512];
    hub_trouble(why, &l->r, code, l->f->place.url);
    stop(l->f, fail(&l->f->err, ST_IO, "%s", why));
}

/* A request is over. */
static void settle(Lane *l, CURLcode code)
{
    Fetch *f = l->f;
    const HubReply *r = &l->r.reply;
    long status = 0;
    curl_easy_getinfo(l->r.easy, CURLINFO_RESPONSE_CODE, &status);
    l->r.reply.status = status;
    if (f->status != ST_OK || interrupts) return;
    bool link = status == 403 || status == 410 || status == 401 || status == 404 ||
                (status == 400 && f->foreign) || (status >= 300 && status < 400);
    if (code == CURLE_OK && status < 300 && f->part.done[l->piece] == lane_length(l)) {
        f->taken[l->piece] = f->whole;             /* it is complete: never taken again */
    } else if (status == 200 && !f->whole) {
        without_ranges(f);
    } else if (code == CURLE_OK && link) {
        resolve_anew(l);
    } else if (hub_passing(code, r) || (code == CURLE_OK && status < 300)) {
        double wait = hub_patience(r, l->failures++);
        if (wait < 0 || l->failures > FAILURES_MAX) give_up(l, code);
        else again(l, wait);
    } else {
        give_up(l, code);
    }
}

static void collect(Fetch *f)
{
    int left;
    for (CURLMsg *m; (m = curl_multi_info_read(f->multi, &left));) {
        Lane *l = NULL;
        CURLcode code = m->data.result;
        if (m->msg != CURLMSG_DONE || curl_easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, (char **) &l) != CURLE_OK)
            continue;
        settle(l, code);
        retire(l);
    }
}

/* ---- the whole file ---- */

static void show(Fetch *f)
{
    double now = seconds_now();
    progress_to(&f->bar, hub_part_have(&f->part) / 1000000);
    if (now - f->saved < SAVE_EVERY || f->whole) return;
    f->saved = now;
    if (hub_part_save(&f->part, &f->err) != ST_OK) stop(f, f->err.code);
}

static void fetch_all(Fetch *f)
{
    int running;
    while (f->status == ST_OK && interrupts == 0 && send_more(f) > 0) {
        if (curl_multi_perform(f->multi, &running) != CURLM_OK ||
            curl_multi_poll(f->multi, NULL, 0, 100, NULL) != CURLM_OK) {
            stop(f, fail(&f->err, ST_IO, "%s: waiting for the network failed", f->file->path));
            break;
        }
        collect(f);
        show(f);
    }
    for (int32_t i = 0; i < LANES; i++) retire(&f->lane[i]);
}

/* Hexadecimal SHA-256 of the file; false if it could not be read. */
static bool sum_file(char out[65], Fetch *f)
{
    enum { PIECE = 1 << 20 };
    unsigned char *bytes = malloc(PIECE), digest[EVP_MAX_MD_SIZE];
    EVP_MD_CTX *c = EVP_MD_CTX_new();
    bool good = bytes && c && EVP_DigestInit_ex(c, EVP_sha256(), NULL) == 1;
    uint64_t at = 0;
    Progress bar;
    progress_start_long(&bar, "checking", f->part.size / 1000000, f->env->o->quiet);
    bar.unit = "MB";
    while (good && at < f->part.size && interrupts == 0) {
        ssize_t n = pread(f->part.fd, bytes, PIECE, (off_t) at);
        good = n > 0 && EVP_DigestUpdate(c, bytes, (size_t) n) == 1;
        at += n > 0 ? (uint64_t) n : 0;
        progress_to(&bar, at / 1000000);
    }
    progress_end(&bar);
    good = good && interrupts == 0 && EVP_DigestFinal_ex(c, digest, NULL) == 1;
    for (int i = 0; good && i < 32; i++) snprintf(out + 2 * i, 3, "%02x", digest[i]);
    EVP_MD_CTX_free(c);
    free(bytes);
    return good;
}

/* What the hub says about the content: of large files also their tag in the cache is the SHA-256. */
static const char *wanted_sum(const Fetch *f)
{
    if (f->file->sha256[0]) return f->file->sha256;
    return strlen(f->place.etag) == 64 && hub_commit_good(f->place.etag) ? f->place.etag : NULL;
}

static bool check_sum(Fetch *f)
{
    char sum[65] = "";
    const char *wanted = wanted_sum(f);
    if (!wanted) return true;
    if (!sum_file(sum, f)) {
        if (interrupts == 0) complain(f->env->o, "%s: cannot be read back", f->part.path);
        return false;
    }
    if (strcmp(sum, wanted) == 0) return true;
    hub_part_drop(&f->part);
    return complain(f->env->o, "%s: its SHA-256 is %.16s..., the hub says %.16s...: deleted; fetch it again", 
                    f->file->path, sum, wanted) == 0;
}

/* Keeps what is there for the next time, and says why there is a next time. */
static bool stopped(Fetch *f)
{
    char have[32], size[32];
    const Options *o = f->env->o;
    Error err;
    if (f->whole) hub_part_restart(&f->part);
    bool kept = hub_part_have(&f->part) > 0;
    hub_part_save(&f->part, &err);                 /* if that fails, the journal of a few seconds ago counts */
    hub_size(have, hub_part_have(&f->part));
    hub_size(size, f->part.size);
    if (!kept) hub_part_drop(&f->part);
    const char *first = interrupts ? "interrupted" : f->reported ? "stopped" : f->err.text;
    if (kept) complain(o, "%s: %s; %s of %s are kept: the same command goes on from there", f->file->path, first, have,
                       size);
    else if (!f->reported) complain(o, "%s: %s; nothing of it is kept", f->file->path, first);
    return false;
}

static bool run(Fetch *f, const char *target)
{
    char label[40];
    snprintf(label, sizeof label, "%.36s", base_name(f->file->path));
    line_clean(label);
    progress_start_long(&f->bar, label, f->part.size / 1000000, f->env->o->quiet);
    f->bar.unit = "MB";
    f->saved = seconds_now();
    fetch_all(f);
    progress_end(&f->bar);
    if (f->status != ST_OK || interrupts) return stopped(f);
    if (!check_sum(f)) return interrupts ? stopped(f) : false;
    return hub_part_finish(&f->part, target, &f->err) == ST_OK || complain(f->env->o, "%s", f->err.text) == 0;
}

bool hub_fetch(const HubEnv *e, const HubRepo *repo, const HubFile *file, const HubPlace *place, const char *target)
{
    Fetch *f = calloc(1, sizeof *f);
    bool good = false;
    if (!f) return complain(e->o, "%s: out of memory", file->path) == 0;
    *f = (Fetch) { .env = e, .repo = repo, .file = file, .place = *place, .part = { .fd = -1, .journal = -1 } };
    f->foreign = !hub_same_origin(place->url, e->endpoint);
    for (int32_t i = 0; i < LANES; i++) f->lane[i].f = f;
    Status st = hub_part_open(&f->part, target, file->bytes, &f->err);
    f->multi = curl_multi_init();
    f->taken = calloc(f->part.n + 1, sizeof *f->taken);
    if (st != ST_OK) complain(e->o, "%s", f->err.text);
    else if (!f->multi || !f->taken) complain(e->o, "%s: out of memory", file->path);
    else good = run(f, target);
    curl_multi_cleanup(f->multi);
    hub_part_close(&f->part);
    free(f->taken);
    free(f);
    return good;
}
