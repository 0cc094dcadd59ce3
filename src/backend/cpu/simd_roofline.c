/* simd_roofline.c - the loops of the roofline, per instruction set. The arithmetic is in assembly: compilers move the
 * accumulators around, which halves the result. */
#include "backend/cpu/roofline.h"

#include <string.h>

#define TWELVE(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11)

static int64_t read_span(const uint8_t *p, size_t n)
{
    typedef uint64_t Lanes __attribute__((vector_size(64)));
    Lanes s[4] = { 0 };
    for (size_t i = 0; i + 256 <= n; i += 256)
        for (int k = 0; k < 4; k++) s[k] += *(const Lanes *) (const void *) (p + i + 64 * k);
    uint64_t sum = 0;
    for (int k = 0; k < 4; k++)
        for (int l = 0; l < 8; l++) sum += s[k][l];
    return (int64_t) sum;
}

/* Multiply-adds of floats, the same for all levels that have the instruction. All registers start at zero, since
 * denormal values are slow. */
#if defined(__AVX512F__) || defined(__FMA__)
#define SIXTEEN                                                                                                \
    "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", \
    "xmm13", "xmm14", "xmm15"
#ifdef __AVX512F__
#define FMA(i) "vfmadd231ps %%zmm14,%%zmm15,%%zmm" #i "\n"
enum { FMA_LANES = 16 };
#else
#define FMA(i) "vfmadd231ps %%ymm14,%%ymm15,%%ymm" #i "\n"
enum { FMA_LANES = 8 };
#endif
static double flops(int64_t rounds)
{
    __asm__ volatile("vzeroall" ::: SIXTEEN);
    for (int64_t r = 0; r < rounds; r++) __asm__ volatile(TWELVE(FMA) ::: SIXTEEN);
    __asm__ volatile("vzeroupper" ::: SIXTEEN);
    return (double) rounds * 12 * FMA_LANES * 2;
}
#elif defined(__aarch64__)
#define FMA(i) "fmla v" #i ".4s, v30.4s, v31.4s\n"
#define ZERO(i) "movi v" #i ".4s, #0\n"
#define FOURTEEN "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v30", "v31"
static double flops(int64_t rounds)
{
    __asm__ volatile(TWELVE(ZERO) ZERO(30) ZERO(31) ::: FOURTEEN);
    for (int64_t r = 0; r < rounds; r++) __asm__ volatile(TWELVE(FMA) ::: FOURTEEN);
    return (double) rounds * 12 * 4 * 2;
}
#else
/* Without a fused instruction a multiply-add is two operations, in vectors of the compiler's choice. */
static double flops(int64_t rounds)
{
    typedef float Lanes __attribute__((vector_size(16)));
    Lanes acc[12], a = { 0 }, b = { 0 };
    memset(acc, 0, sizeof acc);
    for (int64_t r = 0; r < rounds / 4; r++) {
        for (int i = 0; i < 12; i++) acc[i] += a * b;
        __asm__ volatile("" : "+m"(acc), "+m"(a), "+m"(b));
    }
    return (double) (rounds / 4) * 12 * 4 * 2;
}
#endif

#if defined(LEVEL_IS_amx)
/* Six tiles of sums, so that no instruction waits for another's. A tile instruction takes sixteen times as long as a
 * vector instruction, so there are fewer rounds. */
#define DOT(i) "tdpbusd %%tmm7,%%tmm6,%%tmm" #i "\n"
#define ZERO(i) "tilezero %%tmm" #i "\n"
#define SIX(X) X(0) X(1) X(2) X(3) X(4) X(5)
static double dots(int64_t rounds)
{
    static const struct { uint8_t palette, start, none[14]; uint16_t bytes[16]; uint8_t rows[16]; } shape = {
        1, 0, { 0 }, { 64, 64, 64, 64, 64, 64, 64, 64 }, { 16, 16, 16, 16, 16, 16, 16, 16 }
    };
    __asm__ volatile("ldtilecfg %0\n" SIX(ZERO) ZERO(6) ZERO(7) :: "m"(shape));
    for (int64_t r = 0; r < rounds / 16; r++) __asm__ volatile(SIX(DOT) SIX(DOT) :::);
    __asm__ volatile("tilerelease");
    return (double) (rounds / 16) * 12 * 16 * 16 * 64 * 2;
}
const RooflineKernels roofline_amx = { read_span, dots, flops };
#elif defined(LEVEL_IS_avx512)
#define DOT(i) "vpdpbusd %%zmm30,%%zmm31,%%zmm" #i "\n"
static double dots(int64_t rounds)
{
    for (int64_t r = 0; r < rounds; r++)
        __asm__ volatile(TWELVE(DOT) ::: "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9",
                         "xmm10", "xmm11");
    return (double) rounds * 12 * 64 * 2;
}
const RooflineKernels roofline_avx512 = { read_span, dots, flops };
#elif defined(LEVEL_IS_avxvnni)
#define DOT(i) "%{vex%} vpdpbusd %%ymm14,%%ymm15,%%ymm" #i "\n"
static double dots(int64_t rounds)
{
    for (int64_t r = 0; r < rounds; r++)
        __asm__ volatile(TWELVE(DOT) ::: "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9",
                         "xmm10", "xmm11");
    return (double) rounds * 12 * 32 * 2;
}
const RooflineKernels roofline_avxvnni = { read_span, dots, flops };
#elif defined(LEVEL_IS_avx2)
/* Without VNNI a dot product is two multiply-adds and an addition. */
#define DOT(i) \
    "vpmaddubsw %%ymm15,%%ymm14,%%ymm13\nvpmaddwd %%ymm12,%%ymm13,%%ymm13\nvpaddd %%ymm13,%%ymm" #i ",%%ymm" #i "\n"
static double dots(int64_t rounds)
{
    for (int64_t r = 0; r < rounds; r++)
        __asm__ volatile(TWELVE(DOT) ::: "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9",
                         "xmm10", "xmm11", "xmm13");
    return (double) rounds * 12 * 32 * 2;
}
const RooflineKernels roofline_avx2 = { read_span, dots, flops };
#elif defined(LEVEL_IS_neon) || defined(LEVEL_IS_i8mm)
#ifdef LEVEL_IS_i8mm
#define DOT(i) "smmla v" #i ".4s, v30.16b, v31.16b\n"
enum { DOT_OPS = 32 * 2 };
#else
#define DOT(i) "sdot v" #i ".4s, v30.16b, v31.16b\n"
enum { DOT_OPS = 16 * 2 };
#endif
static double dots(int64_t rounds)
{
    for (int64_t r = 0; r < rounds; r++)
        __asm__ volatile(TWELVE(DOT) ::: "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11");
    return (double) rounds * 12 * DOT_OPS;
}
const RooflineKernels LEVEL_NAME(roofline) = { read_span, dots, flops };
#else
static double dots(int64_t rounds)
{
    int32_t acc[16] = { 0 };
    int8_t a[64], b[64];
    memset(a, 3, sizeof a);
    memset(b, 5, sizeof b);
    for (int64_t r = 0; r < rounds / 16; r++) {
        for (int i = 0; i < 64; i++) acc[i % 16] += a[i] * b[i];
        __asm__ volatile("" : "+m"(acc), "+m"(a), "+m"(b));
    }
    return (double) (rounds / 16) * 64 * 2;
}
const RooflineKernels roofline_portable = { read_span, dots, flops };
#endif
