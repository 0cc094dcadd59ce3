/* engine.c - opening the objects behind the handles. */
#include "engine/engine.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/path.h"
#include "base/pool.h"

enum { CTX_DEFAULT = 8192, CHUNK_MAX = 4096, CHECKPOINTS_DEFAULT = 3 };

static void say(const rt_hooks *h, int level, const char *line)
{
    if (h->log) h->log(h->ud, level, line);
}

/* ---- backends ---- */

void backends_close(Stages *s)
{
    for (int32_t k = 0; k < s->n; k++) s->at[k].be->close(s->at[k].be);
    s->n = 0;
}

/* The i-th of the devices that a name lists ("cuda:0+2": "cuda:0", "cuda:2"), or the name itself. Returns false past
 * the last. */
static bool listed(char *out, size_t cap, const char *name, int32_t i)
{
    const char *at = strchr(name, ':');
    if (i == 0 && !at) return (size_t) snprintf(out, cap, "%s", name) < cap;
    const int kind = at ? (int) (at - name) : 0;
    for (; at && i > 0; i--) at = strchr(at + 1, '+');
    return at && (size_t) snprintf(out, cap, "%.*s:%.*s", kind, name, (int) strcspn(at + 1, "+"), at + 1) < cap;
}

/* Whether an earlier one is the same, which may be spelt otherwise in the list. */
static bool opened_before(const Stages *s, const Backend *be)
{
    int32_t k = 0;
    while (s->at[k].be != be && strcmp(s->at[k].be->name, be->name) != 0) k++;
    return s->at[k].be != be;
}

/* Opens what the name lists: several only of devices, each once. All layers are on the last. */
static Status open_named(Stages *out, const char *name, const BackendOptions *bo, Error *err)
{
    char one[64];
    if (strlen(name) >= sizeof one) return fail(err, ST_ARG, "backend: '%.70s...' is no backend's name", name);
    for (int32_t i = 0; listed(one, sizeof one, name, i); i++) {
        if (i == DEVICES_MAX)
            return fail(err, ST_ARG, "backend: '%s', expected at most %d cards", name, DEVICES_MAX);
        TRY(backend_open(&out->at[i].be, one, bo, err));
        out->n++;
        out->at[i].end = INT32_MAX;
        if (i > 0) out->at[i - 1].end = 0;
        if (i > 0 && !out->at[i].be->device)
            return fail(err, ST_ARG, "backend: '%s', expected a list of cards only, such as cuda:0+1", name);
        if (opened_before(out, out->at[i].be))
            return fail(err, ST_ARG, "backend: '%s', expected each card once", name);
        if (out->at[i].be->device) out->at[i].be->device = i + 1;
    }
    return ST_OK;
}

static void put_first(Stages *s, Backend *be)
{
    memmove(&s->at[1], &s->at[0], sizeof s->at[0] * (size_t) s->n++);
    s->at[0].be = be;
    s->at[0].end = 0;
}

Status engine_backends(Stages *out, const rt_options *o, Error *err)
{
    const BackendOptions bo = { .threads = o->threads, .no_repack = o->no_repack };
    const char *name = o->backend ? o->backend : "auto";
    Backend *cpu;
    *out = (Stages) { 0 };
    if (o->gpu_layers == RT_LAYERS_NONE && strncmp(name, "cpu", 3) != 0) name = "cpu";
    Status st = open_named(out, name, &bo, err);
    if (st == ST_OK && out->at[0].be->device) {
        st = backend_open(&cpu, "cpu", &bo, err);
        if (st == ST_OK) put_first(out, cpu);
    }
    if (st != ST_OK) backends_close(out);
    return st;
}

Status backends_count(Stages *out, const Stages *like, Error *err)
{
    *out = (Stages) { 0 };
    for (int32_t k = 0; k < like->n; k++) {
        out->at[k].end = like->at[k].end;
        Status st = backend_null_open(&out->at[k].be, like->at[k].be, err);
        if (st != ST_OK) {
            backends_close(out);
            return st;
        }
        out->n++;
    }
    return ST_OK;
}

/* Those that run layers. */
static Stages busy(const Stages *have)
{
    Stages on = { 0 };
    int32_t from = 0;
    for (int32_t k = 0; k < have->n; k++) {
        if (have->at[k].end > from) on.at[on.n++] = have->at[k];
        from = have->at[k].end;
    }
    return on;
}

static void add_bytes(void *ud, const char *owner, const char *name, size_t bytes)
{
    (void) owner, (void) name;
    *(uint64_t *) ud += bytes;
}

Amount engine_counted(const Stages *s)
{
    Amount b = { 0 };
    for (int32_t k = 0; k < s->n; k++)
        backend_null_parts(s->at[k].be, add_bytes, &b.in[memory_of(s->at[k].be)]);
    return b;
}

Amount engine_free(const Stages *have)
{
    Amount b = { 0 };
    for (int32_t k = 0; k < have->n; k++) {
        Backend *be = have->at[k].be;
        uint64_t total;
        be->memory(be, &b.in[be->device], &total);
    }
    return b;
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
    Weights w = { .gguf = g->model_file };
    if (g->use == ENGINE_SIZES || g->use == ENGINE_SAMPLES) return model_open(&g->model, &g->on, &w, NULL, mo, err);
    const bool beside = pthread_create(&thread, NULL, open_tokenizer, &job) == 0;
    if (!beside) open_tokenizer(&job);
    Status st = model_open(&g->model, &g->on, &w, NULL, mo, err);
    if (beside) pthread_join(thread, NULL);
    if (job.code == ST_OK || job.code == ST_END) return st;
    *err = job.error;
    return job.code;
}

static Status store_options(StoreOptions *out, const rt_options *o, Error *err)
{
    static const char *const io[] = { "auto", "io_uring", "pread", "mmap" };
    int32_t i = 0;
    while (i < 4 && o->expert_io && strcmp(o->expert_io, io[i]) != 0) i++;
    if (i == 4)
        return fail(err, ST_ARG, "expert_io: '%s', expected auto, io_uring, pread or mmap", o->expert_io);
    if (o->expert_slots < 0 || o->expert_slots > EXPERTS_MAX)
        return fail(err, ST_ARG, "expert_slots: %d, expected 1 to %d slots per layer (0: an eighth of all)",
                    o->expert_slots, EXPERTS_MAX);
    *out = (StoreOptions) { .ram = o->expert_ram, .device_ram = o->expert_vram, .io = (StoreIo) i,
                            .ring = o->expert_slots, .progress = o->hooks.progress, .ud = o->hooks.ud };
    return ST_OK;
}

static Status open_target(rt_engine *g, const rt_options *o, Error *err)
{
    ModelOptions mo = { .window = o->fa_window, .overcommit = o->overcommit, .progress = o->hooks.progress,
                        .ud = o->hooks.ud, .lends = o->draft != NULL,
                        .sample = g->use == ENGINE_SAMPLES };
    if (o->fa_window < 0)
        return fail(err, ST_ARG, "fa_window: %d, expected a number of positions (0: all)", o->fa_window);
    TRY(kv_type(&mo.k_type, o->kv_k, "kv_k", err));
    TRY(kv_type(&mo.v_type, o->kv_v, "kv_v", err));
    TRY(store_options(&mo.store, o, err));
    if (o->weight_type && strcmp(o->weight_type, "q8_0") == 0) mo.q8_weights = true;
    else if (o->weight_type && strcmp(o->weight_type, "keep") != 0)
        return fail(err, ST_ARG, "weight_type: '%s', expected keep or q8_0", o->weight_type);
    mo.hotness = o->expert_profile;
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
        if (g->use != ENGINE_SIZES) TRY(hash_draft(g, err));
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
    if (m->n_quantised) {
        snprintf(line, sizeof line, "%d matrices of 16 bits were quantised to Q8_0 (weight-type): the text is not that "
                 "of the file's own weights", m->n_quantised);
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

void engine_owner(const rt_engine *g, const char *owner)
{
    for (int32_t k = 0; engine_counts(g->use) && k < g->on.n; k++) backend_null_owner(g->on.at[k].be, owner);
}

Status engine_open(rt_engine **out, Stages have, EngineUse use, const rt_options *o, Error *err)
{
    *out = NULL;
    rt_engine *g = calloc(1, sizeof *g);
    if (!g) {
        backends_close(&have);
        return fail(err, ST_MEMORY, "engine: out of memory");
    }
    pthread_mutex_init(&g->lock, NULL);
    g->have = have;
    g->on = busy(&have);
    g->use = use;
    g->overcommit = o->overcommit;
    g->hooks = o->hooks;
    engine_owner(g, "model");
    Status st = o->model && *o->model ? open_target(g, o, err) : fail(err, ST_ARG, "model: no file was given");
    /* "auto": the target's own layer, if it has a usable one */
    bool welcome = st == ST_OK && o->draft && strcmp(o->draft, "auto") == 0;
    if (st == ST_OK && o->draft && !welcome && g->model->diffusion.canvas)
        st = fail(err, ST_UNSUPPORTED, "draft: '%s', but %s denoises whole blocks, for which there is nothing to guess",
                  o->draft, o->model);
    engine_owner(g, "drafter");
    if (st == ST_OK && o->draft && (!welcome || g->model->n_extra > 0)) st = open_draft(g, o, err);
    else if (st == ST_OK && o->n_taps) st = model_set_taps(g->model, o->taps, o->n_taps, err);
    if (welcome && (st == ST_FORMAT || st == ST_UNSUPPORTED)) {
        say(&g->hooks, 1, err->text);
        st = ST_OK;
    }
    if (st == ST_OK && use == ENGINE_RUNS) st = engine_identity(g, o->fa_window, err);
    if (st != ST_OK) {
        rt_close(g);
        return st;
    }
    log_engine(g, o->fa_window);
    if (use == ENGINE_RUNS) engine_recommended_check(g);
    *out = g;
    return ST_OK;
}

void rt_close(rt_engine *g)
{
    if (!g) return;
    model_close(g->draft);
    model_close(g->model);
    token_trie_close(g->trie);
    free(g->expert_counts);
    tokenizer_close(g->tokenizer);
    gguf_close(g->model_file);
    gguf_close(g->draft_gguf);
    safetensors_close(g->draft_folder);
    backends_close(&g->have);
    pthread_mutex_destroy(&g->lock);
    free(g);
}

/* ---- sessions and steps ---- */

/* Of one token in a layer; 0 where the number of slots does not depend on the context. */
static uint64_t kv_row(const Model *m, int32_t il, Type type)
{
    enum { MANY = 256 };                           /* whole panels of any type */
    LayerSpec p = m->spec[il];
    Backend *be = stages_be(&m->stages, il);
    if (p.kind != LAYER_ATTENTION || p.ring) return 0;
    if (type != T_COUNT) p.k_type = p.v_type = type;
    return (be->kv_bytes(be, &p, false, MANY) + be->kv_bytes(be, &p, true, MANY)) / MANY;
}

uint64_t engine_kv_bytes(const Model *m, Type type)
{
    uint64_t sum = 0;
    for (int32_t il = 0; il < m->n_layers; il++) sum += kv_row(m, il, type);
    return sum;
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
    if (m->experts) {
        const double unused = 1 - (double) m->router.used / m->experts;
        w.bytes -= (uint64_t) (unused * (double) m->expert_bytes);
        w.parameters -= (uint64_t) (unused * (double) m->n_expert_weights);
    }
    return w;
}

uint64_t engine_state_bytes(const Model *m)
{
    uint64_t sum = 0;
    for (int32_t il = 0; il < m->n_layers; il++) {
        const LayerSpec *p = &m->spec[il];
        if (p->kind == LAYER_DELTA)
            sum += sizeof(float) * (uint64_t) p->v_heads * (uint64_t) p->k_dim * (uint64_t) p->v_dim;
    }
    return sum;
}

/* The same model on counting backends: descriptors are shared, nothing is read through them. */
static Status seen_by_null(rt_engine *seen, Model *target, Model *draft, const rt_engine *g, Error *err)
{
    *seen = (rt_engine) { .model = target, .use = ENGINE_SIZES };
    *target = *g->model;
    TRY(backends_count(&seen->have, &g->on, err));
    seen->on = target->stages = seen->have;
    if (g->draft) {
        *draft = *g->draft;
        draft->stages = stages_one(stages_last(&target->stages));
        draft->target = target;
        seen->draft = draft;
    }
    pthread_mutex_init(&seen->lock, NULL);
    return ST_OK;
}

static void not_seen(rt_engine *seen)
{
    backends_close(&seen->have);
    pthread_mutex_destroy(&seen->lock);
}

size_t engine_index_bytes(const rt_session *s) { return s->s.ngram.head[0] ? ngram_bytes(s->s.line.ctx) : 0; }
size_t engine_text_bytes(const rt_session *s) { return sizeof *s + session_bytes(&s->s); }
size_t engine_tree_bytes(const rt_step *st) { return sizeof *st + spec_bytes(&st->spec); }

/* Bytes of a session, measured by opening it on counting backends. */
static Status count_session(Amount *out, rt_engine *g, const rt_session_options *o, int32_t ctx, Error *err)
{
    rt_engine seen;
    Model target, draft;
    TRY(seen_by_null(&seen, &target, &draft, g, err));
    rt_session *s = NULL;
    rt_session_options so = *o;
    so.ctx = ctx;
    Status st = engine_session(&s, &seen, &so, err);
    if (st == ST_OK) {
        *out = engine_counted(&seen.on);
        out->in[IN_MAIN] += engine_index_bytes(s) + engine_text_bytes(s);
    }
    rt_session_free(s);
    not_seen(&seen);
    return st;
}

int32_t engine_room(const rt_engine *g, int32_t memory)
{
    uint64_t row = 0, there = engine_free(&g->have).in[memory], coming = 0;
    if (engine_counts(g->use)) coming = engine_counted(&g->on).in[memory];
    if (engine_counts(g->use) && memory == IN_MAIN) coming += g->model->device_store.host_bytes;
    for (int32_t il = 0; il < g->model->n_layers; il++)
        if (memory_of(stages_be(&g->on, il)) == memory) row += kv_row(g->model, il, T_COUNT);
    if (there == 0 || row == 0) return INT32_MAX;
    uint64_t fits = (there > coming ? there - coming : 0) / 5 * 4 / row;
    return fits < INT32_MAX ? (int32_t) fits : INT32_MAX;
}

static int32_t least(int32_t a, int32_t b) { return a < b ? a : b; }

int32_t engine_device_room(const rt_engine *g)
{
    int32_t room = INT32_MAX;
    for (int32_t i = IN_DEVICE; i < MEMORIES; i++) room = least(room, engine_room(g, i));
    return room;
}

static int32_t at_least_64(int32_t ctx, int32_t most) { return ctx < most ? ctx < 64 ? 64 : ctx : most; }

/* min(the model's, 8192, what fits into 80 % of free memory); in a plan, free memory is what the weights leave. */
int32_t engine_usual_ctx(const rt_engine *g)
{
    return at_least_64(engine_room(g, IN_MAIN), least(g->model->ctx_train, CTX_DEFAULT));
}

static int32_t default_ctx(const rt_engine *g) { return at_least_64(engine_device_room(g), engine_usual_ctx(g)); }

static Status check_session(const rt_engine *g, const rt_session_options *o, Error *err)
{
    const int32_t most = RT_CTX_MAX - g->model->diffusion.canvas;
    if (o->ctx < 0 || o->ctx > most)
        return fail(err, ST_ARG, "ctx: %d, expected 1 to %d tokens (0: default)", o->ctx, most);
    if (o->draft_ctx < 0 || o->draft_ctx > RT_CTX_MAX)
        return fail(err, ST_ARG, "draft_ctx: %d, expected 1 to %d tokens (0: default)", o->draft_ctx, RT_CTX_MAX);
    if (o->checkpoints < -1 || o->checkpoints > CHECKPOINTS_MAX)
        return fail(err, ST_ARG, "checkpoints: %d, expected 1 to %d (0: default, -1: none)", o->checkpoints,
                    CHECKPOINTS_MAX);
    if (o->ngram < -1 || o->ngram > 1) return fail(err, ST_ARG, "ngram: %d, expected -1 to 1", o->ngram);
    return ST_OK;
}

/* The first memory that has less free than is needed; MEMORIES: none, or whatever is free may be taken. */
static int32_t too_little(const rt_engine *g, const Amount *need, Amount *there)
{
    int32_t i = 0;
    *there = engine_free(&g->have);
    if (engine_counts(g->use) || g->overcommit) return MEMORIES;
    while (i < MEMORIES && (there->in[i] == 0 || need->in[i] <= there->in[i])) i++;
    return i;
}

static const char *memory_name(int32_t i) { return i == IN_MAIN ? "memory" : "device memory"; }

/* Refuses memory that the system would grant, killing the process once it is used. */
static Status check_session_memory(rt_engine *g, const rt_session_options *o, int32_t ctx, Error *err)
{
    Amount need = { 0 }, there;
    if (engine_counts(g->use) || g->overcommit) return ST_OK;
    TRY(count_session(&need, g, o, ctx, err));
    const int32_t in = too_little(g, &need, &there);
    if (in == MEMORIES) return ST_OK;
    const double takes = (double) need.in[in], has = (double) there.in[in];
    return fail(err, ST_MEMORY, "ctx: a session of %d tokens takes %.2f GB, but %.2f GB of %s are free, enough for "
                "about %.0f tokens", ctx, takes / 1e9, has / 1e9, memory_name(in), floor((double) ctx * has / takes));
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
    TRY(check_session(g, o, err));
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
    const bool read = be->sync(be, NULL) == ST_OK;
    for (size_t i = 0; t->type == T_I32 && i < bytes / sizeof *rows; i++) {
        int32_t id;
        memcpy(&id, rows + i, sizeof id);
        rows[i] = (float) id;
    }
    if (read) st->told.trace(st->told.ud, name, il, rows, t->rows, t->cols);
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
    TRY(pool_check(o->threads, err));
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
                            o->chunk ? o->chunk : engine_chunk(g), o->threads, scratch, err);
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

Status engine_scratch(size_t *scratch, Amount *bytes, rt_engine *g, const rt_step_options *o, Error *err)
{
    rt_engine seen;
    Model target, draft;
    TRY(seen_by_null(&seen, &target, &draft, g, err));
    rt_step_options quiet = o ? *o : (rt_step_options) { 0 };
    quiet.hooks = (rt_hooks) { 0 };
    rt_step *st = NULL;
    rt_session *s = NULL;
    Status code = engine_step(&st, &seen, &quiet, 0, err);
    Amount own = { 0 };
    if (code == ST_OK) {
        own = engine_counted(&seen.on);
        own.in[IN_MAIN] += engine_tree_bytes(st);
        code = engine_session(&s, &seen,
                              &(rt_session_options) { .ctx = ROWS_DECODE, .checkpoints = -1, .ngram = -1 }, err);
    }
    if (code == ST_OK) {
        s->s.line.text[s->s.line.n_text++] = 0;              /* a root */
        code = spec_largest(&st->spec, &s->s, err);
        if (code == ST_OK && seen.model->diffusion.canvas) code = diffuse_largest(&st->spec, &s->s, err);
    }
    if (code == ST_OK) *scratch = step_peak(&st->spec.step);
    for (int32_t k = 0; code == ST_OK && k < seen.on.n; k++) {
        const Backend *be = seen.on.at[k].be;
        own.in[memory_of(be)] += backend_block(be, *scratch);
    }
    if (code == ST_OK && bytes) *bytes = own;
    rt_session_free(s);
    rt_step_free(st);
    not_seen(&seen);
    return code;
}

/* Like check_session_memory. */
static Status check_step_memory(const rt_engine *g, const Amount *need, Error *err)
{
    Amount there;
    const int32_t in = too_little(g, need, &there);
    if (in == MEMORIES) return ST_OK;
    return fail(err, ST_MEMORY, "step: scratch and workspace take %.2f GB, but %.2f GB of %s are free; fewer "
                "threads and smaller chunks take less", (double) need->in[in] / 1e9, (double) there.in[in] / 1e9,
                memory_name(in));
}

Status engine_step_new(rt_step **out, rt_engine *g, const rt_step_options *o, Error *err)
{
    size_t scratch = 0;
    Amount need = { 0 };
    *out = NULL;
    TRY(engine_scratch(&scratch, &need, g, o, err));
    TRY(check_step_memory(g, &need, err));
    return engine_step(out, g, o, scratch, err);
}
