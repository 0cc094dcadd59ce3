#include "programs/draft_find.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "base/path.h"
#include "programs/drafters.h"
#include "programs/hub/hub_cache.h"
#include "programs/model_name.h"
#include "programs/program.h"

/* Everything that names the target: its file, the header's general.name, the repository or folder that it lies in. */
typedef struct { char repo[256]; DraftTarget who; NameWords words[TARGET_NAMES]; } Known;

/* How well a drafter's names go with the target's: they name another model of another size, nothing that can be told,
 * another model of its size, the model. */
typedef enum { NAMED_OTHER, NAMED_NOTHING, NAMED_SIZE, NAMED_MODEL } Named;

typedef struct {
    DraftFound *out;
    const ModelFacts *target;
    Known       known;
    Named       named;                             /* of the best so far */
    uint64_t    bytes;
} Search;

static bool join(char out[4096], const char *folder, const char *name)
{
    int n = snprintf(out, 4096, "%s/%s", folder, name);
    return n > 0 && n < 4096;
}

/* The name of the repository in the Hugging Face cache (models--ORG--NAME/snapshots/COMMIT/...), else of the folder. */
static void repo_of(char out[256], const char *path)
{
    char folder[4096];
    folder_of(folder, path);
    char *snapshots = strstr(folder, "/snapshots/");
    if (snapshots) *snapshots = 0;
    const char *name = base_name(folder), *dashes = strstr(name, "--");
    if (snapshots && dashes && strstr(dashes + 2, "--")) name = strstr(dashes + 2, "--") + 2;
    snprintf(out, 256, "%.255s", strcmp(name, ".") == 0 ? "" : name);
}

static void know(Known *k, const char *model, const ModelFacts *t)
{
    repo_of(k->repo, model);
    k->who = (DraftTarget) { t->arch, t->layers, t->width, { base_name(model), t->name, k->repo } };
    for (size_t i = 0; i < TARGET_NAMES; i++) k->words[i] = name_words(k->who.names[i] ? k->who.names[i] : "");
}

/* ---- one candidate ---- */

static Named named_one(const Known *k, const char *drafter)
{
    char mine[16], models[16];
    NameWords m = name_model(drafter);
    bool sized = name_size(mine, &m);
    Named best = NAMED_NOTHING;
    for (size_t i = 0; i < TARGET_NAMES; i++) {
        NameWords whole = name_model(k->who.names[i] ? k->who.names[i] : "");
        /* "tiny" alone does not name "tiny 1b" */
        if (name_begins(&k->words[i], &m) && (sized || strcmp(whole.at, m.at) == 0)) return NAMED_MODEL;
        if (!sized || !name_size(models, &k->words[i])) continue;
        if (strcmp(mine, models) == 0) best = NAMED_SIZE;
        else if (best == NAMED_NOTHING) best = NAMED_OTHER;
    }
    return best;
}

/* The best of its names; one that names another model counts for more than one that names nothing. */
static Named named(const Known *k, const char *file, const char *repo, const char *general)
{
    const char *names[] = { file, repo, general };
    Named best = NAMED_NOTHING;
    for (size_t i = 0; i < 3; i++) {
        Named n = named_one(k, names[i]);
        if (n != NAMED_NOTHING && (n > best || best == NAMED_NOTHING)) best = n;
    }
    return best;
}

static void ignore(Search *s, const char *name, const char *path, const char *why)
{
    size_t n = strlen(path);
    if (strncmp(why, path, n) == 0 && strncmp(why + n, ": ", 2) == 0) why += n + 2;
    if (s->out->n_ignored++ > 0) return;
    snprintf(s->out->ignored, sizeof s->out->ignored, "%.500s", name);
    snprintf(s->out->why, sizeof s->out->why, "%.500s", why);
}

static bool better(const Search *s, Named named, uint64_t bytes, const char *path)
{
    if (!s->out->path[0] || named != s->named) return !s->out->path[0] || named > s->named;
    return bytes != s->bytes ? bytes < s->bytes : strcmp(path, s->out->path) < 0;
}

static void take(Search *s, Named named, uint64_t bytes, const char *path, const char *name, const char *where)
{
    if (!better(s, named, bytes, path)) return;
    s->named = named;
    s->bytes = bytes;
    s->out->where = where;
    snprintf(s->out->path, sizeof s->out->path, "%s", path);
    snprintf(s->out->name, sizeof s->out->name, "%.500s", name);
}

static bool no_candidate(const char *name)
{
    int32_t part, parts;
    return strcasestr(name, "mmproj") || (hub_split(name, &part, &parts) && part > 1);
}

/* A file or folder next to the model; within: the folder's name if the file lies in one, else "". */
static void consider(Search *s, const char *path, const char *within)
{
    ModelFacts f;
    Error err;
    char why[160], name[512];
    snprintf(name, sizeof name, "%.250s%s%.250s", within, *within ? "/" : "", base_name(path));
    if (no_candidate(name)) return;
    if (model_facts(&f, path, &err) != ST_OK) {
        ignore(s, name, path, err.text);
        return;
    }
    if (!model_facts_fit(why, &f, s->target)) {
        ignore(s, name, path, why);
        return;
    }
    Named n = named(&s->known, base_name(path), within, f.name);
    if (s->target->own_layer && (n == NAMED_OTHER || n == NAMED_SIZE))
        ignore(s, name, path, "its name is that of another model, and this one has an MTP layer of its own");
    else take(s, n, f.bytes, path, name, "next to the model");
}

/* ---- in the caches ---- */

static bool published_in(const Search *s, const Drafters *table, const char *repo)
{
    PublishedDrafter p[16];
    size_t n = drafters_for_target(table, p, 16, &s->known.who);
    for (size_t i = 0; i < n && i < 16; i++)
        if (strcasecmp(p[i].repo, repo) == 0) return true;
    return false;
}

static void consider_local(Search *s, const Drafters *table, const HubLocal *l)
{
    static const char *const where[] = { [HUB_CACHE] = "in the Hugging Face cache",
                                         [HUB_LMSTUDIO] = "in LM Studio's folders",
                                         [HUB_OLLAMA] = "in Ollama's store" };
    ModelFacts f;
    char why[160], name[512];
    const char *slash = strrchr(l->repo, '/'), *repo = slash ? slash + 1 : l->repo;
    if (!(name_says_drafter(l->name) || name_says_drafter(repo)) || no_candidate(l->name)) return;
    if (model_facts(&f, l->path, NULL) != ST_OK || !model_facts_fit(why, &f, s->target)) return;
    Named n = named(&s->known, l->name, repo, f.name);
    if (n != NAMED_MODEL && !published_in(s, table, l->repo)) return;
    hub_local_name(name, sizeof name, l);
    take(s, NAMED_MODEL, f.bytes, l->path, name, where[l->source]);
}

static void search_caches(Search *s)
{
    HubLocals l;
    Drafters *table = NULL;
    drafters_open(&table, NULL);                   /* draft_tell says what is wrong with it */
    if (hub_locals(&l))
        for (size_t i = 0; i < l.n; i++) consider_local(s, table, &l.at[i]);
    hub_locals_free(&l);
    drafters_close(table);
}

/* ---- next to the model ---- */

/* Calls see for every entry of a folder that can be named. */
static void each_entry(const char *folder, void (*see)(Search *s, const char *path, const char *name), Search *s)
{
    char path[4096];
    DIR *d = opendir(folder);
    if (!d) return;
    for (struct dirent *e; (e = readdir(d));)
        if (e->d_name[0] != '.' && join(path, folder, e->d_name)) see(s, path, e->d_name);
    closedir(d);
}

static void see_inside(Search *s, const char *path, const char *name)
{
    char folder[4096];
    folder_of(folder, path);
    if (has_suffix(name, ".gguf")) consider(s, path, base_name(folder));
}

static void see_beside(Search *s, const char *path, const char *name)
{
    char config[4096];
    if (!name_says_drafter(name)) return;
    if (!is_folder(path)) {
        if (has_suffix(name, ".gguf")) consider(s, path, "");
        return;
    }
    if (join(config, path, "config.json") && access(config, F_OK) == 0) consider(s, path, "");
    each_entry(path, see_inside, s);
}

void draft_find(DraftFound *out, const char *model, const ModelFacts *target)
{
    char folder[4096];
    *out = (DraftFound) { 0 };
    Search s = { .out = out, .target = target };
    know(&s.known, model, target);
    folder_of(folder, model);
    each_entry(folder, see_beside, &s);
    if (!out->path[0]) search_caches(&s);
}

/* ---- what is said ---- */

/* "`ratoon pull REPO` gets ..."; returns false if the table knows no drafter for this model. */
static bool published(char out[600], const Options *o, const char *model, const ModelFacts *target)
{
    Drafters *table = NULL;
    Error err;
    PublishedDrafter p;
    Known k;
    char name[300], gate[300] = "";
    know(&k, model, target);
    Status st = drafters_open(&table, &err);
    if (st != ST_OK && st != ST_END) note(o, "%s", err.text);
    bool any = drafters_for_target(table, &p, 1, &k.who) > 0;
    if (any) {
        drafter_name(name, sizeof name, &p);
        if (p.gated) snprintf(gate, sizeof gate, "; accept its terms first: https://huggingface.co/%.200s", p.repo);
        snprintf(out, 600, "`ratoon pull %s` gets the one published for %.60s (%.1f GB%s)", name, p.model,
                 (double) p.bytes / 1e9, gate);
    }
    drafters_close(table);
    return any;
}

void draft_tell(const DraftFound *f, const Options *o, const char *model, const ModelFacts *target)
{
    char text[600];
    if (f->path[0]) {
        detail(o, "using drafter %s, found %s (-d none turns it off)", f->name, f->where);
        return;
    }
    if (f->n_ignored == 1) note(o, "ignoring drafter %s: %s", f->ignored, f->why);
    if (f->n_ignored > 1)
        note(o, "ignoring drafter %s: %s; %d more next to the model do not fit either", f->ignored, f->why,
             f->n_ignored - 1);
    bool known = published(text, o, model, target);
    if (f->n_ignored == 0)
        note(o, "no drafter found next to the model or in the caches%s%s", known ? "; " : "", known ? text : "");
    else if (known) note(o, "%s", text);
}
