/* ranges.h - the ranges of the sampling parameters. The library (draw_check), the command line's options and the
 * request fields all read them here, so a value that one accepts is never refused by the next. */
#ifndef RATOON_BASE_RANGES_H
#define RATOON_BASE_RANGES_H

#define TEMPERATURE_MAX 10000.0
#define TOP_P_MIN       0.000001
#define MIN_P_MAX       1.0
#define REPETITION_MIN  0.01
#define REPETITION_MAX  100.0
#define PENALTY_MAX     2.0                        /* of frequency and presence, both signs */
#define REP_WINDOW_MAX  256
#define STEPS_MAX       65536                      /* of a block that is denoised, also stable ones */
#define CONFIDENCE_MAX  100.0

#endif
