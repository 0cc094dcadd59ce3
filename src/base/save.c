#include "base/save.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static Status refused(Error *err, const char *path, int why)
{
    return why ? fail(err, ST_IO, "%s: %s", path, strerror(why)) : fail(err, ST_IO, "%s: it could not be written", path);
}

static Status write_to(char *temporary, const char *path, bool (*write)(void *ud, FILE *f), void *ud, Error *err)
{
    int fd = mkstemp(temporary), why = errno;
    FILE *f = fd >= 0 ? fdopen(fd, "w") : NULL;
    if (!f) {
        if (fd >= 0) why = errno, close(fd), unlink(temporary);
        return refused(err, path, why);
    }
    errno = 0;
    bool good = write(ud, f) && !ferror(f) && fflush(f) == 0 && fsync(fd) == 0;
    why = errno;
    if (fclose(f) != 0 && good) good = false, why = errno;
    if (good && rename(temporary, path) != 0) good = false, why = errno;
    if (good) return ST_OK;
    unlink(temporary);
    return refused(err, path, why);
}

Status save_file(const char *path, bool (*write)(void *ud, FILE *f), void *ud, Error *err)
{
    static const char END[] = ".XXXXXX";
    struct stat old;
    if (stat(path, &old) == 0 && !S_ISREG(old.st_mode)) return fail(err, ST_ARG, "%s: it is no file", path);
    size_t n = strlen(path);
    char *temporary = malloc(n + sizeof END);
    if (!temporary) return fail(err, ST_MEMORY, "%s: out of memory", path);
    memcpy(temporary, path, n);
    memcpy(temporary + n, END, sizeof END);
    Status st = write_to(temporary, path, write, ud, err);
    free(temporary);
    return st;
}
