/* calib.c - cells of edges, and the piecewise linear map through the middles of the buckets. A bucket's value is its
 * middle shifted by log((accepted + prior) / (expected + prior)); isotonic regression (pooling neighbours that would
 * decrease) makes the map non-decreasing. */
#include "decode/calib.h"

#include <math.h>
#include <string.h>

#include "base/mathd.h"

static const float MIDDLE[CALIB_BUCKETS] = { -9.0f, -6.0f, -4.0f, -2.5f, -1.5f, -0.8f, -0.3f, -0.05f };
static const double PRIOR = 32, HALF_LIFE = 2000, WEIGHT_MAX = 1 << 20;
static const double SCALE_PRIOR = 2, SCALE_KEEP = 0.9946;                     /* half-life 128 rows */
static const double FORGET[SOURCES] = { 0.8, 0.98, 0.8 }, NEXT_KEEP = 0.25;

static bool in_range(int32_t source, int32_t depth)
{
    return source >= 0 && source < SOURCES && depth >= 0 && depth < LAT_DEPTH;
}

static int32_t bucket_of(float logp)
{
    int32_t b = 0;
    while (b + 1 < CALIB_BUCKETS && logp > 0.5f * (MIDDLE[b] + MIDDLE[b + 1])) b++;
    return b;
}

void calib_reset(Calibration *c)
{
    memset(c, 0, sizeof *c);
    c->weight = 1;
    for (int s = 0; s < SOURCES; s++)
        for (int d = 0; d < LAT_DEPTH; d++) memcpy(c->cell[s][d].value, MIDDLE, sizeof MIDDLE);
}

float calib_map(const Calibration *c, int32_t source, int32_t depth, float logp)
{
    if (!(logp > -INFINITY)) return -INFINITY;
    if (logp > 0) logp = 0;
    if (!in_range(source, depth)) return logp;
    const float *v = c->cell[source][depth].value;
    enum { LAST = CALIB_BUCKETS - 1 };
    double x = (double) logp, y;
    if (logp <= MIDDLE[0])         y = (double) v[0] + (x - (double) MIDDLE[0]);
    else if (logp >= MIDDLE[LAST]) y = (double) v[LAST] + (x - (double) MIDDLE[LAST]);
    else {
        int32_t b = 0;
        while (logp >= MIDDLE[b + 1]) b++;
        double t = (x - (double) MIDDLE[b]) / ((double) MIDDLE[b + 1] - (double) MIDDLE[b]);
        y = (double) v[b] + ((double) v[b + 1] - (double) v[b]) * t;
    }
    return y < 0 ? (float) y : 0.0f;
}

float calib_edge(const Calibration *c, int32_t source, int32_t depth, float logp)
{
    float y = calib_map(c, source, depth, logp);
    if (in_range(source, depth)) y += c->scale[source];
    return y < 0 ? y : 0.0f;
}

void calib_level(Calibration *c, int32_t source, double expected, bool hit)
{
    if (!in_range(source, 0)) return;
    c->hits[source]  = c->hits[source] * SCALE_KEEP + (hit ? 1 : 0);
    c->expected[source] = c->expected[source] * SCALE_KEEP + expected;
    c->scale[source] = (float) mathd_log((c->hits[source] + SCALE_PRIOR) / (c->expected[source] + SCALE_PRIOR));
}

static void fade(Calibration *c, int32_t source, double keep)
{
    c->hits[source]  *= keep;
    c->expected[source] *= keep;
    c->scale[source] = (float) mathd_log((c->hits[source] + SCALE_PRIOR) / (c->expected[source] + SCALE_PRIOR));
}

void calib_forget(Calibration *c, int32_t source)
{
    if (in_range(source, 0)) fade(c, source, FORGET[source]);
}

void calib_next(Calibration *c) { fade(c, SOURCE_NGRAM, NEXT_KEEP); }

void calib_count(Calibration *c, int32_t source, int32_t depth, float logp, bool accepted)
{
    if (!in_range(source, depth) || !(logp > -INFINITY)) return;
    CalibCell *cell = &c->cell[source][depth];
    int32_t b = bucket_of(logp);
    cell->offered[b]  += (float) c->weight;
    cell->expected[b] += (float) (c->weight * mathd_exp(logp < 0 ? (double) logp : 0));
    if (accepted) cell->accepted[b] += (float) c->weight;

    c->weight *= 1 + 0.69314718055994531 / HALF_LIFE;
    if (c->weight < WEIGHT_MAX) return;
    float down = (float) (1 / c->weight);
    for (int s = 0; s < SOURCES; s++)
        for (int d = 0; d < LAT_DEPTH; d++)
            for (int i = 0; i < CALIB_BUCKETS; i++) {
                c->cell[s][d].offered[i]  *= down;
                c->cell[s][d].accepted[i] *= down;
                c->cell[s][d].expected[i] *= down;
            }
    c->weight = 1;
}

void calib_fit(Calibration *c, int32_t source, int32_t depth)
{
    if (!in_range(source, depth)) return;
    CalibCell *cell = &c->cell[source][depth];
    double value[CALIB_BUCKETS], weight[CALIB_BUCKETS];
    int32_t first[CALIB_BUCKETS], n = 0;                             /* pools: where each begins */
    for (int32_t b = 0; b < CALIB_BUCKETS; b++) {
        double prior = PRIOR * mathd_exp((double) MIDDLE[b]);        /*  32 edges that behaved as predicted */
        double ratio = ((double) cell->accepted[b] / c->weight +
                        prior) / ((double) cell->expected[b] / c->weight + prior);
        value[n] = (double) MIDDLE[b] + mathd_log(ratio);
        weight[n] = (double) cell->offered[b] / c->weight + PRIOR;
        if (value[n] > 0) value[n] = 0;
        first[n++] = b;
        while (n > 1 && value[n - 1] < value[n - 2]) {
            double w = weight[n - 2] + weight[n - 1];
            value[n - 2] = (value[n - 2] * weight[n - 2] + value[n - 1] * weight[n - 1]) / w;
            weight[n - 2] = w;
            n--;
        }
    }
    for (int32_t p = 0; p < n; p++)
        for (int32_t b = first[p]; b < (p + 1 < n ? first[p + 1] : CALIB_BUCKETS); b++)
            cell->value[b] = (float) value[p];
}
