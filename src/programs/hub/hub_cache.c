#include "programs/hub/hub_cache.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/grow.h"
#include "base/json.h"
#include "base/path.h"
#include "base/save.h"
#include "programs/hub/hub_env.h"
#include "programs/hub/hub_walk.h"

enum { MANIFEST_MAX = 1 << 20, LOCALS_MAX = 100000 };

/* ---- the list ---- */

/* Takes the entry's own strings. */
static bool add(HubLocals *l, HubLocal x, const char *repo, const char *name, const char *path)
{
    if (l->n >= LOCALS_MAX || !grow_to(&l->at, &l->cap, l->n + 1, 64, sizeof *l->at)) return false;
    x.repo = strdup(repo);
    x.name = strdup(name);
    x.path = strdup(path);
    l->at[l->n++] = x;
    return x.repo && x.name && x.path;
}

void hub_locals_free(HubLocals *l)
{
    for (size_t i = 0; i < l->n; i++) {
        free(l->at[i].repo);
        free(l->at[i].name);
        free(l->at[i].path);
    }
    free(l->at);
    *l = (HubLocals) { 0 };
}

static int compare(const void *a, const void *b)
{
    const HubLocal *x = a, *y = b;
    int order = strcasecmp(x->repo, y->repo);
    if (order == 0) order = strcmp(x->name, y->name);
    if (order == 0) order = (int) x->source - (int) y->source;
    return order ? order : (int) y->current - (int) x->current;
}

static bool put(char out[HUB_PATH], const char *folder, const char *name)
{
    return snprintf(out, HUB_PATH, "%s/%s", folder, name) < HUB_PATH;
}

/* Size of a regular file, links followed. With inside, its real place must be below that folder. */
static bool file_bytes(uint64_t *bytes, const char *path, const char *inside)
{
    struct stat st;
    if (inside) {
        char *real = realpath(path, NULL);
        size_t n = strlen(inside);
        bool below = real && strncmp(real, inside, n) == 0 && real[n] == '/';
        free(real);
        if (!below) return false;
    }
    if (stat(path, &st) != 0 || !S_ISREG(st.st_mode)) return false;
    *bytes = (uint64_t) st.st_size;
    return true;
}

/* Size of all parts of a split file; false if one is missing. */
static bool model_bytes(uint64_t *bytes, const char *path, const char *inside)
{
    int32_t part, parts;
    uint64_t one;
    char name[HUB_PATH];
    if (!hub_split(path, &part, &parts)) return file_bytes(bytes, path, inside);
    *bytes = 0;
    for (int32_t i = 1; i <= parts; i++) {
        if (!hub_split_name(name, sizeof name, path, i) || !file_bytes(&one, name, inside)) return false;
        *bytes += one;
    }
    return true;
}

/* Adds a file if it is a GGUF file that can be opened as a whole. */
static bool add_file(HubLocals *l, HubLocal x, const char *repo, const char *name, const char *path,
                     const char *inside)
{
    int32_t part, parts;
    if (!has_suffix(name, ".gguf") || (hub_split(name, &part, &parts) && part != 1)) return true;
    return !model_bytes(&x.bytes, path, inside) || add(l, x, repo, name, path);
}

/* The next file of a tree. */
static bool next_file(HubWalk *w)
{
    while (hub_walk_next(w))
        if (!w->folder && hub_path_good(w->name)) return true;
    return false;
}

/* ---- the Hugging Face cache ---- */

bool hub_repo_folder(char out[HUB_PATH], const char *cache, const char *repo)
{
    const char *slash = strchr(repo, '/');
    int org = slash ? (int) (slash - repo) : 0;
    return slash && snprintf(out, HUB_PATH, "%s/models--%.*s--%s", cache, org, repo, slash + 1) < HUB_PATH;
}

void hub_ref_read(char commit[72], const char *folder, const char *revision)
{
    char path[HUB_PATH];
    commit[0] = 0;
    if (hub_commit_good(revision)) {
        strcpy(commit, revision);
        return;
    }
    if (snprintf(path, sizeof path, "%s/refs/%s", folder, *revision ? revision : "main") >= HUB_PATH) return;
    FILE *f = fopen(path, "re");
    if (!f) return;
    size_t n = fread(commit, 1, 71, f);
    fclose(f);
    commit[n] = 0;
    commit[strcspn(commit, "\r\n ")] = 0;
    if (!hub_commit_good(commit)) commit[0] = 0;
}

/* The folder of config.json, if safetensors lie beside it. */
static bool add_folder(HubLocals *l, HubLocal x, const char *repo, const char *config, const char *inside)
{
    char folder[HUB_PATH], path[HUB_PATH];
    uint64_t one;
    bool weights = false;
    snprintf(folder, sizeof folder, "%.*s", (int) (strlen(config) - strlen("/config.json")), config);
    DIR *d = opendir(folder);
    if (!d) return true;
    for (struct dirent *e; (e = readdir(d));) {
        if (e->d_name[0] == '.' || !put(path, folder, e->d_name) || !file_bytes(&one, path, inside)) continue;
        weights |= has_suffix(e->d_name, ".safetensors");
        x.bytes += one;
    }
    closedir(d);
    x.folder = true;
    return !weights || add(l, x, repo, "", folder);
}

static bool scan_snapshots(HubLocals *l, const char *repo, const char *folder)
{
    char root[HUB_PATH], main_commit[72];
    HubWalk w;
    char *inside = realpath(folder, NULL);
    bool good = true;
    hub_ref_read(main_commit, folder, "");
    hub_walk(&w, inside && put(root, folder, "snapshots") ? root : "");
    while (good && next_file(&w)) {
        HubLocal x = { .source = HUB_CACHE };
        const char *slash = strchr(w.name, '/');
        if (!slash || slash - w.name >= (ptrdiff_t) sizeof x.commit) continue;
        memcpy(x.commit, w.name, (size_t) (slash - w.name));
        x.current = strcmp(x.commit, main_commit) == 0;
        if (strcmp(slash, "/config.json") == 0) good = add_folder(l, x, repo, w.path, inside);
        else good = add_file(l, x, repo, slash + 1, w.path, inside);
    }
    hub_walk_end(&w);
    free(inside);
    return good;
}

/* models--ORG--NAME */
static bool repo_of_folder(char repo[200], const char *folder)
{
    const char *org = folder + strlen("models--"), *dashes;
    HubName name;
    if (strncmp(folder, "models--", 8) != 0 || !(dashes = strstr(org, "--"))) return false;
    return snprintf(repo, 200, "%.*s/%s", (int) (dashes - org), org, dashes + 2) < 200 &&
           hub_name_read(&name, repo, NULL) == ST_OK;
}

static bool scan_cache(HubLocals *l)
{
    char cache[HUB_PATH], folder[HUB_PATH], repo[200];
    bool good = true;
    DIR *d = hub_cache_folder(cache) ? opendir(cache) : NULL;
    if (!d) return true;
    for (struct dirent *e; good && (e = readdir(d));)
        if (repo_of_folder(repo, e->d_name) && put(folder, cache, e->d_name)) good = scan_snapshots(l, repo, folder);
    closedir(d);
    return good;
}

/* ---- LM Studio: PUBLISHER/REPO/FILE ---- */

static bool scan_lmstudio(HubLocals *l, const char *root)
{
    bool good = true;
    HubWalk w;
    for (hub_walk(&w, root); good && next_file(&w);) {
        char repo[200];
        const char *slash = strchr(w.name, '/'), *second = slash ? strchr(slash + 1, '/') : NULL;
        HubLocal x = { .source = HUB_LMSTUDIO, .current = true };
        if (!second || second - w.name >= (ptrdiff_t) sizeof repo) continue;
        snprintf(repo, sizeof repo, "%.*s", (int) (second - w.name), w.name);
        good = add_file(l, x, repo, second + 1, w.path, NULL);
    }
    hub_walk_end(&w);
    return good;
}

/* ---- Ollama: manifests/HOST/NAMESPACE/MODEL/TAG names a blob ---- */

/* The digest of the layer with the model, as its file is called: sha256-HEX. */
static bool model_layer(char out[80], const char *path)
{
    Error err;
    json_t *j = NULL, *layer;
    size_t i, n = 0;
    char *text = malloc(MANIFEST_MAX);
    FILE *f = text ? fopen(path, "re") : NULL;
    out[0] = 0;
    if (f) n = fread(text, 1, MANIFEST_MAX, f);
    if (f) fclose(f);
    if (n > 0 && n < MANIFEST_MAX) json_read(&j, text, n, path, &err);
    json_array_foreach(json_object_get(j, "layers"), i, layer) {
        const char *type = json_string_value(json_object_get(layer, "mediaType")),
                   *digest = json_string_value(json_object_get(layer, "digest"));
        if (!type || !digest || strcmp(type, "application/vnd.ollama.image.model") != 0) continue;
        if (strncmp(digest, "sha256:", 7) == 0 && strlen(digest) == 71 && hub_commit_good(digest + 7))
            snprintf(out, 80, "sha256-%s", digest + 7);
    }
    json_decref(j);
    free(text);
    return out[0] != 0;
}

/* "registry.ollama.ai/library/qwen3/4b" is qwen3 and 4b there. */
static bool ollama_name(char repo[512], const char **tag, const char *name)
{
    static const char *const hidden[] = { "registry.ollama.ai/", "library/" };
    const char *slash = strrchr(name, '/'), *from = name;
    for (size_t i = 0; i < 2; i++) {
        if (strncmp(from, hidden[i], strlen(hidden[i])) != 0) break;
        from += strlen(hidden[i]);
    }
    *tag = slash ? slash + 1 : "";
    return slash && slash > from && snprintf(repo, 512, "%.*s", (int) (slash - from), from) < 512;
}

static bool scan_ollama(HubLocals *l, const char *store)
{
    char root[HUB_PATH], path[HUB_PATH], repo[512], digest[80];
    const char *tag;
    bool good = true;
    HubWalk w;
    hub_walk(&w, put(root, store, "manifests") ? root : "");
    while (good && next_file(&w)) {
        HubLocal x = { .source = HUB_OLLAMA, .current = true };
        if (!ollama_name(repo, &tag, w.name) || !model_layer(digest, w.path)) continue;
        if (snprintf(path, sizeof path, "%s/blobs/%s", store, digest) >= HUB_PATH) continue;
        if (file_bytes(&x.bytes, path, NULL)) good = add(l, x, repo, tag, path);
    }
    hub_walk_end(&w);
    return good;
}

/* ---- looking for one ---- */

static bool scan_home(HubLocals *l, const char *folder, bool (*scan)(HubLocals *l, const char *folder))
{
    char path[HUB_PATH];
    const char *home = getenv("HOME");
    return !home || !*home || !put(path, home, folder) || scan(l, path);
}

static bool scan_all(HubLocals *l)
{
    const char *ollama = getenv("OLLAMA_MODELS");
    if (!scan_cache(l) || !scan_home(l, ".lmstudio/models", scan_lmstudio) ||
        !scan_home(l, ".cache/lm-studio/models", scan_lmstudio)) return false;
    if (ollama && *ollama) return scan_ollama(l, ollama);
    return scan_home(l, ".ollama/models", scan_ollama) && scan_ollama(l, "/usr/share/ollama/.ollama/models");
}

bool hub_locals(HubLocals *out)
{
    *out = (HubLocals) { 0 };
    bool good = scan_all(out);
    if (good && out->n > 0) qsort(out->at, out->n, sizeof *out->at, compare);
    return good;
}

const char *hub_source_name(HubSource source)
{
    static const char *const names[] = { "Hugging Face cache", "LM Studio", "Ollama" };
    return names[source];
}

void hub_local_name(char *out, size_t cap, const HubLocal *l)
{
    char quant[HUB_QUANT];
    hub_quant(quant, l->name);
    bool named = l->source == HUB_OLLAMA || l->folder || !quant[0] || hub_kind(l->name) != HUB_TARGET;
    snprintf(out, cap, "%s%s%s", l->repo, l->folder ? "" : ":", l->folder ? "" : named ? l->name : quant);
}

static bool of_revision(const HubLocal *x, const HubName *name)
{
    char cache[HUB_PATH], folder[HUB_PATH], commit[72];
    if (!name->revision[0]) return true;
    if (x->source != HUB_CACHE || !hub_cache_folder(cache) || !hub_repo_folder(folder, cache, x->repo)) return false;
    hub_ref_read(commit, folder, name->revision);
    return strcmp(commit, x->commit) == 0;
}

const HubLocal *hub_locals_named(const HubLocals *l, const HubName *name, HubKind wish)
{
    const HubLocal *best = NULL;
    int32_t best_rank = 0;
    for (size_t i = 0; i < l->n; i++) {
        const HubLocal *x = &l->at[i];
        if (x->source == HUB_OLLAMA || strcasecmp(x->repo, name->repo) != 0 || !of_revision(x, name)) continue;
        int32_t rank = x->folder ? (name->quant[0] ? -1 : 100) : hub_rank(x->name, name->quant, wish);
        if (rank < 0) continue;
        rank = 2 * rank + !x->current;
        if (!best || rank < best_rank) {
            best = x;
            best_rank = rank;
        }
    }
    return best;
}

/* qwen3 is qwen3:latest; a file's name may lack its .gguf. */
static bool is_called(const HubLocal *x, const char *name)
{
    char full[1200];
    const char *slash = strrchr(x->name, '/'), *file = slash ? slash + 1 : x->name;
    snprintf(full, sizeof full, "%s:%s", x->repo, x->name);
    size_t n = strlen(name);
    if (x->source == HUB_OLLAMA)
        return strcasecmp(full, name) == 0 || (strcasecmp(x->name, "latest") == 0 && strcasecmp(x->repo, name) == 0);
    return !x->folder && strncasecmp(file, name, n) == 0 && (!file[n] || strcasecmp(file + n, ".gguf") == 0);
}

const HubLocal *hub_locals_called(const HubLocals *l, const char *name)
{
    for (size_t i = 0; i < l->n; i++)
        if (is_called(&l->at[i], name)) return &l->at[i];
    return NULL;
}

bool hub_find_local(char path[HUB_PATH], const char *text, HubKind wish)
{
    HubLocals l;
    HubName name;
    const HubLocal *found = NULL;
    bool listed = hub_locals(&l);
    if (listed && hub_name_read(&name, text, NULL) == ST_OK) found = hub_locals_named(&l, &name, wish);
    if (listed && !found) found = hub_locals_called(&l, text);
    bool fits = found && snprintf(path, HUB_PATH, "%s", found->path) < HUB_PATH;
    hub_locals_free(&l);
    return fits;
}

bool hub_ollama_name(char *out, size_t cap, const char *path, const char *given)
{
    HubLocals l = { 0 };
    if (strncmp(base_name(path), "sha256-", 7) != 0) return false;
    const HubLocal *found = hub_locals(&l) && given ? hub_locals_called(&l, given) : NULL;
    if (found && strcmp(found->path, path) != 0) found = NULL;
    for (size_t i = 0; i < l.n && !found; i++)
        if (strcmp(l.at[i].path, path) == 0) found = &l.at[i];
    if (found) hub_local_name(out, cap, found);
    hub_locals_free(&l);
    return found;
}

/* ---- writing ---- */

Status hub_folders(const char *path, Error *err)
{
    return save_folders(path, 0777) ? ST_OK : fail(err, ST_IO, "%s: cannot be created: %s", path, strerror(errno));
}

Status hub_link(const char *folder, const char *commit, const char *path, const char *etag, Error *err)
{
    char link[HUB_PATH], to[HUB_PATH] = "../../", old[HUB_PATH];
    for (const char *p = path; *p; p++)
        if (*p == '/') strcat(to, "../");          /* at most 512 bytes: hub_path_good */
    strcat(strcat(to, "blobs/"), etag);
    if (snprintf(link, sizeof link, "%s/snapshots/%s/%s", folder, commit, path) >= HUB_PATH)
        return fail(err, ST_ARG, "%s: the path is too long", path);
    TRY(hub_folders(link, err));
    ssize_t n = readlink(link, old, sizeof old - 1);
    if (n > 0 && (size_t) n == strlen(to) && memcmp(old, to, (size_t) n) == 0) return ST_OK;
    if ((unlink(link) != 0 && errno != ENOENT) || symlink(to, link) != 0)
        return fail(err, ST_IO, "%s: cannot be created: %s", link, strerror(errno));
    return ST_OK;
}

static bool write_commit(void *ud, FILE *f) { return fputs(ud, f) >= 0; }

Status hub_ref_write(const char *folder, const char *revision, const char *commit, Error *err)
{
    char path[HUB_PATH];
    if (hub_commit_good(revision)) return ST_OK;
    if (snprintf(path, sizeof path, "%s/refs/%s", folder, *revision ? revision : "main") >= HUB_PATH)
        return fail(err, ST_ARG, "%s: the path is too long", revision);
    TRY(hub_folders(path, err));
    return save_file(path, SAVE_SHARED, write_commit, (void *) commit, err);
}
