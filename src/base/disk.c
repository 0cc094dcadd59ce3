#include "base/disk.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"

#if URING
#include <liburing.h>
#endif

/* REQUEST_MAX: what one request of a read asks for at most; the kernel's own limit is a page less than 2 GiB. */
enum { THREADS = 4, REQUEST_MAX = 1 << 30 };

/* ---- files ---- */

/* fd reads through the page cache. direct goes past it, and is -1 where that is not possible. */
struct DiskFile { int fd, direct; uint64_t bytes; char path[]; };

/* O_NONBLOCK: opening a FIFO without a writer would block forever. */
#define OPEN_FLAGS (O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK)

/* io_uring would say EAGAIN of a file with O_NONBLOCK instead of waiting. */
static bool set_blocking(int fd, int flags) { return fcntl(fd, F_SETFL, flags) == 0; }

/* Some file systems refuse the open, others only the read. The path may be another file's by now. */
static int open_direct(const char *path, const struct stat *same)
{
    _Alignas(DISK_ALIGN) char trial[DISK_ALIGN];
    struct stat st;
    int fd = open(path, OPEN_FLAGS | O_DIRECT);
    if (fd < 0) return -1;
    if (fstat(fd, &st) == 0 && st.st_dev == same->st_dev && st.st_ino == same->st_ino && set_blocking(fd, O_DIRECT) &&
        pread(fd, trial, sizeof trial, 0) >= 0)
        return fd;
    close(fd);
    return -1;
}

static Status check_file(struct stat *st, int fd, const char *path, Error *err)
{
    if (fstat(fd, st) != 0) return fail(err, ST_IO, "%s: cannot be examined: %m", path);
    if (!S_ISREG(st->st_mode)) return fail(err, ST_IO, "%s: is not a regular file, as was expected", path);
    if (!set_blocking(fd, 0)) return fail(err, ST_IO, "%s: cannot be made to wait: %m", path);
    return ST_OK;
}

Status disk_file_open(DiskFile **out, const char *path, Error *err)
{
    *out = NULL;
    struct stat st;
    int fd = open(path, OPEN_FLAGS);
    if (fd < 0 && errno == ENXIO)
        return fail(err, ST_IO, "%s: is a socket or a device, expected a regular file", path);
    if (fd < 0) return fail(err, ST_IO, "%s: cannot be opened: %m", path);
    Status code = check_file(&st, fd, path, err);
    size_t n = strlen(path) + 1;
    DiskFile *f = code == ST_OK ? malloc(sizeof *f + n) : NULL;
    if (code == ST_OK && !f) code = fail(err, ST_MEMORY, "%s: no memory to open it", path);
    if (code != ST_OK) {
        close(fd);
        return code;
    }
    *f = (DiskFile) { .fd = fd, .direct = open_direct(path, &st), .bytes = (uint64_t) st.st_size };
    memcpy(f->path, path, n);
    posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM);    /* what it read ahead would not be dropped */
    *out = f;
    return ST_OK;
}

bool disk_file_direct(const DiskFile *f) { return f->direct >= 0; }

uint64_t disk_file_bytes(const DiskFile *f) { return f->bytes; }

bool disk_file_holds(const DiskFile *f, uint64_t offset, const void *bytes, size_t n)
{
    uint8_t there[DISK_ALIGN];
    size_t at = 0;
    for (ssize_t got; at < n; at += (size_t) got) {
        got = pread(f->fd, there + at, n - at, (off_t) (offset + at));
        if (got < 0 && errno == EINTR) got = 0;
        else if (got <= 0) return false;
    }
    return memcmp(there, bytes, n) == 0;
}

void disk_file_close(DiskFile *f)
{
    if (!f) return;
    if (f->direct >= 0) close(f->direct);
    close(f->fd);
    free(f);
}

/* ---- one read, whoever makes it ---- */

/* got: bytes that are there. error: an errno, 0 also if the file ended early. cached: it left pages in the cache. */
typedef struct Read Read;
struct Read {
    Read *next;
    const DiskFile *file;
    uint64_t offset, tag;
    size_t n, need, got;
    uint8_t *buf;
    double begun, ended;
    int error;
    bool cached;
};

/* The next request for what is missing. After a request that ended between two blocks the rest takes the way through
 * the cache, which asks for no alignment and gets on by at least a byte or has reached the end of the file. */
typedef struct { int fd; uint8_t *buf; size_t n; uint64_t offset; } Request;
static Request next_request(Read *r)
{
    bool direct = r->file->direct >= 0 && r->got % DISK_ALIGN == 0;
    size_t rest = r->n - r->got;
    r->cached |= !direct;
    return (Request) { direct ? r->file->direct : r->file->fd, r->buf + r->got, rest < REQUEST_MAX ? rest : REQUEST_MAX,
                       r->offset + r->got };
}

/* Notes what a request brought, bytes or -errno. Returns false if the read goes on. ECANCELED: the thread that gave
 * the request to io_uring has ended. */
static bool note_result(Read *r, int64_t result)
{
    if (result == -EINTR || result == -EAGAIN || result == -ECANCELED) return false;
    if (result < 0) r->error = (int) -result;
    else r->got += (size_t) result;
    if (result > 0 && r->got < r->need) return false;
    /* Pages that another process has mapped remain. */
    if (r->cached) posix_fadvise(r->file->fd, (off_t) r->offset, (off_t) r->n, POSIX_FADV_DONTNEED);
    r->ended = seconds_now();
    return true;
}

static Status read_status(const Read *r, Error *err)
{
    errno = r->error;
    if (r->error)
        return fail(err, ST_IO, "%s: %zu bytes at offset %" PRIu64 " cannot be read: %m", r->file->path, r->n,
                    r->offset);
    if (r->got < r->need)
        return fail(err, ST_IO, "%s: only %zu of %zu bytes at offset %" PRIu64 " are there: the file became shorter "
                    "while it was open", r->file->path, r->got, r->need, r->offset);
    return ST_OK;
}

typedef struct { Read *first, *last; } Queue;

static void queue_put(Queue *q, Read *r)
{
    r->next = NULL;
    if (q->first) q->last->next = r;
    else q->first = r;
    q->last = r;
}

static Read *queue_take(Queue *q)
{
    Read *r = q->first;
    if (r) q->first = r->next;
    return r;
}

/* ---- ways to read ---- */

/* begin and take are called with at most `depth` reads in flight, take with at least one; it returns NULL if none has
 * ended and wait is false. */
typedef struct {
    const char *name;
    void  (*begin)(Disk *d, Read *r);
    Read *(*take)(Disk *d, bool wait);
    void  (*close)(Disk *d);
} Way;

struct Disk {
    const Way *way;
    int32_t    depth, in_flight;
    Read      *reads;                              /* [depth] */
    Queue      unused;
#if URING
    struct io_uring ring;
#endif
    /* The threads' own; lock is held for the queues and stop. */
    pthread_mutex_t lock;
    pthread_cond_t  has_begun, has_ended;
    Queue           begun, ended;
    bool            stop;
    int32_t         n_threads;
    pthread_t       thread[THREADS];
};

static void read_all(Read *r)
{
    int64_t result;
    do {
        Request q = next_request(r);
        result = pread(q.fd, q.buf, q.n, (off_t) q.offset);
    } while (!note_result(r, result < 0 ? -errno : result));
}

static void *thread_main(void *arg)
{
    Disk *d = arg;
    pthread_mutex_lock(&d->lock);
    for (;;) {
        Read *r;
        while (!(r = queue_take(&d->begun)) && !d->stop) pthread_cond_wait(&d->has_begun, &d->lock);
        if (!r) break;
        pthread_mutex_unlock(&d->lock);
        read_all(r);
        pthread_mutex_lock(&d->lock);
        queue_put(&d->ended, r);
        pthread_cond_signal(&d->has_ended);
    }
    pthread_mutex_unlock(&d->lock);
    return NULL;
}

static void threads_begin(Disk *d, Read *r)
{
    pthread_mutex_lock(&d->lock);
    queue_put(&d->begun, r);
    pthread_cond_signal(&d->has_begun);
    pthread_mutex_unlock(&d->lock);
}

static Read *threads_take(Disk *d, bool wait)
{
    Read *r;
    pthread_mutex_lock(&d->lock);
    while (!(r = queue_take(&d->ended)) && wait) pthread_cond_wait(&d->has_ended, &d->lock);
    pthread_mutex_unlock(&d->lock);
    return r;
}

static void threads_close(Disk *d)
{
    pthread_mutex_lock(&d->lock);
    d->stop = true;
    pthread_cond_broadcast(&d->has_begun);
    pthread_mutex_unlock(&d->lock);
    for (int32_t i = 0; i < d->n_threads; i++) pthread_join(d->thread[i], NULL);
    pthread_mutex_destroy(&d->lock);
    pthread_cond_destroy(&d->has_begun);
    pthread_cond_destroy(&d->has_ended);
}

static Status threads_open(Disk *d, Error *err)
{
    static const Way way = { "pread", threads_begin, threads_take, threads_close };
    pthread_mutex_init(&d->lock, NULL);
    pthread_cond_init(&d->has_begun, NULL);
    pthread_cond_init(&d->has_ended, NULL);
    int32_t n = d->depth < THREADS ? d->depth : THREADS;
    for (; d->n_threads < n; d->n_threads++)
        if (pthread_create(&d->thread[d->n_threads], NULL, thread_main, d) != 0) {
            threads_close(d);
            return fail(err, ST_MEMORY, "reads: thread %d of %d could not be started", d->n_threads + 1, n);
        }
    d->way = &way;
    return ST_OK;
}

#if URING
/* There is room: the ring has `depth` entries at least, and each read has one request. What the kernel does not take
 * now (it may be short of memory) waits in the ring for ring_take. */
static void ring_begin(Disk *d, Read *r)
{
    Request q = next_request(r);
    struct io_uring_sqe *entry = io_uring_get_sqe(&d->ring);
    io_uring_prep_read(entry, q.fd, q.buf, (unsigned) q.n, q.offset);
    io_uring_sqe_set_data(entry, r);
    io_uring_submit(&d->ring);
}

static bool ring_peek(Disk *d, Read **r, int32_t *result)
{
    struct io_uring_cqe *entry;
    if (io_uring_peek_batch_cqe(&d->ring, &entry, 1) == 0) return false;
    *r = io_uring_cqe_get_data(entry);
    *result = entry->res;
    io_uring_cqe_seen(&d->ring, entry);
    return true;
}

static Read *ring_take(Disk *d, bool wait)
{
    for (;;) {
        Read *r;
        int32_t result;
        if (ring_peek(d, &r, &result)) {
            if (note_result(r, result)) return r;
            ring_begin(d, r);
        } else if (!wait) {
            io_uring_submit(&d->ring);             /* no system call, unless something was left */
            return NULL;
        } else if (io_uring_submit_and_wait(&d->ring, 1) < 0) {
            usleep(1000);                          /* a signal, or still no memory */
        }
    }
}

static void ring_close(Disk *d) { io_uring_queue_exit(&d->ring); }

/* Reads from no file: a kernel that knows the request says EBADF, one before 5.6 EINVAL; a filter of system calls may
 * refuse the second one. Returns an errno, 0 if all is well. */
static int ring_try(Disk *d)
{
    Read *none;
    int32_t result = 0;
    io_uring_prep_read(io_uring_get_sqe(&d->ring), -1, NULL, 0, 0);
    int code = io_uring_submit_and_wait(&d->ring, 1);
    if (code < 0) return -code;
    return ring_peek(d, &none, &result) && result == -EBADF ? 0 : ENOSYS;
}

static Status ring_open(Disk *d, Error *err)
{
    static const Way way = { "io_uring", ring_begin, ring_take, ring_close };
    int code = -io_uring_queue_init((unsigned) d->depth, &d->ring, 0);
    if (code == 0 && (code = ring_try(d)) != 0) ring_close(d);
    errno = code;
    if (code != 0) return fail(err, ST_UNSUPPORTED, "io_uring: the kernel does not grant it: %m");
    d->way = &way;
    return ST_OK;
}
#else
static Status ring_open(Disk *d, Error *err)
{
    (void) d;
    return fail(err, ST_UNSUPPORTED, "io_uring: this program was built without liburing");
}
#endif

/* ---- all of them ---- */

Status disk_open(Disk **out, DiskWay way, int32_t depth, Error *err)
{
    *out = NULL;
    if (depth < 1 || depth > DISK_DEPTH_MAX)
        return fail(err, ST_ARG, "reads in flight: %d, expected 1 to %d", depth, DISK_DEPTH_MAX);
    Disk *d = calloc(1, sizeof *d);
    Read *reads = calloc((size_t) depth, sizeof *reads);
    Status code = d && reads ? ST_OK : fail(err, ST_MEMORY, "reads: no memory for %d", depth);
    if (code == ST_OK) {
        d->depth = depth;
        d->reads = reads;
        for (int32_t i = 0; i < depth; i++) queue_put(&d->unused, &reads[i]);
        code = way == DISK_PREAD ? threads_open(d, err) : ring_open(d, way == DISK_URING ? err : NULL);
        if (code != ST_OK && way == DISK_AUTO) code = threads_open(d, err);
    }
    if (code == ST_OK) {
        *out = d;
        return ST_OK;
    }
    free(reads);
    free(d);
    return code;
}

const char *disk_way(const Disk *d) { return d->way->name; }

void disk_close(Disk *d)
{
    if (!d) return;
    for (; d->in_flight > 0; d->in_flight--) d->way->take(d, true);
    d->way->close(d);
    free(d->reads);
    free(d);
}

bool disk_read(Disk *d, const DiskFile *f, uint64_t offset, size_t n, size_t need, void *buf, uint64_t tag)
{
    Read *r = queue_take(&d->unused);
    if (!r) return false;
    *r = (Read) { .file = f, .offset = offset, .tag = tag, .n = n, .need = need, .buf = buf, .begun = seconds_now() };
    d->in_flight++;
    d->way->begin(d, r);
    return true;
}

bool disk_done(Disk *d, DiskDone *out, bool wait)
{
    Read *r = d->in_flight > 0 ? d->way->take(d, wait) : NULL;
    if (!r) return false;
    *out = (DiskDone) { .tag = r->tag, .seconds = r->ended - r->begun };
    out->code = read_status(r, &out->error);
    queue_put(&d->unused, r);
    d->in_flight--;
    return true;
}

int32_t disk_in_flight(const Disk *d) { return d->in_flight; }
