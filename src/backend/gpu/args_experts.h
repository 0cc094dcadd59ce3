/* args_experts.h - arguments of the kernels in experts*.cu. A pair is a row of the pass and one of its ranks: row *
 * used + rank. What an expert makes of a row lies at the pair, so nothing depends on the order of the lists. */
#ifndef RATOON_BACKEND_GPU_ARGS_EXPERTS_H
#define RATOON_BACKEND_GPU_ARGS_EXPERTS_H

enum { EXPERT_ROWS = 32, EXPERT_GROUPS = 4, EXPERT_COLS = 16 * EXPERT_GROUPS };

/* Which rows go to which expert, made of ids on the device: pairs in order of their experts, and items, each up to
 * EXPERT_ROWS pairs [first, first + n) of one expert. An id that is no expert's, -1, is in no list. clear [n_clear]:
 * tickets of the product that follows, set to 0. report: where experts are counted; counts [experts]: how many pairs
 * each has had, NULL: not wanted. */
typedef struct { int32_t expert, first, n, pad; } ExpertItem;
typedef struct {
    const int32_t *ids;
    ExpertItem *item;
    int32_t *n_items, *pair, *clear;
    GpuReport *report;
    int32_t *counts;
    int32_t  pairs, experts, n_clear;
} ExpertLists;

/* Backend.route, a block per row. lists: item NULL: not wanted; else the last block makes them. ticket: 0 between
 * launches. */
typedef struct {
    int32_t *ids, *ticket;
    float   *weight;
    const float *logits, *bias, *factor;           /* bias, factor NULL: none */
    const int32_t *count;
    int32_t  experts, used, gating;
    float    scale;
    ExpertLists lists;
} RouteArgs;

/* Products of all items with their experts' matrices, packed alike. Matrix e is at w + e * matrix_bytes, or, where
 * there is a table, matrix_bytes behind the address where[e], which may be of pinned memory of the host. Block (i, j):
 * item i, tile j of EXPERT_GROUPS groups of weights, where the tiles of both products follow one another from tile0 on.
 * An item's rows of act, or of x for weights that are floats, are its pairs / divide; its rows of y are its pairs. */
typedef struct {
    const uint8_t *w;
    const uint64_t *where;                         /* [experts] NULL: no table */
    float *y;
    int64_t matrix_bytes;
    int32_t rows, tile0;
} ExpertProduct;

/* After gate and up, whose tiles may come from two launches: whoever is the last of the tiles of 256 columns of an item
 * makes h = act(h * gate[expert]) * (wide * up[expert]) of them (gate, up NULL: 1), and quantises that into rows
 * [pair], or stores it if both forms are NULL.
 * ticket [items, columns / 256]. After down: whoever is the last of a row's used experts sums them up: y = sum of
 * weight * each. ticket [rows, tiles]; clear [n_clear]: that of the product that follows. */
typedef struct {
    int32_t *ticket;
    float   *h;
    const float *wide, *gate, *up;
    int32_t  cols, function;
    ActRows  rows[2];
} ExpertAct;
typedef struct { int32_t *ticket; float *y; const float *each, *weight; int32_t cols, used; } ExpertSum;
typedef struct {
    ActRows act;
    const float *x;
    const ExpertItem *item;
    const int32_t *n_items, *pair;
    int32_t divide, cols, n_products, n_clear, *clear;
    ExpertProduct product[2];
    ExpertAct glu;                                 /* one of both has a ticket */
    ExpertSum sum;
} ExpertsArgs;

#endif
