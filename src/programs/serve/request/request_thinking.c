/* Whether the model reasons, for how long, and who sees it. Many fields mean the same; here later ones win. */
#include "programs/serve/request/request_impl.h"

#include <stdio.h>
#include <string.h>

#include "base/path.h"

typedef struct { int thinking; int64_t budget; const char *effort; } Asked;

static void ask_effort(Asked *a, const char *effort)
{
    if (!effort) return;
    a->effort = effort;
    a->thinking = strcmp(effort, "none") == 0 ? THINK_OFF : THINK_ON;
}

static void ask_budget(Asked *a, const json_t *v)
{
    if (json_is_integer(v)) a->budget = json_integer_value(v);
}

static void ask_bool(Asked *a, const json_t *v)
{
    if (json_is_boolean(v)) a->thinking = json_is_true(v) ? THINK_ON : THINK_OFF;
}

static const char *text_at(const json_t *o, const char *key) { return json_string_value(json_object_get(o, key)); }

static Asked what_is_asked(const Reader *r)
{
    const json_t *b = r->body, *reasoning = json_object_get(b, "reasoning"), *thinking = json_object_get(b, "thinking"),
                 *think = json_object_get(b, "think");
    Asked a = { .thinking = r->d->thinking, .budget = r->d->think_budget };
    if (ends_with(r->q->model, ":think")) a.thinking = THINK_ON;
    if (ends_with(r->q->model, ":nothink")) a.thinking = THINK_OFF;
    ask_effort(&a, text_at(b, "reasoning_effort"));
    ask_effort(&a, text_at(json_object_get(b, "output_config"), "effort"));
    if (json_is_object(reasoning) && !text_at(reasoning, "effort")) a.thinking = THINK_ON;
    ask_effort(&a, text_at(reasoning, "effort"));
    ask_budget(&a, json_object_get(reasoning, "max_tokens"));
    ask_bool(&a, json_object_get(reasoning, "enabled"));
    const char *type = text_at(thinking, "type");
    if (type) a.thinking = strcmp(type, "disabled") == 0 ? THINK_OFF : THINK_ON;
    ask_budget(&a, json_object_get(thinking, "budget_tokens"));
    ask_budget(&a, json_object_get(b, "thinking_budget_tokens"));
    ask_effort(&a, json_string_value(think));
    ask_bool(&a, think);
    ask_bool(&a, json_object_get(b, "enable_thinking"));
    ask_bool(&a, json_object_get(json_object_get(b, "chat_template_kwargs"), "enable_thinking"));
    return a;
}

/* Reasoning tokens of an effort; 0: no bound. Unknown words mean high, as in other servers. */
static int64_t effort_tokens(const RequestDefaults *d, const char *effort)
{
    static const struct {
        const char *words;
        Effort effort;
    } TIERS[] = { { "minimal|low", EFFORT_LOW }, { "medium", EFFORT_MEDIUM }, { "xhigh|x-high", EFFORT_XHIGH },
                  { "max", EFFORT_MAX } };
    for (size_t i = 0; i < sizeof TIERS / sizeof *TIERS; i++)
        if (is_among(TIERS[i].words, effort, strlen(effort))) return d->effort[TIERS[i].effort];
    return d->effort[EFFORT_HIGH];
}

/* A budget overrides an effort. With a bound, some tokens are reserved for the answer, but at most half of all. */
static void set_budget(Reader *r, const Asked *a)
{
    Request *q = r->q;
    const json_t *reply = json_object_get(json_object_get(r->body, "thinking"), "reply_budget");
    int64_t tier = a->effort && strcmp(a->effort, "none") != 0 ? effort_tokens(r->d, a->effort) : 0;
    q->think_budget = a->budget >= 0 ? a->budget : tier > 0 ? tier : -1;
    if (json_is_integer(reply) && q->think_budget < 0) q->think_budget = INT64_MAX;
    if (q->think_budget == 0) q->thinking = THINK_OFF;
    if (q->think_budget < 0) return;
    q->reply_budget = r->d->reply_budget;
    if (json_is_integer(reply) && json_integer_value(reply) < q->reply_budget)
        q->reply_budget = json_integer_value(reply);
    if (q->max_tokens >= 0 && q->reply_budget > q->max_tokens / 2) q->reply_budget = q->max_tokens / 2;
    if (q->max_tokens >= 0 && q->think_budget > q->max_tokens - q->reply_budget)
        q->think_budget = q->max_tokens - q->reply_budget;
}

static void set_visibility(Reader *r)
{
    Request *q = r->q;
    const json_t *reasoning = json_object_get(r->body, "reasoning");
    q->think_inline = strcmp(text_at(r->body, "reasoning_format") ? text_at(r->body, "reasoning_format") : "",
                             "none") == 0;
    q->show_reasoning = SHOW_RAW;
    if (q->dialect == DIALECT_CHAT && json_is_true(json_object_get(reasoning, "exclude")))
        q->show_reasoning = SHOW_HIDDEN;
    if (q->dialect == DIALECT_MESSAGES &&
        strcmp(text_at(json_object_get(r->body, "thinking"), "display")
               ? text_at(json_object_get(r->body, "thinking"), "display") : "", "omitted") == 0)
        q->show_reasoning = SHOW_HANDLE;
    if (q->dialect != DIALECT_RESPONSES) return;
    const char *summary = text_at(reasoning, "summary");
    if (!summary) summary = text_at(reasoning, "generate_summary");
    bool shown = summary && strcmp(summary, "none") != 0;
    q->show_reasoning = shown ? r->d->responses_reasoning : SHOW_HIDDEN;
    if (q->show_reasoning == SHOW_HIDDEN && q->reason_handle) q->show_reasoning = SHOW_HANDLE;
}

/* Template variables. The client's own come last, but may not replace those that hold the conversation itself. */
static bool set_variables(Reader *r)
{
    static const char OURS[] = "messages|tools|documents|add_generation_prompt|continue_final_message|bos_token|"
                               "eos_token|pad_token|unk_token";
    Request *q = r->q;
    json_t *given = json_object_get(r->body, "chat_template_kwargs"), *v;
    const char *key;
    if (q->thinking != THINK_AUTO) keep_in(r, q->kwargs, "enable_thinking", json_boolean(q->thinking == THINK_ON));
    if (q->effort) {
        keep_in(r, q->kwargs, "reasoning_effort", json_string(q->effort));
        keep_in(r, q->kwargs, "reasoning_strength", json_string(q->effort));
    }
    int preserve = r->d->preserve_thinking;
    if (preserve == THINK_AUTO) preserve = r->d->template_preserves && q->n_tool > 0 ? THINK_ON : THINK_AUTO;
    if (preserve != THINK_AUTO) {
        keep_in(r, q->kwargs, "preserve_thinking", json_boolean(preserve == THINK_ON));
        keep_in(r, q->kwargs, "clear_thinking", json_boolean(preserve == THINK_OFF));
        keep_in(r, q->kwargs, "truncate_history_thinking", json_boolean(preserve == THINK_OFF));
        keep_in(r, q->kwargs, "drop_thinking", json_boolean(preserve == THINK_OFF));
    }
    json_object_foreach(given, key, v) {
        if (is_among(OURS, key, strlen(key)))
            return refuse(r, "chat_template_kwargs", "chat_template_kwargs.%s cannot be set", key);
        if (strcmp(key, "enable_thinking") != 0 || !json_is_boolean(v)) keep_in(r, q->kwargs, key, json_incref(v));
    }
    return true;
}

/* The model's template knows no reasoning: every field that asks for it is named. */
static void name_thinking(Reader *r)
{
    static const char *const FIELDS[] = { "reasoning_effort", "output_config.effort", "reasoning", "thinking", "think",
                                          "thinking_budget_tokens", "enable_thinking" };
    for (size_t i = 0; i < sizeof FIELDS / sizeof *FIELDS; i++) {
        const json_t *effort = json_object_get(json_object_get(r->body, "output_config"), "effort"),
                     *v = i == 1 ? effort : json_object_get(r->body, FIELDS[i]);
        if (v && !json_is_null(v)) fields_ignore(r->q, "%s", FIELDS[i]);
    }
    const json_t *variable = json_object_get(json_object_get(r->body, "chat_template_kwargs"), "enable_thinking");
    if (json_is_true(variable)) fields_ignore(r->q, "chat_template_kwargs.enable_thinking");
}

bool read_thinking(Reader *r)
{
    Asked a = what_is_asked(r);
    if (r->d->no_thinking && !r->q->continue_final) {     /* the answer that is continued may have opened it */
        if (a.thinking == THINK_ON) name_thinking(r);
        a = (Asked) { .thinking = THINK_OFF, .budget = -1 };
    }
    r->q->thinking = a.thinking;
    r->q->effort = a.effort;
    set_budget(r, &a);
    set_visibility(r);
    return set_variables(r);
}
