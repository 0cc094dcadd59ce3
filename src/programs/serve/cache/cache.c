/* cache.c - records in memory, eviction, and the writer thread. One lock guards all data about records; images are
 * copied, read, written and freed without it, under a pin. */
#include "programs/serve/cache/cache.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "base/grow.h"
#include "programs/serve/cache/cache_disk.h"

enum { MIN_TOKENS = 256, WRITE_DELAY = 30, HALF_LIFE = 6 * 3600, ALIGN = 64, HUGE_PAGE = 2 << 20 };

struct CacheEntry {
    RecordName  name;
    Record      rec;
    uint8_t    *front, *image;                  /* image NULL: on disk only, or being read */
    CacheEntry *parent;                         /* the longest record of its kind whose text it continues */
    int32_t     continued, pins;
    uint64_t    file_bytes;                     /* 0: no file */
    int64_t     hits, used, due;                /* due: time from which it may be written */
    bool        filling, reading, writing, waiting;
    bool        fetched;                        /* was read from disk for a hit still to come */
    bool        transient, doomed;              /* transient: beyond the budget, kept for the duration of a hit; doomed:
                                                 * no longer found, freed with its last pin */
};

struct Cache {
    CacheOptions    o;
    pthread_mutex_t lock;
    pthread_cond_t  changed;
    pthread_t       writer;
    bool            has_disk, has_writer, writes, closing, flushing, idle;  /* idle: nothing is due to be written */
    atomic_bool     give_up;
    CacheDisk       disk;
    CacheEntry    **entry;
    size_t          n, room, ram_bytes;
    int64_t         latest, behind;     /* latest value of now(), and the sum of all backward steps of the clock */
    uint64_t        disk_bytes;
    RecordName     *ignored;            /* files that we cannot use */
    size_t          n_ignored;
    uint8_t        *bin;                /* images to be freed; the first bytes of each point to the next */
    CacheStats      count;
};

static void say(const Cache *c, int level, const char *format, ...) __attribute__((format(printf, 3, 4)));
static void say(const Cache *c, int level, const char *format, ...)
{
    char line[700];
    va_list args;
    if (!c->o.log) return;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    c->o.log(c->o.ud, level, line);
}

/* Monotonic even if the clock is set back, so that records neither wait for years nor stay new forever. Lock held. */
static int64_t now(Cache *c)
{
    int64_t t = c->o.clock ? c->o.clock(c->o.ud) : (int64_t) time(NULL);
    if (t + c->behind < c->latest) c->behind = c->latest - t;
    return c->latest = t + c->behind;
}

static void enter(Cache *c) { pthread_mutex_lock(&c->lock); }

/* Unlocks, then frees images: returning a gigabyte to the system takes a while, and nobody should wait for the lock
 * meanwhile. */
static void leave(Cache *c)
{
    uint8_t *bin = c->bin, *next;
    c->bin = NULL;
    pthread_mutex_unlock(&c->lock);
    for (; bin; bin = next) {
        memcpy(&next, bin, sizeof next);
        free(bin);
    }
}

static void discard(Cache *c, uint8_t *image)
{
    if (!image) return;
    memcpy(image, &c->bin, sizeof c->bin);
    c->bin = image;
}

/* Images are written and read once from end to end; with small pages, the page faults would take longer than the copy.
 * The last part, less than a huge page, keeps small pages, so that no more memory is held than counted. */
static uint8_t *new_image(uint64_t n)
{
    void *p;
    if (n > SIZE_MAX - HUGE_PAGE || posix_memalign(&p, n < HUGE_PAGE ? ALIGN : HUGE_PAGE, (size_t) n) != 0) return NULL;
    /* only a hint; some kernels refuse it */
    if (n >= HUGE_PAGE) madvise(p, (size_t) n / HUGE_PAGE * HUGE_PAGE, MADV_HUGEPAGE);
    return p;
}

/* ---- which records continue which ---- */

static bool is_of(const CacheEntry *e, const char *identity, size_t n)
{
    return e->rec.n_identity == n && memcmp(e->rec.identity, identity, n) == 0;
}

/* Whether the record's text is a prefix of t [n]. Compares from the end, where texts differ most likely. */
static bool begins_with(const int32_t *t, size_t n, const Record *r)
{
    size_t m = (size_t) r->n_tokens;
    return m <= n && t[m - 1] == r->tokens[m - 1] && memcmp(t, r->tokens, sizeof *t * m) == 0;
}

static bool goes_on_from(const CacheEntry *e, const CacheEntry *from)
{
    return e != from && e->rec.kind == from->rec.kind && e->rec.n_tokens > from->rec.n_tokens &&
           is_of(e, from->rec.identity, from->rec.n_identity) &&
           begins_with(e->rec.tokens, (size_t) e->rec.n_tokens, &from->rec);
}

static void set_parent(CacheEntry *e, CacheEntry *parent)
{
    if (e->parent) e->parent->continued--;
    if (parent) parent->continued++;
    e->parent = parent;
}

static void link_entry(Cache *c, CacheEntry *e)
{
    for (size_t i = 0; i < c->n; i++) {
        CacheEntry *o = c->entry[i];
        if (o->filling) continue;
        if (goes_on_from(e, o) && (!e->parent || o->rec.n_tokens > e->parent->rec.n_tokens)) set_parent(e, o);
        if (goes_on_from(o, e) && (!o->parent || e->rec.n_tokens > o->parent->rec.n_tokens)) set_parent(o, e);
    }
}

static void unlink_entry(Cache *c, CacheEntry *e)
{
    for (size_t i = 0; i < c->n; i++)
        if (c->entry[i]->parent == e) set_parent(c->entry[i], e->parent);
    set_parent(e, NULL);
}

static bool superseded(const CacheEntry *e) { return e->continued == 1 && e->rec.kind > CACHE_FIXED; }

double cache_worth(CacheKind kind, int32_t tokens, size_t bytes, int64_t hits, int64_t age, int32_t continued)
{
    enum { HALVES_MAX = 900 };                     /* beyond this all are equally old; the worth never becomes 0 */
    static const double weight[] = { [CACHE_SHARED] = 4, [CACHE_FIXED] = 4, [CACHE_HISTORY] = 2, [CACHE_END] = 1,
                                     [CACHE_INTERVAL] = 1 };
    double halves = age > 0 ? (double) age / HALF_LIFE : 0;
    double worth = weight[kind] * (double) (hits + 1) * exp2(-(halves < HALVES_MAX ? halves : HALVES_MAX)) * tokens /
                   ((double) bytes + 1);
    return continued > 1 ? 4 * worth : continued == 1 && kind > CACHE_FIXED ? worth / 1024 : worth;
}

static double worth_of(const CacheEntry *e, int64_t at)
{
    return cache_worth(e->rec.kind, e->rec.n_tokens, (size_t) e->rec.n_image, e->hits, at - e->used, e->continued);
}

/* Worth in memory: less if the record can be read from disk again. */
static double worth_in_memory(const CacheEntry *e, int64_t at) { return worth_of(e, at) * (e->file_bytes ? 0.25 : 1); }

/* ---- entries ---- */

static bool add_entry(Cache *c, CacheEntry *e)
{
    if (!grow_to(&c->entry, &c->room, c->n + 1, 64, sizeof *c->entry)) return false;
    c->entry[c->n++] = e;
    return true;
}

static void free_entry(Cache *c, CacheEntry *e)
{
    discard(c, e->image);
    free(e->front);
    free(e);
}

static void drop_image(Cache *c, CacheEntry *e)
{
    if (e->image && !e->transient) c->ram_bytes -= (size_t) e->rec.n_image;
    discard(c, e->image);
    e->image = NULL;
    e->transient = e->waiting = e->fetched = false;
}

static void drop_file(Cache *c, CacheEntry *e)
{
    c->disk_bytes -= e->file_bytes;
    e->file_bytes = 0;
}

/* Frees a record that is doomed, or neither in memory nor on disk, unless it is pinned or being filled. */
static void forget_if_gone(Cache *c, CacheEntry *e)
{
    if (e->pins > 0 || e->filling || (!e->doomed && (e->image || e->file_bytes))) return;
    unlink_entry(c, e);
    drop_image(c, e);
    drop_file(c, e);
    for (size_t i = 0; i < c->n; i++)
        if (c->entry[i] == e) c->entry[i] = c->entry[--c->n];
    free_entry(c, e);
}

static void unpin(Cache *c, CacheEntry *e)
{
    e->pins--;
    if (e->pins == 0 && e->transient) drop_image(c, e);
    forget_if_gone(c, e);
}

static bool can_go(const CacheEntry *e) { return e->image && !e->transient && !e->filling && e->pins == 0; }

/* Evicts until `need` more bytes of images fit; evicts nothing if that would not be enough. */
static bool make_room(Cache *c, uint64_t need)
{
    size_t free_able = 0;
    int64_t at = now(c);
    for (size_t i = 0; i < c->n; i++) free_able += can_go(c->entry[i]) ? (size_t) c->entry[i]->rec.n_image : 0;
    if (need > c->o.ram_bytes || c->ram_bytes - free_able > c->o.ram_bytes - need) return false;
    while (c->ram_bytes > c->o.ram_bytes - need) {
        CacheEntry *least = NULL;
        for (size_t i = 0; i < c->n; i++)
            if (can_go(c->entry[i]) && (!least || worth_in_memory(c->entry[i], at) < worth_in_memory(least, at)))
                least = c->entry[i];
        drop_image(c, least);
        c->count.evicted_ram++;
        forget_if_gone(c, least);
    }
    return true;
}

static CacheEntry *same_text(const Cache *c, const char *identity, size_t n_identity, const int32_t *t, size_t n)
{
    for (size_t i = 0; i < c->n; i++) {
        CacheEntry *e = c->entry[i];
        if ((size_t) e->rec.n_tokens == n && !e->doomed && is_of(e, identity, n_identity) && begins_with(t, n, &e->rec))
            return e;
    }
    return NULL;
}

/* ---- the folder ---- */

static bool is_ignored(const Cache *c, RecordName name)
{
    for (size_t i = 0; i < c->n_ignored; i++)
        if (c->ignored[i].high == name.high && c->ignored[i].low == name.low) return true;
    return false;
}

static CacheEntry *named(const Cache *c, RecordName name)
{
    for (size_t i = 0; i < c->n; i++)
        if (c->entry[i]->name.high == name.high && c->entry[i]->name.low == name.low && !c->entry[i]->doomed)
            return c->entry[i];
    return NULL;
}

/* Registers a file that this process did not write, or wrote in an earlier run. Called without the lock; returns with
 * it held. */
static void meet_file(Cache *c, const CacheFile *f)
{
    Error err = { 0 };
    CacheEntry *e = calloc(1, sizeof *e), *there;
    Status st = e ? cache_disk_front(&c->disk, f->name, &e->front, &e->rec, &err) : ST_MEMORY;
    if (st == ST_OK) {
        e->name = record_name(e->rec.identity, e->rec.n_identity, e->rec.tokens, e->rec.n_tokens);
        if (e->name.high != f->name.high || e->name.low != f->name.low)
            st = fail(&err, ST_FORMAT, "%016llx%016llx.ratoon: it holds a text of another name",
                      (unsigned long long) f->name.high, (unsigned long long) f->name.low);
    }
    bool left = st == ST_UNSUPPORTED || (st == ST_FORMAT && cache_disk_remove(&c->disk, f->name, NULL) != ST_OK);
    if (left || st == ST_FORMAT) say(c, 1, "cache: %s %s/%s", left ? "left alone" : "removed", c->disk.path, err.text);
    enter(c);
    c->count.damaged += st == ST_FORMAT;
    c->count.foreign += st == ST_UNSUPPORTED;
    if (left) {
        RecordName *more = realloc(c->ignored, sizeof *more * (c->n_ignored + 1));
        if (more) c->ignored = more, c->ignored[c->n_ignored++] = f->name;
    }
    if (st == ST_OK &&
        (there = same_text(c, e->rec.identity, e->rec.n_identity, e->rec.tokens, (size_t) e->rec.n_tokens))) {
        if (!there->file_bytes && !there->writing && !there->filling) {
            there->file_bytes = f->bytes;
            there->waiting = false;
            c->disk_bytes += f->bytes;
        }
    } else if (st == ST_OK) {
        e->used = f->used < now(c) ? f->used : now(c);                 /* a file's time may lie in the future */
        e->file_bytes = f->bytes;
        if (add_entry(c, e)) {
            c->disk_bytes += f->bytes;
            link_entry(c, e);
            return;
        }
    }
    if (e) free(e->front);
    free(e);
}

/* Registers the current files of the folder. Lock held on entry and exit, released in between. */
static void meet_folder(Cache *c)
{
    Error err = { 0 };
    CacheFile *file;
    size_t n;
    leave(c);
    Status st = cache_disk_list(&c->disk, &file, &n, &err);
    if (st != ST_OK) say(c, 1, "cache: %s", err.text);
    enter(c);
    for (size_t i = c->n; i-- > 0 && st == ST_OK; ) {
        CacheEntry *e = c->entry[i];
        bool there = !e->file_bytes || e->reading;
        for (size_t j = 0; j < n && !there; j++)
            there = file[j].name.high == e->name.high && file[j].name.low == e->name.low;
        if (there) continue;
        drop_file(c, e);                           /* another process removed it */
        forget_if_gone(c, e);
    }
    for (size_t j = 0; j < n; j++) {
        CacheEntry *e = named(c, file[j].name);
        if ((e && (e->file_bytes || e->filling || e->writing)) || is_ignored(c, file[j].name)) continue;
        leave(c);
        meet_file(c, &file[j]);
    }
    free(file);
}

/* Lock held on entry and exit, released in between, since the log callback may be slow. */
static void write_no_more(Cache *c, const char *why)
{
    bool first = c->writes;
    c->writes = false;
    leave(c);
    if (first) say(c, 1, "cache: nothing is written any more: %s", why);
    enter(c);
}

/* Removes the least valuable files until `need` more bytes fit. Lock held on entry and exit, released in between. */
static bool make_disk_room(Cache *c, uint64_t need)
{
    while (need <= c->o.disk_bytes && c->disk_bytes > c->o.disk_bytes - need) {
        CacheEntry *least = NULL;
        int64_t at = now(c);
        for (size_t i = 0; i < c->n; i++) {
            CacheEntry *e = c->entry[i];
            if (e->file_bytes && !e->reading && (!least || worth_of(e, at) < worth_of(least, at))) least = e;
        }
        if (!least) return false;
        Error err = { 0 };
        least->pins++;
        leave(c);
        Status st = cache_disk_remove(&c->disk, least->name, &err);
        enter(c);
        if (st == ST_OK) {
            drop_file(c, least);
            c->count.evicted_disk++;
        }
        unpin(c, least);
        if (st == ST_OK) continue;
        write_no_more(c, err.text);                /* a read-only folder is still used for reading */
        return false;
    }
    return need <= c->o.disk_bytes;
}

static void write_entry(Cache *c, CacheEntry *e)
{
    Error err = { 0 };
    e->waiting = false;
    e->writing = true;
    e->pins++;
    uint64_t bytes = e->rec.n_front + e->rec.n_image;
    meet_folder(c);
    Status st = ST_END;                            /* no room, or another process has written it */
    if (!e->file_bytes && make_disk_room(c, bytes)) {
        Record r = e->rec;
        leave(c);
        record_seal(&r, e->front, e->image);
        st = cache_disk_write(&c->disk, e->name, &r, e->front, e->image, &c->give_up, &err);
        enter(c);
    }
    e->writing = false;
    if (st == ST_OK) {
        e->file_bytes = bytes;
        c->disk_bytes += bytes;
        c->count.written++;
        c->count.written_bytes += (int64_t) bytes;
    } else if (st == ST_END) {
        c->count.no_room++;
    } else if (st == ST_UNSUPPORTED) {             /* only its own name is taken; others can be written */
        c->count.write_failures++;
        leave(c);
        say(c, 1, "cache: not written: %s/%s", c->disk.path, err.text);
        enter(c);
    } else if (st != ST_CANCEL) {
        c->count.write_failures++;
        write_no_more(c, err.text);
    }
    unpin(c, e);
}

/* Of the records that are due, the one that has waited longest; a superseded record is not worth writing. */
static CacheEntry *next_to_write(Cache *c, bool *any)
{
    CacheEntry *first = NULL;
    int64_t at = now(c);
    *any = false;
    for (size_t i = 0; i < c->n; i++) {
        CacheEntry *e = c->entry[i];
        if (!e->waiting) continue;
        if (!c->writes) e->waiting = false;
        if (!c->writes || (e->due > at && !c->closing && !c->flushing)) {
            *any |= c->writes;
            continue;
        }
        if (superseded(e)) e->waiting = false;
        else if (!first || e->due < first->due) first = e;
    }
    return first;
}

static void *write_all(void *ud)
{
    Cache *c = ud;
    enter(c);
    for (;;) {
        bool any = false;
        CacheEntry *e = atomic_load(&c->give_up) ? NULL : next_to_write(c, &any);
        if (e) {
            write_entry(c, e);
            continue;
        }
        c->idle = true;
        pthread_cond_broadcast(&c->changed);
        if (c->closing) break;
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_sec++;
        /* wait until something is due by the options' clock */
        if (any) pthread_cond_timedwait(&c->changed, &c->lock, &until);
        else pthread_cond_wait(&c->changed, &c->lock);
        c->idle = false;
    }
    leave(c);
    return NULL;
}

/* ---- open, close ---- */

Status cache_open(Cache **out, const CacheOptions *o, Error *err)
{
    *out = NULL;
    Cache *c = calloc(1, sizeof *c);
    if (!c) return fail(err, ST_MEMORY, "cache: out of memory");
    c->o = *o;
    c->o.dir = NULL;
    c->disk.fd = -1;
    if (c->o.min_tokens <= 0) c->o.min_tokens = MIN_TOKENS;
    if (c->o.write_delay == 0) c->o.write_delay = WRITE_DELAY;
    pthread_mutex_init(&c->lock, NULL);
    pthread_condattr_t by;
    pthread_condattr_init(&by);
    pthread_condattr_setclock(&by, CLOCK_MONOTONIC);
    pthread_cond_init(&c->changed, &by);
    pthread_condattr_destroy(&by);
    Status st = o->dir ? cache_disk_open(&c->disk, o->dir, err) : ST_OK;
    if (st == ST_OK && o->dir) {
        c->has_disk = c->writes = true;
        enter(c);
        meet_folder(c);
        make_disk_room(c, 0);
        leave(c);
        c->has_writer = pthread_create(&c->writer, NULL, write_all, c) == 0;
        if (!c->has_writer) st = fail(err, ST_MEMORY, "cache: no thread to write %s", o->dir);
    }
    if (st != ST_OK) {
        cache_close(c, 0);
        return st;
    }
    *out = c;
    return ST_OK;
}

/* Waits until the writer has nothing left, or until the time is over. */
static void wait_idle(Cache *c, const struct timespec *until)
{
    c->idle = false;
    pthread_cond_broadcast(&c->changed);
    while (!c->idle)
        if (until ? pthread_cond_timedwait(&c->changed, &c->lock, until) != 0
                  : pthread_cond_wait(&c->changed, &c->lock) != 0)
            return;
}

void cache_close(Cache *c, int32_t drain_ms)
{
    if (!c) return;
    if (c->has_writer) {
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_sec += drain_ms / 1000;
        until.tv_nsec += drain_ms % 1000 * 1000000L;
        if (until.tv_nsec >= 1000000000L) until.tv_sec++, until.tv_nsec -= 1000000000L;
        enter(c);
        if (drain_ms <= 0) atomic_store(&c->give_up, true);
        c->closing = true;
        wait_idle(c, &until);
        leave(c);
        atomic_store(&c->give_up, true);
        pthread_join(c->writer, NULL);
    }
    enter(c);
    for (size_t i = 0; i < c->n; i++) free_entry(c, c->entry[i]);
    leave(c);
    cache_disk_close(&c->disk);
    free(c->entry);
    free(c->ignored);
    pthread_mutex_destroy(&c->lock);
    pthread_cond_destroy(&c->changed);
    free(c);
}

void cache_flush(Cache *c)
{
    if (!c->has_writer) return;
    enter(c);
    c->flushing = true;
    wait_idle(c, NULL);
    c->flushing = false;
    leave(c);
}

/* ---- saving ---- */

CacheEntry *cache_begin(Cache *c, const char *identity, const int32_t *t, size_t n, size_t n_image, CacheKind kind,
                        const void *note, size_t n_note)
{
    if (n < (size_t) c->o.min_tokens || n_image == 0) return NULL;
    enter(c);
    CacheEntry *e = same_text(c, identity, strlen(identity), t, n);
    if (e && !e->filling && kind < e->rec.kind) {
        unlink_entry(c, e);
        e->rec.kind = kind;
        link_entry(c, e);
    }
    if (e) e->used = now(c);
    bool room = !e && make_room(c, n_image);
    if (!e && !room) c->count.no_room++;
    if (room) c->ram_bytes += n_image;
    leave(c);
    if (!room) return NULL;
    e = calloc(1, sizeof *e);
    if (e) e->front = record_new(&e->rec, kind, identity, t, n, note, n_note, n_image);
    if (e && e->front) e->image = new_image(n_image);
    enter(c);
    /* Another thread may have started the same record since. */
    if (e && e->image && !same_text(c, identity, e->rec.n_identity, t, n)) {
        e->name = record_name(identity, e->rec.n_identity, t, (int32_t) n);
        e->filling = true;
        if (add_entry(c, e)) {
            leave(c);
            return e;
        }
    }
    c->ram_bytes -= n_image;
    if (e) free_entry(c, e);
    leave(c);
    return NULL;
}

uint8_t *cache_image(CacheEntry *e) { return e->image; }

void cache_commit(Cache *c, CacheEntry *e)
{
    enter(c);
    e->filling = false;
    e->used = now(c);
    e->due = e->used + (e->rec.kind == CACHE_SHARED || c->o.write_delay < 0 ? 0 : c->o.write_delay);
    e->waiting = c->has_writer && c->writes;
    link_entry(c, e);
    c->count.saved++;
    c->count.saved_tokens += e->rec.n_tokens;
    pthread_cond_broadcast(&c->changed);
    leave(c);
}

void cache_abandon(Cache *c, CacheEntry *e)
{
    enter(c);
    e->filling = false;
    e->doomed = true;
    forget_if_gone(c, e);
    leave(c);
}

/* ---- finding ---- */

static CacheEntry *longest(const Cache *c, const char *identity, const int32_t *t, size_t n, int32_t above, bool disk)
{
    CacheEntry *best = NULL;
    size_t n_identity = strlen(identity);
    for (size_t i = 0; i < c->n; i++) {
        CacheEntry *e = c->entry[i];
        if (e->filling || e->doomed || e->rec.n_tokens <= above || e->rec.n_tokens < c->o.min_tokens) continue;
        if (best && e->rec.n_tokens <= best->rec.n_tokens) continue;
        if (!e->image && !(disk && (e->file_bytes || e->reading))) continue;
        if (is_of(e, identity, n_identity) && begins_with(t, n, &e->rec)) best = e;
    }
    return best;
}

/* Reads an image into memory. Lock held on entry and exit, released in between; the caller has pinned e. ST_FULL: does
 * not fit the budget and `beyond` is false. */
static Status read_entry(Cache *c, CacheEntry *e, bool beyond)
{
    Error err = { 0 };
    bool room = make_room(c, e->rec.n_image);
    if (!room && !beyond) return ST_FULL;
    e->reading = true;
    if (room) c->ram_bytes += (size_t) e->rec.n_image;
    leave(c);
    uint8_t *image = new_image(e->rec.n_image);
    Status st = image ? cache_disk_image(&c->disk, e->name, &e->rec, image, &err) : ST_MEMORY;
    if (st == ST_OK) cache_disk_touch(&c->disk, e->name);
    if (st == ST_FORMAT) {
        bool gone = cache_disk_remove(&c->disk, e->name, NULL) == ST_OK;
        say(c, 1, "cache: %s %s/%s", gone ? "removed" : "left alone", c->disk.path, err.text);
    }
    enter(c);
    e->reading = false;
    pthread_cond_broadcast(&c->changed);
    if (st == ST_OK) {
        e->image = image;
        e->transient = !room;
        return ST_OK;
    }
    discard(c, image);
    if (room) c->ram_bytes -= (size_t) e->rec.n_image;
    if (st != ST_MEMORY) drop_file(c, e);
    c->count.damaged += st == ST_FORMAT;
    return st;
}

bool cache_find(Cache *c, CacheHit *hit, const char *identity, const int32_t *t, size_t n, int32_t above, bool disk)
{
    CacheEntry *e;
    bool read = false, touch = false;
    RecordName name;
    *hit = (CacheHit) { 0 };
    enter(c);
    c->count.finds++;
    while ((e = longest(c, identity, t, n, above, disk && c->has_disk))) {
        e->pins++;
        if (!e->image && !e->reading) {
            Status st = read_entry(c, e, true);
            read = st == ST_OK;
            if (st == ST_MEMORY) disk = false;
        } else {
            while (e->reading) pthread_cond_wait(&c->changed, &c->lock);
        }
        if (e->image && !e->doomed) break;
        unpin(c, e);
    }
    if (e) {
        touch = e->file_bytes > 0 && !read;
        read |= e->fetched;
        e->fetched = false;
        name = e->name;
        e->hits++;
        e->used = now(c);
        c->count.hits_disk += read;
        c->count.hits_ram += !read;
        c->count.hit_tokens += e->rec.n_tokens;
        *hit = (CacheHit) { e->image, (size_t) e->rec.n_image, e->rec.note, e->rec.n_note, e->rec.n_tokens,
                            read ? CACHE_DISK : CACHE_RAM, e };
    }
    leave(c);
    if (touch) cache_disk_touch(&c->disk, name);
    return e != NULL;
}

int32_t cache_longest(Cache *c, const char *identity, const int32_t *t, size_t n)
{
    enter(c);
    const CacheEntry *e = longest(c, identity, t, n, 0, c->has_disk);
    int32_t tokens = e ? e->rec.n_tokens : 0;
    leave(c);
    return tokens;
}

void cache_fetch(Cache *c, const char *identity, const int32_t *t, size_t n)
{
    enter(c);
    for (CacheEntry *e; (e = longest(c, identity, t, n, 0, c->has_disk)) && !e->image; ) {
        Status st = ST_OK;
        e->pins++;
        if (e->reading) {
            while (e->reading) pthread_cond_wait(&c->changed, &c->lock);
        } else {
            st = read_entry(c, e, false);
            e->fetched = st == ST_OK;
        }
        unpin(c, e);
        if (st == ST_FULL || st == ST_MEMORY) break;
    }
    leave(c);
}

void cache_release(Cache *c, CacheHit *hit)
{
    enter(c);
    unpin(c, hit->entry);
    leave(c);
    *hit = (CacheHit) { 0 };
}

void cache_reject(Cache *c, CacheHit *hit, const char *why)
{
    CacheEntry *e = hit->entry;
    say(c, 1, "cache: a record of %d tokens is dropped: %s", hit->tokens, why);
    if (c->has_disk) cache_disk_remove(&c->disk, e->name, NULL);
    enter(c);
    c->count.damaged++;
    drop_file(c, e);
    e->doomed = true;
    e->waiting = false;
    unpin(c, e);
    leave(c);
    *hit = (CacheHit) { 0 };
}

int32_t cache_common(Cache *c, const char *identity, const int32_t *t, size_t n)
{
    int32_t most = 0;
    enter(c);
    for (size_t i = 0; i < c->n; i++) {
        const CacheEntry *e = c->entry[i];
        int32_t same = 0, end = (size_t) e->rec.n_tokens < n ? e->rec.n_tokens : (int32_t) n;
        if (e->filling || end <= most || !is_of(e, identity, strlen(identity))) continue;
        while (same < end && e->rec.tokens[same] == t[same]) same++;
        if (same > most) most = same;
    }
    leave(c);
    return most;
}

void cache_stats(Cache *c, CacheStats *out)
{
    enter(c);
    *out = c->count;
    out->ram_bytes = c->ram_bytes;
    out->ram_limit = c->o.ram_bytes;
    out->disk_bytes = c->disk_bytes;
    out->disk_limit = c->has_disk ? c->o.disk_bytes : 0;
    for (size_t i = 0; i < c->n; i++) {
        out->ram_records += c->entry[i]->image && !c->entry[i]->filling;
        out->disk_records += c->entry[i]->file_bytes > 0;
        out->waiting += c->entry[i]->waiting || c->entry[i]->writing;
    }
    leave(c);
}
