/* bench.h - what the kinds of `ratoon bench` share: rounds in which our model and another program alternate, with the
 * machine's peaks measured in between, and how a result is written. Each kind is a file: bench_passes.c, bench_rates.c,
 * bench_prompts.c, bench_roofline.c, bench_serve.c. */
#ifndef RATOON_PROGRAMS_BENCH_BENCH_H
#define RATOON_PROGRAMS_BENCH_BENCH_H

#include "programs/bench/compare.h"
#include "programs/bench/plot.h"
#include "programs/program.h"
#include "ratoon_lab.h"

typedef struct {
    Options     o;
    Program     p;
    Compared    compared;
    rt_roofline *roof;                             /* open while our model is */
    rt_peaks    peaks;                             /* over all rounds; zeros: unknown */
    bool        by_clocks;                         /* they are a GPU's, and not measured */
    int32_t     threads, rounds;                   /* rounds: 1 unless there is another program */
    double      bytes, values, head;               /* of the weights that a pass reads and multiplies; of its head */
    double      kv;                                /* bytes of a token's keys and values */
    double      expert_bytes;                      /* of a mixture's experts: all of them */
    int32_t     experts, experts_used;             /* 0: no mixture */
    rt_expert_stats store;                         /* of the last round; slots 0: memory holds all experts */
    double      seconds;                           /* of that round's measurements */
    /* What to state beside figures. Folders are removed from command lines, since pictures and tables are passed on. */
    char        command[1024], compare[1024], compared_name[48], machine[256], model[512];
    char        small[4][1100];                    /* the same as small print */
} Bench;

/* One round: opens our model (with: see program_open), runs `measure`, releases everything, then runs the other
 * program. Returns false after reporting an error, or after Ctrl-C. */
bool bench_rounds(Bench *b, int with, bool (*measure)(Bench *b, void *ud), void *ud);
void bench_peaks(Bench *b);                        /* one round of the roofline, between other measurements */
/* Names a backend's GPU, if it is one's, beside the machine: it has layers of the model, and its clocks are the peaks.
 * Of several, the first one's are. backend NULL: none was given. */
void bench_card(Bench *b, const char *backend);
/* A lower limit in milliseconds for a pass of n rows after `after` tokens: weights, keys and values are read once, and
 * every weight is multiplied for every row; 0: the peaks are not known. */
double bench_limit_ms(const Bench *b, int32_t rows, int32_t after);
/* more: bytes that the pass reads beyond those of one row. */
double bench_limit_of_ms(const Bench *b, int32_t rows, int32_t after, double more);

/* The beginning of every JSON result: command, version, machine, model, peaks and the other program. */
json_t *bench_json(const Bench *b);
/* Prints model, machine and peaks. */
void bench_print_machine(const Bench *b);
const char *bench_by_clocks(const Bench *b);       /* " (by the card's clocks)", or "" */
/* "    80 % of the limit"; "": there is none. */
const char *bench_share(char out[40], const Bench *b, double share, const char *of);
void bench_plot_text(Bench *b, PlotText *t, const char *title, const char *subtitle);
/* How to write one kind of result; `result` is of that kind. `csv` writes after the comments at the top. */
typedef struct {
    void    (*csv)(Bench *b, void *result, FILE *f);
    void    (*svg)(Bench *b, void *result, FILE *f);
    json_t *(*json)(Bench *b, void *result);
    void    (*text)(Bench *b, void *result);
} BenchReport;
/* Writes the files asked for with --csv and --svg, then JSON or text on standard output. Returns false after reporting
 * an error. */
bool bench_report(Bench *b, const BenchReport *how, void *result);

int  bench_passes(Bench *b), bench_rates(Bench *b), bench_prompts(Bench *b), bench_roofline(Bench *b),
    bench_serve(Bench *b);

/* {"name": ..., "edge": [[...], ...]}: see rt_profile. Returns false after reporting an error. */
bool profile_read(const Options *o, rt_profile *out, char name[64], const char *path);
bool profile_write(const Options *o, const rt_profile *p, const char *name, const char *path);

#endif
