/* matmul.cu - rows of weights decoded, rows of x quantised, products with weights that are floats. */
#include "backend/gpu/gpu_quantise.h"
#include "backend/gpu/gpu_unpack.h"

/* ---- embed ---- */

/* A block per row and 256 columns: every value takes several loads, so a thread has one. */
KERNEL(256, matmul_embed, EmbedArgs)
{
    pass_next();
    pass_wait();
    const int id = ld(a.ids + BID);
    if (id >= 0 && id < a.table.rows) {
        const int i = BID_Y * 256 + TID;
        if (i < a.table.cols) st(a.x + (size_t) BID * (size_t) a.table.cols + i, table_value(a.table, id, i));
    } else if (TID == 0 && BID_Y == 0 && ld(&a.failed->code) == GPU_FINE) {
        bool first = true;                         /* the first of the rows that are wrong is told */
        for (int i = 0; i < BID; i++) first = first && ld(a.ids + i) >= 0 && ld(a.ids + i) < a.table.rows;
        if (first) {
            st(&a.failed->value, id), st(&a.failed->limit, a.table.rows - 1);
            st(&a.failed->code, GPU_BAD_TOKEN);
        }
    }
}

/* ---- rows of x ---- */

KERNEL(256, matmul_quantise, QuantiseArgs)
{
    pass_next();
    pass_wait();
    const int lane = TID & 31, row = BID_Y * 8 + (TID >> 5), at = 256 * BID + 8 * lane;
    if (row >= a.n) return;                        /* whole warps, and there is no barrier */
    const bool there = at < a.cols;
    float v[8] = { 0 };
    if (there) eight_of(v, a.x + (size_t) row * (size_t) a.cols + at);
    if (a.act[FORM_32].code) quantise_columns<FORM_32>(a.act[FORM_32], row, BID, v, there);
    if (a.act[FORM_256].code) quantise_columns<FORM_256>(a.act[FORM_256], row, BID, v, there);
}

/* ---- weights that are floats ---- */

enum { OF_F32, OF_F16, OF_BF16 };

/* A block per 16 weight rows and 8 rows of x, a thread per output: a chain of additions as long as the row, so that all
 * else has to be there in time. */
enum { FLOATS_COLS = 64, FLOATS_STAGES = 6 };
template <int OF> struct FloatsShared {
    enum { SIZE = OF == OF_F32 ? 4 : 2 };
    alignas(16) uint8_t w[FLOATS_STAGES][FLOATS_COLS * 16 * SIZE];
    alignas(16) float x[FLOATS_STAGES][8][FLOATS_COLS + 4];
};

template <int OF> DEV void stage_floats(FloatsShared<OF> &s, const uint8_t *w, int part, int cols)
{
    const int left = cols - part * FLOATS_COLS, bytes = (left < FLOATS_COLS ? left : FLOATS_COLS) * 16 * s.SIZE;
    for (int i = 16 * TID; i < bytes; i += 16 * 128)
        copy16_async(s.w[part % FLOATS_STAGES] + i, w + (size_t) part * sizeof s.w[0] + i);
}

template <int OF> DEV void stage_x(FloatsShared<OF> &s, const MatmulArgs &a, int part)
{
    const int col = TID >> 4, at = 4 * (TID & 15), k = part * FLOATS_COLS + at, row = BID * 8 + col;
    const float *x = a.x + (size_t) row * (size_t) a.cols + k;
    float *to = s.x[part % FLOATS_STAGES][col] + at;
    if (row >= a.n) return;
    if (a.cols % 4 == 0) {
        if (k < a.cols) copy16_async(to, x);
    } else {
        for (int i = 0; i < 4; i++)
            if (k + i < a.cols) to[i] = ld(x + i);
    }
}

template <int OF> DEV float float_weight(const FloatsShared<OF> &s, int part, int at)
{
    if (OF == OF_F32) return ((const float *) s.w[part % FLOATS_STAGES])[at];
    const uint32_t half = ((const uint16_t *) s.w[part % FLOATS_STAGES])[at];
    return OF == OF_F16 ? f32_of_half(half) : f32_of_bits(half << 16);
}

template <int OF> DEV void floats(const MatmulArgs &a)
{
    SHARED(FloatsShared<OF>, s);
    const int lane = TID & 15, col = TID >> 4, parts = (a.cols + FLOATS_COLS - 1) / FLOATS_COLS;
    int group = BID_Y;
    ProductArgs p = a.product[0];
    UNROLL
    for (int j = 1; j < MATMUL_MAX; j++)
        if (j < a.n_products && group >= a.product[j].tile0) p = a.product[j];
    group -= p.tile0;
    const size_t group_bytes = ((size_t) a.cols * 16 * s.SIZE + 63) / 64 * 64;
    const uint8_t *w = p.w + (size_t) group * group_bytes;
    for (int i = 0; i < FLOATS_STAGES - 1; i++) stage_floats(s, w, i, a.cols);
    pass_next();
    pass_wait();
    for (int i = 0; i < FLOATS_STAGES - 1; i++) {
        stage_x(s, a, i);
        copy_commit();
    }
    float acc = 0;
    for (int part = 0; part < parts; part++) {
        copy_wait<FLOATS_STAGES - 2>();
        sync_block();                              /* this part is there, and nobody reads the one before any more */
        stage_floats(s, w, part + FLOATS_STAGES - 1, a.cols);
        stage_x(s, a, part + FLOATS_STAGES - 1);
        copy_commit();
        const float *x = s.x[part % FLOATS_STAGES][col];
        const int left = a.cols - part * FLOATS_COLS, n = left < FLOATS_COLS ? left : FLOATS_COLS;
        UNROLL_BY(8)
        for (int k = 0; k < n; k++) acc = f32_fma(float_weight(s, part, 16 * k + lane), x[k], acc);
    }
    copy_wait<0>();
    const int row = BID * 8 + col;
    if (row < a.n && group * 16 + lane < p.rows) st(p.y + (size_t) row * (size_t) p.stride + group * 16 + lane, acc);
}

KERNEL(128, matmul_f32, MatmulArgs) { floats<OF_F32>(a); }
KERNEL(128, matmul_f16, MatmulArgs) { floats<OF_F16>(a); }
KERNEL(128, matmul_bf16, MatmulArgs) { floats<OF_BF16>(a); }
