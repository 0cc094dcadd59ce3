/* peer.h - another program's benchmark, run in turn with ours. It is a command for the shell; what it prints is read when it has ended.
 * While it runs nothing of ours is in memory but this process. It has a process group of its own, which does not outlive its time limit,
 * Ctrl-C or its first process. */
#ifndef RATOON_PROGRAMS_PEER_H
#define RATOON_PROGRAMS_PEER_H

#include "programs/program.h"

/* What a rate is of: a prompt of n tokens (llama-bench's pp), decoding one by one (tg, n tokens; 0: it did not say), passes of one row
 * for each of n sequences (llama-batched-bench). */
typedef enum { RATE_PROMPT, RATE_DECODE, RATE_ROWS } RateKind;
enum { PEER_RATES_MAX = 64, PEER_ROUNDS_MAX = 1000 };
typedef struct { RateKind kind; int32_t n, rounds, run; double *tok_s; } PeerRate;                /* tok_s [rounds]: the fastest sample of each run */

typedef struct {
    const Options *o;
    const char *model;                             /* our file: a peer that measured another one is named */
    int32_t   threads;                             /* ours, likewise */
    bool      told;
    int32_t   runs;                                /* that counted */
    PeerRate  rate[PEER_RATES_MAX]; int32_t n;
} Peer;

/* --compare and --compare-rate make sense. False: said. */
bool   peer_ready(const Options *o);
/* Runs the command once. counts false: a run that warms up, of which only the numbers' being there matters. False: said. */
bool   peer_run(Peer *p, bool counts);
void   peer_free(Peer *p);
/* Of all runs so far; 0: the command measured nothing of the kind. n 0: any. */
double peer_fastest(const Peer *p, RateKind kind, int32_t n);
double peer_median(const Peer *p, RateKind kind, int32_t n);
/* A pass of n rows: sequences, else a prompt of as many tokens, else decoding for one row. Sets *what to which of them it is. */
double peer_rows(const Peer *p, int32_t n, const char **what);

#endif
