/* args_rows.h - arguments of the kernels in rows.cu. */
#ifndef RATOON_BACKEND_GPU_ARGS_ROWS_H
#define RATOON_BACKEND_GPU_ARGS_ROWS_H

/* Norms of groups of columns, a block per row; a plain norm has one group. dx: added to x first (add_norm), z: gates
 * the result (gated_norm); either, and w [period], may be NULL; period: a group, or a row, whose groups then have
 * weights of their own. y may be x. act: the rows are also quantised for the product that reads them, in the forms
 * whose code is not NULL. */
enum { NORM_GROUPS = 1024,                         /* at most, of a row */
       NORM_COLS = 8192 };                         /* of a row in shared memory */
typedef struct {
    float *y, *x;
    const float *dx, *w, *z;
    int32_t cols, group, period;
    float   eps;
    ActRows act[2];
} NormArgs;

/* y[i] = y[i] + x[i % period] */
typedef struct { float *y; const float *x; int64_t n, period; } AddArgs;

/* y[i, j] = act(gate[i, j / width]) * up[i, j]; up may be y itself. A block per row and GLU_COLS columns. act: as
 * above, and cols is a multiple of 32 then. sum: y is added to it; NULL: none. */
enum { GLU_COLS = 2048 };
typedef struct { float *y; const float *gate, *up; float *sum; int32_t cols, function, width; ActRows act[2]; } GluArgs;
/* x *= by; softcap > 0: softcap * tanh(x / softcap) */
typedef struct { float *x; int64_t n; float by, softcap; } ScaleArgs;

/* Copies of rows. A block per row.
 * split: column groups of `width` go alternately to y0 and y1. join: y = x0 | x1. */
typedef struct { float *y0, *y1; const float *x; int32_t cols, cols0, cols1, width; } SplitArgs;
typedef struct { float *y; const float *x0, *x1; int32_t cols0, cols1; } JoinArgs;
/* logit_rows: y[j] = x[logit_row[j]]; tap and tap_get: see backend.h. */
typedef struct { float *y; const float *x; Rows rows; int32_t cols, part, n_taps; } PickRowsArgs;

/* Rotation: the table of a pass, a block per row; and turning heads by it, in place, a block per row. */
typedef struct { float *t; Rows rows; Rope rope; } RopeTableArgs;
typedef struct { float *x; const float *t; int32_t cols, head_dim, n_rot, neox; } RopeArgs;

#endif
