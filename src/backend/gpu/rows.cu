/* rows.cu - kernels that read rows and write rows: norms, elementwise functions, rotation. */
#include "backend/gpu/gpu_math.h"
#include "backend/gpu/gpu_mathd.h"

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
        float v = f32_mul(ld(x + i), s.r);
        if (a.w) v = f32_mul(v, ld_weight(a.w + i));
        if (a.z) v = f32_mul(v, f32_silu(ld(a.z + (size_t) BID * (size_t) a.cols + i)));
        st(y + i, v);
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

KERNEL(256, rows_split, SplitArgs)
{
    pass_next();
    pass_wait();
    const float *x = a.x + (size_t) BID * (size_t) a.cols;
    float *y[2] = { a.y0 + (size_t) BID * (size_t) a.cols0, a.y1 + (size_t) BID * (size_t) a.cols1 };
    for (int i = TID; i < a.cols; i += 256) {
        const int group = i / a.width, at = group / 2 * a.width + i % a.width;
        st((group & 1 ? y[1] : y[0]) + at, ld(x + i));
    }
}

KERNEL(256, rows_join, JoinArgs)
{
    pass_next();
    pass_wait();
    const int cols = a.cols0 + a.cols1;
    float *y = a.y + (size_t) BID * (size_t) cols;
    for (int i = TID; i < cols; i += 256)
        st(y + i, i < a.cols0 ? ld(a.x0 + (size_t) BID * (size_t) a.cols0 + i)
                              : ld(a.x1 + (size_t) BID * (size_t) a.cols1 + (i - a.cols0)));
}

KERNEL(256, rows_logit_rows, PickRowsArgs)
{
    pass_next();
    pass_wait();
    const bool is = BID < ld(a.rows.count + 2);
    const float *x = a.x + (size_t) (is ? ld(a.rows.logit_row + BID) : 0) * (size_t) a.cols;
    for (int i = TID; is && i < a.cols; i += 256) st(a.y + (size_t) BID * (size_t) a.cols + i, ld(x + i));
}

KERNEL(256, rows_tap, PickRowsArgs)
{
    pass_next();
    pass_wait();
    const int slice = ld(a.rows.slice + BID), slot = slice < 0 ? -1 : ld(a.rows.tap_slot + BID);
    if (slot < 0) return;
    const size_t at = ((size_t) slot * (size_t) a.n_taps + (size_t) a.part) * (size_t) a.cols;
    float *to = ld(&a.rows.slices[slice].taps) + at;
    for (int i = TID; i < a.cols; i += 256) st(to + i, ld(a.x + (size_t) BID * (size_t) a.cols + i));
}

KERNEL(256, rows_tap_get, PickRowsArgs)
{
    pass_next();
    pass_wait();
    const int slice = ld(a.rows.slice + BID), slot = slice < 0 ? -1 : ld(a.rows.tap_slot + BID);
    if (slot < 0) return;
    const float *from = ld(&a.rows.slices[slice].taps) + (size_t) slot * (size_t) a.cols;
    for (int i = TID; i < a.cols; i += 256) st(a.y + (size_t) BID * (size_t) a.cols + i, ld(from + i));
}

KERNEL(32, rows_rope_table, RopeTableArgs)
{
    pass_next();
    pass_wait();
    const int half = a.rope.n_rot / 2;
    float *t = a.t + (size_t) BID * (size_t) a.rope.n_rot;
    for (int i = TID; i < half; i += 32) {
        const int lane = a.rope.lane_of ? ld_weight(a.rope.lane_of + i) : 0;
        const double angle = f64_mul(f64_of_int(ld(a.rows.lane + BID * POS_LANES + lane)), ld_weight(a.rope.freq + i));
        double sine, cosine;
        f64_sincos(angle, &sine, &cosine);
        st(t + i, f32_mul(f32_of_f64(cosine), a.rope.mscale));
        st(t + half + i, f32_mul(f32_of_f64(sine), a.rope.mscale));
    }
}

KERNEL(128, rows_rope, RopeArgs)
{
    pass_next();
    pass_wait();
    const int half = a.n_rot / 2, pairs = a.cols / a.head_dim * half;
    const float *t = a.t + (size_t) BID * (size_t) a.n_rot;
    for (int k = TID; k < pairs; k += 128) {
        const int i = k % half;
        float *x = a.x + (size_t) BID * (size_t) a.cols + k / half * a.head_dim;
        float *p = x + (a.neox ? i : 2 * i), *q = x + (a.neox ? half + i : 2 * i + 1);
        const float u = ld(p), v = ld(q), c = ld(t + i), s = ld(t + half + i);
        st(p, f32_sub(f32_mul(u, c), f32_mul(v, s)));
        st(q, f32_add(f32_mul(u, s), f32_mul(v, c)));
    }
}
