/* args_kv.h - arguments of the kernels in kv.cu. */
#ifndef RATOON_BACKEND_GPU_ARGS_KV_H
#define RATOON_BACKEND_GPU_ARGS_KV_H

/* Heads before attention: norms by w [head_dim] (NULL: none), then rotation by the table turn [rows, n_rot] (NULL:
 * none). */
typedef struct { const float *q_norm, *k_norm, *turn; int32_t n_rot, neox; float eps; } HeadsArgs;

/* Keys and values of a pass into the layer's slots, after the noted path has been moved to its own. A block per group,
 * slice, key/value head, and keys or values; put: the rows are stored, a group for every 16 positions, or one for
 * all of them. move: the path is moved, only with one group. tickets [n_slices]: zeros, between launches. Behind these
 * blocks there is one for each KV_WARPS heads of a row of q [rows, heads, head_dim]; q NULL: none. Of the heads of
 * `from` [rows, 2 heads, head_dim] every other one is q's and the rest are the gate's; NULL: q is there already. */
enum { KV_THREADS = 256, KV_WARPS = KV_THREADS / 32, KV_WIDTH = 512 };   /* WIDTH: of a head, at most */
typedef struct {
    const float *k, *v, *from;
    float       *q, *gate;
    Rows         rows;
    LayerSpec    spec;
    HeadsArgs    heads;
    int32_t      il, groups, move, put;
    int32_t     *tickets;
} KvPutArgs;

#endif
