/* matmul_layout.h - the bytes of packed weights and of quantised activations, shared by the kernels of matmul.h.
 * A line is 64 bytes: 16 lanes (weight rows) of 4 bytes. A code vector v is the 4 codes of columns 4v .. 4v + 3 of each
 * lane, as unsigned bytes code + offset. A group holds its blocks ascending; every block starts on a line.
 *
 *   blocks of 32: all code lines of the group, then a plane of scales (16 halves per block; of MXFP4 bfloat16, which
 *   holds every power of two from 2^-128 to 2^127; of NVFP4 twice 16 bytes quant_ue4m3, first those of vectors 0 .. 3),
 *   padded to a line, then a like plane of m
 *     LINES_8   8 lines, line v = vector v                                              Q8_0 (offset 128)
 *     LINES_4   4 lines, line i = vector i | vector 4+i << 4
 *               Q4_0 (8), Q4_1 (0), IQ4_NL, MXFP4, NVFP4 (indices of their codebooks)
 *     LINES_5   as LINES_4, then a line of fifth bits: vector i at bit 2i, 4+i at 2i+1  Q5_0 (16), Q5_1 (0)
 *   blocks of 256: everything of a block together, sizes in lines
 *     K4   32 codes, 3 scales, 1 halves                                                 Q4_K (0)
 *     K5   32 codes, 8 fifth bits, 3 scales, 1 halves                                   Q5_K (0)
 *     K4X  32 codes, 2 scales, 1 floats
 *          IQ4_XS, IQ3_XXS, IQ3_S (indices of their codebooks; the latter are 1.43 and 1.27 times as large as in the
 *          file, which has an index for several values)
 *     K6   32 codes, 16 high bits, 4 scales, 1 halves                                   Q6_K (32)
 *     K2   16 codes, 4 scales, 1 halves                                                 Q2_K (0)
 *     K3   16 codes, 8 third bits, 4 scales, 1 floats
 *          Q3_K (4), IQ2_XXS, IQ2_XS, IQ2_S (indices of their codebook; 1.76, 1.57 and 1.41 times as large as in the
 *          file)
 *   where, with P = pair of sub-blocks,
 *     codes of K4, K5, K4X (sub-blocks of 8 vectors): line 8P + i = vector i of sub-block 2P | that of 2P+1 << 4
 *     codes of K6 (sub-blocks of 4 vectors): line 4P + i = low 4 bits of vector i of sub-block 2P | those of 2P+1 << 4
 *     fifth bits of K5: line 2P + h holds i = 4h .. 4h+3: sub-block 2P at bit 2(i%4), 2P+1 at bit 2(i%4)+1
 *     high bits of K6: line 2P + c = bits 4..5 of vector i of sub-block 2P + c, at bit 2i
 *     codes of K2, K3: line s = vector i of sub-block s at bit 2i, of K3 its two low bits
 *     third bits of K3: line P = vector i of sub-block 2P at bit 2i, of 2P+1 at bit 2i+1
 *     scales of K4, K5: S in bytes [s][lane], M in bytes [s/2][lane][s%2], 6 bits each, as four lines S0 S1 M0 M1; M1
 *       is spread over the upper two bits of the others: S0 | M1 << 6, S1 | (M1 >> 2) << 6, M0 | (M1 >> 4) << 6
 *     scales of K4X: int8 [s][lane] (of IQ4_XS S - 32); of K6, K3: int8 [s/2][lane][s%2]; of K2: S | M << 4 in bytes
 *       [s][lane]
 *     halves: d [lane], dmin [lane]; floats: d [lane] */
#ifndef RATOON_BACKEND_CPU_MATMUL_LAYOUT_H
#define RATOON_BACKEND_CPU_MATMUL_LAYOUT_H

#include <stddef.h>
#include <stdint.h>

#include "backend/cpu/line.h"
#include "backend/cpu/matmul.h"

typedef enum { PACK_F32, PACK_16, PACK_8, PACK_4, PACK_5, PACK_K4, PACK_K5, PACK_K4X, PACK_K6, PACK_K2,
               PACK_K3, PACK_NONE } Pack;

typedef struct {
    Pack    pack;
    int32_t block;              /* columns of a block; NVFP4: half a block of the file */
    int32_t lines;              /* of a block, without planes */
    int32_t planes;             /* 32-types: 1 scale, 2 also m */
    int32_t offset;             /* stored code = code + offset; for codebook types, the offset of the codebook's values
                                 * in kernels */
} Layout;
extern const Layout matmul_layout[T_COUNT];

static inline size_t plane_bytes(int32_t blocks)
{
    return ((size_t) blocks * WEIGHT_GROUP * 2 + LINE - 1) / LINE * LINE;
}

/* One block of one weight row, independent of its packing. value = d * scale[i / 16] * code[i], - dmin * min[i / 16] or
 * + dmin (which is then m) for the types that have it. 32-types: 32 codes, scales unused; upper: the d of the upper 16
 * codes, which NVFP4 has. */
typedef struct {
    int8_t   code[256];
    int16_t  scale[16], min[16];
    float    d, dmin, upper;
} WeightBlock;

/* group: start of the packed group; lane in [0, 16). */
void matmul_read_block(WeightBlock *w, Type t, const uint8_t *group, int32_t cols, int32_t block, int32_t lane);

/* Activation blocks, stored [block][row], because all rows of a block are used together. The sums serve the minimum
 * terms and undo code offsets. The less* fields are initial values of integer accumulators: adding the products of code
 * + offset to them leaves the products of code. */
typedef struct {
    int8_t  q[32];
    float   scale;
    int32_t sum;                                   /* of q */
    int32_t less8, less16, less128;                /* -8, -16, -128 times sum */
    int32_t lower_less16;                          /* -16 times the sum of the lower 16 */
} ActBlock32;

typedef struct {
    int8_t  q[256];
    int32_t less32[32];                            /* -32 times the sum of each 8 */
    int32_t less16[16];                            /* -16 times the sum of each 16 */
    int16_t sum16[16], sum32[8];                   /* of each 16, each 32 */
    float   scale;
    uint8_t none[12];                              /* pads q of every block to the start of a line, since it is four
                                                    * rows of tiles */
} ActBlock256;
_Static_assert(sizeof(ActBlock256) % LINE == 0, "q of the next block would cross lines");

#endif
