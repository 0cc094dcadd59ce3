/* instructions.h - arguments of the kernels in instructions.cu, by which test_gpu_instructions.c tries every wrapper of
 * the dialect. */
#ifndef RATOON_TESTS_GPU_INSTRUCTIONS_H
#define RATOON_TESTS_GPU_INSTRUCTIONS_H

#include <stdint.h>

/* What one thread does with words of up to 64 bits: name, number of operands. Functions in double are those of
 * base/mathd.h. */
#define INSTRUCTIONS(X) \
    X(F32_FMA, 3) X(F32_MUL, 2) X(F32_ADD, 2) X(F32_SUB, 2) X(F32_DIV, 2) X(F32_SQRT, 1) X(F32_MAX, 2) X(F32_MIN, 2) \
    X(F32_OF_INT, 1) X(F32_OF_HALF, 1) X(HALF_OF_F32, 1) X(F32_OF_F64, 1) X(F64_OF_F32, 1) X(F64_OF_INT, 1) \
    X(F64_FMA, 3) X(F64_MUL, 2) X(F64_ADD, 2) X(F64_DIV, 2) X(F64_EXP, 1) X(F64_LOG, 1) X(F64_LOG1P, 1) \
    X(F64_SIN, 1) X(F64_COS, 1) X(DOT4, 3) X(DOT2LO, 3) X(DOT2HI, 3) X(BYTE_PERM, 3)
typedef enum {
#define X(name, operands) I_##name,
    INSTRUCTIONS(X)
#undef X
    I_COUNT
} Instruction;

/* out[i] = op(a[i], b[i], c[i]), i < n; blocks of 128 threads */
typedef struct { const uint64_t *a, *b, *c; uint64_t *out; int32_t n; Instruction op; } WordArgs;

/* Blocks of 64 threads. For each thread i: a value and a lane of its warp, or a mask; out [3]: shfl, shfl_xor, ballot
 * of the value's lowest bit. */
typedef struct { const int32_t *value, *lane; int32_t *out; } WarpArgs;

/* A warp per block. a [blocks, 32, 4], b [blocks, 32, 2], c and out [blocks, 32, 4]: each lane's words. MMA_16: of the
 * first two words of a, and the first of b. */
typedef enum { MMA_32, MMA_32_U8, MMA_16, MMA_KINDS } MmaKind;
typedef struct { const uint32_t *a, *b; const int32_t *c; int32_t *out; MmaKind kind; } MmaArgs;

/* A block of 128 threads copies `steps` pieces of 2,048 bytes through shared memory, three in flight; thread i writes
 * what thread 127 - i copied. big: a struct of 80 KB instead. */
typedef struct { const uint8_t *from; uint8_t *to; int32_t steps; } CopyArgs;

/* Each thread adds `by` to a counter, out: what was there, and to one in shared memory, whose sum the first thread adds
 * to the second. */
typedef struct { int32_t *counter, *out; int32_t by; } CountArgs;

/* out[i] = in[(i * stride + 1) % n] + 1: every launch reads what other blocks of the one before have written. */
typedef struct { const int32_t *in; int32_t *out; int32_t n, stride; } ChainArgs;

/* to[i] = from[i] with loads and stores of 4, 8 and 16 bytes, floats and integers, by ld and ld_weight. */
typedef struct { const uint8_t *from; uint8_t *to; int32_t bytes; } WideArgs;

#endif
