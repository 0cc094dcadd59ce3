#include "programs/hub/hub_remove.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/grow.h"
#include "programs/hub/hub_env.h"
#include "programs/hub/hub_part.h"
#include "programs/hub/hub_walk.h"
#include "programs/program.h"

static bool put(char out[HUB_PATH], const char *folder, const char *name)
{
    return snprintf(out, HUB_PATH, "%s/%s", folder, name) < HUB_PATH;
}

/* A link to one does not count. */
static bool is_own_folder(const char *path)
{
    struct stat st;
    return lstat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

/* Whether a file of a snapshot belongs to the model; only NULL: everything does. */
static bool belongs(const char *name, const char *only)
{
    char part[600];
    int32_t i, parts, own, others;
    if (!only) return true;
    if (!hub_split(only, &i, &parts) || !hub_split(name, &own, &others)) return strcmp(name, only) == 0;
    return hub_split_name(part, sizeof part, only, own) && strcmp(name, part) == 0;
}

static bool add_link(HubRemoval *r, const char *link, const char *name, const char *only)
{
    char blobs[HUB_PATH];
    struct stat st;
    char *real = realpath(link, NULL), *root = put(blobs, r->folder, "blobs") ? realpath(blobs, NULL) : NULL;
    size_t n = root ? strlen(root) : 0;
    HubLink x = { .link = strdup(link), .chosen = belongs(name, only) };
    if (real && root && strncmp(real, root, n) == 0 && real[n] == '/' && stat(real, &st) == 0) {
        x.blob = real;
        x.bytes = (uint64_t) st.st_size;
    } else {
        free(real);
    }
    free(root);
    bool good = x.link && grow_to(&r->at, &r->cap, r->n + 1, 64, sizeof *r->at);
    if (good) r->at[r->n++] = x;
    else { free(x.link); free(x.blob); }
    return good;
}

static bool collect(HubRemoval *r, const char *only)
{
    char root[HUB_PATH];
    bool good = true;
    HubWalk w;
    hub_walk(&w, put(root, r->folder, "snapshots") ? root : "");
    while (good && hub_walk_next(&w)) {
        const char *name = w.folder ? NULL : strchr(w.name, '/');
        if (name) good = add_link(r, w.path, name + 1, only);
    }
    hub_walk_end(&w);
    return good;
}

/* A blob goes once, and only if no link that stays leads to it. */
static bool blob_goes(const HubRemoval *r, size_t i)
{
    const HubLink *x = &r->at[i];
    if (!x->chosen || !x->blob) return false;
    for (size_t k = 0; k < r->n; k++) {
        const HubLink *y = &r->at[k];
        if (k != i && y->blob && strcmp(x->blob, y->blob) == 0 && (!y->chosen || k < i)) return false;
    }
    return true;
}

static bool not_ours(const Options *o, const HubLocal *x)
{
    return complain(o, "%s:%s: belongs to %s, remove it there (%s)", x->repo, x->name, hub_source_name(x->source),
                    x->source == HUB_OLLAMA ? "ollama rm" : x->path) == 0;
}

/* The file that the name means; NULL in *only: all of the repository. */
static bool choose(HubRemoval *r, char **only, const Options *o, const char *text)
{
    char cache[HUB_PATH];
    HubLocals l;
    HubName name;
    bool named = hub_name_read(&name, text, NULL) == ST_OK, good = false;
    bool listed = hub_locals(&l);
    const HubLocal *x = listed && named ? hub_locals_named(&l, &name, HUB_TARGET) : NULL;
    if (!x && listed) x = hub_locals_called(&l, text);
    const char *repo = x ? x->repo : name.repo;
    *only = NULL;
    if (x && x->source != HUB_CACHE) {
        not_ours(o, x);
    } else if (named && name.revision[0]) {
        complain(o, "%s: a revision is not removed alone; without @%s all of them go", text, name.revision);
    } else if ((!x && (!named || name.quant[0])) || !hub_cache_folder(cache) ||
               !hub_repo_folder(r->folder, cache, repo) || !is_own_folder(r->folder)) {
        complain(o, "%s: there is no such model on this machine (ratoon models lists them)", text);
    } else {
        bool whole = named && !name.quant[0];
        good = whole || x->folder || (*only = strdup(x->name)) != NULL;
        snprintf(r->name, sizeof r->name, "%s%s%s", repo, *only ? ":" : "", *only ? *only : "");
    }
    hub_locals_free(&l);
    return good;
}

static bool is_config(const HubLink *x) { return strcmp(base_name(x->link), GENERATION_CONFIG) == 0; }

/* The last model takes along what came with it. */
static void choose_configs(HubRemoval *r)
{
    for (size_t i = 0; i < r->n; i++)
        if (!r->at[i].chosen && !is_config(&r->at[i])) return;
    for (size_t i = 0; i < r->n; i++) r->at[i].chosen = true;
}

bool hub_removal(HubRemoval *out, const Options *o, const char *text)
{
    char *only;
    *out = (HubRemoval) { 0 };
    if (!choose(out, &only, o, text)) return false;
    bool good = collect(out, only) || complain(o, "out of memory") == 0;
    choose_configs(out);
    for (size_t i = 0; good && i < out->n; i++) out->bytes += blob_goes(out, i) ? out->at[i].bytes : 0;
    free(only);
    return good;
}

void hub_removal_free(HubRemoval *r)
{
    for (size_t i = 0; i < r->n; i++) {
        free(r->at[i].link);
        free(r->at[i].blob);
    }
    free(r->at);
    *r = (HubRemoval) { 0 };
}

/* Removes empty folders below and including folder. */
static void prune(const char *folder)
{
    HubWalk w;
    for (hub_walk(&w, folder); hub_walk_next(&w);)
        if (w.folder) rmdir(w.path);               /* fails where something is left */
}

/* Whether another file of the repository is fetched meanwhile. */
static bool is_fetched(const char *folder)
{
    HubWalk w;
    bool busy = false;
    for (hub_walk(&w, folder); hub_walk_next(&w);) busy |= !w.folder && hub_part_is(w.name) && hub_part_busy(w.path);
    return busy;
}

/* What is left of a repository without snapshots: refs, and half downloads of ours. */
static void empty_folder(const char *folder)
{
    HubWalk w;
    for (hub_walk(&w, folder); hub_walk_next(&w);)
        if (!w.folder && (strncmp(w.name, "refs/", 5) == 0 || hub_part_is(w.name))) unlink(w.path);
}

bool hub_removal_do(const HubRemoval *r, const Options *o)
{
    char snapshots[HUB_PATH];
    bool good = true;
    for (size_t i = 0; good && i < r->n; i++) {
        const HubLink *x = &r->at[i];
        bool blob = blob_goes(r, i);
        if (x->chosen) good = unlink(x->link) == 0 && (!blob || unlink(x->blob) == 0);
        if (!good) complain(o, "%s: cannot be removed: %s", x->link, strerror(errno));
    }
    if (!put(snapshots, r->folder, "snapshots")) return false;
    prune(snapshots);
    if (good && !is_own_folder(snapshots) && !is_fetched(r->folder)) {
        empty_folder(r->folder);
        prune(r->folder);
    }
    return good;
}
