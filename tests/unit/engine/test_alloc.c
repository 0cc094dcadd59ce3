/* Neither the engine nor the backend allocates in the token loop. All of malloc's family is counted while steps run,
 * from the very first one: prompts, drafting, passes, checkpoints, sampling, second turns. */
#include "model_helper.h"

#include "alloc_fault.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The functions for aligned memory, which alloc_fault.h does not replace. */
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
static size_t backend_bytes;                       /* of malloc's: large pieces are mapped */
static void *counted_alloc(Backend *b, size_t bytes, const char *part)
{
    const size_t before = alloc_state.bytes;
    void *p = real_alloc(b, bytes, part);
    backend_calls++;
    backend_bytes += alloc_state.bytes - before;
    return p;
}

static long all_calls(void) { return alloc_state.calls + aligned_calls + backend_calls; }

enum { SESSIONS = 3, STEPS = 60 };

static bool half(void *ud, const int32_t *path, size_t n, uint32_t *bits)
{
    (void) ud, (void) path, (void) n;
    for (int32_t i = 0; i < 3; i++) bits[i] = 0x55555555u;
    return true;
}

/* Whether every other thread of this process sleeps. */
static bool others_sleep(void)
{
    bool sleep = true;
    DIR *d = opendir("/proc/self/task");
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d)); ) {
        char path[300], state = 'S';
        snprintf(path, sizeof path, "/proc/self/task/%s/stat", e->d_name);
        FILE *f = e->d_name[0] == '.' || atoi(e->d_name) == getpid() ? NULL : fopen(path, "r");
        if (f && fscanf(f, "%*d %*s %c", &state) != 1) state = 'S';
        if (f) fclose(f);
        sleep &= state == 'S';
    }
    closedir(d);
    return sleep;
}

/* A sanitizer allocates when a thread starts, which may be late on a busy machine: waits until all have started, for a
 * minute at most. */
static void wait_for_threads(void)
{
    int32_t quiet = 0;
    for (int32_t i = 0; quiet < 3 && i < 60000; i++) {
        usleep(1000);
        quiet = others_sleep() ? quiet + 1 : 0;
    }
    assert_int_equal(quiet, 3);
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
        assert_int_equal(rt_session_new(&s[i], p.g, &RT_SESSION_OPTIONS(.ctx = 150, .draft_ctx = i == 1 ? 40 : 0),
                                        &e), RT_OK);
        rt_sampling_set(s[i], &RT_SAMPLING(.temperature = (float) i * 0.5f, .top_p = 0.9f, .repetition = 1.1f,
                                            .top_k = i == 2 ? 30 : 0, .max_tokens = 40, .seed = 4));
    }
    rt_allow(s[1], half, NULL);
    rt_logprobs_set(s[0], 20);
    assert_true(all_calls() > 0 && backend_calls > 0);
    wait_for_threads();
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
            if (all_calls() != before)
                fail_msg("%ld allocations in step %d of turn %d", all_calls() - before, step, turn);
        }
        rt_stats stats;
        rt_stats_get(s[0], &stats, sizeof stats);
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
        for (int32_t draft = 0; draft < (rig_has_mtp(kind) ? 4 : 3); draft++) {
            RigOptions o = rig_kind(kind, false);
            if (draft == 3) o = rig_with_mtp(o);
            else if (draft) o = rig_with_draft(o, draft == 2);
            if (kind % 2) o.tm.type = o.tm.type_head = T_Q8_0, o.kv = T_F16;
            o.threads = 1 + kind % 2;
            token_loop(&o, &RT_STEP_OPTIONS(.sessions = SESSIONS, .chunk = 16, .budget = draft >= 2 ? 0 : 20));
        }
}

static void in_main_memory(void *ud, const char *owner, const char *name, size_t bytes)
{
    size_t *sum = ud;
    if (strcmp(name, "n-gram index") == 0 || strcmp(name, "text") == 0) sum[0] += bytes;
    if (strcmp(name, "trees") == 0) sum[1] += bytes;
    assert_true(strcmp(owner, "session") == 0 || strcmp(name, "text") != 0);
}

/* What was allocated since `before`, and is not in the memory that the backend hands out, is what was planned, but for
 * what a backend needs for itself. */
static void check_growth(size_t before, size_t planned, size_t spare, const char *what)
{
    const size_t more = alloc_state.bytes - before - backend_bytes;
    if (more < planned || more > planned + spare) fail_msg("%s: %zu bytes, planned %zu", what, more, planned);
}

/* What sessions and steps allocate besides the backend's memory is in the plan. */
static void tables_are_planned(void **state)
{
    (void) state;
    if (ALLOC_SANITIZED) return;                   /* sizes are not known */
    for (int32_t i = 0; i < 6; i++) {
        const RigOptions o = i < 2 ? rig_with_draft(rig_kind(2 * i, false), false)
                                   : rig_options(i < 4 ? TINY_DIFFUSION : TINY_QWEN3, 0, false);
        const rt_session_options so = RT_SESSION_OPTIONS(.ctx = i % 2 ? 20000 : 300);
        const rt_step_options sto = RT_STEP_OPTIONS(.sessions = 1 + 7 * (i % 2));
        PublicRig p;
        rt_session *s;
        rt_step *st;
        rt_error e;
        size_t planned[2] = { 0 };
        public_open(&p, &o, NULL);
        const rt_options ro = RT_OPTIONS(.model = p.model, .draft = o.draft ? p.draft : NULL, .threads = 1);
        if (rt_plan(&ro, &so, &sto, in_main_memory, planned, NULL, 0, &e) != RT_OK) fail_msg("%s", e.text);
        p.be->pick = NULL;                         /* the CPU has none */
        real_alloc = p.be->alloc;
        p.be->alloc = counted_alloc;
        for (int32_t step = 0; step < 2; step++) {
            const size_t before = alloc_state.bytes;
            backend_bytes = 0;
            if ((step ? rt_step_new(&st, p.g, &sto, &e) : rt_session_new(&s, p.g, &so, &e)) != RT_OK)
                fail_msg("%s", e.text);
            check_growth(before, planned[step], step ? 96 << 10 : 16 << 10, step ? "step" : "session");
        }
        rt_session_free(s);
        rt_step_free(st);
        public_close(&p);
    }
}

/* Checks that the counters count. Calls go through pointers, as the compiler assumes that malloc changes no counter. */
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
    const struct CMUnitTest tests[] = { cmocka_unit_test(counters_count),
                                        cmocka_unit_test(no_allocation_in_the_token_loop),
                                        cmocka_unit_test(tables_are_planned) };
    return cmocka_run_group_tests_name("alloc", tests, NULL, NULL);
}
