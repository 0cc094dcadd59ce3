/* accept.c - the walk, and what it teaches. */
#include "decode/accept.h"

#include <math.h>

#include "base/mathd.h"

Status accept_path(Path *out, const Tree *t, NextToken next, void *ud)
{
    out->n = 1;
    out->row[0] = 0;
    for (;;) {
        int32_t row = out->row[out->n - 1], token = next(ud, row, out);
        out->bonus = token;
        if (token < 0) return token == DRAW_NONE ? ST_NOTOKEN : ST_BACKEND;
        int32_t child = tree_child(t, row, token);
        if (child < 0) return ST_OK;
        out->row[out->n++] = child;                                  /* child > row: the walk ends */
    }
}

static void learn_source(Calibration *c, int32_t source, const Tree *t, const Path *p, uint64_t visited, bool proposed)
{
    double expected[ROWS_DECODE] = { 0 };
    uint64_t shared = 0;                         /* rows with a child that another source proposed too */
    uint32_t touched = 0;
    bool there = false;
    for (int32_t i = 1; i < t->n; i++) {
        if (!(t->raw[i][source] > -INFINITY)) continue;
        there = true;
        for (int32_t other = 0; other < SOURCES; other++)
            if (other != source && t->raw[i][other] > -INFINITY) shared |= (uint64_t) 1 << t->parent[i];
        if (visited >> t->parent[i] & 1)
            expected[t->parent[i]] += mathd_exp((double) calib_map(c, source, t->depth[i] - 1, t->raw[i][source]));
    }
    if (!there) {
        if (proposed) calib_forget(c, source);
        return;
    }
    /* Where a model proposes the same, the look-up is right far more often than where it stands alone; but its scale is
     * needed where it stands alone, below the model's last depth. */
    if (source != SOURCE_NGRAM) shared = 0;
    for (int32_t i = 0; i < p->n; i++) {
        double h = shared >> p->row[i] & 1 ? 0 : expected[p->row[i]];
        if (h > 0) calib_level(c, source, h < 1 ? h : 1, i + 1 < p->n && t->raw[p->row[i + 1]][source] > -INFINITY);
    }
    for (int32_t i = 1; i < t->n; i++) {
        if (!(visited >> t->parent[i] & 1) || !(t->raw[i][source] > -INFINITY)) continue;
        calib_count(c, source, t->depth[i] - 1, t->raw[i][source], visited >> i & 1);
        touched |= 1u << (t->depth[i] - 1);
    }
    for (int32_t d = 0; d < LAT_DEPTH; d++) if (touched >> d & 1) calib_fit(c, source, d);
}

void accept_learn(Calibration *c, const Tree *t, const Path *p, uint32_t proposed)
{
    uint64_t visited = 0;
    for (int32_t i = 0; i < p->n; i++) visited |= (uint64_t) 1 << p->row[i];
    for (int32_t s = 0; s < SOURCES; s++) learn_source(c, s, t, p, visited, proposed >> s & 1);
}

double accept_expected(const Tree *t, const Path *p)
{
    double sum = 0, below[ROWS_DECODE] = { 0 };
    for (int32_t i = 1; i < t->n; i++) below[t->parent[i]] += mathd_exp(t->score[i] - t->score[t->parent[i]]);
    for (int32_t i = 0; i < p->n; i++) sum += fmin(1, below[p->row[i]]);
    return sum;
}
