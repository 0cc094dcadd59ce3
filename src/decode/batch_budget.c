/* batch_budget.c - see batch_budget.h. */
#include "decode/batch_budget.h"

#include <math.h>
#include <string.h>

#include "base/mathd.h"

enum { FIRST_GAP = 4, LONG_GAP = 256, WINDOW = 64 };
static const double CREDIT = 2.5, INTEREST = 0.004, WEALTH = 8;        /* account: start, per time, at most */
/* gain at which drafting is switched on; share of the best rate that suffices for more sessions to draft */
static const double ENTER = 1.01, ALSO = 0.98;
static const double OWN_KEEP = 0.8, ALL_KEEP = 0.95;                 /* decay of forecasts per proposal */
/* prior weights, in proposals: against a session's own, and against those after a similar token */
static const double OTHERS = 2, ALIKE = 4;
static const double UNSURE = 1.5, SURE = 5;                          /* margins */
static const double TRUST_KEEP = 0.97, TRUST_PRIOR = 1, TRUST_FORGET = 0.9;
static const double PACE_PRIOR = 8;

void batch_reset(BatchBudget *k)
{
    memset(k, 0, sizeof *k);
    k->account = CREDIT;
}

void forecast_add(Forecast *h, double keep, const double *gain, int32_t n)
{
    for (int32_t i = 0; i < FORECAST_BINS; i++) h->nodes[i] *= keep, h->gain[i] *= keep;
    for (int32_t i = 0; i < n; i++) {
        int32_t bin = gain[i] < 1 ? (int32_t) (gain[i] * FORECAST_BINS) : FORECAST_BINS - 1;
        h->nodes[bin]++;
        h->gain[bin] += gain[i];
    }
    h->weight = keep * h->weight + 1;
}

static int32_t step_kind_of(double margin) { return isnan(margin) ? 0 : margin < UNSURE ? 1 : margin < SURE ? 2 : 3; }

void batch_hear(BatchBudget *k, Forecast *h, double margin, const double *gain, int32_t n)
{
    forecast_add(h, OWN_KEEP, gain, n);
    forecast_add(&k->all[step_kind_of(margin)], ALL_KEEP, gain, n);
    h->at = ++k->clock;
}

static double trust(const BatchBudget *k) { return fmin(1, (k->got + TRUST_PRIOR) / (k->promised + TRUST_PRIOR)); }

static double pace_of(const BatchBudget *k) { return fmax(1, (k->tokens + PACE_PRIOR) / (k->time + PACE_PRIOR)); }

/* Expected promise of a session's tree: that of its last trees, shrunk towards trees after tokens of this margin, which
 * are in turn shrunk towards all trees. */
static Forecast expected(const BatchBudget *k, const Member *m)
{
    Forecast out = { .weight = 1 };
    const Forecast *h = m->forecast, *like = &k->all[step_kind_of(m->margin)];
    double weight = 0, kept = trust(k), part = 1 / (h->weight + OTHERS), some = OTHERS / (like->weight + ALIKE);
    for (int32_t i = 0; i < BATCH_KINDS; i++) weight += k->all[i].weight;
    for (int32_t i = 0; i < FORECAST_BINS; i++) {
        double nodes = 0, gain = 0;
        for (int32_t j = 0; j < BATCH_KINDS; j++) nodes += k->all[j].nodes[i], gain += k->all[j].gain[i];
        out.nodes[i] = part * (h->nodes[i] + some * (like->nodes[i] + ALIKE * nodes / weight));
        out.gain[i] = part * (h->gain[i] + some * (like->gain[i] + ALIKE * gain / weight)) * kept;
    }
    return out;
}

static void join(Forecast *to, const Forecast *h, double sign)
{
    for (int32_t i = 0; i < FORECAST_BINS; i++) to->nodes[i] += sign * h->nodes[i], to->gain[i] += sign * h->gain[i];
}

/* Expands the histogram into single nodes, the likeliest first; returns how many. */
static int32_t list_of(double *gain, const Forecast *h, int32_t n_max)
{
    int32_t n = 0;
    double room = 1, sum = 0;
    for (int32_t i = FORECAST_BINS - 1; i >= 0 && n < n_max; i--) {
        double left = h->nodes[i], each = left > 1e-9 ? h->gain[i] / left : 0;
        for (; left >= room && n < n_max; room = 1, sum = 0) {
            gain[n++] = sum + room * each;
            left -= room;
        }
        room -= left;
        sum += left * each;
    }
    return n;
}

/* A step of n sessions seen as a step of one: gains are divided by n, pass_ms is indexed by the rows beyond the other
 * roots. */
typedef struct { float pass_ms[ROWS_DECODE + 1]; double plain; int32_t n, n_max; } Share;

static void share(Share *s, const Cost *c, int32_t n)
{
    s->n = n;
    s->plain = (double) c->pass_ms[n];
    for (int32_t r = 1; r + n - 1 <= ROWS_DECODE; r++) s->pass_ms[r] = c->pass_ms[r + n - 1];
    s->n_max = cost_known(c, ROWS_DECODE) - n;
}

typedef struct { int32_t nodes; double rate; } Promise;              /* of a step; rate: tokens per plain step's time */

/* Returns false if the account cannot pay for it. */
static bool promise(Promise *p, const BatchBudget *k, const Share *s, const double *gain, int32_t n, double draft_ms)
{
    double part[ROWS_DECODE], tokens, most = k->account * s->plain - draft_ms;
    if (draft_ms > 0 && most < 0) return false;
    if (n > s->n_max) n = s->n_max;
    for (int32_t i = 0; i < n; i++) part[i] = gain[i] / s->n;
    p->nodes = budget_pick(s->pass_ms, part, n < 0 ? 0 : n, draft_ms, s->plain + fmax(most, 0), pace_of(k) / s->plain,
                           &tokens);
    p->rate = tokens * s->plain / (draft_ms + (double) s->pass_ms[p->nodes + 1]);
    return true;
}

/* A tree's value beyond the price of its rows. */
static double worth(const Forecast *h, double price)
{
    double sum = 0;
    for (int32_t i = 0; i < FORECAST_BINS; i++) sum += fmax(0, h->gain[i] - price * h->nodes[i]);
    return sum;
}

/* The sessions for which drafting promises more than their free guesses, best first. */
static int32_t candidates(const BatchBudget *k, const Share *s, Member *m, int32_t *who)
{
    double value[ROWS_DECODE], price = pace_of(k) * s->n * (double) (s->pass_ms[2] - s->pass_ms[1]) / s->plain;
    int32_t found = 0;
    for (int32_t i = 0; i < s->n && k->clock > 0; i++) {
        if (!m[i].may) continue;
        m[i].next = expected(k, &m[i]);
        double mine = worth(&m[i].next, price);
        if (!(mine > worth(&m[i].free, price))) continue;
        int32_t at = found++;
        for (; at > 0 && value[at - 1] < mine; at--) value[at] = value[at - 1], who[at] = who[at - 1];
        value[at] = mine;
        who[at] = i;
    }
    return found;
}

/* Twice the gap, up to where the interest earned during it pays for a proposal. */
static int32_t longer(const Cost *c, const Share *s, int32_t gap)
{
    double limit = (double) cost_draft_ms(c, 1) / (INTEREST * s->plain);
    int32_t most = limit < FIRST_GAP ? FIRST_GAP : limit < LONG_GAP ? (int32_t) limit : LONG_GAP;
    int32_t first = most / 4 < FIRST_GAP ? FIRST_GAP : most / 4, twice = gap < first ? first : 2 * gap;
    return twice < most ? twice : most;
}

/* A probe: the session whose last proposal is oldest. */
static int32_t probe(const BatchBudget *k, const Cost *c, const Share *s, Member *m, int32_t n)
{
    Member *oldest = NULL;
    for (int32_t i = 0; i < n; i++)
        if (m[i].may && (!oldest || m[i].forecast->at < oldest->forecast->at)) oldest = &m[i];
    if (!oldest || s->n_max < 1 || k->since < k->gap || k->account * s->plain < (double) cost_draft_ms(c, 1)) return 0;
    oldest->drafts = true;
    return 1;
}

int32_t batch_plan(BatchBudget *k, const Cost *c, Member *m, int32_t n)
{
    Forecast sum = { 0 };
    int32_t who[ROWS_DECODE], drafting = 0;
    double rate[ROWS_DECODE + 1], top = 0;
    Share s;
    for (int32_t i = 0; i < n; i++) m[i].drafts = false;
    if (!cost_ready(c)) return 0;
    share(&s, c, n);
    bool was_on = k->on;
    int32_t found = s.n_max > 0 ? candidates(k, &s, m, who) : 0;
    for (int32_t i = 0; i < n; i++) join(&sum, &m[i].free, 1);
    for (int32_t d = 0; d <= found; d++) {
        double list[ROWS_DECODE];
        Promise p;
        if (d > 0) {
            join(&sum, &m[who[d - 1]].free, -1);
            join(&sum, &m[who[d - 1]].next, 1);
        }
        if (!promise(&p, k, &s, list, list_of(list, &sum, s.n_max), d ? (double) cost_draft_ms(c, d) : 0))
            found = d - 1;
        else
            top = fmax(top, rate[d] = p.rate);
    }
    k->without = rate[0];
    for (int32_t d = found; d > 0 && !drafting; d--)
        if (rate[d] >= ALSO * top && rate[d] > rate[0] * (was_on ? 1 : ENTER)) drafting = d;
    for (int32_t d = 0; d < drafting; d++) m[who[d]].drafts = true;
    k->on = drafting > 0;
    if (was_on && !k->on) k->gap = k->won > 0 ? FIRST_GAP : longer(c, &s, k->gap);
    if (!was_on && k->on) k->won = 0;
    return drafting ? drafting : probe(k, c, &s, m, n);
}

int32_t batch_choose(BatchBudget *k, const Cost *c, int32_t n, int32_t drafted, const double *gain, int32_t n_max)
{
    Share s;
    Promise p;
    double trusted[ROWS_DECODE];
    if (!(c->pass_ms[1] > 0)) return 0;
    share(&s, c, n);
    if (n_max > ROWS_DECODE - n) n_max = ROWS_DECODE - n;
    for (int32_t i = 0; i < n_max; i++) trusted[i] = gain[i] * (drafted ? trust(k) : 1);
    if (!promise(&p, k, &s, trusted, n_max, drafted ? (double) cost_draft_ms(c, drafted) : 0)) p.nodes = 0, p.rate = 0;
    if (drafted && !k->on) k->gap = p.rate >= fmax(k->without, pace_of(k)) ? 1 : longer(c, &s, k->gap);
    return p.nodes;
}

void batch_observe(BatchBudget *k, const Cost *c, int32_t n, int32_t drafted, int32_t nodes, int32_t tokens,
                   double promised, int32_t got)
{
    double plain = (double) c->pass_ms[n],
           time = plain > 0
                  ? ((drafted ? (double) cost_draft_ms(c, drafted) : 0) + (double) c->pass_ms[n + nodes]) / plain : 1;
    double mine = (double) tokens / n, won = mine - time, decay = mathd_exp(-mine / WINDOW);
    if (k->account < CREDIT) k->account = fmin(CREDIT, k->account + INTEREST * time);
    k->account = fmin(WEALTH, k->account + won);
    k->tokens = k->tokens * decay + mine;
    k->time = k->time * decay + time;
    k->since = drafted ? 0 : k->since + time;
    if (!drafted) return;
    if (k->on) k->won += won;
    double keep = promised > 0 ? TRUST_KEEP : TRUST_FORGET;
    k->got = k->got * keep + got;
    k->promised = k->promised * keep + promised;
}
