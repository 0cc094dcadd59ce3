/* The laboratory (ratoon_lab.h): rows give what was asked for and compute nothing else; acceptance is drawn if a
 * profile is set, and decided by the target again once it is removed. */
#include "model_helper.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 12, V = 96, WIDTH_MAX = 1024 };

typedef struct { int32_t n, want; float logits[ROWS * V], taps[ROWS * WIDTH_MAX]; size_t width; } Seen;

static void see(void *ud, int32_t i, const float *logits, const float *taps)
{
    Seen *w = ud;
    assert_int_equal(i, w->n++);
    assert_int_equal(logits != NULL, (w->want & RT_ROWS_LOGITS) != 0);
    assert_int_equal(taps != NULL, (w->want & RT_ROWS_TAPS) != 0);
    if (logits) memcpy(w->logits + i * V, logits, sizeof *logits * V);
    if (taps) memcpy(w->taps + (size_t) i * w->width, taps, sizeof *taps * w->width);
}

static void rows_that_are_wanted(void **state)
{
    (void) state;
    for (int32_t device = 0; device < 2; device++)
        for (int32_t kind = 0; kind < RIG_KINDS; kind += 2)
            for (int32_t tree = 0; tree < 2; tree++) {
                PublicRig p;
                RigOptions o = rig_with_draft(rig_kind(kind, device), false);
                public_open(&p, &o, NULL);
                rt_step *st;
                rt_session *s;
                public_start(&st, &s, p.g, &RT_STEP_OPTIONS(.chunk = 5), &RT_SESSION_OPTIONS(.ctx = 100));
                Dice d = { tiny_key(11, "want"), kind };
                int32_t prefix[9], token[ROWS], parent[ROWS];
                random_tokens(&d, 9, V, prefix);
                random_tree(&d, ROWS, V, token, parent);
                Seen *seen = calloc(4, sizeof *seen);
                for (int want = 3; want > 0; want--) {
                    Seen *w = &seen[want];
                    w->want = want;
                    w->width = (size_t) p.g->model->tap_width;
                    assert_true(w->width > 0 && w->width <= WIDTH_MAX);
                    if (rt_rows(st, s, prefix, 9, token, tree ? parent : NULL, ROWS, want, see, w))
                        fail_msg("%s", rt_step_error(st));
                    assert_int_equal(w->n, ROWS);
                    if (want & RT_ROWS_LOGITS) assert_true(st->spec.last->host.n_logits > 0);
                    else assert_int_equal(st->spec.last->host.n_logits, 0);
                }
                assert_same(seen[1].taps, seen[3].taps, sizeof(float) * ROWS * seen[3].width, "taps of kind %d", kind);
                assert_same(seen[2].logits, seen[3].logits, sizeof seen[3].logits, "logits of kind %d", kind);
                for (int want = -1; want <= 4; want += want == 0 ? 4 : 1)
                    assert_int_equal(rt_rows(st, s, prefix, 9, token, NULL, ROWS, want, see, seen), RT_EARG);
                assert_non_null(strstr(rt_step_error(st), "wanted is 4"));
                free(seen);
                rt_session_free(s);
                rt_step_free(st);
                public_close(&p);
            }
}

static void no_taps(void **state)
{
    (void) state;
    PublicRig p;
    RigOptions o = rig_kind(0, false);
    rt_step *st;
    rt_session *s;
    Seen *w = calloc(1, sizeof *w);
    const int32_t token = 1;
    public_open(&p, &o, NULL);
    public_start(&st, &s, p.g, NULL, NULL);
    for (w->want = RT_ROWS_TAPS; w->want <= 3; w->want += 2) {
        assert_int_equal(rt_rows(st, s, NULL, 0, &token, NULL, 1, w->want, see, w), RT_EARG);
        assert_non_null(strstr(rt_step_error(st), "the engine has none"));
    }
    w->want = RT_ROWS_LOGITS;
    assert_int_equal(rt_rows(st, s, NULL, 0, &token, NULL, 1, w->want, see, w), RT_OK);
    free(w);
    rt_session_free(s);
    rt_step_free(st);
    public_close(&p);
}

/* ---- acceptance ---- */

typedef struct { int32_t text[TEXT + 64], n; rt_stats stats; } Told;

static void tell(Told *out, rt_step *st, rt_session *s)
{
    rt_block b;
    int32_t prompt[PROMPT];
    Dice d = { tiny_key(12, "tell"), 0 };
    random_tokens(&d, PROMPT, V, prompt);
    out->n = 0;
    assert_int_equal(rt_prompt(s, (const int32_t[]) { 1 }, 1), RT_OK);             /* nothing from before is kept */
    assert_int_equal(rt_next(st, s, &b), RT_OK);
    assert_int_equal(rt_prompt(s, prompt, PROMPT), RT_OK);
    while (out->n < TEXT) {
        if (rt_next(st, s, &b) != RT_OK) fail_msg("%s%s", rt_step_error(st), rt_session_error(s));
        memcpy(out->text + out->n, b.token, sizeof *b.token * (size_t) b.n);
        out->n += b.n;
    }
    rt_stats_get(s, &out->stats, sizeof out->stats);
}

static rt_profile profile_of(double first)
{
    rt_profile p = { .n_depth = 16, .n_rank = 4 };
    for (int32_t d = 0; d < p.n_depth; d++) p.edge[d][0] = first;
    return p;
}

static void drawn_acceptance(void **state)
{
    (void) state;
    PublicRig p;
    RigOptions o = rig_with_draft(rig_kind(1, false), false);
    rt_step *st, *other;
    rt_session *s;
    rt_error e;
    public_open(&p, &o, NULL);
    const rt_step_options so = RT_STEP_OPTIONS(.budget = 12, .chain = true);
    assert_int_equal(rt_step_new(&st, p.g, &so, &e), RT_OK);
    assert_int_equal(rt_step_new(&other, p.g, &so, &e), RT_OK);
    assert_int_equal(rt_session_new(&s, p.g, &RT_SESSION_OPTIONS(.ctx = 200, .ngram = -1), &e), RT_OK);
    Told real, told, again;
    tell(&real, st, s);
    const double first[] = { 1, 1e-6, 0.6 };
    for (int32_t i = 0; i < 3; i++) {
        rt_profile x = profile_of(first[i]);
        assert_int_equal(rt_simulate(st, &x, 7), RT_OK);
        x = profile_of(1 - first[i]);                              /* it was copied */
        tell(&told, st, s);
        assert_true(told.stats.drafted > 0);
        if (i == 0) assert_int_equal(told.stats.accepted, told.stats.drafted);
        if (i == 1) assert_int_equal(told.stats.accepted, 0);
        if (i == 2) assert_true(told.stats.accepted > 0 && told.stats.accepted < told.stats.drafted);
    }
    const rt_profile x = profile_of(0.6);                          /* set on a step that has run, and on a new one */
    assert_int_equal(rt_simulate(st, &x, 7), RT_OK);
    tell(&told, st, s);
    assert_int_equal(rt_simulate(other, &x, 7), RT_OK);
    tell(&again, other, s);
    assert_int_equal(again.n, told.n);
    assert_int_equal(again.stats.accepted, told.stats.accepted);
    assert_memory_equal(again.text, told.text, sizeof *told.text * (size_t) told.n);
    assert_int_equal(rt_simulate(st, NULL, 0), RT_OK);
    tell(&told, st, s);
    assert_memory_equal(told.text, real.text, sizeof *told.text * TEXT);
    assert_int_equal(told.stats.accepted, real.stats.accepted);
    rt_session_free(s);
    rt_step_free(other);
    rt_step_free(st);
    public_close(&p);
}

/* Passes that are timed as if there were more tokens leave the drafter the taps that wait for it. */
static void times_keep_taps(void **state)
{
    (void) state;
    PublicRig p;
    RigOptions o = rig_with_draft(rig_kind(1, false), false);
    rt_step *st;
    rt_session *s;
    rt_block b = { 0 };
    int32_t prompt[PROMPT];
    double ms[2];
    Dice d = { tiny_key(13, "taps"), 0 };
    random_tokens(&d, PROMPT, V, prompt);
    public_open(&p, &o, NULL);
    public_start(&st, &s, p.g, &RT_STEP_OPTIONS(.budget = 12), &RT_SESSION_OPTIONS(.ctx = 200));
    assert_int_equal(rt_prompt(s, prompt, PROMPT), RT_OK);
    for (int32_t n = 0; n < TEXT; n += b.n) {
        assert_int_equal(rt_next(st, s, &b), RT_OK);
        assert_int_equal(rt_time_pass(st, s, 150, 5, 2, ms), RT_OK);
        assert_true(s->s.n_wait > 0);
        assert_int_equal(s->s.draft.P - s->s.dm->lead + s->s.n_wait, s->s.line.target.P);
    }
    rt_session_free(s);
    rt_step_free(st);
    public_close(&p);
}

static void profiles_are_checked(void **state)
{
    (void) state;
    PublicRig p;
    RigOptions o = rig_with_draft(rig_kind(1, false), false);
    rt_step *st;
    rt_session *s;
    public_open(&p, &o, NULL);
    public_start(&st, &s, p.g, &RT_STEP_OPTIONS(.budget = 12, .chain = true),
                 &RT_SESSION_OPTIONS(.ctx = 200, .ngram = -1));
    const rt_profile none = profile_of(1e-6);
    assert_int_equal(rt_simulate(st, &none, 1), RT_OK);
    rt_profile bad[5];
    const char *says[5] = { "17 depths", "17 ranks", "bad depths", "bad probability", "bad sum" };
    for (int32_t i = 0; i < 5; i++) bad[i] = profile_of(1);
    bad[0].n_depth = bad[1].n_rank = 17;
    bad[2].n_depth = 0;
    bad[3].edge[2][0] = 1.5;
    bad[4].edge[2][1] = 0.5;
    for (int32_t i = 0; i < 5; i++) {
        assert_int_equal(rt_simulate(st, &bad[i], 1), RT_EARG);
        if (!strstr(rt_step_error(st), says[i])) fail_msg("%s, expected %s", rt_step_error(st), says[i]);
    }
    Told told;
    tell(&told, st, s);                                            /* still under the profile from before */
    assert_true(told.stats.drafted > 0);
    assert_int_equal(told.stats.accepted, 0);
    rt_session_free(s);
    rt_step_free(st);
    public_close(&p);
}

int main(int argc, char **argv)
{
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_that_are_wanted), cmocka_unit_test(no_taps), cmocka_unit_test(drawn_acceptance),
        cmocka_unit_test(times_keep_taps),
        cmocka_unit_test(profiles_are_checked),
    };
    return cmocka_run_group_tests_name("lab", tests, NULL, NULL);
}
