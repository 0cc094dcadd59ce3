/* plan.c - the memory that an engine, its sessions and a step will take, counted on backends that only count; and what
 * follows from it where there is a device: how many layers it runs. */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/engine.h"

/* ---- counting ---- */

/* roomy: the device has room for the session's keys and values besides the model. */
typedef struct { rt_engine *g; rt_session *s; rt_step *st; bool roomy; } Planned;

static void plan_close(Planned *p)
{
    rt_step_free(p->st);
    rt_session_free(p->s);
    rt_close(p->g);
}

/* have: the real backends, whose sizes the counting ones ask for. A context that is not given is, for SIZES, not cut to
 * what the device has room for. */
static Status plan_open(Planned *p, const Stages *have, EngineUse use, const rt_options *o,
                        const rt_session_options *so, const rt_step_options *sto, Error *err)
{
    Stages null;
    size_t scratch = 0;
    rt_options quiet = *o;
    rt_session_options session = so ? *so : (rt_session_options) { 0 };
    rt_step_options step = sto ? *sto : (rt_step_options) { 0 };
    quiet.hooks = step.hooks = (rt_hooks) { 0 };
    quiet.overcommit = true;                       /* nothing is taken */
    *p = (Planned) { .roomy = true };
    TRY(backends_count(&null, have, err));
    TRY(engine_open(&p->g, null, use, &quiet, err));
    if (session.ctx == 0 && use == ENGINE_SIZES) {
        session.ctx = engine_usual_ctx(p->g);
        p->roomy = engine_room(p->g, IN_DEVICE) >= session.ctx;
    }
    engine_owner(p->g, "session");
    TRY(engine_session(&p->s, p->g, &session, err));
    engine_owner(p->g, "step");
    TRY(engine_scratch(&scratch, NULL, p->g, &step, err));
    return engine_step(&p->st, p->g, &step, scratch, err);
}

/* ---- layers on a device ---- */

/* A share of the device's free memory stays free, for what is not planned: recorded passes, what a driver takes. */
enum { DEVICE_MARGIN = 64 };
/* And one of main memory beside experts, for the same and for the system. */
enum { EXPERT_MARGIN = 16 };

/* What a device shall hold: n of the model's layers, the last ones, with these options. */
typedef struct {
    const Stages             *have;
    const rt_options         *o;
    const rt_session_options *so;
    const rt_step_options    *sto;
    int32_t                   layers;              /* of the model; 0: not known yet */
    uint64_t                  experts;             /* bytes of all of them */
} Ask;
/* Bytes of the device, of which `slots` are for some of the experts; spare: that have to stay free besides. main: bytes
 * of main memory with the least that the CPU's experts can do with, of which `host` are for the device's experts. */
typedef struct { uint64_t device, slots, spare, main, host; bool roomy; } Answer;

/* What is in main memory besides what backends have counted, and besides tables: index, text: of a session; trees: of a
 * step; staging: of the backend and of the step, each. */
typedef struct { size_t index, text, trees, between, staging; } Rest;

static Rest rest_of(const Planned *p)
{
    const Backend *last = stages_last(&p->g->on);
    return (Rest) { engine_index_bytes(p->s), engine_text_bytes(p->s), engine_tree_bytes(p->st),
                    p->g->on.n > 1 ? step_between(&p->st->spec.step) : 0, last->device ? last->staging : 0 };
}

static void count_part(void *ud, const char *owner, const char *name, size_t bytes)
{
    uint64_t *const *sum = ud;
    (void) name;
    *sum[strcmp(owner, "session") == 0] += bytes;
}

/* What a model, its sessions and a step take; sessions: these alone. */
typedef struct {
    Amount     all, sessions;
    uint64_t   experts, device_experts;            /* bytes of all, and of those in layers that a device runs */
    StoreNeeds store, device_store;
    int32_t    layers;
    bool       roomy;
} Counted;

static Status count_all(Counted *out, const Stages *have, const rt_options *o, const rt_session_options *so,
                        const rt_step_options *sto, Error *err)
{
    Planned p;
    uint64_t rest[MEMORIES] = { 0 }, session[MEMORIES] = { 0 };
    Status st = plan_open(&p, have, ENGINE_SIZES, o, so, sto, err);
    for (int32_t k = 0; st == ST_OK && k < p.g->on.n; k++) {
        Backend *be = p.g->on.at[k].be;
        backend_null_parts(be, count_part, (uint64_t *[]) { &rest[memory_of(be)], &session[memory_of(be)] });
    }
    if (st == ST_OK) {
        const Model *m = p.g->model;
        const Rest beside = rest_of(&p);
        session[IN_MAIN] += beside.index + beside.text;
        rest[IN_MAIN] += beside.trees + beside.between + 2 * beside.staging;
        *out = (Counted) { .experts = m->expert_bytes, .device_experts = m->device_expert_bytes, .store = m->store,
                           .device_store = m->device_store, .layers = m->n_layers, .roomy = p.roomy };
        for (int32_t i = 0; i < MEMORIES; i++) {
            out->sessions.in[i] = session[i] * (uint64_t) (sto && sto->sessions ? sto->sessions : 1);
            out->all.in[i] = rest[i] + out->sessions.in[i];
        }
        out->all.in[IN_MAIN] += m->device_store.host_bytes;
    }
    plan_close(&p);
    return st;
}

/* Where there is not enough memory for all experts, they get at least a sixteenth of what all take. */
static uint64_t least_for(uint64_t experts) { return experts / 16; }

/* Those of a device need room for more than a layer's in main memory. */
static uint64_t least_for_host(uint64_t experts, int32_t layers)
{
    const uint64_t two = layers > 2 ? experts / (uint64_t) layers * 2 : experts, least = least_for(experts);
    return two > least ? two : least;
}

static Status count_layers(Answer *out, Ask *a, int32_t n, uint64_t vram, Error *err)
{
    Counted c;
    Stages have = *a->have;
    rt_options o = *a->o;
    have.at[0].end = a->layers > n ? a->layers - n : 0;
    o.expert_vram = vram;
    TRY(count_all(&c, &have, &o, a->so, a->sto, err));
    const uint64_t loaded = c.store.bytes ? 0 : c.experts - c.device_experts;
    a->layers = c.layers;
    a->experts = c.experts;
    *out = (Answer) { .device = c.all.in[IN_DEVICE], .slots = c.device_store.bytes, .main = c.all.in[IN_MAIN],
                      .host = c.device_store.host_bytes, .roomy = c.roomy };
    if (!a->so || a->so->ctx == 0) out->spare = c.sessions.in[IN_DEVICE] / 4;              /* see engine_room */
    if (a->o->expert_ram == RT_EXPERTS_AUTO)
        out->main -= loaded - least_for(loaded) + out->host - least_for_host(out->host, n < c.layers ? n : c.layers);
    return ST_OK;
}

static uint64_t without_share(uint64_t bytes, int32_t share) { return bytes - bytes / (uint64_t) share; }

static bool has_room_for(const Ask *a, const Answer *x)
{
    const Amount there = engine_free(a->have);
    if (there.in[IN_DEVICE] > 0 && (!x->roomy || x->device > without_share(there.in[IN_DEVICE], DEVICE_MARGIN)))
        return false;
    if ((x->host == 0 && !stages_last(a->have)->shares) || there.in[IN_MAIN] == 0) return true;
    return x->main <= without_share(there.in[IN_MAIN], x->host ? EXPERT_MARGIN : DEVICE_MARGIN);
}

/* How n layers can run: with all experts, or with as many as fit. *vram: as in rt_options, and not RT_EXPERTS_AUTO. */
static Status fits(bool *out, uint64_t *vram, Ask *a, int32_t n, Error *err)
{
    const bool automatic = a->o->expert_vram == RT_EXPERTS_AUTO;
    const uint64_t there = engine_free(a->have).in[IN_DEVICE];
    Answer x;
    *vram = automatic ? 0 : a->o->expert_vram;
    TRY(count_layers(&x, a, n, *vram, err));
    *out = has_room_for(a, &x);
    if (*out || !automatic || least_for(a->experts) == 0) return ST_OK;
    Status st = count_layers(&x, a, n, least_for(a->experts), err);
    if (st == ST_ARG) return ST_OK;                /* there are too few experts to leave any out */
    if (st != ST_OK || x.host == 0) return st;     /* or the device must hold them all */
    const uint64_t rest = x.device - x.slots + x.spare + stages_last(a->have)->page,
                   room = without_share(there, DEVICE_MARGIN);
    *out = has_room_for(a, &x);
    *vram = rest + least_for(a->experts) < room ? room - rest : least_for(a->experts);
    return ST_OK;
}

/* The most layers that fit, with a margin. */
static Status layers_that_fit(int32_t *out, uint64_t *vram, Ask *a, Error *err)
{
    Answer x;
    *vram = 0;
    TRY(count_layers(&x, a, INT32_MAX, 0, err));
    int32_t fit = 0, over = a->layers + 1, n = a->layers;              /* all is tried first */
    while (fit + 1 < over) {
        bool does;
        uint64_t with;
        TRY(fits(&does, &with, a, n, err));
        if (does) fit = n, *vram = with;
        else over = n;
        n = fit + (over - fit) / 2;
    }
    *out = fit;
    return ST_OK;
}

Status engine_place(Stages *have, rt_options *o, const rt_session_options *so, const rt_step_options *sto, Error *err)
{
    const bool automatic = o->expert_vram == RT_EXPERTS_AUTO;
    bool does;
    if (o->gpu_layers < RT_LAYERS_NONE)
        return fail(err, ST_ARG, "gpu_layers: %d, expected a number of layers (0: all, -1: as many as fit, -2: none)",
                    o->gpu_layers);
    if (have->n == 1 && automatic) o->expert_vram = 0;
    if (have->n == 1 || (o->gpu_layers == 0 && !automatic)) return ST_OK;
    const rt_options asked = *o;
    Ask a = { .have = have, .o = &asked, .so = so, .sto = sto };
    int32_t n = o->gpu_layers;
    Answer x;
    if (n >= 0) TRY(count_layers(&x, &a, INT32_MAX, 0, err));
    if (n == 0 || n > a.layers) n = a.layers;
    if (n < 0) TRY(layers_that_fit(&n, &o->expert_vram, &a, err));
    else if (automatic) TRY(fits(&does, &o->expert_vram, &a, n, err));
    have->at[0].end = n == 0 ? INT32_MAX : n < a.layers ? a.layers - n : 0;
    return ST_OK;
}

Status engine_check_device(const Stages *have, const rt_options *o, Error *err)
{
    const Amount there = engine_free(have);
    const bool shares = stages_last(have)->shares;
    if (have->n == 1 || have->at[0].end == INT32_MAX || o->overcommit) return ST_OK;
    if (there.in[IN_DEVICE] == 0 && !shares) return ST_OK;
    const rt_session_options smallest = { .ctx = ROWS_DECODE, .checkpoints = -1, .ngram = -1 };
    Ask a = { .have = have, .o = o, .so = &smallest };
    Answer x;
    int32_t fit;
    uint64_t vram;
    TRY(count_layers(&x, &a, INT32_MAX, o->expert_vram, err));
    const int32_t n = a.layers - have->at[0].end;
    TRY(count_layers(&x, &a, n, o->expert_vram, err));
    const bool host = (x.host > 0 || shares) && there.in[IN_MAIN] > 0 && x.main > there.in[IN_MAIN];
    if (x.device <= there.in[IN_DEVICE] && !host) return ST_OK;
    a.so = NULL;
    TRY(layers_that_fit(&fit, &vram, &a, err));
    char hint[64] = "nothing would fit";
    if (fit) snprintf(hint, sizeof hint, "%d would fit", fit);
    if (x.device > there.in[IN_DEVICE])
        return fail(err, ST_MEMORY, "gpu_layers: %d of %d layers take %.2f GB of device memory, but %.2f GB are free "
                    "on %s; %s", n, a.layers, (double) x.device / 1e9, (double) there.in[IN_DEVICE] / 1e9,
                    stages_last(have)->name, hint);
    return fail(err, ST_MEMORY, "gpu_layers: %d of %d layers %s main memory take %.2f GB there, but %.2f GB are free; "
                "%s", n, a.layers, x.host ? "with experts in" : "on a device that shares", (double) x.main / 1e9,
                (double) there.in[IN_MAIN] / 1e9, hint);
}

/* ---- experts in memory ---- */

/* What everything but experts that a file has too takes in main memory; experts: bytes of all that are there if it has
 * room for them. */
static Status beside_experts(uint64_t *rest, uint64_t *experts, const Stages *have, const rt_options *o, uint64_t ram,
                             const rt_session_options *so, const rt_step_options *sto, Error *err)
{
    Counted c;
    rt_options with = *o;
    with.expert_ram = ram;
    TRY(count_all(&c, have, &with, so, sto, err));
    *experts = c.device_store.bytes ? c.experts : c.experts - c.device_experts;
    *rest = c.all.in[IN_MAIN] - c.store.bytes - (c.device_store.uploads ? 0 : c.device_store.host_bytes);
    return ST_OK;
}

Status engine_experts(rt_options *o, const Stages *have, const rt_session_options *so, const rt_step_options *sto,
                      Error *err)
{
    const uint64_t there = engine_free(have).in[IN_MAIN], room = without_share(there, EXPERT_MARGIN);
    uint64_t rest, experts;
    struct stat file;                              /* of a split file one part in a few, mostly not a quarter */
    if (o->expert_ram != RT_EXPERTS_AUTO) return ST_OK;
    o->expert_ram = 0;
    if (there == 0 || (o->model && stat(o->model, &file) == 0 && (uint64_t) file.st_size < there / 4)) return ST_OK;
    TRY(beside_experts(&rest, &experts, have, o, 0, so, sto, err));
    if (experts == 0 || rest <= room) return ST_OK;
    /* steps are larger where experts are read from a file, and a session has the usual length */
    Status st = ST_ARG;                            /* a device needs some of its experts here */
    for (uint64_t ram = experts / 4; st == ST_ARG && ram < experts; ram += experts / 4)
        st = beside_experts(&rest, &experts, have, o, ram, so, sto, err);
    if (st == ST_ARG) return ST_OK;                /* there are too few experts to leave any out */
    TRY(st);
    /* if there is no room at all, the check of memory refuses, with the figures */
    o->expert_ram = rest + least_for(experts) < room ? room - rest : least_for(experts);
    return ST_OK;
}

/* ---- the plan ---- */

/* Private resident memory of this process: the size of tables is measured by building them. */
static size_t resident(void)
{
    unsigned long long total = 0, here = 0, shared = 0;
    FILE *f = fopen("/proc/self/statm", "re");
    if (!f) return 0;
    if (fscanf(f, "%llu %llu %llu", &total, &here, &shared) != 3) here = shared = 0;
    fclose(f);
    return (size_t) (here - shared) * (size_t) sysconf(_SC_PAGESIZE);
}


typedef struct {
    rt_needs *needs;
    void (*part)(void *ud, const char *owner, const char *name, size_t bytes);
    void *ud;
    int32_t memory;                                /* where the parts are that are reported now */
} PlanParts;

static void plan_part(void *ud, const char *owner, const char *name, size_t bytes)
{
    const PlanParts *p = ud;
    rt_needs *n = p->needs;
    uint64_t *sum[][MEMORIES] = { { &n->model, &n->device_model }, { &n->drafter, &n->device_drafter },
                                  { &n->session, &n->device_session }, { &n->step, &n->device_step },
                                  { &n->process, NULL } };
    static const char *const owners[] = { "model", "drafter", "session", "step", "process" };
    for (size_t i = 0; i < sizeof sum / sizeof *sum; i++)
        if (strcmp(owner, owners[i]) == 0) *sum[i][p->memory] += bytes;
    char full[64];
    snprintf(full, sizeof full, "%s%s", p->memory == IN_DEVICE ? RT_DEVICE : "", name);
    if (p->part) p->part(p->ud, owner, full, bytes);
}

/* What passes cost, besides the memory that they take. */
static void plan_work(rt_needs *n, const rt_engine *g)
{
    const Model *m = g->model, *d = g->draft;
    PassWork pass = engine_pass_work(m);
    n->ctx_train = m->ctx_train;
    n->pass_bytes = pass.bytes;
    n->pass_parameters = pass.parameters;
    n->kv_bytes = engine_kv_bytes(m, T_COUNT);
    n->kv_q8_bytes = engine_kv_bytes(m, T_Q8_0);
    n->state_bytes = engine_state_bytes(m);
    n->layers = m->n_layers;
    n->experts = m->experts;
    n->experts_used = m->router.used;
    n->expert_bytes = m->expert_bytes;
    n->expert_ram = m->store.bytes + (m->device_store.uploads ? 0 : m->device_store.host_bytes);
    n->expert_vram = m->device_store.bytes;
    n->expert_host = m->device_store.host_bytes;
    n->canvas = m->diffusion.canvas;
    n->canvas_steps = m->diffusion.steps;
    const char *level = stages_last(&g->on)->level;
    snprintf(n->level, sizeof n->level, "%s", level ? level : "");
    if (!d) return;
    pass = engine_pass_work(d);
    n->draft_bytes = pass.bytes;
    n->draft_parameters = pass.parameters;
    n->draft_layers = d->n_layers;
    n->draft_block = d->block;
    n->draft_passes = d->hold ? d->block - 1 : 1;
}


/* What is in main memory besides what backends have counted. tables: as the process has grown. */
static void plan_rest(PlanParts *parts, const Planned *p, size_t tables)
{
    const Rest rest = rest_of(p);
    parts->memory = IN_MAIN;
    if (rest.index) plan_part(parts, "session", "n-gram index", rest.index);
    plan_part(parts, "session", "text", rest.text);
    plan_part(parts, "step", "trees", rest.trees);
    if (rest.between) plan_part(parts, "step", "rows between stages", rest.between);
    plan_part(parts, "process", "tables", tables);
    if (p->g->model->device_store.bytes)
        plan_part(parts, "model", "experts for the GPU", p->g->model->device_store.host_bytes);
    if (!rest.staging) return;
    plan_part(parts, "process", "staging", rest.staging);
    plan_part(parts, "step", "staging", rest.staging);
}

static void plan_parts(PlanParts *parts, const Planned *p, const Stages *have, size_t tables)
{
    rt_needs *n = parts->needs;
    for (int32_t k = 0; k < p->g->on.n; k++) {
        Backend *be = p->g->on.at[k].be;
        parts->memory = memory_of(be);
        backend_null_parts(be, plan_part, parts);
        if (be->device) n->gpu_layers = p->g->model->n_layers - (k ? p->g->on.at[k - 1].end : 0);
    }
    plan_rest(parts, p, tables);
    for (int32_t k = 0; k < have->n; k++) {
        Backend *be = have->at[k].be;
        be->memory(be, be->device ? &n->device_free : &n->free, be->device ? &n->device_total : &n->total);
    }
    n->device_free = without_share(n->device_free, DEVICE_MARGIN);
    n->ctx = p->s->s.line.ctx;
    plan_work(n, p->g);
}

Status engine_plan(const rt_options *asked, const rt_session_options *so, const rt_step_options *sto,
                   void (*part)(void *ud, const char *owner, const char *name, size_t bytes), void *ud, rt_needs *needs,
                   Error *err)
{
    Stages have;
    Planned p = { 0 };
    rt_options known = *asked, *o = &known;
    *needs = (rt_needs) { 0 };
    TRY(engine_backends(&have, o, err));
    Status st = engine_place(&have, o, so, sto, err);
    if (st == ST_OK) st = engine_experts(o, &have, so, sto, err);
    const size_t before = resident();
    if (st == ST_OK) st = plan_open(&p, &have, ENGINE_PLANS, o, so, sto, err);
    const size_t after = resident();
    if (st == ST_OK)
        plan_parts(&(PlanParts) { needs, part, ud, IN_MAIN }, &p, &have, after > before ? after - before : 0);
    plan_close(&p);
    backends_close(&have);
    return st;
}
