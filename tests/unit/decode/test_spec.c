/* Speculation is invisible: whatever the drafter, budget, chunk or neighbour, the text is that of plain decoding and
 * the state left behind is that of a fresh prompt, bit by bit. All families, on the CPU and on the device-like
 * backend. */
#include "model_helper.h"
#include "part.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FOR_RIGS(kind, device) \
    for (int32_t device = 0; device < 2; device++) for (int32_t kind = 0; kind < RIG_KINDS; kind++)

static void run_and_compare(Rig *r, Drafter *d, const LoopOptions *lo, int32_t mode, const int32_t *truth,
                            SpecStats *stats)
{
    Loop l;
    loop_open(&l, r, d, lo);
    Session *s = loop_session(&l);
    assert_ok(session_prompt(s, truth, PROMPT, &l.err), &l.err);
    s->line.sampling = sampling_mode(mode);
    int32_t text[TEXT];
    assert_int_equal(loop_run(&l, s, TEXT, text), TEXT);
    assert_same(text, truth + PROMPT, sizeof text, "text, mode %d, budget %d", mode, lo->budget);
    if (stats) *stats = s->stats;
    assert_fresh(&l, s, "speculation");
    loop_free(s);
    loop_close(&l);
}

/* Noise, the truth, the truth one place off, all of these in turn, and DFlash. */
static void any_drafter_any_budget(void **state)
{
    (void) state;
    static const int32_t budgets[] = { 1, 6, 22, 63, BUDGET_AUTO };
    FOR_RIGS(kind, device) {
        Rig r;
        RigOptions o = rig_with_draft(rig_kind(kind, device), kind == 1 || kind == 4);
        if (kind == 0) o.tm.type = o.tm.type_head = T_Q8_0;
        if (kind == 3) o.kv = T_F16;
        rig_open(&r, &o);
        for (int32_t mode = 0; mode < MODES; mode++) {
            if (!part_runs()) continue;
            int32_t truth[PROMPT + TEXT + AHEAD];
            SpecStats stats;
            make_truth(&r, mode, (uint64_t) kind, truth);
            for (int32_t f = 0; f < 5; f++) {
                FakeDrafter fake;
                fake_drafter(&fake, (FakeKind) f, (uint64_t) (mode * 10 + f), truth, PROMPT + TEXT + AHEAD);
                LoopOptions lo = { .budget = budgets[(f + mode + kind) % 5], .chain = mode == 3 && f == 3,
                                   .ngram = (f + kind + device) % 2 };
                run_and_compare(&r, f < 4 ? &fake.drafter : NULL, &lo, mode, truth, &stats);
                if (f == FAKE_TRUTH && lo.budget >= 22) assert_true(stats.accepted > TEXT / 3);
            }
        }
        rig_close(&r);
    }
}

/* Across a tile of positions, with a drafter's ring that wraps many times. */
static void across_a_tile(void **state)
{
    (void) state;
    FOR_RIGS(kind, device) {
        Rig r;
        RigOptions o = rig_with_draft(rig_kind(kind, device), kind == 3);
        rig_open(&r, &o);
        enum { LONG = 240 };
        int32_t text[LONG + TEXT + AHEAD];
        Dice d = { tiny_key(16, "long"), 0 };
        Sampling p = sampling_mode(2);
        random_tokens(&d, LONG, r.m->vocab, text);
        plain_text(&r, &p, text, LONG, text + LONG, TEXT + AHEAD, 400);
        for (int32_t f = 0; f < 2; f++) {
            FakeDrafter fake;
            fake_drafter(&fake, FAKE_TRUTH, 1, text, LONG + TEXT + AHEAD);
            Loop l;
            loop_open(&l, &r, f ? &fake.drafter : NULL,
                      &(LoopOptions) { .budget = 24, .chunk = 33, .ctx = 400, .draft_ctx = 24 });
            Session *s = loop_session(&l);
            int32_t got[TEXT];
            assert_ok(session_prompt(s, text, LONG, &l.err), &l.err);
            s->line.sampling = p;
            assert_int_equal(loop_run(&l, s, TEXT, got), TEXT);
            assert_same(got, text + LONG, sizeof got, "text, kind %d, drafter %d", kind, f);
            assert_fresh(&l, s, "position %d", s->line.target.P);
            loop_free(s);
            loop_close(&l);
        }
        rig_close(&r);
    }
}

/* All 64 pairs of types of keys and values, a tree across the border of a tile: text and state. */
static void any_keys_and_values(void **state)
{
    (void) state;
    static const Type kinds[] = { T_F16, T_BF16, T_Q8_0, T_Q5_1, T_Q5_0, T_Q4_1, T_Q4_0, T_TQ3_0 };
    enum { N = 8, LONG = 240 };
    for (int32_t pair = 0; pair < N * N; pair++) {
        if (!part_runs()) continue;
        Rig r;
        RigOptions o = rig_with_draft(rig_options(pair % 3 ? TINY_QWEN3 : TINY_QWEN35, 1, pair % 5 == 4), false);
        o.tm.n_layer = pair % 3 ? 3 : 4;
        o.tm.head_dim = 128;
        o.td = tiny_draft(&o.tm);
        o.kv = kinds[pair / N];
        o.kv_v = kinds[pair % N];
        rig_open(&r, &o);
        int32_t text[LONG + TEXT + AHEAD];
        Dice d = { tiny_key((uint64_t) pair, "pair"), 0 };
        Sampling p = sampling_mode(pair % MODES);
        random_tokens(&d, LONG, r.m->vocab, text);
        plain_text(&r, &p, text, LONG, text + LONG, TEXT + AHEAD, 400);
        FakeDrafter fake;
        fake_drafter(&fake, FAKE_MIXED, (uint64_t) pair, text, LONG + TEXT + AHEAD);
        Loop l;
        loop_open(&l, &r, pair & 1 ? &fake.drafter : NULL, &(LoopOptions) { .budget = 24, .chunk = 33, .ctx = 400 });
        Session *s = loop_session(&l);
        int32_t got[TEXT];
        assert_ok(session_prompt(s, text, LONG, &l.err), &l.err);
        s->line.sampling = p;
        assert_int_equal(loop_run(&l, s, TEXT, got), TEXT);
        assert_same(got, text + LONG, sizeof got, "text, %s/%s", type_info(o.kv)->name, type_info(o.kv_v)->name);
        assert_fresh(&l, s, "%s/%s", type_info(o.kv)->name, type_info(o.kv_v)->name);
        loop_free(s);
        loop_close(&l);
        rig_close(&r);
    }
}

/* Every type of weight, in the layers, the embedding and the head. */
static void any_weights(void **state)
{
    (void) state;
    static const Type types[] = { T_F32, T_F16, T_BF16, T_Q8_0, T_Q4_0, T_Q4_1, T_Q5_0, T_Q5_1, T_IQ4_NL, T_MXFP4,
                                  T_Q2_K, T_Q3_K, T_Q4_K, T_Q5_K, T_Q6_K, T_IQ4_XS, T_IQ2_XXS, T_IQ2_XS, T_IQ2_S,
                                  T_IQ3_XXS, T_IQ3_S, T_NVFP4 };
    for (int32_t i = 0; i < (int32_t) (sizeof types / sizeof *types); i++) {
        if (!part_runs()) continue;
        Rig r;
        RigOptions o = rig_options(i % 2 ? TINY_QWEN3 : TINY_QWEN35, 1, false);
        assert_true(tiny_model_named(&o.tm, i % 2 ? "qwen3" : "qwen35-r1"));
        o.tm.type = o.tm.type_embd = o.tm.type_head = types[i];
        o = rig_with_draft(o, false);
        rig_open(&r, &o);
        const char *some[] = { "token_embd.weight", "blk.0.ffn_down.weight", "blk.3.attn_q.weight" };
        for (int32_t k = 0; k < 3; k++) assert_int_equal(gguf_tensor(r.file, some[k])->type, types[i]);
        int32_t truth[PROMPT + TEXT + AHEAD];
        FakeDrafter fake;
        make_truth(&r, i % MODES, (uint64_t) i, truth);
        fake_drafter(&fake, FAKE_MIXED, (uint64_t) i, truth, PROMPT + TEXT + AHEAD);
        run_and_compare(&r, &fake.drafter, &(LoopOptions) { .budget = 22 }, i % MODES, truth, NULL);
        run_and_compare(&r, NULL, &(LoopOptions) { .budget = 8, .ngram = true }, i % MODES, truth, NULL);
        rig_close(&r);
    }
}

/* Chunks of 1, 3, 7 and everything: text, state, and with the drafter exactly the same passes. */
static void chunking(void **state)
{
    (void) state;
    static const int32_t chunks[] = { 64, 1, 3, 7 };
    FOR_RIGS(kind, device) {
        Rig r;
        RigOptions o = rig_with_draft(rig_kind(kind, device), kind == 1);
        rig_open(&r, &o);
        int32_t truth[PROMPT + TEXT + AHEAD];
        SpecStats stats[4];
        make_truth(&r, 2, (uint64_t) kind, truth);
        for (int32_t i = 0; i < 4; i++) {
            run_and_compare(&r, NULL, &(LoopOptions) { .budget = 15, .chunk = chunks[i] }, 2, truth, &stats[i]);
            assert_int_equal(stats[i].passes, stats[0].passes);
            assert_int_equal(stats[i].accepted, stats[0].accepted);
        }
        rig_close(&r);
    }
}

/* ---- drafters ---- */

typedef struct { float *y; int32_t vocab; } Taken;
static void take_row(void *ud, int32_t i, const float *logits, const float *taps)
{
    (void) taps;
    Taken *w = ud;
    memcpy(w->y + i * w->vocab, logits, sizeof *logits * (size_t) w->vocab);
}

static float *draft_logits(Rig *r, const LoopOptions *lo, const int32_t *prefix, int32_t n, int32_t anchor)
{
    Loop l;
    loop_open(&l, r, NULL, lo);
    Session *s = loop_session(&l);
    Taken w = { malloc(sizeof(float) * 64 * (size_t) r->m->vocab), r->m->vocab };
    assert_non_null(w.y);
    assert_ok(inspect_draft_rows(&l.sp, s, prefix, n, anchor, take_row, &w, &l.err), &l.err);
    loop_free(s);
    loop_close(&l);
    return w.y;
}

/* The same drafter from a Hugging Face folder and from both GGUF layouts gives the same bits, on both backends, with
 * any chunks. */
static void layouts_are_one_drafter(void **state)
{
    (void) state;
    for (int32_t kind = 0; kind < DRAFT_KINDS; kind++) {
        float *first = NULL;
        for (int32_t layout = TINY_HF; layout <= TINY_LLAMA_CPP; layout++)
            for (int32_t device = 0; device < 2; device++) {
                Rig r;
                RigOptions o = rig_with_draft_kind(rig_kind(kind == DRAFT_LAGUNA ? 7 : 3, device), (DraftKind) kind);
                o.layout = (TinyLayout) layout;
                o.td.library = kind == DRAFT_LIBRARY && layout == TINY_HF;
                o.td.sliding = kind == DRAFT_LAGUNA ? 7 : 2;
                o.td.window = 12;
                if (kind == DRAFT_DFLASH2) o.td.causal = TINY_CAUSAL_NO;
                rig_open(&r, &o);
                int32_t text[70];
                Dice d = { tiny_key(5, "layouts"), 0 };
                random_tokens(&d, 70, r.m->vocab, text);
                float *y = draft_logits(&r, &(LoopOptions) { .chunk = layout == TINY_LUCE ? 7 : 64 }, text, 69,
                                        text[69]);
                size_t bytes = sizeof *y * (size_t) r.dm->block * (size_t) r.m->vocab;
                if (first) assert_same(y, first, bytes, "drafter %d, layout %d, device %d", kind, layout, device);
                else first = y, y = NULL;
                free(y);
                rig_close(&r);
            }
        free(first);
    }
}

static void propose_now(Loop *l, Session *s, Lattice *out)
{
    memset(out, 0, sizeof *out);
    assert_ok(spec_flush_taps(&l->sp, s, &l->err), &l->err);
    assert_ok(l->sp.drafter->propose(l->sp.drafter, &l->sp, &s, 1, out, &l->err), &l->err);
}

/* The lattice after speculative decoding is that of a fresh prompt: ring wrapped or not, and in the second turn. */
static void drafts_do_not_depend_on_history(void **state)
{
    (void) state;
    static Lattice a, b;
    FOR_RIGS(kind, device) {
        for (int32_t way = 0; way < (rig_has_mtp(kind) ? 4 : 2); way++) {
            if (!part_runs()) continue;
            int32_t ring = way % 2;
            Rig r;
            static const DraftKind drafts[RIG_KINDS] = { [1] = DRAFT_LIBRARY, [2] = DRAFT_DFLASH2, [5] = DRAFT_DSPARK,
                                                         [7] = DRAFT_LAGUNA };
            RigOptions o = way < 2 ? rig_with_draft_kind(rig_kind(kind, device), drafts[kind])
                                   : rig_with_mtp(rig_kind(kind, device));
            if (kind % 2) o.td.sliding = 5, o.td.window = 10;
            rig_open(&r, &o);
            LoopOptions lo = { .budget = 20, .draft_ctx = ring ? 24 : 0 };
            int32_t truth[PROMPT + TEXT + AHEAD], text[TEXT];
            make_truth(&r, 1, 77, truth);
            Loop l, m;
            loop_open(&l, &r, NULL, &lo);
            loop_open(&m, &r, NULL, &lo);
            Session *s = loop_session(&l), *t = loop_session(&m);
            assert_ok(session_prompt(s, truth, PROMPT, &l.err), &l.err);
            for (int32_t turn = 0; turn < 3; turn++) {
                s->line.sampling = t->line.sampling = sampling_mode(1);
                loop_run(&l, s, TEXT - 11, text);
                propose_now(&l, s, &a);
                session_forget(t);
                assert_ok(session_prompt(t, s->line.text, s->line.n_text, &l.err), &l.err);
                while (t->line.target.P < t->line.n_text - 1) assert_ok(spec_step(&m.sp, &t, 1, &m.err), &m.err);
                calib_reset(&s->calib);
                propose_now(&l, s, &a);
                propose_now(&m, t, &b);
                assert_same(&a, &b, sizeof a, "lattice, kind %d, device %d, way %d, turn %d", kind, device, way, turn);
                /* Plain steps, so that taps wait; then back to a place among them, and the second time beyond them (a
                 * wrapped ring has a hole there). */
                l.sp.budget = BUDGET_AUTO;
                budget_reset(&s->budget);
                s->budget.gap = 100;
                loop_run(&l, s, 4, text);
                l.sp.budget = lo.budget;
                if (turn == 0) assert_int_equal(s->n_wait, 3 + r.dm->hold);
                int32_t next[200], n = s->line.n_text - (ring || turn ? 3 : 13);
                memcpy(next, s->line.text, sizeof *next * (size_t) n);
                Dice d = { tiny_key(6, "turn"), 0 };
                random_tokens(&d, 9, r.m->vocab, next + n);
                assert_ok(session_prompt(s, next, n + 9, &l.err), &l.err);
            }
            loop_free(s);
            loop_free(t);
            loop_close(&l);
            loop_close(&m);
            rig_close(&r);
        }
    }
}

/* Three proposals leave the committed state of target and drafter unchanged and give the same answer each time; within
 * the block, an earlier row sees a later one. */
static void block_keeps_nothing(void **state)
{
    (void) state;
    static Lattice a, b;
    for (int32_t device = 0; device < 2; device++) {
        Rig r;
        RigOptions o = rig_with_draft(rig_kind(3, device), false);
        rig_open(&r, &o);
        Loop l;
        loop_open(&l, &r, NULL, &(LoopOptions) { .budget = 20, .draft_ctx = 24 });
        Session *s = loop_session(&l);
        int32_t truth[PROMPT + TEXT + AHEAD], text[TEXT];
        make_truth(&r, 0, 8, truth);
        assert_ok(session_prompt(s, truth, PROMPT, &l.err), &l.err);
        loop_run(&l, s, 30, text);
        propose_now(&l, s, &a);
        size_t n = state_image_bytes(&s->draft, s->draft.P);
        uint8_t *x = malloc(n), *y = malloc(n);
        assert_ok(state_image(&s->draft, &l.sp.last->on, s->draft.P, x, &l.err), &l.err);
        for (int32_t i = 0; i < 3; i++) propose_now(&l, s, &b);
        assert_ok(state_image(&s->draft, &l.sp.last->on, s->draft.P, y, &l.err), &l.err);
        assert_same(x, y, n, "ring");
        assert_same(&a, &b, sizeof a, "lattice");
        assert_fresh(&l, s, "target after blocks");
        free(x);
        free(y);
        /* A block made by hand, whose last row changes. */
        float *row[2];
        for (int32_t i = 0; i < 2; i++) {
            int32_t token[8] = { 1, 2, 3, 4, 5, 6, 7, i };
            PassOut out;
            row[i] = malloc(sizeof(float) * (size_t) r.m->vocab);
            pass_start(&l.sp.step);
            Slice *sl = pass_slice(&l.sp.step, &s->draft, SLICE_BLOCK, 8, token, NULL);
            pass_want(&l.sp.step, sl, 0, WANT_LOGITS, -1);
            assert_ok(model_pass(r.dm, &l.sp.step, &out, 0, &l.err), &l.err);
            assert_ok(step_wait(l.sp.last, &l.err), &l.err);
            r.be->copy_out(r.be, row[i], out.logits->data, sizeof(float) * (size_t) r.m->vocab);
            assert_ok(r.be->sync(r.be, &l.err), &l.err);
        }
        assert_memory_not_equal(row[0], row[1], sizeof(float) * (size_t) r.m->vocab);
        free(row[0]);
        free(row[1]);
        loop_free(s);
        loop_close(&l);
        rig_close(&r);
    }
}

/* top_k on the target's own logits at the place of the drawn token: its first candidate is that token. Tests of texts
 * cannot notice noise that is one position off, as it only costs acceptance. */
static void drafter_draws_the_same_token(void **state)
{
    (void) state;
    for (int32_t device = 0; device < 2; device++) {
        Rig r;
        RigOptions o = rig_kind(1, device);
        rig_open(&r, &o);
        Bench b;
        bench_open(&b, &r);
        State *s = bench_state(&b, 0);
        Dice d = { tiny_key(9, "same"), 0 };
        int32_t text[64], same = 0;
        random_tokens(&d, 64, b.vocab, text);
        float *logits = malloc(sizeof *logits * (size_t) b.vocab);
        Backend *be = b.step.be;
        size_t n = sizeof(float) * (size_t) b.vocab;
        float *dev = be->alloc(be, n, "logits");
        int32_t *id = be->alloc(be, 4 * LAT_K, "ids");
        float *score = be->alloc(be, 4 * LAT_K, "scores");
        void *scratch = aligned_alloc(64, (draw_scratch(b.vocab) + 63) / 64 * 64);
        Sampling p = draw_default();
        p.temperature = 1, p.seed = 5;
        for (int32_t i = 0; i < 30; i++) {
            assert_ok(bench_chain(&b, s, 1, text + i, logits, true), &b.err);
            Draw draw = { 0 };
            draw_set(&draw, &p, text, i + 1);
            int32_t want = draw_next(&draw, NULL, 0, logits, b.vocab, i + 1, NULL, scratch), got[LAT_K];
            /* The drafter's row r stands at the position of the token that it predicts: base = i + 1. */
            pass_start(&b.step);
            Slice *sl = pass_slice(&b.step, s, SLICE_BLOCK, 1, text, NULL);
            sl->draw = draw;
            pass_want(&b.step, sl, 0, WANT_LOGITS, -1);
            pass_tables(&b.step, false);
            be->copy_in(be, dev, logits, n);
            Tensor ti = { .type = T_I32, .rows = 1, .cols = LAT_K, .data = id },
                   ts = { .type = T_F32, .rows = 1, .cols = LAT_K, .data = score },
                   tl = { .type = T_F32, .rows = 1, .cols = b.vocab, .data = dev };
            be->top_k(be, &ti, &ts, &tl, &b.step.rows, LAT_K);
            be->copy_out(be, got, id, sizeof got);
            assert_ok(be->sync(be, &b.err), &b.err);
            same += got[0] == want;
        }
        assert_int_equal(same, 30);
        be->release(be, dev, n);
        be->release(be, id, 4 * LAT_K);
        be->release(be, score, 4 * LAT_K);
        free(scratch);
        free(logits);
        bench_free(s);
        bench_close(&b);
        rig_close(&r);
    }
}

/* ---- optional operations ---- */

/* The device's own drawing against the host's, and the fused operations against their parts. */
static void pick_is_sampler_and_fused_is_composed(void **state)
{
    (void) state;
    for (int32_t kind = 0; kind < RIG_KINDS; kind++)
        for (int32_t device = 0; device < 2; device++) {
            Rig r;
            RigOptions o = rig_with_draft(rig_kind(kind, device), false);
            rig_open(&r, &o);
            assert_true((r.be->pick != NULL) == device && (r.be->attend_block != NULL) == device);
            for (int32_t mode = 0; mode < MODES; mode++) {
                if (!part_runs()) continue;
                int32_t truth[PROMPT + TEXT + AHEAD], text[TEXT];
                make_truth(&r, mode, 21, truth);
                for (int32_t way = 0; way < 3; way++) {
                    FakeDrafter fake;
                    fake_drafter(&fake, FAKE_MIXED, 3, truth, PROMPT + TEXT + AHEAD);
                    Loop l;
                    loop_open(&l, &r, &fake.drafter, &(LoopOptions) { .budget = 30 });
                    l.sp.host_draws = way == 1;
                    l.sp.step.no_fused = way == 2;
                    int64_t blocks = device ? device_log(r.be)->blocks : 0;
                    Session *s = loop_session(&l);
                    assert_ok(session_prompt(s, truth, PROMPT, &l.err), &l.err);
                    s->line.sampling = sampling_mode(mode);
                    assert_int_equal(loop_run(&l, s, TEXT, text), TEXT);
                    assert_same(text, truth + PROMPT, sizeof text, "kind %d, device %d, mode %d, way %d", kind, device,
                                mode, way);
                    if (device) assert_true((device_log(r.be)->blocks > blocks) == (way != 2));
                    loop_free(s);
                    loop_close(&l);
                }
            }
            rig_close(&r);
        }
}

/* A backend that records passes sees few shapes, all before the first token: trees of all sizes are launched at the
 * next larger width; the text is the same. */
static void few_shapes(void **state)
{
    (void) state;
    for (int32_t kind = 0; kind < RIG_KINDS; kind += 2) {
        Rig r;
        RigOptions o = rig_with_draft(rig_kind(kind, true), false);
        rig_open(&r, &o);
        int32_t truth[PROMPT + TEXT + AHEAD], text[TEXT], have = 0;
        make_truth(&r, 1, 5, truth);
        FakeDrafter fake;
        fake_drafter(&fake, FAKE_MIXED, 9, truth, PROMPT + TEXT + AHEAD);
        Loop l;
        loop_open(&l, &r, &fake.drafter, &(LoopOptions) { .budget = 1 });
        Session *s = loop_session(&l);
        Dice d = { tiny_key(4, "shapes"), 0 };
        assert_ok(session_prompt(s, truth, PROMPT, &l.err), &l.err);
        s->line.sampling = sampling_mode(1);
        const int64_t recorded = device_log(r.be)->recorded;
        loop_run(&l, s, 1, text);
        const DeviceLog before = *device_log(r.be);
        assert_int_equal(before.recorded - recorded, r.be->n_widths);
        uint64_t sizes = 0;
        for (have = 1; have < TEXT;) {
            l.sp.budget = 1 + roll(&d, ROWS_DECODE - 1);
            have += loop_run(&l, s, 1, text + have);
            sizes |= (uint64_t) 1 << (l.sp.tree[0].n - 1);
        }
        assert_same(text, truth + PROMPT, sizeof text, "text of all widths, kind %d", kind);
        assert_true(__builtin_popcountll(sizes) > 20);
        assert_int_equal(device_log(r.be)->recorded, before.recorded);
        assert_int_equal(device_log(r.be)->unprepared, before.unprepared);
        loop_free(s);
        loop_close(&l);
        rig_close(&r);
    }
}

/* A mask that is a function of text + path, and biases: the text equals plain decoding with the same ones. */
static bool unlike_the_last(void *ud, const int32_t *path, size_t n, uint32_t *bits)
{
    const Session *s = ud;
    int32_t last = n ? path[n - 1] : s->line.text[s->line.n_text - 1];
    memset(bits, 0, 3 * sizeof *bits);
    for (int32_t id = 0; id < 96; id++)
        if (id % 5 != last % 5) bits[id / 32] |= (uint32_t) 1 << id % 32;
    return last % 7 != 0;                          /* returns false if everything is allowed */
}

/* The host waits only for the lattice, including any taps inserted before it, and for the accepted rows, whatever is to
 * be drawn. The first step after a prompt is not counted: it may leave a checkpoint. */
static void two_round_trips(void **state)
{
    (void) state;
    static const int32_t budgets[] = { BUDGET_AUTO, 12, BUDGET_PLAIN };
    for (int32_t kind = 0; kind < RIG_KINDS; kind++)
        for (int32_t i = 0; i < 3; i++) {
            Rig r;
            RigOptions o = rig_with_draft(rig_kind(kind, true), kind % 2);
            rig_open(&r, &o);
            Loop l;
            loop_open(&l, &r, NULL, &(LoopOptions) { .budget = budgets[i], .ngram = i == 0 });
            Session *s = loop_session(&l);
            int32_t prompt[PROMPT], drafts = 0;
            Dice d = { tiny_key(31, "trips"), 0 };
            random_tokens(&d, PROMPT, r.m->vocab, prompt);
            assert_ok(session_prompt(s, prompt, PROMPT, &l.err), &l.err);
            s->line.sampling = sampling_mode(1);
            while (s->line.n_made < 2) assert_ok(spec_step(&l.sp, &s, 1, &l.err), &l.err);
            for (int32_t step = 0; step < 40; step++) {
                if (step == 20 && kind != 1) s->line.allow = unlike_the_last, s->line.allow_ud = s;
                int64_t before = device_log(r.be)->trips, asked = s->stats.drafts;
                assert_ok(spec_step(&l.sp, &s, 1, &l.err), &l.err);
                asked = s->stats.drafts - asked;
                drafts += (int32_t) asked;
                assert_int_equal(device_log(r.be)->trips - before, 1 + asked);
            }
            assert_true(i == 0 || (drafts > 0) == (i == 1));
            loop_free(s);
            loop_close(&l);
            rig_close(&r);
        }
}

static void masks_and_biases(void **state)
{
    (void) state;
    FOR_RIGS(kind, device) {
        Rig r;
        RigOptions o = rig_with_draft(rig_kind(kind, device), false);
        rig_open(&r, &o);
        for (int32_t mode = 0; mode < MODES; mode++) {
            if (!part_runs()) continue;
            int32_t text[3][PROMPT + TEXT + AHEAD];
            Dice d = { tiny_key(17, "mask"), (uint64_t) mode * 100 };
            for (int32_t way = 0; way < 3; way++) {
                FakeDrafter fake;
                Loop l;
                fake_drafter(&fake, FAKE_MIXED, 4, text[0], PROMPT + TEXT + AHEAD);
                loop_open(&l, &r, way == 0 ? &no_drafter : way == 1 ? &fake.drafter : NULL,
                          &(LoopOptions) { .budget = way ? 40 : BUDGET_PLAIN });
                Session *s = loop_session(&l);
                if (way == 0) random_tokens(&d, PROMPT, 96, text[0]);
                else memcpy(text[way], text[0], sizeof(int32_t) * PROMPT);
                assert_ok(session_prompt(s, text[0], PROMPT, &l.err), &l.err);
                s->line.sampling = sampling_mode(mode);
                s->line.n_bias = 3;
                s->line.bias[0] = (DrawBias) { 3, 4 }, s->line.bias[1] = (DrawBias) { 50, -3 },
                    s->line.bias[2] = (DrawBias) { 77, 2.5f };
                if (kind != 1) s->line.allow = unlike_the_last, s->line.allow_ud = s;
                int32_t n = way ? TEXT : TEXT + AHEAD;
                assert_int_equal(loop_run(&l, s, n, text[way] + PROMPT), n);
                assert_same(text[way], text[0], sizeof(int32_t) * (PROMPT + TEXT),
                            "kind %d, device %d, mode %d, way %d", kind, device, mode, way);
                loop_free(s);
                loop_close(&l);
            }
        }
        rig_close(&r);
    }
}

/* ---- neighbours and ends ---- */

/* Sessions of different settings in one step, with chunks beside them and drafters: each as if alone. */
static void sessions_together(void **state)
{
    (void) state;
    enum { N = 5 };
    FOR_RIGS(kind, device) {
        Rig r;
        RigOptions o = rig_with_draft(rig_kind(kind, device), kind == 4);
        rig_open(&r, &o);
        Loop l;
        loop_open(&l, &r, NULL, &(LoopOptions) { .budget = 30, .chunk = 6, .sessions = N });
        Session *s[N];
        int32_t truth[N][PROMPT + TEXT + AHEAD], have[N] = { 0 };
        for (int32_t i = 0; i < N; i++) {
            make_truth(&r, i % MODES, 40 + (uint64_t) i, truth[i]);
            s[i] = loop_session(&l);
            assert_ok(session_prompt(s[i], truth[i], PROMPT, &l.err), &l.err);
            s[i]->line.sampling = sampling_mode(i % MODES);
            s[i]->line.max_tokens = TEXT;
        }
        for (int32_t step = 0; step < 200; step++) {
            int32_t going = 0, n = step < 3 ? 1 + step : N;          /* they arrive one after the other */
            assert_ok(spec_step(&l.sp, s, n, &l.err), &l.err);
            for (int32_t i = 0; i < N; i++) {
                if (i < n) have[i] += s[i]->line.n_out;
                going += s[i]->line.status == ST_OK;
            }
            if (!going) break;
        }
        for (int32_t i = 0; i < N; i++) {
            assert_int_equal(s[i]->line.status, ST_END);
            assert_int_equal(have[i], TEXT);
            assert_same(s[i]->line.text, truth[i], sizeof(int32_t) * (PROMPT + TEXT), "kind %d, device %d, session %d",
                        kind, device, i);
            assert_fresh(&l, s[i], "a neighbour");
            loop_free(s[i]);
        }
        loop_close(&l);
        rig_close(&r);
    }
}

/* The last token lies at the context's end; no tree reaches beyond it. */
static void context_end(void **state)
{
    (void) state;
    FOR_RIGS(kind, device) {
        Rig r;
        RigOptions o = rig_with_draft(rig_kind(kind, device), false);
        rig_open(&r, &o);
        int32_t truth[PROMPT + TEXT + AHEAD], text[TEXT + AHEAD];
        make_truth(&r, 0, 13, truth);
        for (int32_t ctx = PROMPT; ctx < PROMPT + 14; ctx += 3) {
            FakeDrafter fake;
            fake_drafter(&fake, FAKE_TRUTH, 1, truth, PROMPT + TEXT + AHEAD);
            Loop l;
            loop_open(&l, &r, ctx % 2 ? &fake.drafter : NULL, &(LoopOptions) { .budget = 40, .ctx = ctx });
            Session *s = loop_session(&l);
            assert_ok(session_prompt(s, truth, PROMPT, &l.err), &l.err);
            int32_t n = loop_run(&l, s, TEXT + AHEAD, text);
            assert_int_equal(n, ctx - PROMPT);
            assert_int_equal(s->line.status, ST_END);
            assert_int_equal(s->line.n_text, ctx);
            assert_same(text, truth + PROMPT, sizeof *text * (size_t) n, "text up to %d", ctx);
            assert_int_equal(session_prompt(s, truth, ctx + 1, &l.err), ST_FULL);
            loop_free(s);
            loop_close(&l);
        }
        rig_close(&r);
    }
}

/* The last tokens of the longest context, behind keys and values that are all 0: drafts reach beyond it, where there is
 * no rotation, and change nothing. */
static void longest_context_end(void **state)
{
    (void) state;
    enum { LAST = 6 };
    Rig r;
    RigOptions o = rig_with_draft(rig_kind(2, false), false);
    o.kv = T_F16;
    rig_open(&r, &o);
    int32_t text[2][LAST];
    for (int32_t drafts = 0; drafts < 2; drafts++) {
        Loop l;
        loop_open(&l, &r, drafts ? NULL : &no_drafter,
                  &(LoopOptions) { .ctx = RT_CTX_MAX, .budget = drafts ? 6 : BUDGET_PLAIN });
        Session *s = loop_session(&l);
        memset(s->line.text, 0, sizeof *s->line.text * RT_CTX_MAX);
        s->line.n_text = s->line.n_prompt = RT_CTX_MAX - LAST;
        s->line.target.P = s->draft.P = RT_CTX_MAX - LAST - 1;
        s->line.status = ST_OK;
        assert_int_equal(loop_run(&l, s, LAST, text[drafts]), LAST);
        assert_int_equal(s->line.n_text, RT_CTX_MAX);
        assert_int_equal(s->stats.drafted > 0, drafts);
        loop_free(s);
        loop_close(&l);
    }
    assert_same(text[1], text[0], sizeof text[0], "text");
    rig_close(&r);
}

static bool allow_none(void *ud, const int32_t *path, size_t n, uint32_t *bits)
{
    (void) path, (void) n;
    memset(bits, 0, 4 * 3);
    (*(int32_t *) ud)++;
    return true;
}

static bool count_layers(void *ud, int32_t il)
{
    (void) il;
    (*(int32_t *) ud)++;
    return false;
}

/* No pass is run for the sake of its time, however fast the model is: every pass of the target makes a token. */
static void every_pass_makes_a_token(void **state)
{
    (void) state;
    Rig r;
    RigOptions o = rig_with_draft(rig_kind(1, false), false);
    rig_open(&r, &o);
    Loop l;
    loop_open(&l, &r, NULL, &(LoopOptions) { .chunk = 32 });
    Session *s = loop_session(&l);
    int32_t truth[PROMPT + TEXT + AHEAD], layers = 0, steps = 0;
    make_truth(&r, 0, 21, truth);
    assert_ok(session_prompt(s, truth, PROMPT, &l.err), &l.err);
    while (s->line.n_made == 0) assert_ok(spec_step(&l.sp, &s, 1, &l.err), &l.err);
    Hooks hooks = { .cancel = count_layers, .ud = &layers };
    step_hooks(&l.sp.step, &hooks);
    for (; steps < 6; steps++) assert_ok(spec_step(&l.sp, &s, 1, &l.err), &l.err);
    step_hooks(&l.sp.step, NULL);
    assert_in_range(layers, steps * r.m->n_layers, 2 * steps * r.m->n_layers);       /* with those of proposals */
    loop_free(s);
    loop_close(&l);
    rig_close(&r);
}

/* Logits that are not numbers, and a mask that allows nothing, end their session with a message; its neighbour is not
 * affected. */
static void nan_hits_one(void **state)
{
    (void) state;
    FOR_RIGS(kind, device) {
        for (int32_t how = 0; how < 2; how++) {
            Rig r;
            RigOptions o = rig_kind(kind, device);
            rig_open(&r, &o);
            Loop l;
            loop_open(&l, &r, NULL, &(LoopOptions) { .sessions = 2 });
            Session *s[2] = { loop_session(&l), loop_session(&l) };
            int32_t truth[PROMPT + TEXT + AHEAD], asked = 0;
            make_truth(&r, 0, 14, truth);
            for (int32_t i = 0; i < 2; i++) {
                assert_ok(session_prompt(s[i], truth, PROMPT, &l.err), &l.err);
                s[i]->line.max_tokens = TEXT;
            }
            while (s[0]->line.n_made < 5) assert_ok(spec_step(&l.sp, s, 2, &l.err), &l.err);
            if (how == 0) {
                const LayerSpec *p = &r.m->spec[r.m->n_layers - 1];
                size_t row = r.be->kv_bytes(r.be, p, true, 1);
                r.be->fill(r.be, s[0]->line.target.host[r.m->n_layers - 1].v, 0xff, row);
                assert_ok(r.be->sync(r.be, &l.err), &l.err);
            } else {
                s[0]->line.allow = allow_none;
                s[0]->line.allow_ud = &asked;
            }
            while (s[1]->line.status == ST_OK) assert_ok(spec_step(&l.sp, s, 2, &l.err), &l.err);
            assert_int_equal(s[0]->line.status, how == 0 ? ST_BACKEND : ST_NOTOKEN);
            assert_non_null(strstr(s[0]->line.error.text, "position 25"));
            assert_int_equal(s[0]->line.n_made, 5);
            assert_int_equal(s[1]->line.status, ST_END);
            assert_same(s[1]->line.text, truth, sizeof(int32_t) * (PROMPT + TEXT), "the neighbour");
            if (how == 1) assert_int_equal(asked, 1);
            loop_free(s[0]);
            loop_free(s[1]);
            loop_close(&l);
            rig_close(&r);
        }
    }
}

typedef struct { const Session *s; int32_t stop, vocab; } Stop;

/* Any token before position `stop`, and none from there on. */
static bool allow_until(void *ud, const int32_t *path, size_t n, uint32_t *bits)
{
    const Stop *x = ud;
    (void) path;
    if (x->s->line.n_text + (int32_t) n < x->stop) return false;
    memset(bits, 0, ((size_t) x->vocab + 31) / 32 * sizeof *bits);
    return true;
}

/* Where the target has no choice, the text ends at the same place with guesses and without. */
static void no_choice_ends_alike(void **state)
{
    (void) state;
    enum { STOPS = 9 };
    FOR_RIGS(kind, device) {
        Rig r;
        RigOptions o = rig_kind(kind, device);
        rig_open(&r, &o);
        int32_t truth[PROMPT + TEXT + AHEAD], widest = 0;
        make_truth(&r, 0, 14, truth);
        for (int32_t stop = 0; stop < STOPS; stop++) {
            FakeDrafter fake;
            Loop l;
            fake_drafter(&fake, FAKE_TRUTH, (uint64_t) stop, truth, PROMPT + TEXT + AHEAD);
            loop_open(&l, &r, &fake.drafter, &(LoopOptions) { .budget = 22 });
            Session *s = loop_session(&l);
            Stop x = { s, PROMPT + stop, r.m->vocab };
            assert_ok(session_prompt(s, truth, PROMPT, &l.err), &l.err);
            s->line.max_tokens = TEXT;
            s->line.allow = allow_until;
            s->line.allow_ud = &x;
            while (s->line.status == ST_OK) {
                assert_ok(spec_step(&l.sp, &s, 1, &l.err), &l.err);
                if (s->line.n_out > widest) widest = s->line.n_out;
            }
            assert_int_equal(s->line.status, ST_NOTOKEN);
            assert_int_equal(s->line.n_made, stop);
            assert_int_equal(s->line.n_text, PROMPT + stop);
            assert_same(s->line.text, truth, sizeof(int32_t) * (size_t) s->line.n_text, "stop %d", stop);
            loop_free(s);
            loop_close(&l);
        }
        assert_true(widest > 2);
        rig_close(&r);
    }
}

/* Threads, instruction sets, weights packed or left in the file: the same bits. Levels that this machine lacks are
 * refused by name. */
static void threads_and_levels(void **state)
{
    (void) state;
    static const struct { int32_t threads; const char *level; bool in_place; } ways[] = {
        { 1, NULL, false }, { 2, NULL, false }, { 3, NULL, false }, { 1, "portable", false }, { 1, "avx2", false },
        { 1, "avxvnni", false },
        { 2, "avx512", false }, { 2, "amx", false }, { 1, "neon", false }, { 2, "i8mm", false }, { 1, NULL, true },
        { 2, "portable", true }
    };
    for (int32_t kind = 0; kind < RIG_KINDS; kind += 2) {
        uint8_t *first = NULL;
        int32_t truth[PROMPT + TEXT + AHEAD];
        for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
            if (i && !part_runs()) continue;
            Backend *be;
            Error err;
            if (backend_open(&be, cpu_named(ways[i].level), &(BackendOptions) { .threads = 1 }, &err) != ST_OK) {
                assert_non_null(strstr(err.text, ways[i].level));
                continue;
            }
            be->close(be);
            Rig r;
            RigOptions o = rig_with_draft(rig_kind(kind, false), kind == 4);
            o.threads = ways[i].threads;
            o.level = ways[i].level;
            o.in_place = ways[i].in_place;
            o.kv = T_F16;
            o.tm.type = o.tm.type_head = kind == 2 ? T_Q8_0 : T_F32;
            rig_open(&r, &o);
            if (!first) make_truth(&r, 1, 15, truth);
            Loop l;
            loop_open(&l, &r, NULL, &(LoopOptions) { .budget = 18, .chunk = 7 });
            Session *s = loop_session(&l);
            int32_t text[TEXT];
            assert_ok(session_prompt(s, truth, PROMPT, &l.err), &l.err);
            s->line.sampling = sampling_mode(1);
            assert_int_equal(loop_run(&l, s, TEXT, text), TEXT);
            assert_same(text, truth + PROMPT, sizeof text, "text, way %zu", i);
            size_t n;
            uint8_t *image = loop_image(&l, s, &n);
            if (first) assert_same(image, first, n, "state, way %zu", i);
            else first = image, image = NULL;
            free(image);
            loop_free(s);
            loop_close(&l);
            rig_close(&r);
        }
        free(first);
    }
}

int main(int argc, char **argv)
{
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_drafter_any_budget), cmocka_unit_test(across_a_tile),
        cmocka_unit_test(any_keys_and_values), cmocka_unit_test(any_weights), cmocka_unit_test(chunking),
        cmocka_unit_test(layouts_are_one_drafter),
        cmocka_unit_test(drafts_do_not_depend_on_history), cmocka_unit_test(block_keeps_nothing),
        cmocka_unit_test(drafter_draws_the_same_token), cmocka_unit_test(pick_is_sampler_and_fused_is_composed),
        cmocka_unit_test(masks_and_biases), cmocka_unit_test(two_round_trips), cmocka_unit_test(few_shapes),
        cmocka_unit_test(sessions_together), cmocka_unit_test(context_end),
        cmocka_unit_test(longest_context_end), cmocka_unit_test(nan_hits_one),
        cmocka_unit_test(no_choice_ends_alike),
        cmocka_unit_test(every_pass_makes_a_token),
        cmocka_unit_test(threads_and_levels),
    };
    return cmocka_run_group_tests_name("spec", tests, NULL, NULL);
}
