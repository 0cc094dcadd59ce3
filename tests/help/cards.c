#include "cards.h"
#include "gpu_driver.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *device = "card", *card_level = "cpu";
uint64_t card_memory[CARDS];
int64_t card_alloc_fails[CARDS], card_fails[CARDS];
DeviceLog *card_log[CARDS];
uint64_t expert_vram, expert_ram;

static bool there(void) { return false; }

static Status open_card(Backend **out, const char *detail, const BackendOptions *o, Error *err)
{
    static const char *const names[CARDS] = { "card:0", "card:1", "card:2", "card:3", "card:4", "card:5", "card:6",
                                              "card:7" };
    Backend *cpu;
    char *end = NULL;
    const long i = detail ? strtol(detail, &end, 10) : 0;
    *out = NULL;
    if (detail && (end == detail || *end || i < 0 || i >= CARDS))
        return (fail)(err, ST_ARG, "card: %s, expected a number", detail);
    TRY(backend_open(&cpu, card_level, o, err));
    TRY(device_backend_open(out, cpu, err));
    (*out)->name = detail ? names[i] : "card";
    DeviceLog *log = card_log[i] = device_log(*out);
    log->memory = card_memory[i];
    log->alloc_fail_in = card_alloc_fails[i];
    log->fail_in = card_fails[i];
    return ST_OK;
}

static const BackendEntry card = { .name = "card", .there = there, .open = open_card };
const BackendEntry *const backends_linked[] = { &card, NULL };

void expect_driver(void)
{
    const CudaDriver *cu;
    if (cuda_driver(&cu, NULL) != ST_OK) fail_msg("RATOON_CUDA_DRIVER: expected a driver (make run-TEST names one)");
}

FakeCuda *emulated(void)
{
    FakeCuda *fake = gpu_emulated();
    expect_driver();
    if (!fake) skip();
    return fake;
}

bool loading(void *ud, const char *what, int64_t done, int64_t total)
{
    (void) what, (void) done, (void) total;
    *(bool *) ud = true;
    return true;
}

rt_options options_of(const PublicRig *p, const RigOptions *o, int32_t gpu_layers)
{
    return RT_OPTIONS(.model = p->model, .draft = o->draft ? p->draft : o->mtp ? "mtp" : NULL, .draft_type = "keep",
                      .backend = device, .threads = 1, .gpu_layers = gpu_layers,
                      .expert_vram = gpu_layers == RT_LAYERS_NONE ? 0 : expert_vram,
                      .expert_ram = gpu_layers == RT_LAYERS_NONE ? 0 : expert_ram);
}

void tell(rt_step *st, rt_session *s, int32_t *text)
{
    rt_block b;
    for (int32_t n = 0; n < TEXT;) {
        if (rt_next(st, s, &b) != RT_OK) fail_msg("%s%s", rt_step_error(st), rt_session_error(s));
        for (int32_t i = 0; i < b.n && n < TEXT; i++) text[n++] = b.token[i];
    }
}

void open_engine(rt_engine **g, rt_session **s, rt_step **st, const rt_options *o, int32_t budget)
{
    rt_error e;
    if (rt_open(g, o, &e) != RT_OK) fail_msg("%s", e.text);
    if (rt_session_new(s, *g, &RT_SESSION_OPTIONS(.ctx = CTX), &e) != RT_OK) fail_msg("%s", e.text);
    if (rt_step_new(st, *g, &RT_STEP_OPTIONS(.budget = budget, .chunk = 40), &e) != RT_OK) fail_msg("%s", e.text);
}

void open_all(rt_engine **g, rt_session **s, rt_step **st, const rt_options *o, int32_t budget)
{
    open_engine(g, s, st, o, budget);
    assert_int_equal(rt_sampling_set(*s, &RT_SAMPLING(.temperature = 1, .top_p = 0.9f, .seed = 4)), RT_OK);
}

void run(Told *out, const rt_options *o, int32_t budget)
{
    rt_engine *g;
    rt_session *s;
    rt_step *st;
    int32_t prompt[FIRST], at[] = { FIRST / 2 };
    Dice d = { tiny_key(7, "gpu layers"), 0 };
    random_tokens(&d, FIRST, 96, prompt);
    open_all(&g, &s, &st, o, budget);
    assert_int_equal(rt_prompt(s, prompt, FIRST), RT_OK);
    assert_int_equal(rt_mark(s, at, 1), RT_OK);
    tell(st, s, out->text[0]);
    for (int32_t i = at[0]; i < FIRST; i++) prompt[i] = (prompt[i] + 1) % 96;
    out->resumable = rt_resumable(s, prompt, FIRST);
    assert_int_equal(rt_prompt(s, prompt, FIRST), RT_OK);
    tell(st, s, out->text[1]);
    const int32_t place = rt_save_place(s, CTX);
    out->image_bytes = rt_save_bytes(s, place);
    out->image = malloc(out->image_bytes + 1);
    assert_non_null(out->image);
    assert_int_equal(rt_save(st, s, place, out->image, out->image_bytes), RT_OK);
    rt_session_free(s);
    rt_step_free(st);
    rt_close(g);
}

void go_on(int32_t *text, const rt_options *o, const Told *from)
{
    rt_engine *g;
    rt_session *s;
    rt_step *st;
    const int32_t *all;
    int32_t more[CTX];
    open_all(&g, &s, &st, o, 12);
    assert_int_equal(rt_load(s, from->image, from->image_bytes), RT_OK);
    const size_t n = rt_session_text(s, &all);
    memcpy(more, all, sizeof *more * n);
    more[n] = 5;
    assert_int_equal(rt_prompt(s, more, n + 1), RT_OK);
    tell(st, s, text);
    rt_session_free(s);
    rt_step_free(st);
    rt_close(g);
}

void same_told(const Told *a, const Told *b, const char *what, int32_t n)
{
    assert_same(a->text[0], b->text[0], sizeof a->text[0], "%s: the text with %d layers on the device", what, n);
    assert_same(a->text[1], b->text[1], sizeof a->text[1], "%s: the text after going back, %d layers", what, n);
    assert_int_equal(a->resumable, b->resumable);
    assert_int_equal(a->image_bytes, b->image_bytes);
    assert_same(a->image, b->image, a->image_bytes, "%s: the image, %d layers", what, n);
}

void plan_of(rt_needs *n, const rt_options *o, const rt_session_options *so, const rt_step_options *st)
{
    rt_error e;
    if (rt_plan(o, so, st, NULL, NULL, n, sizeof *n, &e) != RT_OK) fail_msg("plan: %s", e.text);
}

void *tell_alone(void *arg)
{
    Teller *t = arg;
    rt_session *s = NULL;
    rt_step *st = NULL;
    rt_block b;
    int32_t prompt[FIRST], n = 0;
    Dice d = { tiny_key(9, "threads"), 0 };
    random_tokens(&d, FIRST, 96, prompt);
    bool going = rt_session_new(&s, t->g, &RT_SESSION_OPTIONS(.ctx = CTX), NULL) == RT_OK &&
                 rt_step_new(&st, t->g, &RT_STEP_OPTIONS(.budget = 6, .chunk = 40), NULL) == RT_OK &&
                 rt_prompt(s, prompt, FIRST) == RT_OK;
    while (going && n < TEXT) {
        going = rt_next(st, s, &b) == RT_OK;
        for (int32_t i = 0; going && i < b.n && n < TEXT; i++) t->text[n++] = b.token[i];
    }
    rt_session_free(s);
    rt_step_free(st);
    return NULL;
}

uint64_t on_device(const rt_needs *n, uint64_t sessions)
{
    return n->device_model + n->device_drafter + n->device_session * sessions + n->device_step;
}

void denoise(int32_t text[TEXTS][DENOISED], const rt_options *o, FakeCuda *fake)
{
    rt_engine *g;
    rt_session *s[TEXTS];
    rt_step *st;
    rt_error e;
    int32_t prompt[FIRST], n[TEXTS] = { 0 };
    Dice d = { tiny_key(7, "denoised"), 0 };
    random_tokens(&d, FIRST, 96, prompt);
    if (rt_open(&g, o, &e) != RT_OK) fail_msg("%s", e.text);
    if (rt_step_new(&st, g, &RT_STEP_OPTIONS(.sessions = TEXTS), &e) != RT_OK) fail_msg("%s", e.text);
    for (int32_t i = 0; i < TEXTS; i++) {
        if (rt_session_new(&s[i], g, &RT_SESSION_OPTIONS(.ctx = CTX), &e) != RT_OK) fail_msg("%s", e.text);
        assert_int_equal(rt_sampling_set(s[i], &RT_SAMPLING(.temperature = 1, .seed = 4 + (uint64_t) i)), RT_OK);
        assert_int_equal(rt_diffusion_set(s[i], &RT_DIFFUSION(.steps = 4)), RT_OK);
        assert_int_equal(rt_prompt(s[i], prompt, FIRST), RT_OK);
    }
    if (fake) fake->refused = 0;
    for (rt_block b[TEXTS]; n[0] < DENOISED || n[1] < DENOISED;) {
        if (rt_step_run(st, s, b, TEXTS) != RT_OK) fail_msg("%s", rt_step_error(st));
        for (int32_t i = 0; i < TEXTS; i++) {
            assert_int_equal(b[i].status, RT_OK);
            if (b[i].n == 0 || n[i] == DENOISED) continue;
            memcpy(text[i] + n[i], b[i].token, sizeof **text * (size_t) b[i].n);
            n[i] += (int32_t) b[i].n;
            if (fake) fake->sealed = true;
        }
    }
    if (fake) fake->sealed = false;
    if (fake) assert_int_equal(fake->refused, 0);
    for (int32_t i = 0; i < TEXTS; i++) rt_session_free(s[i]);
    rt_step_free(st);
    rt_close(g);
}
