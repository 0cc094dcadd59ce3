/* expert_profile.h - the file that says which experts of a mixture earlier texts used (format/hotness.h), as programs
 * keep it: beside the model, read wherever memory holds only some of the experts, written where --spark asks for it.
 * It is about speed only: where it cannot be read or written that is said once, and the command goes on. A format
 * tool (see tests/deps.py). */
#ifndef RATOON_PROGRAMS_EXPERT_PROFILE_H
#define RATOON_PROGRAMS_EXPERT_PROFILE_H

#include "programs/program.h"

/* After the files are found: settles which file it is, whether it is read and whether it is kept. Returns false after
 * reporting an error: --expert-profile names a file that is damaged or another model's, or --spark-calibrate one that
 * cannot be read. */
bool expert_profile_find(Program *p);
/* Once the engine is open: notes if nothing will be counted, as memory holds all experts; else reads the texts of
 * --spark-calibrate, one token each, and keeps what they used. Returns
 * false after reporting an error, or if it was cancelled. */
bool expert_profile_learn(Program *p);
/* Adds to the file what was used since the last time, if it is kept. at_once false: not again within a minute. */
void expert_profile_keep(Program *p, bool at_once);
/* hits [n]: the shares of calls that find their expert in memory, by the profile, if memory holds these shares of all
 * experts, the most used ones; without a profile the shares themselves, as if all were used alike. */
void expert_profile_hits(const Program *p, double *hits, const double *share, int32_t n);

#endif
