#include "base/mathd.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

/* ln 2 in two parts: the upper one has 42 bits, so that its product with an exponent of at most 11 bits is exact. */
static const double LN2_HIGH = 0x1.62e42fefa3800p-1, LN2_LOW = 0x1.ef35793c76730p-45;

/* Adding and subtracting 1.5 * 2^52 rounds to an integer, half to even. */
static const double ROUND = 0x1.8p52;

static uint64_t bits_of(double x)
{
    uint64_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static double double_of(uint64_t u)
{
    double x;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* 2^k for k in [-1022, 1023]. */
static double power_of_two(int k) { return double_of((uint64_t) (k + 1023) << 52); }

/* log((1 + f) * 2^k) + c for 1 + f in [sqrt(1/2), sqrt(2)], c tiny. With s = f / (2 + f), log(1 + f) is 2 atanh(s);
 * since 2s = f - s f, it is f - f^2/2 + s (f^2/2 + r) with r = 2 (s^2/3 + s^4/5 + ...): what is added to f is small
 * relative to it. s is at most 0.172, so the first omitted term is below 2^-56 of the result. */
static double log_reduced(double f, int k, double c)
{
    double s = f / (2.0 + f), z = s * s, half = 0.5 * f * f, n = k;
    double r = 2.0 / 23;
    r = r * z + 2.0 / 21;
    r = r * z + 2.0 / 19;
    r = r * z + 2.0 / 17;
    r = r * z + 2.0 / 15;
    r = r * z + 2.0 / 13;
    r = r * z + 2.0 / 11;
    r = r * z + 2.0 / 9;
    r = r * z + 2.0 / 7;
    r = r * z + 2.0 / 5;
    r = r * z + 2.0 / 3;
    r = r * z;
    return n * LN2_HIGH - ((half - (s * (half + r) + (n * LN2_LOW + c))) - f);
}

/* Splits a positive finite x into m * 2^k, m in [sqrt(1/2), sqrt(2)]. */
static double split(double x, int *k)
{
    int e = 0;
    if (x < 0x1p-1022) {
        x *= 0x1p54;
        e = -54;
    }
    uint64_t u = bits_of(x);
    e += (int) (u >> 52) - 1023;
    double m = double_of((u & 0x000fffffffffffff) | 0x3ff0000000000000);
    if (m > 0x1.6a09e667f3bcdp0) {
        m *= 0.5;
        e++;
    }
    *k = e;
    return m;
}

double mathd_log(double x)
{
    if (!(x > 0)) return x == 0 ? -INFINITY : NAN;
    if (x == INFINITY) return x;
    int k;
    double m = split(x, &k);
    return log_reduced(m - 1.0, k, 0.0);
}

double mathd_log1p(double x)
{
    if (!(x > -1)) return x == -1 ? -INFINITY : NAN;
    if (x == INFINITY || x == 0) return x;
    if (x > -0.29 && x < 0.41) return log_reduced(x, 0, 0.0);
    double u = 1.0 + x;
    double lost = x > 1.0 ? 1.0 - (u - x) : x - (u - 1.0);      /* 1 + x = u + lost exactly */
    int k;
    double m = split(u, &k);
    return log_reduced(m - 1.0, k, lost / u);
}

/* x = k ln2 + r with |r| <= 0.347; the series of exp(r) - 1 - r needs 12 terms for 2^-57. `low` is the part of r below
 * its last place. */
double mathd_exp(double x)
{
    if (x != x) return x;
    if (x > 709.79) return INFINITY;
    if (x < -745.14) return 0.0;
    double n = (x * 0x1.71547652b82fep+0 + ROUND) - ROUND;
    double high = x - n * LN2_HIGH, sub = n * LN2_LOW;
    double r = high - sub, low = (high - r) - sub;
    double p = 1.0 / 6227020800.0;
    p = p * r + 1.0 / 479001600.0;
    p = p * r + 1.0 / 39916800.0;
    p = p * r + 1.0 / 3628800.0;
    p = p * r + 1.0 / 362880.0;
    p = p * r + 1.0 / 40320.0;
    p = p * r + 1.0 / 5040.0;
    p = p * r + 1.0 / 720.0;
    p = p * r + 1.0 / 120.0;
    p = p * r + 1.0 / 24.0;
    p = p * r + 1.0 / 6.0;
    p = p * r + 0.5;
    double y = 1.0 + (r + (p * (r * r) + (low + low * r)));
    int k = (int) n;
    if (k > 1023)  return y * 2.0 * power_of_two(k - 1);
    if (k < -1022) return y * power_of_two(k + 100) * 0x1p-100;
    return y * power_of_two(k);
}

/* x = q pi/2 + (r + low). pi/2 is in three parts, the first two of 33 bits: q below 2^20 times either is exact, and so
 * is the first difference, since it is small and a multiple of the last place of both terms. */
void mathd_sincos(double x, double *s, double *c)
{
    const double P1 = 0x1.921fb54400000p+0, P2 = 0x1.0b4611a600000p-34, P3 = 0x1.3198a2e037073p-69;
    if (!(x >= -0x1p20 && x <= 0x1p20)) {
        *s = *c = NAN;
        return;
    }
    double q = (x * 0x1.45f306dc9c883p-1 + ROUND) - ROUND;
    double first = x - q * P1, second = q * P2;
    double sum = first - second, part = sum - first;
    double rest = ((first - (sum - part)) - (second + part)) - q * P3;
    double r = sum + rest, low = (sum - r) + rest, z = r * r;
    /* sin(r + low) = r + (r^3 S(z) + low cos r), for which cos r = 1 - z/2 is precise enough; cos(r + low) = 1 - z/2 +
     * (z^2 C(z) - r low) */
    double a = 1.0 / 355687428096000.0;
    a = a * z - 1.0 / 1307674368000.0;
    a = a * z + 1.0 / 6227020800.0;
    a = a * z - 1.0 / 39916800.0;
    a = a * z + 1.0 / 362880.0;
    a = a * z - 1.0 / 5040.0;
    a = a * z + 1.0 / 120.0;
    a = a * z - 1.0 / 6.0;
    double b = -1.0 / 6402373705728000.0;
    b = b * z + 1.0 / 20922789888000.0;
    b = b * z - 1.0 / 87178291200.0;
    b = b * z + 1.0 / 479001600.0;
    b = b * z - 1.0 / 3628800.0;
    b = b * z + 1.0 / 40320.0;
    b = b * z - 1.0 / 720.0;
    b = b * z + 1.0 / 24.0;
    double half = 0.5 * z, w = 1.0 - half;
    double sine = r + (r * z * a + low * w), cosine = w + (((1.0 - w) - half) + (z * z * b - r * low));
    int quarter = (int) ((int64_t) q & 3);
    *s = quarter == 0 ? sine : quarter == 1 ? cosine : quarter == 2 ? -sine : -cosine;
    *c = quarter == 0 ? cosine : quarter == 1 ? -sine : quarter == 2 ? -cosine : sine;
}
