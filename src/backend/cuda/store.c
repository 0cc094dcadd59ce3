#include "backend/cuda/store.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/expert_slots.h"
#include "backend/gpu/args.h"

/* MOVES: experts that are copied at once, at most. All of them were read over the bus by the pass before, so copying
 * takes no longer than that did. */
enum { MOVES = 64, NONE = -1 };

typedef struct { int32_t layer, expert, slot; double score; } Move;

struct CudaStore {
    const CudaDriver *cu;
    ExpertSlots  slots;
    int32_t      used;                             /* experts of a row */
    CudaStack   *stack;                            /* [layers, STACKS] */
    uint8_t    **host;                             /* [layers] its experts, as in slots; NULL: none */
    uint64_t    *table;                            /* [layers, experts], device memory, and then the slots */
    uint8_t     *memory;
    void        *stream, *turned, *arrived;        /* its stream, events: the last change of the table, the last copy */
    pthread_mutex_t lock;
    /* under the lock */
    ExpertCache *cache;
    uint64_t    *where;                            /* [layers, experts], pinned: what the table is to say */
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

Status cuda_store_needs(StoreNeeds *out, const Stacked *s, int32_t n, int32_t chunk, const StoreOptions *o, Error *err)
{
    ExpertSlots a;
    TRY(divide(&a, s, n, o, err));
    *out = (StoreNeeds) { .chunk = chunk };
    if (a.bytes) *out = (StoreNeeds) { table_bytes(&a) + a.bytes, table_bytes(&a) + slots_for_all(&a), chunk };
    slots_close(&a);
    return ST_OK;
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

/* Pinning takes seconds, so the caller may cancel between layers. */
static Status take_host(CudaStore *s, const StoreOptions *o, Error *err)
{
    TRY(check(s, s->cu->cuMemAllocHost_v2((void **) &s->where, table_bytes(&s->slots)), "taking memory for experts",
              err));
    memset(s->where, 0, table_bytes(&s->slots));
    for (int32_t il = 0; il < s->slots.layers; il++) {
        if (s->slots.layer[il].kind < 0) continue;
        if (o->progress && !o->progress(o->ud, "experts", 0, 0))
            return fail(err, ST_CANCEL, "experts: loading was cancelled");
        const size_t bytes = slot_bytes(&s->slots, il) * (size_t) s->slots.experts;
        int code = s->cu->cuMemAllocHost_v2((void **) &s->host[il], bytes);
        if (code == CUDA_NO_MEMORY)
            return fail(err, ST_MEMORY, "experts: no main memory for the %zu bytes of layer %d that a GPU can read",
                        bytes, il);
        TRY(check(s, code, "taking memory for experts", err));
        for (int32_t e = 0; e < s->slots.experts; e++) s->where[index_of(s, il, e)] = in_host(s, il, e);
    }
    return ST_OK;
}

/* Gives the slots to those who shall have them first; their weights follow when they are uploaded. */
static Status take_slots(CudaStore *s, const StoreOptions *o, Error *err)
{
    int32_t taken[SLOT_KINDS] = { 0 };
    size_t n;
    Wanted *w = slots_wanted(&s->slots, o->count, &n);
    if (!w) return fail(err, ST_MEMORY, "experts: out of memory");
    for (size_t i = 0; i < n; i++) {
        if (!slots_have_room(&s->slots, &w[i], taken)) continue;
        const int32_t slot = expert_cache_take(s->cache, w[i].layer, w[i].expert);
        s->owner[slot] = (int32_t) index_of(s, w[i].layer, w[i].expert);
        s->where[s->owner[slot]] = (uint64_t) (uintptr_t) in_slot(s, w[i].layer, slot);
        expert_cache_done(s->cache, slot, false);
    }
    free(w);
    return ST_OK;
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
    if (!s->stack || !s->host || !s->owner || !s->expert || !s->times || !s->counts)
        return fail(err, ST_MEMORY, "experts: out of memory");
    for (int64_t i = 0; i < s->stats.slots; i++) s->owner[i] = NONE;
    s->memory = (uint8_t *) s->table + table_bytes(&s->slots);
    TRY(check(s, s->cu->cuStreamCreate(&s->stream, NON_BLOCKING), "making a stream", err));
    TRY(check(s, s->cu->cuEventCreate(&s->turned, NO_TIMES), "making an event", err));
    TRY(check(s, s->cu->cuEventCreate(&s->arrived, NO_TIMES), "making an event", err));
    TRY(take_host(s, o, err));
    TRY(take_slots(s, o, err));
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

const uint64_t *cuda_store_table(const CudaStore *s, int32_t layer) { return s->table + index_of(s, layer, 0); }

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
    s->wish[i] = (Move) { layer, expert, NONE, score };
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
    s->stats.misses++;
    s->stats.missed_bytes += bytes;
    routes->missed++;
    routes->missed_bytes += bytes;
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

/* Those that were to be copied are not: their slots are empty. The stream may still write there. */
static void give_up(CudaStore *s)
{
    s->cu->cuStreamSynchronize(s->stream);
    while (s->n_moves > 0) {
        const Move *m = &s->move[--s->n_moves];
        s->owner[m->slot] = NONE;
        expert_cache_drop(s->cache, m->slot);
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
    }
    s->stale = true;
    return true;
}

/* Gives slots to the experts that were missed and are worth it. */
static void choose(CudaStore *s)
{
    for (int32_t i = 0; i < s->n_wishes; i++) {
        Move m = s->wish[i];
        if (!expert_cache_worth(s->cache, m.layer, m.expert)) continue;
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
        code = s->cu->cuMemcpyHtoDAsync_v2(in_slot(s, m->layer, m->slot),
                                           (const void *) (uintptr_t) in_host(s, m->layer, m->expert),
                                           slot_bytes(&s->slots, m->layer), s->stream);
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

/* ---- forks ---- */

Status cuda_store_enter(CudaVisitor *v, void *stream, Error *err)
{
    CudaStore *s = v->store;
    Status st = ST_OK;
    if (!s || v->passing) return ST_OK;
    pthread_mutex_lock(&s->lock);
    if (v->turns != s->turns)
        st = check(s, s->cu->cuStreamWaitEvent(stream, s->turned, 0), "waiting for experts", err);
    if (st == ST_OK) {
        v->turns = s->turns;
        v->passing = true;
        s->passing++;
    }
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
    if (counted && s->passing == 0) st = move(s, err);
    pthread_mutex_unlock(&s->lock);
    return st;
}

void cuda_store_quit(CudaVisitor *v)
{
    CudaStore *s = v->store;
    if (!s) return;
    pthread_mutex_lock(&s->lock);
    s->passing -= v->passing;
    v->passing = false;
    if (s->n_moves > 0) s->cu->cuStreamSynchronize(s->stream);
    pthread_mutex_unlock(&s->lock);
}

/* ---- what it has done ---- */

void cuda_store_stats(CudaStore *s, StoreStats *out)
{
    pthread_mutex_lock(&s->lock);
    *out = s->stats;
    out->evicted = expert_cache_evicted(s->cache);
    out->promoted = expert_cache_promoted(s->cache);
    pthread_mutex_unlock(&s->lock);
}

void cuda_store_counts(CudaStore *s, uint64_t *counts)
{
    pthread_mutex_lock(&s->lock);
    memcpy(counts, s->counts, cuda_store_counters(s) * sizeof *counts);
    pthread_mutex_unlock(&s->lock);
}
