/* Completions: one or several prompts, as text or token ids; llama.cpp's has one, which may mix both. */
#include "programs/serve/request/request_impl.h"

#include <stdlib.h>

static bool read_id(Reader *r, int32_t *out, const json_t *v, size_t i, const char *path)
{
    if (!json_is_integer(v)) return refuse(r, path, "%s: element %zu is not a token id", path, i);
    json_int_t id = json_integer_value(v);
    if (id < 0 || id >= r->d->vocab)
        return refuse(r, path, "%s: element %zu is token %lld, which is not in the vocabulary of %d", path, i,
                      (long long) id, (int) r->d->vocab);
    *out = (int32_t) id;
    return true;
}

/* JSON_STRING: a text, JSON_INTEGER: a token id. */
static bool has_element(const json_t *list, json_type type)
{
    size_t i;
    json_t *v;
    json_array_foreach((json_t *) (uintptr_t) list, i, v)
        if (json_typeof(v) == type) return true;
    return false;
}

static bool read_mixed(Reader *r, RequestPrompt *p, const json_t *list, const char *path)
{
    size_t i;
    json_t *v;
    int32_t id;
    p->mixed = list;
    json_array_foreach((json_t *) (uintptr_t) list, i, v)
        if (!json_is_string(v) && !read_id(r, &id, v, i, path)) return false;
    return true;
}

static bool read_ids(Reader *r, RequestPrompt *p, const json_t *list, const char *path)
{
    size_t i;
    json_t *v;
    p->n_ids = json_array_size(list);
    if (p->n_ids == 0) return refuse(r, path, "%s is empty", path);
    if (!(p->ids = malloc(p->n_ids * sizeof *p->ids))) {
        r->no_memory = true;
        p->n_ids = 0;
        return true;
    }
    json_array_foreach((json_t *) (uintptr_t) list, i, v) {
        if (!read_id(r, &p->ids[i], v, i, path)) return false;
    }
    return true;
}

static bool read_prompt(Reader *r, const json_t *v, const char *path)
{
    RequestPrompt *p = &r->q->prompt[r->q->n_prompt++];
    if (r->q->dialect == DIALECT_LLAMA && has_element(v, JSON_STRING)) return read_mixed(r, p, v, path);
    if (json_is_array(v)) return read_ids(r, p, v, path);
    if (!json_is_string(v)) return refuse(r, path, "%s is neither a string nor a list of token ids", path);
    p->text = json_string_value(v);
    p->n = json_string_length(v);
    return true;
}

RequestPrompt *one_prompt(Reader *r, const json_t *text)
{
    Request *q = r->q;
    if (!(q->prompt = calloc(1, sizeof *q->prompt))) {
        r->no_memory = true;
        return NULL;
    }
    q->n_prompt = 1;
    q->prompt->text = text ? json_string_value(text) : "";
    q->prompt->n = json_string_length(text);
    return q->prompt;
}

bool read_prompts(Reader *r)
{
    const json_t *all = json_object_get(r->body, "prompt");
    if (!all || json_is_null(all)) return refuse(r, "prompt", "prompt is missing");
    bool several = json_is_array(all) && !json_is_integer(json_array_get(all, 0));
    size_t n = several ? json_array_size(all) : 1;
    if (r->q->dialect == DIALECT_LLAMA && n > 1) {
        if (!has_element(all, JSON_INTEGER))
            return refuse(r, "prompt", "prompt has %zu prompts, expected one: /v1/completions takes several", n);
        several = false;
        n = 1;
    }
    if (n == 0 || n > PROMPTS_MAX)
        return refuse(r, "prompt", "prompt has %zu elements, expected 1 to %d", n, PROMPTS_MAX);
    if (!(r->q->prompt = calloc(n, sizeof *r->q->prompt))) {
        r->no_memory = true;
        return true;
    }
    for (size_t i = 0; i < n; i++) {
        Path p = path_of(several ? "prompt[%zu]" : "prompt", i);
        if (!read_prompt(r, several ? json_array_get(all, i) : all, p.s)) return false;
    }
    return true;
}

bool read_completions(Reader *r)
{
    const json_t *suffix = json_object_get(r->body, "suffix"), *prompt = json_object_get(r->body, "prompt");
    if (json_string_length(suffix) == 0) return read_prompts(r);
    if (!json_is_string(prompt)) return refuse(r, "prompt", "prompt is not a string, which a suffix needs");
    return read_middle(r, prompt, suffix, NULL, "suffix");
}
