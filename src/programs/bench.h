/* bench.h - what the kinds of `ratoon bench` share: rounds in which our model and a peer take turns, the machine's peaks measured
 * between, and how a result is written. Each kind is a file: bench_passes.c, bench_rates.c, bench_prompts.c, bench_roofline.c,
 * bench_serve.c. */
#ifndef RATOON_PROGRAMS_BENCH_H
#define RATOON_PROGRAMS_BENCH_H

#include "programs/peer.h"
#include "programs/plot.h"
#include "programs/program.h"

typedef struct {
    Options     o;
    Program     p;
    Peer        peer;
    rt_roofline *roof;                             /* open while our model is */
    rt_peaks    peaks;                             /* of all rounds */
    int32_t     threads, rounds;                   /* rounds: with a peer, else 1 */
    double      bytes, values, head;               /* of the weights that a pass reads and multiplies; of its head */
    double      kv;                                /* bytes of a token's keys and values */
    /* What belongs beside figures. Folders are left out of the command lines, since pictures and tables travel. */
    char        command[1024], compare[1024], peer_name[48], machine[256], model[512];
    char        small[4][1100];                    /* the same as small print */
} Bench;

/* One round: our model is opened (with: see program_open), `measure` runs, and everything is released; then comes the peer. False: said,
 * or Ctrl-C. */
bool bench_rounds(Bench *b, int with, bool (*measure)(Bench *b, void *ud), void *ud);
void bench_peaks(Bench *b);                        /* a round of the roofline, between other measurements */
/* The least milliseconds that a pass of n rows can take here, behind `after` tokens: weights, keys and values are read once, and every weight is
 * multiplied for every row. */
double bench_limit_ms(const Bench *b, int32_t rows, int32_t after);

/* The beginning of every JSON result: command, version, machine, model, peaks and peer. */
json_t *bench_json(const Bench *b);
void bench_plot_text(Bench *b, PlotText *t, const char *title, const char *subtitle);
/* How a kind of result is written; `result` is the kind's own. `csv` writes behind the comments at the top. */
typedef struct {
    void    (*csv)(Bench *b, void *result, FILE *f);
    void    (*svg)(Bench *b, void *result, FILE *f);
    json_t *(*json)(Bench *b, void *result);
    void    (*text)(Bench *b, void *result);
} BenchReport;
/* Files asked for with --csv and --svg, then JSON or text on standard output. False: something could not be written, said. */
bool bench_report(Bench *b, const BenchReport *how, void *result);

int  bench_passes(Bench *b), bench_rates(Bench *b), bench_prompts(Bench *b), bench_roofline(Bench *b), bench_serve(Bench *b);

/* {"name": ..., "edge": [[...], ...]}: see rt_profile. False: said. */
bool profile_read(const Options *o, rt_profile *out, char name[64], const char *path);
bool profile_write(const Options *o, const rt_profile *p, const char *name, const char *path);

#endif
