/* gguf_keys.c - the values of a GGUF file's keys, read by their declared type. Numbers are widened, never truncated:
 * where an integer is expected, any integer type is accepted if the value fits. */
#include <math.h>
#include <stdio.h>

#include "format/gguf_file.h"

enum { ARRAY_HEAD = 4 + 8 };                       /* element type and count, in front of the elements */

static const struct { const char *name; int32_t bytes; } value_types[] = {
    [GV_U8] = { "u8", 1 }, [GV_I8] = { "i8", 1 }, [GV_U16] = { "u16", 2 }, [GV_I16] = { "i16", 2 },
    [GV_U32] = { "u32", 4 },
    [GV_I32] = { "i32", 4 }, [GV_F32] = { "f32", 4 }, [GV_BOOL] = { "bool", 1 }, [GV_STRING] = { "string", 0 },
    [GV_ARRAY] = { "array", 0 }, [GV_U64] = { "u64", 8 }, [GV_I64] = { "i64", 8 }, [GV_F64] = { "f64", 8 },
};

const char *gguf_type_name(GgufType t) { return value_types[t].name; }
int32_t gguf_type_bytes(GgufType t) { return value_types[t].bytes; }

/* ---- one value ---- */

/* Holds every u64 and every i64. */
typedef __int128 Whole;

static bool whole_at(Whole *out, GgufType t, const uint8_t *p)
{
    uint16_t half;
    switch (t) {
    case GV_U8:  *out = p[0]; return true;
    case GV_I8:  *out = (int8_t) p[0]; return true;
    case GV_U16: memcpy(&half, p, 2); *out = half; return true;
    case GV_I16: memcpy(&half, p, 2); *out = (int16_t) half; return true;
    case GV_U32: *out = load_u32(p); return true;
    case GV_I32: *out = (int32_t) load_u32(p); return true;
    case GV_U64: *out = load_u64(p); return true;
    case GV_I64: *out = (int64_t) load_u64(p); return true;
    default:     return false;
    }
}

static double real_at(GgufType t, const uint8_t *p)
{
    uint32_t bits = 0;
    uint64_t wide = 0;
    float    f;
    double   d;
    if (t == GV_F64) {
        wide = load_u64(p);
        memcpy(&d, &wide, sizeof d);
        return d;
    }
    bits = load_u32(p);
    memcpy(&f, &bits, sizeof f);
    return f;
}

/* "-3": for messages and texts. */
static const char *whole_text(Whole v, char out[static 32])
{
    if (v < 0) snprintf(out, 32, "%lld", (long long) v);
    else snprintf(out, 32, "%llu", (unsigned long long) v);
    return out;
}

/* "array of f32". */
static const char *type_text(const Key *k, char out[static 32])
{
    snprintf(out, 32, "%s%s", k->type == GV_ARRAY ? "array of " : "", gguf_type_name(k->elem));
    return out;
}

static Status wrong_type(const Part *p, const Key *k, const char *expected, Error *err)
{
    return fail(err, ST_FORMAT, "%s: key '%.*s' has type %s, expected %s", p->name, names_shown(k->name), k->name,
                type_text(k, (char[32]) { 0 }), expected);
}

static Status get_whole(const Part *p, const Key *k, const uint8_t *at, Whole min, Whole max, Whole *out, Error *err)
{
    Whole v;
    if (!whole_at(&v, k->elem, at))
        return wrong_type(p, k, k->type == GV_ARRAY ? "array of integers" : "an integer", err);
    if (v < min || v > max)
        return fail(err, ST_FORMAT, "%s: key '%.*s' is %s, expected %s to %s", p->name, names_shown(k->name), k->name,
                    whole_text(v, (char[32]) { 0 }), whole_text(min, (char[32]) { 0 }),
                    whole_text(max, (char[32]) { 0 }));
    *out = v;
    return ST_OK;
}

/* Reads any number that a float holds exactly. */
static Status get_real(const Part *p, const Key *k, const uint8_t *at, float *out, Error *err)
{
    Whole v;
    if (k->elem == GV_F32) {
        *out = (float) real_at(GV_F32, at);
        return ST_OK;
    }
    if (k->elem == GV_F64) {
        double d = real_at(GV_F64, at);
        if (!(fabs(d) <= 3.4028234663852886e38) && isfinite(d))     /* the conversion would be undefined */
            return fail(err, ST_FORMAT, "%s: key '%.*s' is %g, expected an f32", p->name, names_shown(k->name),
                        k->name, d);
        if (!isnan(d) && (double) (float) d != d)
            return fail(err, ST_FORMAT, "%s: key '%.*s' is %.17g of type f64, expected a value that f32 holds exactly",
                        p->name, names_shown(k->name), k->name, d);
        *out = (float) d;
        return ST_OK;
    }
    if (!whole_at(&v, k->elem, at)) return wrong_type(p, k, k->type == GV_ARRAY ? "array of f32" : "f32", err);
    if ((Whole) (float) v != v)
        return fail(err, ST_FORMAT, "%s: key '%.*s' is %s of type %s, expected a value that f32 holds exactly", p->name,
                    names_shown(k->name), k->name, whole_text(v, (char[32]) { 0 }), gguf_type_name(k->elem));
    *out = (float) v;
    return ST_OK;
}

/* ---- scalars ---- */

const Key *part_key(const Part *p, const char *name)
{
    int32_t i = names_find(p->order, p->n_keys, name);
    return i < 0 ? NULL : &p->keys[i];
}

Status part_whole(const Part *p, const char *name, uint64_t *out, uint64_t max, Error *err)
{
    const Key *k = part_key(p, name);
    Whole      v = 0;
    if (!k) return ST_END;
    if (k->type == GV_ARRAY) return wrong_type(p, k, "an integer", err);
    TRY(get_whole(p, k, k->value, 0, max, &v, err));
    *out = (uint64_t) v;
    return ST_OK;
}

bool gguf_has(const Gguf *g, const char *key) { return part_key(&g->parts[0], key) != NULL; }

Status gguf_get_u64(const Gguf *g, const char *key, uint64_t *out, Error *err)
{
    return part_whole(&g->parts[0], key, out, UINT64_MAX, err);
}

Status gguf_get_u32(const Gguf *g, const char *key, uint32_t *out, Error *err)
{
    const Part *p = &g->parts[0];
    const Key  *k = part_key(p, key);
    Whole       v = 0, largest = 0;
    if (!k) return ST_END;
    size_t start = k->type == GV_ARRAY ? ARRAY_HEAD : 0;
    if (k->count == 0)
        return fail(err, ST_FORMAT, "%s: key '%.*s' is an empty array, expected u32", p->name, names_shown(key), key);
    for (uint64_t i = 0; i < k->count; i++) {
        TRY(get_whole(p, k, k->value + start + i * (size_t) gguf_type_bytes(k->elem), 0, UINT32_MAX, &v, err));
        if (v != 0 && largest != 0 && v != largest)
            return fail(err, ST_FORMAT, "%s: key '%.*s' is an array of different values (%s and %s), expected one u32",
                        p->name, names_shown(key), key, whole_text(largest, (char[32]) { 0 }),
                        whole_text(v, (char[32]) { 0 }));
        if (v > largest) largest = v;
    }
    *out = (uint32_t) largest;
    return ST_OK;
}

Status gguf_get_f32(const Gguf *g, const char *key, float *out, Error *err)
{
    const Key *k = part_key(&g->parts[0], key);
    if (!k) return ST_END;
    if (k->type == GV_ARRAY) return wrong_type(&g->parts[0], k, "f32", err);
    return get_real(&g->parts[0], k, k->value, out, err);
}

Status gguf_get_bool(const Gguf *g, const char *key, bool *out, Error *err)
{
    const Key *k = part_key(&g->parts[0], key);
    if (!k) return ST_END;
    if (k->type != GV_BOOL) return wrong_type(&g->parts[0], k, "bool", err);
    *out = k->value[0];
    return ST_OK;
}

Status gguf_get_str(const Gguf *g, const char *key, const char **s, size_t *n, Error *err)
{
    const Key *k = part_key(&g->parts[0], key);
    if (!k) return ST_END;
    if (k->type != GV_STRING) return wrong_type(&g->parts[0], k, "string", err);
    *s = (const char *) k->value + 8;
    *n = (size_t) load_u64(k->value);
    return ST_OK;
}

/* ---- arrays ---- */

Status gguf_array(const Gguf *g, const char *key, GgufType *elem, uint64_t *count, Error *err)
{
    const Key *k = part_key(&g->parts[0], key);
    if (!k) return ST_END;
    if (k->type != GV_ARRAY) return wrong_type(&g->parts[0], k, "array", err);
    *elem = k->elem;
    *count = k->count;
    return ST_OK;
}

/* Finds the key, and where its element i is. */
static Status element(const Gguf *g, const char *key, uint64_t i, const Key **out, const uint8_t **at, Error *err)
{
    const Part *p = &g->parts[0];
    const Key  *k = part_key(p, key);
    if (!k) return ST_END;
    if (k->type != GV_ARRAY) return wrong_type(p, k, "array", err);
    if (i >= k->count)
        return fail(err, ST_ARG, "%s: key '%.*s' has %llu elements, element %llu was asked for", p->name,
                    names_shown(key), key, (unsigned long long) k->count, (unsigned long long) i);
    *out = k;
    *at = k->value + (k->strings ? k->strings[i] : ARRAY_HEAD + i * (size_t) gguf_type_bytes(k->elem));
    return ST_OK;
}

Status gguf_array_i64(const Gguf *g, const char *key, uint64_t i, int64_t *out, Error *err)
{
    const Key     *k = NULL;
    const uint8_t *at = NULL;
    Whole          v = 0;
    TRY(element(g, key, i, &k, &at, err));
    TRY(get_whole(&g->parts[0], k, at, INT64_MIN, INT64_MAX, &v, err));
    *out = (int64_t) v;
    return ST_OK;
}

Status gguf_array_f32(const Gguf *g, const char *key, uint64_t i, float *out, Error *err)
{
    const Key     *k = NULL;
    const uint8_t *at = NULL;
    TRY(element(g, key, i, &k, &at, err));
    return get_real(&g->parts[0], k, at, out, err);
}

Status gguf_array_bool(const Gguf *g, const char *key, uint64_t i, bool *out, Error *err)
{
    const Key     *k = NULL;
    const uint8_t *at = NULL;
    TRY(element(g, key, i, &k, &at, err));
    if (k->elem != GV_BOOL) return wrong_type(&g->parts[0], k, "array of bool", err);
    *out = *at;
    return ST_OK;
}

Status gguf_array_str(const Gguf *g, const char *key, uint64_t i, const char **s, size_t *n, Error *err)
{
    const Key     *k = NULL;
    const uint8_t *at = NULL;
    TRY(element(g, key, i, &k, &at, err));
    if (k->elem != GV_STRING) return wrong_type(&g->parts[0], k, "array of string", err);
    *s = (const char *) at + 8;
    *n = (size_t) load_u64(at);
    return ST_OK;
}

/* ---- for people ---- */

int32_t gguf_n_keys(const Gguf *g) { return g->parts[0].n_keys; }
const char *gguf_key(const Gguf *g, int32_t i) { return g->parts[0].keys[i].name; }
GgufType gguf_key_type(const Gguf *g, int32_t i) { return g->parts[0].keys[i].type; }

const uint8_t *gguf_key_raw(const Gguf *g, int32_t i, size_t *n)
{
    *n = g->parts[0].keys[i].bytes;
    return g->parts[0].keys[i].value;
}

enum { SHOWN_VALUES = 8, SHOWN_BYTES = 60 };

typedef struct { char *out; size_t cap, n; } Text;

static void put(Text *t, const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++, t->n++)
        if (t->n + 1 < t->cap) t->out[t->n] = s[i];
}

static void put_text(Text *t, const char *s) { put(t, s, strlen(s)); }

/* Quoted, on one line, cut between characters; invalid bytes are kept, since tokens may be parts of characters. */
static void put_string(Text *t, const char *s, size_t n)
{
    size_t shown = n;
    if (n > SHOWN_BYTES)
        for (shown = SHOWN_BYTES; shown > SHOWN_BYTES - 4 && ((unsigned char) s[shown] & 0xc0) == 0x80; ) shown--;
    put(t, "\"", 1);
    for (size_t i = 0; i < shown; i++) {
        if (s[i] == '\n') put(t, "\\n", 2);
        else if ((unsigned char) s[i] < 0x20 || s[i] == 0x7f) put(t, "?", 1);
        else put(t, s + i, 1);
    }
    put(t, "\"", 1);
    if (shown < n) {
        char rest[48];
        snprintf(rest, sizeof rest, "... (%zu bytes)", n);
        put_text(t, rest);
    }
}

static void put_value(Text *t, GgufType type, const uint8_t *at)
{
    char  number[32];
    Whole v;
    if (type == GV_STRING) put_string(t, (const char *) at + 8, (size_t) load_u64(at));
    else if (type == GV_BOOL) put_text(t, at[0] ? "true" : "false");
    else if (whole_at(&v, type, at)) put_text(t, whole_text(v, number));
    else {
        snprintf(number, sizeof number, "%g", real_at(type, at));
        put_text(t, number);
    }
}

size_t gguf_key_text(const Gguf *g, int32_t i, char *out, size_t cap)
{
    const Key *k = &g->parts[0].keys[i];
    Text       t = { out, cap, 0 };
    if (k->type == GV_ARRAY) {
        char head[64];
        snprintf(head, sizeof head, "%s[%llu]", gguf_type_name(k->elem), (unsigned long long) k->count);
        put_text(&t, head);
        for (uint64_t j = 0; j < k->count && j < SHOWN_VALUES; j++) {
            put_text(&t, j ? ", " : ": ");
            put_value(&t, k->elem,
                      k->value + (k->strings ? k->strings[j] : ARRAY_HEAD + j * (size_t) gguf_type_bytes(k->elem)));
        }
        if (k->count > SHOWN_VALUES) put_text(&t, ", ...");
    } else put_value(&t, k->type, k->value);
    if (cap > 0) out[t.n < cap ? t.n : cap - 1] = 0;
    return t.n;
}
