/* The grammar of a call is written as a grammar text, with the tools' schemas as rules: one alternative per tool. */
#include "text/reply/reply_tools.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/grammar/grammar_merge.h"
#include "text/grammar/grammar_mask.h"
#include "text/reply/reply_impl.h"
#include "text/reply/reply_watch.h"

/* names of a schema, for the grammar and its errors */
typedef struct { char rule[32], tool[128], path[PATH_MAX_BYTES]; } Names;

typedef struct {
    CallFormat format;
    bool     held;                                 /* calls are embedded in free text: see held_calls */
    Bytes    text;                                 /* the grammar text */
    GrammarSchema *schema; size_t n_schemas, cap_schemas;
    Names   *names;                                /* [cap_schemas] */
    const char *mark[N_MARKS];
    json_t  *kept;                                 /* a list of schemas made here */
    bool     failed;
} Writer;

/* ---- grammar text ---- */

static void put(Writer *w, const char *s) { bytes_text(&w->text, s); }

static void put_literal(Writer *w, const char *s, size_t n)
{
    char code[8];
    put(w, "\"");
    for (size_t i = 0; i < n; i++) {
        uint8_t c = (uint8_t) s[i];
        if (c == '"' || c == '\\') bytes_char(&w->text, '\\');
        if (c < 0x20) {
            snprintf(code, sizeof code, "\\x%02x", c);
            put(w, code);
        } else bytes_char(&w->text, c);
    }
    put(w, "\" ");
}

static void put_mark(Writer *w, const char *s) { put_literal(w, s, strlen(s)); }

static void put_class(Writer *w, char first, char second)
{
    char text[16];
    snprintf(text, sizeof text, second ? "[^\\x%02x\\x%02x] " : "[^\\x%02x] ", (uint8_t) first, (uint8_t) second);
    put(w, text);
}

/* Any text that does not contain the mark, then the mark, whose first character does not occur again in it. A prefix of
 * the mark that does not continue is text; another prefix may follow it. */
static void put_until(Writer *w, const char *mark)
{
    size_t n = strlen(mark);
    Bytes some = { 0 }, *text = &w->text;
    Writer part = { .format = w->format };
    for (size_t k = 1; k < n; k++) {
        if (k > 1) put(&part, "| ");
        put_literal(&part, mark, k);
    }
    bytes_text(&some, "( ");
    bytes_put(&some, part.text.at, part.text.n);
    bytes_text(&some, ")* ");
    put(w, "( ");
    put_class(w, mark[0], 0);
    put(w, "| ");
    bytes_put(text, some.at, some.n);
    put(w, "( ");
    for (size_t k = 1; k < n; k++) {
        if (k > 1) put(w, "| ");
        put_literal(w, mark, k);
        put_class(w, mark[0], mark[k]);
    }
    put(w, ") )* ");
    bytes_put(text, some.at, some.n);
    put_mark(w, mark);
    w->failed |= some.failed || part.text.failed;
    bytes_free(&some);
    bytes_free(&part.text);
}

/* ---- schemas ---- */

/* Adds a rule for the schema and writes its name. */
static void put_schema(Writer *w, const Tool *t, const json_t *schema, const json_t *root, const char *member)
{
    if (w->n_schemas == w->cap_schemas) {
        w->failed = true;                          /* there is room for all: see reserve */
        return;
    }
    Names *own = &w->names[w->n_schemas];
    snprintf(own->rule, sizeof own->rule, "schema-%zu", w->n_schemas);
    snprintf(own->tool, sizeof own->tool, "tool %.100s", t->name);
    if (member) {
        path_add(own->path, "", "properties");
        char base[PATH_MAX_BYTES];
        memcpy(base, own->path, sizeof base);
        path_add(own->path, base, member);
    }
    w->schema[w->n_schemas++] = (GrammarSchema) { .rule = own->rule, .schema = schema, .root = root, .name = own->tool,
                                                  .path = own->path };
    put(w, own->rule);
    put(w, " ");
}

static const json_t *members_of(const Tool *t)
{
    return json_object_get(value_target(t->schema, t->schema), "properties");
}

static bool is_required(const Tool *t, const char *name)
{
    const json_t *required = json_object_get(value_target(t->schema, t->schema), "required"), *one;
    size_t i;
    json_array_foreach(required, i, one)
        if (json_is_string(one) && strcmp(json_string_value(one), name) == 0) return true;
    return false;
}

/* The arguments as a JSON object. A schema with empty `properties` admits none; one without `properties`, or none at
 * all, admits any. */
static void put_object(Writer *w, const Tool *t)
{
    const json_t *root = t->schema, *props = json_object_get(root, "properties");
    json_t *own = root ? merge_copy((json_t *) root) : json_object();
    bool good = own != NULL;
    if (good && !json_object_get(own, "type") && !json_object_get(own, "$ref"))
        good = json_object_set_new(own, "type", json_string("object")) == 0;
    if (good && props && json_object_size(props) == 0 && !json_object_get(own, "additionalProperties"))
        good = json_object_set_new(own, "additionalProperties", json_false()) == 0;
    if (!good || json_array_append_new(w->kept, own) != 0) {
        w->failed = true;
        return;
    }
    put_schema(w, t, own, root ? root : own, NULL);
}

/* Writes the only text of a const, or the texts of an enum; returns false if there is neither, or not all are
 * strings. */
static bool put_texts(Writer *w, const json_t *schema, const char *before, const char *after)
{
    const json_t *only = json_object_get(schema, "const"), *values = json_object_get(schema, "enum");
    size_t n = only ? 1 : json_array_size(values);
    for (size_t i = 0; i < n; i++)
        if (!json_is_string(only ? only : json_array_get(values, i))) return false;
    if (n == 0) return false;
    put(w, "( ");
    for (size_t i = 0; i < n; i++) {
        const json_t *v = only ? only : json_array_get(values, i);
        if (i > 0) put(w, "| ");
        if (*before) put_mark(w, before);
        put_literal(w, json_string_value(v), json_string_length(v));
        put_mark(w, after);
    }
    put(w, ") ");
    return true;
}

static bool as_text(const Tool *t, const json_t *schema)
{
    ValueTypes types = schema ? value_types(t->schema, schema) : 0;
    return types == 0 || (types & TYPE_STRING);
}

/* A value and the tag that ends it. */
static void put_tagged(Writer *w, const Tool *t, const char *name, const json_t *schema, const char *space,
                       const char *end)
{
    char both[64];
    snprintf(both, sizeof both, "%s%s", space, end);
    if (!as_text(t, schema)) {
        put_schema(w, t, schema, t->schema, name);
        put_mark(w, both);
    } else if (!put_texts(w, schema ? value_target(t->schema, schema) : NULL, "", both)) put_until(w, end);
}

static void put_quoted(Writer *w, const Tool *t, const char *name, const json_t *schema)
{
    ValueTypes types = schema ? value_types(t->schema, schema) : 0;
    if (as_text(t, schema)) {
        if (put_texts(w, schema ? value_target(t->schema, schema) : NULL, "<|\"|>", "<|\"|>")) return;
        put_mark(w, "<|\"|>");
        put_until(w, "<|\"|>");
    } else if (types & (TYPE_ARRAY | TYPE_OBJECT)) {
        put(w, types & TYPE_ARRAY && types & TYPE_OBJECT ? "( list | object ) "
                                                         : types & TYPE_ARRAY ? "list " : "object ");
    } else {
        put_schema(w, t, schema, t->schema, name);
    }
}

/* ---- one tool ---- */

static void put_xml(Writer *w, const Tool *t, const char *name, const json_t *schema)
{
    put_mark(w, "<parameter=");
    put_mark(w, name);
    put_mark(w, ">\n");
    put_tagged(w, t, name, schema, "\n", "</parameter>");
    put_mark(w, "\n");
}

static void put_laguna(Writer *w, const Tool *t, const char *name, const json_t *schema)
{
    put_mark(w, "<arg_key>");
    put_mark(w, name);
    put_mark(w, "</arg_key>\n<arg_value>");
    put_tagged(w, t, name, schema, "", "</arg_value>");
    put_mark(w, "\n");
}

static void put_gemma(Writer *w, const Tool *t, const char *name, const json_t *schema)
{
    bool word = name[0] &&
                strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.") == strlen(name);
    Bytes key = { 0 };
    if (!word) bytes_char(&key, '"');
    if (word) bytes_text(&key, name);
    else bytes_escaped(&key, name, strlen(name));
    bytes_text(&key, word ? ":" : "\":");
    put_literal(w, key.at ? key.at : "", key.n);
    w->failed |= key.failed;
    bytes_free(&key);
    put_quoted(w, t, name, schema);
}

/* Members in the schema's order, optional ones in separate brackets; then members that are required but not
 * described. */
static void each_member(Writer *w, const Tool *t,
                        void (*one)(Writer *w, const Tool *t, const char *name, const json_t *schema))
{
    const json_t *props = members_of(t),
                 *required = json_object_get(value_target(t->schema, t->schema), "required"), *name;
    const char *k;
    json_t *v;
    size_t i;
    json_object_foreach((json_t *) props, k, v) {
        bool optional = !is_required(t, k);
        if (optional) put(w, "( ");
        one(w, t, k, v);
        if (optional) put(w, ")? ");
    }
    json_array_foreach(required, i, name)
        if (json_is_string(name) &&
            !json_object_get(props, json_string_value(name))) one(w, t, json_string_value(name), NULL);
}

/* Gemma separates members with commas: rule first-I-K describes the members from K on if none has come yet, next-I-K if
 * one has. */
typedef struct { const char *name; const json_t *schema; bool required; } Member;

static void put_rule(Writer *w, const char *what, size_t tool, size_t k, const char *after)
{
    char text[64];
    snprintf(text, sizeof text, "%s-%zu-%zu %s", what, tool, k, after);
    put(w, text);
}

static void put_numbered(Writer *w, const char *what, size_t i)
{
    char text[64];
    snprintf(text, sizeof text, "%s-%zu ", what, i);
    put(w, text);
}

static void gemma_rules(Writer *w, const Tool *t, size_t tool)
{
    const json_t *props = members_of(t),
                 *required = json_object_get(value_target(t->schema, t->schema), "required"), *extra;
    size_t n = json_object_size(props) + json_array_size(required), m = 0, i;
    Member *member = calloc(n + 1, sizeof *member);
    const char *name;
    json_t *v;
    if (!member) {
        w->failed = true;
        return;
    }
    json_object_foreach((json_t *) props, name, v) member[m++] = (Member) { name, v, is_required(t, name) };
    json_array_foreach(required, i, extra)
        if (json_is_string(extra) && !json_object_get(props, json_string_value(extra))) member[m++] = (Member) {
        json_string_value(extra), NULL, true };
    for (i = 0; i < m; i++) {
        put_rule(w, "member", tool, i, "::= ");
        put_gemma(w, t, member[i].name, member[i].schema);
        for (int later = 0; later < 2; later++) {
            put(w, "\n");
            put_rule(w, later ? "next" : "first", tool, i, later ? "::= \",\" " : "::= ");
            put_rule(w, "member", tool, i, "");
            put_rule(w, "next", tool, i + 1, "");
            if (member[i].required) continue;
            put(w, "| ");
            put_rule(w, later ? "next" : "first", tool, i + 1, "");
        }
        put(w, "\n");
    }
    put_rule(w, "first", tool, m, "::= \"\"\n");
    put_rule(w, "next", tool, m, "::= \"\"\n");
    free(member);
}

/* What stands between the name and the arguments, and after them. */
static const char *after_name(CallFormat f)
{
    switch (f) {
    case CALLS_QWEN35: return ">\n";
    case CALLS_LAGUNA: return "\n";
    case CALLS_GEMMA4: return "{";
    case CALLS_LLAMA3: return "\", \"parameters\": ";
    default:           return "\", \"arguments\": ";
    }
}

static const char ANY[] =
    "any-object ::= \"{\" space (any-member (space \",\" space any-member)*)? space \"}\"\n"
    "any-member ::= any-string space \":\" space any-value\n"
    "any-value ::= any-object | \"[\" space (any-value (space \",\" space any-value)*)? space \"]\" | any-string | "
    "any-number | \"true\" | \"false\" | \"null\"\n"
    "any-string ::= \"\\\"\" ([^\"\\\\\\x00-\\x1f] | \"\\\\\" ([\"\\\\/bfnrt] | \"u\" any-unit))* \"\\\"\"\n"
    "any-unit ::= [0-9a-cA-CefEF] hex{3} | [dD] [0-7] hex{2} | [dD] [89abAB] hex{2} \"\\\\u\" [dD] [c-fC-F] hex{2}\n"
    "hex ::= [0-9a-fA-F]\n"
    "any-number ::= \"-\"? (\"0\" | [1-9] [0-9]{0,17}) (\".\" [0-9]{1,17})? ([eE] [-+]? [0-9]{1,2})?\n"
    "space ::= [ \\t\\r\\n]{0,16}\n";

/* Parameters with any names, as text. */
static void put_any(Writer *w)
{
    switch (w->format) {
    case CALLS_QWEN35:
        put(w, "( \"<parameter=\" [^>\\n<]{1,64} \">\\n\" ");
        put_until(w, "</parameter>");
        put(w, "\"\\n\" )* ");
        break;
    case CALLS_LAGUNA:
        put(w, "( \"<arg_key>\" [^<\\n]{1,64} \"</arg_key>\\n<arg_value>\" ");
        put_until(w, "</arg_value>");
        put(w, "\"\\n\" )* ");
        break;
    default:
        put(w, "(key \":\" value (\",\" key \":\" value)*)? ");
        break;
    }
}

static void put_call_end(Writer *w, const char *spelled)
{
    put(w, "(mark-call-end | ");
    put_mark(w, spelled);
    put(w, ") ");
}

/* form: form of the arguments; 0: any. */
static void put_tool(Writer *w, const Tool *t, size_t i, size_t form)
{
    switch (w->format) {
    case CALLS_QWEN35:
        if (form) each_member(w, t, put_xml);
        else put_any(w);
        put_mark(w, "</function>\n");
        break;
    case CALLS_LAGUNA:
        if (form) each_member(w, t, put_laguna);
        else put_any(w);
        put_call_end(w, "</tool_call>");        /* here, since nothing else marks the end of a call */
        break;
    case CALLS_GEMMA4:
        if (form) put_rule(w, "first", i, 0, "");
        else put_any(w);
        put_mark(w, "}");
        break;
    default:
        if (w->held) put_numbered(w, "args", form);
        else put_object(w, t);
        put_mark(w, w->format == CALLS_QWEN3 ? "}\n" : "}");
        break;
    }
}

/* ---- the whole ---- */

static const char *open_mark(CallFormat f)
{
    switch (f) {
    case CALLS_QWEN35: return "<tool_call>\n<function=";
    case CALLS_LAGUNA: return "<tool_call>";
    case CALLS_GEMMA4: return "<|tool_call>call:";
    case CALLS_QWEN3:  return "<tool_call>\n{\"name\": \"";
    default:           return "{\"name\": \"";
    }
}

static const char *close_mark(CallFormat f)
{
    switch (f) {
    case CALLS_QWEN3:
    case CALLS_QWEN35: return "</tool_call>";
    case CALLS_GEMMA4: return "<tool_call|>";
    default:           return "";
    }
}

static void spell_name(Writer *w, Bytes *out, const Tool *t)
{
    bool json = w->format != CALLS_QWEN35 && w->format != CALLS_LAGUNA && w->format != CALLS_GEMMA4;
    if (json) bytes_escaped(out, t->name, strlen(t->name));
    else bytes_text(out, t->name);
    bytes_text(out, after_name(w->format));
    w->failed |= out->failed;
}

/* form: [n] of each tool's arguments; NULL: all follow their schemas. */
static void put_tools(Writer *w, const Tool *tool, const size_t *form, size_t n, bool named)
{
    for (size_t i = 0; i < n; i++) {
        Bytes name = { 0 };
        if (i > 0) put(w, "| ");
        spell_name(w, &name, &tool[i]);
        if (named && name.at) put_literal(w, name.at, name.n);
        bytes_free(&name);
        put_tool(w, &tool[i], i, form ? form[i] : i + 1);
    }
}

static void put_gemma_rules(Writer *w, const Tool *tool, const size_t *form, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!form || form[i]) gemma_rules(w, &tool[i], i);
    put(w, "list ::= \"[\" (value (\",\" value)*)? \"]\"\nobject ::= \"{\" (key \":\" value (\",\" key \":\" value)*)? "
        "\"}\"\nkey ::= [a-zA-Z_] [a-zA-Z0-9_]*\n"
        "value ::= list | object | text | number | \"true\" | \"false\" | \"null\"\nnumber ::= \"-\"? (\"0\" | [1-9] "
        "[0-9]{0,14}) (\".\" [0-9]{1,15})?\ntext ::= ");
    put_mark(w, "<|\"|>");
    put_until(w, "<|\"|>");
    put(w, "\n");
}

static void write_grammar(Writer *w, const Tool *tool, size_t n)
{
    put(w, "root ::= ");
    put_tools(w, tool, NULL, n, n > 1);
    put(w, "\n");
    if (w->format == CALLS_GEMMA4) put_gemma_rules(w, tool, NULL, n);
}

/* Free text and the calls in it: from the opening mark on, or from the middle of an object that has turned out to be a
 * call. */
static void write_held(Writer *w, const char *watched, const Tool *tool, const size_t *form, size_t n)
{
    bool json = w->format == CALLS_QWEN3 || w->format == CALLS_LLAMA3 || w->format == CALLS_JSON;
    const char *const *mark = w->mark, *open = open_mark(w->format), *close = mark[S_CALL_END - S_QUOTE];
    put(w, "root ::= free-0\n");
    put(w, watched);
    if (close) {
        put(w, "call ::= ");
        put_mark(w, open + strlen(mark[S_CALL - S_QUOTE]));
        put(w, "( ");
        put_tools(w, tool, form, n, true);
        put(w, ") ");
        if (w->format != CALLS_LAGUNA) put_call_end(w, close);
        put(w, "\n");
    }
    if (w->format == CALLS_GEMMA4) put_gemma_rules(w, tool, form, n);
    for (size_t i = 0; json && i < n; i++) {
        if (!form[i]) continue;
        put_numbered(w, "args", form[i]);
        put(w, "::= ");
        put_object(w, &tool[i]);
        put(w, "\n");
        put_numbered(w, "bare", form[i]);
        put(w, "::= space ");
        put_numbered(w, "args", form[i]);
        put(w, "space \"}\"\n");
    }
    if (!json) return;
    put(w, "args-0 ::= any-object\nbare-0 ::= space any-object space \"}\"\n");
    put(w, ANY);
}

/* Room for the schemas, at most as many as tools and members, and for the marks. */
static bool reserve(Writer *w, const Tool *tool, size_t n)
{
    size_t most = n + WATCH_MARKS;
    for (size_t i = 0; i < n; i++) most += json_object_size(members_of(&tool[i]));
    w->schema = calloc(most, sizeof *w->schema);
    w->names = calloc(most, sizeof *w->names);
    w->cap_schemas = most;
    w->kept = json_array();
    if (!w->schema || !w->names || !w->kept) return false;
    watch_marks(w->schema);
    w->n_schemas = WATCH_MARKS;
    return true;
}

static Status choose(Tool *out, size_t *n, const json_t *tools, const char *const *name, size_t n_names, Error *err)
{
    bool found;
    for (size_t k = 0; k < n_names; k++) {
        found = false;
        for (size_t i = 0; i < json_array_size(tools) && !found; i++) {
            Tool t;
            TRY(tool_read(&t, json_array_get(tools, i), i, err));
            found = strcmp(t.name, name[k]) == 0;
        }
        if (!found) return fail(err, ST_ARG, "no tool has the name '%.100s'", name[k]);
    }
    for (size_t i = 0; i < json_array_size(tools); i++) {
        Tool t;
        TRY(tool_read(&t, json_array_get(tools, i), i, err));
        found = n_names == 0;
        for (size_t k = 0; k < n_names && !found; k++) found = strcmp(t.name, name[k]) == 0;
        if (found) out[(*n)++] = t;
    }
    return ST_OK;
}

static Status make(ForcedCall *out, Writer *w, const Tool *tool, size_t n, Error *err)
{
    Bytes open = { 0 };
    if (!reserve(w, tool, n)) return fail(err, ST_MEMORY, "out of memory");
    bytes_text(&open, open_mark(w->format));
    if (n == 1) spell_name(w, &open, &tool[0]);
    bytes_char(&open, 0);
    write_grammar(w, tool, n);
    out->open = open.at;
    out->close = strdup(close_mark(w->format));
    out->ends_turn = w->format == CALLS_LLAMA3 || w->format == CALLS_JSON;
    if (w->failed || w->text.failed || open.failed || !out->close) return fail(err, ST_MEMORY, "out of memory");
    return grammar_compose(&out->grammar, w->text.at, w->text.n, "tools", w->schema, w->n_schemas, err);
}

static void writer_free(Writer *w)
{
    bytes_free(&w->text);
    free(w->schema);
    free(w->names);
    json_decref(w->kept);
}

Status forced_call(ForcedCall *out, CallFormat format, const json_t *tools, const char *const *name, size_t n_names,
                   Error *err)
{
    Writer w = { .format = format == CALLS_NONE ? CALLS_JSON : format };
    size_t n = 0;
    *out = (ForcedCall) { 0 };
    if (json_array_size(tools) == 0) return fail(err, ST_ARG, "tools is not a list of at least one");
    Tool *tool = calloc(json_array_size(tools), sizeof *tool);
    Status st = tool ? choose(tool, &n, tools, name, n_names, err) : fail(err, ST_MEMORY, "out of memory");
    if (st == ST_OK) st = make(out, &w, tool, n, err);
    writer_free(&w);
    free(tool);
    if (st != ST_OK) forced_call_free(out);
    return st;
}

void forced_call_free(ForcedCall *c)
{
    free(c->open);
    free(c->close);
    grammar_free(c->grammar);
    *c = (ForcedCall) { 0 };
}

/* ---- calls that are held ---- */

static Status make_held(Grammar **out, Writer *w, ReplyStyle style, const Tool *tool, const size_t *form, size_t n,
                        bool behind, Error *err)
{
    bool bare = style.calls == CALLS_LLAMA3 || style.calls == CALLS_JSON;
    Watched *watched = calloc(n, sizeof *watched);
    Bytes *name = calloc(n, sizeof *name);
    char *rules = NULL;
    Status st = watched && name && reserve(w, tool, n) ? ST_OK : fail(err, ST_MEMORY, "out of memory");
    for (size_t i = 0; st == ST_OK && i < n; i++) {
        bytes_escaped(&name[i], tool[i].name, strlen(tool[i].name));
        bytes_char(&name[i], 0);
        watched[i] = (Watched) { name[i].at, form[i] };
        if (name[i].failed) st = fail(err, ST_MEMORY, "out of memory");
    }
    if (st == ST_OK) st = watch_rules(&rules, style, watched, bare ? n : 0, behind, err);
    if (st == ST_OK) {
        write_held(w, rules, tool, form, n);
        st = w->failed || w->text.failed
             ? fail(err, ST_MEMORY, "out of memory")
             : grammar_compose(out, w->text.at, w->text.n, "tools", w->schema, w->n_schemas, err);
    }
    for (size_t i = 0; name && i < n; i++) bytes_free(&name[i]);
    free(name);
    free(watched);
    free(rules);
    return st;
}

Status held_calls(Grammar **out, ReplyStyle style, const json_t *tools, const bool *strict, bool behind, Error *err)
{
    size_t n = json_array_size(tools);
    Writer w = { .format = style.calls, .held = true };
    *out = NULL;
    if (n == 0 || style.calls == CALLS_NONE)
        return fail(err, ST_ARG, "there are no tools, or no form in which they are called");
    style_marks(style, w.mark);
    Tool *tool = calloc(n, sizeof *tool);
    size_t *form = calloc(n, sizeof *form), forms = 0;
    Status st = tool && form ? ST_OK : fail(err, ST_MEMORY, "out of memory");
    for (size_t i = 0; st == ST_OK && i < n; i++) {
        form[i] = strict[i] ? ++forms : 0;
        st = tool_read(&tool[i], json_array_get(tools, i), i, err);
    }
    if (st == ST_OK) st = make_held(out, &w, style, tool, form, n, behind, err);
    writer_free(&w);
    free(tool);
    free(form);
    return st;
}

size_t reply_mark_tokens(MarkToken out[MARK_TOKENS_MAX], ReplyStyle style, TokenOf token, void *ud)
{
    static const char BYTES[] = { (char) 0xf5, (char) 0xf6, (char) 0xf7, (char) 0xf8, (char) 0xf9, (char) 0xfa };
    static_assert((int) MARK_BYTE == (int) PRIVATE && S_PYTHON - S_QUOTE < (int) sizeof BYTES, "one byte per mark");
    const char *mark[N_MARKS];
    size_t n = 0;
    style_marks(style, mark);
    for (int k = 0; k < N_TOKEN_MARKS; k++) {
        int32_t id = mark[k] ? token(ud, mark[k]) : -1;
        bool own = k >= S_THINK - S_QUOTE && k <= S_PYTHON - S_QUOTE;
        if (id < 0 || k == S_TURN - S_QUOTE) continue;
        out[n++] = (MarkToken) { id, own ? &BYTES[k] : mark[k], own ? 1 : strlen(mark[k]) };
    }
    return n;
}
