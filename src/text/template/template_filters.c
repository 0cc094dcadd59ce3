/* template_filters.c - the filters: what follows a bar, applied to the value before it. One table at the end lists them
 * with their parameters. Python's generators are lists marked lazy here: they are true, and have neither a length nor
 * an index. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "text/template/template_impl.h"

static Value or_value(const Value *given, Value otherwise) { return is_set(given) ? *given : otherwise; }
static bool or_bool(const Value *given, bool otherwise) { return is_set(given) ? value_true(given) : otherwise; }

static int64_t or_int(Render *r, const Value *given, int64_t otherwise, const char *what)
{
    int64_t i;
    if (!is_set(given)) return otherwise;
    if (!as_int(given, &i)) render_fail(r, "%s has to be an integer, not a %s", what, kind_name(given));
    return i;
}

static Value need_text(Render *r, const Value *given, const char *what)
{
    if (given->kind != V_STRING) render_fail(r, "%s has to be a string, not a %s", what, kind_name(given));
    return *given;
}

static Value lazy(Value list)
{
    list.list->lazy = true;
    return list;
}

/* ---- strings ---- */

static Value filter_case(Render *r, const Builtin *self, Value v, const Args *a)
{
    (void) a;
    v = render_text(r, &v);
    return text_case(r, &v, (TextCase) self->how);
}

static Value filter_trim(Render *r, const Builtin *self, Value v, const Args *a)
{
    (void) self;
    v = render_text(r, &v);
    return text_strip(r, &v, &a->at[0], STRIP_LEFT | STRIP_RIGHT);
}

/* The filters string and safe. */
static Value filter_string(Render *r, const Builtin *self, Value v, const Args *a)
{
    (void) a;
    v = render_text(r, &v);
    v.safe |= self->how != 0;
    return v;
}

static Value filter_replace(Render *r, const Builtin *self, Value v, const Args *a)
{
    (void) self;
    v = render_text(r, &v);
    if (!is_set(&a->at[0]) || !is_set(&a->at[1])) render_fail(r, "replace needs what to replace, and by what");
    Value old = render_text(r, &a->at[0]), new = render_text(r, &a->at[1]);
    return text_replace(r, &v, &old, &new,
                        is_set(&a->at[2]) && a->at[2].kind != V_NONE ? or_int(r, &a->at[2], -1, "count") : -1);
}

static Value filter_indent(Render *r, const Builtin *self, Value v, const Args *a)
{
    (void) self;
    v = need_text(r, &v, "what indent is applied to");
    Value width = or_value(&a->at[0], value_int(4));
    if (width.kind != V_STRING) {
        Value space = text_new(r, " ", 1);
        width = text_repeat(r, &space, or_int(r, &width, 4, "indent's width"));
    }
    Value lines = text_lines(r, &v, false);
    if (v.n == 0 || strchr("\n\r", text_of(&v)[v.n - 1])) list_put(r, lines.list, text_part(&v, 0, 0));
    Buffer *b = buffer_new(r, v.n);
    for (uint32_t i = 0; i < lines.list->n; i++) {
        const Value *line = &lines.list->item[i];
        if (i) buffer_put(r, b, "\n", 1, false);
        if (i ? line->n > 0 || or_bool(&a->at[2], false) : or_bool(&a->at[1], false)) buffer_put_text(r, b, &width);
        buffer_put_text(r, b, line);
    }
    return buffer_value(b);
}

static Value filter_format(Render *r, const Builtin *self, Value v, const Args *a)
{
    (void) self;
    Value format = render_text(r, &v);
    Value args = a->named->n ? (Value) { .kind = V_DICT, .dict = a->named }
                             : (Value) { .kind = V_TUPLE, .list = a->more };
    return text_percent(r, &format, &args);
}

static Value filter_escape(Render *r, const Builtin *self, Value v, const Args *a)
{
    (void) self;
    (void) a;
    v = render_text(r, &v);
    return text_escape(r, &v);
}

static void quote_url(Render *r, Buffer *b, const Value *v, bool slash)
{
    render_spend(r, v->n / 64);
    for (uint32_t i = 0; i < v->n; i++) {
        uint8_t c = (uint8_t) text_of(v)[i];
        char out[8];
        bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                     (c && strchr("_.-~", c)) || (slash && c == '/');
        if (plain) buffer_put_part(r, b, v, i, 1);
        else buffer_put(r, b, out, (size_t) snprintf(out, sizeof out, "%%%02X", c), text_client(v, i));
    }
}

static Value filter_urlencode(Render *r, const Builtin *self, Value v, const Args *a)
{
    (void) self;
    (void) a;
    Buffer *b = buffer_new(r, 0);
    if (v.kind == V_LIST || v.kind == V_TUPLE)
        render_fail(r, "urlencode needs a string or a dict, not a %s", kind_name(&v));
    if (v.kind != V_DICT) {
        v = render_text(r, &v);
        quote_url(r, b, &v, true);
        return buffer_value(b);
    }
    for (uint32_t i = 0; i < v.dict->n; i++) {
        Value key = render_text(r, &v.dict->pair[i].key), value = render_text(r, &v.dict->pair[i].value);
        if (i) buffer_put(r, b, "&", 1, false);
        quote_url(r, b, &key, false);
        buffer_put(r, b, "=", 1, false);
        quote_url(r, b, &value, false);
    }
    return buffer_value(b);
}

static Value filter_wordcount(Render *r, const Builtin *self, Value v, const Args *a)
{
    (void) self;
    (void) a;
    v = render_text(r, &v);
    int64_t n = 0;
    bool inside = false;
    render_spend(r, v.n / 64);
    for (uint32_t i = 0; i < v.n; i++) {           /* every byte outside ASCII counts as part of a letter */
        uint8_t c = (uint8_t) text_of(&v)[i];
        bool word = c >= 0x80 || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
        n += word && !inside;
        inside = word;
    }
    return value_int(n);
}

/* ---- numbers ---- */

static Value filter_abs(Render *r, const Builtin *self, Value v, const Args *a)
{
    (void) self;
    (void) a;
    int64_t i;
    if (!is_number(&v)) render_fail(r, "a %s has no absolute value", kind_name(&v));
    if (!as_int(&v, &i)) return value_float(fabs(v.f));
    if (i == INT64_MIN) render_too_large(r);
    return value_int(i < 0 ? -i : i);
}

/* As Python's int(text, base): surrounding white space, a sign and single underscores are allowed. Returns false if it
 * is not a number. */
static bool read_int(int64_t *out, const char *s, size_t n, int64_t base)
{
    size_t i = strip_start(s, n), digits = 0;
    n = strip_end(s, n);
    bool negative = i < n && s[i] == '-';
    int64_t v = 0;
    if (i < n && (s[i] == '-' || s[i] == '+')) i++;
    if (n - i > 2 && s[i] == '0' && ((base == 16 && (s[i + 1] | 32) == 'x') || (base == 8 && (s[i + 1] | 32) == 'o') ||
                                     (base == 2 && (s[i + 1] | 32) == 'b')))
        i += 2;
    for (; i < n; i++) {
        if (s[i] == '_' && digits > 0 && i + 1 < n && s[i + 1] != '_') continue;
        char c = (char) (s[i] | 32);
        int64_t d = s[i] >= '0' && s[i] <= '9' ? s[i] - '0' : c >= 'a' && c <= 'z' ? c - 'a' + 10 : 99;
        if (d >= base || __builtin_mul_overflow(v, base, &v) || __builtin_add_overflow(v, negative ? -d : d, &v))
            return false;
        digits++;
    }
    *out = v;
    return digits > 0;
}

static bool read_real(double *out, const Value *v)
{
    if (is_number(v)) {
        *out = as_float(v);
        return true;
    }
    if (v->kind != V_STRING) return false;
    const char *s = text_of(v);
    size_t from = strip_start(s, v->n), to = strip_end(s, v->n);
    return from < to && !memchr(s + from, 'x', to - from) && !memchr(s + from, '(', to - from) &&
           read_float(out, s + from, to - from);
}

static void need_no_undefined(Render *r, const Value *v)
{
    if (v->kind == V_UNDEFINED) render_fail(r, "\"%.*s\" is undefined", SHOWN(text_of(v), (size_t) v->n));
}

static Value filter_int(Render *r, const Builtin *self, Value v, const Args *a)
{
    (void) self;
    int64_t i, base = or_int(r, &a->at[1], 10, "int's base");
    double f;
    need_no_undefined(r, &v);
    if (base < 2 || base > 36) render_fail(r, "int's base is %lld, expected 2 to 36", (long long) base);
    if (as_int(&v, &i)) return value_int(i);
    if (v.kind == V_STRING) render_spend(r, v.n / 8);
    if (v.kind == V_STRING && read_int(&i, text_of(&v), v.n, base)) return value_int(i);
    if (read_real(&f, &v) && f > -9223372036854775808.0 && f < 9223372036854775808.0) return value_int((int64_t) f);
    return or_value(&a->at[0], value_int(0));
}

static Value filter_float(Render *r, const Builtin *self, Value v, const Args *a)
{
    (void) self;
    double f;
    need_no_undefined(r, &v);
    if (v.kind == V_STRING) render_spend(r, v.n / 8);
    return read_real(&f, &v) ? value_float(f) : or_value(&a->at[0], value_float(0));
}

static Value filter_round(Render *r, const Builtin *self, Value v, const Args *a)
{
    (void) self;
    int64_t places = or_int(r, &a->at[0], 0, "round's precision"), i;
    if (!is_number(&v)) render_fail(r, "a %s cannot be rounded", kind_name(&v));
    if (places < -300 || places > 300)
        render_fail(r, "round's precision is %lld, expected -300 to 300", (long long) places);
    if (is_set(&a->at[1]) && !text_is(&a->at[1], "common")) {
        bool up = text_is(&a->at[1], "ceil");
        if (!up && !text_is(&a->at[1], "floor")) render_fail(r, "round's method has to be common, ceil or floor");
        double scale = pow(10, (double) places), x = as_float(&v) * scale;
        return value_float((up ? ceil(x) : floor(x)) / scale);
    }
    if (as_int(&v, &i) && places >= 0) return value_int(i);
    char text[700];
    double x = as_float(&v), scale = pow(10, (double) -places);
    if (places < 0) {
        x = nearbyint(x / scale) * scale;
        if (v.kind == V_FLOAT) return value_float(x);
        if (!(x >= -0x1p63 && x < 0x1p63)) render_too_large(r);
        return value_int((int64_t) x);
    }
    snprintf(text, sizeof text, "%.*f", (int) places, x);   /* rounds the exact value, ties to even, as Python does */
    for (char *p = text; *p; p++)
        if (*p == ',') *p = '.';
    return isfinite(x) && read_float(&x, text, strlen(text) < 120 ? strlen(text) : 120) ? value_float(x) : v;
}

/* ---- common to sequences ---- */

/* Follows a dotted path, or an index, into a value. */
static Value attribute_of(Render *r, Value v, const Value *path)
{
    if (path->kind != V_STRING) return get_item(r, v, path);
    Value dot = text_new(r, ".", 1), parts = text_split(r, path, &dot, -1, false);
    for (uint32_t i = 0; i < parts.list->n; i++) {
        Value part = parts.list->item[i];
        int64_t index;
        if (part.n && strspn(text_of(&part), "0123456789") >= part.n && read_int(&index, text_of(&part), part.n, 10))
            part = value_int(index);
        v = get_item(r, v, &part);
    }
    return v;
}

static Value sort_key(Render *r, Value v, const Value *path, bool case_sensitive)
{
    if (is_set(path) && path->kind != V_NONE) v = attribute_of(r, v, path);
    return v.kind == V_STRING && !case_sensitive ? text_case(r, &v, CASE_LOWER) : v;
}

static Value filter_length(Render *r, const Builtin *self, Value v, const Args *a)
{
    (void) self;
    (void) a;
    switch (v.kind) {
    case V_UNDEFINED: return value_int(0);
    case V_STRING: return value_int(text_length(r, &v));
    case V_DICT: return value_int(v.dict->n);
    case V_LOOP: return value_int(v.loop->n);
    case V_LIST: case V_TUPLE:
        if (!v.list->lazy) return value_int(v.list->n);
        render_fail(r, "a generator has no length, expected a list (|list makes one)");
    default: render_fail(r, "a %s has no length", kind_name(&v));
    }
}

static Value filter_truncate(Render *r, const Builtin *self, Value v, const Args *a)
{
    if (v.kind != V_STRING) filter_length(r, self, v, a);          /* any other value with a length is short enough */
    if (v.kind != V_STRING) return v;
    int64_t length = or_int(r, &a->at[0], 255, "truncate's length"),
            leeway = or_int(r, &a->at[3], 5, "truncate's leeway");
    Value end = is_set(&a->at[2]) ? need_text(r, &a->at[2], "truncate's end") : text_new(r, "...", 3);
    if (text_length(r, &v) <= length + leeway) return v;
    int64_t keep = length - text_length(r, &end);
    if (keep < 0) render_fail(r, "truncate's length is shorter than its end");
    Value cut = text_slice(r, &v, 0, 1, keep);
    if (!or_bool(&a->at[1], false)) {
        Value space = text_new(r, " ", 1), parts = text_split(r, &cut, &space, 1, true);
        cut = parts.list->item[0];
    }
    return text_join(r, cut, &end);
}

static Value filter_first(Render *r, const Builtin *self, Value v, const Args *a)
{
    (void) self;
    (void) a;
    if (v.kind == V_STRING) return text_char(r, &v, 0);
    v = value_iterate(r, v);
    return v.list->n ? v.list->item[0] : value_undefined();
}

static Value filter_last(Render *r, const Builtin *self, Value v, const Args *a)
{
    (void) self;
    (void) a;
    if (v.kind == V_STRING) return text_char(r, &v, -1);
    v = value_iterate(r, v);
    if (v.list->lazy) render_fail(r, "a generator has no last item, expected a list (|list makes one)");
    return v.list->n ? v.list->item[v.list->n - 1] : value_undefined();
}

static Value copy_list(Render *r, const List *l)
{
    Value out = list_new(r, V_LIST, l->n);
    render_spend(r, l->n / 16);
    for (uint32_t i = 0; i < l->n; i++) list_put(r, out.list, l->item[i]);
    return out;
}

static Value filter_list(Render *r, const Builtin *self, Value v, const Args *a)
{
    (void) self;
    (void) a;
    return copy_list(r, value_iterate(r, v).list);
}

static Value filter_reverse(Render *r, const Builtin *self, Value v, const Args *a)
{
    (void) self;
    (void) a;
    if (v.kind == V_STRING) return text_slice(r, &v, text_length(r, &v) - 1, -1, text_length(r, &v));
    Value out = copy_list(r, value_iterate(r, v).list);
    for (uint32_t i = 0, n = out.list->n; i < n / 2; i++) {
        Value t = out.list->item[i];
        out.list->item[i] = out.list->item[n - 1 - i];
        out.list->item[n - 1 - i] = t;
    }
    return lazy(out);
}

static Value filter_join(Render *r, const Builtin *self, Value v, const Args *a)
{
    (void) self;
    Value between = is_set(&a->at[0]) ? render_text(r, &a->at[0]) : text_new(r, "", 0);
    v = value_iterate(r, v);
    Buffer *b = buffer_new(r, 0);
    for (uint32_t i = 0; i < v.list->n; i++) {
        Value item = v.list->item[i];
        if (is_set(&a->at[1]) && a->at[1].kind != V_NONE) item = attribute_of(r, item, &a->at[1]);
        if (i) buffer_put_text(r, b, &between);
        print_text(r, b, &item);
        render_spend(r, 1);
    }
    return buffer_value(b);
}

static Value filter_sum(Render *r, const Builtin *self, Value v, const Args *a)
{
    (void) self;
    Value sum = or_value(&a->at[1], value_int(0));
    v = value_iterate(r, v);
    for (uint32_t i = 0; i < v.list->n; i++) {
        Value item = v.list->item[i];
        if (is_set(&a->at[0]) && a->at[0].kind != V_NONE) item = attribute_of(r, item, &a->at[0]);
        if (item.kind == V_STRING) render_fail(r, "strings cannot be summed, expected join");
        sum = value_add(r, sum, &item);
        render_spend(r, 1);
    }
    return sum;
}

/* min and max; how: the sign of a comparison that replaces the best so far. */
static Value filter_extreme(Render *r, const Builtin *self, Value v, const Args *a)
{
    Value best = value_undefined(), best_key = best;
    v = value_iterate(r, v);
    for (uint32_t i = 0; i < v.list->n; i++) {
        Value key = sort_key(r, v.list->item[i], &a->at[1], or_bool(&a->at[0], false));
        if (i && value_compare(r, &key, &best_key) != self->how) continue;
        best = v.list->item[i];
        best_key = key;
    }
    return best;
}

/* Several attributes separated by commas: a list of keys. */
static Value filter_sort(Render *r, const Builtin *self, Value v, const Args *a)
{
    (void) self;
    const Value *path = &a->at[2];
    bool sensitive = or_bool(&a->at[1], false);
    v = value_iterate(r, v);
    Pair *pair = heap_take(&r->heap, v.list->n * sizeof *pair);
    Value comma = text_new(r, ",", 1),
          paths = path->kind == V_STRING ? text_split(r, path, &comma, -1, false) : value_none();
    for (uint32_t i = 0; i < v.list->n; i++) {
        pair[i].value = v.list->item[i];
        if (paths.kind == V_NONE || paths.list->n == 1) {
            pair[i].key = sort_key(r, v.list->item[i], path, sensitive);
            continue;
        }
        pair[i].key = list_new(r, V_LIST, paths.list->n);
        for (uint32_t k = 0; k < paths.list->n; k++)
            list_put(r, pair[i].key.list, sort_key(r, v.list->item[i], &paths.list->item[k], sensitive));
    }
    pairs_sort(r, pair, v.list->n, or_bool(&a->at[0], false));
    Value out = list_new(r, V_LIST, v.list->n);
    for (uint32_t i = 0; i < v.list->n; i++) list_put(r, out.list, pair[i].value);
    return out;
}

static Value two(Render *r, Value a, Value b)
{
    Value t = list_new(r, V_TUPLE, 2);
    list_put(r, t.list, a);
    list_put(r, t.list, b);
    return t;
}

static Value filter_dictsort(Render *r, const Builtin *self, Value v, const Args *a)
{
    (void) self;
    if (v.kind != V_DICT) render_fail(r, "dictsort needs a dict, not a %s", kind_name(&v));
    bool by_value = text_is(&a->at[1], "value");
    Value none = { .kind = V_UNSET };
    if (is_set(&a->at[1]) && !by_value && !text_is(&a->at[1], "key"))
        render_fail(r, "dictsort sorts by key or by value");
    uint32_t n = v.dict->n;
    Pair *pair = heap_take(&r->heap, n * sizeof *pair);
    for (uint32_t i = 0; i < n; i++)
        pair[i] = (Pair) { sort_key(r, by_value ? v.dict->pair[i].value : v.dict->pair[i].key, &none,
                                    or_bool(&a->at[0], false)), two(r, v.dict->pair[i].key, v.dict->pair[i].value) };
    pairs_sort(r, pair, n, or_bool(&a->at[2], false));
    Value out = list_new(r, V_LIST, n);
    for (uint32_t i = 0; i < n; i++) list_put(r, out.list, pair[i].value);
    return out;
}

static Value filter_items(Render *r, const Builtin *self, Value v, const Args *a)
{
    (void) self;
    (void) a;
    Value out = list_new(r, V_LIST, 0);
    if (v.kind == V_UNDEFINED) return lazy(out);
    if (v.kind != V_DICT) render_fail(r, "items needs a dict, not a %s", kind_name(&v));
    for (uint32_t i = 0; i < v.dict->n; i++) list_put(r, out.list, two(r, v.dict->pair[i].key, v.dict->pair[i].value));
    render_spend(r, v.dict->n);
    return lazy(out);
}

static Value filter_unique(Render *r, const Builtin *self, Value v, const Args *a)
{
    (void) self;
    Dict *seen = dict_new(r).dict;
    Value out = list_new(r, V_LIST, 0);
    v = value_iterate(r, v);
    for (uint32_t i = 0; i < v.list->n; i++) {
        Value key = sort_key(r, v.list->item[i], &a->at[1], or_bool(&a->at[0], false));
        render_spend(r, 1);
        if (dict_find(r, seen, &key)) continue;
        dict_set(r, seen, key, value_none());
        list_put(r, out.list, v.list->item[i]);
    }
    return lazy(out);
}

static Value filter_batch(Render *r, const Builtin *self, Value v, const Args *a)
{
    (void) self;
    int64_t size = or_int(r, &a->at[0], 0, "batch's size");
    if (size < 1 || size > TEMPLATE_RANGE_MAX)
        render_fail(r, "batch's size is %lld, expected 1 to %d", (long long) size, TEMPLATE_RANGE_MAX);
    Value out = list_new(r, V_LIST, 0), part = value_none();
    v = value_iterate(r, v);
    for (uint32_t i = 0; i < v.list->n; i++) {
        if (i % size == 0) {
            part = list_new(r, V_LIST, 0);
            list_put(r, out.list, part);
        }
        list_put(r, part.list, v.list->item[i]);
    }
    if (part.kind == V_LIST && is_set(&a->at[1]) && a->at[1].kind != V_NONE)
        while (part.list->n < size) list_put(r, part.list, a->at[1]);
    return lazy(out);
}

static Value filter_slice(Render *r, const Builtin *self, Value v, const Args *a)
{
    (void) self;
    int64_t parts = or_int(r, &a->at[0], 0, "slice's number");
    if (parts < 1 || parts > TEMPLATE_RANGE_MAX)
        render_fail(r, "slice's number is %lld, expected 1 to %d", (long long) parts, TEMPLATE_RANGE_MAX);
    Value out = list_new(r, V_LIST, 0);
    v = value_iterate(r, v);
    int64_t each = v.list->n / parts, extra = v.list->n % parts, at = 0;
    for (int64_t i = 0; i < parts; i++) {
        Value part = list_new(r, V_LIST, 0);
        for (int64_t end = at + each + (i < extra); at < end; at++) list_put(r, part.list, v.list->item[at]);
        if (i >= extra && is_set(&a->at[1]) && a->at[1].kind != V_NONE) list_put(r, part.list, a->at[1]);
        list_put(r, out.list, part);
        render_spend(r, 1);
    }
    return lazy(out);
}

/* ---- filters that take the name of another filter or of a test ---- */

static List *after(Render *r, const List *l, uint32_t from)
{
    Value out = list_new(r, V_LIST, 0);
    for (uint32_t i = from; i < l->n; i++) list_put(r, out.list, l->item[i]);
    return out.list;
}

static Value filter_map(Render *r, const Builtin *self, Value v, const Args *a)
{
    (void) self;
    const Value *path = dict_find_name(a->named, "attribute", 9), *otherwise = dict_find_name(a->named, "default", 7);
    Value out = list_new(r, V_LIST, 0);
    const Builtin *f = NULL;
    List *rest = NULL;
    if (a->more->n > 0) {
        Value name = need_text(r, &a->more->item[0], "map's filter");
        f = filter_find(text_of(&name), name.n);
        if (!f) render_fail(r, "there is no filter \"%.*s\"", SHOWN(text_of(&name), (size_t) name.n));
        rest = after(r, a->more, 1);
    } else if (!path) {
        render_fail(r, "map needs a filter's name or attribute=");
    }
    if (!value_true(&v)) return lazy(out);         /* a false value has no items */
    v = value_iterate(r, v);
    for (uint32_t i = 0; i < v.list->n; i++) {
        Value item = v.list->item[i];
        render_spend(r, 1);
        if (f) {
            item = builtin_call(r, f, item, rest, a->named);
        } else {
            item = attribute_of(r, item, path);
            if (item.kind == V_UNDEFINED && otherwise) item = *otherwise;
        }
        list_put(r, out.list, item);
    }
    return lazy(out);
}

enum { REJECT = 1, BY_ATTRIBUTE = 2 };
static Value filter_select(Render *r, const Builtin *self, Value v, const Args *a)
{
    uint32_t skip = self->how & BY_ATTRIBUTE ? 1 : 0;
    Value out = list_new(r, V_LIST, 0);
    const Builtin *test = NULL;
    if (a->more->n < skip) render_fail(r, "%s needs an attribute", self->name);
    if (a->more->n > skip) {
        Value name = need_text(r, &a->more->item[skip], "a test's name");
        test = test_find(text_of(&name), name.n);
        if (!test) render_fail(r, "there is no test \"%.*s\"", SHOWN(text_of(&name), (size_t) name.n));
    }
    List *rest = after(r, a->more, skip + 1);
    if (!value_true(&v)) return lazy(out);
    v = value_iterate(r, v);
    for (uint32_t i = 0; i < v.list->n; i++) {
        Value item = v.list->item[i], x = skip ? attribute_of(r, item, &a->more->item[0]) : item;
        render_spend(r, 1);
        if (test) x = builtin_call(r, test, x, rest, a->named);
        if (value_true(&x) != ((self->how & REJECT) != 0)) list_put(r, out.list, item);
    }
    return lazy(out);
}

/* ---- other filters ---- */

static Value filter_default(Render *r, const Builtin *self, Value v, const Args *a)
{
    (void) self;
    bool missing = v.kind == V_UNDEFINED || (or_bool(&a->at[1], false) && !value_true(&v));
    return missing ? or_value(&a->at[0], text_new(r, "", 0)) : v;
}

static Value filter_attr(Render *r, const Builtin *self, Value v, const Args *a)
{
    (void) self;
    Value name = need_text(r, &a->at[0], "attr's name");
    return get_attribute(r, v, &name, v.kind == V_DICT);
}

static Value filter_tojson(Render *r, const Builtin *self, Value v, const Args *a)
{
    (void) self;
    JsonStyle style = { .ascii = or_bool(&a->at[0], false), .sorted = or_bool(&a->at[3], false) };
    const Value *indent = &a->at[1], *separators = &a->at[2];
    if (is_set(indent) && indent->kind != V_NONE) {
        Value space = text_new(r, " ", 1);
        style.pretty = true;
        style.indent = indent->kind == V_STRING ? *indent
                                                : text_repeat(r, &space, or_int(r, indent, 0, "tojson's indent"));
    }
    style.item_sep = text_new(r, ", ", style.pretty ? 1 : 2);
    style.key_sep = text_new(r, ": ", 2);
    if (is_set(separators) && separators->kind != V_NONE) {
        if ((separators->kind != V_TUPLE && separators->kind != V_LIST) || separators->list->n != 2)
            render_fail(r, "tojson's separators have to be two strings");
        style.item_sep = need_text(r, &separators->list->item[0], "a separator");
        style.key_sep = need_text(r, &separators->list->item[1], "a separator");
    }
    Buffer *b = buffer_new(r, 0);
    print_json(r, b, &v, &style, 0);
    return buffer_value(b);
}

/* Not in Jinja2, but some templates rely on a host that has it. Strings from a client remain the client's. */
static Value filter_from_json(Render *r, const Builtin *self, Value v, const Args *a)
{
    (void) self;
    (void) a;
    v = need_text(r, &v, "what from_json is applied to");
    bool client = false;
    for (uint32_t i = 0; i < v.n && !client; i++) client = text_client(&v, i) != 0;
    json_t *j = NULL;
    Error err = { 0 };
    render_spend(r, v.n / 16);
    if (json_read(&j, text_of(&v), v.n, "from_json", &err) != ST_OK) render_fail(r, "%s", err.text);
    Fault outer = r->fault;                        /* the JSON must be freed even after a failure */
    bool good = false;
    Value out = value_none();
    if (!setjmp(r->fault.out)) {
        out = value_from_json(r, j, client ? ORIGIN_CLIENT : ORIGIN_PROGRAM);
        good = true;
    }
    json_decref(j);
    memcpy(r->fault.out, outer.out, sizeof outer.out);
    if (!good) longjmp(r->fault.out, 1);
    return out;
}

static const Builtin FILTERS[] = {
    { "abs", filter_abs, "", 0 }, { "attr", filter_attr, "name", 0 },
    { "batch", filter_batch, "linecount fill_with", 0 },
    { "capitalize", filter_case, "", CASE_CAPITALIZE }, { "count", filter_length, "", 0 },
    { "d", filter_default, "default_value boolean", 0 },
    { "default", filter_default, "default_value boolean", 0 },
    { "dictsort", filter_dictsort, "case_sensitive by reverse", 0 },
    { "e", filter_escape, "", 0 }, { "escape", filter_escape, "", 0 }, { "first", filter_first, "", 0 },
    { "float", filter_float, "default", 0 },
    { "format", filter_format, "*", 0 }, { "from_json", filter_from_json, "", 0 },
    { "indent", filter_indent, "width first blank", 0 },
    { "int", filter_int, "default base", 0 }, { "items", filter_items, "", 0 },
    { "join", filter_join, "d attribute", 0 },
    { "last", filter_last, "", 0 }, { "length", filter_length, "", 0 }, { "list", filter_list, "", 0 },
    { "lower", filter_case, "", CASE_LOWER },
    { "map", filter_map, "*", 0 }, { "max", filter_extreme, "case_sensitive attribute", 1 },
    { "min", filter_extreme, "case_sensitive attribute", -1 },
    { "reject", filter_select, "*", REJECT }, { "rejectattr", filter_select, "*", REJECT | BY_ATTRIBUTE },
    { "replace", filter_replace, "old new count", 0 },
    { "reverse", filter_reverse, "", 0 }, { "round", filter_round, "precision method", 0 },
    { "safe", filter_string, "", 1 },
    { "select", filter_select, "*", 0 }, { "selectattr", filter_select, "*", BY_ATTRIBUTE },
    { "slice", filter_slice, "slices fill_with", 0 },
    { "sort", filter_sort, "reverse case_sensitive attribute", 0 }, { "string", filter_string, "", 0 },
    { "strip", filter_trim, "chars", 0 },
    { "sum", filter_sum, "attribute start", 0 }, { "title", filter_case, "", CASE_TITLE_WORDS },
    { "tojson", filter_tojson, "ensure_ascii indent separators sort_keys", 0 }, { "trim", filter_trim, "chars", 0 },
    { "truncate", filter_truncate, "length killwords end leeway", 0 },
    { "unique", filter_unique, "case_sensitive attribute", 0 },
    { "upper", filter_case, "", CASE_UPPER }, { "urlencode", filter_urlencode, "", 0 },
    { "wordcount", filter_wordcount, "", 0 },
};

const Builtin *filter_find(const char *name, size_t n)
{
    for (size_t i = 0; i < sizeof FILTERS / sizeof *FILTERS; i++)
        if (strlen(FILTERS[i].name) == n && memcmp(FILTERS[i].name, name, n) == 0) return &FILTERS[i];
    return NULL;
}
