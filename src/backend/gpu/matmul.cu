/* matmul.cu - rows of weights decoded, rows of x quantised, products with weights that are floats. */
#include "backend/gpu/gpu_quantise.h"
#include "backend/gpu/gpu_unpack.h"

/* ---- embed ---- */

KERNEL(256, matmul_embed, EmbedArgs)
{
    pass_next();
    pass_wait();
    const int id = ld(a.ids + BID);
    if (id >= 0 && id < a.table.rows) {
        float *x = a.x + (size_t) BID * (size_t) a.table.cols;
        for (int i = TID; i < a.table.cols; i += 256) st(x + i, table_value(a.table, id, i));
    } else if (TID == 0 && ld(&a.failed->code) == GPU_FINE) {
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
    float v[8];
    UNROLL
    for (int i = 0; i < 8; i += 4) {
        const float4 f = there ? ld((const float4 *) (a.x + (size_t) row * (size_t) a.cols + at + i))
                               : float4{0, 0, 0, 0};
        v[i] = f.x, v[i + 1] = f.y, v[i + 2] = f.z, v[i + 3] = f.w;
    }
    if (a.act[FORM_32].code) quantise_columns<FORM_32>(a.act[FORM_32], row, BID, v, there);
    if (a.act[FORM_256].code) quantise_columns<FORM_256>(a.act[FORM_256], row, BID, v, there);
}

/* ---- weights that are floats ---- */

enum { OF_F32, OF_F16, OF_BF16 };

/* A block per 16 weight rows and 8 rows of x, a thread per output. */
template <int OF> DEV void floats(const MatmulArgs &a)
{
    pass_next();
    pass_wait();
    const int lane = TID & 15, col = BID * 8 + (TID >> 4);
    int group = BID_Y;
    ProductArgs p = a.product[0];
    UNROLL
    for (int j = 1; j < MATMUL_MAX; j++)
        if (j < a.n_products && group >= a.product[j].tile0) p = a.product[j];
    group -= p.tile0;
    if (col >= a.n) return;
    const size_t size = OF == OF_F32 ? 4 : 2, group_bytes = ((size_t) a.cols * 16 * size + 63) / 64 * 64;
    const uint8_t *w = p.w + (size_t) group * group_bytes;
    const float *x = a.x + (size_t) col * (size_t) a.cols;
    float acc = 0;
    for (int k = 0; k < a.cols; k++) {
        const int at = 16 * k + lane;
        float v;
        if (OF == OF_F32) v = ld_weight((const float *) w + at);
        else if (OF == OF_F16) v = f32_of_half(ld_weight((const uint16_t *) w + at));
        else v = f32_of_bits((uint32_t) ld_weight((const uint16_t *) w + at) << 16);
        acc = f32_fma(v, ld(x + k), acc);
    }
    if (group * 16 + lane < p.rows) st(p.y + (size_t) col * (size_t) p.stride + group * 16 + lane, acc);
}

KERNEL(128, matmul_f32, MatmulArgs) { floats<OF_F32>(a); }
KERNEL(128, matmul_f16, MatmulArgs) { floats<OF_F16>(a); }
KERNEL(128, matmul_bf16, MatmulArgs) { floats<OF_BF16>(a); }
