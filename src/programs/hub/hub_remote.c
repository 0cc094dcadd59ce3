#include "programs/hub/hub_remote.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "programs/hub/hub_cache.h"
#include "programs/hub/hub_header.h"
#include "programs/hub/hub_walk.h"
#include "programs/program.h"

enum { MIB = 1 << 20, HEADERS_MAX = 24 * MIB };

typedef struct { const HubEnv *env; HubRemote *r; size_t left; } Read;

static bool is_small(const char *path)
{
    size_t n = strlen(path);
    return n > 5 && strcasecmp(path + n - 5, ".json") == 0;
}

/* Bytes from..to of a file are added to body. */
static bool read_range(Read *x, Bytes *body, const char *url, const HubFile *file, uint64_t to)
{
    char at[HUB_URL];
    Bytes more = { 0 };
    HubReply reply;
    HubAsk how = { .from = (int64_t) body->n, .to = (int64_t) to - 1, .most = (size_t) to - body->n };
    strcpy(at, url);
    if (how.most > x->left)
        return complain(x->env->o, "%s: its header is longer than the %d MB that are read for a plan; fetch it with "
                        "ratoon pull", file->path, HEADERS_MAX / MIB) == 0;
    bool good = hub_ask(&reply, &more, x->env, at, &how);
    bool whole = reply.status == 200 && how.from == 0, part = reply.status == 206 && reply.from == how.from;
    if (good && ((!whole && !part) || more.n != how.most))
        good = complain(x->env->o, "%s: its server answers %ld to a request for its header", file->path,
                        reply.status) == 0;
    x->left -= how.most;
    if (good) bytes_put(body, more.at, more.n);
    bytes_free(&more);
    return good;
}

/* The header, or the whole of a small file. */
static bool read_header(Read *x, Bytes *body, const HubFile *file)
{
    HubPlace place;
    int64_t header = 0;
    if (!hub_resolve(&place, x->env, &x->r->repo, file)) return false;
    for (uint64_t to = is_small(file->path) ? file->bytes : MIB; header == 0; to *= 4) {
        if (to > file->bytes) to = file->bytes;
        if (to > body->n + x->left) to = body->n + x->left;
        if (to <= body->n) break;
        if (!read_range(x, body, place.url, file, to)) return false;
        header = is_small(file->path) ? 1 : hub_header_length(body->at, body->n);
    }
    if (header > 0 && !body->failed) return true;
    return complain(x->env->o, "%s: %s", file->path, header < 0 ? "is neither GGUF nor safetensors" : x->left == 0 ?
                    "its header is too long to be read for a plan (24 MB); fetch it with ratoon pull" :
                    "ends within its header") == 0;
}

static bool write_stub(const HubRemote *r, const Bytes *body, const HubFile *file, const Options *o)
{
    char path[HUB_PATH];
    if (snprintf(path, sizeof path, "%s/%s", r->folder, base_name(file->path)) >= HUB_PATH) return false;
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    bool good = fd >= 0 && write(fd, body->at, body->n) == (ssize_t) body->n &&
                ftruncate(fd, (off_t) file->bytes) == 0;
    if (!good) complain(o, "%s: %s", path, strerror(errno));
    if (fd >= 0) close(fd);
    return good;
}

static bool make_stub(Read *x, const HubFile *file)
{
    Bytes body = { 0 };
    bool good = read_header(x, &body, file) && write_stub(x->r, &body, file, x->env->o);
    bytes_free(&body);
    return good;
}

static bool make_folder(HubRemote *r, const Options *o)
{
    const char *where = getenv("TMPDIR");
    if (snprintf(r->folder, sizeof r->folder, "%s/ratoon-plan-XXXXXX", where && *where ? where : "/tmp") >= HUB_PATH ||
        !mkdtemp(r->folder)) {
        complain(o, "%s: cannot be created: %s", r->folder, strerror(errno));
        r->folder[0] = 0;
    }
    return r->folder[0] != 0;
}

static bool make_stubs(HubRemote *r, const HubEnv *e, const HubChoice *c)
{
    Read x = { .env = e, .r = r, .left = HEADERS_MAX };
    for (size_t i = 0; i < c->n; i++)
        if (!make_stub(&x, c->at[i])) return false;
    r->bytes = c->bytes;
    hub_quant(r->quant, c->first->path);
    snprintf(r->file, sizeof r->file, "%s", c->folder ? "" : c->first->path);
    return snprintf(r->path, sizeof r->path, "%s%s%s", r->folder, c->folder ? "" : "/",
                    c->folder ? "" : base_name(c->first->path)) < HUB_PATH;
}

bool hub_remote_open(HubRemote *r, const Options *o, const char *text, HubKind wish)
{
    HubEnv e;
    HubName name;
    HubChoice c = { 0 };
    Error err;
    *r = (HubRemote) { 0 };
    if (hub_name_read(&name, text, &err) != ST_OK) return complain(o, "%s", err.text) == 0;
    bool good = hub_env_read(&e, o) && hub_repo_list(&r->repo, &e, &name) && hub_choose(&c, &e, &r->repo, wish) &&
                make_folder(r, o) && make_stubs(r, &e, &c);
    if (good && !hub_variants(&r->variants, &r->repo, c.folder ? HUB_DRAFTER : hub_kind(c.first->path)))
        good = complain(o, "out of memory") == 0;
    free(c.at);
    return good;
}

void hub_remote_close(HubRemote *r)
{
    HubWalk w;
    hub_walk(&w, r->folder);
    while (hub_walk_next(&w))
        if (w.folder) rmdir(w.path);
        else unlink(w.path);
    free(r->variants.at);
    hub_repo_free(&r->repo);
    *r = (HubRemote) { 0 };
}
