/* args_rows.h - arguments of the kernels in rows.cu. */
#ifndef RATOON_BACKEND_GPU_ARGS_ROWS_H
#define RATOON_BACKEND_GPU_ARGS_ROWS_H

/* Norms. A block per row of `cols` values; dx: added to x first (add_norm), z: gates the result (gated_norm);
 * either, and w, may be NULL. */
typedef struct { float *y, *x; const float *dx, *w, *z; int32_t cols; float eps; } NormArgs;

/* y[i] = y[i] + x[i % period] */
typedef struct { float *y; const float *x; int64_t n, period; } AddArgs;

/* y[i] = act(gate[i / width]) * up[i]; up may be y itself. */
typedef struct { float *y; const float *gate, *up; int64_t n; int32_t act, width; } GluArgs;
/* x *= by; softcap > 0: softcap * tanh(x / softcap) */
typedef struct { float *x; int64_t n; float by, softcap; } ScaleArgs;

#endif
