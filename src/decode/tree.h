/* tree.h - from the drafter's candidates to the rows of a pass, and to what was learned from them.
 * A Lattice holds, per depth, up to 16 candidates and the weight of each edge between neighbouring depths; a Tree is the part of it that
 * is worth a pass: the heaviest prefixes, found best first under a budget. Everything here is a pure function from arrays to arrays. */
#ifndef RATOON_DECODE_TREE_H
#define RATOON_DECODE_TREE_H

#include <stdbool.h>
#include <stdint.h>

#include "backend/backend.h"
#include "decode/calib.h"

/* Column k of depth d is token[d][k], -1: none. edge[d][k_prev][k] is the calibrated log-probability that the target takes it after
 * column k_prev of depth d - 1 (depth 0 reads row 0), at most 0, -INFINITY: never; raw is the same before calibration, which is what
 * calibration learns from. For a drafter whose depths are independent (DFlash) all rows of a depth are equal. A chain from another
 * source is one more column per depth with -INFINITY everywhere but on its own edges. source[d][k]: who proposed the column. alike: set of
 * columns whose rows are equal at every depth but 0, so that the same follows each of them. */
typedef struct {
    int32_t  n_depth, k;
    uint32_t alike;
    int32_t  token[LAT_DEPTH][LAT_COLS];
    uint8_t  source[LAT_DEPTH][LAT_COLS];
    float    edge[LAT_DEPTH][LAT_COLS][LAT_COLS], raw[LAT_DEPTH][LAT_COLS][LAT_COLS];
} Lattice;

/* From draw_top_k's answer for n_depth rows: id, score [n_depth, k], best first, id -1 and score -INFINITY where there are fewer.
 * raw = log-softmax of the scores of a depth, edge = calib_edge of it; calib NULL: edge = raw. With k 1 it makes a chain. */
void lattice_from_scores(Lattice *l, const int32_t *id, const float *score, int32_t n_depth, int32_t k, const Calibration *calib, int32_t source);
/* The same where the score depends on the candidate before (DFlash2's selector): score [n_depth, k, k], row k_prev. */
void lattice_from_pairs(Lattice *l, const int32_t *id, const float *score, int32_t n_depth, int32_t k, const Calibration *calib, int32_t source);

/* Joining: an empty lattice, and one more chain beside what a lattice holds, a column of its own over the depths [0, n): raw [n] are
 * log-probabilities along it. False: no column is left. */
void lattice_clear(Lattice *l);
bool lattice_chain(Lattice *l, const int32_t *token, const float *raw, int32_t n, const Calibration *calib, int32_t source);
/* A chain with its side branches: id, score [n, k] as for lattice_from_scores, the first `columns` of each depth join, all of them below
 * column 0 of the depth before. */
bool lattice_branches(Lattice *l, const int32_t *id, const float *score, int32_t n, int32_t k, int32_t columns, const Calibration *calib, int32_t source);

/*      0            row 0 is the root, the last token of the text; parent[i] < i, parent[0] == -1, depth[0] == 0. Siblings have
 *     / \           different tokens. score: sum of the edges from the root, in double, siblings never claiming more than one
 *    1   4          together. rank: the column in the lattice. raw: of the edge that leads here, by every source that proposed
 *   / \   \         it (-INFINITY: it did not), for accept_learn.                  */
typedef struct {
    int32_t n, token[ROWS_DECODE], parent[ROWS_DECODE], depth[ROWS_DECODE], rank[ROWS_DECODE];
    double  score[ROWS_DECODE];
    float   raw[ROWS_DECODE][SOURCES];
} Tree;

/* A child that could be taken: columns is the set of lattice columns that hold its token and can be reached from its parent's. */
typedef struct { float edge, raw[SOURCES]; int32_t token, rank; uint32_t columns; } Child;
typedef struct { int32_t n, tree, depth; uint32_t columns; Child at[LAT_COLS]; } Children;   /* below these columns, best first */
typedef struct { double weight; int32_t depth, tree, parent, list, at; } Pop;

/* Trees that grow. gain [n]: probabilities of the nodes so far, descending; grown [n]: whose they are. */
typedef struct {
    Tree    *tree;
    const Lattice *const *lat;
    const int32_t *depth_max;
    bool     chain;
    int32_t  n_trees, n, n_lists, n_heap;
    double   gain[ROWS_DECODE];
    uint8_t  grown[ROWS_DECODE];
    Children list[ROWS_DECODE];                                      /* of the rows so far; many share one */
    Pop      heap[2 * ROWS_DECODE];                                  /* each taken node adds two at most and removes one */
} Growth;

/* One heap over n lattices (lat[i] NULL: none), at most 64 of them; every tree starts as its root. chain: only the best child of each node.
 * What it is given has to stay until growing ends. */
void    tree_begin(Growth *g, Tree *tree, const Lattice *const *lat, const int32_t *root, const int32_t *depth_max, int32_t n, bool chain);
/* Grows to so many nodes without the roots in all (never more than 64 rows together), depth at most depth_max[i]; returns how many there
 * are: fewer where no more can grow. Order of the nodes: weight descending, depth, lattice, parent, rank ascending. Under one parent the
 * same token is one node, with the larger weight and all that follows either of its columns; what its nodes claim comes to one at most. */
int32_t tree_grow(Growth *g, int32_t nodes);
/* Back to the first of them; that ends growing. */
void    tree_cut(Growth *g, int32_t nodes);
/* gain [ROWS_DECODE]: the probabilities of one tree's nodes so far, descending; returns how many. */
int32_t tree_gains(double *gain, const Growth *g, int32_t tree);
/* From that order to depth first, best child first: most rows then follow their parent directly. */
void    tree_rows(Tree *t);
/* The child of row with this token, -1: none. */
int32_t tree_child(const Tree *t, int32_t row, int32_t token);

#endif
