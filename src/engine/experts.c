/* experts.c - what an engine has seen of its mixture's experts: figures of the store, and the file in which it is kept
 * how often each was used. */
#include <stdlib.h>
#include <string.h>

#include "engine/engine.h"
#include "engine/sized.h"

_Static_assert((int) STORE_LATENCIES == (int) RT_LATENCIES, "latencies");

/* The stage that has a store; NULL: none. */
static Backend *stored_on(const rt_engine *g)
{
    for (int32_t k = 0; g->model->store.bytes > 0 && k < g->on.n; k++)
        if (g->on.at[k].be->store_stats && !g->on.at[k].be->device) return g->on.at[k].be;
    return NULL;
}

void rt_expert_stats_get(const rt_engine *g, rt_expert_stats *out, size_t size)
{
    Backend *be = stored_on(g);
    StoreStats s = { 0 };
    if (be) be->store_stats(be, &s);
    rt_expert_stats now = { .slots = s.slots, .pinned = s.pinned, .bytes = s.bytes, .chosen = s.chosen,
                            .pinned_hits = s.pinned_hits, .ring_hits = s.ring_hits, .misses = s.misses,
                            .missed_bytes = s.missed_bytes, .evicted = s.evicted, .promoted = s.promoted,
                            .wait_s = s.waited, .pack_s = s.packing };
    memcpy(now.latency, s.latency, sizeof now.latency);
    memcpy(now.io, s.io, sizeof now.io);
    sized_write(out, size, &now, sizeof now);
}

/* Adds what was counted since the last time, so that several engines can share a file. */
static Status save_counts(rt_engine *g, Backend *be, const char *path, Error *err)
{
    const HotnessModel of = model_hotness(g->model, g->model_file);
    const size_t n = (size_t) of.layers * (size_t) of.experts;
    Hotness h;
    Status st = hotness_read(&h, path, &of, err);
    if (st == ST_END) st = hotness_new(&h, &of, err);
    if (st != ST_OK) return st;
    uint64_t *now = malloc(n * sizeof *now);
    if (!g->expert_counts) g->expert_counts = calloc(n, sizeof *g->expert_counts);
    if (!now || !g->expert_counts) st = fail(err, ST_MEMORY, "%s: out of memory", path);
    if (st == ST_OK) be->store_counts(be, now);
    for (size_t i = 0; st == ST_OK && i < n; i++) h.count[i] += now[i] - g->expert_counts[i];
    if (st == ST_OK) hotness_halve(&h, HOTNESS_TOTAL);
    if (st == ST_OK) st = hotness_write(&h, path, &of, err);
    if (st == ST_OK) memcpy(g->expert_counts, now, n * sizeof *now);
    free(now);
    hotness_free(&h);
    return st;
}

rt_status rt_experts_save(rt_engine *g, const char *path, rt_error *e)
{
    Error err = { 0 };
    Backend *be = stored_on(g);
    if (!be) return engine_report(e, ST_END, &(Error) { 0 });
    pthread_mutex_lock(&g->lock);
    Status st = save_counts(g, be, path, &err);
    pthread_mutex_unlock(&g->lock);
    return engine_report(e, st, &err);
}
