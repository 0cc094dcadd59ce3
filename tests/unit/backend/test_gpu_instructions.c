/* test_gpu_instructions.c - every wrapper of the kernels' dialect (src/backend/gpu/gpu.h) against the host's own
 * computation, over random and odd inputs, on whatever driver there is: NVIDIA's, or the emulated one that
 * RATOON_CUDA_DRIVER names. The other tests of the GPU rely on the emulation being right about these; on a card this is
 * the first thing to run. Without a driver it is skipped. */
#include <math.h>

#include "base/mathd.h"
#include "format/quant.h"
#include "gpu/instructions.h"
#include "gpu_device.h"
#include "rows_helper.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

static GpuDevice gpu;
static bool there;
static uint64_t seed = 19;

static uint64_t random_word(void)
{
    seed = h_mix(seed);
    return seed;
}

/* ---- words ---- */

static float f32(uint64_t u)
{
    const uint32_t low = (uint32_t) u;
    float f;
    memcpy(&f, &low, 4);
    return f;
}

static double f64(uint64_t u)
{
    double f;
    memcpy(&f, &u, 8);
    return f;
}

static uint64_t of_f32(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}

static uint64_t of_f64(double f)
{
    uint64_t u;
    memcpy(&u, &f, 8);
    return u;
}

static int32_t byte_of(uint64_t u, int i) { return (int8_t) (uint8_t) (u >> 8 * i); }
static int32_t short_of(uint64_t u, int i) { return (int16_t) (uint16_t) (u >> 16 * i); }

/* PTX prmt: four selectors of four bits, the highest spreads the sign of the chosen byte. */
static uint64_t permuted(uint64_t a, uint64_t b, uint64_t select)
{
    uint8_t bytes[8];
    uint64_t out = 0;
    for (int i = 0; i < 4; i++) bytes[i] = (uint8_t) (a >> 8 * i), bytes[4 + i] = (uint8_t) (b >> 8 * i);
    for (int i = 0; i < 4; i++) {
        const unsigned s = (unsigned) (select >> 4 * i) & 15;
        const uint8_t byte = bytes[s % 8];
        out |= (uint64_t) (s < 8 ? byte : byte >= 128 ? 255 : 0) << 8 * i;
    }
    return out;
}

static uint64_t expected(Instruction op, uint64_t a, uint64_t b, uint64_t c)
{
    int64_t sum = (int32_t) (uint32_t) c;
    double sine, cosine;
    switch (op) {
    case I_F32_FMA:     return of_f32(fmaf(f32(a), f32(b), f32(c)));
    case I_F32_MUL:     return of_f32(f32(a) * f32(b));
    case I_F32_ADD:     return of_f32(f32(a) + f32(b));
    case I_F32_SUB:     return of_f32(f32(a) - f32(b));
    case I_F32_DIV:     return of_f32(f32(a) / f32(b));
    case I_F32_SQRT:    return of_f32(sqrtf(f32(a)));
    case I_F32_MAX:     return of_f32(f32(a) > f32(b) ? f32(a) : f32(b));
    case I_F32_MIN:     return of_f32(f32(a) < f32(b) ? f32(a) : f32(b));
    case I_F32_OF_INT:  return of_f32((float) (int32_t) (uint32_t) a);
    case I_F32_OF_HALF: return of_f32(half_to_float((uint16_t) a));
    case I_HALF_OF_F32: return half_from_float(f32(a));
    case I_F32_OF_F64:  return of_f32((float) f64(a));
    case I_F64_OF_F32:  return of_f64((double) f32(a));
    case I_F64_OF_INT:  return of_f64((double) (int32_t) (uint32_t) a);
    case I_F64_FMA:     return of_f64(fma(f64(a), f64(b), f64(c)));
    case I_F64_MUL:     return of_f64(f64(a) * f64(b));
    case I_F64_ADD:     return of_f64(f64(a) + f64(b));
    case I_F64_DIV:     return of_f64(f64(a) / f64(b));
    case I_F64_EXP:     return of_f64(mathd_exp(f64(a)));
    case I_F64_LOG:     return of_f64(mathd_log(f64(a)));
    case I_F64_LOG1P:   return of_f64(mathd_log1p(f64(a)));
    case I_F64_SIN:     mathd_sincos(f64(a), &sine, &cosine); return of_f64(sine);
    case I_F64_COS:     mathd_sincos(f64(a), &sine, &cosine); return of_f64(cosine);
    case I_DOT4:
        for (int i = 0; i < 4; i++) sum += byte_of(a, i) * byte_of(b, i);
        return (uint32_t) sum;
    case I_DOT2LO:
        for (int i = 0; i < 2; i++) sum += short_of(a, i) * byte_of(b, i);
        return (uint32_t) sum;
    case I_DOT2HI:
        for (int i = 0; i < 2; i++) sum += short_of(a, i) * byte_of(b, 2 + i);
        return (uint32_t) sum;
    case I_BYTE_PERM:   return permuted(a, b, c);
    case I_COUNT:       break;
    }
    abort();
}

typedef enum { BITS, FLOAT, DOUBLE, HALF } Kind;
static Kind result_of(Instruction op)
{
    if (op == I_HALF_OF_F32) return HALF;
    if ((op >= I_F64_OF_F32 && op <= I_F64_COS)) return DOUBLE;
    return op <= I_F32_OF_F64 ? FLOAT : BITS;
}

static bool is_nan(Kind k, uint64_t u)
{
    if (k == HALF) return (u & 0x7fff) > 0x7c00;
    return k == FLOAT ? isnan(f32(u)) : k == DOUBLE && isnan(f64(u));
}

static Kind operand_of(Instruction op)
{
    if (op == I_F32_OF_F64 || op >= I_F64_FMA) return op <= I_F64_COS ? DOUBLE : BITS;
    return op == I_F32_OF_INT || op == I_F32_OF_HALF || op == I_F64_OF_INT ? BITS : FLOAT;
}

/* Zeros, subnormals, neighbours of powers of two, infinities, NaN; else random bits, or numbers of like size, whose
 * sums cancel and round. */
static uint64_t float_word(bool wide)
{
    static const uint32_t odd[] = { 0, 1, 0x7fffff, 0x800000, 0x3f800000, 0x3f7fffff, 0x3f800001, 0x7f7fffff,
                                    0x7f800000, 0x7fc00000, 0x7f800001, 0x33800000, 0x477fe000, 0x477ff000,
                                    0x38800000, 0x387fffff };
    enum { ODD = sizeof odd / sizeof *odd };
    const uint64_t r = random_word(), sign = r >> 63;
    const int how = (int) (r % 4);
    if (!wide) {
        if (how == 0) return odd[r / 4 % ODD] | sign << 31;
        if (how == 1) return (uint32_t) (r >> 8);
        return of_f32(ldexpf((float) (int32_t) (r >> 32), (int) (r / 4 % 7) - 34));
    }
    if (how == 0) return of_f64((double) f32(odd[r / 4 % ODD])) ^ (sign << 63) ^ (r >> 8 & 1);
    if (how == 1) return r ^ r << 1;
    return of_f64(ldexp((double) (int64_t) r, (int) (r / 4 % 90) - 90));
}

static uint64_t operand(Kind k)
{
    return k == BITS ? random_word() : float_word(k == DOUBLE);
}

enum { WORDS = 1 << 15 };

static void words(void **state)
{
    static const char *const names[] = {
#define X(name, operands) #name,
        INSTRUCTIONS(X)
#undef X
    };
    (void) state;
    if (!there) skip();
    uint64_t *in[3], *got = malloc(WORDS * sizeof *got);
    for (int i = 0; i < 3; i++) in[i] = malloc(WORDS * sizeof *in[i]);
    uint64_t *out = gpu_memory(&gpu, WORDS * sizeof *out, NULL);
    for (Instruction op = 0; op < I_COUNT; op++) {
        const Kind k = operand_of(op);
        for (int i = 0; i < 3 * WORDS; i++) in[i % 3][i / 3] = operand(k);
        /* every half */
        if (op == I_F32_OF_HALF) for (int i = 0; i < WORDS; i++) in[0][i] = (uint64_t) i | random_word() << 63 >> 48;
        WordArgs args = { .out = out, .n = WORDS - 3, .op = op };
        args.a = gpu_memory(&gpu, WORDS * sizeof **in, in[0]);
        args.b = gpu_memory(&gpu, WORDS * sizeof **in, in[1]);
        args.c = gpu_memory(&gpu, WORDS * sizeof **in, in[2]);
        gpu_launch(&gpu, "instr_word", WORDS / 128, 1, 128, 0, &args);
        gpu_fetch(&gpu, got, out, (WORDS - 3) * sizeof *got);
        for (int i = 0; i < WORDS - 3; i++) {
            const uint64_t want = expected(op, in[0][i], in[1][i], in[2][i]);
            if (got[i] == want || (is_nan(result_of(op), got[i]) && is_nan(result_of(op), want))) continue;
            fail_msg("%s of %016llx %016llx %016llx: %llx, expected %llx", names[op], (unsigned long long) in[0][i],
                     (unsigned long long) in[1][i], (unsigned long long) in[2][i], (unsigned long long) got[i],
                     (unsigned long long) want);
        }
        gpu.cu->cuMemFree_v2((void *) (uintptr_t) args.a);
        gpu.cu->cuMemFree_v2((void *) (uintptr_t) args.b);
        gpu.cu->cuMemFree_v2((void *) (uintptr_t) args.c);
    }
    for (int i = 0; i < 3; i++) free(in[i]);
    free(got);
}

/* ---- warps ---- */

static void warps(void **state)
{
    enum { BLOCKS = 40, N = BLOCKS * 64 };
    static int32_t value[N], lane[N], got[3 * N];
    (void) state;
    if (!there) skip();
    for (int i = 0; i < N; i++) value[i] = (int32_t) random_word(), lane[i] = (int32_t) (random_word() % 32);
    WarpArgs args = { gpu_memory(&gpu, sizeof value, value), gpu_memory(&gpu, sizeof lane, lane),
                      gpu_memory(&gpu, sizeof got, NULL) };
    gpu_launch(&gpu, "instr_warp", BLOCKS, 1, 64, 0, &args);
    gpu_fetch(&gpu, got, args.out, sizeof got);
    for (int i = 0; i < N; i++) {
        const int first = i / 32 * 32;
        uint32_t ballot = 0;
        for (int j = 0; j < 32; j++) ballot |= ((uint32_t) value[first + j] & 1) << j;
        assert_int_equal(got[3 * i], value[first + lane[i]]);
        assert_int_equal(got[3 * i + 1], value[first + ((i - first) ^ lane[first])]);
        assert_int_equal((uint32_t) got[3 * i + 2], ballot);
    }
}

/* ---- products: matrices are laid out by the table in PTX's description of mma.m16n8k32, element by element ---- */

static void products_of(MmaKind kind)
{
    enum { BLOCKS = 64 };
    static int8_t a[BLOCKS][16][32], b[BLOCKS][32][8];
    static int32_t c[BLOCKS][16][8], lanes_c[BLOCKS][32][4], got[BLOCKS][32][4];
    static int8_t lanes_a[BLOCKS][32][16], lanes_b[BLOCKS][32][8];
    for (int n = 0; n < BLOCKS; n++) {
        for (int i = 0; i < 512; i++) a[n][i / 32][i % 32] = n == 0 ? -128 : (int8_t) (random_word() & 255);
        for (int i = 0; i < 256; i++) b[n][i / 8][i % 8] = n == 0 ? -128 : (int8_t) (random_word() & 255);
        for (int i = 0; i < 128; i++) c[n][i / 8][i % 8] = (int32_t) random_word() >> (n % 2 ? 8 : 1);
        for (int lane = 0; lane < 32; lane++) {
            const int group = lane >> 2, in_group = lane % 4;
            for (int i = 0; i < 16; i++) {
                const int row = i < 4 || (i >= 8 && i < 12) ? group : group + 8;
                const int col = in_group * 4 + (i & 3) + (i < 8 ? 0 : 16);
                lanes_a[n][lane][i] = a[n][row][col];
            }
            for (int i = 0; i < 8; i++) lanes_b[n][lane][i] = b[n][in_group * 4 + (i & 3) + (i < 4 ? 0 : 16)][group];
            for (int i = 0; i < 4; i++) lanes_c[n][lane][i] = c[n][i < 2 ? group : group + 8][in_group * 2 + (i & 1)];
        }
    }
    MmaArgs args = { gpu_memory(&gpu, sizeof lanes_a, lanes_a), gpu_memory(&gpu, sizeof lanes_b, lanes_b),
                     gpu_memory(&gpu, sizeof lanes_c, lanes_c), gpu_memory(&gpu, sizeof got, NULL), kind };
    gpu_launch(&gpu, "instr_mma", BLOCKS, 1, 32, 0, &args);
    gpu_fetch(&gpu, got, args.out, sizeof got);
    for (int n = 0; n < BLOCKS; n++)
        for (int lane = 0; lane < 32; lane++)
            for (int i = 0; i < 4; i++) {
                const int row = (lane >> 2) + (i < 2 ? 0 : 8), col = lane % 4 * 2 + (i & 1);
                int64_t sum = c[n][row][col];
                for (int k = 0; k < (kind == MMA_16 ? 16 : 32); k++)
                    sum += (kind == MMA_32_U8 ? (uint8_t) a[n][row][k] : a[n][row][k]) * b[n][k][col];
                assert_int_equal(got[n][lane][i], (int32_t) (uint32_t) sum);
            }
}

static void products(void **state)
{
    (void) state;
    if (!there) skip();
    for (MmaKind k = 0; k < MMA_KINDS; k++) products_of(k);
}

/* ---- memory ---- */

static void copies_of(const char *kernel, size_t shared)
{
    enum { PIECE = 2048, MOST = 9 };
    static uint8_t from[MOST * PIECE], got[MOST * PIECE];
    for (size_t i = 0; i < sizeof from; i++) from[i] = (uint8_t) random_word();
    for (int steps = 1; steps <= MOST; steps++) {
        const size_t bytes = (size_t) steps * PIECE;
        CopyArgs args = { gpu_memory(&gpu, bytes, from), gpu_memory(&gpu, bytes, NULL), steps };
        gpu_launch(&gpu, kernel, 1, 1, 128, shared, &args);
        gpu_fetch(&gpu, got, args.to, bytes);
        for (int i = 0; i < steps * 128; i++)
            assert_memory_equal(got + 16 * i, from + 16 * (i / 128 * 128 + 127 - i % 128), 16);
    }
}

static void copies(void **state)
{
    (void) state;
    if (!there) skip();
    copies_of("instr_copy", 0);
}

static void copies_in_large_blocks(void **state)
{
    (void) state;
    if (!there || gpu.cc < 80) skip();             /* sm_75 has 64 KB */
    copies_of("instr_copy_big", 80 << 10);
}

static int ascending(const void *a, const void *b)
{
    const int32_t x = *(const int32_t *) a, y = *(const int32_t *) b;
    return (x > y) - (x < y);
}

static void counters(void **state)
{
    enum { BLOCKS = 50, N = BLOCKS * 96, BY = 3 };
    static int32_t got[N];
    int32_t counter[2] = { 7, -5 };
    (void) state;
    if (!there) skip();
    CountArgs args = { gpu_memory(&gpu, sizeof counter, counter), gpu_memory(&gpu, sizeof got, NULL), BY };
    gpu_launch(&gpu, "instr_count", BLOCKS, 1, 96, 0, &args);
    gpu_fetch(&gpu, got, args.out, sizeof got);
    gpu_fetch(&gpu, counter, args.counter, sizeof counter);
    assert_int_equal(counter[0], 7 + N * BY);
    assert_int_equal(counter[1], -5 + N * BY);
    qsort(got, N, sizeof *got, ascending);
    for (int i = 0; i < N; i++) assert_int_equal(got[i], 7 + BY * i);
}

/* Launches that begin early read nothing before what comes before them has ended. */
static void launches_in_order(void **state)
{
    enum { BLOCKS = 300, N = BLOCKS * 64 - 5, LAUNCHES = 60, STRIDE = 7919 };
    static int32_t x[2][N];
    (void) state;
    if (!there) skip();
    for (int i = 0; i < N; i++) x[0][i] = (int32_t) (random_word() >> 40);
    int32_t *at[2] = { gpu_memory(&gpu, sizeof *x, x[0]), gpu_memory(&gpu, sizeof *x, x[0]) };
    static int32_t got[N];
    for (int l = 0; l < LAUNCHES; l++) {
        ChainArgs args = { at[l % 2], at[1 - l % 2], N, STRIDE };
        gpu_launch(&gpu, "instr_chain", BLOCKS, 1, 64, 0, &args);
        for (int i = 0; i < N; i++) x[1 - l % 2][i] = x[l % 2][((int64_t) i * STRIDE + 1) % N] + 1;
    }
    gpu_fetch(&gpu, got, at[LAUNCHES % 2], sizeof got);
    assert_memory_equal(got, x[LAUNCHES % 2], sizeof got);
}

static void wide_accesses(void **state)
{
    enum { BYTES = 14 * 496 };
    static uint8_t from[BYTES], got[BYTES];
    (void) state;
    if (!there) skip();
    for (int i = 0; i < BYTES; i++) from[i] = (uint8_t) random_word();
    WideArgs args = { gpu_memory(&gpu, BYTES, from), gpu_memory(&gpu, BYTES, NULL), BYTES };
    gpu_launch(&gpu, "instr_wide", 2, 1, 32, 0, &args);
    gpu_fetch(&gpu, got, args.to, BYTES);
    assert_memory_equal(got, from, BYTES);
}

int main(void)
{
    Error why = { 0 };
    there = gpu_open(&gpu, "instructions", &why);
    if (there) printf("instructions of %s (compute capability %d.%d)\n", gpu.name, gpu.cc / 10, gpu.cc % 10);
    else printf("skipped: %s\n", why.text);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(words), cmocka_unit_test(warps), cmocka_unit_test(products), cmocka_unit_test(copies),
        cmocka_unit_test(copies_in_large_blocks), cmocka_unit_test(counters), cmocka_unit_test(launches_in_order),
        cmocka_unit_test(wide_accesses)
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
