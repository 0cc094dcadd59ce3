/* llama.cpp's /completion and /infill: one prompt, or a place in a text, and fields about lines, samplers and what of
 * the answer comes back. */
#include "programs/serve/request/request_impl.h"

/* ---- samplers ---- */

/* Those that are applied, in this order, each under the names that it has; the others are off here in any case. */
static const char *const SAMPLERS[] = { "penalties", "top_k|top-k", "top_p|top-p|nucleus", "min_p|min-p",
                                        "temperature|temp" };
enum { PENALTIES, TOP_K, TOP_P, MIN_P, TEMPERATURE, N_SAMPLERS };
static const char OFF[] = "dry|top_n_sigma|typ_p|typical_p|typ-p|typical-p|xtc|tfs_z|tfs-z";

static int sampler_named(const char *name, size_t n)
{
    int i = 0;
    while (i < N_SAMPLERS && !is_among(SAMPLERS[i], name, n)) i++;
    return i;
}

static void leave_out(rt_sampling *s, int sampler)
{
    switch (sampler) {
    case PENALTIES:
        s->repetition = 1;
        s->frequency = s->presence = 0;
        break;
    case TOP_K: s->top_k = 0; break;
    case TOP_P: s->top_p = 1; break;
    case MIN_P: s->min_p = 0; break;
    default:    s->temperature = 1;
    }
}

/* A sampler that is not in the list is not applied. `infill` joins tokens that begin alike, which is not there: an
 * editor that asks for it gets the text without. */
static bool read_samplers(Reader *r)
{
    const json_t *list = json_object_get(r->body, "samplers");
    bool used[N_SAMPLERS] = { false };
    int last = -1;
    if (!json_is_array(list)) return true;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *v = json_array_get(list, i);
        const char *name = json_string_value(v);
        Path p = path_of("samplers[%zu]", i);
        if (!name) return refuse(r, p.s, "%s is not a string", p.s);
        if (is_among(OFF, name, json_string_length(v))) continue;
        if (is_among("infill", name, json_string_length(v)) && r->q->dialect == DIALECT_INFILL) {
            fields_ignore(r->q, "%s", p.s);
            continue;
        }
        int k = sampler_named(name, json_string_length(v));
        if (k == N_SAMPLERS) return refuse(r, p.s, "%s is \"%.60s\", which is not supported", p.s, name);
        if (k <= last)
            return refuse(r, p.s, "%s is \"%.60s\", expected the order penalties, top_k, top_p, min_p, temperature",
                          p.s, name);
        used[last = k] = true;
    }
    for (int k = 0; k < N_SAMPLERS; k++)
        if (!used[k]) leave_out(&r->q->sampling, k);
    return true;
}

/* ---- what both have ---- */

static bool read_response_fields(Reader *r)
{
    json_t *list = json_object_get(r->body, "response_fields"), *v;
    size_t i;
    json_array_foreach(list, i, v) {
        Path p = path_of("response_fields[%zu]", i);
        if (!json_is_string(v)) return refuse(r, p.s, "%s is not a string", p.s);
    }
    r->q->response_fields = json_is_array(list) ? list : NULL;
    return true;
}

static bool read_both(Reader *r)
{
    Request *q = r->q;
    if (q->sampling.seed == UINT32_MAX) q->has_seed = false;       /* how llama.cpp's clients spell a random one */
    return read_samplers(r) && read_response_fields(r);
}

bool is_llama(Dialect d) { return d == DIALECT_LLAMA || d == DIALECT_INFILL; }

bool read_llama(Reader *r) { return read_prompts(r) && read_both(r); }

/* ---- filling in ---- */

bool read_middle(Reader *r, const json_t *prefix, const json_t *suffix, const json_t *begun, const char *field)
{
    Request *q = r->q;
    if (r->d->no_infill)
        return http_fail(r->e, 501, NULL, field,
                         "%s: this model has no tokens to fill in text with (fim_pre, fim_suf and fim_mid)", field);
    if (!one_prompt(r, begun)) return true;
    q->infill = (RequestInfill) { .is = true, .prefix = prefix ? json_string_value(prefix) : "",
                                  .n_prefix = json_string_length(prefix), .suffix = suffix
                                  ? json_string_value(suffix) : "", .n_suffix = json_string_length(suffix) };
    return true;
}

static bool read_extra(Reader *r)
{
    const json_t *list = json_object_get(r->body, "input_extra");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *one = json_array_get(list, i);
        const char *text, *name;
        Path p = path_of("input_extra[%zu]", i), at = path_of("input_extra[%zu].text", i);
        if (!json_is_object(one)) return refuse(r, p.s, "%s is not an object", p.s);
        if (!text_field(r, &text, one, p.s, "text") || !text_field(r, &name, one, p.s, "filename")) return false;
        if (!text) return refuse(r, at.s, "%s is missing", at.s);
        name_others(r, one, p.s, "text|filename|time");
    }
    r->q->infill.extra = json_is_array(list) ? list : NULL;
    return true;
}

static const json_t *string_at(const Reader *r, const char *key)
{
    const json_t *v = json_object_get(r->body, key);
    return json_is_string(v) ? v : NULL;
}

bool read_infill(Reader *r)
{
    const json_t *prefix = string_at(r, "input_prefix"), *suffix = string_at(r, "input_suffix"),
                 *prompt = string_at(r, "prompt");
    if (!prefix && !suffix && !prompt) return refuse(r, "input_prefix", "input_prefix is missing");
    return read_middle(r, prefix, suffix, prompt, "input_prefix") && read_extra(r) && read_both(r);
}
