/* Encoders of quant.h. The types of 32 values take the scale that reaches the largest value. The K types first fit a scale (and a
 * minimum) to each group by least squares from several starting steps, then round those to the block's six or eight bits, look at the
 * neighbouring integers with the real codes, and fit the block's own scale to the codes once more.
 * Inside a block of any quantised type NaN counts as 0 and values beyond half precision's 65504 count as 65504, so every scale stays
 * finite; who must not accept such values (ratoon quantize) checks before. Same input, same bytes. */
#include <math.h>
#include <string.h>

#include "format/quant.h"

static void store16(uint8_t *p, uint16_t v)
{
    p[0] = (uint8_t)v;
    p[1] = (uint8_t)(v >> 8);
}

static void store32(uint8_t *p, uint32_t v)
{
    store16(p, (uint16_t)v);
    store16(p + 2, (uint16_t)(v >> 16));
}

/* Stores a scale and returns the value a reader will see. */
static float store_half(uint8_t *p, float v)
{
    uint16_t h = half_from_float(v);
    store16(p, h);
    return half_to_float(h);
}

static float clamp(float v, float lo, float hi) { return v < lo ? lo : v > hi ? hi : v; }

/* Nearest integer, ties to even, of |v| < 2^22: the addition leaves no room for a fraction. Much faster than a library call. */
static int nearest(float v)
{
    float shifted = v + 12582912.0f;
    int32_t bits;
    memcpy(&bits, &shifted, sizeof bits);
    return (bits & 0x7fffff) - 0x400000;
}

/* ---- blocks of 32 ---- */

static float signed_largest(const float *x, int n)
{
    float largest = 0, magnitude = 0;
    for (int i = 0; i < n; i++) {
        if (fabsf(x[i]) > magnitude) {
            magnitude = fabsf(x[i]);
            largest = x[i];
        }
    }
    return largest;
}

static void range_of(float *lo, float *hi, const float *x, int n)
{
    *lo = *hi = x[0];
    for (int i = 1; i < n; i++) {
        if (x[i] < *lo) *lo = x[i];
        if (x[i] > *hi) *hi = x[i];
    }
}

static float inverse_of(float d) { return d != 0 ? 1.0f / d : 0.0f; }

static void encode_q8_0(uint8_t *b, const float *x)
{
    float d = fabsf(signed_largest(x, 32)) / 127.0f, inverse = inverse_of(d);
    store_half(b, d);
    for (int i = 0; i < 32; i++) b[2 + i] = (uint8_t)(int8_t)roundf(x[i] * inverse);
}

/* code = min(limit, x / d + shift) without the fraction; never negative, since the scale comes from the largest value. */
static uint8_t code_up_to(float scaled, int limit)
{
    int code = (int)clamp(scaled, 0.0f, 255.0f);
    return (uint8_t)(code > limit ? limit : code);
}

static void encode_q4_0(uint8_t *b, const float *x)
{
    float d = signed_largest(x, 32) / -8.0f, inverse = inverse_of(d);
    store_half(b, d);
    for (int i = 0; i < 16; i++) {
        uint8_t low = code_up_to(x[i] * inverse + 8.5f, 15), high = code_up_to(x[i + 16] * inverse + 8.5f, 15);
        b[2 + i] = (uint8_t)(low | high << 4);
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
        uint8_t low = code_up_to((x[i] - lo) * inverse + 0.5f, 15), high = code_up_to((x[i + 16] - lo) * inverse + 0.5f, 15);
        b[4 + i] = (uint8_t)(low | high << 4);
    }
}

/* Four low bits of 32 five-bit codes as in Q4_0, the fifth bits in one word. */
static void store_five_bits(uint8_t *q, uint8_t *high_bits, const uint8_t code[32])
{
    uint32_t high = 0;
    for (int i = 0; i < 16; i++) q[i] = (uint8_t)((code[i] & 15) | (code[i + 16] & 15) << 4);
    for (int i = 0; i < 32; i++) high |= (uint32_t)(code[i] >> 4) << i;
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

/* ---- blocks of 256 ---- */

/* How much an error counts: large weights multiply what the rest of the row adds up to, so they count more, but no value counts less
 * than a typical one. Relative only: the factor of a group does not matter. */
static void weigh(float *w, const float *x, int n)
{
    float sum = 0;
    for (int i = 0; i < n; i++) sum += x[i] * x[i];
    float typical = sqrtf(sum / (float)n);
    for (int i = 0; i < n; i++) w[i] = typical + fabsf(x[i]);
}

/* Q4_K and Q5_K. A group of 32 values: x ~ scale * code - min, code in [0, top], min >= 0. */
enum { AFFINE = 32, AFFINE_STARTS = 16 };

/* Tries several first guesses of the step around (range / top); for each, rounds and solves the weighted 2x2 system. */
static void affine_fit(float *scale, float *min, const float *x, const float *w, int top)
{
    float lo, hi;
    range_of(&lo, &hi, x, AFFINE);
    if (lo > 0) lo = 0;
    *scale = 0;
    *min = -lo;
    if (hi <= lo) return;

    float sw = 0, swx = 0, swxx = 0;
    for (int i = 0; i < AFFINE; i++) {
        sw += w[i];
        swx += w[i] * x[i];
        swxx += w[i] * x[i] * x[i];
    }
    float best = INFINITY;
    for (int t = 0; t < AFFINE_STARTS; t++) {
        float inverse = ((float)top - 1.0f + 0.125f * (float)t) / (hi - lo);
        float sc = 0, scc = 0, scx = 0;
        for (int i = 0; i < AFFINE; i++) {
            float code = (float)nearest(clamp((x[i] - lo) * inverse, 0.0f, (float)top));
            sc += w[i] * code;
            scc += w[i] * code * code;
            scx += w[i] * code * x[i];
        }
        /* Without a minimum, unless the codes differ enough to tell scale and minimum apart: equal values all take one code. */
        float determinant = sw * scc - sc * sc, a = scc > 0 ? scx / scc : 0, b = 0;
        if (determinant > 1e-5f * sw * scc) {
            float free_b = (scc * swx - sc * scx) / determinant;
            if (free_b < 0) {
                a = (sw * scx - swx * sc) / determinant;
                b = free_b;
            }
        }
        float error = swxx - 2 * a * scx - 2 * b * swx + a * a * scc + 2 * a * b * sc + b * b * sw;
        if (a > 0 && error < best) {
            best = error;
            *scale = a;
            *min = -b;
        }
    }
}

/* Rounds x to the codes of a group and returns the weighted error. */
static float affine_codes(uint8_t *code, const float *x, const float *w, float scale, float min, int top)
{
    float inverse = inverse_of(scale), error = 0;
    for (int i = 0; i < AFFINE; i++) {
        int c = nearest(clamp((x[i] + min) * inverse, 0.0f, (float)top));
        float miss = scale * (float)c - min - x[i];
        error += w[i] * miss * miss;
        code[i] = (uint8_t)c;
    }
    return error;
}

typedef struct { uint8_t scale[8], min[8], code[256]; } AffineBlock;

/* Codes of the whole block under d and dmin; scale and min integers that are one off are tried too when search is set. */
static float affine_block(AffineBlock *out, const AffineBlock *guess, const float *x, const float *w, float d, float dmin, int top, bool search)
{
    float total = 0;
    for (int s = 0; s < 8; s++) {
        float best = INFINITY;
        int reach = search ? 1 : 0;
        for (int i = guess->scale[s] - reach; i <= guess->scale[s] + reach; i++) {
            for (int j = guess->min[s] - reach; j <= guess->min[s] + reach; j++) {
                if (i < 0 || i > 63 || j < 0 || j > 63) continue;
                uint8_t code[AFFINE];
                float error = affine_codes(code, x + AFFINE * s, w + AFFINE * s, d * (float)i, dmin * (float)j, top);
                if (error < best) {
                    best = error;
                    out->scale[s] = (uint8_t)i;
                    out->min[s] = (uint8_t)j;
                    memcpy(out->code + AFFINE * s, code, sizeof code);
                }
            }
        }
        total += best;
    }
    return total;
}

/* The d and dmin that fit the codes best: x ~ d * (S * code) - dmin * M over the whole block. */
static bool affine_refit(float *d, float *dmin, const AffineBlock *q, const float *x, const float *w)
{
    float uu = 0, uv = 0, vv = 0, ux = 0, vx = 0;
    for (int i = 0; i < 256; i++) {
        float u = (float)q->scale[i / AFFINE] * (float)q->code[i], v = -(float)q->min[i / AFFINE];
        uu += w[i] * u * u;
        uv += w[i] * u * v;
        vv += w[i] * v * v;
        ux += w[i] * u * x[i];
        vx += w[i] * v * x[i];
    }
    float determinant = uu * vv - uv * uv;
    if (!(determinant > 0)) return false;
    *d = (ux * vv - vx * uv) / determinant;
    *dmin = (vx * uu - ux * uv) / determinant;
    return *d > 0 && *dmin >= 0;
}

static uint8_t six_bits(float v) { return (uint8_t)nearest(clamp(v, 0.0f, 63.0f)); }

/* Writes d, dmin and the twelve bytes of scales and minima; leaves the codes in q. */
static void affine_encode(AffineBlock *q, uint8_t *b, const float *x, int top)
{
    float w[256], scale[8], min[8], scale_max = 0, min_max = 0;
    for (int s = 0; s < 8; s++) {
        weigh(w + AFFINE * s, x + AFFINE * s, AFFINE);
        affine_fit(&scale[s], &min[s], x + AFFINE * s, w + AFFINE * s, top);
        if (scale[s] > scale_max) scale_max = scale[s];
        if (min[s] > min_max) min_max = min[s];
    }
    AffineBlock guess;
    float d = store_half(b, scale_max / 63.0f), dmin = store_half(b + 2, min_max / 63.0f);
    for (int s = 0; s < 8; s++) {
        guess.scale[s] = six_bits(scale[s] * inverse_of(d));
        guess.min[s] = six_bits(min[s] * inverse_of(dmin));
    }
    float error = affine_block(q, &guess, x, w, d, dmin, top, true), d_new, dmin_new;
    if (affine_refit(&d_new, &dmin_new, q, x, w)) {
        AffineBlock again;
        uint8_t halves[4];
        d_new = store_half(halves, d_new);
        dmin_new = store_half(halves + 2, dmin_new);
        if (affine_block(&again, q, x, w, d_new, dmin_new, top, false) < error) {
            *q = again;
            memcpy(b, halves, sizeof halves);
        }
    }
    uint8_t *sc = b + 4;
    for (int s = 0; s < 4; s++) {
        sc[s]     = (uint8_t)(q->scale[s] | (q->scale[s + 4] >> 4) << 6);
        sc[s + 4] = (uint8_t)(q->min[s] | (q->min[s + 4] >> 4) << 6);
        sc[s + 8] = (uint8_t)((q->scale[s + 4] & 15) | (q->min[s + 4] & 15) << 4);
    }
}

/* Low four bits of the groups 2p and 2p+1 share the bytes 32p. */
static void store_nibbles(uint8_t *out, const uint8_t code[256])
{
    for (int p = 0; p < 4; p++) {
        for (int l = 0; l < 32; l++) out[32 * p + l] = (uint8_t)((code[64 * p + l] & 15) | (code[64 * p + 32 + l] & 15) << 4);
    }
}

static void encode_q4_k(uint8_t *b, const float *x)
{
    AffineBlock q;
    affine_encode(&q, b, x, 15);
    store_nibbles(b + 16, q.code);
}

static void encode_q5_k(uint8_t *b, const float *x)
{
    AffineBlock q;
    affine_encode(&q, b, x, 31);
    for (int l = 0; l < 32; l++) {
        int high = 0;
        for (int s = 0; s < 8; s++) high |= (q.code[32 * s + l] >> 4) << s;
        b[16 + l] = (uint8_t)high;
    }
    store_nibbles(b + 48, q.code);
}

/* Q6_K. A group of 16 values: x ~ scale * code, code in [-32, 31], scale of either sign, so that the largest value takes the code -32
 * which has no positive twin. */
enum { SYMMETRIC = 16, SYMMETRIC_STARTS = 17 };

static float symmetric_fit(const float *x, const float *w)
{
    float largest = signed_largest(x, SYMMETRIC), scale = 0, best = 0;
    if (largest == 0) return 0;
    for (int t = 0; t < SYMMETRIC_STARTS; t++) {
        float inverse = -(31.0f + 0.125f * (float)t) / largest, scc = 0, scx = 0;
        for (int i = 0; i < SYMMETRIC; i++) {
            float code = (float)nearest(clamp(x[i] * inverse, -32.0f, 31.0f));
            scc += w[i] * code * code;
            scx += w[i] * code * x[i];
        }
        if (scc > 0 && scx * scx / scc > best) {           /* what the fit takes off the sum of w x^2 */
            best = scx * scx / scc;
            scale = scx / scc;
        }
    }
    return scale;
}

typedef struct { int8_t scale[16], code[256]; } SymmetricBlock;

static float symmetric_codes(int8_t *code, const float *x, const float *w, float scale)
{
    float inverse = inverse_of(scale), error = 0;
    for (int i = 0; i < SYMMETRIC; i++) {
        int c = nearest(clamp(x[i] * inverse, -32.0f, 31.0f));
        float miss = scale * (float)c - x[i];
        error += w[i] * miss * miss;
        code[i] = (int8_t)c;
    }
    return error;
}

static float symmetric_block(SymmetricBlock *out, const SymmetricBlock *guess, const float *x, const float *w, float d, int reach)
{
    float total = 0;
    for (int s = 0; s < 16; s++) {
        float best = INFINITY;
        for (int i = guess->scale[s] - reach; i <= guess->scale[s] + reach; i++) {
            if (i < -128 || i > 127) continue;
            int8_t code[SYMMETRIC];
            float error = symmetric_codes(code, x + SYMMETRIC * s, w + SYMMETRIC * s, d * (float)i);
            if (error < best) {
                best = error;
                out->scale[s] = (int8_t)i;
                memcpy(out->code + SYMMETRIC * s, code, sizeof code);
            }
        }
        total += best;
    }
    return total;
}

static void encode_q6_k(uint8_t *b, const float *x)
{
    float w[256], scale[16];
    for (int s = 0; s < 16; s++) {
        weigh(w + SYMMETRIC * s, x + SYMMETRIC * s, SYMMETRIC);
        scale[s] = symmetric_fit(x + SYMMETRIC * s, w + SYMMETRIC * s);
    }
    SymmetricBlock guess, q;
    float d = store_half(b + 208, signed_largest(scale, 16) / -128.0f);
    for (int s = 0; s < 16; s++) guess.scale[s] = (int8_t)nearest(clamp(scale[s] * inverse_of(d), -128.0f, 127.0f));
    float error = symmetric_block(&q, &guess, x, w, d, 1), uu = 0, ux = 0;
    for (int i = 0; i < 256; i++) {
        float u = (float)q.scale[i / SYMMETRIC] * (float)q.code[i];
        uu += w[i] * u * u;
        ux += w[i] * u * x[i];
    }
    if (uu > 0) {
        SymmetricBlock again;
        uint8_t half[2];
        if (symmetric_block(&again, &q, x, w, store_half(half, ux / uu), 0) < error) {
            q = again;
            memcpy(b + 208, half, sizeof half);
        }
    }
    memset(b, 0, 192);
    for (int s = 0; s < 16; s++) {
        int p = s >> 3, r = (s >> 1) & 3;
        b[192 + s] = (uint8_t)q.scale[s];
        for (int k = 0; k < SYMMETRIC; k++) {
            int l = SYMMETRIC * (s & 1) + k, code = q.code[SYMMETRIC * s + k] + 32;
            uint8_t *low = &b[64 * p + 32 * (r & 1) + l], *high = &b[128 + 32 * p + l];
            *low = (uint8_t)(*low | (code & 15) << 4 * (r >> 1));
            *high = (uint8_t)(*high | (code >> 4) << 2 * r);
        }
    }
}

bool quant_encode(void *row, Type t, const float *x, int64_t n)
{
    static void (*const encode[T_COUNT])(uint8_t *, const float *) = {
        [T_Q8_0] = encode_q8_0, [T_Q4_0] = encode_q4_0, [T_Q4_1] = encode_q4_1, [T_Q5_0] = encode_q5_0, [T_Q5_1] = encode_q5_1,
        [T_Q4_K] = encode_q4_k, [T_Q5_K] = encode_q5_k, [T_Q6_K] = encode_q6_k,
        [T_TQ3_0] = quant_encode_tq3,
    };
    uint8_t *b = row;
    switch (t) {
    case T_F32:
        memcpy(row, x, (size_t)n * sizeof *x);
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
    if (!encode[t]) return false;
    const TypeInfo *info = type_info(t);
    for (int64_t i = 0; i < n; i += info->block, b += info->bytes) {
        float finite[256];
        for (int k = 0; k < info->block; k++) finite[k] = isnan(x[i + k]) ? 0.0f : clamp(x[i + k], -65504.0f, 65504.0f);
        encode[t](b, finite);
    }
    return true;
}
