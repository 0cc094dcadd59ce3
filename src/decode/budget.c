/* budget.c - the controller of budget.h. */
#include "decode/budget.h"

#include <math.h>
#include <string.h>

#include "base/mathd.h"

/* ---------------------------------------------------------------- width */

int32_t budget_pick(const float *pass_ms, const double *gain, int32_t n_max, double draft_ms, double limit_ms,
                    double pace, double *tokens)
{
    double sum = 1, promise = 1, top = 1 / (draft_ms + (double) pass_ms[1]);
    int32_t pick = 0;
    if (n_max > ROWS_DECODE - 1) n_max = ROWS_DECODE - 1;
    for (int32_t n = 1; n <= n_max; n++) {
        sum += gain[n - 1];
        double ms = (double) pass_ms[n + 1], rate = sum / (draft_ms + ms);
        if (ms > limit_ms || !(rate > top)) continue;
        top = rate;
        promise = sum;
        pick = n;
    }
    if (top < pace) {
        sum = promise = 1, top = 1 - pace * (double) pass_ms[1], pick = 0;
        for (int32_t n = 1; n <= n_max; n++) {
            sum += gain[n - 1];
            double ms = (double) pass_ms[n + 1], value = sum - pace * ms;
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
    double sum = 1, price = fmax(pace, 1 / (draft_ms + (double) pass_ms[1])), best;
    if (n < 1) return n_max > 0;
    if (n_max > ROWS_DECODE - 1) n_max = ROWS_DECODE - 1;
    for (int32_t i = 1; i <= n; i++) price = fmax(price, (sum += gain[i - 1]) / (draft_ms + (double) pass_ms[i + 1]));
    /* With time priced at the best rate, or at the pace, both rules of budget_pick maximise tokens minus the price of
     * the time. */
    best = 1 - price * (double) pass_ms[1];
    sum = 1;
    for (int32_t i = 1; i <= n; i++) best = fmax(best, (sum += gain[i - 1]) - price * (double) pass_ms[i + 1]);
    for (int32_t i = n + 1; i <= n_max; i++)
        if ((sum += gain[n - 1]) - price * (double) pass_ms[i + 1] > best) return true;
    return false;
}

/* ---------------------------------------------------------------- controller */

enum { FIRST_GAP = 4, SHORT_GAP = 8, LONG_GAP = 256, BAD_MAX = 3, WINDOW = 64, SKIP_MAX = 4 };
/*  account: at the start, at most at the start of a next text, interest per time, maximum */
static const double CREDIT = 3.5, CREDIT_NEXT = 8, INTEREST = 0.01, WEALTH = 24;
static const double BOLD = 1.4, ENTER = 1.02, ENTER_FREE = 0.02, PACE_PRIOR = 4, PUT_OFF = 64;
/* margin above which the target is sure; decay of step kinds and of promises; prior of a step kind */
static const double SURE = 1.5, KIND_KEEP = 0.98, PROMISE_KEEP = 0.9, KIND_PRIOR = 16;

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
    b->since = LONG_GAP;                    /* begins with a probe; the gap learned from the last text is kept */
    b->account = account;
}

static double draft_cost(const Cost *c) { return (double) cost_draft_ms(c, 1); }

/* Up to where interest fills the account: what a text begins with, or what a proposal takes, so that none is too dear
 * to be tried again some day. */
static double credit(const Cost *c) { return fmax(CREDIT, 1.001 * draft_cost(c) / (double) c->pass_ms[1]); }

/* Twice the gap, up to where the interest earned during it pays for another probe. */
static int32_t longer(const Cost *c, int32_t gap)
{
    double limit = draft_cost(c) / (INTEREST * (double) c->pass_ms[1]);
    int32_t most = limit < FIRST_GAP ? FIRST_GAP : limit < LONG_GAP ? (int32_t) limit : LONG_GAP;
    int32_t twice = gap < FIRST_GAP ? FIRST_GAP : 2 * gap;
    return twice < most ? twice : most;
}

static void leave(Budget *b, const Cost *c)
{
    b->gap = b->won > 0 ? SHORT_GAP : longer(c, b->gap);
    b->on = false;
    b->since = 0;
}

/* Step kinds: the last step did not draft, or gained one token, two or three, or more; the target was sure, unsure, or
 * its margin is unknown. */
static int32_t step_kind_of(const Budget *b)
{
    int32_t last = b->last < 2 ? b->last : b->last < 4 ? 2 : 3;
    int32_t sure = isnan(b->margin) ? 0 : b->margin < SURE ? 1 : 2;
    return 3 * last + sure;
}

/* Recent tokens per plain pass's time, the value of that time. */
static double pace_of(const Budget *b) { return fmax(1, (b->tokens + PACE_PRIOR) / (b->time + PACE_PRIOR)); }

/* Expected tokens from drafting now beyond a plain pass, minus the price of the extra time: from steps of this kind,
 * shrunk towards all steps while they are few, and those towards what was promised. */
static double drafting_value(const Budget *b)
{
    const StepKind *s = &b->kind[step_kind_of(b)];
    if (!(b->promised.time > 0)) return 0;
    double pace = pace_of(b), all = KIND_PRIOR * (b->promised.tokens - pace * b->promised.time) / b->promised.steps,
           steps = KIND_PRIOR;
    for (int32_t i = 0; i < STEP_KINDS; i++) {
        all += b->kind[i].tokens - pace * b->kind[i].time;
        steps += b->kind[i].steps;
    }
    return (s->tokens - pace * s->time + KIND_PRIOR * all / steps) / (s->steps + KIND_PRIOR) - (1 - pace);
}

bool budget_should_draft(Budget *b, const Cost *c, double free_value)
{
    if (!cost_ready(c)) return false;
    double plain = (double) c->pass_ms[1];
    bool affordable = b->account * plain >= draft_cost(c);
    if (b->on && !affordable) leave(b, c);
    if (!affordable) return false;
    /* Good free guesses put a probe off, but it does not wait for a step without any: there may be none. */
    if (!b->on) return b->since >= b->gap + PUT_OFF * free_value;
    double value = drafting_value(b);
    if (free_value > 0 && free_value > value) return false;
    return value >= 0 || b->since >= SKIP_MAX;
}

static int32_t nodes_known(const Cost *c, int32_t n_max) { return cost_known(c, n_max + 1) - 1; }

bool budget_more(const Budget *b, const Cost *c, bool drafted, const double *gain, int32_t n, int32_t n_max)
{
    double plain = (double) c->pass_ms[1];
    return plain > 0 &&
           budget_open(c->pass_ms, gain, n, nodes_known(c, n_max), drafted ? draft_cost(c) : 0, pace_of(b) / plain);
}

int32_t budget_choose(Budget *b, const Cost *c, const double *gain, int32_t n_max)
{
    double plain = (double) c->pass_ms[1], draft = draft_cost(c), pace = pace_of(b) / plain, tokens;
    n_max = nodes_known(c, n_max);

    /* If nothing is accepted the step loses the draft and the pass's time beyond a plain one. A probe risks half of the
     * account, so that another can follow, unless half would not pay for the draft or the probe promises much. */
    double account = b->account * plain, half = 0.5 * account < draft ? account : 0.5 * account;
    int32_t n = budget_pick(c->pass_ms, gain, n_max, draft, plain + fmax(account - draft, 0), pace, &tokens);
    double expected = tokens * plain / (draft + (double) c->pass_ms[n + 1]);
    if (!b->on && expected < BOLD) {
        n = budget_pick(c->pass_ms, gain, n_max, draft, plain + fmax(half - draft, 0), pace, &tokens);
        expected = tokens * plain / (draft + (double) c->pass_ms[n + 1]);
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
    double keep = was_on ? PROMISE_KEEP : 0, time = (draft + (double) c->pass_ms[n + 1]) / plain;
    b->promised = (StepKind) { b->promised.tokens * keep + tokens, b->promised.time * keep + time,
                               b->promised.steps * keep + 1 };
    return n;
}

int32_t budget_choose_free(Budget *b, const Cost *c, const double *gain, int32_t n_max, double *value)
{
    double plain = (double) c->pass_ms[1], pace = pace_of(b), tokens;
    *value = 0;
    if (!cost_ready(c)) return 0;
    int32_t n = budget_pick(c->pass_ms, gain, nodes_known(c, n_max), 0, plain * (1 + fmax(0.5 * b->account, 0)),
                            pace / plain, &tokens);
    double more = tokens - 1 - pace * ((double) c->pass_ms[n + 1] / plain - 1);
    if (more < ENTER_FREE) return 0;
    *value = more;
    return n;
}

void budget_observe(Budget *b, const Cost *c, bool drafted, int32_t nodes, int32_t committed, double margin)
{
    double plain = (double) c->pass_ms[1];
    StepKind *s = &b->kind[step_kind_of(b)];
    b->last = drafted ? committed : 0;
    b->margin = margin;
    double time = plain > 0 ? ((drafted ? draft_cost(c) : 0) + (double) c->pass_ms[nodes + 1]) / plain : 1;
    double most = plain > 0 ? credit(c) : CREDIT;
    if (b->account < most) b->account = fmin(most, b->account + INTEREST * time);
    if (!drafted) b->since += time;
    double decay = mathd_exp(-(double) committed / WINDOW), won = committed - time;
    b->tokens = b->tokens * decay + committed;
    b->time = b->time * decay + time;
    b->account = fmin(WEALTH, b->account + won);
    if (!drafted) return;
    b->won += won;
    s->tokens = s->tokens * KIND_KEEP + committed;
    s->time = s->time * KIND_KEEP + time;
    s->steps = s->steps * KIND_KEEP + 1;
    if (!b->on) return;
    b->stay += committed;
    if (b->stay >= WINDOW && b->tokens < b->time) leave(b, c);
}
