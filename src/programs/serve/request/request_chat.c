/* Chat Completions, and Ollama's chat: messages are nearly in the form that templates want. */
#include "programs/serve/request/request_impl.h"

#include <string.h>

#include "text/chat_prompt.h"

static bool read_tool_calls(Reader *r, json_t *m, const json_t *calls, const char *path)
{
    size_t i;
    json_t *call;
    json_array_foreach((json_t *) (uintptr_t) calls, i, call) {
        Path p = path_of("%s.tool_calls[%zu]", path, i);
        if (!json_is_object(call)) return refuse(r, p.s, "%s is not an object", p.s);
        bool custom = strcmp(type_field(call), "custom") == 0;
        name_others(r, call, p.s, "id|type|index|function|custom");
        const char *key = custom ? "custom" : "function", *id, *name;
        const json_t *f = json_object_get(call, key), *arguments = json_object_get(f, custom ? "input" : "arguments");
        if (!text_field(r, &id, call, p.s, "id")) return false;
        Path at = path_of("%s.%s", p.s, key);
        if (!json_is_object(f)) return refuse(r, at.s, "%s is not an object", at.s);
        if (!text_field(r, &name, f, at.s, "name")) return false;
        if (!name || !*name) return refuse(r, at.s, "%s has no name", at.s);
        if (arguments && !json_is_null(arguments) && !json_is_string(arguments) &&
            (custom || !json_is_object(arguments)))
            return refuse(r, at.s, "%s: the arguments are neither a string nor an object", at.s);
        json_t *value = custom ? json_pack("{s:O}", "input", arguments ? arguments : json_null())
                               : arguments && !json_is_null(arguments) ? json_deep_copy(arguments) : json_string("{}");
        if (!add_call(r, m, id, name, value, p.s)) return false;
    }
    return true;
}

/* The predecessor of tool_calls; its result has the role function and no id. */
static bool read_function_call(Reader *r, json_t *m, const json_t *f, const char *path)
{
    const char *name, *arguments;
    Path p = path_of("%s.function_call", path);
    if (!json_is_object(f)) return refuse(r, p.s, "%s is not an object", p.s);
    if (!text_field(r, &name, f, p.s, "name") || !text_field(r, &arguments, f, p.s, "arguments")) return false;
    if (!name || !*name) return refuse(r, p.s, "%s has no name", p.s);
    return add_call(r, m, NULL, name, json_string(arguments ? arguments : "{}"), p.s);
}

static bool read_assistant(Reader *r, const json_t *given, json_t *content, const char *path)
{
    static const char *const REASONING[] = { "reasoning_content", "reasoning", "thinking" };
    const json_t *calls = json_object_get(given, "tool_calls"), *old = json_object_get(given, "function_call");
    const char *text = NULL, *refusal;
    json_t *m = add_message(r, "assistant", content);
    for (size_t i = 0; i < 3; i++) {
        const char *one;
        if (!text_field(r, &one, given, path, REASONING[i])) return false;
        if (!text) text = one;
    }
    if (text && *text) keep_in(r, m, "reasoning_content", json_string(text));
    if (!text_field(r, &refusal, given, path, "refusal")) return false;
    if (refusal && json_is_string(content) && json_string_length(content) == 0)
        keep_in(r, m, "content", json_string(refusal));
    if (calls && !json_is_null(calls)) {
        Path p = path_of("%s.tool_calls", path);
        if (!json_is_array(calls)) return refuse(r, p.s, "%s is not a list", p.s);
        if (!read_tool_calls(r, m, calls, path)) return false;
    }
    if (old && !json_is_null(old) && json_array_size(calls) == 0 && !read_function_call(r, m, old, path)) return false;
    if (json_is_object(json_object_get(given, "audio"))) {
        Path p = path_of("%s.audio", path);
        return http_fail(r->e, 400, "unsupported_content", p.s, "%s is not supported: the model reads text only", p.s);
    }
    return true;
}

/* Adds a system message; the first one without the line that changes. */
static void add_system(Reader *r, const char *role, json_t *content)
{
    if (json_array_size(r->q->messages) > 0) {
        add_message(r, role, content);
        return;
    }
    json_t *all = content_text(r, content);
    const char *s = json_string_value(all);
    json_t *text = s ? system_text(r, s) : NULL;
    /* keep a list of parts as it is */
    if (text && strcmp(json_string_value(text), s) == 0) add_message(r, role, json_incref(content));
    else if (text) add_message(r, role, json_incref(text));
    json_decref(text);
    json_decref(all);
    json_decref(content);
}

static bool read_message(Reader *r, const json_t *given, const char *path)
{
    const char *role, *name, *id;
    if (!json_is_object(given)) return refuse(r, path, "%s is not an object", path);
    if (!text_field(r, &role, given, path, "role") || !text_field(r, &name, given, path, "name") ||
        !text_field(r, &id, given, path, "tool_call_id"))
        return false;
    Path p = path_of("%s.role", path), c = path_of("%s.content", path);
    if (!role) return refuse(r, p.s, "%s is missing", p.s);
    if (!is_among("system|developer|user|assistant|tool|function|ipython", role, strlen(role)))
        return refuse(r, p.s, "%s is \"%.60s\", expected system, developer, user, assistant or tool", p.s, role);
    bool ollama = is_ollama(r->q->dialect);
    const json_t *given_content = json_object_get(given, "content");
    if (!ollama && strcmp(role, "user") == 0 && (!given_content || json_is_null(given_content)))
        return refuse(r, c.s, "%s is missing", c.s);
    const json_t *images = json_object_get(given, "images");
    if (ollama && json_array_size(images) > 0) {
        Path at = path_of("%s.images", path);
        return http_fail(r->e, 400, "unsupported_content", at.s, "%s is not supported: the model reads text only",
                         at.s);
    }
    if (ollama && !name && !text_field(r, &name, given, path, "tool_name")) return false;
    name_others(r, given, path,
                ollama ? "role|content|name|tool_calls|tool_call_id|tool_name|thinking|images"
                       : "role|content|name|tool_calls|tool_call_id|function_call|reasoning_content|reasoning|thinking|"
                         "refusal|audio|annotations|cache_control");
    json_t *content = read_content(r, given_content, c.s);
    if (!content) return false;
    if (strcmp(role, "assistant") == 0) return read_assistant(r, given, content, path);
    if (strcmp(role, "user") == 0) {
        json_t *m = add_message(r, role, content);
        if (name) keep_in(r, m, "name", json_string(name));
    } else if (role[0] == 's' || role[0] == 'd') {
        add_system(r, role, content);
    } else {
        add_result(r, id, name, content);
    }
    return true;
}

bool read_chat(Reader *r)
{
    Request *q = r->q;
    const json_t *all = messages_field(r), *last;
    size_t n = json_array_size(all);
    if (!all) return false;
    for (size_t i = 0; i < n; i++) {
        Path p = path_of("messages[%zu]", i);
        if (!read_message(r, json_array_get(all, i), p.s)) return false;
    }
    if (json_array_size(q->messages) == 0)
        return refuse(r, "messages", "messages holds nothing but a header without a text");
    n = json_array_size(q->messages);
    last = json_array_get(q->messages, n - 1);
    bool open = role_is(last, "assistant") && !json_object_get(last, "tool_calls");
    if (q->continue_final && !open)
        return refuse(r, "continue_final_message",
                      "continue_final_message: the last message is no text of the assistant");
    q->continue_final |= open && (r->d->prefill_assistant || is_ollama(q->dialect));
    if (json_is_false(json_object_get(r->body, "add_generation_prompt")) && !q->continue_final)
        return refuse(r, "add_generation_prompt",
                      "add_generation_prompt is false, which goes with continue_final_message alone");
    if (q->continue_final && n > 1 && role_is(json_array_get(q->messages, n - 2), "assistant"))
        return refuse(r, "messages",
                      "the last two messages are both the assistant's, so none of them can be continued");
    return read_tools_chat(r) && read_choice(r);
}
