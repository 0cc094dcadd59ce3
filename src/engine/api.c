/* api.c - the functions of ratoon.h: handles to objects, codes to codes. */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cpu/roofline.h"
#include "engine/engine.h"

_Static_assert((int) RT_END == (int) ST_END && (int) RT_EARG == (int) ST_ARG && (int) RT_ENOMEM == (int) ST_MEMORY && (int) RT_EIO == (int) ST_IO &&
               (int) RT_EFORMAT == (int) ST_FORMAT && (int) RT_EUNSUPPORTED == (int) ST_UNSUPPORTED && (int) RT_EFULL == (int) ST_FULL &&
               (int) RT_ECANCEL == (int) ST_CANCEL && (int) RT_EBACKEND == (int) ST_BACKEND && (int) RT_ENOTOKEN == (int) ST_NOTOKEN, "status codes");
_Static_assert((int) RT_BLOCK == (int) SOURCE_BLOCK && (int) RT_NGRAM == (int) SOURCE_NGRAM && (int) RT_MTP == (int) SOURCE_MTP && (int) RT_SOURCES == (int) SOURCES, "sources");
_Static_assert(sizeof((rt_error *) 0)->text == ERROR_TEXT, "error text");

static rt_status report(rt_error *e, Status code, const Error *err)
{
    if (e) {
        e->code = (rt_status) code;
        snprintf(e->text, sizeof e->text, "%s", code == ST_OK ? "" : err->text);
    }
    return (rt_status) code;
}

const char *rt_version(void) { return RATOON_VERSION; }

rt_status rt_open(rt_engine **out, const rt_options *o, rt_error *e)
{
    Error err = { 0 };
    Backend *be = NULL;
    *out = NULL;
    Status code = engine_backend(&be, o, &err);
    if (code == ST_OK) code = engine_open(out, be, NULL, o, &err);
    return report(e, code, &err);
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
    /* Of an embedding that is no head a pass reads single rows. */
    bool apart = !m->target && m->embed.data && m->embed.data != m->head.data;
    uint64_t embed = apart ? (uint64_t) m->embed.rows * (uint64_t) m->embed.cols : 0, embed_bytes = apart ? m->be->weight_bytes(m->be, m->embed.type, m->embed.rows, m->embed.cols) : 0;
    if (strcmp(key, ".pass.parameters") == 0) return (size_t) snprintf(out, cap, "%llu", (unsigned long long) (m->n_weights - embed));
    if (strcmp(key, ".pass.bytes") == 0) return (size_t) snprintf(out, cap, "%llu", (unsigned long long) (m->weight_bytes - embed_bytes));
    if (strcmp(key, ".kv.bytes") == 0) return (size_t) snprintf(out, cap, "%llu", (unsigned long long) engine_kv_bytes(m));
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
    size_t n;
    const char *s = tokenizer_bytes(t, id, true, &n);
    return n ? (size_t) snprintf(out, cap, "%.*s", (int) n, s) : 0;
}

size_t rt_property(const rt_engine *g, const char *key, char *out, size_t cap)
{
    const Tokenizer *t = g->tokenizer;
    if (strcmp(key, "model.tokenizer") == 0) return t ? (size_t) snprintf(out, cap, "%016llx", (unsigned long long) tokenizer_hash(t)) : 0;
    if (strcmp(key, "draft.tokenizer") == 0) return g->draft_tokenizer ? (size_t) snprintf(out, cap, "%016llx", (unsigned long long) tokenizer_hash(g->draft_tokenizer)) : 0;
    if (strcmp(key, "chat_template") == 0) {
        size_t n = 0;
        const char *s = t ? tokenizer_chat_template(t, &n) : NULL;
        return s ? (size_t) snprintf(out, cap, "%.*s", (int) n, s) : 0;
    }
    if (strlen(key) == 9 && strcmp(key + 3, "_token") == 0) return t ? token_text(t, key, out, cap) : 0;
    if (strcmp(key, "identity") == 0) return (size_t) snprintf(out, cap, "%s", g->identity);
    if (strcmp(key, "kv") == 0) return (size_t) snprintf(out, cap, "%s/%s", type_info(g->model->k_type)->name, type_info(g->model->v_type)->name);
    if (strcmp(key, "backend") == 0) return (size_t) snprintf(out, cap, "%s", g->be->name);
    if (strncmp(key, "model", 5) == 0) return property_of(g->model, key + 5, out, cap);
    if (strncmp(key, "draft", 5) == 0 && g->draft) return property_of(g->draft, key + 5, out, cap);
    return 0;
}

/* ---- text ---- */

bool rt_has_tokenizer(const rt_engine *g) { return g->tokenizer != NULL; }

size_t rt_tokenize(const rt_engine *g, const char *s, size_t n, bool special, int32_t *out, size_t cap)
{
    if (!g->tokenizer) return 0;
    return tokenizer_encode(g->tokenizer, out, cap, s, n, (TokenizeOptions) { .add_special = special, .parse_special = special }, NULL);
}

_Static_assert(sizeof(rt_span) == sizeof(TextSpan) && offsetof(rt_span, n) == offsetof(TextSpan, n), "spans");

size_t rt_tokenize_prompt(const rt_engine *g, const char *s, size_t n, const rt_span *client, size_t n_client, int32_t *out, size_t cap)
{
    TokenizeOptions o = { .add_special = true, .one_bos = true, .parse_special = true, .client = (const TextSpan *) client, .n_client = n_client };
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
int32_t rt_token_find(const rt_engine *g, const char *s, size_t n) { return g->tokenizer ? tokenizer_find(g->tokenizer, s, n) : -1; }
int32_t rt_token_bos(const rt_engine *g) { return g->tokenizer ? tokenizer_bos(g->tokenizer) : -1; }
bool    rt_adds_bos(const rt_engine *g) { return g->tokenizer && tokenizer_add_bos(g->tokenizer); }

/* ---- sessions ---- */

rt_status rt_session_new(rt_session **out, rt_engine *g, const rt_session_options *o, rt_error *e)
{
    Error err = { 0 };
    return report(e, engine_session(out, g, o, &err), &err);
}

void rt_session_free(rt_session *s)
{
    if (!s) return;
    session_close(&s->s);
    free(s);
}

const char *rt_session_error(const rt_session *s) { return s->error; }
int32_t rt_session_ctx(const rt_session *s) { return s->s.ctx; }

static rt_status session_failed(rt_session *s, Status code, const char *text)
{
    snprintf(s->error, sizeof s->error, "%s", text);
    return (rt_status) code;
}

rt_status rt_prompt(rt_session *s, const int32_t *t, size_t n)
{
    Error err = { 0 };
    if (n > INT32_MAX) return session_failed(s, ST_FULL, "prompt: more tokens than a context can hold");
    Status code = session_prompt(&s->s, t, (int32_t) n, &err);
    return session_failed(s, code, code == ST_OK ? "" : err.text);
}

rt_status rt_sampling_set(rt_session *s, const rt_sampling *p)
{
    Sampling d = { .temperature = p->temperature, .top_p = p->top_p == 0 ? 1 : p->top_p, .min_p = p->min_p, .rep = p->repetition == 0 ? 1 : p->repetition,
                   .freq = p->frequency, .presence = p->presence, .top_k = p->top_k, .rep_window = p->rep_window ? p->rep_window : HISTORY, .seed = p->seed };
    const char *wrong = draw_check(&d);
    char line[160];
    if (wrong) {
        snprintf(line, sizeof line, "sampling: %s is out of range", wrong);
        return session_failed(s, ST_ARG, line);
    }
    if (p->max_tokens < 0) return session_failed(s, ST_ARG, "sampling: max_tokens is negative");
    if (p->n_bias < 0 || p->n_bias > BIAS_MAX) return session_failed(s, ST_ARG, "sampling: more than 300 biases");
    for (int32_t i = 0; i < p->n_bias; i++)
        if (p->bias[i].id < 0 || p->bias[i].id >= s->s.m->vocab) return session_failed(s, ST_ARG, "sampling: a bias names no token");
    for (int32_t i = 0; i < p->n_bias; i++) s->s.bias[i] = (DrawBias) { p->bias[i].id, p->bias[i].add };
    s->s.n_bias = p->n_bias;
    s->s.sampling = d;
    s->s.max_tokens = p->max_tokens ? p->max_tokens : s->s.ctx;
    if (s->s.status == ST_END) s->s.status = ST_OK;
    return RT_OK;
}

rt_status rt_allow(rt_session *s, bool (*mask)(void *ud, const int32_t *path, size_t n, uint32_t *bits), void *ud)
{
    s->s.allow = mask;
    s->s.allow_ud = ud;
    return RT_OK;
}

_Static_assert((int) RT_MARKS == (int) MARKS_MAX, "marks");
_Static_assert((int) RT_TOP_MAX == (int) TOP_MAX && sizeof(rt_logprob) == sizeof(Logprob) && offsetof(rt_logprob, top) == offsetof(Logprob, top), "log-probabilities");

rt_status rt_logprobs_set(rt_session *s, int32_t top)
{
    char line[96];
    if (top < -1 || top > TOP_MAX) {
        snprintf(line, sizeof line, "log-probabilities: %d of the likeliest tokens, expected 0 to %d (-1: off)", top, TOP_MAX);
        return session_failed(s, ST_ARG, line);
    }
    s->s.top = top;
    return RT_OK;
}

const rt_logprob *rt_logprobs(const rt_session *s) { return s->s.top < 0 ? NULL : (const rt_logprob *) s->s.prob; }

void rt_logprob_row(rt_logprob *out, const float *logits, int32_t vocab, int32_t token, int32_t top)
{
    logprob_row((Logprob *) out, logits, vocab, token, top < 0 ? 0 : top > TOP_MAX ? TOP_MAX : top);
}

rt_status rt_speculate(rt_session *s, bool on)
{
    s->s.plain = !on;
    return RT_OK;
}

rt_status rt_take(rt_session *s, int32_t n)
{
    Status code = session_take(&s->s, n);
    return session_failed(s, code, code == ST_OK ? "" : "take: the block has fewer tokens, or the next pass has begun");
}

void rt_stats_get(const rt_session *s, rt_stats *out)
{
    const SpecStats *t = &s->s.stats;
    *out = (rt_stats) { t->prompt_tokens, t->resumed, t->generated, t->passes, t->drafted, t->accepted, t->prefill_s, t->decode_s,
                        .drafts = t->drafts, .plain = t->plain, .changes = t->changes, .pass_s = t->pass_s };
    memcpy(out->drafted_by, t->drafted_by, sizeof out->drafted_by);
    memcpy(out->accepted_by, t->accepted_by, sizeof out->accepted_by);
}

/* ---- places and images ---- */

size_t rt_session_text(const rt_session *s, const int32_t **t)
{
    *t = s->s.text;
    return (size_t) s->s.n_text;
}

int32_t rt_resumable(const rt_session *s, const int32_t *t, size_t n) { return session_resumable(&s->s, t, n > INT32_MAX ? INT32_MAX : (int32_t) n); }

rt_status rt_mark(rt_session *s, const int32_t *at, size_t n)
{
    Error err = { 0 };
    Status code = session_mark(&s->s, at, n > INT32_MAX ? INT32_MAX : (int32_t) n, &err);
    return session_failed(s, code, err.text);
}

int32_t rt_save_place(const rt_session *s, int32_t most) { return most < 1 ? 0 : state_place(&s->s.target, most, true); }
size_t  rt_save_bytes(const rt_session *s, int32_t at) { return session_image_bytes(&s->s, s->g->identity, at); }

rt_status rt_save(rt_step *st, rt_session *s, int32_t at, uint8_t *out, size_t n)
{
    st->error = (Error) { 0 };
    if (s->g != st->g) return (rt_status) fail(&st->error, ST_ARG, "save: the session is another engine's");
    return (rt_status) session_image(&st->spec, &s->s, s->g->identity, at, out, n, &st->error);
}

rt_status rt_load(rt_session *s, const uint8_t *image, size_t n)
{
    Error err = { 0 };
    Status code = session_load(&s->s, s->g->identity, image, n, &err);
    return session_failed(s, code, err.text);
}

/* ---- steps ---- */

rt_status rt_step_new(rt_step **out, rt_engine *g, const rt_step_options *o, rt_error *e)
{
    Error err = { 0 };
    size_t scratch = 0;
    *out = NULL;
    Status code = engine_scratch(&scratch, g, o, &err);
    if (code == ST_OK) code = engine_step(out, g, o, scratch, &err);
    return report(e, code, &err);
}

const char *rt_step_error(const rt_step *st) { return st->error.text; }

rt_status rt_step_run(rt_step *st, rt_session *const *s, rt_block *out, size_t n)
{
    Session *inner[ROWS_DECODE] = { NULL };
    st->error = (Error) { 0 };
    if (n < 1 || n > ROWS_DECODE) return (rt_status) fail(&st->error, ST_ARG, "step: %zu sessions, expected 1 to %d", n, ROWS_DECODE);
    for (size_t i = 0; i < n; i++) {
        if (s[i]->g != st->g) return (rt_status) fail(&st->error, ST_ARG, "step: session %zu is another engine's", i);
        if (s[i]->s.n_text <= s[i]->s.target.P) return (rt_status) fail(&st->error, ST_ARG, "step: session %zu has no prompt", i);
        for (size_t j = 0; j < i; j++)
            if (inner[j] == &s[i]->s) return (rt_status) fail(&st->error, ST_ARG, "step: session %zu is also session %zu", i, j);
        inner[i] = &s[i]->s;
    }
    Status code = spec_step(&st->spec, inner, (int32_t) n, &st->error);
    if (code != ST_OK) return (rt_status) code;
    for (size_t i = 0; i < n; i++) {
        const Session *x = inner[i];
        out[i] = (rt_block) { .token = x->out, .n = x->n_out, .status = (rt_status) x->status };
        if (x->status != ST_OK && x->status != ST_END) session_failed(s[i], x->status, x->error.text);
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

void rt_step_profile(const rt_step *st, rt_profile *out)
{
    Profile p;
    simulate_profile(&p, &st->count);
    *out = (rt_profile) { .n_depth = p.n_depth, .n_rank = p.n_rank };
    memcpy(out->edge, p.edge, sizeof out->edge);
}

/* ---- looking inside ---- */

rt_status rt_rows(rt_step *st, rt_session *s, const int32_t *prefix, size_t n_prefix, const int32_t *token, const int32_t *parent, int32_t n,
                  rt_row row, void *ud)
{
    st->error = (Error) { 0 };
    if (n_prefix > INT32_MAX) return (rt_status) fail(&st->error, ST_FULL, "prefix: more tokens than a context can hold");
    return (rt_status) spec_rows(&st->spec, &s->s, prefix, (int32_t) n_prefix, token, parent, n, row, ud, &st->error);
}

rt_status rt_draft_rows(rt_step *st, rt_session *s, const int32_t *prefix, size_t n_prefix, int32_t anchor, rt_row row, void *ud)
{
    st->error = (Error) { 0 };
    if (!st->spec.drafter) return (rt_status) fail(&st->error, ST_ARG, "draft rows: the engine has no drafter");
    if (n_prefix > INT32_MAX) return (rt_status) fail(&st->error, ST_FULL, "prefix: more tokens than a context can hold");
    return (rt_status) spec_draft_rows(&st->spec, &s->s, prefix, (int32_t) n_prefix, anchor, row, ud, &st->error);
}

rt_status rt_time_pass(rt_step *st, rt_session *s, int32_t after, int32_t n, int32_t repeats, double *ms)
{
    st->error = (Error) { 0 };
    if (n < 1 || n > ROWS_DECODE) return (rt_status) fail(&st->error, ST_ARG, "passes: %d rows, expected 1 to %d", n, ROWS_DECODE);
    return (rt_status) spec_time(&st->spec, &s->s, after, n, repeats, ms, &st->error);
}

struct rt_roofline { Roofline *r; };

rt_status rt_roofline_new(rt_roofline **out, int32_t threads, rt_error *e)
{
    Error err = { 0 };
    rt_roofline *r = calloc(1, sizeof *r);
    *out = NULL;
    Status code = r ? roofline_open(&r->r, threads, level_best(), &err) : fail(&err, ST_MEMORY, "roofline: out of memory");
    if (code == ST_OK) *out = r;
    else free(r);
    return report(e, code, &err);
}

void rt_roofline_free(rt_roofline *r)
{
    if (r) roofline_close(r->r);
    free(r);
}

int32_t rt_roofline_threads(const rt_roofline *r) { return roofline_threads(r->r); }

void rt_roofline_round(rt_roofline *r, int32_t n, rt_peaks *fastest)
{
    Peaks p = { fastest->bytes_per_s, fastest->int8_ops_per_s, fastest->f32_ops_per_s };
    int32_t most = roofline_threads(r->r);
    roofline_round(&p, r->r, n < 1 ? 1 : n > most ? most : n);
    *fastest = (rt_peaks) { p.bytes_per_s, p.int8_ops_per_s, p.f32_ops_per_s };
}
