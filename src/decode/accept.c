/* accept.c - the walk, and what it teaches. */
#include "decode/accept.h"

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

void accept_learn(Calibration *c, const Tree *t, const Path *p)
{
    uint32_t touched[SOURCES] = { 0 };
    uint64_t visited = 0;
    double hoped[ROWS_DECODE] = { 0 };
    uint8_t source[ROWS_DECODE];                                     /* of a visited row's first child */
    if (t->n == 1) calib_forget(c);
    for (int32_t i = 0; i < p->n; i++) visited |= (uint64_t)1 << p->row[i];
    for (int32_t i = 1; i < t->n; i++) {
        int32_t parent = t->parent[i];
        if (!(visited >> parent & 1)) continue;
        if (hoped[parent] == 0) source[parent] = t->source[i];
        hoped[parent] += mathd_exp((double)calib_map(c, t->source[i], t->depth[i] - 1, t->raw[i]));
    }
    for (int32_t i = 0; i < p->n; i++)
        if (hoped[p->row[i]] > 0) calib_level(c, source[p->row[i]], hoped[p->row[i]] < 1 ? hoped[p->row[i]] : 1, i + 1 < p->n);
    for (int32_t i = 1; i < t->n; i++) {
        if (!(visited >> t->parent[i] & 1)) continue;
        calib_count(c, t->source[i], t->depth[i] - 1, t->raw[i], visited >> i & 1);
        touched[t->source[i]] |= 1u << (t->depth[i] - 1);
    }
    for (int32_t s = 0; s < SOURCES; s++)
        for (int32_t d = 0; d < LAT_DEPTH; d++) if (touched[s] >> d & 1) calib_fit(c, s, d);
}
