/* costs.h - what steps have learned about the times of passes, kept between runs in the file "costs" of the user's
 * cache folder (kept.h): a line for each pair of models on each machine, card and number of threads. */
#ifndef RATOON_PROGRAMS_COSTS_H
#define RATOON_PROGRAMS_COSTS_H

#include "programs/program.h"

/* Gives a step, before its first pass, what earlier runs learned. */
void costs_load(const Program *p, rt_step *step);
/* Keeps what a step has learned. */
void costs_save(const Program *p, const rt_step *step);

#endif
