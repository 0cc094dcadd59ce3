/* ratoon plan: does it fit, and how fast will it be? The verdict is the first line; then memory by part, before any of
 * it is taken; and where it does not fit, what would. Of a model that a hub has and this machine has not, only the
 * header is read. */
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "programs/advice.h"
#include "programs/cards.h"
#include "programs/drafters.h"
#include "programs/estimate.h"
#include "programs/expert_profile.h"
#include "programs/hub/hub_cache.h"
#include "programs/hub/hub_remote.h"

typedef struct {
    Options  o;
    Program  p;
    Memory   memory;
    HubRemote target, draft;                       /* headers of what is not on this machine; else empty */
    char     draft_repo[256];                      /* the published drafter that is planned with */
    size_t   program;                              /* resident before anything was done */
    bool     server, timed;                        /* planned as `serve` would take it; speeds are known */
    rt_peaks peaks;
    rt_card  card;                                 /* the GPU by whose clocks they are known; name "": measured */
    Costs    costs, in_memory;                     /* in_memory: if all experts were there */
    ExpertTier tier;                               /* where memory holds only some experts */
    double   plain, talk, code;                    /* tokens per second; talk, code: with the drafter */
    json_t  *parts, *offers;
    double   total, total_gpu;                     /* of main memory, and of the GPU's */
} Plan;

/* The drafter is a file of its own or a layer of the model. */
static bool drafted(const Plan *x) { return x->memory.needs.draft_passes > 0; }

/* Speeds are bounds. */
static bool by_clocks(const Plan *x) { return x->card.name[0] != 0; }

/* Memory holds only some of a mixture's experts. */
static bool tiered(const Plan *x) { return x->memory.needs.expert_ram > 0; }

/* What this process may take in all: what is free, and what it has; 0: unknown. */
static double room_of(const Plan *x)
{
    return x->memory.needs.free ? (double) x->memory.needs.free + (double) x->program : 0;
}

static uint64_t download(const Plan *x) { return x->target.bytes + (drafted(x) ? x->draft.bytes : 0); }

/* ---- facts ---- */

/* Resident memory of this process before it does anything: its code, the libraries, the C library's own memory. */
static size_t resident(void)
{
    long long size = 0, pages = 0;
    FILE *f = fopen("/proc/self/statm", "re");
    if (!f) return 0;
    if (fscanf(f, "%lld %lld", &size, &pages) != 2) pages = 0;
    fclose(f);
    return (size_t) pages * (size_t) sysconf(_SC_PAGESIZE);
}

static void add_part(Plan *x, const char *owner, const char *name, double bytes)
{
    const size_t n = strlen(RT_DEVICE);
    const bool gpu = strncmp(name, RT_DEVICE, n) == 0;
    if (bytes == 0) return;
    *(gpu ? &x->total_gpu : &x->total) += bytes;
    name += gpu ? n : 0;
    const size_t card = gpu && x->memory.needs.cards > 1 ? strcspn(name, " ") : 0;
    json_t *part = json_pack("{s:s s:s s:b s:I}", "owner", owner, "name", name + (card ? card + 1 : 0), "gpu", gpu,
                             "bytes", (json_int_t) bytes);
    if (card) json_object_set_new(part, "card", json_stringn(name, card));
    json_array_append_new(x->parts, part);
}

/* The process's tables were measured once, by memory_plan. */
static void on_part(void *ud, const char *owner, const char *name, size_t bytes)
{
    Plan *x = ud;
    if (strcmp(owner, "process") == 0) return;
    add_part(x, owner, name, (double) bytes * (strcmp(owner, "session") == 0 ? x->memory.sessions : 1));
}

static bool list_parts(Plan *x)
{
    rt_needs again;
    rt_error e = { 0 };
    rt_session_options so = program_session_options(&x->o);
    rt_step_options st = program_step_options(&x->p);
    so.ctx = x->memory.ctx;
    st.sessions = x->memory.sessions;
    if (program_plan(&x->p, &so, &st, on_part, x, &again, &e) != RT_OK) return complain(&x->o, "%s", e.text) == 0;
    add_part(x, "process", "tables", (double) x->memory.needs.process);
    add_part(x, "process", "program", (double) x->program);
    return true;
}

/* Speeds are of no use for what does not fit, and measuring takes memory of its own. */
static void measure(Plan *x)
{
    rt_error e = { 0 };
    const rt_needs *n = &x->memory.needs;
    if (!memory_fits(&x->memory)) return;
    if (n->canvas) {
        note(&x->o, "no speeds: the model denoises blocks of %d tokens, in up to %d steps, as few as its text needs",
             n->canvas, n->canvas_steps);
        return;
    }
    if (memory_cut(n)) {
        note(&x->o, n->expert_vram ? "no speeds: the GPU reads experts in main memory"
                        : "no speeds: the CPU runs a part of the layers");
        return;
    }
    if (tiered(x)) {
        if (!x->target.path[0]) x->tier = experts_measure(&x->p, n);
        if (x->tier.disk_bytes_per_s == 0) {
            note(&x->o, "no speeds: how fast experts can be read from the model's file is not known");
            return;
        }
    }
    if (machine_peaks(&x->peaks, &x->p, &x->memory.needs, &e) != RT_OK) {
        note(&x->o, "no speeds: %s", e.text);
        return;
    }
    const Published known = reach_published(n);
    costs_estimate(&x->in_memory, n, &x->peaks, 0);
    x->costs = x->in_memory;
    if (tiered(x)) costs_experts(&x->costs, n, &x->tier);
    x->plain = costs_plain(&x->costs);
    x->talk = costs_drafted(&x->costs, &known.talk, NULL);
    x->code = costs_drafted(&x->costs, &known.code, NULL);
    x->timed = interrupts == 0;
    if (n->gpu_layers) card_named(&x->card, program_backend(&x->p));
}

/* ---- models that are not here ---- */

/* Replaces *name by the path of a stub, unless it means a file on this machine. */
static bool read_header(const char **name, HubRemote *r, const Options *o, const char *text, HubKind kind)
{
    char path[HUB_PATH];
    if (!text || hub_find_local(path, text, kind)) return true;
    if (o->offline) return complain(o, "%s is not on this machine, and --offline asks no hub", text) == 0;
    if (!hub_remote_open(r, o, text, kind)) return false;
    *name = r->path;
    return true;
}

static const char *if_remote(const char *name) { return name && hub_prefix(name) ? name : NULL; }

/* The drafter that is published for a model which is not here; a gated one asks for an account first. */
static void find_published(Plan *x)
{
    Drafters *table;
    Error err = { 0 };
    PublishedDrafter found;
    const DraftTarget t = { .names = { base_name(x->target.file), x->target.repo.name.repo } };
    Options quiet = x->o;                          /* without a drafter there is still a plan */
    quiet.json = false;
    if (drafters_open(&table, &err) != ST_OK) return;
    if (drafters_for_target(table, &found, 1, &t) > 0) {
        drafter_name(x->draft_repo, sizeof x->draft_repo, &found);
        if (found.gated) note(&x->o, "its drafter %s asks to accept terms first: planned without", x->draft_repo);
        else if (hub_remote_open(&x->draft, &quiet, x->draft_repo, HUB_DRAFTER)) x->o.draft = x->draft.path;
        if (!x->o.draft) x->draft_repo[0] = 0;
    }
    drafters_close(table);
}

static bool read_headers(Plan *x)
{
    Options *o = &x->o;
    const char *asked = o->hf_repo ? o->hf_repo : if_remote(o->model);
    if (o->hf_repo && o->model) return true;       /* files_find refuses both */
    if (!read_header(&o->model, &x->target, o, asked, HUB_TARGET)) return false;
    if (x->target.path[0]) o->hf_repo = NULL;
    if (o->draft) return read_header(&o->draft, &x->draft, o, if_remote(o->draft), HUB_DRAFTER);
    if (x->target.path[0]) find_published(x);
    return true;
}

/* ---- what would fit ---- */

/* In both memories. */
static double whole(const Memory *m, int32_t ctx) { return memory_bytes(m, ctx) + memory_bytes_gpu(m, ctx); }

static void offer(Plan *x, const char *what, const char *value, double bytes)
{
    json_array_append_new(x->offers, json_pack("{s:s s:s s:I}", "option", what, "value", value, "total_bytes",
                                               (json_int_t) (bytes + (double) x->program)));
}

/* The same plan with other options; of a context of the same size, unless that is not what is asked. */
static bool plan_with(Memory *out, const Plan *x, Options *o)
{
    rt_error e = { 0 };
    Program p = { .o = o, .files = x->p.files, .card = x->p.card, .plans = true, .settled = true };
    memcpy(p.place.backend, x->p.place.backend, sizeof p.place.backend);
    o->ctx = x->memory.ctx;
    o->quiet = true;
    if (o->draft && strcmp(o->draft, "none") == 0) p.files.draft[0] = 0, p.files.own = false;
    return memory_plan(out, &p, x->memory.sessions, x->server, &e) == RT_OK;
}

/* Layers that the GPU's memory has no room for run on the CPU. */
static void offer_layers(Plan *x)
{
    char text[24];
    Memory m;
    Options o = x->o;
    o.gpu_layers = RT_LAYERS_AUTO;
    if (memory_fits_gpu(&x->memory, NULL) || !plan_with(&m, x, &o) || !memory_fits(&m)) return;
    snprintf(text, sizeof text, "%d", m.needs.gpu_layers);
    offer(x, "--gpu-layers", text, whole(&m, m.ctx));
}

/* Experts that memory has no room for are read from the file. */
static void offer_experts(Plan *x)
{
    Memory m;
    Options o = x->o;
    o.expert_ram = (Seed) { RT_EXPERTS_AUTO, true };
    if (x->memory.needs.experts && x->o.expert_ram.given && plan_with(&m, x, &o) && memory_fits(&m))
        offer(x, "--expert-ram", "auto", whole(&m, m.ctx));
}

static void offer_types(Plan *x)
{
    static const char *const types[] = { "q8_0", "q5_1", "q4_0", "tq3_0" };
    Memory m;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        Options o = x->o;
        o.kv_k = o.kv_v = types[i];
        if (plan_with(&m, x, &o) && memory_fits(&m))
            offer(x, "--cache-type-k and --cache-type-v", types[i], whole(&m, m.ctx));
    }
}

/* Other files of the same repository, the largest first: their weights in place of these, and as many of them in the
 * GPU's memory. */
static void offer_quants(Plan *x)
{
    enum { MOST = 3 };
    char name[300];
    const HubVariants *v = &x->target.variants;
    const rt_needs *n = &x->memory.needs;
    const double model = (double) (n->model + n->device_model);
    for (size_t i = v->n, said = 0; i-- > 0 && said < MOST;) {
        Memory m = x->memory;
        const double more = (double) v->at[i].bytes - (double) x->target.bytes;
        m.main.fixed += more * (double) n->model / model;
        for (int32_t k = 0; k < n->cards; k++) m.gpu[k].fixed += more * (double) n->card[k].model / model;
        if (!v->at[i].quant[0] || !memory_fits(&m)) continue;
        snprintf(name, sizeof name, "%s:%s", x->target.repo.name.repo, v->at[i].quant);
        offer(x, "-hf", name, whole(&m, m.ctx));
        said++;
    }
}

static void make_offers(Plan *x)
{
    Memory m = x->memory;
    rt_error e;
    char text[24];
    const bool chosen = memory_choose(&m, &x->p, 0.98, 0, INT32_MAX, &e) == RT_OK;
    snprintf(text, sizeof text, "%d", m.ctx);
    if (chosen && m.ctx > 0) offer(x, "--ctx", text, whole(&m, m.ctx));
    offer_layers(x);
    offer_experts(x);
    offer_types(x);
    Options o = x->o;
    o.draft = "none";
    if (drafted(x) && plan_with(&m, x, &o) && memory_fits(&m))
        offer(x, "-d", "none", whole(&m, m.ctx));
    offer_quants(x);
}

/* ---- words ---- */

static const char *verdict(const Plan *x)
{
    return x->memory.needs.free == 0 ? "unknown" : memory_fits(&x->memory) ? "fits" : "does not fit";
}


static const char *drafter_said(const Plan *x)
{
    if (x->draft.path[0]) return x->draft_repo[0] ? x->draft_repo : x->draft.repo.name.repo;
    return strcmp(x->p.files.draft, "mtp") == 0 || !x->p.files.draft[0] ? "the model's own MTP layer"
                                                                        : base_name(x->p.files.draft);
}

static double held(const Plan *x)
{
    const rt_needs *n = &x->memory.needs;
    return tiered(x) ? fmin(1, (double) n->expert_ram / (double) n->expert_bytes) : 1;
}

static void print_verdict(const Plan *x)
{
    char need[24], room[24], ctx[24], a[24], b[24], gpu[MEMORY_GPU_TEXT];
    const Memory *m = &x->memory;
    memory_pair(need, room, x->total, room_of(x));
    printf("needs %s with %s context", need, tokens_text(ctx, m->ctx));
    if (x->server) printf(" for each of %d sessions", m->sessions);
    if (m->needs.free == 0) printf(", and how much is free is unknown");
    else printf(", %s free", room);
    printf("%s", memory_gpu_text(gpu, m));
    if (m->needs.free) printf(": %s", verdict(x));
    if (tiered(x)) printf(" with %.0f %% of the experts in memory", 100 * held(x));
    if (x->timed) printf("; %s %s tokens/s plain", by_clocks(x) ? "up to" : "about", rate_text(a, x->plain));
    if (x->timed && drafted(x)) {
        printf(", %s to %s with drafter %s", rate_text(a, x->talk), rate_text(b, x->code), drafter_said(x));
    }
    puts(!x->timed ? "" : by_clocks(x) ? " (a bound, by the card's clocks)" : " (estimate)");
}

static void print_offers(const Plan *x)
{
    char text[24];
    size_t i;
    json_t *one;
    if (json_array_size(x->offers) == 0)
        puts("no context and no type of keys and values would: it takes a smaller model or quantisation");
    json_array_foreach(x->offers, i, one)
        printf("would fit: %s %s, %s\n", json_string_value(json_object_get(one, "option")),
               json_string_value(json_object_get(one, "value")),
               memory_text(text, (double) json_integer_value(json_object_get(one, "total_bytes"))));
}

/* Of main memory, or of a card's; card NULL: the only one. */
static void print_parts(const Plan *x, bool gpu, const char *card, double total)
{
    char text[24];
    size_t i;
    json_t *part;
    putchar('\n');
    json_array_foreach(x->parts, i, part) {
        const double bytes = (double) json_integer_value(json_object_get(part, "bytes"));
        const char *of = json_string_value(json_object_get(part, "card"));
        if (json_is_true(json_object_get(part, "gpu")) != gpu || (card && strcmp(of, card) != 0)) continue;
        printf("%-9s %-22s %10s  %5.1f %%\n", json_string_value(json_object_get(part, "owner")),
               json_string_value(json_object_get(part, "name")), memory_text(text, bytes), 100 * bytes / total);
    }
    printf("total%s%-*s %10s\n", gpu ? " on " : "", gpu ? 23 : 27, !gpu ? "" : card ? card : "the GPU",
           memory_text(text, total));
}

static void print_free(const char *of, uint64_t there, uint64_t total)
{
    char a[24], b[24];
    if (!there) return;
    printf("free memory%s%-*s %10s of %s\n", *of ? " of " : "", *of ? 17 : 21, of, memory_text(a, (double) there),
           memory_text(b, (double) total));
}

static void print_tables(const Plan *x)
{
    const rt_needs *n = &x->memory.needs;
    print_parts(x, false, NULL, x->total);
    print_free("", (uint64_t) room_of(x), n->total);
    for (int32_t i = 0; i < n->cards; i++) {
        const rt_card_needs *c = &n->card[i];
        const char *name = n->cards > 1 ? c->backend : NULL;
        if (c->layers > 0 && x->total_gpu > 0)
            print_parts(x, true, name, name ? memory_bytes_card(&x->memory, i) : x->total_gpu);
        print_free(name ? name : "the GPU", c->free, c->total);
    }
}

/* What other amounts of memory for experts would bring, and this one, ascending. */
enum { EXPERT_ROWS = 5 };
typedef struct { double share[EXPERT_ROWS], hits[EXPERT_ROWS], tok_s[EXPERT_ROWS]; } ExpertRows;
static ExpertRows expert_rows(const Plan *x)
{
    ExpertRows r;
    bool own = false;
    for (int32_t n = 0; n < EXPERT_ROWS; n++) {
        const double next = 0.25 * (n + !own), mine = x->tier.share;
        const bool here = !own && (mine < next || n == EXPERT_ROWS - 1);
        r.share[n] = here ? mine : next;
        own |= here;
    }
    expert_profile_hits(&x->p, r.hits, r.share, EXPERT_ROWS);
    for (int32_t n = 0; n < EXPERT_ROWS; n++) {
        Costs c = x->in_memory;
        costs_experts(&c, &x->memory.needs, &(ExpertTier) { r.share[n], r.hits[n], x->tier.disk_bytes_per_s });
        r.tok_s[n] = costs_plain(&c);
    }
    return r;
}

static void print_experts(const Plan *x)
{
    char a[24], b[24];
    const rt_needs *n = &x->memory.needs;
    const double all = (double) n->expert_bytes;
    if (!tiered(x)) return;
    printf("experts    %s of %s are in memory, the others are read from the file when they are used\n",
           memory_text(a, (double) n->expert_ram), memory_text(b, all));
    if (!x->timed) return;
    const ExpertRows r = expert_rows(x);
    printf("           the disk gives %s/s just now; which are used %s\n", memory_text(a, x->tier.disk_bytes_per_s),
           x->p.profile.there ? "says the profile" : "is not known (--spark learns it): all alike");
    printf("           --expert-ram              found   tokens/s plain (estimate)\n");
    for (int32_t i = 0; i < EXPERT_ROWS; i++)
        printf("           %10s (%3.0f %%)  %10.0f %%   %s%s\n", memory_text(a, r.share[i] * all), 100 * r.share[i],
               100 * r.hits[i], rate_text(b, r.tok_s[i]), r.share[i] == x->tier.share ? "   this plan" : "");
}

static void print_rest(const Plan *x)
{
    char a[24], b[24], c[24], hint[200];
    const Memory *m = &x->memory;
    const rt_needs *n = &m->needs;
    const char *why = x->o.ctx ? "as given" : x->server ? "what serve takes by default: up to 128K, within 80 % of "
                      "what is free" : "the default: at most 8K and what fits";
    printf("\ncontext    %s tokens (%s); the model was trained for %s\n", tokens_text(a, m->ctx), why,
           tokens_text(b, n->ctx_train));
    if (kv_hint(hint, n->kv_bytes, n->kv_q8_bytes, (double) m->ctx * m->sessions)) printf("types      %s\n", hint);
    if (m->ctx > n->ctx_train) puts("           what lies beyond what it was trained for, a model often gets wrong");
    if (x->server)
        printf("sessions   %d, each with this context; besides, the prefix cache takes up to %s as it fills, and "
               "stored responses %s\n", m->sessions, memory_text(a, memory_prefix_cache(m, &x->o)),
               memory_text(b, memory_store(m, &x->o)));
    print_experts(x);
    if (download(x) > 0) printf("download   %s, before this can run\n", memory_text(a, (double) download(x)));
    if (!x->timed) return;
    printf("speed      a pass reads %s; %s reads %s/s and computes %s int8 Tops/s %s\n",
           memory_text(a, (double) n->pass_bytes), by_clocks(x) ? x->card.name : "this machine",
           memory_text(b, x->peaks.bytes_per_s), rate_text(c, x->peaks.int8_ops_per_s / 1e12),
           by_clocks(x) ? "at most, by its clocks" : "just now");
    if (drafted(x))
        puts("           with drafter: from talk and prose to code, by accept lengths that were published for others");
}

static json_t *speed_json(const Plan *x)
{
    if (!x->timed) return json_null();
    json_t *j = json_pack("{s:f s:b s:f s:f s:n s:n}", "plain_tok_s", x->plain, "by_clocks", by_clocks(x),
                          "bytes_per_s", x->peaks.bytes_per_s, "int8_ops_per_s", x->peaks.int8_ops_per_s,
                          "drafted_low_tok_s", "drafted_high_tok_s");
    if (drafted(x)) {
        json_object_set_new(j, "drafted_low_tok_s", json_real(x->talk));
        json_object_set_new(j, "drafted_high_tok_s", json_real(x->code));
    }
    return j;
}

static json_t *experts_json(const Plan *x)
{
    const rt_needs *n = &x->memory.needs;
    const char *profile = x->p.profile.path ? base_name(x->p.profile.path) : "";
    if (!tiered(x)) return json_null();
    json_t *rows = json_array();
    const ExpertRows r = x->timed ? expert_rows(x) : (ExpertRows) { 0 };
    for (int32_t i = 0; x->timed && i < EXPERT_ROWS; i++)
        json_array_append_new(rows, json_pack("{s:f s:I s:f s:f}", "share", r.share[i], "ram_bytes",
                                              (json_int_t) (r.share[i] * (double) n->expert_bytes), "hit_rate",
                                              r.hits[i], "plain_tok_s", r.tok_s[i]));
    return json_pack("{s:I s:I s:f s:o s:o s:o}", "ram_bytes", (json_int_t) n->expert_ram, "all_bytes",
                     (json_int_t) n->expert_bytes, "share", held(x), "profile",
                     x->p.profile.there ? json_text(profile, strlen(profile)) : json_null(), "disk_bytes_per_s",
                     x->timed ? json_real(x->tier.disk_bytes_per_s) : json_null(), "rows", rows);
}

static json_t *cards_json(const Plan *x)
{
    const rt_needs *n = &x->memory.needs;
    json_t *all = json_array();
    for (int32_t i = 0; i < n->cards; i++) {
        const rt_card_needs *c = &n->card[i];
        json_array_append_new(all, json_pack("{s:s s:I s:I s:I s:i}", "backend", c->backend, "total_bytes",
                                             (json_int_t) memory_bytes_card(&x->memory, i), "free_bytes",
                                             (json_int_t) c->free, "memory_bytes", (json_int_t) c->total, "layers",
                                             c->layers));
    }
    return all;
}

static bool print_json(const Plan *x)
{
    const Memory *m = &x->memory;
    const rt_needs *n = &m->needs;
    const char *model = base_name(x->p.files.model);
    json_t *j = json_pack("{s:s s:I s:I s:I s:i s:b s:i s:i}", "verdict", verdict(x), "total_bytes",
                          (json_int_t) x->total, "free_bytes", (json_int_t) room_of(x), "memory_bytes",
                          (json_int_t) n->total, "ctx", m->ctx, "ctx_given", x->o.ctx > 0, "ctx_train", n->ctx_train,
                          "sessions", m->sessions);
    json_object_set_new(j, "model", json_text(model, strlen(model)));
    json_object_set_new(j, "drafter", drafted(x) ? json_text(drafter_said(x), strlen(drafter_said(x))) : json_null());
    json_object_set_new(j, "prefix_cache_bytes",
                        json_integer(x->server ? (json_int_t) memory_prefix_cache(m, &x->o) : 0));
    json_object_set_new(j, "store_bytes", json_integer(x->server ? (json_int_t) memory_store(m, &x->o) : 0));
    json_object_set_new(j, "download_bytes", json_integer((json_int_t) download(x)));
    json_object_set_new(j, "speed", speed_json(x));
    json_object_set_new(j, "gpu", n->device_total == 0 && n->gpu_layers == 0 ? json_null() :
                        json_pack("{s:I s:I s:I s:i s:i}", "total_bytes", (json_int_t) x->total_gpu, "free_bytes",
                                  (json_int_t) n->device_free, "memory_bytes", (json_int_t) n->device_total, "layers",
                                  n->gpu_layers, "model_layers", n->layers));
    if (n->cards > 1) json_object_set_new(json_object_get(j, "gpu"), "cards", cards_json(x));
    json_object_set_new(j, "experts", experts_json(x));
    json_object_set(j, "parts", x->parts);
    json_object_set(j, "would_fit", x->offers);
    return json_print(&x->o, j);
}

static int report(const Plan *x)
{
    int status = EXIT_FINE;
    if (x->o.json) {
        if (!print_json(x)) status = EXIT_FAILED;
    } else {
        print_verdict(x);
        if (!memory_fits(&x->memory)) print_offers(x);
        print_tables(x);
        print_rest(x);
        status = output_done(&x->o);
    }
    return status != EXIT_FINE ? status : memory_fits(&x->memory) ? EXIT_FINE : EXIT_MISFIT;
}

static int make_plan(Plan *x)
{
    rt_error e = { 0 };
    x->p.files.found_draft |= x->draft_repo[0] != 0;                  /* nobody asked for it: it may be left out */
    if (memory_plan(&x->memory, &x->p, x->server ? x->o.parallel : 1, x->server, &e) != RT_OK)
        return complain_files(&x->o, e.text, &x->p.files);
    if (!list_parts(x)) return EXIT_FAILED;
    measure(x);
    if (!memory_fits(&x->memory)) make_offers(x);
    return interrupts ? EXIT_INTERRUPTED : report(x);
}

int cmd_plan(int argc, char **argv)
{
    static Plan x;                                 /* too large for a small stack */
    int status;
    x.program = resident();
    if (!options_read(&x.o, argc, argv, &status)) return status;
    x.server = x.o.parallel > 0;
    x.parts = json_array();
    x.offers = json_array();
    hear_interrupts();
    status = read_headers(&x) && program_find(&x.p, &x.o, WITH_DRAFTER | ONLY_PLANS) ? make_plan(&x) : EXIT_FAILED;
    hub_remote_close(&x.target);
    hub_remote_close(&x.draft);
    json_decref(x.parts);
    json_decref(x.offers);
    return status;
}
