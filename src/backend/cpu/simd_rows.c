/* simd_rows.c - norms, elementwise functions, rotation: everything that reads one row at a time. */
#include <math.h>

#include "backend/cpu/kernels.h"
#include "backend/cpu/vmath.h"

static float sum_squares(const float *x, int32_t n)
{
    V acc = v_set(0);
    for (int32_t i = 0; i < n; i += LANES) {
        V v = v_load_to(x + i, n - i);
        acc = v_fma(v, v, acc);
    }
    return v_sum(acc);
}

static V norm_factor(float squares, int32_t n, float eps) { return v_set(1.0f / sqrtf(squares / (float) n + eps)); }

static inline V weighted(V v, const float *w, int32_t i, int32_t n)
{
    return w ? v_mul(v, v_load_to(w + i, n - i)) : v;
}

static void norm(float *y, const float *x, const float *w, int32_t n, float eps)
{
    V r = norm_factor(sum_squares(x, n), n, eps);
    for (int32_t i = 0; i < n; i += LANES)
        v_store_to(y + i, weighted(v_mul(v_load_to(x + i, n - i), r), w, i, n), n - i);
}

static void add_norm(float *y, float *x, const float *dx, const float *w, int32_t n, float eps)
{
    V acc = v_set(0);
    for (int32_t i = 0; i < n; i += LANES) {
        V v = v_add(v_load_to(x + i, n - i), v_load_to(dx + i, n - i));
        v_store_to(x + i, v, n - i);
        acc = v_fma(v, v, acc);
    }
    V r = norm_factor(v_sum(acc), n, eps);
    for (int32_t i = 0; i < n; i += LANES)
        v_store_to(y + i, weighted(v_mul(v_load_to(x + i, n - i), r), w, i, n), n - i);
}

static void gated_norm(float *x, const float *w, const float *z, int32_t n, float eps)
{
    V r = norm_factor(sum_squares(x, n), n, eps);
    for (int32_t i = 0; i < n; i += LANES) {
        V v = v_mul(v_mul(v_load_to(x + i, n - i), r), v_load_to(w + i, n - i));
        v_store_to(x + i, v_mul(v, v_silu(v_load_to(z + i, n - i))), n - i);
    }
}

static void add(float *x, const float *dx, int64_t n)
{
    for (int64_t i = 0; i < n; i++) x[i] += dx[i];
}

static inline V activate(V x, Act act)
{
    switch (act) {
    case ACT_SILU:      return v_silu(x);
    case ACT_GELU_TANH: return v_gelu(x);
    case ACT_SIGMOID:   return v_sigmoid(x);
    default:            return v_softplus(x);
    }
}

static inline void glu_by(float *y, const float *g, const float *up, int64_t n, Act act)
{
    for (int64_t i = 0; i < n; i += LANES)
        v_store_to(y + i, v_mul(activate(v_load_to(g + i, n - i), act), v_load_to(up + i, n - i)), n - i);
}

/* One loop per function, without branches inside. */
static void glu(float *y, const float *g, const float *up, int64_t n, Act act)
{
    switch (act) {
    case ACT_SILU:      glu_by(y, g, up, n, ACT_SILU); break;
    case ACT_GELU_TANH: glu_by(y, g, up, n, ACT_GELU_TANH); break;
    case ACT_SIGMOID:   glu_by(y, g, up, n, ACT_SIGMOID); break;
    case ACT_SOFTPLUS:  glu_by(y, g, up, n, ACT_SOFTPLUS); break;
    }
}

static inline void gate_each(float *x, const float *logit, int64_t n, Act act)
{
    for (int64_t i = 0; i < n; i += LANES)
        v_store_to(x + i, v_mul(v_load_to(x + i, n - i), activate(v_load_to(logit + i, n - i), act)), n - i);
}

static inline void gate_groups(float *x, const float *logit, int64_t n, Act act, int32_t width)
{
    for (int64_t at = 0; at < n; at += width) {
        V by = activate(v_set(logit[at / width]), act);
        for (int32_t i = 0; i < width; i += LANES)
            v_store_to(x + at + i, v_mul(v_load_to(x + at + i, width - i), by), width - i);
    }
}

static inline void gate_by(float *x, const float *logit, int64_t n, Act act, int32_t width)
{
    if (width == 1) gate_each(x, logit, n, act);
    else gate_groups(x, logit, n, act, width);
}

static void gate(float *x, const float *logit, int64_t n, Act act, int32_t width)
{
    switch (act) {
    case ACT_SILU:      gate_by(x, logit, n, ACT_SILU, width); break;
    case ACT_GELU_TANH: gate_by(x, logit, n, ACT_GELU_TANH, width); break;
    case ACT_SIGMOID:   gate_by(x, logit, n, ACT_SIGMOID, width); break;
    case ACT_SOFTPLUS:  gate_by(x, logit, n, ACT_SOFTPLUS, width); break;
    }
}

static void scale(float *x, int64_t n, float by, float softcap)
{
    V f = v_set(by), cap = v_set(softcap);
    for (int64_t i = 0; i < n; i += LANES) {
        V v = v_mul(v_load_to(x + i, n - i), f);
        if (softcap > 0) v = v_mul(cap, v_tanh(v_div(v, cap)));
        v_store_to(x + i, v, n - i);
    }
}

static void rope(float *x, const float *turn, int32_t n_rot, bool neox)
{
    int32_t half = n_rot / 2;
    const float *c = turn, *s = turn + half;
    if (neox) {
        float *second = x + half;
        for (int32_t i = 0; i < half; i++) {
            float a = x[i], b = second[i];
            x[i] = a * c[i] - b * s[i];
            second[i] = a * s[i] + b * c[i];
        }
    } else {
        for (int32_t i = 0; i < half; i++) {
            float a = x[2 * i], b = x[2 * i + 1];
            x[2 * i] = a * c[i] - b * s[i];
            x[2 * i + 1] = a * s[i] + b * c[i];
        }
    }
}

static float pair(const float *a, const float *b, const float *c, int32_t n)
{
    V acc = v_set(0);
    for (int32_t i = 0; i < n; i += LANES)
        acc = v_fma(v_mul(v_load_to(a + i, n - i), v_load_to(b + i, n - i)), v_load_to(c + i, n - i), acc);
    return v_sum(acc);
}

static void block_conv(float *y, const float *x, const float *base, const float *delta, int32_t taps, int32_t n,
                       int32_t group)
{
    for (int32_t at = 0; at < n; at += group) {
        int32_t end = at + group < n ? at + group : n;
        for (int32_t c = at; c < end; c += LANES) {
            V acc = v_set(0);
            for (int32_t t = 0; t < taps; t++) {
                V w = v_add(v_load_to(base + (int64_t) t * n + c, end - c),
                            v_set(delta[(int64_t) t * (n / group) + at / group]));
                acc = v_fma(w, v_load_to(x - (int64_t) t * n + c, end - c), acc);
            }
            v_store_to(y + c, acc, end - c);
        }
    }
}

static void mix(float *y, const float *const *x, const float *w, int32_t count, int32_t n)
{
    for (int32_t c = 0; c < n; c += LANES) {
        V acc = v_set(0);
        for (int32_t i = 0; i < count; i++) acc = v_fma(v_set(w[i]), v_load_to(x[i] + c, n - c), acc);
        v_store_to(y + c, acc, n - c);
    }
}

static float peak(const float *x, int32_t n)
{
    const V none = v_set(0);
    V top = v_set(-INFINITY), odd = none;
    int32_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        const V z = v_load(x + i);
        top = v_max(z, top);
        odd = v_fma(z, none, odd);                 /* NaN from what is not finite */
    }
    float most = v_top(top), rest = v_sum(odd);
    for (; i < n; i++) {
        if (x[i] > most) most = x[i];
        rest = fmaf(x[i], 0, rest);
    }
    return rest == 0 ? most : NAN;
}

static float cool(float *x, int32_t n, float t)
{
    const V by = v_set(t);
    V top = v_set(-INFINITY);
    int32_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        V z = v_div(v_load(x + i), by);
        v_store(x + i, z);
        top = v_max(z, top);
    }
    float most = v_top(top);
    for (; i < n; i++) {
        x[i] /= t;
        if (x[i] > most) most = x[i];
    }
    return most;
}

static float terms(float *x, int32_t n, float before, float top, float sum[2])
{
    const V most = v_set(top), none = v_set(0), least = v_set(TERM_LEAST);
    V s = none, lean = none;
    for (int32_t i = 0; i < n; i += LANES) {
        V d = v_sub(v_load(x + i), most), e = v_lt(d, least, none, v_exp(d));
        v_store(x + i, e);
        s = v_add(s, e);
        lean = v_fma(e, v_lt(d, least, none, d), lean);
    }
    sum[0] = v_sum(s);
    sum[1] = v_sum(lean);
    float again[LANES];
    v_store(again, v_exp(v_set(before - top)));
    return again[0];
}

static void blend(float *y, float again, const float *const *x, const float *w, int32_t count, int32_t n)
{
    enum { SIDE = 4 };                             /* vectors at a time */
    const V by = v_set(again);
    int32_t c = 0;
    for (; c + SIDE * LANES <= n; c += SIDE * LANES) {
        V acc[SIDE];
        for (int j = 0; j < SIDE; j++) acc[j] = v_set(0);
        for (int32_t i = 0; i < count; i++)
            for (int j = 0; j < SIDE; j++) acc[j] = v_fma(v_set(w[i]), v_load(x[i] + c + j * LANES), acc[j]);
        for (int j = 0; j < SIDE; j++)
            v_store(y + c + j * LANES, v_fma(v_load(y + c + j * LANES), by, acc[j]));
    }
    for (; c < n; c += LANES) {
        V acc = v_set(0);
        for (int32_t i = 0; i < count; i++) acc = v_fma(v_set(w[i]), v_load_to(x[i] + c, n - c), acc);
        v_store_to(y + c, v_fma(v_load_to(y + c, n - c), by, acc), n - c);
    }
}

static void store(void *dst, Type t, const float *x, int32_t n)
{
    uint16_t *h = dst;
    if (t == T_F32) {
        memcpy(dst, x, sizeof(float) * (size_t) n);
    } else if (t == T_BF16) {
        for (int32_t i = 0; i < n; i++) h[i] = bf16_from_float(x[i]);
    } else {
        int32_t i = 0;
        for (; i + LANES <= n; i += LANES) v_store_half(h + i, v_load(x + i));
        for (; i < n; i++) h[i] = half_from_float(x[i]);
    }
}

static void math(float *y, const float *x, int32_t n, int32_t which)
{
    V (*f[MATH_COUNT])(V) = { v_exp, v_sigmoid, v_silu, v_tanh, v_log1p, v_softplus, v_gelu };
    for (int32_t i = 0; i < n; i += LANES) v_store_to(y + i, f[which](v_load_to(x + i, n - i)), n - i);
}

const RowKernels LEVEL_NAME(rows) = { norm, add_norm, gated_norm, add, glu, gate, scale, rope, pair, block_conv,
                                      mix, peak, cool, terms, blend, store, math };
