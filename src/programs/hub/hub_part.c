#include "programs/hub/hub_part.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define PART ".ratoon"
#define JOURNAL ".ratoon-parts"

static const uint64_t MIB = 1 << 20;
typedef struct { char magic[8]; uint64_t size, piece; } Head;
static const char MAGIC[8] = "rtparts1";

/* 1 to 64 MiB, so that there are some 64 pieces of a small file and never very many. */
static uint64_t piece_of(uint64_t size)
{
    uint64_t piece = (size / 64 + MIB - 1) / MIB * MIB;
    return piece < MIB ? MIB : piece > 64 * MIB ? 64 * MIB : piece;
}

uint64_t hub_part_length(const HubPart *p, size_t i)
{
    uint64_t left = p->size - i * p->piece;
    return left < p->piece ? left : p->piece;
}

uint64_t hub_part_have(const HubPart *p)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < p->n; i++) sum += p->done[i];
    return sum;
}

static Status broken(const char *path, Error *err)
{
    bool full = errno == ENOSPC || errno == EDQUOT || errno == EFBIG;
    if (full) return fail(err, ST_FULL, "the disk is full (%s)", strerror(errno));
    return fail(err, ST_IO, "%s: %s", path, strerror(errno));
}

/* The lock counts only if the file still has its name: the process that had it may just have finished. */
static bool is_at(int fd, const char *path)
{
    struct stat a, b;
    return fstat(fd, &a) == 0 && stat(path, &b) == 0 && a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

static Status open_locked(int *fd, const char *path, Error *err)
{
    *fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (*fd < 0) return broken(path, err);
    /* Some file systems have no locks. */
    const bool locked = flock(*fd, LOCK_EX | LOCK_NB) == 0;
    if (!locked && errno != EWOULDBLOCK && errno != ENOSYS && errno != ENOLCK && errno != EOPNOTSUPP)
        return broken(path, err);
    if ((!locked && errno == EWOULDBLOCK) || !is_at(*fd, path))
        return fail(err, ST_IO, "%s: another process is fetching this file", path);
    return ST_OK;
}

/* What the journal says, if it speaks of this file. */
static void read_journal(HubPart *p)
{
    Head h;
    struct stat st;
    size_t bytes = p->n * sizeof *p->done;
    bool good = fstat(p->fd, &st) == 0 && pread(p->journal, &h, sizeof h, 0) == (ssize_t) sizeof h &&
                memcmp(h.magic, MAGIC, 8) == 0 && h.size == p->size && h.piece == p->piece &&
                pread(p->journal, p->done, bytes, sizeof h) == (ssize_t) bytes;
    for (size_t i = 0; good && i < p->n; i++)
        good = p->done[i] <= hub_part_length(p, i) &&
               (p->done[i] == 0 || i * p->piece + p->done[i] <= (uint64_t) st.st_size);
    if (!good) hub_part_restart(p);
}

Status hub_part_open(HubPart *p, const char *target, uint64_t size, Error *err)
{
    *p = (HubPart) { .fd = -1, .journal = -1, .size = size, .piece = piece_of(size) };
    p->n = (size_t) ((size + p->piece - 1) / p->piece);
    p->done = calloc(p->n + 1, sizeof *p->done);
    if (!p->done) return fail(err, ST_MEMORY, "%s: out of memory", target);
    if (snprintf(p->path, HUB_PATH, "%s" PART, target) >= HUB_PATH ||
        snprintf(p->journal_path, HUB_PATH, "%s" JOURNAL, target) >= HUB_PATH)
        return fail(err, ST_ARG, "%s: the path is too long", target);
    TRY(open_locked(&p->fd, p->path, err));
    p->journal = open(p->journal_path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (p->journal < 0) return broken(p->journal_path, err);
    read_journal(p);
    return hub_part_save(p, err);                  /* the journal has its room on a disk that fills up later */
}

uint64_t hub_part_peek(const char *target)
{
    char path[HUB_PATH];
    struct stat st;
    if (snprintf(path, sizeof path, "%s" PART, target) >= HUB_PATH || stat(path, &st) != 0) return 0;
    return (uint64_t) st.st_blocks * 512;
}

void hub_part_restart(HubPart *p) { memset(p->done, 0, p->n * sizeof *p->done); }

Status hub_part_write(HubPart *p, uint64_t at, const void *bytes, size_t n, Error *err)
{
    const char *from = bytes;
    while (n > 0) {
        ssize_t wrote = pwrite(p->fd, from, n, (off_t) at);
        if (wrote < 0 && errno == EINTR) continue;
        if (wrote <= 0) return broken(p->path, err);
        from += wrote;
        at += (uint64_t) wrote;
        n -= (size_t) wrote;
    }
    return ST_OK;
}

Status hub_part_save(HubPart *p, Error *err)
{
    Head h = { .size = p->size, .piece = p->piece };
    size_t bytes = p->n * sizeof *p->done;
    memcpy(h.magic, MAGIC, 8);
    if (fdatasync(p->fd) != 0) return broken(p->path, err);
    if (pwrite(p->journal, &h, sizeof h, 0) != (ssize_t) sizeof h ||
        pwrite(p->journal, p->done, bytes, sizeof h) != (ssize_t) bytes) return broken(p->journal_path, err);
    return ST_OK;
}

Status hub_part_finish(HubPart *p, const char *target, Error *err)
{
    if (fsync(p->fd) != 0 || rename(p->path, target) != 0) return broken(p->path, err);
    unlink(p->journal_path);
    return ST_OK;
}

void hub_part_drop(HubPart *p)
{
    unlink(p->journal_path);
    unlink(p->path);
}

void hub_part_close(HubPart *p)
{
    if (p->journal >= 0) close(p->journal);
    if (p->fd >= 0) close(p->fd);                  /* and with it the lock */
    free(p->done);
    *p = (HubPart) { .fd = -1, .journal = -1 };
}

bool hub_part_busy(const char *path)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    const bool busy = fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    if (fd >= 0) close(fd);
    return busy;
}

bool hub_part_is(const char *name)
{
    size_t n = strlen(name), a = strlen(PART), b = strlen(JOURNAL);
    return (n > a && strcmp(name + n - a, PART) == 0) || (n > b && strcmp(name + n - b, JOURNAL) == 0);
}
