/* outputs.c - before anything is loaded: whether the files that the options name can be written, and are none of those
 * that are read. Which are which, the table of options says. */
#include <dirent.h>
#include <string.h>
#include <sys/stat.h>

#include "base/save.h"
#include "programs/config.h"
#include "programs/hub/hub_name.h"
#include "programs/option_table.h"
#include "programs/program.h"

static bool same_file(const char *a, const struct stat *b)
{
    struct stat x;
    return stat(a, &x) == 0 && S_ISREG(x.st_mode) && x.st_dev == b->st_dev && x.st_ino == b->st_ino;
}

static bool among_parts(const char *input, const struct stat *file)
{
    char name[4096];
    int32_t part, parts;
    if (!hub_split(input, &part, &parts)) return false;
    for (int32_t i = 1; i <= parts; i++)
        if (hub_split_name(name, sizeof name, input, i) && same_file(name, file)) return true;
    return false;
}

static bool in_folder(const char *folder, const struct stat *file)
{
    char name[4400];
    bool found = false;
    DIR *d = opendir(folder);
    if (!d) return false;
    for (struct dirent *e; !found && (e = readdir(d));) {
        snprintf(name, sizeof name, "%.4095s/%s", folder, e->d_name);
        found = same_file(name, file);
    }
    closedir(d);
    return found;
}

bool input_has(const char *input, const char *path)
{
    struct stat file;
    return stat(path, &file) == 0 && S_ISREG(file.st_mode) &&
           (same_file(input, &file) || among_parts(input, &file) || in_folder(input, &file));
}

/* The path that the value of an option is, or has behind an @; NULL: none. */
static const char *path_in(const Options *o, const OptionSpec *s)
{
    const char *value = s->kind == KIND_TEXT ? *(const char *const *) ((const char *) o + s->place) : NULL;
    if (!value || option_takes_path(s)) return value;
    return *value == '@' ? value + 1 : NULL;
}

/* The next option of the command that names a file which is written, or one which is read; NULL: no more. */
static const char *next_path(int32_t *at, const Options *o, bool writes)
{
    const uint32_t bit = command_bit(o->command);
    while (*at < option_table_n) {
        const OptionSpec *s = &option_table[(*at)++];
        const char *path = (s->commands & bit) && s->writes == writes ? path_in(o, s) : NULL;
        if (path) return path;
    }
    return NULL;
}

bool output_apart(const Options *o, const Files *f, const char *path)
{
    bool input = (f && (input_has(f->model, path) || input_has(f->draft, path))) || input_has(config_used(), path);
    int32_t at = 0;
    for (const char *s; !input && (s = next_path(&at, o, false));) input = input_has(s, path);
    return !input || complain(o, "%s: is an input, expected another file to write", path) == 0;
}

static bool output_good(const Options *o, const Files *f, const char *path)
{
    Error err = { 0 };
    if (save_check(path, &err) != ST_OK) return complain(o, "%s", err.text) == 0;
    return output_apart(o, f, path);
}

void taps_path(char out[4200], const Options *o) { snprintf(out, 4200, "%.4190s.taps", o->out); }

bool outputs_good(const Options *o, const Files *f)
{
    char taps[4200];
    int32_t at = 0;
    for (const char *path; (path = next_path(&at, o, true));)
        if (!output_good(o, f, path)) return false;
    if (!o->out || !o->taps) return true;
    taps_path(taps, o);
    return output_good(o, f, taps);
}
