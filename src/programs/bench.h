/* bench.h - the two halves of `ratoon bench`: passes (cmd_bench.c) and decoding runs (bench_prompts.c). */
#ifndef RATOON_PROGRAMS_BENCH_H
#define RATOON_PROGRAMS_BENCH_H

#include "programs/program.h"

typedef struct { Options o; Program p; } Bench;

int  bench_prompts(Bench *b);
/* {"name": ..., "edge": [[...], ...]}: see rt_profile. False: said. */
bool profile_read(const Options *o, rt_profile *out, char name[64], const char *path);
bool profile_write(const Options *o, const rt_profile *p, const char *name, const char *path);

#endif
