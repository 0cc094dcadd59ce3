/* template_value.c - the values of a render: memory, strings with their marks, lists, dicts, and Python's semantics of
 * values. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "text/template/template_impl.h"
#include "text/tokenizer/utf8.h"

/* ---- memory ---- */

enum { CHUNK_BYTES = 32 << 10, CHUNK_LARGEST = 1 << 20 };
struct HeapChunk { HeapChunk *before; size_t n, cap; max_align_t bytes[]; };

static size_t rounded(size_t n) { return (n + sizeof(max_align_t) - 1) / sizeof(max_align_t) * sizeof(max_align_t); }

void *heap_take(Heap *h, size_t n)
{
    if (n > h->max) fault(h->fault, ST_FULL, SIZE_MAX, "more than %zu MiB of memory are needed", h->max >> 20);
    size_t need = rounded(n ? n : 1);
    HeapChunk *c = h->last;
    if (!c || need > c->cap - c->n) {
        size_t cap = c && 2 * c->cap <= CHUNK_LARGEST ? 2 * c->cap : c ? c->cap : CHUNK_BYTES;
        if (cap > CHUNK_LARGEST) cap = CHUNK_LARGEST;
        if (cap < need) cap = need;
        if (cap > h->max - h->bytes) cap = need;
        if (cap > h->max - h->bytes)
            fault(h->fault, ST_FULL, SIZE_MAX, "more than %zu MiB of memory are needed", h->max >> 20);
        HeapChunk *new = malloc(sizeof *new + cap);
        if (!new) fault(h->fault, ST_MEMORY, SIZE_MAX, "out of memory");
        new->n = 0;
        new->cap = cap;
        new->before = c;
        h->last = c = new;
        h->bytes += cap;
    }
    void *p = (char *) c->bytes + c->n;
    c->n += need;
    return memset(p, 0, need);
}

void *heap_grow(Heap *h, void *p, size_t old, size_t n)
{
    HeapChunk *c = h->last;
    size_t had = rounded(old ? old : 1);
    if (p && c && n <= h->max && (char *) p + had == (char *) c->bytes + c->n && rounded(n) - had <= c->cap - c->n &&
        rounded(n) >= had) {
        memset((char *) p + had, 0, rounded(n) - had);
        c->n += rounded(n) - had;
        return p;
    }
    void *new = heap_take(h, n);
    if (old) memcpy(new, p, old);
    return new;
}

void heap_free(Heap *h)
{
    while (h->last) {
        HeapChunk *c = h->last;
        h->last = c->before;
        free(c);
    }
}

/* ---- strings ---- */

Buffer *buffer_new(Render *r, size_t room)
{
    Buffer *b = heap_take(&r->heap, sizeof *b);
    if (room) b->bytes = heap_take(&r->heap, room);
    b->cap = (uint32_t) room;
    return b;
}

static void buffer_room(Render *r, Buffer *b, size_t more)
{
    if (more > TEMPLATE_OUTPUT_MAX || b->n > TEMPLATE_OUTPUT_MAX - more)
        fault(&r->fault, ST_FULL, r->at, "a text is larger than %d MiB", TEMPLATE_OUTPUT_MAX >> 20);
    if (more <= b->cap - b->n) return;
    size_t cap = b->cap < 32 ? 64 : 2 * (size_t) b->cap;
    if (cap < b->n + more) cap = b->n + more;
    b->bytes = heap_grow(&r->heap, b->bytes, b->cap, cap);
    b->cap = (uint32_t) cap;
}

static void mark(Render *r, Buffer *b, uint32_t at, uint32_t n, Speaker who)
{
    if (n == 0) return;
    Span *last = b->n_client > 0 ? &b->client[b->n_client - 1] : NULL;
    if (last && last->at + last->n == at && last->who == who) {
        last->n += n;
        return;
    }
    if (b->n_client == b->cap_client) {
        uint32_t cap = b->cap_client ? 2 * b->cap_client : 2;
        b->client = heap_grow(&r->heap, b->client, b->cap_client * sizeof *b->client, cap * sizeof *b->client);
        b->cap_client = cap;
    }
    b->client[b->n_client++] = (Span) { at, n, who };
}

void buffer_put(Render *r, Buffer *b, const char *s, size_t n, Speaker who)
{
    if (n == 0) return;
    buffer_room(r, b, n);
    memcpy(b->bytes + b->n, s, n);
    if (who) mark(r, b, b->n, (uint32_t) n, who);
    b->n += (uint32_t) n;
}

/* The first span that ends after that byte. */
static uint32_t span_after(const Buffer *b, uint32_t at)
{
    uint32_t lo = 0, hi = b->n_client;
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;
        if (b->client[mid].at + b->client[mid].n <= at) lo = mid + 1;
        else hi = mid;
    }
    return lo;
}

void buffer_put_part(Render *r, Buffer *b, const Value *v, size_t at, size_t n)
{
    if (n == 0) return;
    render_spend(r, n / 256);
    buffer_room(r, b, n);
    const Buffer *from = v->text;                  /* may be b itself, so read its bytes only after growing */
    uint32_t start = v->at + (uint32_t) at, end = start + (uint32_t) n, to = b->n;
    memcpy(b->bytes + to, from->bytes + start, n);
    for (uint32_t i = span_after(from, start), last = from->n_client; i < last && from->client[i].at < end; i++) {
        Span s = from->client[i];
        uint32_t first = s.at > start ? s.at : start, stop = s.at + s.n < end ? s.at + s.n : end;
        mark(r, b, to + first - start, stop - first, s.who);
    }
    b->n += (uint32_t) n;
}

void buffer_put_text(Render *r, Buffer *b, const Value *v) { buffer_put_part(r, b, v, 0, v->n); }

Value buffer_value(Buffer *b) { return (Value) { .kind = V_STRING, .n = b->n, .text = b }; }

Value text_new(Render *r, const char *s, size_t n)
{
    Buffer *b = buffer_new(r, n);
    buffer_put(r, b, s, n, false);
    return buffer_value(b);
}

Value text_part(const Value *v, size_t at, size_t n)
{
    Value part = *v;
    part.at += (uint32_t) at;
    part.n = (uint32_t) n;
    return part;
}

Value text_join(Render *r, Value a, const Value *b)
{
    bool both = a.n > 0 && b->n > 0;
    if (a.n == 0) a = *b;
    a.safe = false;
    if (!both) return a;
    if (a.text->cap > a.text->n && a.at + a.n == a.text->n) {   /* ends where its buffer ends, with room left */
        buffer_put_text(r, a.text, b);
        a.n += b->n;
        return a;
    }
    Buffer *joined = buffer_new(r, 2 * ((size_t) a.n + b->n) <= TEMPLATE_OUTPUT_MAX ? 2 * ((size_t) a.n + b->n) : 0);
    buffer_put_text(r, joined, &a);
    buffer_put_text(r, joined, b);
    return buffer_value(joined);
}

bool text_is(const Value *v, const char *s)
{
    return v->kind == V_STRING && v->n == strlen(s) && memcmp(text_of(v), s, v->n) == 0;
}

Speaker text_client(const Value *v, size_t at)
{
    const Buffer *b = v->text;
    if (!b || b->n_client == 0) return 0;
    uint32_t i = v->at + (uint32_t) at, k = span_after(b, i);
    return k < b->n_client && b->client[k].at <= i ? b->client[k].who : 0;
}

/* ---- lists ---- */

Value list_new(Render *r, ValueKind kind, size_t room)
{
    List *l = heap_take(&r->heap, sizeof *l);
    if (room > TEMPLATE_MEMORY_MAX / sizeof *l->item) render_fail(r, "a list of %zu items is too long", room);
    l->item = room ? heap_take(&r->heap, room * sizeof *l->item) : NULL;
    l->cap = (uint32_t) room;
    return (Value) { .kind = (uint8_t) kind, .list = l };
}

void list_put(Render *r, List *l, Value v)
{
    if (l->n == l->cap) {
        uint32_t cap = l->cap ? 2 * l->cap : 4;
        l->item = heap_grow(&r->heap, l->item, l->cap * sizeof *l->item, cap * sizeof *l->item);
        l->cap = cap;
    }
    l->item[l->n++] = v;
}

/* ---- dicts ---- */

Value dict_new(Render *r) { return (Value) { .kind = V_DICT, .dict = heap_take(&r->heap, sizeof(Dict)) }; }

/* Equal keys have equal hashes: 1, 1.0 and true are one key. */
static uint32_t key_hash(Render *r, const Value *key)
{
    switch (key->kind) {
    case V_STRING:
        render_spend(r, key->n / 256);
        return (uint32_t) XXH3_64bits(text_of(key), key->n);
    case V_BOOL: case V_INT: case V_FLOAT: {
        double d = as_float(key) + 0.0;            /* turns -0 into 0 */
        return (uint32_t) XXH3_64bits(&d, sizeof d);
    }
    case V_NONE: return 1;
    case V_UNDEFINED: return 3;                    /* all undefined values are equal */
    case V_TUPLE: {
        uint32_t h = 2;
        for (uint32_t i = 0; i < key->list->n; i++) {
            if (key->list->item[i].kind == V_TUPLE) render_fail(r, "a tuple in a tuple cannot be a key");
            h = h * 31 + key_hash(r, &key->list->item[i]);
        }
        return h;
    }
    default: render_fail(r, "a %s cannot be a key", kind_name(key));
    }
}

static bool keys_equal(Render *r, const Value *a, const Value *b)
{
    if (a->kind == V_STRING && b->kind == V_STRING && a->n == b->n) render_spend(r, a->n / 256);
    if (a->kind == V_STRING || b->kind == V_STRING)
        return a->kind == b->kind && a->n == b->n && memcmp(text_of(a), text_of(b), a->n) == 0;
    return value_equal(r, a, b);
}

enum { SMALL_DICT = 8 };

static void dict_index(Render *r, Dict *d)
{
    uint32_t slots = 32;
    while (slots < 2 * d->cap) slots *= 2;
    d->slot = heap_take(&r->heap, slots * sizeof *d->slot);
    d->mask = slots - 1;
    for (uint32_t i = 0; i < d->n; i++) {
        uint32_t at = key_hash(r, &d->pair[i].key) & d->mask;
        while (d->slot[at]) at = (at + 1) & d->mask;
        d->slot[at] = i + 1;
    }
}

Value *dict_find(Render *r, const Dict *d, const Value *key)
{
    if (d->n == 0 && key->kind == V_STRING) return NULL;
    uint32_t hash = key->kind == V_STRING && !d->slot ? 0 : key_hash(r, key);
    if (!d->slot) {
        for (uint32_t i = 0; i < d->n; i++)
            if (keys_equal(r, &d->pair[i].key, key)) return &d->pair[i].value;
        return NULL;
    }
    for (uint32_t at = hash & d->mask; d->slot[at]; at = (at + 1) & d->mask)
        if (keys_equal(r, &d->pair[d->slot[at] - 1].key, key)) return &d->pair[d->slot[at] - 1].value;
    return NULL;
}

Value *dict_find_name(const Dict *d, const char *name, size_t n)
{
    for (uint32_t i = 0; i < d->n; i++)
        if (d->pair[i].key.kind == V_STRING && d->pair[i].key.n == n && memcmp(text_of(&d->pair[i].key), name, n) == 0)
            return &d->pair[i].value;
    return NULL;
}

void dict_set(Render *r, Dict *d, Value key, Value value)
{
    Value *there = dict_find(r, d, &key);
    if (there) {
        *there = value;
        return;
    }
    if (d->n == d->cap) {
        uint32_t cap = d->cap ? 2 * d->cap : 4;
        d->pair = heap_grow(&r->heap, d->pair, d->cap * sizeof *d->pair, cap * sizeof *d->pair);
        d->cap = cap;
        d->slot = NULL;
    }
    d->pair[d->n++] = (Pair) { key, value };
    if (d->n <= SMALL_DICT) {
        (void) key_hash(r, &key);                  /* an unhashable key is an error at any size */
    } else if (!d->slot) {
        dict_index(r, d);
    } else {
        uint32_t at = key_hash(r, &key) & d->mask;
        while (d->slot[at]) at = (at + 1) & d->mask;
        d->slot[at] = d->n;
    }
}

bool dict_remove(Render *r, Dict *d, const Value *key, Value *removed)
{
    Value *there = dict_find(r, d, key);
    if (!there) return false;
    *removed = *there;
    uint32_t i = (uint32_t) ((Pair *) (void *) ((char *) there - offsetof(Pair, value)) - d->pair);
    render_spend(r, d->n - i);
    memmove(d->pair + i, d->pair + i + 1, (d->n - i - 1) * sizeof *d->pair);
    d->n--;
    d->slot = NULL;
    if (d->n > SMALL_DICT) {
        render_spend(r, d->n);
        dict_index(r, d);
    }
    return true;
}

/* ---- from JSON ---- */

static Value client_text(Render *r, const char *s, size_t n, Speaker who)
{
    Buffer *b = buffer_new(r, n);
    buffer_put(r, b, s, n, who);
    return buffer_value(b);
}

/* Parts of a conversation; PART_FRAME: values that belong to the frame, by their keys. */
typedef enum { PART_VALUE, PART_MESSAGES, PART_MESSAGE, PART_CALLS, PART_CALL, PART_FRAME } Part;

static Part part_of(Part outer, const char *key)
{
    static const char *const FRAME[] = { "role", "name", "type" };
    if (outer == PART_MESSAGE && strcmp(key, "tool_calls") == 0) return PART_CALLS;
    if (outer == PART_CALL && strcmp(key, "function") == 0) return PART_CALL;
    for (size_t i = 0; (outer == PART_MESSAGE || outer == PART_CALL) && i < 3; i++)
        if (strcmp(key, FRAME[i]) == 0) return PART_FRAME;
    return PART_VALUE;
}

/* Templates build markers from the frame, so its words count as the template's; but only words: a name that could
 * itself be a marker counts as the client's. */
static bool is_word(const json_t *j)
{
    const char *s = json_string_value(j);
    return strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.:/") == json_string_length(j);
}

static Value from_json(Render *r, const json_t *j, Speaker who, Part part, int32_t depth)
{
    if (depth > VALUE_DEPTH_MAX) render_fail(r, "the variables are nested deeper than %d", VALUE_DEPTH_MAX);
    Value v = value_none();
    switch (json_typeof(j)) {
    case JSON_NULL: case JSON_TRUE: case JSON_FALSE: case JSON_INTEGER: case JSON_REAL:
        if (json_is_boolean(j)) v = value_bool(json_is_true(j));
        else if (json_is_integer(j)) v = value_int(json_integer_value(j));
        else if (json_is_real(j)) v = value_float(json_real_value(j));
        v.client = part != PART_FRAME ? who : 0;
        return v;
    case JSON_STRING:
        return client_text(r, json_string_value(j), json_string_length(j),
                           part == PART_FRAME && is_word(j) ? 0 : who);
    case JSON_ARRAY: {
        size_t n = json_array_size(j);
        Value list = list_new(r, V_LIST, n);
        list.list->client = part == PART_VALUE ? who : 0;
        Part inner = part == PART_MESSAGES ? PART_MESSAGE : part == PART_CALLS ? PART_CALL : PART_VALUE;
        for (size_t i = 0; i < n; i++) {
            Speaker said = part == PART_MESSAGES ? SPEAKER_MESSAGE + (Speaker) i : who;
            list_put(r, list.list, from_json(r, json_array_get(j, i), said, inner, depth + 1));
        }
        return list;
    }
    default: {
        Value dict = dict_new(r);
        dict.dict->client = part == PART_VALUE ? who : 0;
        const char *key;
        json_t *member;
        json_object_foreach((json_t *) (uintptr_t) j, key, member)
            dict_set(r, dict.dict, client_text(r, key, strlen(key), dict.dict->client),
                     from_json(r, member, who, part_of(part, key), depth + 1));
        return dict;
    }
    }
}

Value value_from_json(Render *r, const json_t *j, Origin origin)
{
    return from_json(r, j, origin != ORIGIN_PROGRAM ? SPEAKER_CLIENT : 0,
                     origin == ORIGIN_MESSAGES ? PART_MESSAGES : PART_VALUE, 0);
}

/* ---- Python's semantics ---- */

const char *kind_name(const Value *v)
{
    static const char *const NAMES[] = {
        [V_UNSET] = "undefined value", [V_UNDEFINED] = "undefined value", [V_NONE] = "none", [V_BOOL] = "boolean",
        [V_INT] = "integer",
        [V_FLOAT] = "float", [V_STRING] = "string", [V_LIST] = "list", [V_TUPLE] = "tuple", [V_DICT] = "dict",
        [V_NAMESPACE] = "namespace",
        [V_LOOP] = "loop", [V_MACRO] = "macro", [V_METHOD] = "method", [V_FUNCTION] = "function",
    };
    return NAMES[v->kind];
}

bool is_number(const Value *v) { return v->kind == V_BOOL || v->kind == V_INT || v->kind == V_FLOAT; }
double as_float(const Value *v) { return v->kind == V_FLOAT ? v->f : v->kind == V_INT ? (double) v->i : v->b; }

bool as_int(const Value *v, int64_t *i)
{
    if (v->kind != V_INT && v->kind != V_BOOL) return false;
    *i = v->kind == V_INT ? v->i : v->b;
    return true;
}

bool value_true(const Value *v)
{
    switch (v->kind) {
    case V_UNSET: case V_UNDEFINED: case V_NONE: return false;
    case V_BOOL: return v->b;
    case V_INT: return v->i != 0;
    case V_FLOAT: return v->f != 0;
    case V_STRING: return v->n > 0;
    case V_LIST: case V_TUPLE: return v->list->lazy || v->list->n > 0;
    case V_DICT: return v->dict->n > 0;
    default: return true;
    }
}

/* Exact for an integer and a float: neither is rounded to the other's type. */
static int compare_numbers(const Value *a, const Value *b)
{
    int64_t x, y;
    if (as_int(a, &x) && as_int(b, &y)) return (x > y) - (x < y);
    double d = as_float(a), e = as_float(b);
    if (d == e && (a->kind != V_FLOAT || b->kind != V_FLOAT) && fabs(d) >= 9007199254740992.0 &&
        fabs(d) < 9223372036854775808.0) {
        x = a->kind == V_FLOAT ? (int64_t) d : a->i;
        y = b->kind == V_FLOAT ? (int64_t) e : b->i;
        return (x > y) - (x < y);
    }
    return (d > e) - (d < e);
}

static bool equal(Render *r, const Value *a, const Value *b, int32_t depth)
{
    render_spend(r, 1);
    if (depth > VALUE_DEPTH_MAX) render_fail(r, "a value is nested deeper than %d", VALUE_DEPTH_MAX);
    if (is_number(a) && is_number(b)) {
        if ((a->kind == V_FLOAT && isnan(a->f)) || (b->kind == V_FLOAT && isnan(b->f))) return false;
        return compare_numbers(a, b) == 0;
    }
    if (a->kind != b->kind) return false;
    switch (a->kind) {
    case V_UNDEFINED: case V_NONE: return true;
    case V_STRING:
        render_spend(r, a->n / 256);
        return a->n == b->n && memcmp(text_of(a), text_of(b), a->n) == 0;
    case V_LIST: case V_TUPLE:
        if (a->list == b->list) return true;
        if (a->list->n != b->list->n || a->list->lazy || b->list->lazy) return false;
        for (uint32_t i = 0; i < a->list->n; i++)
            if (!equal(r, &a->list->item[i], &b->list->item[i], depth + 1)) return false;
        return true;
    case V_DICT:
        if (a->dict == b->dict) return true;
        if (a->dict->n != b->dict->n) return false;
        for (uint32_t i = 0; i < a->dict->n; i++) {
            const Value *other = dict_find(r, b->dict, &a->dict->pair[i].key);
            if (!other || !equal(r, &a->dict->pair[i].value, other, depth + 1)) return false;
        }
        return true;
    case V_METHOD: return a->method->spec == b->method->spec && equal(r, &a->method->self, &b->method->self, depth + 1);
    default: return a->dict == b->dict;            /* any pointer of the union */
    }
}

bool value_equal(Render *r, const Value *a, const Value *b) { return equal(r, a, b, 0); }

static int compare(Render *r, const Value *a, const Value *b, int32_t depth)
{
    render_spend(r, 1);
    if (depth > VALUE_DEPTH_MAX) render_fail(r, "a value is nested deeper than %d", VALUE_DEPTH_MAX);
    if (is_number(a) && is_number(b)) return compare_numbers(a, b);
    if (a->kind == V_STRING && b->kind == V_STRING) {              /* UTF-8 sorts in code point order */
        uint32_t n = a->n < b->n ? a->n : b->n;
        render_spend(r, n / 256);
        int c = n ? memcmp(text_of(a), text_of(b), n) : 0;
        return c ? (c > 0) - (c < 0) : (a->n > b->n) - (a->n < b->n);
    }
    if (a->kind == b->kind && (a->kind == V_LIST || a->kind == V_TUPLE)) {
        for (uint32_t i = 0; i < a->list->n && i < b->list->n; i++)
            if (!equal(r, &a->list->item[i], &b->list->item[i], depth + 1))
                return compare(r, &a->list->item[i], &b->list->item[i], depth + 1);
        return (a->list->n > b->list->n) - (a->list->n < b->list->n);
    }
    render_fail(r, "a %s and a %s have no order", kind_name(a), kind_name(b));
}

int value_compare(Render *r, const Value *a, const Value *b) { return compare(r, a, b, 0); }

/* Bottom-up merge sort: equal keys keep their order, also if reversed. Not qsort: a comparison may longjmp. */
void pairs_sort(Render *r, Pair *pair, uint32_t n, bool reverse)
{
    Pair *from = pair, *to = heap_take(&r->heap, n * sizeof *to);
    for (size_t run = 1; run < n; run *= 2) {
        for (size_t lo = 0; lo < n; lo += 2 * run) {
            size_t mid = lo + run < n ? lo + run : n, hi = lo + 2 * run < n ? lo + 2 * run : n, i = lo, k = mid;
            for (size_t w = lo; w < hi; w++) {
                int c = i < mid && k < hi ? value_compare(r, &from[i].key, &from[k].key)
                                          : i < mid ? 0 : reverse ? -1 : 1;
                to[w] = (reverse ? c >= 0 : c <= 0) ? from[i++] : from[k++];
            }
        }
        Pair *other = from;
        from = to;
        to = other;
    }
    if (from != pair && n) memcpy(pair, from, n * sizeof *pair);
}

bool value_contains(Render *r, const Value *in, const Value *v)
{
    switch (in->kind) {
    case V_UNDEFINED: return false;
    case V_STRING:
        if (v->kind != V_STRING) render_fail(r, "only a string can be in a string, not a %s", kind_name(v));
        render_spend(r, in->n / 256);
        return v->n == 0 || memmem(text_of(in), in->n, text_of(v), v->n) != NULL;
    case V_LIST: case V_TUPLE:
        for (uint32_t i = 0; i < in->list->n; i++)
            if (value_equal(r, &in->list->item[i], v)) return true;
        return false;
    case V_DICT: return dict_find(r, in->dict, v) != NULL;
    default: render_fail(r, "nothing can be in a %s", kind_name(in));
    }
}

Value value_iterate(Render *r, Value v)
{
    switch (v.kind) {
    case V_LIST: case V_TUPLE: return v;
    case V_UNDEFINED: return list_new(r, V_LIST, 0);
    case V_STRING: {
        Value list = list_new(r, V_LIST, v.n);
        for (size_t i = 0; i < v.n;) {
            uint32_t cp;
            size_t len = utf8_next(text_of(&v) + i, v.n - i, &cp);
            if (len == 0) len = 1;
            list_put(r, list.list, text_part(&v, i, len));
            i += len;
        }
        render_spend(r, list.list->n);
        return list;
    }
    case V_DICT: {
        Value list = list_new(r, V_LIST, v.dict->n);
        for (uint32_t i = 0; i < v.dict->n; i++) list_put(r, list.list, v.dict->pair[i].key);
        render_spend(r, list.list->n);
        return list;
    }
    default: render_fail(r, "a %s cannot be iterated", kind_name(&v));
    }
}
