/* budget.h - how many rows the next pass should have, so that speculation never costs.
 * A Cost knows what a pass of n rows and a drafting pass take on this machine; a Budget, one per session, decides from it and from what
 * drafting has brought so far whether to draft, and how many nodes to verify. All of it is deterministic in what it is told and changes
 * speed only: the text is the target's own in any case.
 *
 *    plain ──(gap passed, the account can pay)──▶ probe: draft once ──(predicted gain > 2 %)──▶ speculating
 *      ▲                                           │ else the gap doubles, as far as it pays       │
 *      └───────────────────────────────────────────┴── three bad predictions in a row, slower than ┘
 *                                                      plain over 64 tokens, or the account is empty
 *
 * A text begins with a probe. Time is counted in plain passes. The pace is what such a time brings lately, in tokens, and so what it is
 * worth. Where a step promises more than the pace its width is the one with the most tokens per time; where it promises less it has to be
 * got over with, and its width is the one that loses least at that price. While speculating, a gate looks at how the last step went
 * (tokens it brought, how sure the target was of its last token) and leaves out the drafting where after such steps, at that price, it
 * brought less than a plain pass, or less than checking the guesses that cost nothing (ngram.h); those are checked in any state, as far
 * as the account pays for their rows.
 *
 * The account is what keeps promise 2: a number of plain passes' time that speculation may lose. It starts at 3.5, gains 1 % of the time
 * and whatever speculation wins, and pays whatever it loses; nothing that could overdraw it is started. */
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
    float   more_ms; int32_t more_seen;            /* what a proposal takes longer for each further session */
} Cost;

/* Widths worth measuring before the first step, those that show most first; the others are learned while decoding. A fast model has the time
 * for all of them, and needs it: what its narrow passes differ by is less than what one of them, met while decoding, is off. */
enum { COST_WIDTHS = 25 };
extern const int32_t cost_widths[COST_WIDTHS];

void  cost_reset(Cost *c);
/* Measured while nothing else was asked of the machine: takes the place of what was believed. */
void  cost_set_pass(Cost *c, int32_t rows, double seconds);
void  cost_set_draft(Cost *c, double seconds);
/* As it was in a step. What slows one pass slows them all, also those that are not in use, and comparing a slow minute's time with a quick
 * one's is no comparison. So a time moves the whole table by a part of what it is off, and its own entry by its share in what that one has
 * seen. Beyond one and a half times the present value it counts as that, so that a stall is not taken for the machine's speed. */
void  cost_pass(Cost *c, int32_t rows, double seconds);
void  cost_draft(Cost *c, int32_t sessions, double seconds);
/* ms of a proposal for so many sessions at once; 0: nothing is known. */
float cost_draft_ms(const Cost *c, int32_t sessions);
/* rows, or as many as there is something known of: what is guessed of passes wider than the widest that was measured holds for twice its rows. */
int32_t cost_known(const Cost *c, int32_t rows);

/* How many nodes to check, n up to n_max with pass_ms[n + 1] <= limit_ms (0 is always allowed: a plain row), the least on ties. With
 * tokens(n) = 1 + gain[0] + .. + gain[n - 1]: that with the most tokens(n) / (draft_ms + pass_ms[n + 1]), if it is at least pace (tokens per
 * ms), else that with the most tokens(n) - pace * pass_ms[n + 1]. A full scan, as real cost tables have cliffs. tokens: NULL, or what n
 * promises. */
int32_t budget_pick(const float *pass_ms, const double *gain, int32_t n_max, double draft_ms, double limit_ms, double pace, double *tokens);
/* Whether it could pick more than n of up to n_max nodes if each of the others were as likely as the last of these: if not, there is no need
 * to know them. */
bool    budget_open(const float *pass_ms, const double *gain, int32_t n, int32_t n_max, double draft_ms, double pace);

/* What drafting brought after steps of one kind, decayed. */
typedef struct { double tokens, time, steps; } Sight;
enum { SIGHTS = 12 };

typedef struct {
    bool    on;                                                      /* speculating */
    double  since; int32_t gap;                                      /* plain passes' time since the last draft; how much there should be while plain */
    int32_t bad;                                                     /* predictions in a row that promised less than plain decoding */
    double  account;                                                 /* plain tokens' time that speculation may still lose */
    double  tokens, time;                                            /* of the last steps, decayed over 64 tokens */
    double  won;                                                     /* since speculation was entered */
    int32_t stay;                                                    /* tokens since then */
    int32_t last;                                                    /* tokens of the last step if it drafted, else 0 */
    double  margin;                                                  /* between its last row's two largest logits; NAN: not known */
    Sight   promised;                                                /* before the steps that drafted, decayed; of the last one alone while plain */
    Sight   sight[SIGHTS];                                           /* by last and margin */
} Budget;

void    budget_reset(Budget *b);
/* A further text of the same session: half of what the last one left may be lost on it, at least what a first text may lose and at most 8;
 * it begins with a probe, and waits for the next half as long as the last one would have. */
void    budget_next(Budget *b);
/* Before a step: draft for this session? free_value: what budget_choose_free promises; 0: nothing. */
bool    budget_should_draft(Budget *b, const Cost *c, double free_value);
/* Whether the tree is worth growing beyond n nodes, up to n_max, before one of the next two is asked (budget_open for this session). */
bool    budget_more(const Budget *b, const Cost *c, bool drafted, const double *gain, int32_t n, int32_t n_max);
/* After drafting: how many nodes to verify, given the probabilities of the tree's nodes in heap order (Growth); 0: a plain row. */
int32_t budget_choose(Budget *b, const Cost *c, const double *gain, int32_t n_max);
/* The same for a tree that cost nothing to make. value: tokens beyond a plain pass's when the time beyond one is paid for at the pace; 0
 * where it is not worth its rows. */
int32_t budget_choose_free(Budget *b, const Cost *c, const double *gain, int32_t n_max, double *value);
/* After the step: whether it drafted, nodes verified, tokens it brought, the target's margin at the last row (NAN: not known). Its time is
 * what the cost table says, so call cost_pass and cost_draft before: there a stall of the machine is one time among many, and slowness that
 * lasts is known to slow plain decoding too. The time as it was would charge both to drafting. */
void    budget_observe(Budget *b, const Cost *c, bool drafted, int32_t nodes, int32_t committed, double margin);

#endif
