/* metrics.h - counters and gauges, and their text for Prometheus. One lock, held for a few additions. */
#ifndef RATOON_PROGRAMS_SERVE_METRICS_H
#define RATOON_PROGRAMS_SERVE_METRICS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ratoon.h"

typedef struct Metrics Metrics;
typedef enum { HIST_TTFT, HIST_TPOT, HIST_WAIT, HIST_ACCEPT, HISTS } Histogram;
typedef enum { PHASE_QUEUED, PHASE_PREFILL, PHASE_DECODE, PHASES } Phase;

Metrics *metrics_new(void);                        /* NULL: out of memory */
void     metrics_free(Metrics *m);

/* Counts a finished request. dialect: value of request.h's Dialect. */
void metrics_request(Metrics *m, int dialect, int status);
void metrics_cancelled(Metrics *m, Phase phase);
void metrics_observe(Metrics *m, Histogram h, double value);
/* Counts a finished choice: statistics of its session, and its tokens by kind. */
typedef struct { int64_t prompt, cached, content, reasoning, calls, call_failures; } MetricTokens;
void metrics_tokens(Metrics *m, const MetricTokens *t);
void metrics_work(Metrics *m, const rt_stats *s);
double metrics_seconds_per_request(Metrics *m);    /* average over requests that ran; for Retry-After */
void metrics_request_seconds(Metrics *m, double seconds);

/* Current gauges, and what the engine counts itself, supplied by the caller. */
typedef struct { int32_t waiting, running, connections, ctx, ctx_used, sessions; rt_expert_stats experts; } MetricsNow;
struct Cache;
/* Prometheus text, malloc'd; NULL: out of memory. */
char *metrics_text(Metrics *m, const MetricsNow *now, struct Cache *cache, size_t *n);

#endif
