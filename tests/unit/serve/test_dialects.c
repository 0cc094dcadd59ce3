/* The server's dialects: every field of the table is tried, conversations of all kinds become messages, and scripts of
 * events become exactly the bytes of tests/serve/golden. A golden file has a request, a script (one event per line) and
 * the resulting bytes, streamed and not; GOLDEN=write writes these anew: read the difference before you keep it.
 * tests/serve/sdk_replay.py gives them to the official SDKs. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>

#include "programs/serve/answer/answer.h"
#include "programs/serve/request/fields.h"
#include "programs/serve/answer/out.h"
#include "base/json.h"

#include <cmocka.h>

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc_fault.h"

/* ---- helpers ---- */

static const char *const NAMES[DIALECTS] = { "completions", "chat", "responses", "messages", "llama", "infill",
                                             "ollama_chat", "ollama_generate" };

/* JSON written with single quotes. */
static json_t *json_of(const char *text)
{
    char *s = strdup(text);
    json_t *v;
    Error err = { 0 };
    assert_non_null(s);
    for (char *p = s; *p; p++)
        if (*p == '\'') *p = '"';
    if (json_read(&v, s, strlen(s), "test", &err) != ST_OK) {
        print_error("%s: %s\n", s, err.text);
        fail_msg("a test's JSON is wrong");
    }
    free(s);
    return v;
}

static char *read_file(const char *path)
{
    FILE *f = fopen(path, "rb");
    if (!f) return NULL;
    char *s = calloc(1, 1 << 18);
    size_t n = fread(s, 1, (1 << 18) - 1, f);
    fclose(f);
    return n ? s : NULL;
}

static json_t *stored_items(void *ud, const char *id)
{
    (void) ud;
    if (strcmp(id, "resp_old") != 0) return NULL;
    return json_of("[{'type':'message','role':'user','content':'Q0'},{'type':'message','id':'msg_old',"
                   "'role':'assistant','content':[{'type':'output_text','text':'A0'}]}]");
}

static json_t *stored_item(void *ud, const char *id)
{
    json_t *all = strcmp(id, "msg_old") == 0 ? stored_items(ud, "resp_old") : NULL,
           *one = json_incref(json_array_get(all, 1));
    json_decref(all);
    return one;
}

static const char *const ALIASES[] = { "other" };
static const RequestDefaults DEFAULTS = {
    .model = "tiny", .alias = ALIASES, .n_alias = 1, .vocab = 1000,
    .sampling = { .top_p = 1, .repetition = 1, .rep_window = 256 }, .max_tokens = 16000, .responses_max_tokens = 32768,
    .n_max = 4, .think_budget = -1, .effort = { 4000, 16000, 32000, 56000, 0 }, .reply_budget = 4096,
    .preserve_thinking = THINK_AUTO, .responses_reasoning = SHOW_SUMMARY,
    .lookup = { .response = stored_items, .item = stored_item },
};

static bool read_json(Request **q, Dialect d, const char *body, HttpError *e)
{
    json_t *b = json_of(body);
    bool good = request_read(q, d, b, NULL, &DEFAULTS, e);
    json_decref(b);
    return good;
}

static Request *read_good(Dialect d, const char *body)
{
    HttpError e;
    Request *q;
    if (!read_json(&q, d, body, &e)) {
        print_error("%s %s: %s\n", NAMES[d], body, e.message);
        fail_msg("the request was refused");
    }
    return q;
}

/* The smallest valid body of each dialect. */
static const char *const LEAST[DIALECTS] = { "{'prompt':'x'}", "{'messages':[{'role':'user','content':'x'}]}",
                                             "{'input':'x'}", "{'messages':[{'role':'user','content':'x'}]}",
                                             "{'prompt':'x'}", "{'input_prefix':'x'}",
                                             "{'messages':[{'role':'user','content':'x'}]}", "{'prompt':'x'}" };

/* ---- the table ---- */

/* All that a request holds, except its source. */
static char *dump(const Request *q)
{
    char *s;
    size_t n;
    FILE *f = open_memstream(&s, &n);
    assert_non_null(f);
    char *parts[6] = { json_dumps(q->messages, JSON_ENCODE_ANY), json_dumps(q->handles, JSON_ENCODE_ANY),
                       json_dumps(q->tools, JSON_ENCODE_ANY), json_dumps(q->kwargs, JSON_ENCODE_ANY),
                       json_dumps(q->schema, JSON_ENCODE_ANY), json_dumps(q->items, JSON_ENCODE_ANY) };
    for (size_t i = 0; i < 6; i++) {
        fprintf(f, "%s\n", parts[i] ? parts[i] : "-");
        free(parts[i]);
    }
    const rt_diffusion *x = &q->diffusion;
    fprintf(f, "drafts %d denoise %d %d %g %g %g %g %g %d %d %d\n", q->include_drafts, (int) x->steps,
            (int) x->stability, x->confidence, x->t_max, x->t_min, x->entropy_bound, x->trim, (int) x->trim_from,
            x->lock, (int) x->mask);
    fprintf(f, "%s %d%d%d%d%d%d choice %d %s %d %d\n", q->model, q->stream, q->include_usage, q->return_progress,
            q->return_tokens, q->return_drafted, q->timings_per_token, (int) q->call_choice,
            q->call_name ? q->call_name : "", q->parallel_calls, q->continue_final);
    if (q->infill.is)
        fprintf(f, "infill %.*s|%.*s extra %zu\n", (int) q->infill.n_prefix, q->infill.prefix, (int) q->infill.n_suffix,
                q->infill.suffix, json_array_size(q->infill.extra));
    fprintf(f, "lines %d %lld fields %zu load %d\n", (int) q->n_indent, (long long) q->predict_ms,
            json_array_size(q->response_fields), q->only_load);
    for (size_t i = 0; i < q->n_prompt; i++)
        fprintf(f, "prompt %.*s %zu %d\n", (int) q->prompt[i].n, q->prompt[i].text ? q->prompt[i].text : "",
                q->prompt[i].n_ids, q->prompt[i].ids ? (int) q->prompt[i].ids[0] : -1);
    fprintf(f, "%d%d%d T %g %g %g %g %g %g %d %d %llu %d eos %d\n", q->echo, q->parse_special,
            q->show_special, q->sampling.temperature, q->sampling.top_p, q->sampling.min_p, q->sampling.repetition,
            q->sampling.frequency, q->sampling.presence, (int) q->sampling.top_k, (int) q->sampling.rep_window,
            (unsigned long long) q->sampling.seed, q->has_seed, q->ignore_eos);
    for (size_t i = 0; i < q->n_bias; i++)
        fprintf(f, "bias %d %.*s %g\n", (int) q->bias[i].id, (int) q->bias[i].n, q->bias[i].text ? q->bias[i].text : "",
                q->bias[i].add);
    for (size_t i = 0; i < q->n_stop; i++) fprintf(f, "stop %s\n", q->stop[i]);
    fprintf(f, "n %d max %lld log %d %d form %d %s %s\n", (int) q->n, (long long) q->max_tokens, q->logprobs,
            (int) q->top_logprobs, (int) q->constraint, q->grammar ? q->grammar : "",
            q->constraint_field ? q->constraint_field : "");
    fprintf(f, "think %d %lld %lld %s show %d %d %d\n", q->thinking, (long long) q->think_budget,
            (long long) q->reply_budget, q->effort ? q->effort : "", q->show_reasoning, q->think_inline,
            q->reason_handle);
    fprintf(f, "cache %d spec %d store %d %s\n", q->cached, (int) q->spec_budget, q->store,
            q->previous_response ? q->previous_response : "");
    fclose(f);
    return s;
}

/* A value that has an effect, for each honoured field; then whatever else the body needs for it. `seen` is false for a
 * field whose effect a Request does not hold (a description, say). */
static const struct { const char *path, *value, *also; bool unseen; } GOOD[] = {
    { "model", "'other'", NULL, false }, { "stream", "true", NULL, false },
    { "stream_options", "{'include_usage':true}", NULL, false },
    { "stream_options.include_usage", "true", NULL, false },
    { "stream_options.include_drafts", "true", NULL, false }, { "strict_fields", "true", NULL, true },
    { "diffusion", "{'steps':2}", NULL, false }, { "diffusion.steps", "2", NULL, false },
    { "diffusion.stability", "2", NULL, false }, { "diffusion.confidence", "-1", NULL, false },
    { "diffusion.t_max", "0.5", NULL, false }, { "diffusion.t_min", "0.5", NULL, false },
    { "diffusion.entropy_bound", "0.5", NULL, false }, { "diffusion.trim", "0.5", NULL, false },
    { "diffusion.trim_from", "2", NULL, false }, { "diffusion.lock", "true", NULL, false },
    { "diffusion.mask", "2", NULL, false },
    { "n_predict", "7", NULL, false }, { "max_output_tokens", "7", NULL, false },
    { "max_completion_tokens", "7", NULL, false }, { "max_tokens", "7", NULL, false },
    { "temperature", "0.5", NULL, false }, { "top_p", "0.5", NULL, false }, { "top_k", "5", NULL, false },
    { "min_p", "0.5", NULL, false },
    { "seed", "5", NULL, false }, { "frequency_penalty", "0.5", NULL, false },
    { "presence_penalty", "0.5", NULL, false }, { "rep_pen", "1.5", NULL, false },
    { "repeat_penalty", "1.5", NULL, false }, { "repetition_penalty", "1.5", NULL, false },
    { "repeat_last_n", "5", NULL, false },
    { "rep_window", "5", NULL, false }, { "logit_bias", "{'5':1}", NULL, false }, { "stop", "['x']", NULL, false },
    { "stop_sequences", "['x']", NULL, false }, { "ignore_eos", "true", NULL, false }, { "n", "2", NULL, false },
    { "best_of", "1", NULL, true },
    { "top_logprobs", "2", "'logprobs':true", false }, { "response_format", "{'type':'json_object'}", NULL, false },
    { "response_format.type", "'json_object'", NULL, false },
    { "response_format.schema", "{'type':'object','title':'t'}", "'response_format.type':'json_object'", false },
    { "response_format.json_schema", "{'schema':true}", "'response_format.type':'json_schema'", false },
    { "response_format.json_schema.name", "'x'", "'response_format.type':'text'", true },
    { "response_format.json_schema.description", "'x'", "'response_format.type':'text'", true },
    { "response_format.json_schema.strict", "true", "'response_format.type':'text'", true },
    { "response_format.json_schema.schema", "{'type':'string'}", "'response_format.type':'json_schema'", false },
    { "text", "{'format':{'type':'json_object'}}", NULL, false },
    { "text.format", "{'type':'json_object'}", NULL, false }, { "text.format.type", "'json_object'", NULL, false },
    { "text.format.name", "'x'", "'text.format.type':'text'", true }, { "metadata", "{'a':'b'}", NULL, true },
    { "text.format.description", "'x'", "'text.format.type':'text'", true },
    { "text.format.strict", "true", "'text.format.type':'text'", true },
    { "text.format.schema", "{'type':'string'}", "'text.format.type':'json_schema'", false },
    { "output_format", "{'type':'json_schema','schema':true}", NULL, false },
    { "output_format.type", "'json_schema'", "'output_format.schema':true", false },
    { "output_format.schema", "true", "'output_format.type':'json_schema'", false },
    { "output_config", "{'effort':'low'}", NULL, false }, { "output_config.effort", "'low'", NULL, false },
    { "output_config.format", "{'type':'json_schema','schema':true}", NULL, false },
    { "output_config.format.type", "'json_schema'", "'output_config.format.schema':true", false },
    { "output_config.format.schema", "true", "'output_config.format.type':'json_schema'", false },
    { "json_schema", "{'type':'string'}", NULL, false }, { "grammar", "'root ::= .'", NULL, false },
    { "guided_json", "{'type':'string'}", NULL, false }, { "guided_regex", "'a+'", NULL, false },
    { "guided_choice", "['a','b']", NULL, false }, { "guided_grammar", "'root ::= .'", NULL, false },
    { "guided_json_object", "true", NULL, false }, { "structured_outputs", "{'json_object':true}", NULL, false },
    { "structured_outputs.json", "'{}'", NULL, false }, { "structured_outputs.regex", "'a+'", NULL, false },
    { "structured_outputs.choice", "['a']", NULL, false },
    { "structured_outputs.grammar", "'root ::= .'", NULL, false },
    { "structured_outputs.json_object", "true", NULL, false },
    { "n_probs", "2", NULL, false }, { "format", "'json'", NULL, false },
    { "suffix", "'y'", NULL, false }, { "input_prefix", "'y'", NULL, false },
    { "input_suffix", "'y'", NULL, false }, { "input_extra", "[{'text':'t'}]", NULL, false },
    { "raw", "true", NULL, false }, { "n_indent", "4", NULL, false }, { "t_max_predict_ms", "9", NULL, false },
    { "samplers", "['top_k']", NULL, false }, { "response_fields", "['content']", NULL, false },
    { "options", "{'temperature':0.5}", NULL, false }, { "options.num_predict", "7", NULL, false },
    { "options.temperature", "0.5", NULL, false }, { "options.top_p", "0.5", NULL, false },
    { "options.top_k", "5", NULL, false }, { "options.min_p", "0.5", NULL, false },
    { "options.seed", "5", NULL, false }, { "options.frequency_penalty", "0.5", NULL, false },
    { "options.presence_penalty", "0.5", NULL, false }, { "options.repeat_penalty", "1.5", NULL, false },
    { "options.repeat_last_n", "5", NULL, false }, { "options.stop", "['x']", NULL, false },
    { "prompt", "'y'", NULL, false }, { "echo", "true", NULL, false }, { "parse_special", "false", NULL, false },
    { "special", "true", NULL, false },
    { "messages", "[{'role':'user','content':'y'}]", NULL, false }, { "system", "'s'", NULL, false },
    { "input", "'y'", NULL, false }, { "instructions", "'s'", NULL, false },
    { "previous_response_id", "'resp_old'", NULL, false },
    { "continue_final_message", "true", "'messages':[{'role':'assistant','content':'x'}]", false },
    { "add_generation_prompt", "true", NULL, true }, { "chat_template_kwargs", "{'a':1}", NULL, false },
    { "parallel_tool_calls", "false", NULL, false }, { "functions", "[{'name':'f'}]", NULL, false },
    { "function_call", "'none'", NULL, false }, { "reasoning_effort", "'low'", NULL, false },
    { "reasoning", "{'effort':'low'}", NULL, false }, { "reasoning.effort", "'low'", NULL, false },
    { "reasoning.enabled", "false", "'reasoning.effort':'low'", false }, { "reasoning.max_tokens", "9", NULL, false },
    { "reasoning.exclude", "true", NULL, false },
    { "reasoning.generate_summary", "'auto'", NULL, false }, { "reasoning.summary", "'auto'", NULL, false },
    { "thinking", "{'type':'enabled'}", NULL, false }, { "thinking.type", "'enabled'", NULL, false },
    { "thinking.budget_tokens", "9", NULL, false },
    { "thinking.reply_budget", "9", NULL, false }, { "thinking.display", "'omitted'", NULL, false },
    { "thinking_budget_tokens", "9", NULL, false }, { "think", "true", NULL, false },
    { "enable_thinking", "true", NULL, false }, { "reasoning_format", "'none'", NULL, false },
    { "return_tokens", "true", NULL, false }, { "return_drafted", "true", NULL, false },
    { "timings_per_token", "true", NULL, false }, { "return_progress", "true", NULL, false },
    { "cache_prompt", "false", NULL, false }, { "prefix_cache", "{'scope':'off'}", NULL, false },
    { "prefix_cache.scope", "'off'", NULL, false },
    { "speculative", "{'budget':0}", NULL, false }, { "speculative.mode", "'off'", NULL, false },
    { "speculative.verify_width", "1", NULL, false }, { "speculative.budget", "0", NULL, false },
    { "store", "false", NULL, false },
    { "include", "['reasoning.encrypted_content']", NULL, false },
};

/* Sets body.a.b to a value and takes it over. */
static void set_path(json_t *body, const char *path, json_t *value)
{
    const char *dot = strchr(path, '.');
    char first[64];
    if (!dot) {
        assert_int_equal(json_object_set_new(body, path, value), 0);
        return;
    }
    snprintf(first, sizeof first, "%.*s", (int) (dot - path), path);
    if (!json_is_object(json_object_get(body, first))) json_object_set_new(body, first, json_object());
    set_path(json_object_get(body, first), dot + 1, value);
}

static void set_also(json_t *body, const char *also)
{
    char text[512];
    const char *key;
    json_t *more, *v;
    if (!also) return;
    snprintf(text, sizeof text, "{%s}", also);
    more = json_of(text);
    json_object_foreach(more, key, v) set_path(body, key, json_incref(v));
    json_decref(more);
}

static const char *good_value(Dialect d, const Field *f, const char **also, bool *unseen)
{
    *also = NULL;
    *unseen = false;
    if (strcmp(f->path, "logprobs") == 0) return f->dialects & IN_CHAT ? "true" : "3";
    if (strcmp(f->path, "top_logprobs") == 0 && d == DIALECT_RESPONSES) return "2";
    if (strcmp(f->path, "stream") == 0 && is_ollama(d)) return "false";
    if (strcmp(f->path, "tools") == 0) return NULL;
    if (strcmp(f->path, "tool_choice") == 0) return f->dialects & IN_MESSAGES ? "{'type':'none'}" : "'none'";
    for (size_t i = 0; i < sizeof GOOD / sizeof *GOOD; i++)
        if (strcmp(GOOD[i].path, f->path) == 0) {
            *also = GOOD[i].also;
            *unseen = GOOD[i].unseen;
            return GOOD[i].value;
        }
    print_error("%s is honoured, and the test knows no value for it\n", f->path);
    fail_msg("a field without a test");
    return NULL;
}

/* Those of a server whose model has the field. */
static RequestDefaults defaults_for(const Field *f)
{
    RequestDefaults d = DEFAULTS;
    d.denoises = strncmp(f->path, "diffusion", 9) == 0 || strcmp(f->path, "stream_options.include_drafts") == 0;
    return d;
}

/* Reads the smallest body with one more field; expects a status. */
static Request *try_field(Dialect d, const Field *f, json_t *value, const char *also, HttpError *e, int status)
{
    const RequestDefaults defaults = defaults_for(f);
    json_t *body = json_of(LEAST[d]);
    Request *q;
    set_also(body, also);
    set_path(body, f->path, value);
    bool good = request_read(&q, d, body, NULL, &defaults, e);
    if ((good ? 200 : e->status) != status) {
        char *text = json_dumps(body, 0);
        print_error("%s: %s in %s gave %d (%s), expected %d\n", text, f->path, NAMES[d], good ? 200 : e->status,
                    e->message, status);
        free(text);
        fail_msg("a field");
    }
    json_decref(body);
    return q;
}

static void honoured_field(Dialect d, const Field *f)
{
    if (strcmp(f->path, "stream_options") == 0 && d != DIALECT_COMPLETIONS && d != DIALECT_CHAT)
        return;                                    /* include_usage, its value here, has no meaning there */
    HttpError e;
    const char *also;
    bool unseen;
    const char *value = good_value(d, f, &also, &unseen);
    if (!value)
        value = d == DIALECT_CHAT || d == DIALECT_OLLAMA_CHAT ? "[{'type':'function','function':{'name':'f'}}]"
                : d == DIALECT_RESPONSES
                ? "[{'type':'function','name':'f'}]" : "[{'name':'f','input_schema':{}}]";
    Request *with = try_field(d, f, json_of(value), also, &e, 200);
    assert_int_equal(json_array_size(with->ignored), 0);
    const RequestDefaults defaults = defaults_for(f);
    json_t *body = json_of(LEAST[d]);
    Request *without;
    char *a = dump(with), *b;
    set_also(body, also);
    /* the rest alone is not a valid request: then the field certainly has an effect */
    if (!request_read(&without, d, body, NULL, &defaults, &e)) {
        b = strdup("");
    } else {
        b = dump(without);
    }
    if ((strcmp(a, b) == 0) != unseen) {
        print_error("%s in %s: %s\n", f->path, NAMES[d],
                    unseen ? "is said to have no effect on a request" : "had no effect");
        fail_msg("a field without effect");
    }
    free(a);
    free(b);
    request_free(with);
    request_free(without);
    json_decref(body);
}

/* null equals absence; a wrong type and a value out of range are refused, naming the field. */
static void wrong_values(Dialect d, const Field *f)
{
    static const struct {
        unsigned type;
        const char *json;
    } TYPES[] = { { TYPE_BOOL, "true" }, { TYPE_INT | TYPE_NUMBER, "1" }, { TYPE_NUMBER, "1.5" }, { TYPE_TEXT, "'x'" },
                  { TYPE_LIST, "[]" }, { TYPE_OBJECT, "{}" } };
    HttpError e;
    static const char *const REQUIRED[] = { "messages", "input", "prompt", "input_prefix" };
    bool required = false;
    for (size_t i = 0; i < sizeof REQUIRED / sizeof *REQUIRED; i++) required |= strcmp(f->path, REQUIRED[i]) == 0;
    if (!required && !strstr(f->path, "format.")) request_free(try_field(d, f, json_null(), NULL, &e, 200));
    for (size_t i = 0; i < sizeof TYPES / sizeof *TYPES; i++) {
        if (f->types & TYPES[i].type) continue;
        try_field(d, f, json_of(TYPES[i].json), NULL, &e, 400);
        assert_string_equal(e.param, f->path);
    }
    if (!(f->types & (TYPE_INT | TYPE_NUMBER))) return;
    json_t *below = f->types & TYPE_INT ? json_integer((json_int_t) f->lo - 1) : json_real(f->lo - 0.5);
    try_field(d, f, below, NULL, &e, 400);
    assert_string_equal(e.param, f->path);
    if (f->hi > 9e17) return;
    try_field(d, f, f->types & TYPE_INT ? json_integer((json_int_t) f->hi + 1) : json_real(f->hi * 1.01), NULL,
              &e, 400);
    assert_string_equal(e.param, f->path);
}

static void refused_field(Dialect d, const Field *f)
{
    HttpError e;
    char neutral[128];
    request_free(try_field(d, f, json_null(), NULL, &e, 200));
    for (const char *s = f->values; *s; s += *s == '|') {
        size_t n = strcspn(s, "|");
        snprintf(neutral, sizeof neutral, "%.*s", (int) n, s);
        Request *q = try_field(d, f, json_loads(neutral, JSON_DECODE_ANY, NULL), NULL, &e, 200);
        assert_int_equal(json_array_size(q->ignored), 0);
        request_free(q);
        s += n;
    }
    static const char *const OTHERS[] = { "12345", "'other'", "{'a':1}", "['x']" };
    for (size_t i = 0; i < 4; i++) {
        try_field(d, f, json_of(OTHERS[i]), NULL, &e, 400);
        assert_string_equal(e.param, f->path);
        assert_non_null(strstr(e.message, f->path));
    }
}

static void ignored_field(Dialect d, const Field *f)
{
    HttpError e;
    static const char *const VALUES[] = { "1", "'x'", "[]", "{'a':1}", "true" };
    for (size_t i = 0; i < 5; i++) {
        Request *q = try_field(d, f, json_of(VALUES[i]), NULL, &e, 200);
        assert_int_equal(json_array_size(q->ignored), 1);
        assert_string_equal(json_string_value(json_array_get(q->ignored, 0)), f->path);
        request_free(q);
    }
    json_t *body = json_of(LEAST[d]);
    Request *q;
    set_path(body, f->path, json_true());
    set_path(body, "strict_fields", json_true());
    assert_false(request_read(&q, d, body, NULL, &DEFAULTS, &e));
    assert_string_equal(e.param, f->path);
    json_decref(body);
}

static void table(void **state)
{
    (void) state;
    size_t n, walked = 0;
    const Field *all = fields_all(&n);
    for (size_t i = 0; i < n; i++)
        for (Dialect d = 0; d < DIALECTS; d++) {
            if (!(all[i].dialects & 1u << d)) continue;
            walked++;
            if (all[i].role == FIELD_HONOURED) {
                honoured_field(d, &all[i]);
                wrong_values(d, &all[i]);
            } else if (all[i].role == FIELD_REFUSED) refused_field(d, &all[i]);
            else ignored_field(d, &all[i]);
        }
    assert_true(walked > 900);
}

/* The beginning of a field's row in doc/api.md, up to its values. */
static void write_row(FILE *f, const Field *k)
{
    static const char *const ROLES[] = { "honoured", "refused", "ignored" };
    static const struct {
        unsigned type;
        const char *name;
    } TYPES[] = { { TYPE_BOOL, "bool" }, { TYPE_INT, "whole number" }, { TYPE_NUMBER, "number" },
                  { TYPE_TEXT, "string" }, { TYPE_LIST, "list" }, { TYPE_OBJECT, "object" } };
    const char *between = "",
               *values = k->values && (k->role == FIELD_HONOURED || strcmp(k->values, "null") != 0) ? k->values : "";
    fprintf(f, "| `%s` | ", k->path);
    const bool all = k->dialects == (1u << DIALECTS) - 1;
    for (int d = 0; d < DIALECTS && !all; d++)
        if (k->dialects & 1u << d) fputc("CHRMLIOG"[d], f);
    if (all) fputs("all", f);
    fprintf(f, " | %s |", ROLES[k->role]);
    if (k->role != FIELD_HONOURED && !*values) return;
    fputc(' ', f);
    for (size_t i = 0; k->role == FIELD_HONOURED && i < sizeof TYPES / sizeof *TYPES; i++) {
        if (!(k->types & TYPES[i].type)) continue;
        fprintf(f, "%s%s", between, TYPES[i].name);
        between = " or ";
    }
    bool number = k->types & (TYPE_INT | TYPE_NUMBER);
    if (number && k->hi < 2e9) fprintf(f, ", %g to %g", k->lo, k->hi);
    else if (number) fprintf(f, ", at least %g", k->lo);
    else if (k->hi > 0 && !*values) fprintf(f, ", at most %.0f %s", k->hi, k->types & TYPE_TEXT ? "bytes" : "elements");
    fputs(*values ? k->role == FIELD_HONOURED ? ": " : "only " : "", f);
    for (size_t n; *values; values += n + (values[n] == '|')) {
        n = strcspn(values, "|");
        fprintf(f, "`%.*s`%s", (int) n, values, !values[n] ? "" : k->role == FIELD_HONOURED ? " " : " or ");
    }
    fputs(" |", f);
}

/* doc/api.md says about every field what the table says. */
static void documented(void **state)
{
    (void) state;
    size_t n, found = 0;
    const Field *all = fields_all(&n);
    char *text = read_file("doc/api.md");
    assert_non_null(text);
    for (size_t i = 0; i < n; i++) {
        char *row;
        size_t len;
        FILE *f = open_memstream(&row, &len);
        assert_non_null(f);
        write_row(f, &all[i]);
        fclose(f);
        if (strstr(text, row)) found++;
        else print_error("doc/api.md lacks a row that begins with\n%s\n", row);
        free(row);
    }
    free(text);
    assert_int_equal(found, n);
}

static void unknown_fields(void **state)
{
    (void) state;
    Request *q = read_good(DIALECT_CHAT, "{'messages':[{'role':'user','content':'x','odd':1}],'nonsense':1,"
                           "'absent':null,'thinking':{'odd':2},'tools':[{'type':'web_search'},{'type':'function',"
                           "'function':{'name':'f','odd':1}}]}");
    json_t *want = json_of("['nonsense','thinking.odd','messages[0].odd','tools[0]','tools[1].function.odd']");
    if (!json_equal(q->ignored, want)) print_error("%s\n", json_dumps(q->ignored, 0));
    assert_true(json_equal(q->ignored, want));
    json_decref(want);
    request_free(q);
    json_t *many = json_of(LEAST[DIALECT_CHAT]);
    char name[32];
    for (int i = 0; i < 500; i++) {
        snprintf(name, sizeof name, "odd_%d", i);
        json_object_set_new(many, name, json_true());
    }
    HttpError e;
    assert_true(request_read(&q, DIALECT_CHAT, many, NULL, &DEFAULTS, &e));
    assert_int_equal(json_array_size(q->ignored), IGNORED_MAX);
    request_free(q);
    for (int i = 500; i < 1200; i++) {
        snprintf(name, sizeof name, "odd_%d", i);
        json_object_set_new(many, name, json_true());
    }
    assert_false(request_read(&q, DIALECT_CHAT, many, NULL, &DEFAULTS, &e));
    json_decref(many);
}

/* ---- conversations ---- */

#include "serve/dialect_cases.h"

static void conversations(void **state)
{
    (void) state;
    for (size_t i = 0; i < sizeof TALKS / sizeof *TALKS; i++) {
        Request *q = read_good(TALKS[i].dialect, TALKS[i].body);
        json_t *want = json_of(TALKS[i].messages), *tools = TALKS[i].tools ? json_of(TALKS[i].tools) : NULL;
        if (!json_equal(q->messages, want) || (tools && !json_equal(q->tools, tools))) {
            print_error("%s\n  gave     %s\n  expected %s\n  tools    %s\n", TALKS[i].body, json_dumps(q->messages, 0),
                        TALKS[i].messages, json_dumps(q->tools, JSON_ENCODE_ANY));
            fail_msg("a conversation");
        }
        assert_int_equal(json_array_size(q->handles), json_array_size(q->messages));
        json_decref(want);
        json_decref(tools);
        request_free(q);
    }
}

static void refusals(void **state)
{
    (void) state;
    for (size_t i = 0; i < sizeof REFUSALS / sizeof *REFUSALS; i++) {
        HttpError e;
        Request *q;
        bool good = read_json(&q, REFUSALS[i].dialect, REFUSALS[i].body, &e);
        if (good || e.status != 400 || strcmp(e.param, REFUSALS[i].param) != 0 ||
            !strstr(e.message, REFUSALS[i].says)) {
            print_error("%s\n  gave     %d %s: %s\n  expected %s: %s\n", REFUSALS[i].body, good ? 200 : e.status,
                        e.param, e.message, REFUSALS[i].param, REFUSALS[i].says);
            fail_msg("a refusal");
        }
        assert_null(q);
    }
}

/* What a field means beyond its own value: one line per case, an excerpt of the dump. */
static void meanings(void **state)
{
    (void) state;
    for (size_t i = 0; i < sizeof MEANINGS / sizeof *MEANINGS; i++) {
        Request *q = read_good(MEANINGS[i].dialect, MEANINGS[i].body);
        char *s = dump(q);
        for (char *p = s; *p; p++)
            if (*p == '"') *p = '\'';
        if (!strstr(s, MEANINGS[i].says)) print_error("%s\n%s\n  lacks %s\n", MEANINGS[i].body, s, MEANINGS[i].says);
        assert_non_null(strstr(s, MEANINGS[i].says));
        free(s);
        request_free(q);
    }
}

static void handles_and_headers(void **state)
{
    (void) state;
    HttpError e;
    Request *q = read_good(DIALECT_RESPONSES, "{'input':[{'role':'user','content':'a'},{'type':'reasoning',"
                           "'summary':[],'encrypted_content':'v1.abc'},{'role':'assistant','content':'b'},"
                           "{'role':'user','content':'c'}]}");
    json_t *want = json_of("[null,'v1.abc',null]");
    assert_true(json_equal(q->handles, want));
    request_free(q);
    json_decref(want);
    q = read_good(DIALECT_MESSAGES, "{'messages':[{'role':'user','content':'a'},{'role':'assistant',"
                  "'content':[{'type':'thinking','thinking':'','signature':'v1.xyz'},{'type':'text','text':'b'}]},"
                  "{'role':'user','content':'c'}]}");
    assert_string_equal(json_string_value(json_array_get(q->handles, 1)), "v1.xyz");
    request_free(q);
    json_t *body = json_of("{'messages':[{'role':'user','content':'a'}],'prompt_cache_key':'key'}");
    assert_true(request_read(&q, DIALECT_MESSAGES, body,
                             &(RequestHeaders) { "x,model-context-window-exceeded-2025-08-26" }, &DEFAULTS, &e));
    assert_true(q->beta_context_window);
    request_free(q);
    assert_true(request_read(&q, DIALECT_MESSAGES, body, NULL, &DEFAULTS, &e));
    assert_false(q->beta_context_window);
    request_free(q);
    json_decref(body);
}

static void tools_and_back(void **state)
{
    (void) state;
    Request *q = read_good(DIALECT_RESPONSES,
                           "{'input':'x','tools':[{'type':'namespace','name':'mcp','tools':[{'type':'function',"
                           "'name':'f'}]},{'type':'custom','name':'apply_patch'},{'type':'local_shell'}],"
                           "'tool_choice':{'type':'function','name':'f'}}");
    const RequestTool *t = request_tool(q, "mcp__f", 6);
    assert_non_null(t);
    assert_string_equal(t->wire_name, "f");
    assert_string_equal(t->wire_namespace, "mcp");
    assert_string_equal(q->call_name, "mcp__f");
    assert_int_equal(request_tool(q, "apply_patch", 11)->kind, TOOL_CUSTOM);
    assert_int_equal(request_tool(q, "local_shell", 11)->kind, TOOL_SHELL);
    assert_null(request_tool(q, "f", 1));
    request_free(q);
}

/* What the model's template does not show is named, unless it has an effect all the same. */
static void templates(void **state)
{
    (void) state;
    static const struct { Dialect d; const char *body, *ignored; } CASES[] = {
#define TOOL "'tools':[{'type':'function','function':{'name':'f'}}]"
        { DIALECT_CHAT, "{" ASK "," TOOL "}", "['tools']" },
        { DIALECT_CHAT, "{" ASK "," TOOL ",'tool_choice':'required'}", "[]" },
        { DIALECT_CHAT, "{" ASK "," TOOL ",'tool_choice':'none'}", "['tools']" },
        { DIALECT_CHAT, "{" ASK ",'functions':[{'name':'f'}]}", "['functions']" },
        { DIALECT_CHAT, "{" ASK ",'tools':[{'type':'function','function':{'name':'f','strict':true}}]}", "[]" },
        { DIALECT_CHAT, "{" ASK ",'tools':[]}", "[]" },
        { DIALECT_RESPONSES, "{'input':'x','tools':[{'type':'function','name':'f'}],'reasoning':{'effort':'low'}}",
          "['reasoning','tools']" },
        { DIALECT_MESSAGES, "{" ASK ",'thinking':{'type':'enabled','budget_tokens':9},"
          "'output_config':{'effort':'low'}}", "['output_config.effort','thinking']" },
        { DIALECT_CHAT, "{" ASK ",'enable_thinking':true}", "['enable_thinking']" },
        { DIALECT_CHAT, "{" ASK ",'chat_template_kwargs':{'enable_thinking':true}}",
          "['chat_template_kwargs.enable_thinking']" },
        { DIALECT_CHAT, "{" ASK ",'enable_thinking':false,'reasoning_effort':'none'}", "[]" },
        { DIALECT_CHAT, "{'messages':[{'role':'assistant','content':'<think>'}],'continue_final_message':true,"
          "'enable_thinking':true}", "[]" },
    };
    RequestDefaults plain = DEFAULTS;
    plain.no_tools = plain.no_thinking = true;
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        HttpError e;
        Request *q;
        json_t *body = json_of(CASES[i].body), *want = json_of(CASES[i].ignored);
        assert_true(request_read(&q, CASES[i].d, body, NULL, &plain, &e));
        if (!json_equal(q->ignored, want))
            fail_msg("%s: ignored %s, expected %s", CASES[i].body, json_dumps(q->ignored, 0), CASES[i].ignored);
        json_decref(want);
        request_free(q);
        assert_true(request_read(&q, CASES[i].d, body, NULL, &DEFAULTS, &e));
        assert_int_equal(json_array_size(q->ignored), 0);
        json_decref(body);
        request_free(q);
    }
}

/* Lists that are too long, and bodies that are not objects. */
static void limits(void **state)
{
    (void) state;
    HttpError e;
    Request *q;
    static const struct { Dialect d; const char *key, *element; size_t n; } LONG[] = {
        { DIALECT_CHAT, "messages", "{'role':'user','content':'x'}", 20001 },
        { DIALECT_MESSAGES, "messages", "{'role':'user','content':'x'}", 20001 },
        { DIALECT_RESPONSES, "input", "{'role':'user','content':'x'}", 20001 },
        { DIALECT_CHAT, "tools", "{'type':'function','function':{'name':'f'}}", 1025 },
        { DIALECT_RESPONSES, "tools", "{'type':'function','name':'f'}", 1025 }, { DIALECT_CHAT, "stop", "'x'", 17 },
        { DIALECT_CHAT, "logit_bias", "[1,1]", 301 },
        { DIALECT_COMPLETIONS, "prompt", "'x'", 129 },
    };
    for (size_t i = 0; i < sizeof LONG / sizeof *LONG; i++) {
        json_t *body = json_of(LEAST[LONG[i].d]), *list = json_array(), *element = json_of(LONG[i].element);
        for (size_t k = 0; k < LONG[i].n; k++) json_array_append(list, element);
        json_object_set_new(body, LONG[i].key, list);
        assert_false(request_read(&q, LONG[i].d, body, NULL, &DEFAULTS, &e));
        assert_int_equal(e.status, 400);
        assert_string_equal(e.param, LONG[i].key);
        json_decref(element);
        json_decref(body);
    }
    static const char *const NOT[] = { "[]", "1", "'x'", "null", "true" };
    for (Dialect d = 0; d < DIALECTS; d++)
        for (size_t i = 0; i < 5; i++) {
            assert_false(read_json(&q, d, NOT[i], &e));
            assert_int_equal(e.status, 400);
        }
    RequestDefaults strict = DEFAULTS;
    strict.strict_model = strict.denoises = strict.no_infill = true;
    static const struct {
        const char *body;
        int status;
    } STRICT[] = { { "{'model':'tiny','messages':[{'role':'user','content':''}]}", 0 },
                   { "{'model':'other','messages':[{'role':'user','content':''}]}", 0 },
                   { "{'model':'gpt','messages':[{'role':'user','content':''}]}", 404 },
                   { "{'logprobs':true,'messages':[{'role':'user','content':''}]}", 400 },
                   { "{'response_format':{'type':'json_object'},'messages':[{'role':'user','content':''}]}", 400 } };
    for (size_t i = 0; i < sizeof STRICT / sizeof *STRICT; i++) {
        json_t *body = json_of(STRICT[i].body);
        assert_int_equal(request_read(&q, DIALECT_CHAT, body, NULL, &strict, &e), STRICT[i].status == 0);
        assert_int_equal(e.status, STRICT[i].status);
        request_free(q);
        json_decref(body);
    }
    static const struct { Dialect d; const char *body; int status; } MORE[] = {
        { DIALECT_OLLAMA_CHAT, "{'model':'tiny:latest'}", 0 }, { DIALECT_OLLAMA_CHAT, "{'model':'other'}", 0 },
        { DIALECT_OLLAMA_CHAT, "{'model':'tiny:8b'}", 404 }, { DIALECT_CHAT, "{'model':'tiny:latest'}", 404 },
        { DIALECT_INFILL, "{'input_prefix':'x'}", 501 }, { DIALECT_COMPLETIONS, "{'prompt':'x','suffix':'y'}", 501 },
        { DIALECT_OLLAMA_GENERATE, "{'prompt':'x','suffix':'y'}", 501 },
        { DIALECT_COMPLETIONS, "{'prompt':'x','suffix':''}", 0 },
    };
    for (size_t i = 0; i < sizeof MORE / sizeof *MORE; i++) {
        json_t *body = json_of(MORE[i].body);
        assert_int_equal(request_read(&q, MORE[i].d, body, NULL, &strict, &e), MORE[i].status == 0);
        assert_int_equal(e.status, MORE[i].status);
        request_free(q);
        json_decref(body);
    }
}

/* ---- golden files ---- */

typedef struct { char *text, *request, *script; Dialect dialect; } Golden;

/* The part between "--- name\n" and the next such line, malloc'd; NULL if there is none. */
static char *section(char *text, const char *name)
{
    char head[64];
    snprintf(head, sizeof head, "--- %s\n", name);
    char *at = strstr(text, head);
    if (!at) return NULL;
    at += strlen(head);
    char *end = strstr(at, "--- ");
    while (end && end > at && end[-1] != '\n') end = strstr(end + 1, "--- ");
    return end ? strndup(at, (size_t) (end - at)) : strdup(at);
}

static void count_up(void *ud, void *out, size_t n)
{
    unsigned char *next = ud;
    memset(out, ++*next, n);
}

static FinishReason reason_named(const char *s)
{
    static const char *const ALL[] = { "stop", "stop_sequence", "length", "context", "tool_calls", "degenerate",
                                       "cancelled" };
    for (FinishReason r = 0; r < 7; r++)
        if (strcmp(s, ALL[r]) == 0) return r;
    fail_msg("unknown reason %s", s);
    return 0;
}

static const char *text_at(const json_t *line, size_t i) { return json_string_value(json_array_get(line, i)); }
static int64_t int_at(const json_t *line, size_t i) { return json_integer_value(json_array_get(line, i)); }

static void play_token(Answer *a, int32_t choice, const json_t *line)
{
    AnswerAlternative top[20];
    json_t *all = json_array_get(line, 4), *one;
    size_t i;
    json_array_foreach(all, i, one) top[i] = (AnswerAlternative) {
        text_at(one, 0), json_string_length(json_array_get(one, 0)), json_number_value(json_array_get(one, 1)),
        (int32_t) int_at(one, 2) };
    const json_t *p = json_array_get(line, 3);
    answer_token(a, choice, &(AnswerToken) { .id = (int32_t) int_at(line, 1), .bytes = text_at(line, 2),
                                             .n = json_string_length(json_array_get(line, 2)),
                                             .drafted = json_is_true(json_array_get(line, 5)),
                                             .logprob = json_is_number(p) ? json_number_value(p) : (double) NAN,
                                             .top = top, .n_top = (int32_t) json_array_size(all) });
}

static void play_event(Answer *a, int32_t choice, ReplyKind kind, const json_t *line)
{
    const json_t *bytes = json_array_get(line, 1);
    answer_event(a, choice, &(ReplyEvent) { .kind = kind, .call = kind >= REPLY_CALL_BEGIN ? 0 : -1,
                                            .bytes = json_string_value(bytes), .n = json_string_length(bytes),
                                            .from = (int32_t) int_at(line, 2), .tokens = (int32_t) int_at(line, 3) });
}

static void play(Answer *a, const json_t *line, int32_t *choice)
{
    const char *what = text_at(line, 0);
    static const char *const EVENTS[] = { "reason", "text", "call", "args", "call_end" };
    for (ReplyKind k = REPLY_REASON; k <= REPLY_CALL_END; k++)
        if (strcmp(what, EVENTS[k]) == 0) {
            play_event(a, *choice, k, line);
            return;
        }
    if (strcmp(what, "usage") == 0)
        answer_usage(a, &(AnswerUsage) { .prompt = int_at(line, 1), .cached = int_at(line, 2),
                                         .cache_write = int_at(line, 3), .completion = int_at(line, 4),
                                         .reasoning = int_at(line, 5), .prompt_ms = 20, .predicted_ms = 100,
                                         .drafted = 8, .accepted = 6 });
    else if (strcmp(what, "open") == 0) answer_open(a);
    else if (strcmp(what, "choice") == 0) *choice = (int32_t) int_at(line, 1);
    else if (strcmp(what, "token") == 0) play_token(a, *choice, line);
    else if (strcmp(what, "echo") == 0) answer_echo(a, *choice, text_at(line, 1), strlen(text_at(line, 1)));
    else if (strcmp(what, "draft") == 0)
        answer_draft(a, *choice, text_at(line, 1), strlen(text_at(line, 1)), (int32_t) int_at(line, 2));
    else if (strcmp(what, "alive") == 0) answer_keepalive(a, int_at(line, 1), int_at(line, 2), 12.5, int_at(line, 3));
    else if (strcmp(what, "end") == 0) {
        const json_t *more = json_array_get(line, 2);
        answer_end(a, *choice,
                   &(AnswerEnd) { .reason = reason_named(text_at(line, 1)),
                                  .stop = json_string_value(json_object_get(more, "stop")),
                                  .reason_open = json_is_true(json_object_get(more, "reason_open")),
                                  .forced_close = json_is_true(json_object_get(more, "forced_close")),
                                  .call_cut = json_is_true(json_object_get(more, "call_cut")),
                                  .tokens = json_integer_value(json_object_get(more, "tokens")),
                                  .reason_tokens = json_integer_value(json_object_get(more, "reason_tokens")) });
    } else if (strcmp(what, "close") == 0) answer_close(a, 1700000005);
    else if (strcmp(what, "fail") == 0) {
        HttpError e;
        http_fail(&e, (int) int_at(line, 1), text_at(line, 2), NULL, "%s", text_at(line, 3));
        answer_fail(a, &e, 1700000005);
    } else if (strcmp(what, "take") != 0) fail_msg("unknown line %s", what);
}

/* The bytes that result from a script. In pieces: output is taken after every line; otherwise only at "take" lines and
 * the end. NULL: the answer ran out of memory. */
static char *answer_of(const Golden *g, bool stream, bool pieces, size_t *n)
{
    Request *q;
    HttpError e;
    json_t *body = json_loads(g->request, 0, NULL);
    if (!body) return NULL;
    json_object_set_new(body, "stream", json_boolean(stream));
    RequestDefaults defaults = DEFAULTS;
    defaults.denoises = strstr(g->request, "include_drafts");  /* the field has no effect with other models */
    bool good = request_read(&q, g->dialect, body, NULL, &defaults, &e);
    json_decref(body);
    if (!good) {
        if (e.status == 400) fail_msg("the request of a golden file was refused: %s", e.message);
        return NULL;
    }
    unsigned char counter = 0;
    Answer *a = answer_new(&(AnswerOptions) { .request = q, .version = "1", .request_id = "req_1",
                                              .created = 1700000000, .random = count_up, .ud = &counter,
                                              .handle = q->dialect == DIALECT_RESPONSES ||
                                              q->dialect == DIALECT_MESSAGES ? "v1.handle" : NULL });
    char *all = a ? calloc(1, 1) : NULL;
    int32_t choice = 0;
    *n = 0;
    for (char *line = g->script; all && line && *line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL) {
        json_t *v = json_loadb(line, strcspn(line, "\n"), JSON_ALLOW_NUL, NULL);
        if (!v && alloc_state.fail_in == 0 && alloc_state.calls == 0) fail_msg("not a list: %.100s", line);
        if (v) play(a, v, &choice);
        size_t len = 0;
        const char *s = pieces || !v || strcmp(text_at(v, 0), "take") == 0 || !strchr(line, '\n') ||
                        !strchr(line, '\n')[1] ? answer_take(a, &len) : "";
        json_decref(v);
        char *more = s ? realloc(all, *n + len + 1) : NULL;
        if (!more) {
            free(all);
            all = NULL;
            break;
        }
        all = more;
        memcpy(all + *n, s, len);
        *n += len;
        all[*n] = 0;
    }
    answer_free(a);
    request_free(q);
    return all;
}

static void open_golden(Golden *g, const char *path, const char *name)
{
    *g = (Golden) { .text = read_file(path), .dialect = DIALECTS };
    for (Dialect d = 0; d < DIALECTS; d++)
        if (strncmp(name, NAMES[d], strlen(NAMES[d])) == 0) g->dialect = d;
    assert_non_null(g->text);
    assert_int_not_equal(g->dialect, DIALECTS);
    g->request = section(g->text, "request");
    g->script = section(g->text, "script");
    assert_non_null(g->request);
    assert_non_null(g->script);
}

static void close_golden(Golden *g)
{
    free(g->text);
    free(g->request);
    free(g->script);
}

/* A body must be JSON, a stream must consist of events whose data is JSON. Arguments are as odd as the model made them:
 * a key twice, a zero in a string. */
static void check_form(const char *path, const char *s, bool stream)
{
    Error err = { 0 };
    json_t *v;
    for (const char *line = s; line && *line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL) {
        size_t n = strcspn(line, "\n");
        bool data = strncmp(line, "data: ", 6) == 0;
        if (stream && (n == 0 || line[0] == ':' || strncmp(line, "event: ", 7) == 0 ||
                       (data && strncmp(line + 6, "[DONE]", n - 6) == 0)))
            continue;
        const char *json = data ? line + 6 : line;
        Status (*read)(json_t **, const char *, size_t, const char *, Error *) = json_read;
        if (strstr(path, "_odd_")) read = json_read_loose;
        if (read(&v, json, n - (size_t) (json - line), path, &err) != ST_OK) fail_msg("%s: %s", err.text, line);
        json_decref(v);
    }
}

static void check_golden(const char *path, const char *name, bool write)
{
    Golden g;
    size_t n;
    open_golden(&g, path, name);
    char *got[2], *want[2] = { section(g.text, "stream"), section(g.text, "body") };
    for (int k = 0; k < 2; k++) {
        got[k] = answer_of(&g, k == 0, false, &n);
        assert_non_null(got[k]);
        assert_int_equal(strlen(got[k]), n);
        check_form(path, got[k], k == 0);
        if (k == 1 || !strstr(g.script, "take")) continue;
        /* taking output after every line divides the deltas differently, and everything must still fit together */
        char *pieces = answer_of(&g, true, true, &n);
        assert_non_null(pieces);
        check_form(path, pieces, true);
        free(pieces);
    }
    if (write) {
        FILE *f = fopen(path, "wb");
        assert_non_null(f);
        fprintf(f, "--- request\n%s--- script\n%s--- stream\n%s--- body\n%s\n", g.request, g.script, got[0], got[1]);
        fclose(f);
    }
    for (int k = 0; k < 2; k++) {
        if (!write) {
            assert_non_null(want[k]);
            if (k == 1) want[k][strcspn(want[k], "\n")] = 0;
            if (strcmp(got[k], want[k]) != 0)
                print_error("%s, %s:\n%s\nexpected\n%s\n", path, k ? "body" : "stream", got[k], want[k]);
            assert_string_equal(got[k], want[k]);
        }
        free(got[k]);
        free(want[k]);
    }
    close_golden(&g);
}

#define GOLDEN_FOLDER "tests/serve/golden"

static void golden(void **state)
{
    (void) state;
    const char *mode = getenv("GOLDEN");
    char path[512];
    int n = 0;
    DIR *d = opendir(GOLDEN_FOLDER);
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d)); ) {
        if (!strstr(e->d_name, ".txt")) continue;
        snprintf(path, sizeof path, GOLDEN_FOLDER "/%s", e->d_name);
        check_golden(path, e->d_name, mode && strcmp(mode, "write") == 0);
        n++;
    }
    closedir(d);
    assert_true(n >= 90);
}

/* ---- answers come back ---- */

static json_t *user_says(const char *text) { return json_pack("{s:s s:s}", "role", "user", "content", text); }

/* The request that a client would send next: the first question, the answer unchanged, results of its calls, another
 * question. */
static json_t *next_request(const Golden *g, const json_t *answer)
{
    json_t *next = json_loads(g->request, 0, NULL), *list = json_array(), *one, *results;
    size_t i;
    json_array_append_new(list, user_says("Hi"));
    if (g->dialect == DIALECT_CHAT || g->dialect == DIALECT_OLLAMA_CHAT) {
        json_t *message = g->dialect == DIALECT_CHAT
                          ? json_object_get(json_array_get(json_object_get(answer, "choices"), 0), "message")
                          : json_object_get(answer, "message");
        json_array_append(list, message);
        json_array_foreach(json_object_get(message, "tool_calls"), i, one)
            json_array_append_new(list, json_pack("{s:s s:O s:s}", "role", "tool", "tool_call_id",
                                                  json_object_get(one, "id"), "content", "R"));
    } else if (g->dialect == DIALECT_RESPONSES) {
        json_array_extend(list, json_object_get(answer, "output"));
        json_array_foreach(json_object_get(answer, "output"), i, one) {
            char type[64];
            snprintf(type, sizeof type, "%s_output", json_string_value(json_object_get(one, "type")));
            if (json_object_get(one, "call_id"))
                json_array_append_new(list, json_pack("{s:s s:O s:s}", "type", type, "call_id",
                                                      json_object_get(one, "call_id"), "output", "R"));
        }
        json_object_del(next, "previous_response_id");
    } else {
        json_array_append_new(list, json_pack("{s:s s:O}", "role", "assistant", "content",
                                              json_object_get(answer, "content")));
        results = json_array();
        json_array_foreach(json_object_get(answer, "content"), i, one)
            if (json_object_get(one, "id")) json_array_append_new(
            results, json_pack("{s:s s:O s:s}", "type", "tool_result", "tool_use_id", json_object_get(one, "id"),
                               "content", "R"));
        json_array_append_new(list, json_pack("{s:s s:o}", "role", "user", "content", results));
    }
    json_array_append_new(list, user_says("And?"));
    json_object_set_new(next, g->dialect == DIALECT_RESPONSES ? "input" : "messages", list);
    return next;
}

/* The client's next request returns all that the model said: text, reasoning and calls are there, and nothing is
 * ignored. */
static void answers_come_back(void **state)
{
    (void) state;
    char path[512];
    int n = 0;
    DIR *d = opendir(GOLDEN_FOLDER);
    for (struct dirent *e; d && (e = readdir(d)); ) {
        Golden g;
        HttpError err;
        Request *before, *after;
        if (!strstr(e->d_name, ".txt") || strstr(e->d_name, "error") || strstr(e->d_name, "load") ||
            !(strstr(e->d_name, "chat") || strstr(e->d_name, "responses") || strstr(e->d_name, "messages")))
            continue;
        snprintf(path, sizeof path, GOLDEN_FOLDER "/%s", e->d_name);
        open_golden(&g, path, e->d_name);
        char *body = section(g.text, "body");
        json_t *answer = json_loads(body, JSON_ALLOW_NUL, NULL), *first = json_loads(g.request, 0, NULL),
               *next = next_request(&g, answer);
        assert_true(request_read(&before, g.dialect, first, NULL, &DEFAULTS, &err));
        if (!request_read(&after, g.dialect, next, NULL, &DEFAULTS, &err))
            fail_msg("%s: %s: %s", e->d_name, err.param, err.message);
        if (!json_equal(before->ignored, after->ignored))
            fail_msg("%s: ignored %s", e->d_name, json_dumps(after->ignored, 0));
        size_t calls = 0, results = 0, i;
        bool text = false, reasoning = false;
        json_t *m;
        json_array_foreach(after->messages, i, m) {
            const char *role = json_string_value(json_object_get(m, "role"));
            if (strcmp(role, "tool") == 0) results++;
            if (strcmp(role, "tool") == 0) assert_non_null(json_object_get(m, "name"));
            if (strcmp(role, "assistant") != 0) continue;
            calls += json_array_size(json_object_get(m, "tool_calls"));
            text |= json_string_length(json_object_get(m, "content")) > 0;
            reasoning |= json_object_get(m, "reasoning_content") != NULL;
        }
        bool once = strcmp(e->d_name, "chat_functions.txt") == 0;      /* results of that form have no id */
        if (!once) assert_int_equal(calls, results);
        bool none_whole = strstr(e->d_name, "end_in_call") != NULL;
        assert_int_equal(calls > 0, strstr(g.script, "\"call\"") != NULL && !none_whole);
        assert_int_equal(text, strstr(g.script, "\"text\"") != NULL);
        bool hidden = strstr(e->d_name, "hidden") || strstr(e->d_name, "omitted") || strstr(e->d_name, "handle");
        assert_int_equal(reasoning, strstr(g.script, "\"reason\"") != NULL && !hidden);
        request_free(before);
        request_free(after);
        json_decref(answer);
        json_decref(first);
        json_decref(next);
        free(body);
        close_golden(&g);
        n++;
    }
    closedir(d);
    assert_true(n >= 40);
}

/* ---- the encoder's own promises ---- */

/* Bytes that arrive as parts of characters leave as whole characters, and those that never complete one as U+FFFD. */
static void characters(void **state)
{
    (void) state;
    static const struct { const char *s; size_t n, whole; } cut[] = {
        { "", 0, 0 }, { "a", 1, 1 }, { "a\xc3\xa9", 3, 3 }, { "a\xc3", 2, 1 }, { "\xe2\x82\xac", 3, 3 },
        { "\xe2\x82", 2, 0 },
        { "x\xe2", 2, 1 },
        { "\xf0\x9f\x99\x82", 4, 4 }, { "\xf0\x9f\x99", 3, 0 }, { "\xc3\xa9z", 3, 3 },
    };
    for (size_t i = 0; i < sizeof cut / sizeof *cut; i++)
        assert_int_equal(whole_characters(cut[i].s, cut[i].n), cut[i].whole);
    static const char TEXT[] = "a\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\xe2\x82";
    for (size_t step = 1; step < 6; step++) {
        Request *q = read_good(DIALECT_CHAT, "{'messages':[{'role':'user','content':'x'}],'stream':true}");
        unsigned char counter = 0;
        Answer *a = answer_new(&(AnswerOptions) { .request = q, .version = "1", .random = count_up, .ud = &counter });
        char all[64] = "";
        answer_open(a);
        for (size_t i = 0; i <= sizeof TEXT - 1; i += step) {
            size_t n, len = i + step > sizeof TEXT - 1 ? sizeof TEXT - 1 - i : step;
            if (len > 0)
                answer_event(a, 0, &(ReplyEvent) { .kind = REPLY_TEXT, .call = -1, .bytes = TEXT + i, .n = len });
            if (i + step > sizeof TEXT - 1) {
                answer_end(a, 0, &(AnswerEnd) { .reason = FINISH_STOP });
                answer_close(a, 0);
            }
            const char *s = answer_take(a, &n);
            char *copy = strndup(s, n);
            for (char *at = copy; (at = strstr(at, "\"content\":\"")); ) {
                at += strlen("\"content\":\"");
                strncat(all, at, strcspn(at, "\""));
            }
            free(copy);
        }
        assert_string_equal(all, "a\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\xef\xbf\xbd\xef\xbf\xbd");
        answer_free(a);
        request_free(q);
    }
}

static void errors(void **state)
{
    (void) state;
    static const struct { Dialect d; int status; const char *code, *want; } ALL[] = {
        { DIALECT_CHAT, 401, "invalid_api_key", "{\"error\":{\"message\":\"m "
          "\\\"q\\\"\",\"type\":\"authentication_error\",\"param\":\"p\",\"code\":\"invalid_api_key\"}}" },
        { DIALECT_RESPONSES, 500, NULL,
          "{\"error\":{\"message\":\"m \\\"q\\\"\",\"type\":\"server_error\",\"param\":\"p\",\"code\":null}}" },
        { DIALECT_MESSAGES, 413, NULL, "{\"type\":\"error\",\"error\":{\"type\":\"request_too_large\",\"message\":\"m "
          "\\\"q\\\"\"},\"request_id\":\"req_9\"}" },
        { DIALECT_MESSAGES, 503, NULL, "{\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"m "
          "\\\"q\\\"\"},\"request_id\":\"req_9\"}" },
        { DIALECT_MESSAGES, 500, NULL, "{\"type\":\"error\",\"error\":{\"type\":\"api_error\",\"message\":\"m "
          "\\\"q\\\"\"},\"request_id\":\"req_9\"}" },
        { DIALECT_MESSAGES, 501, NULL, "{\"type\":\"error\",\"error\":{\"type\":\"invalid_request_error\","
          "\"message\":\"m \\\"q\\\"\"},\"request_id\":\"req_9\"}" },
    };
    HttpError e;
    size_t n;
    for (size_t i = 0; i < sizeof ALL / sizeof *ALL; i++) {
        assert_false(http_fail(&e, ALL[i].status, ALL[i].code, "p", "m \"%s\"", "q"));
        char *s = http_error_body(ALL[i].d, &e, "req_9", &n);
        assert_int_equal(n, strlen(ALL[i].want));
        assert_memory_equal(s, ALL[i].want, n);
        free(s);
    }
    http_fail_context(&e, DIALECT_CHAT, 9000, 8192);
    char *s = http_error_body(DIALECT_CHAT, &e, NULL, &n);
    static const char WANT[] = "{\"error\":{\"message\":\"This model's maximum context length is 8192 tokens. However, "
                               "your messages resulted in 9000 tokens.\",\"type\":\"invalid_request_error\","
                               "\"param\":\"messages\",\"code\":\"context_length_exceeded\",\"n_prompt_tokens\":9000,"
                               "\"n_ctx\":8192}}";
    assert_int_equal(n, strlen(WANT));
    assert_memory_equal(s, WANT, n);
    free(s);
    http_fail_context(&e, DIALECT_MESSAGES, 9000, 8192);
    assert_string_equal(e.message, "prompt is too long: 9000 tokens > 8192 maximum");
}

/* Every allocation of a request and its answer fails once: an error or no effect, and no leak. */
static void no_memory(void **state)
{
    (void) state;
    static const char *const FILES[] = { "chat_calls", "responses_reasoning", "messages_call_after_text",
                                         "completions_logprobs", "llama_fields", "infill_text", "ollama_chat_calls",
                                         "ollama_generate_raw", "completions_choice", "responses_handle" };
    char path[256];
    for (size_t i = 0; i < sizeof FILES / sizeof *FILES; i++) {
        Golden g;
        size_t n, len;
        snprintf(path, sizeof path, GOLDEN_FOLDER "/%s.txt", FILES[i]);
        open_golden(&g, path, FILES[i]);
        char *want = answer_of(&g, true, false, &n);
        assert_non_null(want);
        long live = alloc_state.live, failed = 0;
        for (long k = 1;; k++) {
            alloc_state.fail_in = k;
            char *s = answer_of(&g, true, false, &len);
            bool reached = alloc_state.fail_in == 0;
            alloc_state.fail_in = 0;
            if (!s) failed++;
            free(s);
            if (!ALLOC_SANITIZED) assert_int_equal(alloc_state.live, live);
            if (!reached) break;
        }
        assert_true(failed > 20);
        free(want);
        close_golden(&g);
    }
}

int main(int argc, char **argv)
{
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(table),         cmocka_unit_test(documented), cmocka_unit_test(unknown_fields),
        cmocka_unit_test(conversations), cmocka_unit_test(refusals), cmocka_unit_test(meanings),
        cmocka_unit_test(handles_and_headers), cmocka_unit_test(tools_and_back), cmocka_unit_test(templates),
        cmocka_unit_test(limits),
        cmocka_unit_test(golden), cmocka_unit_test(answers_come_back),
        cmocka_unit_test(characters),    cmocka_unit_test(errors),     cmocka_unit_test(no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
