/* Responses: a list of items in which one assistant turn is spread over several. Consecutive reasoning, text and calls
 * become one message; anything else ends the turn. */
#include "programs/serve/request/request_impl.h"

#include <stdlib.h>
#include <string.h>

/* The assistant turn being read. Its pieces are collected, since joining them one by one would copy them repeatedly. */
typedef struct {
    Reader *r;
    json_t *message;                               /* borrowed; NULL: none is open */
    json_t *text, *reasoning;                      /* lists of parts */
} TurnReader;

static void end_turn(TurnReader *t)
{
    Reader *r = t->r;
    if (t->message) {
        keep_in(r, t->message, "content", parts_content(r, json_incref(t->text)));
        json_t *all = json_array_size(t->reasoning) > 0 ? content_text(r, t->reasoning) : NULL;
        if (all) keep_in(r, t->message, "reasoning_content", all);
    }
    json_decref(t->text);
    json_decref(t->reasoning);
    *t = (TurnReader) { .r = r };
}

static json_t *open_turn(TurnReader *t)
{
    if (!t->message) {
        t->message = add_message(t->r, "assistant", NULL);
        t->text = keep(t->r, json_array());
        t->reasoning = keep(t->r, json_array());
    }
    return t->message;
}

static bool read_message_item(TurnReader *t, const json_t *item, const char *path)
{
    Reader *r = t->r;
    const char *role;
    if (!text_field(r, &role, item, path, "role")) return false;
    Path p = path_of("%s.role", path), c = path_of("%s.content", path);
    if (!role || !is_among("user|system|developer|assistant", role, strlen(role)))
        return refuse(r, p.s, "%s is \"%.60s\", expected user, system, developer or assistant", p.s, role ? role : "");
    name_others(r, item, path, "type|role|content|id|status|phase");
    json_t *content = read_content(r, json_object_get(item, "content"), c.s), *part;
    if (!content) return false;
    if (strcmp(role, "assistant") != 0) {
        end_turn(t);
        add_message(r, role, content);
        return true;
    }
    open_turn(t);
    if (json_string_length(content) > 0) add_part(r, t->text, json_string_value(content), json_string_length(content));
    size_t i;
    json_array_foreach(content, i, part) keep_add(r, t->text, json_incref(part));
    json_decref(content);
    return true;
}

/* Adds the texts of a list of parts as lines. */
static void add_lines(Reader *r, json_t *lines, const json_t *parts)
{
    size_t i;
    json_t *part;
    json_array_foreach((json_t *) (uintptr_t) parts, i, part) {
        const json_t *text = json_object_get(part, "text");
        if (json_string_length(text) == 0) continue;
        if (json_array_size(lines) > 0) add_part(r, lines, "\n", 1);
        add_part(r, lines, json_string_value(text), json_string_length(text));
    }
}

static bool read_reasoning_item(TurnReader *t, const json_t *item, const char *path)
{
    const char *handle;
    if (!text_field(t->r, &handle, item, path, "encrypted_content")) return false;
    name_others(t->r, item, path, "type|id|status|summary|content|encrypted_content");
    json_t *m = open_turn(t);
    const json_t *content = json_object_get(item, "content");
    add_lines(t->r, t->reasoning, json_array_size(content) > 0 ? content : json_object_get(item, "summary"));
    if (handle) set_handle(t->r, m, handle);
    return true;
}

static bool call_id_of(Reader *r, const char **out, const json_t *item, const char *path)
{
    if (!text_field(r, out, item, path, "call_id")) return false;
    if (!*out && !text_field(r, out, item, path, "id")) return false;
    Path p = path_of("%s.call_id", path);
    return *out || refuse(r, p.s, "%s is missing", p.s);
}

static bool read_call_item(TurnReader *t, const json_t *item, const char *type, const char *path)
{
    Reader *r = t->r;
    const char *id, *name, *space, *text;
    bool custom = type[0] == 'c', shell = type[0] == 'l';
    if (!call_id_of(r, &id, item, path) || !text_field(r, &name, item, path, "name") ||
        !text_field(r, &space, item, path, "namespace") ||
        !text_field(r, &text, item, path, custom ? "input" : "arguments"))
        return false;
    Path p = path_of("%s.name", path);
    name_others(r, item, path, custom ? "type|id|status|call_id|name|namespace|input" : shell
                ? "type|id|status|call_id|action" : "type|id|status|call_id|name|namespace|arguments");
    if (shell) name = "local_shell";
    if (!name || !*name) return refuse(r, p.s, "%s is missing", p.s);
    json_t *model_name = joined_name(r, space, name), *arguments;
    if (custom) arguments = json_pack("{s:s}", "input", text ? text : "");
    else if (shell) {
        arguments = json_deep_copy(json_object_get(item, "action"));
        if (arguments) json_object_del(arguments, "type");
        else arguments = json_object();
    } else arguments = json_string(text && *text ? text : "{}");
    bool good = !model_name || add_call(r, open_turn(t), id, json_string_value(model_name), arguments, path);
    json_decref(model_name);
    return good;
}

static bool read_output_item(TurnReader *t, const json_t *item, const char *path)
{
    Reader *r = t->r;
    const char *id;
    if (!call_id_of(r, &id, item, path)) return false;
    Path p = path_of("%s.call_id", path), at = path_of("%s.output", path);
    if (!json_object_get(r->call_names, id))
        return refuse(r, p.s, "%s is \"%.100s\", and no call with that id comes before it: send the whole history",
                      p.s, id);
    name_others(r, item, path, "type|id|status|call_id|output");
    const json_t *output = json_object_get(item, "output");
    json_t *content;
    if (json_is_object(output)) {
        char *text = json_dumps(output, 0);
        content = text ? keep(r, json_string(text)) : keep(r, NULL);
        free(text);
    } else if (!(content = read_content(r, output, at.s))) return r->no_memory && r->e->status == 0;
    end_turn(t);
    add_result(r, id, NULL, content);
    return true;
}

/* What the model reads and therefore must be stored. */
#define CALL_ITEMS "function_call|custom_tool_call|local_shell_call"
#define READ_ITEMS \
    "message|reasoning|" CALL_ITEMS "|function_call_output|custom_tool_call_output|local_shell_call_output"

static bool read_item(TurnReader *t, const json_t *item, const char *path, bool looked_up);

static bool read_reference(TurnReader *t, const json_t *item, const char *path)
{
    Reader *r = t->r;
    const char *id;
    if (!text_field(r, &id, item, path, "id")) return false;
    Path p = path_of("%s.id", path);
    json_t *found = id && r->d->lookup.item ? r->d->lookup.item(r->d->lookup.ud, id) : NULL;
    if (!found) return refuse(r, p.s, "%s is \"%.100s\", and no item with that id is stored", p.s, id ? id : "");
    return !keep_add(r, r->q->owned, found) || read_item(t, found, path, true);    /* owned: its strings live on */
}

static bool read_item(TurnReader *t, const json_t *item, const char *path, bool looked_up)
{
    Reader *r = t->r;
    const char *type = type_field(item);
    if (!json_is_object(item)) return refuse(r, path, "%s is not an object", path);
    if (strcmp(type, "item_reference") == 0 && !looked_up) return read_reference(t, item, path);
    if (*type && !is_among(READ_ITEMS, type, strlen(type))) {
        fields_ignore(r->q, "%s", path);    /* of a client newer than this program, or of a tool that runs elsewhere */
        return true;
    }
    if (!looked_up && r->q->items) keep_add(r, r->q->items, json_incref((json_t *) (uintptr_t) item));
    if (!*type || strcmp(type, "message") == 0) return read_message_item(t, item, path);
    if (strcmp(type, "reasoning") == 0) return read_reasoning_item(t, item, path);
    if (is_among(CALL_ITEMS, type, strlen(type))) return read_call_item(t, item, type, path);
    return read_output_item(t, item, path);
}

/* Reads the items of the response that this one continues. */
static bool read_previous(TurnReader *t)
{
    Reader *r = t->r;
    const char *id = r->q->previous_response;
    if (!id) return true;
    json_t *items = r->d->lookup.response ? r->d->lookup.response(r->d->lookup.ud, id) : NULL;
    if (!items)
        return http_fail(r->e, 400, "previous_response_not_found", "previous_response_id", "previous_response_id is "
                         "\"%.100s\", and no such response is stored: send the whole input", id);
    bool good = true;
    if (!keep_add(r, r->q->owned, items)) return true;
    for (size_t i = 0; good && i < json_array_size(items); i++) {
        Path p = path_of("previous_response_id.item[%zu]", i);
        good = read_item(t, json_array_get(items, i), p.s, false);
    }
    return good;
}

static bool read_input(TurnReader *t)
{
    Reader *r = t->r;
    const json_t *input = json_object_get(r->body, "input");
    size_t n = json_array_size(input);
    if (!read_previous(t)) return false;
    if (json_is_string(input)) {
        json_t *item = keep(r, json_pack("{s:s s:s s:O}", "type", "message", "role", "user", "content", input));
        bool good = !item || read_item(t, item, "input", false);
        json_decref(item);
        return good;
    }
    if (n == 0 && !r->q->previous_response)
        return refuse(r, "input", "input is %s, expected a string or a list of at least one item",
                      json_is_array(input) ? "empty" : "missing");
    if (n > MESSAGES_MAX) return refuse(r, "input", "input has %zu elements, expected at most %d", n, MESSAGES_MAX);
    for (size_t i = 0; i < n; i++) {
        Path p = path_of("input[%zu]", i);
        if (!read_item(t, json_array_get(input, i), p.s, false)) return false;
    }
    return true;
}

static bool read_include(Reader *r)
{
    size_t i;
    json_t *v;
    json_array_foreach(json_object_get(r->body, "include"), i, v) {
        const char *s = json_string_value(v);
        Path p = path_of("include[%zu]", i);
        if (!s) return refuse(r, p.s, "%s is not a string", p.s);
        if (strcmp(s, "reasoning.encrypted_content") == 0) r->q->reason_handle = true;
        else if (strcmp(s, "message.output_text.logprobs") == 0) r->q->logprobs = true;
        else fields_ignore(r->q, "include[%zu]", i);
    }
    return true;
}

bool read_responses(Reader *r)
{
    Request *q = r->q;
    const json_t *top = json_object_get(r->body, "top_logprobs"), *store = json_object_get(r->body, "store");
    const char *instructions = json_string_value(json_object_get(r->body, "instructions"));
    if (!read_include(r)) return false;
    if (json_is_integer(top) && q->top_logprobs > 0) q->logprobs = true;
    if (q->logprobs && r->d->denoises) return refuse_step_wise(r, "include");
    if (json_is_true(store) && !r->d->lookup.response) {
        fields_ignore(q, "store");
        q->store = false;
    }
    if (q->store) q->items = keep(r, json_array());
    json_t *system = instructions && *instructions ? system_text(r, instructions) : NULL;
    if (system) add_message(r, "system", system);
    TurnReader t = { .r = r };
    bool good = read_input(&t);
    end_turn(&t);
    if (good && json_array_size(q->messages) == 0)
        return refuse(r, "input", "input holds nothing that the model can read");
    return good && read_tools_responses(r) && read_choice(r);
}
