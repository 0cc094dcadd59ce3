#include "programs/hub/hub.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include "programs/hub/hub_choose.h"
#include "programs/hub/hub_fetch.h"
#include "programs/hub/hub_part.h"
#include "programs/model_facts.h"
#include "programs/program.h"

/* A choice on its way into the cache. */
enum { CONFIG_MOST = 1 << 20 };                    /* bytes; the real ones have a few hundred */

typedef struct {
    HubEnv    env;
    HubRepo   repo;
    HubChoice choice;
    char      folder[HUB_PATH];                    /* of the repository in the cache */
    HubPlace *place;                               /* [choice.n] */
} Pull;

static bool here(const Pull *p, const char *etag, uint64_t bytes, char target[HUB_PATH])
{
    struct stat st;
    return snprintf(target, HUB_PATH, "%s/blobs/%s", p->folder, etag) < HUB_PATH && stat(target, &st) == 0 &&
           S_ISREG(st.st_mode) && (uint64_t) st.st_size == bytes;
}

static bool make_folder(Pull *p)
{
    char cache[HUB_PATH], blobs[HUB_PATH];
    Error err;
    if (!hub_cache_folder(cache) || !hub_repo_folder(p->folder, cache, p->repo.name.repo) ||
        snprintf(blobs, sizeof blobs, "%s/blobs/", p->folder) >= HUB_PATH)
        return complain(p->env.o, "there is no place for models: set HF_HOME or HOME to a folder") == 0;
    return hub_folders(blobs, &err) == ST_OK || complain(p->env.o, "%s", err.text) == 0;
}

/* Bytes that still have to be written. */
static uint64_t missing(const Pull *p)
{
    char target[HUB_PATH];
    uint64_t sum = 0;
    for (size_t i = 0; i < p->choice.n; i++) {
        uint64_t bytes = p->choice.at[i]->bytes;
        if (here(p, p->place[i].etag, bytes, target)) continue;
        uint64_t have = hub_part_peek(target);
        sum += bytes > have ? bytes - have : 0;
    }
    return sum;
}

static bool has_room(const Pull *p, uint64_t need)
{
    struct statvfs fs;
    char want[32], have[32];
    if (statvfs(p->folder, &fs) != 0) return true;
    uint64_t available = (uint64_t) fs.f_bavail * fs.f_frsize;
    if (need <= available) return true;
    hub_size(want, need);
    hub_size(have, available);
    return complain(p->env.o, "%s: needs %s more, and %s are free in %s (HF_HOME names another folder)",
                    p->repo.name.repo, want, have, p->folder) == 0;
}

static bool resolve_all(Pull *p)
{
    p->place = calloc(p->choice.n + 1, sizeof *p->place);
    if (!p->place) return complain(p->env.o, "%s: out of memory", p->repo.name.repo) == 0;
    for (size_t i = 0; i < p->choice.n; i++)
        if (!hub_resolve(&p->place[i], &p->env, &p->repo, p->choice.at[i])) return false;
    return true;
}

static void announce(const Pull *p, uint64_t need)
{
    char size[32], more[32];
    const HubFile *f = p->choice.first;
    hub_size(size, p->choice.bytes);
    hub_size(more, need);
    const char *what = p->choice.folder ? "its files" : f->path;
    if (need == 0) note(p->env.o, "%s: %s is complete (%s)", p->repo.name.repo, what, size);
    else if (need < p->choice.bytes)
        note(p->env.o, "%s: fetching %s of %s (%s)", p->repo.name.repo, more, what, size);
    else note(p->env.o, "%s: fetching %s (%s)", p->repo.name.repo, what, size);
}

/* A blob that is there already, as another snapshot uses it, is only linked. */
static bool bring(const Pull *p, size_t i)
{
    char target[HUB_PATH];
    const HubFile *f = p->choice.at[i];
    return here(p, p->place[i].etag, f->bytes, target) ||
           hub_fetch(&p->env, &p->repo, f, &p->place[i], target);
}

/* Only what is whole has names: a part of it would be taken for all. */
static bool link_all(const Pull *p)
{
    Error err;
    for (size_t i = 0; i < p->choice.n; i++)
        if (hub_link(p->folder, p->repo.commit, p->choice.at[i]->path, p->place[i].etag, &err) != ST_OK)
            return complain(p->env.o, "%s", err.text) == 0;
    return true;
}

/* Of safetensors only drafters are read: before the rest is fetched, config.json has to say that it is one. */
static bool is_drafter(const Pull *p)
{
    char target[HUB_PATH];
    json_t *j = NULL;
    const HubFile *config = p->choice.at[0];
    if (!here(p, p->place[0].etag, config->bytes, target) || !json_file(p->env.o, &j, target)) return false;
    const char *kind = json_string_value(json_object_get(j, "speculators_model_type"));
    bool good = json_is_object(json_object_get(j, "dflash_config")) || (kind && strcmp(kind, "dflash") == 0);
    json_decref(j);
    return good || complain(p->env.o, "%s: holds a model as safetensors, of which only DFlash drafters are read; look "
                            "for a repository of GGUF files (often called %s-GGUF)", p->repo.name.repo,
                            p->repo.name.repo) == 0;
}

/* What its publisher draws a model's tokens with comes along, where the repository has it: for --generation-config. */
static void add_config(Pull *p)
{
    for (size_t i = 0; i < p->repo.n && !p->choice.folder; i++) {
        const HubFile *f = &p->repo.at[i];
        if (strcmp(f->path, GENERATION_CONFIG) != 0 || f->bytes > CONFIG_MOST) continue;
        p->choice.at[p->choice.n++] = f;           /* hub_choose leaves room for every file, and takes no such one */
        p->choice.bytes += f->bytes;
    }
}

static bool pull_files(Pull *p)
{
    Error err;
    add_config(p);
    if (!make_folder(p) || !resolve_all(p)) return false;
    uint64_t need = missing(p);
    announce(p, need);
    if (!has_room(p, need)) return false;
    for (size_t i = 0; i < p->choice.n; i++)
        if (!bring(p, i) || (i == 0 && p->choice.folder && !is_drafter(p))) return false;
    if (!link_all(p)) return false;
    return hub_ref_write(p->folder, p->repo.name.revision, p->repo.commit, &err) == ST_OK ||
           complain(p->env.o, "%s", err.text) == 0;
}

static bool place_of(char path[HUB_PATH], const Pull *p)
{
    const char *name = p->choice.folder ? "" : p->choice.first->path;
    return snprintf(path, HUB_PATH, "%s/snapshots/%s%s%s", p->folder, p->repo.commit, *name ? "/" : "", name) <
           HUB_PATH;
}

bool hub_pull(char path[HUB_PATH], const Options *o, const char *text, HubKind wish, void (*ask)(void *ud), void *ud)
{
    Pull *p = calloc(1, sizeof *p);
    HubName name;
    Error err;
    if (!p) return complain(o, "%s: out of memory", text) == 0;
    bool good = hub_name_read(&name, text, &err) == ST_OK || complain(o, "%s", err.text) == 0;
    good = good && hub_env_read(&p->env, o) && hub_repo_list(&p->repo, &p->env, &name) &&
           hub_choose(&p->choice, &p->env, &p->repo, wish);
    if (good && ask) ask(ud);
    good = good && interrupts == 0 && pull_files(p) && place_of(path, p);
    free(p->place);
    free(p->choice.at);
    hub_repo_free(&p->repo);
    free(p);
    return good;
}

/* A repository may have models and drafters, of which one kind is here. */
static bool is_other(const char *path, HubKind wish)
{
    ModelFacts f;
    if (model_facts(&f, path, NULL) != ST_OK) return false;
    return wish == HUB_TARGET ? f.kind == MODEL_DRAFTER : f.kind == MODEL_TARGET && !f.own_layer;
}

bool hub_get(char path[HUB_PATH], const Options *o, const char *text, HubKind wish)
{
    HubName name;
    Error err;
    if (hub_name_read(&name, text, &err) != ST_OK) return complain(o, "%s", err.text) == 0;
    if (hub_find_local(path, text, wish) && (o->offline || !is_other(path, wish))) return true;
    return hub_pull(path, o, text, wish, NULL, NULL);
}
