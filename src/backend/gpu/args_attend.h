/* args_attend.h - arguments of the kernels in attend_*.cu. */
#ifndef RATOON_BACKEND_GPU_ARGS_ATTEND_H
#define RATOON_BACKEND_GPU_ARGS_ATTEND_H

/* An item of the work is ATTEND_QUERIES queries of a key/value head: neighbouring rows of a slice, all heads of a row
 * that read the same keys side by side. A tile is TILE positions; an item's tiles begin with the first that any of its
 * queries sees, which is not the same tile for all items.
 * weight   [items, ATTEND_QUERIES, tiles * TILE] scores, then softmax weights; below 0: not seen
 * change   [items, ATTEND_QUERIES, tiles] what earlier sums are multiplied by when a tile begins
 * tops     [items, ATTEND_QUERIES, tiles * SCORE_PARTS] the largest score of each part of a tile
 * top      [items, ATTEND_QUERIES, splits, 2] the largest score of a split, and the sum of its weights
 * partial  [items, ATTEND_QUERIES, splits, v_pad] a split's weighted values; not used if splits is 1
 * tickets  [items, splits + v_pad / ATTEND_COLS_FEW] zeros between launches
 * Items [item0, item0 + items) of a pass; tiles and splits: the most that an item can have; parts: of a tile that a
 * block of scores has. */
enum { ATTEND_QUERIES = 8, SCORE_PART = 64, SCORE_PARTS = TILE / SCORE_PART };
enum { ATTEND_COLS = 32, ATTEND_COLS_FEW = 16, ATTEND_COLS_SOME = 64, ATTEND_COLS_MANY = 128 };
typedef struct {
    float       *y;
    const float *q;
    Rows         rows;
    LayerSpec    spec;
    int32_t      il, item0, items, tiles, splits, v_pad, parts;
    float       *weight, *change, *tops, *top, *partial;
    int32_t     *tickets;
} AttendArgs;

/* Turns n values in groups of 128 back to where they were before TQ3_0 turned them; a warp per group. */
typedef struct { float *y; int64_t groups; } TurnArgs;

#endif
