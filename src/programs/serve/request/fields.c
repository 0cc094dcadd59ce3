#include "programs/serve/request/fields.h"

#include "base/ranges.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KEYS_MAX = 1000 };                          /* in an object that the table describes */

#define C   IN_COMPLETIONS
#define H   IN_CHAT
#define R   IN_RESPONSES
#define M   IN_MESSAGES
#define L   IN_LLAMA
#define I   IN_INFILL
#define O   IN_OLLAMA_CHAT
#define G   IN_OLLAMA_GENERATE
#define ALL (C | H | R | M | L | I | O | G)
#define TALK (H | R | M | O | G)

#define HONOUR(name, in, type, ...) { .path = name, .dialects = in, .types = type, .role = FIELD_HONOURED, __VA_ARGS__ }
#define READ_BOOL(path, dialects, field) \
    HONOUR(path, dialects, TYPE_BOOL, .put = PUT_BOOL, .at = offsetof(Request, field))
#define READ_REAL(path, dialects, types, low, high, field)                                 \
    HONOUR(path, dialects, TYPE_NUMBER | (types), .lo = low, .hi = high, .put = PUT_FLOAT, \
           .at = offsetof(Request, field))
/* Clients send 0, which is off to the library, for as few tokens as possible. */
#define READ_TOP_P(path, dialects, types)                                              \
    HONOUR(path, dialects, TYPE_NUMBER | (types), .lo = 0, .hi = 1, .put = PUT_TOP_P, \
           .at = offsetof(Request, sampling.top_p))
#define READ_INT(path, dialects, low, high, field) \
    HONOUR(path, dialects, TYPE_INT, .lo = low, .hi = high, .put = PUT_INT32, .at = offsetof(Request, field))
#define READ_LONG(path, dialects, types, low, field) \
    HONOUR(path, dialects, TYPE_INT | (types), .lo = low, .hi = 1e18, .put = PUT_INT64, .at = offsetof(Request, field))
#define READ_TEXT(path, dialects, most, field) \
    HONOUR(path, dialects, TYPE_TEXT, .lo = 0, .hi = most, .put = PUT_TEXT, .at = offsetof(Request, field))
#define CHOOSE(path, dialects, choices)    HONOUR(path, dialects, TYPE_TEXT, .values = choices)
#define REFUSE(name, in, neutral) \
    { .path = name, .dialects = in, .types = TYPE_ANY, .role = FIELD_REFUSED, .values = neutral }
#define IGNORE(name, in)                   { .path = name, .dialects = in, .types = TYPE_ANY, .role = FIELD_IGNORED }

/* In the order of spec 5; fields that need more than a check of type and range are read in request*.c. */
static const Field TABLE[] = {
    READ_TEXT("model", ALL, 512, model),
    READ_BOOL("stream", ALL, stream),
    HONOUR("stream_options", C | H | R | M | O | G, TYPE_OBJECT),
    READ_BOOL("stream_options.include_usage", C | H, include_usage),
    READ_BOOL("stream_options.include_drafts", C | H | R | M, include_drafts),
    REFUSE("stream_options.include_drafts", O | G, "false"),
    IGNORE("stream_options.include_obfuscation", C | H | R),
    HONOUR("strict_fields", ALL, TYPE_BOOL),
    READ_LONG("n_predict", ALL, TYPE_NUMBER_TEXT, -2, max_tokens),
    READ_LONG("max_output_tokens", ALL, TYPE_NUMBER_TEXT, -1, max_tokens),
    READ_LONG("max_completion_tokens", ALL, TYPE_NUMBER_TEXT, -1, max_tokens),
    READ_LONG("max_tokens", ALL, TYPE_NUMBER_TEXT, -1, max_tokens),

    HONOUR("diffusion", C | H | R | M, TYPE_OBJECT),
    READ_INT("diffusion.steps", C | H | R | M, 1, STEPS_MAX, diffusion.steps),
    READ_INT("diffusion.stability", C | H | R | M, 1, STEPS_MAX, diffusion.stability),
    READ_REAL("diffusion.confidence", C | H | R | M, 0, -1, CONFIDENCE_MAX, diffusion.confidence),
    READ_REAL("diffusion.t_max", C | H | R | M, 0, 0, TEMPERATURE_MAX, diffusion.t_max),
    READ_REAL("diffusion.t_min", C | H | R | M, 0, 0, TEMPERATURE_MAX, diffusion.t_min),
    READ_REAL("diffusion.entropy_bound", C | H | R | M, 0, 0, TEMPERATURE_MAX, diffusion.entropy_bound),
    READ_REAL("diffusion.trim", C | H | R | M, 0, 0, 1, diffusion.trim),
    READ_INT("diffusion.trim_from", C | H | R | M, 1, 256, diffusion.trim_from),
    READ_BOOL("diffusion.lock", C | H | R | M, diffusion.lock),
    READ_INT("diffusion.mask", C | H | R | M, 1, INT32_MAX, diffusion.mask),
    READ_REAL("temperature", ALL, TYPE_NUMBER_TEXT, 0, TEMPERATURE_MAX, sampling.temperature),
    READ_TOP_P("top_p", ALL, TYPE_NUMBER_TEXT),
    READ_INT("top_k", ALL, -1, INT32_MAX, sampling.top_k),
    READ_REAL("min_p", ALL, 0, 0, MIN_P_MAX, sampling.min_p),
    HONOUR("seed", ALL, TYPE_INT, .lo = -1, .hi = 0x1p63),
    READ_REAL("frequency_penalty", ALL, 0, -PENALTY_MAX, PENALTY_MAX, sampling.frequency),
    READ_REAL("presence_penalty", ALL, 0, -PENALTY_MAX, PENALTY_MAX, sampling.presence),
    READ_REAL("rep_pen", ALL, 0, REPETITION_MIN, REPETITION_MAX, sampling.repetition),
    READ_REAL("repeat_penalty", ALL, 0, REPETITION_MIN, REPETITION_MAX, sampling.repetition),
    READ_REAL("repetition_penalty", ALL, 0, REPETITION_MIN, REPETITION_MAX, sampling.repetition),
    HONOUR("repeat_last_n", ALL, TYPE_INT, .lo = -1, .hi = INT32_MAX),
    HONOUR("rep_window", ALL, TYPE_INT, .lo = 0, .hi = REP_WINDOW_MAX),
    HONOUR("logit_bias", ALL, TYPE_OBJECT | TYPE_LIST),
    HONOUR("stop", ALL, TYPE_TEXT | TYPE_LIST),
    HONOUR("stop_sequences", ALL, TYPE_TEXT | TYPE_LIST),
    READ_BOOL("ignore_eos", ALL, ignore_eos),
    HONOUR("n", C | H, TYPE_INT, .lo = 1, .hi = INT32_MAX, .put = PUT_INT32, .at = offsetof(Request, n)),
    REFUSE("n", R | M | L | I | O | G, "1"),
    HONOUR("best_of", C, TYPE_INT, .lo = 1, .hi = INT32_MAX),
    READ_BOOL("logprobs", H | O | G, logprobs),
    HONOUR("logprobs", C, TYPE_INT, .lo = 0, .hi = 20),
    REFUSE("logprobs", R | M, "false"),
    READ_INT("top_logprobs", H | R | O | G, 0, 20, top_logprobs),
    HONOUR("n_probs", L | I, TYPE_INT, .lo = 0, .hi = 20),
    REFUSE("post_sampling_probs", L | I, "false"),
    REFUSE("top_logprobs", M, "0"),

    HONOUR("response_format", C | H, TYPE_OBJECT),
    CHOOSE("response_format.type", C | H, "text|json_object|json_schema"),
    HONOUR("response_format.schema", C | H, TYPE_OBJECT),
    HONOUR("response_format.json_schema", C | H, TYPE_OBJECT),
    HONOUR("response_format.json_schema.name", C | H, TYPE_TEXT),
    HONOUR("response_format.json_schema.description", C | H, TYPE_TEXT),
    HONOUR("response_format.json_schema.strict", C | H, TYPE_BOOL),
    HONOUR("response_format.json_schema.schema", C | H, TYPE_OBJECT | TYPE_BOOL),
    HONOUR("text", R, TYPE_OBJECT),
    IGNORE("text.verbosity", R),
    HONOUR("text.format", R, TYPE_OBJECT),
    CHOOSE("text.format.type", R, "text|json_object|json_schema"),
    HONOUR("text.format.name", R, TYPE_TEXT),
    HONOUR("text.format.description", R, TYPE_TEXT),
    HONOUR("text.format.strict", R, TYPE_BOOL),
    HONOUR("text.format.schema", R, TYPE_OBJECT | TYPE_BOOL),
    HONOUR("output_format", M, TYPE_OBJECT),
    CHOOSE("output_format.type", M, "json_schema"),
    HONOUR("output_format.schema", M, TYPE_OBJECT | TYPE_BOOL),
    HONOUR("output_config", M, TYPE_OBJECT),
    HONOUR("output_config.effort", M, TYPE_TEXT, .hi = 64),
    HONOUR("output_config.format", M, TYPE_OBJECT),
    CHOOSE("output_config.format.type", M, "json_schema"),
    HONOUR("output_config.format.schema", M, TYPE_OBJECT | TYPE_BOOL),
    HONOUR("format", O | G, TYPE_TEXT | TYPE_OBJECT),
    HONOUR("json_schema", ALL, TYPE_OBJECT | TYPE_BOOL),
    HONOUR("grammar", ALL, TYPE_TEXT, .hi = 4 << 20),
    HONOUR("guided_json", ALL, TYPE_OBJECT | TYPE_TEXT),
    HONOUR("guided_regex", ALL, TYPE_TEXT, .hi = 64 << 10),
    HONOUR("guided_choice", ALL, TYPE_LIST, .hi = 1000),
    HONOUR("guided_grammar", ALL, TYPE_TEXT, .hi = 4 << 20),
    HONOUR("guided_json_object", ALL, TYPE_BOOL),
    HONOUR("structured_outputs", ALL, TYPE_OBJECT),
    HONOUR("structured_outputs.json", ALL, TYPE_OBJECT | TYPE_TEXT),
    HONOUR("structured_outputs.regex", ALL, TYPE_TEXT, .hi = 64 << 10),
    HONOUR("structured_outputs.choice", ALL, TYPE_LIST, .hi = 1000),
    HONOUR("structured_outputs.grammar", ALL, TYPE_TEXT, .hi = 4 << 20),
    HONOUR("structured_outputs.json_object", ALL, TYPE_BOOL),

    HONOUR("prompt", C | L, TYPE_TEXT | TYPE_LIST),
    HONOUR("prompt", I | G, TYPE_TEXT),
    HONOUR("suffix", C | G, TYPE_TEXT),
    HONOUR("input_prefix", I, TYPE_TEXT),
    HONOUR("input_suffix", I, TYPE_TEXT),
    HONOUR("input_extra", I, TYPE_LIST, .hi = 1000),
    HONOUR("raw", G, TYPE_BOOL),
    READ_INT("n_indent", L | I, 0, 1000, n_indent),
    READ_LONG("t_max_predict_ms", L | I, 0, -1, predict_ms),
    HONOUR("samplers", L | I, TYPE_LIST, .hi = 32),
    HONOUR("response_fields", L | I, TYPE_LIST, .hi = 100),
    READ_BOOL("echo", C, echo),
    READ_BOOL("parse_special", C, parse_special),
    READ_BOOL("special", C, show_special),

    HONOUR("messages", H | M | O, TYPE_LIST),
    HONOUR("system", M, TYPE_TEXT | TYPE_LIST),
    HONOUR("system", G, TYPE_TEXT),
    HONOUR("input", R, TYPE_TEXT | TYPE_LIST),
    HONOUR("instructions", R, TYPE_TEXT),
    READ_TEXT("previous_response_id", R, 256, previous_response),
    READ_BOOL("continue_final_message", H, continue_final),
    HONOUR("add_generation_prompt", H, TYPE_BOOL),
    REFUSE("chat_template", TALK, "null"),
    HONOUR("chat_template_kwargs", TALK, TYPE_OBJECT),
    HONOUR("tools", H | R | M | O, TYPE_LIST),
    HONOUR("tool_choice", H | R | O, TYPE_TEXT | TYPE_OBJECT),
    HONOUR("tool_choice", M, TYPE_OBJECT),
    READ_BOOL("parallel_tool_calls", H | R | O, parallel_calls),
    HONOUR("functions", H, TYPE_LIST),
    HONOUR("function_call", H, TYPE_TEXT | TYPE_OBJECT),

    HONOUR("reasoning_effort", TALK, TYPE_TEXT, .hi = 64),
    HONOUR("reasoning", TALK, TYPE_OBJECT),
    HONOUR("reasoning.effort", TALK, TYPE_TEXT, .hi = 64),
    HONOUR("reasoning.enabled", TALK, TYPE_BOOL),
    HONOUR("reasoning.max_tokens", TALK, TYPE_INT, .lo = 0, .hi = 1e18),
    HONOUR("reasoning.exclude", H, TYPE_BOOL),
    CHOOSE("reasoning.generate_summary", R, "none|auto|concise|detailed"),
    CHOOSE("reasoning.summary", R, "none|auto|concise|detailed"),
    HONOUR("thinking", TALK, TYPE_OBJECT),
    CHOOSE("thinking.type", TALK, "enabled|adaptive|disabled"),
    HONOUR("thinking.budget_tokens", TALK, TYPE_INT, .lo = 0, .hi = 1e18),
    HONOUR("thinking.reply_budget", TALK, TYPE_INT, .lo = 0, .hi = 1e18),
    CHOOSE("thinking.display", M, "summarized|omitted"),
    HONOUR("thinking_budget_tokens", TALK, TYPE_INT, .lo = 0, .hi = 1e18),
    HONOUR("think", TALK, TYPE_BOOL | TYPE_TEXT, .hi = 64),
    HONOUR("enable_thinking", TALK, TYPE_BOOL),
    CHOOSE("reasoning_format", TALK, "none|deepseek|auto"),

    READ_BOOL("return_tokens", C | H | L | I, return_tokens),
    READ_BOOL("return_drafted", H, return_drafted),
    READ_BOOL("timings_per_token", C | H | L | I, timings_per_token),
    READ_BOOL("return_progress", C | H | L | I, return_progress),
    HONOUR("cache_prompt", ALL, TYPE_BOOL),
    HONOUR("prefix_cache", ALL, TYPE_OBJECT),
    HONOUR("prefix_cache.scope", ALL, TYPE_TEXT, .hi = 32),
    HONOUR("speculative", ALL, TYPE_OBJECT),
    CHOOSE("speculative.mode", ALL, "auto|off|chain|tree"),
    HONOUR("speculative.verify_width", ALL, TYPE_INT, .lo = 1, .hi = 64),
    READ_INT("speculative.budget", ALL, 0, 63, spec_budget),
    READ_BOOL("store", R, store),
    HONOUR("include", R, TYPE_LIST, .hi = 100),
    HONOUR("metadata", R, TYPE_OBJECT),

    /* Ollama's; what is set here wins over the same field beside it. */
    HONOUR("options", O | G, TYPE_OBJECT),
    READ_LONG("options.num_predict", O | G, 0, -2, max_tokens),
    READ_REAL("options.temperature", O | G, 0, 0, TEMPERATURE_MAX, sampling.temperature),
    READ_TOP_P("options.top_p", O | G, 0),
    READ_INT("options.top_k", O | G, -1, INT32_MAX, sampling.top_k),
    READ_REAL("options.min_p", O | G, 0, 0, MIN_P_MAX, sampling.min_p),
    HONOUR("options.seed", O | G, TYPE_INT, .lo = -1, .hi = 0x1p63),
    READ_REAL("options.frequency_penalty", O | G, 0, -PENALTY_MAX, PENALTY_MAX, sampling.frequency),
    READ_REAL("options.presence_penalty", O | G, 0, -PENALTY_MAX, PENALTY_MAX, sampling.presence),
    READ_REAL("options.repeat_penalty", O | G, 0, REPETITION_MIN, REPETITION_MAX, sampling.repetition),
    HONOUR("options.repeat_last_n", O | G, TYPE_INT, .lo = -1, .hi = INT32_MAX),
    HONOUR("options.stop", O | G, TYPE_TEXT | TYPE_LIST),
    REFUSE("options.typical_p", O | G, "1"),
    REFUSE("options.tfs_z", O | G, "1"),
    REFUSE("options.mirostat", O | G, "0"),
    REFUSE("template", O | G, "\"\""),
    REFUSE("context", G, "[]"),
    REFUSE("images", G, "[]"),

    /* Fields that would change the text and are not supported. */
    REFUSE("typical_p", ALL, "1"),
    REFUSE("typ_p", ALL, "1"),
    REFUSE("tfs_z", ALL, "1"),
    REFUSE("top_a", ALL, "0"),
    REFUSE("top_n_sigma", ALL, "-1|0"),
    REFUSE("mirostat", ALL, "0"),
    REFUSE("mirostat_mode", ALL, "0"),
    REFUSE("dry_multiplier", ALL, "0"),
    REFUSE("xtc_probability", ALL, "0"),
    REFUSE("dynatemp_range", ALL, "0"),
    REFUSE("smoothing_factor", ALL, "0"),
    REFUSE("samplers", ALL & ~(L | I),
           "[\"penalties\",\"top_k\",\"top_p\",\"min_p\",\"temperature\"]|"
           "[\"top_k\",\"top_p\",\"min_p\",\"temperature\"]"),
    REFUSE("use_beam_search", ALL, "false"),
    REFUSE("length_penalty", ALL, "1"),
    REFUSE("min_tokens", ALL, "0"),
    REFUSE("n_indent", ALL & ~(L | I), "0"),
    REFUSE("t_max_predict_ms", ALL & ~(L | I), "0|-1"),
    REFUSE("min_keep", ALL, "0|1"),
    REFUSE("image_data", L | I, "[]"),
    REFUSE("bad_words", ALL, "[]"),
    REFUSE("stop_token_ids", ALL, "[]"),
    REFUSE("include_stop_str_in_output", ALL, "false"),
    REFUSE("skip_special_tokens", ALL, "true"),
    REFUSE("truncate_prompt_tokens", ALL, "null"),
    REFUSE("guided_whitespace_pattern", ALL, "null"),
    REFUSE("structured_outputs.whitespace_pattern", ALL, "null"),
    REFUSE("structured_outputs.structural_tag", ALL, "null"),
    REFUSE("structured_outputs.disable_any_whitespace", ALL, "false"),
    REFUSE("structured_outputs.disable_additional_properties", ALL, "false"),
    REFUSE("lora", ALL, "[]"),
    REFUSE("prefill_compression", ALL, "\"off\""),
    REFUSE("modalities", H, "[\"text\"]"),
    REFUSE("audio", H, "null"),
    REFUSE("web_search_options", H, "null"),
    REFUSE("background", R, "false"),
    REFUSE("conversation", R, "null"),
    REFUSE("prompt", R, "null"),
    REFUSE("truncation", R, "\"disabled\""),

    /* Fields that have nothing to apply to here, or make sense only for the provider of an API. A session's name is of
     * no use to the cache: what requests share is found from their tokens. */
    IGNORE("session_id", ALL),
    IGNORE("extra_body", ALL),
    IGNORE("prompt_cache_key", ALL),
    IGNORE("prefix_cache.window", ALL),
    IGNORE("store", H),
    IGNORE("metadata", H | M | O | G),
    IGNORE("user", ALL),
    IGNORE("service_tier", ALL),
    IGNORE("safety_identifier", H | R),
    IGNORE("prompt_cache_retention", H | R),
    IGNORE("client_metadata", R),
    IGNORE("max_tool_calls", R),
    IGNORE("verbosity", H),
    IGNORE("prediction", H),
    IGNORE("container", M),
    IGNORE("context_management", M),
    IGNORE("mcp_servers", M),
    IGNORE("betas", M),
    IGNORE("speed", M),
    IGNORE("inference_geo", M),
    IGNORE("guided_decoding_backend", ALL),
    IGNORE("structured_outputs.disable_fallback", ALL),
    IGNORE("prefill_keep_ratio", ALL),
    IGNORE("mirostat_tau", ALL),
    IGNORE("mirostat_eta", ALL),
    IGNORE("dry_base", ALL),
    IGNORE("dry_allowed_length", ALL),
    IGNORE("xtc_threshold", ALL),
    IGNORE("dynatemp_exponent", ALL),
    IGNORE("n_keep", ALL),
    IGNORE("n_discard", ALL),
    IGNORE("id_slot", ALL),
    IGNORE("t_max_prompt_ms", L | I),
    IGNORE("keep_alive", O | G),
    IGNORE("options.num_ctx", O | G),
    IGNORE("options.num_keep", O | G),
    IGNORE("options.num_batch", O | G),
    IGNORE("options.num_gpu", O | G),
    IGNORE("options.main_gpu", O | G),
    IGNORE("options.num_thread", O | G),
    IGNORE("options.use_mmap", O | G),
    IGNORE("options.use_mlock", O | G),
    IGNORE("options.numa", O | G),
    IGNORE("options.low_vram", O | G),
    IGNORE("options.mirostat_tau", O | G),
    IGNORE("options.mirostat_eta", O | G),
    IGNORE("options.penalize_newline", O | G),
};
enum { N_TABLE = sizeof TABLE / sizeof *TABLE };

const Field *fields_all(size_t *n)
{
    *n = N_TABLE;
    return TABLE;
}

void fields_ignore(Request *q, const char *format, ...)
{
    char name[256];
    size_t n = json_array_size(q->ignored);
    if (n >= IGNORED_MAX) return;
    va_list args;
    va_start(args, format);
    int len = vsnprintf(name, sizeof name, n + 1 < IGNORED_MAX ? format : "...", args);
    va_end(args);
    json_t *text = len < (int) sizeof name ? json_string(name) : json_string("(a name of more than 255 bytes)");
    /* the name was cut inside a character */
    json_array_append_new(q->ignored, text ? text : json_string("(a name cut short)"));
}

/* ---- one value ---- */

static const char *type_name(const json_t *v)
{
    static const char *const NAMES[] = { "an object", "a list", "a string", "a whole number", "a number", "true",
                                         "false", "null" };
    return NAMES[json_typeof(v)];
}

static unsigned type_of(const json_t *v)
{
    switch (json_typeof(v)) {
    case JSON_OBJECT:  return TYPE_OBJECT | TYPE_ANY;
    case JSON_ARRAY:   return TYPE_LIST | TYPE_ANY;
    case JSON_STRING:  return TYPE_TEXT | TYPE_ANY;
    case JSON_INTEGER: return TYPE_INT | TYPE_NUMBER | TYPE_ANY;
    case JSON_REAL:    return TYPE_NUMBER | TYPE_ANY;
    default:           return TYPE_BOOL | TYPE_ANY;
    }
}

static bool wrong_type(const Field *f, const json_t *v, HttpError *e)
{
    static const struct {
        unsigned type;
        const char *name;
    } NAMES[] = { { TYPE_BOOL, "true or false" }, { TYPE_INT, "a whole number" }, { TYPE_NUMBER, "a number" },
                  { TYPE_TEXT, "a string" }, { TYPE_LIST, "a list" }, { TYPE_OBJECT, "an object" } };
    char want[128] = "";
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++)
        if (f->types & NAMES[i].type)
            snprintf(want + strlen(want), sizeof want - strlen(want), "%s%s", *want ? " or " : "", NAMES[i].name);
    return http_fail(e, 400, NULL, f->path, "%s is %s, expected %s", f->path, type_name(v), want);
}

/* The value of a number, also of a number in a string. Returns false if it is not one. */
static bool number_of(const Field *f, const json_t *v, double *x, int64_t *whole)
{
    char *end;
    if (json_is_integer(v)) {
        *whole = json_integer_value(v);
        *x = (double) *whole;
    } else if (json_is_real(v)) {
        *x = json_real_value(v);
        *whole = 0;
    } else {
        const char *s = json_string_value(v);
        if (!*s || strspn(s, "+-.0123456789eE") != strlen(s) || strlen(s) > 40) return false;
        *x = strtod(s, &end);
        if (*end) return false;
        *whole = fabs(*x) < 0x1p53 ? (int64_t) *x : 0;
        if ((f->types & TYPE_INT) && (double) *whole != *x) return false;
    }
    return true;
}

static bool check_number(Request *q, const Field *f, const json_t *v, HttpError *e)
{
    double x;
    int64_t whole;
    if (!number_of(f, v, &x, &whole)) return wrong_type(f, v, e);
    if (!(x >= f->lo && x <= f->hi)) {
        char limits[64];
        if (f->hi >= 1e15) snprintf(limits, sizeof limits, "at least %.15g", f->lo);
        else snprintf(limits, sizeof limits, "%.15g to %.15g", f->lo, f->hi);
        return http_fail(e, 400, NULL, f->path, "%s is %.15g, expected %s", f->path, x, limits);
    }
    char *to = (char *) q + f->at;
    switch (f->put) {
    case PUT_INT32: *(int32_t *) (void *) to = (int32_t) whole; break;
    case PUT_INT64: *(int64_t *) (void *) to = whole; break;
    case PUT_FLOAT: *(float *) (void *) to = (float) x; break;
    case PUT_TOP_P: *(float *) (void *) to = (float) (x > TOP_P_MIN ? x : TOP_P_MIN); break;
    default: break;
    }
    return true;
}

/* Whether the text is one of the values between bars. */
static bool among(const char *values, const char *text)
{
    for (size_t n = strlen(text); *values; values += *values != 0) {
        size_t len = strcspn(values, "|");
        if (len == n && memcmp(values, text, n) == 0) return true;
        values += len;
    }
    return false;
}

static bool check_text(Request *q, const Field *f, const json_t *v, HttpError *e)
{
    const char *s = json_string_value(v);
    size_t n = json_string_length(v);
    if (f->hi > 0 && (double) n > f->hi)
        return http_fail(e, 400, NULL, f->path, "%s has %zu bytes, expected at most %.0f", f->path, n, f->hi);
    if (f->values && !among(f->values, s))
        return http_fail(e, 400, NULL, f->path, "%s is \"%.100s\", expected one of %s", f->path, s, f->values);
    if (f->put == PUT_TEXT) *(const char **) (void *) ((char *) q + f->at) = s;
    return true;
}

/* Numbers are compared by value: 1 and 1.0 are equal. */
static bool same_value(const json_t *a, const json_t *b)
{
    return json_is_number(a) && json_is_number(b)
           ? json_number_value(a) == json_number_value(b) : json_equal(a, b) == 1;
}

static bool check_refused(const Field *f, const json_t *v, HttpError *e)
{
    char one[128];
    for (const char *s = f->values; *s; s += *s == '|') {
        size_t len = strcspn(s, "|");
        snprintf(one, sizeof one, "%.*s", (int) len, s);
        json_t *neutral = json_loads(one, JSON_DECODE_ANY, NULL);
        bool same = neutral && same_value(neutral, v);
        json_decref(neutral);
        if (same) return true;
        s += len;
    }
    if (strcmp(f->values, "null") == 0) return http_fail(e, 400, NULL, f->path, "%s is not supported", f->path);
    return http_fail(e, 400, NULL, f->path, "%s is not supported: it may only be %s", f->path, f->values);
}

static bool check_value(Request *q, const Field *f, const json_t *v, HttpError *e)
{
    if (f->role == FIELD_REFUSED) return check_refused(f, v, e);
    if (f->role == FIELD_IGNORED) {
        fields_ignore(q, "%s", f->path);
        return true;
    }
    if (!(type_of(v) & f->types) && !(json_is_string(v) && (f->types & TYPE_NUMBER_TEXT))) return wrong_type(f, v, e);
    if (json_is_number(v) || (json_is_string(v) && (f->types & TYPE_NUMBER_TEXT))) return check_number(q, f, v, e);
    if (json_is_string(v)) return check_text(q, f, v, e);
    if (json_is_array(v) && f->hi > 0 && (double) json_array_size(v) > f->hi)
        return http_fail(e, 400, NULL, f->path, "%s has %zu elements, expected at most %.0f", f->path,
                         json_array_size(v), f->hi);
    if (f->put == PUT_BOOL) *(bool *) ((char *) q + f->at) = json_is_true(v);
    return true;
}

/* ---- an object ---- */

/* The name of the table's field i inside the object at prefix ("" or ending in a dot); NULL: it is in another object,
 * or deeper. */
static const char *name_inside(const Field *f, Dialect d, const char *prefix)
{
    size_t n = strlen(prefix);
    if (!(f->dialects & 1u << d) || strncmp(f->path, prefix, n) != 0 || strchr(f->path + n, '.')) return NULL;
    return f->path + n;
}

static bool has_inside(Dialect d, const char *prefix)
{
    for (size_t i = 0; i < N_TABLE; i++)
        if (name_inside(&TABLE[i], d, prefix)) return true;
    return false;
}

static bool known_inside(Dialect d, const char *prefix, const char *key)
{
    for (size_t i = 0; i < N_TABLE; i++) {
        const char *name = name_inside(&TABLE[i], d, prefix);
        if (name && strcmp(name, key) == 0) return true;
    }
    return false;
}

/* Recurses no deeper than the table's paths. */
static bool read_object(Request *q, const json_t *o, const char *prefix, HttpError *e)
{
    const char *key;
    json_t *v;
    if (json_object_size(o) > KEYS_MAX)
        return http_fail(e, 400, NULL, NULL, "%s has %zu fields, expected at most %d", *prefix ? prefix : "the request",
                         json_object_size(o), KEYS_MAX);
    json_object_foreach((json_t *) (uintptr_t) o, key, v)
        if (!json_is_null(v) && !known_inside(q->dialect, prefix, key)) fields_ignore(q, "%s%s", prefix, key);
    for (size_t i = 0; i < N_TABLE; i++) {
        const char *name = name_inside(&TABLE[i], q->dialect, prefix);
        v = name ? json_object_get(o, name) : NULL;
        if (!v || json_is_null(v)) continue;
        if (!check_value(q, &TABLE[i], v, e)) return false;
        char deeper[128];
        snprintf(deeper, sizeof deeper, "%s.", TABLE[i].path);
        if (json_is_object(v) && has_inside(q->dialect, deeper) && !read_object(q, v, deeper, e)) return false;
    }
    return true;
}

bool fields_read(Request *q, const json_t *body, HttpError *e) { return read_object(q, body, "", e); }
