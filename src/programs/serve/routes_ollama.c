/* Ollama's lists of models: there is one, under its name and its aliases, with the tag `latest` where it has none. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/path.h"
#include "programs/serve/routes.h"

static json_t *property_json(const rt_engine *g, const char *key)
{
    char text[512] = "";
    return rt_property(g, key, text, sizeof text) ? json_text(text, strlen(text)) : json_string("");
}

static json_t *details(const Server *s)
{
    const rt_engine *g = s->p.engine;
    char size[32];
    double n = (double) property(g, "model.parameters");
    snprintf(size, sizeof size, n >= 1e9 ? "%.1fB" : "%.1fM", n >= 1e9 ? n / 1e9 : n / 1e6);
    return json_pack("{s:s s:s s:o s:[o] s:s s:s}", "parent_model", "", "format", "gguf", "family",
                     property_json(g, "model.arch"), "families", property_json(g, "model.arch"), "parameter_size", size,
                     "quantization_level", *s->quant ? s->quant : "unknown");
}

/* The sum over the model's file that its identity (rt_save) begins with. */
static json_t *digest(const Server *s)
{
    static const char MODEL[] = "model ";
    const char *at = strstr(s->identity, MODEL);
    if (!at) return json_string("");
    at += sizeof MODEL - 1;
    return json_stringn(at, strcspn(at, ","));
}

static json_t *entry(const Server *s, const char *name)
{
    const char *tag = strchr(base_name(name), ':') ? "" : ":latest";
    return json_pack("{s:o s:o s:I s:o s:o}", "name", json_sprintf("%s%s", name, tag), "model",
                     json_sprintf("%s%s", name, tag), "size", (json_int_t) property(s->p.engine, "model.bytes"),
                     "digest", digest(s), "details", details(s));
}

json_t *ollama_tags(const Server *s)
{
    json_t *models = json_array();
    for (int32_t i = 0; i < s->n_names; i++) {
        json_t *one = entry(s, s->names[i]);
        json_object_set_new(one, "modified_at", time_json(s->model_time));
        json_array_append_new(models, one);
    }
    return json_pack("{s:o}", "models", models);
}

/* The model stays until the server ends, which is said as a year. */
json_t *ollama_running(const Server *s)
{
    json_t *one = entry(s, s->name);
    json_object_set_new(one, "expires_at", time_json((int64_t) time(NULL) + 365 * 24 * 3600));
    json_object_set_new(one, "size_vram", json_integer(0));
    json_object_set_new(one, "context_length", json_integer(s->ctx));
    return json_pack("{s:[o]}", "models", one);
}

static json_t *capabilities(const Server *s)
{
    const struct { const char *name; bool there; } ALL[] = { { "completion", true }, { "tools", s->tools },
                                                             { "thinking", s->thinks },
                                                             { "insert", !s->defaults.no_infill } };
    json_t *list = json_array();
    for (size_t i = 0; i < sizeof ALL / sizeof *ALL; i++)
        if (ALL[i].there) json_array_append_new(list, json_string(ALL[i].name));
    return list;
}

static json_t *model_info(const Server *s)
{
    const rt_engine *g = s->p.engine;
    char arch[64] = "", key[128];
    rt_property(g, "model.arch", arch, sizeof arch);
    json_t *info = json_pack("{s:s s:I}", "general.architecture", arch, "general.parameter_count",
                             (json_int_t) property(g, "model.parameters"));
    const struct { const char *name, *property; } ALL[] = {
        { "context_length", "model.ctx" }, { "block_count", "model.layers" }, { "embedding_length", "model.dim" },
        { "vocab_size", "model.vocab" } };
    for (size_t i = 0; i < sizeof ALL / sizeof *ALL; i++) {
        snprintf(key, sizeof key, "%s.%s", arch, ALL[i].name);
        json_object_set_new(info, key, json_integer((json_int_t) property(g, ALL[i].property)));
    }
    return info;
}

/* The settings of requests that say nothing, in the form of Ollama's model files. */
static json_t *parameters(const Server *s)
{
    const rt_sampling *p = &s->defaults.sampling;
    return json_sprintf("temperature %g\ntop_k %d\ntop_p %g\nmin_p %g\nnum_ctx %d", (double) p->temperature, p->top_k,
                        p->top_p > 0 ? (double) p->top_p : 1.0, (double) p->min_p, s->ctx);
}

json_t *ollama_show(const Server *s, const char *given)
{
    bool known = false;
    for (int32_t i = 0; i < s->n_names && !known; i++) known = same_model(DIALECT_OLLAMA_CHAT, given, s->names[i]);
    if (!known) return NULL;
    size_t n = rt_property(s->p.engine, "chat_template", NULL, 0);
    char *source = malloc(n + 1);
    if (source && n) rt_property(s->p.engine, "chat_template", source, n + 1);
    json_t *j = json_pack("{s:s s:o s:o s:o s:o s:o s:o}", "modelfile", "", "parameters", parameters(s), "template",
                          source && n ? json_text(source, n) : json_string(""), "details", details(s), "model_info",
                          model_info(s), "capabilities", capabilities(s), "modified_at", time_json(s->model_time));
    free(source);
    return j;
}
