/* rows.cu - kernels that read rows and write rows: norms, elementwise functions, rotation. */
#include "backend/gpu/gpu_math.h"
#include "backend/gpu/gpu_mathd.h"
#include "backend/gpu/gpu_quantise.h"

enum { NORM_COLS = 10240 };
struct NormShared { float x[NORM_COLS], r[NORM_GROUPS]; };

/* Value i of a row after the addition; those beyond the shared memory come from the row itself. */
DEV float norm_value(const NormShared &s, const float *x, int i) { return i < NORM_COLS ? s.x[i] : ld(x + i); }

/* Quantises columns 256 at .. of a row for the product that reads it; lane l has columns 8 l .. in v. */
DEV void quantise_for_product(const ActRows act[2], int row, int at, const float v[8], bool there)
{
    if (act[FORM_32].code) quantise_columns<FORM_32>(act[FORM_32], row, at, v, there);
    if (act[FORM_256].code) quantise_columns<FORM_256>(act[FORM_256], row, at, v, there);
}

KERNEL(256, rows_norm, NormArgs)
{
    SHARED(NormShared, s);
    pass_next();
    pass_wait();
    const size_t row = (size_t) BID * (size_t) a.cols;
    const int groups = a.cols / a.group, half = TID >> 4, lane = TID & 31;
    float *x = a.x + row;
    for (int i = TID; i < a.cols; i += 256) {
        float v = ld(x + i);
        if (a.dx) st(x + i, v = f32_add(v, ld(a.dx + row + i)));
        if (i < NORM_COLS) s.x[i] = v;
    }
    sync_block();
    for (int first = 0; first < groups; first += 16) {         /* 16 lanes have a group */
        const int g = first + half, from = g * a.group;
        float acc = 0;
        for (int i = TID & 15; g < groups && i < a.group; i += 16) {
            const float v = norm_value(s, x, from + i);
            acc = f32_fma(v, v, acc);
        }
        acc = sum_of_16(acc);
        const float mean = f32_div(acc, f32_of_int(a.group));
        if ((TID & 15) == 0 && g < groups) s.r[g] = f32_div(1.0f, f32_sqrt(f32_add(mean, a.eps)));
    }
    sync_block();
    for (int at = TID >> 5; 256 * at < a.cols; at += 8) {      /* a warp has 256 columns */
        const int col = 256 * at + 8 * lane;
        float v[8];
        UNROLL
        for (int i = 0; i < 8; i++) {
            const int c = col + i;
            v[i] = 0;
            if (c >= a.cols) continue;
            v[i] = f32_mul(norm_value(s, x, c), s.r[c / a.group]);
            if (a.w) v[i] = f32_mul(v[i], ld_weight(a.w + c % a.period));
            if (a.z) v[i] = f32_mul(v[i], f32_silu(ld(a.z + row + c)));
            st(a.y + row + c, v[i]);
        }
        quantise_for_product(a.act, BID, at, v, col < a.cols);
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
    const int at = GLU_COLS / 256 * BID_Y + (TID >> 5), col = 256 * at + 8 * (TID & 31);
    const size_t row = (size_t) BID * (size_t) a.cols, gates = (size_t) BID * (size_t) (a.cols / a.width);
    if (256 * at >= a.cols) return;                /* whole warps, and there is no barrier */
    float v[8];
    UNROLL
    for (int i = 0; i < 8; i++) {
        const int c = col + i;
        v[i] = 0;
        if (c >= a.cols) continue;
        v[i] = f32_mul(f32_act(ld(a.gate + gates + c / a.width), a.function), ld(a.up + row + c));
        st(a.y + row + c, v[i]);
        if (a.sum) st(a.sum + row + c, f32_add(ld(a.sum + row + c), v[i]));
    }
    quantise_for_product(a.act, BID, at, v, col < a.cols);
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
