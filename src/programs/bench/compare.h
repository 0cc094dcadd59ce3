/* compare.h - runs another program's benchmark in turn with ours. It is a shell command whose output is read after it
 * has ended. While it runs only this process of ours is in memory, no model. It has a process group of its own, which
 * is killed at its time limit, at Ctrl-C, or when its first process ends. */
#ifndef RATOON_PROGRAMS_BENCH_COMPARE_H
#define RATOON_PROGRAMS_BENCH_COMPARE_H

#include "programs/program.h"

/* What a rate measures: a prompt of n tokens (llama-bench's pp), decoding one by one (tg, n tokens; 0: not stated),
 * passes of one row for each of n sequences (llama-batched-bench). */
typedef enum { RATE_PROMPT, RATE_DECODE, RATE_ROWS } RateKind;
enum { COMPARED_RATES_MAX = 64, COMPARED_ROUNDS_MAX = 1000 };
/* tok_s [rounds]: the fastest sample of each run */
typedef struct { RateKind kind; int32_t n, rounds, run; double *tok_s; } ComparedRate;

typedef struct {
    const Options *o;
    const char *model;                             /* our file, to report if the program measured another one */
    int32_t   threads;                             /* ours, likewise */
    bool      told;
    int32_t   runs;                                /* runs that counted */
    ComparedRate rate[COMPARED_RATES_MAX]; int32_t n;
} Compared;

/* Checks that --compare and --compare-rate make sense. Returns false after reporting an error. */
bool   compare_ready(const Options *o);
/* Runs the command once. counts false: a warm-up run, which only has to print the numbers. Returns false after
 * reporting an error. */
bool   compare_run(Compared *p, bool counts);
void   compare_free(Compared *p);
/* Over all runs so far; 0: the command measured nothing of the kind. n 0: any. */
double compare_fastest(const Compared *p, RateKind kind, int32_t n);
double compare_median(const Compared *p, RateKind kind, int32_t n);
/* The rate of a pass of n rows: of n sequences, else of a prompt of n tokens, else, if n is 1, of decoding. Sets *what
 * to the name of the one used. */
double compare_rows(const Compared *p, int32_t n, const char **what);

#endif
