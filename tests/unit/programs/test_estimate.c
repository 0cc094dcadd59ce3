/* test_estimate.c - memory as a line in the context is the library's own plan, and its facts are those of the loaded
 * pair; speeds follow the roofline and the guesses that hold. */
#include "programs/estimate.h"
#include "backend/cpu/roofline.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#define MODEL "models/demo/ratoon-demo-q8_0.gguf"
#define DRAFT "models/demo/dflash-ratoon-demo-bf16.gguf"

static Options options(int32_t ctx)
{
    return (Options) { .command = "test", .quiet = true, .ctx = ctx, .threads = 1 };
}

static void plan_of(Memory *out, Program *p, const Options *o, int32_t sessions, bool server)
{
    rt_error e = { 0 };
    *p = (Program) { .o = o };
    strcpy(p->files.model, MODEL);
    strcpy(p->files.draft, DRAFT);
    if (memory_plan(out, p, sessions, server, &e) != RT_OK) fail_msg("%s", e.text);
}

static double planned(Program *p, const Memory *m, int32_t ctx)
{
    rt_needs n;
    rt_error e = { 0 };
    rt_options ro = program_options(p, NULL, 0);
    assert_int_equal(rt_plan(&ro, &RT_SESSION_OPTIONS(.ctx = ctx), &RT_STEP_OPTIONS(.sessions = m->sessions), NULL,
                             NULL, &n, sizeof n, &e), RT_OK);
    return (double) (n.model + n.drafter + n.step) + (double) n.session * m->sessions + (double) m->needs.process;
}

/* Beyond the drafter's ring the line meets the plans of other contexts, within the roundings of their slots; elsewhere
 * it may only overstate. */
static void memory_is_the_plan(void **state)
{
    (void) state;
    Memory m;
    Program p;
    Options o = options(32000);
    plan_of(&m, &p, &o, 3, false);
    assert_int_equal(m.ctx, 32000);
    assert_true(m.main.token > 0 && m.main.fixed > 0);
    for (int32_t ctx = 500; ctx <= 64000; ctx *= 2) {
        const double plan = planned(&p, &m, ctx), says = memory_bytes(&m, ctx);
        if (plan > 1.001 * says || (ctx >= 8000 && says > 1.01 * plan))
            fail_msg("%d tokens: %.0f bytes, planned %.0f", ctx, says, plan);
    }
}

static void contexts_that_fit(void **state)
{
    (void) state;
    Memory m = { .needs = { .free = 1000000, .ctx_train = 4096 }, .sessions = 1, .ctx = 512,
                 .main = { 200000, 100 } };
    assert_true(memory_fits(&m));
    assert_int_equal(memory_ctx(&m, 1), 8000 / 256 * 256);
    assert_int_equal(memory_ctx(&m, 0.5), 4000 / 256 * 256);
    m.ctx = 8001;
    assert_false(memory_fits(&m));
    m.needs.free = 0;
    assert_true(memory_fits(&m));                  /* nothing is known */
    m.needs.free = 100000;
    assert_int_equal(memory_ctx(&m, 1), 0);
    m = (Memory) { .needs = { .free = 1000 }, .main = { .fixed = 10 } };
    assert_int_equal(memory_ctx(&m, 1), RT_CTX_MAX);
}

/* All memories limit the context. */
static void contexts_with_a_gpu(void **state)
{
    (void) state;
    Memory m = { .needs = { .free = 1000000, .ctx_train = 4096, .cards = 1, .card = { { .free = 500000 } } },
                 .sessions = 1, .ctx = 512, .main = { 200000, 100 }, .gpu = { { 100000, 200 } } };
    assert_true(memory_fits(&m) && memory_fits_gpu(&m, NULL));
    assert_int_equal(memory_ctx(&m, 1), 2000 / 256 * 256);
    m.ctx = 2001;
    assert_false(memory_fits(&m) || memory_fits_gpu(&m, NULL));
    assert_true(memory_bytes_gpu(&m, 2001) == 500200 && memory_bytes(&m, 2001) == 400100);
    m.needs.card[0].free = 2000000;
    m.ctx = 8001;
    assert_true(memory_fits_gpu(&m, NULL) && !memory_fits(&m));
    int32_t full;
    m.needs.cards = 2;
    m.needs.card[1].free = 300000;
    m.gpu[1] = (MemoryLine) { 0, 150 };
    m.ctx = 2000;
    assert_true(memory_fits_gpu(&m, &full) && full == 2);
    assert_int_equal(memory_ctx(&m, 1), 2000 / 256 * 256);
    m.ctx = 2001;
    assert_true(!memory_fits_gpu(&m, &full) && full == 1 && !memory_fits(&m));
    assert_true(memory_bytes_card(&m, 1) == 300150 && memory_bytes_gpu(&m, 2001) == 800350);
    m.needs.card[1].free = 0;                      /* nothing is known of it */
    assert_true(memory_fits_gpu(&m, NULL));
}

static void what_q8_0_would_save(void **state)
{
    (void) state;
    char text[200];
    assert_true(kv_hint(text, 65536, 34816, 131072));
    assert_string_equal(text, "keys and values take 8.6 GB, with -ctk q8_0 -ctv q8_0 4.6 GB (another text, with and "
                              "without drafter)");
    assert_false(kv_hint(text, 65536, 34816, 8192));       /* a quarter of a gigabyte */
    assert_false(kv_hint(text, 65536, 0, 131072));         /* heads that are no whole number of blocks */
    assert_false(kv_hint(text, 34816, 34816, 1e9));
}

static void a_server_takes_what_fits(void **state)
{
    (void) state;
    Memory m, given;
    Program p;
    Options o = options(0), fixed = options(777);
    plan_of(&m, &p, &o, 4, true);
    assert_true(m.ctx <= m.needs.ctx_train && m.ctx <= SERVE_CTX_MOST);
    assert_true(memory_fits(&m) || m.ctx == SERVE_CTX_LEAST);      /* a machine may have next to nothing left */
    plan_of(&given, &p, &fixed, 4, true);
    assert_int_equal(given.ctx, 777);
}

static double number(const rt_engine *g, const char *key)
{
    double x = (double) property(g, key);
    if (x <= 0) fail_msg("%s: %g", key, x);
    return x;
}

static void facts_are_those_of_the_pair(void **state)
{
    (void) state;
    Memory m;
    Program p;
    Options o = options(512);
    char level[16];
    rt_error e = { 0 };
    plan_of(&m, &p, &o, 1, false);
    const rt_needs *n = &m.needs;
    rt_options ro = program_options(&p, NULL, 0);
    assert_int_equal(rt_open(&p.engine, &ro, &e), RT_OK);
    assert_true(n->pass_bytes == number(p.engine, "model.pass.bytes"));
    assert_true(n->pass_parameters == number(p.engine, "model.pass.parameters"));
    assert_true(n->draft_bytes == number(p.engine, "draft.pass.bytes"));
    assert_true(n->draft_parameters == number(p.engine, "draft.pass.parameters"));
    assert_true(n->kv_bytes == number(p.engine, "model.kv.bytes"));
    assert_true(n->layers == number(p.engine, "model.layers") && n->draft_layers == number(p.engine, "draft.layers"));
    assert_true(n->draft_block == number(p.engine, "draft.block") && n->draft_passes == 1);
    /* the head that the target lends belongs to a proposal's pass */
    assert_true((double) n->draft_parameters ==
                number(p.engine, "draft.parameters") + number(p.engine, "model.vocab") * number(p.engine, "model.dim"));
    assert_true(rt_property(p.engine, "backend.level", level, sizeof level) > 0);
    assert_string_equal(level, n->level);
    program_close(&p);
}

/* A machine of 10 GB/s and a model of 1 GB: ten passes a second (unpacking adds little), until rows cost more than
 * bytes. */
static const rt_needs big = { .pass_bytes = 1000000000, .pass_parameters = 2000000000, .draft_bytes = 100000000,
                              .draft_parameters = 200000000, .draft_block = 16, .draft_passes = 1, .level = "avx2" };
static const rt_peaks machine = { .bytes_per_s = 1e10, .int8_ops_per_s = 1e12 };

static void times_follow_the_roofline(void **state)
{
    (void) state;
    Costs c, deep;
    costs_estimate(&c, &big, &machine, 0);
    assert_float_equal(costs_plain(&c), 10, 0.03);
    assert_float_equal(c.pass_ms[8], c.pass_ms[1], 1e-9);          /* 43 ms of products: bytes take longer */
    assert_float_equal(c.pass_ms[64], 1e3 * 2 * 2e9 * 64 / 0.75e12, 1e-6);
    assert_float_equal(c.draft_ms, 10, 0.03);
    rt_needs n = big;
    n.kv_bytes = 100000;
    n.layers = 20;
    costs_estimate(&deep, &n, &machine, 10000);
    assert_float_equal(deep.pass_ms[1], 200.5, 0.2);
    n.draft_passes = 3;                            /* one row each: bytes count three times */
    costs_estimate(&deep, &n, &machine, 0);
    assert_float_equal(deep.draft_ms, 30, 0.1);
    const rt_peaks fast = { .bytes_per_s = 1e12, .int8_ops_per_s = 1e12 };         /* nothing but unpacking is left */
    costs_estimate(&deep, &big, &fast, 0);
    assert_float_equal(deep.pass_ms[1], 1e3 * 2 * 2e9 / 0.6e12, 0.1);
}

/* Small models are read again and again from the caches, large ones from as much memory as was taken. */
static void memory_is_read_as_a_pass_does(void **state)
{
    (void) state;
    const size_t has = (size_t) 256 << 20, mb = (size_t) 1 << 20;
    RooflineRead r = roofline_read(0, has, 2);
    assert_true(r.span == has / 2 && r.times == 1 && !r.warm);
    r = roofline_read((uint64_t) 5 << 32, has, 2);
    assert_true(r.span == has / 2 && r.times == 1 && !r.warm);
    r = roofline_read(104 * mb, has, 2);
    assert_true(r.span == 52 * mb && r.times == 2 && r.warm);
    r = roofline_read(10 * mb + 7, has, 3);
    assert_true(r.span % 256 == 0 && r.span <= 10 * mb / 3 + 3 && r.times == 25 && r.warm);
    r = roofline_read(1000, has, 4);
    assert_true(r.span == mb && r.times == 64 && r.warm);
    r = roofline_read(1000, has, 1024);            /* more threads than megabytes */
    assert_true(r.span == has / 1024 && r.times == 1);
}

static void peaks_are_medians(void **state)
{
    (void) state;
    rt_peaks round[PEAK_ROUNDS];
    for (int32_t i = 0; i < PEAK_ROUNDS; i++) round[i] = (rt_peaks) { 45e9 + 1e6 * (i * 29 % 64), 2e12, 1e11 };
    round[7].bytes_per_s = 73e9;                   /* a burst */
    round[9] = (rt_peaks) { 5e9, 1e12, 1e10 };     /* somebody else's */
    rt_peaks p = peaks_median(round, PEAK_ROUNDS);
    assert_true(p.bytes_per_s >= 45e9 && p.bytes_per_s <= 45.064e9);
    assert_true(p.int8_ops_per_s == 2e12 && p.f32_ops_per_s == 1e11);
    p = peaks_median((const rt_peaks[]) { { 3, 1, 5 }, { 1, 4, 5 }, { 2, 9, 5 } }, 3);
    assert_true(p.bytes_per_s == 2 && p.int8_ops_per_s == 4 && p.f32_ops_per_s == 5);
    p = peaks_median(round, 0);                    /* interrupted before the first */
    assert_true(p.bytes_per_s == 0);
}

static void drafting_pays_by_what_holds(void **state)
{
    (void) state;
    Costs c;
    int32_t rows;
    costs_estimate(&c, &big, &machine, 0);
    const Reach never = reach_each(0), often = reach_each(0.8), always = reach_each(1);
    assert_float_equal(costs_drafted(&c, &never, &rows), costs_plain(&c), 1e-9);
    assert_int_equal(rows, 1);
    assert_float_equal(reach_length(&often, 3), 1 + 0.8 + 0.64, 1e-9);
    const double some = costs_drafted(&c, &often, NULL), all = costs_drafted(&c, &always, &rows);
    assert_true(some > 20 && some < all);
    assert_int_equal(rows, 16);
    assert_float_equal(all, 16 * 1e3 / (c.pass_ms[16] + c.draft_ms), 1e-6);
    const Published known = reach_published(&big);
    assert_true(costs_drafted(&c, &known.talk, NULL) < costs_drafted(&c, &known.code, NULL));
    assert_float_equal(reach_length(&known.talk, 8), 3.07, 0.05);                /* as its comment says */
    assert_float_equal(reach_length(&known.code, 16), 5.94, 0.1);
    c.draft_ms = 0;
    assert_float_equal(costs_drafted(&c, &always, NULL), costs_plain(&c), 1e-9);   /* no drafter */
}

static void measured_times_replace_estimates(void **state)
{
    (void) state;
    Costs c;
    costs_estimate(&c, &big, &machine, 0);
    costs_measured(&c, (const int32_t[]) { 1, 4, 16 }, (const double[]) { 50, 56, 104 }, 3);
    assert_float_equal(costs_plain(&c), 20, 1e-9);
    assert_float_equal(c.pass_ms[2], 52, 1e-9);
    assert_float_equal(c.pass_ms[10], 80, 1e-9);
    assert_float_equal(c.pass_ms[32], 208, 1e-9);
    costs_measured(&c, (const int32_t[]) { 1 }, (const double[]) { 40 }, 1);
    assert_float_equal(costs_plain(&c), 25, 1e-9);
}

static void words(void **state)
{
    (void) state;
    char s[24];
    assert_string_equal(rate_text(s, 2.14), "2.1");
    assert_string_equal(rate_text(s, 9.97), "10");
    assert_string_equal(memory_text(s, 19.84e9), "19.8 GB");
    assert_string_equal(memory_text(s, 512e6), "512 MB");
    assert_string_equal(memory_text(s, 1.94e6), "1.9 MB");
    assert_string_equal(memory_text(s, 2900), "3 kB");
    assert_string_equal(tokens_text(s, 32768), "32K");
    assert_string_equal(tokens_text(s, 5000), "5000");
    char more[24], gpu[MEMORY_GPU_TEXT];
    static const struct { double need, there; const char *a, *b; } pairs[] = {
        { 2.1e9, 1.1e9, "2.1 GB", "1.1 GB" }, { 1.123e9, 1.12e9, "1123 MB", "1120 MB" },
        { 1120002e3, 1120001e3, "1120002 kB", "1120001 kB" }, { 1000001, 1000000, "1000001 bytes", "1000000 bytes" },
        { 5e8, 5e8, "500 MB", "500 MB" } };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        memory_pair(s, more, pairs[i].need, pairs[i].there);
        assert_string_equal(s, pairs[i].a);
        assert_string_equal(more, pairs[i].b);
    }
    Memory m = { .needs = { .device_total = 8e9, .layers = 8, .cards = 1, .card = { { .free = 3e8 } } },
                 .gpu = { { 2e9, 0 }, { 1e9, 0 } } };
    assert_string_equal(memory_gpu_text(gpu, &m), ", on the CPU (no layer fits in the GPU's memory, 300 MB free)");
    m.needs.gpu_layers = m.needs.card[0].layers = 3;
    assert_string_equal(memory_gpu_text(gpu, &m), ", and 2.0 GB of the GPU's memory (3 of 8 layers), 300 MB free");
    m.needs.card[0].free = 1999e6;
    assert_string_equal(memory_gpu_text(gpu, &m), ", and 2000 MB of the GPU's memory (3 of 8 layers), 1999 MB free");
    m.needs.card[0].free = 0;
    assert_string_equal(memory_gpu_text(gpu, &m), ", and 2.0 GB of the GPU's memory (3 of 8 layers), an unknown amount "
                                                  "free");
    m.needs.device_total = 0;
    assert_string_equal(memory_gpu_text(gpu, &m), ", shared with the GPU (3 of 8 layers)");
    m.needs = (rt_needs) { .device_total = 9e9, .layers = 8, .gpu_layers = 7, .cards = 2,
                           .card = { { .free = 5e9, .layers = 5 },
                                     { .free = 3e9, .layers = 2, .backend = "cuda:1" } } };
    assert_string_equal(memory_gpu_text(gpu, &m), ", and 3.0 GB of 2 GPUs' memory (7 of 8 layers), 8.0 GB free");
    m.needs.card[0].layers = 0;
    m.gpu[0] = (MemoryLine) { 0 };
    assert_string_equal(memory_gpu_text(gpu, &m), ", and 1.0 GB of cuda:1's memory (7 of 8 layers), 3.0 GB free");
    m.needs = (rt_needs) { .layers = 8 };
    assert_string_equal(memory_gpu_text(gpu, &m), "");
}

int main(int argc, char **argv)
{
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_is_the_plan), cmocka_unit_test(contexts_that_fit),
        cmocka_unit_test(contexts_with_a_gpu), cmocka_unit_test(what_q8_0_would_save),
        cmocka_unit_test(a_server_takes_what_fits), cmocka_unit_test(facts_are_those_of_the_pair),
        cmocka_unit_test(times_follow_the_roofline), cmocka_unit_test(peaks_are_medians),
        cmocka_unit_test(memory_is_read_as_a_pass_does),
        cmocka_unit_test(drafting_pays_by_what_holds),
        cmocka_unit_test(measured_times_replace_estimates), cmocka_unit_test(words),
    };
    return cmocka_run_group_tests_name("estimate", tests, NULL, NULL);
}
