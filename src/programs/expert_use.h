/* expert_use.h - what programs say of an engine whose memory holds only some of a mixture's experts: how many, how the
 * others are read, and how often that was needed. Where memory holds all there is nothing to say. */
#ifndef RATOON_PROGRAMS_EXPERT_USE_H
#define RATOON_PROGRAMS_EXPERT_USE_H

#include "programs/program.h"

/* What was done since `before` was read: differences of the counters; slots, memory and io as they are. */
rt_expert_stats expert_use_since(const Program *p, const rt_expert_stats *before);
/* Experts that passes looked for, each once per layer and pass, and the share of `part` of them; 0: none. */
int64_t expert_use_reads(const rt_expert_stats *s);
double  expert_use_share(const rt_expert_stats *s, int64_t part);

enum { EXPERT_USE_TEXT = 256 };
/* "memory holds 512 experts at a time, in 1.2 of the 4.8 GB that all take; the others are read ...", for the start. */
const char *expert_use_start(char out[EXPERT_USE_TEXT], const Program *p, const rt_expert_stats *s);
/* "4321 chosen, 31 of 900 looked for missed (3.4 %), 21 MB read, 35 ms waited", for a request or an answer. */
const char *expert_use_line(char out[EXPERT_USE_TEXT], const rt_expert_stats *s);
/* The figures of --stats and `bench`; seconds: of the work, of which waiting was a part. */
json_t *expert_use_json(const rt_expert_stats *s, double seconds);                /* null: memory holds all */
void    expert_use_print(FILE *f, const rt_expert_stats *s, double seconds);

#endif
