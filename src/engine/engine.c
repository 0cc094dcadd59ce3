/* engine.c - opening the objects behind the handles, and planning their memory. */
#include "engine/engine.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/path.h"

enum { CTX_DEFAULT = 8192, CHUNK_DEFAULT = 256, CHUNK_MAX = 4096, CHECKPOINTS_DEFAULT = 3 };

static void say(const rt_hooks *h, int level, const char *line)
{
    if (h->log) h->log(h->ud, level, line);
}

Status engine_backend(Backend **out, const rt_options *o, Error *err)
{
    return backend_open(out, o->backend ? o->backend : "auto",
                        &(BackendOptions) { .threads = o->threads, .no_repack = o->no_repack }, err);
}

/* ---- files ---- */

/* Finds a type by name; the model checks it with the backend. */
static Status kv_type(Type *out, const char *name, const char *field, Error *err)
{
    static const Type kinds[] = { T_F32, T_F16, T_BF16, T_Q8_0, T_Q5_1, T_Q5_0, T_Q4_1, T_Q4_0, T_TQ3_0 };
    Type t;
    *out = T_COUNT;
    if (!name) return ST_OK;
    for (size_t i = 0; type_from_name(&t, name) && i < sizeof kinds / sizeof *kinds; i++)
        if (t == kinds[i]) *out = t;
    if (*out != T_COUNT) return ST_OK;
    return fail(err, ST_UNSUPPORTED, "%s: '%s', expected f32, f16, bf16, q8_0, q5_1, q5_0, q4_1, q4_0 or tq3_0",
                field, name);
}

typedef struct { rt_engine *g; Status code; Error error; } TokenizerJob;

static void *open_tokenizer(void *arg)
{
    TokenizerJob *j = arg;
    j->code = tokenizer_open(&j->g->tokenizer, j->g->model_file, &j->error);
    return NULL;
}

/* The tokenizer is built while the disk reads weights and they are packed; its troubles are reported first. */
static Status open_both(rt_engine *g, const ModelOptions *mo, Error *err)
{
    TokenizerJob job = { .g = g };
    pthread_t thread;
    const bool beside = pthread_create(&thread, NULL, open_tokenizer, &job) == 0;
    if (!beside) open_tokenizer(&job);
    Weights w = { .gguf = g->model_file };
    Stages stages = stages_one(g->be);
    Status st = model_open(&g->model, &stages, &w, NULL, mo, err);
    if (beside) pthread_join(thread, NULL);
    if (job.code == ST_OK || job.code == ST_END) return st;
    *err = job.error;
    return job.code;
}

static Status open_target(rt_engine *g, const rt_options *o, Error *err)
{
    ModelOptions mo = { .window = o->fa_window, .overcommit = o->overcommit, .progress = o->hooks.progress,
                        .ud = o->hooks.ud };
    if (o->fa_window < 0)
        return fail(err, ST_ARG, "fa_window: %d, expected a number of positions (0: all)", o->fa_window);
    TRY(kv_type(&mo.k_type, o->kv_k, "kv_k", err));
    TRY(kv_type(&mo.v_type, o->kv_v, "kv_v", err));
    TRY(gguf_open(&g->model_file, o->model, err));
    TRY(model_check(g->model_file, err));          /* before the tokenizer, whose troubles would say less */
    TRY(open_both(g, &mo, err));
    if (g->tokenizer && tokenizer_size(g->tokenizer) > g->model->vocab)
        return fail(err, ST_FORMAT, "%s: the tokenizer has %d tokens, but token_embd.weight has %d rows", o->model,
                    tokenizer_size(g->tokenizer), g->model->vocab);
    return ST_OK;
}

/* Recognised by the file name or else by the first bytes; a folder is never GGUF. */
static bool is_gguf(const char *path)
{
    struct stat at;
    char magic[4] = { 0 };
    if (has_suffix(path, ".gguf")) return true;
    FILE *f = stat(path, &at) == 0 && S_ISREG(at.st_mode) ? fopen(path, "rbe") : NULL;
    if (!f) return false;
    bool is = fread(magic, 1, sizeof magic, f) == sizeof magic && memcmp(magic, "GGUF", sizeof magic) == 0;
    fclose(f);
    return is;
}

static int32_t key_index(const Gguf *g, const char *name)
{
    for (int32_t i = 0; i < gguf_n_keys(g); i++)
        if (strcmp(gguf_key(g, i), name) == 0) return i;
    return -1;
}

/* Whether two files hold the same bytes in all keys that a tokenizer's hash is over. */
static bool same_tokenizer(const Gguf *a, const Gguf *b)
{
    static const char *const keys[] = { "tokenizer.ggml.model", "tokenizer.ggml.pre", "tokenizer.ggml.tokens",
                                        "tokenizer.ggml.token_type", "tokenizer.ggml.merges",
                                        "tokenizer.ggml.unknown_token_id" };
    for (size_t k = 0; k < sizeof keys / sizeof *keys; k++) {
        const int32_t i = key_index(a, keys[k]), j = key_index(b, keys[k]);
        if (i < 0 && j < 0) continue;
        size_t n = 0, m = 0;
        const uint8_t *x = i < 0 ? NULL : gguf_key_raw(a, i, &n), *y = j < 0 ? NULL : gguf_key_raw(b, j, &m);
        if (!x || !y || n != m || gguf_key_type(a, i) != gguf_key_type(b, j) || memcmp(x, y, n) != 0) return false;
    }
    return true;
}

/* Only the hash of a drafter's tokenizer is needed. Drafters mostly carry a copy of their target's, which then need not
 * be built once more. */
static Status hash_draft(rt_engine *g, Error *err)
{
    Tokenizer *t = NULL;
    g->draft_has_tokenizer = g->tokenizer && same_tokenizer(g->model_file, g->draft_gguf);
    if (g->draft_has_tokenizer) {
        g->draft_hash = tokenizer_hash(g->tokenizer);
        return ST_OK;
    }
    Status st = tokenizer_open(&t, g->draft_gguf, err);
    if (st != ST_OK) return st == ST_END ? ST_OK : st;
    g->draft_has_tokenizer = true;
    g->draft_hash = tokenizer_hash(t);
    tokenizer_close(t);
    return ST_OK;
}

static Status open_draft(rt_engine *g, const rt_options *o, Error *err)
{
    ModelOptions mo = { .k_type = T_COUNT, .v_type = T_COUNT, .overcommit = o->overcommit,
                        .progress = o->hooks.progress, .ud = o->hooks.ud };
    if (o->draft_type && strcmp(o->draft_type, "keep") == 0) mo.keep_types = true;
    else if (o->draft_type && strcmp(o->draft_type, "q8_0") != 0)
        return fail(err, ST_ARG, "draft_type: '%s', expected q8_0 or keep", o->draft_type);
    Weights w = { 0 };
    if (strcmp(o->draft, "mtp") == 0 || strcmp(o->draft, "auto") == 0) {
        mo.mtp = true;
        w.gguf = g->model_file;
    } else if (is_gguf(o->draft)) {
        TRY(gguf_open(&g->draft_gguf, o->draft, err));
        w.gguf = g->draft_gguf;
        TRY(hash_draft(g, err));
    } else {
        TRY(safetensors_open(&g->draft_folder, o->draft, err));
        w.st = g->draft_folder;
    }
    if (g->tokenizer && g->draft_has_tokenizer && tokenizer_hash(g->tokenizer) != g->draft_hash)
        return fail(err, ST_FORMAT, "%s: its tokenizer differs from the model's (%s)", o->draft, o->model);
    TRY(model_open(&g->draft, &g->model->stages, &w, g->model, &mo, err));
    return model_set_taps(g->model, g->draft->tap, g->draft->n_taps, err);
}

static void log_engine(const rt_engine *g, int32_t window)
{
    char line[1024];
    const Model *m = g->model, *d = g->draft;
    snprintf(line, sizeof line, "model %s: %s, %d layers, width %d, vocabulary %d, %.2f GB", m->file, m->arch,
             m->n_layers, m->dim, m->vocab, (double) m->weight_bytes / 1e9);
    say(&g->hooks, 2, line);
    if (window) {
        snprintf(line, sizeof line,
                 "attention looks back %d positions only (fa-window): the text is not that of the whole model", window);
        say(&g->hooks, 1, line);
    }
    if (!d) {
        say(&g->hooks, 2, "drafter: none");
        return;
    }
    int n = snprintf(line, sizeof line, "speculation is on: drafter %s, %s, %d layers, block of %d, taps after layers",
                     d->hold ? "of the model itself" : d->file, d->arch, d->n_layers, d->block);
    for (int32_t i = 0; i < d->n_taps && n > 0 && (size_t) n < sizeof line; i++)
        n += snprintf(line + n, sizeof line - (size_t) n, " %d", d->tap[i]);
    say(&g->hooks, 2, line);
}

/* On a counting backend: assigns further allocations to this owner. */
static void own_by(const rt_engine *g, const char *owner)
{
    if (g->counts) backend_null_owner(g->be, owner);
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
    pthread_mutex_init(&g->lock, NULL);
    g->be = be;
    g->real = real;
    g->counts = real != NULL;
    g->overcommit = o->overcommit;
    g->hooks = o->hooks;
    own_by(g, "model");
    Status st = o->model ? open_target(g, o, err) : fail(err, ST_ARG, "model: no file was given");
    /* "auto": the target's own layer, if it has a usable one */
    bool welcome = st == ST_OK && o->draft && strcmp(o->draft, "auto") == 0;
    own_by(g, "drafter");
    if (st == ST_OK && o->draft && (!welcome || g->model->n_extra > 0)) st = open_draft(g, o, err);
    else if (st == ST_OK && o->n_taps) st = model_set_taps(g->model, o->taps, o->n_taps, err);
    if (welcome && (st == ST_FORMAT || st == ST_UNSUPPORTED)) {
        say(&g->hooks, 1, err->text);
        st = ST_OK;
    }
    if (st == ST_OK && !g->counts) st = engine_identity(g, o->fa_window, err);
    if (st != ST_OK) {
        rt_close(g);
        return st;
    }
    log_engine(g, o->fa_window);
    if (!g->counts) engine_recommended_check(g);
    *out = g;
    return ST_OK;
}

void rt_close(rt_engine *g)
{
    if (!g) return;
    model_close(g->draft);
    model_close(g->model);
    token_trie_close(g->trie);
    tokenizer_close(g->tokenizer);
    gguf_close(g->model_file);
    gguf_close(g->draft_gguf);
    safetensors_close(g->draft_folder);
    g->be->close(g->be);
    if (g->real) g->real->close(g->real);
    pthread_mutex_destroy(&g->lock);
    free(g);
}

/* ---- sessions and steps ---- */

uint64_t engine_kv_bytes(const Model *m)
{
    uint64_t row = 0;
    for (int32_t il = 0; il < m->n_layers; il++) {
        const LayerSpec *p = &m->spec[il];
        if (p->kind != LAYER_ATTENTION || p->ring) continue;         /* a ring's size does not depend on ctx */
        enum { MANY = 256 };                       /* whole panels of any type */
        Backend *be = stages_be(&m->stages, il);
        row += (be->kv_bytes(be, p, false, MANY) + be->kv_bytes(be, p, true, MANY)) / MANY;
    }
    return row;
}

PassWork engine_pass_work(const Model *m)
{
    Backend *be = stages_be(&m->stages, m->n_layers - 1);
    const Tensor *head = &m->head;
    PassWork w = { m->weight_bytes, m->n_weights };
    if (!m->target && m->embed.data && m->embed.data != head->data) {
        w.bytes -= m->stages.at[0].be->weight_bytes(m->stages.at[0].be, m->embed.type, m->embed.rows, m->embed.cols);
        w.parameters -= (uint64_t) m->embed.rows * (uint64_t) m->embed.cols;
    }
    if (m->target && head->data == m->target->head.data) {
        w.bytes += be->weight_bytes(be, head->type, head->rows, head->cols);
        w.parameters += (uint64_t) head->rows * (uint64_t) head->cols;
    }
    return w;
}

static uint64_t matrix_bytes(const Model *m)
{
    uint64_t sum = 0;
    for (int32_t il = 0; il < m->n_layers; il++) {
        const LayerSpec *p = &m->spec[il];
        if (p->kind == LAYER_DELTA)
            sum += sizeof(float) * (uint64_t) p->v_heads * (uint64_t) p->k_dim * (uint64_t) p->v_dim;
    }
    return sum;
}

/* The same model on a counting backend: descriptors are shared, nothing is read through them. */
static Status seen_by_null(rt_engine *seen, Model *target, Model *draft, const rt_engine *g, Error *err)
{
    *seen = (rt_engine) { .model = target, .counts = true };
    *target = *g->model;
    TRY(backend_null_open(&seen->be, g->be, err));
    target->stages = stages_one(seen->be);
    if (g->draft) {
        *draft = *g->draft;
        draft->stages = target->stages;
        draft->target = target;
        seen->draft = draft;
    }
    pthread_mutex_init(&seen->lock, NULL);
    return ST_OK;
}

static void not_seen(rt_engine *seen)
{
    seen->be->close(seen->be);
    pthread_mutex_destroy(&seen->lock);
}

static void add_bytes(void *ud, const char *owner, const char *name, size_t bytes)
{
    (void) owner, (void) name;
    *(uint64_t *) ud += bytes;
}

/* Bytes of a session, measured by opening it on a counting backend. */
static Status session_bytes(uint64_t *out, rt_engine *g, const rt_session_options *o, int32_t ctx, Error *err)
{
    rt_engine seen;
    Model target, draft;
    TRY(seen_by_null(&seen, &target, &draft, g, err));
    rt_session *s = NULL;
    rt_session_options so = *o;
    so.ctx = ctx;
    Status st = engine_session(&s, &seen, &so, err);
    *out = 0;
    if (st == ST_OK) {
        backend_null_parts(seen.be, add_bytes, out);
        *out += s->s.ngram.head[0] ? ngram_bytes(ctx) : 0;
    }
    rt_session_free(s);
    not_seen(&seen);
    return st;
}

static uint64_t free_memory(const rt_engine *g)
{
    uint64_t there = 0, total;
    g->be->memory(g->be, &there, &total);
    return there;
}

/* min(the model's, 8192, what fits into 80 % of free memory); in a plan, free memory is what the weights leave. */
static int32_t default_ctx(const rt_engine *g)
{
    const Model *m = g->model;
    int32_t ctx = m->ctx_train < CTX_DEFAULT ? m->ctx_train : CTX_DEFAULT;
    uint64_t row = engine_kv_bytes(m), there = free_memory(g), coming = 0;
    if (g->counts) backend_null_parts(g->be, add_bytes, &coming);
    if (there == 0 || row == 0) return ctx;
    uint64_t fits = (there > coming ? there - coming : 0) / 5 * 4 / row;
    return fits < (uint64_t) ctx ? (fits < 64 ? 64 : (int32_t) fits) : ctx;
}

static Status check_session(const rt_session_options *o, Error *err)
{
    if (o->ctx < 0 || o->ctx > 1 << 24)
        return fail(err, ST_ARG, "ctx: %d, expected 1 to %d tokens (0: default)", o->ctx, 1 << 24);
    if (o->draft_ctx < 0 || o->draft_ctx > 1 << 20)
        return fail(err, ST_ARG, "draft_ctx: %d, expected 1 to %d tokens (0: default)", o->draft_ctx, 1 << 20);
    if (o->checkpoints < -1 || o->checkpoints > CHECKPOINTS_MAX)
        return fail(err, ST_ARG, "checkpoints: %d, expected 1 to %d (0: default, -1: none)", o->checkpoints,
                    CHECKPOINTS_MAX);
    if (o->ngram < -1 || o->ngram > 1) return fail(err, ST_ARG, "ngram: %d, expected -1 to 1", o->ngram);
    return ST_OK;
}

/* Refuses memory that the system would grant, killing the process once it is used. */
static Status check_session_memory(rt_engine *g, const rt_session_options *o, int32_t ctx, Error *err)
{
    uint64_t need = 0, there = free_memory(g);
    if (g->counts || g->overcommit || there == 0) return ST_OK;
    TRY(session_bytes(&need, g, o, ctx, err));
    if (need <= there) return ST_OK;
    return fail(err, ST_MEMORY, "ctx: a session of %d tokens takes %.2f GB, but %.2f GB of memory are free, enough for "
                "about %.0f tokens", ctx, (double) need / 1e9, (double) there / 1e9,
                floor((double) ctx * (double) there / (double) need));
}

static Status open_session(rt_session *s, const rt_session_options *o, int32_t ctx, Error *err)
{
    rt_engine *g = s->g;
    int32_t n_ckpt = o->checkpoints < 0 ? 0 : o->checkpoints ? o->checkpoints : CHECKPOINTS_DEFAULT;
    pthread_mutex_lock(&g->lock);
    Status st = session_open(&s->s, g->model, g->draft, ctx, o->draft_ctx, n_ckpt, o->ngram >= 0, err);
    pthread_mutex_unlock(&g->lock);
    return st;
}

Status engine_session(rt_session **out, rt_engine *g, const rt_session_options *o, Error *err)
{
    static const rt_session_options standard = { 0 };
    if (!o) o = &standard;
    *out = NULL;
    TRY(check_session(o, err));
    int32_t ctx = o->ctx ? o->ctx : default_ctx(g);
    TRY(check_session_memory(g, o, ctx, err));
    rt_session *s = calloc(1, sizeof *s);
    if (!s) return fail(err, ST_MEMORY, "session: out of memory");
    s->g = g;
    Status st = open_session(s, o, ctx, err);
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
    rt_step *st = ud;
    if (atomic_exchange(&st->cancelled, false)) return true;
    return st->told.progress && !st->told.progress(st->told.ud, "pass", 0, 0);
}

/* The host may not be able to read a tensor, so it is copied; tracing is for debugging and may allocate. */
static void traced(void *ud, Backend *be, const char *name, int32_t il, const Tensor *t)
{
    const rt_step *st = ud;
    size_t bytes = sizeof(float) * (size_t) t->rows * (size_t) t->cols;
    float *rows = malloc(bytes);
    if (!rows) return;
    be->copy_out(be, rows, t->data, bytes);
    if (be->sync(be, NULL) == ST_OK) st->told.trace(st->told.ud, name, il, rows, t->rows, t->cols);
    free(rows);
}

static void decided(void *ud, const char *line) { say(&((rt_step *) ud)->told, 3, line); }

Status engine_step(rt_step **out, rt_engine *g, const rt_step_options *o, size_t scratch, Error *err)
{
    static const rt_step_options standard = { 0 };
    if (!o) o = &standard;
    *out = NULL;
    if (o->budget < -1 || o->budget > ROWS_DECODE - 1)
        return fail(err, ST_ARG, "budget: %d, expected 1 to %d (0: automatic, -1: plain)", o->budget, ROWS_DECODE - 1);
    if (o->draft_block && (o->draft_block < 2 || o->draft_block > LAT_DEPTH + 1))
        return fail(err, ST_ARG, "draft_block: %d, expected 2 to %d rows (0: what the drafter was trained for)",
                    o->draft_block, LAT_DEPTH + 1);
    if (o->chunk < 0 || o->chunk > CHUNK_MAX)
        return fail(err, ST_ARG, "chunk: %d, expected 1 to %d (0: default)", o->chunk, CHUNK_MAX);
    rt_step *st = calloc(1, sizeof *st);
    if (!st) return fail(err, ST_MEMORY, "step: out of memory");
    st->g = g;
    Drafter *d = NULL;
    if (g->draft && o->budget != BUDGET_PLAIN) {
        (g->draft->hold ? drafter_mtp : drafter_dflash)(&st->drafter, g->draft, o->draft_block);
        d = &st->drafter.drafter;
    }
    pthread_mutex_lock(&g->lock);
    Status code = spec_open(&st->spec, g->model, g->draft, d, o->sessions ? o->sessions : 1,
                            o->chunk ? o->chunk : CHUNK_DEFAULT, o->threads, scratch, err);
    pthread_mutex_unlock(&g->lock);
    if (code != ST_OK) {
        rt_step_free(st);
        return code;
    }
    st->spec.budget = o->budget;
    st->spec.chain = o->chain;
    st->spec.count = &st->count;
    st->told = o->hooks;
    st->spec.log = o->hooks.log ? decided : NULL;
    st->spec.log_ud = st;
    st->hooks = (Hooks) { .cancel = polled, .trace = o->hooks.trace ? traced : NULL, .ud = st };
    step_hooks(&st->spec.step, &st->hooks);
    *out = st;
    return ST_OK;
}

void rt_step_free(rt_step *st)
{
    if (!st) return;
    rt_engine *g = st->g;
    pthread_mutex_lock(&g->lock);
    spec_close(&st->spec);
    pthread_mutex_unlock(&g->lock);
    free(st);
}

Status engine_scratch(size_t *scratch, uint64_t *bytes, rt_engine *g, const rt_step_options *o, Error *err)
{
    rt_engine seen;
    Model target, draft;
    TRY(seen_by_null(&seen, &target, &draft, g, err));
    rt_step_options quiet = o ? *o : (rt_step_options) { 0 };
    quiet.hooks = (rt_hooks) { 0 };
    rt_step *st = NULL;
    rt_session *s = NULL;
    Status code = engine_step(&st, &seen, &quiet, 0, err);
    uint64_t own = 0;
    if (code == ST_OK) backend_null_parts(seen.be, add_bytes, &own);
    if (code == ST_OK)
        code = engine_session(&s, &seen,
                              &(rt_session_options) { .ctx = ROWS_DECODE, .checkpoints = -1, .ngram = -1 }, err);
    if (code == ST_OK) {
        s->s.line.text[s->s.line.n_text++] = 0;              /* a root */
        code = spec_largest(&st->spec, &s->s, err);
    }
    if (code == ST_OK) *scratch = step_peak(&st->spec.step);
    if (code == ST_OK && bytes) *bytes = own + *scratch * (uint64_t) g->model->stages.n;
    rt_session_free(s);
    rt_step_free(st);
    not_seen(&seen);
    return code;
}

/* Like check_session_memory. */
static Status check_step_memory(const rt_engine *g, uint64_t need, Error *err)
{
    uint64_t there = free_memory(g);
    if (g->counts || g->overcommit || there == 0 || need <= there) return ST_OK;
    return fail(err, ST_MEMORY, "step: scratch and workspace take %.2f GB, but %.2f GB of memory are free; fewer "
                "threads and smaller chunks take less", (double) need / 1e9, (double) there / 1e9);
}

Status engine_step_new(rt_step **out, rt_engine *g, const rt_step_options *o, Error *err)
{
    size_t scratch = 0;
    uint64_t bytes = 0;
    *out = NULL;
    TRY(engine_scratch(&scratch, &bytes, g, o, err));
    TRY(check_step_memory(g, bytes, err));
    return engine_step(out, g, o, scratch, err);
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
} PlanParts;

static void plan_part(void *ud, const char *owner, const char *name, size_t bytes)
{
    const PlanParts *p = ud;
    rt_needs *n = p->needs;
    uint64_t *sum[] = { &n->model, &n->drafter, &n->session, &n->step, &n->process };
    static const char *const owners[] = { "model", "drafter", "session", "step", "process" };
    for (size_t i = 0; i < sizeof sum / sizeof *sum; i++)
        if (strcmp(owner, owners[i]) == 0) *sum[i] += bytes;
    if (p->part) p->part(p->ud, owner, name, bytes);
}

/* What passes cost, besides the memory that they take. */
static void plan_work(rt_needs *n, const rt_engine *g)
{
    const Model *m = g->model, *d = g->draft;
    PassWork pass = engine_pass_work(m);
    n->ctx_train = m->ctx_train;
    n->pass_bytes = pass.bytes;
    n->pass_parameters = pass.parameters;
    n->kv_bytes = engine_kv_bytes(m);
    n->state_bytes = matrix_bytes(m);
    n->layers = m->n_layers;
    snprintf(n->level, sizeof n->level, "%s", g->be->level ? g->be->level : "");
    if (!d) return;
    pass = engine_pass_work(d);
    n->draft_bytes = pass.bytes;
    n->draft_parameters = pass.parameters;
    n->draft_layers = d->n_layers;
    n->draft_block = d->block;
    n->draft_passes = d->hold ? d->block - 1 : 1;
}

/* An engine, a session and a step on a counting backend. */
typedef struct { Backend *real, *null; rt_engine *g; rt_session *s; rt_step *st; } Planned;

static Status plan_open(Planned *p, const rt_options *o, const rt_session_options *so, const rt_step_options *sto,
                        Error *err)
{
    size_t scratch = 0;
    rt_options quiet = *o;
    rt_step_options step = sto ? *sto : (rt_step_options) { 0 };
    quiet.hooks = step.hooks = (rt_hooks) { 0 };
    TRY(engine_open(&p->g, p->null, p->real, &quiet, err));
    own_by(p->g, "session");
    TRY(engine_session(&p->s, p->g, so, err));
    if (p->s->s.ngram.head[0]) p->null->alloc(p->null, ngram_bytes(p->s->s.line.ctx), "n-gram index");
    own_by(p->g, "step");
    TRY(engine_scratch(&scratch, NULL, p->g, &step, err));
    return engine_step(&p->st, p->g, &step, scratch, err);
}

static Status plan(const rt_options *o, const rt_session_options *so, const rt_step_options *sto, PlanParts *parts,
                   Error *err)
{
    Planned p = { 0 };
    TRY(engine_backend(&p.real, o, err));
    size_t before = resident();
    Status st = backend_null_open(&p.null, p.real, err);
    if (st != ST_OK) {
        p.real->close(p.real);
        return st;
    }
    st = plan_open(&p, o, so, sto, err);
    if (st == ST_OK) {
        size_t after = resident();
        backend_null_parts(p.null, plan_part, parts);
        plan_part(parts, "process", "tables", after > before ? after - before : 0);
        p.real->memory(p.real, &parts->needs->free, &parts->needs->total);
        parts->needs->ctx = p.s->s.line.ctx;
        plan_work(parts->needs, p.g);
    }
    rt_step_free(p.st);
    rt_session_free(p.s);
    rt_close(p.g);
    return st;
}

Status engine_plan(const rt_options *o, const rt_session_options *so, const rt_step_options *sto,
                   void (*part)(void *ud, const char *owner, const char *name, size_t bytes), void *ud, rt_needs *needs,
                   Error *err)
{
    *needs = (rt_needs) { 0 };
    return plan(o, so, sto, &(PlanParts) { needs, part, ud }, err);
}
