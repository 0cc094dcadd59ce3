/* test_threads.c - one engine in several threads: each has steps and sessions of its own, which are made, cancelled,
 * saved, loaded, continued and freed while the others' run; every text is the one that a single thread makes by plain
 * decoding. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model_helper.h"
#include "part.h"
#include "ratoon.h"

/* JOBS: texts per thread; SOME: fewer on the device, whose memory opens and closes */
enum { THREADS = 4, TEXTS = 12, JOBS = PART > 1 ? 12 : 50, SOME = 8, LONG = 48, CTX = 200 };

typedef struct { int32_t prompt[PROMPT], n, text[LONG]; rt_sampling sampling; } Truth;
typedef struct {
    rt_engine   *g;
    const Truth *truth;                            /* [TEXTS] */
    Dice         dice, stop;
    _Atomic(rt_step *) step;                       /* for another thread to cancel; NULL: none */
    atomic_bool  busy;                             /* the canceller is using it */
    atomic_int   steps, *sent;                     /* steps: so far; sent: by the canceller, to anybody */
    int32_t      most, jobs, cancels;              /* most: number of texts to make */
    char         wrong[640];                       /* the first mistake; "": none */
} Thread;

static bool sometimes(void *ud, const char *what, int64_t done, int64_t total)
{
    (void) what, (void) done, (void) total;
    return roll(&((Thread *) ud)->stop, 97) != 0;
}

static bool bad(Thread *t, const char *what, const char *why)
{
    if (!t->wrong[0]) snprintf(t->wrong, sizeof t->wrong, "job %d: %s: %.500s", t->jobs, what, why);
    return false;
}

/* Runs the session to n tokens of its text, whatever is cancelled meanwhile. */
static bool run_to(Thread *t, rt_step *st, rt_session *s, const Truth *truth, int32_t *made, int32_t n)
{
    while (*made < n) {
        rt_block b;
        rt_status code = rt_step_run(st, &s, &b, 1);
        atomic_fetch_add(&t->steps, 1);
        if (code == RT_ECANCEL) {
            t->cancels++;
            continue;
        }
        if (code != RT_OK) return bad(t, "step", rt_step_error(st));
        for (int32_t i = 0; i < b.n; i++, (*made)++)
            if (*made < LONG && b.token[i] != truth->text[*made]) return bad(t, "text", "another token than alone");
        if (b.status == RT_END) return true;
        if (b.status != RT_OK) return bad(t, "session", rt_session_error(s));
    }
    return true;
}

static rt_session *open_session(Thread *t)
{
    rt_session *s = NULL;
    rt_error e;
    if (rt_session_new(&s, t->g, &RT_SESSION_OPTIONS(.ctx = CTX, .ngram = roll(&t->dice, 2) ? 0 : -1),
                       &e) != RT_OK)
        bad(t, "session", e.text);
    return s;
}

/* Saves the session and loads the image into a new one that takes its place. */
static rt_session *through_image(Thread *t, rt_step *st, rt_session *s)
{
    rt_session *other = open_session(t);
    int32_t place = rt_save_place(s, CTX);
    size_t n = rt_save_bytes(s, place);
    uint8_t *image = malloc(n + 1);
    if (!image || !other || n == 0) bad(t, "image", "no place to save at");
    else if (rt_save(st, s, place, image, n) != RT_OK) bad(t, "save", rt_step_error(st));
    else if (rt_load(other, image, n) != RT_OK) bad(t, "load", rt_session_error(other));
    free(image);
    rt_session_free(s);
    return other;
}

/* One text, perhaps in two parts with saving and loading between. */
static bool one_text(Thread *t, rt_step *st, rt_session **s)
{
    const Truth *truth = &t->truth[roll(&t->dice, TEXTS)];
    int32_t made = 0, part = 1 + roll(&t->dice, LONG - 1);
    rt_sampling p = truth->sampling;
    p.max_tokens = LONG;
    if (rt_sampling_set(*s, &p) != RT_OK || rt_prompt(*s, truth->prompt, (size_t) truth->n) != RT_OK)
        return bad(t, "prompt", rt_session_error(*s));
    if (!run_to(t, st, *s, truth, &made, part)) return false;
    if (made >= LONG || roll(&t->dice, 3) != 0) return run_to(t, st, *s, truth, &made, LONG);
    int32_t all[PROMPT + LONG + ROWS_DECODE], n = truth->n + made;
    memcpy(all, truth->prompt, sizeof *all * (size_t) truth->n);
    memcpy(all + truth->n, truth->text, sizeof *all * (size_t) made);
    if (!(*s = through_image(t, st, *s)) || t->wrong[0]) return false;
    p.max_tokens = LONG - made;
    if (rt_sampling_set(*s, &p) != RT_OK || rt_prompt(*s, all, (size_t) n) != RT_OK)
        return bad(t, "prompt", rt_session_error(*s));
    return run_to(t, st, *s, truth, &made, LONG);
}

static void let_go(Thread *t)
{
    atomic_store(&t->step, NULL);
    while (atomic_load(&t->busy)) { }
}

static void *work(void *arg)
{
    Thread *t = arg;
    rt_step *st = NULL;
    rt_session *s = NULL;
    rt_error e;
    /* on a busy machine the canceller may come to its first turn when all texts are made: a few more, then */
    for (t->jobs = 0; (t->jobs < t->most || atomic_load(t->sent) == 0) && !t->wrong[0]; t->jobs++) {
        if (st && roll(&t->dice, 8) == 0) {
            let_go(t);
            rt_step_free(st);
            st = NULL;
        }
        rt_hooks hooks = { .ud = t, .progress = sometimes };
        if (!st && rt_step_new(&st, t->g,
                               &RT_STEP_OPTIONS(.chunk = 7, .budget = roll(&t->dice, 2) ? 0 : 12,
                                                .threads = 1 + roll(&t->dice, 2), .hooks = hooks), &e) != RT_OK) {
            bad(t, "step", e.text);
            break;
        }
        atomic_store(&t->step, st);
        if (s && roll(&t->dice, 4) == 0) {
            rt_session_free(s);
            s = NULL;
        }
        if (!s) s = open_session(t);
        if (!s) break;
        one_text(t, st, &s);
    }
    let_go(t);
    rt_session_free(s);
    rt_step_free(st);
    return NULL;
}

typedef struct { Thread *t; atomic_bool stop; atomic_int sent; } Canceller;

/* Uses a step only during the call and sets `busy` meanwhile, since its owner may be about to free it. A thread is let
 * alone until it made some more steps, however slow they are, so that it comes to an end. */
static void *cancel_some(void *arg)
{
    enum { STEPS = 3 };
    Canceller *c = arg;
    Dice d = { tiny_key(3, "cancel"), 0 };
    int32_t seen[THREADS] = { 0 };
    while (!atomic_load(&c->stop)) {
        int32_t i = roll(&d, THREADS);
        Thread *t = &c->t[i];
        atomic_store(&t->busy, true);
        rt_step *st = atomic_load(&t->step);
        if (st && atomic_load(&t->steps) - seen[i] >= STEPS) {
            rt_step_cancel(st);
            seen[i] = atomic_load(&t->steps);
            atomic_fetch_add(&c->sent, 1);
        }
        atomic_store(&t->busy, false);
        struct timespec pause = { 0, 2000000 };
        nanosleep(&pause, NULL);
    }
    return NULL;
}

static void make_truths(rt_engine *g, Truth *truth)
{
    rt_step *st;
    rt_session *s;
    Dice d = { tiny_key(5, "threads"), 0 };
    public_start(&st, &s, g, &RT_STEP_OPTIONS(.budget = -1), &RT_SESSION_OPTIONS(.ctx = CTX));
    for (int32_t i = 0; i < TEXTS; i++) {
        Truth *t = &truth[i];
        char vocab[16];
        rt_property(g, "model.vocab", vocab, sizeof vocab);
        t->n = 2 + roll(&d, PROMPT - 2);
        random_tokens(&d, t->n, atoi(vocab), t->prompt);
        t->sampling = RT_SAMPLING(.temperature = i % 3 ? 0.8f : 0, .top_k = 20, .seed = (uint64_t) i + 1);
        assert_int_equal(rt_sampling_set(s, &t->sampling), RT_OK);
        assert_int_equal(rt_prompt(s, t->prompt, (size_t) t->n), RT_OK);
        for (int32_t made = 0; made < LONG;) {
            rt_block b;
            assert_int_equal(rt_next(st, s, &b), RT_OK);
            for (int32_t j = 0; j < b.n && made < LONG; j++) t->text[made++] = b.token[j];
        }
    }
    rt_session_free(s);
    rt_step_free(st);
}

static void in_threads(const RigOptions *o)
{
    PublicRig p;
    static Truth truth[TEXTS];
    Thread t[THREADS] = { 0 };
    pthread_t id[THREADS], cancel_id;
    public_open(&p, o, NULL);
    make_truths(p.g, truth);
    Canceller c = { .t = t };
    assert_int_equal(pthread_create(&cancel_id, NULL, cancel_some, &c), 0);
    for (int32_t i = 0; i < THREADS; i++) {
        t[i].g = p.g, t[i].truth = truth, t[i].most = o->device ? SOME : JOBS, t[i].sent = &c.sent;
        t[i].dice = (Dice) { tiny_key((uint64_t) i, "thread"), 0 };
        t[i].stop = (Dice) { tiny_key((uint64_t) i, "stop"), 0 };
        assert_int_equal(pthread_create(&id[i], NULL, work, &t[i]), 0);
    }
    int32_t jobs = 0, cancels = 0;
    for (int32_t i = 0; i < THREADS; i++) pthread_join(id[i], NULL);
    atomic_store(&c.stop, true);
    pthread_join(cancel_id, NULL);
    for (int32_t i = 0; i < THREADS; i++) {
        if (t[i].wrong[0]) fail_msg("thread %d: %s", i, t[i].wrong);
        jobs += t[i].jobs;
        cancels += t[i].cancels;
    }
    assert_true(jobs >= THREADS * t[0].most && cancels > 0);
    public_close(&p);
}

static void steps_in_threads(void **state)
{
    (void) state;
    for (int32_t kind = 0; kind < RIG_KINDS; kind += 2) {
        if (kind && !part_runs()) continue;
        RigOptions o = rig_with_draft(rig_kind(kind, kind == 2), kind == 4);
        o.threads = 2;
        in_threads(&o);
    }
}

/* A cancel that comes before a pass ends the next one, once. */
static void cancel_is_heard_once(void **state)
{
    (void) state;
    PublicRig p;
    rt_step *st;
    rt_session *s;
    rt_block b;
    RigOptions o = rig_kind(2, false);
    public_open(&p, &o, NULL);
    public_start(&st, &s, p.g, &RT_STEP_OPTIONS(.budget = -1), &RT_SESSION_OPTIONS(.ctx = CTX));
    assert_int_equal(rt_prompt(s, (int32_t[]) { 1, 2, 3 }, 3), RT_OK);
    rt_step_cancel(st);
    rt_step_cancel(st);
    assert_int_equal(rt_step_run(st, &s, &b, 1), RT_ECANCEL);
    assert_int_equal(rt_next(st, s, &b), RT_OK);
    assert_true(b.n > 0);
    rt_session_free(s);
    rt_step_free(st);
    public_close(&p);
}

int main(int argc, char **argv)
{
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = { cmocka_unit_test(steps_in_threads), cmocka_unit_test(cancel_is_heard_once) };
    return cmocka_run_group_tests_name("threads", tests, NULL, NULL);
}
