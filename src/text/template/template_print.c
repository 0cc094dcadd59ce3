/* template_print.c - values as text, byte for byte as Python prints them: str, repr and json.dumps. These bytes become
 * prompt tokens. */
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "text/template/template_impl.h"
#include "text/tokenizer/utf8.h"

bool read_float(double *out, const char *s, size_t n)
{
    char text[128], *end;
    if (n == 0 || n >= sizeof text) return false;
    memcpy(text, s, n);
    text[n] = 0;
    locale_t c = newlocale(LC_ALL_MASK, "C", (locale_t) 0);
    if (!c) return false;
    *out = strtod_l(text, &end, c);
    freelocale(c);
    return end == text + n;
}

/* Python's repr: the shortest digits that read back as x, with a point where Python puts it; numbers from 1e16 on and
 * below 1e-4 have an exponent. The digits are taken from %e and read back as an integer and a power, so that the
 * locale's decimal point does not matter. */
static size_t print_float(char out[32], double x)
{
    if (isnan(x)) return (size_t) sprintf(out, "nan");
    if (isinf(x)) return (size_t) sprintf(out, x < 0 ? "-inf" : "inf");
    char text[40], digit[24];
    int n = 0, exponent = 0;
    for (int precision = 0; precision < 17; precision++) {
        snprintf(text, sizeof text, "%.*e", precision, x);
        if (strtod(text, NULL) == x) break;
    }
    char *e = strchr(text, 'e');
    exponent = atoi(e + 1);
    for (char *p = text; p < e; p++)
        if (*p >= '0' && *p <= '9') digit[n++] = *p;
    while (n > 1 && digit[n - 1] == '0') n--;
    size_t w = 0;
    if (signbit(x)) out[w++] = '-';
    if (exponent < -4 || exponent >= 16) {
        out[w++] = digit[0];
        if (n > 1) out[w++] = '.';
        for (int i = 1; i < n; i++) out[w++] = digit[i];
        return w + (size_t) sprintf(out + w, "e%c%02d", exponent < 0 ? '-' : '+', abs(exponent));
    }
    for (int place = exponent < 0 ? 0 : exponent; place >= 0; place--) {
        int i = exponent - place;
        out[w++] = i >= 0 && i < n ? digit[i] : '0';
    }
    out[w++] = '.';
    int from = exponent + 1;                       /* the first digit after the point; negative: zeros come first */
    if (from >= n) out[w++] = '0';
    for (int i = from; i < n; i++) out[w++] = i >= 0 ? digit[i] : '0';
    return w;
}

static void put(Render *r, Buffer *out, const char *s, Speaker client) { buffer_put(r, out, s, strlen(s), client); }

static void put_number(Render *r, Buffer *out, const Value *v)
{
    const Speaker client = v->client;
    char text[32];
    if (v->kind == V_BOOL) put(r, out, v->b ? "True" : "False", client);
    else if (v->kind == V_INT)
        buffer_put(r, out, text, (size_t) snprintf(text, sizeof text, "%lld", (long long) v->i), client);
    else
        buffer_put(r, out, text, print_float(text, v->f), client);
}

/* ---- repr ---- */

static bool printable(uint32_t cp)
{
    if (cp < 0x7f) return cp >= 0x20;
    switch (utf8proc_category((utf8proc_int32_t) cp)) {
    case UTF8PROC_CATEGORY_CN: case UTF8PROC_CATEGORY_CC: case UTF8PROC_CATEGORY_CF: case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZS: case UTF8PROC_CATEGORY_ZL: case UTF8PROC_CATEGORY_ZP:
        return false;
    default:
        return true;
    }
}

static void repr_text(Render *r, Buffer *out, const Value *v)
{
    const char *s = text_of(v);
    bool single = memchr(s, '\'', v->n) != NULL, twice = memchr(s, '"', v->n) != NULL;
    Speaker outer = text_client(v, 0);
    char quote = single && !twice ? '"' : '\'', escape[16];
    render_spend(r, v->n / 64);
    buffer_put(r, out, &quote, 1, outer);
    for (size_t i = 0; i < v->n;) {
        uint32_t cp = 0;
        size_t len = utf8_next(s + i, v->n - i, &cp);
        if (len == 0) len = 1;
        Speaker client = text_client(v, i);
        if (cp == '\n' || cp == '\r' || cp == '\t' || cp == '\\' || cp == (uint8_t) quote) {
            escape[0] = '\\';
            escape[1] = cp == '\n' ? 'n' : cp == '\r' ? 'r' : cp == '\t' ? 't' : (char) cp;
            buffer_put(r, out, escape, 2, client);
        } else if (!printable(cp)) {
            int n = snprintf(escape, sizeof escape, cp < 0x100 ? "\\x%02x" : cp < 0x10000 ? "\\u%04x" : "\\U%08x",
                             (unsigned) cp);
            buffer_put(r, out, escape, (size_t) n, client);
        } else {
            buffer_put(r, out, s + i, len, client);
        }
        i += len;
    }
    buffer_put(r, out, &quote, 1, outer);
}

static void too_deep(Render *r, int32_t depth)
{
    if (depth > VALUE_DEPTH_MAX) render_fail(r, "a value is nested deeper than %d", VALUE_DEPTH_MAX);
}

static void repr_dict(Render *r, Buffer *out, const Dict *d, int32_t depth)
{
    put(r, out, "{", d->client);
    for (uint32_t i = 0; i < d->n; i++) {
        if (i) put(r, out, ", ", d->client);
        print_repr(r, out, &d->pair[i].key, depth + 1);
        put(r, out, ": ", d->client);
        print_repr(r, out, &d->pair[i].value, depth + 1);
    }
    put(r, out, "}", d->client);
}

void print_repr(Render *r, Buffer *out, const Value *v, int32_t depth)
{
    too_deep(r, depth);
    render_spend(r, 1);
    switch (v->kind) {
    case V_NONE: put(r, out, "None", v->client); break;
    case V_BOOL: case V_INT: case V_FLOAT: put_number(r, out, v); break;
    case V_STRING: repr_text(r, out, v); break;
    case V_UNDEFINED: put(r, out, "Undefined", false); break;
    case V_LIST: case V_TUPLE: {
        const List *l = v->list;
        put(r, out, v->kind == V_LIST ? "[" : "(", l->client);
        for (uint32_t i = 0; i < l->n; i++) {
            if (i) put(r, out, ", ", l->client);
            print_repr(r, out, &l->item[i], depth + 1);
        }
        put(r, out, v->kind == V_LIST ? "]" : l->n == 1 ? ",)" : ")", l->client);
        break;
    }
    case V_DICT: repr_dict(r, out, v->dict, depth); break;
    case V_NAMESPACE:
        put(r, out, "<Namespace ", false);
        repr_dict(r, out, v->dict, depth);
        put(r, out, ">", false);
        break;
    default:                                       /* Python prints addresses here, which nobody can want */
        put(r, out, "<", false);
        put(r, out, kind_name(v), false);
        put(r, out, ">", false);
        break;
    }
}

void print_text(Render *r, Buffer *out, const Value *v)
{
    if (v->kind == V_STRING) buffer_put_text(r, out, v);
    else if (v->kind != V_UNDEFINED && v->kind != V_UNSET) print_repr(r, out, v, 0);
}

Value value_text(Render *r, Value v)
{
    if (v.kind == V_STRING) return v;
    Buffer *b = buffer_new(r, 0);
    print_text(r, b, &v);
    return buffer_value(b);
}

/* ---- json.dumps ---- */

static void json_text_part(Render *r, Buffer *out, const Value *v, bool ascii)
{
    static const char LETTER[] = "\"\\\n\r\t\f\b", MEANING[] = "\"\\nrtfb";
    const char *s = text_of(v);
    Speaker outer = text_client(v, 0);
    char escape[16];
    size_t plain = 0;                              /* bytes from here on are copied unchanged */
    render_spend(r, v->n / 64);
    put(r, out, "\"", outer);
    for (size_t i = 0; i < v->n;) {
        uint32_t cp = 0;
        size_t len = utf8_next(s + i, v->n - i, &cp);
        if (len == 0) len = 1;
        int n = 0;
        const char *known = cp < 0x80 && cp ? strchr(LETTER, (int) cp) : NULL;
        if (known) n = snprintf(escape, sizeof escape, "\\%c", MEANING[known - LETTER]);
        else if (cp < 0x20 || (ascii && cp >= 0x7f && cp < 0x10000))
            n = snprintf(escape, sizeof escape, "\\u%04x", (unsigned) cp);
        else if (ascii && cp >= 0x10000)
            n = snprintf(escape, sizeof escape, "\\u%04x\\u%04x", (unsigned) (0xd800 + ((cp - 0x10000) >> 10)),
                         (unsigned) (0xdc00 + (cp & 0x3ff)));
        if (n > 0) {
            buffer_put_part(r, out, v, plain, i - plain);
            buffer_put(r, out, escape, (size_t) n, text_client(v, i));
            plain = i + len;
        }
        i += len;
    }
    buffer_put_part(r, out, v, plain, v->n - plain);
    put(r, out, "\"", outer);
}

static void json_scalar(Render *r, Buffer *out, const Value *v)
{
    const Speaker client = v->client;
    if (v->kind == V_NONE) put(r, out, "null", client);
    else if (v->kind == V_BOOL) put(r, out, v->b ? "true" : "false", client);
    else if (v->kind == V_FLOAT && isnan(v->f)) put(r, out, "NaN", client);
    else if (v->kind == V_FLOAT && isinf(v->f)) put(r, out, v->f < 0 ? "-Infinity" : "Infinity", client);
    else put_number(r, out, v);
}

static void json_newline(Render *r, Buffer *out, const JsonStyle *style, int32_t depth, Speaker client)
{
    if (!style->pretty) return;
    put(r, out, "\n", client);
    for (int32_t i = 0; i < depth; i++) buffer_put(r, out, text_of(&style->indent), style->indent.n, client);
}

static void json_dict(Render *r, Buffer *out, const Dict *d, const JsonStyle *style, int32_t depth)
{
    const Pair *pair = d->pair;
    if (d->n == 0) {
        put(r, out, "{}", d->client);
        return;
    }
    if (style->sorted) {
        Pair *sorted = heap_take(&r->heap, d->n * sizeof *sorted);
        memcpy(sorted, d->pair, d->n * sizeof *sorted);
        pairs_sort(r, sorted, d->n, false);
        pair = sorted;
    }
    put(r, out, "{", d->client);
    for (uint32_t i = 0; i < d->n; i++) {
        const Value *key = &pair[i].key;
        if (i) buffer_put(r, out, text_of(&style->item_sep), style->item_sep.n, d->client);
        json_newline(r, out, style, depth + 1, d->client);
        if (key->kind == V_STRING) {
            json_text_part(r, out, key, style->ascii);
        } else if (is_number(key) || key->kind == V_NONE) {
            put(r, out, "\"", d->client);
            json_scalar(r, out, key);
            put(r, out, "\"", d->client);
        } else {
            render_fail(r, "a %s cannot be a key in JSON", kind_name(key));
        }
        buffer_put(r, out, text_of(&style->key_sep), style->key_sep.n, d->client);
        print_json(r, out, &pair[i].value, style, depth + 1);
    }
    json_newline(r, out, style, depth, d->client);
    put(r, out, "}", d->client);
}

void print_json(Render *r, Buffer *out, const Value *v, const JsonStyle *style, int32_t depth)
{
    too_deep(r, depth);
    render_spend(r, 1);
    if (v->kind == V_STRING) {
        json_text_part(r, out, v, style->ascii);
    } else if (is_number(v) || v->kind == V_NONE) {
        json_scalar(r, out, v);
    } else if ((v->kind == V_LIST || v->kind == V_TUPLE) && !v->list->lazy) {
        const List *l = v->list;
        put(r, out, "[", l->client);
        for (uint32_t i = 0; i < l->n; i++) {
            if (i) buffer_put(r, out, text_of(&style->item_sep), style->item_sep.n, l->client);
            json_newline(r, out, style, depth + 1, l->client);
            print_json(r, out, &l->item[i], style, depth + 1);
        }
        if (l->n) json_newline(r, out, style, depth, l->client);
        put(r, out, "]", l->client);
    } else if (v->kind == V_DICT) {
        json_dict(r, out, v->dict, style, depth);
    } else {
        render_fail(r, "a %s cannot be written as JSON", kind_name(v));
    }
}
