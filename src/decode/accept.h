/* accept.h - which rows of a tree the target agrees with.
 * The walk starts at the root; at each visited row the target's own next token is asked for; a child with that token is entered, else
 * the token is the bonus and the walk ends. So the text is the target's own, whatever the tree held. */
#ifndef RATOON_DECODE_ACCEPT_H
#define RATOON_DECODE_ACCEPT_H

#include "base/error.h"
#include "decode/tree.h"

/* row[0] == 0, ascending; the block brought is the tokens of row[1..n-1], then the bonus: n tokens. */
typedef struct { int32_t n, row[ROWS_DECODE], bonus; } Path;

/* The token after `row`, which is the last of so_far; called for visited rows only, in order. Negative (DRAW_NAN, DRAW_NONE): error. */
typedef int32_t (*NextToken)(void *ud, int32_t row, const Path *so_far);

/* ST_NOTOKEN for DRAW_NONE, ST_BACKEND for any other negative value, which is left in out->bonus; the path is that far valid. */
Status accept_path(Path *out, const Tree *t, NextToken next, void *ud);

/* What the block taught: every edge below a visited row was offered, those on the path were accepted. Edges further down say nothing.
 * An edge that several sources proposed teaches each of them. proposed: bits of the sources that were asked and had something to say; one
 * of which the tree holds nothing is believed a little more next time (calib_forget). */
void accept_learn(Calibration *c, const Tree *t, const Path *p, uint32_t proposed);

/* How many of the rows that the walk stood on should have been followed by one of the tree, by the tree's own word; p->n - 1 were. */
double accept_hoped(const Tree *t, const Path *p);

#endif
