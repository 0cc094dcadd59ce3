/* Nothing is allocated in the token loop: not by the engine, not by the backend. All of malloc's family is counted while steps run,
 * from the very first one: prompts, drafting, passes, checkpoints, sampling, second turns. */
#include "model_helper.h"

#include "alloc_fault.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The aligned kin, which alloc_fault.h leaves alone. */
#if ALLOC_SANITIZED
void *ALLOC_REAL(memalign)(size_t align, size_t n);
#else
void *__libc_memalign(size_t align, size_t n);
#endif
static long aligned_calls;
static void *aligned(size_t align, size_t n)
{
    aligned_calls++;
    return alloc_note(ALLOC_REAL(memalign)(align, n));
}
void *aligned_alloc(size_t align, size_t n) { return aligned(align, n); }
void *memalign(size_t align, size_t n) { return aligned(align, n); }
int posix_memalign(void **out, size_t align, size_t n)
{
    *out = aligned(align, n);
    return *out ? 0 : ENOMEM;
}

static void *(*real_alloc)(Backend *b, size_t bytes, const char *part);
static long backend_calls;
static void *counted_alloc(Backend *b, size_t bytes, const char *part)
{
    backend_calls++;
    return real_alloc(b, bytes, part);
}

static long all_calls(void) { return alloc_state.calls + aligned_calls + backend_calls; }

enum { SESSIONS = 3, STEPS = 60 };

static bool half(void *ud, const int32_t *path, size_t n, uint32_t *bits)
{
    (void) ud, (void) path, (void) n;
    for (int32_t i = 0; i < 3; i++) bits[i] = 0x55555555u;
    return true;
}

static void token_loop(const RigOptions *o, const rt_step_options *sto)
{
    PublicRig p;
    rt_error e;
    rt_step *st;
    rt_session *s[SESSIONS];
    rt_block b[SESSIONS];
    int32_t text[80];
    public_open(&p, o, NULL);
    real_alloc = p.be->alloc;
    p.be->alloc = counted_alloc;
    if (rt_step_new(&st, p.g, sto, &e) != RT_OK) fail_msg("%s", e.text);
    Dice d = { tiny_key(1, "alloc"), 0 };
    for (int32_t i = 0; i < SESSIONS; i++) {
        assert_int_equal(rt_session_new(&s[i], p.g, &(rt_session_options) { .ctx = 150, .draft_ctx = i == 1 ? 40 : 0 }, &e), RT_OK);
        rt_sampling_set(s[i], &(rt_sampling) { .temperature = (float) i * 0.5f, .top_p = 0.9f, .repetition = 1.1f, .top_k = i == 2 ? 30 : 0, .max_tokens = 40, .seed = 4 });
    }
    rt_allow(s[1], half, NULL);
    rt_logprobs_set(s[0], 20);
    assert_true(all_calls() > 0 && backend_calls > 0);
    for (int32_t turn = 0; turn < 2; turn++) {
        for (int32_t i = 0; i < SESSIONS; i++) {
            random_tokens(&d, 40, 96, text + (turn ? 20 : 0));
            long prompted = all_calls();
            assert_int_equal(rt_prompt(s[i], text, turn ? 60 : 40), RT_OK);
            assert_int_equal(rt_mark(s[i], (int32_t[]) { 7, 13, 33 }, 3), RT_OK);
            assert_int_equal(all_calls(), prompted);
        }
        for (int32_t step = 0; step < STEPS; step++) {
            long before = all_calls();
            if (rt_step_run(st, s, b, SESSIONS) != RT_OK) fail_msg("%s", rt_step_error(st));
            if (b[0].n > 1) rt_take(s[0], b[0].n - 1);
            if (all_calls() != before) fail_msg("%ld allocations in step %d of turn %d", all_calls() - before, step, turn);
        }
        rt_stats stats;
        rt_stats_get(s[0], &stats);
        assert_int_equal(stats.generated, 40);
    }
    for (int32_t i = 0; i < SESSIONS; i++) rt_session_free(s[i]);
    rt_step_free(st);
    public_close(&p);
}

static void no_allocation_in_the_token_loop(void **state)
{
    (void) state;
    for (int32_t kind = 0; kind < RIG_KINDS; kind++)
        for (int32_t draft = 0; draft < (kind < 2 ? 3 : 4); draft++) {
            RigOptions o = rig_kind(kind, false);
            if (draft == 3) o = rig_with_mtp(o);
            else if (draft) o = rig_with_draft(o, draft == 2);
            if (kind % 2) o.tm.type = o.tm.type_head = T_Q8_0, o.kv = T_F16;
            o.threads = 1 + kind % 2;
            token_loop(&o, &(rt_step_options) { .sessions = SESSIONS, .chunk = 16, .budget = draft >= 2 ? 0 : 20 });
        }
}

/* The counters count. Called through pointers, as the compiler believes that malloc changes no counter. */
static void counters_count(void **state)
{
    (void) state;
    void *(*volatile get)(size_t) = malloc;
    void *(*volatile get_aligned)(size_t, size_t) = aligned_alloc;
    void *(*volatile again)(void *, size_t) = realloc;
    long before = all_calls();
    void *a = get(10), *b = get_aligned(64, 64);
    a = again(a, 200);
    free(a);
    free(b);
    assert_int_equal(all_calls(), before + 3);
}

int main(int argc, char **argv)
{
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = { cmocka_unit_test(counters_count), cmocka_unit_test(no_allocation_in_the_token_loop) };
    return cmocka_run_group_tests_name("alloc", tests, NULL, NULL);
}
