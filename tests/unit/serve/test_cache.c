/* The prefix cache: it finds what was stored for the very same tokens, or nothing, whoever damages, kills, fills or
 * shares its folder. Its choice of records to evict is compared with a second, naive one. */
#include "model_helper.h"

#include "alloc_fault.h"
#include "remove_tree.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "programs/serve/cache/cache_points.h"
#include "programs/serve/cache/cache_record.h"

/* ---- the system's calls that the cache makes, each of which can be the last or fail ---- */

/* read_only: nothing can be made or removed; no_locks: the file system has none; tidied: another process removes the
 * next file that is about to be locked. */
static struct {
    atomic_long calls;
    long die_at, fail_at;
    bool die_after, brief;
    int error;
    bool read_only, no_locks, tidied;
} sys_state;
/* Reads at offsets from `from` on: the number of threads that made them and the first few thread ids; fail: these reads
 * fail. 0: none. */
static struct { long from, fail; atomic_int n; atomic_long thread[16]; } sys_reads;

/* Returns true if this call must fail. */
static bool sys_call(void)
{
    long n = ++sys_state.calls;
    if (n == sys_state.die_at && !sys_state.die_after) kill(getpid(), SIGKILL);
    if (n == sys_state.fail_at) {
        errno = sys_state.error;
        return true;
    }
    return false;
}

static long sys_done(long result)
{
    int e = errno;
    if (sys_state.calls == sys_state.die_at && sys_state.die_after) kill(getpid(), SIGKILL);
    errno = e;
    return result;
}

ssize_t write(int fd, const void *p, size_t n)
{
    if (fd <= 2) return syscall(SYS_write, fd, p, n);
    if (sys_call()) return -1;
    if (sys_state.brief && n > 1) n = (n + 1) / 2;
    return sys_done(syscall(SYS_write, fd, p, n));
}
int fsync(int fd) { return sys_call() ? -1 : (int) sys_done(syscall(SYS_fsync, fd)); }
int renameat(int a, const char *from, int b, const char *to)
{
    return sys_call() ? -1 : (int) sys_done(syscall(SYS_renameat2, a, from, b, to, 0));
}
int unlinkat(int dir, const char *name, int flags)
{
    if (sys_state.read_only) {
        errno = EROFS;
        return -1;
    }
    return sys_call() ? -1 : (int) sys_done(syscall(SYS_unlinkat, dir, name, flags));
}
int flock(int fd, int how)
{
    char path[64], name[300] = "";
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (sys_state.tidied && readlink(path, name, sizeof name - 1) > 0) unlink(name);
    sys_state.tidied = false;
    if (!sys_state.no_locks) return (int) syscall(SYS_flock, fd, how);
    errno = ENOTSUP;
    return -1;
}
int openat(int dir, const char *name, int flags, ...)
{
    va_list args;
    va_start(args, flags);
    int mode = flags & O_CREAT ? va_arg(args, int) : 0;
    va_end(args);
    if (sys_state.read_only && (flags & O_CREAT)) {
        errno = EROFS;
        return -1;
    }
    return sys_call() ? -1 : (int) sys_done(syscall(SYS_openat, dir, name, flags, mode));
}

ssize_t pread(int fd, void *out, size_t n, off_t at)
{
    long me = syscall(SYS_gettid);
    bool known = !sys_reads.from || at < sys_reads.from;
    for (int32_t i = 0; i < sys_reads.n && i < 16; i++) known |= sys_reads.thread[i] == me;
    if (!known) sys_reads.thread[sys_reads.n++ & 15] = me;
    if (sys_reads.fail && at >= sys_reads.fail) {
        errno = EIO;
        return -1;
    }
    return syscall(SYS_pread64, fd, out, n, at);
}

/* ---- caches of the tests ---- */

static const char ID[] = "the identity of a model", OTHER[] = "another identity";
enum { MINUTE = 60000 };                           /* milliseconds: others may keep the disk busy */

/* asks: another thread asks this cache while its line is taken; the cache must not hold its lock meanwhile. */
typedef struct { _Atomic int64_t time; int32_t said; char last[256]; Cache *_Atomic asks; } World;
static pthread_mutex_t world_lock = PTHREAD_MUTEX_INITIALIZER;
static int64_t world_time(void *ud) { return ((World *) ud)->time; }
static void world_log(void *ud, int level, const char *line)
{
    World *w = ud;
    if (level > 1) return;
    pthread_mutex_lock(&world_lock);
    w->said++;
    snprintf(w->last, sizeof w->last, "%s", line);
    pthread_mutex_unlock(&world_lock);
    if (w->asks) cache_stats(w->asks, &(CacheStats) { 0 });
}

/* Waits until this many records are on disk, turning the clock by `tick` at each look. */
static CacheStats on_disk(Cache *c, World *w, int32_t records, int32_t tick)
{
    CacheStats s;
    cache_stats(c, &s);
    for (int32_t i = 0; i < MINUTE / 10 && s.disk_records < records; i++) {
        w->time += tick;
        usleep(10000);
        cache_stats(c, &s);
    }
    assert_int_equal(s.disk_records, records);
    return s;
}

static Cache *open_cache(World *w, size_t ram, const char *dir, uint64_t disk, int32_t delay)
{
    Cache *c;
    Error err = { 0 };
    CacheOptions o = { .ram_bytes = ram, .dir = dir, .disk_bytes = disk, .min_tokens = 1, .write_delay = delay,
                       .clock = world_time, .log = world_log, .ud = w };
    assert_ok(cache_open(&c, &o, &err), &err);
    return c;
}

static void new_dir(char dir[64])
{
    snprintf(dir, 64, "/tmp/ratoon-test-XXXXXX");
    assert_non_null(mkdtemp(dir));
}
static void remove_dir(const char *dir) { remove_tree(dir); }

/* Bytes computed from the text, so that every reader can check them. */
static void fill(uint8_t *image, size_t n, const char *identity, const int32_t *t, size_t n_t)
{
    uint64_t key = tiny_key(n, identity);
    for (size_t i = 0; i < n_t; i++) key = tiny_bits(key, (uint64_t) t[i]);
    for (size_t i = 0; i < n; i++) image[i] = (uint8_t) (key >> (8 * (i % 8))) ^ (uint8_t) (i / 8);
}

static bool put(Cache *c, const char *identity, const int32_t *t, size_t n, size_t bytes, CacheKind kind)
{
    CacheEntry *e = cache_begin(c, identity, t, n, bytes, kind, t, sizeof *t);
    if (!e) return false;
    fill(cache_image(e), bytes, identity, t, n);
    cache_commit(c, e);
    return true;
}

/* Returns how many tokens were found; checks every byte. */
static int32_t get(Cache *c, const char *identity, const int32_t *t, size_t n, int32_t above, bool disk,
                   CacheTier *from)
{
    CacheHit hit;
    if (!cache_find(c, &hit, identity, t, n, above, disk)) return 0;
    uint8_t *want = malloc(hit.n);
    fill(want, hit.n, identity, t, (size_t) hit.tokens);
    assert_same(hit.image, want, hit.n, "image of %d tokens", hit.tokens);
    assert_int_equal((uintptr_t) hit.image % 64, 0);
    assert_int_equal(hit.n_note, sizeof *t);
    assert_memory_equal(hit.note, t, sizeof *t);
    assert_true(hit.tokens > above && (size_t) hit.tokens <= n);
    free(want);
    int32_t tokens = hit.tokens;
    if (from) *from = hit.from;
    cache_release(c, &hit);
    return tokens;
}

static int32_t files_in(const char *dir, const char *part, char *name)
{
    int32_t n = 0;
    DIR *d = opendir(dir);
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d)); )
        if (e->d_name[0] != '.' || strncmp(e->d_name, ".writing", 8) == 0) {
            if (!strstr(e->d_name, part)) continue;
            if (name) snprintf(name, 512, "%s/%.200s", dir, e->d_name);
            n++;
        }
    closedir(d);
    return n;
}

/* ---- memory ---- */

static void longest_record(void **state)
{
    (void) state;
    World w = { 0 };
    int32_t t[40], u[40];
    for (int32_t i = 0; i < 40; i++) t[i] = u[i] = i + 1;
    u[7] = 99;                                     /* differs in the middle, same end */
    Cache *c = open_cache(&w, 100000, NULL, 0, 0);
    assert_true(put(c, ID, t, 10, 500, CACHE_END));
    assert_true(put(c, ID, t, 20, 500, CACHE_END));
    assert_false(put(c, ID, t, 20, 500, CACHE_END));                   /* known */
    assert_true(put(c, ID, u, 20, 500, CACHE_END));
    assert_true(put(c, OTHER, t, 30, 700, CACHE_END));
    CacheTier from;
    assert_int_equal(get(c, ID, t, 40, 0, false, &from), 20);
    assert_int_equal(from, CACHE_RAM);
    assert_int_equal(get(c, ID, t, 20, 0, false, NULL), 20);
    assert_int_equal(get(c, ID, t, 19, 0, false, NULL), 10);
    assert_int_equal(get(c, ID, t, 19, 10, false, NULL), 0);
    assert_int_equal(get(c, ID, t, 9, 0, false, NULL), 0);
    assert_int_equal(get(c, ID, u, 40, 0, true, NULL), 20);
    assert_int_equal(get(c, OTHER, t, 40, 0, false, NULL), 30);
    assert_int_equal(get(c, "", t, 40, 0, false, NULL), 0);
    assert_int_equal(cache_common(c, ID, t, 40), 20);
    t[15] = 0;
    assert_int_equal(get(c, ID, t, 40, 0, false, NULL), 10);
    assert_int_equal(cache_common(c, ID, t, 40), 15);
    assert_int_equal(cache_common(c, "no", t, 40), 0);
    assert_null(cache_begin(c, ID, t, 5, 100001, CACHE_END, NULL, 0));
    assert_null(cache_begin(c, ID, t, 0, 100, CACHE_END, NULL, 0));
    CacheEntry *e = cache_begin(c, ID, t, 39, 1000, CACHE_END, NULL, 0);
    assert_non_null(e);
    assert_null(cache_begin(c, ID, t, 39, 1000, CACHE_END, NULL, 0));  /* still being filled */
    assert_int_equal(get(c, ID, t, 40, 20, false, NULL), 0);
    cache_abandon(c, e);
    assert_int_equal(get(c, ID, t, 40, 20, false, NULL), 0);
    CacheHit hit;
    assert_true(cache_find(c, &hit, ID, u, 40, 0, false));
    cache_reject(c, &hit, "the test says so");
    assert_non_null(strstr(w.last, "a record of 20 tokens is dropped: the test says so"));
    assert_int_equal(get(c, ID, u, 40, 0, false, NULL), 0);
    CacheStats s;
    cache_stats(c, &s);
    assert_int_equal(s.ram_bytes, 500 + 500 + 700);
    assert_int_equal(s.ram_records, 3);
    assert_int_equal(s.saved, 4);
    assert_int_equal(s.damaged, 1);
    assert_int_equal(s.no_room, 1);
    assert_int_equal(s.hits_ram, 7);
    cache_close(c, 0);
}

/* A second, naive cache that looks at everything each time. */
enum { MODEL_MAX = 400, DEPTH = 12 };
typedef struct {
    int32_t t[DEPTH], n, tree;
    CacheKind kind;
    size_t bytes;
    int64_t hits, used;
    bool pinned;
    CacheHit hit;
} Kept;
typedef struct { Kept at[MODEL_MAX]; int32_t n; } Naive;

static const char *tree_name(int32_t tree) { return tree ? OTHER : ID; }

static bool kin(const Kept *a, const Kept *longer)
{
    return a->tree == longer->tree && a->kind == longer->kind && longer->n > a->n &&
           memcmp(a->t, longer->t, sizeof *a->t * (size_t) a->n) == 0;
}

static int32_t naive_continued(const Naive *m, const Kept *k)
{
    int32_t n = 0;
    for (int32_t i = 0; i < m->n; i++) {
        bool direct = kin(k, &m->at[i]);
        for (int32_t j = 0; j < m->n && direct; j++) direct = !(kin(k, &m->at[j]) && kin(&m->at[j], &m->at[i]));
        n += direct;
    }
    return n;
}

static size_t naive_bytes(const Naive *m, bool pinned_only)
{
    size_t sum = 0;
    for (int32_t i = 0; i < m->n; i++) sum += m->at[i].pinned || !pinned_only ? m->at[i].bytes : 0;
    return sum;
}

static bool naive_room(Naive *m, size_t need, size_t limit, int64_t time)
{
    if (need > limit || naive_bytes(m, true) > limit - need) return false;
    while (naive_bytes(m, false) > limit - need) {
        int32_t least = -1;
        double worth = 0;
        for (int32_t i = 0; i < m->n; i++) {
            const Kept *k = &m->at[i];
            double v = cache_worth(k->kind, k->n, k->bytes, k->hits, time - k->used, naive_continued(m, k));
            if (!k->pinned && (least < 0 || v < worth)) least = i, worth = v;
        }
        m->at[least] = m->at[--m->n];
    }
    return true;
}

static void eviction_is_the_naive_one(void **state)
{
    (void) state;
    enum { LIMIT = 40000 };
    static Naive m;
    World w = { 0 };
    Dice d = { tiny_key(300, "eviction"), 0 };
    Cache *c = open_cache(&w, LIMIT, NULL, 0, 0);
    int32_t evicted = 0, refused = 0, pins = 0;
    m.n = 0;
    for (int32_t round = 0; round < 6000; round++) {
        Kept k = { .n = 1 + roll(&d, DEPTH), .tree = roll(&d, 2), .kind = (CacheKind) roll(&d, 5),
                   .bytes = 500 + (size_t) roll(&d, 9000), .used = w.time };
        for (int32_t i = 0; i < DEPTH; i++) k.t[i] = roll(&d, i < 4 ? 2 : 1);
        if (roll(&d, 4) == 0) w.time += roll(&d, 20000);
        k.used = w.time;
        int32_t what = roll(&d, 10), before = m.n;
        if (what < 5) {
            int32_t known = -1;
            for (int32_t i = 0; i < m.n; i++)
                if (m.at[i].n == k.n && m.at[i].tree == k.tree &&
                    memcmp(m.at[i].t, k.t, sizeof k.t[0] * (size_t) k.n) == 0)
                    known = i;
            bool want = false;
            if (known >= 0) {
                m.at[known].used = w.time;
                if (k.kind < m.at[known].kind) m.at[known].kind = k.kind;
            } else if ((want = naive_room(&m, k.bytes, LIMIT, w.time))) {
                evicted += before - m.n;
                m.at[m.n++] = k;
            } else {
                refused++;
            }
            assert_int_equal(put(c, tree_name(k.tree), k.t, (size_t) k.n, k.bytes, k.kind), want);
        } else if (what < 9) {
            int32_t best = -1, above = roll(&d, 4);
            for (int32_t i = 0; i < m.n; i++)
                if (m.at[i].tree == k.tree && m.at[i].n <= k.n && m.at[i].n > above &&
                    memcmp(m.at[i].t, k.t, sizeof k.t[0] * (size_t) m.at[i].n) == 0)
                    if (best < 0 || m.at[i].n > m.at[best].n) best = i;
            CacheHit hit;
            assert_int_equal(cache_find(c, &hit, tree_name(k.tree), k.t, (size_t) k.n, above, false), best >= 0);
            if (best < 0) continue;
            assert_int_equal(hit.tokens, m.at[best].n);
            assert_int_equal(hit.n, m.at[best].bytes);
            m.at[best].hits++;
            m.at[best].used = w.time;
            if (!m.at[best].pinned && pins < 9 && roll(&d, 3)) m.at[best].pinned = true, m.at[best].hit = hit, pins++;
            else cache_release(c, &hit);
        } else if (roll(&d, 12) == 0) {
            for (int32_t i = 0; i < m.n; i++)
                if (m.at[i].pinned && roll(&d, 2)) m.at[i].pinned = false, pins--, cache_release(c, &m.at[i].hit);
        }
        CacheStats s;
        cache_stats(c, &s);
        assert_true(s.ram_bytes <= LIMIT);
        assert_int_equal(s.ram_bytes, naive_bytes(&m, false));
        assert_int_equal(s.ram_records, m.n);
    }
    if (evicted < 1000 || refused < 10) fail_msg("%d went, %d had no room", evicted, refused);
    for (int32_t i = 0; i < m.n; i++) {
        if (m.at[i].pinned) cache_release(c, &m.at[i].hit);
        assert_int_equal(get(c, tree_name(m.at[i].tree), m.at[i].t, (size_t) m.at[i].n, m.at[i].n - 1, false, NULL),
                         m.at[i].n);
    }
    cache_close(c, 0);
}

static void worth_in_order(void **state)
{
    (void) state;
    double base = cache_worth(CACHE_END, 1000, 1000000, 0, 0, 0);
    assert_true(cache_worth(CACHE_END, 1000, 1000000, 1, 0, 0) == 2 * base);
    assert_true(cache_worth(CACHE_END, 1000, 1000000, 0, 6 * 3600, 0) == base / 2);
    assert_true(cache_worth(CACHE_END, 1000, 1000000, 0, -5, 0) == base);                   /* the clock goes back */
    assert_true(cache_worth(CACHE_END, 2000, 1000000, 0, 0, 0) > base);
    assert_true(cache_worth(CACHE_HISTORY, 1000, 1000000, 0, 0, 0) > base);
    assert_true(cache_worth(CACHE_SHARED, 1000, 1000000, 0, 0, 0) > cache_worth(CACHE_HISTORY, 1000, 1000000, 0, 0, 0));
    assert_true(cache_worth(CACHE_END, 1000, 1000000, 0, 0, 1) < base / 100);               /* superseded */
    assert_true(cache_worth(CACHE_SHARED, 1000, 1000000, 0, 0, 1) > base);
    assert_true(cache_worth(CACHE_END, 1000, 1000000, 0, 0, 2) > base);                     /* a fork */
}

/* ---- the folder ---- */

static void found_after_a_restart(void **state)
{
    (void) state;
    char dir[64], name[512];
    World w = { 0 };
    int32_t t[60];
    CacheTier from;
    CacheStats s;
    struct stat st;
    new_dir(dir);
    for (int32_t i = 0; i < 60; i++) t[i] = i * 7;
    Cache *c = open_cache(&w, 1 << 20, dir, 1 << 20, -1);
    assert_true(put(c, ID, t, 20, 5000, CACHE_SHARED));
    assert_true(put(c, ID, t, 40, 7000, CACHE_HISTORY));
    assert_true(put(c, OTHER, t, 50, 3000, CACHE_END));
    cache_flush(c);
    cache_stats(c, &s);
    assert_int_equal(s.written, 3);
    assert_int_equal(s.waiting, 0);
    assert_int_equal(s.disk_records, 3);
    cache_close(c, MINUTE);
    assert_int_equal(files_in(dir, ".ratoon", name), 3);
    assert_int_equal(stat(name, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    for (int32_t ram = 0; ram < 2; ram++) {        /* with enough memory for the records read, and without */
        c = open_cache(&w, ram ? 20000 : 0, dir, 1 << 20, -1);
        cache_stats(c, &s);
        assert_int_equal(s.disk_records, 3);
        assert_int_equal(s.ram_bytes, 0);
        assert_int_equal(get(c, ID, t, 60, 0, false, NULL), 0);
        assert_int_equal(cache_common(c, ID, t, 60), 40);
        for (int32_t again = 0; again < 2; again++) {
            assert_int_equal(get(c, ID, t, 60, 0, true, &from), 40);
            assert_int_equal(from, again && ram ? CACHE_RAM : CACHE_DISK);
        }
        assert_int_equal(get(c, ID, t, 30, 0, true, NULL), 20);
        assert_int_equal(get(c, OTHER, t, 60, 0, true, NULL), 50);
        cache_stats(c, &s);
        assert_int_equal(s.ram_bytes, ram ? 15000 : 0);
        assert_int_equal(s.hits_disk, ram ? 3 : 4);
        if (!ram) assert_false(put(c, ID, t, 55, 100, CACHE_END));
        cache_close(c, MINUTE);
    }
    assert_int_equal(w.said, 0);
    remove_dir(dir);
}

/* A turn that the next one overtakes is not written; system texts are written at once; the rest when the cache
 * closes. */
static void written_when_it_lasts(void **state)
{
    (void) state;
    char dir[64];
    World w = { .time = 1000 };
    int32_t t[60] = { 0 };
    new_dir(dir);
    Cache *c = open_cache(&w, 1 << 20, dir, 1 << 20, 30);
    for (int32_t i = 0; i < 60; i++) t[i] = i;
    assert_true(put(c, ID, t, 10, 1000, CACHE_SHARED));
    assert_true(put(c, ID, t, 20, 1000, CACHE_HISTORY));
    assert_true(put(c, ID, t, 25, 1000, CACHE_END));
    on_disk(c, &w, 1, 0);
    w.time += 20;
    assert_true(put(c, ID, t, 30, 1000, CACHE_HISTORY));
    assert_true(put(c, ID, t, 35, 1000, CACHE_END));
    w.time += 15;                                  /* now the first two would be due */
    assert_true(put(c, ID, t, 12, 1000, CACHE_SHARED));
    assert_int_equal(on_disk(c, &w, 2, 0).written, 2);
    w.time += 20;
    assert_int_equal(on_disk(c, &w, 4, 0).waiting, 0);
    assert_true(put(c, ID, t, 50, 1000, CACHE_END));
    cache_close(c, 0);                             /* nothing more is written */
    assert_int_equal(files_in(dir, ".ratoon", NULL), 4);
    c = open_cache(&w, 1 << 20, dir, 1 << 20, 30);
    assert_int_equal(get(c, ID, t, 60, 0, true, NULL), 35);
    assert_int_equal(get(c, ID, t, 34, 0, true, NULL), 30);
    assert_int_equal(get(c, ID, t, 29, 0, true, NULL), 12);
    assert_true(put(c, ID, t, 50, 1000, CACHE_END));
    cache_close(c, MINUTE);                          /* now it is */
    assert_int_equal(files_in(dir, ".ratoon", NULL), 5);
    remove_dir(dir);
}

static void disk_budget(void **state)
{
    (void) state;
    char dir[64];
    World w = { .time = 1000 };
    int32_t t[30] = { 0 };
    CacheStats s;
    new_dir(dir);
    Cache *c = open_cache(&w, 1 << 20, dir, 40000, -1);
    for (int32_t i = 0; i < 30; i++) {             /* different texts, so the oldest is worth least */
        t[0] = i + 1;
        w.time += 100;
        assert_true(put(c, ID, t, 20, 5000, CACHE_END));
        cache_flush(c);
        cache_stats(c, &s);
        assert_true(s.disk_bytes <= 40000);
        assert_int_equal(s.disk_records, files_in(dir, ".ratoon", NULL));
    }
    assert_int_equal(s.written, 30);
    assert_int_equal(s.evicted_disk, 30 - s.disk_records);
    assert_true(s.disk_records >= 7);
    assert_true(put(c, ID, t, 21, 50000, CACHE_END));                  /* larger than the whole budget */
    cache_flush(c);
    cache_stats(c, &s);
    assert_int_equal(s.no_room, 1);
    assert_int_equal(s.written, 30);
    cache_close(c, MINUTE);
    c = open_cache(&w, 1 << 20, dir, 12000, -1);   /* a smaller budget than the present size */
    cache_stats(c, &s);
    assert_true(s.disk_bytes <= 12000);
    assert_int_equal(s.disk_records, 2);
    cache_close(c, 0);
    assert_int_equal(files_in(dir, ".ratoon", NULL), 2);
    remove_dir(dir);
}

/* Every length and every bit of a record of 4 KiB. */
static void every_bit_of_a_record(void **state)
{
    (void) state;
    int32_t t[200];
    Record r, back;
    Error err = { 0 };
    enum { IMAGE = 3100 };
    for (int32_t i = 0; i < 200; i++) t[i] = i;
    uint8_t image[IMAGE];
    fill(image, IMAGE, ID, t, 200);
    uint8_t *front = record_new(&r, CACHE_HISTORY, ID, t, 200, "a note", 6, IMAGE);
    assert_non_null(front);
    record_seal(&r, front, image);
    size_t n = r.n_front + IMAGE, n_front;
    assert_true(n > 3900 && n < 4200);
    assert_ok(record_read(&back, front, r.n_front, n, "x", &err), &err);
    assert_ok(record_check_image(&back, image, "x", &err), &err);
    assert_int_equal(back.kind, CACHE_HISTORY);
    assert_int_equal(back.n_tokens, 200);
    assert_memory_equal(back.tokens, t, sizeof t);
    assert_memory_equal(back.note, "a note", 6);
    for (size_t byte = 0; byte < n; byte++)
        for (int32_t bit = 0; bit < 8; bit++) {
            uint8_t *at = byte < r.n_front ? front + byte : image + (byte - r.n_front);
            *at ^= (uint8_t) (1 << bit);
            Status st = record_read(&back, front, r.n_front, n, "x", &err);
            if (st == ST_OK) st = record_check_image(&back, image, "x", &err);
            if (st != (byte < 8 || (byte >= 16 && byte < 20) ? ST_UNSUPPORTED : ST_FORMAT))
                fail_msg("bit %d of byte %zu: %d", bit, byte, st);
            assert_memory_equal(err.text, "x: ", 3);
            *at ^= (uint8_t) (1 << bit);
        }
    for (size_t length = 0; length < n; length++) {
        uint8_t *exact = malloc(length + 1);
        memcpy(exact, front, length < r.n_front ? length : r.n_front);
        Status st = record_front_bytes(&n_front, exact, length < RECORD_HEAD ? length : RECORD_HEAD, length, "x", &err);
        free(exact);
        assert_int_equal(st, ST_FORMAT);
    }
    free(front);
    assert_null(record_new(&r, CACHE_END, ID, t, (size_t) RECORD_TOKENS_MAX + 1, NULL, 0, 10));
    assert_null(record_new(&r, CACHE_END, ID, t, 1, NULL, (size_t) RECORD_NOTE_MAX + 1, 10));
    assert_null(record_new(&r, CACHE_END, ID, t, 1, NULL, 0, SIZE_MAX - 100));
}

static void put_byte(const char *path, long at, int how)
{
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    if (how == 0) assert_int_equal(ftruncate(fileno(f), at), 0);
    else {
        fseek(f, at, SEEK_SET);
        int byte = fgetc(f);
        fseek(f, at, SEEK_SET);
        fputc(byte ^ how, f);
    }
    fclose(f);
}

/* Damaged files are removed and reported once; foreign files are left alone and reported once; good records are found
 * all the same. */
static void damaged_files(void **state)
{
    (void) state;
    static const struct { long at; int how; bool stays; const char *why; } kinds[] = {
        { 0, 0, false, "0 bytes" }, { 60, 0, false, "60 bytes" }, { 128, 0, false, "do not fill the file's 128" },
        { 400, 0, false, "do not fill" }, { 6000, 0, false, "do not fill" },
        { 3, 1, true, "does not begin like" }, { 17, 1, true, "version" }, { 9, 4, false, "checksum of its tokens" },
        { 21, 255, false, "out of range" },
        { 27, 1, false, "do not fill" },
        { 59, 255, false, "out of range" }, { 58, 255, false, "do not fill" },
        { 130, 1, false, "checksum of its tokens" }, { 5000, 8, false, "checksum of its image" }
    };
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        for (int32_t late = 0; late < 2; late++) { /* before the cache opens, and after */
            char dir[64], name[512];
            World w = { 0 };
            CacheStats s;
            int32_t t[40] = { 1, 2, 3 };
            new_dir(dir);
            Cache *c = open_cache(&w, 1 << 20, dir, 1 << 20, -1);
            assert_true(put(c, ID, t, 40, 6000, CACHE_END));
            cache_close(c, MINUTE);
            assert_int_equal(files_in(dir, ".ratoon", name), 1);
            c = late ? open_cache(&w, 1 << 20, dir, 1 << 20, -1) : NULL;
            put_byte(name, kinds[i].at, kinds[i].how);
            if (!c) c = open_cache(&w, 1 << 20, dir, 1 << 20, -1);
            assert_int_equal(get(c, ID, t, 40, 0, true, NULL), 0);
            assert_int_equal(get(c, ID, t, 40, 0, true, NULL), 0);
            t[0] = 7;
            assert_true(put(c, ID, t, 30, 6000, CACHE_END));           /* the folder is read again */
            cache_flush(c);
            assert_int_equal(w.said, 1);
            if (!strstr(w.last, kinds[i].why)) fail_msg("%s, expected '%s'", w.last, kinds[i].why);
            assert_int_equal(files_in(dir, ".ratoon", NULL), 1 + kinds[i].stays);
            cache_stats(c, &s);
            assert_int_equal(s.damaged, !kinds[i].stays);
            assert_int_equal(s.foreign, kinds[i].stays);
            assert_int_equal(get(c, ID, t, 40, 0, true, NULL), 30);
            cache_close(c, 0);
            remove_dir(dir);
        }
}

/* Other things that may lie in the folder, and folders that are refused. */
static void strange_folders(void **state)
{
    (void) state;
    char dir[64], path[200], name[512];
    World w = { 0 };
    Error err = { 0 };
    Cache *c;
    int32_t t[40] = { 5 };
    new_dir(dir);
    snprintf(path, sizeof path, "%s/readme.ratoon", dir);
    fclose(fopen(path, "w"));
    snprintf(path, sizeof path, "%s/0123456789abcdef0123456789abcdef.ratoon", dir);
    assert_int_equal(symlink("/etc/passwd", path), 0);
    snprintf(path, sizeof path, "%s/1123456789abcdef0123456789abcdef.ratoon", dir);
    assert_int_equal(mkfifo(path, 0600), 0);
    snprintf(path, sizeof path, "%s/2123456789abcdef0123456789abcdef.ratoon", dir);
    assert_int_equal(mkdir(path, 0700), 0);
    snprintf(path, sizeof path, "%s/.writing-1-1", dir);
    fclose(fopen(path, "w"));
    c = open_cache(&w, 1 << 20, dir, 1 << 20, -1);
    assert_int_equal(files_in(dir, ".writing", NULL), 0);              /* its writer is dead */
    assert_true(put(c, ID, t, 40, 600, CACHE_END));
    cache_close(c, MINUTE);
    assert_int_equal(files_in(dir, "", NULL), 5);
    assert_int_equal(w.said, 0);
    /* A good record under the name of another text. */
    files_in(dir, ".ratoon", name);
    remove_dir(dir);
    assert_int_equal(mkdir(dir, 0700), 0);
    c = open_cache(&w, 1 << 20, dir, 1 << 20, -1);
    assert_true(put(c, ID, t, 40, 600, CACHE_END));
    cache_close(c, MINUTE);
    files_in(dir, ".ratoon", name);
    snprintf(path, sizeof path, "%s/3123456789abcdef0123456789abcdef.ratoon", dir);
    assert_int_equal(rename(name, path), 0);
    c = open_cache(&w, 1 << 20, dir, 1 << 20, -1);
    assert_int_equal(w.said, 1);
    assert_non_null(strstr(w.last, "another name"));
    cache_close(c, 0);
    assert_int_equal(files_in(dir, "", NULL), 0);
    CacheOptions o = { .ram_bytes = 1000, .dir = dir, .disk_bytes = 1000 };
    static const int modes[] = { 0770, 0720, 0702 };
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        char says[32];
        snprintf(says, sizeof says, "mode %03o", (unsigned) modes[i]);
        chmod(dir, (mode_t) modes[i]);
        assert_int_equal(cache_open(&c, &o, &err), ST_ARG);
        assert_non_null(strstr(err.text, says));
    }
    chmod(dir, 0700);
    snprintf(path, sizeof path, "%s/file", dir);
    fclose(fopen(path, "w"));
    o.dir = path;
    assert_int_equal(cache_open(&c, &o, &err), ST_IO);
    snprintf(path, sizeof path, "%s/file/folder", dir);
    assert_int_equal(cache_open(&c, &o, &err), ST_IO);
    assert_null(c);
    snprintf(path, sizeof path, "%s/new/folder", dir);     /* missing ones above it are made, too */
    assert_ok(cache_open(&c, &o, &err), &err);
    cache_close(c, 0);
    assert_int_equal(rmdir(path), 0);
    remove_dir(dir);
}

/* A folder that has a record's name keeps only that record out. */
static void folder_in_the_way(void **state)
{
    (void) state;
    char dir[64], name[512];
    World w = { 0 };
    CacheStats s;
    int32_t t[40] = { 5 };
    new_dir(dir);
    Cache *c = open_cache(&w, 1 << 20, dir, 1 << 20, -1);
    assert_true(put(c, ID, t, 40, 600, CACHE_END));
    cache_close(c, MINUTE);
    assert_int_equal(files_in(dir, ".ratoon", name), 1);
    assert_int_equal(unlink(name), 0);
    assert_int_equal(mkdir(name, 0700), 0);
    c = open_cache(&w, 1 << 20, dir, 1 << 20, -1);
    assert_true(put(c, ID, t, 40, 600, CACHE_END));
    cache_flush(c);
    assert_int_equal(w.said, 1);
    assert_non_null(strstr(w.last, "is a folder"));
    assert_true(put(c, ID, t, 30, 600, CACHE_SHARED));
    cache_flush(c);
    cache_stats(c, &s);
    assert_int_equal(s.disk_records, 1);
    assert_int_equal(s.write_failures, 1);
    cache_close(c, MINUTE);
    assert_int_equal(files_in(dir, "", NULL), 2);  /* the record and the folder: nothing half written is left */
    c = open_cache(&w, 1 << 20, dir, 1 << 20, -1);
    assert_int_equal(get(c, ID, t, 40, 0, true, NULL), 30);
    cache_close(c, 0);
    assert_int_equal(rmdir(name), 0);
    remove_dir(dir);
}

/* Files of another owner are not read, and files that another process is writing are not tidied away. */
static void files_of_others(void **state)
{
    (void) state;
    char dir[64], path[200], name[512];
    World w = { 0 };
    int32_t t[40] = { 5 };
    new_dir(dir);
    Cache *c = open_cache(&w, 1 << 20, dir, 1 << 20, -1);
    assert_true(put(c, ID, t, 40, 600, CACHE_END));
    cache_close(c, MINUTE);
    assert_int_equal(files_in(dir, ".ratoon", name), 1);
    snprintf(path, sizeof path, "%s/.writing-1-2", dir);
    int fd = open(path, O_CREAT | O_WRONLY, 0600);
    assert_int_equal(flock(fd, LOCK_EX), 0);
    bool others = geteuid() == 0 && chown(name, 65534, 65534) == 0;    /* which not every system's root may */
    for (int32_t alive = 1; alive >= 0; alive--) {
        c = open_cache(&w, 1 << 20, dir, 1 << 20, -1);
        assert_int_equal(files_in(dir, ".writing", NULL), alive);
        assert_int_equal(get(c, ID, t, 40, 0, true, NULL), others ? 0 : 40);
        assert_int_equal(files_in(dir, ".ratoon", NULL), 1);
        cache_close(c, 0);
        if (alive) close(fd);
    }
    if (others) assert_non_null(strstr(w.last, "is not a regular file of ours"));
    remove_dir(dir);
}

/* The largest number of tokens is read; one more is not. */
static void most_tokens_of_a_record(void **state)
{
    (void) state;
    Record r;
    Error err = { 0 };
    size_t n;
    int32_t t[4] = { 1, 2, 3, 4 };
    uint8_t *front = record_new(&r, CACHE_END, ID, t, 4, NULL, 0, 100);
    assert_non_null(front);
    for (int32_t more = 0; more < 2; more++) {
        int32_t n_tokens = RECORD_TOKENS_MAX + more;
        memcpy(front + 48, &n_tokens, sizeof n_tokens);
        assert_int_equal(record_front_bytes(&n, front, RECORD_HEAD, r.n_front + 100, "x", &err), ST_FORMAT);
        if (!strstr(err.text, more ? "out of range" : "do not fill")) fail_msg("%s", err.text);
    }
    free(front);
}

/* Two processes on one folder: each finds what the other wrote once it looks again, and misses what the other
 * removed. */
static void shared_folder(void **state)
{
    (void) state;
    char dir[64], name[512];
    World w = { 0 };
    CacheStats s;
    int32_t t[40] = { 5 };
    new_dir(dir);
    Cache *a = open_cache(&w, 1 << 20, dir, 1 << 20, -1), *b = open_cache(&w, 1 << 20, dir, 1 << 20, -1);
    assert_true(put(a, ID, t, 40, 600, CACHE_END));
    cache_flush(a);
    assert_int_equal(get(b, ID, t, 40, 0, true, NULL), 0);
    assert_true(put(b, ID, t, 30, 600, CACHE_SHARED));
    cache_flush(b);                                /* reads the folder again */
    assert_int_equal(get(b, ID, t, 40, 0, true, NULL), 40);
    assert_true(put(b, ID, t, 35, 600, CACHE_FIXED));
    assert_true(put(a, ID, t, 35, 600, CACHE_FIXED));
    cache_flush(a);
    cache_flush(b);
    assert_int_equal(files_in(dir, ".ratoon", NULL), 3);
    cache_close(a, 0);
    cache_close(b, 0);
    a = open_cache(&w, 1 << 20, dir, 1 << 20, -1);
    while (files_in(dir, ".ratoon", name)) unlink(name);
    assert_int_equal(get(a, ID, t, 40, 0, true, NULL), 0);
    cache_stats(a, &s);
    assert_int_equal(s.disk_bytes, 0);
    assert_int_equal(s.damaged, 0);
    cache_close(a, 0);
    assert_int_equal(w.said, 0);
    remove_dir(dir);
}

/* A record too large for memory is a hit only while it is looked at; fetching reads a record only if it fits, and the
 * look-up that follows counts as the one hit on disk. */
static void beyond_memory(void **state)
{
    (void) state;
    char dir[64];
    World w = { 0 };
    CacheStats s;
    int32_t t[40] = { 5 };
    CacheTier from;
    new_dir(dir);
    Cache *c = open_cache(&w, 1 << 20, dir, 1 << 20, -1);
    assert_int_equal(cache_longest(c, ID, t, 40), 0);
    assert_true(put(c, ID, t, 30, 600, CACHE_END));
    assert_true(put(c, ID, t, 40, 5000, CACHE_HISTORY));
    cache_close(c, MINUTE);
    c = open_cache(&w, 1000, dir, 1 << 20, -1);
    assert_int_equal(cache_longest(c, ID, t, 40), 40);
    assert_int_equal(cache_longest(c, OTHER, t, 40), 0);
    cache_fetch(c, ID, t, 40);                     /* 5000 bytes: not read */
    cache_stats(c, &s);
    assert_int_equal(s.ram_records, 0);
    assert_int_equal(get(c, ID, t, 40, 0, true, &from), 40);
    assert_int_equal(from, CACHE_DISK);
    assert_int_equal(get(c, ID, t, 40, 0, false, NULL), 0);
    cache_fetch(c, ID, t, 39);
    cache_stats(c, &s);
    assert_int_equal(s.ram_bytes, 600);
    assert_int_equal(s.hits_disk, 1);
    assert_int_equal(get(c, ID, t, 39, 0, false, &from), 30);
    assert_int_equal(from, CACHE_DISK);
    assert_int_equal(get(c, ID, t, 39, 0, false, &from), 30);
    assert_int_equal(from, CACHE_RAM);
    cache_stats(c, &s);
    assert_int_equal(s.hits_disk, 2);
    assert_int_equal(s.hits_ram, 1);
    cache_close(c, 0);
    c = open_cache(&w, 0, dir, 1 << 20, -1);       /* no memory at all */
    assert_int_equal(get(c, ID, t, 40, 0, true, NULL), 40);
    cache_stats(c, &s);
    assert_int_equal(s.ram_bytes, 0);
    cache_close(c, 0);
    assert_int_equal(w.said, 0);
    remove_dir(dir);
}

/* A large image is read by several threads, in parts: an error in any part is an error of the record. */
static void large_record(void **state)
{
    (void) state;
    enum { LARGE = (9 << 20) + 100, FRONT = 512 };
    static const struct { long at; int how; const char *why; } kinds[] = {
        { 0, 0, "" }, { FRONT + 100, 4, "checksum of its image" }, { (5 << 20) + 3, 1, "checksum of its image" },
        { LARGE - 1, 128, "checksum of its image" },
        { (3 << 20) + 1, -1, "cannot be read" }, { (8 << 20) + 4096, -1, "cannot be read" }
    };
    char dir[64], name[512];
    int32_t t[40] = { 9 };
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        World w = { 0 };
        CacheStats s;
        new_dir(dir);
        Cache *c = open_cache(&w, 32 << 20, dir, 32 << 20, -1);
        assert_true(put(c, ID, t, 40, LARGE, CACHE_END));
        cache_close(c, MINUTE);
        assert_int_equal(files_in(dir, ".ratoon", name), 1);
        c = open_cache(&w, 32 << 20, dir, 32 << 20, -1);
        if (kinds[i].how > 0) put_byte(name, kinds[i].at, kinds[i].how);
        memset(&sys_reads, 0, sizeof sys_reads);
        sys_reads.from = FRONT;
        sys_reads.fail = kinds[i].how < 0 ? kinds[i].at : 0;
        cache_fetch(c, ID, t, 40);
        assert_int_equal(sys_reads.n, 3);          /* by the calling thread and two more */
        memset(&sys_reads, 0, sizeof sys_reads);
        cache_stats(c, &s);
        assert_int_equal(s.ram_bytes, kinds[i].how == 0 ? LARGE : 0);
        assert_int_equal(s.damaged, kinds[i].how > 0);
        assert_int_equal(files_in(dir, ".ratoon", NULL), kinds[i].how <= 0);
        if (kinds[i].how > 0 && !strstr(w.last, kinds[i].why)) fail_msg("%s, expected '%s'", w.last, kinds[i].why);
        assert_int_equal(get(c, ID, t, 40, 0, true, NULL), kinds[i].how == 0 ? 40 : 0);
        cache_close(c, 0);
        remove_dir(dir);
    }
}

/* Another record, whole and of the same size, takes the name of a known one: it is not handed out, and is removed. */
static void another_under_the_name(void **state)
{
    (void) state;
    enum { BYTES = 3000 };
    for (int32_t kind = 0; kind < 3; kind++) {     /* other tokens, another identity, fewer tokens */
        char dir[64], mine[512], others[512];
        World w = { 0 };
        CacheStats s;
        int32_t t[40] = { 1 }, u[40] = { 2 };
        const char *identity = kind == 1 ? "the identity of a modem" : ID;
        const int32_t *text = kind ? t : u;
        size_t n = kind == 2 ? 39 : 40;
        new_dir(dir);
        Cache *c = open_cache(&w, 1 << 20, dir, 1 << 20, -1);
        assert_true(put(c, ID, t, 40, BYTES, CACHE_END));
        cache_close(c, MINUTE);
        assert_int_equal(files_in(dir, ".ratoon", mine), 1);
        snprintf(others, sizeof others, "%s/kept", dir);
        assert_int_equal(rename(mine, others), 0);
        c = open_cache(&w, 1 << 20, dir, 1 << 20, -1);
        assert_true(put(c, identity, text, n, BYTES, CACHE_END));
        cache_close(c, MINUTE);
        char wrong[512];
        assert_int_equal(files_in(dir, ".ratoon", wrong), 1);
        char aside[512];
        snprintf(aside, sizeof aside, "%.400s/aside", dir);
        assert_int_equal(rename(wrong, aside), 0);
        assert_int_equal(rename(others, mine), 0);
        c = open_cache(&w, 1 << 20, dir, 1 << 20, -1);             /* it knows the first record by its own name ... */
        assert_int_equal(rename(aside, mine), 0);                  /* ... under which the second one lies now */
        assert_int_equal(get(c, ID, t, 40, 0, true, NULL), 0);
        cache_stats(c, &s);
        assert_int_equal(s.hits_disk, 0);
        assert_int_equal(s.ram_bytes, 0);
        assert_int_equal(s.disk_records, 0);
        cache_close(c, 0);
        c = open_cache(&w, 1 << 20, dir, 1 << 20, -1);
        cache_stats(c, &s);
        assert_int_equal(s.damaged, 1);
        assert_non_null(strstr(w.last, "it holds a text of another name"));
        assert_int_equal(files_in(dir, ".ratoon", NULL), 0);
        cache_close(c, 0);
        remove_dir(dir);
    }
}

/* A clock that goes back by a year makes nothing wait for a year; neither it nor a file from the future keeps a record
 * alive. */
static void clock_goes_back(void **state)
{
    (void) state;
    enum { YEAR = 365 * 86400 };
    char dir[64], name[512];
    World w = { .time = 3LL * YEAR };
    int32_t t[40] = { 1 };
    new_dir(dir);
    Cache *c = open_cache(&w, 1 << 20, dir, 1 << 20, 30);
    assert_true(put(c, ID, t, 40, 3000, CACHE_END));
    w.time -= YEAR;
    assert_true(put(c, ID, t, 20, 3000, CACHE_HISTORY));
    on_disk(c, &w, 2, 10);
    cache_close(c, 0);
    files_in(dir, ".ratoon", name);
    assert_int_equal(utimensat(AT_FDCWD, name, (struct timespec[2]) { { .tv_sec = 40LL * YEAR * 2 },
                                                                      { .tv_sec = 40LL * YEAR * 2 } }, 0), 0);
    c = open_cache(&w, 1 << 20, dir, 9000, -1);    /* another's HISTORY, long after, is worth more than both */
    w.time += YEAR;
    t[0] = 2;
    assert_true(put(c, ID, t, 30, 3000, CACHE_END));
    cache_flush(c);
    t[0] = 3;
    assert_true(put(c, ID, t, 30, 3000, CACHE_END));
    cache_flush(c);
    cache_close(c, 0);
    c = open_cache(&w, 1 << 20, dir, 9000, -1);
    assert_int_equal(get(c, ID, t, 30, 0, true, NULL), 30);
    t[0] = 2;
    assert_int_equal(get(c, ID, t, 30, 0, true, NULL), 30);
    cache_close(c, 0);
    double old = cache_worth(CACHE_SHARED, 1000, 1000000, 0, 9LL * YEAR, 0);
    assert_true(old > cache_worth(CACHE_END, 1000, 1000000, 0, 9LL * YEAR, 0) &&
                old < cache_worth(CACHE_END, 1000, 1000000, 0, YEAR / 4, 1));
    remove_dir(dir);
}

/* A folder that may only be read is read, whatever the budget; it is reported once that nothing is written. */
static void folder_to_read(void **state)
{
    (void) state;
    char dir[64], name[512];
    World w = { 0 };
    int32_t t[40] = { 5 };
    CacheStats s;
    new_dir(dir);
    Cache *c = open_cache(&w, 1 << 20, dir, 1 << 20, -1);
    for (int32_t i = 10; i <= 40; i += 10) assert_true(put(c, ID, t, (size_t) i, 3000, CACHE_FIXED));
    cache_close(c, MINUTE);
    sys_state.read_only = true;
    for (int32_t budget = 5000; budget < 1 << 20; budget *= 100) {
        w.said = 0;
        c = open_cache(&w, 1 << 20, dir, (uint64_t) budget, -1);
        assert_int_equal(get(c, ID, t, 40, 0, true, NULL), 40);
        assert_int_equal(get(c, ID, t, 20, 0, true, NULL), 20);
        cache_stats(c, &s);
        assert_int_equal(s.disk_records, 4);
        assert_true(put(c, ID, t, 25, 300, CACHE_END));
        cache_flush(c);
        assert_true(put(c, ID, t, 26, 300, CACHE_END));
        cache_flush(c);
        assert_int_equal(w.said, 1);
        assert_non_null(strstr(w.last, "nothing is written any more"));
        assert_int_equal(get(c, ID, t, 26, 0, true, NULL), 26);
        cache_close(c, MINUTE);
    }
    files_in(dir, ".ratoon", name);
    assert_int_equal(truncate(name, 1000), 0);
    w.said = 0;
    c = open_cache(&w, 1 << 20, dir, 1 << 20, -1);
    assert_int_equal(w.said, 1);
    assert_non_null(strstr(w.last, "left alone"));
    assert_true(put(c, ID, t, 25, 300, CACHE_END));
    cache_flush(c);
    cache_stats(c, &s);
    assert_int_equal(s.damaged, 1);
    assert_int_equal(w.said, 2);
    cache_close(c, 0);
    sys_state.read_only = false;
    assert_int_equal(files_in(dir, "", NULL), 4);
    remove_dir(dir);
}

/* A temporary file that another process removes before it is locked is made again; where nothing can be locked none is
 * left. */
static void locks(void **state)
{
    (void) state;
    char dir[64];
    World w = { 0 };
    int32_t t[40] = { 5 };
    CacheStats s;
    new_dir(dir);
    Cache *c = open_cache(&w, 1 << 20, dir, 1 << 20, -1);
    sys_state.tidied = true;
    assert_true(put(c, ID, t, 40, 600, CACHE_END));
    cache_flush(c);
    cache_stats(c, &s);
    assert_false(sys_state.tidied);
    assert_int_equal(s.written, 1);
    assert_int_equal(w.said, 0);
    sys_state.no_locks = true;
    assert_true(put(c, ID, t, 30, 600, CACHE_END));
    assert_true(put(c, ID, t, 20, 600, CACHE_FIXED));
    cache_flush(c);
    sys_state.no_locks = false;
    assert_int_equal(w.said, 1);
    assert_int_equal(files_in(dir, "", NULL), 1);
    cache_close(c, MINUTE);
    remove_dir(dir);
}

/* ---- dying and failing ---- */

/* Three records, one of several pieces; the last one displaces the first. */
static void work(Cache *c)
{
    int32_t t[64];
    for (int32_t i = 0; i < 64; i++) t[i] = i;
    assert_true(put(c, ID, t, 20, 3000, CACHE_SHARED));
    cache_flush(c);
    assert_true(put(c, ID, t, 64, 2500000, CACHE_END));
    cache_flush(c);
    t[0] = 9;
    assert_true(put(c, ID, t, 40, 600000, CACHE_END));
    cache_flush(c);
}

/* Whatever is found is right; returns how many of the three are there. */
static int32_t look(const char *dir, bool said)
{
    World w = { 0 };
    int32_t t[64];
    for (int32_t i = 0; i < 64; i++) t[i] = i;
    Cache *c = open_cache(&w, 1 << 23, dir, 1 << 23, -1);
    int32_t a = get(c, ID, t, 64, 20, true, NULL), b = get(c, ID, t, 63, 0, true, NULL);
    t[0] = 9;
    int32_t last = get(c, ID, t, 64, 0, true, NULL);
    assert_true((a == 0 || a == 64) && (b == 0 || b == 20) && (last == 0 || last == 40));
    if (!said) assert_int_equal(w.said, 0);
    cache_close(c, 0);
    assert_int_equal(files_in(dir, ".writing", NULL), 0);
    return (a > 0) + (b > 0) + (last > 0);
}

/* Killed before and after each call that changes the folder: every record that is there afterwards is whole. */
static void killed_at_each_step(void **state)
{
    (void) state;
    int32_t before = 0, kills = 0;
    bool done = false;
    for (long at = 1; !done; at++)
        for (int32_t after = 0; after < 2 && !done; after++) {
            char dir[64];
            int status;
            new_dir(dir);
            pid_t child = fork();
            assert_true(child >= 0);
            if (child == 0) {
                World w = { 0 };
                sys_state.calls = 0;
                sys_state.die_at = at;
                sys_state.die_after = after;
                Cache *c = open_cache(&w, 1 << 23, dir, 1 << 23, -1);
                work(c);
                cache_close(c, 0);
                _exit(w.said);
            }
            assert_int_equal(waitpid(child, &status, 0), child);
            done = WIFEXITED(status);
            if (done) assert_int_equal(WEXITSTATUS(status), 0);
            else assert_int_equal(WTERMSIG(status), SIGKILL);
            kills += !done;
            int32_t found = look(dir, false);
            assert_true(found >= before);          /* later crashes lose nothing that earlier ones left */
            before = found;
            assert_true(!done || found == 3);
            remove_dir(dir);
        }
    assert_true(kills > 40);
}

/* Each call fails once, in every way that it can: the cache goes on in memory, reports it once, and the folder holds
 * only good records. */
static void failing_disk(void **state)
{
    (void) state;
    static const int errors[] = { ENOSPC, EIO };
    char dir[64];
    World w;
    for (size_t e = 0; e < 2; e++) {
        bool done = false;
        for (long at = 1; !done; at++) {
            w = (World) { 0 };
            new_dir(dir);
            sys_state.calls = 0;
            sys_state.fail_at = at;
            sys_state.error = errors[e];
            Cache *c = NULL;
            Error err = { 0 };
            CacheOptions o = { .ram_bytes = 1 << 23, .dir = dir, .disk_bytes = 1 << 23, .min_tokens = 1,
                               .write_delay = -1, .clock = world_time, .log = world_log, .ud = &w };
            alarm(100);                            /* otherwise whoever waits for a lock waits for ever */
            if (cache_open(&c, &o, &err) == ST_OK) {
                w.asks = c;
                work(c);
                CacheStats s;
                cache_stats(c, &s);
                assert_true(s.write_failures <= 1);
                assert_int_equal(s.ram_records, 3);
                cache_close(c, MINUTE);
            }
            alarm(0);
            done = sys_state.calls < at;
            sys_state.fail_at = 0;
            assert_true(w.said <= 1);
            look(dir, true);
            remove_dir(dir);
        }
    }
    w = (World) { 0 };
    new_dir(dir);
    sys_state.brief = true;                        /* each write takes only a half */
    Cache *c = open_cache(&w, 1 << 23, dir, 1 << 23, -1);
    work(c);
    remove_dir(dir);                               /* and the folder vanishes meanwhile */
    int32_t t[8] = { 77 };
    assert_true(put(c, ID, t, 8, 100, CACHE_END));
    cache_flush(c);
    assert_true(put(c, ID, t, 7, 100, CACHE_END));
    cache_flush(c);
    sys_state.brief = false;
    assert_int_equal(w.said, 1);
    assert_int_equal(get(c, ID, t, 8, 0, true, NULL), 8);
    cache_close(c, MINUTE);
}

/* Every allocation fails once: only records are lost. */
static void no_memory(void **state)
{
    (void) state;
    char dir[64];
    World w = { 0 };
    bool done = false;
    int32_t n = 0;
    int32_t t[64];
    for (int32_t i = 0; i < 64; i++) t[i] = i;
    for (long at = 1; !done; at++) {
        Cache *c = NULL;
        Error err = { 0 };
        CacheOptions o = { .ram_bytes = 5000, .dir = dir, .disk_bytes = 1 << 20, .min_tokens = 1, .write_delay = -1,
                           .clock = world_time, .log = world_log, .ud = &w };
        new_dir(dir);
        if (!ALLOC_SANITIZED) alloc_state.fail_in = at;     /* a sanitizer dies if its threads start without memory */
        Status st = cache_open(&c, &o, &err);
        assert_true(st == ST_OK || st == ST_MEMORY || st == ST_IO);
        if (ALLOC_SANITIZED) {
            cache_flush(c);
            alloc_state.fail_in = at;
        }
        for (int32_t i = 0; c && i < 4; i++) {
            CacheHit hit;
            CacheEntry *e = cache_begin(c, ID, t, 10 + (size_t) i * 5, 2000, CACHE_END, NULL, 0);
            if (e) {
                memset(cache_image(e), i, 2000);
                cache_commit(c, e);
            }
            cache_flush(c);
            if (!cache_find(c, &hit, ID, t, 64, 0, true)) continue;
            for (size_t j = 0; j < hit.n; j++) assert_int_equal(hit.image[j], (hit.tokens - 10) / 5);
            cache_release(c, &hit);
        }
        done = alloc_state.fail_in > 0;
        alloc_state.fail_in = 0;
        cache_close(c, 0);
        remove_dir(dir);
        n++;
    }
    assert_true(n > (ALLOC_SANITIZED ? 8 : 20));
}

/* ---- threads ---- */

typedef struct { Cache *c; uint64_t seed; int32_t found; } Worker;
static void *busy(void *ud)
{
    Worker *x = ud;
    Dice d = { tiny_key(x->seed, "busy"), 0 };
    for (int32_t i = 0; i < 400; i++) {
        int32_t t[24], n = 1 + roll(&d, 24);
        for (int32_t j = 0; j < 24; j++) t[j] = j < 3 ? roll(&d, 3) : j;
        switch (roll(&d, 4)) {
        case 0: put(x->c, ID, t, (size_t) n, 200 + (size_t) roll(&d, 3000), (CacheKind) roll(&d, 5)); break;
        case 1: if (roll(&d, 10)) cache_common(x->c, ID, t, 24); else cache_flush(x->c); break;
        default: {
            CacheHit hit;
            if (!cache_find(x->c, &hit, ID, t, 24, 0, roll(&d, 2))) break;
            uint8_t *want = malloc(hit.n);
            fill(want, hit.n, ID, t, (size_t) hit.tokens);
            x->found += memcmp(want, hit.image, hit.n) == 0 ? 1 : -1000000;
            free(want);
            if (roll(&d, 50) == 0) cache_reject(x->c, &hit, "now and then");
            else cache_release(x->c, &hit);
        }
        }
    }
    return NULL;
}

static void many_threads(void **state)
{
    (void) state;
    enum { THREADS = 6 };
    char dir[64];
    World w = { 0 };
    Worker x[THREADS];
    pthread_t at[THREADS];
    CacheStats s;
    new_dir(dir);
    Cache *c = open_cache(&w, 30000, dir, 40000, -1);
    for (uint64_t i = 0; i < THREADS; i++) {
        x[i] = (Worker) { c, i, 0 };
        assert_int_equal(pthread_create(&at[i], NULL, busy, &x[i]), 0);
    }
    for (int32_t i = 0; i < THREADS; i++) {
        pthread_join(at[i], NULL);
        assert_true(x[i].found > 50);
    }
    cache_flush(c);
    cache_stats(c, &s);
    assert_true(s.ram_bytes <= 30000 && s.disk_bytes <= 40000);
    assert_int_equal(s.disk_records, files_in(dir, ".ratoon", NULL));
    if (!s.hits_disk || !s.evicted_ram || !s.evicted_disk)
        fail_msg("%d hits on disk, %d and %d went", (int) s.hits_disk, (int) s.evicted_ram, (int) s.evicted_disk);
    cache_close(c, 0);
    remove_dir(dir);
}

/* ---- sessions ---- */

static rt_session *session_of(PublicRig *p)
{
    rt_session *s;
    rt_error e;
    assert_int_equal(rt_session_new(&s, p->g, &RT_SESSION_OPTIONS(.ctx = 400), &e), RT_OK);
    return s;
}

static void say_more(rt_step *st, rt_session *s, int32_t n)
{
    const int32_t *text;
    rt_block b;
    while ((int32_t) rt_session_text(s, &text) < n) assert_int_equal(rt_next(st, s, &b), RT_OK);
    int32_t over = (int32_t) rt_session_text(s, &text) - n;
    if (over > 0) assert_int_equal(rt_take(s, b.n - over), RT_OK);
}

static void see_note(void *ud, const void *bytes, size_t n)
{
    assert_int_equal(n, 4);
    memcpy(ud, bytes, n);
}

/* Conversations alternate over two sessions and a cache too small for all of them, with restarts: every answer is that
 * of plain decoding of the whole prompt, wherever it was resumed. */
static void conversations(void **state)
{
    (void) state;
    enum { TALKS = 5, TURNS = 24, SYSTEM = 40, ASK = 12, SAY = 10 };
    int32_t from[4] = { 0 }, restarts = 0;
    for (int32_t kind = 1; kind < RIG_KINDS; kind += 3) {
        RigOptions o = rig_kind(kind, false);
        o = rig_has_mtp(kind) ? rig_with_mtp(o) : rig_with_draft(o, false);
        PublicRig p;
        char dir[64], identity[600];
        World w = { 0 };
        rt_error e;
        rt_step *st, *plain;
        new_dir(dir);
        public_open(&p, &o, NULL);
        assert_true(rt_property(p.g, "identity", identity, sizeof identity) < sizeof identity);
        assert_int_equal(rt_step_new(&st, p.g, &RT_STEP_OPTIONS(.chunk = 32, .budget = 12), &e), RT_OK);
        assert_int_equal(rt_step_new(&plain, p.g, &RT_STEP_OPTIONS(.chunk = 64, .budget = -1), &e), RT_OK);
        rt_session *s[2] = { session_of(&p), session_of(&p) }, *truth = session_of(&p);
        Dice d = { tiny_key(310, "talks"), (uint64_t) kind };
        int32_t talk[TALKS][400], n[TALKS], unsaved[2] = { 0 };
        random_tokens(&d, SYSTEM, 96, talk[0]);
        for (int32_t i = 0; i < TALKS; i++) memcpy(talk[i], talk[0], sizeof talk[0]), n[i] = SYSTEM;
        Cache *c = open_cache(&w, 600000, dir, 1 << 22, -1);
        for (int32_t turn = 0; turn < TURNS; turn++) {
            int32_t i = roll(&d, TALKS), who = roll(&d, 2), note = 0;
            rt_session *x = s[who];
            if (roll(&d, 8) == 0) {
                cache_close(c, MINUTE);
                c = open_cache(&w, 600000, dir, 1 << 22, -1);
                restarts++;
            }
            if (n[i] + ASK + SAY > 380) n[i] = SYSTEM;
            random_tokens(&d, ASK, 96, talk[i] + n[i]);
            /* the client changed the last answer's end */
            if (roll(&d, 3) == 0 && n[i] > SYSTEM) talk[i][n[i] - 1 - roll(&d, 5)] = 3;
            n[i] += ASK;
            if (unsaved[who])
                cache_save(c, identity, st, x, rt_save_place(x, INT32_MAX), CACHE_END, &(int32_t) { 99 }, 4);
            CacheResume r = cache_resume(c, identity, x, talk[i], (size_t) n[i], true, see_note, &note);
            assert_int_equal(r.tokens, rt_resumable(x, talk[i], (size_t) n[i]));
            assert_true(r.tokens < n[i] && r.differs >= r.tokens && r.differs <= n[i]);
            if (r.from == CACHE_RAM || r.from == CACHE_DISK) assert_true(note == 99 || note == 98);
            from[r.from]++;
            assert_int_equal(rt_prompt(x, talk[i], (size_t) n[i]), RT_OK);
            CachePoint point[RT_MARKS];
            CachePointsIn in = { .n_prompt = n[i], .held = r.tokens, .shared = SYSTEM, .history = n[i] - 3, .least = 4,
                                 .interval = 50 };
            int32_t mark[RT_MARKS], n_point = cache_points_of(point, &in);
            for (int32_t j = 0; j < n_point; j++) mark[j] = point[j].at;
            assert_int_equal(rt_mark(x, mark, (size_t) n_point), RT_OK);
            for (int32_t j = 0; j < n_point; j++) {
                rt_block b;
                while (x->s.line.target.P < point[j].at) assert_int_equal(rt_step_run(st, &x, &b, 1), RT_OK);
                assert_int_equal(rt_save_place(x, point[j].at), point[j].at);
                if (point[j].save) cache_save(c, identity, st, x, point[j].at, point[j].kind, &(int32_t) { 98 }, 4);
            }
            say_more(st, x, n[i] + SAY);
            if (roll(&d, 2))
                cache_save(c, identity, st, x, rt_save_place(x, n[i] - 3), CACHE_HISTORY, &(int32_t) { 98 }, 4);
            unsaved[who] = 1;
            const int32_t *got, *want;
            session_forget(&truth->s);
            assert_int_equal(rt_prompt(truth, talk[i], (size_t) n[i]), RT_OK);
            say_more(plain, truth, n[i] + SAY);
            rt_session_text(x, &got);
            rt_session_text(truth, &want);
            assert_same(got, want, sizeof *got * (size_t) (n[i] + SAY),
                        "turn %d of kind %d, resumed at %d from tier %d", turn, kind, r.tokens, (int) r.from);
            memcpy(talk[i], got, sizeof *got * (size_t) (n[i] + SAY));
            n[i] += SAY;
        }
        CacheStats stats;
        cache_stats(c, &stats);
        assert_int_equal(stats.damaged, 0);
        cache_close(c, 0);
        assert_int_equal(w.said, 0);
        rt_session_free(s[0]);
        rt_session_free(s[1]);
        rt_session_free(truth);
        rt_step_free(st);
        rt_step_free(plain);
        public_close(&p);
        remove_dir(dir);
    }
    assert_true(restarts > 1);
    if (!from[CACHE_LIVE] || !from[CACHE_RAM] || !from[CACHE_DISK])
        fail_msg("live %d, memory %d, disk %d", from[CACHE_LIVE], from[CACHE_RAM], from[CACHE_DISK]);
}

/* A record whose bytes are right but whose image the engine refuses: it is dropped, and the next best one is taken. */
static void refused_images(void **state)
{
    (void) state;
    RigOptions o = rig_kind(4, false);
    PublicRig p;
    World w = { 0 };
    char identity[600];
    rt_error e;
    rt_step *st;
    int32_t t[200];
    Dice d = { tiny_key(320, "refused"), 0 };
    public_open(&p, &o, NULL);
    rt_property(p.g, "identity", identity, sizeof identity);
    assert_int_equal(rt_step_new(&st, p.g, &RT_STEP_OPTIONS(.budget = -1), &e), RT_OK);
    rt_session *s = session_of(&p), *x = session_of(&p);
    random_tokens(&d, 200, 96, t);
    Cache *c = open_cache(&w, 1 << 22, NULL, 0, 0);
    assert_int_equal(rt_prompt(s, t, 101), RT_OK);
    say_more(st, s, 102);
    assert_false(cache_save(c, identity, st, s, 55, CACHE_END, NULL, 0));                   /* no place */
    assert_true(cache_save(c, identity, st, s, 100, CACHE_END, NULL, 0));
    assert_false(cache_save(c, identity, st, s, 100, CACHE_END, NULL, 0));                  /* known */
    /* the last token of a prompt is always computed, so a record of the whole prompt is of no use */
    for (int32_t n = 99; n <= 101; n++) {
        rt_session *fresh = session_of(&p);
        CacheResume r = cache_resume(c, identity, fresh, t, (size_t) n, false, NULL, NULL);
        assert_int_equal(r.tokens, n > 100 ? 100 : 0);
        assert_int_equal(r.from, n > 100 ? CACHE_RAM : CACHE_NONE);
        assert_int_equal(rt_prompt(fresh, t, (size_t) n), RT_OK);
        say_more(st, fresh, n + 1);
        rt_session_free(fresh);
    }
    assert_true(put(c, identity, t, 150, 5000, CACHE_END));
    CacheResume r = cache_resume(c, identity, x, t, 200, false, NULL, NULL);
    assert_int_equal(r.tokens, 100);
    assert_int_equal(r.from, CACHE_RAM);
    assert_int_equal(r.differs, 150);
    assert_int_equal(w.said, 1);
    assert_non_null(strstr(w.last, "a record of 150 tokens is dropped: image: "));
    r = cache_resume(c, identity, x, t, 200, false, NULL, NULL);
    assert_int_equal(r.from, CACHE_LIVE);
    rt_session *little;
    assert_int_equal(rt_session_new(&little, p.g, &RT_SESSION_OPTIONS(.ctx = 90), &e), RT_OK);
    r = cache_resume(c, identity, little, t, 200, false, NULL, NULL);
    assert_int_equal(r.from, CACHE_NONE);
    assert_int_equal(r.tokens, 0);
    r = cache_resume(c, identity, little, t, 1, false, NULL, NULL);
    assert_int_equal(r.from, CACHE_NONE);
    cache_close(c, 0);
    rt_session_free(s);
    rt_session_free(x);
    rt_session_free(little);
    rt_step_free(st);
    public_close(&p);
}

/* ---- cache points ---- */

static void assert_points(const CachePointsIn *in, const char *want)
{
    static const char letter[] = "SFHEI";
    CachePoint p[RT_MARKS];
    char got[800] = "";
    int32_t n = cache_points_of(p, in);
    for (int32_t i = 0; i < n; i++)
        snprintf(got + strlen(got), sizeof got - strlen(got), "%s%c%d", i ? " " : "", letter[p[i].kind], p[i].at);
    assert_string_equal(got, want);
    for (int32_t i = 0; i < n; i++) {
        assert_true(p[i].at > in->held && p[i].at >= 1 && p[i].at < in->n_prompt && p[i].at >= in->least &&
                    (i == 0 || p[i].at > p[i - 1].at));
        assert_int_equal(p[i].save, p[i].kind == CACHE_SHARED || p[i].kind == CACHE_FIXED);
    }
}

static void cache_points(void **state)
{
    (void) state;
    static const int32_t fixed[] = { 5000, 900, 3000, 900, 20000, 100 };
    assert_points(&(CachePointsIn) { .n_prompt = 1000 }, "");
    assert_points(&(CachePointsIn) { .n_prompt = 0, .shared = 5 }, "");
    assert_points(&(CachePointsIn) { .n_prompt = 10000, .shared = 4000, .history = 9990, .least = 256 }, "S4000 H9990");
    assert_points(&(CachePointsIn) { .n_prompt = 10000, .shared = 4000, .history = 9990, .least = 256, .held = 5000 },
                  "H9990");
    assert_points(&(CachePointsIn) { .n_prompt = 10000, .shared = 4000, .history = 9990, .kept = 8000, .least = 256 },
                  "S4000 H8000 H9990");
    assert_points(&(CachePointsIn) { .n_prompt = 10000, .history = 9990, .kept = 9993, .least = 256 }, "H9990");
    assert_points(&(CachePointsIn) { .n_prompt = 10000, .history = 9990, .kept = 100, .least = 256 }, "H9990");
    assert_points(&(CachePointsIn) { .n_prompt = 10000, .shared = 200, .history = 200, .least = 256 }, "");
    assert_points(&(CachePointsIn) { .n_prompt = 10000, .shared = 9999, .history = 9999, .least = 1 }, "S9999");
    assert_points(&(CachePointsIn) { .n_prompt = 10000, .shared = 10000, .history = 10000, .least = 1 }, "");
    assert_points(&(CachePointsIn) { .n_prompt = 10000, .shared = 900, .history = 3000, .least = 256, .fixed = fixed,
                                     .n_fixed = 6 }, "S900 F3000 F5000");
    assert_points(&(CachePointsIn) { .n_prompt = 30000, .shared = 8000, .history = 29000, .least = 256,
                                     .interval = 8192 }, "S8000 I16384 I24576 H29000");
    assert_points(&(CachePointsIn) { .n_prompt = 24600, .held = 9000, .least = 256, .interval = 8192 }, "I16384");
    /* A point as near to the prompt's end as may be; one token nearer there is none. */
    assert_points(&(CachePointsIn) { .n_prompt = 8449, .least = 256, .interval = 8192 }, "I8192");
    assert_points(&(CachePointsIn) { .n_prompt = 8448, .least = 256, .interval = 8192 }, "");
    /* More intervals than there is room for: the first ones are dropped, the rest stays. */
    CachePoint p[RT_MARKS];
    int32_t n = cache_points_of(p, &(CachePointsIn) { .n_prompt = 1000000, .shared = 5000, .history = 999300,
                                                      .least = 256, .interval = 8192, .fixed = fixed, .n_fixed = 2 });
    assert_int_equal(n, RT_MARKS);
    assert_int_equal(p[0].at, 900);
    assert_int_equal(p[1].at, 5000);
    assert_int_equal(p[1].kind, CACHE_SHARED);
    assert_int_equal(p[n - 1].at, 999300);
    for (int32_t i = 2; i < n - 1; i++) assert_int_equal(p[i].at, (121 - (n - 2) + i) * 8192);
    int32_t many[200];
    for (int32_t i = 0; i < 200; i++) many[i] = 10000 - 10 * i;
    n = cache_points_of(p, &(CachePointsIn) { .n_prompt = 20000, .shared = 100, .history = 19000, .least = 50,
                                              .interval = 1000, .fixed = many, .n_fixed = 200 });
    assert_int_equal(n, RT_MARKS);
    assert_int_equal(p[0].kind, CACHE_SHARED);
    for (int32_t i = 1; i < n; i++) assert_true(p[i].kind == CACHE_FIXED);
    assert_int_equal(cache_points_common(many, 200, many, 150), 150);
    assert_int_equal(cache_points_common(many, 200, many + 1, 150), 0);
    assert_int_equal(cache_points_common(NULL, 0, many, 3), 0);
}

int main(int argc, char **argv)
{
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(killed_at_each_step), cmocka_unit_test(longest_record),
        cmocka_unit_test(eviction_is_the_naive_one), cmocka_unit_test(worth_in_order),
        cmocka_unit_test(found_after_a_restart), cmocka_unit_test(written_when_it_lasts), cmocka_unit_test(disk_budget),
        cmocka_unit_test(every_bit_of_a_record), cmocka_unit_test(damaged_files), cmocka_unit_test(strange_folders),
        cmocka_unit_test(folder_in_the_way), cmocka_unit_test(shared_folder), cmocka_unit_test(beyond_memory),
        cmocka_unit_test(large_record), cmocka_unit_test(another_under_the_name),
        cmocka_unit_test(files_of_others), cmocka_unit_test(most_tokens_of_a_record),
        cmocka_unit_test(clock_goes_back), cmocka_unit_test(folder_to_read),
        cmocka_unit_test(locks), cmocka_unit_test(failing_disk), cmocka_unit_test(no_memory),
        cmocka_unit_test(many_threads), cmocka_unit_test(conversations), cmocka_unit_test(refused_images),
        cmocka_unit_test(cache_points),
    };
    return cmocka_run_group_tests_name("cache", tests, NULL, NULL);
}
