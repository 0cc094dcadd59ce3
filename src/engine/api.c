/* api.c - the functions of ratoon.h and ratoon_lab.h: maps handles to objects and status codes to status codes. */
#include <locale.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/ranges.h"
#include "engine/engine.h"
#include "engine/sized.h"

_Static_assert((int) RT_END == (int) ST_END && (int) RT_EARG == (int) ST_ARG && (int) RT_ENOMEM == (int) ST_MEMORY &&
               (int) RT_EIO == (int) ST_IO && (int) RT_EFORMAT == (int) ST_FORMAT && (int) RT_EUNSUPPORTED ==
               (int) ST_UNSUPPORTED && (int) RT_EFULL == (int) ST_FULL && (int) RT_ECANCEL == (int) ST_CANCEL &&
               (int) RT_EBACKEND == (int) ST_BACKEND && (int) RT_ENOTOKEN == (int) ST_NOTOKEN &&
               (int) RT_ELOST == (int) ST_LOST, "status codes");
_Static_assert((int) RT_BLOCK == (int) SOURCE_BLOCK && (int) RT_NGRAM == (int) SOURCE_NGRAM &&
               (int) RT_MTP == (int) SOURCE_MTP && (int) RT_SOURCES == (int) SOURCES &&
               (int) RT_SOURCES <= (int) RT_SOURCES_MAX, "sources");
_Static_assert(sizeof((rt_error *) 0)->text == ERROR_TEXT, "error text");

/* Structs without a size field are frozen, since programs or the library make arrays of them; so are the hooks, which
 * are embedded in other structs. */
#define FROZEN(type, bytes, field, offset) \
    _Static_assert(sizeof(void *) != 8 || (sizeof(type) == (bytes) && offsetof(type, field) == (offset)), #type)
FROZEN(rt_error, 516, text, 4);
FROZEN(rt_hooks, 32, ud, 0);
FROZEN(rt_hooks, 32, log, 8);
FROZEN(rt_hooks, 32, progress, 16);
FROZEN(rt_hooks, 32, trace, 24);
FROZEN(rt_span, 16, at, 0);
FROZEN(rt_span, 16, n, 8);
FROZEN(rt_bias, 8, id, 0);
FROZEN(rt_bias, 8, add, 4);
FROZEN(rt_block, 16, token, 0);
FROZEN(rt_block, 16, n, 8);
FROZEN(rt_block, 16, status, 12);
FROZEN(rt_alternative, 8, id, 0);
FROZEN(rt_alternative, 8, logprob, 4);
FROZEN(rt_card, 480, backend, 0);
FROZEN(rt_card, 480, name, 32);
FROZEN(rt_card, 480, level, 160);
FROZEN(rt_card, 480, driver, 176);
FROZEN(rt_card, 480, why, 208);
FROZEN(rt_card, 480, memory, 464);
FROZEN(rt_card, 480, free, 472);
FROZEN(rt_card_needs, 72, model, 0);
FROZEN(rt_card_needs, 72, drafter, 8);
FROZEN(rt_card_needs, 72, session, 16);
FROZEN(rt_card_needs, 72, step, 24);
FROZEN(rt_card_needs, 72, free, 32);
FROZEN(rt_card_needs, 72, total, 40);
FROZEN(rt_card_needs, 72, layers, 48);
FROZEN(rt_card_needs, 72, backend, 52);
FROZEN(rt_logprob, 168, logprob, 0);
FROZEN(rt_logprob, 168, n, 4);
FROZEN(rt_logprob, 168, top, 8);
FROZEN(rt_event, 32, kind, 0);
FROZEN(rt_event, 32, call, 4);
FROZEN(rt_event, 32, bytes, 8);
FROZEN(rt_event, 32, n, 16);
FROZEN(rt_event, 32, from, 24);
FROZEN(rt_event, 32, tokens, 28);

rt_status engine_report(rt_error *e, Status code, const Error *err)
{
    if (e) {
        e->code = (rt_status) code;
        snprintf(e->text, sizeof e->text, "%s", code == ST_OK ? "" : err->text);
    }
    return (rt_status) code;
}

const char *rt_version(void) { return RATOON_VERSION; }

const char *rt_status_text(rt_status status)
{
    switch (status) {
    case RT_OK: return "fine";
    case RT_END: return "the text has ended";
    case RT_EARG: return "an argument is wrong";
    case RT_ENOMEM: return "out of memory";
    case RT_EIO: return "a file cannot be read or written";
    case RT_EFORMAT: return "a file is damaged or of another format";
    case RT_EUNSUPPORTED: return "not supported";
    case RT_EFULL: return "the context is full";
    case RT_ECANCEL: return "cancelled";
    case RT_EBACKEND: return "the backend failed";
    case RT_ENOTOKEN: return "no token is allowed";
    case RT_ELOST: return "the device is lost";
    }
    return "unknown status";
}

rt_status rt_open(rt_engine **out, const rt_options *o, rt_error *e)
{
    Error err = { 0 };
    Stages have = { 0 };
    rt_options known;
    *out = NULL;
    Status code = sized_read(&known, &sized_options, o, &err);
    if (code == ST_OK) code = engine_backends(&have, &known, &err);
    if (code == ST_OK) code = engine_place(&have, &known, NULL, NULL, &err);
    if (code == ST_OK) code = engine_experts(&known, &have, NULL, NULL, &err);
    if (code == ST_OK) code = engine_check_device(&have, &known, &err);
    if (code == ST_OK) code = engine_open(out, have, ENGINE_RUNS, &known, &err);
    else backends_close(&have);
    return engine_report(e, code, &err);
}

rt_status rt_plan(const rt_options *o, const rt_session_options *so, const rt_step_options *st,
                  void (*part)(void *ud, const char *owner, const char *name, size_t bytes), void *ud, rt_needs *needs,
                  size_t size, rt_error *e)
{
    Error err = { 0 };
    rt_options known;
    rt_session_options session;
    rt_step_options step;
    rt_needs own = { 0 };
    Status code = sized_read(&known, &sized_options, o, &err);
    if (code == ST_OK) code = sized_read(&session, &sized_session_options, so, &err);
    if (code == ST_OK) code = sized_read(&step, &sized_step_options, st, &err);
    if (code == ST_OK) code = engine_plan(&known, &session, &step, part, ud, &own, &err);
    if (needs) sized_write(needs, size, &own, sizeof own);
    return engine_report(e, code, &err);
}

/* ---- facts ---- */

static size_t property_of(const Model *m, const char *key, char *out, size_t cap)
{
    if (strcmp(key, "") == 0) return (size_t) snprintf(out, cap, "%s", m->file);
    if (strcmp(key, ".arch") == 0) return (size_t) snprintf(out, cap, "%s", m->arch);
    if (strcmp(key, ".name") == 0) return (size_t) snprintf(out, cap, "%s", m->name);
    if (strcmp(key, ".layers") == 0) return (size_t) snprintf(out, cap, "%d", m->n_layers);
    if (strcmp(key, ".dim") == 0) return (size_t) snprintf(out, cap, "%d", m->dim);
    if (strcmp(key, ".vocab") == 0) return (size_t) snprintf(out, cap, "%d", m->vocab);
    if (strcmp(key, ".ctx") == 0) return (size_t) snprintf(out, cap, "%d", m->ctx_train);
    if (strcmp(key, ".parameters") == 0) return (size_t) snprintf(out, cap, "%llu", (unsigned long long) m->n_weights);
    if (strcmp(key, ".bytes") == 0) return (size_t) snprintf(out, cap, "%llu", (unsigned long long) m->weight_bytes);
    if (strcmp(key, ".canvas") == 0) return (size_t) snprintf(out, cap, "%d", m->diffusion.canvas);
    if (strcmp(key, ".experts") == 0) return (size_t) snprintf(out, cap, "%d", m->experts);
    if (strcmp(key, ".experts.used") == 0) return (size_t) snprintf(out, cap, "%d", m->router.used);
    if (strcmp(key, ".experts.bytes") == 0)
        return (size_t) snprintf(out, cap, "%llu", (unsigned long long) m->expert_bytes);
    if (strcmp(key, ".pass.parameters") == 0)
        return (size_t) snprintf(out, cap, "%llu", (unsigned long long) engine_pass_work(m).parameters);
    if (strcmp(key, ".pass.bytes") == 0)
        return (size_t) snprintf(out, cap, "%llu", (unsigned long long) engine_pass_work(m).bytes);
    if (strcmp(key, ".kv.bytes") == 0)
        return (size_t) snprintf(out, cap, "%llu", (unsigned long long) engine_kv_bytes(m, T_COUNT));
    if (strcmp(key, ".kv.q8") == 0)
        return (size_t) snprintf(out, cap, "%llu", (unsigned long long) engine_kv_bytes(m, T_Q8_0));
    if (strcmp(key, ".block") == 0 && m->target) return (size_t) snprintf(out, cap, "%d", m->block);
    if (strcmp(key, ".mask") == 0 && m->target) return (size_t) snprintf(out, cap, "%d", m->mask_id);
    if (strcmp(key, ".fc") == 0 && m->target) return (size_t) snprintf(out, cap, "%d x %d", m->dim, m->tap_width);
    if (strcmp(key, ".taps") == 0) {
        size_t n = 0;
        if (cap) out[0] = 0;
        for (int32_t i = 0; i < m->n_taps; i++)
            n += (size_t) snprintf(n < cap ? out + n : NULL, n < cap ? cap - n : 0, "%s%d", i ? "," : "", m->tap[i]);
        return n;
    }
    return 0;
}

static size_t token_text(const Tokenizer *t, const char *key, char *out, size_t cap)
{
    int32_t id = strncmp(key, "bos", 3) == 0 ? tokenizer_bos(t) : strncmp(key, "eos", 3) == 0 ? tokenizer_eos(t)
               : strncmp(key, "pad", 3) == 0 ? tokenizer_pad(t) : strncmp(key, "unk", 3) == 0 ? tokenizer_unk(t) : -1;
    static const char *const FIM[FIM_MARKS] = { "fim_pre", "fim_suf", "fim_mid", "fim_rep", "fim_sep" };
    for (FimMark mark = 0; mark < FIM_MARKS; mark++)
        if (strncmp(key, FIM[mark], 7) == 0) id = tokenizer_fim(t, mark);
    size_t n;
    const char *s = tokenizer_bytes(t, id, true, &n);
    return n ? (size_t) snprintf(out, cap, "%.*s", (int) n, s) : 0;
}

/* With a point, whatever the program's locale. */
static size_t print_number(float value, char *out, size_t cap)
{
    const locale_t c = newlocale(LC_NUMERIC_MASK, "C", (locale_t) 0), before = uselocale(c);
    const size_t n = (size_t) snprintf(out, cap, "%g", (double) value);
    uselocale(before);
    if (c) freelocale(c);
    return n;
}

/* The last stage's; where several devices run layers, a list of them: "cuda:0+1". */
static size_t backend_names(const Stages *on, char *out, size_t cap)
{
    size_t n = 0;
    if (cap) out[0] = 0;
    for (int32_t k = 0; k < on->n; k++) {
        const Backend *be = on->at[k].be;
        const char *colon = n ? strchr(be->name, ':') : NULL;
        if (k < on->n - 1 && !be->device) continue;
        n += (size_t) snprintf(n < cap ? out + n : NULL, n < cap ? cap - n : 0, "%s%s", n ? "+" : "",
                               colon ? colon + 1 : be->name);
    }
    return n;
}

/* The CPU's, if devices run the others. */
static int32_t layers_before_device(const Stages *on)
{
    return on->n > 1 && !on->at[0].be->device ? on->at[0].end : 0;
}

size_t rt_property(const rt_engine *g, const char *key, char *out, size_t cap)
{
    const Tokenizer *t = g->tokenizer;
    const Backend *last = stages_last(&g->on);
    if (strcmp(key, "model.tokenizer") == 0)
        return t ? (size_t) snprintf(out, cap, "%016llx", (unsigned long long) tokenizer_hash(t)) : 0;
    if (strcmp(key, "draft.tokenizer") == 0)
        return g->draft_has_tokenizer ? (size_t) snprintf(out, cap, "%016llx", (unsigned long long) g->draft_hash) : 0;
    if (strcmp(key, "chat_template") == 0) {
        size_t n = 0;
        const char *s = t ? tokenizer_chat_template(t, &n) : NULL;
        return s ? (size_t) snprintf(out, cap, "%.*s", (int) n, s) : 0;
    }
    const size_t len = strlen(key);
    if ((len == 9 || len == 13) && strcmp(key + len - 6, "_token") == 0) return t ? token_text(t, key, out, cap) : 0;
    float value;
    if (strncmp(key, "sampling.", 9) == 0)
        return engine_recommended(&value, g, key + 9) ? print_number(value, out, cap) : 0;
    if (strcmp(key, "identity") == 0) return (size_t) snprintf(out, cap, "%s", g->identity);
    if (strcmp(key, "kv") == 0)
        return (size_t) snprintf(out, cap, "%s/%s", type_info(g->model->k_type)->name,
                                 type_info(g->model->v_type)->name);
    if (strcmp(key, "backend.level") == 0)
        return last->level ? (size_t) snprintf(out, cap, "%s", last->level) : 0;
    if (strcmp(key, "backend") == 0) return backend_names(&g->on, out, cap);
    if (strcmp(key, "backend.chunk") == 0) return (size_t) snprintf(out, cap, "%d", engine_chunk(g));
    if (strcmp(key, "backend.layers") == 0)
        return (size_t) snprintf(out, cap, "%d", g->model->n_layers - layers_before_device(&g->on));
    if (strncmp(key, "model", 5) == 0) return property_of(g->model, key + 5, out, cap);
    if (strncmp(key, "draft", 5) == 0 && g->draft) return property_of(g->draft, key + 5, out, cap);
    return 0;
}

/* ---- text ---- */

bool rt_has_tokenizer(const rt_engine *g) { return g->tokenizer != NULL; }

size_t rt_tokenize(const rt_engine *g, const char *s, size_t n, bool special, int32_t *out, size_t cap)
{
    if (!g->tokenizer) return 0;
    return tokenizer_encode(g->tokenizer, out, cap, s, n,
                            (TokenizeOptions) { .add_special = special, .parse_special = special }, NULL);
}

_Static_assert(sizeof(rt_span) == sizeof(TextSpan) && offsetof(rt_span, n) == offsetof(TextSpan, n), "spans");

size_t rt_tokenize_prompt(const rt_engine *g, const char *s, size_t n, const rt_span *client, size_t n_client,
                          int32_t *out, size_t cap)
{
    TokenizeOptions o = { .add_special = true, .one_bos = true, .parse_special = true,
                          .client = (const TextSpan *) client, .n_client = n_client };
    return g->tokenizer ? tokenizer_encode(g->tokenizer, out, cap, s, n, o, NULL) : 0;
}

size_t rt_detokenize(const rt_engine *g, const int32_t *t, size_t n, char *out, size_t cap)
{
    return g->tokenizer ? tokenizer_decode(g->tokenizer, out, cap, t, n, false) : 0;
}

const char *rt_token_bytes(const rt_engine *g, int32_t id, size_t *n)
{
    *n = 0;
    return g->tokenizer ? tokenizer_bytes(g->tokenizer, id, false, n) : "";
}

const char *rt_token_text(const rt_engine *g, int32_t id, size_t *n)
{
    *n = 0;
    return g->tokenizer ? tokenizer_bytes(g->tokenizer, id, true, n) : "";
}

bool    rt_token_ends(const rt_engine *g, int32_t id) { return g->tokenizer && tokenizer_is_end(g->tokenizer, id); }
int32_t rt_token_find(const rt_engine *g, const char *s, size_t n)
{
    return g->tokenizer ? tokenizer_find(g->tokenizer, s, n) : -1;
}
int32_t rt_token_bos(const rt_engine *g) { return g->tokenizer ? tokenizer_bos(g->tokenizer) : -1; }
bool    rt_adds_bos(const rt_engine *g) { return g->tokenizer && tokenizer_add_bos(g->tokenizer); }

/* ---- sessions ---- */

rt_status rt_session_new(rt_session **out, rt_engine *g, const rt_session_options *o, rt_error *e)
{
    Error err = { 0 };
    rt_session_options known;
    *out = NULL;
    Status code = sized_read(&known, &sized_session_options, o, &err);
    if (code == ST_OK) code = engine_session(out, g, &known, &err);
    return engine_report(e, code, &err);
}

void rt_session_free(rt_session *s)
{
    if (!s) return;
    form_drop(s);
    pthread_mutex_lock(&s->g->lock);
    session_close(&s->s);
    pthread_mutex_unlock(&s->g->lock);
    free(s);
}

const char *rt_session_error(const rt_session *s) { return s->error; }
int32_t rt_session_ctx(const rt_session *s) { return s->s.line.ctx; }

rt_status session_failed(rt_session *s, Status code, const char *text)
{
    snprintf(s->error, sizeof s->error, "%s", text);
    return (rt_status) code;
}

rt_status refuse_denoising(rt_session *s, const char *what)
{
    char line[160];
    snprintf(line, sizeof line, "%s: a model that denoises blocks of %d tokens has none", what,
             s->s.line.m->diffusion.canvas);
    return session_failed(s, ST_UNSUPPORTED, line);
}

rt_status rt_prompt(rt_session *s, const int32_t *t, size_t n)
{
    Error err = { 0 };
    if (n > INT32_MAX) return session_failed(s, ST_FULL, "prompt: more tokens than a context can hold");
    Status code = session_prompt(&s->s, t, (int32_t) n, &err);
    if (code == ST_OK) form_restart(s);
    return session_failed(s, code, code == ST_OK ? "" : err.text);
}

/* The first field that asks for something which denoising does not have; NULL: none. */
static const char *not_for_denoising(const Sampling *d, const rt_sampling *p)
{
    const struct { bool asked; const char *name; } field[] = {
        { d->top_p < 1, "top_p" }, { d->min_p > 0, "min_p" }, { d->rep != 1, "repetition" },
        { d->freq != 0, "frequency" }, { d->presence != 0, "presence" }, { d->top_k > 0, "top_k" },
        { p->n_bias > 0, "bias" } };
    for (size_t i = 0; i < sizeof field / sizeof *field; i++)
        if (field[i].asked) return field[i].name;
    return NULL;
}

/* wrong: the name that draw_check has for a field. */
static void say_range(char *line, size_t size, const Sampling *d, const char *wrong)
{
    const struct { const char *wrong, *name; float value; double least, most; } field[] = {
        { "temperature", "temperature", d->temperature, 0, TEMPERATURE_MAX },
        { "top_p", "top_p", d->top_p, TOP_P_MIN, 1 }, { "min_p", "min_p", d->min_p, 0, MIN_P_MAX },
        { "rep", "repetition", d->rep, REPETITION_MIN, REPETITION_MAX },
        { "freq", "frequency", d->freq, -PENALTY_MAX, PENALTY_MAX },
        { "presence", "presence", d->presence, -PENALTY_MAX, PENALTY_MAX } };
    for (size_t i = 0; i < sizeof field / sizeof *field; i++)
        if (strcmp(field[i].wrong, wrong) == 0)
            snprintf(line, size, "sampling: %s is %g, expected %g to %g", field[i].name, (double) field[i].value,
                     field[i].least, field[i].most);
    if (strcmp(wrong, "top_k") == 0)
        snprintf(line, size, "sampling: top_k is %d, expected 1 or more (0: off)", d->top_k);
    if (strcmp(wrong, "rep_window") == 0)
        snprintf(line, size, "sampling: rep_window is %d, expected 1 to %d (0: %d)", d->rep_window, HISTORY, HISTORY);
}

/* Returns false, and says why in line, if they are not to be added to logits. */
static bool check_biases(char *line, size_t size, const rt_sampling *p, int32_t vocab)
{
    if (p->n_bias < 0 || p->n_bias > BIAS_MAX) {
        snprintf(line, size, "sampling: n_bias is %d, expected 0 to %d", p->n_bias, BIAS_MAX);
        return false;
    }
    for (int32_t i = 0; i < p->n_bias; i++) {
        const rt_bias *b = &p->bias[i];
        const bool token = b->id >= 0 && b->id < vocab;
        if (token && !isnan(b->add)) continue;
        if (token) snprintf(line, size, "sampling: bias[%d] adds nan to token %d, expected a number", i, b->id);
        else snprintf(line, size, "sampling: bias[%d] is of token %d, expected 0 to %d", i, b->id, vocab - 1);
        return false;
    }
    return true;
}

static rt_status set_sampling(rt_session *s, const rt_sampling *p)
{
    Sampling d = { .temperature = p->temperature, .top_p = p->top_p == 0 ? 1 : p->top_p, .min_p = p->min_p,
                   .rep = p->repetition == 0 ? 1 : p->repetition, .freq = p->frequency, .presence = p->presence,
                   .top_k = p->top_k, .rep_window = p->rep_window ? p->rep_window : HISTORY, .seed = p->seed };
    const char *wrong = draw_check(&d);
    char line[160];
    if (wrong) {
        say_range(line, sizeof line, &d, wrong);
        return session_failed(s, ST_ARG, line);
    }
    if (p->max_tokens < 0) {
        snprintf(line, sizeof line, "sampling: max_tokens is %d, expected 1 or more (0: until the context is full)",
                 p->max_tokens);
        return session_failed(s, ST_ARG, line);
    }
    if (!check_biases(line, sizeof line, p, s->s.line.m->vocab)) return session_failed(s, ST_ARG, line);
    wrong = s->s.canvas ? not_for_denoising(&d, p) : NULL;
    if (wrong) {
        char field[48];
        snprintf(field, sizeof field, "sampling: %s", wrong);
        return refuse_denoising(s, field);
    }
    for (int32_t i = 0; i < p->n_bias; i++) s->s.line.bias[i] = (DrawBias) { p->bias[i].id, p->bias[i].add };
    s->s.line.n_bias = p->n_bias;
    s->s.line.sampling = d;
    s->s.line.max_tokens = p->max_tokens ? p->max_tokens : s->s.line.ctx;
    session_goes_on(s);
    return session_failed(s, ST_OK, "");
}

rt_status rt_sampling_set(rt_session *s, const rt_sampling *p)
{
    Error err = { 0 };
    rt_sampling known;
    Status code = sized_read(&known, &sized_sampling, p, &err);
    if (!p && s->s.canvas) known.temperature = 1;
    return code == ST_OK ? set_sampling(s, &known) : session_failed(s, code, err.text);
}

/* A value of the caller, or, if that is 0, of the model's file. */
static float or_file(float given, float file) { return given != 0 ? given : file; }

/* 4 is what models of this kind have, if nothing says so. */
static int32_t mask_of(const Tokenizer *t)
{
    int32_t mask = t ? tokenizer_mask(t) : -1;
    if (t && mask <= 0) mask = tokenizer_find(t, "<mask>", 6);
    return mask > 0 ? mask : 4;
}

static rt_status set_diffusion(rt_session *s, const rt_diffusion *p)
{
    const Diffusion *file = &s->s.line.m->diffusion;
    const struct { float value, most; const char *name; } field[] = {
        { p->t_max, TEMPERATURE_MAX, "t_max" }, { p->t_min, TEMPERATURE_MAX, "t_min" },
        { p->entropy_bound, TEMPERATURE_MAX, "entropy_bound" },
        { p->confidence == -1 ? 0 : p->confidence, CONFIDENCE_MAX, "confidence" }, { p->trim, 1, "trim" } };
    char line[160];
    const bool steps = p->steps >= 0 && p->steps <= STEPS_MAX, stable = p->stability >= 0 && p->stability <= STEPS_MAX;
    if (!steps || !stable) {
        snprintf(line, sizeof line, "diffusion: %s is %d, expected 1 to %d (0: as the file says)",
                 steps ? "stability" : "steps", steps ? p->stability : p->steps, STEPS_MAX);
        return session_failed(s, ST_ARG, line);
    }
    for (size_t i = 0; i < sizeof field / sizeof *field; i++)
        if (!(field[i].value >= 0 && field[i].value <= field[i].most)) {
            snprintf(line, sizeof line, "diffusion: %s is %g, expected at most %g and at least 0", field[i].name,
                     (double) field[i].value, (double) field[i].most);
            return session_failed(s, ST_ARG, line);
        }
    if (p->trim_from < 0 || p->trim_from > file->canvas) {
        snprintf(line, sizeof line, "diffusion: trim_from is %d, expected 1 to %d (0: 16)", p->trim_from, file->canvas);
        return session_failed(s, ST_ARG, line);
    }
    const Tokenizer *t = s->g->tokenizer;
    const int32_t mask = p->mask ? p->mask : p->lock ? mask_of(t) : 0;
    if (p->lock && p->trim > 0) return session_failed(s, ST_ARG, "diffusion: trim has no meaning with lock");
    if (mask < 0 || mask >= s->s.line.m->vocab || (mask && !p->lock)) {
        snprintf(line, sizeof line, "diffusion: mask is %d, expected a token from 1 to %d, together with lock", mask,
                 s->s.line.m->vocab - 1);
        return session_failed(s, ST_ARG, line);
    }
    Diffusion d = { .canvas = file->canvas, .mask = mask, .end = t ? tokenizer_eos(t) : -1, .trim = p->trim,
                    .trim_from = p->trim_from ? p->trim_from : 16,
                    .steps = p->steps ? p->steps : file->steps,
                    .stability = p->stability ? p->stability : file->stability,
                    .t_min = or_file(p->t_min, file->t_min), .t_max = or_file(p->t_max, file->t_max),
                    .entropy_bound = or_file(p->entropy_bound, file->entropy_bound),
                    .confidence = or_file(p->confidence, file->confidence) };
    if (d.t_min > d.t_max) {
        snprintf(line, sizeof line, "diffusion: t_min is %g, expected at most t_max %g", (double) d.t_min,
                 (double) d.t_max);
        return session_failed(s, ST_ARG, line);
    }
    if (mask != s->s.diffusion.mask) s->s.canvas->step = 0;        /* a block has the rules of its first step */
    s->s.diffusion = d;
    s->s.on_draft = p->draft;
    s->s.on_draft_ud = p->ud;
    return session_failed(s, ST_OK, "");
}

rt_status rt_diffusion_set(rt_session *s, const rt_diffusion *p)
{
    Error err = { 0 };
    rt_diffusion known;
    Status code = sized_read(&known, &sized_diffusion, p, &err);
    if (code == ST_OK && !s->s.canvas) code = fail(&err, ST_UNSUPPORTED, "diffusion: the model does not denoise");
    return code == ST_OK ? set_diffusion(s, &known) : session_failed(s, code, err.text);
}

rt_status rt_allow(rt_session *s, bool (*mask)(void *ud, const int32_t *path, size_t n, uint32_t *bits), void *ud)
{
    if (mask && s->s.canvas) return refuse_denoising(s, "mask");
    form_drop(s);
    session_goes_on(s);
    s->s.line.allow = mask;
    s->s.line.allow_ud = ud;
    return session_failed(s, ST_OK, "");
}

_Static_assert((int) RT_MARKS == (int) MARKS_MAX, "marks");
_Static_assert((int) RT_TOP_MAX == (int) TOP_MAX && sizeof(rt_logprob) == sizeof(Logprob) &&
               offsetof(rt_logprob, top) == offsetof(Logprob, top), "log-probabilities");

rt_status rt_logprobs_set(rt_session *s, int32_t top)
{
    char line[96];
    if (top < -1 || top > TOP_MAX) {
        snprintf(line, sizeof line, "log-probabilities: %d of the likeliest tokens, expected 0 to %d (-1: off)", top,
                 TOP_MAX);
        return session_failed(s, ST_ARG, line);
    }
    if (top >= 0 && s->s.canvas) return refuse_denoising(s, "log-probabilities");
    s->s.line.top = top;
    return session_failed(s, ST_OK, "");
}

const rt_logprob *rt_logprobs(const rt_session *s)
{
    return s->s.line.top < 0 || !s->s.line.has_prob ? NULL : (const rt_logprob *) s->s.line.prob;
}

void rt_logprob_row(rt_logprob *out, const float *logits, int32_t vocab, int32_t token, int32_t top)
{
    logprob_row((Logprob *) out, logits, vocab, token, top < 0 ? 0 : top > TOP_MAX ? TOP_MAX : top);
}

rt_status rt_speculate(rt_session *s, bool on)
{
    s->s.plain = !on;
    return session_failed(s, ST_OK, "");
}

rt_status rt_take(rt_session *s, int32_t n)
{
    int32_t had = s->s.line.n_out;
    Status code = session_take(&s->s, n);
    if (code == ST_OK) form_shorten(s, had - n);
    return session_failed(s, code, code == ST_OK ? "" : "take: the block has fewer tokens, or the next pass has begun");
}

void rt_stats_get(const rt_session *s, rt_stats *out, size_t size)
{
    const SpecStats *t = &s->s.stats;
    rt_stats now = { t->prompt_tokens, t->resumed, t->generated, t->passes, t->drafted, t->accepted, t->prefill_s,
                     t->decode_s, .drafts = t->drafts, .plain = t->plain, .changes = t->changes, .pass_s = t->pass_s,
                     .experts_chosen = t->experts_chosen, .experts_read = t->experts_read,
                     .experts_missed = t->experts_missed, .experts_missed_bytes = t->experts_missed_bytes,
                     .experts_wait_s = t->experts_wait_s, .blocks = t->blocks, .steps = t->steps };
    memcpy(now.drafted_by, t->drafted_by, sizeof t->drafted_by);
    memcpy(now.accepted_by, t->accepted_by, sizeof t->accepted_by);
    sized_write(out, size, &now, sizeof now);
}

/* ---- places and images ---- */

size_t rt_session_text(const rt_session *s, const int32_t **t)
{
    *t = s->s.line.text;
    return (size_t) s->s.line.n_text;
}

int32_t rt_resumable(const rt_session *s, const int32_t *t, size_t n)
{
    return line_resumable(&s->s.line, t, n > INT32_MAX ? INT32_MAX : (int32_t) n);
}

rt_status rt_mark(rt_session *s, const int32_t *at, size_t n)
{
    Error err = { 0 };
    Status code = line_mark(&s->s.line, at, n > INT32_MAX ? INT32_MAX : (int32_t) n, &err);
    return session_failed(s, code, err.text);
}

int32_t rt_save_place(const rt_session *s, int32_t most)
{
    return most < 1 || s->s.line.n_text == 0 ? 0 : state_place(&s->s.line.target, most, true);
}

size_t  rt_save_bytes(const rt_session *s, int32_t at) { return session_image_bytes(&s->s, s->g->identity, at); }

/* Session and step must belong to one engine: their states and scratch have its shapes. */
static Status of_one_engine(rt_step *st, const rt_session *s, const char *what)
{
    st->error = (Error) { 0 };
    return s->g == st->g ? ST_OK : fail(&st->error, ST_ARG, "%s: the session is another engine's", what);
}

rt_status rt_save(rt_step *st, rt_session *s, int32_t at, uint8_t *out, size_t n)
{
    if (of_one_engine(st, s, "save") != ST_OK) return RT_EARG;
    return (rt_status) session_image(&st->spec, &s->s, s->g->identity, at, out, n, &st->error);
}

rt_status rt_load(rt_session *s, const uint8_t *image, size_t n)
{
    Error err = { 0 };
    pthread_mutex_lock(&s->g->lock);
    Status code = session_load(&s->s, s->g->identity, image, n, &err);
    pthread_mutex_unlock(&s->g->lock);
    return session_failed(s, code, err.text);
}

/* ---- steps ---- */

rt_status rt_step_new(rt_step **out, rt_engine *g, const rt_step_options *o, rt_error *e)
{
    Error err = { 0 };
    rt_step_options known;
    *out = NULL;
    Status code = sized_read(&known, &sized_step_options, o, &err);
    if (code == ST_OK) code = engine_step_new(out, g, &known, &err);
    return engine_report(e, code, &err);
}

const char *rt_step_error(const rt_step *st) { return st->error.text; }
void rt_step_cancel(rt_step *st) { atomic_store(&st->cancelled, true); }

static void session_outcome(rt_session *s)
{
    const Line *l = &s->s.line;
    bool good = l->status == ST_OK || l->status == ST_END;
    const char *why = l->status == ST_NOTOKEN ? form_trouble(s) : NULL;
    snprintf(s->error, sizeof s->error, "%.256s%s%.240s", good ? "" : l->error.text, why ? ": " : "", why ? why : "");
}

rt_status rt_step_run(rt_step *st, rt_session *const *s, rt_block *out, size_t n)
{
    Session *inner[ROWS_DECODE] = { NULL };
    st->error = (Error) { 0 };
    if (n < 1 || n > ROWS_DECODE)
        return (rt_status) fail(&st->error, ST_ARG, "step: %zu sessions, expected 1 to %d", n, ROWS_DECODE);
    for (size_t i = 0; i < n; i++) {
        if (s[i]->g != st->g) return (rt_status) fail(&st->error, ST_ARG, "step: session %zu is another engine's", i);
        if (s[i]->s.line.n_text <= (s[i]->s.canvas ? 0 : s[i]->s.line.target.P))
            return (rt_status) fail(&st->error, ST_ARG, "step: session %zu has no prompt", i);
        for (size_t j = 0; j < i; j++)
            if (inner[j] == &s[i]->s)
                return (rt_status) fail(&st->error, ST_ARG, "step: session %zu is also session %zu", i, j);
        inner[i] = &s[i]->s;
        if (rt_constraint_done(s[i]) && inner[i]->line.status == ST_OK) inner[i]->line.status = ST_END;
    }
    const bool denoises = st->g->model->diffusion.canvas > 0;
    Status code = (denoises ? diffuse_step : spec_step)(&st->spec, inner, (int32_t) n, &st->error);
    if (code != ST_OK) return (rt_status) code;
    for (size_t i = 0; i < n; i++) {
        const Session *x = inner[i];
        out[i] = (rt_block) { .token = x->line.out, .n = x->line.n_out, .status = (rt_status) x->line.status };
        session_outcome(s[i]);
        form_follow(s[i], &out[i]);
    }
    return RT_OK;
}

rt_status rt_next(rt_step *st, rt_session *s, rt_block *out)
{
    for (;;) {
        rt_status code = rt_step_run(st, &s, out, 1);
        if (code != RT_OK) return code;
        if (out->n > 0 || out->status != RT_OK) return out->status;
    }
}

_Static_assert((int) RT_COSTS == (int) COST_TEXT, "costs");

size_t rt_step_costs(const rt_step *st, char *out, size_t cap) { return cost_write(&st->spec.cost, out, cap); }

rt_status rt_step_costs_set(rt_step *st, const char *line)
{
    st->error = (Error) { 0 };
    return (rt_status) cost_read(&st->spec.cost, line, &st->error);
}

rt_status rt_simulate(rt_step *st, const rt_profile *profile, uint64_t seed)
{
    st->error = (Error) { 0 };
    if (!profile) {
        st->spec.simulate = NULL;
        return RT_OK;
    }
    Profile p = { .n_depth = profile->n_depth, .n_rank = profile->n_rank };
    if (p.n_depth < 0 || p.n_depth > PROFILE_DEPTH || p.n_rank < 0 || p.n_rank > PROFILE_RANK)
        return (rt_status) fail(&st->error, ST_ARG, "simulate: %d depths and %d ranks, expected at most %d and %d",
                                p.n_depth, p.n_rank, PROFILE_DEPTH, PROFILE_RANK);
    memcpy(p.edge, profile->edge, sizeof p.edge);
    const char *wrong = simulate_check(&p);
    if (wrong) return (rt_status) fail(&st->error, ST_ARG, "simulate: bad %s in the profile", wrong);
    st->profile = p;
    st->spec.simulate = &st->profile;
    st->spec.simulate_seed = seed;
    st->spec.simulate_step = 0;
    return RT_OK;
}

void rt_step_profile(const rt_step *st, rt_profile *out)
{
    Profile p;
    simulate_profile(&p, &st->count);
    *out = (rt_profile) { .n_depth = p.n_depth, .n_rank = p.n_rank };
    memcpy(out->edge, p.edge, sizeof out->edge);
}

/* ---- looking inside ---- */

_Static_assert((int) RT_ROWS_TAPS == (int) WANT_TAPS && (int) RT_ROWS_LOGITS == (int) WANT_LOGITS, "rows");

static Status may_inspect(rt_step *st, const rt_session *s, size_t n_prefix, const char *what)
{
    TRY(of_one_engine(st, s, what));
    return n_prefix <= INT32_MAX ? ST_OK : fail(&st->error, ST_FULL, "prefix: more tokens than a context can hold");
}

rt_status rt_rows(rt_step *st, rt_session *s, const int32_t *prefix, size_t n_prefix, const int32_t *token,
                  const int32_t *parent, int32_t n, int want, rt_row row, void *ud)
{
    const Status can = may_inspect(st, s, n_prefix, "rows");
    if (can != ST_OK) return (rt_status) can;
    return (rt_status) inspect_rows(&st->spec, &s->s, prefix, (int32_t) n_prefix, token, parent, n, want, row,
                                    ud, &st->error);
}

rt_status rt_canvas_rows(rt_step *st, rt_session *s, const int32_t *prefix, size_t n_prefix, const int32_t *token,
                         int32_t n, const int32_t *before, float t, rt_row row, void *ud)
{
    const Status can = may_inspect(st, s, n_prefix, "canvas");
    if (can != ST_OK) return (rt_status) can;
    return (rt_status) inspect_canvas(&st->spec, &s->s, prefix, (int32_t) n_prefix, token, n, before, t, row, ud,
                                      &st->error);
}

rt_status rt_draft_rows(rt_step *st, rt_session *s, const int32_t *prefix, size_t n_prefix, int32_t anchor, rt_row row,
                        void *ud)
{
    const Status can = may_inspect(st, s, n_prefix, "draft rows");
    if (can != ST_OK) return (rt_status) can;
    if (!st->spec.drafter) return (rt_status) fail(&st->error, ST_ARG, "draft rows: the engine has no drafter");
    return (rt_status) inspect_draft_rows(&st->spec, &s->s, prefix, (int32_t) n_prefix, anchor, row, ud, &st->error);
}

rt_status rt_time_pass(rt_step *st, rt_session *s, int32_t after, int32_t n, int32_t repeats, double *ms)
{
    if (of_one_engine(st, s, "passes") != ST_OK) return RT_EARG;
    if (n < 1 || n > ROWS_DECODE)
        return (rt_status) fail(&st->error, ST_ARG, "passes: %d rows, expected 1 to %d", n, ROWS_DECODE);
    if (repeats < 1) return (rt_status) fail(&st->error, ST_ARG, "passes: %d repeats, expected 1 or more", repeats);
    return (rt_status) inspect_time(&st->spec, &s->s, after, n, repeats, ms, &st->error);
}

struct rt_roofline { Backend *be, *fork; };

rt_status rt_roofline_new(rt_roofline **out, const char *backend, int32_t threads, rt_error *e)
{
    Error err = { 0 };
    rt_roofline *r = calloc(1, sizeof *r);
    Peaks none = { 0 };
    char first[64];
    if (!backend) backend = "auto";
    snprintf(first, sizeof first, "%.*s", (int) strcspn(backend, "+"), backend);
    *out = NULL;
    Status code = r ? backend_open(&r->be, first, &(BackendOptions) { .threads = threads }, &err)
                    : fail(&err, ST_MEMORY, "roofline: out of memory");
    if (code == ST_OK) code = r->be->fork(r->be, 0, &r->fork, &err);
    if (code == ST_OK) {
        r->fork->measure(r->fork, 1, 0, &none);       /* allocates its memory, or reports that there is none */
        code = r->fork->sync(r->fork, &err);
    }
    if (code == ST_OK) *out = r;
    else rt_roofline_free(r);
    return engine_report(e, code, &err);
}

void rt_roofline_free(rt_roofline *r)
{
    if (!r) return;
    if (r->fork) r->fork->close(r->fork);
    if (r->be) r->be->close(r->be);
    free(r);
}

void rt_roofline_round(rt_roofline *r, int32_t n, uint64_t bytes, rt_peaks *fastest)
{
    Peaks p = { fastest->bytes_per_s, fastest->int8_ops_per_s, fastest->f32_ops_per_s };
    r->fork->measure(r->fork, n, bytes, &p);
    *fastest = (rt_peaks) { p.bytes_per_s, p.int8_ops_per_s, p.f32_ops_per_s };
}

void rt_card_driver(const char *backend, const char *library) { backend_driver(backend, library); }

rt_status rt_card_at(rt_card *out, const char *backend, int32_t i, bool open, rt_error *e)
{
    Error err = { 0 };
    BackendCard card = { 0 };
    const Status code = backend_card(&card, backend, i, open, &err);
    *out = (rt_card) { .memory = card.memory, .free = card.free };
    memcpy(out->backend, card.backend, sizeof out->backend);
    memcpy(out->name, card.name, sizeof out->name);
    memcpy(out->level, card.level, sizeof out->level);
    memcpy(out->driver, card.driver, sizeof out->driver);
    memcpy(out->why, card.why, sizeof out->why);
    return engine_report(e, code, &err);
}

rt_status rt_card_check(const rt_options *o, rt_error *e)
{
    Error err = { 0 };
    rt_options known;
    Status code = sized_read(&known, &sized_options, o, &err);
    if (code == ST_OK) code = engine_card_check(&known, &err);
    return engine_report(e, code, &err);
}
