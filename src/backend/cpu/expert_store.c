#include "backend/cpu/expert_store.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cpu/matmul.h"
#include "backend/expert_slots.h"
#include "base/clock.h"
#include "base/disk.h"

enum { FILES_MAX = 64 };

/* A stack of a layer; raw: bytes of a matrix in the file. */
typedef struct { StoredStack there; const Tensor *w; Source of; size_t raw; const DiskFile *file; } Part;
/* raw: bytes of an expert in the file; 0: a layer without experts. */
typedef struct { Part part[STACKS]; size_t raw; } StoreLayer;

/* How memory is divided: buffers first, then the slots. */
typedef struct {
    StoreLayer *layer;                             /* [layers] */
    ExpertSlots slots;
    int32_t     loads;
    size_t      buffer, bytes;                     /* buffer: what reading an expert takes at most */
} Layout;

struct ExpertStore {
    Layout          l;
    bool            in_place;
    uint8_t        *memory;
    StoreIo         io;
    DiskFile       *file[FILES_MAX]; int32_t n_files;
    pthread_mutex_t lock;
    pthread_cond_t  changed;
    /* under the lock */
    ExpertCache    *cache;
    bool           *ready;                         /* [slots] */
    uint64_t        changes, *counts;              /* counts [layers, experts] */
    int32_t         free_buffer[EXPERT_LOADS], n_free;
    StoreStats      stats;
};

/* An expert that is being read or has arrived. parts: reads that have not. */
typedef struct {
    int32_t        layer, expert, slot, buffer, tag, parts;
    const uint8_t *raw[STACKS];
    Error          error;
} ExpertLoad;

struct ExpertReader {
    ExpertStore *s;
    Disk        *disk;                             /* NULL: from the mapped file */
    ExpertLoad   load[EXPERT_LOADS];
    int32_t      free_load[EXPERT_LOADS], n_free, arrived[EXPERT_LOADS], n_arrived;
    Routes       missed;
};

static size_t aligned(size_t n) { return (n + DISK_ALIGN - 1) / DISK_ALIGN * DISK_ALIGN; }

/* ---- how memory is divided ---- */

static Status add_layer(Layout *a, const Stacked *s, Error *err)
{
    StoreLayer *l = &a->layer[s->layer];
    const SlotLayer *in_slot = &a->slots.layer[s->layer];
    size_t buffer = 0;
    for (int32_t p = 0; p < STACKS; p++) {
        const Tensor *w = s->w[p];
        const Source *of = &s->source[p];
        const size_t raw = type_row_bytes(w->type, w->cols) * (size_t) w->rows;
        if (!of->map || !of->file || in_slot->packed[p] == 0)
            return fail(err, ST_UNSUPPORTED, "expert_ram: the experts of layer %d cannot be read from their file",
                        s->layer);
        l->part[p] = (Part) { { s->layer, in_slot->at[p] }, w, *of, raw, NULL };
        l->raw += raw;
        buffer += aligned(raw) + 2 * DISK_ALIGN;
    }
    if (buffer > a->buffer) a->buffer = buffer;
    return ST_OK;
}

static void layout_close(Layout *a)
{
    slots_close(&a->slots);
    free(a->layer);
    a->layer = NULL;
}

/* Buffers take an eighth of the memory at most. */
static Status layout_divide(Layout *a, const StoreOptions *o, Error *err)
{
    const bool buffers = o->io != STORE_MMAP;
    const uint64_t least = DISK_ALIGN + (buffers ? a->buffer : 0) + slots_least(&a->slots);
    a->bytes = 0;
    if (slots_for_all(&a->slots) <= o->ram) return ST_OK;
    if (o->ram < least)
        return fail(err, ST_ARG, "expert_ram: %llu bytes, expected at least %llu: the model's experts take %zu each",
                    (unsigned long long) o->ram, (unsigned long long) least, a->slots.kind[0].bytes);
    const uint64_t room = o->ram - DISK_ALIGN - slots_least(&a->slots);
    const uint64_t loads = (room < o->ram / 8 ? room : o->ram / 8) / a->buffer;
    a->loads = !buffers ? 0 : loads < 1 ? 1 : loads < EXPERT_LOADS ? (int32_t) loads : EXPERT_LOADS;
    const size_t buffer_bytes = (size_t) a->loads * a->buffer;
    TRY(slots_divide(&a->slots, o->ram - DISK_ALIGN - buffer_bytes, o, err));
    a->bytes = buffer_bytes + a->slots.bytes + DISK_ALIGN;       /* memory need not begin where a read can */
    return ST_OK;
}

static Status layout_open(Layout *a, const Stacked *s, int32_t n, bool in_place, const StoreOptions *o, Error *err)
{
    *a = (Layout) { 0 };
    TRY(slots_open(&a->slots, "expert_ram", s, n, in_place, o, err));
    a->layer = calloc((size_t) o->layers, sizeof *a->layer);
    Status st = a->layer ? ST_OK : fail(err, ST_MEMORY, "expert_ram: out of memory");
    for (int32_t i = 0; st == ST_OK && i < n; i++) st = add_layer(a, &s[i], err);
    if (st == ST_OK) st = layout_divide(a, o, err);
    if (st != ST_OK) layout_close(a);
    return st;
}

/* Every chunk of a prompt reads nearly all experts that memory does not hold. A chunk has so many rows that a row's
 * share of that is COLD_PER_ROW bytes, which take about as long to read as the row takes to compute. */
static int32_t chunk_of(const Layout *a, int32_t usual, int32_t most)
{
    enum { COLD_PER_ROW = 4 << 20 };
    uint64_t cold = 0;
    int32_t rows = usual;
    for (int32_t k = 0; k < a->slots.kinds; k++)
        cold += (uint64_t) (a->slots.kind[k].experts - a->slots.kind[k].slots) * a->slots.kind[k].bytes;
    while (rows < most && cold / (uint64_t) rows > COLD_PER_ROW) rows *= 2;
    return rows < most ? rows : most;
}

Status expert_store_needs(StoreNeeds *out, const Stacked *s, int32_t n, bool in_place, int32_t usual, int32_t most,
                          const StoreOptions *o, Error *err)
{
    Layout a;
    TRY(layout_open(&a, s, n, in_place, o, err));
    *out = (StoreNeeds) { .bytes = a.bytes, .chunk = a.bytes ? chunk_of(&a, usual, most) : usual };
    layout_close(&a);
    return ST_OK;
}

/* ---- opening ---- */

/* A file may have been replaced since it was mapped: the dense weights would be one file's, the experts another's. */
static Status same_file(const DiskFile *f, const Source *of, Error *err)
{
    const size_t n = of->stride < DISK_ALIGN ? (size_t) of->stride : DISK_ALIGN;
    return disk_file_holds(f, of->offset, of->map, n)
         ? ST_OK : fail(err, ST_IO, "%s: was replaced or changed while it was loaded", of->file);
}

static Status open_files(ExpertStore *s, Error *err)
{
    const char *path[FILES_MAX];
    for (int32_t il = 0; il < s->l.slots.layers; il++)
        for (int32_t p = 0; p < STACKS && s->l.layer[il].raw > 0; p++) {
            Part *part = &s->l.layer[il].part[p];
            int32_t i = 0;
            while (i < s->n_files && strcmp(path[i], part->of.file) != 0) i++;
            if (i == FILES_MAX)
                return fail(err, ST_UNSUPPORTED, "%s: experts lie in more than %d files", part->of.file, FILES_MAX);
            if (i == s->n_files) {
                TRY(disk_file_open(&s->file[i], part->of.file, err));
                path[s->n_files++] = part->of.file;
            }
            TRY(same_file(s->file[i], &part->of, err));
            part->file = s->file[i];
        }
    return ST_OK;
}

/* Whether any file goes past the page cache. */
static bool is_direct(const ExpertStore *s)
{
    for (int32_t i = 0; i < s->n_files; i++)
        if (!disk_file_direct(s->file[i])) return false;
    return true;
}

/* Says how files are read, and with it whether the way that was asked for works here. */
static Status try_io(ExpertStore *s, Error *err)
{
    ExpertReader *r;
    TRY(expert_reader_open(&r, s, err));
    snprintf(s->stats.io, sizeof s->stats.io, "%s%s", r->disk ? disk_way(r->disk) : "mmap",
             r->disk && is_direct(s) ? ", direct" : "");
    expert_reader_close(r);
    return ST_OK;
}

Status expert_store_open(ExpertStore **out, const Stacked *stack, int32_t n, bool in_place, void *memory,
                         const StoreOptions *o, Error *err)
{
    ExpertStore *s = calloc(1, sizeof *s);
    *out = NULL;
    if (!s) return fail(err, ST_MEMORY, "expert_ram: out of memory");
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->changed, NULL);
    s->in_place = in_place;
    s->memory = (uint8_t *) memory + (DISK_ALIGN - (uintptr_t) memory % DISK_ALIGN) % DISK_ALIGN;
    s->io = o->io;
    Status st = layout_open(&s->l, stack, n, in_place, o, err);
    if (st == ST_OK && s->io != STORE_MMAP) st = open_files(s, err);
    if (st == ST_OK) st = slots_cache(&s->cache, &s->stats, &s->l.slots, o, err);
    if (st == ST_OK) {
        s->ready = calloc((size_t) s->stats.slots, sizeof *s->ready);
        s->counts = calloc((size_t) s->l.slots.layers * (size_t) s->l.slots.experts, sizeof *s->counts);
        if (!s->ready || !s->counts) st = fail(err, ST_MEMORY, "expert_ram: out of memory");
    }
    for (s->n_free = 0; s->n_free < s->l.loads; s->n_free++) s->free_buffer[s->n_free] = s->n_free;
    s->stats.bytes = (int64_t) s->l.bytes;
    if (st == ST_OK) st = try_io(s, err);
    if (st != ST_OK) {
        expert_store_close(s);
        return st;
    }
    for (int32_t i = 0; i < n; i++)
        for (int32_t p = 0; p < STACKS; p++) stack[i].w[p]->data = &s->l.layer[stack[i].layer].part[p].there;
    *out = s;
    return ST_OK;
}

void expert_store_close(ExpertStore *s)
{
    if (!s) return;
    for (int32_t i = 0; i < s->n_files; i++) disk_file_close(s->file[i]);
    expert_cache_close(s->cache);
    layout_close(&s->l);
    free(s->ready);
    free(s->counts);
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

/* ---- under the lock ---- */

static uint8_t *slot_memory(const ExpertStore *s, int32_t layer, int32_t slot)
{
    return s->memory + (size_t) s->l.loads * s->l.buffer + slots_place(&s->l.slots, layer, slot);
}

static void changed(ExpertStore *s)
{
    s->changes++;
    pthread_cond_broadcast(&s->changed);
}

/* Counts and holds an expert that is in memory; returns where it is. */
static const uint8_t *hold(ExpertStore *s, int32_t layer, int32_t slot)
{
    *(expert_cache_pinned(s->cache, slot) ? &s->stats.pinned_hits : &s->stats.ring_hits) += 1;
    expert_cache_use(s->cache, slot);
    return slot_memory(s, layer, slot);
}

/* ---- what a pass chooses ---- */

void expert_reader_choose(ExpertReader *r, int32_t layer, const int32_t *expert, const int32_t *times, int32_t n,
                          int32_t n_rows, const uint8_t **at)
{
    ExpertStore *s = r->s;
    pthread_mutex_lock(&s->lock);
    expert_cache_count(s->cache, layer, expert, times, n, n_rows);
    for (int32_t i = 0; i < n; i++) {
        const int32_t slot = expert_cache_find(s->cache, layer, expert[i]);
        s->counts[(size_t) layer * (size_t) s->l.slots.experts + (size_t) expert[i]] += (uint64_t) times[i];
        s->stats.chosen += times[i];
        at[i] = slot >= 0 && s->ready[slot] ? hold(s, layer, slot) : NULL;
    }
    pthread_mutex_unlock(&s->lock);
}

const uint8_t *expert_reader_keep(ExpertReader *r, int32_t layer, int32_t expert)
{
    ExpertStore *s = r->s;
    pthread_mutex_lock(&s->lock);
    const int32_t slot = expert_cache_find(s->cache, layer, expert);
    const bool there = slot >= 0 && s->ready[slot];
    if (there) expert_cache_use(s->cache, slot);
    pthread_mutex_unlock(&s->lock);
    return there ? slot_memory(s, layer, slot) : NULL;
}

void expert_reader_release(ExpertReader *r, int32_t layer, int32_t expert, bool wide)
{
    ExpertStore *s = r->s;
    pthread_mutex_lock(&s->lock);
    expert_cache_done(s->cache, expert_cache_find(s->cache, layer, expert), wide);
    changed(s);
    pthread_mutex_unlock(&s->lock);
}

uint64_t expert_reader_now(ExpertReader *r)
{
    pthread_mutex_lock(&r->s->lock);
    const uint64_t now = r->s->changes;
    pthread_mutex_unlock(&r->s->lock);
    return now;
}

void expert_reader_wait(ExpertReader *r, uint64_t since)
{
    pthread_mutex_lock(&r->s->lock);
    while (r->s->changes == since) pthread_cond_wait(&r->s->changed, &r->s->lock);
    pthread_mutex_unlock(&r->s->lock);
}

/* ---- reading ---- */

/* Begins the reads of a load. Parts that lie one behind the other in a file are read as one. The disk takes all: it is
 * as deep as all loads have parts. */
static void read_parts(ExpertReader *r, ExpertLoad *l, int32_t index)
{
    const StoreLayer *layer = &r->s->l.layer[l->layer];
    uint8_t *to = r->s->memory + (size_t) l->buffer * r->s->l.buffer;
    for (int32_t p = 0; p < STACKS; ) {
        const Part *first = &layer->part[p];
        const uint64_t begin = first->of.offset + first->of.stride * (uint64_t) l->expert, from = begin / DISK_ALIGN *
                       DISK_ALIGN;
        uint64_t end = begin;
        for (; p < STACKS; p++) {
            const Part *part = &layer->part[p];
            if (part->file != first->file || part->of.offset + part->of.stride * (uint64_t) l->expert != end) break;
            l->raw[p] = to + (end - from);
            end += part->raw;
        }
        const size_t n = aligned((size_t) (end - from));
        l->parts++;
        if (!disk_read(r->disk, first->file, from, n, (size_t) (end - from), to, (uint64_t) index)) {
            l->parts--;
            fail(&l->error, ST_BACKEND, "experts: more than %d reads at once", EXPERT_LOADS * STACKS);
        }
        to += n;
    }
}

static void map_parts(ExpertReader *r, ExpertLoad *l)
{
    const StoreLayer *layer = &r->s->l.layer[l->layer];
    for (int32_t p = 0; p < STACKS; p++)
        l->raw[p] = layer->part[p].of.map + layer->part[p].of.stride * (uint64_t) l->expert;
}

/* Takes a slot and a buffer for the load. */
static ExpertBegin reserve(ExpertReader *r, ExpertLoad *l, const uint8_t **at)
{
    ExpertStore *s = r->s;
    int32_t slot = expert_cache_find(s->cache, l->layer, l->expert);
    if (slot >= 0 && !s->ready[slot]) return EXPERT_BUSY;
    if (slot >= 0) {
        *at = hold(s, l->layer, slot);
        return EXPERT_HELD;
    }
    if (r->disk && s->n_free == 0) return EXPERT_FULL;
    l->slot = expert_cache_take(s->cache, l->layer, l->expert);
    if (l->slot < 0) return EXPERT_FULL;
    s->ready[l->slot] = false;
    l->buffer = r->disk ? s->free_buffer[--s->n_free] : -1;
    s->stats.misses++;
    return EXPERT_BEGUN;
}

ExpertBegin expert_reader_begin(ExpertReader *r, int32_t layer, int32_t expert, int32_t tag, const uint8_t **at)
{
    if (r->n_free == 0) return EXPERT_FULL;
    const int32_t index = r->free_load[r->n_free - 1];
    ExpertLoad *l = &r->load[index];
    *l = (ExpertLoad) { .layer = layer, .expert = expert, .tag = tag };
    pthread_mutex_lock(&r->s->lock);
    const ExpertBegin b = reserve(r, l, at);
    pthread_mutex_unlock(&r->s->lock);
    if (b != EXPERT_BEGUN) return b;
    r->n_free--;
    if (r->disk) read_parts(r, l, index);
    else map_parts(r, l);
    if (l->parts == 0) r->arrived[r->n_arrived++] = index;
    r->missed.missed++;
    r->missed.missed_bytes += (int64_t) r->s->l.layer[layer].raw;
    return b;
}

static int32_t power_of_two(double microseconds)
{
    int32_t i = 0;
    while (i < STORE_LATENCIES - 1 && microseconds >= 2) microseconds /= 2, i++;
    return i;
}

/* Takes what the disk has finished: at least one load, if any is in flight. */
static void collect(ExpertReader *r)
{
    DiskDone d;
    int32_t latency[STORE_LATENCIES] = { 0 };
    const double began = seconds_now();
    while (r->disk && disk_done(r->disk, &d, r->n_arrived == 0)) {
        ExpertLoad *l = &r->load[d.tag];
        latency[power_of_two(d.seconds * 1e6)]++;
        if (d.code != ST_OK && l->error.code == ST_OK) l->error = d.error;
        if (--l->parts == 0) r->arrived[r->n_arrived++] = (int32_t) d.tag;
    }
    const double waited = seconds_now() - began;
    pthread_mutex_lock(&r->s->lock);
    for (int32_t i = 0; i < STORE_LATENCIES; i++) r->s->stats.latency[i] += latency[i];
    r->s->stats.waited += waited;
    pthread_mutex_unlock(&r->s->lock);
    r->missed.waited += waited;
}

/* ---- packing ---- */

/* pieces: of a part of a load */
typedef struct { ExpertReader *r; int32_t pieces; } Packing;

static void pack_piece(void *arg, int32_t i, int32_t thread)
{
    (void) thread;
    const Packing *a = arg;
    const ExpertStore *s = a->r->s;
    const ExpertLoad *l = &a->r->load[a->r->arrived[i / (STACKS * a->pieces)]];
    const int32_t p = i / a->pieces % STACKS, piece = i % a->pieces;
    if (l->error.code != ST_OK) return;
    const Part *part = &s->l.layer[l->layer].part[p];
    const Tensor *w = part->w;
    uint8_t *to = slot_memory(s, l->layer, l->slot) + part->there.at;
    const int64_t groups = (w->rows + WEIGHT_GROUP - 1) / WEIGHT_GROUP;
    const int32_t g0 = (int32_t) (groups * piece / a->pieces), g1 = (int32_t) (groups * (piece + 1) / a->pieces);
    if (!s->in_place) matmul_pack(to, w->type, l->raw[p], w->rows, w->cols, g0, g1);
    else if (piece == 0) memcpy(to, l->raw[p], part->raw);
}

static void pack_all(ExpertReader *r, Pool *pool)
{
    const double began = seconds_now();
    Packing a = { r, (2 * pool_threads(pool) + r->n_arrived - 1) / r->n_arrived };
    pool_run(pool, pack_piece, &a, r->n_arrived * STACKS * a.pieces);
    pthread_mutex_lock(&r->s->lock);
    r->s->stats.packing += seconds_now() - began;
    pthread_mutex_unlock(&r->s->lock);
}

int32_t expert_reader_arrived(ExpertReader *r, Pool *pool, int32_t tag[EXPERT_LOADS],
                              const uint8_t *at[EXPERT_LOADS], Error *err)
{
    ExpertStore *s = r->s;
    collect(r);
    if (r->n_arrived == 0) return 0;
    pack_all(r, pool);
    const int32_t n = r->n_arrived;
    pthread_mutex_lock(&s->lock);
    for (int32_t i = 0; i < n; i++) {
        const ExpertLoad *l = &r->load[r->arrived[i]];
        tag[i] = l->tag;
        at[i] = l->error.code == ST_OK ? slot_memory(s, l->layer, l->slot) : NULL;
        if (l->error.code == ST_OK) s->ready[l->slot] = true;
        else expert_cache_drop(s->cache, l->slot);
        if (l->error.code != ST_OK && err->code == ST_OK) *err = l->error;
        if (at[i]) s->stats.missed_bytes += (int64_t) s->l.layer[l->layer].raw;
        if (l->buffer >= 0) s->free_buffer[s->n_free++] = l->buffer;
        r->free_load[r->n_free++] = r->arrived[i];
    }
    r->n_arrived = 0;
    changed(s);
    pthread_mutex_unlock(&s->lock);
    return n;
}

/* ---- readers ---- */

Status expert_reader_open(ExpertReader **out, ExpertStore *s, Error *err)
{
    ExpertReader *r = calloc(1, sizeof *r);
    *out = NULL;
    if (!r) return fail(err, ST_MEMORY, "experts: out of memory");
    r->s = s;
    for (; r->n_free < EXPERT_LOADS; r->n_free++) r->free_load[r->n_free] = r->n_free;
    const DiskWay way = s->io == STORE_URING ? DISK_URING : s->io == STORE_PREAD ? DISK_PREAD : DISK_AUTO;
    Status st = s->io == STORE_MMAP ? ST_OK : disk_open(&r->disk, way, EXPERT_LOADS * STACKS, err);
    if (st != ST_OK) {
        free(r);
        return st;
    }
    *out = r;
    return ST_OK;
}

void expert_reader_close(ExpertReader *r)
{
    if (!r) return;
    disk_close(r->disk);
    free(r);
}

bool expert_reader_has(const ExpertReader *r, const Tensor *w)
{
    const uintptr_t at = (uintptr_t) w->data, first = (uintptr_t) r->s->l.layer;
    return at >= first && at < first + sizeof *r->s->l.layer * (size_t) r->s->l.slots.layers;
}

void expert_reader_missed(ExpertReader *r, Routes *add)
{
    add->missed += r->missed.missed;
    add->missed_bytes += r->missed.missed_bytes;
    add->waited += r->missed.waited;
    r->missed = (Routes) { 0 };
}

/* ---- filling ---- */

static bool told(const StoreOptions *o, int64_t done, int64_t total)
{
    return !o->progress || o->progress(o->ud, "experts", done, total);
}

/* Packs what has arrived and lets go of it. */
static int32_t settle(ExpertReader *r, Pool *pool, const Wanted *w, Error *err)
{
    int32_t tag[EXPERT_LOADS];
    const uint8_t *at[EXPERT_LOADS];
    const int32_t n = expert_reader_arrived(r, pool, tag, at, err);
    for (int32_t i = 0; i < n; i++)
        if (at[i]) expert_reader_release(r, w[tag[i]].layer, w[tag[i]].expert, false);
    return n;
}

static Status fill(ExpertReader *r, Pool *pool, const Wanted *w, size_t n, const StoreOptions *o, Error *err)
{
    Error first = { 0 };
    int32_t taken[SLOT_KINDS] = { 0 };
    int64_t done = 0;
    bool go = told(o, 0, r->s->stats.slots);
    for (size_t i = 0; i < n && go && first.code == ST_OK; i++) {
        const uint8_t *at;
        if (!slots_have_room(&r->s->l.slots, &w[i], taken)) continue;
        while (expert_reader_begin(r, w[i].layer, w[i].expert, (int32_t) i, &at) == EXPERT_FULL && go) {
            done += settle(r, pool, w, &first);
            go = told(o, done, r->s->stats.slots);
        }
    }
    while (settle(r, pool, w, &first)) {}
    if (first.code != ST_OK) {
        if (err) *err = first;
        return first.code;
    }
    return go ? ST_OK : fail(err, ST_CANCEL, "experts: loading was cancelled");
}

Status expert_store_fill(ExpertStore *s, Pool *pool, const StoreOptions *o, Error *err)
{
    ExpertReader *r;
    size_t n;
    const StoreStats before = s->stats;
    TRY(expert_reader_open(&r, s, err));
    Wanted *w = slots_wanted(&s->l.slots, o->count, &n);
    Status st = w ? fill(r, pool, w, n, o, err) : fail(err, ST_MEMORY, "experts: out of memory");
    s->stats = before;                             /* of passes */
    free(w);
    expert_reader_close(r);
    return st;
}

/* ---- what it has done ---- */

void expert_store_stats(ExpertStore *s, StoreStats *out)
{
    pthread_mutex_lock(&s->lock);
    *out = s->stats;
    out->evicted = expert_cache_evicted(s->cache);
    out->promoted = expert_cache_promoted(s->cache);
    pthread_mutex_unlock(&s->lock);
}

void expert_store_counts(ExpertStore *s, uint64_t *counts)
{
    pthread_mutex_lock(&s->lock);
    memcpy(counts, s->counts, (size_t) s->l.slots.layers * (size_t) s->l.slots.experts * sizeof *counts);
    pthread_mutex_unlock(&s->lock);
}
