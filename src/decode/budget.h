/* budget.h - how many rows the next pass should have, so that speculation never costs.
 * A Budget, one per session, decides from the cost table (cost.h) and from the gains of drafting so far whether to
 * draft and how many nodes to verify. All of it is deterministic in its inputs and changes speed only: the text is the
 * target's own in any case.
 *
 *    plain ──(gap passed, the account can pay)──▶ probe: draft once ──(predicted gain > 2 %)──▶ speculating
 *      ▲                                           │ else the gap doubles, as far as it pays       │
 *      └───────────────────────────────────────────┴── three bad predictions in a row, slower than ┘
 *                                                      plain over 64 tokens, or the account is empty
 *
 * A text begins with a probe. Time is counted in plain passes. The pace is the current rate: recent tokens per plain
 * pass's time. If the step is predicted to beat the pace, the width with the highest rate is taken; otherwise the one
 * that maximises tokens - pace * time. While speculating, a gate looks at how the last step went (tokens gained, the
 * target's margin at its last token) and skips drafting if after such steps it has yielded less, net of time at the
 * pace, than a plain pass or than verifying free guesses (ngram.h). Free guesses are verified in any state, as long as
 * the account can pay for their rows, but they put off a probe only for a while.
 *
 * The account bounds the loss (promise 2): the time, in plain passes, that speculation may lose. It starts at 3.5,
 * gains 1 % of the time (up to 3.5, or what a proposal takes if that is more) and whatever speculation wins, and pays
 * whatever it loses; nothing that could overdraw it is started. */
#ifndef RATOON_DECODE_BUDGET_H
#define RATOON_DECODE_BUDGET_H

#include <stdbool.h>
#include <stdint.h>

#include "decode/cost.h"

/* How many nodes to verify: n <= n_max with pass_ms[n + 1] <= limit_ms (0, a plain row, is always allowed), the
 * smallest on ties. With tokens(n) = 1 + gain[0] + .. + gain[n - 1]: the n with the highest tokens(n) / (draft_ms +
 * pass_ms[n + 1]), if that is at least pace (tokens per ms), else the n with the highest tokens(n) - pace * pass_ms[n +
 * 1]. A full scan, as real cost tables have cliffs. tokens: NULL, or receives tokens(n). */
int32_t budget_pick(const float *pass_ms, const double *gain, int32_t n_max, double draft_ms, double limit_ms,
                    double pace, double *tokens);
/* Whether budget_pick could choose more than n of up to n_max nodes if every further node were as likely as the last of
 * these n; if not, there is no need to grow them. */
bool    budget_open(const float *pass_ms, const double *gain, int32_t n, int32_t n_max, double draft_ms, double pace);

/* What drafting gained after steps of one kind, decayed. */
typedef struct { double tokens, time, steps; } StepKind;
enum { STEP_KINDS = 12 };

typedef struct {
    bool    on;                     /* speculating */
    double  since; int32_t gap;     /* plain passes' time since the last draft; gap to keep while plain */
    int32_t bad;                    /* consecutive predictions below plain decoding */
    double  account;                /* how much speculation may still lose, in plain passes' time */
    double  tokens, time;           /* of the last steps, decayed over 64 tokens */
    double  won;                    /* since speculation was entered */
    int32_t stay;                   /* tokens since then */
    int32_t last;                   /* tokens of the last step if it drafted, else 0 */
    double  margin;                 /* between the two largest logits of its last row; NAN: unknown */
    StepKind promised;              /* predictions for the steps that drafted, decayed; while plain, for the last one
                                     * only */
    StepKind kind[STEP_KINDS];      /* by last and margin */
} Budget;

void    budget_reset(Budget *b);
/* Starts another text in the same session. It may lose half of what the last one left in the account, at least as much
 * as a first text may and at most 8. It begins with a probe; after that the gap is half of the last text's. */
void    budget_next(Budget *b);
/* Before a step: whether to draft for this session. free_value: from budget_choose_free; 0: nothing. */
bool    budget_should_draft(Budget *b, const Cost *c, double free_value);
/* Whether the tree is worth growing beyond n nodes, up to n_max, before one of the next two functions is called
 * (budget_open for this session). */
bool    budget_more(const Budget *b, const Cost *c, bool drafted, const double *gain, int32_t n, int32_t n_max);
/* After drafting: how many nodes to verify, given the probabilities of the tree's nodes in heap order (Growth); 0: a
 * plain row. */
int32_t budget_choose(Budget *b, const Cost *c, const double *gain, int32_t n_max);
/* The same for a tree that cost nothing to make. value: tokens gained beyond a plain pass, minus the extra time at the
 * pace; 0 if the tree is not worth its rows. */
int32_t budget_choose_free(Budget *b, const Cost *c, const double *gain, int32_t n_max, double *value);
/* After the step: whether it drafted, nodes verified, tokens gained, the target's margin at the last row (NAN:
 * unknown). The step's time is taken from the cost table, so call cost_pass and cost_draft first: there a stall of the
 * machine is one observation among many, and lasting slowness is known to affect plain decoding too. The raw time would
 * charge both to drafting. */
void    budget_observe(Budget *b, const Cost *c, bool drafted, int32_t nodes, int32_t committed, double margin);

#endif
