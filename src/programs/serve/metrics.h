/* metrics.h - what is counted, and how Prometheus reads it. One lock, held for a few additions. */
#ifndef RATOON_SERVE_METRICS_H
#define RATOON_SERVE_METRICS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ratoon.h"

typedef struct Metrics Metrics;
typedef enum { HIST_TTFT, HIST_TPOT, HIST_WAIT, HIST_ACCEPT, HISTS } Histogram;
typedef enum { PHASE_QUEUED, PHASE_PREFILL, PHASE_DECODE, PHASES } Phase;

Metrics *metrics_new(void);                        /* NULL: out of memory */
void     metrics_free(Metrics *m);

/* A request is over. dialect: an index of request.h's Dialect. */
void metrics_request(Metrics *m, int dialect, int status);
void metrics_cancelled(Metrics *m, Phase phase);
void metrics_observe(Metrics *m, Histogram h, double value);
/* A choice is over: what its session did, and what its tokens were. */
typedef struct { int64_t prompt, cached, content, reasoning, calls, call_failures; } MetricTokens;
void metrics_tokens(Metrics *m, const MetricTokens *t);
void metrics_work(Metrics *m, const rt_stats *s);
double metrics_seconds_per_request(Metrics *m);    /* of those that ran; for Retry-After */
void metrics_request_seconds(Metrics *m, double seconds);

/* Gauges of the moment, from elsewhere. */
typedef struct { int32_t waiting, running, connections, ctx, ctx_used, sessions; } MetricsNow;
struct Cache;
/* Prometheus text, malloc'd; NULL: out of memory. */
char *metrics_text(Metrics *m, const MetricsNow *now, struct Cache *cache, size_t *n);

#endif
