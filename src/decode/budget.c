/* budget.c - the cost table and the controller of budget.h. */
#include "decode/budget.h"

#include <math.h>
#include <string.h>

#include "base/mathd.h"

/* ---------------------------------------------------------------- cost */

/* How many times a time counts that was set, at most, that was read off a line between two others, and that was guessed. A proposal has but one
 * time, met whenever there is drafting, so that one need not last. */
enum { SEEN_SET = 60, SEEN_MOST = 100, SEEN_DRAFT = 8, SEEN_BETWEEN = 8, SEEN_GUESS = 2 };
static const float  MORE_GUESS = 0.8f;                              /* of a proposal, for each further session: rows that cost nearly as much */
static const float  ROW_GUESS = 0.15f;                               /* of a plain pass, per further row, before a wider one was seen */
static const double STALL = 1.5, COMMON = 0.2;

const int32_t cost_widths[COST_WIDTHS] = { 1, 8, 16, 4, 32, 24, 64, 2, 12, 9, 17, 33, 48, 6, 7, 5, 3, 10, 11, 14, 13, 15, 20, 28, 40 };

void cost_reset(Cost *c) { memset(c, 0, sizeof *c); }

static bool possible(double ms) { return ms > 0 && ms < 1e9; }       /* not of a clock that stood still, or went back */

static double off(float value, double ms) { return fmin(fmax(ms / (double)value, 1 / STALL), STALL); }

static void learn(float *value, int32_t *seen, double ms)
{
    *value *= (float)(1 + (off(*value, ms) - 1) / (*seen + SEEN_GUESS));
    if (*seen < SEEN_MOST) ++*seen;
}

/* The rows in between. Nothing is known below the first point: a narrower pass costs about the same. */
static void fill(Cost *c)
{
    int32_t last = 0;
    float slope = 0;
    for (int32_t n = 1; n <= ROWS_DECODE; n++) {
        if (!c->seen[n]) continue;
        for (int32_t i = last + 1; i < n; i++)
            c->pass_ms[i] = last ? c->pass_ms[last] + (c->pass_ms[n] - c->pass_ms[last]) * (float)(i - last) / (float)(n - last) : c->pass_ms[n];
        slope = last ? (c->pass_ms[n] - c->pass_ms[last]) / (float)(n - last) : ROW_GUESS * c->pass_ms[n];
        last = n;
    }
    if (slope < 0) slope = 0;
    for (int32_t i = last + 1; i <= ROWS_DECODE; i++) c->pass_ms[i] = c->pass_ms[last] + slope * (float)(i - last);
}

static int32_t widest(const Cost *c)
{
    int32_t n = ROWS_DECODE;
    while (n > 1 && !c->seen[n]) n--;
    return n;
}

void cost_set_pass(Cost *c, int32_t rows, double seconds)
{
    if (rows < 1 || rows > ROWS_DECODE || !possible(seconds * 1e3)) return;
    c->pass_ms[rows] = (float)(seconds * 1e3);
    c->seen[rows] = SEEN_SET;
    fill(c);
}

void cost_set_draft(Cost *c, double seconds)
{
    if (!possible(seconds * 1e3)) return;
    c->draft_ms = (float)(seconds * 1e3);
    c->draft_seen = SEEN_DRAFT;
}

void cost_pass(Cost *c, int32_t rows, double seconds)
{
    double ms = seconds * 1e3;
    if (rows < 1 || rows > ROWS_DECODE || !possible(ms)) return;
    if (!(c->pass_ms[rows] > 0)) {
        c->pass_ms[rows] = (float)ms;
        c->seen[rows] = 1;
    } else {
        float all = (float)mathd_exp(COMMON * mathd_log(off(c->pass_ms[rows], ms)));
        for (int32_t n = 1; n <= ROWS_DECODE; n++) c->pass_ms[n] *= all;
        c->draft_ms *= all;
        c->more_ms *= all;
        if (!c->seen[rows] && rows < widest(c)) c->seen[rows] = SEEN_BETWEEN;
        learn(&c->pass_ms[rows], &c->seen[rows], ms);
    }
    fill(c);
}

void cost_draft(Cost *c, int32_t sessions, double seconds)
{
    double ms = seconds * 1e3;
    if (!possible(ms)) return;
    if (sessions > 1 && c->draft_seen) {
        if (!c->more_seen) c->more_ms = MORE_GUESS * c->draft_ms;
        learn(&c->more_ms, &c->more_seen, (ms - (double)c->draft_ms) / (sessions - 1));
    } else if (!c->draft_seen) {
        c->draft_ms = (float)(ms / sessions);
        c->draft_seen = 1;
    } else learn(&c->draft_ms, &c->draft_seen, ms);
}

float cost_draft_ms(const Cost *c, int32_t sessions)
{
    return c->draft_ms + (float)(sessions - 1) * (c->more_seen ? c->more_ms : MORE_GUESS * c->draft_ms);
}

int32_t cost_known(const Cost *c, int32_t rows)
{
    int32_t most = 2 * widest(c);
    return rows < most ? rows : most;
}

/* ---------------------------------------------------------------- width */

int32_t budget_pick(const float *pass_ms, const double *gain, int32_t n_max, double draft_ms, double limit_ms, double pace, double *tokens)
{
    double sum = 1, promise = 1, top = 1 / (draft_ms + (double)pass_ms[1]);
    int32_t pick = 0;
    if (n_max > ROWS_DECODE - 1) n_max = ROWS_DECODE - 1;
    for (int32_t n = 1; n <= n_max; n++) {
        sum += gain[n - 1];
        double ms = (double)pass_ms[n + 1], rate = sum / (draft_ms + ms);
        if (ms > limit_ms || !(rate > top)) continue;
        top = rate;
        promise = sum;
        pick = n;
    }
    if (top < pace) {
        sum = promise = 1, top = 1 - pace * (double)pass_ms[1], pick = 0;
        for (int32_t n = 1; n <= n_max; n++) {
            sum += gain[n - 1];
            double ms = (double)pass_ms[n + 1], value = sum - pace * ms;
            if (ms > limit_ms || !(value > top)) continue;
            top = value;
            promise = sum;
            pick = n;
        }
    }
    if (tokens) *tokens = promise;
    return pick;
}

bool budget_open(const float *pass_ms, const double *gain, int32_t n, int32_t n_max, double draft_ms, double pace)
{
    double sum = 1, price = fmax(pace, 1 / (draft_ms + (double)pass_ms[1])), best;
    if (n < 1) return n_max > 0;
    if (n_max > ROWS_DECODE - 1) n_max = ROWS_DECODE - 1;
    for (int32_t i = 1; i <= n; i++) price = fmax(price, (sum += gain[i - 1]) / (draft_ms + (double)pass_ms[i + 1]));
    /* At the price of the best rate, or of the pace, both of the pick's rules look for the most tokens less the time's worth. */
    best = 1 - price * (double)pass_ms[1];
    sum = 1;
    for (int32_t i = 1; i <= n; i++) best = fmax(best, (sum += gain[i - 1]) - price * (double)pass_ms[i + 1]);
    for (int32_t i = n + 1; i <= n_max; i++)
        if ((sum += gain[n - 1]) - price * (double)pass_ms[i + 1] > best) return true;
    return false;
}

/* ---------------------------------------------------------------- controller */

enum { FIRST_GAP = 4, SHORT_GAP = 8, LONG_GAP = 256, BAD_MAX = 3, WINDOW = 64, SKIP_MAX = 4 };
static const double CREDIT = 3.5, CREDIT_NEXT = 8, INTEREST = 0.01, WEALTH = 24;       /* account: start, start of a next text at most, per time, at most */
static const double BOLD = 1.4, ENTER = 1.02, ENTER_FREE = 0.02, PACE_PRIOR = 4;
static const double DRAFT_GUESS = 0.5;                               /* of a plain pass, before it was measured */
static const double SURE = 1.5, SIGHT_KEEP = 0.98, PROMISE_KEEP = 0.9, SIGHT_PRIOR = 16;  /* margin of a target that is sure; steps like this one: decay, prior */

void budget_reset(Budget *b)
{
    memset(b, 0, sizeof *b);
    b->account = CREDIT;
    b->margin = NAN;
}

void budget_next(Budget *b)
{
    double account = fmin(fmax(CREDIT, 0.5 * b->account), CREDIT_NEXT);
    int32_t gap = b->gap / 2;
    budget_reset(b);
    b->gap = gap;
    b->since = LONG_GAP;                                             /* it begins with a look, and what the last one taught about gaps holds */
    b->account = account;
}

static double draft_cost(const Cost *c) { return c->draft_seen ? (double)c->draft_ms : DRAFT_GUESS * (double)c->pass_ms[1]; }

/* Twice the gap, as long as looking again costs more than the interest on it. */
static int32_t longer(const Cost *c, int32_t gap)
{
    double limit = draft_cost(c) / (INTEREST * (double)c->pass_ms[1]);
    int32_t most = limit < FIRST_GAP ? FIRST_GAP : limit < LONG_GAP ? (int32_t)limit : LONG_GAP;
    int32_t twice = gap < FIRST_GAP ? FIRST_GAP : 2 * gap;
    return twice < most ? twice : most;
}

static void leave(Budget *b, const Cost *c)
{
    b->gap = b->won > 0 ? SHORT_GAP : longer(c, b->gap);
    b->on = false;
    b->since = 0;
}

/* Steps of one kind: the last one did not draft, brought one token, two or three, more; the target was sure, unsure, or would not say. */
static int32_t sight_of(const Budget *b)
{
    int32_t last = b->last < 2 ? b->last : b->last < 4 ? 2 : 3;
    int32_t sure = isnan(b->margin) ? 0 : b->margin < SURE ? 1 : 2;
    return 3 * last + sure;
}

/* Tokens that a plain pass's time brings lately, which is what it is worth. */
static double pace_of(const Budget *b) { return fmax(1, (b->tokens + PACE_PRIOR) / (b->time + PACE_PRIOR)); }

/* What drafting should bring now beyond a plain pass, in tokens, after the time that it takes beyond one was paid for: by steps like this
 * one, drawn towards all steps while they are few, and those towards what was promised. */
static double drafting_value(const Budget *b)
{
    const Sight *s = &b->sight[sight_of(b)];
    if (!(b->promised.time > 0)) return 0;
    double pace = pace_of(b), all = SIGHT_PRIOR * (b->promised.tokens - pace * b->promised.time) / b->promised.steps, steps = SIGHT_PRIOR;
    for (int32_t i = 0; i < SIGHTS; i++) {
        all += b->sight[i].tokens - pace * b->sight[i].time;
        steps += b->sight[i].steps;
    }
    return (s->tokens - pace * s->time + SIGHT_PRIOR * all / steps) / (s->steps + SIGHT_PRIOR) - (1 - pace);
}

bool budget_should_draft(Budget *b, const Cost *c, double free_value)
{
    double plain = (double)c->pass_ms[1];
    if (!(plain > 0)) return false;
    bool affordable = b->account * plain >= draft_cost(c);
    if (b->on && !affordable) leave(b, c);
    if (!affordable) return false;
    double value = drafting_value(b);
    if (free_value > 0 && free_value > value) return false;
    if (!b->on) return b->since >= b->gap;
    return value >= 0 || b->since >= SKIP_MAX;
}

static int32_t nodes_known(const Cost *c, int32_t n_max) { return cost_known(c, n_max + 1) - 1; }

bool budget_more(const Budget *b, const Cost *c, bool drafted, const double *gain, int32_t n, int32_t n_max)
{
    double plain = (double)c->pass_ms[1];
    return plain > 0 && budget_open(c->pass_ms, gain, n, nodes_known(c, n_max), drafted ? draft_cost(c) : 0, pace_of(b) / plain);
}

int32_t budget_choose(Budget *b, const Cost *c, const double *gain, int32_t n_max)
{
    double plain = (double)c->pass_ms[1], draft = draft_cost(c), pace = pace_of(b) / plain, tokens;
    n_max = nodes_known(c, n_max);

    /* If nothing is accepted the step loses the draft and what the pass takes beyond a plain one. A probe risks half of the account, so that
     * there can be another, unless less than all would not pay for the draft, or it promises much. */
    double account = b->account * plain, half = 0.5 * account < draft ? account : 0.5 * account;
    int32_t n = budget_pick(c->pass_ms, gain, n_max, draft, plain + fmax(account - draft, 0), pace, &tokens);
    double expected = tokens * plain / (draft + (double)c->pass_ms[n + 1]);
    if (!b->on && expected < BOLD) {
        n = budget_pick(c->pass_ms, gain, n_max, draft, plain + fmax(half - draft, 0), pace, &tokens);
        expected = tokens * plain / (draft + (double)c->pass_ms[n + 1]);
    }
    bool was_on = b->on;
    if (b->on) {
        b->bad = expected > 1 ? 0 : b->bad + 1;
        if (b->bad >= BAD_MAX) leave(b, c);
    } else if (n > 0 && expected > ENTER) {
        b->on = true;
        b->bad = b->stay = 0;
        b->won = 0;
    } else b->gap = longer(c, b->gap);
    b->since = 0;
    double keep = was_on ? PROMISE_KEEP : 0, time = (draft + (double)c->pass_ms[n + 1]) / plain;
    b->promised = (Sight) { b->promised.tokens * keep + tokens, b->promised.time * keep + time, b->promised.steps * keep + 1 };
    return n;
}

int32_t budget_choose_free(Budget *b, const Cost *c, const double *gain, int32_t n_max, double *value)
{
    double plain = (double)c->pass_ms[1], pace = pace_of(b), tokens;
    *value = 0;
    if (!(plain > 0)) return 0;
    int32_t n = budget_pick(c->pass_ms, gain, nodes_known(c, n_max), 0, plain * (1 + fmax(0.5 * b->account, 0)), pace / plain, &tokens);
    double more = tokens - 1 - pace * ((double)c->pass_ms[n + 1] / plain - 1);
    if (more < ENTER_FREE) return 0;
    *value = more;
    return n;
}

void budget_observe(Budget *b, const Cost *c, bool drafted, int32_t nodes, int32_t committed, double margin)
{
    double plain = (double)c->pass_ms[1];
    Sight *s = &b->sight[sight_of(b)];
    b->last = drafted ? committed : 0;
    b->margin = margin;
    double time = plain > 0 ? ((drafted ? draft_cost(c) : 0) + (double)c->pass_ms[nodes + 1]) / plain : 1;
    if (b->account < CREDIT) b->account = fmin(CREDIT, b->account + INTEREST * time);
    if (!drafted) b->since += time;
    double decay = mathd_exp(-(double)committed / WINDOW), won = committed - time;
    b->tokens = b->tokens * decay + committed;
    b->time = b->time * decay + time;
    b->account = fmin(WEALTH, b->account + won);
    if (!drafted) return;
    b->won += won;
    s->tokens = s->tokens * SIGHT_KEEP + committed;
    s->time = s->time * SIGHT_KEEP + time;
    s->steps = s->steps * SIGHT_KEEP + 1;
    if (!b->on) return;
    b->stay += committed;
    if (b->stay >= WINDOW && b->tokens < b->time) leave(b, c);
}
