/* test_math.c - accuracy of our own exp, log, sine and the like, and that every level gives the same bits. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cpu/kernels.h"
#include "base/mathd.h"
#include "rows_helper.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

/* Distance in units in the last place of the wanted value. */
static double units(double got, long double want)
{
    double near = fabs((double) want), unit = nextafter(near, INFINITY) - near;
    return (double) (fabsl((long double) got - want) / (long double) unit);
}

static double units_float(float got, long double want)
{
    float near = fabsf((float) want);
    if (near < 0x1p-126f) near = 0x1p-126f;
    return (double) (fabsl((long double) got - want) / (long double) (nextafterf(near, INFINITY) - near));
}

static void below(const char *what, double worst, double limit)
{
    if (worst > limit) fail_msg("%s: %.3f units in the last place, expected at most %.3f", what, worst, limit);
}

static double uniform(uint64_t *seed)
{
    *seed = h_mix(*seed);
    return (double) (*seed >> 11) * 0x1p-53;
}

static void doubles_are_accurate(void **state)
{
    (void) state;
    uint64_t seed = 1;
    double log_worst = 0, log1p_worst = 0, exp_worst = 0, turn_worst = 0;
    for (int i = 0; i < 300000; i++) {
        double u = uniform(&seed), v = uniform(&seed);
        double x = exp((u - 0.5) * (i % 3 == 0 ? 1400 : i % 3 == 1 ? 4 : 0.01));
        log_worst = fmax(log_worst, units(mathd_log(x), logl(x)));
        double y = i % 4 == 0 ? -v : i % 4 == 1 ? -v * 1e-9 : i % 4 == 2 ? x : x - 1;
        log1p_worst = fmax(log1p_worst, units(mathd_log1p(y), log1pl(y)));
        double z = (u - 0.5) * 1400;
        exp_worst = fmax(exp_worst, units(mathd_exp(z), expl(z)));
        double t = i % 4 == 0 ? floor(u * 262144) : i % 4 == 1 ? u * 262144 * pow(1e7, -v) : i % 4 == 2
                   ? (u - 0.5) * 10 : (u - 0.5) * 0x1p21, s, c;
        mathd_sincos(t, &s, &c);
        turn_worst = fmax(turn_worst, fmax(units(s, sinl(t)), units(c, cosl(t))));
    }
    for (int q = 1; q < 600000; q += 7) {          /* close to zeros and extremes */
        double t = q * 0x1.921fb54442d18p0, s, c;
        mathd_sincos(t, &s, &c);
        turn_worst = fmax(turn_worst, fmax(units(s, sinl(t)), units(c, cosl(t))));
    }
    below("log", log_worst, 1);
    below("log1p", log1p_worst, 1);
    below("exp", exp_worst, 1);
    below("sincos", turn_worst, 1.1);
}

static void doubles_have_ends(void **state)
{
    (void) state;
    double s, c;
    assert_true(mathd_log(0) == -INFINITY && isnan(mathd_log(-1)) && isnan(mathd_log(NAN)) &&
                mathd_log(INFINITY) == INFINITY);
    assert_true(mathd_log(1) == 0 && mathd_log1p(0) == 0 && mathd_exp(0) == 1);
    assert_true(mathd_log1p(-1) == -INFINITY && isnan(mathd_log1p(-1.5)) && isnan(mathd_log1p(NAN)) &&
                mathd_log1p(INFINITY) == INFINITY);
    assert_true(fabs(mathd_log(4.9e-324) - -744.4400719213812) < 1e-10);
    assert_true(mathd_exp(-INFINITY) == 0 && mathd_exp(INFINITY) == INFINITY && isnan(mathd_exp(NAN)) &&
                mathd_exp(-746) == 0 && mathd_exp(710) == INFINITY);
    for (double x = -707; x > -745; x -= 0.01)     /* through the last normal numbers and all subnormal ones */
        if (fabsl((long double) mathd_exp(x) - expl(x)) > 0x1p-1074L + 0x1p-52L * expl(x))
            fail_msg("exp(%.2f) is %a, expected %La", x, mathd_exp(x), expl(x));
    assert_true(mathd_exp(-744) == 0x1p-1073 && fabs(mathd_exp(709.7) / 1.6549840276802644e308 - 1) < 1e-12);
    mathd_sincos(0, &s, &c);
    assert_true(s == 0 && c == 1);
    mathd_sincos(1e9, &s, &c);
    assert_true(isnan(s) && isnan(c));
    mathd_sincos(NAN, &s, &c);
    assert_true(isnan(s) && isnan(c));
}

/* Bits that must never change: the text generated from a seed depends on them. */
static void doubles_are_pinned(void **state)
{
    (void) state;
    uint64_t sum = 0, seed = 5;
    for (int i = 0; i < 10000; i++) {
        double x = uniform(&seed), part[5] = { mathd_log(x), mathd_log1p(-x), mathd_exp(-20 * x), 0, 0 };
        mathd_sincos(x * 262144, &part[3], &part[4]);
        for (int j = 0; j < 5; j++) {
            uint64_t bits;
            memcpy(&bits, &part[j], sizeof bits);
            sum = h_mix(sum ^ bits);
        }
    }
    assert_int_equal(sum, 0x448bf1cf22024372u);
}

static const RowKernels *const levels[LEVEL_COUNT] = LEVEL_TABLE(rows);

/* gelu(x) = x * sigmoid(z) */
static long double gelu_z(float x)
{
    return 2 * sqrtl(2 / 3.14159265358979323846L) * (x + 0.044715L * x * x * x);
}

static long double exact(int which, float x)
{
    long double e = expl(-(long double) x);
    switch (which) {
    case MATH_GELU:    return x / (1 + expl(-gelu_z(x)));
    case MATH_EXP:     return expl(x);
    case MATH_SIGMOID: return 1 / (1 + e);
    case MATH_SILU:    return x / (1 + e);
    case MATH_TANH:    return tanhl(x);
    case MATH_LOG1P:   return log1pl(x);
    default:           return log1pl(expl(x));
    }
}

static void floats_are_accurate(void **state)
{
    (void) state;
    static const char *const name[MATH_COUNT] = { "exp", "sigmoid", "silu", "tanh", "log1p", "softplus", "gelu" };
    static const double limit[MATH_COUNT] = { 1.2, 2.5, 2.5, 2.5, 1.5, 2.5, 2.5 };
    uint64_t seed = 3;
    for (int which = 0; which < MATH_COUNT; which++) {
        double worst = 0;
        for (int i = 0; i < 20000; i++) {
            float x[16], y[16];
            for (int j = 0; j < 16; j++) {
                double u = uniform(&seed);
                x[j] = (float) (i % 4 == 0 ? (u - 0.5) * 170
                                           : i % 4 == 1 ? (u - 0.5) * 4 : i % 4 == 2 ? (u - 0.5) * 40 : exp(-60 * u));
                if (which == MATH_LOG1P) x[j] = expf(x[j] * 0.5f);
                if (which == MATH_GELU) x[j] = fmaxf(x[j], -9.9f);     /* z = -85 */
            }
            rows_portable.math(y, x, 16, which);
            for (int j = 0; j < 16; j++) {
                double off = units_float(y[j], exact(which, x[j]));
                if (which == MATH_GELU && x[j] < 0) off -= 2.5 * fabs((double) gelu_z(x[j]));
                worst = fmax(worst, off);
            }
        }
        below(name[which], worst, limit[which]);
    }
}

static void floats_have_ends(void **state)
{
    (void) state;
    float x[6] = { NAN, INFINITY, -INFINITY, 0, 100, -100 }, y[6];
    rows_portable.math(y, x, 6, MATH_EXP);
    assert_true(isnan(y[0]) && y[1] == INFINITY && y[2] == 0 && y[3] == 1 && y[4] == INFINITY && y[5] == 0);
    rows_portable.math(y, x, 6, MATH_SIGMOID);
    assert_true(isnan(y[0]) && y[1] == 1 && y[2] == 0 && y[3] == 0.5f && y[4] == 1 && y[5] == 0);
    rows_portable.math(y, x, 6, MATH_SILU);
    assert_true(isnan(y[0]) && y[1] == INFINITY && y[3] == 0 && y[4] == 100 && y[5] == 0);
    rows_portable.math(y, x, 6, MATH_TANH);
    assert_true(isnan(y[0]) && y[1] == 1 && y[2] == -1 && y[3] == 0 && y[4] == 1 && y[5] == -1);
    rows_portable.math(y, x, 6, MATH_GELU);
    assert_true(isnan(y[0]) && y[1] == INFINITY && isnan(y[2]) && y[3] == 0 && y[4] == 100 && y[5] == 0);
    x[0] = 1e30f, x[1] = -1e30f, x[2] = 3e38f, x[3] = -3e38f, x[4] = -11, x[5] = 1e-30f;
    rows_portable.math(y, x, 6, MATH_GELU);
    assert_true(y[0] == 1e30f && y[1] == 0 && y[2] == 3e38f && y[3] == 0 && y[4] == 0 && y[5] == 5e-31f);
    x[0] = NAN, x[1] = INFINITY, x[2] = -INFINITY, x[3] = 0, x[4] = 100, x[5] = -100;
    rows_portable.math(y, x, 6, MATH_SOFTPLUS);
    assert_true(isnan(y[0]) && y[1] == INFINITY && y[2] == 0 && fabsf(y[3] - 0.69314718f) < 1e-7f && y[4] == 100 &&
                y[5] == 0);
}

/* All levels, every class of bit patterns: a step through all floats, including NaNs and infinities. */
static void levels_agree(void **state)
{
    (void) state;
    for (int which = 0; which < MATH_COUNT; which++) {
        for (uint64_t at = 0; at < (uint64_t) 1 << 32;) {
            float x[64], y[64], z[64];
            for (int i = 0; i < 64; i++, at += 300007) {
                uint32_t bits = (uint32_t) at;
                memcpy(&x[i], &bits, sizeof bits);
                if (which == MATH_LOG1P) x[i] = fabsf(x[i]) < 0x1p63f ? fabsf(x[i]) : 1;
            }
            rows_portable.math(y, x, 61, which);
            for (int l = 1; l < LEVEL_COUNT; l++) {
                if (!level_here((CpuLevel) l)) continue;
                levels[l]->math(z, x, 61, which);
                for (int i = 0; i < 61; i++) {
                    if (isnan(y[i]) && isnan(z[i])) continue;   /* a new NaN's sign is the processor's */
                    if (memcmp(&y[i], &z[i], 4) != 0)
                        fail_msg("function %d of %a: portable %a, %s %a", which, (double) x[i], (double) y[i],
                                 level_name((CpuLevel) l), (double) z[i]);
                }
            }
        }
    }
}

int main(int argc, char **argv)
{
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(doubles_are_accurate), cmocka_unit_test(doubles_have_ends),
        cmocka_unit_test(doubles_are_pinned), cmocka_unit_test(floats_are_accurate), cmocka_unit_test(floats_have_ends),
        cmocka_unit_test(levels_agree),
    };
    return cmocka_run_group_tests_name("math", tests, NULL, NULL);
}
