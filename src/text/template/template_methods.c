/* template_methods.c - the methods of Python's strings, lists and dicts and of loops that templates call, and the
 * global functions. */
#include <string.h>
#include <utf8proc.h>

#include "text/template/template_impl.h"
#include "text/tokenizer/utf8.h"

static Value text_arg(Render *r, const Value *v, const char *what)
{
    if (v->kind != V_STRING) render_fail(r, "%s has to be a string, not a %s", what, kind_name(v));
    return *v;
}

static int64_t int_arg(Render *r, const Value *v, int64_t otherwise, const char *what)
{
    int64_t i = otherwise;
    if (is_set(v) && v->kind != V_NONE && !as_int(v, &i))
        render_fail(r, "%s has to be an integer, not a %s", what, kind_name(v));
    return i;
}

/* ---- strings ---- */

static Value string_case(Render *r, Value *s, const Args *a, int32_t how)
{
    (void) a;
    return text_case(r, s, (TextCase) how);
}

static Value string_strip(Render *r, Value *s, const Args *a, int32_t how) { return text_strip(r, s, &a->at[0], how); }

static Value string_split(Render *r, Value *s, const Args *a, int32_t right)
{
    return text_split(r, s, &a->at[0], int_arg(r, &a->at[1], -1, "maxsplit"), right != 0);
}

static Value string_partition(Render *r, Value *s, const Args *a, int32_t right)
{
    Value sep = text_arg(r, &a->at[0], "a separator"), parts = text_split(r, s, &sep, 1, right != 0),
          none = text_part(s, 0, 0), out = list_new(r, V_TUPLE, 0);
    const bool found = parts.list->n == 2;
    list_put(r, out.list, found || !right ? parts.list->item[0] : none);
    /* the text's own, with its marks */
    list_put(r, out.list, found ? text_part(s, parts.list->item[0].n, sep.n) : none);
    list_put(r, out.list, found ? parts.list->item[1] : right ? *s : none);
    return out;
}

static Value string_lines(Render *r, Value *s, const Args *a, int32_t how)
{
    (void) how;
    return text_lines(r, s, value_true(&a->at[0]));
}

static Value string_replace(Render *r, Value *s, const Args *a, int32_t how)
{
    (void) how;
    Value old = text_arg(r, &a->at[0], "what to replace"), new = text_arg(r, &a->at[1], "the replacement");
    if (s->safe) new = text_escape(r, &new);
    Value out = text_replace(r, s, &old, &new, int_arg(r, &a->at[2], -1, "count"));
    out.safe = s->safe;
    return out;
}

/* The part between characters start and stop. */
static Value bounded(Render *r, const Value *s, const Value *start, const Value *stop, int64_t *from)
{
    Value one = { .kind = V_UNSET };
    int64_t by, count, n = text_length(r, s);
    slice_of(r, n, start, stop, &one, from, &by, &count);
    return text_slice(r, s, *from, 1, count);
}

static bool ends_with(Render *r, const Value *s, const Value *part, bool end)
{
    render_spend(r, part->n / 256);
    return part->n <= s->n && memcmp(text_of(s) + (end ? s->n - part->n : 0), text_of(part), part->n) == 0;
}

static Value string_ends(Render *r, Value *s, const Args *a, int32_t end)
{
    int64_t from;
    Value part = bounded(r, s, &a->at[1], &a->at[2], &from);
    if (a->at[0].kind != V_TUPLE) {
        Value one = text_arg(r, &a->at[0], end ? "a suffix" : "a prefix");
        return value_bool(ends_with(r, &part, &one, end != 0));
    }
    const List *any = a->at[0].list;
    for (uint32_t i = 0; i < any->n; i++) {
        Value one = text_arg(r, &any->item[i], end ? "a suffix" : "a prefix");
        if (ends_with(r, &part, &one, end != 0)) return value_bool(true);
    }
    return value_bool(false);
}

static Value string_remove(Render *r, Value *s, const Args *a, int32_t end)
{
    Value part = text_arg(r, &a->at[0], end ? "a suffix" : "a prefix");
    if (!ends_with(r, s, &part, end != 0)) return *s;
    return text_part(s, end ? 0 : part.n, s->n - part.n);
}

enum { FIND_RIGHT = 1, FIND_OR_FAIL = 2 };
static Value string_find(Render *r, Value *s, const Args *a, int32_t how)
{
    int64_t from;
    Value part = text_arg(r, &a->at[0], "what to find"), within = bounded(r, s, &a->at[1], &a->at[2], &from);
    int64_t at = text_find(r, &within, &part, 0, -1, (how & FIND_RIGHT) != 0);
    if (at < 0 && (how & FIND_OR_FAIL))
        render_fail(r, "the part \"%.*s\" is not in the string", SHOWN(text_of(&part), (size_t) part.n));
    return value_int(at < 0 ? -1 : at + from);
}

static Value string_count(Render *r, Value *s, const Args *a, int32_t how)
{
    (void) how;
    int64_t from;
    Value part = text_arg(r, &a->at[0], "what to count"), within = bounded(r, s, &a->at[1], &a->at[2], &from);
    return value_int(text_count(r, &within, &part));
}

enum { IS_ALPHA, IS_DIGIT, IS_ALNUM, IS_SPACE, IS_UPPER, IS_LOWER };
static Value string_is(Render *r, Value *s, const Args *a, int32_t how)
{
    (void) a;
    bool some = false;
    render_spend(r, s->n / 64);
    for (size_t i = 0; i < s->n;) {
        uint32_t cp = 0;
        size_t len = utf8_next(text_of(s) + i, s->n - i, &cp);
        i += len ? len : 1;
        utf8proc_category_t c = utf8proc_category((utf8proc_int32_t) cp);
        bool letter = c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_LO, digit = c == UTF8PROC_CATEGORY_ND;
        bool up = utf8proc_isupper((utf8proc_int32_t) cp), low = utf8proc_islower((utf8proc_int32_t) cp);
        if (how == IS_UPPER || how == IS_LOWER) {
            if (how == IS_UPPER ? low : up) return value_bool(false);
            some |= how == IS_UPPER ? up : low;
            continue;
        }
        if (!(how == IS_ALPHA ? letter : how == IS_DIGIT ? digit : how == IS_ALNUM ? letter || digit : is_space(cp)))
            return value_bool(false);
        some = true;
    }
    return value_bool(some);
}

static Value string_join(Render *r, Value *s, const Args *a, int32_t how)
{
    (void) how;
    if (!is_set(&a->at[0])) render_fail(r, "join needs what to join");
    Value items = value_iterate(r, a->at[0]);
    Buffer *b = buffer_new(r, 0);
    for (uint32_t i = 0; i < items.list->n; i++) {
        Value item = text_arg(r, &items.list->item[i], "an item to join");
        if (i) buffer_put_text(r, b, s);
        buffer_put_text(r, b, &item);
        render_spend(r, 1);
    }
    return buffer_value(b);
}

static Value string_zfill(Render *r, Value *s, const Args *a, int32_t how)
{
    (void) how;
    int64_t width = int_arg(r, &a->at[0], 0, "the width"), n = text_length(r, s);
    size_t sign = s->n > 0 && strchr("+-", text_of(s)[0]) ? 1 : 0;
    Value zero = text_new(r, "0", 1), fill = text_repeat(r, &zero, width - n);
    Buffer *b = buffer_new(r, 0);
    buffer_put_part(r, b, s, 0, sign);
    buffer_put_text(r, b, &fill);
    buffer_put_part(r, b, s, sign, s->n - sign);
    return buffer_value(b);
}

static Value string_format(Render *r, Value *s, const Args *a, int32_t how)
{
    (void) how;
    return text_braces(r, s, a->more, a->named);
}

/* ---- dicts ---- */

enum { DICT_KEYS, DICT_VALUES, DICT_ITEMS };
static Value dict_list(Render *r, Value *d, const Args *a, int32_t how)
{
    (void) a;
    Value out = list_new(r, V_LIST, d->dict->n);
    render_spend(r, d->dict->n);
    for (uint32_t i = 0; i < d->dict->n; i++) {
        const Pair *p = &d->dict->pair[i];
        Value v = how == DICT_KEYS ? p->key : p->value;
        if (how == DICT_ITEMS) {
            v = list_new(r, V_TUPLE, 2);
            list_put(r, v.list, p->key);
            list_put(r, v.list, p->value);
        }
        list_put(r, out.list, v);
    }
    return out;
}

static Value dict_get(Render *r, Value *d, const Args *a, int32_t how)
{
    (void) how;
    if (!is_set(&a->at[0])) render_fail(r, "get needs a key");
    const Value *v = dict_find(r, d->dict, &a->at[0]);
    return v ? *v : is_set(&a->at[1]) ? a->at[1] : value_none();
}

static Value dict_pop(Render *r, Value *d, const Args *a, int32_t how)
{
    (void) how;
    Value v;
    if (!is_set(&a->at[0])) render_fail(r, "pop needs a key");
    if (dict_remove(r, d->dict, &a->at[0], &v)) return v;
    if (!is_set(&a->at[1])) render_fail(r, "pop: the dict has no such key");
    return a->at[1];
}

static void put_all(Render *r, Dict *into, const Dict *from)
{
    render_spend(r, from->n);
    for (uint32_t i = 0, n = from->n; i < n; i++) dict_set(r, into, from->pair[i].key, from->pair[i].value);
}

static Value dict_update(Render *r, Value *d, const Args *a, int32_t how)
{
    (void) how;
    for (uint32_t i = 0; i < a->more->n; i++) {
        if (a->more->item[i].kind != V_DICT)
            render_fail(r, "update needs a dict, not a %s", kind_name(&a->more->item[i]));
        put_all(r, d->dict, a->more->item[i].dict);
    }
    put_all(r, d->dict, a->named);
    return value_none();
}

static Value dict_copy(Render *r, Value *d, const Args *a, int32_t how)
{
    (void) a;
    (void) how;
    Value out = dict_new(r);
    out.dict->client = d->dict->client;
    put_all(r, out.dict, d->dict);
    return out;
}

/* ---- lists ---- */

static Value list_append(Render *r, Value *l, const Args *a, int32_t how)
{
    (void) how;
    if (!is_set(&a->at[0])) render_fail(r, "append needs a value");
    list_put(r, l->list, a->at[0]);
    return value_none();
}

static Value list_extend(Render *r, Value *l, const Args *a, int32_t how)
{
    (void) how;
    Value more = value_iterate(r, a->at[0].kind == V_UNSET ? value_none() : a->at[0]);
    render_spend(r, more.list->n);
    for (uint32_t i = 0, n = more.list->n; i < n; i++) list_put(r, l->list, more.list->item[i]);
    return value_none();
}

static Value list_insert(Render *r, Value *v, const Args *a, int32_t how)
{
    (void) how;
    List *l = v->list;
    int64_t at = int_arg(r, &a->at[0], 0, "the index");
    if (!is_set(&a->at[1])) render_fail(r, "insert needs a value");
    if (at < 0) at += l->n;
    if (at < 0) at = 0;
    if (at > l->n) at = l->n;
    list_put(r, l, a->at[1]);
    render_spend(r, l->n / 16);
    memmove(l->item + at + 1, l->item + at, (size_t) (l->n - 1 - at) * sizeof *l->item);
    l->item[at] = a->at[1];
    return value_none();
}

static Value list_pop(Render *r, Value *v, const Args *a, int32_t how)
{
    (void) how;
    List *l = v->list;
    int64_t at = int_arg(r, &a->at[0], -1, "the index");
    if (at < 0) at += l->n;
    if (at < 0 || at >= l->n) render_fail(r, "pop: the list has no such item");
    Value out = l->item[at];
    render_spend(r, l->n / 16);
    memmove(l->item + at, l->item + at + 1, (size_t) (l->n - 1 - at) * sizeof *l->item);
    l->n--;
    return out;
}

static Value list_index(Render *r, Value *l, const Args *a, int32_t how)
{
    (void) how;
    for (uint32_t i = 0; i < l->list->n; i++)
        if (value_equal(r, &l->list->item[i], &a->at[0])) return value_int(i);
    render_fail(r, "index: the value is not in the list");
}

static Value list_count(Render *r, Value *l, const Args *a, int32_t how)
{
    (void) how;
    int64_t n = 0;
    for (uint32_t i = 0; i < l->list->n; i++) n += value_equal(r, &l->list->item[i], &a->at[0]);
    return value_int(n);
}

static Value list_copy(Render *r, Value *v, const Args *a, int32_t how)
{
    (void) a;
    (void) how;
    Value out = list_new(r, V_LIST, 0);
    out.list->client = v->list->client;
    render_spend(r, v->list->n / 16);
    for (uint32_t i = 0; i < v->list->n; i++) list_put(r, out.list, v->list->item[i]);
    return out;
}

static Value list_reverse(Render *r, Value *v, const Args *a, int32_t how)
{
    (void) a;
    (void) how;
    List *l = v->list;
    render_spend(r, l->n / 16);
    for (uint32_t i = 0; i < l->n / 2; i++) {
        Value t = l->item[i];
        l->item[i] = l->item[l->n - 1 - i];
        l->item[l->n - 1 - i] = t;
    }
    return value_none();
}

/* ---- loops ---- */

static Value loop_cycle(Render *r, Value *v, const Args *a, int32_t how)
{
    (void) how;
    if (a->more->n == 0) render_fail(r, "cycle needs values");
    return a->more->item[v->loop->index % a->more->n];
}

static Value loop_changed(Render *r, Value *v, const Args *a, int32_t how)
{
    (void) how;
    Value now = { .kind = V_TUPLE, .list = a->more };
    bool same = is_set(&v->loop->changed) && value_equal(r, &v->loop->changed, &now);
    v->loop->changed = now;
    return value_bool(!same);
}

/* ---- tables ---- */

static const MethodSpec STRING_METHODS[] = {
    { "capitalize", string_case, "", CASE_CAPITALIZE }, { "count", string_count, "sub start end", 0 },
    { "endswith", string_ends, "suffix start end", 1 },
    { "find", string_find, "sub start end", 0 }, { "format", string_format, "*", 0 },
    { "index", string_find, "sub start end", FIND_OR_FAIL },
    { "isalnum", string_is, "", IS_ALNUM }, { "isalpha", string_is, "", IS_ALPHA },
    { "isdigit", string_is, "", IS_DIGIT },
    { "islower", string_is, "", IS_LOWER }, { "isspace", string_is, "", IS_SPACE },
    { "isupper", string_is, "", IS_UPPER },
    { "join", string_join, "iterable", 0 }, { "lower", string_case, "", CASE_LOWER },
    { "lstrip", string_strip, "chars", STRIP_LEFT },
    { "partition", string_partition, "sep", 0 },
    { "removeprefix", string_remove, "prefix", 0 }, { "removesuffix", string_remove, "suffix", 1 },
    { "replace", string_replace, "old new count", 0 },
    { "rfind", string_find, "sub start end", FIND_RIGHT },
    { "rindex", string_find, "sub start end", FIND_RIGHT | FIND_OR_FAIL },
    { "rpartition", string_partition, "sep", 1 },
    { "rsplit", string_split, "sep maxsplit", 1 }, { "rstrip", string_strip, "chars", STRIP_RIGHT },
    { "split", string_split, "sep maxsplit", 0 },
    { "splitlines", string_lines, "keepends", 0 }, { "startswith", string_ends, "prefix start end", 0 },
    { "strip", string_strip, "chars", STRIP_LEFT | STRIP_RIGHT }, { "swapcase", string_case, "", CASE_SWAP },
    { "title", string_case, "", CASE_TITLE },
    { "upper", string_case, "", CASE_UPPER }, { "zfill", string_zfill, "width", 0 }, { 0 },
};
static const MethodSpec DICT_METHODS[] = {
    { "copy", dict_copy, "", 0 }, { "get", dict_get, "key default", 0 }, { "items", dict_list, "", DICT_ITEMS },
    { "keys", dict_list, "", DICT_KEYS },
    { "pop", dict_pop, "key default", 0 }, { "update", dict_update, "*", 0 },
    { "values", dict_list, "", DICT_VALUES }, { 0 },
};
static const MethodSpec LIST_METHODS[] = {
    { "count", list_count, "value", 0 }, { "index", list_index, "value", 0 }, { "append", list_append, "object", 0 },
    { "copy", list_copy, "", 0 }, { "extend", list_extend, "iterable", 0 },
    { "insert", list_insert, "index object", 0 }, { "pop", list_pop, "index", 0 },
    { "reverse", list_reverse, "", 0 }, { 0 },
};
enum { TUPLE_METHODS = 2 };                        /* the first ones are also methods of tuples */
static const MethodSpec LOOP_METHODS[] = { { "cycle", loop_cycle, "*", 0 }, { "changed", loop_changed, "*", 0 },
                                           { 0 } };

const MethodSpec *method_find(const Value *v, const char *name, size_t n)
{
    const MethodSpec *m = v->kind == V_STRING ? STRING_METHODS : v->kind == V_DICT ? DICT_METHODS : v->kind == V_LOOP
                          ? LOOP_METHODS : v->kind == V_LIST || v->kind == V_TUPLE ? LIST_METHODS : NULL;
    for (int i = 0; m && m[i].name && !(v->kind == V_TUPLE && i == TUPLE_METHODS); i++)
        if (strlen(m[i].name) == n && memcmp(m[i].name, name, n) == 0) return &m[i];
    return NULL;
}

/* ---- functions ---- */

/* The length is computed before the list is built. */
static Value make_range(Render *r, const Args *a)
{
    if (!is_set(&a->at[0])) render_fail(r, "range needs a number");
    int64_t from = 0, to = int_arg(r, &a->at[0], 0, "range's bound"), step = int_arg(r, &a->at[2], 1, "range's step");
    if (is_set(&a->at[1])) {
        from = to;
        to = int_arg(r, &a->at[1], 0, "range's bound");
    }
    if (step == 0) render_fail(r, "range's step cannot be 0");
    uint64_t gap = step > 0 ? (to > from ? (uint64_t) to - (uint64_t) from : 0)
                            : from > to ? (uint64_t) from - (uint64_t) to : 0;
    uint64_t by = step > 0 ? (uint64_t) step : -(uint64_t) step, n = gap ? (gap - 1) / by + 1 : 0;
    if (n > TEMPLATE_RANGE_MAX)
        fault(&r->fault, ST_FULL, r->at, "range has %llu numbers, expected at most %d", (unsigned long long) n,
              TEMPLATE_RANGE_MAX);
    Value out = list_new(r, V_LIST, n);
    render_spend(r, n / 16);
    for (uint64_t i = 0; i < n; i++)
        list_put(r, out.list, value_int((int64_t) ((uint64_t) from + i * (uint64_t) step)));
    return out;
}

static Value make_dict(Render *r, const Args *a)
{
    Value d = dict_new(r), empty = d;
    dict_update(r, &empty, a, 0);
    return d;
}

static Value make_namespace(Render *r, const Args *a)
{
    Value d = make_dict(r, a);
    d.kind = V_NAMESPACE;
    return d;
}

static Value raise_exception(Render *r, const Args *a)
{
    Value text = is_set(&a->at[0]) ? render_text(r, &a->at[0]) : text_new(r, "the template gave up", 20);
    fault(&r->fault, ST_ARG, r->at, "%.*s", (int) (text.n < 390 ? text.n : 390), text_of(&text));
}

/* strftime in the C locale, with %-d and similar as in glibc. */
static Value strftime_now(Render *r, const Args *a)
{
    static const char *const DAYS[] = { "Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday" };
    static const char *const MONTHS[] = { "January", "February", "March", "April", "May", "June", "July", "August",
                                          "September", "October", "November", "December" };
    Value format = text_arg(r, &a->at[0], "strftime_now's format");
    const struct tm *t = r->now;
    Buffer *b = buffer_new(r, 0);
    const char *s = text_of(&format);
    for (size_t i = 0; i < format.n; i++) {
        if (s[i] != '%' || i + 1 == format.n) {
            buffer_put_part(r, b, &format, i, 1);
            continue;
        }
        bool bare = s[i + 1] == '-' && i + 2 < format.n;
        char kind = s[i += bare ? 2 : 1], one[64];
        const char *day = DAYS[(unsigned) t->tm_wday % 7], *month = MONTHS[(unsigned) t->tm_mon % 12];
        const char *name = kind == 'A' || kind == 'a' ? day : kind == 'B' || kind == 'b' || kind == 'h' ? month : NULL;
        if (name) {
            buffer_put(r, b, name, kind == 'a' || kind == 'b' || kind == 'h' ? 3 : strlen(name), false);
            continue;
        }
        if (kind == 'p') {
            buffer_put(r, b, t->tm_hour < 12 ? "AM" : "PM", 2, false);
            continue;
        }
        if (!kind || !strchr("dHIjmMSUwWyYFDTReCGgVunt%zZs", kind))
            render_fail(r, "strftime_now: %%%c is not supported", kind);
        char piece[4] = { '%', kind };
        if (bare) memcpy(piece, (char[4]) { '%', '-', kind, 0 }, 4);
        buffer_put(r, b, one, strftime(one, sizeof one, piece, t), false);
    }
    return buffer_value(b);
}

const Function *function_find(const char *name, size_t n)
{
    static const Function FUNCTIONS[] = {
        { "range", make_range, "start stop step" }, { "dict", make_dict, "*" }, { "namespace", make_namespace, "*" },
        { "raise_exception", raise_exception, "message" }, { "strftime_now", strftime_now, "format" },
    };
    for (size_t i = 0; i < sizeof FUNCTIONS / sizeof *FUNCTIONS; i++)
        if (strlen(FUNCTIONS[i].name) == n && memcmp(FUNCTIONS[i].name, name, n) == 0) return &FUNCTIONS[i];
    return NULL;
}
