/* pass.h - the plain data of a pass: what a layer keeps, the rows, and the numbers that operations need. The same
 * structs are read by the host and by kernels on a device, so they hold 32-bit enums, fixed-size numbers and addresses
 * of backend memory, and nothing here needs a library. */
#ifndef RATOON_BACKEND_PASS_H
#define RATOON_BACKEND_PASS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backend/draw.h"
#include "format/quant.h"

/* ROWS_DECODE: of trees and drafters' blocks in a pass, all together. CANVAS_MAX: of a canvas; CANVAS_IDS: of the
 * vocabulary at a time at the end of its steps. */
enum { ROWS_DECODE = 64, CANVAS_MAX = 256, CANVAS_IDS = 256, POS_LANES = 4, MATMUL_MAX = 4, TILE = 256, SPLIT = 4096 };

/* data: backend memory, which the host never reads; for weights whatever upload() packed. Vectors are [1, n]. n: number
 * of matrices in a stack (experts), weight_bytes apart; 0: a single matrix, the only form that operations but `experts`
 * take. factors [1, n]: each matrix's products are to be multiplied by its own, which `experts` does for gate and up;
 * NULL: they are not. factor: the same for a single matrix, done by the steps' functions; 0: it is not. */
typedef struct Tensor Tensor;
struct Tensor { Type type; int32_t rows, cols; void *data; int32_t n; const Tensor *factors; float factor; };

/* What a layer keeps between passes, and the numbers its operations need. The model family fills it in; state.c
 * allocates from it. */
typedef enum { LAYER_NONE, LAYER_ATTENTION, LAYER_DELTA } LayerKind;
typedef struct {
    LayerKind kind;
    int32_t   heads, kv_heads, head_dim;       /* attention: query head h reads kv head h / (heads / kv_heads) */
    int32_t   value_dim;                       /* size of a value vector; 0: head_dim */
    int32_t   window;                          /* key visible iff q_pos - k_pos < window; 0: everything */
    int32_t   ring;                            /* slots of a ring buffer, where that is shorter than the context: at
                                                * least window + chunk + 64 rows, a multiple of 128; 0: none */
    bool      causal;                          /* BLOCK rows see only themselves and earlier rows of the block */
    bool      canvas;                          /* BLOCK rows see, besides the block, what its first row sees: the window
                                                * does not move on with them */
    float     scale, softcap;                  /* score = scale * q.k; softcap 0: none (else cap * tanh(score / cap)) */
    Type      k_type, v_type;                  /* of stored keys and values */
    int32_t   k_heads, v_heads, k_dim, v_dim;  /* delta net: value head m reads key head m % k_heads */
    int32_t   conv_width;                      /* taps, e.g. 4; channels = 2 * k_heads * k_dim + v_heads * v_dim */
    float     eps;                             /* epsilon of the l2 norm of q and k in the delta net */
} LayerSpec;

static inline int32_t value_dim(const LayerSpec *s) { return s->value_dim ? s->value_dim : s->head_dim; }

enum { MARK_KV, MARK_WINDOW, MARK_MATRIX, MARKS };     /* indices into StateLayer.mark */

/* One layer of one session, in backend memory.
 *   k, v      slot = position; pending row i of a pass is at position base + i. In a layer that wraps, slot = position
 *             % wrap: what its rows still see has not been overwritten. In a drafter's ring, slot = position % ring and
 *             BLOCK row i is at ring + i; positions may be missing. n slots take kv_bytes(spec, values, n), in a byte
 *             order of the backend's choice, which only kv_save and kv_load know.
 *   rec_*     row i of the last TREE pass: conv input, delta, and in two banks decay and k (l2-normalised). A pass of
 *             generation g writes bank g & 1 and reads the noted path's rows, which pass g - 1 wrote, from bank (g - 1)
 *             & 1: other heads, or columns, of the same pass may still read what one has written.
 *   mark[3]   the gen whose path has been applied here, for keys/values, window and matrices. The operation itself
 *             writes it, last. */
typedef struct {
    void    *k, *v;
    void    *kept_k, *kept_v;                   /* copies of k and v for each checkpoint, in a layer that wraps */
    int32_t  wrap, ring, *slot_pos;             /* wrap 0: does not wrap; slot_pos [ring]: position in the slot, -1:
                                                 * none; ring 0: not a drafter's ring */
    float   *matrix, *window;                   /* [sets, v_heads, k_dim, v_dim] [sets, conv_width - 1, channels],
                                                 * oldest first */
    float   *rec_x, *rec_a, *rec_d, *rec_k;     /* [64, channels] [2, 64, v_heads] [64, v_heads, v_dim]
                                                 * [2, 64, k_heads, k_dim] */
    int32_t *mark;
} StateLayer;

typedef enum { SLICE_CHAIN, SLICE_TREE, SLICE_BLOCK } SliceKind;
typedef struct {                                /* the rows of one session in a pass; in backend memory */
    int32_t     kind, row0, n;
    int32_t     base;                           /* committed length = position of the first row */
    int32_t     gen, n_path, path[ROWS_DECODE]; /* position base - n_path + t is row path[t] of the session's
                                                 * last TREE pass */
    int32_t     set_in, set_out;                /* CHAIN reads the matrices of set_in and leaves the advanced ones in
                                                 * set_out; TREE: both are the same */
    StateLayer *layer;                          /* [n_layers] */
    float      *taps;                           /* [tap slots, n_taps * dim] */
    Draw        draw;
    CanvasDraw  canvas;                         /* of a canvas's step */
} Slice;

enum { WANT_TAPS = 1, WANT_LOGITS = 2 };
typedef struct {                                   /* all rows of a pass, TREE and BLOCK slices first */
    int32_t  n, n_decode, n_slices, n_logits, span; /* launch shape = replay key; n_decode: rows of TREE and BLOCK
                                                     * slices; span: most positions that a slice may see before its
                                                     * rows, rounded up to a power of two */
    bool     shifted;                               /* besides: a slice may see no more than its ring, from a position
                                                     * other than 0 on */
    int32_t *count;                                 /* [3] backend memory: the true n, n_decode and n_logits, where a
                                                     * backend rounds them up (widths); the rows beyond belong to no
                                                     * slice (-1), and their results are ignored */
    int32_t *token, *slice, *parent;               /* [n] this and all below: backend memory at fixed addresses; parent:
                                                    * row within the slice, -1: committed. CHAIN: i - 1 */
    int32_t *pos, *lane;                           /* pos [n]: position in the text (slots, tiles, noise); lane [n,
                                                    * POS_LANES]: what rotation reads */
    int32_t *want, *tap_slot, *logit_row;          /* want [n]; tap_slot [n], -1: none; logit_row
                                                    * [n_logits]: row of x */
    Slice   *slices;                               /* [n_slices] */
} Rows;

/* Rotary embedding: angle of pair i = lane[lane_of[i]] * freq[i] in double; its sine and cosine by base/mathd.h,
 * rounded to float and multiplied by mscale, form the table of a pass, made once for all its layers. (a, b) -> (a cos -
 * b sin, a sin + b cos). neox: pairs are (x[i], x[i + n_rot / 2]), else (x[2i], x[2i + 1]); values beyond n_rot pass
 * through. */
typedef struct {
    int32_t        n_rot;
    bool           neox;
    float          mscale;
    const double  *freq;                           /* [n_rot / 2] backend memory */
    const int32_t *lane_of;                        /* [n_rot / 2] backend memory; NULL: lane 0 */
} Rope;

/* How a mixture of experts chooses: `used` experts for each row, by what the router's logits are turned into; scale:
 * a factor of the chosen experts' weights, 1: none. */
typedef enum { ROUTE_SOFTMAX, ROUTE_SIGMOID } Gating;
typedef struct { Gating gating; int32_t used; float scale; } Router;
/* Experts that the rows of mixtures chose, and how many different ones these were: what was read. missed: of these,
 * the ones that were not in the backend's memory, and the bytes that were read instead: of a file, or by a device of
 * main memory; waited: the seconds in which passes only waited for them. */
typedef struct { int64_t chosen, read, missed, missed_bytes; double waited; } Routes;
enum { EXPERTS_MAX = 4096, EXPERTS_USED_MAX = 32 };

/* silu(x) = x * sigmoid(x); gelu is its usual approximation, x * sigmoid(2 u) with u = sqrt(2 / pi) * (x + 0.044715 *
 * x^3), which equals x / 2 * (1 + tanh(u)). */
typedef enum { ACT_SILU, ACT_GELU_TANH, ACT_SIGMOID, ACT_SOFTPLUS } Act;

#endif
