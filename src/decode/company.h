/* company.h - whether sessions that decode in the same pass should draft, decided for all of them together.
 * A session alone is its own controller's affair (budget.h) and this one only listens. Where several decode, their passes are one and their
 * proposals are one, so what drafting costs is nobody's own, and what it loses must not be lost once per session. What is known is kept by
 * what it is about: the cost table knows the machine, a Hope knows what a session's trees promise, and how far such promises are kept is
 * known of all. From these follows what a step of any number of sessions brings if so many of them draft, before a single
 * proposal is paid for:
 *
 *     (sessions + promised gains) / (proposals for d sessions + pass of all roots and the best number of nodes),   d = 0, 1, 2, ...
 *
 * Those draft for whom it is most; guesses that cost nothing to make (ngram.h) stand where a session does not draft. Where it is d = 0,
 * one session alone makes a proposal now and then, so that what is hoped is no older than the text: after one that paid for itself at once,
 * else after a gap that doubles as far as looking costs more than the account earns. One account, of plain steps' time, pays for all that
 * is lost: it starts at 2.5, gains 0.4 % of the time and whatever speculation wins, and nothing that could overdraw it is started.
 * Deterministic, as budget.h is. */
#ifndef RATOON_DECODE_COMPANY_H
#define RATOON_DECODE_COMPANY_H

#include "decode/budget.h"

/* Nodes of trees by their probability, a bin for every sixteenth: how many and what they promise in all. Of a session: decayed sums over
 * its last proposals, whose weight is their number. A mean over trees node by node would not show that sure trees leave rows to others. */
enum { HOPE_BINS = 16 };
typedef struct { double nodes[HOPE_BINS], gain[HOPE_BINS], weight; int64_t at; } Hope;

enum { COMPANY_SIGHTS = 4 };
typedef struct {
    Hope    all[COMPANY_SIGHTS];                   /* of every session's proposals, by how sure the target was of the token before */
    int64_t clock;                                 /* proposals heard so far */
    double  got, promised;                         /* of rows in drafted trees that were reached, decayed: how many a node followed, and how many by accept_hoped */
    double  account;                               /* plain steps' time that may still be lost */
    double  since; int32_t gap;                    /* plain steps' time since the last proposal; how much there should be while none pays */
    double  tokens, time;                          /* of the last steps, decayed, in those of plain ones */
    double  without;                               /* tokens per time of this step if none drafts */
    double  won;                                   /* since drafting was taken up */
    bool    on;                                    /* some draft, as it pays */
} Company;

/* A session in a step. may: it can be drafted for; margin: between the two largest logits at its last token, NAN: not known; free: its
 * guesses' tree; drafts: the decision. */
typedef struct { bool may, drafts; double margin; Hope free, *hope; } Member;

/* Adds a tree's nodes, gain [n] as of Growth, to what is there, which counts `keep` of what it did. */
void    hope_add(Hope *h, double keep, const double *gain, int32_t n);

void    company_reset(Company *k);
/* Before a step of n sessions: sets drafts of each and returns how many do. */
int32_t company_plan(Company *k, const Cost *c, Member *m, int32_t n);
/* What a session's tree promises after a proposal, alone or in company: gain [n] as of Growth. */
void    company_hear(Company *k, Hope *h, double margin, const double *gain, int32_t n);
/* How many nodes to verify beside the roots of n sessions, `drafted` of which have drafted. gain [n_max]: of all trees together. */
int32_t company_choose(Company *k, const Cost *c, int32_t n, int32_t drafted, const double *gain, int32_t n_max);
/* After the step: nodes verified, tokens that it brought to all; of the sessions that drafted, the sum of accept_hoped and the nodes that
 * were accepted. Its time is what the cost table says, as for budget_observe. */
void    company_observe(Company *k, const Cost *c, int32_t n, int32_t drafted, int32_t nodes, int32_t tokens, double promised, int32_t got);

#endif
