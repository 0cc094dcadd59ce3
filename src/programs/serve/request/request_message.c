/* Messages in the form of chat_prompt.h, from every dialect. The client's values are copied and never changed in the
 * body, since an answer shows the body again. */
#include "programs/serve/request/request_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const json_t *messages_field(Reader *r)
{
    const json_t *all = json_object_get(r->body, "messages");
    size_t n = json_array_size(all);
    if (n == 0)
        refuse(r, "messages", "messages is %s, expected a list of at least one message",
               json_is_array(all) ? "empty" : "missing");
    else if (n > MESSAGES_MAX)
        refuse(r, "messages", "messages has %zu elements, expected at most %d", n, MESSAGES_MAX);
    else
        return all;
    return NULL;
}

json_t *add_message(Reader *r, const char *role, json_t *content)
{
    json_t *m = keep(r, json_object());
    keep_in(r, m, "role", json_string(role));
    if (content) keep_in(r, m, "content", content);
    bool kept = keep_add(r, r->q->messages, m);
    keep_add(r, r->q->handles, json_null());
    return kept ? m : NULL;
}

void add_part(Reader *r, json_t *parts, const char *text, size_t n)
{
    json_t *part = keep(r, json_object());
    keep_in(r, part, "type", json_string("text"));
    keep_in(r, part, "text", json_stringn(text, n));
    keep_add(r, parts, part);
}

json_t *parts_content(Reader *r, json_t *parts)
{
    json_t *content = parts;
    if (json_array_size(parts) == 0) content = keep(r, json_string(""));
    if (json_array_size(parts) == 1) content = json_incref(json_object_get(json_array_get(parts, 0), "text"));
    if (content != parts) json_decref(parts);
    return content;
}

static bool read_part(Reader *r, json_t *parts, const json_t *part, const char *path)
{
    const char *type = type_field(part), *key = strcmp(type, "refusal") == 0 ? "refusal" : "text";
    if (!json_is_object(part)) return refuse(r, path, "%s is not an object", path);
    if (!is_among("text|input_text|output_text|refusal", type, strlen(type))) {
        Path p = path_of("%s.type", path);
        return http_fail(r->e, 400, "unsupported_content", p.s,
                         "%s is \"%.60s\", expected text: the model reads nothing else", p.s, type);
    }
    const json_t *text = json_object_get(part, key);
    if (!json_is_string(text)) {
        Path p = path_of("%s.%s", path, key);
        return refuse(r, p.s, "%s is not a string", p.s);
    }
    name_others(r, part, path, "type|text|refusal|annotations|logprobs|cache_control");
    add_part(r, parts, json_string_value(text), json_string_length(text));
    return true;
}

json_t *read_content(Reader *r, const json_t *content, const char *path)
{
    if (!content || json_is_null(content)) return keep(r, json_string(""));
    if (json_is_string(content)) return keep(r, json_copy((json_t *) (uintptr_t) content));
    if (!json_is_array(content)) {
        refuse(r, path, "%s is neither a string nor a list of parts", path);
        return NULL;
    }
    json_t *parts = keep(r, json_array()), *part;
    size_t i;
    json_array_foreach((json_t *) (uintptr_t) content, i, part) {
        Path p = path_of("%s[%zu]", path, i);
        if (!read_part(r, parts, part, p.s)) {
            json_decref(parts);
            return NULL;
        }
    }
    return parts_content(r, parts);
}

json_t *content_text(Reader *r, const json_t *content)
{
    size_t n = 0, i;
    json_t *part;
    if (json_is_string(content)) return keep(r, json_copy((json_t *) (uintptr_t) content));
    json_array_foreach((json_t *) (uintptr_t) content, i, part) n += json_string_length(json_object_get(part, "text"));
    char *s = malloc(n + 1), *w = s;
    if (!s) return keep(r, NULL);
    json_array_foreach((json_t *) (uintptr_t) content, i, part) {
        const json_t *text = json_object_get(part, "text");
        if (json_string_length(text) > 0) w = mempcpy(w, json_string_value(text), json_string_length(text));
    }
    json_t *all = keep(r, json_stringn(s, (size_t) (w - s)));
    free(s);
    return all;
}

/* ---- calls and results ---- */

bool add_call(Reader *r, json_t *message, const char *id, const char *name, json_t *arguments, const char *path)
{
    json_t *calls = json_object_get(message, "tool_calls"), *call = keep(r, json_object()),
           *function = keep(r, json_object());
    if (!calls) {
        calls = json_array();
        if (!keep_in(r, message, "tool_calls", calls)) calls = NULL;
    }
    if (id) {
        keep_in(r, call, "id", json_string(id));
        keep_in(r, r->call_names, id, json_string(name));
    }
    keep_in(r, call, "type", json_string("function"));
    keep_in(r, function, "name", json_string(name));
    keep_in(r, function, "arguments", arguments);
    keep_in(r, call, "function", function);
    bool fits = json_array_size(calls) < CALLS_MAX;
    keep_add(r, calls, call);
    return fits || refuse(r, path, "%s: more than %d calls in one turn", path, CALLS_MAX);
}

void add_result(Reader *r, const char *call_id, const char *name, json_t *content)
{
    json_t *m = add_message(r, "tool", content);
    if (call_id) keep_in(r, m, "tool_call_id", json_string(call_id));
    if (!name && call_id) name = json_string_value(json_object_get(r->call_names, call_id));
    if (name) keep_in(r, m, "name", json_string(name));
}

void set_handle(Reader *r, const json_t *message, const char *handle)
{
    size_t n = json_array_size(r->q->messages);
    if (n == 0 || json_array_get(r->q->messages, n - 1) != message || strncmp(handle, "v1.", 3) != 0) return;
    if (json_array_set_new(r->q->handles, n - 1, json_string(handle)) != 0) r->no_memory = true;
}

/* ---- the volatile line ---- */

/* Claude Code starts its instructions with a line whose numbers differ in every request; kept, it would make every
 * prompt a new one. The text is what follows the line's last semicolon, unless that is another name=value, and the
 * lines below it. */
json_t *system_text(Reader *r, const char *text)
{
    static const char NAME[] = "x-anthropic-billing-header:";
    const char *start = text + strspn(text, " \t\r\n");
    if (strncmp(start, NAME, sizeof NAME - 1) != 0) return keep(r, json_string(text));
    size_t line = strcspn(start, "\n");
    const char *below = start + line, *rest = below, *semicolon = memrchr(start, ';', line);
    if (semicolon) rest = semicolon + 1;
    rest += strspn(rest, " \t\r");
    size_t word = strspn(rest, "abcdefghijklmnopqrstuvwxyz_"), value = strcspn(rest, " \t\r\n");
    if (word > 0 && rest[word] == '=' && rest + value + strspn(rest + value, " \t\r") == below) rest = below;
    rest += strspn(rest, "\r\n");
    return rest[strspn(rest, " \t\r\n")] ? keep(r, json_string(rest)) : NULL;
}
