/* test_drive.c - blocks of a real session (the demo model, guessing from the text itself) become an answer that depends
 * on the tokens alone: wherever a block is broken off, the text goes on as if it had not been. */
#include "programs/drive.h"

#include <stdlib.h>
#include <string.h>

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

enum { TOKENS = 60 };
#define PROMPT "1 2 3 4 5 1 2 3 4 5 1 2 3 4 5 1 2 3"

typedef struct {
    Program     p;
    Options     o;
    rt_session *s;
    rt_step    *step;
    int32_t     prompt[64], *token, n, n_prompt, every, refuse, told, forced, longest;
    size_t      cap;
} World;

static void begin(World *w, const rt_sampling *sampling)
{
    rt_error e;
    *w = (World) { .o = { .command = "test", .quiet = true }, .refuse = -1 };
    w->p.o = &w->o;
    rt_options open = RT_OPTIONS(.model = "models/demo/ratoon-demo-q8_0.gguf", .threads = 1);
    assert_int_equal(rt_open(&w->p.engine, &open, &e), RT_OK);
    assert_int_equal(rt_session_new(&w->s, w->p.engine, &RT_SESSION_OPTIONS(.ctx = 256, .ngram = 1), &e), RT_OK);
    assert_int_equal(rt_step_new(&w->step, w->p.engine, &RT_STEP_OPTIONS(.budget = 8), &e), RT_OK);
    w->n_prompt = (int32_t) rt_tokenize(w->p.engine, PROMPT, strlen(PROMPT), false, w->prompt, 64);
    assert_in_range(w->n_prompt, 8, 64);
    assert_int_equal(rt_prompt(w->s, w->prompt, (size_t) w->n_prompt), RT_OK);
    assert_int_equal(rt_sampling_set(w->s, sampling), RT_OK);
}

static void end(World *w)
{
    free(w->token);
    rt_step_free(w->step);
    rt_session_free(w->s);
    rt_close(w->p.engine);
}

static bool accept(void *ud, int32_t id)
{
    const World *w = ud;
    (void) id;
    return w->n != w->refuse;
}

static bool tell(void *ud, int32_t id, int32_t at)
{
    World *w = ud;
    assert_int_equal(w->token[w->n - 1], id);
    w->told++;
    w->forced += at < 0;
    if (at >= w->longest) w->longest = at + 1;
    return true;
}

static bool cut(void *ud)
{
    const World *w = ud;
    return w->every > 0 && w->n % w->every == 0;
}

static Drive drive_of(World *w, Reply *reply)
{
    return (Drive) { .engine = w->p.engine, .reply = reply, .token = &w->token, .n = &w->n, .cap = &w->cap,
                     .accept = accept, .tell = tell, .cut = cut, .ud = w };
}

/* Runs until there is a reason to stop other than `cut`. */
static DriveEnd run(World *w, const Drive *d)
{
    rt_block b;
    DriveEnd why;
    do why = drive_step(d, &w->p, w->step, w->s, &b);
    while (why == DRIVE_ON || why == DRIVE_CUT);
    return why;
}

/* The session's text must be the prompt and the kept tokens. */
static void session_holds(const World *w, int32_t kept)
{
    const int32_t *text;
    assert_int_equal(rt_session_text(w->s, &text), w->n_prompt + kept);
    assert_memory_equal(text + w->n_prompt, w->token, sizeof *w->token * (size_t) kept);
}

static const rt_sampling greedy = RT_SAMPLING(.max_tokens = TOKENS);

static void plain(World *w)
{
    begin(w, &greedy);
    Drive d = drive_of(w, NULL);
    d.ignore_eos = true;
    assert_int_equal(run(w, &d), DRIVE_FULL);
    assert_int_equal(w->n, TOKENS);
    assert_int_equal(w->told, TOKENS);
    session_holds(w, TOKENS);
}

static void broken_off(void **state)
{
    World all, w;
    (void) state;
    plain(&all);
    assert_true(all.longest > 1);                  /* there were blocks to break off */
    for (int32_t every = 1; every <= 3; every++) {
        begin(&w, &greedy);
        w.every = every;
        Drive d = drive_of(&w, NULL);
        d.ignore_eos = true;
        assert_int_equal(run(&w, &d), DRIVE_FULL);
        assert_int_equal(w.n, TOKENS);
        assert_memory_equal(w.token, all.token, sizeof *w.token * TOKENS);
        session_holds(&w, TOKENS);
        end(&w);
    }
    end(&all);
}

/* A stop string of `len` tokens whose last one is token `last` - 1. */
static void stops(const World *all, int32_t last, int32_t len)
{
    World w;
    Reply *r;
    char stop[256] = "";
    size_t n, at = 0;
    for (int32_t i = last - len; i < last; i++) {
        const char *bytes = rt_token_bytes(all->p.engine, all->token[i], &n);
        assert_true(at + n < sizeof stop);
        memcpy(stop + at, bytes, n);
        at += n;
    }
    const char *const list[] = { stop };
    ReplyOptions o = { .think_max = -1, .stop = list, .n_stop = 1 };
    assert_int_equal(reply_open(&r, &o, NULL), ST_OK);
    begin(&w, &greedy);
    Drive d = drive_of(&w, r);
    d.ignore_eos = true;
    assert_int_equal(run(&w, &d), DRIVE_STOPPED);
    assert_in_range(w.n, 1, last);
    assert_memory_equal(w.token, all->token, sizeof *w.token * (size_t) w.n);
    int32_t kept = reply_kept(r);
    const int32_t *text;
    int32_t held = (int32_t) rt_session_text(w.s, &text) - w.n_prompt;
    assert_in_range(held, kept, w.n);              /* tokens that can no longer be taken back stay; none follow */
    if (len == 1) assert_int_equal(held, kept);
    reply_close(r);
    end(&w);
}

static void stop_strings(void **state)
{
    World all;
    (void) state;
    plain(&all);
    for (int32_t last = 4; last < TOKENS; last += 7)
        for (int32_t len = 1; len <= 4; len++) stops(&all, last, len);
    end(&all);
}

static void refused(void **state)
{
    World w;
    (void) state;
    begin(&w, &greedy);
    w.refuse = 17;
    Drive d = drive_of(&w, NULL);
    d.ignore_eos = true;
    assert_int_equal(run(&w, &d), DRIVE_REFUSED);
    assert_int_equal(w.n, 17);
    assert_int_equal(w.told, 17);
    end(&w);
}

/* An end token is the session's last one and is not kept; if ignored, it is an ordinary token. */
static void end_tokens(void **state)
{
    World w;
    (void) state;
    for (int32_t ignored = 0; ignored < 2; ignored++) {
        begin(&w, &greedy);
        int32_t id = 0;
        while (!rt_token_ends(w.p.engine, id)) id++;
        rt_bias sure = { .id = id, .add = 1e4f };
        rt_sampling s = RT_SAMPLING(.max_tokens = 3, .bias = &sure, .n_bias = 1);
        assert_int_equal(rt_sampling_set(w.s, &s), RT_OK);
        Drive d = drive_of(&w, NULL);
        d.ignore_eos = ignored;
        assert_int_equal(run(&w, &d), ignored ? DRIVE_FULL : DRIVE_ENDED);
        assert_int_equal(w.n, ignored ? 3 : 0);
        const int32_t *text;
        size_t n = rt_session_text(w.s, &text);
        assert_int_equal(n, w.n_prompt + (ignored ? 3 : 1));
        assert_int_equal(text[n - 1], id);
        end(&w);
    }
}

static void forced_tokens(void **state)
{
    World w;
    Reply *r;
    int32_t t[16];
    static const char text[] = "one two STOP three";
    const char *const list[] = { "STOP" };
    ReplyOptions o = { .think_max = -1, .stop = list, .n_stop = 1 };
    (void) state;
    assert_int_equal(reply_open(&r, &o, NULL), ST_OK);
    begin(&w, &greedy);
    int32_t n = (int32_t) rt_tokenize(w.p.engine, text, strlen(text), false, t, 16);
    assert_in_range(n, 4, 16);
    Drive d = drive_of(&w, r);
    assert_int_equal(drive_force(&d, t, n), DRIVE_STOPPED);
    assert_in_range(w.n, 2, n - 1);                /* tokens behind the stop are not fed */
    assert_memory_equal(w.token, t, sizeof *t * (size_t) w.n);
    assert_int_equal(w.forced, w.n);
    reply_close(r);
    end(&w);
}

static void cancelled(void **state)
{
    World w;
    rt_block b;
    (void) state;
    begin(&w, &greedy);
    Drive d = drive_of(&w, NULL);
    interrupts = 1;
    assert_int_equal(drive_step(&d, &w.p, w.step, w.s, &b), DRIVE_CANCELLED);
    interrupts = 0;
    assert_int_equal(w.n, 0);
    assert_int_equal(b.n, 0);
    end(&w);
}

static void failed(void **state)
{
    World w;
    rt_block b;
    rt_error e;
    (void) state;
    begin(&w, &greedy);
    Drive d = drive_of(&w, NULL);
    rt_session_free(w.s);
    assert_int_equal(rt_session_new(&w.s, w.p.engine, &RT_SESSION_OPTIONS(.ctx = 256), &e), RT_OK);
    assert_int_equal(drive_step(&d, &w.p, w.step, w.s, &b), DRIVE_FAILED);
    assert_non_null(strstr(drive_error(w.step, w.s), "no prompt"));
    end(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(broken_off), cmocka_unit_test(stop_strings), cmocka_unit_test(refused),
        cmocka_unit_test(end_tokens), cmocka_unit_test(forced_tokens), cmocka_unit_test(cancelled),
        cmocka_unit_test(failed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
