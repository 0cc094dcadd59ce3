/* tree.h - from the drafter's candidates to the rows of a pass.
 * A Lattice holds, per depth, up to 16 candidates and the weight of each edge between neighbouring depths; a Tree is
 * the part of it that is worth a pass: the heaviest prefixes, found best first under a budget. Everything here is a
 * pure function from arrays to arrays. */
#ifndef RATOON_DECODE_TREE_H
#define RATOON_DECODE_TREE_H

#include <stdbool.h>
#include <stdint.h>

#include "backend/backend.h"
#include "decode/calib.h"

/* Column k of depth d is token[d][k], -1: none. edge[d][k_prev][k] is the calibrated log-probability that the target
 * takes it after column k_prev of depth d - 1 (depth 0 uses row 0), at most 0, -INFINITY: never; raw is the same before
 * calibration, from which calibration learns. For a drafter whose depths are independent (DFlash) all rows of a depth
 * are equal. A chain from another source is one more column per depth with -INFINITY except on its own edges.
 * source[d][k]: who proposed the column. alike: set of columns whose rows are equal at every depth but 0, so they all
 * have the same children. */
typedef struct {
    int32_t  n_depth, k;
    uint32_t alike;
    int32_t  token[LAT_DEPTH][LAT_COLS];
    uint8_t  source[LAT_DEPTH][LAT_COLS];
    float    edge[LAT_DEPTH][LAT_COLS][LAT_COLS], raw[LAT_DEPTH][LAT_COLS][LAT_COLS];
} Lattice;

/* From draw_top_k's result for n_depth rows: id, score [n_depth, k], best first, padded with id -1 and score -INFINITY.
 * raw = log-softmax of a depth's scores, edge = calib_edge of raw; calib NULL: edge = raw. k = 1 makes a chain. */
void lattice_from_scores(Lattice *l, const int32_t *id, const float *score, int32_t n_depth, int32_t k,
                         const Calibration *calib, int32_t source);
/* The same if the score depends on the previous candidate (DFlash2's selector): score [n_depth, k, k], row k_prev. */
void lattice_from_pairs(Lattice *l, const int32_t *id, const float *score, int32_t n_depth, int32_t k,
                        const Calibration *calib, int32_t source);

/* lattice_clear: an empty lattice. lattice_chain: adds a chain to what a lattice holds, as a column of its own over the
 * depths [0, n): raw [n] are log-probabilities along it. Returns false if no column is left. */
void lattice_clear(Lattice *l);
bool lattice_chain(Lattice *l, const int32_t *token, const float *raw, int32_t n, const Calibration *calib,
                   int32_t source);
/* A chain with its side branches: id, score [n, k] as for lattice_from_scores, the first `columns` of each depth are
 * added, all as children of the chain's own first column at the depth before. */
bool lattice_branches(Lattice *l, const int32_t *id, const float *score, int32_t n, int32_t k, int32_t columns,
                      const Calibration *calib, int32_t source);

/*      0            row 0 is the root, the last token of the text; parent[i] < i, parent[0] == -1, depth[0] == 0.
 *     / \           Siblings have different tokens, and their probabilities sum to at most 1. score: sum of the edges
 *    1   4          from the root, in double. rank: the column in the lattice. raw: of the edge that leads here, for
 *   / \   \         every source (-INFINITY: did not propose it), used by accept_learn. */
typedef struct {
    int32_t n, token[ROWS_DECODE], parent[ROWS_DECODE], depth[ROWS_DECODE], rank[ROWS_DECODE];
    double  score[ROWS_DECODE];
    float   raw[ROWS_DECODE][SOURCES];
} Tree;

/* A child that could be taken. columns: the set of lattice columns that hold its token and are reachable from its
 * parent's columns. */
typedef struct { float edge, raw[SOURCES]; int32_t token, rank; uint32_t columns; } Child;
/* below these columns, best first */
typedef struct { int32_t n, tree, depth; uint32_t columns; Child at[LAT_COLS]; } Children;
typedef struct { double weight; int32_t depth, tree, parent, list, at; } Pop;

/* Trees under construction. gain [n]: probabilities of the nodes so far, descending; grown [n]: the tree of each
 * node. */
typedef struct {
    Tree    *tree;
    const Lattice *const *lat;
    const int32_t *depth_max;
    bool     chain;
    int32_t  n_trees, n, n_lists, n_heap;
    double   gain[ROWS_DECODE];
    uint8_t  grown[ROWS_DECODE];
    Children list[ROWS_DECODE];                                 /* of the rows so far; rows can share a list */
    Pop      heap[2 * ROWS_DECODE];                             /* each taken node removes one entry and adds at most
                                                                 * two */
} Growth;

/* One heap over n lattices (lat[i] NULL: none), at most 64 of them; every tree starts as its root. chain: only the best
 * child of each node. The arguments must stay valid until growing ends. */
void    tree_begin(Growth *g, Tree *tree, const Lattice *const *lat, const int32_t *root, const int32_t *depth_max,
                   int32_t n, bool chain);
/* Grows the trees to `nodes` nodes in total, not counting roots (never more than 64 rows together), tree i to depth
 * depth_max[i] at most; returns how many there are: fewer if no more can grow. Nodes are ordered by weight descending,
 * then depth, lattice, parent, rank ascending. Under one parent the same token is one node, with the larger weight and
 * the children of all its columns; the probabilities of siblings sum to at most 1. */
int32_t tree_grow(Growth *g, int32_t nodes);
/* Keeps only the first `nodes` nodes; ends growing. */
void    tree_cut(Growth *g, int32_t nodes);
/* gain [ROWS_DECODE]: the probabilities of one tree's nodes so far, descending; returns how many. */
int32_t tree_gains(double *gain, const Growth *g, int32_t tree);
/* Reorders depth first, best child first: most rows then follow their parent directly. */
void    tree_rows(Tree *t);
/* The child of `row` with this token, -1: none. */
int32_t tree_child(const Tree *t, int32_t row, int32_t token);

#endif
