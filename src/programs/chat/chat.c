#include "programs/chat/chat.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

bool template_complain(const Options *o, const TemplateError *err)
{
    complain(o, "%s", err->error.text);
    if (err->line > 0) fprintf(stderr, "  %s\n  %*s^\n", err->source, (int) err->caret, "");
    return false;
}

struct tm clock_now(const Options *o)
{
    time_t now = o->template_now.given ? (time_t) o->template_now.value : time(NULL);
    struct tm t = { 0 };
    localtime_r(&now, &t);
    return t;
}

/* A text property reported by the engine, malloc'd; NULL: unknown. */
static char *property_text(const rt_engine *g, const char *key)
{
    size_t n = rt_property(g, key, NULL, 0);
    char *s = n ? malloc(n + 1) : NULL;
    if (s) rt_property(g, key, s, n + 1);
    return s;
}

int32_t chat_token(void *engine, const char *text) { return rt_token_find(engine, text, strlen(text)); }

static bool has_token(void *engine, const char *text) { return chat_token(engine, text) >= 0; }

ReplyStyle chat_style(rt_engine *g)
{
    char *source = property_text(g, "chat_template"), *arch = property_text(g, "model.arch");
    ReplyStyle style = reply_style(source, source ? strlen(source) : 0, arch ? arch : "", chat_token, g);
    free(source);
    free(arch);
    return style;
}

Status chat_open(ChatPrompt **out, const Program *p, TemplateError *err)
{
    static const char *const KEYS[] = { "chat_template", "model.arch", "bos_token", "eos_token", "pad_token",
                                        "unk_token" };
    char *s[6];
    for (size_t i = 0; i < 6; i++) s[i] = property_text(p->engine, KEYS[i]);
    ChatOptions co = { .source = s[0], .n = s[0] ? strlen(s[0]) : 0, .name = base_name(p->files.model),
                       .arch = s[1] ? s[1] : "", .bos = s[2], .eos = s[3], .pad = s[4], .unk = s[5],
                       .has_token = has_token, .ud = p->engine, .lax = p->o->template_lax };
    Status st = chat_prompt_open(out, &co, err);
    for (size_t i = 0; i < 6; i++) free(s[i]);
    if (st == ST_OK && *chat_prompt_warning(*out)) note(p->o, "%s", chat_prompt_warning(*out));
    return st;
}

size_t chat_spans(rt_span *out, const TemplateText *t, size_t from, size_t to)
{
    size_t n = 0;
    for (size_t i = 0; i < t->n_client; i++) {
        size_t at = t->client[i].at, end = at + t->client[i].n;
        if (at < from) at = from;
        if (end > to) end = to;
        if (at < end) out[n++] = (rt_span) { at - from, end - at };
    }
    return n;
}

bool chat_append(const rt_engine *g, int32_t **out, int32_t *n, const TemplateText *t, size_t from, size_t to,
                 const char *then)
{
    size_t n_text = to - from, n_then = strlen(then), n_all = n_text + n_then, had = (size_t) *n, cap = n_all + 2,
           count = 0, skip = 0;
    if (n_all == 0) return true;
    char *text = malloc(n_all);
    rt_span *span = malloc((t->n_client + 1) * sizeof *span);
    int32_t *ids = malloc(cap * sizeof *ids);
    if (text && span && ids) {
        memcpy(text, t->text + from, n_text);
        memcpy(text + n_text, then, n_then);
        count = rt_tokenize_prompt(g, text, n_all, span, chat_spans(span, t, from, to), ids, cap);
        skip = had > 0 && count > 0 && rt_adds_bos(g) && ids[0] == rt_token_bos(g);
    }
    bool good = count > 0 && count <= cap && had + count <= INT32_MAX;
    int32_t *more = good ? realloc(*out, (had + count) * sizeof *more) : NULL;
    if (more) {
        memcpy(more + had, ids + skip, (count - skip) * sizeof *more);
        *out = more;
        *n += (int32_t) (count - skip);
    }
    free(text);
    free(span);
    free(ids);
    return more != NULL;
}

/* The user's bytes may be anything: invalid UTF-8 becomes U+FFFD. */
bool chat_tokens(const Program *p, int32_t **out, int32_t *n, const char *text, size_t len)
{
    const Options *o = p->o;
    ChatPrompt *c = NULL;
    TemplateText prompt = { 0 };
    TemplateError err;
    *out = NULL;
    *n = 0;
    if (memchr(text, 0, len)) return complain(o, "--chat: the text holds a zero byte") == 0;
    if (chat_open(&c, p, &err) != ST_OK) return template_complain(o, &err);
    json_t *messages = json_array(), *kwargs = json_pack("{s:b}", "enable_thinking", o->think);
    if (o->system)
        json_array_append_new(messages, json_pack("{s:s s:o}", "role", "system", "content",
                                                  json_text(o->system, strlen(o->system))));
    json_array_append_new(messages, json_pack("{s:s s:o}", "role", "user", "content", json_text(text, len)));
    struct tm now = clock_now(o);
    ChatRequest q = { .messages = messages, .kwargs = kwargs, .generation = true, .now = &now };
    if (o->think && !chat_prompt_caps(c)->thinking) note(o, "--think: the model's chat template has no such choice");
    bool good = chat_prompt_render(&prompt, c, &q, &err) == ST_OK || template_complain(o, &err);
    if (good && !chat_append(p->engine, out, n, &prompt, 0, prompt.n, ""))
        good = complain(o, "the prompt of %zu bytes could not be tokenized", prompt.n) == 0;
    template_text_free(&prompt);
    json_decref(messages);
    json_decref(kwargs);
    chat_prompt_close(c);
    return good;
}
