/* Writing by denoising: its rules on stored entropies, its noise, and its texts, which are the same whatever threads,
 * chunks, levels, backends, caches and interruptions there are. What transformers writes with this noise is compared in
 * test_oracle. */
#include "backend/cpu/level.h"
#include "decode/diffuse.h"
#include "model_helper.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CTX = 800, ASKED = 45, WRITTEN = 96, CANVAS = 32 };

/* ---- the rules ---- */

static void acceptance(void **state)
{
    (void) state;
    static const float entropy[] = { 0.05f, 2, 0.02f, 0.01f, 0.04f, 0.02f, 0.5f, 0 };
    const struct { float bound; int32_t n; uint32_t rows; } want[] = {
        /* ascending: rows 7 3 2 5 4 0 6 1, sums before them 0 0 .01 .03 .05 .09 .14 .64 */
        { 0, 2, 0x88 }, { 0.005f, 2, 0x88 }, { 0.02f, 3, 0x8c }, { 0.04f, 4, 0xac }, { 0.06f, 5, 0xbc },
        { 0.1f, 6, 0xbd }, { 0.2f, 7, 0xfd }, { 0.7f, 8, 0xff } };
    CanvasRow row[8] = { { 0 } };
    for (int32_t i = 0; i < 8; i++) row[i].entropy = entropy[i];
    for (size_t k = 0; k < sizeof want / sizeof *want; k++) {
        bool accepted[8];
        uint32_t rows = 0;
        assert_int_equal(diffuse_accept(accepted, row, 8, want[k].bound), want[k].n);
        for (int32_t i = 0; i < 8; i++) rows |= (uint32_t) accepted[i] << i;
        assert_int_equal(rows, want[k].rows);
    }
    bool one;
    row[0].entropy = 9;
    assert_int_equal(diffuse_accept(&one, row, 1, 0), 1);          /* the first, whatever it is */
    assert_true(one);
}

/* A constant canvas whose entropies are low: with a stability of 1 it is done in its second step, with 2 in its
 * third. */
static void stopping(void **state)
{
    (void) state;
    CanvasRow row[4] = { { 0 } };
    for (int32_t i = 0; i < 4; i++) row[i].entropy = i == 0 ? 0.016f : 0.001f;                 /* mean 0.00475 */
    for (int32_t stability = 0; stability <= 2; stability++) {
        const Diffusion d = { .stability = stability, .confidence = 0.005f }, strict = { .stability = stability,
                                                                                       .confidence = 0.00475f };
        for (int32_t same = 0; same < 4; same++) {
            assert_int_equal(diffuse_done(&d, row, 4, same), same >= stability);
            assert_false(diffuse_done(&strict, row, 4, same));
        }
    }
}

static void trimming(void **state)
{
    (void) state;
    /* rows 2 and 3 are alike and sure, 5 is doubtful and alone, 7 is doubtful and like 8 */
    static const int32_t best[] = { 1, 2, 3, 3, 4, 5, 6, 7, 7, 8 };
    CanvasRow row[10] = { { 0 } };
    for (int32_t i = 0; i < 10; i++) {
        row[i].best = best[i];
        row[i].sum = i == 5 || i == 7 ? 2 : 1.05f;
    }
    const Diffusion off = { .trim_from = 1 }, on = { .trim = 0.9f, .trim_from = 1 }, late = { .trim = 0.9f,
                                                                                             .trim_from = 8 },
                    strict = { .trim = 0.99f, .trim_from = 1 };
    assert_int_equal(diffuse_trim(&off, row, 10), 10);
    assert_int_equal(diffuse_trim(&on, row, 10), 7);
    assert_int_equal(diffuse_trim(&late, row, 10), 10);
    assert_int_equal(diffuse_trim(&strict, row, 10), 2);
    assert_int_equal(diffuse_trim(&on, row, 8), 8);
}

/* Rows with a best token, the inverse of its probability, an entropy, and whether the mask is likelier. */
typedef struct { int32_t best; float sum, entropy; bool masked; } Seen;
static int32_t lock_seen(LockRow *row, const Seen *seen, int32_t n, int32_t stability)
{
    CanvasRow found[8] = { { 0 } };
    for (int32_t i = 0; i < n; i++)
        found[i] = (CanvasRow) { .best = seen[i].best, .sum = seen[i].sum, .entropy = seen[i].entropy, .top = 1,
                                 .mask = seen[i].masked ? 2 : -INFINITY };
    return lock_step(row, found, n, stability, 0.1f);
}

static void expect_locked(const LockRow *row, int32_t n, uint32_t want)
{
    uint32_t rows = 0;
    for (int32_t i = 0; i < n; i++) rows |= (uint32_t) row[i].locked << i;
    assert_int_equal(rows, want);
}

static void locking(void **state)
{
    (void) state;
    enum { N = 6 };
    LockRow row[N];
    /* rows 1 and 4 are sure, 2 is the surest but beside 1 less than it is, 3 is not sure, 5 would be masked */
    const Seen seen[N] = { { 7, 3, 2, false }, { 8, 1.1f, 0.05f, false }, { 9, 1.2f, 0.05f, false },
                           { 10, 2, 0.5f, false }, { 11, 1.3f, 0.05f, false }, { 12, 1.01f, 0.01f, true } };
    lock_begin(row, N);
    expect_locked(row, N, 0);
    assert_int_equal(lock_first_open(row, N), 0);
    assert_int_equal(lock_seen(row, seen, N, 1), 1);               /* nothing is stable yet: the surest */
    expect_locked(row, N, 1 << 1);
    assert_int_equal(lock_seen(row, seen, N, 1), 2);               /* not both in one step, but one after the other */
    expect_locked(row, N, 1 << 1 | 1 << 2 | 1 << 4);
    assert_int_equal(lock_seen(row, seen, N, 1), 1);               /* 3 before 0, though neither is sure */
    expect_locked(row, N, 1 << 1 | 1 << 2 | 1 << 3 | 1 << 4);
    assert_int_equal(lock_seen(row, seen, N, 1), 1);
    assert_int_equal(lock_first_open(row, N), 5);
    assert_int_equal(lock_seen(row, seen, N, 1), 0);               /* 5 is never */
    assert_int_equal(row[5].token, 12);

    /* side by side in one step, and of equals the lower */
    const Seen pair[4] = { { 5, 2, 0, false }, { 6, 1, 0, false }, { 7, 1, 0, false }, { 8, 2, 0, false } };
    lock_begin(row, 4);
    assert_int_equal(lock_seen(row, pair, 4, 0), 2);
    expect_locked(row, 4, 1 << 1 | 1 << 3);
    assert_int_equal(lock_seen(row, pair, 4, 0), 2);
    expect_locked(row, 4, 0xf);

    /* a token that changes is not stable, and what is locked stays */
    Seen turn[2] = { { 5, 1, 0, false }, { 6, 2, 0, false } };
    lock_begin(row, 2);
    assert_int_equal(lock_seen(row, turn, 2, 2), 1);
    turn[0].best = 9;
    for (int32_t k = 0; k < 4; k++) {
        turn[1] = (Seen) { 20 + k, 2, 0, k < 3 };
        assert_int_equal(lock_seen(row, turn, 2, 2), k == 3);
    }
    assert_true(row[0].token == 5 && row[1].token == 23);
}

/* A text that ends at an open position has a token there that says so, and nothing behind it. */
static void open_end(void **state)
{
    (void) state;
    LockRow row[4] = { { 5, 0, true }, { 6, 3, false }, { 7, 0, true }, { 8, 0, false } };
    int32_t token[4];
    assert_int_equal(lock_block(token, row, 4, true, 99), 2);
    assert_true(token[0] == 5 && token[1] == 99);
    assert_int_equal(lock_block(token, row, 4, true, -1), 4);
    assert_int_equal(lock_block(token, row, 4, false, 99), 4);
    assert_memory_equal(token, ((const int32_t[]) { 5, 6, 7, 8 }), sizeof token);
    row[1].locked = row[3].locked = true;
    assert_int_equal(lock_block(token, row, 4, true, 99), 4);
}

/* A token like a locked one beside it waits for stability + 1 steps more, unless there is nothing else. */
static void echoes(void **state)
{
    (void) state;
    enum { N = 8 };
    for (int32_t stability = 1; stability < 3; stability++)
        for (int32_t same = 0; same < 2; same++) {
            const int32_t due = same ? 2 * stability + 2 : stability + 1;
            LockRow row[N];
            lock_begin(row, N);
            row[0] = (LockRow) { 5, 0, true };
            row[2] = (LockRow) { 8, 0, true };
            for (int32_t step = 1; step <= due; step++) {
                Seen seen[N] = { { 0 }, { same ? 5 : 6, 3, 0, false } };
                for (int32_t i = 3; i < N; i++) seen[i] = (Seen) { 10 * step + i, 2, 0, false };   /* never stable */
                assert_int_equal(lock_seen(row, seen, N, stability), 1);
                if (row[1].locked != (step == due)) fail_msg("stability %d, step %d", (int) stability, (int) step);
            }
        }
    const Seen alone[4] = { { 0 }, { 5, 1.1f, 0, false }, { 0 }, { 0, 9, 3, true } };
    LockRow row[4];
    lock_begin(row, 4);
    row[0] = (LockRow) { 5, 0, true };
    row[2] = (LockRow) { 8, 0, true };
    assert_int_equal(lock_seen(row, alone, 4, 1), 1);
    expect_locked(row, 4, 7);
}

static void temperatures(void **state)
{
    (void) state;
    const Diffusion d = { .steps = 48, .t_min = 0.4f, .t_max = 0.8f };
    assert_true(diffuse_temperature(&d, 1) == 0.8f);
    assert_true(fabs((double) diffuse_temperature(&d, 25) - 0.6) < 1e-7);
    assert_true(fabs((double) diffuse_temperature(&d, 48) - (0.4 + 0.4 / 48)) < 1e-7);
}

/* Samples follow the softmax of z: 20,000 positions, chi-square of 5 degrees of freedom, beyond 25.7 once in 10,000
 * times; and every token is as likely where a position takes any. Steps, blocks and seeds have noise of their own. */
static void noise(void **state)
{
    (void) state;
    enum { N = 20000, V = 6 };
    static const float z[V] = { 0, -1, 0.5f, -3, -0.25f, -2 };
    int32_t count[V] = { 0 }, any[V] = { 0 }, differs = 0;
    double sum = 0, chi = 0, flat = 0;
    for (int32_t v = 0; v < V; v++) sum += exp((double) z[v]);
    for (int32_t pos = 0; pos < N; pos++) {
        CanvasDraw d = { .seed = 11, .block = 2, .step = 3, .t = 1 };
        int32_t of[4];
        for (int32_t k = 0; k < 4; k++) {
            CanvasRow row = { .score = -INFINITY, .top = 0.5f, .sample = -1 };
            d.seed = k == 1 ? 12 : 11, d.block = k == 2 ? 3 : 2, d.step = k == 3 ? 4 : 3;
            draw_canvas(&row, &d, pos, z, V, 0);
            of[k] = row.sample;
        }
        for (int32_t k = 1; k < 4; k++) differs += of[k] != of[0];
        count[of[0]]++;
        any[draw_canvas_any(&d, pos, V)]++;
    }
    for (int32_t v = 0; v < V; v++) {
        const double want = N * exp((double) z[v]) / sum, even = (double) N / V;
        chi += (count[v] - want) * (count[v] - want) / want;
        flat += (any[v] - even) * (any[v] - even) / even;
    }
    assert_true(chi < 25.7 && flat < 25.7);
    assert_true(differs > 3 * N / 2);              /* two draws are the same in 0.31 of all cases */
}

/* ---- texts ---- */

static void asked(int32_t *token, int32_t n)
{
    Dice d = { tiny_key(3, "asked"), 0 };
    random_tokens(&d, n, 96, token);
}

static rt_session *session(rt_engine *g, uint64_t seed)
{
    rt_session *s;
    rt_error e;
    if (rt_session_new(&s, g, &RT_SESSION_OPTIONS(.ctx = CTX), &e) != RT_OK) fail_msg("%s", e.text);
    assert_int_equal(rt_sampling_set(s, &RT_SAMPLING(.temperature = 1, .seed = seed)), RT_OK);
    return s;
}

/* Appends n written tokens to text. */
static void write_on(rt_step *st, rt_session *s, int32_t *text, int32_t n)
{
    for (int32_t at = 0; at < n;) {
        rt_block b;
        const rt_status code = rt_next(st, s, &b);
        if (code != RT_OK) fail_msg("%s%s", rt_step_error(st), rt_session_error(s));
        assert_int_equal(b.n, CANVAS);
        memcpy(text + at, b.token, sizeof *text * (size_t) b.n);
        at += b.n;
    }
}

static void write_text(rt_engine *g, const rt_step_options *o, uint64_t seed, int32_t text[WRITTEN])
{
    int32_t prompt[ASKED];
    rt_step *st;
    rt_error e;
    rt_session *s = session(g, seed);
    asked(prompt, ASKED);
    if (rt_step_new(&st, g, o, &e) != RT_OK) fail_msg("%s", e.text);
    assert_int_equal(rt_prompt(s, prompt, ASKED), RT_OK);
    write_on(st, s, text, WRITTEN);
    rt_stats stats;
    rt_stats_get(s, &stats, sizeof stats);
    assert_int_equal(stats.blocks, WRITTEN / CANVAS);
    assert_int_equal(stats.generated, WRITTEN);
    assert_true(stats.steps >= 2 * stats.blocks && stats.steps <= 12 * stats.blocks);
    rt_session_free(s);
    rt_step_free(st);
}

static void the_text(int32_t text[WRITTEN], uint64_t seed)
{
    PublicRig p;
    const RigOptions o = rig_options(TINY_DIFFUSION, 0, false);
    public_open(&p, &o, NULL);
    write_text(p.g, NULL, seed, text);
    public_close(&p);
}

static void write_on_backend(const char *backend, const char *kv, int32_t threads, int32_t chunk, bool in_place,
                             int32_t text[WRITTEN])
{
    PublicRig p;
    rt_error e;
    const RigOptions o = rig_options(TINY_DIFFUSION, 0, false);
    public_files(&p, &o);
    if (rt_open(&p.g, &RT_OPTIONS(.model = p.model, .backend = backend, .threads = threads, .no_repack = in_place,
                                  .kv_k = kv, .kv_v = kv), &e) != RT_OK)
        fail_msg("%s", e.text);
    write_text(p.g, &RT_STEP_OPTIONS(.chunk = chunk), 1, text);
    public_close(&p);
}

static void same_everywhere(void **state)
{
    (void) state;
    int32_t want[WRITTEN], text[WRITTEN];
    const struct { int32_t threads, chunk; bool in_place; } at[] = {
        { 2, 0, false }, { 1, 1, false }, { 3, 7, false }, { 1, 16, true } };
    the_text(want, 1);
    for (size_t i = 0; i < sizeof at / sizeof *at; i++) {
        write_on_backend("cpu", "f32", at[i].threads, at[i].chunk, at[i].in_place, text);
        assert_same(text, want, sizeof want, "case %d", (int) i);
    }
    for (int32_t level = 0; level < LEVEL_COUNT; level++) {
        if (!level_here((CpuLevel) level)) continue;
        write_on_backend(cpu_named(level_name((CpuLevel) level)), "f32", 1, 0, false, text);
        assert_same(text, want, sizeof want, "level %s", level_name((CpuLevel) level));
    }
    /* in panels of codes */
    static const char *const codes[] = { "q8_0", "q4_1" };
    for (int32_t i = 0; i < 2; i++) {
        write_on_backend("cpu", codes[i], 1, 0, false, want);
        write_on_backend("cpu:portable", codes[i], 2, 7, false, text);
        assert_same(text, want, sizeof want, "keys and values of type %s", codes[i]);
    }
    the_text(text, 2);
    assert_memory_not_equal(text, want, sizeof want);
}

/* Of powers of two, so the text is that of the model without them. */
static void factors_of_weights(void **state)
{
    (void) state;
    int32_t want[WRITTEN], text[WRITTEN];
    PublicRig p;
    RigOptions o = rig_options(TINY_DIFFUSION, 0, false);
    the_text(want, 1);
    o.tm.factors = true;
    public_open(&p, &o, NULL);
    write_text(p.g, NULL, 1, text);
    assert_same(text, want, sizeof want, "with factors");
    public_close(&p);
}

/* Asks for a way to write. */
static void set_lock(rt_session *s, int32_t mask)
{
    const rt_diffusion d = RT_DIFFUSION(.lock = true, .mask = mask, .steps = 12);
    if (rt_diffusion_set(s, &d) != RT_OK) fail_msg("%s", rt_session_error(s));
}

static void write_locked(const rt_options *o, const rt_step_options *so, uint64_t seed, int32_t mask,
                         int32_t text[WRITTEN])
{
    int32_t prompt[ASKED];
    rt_engine *g;
    rt_step *st;
    rt_error e;
    rt_stats stats;
    if (rt_open(&g, o, &e) != RT_OK) fail_msg("%s", e.text);
    rt_session *s = session(g, seed);
    set_lock(s, mask);
    asked(prompt, ASKED);
    if (rt_step_new(&st, g, so, &e) != RT_OK) fail_msg("%s", e.text);
    assert_int_equal(rt_prompt(s, prompt, ASKED), RT_OK);
    write_on(st, s, text, WRITTEN);
    rt_stats_get(s, &stats, sizeof stats);
    assert_true(stats.steps > stats.blocks && stats.steps <= 12 * stats.blocks);
    for (int32_t i = 0; i < WRITTEN; i++) assert_int_not_equal(text[i], mask);
    rt_session_free(s);
    rt_step_free(st);
    rt_close(g);
}

/* Positions that are locked: nothing is drawn, and the text is the same everywhere, without its mask. */
static void locked_everywhere(void **state)
{
    (void) state;
    enum { MASK = 11 };
    int32_t want[WRITTEN], text[WRITTEN];
    PublicRig p;
    const RigOptions o = rig_options(TINY_DIFFUSION, 0, false);
    public_files(&p, &o);
    rt_options ro = RT_OPTIONS(.model = p.model, .backend = "cpu:portable", .threads = 1, .kv_k = "f32", .kv_v = "f32");
    write_locked(&ro, NULL, 1, MASK, want);
    write_locked(&ro, NULL, 2, MASK, text);
    assert_same(text, want, sizeof want, "another seed");
    ro.threads = 3;
    write_locked(&ro, &RT_STEP_OPTIONS(.chunk = 7), 1, MASK, text);
    assert_same(text, want, sizeof want, "threads");
    for (int32_t level = 0; level < LEVEL_COUNT; level++) {
        if (!level_here((CpuLevel) level)) continue;
        ro.backend = cpu_named(level_name((CpuLevel) level));
        write_locked(&ro, NULL, 1, MASK, text);
        assert_same(text, want, sizeof want, "level %s", level_name((CpuLevel) level));
    }
    write_locked(&ro, NULL, 1, MASK + 1, text);
    assert_memory_not_equal(text, want, sizeof want);
    p.g = NULL;
    public_close(&p);
}

/* A backend that hides its memory, queues its calls and replays passes. */
static void behind_a_device(void **state)
{
    (void) state;
    int32_t want[WRITTEN], text[WRITTEN];
    PublicRig p;
    const RigOptions o = rig_options(TINY_DIFFUSION, 0, true);
    the_text(want, 1);
    public_open(&p, &o, NULL);
    write_text(p.g, &RT_STEP_OPTIONS(.chunk = 16), 1, text);
    assert_same(text, want, sizeof want, "on the device");
    public_close(&p);
}

static bool keep_going(void *ud, const char *what, int64_t done, int64_t total)
{
    (void) what, (void) done, (void) total;
    return roll(ud, 23) != 0;
}

/* Sessions come one after another, their canvases share passes in different steps of theirs, as many as a pass has room
 * for, passes are cancelled, and each session reads what it would read alone. */
static void together(bool device, int32_t chunk)
{
    enum { N = 7, STEPS = 4 };
    int32_t want[N][WRITTEN], got[N][WRITTEN], made[N] = { 0 }, prompt[ASKED], n = 1;
    int64_t calls = 0, steps = 0;
    PublicRig p;
    rt_step *st;
    rt_error e;
    rt_session *s[N];
    Dice d = { 5, 0 };
    const RigOptions o = rig_options(TINY_DIFFUSION, 0, device);
    public_open(&p, &o, NULL);
    const rt_step_options so = RT_STEP_OPTIONS(.sessions = N, .chunk = chunk,
                                               .hooks = { .ud = &d, .progress = keep_going });
    assert_int_equal(rt_step_new(&st, p.g, &so, &e), RT_OK);
    asked(prompt, ASKED);
    for (int32_t i = 0; i < N; i++) {
        write_text(p.g, NULL, (uint64_t) i, want[i]);
        s[i] = session(p.g, (uint64_t) i);
        assert_int_equal(rt_prompt(s[i], prompt, ASKED), RT_OK);
    }
    for (int32_t left = N; left > 0; calls++) {
        rt_block b[N];
        if (n < N && calls % STEPS == 0) n++;
        const rt_status code = rt_step_run(st, s, b, (size_t) n);
        if (code == RT_ECANCEL) continue;
        assert_int_equal(code, RT_OK);
        for (int32_t i = 0; i < n; i++) {
            if (b[i].n == 0 || made[i] == WRITTEN) continue;
            memcpy(got[i] + made[i], b[i].token, sizeof **got * CANVAS);
            left -= (made[i] += CANVAS) == WRITTEN;
        }
    }
    for (int32_t i = 0; i < N; i++) {
        rt_stats stats;
        rt_stats_get(s[i], &stats, sizeof stats);
        steps += stats.steps;
        assert_same(got[i], want[i], sizeof got[i], "session %d", (int) i);
        rt_session_free(s[i]);
    }
    if (steps <= calls) fail_msg("%d steps in %d passes of all kinds", (int) steps, (int) calls);
    rt_step_free(st);
    public_close(&p);
}

static void neighbours(void **state)
{
    (void) state;
    together(false, 9);                            /* room for five canvases */
    together(true, 200);                           /* for all */
}

/* Passes that are cancelled anywhere are run again. */
static void cancelled(void **state)
{
    (void) state;
    int32_t want[WRITTEN], prompt[ASKED], n = 0, times = 0;
    PublicRig p;
    rt_step *st;
    rt_error e;
    Dice d = { 8, 0 };
    const RigOptions o = rig_options(TINY_DIFFUSION, 0, false);
    the_text(want, 1);
    public_open(&p, &o, NULL);
    rt_session *s = session(p.g, 1);
    assert_int_equal(rt_step_new(&st, p.g, &RT_STEP_OPTIONS(.hooks = { .ud = &d, .progress = keep_going }), &e), RT_OK);
    asked(prompt, ASKED);
    assert_int_equal(rt_prompt(s, prompt, ASKED), RT_OK);
    while (n < WRITTEN) {
        rt_block b;
        const rt_status code = rt_next(st, s, &b);
        times += code == RT_ECANCEL;
        if (code == RT_ECANCEL) continue;
        assert_int_equal(code, RT_OK);
        assert_same(b.token, want + n, sizeof *want * (size_t) b.n, "after %d cancellations", (int) times);
        n += b.n;
    }
    assert_true(times > 3);
    rt_session_free(s);
    rt_step_free(st);
    public_close(&p);
}

/* A text that was given with the prompt's first part already there - from a checkpoint, from the end of another text,
 * from an image in another session - goes on as one from nothing does. */
static void resumed(void **state)
{
    (void) state;
    enum { SHARED = 38 };
    int32_t want[WRITTEN], text[WRITTEN], prompt[ASKED], other[ASKED + WRITTEN];
    PublicRig p;
    rt_step *st;
    rt_error e;
    const RigOptions o = rig_options(TINY_DIFFUSION, 0, false);
    the_text(want, 1);
    public_open(&p, &o, NULL);
    assert_int_equal(rt_step_new(&st, p.g, NULL, &e), RT_OK);
    rt_session *s = session(p.g, 5), *t = session(p.g, 1);
    asked(prompt, ASKED);
    memcpy(other, prompt, sizeof prompt);
    other[SHARED + 1] = (other[SHARED + 1] + 1) % 96;
    assert_int_equal(rt_prompt(s, other, ASKED), RT_OK);
    assert_int_equal(rt_mark(s, (const int32_t[]) { SHARED }, 1), RT_OK);
    write_on(st, s, text, WRITTEN);
    /* back to the mark: the layers with a window have lost what came before it */
    assert_true(rt_resumable(s, prompt, ASKED) == SHARED);
    assert_int_equal(rt_sampling_set(s, &RT_SAMPLING(.temperature = 1, .seed = 1)), RT_OK);
    assert_int_equal(rt_prompt(s, prompt, ASKED), RT_OK);
    write_on(st, s, text, WRITTEN);
    assert_same(text, want, sizeof want, "from a checkpoint");
    /* the end of that text, without its last block, is committed: an image of its first part */
    const int32_t place = rt_save_place(s, ASKED - 1);
    assert_true(place >= SHARED && place < ASKED);
    const size_t n = rt_save_bytes(s, place);
    uint8_t *image = malloc(n);
    assert_non_null(image);
    assert_int_equal(rt_save(st, s, place, image, n), RT_OK);
    if (rt_load(t, image, n) != RT_OK) fail_msg("%s", rt_session_error(t));
    assert_int_equal(rt_prompt(t, prompt, ASKED), RT_OK);
    rt_stats stats;
    rt_stats_get(t, &stats, sizeof stats);
    assert_int_equal(stats.resumed, place);
    write_on(st, t, text, WRITTEN);
    assert_same(text, want, sizeof want, "from an image");
    free(image);
    /* a second turn: the text so far, of which the last block is not yet committed, and more */
    int32_t longer[ASKED + WRITTEN + 5], two[2][CANVAS];
    memcpy(longer, prompt, sizeof prompt);
    memcpy(longer + ASKED, want, sizeof want);
    asked(longer + ASKED + WRITTEN, 5);
    for (int32_t fresh = 0; fresh < 2; fresh++) {
        rt_session *u = fresh ? session(p.g, 1) : s;
        assert_int_equal(rt_prompt(u, longer, ASKED + WRITTEN + 5), RT_OK);
        rt_stats_get(u, &stats, sizeof stats);
        assert_int_equal(stats.resumed, fresh ? 0 : ASKED + WRITTEN - CANVAS);
        write_on(st, u, two[fresh], CANVAS);
        if (fresh) rt_session_free(u);
    }
    assert_same(two[0], two[1], sizeof two[0], "a second turn");
    rt_session_free(s);
    rt_session_free(t);
    rt_step_free(st);
    public_close(&p);
}

/* A block that is shortened is a text that ends there; its limits cut it. */
static void shortened(void **state)
{
    (void) state;
    int32_t want[WRITTEN], prompt[ASKED + 10], text[2][CANVAS];
    PublicRig p;
    rt_step *st;
    rt_error e;
    rt_block b;
    const int32_t *all;
    const RigOptions o = rig_options(TINY_DIFFUSION, 0, false);
    the_text(want, 1);
    public_open(&p, &o, NULL);
    assert_int_equal(rt_step_new(&st, p.g, NULL, &e), RT_OK);
    rt_session *s = session(p.g, 1);
    asked(prompt, ASKED);
    assert_int_equal(rt_prompt(s, prompt, ASKED), RT_OK);
    assert_int_equal(rt_next(st, s, &b), RT_OK);
    assert_int_equal(rt_take(s, 10), RT_OK);
    assert_int_equal(rt_session_text(s, &all), ASKED + 10);
    assert_same(all + ASKED, want, sizeof *want * 10, "what was kept");
    assert_int_equal(rt_next(st, s, &b), RT_OK);
    memcpy(text[0], b.token, sizeof text[0]);
    /* the same text as a prompt, in which it would be the first block and not the second */
    memcpy(prompt + ASKED, want, sizeof *want * 10);
    assert_int_equal(rt_prompt(s, prompt, ASKED + 10), RT_OK);
    assert_int_equal(rt_next(st, s, &b), RT_OK);
    memcpy(text[1], b.token, sizeof text[1]);
    assert_memory_not_equal(text[0], text[1], sizeof text[0]);
    assert_int_equal(rt_sampling_set(s, &RT_SAMPLING(.temperature = 1, .seed = 1, .max_tokens = CANVAS + 3)), RT_OK);
    assert_int_equal(rt_prompt(s, prompt, ASKED), RT_OK);
    assert_int_equal(rt_next(st, s, &b), RT_OK);
    assert_int_equal(b.n, CANVAS);
    assert_int_equal(rt_next(st, s, &b), RT_OK);
    assert_int_equal(b.n, 3);
    assert_same(b.token, want + CANVAS, sizeof *want * 3, "up to max_tokens");
    assert_int_equal(rt_next(st, s, &b), RT_END);
    rt_session_free(s);
    rt_step_free(st);
    public_close(&p);
}

typedef struct { int32_t calls, step, repeated, last[CANVAS]; } Drafts;

static void drafted(void *ud, const int32_t *token, int32_t n, int32_t step)
{
    Drafts *d = ud;
    assert_int_equal(n, CANVAS);
    assert_int_equal(step, d->step = step == 1 ? 1 : d->step + 1);
    if (step > 1 && memcmp(d->last, token, sizeof d->last) == 0) d->repeated++;
    memcpy(d->last, token, sizeof d->last);
    d->calls++;
}

static void settings(void **state)
{
    (void) state;
    int32_t prompt[ASKED];
    PublicRig p;
    rt_step *st;
    rt_error e;
    rt_block b;
    Drafts d = { 0 };
    const RigOptions o = rig_options(TINY_DIFFUSION, 0, false);
    public_open(&p, &o, NULL);
    assert_int_equal(rt_step_new(&st, p.g, NULL, &e), RT_OK);
    rt_session *s = session(p.g, 1);
    asked(prompt, ASKED);
    assert_int_equal(rt_diffusion_set(s, &RT_DIFFUSION(.steps = 5, .draft = drafted, .ud = &d)), RT_OK);
    assert_int_equal(rt_prompt(s, prompt, ASKED), RT_OK);
    assert_int_equal(rt_next(st, s, &b), RT_OK);
    assert_int_equal(d.calls, 5);
    assert_same(b.token, d.last, sizeof d.last, "the last draft is the block");
    /* whatever the entropies are, done as soon as a canvas repeats itself */
    assert_int_equal(rt_diffusion_set(s, &RT_DIFFUSION(.steps = 60, .confidence = 100, .entropy_bound = 10000,
                                                       .draft = drafted, .ud = &d)), RT_OK);
    /* temperature 0: samples without noise */
    assert_int_equal(rt_sampling_set(s, &RT_SAMPLING(.temperature = 0)), RT_OK);
    assert_int_equal(rt_prompt(s, prompt, ASKED), RT_OK);
    d.calls = d.repeated = 0;
    assert_int_equal(rt_next(st, s, &b), RT_OK);
    assert_int_equal(d.repeated, d.calls < 60);
    /* so cold that it is 0; confidence -1: all steps */
    assert_int_equal(rt_sampling_set(s, &RT_SAMPLING(.temperature = 0.5f)), RT_OK);
    assert_int_equal(rt_diffusion_set(s, &RT_DIFFUSION(.t_min = 1e-38f, .t_max = 1e-38f)), RT_OK);
    assert_int_equal(rt_prompt(s, prompt, ASKED), RT_OK);
    assert_int_equal(rt_next(st, s, &b), RT_OK);
    /* fewer steps than the block has had: the next is its last */
    assert_int_equal(rt_diffusion_set(s, &RT_DIFFUSION(.confidence = -1)), RT_OK);
    assert_int_equal(rt_prompt(s, prompt, ASKED), RT_OK);
    for (int32_t i = 0; i < 6; i++) {
        assert_int_equal(rt_step_run(st, &s, &b, 1), RT_OK);
        assert_int_equal(b.status, RT_OK);
        assert_int_equal(b.n, 0);
    }
    d.calls = 0;
    assert_int_equal(rt_diffusion_set(s, &RT_DIFFUSION(.steps = 3, .confidence = -1, .draft = drafted, .ud = &d)),
                     RT_OK);
    d.step = 5;                                    /* the first of the six read the prompt */
    assert_int_equal(rt_step_run(st, &s, &b, 1), RT_OK);
    assert_int_equal(b.status, RT_OK);
    assert_int_equal(b.n, CANVAS);
    assert_int_equal(d.calls, 1);
    const rt_diffusion wrong[] = {
        RT_DIFFUSION(.steps = -1), RT_DIFFUSION(.steps = 65537), RT_DIFFUSION(.t_max = NAN),
        RT_DIFFUSION(.t_min = 0.9f), RT_DIFFUSION(.entropy_bound = -1), RT_DIFFUSION(.confidence = -2),
        RT_DIFFUSION(.trim = 1.5f), RT_DIFFUSION(.trim_from = 33), RT_DIFFUSION(.mask = 5),
        RT_DIFFUSION(.lock = true, .mask = -1), RT_DIFFUSION(.lock = true, .mask = 1 << 20),
        RT_DIFFUSION(.lock = true, .trim = 0.5f) };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_int_equal(rt_diffusion_set(s, &wrong[i]), RT_EARG);
    rt_session_free(s);
    rt_step_free(st);
    public_close(&p);
}

static bool no_mask(void *ud, const int32_t *path, size_t n, uint32_t *bits)
{
    (void) ud, (void) path, (void) n, (void) bits;
    return false;
}

/* Each is refused by name, and nothing changes. */
static void refused(void **state)
{
    (void) state;
    PublicRig p;
    const RigOptions o = rig_options(TINY_DIFFUSION, 0, false);
    const struct { rt_sampling s; const char *name; } wrong[] = {
        { RT_SAMPLING(.top_p = 0.9f), "top_p" }, { RT_SAMPLING(.min_p = 0.1f), "min_p" },
        { RT_SAMPLING(.repetition = 1.1f), "repetition" }, { RT_SAMPLING(.frequency = 1), "frequency" },
        { RT_SAMPLING(.presence = 1), "presence" }, { RT_SAMPLING(.top_k = 3), "top_k" },
        { RT_SAMPLING(.n_bias = 1, .bias = &(const rt_bias) { 1, 1 }), "bias" } };
    public_open(&p, &o, NULL);
    rt_session *s = session(p.g, 1);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_int_equal(rt_sampling_set(s, &wrong[i].s), RT_EUNSUPPORTED);
        assert_non_null(strstr(rt_session_error(s), wrong[i].name));
    }
    assert_int_equal(rt_allow(s, no_mask, NULL), RT_EUNSUPPORTED);
    assert_int_equal(rt_allow(s, NULL, NULL), RT_OK);
    assert_int_equal(rt_logprobs_set(s, 3), RT_EUNSUPPORTED);
    assert_int_equal(rt_logprobs_set(s, -1), RT_OK);
    char canvas[8];
    rt_property(p.g, "model.canvas", canvas, sizeof canvas);
    assert_string_equal(canvas, "32");
    rt_session_free(s);
    public_close(&p);
    const RigOptions plain = rig_options(TINY_GEMMA4MOE, 0, false);
    public_open(&p, &plain, NULL);
    rt_error e;
    assert_int_equal(rt_session_new(&s, p.g, NULL, &e), RT_OK);
    assert_int_equal(rt_diffusion_set(s, NULL), RT_EUNSUPPORTED);
    rt_session_free(s);
    public_close(&p);
}

int main(int argc, char **argv)
{
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(acceptance), cmocka_unit_test(stopping), cmocka_unit_test(trimming),
        cmocka_unit_test(locking), cmocka_unit_test(echoes), cmocka_unit_test(open_end),
        cmocka_unit_test(locked_everywhere), cmocka_unit_test(temperatures),
        cmocka_unit_test(noise), cmocka_unit_test(same_everywhere), cmocka_unit_test(factors_of_weights),
        cmocka_unit_test(behind_a_device), cmocka_unit_test(neighbours),
        cmocka_unit_test(cancelled), cmocka_unit_test(resumed), cmocka_unit_test(shortened), cmocka_unit_test(settings),
        cmocka_unit_test(refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
