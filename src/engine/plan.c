/* plan.c - the memory that an engine, its sessions and a step will take, counted on backends that only count; and what
 * follows from it where there are devices: which layers they run. */
#include <math.h>
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
        p->roomy = engine_device_room(p->g) >= session.ctx;
    }
    engine_owner(p->g, "session");
    TRY(engine_session(&p->s, p->g, &session, err));
    engine_owner(p->g, "step");
    TRY(engine_scratch(&scratch, NULL, p->g, &step, err));
    return engine_step(&p->st, p->g, &step, scratch, err);
}

/* ---- layers on devices ---- */

_Static_assert((int) RT_CARDS_MAX == (int) DEVICES_MAX, "cards");
/* A share of a device's free memory stays free, for what is not planned: recorded passes, what a driver takes. */
enum { DEVICE_MARGIN = 64 };
/* And one of main memory beside experts, for the same and for the system. */
enum { EXPERT_MARGIN = 16 };

/* What devices are asked to hold layers of, and with which options. */
typedef struct {
    const Stages             *have;
    const rt_options         *o;
    const rt_session_options *so;
    const rt_step_options    *sto;
    Amount                    there;               /* free */
    int32_t                   layers;              /* of the model */
    uint64_t                  experts, each;       /* bytes of all of them, and of a layer on a device, about */
    double                    room[STAGES_MAX];    /* what devices may be given; where that is not known of one, 1 */
    bool                      apart;               /* no device's memory is the host's */
} Ask;
/* need: bytes, in main memory with the least that the CPU's experts can do with. Of the only device's, `slots` are for
 * some of the experts, and `spare` have to stay free besides; `host` are main memory's for its experts. */
typedef struct { Amount need; uint64_t slots, spare, host; bool roomy; } Answer;

/* What is in main memory besides what backends have counted, and besides tables: index, text: of a session; trees: of a
 * step; staging: of the backend and of the step, each. */
typedef struct { size_t index, text, trees, between, staging; } Rest;

static Rest rest_of(const Planned *p)
{
    Rest r = { engine_index_bytes(p->s), engine_text_bytes(p->s), engine_tree_bytes(p->st),
               p->g->on.n > 1 ? step_between(&p->st->spec.step) : 0, 0 };
    for (int32_t k = 0; k < p->g->on.n; k++)
        if (p->g->on.at[k].be->device) r.staging += p->g->on.at[k].be->staging;
    return r;
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

static uint64_t without_share(uint64_t bytes, int32_t share) { return bytes - bytes / (uint64_t) share; }

static int32_t devices(const Ask *a) { return a->have->n - 1; }

/* What a device may be given; 0: unknown. */
static uint64_t room_in(const Ask *a, int32_t memory) { return without_share(a->there.in[memory], DEVICE_MARGIN); }

/* Layers are divided as `on` says. */
static Status count_on(Answer *out, const Ask *a, const Stages *on, uint64_t vram, Error *err)
{
    Counted c;
    rt_options o = *a->o;
    o.expert_vram = vram;
    TRY(count_all(&c, on, &o, a->so, a->sto, err));
    const uint64_t loaded = c.store.bytes ? 0 : c.experts - c.device_experts;
    const int32_t n = c.layers - (on->at[0].end < c.layers ? on->at[0].end : c.layers);
    *out = (Answer) { .need = c.all, .slots = c.device_store.bytes, .host = c.device_store.host_bytes,
                      .roomy = c.roomy };
    if (!a->so || a->so->ctx == 0) out->spare = c.sessions.in[IN_DEVICE] / 4;              /* see engine_device_room */
    if (a->o->expert_ram == RT_EXPERTS_AUTO)
        out->need.in[IN_MAIN] -= loaded - least_for(loaded) + out->host - least_for_host(out->host, n);
    return ST_OK;
}

/* Learns about the model, from all of it on the last device. */
static Status ask(Ask *out, const Stages *have, const rt_options *o, const rt_session_options *so,
                  const rt_step_options *sto, Error *err)
{
    Counted c;
    Stages on = *have;
    rt_options all = *o;
    *out = (Ask) { .have = have, .o = o, .so = so, .sto = sto, .there = engine_free(have) };
    all.expert_vram = 0;
    for (int32_t k = 0; k < devices(out); k++) on.at[k].end = 0;
    TRY(count_all(&c, &on, &all, so, sto, err));
    out->layers = c.layers;
    out->experts = c.experts;
    out->each = c.all.in[stages_last(have)->device] / (uint64_t) c.layers + 1;
    out->apart = true;
    bool known = true;
    for (int32_t k = 1; k <= devices(out); k++) {
        known = known && room_in(out, k) > 0;
        out->apart = out->apart && !have->at[k].be->shares;
    }
    for (int32_t k = 1; k <= devices(out); k++) out->room[k] = known ? (double) room_in(out, k) : 1;
    return ST_OK;
}

static int32_t layers_on(const Stages *s, int32_t k, int32_t layers)
{
    const int32_t from = k ? s->at[k - 1].end : 0, end = s->at[k].end;
    return from < layers ? (end < layers ? end : layers) - from : 0;
}

/* The CPU and the devices run so many layers each, all together. */
static Stages stages_with(const Ask *a, const int32_t layers[STAGES_MAX])
{
    Stages on = *a->have;
    for (int32_t k = 0, end = 0; k < on.n; k++) {
        end += layers[k];
        on.at[k].end = end < a->layers ? end : INT32_MAX;
    }
    return on;
}

/* Gives the devices the last n layers in these shares. */
static Stages divide(const Ask *a, int32_t n, const double share[STAGES_MAX])
{
    int32_t layers[STAGES_MAX] = { a->layers - n }, given = 0;
    double all = 0, upto = 0;
    for (int32_t k = 1; k <= devices(a); k++) all += share[k];
    for (int32_t k = 1; k <= devices(a); k++) {
        upto += share[k];
        layers[k] = (k == devices(a) ? n : (int32_t) lround(upto / all * n)) - given;
        given += layers[k];
    }
    return stages_with(a, layers);
}

static bool has_room_for(const Ask *a, const Answer *x)
{
    bool shares = false;
    for (int32_t k = 1; k <= devices(a); k++) {
        shares = shares || a->have->at[k].be->shares;
        if (a->there.in[k] > 0 && (!x->roomy || x->need.in[k] > room_in(a, k))) return false;
    }
    if ((x->host == 0 && !shares) || a->there.in[IN_MAIN] == 0) return true;
    return x->need.in[IN_MAIN] <= without_share(a->there.in[IN_MAIN], x->host ? EXPERT_MARGIN : DEVICE_MARGIN);
}

/* The layers are divided so; what each device holds then; and how full they are, the fullest first. */
typedef struct { Stages on; Answer x; double full[DEVICES_MAX]; } Division;

static bool same_ends(const Stages *a, const Stages *b)
{
    int32_t k = 0;
    while (k < a->n && a->at[k].end == b->at[k].end) k++;
    return k == a->n;
}

/* Of the fullest devices, and where these are as full, of the next. */
static bool less_full(const Division *a, const Division *b, int32_t n)
{
    int32_t i = 0;
    while (i < n && a->full[i] == b->full[i]) i++;
    return i < n && a->full[i] < b->full[i];
}

/* Counts this division. It becomes the best one, if it is better; best->on.n 0: there is none yet. */
static Status consider(bool *better, Division *best, const Ask *a, const Stages *on, uint64_t vram, Error *err)
{
    Division d = { .on = *on };
    const int32_t n = devices(a);
    TRY(count_on(&d.x, a, on, vram, err));
    for (int32_t i = 0; i < n; i++) {
        const double full = (double) d.x.need.in[IN_DEVICE + i] / a->room[IN_DEVICE + i];
        int32_t at = i;
        for (; at > 0 && d.full[at - 1] < full; at--) d.full[at] = d.full[at - 1];
        d.full[at] = full;
    }
    *better = best->on.n == 0 || less_full(&d, best, n);
    if (*better) *best = d;
    return ST_OK;
}

/* Gives each device what it lacks, in layers as they are on average, for as long as that helps: this is the best
 * division, or one beside it. room 0: it gets none. */
static Status level_out(Division *best, const Ask *a, int32_t n, const double *room, uint64_t vram, Error *err)
{
    double share[STAGES_MAX] = { 0 }, rooms = 0;
    for (int32_t k = 1; k <= devices(a); k++) rooms += share[k] = room[k];
    for (bool better = true; better;) {
        const Stages next = divide(a, n, share);
        double all = 0;
        if (best->on.n && same_ends(&next, &best->on)) break;
        TRY(consider(&better, best, a, &next, vram, err));
        for (int32_t k = 1; k <= devices(a); k++) all += (double) best->x.need.in[k];
        for (int32_t k = 1; k <= devices(a); k++) {
            const double lacks = all / rooms * room[k] - (double) best->x.need.in[k];
            share[k] = fmax(0, layers_on(&best->on, k, a->layers) + lacks / (double) a->each);
        }
    }
    return ST_OK;
}

/* One layer fewer on the fullest device and one more on another, if there is one with which that is better. */
static Status move_layer(bool *better, Division *best, const Ask *a, uint64_t vram, Error *err)
{
    int32_t layers[STAGES_MAX], from = 1;
    *better = false;
    for (int32_t k = 0; k <= devices(a); k++) layers[k] = layers_on(&best->on, k, a->layers);
    for (int32_t k = 2; k <= devices(a); k++)
        if ((double) best->x.need.in[k] / a->room[k] > (double) best->x.need.in[from] / a->room[from]) from = k;
    if (layers[from]-- == 0) return ST_OK;
    for (int32_t to = 1; to <= devices(a) && !*better; to++) {
        if (to == from) continue;
        layers[to]++;
        const Stages next = stages_with(a, layers);
        TRY(consider(better, best, a, &next, vram, err));
        layers[to]--;
    }
    return ST_OK;
}

/* Each device is as full as the others, as far as whole layers allow; enough: as far as there has to be room. */
static Status divide_well(Division *best, const Ask *a, int32_t n, const double *room, uint64_t vram, bool enough,
                          Error *err)
{
    bool better = true;
    *best = (Division) { 0 };
    TRY(level_out(best, a, n, room, vram, err));
    while (better && !(enough && has_room_for(a, &best->x))) TRY(move_layer(&better, best, a, vram, err));
    return ST_OK;
}

/* With its first layer a device takes its workspace, so small ones may be better left out. */
static Status leave_out(Division *best, const Ask *a, int32_t n, uint64_t vram, bool enough, Error *err)
{
    double room[STAGES_MAX];
    Division fewer;
    memcpy(room, a->room, sizeof room);
    for (int32_t left = devices(a); left > 1 && !has_room_for(a, &best->x); left--) {
        int32_t least = 0;
        for (int32_t k = 1; k <= devices(a); k++)
            if (room[k] > 0 && (least == 0 || room[k] < room[least])) least = k;
        room[least] = 0;
        TRY(divide_well(&fewer, a, n, room, vram, enough, err));
        if (less_full(&fewer, best, devices(a))) *best = fewer;
    }
    return ST_OK;
}

/* The last n layers on devices, and how they are divided. */
static Status count_layers(Answer *out, Stages *on, const Ask *a, int32_t n, uint64_t vram, bool enough, Error *err)
{
    Division best = { 0 };
    bool first;
    if (devices(a) > 1 && n > 0 && a->apart) {
        TRY(divide_well(&best, a, n, a->room, vram, enough, err));
        TRY(leave_out(&best, a, n, vram, enough, err));
    } else {
        const Stages by_room = divide(a, n, a->room);
        TRY(consider(&first, &best, a, &by_room, vram, err));
    }
    *out = best.x;
    *on = best.on;
    return ST_OK;
}

/* How n layers can run: with all experts, or with as many as fit. *vram: as in rt_options, and not RT_EXPERTS_AUTO. */
static Status fits(bool *out, Stages *on, uint64_t *vram, const Ask *a, int32_t n, Error *err)
{
    const bool automatic = a->o->expert_vram == RT_EXPERTS_AUTO;
    Answer x;
    *vram = automatic ? 0 : a->o->expert_vram;
    TRY(count_layers(&x, on, a, n, *vram, true, err));
    *out = has_room_for(a, &x);
    if (*out || !automatic || least_for(a->experts) == 0) return ST_OK;
    Status st = count_layers(&x, on, a, n, least_for(a->experts), true, err);
    if (st == ST_ARG) return ST_OK;                /* there are too few experts to leave any out */
    if (st != ST_OK || x.host == 0) return st;     /* or the device must hold them all */
    const uint64_t rest = x.need.in[IN_DEVICE] - x.slots + x.spare + stages_last(a->have)->page,
                   room = room_in(a, IN_DEVICE);
    *out = has_room_for(a, &x);
    *vram = rest + least_for(a->experts) < room ? room - rest : least_for(a->experts);
    return ST_OK;
}

/* The most layers that fit, with a margin. */
static Status layers_that_fit(int32_t *out, Stages *on, uint64_t *vram, const Ask *a, Error *err)
{
    Answer x;
    int32_t fit = 0, over = a->layers + 1, n = a->layers;              /* all is tried first */
    *vram = 0;
    *on = divide(a, 0, a->room);
    while (fit + 1 < over) {
        bool does;
        uint64_t with;
        Stages so;
        TRY(fits(&does, &so, &with, a, n, err));
        if (does) fit = n, *vram = with, *on = so;
        else over = n;
        n = fit + (over - fit) / 2;
    }
    *out = fit;
    return devices(a) > 1 && fit > 0 ? count_layers(&x, on, a, fit, *vram, false, err) : ST_OK;
}

/* As the caller says. */
static Status place_as_told(Stages *on, const Ask *a, int32_t n, Error *err)
{
    int32_t layers[STAGES_MAX] = { a->layers - n }, sum = 0;
    for (int32_t k = 1; k <= devices(a); k++) {
        layers[k] = a->o->card_layers[k - 1];
        if (layers[k] < 0 || layers[k] > n - sum)
            return fail(err, ST_ARG, "card_layers: %d for %s, expected numbers whose sum is %d", layers[k],
                        a->have->at[k].be->name, n);
        sum += layers[k];
    }
    if (sum < n) return fail(err, ST_ARG, "card_layers: %d in all, expected %d", sum, n);
    *on = stages_with(a, layers);
    return ST_OK;
}

Status engine_place(Stages *have, rt_options *o, const rt_session_options *so, const rt_step_options *sto, Error *err)
{
    if (have->n != 2 && o->expert_vram == RT_EXPERTS_AUTO) o->expert_vram = 0;
    const bool automatic = o->expert_vram == RT_EXPERTS_AUTO;
    if (o->gpu_layers < RT_LAYERS_NONE)
        return fail(err, ST_ARG, "gpu_layers: %d, expected a number of layers (0: all, -1: as many as fit, -2: none)",
                    o->gpu_layers);
    if (have->n > 2 && o->expert_vram > 0)
        return fail(err, ST_UNSUPPORTED, "expert_vram: several cards hold all experts of their layers; expected 0, or "
                    "one card");
    if (have->n == 1 || (have->n == 2 && o->gpu_layers == 0 && !automatic)) return ST_OK;
    const rt_options asked = *o;
    Ask a;
    Stages on;
    Answer x;
    bool does;
    int32_t n = o->gpu_layers;
    TRY(ask(&a, have, &asked, so, sto, err));
    if (n == 0 || n > a.layers) n = a.layers;
    if (n < 0) TRY(layers_that_fit(&n, &on, &o->expert_vram, &a, err));
    else if (automatic) TRY(fits(&does, &on, &o->expert_vram, &a, n, err));
    else if (have->n > 2 && o->card_layers) TRY(place_as_told(&on, &a, n, err));
    else if (have->n > 2) TRY(count_layers(&x, &on, &a, n, o->expert_vram, false, err));
    else on = divide(&a, n, a.room);
    *have = on;
    return ST_OK;
}

Status engine_check_device(const Stages *have, const rt_options *o, Error *err)
{
    const rt_session_options smallest = { .ctx = ROWS_DECODE, .checkpoints = -1, .ngram = -1 };
    bool shares = false, known = false;
    Ask a;
    Answer x;
    Stages on;
    int32_t fit, full = 1;
    uint64_t vram;
    if (have->n == 1 || have->at[0].end == INT32_MAX || o->overcommit) return ST_OK;
    const Amount there = engine_free(have);
    for (int32_t k = 1; k < have->n; k++) {
        shares = shares || have->at[k].be->shares;
        known = known || there.in[k] > 0;
    }
    if (!known && !shares) return ST_OK;
    TRY(ask(&a, have, o, &smallest, NULL, err));
    TRY(count_on(&x, &a, have, o->expert_vram, err));
    const bool host = (x.host > 0 || shares) && there.in[IN_MAIN] > 0 && x.need.in[IN_MAIN] > there.in[IN_MAIN];
    while (full < have->n && (there.in[full] == 0 || x.need.in[full] <= there.in[full])) full++;
    if (full == have->n && !host) return ST_OK;
    a.so = NULL;
    TRY(layers_that_fit(&fit, &on, &vram, &a, err));
    char hint[64] = "nothing would fit";
    if (fit) snprintf(hint, sizeof hint, "%d would fit%s", fit, o->card_layers ? " without card_layers" : "");
    if (full < have->n && have->n > 2)
        return fail(err, ST_MEMORY, "gpu_layers: the %d of %d layers on %s take %.2f GB of device memory, but %.2f GB "
                    "are free there; %s", layers_on(have, full, a.layers), a.layers,
                    have->at[full].be->name, (double) x.need.in[full] / 1e9, (double) there.in[full] / 1e9, hint);
    if (full < have->n)
        return fail(err, ST_MEMORY, "gpu_layers: %d of %d layers take %.2f GB of device memory, but %.2f GB are free "
                    "on %s; %s", layers_on(have, full, a.layers), a.layers,
                    (double) x.need.in[full] / 1e9, (double) there.in[full] / 1e9, have->at[full].be->name, hint);
    return fail(err, ST_MEMORY, "gpu_layers: %d of %d layers %s main memory take %.2f GB there, but %.2f GB are free; "
                "%s", a.layers - have->at[0].end, a.layers, x.host ? "with experts in" : "on a device that shares",
                (double) x.need.in[IN_MAIN] / 1e9, (double) there.in[IN_MAIN] / 1e9, hint);
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
    const char *device;                            /* whose memory that is, if there are several; else "" */
} PlanParts;

static void plan_part(void *ud, const char *owner, const char *name, size_t bytes)
{
    const PlanParts *p = ud;
    rt_needs *n = p->needs;
    const bool main = p->memory == IN_MAIN;
    rt_card_needs *c = &n->card[main ? 0 : p->memory - IN_DEVICE];
    uint64_t *const sum[][3] = { { &n->model, &n->device_model, &c->model },
                                 { &n->drafter, &n->device_drafter, &c->drafter },
                                 { &n->session, &n->device_session, &c->session },
                                 { &n->step, &n->device_step, &c->step }, { &n->process, NULL, NULL } };
    static const char *const owners[] = { "model", "drafter", "session", "step", "process" };
    for (size_t i = 0; i < sizeof sum / sizeof *sum; i++) {
        if (strcmp(owner, owners[i]) != 0) continue;
        if (main) *sum[i][0] += bytes;
        else *sum[i][1] += bytes, *sum[i][2] += bytes;
    }
    char full[64];
    snprintf(full, sizeof full, "%s%s%s%s", main ? "" : RT_DEVICE, main ? "" : p->device,
             main || !*p->device ? "" : " ", name);
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
    n->cards = have->n - 1;
    for (int32_t k = 0; k < p->g->on.n; k++) {
        Backend *be = p->g->on.at[k].be;
        parts->memory = memory_of(be);
        parts->device = n->cards > 1 ? be->name : "";
        backend_null_parts(be, plan_part, parts);
        if (be->device) n->card[be->device - 1].layers = layers_on(&p->g->on, k, p->g->model->n_layers);
    }
    plan_rest(parts, p, tables);
    have->at[0].be->memory(have->at[0].be, &n->free, &n->total);
    for (int32_t i = 0; i < n->cards; i++) {
        rt_card_needs *c = &n->card[i];
        Backend *be = have->at[i + 1].be;
        be->memory(be, &c->free, &c->total);
        c->free = without_share(c->free, DEVICE_MARGIN);
        snprintf(c->backend, sizeof c->backend, "%s", be->name);
        n->device_free += c->free;
        n->device_total += c->total;
        n->gpu_layers += c->layers;
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
        plan_parts(&(PlanParts) { needs, part, ud, IN_MAIN, "" }, &p, &have, after > before ? after - before : 0);
    plan_close(&p);
    backends_close(&have);
    return st;
}
