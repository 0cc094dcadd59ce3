/* rows.cu - kernels that read rows and write rows: norms, elementwise functions, rotation. */
#include "backend/gpu/gpu_math.h"

/* Sums of 16 lanes, halves 8, 4, 2, 1 (design, Exactness 3). */
DEV float sum_of_16(float v)
{
    for (int m = 8; m; m >>= 1) v = f32_add(v, shfl_xor_f(v, m));
    return v;
}

struct NormShared { float r; };

KERNEL(256, rows_norm, NormArgs)
{
    SHARED(NormShared, s);
    pass_next();
    pass_wait();
    float *x = a.x + (size_t) BID * (size_t) a.cols, *y = a.y + (size_t) BID * (size_t) a.cols;
    if (a.dx) {
        const float *dx = a.dx + (size_t) BID * (size_t) a.cols;
        for (int i = TID; i < a.cols; i += 256) st(x + i, f32_add(ld(x + i), ld(dx + i)));
        sync_block();
    }
    if (TID < 32) {
        float acc = 0;
        for (int i = TID & 15; i < a.cols; i += 16) {
            const float v = ld(x + i);
            acc = f32_fma(v, v, acc);
        }
        acc = sum_of_16(acc);
        if (TID == 0) s.r = f32_div(1.0f, f32_sqrt(f32_add(f32_div(acc, f32_of_int(a.cols)), a.eps)));
    }
    sync_block();
    for (int i = TID; i < a.cols; i += 256) {
        const float v = f32_mul(ld(x + i), s.r);
        st(y + i, a.w ? f32_mul(v, ld_weight(a.w + i)) : v);
    }
}

KERNEL(256, rows_add, AddArgs)
{
    pass_next();
    pass_wait();
    const int64_t i = (int64_t) BID * 256 + TID;
    if (i < a.n) st(a.y + i, f32_add(ld(a.y + i), ld(a.x + i % a.period)));
}

KERNEL(256, rows_glu, GluArgs)
{
    pass_next();
    pass_wait();
    const int64_t i = (int64_t) BID * 256 + TID;
    if (i < a.n) st(a.y + i, f32_mul(f32_act(ld(a.gate + i / a.width), a.act), ld(a.up + i)));
}

KERNEL(256, rows_scale, ScaleArgs)
{
    pass_next();
    pass_wait();
    const int64_t i = (int64_t) BID * 256 + TID;
    if (i >= a.n) return;
    float v = f32_mul(ld(a.x + i), a.by);
    if (a.softcap > 0) v = f32_mul(a.softcap, f32_tanh(f32_div(v, a.softcap)));
    st(a.x + i, v);
}
