#include "text/grammar/grammar_merge.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "text/tokenizer/utf8.h"

/* MERGE_STEPS: cost of one schema, apart from its keywords */
enum { MERGE_DEPTH_MAX = 100, MADE_MAX = 20000, MERGE_STEPS = 64 };

bool merge_fail(Merger *m, Status st, const char *path, const char *format, ...)
{
    char text[300];
    va_list args;
    if (m->st != ST_OK) return false;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    m->st = fail(m->err, st, "%s: #%s: %s", m->name, path, text);
    return false;
}

static bool sound(Merger *m, const char *path)
{
    if (m->b->st != ST_OK) merge_fail(m, m->b->st, path, "%s", m->b->why);
    return m->st == ST_OK;
}

static bool no_memory(Merger *m, const char *path) { return merge_fail(m, ST_MEMORY, path, "out of memory"); }

/* Appends key as in "/a~1b"; a path that is too long keeps its beginning, which is enough to find the place. */
void path_add(char out[PATH_MAX_BYTES], const char *path, const char *key)
{
    size_t n = 0;
    for (; path[n] && n + 1 < PATH_MAX_BYTES; n++) out[n] = path[n];
    if (n + 1 < PATH_MAX_BYTES) out[n++] = '/';
    for (; *key && n + 2 < PATH_MAX_BYTES; key++) {
        if (*key == '~' || *key == '/') {
            out[n++] = '~';
            out[n++] = *key == '~' ? '0' : '1';
        } else out[n++] = *key;
    }
    out[utf8_valid(out, n)] = 0;
}

void flat_init(Flat *f)
{
    *f = (Flat) { .types = TYPE_ALL, .max_items = -1, .max_length = -1, .max_props = -1 };
}

void flat_free(Flat *f)
{
    json_t *held[] = { f->values, f->props, f->required, f->additional, f->prefix, f->items, f->minimum, f->maximum,
                       f->above, f->below, f->multiple, f->pattern, f->format, f->choices };
    for (size_t i = 0; i < sizeof held / sizeof *held; i++) json_decref(held[i]);
    flat_init(f);
}

json_t *merge_copy(json_t *v)
{
    json_t *copy = json_copy(v);
    if (!copy || (json_object_size(copy) == json_object_size(v) && json_array_size(copy) == json_array_size(v)))
        return copy;
    json_decref(copy);
    return NULL;
}

/* Copies only `required` and `choices`, which are changed in place; all else is shared and only ever replaced. */
bool flat_copy(Flat *out, const Flat *f)
{
    *out = *f;
    json_t *held[] = { f->values, f->props, f->additional, f->prefix, f->items, f->minimum, f->maximum, f->above,
                       f->below, f->multiple, f->pattern, f->format };
    for (size_t i = 0; i < sizeof held / sizeof *held; i++) json_incref(held[i]);
    out->required = f->required ? merge_copy(f->required) : NULL;
    out->choices = f->choices ? merge_copy(f->choices) : NULL;
    return !out->required == !f->required && !out->choices == !f->choices;
}

/* ---- references ---- */

static const json_t *resolve(Merger *m, const json_t *ref, char path[PATH_MAX_BYTES])
{
    const char *text = json_string_value(ref);
    char where[PATH_MAX_BYTES];
    path_add(where, path, "$ref");
    if (!text) return merge_fail(m, ST_FORMAT, where, "expected a text"), NULL;
    if (!schema_ref_local(text))
        return merge_fail(m, ST_UNSUPPORTED, where, "'%.80s' is outside of this schema; expected # or #/...",
                          text), NULL;
    const json_t *at = schema_ref(m->root, text);
    if (!at) return merge_fail(m, ST_FORMAT, where, "'%.80s' leads nowhere", text), NULL;
    snprintf(path, PATH_MAX_BYTES, "%s", text + 1);
    path[utf8_valid(path, strlen(path))] = 0;
    return at;
}

static bool is_annotation(const char *k)
{
    static const char *const names[] = { "title", "description", "default", "examples", "example", "deprecated",
                                         "readOnly", "writeOnly", "$schema", "$id", "$comment", "$defs", "definitions",
                                         "$anchor", "discriminator", "contentEncoding", "contentMediaType",
                                         "contentSchema", "externalDocs", "xml" };
    if (strncmp(k, "x-", 2) == 0) return true;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(k, names[i]) == 0) return true;
    return false;
}

const json_t *merge_target(Merger *m, const json_t *schema, char path[PATH_MAX_BYTES])
{
    for (int hop = 0; json_is_object(schema) && json_object_get(schema, "$ref"); hop++) {
        const char *k;
        json_t *v;
        bool only = true;
        json_object_foreach((json_t *) schema, k, v) only &= strcmp(k, "$ref") == 0 || is_annotation(k);
        if (!only) break;
        if (hop == MERGE_DEPTH_MAX) return merge_fail(m, ST_FORMAT, path, "$ref goes in a circle"), NULL;
        schema = resolve(m, json_object_get(schema, "$ref"), path);
    }
    return schema;
}

/* A list of one or two borrowed values; NULL: out of memory. (json_pack leaks when an allocation fails.) */
static json_t *list_of(json_t *a, json_t *b)
{
    json_t *list = json_array();
    if (list && json_array_append(list, a) == 0 && (!b || json_array_append(list, b) == 0)) return list;
    json_decref(list);
    return NULL;
}

/* {"allOf": [...]} of those that are not NULL, kept alive by m. If only one is given, it is returned as it is. */
static json_t *merge_both(Merger *m, json_t *a, json_t *b)
{
    if (!a || !b || a == b || json_is_true(a) || json_is_true(b)) return !a || json_is_true(a) ? (b ? b : a) : a;
    if (json_array_size(m->made) >= MADE_MAX)
        return merge_fail(m, ST_UNSUPPORTED, "", "allOf, $ref and anyOf give rise to more than %d schemas",
                          MADE_MAX), NULL;
    json_t *list = list_of(a, b), *both = list ? json_object() : NULL;
    if (!both) json_decref(list);
    else if (json_object_set_new(both, "allOf", list) == 0 && json_array_append(m->made, both) == 0) {
        json_decref(both);                         /* m->made keeps it */
        return both;
    }
    json_decref(both);
    return no_memory(m, ""), NULL;
}

/* ---- keywords ---- */

static uint32_t type_bits(const char *name)
{
    uint32_t t = schema_type(name);
    return t & TYPE_NUMBER ? t | TYPE_INTEGER : t;
}

static bool add_type(Merger *m, Flat *f, const json_t *v, bool nullable, const char *path)
{
    uint32_t types = json_is_string(v) ? type_bits(json_string_value(v)) : 0;
    bool good = types != 0;
    for (size_t i = 0; json_is_array(v) && i < json_array_size(v); i++) {
        uint32_t t = type_bits(json_string_value(json_array_get(v, i)));
        good = t != 0 && (good || i == 0);
        types |= t;
    }
    if (!good || !types)
        return merge_fail(m, ST_FORMAT, path,
                          "expected null, boolean, integer, number, string, array, object or a list of them");
    f->types &= types | (nullable ? TYPE_NULL : 0);
    f->typed = true;
    return true;
}

static int order_mixed(json_int_t i, double x)
{
    if (x >= 0x1p63 || x < -0x1p63) return x < 0 ? 1 : -1;
    const json_int_t whole = (json_int_t) floor(x);
    return i != whole ? (i > whole) - (i < whole) : -(x > floor(x));
}

int number_order(const json_t *a, const json_t *b)
{
    const json_int_t i = json_integer_value(a), k = json_integer_value(b);
    const double x = json_real_value(a), y = json_real_value(b);
    if (json_is_integer(a) != json_is_integer(b)) return json_is_integer(a) ? order_mixed(i, y) : -order_mixed(k, x);
    return json_is_integer(a) ? (i > k) - (i < k) : (x > y) - (x < y);
}

/* 1 and 1.0 are one value. */
static bool same_value(const json_t *a, const json_t *b)
{
    return json_is_number(a) && json_is_number(b) ? number_order(a, b) == 0 : json_equal(a, b);
}

static bool add_values(Merger *m, Flat *f, json_t *list, const char *path)
{
    if (!json_is_array(list) || json_array_size(list) == 0)
        return merge_fail(m, ST_FORMAT, path, "expected a list of at least one value");
    if (!f->values) {
        f->values = json_incref(list);
        return true;
    }
    json_t *both = json_array();
    bool good = both != NULL;
    for (size_t i = 0; good && i < json_array_size(list); i++)
        for (size_t k = 0; k < json_array_size(f->values) && graph_step(m->b); k++) {
            if (!same_value(json_array_get(list, i), json_array_get(f->values, k))) continue;
            good = json_array_append(both, json_array_get(list, i)) == 0;
            break;
        }
    json_decref(f->values);
    f->values = both;
    return good ? sound(m, path) : no_memory(m, path);
}

static bool add_count(Merger *m, int64_t *to, const json_t *v, bool least, const char *path)
{
    double d = json_number_value(v);
    if (!json_is_number(v) || d < 0 || d > 1e15 || d != (double) (int64_t) d)
        return merge_fail(m, ST_FORMAT, path, "expected a whole number of at least 0");
    int64_t n = (int64_t) d;
    if (least ? n > *to : *to < 0 || n < *to) *to = n;
    return true;
}

static bool add_limit(Merger *m, json_t **to, json_t *v, bool least, const char *path)
{
    if (!json_is_number(v)) return merge_fail(m, ST_FORMAT, path, "expected a number");
    bool stricter = !*to || (least ? number_order(v, *to) > 0 : number_order(v, *to) < 0);
    if (!stricter) return true;
    json_decref(*to);
    *to = json_incref(v);
    return true;
}

static bool add_single(Merger *m, json_t **to, json_t *v, bool good, const char *what, const char *path)
{
    if (!good) return merge_fail(m, ST_FORMAT, path, "expected %s", what);
    if (*to && !same_value(*to, v))
        return merge_fail(m, ST_UNSUPPORTED, path, "a second value for the same place cannot be merged with the first");
    if (!*to) *to = json_incref(v);
    return true;
}

static bool is_schema(const json_t *v) { return json_is_object(v) || json_is_boolean(v); }

/* A property that only one side names counts as an additional one for the other side. */
static bool add_members(Merger *m, Flat *f, json_t *props, json_t *additional, const char *path)
{
    const char *k;
    json_t *v;
    char at[PATH_MAX_BYTES];
    path_add(at, path, props ? "properties" : "additionalProperties");
    if ((props && !json_is_object(props)) || (additional && !is_schema(additional)))
        return merge_fail(m, ST_FORMAT, at, "expected %s", props ? "an object" : "a schema");
    json_t *all = json_object();
    bool good = all != NULL;
    json_object_foreach(f->props, k, v) {
        json_t *other = json_object_get(props, k), *both = merge_both(m, v, other ? other : additional);
        good &= both && graph_step(m->b) && json_object_set(all, k, both) == 0;
    }
    json_object_foreach(props, k, v) {
        if (!is_schema(v)) {
            char sub[PATH_MAX_BYTES];
            path_add(sub, at, k);
            good = merge_fail(m, ST_FORMAT, sub, "expected a schema: an object, true or false");
            break;
        }
        if (json_object_get(f->props, k)) continue;
        json_t *both = merge_both(m, f->additional, v);
        good &= both && graph_step(m->b) && json_object_set(all, k, both) == 0;
    }
    if (good && additional) {
        json_t *both = merge_both(m, f->additional, additional);
        json_incref(both);
        json_decref(f->additional);
        f->additional = both;
        good = both != NULL;
    }
    json_decref(f->props);
    f->props = all;
    return good || (sound(m, at) && no_memory(m, at));
}

static bool add_elements(Merger *m, Flat *f, json_t *prefix, json_t *items, const char *path)
{
    char at[PATH_MAX_BYTES];
    path_add(at, path, prefix ? "prefixItems" : "items");
    if (prefix && (!json_is_array(prefix) || json_array_size(prefix) == 0))
        return merge_fail(m, ST_FORMAT, at, "expected a list of at least one schema");
    if (json_is_array(items)) return merge_fail(m, ST_UNSUPPORTED, at, "a list of schemas is written as prefixItems");
    if (items && !is_schema(items)) return merge_fail(m, ST_FORMAT, at, "expected a schema");
    size_t n = json_array_size(prefix), had = json_array_size(f->prefix), most = n > had ? n : had;
    json_t *all = most ? json_array() : NULL;
    for (size_t i = 0; i < most; i++) {
        json_t *mine = i < n ? json_array_get(prefix, i) : items,
               *theirs = i < had ? json_array_get(f->prefix, i) : f->items;
        if (i < n && !is_schema(mine)) {
            json_decref(all);
            return merge_fail(m, ST_FORMAT, at, "element %zu is no schema", i);
        }
        json_t *both = merge_both(m, theirs, mine);
        if (!graph_step(m->b) || json_array_append(all, both ? both : json_true()) != 0) {
            json_decref(all);
            return sound(m, at) && no_memory(m, at);
        }
    }
    json_t *rest = items ? merge_both(m, f->items, items) : f->items;
    json_incref(rest);
    json_decref(f->items);
    f->items = rest;
    json_decref(f->prefix);
    f->prefix = all;
    return m->st == ST_OK;
}

static bool add_required(Merger *m, Flat *f, const json_t *v, const char *path)
{
    if (!f->required) f->required = json_object();
    if (!f->required) return no_memory(m, path);
    if (!json_is_array(v)) return merge_fail(m, ST_FORMAT, path, "expected a list of names");
    for (size_t i = 0; i < json_array_size(v); i++) {
        const char *name = json_string_value(json_array_get(v, i));
        if (!name) return merge_fail(m, ST_FORMAT, path, "expected a list of names");
        if (!graph_step(m->b)) return sound(m, path);
        if (json_object_set_new(f->required, name, json_true()) != 0) return no_memory(m, path);
    }
    return true;
}

static bool add_all(Merger *m, Flat *f, const json_t *list, const char *path, int depth)
{
    char at[PATH_MAX_BYTES], i_text[24];
    if (!json_is_array(list) || json_array_size(list) == 0)
        return merge_fail(m, ST_FORMAT, path, "expected a list of at least one schema");
    for (size_t i = 0; i < json_array_size(list); i++) {
        snprintf(i_text, sizeof i_text, "%zu", i);
        path_add(at, path, i_text);
        if (!flat_add(m, f, json_array_get(list, i), at, depth)) return false;
    }
    return true;
}

static bool add_choice(Merger *m, Flat *f, json_t *list, const char *path)
{
    if (!json_is_array(list) || json_array_size(list) == 0)
        return merge_fail(m, ST_FORMAT, path, "expected a list of at least one schema");
    if (!f->choices) f->choices = json_array();
    json_t *where = json_string(path), *one = where ? list_of(where, list) : NULL;
    json_decref(where);
    bool good = f->choices && one && json_array_append(f->choices, one) == 0;
    json_decref(one);
    return good || no_memory(m, path);
}

enum { SPEAKS_NUMBER = TYPE_NUMBER | TYPE_INTEGER };

static bool add_keyword(Merger *m, Flat *f, const json_t *schema, const char *k, json_t *v, const char *path, int depth)
{
    char at[PATH_MAX_BYTES];
    path_add(at, path, k);
#define IS(name) (strcmp(k, name) == 0)
    if (is_annotation(k) || IS("nullable") || IS("properties") || IS("items")) return true;
    if (IS("type")) return add_type(m, f, v, json_is_true(json_object_get(schema, "nullable")), at);
    if (IS("$ref")) {
        char to[PATH_MAX_BYTES];
        memcpy(to, path, sizeof to);
        const json_t *target = resolve(m, v, to);
        return target && flat_add(m, f, target, to, depth + 1);
    }
    if (IS("allOf")) return add_all(m, f, v, at, depth + 1);
    if (IS("anyOf") || IS("oneOf")) return add_choice(m, f, v, at);
    if (IS("enum")) return add_values(m, f, v, at);
    if (IS("const")) {
        json_t *one = list_of(v, NULL);
        bool good = one && add_values(m, f, one, at);
        json_decref(one);
        return one ? good : no_memory(m, at);
    }
    if (IS("required")) return f->spoken |= TYPE_OBJECT, add_required(m, f, v, at);
    if (IS("additionalProperties") || IS("prefixItems")) return true;
    if (IS("minProperties")) return f->spoken |= TYPE_OBJECT, add_count(m, &f->min_props, v, true, at);
    if (IS("maxProperties")) return f->spoken |= TYPE_OBJECT, add_count(m, &f->max_props, v, false, at);
    if (IS("minItems")) return f->spoken |= TYPE_ARRAY, add_count(m, &f->min_items, v, true, at);
    if (IS("maxItems")) return f->spoken |= TYPE_ARRAY, add_count(m, &f->max_items, v, false, at);
    if (IS("minLength")) return f->spoken |= TYPE_STRING, add_count(m, &f->min_length, v, true, at);
    if (IS("maxLength")) return f->spoken |= TYPE_STRING, add_count(m, &f->max_length, v, false, at);
    if (IS("pattern")) return f->spoken |= TYPE_STRING, add_single(m, &f->pattern, v, json_is_string(v), "a text", at);
    if (IS("format")) return f->spoken |= TYPE_STRING, add_single(m, &f->format, v, json_is_string(v), "a text", at);
    if (IS("minimum")) return f->spoken |= SPEAKS_NUMBER, add_limit(m, &f->minimum, v, true, at);
    if (IS("maximum")) return f->spoken |= SPEAKS_NUMBER, add_limit(m, &f->maximum, v, false, at);
    if (IS("exclusiveMinimum")) return f->spoken |= SPEAKS_NUMBER, add_limit(m, &f->above, v, true, at);
    if (IS("exclusiveMaximum")) return f->spoken |= SPEAKS_NUMBER, add_limit(m, &f->below, v, false, at);
    if (IS("multipleOf"))
        return f->spoken |= SPEAKS_NUMBER,
            add_single(m, &f->multiple, v, json_number_value(v) > 0, "a number above 0", at);
    if (IS("uniqueItems") && json_is_false(v)) return true;
#undef IS
    return merge_fail(m, ST_UNSUPPORTED, at, "the keyword '%.60s' cannot be honoured", k);
}

/* Recursion as deep as $ref and allOf nest, which is bounded. */
bool flat_add(Merger *m, Flat *f, const json_t *schema, const char *path, int depth)
{
    const char *k;
    json_t *v;
    if (depth > MERGE_DEPTH_MAX)
        return merge_fail(m, ST_FORMAT, path, "$ref and allOf nest deeper than %d, or go in a circle", MERGE_DEPTH_MAX);
    m->b->steps += MERGE_STEPS;
    if (json_is_true(schema)) return true;
    if (json_is_false(schema)) {
        f->never = true;
        return true;
    }
    if (!json_is_object(schema)) return merge_fail(m, ST_FORMAT, path, "expected a schema: an object, true or false");
    json_t *props = json_object_get(schema, "properties"),
           *additional = json_object_get(schema, "additionalProperties");
    json_t *prefix = json_object_get(schema, "prefixItems"), *items = json_object_get(schema, "items");
    if (props || additional) {
        f->spoken |= TYPE_OBJECT;
        if (!add_members(m, f, props, additional, path)) return false;
    }
    if (prefix || items) {
        f->spoken |= TYPE_ARRAY;
        if (!add_elements(m, f, prefix, items, path)) return false;
    }
    json_object_foreach((json_t *) schema, k, v)
        if (!graph_step(m->b) || !add_keyword(m, f, schema, k, v, path, depth)) return sound(m, path) && false;
    return true;
}
