#include "format/quant.h"

#include <string.h>
#include <strings.h>

static const TypeInfo types[T_COUNT] = {
    [T_F32]    = {"F32",    0,  1,   4,   true},
    [T_F16]    = {"F16",    1,  1,   2,   true},
    [T_BF16]   = {"BF16",   30, 1,   2,   true},
    [T_I32]    = {"I32",    26, 1,   4,   false},
    [T_Q8_0]   = {"Q8_0",   8,  32,  34,  true},
    [T_Q4_0]   = {"Q4_0",   2,  32,  18,  true},
    [T_Q4_1]   = {"Q4_1",   3,  32,  20,  true},
    [T_Q5_0]   = {"Q5_0",   6,  32,  22,  true},
    [T_Q5_1]   = {"Q5_1",   7,  32,  24,  true},
    [T_IQ4_NL] = {"IQ4_NL", 20, 32,  18,  true},
    [T_MXFP4]  = {"MXFP4",  39, 32,  17,  true},
    [T_NVFP4]  = {"NVFP4",  40, 64,  36,  true},
    [T_Q2_K]   = {"Q2_K",   10, 256, 84,  true},
    [T_Q3_K]   = {"Q3_K",   11, 256, 110, true},
    [T_Q4_K]   = {"Q4_K",   12, 256, 144, true},
    [T_Q5_K]   = {"Q5_K",   13, 256, 176, true},
    [T_Q6_K]   = {"Q6_K",   14, 256, 210, true},
    [T_IQ4_XS] = {"IQ4_XS", 23, 256, 136, true},
    [T_IQ2_XXS] = {"IQ2_XXS", 16, 256, 66,  true},
    [T_IQ2_XS]  = {"IQ2_XS",  17, 256, 74,  true},
    [T_IQ2_S]   = {"IQ2_S",   22, 256, 82,  true},
    [T_IQ3_XXS] = {"IQ3_XXS", 18, 256, 98,  true},
    [T_IQ3_S]   = {"IQ3_S",   21, 256, 110, true},
    [T_TQ3_0]  = {"TQ3_0",  -1, 128, 56,  false},
};

const int8_t quant_iq4[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
const int8_t quant_fp4[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

const TypeInfo *type_info(Type t) { return &types[t]; }

bool type_from_ggml(Type *out, uint32_t ggml)
{
    for (int t = 0; t < T_COUNT; t++) {
        if (types[t].ggml >= 0 && (uint32_t) types[t].ggml == ggml) {
            *out = (Type) t;
            return true;
        }
    }
    return false;
}

bool type_from_name(Type *out, const char *name)
{
    for (int t = 0; t < T_COUNT; t++) {
        if (strcasecmp(types[t].name, name) == 0) {
            *out = (Type) t;
            return true;
        }
    }
    return false;
}

size_t type_row_bytes(Type t, int64_t cols)
{
    return (size_t) (cols / types[t].block) * (size_t) types[t].bytes;
}

static float float_of_bits(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static uint32_t bits_of_float(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}

float half_to_float(uint16_t h)
{
    uint32_t sign = (uint32_t) (h >> 15) << 31, exponent = (h >> 10) & 31u, mantissa = h & 1023u;
    if (exponent == 0) {                                   /* zero and subnormals are multiples of 2^-24 */
        float magnitude = (float) mantissa * 0x1p-24f;
        return sign ? -magnitude : magnitude;
    }
    uint32_t high = exponent == 31 ? 255 : exponent + 112;
    return float_of_bits(sign | high << 23 | mantissa << 13);
}

uint16_t half_from_float(float f)
{
    uint32_t bits = bits_of_float(f), sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return (uint16_t) (sign | 0x7e00u | ((magnitude >> 13) & 0x1ffu));
    if (magnitude >= 0x477ff000u) return (uint16_t) (sign | 0x7c00u);      /* 65520 and more round to infinity */
    if (magnitude < 0x38800000u) {
        /* Below 2^-14 the result is subnormal, a multiple of 2^-24: that is the last place of floats in [0.5, 1), so
         * the addition does the rounding. */
        float count = float_of_bits(magnitude) + 0.5f;
        return (uint16_t) (sign | (bits_of_float(count) - 0x3f000000u));
    }
    magnitude += 0xfffu + ((magnitude >> 13) & 1u);
    return (uint16_t) (sign | (magnitude - 0x38000000u) >> 13);
}

float bf16_to_float(uint16_t h) { return float_of_bits((uint32_t) h << 16); }

uint16_t bf16_from_float(float f)
{
    uint32_t bits = bits_of_float(f);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (uint16_t) (bits >> 16 | 0x40u);
    return (uint16_t) ((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

float quant_e8m0_half(uint8_t e) { return bf16_to_float(quant_e8m0_half_bf16(e)); }

/* The exponent's bias is 7, and 15 in a half, which is 2^-8 times the scale, also where both are subnormal. */
float quant_ue4m3_half(uint8_t s) { return half_to_float((uint16_t) (s << 7)) * 0x1p7f; }

void quant_k4_scale(uint8_t *scale, uint8_t *min, const uint8_t sc[12], int s)
{
    if (s < 4) {
        *scale = sc[s] & 63;
        *min = sc[s + 4] & 63;
    } else {
        *scale = (uint8_t) ((sc[s + 4] & 15) | (sc[s - 4] >> 6) << 4);
        *min = (uint8_t) ((sc[s + 4] >> 4) | (sc[s] >> 6) << 4);
    }
}

/* Bytes of a block, whose fields need not be aligned. */
static uint16_t load16(const uint8_t *p) { return (uint16_t) (p[0] | p[1] << 8); }

static uint32_t load32(const uint8_t *p)
{
    return (uint32_t) p[0] | (uint32_t) p[1] << 8 | (uint32_t) p[2] << 16 | (uint32_t) p[3] << 24;
}

static float load_half(const uint8_t *p) { return half_to_float(load16(p)); }

/* Each decodes one block. Every product is rounded to float before the next step, in the order written: first the scale
 * times the block scale, then times the code, then the minimum. */

static void decode_q8_0(float *y, const uint8_t *b)
{
    float d = load_half(b);
    for (int i = 0; i < 32; i++) y[i] = d * (float) (int8_t) b[2 + i];
}

static void decode_q4_0(float *y, const uint8_t *b)
{
    float d = load_half(b);
    for (int i = 0; i < 16; i++) {
        y[i]      = d * (float) ((b[2 + i] & 15) - 8);
        y[i + 16] = d * (float) ((b[2 + i] >> 4) - 8);
    }
}

static void decode_q4_1(float *y, const uint8_t *b)
{
    float d = load_half(b), m = load_half(b + 2);
    for (int i = 0; i < 16; i++) {
        y[i]      = d * (float) (b[4 + i] & 15) + m;
        y[i + 16] = d * (float) (b[4 + i] >> 4) + m;
    }
}

static void decode_q5_0(float *y, const uint8_t *b)
{
    float d = load_half(b);
    uint32_t high = load32(b + 2);
    for (int i = 0; i < 16; i++) {
        int low_code  = (b[6 + i] & 15) | (int) ((high >> i) & 1) << 4;
        int high_code = (b[6 + i] >> 4) | (int) ((high >> (i + 16)) & 1) << 4;
        y[i]      = d * (float) (low_code - 16);
        y[i + 16] = d * (float) (high_code - 16);
    }
}

static void decode_q5_1(float *y, const uint8_t *b)
{
    float d = load_half(b), m = load_half(b + 2);
    uint32_t high = load32(b + 4);
    for (int i = 0; i < 16; i++) {
        int low_code  = (b[8 + i] & 15) | (int) ((high >> i) & 1) << 4;
        int high_code = (b[8 + i] >> 4) | (int) ((high >> (i + 16)) & 1) << 4;
        y[i]      = d * (float) low_code + m;
        y[i + 16] = d * (float) high_code + m;
    }
}

static void decode_book(float *y, float d, const int8_t book[16], const uint8_t q[16])
{
    for (int i = 0; i < 16; i++) {
        y[i]      = d * (float) book[q[i] & 15];
        y[i + 16] = d * (float) book[q[i] >> 4];
    }
}

static void decode_iq4_nl(float *y, const uint8_t *b) { decode_book(y, load_half(b), quant_iq4, b + 2); }

static void decode_mxfp4(float *y, const uint8_t *b) { decode_book(y, quant_e8m0_half(b[0]), quant_fp4, b + 1); }

static void decode_nvfp4(float *y, const uint8_t *b)
{
    for (int s = 0; s < 4; s++) {
        float d = quant_ue4m3_half(quant_ue4m3(b[s]));
        for (int i = 0; i < 8; i++) {
            y[16 * s + i]     = d * (float) quant_fp4[b[4 + 8 * s + i] & 15];
            y[16 * s + 8 + i] = d * (float) quant_fp4[b[4 + 8 * s + i] >> 4];
        }
    }
}

/* Q2_K and Q3_K: element 128p + 32r + 16c + l has its two low bits in byte 32p + 16c + l at 2r, and scale
 * 8p + 2r + c. */

static void decode_q2_k(float *y, const uint8_t *b)
{
    const uint8_t *sc = b, *q = b + 16;
    float d = load_half(b + 80), dmin = load_half(b + 82);
    for (int s = 0; s < 16; s++) {
        int p = s >> 3, r = (s >> 1) & 3, c = s & 1;
        float scale = d * (float) (sc[s] & 15), min = dmin * (float) (sc[s] >> 4);
        for (int l = 0; l < 16; l++) {
            int code = (q[32 * p + 16 * c + l] >> 2 * r) & 3;
            y[16 * s + l] = scale * (float) code - min;
        }
    }
}

static void decode_q3_k(float *y, const uint8_t *b)
{
    const uint8_t *high = b, *q = b + 32, *sc = b + 96;
    float d = load_half(b + 108);
    for (int s = 0; s < 16; s++) {
        int p = s >> 3, r = (s >> 1) & 3, c = s & 1;
        int scale4 = s < 8 ? sc[s] & 15 : sc[s - 8] >> 4;
        int scale6 = scale4 | ((sc[8 + (s & 3)] >> 2 * (s >> 2)) & 3) << 4;
        float scale = d * (float) (scale6 - 32);
        for (int l = 0; l < 16; l++) {
            int low = (q[32 * p + 16 * c + l] >> 2 * r) & 3, bit = (high[16 * c + l] >> (4 * p + r)) & 1;
            y[16 * s + l] = scale * (float) (low - (bit ? 0 : 4));
        }
    }
}

static void decode_q4_k(float *y, const uint8_t *b)
{
    const uint8_t *sc = b + 4, *q = b + 16;
    float d = load_half(b), dmin = load_half(b + 2);
    for (int s = 0; s < 8; s++) {
        uint8_t S, M;
        quant_k4_scale(&S, &M, sc, s);
        float scale = d * (float) S, min = dmin * (float) M;
        for (int l = 0; l < 32; l++) {
            int code = (q[32 * (s >> 1) + l] >> 4 * (s & 1)) & 15;
            y[32 * s + l] = scale * (float) code - min;
        }
    }
}

static void decode_q5_k(float *y, const uint8_t *b)
{
    const uint8_t *sc = b + 4, *high = b + 16, *q = b + 48;
    float d = load_half(b), dmin = load_half(b + 2);
    for (int s = 0; s < 8; s++) {
        uint8_t S, M;
        quant_k4_scale(&S, &M, sc, s);
        float scale = d * (float) S, min = dmin * (float) M;
        for (int l = 0; l < 32; l++) {
            int code = ((q[32 * (s >> 1) + l] >> 4 * (s & 1)) & 15) | ((high[l] >> s) & 1) << 4;
            y[32 * s + l] = scale * (float) code - min;
        }
    }
}

/* Element 128p + 32r + l: low four bits in a nibble of ql, two high bits in qh, one scale per 16. */
static void decode_q6_k(float *y, const uint8_t *b)
{
    const uint8_t *ql = b, *qh = b + 128, *sc = b + 192;
    float d = load_half(b + 208);
    for (int s = 0; s < 16; s++) {
        int p = s >> 3, r = (s >> 1) & 3, c = s & 1;
        float scale = d * (float) (int8_t) sc[s];
        for (int k = 0; k < 16; k++) {
            int l = 16 * c + k;
            int low = (ql[64 * p + 32 * (r & 1) + l] >> 4 * (r >> 1)) & 15, high = (qh[32 * p + l] >> 2 * r) & 3;
            y[16 * s + k] = scale * (float) ((low | high << 4) - 32);
        }
    }
}

static void decode_iq4_xs(float *y, const uint8_t *b)
{
    float d = load_half(b);
    int high = load16(b + 2);
    const uint8_t *low = b + 4, *q = b + 8;
    for (int s = 0; s < 8; s++) {
        int scale6 = ((low[s >> 1] >> 4 * (s & 1)) & 15) | ((high >> 2 * s) & 3) << 4;
        decode_book(y + 32 * s, d * (float) (scale6 - 32), quant_iq4, q + 16 * s);
    }
}

static void decode_iq(float *y, Type t, const uint8_t *b)
{
    IqBlock q;
    quant_read_iq(&q, t, b);
    for (int i = 0; i < 256; i++) y[i] = q.d * (float) q.scale[i / 16] * (float) quant_book(t)[q.code[i]];
}

void quant_decode(float *y, Type t, const void *row, int64_t n)
{
    static void (*const decode[T_COUNT])(float *, const uint8_t *) = {
        [T_Q8_0] = decode_q8_0, [T_Q4_0] = decode_q4_0, [T_Q4_1] = decode_q4_1, [T_Q5_0] = decode_q5_0,
        [T_Q5_1] = decode_q5_1,
        [T_IQ4_NL] = decode_iq4_nl, [T_MXFP4] = decode_mxfp4, [T_NVFP4] = decode_nvfp4, [T_Q2_K] = decode_q2_k,
        [T_Q3_K] = decode_q3_k, [T_Q4_K] = decode_q4_k, [T_Q5_K] = decode_q5_k,
        [T_Q6_K] = decode_q6_k, [T_IQ4_XS] = decode_iq4_xs, [T_TQ3_0] = quant_decode_tq3,
    };
    const uint8_t *b = row;
    switch (t) {
    case T_F32:
        memcpy(y, row, (size_t) n * sizeof *y);
        break;
    case T_F16:
        for (int64_t i = 0; i < n; i++) y[i] = load_half(b + 2 * i);
        break;
    case T_BF16:
        for (int64_t i = 0; i < n; i++) y[i] = bf16_to_float(load16(b + 2 * i));
        break;
    case T_IQ2_XXS:
    case T_IQ2_XS:
    case T_IQ2_S:
    case T_IQ3_XXS:
    case T_IQ3_S:
        for (int64_t i = 0; i < n; i += 256, b += types[t].bytes) decode_iq(y + i, t, b);
        break;
    default:
        for (int64_t i = 0; i < n; i += types[t].block, b += types[t].bytes) decode[t](y + i, b);
        break;
    }
}
