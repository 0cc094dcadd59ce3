/* args_delta.h - arguments of the kernels in delta.cu. */
#ifndef RATOON_BACKEND_GPU_ARGS_DELTA_H
#define RATOON_BACKEND_GPU_ARGS_DELTA_H

/* The short convolution: a block per slice and 32 channels, and per CONV_ROWS rows (BID_Y). x, y [rows, channels]; w
 * [channels, width]. Without rows (a fold) x, y and w are NULL. tickets [n_slices]: zeros, between launches. */
enum { CONV_ROWS = 64, CONV_COLS = 32, CONV_TAPS = 16 };
typedef struct {
    float       *y;
    const float *x, *w;
    Rows         rows;
    int32_t      il, channels, width;
    int32_t     *tickets;
} ConvArgs;

/* The delta rule: a block per slice, value head and DELTA_COLS columns of its matrix (DELTA_ANY_COLS if that is not
 * [DELTA_KEYS, DELTA_KEYS]), with two warps more than these take. qkv as conv makes it; beta, alpha [rows, v_heads];
 * a, dt [v_heads]; y [rows, v_heads * v_dim]. Without rows all of these are NULL. */
enum { DELTA_COLS = 64, DELTA_ANY_COLS = 32, DELTA_KEYS = 128 };       /* DELTA_KEYS: the most keys of a head */
typedef struct {
    float       *y;
    const float *qkv, *beta, *alpha, *a, *dt;
    Rows         rows;
    LayerSpec    spec;
    int32_t      il;
    int32_t     *tickets;
} DeltaArgs;

#endif
