#include "model_helper.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "remove_tree.h"

void assert_ok(Status st, const Error *err)
{
    if (st != ST_OK) fail_msg("status %d: %s", (int) st, err->text);
}

void assert_same(const void *a, const void *b, size_t n, const char *what, ...)
{
    if (memcmp(a, b, n) == 0) return;
    char line[256];
    va_list args;
    va_start(args, what);
    vsnprintf(line, sizeof line, what, args);
    va_end(args);
    size_t i = 0;
    while (((const uint8_t *) a)[i] == ((const uint8_t *) b)[i]) i++;
    fail_msg("%s: differs at byte %zu of %zu", line, i, n);
}

const char *cpu_named(const char *level)
{
    static char name[32];
    snprintf(name, sizeof name, level ? "cpu:%s" : "cpu", level);
    return name;
}

/* ---- rigs ---- */

RigOptions rig_options(TinyFamily family, int32_t ratio, bool device)
{
    RigOptions o = { .tm = tiny_model(family), .device = device, .kv = T_F32 };
    if (o.tm.k_heads) o.tm.v_heads = o.tm.k_heads * ratio;
    o.tm.context = 2048;
    return o;
}

RigOptions rig_with_draft(RigOptions o, bool dflash2)
{
    o.draft = true;
    o.td = tiny_draft(&o.tm);
    o.td.dflash2 = dflash2;
    o.layout = TINY_LLAMA_CPP;
    return o;
}

RigOptions rig_with_draft_kind(RigOptions o, DraftKind kind)
{
    o = rig_with_draft(o, kind == DRAFT_DFLASH2);
    o.td.laguna = kind == DRAFT_LAGUNA;
    if (o.td.laguna) o.td.mask_id = 12, o.td.gate_each = o.tm.family == TINY_LAGUNA;
    o.td.markov = kind == DRAFT_DSPARK;
    if (kind == DRAFT_LIBRARY) o.td.own_rows = o.tm.vocab / 3;
    return o;
}

RigOptions rig_with_mtp(RigOptions o)
{
    o.mtp = true;
    o.tm.n_mtp = 1;
    return o;
}

RigOptions rig_kind(int32_t kind, bool device)
{
    if (kind == 0) return rig_options(TINY_LLAMA, 1, device);
    if (kind == 1) return rig_options(TINY_QWEN3, 1, device);
    if (kind == 5) return rig_options(TINY_QWEN3MOE, 1, device);
    if (kind == 6) return rig_options(TINY_QWEN35MOE, 2, device);
    if (kind == 7) return rig_options(TINY_LAGUNA, 1, device);
    if (kind == 8) return rig_options(TINY_GEMMA4, 1, device);
    if (kind == 9) return rig_options(TINY_GEMMA4MOE, 1, device);
    return rig_options(TINY_QWEN35, kind - 1, device);
}

bool rig_has_mtp(int32_t kind)
{
    const TinyFamily f = rig_kind(kind, false).tm.family;
    return f == TINY_QWEN35 || f == TINY_QWEN35MOE;
}

static void open_models(Rig *r)
{
    Error err = { 0 };
    char path[128];
    ModelOptions mo = { .lends = r->o.draft || r->o.mtp, .k_type = r->o.kv, .v_type = r->o.kv_v ? r->o.kv_v : r->o.kv };
    snprintf(path, sizeof path, "%s/m.gguf", r->dir);
    assert_ok((r->o.write ? r->o.write : tiny_model_write)(&r->o.tm, path, &err), &err);
    assert_ok(gguf_open(&r->file, path, &err), &err);
    Stages stages = stages_one(r->be);
    if (r->o.cut) stages = (Stages) { .n = 2, .at = { { r->first, r->o.cut }, { r->be, INT32_MAX } } };
    assert_ok(model_open(&r->m, &stages, &(Weights) { .gguf = r->file }, NULL, &mo, &err), &err);
    if (!r->o.draft && !r->o.mtp) return;
    Weights w = { 0 };
    mo.keep_types = true;
    if (r->o.mtp) {
        mo.mtp = true;
        w.gguf = r->file;
        assert_ok(model_open(&r->dm, &stages, &w, r->m, &mo, &err), &err);
        assert_ok(model_set_taps(r->m, r->dm->tap, r->dm->n_taps, &err), &err);
        return;
    }
    snprintf(path, sizeof path, r->o.layout == TINY_HF ? "%s/draft" : "%s/draft.gguf", r->dir);
    assert_ok(tiny_draft_write(&r->o.td, r->o.layout, path, &err), &err);
    if (r->o.layout == TINY_HF) {
        assert_ok(safetensors_open(&r->folder, path, &err), &err);
        w.st = r->folder;
    } else {
        assert_ok(gguf_open(&r->draft_file, path, &err), &err);
        w.gguf = r->draft_file;
    }
    assert_ok(model_open(&r->dm, &stages, &w, r->m, &mo, &err), &err);
    assert_ok(model_set_taps(r->m, r->dm->tap, r->dm->n_taps, &err), &err);
}

static Backend *open_backend(const RigOptions *o)
{
    Error err = { 0 };
    Backend *cpu, *device;
    const BackendOptions options = { .threads = o->threads ? o->threads : 1, .no_repack = o->in_place };
    assert_ok(backend_open(&cpu, o->backend ? o->backend : cpu_named(o->level), &options, &err), &err);
    if (!o->device) return cpu;
    assert_ok(device_backend_open(&device, cpu, &err), &err);
    return device;
}

static void close_backend(Backend *be, bool device)
{
    if (device) {
        assert_string_equal(device_log(be)->complaint, "");
        assert_int_equal(device_log(be)->live, 0);
    }
    be->close(be);
}

void rig_open(Rig *r, const RigOptions *o)
{
    *r = (Rig) { .o = *o };
    snprintf(r->dir, sizeof r->dir, "/tmp/ratoon-test-XXXXXX");
    assert_non_null(mkdtemp(r->dir));
    r->be = open_backend(o);
    if (o->cut) r->first = open_backend(o);
    open_models(r);
    remove_tree(r->dir);  /* they stay mapped, and a failing test leaves nothing behind */
}

void rig_close(Rig *r)
{
    model_close(r->dm);
    model_close(r->m);
    gguf_close(r->file);
    gguf_close(r->draft_file);
    safetensors_close(r->folder);
    close_backend(r->be, r->o.device);
    if (r->first) close_backend(r->first, r->o.device);
}

/* ---- behind the handles ---- */

void public_files(PublicRig *p, const RigOptions *o)
{
    Error err = { 0 };
    *p = (PublicRig) { 0 };
    snprintf(p->dir, sizeof p->dir, "/tmp/ratoon-test-XXXXXX");
    assert_non_null(mkdtemp(p->dir));
    snprintf(p->model, sizeof p->model, "%s/m.gguf", p->dir);
    assert_ok((o->write ? o->write : tiny_model_write)(&o->tm, p->model, &err), &err);
    if (!o->draft) return;
    snprintf(p->draft, sizeof p->draft, o->layout == TINY_HF ? "%s/draft" : "%s/draft.gguf", p->dir);
    assert_ok(tiny_draft_write(&o->td, o->layout, p->draft, &err), &err);
}

Backend *named_backend(const rt_options *o)
{
    Error err = { 0 };
    Stages have;
    assert_ok(engine_backends(&have, o, &err), &err);
    assert_int_equal(have.n, 1);
    return have.at[0].be;
}

void public_open(PublicRig *p, const RigOptions *o, const rt_hooks *hooks)
{
    Error err = { 0 };
    public_files(p, o);
    rt_options ro = RT_OPTIONS(.model = p->model, .draft = o->draft ? p->draft : o->mtp ? "mtp" : NULL,
                               .draft_type = "keep", .threads = o->threads ? o->threads : 1,
                               .kv_k = type_info(o->kv)->name, .kv_v = type_info(o->kv_v ? o->kv_v : o->kv)->name);
    if (hooks) ro.hooks = *hooks;
    p->be = named_backend(&ro);
    if (o->device) assert_ok(device_backend_open(&p->be, p->be, &err), &err);
    assert_ok(engine_open(&p->g, stages_one(p->be), ENGINE_RUNS, &ro, &err), &err);
}

void public_close(PublicRig *p)
{
    rt_close(p->g);
    remove_tree(p->dir);
}

void public_start(rt_step **st, rt_session **s, rt_engine *g, const rt_step_options *sto, const rt_session_options *so)
{
    rt_error e;
    if (rt_step_new(st, g, sto, &e) != RT_OK || rt_session_new(s, g, so, &e) != RT_OK) fail_msg("%s", e.text);
}

/* ---- passes by hand ---- */

void bench_open(Bench *b, Rig *r)
{
    *b = (Bench) { .r = r, .vocab = r->m->vocab };
    StepLimits lim = { .n_max = ROWS_DECODE + BENCH_CHUNK, .slices_max = 8, .chunk = BENCH_CHUNK,
                       .tap_width = r->m->tap_width, .dim = r->m->dim, .scratch_bytes = BENCH_SCRATCH };
    assert_ok(step_open(&b->step, &r->m->stages, &lim, &b->err), &b->err);
}

void bench_close(Bench *b) { step_close(&b->step); }

State *bench_state(Bench *b, int32_t n_ckpt)
{
    State *s = malloc(sizeof *s);
    assert_non_null(s);
    assert_ok(state_open(s, &b->r->m->stages, b->r->m->spec, b->r->m->n_layers, BENCH_CTX, 0, 0, n_ckpt, &b->err),
              &b->err);
    return s;
}

void bench_free(State *s)
{
    state_close(s);
    free(s);
}

static Status pass(Bench *b, State *s, SliceKind kind, int32_t n, const int32_t *token, const int32_t *parent,
                   float *logits)
{
    Step *st = &b->step;
    Backend *be = st->be;
    PassOut out;
    pass_start(st);
    Slice *sl = pass_slice(st, s, kind, n, token, parent);
    for (int32_t i = 0; logits && i < n; i++) pass_want(st, sl, i, WANT_LOGITS, -1);
    s->confirmed = true;
    TRY(model_pass(b->r->m, st, &out, 0, &b->err));
    if (!logits) return step_wait(step_last(st), &b->err);
    st = step_last(st);
    be = st->be;
    be->copy_out(be, logits, out.logits->data, sizeof *logits * (size_t) n * (size_t) b->vocab);
    return step_wait(st, &b->err);
}

Status bench_tree(Bench *b, State *s, int32_t n, const int32_t *token, const int32_t *parent, float *logits)
{
    TRY(state_writable(s, &b->step.on, &b->err));
    return pass(b, s, SLICE_TREE, n, token, parent, logits);
}

Status bench_chain(Bench *b, State *s, int32_t n, const int32_t *token, float *logits, bool keep)
{
    TRY(state_ready(s, &b->step.on, &b->err));
    TRY(pass(b, s, SLICE_CHAIN, n, token, NULL, logits));
    if (keep) state_advance(s, n);
    return ST_OK;
}

uint8_t *bench_image(Bench *b, State *s, size_t *n)
{
    assert_ok(step_fold(&b->step, s, &b->err), &b->err);
    *n = state_image_bytes(s, s->P);
    uint8_t *image = malloc(*n + 1);
    assert_non_null(image);
    assert_ok(state_image(s, &b->step.on, s->P, image, &b->err), &b->err);
    return image;
}

void random_tokens(Dice *d, int32_t n, int32_t vocab, int32_t *token)
{
    for (int32_t i = 0; i < n; i++) token[i] = roll(d, vocab);
}

/* Bushy, thin or anything between; siblings have different tokens, as in the loop's trees. */
void random_tree(Dice *d, int32_t n, int32_t vocab, int32_t *token, int32_t *parent)
{
    int32_t reach = 1 + roll(d, 8);
    for (int32_t i = 0; i < n; i++) {
        parent[i] = i == 0 ? -1 : i - 1 - roll(d, i < reach ? i : reach);
        bool again = true;
        while (again) {
            token[i] = roll(d, vocab);
            again = false;
            for (int32_t j = 0; j < i; j++) again |= parent[j] == parent[i] && token[j] == token[i];
        }
    }
}

/* ---- decoding ---- */

Drafter no_drafter;

static void own_drafter(ModelDrafter *d, const Model *dm) { (dm->hold ? drafter_mtp : drafter_dflash)(d, dm, 0); }

/* Measures scratch as the engine does: the largest passes on a backend that only counts. */
static size_t measure_scratch(Rig *r, Drafter *d, const LoopOptions *o)
{
    Error err = { 0 };
    Model target = *r->m, draft = { 0 };
    for (int32_t k = 0; k < target.stages.n; k++)
        assert_ok(backend_null_open(&target.stages.at[k].be, r->m->stages.at[k].be, &err), &err);
    if (r->dm) draft = *r->dm, draft.stages = stages_one(stages_last(&target.stages)), draft.target = &target;
    Spec sp;
    Session s;
    ModelDrafter dflash;
    if (d && d->uses_taps) own_drafter(&dflash, &draft), d = &dflash.drafter;
    else d = NULL;
    const Model *dm = d ? &draft : NULL;
    assert_ok(spec_open(&sp, &target, dm, d, o->sessions, o->chunk, 0, 0, &err), &err);
    assert_ok(session_open(&s, &target, dm, ROWS_DECODE, 0, 0, false, &err), &err);
    s.line.text[s.line.n_text++] = 0;
    assert_ok(spec_largest(&sp, &s, &err), &err);
    size_t peak = step_peak(&sp.step);
    session_close(&s);
    spec_close(&sp);
    for (int32_t k = 0; k < target.stages.n; k++) target.stages.at[k].be->close(target.stages.at[k].be);
    return peak;
}

void loop_open(Loop *l, Rig *r, Drafter *d, const LoopOptions *o)
{
    memset(l, 0, sizeof *l);
    l->r = r;
    if (o) l->o = *o;
    if (!l->o.ctx) l->o.ctx = 200;
    if (!l->o.chunk) l->o.chunk = 16;
    if (!l->o.sessions) l->o.sessions = 1;
    if (!d && r->dm) {
        own_drafter(&l->dflash, r->dm);
        d = &l->dflash.drafter;
    }
    if (d == &no_drafter) d = NULL;
    const Model *dm = d && d->uses_taps ? r->dm : NULL;
    size_t scratch = measure_scratch(r, d, &l->o);
    assert_ok(spec_open(&l->sp, r->m, dm, d, l->o.sessions, l->o.chunk, 0, scratch, &l->err), &l->err);
    l->sp.budget = l->o.budget;
    l->sp.chain = l->o.chain;
}

void loop_close(Loop *l) { spec_close(&l->sp); }

Session *loop_session(Loop *l)
{
    Session *s = malloc(sizeof *s);
    assert_non_null(s);
    const Drafter *d = l->sp.drafter;
    assert_ok(session_open(s, l->r->m, d && d->uses_taps ? l->r->dm : NULL, l->o.ctx, l->o.draft_ctx, 3, l->o.ngram,
                           &l->err), &l->err);
    return s;
}

void loop_free(Session *s)
{
    session_close(s);
    free(s);
}

int32_t loop_run(Loop *l, Session *s, int32_t n, int32_t *text)
{
    int32_t have = 0;
    while (have < n) {
        assert_ok(spec_step(&l->sp, &s, 1, &l->err), &l->err);
        if (s->line.status != ST_OK && s->line.status != ST_END) fail_msg("session: %s", s->line.error.text);
        if (s->line.n_out > n - have) assert_ok(session_take(s, n - have), &l->err);
        memcpy(text + have, s->line.out, sizeof *text * (size_t) s->line.n_out);
        have += s->line.n_out;
        if (s->line.status == ST_END) break;
    }
    return have;
}

void plain_text(Rig *r, const Sampling *p, const int32_t *prompt, int32_t n_prompt, int32_t *text, int32_t n,
                int32_t ctx)
{
    Loop l;
    loop_open(&l, r, &no_drafter, &(LoopOptions) { .ctx = ctx, .chunk = 64, .budget = BUDGET_PLAIN });
    Session *s = loop_session(&l);
    assert_ok(session_prompt(s, prompt, n_prompt, &l.err), &l.err);
    if (p) s->line.sampling = *p;
    int32_t got = loop_run(&l, s, n, text);
    assert_int_equal(got, n);
    loop_free(s);
    loop_close(&l);
}

uint8_t *loop_image(Loop *l, Session *s, size_t *n)
{
    assert_ok(step_fold(&l->sp.step, &s->line.target, &l->err), &l->err);
    *n = state_image_bytes(&s->line.target, s->line.target.P);
    uint8_t *image = malloc(*n + 1);
    assert_non_null(image);
    assert_ok(state_image(&s->line.target, &l->sp.step.on, s->line.target.P, image, &l->err), &l->err);
    return image;
}

Sampling sampling_mode(int32_t mode)
{
    Sampling p = draw_default();
    if (mode == 1)
        p.temperature = 1, p.top_p = 0.9f, p.rep = 1.2f, p.freq = 0.3f, p.presence = 0.2f, p.rep_window = 24,
            p.seed = 11;
    if (mode == 2) p.temperature = 0.7f, p.top_k = 20, p.min_p = 0.02f, p.seed = 12345678901u;
    if (mode == 3) p.rep = 1.3f, p.freq = 0.5f, p.rep_window = 12;
    return p;
}

static uint8_t *fresh_image(Rig *r, const int32_t *text, int32_t P, size_t *n)
{
    Loop l;
    loop_open(&l, r, &no_drafter, &(LoopOptions) { .ctx = P + 2, .chunk = 64, .budget = BUDGET_PLAIN });
    Session *s = loop_session(&l);
    assert_ok(session_prompt(s, text, P + 1, &l.err), &l.err);
    while (s->line.target.P < P) assert_ok(spec_step(&l.sp, &s, 1, &l.err), &l.err);
    uint8_t *image = loop_image(&l, s, n);
    loop_free(s);
    loop_close(&l);
    return image;
}

void assert_fresh(Loop *l, Session *s, const char *what, ...)
{
    char line[200];
    va_list args;
    va_start(args, what);
    vsnprintf(line, sizeof line, what, args);
    va_end(args);
    size_t n_a, n_b;
    uint8_t *a = loop_image(l, s, &n_a), *b = fresh_image(l->r, s->line.text, s->line.target.P, &n_b);
    assert_int_equal(n_a, n_b);
    assert_same(a, b, n_a, "state after %s", line);
    free(a);
    free(b);
}

void make_truth(Rig *r, int32_t mode, uint64_t seed, int32_t *truth)
{
    Dice d = { tiny_key(seed, "prompt"), 0 };
    Sampling p = sampling_mode(mode);
    random_tokens(&d, PROMPT, r->m->vocab, truth);
    plain_text(r, &p, truth, PROMPT, truth + PROMPT, TEXT + AHEAD, 200);
}

/* ---- drafters of the tests ---- */

/* This drafter's candidates at a place of the text, best first. */
static void fake_column(FakeDrafter *f, FakeKind kind, int32_t at, int32_t vocab, int32_t *id, float *score)
{
    int32_t right = at < f->n_truth ? f->truth[at] : 0;
    int32_t wrong = at + 1 < f->n_truth ? f->truth[at + 1] : 1;
    int32_t place = kind == FAKE_TRUTH ? roll(&f->dice, 3) : kind == FAKE_MIXED ? roll(&f->dice, 8) : -1;
    for (int32_t k = 0; k < LAT_K; k++) {
        bool fresh = false;
        while (!fresh) {
            id[k] = k == place ? right : kind == FAKE_SHIFTED && k == 0 ? wrong : roll(&f->dice, vocab);
            fresh = true;
            for (int32_t j = 0; j < k; j++) fresh &= id[j] != id[k];
            if (!fresh && (k == place || kind == FAKE_SHIFTED)) place = -1, kind = FAKE_NOISE;
        }
        score[k] = -0.25f * (float) (k + roll(&f->dice, 2));
    }
}

static Status fake_propose(Drafter *drafter, Spec *sp, Session *const *s, int32_t n, Lattice *out, Error *err)
{
    (void) err;
    FakeDrafter *f = (FakeDrafter *) (void *) drafter;
    for (int32_t i = 0; i < n; i++) {
        int32_t depth = 1 + roll(&f->dice, LAT_DEPTH), id[LAT_DEPTH * LAT_K];
        for (int32_t j = 0; j < 8; j++)
            if (f->of[j].s == s[i]) f->truth = f->of[j].truth, f->n_truth = f->of[j].n;
        float score[LAT_DEPTH * LAT_K];
        for (int32_t r = 0; r < depth; r++) {
            FakeKind kind = f->kind == FAKE_MIXED ? (FakeKind) roll(&f->dice, 4) : f->kind;
            fake_column(f, kind, s[i]->line.n_text + r, sp->m->vocab, id + r * LAT_K, score + r * LAT_K);
        }
        lattice_from_scores(&out[i], id, score, depth, LAT_K, &s[i]->calib, SOURCE_BLOCK);
    }
    return ST_OK;
}

void fake_drafter(FakeDrafter *f, FakeKind kind, uint64_t seed, const int32_t *truth, int32_t n_truth)
{
    *f = (FakeDrafter) { .drafter = { .propose = fake_propose }, .kind = kind,
                         .dice = { .key = tiny_key(seed, "drafter") }, .truth = truth, .n_truth = n_truth };
}
