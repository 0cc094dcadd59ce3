/* files.c - finds the files a command was not told about: the demo pair, and the drafter of a target. Always says what
 * was found, since a drafter that is used or missing without notice makes speed problems very hard to find. */
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/path.h"
#include "programs/advice.h"
#include "programs/draft_find.h"
#include "programs/hub/hub.h"
#include "programs/program.h"

static bool begins(const char *s, const char *with) { return strncmp(s, with, strlen(with)) == 0; }

static bool join(char out[4096], const char *folder, const char *name)
{
    int n = snprintf(out, 4096, "%s/%s", folder, name);
    return n > 0 && n < 4096;
}

/* The first .gguf file of a folder, by name, that passes the test; "": none. more: there were others. */
static void pick(char out[4096], bool *more, const char *folder, bool (*test)(const char *name))
{
    char best[256] = "";
    *more = false;
    out[0] = 0;
    DIR *d = opendir(folder);
    if (!d) return;
    for (struct dirent *e; (e = readdir(d));) {
        if (!has_suffix(e->d_name, ".gguf") || strlen(e->d_name) >= sizeof best || !test(e->d_name)) continue;
        if (best[0]) *more = true;
        if (!best[0] || strcmp(e->d_name, best) < 0) strcpy(best, e->d_name);
    }
    closedir(d);
    if (best[0] && !join(out, folder, best)) out[0] = 0;
}

static bool any_target(const char *name)
{
    return !begins(name, "dflash-");
}

static bool any(const char *name)
{
    (void) name;
    return true;
}

/* models/demo next to the program, or where `make install` puts it. */
static bool find_demo(Files *f)
{
    char exe[4096], folder[4200];
    bool more;
    ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
    if (n <= 0) return false;
    exe[n] = 0;
    char *slash = strrchr(exe, '/');
    if (!slash) return false;
    *slash = 0;
    static const char *const places[] = { "models/demo", "../share/ratoon/models/demo" };
    for (size_t i = 0; i < 2; i++) {
        snprintf(folder, sizeof folder, "%s/%s", exe, places[i]);
        pick(f->model, &more, folder, any_target);
        if (f->model[0]) return true;
    }
    return false;
}

/* Whether what is no file reads like a repository of a hub. */
static bool is_repository(const char *path)
{
    HubName name;
    return hub_name_read(&name, path, NULL) == ST_OK && !has_suffix(path, ".gguf") && !has_suffix(path, ".safetensors");
}

/* What to do about a model that is not here; where it was the first word (text), it may have been meant as a prompt. */
static bool is_missing(const Options *o, const char *name, bool text)
{
    char hint[ADVICE_TEXT];
    if (is_repository(name)) snprintf(hint, sizeof hint, "; ratoon pull %.200s fetches it", name);
    else advice(hint, name, AS_MODEL);
    return complain(o, "%s: there is no such file, and no model of that name on this machine%s%s", name, hint,
                    text ? "; for a prompt that begins so, put -- in front" : "") == 0;
}

/* A path, hf:ORG/NAME[:QUANT], or the name of a model that some program has put on this machine. */
static bool named(char out[4096], const Options *o, const char *path, HubKind kind)
{
    if (hub_prefix(path)) return hub_get(out, o, path, kind);
    if (access(path, F_OK) != 0 && errno != EACCES && strcmp(path, "mtp") != 0) {
        if (path[0] != '/' && hub_find_local(out, path, kind)) {
            detail(o, "%s is %s", path, out);
            return true;
        }
        const bool text = o->first_word && kind == HUB_TARGET;
        if (text || is_repository(path)) return is_missing(o, path, text);
    }
    if (strlen(path) >= 4096) {
        complain(o, "a path of %zu bytes is too long", strlen(path));
        return false;
    }
    strcpy(out, path);
    return true;
}

/* -d FOLDER: a folder that holds one GGUF file and no config.json stands for that file. */
static bool named_drafter(Files *f, const Options *o)
{
    char config[4096], only[4096];
    bool more;
    if (!named(f->draft, o, o->draft, HUB_DRAFTER)) return false;
    if (!is_folder(f->draft) || (join(config, f->draft, "config.json") && access(config, F_OK) == 0)) return true;
    pick(only, &more, f->draft, any);
    if (only[0] && !more) strcpy(f->draft, only);
    return true;
}

/* A file that no command can run as a model is refused here, by what it is, and not as an unknown architecture. */
static bool is_model(const Options *o, const char *path, const ModelFacts *facts)
{
    if (facts->kind == MODEL_DRAFTER)
        complain(o, "%s: is a drafter (%s), not a model; give the model with -m and this one with -d", path,
                 facts->arch);
    if (facts->kind == MODEL_PROJECTOR)
        complain(o, "%s: is a vision projector (%s), not a model; give the model's own file with -m", path,
                 facts->arch);
    return facts->kind == MODEL_TARGET;
}

static bool find_model(Files *out, const Options *o)
{
    if (o->model && o->hf_repo) return complain(o, "there can be only one of -m and -hf") == 0;
    if (o->hf_repo) return hub_get(out->model, o, o->hf_repo, HUB_TARGET);
    if (o->model) return named(out->model, o, o->model, HUB_TARGET);
    if (!find_demo(out))
        return complain(o, "no -m was given, and there is no demo model (models/demo) beside the program") == 0;
    detail(o, "no -m was given: the demo model %s", out->model);
    return out->demo = true;
}

bool files_find(Files *out, const Options *o, bool drafter)
{
    ModelFacts facts;
    DraftFound found;
    *out = (Files) { 0 };
    if (!find_model(out, o) || !outputs_good(o, out)) return false;
    if (!hub_ollama_name(out->name, sizeof out->name, out->model, o->model))
        snprintf(out->name, sizeof out->name, "%.255s", base_name(out->model));
    bool readable = model_facts(&facts, out->model, NULL) == ST_OK;    /* else loading it says why */
    if (readable && !is_model(o, out->model, &facts)) return false;
    if (readable) strcpy(out->type, facts.type);
    if (!drafter || !readable || (o->draft && strcmp(o->draft, "none") == 0)) return true;
    if (o->draft) return named_drafter(out, o) && outputs_good(o, out);
    if (facts.canvas) return true;
    draft_find(&found, out->model, &facts);
    draft_tell(&found, o, out->model, &facts);
    strcpy(out->draft, found.path);
    strcpy(out->ignored, found.ignored);
    strcpy(out->why, found.why);
    out->found_draft = out->draft[0] != 0;
    out->own = !out->found_draft;
    return outputs_good(o, out);
}

/* A path that is only a path, or the place of what had to be fetched. */
static bool fetched(const char **path, char place[4096], const Options *o, HubKind kind)
{
    if (!*path || !hub_prefix(*path)) return true;
    bool good = hub_get(place, o, *path, kind);
    *path = place;
    return good;
}

bool files_fetch(Files *out, Options *o)
{
    *out = (Files) { 0 };
    if (o->hf_repo && !o->model) {
        if (!hub_get(out->model, o, o->hf_repo, HUB_TARGET)) return false;
        o->model = out->model;
        o->hf_repo = NULL;
    }
    return fetched(&o->model, out->model, o, HUB_TARGET) && fetched(&o->draft, out->draft, o, HUB_DRAFTER);
}
