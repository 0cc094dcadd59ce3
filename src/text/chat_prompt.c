#include "text/chat_prompt.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "text/chat_builtin.h"

enum { WARNING_BYTES = 1024 };
struct ChatPrompt {
    Template *t;
    json_t   *special;                             /* bos_token and so on, as far as they exist */
    ChatCaps  caps;
    bool      lax;
    char      warning[WARNING_BYTES];
};

bool role_is(const json_t *m, const char *role)
{
    const char *s = json_string_value(json_object_get(m, "role"));
    return s && strcmp(s, role) == 0;
}

bool role_is_system(const json_t *m) { return role_is(m, "system") || role_is(m, "developer"); }

static size_t leading_systems(const json_t *messages)
{
    size_t n = 0;
    while (role_is_system(json_array_get(messages, n))) n++;
    return n;
}

/* ---- results as members ---- */

/* The text of a message that contains only text. */
static char *text_of_message(const json_t *m)
{
    json_t *content = json_object_get(m, "content"), *part;
    size_t k, n = 1;
    if (json_is_string(content)) return strdup(json_string_value(content));
    json_array_foreach(content, k, part) n += json_string_length(json_object_get(part, "text"));
    char *s = malloc(n), *w = s;
    if (!s) return NULL;
    *s = 0;
    json_array_foreach(content, k, part) w = stpcpy(w, json_string_value(json_object_get(part, "text")));
    return s;
}

#define RESULTS "tool_responses"

static bool has_content(const json_t *m)
{
    const json_t *content = json_object_get(m, "content");
    return json_string_length(content) > 0 || json_array_size(content) > 0;
}

/* The tool that a result comes from: of the calls, the one with its id, else the one in its place. */
static const char *tool_of(const json_t *result, const json_t *calls, size_t place)
{
    const char *id = json_string_value(json_object_get(result, "tool_call_id"));
    const json_t *call = json_array_get(calls, place);
    for (size_t i = 0; id && i < json_array_size(calls); i++) {
        const json_t *other = json_array_get(calls, i);
        const char *its = json_string_value(json_object_get(other, "id"));
        if (its && strcmp(its, id) == 0) call = other;
    }
    const json_t *f = json_object_get(call, "function");
    const char *name = json_string_value(json_object_get(f ? f : call, "name"));
    if (!name) name = json_string_value(json_object_get(result, "name"));
    return name ? name : "unknown";
}

/* The conversation with results as members of the calling messages. A turn is shown as calls, results, text: text that
 * stood before the calls becomes a message of its own, and the answer that follows the results joins them, since the
 * model went on in the same turn. NULL: out of memory. */
static json_t *put_results_inside(const json_t *messages)
{
    json_t *out = json_array();
    bool good = out != NULL;
    size_t n = json_array_size(messages), i = 0;
    while (good && i < n) {
        json_t *m = json_array_get(messages, i++), *calls = json_object_get(m, "tool_calls");
        if (json_array_size(calls) == 0 || !role_is(json_array_get(messages, i), "tool")) {
            good = json_array_append(out, m) == 0;
            continue;
        }
        json_t *turn = json_copy(m), *results = json_array();
        if (has_content(m))
            good = json_array_append_new(out, json_pack("{s:s s:O}", "role", "assistant", "content",
                                                        json_object_get(m, "content"))) == 0;
        for (size_t place = 0; role_is(json_array_get(messages, i), "tool"); i++, place++) {
            json_t *r = json_array_get(messages, i);
            char *text = text_of_message(r);
            good = text && json_array_append_new(results, json_pack("{s:s s:s}", "name", tool_of(r, calls, place),
                                                                    "response", text)) == 0 && good;
            free(text);
        }
        json_t *next = json_array_get(messages, i);
        bool goes_on = role_is(next, "assistant") && !json_object_get(next, "tool_calls") && has_content(next);
        good = json_object_set_new(turn, RESULTS, results) == 0 && good;
        if (goes_on) good = json_object_set(turn, "content", json_object_get(next, "content")) == 0 && good;
        else good = json_object_set_new(turn, "content", json_string("")) == 0 && good;
        good = json_array_append_new(out, turn) == 0 && good;
        i += goes_on;
    }
    if (good) return out;
    json_decref(out);
    return NULL;
}

/* ---- rendering without preparation ---- */

Status chat_prompt_exact(TemplateText *out, const Template *t, const ChatRequest *q, const json_t *special, bool lax,
                         TemplateError *err)
{
    enum { OURS = 4 };
    size_t n = json_object_size(special) + json_object_size(q->kwargs) + OURS, used = 0;
    TemplateVariable *v = malloc(n * sizeof *v);
    *out = (TemplateText) { 0 };
    if (!v) {
        *err = (TemplateError) { 0 };
        return fail(&err->error, ST_MEMORY, "out of memory for %zu variables", n);
    }
    const char *key;
    json_t *value;
    json_object_foreach((json_t *) (uintptr_t) special, key,
                        value) v[used++] = (TemplateVariable) { key, value, ORIGIN_PROGRAM };
    v[used++] = (TemplateVariable) { "messages", q->messages, ORIGIN_MESSAGES };
    v[used++] = (TemplateVariable) { "tools", q->tools, ORIGIN_CLIENT };
    v[used++] = (TemplateVariable) { "documents", q->documents, ORIGIN_CLIENT };
    v[used++] = (TemplateVariable) { "add_generation_prompt", q->generation ? json_true() : json_false(),
                                     ORIGIN_PROGRAM };
    json_object_foreach((json_t *) (uintptr_t) q->kwargs, key,
                        value) v[used++] = (TemplateVariable) { key, value, ORIGIN_CLIENT };
    Status st = template_render(out, t, &(TemplateInput) { .variable = v, .n_variables = used, .now = q->now,
                                                           .lax = lax, .watched = "add_generation_prompt",
                                                           .part = leading_systems(q->messages) }, err);
    free(v);
    return st;
}

/* ---- trying a template out ---- */

static bool render_trial(TemplateText *out, const ChatPrompt *c, json_t *messages, json_t *tools, json_t *kwargs,
                         bool generation)
{
    static const struct tm SOME_DAY = { .tm_mday = 1, .tm_year = 100, .tm_wday = 6 };
    TemplateError err;
    ChatRequest q = { .messages = messages, .tools = tools, .kwargs = kwargs, .generation = generation,
                      .now = &SOME_DAY };
    bool good = messages && chat_prompt_exact(out, c->t, &q, c->special, c->lax, &err) == ST_OK;
    json_decref(messages);
    json_decref(tools);
    json_decref(kwargs);
    return good;
}

/* Whether the prompt of a conversation (which is freed here) contains all those texts, up to a NULL, in this order. */
static bool shows(const ChatPrompt *c, json_t *messages, json_t *tools, const char *const *needle)
{
    TemplateText text = { 0 };
    bool found = render_trial(&text, c, messages, tools, NULL, false);
    for (const char *at = text.text; found && *needle; needle++) {
        at = strstr(at, *needle);
        found = at != NULL;
    }
    template_text_free(&text);
    return found;
}
#define SHOWS(c, messages, tools, ...) shows(c, messages, tools, (const char *const[]) { __VA_ARGS__, NULL })

static json_t *said(const char *role, const char *content)
{
    return json_pack("{s:s s:s}", "role", role, "content", content);
}

static json_t *calling(const char *name, json_t *arguments)
{
    return json_pack("{s:s s:s s:{s:s s:o}}", "id", "call12345", "type", "function", "function", "name", name,
                     "arguments", arguments);
}

/* A conversation with calls, their results and a final answer, in the order that templates check for. */
static json_t *called(json_t *calls, bool second)
{
    json_t *all = json_pack("[o {s:s s:s s:o} {s:s s:s s:s s:s}]", said("user", "Q-one"), "role", "assistant",
                            "content", "", "tool_calls", calls, "role", "tool", "tool_call_id", "call12345", "name",
                            "fn_one", "content", "R-one");
    if (second)
        json_array_append_new(all, json_pack("{s:s s:s s:s s:s}", "role", "tool", "tool_call_id", "call12345", "name",
                                             "fn_two", "content", "R-two"));
    json_array_append_new(all, said("assistant", "A-one"));
    json_array_append_new(all, said("user", "Q-two"));
    return all;
}

static json_t *declared(void)
{
    return json_pack("[{s:s s:{s:s s:s s:{s:s s:{s:{s:s s:s}} s:[s]}}}]", "type", "function", "function", "name",
                     "fn_one", "description", "D-one", "parameters", "type", "object", "properties", "key_one", "type",
                     "string", "description", "P-one", "required", "key_one");
}

static json_t *object_args(void) { return json_pack("{s:s}", "key_one", "val_one"); }
#define TEXT_ARGS "{\"key_one\": \"val_one\"}"

static json_t *arguments_of(const ChatPrompt *c)
{
    return c->caps.object_arguments ? object_args() : json_string(TEXT_ARGS);
}

/* Whether results are shown otherwise, if at all, when they are no members of the calling message. */
static bool expects_results_inside(const ChatPrompt *c)
{
    if (!template_mentions(c->t, RESULTS)) return false;
    json_t *apart = called(json_pack("[o]", calling("fn_one", arguments_of(c))), false),
           *inside = put_results_inside(apart);
    TemplateText one = { 0 }, two = { 0 };
    bool differ = render_trial(&one, c, inside, declared(), NULL, false) && strstr(one.text, "R-one") &&
                  render_trial(&two, c, json_incref(apart), declared(), NULL, false) && strcmp(one.text, two.text) != 0;
    template_text_free(&one);
    template_text_free(&two);
    json_decref(apart);
    return differ;
}

/* Whether a variable changes how an answer begins. */
static bool thinking_matters(const ChatPrompt *c)
{
    TemplateText on = { 0 }, off = { 0 };
    bool both = render_trial(&on, c, json_pack("[o]", said("user", "Q-one")), NULL,
                             json_pack("{s:b}", "enable_thinking", 1), true) &&
                render_trial(&off, c, json_pack("[o]", said("user", "Q-one")), NULL,
                             json_pack("{s:b}", "enable_thinking", 0), true);
    bool differ = both && (on.n != off.n || memcmp(on.text, off.text, on.n) != 0);
    template_text_free(&on);
    template_text_free(&off);
    return differ;
}

/* ---- comparing renderings ---- */

#define SIGN "\xc2\xa7"

enum { TRY_SYSTEM = 1, TRY_TOOLS = 2, TRY_THINKING = 4, TRY_SILENT = 8, TRY_COMBINATIONS = 16 };
typedef enum { TRY_QUESTION, TRY_TURNS, TRY_CALLED, TRY_RESULT, TRY_ANSWER, TRY_SHAPES } TryShape;

static json_t *thinking_aloud(json_t *answer)
{
    static const char *const NAMES[] = { "reasoning_content", "reasoning", "thinking" };
    for (size_t i = 0; i < 3; i++) json_object_set_new(answer, NAMES[i], json_string("T-one"));
    return answer;
}

static json_t *system_of(int options)
{
    return options & TRY_SYSTEM ? json_pack("[o]", said("system", "S-one")) : json_array();
}

static json_t *conversation(const ChatPrompt *c, TryShape shape, int options)
{
    json_t *all = system_of(options), *calls = json_pack("[o]", calling("fn_one", arguments_of(c))),
           *rest = called(calls, false);
    size_t n = shape == TRY_QUESTION ? 1 : shape == TRY_RESULT ? 3 : 5;
    if (shape == TRY_TURNS || shape == TRY_ANSWER) {
        json_decref(rest);
        rest = json_pack("[o o o]", said("user", "Q-one"), said("assistant", "A-one"), said("user", "Q-two"));
        n = shape == TRY_ANSWER ? 2 : 3;
    }
    if (options & TRY_THINKING && n > 1) thinking_aloud(json_array_get(rest, 1));
    for (size_t i = 0; i < n; i++) json_array_append(all, json_array_get(rest, i));
    json_decref(rest);
    return all;
}

static bool render_shape(TemplateText *out, const ChatPrompt *c, json_t *messages, int options, bool generation)
{
    json_t *kwargs = options & (TRY_THINKING | TRY_SILENT)
                     ? json_pack("{s:b}", "enable_thinking", options & TRY_THINKING ? 1 : 0) : NULL;
    return render_trial(out, c, messages, options & TRY_TOOLS ? declared() : NULL, kwargs, generation);
}

static bool begins_with(const TemplateText *t, const TemplateText *head, size_t n)
{
    return t->n >= n && memcmp(t->text, head->text, n) == 0;
}

/* Whether both show the same before the first answer, and after the last one as far as `bare` goes. */
static bool same_around_answers(const TemplateText *bare, const TemplateText *next, TryShape shape)
{
    const char *question = strstr(bare->text, "Q-one"), *result = strstr(bare->text, "R-one"),
               *again = strstr(next->text, "R-one");
    if (!question || !begins_with(next, bare, (size_t) (question - bare->text) + strlen("Q-one"))) return false;
    return shape != TRY_RESULT || (result && again && strncmp(result, again, strlen(result)) == 0);
}

/* Compares one conversation with variations of it and records what they show. A conversation that the template refuses
 * shows nothing. */
static void try_places(ChatPrompt *c, TryShape shape, int options)
{
    TemplateText whole = { 0 }, bare = { 0 }, other = { 0 }, next = { 0 };
    ChatCaps *a = &c->caps;
    json_t *stranger = system_of(options), *longer = conversation(c, shape, options);
    json_array_append_new(stranger, said("user", SIGN));
    json_array_append_new(longer, said("assistant", SIGN));
    json_array_append_new(longer, said("user", SIGN));
    bool good = render_shape(&whole, c, conversation(c, shape, options), options, true),
         unasked = render_shape(&bare, c, conversation(c, shape, options), options, false),
         strange = render_shape(&other, c, stranger, options, true),
         goes_on = render_shape(&next, c, longer, options, true);
    if (good && !(unasked && bare.n == whole.asked && begins_with(&bare, &whole, whole.asked))) a->answer_apart = false;
    if (good && whole.parted != SIZE_MAX &&
        !(strange && begins_with(&other, &whole, whole.parted) &&
          strncmp(other.text + whole.parted, SIGN, strlen(SIGN)) == 0))
        a->system_apart = false;
    if (unasked && goes_on && !begins_with(&next, &bare, bare.n)) {
        a->shortens = true;
        if (!same_around_answers(&bare, &next, shape)) a->rewrites = true;
    }
    template_text_free(&whole);
    template_text_free(&bare);
    template_text_free(&other);
    template_text_free(&next);
}

static void try_all_places(ChatPrompt *c)
{
    c->caps.answer_apart = c->caps.system_apart = true;
    for (int options = 0; options < TRY_COMBINATIONS; options++) {
        bool both = (options & TRY_THINKING) && (options & TRY_SILENT);
        if (both || (options & TRY_SYSTEM && !c->caps.system) || (options & TRY_TOOLS && !c->caps.tools)) continue;
        for (TryShape shape = 0; shape < TRY_SHAPES; shape++)
            if (c->caps.tool_calls || (shape != TRY_CALLED && shape != TRY_RESULT)) try_places(c, shape, options);
    }
}

static void try_out(ChatPrompt *c)
{
    static const char *const KEEPING[] = { "preserve_thinking", "clear_thinking", "truncate_history_thinking",
                                           "drop_thinking" };
    ChatCaps *a = &c->caps;
    a->system = SHOWS(c, json_pack("[o o]", said("system", "S-one"), said("user", "Q-one")), NULL, "S-one", "Q-one");
    a->system_later = SHOWS(c, json_pack("[o o o o]", said("user", "Q-one"), said("assistant", "A-one"),
                                         said("system", "S-one"), said("user", "Q-two")), NULL, "Q-one", "S-one",
                            "Q-two");
    a->developer = template_mentions(c->t, "developer");
    a->text_content = SHOWS(c, json_pack("[o]", said("user", "Q-one")), NULL, "Q-one");
    json_t *parts = json_pack("[{s:s s:[{s:s s:s} {s:s s:s}]}]", "role", "user", "content", "type", "text", "text",
                              "Q-one", "type", "text", "text", "Q-two");
    TemplateText text = { 0 };                     /* a list printed as it is would contain the word "type" */
    a->typed_content = render_trial(&text, c, parts, NULL, NULL, false) && strstr(text.text, "Q-one") &&
                       strstr(text.text, "Q-two") && !strstr(text.text, "'type'") && !strstr(text.text, "\"type\"");
    template_text_free(&text);
    a->tools = SHOWS(c, json_pack("[o]", said("user", "Q-one")), declared(), "fn_one");
    a->object_arguments = SHOWS(c, called(json_pack("[o]", calling("fn_one", object_args())), false), declared(),
                                "fn_one", "key_one", "val_one");
    a->text_arguments = SHOWS(c, called(json_pack("[o]", calling("fn_one", json_string(TEXT_ARGS))), false), declared(),
                              "fn_one", TEXT_ARGS);
    a->tool_calls = a->object_arguments || a->text_arguments;
    if (a->object_arguments && a->text_arguments)  /* a template that writes an object differently expects objects */
        a->text_arguments = SHOWS(c, called(json_pack("[o]", calling("fn_one", object_args())), false), declared(),
                                  "fn_one", TEXT_ARGS);
    json_t *one = arguments_of(c), *two = json_incref(one);
    a->parallel_calls = SHOWS(c, called(json_pack("[o o]", calling("fn_one", one), calling("fn_two", two)), true),
                              declared(), "fn_one", "fn_two");
    a->tool_results = SHOWS(c, called(json_pack("[o]", calling("fn_one", arguments_of(c))), false), declared(),
                            "R-one");
    a->results_inside = a->tool_calls && expects_results_inside(c);
    json_t *uncalled = called(json_array(), false);
    json_object_del(json_array_get(uncalled, 1), "tool_calls");
    bool alone = SHOWS(c, uncalled, declared(), "R-one");
    a->results_with_calls = a->results_inside || (a->tool_results && !alone);
    json_t *thought = json_pack("[o {s:s s:s s:s s:s s:s}]", said("user", "Q-one"), "role", "assistant",
                                "reasoning_content", "T-one", "reasoning", "T-one", "thinking", "T-one", "content",
                                "A-one");
    a->reasoning = SHOWS(c, thought, NULL, "T-one");
    a->thinking = thinking_matters(c);
    for (size_t i = 0; i < 4; i++) a->keeps_thinking |= template_mentions(c->t, KEEPING[i]);
    try_all_places(c);
}

/* ---- opening ---- */

static Status open_builtin(ChatPrompt *c, const ChatOptions *o, TemplateError *err)
{
    const ChatBuiltin *b = chat_builtin(o->arch, o->has_token, o->ud);
    if (!b) {
        if (err->error.code == ST_OK)
            fail(&err->error, ST_UNSUPPORTED,
                 "%s: there is no chat template, and none of the built-in ones fits the vocabulary", o->name);
        return err->error.code;
    }
    if (err->error.code != ST_OK)
        snprintf(c->warning, sizeof c->warning, "the built-in %s template is used, as the model's cannot be read: %s",
                 b->name, err->error.text);
    else
        snprintf(c->warning, sizeof c->warning, "%s has no chat template, the built-in %s template is used", o->name,
                 b->name);
    return template_open(&c->t, b->source, strlen(b->source), b->name, err);
}

static Status open_template(ChatPrompt *c, const ChatOptions *o, TemplateError *err)
{
    char name[512];
    snprintf(name, sizeof name, "%s: chat template", o->name);
    if (!o->source) return open_builtin(c, o, err);
    Status st = template_open(&c->t, o->source, o->n, name, err);
    return st == ST_OK || st == ST_MEMORY ? st : open_builtin(c, o, err);
}

Status chat_prompt_open(ChatPrompt **out, const ChatOptions *o, TemplateError *err)
{
    *err = (TemplateError) { 0 };
    *out = NULL;
    ChatPrompt *c = calloc(1, sizeof *c);
    if (!c) return fail(&err->error, ST_MEMORY, "%s: out of memory for the chat template", o->name);
    c->lax = o->lax;
    c->special = json_object();
    const struct {
        const char *name, *text;
    } tokens[] = { { "bos_token", o->bos }, { "eos_token", o->eos }, { "pad_token", o->pad }, { "unk_token", o->unk } };
    for (size_t i = 0; i < 4; i++)
        if (tokens[i].text) json_object_set_new(c->special, tokens[i].name, json_string(tokens[i].text));
    Status st = open_template(c, o, err);
    if (st != ST_OK) {
        chat_prompt_close(c);
        return st;
    }
    try_out(c);
    if (template_mentions(c->t, "strftime_now") &&
        (template_mentions(c->t, "%H") || template_mentions(c->t, "%M") || template_mentions(c->t, "%S")) &&
        !c->warning[0])
        snprintf(c->warning, sizeof c->warning,
                 "%s: the chat template writes the time of day into the prompt, so no prompt is like another", o->name);
    *out = c;
    return ST_OK;
}

void chat_prompt_close(ChatPrompt *c)
{
    if (!c) return;
    template_close(c->t);
    json_decref(c->special);
    free(c);
}

const ChatCaps *chat_prompt_caps(const ChatPrompt *c) { return &c->caps; }
const char *chat_prompt_warning(const ChatPrompt *c) { return c->warning; }

/* ---- preparing conversations ---- */

static json_t *joined(const char *a, const char *between, const char *b)
{
    size_t n = strlen(a) + strlen(between) + strlen(b) + 1;
    char *s = malloc(n);
    json_t *j = NULL;
    if (s) {
        snprintf(s, n, "%s%s%s", a, between, b);
        j = json_string(s);
    }
    free(s);
    return j;
}

/* Converts content to one string or to parts, depending on what the template shows. */
static Status prepare_content(const ChatCaps *a, json_t *m, size_t i, Error *err)
{
    json_t *content = json_object_get(m, "content");
    if (!content || json_is_null(content)) json_object_set_new(m, "content", json_string(""));
    content = json_object_get(m, "content");
    if (json_is_string(content)) {
        if (a->text_content || !a->typed_content) return ST_OK;
        json_object_set_new(m, "content", json_pack("[{s:s s:O}]", "type", "text", "text", content));
        return ST_OK;
    }
    if (!json_is_array(content))
        return fail(err, ST_ARG, "messages[%zu].content is neither a string nor a list of parts", i);
    json_t *part;
    size_t k;
    json_array_foreach(content, k, part) {
        const char *type = json_string_value(json_object_get(part, "type"));
        if (!type || strcmp(type, "text") != 0 || !json_is_string(json_object_get(part, "text")))
            return fail(err, ST_ARG, "messages[%zu].content[%zu] is of type \"%s\", expected text", i, k,
                        type ? type : "");
    }
    if (a->typed_content) return ST_OK;
    char *text = text_of_message(m);
    if (!text) return fail(err, ST_MEMORY, "out of memory for the messages");
    json_object_set_new(m, "content", json_string(text));
    free(text);
    return ST_OK;
}

/* The JSON in a call's arguments, which a model wrote. */
static json_t *read_arguments(const json_t *args)
{
    json_t *value = NULL;
    char *text = strdup(json_string_value(args));
    if (!text) return NULL;
    json_without_zeros(text, strlen(text));
    json_read_loose(&value, text, strlen(text), "arguments", NULL);
    free(text);
    return value;
}

/* Converts a call's arguments to the form that the template shows; text that is not JSON is kept as {"raw": text}. */
static void prepare_arguments(const ChatCaps *a, json_t *call)
{
    json_t *f = json_object_get(call, "function"), *args = json_object_get(f ? f : call, "arguments"), *value = NULL;
    if (json_is_string(args) && a->object_arguments && !a->text_arguments) {
        value = json_string_length(args) == 0 ? json_object() : read_arguments(args);
        if (!json_is_object(value)) {
            json_decref(value);
            value = json_pack("{s:O}", "raw", args);
        }
    } else if (json_is_object(args) && a->text_arguments && !a->object_arguments) {
        char *text = json_dumps(args, 0);
        value = text ? json_string(text) : NULL;
        free(text);
    } else if (!args) {
        value = a->text_arguments && !a->object_arguments ? json_string("{}") : json_object();
    }
    if (value) json_object_set_new(f ? f : call, "arguments", value);
}

static void prepare_reasoning(json_t *m)
{
    static const char *const NAMES[] = { "reasoning_content", "reasoning", "thinking" };
    json_t *text = NULL;
    for (size_t i = 0; i < 3 && !text; i++)
        if (json_is_string(json_object_get(m, NAMES[i]))) text = json_object_get(m, NAMES[i]);
    json_incref(text);
    for (size_t i = 0; i < 3; i++) {
        if (text) json_object_set(m, NAMES[i], text);
        else json_object_del(m, NAMES[i]);
    }
    json_decref(text);
}

static Status prepare_message(const ChatCaps *a, json_t *m, size_t i, Error *err)
{
    static const char *const OPTIONAL[] = { "tool_calls", "name", "tool_call_id" };
    if (!json_is_object(m) || !json_is_string(json_object_get(m, "role")))
        return fail(err, ST_ARG, "messages[%zu] has no role", i);
    if (role_is(m, "developer") && !a->developer) json_object_set_new(m, "role", json_string("system"));
    for (size_t k = 0; k < 3; k++) {            /* templates test whether a key exists, so empty values are removed */
        json_t *v = json_object_get(m, OPTIONAL[k]);
        if (json_is_null(v) || (json_is_array(v) && json_array_size(v) == 0)) json_object_del(m, OPTIONAL[k]);
    }
    json_t *calls = json_object_get(m, "tool_calls"), *call;
    size_t k;
    if (calls && !json_is_array(calls)) return fail(err, ST_ARG, "messages[%zu].tool_calls is not a list", i);
    json_array_foreach(calls, k, call) {
        if (!json_is_object(call)) return fail(err, ST_ARG, "messages[%zu].tool_calls[%zu] is not an object", i, k);
        prepare_arguments(a, call);
    }
    prepare_reasoning(m);
    return prepare_content(a, m, i, err);
}

/* Prepends text to a message's content. */
static void put_in_front(json_t *m, const char *text, const char *between)
{
    json_t *content = json_object_get(m, "content");
    if (json_is_string(content)) {
        json_object_set_new(m, "content", *json_string_value(content)
                            ? joined(text, between, json_string_value(content)) : json_string(text));
    } else if (json_is_array(content)) {
        json_t *part = json_pack("{s:s s:o}", "type", "text", "text", joined(text, between, ""));
        json_array_insert_new(content, 0, part);
    }
}

/* Joins leading system messages into one. Later ones, if the template refuses them, become reminders from the user; and
 * if it has no system messages at all, the system text is prepended to the first user message. */
static Status prepare_system(const ChatCaps *a, json_t *messages, Error *err)
{
    size_t leading = 0, n = 1;
    while (role_is(json_array_get(messages, leading), "system")) leading++;
    if (leading > 1) {
        char *part, *all = NULL, *w = NULL;
        for (size_t pass = 0; pass < 2; pass++) {  /* first compute the length, then copy */
            for (size_t i = 0; i < leading; i++) {
                part = text_of_message(json_array_get(messages, i));
                if (!part) {
                    free(all);
                    return fail(err, ST_MEMORY, "out of memory for the messages");
                }
                if (pass == 0) n += strlen(part) + 2;
                else w = stpcpy(stpcpy(w, i ? "\n\n" : ""), part);
                free(part);
            }
            if (pass == 0) w = all = malloc(n);
            if (!all) return fail(err, ST_MEMORY, "out of memory for the messages");
        }
        json_t *rest = json_array();
        json_array_append_new(rest, said("system", all));
        free(all);
        for (size_t i = leading; i < json_array_size(messages); i++)
            json_array_append(rest, json_array_get(messages, i));
        json_array_clear(messages);
        json_array_extend(messages, rest);
        json_decref(rest);
    }
    for (size_t i = 1; i < json_array_size(messages) && !a->system_later; i++) {
        json_t *m = json_array_get(messages, i);
        if (!role_is(m, "system")) continue;
        char *text = text_of_message(m);
        size_t room = text ? strlen(text) + 64 : 0;
        char *reminder = text ? malloc(room) : NULL;
        if (reminder) snprintf(reminder, room, "<system-reminder>\n%s\n</system-reminder>", text);
        json_object_set_new(m, "role", json_string("user"));
        json_object_set_new(m, "content", reminder ? json_string(reminder) : NULL);
        bool good = reminder != NULL;
        free(text);
        free(reminder);
        if (!good) return fail(err, ST_MEMORY, "out of memory for the messages");
    }
    if (a->system || !role_is(json_array_get(messages, 0), "system")) return ST_OK;
    char *text = text_of_message(json_array_get(messages, 0));
    if (!text) return fail(err, ST_MEMORY, "out of memory for the messages");
    if (role_is(json_array_get(messages, 1), "user")) {
        put_in_front(json_array_get(messages, 1), text, "\n");
        json_array_remove(messages, 0);
    } else {
        json_object_set_new(json_array_get(messages, 0), "role", json_string("user"));
    }
    free(text);
    return ST_OK;
}

static Status prepare(json_t **out, const ChatPrompt *c, const json_t *given, Error *err)
{
    json_t *all = json_deep_copy(given), *m;
    *out = NULL;
    if (!all) return fail(err, ST_MEMORY, "out of memory for the messages");
    Status st = json_array_size(all) > 0
                ? ST_OK : fail(err, ST_ARG, "messages is empty, expected a list of at least one message");
    size_t i;
    json_array_foreach(all, i, m)
        if (st == ST_OK) st = prepare_message(&c->caps, m, i, err);
    if (st == ST_OK) st = prepare_system(&c->caps, all, err);
    if (st == ST_OK && c->caps.results_inside) {
        json_t *inside = put_results_inside(all);
        if (!inside) st = fail(err, ST_MEMORY, "out of memory for the messages");
        json_decref(all);
        all = inside;
    }
    if (st == ST_OK) *out = all;
    else json_decref(all);
    return st;
}

/* Some templates refuse a conversation without any user message, such as the rest of a long one after shortening. */
static bool nobody_asked(const json_t *messages)
{
    size_t i;
    json_t *m;
    json_array_foreach(messages, i, m) {
        const char *s = json_string_value(json_object_get(m, "content"));
        if (role_is(m, "user") && !(s && strncmp(s, "<tool_response>", strlen("<tool_response>")) == 0)) return false;
    }
    return true;
}

/* Whether the user speaks first, and preparation has left everything after the system messages unchanged. */
static bool system_stands_first(const json_t *given, const json_t *ready)
{
    size_t from = leading_systems(given), to = leading_systems(ready), n = json_array_size(given);
    if ((from > 0) != (to > 0) || n - from != json_array_size(ready) - to) return false;
    for (size_t i = from; i < n; i++)
        if (role_is_system(json_array_get(given, i))) return false;
    return role_is(json_array_get(ready, to), "user");
}

static void forget_untold(TemplateText *t, const ChatCaps *a, const json_t *given, const json_t *ready)
{
    if (!a->answer_apart) t->asked = SIZE_MAX;
    if (!a->system_apart || !system_stands_first(given, ready)) t->parted = SIZE_MAX;
}

/* Gemma 4's templates begin no answer after a turn with results and text, although they close it. */
static Status begin_answer(TemplateText *t, const ChatPrompt *c, Error *err)
{
    static const char CLOSED[] = "<turn|>\n", OPEN[] = "<|turn>model\n";
    enum { N_CLOSED = sizeof CLOSED - 1 };
    if (!template_mentions(c->t, "<|turn>") || t->n < N_CLOSED ||
        memcmp(t->text + t->n - N_CLOSED, CLOSED, N_CLOSED) != 0) return ST_OK;
    char *longer = realloc(t->text, t->n + sizeof OPEN);
    if (!longer) return fail(err, ST_MEMORY, "out of memory for the prompt");
    memcpy(longer + t->n, OPEN, sizeof OPEN);
    t->text = longer;
    t->n += sizeof OPEN - 1;
    return ST_OK;
}

Status chat_prompt_render(TemplateText *out, const ChatPrompt *c, const ChatRequest *q, TemplateError *err)
{
    *err = (TemplateError) { 0 };
    *out = (TemplateText) { 0 };
    json_t *messages;
    Status st = prepare(&messages, c, q->messages, &err->error);
    if (st != ST_OK) return st;
    ChatRequest ready = *q;
    ready.messages = messages;
    if (json_array_size(q->tools) == 0) ready.tools = NULL;
    st = chat_prompt_exact(out, c->t, &ready, c->special, c->lax, err);
    if (st == ST_ARG && nobody_asked(messages)) {
        TemplateError second;
        json_array_append_new(messages, said("user", "Continue."));
        if (chat_prompt_exact(out, c->t, &ready, c->special, c->lax, &second) == ST_OK) {
            st = ST_OK;
            *err = second;
        }
    }
    if (st == ST_OK && q->generation) st = begin_answer(out, c, &err->error);
    if (st == ST_OK) forget_untold(out, &c->caps, q->messages, messages);
    else template_text_free(out);
    json_decref(messages);
    return st;
}
