/* test_gpu_check.c - the check of a card passes on one that computes what the CPU computes, and on no other: a
 * bit of what any kernel stores is missed. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu_driver.h"
#include "model_helper.h"
#include "part.h"
#include "ratoon_lab.h"

static FakeCuda *fake;

static rt_status check_with(const PublicRig *p, const rt_hooks *hooks, rt_error *e)
{
    return rt_card_check(&RT_OPTIONS(.model = p->model, .backend = "cuda", .threads = 1, .hooks = *hooks), e);
}

static rt_status check(const PublicRig *p, rt_error *e) { return check_with(p, &(rt_hooks) { 0 }, e); }

/* A model of each family, and one that denoises. Each layer comes twice. */
enum { MODELS = RIG_KINDS + 1 };
static void write_model(PublicRig *p, int32_t i)
{
    RigOptions o = i < RIG_KINDS ? rig_kind(i, false) : rig_options(TINY_DIFFUSION, 0, false);
    o.tm.context = 400;
    public_files(p, &o);
    p->g = NULL;
}

/* ---- kernels ---- */

enum { NAMES = 256 };
static const char *name[NAMES];
static int32_t names;

static void collect(const char *kernel)
{
    int32_t i = 0;
    while (i < names && strcmp(name[i], kernel) != 0) i++;
    if (i == names && names < NAMES) name[names++] = kernel;
}

/* What these store decides which tokens are drawn, which a bit hardly ever does. */
static bool only_draws(const char *kernel)
{
    return strncmp(kernel, "draw_", 5) == 0 || strncmp(kernel, "canvas_", 7) == 0;
}

static void every_model_passes(void **state)
{
    (void) state;
    for (int32_t i = 0; i < MODELS; i++) {
        PublicRig p;
        rt_error e;
        if (!part_runs()) continue;
        write_model(&p, i);
        if (check(&p, &e) != RT_OK) fail_msg("model %d: %s", i, e.text);
        assert_string_equal(e.text, "");
        assert_int_equal(fake->live, 0);
        public_close(&p);
    }
}

/* tried, missed: how many kernels, besides those of earlier models. */
static void spoil_each(const PublicRig *p, int32_t model, int32_t *tried, int32_t *missed)
{
    rt_error e;
    names = 0;
    fake->launched = collect;
    if (check(p, &e) != RT_OK) fail_msg("model %d: %s", model, e.text);
    fake->launched = NULL;
    assert_in_range(names, 10, NAMES - 1);
    for (int32_t k = 0; k < names; k++) {
        if (!part_runs()) continue;
        fake->spoiled = name[k];
        fake->spoils = 0;
        const rt_status st = check(p, &e);
        if (st == RT_EBACKEND) assert_non_null(strstr(e.text, "cuda does not compute what the CPU computes: "));
        else if (st != RT_OK) fail_msg("model %d, %s: %s", model, name[k], e.text);
        else if (fake->spoils > 0 && !only_draws(name[k])) fail_msg("model %d: %s is not missed", model, name[k]);
        ++*tried;
        *missed += st == RT_EBACKEND;
    }
    fake->spoiled = NULL;
}

static void every_kernel_counts(void **state)
{
    (void) state;
    static const int32_t which[] = { 2, 6, 9, MODELS - 1 };    /* with delta nets, mixtures, windows, a canvas */
    int32_t tried = 0, missed = 0;
    for (size_t i = 0; i < sizeof which / sizeof *which; i++) {
        PublicRig p;
        write_model(&p, which[i]);
        spoil_each(&p, which[i], &tried, &missed);
        public_close(&p);
    }
    assert_true(missed > 0 && missed >= tried / 2);
}

/* ---- failures ---- */

static void any_call_fails(void **state)
{
    (void) state;
    PublicRig p;
    rt_error e;
    write_model(&p, 2);
    assert_int_equal(check(&p, &e), RT_OK);        /* a driver that cannot be started is not asked again */
    int32_t failed = 0;
    for (int64_t n = 1; n < 100000; n += 1 + n / 3) {
        fake->fail_in = n;
        fake->fail_with = 2;
        const rt_status st = check(&p, &e);
        const bool reached = fake->fail_in <= 0;
        fake->fail_in = 0;
        assert_int_equal(fake->live, 0);
        if (!reached) break;
        /* a pass that cannot be recorded is launched */
        if (st != RT_OK) assert_true(e.text[0] && !strstr(e.text, "does not compute"));
        failed += st != RT_OK;
    }
    assert_true(failed > 10);
    public_close(&p);
}

typedef struct { int32_t until, told; int64_t done; } Bar;

static bool progress(void *ud, const char *what, int64_t done, int64_t total)
{
    Bar *b = ud;
    if (total > 0) {
        assert_string_equal(what, "check");
        assert_true(done >= b->done && done <= total);
        b->done = done;
    }
    return ++b->told != b->until;
}

static void cancelled(void **state)
{
    (void) state;
    PublicRig p;
    rt_error e;
    Bar all = { 0 };
    write_model(&p, 2);
    assert_int_equal(check_with(&p, &(rt_hooks) { .ud = &all, .progress = progress }, &e), RT_OK);
    assert_int_equal(all.done, 1000);
    for (int32_t n = 1; n <= all.told; n += 1 + n / 2) {
        Bar b = { .until = n };
        assert_int_equal(check_with(&p, &(rt_hooks) { .ud = &b, .progress = progress }, &e), RT_ECANCEL);
        assert_int_equal(fake->live, 0);
    }
    public_close(&p);
}

static void refused(void **state)
{
    (void) state;
    PublicRig p;
    rt_error e;
    write_model(&p, 0);
    assert_int_equal(rt_card_check(&RT_OPTIONS(.model = p.model, .backend = "cpu"), &e), RT_EARG);
    assert_string_equal(e.text, "backend: 'cpu', expected a card's");
    assert_int_equal(rt_card_check(&RT_OPTIONS(.model = p.model), &e), RT_EARG);
    assert_int_equal(rt_card_check(&RT_OPTIONS(.model = "/nowhere", .backend = "cuda"), &e), RT_EIO);
    fake->memory = 1 << 20;
    assert_int_equal(check(&p, &e), RT_ENOMEM);
    fake->memory = 0;
    assert_int_equal(fake->live, 0);
    public_close(&p);
}

int main(int argc, char **argv)
{
    fake = gpu_emulated();
    if (!fake) {
        printf("[  SKIPPED ] RATOON_CUDA_DRIVER names no emulated driver (make run-test_gpu_check)\n");
        return 0;
    }
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_model_passes), cmocka_unit_test(every_kernel_counts), cmocka_unit_test(any_call_fails),
        cmocka_unit_test(cancelled), cmocka_unit_test(refused),
    };
    return cmocka_run_group_tests_name("gpu_check", tests, NULL, NULL);
}
