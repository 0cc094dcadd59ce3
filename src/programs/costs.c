#include "programs/costs.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <xxhash.h>

#include "base/path.h"
#include "base/save.h"
#include "programs/estimate.h"

/* The file: this line, then "KEY TIME COSTS" for each; TIME: of the last use, in seconds. */
static const char FIRST[] = "ratoon costs 1";

typedef struct { char key[17]; long long used; char costs[RT_COSTS]; } Line;
typedef struct { Line at[COSTS_MOST]; int32_t n; } Lines;

/* Everything that times depend on and that a run can tell. */
static bool key_of(char out[17], const Program *p)
{
    const Options *o = p->o;
    char identity[512], machine[160], all[1024], layers[16] = "";
    if (!rt_property(p->engine, "identity", identity, sizeof identity)) return false;
    const int32_t threads = machine_name(machine, sizeof machine, o);
    if (p->gpu_layers > 0) snprintf(layers, sizeof layers, "%d", p->gpu_layers);
    snprintf(all, sizeof all, "%s|%s|%d threads|%s%s|block %d|%s", identity, machine, threads,
             o->backend ? o->backend : "auto", layers, o->draft_block, o->no_repack ? "in place" : "packed");
    snprintf(out, 17, "%016llx", (unsigned long long) XXH3_64bits(all, strlen(all)));
    return true;
}

static bool path_of(char *out, size_t cap) { return user_path(out, cap, "XDG_CACHE_HOME", ".cache", "costs"); }

/* Lines that are damaged are left out. */
static void read_lines(Lines *l, FILE *f)
{
    char line[RT_COSTS + 64];
    l->n = 0;
    if (!fgets(line, sizeof line, f) || strncmp(line, FIRST, sizeof FIRST - 1) != 0) return;
    while (l->n < COSTS_MOST && fgets(line, sizeof line, f)) {
        Line *x = &l->at[l->n];
        char *end, *time = line + 17;
        if (strspn(line, "0123456789abcdef") != 16 || line[16] != ' ' || !strchr(line, '\n')) continue;
        memcpy(x->key, line, 16);
        x->key[16] = 0;
        x->used = strtoll(time, &end, 10);
        if (end == time || *end != ' ') continue;
        snprintf(x->costs, sizeof x->costs, "%.*s", (int) strcspn(end + 1, "\n"), end + 1);
        l->n++;
    }
}

/* Only a plain file: a pipe in its place would keep the program waiting. */
static FILE *open_file(const char *path)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    FILE *f = fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode) ? fdopen(fd, "r") : NULL;
    if (fd >= 0 && !f) close(fd);
    return f;
}

static Lines *lines_read(const char *path)
{
    Lines *l = calloc(1, sizeof *l);
    FILE *f = l ? open_file(path) : NULL;
    if (f) {
        read_lines(l, f);
        fclose(f);
    }
    return l;
}

static Line *find(Lines *l, const char *key)
{
    for (int32_t i = 0; i < l->n; i++)
        if (strcmp(l->at[i].key, key) == 0) return &l->at[i];
    return NULL;
}

void costs_load(const Program *p, rt_step *step)
{
    char path[4096], key[17];
    if (!path_of(path, sizeof path) || !key_of(key, p)) return;
    Lines *l = lines_read(path);
    Line *x = l ? find(l, key) : NULL;
    if (x && rt_step_costs_set(step, x->costs) != RT_OK)
        note(p->o, "%s: what it says of this model is left out: %s", path, rt_step_error(step));
    free(l);
}

/* The line of this key, or a new one, which may take the place of the one used longest ago. */
static Line *place(Lines *l, const char *key)
{
    Line *x = find(l, key), *oldest = l->at;
    if (x) return x;
    if (l->n < COSTS_MOST) return &l->at[l->n++];
    for (int32_t i = 1; i < l->n; i++)
        if (l->at[i].used < oldest->used) oldest = &l->at[i];
    return oldest;
}

static bool write_lines(void *ud, FILE *f)
{
    const Lines *l = ud;
    bool good = fprintf(f, "%s\n", FIRST) > 0;
    for (int32_t i = 0; i < l->n; i++)
        good &= fprintf(f, "%s %lld %s\n", l->at[i].key, l->at[i].used, l->at[i].costs) > 0;
    return good;
}

/* Files that save_file had begun when a program was killed; a younger one may be another program's just now. */
static void remove_left(const char *path)
{
    enum { OLD_SECONDS = 3600 };
    char folder[4096];
    struct stat st;
    snprintf(folder, sizeof folder, "%.*s", (int) (base_name(path) - path), path);
    DIR *d = opendir(folder);
    if (!d) return;
    for (struct dirent *e; (e = readdir(d));) {
        if (strncmp(e->d_name, "costs.", 6) != 0 || !has_suffix(e->d_name, ".tmp")) continue;
        if (fstatat(dirfd(d), e->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 && st.st_mtime < time(NULL) - OLD_SECONDS)
            unlinkat(dirfd(d), e->d_name, 0);
    }
    closedir(d);
}

void costs_save(const Program *p, const rt_step *step)
{
    char path[4096], costs[RT_COSTS], key[17];
    Error err = { 0 };
    size_t n = step ? rt_step_costs(step, costs, sizeof costs) : 0;
    if (n == 0 || n >= sizeof costs || !path_of(path, sizeof path) || !key_of(key, p)) return;
    Lines *l = lines_read(path);
    if (l && save_folders(path, 0700)) {
        remove_left(path);
        Line *x = place(l, key);
        memcpy(x->key, key, sizeof key);
        memcpy(x->costs, costs, n + 1);
        x->used = (long long) time(NULL);
        save_file(path, SAVE_PRIVATE, write_lines, l, &err);         /* if it fails the next run learns anew */
    }
    free(l);
}
