/* vmath.h - exp, sigmoid, silu, gelu, tanh, log1p and softplus of sixteen floats, each a fixed sequence of IEEE
 * operations. Every level and every lane gives the same bits, and no C library function is called. Errors are in units
 * of the last place, measured over the whole range by tests/unit/base/test_math.c. NaN in, NaN out. */
#ifndef RATOON_BACKEND_CPU_VMATH_H
#define RATOON_BACKEND_CPU_VMATH_H

#include "backend/cpu/vec.h"

/* exp, 1.2 units; 0 below -86.9, where the result would be close to the subnormals; infinity above 88.73. x = n ln2 +
 * r, |r| <= 0.347; the series of exp(r) up to r^7; 2^n as two factors since n may be 128. */
static inline V v_exp(V x)
{
    const V round = v_set(0x1.8p23f);
    V c = v_max(v_set(-86.9f), v_min(v_set(89.0f), x));
    V t = v_fma(c, v_set(0x1.715476p0f), round), n = v_sub(t, round);
    V r = v_fma(n, v_set(-0x1.62e43p-1f), c);
    r = v_fma(n, v_set(0x1.05c610p-29f), r);
    V p = v_set(1.0f / 5040);
    p = v_fma(p, r, v_set(1.0f / 720));
    p = v_fma(p, r, v_set(1.0f / 120));
    p = v_fma(p, r, v_set(1.0f / 24));
    p = v_fma(p, r, v_set(1.0f / 6));
    p = v_fma(p, r, v_set(0.5f));
    p = v_add(v_set(1), v_fma(p, v_mul(r, r), r));
    p = v_mul(v_mul(p, v_pow2(t, -1)), v_set(2));
    return v_lt(x, v_set(-86.9f), v_set(0), p);
}

/* 2.5 units. */
static inline V v_sigmoid(V x) { return v_div(v_set(1), v_add(v_set(1), v_exp(v_sub(v_set(0), x)))); }

/* x * sigmoid(x), 2.5 units. */
static inline V v_silu(V x) { return v_div(x, v_add(v_set(1), v_exp(v_sub(v_set(0), x)))); }

/* x * sigmoid(z), z = x * (2 sqrt(2 / pi) + 2 sqrt(2 / pi) * 0.044715 * x^2): 2.5 + 2.5 |z| units for z below 0, where
 * the result is small, 2.5 above. -0 below z = -88.73, and NaN for -infinity, like silu. */
static inline V v_gelu(V x)
{
    V minus = v_fma(v_mul(x, x), v_set(-0.0713548162726f), v_set(-1.5957691216057f));
    return v_div(x, v_add(v_set(1), v_exp(v_mul(x, minus))));
}

/* 2.5 units. Up to 0.55 by the series, whose first omitted term is below 2^-26; beyond, 1 - 2 / (exp(2|x|) + 1). */
static inline V v_tanh(V x)
{
    V minus = v_sub(v_set(0), x), a = v_max(minus, x), z = v_mul(x, x);
    V p = v_set(6404582.0f / 10854718875.0f);
    p = v_fma(p, z, v_set(-929569.0f / 638512875.0f));
    p = v_fma(p, z, v_set(21844.0f / 6081075.0f));
    p = v_fma(p, z, v_set(-1382.0f / 155925.0f));
    p = v_fma(p, z, v_set(62.0f / 2835.0f));
    p = v_fma(p, z, v_set(-17.0f / 315.0f));
    p = v_fma(p, z, v_set(2.0f / 15.0f));
    p = v_fma(p, z, v_set(-1.0f / 3.0f));
    V near = v_fma(v_mul(p, z), x, x);
    V far = v_sub(v_set(1), v_div(v_set(2), v_add(v_exp(v_add(a, a)), v_set(1))));
    far = v_lt(x, v_set(0), v_sub(v_set(0), far), far);
    return v_lt(a, v_set(0.55f), near, far);
}

/* For x in [0, 2^64), 1.5 units: with u = 1 + x rounded, and lost = the part rounded off, log(u) + lost / u; log(u) as
 * in base/mathd.c. */
static inline V v_log1p(V x)
{
    V one = v_set(1), k;
    V u = v_add(one, x);
    V lost = v_lt(one, x, v_sub(one, v_sub(u, x)), v_sub(x, v_sub(u, one)));
    V f = v_sub(v_split(u, &k), one);
    V s = v_div(f, v_add(v_set(2), f)), z = v_mul(s, s), half = v_mul(v_mul(v_set(0.5f), f), f);
    V r = v_set(2.0f / 9);
    r = v_fma(r, z, v_set(2.0f / 7));
    r = v_fma(r, z, v_set(2.0f / 5));
    r = v_fma(r, z, v_set(2.0f / 3));
    r = v_mul(r, z);
    V low = v_fma(k, v_set(-0x1.05c610p-29f), v_div(lost, u));
    V small = v_sub(half, v_fma(s, v_add(half, r), low));
    return v_fma(k, v_set(0x1.62e43p-1f), v_sub(f, small));
}

/* x if above 20, else log1p(exp(x)); 2.5 units. */
static inline V v_softplus(V x)
{
    V y = v_log1p(v_exp(v_min(v_set(20), x)));
    return v_lt(v_set(20), x, x, y);
}

#endif
