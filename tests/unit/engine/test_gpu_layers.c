/* test_gpu_layers.c - a model whose last layers run on a device: the text, checkpoints and images are those of the CPU
 * for every number of layers, and of experts of which its memory holds only some; and both follow from the device's
 * memory, before anything is loaded. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "cards.h"
#include "gpu_driver.h"
#include "model_helper.h"
#include "part.h"
#include "ratoon.h"

static int32_t number(const rt_engine *g, const char *key)
{
    char text[32];
    return rt_property(g, key, text, sizeof text) ? (int32_t) strtol(text, NULL, 10) : -1;
}

/* ---- the same text ---- */

/* With `most` layers on the device, then `by` fewer, and so on. */
static void check_texts(const RigOptions *o, int32_t most, int32_t by, const char *what)
{
    PublicRig p;
    Told cpu, plain;
    int32_t text[2][TEXT];
    public_files(&p, o);
    rt_options ro = options_of(&p, o, RT_LAYERS_NONE);
    run(&plain, &ro, -1);
    run(&cpu, &ro, 12);
    assert_same(cpu.text, plain.text, sizeof plain.text, "%s: speculation on the CPU", what);
    go_on(text[0], &ro, &cpu);
    for (int32_t n = most; n > 0; n -= by) {
        Told split;
        ro = options_of(&p, o, n);
        run(&split, &ro, 12);
        same_told(&split, &cpu, what, n);
        free(split.image);
        run(&split, &ro, -1);                      /* a step that keeps no taps */
        assert_same(split.text, cpu.text, sizeof cpu.text, "%s: plain, %d layers", what, n);
        ro = options_of(&p, o, n <= by ? RT_LAYERS_NONE : n - by);         /* where it is loaded, another number */
        go_on(text[1], &ro, &split);
        assert_same(text[1], text[0], sizeof text[0], "%s: what follows an image, %d layers", what, n);
        free(split.image);
    }
    free(cpu.image);
    free(plain.image);
    p.g = NULL;
    public_close(&p);
}

static void every_number_of_layers(void **state)
{
    (void) state;
    RigOptions o = rig_kind(1, false);
    check_texts(&o, o.tm.n_layer, 1, "attention only");
    o = rig_with_draft(rig_kind(2, false), true);
    check_texts(&o, o.tm.n_layer, 1, "with a drafter");
    o = rig_with_mtp(rig_kind(3, false));
    check_texts(&o, o.tm.n_layer, 1, "with its own layer as drafter");
}

/* The same with the CUDA backend on the driver that RATOON_CUDA_DRIVER names: recorded passes, staging, widths. */
static void on_a_gpu(void **state)
{
    (void) state;
    expect_driver();
    device = "cuda";
    RigOptions o = rig_with_draft(rig_kind(2, false), true);
    check_texts(&o, 2, 2, "with a drafter, cuda");
    o = rig_with_mtp(rig_kind(3, false));
    check_texts(&o, o.tm.n_layer - 1, 8, "with its own layer as drafter, cuda");
    device = "card";
}

/* ---- writing by denoising ---- */

/* The blocks are the CPU's, on a device and on the emulated GPU. */
static void denoised(void **state)
{
    (void) state;
    PublicRig p;
    int32_t want[TEXTS][DENOISED], text[TEXTS][DENOISED];
    FakeCuda *fake = emulated();
    RigOptions o = rig_options(TINY_DIFFUSION, 0, false);
    o.tm.tied = false;                             /* the last stage reads the embedding all the same */
    public_files(&p, &o);
    rt_options ro = options_of(&p, &o, RT_LAYERS_NONE);
    denoise(want, &ro, fake);
    for (int32_t n = o.tm.n_layer; n > 0; n--) {
        ro = options_of(&p, &o, n);
        denoise(text, &ro, fake);
        assert_same(text, want, sizeof want, "%d layers on a device", n);
    }
    device = "cuda";
    for (int32_t n = o.tm.n_layer; n > 0; n -= o.tm.n_layer / 2) {
        ro = options_of(&p, &o, n);
        denoise(text, &ro, fake);
        assert_same(text, want, sizeof want, "%d layers on a GPU", n);
    }
    device = "card";
    p.g = NULL;
    public_close(&p);
}

/* ---- experts in main memory ---- */

/* Qwen3 with a drafter, Qwen3.5 with its own layer, Laguna with a drafter; 16 experts of a layer. */
enum { MIXTURES = 3 };
static RigOptions mixture(int32_t i)
{
    RigOptions o = rig_kind(5 + i, false);
    o.tm.n_expert = 16;
    o.tm.n_used = 3;
    return i == 1 ? rig_with_mtp(o) : rig_with_draft(o, i == 0);
}

/* Bytes of all experts of so many layers on the device, as they lie in slots. */
static uint64_t slots_of(const RigOptions *o, int32_t layers)
{
    PublicRig p;
    rt_needs n;
    public_files(&p, o);
    expert_vram = 1 << 16;
    const rt_options ro = options_of(&p, o, layers);
    plan_of(&n, &ro, NULL, NULL);
    p.g = NULL;
    public_close(&p);
    assert_true(n.expert_vram > 0 && n.expert_vram <= expert_vram);
    assert_true(n.expert_host > n.expert_vram && n.model >= n.expert_host);
    return n.expert_host;
}

/* Two layers on the device and one on the CPU: each has its own slots, main memory has some of both, and what is
 * counted is of both. */
static void check_both_stores(const RigOptions *o)
{
    PublicRig p;
    rt_needs n;
    rt_error e;
    rt_engine *g;
    rt_session *s;
    rt_step *st;
    rt_expert_stats stats;
    int32_t text[TEXT], prompt[] = { 5 };
    public_files(&p, o);
    const rt_options ro = options_of(&p, o, 2);
    char *path = p.draft;                          /* of counts */
    plan_of(&n, &ro, NULL, NULL);
    assert_true(n.gpu_layers == 2 && n.expert_ram > 0 && n.expert_ram <= expert_ram);
    assert_true(n.expert_vram <= expert_vram && n.expert_host > n.expert_vram && n.expert_host < n.expert_ram);
    open_all(&g, &s, &st, &ro, 4);
    assert_int_equal(rt_prompt(s, prompt, 1), RT_OK);
    tell(st, s, text);
    rt_expert_stats_get(g, &stats, sizeof stats);
    assert_int_equal(stats.bytes, n.expert_ram + n.expert_vram);
    assert_true(stats.misses > 0 && stats.bus_hits > 0 && strcmp(stats.io, "bus") != 0);
    rt_session_free(s);
    rt_step_free(st);
    snprintf(path, sizeof p.draft, "%s/counts.csv", p.dir);
    if (rt_experts_save(g, path, &e) != RT_OK) fail_msg("%s", e.text);
    Hotness h;
    Error err = { 0 };
    uint64_t sum = 0;
    const HotnessModel of = model_hotness(g->model, g->model_file);
    assert_ok(hotness_read(&h, path, &of, &err), &err);
    for (int32_t il = 0; il < of.layers; il++) {
        uint64_t layer = 0;
        for (int32_t x = 0; x < of.experts; x++) layer += h.count[il * of.experts + x];
        assert_true(layer > 0);
        sum += layer;
    }
    assert_int_equal(sum, stats.chosen);
    hotness_free(&h);
    rt_close(g);
    p.g = NULL;
    public_close(&p);
}

/* Slots for all experts but a few, for half, for few; the same where main memory has no room for all; and a model on
 * both. */
static void mixtures_on_a_gpu(void **state)
{
    (void) state;
    FakeCuda *fake = emulated();
    device = "cuda";
    for (int32_t i = 0; i < MIXTURES; i++) {
        const RigOptions o = mixture(i);
        const uint64_t all = slots_of(&o, o.tm.n_layer), of_all[] = { all / 2, all / 8, all - all / 16 };
        fake->eager = i % 2;
        expert_vram = of_all[i];
        if (part_runs()) check_texts(&o, o.tm.n_layer, o.tm.n_layer, "mixture");
        expert_ram = all * 7 / 8;
        if (i == 1 && part_runs()) check_texts(&o, o.tm.n_layer, o.tm.n_layer, "mixture in a file");
        expert_ram = 0;
    }
    const RigOptions both = mixture(0);
    expert_vram = slots_of(&both, 2) / 4;
    expert_ram = 4 * expert_vram * 121 / 100;      /* nearly all of what a CPU and a device need */
    check_both_stores(&both);
    if (part_runs()) check_texts(&both, 2, 2, "mixture on both");
    fake->eager = false;
    expert_vram = expert_ram = 0;
    device = "card";
}

/* What is planned is what is taken; decoding takes nothing, and experts move meanwhile. */
static void check_planned(bool from_file)
{
    enum { RECORDS = 256 * (256 << 10) };          /* the plan's share for recorded passes, which the driver keeps */
    FakeCuda *fake = emulated();
    const RigOptions o = mixture(0);
    const rt_session_options so = RT_SESSION_OPTIONS(.ctx = CTX);
    const rt_step_options sto = RT_STEP_OPTIONS(.budget = 12, .chunk = 40);
    PublicRig p;
    rt_needs n;
    rt_engine *g;
    rt_session *s;
    rt_step *st;
    rt_expert_stats stats;
    int32_t prompt[FIRST];
    rt_block b;
    Dice d = { tiny_key(7, "experts"), 0 };
    device = "cuda";
    expert_vram = slots_of(&o, o.tm.n_layer) / 3;
    expert_ram = from_file ? expert_vram * 3 * 7 / 8 : 0;
    public_files(&p, &o);
    const rt_options ro = options_of(&p, &o, 0);
    plan_of(&n, &ro, &so, &sto);
    assert_int_equal(n.expert_ram > 0, from_file);
    assert_true(n.expert_ram <= expert_ram && n.expert_ram <= n.expert_host);
    assert_int_equal(fake->live, 0);
    open_all(&g, &s, &st, &ro, 12);
    assert_int_equal(fake->device_bytes + RECORDS, n.device_model + n.device_drafter + n.device_session +
                                                   n.device_step);
    /* besides the backend's staging and the step's, which also has addresses */
    assert_in_range(fake->host_bytes - 2 * ((int64_t) 32 << 20), n.expert_host, n.expert_host + (from_file ? 256 : 0));
    random_tokens(&d, FIRST, 96, prompt);
    assert_int_equal(rt_prompt(s, prompt, FIRST), RT_OK);
    for (int32_t i = 0; i < 4; i++) assert_int_equal(rt_next(st, s, &b), RT_OK);
    fake->refused = 0;
    fake->sealed = true;
    for (int32_t i = 0; i < 20; i++) assert_int_equal(rt_next(st, s, &b), RT_OK);
    fake->sealed = false;
    assert_int_equal(fake->refused, 0);
    rt_expert_stats_get(g, &stats, sizeof stats);
    assert_true(stats.slots > 0 && stats.bytes == (int64_t) (n.expert_vram + n.expert_ram));
    assert_int_equal(strcmp(stats.io, "bus") == 0, n.expert_ram == 0);
    assert_int_equal(stats.misses > 0, n.expert_ram > 0);
    assert_true(stats.bus_hits > 0 && stats.pinned_hits + stats.ring_hits > 0 && stats.evicted > 0);
    rt_session_free(s);
    rt_step_free(st);
    rt_close(g);
    assert_int_equal(fake->live, 0);
    expert_vram = expert_ram = 0;
    device = "card";
    p.g = NULL;
    public_close(&p);
}

static void experts_are_planned(void **state)
{
    (void) state;
    check_planned(false);
    check_planned(true);
}

/* Two steps in two threads share slots and table. */
static void check_two_threads(bool from_file)
{
    enum { THREADS = 2 };
    FakeCuda *fake = emulated();
    const RigOptions o = mixture(0);
    PublicRig p;
    rt_error e;
    Teller cpu, on[THREADS];
    pthread_t thread[THREADS];
    device = "cuda";
    expert_vram = slots_of(&o, o.tm.n_layer) / 3;
    expert_ram = from_file ? expert_vram * 3 * 7 / 8 : 0;
    public_files(&p, &o);
    rt_options ro = options_of(&p, &o, RT_LAYERS_NONE);
    memset(&cpu, 0, sizeof cpu);
    if (rt_open(&cpu.g, &ro, &e) != RT_OK) fail_msg("%s", e.text);
    tell_alone(&cpu);
    rt_close(cpu.g);
    ro = options_of(&p, &o, 0);
    fake->eager = true;
    if (rt_open(&on[0].g, &ro, &e) != RT_OK) fail_msg("%s", e.text);
    for (int32_t i = 0; i < THREADS; i++) {
        on[i] = (Teller) { .g = on[0].g };
        assert_int_equal(pthread_create(&thread[i], NULL, tell_alone, &on[i]), 0);
    }
    for (int32_t i = 0; i < THREADS; i++) pthread_join(thread[i], NULL);
    rt_close(on[0].g);
    fake->eager = false;
    for (int32_t i = 0; i < THREADS; i++)
        assert_same(on[i].text, cpu.text, sizeof cpu.text, "the text of thread %d", i);
    expert_vram = expert_ram = 0;
    device = "card";
    p.g = NULL;
    public_close(&p);
}

static void experts_in_two_threads(void **state)
{
    (void) state;
    check_two_threads(false);
    check_two_threads(true);
}

/* Leaves this process so much more main memory than it has; 0: whatever there is. */
static void limit_main(uint64_t left)
{
    struct rlimit r;
    unsigned long long kb = 0;
    char line[128];
    FILE *f = fopen("/proc/self/status", "re");
    assert_non_null(f);
    while (kb == 0 && fgets(line, sizeof line, f)) sscanf(line, "VmSize: %llu", &kb);
    fclose(f);
    assert_true(kb > 0);
    assert_int_equal(getrlimit(RLIMIT_AS, &r), 0);
    r.rlim_cur = left ? (rlim_t) (kb * 1024 + left) : r.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_AS, &r), 0);
}

/* Main memory has room for a part of the experts that the device has no room for: the others are read from the file.
 * How much of what is left opening takes for itself is not known, so it is tried from too little to enough. */
static void check_main_memory(const PublicRig *p, const RigOptions *o, const rt_needs *whole)
{
    const rt_session_options so = RT_SESSION_OPTIONS(.ctx = 64, .checkpoints = -1);
    rt_options ro = options_of(p, o, 0);
    rt_needs all, n = { .expert_ram = 1 };
    uint64_t before = 0;
    int32_t parts = 0;
#ifdef __SANITIZE_ADDRESS__
    printf("skipped: the sanitizer ends a process that has no memory\n");
    return;
#endif
    ro.expert_vram = whole->expert_bytes / 4;
    plan_of(&all, &ro, &so, NULL);
    assert_true(all.expert_ram == 0 && all.expert_host > whole->expert_bytes);
    ro.expert_ram = RT_EXPERTS_AUTO;
    for (uint64_t left = 64 << 20; n.expert_ram > 0 || parts == 0; left += whole->expert_bytes / 16) {
        rt_error e;
        assert_true(left < (uint64_t) 1 << 30);
        limit_main(left);
        const rt_status st = rt_plan(&ro, &so, NULL, NULL, NULL, &n, sizeof n, &e);
        limit_main(0);
        if (st != RT_OK) continue;
        assert_true(n.gpu_layers == 4 && n.expert_vram == all.expert_vram);
        assert_true(n.expert_ram > 0 ? n.expert_ram == n.expert_host && n.expert_host < all.expert_host
                                     : n.expert_host == all.expert_host);
        assert_true(n.expert_ram == 0 || n.expert_ram >= before);
        parts += n.expert_ram > before;
        before = n.expert_ram;
    }
    assert_true(parts >= 3);
}

/* All layers run on the device as long as a sixteenth of the experts has room there; then as many as do. */
static void as_many_experts_as_fit(void **state)
{
    (void) state;
    FakeCuda *fake = emulated();
    RigOptions o = mixture(0);
    PublicRig p;
    rt_needs whole, n;
    rt_error e;
    rt_engine *g;
    device = "cuda";
    expert_vram = 0;
    o.tm.hidden = 256, o.tm.ff_expert = 256, o.tm.n_layer = 4, o.draft = false;
    public_files(&p, &o);
    rt_options ro = options_of(&p, &o, 0);
    const rt_session_options so = RT_SESSION_OPTIONS(.ctx = 64, .checkpoints = -1);
    plan_of(&whole, &ro, &so, NULL);
    assert_true(whole.expert_vram == 0 && whole.expert_host == 0);
    for (int32_t layers = 0; layers >= RT_LAYERS_AUTO; layers--) {
        ro = options_of(&p, &o, layers);
        ro.expert_vram = RT_EXPERTS_AUTO;
        fake->memory = 0;
        plan_of(&n, &ro, &so, NULL);
        assert_true(n.gpu_layers == 4 && n.expert_vram == 0 && on_device(&n, 1) == on_device(&whole, 1));
        fake->memory = (int64_t) (on_device(&whole, 1) - whole.expert_bytes / 2);
        plan_of(&n, &ro, &so, NULL);
        assert_int_equal(n.gpu_layers, 4);
        assert_in_range(n.expert_vram, whole.expert_bytes / 8, whole.expert_bytes / 2);
        assert_in_range(n.expert_host, whole.expert_bytes, whole.expert_bytes * 5 / 4);
        assert_true(on_device(&n, 1) <= (uint64_t) fake->memory);
        fake->memory = (int64_t) (on_device(&whole, 1) - whole.expert_bytes);
        if (layers == RT_LAYERS_AUTO) {
            plan_of(&n, &ro, &so, NULL);
            assert_in_range(n.gpu_layers, 0, 3);
        }
    }
    ro = options_of(&p, &o, 0);
    ro.expert_vram = RT_EXPERTS_AUTO;
    fake->memory = (int64_t) (on_device(&whole, 1) - whole.expert_bytes);
    assert_int_equal(rt_open(&g, &ro, &e), RT_ENOMEM);
    assert_non_null(strstr(e.text, "gpu_layers: 4 of 4 layers take "));
    assert_non_null(strstr(e.text, " GB are free on cuda"));
    fake->memory = 0;
    check_main_memory(&p, &o, &whole);
    ro.expert_vram = 4096;
    assert_int_equal(rt_open(&g, &ro, &e), RT_EARG);
    assert_non_null(strstr(e.text, "expert_vram: 4096 bytes, expected at least "));
    expert_vram = 0;
    device = "card";
    p.g = NULL;
    public_close(&p);
}

/* ---- how many layers ---- */

/* A card that has what was planned for so many sessions has room for all of them, although it hands out pages. */
static void every_planned_session_opens(void **state)
{
    (void) state;
    enum { SESSIONS = 5, RECORDS = 256 * (256 << 10) };        /* those are taken when passes are recorded */
    FakeCuda *fake = emulated();
    const RigOptions o = rig_kind(2, false);
    const rt_session_options so = RT_SESSION_OPTIONS(.ctx = 30000, .ngram = -1);
    PublicRig p;
    rt_needs n;
    rt_error e;
    rt_engine *g;
    rt_step *st;
    rt_session *s[SESSIONS + 1];
    device = "cuda";
    public_files(&p, &o);
    const rt_options ro = options_of(&p, &o, 0);
    const rt_step_options sto = RT_STEP_OPTIONS(.sessions = SESSIONS);
    plan_of(&n, &ro, &so, &sto);
    fake->memory = (int64_t) on_device(&n, SESSIONS) - RECORDS;
    if (rt_open(&g, &ro, &e) != RT_OK || rt_step_new(&st, g, &sto, &e) != RT_OK) fail_msg("%s", e.text);
    for (int32_t i = 0; i < SESSIONS; i++)
        if (rt_session_new(&s[i], g, &so, &e) != RT_OK) fail_msg("session %d: %s", i, e.text);
    assert_int_equal(fake->device_bytes, fake->memory);
    assert_int_equal(rt_session_new(&s[SESSIONS], g, &so, &e), RT_ENOMEM);
    for (int32_t i = 0; i < SESSIONS; i++) rt_session_free(s[i]);
    rt_step_free(st);
    rt_close(g);
    fake->memory = 0;
    device = "card";
    p.g = NULL;
    public_close(&p);
}

static uint64_t in_main(const rt_needs *n) { return n->model + n->drafter + n->session + n->step; }

/* A card whose memory is the host's: all is counted there, and there has to be room for all of it. */
static void memory_that_is_shared(void **state)
{
    (void) state;
    FakeCuda *fake = emulated();
    const RigOptions o = rig_kind(2, false);
    const rt_session_options so = RT_SESSION_OPTIONS(.ctx = 64, .checkpoints = -1, .ngram = -1);
    PublicRig p;
    rt_needs own, n;
    rt_error e;
    rt_engine *g;
    device = "cuda";
    public_files(&p, &o);
    for (int32_t layers = 0; layers < 2; layers++) {
        const rt_options ro = options_of(&p, &o, layers);
        fake->integrated = false;
        plan_of(&own, &ro, &so, NULL);
        fake->integrated = true;
        plan_of(&n, &ro, &so, NULL);
        assert_true(on_device(&own, 1) > 0 && own.device_free > 0);
        assert_int_equal(on_device(&n, 1), 0);
        assert_int_equal(in_main(&n), in_main(&own) + on_device(&own, 1));
        assert_true(n.gpu_layers == own.gpu_layers && n.device_free == 0 && n.device_total == 0);
    }
#ifdef __SANITIZE_ADDRESS__
    printf("skipped: the sanitizer ends a process that has no memory\n");
#else
    const rt_options all = options_of(&p, &o, 0), automatic = options_of(&p, &o, RT_LAYERS_AUTO);
    plan_of(&n, &automatic, &so, NULL);
    assert_int_equal(n.gpu_layers, o.tm.n_layer);
    limit_main(in_main(&n) / 2);
    const rt_status planned = rt_plan(&automatic, &so, NULL, NULL, NULL, &n, sizeof n, &e);
    const rt_status opened = rt_open(&g, &all, &e);
    limit_main(0);
    assert_int_equal(planned, RT_OK);
    assert_int_equal(n.gpu_layers, 0);
    assert_int_equal(opened, RT_ENOMEM);
    if (!strstr(e.text, " layers on a device that shares main memory take ")) fail_msg("%s", e.text);
#endif
    fake->integrated = false;
    device = "card";
    p.g = NULL;
    public_close(&p);
}

/* The least memory of a device that has room for this many bytes and the margin, a 64th. */
static uint64_t just_enough(uint64_t bytes)
{
    uint64_t n = bytes;
    while (n - n / 64 < bytes) n++;
    return n;
}

/* auto is the most that fits with the margin, for the sessions that are asked for, down to a byte. */
static void as_many_as_fit(void **state)
{
    (void) state;
    PublicRig p;
    RigOptions o = rig_with_draft(rig_kind(2, false), false);
    const rt_session_options so = RT_SESSION_OPTIONS(.ctx = 200);
    const rt_step_options st = RT_STEP_OPTIONS(.sessions = 3);
    rt_needs n, all;
    public_files(&p, &o);
    const rt_options automatic = options_of(&p, &o, RT_LAYERS_AUTO), every = options_of(&p, &o, 0),
                     none = options_of(&p, &o, RT_LAYERS_NONE);
    plan_of(&all, &every, &so, &st);
    assert_int_equal(all.gpu_layers, o.tm.n_layer);
    assert_true(all.model == 0 && all.drafter == 0 && all.device_model > 0 && all.device_drafter > 0);
    assert_true(all.device_total > 0 && all.device_free == all.device_total - all.device_total / 64);
    for (int32_t layers = 1; layers <= o.tm.n_layer; layers++) {
        const rt_options some = options_of(&p, &o, layers);
        card_memory[0] = 0;
        plan_of(&n, &some, &so, &st);
        assert_int_equal(n.gpu_layers, layers);
        assert_int_equal(n.model == 0, layers == o.tm.n_layer);
        card_memory[0] = just_enough(on_device(&n, 3));
        plan_of(&n, &automatic, &so, &st);
        assert_int_equal(n.gpu_layers, layers);
        card_memory[0]--;
        plan_of(&n, &automatic, &so, &st);
        assert_int_equal(n.gpu_layers, layers - 1);
        assert_int_equal(n.device_model == 0, layers == 1);        /* not one fits: the CPU runs everything */
    }
    card_memory[0] = 0;
    plan_of(&n, &automatic, &so, &st);
    assert_int_equal(n.gpu_layers, o.tm.n_layer);
    plan_of(&n, &none, &so, &st);
    assert_true(n.gpu_layers == 0 && n.device_total == 0 && n.model > 0);
    p.g = NULL;
    public_close(&p);
}

static void note_device(void *ud, const char *owner, const char *name, size_t bytes)
{
    (void) owner;
    if (strncmp(name, RT_DEVICE, strlen(RT_DEVICE)) == 0) *(uint64_t *) ud += bytes;
}

/* The plan's bytes of the device are what is allocated there. */
static void plan_is_what_the_device_holds(void **state)
{
    (void) state;
    for (int32_t kind = 0; kind <= RIG_KINDS; kind += 2) {
        PublicRig p;
        const RigOptions o = kind == RIG_KINDS ? rig_options(TINY_DIFFUSION, 0, false)
                                               : rig_with_draft(rig_kind(kind, false), false);
        public_files(&p, &o);
        for (int32_t layers = 0; layers < o.tm.n_layer; layers++) {
            const rt_options ro = options_of(&p, &o, layers);
            const rt_session_options so = RT_SESSION_OPTIONS(.ctx = CTX);
            const rt_step_options sto = RT_STEP_OPTIONS(.budget = 12, .chunk = 40);
            rt_needs n;
            rt_error e;
            rt_engine *g;
            rt_session *s;
            rt_step *st;
            Backend *cpu;
            Error err = { 0 };
            uint64_t parts = 0;
            if (rt_plan(&ro, &so, &sto, note_device, &parts, &n, sizeof n, &e) != RT_OK) fail_msg("%s", e.text);
            assert_int_equal(parts, on_device(&n, 1));
            open_engine(&g, &s, &st, &ro, 12);
            assert_int_equal(number(g, "backend.layers"), n.gpu_layers);
            assert_ok(backend_open(&cpu, "cpu", &(BackendOptions) { .threads = 1 }, &err), &err);
            assert_int_equal((uint64_t) card_log[0]->live + cpu->fork_bytes(cpu, 0), on_device(&n, 1));
            cpu->close(cpu);
            rt_session_free(s);
            rt_step_free(st);
            rt_close(g);
        }
        p.g = NULL;
        public_close(&p);
    }
}

/* The device has a copy of the embedding only where a drafter reads it there, or the head is the same matrix. */
static void embedding_where_it_is_read(void **state)
{
    (void) state;
    for (int32_t tied = 0; tied < 2; tied++) {
        PublicRig p;
        RigOptions o = rig_with_draft(rig_kind(1, false), false);
        o.tm.tied = tied;
        public_files(&p, &o);
        rt_needs with, without;
        rt_options ro = options_of(&p, &o, 1);
        plan_of(&with, &ro, NULL, NULL);
        ro.draft = NULL;
        plan_of(&without, &ro, NULL, NULL);
        const uint64_t more = with.device_model - without.device_model;
        if (tied) assert_int_equal(more, 0);
        else assert_true(more >= (uint64_t) (o.tm.vocab * o.tm.hidden));       /* a byte or more for each value */
        p.g = NULL;
        public_close(&p);
    }
}

/* Too little is refused before the first weight is read, with a number of layers that then opens. */
static void too_little_is_refused(void **state)
{
    (void) state;
    PublicRig p;
    RigOptions o = rig_kind(2, false);
    rt_needs n;
    rt_error e;
    rt_engine *g;
    bool began = false;
    char want[64];
    o.tm.hidden = 256, o.tm.ff = 1024, o.tm.n_layer = 8;
    public_files(&p, &o);
    rt_options ro = options_of(&p, &o, 0);
    plan_of(&n, &ro, &RT_SESSION_OPTIONS(.ctx = 64, .checkpoints = -1), NULL);
    card_memory[0] = on_device(&n, 1);
    ro.hooks = (rt_hooks) { .ud = &began, .progress = loading };
    if (rt_open(&g, &ro, &e) != RT_OK) fail_msg("%s", e.text);
    rt_close(g);
    card_memory[0]--;
    began = false;
    assert_int_equal(rt_open(&g, &ro, &e), RT_ENOMEM);
    assert_null(g);
    assert_false(began);
    assert_non_null(strstr(e.text, "gpu_layers: 8 of 8 layers take "));
    assert_non_null(strstr(e.text, " GB of device memory, but "));
    const rt_options automatic = options_of(&p, &o, RT_LAYERS_AUTO);
    plan_of(&n, &automatic, NULL, NULL);
    assert_in_range(n.gpu_layers, 1, 7);
    snprintf(want, sizeof want, "; %d would fit", n.gpu_layers);
    assert_string_equal(e.text + strlen(e.text) - strlen(want), want);
    ro.gpu_layers = n.gpu_layers;
    if (rt_open(&g, &ro, &e) != RT_OK) fail_msg("%s", e.text);
    rt_close(g);
    ro.gpu_layers = 0;
    ro.overcommit = true;
    if (rt_open(&g, &ro, &e) != RT_OK) fail_msg("%s", e.text);
    rt_close(g);
    card_memory[0] = 1;
    ro.overcommit = false;
    assert_int_equal(rt_open(&g, &ro, &e), RT_ENOMEM);
    if (!strstr(e.text, "nothing would fit")) fail_msg("%s", e.text);
    ro.gpu_layers = -3;
    assert_int_equal(rt_open(&g, &ro, &e), RT_EARG);
    assert_string_equal(e.text, "gpu_layers: -3, expected a number of layers (0: all, -1: as many as fit, -2: none)");
    card_memory[0] = 0;
    p.g = NULL;
    public_close(&p);
}

/* A step that is cancelled among the CPU's layers leaves nothing behind on the card for which another step would wait:
 * what a drafter had not read yet was queued there before. */
static void cancelled_before_the_card(void **state)
{
    (void) state;
    enum { STEPS = 40, PATIENCE = 300 };
    const RigOptions o = mixture(0);
    PublicRig p;
    rt_error e;
    rt_engine *g;
    rt_session *s[2];
    rt_step *st[2];
    rt_block b;
    int32_t prompt[FIRST];
    Dice d = { tiny_key(7, "cancelled"), 0 };
    random_tokens(&d, FIRST, 96, prompt);
    device = "cuda";
    expert_vram = slots_of(&o, 2) / 4;
    expert_ram = 4 * expert_vram * 121 / 100;
    public_files(&p, &o);
    const rt_options ro = options_of(&p, &o, 2);
    open_engine(&g, &s[0], &st[0], &ro, -1);
    if (rt_session_new(&s[1], g, &RT_SESSION_OPTIONS(.ctx = CTX), &e) != RT_OK) fail_msg("%s", e.text);
    if (rt_step_new(&st[1], g, &RT_STEP_OPTIONS(.budget = 4, .chunk = 40), &e) != RT_OK) fail_msg("%s", e.text);
    for (int32_t i = 0; i < 2; i++) assert_int_equal(rt_prompt(s[i], prompt, FIRST), RT_OK);
    alarm(PATIENCE);                               /* instead of waiting for ever */
    for (int32_t i = 0; i < STEPS; i++) {
        for (int32_t k = 0; k < 2; k++)
            if (rt_next(st[k], s[k], &b) != RT_OK) fail_msg("step %d: %s", k, rt_step_error(st[k]));
        rt_step_cancel(st[0]);
        assert_int_equal(rt_next(st[0], s[0], &b), RT_ECANCEL);
    }
    alarm(0);
    for (int32_t k = 0; k < 2; k++) {
        rt_session_free(s[k]);
        rt_step_free(st[k]);
    }
    rt_close(g);
    public_close(&p);
    expert_vram = expert_ram = 0;
    device = "card";
}

int main(int argc, char **argv)
{
    gpu_driver();
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_number_of_layers), cmocka_unit_test(on_a_gpu), cmocka_unit_test(denoised),
        cmocka_unit_test(mixtures_on_a_gpu), cmocka_unit_test(experts_are_planned),
        cmocka_unit_test(cancelled_before_the_card), cmocka_unit_test(experts_in_two_threads),
        cmocka_unit_test(as_many_experts_as_fit), cmocka_unit_test(memory_that_is_shared),
        cmocka_unit_test(every_planned_session_opens), cmocka_unit_test(as_many_as_fit),
        cmocka_unit_test(plan_is_what_the_device_holds),
        cmocka_unit_test(embedding_where_it_is_read), cmocka_unit_test(too_little_is_refused),
    };
    return cmocka_run_group_tests_name("gpu_layers", tests, NULL, NULL);
}
