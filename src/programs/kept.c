#include "programs/kept.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <xxhash.h>

#include "base/path.h"
#include "base/save.h"
#include "programs/program.h"

/* The file: its first line, then "KEY TIME TEXT" for each; TIME: when it was written, in seconds. */
typedef struct { char key[KEPT_KEY]; long long written; char text[KEPT_TEXT]; } Line;
typedef struct { const KeptFile *file; Line at[KEPT_MOST]; int32_t n; } Lines;

bool kept_path(char *out, size_t cap, const KeptFile *f)
{
    return user_path(out, cap, "XDG_CACHE_HOME", ".cache", f->name);
}

void kept_key(char out[KEPT_KEY], const char *all)
{
    snprintf(out, KEPT_KEY, "%016llx", (unsigned long long) XXH3_64bits(all, strlen(all)));
}

/* Lines that are damaged are left out. */
static void read_lines(Lines *l, FILE *f)
{
    char line[KEPT_TEXT + 64];
    l->n = 0;
    if (!fgets(line, sizeof line, f) || strncmp(line, l->file->first, strlen(l->file->first)) != 0) return;
    while (l->n < KEPT_MOST && fgets(line, sizeof line, f)) {
        Line *x = &l->at[l->n];
        char *end, *time = line + 17;
        if (strspn(line, "0123456789abcdef") != 16 || line[16] != ' ' || !strchr(line, '\n')) continue;
        memcpy(x->key, line, 16);
        x->key[16] = 0;
        x->written = strtoll(time, &end, 10);
        if (end == time || *end != ' ') continue;
        snprintf(x->text, sizeof x->text, "%.*s", (int) strcspn(end + 1, "\n"), end + 1);
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

static Lines *lines_read(const KeptFile *file, const char *path)
{
    Lines *l = calloc(1, sizeof *l);
    FILE *f = l ? open_file(path) : NULL;
    if (l) l->file = file;
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

bool kept_get(char out[KEPT_TEXT], const KeptFile *f, const char *key)
{
    char path[4096];
    if (!kept_path(path, sizeof path, f)) return false;
    Lines *l = lines_read(f, path);
    const Line *x = l ? find(l, key) : NULL;
    if (x) memcpy(out, x->text, KEPT_TEXT);
    free(l);
    return x != NULL;
}

/* The line of this key, or a new one, which may take the place of the one written longest ago. */
static Line *place(Lines *l, const char *key)
{
    Line *x = find(l, key), *oldest = l->at;
    if (x) return x;
    if (l->n < KEPT_MOST) return &l->at[l->n++];
    for (int32_t i = 1; i < l->n; i++)
        if (l->at[i].written < oldest->written) oldest = &l->at[i];
    return oldest;
}

static bool write_lines(void *ud, FILE *f)
{
    const Lines *l = ud;
    bool good = fprintf(f, "%s\n", l->file->first) > 0;
    for (int32_t i = 0; i < l->n; i++)
        good &= fprintf(f, "%s %lld %s\n", l->at[i].key, l->at[i].written, l->at[i].text) > 0;
    return good;
}

/* Files that save_file had begun when a program was killed; a younger one may be another program's just now. */
static void remove_left(const char *path)
{
    enum { OLD_SECONDS = 3600 };
    const char *name = base_name(path);
    const size_t n = strlen(name);
    char folder[4096];
    struct stat st;
    snprintf(folder, sizeof folder, "%.*s", (int) (name - path), path);
    DIR *d = opendir(folder);
    if (!d) return;
    for (struct dirent *e; (e = readdir(d));) {
        if (strncmp(e->d_name, name, n) != 0 || e->d_name[n] != '.' || !has_suffix(e->d_name, ".tmp")) continue;
        if (fstatat(dirfd(d), e->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 && st.st_mtime < time(NULL) - OLD_SECONDS)
            unlinkat(dirfd(d), e->d_name, 0);
    }
    closedir(d);
}

void kept_put(const KeptFile *f, const char *key, const char *text)
{
    char path[4096];
    Error err = { 0 };
    if (!kept_path(path, sizeof path, f)) return;
    Lines *l = lines_read(f, path);
    if (l && save_folders(path, 0700)) {
        remove_left(path);
        Line *x = place(l, key);
        snprintf(x->key, sizeof x->key, "%s", key);
        snprintf(x->text, sizeof x->text, "%s", text);
        x->written = (long long) time(NULL);
        save_file(path, SAVE_PRIVATE, write_lines, l, &err);         /* if it fails it is found out again */
    }
    free(l);
}
