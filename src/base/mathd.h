/* mathd.h - log, exp, sine and cosine in double, each a fixed sequence of IEEE operations.
 * C libraries' functions differ between releases and machines, and the differences would reach our text through the
 * sampling noise and the rotary angles. Only +, -, *, / and comparisons of doubles are used, never fma, so every
 * compiler and every machine gives the same bits (build with -ffp-contract=off and round to nearest). */
#ifndef RATOON_BASE_MATHD_H
#define RATOON_BASE_MATHD_H

/* Within 1 unit in the last place. log of 0: -infinity; of a negative number or NaN: NaN. */
double mathd_log(double x);
double mathd_log1p(double x);
/* Within 1 unit in the last place, subnormal results rounded twice. Above 709.79: infinity; below -745.14: 0. */
double mathd_exp(double x);
/* Within 1.1 units in the last place for |x| <= 2^20; NaN in both beyond. */
void   mathd_sincos(double x, double *s, double *c);

#endif
