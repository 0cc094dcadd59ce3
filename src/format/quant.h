/* quant.h - the tensor types of GGUF files: names, block sizes, and the arithmetic of their blocks.
 * A row of a tensor is a whole number of blocks; rows are quantised independently. The decoders here define a type, one
 * plain loop each (spec: the field order of ggml-common.h, restated in doc/formats.md); kernels are tested against
 * them. */
#ifndef RATOON_FORMAT_QUANT_H
#define RATOON_FORMAT_QUANT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Our own numbers; ggml's occur only in files (type_from_ggml). */
typedef enum {
    T_F32, T_F16, T_BF16, T_I32,
    T_Q8_0, T_Q4_0, T_Q4_1, T_Q5_0, T_Q5_1, T_IQ4_NL, T_MXFP4, /* blocks of 32 */
    T_NVFP4,                                                   /* of 64, a scale for each 16 */
    T_Q2_K, T_Q3_K, T_Q4_K, T_Q5_K, T_Q6_K, T_IQ4_XS,          /* blocks of 256 */
    T_IQ2_XXS, T_IQ2_XS, T_IQ2_S, T_IQ3_XXS, T_IQ3_S,          /* of 256, from grids: quant_iq.c */
    T_TQ3_0,                                                   /* blocks of 128, for keys and values only: never in a
                                                                * file */
    T_COUNT
} Type;

typedef struct {
    const char *name;                              /* as GGUF tools spell it: "Q4_K" */
    int32_t     ggml;                              /* number in a file; -1 none */
    int32_t     block, bytes;                      /* values and bytes per block */
    bool        weight;                            /* can be the weight of a matrix product */
} TypeInfo;

const TypeInfo *type_info(Type t);                 /* t in [0, T_COUNT) */
bool   type_from_ggml(Type *out, uint32_t ggml);   /* false: unknown to us */
bool   type_from_name(Type *out, const char *name);/* case-insensitive; false: unknown */
size_t type_row_bytes(Type t, int64_t cols);       /* cols is a multiple of the block and below 2^40 */

/* IEEE half and bfloat16. *_from_float: round to nearest even, overflow to infinity, NaN stays NaN. */
float    half_to_float(uint16_t h);
uint16_t half_from_float(float f);
float    bf16_to_float(uint16_t h);
uint16_t bf16_from_float(float f);

/* One row of n values (a multiple of the block). T_I32 is not accepted. */
void quant_decode(float *y, Type t, const void *row, int64_t n);
/* The largest magnitude that t holds: block types have half-precision scales. */
float quant_limit(Type t);
/* Whether all values are numbers up to that limit. quant_encode makes others finite in block types. */
bool  quant_fits(Type t, const float *x, int64_t n);
/* Returns false if t has no encoder (I32). Deterministic. */
bool quant_encode(void *row, Type t, const float *x, int64_t n);

/* Codebooks: of IQ4_NL and IQ4_XS; of MXFP4 and NVFP4, their values of four bits (e2m1), doubled so that they are
 * integers; of the types from grids, magnitudes and behind them the same negative. */
extern const int8_t quant_iq4[16], quant_fp4[16], quant_iq2[16], quant_iq3_xxs[16], quant_iq3_s[16];
/* 2^(e - 128), a block's scale of MXFP4 halved; also as bfloat16, whose range and precision suffice for all of them. */
float    quant_e8m0_half(uint8_t e);
static inline uint16_t quant_e8m0_half_bf16(uint8_t e)         /* the two smallest are subnormal */
{
    return (uint16_t) (e < 2 ? 0x20 << e : (e - 1) << 7);
}
/* A scale of NVFP4 (unsigned e4m3: four bits of exponent, three of mantissa) in seven bits without exceptions. As in
 * ggml, the top bit has no meaning, but 0x7f, which would be NaN, is 0, and 0xff is 480. */
static inline uint8_t quant_ue4m3(uint8_t s) { return s == 0x7f ? 0 : s & 0x7f; }
/* Half of the scale of these seven bits: 2^7 times the half whose bits are s << 7. */
float    quant_ue4m3_half(uint8_t s);
/* The 6-bit scale/minimum pair s (0..7) of Q4_K and Q5_K. */
void quant_k4_scale(uint8_t *scale, uint8_t *min, const uint8_t sc[12], int s);

static inline const int8_t *quant_book(Type t)                 /* NULL: codes are integers */
{
    return t == T_IQ4_NL || t == T_IQ4_XS ? quant_iq4 : t == T_MXFP4 || t == T_NVFP4 ? quant_fp4
         : t == T_IQ2_XXS || t == T_IQ2_XS || t == T_IQ2_S ? quant_iq2
         : t == T_IQ3_XXS ? quant_iq3_xxs : t == T_IQ3_S ? quant_iq3_s : NULL;
}

/* A block of a type from grids: value i = d * scale[i / 16] * quant_book(t)[code[i]], all of it exact. d is the file's
 * times a power of two, so that scales are integers. */
typedef struct { uint8_t code[256], scale[16]; float d; } IqBlock;
void quant_read_iq(IqBlock *q, Type t, const uint8_t *b);

/* TQ3_0, quant_tq3.c: its levels; the rotation of groups of 128 values and its inverse, in place, n a multiple of 128;
 * one group to its 56 bytes and back; and the decoding of a block of 32 values that stay in the rotated space, as
 * attention reads them. */
extern const float quant_tq3[8];
void quant_rotate(float *x, int64_t n);
void quant_unrotate(float *x, int64_t n);
void quant_encode_tq3(uint8_t *b, const float *x);
void quant_decode_tq3(float *y, const uint8_t *b);
void quant_decode_tq3_turned(float *y, const uint8_t *b);

#endif
