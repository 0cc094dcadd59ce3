/* test_batch_budget.c - several sessions in one pass, on recorded texts and measured machines: losses by drafting occur
 * once, not once per session, and drafting is used where it pays. The texts of tests/data/traces, random ones and
 * useless ones go through the real look-up, lattices, trees, calibrations and controllers, with times from a table
 * instead of a model: as spec.c does with the sessions of a step. REPLAY=1 in the environment shows the figures. */
#include "decode/batch_budget.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "decode/accept.h"
#include "decode/ngram.h"
#include "replay.h"

enum { STREAMS = 8, WAY_AUTO = 0, WAY_PLAIN = -1 };

/* more: extra time of a proposal per session beyond the first; least: required mean share of the better of plain
 * streams and a single speculating one. Measured with two threads, bench --serve: the demo pair; a 4B with a light
 * drafter and as it was measured with one of its size, whose head is as long as the target's. */
typedef struct { Machine m; double more, least; } Place;
static const Place places[] = {
    { { "demo", 10, { 1, 2, 4, 8, 9, 12, 16, 24, 32, 64 },
        { 0.61, 0.77, 1.03, 1.45, 1.60, 1.90, 2.36, 3.90, 5.0, 10.5 }, 0.80 }, 0.45, 0.985 },
    { { "4B", 6, { 1, 4, 8, 16, 22, 64 }, { 90, 101, 120, 150, 205, 460 }, 11 }, 9.5, 0.985 },
    { { "4B, dear drafter", 6, { 1, 4, 8, 16, 22, 64 }, { 90, 101, 120, 150, 205, 460 }, 62 }, 45, 0.985 },
};
enum { DEMO_PAIR, FOUR_B, FOUR_B_DEAR, PLACES };

/* way: WAY_..., or nodes per session; silent: no drafter; uneven: times differ by up to this share. */
typedef struct { int32_t way; bool silent; double uneven; } BatchSetting;

typedef struct {
    Calibration calib;
    Forecast forecast;
    Ngram    ngram;
    Guess    guess;
    bool     drafted;
    uint32_t proposed;
    const Trace *text;
    int32_t  made;
    Lattice  lattice;
    Path     path;
} Stream;

typedef struct {
    BatchSetting set;
    Cost     cost;
    BatchBudget batch;
    Member   member[STREAMS];
    Stream   stream[STREAMS];
    Tree     tree[STREAMS];
    int32_t  n, tokens, drafts;
    uint64_t rng;
    double   ms;
} BatchPlay;

static double play_uneven(BatchPlay *p) { return 1 + p->set.uneven * (2 * play_random(&p->rng) - 1); }

static void play_open(BatchPlay *p, const Place *at, BatchSetting set, int32_t n, uint64_t seed)
{
    Error err;
    memset(p, 0, sizeof *p);
    p->set = set;
    p->rng = seed * 7919 + 1;
    p->n = n;
    machine_known(&p->cost, &at->m, 0, &p->rng);
    batch_reset(&p->batch);
    for (int32_t i = 0; i < n; i++) {
        calib_reset(&p->stream[i].calib);
        assert_int_equal(ngram_open(&p->stream[i].ngram, CTX, &err), ST_OK);
    }
}

static void play_close(BatchPlay *p)
{
    for (int32_t i = 0; i < p->n; i++) ngram_close(&p->stream[i].ngram);
}

/* The look-up in the text so far, and the forecast from what it finds. */
static void play_look_up(BatchPlay *p, int32_t i, const Lattice **lat, int32_t room)
{
    Stream *s = &p->stream[i];
    const Lattice *own = &s->lattice;
    Growth g;
    int32_t root = 0;
    s->guess.n = 0;
    s->proposed = 0;
    lattice_clear(&s->lattice);
    if (p->set.way != WAY_PLAIN && room > 0)
        ngram_find(&s->guess, &s->ngram, s->text->text, s->text->n_prompt + s->made, room);
    if (s->guess.n == 0) return;
    s->proposed |= 1u << SOURCE_NGRAM;
    guess_join(&s->lattice, &s->guess, &s->calib);
    *lat = own;
    tree_begin(&g, p->tree, &own, &root, &room, 1, false);
    tree_grow(&g, ROWS_DECODE - p->n);
    forecast_add(&p->member[i].free, 0, g.gain, g.n);
}

/* Picks roots and nodes for all sessions, then how far each text follows its tree. Returns the rows. */
static int32_t play_accept(BatchPlay *p, double *promised, int32_t *got)
{
    int32_t rows = 0;
    for (int32_t i = 0; i < p->n; i++) {
        Stream *s = &p->stream[i];
        Tree *tree = &p->tree[i];
        const int32_t *next = s->text->text + s->text->n_prompt + s->made;
        Path *path = &s->path;
        tree_rows(tree);
        rows += tree->n;
        *path = (Path) { .n = 1 };
        for (int32_t child; (child = tree_child(tree, path->row[path->n - 1], next[path->n - 1])) >= 0;)
            path->row[path->n++] = child;
        if (s->proposed) accept_learn(&s->calib, tree, path, s->proposed);
        if (!s->drafted) continue;
        *got += path->n - 1;
        *promised += accept_expected(tree, path);
    }
    return rows;
}

static void play_step(BatchPlay *p, const Place *at)
{
    const Lattice *lat[STREAMS] = { NULL };
    int32_t root[STREAMS] = { 0 }, room[STREAMS] = { 0 }, n = p->n, way = p->set.way, drafted = 0,
            most = ROWS_DECODE - n, got = 0, total = 0;
    double gain[ROWS_DECODE], spent = 0, promised = 0;
    Growth g;
    bool any = false;
    for (int32_t i = 0; i < n; i++) {
        Stream *s = &p->stream[i];
        const Trace *t = s->text;
        root[i] = t->text[t->n_prompt + s->made - 1];
        room[i] = t->n - s->made - 1;
        p->member[i] = (Member) { .may = way != WAY_PLAIN && !p->set.silent && room[i] > 0,
                                  .margin = s->made > 0 ? t->margin[s->made - 1] : NAN, .forecast = &s->forecast };
        p->member[i].drafts = way > 0 && p->member[i].may;
        play_look_up(p, i, &lat[i], room[i]);
    }
    if (way == WAY_AUTO) batch_plan(&p->batch, &p->cost, p->member, n);
    for (int32_t i = 0; i < n; i++) {
        Stream *s = &p->stream[i];
        drafted += s->drafted = p->member[i].drafts;
        if (s->drafted) {
            lat[i] = &s->lattice;
            said_lattice(&s->lattice, &s->text->said[s->made], &s->calib);
            if (s->lattice.n_depth > 0) s->proposed |= 1u << SOURCE_BLOCK;
            guess_join(&s->lattice, &s->guess, &s->calib);
        }
        any |= s->proposed != 0;
    }
    p->drafts += drafted;
    if (drafted) spent = (at->m.draft + (drafted - 1) * at->more) * play_uneven(p);
    tree_begin(&g, p->tree, lat, root, room, n, false);
    if (any && way == WAY_AUTO) {
        tree_grow(&g, most);
        for (int32_t i = 0; i < n; i++)
            if (p->stream[i].drafted)
                batch_hear(&p->batch, &p->stream[i].forecast, p->member[i].margin, gain, tree_gains(gain, &g, i));
        tree_cut(&g, batch_choose(&p->batch, &p->cost, n, drafted, g.gain, g.n));
    } else if (way > 0) tree_grow(&g, way * n < most ? way * n : most);
    int32_t rows = play_accept(p, &promised, &got);
    for (int32_t i = 0; i < n; i++) {
        total += p->stream[i].path.n;
        p->stream[i].made += p->stream[i].path.n;
    }
    double pass = machine_pass(&at->m, rows) * play_uneven(p);
    if (drafted) cost_draft(&p->cost, drafted, 1e-3 * spent);
    cost_pass(&p->cost, rows, 1e-3 * pass);
    if (way == WAY_AUTO) batch_observe(&p->batch, &p->cost, n, drafted, rows - n, total, promised, got);
    p->ms += spent + pass;
    p->tokens += total;
}

/* Streams that write one text after the other, at most `limit` tokens of each, until they have written `tokens` each on
 * average. Returns tokens per ms; drafts: the number of proposals made. */
static double play(const Place *at, const Traces *t, int32_t streams, BatchSetting set, uint64_t seed, int32_t limit,
                   int32_t tokens, int32_t *drafts)
{
    static BatchPlay p;
    play_open(&p, at, set, streams, seed);
    while (p.tokens < tokens * streams) {
        for (int32_t i = 0; i < streams; i++) {
            Stream *s = &p.stream[i];
            if (s->text && s->made < s->text->n && s->made < limit) continue;
            s->text = &t->at[(int32_t) (play_random(&p.rng) * t->n)];
            s->made = 0;
            s->forecast = (Forecast) { 0 };
            ngram_cut(&s->ngram, s->text->text, 0);
        }
        play_step(&p, at);
    }
    play_close(&p);
    if (drafts) *drafts = p.drafts;
    return p.tokens / p.ms;
}

/* The best rate of so many streams with a fixed number of nodes each, or with plain decoding. */
static double best_fixed(const Place *at, const Traces *t, int32_t streams, int32_t limit, int32_t tokens)
{
    static const int32_t nodes[] = { 1, 2, 3, 4, 5, 6, 7, 12 };
    double best = streams / machine_pass(&at->m, streams);
    for (size_t i = 0; i < sizeof nodes / sizeof *nodes; i++)
        for (int32_t silent = 0; silent < 2; silent++)
            best = fmax(best, play(at, t, streams, (BatchSetting) { .way = nodes[i], .silent = silent }, 0, limit,
                                   tokens, NULL));
    return best;
}

/* ---- texts ---- */

/* The drafter keeps its confidence, and is always wrong. */
static void make_useless(Traces *t)
{
    for (int32_t i = 0; i < t->n; i++)
        for (int32_t at = 0; at < t->at[i].n; at++)
            for (int32_t d = 0; d < LAT_DEPTH; d++)
                for (int32_t j = 0; j < LAT_K; j++)
                    if (t->at[i].said[at].token[d][j] >= 0) t->at[i].said[at].token[d][j] += 1 << 20;
}

/* A drafter whose likeliest candidate is right with the same probability at every depth, and claims that probability.
 * No token comes twice, so the look-up finds nothing. */
typedef struct { const char *name; double right, says; } BatchKind;

static void draw_texts(Traces *t, const BatchKind *k)
{
    enum { TEXTS = 12, TOKENS = 96, DEPTH = 7 };
    uint64_t dice = 5;
    *t = (Traces) { .n = TEXTS };
    for (int32_t i = 0; i < TEXTS; i++) {
        Trace *x = &t->at[i];
        *x = (Trace) { .n_prompt = 1, .n = TOKENS, .text = malloc(sizeof *x->text * (TOKENS + 1)),
                       .margin = malloc(sizeof *x->margin * TOKENS), .said = malloc(sizeof *x->said * TOKENS) };
        for (int32_t at = 0; at <= TOKENS; at++) x->text[at] = 2 * (i * TOKENS + at + i);
        for (int32_t at = 0; at < TOKENS; at++) {
            Said *s = &x->said[at];
            memset(s, 0xff, sizeof *s);
            s->n_depth = DEPTH;
            x->margin[at] = NAN;
            for (int32_t d = 0; d < DEPTH; d++) {
                bool right = at + d < TOKENS && play_random(&dice) < k->right;
                s->token[d][0] = right ? x->text[1 + at + d] : 1;
                s->raw[d][0] = (float) log(k->says);
            }
        }
    }
}

/* ---- tests ---- */

static bool shows(void) { return getenv("REPLAY") != NULL; }

/* From a fresh start: learning about the drafter costs streams about a hundredth of their first 288 tokens, whatever
 * the drafter, against as many plain streams and against the best fixed width of a single one. */
static void never_below_the_better(void **state)
{
    (void) state;
    static const BatchKind kinds[] = { { "always wrong, sure", 0, 0.95 }, { "wrong", 0.02, 0.5 },
                                       { "wrong and says so", 0.02, 0.05 },
                                       { "poor", 0.3, 0.3 }, { "near even", 0.5, 0.5 }, { "near even, sure", 0.5, 0.9 },
                                       { "good", 0.75, 0.75 }, { "good and shy", 0.75, 0.5 }, { "best", 0.93, 0.93 } };
    enum { KINDS = sizeof kinds / sizeof *kinds, SEEDS = 6, TOKENS = 288 };
    for (int32_t k = 0; k < KINDS; k++) {
        Traces t;
        draw_texts(&t, &kinds[k]);
        for (int32_t at = 0; at < PLACES; at++)
            for (int32_t streams = 2; streams <= 8; streams *= 2) {
                double plain = streams / machine_pass(&places[at].m, streams),
                       one = best_fixed(&places[at], &t, 1, 96, TOKENS), better = fmax(plain, one), mean = 0,
                       low = INFINITY;
                int32_t drafts = 0;
                for (uint64_t seed = 0; seed < SEEDS; seed++) {
                    double x = play(&places[at], &t, streams, (BatchSetting) { .uneven = 0.05 }, seed, 96, TOKENS,
                                    &drafts) / better;
                    mean += x / SEEDS;
                    low = fmin(low, x);
                }
                if (shows())
                    print_message("%-16s %-20s %d streams: %.3f of the better, lowest %.3f, %d proposals (plain %.4f, "
                                  "one %.4f)\n", places[at].m.name, kinds[k].name, streams, mean, low, drafts,
                                  plain, one);
                if (mean < places[at].least || low < 0.85)
                    fail_msg("%s, %s, %d streams: %.3f of the better, lowest %.3f", places[at].m.name, kinds[k].name,
                             streams, mean, low);
            }
        traces_free(&t);
    }
}

/* Recorded texts: close to the best fixed setting; with a drafter that is always wrong close to plain decoding and the
 * look-up. */
static void recorded_texts(void **state)
{
    (void) state;
    enum { SEEDS = 3, LIMIT = 128, TOKENS = 384 };
    for (int32_t useless = 0; useless < 2; useless++)
        for (int32_t c = 0; c < CLASSES; c++) {
            Traces t;
            read_class(&t, c);
            if (useless) make_useless(&t);
            for (int32_t at = 0; at <= FOUR_B; at++)
                for (int32_t streams = 2; streams <= 4; streams *= 2) {
                    double plain = streams / machine_pass(&places[at].m, streams),
                           best = best_fixed(&places[at], &t, streams, LIMIT, TOKENS), mean = 0;
                    for (uint64_t seed = 0; seed < SEEDS; seed++)
                        mean += play(&places[at], &t, streams, (BatchSetting) { .uneven = 0.05 }, seed, LIMIT, TOKENS,
                                     NULL) / SEEDS;
                    if (shows())
                        print_message("%-6s %-11s %-8s %d streams: %.3f of plain, %.3f of the best fixed setting\n",
                                      places[at].m.name, classes[c], useless ? "useless" : "", streams, mean / plain,
                                      mean / best);
                    if (mean < 0.985 * plain)
                        fail_msg("%s, %s, %d streams: %.3f of plain", places[at].m.name, classes[c], streams,
                                 mean / plain);
                    if (mean < 0.85 * best)
                        fail_msg("%s, %s, %d streams: %.3f of the best", places[at].m.name, classes[c], streams,
                                 mean / best);
                }
            traces_free(&t);
        }
}

/* One stream writes text that the drafter knows, three write text it does not: the first drafts in each step, the
 * others now and then. */
static void one_of_four(void **state)
{
    (void) state;
    int32_t asked = 0;
    static BatchBudget k;
    Cost c;
    Member m[4];
    Forecast forecast[4] = { 0 };
    double good[7] = { .95, .9, .86, .81, .77, .74, .7 }, poor[2] = { .1, .01 };
    cost_reset(&c);
    cost_set_pass(&c, 1, 0.090);
    cost_set_pass(&c, 4, 0.101);
    cost_set_pass(&c, 8, 0.120);
    cost_set_pass(&c, 16, 0.150);
    cost_set_draft(&c, 0.011);
    batch_reset(&k);
    for (int32_t step = 0; step < 120; step++) {
        for (int32_t i = 0; i < 4; i++) m[i] = (Member) { .may = true, .margin = 3, .forecast = &forecast[i] };
        int32_t drafted = batch_plan(&k, &c, m, 4), n = 0;
        double gain[16];
        for (int32_t i = 0; i < 4; i++) {
            if (!m[i].drafts) continue;
            batch_hear(&k, &forecast[i], 3, i == 2 ? good : poor, i == 2 ? 7 : 2);
            if (i == 2) for (int32_t j = 0; j < 7; j++) gain[n++] = good[j];
        }
        asked += step >= 60 ? drafted : 0;
        if (step >= 60) assert_true(m[2].drafts);
        int32_t nodes = drafted ? batch_choose(&k, &c, 4, drafted, gain, n) : 0;
        assert_true(n == 0 || nodes == 7);
        batch_observe(&k, &c, 4, drafted, nodes, 4 + (nodes ? 5 : 0), nodes ? 5.6 : 0, nodes ? 5 : 0);
    }
    assert_true(k.on && k.account > 3);
    if (asked > 60 * 5 / 2) fail_msg("%d proposals in 60 steps, where 60 pay", asked);
    /* A guess that costs nothing and promises as much takes the drafter's place. */
    forecast_add(&m[2].free, 0, good, 7);
    batch_plan(&k, &c, m, 4);
    assert_false(m[2].drafts);
}

/* The account must cover a step's possible loss before the step starts; nothing starts that could overdraw it. */
static void account(void **state)
{
    (void) state;
    static BatchBudget k;
    Cost c;
    Member m[2];
    Forecast forecast[2] = { 0 };
    double sure[8] = { .99, .98, .97, .96, .95, .94, .93, .92 };
    cost_reset(&c);
    batch_reset(&k);
    for (int32_t i = 0; i < 2; i++) m[i] = (Member) { .may = true, .margin = NAN, .forecast = &forecast[i] };
    assert_int_equal(batch_plan(&k, &c, m, 2), 0);                   /* nothing was measured */
    assert_int_equal(batch_choose(&k, &c, 2, 1, sure, 8), 0);
    cost_set_pass(&c, 1, 0.010);
    cost_set_pass(&c, 8, 0.020);
    cost_set_pass(&c, 16, 0.040);
    cost_set_draft(&c, 0.010);
    double low = k.account;
    for (int32_t step = 0; step < 400; step++) {
        double before = k.account;
        int32_t drafted = batch_plan(&k, &c, m, 2), nodes = 0;
        for (int32_t i = 0; i < 2; i++) if (m[i].drafts) batch_hear(&k, &forecast[i], NAN, sure, 8);
        if (drafted) nodes = batch_choose(&k, &c, 2, drafted, sure, 8);
        double ms = (double) c.pass_ms[2 + nodes] + (drafted ? (double) cost_draft_ms(&c, drafted) : 0);
        assert_true(ms / (double) c.pass_ms[2] - 1 <= before + 1e-6);
        batch_observe(&k, &c, 2, drafted, nodes, 2, nodes > 0, 0);            /* nothing is ever accepted */
        low = fmin(low, k.account);
    }
    assert_true(low > -1e-6);
    assert_true(!k.on && k.gap > 16 && k.got / k.promised < 0.1);
    assert_int_equal(batch_choose(&k, &c, 64, 0, sure, 8), 0);       /* no rows are left besides the roots */
    for (int32_t i = 0; i < 2; i++) m[i].may = false;
    k.since = 1e6;
    assert_int_equal(batch_plan(&k, &c, m, 2), 0);
}

/* An account that is empty, or below zero by rounding, pays for no proposal and no probe, but free rows are still
 * taken. */
static void empty_account(void **state)
{
    (void) state;
    static BatchBudget k;
    Cost c;
    Member m[2];
    Forecast forecast[2] = { 0 };
    const double sure[4] = { .9, .8, .7, .6 }, left[3] = { 0, -1e-9, -1e-7 };
    for (int32_t i = 0; i < 3; i++) {
        cost_reset(&c);
        batch_reset(&k);
        cost_set_pass(&c, 1, 0.010);
        for (int32_t rows = 2; rows <= 8; rows++) cost_set_pass(&c, rows, 0.010);    /* as long as one */
        cost_set_pass(&c, 16, 0.030);
        cost_set_draft(&c, 0.010);
        for (int32_t j = 0; j < 2; j++) m[j] = (Member) { .may = true, .margin = NAN, .forecast = &forecast[j] };
        k.account = left[i];
        k.since = 1e6;
        assert_int_equal(batch_plan(&k, &c, m, 2), 0);
        assert_false(m[0].drafts || m[1].drafts);
        assert_int_equal(batch_choose(&k, &c, 2, 0, sure, 4), 4);
        assert_int_equal(batch_choose(&k, &c, 2, 1, sure, 4), 0);
        k.account = 2.5;
        assert_int_equal(batch_plan(&k, &c, m, 2), 1);         /* a probe, as soon as the account covers it */
    }
}

/* A probe starts the wait for the next one; gains of an earlier stretch of drafting are no reason to probe again
 * soon. */
static void looks_and_stretches(void **state)
{
    (void) state;
    static BatchBudget k;
    Cost c;
    Member m[2];
    Forecast forecast[2] = { 0 };
    const double sure[4] = { .95, .9, .85, .8 };
    cost_reset(&c);
    batch_reset(&k);
    cost_set_pass(&c, 1, 0.010);
    cost_set_pass(&c, 16, 0.012);
    cost_set_draft(&c, 0.0005);
    for (int32_t i = 0; i < 2; i++) m[i] = (Member) { .may = true, .margin = NAN, .forecast = &forecast[i] };
    k.gap = 10;
    k.since = 20;
    assert_int_equal(batch_plan(&k, &c, m, 2), 1);
    batch_observe(&k, &c, 2, 1, 0, 2, 0, 0);
    int32_t waited = 0;
    for (; batch_plan(&k, &c, m, 2) == 0; waited++) batch_observe(&k, &c, 2, 0, 0, 2, 0, 0);
    assert_int_equal(waited, 10);
    k.won = 5;                                     /* of a stretch that is over */
    for (int32_t i = 0; i < 2; i++) batch_hear(&k, &forecast[i], NAN, sure, 4);
    assert_int_equal(batch_plan(&k, &c, m, 2), 2);
    assert_true(k.on && k.won == 0);
    for (int32_t i = 0; i < 2; i++) m[i].may = false;
    assert_int_equal(batch_plan(&k, &c, m, 2), 0);
    assert_true(!k.on && k.gap > 10);
}

static void same_inputs_same_decisions(void **state)
{
    (void) state;
    Traces t;
    read_class(&t, 0);
    double x = play(&places[FOUR_B], &t, 4, (BatchSetting) { .uneven = 0.2 }, 3, 128, 200, NULL),
           y = play(&places[FOUR_B], &t, 4, (BatchSetting) { .uneven = 0.2 }, 3, 128, 200, NULL);
    assert_true(x == y);
    traces_free(&t);
}

int main(int argc, char **argv)
{
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(never_below_the_better), cmocka_unit_test(recorded_texts), cmocka_unit_test(one_of_four),
        cmocka_unit_test(account), cmocka_unit_test(empty_account), cmocka_unit_test(looks_and_stretches),
        cmocka_unit_test(same_inputs_same_decisions),
    };
    return cmocka_run_group_tests_name("batch_budget", tests, NULL, NULL);
}
