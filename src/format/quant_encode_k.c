/* Encoders that search: the K types, and the two that share a codebook. Each first fits a scale (and a minimum) to each
 * group by least squares from several starting steps, then rounds these to the few bits that the block has for them,
 * tries the neighbouring integers with the real codes, and fits the block's own scale to the codes once more. */
#include "format/quant_fit.h"

/* A block's scale that is not 0 stays so as a half: with 0 the block would be lost, or all its values would be the
 * minimum. The integer scales make up for a step that is too large. */
static inline float step_of(float d)
{
    const float least = 0x1p-24f;
    return d == 0 || fabsf(d) >= least ? d : copysignf(least, d);
}

/* Nearest integer, ties to even, for |v| < 2^22: after the addition no bits are left for a fraction. Much faster than a
 * library call. */
static inline int nearest(float v)
{
    float shifted = v + 12582912.0f;
    int32_t bits;
    memcpy(&bits, &shifted, sizeof bits);
    return (bits & 0x7fffff) - 0x400000;
}

/* The weight of each value's error: large weights multiply what the rest of the row adds up to, so they count more, but
 * no value counts less than a typical one. Only ratios matter: a factor common to a group has no effect. */
static void weigh(float *w, const float *x, int n)
{
    float sum = 0;
    for (int i = 0; i < n; i++) sum += x[i] * x[i];
    float typical = sum > 0 ? sqrtf(sum / (float) n) : 1;       /* zeros are to stay zeros */
    for (int i = 0; i < n; i++) w[i] = typical + fabsf(x[i]);
}

/* ---- Q2_K, Q4_K, Q5_K: x ~ scale * code - min, code in [0, top], min >= 0 ---- */

enum { AFFINE_STARTS = 16 };

/* group: values that share a scale and a minimum; most: the largest integer that either is stored as. */
typedef struct { int group, top, most; } Affine;
typedef struct { uint8_t scale[16], min[16], code[256]; } AffineBlock;

/* Tries several initial guesses of the step near (range / top); for each, rounds and solves the weighted 2x2 system. */
static void affine_fit(float *scale, float *min, const Affine *a, const float *x, const float *w)
{
    float lo, hi;
    range_of(&lo, &hi, x, a->group);
    if (lo > 0) lo = 0;
    *scale = 0;
    *min = -lo;
    if (hi <= lo) return;

    float sw = 0, swx = 0, swxx = 0;
    for (int i = 0; i < a->group; i++) {
        sw += w[i];
        swx += w[i] * x[i];
        swxx += w[i] * x[i] * x[i];
    }
    float best = INFINITY;
    for (int t = 0; t < AFFINE_STARTS; t++) {
        float inverse = ((float) a->top - 1.0f + 0.125f * (float) t) / (hi - lo);
        float sc = 0, scc = 0, scx = 0;
        for (int i = 0; i < a->group; i++) {
            float code = (float) nearest(clamp((x[i] - lo) * inverse, 0.0f, (float) a->top));
            sc += w[i] * code;
            scc += w[i] * code * code;
            scx += w[i] * code * x[i];
        }
        /* Fits no minimum unless the codes differ enough to tell scale and minimum apart: equal values all get one
         * code. */
        float determinant = sw * scc - sc * sc, slope = scc > 0 ? scx / scc : 0, shift = 0;
        if (determinant > 1e-5f * sw * scc) {
            float free_shift = (scc * swx - sc * scx) / determinant;
            if (free_shift < 0) {
                slope = (sw * scx - swx * sc) / determinant;
                shift = free_shift;
            }
        }
        float error = swxx - 2 * slope * scx - 2 * shift * swx + slope * slope * scc + 2 * slope * shift * sc +
                      shift * shift * sw;
        if (slope > 0 && error < best) {
            best = error;
            *scale = slope;
            *min = -shift;
        }
    }
}

/* Rounds x to the codes of a group and returns the weighted error. */
static float affine_codes(uint8_t *code, const Affine *a, const float *x, const float *w, float scale, float min)
{
    float inverse = inverse_of(scale), error = 0;
    for (int i = 0; i < a->group; i++) {
        int c = nearest(clamp((x[i] + min) * inverse, 0.0f, (float) a->top));
        float miss = scale * (float) c - min - x[i];
        error += w[i] * miss * miss;
        code[i] = (uint8_t) c;
    }
    return error;
}

/* Computes the codes of the whole block for d and dmin, and tries scale and min integers that are off by up to
 * reach. */
static float affine_block(AffineBlock *out, const Affine *a, const AffineBlock *guess, const float *x, const float *w,
                          float d, float dmin, int reach)
{
    float total = 0;
    for (int s = 0, at = 0; at < 256; s++, at += a->group) {
        float best = INFINITY;
        for (int i = guess->scale[s] - reach; i <= guess->scale[s] + reach; i++) {
            for (int j = guess->min[s] - reach; j <= guess->min[s] + reach; j++) {
                if (i < 0 || i > a->most || j < 0 || j > a->most) continue;
                uint8_t code[32];
                float error = affine_codes(code, a, x + at, w + at, d * (float) i, dmin * (float) j);
                if (error < best) {
                    best = error;
                    out->scale[s] = (uint8_t) i;
                    out->min[s] = (uint8_t) j;
                    memcpy(out->code + at, code, (size_t) a->group);
                }
            }
        }
        total += best;
    }
    return total;
}

/* Fits d and dmin to the codes: x ~ d * (S * code) - dmin * M over the whole block. */
static bool affine_refit(float *d, float *dmin, const Affine *a, const AffineBlock *q, const float *x, const float *w)
{
    float uu = 0, uv = 0, vv = 0, ux = 0, vx = 0;
    for (int i = 0; i < 256; i++) {
        float u = (float) q->scale[i / a->group] * (float) q->code[i], v = -(float) q->min[i / a->group];
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

static uint8_t integer_up_to(float v, int most) { return (uint8_t) nearest(clamp(v, 0.0f, (float) most)); }

/* Writes d and dmin to half; leaves scales, minima and codes in q. */
static void affine_encode(AffineBlock *q, uint8_t half[4], const Affine *a, const float *x)
{
    float w[256], scale[16], min[16], scale_max = 0, min_max = 0;
    for (int s = 0, at = 0; at < 256; s++, at += a->group) {
        weigh(w + at, x + at, a->group);
        affine_fit(&scale[s], &min[s], a, x + at, w + at);
        if (scale[s] > scale_max) scale_max = scale[s];
        if (min[s] > min_max) min_max = min[s];
    }
    AffineBlock guess;
    float d = store_half(half, step_of(scale_max / (float) a->most)),
          dmin = store_half(half + 2, step_of(min_max / (float) a->most));
    for (int s = 0; s < 256 / a->group; s++) {
        guess.scale[s] = integer_up_to(scale[s] * inverse_of(d), a->most);
        guess.min[s] = integer_up_to(min[s] * inverse_of(dmin), a->most);
    }
    float error = affine_block(q, a, &guess, x, w, d, dmin, 1);
    if (!affine_refit(&d, &dmin, a, q, x, w)) return;
    AffineBlock again;
    uint8_t halves[4];
    d = store_half(halves, d);
    dmin = store_half(halves + 2, dmin);
    if (affine_block(&again, a, q, x, w, d, dmin, 0) >= error) return;
    *q = again;
    memcpy(half, halves, sizeof halves);
}

/* The twelve bytes of scales and minima of Q4_K and Q5_K. */
static void store_six_bits(uint8_t sc[12], const AffineBlock *q)
{
    for (int s = 0; s < 4; s++) {
        sc[s]     = (uint8_t) (q->scale[s] | (q->scale[s + 4] >> 4) << 6);
        sc[s + 4] = (uint8_t) (q->min[s] | (q->min[s + 4] >> 4) << 6);
        sc[s + 8] = (uint8_t) ((q->scale[s + 4] & 15) | (q->min[s + 4] & 15) << 4);
    }
}

/* The low four bits of groups 2p and 2p+1 share the 32 bytes from 32p on. */
static void store_nibbles(uint8_t *out, const uint8_t code[256])
{
    for (int p = 0; p < 4; p++) {
        for (int l = 0; l < 32; l++)
            out[32 * p + l] = (uint8_t) ((code[64 * p + l] & 15) | (code[64 * p + 32 + l] & 15) << 4);
    }
}

/* The low two bits of Q2_K and Q3_K: value 128p + 32r + l in byte 32p + l, at 2r. */
static void store_pairs(uint8_t *out, const uint8_t code[256])
{
    for (int i = 0; i < 64; i++) {
        const uint8_t *c = code + 128 * (i / 32) + i % 32;
        out[i] = (uint8_t) ((c[0] & 3) | (c[32] & 3) << 2 | (c[64] & 3) << 4 | (c[96] & 3) << 6);
    }
}

void quant_encode_q2_k(uint8_t *b, const float *x)
{
    AffineBlock q;
    affine_encode(&q, b + 80, &(Affine) {16, 3, 15}, x);
    for (int s = 0; s < 16; s++) b[s] = (uint8_t) (q.scale[s] | q.min[s] << 4);
    store_pairs(b + 16, q.code);
}

void quant_encode_q4_k(uint8_t *b, const float *x)
{
    AffineBlock q;
    affine_encode(&q, b, &(Affine) {32, 15, 63}, x);
    store_six_bits(b + 4, &q);
    store_nibbles(b + 16, q.code);
}

void quant_encode_q5_k(uint8_t *b, const float *x)
{
    AffineBlock q;
    affine_encode(&q, b, &(Affine) {32, 31, 63}, x);
    store_six_bits(b + 4, &q);
    for (int l = 0; l < 32; l++) {
        int high = 0;
        for (int s = 0; s < 8; s++) high |= (q.code[32 * s + l] >> 4) << s;
        b[16 + l] = (uint8_t) high;
    }
    store_nibbles(b + 48, q.code);
}

/* ---- Q3_K, Q6_K, IQ4_NL, IQ4_XS: x ~ scale * level ---- */

/* A level is an integer in [lowest, highest], or one of the codebook. The scale has either sign, so that the largest
 * value can get the lowest level, which has no positive counterpart. Scales are stored as integers in
 * [-most, most - 1]. */
typedef struct {
    int           group, lowest, highest, most;
    int           starts;
    float         first, step;                     /* level of the largest value at the first start; its growth */
    bool          both;                            /* also tries to give the largest value a level above zero */
    const int8_t *near;                            /* the codebook (near_book); NULL: all integers */
} Signed;
typedef struct { int8_t scale[16], level[256]; } SignedBlock;

enum { BOOK_LOW = -127, BOOK_HIGH = 113, BOOK_HALVES = 2 * (BOOK_HIGH - BOOK_LOW) + 1 };

/* The entry of the codebook next to every half from the lowest entry on: all midpoints between entries are halves. */
static void near_book(int8_t near[BOOK_HALVES])
{
    int from = 0;
    for (int i = 0; i < 16; i++) {
        int to = i < 15 ? quant_iq4[i] + quant_iq4[i + 1] - 2 * BOOK_LOW : BOOK_HALVES;
        memset(near + from, quant_iq4[i], (size_t) (to - from));
        from = to;
    }
}

static inline int level_of(const Signed *k, float v)
{
    v = clamp(v, (float) k->lowest, (float) k->highest);
    return k->near ? k->near[(int) (2 * (v - BOOK_LOW))] : nearest(v);
}

static float signed_fit(const Signed *k, const float *x, const float *w)
{
    float largest = signed_largest(x, k->group), scale = 0, best = 0;
    if (largest == 0) return 0;
    for (int t = 0; t < k->starts << k->both; t++) {
        float inverse = -(k->first + k->step * (float) (t >> k->both)) / largest, scc = 0, scx = 0;
        if (k->both && (t & 1)) inverse = -inverse;
        for (int i = 0; i < k->group; i++) {
            float level = (float) level_of(k, x[i] * inverse);
            scc += w[i] * level * level;
            scx += w[i] * level * x[i];
        }
        if (scc > 0 && scx * scx / scc > best) {           /* the reduction of the sum of w x^2 by the fit */
            best = scx * scx / scc;
            scale = scx / scc;
        }
    }
    return scale;
}

static float signed_levels(int8_t *out, const Signed *k, const float *x, const float *w, float scale)
{
    float inverse = inverse_of(scale), error = 0;
    for (int i = 0; i < k->group; i++) {
        int level = level_of(k, x[i] * inverse);
        float miss = scale * (float) level - x[i];
        error += w[i] * miss * miss;
        out[i] = (int8_t) level;
    }
    return error;
}

static float signed_block(SignedBlock *out, const Signed *k, const SignedBlock *guess, const float *x, const float *w,
                          float d, int reach)
{
    float total = 0;
    for (int s = 0, at = 0; at < 256; s++, at += k->group) {
        float best = INFINITY;
        for (int i = guess->scale[s] - reach; i <= guess->scale[s] + reach; i++) {
            if (i < -k->most || i >= k->most) continue;
            int8_t level[32];
            float error = signed_levels(level, k, x + at, w + at, d * (float) i);
            if (error < best) {
                best = error;
                out->scale[s] = (int8_t) i;
                memcpy(out->level + at, level, (size_t) k->group);
            }
        }
        total += best;
    }
    return total;
}

/* Writes d to half; leaves scales and levels in q. */
static void signed_encode(SignedBlock *q, uint8_t half[2], const Signed *k, const float *x)
{
    float w[256], scale[16], most = (float) k->most;
    int groups = 256 / k->group;
    for (int s = 0, at = 0; at < 256; s++, at += k->group) {
        weigh(w + at, x + at, k->group);
        scale[s] = signed_fit(k, x + at, w + at);
    }
    SignedBlock guess;
    float d = store_half(half, step_of(signed_largest(scale, groups) / -most));
    for (int s = 0; s < groups; s++)
        guess.scale[s] = (int8_t) nearest(clamp(scale[s] * inverse_of(d), -most, most - 1.0f));
    float error = signed_block(q, k, &guess, x, w, d, 1), uu = 0, ux = 0;
    for (int i = 0; i < 256; i++) {
        float u = (float) q->scale[i / k->group] * (float) q->level[i];
        uu += w[i] * u * u;
        ux += w[i] * u * x[i];
    }
    if (!(uu > 0)) return;
    SignedBlock again;
    uint8_t halves[2];
    if (signed_block(&again, k, q, x, w, store_half(halves, ux / uu), 0) >= error) return;
    *q = again;
    memcpy(half, halves, sizeof halves);
}

static const Signed q3_k = {.group = 16, .lowest = -4, .highest = 3, .most = 32,
                            .starts = 17, .first = 3, .step = 0.125f, .both = true};
static const Signed q6_k = {.group = 16, .lowest = -32, .highest = 31, .most = 128,
                            .starts = 17, .first = 31, .step = 0.125f};

static Signed iq4(int8_t near[BOOK_HALVES])
{
    near_book(near);
    return (Signed) {.group = 32, .lowest = BOOK_LOW, .highest = BOOK_HIGH, .most = 32,
                     .starts = 17, .first = 96, .step = 4, .both = true, .near = near};
}

/* Scale s: its low four bits share a byte with scale s + 8, its high two bits one with s + 4, s + 8 and s + 12. */
void quant_encode_q3_k(uint8_t *b, const float *x)
{
    SignedBlock q;
    uint8_t code[256];
    signed_encode(&q, b + 108, &q3_k, x);
    memset(b, 0, 108);
    for (int i = 0; i < 256; i++) {
        code[i] = (uint8_t) (q.level[i] + 4);
        b[i % 32] = (uint8_t) (b[i % 32] | (code[i] >> 2) << i / 32);
    }
    store_pairs(b + 32, code);
    for (int s = 0; s < 16; s++) {
        int scale = q.scale[s] + 32;
        uint8_t *low = &b[96 + s % 8], *high = &b[104 + s % 4];
        *low = (uint8_t) (*low | (scale & 15) << 4 * (s / 8));
        *high = (uint8_t) (*high | (scale >> 4) << 2 * (s / 4));
    }
}

void quant_encode_q6_k(uint8_t *b, const float *x)
{
    SignedBlock q;
    signed_encode(&q, b + 208, &q6_k, x);
    memset(b, 0, 192);
    for (int s = 0; s < 16; s++) {
        int p = s >> 3, r = (s >> 1) & 3;
        b[192 + s] = (uint8_t) q.scale[s];
        for (int i = 0; i < 16; i++) {
            int l = 16 * (s & 1) + i, code = q.level[16 * s + i] + 32;
            uint8_t *low = &b[64 * p + 32 * (r & 1) + l], *high = &b[128 + 32 * p + l];
            *low = (uint8_t) (*low | (code & 15) << 4 * (r >> 1));
            *high = (uint8_t) (*high | (code >> 4) << 2 * r);
        }
    }
}

static int index_of(int8_t level)
{
    int i = 0;
    while (quant_iq4[i] != level) i++;
    return i;
}

/* Values i and i + 16 share a byte. */
static void store_indices(uint8_t out[16], const int8_t level[32])
{
    for (int i = 0; i < 16; i++) out[i] = (uint8_t) (index_of(level[i]) | index_of(level[i + 16]) << 4);
}

void quant_encode_iq4_nl(uint8_t *b, const float *x)
{
    int8_t near[BOOK_HALVES], level[32];
    float w[32];
    Signed k = iq4(near);
    weigh(w, x, 32);
    signed_levels(level, &k, x, w, store_half(b, signed_fit(&k, x, w)));
    store_indices(b + 2, level);
}

void quant_encode_iq4_xs(uint8_t *b, const float *x)
{
    int8_t near[BOOK_HALVES];
    SignedBlock q;
    Signed k = iq4(near);
    int high = 0;
    signed_encode(&q, b, &k, x);
    memset(b + 4, 0, 4);
    for (int s = 0; s < 8; s++) {
        int scale = q.scale[s] + 32;
        high |= (scale >> 4) << 2 * s;
        b[4 + s / 2] = (uint8_t) (b[4 + s / 2] | (scale & 15) << 4 * (s % 2));
        store_indices(b + 8 + 16 * s, q.level + 32 * s);
    }
    store16(b + 2, (uint16_t) high);
}
