#include "backend/cuda/store.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cpu/expert_store.h"
#include "backend/expert_slots.h"
#include "backend/gpu/args.h"

/* MOVES: experts that are copied at once, at most. All of them were read over the bus by the pass before, so copying
 * takes no longer than that did. */
enum { MOVES = 64, NONE = -1 };

/* from: in the host's memory; NULL: not known yet. */
typedef struct { int32_t layer, expert, slot; double score; const uint8_t *from; } Move;

struct CudaStore {
    const CudaDriver *cu;
    ExpertSlots  slots;
    int32_t      used;                             /* experts of a row */
    CudaStack   *stack;                            /* [layers, STACKS] */
    uint8_t    **host;                             /* [layers] its experts, as in slots; NULL: none, or in `main` */
    /* some of the experts in the host's memory, and who reads the others for the fork that is passing; NULL: `host`
     * has all */
    ExpertStore *main;
    ExpertReader *reader;
    Pool        *pool;
    uint8_t     *main_memory;
    struct { int32_t layer, n, *expert; bool wide; } held;         /* for the last call; expert [experts] */
    int32_t     *missing;                          /* [experts] scratch of who is passing, with the next ones */
    const uint8_t **at;
    Error        failed;                           /* the first read that has, since the last fork left */
    uint64_t    *table;                            /* [layers, experts], device memory, and then the slots */
    uint8_t     *memory;
    void        *stream, *turned, *arrived;        /* its stream, events: the last change of the table, the last copy */
    pthread_mutex_t lock;
    pthread_cond_t left;
    /* under the lock */
    ExpertCache *cache;
    uint64_t    *where;                            /* [layers, experts], pinned: what the table is to say, 0: neither
                                                    * in a slot nor in `host` */
    int32_t     *owner;                            /* [slots] index of the expert whose `where` may be the slot; NONE */
    bool         stale;                            /* the table says something else */
    int64_t      turns;                            /* how often it was written */
    int32_t      passing;                          /* forks that have passes in flight */
    Move         move[MOVES], wish[MOVES];         /* being copied; missed by the last pass, the highest score first */
    int32_t      n_moves, n_wishes;
    int32_t     *expert, *times;                   /* [experts] scratch */
    uint64_t    *counts;                           /* [layers, experts] */
    StoreStats   stats;
};

/* The host's work in a fork's stream. */
typedef struct { CudaFetch *of; int32_t layer; } FetchCall;
struct CudaFetch {
    CudaStore *s;
    FetchCall *call;                               /* [layers] */
    uint64_t  *found;                              /* [experts], pinned: what the fork's table is to say */
    int32_t   *asked, *seen;                       /* [experts], pinned: counters of the call's layer; [layers, experts]
                                                    * as they were after the call before */
};

static size_t index_of(const CudaStore *s, int32_t layer, int32_t expert)
{
    return (size_t) layer * (size_t) s->slots.experts + (size_t) expert;
}

static size_t slot_bytes(const ExpertSlots *a, int32_t layer) { return a->kind[a->layer[layer].kind].bytes; }

static size_t table_bytes(const ExpertSlots *a)
{
    const size_t n = (size_t) a->layers * (size_t) a->experts * sizeof(uint64_t);
    return (n + SLOT_ALIGN - 1) / SLOT_ALIGN * SLOT_ALIGN;
}

static uint64_t in_host(const CudaStore *s, int32_t layer, int32_t expert)
{
    if (!s->host[layer]) return 0;
    return (uint64_t) (uintptr_t) (s->host[layer] + slot_bytes(&s->slots, layer) * (size_t) expert);
}

static uint8_t *in_slot(const CudaStore *s, int32_t layer, int32_t slot)
{
    return s->memory + slots_place(&s->slots, layer, slot);
}

/* ---- opening ---- */

/* Leaves no slots if all experts fit. */
static Status divide(ExpertSlots *a, const Stacked *s, int32_t n, const StoreOptions *o, Error *err)
{
    TRY(slots_open(a, "expert_vram", s, n, false, o, err));
    const uint64_t least = table_bytes(a) + slots_least(a);
    Status st = ST_OK;
    if (slots_for_all(a) <= o->device_ram) return ST_OK;
    if (o->device_ram < least)
        st = fail(err, ST_ARG, "expert_vram: %llu bytes, expected at least %llu: the model's experts take %zu each",
                  (unsigned long long) o->device_ram, (unsigned long long) least, a->kind[0].bytes);
    else if ((size_t) a->layers * (size_t) a->experts > STORE_COUNTERS)
        st = fail(err, ST_UNSUPPORTED, "expert_vram: %d layers of %d experts, expected at most %d experts in all",
                  a->layers, a->experts, STORE_COUNTERS);
    if (st == ST_OK) st = slots_divide(a, o->device_ram - table_bytes(a), o, err);
    if (st != ST_OK) slots_close(a);
    return st;
}

/* The host's memory has no room for all experts. */
static bool needs_file(const ExpertSlots *a, const StoreOptions *o) { return o->ram > 0 && slots_for_all(a) > o->ram; }

/* The same where the host's memory has only some, which has to keep them meanwhile. */
static int32_t moves_from_main(const ExpertSlots *a)
{
    enum { KEPT = 16 };
    return a->experts / 4 < KEPT ? a->experts / 4 + 1 : KEPT;
}

/* A call needs up to all experts of a layer, and others are being copied meanwhile. */
static StoreOptions options_of_main(const ExpertSlots *a, const StoreOptions *o)
{
    StoreOptions with = *o;
    with.ring_least = a->experts + moves_from_main(a);
    return with;
}

static Status needs_of_main(StoreNeeds *out, const ExpertSlots *a, const Stacked *s, int32_t n, int32_t chunk,
                            const StoreOptions *o, Error *err)
{
    enum { MOST_ROWS = 4096 };
    const StoreOptions with = options_of_main(a, o);
    return expert_store_needs(out, s, n, false, chunk, MOST_ROWS, &with, err);
}

Status cuda_store_needs(StoreNeeds *out, const Stacked *s, int32_t n, int32_t chunk, const StoreOptions *o, Error *err)
{
    ExpertSlots a;
    StoreNeeds main = { .bytes = 0, .chunk = chunk };
    Status st = ST_OK;
    *out = (StoreNeeds) { .chunk = chunk };
    TRY(divide(&a, s, n, o, err));
    const bool file = a.bytes && needs_file(&a, o);
    if (file) st = needs_of_main(&main, &a, s, n, chunk, o, err);
    else main.bytes = slots_for_all(&a);
    if (a.bytes)
        *out = (StoreNeeds) { table_bytes(&a) + a.bytes, table_bytes(&a) + main.bytes, main.chunk, !file };
    slots_close(&a);
    return st;
}

static Status check(const CudaStore *s, int code, const char *what, Error *err)
{
    return code ? cuda_fail(err, s->cu, code, what) : ST_OK;
}

static Status check_addresses(const CudaStore *s, int device, Error *err)
{
    enum { ATTR_UNIFIED_ADDRESSING = 41 };
    int unified = 0;
    TRY(check(s, s->cu->cuDeviceGetAttribute(&unified, ATTR_UNIFIED_ADDRESSING, device), "asking for addresses", err));
    return unified ? ST_OK : fail(err, ST_UNSUPPORTED, "expert_vram: this device cannot read the host's memory");
}

static Status take_pinned(const CudaStore *s, void *p, size_t bytes, const char *what, Error *err)
{
    const int code = s->cu->cuMemAllocHost_v2(p, bytes);
    if (code == CUDA_NO_MEMORY)
        return fail(err, ST_MEMORY, "experts: no main memory for the %zu bytes of %s that a GPU can read", bytes, what);
    return check(s, code, "taking memory for experts", err);
}

/* Pinning takes seconds, so the caller may cancel between layers. */
static Status take_host(CudaStore *s, const StoreOptions *o, Error *err)
{
    char what[32];
    for (int32_t il = 0; il < s->slots.layers; il++) {
        if (s->slots.layer[il].kind < 0) continue;
        if (o->progress && !o->progress(o->ud, "experts", 0, 0))
            return fail(err, ST_CANCEL, "experts: loading was cancelled");
        snprintf(what, sizeof what, "layer %d", il);
        TRY(take_pinned(s, &s->host[il], slot_bytes(&s->slots, il) * (size_t) s->slots.experts, what, err));
        for (int32_t e = 0; e < s->slots.experts; e++) s->where[index_of(s, il, e)] = in_host(s, il, e);
    }
    return ST_OK;
}

/* Fills it from the file with the experts that earlier texts used, if these are known. */
static Status open_main(CudaStore *s, const Stacked *stack, int32_t n, const StoreOptions *o, Error *err)
{
    const StoreOptions with = options_of_main(&s->slots, o);
    StoreNeeds needs;
    TRY(needs_of_main(&needs, &s->slots, stack, n, 1, o, err));
    TRY(take_pinned(s, &s->main_memory, needs.bytes, "slots", err));
    TRY(expert_store_open(&s->main, stack, n, false, s->main_memory, &with, err));
    TRY(expert_reader_open(&s->reader, s->main, err));
    TRY(pool_open(&s->pool, 0, err));
    return o->count ? expert_store_fill(s->main, s->pool, &with, err) : ST_OK;
}

/* Copies an expert that the host's memory has into its slot. */
static Status copy_now(const CudaStore *s, int32_t slot, int32_t layer, const uint8_t *from, Error *err)
{
    TRY(check(s, s->cu->cuMemcpyHtoDAsync_v2(in_slot(s, layer, slot), from, slot_bytes(&s->slots, layer), s->stream),
              "copying to the device", err));
    return check(s, s->cu->cuStreamSynchronize(s->stream), "copying to the device", err);
}

/* Gives the slots to those who shall have them first, of those in the host's memory. Where that has all of them, their
 * weights follow when they are uploaded. */
static Status take_slots(CudaStore *s, const StoreOptions *o, Error *err)
{
    Status st = ST_OK;
    int32_t taken[SLOT_KINDS] = { 0 };
    size_t n;
    Wanted *w = slots_wanted(&s->slots, o->count, &n);
    if (!w) return fail(err, ST_MEMORY, "experts: out of memory");
    for (size_t i = 0; st == ST_OK && i < n; i++) {
        const uint8_t *from = NULL;
        if (!slots_have_room(&s->slots, &w[i], taken)) continue;
        if (s->main && !(from = expert_reader_keep(s->reader, w[i].layer, w[i].expert))) continue;
        const int32_t slot = expert_cache_take(s->cache, w[i].layer, w[i].expert);
        s->owner[slot] = (int32_t) index_of(s, w[i].layer, w[i].expert);
        s->where[s->owner[slot]] = (uint64_t) (uintptr_t) in_slot(s, w[i].layer, slot);
        expert_cache_done(s->cache, slot, false);
        if (!from) continue;
        st = copy_now(s, slot, w[i].layer, from, err);
        expert_reader_release(s->reader, w[i].layer, w[i].expert, true);
    }
    free(w);
    return st;
}

static int write_table(const CudaStore *s)
{
    return s->cu->cuMemcpyHtoDAsync_v2(s->table, s->where, table_bytes(&s->slots), s->stream);
}

static Status open_all(CudaStore *s, int device, const Stacked *stack, int32_t n, const StoreOptions *o, Error *err)
{
    enum { NON_BLOCKING = 1, NO_TIMES = 2 };
    TRY(check_addresses(s, device, err));
    TRY(divide(&s->slots, stack, n, o, err));
    TRY(slots_cache(&s->cache, &s->stats, &s->slots, o, err));
    const size_t layers = (size_t) s->slots.layers, experts = (size_t) s->slots.experts;
    s->stack = calloc(layers * STACKS, sizeof *s->stack);
    s->host = calloc(layers, sizeof *s->host);
    s->owner = malloc((size_t) s->stats.slots * sizeof *s->owner);
    s->expert = malloc(experts * sizeof *s->expert);
    s->times = malloc(experts * sizeof *s->times);
    s->counts = calloc(layers * experts, sizeof *s->counts);
    s->held.expert = malloc(experts * sizeof *s->held.expert);
    s->missing = malloc(experts * sizeof *s->missing);
    s->at = malloc(experts * sizeof *s->at);
    if (!s->stack || !s->host || !s->owner || !s->expert || !s->times || !s->counts || !s->held.expert ||
        !s->missing || !s->at)
        return fail(err, ST_MEMORY, "experts: out of memory");
    for (int64_t i = 0; i < s->stats.slots; i++) s->owner[i] = NONE;
    s->memory = (uint8_t *) s->table + table_bytes(&s->slots);
    TRY(check(s, s->cu->cuStreamCreate(&s->stream, NON_BLOCKING), "making a stream", err));
    TRY(check(s, s->cu->cuEventCreate(&s->turned, NO_TIMES), "making an event", err));
    TRY(check(s, s->cu->cuEventCreate(&s->arrived, NO_TIMES), "making an event", err));
    TRY(take_pinned(s, &s->where, table_bytes(&s->slots), "addresses", err));
    memset(s->where, 0, table_bytes(&s->slots));
    TRY(needs_file(&s->slots, o) ? open_main(s, stack, n, o, err) : take_host(s, o, err));
    if (!s->main || o->count) TRY(take_slots(s, o, err));
    TRY(check(s, write_table(s), "copying to the device", err));
    return check(s, s->cu->cuStreamSynchronize(s->stream), "copying to the device", err);
}

Status cuda_store_open(CudaStore **out, const CudaDriver *cu, int device, const Stacked *stack, int32_t n, void *memory,
                       const StoreOptions *o, Error *err)
{
    CudaStore *s = calloc(1, sizeof *s);
    *out = NULL;
    if (!s) return fail(err, ST_MEMORY, "experts: out of memory");
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->left, NULL);
    s->cu = cu;
    s->used = o->used;
    s->table = memory;
    Status st = open_all(s, device, stack, n, o, err);
    if (st != ST_OK) {
        cuda_store_close(s);
        return st;
    }
    for (int32_t i = 0; i < n; i++)
        for (int32_t p = 0; p < STACKS; p++) {
            CudaStack *of = &s->stack[stack[i].layer * STACKS + p];
            *of = (CudaStack) { stack[i].layer, s->slots.layer[stack[i].layer].at[p] };
            stack[i].w[p]->data = of;
        }
    s->stats.bytes = (int64_t) (table_bytes(&s->slots) + s->slots.bytes);
    snprintf(s->stats.io, sizeof s->stats.io, "bus");
    *out = s;
    return ST_OK;
}

void cuda_store_close(CudaStore *s)
{
    if (!s) return;
    if (s->stream) s->cu->cuStreamSynchronize(s->stream);
    for (int32_t il = 0; s->host && il < s->slots.layers; il++)
        if (s->host[il]) s->cu->cuMemFreeHost(s->host[il]);
    expert_reader_close(s->reader);
    expert_store_close(s->main);
    pool_close(s->pool);
    if (s->main_memory) s->cu->cuMemFreeHost(s->main_memory);
    if (s->where) s->cu->cuMemFreeHost(s->where);
    if (s->turned) s->cu->cuEventDestroy_v2(s->turned);
    if (s->arrived) s->cu->cuEventDestroy_v2(s->arrived);
    if (s->stream) s->cu->cuStreamDestroy_v2(s->stream);
    expert_cache_close(s->cache);
    slots_close(&s->slots);
    free(s->stack);
    free(s->host);
    free(s->owner);
    free(s->expert);
    free(s->times);
    free(s->counts);
    free(s->held.expert);
    free(s->missing);
    free(s->at);
    pthread_cond_destroy(&s->left);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

/* ---- where experts are ---- */

const CudaStack *cuda_store_has(const CudaStore *s, const Tensor *w)
{
    if (!s) return NULL;
    const uintptr_t at = (uintptr_t) w->data, first = (uintptr_t) s->stack;
    return at >= first && at < first + sizeof *s->stack * STACKS * (size_t) s->slots.layers ? w->data : NULL;
}

uint8_t *cuda_store_matrix(const CudaStore *s, const CudaStack *of, int32_t i, uint8_t **slot)
{
    const uint64_t host = in_host(s, of->layer, i), now = s->where[index_of(s, of->layer, i)];
    *slot = now == host ? NULL : (uint8_t *) (uintptr_t) now + of->at;
    return (uint8_t *) (uintptr_t) host + of->at;
}

int32_t cuda_store_experts(const CudaStore *s) { return s->slots.experts; }
size_t cuda_store_counters(const CudaStore *s) { return (size_t) s->slots.layers * (size_t) s->slots.experts; }

/* ---- what a pass chose ---- */

/* Keeps the MOVES experts of the highest scores. */
static void wish(CudaStore *s, int32_t layer, int32_t expert)
{
    const double score = expert_cache_score(s->cache, layer, expert);
    int32_t i = s->n_wishes;
    if (i == MOVES && score <= s->wish[i - 1].score) return;
    if (i == MOVES) i--;
    else s->n_wishes++;
    for (; i > 0 && s->wish[i - 1].score < score; i--) s->wish[i] = s->wish[i - 1];
    s->wish[i] = (Move) { layer, expert, NONE, score, NULL };
}

/* An item of at most EXPERT_ROWS rows reads an expert once. */
static void count_expert(CudaStore *s, int32_t layer, int32_t expert, int32_t times, Routes *routes)
{
    const size_t i = index_of(s, layer, expert);
    const int32_t slot = expert_cache_find(s->cache, layer, expert);
    s->counts[i] += (uint64_t) times;
    s->stats.chosen += times;
    if (s->where[i] != in_host(s, layer, expert)) {
        *(expert_cache_pinned(s->cache, slot) ? &s->stats.pinned_hits : &s->stats.ring_hits) += 1;
        expert_cache_use(s->cache, slot);
        expert_cache_done(s->cache, slot, false);
        return;
    }
    const int64_t bytes = (int64_t) slot_bytes(&s->slots, layer) * ((times + EXPERT_ROWS - 1) / EXPERT_ROWS);
    s->stats.bus_bytes += bytes;
    if (!s->main) {                                /* else its readers count */
        s->stats.bus_hits++;
        routes->missed++;
        routes->missed_bytes += bytes;
    }
    if (slot < 0) wish(s, layer, expert);
}

static void count_layer(CudaStore *s, int32_t layer, const int32_t *now, int32_t *told, Routes *routes)
{
    int32_t n = 0, pairs = 0;
    for (int32_t e = 0; e < s->slots.experts; e++) {
        const int32_t times = (int32_t) ((uint32_t) now[e] - (uint32_t) told[e]);
        told[e] = now[e];
        if (times <= 0) continue;
        s->expert[n] = e;
        s->times[n++] = times;
        pairs += times;
    }
    if (n == 0) return;
    expert_cache_count(s->cache, layer, s->expert, s->times, n, (pairs + s->used - 1) / s->used);
    for (int32_t i = 0; i < n; i++) count_expert(s, layer, s->expert[i], s->times[i], routes);
}

/* ---- moving ---- */

/* Where an expert can be copied from until let_go; NULL: only the file has it. */
static const uint8_t *copy_from(const CudaStore *s, int32_t layer, int32_t expert)
{
    if (s->main) return expert_reader_keep(s->reader, layer, expert);
    return (const uint8_t *) (uintptr_t) in_host(s, layer, expert);
}

/* It need not be there twice. */
static void let_go(const CudaStore *s, const Move *m)
{
    if (s->main) expert_reader_release(s->reader, m->layer, m->expert, true);
}

/* Those that were to be copied are not: their slots are empty. The stream may still write there. */
static void give_up(CudaStore *s)
{
    s->cu->cuStreamSynchronize(s->stream);
    while (s->n_moves > 0) {
        const Move *m = &s->move[--s->n_moves];
        s->owner[m->slot] = NONE;
        expert_cache_drop(s->cache, m->slot);
        let_go(s, m);
    }
}

/* Notes the slots of those whose copies are there; returns false if they are still on their way. */
static bool settle(CudaStore *s, Error *err)
{
    if (s->n_moves == 0) return true;
    const int code = s->cu->cuEventQuery(s->arrived);
    if (code == CUDA_NOT_READY) return false;
    if (code) {
        cuda_fail(err, s->cu, code, "copying experts");
        give_up(s);
        return false;
    }
    while (s->n_moves > 0) {
        const Move *m = &s->move[--s->n_moves];
        s->where[index_of(s, m->layer, m->expert)] = (uint64_t) (uintptr_t) in_slot(s, m->layer, m->slot);
        expert_cache_done(s->cache, m->slot, false);
        let_go(s, m);
    }
    s->stale = true;
    return true;
}

/* Gives slots to the experts that were missed and are worth it. */
static void choose(CudaStore *s)
{
    const int32_t most = s->main ? moves_from_main(&s->slots) : MOVES;
    for (int32_t i = 0; i < s->n_wishes && s->n_moves < most; i++) {
        Move m = s->wish[i];
        if (!expert_cache_worth(s->cache, m.layer, m.expert)) continue;
        if (!(m.from = copy_from(s, m.layer, m.expert))) continue;
        m.slot = expert_cache_take(s->cache, m.layer, m.expert);
        const int32_t was = s->owner[m.slot];
        if (was != NONE) {
            s->where[was] = in_host(s, was / s->slots.experts, was % s->slots.experts);
            s->stale = true;
        }
        s->owner[m.slot] = (int32_t) index_of(s, m.layer, m.expert);
        s->move[s->n_moves++] = m;
    }
}

static int queue_copies(const CudaStore *s)
{
    int code = 0;
    for (int32_t i = 0; i < s->n_moves && code == 0; i++) {
        const Move *m = &s->move[i];
        code = s->cu->cuMemcpyHtoDAsync_v2(in_slot(s, m->layer, m->slot), m->from, slot_bytes(&s->slots, m->layer),
                                           s->stream);
    }
    return code ? code : s->cu->cuEventRecord(s->arrived, s->stream);
}

/* No pass is in flight, and the next ones come after the table's change. */
static Status move(CudaStore *s, Error *err)
{
    Error failed = { 0 };
    if (!settle(s, &failed)) {
        if (failed.code != ST_OK && err) *err = failed;
        return failed.code;
    }
    choose(s);
    int code = 0;
    if (s->stale) {
        code = write_table(s);
        if (code == 0) code = s->cu->cuEventRecord(s->turned, s->stream);
        if (code == 0) s->stale = false, s->turns++;
    }
    if (code == 0 && s->n_moves > 0) code = queue_copies(s);
    if (code == 0) return ST_OK;
    give_up(s);
    return cuda_fail(err, s->cu, code, "copying experts");
}

/* ---- reading for a call ---- */

/* What the call before has used is free, once its products are done. */
static void release_held(CudaStore *s)
{
    for (int32_t i = 0; i < s->held.n; i++)
        expert_reader_release(s->reader, s->held.layer, s->held.expert[i], s->held.wide);
    s->held.n = 0;
}

/* Notes those of a call that no slot of the device has, with how often they were chosen. Returns the call's rows. */
static int32_t look_for(CudaFetch *f, int32_t layer)
{
    CudaStore *s = f->s;
    int32_t *seen = f->seen + index_of(s, layer, 0), pairs = 0;
    for (int32_t e = 0; e < s->slots.experts; e++) {
        const int32_t times = (int32_t) ((uint32_t) f->asked[e] - (uint32_t) seen[e]);
        seen[e] = f->asked[e];
        if (times <= 0) continue;
        pairs += times;
        f->found[e] = s->where[index_of(s, layer, e)];
        if (f->found[e]) continue;
        s->missing[s->held.n] = times;
        s->held.expert[s->held.n++] = e;
    }
    return (pairs + s->used - 1) / s->used;
}

/* Packs what has arrived; returns its number. */
static int32_t arrived(CudaStore *s)
{
    int32_t tag[EXPERT_LOADS];
    const uint8_t *at[EXPERT_LOADS];
    const int32_t n = expert_reader_arrived(s->reader, s->pool, tag, at, &s->failed);
    for (int32_t i = 0; i < n; i++) s->at[tag[i]] = at[i];
    return n;
}

/* Reads what the host's memory does not have of a call's experts. Nobody else reads, so none of them is being read, and
 * the ring has room for all. */
static void read_missing(CudaStore *s, int32_t layer)
{
    for (int32_t i = 0; i < s->held.n && s->failed.code == ST_OK; i++) {
        if (s->at[i]) continue;
        while (expert_reader_begin(s->reader, layer, s->held.expert[i], i, &s->at[i]) == EXPERT_FULL)
            if (arrived(s) == 0) {
                fail(&s->failed, ST_BACKEND, "experts: layer %d has no room for %d at once", layer, s->held.n);
                break;
            }
    }
    while (arrived(s) > 0) {}
}

/* In the stream of the fork that is passing, so in any thread; it must not call the driver. After a failure the call
 * gets some address in place of what it lacks. */
static void fetch(void *arg)
{
    const FetchCall *call = arg;
    CudaFetch *f = call->of;
    CudaStore *s = f->s;
    release_held(s);
    const int32_t rows = look_for(f, call->layer), n = s->held.n;
    s->held.layer = call->layer;
    s->held.wide = rows > ROWS_DECODE;
    expert_reader_choose(s->reader, call->layer, s->held.expert, s->missing, n, rows, s->at);
    read_missing(s, call->layer);
    s->held.n = 0;
    for (int32_t i = 0; i < n; i++) {
        const int32_t e = s->held.expert[i];
        f->found[e] = (uint64_t) (uintptr_t) (s->at[i] ? s->at[i] : s->main_memory);
        if (s->at[i]) s->held.expert[s->held.n++] = e;
    }
}

const uint64_t *cuda_store_table(const CudaVisitor *v, int32_t layer, void *stream, int *code)
{
    const CudaStore *s = v->store;
    CudaFetch *f = v->fetch;
    const size_t first = index_of(s, layer, 0), n = (size_t) s->slots.experts;
    *code = 0;
    if (!f) return s->table + first;
    *code = s->cu->cuMemcpyDtoHAsync_v2(f->asked, v->counts + first, n * sizeof *f->asked, stream);
    if (*code == 0) *code = s->cu->cuLaunchHostFunc(stream, fetch, &f->call[layer]);
    if (*code == 0) *code = s->cu->cuMemcpyHtoDAsync_v2(v->table, f->found, n * sizeof *f->found, stream);
    return v->table;
}

/* ---- forks ---- */

static Status take_fetch(CudaVisitor *v, Error *err)
{
    CudaStore *s = v->store;
    const size_t n = (size_t) s->slots.experts, layers = (size_t) s->slots.layers;
    CudaFetch *f = v->fetch = calloc(1, sizeof *f);
    if (!f) return fail(err, ST_MEMORY, "experts: out of memory");
    f->s = s;
    f->call = calloc(layers, sizeof *f->call);
    f->seen = calloc(layers * n, sizeof *f->seen);
    if (!f->call || !f->seen) return fail(err, ST_MEMORY, "experts: out of memory");
    for (int32_t il = 0; il < s->slots.layers; il++) f->call[il] = (FetchCall) { f, il };
    TRY(take_pinned(s, &f->found, n * (sizeof *f->found + sizeof *f->asked), "addresses", err));
    memset(f->found, 0, n * sizeof *f->found);
    f->asked = (int32_t *) (void *) (f->found + n);
    return ST_OK;
}

Status cuda_store_visit(CudaVisitor *v, CudaStore *s, Error *err)
{
    *v = (CudaVisitor) { .store = s };
    if (!s) return ST_OK;
    v->now = calloc(cuda_store_counters(s), sizeof *v->now);
    v->told = calloc(cuda_store_counters(s), sizeof *v->told);
    if (!v->now || !v->told) return fail(err, ST_MEMORY, "experts: out of memory");
    return s->main ? take_fetch(v, err) : ST_OK;
}

Status cuda_store_enter(CudaVisitor *v, void *stream, Error *err)
{
    CudaStore *s = v->store;
    Status st = ST_OK;
    if (!s || v->passing) return ST_OK;
    pthread_mutex_lock(&s->lock);
    while (s->main && s->passing > 0) pthread_cond_wait(&s->left, &s->lock);
    if (v->turns != s->turns)
        st = check(s, s->cu->cuStreamWaitEvent(stream, s->turned, 0), "waiting for experts", err);
    if (st == ST_OK) {
        v->turns = s->turns;
        v->passing = true;
        s->passing++;
    } else pthread_cond_signal(&s->left);          /* it may have been this one that was woken */
    pthread_mutex_unlock(&s->lock);
    return st;
}

Status cuda_store_leave(CudaVisitor *v, bool counted, Routes *routes, Error *err)
{
    CudaStore *s = v->store;
    Status st = ST_OK;
    if (!s || !v->passing) return ST_OK;
    pthread_mutex_lock(&s->lock);
    v->passing = false;
    if (!counted) v->turns = NONE;                 /* what was queued may be lost */
    s->passing--;
    s->n_wishes = 0;
    for (int32_t il = 0; counted && il < s->slots.layers; il++)
        if (s->slots.layer[il].kind >= 0)
            count_layer(s, il, v->now + index_of(s, il, 0), v->told + index_of(s, il, 0), routes);
    if (s->main) expert_reader_missed(s->reader, routes);
    const Error failed = s->failed;
    s->failed = (Error) { 0 };
    if (counted && s->passing == 0) st = move(s, err);
    pthread_cond_signal(&s->left);
    pthread_mutex_unlock(&s->lock);
    if (!counted || failed.code == ST_OK) return st;
    if (err) *err = failed;
    return failed.code;
}

void cuda_store_quit(CudaVisitor *v)
{
    CudaStore *s = v->store;
    CudaFetch *f = v->fetch;
    if (!s) return;
    pthread_mutex_lock(&s->lock);
    s->passing -= v->passing;
    v->passing = false;
    s->cu->cuStreamSynchronize(s->stream);         /* experts, or the table alone */
    pthread_cond_signal(&s->left);
    pthread_mutex_unlock(&s->lock);
    if (f && f->found) s->cu->cuMemFreeHost(f->found);
    if (f) {
        free(f->call);
        free(f->seen);
        free(f);
    }
    free(v->now);
    free(v->told);
    *v = (CudaVisitor) { 0 };
}

/* ---- what it has done ---- */

void cuda_store_stats(CudaStore *s, StoreStats *out)
{
    StoreStats main = { 0 };
    pthread_mutex_lock(&s->lock);
    *out = s->stats;
    out->evicted = expert_cache_evicted(s->cache);
    out->promoted = expert_cache_promoted(s->cache);
    pthread_mutex_unlock(&s->lock);
    if (!s->main) return;
    expert_store_stats(s->main, &main);
    out->slots += main.slots;
    out->pinned += main.pinned;
    out->bytes += main.bytes + (int64_t) table_bytes(&s->slots);
    out->bus_hits = main.pinned_hits + main.ring_hits;
    out->misses = main.misses;
    out->missed_bytes = main.missed_bytes;
    out->evicted += main.evicted;
    out->promoted += main.promoted;
    memcpy(out->latency, main.latency, sizeof out->latency);
    out->waited = main.waited;
    out->packing = main.packing;
    memcpy(out->io, main.io, sizeof out->io);
}

void cuda_store_counts(CudaStore *s, uint64_t *counts)
{
    pthread_mutex_lock(&s->lock);
    memcpy(counts, s->counts, cuda_store_counters(s) * sizeof *counts);
    pthread_mutex_unlock(&s->lock);
}
