/* rows.cu - kernels that read rows and write rows: norms, elementwise functions, rotation. */
#include "backend/gpu/gpu_math.h"
#include "backend/gpu/gpu_mathd.h"
#include "backend/gpu/gpu_quantise.h"

/* Quantises columns 256 at .. of a row for the product that reads it; lane l has columns 8 l .. in v. */
DEV void quantise_for_product(const ActRows act[2], int row, int at, const float v[8], bool there)
{
    if (act[FORM_32].code) quantise_columns<FORM_32>(act[FORM_32], row, at, v, there);
    if (act[FORM_256].code) quantise_columns<FORM_256>(act[FORM_256], row, at, v, there);
}

DEV void put_eight(float *p, const float v[8])
{
    st((float4 *) p, float4{v[0], v[1], v[2], v[3]}), st((float4 *) p + 1, float4{v[4], v[5], v[6], v[7]});
}

/* ---- norms ----
 * A block per row, so what a norm takes is how long its threads wait, for memory, for each other, and for code that no
 * one has read yet. */

struct NormShared { alignas(16) float x[NORM_COLS], r[NORM_GROUPS]; };

/* acc and the squares of x[i], x[i + 16] ..., N at a time as long as there are so many. */
template <int N> DEV float add_squares(float acc, const float *x, int &i, int n)
{
    UNROLL_BY(1)
    for (; i + 16 * (N - 1) < n; i += 16 * N) {
        float v[N];
        UNROLL
        for (int k = 0; k < N; k++) v[k] = x[i + 16 * k];
        UNROLL
        for (int k = 0; k < N; k++) acc = f32_fma(v[k], v[k], acc);
    }
    return acc;
}

DEV float norm_factor(const NormArgs &a, float sum)
{
    return f32_div(1.0f, f32_sqrt(f32_add(f32_div(sum, f32_of_int(a.group)), a.eps)));
}

/* Rows, groups and periods of whole eights, up to NORM_COLS columns: a thread has eight of them. */
KERNEL(NORM_COLS / 8, rows_norm, NormArgs)
{
    SHARED(NormShared, s);
    const int groups = a.cols / a.group, lane = TID & 15, col = 8 * TID, own = col / a.group;
    const bool there = col < a.cols;
    float v[8] = { 0 }, w[8], z[8];
    if (there && a.w) {
        const float4 *at = (const float4 *) (a.w + col % a.period), f = ld_weight(at), g = ld_weight(at + 1);
        w[0] = f.x, w[1] = f.y, w[2] = f.z, w[3] = f.w, w[4] = g.x, w[5] = g.y, w[6] = g.z, w[7] = g.w;
    }
    pass_next();
    pass_wait();
    const size_t at = (size_t) BID * (size_t) a.cols + (size_t) col;
    if (there) {
        eight_of(v, a.x + at);
        if (a.z) eight_of(z, a.z + at);
        if (a.dx) {
            float dx[8];
            eight_of(dx, a.dx + at);
            UNROLL
            for (int i = 0; i < 8; i++) v[i] = f32_add(v[i], dx[i]);
            put_eight(a.x + at, v);
        }
        *(float4 *) (s.x + col) = float4{v[0], v[1], v[2], v[3]};
        *(float4 *) (s.x + col + 4) = float4{v[4], v[5], v[6], v[7]};
    }
    sync_block();
    for (int first = TID >> 5 << 1; first < groups; first += NORM_COLS / 8 / 16) {     /* 16 lanes have a group */
        const int g = first + (TID >> 4 & 1), n = g < groups ? a.group : 0;
        const float *x = s.x + g * a.group;
        float acc = 0;
        int i = lane;
        acc = add_squares<32>(acc, x, i, n);
        acc = add_squares<8>(acc, x, i, n);
        acc = add_squares<1>(acc, x, i, n);
        acc = sum_of_16(acc);
        if (lane == 0 && n) s.r[g] = norm_factor(a, acc);
    }
    sync_block();
    if (256 * (TID >> 5) >= a.cols) return;        /* whole warps, and there is no barrier any more */
    if (there) {
        const float r = s.r[own];
        UNROLL
        for (int i = 0; i < 8; i++) v[i] = f32_mul(v[i], r);
        if (a.w) {
            UNROLL
            for (int i = 0; i < 8; i++) v[i] = f32_mul(v[i], w[i]);
        }
        if (a.z) {
            UNROLL
            for (int i = 0; i < 8; i++) v[i] = f32_mul(v[i], f32_silu(z[i]));
        }
        put_eight(a.y + at, v);
    }
    quantise_for_product(a.act, BID, TID >> 5, v, there);
}

/* All others, value by value; those beyond the shared memory come from the row itself. */
DEV float norm_value(const NormShared &s, const float *x, int i) { return i < NORM_COLS ? s.x[i] : ld(x + i); }

KERNEL(256, rows_norm_any, NormArgs)
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
        if ((TID & 15) == 0 && g < groups) s.r[g] = norm_factor(a, acc);
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

/* ---- elementwise ---- */

KERNEL(256, rows_add, AddArgs)
{
    pass_next();
    pass_wait();
    const int64_t i = (int64_t) BID * 256 + TID;
    if (i < a.n) st(a.y + i, f32_add(ld(a.y + i), ld(a.x + i % a.period)));
}

/* A function for all of them, so that a thread does not step over the code of the others eight times. */
template <int ACT> DEV void act_eight(float v[8], const float gate[8], const float up[8])
{
    UNROLL
    for (int i = 0; i < 8; i++) v[i] = f32_mul(f32_act(gate[i], ACT), up[i]);
}

KERNEL(256, rows_glu, GluArgs)
{
    pass_next();
    pass_wait();
    const int at = GLU_COLS / 256 * BID_Y + (TID >> 5), col = 256 * at + 8 * (TID & 31);
    const size_t row = (size_t) BID * (size_t) a.cols, gates = (size_t) BID * (size_t) (a.cols / a.width);
    const bool there = col < a.cols, eights = a.cols % 8 == 0;
    if (256 * at >= a.cols) return;                /* whole warps, and there is no barrier */
    float v[8] = { 0 }, up[8] = { 0 }, gate[8] = { 0 };
    if (there && eights) eight_of(up, a.up + row + col);
    if (there && eights && a.width == 1) eight_of(gate, a.gate + row + col);
    UNROLL_BY(1)
    for (int i = 0; i < 8 && col + i < a.cols && !(eights && a.width == 1); i++) {
        const float g = ld(a.gate + gates + (col + i) / a.width), u = ld(a.up + row + col + i);
        UNROLL
        for (int k = 0; k < 8; k++) gate[k] = k == i ? g : gate[k], up[k] = k == i ? u : up[k];
    }
    if (a.function == ACT_SILU) act_eight<ACT_SILU>(v, gate, up);
    else if (a.function == ACT_GELU_TANH) act_eight<ACT_GELU_TANH>(v, gate, up);
    else if (a.function == ACT_SIGMOID) act_eight<ACT_SIGMOID>(v, gate, up);
    else act_eight<ACT_SOFTPLUS>(v, gate, up);
    if (there && eights) {
        put_eight(a.y + row + col, v);
        if (a.sum) {
            float sum[8];
            eight_of(sum, a.sum + row + col);
            UNROLL
            for (int i = 0; i < 8; i++) sum[i] = f32_add(sum[i], v[i]);
            put_eight(a.sum + row + col, sum);
        }
    } else {
        UNROLL
        for (int i = 0; i < 8; i++) {
            if (col + i >= a.cols) break;
            st(a.y + row + col + i, v[i]);
            if (a.sum) st(a.sum + row + col + i, f32_add(ld(a.sum + row + col + i), v[i]));
        }
    }
    quantise_for_product(a.act, BID, at, v, there);
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

/* ---- copies ---- */

enum { COPY_THREADS = 512 };

/* Whole fours where a row has them. */
DEV void copy_row(float *to, const float *from, int cols)
{
    const int n = cols % 4 == 0 ? 4 : 1;
    for (int c = n * TID; c < cols; c += n * COPY_THREADS) {
        if (n == 4) st((float4 *) (to + c), ld((const float4 *) (from + c)));
        else st(to + c, ld(from + c));
    }
}

KERNEL(COPY_THREADS, rows_split, SplitArgs)
{
    pass_next();
    pass_wait();
    const float *x = a.x + (size_t) BID * (size_t) a.cols;
    float *y[2] = { a.y0 + (size_t) BID * (size_t) a.cols0, a.y1 + (size_t) BID * (size_t) a.cols1 };
    const int n = a.width % 4 == 0 ? 4 : 1;        /* columns that stay together */
    for (int i = n * TID; i < a.cols; i += n * COPY_THREADS) {
        const int group = i / a.width, at = group / 2 * a.width + i % a.width;
        float *to = (group & 1 ? y[1] : y[0]) + at;
        if (n == 4) st((float4 *) to, ld((const float4 *) (x + i)));
        else st(to, ld(x + i));
    }
}

KERNEL(COPY_THREADS, rows_join, JoinArgs)
{
    pass_next();
    pass_wait();
    float *y = a.y + (size_t) BID * (size_t) (a.cols0 + a.cols1);
    const float *x0 = a.x0 + (size_t) BID * (size_t) a.cols0, *x1 = a.x1 + (size_t) BID * (size_t) a.cols1;
    const int n = a.cols0 % 4 == 0 && a.cols1 % 4 == 0 ? 4 : 1;
    for (int i = n * TID; i < a.cols0 + a.cols1; i += n * COPY_THREADS) {
        const float *from = i < a.cols0 ? x0 + i : x1 + (i - a.cols0);
        if (n == 4) st((float4 *) (y + i), ld((const float4 *) from));
        else st(y + i, ld(from));
    }
}

KERNEL(COPY_THREADS, rows_logit_rows, PickRowsArgs)
{
    pass_next();
    pass_wait();
    if (BID >= ld(a.rows.count + 2)) return;
    const size_t cols = (size_t) a.cols;
    copy_row(a.y + (size_t) BID * cols, a.x + (size_t) ld(a.rows.logit_row + BID) * cols, a.cols);
}

KERNEL(COPY_THREADS, rows_tap, PickRowsArgs)
{
    pass_next();
    pass_wait();
    const int slice = ld(a.rows.slice + BID), slot = slice < 0 ? -1 : ld(a.rows.tap_slot + BID);
    if (slot < 0) return;
    const size_t at = ((size_t) slot * (size_t) a.n_taps + (size_t) a.part) * (size_t) a.cols;
    copy_row(ld(&a.rows.slices[slice].taps) + at, a.x + (size_t) BID * (size_t) a.cols, a.cols);
}

KERNEL(COPY_THREADS, rows_tap_get, PickRowsArgs)
{
    pass_next();
    pass_wait();
    const int slice = ld(a.rows.slice + BID), slot = slice < 0 ? -1 : ld(a.rows.tap_slot + BID);
    if (slot < 0) return;
    copy_row(a.y + (size_t) BID * (size_t) a.cols,
             ld(&a.rows.slices[slice].taps) + (size_t) slot * (size_t) a.cols, a.cols);
}

/* ---- rotation ---- */

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
