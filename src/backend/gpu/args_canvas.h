/* args_canvas.h - arguments of the kernels in canvas.cu. */
#ifndef RATOON_BACKEND_GPU_ARGS_CANVAS_H
#define RATOON_BACKEND_GPU_ARGS_CANVAS_H

/* A launch works on the tiles of CANVAS_IDS ids that a block has half warps for. */
enum { CANVAS_TILES = 16, CANVAS_GROUP = CANVAS_TILES * CANVAS_IDS };

/* Ids [id0, id0 + CANVAS_GROUP) of the vocabulary, those that there are. z [n, CANVAS_GROUP]: products, which become
 * terms; again [n, CANVAS_TILES]: by what a tile multiplies the sums before it. Rows of no slice (-1) are left
 * alone. */
typedef struct {
    CanvasRow     *found;
    float         *soft, *z, *again;
    const int32_t *slice, *pos;
    const Slice   *slices;
    PackedTable    table;
    int32_t        n, vocab, id0;
    float          scale, softcap, table_scale;
} CanvasArgs;

#endif
