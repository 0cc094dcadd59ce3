/* ops_cases.h - the cases of test_ops.c by subject; its table has the shapes of each. */
#ifndef RATOON_TESTS_HELP_OPS_CASES_H
#define RATOON_TESTS_HELP_OPS_CASES_H

#include "ops_run.h"

typedef void CaseRun(Run *r, const Turn *t);

/* ops_rows.c: operations row by row */
CaseRun ops_norm, ops_add_norm, ops_head_norm, ops_gated_norm, ops_add, ops_bias, ops_glu, ops_gate, ops_scale,
        ops_softcap, ops_norms_are_one, ops_add_then_few;
/* ops_moves.c: operations that move rows; rotation, products */
CaseRun ops_split, ops_join, ops_logit_rows, ops_tap, ops_rope, ops_matmul;
/* ops_products.c: a round for each type of weights and number of rows */
enum { PRODUCT_ROUNDS = 22 * 14 };
CaseRun ops_products, ops_products_behind;
uint8_t *ops_odd_weights(Run *r, Type t, int32_t rows, int32_t cols, uint64_t *seed);
float   *ops_odd_rows(Run *r, int32_t n, int32_t cols, uint64_t *seed);
/* ops_experts.c: mixtures; backends without them skip these */
CaseRun ops_route, ops_experts;
/* ops_canvas.c: the end of a denoising step. Rounds are types of weights. */
enum { CANVAS_ROUNDS = 6 };
CaseRun ops_canvas;
/* ops_acts.c: norms without weights, activations, tables of angles, attention in one operation */
CaseRun ops_norms_unweighted, ops_glu_acts, ops_gate_acts, ops_act_ends, ops_rope_table, ops_attend_block;
/* ops_attention.c; t->rows is the length of the text before */
CaseRun ops_attention, ops_pairs, ops_splits, ops_wraps, ops_canvases, ops_rings, ops_odd_scales, ops_odd_scores,
        ops_blocks;
/* ops_state.c: rules of state, for attention and delta net alike; keys and values saved and loaded; the delta net */
CaseRun ops_trees, ops_single_rows, ops_keep, ops_marks, ops_neighbours, ops_kv_save, ops_kv_load, ops_delta;
/* ops_ends.c: drafters' extras, ends of passes, memory and failures */
CaseRun ops_block_conv, ops_pair_scores, ops_top_k, ops_pick, ops_memory, ops_failures, ops_replay, ops_kv_bytes,
        ops_cpu_refusals, ops_rings_without_panels;
/* ops_draws.c: what ends passes, under random parameters */
CaseRun ops_draws, ops_draw_edges, ops_draw_large;

#endif
