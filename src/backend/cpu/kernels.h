/* kernels.h - the inner loops of the CPU backend's operations, one table per file and level.
 * A kernel does a part of an operation that shares no output with other parts; cpu_*.c decides which parts run on which
 * thread. The arithmetic is stated here, once, and is the same at every level (vec.h). */
#ifndef RATOON_BACKEND_CPU_KERNELS_H
#define RATOON_BACKEND_CPU_KERNELS_H

#include "backend/backend.h"
#include "backend/cpu/level.h"

/* Sums use sixteen accumulators, lane = index mod 16, fmaf, which are then added in halves of 8, 4, 2, 1. */
typedef struct {
    /* y = (x * r) * w, r = 1 / sqrt(sum of x^2 / n + eps); y may be x; w NULL: no weights (not in gated_norm) */
    void (*norm)(float *y, const float *x, const float *w, int32_t n, float eps);
    void (*add_norm)(float *y, float *x, const float *dx, const float *w, int32_t n, float eps);   /* x += dx first */
    void (*gated_norm)(float *x, const float *w, const float *z, int32_t n, float eps);       /* norm, then * silu(z) */
    void (*add)(float *x, const float *dx, int64_t n);
    void (*glu)(float *y, const float *gate, const float *up, int64_t n, Act act);                 /* act(gate) * up */
    /* x *= act(logit), one logit for each `width` values; n is a multiple of width */
    void (*gate)(float *x, const float *logit, int64_t n, Act act, int32_t width);
    void (*scale)(float *x, int64_t n, float by, float softcap);
    /* one head: (a, b) -> (a cos - b sin, a sin + b cos), each product and the sum rounded; turn: cos [n_rot / 2], sin
     * [n_rot / 2] */
    void (*rope)(float *x, const float *turn, int32_t n_rot, bool neox);
    float (*pair)(const float *a, const float *b, const float *c, int32_t n);                   /* sum of (a * b) * c */
    /* y[c] = sum over t of (base[t * n + c] + delta[t * (n / group) + c / group]) * x[-t * n + c], t
     * ascending from 0 */
    void (*block_conv)(float *y, const float *x, const float *base, const float *delta, int32_t taps, int32_t n,
                       int32_t group);
    /* y = sum of w[i] * x[i][0 .. n), fmaf, i ascending from 0 */
    void (*mix)(float *y, const float *const *x, const float *w, int32_t count, int32_t n);
    /* the largest; NaN if any is not finite */
    float (*peak)(const float *x, int32_t n);
    /* x /= t; returns the largest, of which NaN is none */
    float (*cool)(float *x, int32_t n, float t);
    /* x = exp(x - top), 0 where x - top < TERM_LEAST; sum[0] = sum of x, sum[1] = sum of x * (x before - top); returns
     * exp(before - top). n is a multiple of 16. */
    float (*terms)(float *x, int32_t n, float before, float top, float sum[2]);
    /* y = fmaf(y, again, sum of w[i] * x[i][0 .. n)), as mix */
    void (*blend)(float *y, float again, const float *const *x, const float *w, int32_t count, int32_t n);
    void (*store)(void *dst, Type t, const float *x, int32_t n);                                   /* F32, F16, BF16 */
    void (*math)(float *y, const float *x, int32_t n, int32_t which);                            /* MATH_*, see below */
} RowKernels;
static const float TERM_LEAST = -20.7944154f;       /* -30 ln 2 */
enum { MATH_EXP, MATH_SIGMOID, MATH_SILU, MATH_TANH, MATH_LOG1P, MATH_SOFTPLUS, MATH_GELU, MATH_COUNT };

/* Attention of some rows of one slice: for each of n_kv key/value heads, the same part of the query heads that read it.
 * Positions are divided into tiles of TILE and splits of SPLIT, counted from 0. For each tile of which a row sees
 * anything: s = scale * q.k (16 accumulators, soft cap), m' = max(m, max s), c = exp(m - m'), p = exp(s - m'), l =
 * fmaf(l, c, sum of p), the sum with lane = position mod 16; o = o * c, then o = fmaf(p, v, o) with ascending position.
 * Positions that the row does not see, or whose score is -infinity, are left out. Splits are merged in ascending order:
 * m' = max(M, m), O = fmaf(O, exp(M - m'), o * exp(m - m')), L likewise. y = O / L. Types with integer codes (Q8_0,
 * Q5_1, Q5_0, Q4_1, Q4_0) are multiplied as integers instead. Keys (kv_scores.h): q is rounded to 16 bits per block of
 * 32, the sums of a block are exact, score = fmaf(d * s, sum, score), and with a minimum also fmaf(m * s, sum of q,
 * score), blocks ascending. Values (kv_values.h): p times d is rounded to 16 bits per block of 32 and group of 128
 * positions, o = fmaf(a * (1 / 32639), sum, o), groups ascending. For all other types k and v are the decoded values;
 * TQ3_0 keys are multiplied with a rotated q, and y of TQ3_0 values is rotated back. */
typedef struct {
    float            *y;                         /* [rows of the pass, heads * value_dim] */
    const float      *q;                         /* [rows of the pass, heads * head_dim] */
    const Slice      *slice;
    const StateLayer *layer;
    const LayerSpec  *spec;
    const int32_t    *parent;                    /* [slice->n], for this slice */
    size_t            k_row, v_row;              /* bytes per slot */
    int32_t           kv0, n_kv, head0, n_heads; /* query heads kv * group + [head0, head0 + n_heads), kv in
                                                  * [kv0, kv0 + n_kv) */
    int32_t           row0, n_rows;              /* within the slice */
    int32_t           ahead;                     /* prefetch hint: distance, in splits, to this thread's likely next
                                                  * split */
} AttendJob;
typedef struct {
    size_t (*scratch)(const AttendJob *job);       /* bytes, for any of the functions below: */
    void   (*attend)(const AttendJob *job, void *scratch);
    /* The same, divided into parts that may run at the same time: part computes positions [split * SPLIT, (split + 1) *
     * SPLIT), some of which the job sees, into part (part_bytes long); merge takes all parts in ascending order. */
    size_t (*part_bytes)(const AttendJob *job);
    void   (*part)(const AttendJob *job, int32_t split, float *part, void *scratch);
    void   (*merge)(const AttendJob *job, float *const *part, int32_t n, void *scratch);
} AttendKernels;

/* y = silu(sum over taps of w * input, ascending from the oldest). One job is the whole operation; a call computes
 * channels [c0, c1). */
typedef struct {
    float            *y;                           /* NULL: fold only */
    const float      *x, *w;                       /* [rows, channels] [channels, width] */
    const Slice      *slices;
    int32_t           n_slices, il, channels, width;
    const int32_t    *parent;                      /* for all rows of the pass */
} ConvJob;
/* The delta rule of one value head of one slice, with k and q normalised (x * (1 / sqrt(sum of x^2 + eps)), q also * (1
 * / sqrt(k_dim))), a = exp(A * softplus(alpha + dt)), b = sigmoid(beta), and per row, i ascending:
 *   T = a * S;  kv = fmaf(k_i, T_i, kv);  d = b * (v - kv);  S' = fmaf(k, d, T);  o = fmaf(q_i, S'_i, o). */
typedef struct {
    float            *y;                           /* [rows, v_heads * v_dim]; NULL: fold only */
    const float      *qkv, *beta, *alpha, *a, *dt;
    const Slice      *slices;
    const LayerSpec  *spec;
    const int32_t    *parent;                      /* for all rows of the pass */
    int32_t           il, ahead;                   /* ahead: prefetch hint, distance in heads to this thread's likely
                                                    * next head */
} DeltaJob;
typedef struct {
    size_t (*conv_scratch)(int32_t width);
    void (*conv)(const ConvJob *job, int32_t c0, int32_t c1, void *scratch);
    size_t (*delta_scratch)(const LayerSpec *spec);
    void (*delta)(const DeltaJob *job, int32_t slice, int32_t head, void *scratch);
} DeltaKernels;

/* Every half as a float, indexed by its bits; filled when the backend is opened. */
extern float half_table[1 << 16];

extern const RowKernels LEVEL_EACH(rows);
extern const AttendKernels LEVEL_PRODUCT_EACH(attend);
extern const DeltaKernels LEVEL_EACH(delta);

enum { CONV_CHANNELS = 256, CONV_WIDTH_MAX = 16 }; /* the most channels that one call of conv takes */

#endif
