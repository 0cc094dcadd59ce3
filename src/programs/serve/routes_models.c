#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "programs/sampling.h"
#include "programs/serve/routes.h"

static json_t *text_property(const rt_engine *g, const char *key)
{
    char text[512] = "";
    return rt_property(g, key, text, sizeof text) ? json_text(text, strlen(text)) : json_null();
}

json_t *time_json(int64_t seconds)
{
    char text[40] = "";
    time_t t = (time_t) seconds;
    struct tm utc;
    if (gmtime_r(&t, &utc)) strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc);
    return json_string(text);
}

/* ---- /v1/models ---- */

/* As OpenAI lists a model and, with type, display_name and created_at, Anthropic. */
static json_t *one(const Server *s, const char *name)
{
    const rt_engine *g = s->p.engine;
    json_t *meta = json_pack("{s:I s:i s:I s:I s:o s:o}", "n_ctx_train", (json_int_t) property(g, "model.ctx"),
                             "n_vocab", s->vocab, "n_params", (json_int_t) property(g, "model.parameters"), "size",
                             (json_int_t) property(g, "model.bytes"), "arch", text_property(g, "model.arch"), "name",
                             text_property(g, "model.name"));
    json_t *can = json_pack("[s]", "completion");
    if (s->chat) json_array_append_new(can, json_string("chat"));
    if (s->tools) json_array_append_new(can, json_string("tools"));
    if (s->thinks) json_array_append_new(can, json_string("reasoning"));
    json_t *fields = json_pack("[s,s,s,s,s]", "max_tokens", "temperature", "stop", "seed", "stream");
    static const char *const by_token[] = { "top_p", "top_k", "min_p", "response_format", "logprobs", "logit_bias" };
    for (int i = 0; !s->defaults.denoises && i < 6; i++) json_array_append_new(fields, json_string(by_token[i]));
    static const char *const tools[] = { "tools", "tool_choice" };
    for (int i = 0; s->tools && i < 2; i++) json_array_append_new(fields, json_string(tools[i]));
    if (s->thinks) json_array_append_new(fields, json_string("reasoning_effort"));
    return json_pack("{s:s s:s s:I s:s s:s s:s s:o s:i s:i s:i s:o s:o s:o}", "id", name, "object", "model",
                     "created", (json_int_t) s->model_time, "owned_by", "ratoon", "type", "model", "display_name",
                     name, "created_at", time_json(s->model_time), "context_length", s->ctx, "max_context_length",
                     s->ctx, "max_model_len", s->ctx, "meta", meta, "capabilities", can, "supported_parameters",
                     fields);
}

static const char *const EFFORTS_SHOWN[][2] = { { "low", "Short reasoning" }, { "medium", "Some reasoning" },
                                                { "high", "Long reasoning" }, { "xhigh", "Very long reasoning" } };

/* The form that Codex reads: it decodes all of the list or nothing, so every field it requires is present, and none
 * whose values differ between its versions (apply_patch_tool_type). The instructions replace its own. */
static json_t *for_codex(const Server *s, const char *name)
{
    static const char instructions[] =
        "You are a coding agent in the user's terminal. Work in the current folder: look at the files before you "
        "change them, use the tools to read, "
        "edit and run commands, keep to the style of the code around, and check what you did by running it. Go "
        "on until the task is done. "
        "Say plainly what you changed, what you ran, and what failed. Ask before anything that cannot be undone.";
    json_t *levels = json_array();
    for (size_t i = 0; s->thinks && i < sizeof EFFORTS_SHOWN / sizeof *EFFORTS_SHOWN; i++)
        json_array_append_new(levels, json_pack("{s:s s:s}", "effort", EFFORTS_SHOWN[i][0], "description",
                                                EFFORTS_SHOWN[i][1]));
    json_t *j = json_pack("{s:s s:s s:s s:o s:s s:s s:b s:i s:s s:b s:b s:{s:s s:i} s:b s:[]}", "slug", name,
                          "display_name", name, "description", "A local model", "supported_reasoning_levels", levels,
                          "shell_type", "shell_command", "visibility", "list", "supported_in_api", 1, "priority", 1,
                          "base_instructions", instructions, "supports_reasoning_summaries",
                          s->thinks, "support_verbosity", 0, "truncation_policy", "mode", "bytes",
                          "limit", 10000, "supports_parallel_tool_calls", s->tools, "experimental_supported_tools");
    if (!j) return NULL;
    json_object_set_new(j, "context_window", json_integer(s->ctx));
    json_object_set_new(j, "auto_compact_token_limit", json_integer((json_int_t) s->ctx * 4 / 5));
    json_object_set_new(j, "effective_context_window_percent", json_integer(95));
    json_object_set_new(j, "input_modalities", json_pack("[s]", "text"));
    json_object_set_new(j, "minimal_client_version", json_pack("[i,i,i]", 0, 99, 0));
    if (s->thinks) json_object_set_new(j, "default_reasoning_level", json_string("medium"));
    return j;
}

json_t *models_list(const Server *s)
{
    json_t *data = json_array(), *codex = json_array();
    for (int32_t i = 0; i < s->n_names; i++) {
        json_array_append_new(data, one(s, s->names[i]));
        json_array_append_new(codex, for_codex(s, s->names[i]));
    }
    const char *first = s->names[0], *last = s->names[s->n_names - 1];
    return json_pack("{s:s s:o s:b s:o s:o s:o}", "object", "list", "data", data, "has_more", 0, "first_id",
                     json_text(first, strlen(first)), "last_id", json_text(last, strlen(last)), "models", codex);
}

json_t *models_one(const Server *s, const char *id)
{
    for (int32_t i = 0; i < s->n_names; i++)
        if (strcmp(s->names[i], id) == 0) return one(s, id);
    return NULL;
}

/* ---- /props ---- */

static json_t *file_name(const Server *s, const char *path)
{
    /* do not reveal local paths to other machines */
    return json_string(http_loopback(s->http) ? path : base_name(path));
}

static json_t *caps(const Server *s)
{
    const ChatCaps *c = s->chat ? chat_prompt_caps(s->chat) : &(ChatCaps) { 0 };
    return json_pack("{s:b s:b s:b s:b s:b s:b s:b}", "system", c->system, "tools", c->tools, "tool_calls",
                     c->tool_calls, "parallel_calls", c->parallel_calls, "tool_results", c->tool_results, "thinking",
                     c->thinking, "keeps_thinking", c->keeps_thinking);
}

static json_t *endpoints(void)
{
    json_t *list = json_array();
    int32_t n;
    const Route *r = routes_table(&n);
    for (int32_t i = 0; i < n; i++) {
        if (r[i].flags & ROUTE_REFUSED) continue;
        if (r[i].methods & METHOD_GET) json_array_append_new(list, json_sprintf("GET %s", r[i].path));
        if (r[i].methods & METHOD_POST) json_array_append_new(list, json_sprintf("POST %s", r[i].path));
        if (r[i].methods & METHOD_DELETE) json_array_append_new(list, json_sprintf("DELETE %s", r[i].path));
    }
    return list;
}

static json_t *reasoning(const Server *s)
{
    static const char *const ways[] = { [THINK_OFF] = "off", [THINK_ON] = "on", [THINK_AUTO] = "auto" };
    json_t *efforts = json_array();
    for (size_t i = 0; s->thinks && i < sizeof EFFORTS_SHOWN / sizeof *EFFORTS_SHOWN; i++)
        json_array_append_new(efforts, json_string(EFFORTS_SHOWN[i][0]));
    return json_pack("{s:b s:s s:o}", "supported", s->thinks, "default",
                     ways[s->thinks ? s->defaults.thinking : THINK_OFF], "supported_efforts", efforts);
}

/* How much of a mixture's experts is in memory, and how the others are read; null: all are. */
static json_t *experts(const Server *s)
{
    const rt_expert_stats *e = &s->p.loaded;
    if (e->slots == 0) return json_null();
    return json_pack("{s:I s:I s:I s:I s:s s:b}", "ram_bytes", (json_int_t) e->bytes, "all_bytes",
                     (json_int_t) property(s->p.engine, "model.experts.bytes"), "slots", (json_int_t) e->slots,
                     "pinned", (json_int_t) e->pinned, "io", e->io, "profile", s->p.profile.there);
}

json_t *models_props(const Server *s)
{
    const rt_engine *g = s->p.engine;
    const Options *o = &s->o;
    const char *draft = s->p.files.draft;
    size_t n = rt_property(g, "chat_template", NULL, 0);
    char *source = n ? malloc(n + 1) : NULL;
    if (source) rt_property(g, "chat_template", source, n + 1);
    CacheStats c = { 0 };
    if (s->cache) cache_stats(s->cache, &c);
    json_t *settings = sampling_json(&s->defaults.sampling);
    json_object_set_new(settings, "n_ctx", json_integer(s->ctx));
    json_object_set_new(settings, "seed", json_integer(-1));
    json_t *j = json_pack("{s:o s:i s:o s:o s:o s:s s:b}", "default_generation_settings", settings,
                          "total_slots", o->parallel, "model_path", file_name(s, s->p.files.model), "chat_template",
                          source ? json_text(source, n) : json_null(), "chat_template_caps", caps(s), "build_info",
                          rt_version(), "is_sleeping", 0);
    free(source);
    if (!j) return NULL;
    json_object_set_new(j, "model_alias", json_string(s->name));
    json_object_set_new(j, "speculative_mode",
                        json_string(o->budget == BUDGET_OPTION_PLAIN || (!draft[0] && o->ngram < 0)
                                    ? "off" : strcmp(draft, "mtp") == 0 ? "mtp" : draft[0] ? "dflash" : "text"));
    json_object_set_new(j, "server",
                        json_pack("{s:s s:s s:i}", "name", "ratoon", "version", rt_version(), "props_schema", 2));
    json_object_set_new(j, "model", json_pack("{s:o s:o s:o}", "arch", text_property(g, "model.arch"), "draft_path",
                                              draft[0] ? file_name(s, draft) : json_null(), "tokenizer_id",
                                              text_property(g, "model.tokenizer")));
    json_object_set_new(j, "runtime", json_pack("{s:o s:i s:o s:i}", "backend", text_property(g, "backend"),
                                                "fa_window", o->fa_window, "kv_cache", text_property(g, "kv"), "chunk",
                                                o->chunk ? o->chunk : (int) property(g, "backend.chunk")));
    json_object_set_new(j, "canvas", json_integer((json_int_t) property(g, "model.canvas")));
    json_object_set_new(j, "experts", experts(s));
    json_object_set_new(j, "reasoning", reasoning(s));
    json_object_set_new(j, "tool_format", json_string(call_format_name(s->style.calls)));
    json_object_set_new(j, "prefix_cache",
                        json_pack("{s:I s:I s:I s:I}", "capacity", (json_int_t) c.ram_limit, "in_use",
                                  (json_int_t) c.ram_bytes, "lifetime_hits", (json_int_t) (c.hits_ram + c.hits_disk),
                                  "disk_bytes", (json_int_t) c.disk_bytes));
    json_object_set_new(j, "api", json_pack("{s:o}", "endpoints", endpoints()));
    return j;
}
