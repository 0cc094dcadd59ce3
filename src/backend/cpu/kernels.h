/* kernels.h - the inner loops of the CPU backend's operations, one table per file and level.
 * A kernel does a part of an operation that shares no output with other parts; which parts run on which thread is the business of
 * cpu_*.c. The arithmetic is stated here, once, and is the same at every level (vec.h). */
#ifndef RATOON_BACKEND_CPU_KERNELS_H
#define RATOON_BACKEND_CPU_KERNELS_H

#include "backend/backend.h"
#include "backend/cpu/level.h"

/* Sums run over sixteen accumulators, lane = index mod 16, fmaf, then halves 8, 4, 2, 1. */
typedef struct {
    /* y = (x * r) * w, r = 1 / sqrt(sum of x^2 / n + eps); y may be x */
    void (*norm)(float *y, const float *x, const float *w, int32_t n, float eps);
    void (*add_norm)(float *y, float *x, const float *dx, const float *w, int32_t n, float eps);   /* x += dx first */
    void (*gated_norm)(float *x, const float *w, const float *z, int32_t n, float eps);            /* norm, then * silu(z) */
    void (*add)(float *x, const float *dx, int64_t n);
    void (*glu)(float *y, const float *gate, const float *up, int64_t n);                          /* silu(gate) * up */
    void (*gate)(float *x, const float *logit, int64_t n);                                         /* x *= sigmoid(logit) */
    void (*scale)(float *x, int64_t n, float by, float softcap);
    /* one head: (a, b) -> (a cos - b sin, a sin + b cos), each product and the sum rounded; turn: cos [n_rot / 2], sin [n_rot / 2] */
    void (*rope)(float *x, const float *turn, int32_t n_rot, bool neox);
    float (*pair)(const float *a, const float *b, const float *c, int32_t n);                      /* sum of (a * b) * c */
    /* y[c] = sum over t of (base[t * n + c] + delta[t * (n / group) + c / group]) * x[-t * n + c], t ascending from 0 */
    void (*block_conv)(float *y, const float *x, const float *base, const float *delta, int32_t taps, int32_t n, int32_t group);
    void (*store)(void *dst, Type t, const float *x, int32_t n);                                   /* F32, F16, BF16 */
    void (*math)(float *y, const float *x, int32_t n, int32_t which);                              /* tests: MATH_*, see below */
} RowKernels;
enum { MATH_EXP, MATH_SIGMOID, MATH_SILU, MATH_TANH, MATH_LOG1P, MATH_SOFTPLUS, MATH_COUNT };

/* Attention of some rows of one slice: for each of n_kv key/value heads the same part of the query heads that read it.
 * Positions go in tiles of TILE and splits of SPLIT, counted from 0. Per tile that a row sees any of: s = scale * q.k (16 accumulators,
 * soft cap), m' = max(m, max s), c = exp(m - m'), p = exp(s - m'), l = fmaf(l, c, sum of p), sum with lane = position mod 16; o = o * c,
 * then o = fmaf(p, v, o) with ascending position. A position that the row does not see, or whose score is -infinity, takes no part.
 * Splits are merged in ascending order: m' = max(M, m), O = fmaf(O, exp(M - m'), o * exp(m - m')), L alike. y = O / L.
 * Types with integer codes (Q8_0, Q5_1, Q5_0, Q4_1, Q4_0) are multiplied as integers instead. Keys (kv_scores.h): q is rounded to 16 bits per block
 * of 32, sums of a block are exact, score = fmaf(d * s, sum, score), with a minimum fmaf(m * s, sum of q, score) besides, blocks ascending.
 * Values (kv_values.h): p times d is rounded to 16 bits per block of 32 and group of 128 positions, o = fmaf(a * (1 / 32639), sum, o), groups ascending.
 * Else k and v are the stored values, decoded; TQ3_0 keys meet a rotated q, and y of TQ3_0 values is turned back. */
typedef struct {
    float            *y;                           /* [rows of the pass, heads * head_dim], as q */
    const float      *q;
    const Slice      *slice;
    const StateLayer *layer;
    const LayerSpec  *spec;
    const int32_t    *parent;                      /* [slice->n] of this slice */
    size_t            k_row, v_row;                /* bytes per slot */
    int32_t           kv0, n_kv, head0, n_heads;   /* query heads kv * group + [head0, head0 + n_heads), kv in [kv0, kv0 + n_kv) */
    int32_t           row0, n_rows;                /* within the slice */
    int32_t           ahead;                       /* a thread's next split is so many farther, in parts probably */
} AttendJob;
typedef struct {
    size_t (*scratch)(const AttendJob *job);       /* bytes, for any of these: */
    void   (*attend)(const AttendJob *job, void *scratch);
    /* The same in parts, which may run at the same time: positions [split * SPLIT, (split + 1) * SPLIT), of which the job sees some, into
     * part (part_bytes long); then all parts in ascending order. */
    size_t (*part_bytes)(const AttendJob *job);
    void   (*part)(const AttendJob *job, int32_t split, float *part, void *scratch);
    void   (*merge)(const AttendJob *job, float *const *part, int32_t n, void *scratch);
} AttendKernels;

/* y = silu(sum over taps of w * input, ascending from the oldest). One job is the whole operation; a call does channels [c0, c1). */
typedef struct {
    float            *y;                           /* NULL: fold only */
    const float      *x, *w;                       /* [rows, channels] [channels, width] */
    const Slice      *slices;
    int32_t           n_slices, il, channels, width;
    const int32_t    *parent;                      /* of all rows */
} ConvJob;
/* The delta rule of one value head of one slice, with k and q normalised (x * (1 / sqrt(sum of x^2 + eps)), q also * (1 / sqrt(k_dim))),
 * a = exp(A * softplus(alpha + dt)), b = sigmoid(beta), and per row, i ascending:
 *   T = a * S;  kv = fmaf(k_i, T_i, kv);  d = b * (v - kv);  S' = fmaf(k, d, T);  o = fmaf(q_i, S'_i, o). */
typedef struct {
    float            *y;                           /* [rows, v_heads * v_dim]; NULL: fold only */
    const float      *qkv, *beta, *alpha, *a, *dt;
    const Slice      *slices;
    const LayerSpec  *spec;
    const int32_t    *parent;                      /* of all rows */
    int32_t           il, ahead;                   /* ahead: a thread's next head is probably so many farther */
} DeltaJob;
typedef struct {
    size_t (*conv_scratch)(int32_t width);
    void (*conv)(const ConvJob *job, int32_t c0, int32_t c1, void *scratch);
    size_t (*delta_scratch)(const LayerSpec *spec);
    void (*delta)(const DeltaJob *job, int32_t slice, int32_t head, void *scratch);
} DeltaKernels;

/* Every half as a float, by its bits; filled when the backend is opened. */
extern float half_table[1 << 16];

extern const RowKernels LEVEL_EACH(rows);
extern const AttendKernels LEVEL_PRODUCT_EACH(attend);
extern const DeltaKernels LEVEL_EACH(delta);

enum { CONV_CHANNELS = 256, CONV_WIDTH_MAX = 16 }; /* channels that one call of conv takes at most */

#endif
