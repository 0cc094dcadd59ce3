/* files.c - which files a command means when it was not told: the demo pair, and the drafter that lies beside a target. What was found
 * is always said, because a drafter that silently appeared or was silently missing is the hardest speed problem to see. */
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "programs/program.h"

static bool begins(const char *s, const char *with) { return strncmp(s, with, strlen(with)) == 0; }

static bool ends(const char *s, const char *with)
{
    size_t n = strlen(s), m = strlen(with);
    return n >= m && strcmp(s + n - m, with) == 0;
}

static bool is_folder(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

static bool join(char out[4096], const char *folder, const char *name)
{
    int n = snprintf(out, 4096, "%s/%s", folder, name);
    return n > 0 && n < 4096;
}

/* The one .gguf file of a folder that passes the test, by name; "": none. more: there were others. */
static void pick(char out[4096], bool *more, const char *folder, bool (*test)(const char *name, const char *stem), const char *stem)
{
    char best[256] = "";
    *more = false;
    out[0] = 0;
    DIR *d = opendir(folder);
    if (!d) return;
    for (struct dirent *e; (e = readdir(d));) {
        if (!ends(e->d_name, ".gguf") || strlen(e->d_name) >= sizeof best || !test(e->d_name, stem)) continue;
        if (best[0]) *more = true;
        if (!best[0] || strcmp(e->d_name, best) < 0) strcpy(best, e->d_name);
    }
    closedir(d);
    if (best[0] && !join(out, folder, best)) out[0] = 0;
}

static bool any_target(const char *name, const char *stem)
{
    (void) stem;
    return !begins(name, "dflash-");
}

static bool any_drafter(const char *name, const char *stem)
{
    (void) stem;
    return begins(name, "dflash-");
}

static bool any(const char *name, const char *stem)
{
    (void) name;
    (void) stem;
    return true;
}

/* dflash-STEM.gguf, dflash-STEM-Q8_0.gguf ... */
static bool drafter_of(const char *name, const char *stem) { return begins(name, "dflash-") && begins(name + strlen("dflash-"), stem); }

/* Beside the target: dflash-NAME*.gguf, then the only dflash-*.gguf, then draft/ (a GGUF file or a Hugging Face folder). */
static void find_beside(Files *f, const Options *o)
{
    char folder[4096], draft[4096], stem[256];
    bool more;
    snprintf(folder, sizeof folder, "%s", f->model);
    char *slash = strrchr(folder, '/');
    if (slash) *slash = 0;
    else strcpy(folder, ".");
    if (slash == folder) strcpy(folder, "/");
    snprintf(stem, sizeof stem, "%s", base_name(f->model));
    if (ends(stem, ".gguf")) stem[strlen(stem) - strlen(".gguf")] = 0;
    pick(f->draft, &more, folder, drafter_of, stem);
    if (f->draft[0]) return;
    pick(f->draft, &more, folder, any_drafter, stem);
    if (f->draft[0] && more) {
        note(o, "several files dflash-*.gguf lie beside %s, none named after it; choose one with -d", f->model);
        f->draft[0] = 0;
        return;
    }
    if (f->draft[0] || !join(draft, folder, "draft") || !is_folder(draft)) return;
    pick(f->draft, &more, draft, any, NULL);
    if (f->draft[0] && more) {
        note(o, "several files lie in %s; choose one with -d", draft);
        f->draft[0] = 0;
    } else if (!f->draft[0]) {
        char config[4096];
        if (join(config, draft, "config.json") && access(config, R_OK) == 0) strcpy(f->draft, draft);
    }
}

/* models/demo beside the program, or where `make install` puts it. */
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
        pick(f->model, &more, folder, any_target, NULL);
        if (f->model[0]) return true;
    }
    return false;
}

static bool named(char out[4096], const Options *o, const char *path)
{
    if (strlen(path) >= 4096) {
        complain(o, "a path of %zu bytes is too long", strlen(path));
        return false;
    }
    strcpy(out, path);
    return true;
}

bool files_find(Files *out, const Options *o, bool drafter)
{
    *out = (Files) { 0 };
    if (o->model) {
        if (!named(out->model, o, o->model)) return false;
    } else if (find_demo(out)) {
        note(o, "no -m was given: the demo model %s", out->model);
    } else {
        complain(o, "no -m was given, and there is no demo model (models/demo) beside the program");
        return false;
    }
    if (!drafter || (o->draft && strcmp(o->draft, "none") == 0)) return true;
    if (o->draft) return named(out->draft, o, o->draft);
    find_beside(out, o);
    out->found_draft = out->draft[0] != 0;
    out->own = !out->found_draft;
    if (out->found_draft) note(o, "drafter found beside the model: %s (-d none: without)", out->draft);
    return true;
}
