/* ops_pass.h - small sessions and passes for tests of operations, without state.c and step.c. A Sess is one layer of
 * one session with a text of made-up tokens; a row's inputs (queries, keys, ...) are a function of its token and
 * position alone, so any two ways to the same text can be compared bit by bit. Everything that an operation reads lies
 * in the backend's memory. */
#ifndef RATOON_TESTS_HELP_OPS_PASS_H
#define RATOON_TESTS_HELP_OPS_PASS_H

#include "ops_run.h"

enum { H_ROWS = 640, H_SLICES = 8, H_TEXT = 12000, H_SETS = 3 };

typedef struct {
    LayerSpec   spec;
    StateLayer  l, *layer;                         /* the layer's pointers, and their copy in the backend's memory */
    int32_t     P, gen, n_path, path[ROWS_DECODE], set;
    int32_t     text[H_TEXT];                      /* committed tokens */
    int32_t     token[H_ROWS], parent[H_ROWS], n;  /* rows of the last pass */
} Sess;

int32_t sess_channels(const LayerSpec *p);
size_t  sess_matrix(const LayerSpec *p);           /* floats of a set */
size_t  sess_window(const LayerSpec *p);

/* ring 0: ctx slots; else spec->ring slots, used in turn. Freed when the turn ends. Keys and values are NaN where
 * nothing was written. */
Sess   *sess_open(Run *r, const LayerSpec *spec, int32_t ctx, int32_t ring);
/* Does what state_keep does after a TREE and state_advance after a CHAIN. */
void    sess_keep(Sess *s, const int32_t *path, int32_t n);
void    sess_advance(Sess *s);
/* Committed state on the host: keys and values as saved, or matrix and window of the current set; fold before. */
uint8_t *sess_state(Run *r, const Sess *s, size_t *n);

/* What operations read about the rows, here and in the backend's memory. */
typedef struct {
    Slice   slices[H_SLICES];
    int32_t count[3], token[H_ROWS], slice[H_ROWS], parent[H_ROWS], pos[H_ROWS], lane[H_ROWS * POS_LANES],
            want[H_ROWS], tap_slot[H_ROWS], logit_row[H_ROWS];
} Tables;
typedef struct { Rows r; Tables *t, *there; } Pass;

Pass   *pass_open(Run *r);
/* Slices that decode come first. parent NULL: each row follows the one before. */
Slice  *pass_add(Pass *p, Sess *s, SliceKind kind, int32_t n, const int32_t *token, const int32_t *parent);
void    pass_want_all(Pass *p);
/* The arguments of operations: the tables in their present state. */
const Rows *pass_rows(Run *r, const Pass *p);

/* The inputs of a pass's rows: tensor number `which` of `cols` values, a function of token and position. */
enum { IN_Q, IN_K, IN_V, IN_X, IN_BETA, IN_ALPHA };
void    pass_fill(float *x, int32_t token, int32_t pos, int32_t which, int32_t cols, float by);
Mat     pass_input(Run *r, const Pass *p, int32_t which, int32_t cols, float by);

void    pass_put(Run *r, const Pass *p, const LayerSpec *s);           /* keys and values stored */
float  *pass_run(Run *r, const Pass *p, const LayerSpec *s);           /* the layer: [rows, pass_cols] on the host */
int32_t pass_cols(const LayerSpec *s);
/* Weights of the toy delta layer. */
enum { DELTA_W = 77, DELTA_A, DELTA_DT };
Mat     delta_w(Run *r, const LayerSpec *s);
Mat     delta_a(Run *r, const LayerSpec *s);
Mat     delta_dt(Run *r, const LayerSpec *s);

/* One pass of one session. */
float  *sess_run(Run *r, Sess *s, SliceKind kind, int32_t n, const int32_t *token, const int32_t *parent);
/* Folds the noted path into set_out (s->set: in place). */
void    sess_fold(Run *r, Sess *s, int32_t set_out);
/* Commits n random tokens in chunks of at most `chunk`. */
void    sess_grow(Run *r, Sess *s, int32_t n, int32_t chunk, uint64_t *seed);
/* The same for long texts of attention: the reference computes and saves them, other backends load them. */
void    sess_grow_once(Run *r, Sess *s, int32_t n, uint64_t *seed);
void    random_tokens(int32_t *token, int32_t n, uint64_t *seed);

#endif
