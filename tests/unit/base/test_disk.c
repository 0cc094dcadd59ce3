/* Pieces of files: both ways bring the file's bytes, on file systems with and without O_DIRECT, and whatever fails
 * fails alone. System calls and liburing's functions are wrapped (tests.mk), so that they fail when a test says so. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include "base/disk.h"                             /* before cmocka.h, whose macro fail() would hide ours */

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "random_below.h"
#include "remove_tree.h"

enum { PAGE = DISK_ALIGN, FILE_BYTES = 300 * PAGE + 1234, GUARD = 64, ALL = 1 << 30 };

/* ---- what fails ---- */

/* Requests of reads from the number `from` up to `to` have `result`: -errno, or so many bytes at most, and 0 stands for
 * the end of the file. Where buf is given, the one read in flight goes there, and what it did not bring is spoilt. */
static struct {
    atomic_int calls;
    int32_t from, to, result;
    uint8_t *buf;
    size_t n;
} faulty;

static struct {
    int setup, trial, enter, submit, direct;       /* errno that it fails with; submit: so many times EAGAIN */
    int32_t alloc_in, thread_in;                   /* which one fails, counted from 1 */
    const char *replacement;                       /* takes the file's name before it is opened for direct reads */
    atomic_bool held;                              /* no request ends */
    atomic_int dropped;                            /* calls of posix_fadvise that drop pages */
    atomic_ullong drop_offset, drop_n;
} fault;

static int32_t spoil(int32_t result)
{
    int32_t k = atomic_fetch_add(&faulty.calls, 1);
    if (k < faulty.from || k >= faulty.to) return result;
    int32_t given = faulty.result < result ? faulty.result : result, kept = given > 0 ? given : 0;
    if (faulty.buf) {
        memset(faulty.buf + kept, 0xee, faulty.n - (size_t) kept);
        faulty.buf += kept;
        faulty.n -= (size_t) kept;
    }
    return given;
}

static void clear_faults(void)
{
    memset(&faulty, 0, sizeof faulty);
    memset(&fault, 0, sizeof fault);
}

ssize_t __real_pread(int fd, void *buf, size_t n, off_t offset);
ssize_t __wrap_pread(int fd, void *buf, size_t n, off_t offset);
ssize_t __wrap_pread(int fd, void *buf, size_t n, off_t offset)
{
    while (atomic_load(&fault.held)) usleep(1000);
    ssize_t got = __real_pread(fd, buf, n, offset);
    int32_t result = spoil(got < 0 ? -errno : (int32_t) got);
    if (result >= 0) return result;
    errno = -result;
    return -1;
}

int __real_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...)
{
    if (!(flags & O_DIRECT)) return __real_open(path, flags);
    if (fault.replacement) rename(fault.replacement, path);
    errno = fault.direct;
    return fault.direct ? -1 : __real_open(path, flags);
}

int __real_posix_fadvise(int fd, off_t offset, off_t n, int advice);
int __wrap_posix_fadvise(int fd, off_t offset, off_t n, int advice);
int __wrap_posix_fadvise(int fd, off_t offset, off_t n, int advice)
{
    if (advice == POSIX_FADV_DONTNEED) {
        atomic_fetch_add(&fault.dropped, 1);
        atomic_store(&fault.drop_offset, (unsigned long long) offset);
        atomic_store(&fault.drop_n, (unsigned long long) n);
    }
    return __real_posix_fadvise(fd, offset, n, advice);
}

static bool no_memory(void) { return fault.alloc_in > 0 && --fault.alloc_in == 0; }

void *__real_malloc(size_t n);
void *__wrap_malloc(size_t n);
void *__wrap_malloc(size_t n) { return no_memory() ? NULL : __real_malloc(n); }

void *__real_calloc(size_t n, size_t each);
void *__wrap_calloc(size_t n, size_t each);
void *__wrap_calloc(size_t n, size_t each) { return no_memory() ? NULL : __real_calloc(n, each); }

typedef void *Thread(void *);
int __real_pthread_create(pthread_t *id, const pthread_attr_t *attr, Thread *run, void *arg);
int __wrap_pthread_create(pthread_t *id, const pthread_attr_t *attr, Thread *run, void *arg);
int __wrap_pthread_create(pthread_t *id, const pthread_attr_t *attr, Thread *run, void *arg)
{
    if (fault.thread_in > 0 && --fault.thread_in == 0) return EAGAIN;
    return __real_pthread_create(id, attr, run, arg);
}

/* liburing's, which a build without it does not have. */
struct io_uring;
#define WEAK __attribute__((weak))
WEAK int  __real_io_uring_queue_init(unsigned entries, struct io_uring *ring, unsigned flags);
WEAK void __real_io_uring_queue_exit(struct io_uring *ring);
WEAK int  __real_io_uring_submit(struct io_uring *ring);
WEAK int  __real_io_uring_submit_and_wait(struct io_uring *ring, unsigned n);
WEAK unsigned __real_io_uring_peek_batch_cqe(struct io_uring *ring, struct io_uring_cqe **out, unsigned n);
int  __wrap_io_uring_queue_init(unsigned entries, struct io_uring *ring, unsigned flags);
void __wrap_io_uring_queue_exit(struct io_uring *ring);
int  __wrap_io_uring_submit(struct io_uring *ring);
int  __wrap_io_uring_submit_and_wait(struct io_uring *ring, unsigned n);
unsigned __wrap_io_uring_peek_batch_cqe(struct io_uring *ring, struct io_uring_cqe **out, unsigned n);

static atomic_int rings;

int __wrap_io_uring_queue_init(unsigned entries, struct io_uring *ring, unsigned flags)
{
    if (fault.setup) return -fault.setup;
    int code = __real_io_uring_queue_init(entries, ring, flags);
    if (code == 0) atomic_fetch_add(&rings, 1);
    return code;
}

void __wrap_io_uring_queue_exit(struct io_uring *ring)
{
    __real_io_uring_queue_exit(ring);
    atomic_fetch_sub(&rings, 1);
}

int __wrap_io_uring_submit(struct io_uring *ring)
{
    if (fault.submit > 0) return fault.submit--, -EAGAIN;
    return __real_io_uring_submit(ring);
}

int __wrap_io_uring_submit_and_wait(struct io_uring *ring, unsigned n)
{
    if (fault.submit > 0) return fault.submit--, -EAGAIN;
    return fault.enter ? -fault.enter : __real_io_uring_submit_and_wait(ring, n);
}

unsigned __wrap_io_uring_peek_batch_cqe(struct io_uring *ring, struct io_uring_cqe **out, unsigned n)
{
    unsigned got = atomic_load(&fault.held) ? 0 : __real_io_uring_peek_batch_cqe(ring, out, n);
    for (unsigned i = 0; i < got; i++) {
        bool trial = out[i]->user_data == 0;
        if (!trial) out[i]->res = spoil(out[i]->res);
        else if (fault.trial) out[i]->res = -fault.trial;
    }
    return got;
}

/* ---- files and reads ---- */

static uint8_t content[FILE_BYTES];
static char folder[64], path[128];

static bool make_file(const char *where)
{
    snprintf(folder, sizeof folder, "%s/ratoon-test-XXXXXX", where);
    if (!mkdtemp(folder)) return false;
    snprintf(path, sizeof path, "%s/pieces", folder);
    reseed();
    for (size_t i = 0; i < FILE_BYTES; i++) content[i] = (uint8_t) random_below(256);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(content, 1, FILE_BYTES, f), FILE_BYTES);
    assert_int_equal(fclose(f), 0);
    return true;
}

static int setup(void **state)
{
    (void) state;
    clear_faults();
    return make_file("/tmp") ? 0 : -1;
}

static int teardown(void **state)
{
    (void) state;
    clear_faults();
    return remove_tree(folder);
}

static DiskFile *open_file(void)
{
    DiskFile *f;
    Error err = { 0 };
    if (disk_file_open(&f, path, &err) != ST_OK) fail_msg("%s", err.text);
    return f;
}

/* NULL: this kernel or this build has no io_uring. */
static Disk *open_way(DiskWay way, int32_t depth)
{
    Disk *d;
    Error err = { 0 };
    Status code = disk_open(&d, way, depth, &err);
    if (way == DISK_URING && code == ST_UNSUPPORTED) return NULL;
    assert_int_equal(code, ST_OK);
    return d;
}

static void each_way(void (*run)(DiskWay way))
{
    run(DISK_PREAD);
    Disk *d = open_way(DISK_URING, 1);
    if (!d) print_message("  without io_uring\n");
    else run(DISK_URING);
    disk_close(d);
}

static int32_t open_descriptors(void)
{
    int32_t n = 0;
    for (int fd = 0; fd < 1024; fd++) n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

static uint8_t *buffer(size_t n)
{
    uint8_t *b = aligned_alloc(PAGE, n + PAGE);
    assert_non_null(b);
    memset(b, 0xcd, n + PAGE);
    return b;
}

static void holds(const uint8_t *b, uint64_t offset, size_t n, size_t need)
{
    assert_memory_equal(b, content + offset, need);
    for (size_t i = 0; i < GUARD; i++) assert_int_equal(b[n + i], 0xcd);
}

static size_t there(uint64_t offset, size_t n) { return offset + n < FILE_BYTES ? n : FILE_BYTES - (size_t) offset; }

static DiskDone taken(Disk *d)
{
    DiskDone done;
    assert_true(disk_done(d, &done, true));
    return done;
}

static void one_read(Disk *d, const DiskFile *f, uint64_t offset, size_t n)
{
    uint8_t *b = buffer(n);
    assert_true(disk_read(d, f, offset, n, there(offset, n), b, 7));
    DiskDone done = taken(d);
    if (done.code != ST_OK) fail_msg("%s", done.error.text);
    assert_int_equal(done.tag, 7);
    assert_true(done.seconds >= 0);
    holds(b, offset, n, there(offset, n));
    free(b);
}

/* ---- cases ---- */

/* Many at a time, anywhere; the pieces at the end reach beyond it. */
static void random_pieces(Disk *d, const DiskFile *f, int32_t count)
{
    enum { SLOTS = 8, MOST = 40 };
    struct { uint64_t offset; size_t n; bool busy; uint8_t *b; } s[SLOTS] = { 0 };
    for (int32_t i = 0; i < SLOTS; i++) s[i].b = buffer(MOST * PAGE);
    for (int32_t begun = 0, ended = 0; ended < count; ) {
        int32_t i = begun < count ? (int32_t) random_below(SLOTS) : -1;
        if (i >= 0 && !s[i].busy) {
            s[i].offset = (uint64_t) random_below(FILE_BYTES / PAGE + 1) * PAGE;
            s[i].n = (size_t) (1 + random_below(MOST - 1)) * PAGE;
            memset(s[i].b, 0xcd, s[i].n + GUARD);
            assert_true(disk_read(d, f, s[i].offset, s[i].n, there(s[i].offset, s[i].n), s[i].b, (uint64_t) i));
            s[i].busy = true;
            begun++;
            continue;
        }
        DiskDone done;
        if (!disk_done(d, &done, i < 0 || random_below(2))) continue;
        if (done.code != ST_OK) fail_msg("%s", done.error.text);
        assert_true(done.tag < SLOTS && s[done.tag].busy);
        s[done.tag].busy = false;
        holds(s[done.tag].b, s[done.tag].offset, s[done.tag].n, there(s[done.tag].offset, s[done.tag].n));
        ended++;
    }
    assert_int_equal(disk_in_flight(d), 0);
    for (int32_t i = 0; i < SLOTS; i++) free(s[i].b);
}

static void pieces(DiskWay way)
{
    Disk *d = open_way(way, 8);
    DiskFile *f = open_file();
    assert_int_equal(disk_file_bytes(f), FILE_BYTES);
    random_pieces(d, f, 400);
    disk_close(d);
    disk_file_close(f);
}

static void pieces_are_the_files(void **state)
{
    (void) state;
    each_way(pieces);
}

static void pieces_of_memory(void **state)
{
    teardown(state);
    if (!make_file("/dev/shm")) {
        setup(state);
        skip();
    }
    each_way(pieces);
}

/* The file system takes no O_DIRECT, when the file is opened or when it is read: the cache keeps nothing. */
static void buffered(DiskWay way)
{
    Disk *d = open_way(way, 8);
    for (int32_t at_read = 0; at_read < 2; at_read++) {
        clear_faults();
        if (at_read) faulty.to = 1, faulty.result = -EINVAL;
        else fault.direct = EINVAL;
        int32_t descriptors = open_descriptors();
        DiskFile *f = open_file();
        assert_false(disk_file_direct(f));
        one_read(d, f, 3 * PAGE, 5 * PAGE);
        assert_int_equal(fault.dropped, 1);
        assert_int_equal(fault.drop_offset, 3 * PAGE);
        assert_int_equal(fault.drop_n, 5 * PAGE);
        random_pieces(d, f, 100);
        assert_int_equal(fault.dropped, 101);
        disk_file_close(f);
        assert_int_equal(open_descriptors(), descriptors);
    }
    clear_faults();
    DiskFile *f = open_file();
    one_read(d, f, 0, PAGE);
    assert_int_equal(fault.dropped, disk_file_direct(f) ? 0 : 1);
    disk_file_close(f);
    disk_close(d);
}

static void without_direct_reads(void **state)
{
    (void) state;
    each_way(buffered);
}

static void new_file(void)
{
    teardown(NULL);
    setup(NULL);
}

static void at_end(DiskWay way)
{
    Disk *d = open_way(way, 2);
    new_file();
    DiskFile *f = open_file();
    one_read(d, f, 300 * PAGE, PAGE);
    one_read(d, f, 300 * PAGE, 20 * PAGE);
    one_read(d, f, 299 * PAGE, 2 * PAGE);
    uint8_t *b = buffer(PAGE);
    assert_true(disk_read(d, f, 301 * PAGE, PAGE, 0, b, 0));
    assert_int_equal(taken(d).code, ST_OK);
    free(b);
    disk_file_close(f);

    assert_int_equal(truncate(path, 10), 0);       /* shorter than a block */
    f = open_file();
    assert_int_equal(disk_file_bytes(f), 10);
    b = buffer(PAGE);
    assert_true(disk_read(d, f, 0, PAGE, 10, b, 0));
    assert_int_equal(taken(d).code, ST_OK);
    holds(b, 0, PAGE, 10);
    free(b);
    disk_file_close(f);
    disk_close(d);
}

static void the_end_need_not_be_a_block(void **state)
{
    (void) state;
    each_way(at_end);
}

static void cut(DiskWay way)
{
    Disk *d = open_way(way, 4);
    new_file();
    DiskFile *f = open_file();
    assert_int_equal(truncate(path, 10 * PAGE + 5), 0);
    struct { uint64_t offset; size_t n; const char *says; } at[] = {
        { 9 * PAGE, 4 * PAGE, "only 4101 of 16384 bytes at offset 36864 are there" },
        { 10 * PAGE, PAGE, "only 5 of 4096 bytes at offset 40960 are there" },
        { 11 * PAGE, PAGE, "only 0 of 4096 bytes at offset 45056 are there" },
        { 6 * PAGE, 4 * PAGE, NULL },
    };
    uint8_t *b[4];
    for (uint64_t i = 0; i < 4; i++) {
        b[i] = buffer(at[i].n);
        assert_true(disk_read(d, f, at[i].offset, at[i].n, at[i].n, b[i], i));
    }
    for (int32_t k = 0; k < 4; k++) {
        DiskDone done = taken(d);
        const char *says = at[done.tag].says;
        assert_int_equal(done.code, says ? ST_IO : ST_OK);
        if (!says) {
            holds(b[done.tag], at[done.tag].offset, at[done.tag].n, at[done.tag].n);
            continue;
        }
        assert_int_equal(done.error.code, ST_IO);
        assert_memory_equal(done.error.text, path, strlen(path));
        assert_non_null(strstr(done.error.text, says));
        assert_non_null(strstr(done.error.text, "became shorter"));
    }
    for (int32_t i = 0; i < 4; i++) free(b[i]);
    one_read(d, f, 0, 10 * PAGE);
    disk_file_close(f);
    disk_close(d);
}

static void a_file_that_is_cut_fails_only_there(void **state)
{
    (void) state;
    each_way(cut);
}

static void limited(DiskWay way)
{
    for (int32_t depth = 1; depth < 8; depth++) {
        Disk *d = open_way(way, depth);
        DiskFile *f = open_file();
        DiskDone done;
        uint8_t *b = buffer((size_t) depth * PAGE);
        assert_false(disk_done(d, &done, false));
        assert_false(disk_done(d, &done, true));
        for (int32_t i = 0; i < depth; i++) {
            assert_int_equal(disk_in_flight(d), i);
            assert_true(disk_read(d, f, (uint64_t) i * PAGE, PAGE, PAGE, b + i * PAGE, (uint64_t) i));
        }
        assert_false(disk_read(d, f, 0, PAGE, PAGE, b, 0));
        assert_int_equal(disk_in_flight(d), depth);
        uint64_t freed = taken(d).tag;
        assert_true(disk_read(d, f, freed * PAGE, PAGE, PAGE, b + freed * PAGE, freed));
        assert_false(disk_read(d, f, 0, PAGE, PAGE, b, 0));
        while (disk_in_flight(d) > 0) assert_int_equal(taken(d).code, ST_OK);
        assert_false(disk_done(d, &done, true));
        holds(b, 0, (size_t) depth * PAGE, (size_t) depth * PAGE);
        free(b);
        disk_close(d);
        disk_file_close(f);
    }
}

static void held(DiskWay way)
{
    Disk *d = open_way(way, 1);
    DiskFile *f = open_file();
    DiskDone done;
    uint8_t *b = buffer(PAGE);
    fault.held = true;
    assert_true(disk_read(d, f, PAGE, PAGE, PAGE, b, 0));
    for (int32_t i = 0; i < 100; i++) assert_false(disk_done(d, &done, false));
    assert_int_equal(disk_in_flight(d), 1);
    fault.held = false;
    assert_int_equal(taken(d).code, ST_OK);
    holds(b, PAGE, PAGE, PAGE);
    free(b);
    disk_file_close(f);
    disk_close(d);
}

/* Asking without waiting returns at once. */
static void asking_does_not_wait(void **state)
{
    (void) state;
    each_way(held);
}

static void no_more_than_depth(void **state)
{
    (void) state;
    each_way(limited);
}

/* What the buffers hold afterwards shows that the reads had ended; sanitizers, that nothing is written later. */
static void closed(DiskWay way)
{
    enum { READS = 12 };
    DiskFile *f = open_file();
    for (int32_t round = 0; round < 20; round++) {
        Disk *d = open_way(way, READS);
        uint8_t *b = buffer(READS * 25 * PAGE);
        for (uint64_t i = 0; i < READS; i++)
            assert_true(disk_read(d, f, i * 25 * PAGE, 25 * PAGE, 25 * PAGE, b + i * 25 * PAGE, i));
        disk_close(d);
        holds(b, 0, READS * 25 * PAGE, READS * 25 * PAGE);
        free(b);
    }
    disk_file_close(f);
    disk_close(NULL);
    disk_file_close(NULL);
}

static void closing_waits(void **state)
{
    (void) state;
    each_way(closed);
}

/* cmocka's assertions are of the main thread. */
typedef struct { DiskWay way; const DiskFile *f; int32_t index, bad; } Reader;

static void *reader(void *arg)
{
    Reader *r = arg;
    Disk *d;
    r->bad = 1;
    uint8_t *b = aligned_alloc(PAGE, 16 * PAGE);
    if (!b || disk_open(&d, r->way, 4, NULL) != ST_OK) return free(b), NULL;
    r->bad = 0;
    for (int32_t k = 0; k < 50; k++) {
        uint64_t offset[4];
        for (uint64_t i = 0; i < 4; i++) {
            offset[i] = (uint64_t) ((r->index * 71 + k * 13 + (int32_t) i * 29) % 296) * PAGE;
            r->bad += !disk_read(d, r->f, offset[i], 4 * PAGE, 4 * PAGE, b + i * 4 * PAGE, i);
        }
        for (DiskDone done; disk_done(d, &done, true); )
            r->bad += done.code != ST_OK || memcmp(b + done.tag * 4 * PAGE, content + offset[done.tag], 4 * PAGE) != 0;
    }
    disk_close(d);
    free(b);
    return NULL;
}

static void shared(DiskWay way)
{
    DiskFile *f = open_file();
    Reader r[4];
    pthread_t id[4];
    for (int32_t i = 0; i < 4; i++) {
        r[i] = (Reader) { .way = way, .f = f, .index = i };
        assert_int_equal(pthread_create(&id[i], NULL, reader, &r[i]), 0);
    }
    for (int32_t i = 0; i < 4; i++) pthread_join(id[i], NULL);
    for (int32_t i = 0; i < 4; i++) assert_int_equal(r[i].bad, 0);
    disk_file_close(f);
}

static void many_read_one_file(void **state)
{
    (void) state;
    each_way(shared);
}

/* A thread begins reads and ends before they do; another takes them. */
typedef struct { Disk *d; const DiskFile *f; uint8_t *b; int32_t bad; } Beginner;

static void *begin_and_end(void *arg)
{
    Beginner *g = arg;
    for (uint64_t i = 0; i < 6; i++)
        g->bad += !disk_read(g->d, g->f, i * 50 * PAGE, 50 * PAGE, 50 * PAGE, g->b + i * 50 * PAGE, i);
    return NULL;
}

static void handed_on(DiskWay way)
{
    for (int32_t round = 0; round < 10; round++) {
        fault.direct = round % 2 ? EINVAL : 0;     /* io_uring gives buffered reads to threads of the thread's own */
        DiskFile *f = open_file();
        Beginner g = { .d = open_way(way, 6), .f = f, .b = buffer(300 * PAGE) };
        pthread_t id;
        assert_int_equal(pthread_create(&id, NULL, begin_and_end, &g), 0);
        pthread_join(id, NULL);
        assert_int_equal(g.bad, 0);
        for (int32_t i = 0; i < 6; i++) assert_int_equal(taken(g.d).code, ST_OK);
        holds(g.b, 0, 300 * PAGE, 300 * PAGE);
        disk_close(g.d);
        disk_file_close(f);
        free(g.b);
    }
}

static void threads_hand_on(void **state)
{
    (void) state;
    each_way(handed_on);
}

/* One read whose requests `from` to `to` have that result. */
static DiskDone spoilt_read(Disk *d, const DiskFile *f, int32_t from, int32_t to, int32_t result)
{
    const size_t n = 9 * PAGE;
    uint8_t *b = buffer(n);
    clear_faults();
    faulty.from = from, faulty.to = to, faulty.result = result, faulty.buf = b, faulty.n = n;
    assert_true(disk_read(d, f, 295 * PAGE, n, there(295 * PAGE, n), b, 1));
    DiskDone done = taken(d);
    assert_true(faulty.calls > from);
    faulty.to = 0;                                 /* the buffer is gone */
    if (done.code == ST_OK) holds(b, 295 * PAGE, n, there(295 * PAGE, n));
    free(b);
    return done;
}

static void interrupted(DiskWay way)
{
    static const int32_t again[] = { -EINTR, -EAGAIN, -ECANCELED };
    Disk *d = open_way(way, 1);
    DiskFile *f = open_file();
    for (int32_t i = 0; i < 3; i++) {
        assert_int_equal(spoilt_read(d, f, 0, 1, again[i]).code, ST_OK);
        assert_int_equal(spoilt_read(d, f, 0, 5, again[i]).code, ST_OK);
        assert_int_equal(faulty.calls, 6);
    }
    /* Short: in the middle of a block, at its end, byte by byte for a while, and always. The rest of a read that has
     * left the blocks goes through the cache, whose pages are dropped. */
    static const int32_t bytes[] = { 1, 511, 512, PAGE - 1, PAGE, PAGE + 1, 3 * PAGE, 5 * PAGE + 100 };
    for (size_t i = 0; i < sizeof bytes / sizeof *bytes; i++) {
        assert_int_equal(spoilt_read(d, f, 0, 1, bytes[i]).code, ST_OK);
        assert_int_equal(faulty.calls, 2);
        assert_int_equal(fault.dropped, disk_file_direct(f) && bytes[i] % PAGE == 0 ? 0 : 1);
    }
    assert_int_equal(spoilt_read(d, f, 0, 100, 1).code, ST_OK);
    assert_int_equal(faulty.calls, 101);
    assert_int_equal(spoilt_read(d, f, 0, ALL, 1000).code, ST_OK);
    assert_int_equal(faulty.calls, 22);            /* 5 blocks and 1234 bytes */
    disk_file_close(f);
    disk_close(d);
}

static void short_reads_go_on(void **state)
{
    (void) state;
    each_way(interrupted);
}

static void broken(DiskWay way)
{
    enum { READS = 16 };
    Disk *d = open_way(way, READS);
    DiskFile *f = open_file();
    DiskDone done = spoilt_read(d, f, 0, 1, -EIO);
    assert_int_equal(done.code, ST_IO);
    assert_int_equal(done.error.code, ST_IO);
    assert_memory_equal(done.error.text, path, strlen(path));
    assert_non_null(strstr(done.error.text, "36864 bytes at offset 1208320 cannot be read: Input/output error"));
    one_read(d, f, 295 * PAGE, 9 * PAGE);
    /* Two of many: the others bring what they should. */
    uint8_t *b = buffer(READS * PAGE);
    clear_faults();
    faulty.from = 3, faulty.to = 5, faulty.result = -EIO;
    for (uint64_t i = 0; i < READS; i++) assert_true(disk_read(d, f, i * PAGE, PAGE, PAGE, b + i * PAGE, i));
    int32_t failed = 0;
    while (disk_in_flight(d) > 0) {
        done = taken(d);
        failed += done.code == ST_IO;
        if (done.code == ST_OK) assert_memory_equal(b + done.tag * PAGE, content + done.tag * PAGE, PAGE);
    }
    assert_int_equal(failed, 2);
    free(b);
    clear_faults();
    random_pieces(d, f, 30);
    disk_file_close(f);
    disk_close(d);
}

static void an_error_stays_alone(void **state)
{
    (void) state;
    each_way(broken);
}

/* ---- opening ---- */

static void refused(const char *reason)
{
    Disk *d;
    Error err = { 0 };
    int32_t descriptors = open_descriptors(), open_rings = rings;
    assert_int_equal(disk_open(&d, DISK_URING, 4, &err), ST_UNSUPPORTED);
    assert_null(d);
    assert_int_equal(err.code, ST_UNSUPPORTED);
    if (!strstr(err.text, reason)) fail_msg("%s", err.text);
    assert_int_equal(rings, open_rings);
    assert_int_equal(open_descriptors(), descriptors);
    d = open_way(DISK_AUTO, 4);
    assert_string_equal(disk_way(d), "pread");
    DiskFile *f = open_file();
    one_read(d, f, 0, 5 * PAGE);
    disk_file_close(f);
    disk_close(d);
}

static void threads_where_there_is_no_ring(void **state)
{
    (void) state;
    static const struct { int code; const char *says; } why[] = {
        { ENOSYS, "Function not implemented" }, { EPERM, "Operation not permitted" },
        { ENOMEM, "Cannot allocate memory" }, { EINVAL, "Invalid argument" },
    };
    Disk *d = open_way(DISK_URING, 4), *automatic = open_way(DISK_AUTO, 4), *threads = open_way(DISK_PREAD, 4);
    assert_string_equal(disk_way(automatic), d ? "io_uring" : "pread");
    assert_string_equal(disk_way(threads), "pread");
    bool has_ring = d;
    disk_close(d);
    disk_close(automatic);
    disk_close(threads);
    if (!has_ring) {
        refused("io_uring: ");
        skip();
    }
    for (size_t i = 0; i < sizeof why / sizeof *why; i++) {
        clear_faults();
        fault.setup = why[i].code;
        refused(why[i].says);
    }
    clear_faults();
    fault.trial = EINVAL;                          /* a kernel before 5.6 */
    refused("Function not implemented");
    clear_faults();
    fault.enter = EPERM;                           /* a filter that lets the first call pass */
    refused("Operation not permitted");
}

/* The kernel is short of memory for a while. */
static void requests_wait(void **state)
{
    (void) state;
    enum { READS = 5 };
    Disk *d = open_way(DISK_URING, READS);
    if (!d) skip();
    DiskFile *f = open_file();
    uint8_t *b = buffer(READS * PAGE);
    for (int32_t wait = 0; wait < 2; wait++) {
        memset(b, 0xcd, READS * PAGE);
        fault.submit = READS + 3;
        for (uint64_t i = 0; i < READS; i++) assert_true(disk_read(d, f, i * PAGE, PAGE, PAGE, b + i * PAGE, i));
        for (DiskDone done; disk_in_flight(d) > 0; )
            if (disk_done(d, &done, wait)) assert_int_equal(done.code, ST_OK);
        assert_int_equal(fault.submit, 0);
        holds(b, 0, READS * PAGE, READS * PAGE);
    }
    free(b);
    disk_file_close(f);
    disk_close(d);
}

static void wrong_files_are_named(void **state)
{
    (void) state;
    char name[160];
    DiskFile *f;
    Error err = { 0 };
    int32_t descriptors = open_descriptors();
    assert_int_equal(disk_file_open(&f, folder, &err), ST_IO);
    assert_null(f);
    assert_memory_equal(err.text, folder, strlen(folder));
    assert_non_null(strstr(err.text, "is not a regular file"));
    snprintf(name, sizeof name, "%s/none", folder);
    assert_int_equal(disk_file_open(&f, name, &err), ST_IO);
    assert_non_null(strstr(err.text, "none: cannot be opened: No such file"));
    snprintf(name, sizeof name, "%s/pipe", folder);
    assert_int_equal(mkfifo(name, 0600), 0);
    assert_int_equal(disk_file_open(&f, name, &err), ST_IO);
    assert_non_null(strstr(err.text, "pipe: is not a regular file"));
    fault.alloc_in = 1;
    assert_int_equal(disk_file_open(&f, path, &err), ST_MEMORY);
    assert_null(f);
    assert_memory_equal(err.text, path, strlen(path));
    assert_int_equal(open_descriptors(), descriptors);
}

/* Between the two opens the name becomes another file's. */
static void one_file_is_read(void **state)
{
    (void) state;
    char other[160];
    snprintf(other, sizeof other, "%s/other", folder);
    FILE *o = fopen(other, "wb");
    assert_non_null(o);
    assert_int_equal(ftruncate(fileno(o), FILE_BYTES), 0);
    fclose(o);
    fault.replacement = other;
    DiskFile *f = open_file();
    assert_int_equal(access(other, F_OK), -1);
    assert_false(disk_file_direct(f));
    Disk *d = open_way(DISK_AUTO, 1);
    one_read(d, f, 0, 9 * PAGE);
    disk_close(d);
    disk_file_close(f);
}

/* io_uring would say EAGAIN of such a descriptor instead of waiting. */
static void descriptors_wait(void **state)
{
    (void) state;
    struct stat of, st;
    int32_t found = 0;
    DiskFile *f = open_file();
    assert_int_equal(stat(path, &of), 0);
    for (int fd = 0; fd < 1024; fd++) {
        if (fstat(fd, &st) != 0 || st.st_dev != of.st_dev || st.st_ino != of.st_ino) continue;
        found++;
        assert_int_equal(fcntl(fd, F_GETFL) & O_NONBLOCK, 0);
    }
    assert_int_equal(found, disk_file_direct(f) ? 2 : 1);
    disk_file_close(f);
}

static void wrong_depths_are_refused(void **state)
{
    (void) state;
    static const int32_t wrong[] = { INT32_MIN, -1, 0, DISK_DEPTH_MAX + 1, INT32_MAX };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        Disk *d;
        Error err = { 0 };
        assert_int_equal(disk_open(&d, DISK_AUTO, wrong[i], &err), ST_ARG);
        assert_null(d);
        assert_non_null(strstr(err.text, "expected 1 to 4096"));
    }
}

/* Every allocation and every thread fails once. */
static void memory(DiskWay way)
{
    for (int32_t fails = 1; ; fails++) {
        Disk *d;
        Error err = { 0 };
        int32_t descriptors = open_descriptors(), open_rings = rings;
        clear_faults();
        fault.alloc_in = fails < 3 ? fails : 0;
        fault.thread_in = fails < 3 ? 0 : fails - 2;
        Status code = disk_open(&d, way, 6, &err);
        if (code == ST_OK) {
            assert_int_equal(fails, way == DISK_PREAD ? 7 : 3);
            disk_close(d);
            return;
        }
        assert_int_equal(code, ST_MEMORY);
        assert_int_equal(err.code, ST_MEMORY);
        assert_null(d);
        assert_int_equal(open_descriptors(), descriptors);
        assert_int_equal(rings, open_rings);
    }
}

static void no_memory_is_an_error(void **state)
{
    (void) state;
    each_way(memory);
}

int main(int argc, char **argv)
{
    if (argc > 1) cmocka_set_test_filter(argv[1]);
#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        CASE(pieces_are_the_files), CASE(pieces_of_memory), CASE(without_direct_reads),
        CASE(the_end_need_not_be_a_block), CASE(a_file_that_is_cut_fails_only_there), CASE(no_more_than_depth),
        CASE(asking_does_not_wait), CASE(closing_waits), CASE(many_read_one_file), CASE(threads_hand_on),
        CASE(short_reads_go_on), CASE(an_error_stays_alone), CASE(threads_where_there_is_no_ring),
        CASE(requests_wait), CASE(wrong_files_are_named), CASE(one_file_is_read), CASE(descriptors_wait),
        CASE(wrong_depths_are_refused), CASE(no_memory_is_an_error),
    };
    return cmocka_run_group_tests_name("disk", tests, NULL, NULL);
}
