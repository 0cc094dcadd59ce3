#include "programs/serve/metrics.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "programs/serve/cache/cache.h"
#include "programs/serve/request/request.h"

enum { BOUNDS = 14 };
static const double bounds[HISTS][BOUNDS] = {
    [HIST_TTFT] = { .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300 },
    [HIST_TPOT] = { .0005, .001, .0025, .005, .01, .025, .05, .1, .2, .4, .8, 1.5, 3, 6 },
    [HIST_WAIT] = { .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300 },
    [HIST_ACCEPT] = { 1, 1.5, 2, 2.5, 3, 4, 5, 6, 7, 8, 10, 12, 16, 24 },
};
static const struct { const char *name, *help; } hist_names[HISTS] = {
    [HIST_TTFT] = { "ttft_seconds", "From the request to its first token." },
    [HIST_TPOT] = { "tpot_seconds", "Seconds per token after the first." },
    [HIST_WAIT] = { "queue_wait_seconds", "From the request to its start." },
    [HIST_ACCEPT] = { "accept_length", "Tokens per decoding pass of an answer." },
};
typedef struct { int64_t at[BOUNDS], n; double sum; } Hist;
enum { STATUSES = 16 };

struct Metrics {
    pthread_mutex_t lock;
    struct { int status; int64_t n; } requests[DIALECTS][STATUSES];
    int64_t cancelled[PHASES];
    MetricTokens tokens;
    rt_stats work;                                 /* sums */
    Hist hist[HISTS];
    double seconds_each;
};

Metrics *metrics_new(void)
{
    Metrics *m = calloc(1, sizeof *m);
    if (m) pthread_mutex_init(&m->lock, NULL);
    return m;
}

void metrics_free(Metrics *m)
{
    if (m) pthread_mutex_destroy(&m->lock);
    free(m);
}

void metrics_request(Metrics *m, int dialect, int status)
{
    pthread_mutex_lock(&m->lock);
    for (int i = 0; i < STATUSES; i++) {
        if (m->requests[dialect][i].status && m->requests[dialect][i].status != status) continue;
        m->requests[dialect][i].status = status;
        m->requests[dialect][i].n++;
        break;
    }
    pthread_mutex_unlock(&m->lock);
}

void metrics_cancelled(Metrics *m, Phase phase)
{
    pthread_mutex_lock(&m->lock);
    m->cancelled[phase]++;
    pthread_mutex_unlock(&m->lock);
}

void metrics_observe(Metrics *m, Histogram h, double value)
{
    pthread_mutex_lock(&m->lock);
    Hist *x = &m->hist[h];
    for (int i = 0; i < BOUNDS; i++) x->at[i] += value <= bounds[h][i];
    x->n++;
    x->sum += value;
    pthread_mutex_unlock(&m->lock);
}

void metrics_tokens(Metrics *m, const MetricTokens *t)
{
    pthread_mutex_lock(&m->lock);
    m->tokens.prompt += t->prompt;
    m->tokens.cached += t->cached;
    m->tokens.content += t->content;
    m->tokens.reasoning += t->reasoning;
    m->tokens.calls += t->calls;
    m->tokens.call_failures += t->call_failures;
    pthread_mutex_unlock(&m->lock);
}

void metrics_work(Metrics *m, const rt_stats *s)
{
    pthread_mutex_lock(&m->lock);
    m->work.passes += s->passes;
    m->work.plain += s->plain;
    m->work.drafted += s->drafted;
    m->work.accepted += s->accepted;
    m->work.drafts += s->drafts;
    m->work.generated += s->generated;
    m->work.blocks += s->blocks;
    m->work.steps += s->steps;
    m->work.prefill_s += s->prefill_s;
    m->work.decode_s += s->decode_s;
    for (int i = 0; i < RT_SOURCES; i++) {
        m->work.drafted_by[i] += s->drafted_by[i];
        m->work.accepted_by[i] += s->accepted_by[i];
    }
    pthread_mutex_unlock(&m->lock);
}

void metrics_request_seconds(Metrics *m, double seconds)
{
    pthread_mutex_lock(&m->lock);
    m->seconds_each = m->seconds_each > 0 ? 0.8 * m->seconds_each + 0.2 * seconds : seconds;
    pthread_mutex_unlock(&m->lock);
}

double metrics_seconds_per_request(Metrics *m)
{
    pthread_mutex_lock(&m->lock);
    double s = m->seconds_each;
    pthread_mutex_unlock(&m->lock);
    return s;
}

/* ---- text ---- */

static void family(FILE *f, const char *name, const char *type, const char *help)
{
    fprintf(f, "# HELP ratoon_%s %s\n# TYPE ratoon_%s %s\n", name, help, name, type);
}

static void single(FILE *f, const char *name, const char *type, double value, const char *help)
{
    family(f, name, type, help);
    fprintf(f, "ratoon_%s %.17g\n", name, value);
}

static void histogram(FILE *f, Histogram h, const Hist *x)
{
    const char *name = hist_names[h].name;
    family(f, name, "histogram", hist_names[h].help);
    for (int i = 0; i < BOUNDS; i++)
        fprintf(f, "ratoon_%s_bucket{le=\"%g\"} %lld\n", name, bounds[h][i], (long long) x->at[i]);
    fprintf(f, "ratoon_%s_bucket{le=\"+Inf\"} %lld\nratoon_%s_sum %.9g\nratoon_%s_count %lld\n", name, (long long) x->n,
            name, x->sum, name, (long long) x->n);
}

/* Private memory of this process: resident and swapped. */
static double own_bytes(void)
{
    FILE *f = fopen("/proc/self/status", "r");
    char line[256];
    long long kib = 0, v;
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "RssAnon: %lld", &v) == 1 || sscanf(line, "VmSwap: %lld", &v) == 1) kib += v;
    if (f) fclose(f);
    return (double) kib * 1024;
}

static void cache_text(FILE *f, Cache *c)
{
    CacheStats s = { 0 };
    if (c) cache_stats(c, &s);
    family(f, "snapshot_hits_total", "counter", "Prompts that began with a remembered state.");
    fprintf(f, "ratoon_snapshot_hits_total{tier=\"ram\"} %lld\nratoon_snapshot_hits_total{tier=\"disk\"} %lld\n",
            (long long) s.hits_ram, (long long) s.hits_disk);
    family(f, "snapshot_saves_total", "counter", "States remembered.");
    fprintf(f, "ratoon_snapshot_saves_total{tier=\"ram\"} %lld\nratoon_snapshot_saves_total{tier=\"disk\"} %lld\n",
            (long long) s.saved, (long long) s.written);
    family(f, "snapshot_evictions_total", "counter", "States that made room.");
    fprintf(f,
            "ratoon_snapshot_evictions_total{tier=\"ram\"} %lld\nratoon_snapshot_evictions_total{tier=\"disk\"} %lld\n",
            (long long) s.evicted_ram, (long long) s.evicted_disk);
    family(f, "snapshot_bytes", "gauge", "Bytes of remembered states.");
    fprintf(f, "ratoon_snapshot_bytes{tier=\"ram\"} %zu\nratoon_snapshot_bytes{tier=\"disk\"} %llu\n", s.ram_bytes,
            (unsigned long long) s.disk_bytes);
    single(f, "snapshot_damaged_total", "counter", (double) s.damaged, "Records that were damaged and dropped.");
}

static void work_text(FILE *f, const Metrics *m)
{
    static const char *const source[RT_SOURCES] = { [RT_BLOCK] = "drafter", [RT_NGRAM] = "text", [RT_MTP] = "mtp" };
    const rt_stats *w = &m->work;
    single(f, "prefill_seconds_total", "counter", w->prefill_s, "Time of prompt passes.");
    single(f, "decode_seconds_total", "counter", w->decode_s,
           "Time of decoding passes, counted for each answer in them.");
    single(f, "decode_passes_total", "counter", (double) w->passes,
           "Decoding passes, counted for each answer in them.");
    single(f, "spec_steps_total", "counter", (double) (w->passes - w->plain), "Of these with drafted rows.");
    single(f, "spec_drafts_total", "counter", (double) w->drafts, "Proposals of the drafting model.");
    single(f, "spec_draft_tokens_total", "counter", (double) w->drafted, "Drafted rows.");
    single(f, "spec_accepted_tokens_total", "counter", (double) w->accepted, "Drafted rows that became text.");
    single(f, "denoised_blocks_total", "counter", (double) w->blocks, "Blocks of models that write by denoising.");
    single(f, "denoising_steps_total", "counter", (double) w->steps, "Steps that these blocks took.");
    family(f, "spec_source_tokens_total", "counter", "Drafted rows by who proposed them.");
    for (int i = 0; i < RT_SOURCES; i++)
        fprintf(f, "ratoon_spec_source_tokens_total{source=\"%s\",accepted=\"no\"} %lld\n"
                "ratoon_spec_source_tokens_total{source=\"%s\",accepted=\"yes\"} %lld\n", source[i],
                (long long) (w->drafted_by[i] - w->accepted_by[i]), source[i], (long long) w->accepted_by[i]);
}

/* The library counts how many reads took how long, not the sum of their times: the histogram has none. */
static void read_times(FILE *f, const int64_t *latency)
{
    int64_t sum = 0;
    family(f, "expert_read_seconds", "histogram", "Reads of the model file for experts, by how long they took.");
    for (int i = 0; i < RT_LATENCIES; i++) {
        sum += latency[i];
        if (i + 1 < RT_LATENCIES)                  /* the last one has no bound */
            fprintf(f, "ratoon_expert_read_seconds_bucket{le=\"%.6f\"} %lld\n", (double) ((int64_t) 2 << i) / 1e6,
                    (long long) sum);
    }
    fprintf(f, "ratoon_expert_read_seconds_bucket{le=\"+Inf\"} %lld\nratoon_expert_read_seconds_count %lld\n",
            (long long) sum, (long long) sum);
}

/* Where memory holds all experts there are no figures. */
static void experts_text(FILE *f, const rt_expert_stats *s)
{
    if (s->slots == 0) return;
    family(f, "expert_slots", "gauge", "Experts that memory has room for: to stay, and to come and go.");
    fprintf(f, "ratoon_expert_slots{tier=\"pinned\"} %lld\nratoon_expert_slots{tier=\"ring\"} %lld\n",
            (long long) s->pinned, (long long) (s->slots - s->pinned));
    single(f, "expert_ram_bytes", "gauge", (double) s->bytes, "Memory for experts and for reading them.");
    single(f, "expert_chosen_total", "counter", (double) s->chosen, "How often rows chose an expert.");
    family(f, "expert_hits_total", "counter", "Experts that a pass found in memory, once per layer.");
    fprintf(f, "ratoon_expert_hits_total{tier=\"pinned\"} %lld\nratoon_expert_hits_total{tier=\"ring\"} %lld\n",
            (long long) s->pinned_hits, (long long) s->ring_hits);
    if (s->bus_bytes > 0) {
        single(f, "expert_bus_hits_total", "counter", (double) s->bus_hits, "Experts that a GPU found in main memory.");
        single(f, "expert_bus_bytes_total", "counter", (double) s->bus_bytes, "Bytes that it has read there.");
    }
    single(f, "expert_misses_total", "counter", (double) s->misses, "Experts that a pass had to read from the file.");
    single(f, "expert_read_bytes_total", "counter", (double) s->missed_bytes, "Bytes of these.");
    single(f, "expert_wait_seconds_total", "counter", s->wait_s, "Time in which passes waited for reads.");
    single(f, "expert_pack_seconds_total", "counter", s->pack_s, "Time in which what was read was packed.");
    single(f, "expert_evictions_total", "counter", (double) s->evicted, "Experts that made room.");
    single(f, "expert_promotions_total", "counter", (double) s->promoted, "Experts that came from the ring to stay.");
    read_times(f, s->latency);
}

char *metrics_text(Metrics *m, const MetricsNow *now, Cache *cache, size_t *n)
{
    static const char *const dialects[DIALECTS] = { "completions", "chat", "responses", "messages", "llama", "infill",
                                                    "ollama_chat", "ollama_generate" };
    static const char *const phases[PHASES] = { "queued", "prefill", "decode" };
    char *text = NULL;
    *n = 0;
    FILE *f = open_memstream(&text, n);
    if (!f) return NULL;
    pthread_mutex_lock(&m->lock);
    family(f, "requests_total", "counter", "Requests by dialect and HTTP status; 499: the client had gone.");
    for (int d = 0; d < DIALECTS; d++)
        for (int i = 0; i < STATUSES && m->requests[d][i].n; i++)
            fprintf(f, "ratoon_requests_total{dialect=\"%s\",status=\"%d\"} %lld\n", dialects[d],
                    m->requests[d][i].status, (long long) m->requests[d][i].n);
    family(f, "requests_cancelled_total", "counter", "Requests that ended early, by where they were.");
    for (int i = 0; i < PHASES; i++)
        fprintf(f, "ratoon_requests_cancelled_total{phase=\"%s\"} %lld\n", phases[i], (long long) m->cancelled[i]);
    single(f, "prompt_tokens_total", "counter", (double) m->tokens.prompt, "Tokens of prompts.");
    single(f, "prompt_tokens_cached_total", "counter", (double) m->tokens.cached, "Of these, not computed again.");
    family(f, "generation_tokens_total", "counter", "Tokens of answers.");
    fprintf(f, "ratoon_generation_tokens_total{kind=\"content\"} %lld\n"
            "ratoon_generation_tokens_total{kind=\"reasoning\"} %lld\n"
            "ratoon_generation_tokens_total{kind=\"tool\"} %lld\n", (long long) m->tokens.content,
            (long long) m->tokens.reasoning, (long long) m->tokens.calls);
    single(f, "tool_parse_failures_total", "counter", (double) m->tokens.call_failures,
           "Tool calls that could not be read as they stood.");
    work_text(f, m);
    for (int h = 0; h < HISTS; h++) histogram(f, (Histogram) h, &m->hist[h]);
    pthread_mutex_unlock(&m->lock);
    single(f, "queue_depth", "gauge", now->waiting, "Requests that wait.");
    single(f, "busy", "gauge", now->running, "Requests that run.");
    single(f, "sessions", "gauge", now->sessions, "Sessions (--parallel).");
    single(f, "connections", "gauge", now->connections, "Open connections.");
    single(f, "ctx_max_tokens", "gauge", now->ctx, "Context of a session.");
    single(f, "ctx_used_tokens", "gauge", now->ctx_used, "Tokens that the sessions hold.");
    single(f, "kv_usage_ratio", "gauge",
           now->ctx > 0 && now->sessions > 0 ? (double) now->ctx_used / ((double) now->ctx * now->sessions) : 0,
           "Share of the sessions' contexts in use.");
    single(f, "host_bytes", "gauge", own_bytes(), "Memory of this process that is its own, resident and swapped.");
    cache_text(f, cache);
    experts_text(f, &now->experts);
    bool good = !ferror(f);
    if (fclose(f) != 0 || !good) {
        free(text);
        return NULL;
    }
    return text;
}
