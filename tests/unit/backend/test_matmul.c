/* test_matmul.c - packing, the quantised product and its levels. The reference here follows the formula in matmul.h and
 * shares no code with the kernels: it learns the integer codes of a block by decoding a copy whose half-precision
 * scales were replaced by 1 and 0. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cpu/matmul.h"
#include "backend/cpu/matmul_layout.h"
#include "blocks.h"
#include "part.h"

static const Type all[] = {T_F32, T_F16, T_BF16, T_Q8_0, T_Q4_0, T_Q4_1, T_Q5_0, T_Q5_1, T_IQ4_NL,
                           T_MXFP4, T_NVFP4, T_Q2_K, T_Q3_K, T_Q4_K, T_Q5_K, T_Q6_K, T_IQ4_XS,
                           T_IQ2_XXS, T_IQ2_XS, T_IQ2_S, T_IQ3_XXS, T_IQ3_S};
enum { N_TYPES = sizeof all / sizeof *all };

static uint64_t seed;
static uint32_t rnd(void)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t) (seed >> 33);
}
static int between(int lo, int hi) { return lo + (int) (rnd() % (uint32_t) (hi - lo + 1)); }
static float uniform(void) { return (float) rnd() / 0x1p30f - 1.0f; }

static void *get(size_t n)
{
    void *p = aligned_alloc(64, (n + 127) / 64 * 64);
    assert_non_null(p);
    memset(p, 0xa5, (n + 127) / 64 * 64);
    return p;
}

/* rows x cols of random blocks with sane scales. */
static uint8_t *make_weights(Type t, int rows, int cols)
{
    const TypeInfo *info = type_info(t);
    size_t blocks = (size_t) rows * (size_t) (cols / info->block);
    uint8_t *w = get(blocks * (size_t) info->bytes);
    for (size_t i = 0; i < blocks; i++) {
        uint8_t *b = w + i * (size_t) info->bytes;
        float value = uniform();
        uint16_t half = t == T_F16 ? half_from_float(value) : bf16_from_float(value);
        if (t == T_F32) memcpy(b, &value, 4);
        else if (info->block == 1) memcpy(b, &half, 2);
        else {
            int d, dmin;
            for (int j = 0; j < info->bytes; j++) b[j] = (uint8_t) rnd();
            block_halves(t, &d, &dmin);
            if (t != T_NVFP4) block_put(t, b + d, uniform() * 0.02f);      /* every byte is a scale */
            if (dmin >= 0) block_put(t, b + dmin, uniform() * 0.02f);
        }
    }
    return w;
}

static float *make_input(int n, int cols)
{
    float *x = get((size_t) n * (size_t) cols * sizeof *x);
    for (int i = 0; i < n; i++) {
        float size = exp2f((float) between(-12, 6));
        for (int k = 0; k < cols; k++)
            x[(size_t) i * (size_t) cols + (size_t) k] = uniform() * size * (rnd() % 50 == 0 ? 20 : 1);
    }
    return x;
}

/* The reference for one output value, and its bound on the distance to the exact dot of decoded weights and x. */
static float reference(double *exact, double *bound, Type t, const uint8_t *row, const float *x, int cols)
{
    const TypeInfo *info = type_info(t);
    int block = info->block == 1 ? 1 : info->block, at_d, at_dmin;
    float *w = get((size_t) cols * sizeof *w), acc = 0;
    quant_decode(w, t, row, cols);
    *exact = *bound = 0;
    for (int k = 0; k < cols; k++) *exact += (double) w[k] * x[k];
    if (block == 1) {
        for (int k = 0; k < cols; k++) {
            acc = fmaf(w[k], x[k], acc);
            *bound += fabs((double) w[k] * x[k]);
        }
        *bound *= (cols + 1) * 0x1p-24;
        free(w);
        return acc;
    }
    block_halves(t, &at_d, &at_dmin);
    const int together = t == T_NVFP4 ? 32 : block, each = t == T_NVFP4 ? 16 : block;      /* columns of da, of d */
    double sizes = 0, steps = 0;
    for (int k = 0; k < cols; k += together, x += together, row += k % block ? 0 : info->bytes) {
        uint8_t copy[256];
        float code[256], min[256], dmin = 0;
        const int in = k % block;
        memcpy(copy, row, (size_t) info->bytes);
        block_put(t, copy + at_d, block_unit(t));
        if (at_dmin >= 0) {
            dmin = block_get(t, row + at_dmin);
            block_put(t, copy + at_dmin, 0);
        }
        quant_decode(code, t, copy, block);        /* scale * code, exact */
        if (at_dmin >= 0) {
            block_put(t, copy + at_d, 0);
            block_put(t, copy + at_dmin, 1);
            quant_decode(min, t, copy, block);     /* -min, or 1 where m is added */
        }
        float amax = 0;
        for (int i = 0; i < together; i++) amax = fabsf(x[i]) > amax ? fabsf(x[i]) : amax;
        float da = amax / 127.0f, up = 127.0f / amax;
        for (int part = 0; part < together; part += each) {
            const float d = block_get(t, row + at_d + (in + part) / each) / block_unit(t);
            int64_t isum = 0, msum = 0;
            for (int i = part; i < part + each; i++) {
                int q = amax > 0 ? (int) nearbyintf(x[i] * up) : 0;
                assert_in_range(q + 127, 0, 254);
                isum += (int64_t) code[in + i] * q;
                if (at_dmin >= 0) msum += (int64_t) min[i] * q;
                double big = fabs((double) d * code[in + i]) + (at_dmin >= 0 ? fabs((double) dmin * min[i]) : 0);
                steps += big * da * 0.5001;        /* |x - da q| <= da / 2 and a rounding of x * up */
                sizes += big * (fabs((double) x[i]) + da);
            }
            if (amax == 0) da = 0;
            acc = fmaf(d * da, (float) isum, acc);
            if (at_dmin >= 0) acc = fmaf(dmin * da, (float) msum, acc);
        }
    }
    *bound = steps + sizes * (2 * cols / each + 8) * 0x1p-24;
    free(w);
    return acc;
}

typedef struct { Type t; int n, rows, cols; uint8_t *src, *packed; float *x; void *act; } Case;

static void case_make(Case *c, Type t, int n, int rows, int cols)
{
    *c = (Case) {.t = t, .n = n, .rows = rows, .cols = cols};
    size_t bytes = matmul_packed_bytes(t, rows, cols);
    assert_true(bytes > 0 && bytes % 64 == 0);
    c->src = make_weights(t, rows, cols);
    c->packed = get(bytes);
    int groups = (rows + WEIGHT_GROUP - 1) / WEIGHT_GROUP, half = groups / 2;
    matmul_pack(c->packed, t, c->src, rows, cols, half, groups);
    matmul_pack(c->packed, t, c->src, rows, cols, 0, half);
    c->x = make_input(n, cols);
    c->act = get(matmul_act_bytes(matmul_act_form(t), n, cols));
}

static void case_free(Case *c)
{
    free(c->src);
    free(c->packed);
    free(c->x);
    free(c->act);
}

static size_t case_row_bytes(const Case *c) { return type_row_bytes(c->t, c->cols); }

/* y [n, stride] by one level, groups divided at `cut`; the values between rows and stride must stay untouched. */
static float *case_run(Case *c, const MatmulKernels *k, size_t stride, int cut)
{
    ActForm form = matmul_act_form(c->t);
    const void *act = c->x;
    if (form != ACT_F32) {
        size_t bytes = matmul_act_bytes(form, c->n, c->cols);
        memset(c->act, 0x5a, bytes);
        int half = c->n / 2;
        k->quantise(c->act, form, c->x, c->n, c->cols, half, c->n);
        k->quantise(c->act, form, c->x, c->n, c->cols, 0, half);
        act = c->act;
    }
    float *y = get((size_t) c->n * stride * sizeof *y);
    int groups = (c->rows + WEIGHT_GROUP - 1) / WEIGHT_GROUP;
    k->product(y, stride, c->t, c->packed, act, c->n, c->rows, c->cols, cut, groups);
    k->product(y, stride, c->t, c->packed, act, c->n, c->rows, c->cols, 0, cut);
    return y;
}

static int random_cols(Type t)
{
    int block = type_info(t)->block;
    if (block == 1) return between(1, 300);
    return block * between(1, block < 256 ? 640 / block : 6);
}

/* -- tests --------------------------------------------------------------------------------------------------------- */

static void test_sizes(void **state)
{
    (void) state;
    assert_int_equal(matmul_packed_bytes(T_I32, 16, 256), 0);
    assert_int_equal(matmul_packed_bytes(T_Q4_K, 16, 255), 0);
    assert_int_equal(matmul_packed_bytes(T_Q4_K, 16, 128), 0);
    assert_int_equal(matmul_packed_bytes(T_Q8_0, 16, 33), 0);
    assert_int_equal(matmul_packed_bytes(T_Q8_0, 0, 32), 0);
    assert_int_equal(matmul_packed_bytes(T_Q8_0, 16, 0), 0);
    assert_int_equal(matmul_packed_bytes(T_Q8_0, -1, 32), 0);
    assert_int_equal(matmul_packed_bytes(T_COUNT, 16, 256), 0);
    /* types with fast kernels take as much memory as in the file, Q6_K one percent more */
    const Type same[] = {T_Q8_0, T_Q4_0, T_Q4_1, T_Q5_0, T_Q5_1, T_IQ4_NL, T_Q4_K, T_Q5_K, T_Q2_K, T_F32, T_F16,
                         T_BF16};
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        assert_int_equal(matmul_packed_bytes(same[i], 2560, 9216), 2560 * type_row_bytes(same[i], 9216));
    }
    assert_true(matmul_packed_bytes(T_Q6_K, 2560, 9216) < 1.011 * 2560 * (double) type_row_bytes(T_Q6_K, 9216));
    /* nor do the small matrices of experts pad */
    assert_int_equal(matmul_packed_bytes(T_Q3_K, 2048, 512), 2048 * 2 * 116);
    assert_int_equal(matmul_packed_bytes(T_IQ2_XXS, 2048, 512), 2048 * 2 * 116);
    assert_int_equal(matmul_packed_bytes(T_IQ3_S, 2048, 512), 2048 * 2 * 140);
    assert_int_equal(matmul_packed_bytes(T_MXFP4, 2048, 512), 2048 * 16 * 18);
    assert_int_equal(matmul_packed_bytes(T_NVFP4, 2816, 704), 2816 * 11 * 36);
    assert_int_equal(matmul_packed_bytes(T_NVFP4, 16, 96), 0);
    assert_int_equal(matmul_packed_bytes(T_Q4_K, 17, 512), matmul_packed_bytes(T_Q4_K, 32, 512));
}

static void test_unpack(void **state)
{
    (void) state;
    seed = 1;
    for (int i = 0; i < N_TYPES; i++) {
        for (int round = 0; round < 6; round++) {
            int rows = between(1, 40), cols = random_cols(all[i]);
            Case c;
            case_make(&c, all[i], 1, rows, cols);
            float *want = get((size_t) cols * sizeof *want), *got = get((size_t) cols * sizeof *got);
            for (int r = 0; r < rows; r++) {
                quant_decode(want, c.t, c.src + (size_t) r * case_row_bytes(&c), cols);
                matmul_unpack_row(got, c.t, c.packed, rows, cols, r);
                if (memcmp(want, got, (size_t) cols * sizeof *want))
                    fail_msg("%s row %d of %d, %d columns", type_info(c.t)->name, r, rows, cols);
            }
            free(want);
            free(got);
            case_free(&c);
        }
    }
}

static void check_portable(Type t, int n, int rows, int cols)
{
    Case c;
    case_make(&c, t, n, rows, cols);
    float *y = case_run(&c, &matmul_portable, (size_t) rows, 0);
    for (int i = 0; i < n; i++) {
        for (int j = 0; j < rows; j++) {
            double exact, bound;
            float want = reference(&exact, &bound, t, c.src + (size_t) j * case_row_bytes(&c),
                                   c.x + (size_t) i * (size_t) cols, cols);
            float got = y[(size_t) i * (size_t) rows + (size_t) j];
            if (memcmp(&want, &got, sizeof got)) {
                fail_msg("%s n %d rows %d cols %d: y[%d][%d] is %a, expected %a", type_info(t)->name, n, rows, cols, i,
                         j, got, want);
            }
            if (!(fabs(got - exact) <= bound)) {
                fail_msg("%s n %d rows %d cols %d: y[%d][%d] is %g, exact %g, bound %g", type_info(t)->name, n, rows,
                         cols, i, j, got, exact, bound);
            }
        }
    }
    free(y);
    case_free(&c);
}

static void test_portable(void **state)
{
    (void) state;
    seed = 2;
    for (int i = 0; i < N_TYPES; i++) {
        for (int round = 0; round < 6; round++)
            check_portable(all[i], between(1, 9), between(1, 40), random_cols(all[i]));
        check_portable(all[i], 1, 1, type_info(all[i])->block);
    }
}

/* The largest possible values of codes, scales and activations: no integer may overflow or saturate. */
static void test_extremes(void **state)
{
    (void) state;
    const uint8_t bytes[] = {0x00, 0xff, 0x7f, 0x80, 0x88, 0xf0, 0x0f};
    for (int i = 3; i < N_TYPES; i++) {
        Type t = all[i];
        const TypeInfo *info = type_info(t);
        int cols = info->block * 2, rows = 2 * (int) sizeof bytes, at_d, at_dmin;
        for (int sign = 0; sign < 3; sign++) {
            Case c;
            case_make(&c, t, 16, rows, cols);
            block_halves(t, &at_d, &at_dmin);
            for (int b = 0; b < rows * 2; b++) {
                uint8_t *block = c.src + (size_t) b * (size_t) info->bytes;
                memset(block, bytes[b / 4], (size_t) info->bytes);
                block_put(t, block + at_d, 0.5f);
                if (at_dmin >= 0) block_put(t, block + at_dmin, 0.5f);
            }
            /* scales of one extreme, codes of the other */
            if (t == T_Q6_K) for (int b = 0; b < rows * 2; b += 2) memset(c.src + (size_t) b * 210 + 192, 0x80, 16);
            if (t == T_Q4_K || t == T_Q5_K)
                for (int b = 0; b < rows * 2; b += 2) memset(c.src + (size_t) b * (size_t) info->bytes + 4, 0xff, 12);
            matmul_pack(c.packed, t, c.src, rows, cols, 0, (rows + WEIGHT_GROUP - 1) / WEIGHT_GROUP);
            for (int k = 0; k < c.n * cols; k++)
                c.x[k] = sign == 0 ? 127.0f : sign == 1 ? -127.0f : k & 1 ? -127.0f : 127.0f;
            for (int l = 0; l < LEVEL_COUNT; l++) {
                if (!level_here((CpuLevel) l)) continue;
                float *y = case_run(&c, matmul_kernels((CpuLevel) l), (size_t) rows, 0);
                for (int j = 0; j < rows; j++) {
                    double exact, bound;
                    float want = reference(&exact, &bound, t, c.src + (size_t) j * case_row_bytes(&c), c.x, cols);
                    for (int r = 0; r < c.n; r++) {
                        if (memcmp(&want, &y[r * rows + j], sizeof want)) {
                            fail_msg("%s %s sign %d: y[%d][%d] is %a, expected %a", info->name,
                                     level_name((CpuLevel) l), sign, r, j, y[r * rows + j], want);
                        }
                    }
                }
                free(y);
            }
            case_free(&c);
        }
    }
}

/* What was in the memory before does not matter, padding included, and lanes without a row are zeros. */
static void test_every_byte(void **state)
{
    (void) state;
    for (int i = 0; i < T_COUNT; i++) {
        const Type t = (Type) i;
        const int block = type_info(t)->block, rows = 37, cols = 3 * block;
        const size_t bytes = matmul_packed_bytes(t, rows, cols);
        if (bytes == 0) continue;                  /* no type of weights */
        const size_t group = matmul_group_bytes(t, cols);
        uint8_t *src = make_weights(t, rows, cols), *a = get(bytes), *b = get(bytes);
        memset(a, 0, bytes);
        memset(b, 0xff, bytes);
        matmul_pack(a, t, src, rows, cols, 0, 3);
        matmul_pack(b, t, src, rows, cols, 0, 3);
        if (memcmp(a, b, bytes)) fail_msg("%s: what was there before matters", type_info(t)->name);
        for (int lane = 37 % WEIGHT_GROUP; lane < WEIGHT_GROUP && block > 1; lane++) {
            WeightBlock w;
            matmul_read_block(&w, t, a + 2 * group, cols, 2, lane);
            for (int k = 0; k < matmul_layout[t].block; k++) assert_true(w.d * (float) w.code[k] == 0 && w.dmin == 0);
            if (t == T_NVFP4) assert_true(w.upper == 0);
        }
        free(src);
        free(a);
        free(b);
    }
}

static void check_level(CpuLevel l, Type t, int n, int rows, int cols)
{
    Case c;
    case_make(&c, t, n, rows, cols);
    size_t stride = (size_t) rows + (size_t) between(0, 5), bytes = matmul_act_bytes(matmul_act_form(t), n, cols);
    float *want = case_run(&c, &matmul_portable, stride, 0);
    void *act = get(bytes);
    memcpy(act, c.act, bytes);
    float *got = case_run(&c, matmul_kernels(l), stride, between(0, (rows + WEIGHT_GROUP - 1) / WEIGHT_GROUP));
    if (bytes && memcmp(act, c.act, bytes))
        fail_msg("%s %s n %d cols %d: activations differ", level_name(l), type_info(t)->name, n, cols);
    for (size_t i = 0; i < (size_t) n * stride; i++) {
        if (memcmp(&want[i], &got[i], sizeof *got)) {
            fail_msg("%s %s n %d rows %d cols %d: y[%zu][%zu] is %a, portable %a", level_name(l), type_info(t)->name, n,
                     rows, cols, i / stride, i % stride, got[i], want[i]);
        }
    }
    free(want);
    free(got);
    free(act);
    case_free(&c);
}

static void test_levels(void **state)
{
    (void) state;
    const int large[] = {96, 127, 130}, gang[] = {4, 8, 16, 21, 70};
    for (int l = 1; l < LEVEL_COUNT; l++) {
        CpuLevel level = (CpuLevel) l;
        if (!level_here(level)) continue;
        seed = 3;
        for (int i = 0; i < N_TYPES; i++) {
            for (int n = 1 + i % PART; n <= 80; n += PART)
                check_level(level, all[i], n, between(1, 40), random_cols(all[i]));
            for (size_t j = 0; j < sizeof large / sizeof *large; j++)
                check_level(level, all[i], large[j], between(1, 40), random_cols(all[i]));
            /* enough groups for several gangs and a remainder */
            for (size_t j = 0; j < sizeof gang / sizeof *gang; j++)
                check_level(level, all[i], gang[j], between(90, 330), random_cols(all[i]));
            check_level(level, all[i], 5, 33, 4096);
            check_level(level, all[i], 1, 100, 2560);
            check_level(level, all[i], 1, 16, type_info(all[i])->block);
            if (type_info(all[i])->block < 256) {
                const int cols = type_info(all[i])->block * 33;
                check_level(level, all[i], 3, 17, cols);
                check_level(level, all[i], 13, 17, cols);
            }
        }
    }
}

/* A row's result does not depend on the other rows. */
static void test_rows_alone(void **state)
{
    (void) state;
    seed = 4;
    for (int i = 0; i < N_TYPES; i++) {
        enum { N = 21 };
        int rows = 40, cols = type_info(all[i])->block == 1 ? 77 : 768;
        for (int l = 0; l < LEVEL_COUNT; l++) {
            if (!level_here((CpuLevel) l)) continue;
            Case c;
            case_make(&c, all[i], N, rows, cols);
            float *together = case_run(&c, matmul_kernels((CpuLevel) l), (size_t) rows, 1);
            for (int r = 0; r < N; r++) {
                Case one = c;
                one.n = 1;
                one.x = c.x + r * cols;
                float *alone = case_run(&one, matmul_kernels((CpuLevel) l), (size_t) rows, 2);
                assert_memory_equal(alone, together + r * rows, (size_t) rows * sizeof *alone);
                free(alone);
            }
            free(together);
            case_free(&c);
        }
    }
}

/* Zeros, magnitudes near the limits of float, infinities and NaNs; halves are rounded to even. */
static void test_quantise(void **state)
{
    (void) state;
    enum { COLS = 512, N = 8 };
    static float x[N * COLS];
    seed = 5;
    for (int i = 0; i < N * COLS; i++) x[i] = uniform();
    for (int k = 0; k < COLS; k++) {
        x[0 * COLS + k] = k % 2 ? 0.0f : -0.0f;
        x[1 * COLS + k] *= 1e-42f;
        x[2 * COLS + k] *= 3e38f;
        x[3 * COLS + k] = (float) (k % 254 - 127) + (k % 254 < 253 ? 0.5f : 0.0f);     /* amax 127: steps of 1 */
        x[6 * COLS + k] = k % 3 ? 127.0f : -127.0f;
    }
    for (int k = 0; k < COLS; k += 32) x[3 * COLS + k] = 127;
    x[4 * COLS + 300] = NAN;
    x[5 * COLS + 300] = -INFINITY;
    for (int form = ACT_Q32; form <= ACT_Q256; form++) {
        Type t = form == ACT_Q32 ? T_Q8_0 : T_Q6_K;
        size_t bytes = matmul_act_bytes((ActForm) form, N, COLS);
        void *want = get(bytes), *got = get(bytes);
        matmul_portable.quantise(want, (ActForm) form, x, N, COLS, 0, N);
        for (int l = 0; l < LEVEL_COUNT; l++) {
            if (!level_here((CpuLevel) l)) continue;
            matmul_kernels((CpuLevel) l)->quantise(got, (ActForm) form, x, N, COLS, 0, N);
            for (size_t i = 0; i < bytes / 64 * 64 && l > 0; i++) {
                if (((uint8_t *) want)[i] != ((uint8_t *) got)[i])
                    fail_msg("%s form %d byte %zu", level_name((CpuLevel) l), form, i);
            }
        }
        /* the packed rows' content, seen through a product */
        Case c;
        case_make(&c, t, N, 16, COLS);
        memcpy(c.x, x, sizeof x);
        float *y = case_run(&c, &matmul_portable, 16, 0);
        for (int j = 0; j < 16; j++) {
            assert_true(y[0 * 16 + j] == 0);
            assert_true(y[1 * 16 + j] == 0);
            assert_true(isnan(y[4 * 16 + j]) && isnan(y[5 * 16 + j]));
            assert_true(isfinite(y[3 * 16 + j]) && isfinite(y[6 * 16 + j]) && isfinite(y[7 * 16 + j]));
        }
        free(y);
        case_free(&c);
        free(want);
        free(got);
    }
}

/* A largest magnitude of 127 makes the scale 1, so the codes here are the values rounded half to even. */
static void test_ties(void **state)
{
    (void) state;
    static const float tie[16] = {0.5f, 1.5f, 2.5f, 3.5f, -0.5f, -1.5f, -2.5f, -3.5f, 124.5f, 125.5f, 126.5f, -124.5f,
        -125.5f, -126.5f, 127, -127};
    static const int8_t want[16] = {0, 2, 2, 4, 0, -2, -2, -4, 124, 126, 126, -124, -126, -126, 127, -127};
    float x[256];
    for (int k = 0; k < 256; k++) x[k] = tie[k % 16];
    for (int l = 0; l < LEVEL_COUNT; l++) {
        if (!level_here((CpuLevel) l)) continue;
        ActBlock32 a[8];
        ActBlock256 b;
        matmul_kernels((CpuLevel) l)->quantise(a, ACT_Q32, x, 1, 256, 0, 1);
        matmul_kernels((CpuLevel) l)->quantise(&b, ACT_Q256, x, 1, 256, 0, 1);
        assert_true(b.scale == 1);
        for (int k = 0; k < 256; k++) {
            int q32 = a[k / 32].q[k % 32], q256 = b.q[k], is = want[k % 16];
            if (q32 == is && q256 == is) continue;
            fail_msg("%s: %g becomes %d and %d, expected %d", level_name((CpuLevel) l), (double) x[k], q32, q256, is);
        }
        for (int i = 0; i < 8; i++) {
            assert_true(a[i].scale == 1);
            assert_int_equal(a[i].sum, 0);
        }
    }
}

static void test_level_names(void **state)
{
    (void) state;
    for (int l = 0; l < LEVEL_COUNT; l++) {
        CpuLevel back;
        assert_true(level_from_name(&back, level_name((CpuLevel) l)));
        assert_int_equal(back, l);
    }
    CpuLevel none;
    assert_false(level_from_name(&none, "sse"));
    assert_true(level_here(level_best()));
}

int main(int argc, char **argv)
{
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sizes),      cmocka_unit_test(test_unpack),     cmocka_unit_test(test_portable),
        cmocka_unit_test(test_extremes),   cmocka_unit_test(test_levels),     cmocka_unit_test(test_rows_alone),
        cmocka_unit_test(test_every_byte),
        cmocka_unit_test(test_quantise),  cmocka_unit_test(test_ties),        cmocka_unit_test(test_level_names),
    };
    return cmocka_run_group_tests_name("matmul", tests, NULL, NULL);
}
