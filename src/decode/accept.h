/* accept.h - which rows of a tree the target agrees with.
 * The walk starts at the root. At each visited row it asks for the target's own next token. If a child has that
 * token the walk enters it; otherwise the token is the bonus and the walk ends. So the text is the target's own,
 * whatever the tree held. */
#ifndef RATOON_DECODE_ACCEPT_H
#define RATOON_DECODE_ACCEPT_H

#include "base/error.h"
#include "decode/tree.h"

/* row[0] == 0, ascending; the resulting block is the tokens of row[1..n-1], then the bonus: n tokens. */
typedef struct { int32_t n, row[ROWS_DECODE], bonus; } Path;

/* The token after `row`, which is the last of so_far; called for visited rows only, in order. Negative (DRAW_NAN,
 * DRAW_NONE): error. */
typedef int32_t (*NextToken)(void *ud, int32_t row, const Path *so_far);

/* Returns ST_NOTOKEN for DRAW_NONE and ST_BACKEND for any other negative value, which is left in out->bonus; the path
 * is valid up to there. */
Status accept_path(Path *out, const Tree *t, NextToken next, void *ud);

/* Learns from the block: every edge below a visited row was offered, those on the path were accepted; edges further
 * down say nothing. An edge that several sources proposed teaches each of them. proposed: bits of the sources that were
 * asked and proposed something; if none of a source's edges is in the tree, its scale decays towards 1
 * (calib_forget). */
void accept_learn(Calibration *c, const Tree *t, const Path *p, uint32_t proposed);

/* Expected number of accepted nodes: for each visited row the summed probability of its children, at most 1. Compare
 * with the p->n - 1 accepted nodes. */
double accept_expected(const Tree *t, const Path *p);

#endif
