/* estimate.h - what a model will take on this machine, before it is loaded: memory, which is what the library would
 * allocate (rt_plan) as a line in the context, so that the largest context that fits can be solved for; and time, an
 * estimate from the bytes that a pass reads, the products that it computes, the machine's peak rates, and how many
 * guesses of a drafter hold. `plan`, `doctor` and `serve` share it. */
#ifndef RATOON_PROGRAMS_ESTIMATE_H
#define RATOON_PROGRAMS_ESTIMATE_H

#include "programs/program.h"
#include "ratoon_lab.h"

/* ---- memory ---- */

enum { SERVE_CTX_MOST = 131072, SERVE_CTX_LEAST = 2048 };

/* Bytes of `sessions` sessions and one step, with everything they share: fixed + token * context; gpu [needs.cards]:
 * those in the GPUs' memories. */
typedef struct { double fixed, token; } MemoryLine;
typedef struct {
    rt_needs needs;                                /* of one session of ctx tokens; free as it was found */
    int32_t  sessions, ctx;
    MemoryLine main, gpu[RT_CARDS_MAX];
} Memory;
/* Plans the files of p for --ctx tokens. Without --ctx, the context is the library's choice, or for a server the
 * largest up to 131,072 that all sessions have room for in 80 % of the free memory that the model leaves. */
rt_status memory_plan(Memory *out, Program *p, int32_t sessions, bool server, rt_error *e);
double  memory_bytes(const Memory *m, int32_t ctx);                     /* of main memory */
double  memory_bytes_gpu(const Memory *m, int32_t ctx);                 /* of all GPUs' */
bool    memory_fits(const Memory *m);              /* also if nothing is known about free memory */
/* That of the GPUs alone. full NULL, or receives the first that has too little. */
bool    memory_fits_gpu(const Memory *m, int32_t *full);
double  memory_bytes_card(const Memory *m, int32_t card);               /* of one of them, with m->ctx */
bool    memory_cut(const rt_needs *n);              /* a GPU has only some layers, or experts: no speeds */
/* The largest context, in steps of 256 tokens, that fits in this share of the free memory that the model leaves; 0:
 * none. A GPU's memory comes in pages, of which the line knows those at its ends only. */
int32_t memory_ctx(const Memory *m, double share);
/* Sets m->ctx to that, but to at least `least` and at most `most`; with a GPU it is planned, so that *m is exact there,
 * and shorter if it does not fit. */
rt_status memory_choose(Memory *m, Program *p, double share, int32_t least, int32_t most, rt_error *e);
/* The most that the server's prefix cache and its stored responses will take: --cache-ram and --store-ram, by default
 * no more than three quarters and an eighth of what the model and all sessions leave free. */
double  memory_prefix_cache(const Memory *m, const Options *o);
double  memory_store(const Memory *m, const Options *o);

/* ---- time ---- */

enum { ROWS_MOST = 64 };

/* The processor's name. Returns how many threads are used. */
int32_t machine_name(char *out, size_t cap, const Options *o);
/* The machine's rates on the threads and the backend that run the model, measured for about half a second, memory as a
 * pass of n reads it; of a GPU those that its clocks allow, which passes do not reach: what follows from them is a
 * bound. */
rt_status machine_peaks(rt_peaks *out, const Program *p, const rt_needs *n, rt_error *e);
/* The median of each rate: on a shared machine single rounds are slower, and now and then much faster, than what a pass
 * meets. n: up to PEAK_ROUNDS. */
enum { PEAK_ROUNDS = 64 };
rt_peaks  peaks_median(const rt_peaks *round, int32_t n);

/* Bytes that a pass of so many rows reads beyond those of one row: a mixture's experts, if rows chose them
 * independently of each other. bytes: of all experts; experts 0: no mixture. */
double experts_more(double bytes, int32_t experts, int32_t used, int32_t rows);

/* A mixture of whose experts memory holds only some: their share; the share of calls that finds its expert in memory,
 * by the profile or as if all were used alike; bytes per second of reading the others, 0: unknown. */
typedef struct { double share, hits, disk_bytes_per_s; } ExpertTier;
/* Of the experts that n is planned with; reads pieces of the model's file, past the page cache, for a quarter of a
 * second. */
ExpertTier experts_measure(const Program *p, const rt_needs *n);

/* Milliseconds of a pass of the target by its rows, and of one proposal of the drafter (0: there is none). */
typedef struct { double pass_ms[ROWS_MOST + 1], draft_ms; int32_t block; } Costs;
/* As estimated, for passes after `after` tokens. */
void    costs_estimate(Costs *out, const rt_needs *n, const rt_peaks *p, int32_t after);
/* Adds the time of reading the experts that are not in memory. t->disk_bytes_per_s is known. */
void    costs_experts(Costs *c, const rt_needs *n, const ExpertTier *t);
/* Replaces estimates by what was measured at n widths, ascending, the first being 1; between them lines. */
void    costs_measured(Costs *c, const int32_t *rows, const double *ms, int32_t n);

/* How often guesses hold: held[d] is the share of proposals whose first d + 1 guesses are all right. */
typedef struct { double held[ROWS_MOST]; } Reach;
Reach reach_each(double right);          /* every guess holds with this probability */
double  reach_length(const Reach *g, int32_t rows);                     /* tokens per pass of these rows */
/* Tokens per second of plain decoding, and the most with a drafter, at any number of rows up to its block; never less
 * than plain decoding, to which the controller returns. rows NULL, or receives that number. */
double  costs_plain(const Costs *c);
double  costs_drafted(const Costs *c, const Reach *g, int32_t *rows);
/* What a drafter of this kind is known to reach, in text that is hard to guess (talk, prose) and easy (code, maths). */
typedef struct { Reach talk, code; } Published;
Published reach_published(const rt_needs *n);

/* "2.1" or "14": tokens per second with two digits. */
const char *rate_text(char out[24], double rate);
/* "19.8 GB", "512 MB", "3 kB" */
const char *memory_text(char out[24], double bytes);
/* Two amounts with as many digits as it takes to tell them apart: "1123 MB", "1120 MB". */
void memory_pair(char a[24], char b[24], double need, double there);
/* ", and 2.1 GB of the GPU's memory (32 of 32 layers), 8.0 GB free", and the like; "" without a GPU */
enum { MEMORY_GPU_TEXT = 128 };
const char *memory_gpu_text(char out[MEMORY_GPU_TEXT], const Memory *m);
/* "32K" if it is a multiple of 1024, else "5000" */
const char *tokens_text(char out[24], int32_t tokens);

#endif
