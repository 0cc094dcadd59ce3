/* costs.h - what steps have learned about the times of passes, kept between runs in the file "costs" of the user's
 * cache folder. It holds one line for each pair of models on each machine, backend and number of threads; the line used
 * longest ago makes room for a new one. A file that cannot be read or written is no error: it is only about speed. */
#ifndef RATOON_PROGRAMS_COSTS_H
#define RATOON_PROGRAMS_COSTS_H

#include "programs/program.h"

enum { COSTS_MOST = 64 };                          /* lines */

/* Gives a step, before its first pass, what earlier runs learned. */
void costs_load(const Program *p, rt_step *step);
/* Keeps what a step has learned. */
void costs_save(const Program *p, const rt_step *step);

#endif
