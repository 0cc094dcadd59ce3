/* chat.c - conversations: the chat and its rendered prompts of ratoon_chat.h. */
#include "engine/chat.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/path.h"
#include "engine/sized.h"

static int32_t token_of(void *ud, const char *text) { return tokenizer_find(ud, text, strlen(text)); }
static bool has_token(void *ud, const char *text) { return token_of(ud, text) >= 0; }

/* ---- the template ---- */

/* A token's text, malloc'd; NULL: there is no such token, or no memory, which opening the template will report. */
static char *text_of(const Tokenizer *t, int32_t id)
{
    size_t n;
    const char *s = tokenizer_bytes(t, id, true, &n);
    return n > 0 ? strndup(s, n) : NULL;
}

/* A caller's own template must parse; the model's is replaced if it does not. */
static Status check_source(const char *source, TemplateError *err)
{
    Template *t = NULL;
    Status st = template_open(&t, source, strlen(source), "template", err);
    template_close(t);
    return st;
}

static Status open_chat(rt_chat *c, const char *source, TemplateError *err)
{
    Tokenizer *t = c->g->tokenizer;
    const Model *m = c->g->model;
    if (source) TRY(check_source(source, err));
    size_t n = source ? strlen(source) : 0;
    const char *own = source ? source : tokenizer_chat_template(t, &n);
    char *text[] = { text_of(t, tokenizer_bos(t)), text_of(t, tokenizer_eos(t)), text_of(t, tokenizer_pad(t)),
                     text_of(t, tokenizer_unk(t)) };
    ChatOptions o = { .source = own, .n = n, .name = source ? "template" : base_name(m->file), .arch = m->arch,
                      .bos = text[0], .eos = text[1], .pad = text[2], .unk = text[3], .has_token = has_token, .ud = t };
    Status st = chat_prompt_open(&c->prompt, &o, err);
    for (size_t i = 0; i < sizeof text / sizeof *text; i++) free(text[i]);
    c->style = reply_style(own, n, m->arch, token_of, t);
    return st;
}

rt_status rt_chat_new(rt_chat **out, const rt_engine *g, const char *source, rt_error *e)
{
    TemplateError err = { 0 };
    rt_chat *c = *out = calloc(1, sizeof *c);
    Status code;
    if (!c) return engine_report(e, fail(&err.error, ST_MEMORY, "chat: out of memory"), &err.error);
    c->g = g;
    if (g->tokenizer) code = open_chat(c, source, &err);
    else code = fail(&err.error, ST_UNSUPPORTED, "chat: the model file has no tokenizer");
    if (code != ST_OK) {
        rt_chat_free(c);
        *out = NULL;
    }
    return engine_report(e, code, &err.error);
}

void rt_chat_free(rt_chat *c)
{
    if (!c) return;
    chat_prompt_close(c->prompt);
    free(c);
}

const char *rt_chat_warning(const rt_chat *c) { return chat_prompt_warning(c->prompt); }

bool rt_chat_can(const rt_chat *c, rt_chat_feature what)
{
    const ChatCaps *a = chat_prompt_caps(c->prompt);
    switch (what) {
    case RT_CHAT_SYSTEM:       return a->system;
    case RT_CHAT_TOOLS:        return a->tools;
    case RT_CHAT_TOOL_RESULTS: return a->tool_results;
    case RT_CHAT_THINKING:     return a->thinking;
    }
    return false;
}

/* ---- a request ---- */

typedef struct { json_t *messages, *tools, *kwargs; } Parsed;

static void parsed_free(Parsed *p)
{
    json_decref(p->messages);
    json_decref(p->tools);
    json_decref(p->kwargs);
}

static Status read_field(json_t **out, const char *name, const char *text, json_type type, Error *err)
{
    TRY(json_read(out, text, strlen(text), name, err));
    if (json_typeof(*out) == type) return ST_OK;
    return fail(err, ST_ARG, "%s: expected %s", name, type == JSON_ARRAY ? "a list" : "an object");
}

/* Variables that hold the conversation itself are not the caller's to set. */
static Status check_variables(const json_t *kwargs, Error *err)
{
    static const char *const ours[] = { "messages", "tools", "documents", "add_generation_prompt", "bos_token",
                                        "eos_token", "pad_token", "unk_token" };
    for (size_t i = 0; i < sizeof ours / sizeof *ours; i++)
        if (json_object_get(kwargs, ours[i])) return fail(err, ST_ARG, "kwargs.%s cannot be set", ours[i]);
    return ST_OK;
}

static Status parse(Parsed *p, const rt_chat_request *q, Error *err)
{
    if (!q->messages) return fail(err, ST_ARG, "messages: NULL, expected a list of messages as JSON");
    if (q->thinking < -1 || q->thinking > 1)
        return fail(err, ST_ARG, "thinking: %d, expected -1, 0 or 1", q->thinking);
    TRY(read_field(&p->messages, "messages", q->messages, JSON_ARRAY, err));
    if (q->tools) TRY(read_field(&p->tools, "tools", q->tools, JSON_ARRAY, err));
    TRY(read_field(&p->kwargs, "kwargs", q->kwargs ? q->kwargs : "{}", JSON_OBJECT, err));
    TRY(check_variables(p->kwargs, err));
    if (q->thinking && json_object_set_new(p->kwargs, "enable_thinking", json_boolean(q->thinking > 0)) != 0)
        return fail(err, ST_MEMORY, "kwargs: out of memory");
    return ST_OK;
}

/* ---- the prompt ---- */

_Static_assert(sizeof(rt_span) == sizeof(TextSpan) && offsetof(rt_span, n) == offsetof(TextSpan, n), "spans");

Status prompt_tokens(int32_t **out, size_t *n, const rt_engine *g, const char *text, size_t n_text,
                     const TextSpan *client, size_t n_client, Error *err)
{
    TokenizeOptions o = { .add_special = true, .one_bos = true, .parse_special = true, .client = client,
                          .n_client = n_client };
    Status st = ST_OK;
    size_t cap = n_text / 2 + 64;
    *out = NULL;
    for (*n = cap + 1; st == ST_OK && *n > cap;) {
        if (*out) cap = *n;
        int32_t *more = realloc(*out, cap * sizeof *more);
        if (more) *n = tokenizer_encode(g->tokenizer, *out = more, cap, text, n_text, o, &st);
        else st = ST_MEMORY;
    }
    if (st == ST_OK) return ST_OK;
    free(*out);
    *out = NULL;
    return fail(err, st, "the prompt of %zu bytes could not be tokenized: %s", n_text,
                st == ST_MEMORY ? "out of memory" : "it is too long");
}

static Status make_text(ChatText *t, const rt_chat_request *q, TemplateError *err)
{
    Parsed p = { 0 };
    time_t clock = q->now ? (time_t) q->now : time(NULL);
    struct tm now = { 0 };
    gmtime_r(&clock, &now);
    Status st = parse(&p, q, &err->error);
    ChatRequest r = { .messages = p.messages, .tools = p.tools, .kwargs = p.kwargs, .generation = !q->complete,
                      .now = &now };
    if (st == ST_OK) st = chat_prompt_render(&t->rendered, t->chat->prompt, &r, err);
    if (st == ST_OK) t->tools = json_incref(p.tools);
    parsed_free(&p);
    if (st != ST_OK) return st;
    return prompt_tokens(&t->token, &t->seen.n_token, t->chat->g, t->rendered.text, t->rendered.n, t->rendered.client,
                         t->rendered.n_client, &err->error);
}

/* The tokens before the answer, if some and not all of them. */
static int32_t marked(const ChatText *t)
{
    size_t at = t->rendered.asked;
    int32_t n = at < t->rendered.n ? rt_tokens_before(t->chat->g, t->token, t->seen.n_token, t->rendered.text,
                                                      t->rendered.n, at) : 0;
    return n > 0 && (size_t) n < t->seen.n_token ? n : 0;
}

static void show(ChatText *t)
{
    t->seen.text = t->rendered.text;
    t->seen.n_text = t->rendered.n;
    t->seen.token = t->token;
    t->seen.client = (const rt_span *) t->rendered.client;
    t->seen.n_client = t->rendered.n_client;
    t->seen.marked = marked(t);
}

rt_status rt_chat_render(rt_chat_text **out, const rt_chat *c, const rt_chat_request *q, rt_error *e)
{
    TemplateError err = { 0 };
    rt_chat_request known;
    ChatText *t = calloc(1, sizeof *t);
    *out = NULL;
    if (!t) return engine_report(e, fail(&err.error, ST_MEMORY, "chat: out of memory"), &err.error);
    t->chat = c;
    Status code = sized_read(&known, &sized_chat_request, q, &err.error);
    if (code == ST_OK) code = make_text(t, &known, &err);
    if (code == ST_OK) show(t);
    if (code == ST_OK) *out = &t->seen;
    else rt_chat_text_free(&t->seen);
    return engine_report(e, code == ST_FORMAT ? ST_ARG : code, &err.error);
}

void rt_chat_text_free(rt_chat_text *seen)
{
    ChatText *t = (ChatText *) seen;
    if (!t) return;
    template_text_free(&t->rendered);
    json_decref(t->tools);
    free(t->token);
    free(t);
}

int32_t rt_tokens_before(const rt_engine *g, const int32_t *t, size_t n, const char *text, size_t n_text, size_t at)
{
    size_t i = n, len;
    if (at > n_text || n > INT32_MAX) return -1;
    for (size_t end = n_text; end > at; end -= len) {
        const char *s = i > 0 ? rt_token_text(g, t[i - 1], &len) : NULL;
        if (!s || len > end - at || memcmp(text + end - len, s, len) != 0) return -1;
        i--;
    }
    len = 0;
    if (i < n) rt_token_bytes(g, t[i], &len);
    return len == 0 ? (int32_t) i : -1;
}

/* ---- for the reader of answers ---- */

Status chat_reply(Reply **out, const rt_engine *g, const ChatText *t, const rt_reply_options *o, Error *err)
{
    ReplyOptions r = { .think_max = -1, .stop = o->stop, .n_stop = (size_t) o->n_stop, .stop_in_reasoning = true,
                       .one_call = o->one_call != 0, .bare_off = o->grammar != NULL, .token = token_of,
                       .ud = g->tokenizer };
    if (t) {
        r.style = t->chat->style;
        r.promote = r.style.calls == CALLS_QWEN35;
        r.tools = t->tools;
        r.calls_off = json_array_size(t->tools) == 0;
        r.prompt = t->rendered.text;
        r.n_prompt = t->rendered.n;
    }
    return reply_open(out, &r, err);
}
