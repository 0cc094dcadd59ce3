/* Block arithmetic and conversions of format/quant.h against the results of other programs, and the type choices of
 * format/recipe.h. The tables of expected values were printed by: python3 tests/oracle/quant_vectors.py (gguf
 * 0.19.0). */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "format/quant.h"
#include "format/recipe.h"

static uint8_t random_byte(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint8_t) (*state >> 56);
}

static uint64_t fnv(const void *data, size_t n)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (const uint8_t *p = data; n > 0; p++, n--) h = (h ^ *p) * 0x100000001b3u;
    return h;
}

static uint32_t bits_of(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static float float_of(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

/* Sum of twelve uniform numbers, standard deviation 0.02. */
static float gaussian(uint64_t *state)
{
    float sum = -6;
    for (int i = 0; i < 12; i++) sum += ((float) random_byte(state) * 256.0f + (float) random_byte(state)) / 65536.0f;
    return 0.02f * sum;
}

typedef struct { Type type; uint64_t hash; float second, last; } DecodeCase;
typedef struct { Type type; uint64_t hash; } EncodeCase;

static const DecodeCase decode_cases[] = {
    {T_Q8_0, 0x728611ed84e6b0eau, -0x1.6378000000000p-6f, 0x1.53d8000000000p-9f},
    {T_Q4_0, 0x9672d25ff092d67du, 0x1.c980000000000p-5f, 0x1.f940000000000p+0f},
    {T_Q4_1, 0x79927b590f67a05fu, -0x1.b0fe300000000p+0f, 0x1.804c000000000p-4f},
    {T_Q5_0, 0xfdff3aee46e6e0edu, 0x1.ddc0000000000p-13f, 0x1.7290000000000p-8f},
    {T_Q5_1, 0xc7f4de1e344a4a35u, -0x1.f334000000000p-1f, -0x1.3320000000000p+0f},
    {T_IQ4_NL, 0xcc9a33de805c3c12u, -0x1.3675000000000p+5f, -0x1.d1eb000000000p-7f},
    {T_MXFP4, 0x8611866767bdce5cu, 0x1.0000000000000p+8f, 0x0.0p+0f},
    {T_NVFP4, 0x90a9a5fb3f9e8361u, -0x1.0000000000000p+6f, 0x1.8000000000000p+0f},
    {T_Q2_K, 0x4b361e39797cb3ddu, -0x1.0db4000000000p-4f, 0x1.6de6000000000p-2f},
    {T_Q3_K, 0x15e6eee2f09703efu, 0x0.0p+0f, -0x1.e980000000000p+2f},
    {T_Q4_K, 0x5946d67ca61da295u, -0x1.4d47d80000000p+5f, 0x1.f441800000000p-1f},
    {T_Q5_K, 0xc293b9f097a958cdu, 0x1.e236500000000p-1f, 0x1.7165f00000000p+4f},
    {T_Q6_K, 0x4154dd2b14e40dc6u, -0x1.3ab1400000000p+11f, 0x1.0408a00000000p-3f},
    {T_IQ4_XS, 0x9deb9b780f29802au, -0x1.2ce1000000000p+3f, 0x1.d1bd800000000p+7f},
    {T_IQ2_XXS, 0x02d460f065ec54f3u, 0x1.ec98000000000p-7f, -0x1.2ed0000000000p-11f},
    {T_IQ2_XS, 0x383794ae98bb2257u, 0x1.ab09e00000000p+6f, -0x1.2c60000000000p+4f},
    {T_IQ2_S, 0x0e4e2ae5af563514u, -0x1.1391500000000p-7f, 0x1.0cf5c00000000p+3f},
    {T_IQ3_XXS, 0x188fab6dc715404eu, 0x1.211e000000000p-1f, 0x1.18a8000000000p-3f},
    {T_IQ3_S, 0xcdb863a62fee7373u, -0x1.3bb0400000000p+1f, 0x1.66ce000000000p+6f},
    {T_F16, 0xb65925489a8fc117u, 0x1.ebc0000000000p-14f, -0x1.7000000000000p-4f},
    {T_BF16, 0x8a4e787845bf0829u, 0x1.dc00000000000p+0f, -0x1.0000000000000p-24f},
};

static const uint64_t nvfp4_scales = 0x38e51bbabf9979a5u;

static const EncodeCase encode_cases[] = {
    {T_F16, 0x4cff0a946c8040ebu},
    {T_BF16, 0xe7369d2156cdb310u},
    {T_Q8_0, 0xc3c5b99195477371u},
    {T_Q4_0, 0x1f7c1665bddd5e02u},
    {T_Q4_1, 0x19a853b02606b36du},
    {T_Q5_0, 0x126b99ebb56af4a1u},
    {T_Q5_1, 0x61b95b90a1ca5840u},
    {T_MXFP4, 0x36b4da7b625aa7d5u},
    {T_NVFP4, 0x50a50e2245fb96a2u},
};

static void types_are_named_and_numbered(void **state)
{
    (void) state;
    static const struct { const char *name; uint32_t ggml; int32_t block, bytes; } expected[] = {
        {"F32", 0, 1, 4}, {"F16", 1, 1, 2}, {"BF16", 30, 1, 2}, {"I32", 26, 1, 4}, {"Q8_0", 8, 32, 34},
        {"Q4_0", 2, 32, 18}, {"Q4_1", 3, 32, 20},
        {"Q5_0", 6, 32, 22}, {"Q5_1", 7, 32, 24}, {"IQ4_NL", 20, 32, 18}, {"MXFP4", 39, 32, 17},
        {"NVFP4", 40, 64, 36},
        {"Q2_K", 10, 256, 84}, {"Q3_K", 11, 256, 110},
        {"Q4_K", 12, 256, 144},
        {"Q5_K", 13, 256, 176}, {"Q6_K", 14, 256, 210}, {"IQ4_XS", 23, 256, 136},
        {"IQ2_XXS", 16, 256, 66}, {"IQ2_XS", 17, 256, 74}, {"IQ2_S", 22, 256, 82}, {"IQ3_XXS", 18, 256, 98},
        {"IQ3_S", 21, 256, 110}, {"TQ3_0", UINT32_MAX, 128, 56},
    };
    assert_int_equal(sizeof expected / sizeof *expected, T_COUNT);
    for (int i = 0; i < T_COUNT; i++) {
        Type a, b;
        assert_true(type_from_name(&a, expected[i].name));
        if (a != T_TQ3_0) {                        /* never in a file */
            assert_true(type_from_ggml(&b, expected[i].ggml));
            assert_int_equal(a, b);
        }
        assert_string_equal(type_info(a)->name, expected[i].name);
        assert_int_equal(type_info(a)->block, expected[i].block);
        assert_int_equal(type_info(a)->bytes, expected[i].bytes);
        assert_int_equal(type_info(a)->weight, a != T_I32 && a != T_TQ3_0);
        assert_int_equal(type_row_bytes(a, 512), (size_t) (512 / expected[i].block * expected[i].bytes));
    }
    Type t = T_F32;
    assert_true(type_from_name(&t, "q4_k"));
    assert_int_equal(t, T_Q4_K);
    for (uint32_t n = 31; n < 50; n++) assert_int_equal(type_from_ggml(&t, n), n == 39 || n == 40);
    assert_false(type_from_ggml(&t, 4));
    assert_false(type_from_ggml(&t, UINT32_MAX));
    assert_false(type_from_name(&t, "Q4"));
    assert_false(type_from_name(&t, ""));
    assert_int_equal(type_row_bytes(T_Q6_K, (int64_t) 1 << 39), ((size_t) 1 << 31) * 210);
}

/* Value of a half by the definition of the format. */
static double half_value(uint16_t h)
{
    int exponent = (h >> 10) & 31, mantissa = h & 1023;
    double v = exponent ? ldexp(1024 + mantissa, exponent - 25) : ldexp(mantissa, -24);
    return h >> 15 ? -v : v;
}

static void half_is_exact_for_all_65536(void **state)
{
    (void) state;
    for (uint32_t i = 0; i < 65536; i++) {
        uint16_t h = (uint16_t) i;
        float f = half_to_float(h);
        if ((h & 0x7c00) == 0x7c00) {
            if (h & 1023) {
                assert_true(isnan(f));
                assert_true(isnan(half_to_float(half_from_float(f))));
            } else {
                assert_true(isinf(f) && !signbit(f) == !(h >> 15));
                assert_int_equal(half_from_float(f), h);
            }
            continue;
        }
        assert_true(f == half_value(h) && !signbit(f) == !(h >> 15));
        assert_int_equal(half_from_float(f), h);
#ifdef __FLT16_MAX__
        _Float16 native;
        memcpy(&native, &h, sizeof native);
        assert_int_equal(bits_of((float) native), bits_of(f));
#endif
    }
}

/* Between every two neighbouring halves: just below, exactly at and just above the middle. */
static void half_rounds_to_nearest_even(void **state)
{
    (void) state;
    for (uint32_t i = 0; i < 0x7c00; i++) {
        float middle = (float) ((half_value((uint16_t) i) +
                                 (i == 0x7bff ? 65536.0 : half_value((uint16_t) (i + 1)))) / 2);
        uint16_t even = (uint16_t) (i & 1 ? i + 1 : i);
        assert_int_equal(half_from_float(nextafterf(middle, 0)), i);
        assert_int_equal(half_from_float(middle), even);
        assert_int_equal(half_from_float(nextafterf(middle, INFINITY)), i + 1);
        assert_int_equal(half_from_float(-middle), even | 0x8000);
    }
    assert_int_equal(half_from_float(1e30f), 0x7c00);
    assert_int_equal(half_from_float(-INFINITY), 0xfc00);
    assert_int_equal(half_from_float(float_of(1)), 0);
    assert_int_equal(half_from_float(-0.0f), 0x8000);
    assert_true(isnan(half_to_float(half_from_float(float_of(0x7f800001)))));      /* its set bits are below a half's */
#ifdef __FLT16_MAX__
    uint64_t seed = 5;
    for (int i = 0; i < 200000; i++) {
        uint32_t u = 0;
        for (int k = 0; k < 4; k++) u = u << 8 | random_byte(&seed);
        float f = float_of(u);
        if (isnan(f)) continue;
        _Float16 native = (_Float16) f;
        uint16_t h;
        memcpy(&h, &native, sizeof h);
        assert_int_equal(half_from_float(f), h);
    }
#endif
}

static void bf16_is_exact_and_rounds_to_even(void **state)
{
    (void) state;
    for (uint32_t i = 0; i < 65536; i++) {
        uint16_t h = (uint16_t) i;
        float f = bf16_to_float(h);
        assert_int_equal(bits_of(f), i << 16);
        if (isnan(f)) {
            assert_true(isnan(bf16_to_float(bf16_from_float(f))));
            continue;
        }
        assert_int_equal(bf16_from_float(f), h);
        if (isinf(f)) continue;
        assert_int_equal(bf16_from_float(float_of(i << 16 | 0x7fff)), h);
        assert_int_equal(bf16_from_float(float_of(i << 16 | 0x8000)), i & 1 ? i + 1 : i);
        assert_int_equal(bf16_from_float(float_of(i << 16 | 0x8001)), i + 1);
    }
    assert_true(isnan(bf16_to_float(bf16_from_float(float_of(0x7f800001)))));
}

static int half_fields(int32_t at[2], Type t)
{
    switch (t) {
    case T_Q4_1: case T_Q5_1: case T_Q4_K: case T_Q5_K: at[0] = 0; at[1] = 2; return 2;
    case T_Q2_K: at[0] = 80; at[1] = 82; return 2;
    case T_Q3_K: at[0] = 108; return 1;
    case T_Q6_K: at[0] = 208; return 1;
    case T_MXFP4: case T_NVFP4: return 0;
    default: at[0] = 0; return 1;
    }
}

static void decoders_equal_gguf(void **state)
{
    (void) state;
    enum { BLOCKS = 16 };
    for (size_t c = 0; c < sizeof decode_cases / sizeof *decode_cases; c++) {
        Type t = decode_cases[c].type;
        const TypeInfo *info = type_info(t);
        uint8_t raw[BLOCKS * 210];
        float y[BLOCKS * 256];
        uint64_t seed = 1000 + (uint64_t) info->ggml;
        int32_t n = BLOCKS * info->block, at[2], halves = half_fields(at, t);
        for (int i = 0; i < BLOCKS * info->bytes; i++) raw[i] = random_byte(&seed);
        for (int b = 0; b < BLOCKS; b++)
            for (int h = 0; h < halves; h++) raw[b * info->bytes + at[h] + 1] &= 0xbf;
        quant_decode(y, t, raw, n);
        assert_true(y[1] == decode_cases[c].second);
        assert_true(y[n - 1] == decode_cases[c].last);
        if (fnv(y, (size_t) n * sizeof *y) != decode_cases[c].hash)
            fail_msg("%s: other values than gguf's", info->name);
    }
}

/* Each of the 256 codes by the definition of the format, and all of them as gguf reads them. */
static void scales_of_nvfp4(void **state)
{
    (void) state;
    float y[64 * 64];
    uint8_t b[64 * 36];
    for (int i = 0; i < 64; i++) {
        for (int s = 0; s < 4; s++) b[36 * i + s] = (uint8_t) (4 * i + s);
        memset(b + 36 * i + 4, 0x11, 32);
    }
    quant_decode(y, T_NVFP4, b, 64 * 64);
    for (int c = 0; c < 256; c++) {
        const int exponent = c >> 3 & 15, mantissa = c & 7;
        const double v = c == 0x7f ? 0 : exponent ? ldexp(8 + mantissa, exponent - 10) : ldexp(mantissa, -9);
        for (int i = 0; i < 16; i++)
            if (y[16 * c + i] != v / 2) fail_msg("code %d: %g, expected %g", c, (double) y[16 * c + i], v / 2);
        assert_true(quant_ue4m3_half(quant_ue4m3((uint8_t) c)) == v / 2);
    }
    assert_true(fnv(y, sizeof y) == nvfp4_scales);
}

/* Every scale, and what lies between it and the next. */
static void scales_of_nvfp4_are_the_nearest(void **state)
{
    (void) state;
    float x[64] = {0};
    uint8_t b[36];
    for (uint8_t c = 0; c < 0x7e; c++) {
        const float low = 2 * quant_ue4m3_half(c), high = 2 * quant_ue4m3_half(c + 1), middle = (low + high) / 2;
        const float at[4] = {low, 0.9999f * middle, middle, high};
        for (int i = 0; i < 4; i++) x[16 * i + i] = -6 * at[i];
        assert_true(quant_encode(b, T_NVFP4, x, 64));
        for (int i = 0; i < 4; i++)
            if (b[i] != c + (i > 1)) fail_msg("%g: code %d, expected %d", (double) at[i], b[i], c + (i > 1));
    }
    x[0] = 6 * 448, x[17] = -2700, x[34] = 1e30f, x[51] = INFINITY;
    assert_true(quant_encode(b, T_NVFP4, x, 64));
    for (int i = 0; i < 4; i++) assert_int_equal(b[i], 0x7e);
}

static void encoders_equal_gguf(void **state)
{
    (void) state;
    enum { VALUES = 1024 };
    static float x[VALUES];
    static uint8_t out[VALUES * 4];
    uint64_t seed = 7;
    for (int i = 0; i < VALUES; i++) {
        int32_t v = random_byte(&seed);
        v |= random_byte(&seed) << 8;
        v |= random_byte(&seed) << 16;
        x[i] = (float) (v - (1 << 23)) * 0x1p-23f * (float) (1 + i % 7);
    }
    for (size_t c = 0; c < sizeof encode_cases / sizeof *encode_cases; c++) {
        Type t = encode_cases[c].type;
        assert_true(quant_encode(out, t, x, VALUES));
        if (fnv(out, type_row_bytes(t, VALUES)) != encode_cases[c].hash)
            fail_msg("%s: other bytes than gguf's", type_info(t)->name);
    }
}

/* Relative root mean square error on gaussian values. The types that search must not be worse than llama.cpp's
 * quantisation without an importance matrix: these limits are what it has on such values. */
static const struct { Type type; double limit; } encoders[] = {
    {T_F32, 0}, {T_F16, 0.0003}, {T_BF16, 0.002}, {T_Q8_0, 0.0056}, {T_Q4_0, 0.088}, {T_Q4_1, 0.081}, {T_Q5_0, 0.044},
    {T_Q5_1, 0.039},
    {T_IQ4_NL, 0.0758}, {T_MXFP4, 0.125}, {T_NVFP4, 0.106},
    {T_Q2_K, 0.2954}, {T_Q3_K, 0.1508}, {T_Q4_K, 0.0711}, {T_Q5_K, 0.0360}, {T_Q6_K, 0.0177},
    {T_IQ4_XS, 0.0764}, {T_IQ2_XXS, 0.335}, {T_IQ2_XS, 0.29}, {T_IQ2_S, 0.242}, {T_IQ3_XXS, 0.18}, {T_IQ3_S, 0.132},
    {T_TQ3_0, 0.19},
};
enum { N_ENCODERS = sizeof encoders / sizeof *encoders, ROW = 256 * 64 };

static void encoders_keep_the_values(void **state)
{
    (void) state;
    static float x[ROW], y[ROW];
    static uint8_t a[ROW * 4], b[ROW * 4];
    uint64_t seed = 11;
    for (int i = 0; i < ROW; i++) x[i] = gaussian(&seed);
    for (int e = 0; e < N_ENCODERS; e++) {
        Type t = encoders[e].type;
        double error = 0, power = 0;
        assert_true(quant_encode(a, t, x, ROW));
        quant_decode(y, t, a, ROW);
        for (int i = 0; i < ROW; i++) {
            error += pow((double) y[i] - (double) x[i], 2);
            power += pow((double) x[i], 2);
        }
        if (sqrt(error / power) > encoders[e].limit)
            fail_msg("%s: error %g, expected at most %g", type_info(t)->name, sqrt(error / power), encoders[e].limit);
        /* A block's result does not depend on its neighbours. */
        for (int i = 0; i < ROW; i += 256) assert_true(quant_encode(b + type_row_bytes(t, i), t, x + i, 256));
        assert_memory_equal(a, b, type_row_bytes(t, ROW));
    }
}

/* Values so small that the block's scale would be 0 as a half, but which the format can hold. */
static void small_blocks_keep_the_values(void **state)
{
    (void) state;
    static const struct { Type type; float largest; double limit; } small[] = {
        { T_Q2_K, 1e-6f, 0.45 }, { T_Q3_K, 3e-6f, 0.25 }, { T_Q4_K, 1e-5f, 0.15 }, { T_Q5_K, 1e-5f, 0.15 },
        { T_Q6_K, 1e-4f, 0.04 }, { T_IQ4_XS, 1e-5f, 0.2 },
    };
    static float x[ROW], y[ROW];
    static uint8_t a[ROW * 4];
    for (size_t k = 0; k < sizeof small / sizeof *small; k++) {
        uint64_t seed = 29;
        double error = 0, power = 0;
        float most = 0;
        for (int i = 0; i < ROW; i++) most = fmaxf(most, fabsf(x[i] = gaussian(&seed)));
        for (int i = 0; i < ROW; i++) x[i] *= small[k].largest / most;
        quant_encode(a, small[k].type, x, ROW);
        quant_decode(y, small[k].type, a, ROW);
        for (int i = 0; i < ROW; i++) {
            error += pow((double) y[i] - (double) x[i], 2);
            power += pow((double) x[i], 2);
        }
        if (!(sqrt(error / power) <= small[k].limit))
            fail_msg("%s: error %g of values up to %g, expected at most %g", type_info(small[k].type)->name,
                     sqrt(error / power), (double) small[k].largest, small[k].limit);
    }
}

/* Every type of a file has an encoder, which is what `ratoon quantize` relies on. */
static void all_types_of_files_are_written(void **state)
{
    (void) state;
    float x[256] = {1};
    uint8_t out[256 * 4];
    for (int t = 0; t < T_COUNT; t++) {
        bool tried = false;
        for (int e = 0; e < N_ENCODERS; e++) tried |= encoders[e].type == (Type) t;
        assert_int_equal(quant_encode(out, (Type) t, x, 256), t != T_I32);
        assert_int_equal(tried, t != T_I32);
    }
}

/* Values that a block can hold exactly: 2^-8 (scale * code - min). Every group has codes at both ends, and one group
 * the largest scale and minimum, so that the block's own scales must be 2^-8. */
typedef struct { Type type; int group, low, high, scale, min; const int8_t *book; } Exact;

static void fill_exact(float *x, const Exact *e, uint64_t *seed)
{
    for (int g = 0; g < 256 / e->group; g++) {
        int scale = g == 1 ? e->scale : e->scale > 1 ? 1 + random_byte(seed) % e->scale : e->scale;
        int min = g == 2 ? e->min : e->min ? random_byte(seed) % (e->min + 1) : 0;
        for (int i = 0; i < e->group; i++) {
            int code = i == 3 ? e->low : i == 5 ? e->high : e->low + random_byte(seed) % (e->high - e->low + 1);
            x[g * e->group + i] = 0x1p-8f * (float) (scale * (e->book ? e->book[code] : code) - min);
        }
    }
}

static void exact_blocks_stay_exact(void **state)
{
    (void) state;
    static const Exact cases[] = {
        {T_Q8_0, 32, -127, 127, 1, 0, NULL}, {T_Q4_0, 32, -8, 7, 1, 0, NULL}, {T_Q5_0, 32, -16, 15, 1, 0, NULL},
        {T_Q4_1, 32, 0, 15, 1, 8, NULL}, {T_Q5_1, 32, 0, 31, 1, 8, NULL}, {T_Q2_K, 16, 0, 3, 15, 15, NULL},
        {T_Q3_K, 16, -4, 3, -32, 0, NULL}, {T_Q4_K, 32, 0, 15, 63, 63, NULL}, {T_Q5_K, 32, 0, 31, 63, 63, NULL},
        {T_Q6_K, 16, -32, 31, -128, 0, NULL}, {T_IQ4_NL, 32, 0, 15, 1, 0, quant_iq4},
        {T_MXFP4, 32, 0, 15, 1, 0, quant_fp4}, {T_NVFP4, 16, 0, 15, 15, 0, quant_fp4},
        {T_IQ4_XS, 32, 0, 15, -32, 0, quant_iq4},
    };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        uint64_t seed = 5;
        for (int round = 0; round < 50; round++) {
            float x[256], y[256];
            uint8_t b[1024];
            fill_exact(x, &cases[c], &seed);
            assert_true(quant_encode(b, cases[c].type, x, 256));
            quant_decode(y, cases[c].type, b, 256);
            for (int i = 0; i < 256; i++) {
                if (y[i] != x[i])
                    fail_msg("%s: value %d is %g, expected %g", type_info(cases[c].type)->name, i, (double) y[i],
                             (double) x[i]);
            }
        }
    }
}

static void fill_odd(float *x, int kind)
{
    uint64_t seed = (uint64_t) kind + 1;
    for (int i = 0; i < 256; i++) {
        float g = gaussian(&seed);
        switch (kind) {
        case 0: x[i] = 0; break;
        case 1: x[i] = -0.0f; break;
        case 2: x[i] = 0.5f; break;
        case 3: x[i] = -0.5f; break;
        case 4: x[i] = i == 77 ? 65504.0f : 0; break;
        case 5: x[i] = i == 77 ? -65504.0f : g; break;
        case 6: x[i] = g * 1e-38f; break;
        case 7: x[i] = i % 32 ? g : NAN; break;
        case 8: x[i] = i % 64 ? g : i % 128 ? INFINITY : -INFINITY; break;
        case 9: x[i] = NAN; break;
        case 10: x[i] = i & 1 ? INFINITY : -INFINITY; break;
        case 11: x[i] = i < 128 ? 0 : g; break;
        case 12: x[i] = fabsf(g); break;
        case 13: x[i] = -fabsf(g); break;
        case 14: x[i] = i & 1 ? 3.4e38f : -3.4e38f; break;
        case 15: x[i] = i == 77 ? 1e-45f : 0; break;
        case 16: x[i] = i == 77 ? -1e-7f : i & 1 ? 1e-45f : 0; break;
        default: x[i] = float_of((uint32_t) i + 1); break;
        }
    }
}

/* No bytes that a file may contain give a scale that is not finite; zeros stay zeros. */
static void odd_blocks_stay_finite(void **state)
{
    (void) state;
    float x[256], y[256];
    uint8_t a[1024], b[1024];
    for (int e = 0; e < N_ENCODERS; e++) {
        Type t = encoders[e].type;
        if (type_info(t)->block == 1) continue;
        const bool grid = t >= T_IQ2_XXS && t <= T_IQ3_S;              /* values are what 8 or 4 neighbours allow */
        for (int kind = 0; kind < 18; kind++) {
            fill_odd(x, kind);
            assert_true(quant_encode(a, t, x, 256));
            assert_true(quant_encode(b, t, x, 256));
            assert_memory_equal(a, b, type_row_bytes(t, 256));
            quant_decode(y, t, a, 256);
            for (int i = 0; i < 256; i++) {
                if (!isfinite(y[i]))
                    fail_msg("%s, case %d: value %d is %g from %g", type_info(t)->name, kind, i, (double) y[i],
                             (double) x[i]);
                if (kind <= 1) assert_true(y[i] == 0);
                if (t == T_TQ3_0) continue;        /* its errors spread over the whole group */
                if (kind == 2 || kind == 3)
                    assert_true(fabsf(y[i] - x[i]) < (grid ? 0.1f : t == T_NVFP4 ? 0.016f : 0.002f));
                bool book = t == T_IQ4_NL || t == T_IQ4_XS;                    /* whose smallest level is 1, not 0 */
                if (kind == 4 && i != 77 && !grid)
                    assert_true(fabsf(y[i]) < (book && i / 32 == 77 / 32 ? 600 : 0.01f));
            }
            if (kind == 4 && t == T_NVFP4) assert_true(y[77] == 448 * 6);  /* the largest that it has */
            else if (kind == 4 && t != T_TQ3_0 && !grid)
                assert_true(fabsf(y[77] - 65504) < (t == T_MXFP4 ? 16384 : 2200));
        }
    }
}

/* A largest value of 127 makes the step 1: halves are rounded away from zero, as in llama.cpp. */
static void ties_of_q8_0(void **state)
{
    (void) state;
    static const float x[32] = { 127, 0.5f, 1.5f, 2.5f, -0.5f, -1.5f, -2.5f, 125.5f, 126.5f, -125.5f, -126.5f, 0.25f,
        -0.75f, 3 };
    static const int8_t want[32] = { 127, 1, 2, 3, -1, -2, -3, 126, 127, -126, -127, 0, -1, 3 };
    uint8_t b[34];
    quant_encode(b, T_Q8_0, x, 32);
    assert_int_equal(b[0] | b[1] << 8, 0x3c00);
    assert_memory_equal(b + 2, want, sizeof want);
}

/* A step below 2^-128 has no finite inverse: what a processor makes of infinity as an integer may not show. */
static void subnormal_steps_of_q8_0(void **state)
{
    (void) state;
    float x[32] = { 1e-45f, -1e-45f, 0x1p-130f, -0x1p-126f, 3.7e-37f };
    static const uint8_t zeros[34];
    uint8_t b[34];
    quant_encode(b, T_Q8_0, x, 32);
    assert_memory_equal(b, zeros, sizeof b);
    x[4] = 3.8e-37f;                               /* the step is 2^-128 and a little: its half is 0, its codes stay */
    quant_encode(b, T_Q8_0, x, 32);
    assert_int_equal(b[0] | b[1], 0);
    assert_int_equal(b[2 + 4], 127);
}

/* TQ3_0 written from its description alone, in double: rotation by a matrix of signs and parities, the nearest level,
 * bits by their places. */
static void three_bits_as_described(void **state)
{
    (void) state;
    static const uint32_t s1[4] = {0xE46A0359, 0x42F85949, 0xA4C63BBB, 0x49F250A9},
                          s2[4] = {0x16ACEE90, 0x3F628FDC, 0xB7A5357A, 0xBEA56562};
    static const double level[8] = {-0.190685, -0.117832, -0.065717, -0.021460, 0.021460, 0.065717, 0.117832, 0.190685};
    static const double point[7] = {-0.154259, -0.091775, -0.043589, 0, 0.043589, 0.091775, 0.154259};
    enum { N = 128, ROUNDS = 400 };
    uint64_t seed = 5;
    double error = 0, power = 0, cosine = 0;
    int negative[2] = {0};
    for (int i = 0; i < N; i++) negative[0] += s1[i / 32] >> i % 32 & 1, negative[1] += s2[i / 32] >> i % 32 & 1;
    assert_int_equal(negative[0], 60);
    assert_int_equal(negative[1], 70);
    for (int round = 0; round < ROUNDS; round++) {
        float x[N], y[N], turned[N], back[N];
        uint8_t b[56];
        double norm = 0, want[N], codes = 0;
        for (int i = 0; i < N; i++) {
            x[i] = gaussian(&seed);
            if (round % 3 == 0 && i == round % N) x[i] = 0.2f;     /* an outlier of ten deviations */
            norm += (double) x[i] * (double) x[i];
        }
        norm = sqrt(norm);
        for (int r = 0; r < N; r++) {
            want[r] = 0;
            for (int c = 0; c < N; c++) {
                double sign = (__builtin_popcount((unsigned) (r & c)) & 1 ? -1 : 1) *
                              (s1[c / 32] >> c % 32 & 1 ? -1 : 1);
                want[r] += sign * (double) x[c] / norm;
            }
            want[r] *= (s2[r / 32] >> r % 32 & 1 ? -1 : 1) / sqrt(N);
        }
        memcpy(turned, x, sizeof x);
        quant_rotate(turned, N);
        memcpy(back, turned, sizeof x);
        quant_unrotate(back, N);
        quant_encode_tq3(b, x);
        quant_decode(y, T_TQ3_0, b, N);
        double yy = 0, xy = 0;
        int code[N];
        for (int i = 0; i < N; i++) {
            if (fabs((double) turned[i] - want[i] * norm) > 1e-6 * norm || fabsf(back[i] - x[i]) > 1e-6f * (float) norm)
                fail_msg("value %d is turned wrongly", i);
            code[i] = 0;
            while (code[i] < 7 && want[i] >= point[code[i]]) code[i]++;
            codes += level[code[i]] * level[code[i]];
            error += pow((double) y[i] - (double) x[i], 2), power += pow((double) x[i], 2);
            yy += (double) y[i] * (double) y[i], xy += (double) x[i] * (double) y[i];
        }
        cosine += xy / sqrt(yy) / norm;
        for (int i = 0; i < N; i++) {
            const uint8_t *block = b + 14 * (i / 32);
            int j = i % 32, stored = (block[2 + j / 4] >> 2 * (j % 4) & 3) | (block[10 + j / 8] >> j % 8 & 1) << 2;
            bool edge = false;                     /* within rounding of a threshold */
            for (int k = 0; k < 7; k++) edge |= fabs(want[i] - point[k]) < 1e-6;
            if (stored != code[i] && !edge) fail_msg("value %d has code %d, expected %d", i, stored, code[i]);
            assert_memory_equal(block, b, 2);
        }
        double scale = (double) half_to_float((uint16_t) (b[0] | b[1] << 8));
        if (fabs(scale / (norm / sqrt(codes)) - 1) > 1e-3) fail_msg("norm %g, expected %g", scale, norm / sqrt(codes));
    }
    double rms = sqrt(error / power);
    if (rms < 0.175 || rms > 0.19 || cosine / ROUNDS < 0.982)
        fail_msg("relative error %g, cosine %g, expected 0.18 to 0.19 and 0.983", rms, cosine / ROUNDS);
}

static void scale_pairs_of_k_types(void **state)
{
    (void) state;
    uint8_t sc[12] = {0}, s, m;
    for (int i = 0; i < 8; i++) {                  /* scale 8i + 7, minimum 63 - 8i, packed by hand */
        int scale = 8 * i + 7, min = 63 - 8 * i;
        if (i < 4) {
            sc[i] = (uint8_t) (sc[i] | scale);
            sc[i + 4] = (uint8_t) (sc[i + 4] | min);
        } else {
            sc[i + 4] = (uint8_t) ((scale & 15) | (min & 15) << 4);
            sc[i - 4] = (uint8_t) (sc[i - 4] | (scale >> 4) << 6);
            sc[i] = (uint8_t) (sc[i] | (min >> 4) << 6);
        }
    }
    for (int i = 0; i < 8; i++) {
        quant_k4_scale(&s, &m, sc, i);
        assert_int_equal(s, 8 * i + 7);
        assert_int_equal(m, 63 - 8 * i);
    }
}

/* What llama-quantize chose for Qwen3.5-0.8B (24 layers, tied), Qwen3-8B cut to 8 layers (four query heads share their
 * keys and values), SmolLM2-135M (rows of 576 values); from Q4_K_S on, its rules. */
static void recipes_choose_as_llama_cpp(void **state)
{
    (void) state;
    static const struct {
        const char *recipe, *name;
        int64_t cols, rows;
        int32_t layers;
        bool tied;
        Type type;
    } cases[] = {
        {"Q4_K_M", "token_embd.weight", 1024, 248320, 24, true, T_Q6_K},
        {"Q4_K_M", "token_embd.weight", 4096, 151936, 8, false, T_Q4_K},
        {"Q4_K_M", "output.weight", 4096, 151936, 8, false, T_Q6_K},
        {"Q4_K_M", "output_norm.weight", 1024, 1, 24, true, T_F32},
        {"Q4_K_M", "blk.0.attn_qkv.weight", 1024, 6144, 24, true, T_Q6_K},
        {"Q4_K_M", "blk.2.attn_qkv.weight", 1024, 6144, 24, true, T_Q6_K},
        {"Q4_K_M", "blk.3.attn_v.weight", 1024, 512, 24, true, T_Q4_K},
        {"Q4_K_M", "blk.4.attn_qkv.weight", 1024, 6144, 24, true, T_Q4_K},
        {"Q4_K_M", "blk.5.attn_qkv.weight", 1024, 6144, 24, true, T_Q6_K},
        {"Q4_K_M", "blk.5.ffn_down.weight", 3584, 1024, 24, true, T_Q6_K},
        {"Q4_K_M", "blk.20.ffn_down.weight", 3584, 1024, 24, true, T_Q6_K},
        {"Q4_K_M", "blk.21.ffn_down.weight", 3584, 1024, 24, true, T_Q6_K},
        {"Q4_K_M", "blk.19.ffn_down.weight", 3584, 1024, 24, true, T_Q4_K},
        {"Q4_K_M", "blk.21.ffn_up.weight", 1024, 3584, 24, true, T_Q4_K},
        {"Q4_K_M", "blk.0.ssm_conv1d.weight", 4, 6144, 24, true, T_F32},
        {"Q4_K_M", "blk.0.ssm_beta.weight", 1024, 16, 24, true, T_Q4_K},
        {"Q4_K_M", "blk.0.ssm_dt.bias", 16, 1, 24, true, T_F32}, {"Q4_K_M", "blk.0.ssm_a", 16, 1, 24, true, T_F32},
        {"Q4_K_M", "blk.0.ffn_gate_inp.weight", 2048, 256, 40, false, T_F32},
        {"Q4_K_M", "blk.0.ffn_down_exps.weight", 512, 2048, 40, false, T_Q6_K},
        {"Q4_K_M", "blk.0.attn_q.weight", 576, 576, 30, true, T_Q5_0},
        {"Q4_K_M", "blk.0.attn_v.weight", 576, 192, 30, true, T_Q8_0},
        {"Q4_K_M", "token_embd.weight", 576, 49152, 30, true, T_Q8_0},
        {"Q4_K_M", "blk.3.ffn_down.weight", 1536, 576, 30, true, T_Q4_K},
        {"Q4_K_M", "fc.weight", 12800, 2560, 5, false, T_Q4_K},
        {"Q4_K_M", "blk.0.attn_q.weight", 80, 80, 2, true, T_F16},
        {"Q5_K_M", "blk.0.attn_q.weight", 576, 576, 30, true, T_Q5_1},
        {"Q5_K_M", "blk.0.attn_q.weight", 1024, 1024, 30, true, T_Q5_K},
        {"Q5_K_M", "blk.0.ffn_down.weight", 1536, 576, 30, true, T_Q6_K},
        {"Q6_K", "blk.0.attn_q.weight", 576, 576, 30, true, T_Q8_0},
        {"Q6_K", "blk.0.attn_q.weight", 1024, 576, 30, true, T_Q6_K},
        {"Q8_0", "token_embd.weight", 1024, 248320, 24, true, T_Q8_0},
        {"Q4_0", "token_embd.weight", 1024, 248320, 24, true, T_Q6_K},
        {"Q4_0", "blk.0.ffn_down.weight", 3584, 1024, 24, true, T_Q4_0},
        {"Q4_0", "token_embd.weight", 576, 49152, 30, true, T_Q8_0},
        {"F16", "token_embd.weight", 1000, 100, 2, true, T_F16},
        {"BF16", "blk.0.attn_q.weight", 1000, 100, 2, true, T_BF16},
        {"F32", "blk.0.attn_q.weight", 1000, 100, 2, true, T_F32},
        {"BF16", "blk.0.attn_norm.weight", 1000, 1, 2, true, T_F32},
        {"Q4_K_S", "blk.3.attn_v.weight", 1024, 512, 24, true, T_Q5_K},
        {"Q4_K_S", "blk.4.attn_v.weight", 1024, 512, 24, true, T_Q4_K},
        {"Q4_K_S", "blk.2.ffn_down.weight", 3584, 1024, 24, true, T_Q5_K},
        {"Q4_K_S", "blk.3.ffn_down.weight", 3584, 1024, 24, true, T_Q4_K},
        {"Q5_K_S", "blk.0.attn_v.weight", 1024, 512, 24, true, T_Q5_K},
        {"Q3_K_S", "blk.0.ffn_down.weight", 3584, 1024, 24, true, T_Q3_K},
        {"Q3_K_S", "output.weight", 4096, 151936, 8, false, T_Q6_K},
        {"Q3_K_M", "blk.1.attn_v.weight", 1024, 512, 32, true, T_Q5_K},
        {"Q3_K_M", "blk.2.attn_qkv.weight", 1024, 512, 32, true, T_Q4_K},
        {"Q3_K_M", "blk.1.ffn_down.weight", 3584, 1024, 32, true, T_Q5_K},
        {"Q3_K_M", "blk.2.ffn_down.weight", 3584, 1024, 32, true, T_Q4_K},
        {"Q3_K_M", "blk.2.attn_output.weight", 3584, 1024, 32, true, T_Q4_K},
        {"Q3_K_M", "blk.2.attn_q.weight", 1024, 1024, 32, true, T_Q3_K},
        {"Q3_K_L", "blk.9.attn_output.weight", 1024, 1024, 32, true, T_Q5_K},
        {"Q3_K_L", "blk.9.ffn_down.weight", 1024, 1024, 32, true, T_Q5_K},
        {"Q3_K_L", "blk.9.ffn_up.weight", 1024, 1024, 32, true, T_Q3_K},
        {"Q3_K_L", "blk.9.ffn_up.weight", 576, 1024, 32, true, T_Q4_0},
        {"Q2_K", "blk.9.attn_v.weight", 1024, 512, 32, true, T_Q3_K},
        {"Q2_K", "blk.9.attn_v.weight", 4096, 512, 8, false, T_Q4_K},              /* grouped */
        {"Q2_K", "blk.9.ffn_down.weight", 4096, 512, 8, false, T_Q3_K},
        {"Q2_K", "blk.9.attn_output.weight", 4096, 512, 8, false, T_Q3_K},
        {"Q2_K", "blk.9.attn_k.weight", 4096, 512, 8, false, T_Q2_K},
        {"Q2_K", "token_embd.weight", 4096, 151936, 8, false, T_Q2_K},
        {"IQ4_XS", "blk.9.attn_v.weight", 1024, 512, 32, true, T_IQ4_XS},
        {"IQ4_XS", "blk.9.attn_v.weight", 4096, 512, 8, false, T_Q5_K},
        {"IQ4_XS", "blk.3.ffn_down.weight", 1024, 512, 32, true, T_Q5_K},
        {"IQ4_XS", "blk.4.ffn_down.weight", 1024, 512, 32, true, T_IQ4_XS},
        {"IQ4_XS", "blk.4.ffn_up.weight", 576, 512, 32, true, T_IQ4_NL},
        {"IQ4_NL", "blk.4.ffn_up.weight", 576, 512, 32, true, T_IQ4_NL},
        {"IQ4_NL", "token_embd.weight", 1024, 512, 32, true, T_Q6_K},
        {"Q4_1", "blk.0.ffn_down.weight", 1024, 512, 32, true, T_Q4_1},
        {"Q5_0", "blk.0.attn_v.weight", 1024, 512, 32, true, T_Q5_0},
        {"Q5_1", "token_embd.weight", 1024, 512, 32, true, T_Q6_K},
        {"Q4_K_M", "blk.0.ffn_down_exps.weight", 512, 2048, 40, false, T_Q6_K},    /* mixtures */
        {"Q4_K_M", "blk.6.ffn_down_exps.weight", 512, 2048, 40, false, T_Q4_K},
        {"Q4_K_M", "blk.7.ffn_down_exps.weight", 512, 2048, 40, false, T_Q6_K},
        {"Q4_K_M", "blk.7.ffn_down_shexp.weight", 512, 2048, 40, false, T_Q6_K},
        {"Q4_K_M", "blk.7.ffn_gate_up_exps.weight", 2048, 1024, 40, false, T_Q4_K},
        {"Q4_K_M", "blk.7.ffn_gate_inp.weight", 2048, 256, 40, false, T_F32},
        {"Q4_K_M", "blk.7.ffn_gate_inp_shexp.weight", 2048, 1, 40, false, T_F32},
        {"Q8_0", "blk.7.exp_probs_b.bias", 256, 1, 40, false, T_F32},
        {"NVFP4_MOE", "blk.0.attn_q.weight", 1024, 512, 32, false, T_Q8_0},
        {"MXFP4_MOE", "token_embd.weight", 1024, 512, 32, true, T_Q8_0},
        {"MXFP4_MOE", "blk.0.attn_q.weight", 1024, 512, 32, false, T_Q8_0},
        {"MXFP4_MOE", "blk.0.ffn_gate_inp.weight", 1024, 32, 32, false, T_F32},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const Recipe *r = recipe_find(cases[i].recipe);
        assert_non_null(r);
        RecipeModel m = {.n_layer = cases[i].layers, .tied = cases[i].tied, .grouped = cases[i].layers == 8};
        Type t = recipe_type(r, &m, cases[i].name, cases[i].rows > 1 ? 2 : 1,
                             (const int64_t[]) {cases[i].cols, cases[i].rows});
        if (t != cases[i].type)
            fail_msg("%s %s: %s, expected %s", cases[i].recipe, cases[i].name, type_info(t)->name,
                     type_info(cases[i].type)->name);
    }
    const Recipe *experts = recipe_find("mxfp4_moe");
    assert_non_null(experts);
    assert_int_equal(recipe_type(experts, &(RecipeModel) {.n_layer = 4}, "blk.0.ffn_up_exps.weight", 3,
                                 (const int64_t[]) {2048, 512, 32}), T_MXFP4);
    const Recipe *halves = recipe_find("nvfp4_moe");
    assert_non_null(halves);
    assert_int_equal(recipe_type(halves, &(RecipeModel) {.n_layer = 4}, "blk.0.ffn_down_exps.weight", 3,
                                 (const int64_t[]) {704, 2816, 128}), T_NVFP4);
    assert_int_equal(recipe_type(halves, &(RecipeModel) {.n_layer = 4}, "blk.0.ffn_down_exps.weight", 3,
                                 (const int64_t[]) {96, 2816, 128}), T_IQ4_NL);
    assert_int_equal(recipe_type(halves, &(RecipeModel) {.n_layer = 4}, "blk.0.ffn_down_exps.weight", 4,
                                 (const int64_t[]) {64, 16, 2, 3}), T_Q8_0);       /* no stack: it has no factors */
    assert_non_null(recipe_find("q4_k_m"));
    assert_null(recipe_find("q4_k_z"));
    assert_null(recipe_find(""));
    assert_null(recipe_find("Q8_0_M"));
    assert_ptr_equal(recipe_find("q3_k"), recipe_find("Q3_K_M"));
    for (int32_t i = 0; recipe_at(i); i++) assert_ptr_equal(recipe_find(recipe_name(recipe_at(i))), recipe_at(i));
    assert_null(recipe_at(-1));
    assert_int_equal(recipe_layer("blk.12.attn_q.weight"), 12);
    assert_int_equal(recipe_layer("blk.x.attn_q.weight"), -1);
    assert_int_equal(recipe_layer("blk.99999999999.attn_q.weight"), -1);
    assert_int_equal(recipe_layer("output.weight"), -1);
}

int main(int argc, char **argv)
{
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(types_are_named_and_numbered),
        cmocka_unit_test(half_is_exact_for_all_65536),
        cmocka_unit_test(half_rounds_to_nearest_even),
        cmocka_unit_test(bf16_is_exact_and_rounds_to_even),
        cmocka_unit_test(decoders_equal_gguf),
        cmocka_unit_test(scales_of_nvfp4),
        cmocka_unit_test(scales_of_nvfp4_are_the_nearest),
        cmocka_unit_test(encoders_equal_gguf),
        cmocka_unit_test(encoders_keep_the_values), cmocka_unit_test(small_blocks_keep_the_values),
        cmocka_unit_test(ties_of_q8_0),
        cmocka_unit_test(all_types_of_files_are_written),
        cmocka_unit_test(exact_blocks_stay_exact),
        cmocka_unit_test(odd_blocks_stay_finite),
        cmocka_unit_test(three_bits_as_described),
        cmocka_unit_test(subnormal_steps_of_q8_0),
        cmocka_unit_test(scale_pairs_of_k_types),
        cmocka_unit_test(recipes_choose_as_llama_cpp),
    };
    return cmocka_run_group_tests_name("quant", tests, NULL, NULL);
}
