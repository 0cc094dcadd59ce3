/* args_matmul.h - arguments of the kernels in matmul*.cu. */
#ifndef RATOON_BACKEND_GPU_ARGS_MATMUL_H
#define RATOON_BACKEND_GPU_ARGS_MATMUL_H

/* Quantised rows in the order in which matrix fragments read them, for blocks of 256 or of 32 columns. The rows are
 * padded to whole tiles of 8; what is in rows that do not exist does not matter. blocks: of a row; 2^tiles_log2 tiles
 * lie together, [tiles' number][block][tile] (act_block), so that a product reads a block of all of them in one go.
 *   code   of tile and block [columns / 32][lane] two words: lane 4 g + t has of row g the columns 4 t .. and
 *          16 + 4 t ..
 *   sums   blocks of 256: the sums of each 16 columns, 128 hi + lo with lo in [-64, 64), [lane] two words, lo and hi of
 *          sums 4 t .. 4 t + 3 of row g; blocks of 32: their sums, int32 [row]
 *   scale  [row] */
typedef struct { uint8_t *code, *sums; float *scale; int32_t blocks, tiles_log2; } ActRows;

/* A block per 8 x 256 columns: warp = row. act[0]: blocks of 32, act[1]: of 256; code NULL: not wanted. */
typedef struct { ActRows act[2]; const float *x; int32_t n, cols; } QuantiseArgs;

/* Products that read the same x [n, cols]: weights of one type, or of the two that the kernel is for, packed as the CPU
 * packs them. Block (i, j): rows of x from i on, tile j of the weights, where the tiles of all products follow one
 * another. stride: of y. */
typedef struct { const uint8_t *w; float *y; int32_t rows, stride, tile0, second; } ProductArgs;
typedef struct {
    ActRows     act;
    const float *x;                                /* for weights that are floats */
    int32_t     n, cols, n_products;
    ProductArgs product[MATMUL_MAX];
} MatmulArgs;

/* A packed weight whose rows are read one by one; block, lines, planes, offset: of its layout (matmul_layout.h). */
typedef struct {
    const uint8_t *data;
    int64_t  group_bytes;
    int32_t  type, rows, cols, block, lines, planes, offset;
} PackedTable;

/* x[i] = row ids[i] of the table. */
typedef struct { float *x; const int32_t *ids; GpuError *failed; PackedTable table; } EmbedArgs;

#endif
