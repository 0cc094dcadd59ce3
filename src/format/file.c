#include "format/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *kind_name(mode_t mode)
{
    if (S_ISDIR(mode)) return "a folder";
    if (S_ISFIFO(mode)) return "a FIFO";
    if (S_ISSOCK(mode)) return "a socket";
    return "a device";
}

Status file_open(File *f, const char *path, bool *missing, Error *err)
{
    *f = (File) { .fd = -1 };
    if (missing) *missing = false;
    /* O_NONBLOCK: opening a FIFO without a writer would block forever. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0) {
        if (errno == ENXIO) return fail(err, ST_IO, "%s: is a socket or a device, expected a regular file", path);
        if (missing) *missing = errno == ENOENT;
        return fail(err, ST_IO, "%s: cannot be opened: %m", path);
    }
    struct stat st;
    Status status = ST_OK;
    if (fstat(fd, &st) != 0) status = fail(err, ST_IO, "%s: cannot be examined: %m", path);
    else if (!S_ISREG(st.st_mode))
        status = fail(err, ST_IO, "%s: is %s, expected a regular file", path, kind_name(st.st_mode));
    else if (!(f->path = strdup(path)))
        status = fail(err, ST_MEMORY, "%s: no memory for its name", path);
    if (status != ST_OK) {
        close(fd);
        return status;
    }
    f->fd = fd;
    f->size = (size_t) st.st_size;
    f->changed = st.st_mtim;
    return ST_OK;
}

Status file_read(const File *f, void *out, size_t offset, size_t n, Error *err)
{
    for (size_t done = 0; done < n; ) {
        ssize_t got = pread(f->fd, (char *) out + done, n - done, (off_t) (offset + done));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return fail(err, ST_IO, "%s: cannot be read at byte %zu: %m", f->path, offset + done);
        if (got == 0)
            return fail(err, ST_IO, "%s: ends at byte %zu, expected %zu: it was cut while being read", f->path,
                        offset + done, f->size);
        done += (size_t) got;
    }
    return ST_OK;
}

Status file_map(File *f, Error *err)
{
    void *map = mmap(NULL, f->size, PROT_READ, MAP_PRIVATE, f->fd, 0);
    if (map == MAP_FAILED)
        return fail(err, errno == ENOMEM ? ST_MEMORY : ST_IO, "%s: %zu bytes cannot be mapped: %m", f->path, f->size);
    f->map = map;
    return ST_OK;
}

Status file_check(const File *f, Error *err)
{
    struct stat st;
    if (fstat(f->fd, &st) != 0) return fail(err, ST_IO, "%s: cannot be examined: %m", f->path);
    if ((size_t) st.st_size != f->size)
        return fail(err, ST_IO, "%s: has %lld bytes, expected %zu: it was changed while in use", f->path,
                    (long long) st.st_size, f->size);
    if (st.st_mtim.tv_sec != f->changed.tv_sec || st.st_mtim.tv_nsec != f->changed.tv_nsec)
        return fail(err, ST_IO, "%s: was written to while in use, expected it unchanged", f->path);
    return ST_OK;
}

void file_want(const File *f, const uint8_t *at, size_t n)
{
    const size_t most = (size_t) 512 << 10;        /* a larger request would be cut to the device's read-ahead */
    size_t page = (size_t) sysconf(_SC_PAGESIZE), from = (size_t) (at - f->map) / page * page,
           to = (size_t) (at - f->map) + n;
    for (; from < to; from += most)
        madvise((void *) (uintptr_t) (f->map + from), to - from < most ? to - from : most, MADV_WILLNEED);
}

void file_drop(const File *f, const uint8_t *at, size_t n)
{
    /* Whole pages only: the neighbours may still be needed. */
    size_t page = (size_t) sysconf(_SC_PAGESIZE), from = (size_t) (at - f->map), to = from + n;
    from = (from + page - 1) / page * page;
    to = to / page * page;
    if (from < to) madvise((void *) (uintptr_t) (f->map + from), to - from, MADV_DONTNEED);
}

void file_close(File *f)
{
    if (!f->path) return;
    if (f->map) munmap((void *) (uintptr_t) f->map, f->size);
    close(f->fd);
    free(f->path);
    *f = (File) { .fd = -1 };
}
