/* gpu_math.h - cpu/vmath.h for kernels: exp, sigmoid, silu, gelu, tanh, log1p and softplus of a float, the same
 * operations in the same order, so the same bits. vmath.h says why each is precise enough. */
#ifndef RATOON_BACKEND_GPU_GPU_MATH_H
#define RATOON_BACKEND_GPU_GPU_MATH_H

#include "backend/gpu/gpu.h"

DEV float f32_exp(float x)
{
    const float low = f32_min(89.0f, x), c = f32_max(-86.9f, low);
    const float t = f32_fma(c, 0x1.715476p0f, 0x1.8p23f), n = f32_sub(t, 0x1.8p23f);
    float r = f32_fma(n, -0x1.62e43p-1f, c);
    r = f32_fma(n, 0x1.05c610p-29f, r);
    float p = 1.0f / 5040;
    p = f32_fma(p, r, 1.0f / 720);
    p = f32_fma(p, r, 1.0f / 120);
    p = f32_fma(p, r, 1.0f / 24);
    p = f32_fma(p, r, 1.0f / 6);
    p = f32_fma(p, r, 0.5f);
    p = f32_add(1.0f, f32_fma(p, f32_mul(r, r), r));
    p = f32_mul(f32_mul(p, f32_of_bits((bits_of_f32(t) + 126u) << 23)), 2.0f);
    return x < -86.9f ? 0.0f : p;
}

DEV float f32_sigmoid(float x) { return f32_div(1.0f, f32_add(1.0f, f32_exp(f32_sub(0.0f, x)))); }

DEV float f32_silu(float x) { return f32_div(x, f32_add(1.0f, f32_exp(f32_sub(0.0f, x)))); }

DEV float f32_gelu(float x)
{
    const float minus = f32_fma(f32_mul(x, x), -0.0713548162726f, -1.5957691216057f);
    return f32_div(x, f32_add(1.0f, f32_exp(f32_mul(x, minus))));
}

DEV float f32_tanh(float x)
{
    const float minus = f32_sub(0.0f, x), a = f32_max(minus, x), z = f32_mul(x, x);
    float p = 6404582.0f / 10854718875.0f;
    p = f32_fma(p, z, -929569.0f / 638512875.0f);
    p = f32_fma(p, z, 21844.0f / 6081075.0f);
    p = f32_fma(p, z, -1382.0f / 155925.0f);
    p = f32_fma(p, z, 62.0f / 2835.0f);
    p = f32_fma(p, z, -17.0f / 315.0f);
    p = f32_fma(p, z, 2.0f / 15.0f);
    p = f32_fma(p, z, -1.0f / 3.0f);
    const float near = f32_fma(f32_mul(p, z), x, x);
    float far = f32_sub(1.0f, f32_div(2.0f, f32_add(f32_exp(f32_add(a, a)), 1.0f)));
    far = x < 0.0f ? f32_sub(0.0f, far) : far;
    return a < 0.55f ? near : far;
}

DEV float f32_log1p(float x)
{
    const float u = f32_add(1.0f, x);
    const float lost = 1.0f < x ? f32_sub(1.0f, f32_sub(u, x)) : f32_sub(x, f32_sub(u, 1.0f));
    const int e = (int) (bits_of_f32(u) - 0x3f3504f3u) >> 23;
    const float k = f32_of_int(e), f = f32_sub(f32_of_bits(bits_of_f32(u) - ((uint32_t) e << 23)), 1.0f);
    const float s = f32_div(f, f32_add(2.0f, f)), z = f32_mul(s, s), half = f32_mul(f32_mul(0.5f, f), f);
    float r = 2.0f / 9;
    r = f32_fma(r, z, 2.0f / 7);
    r = f32_fma(r, z, 2.0f / 5);
    r = f32_fma(r, z, 2.0f / 3);
    r = f32_mul(r, z);
    const float low = f32_fma(k, -0x1.05c610p-29f, f32_div(lost, u));
    const float small = f32_sub(half, f32_fma(s, f32_add(half, r), low));
    return f32_fma(k, 0x1.62e43p-1f, f32_sub(f, small));
}

DEV float f32_softplus(float x)
{
    const float y = f32_log1p(f32_exp(f32_min(20.0f, x)));
    return 20.0f < x ? x : y;
}

DEV float f32_act(float x, int act)
{
    return act == ACT_SILU ? f32_silu(x) : act == ACT_GELU_TANH ? f32_gelu(x) : act == ACT_SIGMOID ? f32_sigmoid(x)
                                                                                                : f32_softplus(x);
}

#endif
