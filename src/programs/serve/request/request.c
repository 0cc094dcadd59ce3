/* Fields common to all dialects: sampling, limits, stops, response format, caching, speculation. */
#include "programs/serve/request/request_impl.h"

#include "base/json.h"
#include "base/path.h"
#include "base/ranges.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- errors ---- */

static const char *error_type(int status)
{
    switch (status) {
    case 401: return "authentication_error";
    case 403: return "permission_error";
    case 429: return "rate_limit_error";
    case 501: return "not_supported_error";
    case 503: return "unavailable_error";
    default:  return status >= 500 ? "server_error" : "invalid_request_error";
    }
}

bool http_fail(HttpError *e, int status, const char *code, const char *param, const char *format, ...)
{
    *e = (HttpError) { .status = status, .type = error_type(status), .code = code };
    snprintf(e->param, sizeof e->param, "%s", param ? param : "");
    va_list args;
    va_start(args, format);
    vsnprintf(e->message, sizeof e->message, format, args);
    va_end(args);
    return false;
}

bool http_fail_context(HttpError *e, Dialect d, int64_t n_prompt, int64_t n_ctx)
{
    static const char *const PARAM[DIALECTS] = { "prompt", "messages", "input",   "messages",
                                                 "prompt", "prompt",   "messages", "prompt" };
    long long prompt = (long long) n_prompt, ctx = (long long) n_ctx;
    if (d == DIALECT_MESSAGES)
        http_fail(e, 400, "context_length_exceeded", PARAM[d], "prompt is too long: %lld tokens > %lld maximum",
                  prompt, ctx);
    else
        http_fail(e, 400, "context_length_exceeded", PARAM[d],
                  "This model's maximum context length is %lld tokens. However, your %s resulted in %lld tokens.", ctx,
                  strcmp(PARAM[d], "prompt") == 0 ? "prompt" : "messages", prompt);
    e->n_prompt = n_prompt;
    e->n_ctx = n_ctx;
    return false;
}

bool refuse(Reader *r, const char *path, const char *format, ...)
{
    char text[ERROR_TEXT];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return http_fail(r->e, 400, NULL, path, "%s", text);
}

/* ---- helpers ---- */

Path path_of(const char *format, ...)
{
    Path p;
    va_list args;
    va_start(args, format);
    vsnprintf(p.s, sizeof p.s, format, args);
    va_end(args);
    return p;
}

json_t *keep(Reader *r, json_t *value)
{
    if (!value) r->no_memory = true;
    return value;
}

bool keep_in(Reader *r, json_t *object, const char *key, json_t *value)
{
    if (json_object_set_new(object, key, value) == 0) return true;
    r->no_memory = true;
    return false;
}

bool keep_add(Reader *r, json_t *list, json_t *value)
{
    if (json_array_append_new(list, value) == 0) return true;
    r->no_memory = true;
    return false;
}

bool text_field(Reader *r, const char **out, const json_t *object, const char *path, const char *key)
{
    json_t *v = json_object_get(object, key);
    *out = json_string_value(v);
    if (!v || json_is_null(v) || *out) return true;
    Path p = path_of("%s.%s", path, key);
    return refuse(r, p.s, "%s is not a string", p.s);
}

const char *type_field(const json_t *object)
{
    const char *s = json_string_value(json_object_get(object, "type"));
    return s ? s : "";
}

bool is_among(const char *bars, const char *s, size_t n)
{
    for (; *bars; bars += *bars == '|') {
        size_t len = strcspn(bars, "|");
        if (len == n && memcmp(bars, s, n) == 0) return true;
        bars += len;
    }
    return false;
}

void name_others(Reader *r, const json_t *object, const char *path, const char *keys)
{
    const char *key;
    json_t *v;
    json_object_foreach((json_t *) (uintptr_t) object, key, v)
        if (!json_is_null(v) && !is_among(keys, key, strlen(key))) fields_ignore(r->q, "%s.%s", path, key);
}

/* A field that for Ollama may also stand in `options`. */
static json_t *setting(const Reader *r, const char *name)
{
    json_t *v = is_ollama(r->q->dialect) ? json_object_get(json_object_get(r->body, "options"), name) : NULL;
    return v && !json_is_null(v) ? v : json_object_get(r->body, name);
}

/* ---- stops, biases ---- */

static bool read_stop(Reader *r, const char *name)
{
    Request *q = r->q;
    const json_t *v = setting(r, name);
    size_t n = json_is_string(v) ? 1 : json_array_size(v);
    for (size_t i = 0; i < n; i++) {
        const json_t *one = json_is_string(v) ? v : json_array_get(v, i);
        Path p = path_of(json_is_string(v) ? "%s" : "%s[%zu]", name, i);
        if (!json_is_string(one)) return refuse(r, p.s, "%s is not a string", p.s);
        size_t len = json_string_length(one);
        if (len == 0 || len > STOP_BYTES_MAX)
            return refuse(r, p.s, "%s has %zu bytes, expected 1 to %d", p.s, len, STOP_BYTES_MAX);
        if (q->n_stop >= STOPS_MAX) return refuse(r, name, "%s: more than %d stop strings", name, STOPS_MAX);
        if (!q->stop && !(q->stop = calloc(STOPS_MAX, sizeof *q->stop))) {
            r->no_memory = true;
            return true;
        }
        q->stop[q->n_stop++] = json_string_value(one);
    }
    return true;
}

/* A bias's token: an id, or a text that is a single token. */
static bool bias_token(Reader *r, RequestBias *b, const char *text, size_t n, int64_t id, bool is_id, const char *path)
{
    if (!is_id && n > 0 && n <= 10 && strspn(text, "0123456789") == n) {
        id = strtoll(text, NULL, 10);
        is_id = true;
    }
    if (is_id && (id < 0 || id >= r->d->vocab))
        return refuse(r, path, "%s: token %lld is not in the vocabulary of %d", path, (long long) id,
                      (int) r->d->vocab);
    if (!is_id && n == 0) return refuse(r, path, "%s: an empty text names no token", path);
    b->id = is_id ? (int32_t) id : -1;
    b->text = is_id ? NULL : text;
    b->n = is_id ? 0 : n;
    return true;
}

static bool bias_value(Reader *r, RequestBias *b, const json_t *v, const char *path)
{
    if (!json_is_number(v) && !json_is_false(v)) return refuse(r, path, "%s is neither a number nor false", path);
    double x = json_is_false(v) ? -100 : json_number_value(v);
    if (!(x >= -100 && x <= 100)) return refuse(r, path, "%s is %.15g, expected -100 to 100", path, x);
    b->add = x == -100 ? -INFINITY : (float) x;
    return true;
}

static bool read_bias(Reader *r)
{
    Request *q = r->q;
    json_t *all = json_object_get(r->body, "logit_bias"), *v;
    size_t n = json_is_object(all) ? json_object_size(all) : json_array_size(all), i;
    const char *key;
    if (n == 0) return true;
    if (n > BIASES_MAX)
        return refuse(r, "logit_bias", "logit_bias has %zu entries, expected at most %d", n, BIASES_MAX);
    if (!(q->bias = calloc(n, sizeof *q->bias))) {
        r->no_memory = true;
        return true;
    }
    if (json_is_object(all)) {
        json_object_foreach(all, key, v) {
            Path p = path_of("logit_bias.%.40s", key);
            RequestBias *b = &q->bias[q->n_bias++];
            if (!bias_token(r, b, key, strlen(key), 0, false, p.s) || !bias_value(r, b, v, p.s)) return false;
        }
    } else {
        json_array_foreach(all, i, v) {
            Path p = path_of("logit_bias[%zu]", i);
            RequestBias *b = &q->bias[q->n_bias++];
            const json_t *token = json_array_get(v, 0);
            if (json_array_size(v) != 2 || (!json_is_integer(token) && !json_is_string(token)))
                return refuse(r, p.s, "%s is not a pair of a token and a bias", p.s);
            if (!bias_token(r, b, json_string_value(token), json_string_length(token), json_integer_value(token),
                            json_is_integer(token), p.s) || !bias_value(r, b, json_array_get(v, 1), p.s))
                return false;
        }
    }
    return true;
}

/* ---- models that denoise ---- */

bool refuse_step_wise(Reader *r, const char *field)
{
    return refuse(r, field, "%s is not supported: this model does not write one token after the other", field);
}

/* What says how a single token is chosen is refused unless it changes nothing; the server's own defaults of it, which
 * the client has not asked for, have no effect. */
static bool denoising_only(Reader *r)
{
    rt_sampling *p = &r->q->sampling;
    const bool once = p->repetition == 0 || p->repetition == 1;
    const struct {
        const char *name;
        bool        off;
    } FIELDS[] = { { "top_p", p->top_p == 1 }, { "top_k", p->top_k == 0 }, { "min_p", p->min_p == 0 },
                   { "frequency_penalty", p->frequency == 0 }, { "presence_penalty", p->presence == 0 },
                   { "repetition_penalty", once }, { "repeat_penalty", once }, { "rep_pen", once },
                   { "logit_bias", r->q->n_bias == 0 } };
    const json_t *options = is_ollama(r->q->dialect) ? json_object_get(r->body, "options") : NULL;
    for (size_t i = 0; i < sizeof FIELDS / sizeof *FIELDS; i++) {
        const char *name = FIELDS[i].name;
        if (FIELDS[i].off) continue;
        if (json_object_get(options, name)) return refuse_step_wise(r, path_of("options.%s", name).s);
        if (json_object_get(r->body, name)) return refuse_step_wise(r, name);
    }
    p->top_p = p->repetition = 1;
    p->top_k = 0;
    p->min_p = p->frequency = p->presence = 0;
    return true;
}

/* ---- response format ---- */

/* Sets the constraint. Several fields may set one; a request with two is refused as contradictory. */
static bool constrain(Reader *r, ConstraintKind kind, json_t *schema, const char *grammar, const char *field)
{
    Request *q = r->q;
    if (q->constraint != CONSTRAINT_NONE)
        return refuse(r, field, "%s and %s both say what form the text has", q->constraint_field, field);
    if (r->d->denoises) return refuse_step_wise(r, field);
    q->constraint = kind;
    q->schema = json_incref(schema);
    q->grammar = grammar;
    q->constraint_field = field;
    return true;
}

static bool any_object(Reader *r, const char *field)
{
    json_t *schema = keep(r, json_pack("{s:s}", "type", "object"));
    bool good = !schema || constrain(r, CONSTRAINT_SCHEMA, schema, NULL, field);
    json_decref(schema);
    return good;
}

/* A grammar of which the texts are the choices. */
static json_t *choice_grammar(Reader *r, const json_t *choices)
{
    char *text = NULL;
    size_t n = 0, i;
    json_t *one;
    FILE *f = open_memstream(&text, &n);
    if (!f) return keep(r, NULL);
    json_array_foreach((json_t *) (uintptr_t) choices, i, one) {
        fputs(i ? " | \"" : "root ::= \"", f);
        for (const char *s = json_string_value(one); *s; s++) {
            if ((unsigned char) *s < ' ') fprintf(f, "\\x%02x", (unsigned) *s);
            else fprintf(f, *s == '"' || *s == '\\' ? "\\%c" : "%c", *s);
        }
        fputc('"', f);
    }
    json_t *grammar = fclose(f) == 0 ? json_stringn(text, n) : NULL;
    free(text);
    return keep_add(r, r->q->owned, grammar) ? grammar : NULL;
}

static bool constrain_choice(Reader *r, const json_t *choices, const char *field)
{
    size_t n = json_array_size(choices);
    if (n == 0) return refuse(r, field, "%s is empty, expected at least one text", field);
    for (size_t i = 0; i < n; i++) {
        Path p = path_of("%s[%zu]", field, i);
        if (json_string_length(json_array_get(choices, i)) == 0)
            return refuse(r, p.s, "%s is not a text of at least one byte", p.s);
    }
    const json_t *grammar = choice_grammar(r, choices);
    return !grammar || constrain(r, CONSTRAINT_GRAMMAR, NULL, json_string_value(grammar), field);
}

/* A schema, or the text of one. */
static bool constrain_json(Reader *r, json_t *schema, const char *field)
{
    Error err = { 0 };
    json_t *read = NULL;
    if (!json_is_string(schema)) return constrain(r, CONSTRAINT_SCHEMA, schema, NULL, field);
    Status st = json_read(&read, json_string_value(schema), json_string_length(schema), field, &err);
    bool good = st == ST_OK ? constrain(r, CONSTRAINT_SCHEMA, read, NULL, field)
                            : st != ST_MEMORY && refuse(r, field, "%s", err.text);
    if (st == ST_MEMORY) r->no_memory = true;
    json_decref(read);
    return good;
}

/* vLLM's forms: {json, regex, choice, grammar, json_object}, and before that fields named guided_json and so on. */
static bool read_guided(Reader *r, const json_t *o, const char *prefix)
{
    static const char *const KEYS[] = { "json", "regex", "choice", "grammar", "json_object" };
    for (int i = 0; i < 5; i++) {
        Path key = path_of("%s%s", *prefix == 'g' ? prefix : "", KEYS[i]), field = path_of("%s%s", prefix, KEYS[i]);
        json_t *v = json_object_get(o, key.s);
        if (!v || json_is_null(v) || json_is_false(v)) continue;
        json_t *name = json_string(field.s);
        const char *at = keep_add(r, r->q->owned, name) ? json_string_value(name) : "";
        bool good = i == 0 ? constrain_json(r, v, at) : i == 2 ? constrain_choice(r, v, at)
                    : i == 4 ? any_object(r, at)
                    : constrain(r, i == 1 ? CONSTRAINT_REGEX : CONSTRAINT_GRAMMAR, NULL, json_string_value(v), at);
        if (!good) return false;
    }
    return true;
}

/* {type, schema}, which every dialect has somewhere; Chat has a json_schema object around the schema. */
static bool read_format(Reader *r, const json_t *format, const char *field, const char *schema_field, bool wrapped)
{
    if (!json_is_object(format)) return true;
    const char *type = type_field(format);
    json_t *inner = wrapped ? json_object_get(format, "json_schema") : (json_t *) (uintptr_t) format, *schema;
    if (!*type) return refuse(r, field, "%s has no type", field);
    if (strcmp(type, "text") == 0) return true;
    if (strcmp(type, "json_object") == 0) {
        schema = json_object_get(format, "schema");
        return json_is_object(schema) ? constrain(r, CONSTRAINT_SCHEMA, schema, NULL, field) : any_object(r, field);
    }
    schema = json_object_get(inner, "schema");
    if (!schema && wrapped) schema = json_object_get(format, "schema");
    if (!schema || json_is_null(schema)) return refuse(r, schema_field, "%s is missing", schema_field);
    return constrain(r, CONSTRAINT_SCHEMA, schema, NULL, schema_field);
}

/* "json", or a schema. */
static bool read_ollama_format(Reader *r)
{
    json_t *format = json_object_get(r->body, "format");
    if (json_is_object(format)) return constrain(r, CONSTRAINT_SCHEMA, format, NULL, "format");
    if (json_string_length(format) == 0) return true;
    if (strcmp(json_string_value(format), "json") == 0) return any_object(r, "format");
    return refuse(r, "format", "format is \"%.60s\", expected \"json\" or a schema", json_string_value(format));
}

static bool read_form(Reader *r)
{
    const json_t *b = r->body, *schema = json_object_get(b, "json_schema"), *grammar = json_object_get(b, "grammar");
    if (!read_format(r, json_object_get(b, "response_format"), "response_format",
                     "response_format.json_schema.schema", true))
        return false;
    if (r->q->dialect == DIALECT_RESPONSES && !read_format(r, json_object_get(json_object_get(b, "text"), "format"),
                                                           "text.format", "text.format.schema", false))
        return false;
    if (r->q->dialect == DIALECT_MESSAGES &&
        (!read_format(r, json_object_get(json_object_get(b, "output_config"), "format"), "output_config.format",
                      "output_config.format.schema", false) ||
         !read_format(r, json_object_get(b, "output_format"), "output_format", "output_format.schema", false)))
        return false;
    if (is_ollama(r->q->dialect) && !read_ollama_format(r)) return false;
    if (schema && !json_is_null(schema) &&
        !constrain(r, CONSTRAINT_SCHEMA, (json_t *) (uintptr_t) schema, NULL, "json_schema"))
        return false;
    if (json_is_string(grammar) && json_string_length(grammar) > 0 &&
        !constrain(r, CONSTRAINT_GRAMMAR, NULL, json_string_value(grammar), "grammar"))
        return false;
    return read_guided(r, b, "guided_") &&
           read_guided(r, json_object_get(b, "structured_outputs"), "structured_outputs.");
}

/* ---- numbers that depend on each other ---- */

/* Penalties look back on `most` tokens at most, which matters only if there are any. */
static bool read_window(Reader *r, const json_t *window, const char *field)
{
    Request *q = r->q;
    rt_sampling *s = &q->sampling;
    if (!json_is_integer(window)) return true;
    json_int_t n = json_integer_value(window);
    bool fits = n >= 0 && n <= REP_WINDOW_MAX;
    if (!fits && ((s->repetition > 0 && s->repetition != 1) || s->frequency != 0 || s->presence != 0))
        return refuse(r, field, "%s is %lld, expected 0 to %d beside penalties", field, (long long) n, REP_WINDOW_MAX);
    s->rep_window = fits ? (int32_t) n : REP_WINDOW_MAX;
    if (n != 0) return true;
    /* an empty window; for the library 0 means the default */
    s->repetition = 1;
    s->frequency = s->presence = 0;
    return true;
}

static bool read_sampling(Reader *r)
{
    Request *q = r->q;
    const json_t *b = r->body, *seed = setting(r, "seed"), *window = json_object_get(b, "rep_window");
    if (json_is_integer(seed) && json_integer_value(seed) >= 0) {
        q->has_seed = true;
        q->sampling.seed = (uint64_t) json_integer_value(seed);
    }
    if (q->sampling.top_k < 0) q->sampling.top_k = 0;
    if (!(json_is_integer(window) ? read_window(r, window, "rep_window")
                                  : read_window(r, setting(r, "repeat_last_n"), "repeat_last_n")))
        return false;
    if (q->n > r->d->n_max) return refuse(r, "n", "n is %d, expected 1 to %d", (int) q->n, (int) r->d->n_max);
    const json_t *best = json_object_get(b, "best_of");
    if (json_is_integer(best) && json_integer_value(best) != q->n)
        return refuse(r, "best_of", "best_of is %lld, which is not supported: it may only be n, %d",
                      (long long) json_integer_value(best), (int) q->n);
    return read_stop(r, "stop") && read_stop(r, "stop_sequences") && read_bias(r);
}

static bool read_logprobs(Reader *r)
{
    Request *q = r->q;
    const json_t *b = r->body, *v = json_object_get(b, q->dialect == DIALECT_COMPLETIONS ? "logprobs" : "top_logprobs");
    if (q->dialect == DIALECT_COMPLETIONS && json_is_integer(v)) {
        q->logprobs = true;
        q->top_logprobs = (int32_t) json_integer_value(v);
    }
    const json_t *probs = json_object_get(b, "n_probs");
    if (is_llama(q->dialect) && json_integer_value(probs) > 0) {
        q->logprobs = true;
        q->top_logprobs = (int32_t) json_integer_value(probs);
    }
    if ((q->dialect == DIALECT_CHAT || is_ollama(q->dialect)) && json_is_integer(v) && !q->logprobs)
        return refuse(r, "top_logprobs", "top_logprobs needs logprobs to be true");
    if (q->logprobs && r->d->denoises) return refuse_step_wise(r, "logprobs");
    return true;
}

static void read_lengths(Reader *r)
{
    Request *q = r->q;
    int64_t most = r->d->max_tokens_limit;
    if (q->max_tokens < 0) q->max_tokens = -1;
    if (most > 0 && (q->max_tokens < 0 || q->max_tokens > most)) q->max_tokens = most;
}

static bool read_cache(Reader *r)
{
    Request *q = r->q;
    const json_t *policy = json_object_get(r->body, "prefix_cache"), *on = json_object_get(r->body, "cache_prompt");
    const char *scope = json_string_value(json_object_get(policy, "scope"));
    char end;
    int keep_last, window;
    q->cached = !json_is_false(on);
    if (!scope || strcmp(scope, "full") == 0 || strcmp(scope, "auto") == 0) return true;
    if (strcmp(scope, "off") == 0) {
        q->cached = false;
        return true;
    }
    bool good = strlen(scope) <= 20 && sscanf(scope, "auto:%7d/%7d%c", &window, &keep_last, &end) == 2 && window >= 1 &&
                window <= 1000000 && keep_last >= 1 && keep_last <= 1000000;
    if (!good)
        return refuse(r, "prefix_cache.scope",
                      "prefix_cache.scope is \"%.40s\", expected off, full, auto or auto:WINDOW/KEEP", scope);
    /* no window is needed: the whole prompt is compared with everything in the cache */
    fields_ignore(q, "prefix_cache.scope");
    return true;
}

static void read_speculative(Reader *r)
{
    Request *q = r->q;
    const json_t *o = json_object_get(r->body, "speculative"), *width = json_object_get(o, "verify_width");
    const char *mode = json_string_value(json_object_get(o, "mode"));
    if (json_is_integer(width) && !json_is_integer(json_object_get(o, "budget")))
        q->spec_budget = (int32_t) json_integer_value(width) - 1;
    if (mode && strcmp(mode, "off") == 0) q->spec_budget = 0;
    /* The trees of all requests of a pass grow from one heap, so a single request cannot choose a shape or size: it can
     * only turn speculation off. */
    if (q->spec_budget > 0)
        fields_ignore(q, json_is_integer(json_object_get(o, "budget")) ? "speculative.budget"
                                                                       : "speculative.verify_width");
    if (mode && (strcmp(mode, "chain") == 0 || strcmp(mode, "tree") == 0)) fields_ignore(q, "speculative.mode");
}

static size_t untagged(const char *name)
{
    return strlen(name) - (has_suffix(name, ":latest") ? strlen(":latest") : 0);
}

bool same_model(Dialect d, const char *given, const char *name)
{
    const size_t n = untagged(name);
    if (!is_ollama(d)) return strcmp(given, name) == 0;
    return untagged(given) == n && strncmp(given, name, n) == 0;
}

static bool read_model(Reader *r)
{
    Request *q = r->q;
    bool known = !q->model || !*q->model || same_model(q->dialect, q->model, r->d->model);
    for (size_t i = 0; i < r->d->n_alias && !known; i++) known = same_model(q->dialect, q->model, r->d->alias[i]);
    if (!known && r->d->strict_model)
        return http_fail(r->e, 404, "model_not_found", "model", "model is \"%.100s\", expected \"%.100s\"", q->model,
                         r->d->model);
    if (!q->model || !*q->model) q->model = r->d->model;
    return true;
}

/* ---- the whole request ---- */

static void set_defaults(Reader *r)
{
    Request *q = r->q;
    q->sampling = r->d->sampling;
    q->sampling.bias = NULL;
    q->sampling.n_bias = 0;
    q->diffusion = r->d->diffusion;
    const json_t *lock = json_object_get(json_object_get(r->body, "diffusion"), "lock");
    /* what the server has for the other way of writing would be refused as if the client had sent it */
    if (json_is_boolean(lock) && json_is_true(lock) != q->diffusion.lock) {
        q->diffusion.trim = 0;
        q->diffusion.mask = 0;
    }
    q->max_tokens = q->dialect == DIALECT_RESPONSES ? r->d->responses_max_tokens : r->d->max_tokens;
    q->n = 1;
    q->stream = is_ollama(q->dialect);
    q->parallel_calls = q->parse_special = true;
    q->store = r->d->lookup.response != NULL;
    q->spec_budget = -1;
    q->think_budget = -1;
}

static bool read_dialect(Reader *r)
{
    switch (r->q->dialect) {
    case DIALECT_COMPLETIONS: return read_completions(r);
    case DIALECT_CHAT:        return read_chat(r);
    case DIALECT_RESPONSES:   return read_responses(r);
    case DIALECT_MESSAGES:    return read_messages(r);
    case DIALECT_LLAMA:       return read_llama(r);
    case DIALECT_INFILL:      return read_infill(r);
    case DIALECT_OLLAMA_CHAT: return read_ollama_chat(r);
    default:                  return read_ollama_generate(r);
    }
}

/* Tools that the model's template does not show have an effect only if one of them must be called, or if calls that the
 * model writes all the same are held to a form. */
static void name_tools(Reader *r)
{
    static const char *const FIELDS[] = { "tools", "functions" };
    const Request *q = r->q;
    for (size_t i = 0; i < q->n_tool && r->d->denoises; i++) {
        if (q->tool[i].strict) fields_ignore(r->q, "tools[%zu].strict", i);
        q->tool[i].strict = false;
    }
    bool used = q->call_choice == CALL_REQUIRED || q->call_choice == CALL_NAMED;
    for (size_t i = 0; i < q->n_tool; i++) used |= q->tool[i].strict && q->call_choice != CALL_NONE;
    for (int i = 0; i < 2 && r->d->no_tools && q->n_tool > 0 && !used; i++)
        if (json_array_size(json_object_get(r->body, FIELDS[i])) > 0) fields_ignore(r->q, "%s", FIELDS[i]);
}

static bool read_all(Reader *r)
{
    Request *q = r->q;
    if (!json_is_object(r->body)) return refuse(r, NULL, "the body is not a JSON object");
    set_defaults(r);
    if (!fields_read(q, r->body, r->e)) return false;
    if (!read_model(r) || !read_sampling(r) || !read_logprobs(r) || !read_form(r) || !read_cache(r)) return false;
    read_speculative(r);
    read_lengths(r);
    if (!read_dialect(r)) return false;
    if (request_talks(q) && !read_thinking(r)) return false;
    if (r->d->denoises && (q->call_choice == CALL_REQUIRED || q->call_choice == CALL_NAMED))
        return refuse_step_wise(r, "tool_choice");
    if (r->d->denoises && !denoising_only(r)) return false;
    if (!r->d->denoises && q->include_drafts) fields_ignore(q, "stream_options.include_drafts");
    if (!r->d->denoises && json_object_get(r->body, "diffusion")) fields_ignore(q, "diffusion");
    name_tools(r);
    bool strict = r->d->strict_fields || json_is_true(json_object_get(r->body, "strict_fields"));
    const char *first = json_string_value(json_array_get(q->ignored, 0));
    if (strict && first) return refuse(r, first, "%s has no effect here, and strict_fields is on", first);
    return true;
}

bool request_read(Request **out, Dialect d, json_t *body, const RequestHeaders *h, const RequestDefaults *defaults,
                  HttpError *e)
{
    *e = (HttpError) { 0 };
    *out = NULL;
    Request *q = calloc(1, sizeof *q);
    Reader r = { .q = q, .body = body, .headers = h, .d = defaults, .e = e, .call_names = json_object() };
    bool good = false;
    if (q) {
        q->dialect = d;
        q->body = json_incref(body);
        q->ignored = json_array();
        const bool text = d == DIALECT_COMPLETIONS || is_llama(d);
        if (!text) {
            q->messages = json_array();
            q->handles = json_array();
            q->kwargs = json_object();
        }
        q->owned = json_array();
        r.no_memory = !r.call_names || !q->ignored || !q->owned ||
                      (!text && (!q->messages || !q->handles || !q->kwargs));
        good = !r.no_memory && read_all(&r);
    }
    json_decref(r.call_names);
    if (!q || r.no_memory) good = http_fail(e, 500, NULL, NULL, "out of memory for the request");
    if (good) *out = q;
    else request_free(q);
    return good;
}

void request_free(Request *q)
{
    if (!q) return;
    for (size_t i = 0; i < q->n_prompt; i++) free(q->prompt[i].ids);
    free(q->prompt);
    free(q->tool);
    free(q->bias);
    free(q->stop);
    json_t *const owned[] = { q->messages, q->handles, q->tools, q->kwargs, q->schema, q->ignored, q->items, q->owned,
                              q->body };
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) json_decref(owned[i]);
    free(q);
}

bool request_talks(const Request *q) { return q->n_prompt == 0; }

const RequestTool *request_tool(const Request *q, const char *name, size_t n)
{
    for (size_t i = 0; i < q->n_tool; i++)
        if (strlen(q->tool[i].name) == n && memcmp(q->tool[i].name, name, n) == 0) return &q->tool[i];
    return NULL;
}
