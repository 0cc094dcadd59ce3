/* test_gpu_cards.c - a model on several devices: the text, checkpoints and images are those of the CPU however the
 * layers are divided; what each device holds is what was planned for it;
 * and what fails, fails cleanly on any of them. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cards.h"
#include "gpu_driver.h"
#include "model_helper.h"
#include "part.h"
#include "ratoon.h"

/* For what the emulated driver alone has, a second card first of all. */
static FakeCuda *emulated(void)
{
    const CudaDriver *cu;
    FakeCuda *fake = gpu_emulated();
    if (cuda_driver(&cu, NULL) != ST_OK) fail_msg("RATOON_CUDA_DRIVER: expected a driver (make run-test_gpu_cards)");
    if (!fake) skip();
    return fake;
}

static const char *property(const rt_engine *g, const char *key)
{
    static char text[64];
    return rt_property(g, key, text, sizeof text) ? text : "";
}

static int32_t layers_of(const rt_needs *n)
{
    int32_t sum = 0;
    for (int32_t k = 0; k < n->cards; k++) sum += n->card[k].layers;
    return sum;
}

/* ---- the same text ---- */

/* n of the last layers on these devices; the image goes on with n_then on other ones. first: memory of the first device
 * in hundredths of the others'; 0: as much. */
typedef struct { const char *on; int32_t n, first; const char *then; int32_t n_then; } Division;

static rt_options divided(const PublicRig *p, const RigOptions *o, const char *on, int32_t n)
{
    device = on;
    const rt_options ro = options_of(p, o, n);
    device = "card";
    return ro;
}

static void check_divisions(const RigOptions *o, const Division *list, const char *what)
{
    enum { PLENTY = 100 << 20 };
    PublicRig p;
    Told cpu;
    int32_t text[2][TEXT];
    bool told = false;
    public_files(&p, o);
    for (const Division *d = list; d->on; d++) {
        Told split;
        if (!part_runs()) continue;
        rt_options ro = divided(&p, o, "cpu", RT_LAYERS_NONE);
        if (!told) {
            run(&cpu, &ro, 12);
            go_on(text[0], &ro, &cpu);
        }
        told = true;
        for (int32_t k = 0; k < CARDS; k++)
            card_memory[k] = d->first == 0 ? 0 : k == 0 ? (uint64_t) d->first * (PLENTY / 100) : PLENTY;
        ro = divided(&p, o, d->on, d->n);
        run(&split, &ro, 12);
        same_told(&split, &cpu, what, d->n);
        ro = divided(&p, o, d->then, d->n_then);
        go_on(text[1], &ro, &split);
        assert_same(text[1], text[0], sizeof text[0], "%s: from %s to %s", what, d->on, d->then);
        free(split.image);
        if (d != list) continue;
        ro = divided(&p, o, d->on, d->n);
        run(&split, &ro, -1);                      /* a step that keeps no taps */
        assert_same(split.text, cpu.text, sizeof cpu.text, "%s: plain, %d layers on %s", what, d->n, d->on);
        free(split.image);
    }
    memset(card_memory, 0, sizeof card_memory);
    if (told) free(cpu.image);
    p.g = NULL;
    public_close(&p);
}

static void every_division(void **state)
{
    (void) state;
    RigOptions o = rig_kind(1, false);
    check_divisions(&o, (Division[]) { { "card:0+1", 3, 0, "card:1+0", 3 }, { "card:0+1+2", 1, 0, "card:0+1+2", 3 },
                                       { "card:0+1+2", 2, 0, "card:1", 2 }, { "card:1+0", 3, 50, "card:0+1", 2 },
                                       { 0 } }, "attention only");
    o = rig_with_draft(rig_kind(2, false), false);
    check_divisions(&o, (Division[]) { { "card:0+1", 4, 0, "cpu", RT_LAYERS_NONE }, { "card:0+1+2", 4, 0, "card", 3 },
                                       { "card:0+1+2", 3, 0, "card:0+1", 4 }, { "card:0+1", 3, 400, "card:0+1", 2 },
                                       { 0 } }, "with a drafter");
    o = rig_with_mtp(rig_kind(3, false));
    check_divisions(&o, (Division[]) { { "card:0+1", 4, 0, "card:0+1+2", 4 }, { "card:0+1+2", 3, 0, "card:0+1", 3 },
                                       { 0 } }, "with its own layer as drafter");
}

static RigOptions family(int32_t kind)
{
    RigOptions o = rig_kind(kind, false);
    o.tm.n_layer = kind >= 8 ? 6 : o.tm.n_layer;   /* windowed and full ones on either card */
    if (kind == 5) o = rig_with_draft(o, true);
    if (kind == 6) o = rig_with_mtp(o);
    if (kind == 7) o = rig_with_draft_kind(o, DRAFT_LAGUNA);
    return o;
}

static void every_family(void **state)
{
    (void) state;
    static const char *const what[] = { "mixture", "mixture with its own layer", "laguna", "gemma", "gemma's mixture" };
    for (int32_t i = 0; i < 5; i++) {
        const RigOptions o = family(5 + i);
        const int32_t n = o.tm.n_layer;
        check_divisions(&o, (Division[]) { { "card:0+1+2", n, 0, "card:0+1", n - 1 }, { "card:0+1", n - 1, 0, "cpu",
                                           RT_LAYERS_NONE }, { 0 } }, what[i]);
    }
}

/* Experts of the CPU's layers come from the file. */
static void experts_beside_cards(void **state)
{
    (void) state;
    RigOptions o = family(5);
    PublicRig p;
    rt_needs n;
    o.tm.n_expert = 16, o.tm.n_used = 3;
    public_files(&p, &o);
    const rt_options ro = divided(&p, &o, "card:0+1", 2);
    plan_of(&n, &ro, NULL, NULL);
    assert_true(n.expert_bytes > 0 && layers_of(&n) == 2);
    p.g = NULL;
    public_close(&p);
    expert_ram = n.expert_bytes / 4;
    check_divisions(&o, (Division[]) { { "card:0+1", 2, 0, "card:0+1", 3 }, { 0 } }, "mixture in a file");
    expert_ram = 0;
}

static void denoised(void **state)
{
    (void) state;
    static const Division list[] = { { .on = "card:0+1", .n = 3 }, { .on = "card:0+1+2", .n = 3 },
                                     { .on = "card:0+1", .n = 2 }, { .on = "cuda:0+1", .n = 3 },
                                     { .on = "cuda:0+1", .n = 2 } };
    PublicRig p;
    int32_t want[TEXTS][DENOISED], text[TEXTS][DENOISED];
    FakeCuda *fake = emulated();
    RigOptions o = rig_options(TINY_DIFFUSION, 0, false);
    o.tm.tied = false;
    public_files(&p, &o);
    rt_options ro = divided(&p, &o, "cpu", RT_LAYERS_NONE);
    denoise(want, &ro, NULL);
    fake->devices = 2;
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        ro = divided(&p, &o, list[i].on, list[i].n < o.tm.n_layer ? list[i].n : 0);
        denoise(text, &ro, fake);
        assert_same(text, want, sizeof want, "%d layers on %s", list[i].n, list[i].on);
    }
    fake->devices = 1;
    assert_int_equal(fake->live, 0);
    p.g = NULL;
    public_close(&p);
}

static void on_two_gpus(void **state)
{
    (void) state;
    FakeCuda *fake = emulated();
    RigOptions o = rig_with_draft(rig_kind(2, false), true);
    fake->devices = 2;
    fake->card_cc[1] = 86;
    check_divisions(&o, (Division[]) { { "cuda:0+1", 4, 0, "cuda:1+0", 3 }, { 0 } }, "with a drafter, cuda");
    o = family(6);
    fake->eager = true;
    check_divisions(&o, (Division[]) { { "cuda:1+0", 3, 0, "cuda:0", 4 }, { 0 } }, "mixture, cuda");
    fake->eager = false;
    fake->devices = 1;
    fake->card_cc[1] = 0;
    assert_int_equal(fake->live, 0);
}

/* ---- several sessions, several steps ---- */

enum { MANY = 3 };

/* Texts of sessions that share passes. */
static void tell_many(int32_t text[MANY][TEXT], const rt_options *o)
{
    rt_engine *g;
    rt_session *s[MANY];
    rt_step *st;
    rt_error e;
    rt_block b[MANY];
    int32_t prompt[FIRST], n[MANY] = { 0 }, least = 0;
    Dice d = { tiny_key(5, "many"), 0 };
    if (rt_open(&g, o, &e) != RT_OK) fail_msg("%s", e.text);
    if (rt_step_new(&st, g, &RT_STEP_OPTIONS(.sessions = MANY, .chunk = 40), &e) != RT_OK) fail_msg("%s", e.text);
    for (int32_t i = 0; i < MANY; i++) {
        random_tokens(&d, FIRST, 96, prompt);
        if (rt_session_new(&s[i], g, &RT_SESSION_OPTIONS(.ctx = CTX), &e) != RT_OK) fail_msg("%s", e.text);
        assert_int_equal(rt_prompt(s[i], prompt, (size_t) (FIRST - 17 * i)), RT_OK);
    }
    while (least < TEXT) {
        if (rt_step_run(st, s, b, MANY) != RT_OK) fail_msg("%s", rt_step_error(st));
        least = TEXT;
        for (int32_t i = 0; i < MANY; i++) {
            for (int32_t k = 0; k < b[i].n && n[i] < TEXT; k++) text[i][n[i]++] = b[i].token[k];
            least = n[i] < least ? n[i] : least;
        }
    }
    for (int32_t i = 0; i < MANY; i++) rt_session_free(s[i]);
    rt_step_free(st);
    rt_close(g);
}

/* Two steps, each in a thread. */
static void tell_twice(Teller t[2], const rt_options *o)
{
    rt_error e;
    pthread_t thread[2];
    rt_engine *g;
    memset(t, 0, 2 * sizeof *t);
    if (rt_open(&g, o, &e) != RT_OK) fail_msg("%s", e.text);
    for (int32_t i = 0; i < 2; i++) {
        t[i].g = g;
        assert_int_equal(pthread_create(&thread[i], NULL, tell_alone, &t[i]), 0);
    }
    for (int32_t i = 0; i < 2; i++) pthread_join(thread[i], NULL);
    rt_close(g);
}

static void many_sessions(void **state)
{
    (void) state;
    static const Division list[] = { { .on = "card:0+1", .n = 4 }, { .on = "card:0+1+2", .n = 3 },
                                     { .on = "cuda:0+1", .n = 3 } };
    FakeCuda *fake = emulated();
    const RigOptions o = rig_with_draft(rig_kind(2, false), true);
    PublicRig p;
    int32_t want[MANY][TEXT], text[MANY][TEXT];
    Teller alone[2], both[2];
    public_files(&p, &o);
    rt_options ro = divided(&p, &o, "cpu", RT_LAYERS_NONE);
    tell_many(want, &ro);
    tell_twice(alone, &ro);
    assert_same(alone[0].text, alone[1].text, sizeof alone[0].text, "two threads on the CPU");
    fake->devices = 2;
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        ro = divided(&p, &o, list[i].on, list[i].n);
        tell_many(text, &ro);
        assert_same(text, want, sizeof want, "%d sessions on %s", MANY, list[i].on);
        tell_twice(both, &ro);
        for (int32_t k = 0; k < 2; k++)
            assert_same(both[k].text, alone[k].text, sizeof both[k].text, "thread %d on %s", k, list[i].on);
    }
    fake->devices = 1;
    assert_int_equal(fake->live, 0);
    p.g = NULL;
    public_close(&p);
}

/* ---- the plan ---- */

/* The bytes of parts by the names that they have. */
typedef struct { uint64_t card[CARDS], host; const rt_needs *n; int32_t unknown; } Named;
static void note_part(void *ud, const char *owner, const char *name, size_t bytes)
{
    Named *x = ud;
    (void) owner;
    if (strncmp(name, RT_DEVICE, strlen(RT_DEVICE)) != 0) {
        x->host += bytes;
        return;
    }
    name += strlen(RT_DEVICE);
    if (strncmp(name, "card:", 5) != 0 || name[5] < '0' || name[5] > '7' || name[6] != ' ' || !name[7]) x->unknown++;
    else x->card[name[5] - '0'] += bytes;
}

static uint64_t on_card(const rt_card_needs *c) { return c->model + c->drafter + c->session + c->step; }

/* The device with the head and the drafter. */
static int32_t last_busy(const rt_needs *n)
{
    int32_t k = n->cards - 1;
    while (k > 0 && n->card[k].layers == 0) k--;
    return k;
}

/* Each device's bytes are what is allocated there, and the names say where. */
static void check_planned(const PublicRig *p, const RigOptions *o, const char *on, int32_t layers)
{
    const rt_options ro = divided(p, o, on, layers);
    const rt_session_options so = RT_SESSION_OPTIONS(.ctx = CTX);
    const rt_step_options sto = RT_STEP_OPTIONS(.budget = 12, .chunk = 40);
    rt_needs n;
    rt_error e;
    rt_engine *g;
    rt_session *s;
    rt_step *st;
    Backend *cpu;
    Error err = { 0 };
    Named named = { .n = &n };
    uint64_t sum[6] = { 0 };
    if (rt_plan(&ro, &so, &sto, note_part, &named, &n, sizeof n, &e) != RT_OK) fail_msg("%s", e.text);
    assert_int_equal(named.unknown, 0);
    assert_int_equal(named.host, n.model + n.drafter + n.session + n.step + n.process);
    open_engine(&g, &s, &st, &ro, 12);
    assert_ok(backend_open(&cpu, "cpu", &(BackendOptions) { .threads = 1 }, &err), &err);
    assert_int_equal(n.cards, (int32_t) (strlen(on) - strlen("card")) / 2);
    for (int32_t k = 0; k < n.cards; k++) {
        const rt_card_needs *c = &n.card[k];
        const int32_t i = c->backend[5] - '0';
        const uint64_t workspace = c->layers ? cpu->fork_bytes(cpu, 0) : 0;
        assert_true(strlen(c->backend) == 6 && c->backend[5] == on[5 + 2 * k]);
        if ((uint64_t) card_log[i]->live + workspace != on_card(c))
            fail_msg("%d layers on %s: %s holds %llu bytes, %llu were planned", layers, on, c->backend,
                     (unsigned long long) card_log[i]->live + workspace, (unsigned long long) on_card(c));
        assert_int_equal(named.card[i], on_card(c));
        assert_true(c->free == c->total - c->total / 64 && c->total > 0);
        assert_int_equal(c->drafter > 0, n.device_drafter > 0 && k == last_busy(&n));
        sum[0] += c->model, sum[1] += c->drafter, sum[2] += c->session, sum[3] += c->step;
        sum[4] += c->free, sum[5] += c->total;
    }
    cpu->close(cpu);
    assert_true(sum[0] == n.device_model && sum[1] == n.device_drafter && sum[2] == n.device_session &&
                sum[3] == n.device_step && sum[4] == n.device_free && sum[5] == n.device_total);
    assert_int_equal(n.gpu_layers, layers ? layers : o->tm.n_layer);
    assert_int_equal(layers_of(&n), n.gpu_layers);
    assert_int_equal(strtol(property(g, "backend.layers"), NULL, 10), n.gpu_layers);
    rt_session_free(s);
    rt_step_free(st);
    rt_close(g);
}

static void plan_is_what_each_card_holds(void **state)
{
    (void) state;
    static const char *const on[] = { "card:0+1", "card:2+0+1" };
    for (int32_t kind = 0; kind <= RIG_KINDS; kind++) {
        PublicRig p;
        const RigOptions o = kind == RIG_KINDS ? rig_options(TINY_DIFFUSION, 0, false)
                                               : rig_with_draft(rig_kind(kind, false), false);
        public_files(&p, &o);
        for (int32_t i = 0; i < 2; i++)
            for (int32_t layers = 0; layers < o.tm.n_layer; layers++)
                if (part_runs()) check_planned(&p, &o, on[i], layers);
        p.g = NULL;
        public_close(&p);
    }
}

/* ---- what fails ---- */

/* Opens everything and writes a text. Returns what went wrong first, at which everything is closed: nothing that a
 * device had is left then (device_backend.c). at: how far it came. */
static rt_status try_text(int32_t text[TEXT], int32_t *at, const rt_options *o, bool again)
{
    rt_engine *g = NULL;
    rt_session *s = NULL;
    rt_step *st = NULL;
    rt_error e = { 0 };
    rt_block b;
    int32_t prompt[FIRST], n = 0;
    Dice d = { tiny_key(11, "fails"), 0 };
    random_tokens(&d, FIRST, 96, prompt);
    rt_status code = rt_open(&g, o, &e);
    *at = 0;
    if (code == RT_OK) *at = 1, code = rt_session_new(&s, g, &RT_SESSION_OPTIONS(.ctx = CTX), &e);
    if (code == RT_OK) *at = 2, code = rt_step_new(&st, g, &RT_STEP_OPTIONS(.budget = 12, .chunk = 40), &e);
    if (code == RT_OK) *at = 3, assert_int_equal(rt_prompt(s, prompt, FIRST), RT_OK);
    while (code == RT_OK && n < TEXT) {
        code = rt_next(st, s, &b);
        if (code != RT_OK) snprintf(e.text, sizeof e.text, "%s%s", rt_step_error(st), rt_session_error(s));
        for (int32_t i = 0; code == RT_OK && i < b.n && n < TEXT; i++) text[n++] = b.token[i];
        if (code == RT_EBACKEND && again) code = RT_OK, again = false, *at = 4;
    }
    if (code != RT_OK) assert_true(strlen(e.text) > 0);
    rt_session_free(s);
    rt_step_free(st);
    rt_close(g);
    return code;
}

/* Any allocation or command of either device fails, and is reported; what is tried next works. */
static void failures_are_reported(void **state)
{
    (void) state;
    const RigOptions o = rig_with_draft(rig_kind(2, false), true);
    PublicRig p;
    int32_t want[TEXT], text[TEXT], at;
    int32_t seen[2][5] = { 0 };
    public_files(&p, &o);
    const rt_options ro = divided(&p, &o, "card:0+1", 0);
    assert_int_equal(try_text(want, &at, &ro, false), RT_OK);
    for (int32_t k = 0; k < 2; k++) {
        rt_status code = RT_ENOMEM;
        for (int64_t n = 1; code != RT_OK; n++) {
            card_alloc_fails[k] = n;
            code = try_text(text, &at, &ro, false);
            if (code != RT_OK && code != RT_ENOMEM) fail_msg("allocation %d of card %d: %d", (int) n, k, (int) code);
            assert_in_range(n, 1, 200);
            if (code != RT_OK) seen[k][at]++;
        }
        card_alloc_fails[k] = 0;
        assert_true(seen[k][0] > 0 && seen[k][1] > 0 && seen[k][2] > 0);
        code = RT_EBACKEND;
        for (int64_t n = 1; code != RT_OK || at == 4; n += 1 + n / 7) {
            card_fails[k] = n;
            code = try_text(text, &at, &ro, true);
            if (code != RT_OK && code != RT_EBACKEND) fail_msg("command %d of card %d: %d", (int) n, k, (int) code);
            if (code == RT_OK) assert_same(text, want, sizeof want, "card %d: after command %d failed", k, (int) n);
            if (code != RT_OK || at == 4) seen[k][at]++;
            assert_in_range(n, 1, 10000000);
        }
        card_fails[k] = 0;
        assert_true(seen[k][4] > 0);
    }
    assert_int_equal(try_text(text, &at, &ro, false), RT_OK);
    assert_same(text, want, sizeof want, "after all that failed");
    p.g = NULL;
    public_close(&p);
}

/* The same of the driver's calls, which serve both cards. */
static void failing_calls_are_reported(void **state)
{
    (void) state;
    FakeCuda *fake = emulated();
    const RigOptions o = rig_kind(2, false);
    PublicRig p;
    int32_t want[TEXT], text[TEXT], at;
    public_files(&p, &o);
    fake->devices = 2;
    const rt_options ro = divided(&p, &o, "cuda:0+1", 2);
    assert_int_equal(try_text(want, &at, &ro, false), RT_OK);
    for (int64_t n = 1; fake->fail_in == 0; n += 1 + n / 5) {
        const int64_t before = fake->live;
        if (!part_runs()) continue;
        fake->fail_in = n;
        const rt_status code = try_text(text, &at, &ro, true);
        if (code == RT_OK) assert_same(text, want, sizeof want, "after call %d failed", (int) n);
        if (fake->live != before)
            fail_msg("call %d failed: %d blocks and others are left", (int) n, (int) (fake->live - before));
    }
    fake->fail_in = 0;
    assert_int_equal(try_text(text, &at, &ro, false), RT_OK);
    assert_same(text, want, sizeof want, "after all that failed");
    fake->devices = 1;
    p.g = NULL;
    public_close(&p);
}

/* A pass that is cancelled between or among the devices' layers leaves both to others, and the text as it was. */
typedef struct { int32_t after, seen; } Cancel;
static bool cancel_then(void *ud, const char *what, int64_t done, int64_t total)
{
    Cancel *c = ud;
    (void) what, (void) done, (void) total;
    return c->after == 0 || ++c->seen != c->after;
}

static void check_cancelled(const PublicRig *p, const RigOptions *o, const char *on, const int32_t *want)
{
    enum { LAST = 14 };
    const rt_options ro = divided(p, o, on, 3);
    rt_engine *g;
    rt_session *s[2];
    rt_step *st[2];
    rt_error e;
    rt_block b;
    Cancel c = { 0 };
    int32_t prompt[FIRST], text[2][TEXT];
    Dice d = { tiny_key(7, "gpu layers"), 0 };
    random_tokens(&d, FIRST, 96, prompt);
    if (rt_open(&g, &ro, &e) != RT_OK) fail_msg("%s", e.text);
    for (int32_t i = 0; i < 2; i++) {
        const rt_step_options sto = RT_STEP_OPTIONS(.budget = i ? 4 : -1, .chunk = 40,
                                                    .hooks = { .ud = &c, .progress = i ? NULL : cancel_then });
        if (rt_session_new(&s[i], g, &RT_SESSION_OPTIONS(.ctx = CTX), &e) != RT_OK) fail_msg("%s", e.text);
        if (rt_step_new(&st[i], g, &sto, &e) != RT_OK) fail_msg("%s", e.text);
        assert_int_equal(rt_prompt(s[i], prompt, FIRST), RT_OK);
    }
    for (int32_t n[2] = { 0 }, after = 1; n[0] < TEXT || n[1] < TEXT; after = after % LAST + 1) {
        c = (Cancel) { .after = after };
        rt_status code = rt_next(st[0], s[0], &b);
        if (code == RT_ECANCEL) {
            c.after = 0;
            code = rt_next(st[0], s[0], &b);
        }
        if (code != RT_OK) fail_msg("%s: %s", on, rt_step_error(st[0]));
        for (int32_t i = 0; i < b.n && n[0] < TEXT; i++) text[0][n[0]++] = b.token[i];
        if (rt_next(st[1], s[1], &b) != RT_OK) fail_msg("%s: %s", on, rt_step_error(st[1]));
        for (int32_t i = 0; i < b.n && n[1] < TEXT; i++) text[1][n[1]++] = b.token[i];
    }
    for (int32_t i = 0; i < 2; i++) {
        assert_same(text[i], want, sizeof text[i], "%s: the text beside cancelled passes", on);
        rt_session_free(s[i]);
        rt_step_free(st[i]);
    }
    rt_close(g);
}

static void cancelled_between_cards(void **state)
{
    (void) state;
    FakeCuda *fake = emulated();
    const RigOptions o = rig_with_draft(rig_kind(2, false), true);
    PublicRig p;
    rt_engine *g;
    rt_session *s;
    rt_step *st;
    int32_t prompt[FIRST], want[TEXT];
    Dice d = { tiny_key(7, "gpu layers"), 0 };
    random_tokens(&d, FIRST, 96, prompt);
    public_files(&p, &o);
    const rt_options ro = divided(&p, &o, "cpu", RT_LAYERS_NONE);
    open_engine(&g, &s, &st, &ro, -1);
    assert_int_equal(rt_prompt(s, prompt, FIRST), RT_OK);
    tell(st, s, want);
    rt_session_free(s);
    rt_step_free(st);
    rt_close(g);
    fake->devices = 2;
    check_cancelled(&p, &o, "card:0+1", want);
    check_cancelled(&p, &o, "card:0+1+2", want);
    check_cancelled(&p, &o, "cuda:0+1", want);
    fake->devices = 1;
    assert_int_equal(fake->live, 0);
    p.g = NULL;
    public_close(&p);
}

/* ---- what is told ---- */

static void told_where(void **state)
{
    (void) state;
    static const struct { const char *on; int32_t n; const char *backend, *layers; } cases[] = {
        { "card:0+1", 0, "card:0+1", "4" }, { "card:1+0+5", 0, "card:1+0+5", "4" }, { "card:0+1", 2, "card:0+1", "2" },
        { "card:3", 1, "card:3", "1" }, { "card:0+1", RT_LAYERS_NONE, "cpu", "4" }, { "cuda:1+0", 3, "cuda:1+0", "3" },
    };
    FakeCuda *fake = emulated();
    const RigOptions o = rig_kind(2, false);
    PublicRig p;
    rt_engine *g;
    rt_error e;
    public_files(&p, &o);
    fake->devices = 2;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const rt_options ro = divided(&p, &o, cases[i].on, cases[i].n);
        if (rt_open(&g, &ro, &e) != RT_OK) fail_msg("%s", e.text);
        assert_string_equal(property(g, "backend"), cases[i].backend);
        assert_string_equal(property(g, "backend.layers"), cases[i].layers);
        assert_int_equal(rt_property(g, "backend", NULL, 0), strlen(cases[i].backend));
        rt_close(g);
    }
    const rt_options one = divided(&p, &o, "card:0+1", 1);         /* on either of them */
    if (rt_open(&g, &one, &e) != RT_OK) fail_msg("%s", e.text);
    assert_int_equal(strlen(property(g, "backend")), strlen("card:0"));
    assert_string_equal(property(g, "backend.layers"), "1");
    rt_close(g);
    card_memory[0] = card_memory[1] = 1 << 16;                     /* none has room */
    const rt_options automatic = divided(&p, &o, "card:0+1", RT_LAYERS_AUTO);
    if (rt_open(&g, &automatic, &e) != RT_OK) fail_msg("%s", e.text);
    assert_string_equal(property(g, "backend"), "cpu");
    rt_close(g);
    card_memory[0] = card_memory[1] = 0;
    fake->devices = 1;
    p.g = NULL;
    public_close(&p);
}

int main(int argc, char **argv)
{
    gpu_driver();
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_division), cmocka_unit_test(every_family), cmocka_unit_test(experts_beside_cards),
        cmocka_unit_test(denoised), cmocka_unit_test(on_two_gpus), cmocka_unit_test(many_sessions),
        cmocka_unit_test(plan_is_what_each_card_holds),
        cmocka_unit_test(failures_are_reported),
        cmocka_unit_test(failing_calls_are_reported), cmocka_unit_test(cancelled_between_cards),
        cmocka_unit_test(told_where),
    };
    return cmocka_run_group_tests_name("gpu_cards", tests, NULL, NULL);
}
