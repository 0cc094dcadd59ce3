/* rows.cu - kernels that read rows and write rows: norms, elementwise functions, rotation. */
#include "backend/gpu/gpu_math.h"
#include "backend/gpu/gpu_mathd.h"
#include "backend/gpu/gpu_quantise.h"

/* Columns c .. c + N - 1 of a row, 0 from `cols` on; c is a multiple of N, 4 or 8. A row of whole fours is read so. */
template <int N> DEV void columns_of(float v[N], const float *row, int c, int cols)
{
    UNROLL
    for (int i = 0; i < N; i++) v[i] = 0;
    if (cols % 4 == 0) {
        UNROLL
        for (int i = 0; i < N; i += 4) {
            if (c + i >= cols) break;
            const float4 f = ld((const float4 *) (row + c + i));
            v[i] = f.x, v[i + 1] = f.y, v[i + 2] = f.z, v[i + 3] = f.w;
        }
        return;
    }
    UNROLL
    for (int i = 0; i < N; i++)
        if (c + i < cols) v[i] = ld(row + c + i);
}

template <int N> DEV void put_columns(float *row, int c, int cols, const float v[N])
{
    if (cols % 4 == 0) {
        UNROLL
        for (int i = 0; i < N; i += 4)
            if (c + i < cols) st((float4 *) (row + c + i), float4{v[i], v[i + 1], v[i + 2], v[i + 3]});
        return;
    }
    UNROLL
    for (int i = 0; i < N; i++)
        if (c + i < cols) st(row + c + i, v[i]);
}

/* By all threads of a block. */
template <int THREADS> DEV void copy_row(float *to, const float *from, int cols)
{
    for (int c = 4 * TID; c < cols; c += 4 * THREADS) {
        float v[4];
        columns_of<4>(v, from, c, cols);
        put_columns<4>(to, c, cols, v);
    }
}

/* ---- norms ---- */

enum { NORM_THREADS = 1024, NORM_COLS = 10240 };
struct NormShared { alignas(16) float x[NORM_COLS], r[NORM_GROUPS]; };

/* Value i of a row after the addition; those beyond the shared memory come from the row itself. */
DEV float norm_value(const NormShared &s, const float *x, int i) { return i < NORM_COLS ? s.x[i] : ld(x + i); }

/* Quantises columns 256 at .. of a row for the product that reads it; lane l has columns 8 l .. in v. */
DEV void quantise_for_product(const ActRows act[2], int row, int at, const float v[8], bool there)
{
    if (act[FORM_32].code) quantise_columns<FORM_32>(act[FORM_32], row, at, v, there);
    if (act[FORM_256].code) quantise_columns<FORM_256>(act[FORM_256], row, at, v, there);
}

/* What columns col .. col + 7 are multiplied by; nothing is without weights. */
DEV void norm_weights(float w[8], const NormArgs &a, int col)
{
    if (!a.w || col >= a.cols) return;
    const float *at = a.w + col % a.period;
    UNROLL
    for (int i = 0; i < 8; i += 4) {
        if (a.period % 8 == 0 && a.cols % 8 == 0) {
            const float4 f = ld_weight((const float4 *) (at + i));
            w[i] = f.x, w[i + 1] = f.y, w[i + 2] = f.z, w[i + 3] = f.w;
            continue;
        }
        UNROLL
        for (int j = i; j < i + 4; j++)
            if (col + j < a.cols) w[j] = ld_weight(a.w + (col + j) % a.period);
    }
}

KERNEL(NORM_THREADS, rows_norm, NormArgs)
{
    SHARED(NormShared, s);
    const int groups = a.cols / a.group, own = 8 * TID;
    float w[8] = { 0 }, z[8] = { 0 };
    norm_weights(w, a, own);
    pass_next();
    pass_wait();
    const size_t row = (size_t) BID * (size_t) a.cols;
    float *x = a.x + row;
    if (a.z) columns_of<8>(z, a.z + row, own, a.cols);
    for (int c = 4 * TID; c < a.cols; c += 4 * NORM_THREADS) {
        float v[4], dx[4];
        columns_of<4>(v, x, c, a.cols);
        if (a.dx) {
            columns_of<4>(dx, a.dx + row, c, a.cols);
            UNROLL
            for (int i = 0; i < 4; i++) v[i] = f32_add(v[i], dx[i]);
            put_columns<4>(x, c, a.cols, v);
        }
        if (c < NORM_COLS) *(float4 *) (s.x + c) = float4{v[0], v[1], v[2], v[3]};
    }
    sync_block();
    for (int first = TID >> 5 << 1; first < groups; first += NORM_THREADS / 16) {      /* 16 lanes have a group */
        const int g = first + (TID >> 4 & 1), from = g * a.group, lane = TID & 15, n = g < groups ? a.group : 0;
        float acc = 0;
        if (from + n <= NORM_COLS) {
            UNROLL_BY(16)
            for (int i = lane; i < n; i += 16) acc = f32_fma(s.x[from + i], s.x[from + i], acc);
        } else {
            for (int i = lane; i < n; i += 16) {
                const float v = norm_value(s, x, from + i);
                acc = f32_fma(v, v, acc);
            }
        }
        acc = sum_of_16(acc);
        const float mean = f32_div(acc, f32_of_int(a.group));
        if (lane == 0 && n) s.r[g] = f32_div(1.0f, f32_sqrt(f32_add(mean, a.eps)));
    }
    sync_block();
    for (int at = TID >> 5; 256 * at < a.cols; at += NORM_THREADS / 32) {      /* a warp has 256 columns */
        const int col = 256 * at + 8 * (TID & 31);
        float v[8];
        if (col != own) {
            norm_weights(w, a, col);
            if (a.z) columns_of<8>(z, a.z + row, col, a.cols);
        }
        UNROLL
        for (int i = 0; i < 8; i++) {
            const int c = col + i;
            v[i] = 0;
            if (c >= a.cols) continue;
            v[i] = f32_mul(norm_value(s, x, c), s.r[(a.group % 8 == 0 ? col : c) / a.group]);
            if (a.w) v[i] = f32_mul(v[i], w[i]);
            if (a.z) v[i] = f32_mul(v[i], f32_silu(z[i]));
        }
        put_columns<8>(a.y + row, col, a.cols, v);
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

KERNEL(256, rows_glu, GluArgs)
{
    pass_next();
    pass_wait();
    const int at = GLU_COLS / 256 * BID_Y + (TID >> 5), col = 256 * at + 8 * (TID & 31);
    const size_t row = (size_t) BID * (size_t) a.cols, gates = (size_t) BID * (size_t) (a.cols / a.width);
    if (256 * at >= a.cols) return;                /* whole warps, and there is no barrier */
    float v[8], up[8], gate[8], sum[8] = { 0 };
    columns_of<8>(up, a.up + row, col, a.cols);
    if (a.width == 1) columns_of<8>(gate, a.gate + row, col, a.cols);
    if (a.sum) columns_of<8>(sum, a.sum + row, col, a.cols);
    UNROLL
    for (int i = 0; i < 8; i++) {
        v[i] = 0;
        if (col + i >= a.cols) continue;
        const float g = a.width == 1 ? gate[i] : ld(a.gate + gates + (col + i) / a.width);
        v[i] = f32_mul(f32_act(g, a.function), up[i]);
        sum[i] = f32_add(sum[i], v[i]);
    }
    put_columns<8>(a.y + row, col, a.cols, v);
    if (a.sum) put_columns<8>(a.sum + row, col, a.cols, sum);
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

/* ---- copies ---- */

enum { COPY_THREADS = 512 };

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
    copy_row<COPY_THREADS>(a.y + (size_t) BID * cols, a.x + (size_t) ld(a.rows.logit_row + BID) * cols, a.cols);
}

KERNEL(COPY_THREADS, rows_tap, PickRowsArgs)
{
    pass_next();
    pass_wait();
    const int slice = ld(a.rows.slice + BID), slot = slice < 0 ? -1 : ld(a.rows.tap_slot + BID);
    if (slot < 0) return;
    const size_t at = ((size_t) slot * (size_t) a.n_taps + (size_t) a.part) * (size_t) a.cols;
    copy_row<COPY_THREADS>(ld(&a.rows.slices[slice].taps) + at, a.x + (size_t) BID * (size_t) a.cols, a.cols);
}

KERNEL(COPY_THREADS, rows_tap_get, PickRowsArgs)
{
    pass_next();
    pass_wait();
    const int slice = ld(a.rows.slice + BID), slot = slice < 0 ? -1 : ld(a.rows.tap_slot + BID);
    if (slot < 0) return;
    copy_row<COPY_THREADS>(a.y + (size_t) BID * (size_t) a.cols,
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
