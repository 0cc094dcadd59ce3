/* test_budget.c - the controller on simulated machines: promise 2, "speculation never costs", with bounds. A world is a
 * cost table and a drafting time; a drafter is its claim at each depth and its actual accuracy. A text of 256 tokens is
 * decoded under the controller and compared with plain decoding and with the best fixed number of nodes. */
#include "decode/budget.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "decode/calib.h"

static uint64_t rng_state;
static double uniform(void)
{
    rng_state = rng_state * 6364136223846793005ull + 1442695040888963407ull;
    return (double) (rng_state >> 33) / 2147483648.0;
}

typedef struct { const char *name; double plain, row, draft, cliff; } World;        /* ms; cliff: added above 8 rows */
typedef struct { const char *name; double right, says; } Kind;
enum { DEPTH = 15, TOKENS = 256 };

static double pass_ms(const World *w, int32_t rows)
{
    return w->plain + w->row * (rows - 1) + (rows > 8 ? w->cliff : 0);
}

static const World demo  = { "demo", 0.15, 0.0214, 0.1, 0 };
static const World worlds[] = {
    { "demo", 0.15, 0.0214, 0.1, 0 }, { "light drafter", 0.15, 0.015, 0.05, 0 }, { "4B", 50, 1.2, 6, 0 },
    { "4B with a cliff", 50, 1.2, 6, 60 },
    { "heavy drafter", 1, 0.05, 2, 0 }, { "rows cost", 1, 0.5, 0.3, 0 }, { "rows cost everything", 1, 0.9, 0.1, 0 },
};
enum { WORLDS = sizeof worlds / sizeof *worlds };

typedef struct { Cost cost; Budget budget; Calibration calib; double ms, plain_ms; int32_t tokens, drafts; } Run;

static void run_start(Run *r, const World *w)
{
    static const int32_t measured[] = { 1, 2, 4, 8, 9, 16, 32, 64 };
    memset(r, 0, sizeof *r);
    cost_reset(&r->cost);
    for (int i = 0; i < 8; i++) cost_set_pass(&r->cost, measured[i], pass_ms(w, measured[i]) * 1e-3);
    cost_set_draft(&r->cost, w->draft * 1e-3);
    budget_reset(&r->budget);
    calib_reset(&r->calib);
}

/* One step, with times that vary by up to `uneven` of themselves. Acceptance teaches the calibration as in
 * accept_learn. */
static void run_step(Run *r, const World *w, const Kind *k, double uneven)
{
    int32_t nodes = 0, tokens = 1;
    double draft = 0, pass;
    bool drafted = budget_should_draft(&r->budget, &r->cost, 0);
    if (drafted) {
        double gain[DEPTH], p = 1;
        for (int32_t d = 0; d < DEPTH; d++)
            gain[d] = p *= exp((double) calib_edge(&r->calib, 0, d, (float) log(k->says)));
        draft = w->draft * (1 + uneven * (2 * uniform() - 1));
        cost_draft(&r->cost, 1, draft * 1e-3);
        nodes = budget_choose(&r->budget, &r->cost, gain, DEPTH);
        assert_in_range(nodes, 0, DEPTH);
        r->drafts++;
        if (nodes == 0) calib_forget(&r->calib, SOURCE_BLOCK);
    }
    pass = pass_ms(w, nodes + 1) * (1 + uneven * (2 * uniform() - 1));
    cost_pass(&r->cost, nodes + 1, pass * 1e-3);
    for (int32_t d = 0; d < nodes; d++) {
        bool hit = uniform() < k->right;
        float says = (float) log(k->says);
        calib_level(&r->calib, 0, exp((double) calib_map(&r->calib, 0, d, says)), hit);
        calib_count(&r->calib, 0, d, says, hit);
        calib_fit(&r->calib, 0, d);
        if (!hit) break;
        tokens++;
    }
    budget_observe(&r->budget, &r->cost, drafted, nodes, tokens, NAN);
    r->ms += draft + pass;
    r->tokens += tokens;
    r->plain_ms += w->plain * tokens;
}

static double run(const World *w, const Kind *k, uint64_t seed, double uneven)
{
    static Run r;
    rng_state = seed * 7919 + 1;
    run_start(&r, w);
    while (r.tokens < TOKENS) run_step(&r, w, k, uneven);
    return r.plain_ms / r.ms;
}

/* The best speed of any fixed number of nodes (0: plain), as a multiple of plain. */
static double best_fixed(const World *w, const Kind *k)
{
    double best = 1, tokens = 1, p = 1;
    for (int32_t n = 1; n <= DEPTH; n++) {
        tokens += p *= k->right;
        best = fmax(best, tokens * w->plain / (w->draft + pass_ms(w, n + 1)));
    }
    return best;
}

/* Nodes that the growth bound leaves out would not have been picked: any costs with cliffs, any falling gains, any
 * pace. */
static void what_is_left_out_would_not_be_picked(void **state)
{
    (void) state;
    rng_state = 11;
    int32_t closed = 0;
    for (int32_t c = 0; c < 20000; c++) {
        float ms[ROWS_DECODE + 1];
        double gain[ROWS_DECODE], draft = 3 * uniform(), pace = uniform() * 2, tokens[2];
        ms[1] = 1;
        for (int32_t i = 2; i <= ROWS_DECODE; i++)
            ms[i] = ms[i - 1] + (float) (uniform() < 0.1 ? 0.5 * uniform() : 0.1 * uniform() - 0.005);
        for (int32_t i = 0; i < ROWS_DECODE; i++) gain[i] = (i ? gain[i - 1] : 1) * (uniform() < 0.3 ? uniform() : 1);
        int32_t all = (int32_t) (uniform() * ROWS_DECODE), n = (int32_t) (uniform() * (all + 1));
        if (budget_open(ms, gain, n, all, draft, pace)) continue;
        closed++;
        double limit = uniform() < 0.5 ? 1e9 : 1 + 3 * uniform();
        assert_int_equal(budget_pick(ms, gain, all, draft, limit, pace, &tokens[0]),
                         budget_pick(ms, gain, n, draft, limit, pace, &tokens[1]));
        assert_true(tokens[0] == tokens[1]);
    }
    assert_in_range(closed, 2000, 19000);
}

static void bad_drafters_cost_little(void **state)
{
    (void) state;
    static const Kind kinds[] = { { "random and sure", 0.001, 0.9 }, { "random", 0.001, 0.5 },
                                  { "always wrong, always sure", 0, 1 }, { "random and shy", 0.001, 0.05 } };
    for (int w = 0; w < WORLDS; w++)
        for (int k = 0; k < 4; k++)
            for (uint64_t seed = 0; seed < 60; seed++) {
                double steady = run(&worlds[w], &kinds[k], seed, 0), uneven = run(&worlds[w], &kinds[k], seed, 0.05);
                if (steady < 0.97 || uneven < 0.965)
                    fail_msg("%s, %s: %.4f of plain decoding, %.4f with uneven times", worlds[w].name, kinds[k].name,
                             steady, uneven);
            }
}

/* A drafter that is right half the time is as dangerous: prose on the demo pair. */
static void middling_drafters_cost_little(void **state)
{
    (void) state;
    static const Kind kinds[] = { { "prose", 0.23, 0.23 }, { "prose, sure of itself", 0.23, 0.9 },
                                  { "near even", 0.5, 0.5 } };
    for (int w = 0; w < WORLDS; w++)
        for (int k = 0; k < 3; k++) {
            double sum = 0;
            for (uint64_t seed = 0; seed < 60; seed++) {
                double x = run(&worlds[w], &kinds[k], seed, 0.05);
                if (x < 0.96) fail_msg("%s, %s: %.4f of plain decoding", worlds[w].name, kinds[k].name, x);
                sum += x;
            }
            if (sum / 60 < 0.975)
                fail_msg("%s, %s: mean %.4f of plain decoding", worlds[w].name, kinds[k].name, sum / 60);
        }
}

static void good_drafters_are_used(void **state)
{
    (void) state;
    static const Kind kinds[] = { { "AL 3", 0.67, 0.67 }, { "AL 4", 0.76, 0.76 }, { "AL 8", 0.9, 0.9 },
                                  { "AL 4, sure", 0.76, 0.95 }, { "AL 4, shy", 0.76, 0.6 } };
    static const double share[] = { 0.98, 0.97, 0.97, 0.97, 0.97 };
    for (int w = 1; w < 4; w++)
        for (int k = 0; k < 5; k++) {
            /* noticed only after a loss that the small gain does not outweigh */
            if (w == 1 && kinds[k].says > kinds[k].right + 0.1) continue;
            double sum = 0, best = best_fixed(&worlds[w], &kinds[k]);
            for (uint64_t seed = 0; seed < 100; seed++) sum += run(&worlds[w], &kinds[k], seed, 0.05);
            if (sum / 100 < share[k] * best)
                fail_msg("%s, %s: %.3f times plain, the best fixed width gives %.3f", worlds[w].name, kinds[k].name,
                         sum / 100, best);
        }
    /* The demo pair: little can be won, and bad luck at the start costs a part of the text. */
    Kind code = { "code", 0.76, 0.76 };
    double sum = 0;
    for (uint64_t seed = 0; seed < 200; seed++) sum += run(&demo, &code, seed, 0.05);
    if (sum / 200 < 0.955 * best_fixed(&demo, &code))
        fail_msg("demo: %.3f, best %.3f", sum / 200, best_fixed(&demo, &code));
    /* A drafter that costs more than a plain pass and is confident: the first probe may use enough rows to prove it. */
    static const World heavy = { "DFlash2 of the demo", 0.4, 0.083, 0.6, 0 };
    static const Kind sure = { "sure", 0.97, 0.97 };
    sum = 0;
    for (uint64_t seed = 0; seed < 200; seed++) sum += run(&heavy, &sure, seed, 0.05);
    if (sum / 200 < 0.955 * best_fixed(&heavy, &sure))
        fail_msg("heavy and sure: %.3f, best %.3f", sum / 200, best_fixed(&heavy, &sure));
}

static void text_that_changes(void **state)
{
    (void) state;
    static const Kind code = { "code", 0.8, 0.8 }, prose = { "prose", 0.1, 0.8 };
    double sum = 0;
    for (uint64_t seed = 0; seed < 40; seed++) {
        static Run r;
        rng_state = seed + 1;
        run_start(&r, &worlds[2]);
        for (int part = 0; part < 6; part++)
            for (int32_t end = r.tokens + 200; r.tokens < end;)
                run_step(&r, &worlds[2], part % 2 ? &prose : &code, 0.05);
        assert_true(r.plain_ms / r.ms > 1.1);
        sum += r.plain_ms / r.ms;
    }
    if (sum / 40 < 1.3) fail_msg("code and prose in turn: %.3f times plain", sum / 40);
}

/* Code and prose alternate every 15 to 65 tokens: the outcome of the last step tells them apart. A drafter that always
 * drafts, or never, gains less than the controller; where drafting is cheap, bad luck never leaves a run at plain
 * decoding. */
static void text_that_changes_fast(void **state)
{
    (void) state;
    static const Kind code = { "code", 0.85, 0.8 }, prose = { "prose", 0.1, 0.6 };
    static const double least[] = { 0.97, 0.97, 1.2, 1.2 }, mean[] = { 0.985, 1.1, 1.44, 1.44 };
    for (int w = 0; w < 4; w++) {
        double sum = 0;
        for (uint64_t seed = 0; seed < 60; seed++) {
            static Run r;
            rng_state = seed * 31 + 7;
            run_start(&r, &worlds[w]);
            for (int part = 0; r.tokens < 1000; part++)
                for (int32_t end = r.tokens + 15 + (int32_t) (uniform() * 50); r.tokens < end;)
                    run_step(&r, &worlds[w], part % 2 ? &code : &prose, 0.05);
            double x = r.plain_ms / r.ms;
            if (x < least[w]) fail_msg("%s: %.4f of plain decoding", worlds[w].name, x);
            sum += x;
        }
        if (sum / 60 < mean[w]) fail_msg("%s: mean %.3f times plain", worlds[w].name, sum / 60);
    }
}

/* Guesses from the text beside a drafter: a chain at every fourth step, right as often as it claims, or never. Useless
 * guesses lose nothing; good ones gain more than the drafter alone, and nothing needs to be measured before that. */
static double run_guesses(const World *w, const Kind *k, const Kind *guess, bool measured, uint64_t seed)
{
    static Run r;
    rng_state = seed * 104729 + 3;
    run_start(&r, w);
    if (!measured) cost_reset(&r.cost);
    while (r.tokens < 2 * TOKENS) {
        double gain[DEPTH], p = 1, value = 0, draft = 0, says = log(guess->says);
        bool there = uniform() < 0.25;
        for (int32_t d = 0; d < DEPTH; d++)
            gain[d] = p *= exp((double) calib_edge(&r.calib, SOURCE_NGRAM, d, (float) says));
        int32_t nodes = 0, tokens = 1, by = SOURCE_NGRAM;
        if (there) nodes = budget_choose_free(&r.budget, &r.cost, gain, DEPTH, &value);
        bool drafted = k && budget_should_draft(&r.budget, &r.cost, there ? value : 0);
        if (drafted) {
            double own[DEPTH];
            p = 1;
            for (int32_t d = 0; d < DEPTH; d++)
                own[d] = p *= exp((double) calib_edge(&r.calib, SOURCE_BLOCK, d, (float) log(k->says)));
            /* one chain at a time here: test_tree.c tests how trees join chains */
            if (!there || own[2] > gain[2]) by = SOURCE_BLOCK;
            draft = w->draft;
            cost_draft(&r.cost, 1, draft * 1e-3);
            nodes = budget_choose(&r.budget, &r.cost, by == SOURCE_BLOCK ? own : gain, DEPTH);
        }
        const Kind *who = by == SOURCE_BLOCK ? k : guess;
        double pass = pass_ms(w, nodes + 1) * (0.95 + 0.1 * uniform());
        for (int32_t d = 0; d < nodes; d++) {
            bool hit = uniform() < who->right;
            calib_level(&r.calib, by, exp((double) calib_map(&r.calib, by, d, (float) log(who->says))), hit);
            calib_count(&r.calib, by, d, (float) log(who->says), hit);
            calib_fit(&r.calib, by, d);
            if (!hit) break;
            tokens++;
        }
        if (nodes == 0 && (there || drafted)) calib_forget(&r.calib, by);
        cost_pass(&r.cost, nodes + 1, pass * 1e-3);
        budget_observe(&r.budget, &r.cost, drafted, nodes, tokens, NAN);
        r.ms += draft + pass;
        r.tokens += tokens;
        r.plain_ms += w->plain * tokens;
    }
    return r.plain_ms / r.ms;
}

static void guesses_beside_a_drafter(void **state)
{
    (void) state;
    static const Kind wrong = { "wrong guesses", 0.02, 0.6 }, good = { "quotations", 0.95, 0.8 },
                      code = { "code", 0.76, 0.76 };
    for (int w = 0; w < WORLDS; w++)
        for (int alone = 0; alone < 2; alone++) {
            double bad = 0, fine = 0, without = 0;
            for (uint64_t seed = 0; seed < 60; seed++) {
                double x = run_guesses(&worlds[w], NULL, &wrong, alone, seed);
                if (x < 0.97) fail_msg("%s: %.4f of plain decoding with wrong guesses", worlds[w].name, x);
                bad += x;
                const Kind *drafter = alone ? NULL : &code;
                fine += run_guesses(&worlds[w], drafter, &good, true, seed);
                without += run_guesses(&worlds[w], drafter, &(Kind) { "none", 0, 0.01 }, true, seed);
            }
            if (bad / 60 < 0.98)
                fail_msg("%s: mean %.4f of plain decoding with wrong guesses", worlds[w].name, bad / 60);
            bool rows_pay = worlds[w].row < 0.3 * worlds[w].plain;
            if (fine < without * (rows_pay ? 1.03 : 0.99))
                fail_msg("%s, %d: %.3f times plain with good guesses, %.3f without", worlds[w].name, alone, fine / 60,
                         without / 60);
        }
}

static void steps_of_the_gate(void **state)
{
    (void) state;
    Cost c;
    Budget b;
    cost_reset(&c);
    budget_reset(&b);
    assert_false(budget_should_draft(&b, &c, 0));                    /* plain decoding is not measured yet */
    cost_pass(&c, 1, 0.001);
    assert_false(budget_should_draft(&b, &c, 0));                    /* the first pass alone says little */
    cost_pass(&c, 1, 0.001);
    assert_true(budget_should_draft(&b, &c, 0));                     /* a text begins with a probe */
    cost_draft(&c, 1, 0.0001);
    double hopeless[4] = { 0.01, 0.01, 0, 0 }, fine[4] = { 0.9, 0.8, 0.7, 0.6 };
    int32_t waited;
    for (int32_t gap = 4; gap <= 8; gap *= 2) {                      /* the gap doubles */
        assert_int_equal(budget_choose(&b, &c, hopeless, 4), 0);
        assert_false(b.on);
        budget_observe(&b, &c, true, 0, 1, NAN);
        for (waited = 0; !budget_should_draft(&b, &c, 0); waited++) budget_observe(&b, &c, false, 0, 1, NAN);
        assert_int_equal(waited, gap);
    }
    assert_true(budget_choose(&b, &c, fine, 4) > 0);
    assert_true(b.on && b.promised.tokens > 1.02 * b.promised.time);
    budget_observe(&b, &c, true, 4, 4, NAN);
    for (int i = 0; i < 3; i++) {
        assert_true(budget_should_draft(&b, &c, 0));
        assert_int_equal(budget_choose(&b, &c, hopeless, 4), 0);
        budget_observe(&b, &c, true, 0, 1, NAN);
    }
    assert_false(b.on);                                 /* three bad predictions in a row */
    for (waited = 0; !budget_should_draft(&b, &c, 0); waited++) budget_observe(&b, &c, false, 0, 1, NAN);
    assert_int_equal(waited, 8);                        /* it had won something: a short gap */
    for (int i = 0; i < 12; i++) budget_choose(&b, &c, hopeless, 4);
    assert_in_range(b.gap, 9, 10);                      /* a tenth of a token every ten: the interest on the account */
    cost_set_draft(&c, 0.1);
    for (int i = 0; i < 12; i++) budget_choose(&b, &c, hopeless, 4);
    assert_int_equal(b.gap, 256);
}

/* A proposal that seems dearer than the account, since the machine stalled in the first ones, is tried again once the
 * interest pays for it, and its real time counts from then on. */
static void nothing_is_too_dear_for_ever(void **state)
{
    (void) state;
    Cost c;
    Budget b;
    cost_reset(&c);
    budget_reset(&b);
    for (int i = 0; i < 3; i++) cost_pass(&c, 1, 0.001);
    cost_draft(&c, 1, 0.0005);
    for (int i = 0; i < 1000; i++) cost_draft(&c, 1, 0.012);
    double seems = (double) c.draft_ms / (double) c.pass_ms[1];
    assert_true(seems > 8);
    int32_t waited = 0;
    for (; waited < 2000 && !budget_should_draft(&b, &c, 0); waited++) budget_observe(&b, &c, false, 0, 1, NAN);
    if (waited < 100 || waited > 100 * seems) fail_msg("tried after %d tokens", waited);
    /* the first proposals of a run cannot even seem so */
    cost_reset(&c);
    for (int i = 0; i < 3; i++) cost_pass(&c, 1, 0.001);
    cost_draft(&c, 1, 0.030);
    budget_reset(&b);
    assert_true(budget_should_draft(&b, &c, 0));
    cost_draft(&c, 1, 0.0004);
    assert_true(fabsf(c.draft_ms - 0.4f) < 1e-4f);
}

/* A text begins with a probe, however long the wait had grown in the last one; half of that wait is kept. */
static void next_text_looks_first(void **state)
{
    (void) state;
    Cost c;
    Budget b;
    cost_reset(&c);
    budget_reset(&b);
    cost_set_pass(&c, 1, 0.001);
    cost_set_draft(&c, 0.001);
    b.gap = 64;
    b.since = 3;
    assert_false(budget_should_draft(&b, &c, 0));
    budget_next(&b);
    assert_int_equal(b.gap, 32);
    assert_true(budget_should_draft(&b, &c, 0));
}

/* Steps after an unsure target or a short block gain nothing here: the gate leaves them out, probes them now and then,
 * and keeps them apart from the others. While speculating, guesses that are free and better than drafting make drafting
 * unnecessary; before that they put a probe off, not for ever. */
static void gate_by_step_kind(void **state)
{
    (void) state;
    Cost c;
    Budget b;
    cost_reset(&c);
    budget_reset(&b);
    cost_set_pass(&c, 1, 0.001);
    cost_set_pass(&c, 8, 0.00105);
    cost_set_draft(&c, 0.0004);
    double gain[7] = { 0.8, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1 };
    int32_t drafts[2] = { 0 }, chances[2] = { 0 };
    double margin = 5;
    for (int i = 0; i < 3000; i++) {
        bool sure = margin > 1, drafted = budget_should_draft(&b, &c, 0);
        int32_t nodes = drafted ? budget_choose(&b, &c, gain, 7) : 0, tokens = nodes && sure ? 5 : 1;
        chances[sure]++;
        drafts[sure] += drafted;
        margin = i * 7919 % 10 < 4 ? 0.2 : 5;
        budget_observe(&b, &c, drafted, nodes, tokens, margin);
    }
    if (drafts[1] < 0.9 * chances[1] || drafts[0] > 0.4 * chances[0])
        fail_msg("drafted %d of %d times where it pays, %d of %d where not", drafts[1], chances[1], drafts[0],
                 chances[0]);
    b.margin = 5;
    assert_true(budget_should_draft(&b, &c, 0) && budget_should_draft(&b, &c, 2));
    assert_false(budget_should_draft(&b, &c, 9));
    int32_t waited[2] = { 0 };
    for (int32_t good = 0; good < 2; good++) {
        budget_reset(&b);
        for (; waited[good] < 1000 && !budget_should_draft(&b, &c, good ? 2 : 0.1); waited[good]++)
            budget_observe(&b, &c, false, 7, good ? 3 : 1, 5);
    }
    if (waited[0] > 8 || waited[1] < 16 || waited[1] == 1000)
        fail_msg("the first probe waited for %d steps with poor guesses, for %d with good ones", waited[0], waited[1]);
}

/* A tree that cost nothing to make: limited by what its rows gain, the account and the measured widths. */
static void free_guesses(void **state)
{
    (void) state;
    Cost c;
    Budget b;
    double sure[32], value;
    for (int i = 0; i < 32; i++) sure[i] = pow(0.97, i + 1);
    cost_reset(&c);
    budget_reset(&b);
    assert_int_equal(budget_choose_free(&b, &c, sure, 32, &value), 0);
    assert_true(value == 0);
    cost_set_pass(&c, 1, 0.010);
    assert_int_equal(budget_choose_free(&b, &c, sure, 32, &value), 1);   /* twice the widest pass so far */
    assert_true(value > 0.5);
    cost_set_pass(&c, 2, 0.0105);
    assert_int_equal(budget_choose_free(&b, &c, sure, 32, &value), 3);
    cost_set_pass(&c, 33, 0.020);
    cost_set_pass(&c, 64, 0.030);
    assert_true(budget_choose_free(&b, &c, sure, 32, &value) > 16);
    b.account = 0;
    assert_int_equal(budget_choose_free(&b, &c, sure, 32, &value), 0);   /* nothing left to lose */
    assert_true(value == 0);
    budget_reset(&b);
    double poor[3] = { 0.02, 0.01, 0.01 };
    assert_int_equal(budget_choose_free(&b, &c, poor, 3, &value), 0);
    /* Losses are booked, and gains; a plain row is neither. */
    b.account = 3;
    budget_observe(&b, &c, false, 0, 1, NAN);
    assert_true(b.account > 3 && b.account < 3.02);
    cost_set_pass(&c, 6, 0.020);
    budget_observe(&b, &c, false, 5, 1, NAN);
    assert_true(b.account > 2 && b.account < 2.05);
    budget_observe(&b, &c, false, 5, 6, NAN);
    assert_true(b.account > 6 && b.account < 6.2);
}

static void widths(void **state)
{
    (void) state;
    float pass[ROWS_DECODE + 1];
    double gain[ROWS_DECODE], tokens;
    for (int i = 0; i <= ROWS_DECODE; i++) pass[i] = (float) (i <= 8 ? 10 : i <= 16 ? 13 : 40);
    for (int i = 0; i < ROWS_DECODE; i++) gain[i] = pow(0.9, i + 1);
    /* both cliffs are known: 8 rows, 16 rows */
    assert_int_equal(budget_pick(pass, gain, 63, 1, INFINITY, 0, &tokens), 15);
    assert_true(fabs(tokens - (1 + 9 * (1 - pow(0.9, 15)))) < 1e-9);
    for (int i = 0; i < ROWS_DECODE; i++) gain[i] = pow(0.75, i + 1);
    assert_int_equal(budget_pick(pass, gain, 63, 1, INFINITY, 0, NULL), 7);
    assert_int_equal(budget_pick(pass, gain, 5, 1, INFINITY, 0, NULL), 5);
    assert_int_equal(budget_pick(pass, gain, 0, 1, INFINITY, 0, NULL), 0);
    /* An expensive draft asks for wide passes at the pace of a poor text; at the pace of a better one it has no time
     * for them. */
    for (int i = 0; i <= ROWS_DECODE; i++) pass[i] = (float) (10 + i);
    assert_int_equal(budget_pick(pass, gain, 63, 20, INFINITY, 0, NULL), 8);
    assert_int_equal(budget_pick(pass, gain, 63, 20, INFINITY, 0.05, NULL), 8);
    assert_int_equal(budget_pick(pass, gain, 63, 20, INFINITY, 0.3, &tokens), 4);
    assert_true(fabs(tokens - (1 + 3 * (1 - pow(0.75, 4)))) < 1e-9);
    assert_int_equal(budget_pick(pass, gain, 63, 20, INFINITY, 0.6, NULL), 1);
    assert_int_equal(budget_pick(pass, gain, 63, 20, INFINITY, 0.8, NULL), 0);
    for (int i = 0; i <= ROWS_DECODE; i++) pass[i] = 10;
    assert_int_equal(budget_pick(pass, gain, 9999, 1, INFINITY, 0, NULL), ROWS_DECODE - 1);
    pass[9] = 11;
    assert_int_equal(budget_pick(pass, gain, 8, 1, 10.5, 0, NULL), 7);          /* more than may be risked */
    assert_int_equal(budget_pick(pass, gain, 8, 1, 10.5, 9, NULL), 7);
    for (int i = 0; i < ROWS_DECODE; i++) gain[i] = 0;
    assert_int_equal(budget_pick(pass, gain, 63, 1, INFINITY, 0, &tokens), 0);
    assert_true(tokens == 1);
}

static void cost_table(void **state)
{
    (void) state;
    Cost c;
    cost_reset(&c);
    cost_pass(&c, 0, 1);
    cost_set_pass(&c, ROWS_DECODE + 1, 1);
    cost_pass(&c, 1, 0);
    cost_set_pass(&c, 1, -1);
    cost_pass(&c, 1, NAN);
    cost_set_pass(&c, 1, INFINITY);
    cost_set_draft(&c, NAN);
    assert_true(c.pass_ms[1] == 0 && c.draft_seen == 0);
    cost_pass(&c, 1, 0.010);
    assert_true(fabsf(c.pass_ms[1] - 10) < 1e-4f && c.pass_ms[9] > 10);     /* an estimate that rises */
    cost_set_pass(&c, 1, 0.010);
    cost_set_pass(&c, 9, 0.018);
    assert_true(c.pass_ms[5] > 12 && c.pass_ms[5] < 15 && c.pass_ms[17] > 24 && c.pass_ms[17] < 40);
    cost_set_pass(&c, 8, 0.011);                                            /* the cliff between 8 and 9 remains */
    assert_true(fabsf(c.pass_ms[8] - 11) < 1e-4f && fabsf(c.pass_ms[9] - 18) < 1e-4f &&
                c.pass_ms[7] < 11.001f);
    cost_set_draft(&c, 0.002);
    assert_true(fabsf(c.draft_ms - 2) < 1e-4f);
    /* The machine gets half as fast: unused widths learn it from those in use, and the ratios between them remain. */
    for (int i = 0; i < 60; i++) {
        cost_draft(&c, 1, 0.004);
        cost_pass(&c, 8, 0.022);
    }
    assert_true(fabsf(c.pass_ms[8] - 22) < 0.5f && fabsf(c.pass_ms[9] / c.pass_ms[1] - 1.8f) < 1e-3f);
    assert_in_range(c.pass_ms[1], 16, 21);
    assert_in_range(1e3f * c.draft_ms, 3600, 4400);
    /* A single stall changes little; a lasting slowdown of one width is learned for that width only. */
    float before = c.pass_ms[1];
    cost_pass(&c, 1, 10);
    assert_true(c.pass_ms[1] < 1.1f * before);
    cost_set_pass(&c, 1, 0.010);
    cost_set_pass(&c, 8, 0.010);
    for (int i = 0; i < 3000; i++) {
        cost_pass(&c, 1, 0.010);
        cost_pass(&c, 8, 0.015);
    }
    assert_true(fabsf(c.pass_ms[8] / c.pass_ms[1] - 1.5f) < 0.1f);
    /* A width whose time was only guessed and lies beyond a cliff: a few passes find out. */
    double guess = (double) c.pass_ms[33] / (double) c.pass_ms[1], ms = 2 * (double) c.pass_ms[33];
    for (int i = 0; i < 4; i++) cost_pass(&c, 33, 1e-3 * ms);
    assert_true((double) c.pass_ms[33] / (double) c.pass_ms[1] > 1.4 * guess);
}

/* A proposal for four sessions takes longer than one for a single session; at first this is a guess. */
static void proposals_for_several(void **state)
{
    (void) state;
    Cost c;
    cost_reset(&c);
    assert_true(cost_draft_ms(&c, 4) == 0);
    cost_set_draft(&c, 0.010);
    float guess = cost_draft_ms(&c, 4);
    assert_true(cost_draft_ms(&c, 1) == c.draft_ms && guess > 20 && guess < 40);
    for (int i = 0; i < 40; i++) cost_draft(&c, 4, 0.022);
    assert_true(fabsf(cost_draft_ms(&c, 4) - 22) < 0.5f && fabsf(cost_draft_ms(&c, 2) - 14) < 0.5f &&
                fabsf(c.draft_ms - 10) < 1e-4f);
    /* less than for one: the added sessions cost next to nothing, never less than nothing */
    for (int i = 0; i < 40; i++) cost_draft(&c, 4, 0.001);
    assert_true(cost_draft_ms(&c, 4) >= c.draft_ms);
}

/* A wrong table: in a text, proposals and passes of several rows take longer than when they were measured. The
 * controller notices before much is lost. */
static void a_table_that_is_wrong(void **state)
{
    (void) state;
    static const Kind kinds[] = { { "random and sure", 0.001, 0.9 }, { "prose", 0.23, 0.23 },
                                  { "near even", 0.5, 0.5 } };
    for (int w = 0; w < WORLDS; w++)
        for (int k = 0; k < 3; k++)
            for (uint64_t seed = 0; seed < 60; seed++) {
                static Run r;
                rng_state = seed * 7919 + 1;
                run_start(&r, &worlds[w]);
                for (int32_t rows = 2; rows <= ROWS_DECODE; rows++)
                    cost_set_pass(&r.cost, rows, 1e-3 * fmax(0.85 * pass_ms(&worlds[w], rows), worlds[w].plain));
                cost_set_draft(&r.cost, 0.67e-3 * worlds[w].draft);
                while (r.tokens < TOKENS) run_step(&r, &worlds[w], &kinds[k], 0.05);
                double x = r.plain_ms / r.ms, least = k == 0 ? 0.95 : 0.9;
                if (x < least) fail_msg("%s, %s: %.4f of plain decoding", worlds[w].name, kinds[k].name, x);
            }
}

static void same_inputs_same_decisions(void **state)
{
    (void) state;
    static Run a, b;
    Kind k = { "AL 3", 0.67, 0.8 };
    for (int i = 0; i < 2; i++) {
        Run *r = i ? &b : &a;
        rng_state = 5;
        run_start(r, &demo);
        while (r->tokens < 2000) run_step(r, &demo, &k, 0.2);
    }
    assert_true(a.tokens == b.tokens && a.drafts == b.drafts && a.ms == b.ms && a.budget.account == b.budget.account);
}

/* Passes that are rounded up cost as much as the next launch width, whichever width was timed, and the choice fills
 * that width. */
static void stairs_are_filled(void **state)
{
    (void) state;
    static const int32_t widths[] = { 1, 4, 8, 16, 64 };
    Cost c;
    double gain[ROWS_DECODE], tokens;
    cost_reset(&c);
    cost_stairs(&c, widths, 5);
    for (int32_t i = 0; i < ROWS_DECODE; i++) gain[i] = pow(0.8, i + 1);
    cost_set_pass(&c, 1, 1e-3);
    cost_set_pass(&c, 3, 1.1e-3);                  /* launched as 4 */
    cost_set_pass(&c, 8, 1.2e-3);
    cost_set_pass(&c, 16, 4e-3);
    cost_set_pass(&c, 64, 9e-3);
    for (int32_t n = 1; n <= ROWS_DECODE; n++) assert_true(c.pass_ms[n] == c.pass_ms[cost_stair(&c, n)]);
    assert_int_equal(cost_stair(&c, 5), 8);
    assert_true(fabs((double) c.pass_ms[2] - 1.1) < 1e-6 && fabs((double) c.pass_ms[6] - 1.2) < 1e-6);
    assert_int_equal(budget_pick(c.pass_ms, gain, ROWS_DECODE - 1, 0, INFINITY, 0, &tokens), 7);
    cost_pass(&c, 9, 4.4e-3);
    for (int32_t n = 1; n <= ROWS_DECODE; n++) assert_true(c.pass_ms[n] == c.pass_ms[cost_stair(&c, n)]);
    assert_true((double) c.pass_ms[12] > 4.0);
}

int main(int argc, char **argv)
{
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stairs_are_filled), cmocka_unit_test(widths), cmocka_unit_test(cost_table),
        cmocka_unit_test(steps_of_the_gate), cmocka_unit_test(next_text_looks_first),
        cmocka_unit_test(nothing_is_too_dear_for_ever),
        cmocka_unit_test(gate_by_step_kind), cmocka_unit_test(free_guesses),
        cmocka_unit_test(what_is_left_out_would_not_be_picked), cmocka_unit_test(bad_drafters_cost_little),
        cmocka_unit_test(middling_drafters_cost_little), cmocka_unit_test(good_drafters_are_used),
        cmocka_unit_test(text_that_changes), cmocka_unit_test(text_that_changes_fast),
        cmocka_unit_test(guesses_beside_a_drafter), cmocka_unit_test(proposals_for_several),
        cmocka_unit_test(a_table_that_is_wrong), cmocka_unit_test(same_inputs_same_decisions),
    };
    return cmocka_run_group_tests_name("budget", tests, NULL, NULL);
}
