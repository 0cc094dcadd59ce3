/* args_kv.h - arguments of the kernels in kv.cu. */
#ifndef RATOON_BACKEND_GPU_ARGS_KV_H
#define RATOON_BACKEND_GPU_ARGS_KV_H

/* Keys and values of a pass into the layer's slots, after the noted path has been moved to its own. A block per slice,
 * key/value head, and keys or values; put: the rows are stored, by `groups` blocks (BID_Y) for every 16 positions, or
 * by one for all of them. move: the path is moved, only with one group. tickets [n_slices]: zeros, between launches. */
typedef struct {
    const float *k, *v;
    Rows         rows;
    LayerSpec    spec;
    int32_t      il, groups, move, put;
    int32_t     *tickets;
} KvPutArgs;

#endif
