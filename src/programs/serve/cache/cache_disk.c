#include "programs/serve/cache/cache_disk.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/grow.h"
#include "base/save.h"

enum { NAME_BYTES = 48, PIECE = 1 << 20, READERS = 4, PART_LEAST = 4 << 20 };
static const char SUFFIX[] = ".ratoon", TEMPORARY[] = ".writing-";

static void file_name(char out[NAME_BYTES], RecordName name)
{
    snprintf(out, NAME_BYTES, "%016" PRIx64 "%016" PRIx64 "%s", name.high, name.low, SUFFIX);
}

/* Accepts exactly the names that file_name produces. */
static bool is_record(RecordName *out, const char *s)
{
    char again[NAME_BYTES];
    if (strlen(s) != 32 + sizeof SUFFIX - 1 || sscanf(s, "%16" SCNx64 "%16" SCNx64, &out->high, &out->low) != 2)
        return false;
    file_name(again, *out);
    return strcmp(again, s) == 0;
}

/* Removes the file unless it is locked: its writer holds a lock as long as it lives. */
static void remove_if_dead(int dir, const char *name)
{
    int fd = openat(dir, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) return;
    if (flock(fd, LOCK_EX | LOCK_NB) == 0) unlinkat(dir, name, 0);
    close(fd);
}

/* Calls each(ud, name) for every file of the folder. */
static Status for_files(const CacheDisk *d, bool (*each)(void *ud, const char *name), void *ud, Error *err)
{
    int fd = openat(d->fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    if (!dir) {
        fail(err, ST_IO, "%s: cannot be listed: %m", d->path);
        if (fd >= 0) close(fd);
        return ST_IO;
    }
    bool go_on = true;
    for (struct dirent *e; go_on && (e = readdir(dir)); ) go_on = each(ud, e->d_name);
    closedir(dir);
    return go_on ? ST_OK : fail(err, ST_MEMORY, "%s: out of memory", d->path);
}

static bool tidy(void *ud, const char *name)
{
    if (strncmp(name, TEMPORARY, sizeof TEMPORARY - 1) == 0) remove_if_dead(((const CacheDisk *) ud)->fd, name);
    return true;
}

Status cache_disk_open(CacheDisk *d, const char *path, Error *err)
{
    struct stat st;
    *d = (CacheDisk) { .fd = -1 };
    if (!save_folders(path, 0700) || (mkdir(path, 0700) != 0 && errno != EEXIST))
        return fail(err, ST_IO, "%s: the cache's folder cannot be made: %m", path);
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) != 0) {
        fail(err, ST_IO, "%s: the cache's folder cannot be opened: %m", path);
        if (fd >= 0) close(fd);
        return ST_IO;
    }
    if (st.st_uid != geteuid() || (st.st_mode & 022)) {
        close(fd);
        return fail(err, ST_ARG, "%s: the cache's folder is of user %u with mode %03o, expected one of user %u "
                    "that only its owner writes to", path, (unsigned) st.st_uid, (unsigned) (st.st_mode & 0777),
                    (unsigned) geteuid());
    }
    d->fd = fd;
    d->path = strdup(path);
    Status status = d->path ? for_files(d, tidy, d, err) : fail(err, ST_MEMORY, "%s: out of memory", path);
    if (status != ST_OK) cache_disk_close(d);
    return status;
}

void cache_disk_close(CacheDisk *d)
{
    if (d->fd >= 0) close(d->fd);
    free(d->path);
    *d = (CacheDisk) { .fd = -1 };
}

/* ---- reading ---- */

typedef struct { const CacheDisk *d; CacheFile *at; size_t n, room; } List;

static bool list_one(void *ud, const char *name)
{
    List *l = ud;
    CacheFile f;
    struct stat st;
    if (!is_record(&f.name, name) || fstatat(l->d->fd, name, &st, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(st.st_mode))
        return true;
    if (!grow_to(&l->at, &l->room, l->n + 1, 64, sizeof *l->at)) return false;
    f.bytes = (uint64_t) st.st_size;
    f.used = st.st_mtim.tv_sec;
    l->at[l->n++] = f;
    return true;
}

Status cache_disk_list(const CacheDisk *d, CacheFile **out, size_t *n, Error *err)
{
    List l = { .d = d };
    Status st = for_files(d, list_one, &l, err);
    if (st != ST_OK) free(l.at), l.at = NULL, l.n = 0;
    *out = l.at;
    *n = l.n;
    return st;
}

static Status read_all(int fd, void *out, size_t n, size_t at, const char *name, Error *err)
{
    for (size_t done = 0; done < n; ) {
        ssize_t got = pread(fd, (uint8_t *) out + done, n - done < PIECE ? n - done : PIECE, (off_t) (at + done));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return fail(err, ST_IO, "%s: cannot be read at byte %zu: %m", name, at + done);
        if (got == 0) return fail(err, ST_FORMAT, "%s: ends at byte %zu, expected %zu", name, at + done, at + n);
        done += (size_t) got;
    }
    return ST_OK;
}

/* A part of an image, read by one thread. */
typedef struct { int fd; uint8_t *out; size_t n, at; const char *name; Status st; Error err; } Part;

static void *read_part(void *ud)
{
    Part *p = ud;
    p->st = read_all(p->fd, p->out, p->n, p->at, p->name, &p->err);
    return NULL;
}

/* Several threads hide the latency of page faults and a cold disk; if a thread fails to start its part is read here. */
static Status read_parts(int fd, uint8_t *out, size_t n, size_t at, const char *name, Error *err)
{
    Part part[READERS];
    pthread_t thread[READERS];
    bool started[READERS] = { false };
    int32_t count = 0;
    for (size_t done = 0, span = n / READERS / PART_LEAST * PART_LEAST + PART_LEAST; done < n; done += part[count++].n)
        part[count] = (Part) { fd, out + done, n - done < span ? n - done : span, at + done, name, ST_OK, { 0 } };
    for (int32_t i = 1; i < count; i++) started[i] = pthread_create(&thread[i], NULL, read_part, &part[i]) == 0;
    for (int32_t i = 0; i < count; i++)
        if (!started[i]) read_part(&part[i]);
    for (int32_t i = 0; i < count; i++)
        if (started[i]) pthread_join(thread[i], NULL);
    for (int32_t i = 0; i < count; i++) {
        if (part[i].st == ST_OK) continue;
        if (err) *err = part[i].err;
        return part[i].st;
    }
    return ST_OK;
}

static Status open_record(int *out, uint64_t *bytes, const CacheDisk *d, RecordName of, char name[NAME_BYTES],
                          Error *err)
{
    struct stat st;
    file_name(name, of);
    int fd = openat(d->fd, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) return fail(err, ST_IO, "%s: cannot be opened: %m", name);
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) || st.st_uid != geteuid()) {
        close(fd);
        return fail(err, ST_UNSUPPORTED, "%s: is not a regular file of ours", name);
    }
    *out = fd;
    *bytes = (uint64_t) st.st_size;
    return ST_OK;
}

static Status front_of(int fd, uint64_t bytes, const char *name, uint8_t **front, Record *out, Error *err)
{
    uint8_t head[RECORD_HEAD];
    size_t n = bytes < sizeof head ? (size_t) bytes : sizeof head, n_front;
    TRY(read_all(fd, head, n, 0, name, err));
    TRY(record_front_bytes(&n_front, head, n, bytes, name, err));
    *front = malloc(n_front);
    if (!*front) return fail(err, ST_MEMORY, "%s: no memory for %zu bytes", name, n_front);
    Status st = read_all(fd, *front, n_front, 0, name, err);
    if (st == ST_OK) st = record_read(out, *front, n_front, bytes, name, err);
    if (st != ST_OK) free(*front), *front = NULL;
    return st;
}

Status cache_disk_front(const CacheDisk *d, RecordName of, uint8_t **front, Record *out, Error *err)
{
    int fd;
    uint64_t bytes;
    char name[NAME_BYTES];
    *front = NULL;
    TRY(open_record(&fd, &bytes, d, of, name, err));
    Status st = front_of(fd, bytes, name, front, out, err);
    close(fd);
    return st;
}

static bool same_text(const Record *a, const Record *b)
{
    return a->n_tokens == b->n_tokens && a->n_identity == b->n_identity && a->n_image == b->n_image &&
           memcmp(a->identity, b->identity, a->n_identity) == 0 &&
           memcmp(a->tokens, b->tokens, sizeof *a->tokens * (size_t) a->n_tokens) == 0;
}

Status cache_disk_image(const CacheDisk *d, RecordName of, const Record *like, uint8_t *image, Error *err)
{
    int fd;
    uint64_t bytes;
    uint8_t *front = NULL;
    Record r;
    char name[NAME_BYTES];
    TRY(open_record(&fd, &bytes, d, of, name, err));
    Status st = front_of(fd, bytes, name, &front, &r, err);
    if (st == ST_OK && !same_text(&r, like)) st = fail(err, ST_IO, "%s: holds another text now", name);
    if (st == ST_OK) st = read_parts(fd, image, (size_t) r.n_image, r.n_front, name, err);
    if (st == ST_OK) st = record_check_image(&r, image, name, err);
    free(front);
    close(fd);
    return st;
}

/* ---- writing ---- */

/* EFBIG: a file size limit (ulimit -f) is treated like a full disk. */
static Status why_unwritten(void) { return errno == ENOSPC || errno == EDQUOT || errno == EFBIG ? ST_FULL : ST_IO; }

static Status write_all(int fd, const uint8_t *p, size_t n, const char *name, atomic_bool *stop, Error *err)
{
    for (size_t done = 0; done < n; ) {
        if (atomic_load(stop)) return fail(err, ST_CANCEL, "%s: given up", name);
        ssize_t put = write(fd, p + done, n - done < PIECE ? n - done : PIECE);
        if (put < 0 && errno == EINTR) continue;
        if (put <= 0) return fail(err, put < 0 ? why_unwritten() : ST_IO, "%s: cannot be written: %m", name);
        done += (size_t) put;
    }
    return ST_OK;
}

static Status open_temporary(int *out, CacheDisk *d, char name[NAME_BYTES], Error *err)
{
    struct stat st;
    for (int32_t tries = 0; tries < 1000; tries++) {
        snprintf(name, NAME_BYTES, "%s%ld-%u", TEMPORARY, (long) getpid(), d->n_temporary++);
        *out = openat(d->fd, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
        if (*out < 0 && errno == EEXIST) continue;
        if (*out < 0) break;
        bool locked = flock(*out, LOCK_EX | LOCK_NB) == 0;
        if (locked && fstat(*out, &st) == 0 && st.st_nlink > 0) return ST_OK;
        int why = locked ? EAGAIN : errno;
        if (why != EAGAIN) unlinkat(d->fd, name, 0);
        close(*out);
        errno = why;
        if (why != EAGAIN) break;  /* otherwise another process is cleaning up, found it first and may already have
                                    * removed it */
    }
    return fail(err, why_unwritten(), "%s: no file can be made: %m", d->path);
}

Status cache_disk_write(CacheDisk *d, RecordName of, const Record *r, const uint8_t *front, const uint8_t *image,
                        atomic_bool *stop, Error *err)
{
    int fd;
    char temporary[NAME_BYTES], name[NAME_BYTES];
    file_name(name, of);
    TRY(open_temporary(&fd, d, temporary, err));
    Status st = write_all(fd, front, r->n_front, name, stop, err);
    if (st == ST_OK) st = write_all(fd, image, (size_t) r->n_image, name, stop, err);
    if (st == ST_OK && fsync(fd) != 0) st = fail(err, why_unwritten(), "%s: cannot be written: %m", name);
    if (st == ST_OK && renameat(d->fd, temporary, d->fd, name) != 0)
        st = errno == EISDIR ? fail(err, ST_UNSUPPORTED, "%s: is a folder", name)
                             : fail(err, ST_IO, "%s: cannot be renamed: %m", name);
    if (st != ST_OK) unlinkat(d->fd, temporary, 0);
    else fsync(d->fd);                             /* if that fails, a crash may lose the name, but nothing else */
    close(fd);
    return st;
}

Status cache_disk_remove(const CacheDisk *d, RecordName of, Error *err)
{
    char name[NAME_BYTES];
    file_name(name, of);
    if (unlinkat(d->fd, name, 0) == 0 || errno == ENOENT || errno == EISDIR) return ST_OK;      /* folders are not
                                                                                                 * ours */
    return fail(err, ST_IO, "%s: cannot be removed: %m", name);
}

void cache_disk_touch(const CacheDisk *d, RecordName of)
{
    char name[NAME_BYTES];
    file_name(name, of);
    utimensat(d->fd, name, (struct timespec[2]) { { .tv_nsec = UTIME_OMIT }, { .tv_nsec = UTIME_NOW } },
              AT_SYMLINK_NOFOLLOW);
}
