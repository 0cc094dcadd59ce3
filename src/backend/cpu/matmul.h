/* matmul.h - the product of activation rows with a packed weight matrix, y = x w^T, the heart of the CPU backend.
 * A matrix is packed once, at load: 16 consecutive rows form a group whose values lie side by side in the lanes of a
 * vector, with one layout per type for all instruction sets. A product quantises its input once (rows are independent),
 * then processes the groups in any order and division: an output value depends only on its input row and its weight
 * row, and has the same bits at every level.
 *
 * The arithmetic per output value, blocks ascending from acc = 0 (doc/design.md "Exactness"; dw, dmin, m: the block's
 * halves as float):
 *   F32 F16 BF16          acc = fmaf(w[k], x[k], acc), k ascending
 *   blocks of 32          acc = fmaf(dw * da, (float)isum, acc), isum = sum of code * q;
 *                         Q4_1, Q5_1 also acc = fmaf(m * da, (float)sum of q, acc);
 *                         MXFP4: dw = 2^(e - 128), codes are the doubled values of quant_fp4
 *   NVFP4                 the same blocks of x, but each 16 columns have their dw (quant_ue4m3_half) and their isum, so
 *                         that acc = fmaf(dw * da, (float)isum, acc) twice, ascending; codes are MXFP4's
 *   blocks of 256         the same with isum = sum over sub-blocks of S * (sum of code * q);
 *                         Q2_K, Q4_K, Q5_K also acc = fmaf(-(dmin * da), (float)msum, acc), msum = sum of M *
 *                         (sum of q); IQ2_*, IQ3_*: S, dw and codes as quant_read_iq says
 * The activation block: q = round half to even(x * (127 / amax)), da = amax / 127. A block with amax below 2^-100
 * counts as zero; one with an infinity or a NaN has da NaN and q 0, so that every output of the row becomes NaN. */
#ifndef RATOON_BACKEND_CPU_MATMUL_H
#define RATOON_BACKEND_CPU_MATMUL_H

#include <stddef.h>
#include <stdint.h>

#include "backend/cpu/level.h"
#include "format/quant.h"

enum { WEIGHT_GROUP = 16 };                        /* weight rows side by side; a matrix has (rows + 15) / 16 groups */

/* Packed bytes of a whole matrix, a multiple of 64; 0: not a weight type, sizes below 1, or cols not a whole number of
 * blocks. */
size_t matmul_packed_bytes(Type t, int32_t rows, int32_t cols);

/* Bytes of a packed group, a multiple of 64. cols: a whole number of blocks. */
size_t matmul_group_bytes(Type t, int32_t cols);

/* Packs groups [group0, group1) of src, rows x cols in the file's layout, into dst, the whole packed matrix, aligned to
 * 64. Rows beyond the last become zeros. Threads may pack different groups at once. */
void matmul_pack(void *dst, Type t, const void *src, int32_t rows, int32_t cols, int32_t group0, int32_t group1);

/* y[cols] = one row, with the same bits as quant_decode of the row before packing. */
void matmul_unpack_row(float *y, Type t, const void *packed, int32_t rows, int32_t cols, int32_t row);

/* The form in which a product reads its input. ACT_F32: the float rows themselves, [n, cols] without gaps, nothing to
 * prepare. The others: a buffer of matmul_act_bytes, aligned to 64, filled by act_quantise below. */
typedef enum { ACT_F32, ACT_Q32, ACT_Q256, ACT_COUNT } ActForm;
ActForm matmul_act_form(Type t);
size_t  matmul_act_bytes(ActForm form, int32_t n, int32_t cols);   /* ACT_F32: 0. cols a multiple of 32 or 256 */

/* matmul_part_rows: how many rows to multiply at once, 16 to 64. Every group of weights reads all these rows again, so
 * they should fit `cache` bytes, matmul_part_bytes(): half of a core's second-level cache. That function asks the
 * system, which is slow. */
size_t  matmul_part_bytes(void);
int32_t matmul_part_rows(ActForm form, int32_t cols, size_t cache);

typedef struct {
    /* Quantises rows [row0, row1) of x [n, cols] into act, which holds all n rows. */
    void (*quantise)(void *act, ActForm form, const float *x, int32_t n, int32_t cols, int32_t row0, int32_t row1);
    /* y[i * y_stride + j] for i in [0, n), j in [16 * group0, min(16 * group1, rows)). act: matmul_act_form(t), n
     * rows. */
    void (*product)(float *y, size_t y_stride, Type t, const void *packed, const void *act, int32_t n, int32_t rows,
                    int32_t cols, int32_t group0, int32_t group1);
} MatmulKernels;
extern const MatmulKernels LEVEL_PRODUCT_EACH(matmul);
const MatmulKernels *matmul_kernels(CpuLevel l);   /* l must be supported here */

#endif
