/* replay.h - recorded texts and measured machines, for the controllers' tests (test_replay.c, test_batch_budget.c). */
#ifndef RATOON_TESTS_HELP_REPLAY_H
#define RATOON_TESTS_HELP_REPLAY_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "decode/budget.h"
#include "decode/tree.h"

/* ---- recorded texts (bench/lab_trace.c writes them) ---- */

typedef struct { int32_t token[LAT_DEPTH][LAT_K]; float raw[LAT_DEPTH][LAT_K]; int32_t n_depth; } Said;
/* text [n_prompt + n], margin, said [n]; limit: tokens that were asked for; the text may end sooner. */
typedef struct { int32_t n_prompt, n, limit, *text; double *margin; Said *said; } Trace;
enum { TRACES_MAX = 16, TRACE_TOKENS = 256, CTX = 4096 };
typedef struct { int32_t n; Trace at[TRACES_MAX]; } Traces;

static inline void read_said(Said *s, char *p)
{
    memset(s, 0xff, sizeof *s);
    s->n_depth = 0;
    for (int32_t d = 0, k = 0; *p && *p != '\n' && d < LAT_DEPTH;) {
        if (*p == '/') { d++; k = 0; p++; continue; }
        if (*p == ' ') { p++; continue; }
        s->n_depth = d + 1;
        s->token[d][k] = (int32_t) strtol(p, &p, 10);
        s->raw[d][k++] = (float) (-0.01 * (double) strtol(p + 1, &p, 10));
    }
}

static inline void traces_read(Traces *t, const char *name)
{
    static char line[1 << 16];
    FILE *f = fopen(name, "r");
    t->n = 0;
    if (!f) fail_msg("%s cannot be read", name);
    Trace *now = NULL;
    while (fgets(line, sizeof line, f)) {
        char *p = line;
        if (strncmp(p, "prompt ", 7) == 0) {
            if (t->n == TRACES_MAX) break;
            now = &t->at[t->n++];
            now->n = 0;
            now->limit = TRACE_TOKENS;
            now->n_prompt = (int32_t) strtol(p + 7, &p, 10);
            now->text = malloc(sizeof *now->text * (size_t) (now->n_prompt + TRACE_TOKENS));
            now->margin = malloc(sizeof *now->margin * TRACE_TOKENS);
            now->said = malloc(sizeof *now->said * TRACE_TOKENS);
            for (int32_t i = 0; i < now->n_prompt; i++) now->text[i] = (int32_t) strtol(p, &p, 10);
        } else if (now && now->n < TRACE_TOKENS && line[0] != '\n') {
            now->text[now->n_prompt + now->n] = (int32_t) strtol(p, &p, 10);
            now->margin[now->n] = strtod(p, &p);
            read_said(&now->said[now->n++], p);
        }
    }
    fclose(f);
    assert_true(t->n > 0);
}

static inline void traces_free(Traces *t)
{
    for (int32_t i = 0; i < t->n; i++) {
        free(t->at[i].text);
        free(t->at[i].margin);
        free(t->at[i].said);
    }
}

/* ---- machines ---- */

/* Times in ms of passes of `rows` rows, with straight lines between, and of a proposal of the drafter. Measured
 * (doc/lab/passes.md, the CSV files of bench) except for these guesses: the demo's 9 and 17 rows, the 4B's with tiles
 * between 2 and 22, the 27B's 64, and the proposals of 4B (bytes over bandwidth) and 27B. */
typedef struct { const char *name; int32_t n, rows[12]; double ms[12], draft; } Machine;

static const Machine machines[] = {
    { "demo", 10, { 1, 2, 4, 8, 9, 16, 17, 22, 32, 64 },
      { 0.380, 0.435, 0.563, 0.846, 0.92, 1.463, 1.55, 1.993, 2.739, 5.271 }, 0.60 },
    { "4B", 8, { 1, 2, 4, 8, 16, 22, 32, 64 }, { 91.4, 92.0, 100, 121, 145, 215, 260, 462 }, 22 },
    { "4B without tiles", 8, { 1, 2, 4, 8, 16, 22, 32, 64 }, { 91.6, 91.8, 103.5, 129, 199, 284, 376, 747 }, 22 },
    { "27B", 5, { 1, 8, 16, 22, 64 }, { 563, 749, 923, 1345, 3200 }, 90 },
};
enum { DEMO, FOUR, FOUR_PLAIN, BIG, MACHINES };

static double machine_pass(const Machine *m, int32_t rows)
{
    int32_t i = 1;
    while (i + 1 < m->n && rows > m->rows[i]) i++;
    return m->ms[i - 1] + (m->ms[i] - m->ms[i - 1]) * (rows - m->rows[i - 1]) / (m->rows[i] - m->rows[i - 1]);
}

static double play_random(uint64_t *rng)
{
    *rng = *rng * 6364136223846793005ull + 1442695040888963407ull;
    return (double) (*rng >> 33) / 2147483648.0;
}

/* What the table knows when a text begins, as in spec.c: how long the prompt's chunk took. uneven: times differ by up
 * to this share. */
static inline void machine_known(Cost *c, const Machine *m, double uneven, uint64_t *rng)
{
    cost_reset(c);
    cost_chunk(c, ROWS_DECODE, 1e-3 * machine_pass(m, ROWS_DECODE) * (1 + uneven * (2 * play_random(rng) - 1)));
}

static inline void said_lattice(Lattice *l, const Said *s, const Calibration *calib)
{
    l->n_depth = s->n_depth;
    l->k = LAT_K;
    l->alike = (1u << LAT_K) - 1;
    for (int32_t d = 0; d < s->n_depth; d++)
        for (int32_t k = 0; k < LAT_K; k++) {
            bool there = s->token[d][k] >= 0;
            l->token[d][k] = s->token[d][k];
            l->source[d][k] = SOURCE_BLOCK;
            float edge = there ? calib_edge(calib, SOURCE_BLOCK, d, s->raw[d][k]) : -INFINITY;
            for (int32_t prev = 0; prev < LAT_K; prev++) {
                l->raw[d][prev][k] = there ? s->raw[d][k] : -INFINITY;
                l->edge[d][prev][k] = edge;
            }
        }
}

static const char *const classes[] = { "code", "arithmetic", "stdlib", "prose" };
enum { CLASSES = 4 };

static inline void read_class(Traces *t, int32_t c)
{
    char name[64];
    snprintf(name, sizeof name, "tests/data/traces/%s.txt", classes[c]);
    traces_read(t, name);
}

#endif
