/* Sources of guesses: the look-up in the text alone, the target's own MTP layer against PyTorch, and all of them
 * together. Whatever they propose, the text is that of plain decoding. */
#include "model_helper.h"
#include "part.h"
#include "tree_helper.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the text itself ---- */

static void find(Guess *g, Ngram *n, const int32_t *text, int32_t len) { ngram_find(g, n, text, len, LAT_DEPTH); }

static void quotations_go_on(void **state)
{
    (void) state;
    Error err;
    Ngram n;
    Guess g;
    enum { LEN = 400 };
    int32_t text[LEN];
    Dice d = { tiny_key(1, "text"), 0 };
    assert_ok(ngram_open(&n, LEN, &err), &err);
    random_tokens(&d, LEN, 1 << 20, text);
    find(&g, &n, text, 300);
    assert_int_equal(g.n, 0);                                        /* nothing repeats */
    memcpy(text + 300, text + 50, sizeof *text * 10);                /* ten tokens of a quotation: it continues */
    find(&g, &n, text, 310);
    assert_int_equal(g.n, 1);
    assert_int_equal(g.match, 10);
    assert_true(g.length[0] > 8);
    assert_memory_equal(g.token[0], text + 60, sizeof *text * (size_t) g.length[0]);
    for (int32_t i = 1; i < g.length[0]; i++) assert_true(g.raw[0][i] > g.raw[0][i - 1] && g.raw[0][i] < 0);
    /* Two places that continue differently: the longer match comes first; the shares sum below one. */
    text[310] = 77;
    memcpy(text + 311, text + 49, sizeof *text * 11);
    find(&g, &n, text, 322);
    assert_int_equal(g.match, 11);
    assert_true(g.n >= 2);
    assert_int_equal(g.token[0][0], text[60]);
    assert_true(g.token[1][0] == 77 && g.raw[0][0] > g.raw[1][0] && expf(g.raw[0][0]) + expf(g.raw[1][0]) < 1);
    /* A loop continues beyond the end of the text; the depth is limited. */
    for (int32_t i = 322; i < 343; i++) text[i] = (i - 322) % 3;
    find(&g, &n, text, 343);
    for (int32_t i = 0; i < g.length[0]; i++) assert_int_equal(g.token[0][i], (343 - 322 + i) % 3);
    assert_true(g.length[0] > 10);
    ngram_find(&g, &n, text, 343, 2);
    assert_int_equal(g.length[0], 2);
    ngram_find(&g, &n, text, 343, 0);
    assert_int_equal(g.n, 0);
    ngram_close(&n);
    find(&g, &n, text, 343);                                         /* no index: no proposal */
    assert_int_equal(g.n, 0);
}

/* Against the definition: places by comparing everything, for texts with few tokens; after any cutting and continuing
 * the answer is that of a fresh index. */
static void index_is_a_function_of_the_text(void **state)
{
    (void) state;
    Error err;
    enum { LEN = 300 };
    static Guess a, b;
    Dice d = { tiny_key(2, "history"), 0 };
    for (int32_t round = 0; round < 60; round++) {
        Ngram n, fresh;
        int32_t text[LEN], len = 0, vocab = 2 + roll(&d, 40);
        assert_ok(ngram_open(&n, LEN, &err), &err);
        for (int32_t step = 0; step < 60; step++) {
            if (roll(&d, 4) == 0 && len > 0) {
                int32_t to = roll(&d, len + 1);
                ngram_cut(&n, text, to);
                len = to;
            }
            int32_t more = 1 + roll(&d, 9);
            if (len + more > LEN) continue;
            random_tokens(&d, more, vocab, text + len);
            len += more;
            memset(&a, 0, sizeof a);
            memset(&b, 0, sizeof b);
            find(&a, &n, text, len);
            assert_ok(ngram_open(&fresh, LEN, &err), &err);
            find(&b, &fresh, text, len);
            assert_same(&a, &b, sizeof a, "round %d, %d tokens", round, len);
            ngram_close(&fresh);
            int32_t longest = 0;
            for (int32_t e = 0; e < len - 1; e++) {
                int32_t m = 0;
                while (m < 64 && m <= e && text[e - m] == text[len - 1 - m]) m++;
                if (m > longest) longest = m;
            }
            if (longest >= 8) assert_true(a.n > 0);
            /* so short that every place is looked at */
            if (len < 40) assert_int_equal(a.match, longest < 2 ? 0 : longest);
            for (int32_t c = 0; c < a.n; c++)
                for (int32_t i = 0; i < a.length[c]; i++)
                    assert_true(a.raw[c][i] <= 0 && a.raw[c][i] > -6 && a.token[c][i] < vocab);
        }
        ngram_close(&n);
    }
}

/* After a text is cut to its first tokens the index knows nothing of the rest. */
static void cut_to_the_beginning(void **state)
{
    (void) state;
    Error err;
    static Guess g;
    const int32_t text[40] = { 1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2, 3 };
    for (int32_t to = 0; to < 4; to++) {
        Ngram n;
        assert_ok(ngram_open(&n, 40, &err), &err);
        find(&g, &n, text, 12);
        assert_true(g.n > 0);
        ngram_cut(&n, text, to);
        find(&g, &n, text, to);
        assert_int_equal(g.n, 0);
        assert_int_equal(g.match, 0);
        ngram_close(&n);
    }
}

/* Columns of several sources in one lattice: each chain is a path of the tree; a token that two propose under one
 * parent is a single node, and its outcome teaches both. */
static void sources_share_a_tree(void **state)
{
    (void) state;
    static Lattice l;
    static Calibration c;
    calib_reset(&c);
    int32_t id[3 * 2] = { 10, 11, 20, 21, 30, 31 }, mtp[2 * 4] = { 10, 12, 13, 14, 40, 41, 42, 43 },
            chain[5] = { 11, 20, 50, 51, 52 };
    float score[6] = { 1, 0, 1, 0, 1, 0 }, mtp_score[8] = { 3, 2, 1, 0, 3, 2, 1, 0 },
          raw[5] = { -0.2f, -0.1f, -0.1f, -0.1f, -0.1f };
    lattice_from_scores(&l, id, score, 3, 2, &c, SOURCE_BLOCK);
    assert_true(lattice_branches(&l, mtp, mtp_score, 2, 4, 3, &c, SOURCE_MTP));
    assert_true(lattice_chain(&l, chain, raw, 5, &c, SOURCE_NGRAM));
    assert_int_equal(l.n_depth, 5);
    assert_int_equal(l.k, 6);
    const Lattice *lat = &l;
    int32_t root = 1, depth_max = 9;
    Tree t;
    tree_build(&t, &lat, &root, &depth_max, 1, 63);
    tree_rows(&t);
    int32_t row = 0;
    for (int32_t d = 0; d < 5; d++) assert_true((row = tree_child(&t, row, chain[d])) > 0);
    assert_true(t.raw[row][SOURCE_NGRAM] > -INFINITY && t.raw[row][SOURCE_BLOCK] == -INFINITY);
    int32_t eleven = tree_child(&t, 0, 11), twenty = tree_child(&t, eleven, 20), ten = tree_child(&t, 0, 10);
    assert_true(t.raw[eleven][SOURCE_BLOCK] > -INFINITY && t.raw[eleven][SOURCE_NGRAM] == -0.2f &&
                t.raw[eleven][SOURCE_MTP] == -INFINITY);
    assert_true(t.raw[twenty][SOURCE_BLOCK] > -INFINITY && t.raw[twenty][SOURCE_NGRAM] == -0.1f);
    assert_true(t.raw[ten][SOURCE_BLOCK] > -INFINITY && t.raw[ten][SOURCE_MTP] > -INFINITY &&
                t.raw[ten][SOURCE_NGRAM] == -INFINITY);
    assert_true(tree_child(&t, ten, 42) > 0 && tree_child(&t, ten, 43) < 0 && tree_child(&t, ten, 20) > 0 &&
                tree_child(&t, eleven, 40) < 0);
    assert_true(tree_child(&t, tree_child(&t, 0, 12), 40) < 0);      /* side branches of a chain end there */
    Path p = { .n = 3, .row = { 0, eleven, twenty } };
    accept_learn(&c, &t, &p, 7);
    assert_true(c.hits[SOURCE_NGRAM] < 1.9 && c.hits[SOURCE_BLOCK] > 1.9 && c.hits[SOURCE_MTP] == 0 &&
                c.expected[SOURCE_MTP] > 0.5);
    /* The number of columns and depths is limited. */
    for (int32_t i = 0; i < LAT_COLS - 6; i++) assert_true(lattice_chain(&l, chain, raw, 3, NULL, SOURCE_NGRAM));
    assert_false(lattice_chain(&l, chain, raw, 3, NULL, SOURCE_NGRAM));
    lattice_clear(&l);
    assert_false(lattice_chain(&l, chain, raw, LAT_DEPTH + 1, NULL, SOURCE_NGRAM));
    lat = &l;
    tree_build(&t, &lat, &root, &depth_max, 1, 63);
    assert_int_equal(t.n, 1);
}

/* ---- the MTP layer against PyTorch ---- */

/* tests/oracle/expect/NAME.txt: rows are depths; within 1e-4 of the expected logits, as far as candidates show them
 * (differences between them: raw edges are a log-softmax). Covers the whole way: prompt in chunks, taps, the held
 * state, depths. */
static void mtp_is_what_pytorch_says(const char *name, const char *model)
{
    static Lattice lat;
    char path[64];
    snprintf(path, sizeof path, "tests/oracle/expect/%s.txt", name);
    FILE *f = fopen(path, "r");
    if (!f) fail_msg("%s is missing (tests run in the repository's root)", path);
    char *line = NULL;
    size_t cap = 0;
    int32_t prompt[400], n = 0, chain[8], depth = -1, compared = 0;
    Rig r;
    Loop l;
    Session *s = NULL;
    RigOptions o = { .kv = T_F32, .mtp = true };
    assert_true(tiny_model_named(&o.tm, model));
    rig_open(&r, &o);
    loop_open(&l, &r, NULL, &(LoopOptions) { .ctx = 400, .chunk = 29, .budget = 20 });
    while (getline(&line, &cap, f) > 0) {
        char *w = strtok(line, " \n");
        if (!w || w[0] == '#') continue;
        if (strcmp(w, "prefix") == 0) {
            n = atoi(strtok(NULL, " "));
            for (int32_t i = 0; i < n; i++) prompt[i] = atoi(strtok(NULL, " \n"));
        } else if (strcmp(w, "tokens") == 0) {
            depth = atoi(strtok(NULL, " "));
            for (int32_t i = 0; i < depth; i++) chain[i] = atoi(strtok(NULL, " \n"));
            if (s) loop_free(s);
            s = loop_session(&l);
            prompt[n] = chain[0];
            assert_ok(session_prompt(s, prompt, n + 1, &l.err), &l.err);
            while (s->line.target.P < n) assert_ok(spec_step(&l.sp, &s, 1, &l.err), &l.err);
            s->calib.scale[SOURCE_MTP] = 30;                         /* no depth is dropped as improbable */
            assert_ok(spec_flush_taps(&l.sp, s, &l.err), &l.err);
            assert_ok(l.sp.drafter->propose(l.sp.drafter, &l.sp, &s, 1, &lat, &l.err), &l.err);
            assert_int_equal(lat.n_depth, depth);
            for (int32_t d = 0; d + 1 < depth; d++) assert_int_equal(lat.token[d][0], chain[d + 1]);
        } else if (strcmp(w, "row") == 0) {
            int32_t d = atoi(strtok(NULL, " "));
            strtok(NULL, " "), strtok(NULL, " ");
            int32_t k = atoi(strtok(NULL, " "));
            double first = 0;
            for (int32_t i = 0; i < k; i++) {
                int32_t id = atoi(strtok(NULL, " \n"));
                double value = atof(strtok(NULL, " \n"));
                if (i == 0) first = value;
                for (int32_t c = 0; c < LAT_K; c++) {
                    if (lat.token[d][c] != id) continue;
                    double ours = (double) lat.raw[d][0][c] - (double) lat.raw[d][0][0];
                    if (fabs(ours - (value - first)) > 1e-4)
                        fail_msg("depth %d, token %d: %.6f, expected %.6f", d, id, ours, value - first);
                    compared++;
                }
            }
        }
    }
    assert_in_range(compared, 6 * 8, 6 * 12);
    free(line);
    fclose(f);
    loop_free(s);
    loop_close(&l);
    rig_close(&r);
}

static void mtp_of_qwen35(void **state)
{
    (void) state;
    mtp_is_what_pytorch_says("mtp", "qwen35-mtp");
}

static void mtp_of_qwen35moe(void **state)
{
    (void) state;
    mtp_is_what_pytorch_says("mtp-moe", "qwen35moe-mtp");
}

/* ---- exactness ---- */

typedef struct { Dice dice; int32_t one_in; } Breaker;
static bool breaks(void *ud, int32_t il)
{
    (void) il;
    Breaker *b = ud;
    return roll(&b->dice, b->one_in) == 0;
}

/* All combinations of sources, on repetitive texts, with passes that are cancelled anywhere, chunks, blocks taken in
 * part, two sessions in a step, and a second turn: the text of plain decoding, the state of a fresh prompt. */
static void any_sources_same_text(void **state)
{
    (void) state;
    static const int32_t budgets[] = { 3, 24, 63, BUDGET_AUTO };
    int64_t accepted[SOURCES] = { 0 }, cancelled = 0;
    for (int32_t kind = 0; kind < RIG_KINDS; kind++)
        for (int32_t device = 0; device < 2; device++)
            for (int32_t model = 0; model < (rig_has_mtp(kind) ? 4 : 3); model++) {
                Rig r;
                RigOptions o = rig_kind(kind, device);
                if (model == 1 || model == 2) o = rig_with_draft(o, model == 2);
                if (model == 3) o = rig_with_mtp(o);
                rig_open(&r, &o);
                for (int32_t mode = 0; mode < MODES; mode++) {
                    if (!part_runs()) continue;
                    enum { HEAD = 12, N = HEAD + TEXT };
                    int32_t base[PROMPT + TEXT + AHEAD], text[2][2 * N + TEXT], got[2 * TEXT];
                    Sampling p = sampling_mode(mode);
                    make_truth(&r, mode, (uint64_t) (kind * 10 + mode), base);
                    /* the model's own text twice: its next tokens are likely to be there */
                    for (int32_t i = 0; i < 2; i++) {
                        memcpy(text[i], base + i, sizeof *base * N);
                        memcpy(text[i] + N, base + i, sizeof *base * HEAD);
                        plain_text(&r, &p, text[i], N + HEAD, text[i] + N + HEAD, TEXT, 2 * N + TEXT);
                    }
                    Loop l;
                    loop_open(&l, &r, NULL, &(LoopOptions) { .budget = budgets[(mode + model + kind) % 4],
                                                             .chunk = 5 + 20 * (mode % 2), .sessions = 2, .ngram = true,
                                                             .ctx = 2 * N + TEXT });
                    Breaker b = { .dice = { tiny_key((uint64_t) (kind * 100 + mode), "break"), 0 }, .one_in = 25 };
                    Hooks hooks = { .cancel = breaks, .ud = &b };
                    l.sp.step.hooks = &hooks;
                    Session *s[2] = { loop_session(&l), loop_session(&l) };
                    for (int32_t turn = 0; turn < 2; turn++) {
                        int32_t have[2] = { 0 };
                        for (int32_t i = 0; i < 2; i++) {
                            assert_ok(session_prompt(s[i], text[i], N + HEAD, &l.err), &l.err);
                            s[i]->line.sampling = p;
                            s[i]->line.max_tokens = TEXT;
                        }
                        while (have[0] < TEXT || have[1] < TEXT) {
                            Status st = spec_step(&l.sp, s, 2, &l.err);
                            cancelled += st == ST_CANCEL;
                            if (st == ST_CANCEL) continue;
                            assert_ok(st, &l.err);
                            for (int32_t i = 0; i < 2; i++) {
                                /* of a chunk's taps: asked again */
                                if (s[i]->line.status == ST_CANCEL) s[i]->line.status = ST_OK;
                                if (s[i]->line.n_out > 1 && roll(&b.dice, 3) == 0)
                                    assert_ok(session_take(s[i], s[i]->line.n_out - 1), &l.err);
                                memcpy(got + i * TEXT + have[i], s[i]->line.out,
                                       sizeof *got * (size_t) s[i]->line.n_out);
                                have[i] += s[i]->line.n_out;
                            }
                        }
                        for (int32_t i = 0; i < 2; i++) {
                            assert_same(got + i * TEXT, text[i] + N + HEAD, sizeof *got * TEXT, "kind %d, device %d, "
                                        "model %d, mode %d, turn %d, session %d", kind, device, model, mode, turn, i);
                            int64_t sum = 0;
                            for (int32_t by = 0; by < SOURCES; by++)
                                accepted[by] += s[i]->stats.accepted_by[by], sum += s[i]->stats.accepted_by[by];
                            assert_true(sum >= s[i]->stats.accepted &&
                                        s[i]->stats.drafted_by[SOURCE_NGRAM] >= s[i]->stats.accepted_by[SOURCE_NGRAM]);
                        }
                    }
                    l.sp.step.hooks = NULL;
                    for (int32_t i = 0; i < 2; i++) {
                        assert_fresh(&l, s[i], "kind %d, model %d, mode %d", kind, model, mode);
                        loop_free(s[i]);
                    }
                    loop_close(&l);
                }
                rig_close(&r);
            }
    assert_true(accepted[SOURCE_NGRAM] > 200 / PART && cancelled > 100 / PART);
}

/* Blocks longer than the trained one, and shorter: positions continue, the text stays the same, and impossible lengths
 * are refused. */
static void draft_block_of_any_size(void **state)
{
    (void) state;
    for (int32_t model = 0; model < 3; model++) {
        RigOptions o = rig_kind(3, false);
        o = model == 2 ? rig_with_mtp(o) : rig_with_draft(o, model == 1);
        PublicRig p;
        rt_error e;
        rt_step *st;
        rt_session *s;
        rt_block b;
        public_open(&p, &o, NULL);
        static const int32_t blocks[] = { 0, 2, 5, 16, 33 };
        int32_t prompt[30], first[TEXT];
        Dice d = { tiny_key(4, "block"), 0 };
        random_tokens(&d, 30, 96, prompt);
        for (int32_t i = -1; i < 5; i++) {
            rt_step_options so = RT_STEP_OPTIONS(.budget = i < 0 ? -1 : 40, .draft_block = i < 0 ? 0 : blocks[i]);
            if (rt_step_new(&st, p.g, &so, &e) != RT_OK ||
                rt_session_new(&s, p.g, &RT_SESSION_OPTIONS(.ctx = 120, .ngram = -1), &e) != RT_OK)
                fail_msg("%s", e.text);
            assert_int_equal(rt_prompt(s, prompt, 30), RT_OK);
            rt_sampling_set(s, &RT_SAMPLING(.temperature = 0.8f, .seed = 3, .max_tokens = TEXT));
            int32_t text[TEXT], n = 0;
            while (n < TEXT) {
                rt_status code = rt_next(st, s, &b);
                if (code != RT_OK && code != RT_END) fail_msg("%s%s", rt_step_error(st), rt_session_error(s));
                memcpy(text + n, b.token, sizeof *text * (size_t) b.n);
                n += b.n;
            }
            if (i < 0) memcpy(first, text, sizeof first);
            else assert_same(text, first, sizeof first, "model %d, block %d", model, blocks[i]);
            rt_stats stats;
            rt_stats_get(s, &stats, sizeof stats);
            if (i >= 0) assert_true(stats.drafts == stats.passes - 1 || stats.drafts == stats.passes);
            rt_session_free(s);
            rt_step_free(st);
        }
        assert_int_equal(rt_step_new(&st, p.g, &RT_STEP_OPTIONS(.draft_block = 34), &e), RT_EARG);
        assert_non_null(strstr(e.text, "draft_block"));
        assert_int_equal(rt_step_new(&st, p.g, &RT_STEP_OPTIONS(.draft_block = 1), &e), RT_EARG);
        public_close(&p);
    }
}

/* "mtp" is refused if the model has no MTP layer, naming it; "auto" silently does without. */
static void mtp_by_name(void **state)
{
    (void) state;
    RigOptions with = rig_with_mtp(rig_kind(3, false)), without = rig_kind(3, false);
    char arch[16];
    for (int32_t i = 0; i < 4; i++) {
        PublicRig p;
        rt_error e;
        public_files(&p, i < 2 ? &with : &without);
        rt_options ro = RT_OPTIONS(.model = p.model, .draft = i % 2 ? "mtp" : "auto", .threads = 1);
        rt_status code = rt_open(&p.g, &ro, &e);
        if (i == 3) {
            assert_int_equal(code, RT_EUNSUPPORTED);
            assert_non_null(strstr(e.text, "MTP"));
        } else {
            if (code != RT_OK) fail_msg("%s", e.text);
            assert_int_equal(rt_property(p.g, "draft.arch", arch, sizeof arch), i < 2 ? 3 : 0);
        }
        public_close(&p);
    }
}

int main(int argc, char **argv)
{
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(quotations_go_on), cmocka_unit_test(index_is_a_function_of_the_text),
        cmocka_unit_test(cut_to_the_beginning), cmocka_unit_test(sources_share_a_tree),
        cmocka_unit_test(mtp_of_qwen35), cmocka_unit_test(mtp_of_qwen35moe), cmocka_unit_test(any_sources_same_text),
        cmocka_unit_test(draft_block_of_any_size), cmocka_unit_test(mtp_by_name),
    };
    return cmocka_run_group_tests_name("sources", tests, NULL, NULL);
}
