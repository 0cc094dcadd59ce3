/* test_gpu_cards.c - a model on several devices: the text, checkpoints and images are those of the CPU however the
 * layers are divided; what each device holds is what was planned for it; the division leaves none fuller than need be;
 * and what fails, fails cleanly on any of them. */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cards.h"
#include "gpu_driver.h"
#include "model_helper.h"
#include "part.h"
#include "ratoon.h"
#include "ratoon_lab.h"

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

/* The same of two GPUs, whose driver hands out pages. */
static void plan_is_what_gpus_hold(void **state)
{
    (void) state;
    enum { RECORDS = 256 * (256 << 10) };          /* those are taken when passes are recorded */
    FakeCuda *fake = emulated();
    const RigOptions o = rig_with_draft(rig_kind(2, false), false);
    PublicRig p;
    rt_needs n;
    rt_engine *g;
    rt_session *s;
    rt_step *st;
    public_files(&p, &o);
    fake->devices = 2;
    const rt_options ro = divided(&p, &o, "cuda:1+0", 0);
    plan_of(&n, &ro, &RT_SESSION_OPTIONS(.ctx = CTX), &RT_STEP_OPTIONS(.budget = 12, .chunk = 40));
    open_engine(&g, &s, &st, &ro, 12);
    for (int32_t k = 0; k < 2; k++)
        assert_int_equal(fake->card_bytes[1 - k] + RECORDS, on_card(&n.card[k]));
    rt_session_free(s);
    rt_step_free(st);
    rt_close(g);
    fake->devices = 1;
    assert_int_equal(fake->live, 0);
    p.g = NULL;
    public_close(&p);
}

/* ---- the division ---- */

/* What every division of a model takes of each device, so that it can be compared with the library's. */
enum { LAYERS = 8, DEVICES = 3, SESSIONS = 2 };
typedef struct {
    PublicRig  p;
    rt_options ro;
    Stages     have;                               /* the CPU's and two or three devices */
    int32_t    cards;
    uint64_t   need[LAYERS + 1][LAYERS + 1][LAYERS + 1][DEVICES];      /* by the layers of each */
} Table;
static const rt_session_options table_session = { .ctx = 200, .checkpoints = 1 };
static const rt_step_options table_step = { .sessions = SESSIONS, .chunk = 16 };

/* What the model, its sessions and a step take if the layers end there. */
static void count_division(uint64_t need[DEVICES], const Table *t, const Stages *ends)
{
    Error err = { 0 };
    Stages null;
    rt_engine *g;
    rt_session *s;
    rt_step *st;
    size_t scratch = 0;
    rt_options ro = t->ro;
    ro.overcommit = true;
    assert_ok(backends_count(&null, ends, &err), &err);
    assert_ok(engine_open(&g, null, ENGINE_SIZES, &ro, &err), &err);
    engine_owner(g, "session");
    const Amount before = engine_counted(&g->on);
    assert_ok(engine_session(&s, g, &table_session, &err), &err);
    const Amount with = engine_counted(&g->on);
    engine_owner(g, "step");
    assert_ok(engine_scratch(&scratch, NULL, g, &table_step, &err), &err);
    assert_ok(engine_step(&st, g, &table_step, scratch, &err), &err);
    const Amount all = engine_counted(&g->on);
    for (int32_t k = 0; k < t->cards; k++)
        need[k] = all.in[IN_DEVICE + k] + (SESSIONS - 1) * (with.in[IN_DEVICE + k] - before.in[IN_DEVICE + k]);
    rt_step_free(st);
    rt_session_free(s);
    rt_close(g);
}

static uint64_t *need_of(Table *t, const int32_t layers[DEVICES])
{
    return t->need[layers[0]][layers[1]][t->cards > 2 ? layers[2] : 0];
}

/* Calls for every division of n layers. */
typedef void EachDivision(Table *t, const int32_t layers[DEVICES], void *ud);
static void each_division(Table *t, int32_t n, EachDivision *call, void *ud)
{
    for (int32_t a = 0; a <= n; a++)
        for (int32_t b = 0; b <= n - a; b++) {
            const int32_t three[DEVICES] = { a, b, n - a - b }, two[DEVICES] = { a, n - a, 0 };
            if (t->cards == 2 && b == 0) call(t, two, ud);
            if (t->cards == 3) call(t, three, ud);
        }
}

static void fill_in(Table *t, const int32_t layers[DEVICES], void *ud)
{
    (void) ud;
    Stages ends = t->have;
    int32_t end = LAYERS - layers[0] - layers[1] - layers[2];
    for (int32_t k = 0; k <= t->cards; k++) {
        ends.at[k].end = end < LAYERS ? end : INT32_MAX;
        if (k < t->cards) end += layers[k];
    }
    count_division(need_of(t, layers), t, &ends);
}

/* As little beside a layer as a card's is beside a real model's. */
static size_t no_workspace(Backend *b, int32_t threads)
{
    (void) b, (void) threads;
    return 0;
}

static void table_open(Table *t, const RigOptions *o, int32_t cards)
{
    Error err = { 0 };
    memset(t, 0, sizeof *t);
    t->cards = cards;
    public_files(&t->p, o);
    t->ro = divided(&t->p, o, cards == 2 ? "card:0+1" : "card:0+1+2", RT_LAYERS_AUTO);
    card_level = "cpu:portable";                   /* the same bytes everywhere */
    assert_ok(engine_backends(&t->have, &t->ro, &err), &err);
    for (int32_t k = 1; k <= cards; k++) t->have.at[k].be->fork_bytes = no_workspace;
    card_level = "cpu";
    for (int32_t n = 1; n <= LAYERS; n++) each_division(t, n, fill_in, NULL);
}

static void table_close(Table *t)
{
    backends_close(&t->have);
    t->p.g = NULL;
    public_close(&t->p);
}

typedef struct { double room[DEVICES], best; int32_t layers[DEVICES]; } Best;

static double fullest_of(Table *t, const int32_t layers[DEVICES], const double room[DEVICES])
{
    double most = 0;
    for (int32_t k = 0; k < t->cards; k++) most = fmax(most, (double) need_of(t, layers)[k] / room[k]);
    return most;
}

static void compare_best(Table *t, const int32_t layers[DEVICES], void *ud)
{
    Best *b = ud;
    const double full = fullest_of(t, layers, b->room);
    if (full >= b->best) return;
    b->best = full;
    memcpy(b->layers, layers, sizeof b->layers);
}

/* The library's division, for n layers or RT_LAYERS_AUTO. */
static void placed(int32_t layers[DEVICES], Table *t, int32_t n)
{
    Error err = { 0 };
    Stages have = t->have;
    rt_options ro = t->ro;
    ro.gpu_layers = n;
    assert_ok(engine_place(&have, &ro, &table_session, &table_step, &err), &err);
    memset(layers, 0, sizeof *layers * DEVICES);
    for (int32_t k = 0; k < t->cards; k++) {
        const int32_t end = have.at[k + 1].end < LAYERS ? have.at[k + 1].end : LAYERS;
        if (have.at[k].end < end) layers[k] = end - have.at[k].end;
    }
}

static void set_memory(Table *t, Best *b, const uint64_t memory[DEVICES])
{
    *b = (Best) { .best = HUGE_VAL };
    for (int32_t k = 0; k < t->cards; k++) {
        card_log[k]->memory = memory[k];
        b->room[k] = (double) (memory[k] - memory[k] / 64);
    }
}

/* The most layers that fit, as any division may be. */
static int32_t most_that_fit(Table *t, Best *b)
{
    for (int32_t n = LAYERS; n > 0; n--) {
        b->best = HUGE_VAL;
        each_division(t, n, compare_best, b);
        if (b->best <= 1) return n;
    }
    return 0;
}

static void unknown_memory(Backend *b, uint64_t *there, uint64_t *total)
{
    (void) b;
    *there = *total = 0;
}

typedef struct { int32_t tries, some, fewer, fuller; double worst; } Missed;

/* Random memories: as many layers as fit, and for a given number the fullest as empty as can be. */
static void try_memories(Missed *m, Table *t, Dice *d, int32_t tries)
{
    const int32_t one[DEVICES] = { 0, t->cards == 2 ? LAYERS : 0, t->cards == 2 ? 0 : LAYERS };
    const uint64_t whole = need_of(t, one)[t->cards - 1];
    for (int32_t i = 0; i < tries; i++) {
        Best b;
        uint64_t memory[DEVICES] = { 0 };
        int32_t layers[DEVICES];
        for (int32_t k = 0; k < t->cards; k++) memory[k] = whole / 1000 * (uint64_t) (50 + roll(d, 800));
        set_memory(t, &b, memory);
        const int32_t most = most_that_fit(t, &b);
        placed(layers, t, RT_LAYERS_AUTO);
        const int32_t n = layers[0] + layers[1] + layers[2];
        assert_true(n <= most && (n == 0 || fullest_of(t, layers, b.room) <= 1));
        m->fewer += n < most;
        m->some += most > 0 && most < LAYERS;
        const int32_t some = 2 + roll(d, LAYERS - 1);
        b.best = HUGE_VAL;
        each_division(t, some, compare_best, &b);
        placed(layers, t, some);
        assert_int_equal(layers[0] + layers[1] + layers[2], some);
        const double full = fullest_of(t, layers, b.room);
        m->tries++;
        m->fuller += full > b.best * 1.000001;
        m->worst = fmax(m->worst, full / b.best);
    }
}

/* Layers that are alike; delta net and attention; leading ones without experts; windowed ones and full ones. */
static RigOptions table_model(int32_t i)
{
    static const int32_t kind[] = { 1, 2, 7, 8 };
    RigOptions o = rig_kind(kind[i], false);
    o.tm.n_layer = LAYERS, o.tm.hidden = 256, o.tm.ff = 1024, o.tm.ff_expert = 256;    /* more than a step takes */
    return i == 1 ? rig_with_draft(o, false) : o;
}

static void as_many_as_fit_on_all(void **state)
{
    enum { TRIES = 30 };
    (void) state;
    int32_t some = 0;
    Dice d = { tiny_key(3, "memories"), 0 };
    for (int32_t i = 0; i < 4; i++)
        for (int32_t cards = 2; cards <= DEVICES; cards++) {
            Missed m = { 0 };
            static Table t;
            const RigOptions o = table_model(i);
            if (!part_runs()) continue;
            table_open(&t, &o, cards);
            try_memories(&m, &t, &d, TRIES);
            table_close(&t);
            /* moving one layer at a time does not always find the best, if heads or drafters are large */
            if (m.fewer > 0 || m.fuller > 1 || (cards == 2 && m.fuller > 0))
                fail_msg("model %d, %d devices: of %d, %d have fewer layers, and %d are fuller, by up to %.3f", i,
                         cards, m.tries, m.fewer, m.fuller, m.worst);
            some += m.some;
        }
    assert_true(part_asked().of > 1 || some > TRIES);
}

/* Of n layers, as devices have so many megabytes; 0: what they have is not known. */
typedef struct { int32_t n; uint64_t memory[DEVICES]; int32_t want[DEVICES]; } Share;
static void check_shares(Table *t, const Share *list)
{
    for (const Share *s = list; s->n; s++) {
        Best b;
        int32_t got[DEVICES];
        uint64_t memory[DEVICES];
        for (int32_t k = 0; k < DEVICES; k++) memory[k] = s->memory[k] << 20;
        set_memory(t, &b, memory);
        placed(got, t, s->n);
        if (memcmp(got, s->want, sizeof got) != 0)
            fail_msg("%d layers: %d %d %d, expected %d %d %d", s->n, got[0], got[1], got[2], s->want[0], s->want[1],
                     s->want[2]);
    }
}

/* Layers go by memory: evenly, one to three; and to none of which the memory has no room for any. */
static void layers_go_by_memory(void **state)
{
    (void) state;
    static Table t;
    RigOptions o = rig_kind(1, false);
    o.tm.n_layer = LAYERS, o.tm.hidden = 512, o.tm.ff = 2048;
    table_open(&t, &o, 2);
    check_shares(&t, (Share[]) { { 8, { 500, 500 }, { 4, 4 } }, { 4, { 300, 300 }, { 2, 2 } },
                                 { 8, { 125, 375 }, { 2, 6 } }, { 8, { 375, 125 }, { 6, 2 } },
                                 { 4, { 125, 375 }, { 1, 3 } }, { 8, { 500, 1 }, { 8, 0 } },
                                 { RT_LAYERS_AUTO, { 500, 1 }, { 8, 0 } }, { RT_LAYERS_AUTO, { 1, 500 }, { 0, 8 } },
                                 { RT_LAYERS_AUTO, { 1, 1 }, { 0, 0 } }, { 0 } });
    static const Share even[] = { { 8, { 100, 300 }, { 4, 4 } }, { 4, { 300, 100 }, { 2, 2 } },
                                  { RT_LAYERS_AUTO, { 1, 1 }, { 4, 4 } }, { 0 } };
    for (int32_t k = 1; k <= 2; k++) t.have.at[k].be->memory = unknown_memory;
    check_shares(&t, even);
    for (int32_t k = 1; k <= 2; k++) t.have.at[k].be->shares = true;
    check_shares(&t, even);
    t.have.at[1].be->shares = false;               /* what only the other one takes is counted as main memory */
    check_shares(&t, even);
    table_close(&t);
    table_open(&t, &o, 3);
    check_shares(&t, (Share[]) { { 6, { 300, 300, 300 }, { 2, 2, 2 } }, { 8, { 50, 200, 150 }, { 1, 4, 3 } },
                                 { 6, { 300, 1, 300 }, { 3, 0, 3 } }, { 0 } });
    table_close(&t);
}

/* ---- what is refused ---- */

static void refused(const PublicRig *p, const char *on, rt_status code, const char *text)
{
    rt_options ro = { .size = sizeof ro, .model = p->model, .backend = on, .threads = 1 };
    rt_engine *g;
    rt_needs n;
    rt_error e;
    rt_status st = rt_open(&g, &ro, &e);
    assert_null(g);
    if (st != code || strcmp(e.text, text) != 0) fail_msg("%s: %d, %s", on, (int) st, e.text);
    st = rt_plan(&ro, NULL, NULL, NULL, NULL, &n, sizeof n, &e);
    if (st != code || strcmp(e.text, text) != 0) fail_msg("%s, planned: %d, %s", on, (int) st, e.text);
}

static void names_are_refused(void **state)
{
    (void) state;
    FakeCuda *fake = emulated();
    const RigOptions o = rig_kind(1, false);
    PublicRig p;
    rt_error e;
    rt_roofline *roof;
    rt_engine *g;
    public_files(&p, &o);
    fake->devices = 2;
    refused(&p, "card:1+1", RT_EARG, "backend: 'card:1+1', expected each card once");
    refused(&p, "cuda:0+0", RT_EARG, "backend: 'cuda:0+0', expected each card once");
    refused(&p, "cuda:1+0+01", RT_EARG, "backend: 'cuda:1+0+01', expected each card once");
    refused(&p, "cuda:0+7", RT_EUNSUPPORTED, "cuda: device 7, expected 0 to 1; CUDA_VISIBLE_DEVICES may hide some");
    refused(&p, "cuda:0+", RT_EARG, "cuda device: , expected a number (cuda:0)");
    refused(&p, "cuda:+1", RT_EARG, "cuda device: , expected a number (cuda:0)");
    refused(&p, "cuda:+", RT_EARG, "cuda device: , expected a number (cuda:0)");
    refused(&p, "cuda:0+x", RT_EARG, "cuda device: x, expected a number (cuda:0)");
    refused(&p, "cuda:0+cuda:1", RT_EARG, "cuda device: cuda:1, expected a number (cuda:0)");
    refused(&p, "cpu:portable+portable", RT_EARG,
            "backend: 'cpu:portable+portable', expected a list of cards only, such as cuda:0+1");
    refused(&p, "card:0+1+2+3+4+5+6+7+0", RT_EARG, "backend: 'card:0+1+2+3+4+5+6+7+0', expected at most 8 cards");
    refused(&p, "cuda:0000000000000000000000000000000+1111111111111111111111111111111111111111111", RT_EARG,
            "backend: 'cuda:0000000000000000000000000000000+111111111111111111111111111111111...' "
            "is no backend's name");
    assert_int_equal(fake->live, 0);
    rt_options ro = divided(&p, &o, "card:0+1", 0);
    ro.expert_vram = 1 << 20;
    assert_int_equal(rt_open(&g, &ro, &e), RT_EUNSUPPORTED);
    assert_string_equal(e.text, "expert_vram: several cards hold all experts of their layers; expected 0, or one card");
    ro.expert_vram = RT_EXPERTS_AUTO;              /* is all */
    if (rt_open(&g, &ro, &e) != RT_OK) fail_msg("%s", e.text);
    rt_close(g);
    ro.expert_vram = 0;
    assert_int_equal(rt_card_check(&ro, &e), RT_EARG);
    assert_string_equal(e.text, "backend: 'card:0+1', expected a card's");
    ro.backend = "cuda:0+1";
    assert_int_equal(rt_card_check(&ro, &e), RT_EARG);
    if (rt_roofline_new(&roof, "card:0+1", 1, &e) != RT_OK) fail_msg("%s", e.text);        /* of the first */
    rt_roofline_free(roof);
    assert_int_equal(rt_roofline_new(&roof, "cuda:7+0", 1, &e), RT_EUNSUPPORTED);
    assert_null(roof);
    fake->devices = 1;
    assert_int_equal(fake->live, 0);
    p.g = NULL;
    public_close(&p);
}

/* Too little on one of two devices is refused before the first weight is read, with a number of layers that opens. */
static void too_little_is_refused(void **state)
{
    (void) state;
    RigOptions o = rig_kind(2, false);
    PublicRig p;
    rt_needs n;
    rt_error e;
    rt_engine *g;
    bool began = false;
    char want[64];
    o.tm.hidden = 256, o.tm.ff = 1024, o.tm.n_layer = 8;
    public_files(&p, &o);
    rt_options ro = divided(&p, &o, "card:0+1", 0);
    plan_of(&n, &ro, NULL, NULL);
    const uint64_t whole = on_card(&n.card[0]);
    for (int32_t little = 0; little < 2; little++) {
        card_memory[little] = whole / 2;
        card_memory[1 - little] = whole * 11 / 10;
        ro = divided(&p, &o, "card:0+1", 0);
        ro.hooks = (rt_hooks) { .ud = &began, .progress = loading };
        assert_int_equal(rt_open(&g, &ro, &e), RT_ENOMEM);
        assert_null(g);
        assert_false(began);
        if (!strstr(e.text, " of 8 layers on card:") || !strstr(e.text, " GB are free there; ")) fail_msg("%s", e.text);
        const rt_options automatic = divided(&p, &o, "card:0+1", RT_LAYERS_AUTO);
        plan_of(&n, &automatic, NULL, NULL);
        assert_in_range(n.gpu_layers, 1, 7);
        snprintf(want, sizeof want, "; %d would fit", n.gpu_layers);
        if (!strstr(e.text, want)) fail_msg("%s, expected %s", e.text, want);
        for (int32_t k = 0; k < 2; k++) assert_true(on_card(&n.card[k]) <= n.card[k].free);
        ro.gpu_layers = n.gpu_layers;
        if (rt_open(&g, &ro, &e) != RT_OK) fail_msg("%s", e.text);
        rt_close(g);
        began = false;
    }
    card_memory[0] = card_memory[1] = 1;
    ro.gpu_layers = 0;
    assert_int_equal(rt_open(&g, &ro, &e), RT_ENOMEM);
    if (!strstr(e.text, "nothing would fit")) fail_msg("%s", e.text);
    ro.overcommit = true;
    if (rt_open(&g, &ro, &e) != RT_OK) fail_msg("%s", e.text);
    rt_close(g);
    card_memory[0] = card_memory[1] = 0;
    p.g = NULL;
    public_close(&p);
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

/* The division that a plan has found for its sessions is what runs, if it is handed on. */
static void as_told(void **state)
{
    (void) state;
    static const int32_t parts[][3] = { { 1, 2, 1 }, { 4, 0, 0 }, { 0, 3, 1 }, { 2, 2, 0 }, { 0, 0, 4 } },
                         wrong[][3] = { { 1, 2, 2 }, { 1, 1, 1 }, { -1, 4, 1 } };
    static const char *const texts[] = { "card_layers: 2 for card:2, expected numbers whose sum is 4",
                                         "card_layers: 3 in all, expected 4",
                                         "card_layers: -1 for card:0, expected numbers whose sum is 4" };
    const RigOptions o = rig_kind(2, false);
    PublicRig p;
    rt_needs n;
    rt_engine *g;
    rt_error e;
    public_files(&p, &o);
    rt_options ro = divided(&p, &o, "card:0+1+2", 4);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        ro.card_layers = parts[i];
        plan_of(&n, &ro, &RT_SESSION_OPTIONS(.ctx = 5000 * ((int32_t) i + 1)), NULL);
        if (rt_open(&g, &ro, &e) != RT_OK) fail_msg("%s", e.text);
        for (int32_t k = 0; k < 3; k++) {
            assert_int_equal(n.card[k].layers, parts[i][k]);
            assert_int_equal((uint64_t) card_log[k]->live, n.card[k].model);
        }
        rt_close(g);
    }
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        ro.card_layers = wrong[i];
        assert_int_equal(rt_open(&g, &ro, &e), RT_EARG);
        assert_string_equal(e.text, texts[i]);
    }
    p.g = NULL;
    public_close(&p);
}

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
        cmocka_unit_test(plan_is_what_each_card_holds), cmocka_unit_test(as_many_as_fit_on_all),
        cmocka_unit_test(layers_go_by_memory), cmocka_unit_test(names_are_refused),
        cmocka_unit_test(too_little_is_refused), cmocka_unit_test(failures_are_reported),
        cmocka_unit_test(failing_calls_are_reported), cmocka_unit_test(cancelled_between_cards),
        cmocka_unit_test(told_where), cmocka_unit_test(as_told), cmocka_unit_test(plan_is_what_gpus_hold),
    };
    return cmocka_run_group_tests_name("gpu_cards", tests, NULL, NULL);
}
