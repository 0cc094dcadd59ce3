/* The library as its users see it: clients of ratoon.h that arrive late, cancel, shorten their blocks and come back for a second turn,
 * together in one step. What each of them reads is what it would read alone, without a drafter. */
#include "model_helper.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CLIENTS = 3 };

static const rt_sampling samplings[CLIENTS] = {
    { 0 }, { .temperature = 1, .top_p = 0.9f, .repetition = 1.2f, .frequency = 0.3f, .rep_window = 30, .seed = 3 }, { .temperature = 0.7f, .top_k = 20, .seed = 9 }
};

static bool keep_going(void *ud, const char *what, int64_t done, int64_t total)
{
    (void) what, (void) done, (void) total;
    Dice *d = ud;
    return d->key == 0 || roll(d, 40) != 0;
}

static void prompt_of(int32_t client, int32_t turn, int32_t *token)
{
    Dice d = { tiny_key(5, "client"), (uint64_t) (client * 10 + turn) * 100 };
    random_tokens(&d, PROMPT, 96, token);
}

/* One client alone, plain: two turns of TEXT tokens; the second prompt is the whole first text and PROMPT tokens more. */
static void alone(rt_engine *g, int32_t client, int32_t text[2][TEXT])
{
    rt_step *st;
    rt_session *s;
    rt_error e;
    rt_block b;
    int32_t all[2 * (PROMPT + TEXT)], n = 0;
    assert_int_equal(rt_step_new(&st, g, &(rt_step_options) { .budget = -1 }, &e), RT_OK);
    assert_int_equal(rt_session_new(&s, g, &(rt_session_options) { .ctx = 200 }, &e), RT_OK);
    assert_int_equal(rt_sampling_set(s, &samplings[client]), RT_OK);
    for (int32_t turn = 0; turn < 2; turn++) {
        prompt_of(client, turn, all + n);
        n += PROMPT;
        assert_int_equal(rt_prompt(s, all, (size_t) n), RT_OK);
        for (int32_t i = 0; i < TEXT; i++) {
            assert_int_equal(rt_next(st, s, &b), RT_OK);
            assert_int_equal(b.n, 1);
            all[n + i] = text[turn][i] = b.token[0];
        }
        n += TEXT;
    }
    rt_session_free(s);
    rt_step_free(st);
}

typedef struct { rt_session *s; int32_t all[2 * (PROMPT + TEXT) + 64], n, made, turn; int64_t cancelled; bool plain; } Client;

static void ask(Client *c, int32_t who)
{
    prompt_of(who, c->turn, c->all + c->n);
    c->n += PROMPT;
    c->made = 0;
    assert_int_equal(rt_prompt(c->s, c->all, (size_t) c->n), RT_OK);
}

/* fake: drafts that are often right, from a drafter that knows the texts, in place of the random DFlash's. */
static void together(const RigOptions *o, int32_t budget, bool fake)
{
    PublicRig p;
    Dice stop = { 0 };
    public_open(&p, o, &(rt_hooks) { .ud = &stop, .progress = keep_going });
    int32_t want[CLIENTS][2][TEXT];
    for (int32_t i = 0; i < CLIENTS; i++) alone(p.g, i, want[i]);
    rt_step *st;
    rt_error e;
    Client c[CLIENTS] = { 0 };
    assert_int_equal(rt_step_new(&st, p.g, &(rt_step_options) { .sessions = CLIENTS, .chunk = 8, .budget = budget }, &e), RT_OK);
    for (int32_t i = 0; i < CLIENTS; i++) {
        assert_int_equal(rt_session_new(&c[i].s, p.g, &(rt_session_options) { .ctx = 200 }, &e), RT_OK);
        assert_int_equal(rt_sampling_set(c[i].s, &samplings[i]), RT_OK);
        ask(&c[i], i);
    }
    FakeDrafter knows;
    int32_t truth[CLIENTS][2 * (PROMPT + TEXT)];
    fake_drafter(&knows, FAKE_MIXED, 4, NULL, 0);
    for (int32_t i = 0; i < CLIENTS; i++) {
        for (int32_t turn = 0; turn < 2; turn++) {
            prompt_of(i, turn, truth[i] + turn * (PROMPT + TEXT));
            memcpy(truth[i] + turn * (PROMPT + TEXT) + PROMPT, want[i][turn], sizeof want[i][turn]);
        }
        knows.of[i].s = &c[i].s->s;
        knows.of[i].truth = truth[i];
        knows.of[i].n = 2 * (PROMPT + TEXT);
    }
    if (fake) st->spec.drafter = &knows.drafter;
    Dice d = { tiny_key(6, "clients"), 0 };
    stop.key = tiny_key(7, "stop");
    int64_t cancelled = 0, taken = 0;
    for (int32_t step = 0, going = CLIENTS; going > 0; step++) {
        rt_session *s[CLIENTS];
        rt_block b[CLIENTS];
        int32_t who[CLIENTS];
        size_t n = 0;
        assert_true(step < 2000);
        for (int32_t i = 0; i < CLIENTS; i++)
            if (step >= 4 * i && c[i].turn < 2) who[n] = i, s[n++] = c[i].s;
        rt_status code = rt_step_run(st, s, b, n);
        if (code == RT_ECANCEL) {
            cancelled++;
            continue;
        }
        if (code != RT_OK) fail_msg("step: %s", rt_step_error(st));
        for (size_t j = 0; j < n; j++) {
            Client *x = &c[who[j]];
            int32_t more = b[j].n;
            assert_int_equal(b[j].status, RT_OK);
            if (x->plain) assert_true(more <= 1);  /* a client may do without guesses for a while */
            x->plain = roll(&d, 4) == 0;
            assert_int_equal(rt_speculate(x->s, !x->plain), RT_OK);
            if (more > 2 && roll(&d, 2)) more = 2, taken++;
            if (more > TEXT - x->made) more = TEXT - x->made;
            assert_int_equal(rt_take(x->s, more), RT_OK);
            memcpy(x->all + x->n, b[j].token, sizeof *x->all * (size_t) more);
            x->n += more;
            x->made += more;
            if (x->made < TEXT) continue;
            assert_same(x->all + x->n - TEXT, want[who[j]][x->turn], sizeof(int32_t) * TEXT, "client %d, turn %d", who[j], x->turn);
            rt_stats stats;
            rt_stats_get(x->s, &stats);
            assert_int_equal(stats.generated, TEXT);
            assert_int_equal(stats.prompt_tokens, x->n - TEXT);
            if (++x->turn < 2) ask(x, who[j]);
            else going--;
        }
    }
    assert_true(cancelled > 3 || o->device);       /* recorded passes are not asked */
    assert_true(taken > 0 || !fake);
    for (int32_t i = 0; i < CLIENTS; i++) rt_session_free(c[i].s);
    rt_step_free(st);
    public_close(&p);
}

static void clients_together(void **state)
{
    (void) state;
    for (int32_t device = 0; device < 2; device++)
        for (int32_t kind = 0; kind < RIG_KINDS; kind++) {
            RigOptions o = rig_with_draft(rig_kind(kind, device), kind % 2);
            together(&o, kind == 3 ? 0 : 25, kind % 3 != 0);
        }
}

/* ---- looking inside ---- */

typedef struct { float *y; int32_t vocab, n, taps; } Seen;
static void see(void *ud, int32_t i, const float *logits, const float *taps)
{
    Seen *w = ud;
    assert_int_equal(i, w->n);
    memcpy(w->y + i * w->vocab, logits, sizeof *logits * (size_t) w->vocab);
    w->taps += taps != NULL;
    w->n++;
}

/* rt_rows: a tree's row is the chain of its path, a prefix is the rows before it, and nothing is left in the session. */
static void rows_of_trees_and_chains(void **state)
{
    (void) state;
    for (int32_t device = 0; device < 2; device++)
        for (int32_t kind = 0; kind < RIG_KINDS; kind += 2) {
            PublicRig p;
            RigOptions o = rig_with_draft(rig_kind(kind, device), false);
            public_open(&p, &o, NULL);
            rt_step *st;
            rt_session *s;
            rt_error e;
            assert_int_equal(rt_step_new(&st, p.g, &(rt_step_options) { .chunk = 11 }, &e), RT_OK);
            assert_int_equal(rt_session_new(&s, p.g, &(rt_session_options) { .ctx = 100 }, &e), RT_OK);
            Dice d = { tiny_key(8, "rows"), 0 };
            int32_t prefix[30], token[12], parent[12], rows[12], chain[42];
            random_tokens(&d, 30, 96, prefix);
            random_tree(&d, 12, 96, token, parent);
            Seen tree = { malloc(sizeof(float) * 96 * 12), 96, 0, 0 }, line = { malloc(sizeof(float) * 96 * 42), 96, 0, 0 };
            for (int32_t n_prefix = 0; n_prefix <= 30; n_prefix += 15)
                for (int32_t row = 11; row >= 0; row -= 4) {
                    int32_t n = path_rows(row, parent, rows);
                    memcpy(chain, prefix, sizeof *chain * (size_t) n_prefix);
                    for (int32_t t = 0; t < n; t++) chain[n_prefix + t] = token[rows[t]];
                    tree.n = line.n = tree.taps = 0;
                    if (rt_rows(st, s, prefix, (size_t) n_prefix, token, parent, 12, see, &tree)) fail_msg("%s", rt_step_error(st));
                    if (rt_rows(st, s, NULL, 0, chain, NULL, n_prefix + n, see, &line)) fail_msg("%s", rt_step_error(st));
                    assert_int_equal(tree.taps, 12);
                    assert_same(tree.y + row * 96, line.y + (n_prefix + n - 1) * 96, sizeof(float) * 96, "kind %d, prefix %d, row %d", kind, n_prefix, row);
                }
            assert_int_equal(rt_rows(st, s, prefix, 30, token, (int32_t[]) { -1, 1 }, 2, see, &tree), RT_EARG);
            assert_int_equal(rt_rows(st, s, prefix, 30, (int32_t[]) { 96 }, NULL, 1, see, &tree), RT_EARG);
            free(tree.y);
            free(line.y);
            rt_session_free(s);
            rt_step_free(st);
            public_close(&p);
        }
}

/* A text of a session whose passes are timed meanwhile, there and farther on, is the text. */
static void times_leave_no_trace(void **state)
{
    (void) state;
    for (int32_t kind = 0; kind < RIG_KINDS; kind++) {
        PublicRig p;
        RigOptions o = rig_with_draft(rig_kind(kind, kind % 3 == 0), kind % 2);
        public_open(&p, &o, NULL);
        int32_t text[2][TEXT], prompt[PROMPT];
        prompt_of(kind, 0, prompt);
        for (int32_t timed = 0; timed < 2; timed++) {
            rt_step *st;
            rt_session *s;
            rt_error e;
            rt_block b = { 0 };
            double ms[2];
            assert_int_equal(rt_step_new(&st, p.g, &(rt_step_options) { .budget = 9 }, &e), RT_OK);
            assert_int_equal(rt_session_new(&s, p.g, &(rt_session_options) { .ctx = 200 }, &e), RT_OK);
            assert_int_equal(rt_prompt(s, prompt, PROMPT), RT_OK);
            for (int32_t n = 0; n < TEXT; n += b.n) {
                assert_int_equal(rt_next(st, s, &b), RT_OK);
                for (int32_t i = 0; i < b.n && n + i < TEXT; i++) text[timed][n + i] = b.token[i];
                if (timed && rt_time_pass(st, s, n % 2 ? -1 : 150 + n % 7, 1 + n % 20, 2, ms) != RT_OK) fail_msg("%s", rt_step_error(st));
                if (timed) assert_true(ms[0] > 0 && ms[1] > 0);
            }
            assert_int_equal(rt_time_pass(st, s, PROMPT, 1, 1, ms), RT_EARG);
            assert_int_equal(rt_time_pass(st, s, 190, 11, 1, ms), RT_EFULL);
            assert_int_equal(rt_time_pass(st, s, INT32_MAX, 1, 1, ms), RT_EFULL);
            assert_int_equal(rt_time_pass(st, s, -2, 1, 1, ms), RT_EARG);
            rt_session_free(s);
            rt_step_free(st);
        }
        assert_same(text[1], text[0], sizeof text[0], "kind %d", kind);
        public_close(&p);
    }
}

int main(int argc, char **argv)
{
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = { cmocka_unit_test(clients_together), cmocka_unit_test(rows_of_trees_and_chains), cmocka_unit_test(times_leave_no_trace) };
    return cmocka_run_group_tests_name("public", tests, NULL, NULL);
}
