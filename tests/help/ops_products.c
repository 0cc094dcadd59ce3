/* ops_products.c - products with weights of every type, for every number of rows that kernels may distinguish, with
 * values and scales at the ends of what floats can be. */
#include <math.h>
#include <string.h>

#include "blocks.h"
#include "ops_cases.h"

static const Type types[] = { T_Q4_K, T_Q6_K, T_Q8_0, T_F32, T_F16, T_BF16, T_Q4_0, T_Q4_1, T_Q5_0, T_Q5_1, T_IQ4_NL,
                              T_Q2_K, T_Q3_K, T_Q5_K, T_IQ4_XS, T_MXFP4, T_IQ2_XXS, T_IQ2_XS, T_IQ2_S,
                              T_IQ3_XXS, T_IQ3_S, T_NVFP4 };
static const int32_t counts[] = { 1, 2, 3, 5, 8, 9, 16, 17, 31, 32, 33, 64, 70, 200 };
enum { TYPES = sizeof types / sizeof *types, COUNTS = sizeof counts / sizeof *counts };
_Static_assert(TYPES * COUNTS == PRODUCT_ROUNDS, "the table of cases has a round for each");

/* A half of a block: mostly of a sane size; zero, subnormal, or no number at all. */
static uint16_t odd_half(uint64_t *seed)
{
    static const uint16_t odd[] = { 0, 0x8000, 1, 0x83ff, 0x7bff, 0x7c00, 0xfc00, 0x7e00 };
    if (h_pick(seed, 100) == 0) return odd[h_pick(seed, sizeof odd / sizeof *odd)];
    return half_from_float(((float) h_pick(seed, 2001) - 1000) * 2e-5f);
}

/* rows x cols of random blocks. Floats are normal, or the ends of their type. */
uint8_t *ops_odd_weights(Run *r, Type t, int32_t rows, int32_t cols, uint64_t *seed)
{
    const TypeInfo *info = type_info(t);
    const size_t blocks = (size_t) rows * (size_t) (cols / info->block), bytes = (size_t) info->bytes;
    uint8_t *w = run_host(r, blocks * bytes);
    int at_d, at_dmin;
    block_halves(t, &at_d, &at_dmin);
    for (size_t i = 0; i < blocks; i++) {
        uint8_t *b = w + i * bytes;
        const float f = h_pick(seed, 5000) == 0 ? 0x1p-140f : (float) (h_pick(seed, 2001) - 1000) * 1e-3f;
        const uint16_t narrow = t == T_F16 ? half_from_float(f) : bf16_from_float(f);
        if (t == T_F32) memcpy(b, &f, sizeof f);
        else if (info->block == 1) memcpy(b, &narrow, sizeof narrow);
        else {
            for (size_t k = 0; k < bytes; k++) b[k] = (uint8_t) h_pick(seed, 256);
            const uint16_t d = odd_half(seed), dmin = odd_half(seed);
            if (t == T_MXFP4) b[0] = (uint8_t) (h_pick(seed, 100) == 0 ? h_pick(seed, 256) : 110 + h_pick(seed, 15));
            else if (t != T_NVFP4) memcpy(b + at_d, &d, sizeof d);     /* whose every byte is a scale */
            if (at_dmin >= 0) memcpy(b + at_dmin, &dmin, sizeof dmin);
        }
    }
    return w;
}

/* Rows of very different size, with stretches of zeros, and in some rows subnormals, infinities, NaNs. */
float *ops_odd_rows(Run *r, int32_t n, int32_t cols, uint64_t *seed)
{
    float *x = run_host(r, sizeof *x * (size_t) n * (size_t) cols);
    for (int32_t i = 0; i < n; i++) {
        float *row = x + (int64_t) i * cols;
        const int32_t kind = h_pick(seed, 12), from = h_pick(seed, cols);
        const float by = kind == 0 ? 0x1p-135f : kind == 1 ? 0x1p-100f : kind == 2 ? 0x1p110f
                       : ldexpf(1, h_pick(seed, 18) - 12);
        for (int32_t k = 0; k < cols; k++) row[k] = by * ((float) h_pick(seed, 65537) - 32768) / 32768;
        for (int32_t k = 0; k < cols && k < 700; k++)
            if (kind == 3 || kind == 4) row[(from + k) % cols] = kind == 3 ? 0.0f : -0.0f;
        if (kind == 5) row[from] = INFINITY;
        if (kind == 6) row[from] = -INFINITY;
        if (kind == 7) row[from] = NAN;
    }
    return x;
}

static Tensor odd_weight(Run *r, Type t, int32_t rows, int32_t cols, uint64_t *seed)
{
    const uint8_t *file = ops_odd_weights(r, t, rows, cols, seed);
    Tensor w = h_tensor(t, rows, cols, run_memory(r, r->b->weight_bytes(r->b, t, rows, cols), NULL));
    r->b->upload(r->b, &w, 0, file, 0, rows);
    const int32_t id[2] = { h_pick(seed, rows), h_pick(seed, rows) };
    Tensor e = mat_blank(r, 2, cols), ids = mat_ids(r, 1, 2, id);
    r->b->embed(r->b, &e, &w, &ids);
    run_give(r, "decoded rows", mat_get(r, &e), 2 * (int64_t) cols);
    return w;
}

/* Up to four products of one input: the first has the round's type, the others any that the columns allow, half of them
 * of those that published mixes of types put side by side. */
void ops_products(Run *r, const Turn *t)
{
    static const int32_t heights[] = { 1, 16, 17, 37, 64, 70, 131 };
    const Type first = types[t->round % TYPES];
    const int32_t n = counts[t->round / TYPES], block = type_info(first)->block;
    uint64_t seed = h_mix((uint64_t) t->round + 77);
    const int32_t products = 1 + h_pick(&seed, MATMUL_MAX), most = n > 64 ? 3 : n > 16 ? 5 : 9;
    const int32_t cols = block == 1 ? 1 + h_pick(&seed, 300)
                       : block * (1 + h_pick(&seed, block < 256 ? 128 / block * most : most));
    Mat x = mat_of(r, n, cols, ops_odd_rows(r, n, cols, &seed));
    Tensor w[MATMUL_MAX], y[MATMUL_MAX], *py[MATMUL_MAX];
    const Tensor *pw[MATMUL_MAX];
    for (int32_t j = 0; j < products; j++) {
        static const Type mixed[] = { T_Q4_K, T_Q5_K, T_Q6_K, T_Q8_0 };
        Type type = !j ? first : h_pick(&seed, 2) ? mixed[h_pick(&seed, 4)] : types[h_pick(&seed, TYPES)];
        if (cols % type_info(type)->block) type = first;
        w[j] = odd_weight(r, type, heights[h_pick(&seed, sizeof heights / sizeof *heights)], cols, &seed);
        y[j] = mat_blank(r, n, w[j].rows);
        pw[j] = &w[j], py[j] = &y[j];
    }
    r->b->matmul(r->b, products, py, pw, &x.t);
    for (int32_t j = 0; j < products; j++)
        run_give(r, type_info(w[j].type)->name, mat_get(r, &y[j]), (int64_t) n * w[j].rows);
}

/* Products right behind what makes their rows, which a backend may do at once; sometimes the rows change in between. */
void ops_products_behind(Run *r, const Turn *t)
{
    enum { NORM, ADD_NORM, HEAD_NORM, GATED_NORM, GLU, GATE, GATE_GROUPS, WAYS };
    static const int32_t wide[] = { 256, 2304, 64, 10496 };
    const int32_t way = t->round % WAYS, cols = wide[t->round / WAYS % 4], n = 1 + t->round % 5, head = 32;
    uint64_t seed = h_mix((uint64_t) t->round + 7);
    const bool blocks = cols % 256 == 0;
    const Type type[2] = { blocks && t->round % 2 ? T_Q4_K : T_Q8_0, blocks ? T_Q6_K : T_Q5_1 };
    Mat x = mat_of(r, n, cols, ops_odd_rows(r, n, cols, &seed)), z = mat_make(r, n, cols, seed, 3);
    Mat v = mat_make(r, 1, cols, seed + 1, 2), few = mat_make(r, n, cols / head, seed + 2, 3);
    Tensor made = mat_blank(r, n, cols), *rows = way == NORM || way == ADD_NORM || way == GLU ? &made : &x.t;
    const Tensor w = odd_weight(r, type[0], 37, cols, &seed), u = odd_weight(r, type[1], 16, cols, &seed);
    Tensor y[2] = { mat_blank(r, n, 37), mat_blank(r, n, 16) };
    switch (way) {
    case NORM:       r->b->norm(r->b, &made, &x.t, &v.t, 1e-6f); break;
    case ADD_NORM:   r->b->add_norm(r->b, &made, &x.t, &z.t, NULL, 1e-6f); break;
    case HEAD_NORM:  r->b->head_norm(r->b, &x.t, &v.t, head, 1e-6f); break;
    case GATED_NORM: r->b->gated_norm(r->b, &x.t, &v.t, &z.t, head, 1e-6f); break;
    case GLU:        r->b->glu(r->b, &made, &z.t, &x.t, (Act) (t->round % 4)); break;
    case GATE:       r->b->gate(r->b, &x.t, &z.t, ACT_SIGMOID, 1); break;
    default:         r->b->gate(r->b, &x.t, &few.t, ACT_SIGMOID, head); break;
    }
    if (t->round % 3 == 0) r->b->add(r->b, rows, &z.t);
    r->b->matmul(r->b, 2, (Tensor *[]) { &y[0], &y[1] }, (const Tensor *[]) { &w, &u }, rows);
    run_give(r, "rows", mat_get(r, rows), (int64_t) n * cols);
    for (int32_t j = 0; j < 2; j++) run_give(r, "products", mat_get(r, &y[j]), (int64_t) n * y[j].cols);
}
