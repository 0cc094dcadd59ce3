/* Tools of every dialect as declared functions, and which of them must be called. Tools that we cannot run for the
 * model (a web search on a provider's servers) are left out and named in `ignored`; tools that the client runs become
 * functions, whatever their type. */
#include "programs/serve/request/request_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool good_name(const char *s)
{
    size_t n = strlen(s);
    return n > 0 && n <= TOOL_NAME_MAX &&
           strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.:/") == n;
}

json_t *joined_name(Reader *r, const char *namespace_, const char *name)
{
    return keep(r, namespace_ && *namespace_ ? json_sprintf("%s__%s", namespace_, name) : json_string(name));
}

/* Adds a function; takes f. The wire names are strings of the body. */
static bool add_tool(Reader *r, RequestTool tool, json_t *f, const char *path)
{
    Request *q = r->q;
    json_t *wrapped = json_pack("{s:s s:o}", "type", "function", "function", f);
    tool.name = json_string_value(json_object_get(f, "name"));
    bool good = wrapped && tool.name;
    if (!good) r->no_memory = true;
    else if (!good_name(tool.name))
        good = refuse(r, path, "%s: the name is \"%.140s\", expected 1 to %d letters, digits and _-.:/", path,
                      tool.name, TOOL_NAME_MAX);
    else if (request_tool(q, tool.name, strlen(tool.name)))
        good = refuse(r, path, "%s: a tool \"%s\" is declared twice", path, tool.name);
    else if (q->n_tool >= TOOLS_MAX)
        good = refuse(r, path, "%s: more than %d tools", path, TOOLS_MAX);
    if (!good) {
        json_decref(wrapped);
        return r->e->status == 0;
    }
    if (!q->tools) q->tools = keep(r, json_array());
    if (!q->tool) q->tool = calloc(TOOLS_MAX, sizeof *q->tool);
    if (!q->tool) {
        r->no_memory = true;
        json_decref(wrapped);
        return true;
    }
    if (keep_add(r, q->tools, wrapped)) q->tool[q->n_tool++] = tool;
    return true;
}

/* A function {name, description, parameters} from a declaration that may use another key for its parameters. */
static bool add_function(Reader *r, const json_t *given, const char *parameters_key, const char *namespace_,
                         const char *path)
{
    const char *name, *description;
    if (!text_field(r, &name, given, path, "name") || !text_field(r, &description, given, path, "description"))
        return false;
    Path p = path_of("%s.name", path), at = path_of("%s.%s", path, parameters_key);
    if (!name) return refuse(r, p.s, "%s is missing", p.s);
    const json_t *parameters = json_object_get(given, parameters_key);
    if (parameters && !json_is_null(parameters) && !json_is_object(parameters))
        return refuse(r, at.s, "%s is not an object", at.s);
    name_others(r, given, path,
                strcmp(parameters_key, "parameters") == 0 ? "type|name|description|strict|cache_control|parameters"
                                                          : "type|name|description|strict|cache_control|input_schema");
    json_t *f = keep(r, json_object());
    keep_in(r, f, "name", joined_name(r, namespace_, name));
    if (description) keep_in(r, f, "description", json_string(description));
    if (json_is_object(parameters)) keep_in(r, f, "parameters", json_deep_copy(parameters));
    return add_tool(r, (RequestTool) { .kind = TOOL_FUNCTION, .wire_name = name, .wire_namespace = namespace_,
                                       .strict = json_is_true(json_object_get(given, "strict")) }, f, path);
}

/* A tool that takes free text: a function with one parameter, `input`. */
static bool add_custom(Reader *r, const json_t *given, const char *namespace_, const char *path)
{
    const char *name, *description;
    if (!text_field(r, &name, given, path, "name") || !text_field(r, &description, given, path, "description"))
        return false;
    Path p = path_of("%s.name", path);
    if (!name) return refuse(r, p.s, "%s is missing", p.s);
    const json_t *format = json_object_get(given, "format");
    if (json_is_object(format) && strcmp(type_field(format), "text") != 0) fields_ignore(r->q, "%s.format", path);
    name_others(r, given, path, "type|name|description|format|cache_control");
    json_t *f = keep(r, json_pack("{s:o s:s s:{s:s s:{s:{s:s}} s:[s]}}", "name", joined_name(r, namespace_, name),
                                  "description", description ? description : "", "parameters", "type", "object",
                                  "properties", "input", "type", "string", "required", "input"));
    return add_tool(r, (RequestTool) { .kind = TOOL_CUSTOM, .wire_name = name, .wire_namespace = namespace_ }, f, path);
}

static bool few_enough(Reader *r, const json_t *list, const char *path)
{
    return json_array_size(list) <= TOOLS_MAX ||
           refuse(r, path, "%s has %zu elements, expected at most %d", path, json_array_size(list), TOOLS_MAX);
}

bool read_tools_chat(Reader *r)
{
    const json_t *tools = json_object_get(r->body, "tools"), *functions = json_object_get(r->body, "functions");
    if (!few_enough(r, tools, "tools") || !few_enough(r, functions, "functions")) return false;
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const json_t *t = json_array_get(tools, i);
        Path p = path_of("tools[%zu]", i);
        if (!json_is_object(t)) return refuse(r, p.s, "%s is not an object", p.s);
        bool custom = strcmp(type_field(t), "custom") == 0;
        if (!custom && *type_field(t) && strcmp(type_field(t), "function") != 0) {
            fields_ignore(r->q, "tools[%zu]", i);
            continue;
        }
        Path at = path_of("%s.%s", p.s, custom ? "custom" : "function");
        const json_t *f = json_object_get(t, custom ? "custom" : "function");
        if (!json_is_object(f)) return refuse(r, at.s, "%s is not an object", at.s);
        name_others(r, t, p.s, "type|function|custom|cache_control");
        if (!(custom ? add_custom(r, f, NULL, at.s) : add_function(r, f, "parameters", NULL, at.s))) return false;
    }
    /* the old form has room for only one call */
    if (json_array_size(functions) > 0 && !json_is_array(tools)) r->q->parallel_calls = false;
    for (size_t i = 0; i < json_array_size(functions); i++) {
        Path p = path_of("functions[%zu]", i);
        if (!json_is_object(json_array_get(functions, i))) return refuse(r, p.s, "%s is not an object", p.s);
        if (!add_function(r, json_array_get(functions, i), "parameters", NULL, p.s)) return false;
    }
    return true;
}

/* Well-known tools, whose parameters are not part of a request. */
static const char SHELL[] =
    "{'name': 'local_shell', 'description': 'Runs a command on the user\\u0027s machine and "
    "returns its output.', 'parameters': {'type': 'object', 'properties': {"
    "'command': {'type': 'array', 'items': {'type': 'string'}}, 'working_directory': {'type': 'string'}, 'timeout_ms': "
    "{'type': 'integer'}}, 'required': ['command']}}";
static const char BASH[] =
    "{'name': 'bash', 'description': 'Runs a command in a shell that stays open between calls.', 'parameters': "
    "{'type': 'object', 'properties': {"
    "'command': {'type': 'string', 'description': 'The command to run.'}, 'restart': {'type': 'boolean', "
    "'description': 'Starts the shell anew instead.'}}}}";
static const char EDITOR[] =
    "{'name': 'str_replace_based_edit_tool', 'description': 'Views, creates and changes text files.', 'parameters': "
    "{'type': 'object', 'properties': {"
    "'command': {'type': 'string', 'enum': ['view', 'create', 'str_replace', 'insert']}, 'path': {'type': 'string'}, "
    "'file_text': {'type': 'string'}, "
    "'old_str': {'type': 'string'}, 'new_str': {'type': 'string'}, 'insert_line': {'type': 'integer'}, "
    "'insert_text': {'type': 'string'}, "
    "'view_range': {'type': 'array', 'items': {'type': 'integer'}}}, 'required': ['command', 'path']}}";

/* Adds one of them; their texts are written with single quotes. */
static bool add_known(Reader *r, ToolKind kind, const char *text, const char *name, const char *path)
{
    char quoted[1024];
    size_t n = strlen(text);
    for (size_t i = 0; i <= n && i < sizeof quoted; i++) quoted[i] = text[i] == '\'' ? '"' : text[i];
    json_t *f = n < sizeof quoted ? json_loads(quoted, 0, NULL) : NULL;
    if (!f) {
        r->no_memory = true;
        return true;
    }
    if (name) keep_in(r, f, "name", json_string(name));
    return add_tool(r, (RequestTool) { .kind = kind, .wire_name = name
                                       ? name : json_string_value(json_object_get(f, "name")) }, f, path);
}

static bool read_tool_responses(Reader *r, const json_t *t, const char *namespace_, const char *path)
{
    if (!json_is_object(t)) return refuse(r, path, "%s is not an object", path);
    const char *type = type_field(t);
    Path at = path_of("%s.function", path);
    if (strcmp(type, "function") == 0) {           /* some clients wrap it, as in Chat */
        const json_t *inner = json_object_get(t, "function");
        return json_is_object(inner) ? add_function(r, inner, "parameters", namespace_, at.s)
                                     : add_function(r, t, "parameters", namespace_, path);
    }
    if (strcmp(type, "custom") == 0) return add_custom(r, t, namespace_, path);
    if (strcmp(type, "local_shell") == 0) return add_known(r, TOOL_SHELL, SHELL, NULL, path);
    fields_ignore(r->q, "%s", path);
    return true;
}

bool read_tools_responses(Reader *r)
{
    const json_t *tools = json_object_get(r->body, "tools");
    if (!few_enough(r, tools, "tools")) return false;
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const json_t *t = json_array_get(tools, i), *inside = json_object_get(t, "tools");
        const char *name;
        Path p = path_of("tools[%zu]", i);
        if (strcmp(type_field(t), "namespace") != 0) {
            if (!read_tool_responses(r, t, NULL, p.s)) return false;
            continue;
        }
        if (!text_field(r, &name, t, p.s, "name")) return false;
        if (!name || !*name || !json_is_array(inside))
            return refuse(r, p.s, "%s: a namespace needs a name and tools", p.s);
        if (!few_enough(r, inside, p.s)) return false;
        for (size_t k = 0; k < json_array_size(inside); k++) {
            Path at = path_of("tools[%zu].tools[%zu]", i, k);
            if (!read_tool_responses(r, json_array_get(inside, k), name, at.s)) return false;
        }
    }
    return true;
}

/* Anthropic tools that the client runs, recognised by the beginning of their type. */
static bool add_typed(Reader *r, const json_t *t, const char *type, const char *path)
{
    const char *name = json_string_value(json_object_get(t, "name"));
    if (strncmp(type, "bash_", 5) == 0) return add_known(r, TOOL_FUNCTION, BASH, name, path);
    if (strncmp(type, "text_editor_", 12) == 0) return add_known(r, TOOL_FUNCTION, EDITOR, name, path);
    fields_ignore(r->q, "%s", path);
    return true;
}

bool read_tools_messages(Reader *r)
{
    const json_t *tools = json_object_get(r->body, "tools");
    if (!few_enough(r, tools, "tools")) return false;
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const json_t *t = json_array_get(tools, i);
        const char *type = type_field(t);
        Path p = path_of("tools[%zu]", i);
        if (!json_is_object(t)) return refuse(r, p.s, "%s is not an object", p.s);
        bool plain = !*type || strcmp(type, "custom") == 0;
        if (!(plain ? add_function(r, t, "input_schema", NULL, p.s) : add_typed(r, t, type, p.s))) return false;
    }
    return true;
}

/* ---- tool_choice ---- */

static const RequestTool *find_wire(const Request *q, const char *namespace_, const char *name)
{
    for (size_t i = 0; i < q->n_tool; i++) {
        const RequestTool *t = &q->tool[i];
        bool same_space = namespace_ ? t->wire_namespace && strcmp(t->wire_namespace, namespace_) == 0 : true;
        if (same_space && strcmp(t->wire_name, name) == 0) return t;
    }
    return request_tool(q, name, strlen(name));
}

/* The tool that an object names: {name}, {function: {name}} or {custom: {name}}. */
static bool named_tool(Reader *r, const RequestTool **out, const json_t *o, const char *path)
{
    const json_t *f = json_object_get(o, "function");
    if (!json_is_object(f)) f = json_object_get(o, "custom");
    if (!json_is_object(f)) f = o;
    const char *name = json_string_value(json_object_get(f, "name")),
               *space = json_string_value(json_object_get(f, "namespace"));
    if (!name && strcmp(type_field(o), "local_shell") == 0) name = "local_shell";
    if (!name) return refuse(r, path, "%s names no tool", path);
    *out = find_wire(r->q, space, name);
    return *out || refuse(r, path, "%s: there is no tool \"%.100s\" among the declared ones", path, name);
}

static bool choose_named(Reader *r, const json_t *o, const char *path)
{
    const RequestTool *t;
    if (!named_tool(r, &t, o, path)) return false;
    r->q->call_choice = CALL_NAMED;
    r->q->call_name = t->name;
    return true;
}

static bool choose_word(Reader *r, const char *word, const char *path)
{
    Request *q = r->q;
    if (strcmp(word, "none") == 0) q->call_choice = CALL_NONE;
    else if (strcmp(word, "required") == 0 || strcmp(word, "any") == 0) q->call_choice = CALL_REQUIRED;
    else if (strcmp(word, "auto") != 0)
        return refuse(r, path, "%s is \"%.60s\", expected none, auto, required or a tool", path, word);
    if (q->call_choice == CALL_REQUIRED && q->n_tool == 0)
        return refuse(r, path, "%s asks for a call, and no tool is declared", path);
    return true;
}

/* Shows only the allowed tools to the model, which cannot call what it does not see. */
static bool choose_allowed(Reader *r, const json_t *o, const char *path)
{
    Request *q = r->q;
    const json_t *list = json_object_get(o, "tools");
    const char *mode = json_string_value(json_object_get(o, "mode"));
    bool allowed[TOOLS_MAX] = { false };
    if (json_array_size(list) == 0 || !few_enough(r, list, path))
        return r->e->status == 0 && refuse(r, path, "%s allows no tool", path);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const RequestTool *t;
        Path p = path_of("%s.tools[%zu]", path, i);
        if (!named_tool(r, &t, json_array_get(list, i), p.s)) return false;
        allowed[t - q->tool] = true;
    }
    size_t kept = 0;
    json_t *tools = keep(r, json_array());
    for (size_t i = 0; i < q->n_tool; i++) {
        if (!allowed[i]) continue;
        keep_add(r, tools, json_incref(json_array_get(q->tools, i)));
        q->tool[kept++] = q->tool[i];
    }
    json_decref(q->tools);
    q->tools = tools;
    q->n_tool = kept;
    return choose_word(r, mode ? mode : "auto", path);
}

static bool read_choice_messages(Reader *r, const json_t *o)
{
    Request *q = r->q;
    const char *type = type_field(o);
    const json_t *alone = json_object_get(o, "disable_parallel_tool_use");
    if (!o || json_is_null(o)) return true;
    if (alone && !json_is_null(alone) && !json_is_boolean(alone))
        return refuse(r, "tool_choice.disable_parallel_tool_use",
                      "tool_choice.disable_parallel_tool_use is not true or false");
    q->parallel_calls = !json_is_true(alone);
    name_others(r, o, "tool_choice", "type|name|disable_parallel_tool_use");
    if (strcmp(type, "tool") == 0) return choose_named(r, o, "tool_choice");
    if (!is_among("auto|any|none", type, strlen(type)))
        return refuse(r, "tool_choice.type", "tool_choice.type is \"%.60s\", expected auto, any, tool or none", type);
    return choose_word(r, type, "tool_choice");
}

bool read_choice(Reader *r)
{
    const json_t *o = json_object_get(r->body, "tool_choice"), *old = json_object_get(r->body, "function_call");
    if (r->q->dialect == DIALECT_MESSAGES) return read_choice_messages(r, o);
    if (r->q->dialect == DIALECT_CHAT && (!o || json_is_null(o))) {
        if (json_is_string(old)) return choose_word(r, json_string_value(old), "function_call");
        if (json_is_object(old)) return choose_named(r, old, "function_call");
    }
    if (json_is_string(o)) return choose_word(r, json_string_value(o), "tool_choice");
    if (!json_is_object(o)) return true;
    const char *type = type_field(o);
    if (strcmp(type, "allowed_tools") == 0) {
        const json_t *inner = json_object_get(o, "allowed_tools");
        return choose_allowed(r, json_is_object(inner) ? inner : o, "tool_choice");
    }
    if (!is_among("function|custom|local_shell", type, strlen(type)))
        return refuse(r, "tool_choice.type",
                      "tool_choice.type is \"%.60s\", expected function, custom or allowed_tools", type);
    return choose_named(r, o, "tool_choice");
}
