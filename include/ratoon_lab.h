/* ratoon_lab.h - the laboratory: rows that are not kept, pass times, acceptance drawn from a profile, and what a
 * machine can do. For benchmarks, scoring and comparisons with other programs; generating text needs none of it.
 *
 * Unlike those of ratoon.h, these structs and functions may change with every version: build a program with the header
 * of the library that it runs with. Threads and errors follow the rules of ratoon.h; calls that take a step report
 * errors through it. */
#ifndef RATOON_LAB_H
#define RATOON_LAB_H

#include "ratoon.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- rows ---- */

/* What rt_rows computes for each row. Rows without logits skip the head, the largest matrix. */
enum { RT_ROWS_TAPS = 1, RT_ROWS_LOGITS = 2 };
/* Called in row order with logits [vocab] and taps [n_taps * dim], each NULL if not asked for. Both are valid until the
 * callback returns. */
typedef void (*rt_row)(void *ud, int32_t i, const float *logits, const float *taps);
/* Sets the session's text to `prefix` (committed first, may be empty), evaluates n rows after it and keeps none. A
 * prefix that ends with the rows of the last call is not computed again, so a long text can be examined in pieces.
 * parent NULL: a chain of any length; else one tree, n <= 64, parent[0] == -1, parent[i] < i. want: RT_ROWS_*, at least
 * one; RT_ROWS_TAPS needs an engine with taps (RT_EARG). The session has no text afterwards. */
rt_status rt_rows(rt_step *st, rt_session *s, const int32_t *prefix, size_t n_prefix, const int32_t *token,
                  const int32_t *parent, int32_t n, int want, rt_row row, void *ud);
/* Of a model that denoises ("model.canvas"; RT_EUNSUPPORTED: it does not): the logits of a canvas of n tokens, as many
 * as its canvas has, after prefix, as in the first step of a block. before not NULL: as in the step after one over that
 * canvas [n], with the self-conditioning by its softmax, for which its logits are divided by t (0: the temperature of a
 * block's first step). The logits are those of the model, not divided by a temperature. row gets no taps. Nothing is
 * kept, and the session's text is forgotten. */
rt_status rt_canvas_rows(rt_step *st, rt_session *s, const int32_t *prefix, size_t n_prefix, const int32_t *token,
                         int32_t n, const int32_t *before, float t, rt_row row, void *ud);
/* The drafter's logits for the block that starts with `anchor` after prefix; row is called draft.block times. */
rt_status rt_draft_rows(rt_step *st, rt_session *s, const int32_t *prefix, size_t n_prefix, int32_t anchor, rt_row row,
                        void *ud);

/* ---- times ---- */

/* Measures a pass of n rows (1 to 64) as if `after` tokens were committed (at least the actual number, for which -1
 * stands) and writes repeats >= 1 times in milliseconds to ms. Nothing is kept. */
rt_status rt_time_pass(rt_step *st, rt_session *s, int32_t after, int32_t n, int32_t repeats, double *ms);

/* ---- acceptance ---- */

/* edge[d][r]: the probability that the child of drafter rank r at depth d + 1 is the target's choice, given its
 * parent. */
typedef struct { int32_t n_depth, n_rank; double edge[16][16]; } rt_profile;
/* For benchmarks: from the next pass on acceptance is drawn from the profile instead of decided by the target, so the
 * text means nothing. The profile is copied; NULL: the target decides again. An invalid profile is refused (RT_EARG
 * with the reason), and nothing changes. */
rt_status rt_simulate(rt_step *st, const rt_profile *profile, uint64_t seed);
/* The acceptance that this step object has seen so far, as a profile for rt_simulate. */
void      rt_step_profile(const rt_step *st, rt_profile *out);

/* ---- the machine ---- */

/* The machine's peak rates: bytes read from memory, int8 and f32 operations (a multiply-add counts as two). Measured in
 * rounds of about a twentieth of a second, which can be interleaved with passes: a round on n <= threads threads raises
 * each value of `fastest` that it exceeds. Memory is read `bytes` at a time, over and over, as passes read a model: few
 * bytes stay in the caches, as a small model does. 0: more than caches hold. A GPU's are not measured, but follow from
 * its clocks; RT_EUNSUPPORTED from rt_roofline_new: they are not known. */
typedef struct rt_roofline rt_roofline;
typedef struct { double bytes_per_s, int8_ops_per_s, f32_ops_per_s; } rt_peaks;
/* backend, threads: as in rt_options; of several cards, the first, since one at a time works. *out: to be freed; NULL
 * on failure. */
rt_status rt_roofline_new(rt_roofline **out, const char *backend, int32_t threads, rt_error *e);
void      rt_roofline_free(rt_roofline *r);
void      rt_roofline_round(rt_roofline *r, int32_t n, uint64_t bytes, rt_peaks *fastest);

/* A card that a backend sees. backend: its name for rt_options; level: the instructions that it has ("sm_90"); why:
 * what keeps it from being used, and what to do about it; "": nothing. memory: in all; free: of it, if the card was
 * opened; 0: unknown. */
typedef struct { char backend[32], name[128], level[16], driver[32], why[256]; uint64_t memory, free; } rt_card;
/* Describes the i-th card of a backend ("cuda"); RT_END past the last. Another failure says why there is none, or, if
 * it is not RT_EUNSUPPORTED, why its driver does not serve. open: opens the card as well, since what keeps it from
 * being used may show only then; that takes a moment, and memory of the card's meanwhile. */
rt_status rt_card_at(rt_card *out, const char *backend, int32_t i, bool open, rt_error *e);
/* Whether the one card that o->backend names computes what the CPU computes: loads a layer of each kind that the model
 * has, on both, and compares the logits of chains and trees of all widths, and a text that is drawn, bit for bit. Of o
 * only what the target's layers depend on counts; its progress hook is told of a "check". RT_OK: everything is the
 * same; RT_EBACKEND: something differs, or the card has failed; else the check could not be made. It takes seconds, and
 * memory for these layers on both sides. */
rt_status rt_card_check(const rt_options *o, rt_error *e);

/* Names another library than the system's for the driver of a backend's cards ("cuda": libcuda.so.1), such as the
 * tests' emulated one. Before the first other call of this library that names a backend; the string is kept, not
 * copied. */
void rt_card_driver(const char *backend, const char *library);

#ifdef __cplusplus
}
#endif
#endif
