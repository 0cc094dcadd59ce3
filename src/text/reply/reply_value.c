#include "text/reply/reply_value.h"

#include <stdlib.h>
#include <string.h>

#include "text/schema_ref.h"

enum { HOPS_MAX = 32, CHOICE_DEPTH_MAX = 8 };

/* ---- schemas ---- */

const json_t *value_target(const json_t *root, const json_t *schema)
{
    for (int hop = 0; hop < HOPS_MAX; hop++) {
        const char *ref = json_string_value(json_object_get(schema, "$ref"));
        if (!ref) return schema;
        schema = schema_ref(root, ref);
    }
    return NULL;
}

/* An unknown type may be anything, so it is treated as text. */
static ValueTypes named(const char *name)
{
    ValueTypes t = schema_type(name);
    return t ? t : TYPE_STRING;
}

static ValueTypes kind_of(const json_t *v)
{
    switch (json_typeof(v)) {
    case JSON_NULL:    return TYPE_NULL;
    case JSON_TRUE:
    case JSON_FALSE:   return TYPE_BOOLEAN;
    case JSON_INTEGER: return TYPE_INTEGER;
    case JSON_REAL:    return TYPE_NUMBER;
    case JSON_ARRAY:   return TYPE_ARRAY;
    case JSON_OBJECT:  return TYPE_OBJECT;
    default:           return TYPE_STRING;
    }
}

static ValueTypes own_types(const json_t *s)
{
    const json_t *type = json_object_get(s, "type"), *values = json_object_get(s, "enum"),
                 *one = json_object_get(s, "const"), *v;
    ValueTypes t = 0;
    size_t i;
    if (json_is_string(type)) t = named(json_string_value(type));
    else if (json_is_array(type)) json_array_foreach(type, i, v) t |= named(json_string_value(v));
    else if (one) t = kind_of(one);
    else json_array_foreach(values, i, v) t |= kind_of(v);
    return t && json_is_true(json_object_get(s, "nullable")) ? t | TYPE_NULL : t;
}

/* anyOf and oneOf add the types of their ways; allOf keeps those that all its parts and the schema itself admit. */
static ValueTypes types_within(const json_t *root, const json_t *schema, int depth)
{
    static const char *const CHOICE[] = { "anyOf", "oneOf", "allOf" };
    const json_t *s = value_target(root, schema), *way;
    ValueTypes t = own_types(s);
    for (size_t k = 0; k < 3 && depth < CHOICE_DEPTH_MAX; k++) {
        const json_t *ways = json_object_get(s, CHOICE[k]);
        ValueTypes all = 0;
        size_t i;
        json_array_foreach(ways, i, way) {
            ValueTypes one = types_within(root, way, depth + 1);
            if (k < 2) all |= one ? one : TYPE_STRING;
            else if (one) all = all ? all & one : one;
        }
        if (all) t = t && (t & all) ? t & all : all;
    }
    return t;
}

ValueTypes value_types(const json_t *root, const json_t *schema) { return types_within(root, schema, 0); }

bool value_is_text(ValueTypes t, size_t n)
{
    enum { WORD_MAX = 16 };
    ValueTypes others = t & ~(ValueTypes) TYPE_STRING;
    return others == 0 ||
           ((t & TYPE_STRING) && n > WORD_MAX && (others & ~(ValueTypes) (TYPE_NULL | TYPE_BOOLEAN)) == 0);
}

static const json_t *members_of(const json_t *schema)
{
    return json_object_get(value_target(schema, schema), "properties");
}

const json_t *value_parameter(const json_t *schema, const char *name)
{
    return json_object_get(members_of(schema), name);
}

bool value_satisfies(const json_t *schema, const json_t *object)
{
    const json_t *s = value_target(schema, schema), *required = json_object_get(s, "required"), *name, *v;
    const char *k;
    size_t i;
    if (!json_is_object(object) || !json_is_object(s)) return false;
    json_array_foreach(required, i, name)
        if (!json_object_get(object, json_string_value(name) ? json_string_value(name) : "")) return false;
    json_object_foreach((json_t *) object, k, v) {
        const json_t *own = value_parameter(schema, k);
        ValueTypes t = own ? value_types(schema, own) : 0;
        if (!own && json_is_false(json_object_get(s, "additionalProperties"))) return false;
        if (t & TYPE_NUMBER) t |= TYPE_INTEGER;
        if (t && !(t & kind_of(v))) return false;
    }
    return true;
}

/* ---- coercion ---- */

static bool is_word(const char *s, size_t n, const char *const *words)
{
    for (; *words; words++)
        if (strlen(*words) == n && memcmp(s, *words, n) == 0) return true;
    return false;
}
#define IS_ONE_OF(s, n, ...) is_word(s, n, (const char *const[]) { __VA_ARGS__, NULL })

static bool put_integer(Bytes *out, const char *s, size_t n)
{
    size_t i = 0, from, end;
    bool minus = n > 0 && s[0] == '-';
    if (n > 0 && (s[0] == '-' || s[0] == '+')) i++;
    for (from = i; i < n && s[i] >= '0' && s[i] <= '9'; i++);
    end = i;
    if (end == from) return false;
    if (i < n && s[i] == '.')
        for (i++; i < n && s[i] == '0'; i++);
    if (i != n) return false;
    while (from + 1 < end && s[from] == '0') from++;
    if (minus) bytes_char(out, '-');
    bytes_put(out, s + from, end - from);
    return true;
}

static bool put_number(Bytes *out, const char *s, size_t n)
{
    if (!json_is_number_text(s, n)) return false;
    if (!put_integer(out, s, n)) bytes_put(out, s, n);
    return true;
}

static bool put_boolean(Bytes *out, const char *s, size_t n)
{
    bool yes = IS_ONE_OF(s, n, "true", "True", "1", "yes");
    if (!yes && !IS_ONE_OF(s, n, "false", "False", "0", "no")) return false;
    bytes_text(out, yes ? "true" : "false");
    return true;
}

/* Reads the text as JSON, or else as Python would write it. */
static bool put_container(Bytes *out, const char *s, size_t n, char bracket)
{
    char first;
    size_t before = out->n;
    if (n == 0 || s[0] != bracket) return false;
    for (unsigned allow = 0; allow <= FLOW_LOOSE; allow += FLOW_LOOSE)
        if (flow_text(out, s, n, allow, &first)) return true;
    out->n = before;
    return false;
}

void value_write(Bytes *out, ValueTypes t, const char *s, size_t n)
{
    const char *w = s;
    size_t k = n;
    for (; k > 0 && strchr(" \n\t\r", *w) && *w; w++, k--);
    while (k > 0 && strchr(" \n\t\r", w[k - 1]) && w[k - 1]) k--;
    if ((t & TYPE_INTEGER) && put_integer(out, w, k)) return;
    if ((t & TYPE_NUMBER) && put_number(out, w, k)) return;
    if ((t & TYPE_BOOLEAN) && put_boolean(out, w, k)) return;
    if ((t & TYPE_NULL) && (IS_ONE_OF(w, k, "null", "None") || (k == 0 && !(t & TYPE_STRING)))) {
        bytes_text(out, "null");
        return;
    }
    if ((t & TYPE_OBJECT) && put_container(out, w, k, '{')) return;
    if ((t & TYPE_ARRAY) && put_container(out, w, k, '[')) return;
    bytes_char(out, '"');
    bytes_escaped(out, s, n);
    bytes_char(out, '"');
}
