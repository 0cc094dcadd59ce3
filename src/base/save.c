#include "base/save.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { TRIES = 100 };

static Status cannot(Error *err, const char *path, const char *what, int why)
{
    if (why == ENOMEM) return fail(err, ST_MEMORY, "%s: no memory to write it", path);
    return fail(err, ST_IO, "%s: cannot be %s%s%s", path, what, why ? ": " : "", why ? strerror(why) : "");
}

static bool is_stream(mode_t mode) { return S_ISCHR(mode) || S_ISFIFO(mode); }

static const char *kind_of(mode_t mode)
{
    return S_ISDIR(mode)    ? "a folder"
           : S_ISBLK(mode)  ? "a block device"
           : S_ISSOCK(mode) ? "a socket"
           : S_ISLNK(mode)  ? "a link to nothing"
                            : "no file";
}

/* Follows a name to the file it refers to; *mode is 0 if nothing is there yet. */
static Status find_target(char **out, mode_t *mode, const char *path, Error *err)
{
    struct stat st = { 0 };
    bool there = stat(path, &st) == 0;
    if (!there && (errno != ENOENT || !*path)) return cannot(err, path, "created", errno);
    if (!there && lstat(path, &st) != 0) st.st_mode = 0;
    if (st.st_mode && !S_ISREG(st.st_mode) && !is_stream(st.st_mode))
        return fail(err, ST_ARG, "%s: is %s, expected a file", path, kind_of(st.st_mode));
    *mode = st.st_mode;
    *out = S_ISREG(st.st_mode) ? realpath(path, NULL) : strdup(path);
    return *out ? ST_OK : cannot(err, path, "created", errno);
}

/* Creates a file beside the target, under an unused name. */
static int create_beside(char **temporary, const char *target, mode_t mode)
{
    int fd = -1;
    for (int32_t i = 0; i < TRIES; i++) {
        free(*temporary);
        if (asprintf(temporary, "%s.%d-%d.tmp", target, (int) getpid(), i) < 0) {
            *temporary = NULL;
            errno = ENOMEM;
            return -1;
        }
        fd = open(*temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
        if (fd >= 0 || errno != EEXIST) return fd;
    }
    return fd;
}

/* Opening a pipe without a reader fails instead of waiting. */
static int open_stream(const char *path)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (fd >= 0) fcntl(fd, F_SETFL, O_WRONLY);
    return fd;
}

static void forget(Save *s)
{
    free(s->target);
    free(s->temporary);
    *s = (Save) { 0 };
}

Status save_open(Save *s, const char *path, SaveMode mode, Error *err)
{
    mode_t old;
    *s = (Save) { 0 };
    TRY(find_target(&s->target, &old, path, err));
    int fd = is_stream(old) ? open_stream(s->target) : create_beside(&s->temporary, s->target, mode);
    if (fd >= 0 && S_ISREG(old) && mode == SAVE_SHARED) fchmod(fd, old & 0777);
    s->file = fd >= 0 ? fdopen(fd, "wb") : NULL;
    if (s->file) return ST_OK;
    Status st = errno == ENXIO ? fail(err, ST_IO, "%s: cannot be written: nobody reads from it", path)
                               : cannot(err, path, "created", errno);
    if (fd >= 0) close(fd);
    if (fd >= 0 && s->temporary) unlink(s->temporary);
    forget(s);
    return st;
}

/* The name appears only when the bytes are on disk: a power cut leaves the old file or the new one. */
static bool flush(const Save *s)
{
    return !ferror(s->file) && fflush(s->file) == 0 && (!s->temporary || fsync(fileno(s->file)) == 0);
}

Status save_close(Save *s, const char *path, bool keep, Error *err)
{
    bool good = keep && flush(s);
    int why = errno;
    if (fclose(s->file) != 0 && good) good = false, why = errno;
    if (good && s->temporary && rename(s->temporary, s->target) != 0) good = false, why = errno;
    if (!good && s->temporary) unlink(s->temporary);
    forget(s);
    return good || !keep ? ST_OK : cannot(err, path, "written", why);
}

bool save_folders(const char *path, unsigned mode)
{
    char part[4096];
    if (strlen(path) >= sizeof part) {
        errno = ENAMETOOLONG;
        return false;
    }
    strcpy(part, path);
    for (char *p = part; (p = strchr(p + 1, '/')); *p = '/') {
        *p = 0;
        if (mkdir(part, mode) != 0 && errno != EEXIST) return false;
    }
    return true;
}

Status save_file(const char *path, SaveMode mode, bool (*write)(void *ud, FILE *f), void *ud, Error *err)
{
    Save s;
    TRY(save_open(&s, path, mode, err));
    errno = 0;
    bool good = write(ud, s.file);
    int why = errno;
    TRY(save_close(&s, path, good, err));
    return good ? ST_OK : cannot(err, path, "written", why);
}

static Status check_folder(const char *target, const char *path, Error *err)
{
    char *folder = strdup(target);
    if (!folder) return cannot(err, path, "created", ENOMEM);
    char *slash = strrchr(folder, '/');
    if (slash) slash[slash == folder] = 0;
    bool good = access(slash ? folder : ".", W_OK | X_OK) == 0;
    int why = errno;
    free(folder);
    return good ? ST_OK : cannot(err, path, "created", why);
}

Status save_check(const char *path, Error *err)
{
    char *target;
    mode_t mode;
    TRY(find_target(&target, &mode, path, err));
    Status st = is_stream(mode) ? ST_OK : check_folder(target, path, err);
    free(target);
    return st;
}
