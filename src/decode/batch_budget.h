/* batch_budget.h - whether sessions that decode in the same pass should draft, decided for all of them together.
 * With one decoding session budget.h decides and this controller only records. Several decoding sessions share one
 * pass and one proposal, so the cost of drafting belongs to none of them alone, and its losses must not be counted
 * once per session. Each kind of knowledge is kept where it belongs: the cost table describes the machine, a
 * Forecast what one session's trees promise, and one common ratio how far such promises are kept. From these the
 * controller predicts, before any proposal is paid for, what a step yields if d of its sessions draft:
 *
 *     (sessions + promised gains) / (proposals for d sessions + pass of all roots and the best number of nodes),
 *     d = 0, 1, 2, ...
 *
 * The d with the highest value wins; sessions that do not draft use guesses that cost nothing to make (ngram.h). If
 * none should draft, a single session makes a proposal now and then, so that its forecast stays up to date: immediately
 * after one that paid for itself, otherwise after a gap that doubles until probing costs no more than the account
 * earns. One account, in units of a plain step's time, pays for all losses: it starts at 2.5, gains 0.4 % of the time
 * and whatever speculation wins, and nothing that could overdraw it is started. Deterministic, like budget.h. */
#ifndef RATOON_DECODE_BATCH_BUDGET_H
#define RATOON_DECODE_BATCH_BUDGET_H

#include "decode/budget.h"

/* Histogram of tree nodes by probability (16 bins): count and summed probability. For one session: decayed sums over
 * its last proposals; weight is their decayed number. Averaging trees node by node would hide that confident trees
 * leave rows to the others. */
enum { FORECAST_BINS = 16 };
typedef struct { double nodes[FORECAST_BINS], gain[FORECAST_BINS], weight; int64_t at; } Forecast;

enum { BATCH_KINDS = 4 };
typedef struct {
    Forecast all[BATCH_KINDS];      /* all sessions' proposals, by the target's margin at the token before */
    int64_t clock;                  /* proposals recorded so far */
    double  got, promised;          /* decayed sums over visited rows of drafted trees: how many had an accepted child,
                                     * and how many were expected to (accept_expected) */
    double  account;                /* how much may still be lost, in plain steps' time */
    double  since; int32_t gap;     /* plain steps' time since the last proposal; gap to keep while drafting does not
                                     * pay */
    double  tokens, time;           /* of the last steps, decayed; time in plain steps */
    double  without;                /* tokens per time of this step if no session drafts */
    double  won;                    /* since drafting was switched on */
    bool    on;                     /* drafting pays, so some sessions draft */
} BatchBudget;

/* A session in a step. may: drafting is possible; margin: between the two largest logits at its last token, NAN:
 * unknown; free: forecast of the tree made of free guesses; next: of the next proposal; drafts: the decision. */
typedef struct { bool may, drafts; double margin; Forecast free, next, *forecast; } Member;

/* Adds a tree's nodes, gain [n] as in Growth; the previous content is multiplied by `keep`. */
void    forecast_add(Forecast *h, double keep, const double *gain, int32_t n);

void    batch_reset(BatchBudget *k);
/* Before a step of n sessions: sets drafts of each and returns how many do. */
int32_t batch_plan(BatchBudget *k, const Cost *c, Member *m, int32_t n);
/* Records what a session's tree promises after a proposal, alone or in a batch: gain [n] as in Growth. */
void    batch_hear(BatchBudget *k, Forecast *h, double margin, const double *gain, int32_t n);
/* How many nodes to verify besides the roots of n sessions, `drafted` of which have drafted. gain [n_max]: of all trees
 * together. */
int32_t batch_choose(BatchBudget *k, const Cost *c, int32_t n, int32_t drafted, const double *gain, int32_t n_max);
/* After the step: nodes verified, tokens gained by all sessions; and, summed over the sessions that drafted,
 * accept_expected and the accepted nodes. The step's time is taken from the cost table, as in budget_observe. */
void    batch_observe(BatchBudget *k, const Cost *c, int32_t n, int32_t drafted, int32_t nodes, int32_t tokens,
                      double promised, int32_t got);

#endif
