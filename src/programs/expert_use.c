#include "programs/expert_use.h"

#include <string.h>

#include "programs/estimate.h"

rt_expert_stats expert_use_since(const Program *p, const rt_expert_stats *before)
{
    rt_expert_stats s;
    rt_expert_stats_get(p->engine, &s, sizeof s);
    s.chosen -= before->chosen;
    s.pinned_hits -= before->pinned_hits;
    s.ring_hits -= before->ring_hits;
    s.bus_hits -= before->bus_hits;
    s.bus_bytes -= before->bus_bytes;
    s.misses -= before->misses;
    s.missed_bytes -= before->missed_bytes;
    s.evicted -= before->evicted;
    s.promoted -= before->promoted;
    s.wait_s -= before->wait_s;
    s.pack_s -= before->pack_s;
    for (int32_t i = 0; i < RT_LATENCIES; i++) s.latency[i] -= before->latency[i];
    return s;
}

int64_t expert_use_reads(const rt_expert_stats *s) { return s->pinned_hits + s->ring_hits + s->bus_hits + s->misses; }

/* Main memory has what a GPU's has not, and no file is read. */
static bool all_in_memory(const rt_expert_stats *s) { return strcmp(s->io, "bus") == 0; }

double expert_use_share(const rt_expert_stats *s, int64_t part)
{
    const int64_t all = expert_use_reads(s);
    return all > 0 ? (double) part / (double) all : 0;
}

const char *expert_use_start(char out[EXPERT_USE_TEXT], const Program *p, const rt_expert_stats *s)
{
    char held[24], all[24], from[64] = "in main memory";
    if (!all_in_memory(s)) snprintf(from, sizeof from, "from the file when they are used (%s)", s->io);
    snprintf(out, EXPERT_USE_TEXT, "%s holds %lld experts at a time, in %s (all take %s); the others are read %s",
             all_in_memory(s) ? "the GPU's memory" : "memory", (long long) s->slots,
             memory_text(held, (double) s->bytes),
             memory_text(all, (double) property(p->engine, "model.experts.bytes")), from);
    return out;
}

const char *expert_use_line(char out[EXPERT_USE_TEXT], const rt_expert_stats *s)
{
    char read[24];
    int n = snprintf(out, EXPERT_USE_TEXT, "%lld chosen, %lld of %lld looked for missed (%.1f %%), %s read, %.0f ms "
                     "waited", (long long) s->chosen, (long long) s->misses, (long long) expert_use_reads(s),
                     100 * expert_use_share(s, s->misses), memory_text(read, (double) s->missed_bytes),
                     1e3 * s->wait_s);
    if (s->bus_bytes > 0 && n > 0 && n < EXPERT_USE_TEXT)
        snprintf(out + n, (size_t) (EXPERT_USE_TEXT - n), "; the GPU read %s in main memory",
                 memory_text(read, (double) s->bus_bytes));
    return out;
}

static double of_time(const rt_expert_stats *s, double seconds) { return seconds > 0 ? s->wait_s / seconds : 0; }

json_t *expert_use_json(const rt_expert_stats *s, double seconds)
{
    if (s->slots == 0) return json_null();
    return json_pack("{s:I s:I s:I s:s s:I s:I s:I s:I s:I s:I s:f s:f s:f s:I s:I s:I s:f s:f s:f}", "slots",
                     (json_int_t) s->slots, "pinned", (json_int_t) s->pinned, "bytes", (json_int_t) s->bytes, "io",
                     s->io, "chosen", (json_int_t) s->chosen, "pinned_hits", (json_int_t) s->pinned_hits, "ring_hits",
                     (json_int_t) s->ring_hits, "bus_hits", (json_int_t) s->bus_hits, "bus_bytes",
                     (json_int_t) s->bus_bytes, "misses", (json_int_t) s->misses, "pinned_rate",
                     expert_use_share(s, s->pinned_hits), "ring_rate", expert_use_share(s, s->ring_hits), "miss_rate",
                     expert_use_share(s, s->misses), "missed_bytes", (json_int_t) s->missed_bytes, "evicted",
                     (json_int_t) s->evicted, "promoted", (json_int_t) s->promoted, "wait_s", s->wait_s, "pack_s",
                     s->pack_s, "wait_share", of_time(s, seconds));
}

void expert_use_print(FILE *f, const rt_expert_stats *s, double seconds)
{
    char read[24];
    if (s->slots == 0) return;
    fprintf(f, "experts in memory: %.1f %% of %lld looked for were pinned, %.1f %% in the ring, %.1f %% missed\n",
            100 * expert_use_share(s, s->pinned_hits), (long long) expert_use_reads(s),
            100 * expert_use_share(s, s->ring_hits), 100 * expert_use_share(s, s->misses));
    if (s->bus_bytes > 0)
        fprintf(f, "  %.1f %% were in main memory, where the GPU read %s\n", 100 * expert_use_share(s, s->bus_hits),
                memory_text(read, (double) s->bus_bytes));
    if (all_in_memory(s)) return;
    fprintf(f, "  %s read from the file (%s), %.2f s waited for it (%.0f %% of the time), %.2f s packing; %lld made "
            "room, %lld came to stay\n", memory_text(read, (double) s->missed_bytes), s->io, s->wait_s,
            100 * of_time(s, seconds), s->pack_s, (long long) s->evicted, (long long) s->promoted);
}
