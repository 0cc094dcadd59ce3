/* test_ops.c - every operation of a backend, on every available backend: the portable one with one thread is the
 * reference, and all others must give its bits.
 *     test_ops [--backend NAME] [CASE]
 * CASE: one line of the table below, or several ("kv_*"). NAME: one more backend, named as for backend_open. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cpu/level.h"
#include "device_backend.h"
#include "gpu_driver.h"
#include "ops_cases.h"
#include "part.h"

#include <stdarg.h>
#include <setjmp.h>
#include <cmocka.h>

/* ---- shapes ---- */

#define ROWS(n, m) { .rows = n, .cols = m }
static const Shape any[] = { ROWS(1, 1), ROWS(3, 7), ROWS(2, 16), ROWS(5, 33), ROWS(1, 1024), ROWS(7, 130),
                             ROWS(64, 257), ROWS(33, 1024) };
static const Shape heads[] = { ROWS(5, 120) }, moved[] = { ROWS(6, 8), ROWS(3, 41) }, product[] = { ROWS(37, 512) },
                   logits[] = { ROWS(6, 1000) }, vocabularies[] = { ROWS(2, 151936) },
                   canvases[] = { ROWS(700, 64), ROWS(256, 256), ROWS(515, 512), ROWS(4097, 96) };

/* layer.head_dim: columns that share a gate logit */
#define GATED(n, m, width) { .rows = n, .cols = m, .layer = { .head_dim = width } }
static const Shape gated[] = { GATED(1, 1, 1), GATED(3, 42, 7), GATED(5, 96, 32), GATED(2, 48, 16),
                               GATED(33, 1024, 128), GATED(2, 20000, 10000) };
static const Shape thirds[] = { ROWS(5, 72) };

#define F16_GROUPS .layer = { .kind = LAYER_ATTENTION, .heads = 4, .kv_heads = 2, .head_dim = 64, .scale = 0.125f, \
                              .k_type = T_F16, .v_type = T_F16 }
#define CAPPED     .layer = { .kind = LAYER_ATTENTION, .heads = 6, .kv_heads = 1, .head_dim = 40, .scale = 0.2f, \
                              .softcap = 5, .k_type = T_F32, .v_type = T_BF16 }
#define WINDOW     .layer = { .kind = LAYER_ATTENTION, .heads = 3, .kv_heads = 3, .head_dim = 16, .scale = 0.5f, \
                              .window = 50, .k_type = T_BF16, .v_type = T_F32 }
#define LONG_WINDOW .layer = { .kind = LAYER_ATTENTION, .heads = 4, .kv_heads = 2, .head_dim = 32, .scale = 0.2f, \
                               .window = 300, .k_type = T_Q8_0, .v_type = T_F16 }
#define MANY_HEADS .layer = { .kind = LAYER_ATTENTION, .heads = 40, .kv_heads = 1, .head_dim = 8, .scale = 0.3f, \
                              .window = 5, .k_type = T_F32, .v_type = T_F32 }
#define TURNED     .layer = { .kind = LAYER_ATTENTION, .heads = 6, .kv_heads = 2, .head_dim = 128, .scale = 0.1f, \
                              .k_type = T_TQ3_0, .v_type = T_TQ3_0 }
#define PANELS     .layer = { .kind = LAYER_ATTENTION, .heads = 4, .kv_heads = 2, .head_dim = 96, .scale = 0.1f, \
                              .window = 60, .k_type = T_Q8_0, .v_type = T_Q4_1 }
#define WIDER      .layer = { .kind = LAYER_ATTENTION, .heads = 4, .kv_heads = 2, .head_dim = 64, .value_dim = 96, \
                              .scale = 0.1f, .k_type = T_F16, .v_type = T_F16 }
#define NARROW     .layer = { .kind = LAYER_ATTENTION, .heads = 40, .kv_heads = 2, .head_dim = 72, .value_dim = 8, \
                              .scale = 0.1f, .k_type = T_F32, .v_type = T_BF16 }
#define NARROWER   .layer = { .kind = LAYER_ATTENTION, .heads = 3, .kv_heads = 3, .head_dim = 96, .value_dim = 32, \
                              .scale = 0.1f, .window = 50, .k_type = T_Q5_1, .v_type = T_Q8_0 }
#define WIDEST     .layer = { .kind = LAYER_ATTENTION, .heads = 6, .kv_heads = 2, .head_dim = 512, .scale = 0.05f, \
                              .k_type = T_F16, .v_type = T_F16 }
#define WIDE_CODES .layer = { .kind = LAYER_ATTENTION, .heads = 8, .kv_heads = 1, .head_dim = 512, .scale = 0.05f, \
                              .k_type = T_Q8_0, .v_type = T_Q5_1 }
#define DELTA_4    .layer = { .kind = LAYER_DELTA, .k_heads = 2, .v_heads = 4, .k_dim = 32, .v_dim = 48, \
                              .conv_width = 4, .eps = 1e-6f }
#define DELTA_3    .layer = { .kind = LAYER_DELTA, .k_heads = 1, .v_heads = 1, .k_dim = 20, .v_dim = 13, \
                              .conv_width = 3, .eps = 1e-6f }
#define DELTA_2    .layer = { .kind = LAYER_DELTA, .k_heads = 2, .v_heads = 2, .k_dim = 16, .v_dim = 80, \
                              .conv_width = 2, .eps = 1e-6f }
#define DELTA_FULL .layer = { .kind = LAYER_DELTA, .k_heads = 1, .v_heads = 1, .k_dim = 128, .v_dim = 128, \
                              .conv_width = 5, .eps = 1e-6f }

static const Shape layers[] = { { F16_GROUPS }, { CAPPED }, { WINDOW }, { MANY_HEADS }, { TURNED }, { PANELS },
                                { WIDER }, { NARROW }, { NARROWER }, { WIDEST }, { WIDE_CODES }, { DELTA_4 },
                                { DELTA_3 }, { DELTA_2 }, { DELTA_FULL } };
static const Shape windows[] = { { WINDOW }, { MANY_HEADS }, { PANELS } };
/* rows: of the first text */
static const Shape denoised[] = { { 100, WINDOW }, { 1, PANELS }, { 200, LONG_WINDOW }, { 140, F16_GROUPS } };
static const Shape deltas[] = { { DELTA_4 }, { DELTA_3 }, { DELTA_2 }, { DELTA_FULL } };
static const Shape blocks[] = { { F16_GROUPS }, { PANELS }, { TURNED }, { WIDER } };
static const Shape first_layer[] = { { F16_GROUPS } };

/* Attention: rows is the length of the text. */
#define EACH_LAYER(n)                                                                                 \
    { n, F16_GROUPS }, { n, CAPPED }, { n, WINDOW }, { n, MANY_HEADS }, { n, TURNED }, { n, PANELS }, \
                      { n, WIDER }, { n, NARROW }, { n, NARROWER }
static const Shape texts[] = { { 8200, F16_GROUPS }, { 8200, CAPPED }, { 4090, F16_GROUPS }, { 4090, CAPPED },
                               EACH_LAYER(300), EACH_LAYER(256), EACH_LAYER(255), EACH_LAYER(15), EACH_LAYER(1),
                               { 300, WIDEST }, { 300, WIDE_CODES }, { 1, WIDEST }, { 15, WIDE_CODES } };
static const Shape long_texts[] = { ROWS(4095, 0), ROWS(4096, 0), ROWS(8191, 0), ROWS(11900, 0) };

#define STORED(t, dim) { .layer = { .kind = LAYER_ATTENTION, .heads = 3, .kv_heads = 3, .head_dim = dim, \
                                    .scale = 0.1f, .k_type = t, .v_type = t } }
static const Shape stored[] = { STORED(T_F32, 40), STORED(T_F16, 40), STORED(T_BF16, 40), STORED(T_Q8_0, 64),
                                STORED(T_Q5_1, 64), STORED(T_Q5_0, 64), STORED(T_Q4_1, 64), STORED(T_Q4_0, 64),
                                STORED(T_TQ3_0, 128) };

/* ---- the table ---- */

typedef struct {
    const char  *name;
    CaseRun     *run;
    const Shape *shape;                            /* NULL: the case has its own */
    int32_t      n_shapes, rounds;                 /* rounds: repetitions of each shape */
    /* Only examples run where that is asked for (part.h): of a case with many turns, turn = (i, j) with j < across; of
     * one that is slow in emulation (1) only with --backend. 0: every turn runs. */
    int32_t      across;
    bool         of_cpu;                           /* on the CPU backend only */
} Case;
#define OVER(shapes) .shape = shapes, .n_shapes = sizeof shapes / sizeof *shapes
#define OWN          .shape = NULL, .n_shapes = 1

static const Case table[] = {
    { "norm", ops_norm, OVER(any), 1 },
    { "add_norm", ops_add_norm, OVER(any), 1 },
    { "head_norm", ops_head_norm, OVER(any), 1 },
    { "gated_norm", ops_gated_norm, OVER(any), 1 },
    { "norms_are_one", ops_norms_are_one, OVER(heads), 1 },
    { "add", ops_add, OVER(any), 1 },
    { "add_then_few", ops_add_then_few, OVER(any), 1 },
    { "bias", ops_bias, OVER(any), 1 },
    { "glu", ops_glu, OVER(any), 1 },
    { "gate", ops_gate, OVER(any), 1 },
    { "norms_unweighted", ops_norms_unweighted, OVER(thirds), 1 },
    { "glu_acts", ops_glu_acts, OVER(any), 4 },
    { "gate_acts", ops_gate_acts, OVER(gated), 4 },
    { "act_ends", ops_act_ends, OWN, 4 },
    { "scale", ops_scale, OVER(any), 1 },
    { "softcap", ops_softcap, OVER(any), 1 },
    { "split", ops_split, OVER(moved), 3 },
    { "join", ops_join, OVER(moved), 1 },
    { "logit_rows", ops_logit_rows, OWN, 1 },
    { "tap", ops_tap, OWN, 1 },
    { "rope", ops_rope, OWN, 4 },
    { "rope_table", ops_rope_table, OWN, 1 },
    { "attend_block", ops_attend_block, OVER(blocks), 2 },
    { "matmul", ops_matmul, OVER(product), 1 },
    { "products_behind", ops_products_behind, OWN, 56 },
    { "products", ops_products, OWN, PRODUCT_ROUNDS, .across = 16 },
    { "route", ops_route, OWN, 63 },
    { "experts", ops_experts, OWN, 120, .across = 17 },
    { "canvas", ops_canvas, OVER(canvases), CANVAS_ROUNDS, .across = 3 },
    { "attention", ops_attention, OVER(texts), 1, .across = 9 },
    { "pairs_of_types", ops_pairs, OWN, 64, .across = 8 },
    { "splits", ops_splits, OVER(long_texts), 4, .across = 4 },
    { "wraps", ops_wraps, OVER(windows), 3, .across = 3 },
    { "canvases", ops_canvases, OVER(denoised), 1, .across = 1 },
    { "rings", ops_rings, OWN, 24 },
    { "odd_scales", ops_odd_scales, OWN, 40 },
    { "odd_scores", ops_odd_scores, OWN, 45 },
    { "blocks", ops_blocks, OVER(first_layer), 1 },
    { "delta", ops_delta, OVER(deltas), 1 },
    { "tree_rows_are_chains", ops_trees, OVER(layers), 6, .across = 6 },
    { "chain_is_single_rows", ops_single_rows, OVER(layers), 1, .across = 1 },
    { "keep_is_fresh", ops_keep, OVER(layers), 4, .across = 4 },
    { "marks_are_separate", ops_marks, OVER(deltas), 1 },
    { "neighbours_do_not_matter", ops_neighbours, OVER(layers), 1, .across = 1 },
    { "kv_save", ops_kv_save, OVER(stored), 5 },
    { "kv_load", ops_kv_load, OVER(stored), 5 },
    { "kv_bytes", ops_kv_bytes, OWN, 1 },
    { "block_conv", ops_block_conv, OWN, 2 },
    { "pair_scores", ops_pair_scores, OWN, 1 },
    { "top_k", ops_top_k, OVER(logits), 1 },
    { "pick", ops_pick, OVER(logits), 4 },
    { "draws", ops_draws, OWN, 65, .across = 13 },
    { "draw_edges", ops_draw_edges, OWN, 70, .across = 7 },
    { "draw_large", ops_draw_large, OVER(vocabularies), 8 },
    { "memory", ops_memory, OWN, 1 },
    { "replay", ops_replay, OVER(moved), 1 },
    { "failures_stick", ops_failures, OWN, 1 },
    { "cpu_refusals", ops_cpu_refusals, OWN, 1, .of_cpu = true },
    { "rings_without_panels", ops_rings_without_panels, OWN, 4, .of_cpu = true },
};
enum { CASES = sizeof table / sizeof *table };

/* ---- backends by name ---- */

static bool never(void) { return false; }

/* "device:LEVEL": the device-like backend of tests/help over that level of the CPU. */
static Status open_device(Backend **out, const char *detail, const BackendOptions *o, Error *err)
{
    char name[32];
    Backend *cpu;
    snprintf(name, sizeof name, "cpu%s%s", detail ? ":" : "", detail ? detail : "");
    *out = NULL;
    Status st = backend_open(&cpu, name, o, err);
    return st == ST_OK ? device_backend_open(out, cpu, err) : st;
}
static const BackendEntry device = { .name = "device", .there = never, .open = open_device };
extern const BackendEntry *const backends_linked[];
const BackendEntry *const backends_linked[] = { &device, NULL };

/* The first run is the reference. */
enum { BACKENDS_MAX = LEVEL_COUNT + 4 };
static Run runs[BACKENDS_MAX];
static char names[BACKENDS_MAX][64];
static int n_runs;
static Notes notes;
static const char *asked;                          /* --backend: this one beside the reference, and no other */

/* Opens two forks: one with `threads` threads, one with `others`. */
static void open_run(const char *name, int32_t threads, int32_t others, bool no_repack)
{
    Run *r = &runs[n_runs];
    Error err = { 0 };
    const BackendOptions o = { .threads = threads, .no_repack = no_repack };
    snprintf(names[n_runs], sizeof *names, "%s%s", name, no_repack ? " without repacking" : "");
    *r = (Run) { .name = names[n_runs], .reference = n_runs == 0, .notes = &notes };
    if (backend_open(&r->opened, name, &o, &err) != ST_OK ||
        r->opened->fork(r->opened, 0, &r->fork[0], &err) != ST_OK ||
        r->opened->fork(r->opened, others, &r->fork[1], &err) != ST_OK)
        fail_msg("%s: %s", name, err.text);
    r->b = r->fork[0];
    n_runs++;
}

static int open_all(void **state)
{
    (void) state;
    char name[32];
    open_run("cpu:portable", 1, 1, false);
    if (asked) {
        open_run(asked, 0, 0, false);
        return 0;
    }
    for (int l = LEVEL_PORTABLE + 1; l < LEVEL_COUNT; l++) {
        if (!level_here((CpuLevel) l)) continue;
        snprintf(name, sizeof name, "cpu:%s", level_name((CpuLevel) l));
        open_run(name, 1 + 2 * n_runs % 3, 1 + (2 * n_runs + 1) % 3, false);
    }
    open_run("cpu", 3, 2, false);
    open_run("cpu", 2, 1, true);
    open_run("device", 1, 3, false);
    return 0;
}

static int close_all(void **state)
{
    (void) state;
    for (int i = 0; i < n_runs; i++) {
        Run *r = &runs[i];
        run_end(r);
        for (int k = 0; k < 2; k++) r->fork[k]->close(r->fork[k]);
        r->opened->close(r->opened);
        free(r->held);
    }
    free(notes.byte);
    return 0;
}

/* ---- the runner ---- */

static Turn turn_of(const Case *c, int32_t turn)
{
    static const Shape own;
    const Shape *s = c->shape ? &c->shape[turn / c->rounds] : &own;
    return (Turn) { c->name, s->rows, s->cols, s->layer, turn % c->rounds, turn };
}

/* Where only examples run (part.h), different backends take part each turn. */
static bool takes_part(const Case *c, int32_t turn, int run)
{
    if (c->of_cpu && !run_is_cpu(&runs[run])) return false;
    return PART == 1 || run == 0 || c->n_shapes * c->rounds < 9 || (turn + run) % 3 == 0;
}

static void run_case(void **state)
{
    const Case *c = *state;
    for (int32_t turn = 0; turn < c->n_shapes * c->rounds; turn++) {
        if (c->across > !asked && !part_runs_pair(turn / c->across, turn % c->across)) continue;
        const Turn t = turn_of(c, turn);
        notes.n = 0;
        for (int i = 0; i < n_runs; i++) {
            Run *r = &runs[i];
            if (!takes_part(c, turn, i)) continue;
            run_end(r);                            /* left by a failed case */
            r->read = 0;
            c->run(r, &t);
            run_settle(r);
            run_must(r, r->reference || r->read == notes.n, "as much as the reference gave");
            run_end(r);
        }
    }
}

int main(int argc, char **argv)
{
    gpu_driver();
    if (argc > 2 && strcmp(argv[1], "--backend") == 0) asked = argv[2], argv += 2, argc -= 2;
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    struct CMUnitTest tests[CASES];
    for (int i = 0; i < CASES; i++)
        tests[i] = (struct CMUnitTest) { table[i].name, run_case, NULL, NULL, (void *) (uintptr_t) &table[i] };
    return cmocka_run_group_tests_name("ops", tests, open_all, close_all);
}
