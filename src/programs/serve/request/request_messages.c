/* Messages: blocks inside messages. A user message may hold results of calls beside text: each result becomes a message
 * of its own, in order. */
#include "programs/serve/request/request_impl.h"

#include <stdlib.h>
#include <string.h>

#include "text/chat_prompt.h"

static bool unsupported(Reader *r, const char *path, const char *type)
{
    Path p = path_of("%s.type", path);
    return http_fail(r->e, 400, "unsupported_content", p.s, "%s is \"%.60s\", which the model cannot read", p.s, type);
}

/* Adds a text document. */
static bool add_document(Reader *r, json_t *parts, const json_t *block, const char *path)
{
    const json_t *source = json_object_get(block, "source"), *data = json_object_get(source, "data");
    const char *title = json_string_value(json_object_get(block, "title"));
    if (strcmp(type_field(source), "text") != 0 || !json_is_string(data)) return unsupported(r, path, "document");
    if (title && *title) {
        add_part(r, parts, title, strlen(title));
        add_part(r, parts, "\n", 1);
    }
    add_part(r, parts, json_string_value(data), json_string_length(data));
    return true;
}

/* Adds search results as lines: title, source, texts. */
static void add_search_result(Reader *r, json_t *parts, const json_t *block)
{
    static const char *const KEYS[] = { "title", "source" };
    for (size_t i = 0; i < 2; i++) {
        const json_t *v = json_object_get(block, KEYS[i]);
        if (json_string_length(v) == 0) continue;
        add_part(r, parts, json_string_value(v), json_string_length(v));
        add_part(r, parts, "\n", 1);
    }
    size_t i;
    json_t *one;
    json_array_foreach(json_object_get(block, "content"), i, one) {
        const json_t *text = json_object_get(one, "text");
        if (json_string_length(text) > 0) add_part(r, parts, json_string_value(text), json_string_length(text));
    }
}

/* Adds a block that can be read as text. *known: whether it was one. */
static bool add_text_block(Reader *r, json_t *parts, const json_t *block, const char *path, bool *known)
{
    const char *type = type_field(block);
    *known = true;
    if (strcmp(type, "text") == 0) {
        const json_t *text = json_object_get(block, "text");
        Path p = path_of("%s.text", path);
        if (!json_is_string(text)) return refuse(r, p.s, "%s is not a string", p.s);
        name_others(r, block, path, "type|text|cache_control|citations");
        add_part(r, parts, json_string_value(text), json_string_length(text));
        return true;
    }
    if (strcmp(type, "document") == 0) return add_document(r, parts, block, path);
    if (strcmp(type, "search_result") == 0) {
        add_search_result(r, parts, block);
        return true;
    }
    *known = false;
    return true;
}

/* Text blocks, as the content of a result or of instructions. NULL: refused. */
static json_t *read_blocks(Reader *r, const json_t *content, const char *path)
{
    if (!content || json_is_null(content)) return keep(r, json_string(""));
    if (json_is_string(content)) return keep(r, json_copy((json_t *) (uintptr_t) content));
    json_t *parts = keep(r, json_array());
    bool good = json_is_array(content) || refuse(r, path, "%s is neither a string nor a list of blocks", path),
         known = true;
    for (size_t i = 0; good && i < json_array_size(content); i++) {
        const json_t *block = json_array_get(content, i);
        Path p = path_of("%s[%zu]", path, i);
        good = json_is_object(block) || refuse(r, p.s, "%s is not an object", p.s);
        good = good && add_text_block(r, parts, block, p.s, &known) &&
               (known || unsupported(r, p.s, type_field(block)));
    }
    if (good) return parts_content(r, parts);
    json_decref(parts);
    return NULL;
}

/* ---- the user ---- */

static bool add_tool_result(Reader *r, const json_t *block, const char *path)
{
    const char *id;
    Path p = path_of("%s.tool_use_id", path), c = path_of("%s.content", path);
    if (!text_field(r, &id, block, path, "tool_use_id")) return false;
    if (!id) return refuse(r, p.s, "%s is missing", p.s);
    name_others(r, block, path, "type|tool_use_id|content|is_error|cache_control");
    json_t *content = read_blocks(r, json_object_get(block, "content"), c.s);
    if (!content) return r->e->status == 0;
    if (json_is_true(json_object_get(block, "is_error"))) {
        json_t *text = content_text(r, content);
        json_decref(content);
        content = keep(r, json_sprintf("Error: %s", text ? json_string_value(text) : ""));
        json_decref(text);
    }
    add_result(r, id, NULL, content);
    return true;
}

static void end_user(Reader *r, json_t **parts, bool always)
{
    if (json_array_size(*parts) > 0 || always) add_message(r, "user", parts_content(r, *parts));
    else json_decref(*parts);
    *parts = keep(r, json_array());
}

static bool read_user(Reader *r, const json_t *content, const char *path)
{
    json_t *parts = keep(r, json_array());
    bool good = true, known;
    for (size_t i = 0; good && i < json_array_size(content); i++) {
        const json_t *block = json_array_get(content, i);
        Path p = path_of("%s[%zu]", path, i);
        good = json_is_object(block) || refuse(r, p.s, "%s is not an object", p.s);
        good = good && add_text_block(r, parts, block, p.s, &known);
        if (!good || known) continue;
        if (strcmp(type_field(block), "tool_result") == 0) {
            end_user(r, &parts, false);
            good = add_tool_result(r, block, p.s);
        } else good = unsupported(r, p.s, type_field(block));
    }
    if (good) end_user(r, &parts, json_array_size(content) == 0);
    json_decref(parts);
    return good;
}

/* ---- the assistant ---- */

static bool add_tool_use(Reader *r, json_t *m, const json_t *block, const char *path)
{
    const char *id, *name;
    Path p = path_of("%s.name", path), at = path_of("%s.input", path);
    const json_t *input = json_object_get(block, "input");
    if (!text_field(r, &id, block, path, "id") || !text_field(r, &name, block, path, "name")) return false;
    if (!name || !*name) return refuse(r, p.s, "%s is missing", p.s);
    name_others(r, block, path, "type|id|name|input|cache_control");
    if (input && !json_is_null(input) && !json_is_object(input)) return refuse(r, at.s, "%s is not an object", at.s);
    return add_call(r, m, id, name, json_is_object(input) ? json_deep_copy(input) : json_object(), path);
}

static bool add_thinking(Reader *r, json_t *m, json_t *reasoning, const json_t *block, const char *path)
{
    const char *text, *signature;
    if (!text_field(r, &text, block, path, "thinking") || !text_field(r, &signature, block, path, "signature"))
        return false;
    name_others(r, block, path, "type|thinking|signature");
    if (text && *text) {
        if (json_array_size(reasoning) > 0) add_part(r, reasoning, "\n", 1);
        add_part(r, reasoning, text, strlen(text));
    }
    if (signature) set_handle(r, m, signature);
    return true;
}

/* Adds results of tools that ran on the provider's servers, as JSON. */
static void add_foreign(Reader *r, json_t *parts, const json_t *block)
{
    char *text = json_dumps(block, 0);
    if (text) add_part(r, parts, text, strlen(text));
    else r->no_memory = true;
    free(text);
}

static bool read_assistant_block(Reader *r, json_t *m, json_t *parts, json_t *reasoning, const json_t *block,
                                 const char *path)
{
    bool known;
    const char *type = type_field(block);
    if (!json_is_object(block)) return refuse(r, path, "%s is not an object", path);
    if (!add_text_block(r, parts, block, path, &known)) return false;
    if (known || strcmp(type, "redacted_thinking") == 0) return true;
    if (strcmp(type, "thinking") == 0) return add_thinking(r, m, reasoning, block, path);
    if (strcmp(type, "tool_use") == 0) return add_tool_use(r, m, block, path);
    size_t n = strlen(type), k = strlen("_tool_result");
    if (strcmp(type, "server_tool_use") != 0 && (n < k || strcmp(type + n - k, "_tool_result") != 0))
        return unsupported(r, path, type);
    add_foreign(r, parts, block);
    return true;
}

static bool read_assistant(Reader *r, const json_t *content, const char *path)
{
    json_t *m = add_message(r, "assistant", NULL), *parts = keep(r, json_array()), *reasoning = keep(r, json_array());
    bool good = true;
    for (size_t i = 0; good && i < json_array_size(content); i++) {
        Path p = path_of("%s[%zu]", path, i);
        good = read_assistant_block(r, m, parts, reasoning, json_array_get(content, i), p.s);
    }
    keep_in(r, m, "content", parts_content(r, parts));
    if (json_array_size(reasoning) > 0) keep_in(r, m, "reasoning_content", content_text(r, reasoning));
    json_decref(reasoning);
    return good;
}

/* ---- the whole request ---- */

static bool read_message(Reader *r, const json_t *given, const char *path)
{
    const char *role;
    if (!json_is_object(given)) return refuse(r, path, "%s is not an object", path);
    if (!text_field(r, &role, given, path, "role")) return false;
    Path p = path_of("%s.role", path), c = path_of("%s.content", path);
    if (!role || !is_among("user|assistant|system", role, strlen(role)))
        return refuse(r, p.s, "%s is \"%.60s\", expected user or assistant", p.s, role ? role : "");
    name_others(r, given, path, "role|content");
    const json_t *content = json_object_get(given, "content");
    if (json_is_string(content)) {
        add_message(r, role, keep(r, json_copy((json_t *) (uintptr_t) content)));
        return true;
    }
    if (!json_is_array(content)) return refuse(r, c.s, "%s is neither a string nor a list of blocks", c.s);
    if (role[0] == 'u') return read_user(r, content, c.s);
    if (role[0] == 'a') return read_assistant(r, content, c.s);
    json_t *text = read_blocks(r, content, c.s);
    if (text) add_message(r, role, text);
    return text || r->e->status == 0;
}

/* Each block of the instructions becomes a message; they are joined by blank lines if the template wants one. */
static bool read_system(Reader *r)
{
    const json_t *system = json_object_get(r->body, "system");
    size_t n = json_is_string(system) ? 1 : json_array_size(system);
    for (size_t i = 0; i < n; i++) {
        const json_t *block = json_is_string(system) ? system : json_array_get(system, i),
                     *text = json_is_string(system) ? system : json_object_get(block, "text");
        Path p = path_of("system[%zu]", i);
        if (!json_is_string(system) && (strcmp(type_field(block), "text") != 0 || !json_is_string(text)))
            return refuse(r, p.s, "%s is not a text block", p.s);
        json_t *kept = system_text(r, json_string_value(text));
        if (kept) add_message(r, "system", kept);
    }
    return true;
}

static bool wants_context_window(const Reader *r)
{
    const char *beta = r->headers ? r->headers->anthropic_beta : NULL;
    return beta && strstr(beta, "model-context-window-exceeded");
}

bool read_messages(Reader *r)
{
    Request *q = r->q;
    const json_t *all = messages_field(r);
    size_t n = json_array_size(all);
    if (!all || !read_system(r)) return false;
    for (size_t i = 0; i < n; i++) {
        Path p = path_of("messages[%zu]", i);
        if (!read_message(r, json_array_get(all, i), p.s)) return false;
    }
    const json_t *last = json_array_get(q->messages, json_array_size(q->messages) - 1);
    /* that is what it means in this dialect */
    q->continue_final = role_is(last, "assistant") && !json_object_get(last, "tool_calls");
    q->beta_context_window = wants_context_window(r);
    return read_tools_messages(r) && read_choice(r);
}
