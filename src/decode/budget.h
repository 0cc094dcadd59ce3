/* budget.h - how many rows the next pass should have, so that speculation never costs.
 * A Cost knows what a pass of n rows and a drafting pass take on this machine; a Budget, one per session, decides from it and from what
 * drafting has brought so far whether to draft, and how many nodes to verify. All of it is deterministic in what it is told and changes
 * speed only: the text is the target's own in any case.
 *
 *    plain ──(gap tokens passed, the account can pay)──▶ probe: draft once ──(predicted gain > 5 %)──▶ speculating
 *      ▲                                                  │ else the gap doubles, up to 256               │
 *      └──────────────────────────────────────────────────┴── three bad predictions in a row, slower than ┘
 *                                                             plain over 32 tokens, or the account is empty
 *
 * The account is what keeps promise 2: a number of plain tokens' time that drafting may lose. It starts at 3.5, gains 1 % of the text and
 * whatever drafting wins, and pays whatever drafting loses; nothing that could overdraw it is started. */
#ifndef RATOON_DECODE_BUDGET_H
#define RATOON_DECODE_BUDGET_H

#include <stdbool.h>
#include <stdint.h>

#include "backend/backend.h"

/* pass_ms [rows]: measured where seen > 0, between measured ones on a line, beyond them continued; [1] == 0: nothing known yet. Cliffs
 * stay as measured: both sides of a kernel's width are points of their own. */
typedef struct {
    float   pass_ms[ROWS_DECODE + 1], draft_ms;
    int32_t seen[ROWS_DECODE + 1], draft_seen;
} Cost;

void  cost_reset(Cost *c);
/* One measurement: a mean of the first twenty, a moving average (0.05) from there. Anything above three times the present value counts
 * as three times, so that a stall is not taken for the machine's speed. */
void  cost_pass(Cost *c, int32_t rows, double seconds);
void  cost_draft(Cost *c, double seconds);

/* The number of nodes that maximises expected tokens per time: (1 + gain[0] + .. + gain[n-1]) / (draft_ms + pass_ms[n + 1]) over all n
 * up to n_max with pass_ms[n + 1] <= limit_ms (0 is always allowed: a plain row); the least on ties. A full scan, as real cost tables
 * have cliffs. best, if not NULL: that maximum, in tokens per ms. */
int32_t budget_pick(const float *pass_ms, const double *gain, int32_t n_max, float draft_ms, float limit_ms, double *best);

typedef struct {
    bool    on;                                                      /* speculating */
    int32_t since, gap;                                              /* plain: tokens since the last draft; how many there should be */
    int32_t bad;                                                     /* predictions in a row that promised less than plain decoding */
    double  expect_ms;                                               /* what drafting and pass of this step should take; 0: not known */
    double  account;                                                 /* plain tokens' time that drafting may still lose */
    double  tokens, ms, won;                                         /* since speculation was entered: decayed over 32 tokens; what it won */
    int32_t stay;                                                    /* tokens since it was entered */
} Budget;

void    budget_reset(Budget *b);
/* Before a step: draft for this session? */
bool    budget_should_draft(Budget *b, const Cost *c);
/* After drafting: how many nodes to verify, given the probabilities of the tree's nodes in heap order (tree_gains); 0: a plain row. */
int32_t budget_choose(Budget *b, const Cost *c, const double *gain, int32_t n_max);
/* After the step: whether it drafted, tokens it brought, the time of drafting and pass together. Call cost_pass and cost_draft as well. */
void    budget_observe(Budget *b, const Cost *c, bool drafted, int32_t committed, double seconds);

#endif
