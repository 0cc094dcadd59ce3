/* experts.c - what an engine has seen of its mixture's experts: figures of the store, and the file in which it is kept
 * how often each was used. */
#include <stdlib.h>
#include <string.h>

#include "engine/engine.h"
#include "engine/sized.h"

_Static_assert((int) STORE_LATENCIES == (int) RT_LATENCIES, "latencies");

static bool has_store(const rt_engine *g, int32_t stage)
{
    const Model *m = g->model;
    return (g->on.at[stage].be->device ? m->device_store : m->store).bytes > 0;
}

static bool has_any(const rt_engine *g) { return g->model->store.bytes > 0 || g->model->device_store.bytes > 0; }

static void add_stats(rt_expert_stats *to, const StoreStats *s)
{
    to->slots += s->slots;
    to->pinned += s->pinned;
    to->bytes += s->bytes;
    to->chosen += s->chosen;
    to->pinned_hits += s->pinned_hits;
    to->ring_hits += s->ring_hits;
    to->bus_hits += s->bus_hits;
    to->bus_bytes += s->bus_bytes;
    to->misses += s->misses;
    to->missed_bytes += s->missed_bytes;
    to->evicted += s->evicted;
    to->promoted += s->promoted;
    to->wait_s += s->waited;
    to->pack_s += s->packing;
    for (int32_t i = 0; i < STORE_LATENCIES; i++) to->latency[i] += s->latency[i];
    /* how a file is read is said before that there is none; of two ways, the first stage's */
    if (!to->io[0] || strcmp(to->io, "bus") == 0) memcpy(to->io, s->io, sizeof to->io);
}

void rt_expert_stats_get(const rt_engine *g, rt_expert_stats *out, size_t size)
{
    rt_expert_stats now = { 0 };
    for (int32_t k = 0; k < g->on.n; k++) {
        StoreStats s;
        if (!has_store(g, k)) continue;
        g->on.at[k].be->store_stats(g->on.at[k].be, &s);
        add_stats(&now, &s);
    }
    sized_write(out, size, &now, sizeof now);
}

/* Of the layers of all stages; scratch has as many. */
static void all_counts(const rt_engine *g, uint64_t *counts, uint64_t *scratch, size_t n)
{
    memset(counts, 0, n * sizeof *counts);
    for (int32_t k = 0; k < g->on.n; k++) {
        if (!has_store(g, k)) continue;
        g->on.at[k].be->store_counts(g->on.at[k].be, scratch);
        for (size_t i = 0; i < n; i++) counts[i] += scratch[i];
    }
}

/* Adds what was counted since the last time, so that several engines can share a file. */
static Status save_counts(rt_engine *g, const char *path, Error *err)
{
    const HotnessModel of = model_hotness(g->model, g->model_file);
    const size_t n = (size_t) of.layers * (size_t) of.experts;
    Hotness h;
    Status st = hotness_read(&h, path, &of, err);
    if (st == ST_END) st = hotness_new(&h, &of, err);
    if (st != ST_OK) return st;
    uint64_t *now = malloc(2 * n * sizeof *now);
    if (!g->expert_counts) g->expert_counts = calloc(n, sizeof *g->expert_counts);
    if (!now || !g->expert_counts) st = fail(err, ST_MEMORY, "%s: out of memory", path);
    if (st == ST_OK) all_counts(g, now, now + n, n);
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
    if (!has_any(g)) return engine_report(e, ST_END, &(Error) { 0 });
    pthread_mutex_lock(&g->lock);
    Status st = save_counts(g, path, &err);
    pthread_mutex_unlock(&g->lock);
    return engine_report(e, st, &err);
}
