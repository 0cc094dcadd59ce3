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

/* A share of the device's free memory stays free, for what is not planned: recorded passes, what a driver rounds up. */
enum { DEVICE_MARGIN = 64 };

/* What a device shall hold: n of the model's layers, the last ones, with these options. */
typedef struct {
    const Stages             *have;
    const rt_options         *o;
    const rt_session_options *so;
    const rt_step_options    *sto;
    int32_t                   layers;              /* of the model; 0: not known yet */
} Ask;
typedef struct { uint64_t bytes; bool roomy; } Answer;

static void count_part(void *ud, const char *owner, const char *name, size_t bytes)
{
    uint64_t *const *sum = ud;
    (void) name;
    *sum[strcmp(owner, "session") == 0] += bytes;
}

static Status device_bytes(Answer *out, Ask *a, int32_t n, Error *err)
{
    Planned p;
    Stages have = *a->have;
    uint64_t rest = 0, session = 0;
    have.at[0].end = a->layers > n ? a->layers - n : 0;
    Status st = plan_open(&p, &have, ENGINE_SIZES, a->o, a->so, a->sto, err);
    for (int32_t k = 0; st == ST_OK && k < p.g->on.n; k++) {
        Backend *be = p.g->on.at[k].be;
        if (be->device) backend_null_parts(be, count_part, (uint64_t *[]) { &rest, &session });
    }
    if (st == ST_OK) {
        a->layers = p.g->model->n_layers;
        *out = (Answer) { rest + session * (uint64_t) (a->sto && a->sto->sessions ? a->sto->sessions : 1), p.roomy };
    }
    plan_close(&p);
    return st;
}

/* The most layers that fit, with a margin. */
static Status layers_that_fit(int32_t *out, Ask *a, Error *err)
{
    const uint64_t there = engine_free(a->have).in[IN_DEVICE];
    Answer x;
    TRY(device_bytes(&x, a, INT32_MAX, err));
    int32_t fit = 0, over = a->layers + 1, n = a->layers;              /* all is tried first */
    while (fit + 1 < over) {
        TRY(device_bytes(&x, a, n, err));
        if (there == 0 || (x.roomy && x.bytes <= there - there / DEVICE_MARGIN)) fit = n;
        else over = n;
        n = fit + (over - fit) / 2;
    }
    *out = fit;
    return ST_OK;
}

Status engine_place(Stages *have, const rt_options *o, const rt_session_options *so, const rt_step_options *sto,
                    Error *err)
{
    if (o->gpu_layers < RT_LAYERS_NONE)
        return fail(err, ST_ARG, "gpu_layers: %d, expected a number of layers (0: all, -1: as many as fit, -2: none)",
                    o->gpu_layers);
    if (have->n == 1 || o->gpu_layers == 0) return ST_OK;
    Ask a = { have, o, so, sto, 0 };
    int32_t n = o->gpu_layers;
    Answer x;
    if (n > 0) TRY(device_bytes(&x, &a, INT32_MAX, err));
    else TRY(layers_that_fit(&n, &a, err));
    have->at[0].end = n == 0 ? INT32_MAX : n < a.layers ? a.layers - n : 0;
    return ST_OK;
}

Status engine_check_device(const Stages *have, const rt_options *o, Error *err)
{
    const uint64_t there = engine_free(have).in[IN_DEVICE];
    if (have->n == 1 || have->at[0].end == INT32_MAX || o->overcommit || there == 0) return ST_OK;
    const rt_session_options smallest = { .ctx = ROWS_DECODE, .checkpoints = -1, .ngram = -1 };
    Ask a = { have, o, &smallest, NULL, 0 };
    Answer x;
    int32_t fit;
    TRY(device_bytes(&x, &a, INT32_MAX, err));
    const int32_t n = a.layers - have->at[0].end;
    TRY(device_bytes(&x, &a, n, err));
    if (x.bytes <= there) return ST_OK;
    a.so = NULL;
    TRY(layers_that_fit(&fit, &a, err));
    char hint[64] = "nothing would fit";
    if (fit) snprintf(hint, sizeof hint, "%d would fit", fit);
    return fail(err, ST_MEMORY, "gpu_layers: %d of %d layers take %.2f GB of device memory, but %.2f GB are free on "
                "%s; %s", n, a.layers, (double) x.bytes / 1e9, (double) there / 1e9, stages_last(have)->name, hint);
}

/* ---- experts in memory ---- */

/* A share of the free main memory stays free beside experts: for what is not planned, and for the system. */
enum { EXPERT_MARGIN = 16 };

/* What everything but a store of experts takes in main memory; experts: bytes of all of them. */
static Status beside_experts(uint64_t *rest, uint64_t *experts, const Stages *have, const rt_options *o, uint64_t ram,
                             const rt_session_options *so, const rt_step_options *sto, Error *err)
{
    Planned p;
    rt_options with = *o;
    uint64_t other = 0, session = 0;
    with.expert_ram = ram;
    Status st = plan_open(&p, have, ENGINE_SIZES, &with, so, sto, err);
    for (int32_t k = 0; st == ST_OK && k < p.g->on.n; k++) {
        Backend *be = p.g->on.at[k].be;
        if (!be->device) backend_null_parts(be, count_part, (uint64_t *[]) { &other, &session });
    }
    if (st == ST_OK) {
        *experts = p.g->model->expert_bytes;
        *rest = other - p.g->model->store.bytes + session * (uint64_t) (sto && sto->sessions ? sto->sessions : 1);
    }
    plan_close(&p);
    return st;
}

Status engine_experts(rt_options *o, const Stages *have, const rt_session_options *so, const rt_step_options *sto,
                      Error *err)
{
    const uint64_t there = engine_free(have).in[IN_MAIN], room = there - there / EXPERT_MARGIN;
    uint64_t rest, experts;
    struct stat file;                              /* of a split file one part in a few, mostly not a quarter */
    if (o->expert_ram != RT_EXPERTS_AUTO) return ST_OK;
    o->expert_ram = 0;
    if (there == 0 || (o->model && stat(o->model, &file) == 0 && (uint64_t) file.st_size < there / 4)) return ST_OK;
    TRY(beside_experts(&rest, &experts, have, o, 0, so, sto, err));
    if (experts == 0 || rest <= room) return ST_OK;
    /* steps are larger where experts are read from a file, and a session has the usual length */
    TRY(beside_experts(&rest, &experts, have, o, experts / 4, so, sto, err));
    /* if there is no room at all, the check of memory refuses, with the figures */
    o->expert_ram = rest + experts / 16 < room ? room - rest : experts / 16;
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
    n->expert_ram = m->store.bytes;
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
    const Session *s = &p->s->s;
    parts->memory = IN_MAIN;
    if (s->ngram.head[0]) plan_part(parts, "session", "n-gram index", ngram_bytes(s->line.ctx));
    if (p->g->on.n > 1) plan_part(parts, "step", "rows between stages", step_between(&p->st->spec.step));
    plan_part(parts, "process", "tables", tables);
    const Backend *last = stages_last(&p->g->on);
    if (!last->device) return;
    plan_part(parts, "process", "staging", last->staging);
    plan_part(parts, "step", "staging", last->staging);
}

static void plan_parts(PlanParts *parts, const Planned *p, const Stages *have, size_t tables)
{
    rt_needs *n = parts->needs;
    for (int32_t k = 0; k < p->g->on.n; k++) {
        Backend *be = p->g->on.at[k].be;
        parts->memory = be->device;
        backend_null_parts(be, plan_part, parts);
        if (be->device) n->gpu_layers = p->g->model->n_layers - (k ? p->g->on.at[k - 1].end : 0);
    }
    plan_rest(parts, p, tables);
    for (int32_t k = 0; k < have->n; k++) {
        Backend *be = have->at[k].be;
        be->memory(be, be->device ? &n->device_free : &n->free, be->device ? &n->device_total : &n->total);
    }
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
