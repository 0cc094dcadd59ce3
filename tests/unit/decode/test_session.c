/* A session can be interrupted, shortened, taken back, saved and run on a failing device, and its text and state are
 * still those of a fresh prompt. All on the CPU and on the device-like backend, bit by bit. */
#include "model_helper.h"
#include "part.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* qwen3, and qwen35 with 3 value heads per key head: a model that can be cut anywhere and one that cannot. */
#define FOR_DEVICE_RIGS(kind, device) \
    for (int32_t device = 0; device < 2; device++) for (int32_t kind = 1; kind < RIG_KINDS; kind += 3)

/* ---- cancelling ---- */

/* Returns true at the n-th question from now. */
typedef struct { int64_t in, asked; } Stop;
static bool stop_now(void *ud, int32_t il)
{
    (void) il;
    Stop *s = ud;
    s->asked++;
    return s->in && --s->in == 0;
}

/* Each question of a run is answered with "cancel" once, then the step is repeated: prompt chunks, drafting and passes,
 * on the device also those that are replayed (fake 2). With DFlash, whose weights are random here, and with a drafter
 * that knows the text, so that paths are long and winding. */
static void cancel_everywhere(void **state)
{
    (void) state;
    FOR_DEVICE_RIGS(kind, device) for (int32_t fake = 0; fake < 2 + device; fake++) {
        Rig r;
        RigOptions o = rig_with_draft(rig_kind(kind, device), kind == 1);
        rig_open(&r, &o);
        if (device) device_log(r.be)->forgets = fake < 2;
        enum { N = 16 };
        int32_t truth[PROMPT + TEXT + AHEAD], text[N];
        make_truth(&r, 1, 31, truth);
        Loop l;
        FakeDrafter knows;
        loop_open(&l, &r, fake ? &knows.drafter : NULL, &(LoopOptions) { .budget = 12, .chunk = 9 });
        int64_t all = 1;
        for (int64_t at = 0; at <= all; at++) {
            if (at && !part_runs()) continue;
            fake_drafter(&knows, FAKE_TRUTH, 2, truth, PROMPT + TEXT + AHEAD);
            Stop stop = { .in = at };
            Hooks hooks = { .cancel = stop_now, .ud = &stop };
            l.sp.step.hooks = &hooks;
            Session *s = loop_session(&l);
            assert_ok(session_prompt(s, truth, PROMPT, &l.err), &l.err);
            s->line.sampling = sampling_mode(1);
            int32_t have = 0, cancelled = 0;
            while (have < N) {
                int32_t n_text = s->line.n_text, P = s->line.target.P;
                Status st = spec_step(&l.sp, &s, 1, &l.err);
                if (st == ST_CANCEL) {
                    cancelled++;
                    assert_int_equal(s->line.n_text, n_text);
                    assert_int_equal(s->line.target.P, P);
                    assert_int_equal(s->line.n_out, 0);
                    continue;
                }
                assert_ok(st, &l.err);
                have += s->line.n_out;
                memcpy(text, s->line.text + PROMPT, sizeof *text * (size_t) (have < N ? have : N));
            }
            assert_int_equal(cancelled, at > 0 && at <= stop.asked);
            assert_same(text, truth + PROMPT, sizeof text, "text, cancelled at %d", (int) at);
            if (at % 3 != 2) assert_fresh(&l, s, "cancelling at %d", (int32_t) at);
            if (at == 0) all = stop.asked;
            loop_free(s);
        }
        assert_true(all > (fake == 2 ? 6 : fake ? 10 : 20));
        loop_close(&l);
        rig_close(&r);
    }
}

typedef struct { int32_t text[200], token[64], parent[64], rows[64], n_rows, more[9]; } Case;

/* A state with a kept path that no pass has applied yet. */
static State *state_with_path(Bench *b, Case *c, uint64_t seed)
{
    Dice d = { tiny_key(seed, "case"), 0 };
    State *s = bench_state(b, 3);
    random_tokens(&d, 30, b->vocab, c->text);
    random_tokens(&d, 9, b->vocab, c->more);
    assert_ok(bench_chain(b, s, 30, c->text, NULL, true), &b->err);
    c->n_rows = 0;
    while (c->n_rows < 4 || c->rows[c->n_rows - 1] < c->n_rows + 4) {      /* a winding path */
        random_tree(&d, 20, b->vocab, c->token, c->parent);
        c->n_rows = h_path(c->rows, c->parent, 19);
    }
    assert_ok(bench_tree(b, s, 20, c->token, c->parent, NULL), &b->err);
    state_keep(s, c->rows, c->n_rows);
    return s;
}

/* Goes on after the interruption in one of these ways. Returns the image of the state at the end. */
static uint8_t *follow(Bench *b, State *s, const Case *c, int32_t how, size_t *n)
{
    static const int32_t path[3] = { 0, 1, 2 };
    if (how == 1) assert_ok(bench_chain(b, s, 9, c->more, NULL, true), &b->err);
    if (how == 2) {                                /* a checkpoint, on from it, and back to it */
        assert_ok(step_checkpoint(&b->step, s, &b->err), &b->err);
        int32_t P = s->P;
        assert_ok(bench_chain(b, s, 5, c->more, NULL, true), &b->err);
        assert_int_equal(state_back(s, P), P);
        assert_ok(bench_tree(b, s, 4, c->more, NULL, NULL), &b->err);
        state_keep(s, path, 3);
        if (s->recurrent) assert_int_equal(state_back(s, P), P);
        assert_ok(bench_chain(b, s, 4, c->more + 5, NULL, true), &b->err);
    }
    if (how == 3) {
        assert_ok(bench_tree(b, s, 9, c->more, NULL, NULL), &b->err);
        state_keep(s, path, 3);
        assert_ok(bench_tree(b, s, 3, c->more + 3, NULL, NULL), &b->err);
        state_keep(s, path, 2);
    }
    if (how == 4) {                                /* a checkpoint, and on without going back to it */
        assert_ok(step_checkpoint(&b->step, s, &b->err), &b->err);
        assert_ok(bench_tree(b, s, 9, c->more, NULL, NULL), &b->err);
        state_keep(s, path, 3);
        assert_ok(bench_chain(b, s, 4, c->more + 3, NULL, true), &b->err);
    }
    return bench_image(b, s, n);
}

/* The tokens that `follow` leaves, as a prompt. */
static void assert_followed(Bench *b, const Case *c, int32_t how, const uint8_t *want, size_t n_want)
{
    static const struct {
        int32_t at, n;
    } tail[5][2] = { { { 0, 0 } }, { { 0, 9 } }, { { 5, 4 } }, { { 0, 3 }, { 3, 2 } }, { { 0, 3 }, { 3, 4 } } };
    State *s = bench_state(b, 0);
    int32_t text[200], n = 30;
    bool trimmed = how == 2 && !s->recurrent;      /* there it was not taken back the second time */
    memcpy(text, c->text, sizeof *text * 30);
    for (int32_t t = 0; t < c->n_rows; t++) text[n++] = c->token[c->rows[t]];
    for (int32_t t = 0; trimmed && t < 3; t++) text[n++] = c->more[t];
    for (int32_t i = 0; i < 2; i++)
        for (int32_t t = 0; t < tail[how][i].n; t++) text[n++] = c->more[tail[how][i].at + t];
    assert_ok(bench_chain(b, s, n, text, NULL, true), &b->err);
    size_t n_got;
    uint8_t *got = bench_image(b, s, &n_got);
    assert_int_equal(n_got, n_want);
    assert_same(got, want, n_want, "undisturbed, then %d", how);
    free(got);
    bench_free(s);
}

/* A tree (or a chunk) is cancelled after each of its layers on a path that is not yet applied; then something other
 * than its repetition follows: fold, chunk, checkpoint and back, trees, checkpoint and on. Shortening the block is
 * refused. */
static void interrupted(bool chunk)
{
    FOR_DEVICE_RIGS(kind, device) {
        Rig r;
        Bench b;
        RigOptions o = rig_kind(kind, device);
        rig_open(&r, &o);
        if (device) device_log(r.be)->forgets = true;
        bench_open(&b, &r);
        for (int32_t how = 0; how < 5; how++) {
            Case c;
            size_t n_a, n_b;
            State *s = state_with_path(&b, &c, 50);
            uint8_t *want = follow(&b, s, &c, how, &n_a);
            bench_free(s);
            if (!chunk) assert_followed(&b, &c, how, want, n_a);
            for (int32_t layer = 1; layer <= r.m->n_layers; layer++) {
                Stop stop = { .in = layer };
                Hooks hooks = { .cancel = stop_now, .ud = &stop };
                int32_t other[40];
                Dice d = { tiny_key(51, "other"), 0 };
                random_tokens(&d, 40, b.vocab, other);
                s = state_with_path(&b, &c, 50);
                b.step.hooks = &hooks;
                Status st = chunk ? bench_chain(&b, s, 40, other, NULL, true)
                                  : bench_tree(&b, s, 40, other, NULL, NULL);
                b.step.hooks = NULL;
                assert_int_equal(st, ST_CANCEL);
                assert_int_equal(state_take(s, 1), ST_ARG);
                uint8_t *got = follow(&b, s, &c, how, &n_b);
                assert_int_equal(n_a, n_b);
                assert_same(got, want, n_a, "kind %d, device %d, then %d, cancelled after %d", kind, device,
                            how, layer);
                free(got);
                bench_free(s);
            }
            free(want);
        }
        bench_close(&b);
        rig_close(&r);
    }
}

static void cancel_then_something_else(void **state) { (void) state, interrupted(false); }
static void cancelled_chunk_then_something_else(void **state) { (void) state, interrupted(true); }

/* The next pass began and was cancelled: the block can no longer be shortened in place, so going back into it goes
 * farther back. */
static void cancel_then_back_into_the_block(void **state)
{
    (void) state;
    FOR_DEVICE_RIGS(kind, device) {
        Rig r;
        int32_t truth[PROMPT + TEXT + AHEAD];
        RigOptions o = rig_kind(kind, device);
        rig_open(&r, &o);
        if (device) device_log(r.be)->forgets = true;
        make_truth(&r, 0, 33, truth);
        for (int32_t layer = 1; layer <= r.m->n_layers; layer++) {
            Loop l;
            FakeDrafter knows;
            fake_drafter(&knows, FAKE_TRUTH, 3, truth, PROMPT + TEXT + AHEAD);
            loop_open(&l, &r, &knows.drafter, &(LoopOptions) { .budget = 30 });
            Session *s = loop_session(&l);
            assert_ok(session_prompt(s, truth, PROMPT, &l.err), &l.err);
            while (s->line.n_out < 2) {
                assert_ok(spec_step(&l.sp, &s, 1, &l.err), &l.err);
                assert_int_equal(s->line.status, ST_OK);
            }
            int32_t n = s->line.n_text - 1;
            Stop stop = { .in = layer };
            Hooks hooks = { .cancel = stop_now, .ud = &stop };
            l.sp.step.hooks = &hooks;
            assert_int_equal(spec_step(&l.sp, &s, 1, &l.err), ST_CANCEL);
            l.sp.step.hooks = NULL;
            assert_int_equal(session_take(s, 1), ST_ARG);
            assert_ok(session_prompt(s, truth, n, &l.err), &l.err);
            if (rig_has_mtp(kind)) assert_int_equal(s->stats.resumed, PROMPT - 1);
            while (s->line.n_text < PROMPT + TEXT) assert_ok(spec_step(&l.sp, &s, 1, &l.err), &l.err);
            assert_same(s->line.text, truth, sizeof *truth * (PROMPT + TEXT), "kind %d, device %d, layer %d", kind,
                        device, layer);
            assert_fresh(&l, s, "going back into a block %d", layer);
            loop_free(s);
            loop_close(&l);
        }
        rig_close(&r);
    }
}

/* ---- shortening and going back ---- */

/* Blocks shortened to any length, at any place; comparing the state at once, or the text after going on. */
static void take_everywhere(void **state)
{
    (void) state;
    FOR_DEVICE_RIGS(kind, device) {
        for (int32_t round = 0; round < 9; round++) {
            if (!part_runs()) continue;
            Rig r;
            int32_t mode = round % MODES, truth[PROMPT + TEXT + AHEAD], places = 0;
            RigOptions o = rig_with_draft(rig_kind(kind, device), false);
            rig_open(&r, &o);
            make_truth(&r, mode, 60, truth);
            FakeDrafter fake;
            Dice d = { tiny_key(61, "take"), (uint64_t) round * 1000 };
            fake_drafter(&fake, FAKE_TRUTH, (uint64_t) round, truth, PROMPT + TEXT + AHEAD);
            Loop l;
            loop_open(&l, &r, round % 3 == 2 ? NULL : &fake.drafter, &(LoopOptions) { .budget = 20 });
            Session *s = loop_session(&l);
            assert_ok(session_prompt(s, truth, PROMPT, &l.err), &l.err);
            s->line.sampling = sampling_mode(mode);
            while (s->line.n_text < PROMPT + TEXT) {
                assert_ok(spec_step(&l.sp, &s, 1, &l.err), &l.err);
                if (s->line.n_out == 0) continue;
                int32_t keep = roll(&d, 3) ? roll(&d, s->line.n_out + 1) : s->line.n_out,
                        before = s->line.n_text - s->line.n_out;
                assert_int_equal(session_take(s, s->line.n_out + 1), ST_ARG);
                assert_ok(session_take(s, keep), &l.err);
                if (keep && roll(&d, 3) == 0) assert_ok(session_take(s, --keep), &l.err);
                assert_int_equal(s->line.n_text, before + keep);
                assert_int_equal(s->line.target.P, s->line.n_text - 1);
                places++;
                if (places < 8 && roll(&d, 4) == 0) {
                    assert_fresh(&l, s, "take %d", places);
                    if (s->line.n_out) assert_int_equal(session_take(s, 0), ST_ARG);     /* folding was a pass */
                }
            }
            assert_same(s->line.text, truth, sizeof *truth * (PROMPT + TEXT), "text, kind %d, round %d", kind, round);
            assert_int_equal(s->stats.generated, s->line.n_text - PROMPT);
            assert_true(s->stats.accepted <= s->stats.generated);
            assert_fresh(&l, s, "takes in round %d", round);
            loop_free(s);
            loop_close(&l);
            rig_close(&r);
        }
    }
}

/* Second turns that share any number of tokens with the session's text, and the same prompt again: text and state of a
 * new session. */
static void resume_is_fresh(void **state)
{
    (void) state;
    FOR_DEVICE_RIGS(kind, device) {
        Rig r;
        RigOptions o = rig_with_draft(rig_kind(kind, device), false);
        rig_open(&r, &o);
        int32_t truth[PROMPT + TEXT + AHEAD], text[TEXT], next[PROMPT + TEXT + 20], want[AHEAD];
        make_truth(&r, 0, 70, truth);
        for (int32_t share = 0; share <= PROMPT + TEXT; share += share % 5 == 4 ? 4 : 2) {
            if (!part_runs()) continue;
            Loop l;
            loop_open(&l, &r, NULL, &(LoopOptions) { .budget = 20, .chunk = 7 });
            Session *s = loop_session(&l);
            assert_ok(session_prompt(s, truth, PROMPT, &l.err), &l.err);
            loop_run(&l, s, TEXT, text);
            if (share % 2) spec_flush_taps(&l.sp, s, &l.err);       /* confirms: the block can no longer be shortened */
            Dice d = { tiny_key(71, "turn"), (uint64_t) share * 50 };
            int32_t n = share + 1 + roll(&d, 12);
            memcpy(next, truth, sizeof *next * (size_t) share);
            random_tokens(&d, n - share, r.m->vocab, next + share);
            plain_text(&r, NULL, next, n, want, AHEAD, 200);
            for (int32_t again = 0; again < 3; again++) {
                assert_ok(session_prompt(s, next, n, &l.err), &l.err);
                assert_true(s->stats.resumed <= n - 1);
                if (!rig_has_mtp(kind) && again == 0) assert_true(s->stats.resumed >= share - 1);
                /* the checkpoint at the prompt's end */
                if (rig_has_mtp(kind) && again > 0) assert_int_equal(s->stats.resumed, n - 1);
                int32_t got = 12 + again * 4;
                assert_int_equal(loop_run(&l, s, got, text), got);
                assert_same(text, want, sizeof *text * (size_t) got, "text, kind %d, shared %d, time %d", kind,
                            share, again);
                if (again != 1) assert_fresh(&l, s, "a second turn that shares %d", share);
            }
            loop_free(s);
            loop_close(&l);
        }
        rig_close(&r);
    }
}

/* An image is loaded into another session, whose drafter's ring is one hole: it continues as the first does. */
static void save_and_load(void **state)
{
    (void) state;
    FOR_DEVICE_RIGS(kind, device) {
        Rig r;
        RigOptions o = rig_with_draft(rig_kind(kind, device), false);
        rig_open(&r, &o);
        int32_t truth[PROMPT + TEXT + AHEAD], text[TEXT];
        make_truth(&r, 2, 80, truth);
        Loop l;
        loop_open(&l, &r, NULL, &(LoopOptions) { .budget = 20, .draft_ctx = 32 });
        Session *s = loop_session(&l), *t = loop_session(&l), *lone = loop_session(&l);
        assert_ok(session_prompt(s, truth, PROMPT, &l.err), &l.err);
        s->line.sampling = t->line.sampling = lone->line.sampling = sampling_mode(2);
        loop_run(&l, s, 15, text);
        assert_ok(spec_flush_taps(&l.sp, s, &l.err), &l.err);
        size_t n, n_draft = state_image_bytes(&s->draft, s->draft.P);
        uint8_t *image = loop_image(&l, s, &n), *draft = malloc(n_draft);
        assert_ok(state_image(&s->draft, &l.sp.last->on, s->draft.P, draft, &l.err), &l.err);
        for (int32_t i = 0; i < 2; i++) {          /* with the drafter's state, and without */
            Session *u = i ? lone : t;
            assert_ok(state_restore(&u->line.target, &l.sp.step.on, image, s->line.target.P, &l.err), &l.err);
            if (u == t) assert_ok(state_restore(&u->draft, &l.sp.last->on, draft, s->draft.P, &l.err), &l.err);
            memcpy(u->line.text, truth, sizeof *truth * (PROMPT + 15));
            u->line.n_text = u->line.n_prompt = PROMPT + 15;
            assert_int_equal(loop_run(&l, u, TEXT - 15, text), TEXT - 15);
            assert_same(text, truth + PROMPT + 15, sizeof *text * (TEXT - 15), "text, kind %d, drafter's too %d",
                        kind, !i);
            assert_fresh(&l, u, "loading %d", i);
        }
        assert_int_equal(loop_run(&l, s, TEXT - 15, text), TEXT - 15);
        assert_same(text, truth + PROMPT + 15, sizeof *text * (TEXT - 15), "text of the first");
        assert_int_equal(state_restore(&t->line.target, &l.sp.step.on, image, 201, &l.err), ST_FULL);
        free(image);
        free(draft);
        loop_free(s);
        loop_free(t);
        loop_free(lone);
        loop_close(&l);
        rig_close(&r);
    }
}

/* Steps with and without drafting alternate on one session: the drafter finds holes, the text is the same. */
static void steps_take_turns(void **state)
{
    (void) state;
    FOR_DEVICE_RIGS(kind, device) {
        Rig r;
        RigOptions o = rig_with_draft(rig_kind(kind, device), false);
        rig_open(&r, &o);
        int32_t truth[PROMPT + TEXT + AHEAD];
        make_truth(&r, 1, 85, truth);
        Loop l, plain;
        loop_open(&l, &r, NULL, &(LoopOptions) { .budget = 20, .chunk = 6 });
        loop_open(&plain, &r, &no_drafter, &(LoopOptions) { .budget = BUDGET_PLAIN, .chunk = 5 });
        for (int32_t every = 2; every < 5; every++) {
            Session *s = loop_session(&l);
            assert_ok(session_prompt(s, truth, PROMPT, &l.err), &l.err);
            s->line.sampling = sampling_mode(1);
            for (int32_t step = 0; s->line.n_text < PROMPT + TEXT; step++)
                assert_ok(spec_step(step % every ? &l.sp : &plain.sp, &s, 1, &l.err), &l.err);
            assert_same(s->line.text, truth, sizeof *truth * (PROMPT + TEXT), "text, kind %d, every %d", kind, every);
            assert_fresh(&l, s, "steps in turn %d", every);
            loop_free(s);
        }
        loop_close(&plain);
        loop_close(&l);
        rig_close(&r);
    }
}

/* ---- the device ---- */

/* Passes that fail at a random call and are run again; then the same with recorded passes. */
static void failing_device(void **state)
{
    (void) state;
    for (int32_t kind = 1; kind < RIG_KINDS; kind += 3)
        for (int32_t round = 0; round < 16; round++) {
            if (!part_runs()) continue;
            Rig r;
            int32_t mode = round % MODES, truth[PROMPT + TEXT + AHEAD], failed = 0;
            RigOptions o = rig_with_draft(rig_kind(kind, true), round % 4 == 0);
            rig_open(&r, &o);
            DeviceLog *log = device_log(r.be);
            make_truth(&r, mode, 90, truth);
            Loop l;
            FakeDrafter knows;
            fake_drafter(&knows, FAKE_TRUTH, (uint64_t) round, truth, PROMPT + TEXT + AHEAD);
            loop_open(&l, &r, round % 2 ? &knows.drafter : NULL, &(LoopOptions) { .budget = 5 + round, .chunk = 5 });
            Session *s = loop_session(&l);
            assert_ok(session_prompt(s, truth, PROMPT, &l.err), &l.err);
            s->line.sampling = sampling_mode(mode);
            Dice d = { tiny_key(91, "fault"), (uint64_t) round * 1000 };
            bool returned = false;
            while (s->line.n_text < PROMPT + TEXT) {
                /* back to the first token: matrices become zero, under failures too */
                if (!returned && s->line.n_text > PROMPT + TEXT / 2) {
                    int32_t other[2] = { truth[0] ? 0 : 1, 2 };
                    assert_ok(session_prompt(s, other, 2, &l.err), &l.err);
                    assert_ok(session_prompt(s, truth, PROMPT, &l.err), &l.err);
                    returned = true;
                }
                log->fail_in = roll(&d, 2) ? 1 + roll(&d, 150) : 0;
                int32_t n_text = s->line.n_text;
                Status st = spec_step(&l.sp, &s, 1, &l.err);
                log->fail_in = 0;
                if (st != ST_OK) {
                    assert_int_equal(st, ST_BACKEND);
                    assert_int_equal(s->line.n_text, n_text);
                    failed++;
                } else if (s->line.status == ST_BACKEND) {      /* after the pass: the chunk's session ends */
                    int32_t text[200], n = s->line.n_text;
                    memcpy(text, s->line.text, sizeof *text * (size_t) n);
                    assert_ok(session_prompt(s, text, n, &l.err), &l.err);
                    failed++;
                }
            }
            assert_true(failed > 0);
            assert_same(s->line.text, truth, sizeof *truth * (PROMPT + TEXT), "text, kind %d, round %d", kind, round);
            assert_fresh(&l, s, "failures in round %d", round);
            loop_free(s);
            loop_close(&l);
            rig_close(&r);
        }
}

/* Every pass of a decoding step was recorded before the first token: it is compared once, then replayed. Only the
 * chunks of prompts are not. */
static void passes_are_replayed(void **state)
{
    enum { CHUNK = 16 };
    (void) state;
    for (int32_t kind = 1; kind < RIG_KINDS; kind += 3) {
        Rig r;
        int32_t truth[PROMPT + TEXT + AHEAD], text[TEXT + AHEAD];
        RigOptions o = rig_with_draft(rig_kind(kind, true), true);
        rig_open(&r, &o);
        DeviceLog *log = device_log(r.be);
        make_truth(&r, 0, 92, truth);
        Loop l;
        loop_open(&l, &r, NULL, &(LoopOptions) { .budget = 12, .ctx = 90, .chunk = CHUNK });
        Session *s[2] = { loop_session(&l), loop_session(&l) };
        for (int32_t i = 0; i < 2; i++) {          /* another session: other addresses, the same recordings */
            DeviceLog before = *log;
            assert_ok(session_prompt(s[i], truth, PROMPT, &l.err), &l.err);
            assert_int_equal(loop_run(&l, s[i], TEXT + AHEAD, text), TEXT + AHEAD);
            assert_same(text, truth + PROMPT, sizeof text, "text of session %d", i);
            assert_true(log->replayed - before.replayed >= (i ? 2 : 1) * s[i]->stats.passes / 2);
            if (i) assert_int_equal(log->recorded, before.recorded);
            const int64_t chunks = (PROMPT - 1 + CHUNK - 1) / CHUNK;
            assert_true(log->unprepared - before.unprepared <= chunks);
            assert_fresh(&l, s[i], "replaying %d", i);
        }
        loop_free(s[0]);
        loop_free(s[1]);
        loop_close(&l);
        rig_close(&r);
    }
}

int main(int argc, char **argv)
{
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cancel_everywhere), cmocka_unit_test(cancel_then_something_else),
        cmocka_unit_test(cancelled_chunk_then_something_else), cmocka_unit_test(cancel_then_back_into_the_block),
        cmocka_unit_test(take_everywhere), cmocka_unit_test(resume_is_fresh),
        cmocka_unit_test(save_and_load), cmocka_unit_test(steps_take_turns), cmocka_unit_test(failing_device),
        cmocka_unit_test(passes_are_replayed),
    };
    return cmocka_run_group_tests_name("session", tests, NULL, NULL);
}
