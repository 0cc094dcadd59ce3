/* engine.c - opening what the handles stand for, and planning it. */
#include "engine/engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { CTX_DEFAULT = 8192, CHUNK_DEFAULT = 256, CHUNK_MAX = 4096, CHECKPOINTS_DEFAULT = 3 };

static void say(const rt_hooks *h, int level, const char *line)
{
    if (h->log) h->log(h->ud, level, line);
}

Status engine_backend(Backend **out, const rt_options *o, Error *err)
{
    const char *name = o->backend ? o->backend : "auto", *level = NULL;
    if (strncmp(name, "cpu:", 4) == 0) level = name + 4;
    else if (strcmp(name, "auto") != 0 && strcmp(name, "cpu") != 0)
        return fail(err, ST_UNSUPPORTED, "backend: '%s', expected auto, cpu or cpu:LEVEL", name);
    return backend_cpu_open(out, &(CpuOptions) { .threads = o->threads, .level = level, .in_place = o->no_repack }, err);
}

/* ---- files ---- */

/* By its name; the model asks the backend whether it fits. */
static Status kv_type(Type *out, const char *name, const char *field, Error *err)
{
    static const Type kinds[] = { T_F32, T_F16, T_BF16, T_Q8_0, T_Q5_1, T_Q5_0, T_Q4_1, T_Q4_0, T_TQ3_0 };
    Type t;
    *out = T_COUNT;
    if (!name) return ST_OK;
    for (size_t i = 0; type_from_name(&t, name) && i < sizeof kinds / sizeof *kinds; i++)
        if (t == kinds[i]) *out = t;
    if (*out != T_COUNT) return ST_OK;
    return fail(err, ST_UNSUPPORTED, "%s: '%s', expected f32, f16, bf16, q8_0, q5_1, q5_0, q4_1, q4_0 or tq3_0", field, name);
}

static Status open_target(rt_engine *g, const rt_options *o, Error *err)
{
    ModelOptions mo = { .window = o->fa_window, .progress = o->hooks.progress, .ud = o->hooks.ud };
    if (o->fa_window < 0) return fail(err, ST_ARG, "fa_window: %d, expected a number of positions (0: all)", o->fa_window);
    TRY(kv_type(&mo.k_type, o->kv_k, "kv_k", err));
    TRY(kv_type(&mo.v_type, o->kv_v, "kv_v", err));
    TRY(gguf_open(&g->model_file, o->model, err));
    Status st = tokenizer_open(&g->tokenizer, g->model_file, err);
    if (st != ST_OK && st != ST_END) return st;
    Weights w = { .gguf = g->model_file };
    TRY(model_open(&g->model, g->be, &w, NULL, &mo, err));
    if (g->tokenizer && tokenizer_size(g->tokenizer) > g->model->vocab)
        return fail(err, ST_FORMAT, "%s: the tokenizer has %d tokens, but token_embd.weight has %d rows", o->model, tokenizer_size(g->tokenizer), g->model->vocab);
    return ST_OK;
}

/* By its name, or by what a file of another name begins with; a folder is neither. */
static bool is_gguf(const char *path)
{
    size_t n = strlen(path);
    struct stat at;
    char magic[4] = { 0 };
    if (n > 5 && strcmp(path + n - 5, ".gguf") == 0) return true;
    FILE *f = stat(path, &at) == 0 && S_ISREG(at.st_mode) ? fopen(path, "rbe") : NULL;
    if (!f) return false;
    bool is = fread(magic, 1, sizeof magic, f) == sizeof magic && memcmp(magic, "GGUF", sizeof magic) == 0;
    fclose(f);
    return is;
}

static Status open_draft(rt_engine *g, const rt_options *o, Error *err)
{
    ModelOptions mo = { .k_type = T_COUNT, .v_type = T_COUNT, .progress = o->hooks.progress, .ud = o->hooks.ud };
    if (o->draft_type && strcmp(o->draft_type, "keep") == 0) mo.keep_types = true;
    else if (o->draft_type && strcmp(o->draft_type, "q8_0") != 0) return fail(err, ST_ARG, "draft_type: '%s', expected q8_0 or keep", o->draft_type);
    Weights w = { 0 };
    if (strcmp(o->draft, "mtp") == 0 || strcmp(o->draft, "auto") == 0) {
        mo.mtp = true;
        w.gguf = g->model_file;
    } else if (is_gguf(o->draft)) {
        TRY(gguf_open(&g->draft_gguf, o->draft, err));
        w.gguf = g->draft_gguf;
        Status st = tokenizer_open(&g->draft_tokenizer, g->draft_gguf, err);
        if (st != ST_OK && st != ST_END) return st;
    } else {
        TRY(safetensors_open(&g->draft_folder, o->draft, err));
        w.st = g->draft_folder;
    }
    if (g->tokenizer && g->draft_tokenizer && tokenizer_hash(g->tokenizer) != tokenizer_hash(g->draft_tokenizer))
        return fail(err, ST_FORMAT, "%s: its tokenizer is another one than that of the target %s", o->draft, o->model);
    TRY(model_open(&g->draft, g->be, &w, g->model, &mo, err));
    return model_set_taps(g->model, g->draft->tap, g->draft->n_taps, err);
}

static void log_engine(const rt_engine *g, int32_t window)
{
    char line[1024];
    const Model *m = g->model, *d = g->draft;
    snprintf(line, sizeof line, "model %s: %s, %d layers, width %d, vocabulary %d, %.2f GB", m->file, m->arch, m->n_layers, m->dim, m->vocab, (double) m->weight_bytes / 1e9);
    say(&g->hooks, 2, line);
    if (window) {
        snprintf(line, sizeof line, "attention looks back %d positions only (fa-window): the text is not that of the whole model", window);
        say(&g->hooks, 1, line);
    }
    if (!d) {
        say(&g->hooks, 2, "drafter: none");
        return;
    }
    int n = snprintf(line, sizeof line, "speculation is on: drafter %s, %s, %d layers, block of %d, taps after layers", d->hold ? "of the model itself" : d->file, d->arch,
                     d->n_layers, d->block);
    for (int32_t i = 0; i < d->n_taps && n > 0 && (size_t) n < sizeof line; i++) n += snprintf(line + n, sizeof line - (size_t) n, " %d", d->tap[i]);
    say(&g->hooks, 2, line);
}

Status engine_open(rt_engine **out, Backend *be, Backend *real, const rt_options *o, Error *err)
{
    *out = NULL;
    rt_engine *g = calloc(1, sizeof *g);
    if (!g) {
        be->close(be);
        if (real) real->close(real);
        return fail(err, ST_MEMORY, "engine: out of memory");
    }
    g->be = be;
    g->real = real;
    g->hooks = o->hooks;
    Status st = o->model ? open_target(g, o, err) : fail(err, ST_ARG, "model: no file was given");
    bool welcome = st == ST_OK && o->draft && strcmp(o->draft, "auto") == 0;          /* the target's own layer, where it has a good one */
    if (st == ST_OK && o->draft && (!welcome || g->model->n_extra > 0)) st = open_draft(g, o, err);
    else if (st == ST_OK && o->n_taps) st = model_set_taps(g->model, o->taps, o->n_taps, err);
    if (welcome && (st == ST_FORMAT || st == ST_UNSUPPORTED)) {
        say(&g->hooks, 1, err->text);
        st = ST_OK;
    }
    if (st == ST_OK && !be->counts) st = engine_identity(g, o->fa_window, err);
    if (st != ST_OK) {
        rt_close(g);
        return st;
    }
    log_engine(g, o->fa_window);
    *out = g;
    return ST_OK;
}

void rt_close(rt_engine *g)
{
    if (!g) return;
    model_close(g->draft);
    model_close(g->model);
    tokenizer_close(g->tokenizer);
    tokenizer_close(g->draft_tokenizer);
    gguf_close(g->model_file);
    gguf_close(g->draft_gguf);
    safetensors_close(g->draft_folder);
    g->be->close(g->be);
    if (g->real) g->real->close(g->real);
    free(g);
}

/* ---- sessions and steps ---- */

/* Memory that could be had without swapping; 0: unknown. */
static uint64_t free_memory(void)
{
    FILE *f = fopen("/proc/meminfo", "re");
    if (!f) return 0;
    char line[128];
    unsigned long long kb = 0;
    while (fgets(line, sizeof line, f))
        if (sscanf(line, "MemAvailable: %llu kB", &kb) == 1) break;
    fclose(f);
    return kb * 1024;
}

uint64_t engine_kv_bytes(const Model *m)
{
    uint64_t row = 0;
    for (int32_t il = 0; il < m->n_layers; il++) {
        const LayerSpec *p = &m->spec[il];
        if (p->kind != LAYER_ATTENTION) continue;
        row += m->be->kv_row_bytes(m->be, p->k_type, p->kv_heads * p->head_dim) + m->be->kv_row_bytes(m->be, p->v_type, p->kv_heads * p->head_dim);
    }
    return row;
}

/* min(the model's, 8192, what keys and values of 80 % of free memory hold). */
static int32_t default_ctx(const rt_engine *g)
{
    const Model *m = g->model;
    int32_t ctx = m->ctx_train < CTX_DEFAULT ? m->ctx_train : CTX_DEFAULT;
    uint64_t row = engine_kv_bytes(m), there = free_memory();
    if (g->real && !g->be->in_place) there -= there < m->weight_bytes ? there : m->weight_bytes;      /* a plan: the weights are still to come */
    if (there == 0 || row == 0) return ctx;
    uint64_t fits = there / 5 * 4 / row;
    return fits < (uint64_t) ctx ? (fits < 64 ? 64 : (int32_t) fits) : ctx;
}

Status engine_session(rt_session **out, rt_engine *g, const rt_session_options *o, Error *err)
{
    static const rt_session_options standard = { 0 };
    if (!o) o = &standard;
    *out = NULL;
    if (o->ctx < 0 || o->ctx > 1 << 24) return fail(err, ST_ARG, "ctx: %d, expected 1 to %d tokens (0: default)", o->ctx, 1 << 24);
    if (o->draft_ctx < 0 || o->draft_ctx > 1 << 20) return fail(err, ST_ARG, "draft_ctx: %d, expected 1 to %d tokens (0: default)", o->draft_ctx, 1 << 20);
    if (o->checkpoints < -1 || o->checkpoints > CHECKPOINTS_MAX)
        return fail(err, ST_ARG, "checkpoints: %d, expected 1 to %d (0: default, -1: none)", o->checkpoints, CHECKPOINTS_MAX);
    uint64_t need = engine_kv_bytes(g->model) * (uint64_t) o->ctx, there = free_memory();
    if (!g->be->counts && there > 0 && need > there)               /* the system would grant it, and end a process when it is used */
        return fail(err, ST_MEMORY, "ctx: keys and values of %d tokens take %.1f GB, and %.1f GB of memory are free", o->ctx, (double) need / 1e9, (double) there / 1e9);
    if (o->ngram < -1 || o->ngram > 1) return fail(err, ST_ARG, "ngram: %d, expected -1 to 1", o->ngram);
    rt_session *s = calloc(1, sizeof *s);
    if (!s) return fail(err, ST_MEMORY, "session: out of memory");
    s->g = g;
    int32_t n_ckpt = o->checkpoints < 0 ? 0 : o->checkpoints ? o->checkpoints : CHECKPOINTS_DEFAULT;
    Status st = session_open(&s->s, g->model, g->draft, o->ctx ? o->ctx : default_ctx(g), o->draft_ctx, n_ckpt, o->ngram >= 0, err);
    if (st != ST_OK) {
        free(s);
        return st;
    }
    *out = s;
    return ST_OK;
}

static bool polled(void *ud, int32_t il)
{
    (void) il;
    const rt_engine *g = ((rt_step *) ud)->g;
    return g->hooks.progress && !g->hooks.progress(g->hooks.ud, "pass", 0, 0);
}

/* The host may not be able to read a tensor, so it is copied; tracing is for debugging and may allocate. */
static void traced(void *ud, const char *name, int32_t il, const Tensor *t)
{
    const rt_engine *g = ((rt_step *) ud)->g;
    size_t bytes = sizeof(float) * (size_t) t->rows * (size_t) t->cols;
    float *rows = malloc(bytes);
    if (!rows) return;
    g->be->copy_out(g->be, rows, t->data, bytes);
    if (g->be->sync(g->be, NULL) == ST_OK) g->hooks.trace(g->hooks.ud, name, il, rows, t->rows, t->cols);
    free(rows);
}

static void decided(void *ud, const char *line) { say(&((rt_step *) ud)->g->hooks, 3, line); }

static Status take_profile(rt_step *st, const rt_step_options *o, Error *err)
{
    if (!o->simulate) return ST_OK;
    st->profile = (Profile) { .n_depth = o->simulate->n_depth, .n_rank = o->simulate->n_rank };
    if (o->simulate->n_depth < 0 || o->simulate->n_depth > PROFILE_DEPTH || o->simulate->n_rank < 0 || o->simulate->n_rank > PROFILE_RANK)
        return fail(err, ST_ARG, "simulate: %d depths and %d ranks, expected at most %d and %d", o->simulate->n_depth, o->simulate->n_rank, PROFILE_DEPTH, PROFILE_RANK);
    memcpy(st->profile.edge, o->simulate->edge, sizeof st->profile.edge);
    const char *wrong = simulate_check(&st->profile);
    if (wrong) return fail(err, ST_ARG, "simulate: bad %s in the profile", wrong);
    st->spec.simulate = &st->profile;
    st->spec.simulate_seed = o->simulate_seed;
    return ST_OK;
}

Status engine_step(rt_step **out, rt_engine *g, const rt_step_options *o, size_t scratch, Error *err)
{
    static const rt_step_options standard = { 0 };
    if (!o) o = &standard;
    *out = NULL;
    if (o->budget < -1 || o->budget > ROWS_DECODE - 1) return fail(err, ST_ARG, "budget: %d, expected 1 to %d (0: automatic, -1: plain)", o->budget, ROWS_DECODE - 1);
    if (o->draft_block && (o->draft_block < 2 || o->draft_block > LAT_DEPTH + 1))
        return fail(err, ST_ARG, "draft_block: %d, expected 2 to %d rows (0: what the drafter was trained for)", o->draft_block, LAT_DEPTH + 1);
    if (o->chunk < 0 || o->chunk > CHUNK_MAX) return fail(err, ST_ARG, "chunk: %d, expected 1 to %d (0: default)", o->chunk, CHUNK_MAX);
    rt_step *st = calloc(1, sizeof *st);
    if (!st) return fail(err, ST_MEMORY, "step: out of memory");
    st->g = g;
    Drafter *d = NULL;
    if (g->draft && o->budget != BUDGET_PLAIN) {
        (g->draft->hold ? drafter_mtp : drafter_dflash)(&st->drafter, g->draft, o->draft_block);
        d = &st->drafter.drafter;
    }
    Status code = spec_open(&st->spec, g->be, g->model, g->draft, d, o->sessions ? o->sessions : 1, o->chunk ? o->chunk : CHUNK_DEFAULT, scratch, err);
    if (code == ST_OK) {
        st->spec.budget = o->budget;
        st->spec.chain = o->chain;
        st->spec.count = &st->count;
        st->spec.log = g->hooks.log ? decided : NULL;
        st->spec.log_ud = st;
        st->hooks = (Hooks) { .cancel = polled, .trace = g->hooks.trace ? traced : NULL, .ud = st };
        st->spec.step.hooks = &st->hooks;
        code = take_profile(st, o, err);
    }
    if (code != ST_OK) {
        rt_step_free(st);
        return code;
    }
    *out = st;
    return ST_OK;
}

void rt_step_free(rt_step *st)
{
    if (!st) return;
    spec_close(&st->spec);
    free(st);
}

Status engine_scratch(size_t *out, rt_engine *g, const rt_step_options *o, Error *err)
{
    /* The same model seen from a backend that counts: descriptors are shared, nothing is read through them. */
    Model target = *g->model, draft = { 0 };
    rt_engine seen = { .hooks = { 0 }, .model = &target };
    TRY(backend_null_open(&seen.be, g->be, err));
    target.be = seen.be;
    if (g->draft) {
        draft = *g->draft;
        draft.be = seen.be;
        draft.target = &target;
        seen.draft = &draft;
    }
    rt_step *st = NULL;
    rt_session *s = NULL;
    Status code = engine_step(&st, &seen, o, 0, err);
    if (code == ST_OK) code = engine_session(&s, &seen, &(rt_session_options) { .ctx = ROWS_DECODE, .checkpoints = -1, .ngram = -1 }, err);
    if (code == ST_OK) {
        s->s.text[s->s.n_text++] = 0;              /* a root */
        code = spec_largest(&st->spec, &s->s, err);
    }
    if (code == ST_OK) *out = st->spec.step.peak;
    rt_session_free(s);
    rt_step_free(st);
    seen.be->close(seen.be);
    return code;
}

/* ---- the plan ---- */

/* Memory of this process that is its own and resident: what tables take is measured by making them. */
static size_t resident(void)
{
    unsigned long long total = 0, here = 0, shared = 0;
    FILE *f = fopen("/proc/self/statm", "re");
    if (!f) return 0;
    if (fscanf(f, "%llu %llu %llu", &total, &here, &shared) != 3) here = shared = 0;
    fclose(f);
    return (size_t) (here - shared) * (size_t) sysconf(_SC_PAGESIZE);
}

rt_status rt_plan(const rt_options *o, const rt_session_options *so, const rt_step_options *sto,
                  void (*part)(void *ud, const char *name, size_t bytes), void *ud, rt_error *e)
{
    Error err = { 0 };
    Backend *real = NULL, *null = NULL;
    rt_engine *g = NULL;
    rt_session *s = NULL;
    rt_step *st = NULL;
    size_t scratch = 0;
    Status code = engine_backend(&real, o, &err);
    size_t before = resident();                  /* the backend tells its own */
    if (code == ST_OK && (code = backend_null_open(&null, real, &err)) != ST_OK) real->close(real);
    size_t own = code == ST_OK ? real->own_bytes(real) : 0;
    rt_options quiet;
    if (code == ST_OK) {
        quiet = *o;
        quiet.hooks = (rt_hooks) { 0 };
        code = engine_open(&g, null, real, &quiet, &err);
    }
    if (code == ST_OK) code = engine_session(&s, g, so, &err);
    if (code == ST_OK) code = engine_scratch(&scratch, g, sto, &err);
    if (code == ST_OK) code = engine_step(&st, g, sto, scratch, &err);
    if (code == ST_OK) {
        size_t after = resident();
        backend_null_parts(null, part, ud);
        part(ud, "backend workspace", own);
        part(ud, "n-gram index", s->s.ngram.head[0] ? ngram_bytes(s->s.ctx) : 0);
        part(ud, "tables", after > before ? after - before : 0);
    }
    rt_step_free(st);
    rt_session_free(s);
    rt_close(g);
    if (e) {
        e->code = (rt_status) code;
        snprintf(e->text, sizeof e->text, "%s", err.text);
    }
    return (rt_status) code;
}
