/* Encoders of quant.h. The types of 32 values here take the scale that just reaches the largest value, which is quick
 * enough for keys and values; quant_encode_k.c searches.
 * Inside a block of any quantised type NaN counts as 0 and values beyond half precision's 65504 count as 65504, so
 * every scale stays finite; callers that must not accept such values (ratoon quantize) check beforehand. Same input,
 * same bytes. */
#include "format/quant_fit.h"

static void store32(uint8_t *p, uint32_t v)
{
    store16(p, (uint16_t) v);
    store16(p + 2, (uint16_t) (v >> 16));
}

static void encode_q8_0(uint8_t *b, const float *x)
{
    float d = fabsf(signed_largest(x, 32)) / 127.0f, inverse = inverse_of(d);
    if (isinf(inverse)) inverse = 0;               /* of a subnormal step, whose stored half is 0: all codes are 0 */
    store_half(b, d);
    for (int i = 0; i < 32; i++) b[2 + i] = (uint8_t) (int8_t) roundf(x[i] * inverse);
}

/* code = min(limit, x / d + shift) without the fraction; never negative, since the scale comes from the largest
 * value. */
static uint8_t code_up_to(float scaled, int limit)
{
    int code = (int) clamp(scaled, 0.0f, 255.0f);
    return (uint8_t) (code > limit ? limit : code);
}

static void encode_q4_0(uint8_t *b, const float *x)
{
    float d = signed_largest(x, 32) / -8.0f, inverse = inverse_of(d);
    store_half(b, d);
    for (int i = 0; i < 16; i++) {
        uint8_t low = code_up_to(x[i] * inverse + 8.5f, 15), high = code_up_to(x[i + 16] * inverse + 8.5f, 15);
        b[2 + i] = (uint8_t) (low | high << 4);
    }
}

static void encode_q4_1(uint8_t *b, const float *x)
{
    float lo, hi;
    range_of(&lo, &hi, x, 32);
    float d = (hi - lo) / 15.0f, inverse = inverse_of(d);
    store_half(b, d);
    store_half(b + 2, lo);
    for (int i = 0; i < 16; i++) {
        uint8_t low = code_up_to((x[i] - lo) * inverse + 0.5f, 15),
                high = code_up_to((x[i + 16] - lo) * inverse + 0.5f, 15);
        b[4 + i] = (uint8_t) (low | high << 4);
    }
}

/* Stores 32 five-bit codes: the four low bits as in Q4_0, the fifth bits in one word. */
static void store_five_bits(uint8_t *q, uint8_t *high_bits, const uint8_t code[32])
{
    uint32_t high = 0;
    for (int i = 0; i < 16; i++) q[i] = (uint8_t) ((code[i] & 15) | (code[i + 16] & 15) << 4);
    for (int i = 0; i < 32; i++) high |= (uint32_t) (code[i] >> 4) << i;
    store32(high_bits, high);
}

static void encode_q5_0(uint8_t *b, const float *x)
{
    uint8_t code[32];
    float d = signed_largest(x, 32) / -16.0f, inverse = inverse_of(d);
    store_half(b, d);
    for (int i = 0; i < 32; i++) code[i] = code_up_to(x[i] * inverse + 16.5f, 31);
    store_five_bits(b + 6, b + 2, code);
}

static void encode_q5_1(uint8_t *b, const float *x)
{
    uint8_t code[32];
    float lo, hi;
    range_of(&lo, &hi, x, 32);
    float d = (hi - lo) / 31.0f, inverse = inverse_of(d);
    store_half(b, d);
    store_half(b + 2, lo);
    for (int i = 0; i < 32; i++) code[i] = code_up_to((x[i] - lo) * inverse + 0.5f, 31);
    store_five_bits(b + 8, b + 4, code);
}

/* The code whose value times d is nearest, of equally near ones the first. */
static uint8_t nearest_fp4(float x, float d)
{
    float best = INFINITY;
    uint8_t code = 0;
    for (uint8_t k = 0; k < 16; k++) {
        const float error = fabsf(d * (float) quant_fp4[k] - x);
        if (error < best) best = error, code = k;
    }
    return code;
}

/* llama.cpp's rule: the largest value keeps its power of two. */
static void encode_mxfp4(uint8_t *b, const float *x)
{
    int exponent;
    const float largest = fabsf(signed_largest(x, 32));
    frexpf(largest, &exponent);                    /* largest is at least 2^(exponent - 1) */
    exponent = largest > 0 ? exponent - 1 - 2 + 127 : 0;
    b[0] = (uint8_t) (exponent < 0 ? 0 : exponent);
    const float d = quant_e8m0_half(b[0]);
    for (int i = 0; i < 16; i++) b[1 + i] = (uint8_t) (nearest_fp4(x[i], d) | nearest_fp4(x[i + 16], d) << 4);
}

/* The nearest scale of NVFP4, of two that are equally near the larger one; 448 at most. */
static uint8_t ue4m3_from_float(float x)
{
    if (x < 0x1p-6f) return (uint8_t) (x * 0x1p9f + 0.5f);     /* subnormal; up to 8, which is 2^-6 */
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    bits = ((bits + (1u << 19)) >> 20) - (120u << 3);
    return (uint8_t) (bits < 0x7e ? bits : 0x7e);
}

/* The scale that makes each 16 values' largest 6. */
static void encode_nvfp4(uint8_t *b, const float *x)
{
    for (int s = 0; s < 4; s++, x += 16) {
        b[s] = ue4m3_from_float(fabsf(signed_largest(x, 16)) / 6.0f);
        const float d = quant_ue4m3_half(b[s]);
        for (int i = 0; i < 8; i++)
            b[4 + 8 * s + i] = (uint8_t) (nearest_fp4(x[i], d) | nearest_fp4(x[i + 8], d) << 4);
    }
}

float quant_limit(Type t)
{
    if (t == T_F32) return 0x1.fffffep127f;
    if (t == T_BF16) return 0x1.fep127f;
    return 65504.0f;
}

bool quant_fits(Type t, const float *x, int64_t n)
{
    const float limit = quant_limit(t);
    bool fits = true;
    for (int64_t i = 0; i < n; i++) fits &= fabsf(x[i]) <= limit;         /* false for NaN too */
    return fits;
}

bool quant_encode(void *row, Type t, const float *x, int64_t n)
{
    static void (*const encode[T_COUNT])(uint8_t *, const float *) = {
        [T_Q8_0] = encode_q8_0, [T_Q4_0] = encode_q4_0, [T_Q4_1] = encode_q4_1, [T_Q5_0] = encode_q5_0,
        [T_Q5_1] = encode_q5_1,
        [T_IQ4_NL] = quant_encode_iq4_nl, [T_MXFP4] = encode_mxfp4, [T_NVFP4] = encode_nvfp4,
        [T_Q2_K] = quant_encode_q2_k, [T_Q3_K] = quant_encode_q3_k, [T_Q4_K] = quant_encode_q4_k,
        [T_Q5_K] = quant_encode_q5_k, [T_Q6_K] = quant_encode_q6_k,
        [T_IQ4_XS] = quant_encode_iq4_xs, [T_TQ3_0] = quant_encode_tq3,
    };
    uint8_t *b = row;
    switch (t) {
    case T_F32:
        memcpy(row, x, (size_t) n * sizeof *x);
        return true;
    case T_F16:
        for (int64_t i = 0; i < n; i++) store16(b + 2 * i, half_from_float(x[i]));
        return true;
    case T_BF16:
        for (int64_t i = 0; i < n; i++) store16(b + 2 * i, bf16_from_float(x[i]));
        return true;
    default:
        break;
    }
    const bool grid = quant_book(t) && !encode[t];
    if (!encode[t] && !grid) return false;
    const TypeInfo *info = type_info(t);
    for (int64_t i = 0; i < n; i += info->block, b += info->bytes) {
        float finite[256];
        for (int k = 0; k < info->block; k++) finite[k] = isnan(x[i + k]) ? 0.0f : clamp(x[i + k], -65504.0f, 65504.0f);
        if (grid) quant_encode_iq(b, t, finite);
        else encode[t](b, finite);
    }
    return true;
}
