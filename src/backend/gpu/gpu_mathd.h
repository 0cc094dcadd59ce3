/* gpu_mathd.h - base/mathd.c for kernels: log, log1p, exp, sine and cosine in double, the same operations in the same
 * order, so the same bits. mathd.c says why each is precise enough. */
#ifndef RATOON_BACKEND_GPU_GPU_MATHD_H
#define RATOON_BACKEND_GPU_GPU_MATHD_H

#include "backend/gpu/gpu.h"

DEV double f64_sub(double a, double b) { return f64_add(a, -b); }
DEV double f64_infinity() { return f64_of_bits(0x7ff0000000000000u); }
DEV double f64_nan() { return f64_of_bits(0x7ff8000000000000u); }
DEV double f64_round(double x) { return f64_sub(f64_add(x, 0x1.8p52), 0x1.8p52); }    /* |x| < 2^51, half to even */
DEV double f64_power_of_two(int k) { return f64_of_bits((uint64_t) (k + 1023) << 52); }
/* p x + c, in two roundings. */
DEV double f64_step(double p, double x, double c) { return f64_add(f64_mul(p, x), c); }

#define LN2_HIGH 0x1.62e42fefa3800p-1
#define LN2_LOW  0x1.ef35793c76730p-45

DEV double f64_log_reduced(double f, int k, double c)
{
    const double s = f64_div(f, f64_add(2.0, f)), z = f64_mul(s, s), half = f64_mul(f64_mul(0.5, f), f);
    const double n = f64_of_int(k);
    double r = 2.0 / 23;
    r = f64_step(r, z, 2.0 / 21);
    r = f64_step(r, z, 2.0 / 19);
    r = f64_step(r, z, 2.0 / 17);
    r = f64_step(r, z, 2.0 / 15);
    r = f64_step(r, z, 2.0 / 13);
    r = f64_step(r, z, 2.0 / 11);
    r = f64_step(r, z, 2.0 / 9);
    r = f64_step(r, z, 2.0 / 7);
    r = f64_step(r, z, 2.0 / 5);
    r = f64_step(r, z, 2.0 / 3);
    r = f64_mul(r, z);
    const double low = f64_add(f64_mul(s, f64_add(half, r)), f64_add(f64_mul(n, LN2_LOW), c));
    return f64_sub(f64_mul(n, LN2_HIGH), f64_sub(f64_sub(half, low), f));
}

DEV double f64_split(double x, int *k)
{
    int e = 0;
    if (x < 0x1p-1022) {
        x = f64_mul(x, 0x1p54);
        e = -54;
    }
    const uint64_t u = bits_of_f64(x);
    e += (int) (u >> 52) - 1023;
    double m = f64_of_bits((u & 0x000fffffffffffffu) | 0x3ff0000000000000u);
    if (m > 0x1.6a09e667f3bcdp0) {
        m = f64_mul(m, 0.5);
        e++;
    }
    *k = e;
    return m;
}

DEV double f64_log(double x)
{
    if (!(x > 0)) return x == 0 ? -f64_infinity() : f64_nan();
    if (x == f64_infinity()) return x;
    int k;
    const double m = f64_split(x, &k);
    return f64_log_reduced(f64_sub(m, 1.0), k, 0.0);
}

DEV double f64_log1p(double x)
{
    if (!(x > -1)) return x == -1 ? -f64_infinity() : f64_nan();
    if (x == f64_infinity() || x == 0) return x;
    if (x > -0.29 && x < 0.41) return f64_log_reduced(x, 0, 0.0);
    const double u = f64_add(1.0, x);
    const double lost = x > 1.0 ? f64_sub(1.0, f64_sub(u, x)) : f64_sub(x, f64_sub(u, 1.0));
    int k;
    const double m = f64_split(u, &k);
    return f64_log_reduced(f64_sub(m, 1.0), k, f64_div(lost, u));
}

DEV double f64_exp(double x)
{
    if (x != x) return x;
    if (x > 709.79) return f64_infinity();
    if (x < -745.14) return 0.0;
    const double n = f64_round(f64_mul(x, 0x1.71547652b82fep+0));
    const double high = f64_sub(x, f64_mul(n, LN2_HIGH)), sub = f64_mul(n, LN2_LOW);
    const double r = f64_sub(high, sub), low = f64_sub(f64_sub(high, r), sub);
    double p = 1.0 / 6227020800.0;
    p = f64_step(p, r, 1.0 / 479001600.0);
    p = f64_step(p, r, 1.0 / 39916800.0);
    p = f64_step(p, r, 1.0 / 3628800.0);
    p = f64_step(p, r, 1.0 / 362880.0);
    p = f64_step(p, r, 1.0 / 40320.0);
    p = f64_step(p, r, 1.0 / 5040.0);
    p = f64_step(p, r, 1.0 / 720.0);
    p = f64_step(p, r, 1.0 / 120.0);
    p = f64_step(p, r, 1.0 / 24.0);
    p = f64_step(p, r, 1.0 / 6.0);
    p = f64_step(p, r, 0.5);
    const double tail = f64_add(f64_mul(p, f64_mul(r, r)), f64_add(low, f64_mul(low, r)));
    const double y = f64_add(1.0, f64_add(r, tail));
    const int k = (int) n;
    if (k > 1023)  return f64_mul(f64_mul(y, 2.0), f64_power_of_two(k - 1));
    if (k < -1022) return f64_mul(f64_mul(y, f64_power_of_two(k + 100)), 0x1p-100);
    return f64_mul(y, f64_power_of_two(k));
}

DEV void f64_sincos(double x, double *s, double *c)
{
    if (!(x >= -0x1p20 && x <= 0x1p20)) {
        *s = *c = f64_nan();
        return;
    }
    const double q = f64_round(f64_mul(x, 0x1.45f306dc9c883p-1));
    const double first = f64_sub(x, f64_mul(q, 0x1.921fb54400000p+0)), second = f64_mul(q, 0x1.0b4611a600000p-34);
    const double sum = f64_sub(first, second), part = f64_sub(sum, first);
    const double rest = f64_sub(f64_sub(f64_sub(first, f64_sub(sum, part)), f64_add(second, part)),
                                f64_mul(q, 0x1.3198a2e037073p-69));
    const double r = f64_add(sum, rest), low = f64_add(f64_sub(sum, r), rest), z = f64_mul(r, r);
    double a = 1.0 / 355687428096000.0;
    a = f64_step(a, z, -(1.0 / 1307674368000.0));
    a = f64_step(a, z, 1.0 / 6227020800.0);
    a = f64_step(a, z, -(1.0 / 39916800.0));
    a = f64_step(a, z, 1.0 / 362880.0);
    a = f64_step(a, z, -(1.0 / 5040.0));
    a = f64_step(a, z, 1.0 / 120.0);
    a = f64_step(a, z, -(1.0 / 6.0));
    double b = -1.0 / 6402373705728000.0;
    b = f64_step(b, z, 1.0 / 20922789888000.0);
    b = f64_step(b, z, -(1.0 / 87178291200.0));
    b = f64_step(b, z, 1.0 / 479001600.0);
    b = f64_step(b, z, -(1.0 / 3628800.0));
    b = f64_step(b, z, 1.0 / 40320.0);
    b = f64_step(b, z, -(1.0 / 720.0));
    b = f64_step(b, z, 1.0 / 24.0);
    const double half = f64_mul(0.5, z), w = f64_sub(1.0, half);
    const double sine = f64_add(r, f64_add(f64_mul(f64_mul(r, z), a), f64_mul(low, w)));
    const double cosine = f64_add(w, f64_add(f64_sub(f64_sub(1.0, w), half),
                                             f64_sub(f64_mul(f64_mul(z, z), b), f64_mul(r, low))));
    const int quarter = (int) q & 3;
    *s = quarter == 0 ? sine : quarter == 1 ? cosine : quarter == 2 ? -sine : -cosine;
    *c = quarter == 0 ? cosine : quarter == 1 ? -sine : quarter == 2 ? -cosine : sine;
}

#undef LN2_HIGH
#undef LN2_LOW
#endif
