/* template_strings.c - Python's string operations, for filters and methods alike. Positions count characters; marks of
 * bytes that came from a client move with the bytes. */
#include <stdio.h>
#include <string.h>
#include <utf8proc.h>

#include "text/template/template_impl.h"
#include "text/tokenizer/utf8.h"

bool is_space(uint32_t cp)
{
    return (cp >= 9 && cp <= 13) || (cp >= 0x1c && cp <= 0x20) || cp == 0x85 || cp == 0xa0 || cp == 0x1680 ||
           (cp >= 0x2000 && cp <= 0x200a) || cp == 0x2028 || cp == 0x2029 || cp == 0x202f || cp == 0x205f ||
           cp == 0x3000;
}

/* Length of the character at s; an invalid byte counts as one. */
static size_t next_char(const char *s, size_t n, uint32_t *cp)
{
    *cp = 0xfffd;
    size_t len = utf8_next(s, n, cp);
    return len ? len : 1;
}

/* Length of the character that ends at s + n. */
static size_t last_char(const char *s, size_t n, uint32_t *cp)
{
    size_t k = 1;
    while (k < 4 && k < n && ((uint8_t) s[n - k] & 0xc0) == 0x80) k++;
    if (utf8_next(s + n - k, k, cp) == k) return k;
    *cp = 0xfffd;
    return 1;
}

size_t strip_start(const char *s, size_t n)
{
    size_t i = 0;
    uint32_t cp;
    while (i < n) {
        size_t len = next_char(s + i, n - i, &cp);
        if (!is_space(cp)) break;
        i += len;
    }
    return i;
}

size_t strip_end(const char *s, size_t n)
{
    uint32_t cp;
    while (n > 0) {
        size_t len = last_char(s, n, &cp);
        if (!is_space(cp)) break;
        n -= len;
    }
    return n;
}

static bool in_set(const Value *chars, const char *s, size_t n)
{
    /* a match cannot begin inside another character in UTF-8 */
    return memmem(text_of(chars), chars->n, s, n) != NULL;
}

Value text_strip(Render *r, const Value *v, const Value *chars, int sides)
{
    const char *s = text_of(v);
    size_t from = 0, to = v->n;
    uint32_t cp;
    render_spend(r, v->n / 256);
    if (!is_set(chars) || chars->kind == V_NONE) {
        if (sides & STRIP_LEFT) from = strip_start(s, to);
        if (sides & STRIP_RIGHT) to = from + strip_end(s + from, to - from);
        return text_part(v, from, to - from);
    }
    if (chars->kind != V_STRING) render_fail(r, "characters to strip have to be a string, not a %s", kind_name(chars));
    render_spend(r, v->n / 16 * (chars->n / 16 + 1));
    for (size_t len; (sides & STRIP_LEFT) && from < to && (len = next_char(s + from, to - from, &cp)) &&
         in_set(chars, s + from, len);)
        from += len;
    for (size_t len; (sides & STRIP_RIGHT) && from < to && (len = last_char(s + from, to - from, &cp)) &&
         in_set(chars, s + to - len, len);)
        to -= len;
    return text_part(v, from, to - from);
}

/* ---- upper and lower case ---- */


static bool is_cased(uint32_t cp)
{
    return utf8proc_isupper((utf8proc_int32_t) cp) || utf8proc_islower((utf8proc_int32_t) cp) ||
           utf8proc_category((utf8proc_int32_t) cp) == UTF8PROC_CATEGORY_LT;
}

Value text_escape(Render *r, const Value *v)
{
    static const struct {
        char c;
        const char *as;
    } MARKUP[] = { { '&', "&amp;" }, { '<', "&lt;" }, { '>', "&gt;" }, { '\'', "&#39;" }, { '"', "&#34;" } };
    if (v->safe) return *v;
    Buffer *b = buffer_new(r, v->n);
    render_spend(r, v->n / 64);
    for (uint32_t i = 0; i < v->n; i++) {
        size_t k = 0;
        while (k < 5 && MARKUP[k].c != text_of(v)[i]) k++;
        if (k < 5) buffer_put(r, b, MARKUP[k].as, strlen(MARKUP[k].as), text_client(v, i));
        else buffer_put_part(r, b, v, i, 1);
    }
    Value out = buffer_value(b);
    out.safe = true;
    return out;
}

static uint32_t upper(uint32_t cp) { return (uint32_t) utf8proc_toupper((utf8proc_int32_t) cp); }
static uint32_t lower(uint32_t cp) { return (uint32_t) utf8proc_tolower((utf8proc_int32_t) cp); }
static uint32_t title(uint32_t cp) { return (uint32_t) utf8proc_totitle((utf8proc_int32_t) cp); }

static uint32_t change(TextCase how, uint32_t cp, bool start)
{
    switch (how) {
    case CASE_UPPER: return upper(cp);
    case CASE_LOWER: return lower(cp);
    case CASE_SWAP: return utf8proc_isupper((utf8proc_int32_t) cp) ? lower(cp) : upper(cp);
    case CASE_TITLE_WORDS: return start ? upper(cp) : lower(cp);
    default: return start ? title(cp) : lower(cp);
    }
}

/* Where a word begins: for str.title after any character without case, for the filter title after - and white space and
 * opening brackets. */
static bool starts_word(TextCase how, uint32_t before)
{
    if (how == CASE_TITLE) return !is_cased(before);
    return how == CASE_TITLE_WORDS &&
           (is_space(before) || strchr("-({[<", (int) (before < 0x80 ? before : 'x')) != NULL);
}

Value text_case(Render *r, const Value *v, TextCase how)
{
    const char *s = text_of(v);
    Buffer *b = buffer_new(r, v->n);
    bool start = true;
    render_spend(r, v->n / 32);
    for (size_t i = 0; i < v->n;) {
        uint32_t cp;
        char out[4];
        size_t len = next_char(s + i, v->n - i, &cp);
        buffer_put(r, b, out, utf8_put(out, change(how, cp, start)), text_client(v, i));
        start = starts_word(how, cp);
        i += len;
    }
    Value out = buffer_value(b);
    out.safe = v->safe;
    return out;
}

/* ---- searching ---- */

int64_t text_length(Render *r, const Value *v)
{
    int64_t n = 0;
    const char *s = text_of(v);
    render_spend(r, v->n / 256);
    for (size_t i = 0; i < v->n; i++) n += ((uint8_t) s[i] & 0xc0) != 0x80;
    return n;
}

/* Byte offset of the character with that index, or the length. */
static size_t byte_of(const Value *v, int64_t index)
{
    const char *s = text_of(v);
    size_t i = 0;
    for (; index > 0 && i < v->n; index--)
        do i++; while (i < v->n && ((uint8_t) s[i] & 0xc0) == 0x80);
    return i;
}

Value text_char(Render *r, const Value *v, int64_t index)
{
    if (index < 0) index += text_length(r, v);
    if (index < 0) return value_undefined();
    render_spend(r, (size_t) index / 256);
    size_t at = byte_of(v, index), end = at;
    if (at >= v->n) return value_undefined();
    do end++; while (end < v->n && ((uint8_t) text_of(v)[end] & 0xc0) == 0x80);
    return text_part(v, at, end - at);
}

Value text_slice(Render *r, const Value *v, int64_t start, int64_t step, int64_t count)
{
    if (count <= 0) return text_part(v, 0, 0);
    render_spend(r, v->n / 256);
    if (step == 1) {
        size_t from = byte_of(v, start);
        Value rest = text_part(v, from, v->n - from);
        return text_part(&rest, 0, byte_of(&rest, count));
    }
    Value all = value_iterate(r, *v);
    Buffer *b = buffer_new(r, 0);
    for (int64_t i = 0; i < count; i++) buffer_put_text(r, b, &all.list->item[start + i * step]);
    return buffer_value(b);
}

static const char *find_last(Render *r, const char *s, size_t n, const char *part, size_t m)
{
    enum { AT_ONCE = 256 };                        /* a place takes up to m bytes */
    size_t i = m <= n ? n - m + 1 : 0, bytes = 0;
    for (; i > 0 && memcmp(s + i - 1, part, m) != 0; i--) {
        bytes += m + 16;
        render_spend(r, bytes / AT_ONCE);
        bytes %= AT_ONCE;
    }
    return i > 0 ? s + i - 1 : NULL;
}

/* Index in characters, searching between characters start and stop. */
int64_t text_find(Render *r, const Value *v, const Value *part, int64_t start, int64_t stop, bool right)
{
    size_t from = byte_of(v, start), to = stop < 0 ? v->n : byte_of(v, stop);
    render_spend(r, v->n / 64);
    if (from > to || (start > 0 && from == v->n && start > text_length(r, v))) return -1;
    const char *s = text_of(v), *hit = right ? find_last(r, s + from, to - from, text_of(part), part->n)
                                             : part->n ? memmem(s + from, to - from, text_of(part), part->n) : s + from;
    if (!hit) return -1;
    Value before = text_part(v, 0, (size_t) (hit - s));
    return text_length(r, &before);
}

int64_t text_count(Render *r, const Value *v, const Value *part)
{
    if (part->n == 0) return text_length(r, v) + 1;
    int64_t n = 0;
    const char *s = text_of(v), *end = s + v->n, *hit;
    render_spend(r, v->n / 256);
    for (; (hit = memmem(s, (size_t) (end - s), text_of(part), part->n)); s = hit + part->n) n++;
    return n;
}

Value text_replace(Render *r, const Value *v, const Value *old, const Value *new, int64_t count)
{
    const char *s = text_of(v);
    size_t at = 0;
    Buffer *b = buffer_new(r, v->n);
    render_spend(r, v->n / 256);
    while (count != 0) {
        const char *hit = old->n ? memmem(s + at, v->n - at, text_of(old), old->n) : s + at;
        if (!hit) break;
        buffer_put_part(r, b, v, at, (size_t) (hit - s) - at);
        buffer_put_text(r, b, new);
        at = (size_t) (hit - s) + old->n;
        if (count > 0) count--;
        render_spend(r, 1);
        if (old->n) continue;
        if (at == v->n) break;                     /* an empty text is found before every character and at the end */
        uint32_t cp;
        size_t len = next_char(s + at, v->n - at, &cp);
        buffer_put_part(r, b, v, at, len);
        at += len;
    }
    buffer_put_part(r, b, v, at, v->n - at);
    return buffer_value(b);
}

/* ---- parts ---- */

static void reverse_list(List *l)
{
    for (uint32_t i = 0; i < l->n / 2; i++) {
        Value v = l->item[i];
        l->item[i] = l->item[l->n - 1 - i];
        l->item[l->n - 1 - i] = v;
    }
}

/* Splits at runs of white space; the rest after max parts keeps its white space. */
static Value split_words(Render *r, const Value *v, int64_t max, bool right)
{
    const char *s = text_of(v);
    Value out = list_new(r, V_LIST, 0);
    size_t from = 0, to = v->n;
    while (true) {
        if (right) to = from + strip_end(s + from, to - from);
        else from += strip_start(s + from, to - from);
        if (from == to) break;
        render_spend(r, 1);
        if (max == 0) {                            /* the rest */
            list_put(r, out.list, text_part(v, from, to - from));
            break;
        }
        uint32_t cp;
        size_t at = right ? to : from;
        while (right ? at > from : at < to) {
            size_t len = right ? last_char(s + from, at - from, &cp) : next_char(s + at, to - at, &cp);
            if (is_space(cp)) break;
            at = right ? at - len : at + len;
        }
        list_put(r, out.list, right ? text_part(v, at, to - at) : text_part(v, from, at - from));
        if (right) to = at;
        else from = at;
        if (max > 0) max--;
    }
    if (right) reverse_list(out.list);
    return out;
}

Value text_split(Render *r, const Value *v, const Value *sep, int64_t max, bool right)
{
    render_spend(r, v->n / 64);
    if (!is_set(sep) || sep->kind == V_NONE) return split_words(r, v, max, right);
    if (sep->kind != V_STRING || sep->n == 0) render_fail(r, "split needs a text that is not empty");
    const char *s = text_of(v);
    Value out = list_new(r, V_LIST, 0);
    size_t from = 0, to = v->n;
    for (; max != 0; max -= max > 0) {
        const char *hit = right ? find_last(r, s, to, text_of(sep), sep->n)
                                : memmem(s + from, to - from, text_of(sep), sep->n);
        if (!hit) break;
        size_t at = (size_t) (hit - s);
        list_put(r, out.list, right ? text_part(v, at + sep->n, to - at - sep->n) : text_part(v, from, at - from));
        if (right) to = at;
        else from = at + sep->n;
        render_spend(r, 1);
    }
    list_put(r, out.list, text_part(v, from, to - from));
    if (right) reverse_list(out.list);
    return out;
}

static bool ends_line(uint32_t cp)
{
    return (cp >= 10 && cp <= 13) || (cp >= 0x1c && cp <= 0x1e) || cp == 0x85 || cp == 0x2028 || cp == 0x2029;
}

Value text_lines(Render *r, const Value *v, bool keep_ends)
{
    const char *s = text_of(v);
    Value out = list_new(r, V_LIST, 0);
    size_t from = 0;
    render_spend(r, v->n / 64);
    for (size_t i = 0; i < v->n;) {
        uint32_t cp;
        size_t len = next_char(s + i, v->n - i, &cp), end = i;
        i += len;
        if (!ends_line(cp)) continue;
        if (cp == '\r' && i < v->n && s[i] == '\n') i++;
        list_put(r, out.list, text_part(v, from, (keep_ends ? i : end) - from));
        from = i;
    }
    if (from < v->n) list_put(r, out.list, text_part(v, from, v->n - from));
    return out;
}

Value text_repeat(Render *r, const Value *v, int64_t times)
{
    if (times <= 0 || v->n == 0) return text_part(v, 0, 0);
    if (times > TEMPLATE_OUTPUT_MAX / (int64_t) v->n)
        fault(&r->fault, ST_FULL, r->at, "a text is larger than %d MiB", TEMPLATE_OUTPUT_MAX >> 20);
    size_t all = (size_t) times * v->n;
    Buffer *b = buffer_new(r, all);
    buffer_put_text(r, b, v);
    while (b->n < all) {                           /* double what is there */
        Value done = buffer_value(b);
        buffer_put_part(r, b, &done, 0, b->n < all - b->n ? b->n : all - b->n);
    }
    return buffer_value(b);
}

/* ---- formats ---- */

typedef struct { bool minus, zero, plus, space, alternate; int64_t width, precision; } Spec;      /* -1: none */

static void put_padded(Render *r, Buffer *b, const Value *v, const Spec *s, bool number)
{
    int64_t n = text_length(r, v), fill = s->width > n ? s->width - n : 0;
    if (fill > TEMPLATE_OUTPUT_MAX)
        fault(&r->fault, ST_FULL, r->at, "a text is larger than %d MiB", TEMPLATE_OUTPUT_MAX >> 20);
    size_t sign = number && s->zero && !s->minus && v->n > 0 && strchr("+- ", text_of(v)[0]) ? 1 : 0;
    const char *pad = number && s->zero && !s->minus ? "0" : " ";
    buffer_put_part(r, b, v, 0, sign);
    for (int64_t i = 0; i < fill && !s->minus; i++) buffer_put(r, b, pad, 1, false);
    buffer_put_part(r, b, v, sign, v->n - sign);
    for (int64_t i = 0; i < fill && s->minus; i++) buffer_put(r, b, " ", 1, false);
    render_spend(r, (size_t) fill / 16);
}

/* A number in C's format, which is the same as Python's here. */
static Value number_text(Render *r, const Spec *s, char kind, const Value *v)
{
    char text[512], format[24];
    int64_t i;
    int n;
    const char *sign = s->plus ? "+" : s->space ? " " : "";
    if (!is_number(v)) render_fail(r, "%%%c needs a number, not a %s", kind, kind_name(v));
    if (strchr("diuxXo", kind)) {
        if (v->kind == V_FLOAT && strchr("diu", kind)) {
            if (!(v->f > -9.2e18 && v->f < 9.2e18)) render_fail(r, "%%%c: the number is out of range", kind);
            i = (int64_t) v->f;
        } else if (!as_int(v, &i)) render_fail(r, "%%%c needs a whole number", kind);
        bool negative = i < 0 && strchr("xXo", kind);              /* Python writes a sign there */
        snprintf(format, sizeof format, "%s%s%s.*ll%c", "%", sign, s->alternate ? "#" : "", kind == 'u' ? 'd' : kind);
        n = snprintf(text + 1, sizeof text - 1, format, (int) (s->precision < 0 ? 1 : s->precision),
                     (long long) (negative ? -i : i));
        text[0] = '-';
        return text_new(r, negative ? text : text + 1, (size_t) n + negative);
    }
    snprintf(format, sizeof format, "%s%s%s.*%c", "%", sign, s->alternate ? "#" : "", kind);
    n = snprintf(text, sizeof text, format, (int) (s->precision < 0 ? 6 : s->precision), as_float(v));
    return text_new(r, text, (size_t) n < sizeof text ? (size_t) n : sizeof text - 1);
}

static void put_converted(Render *r, Buffer *b, const Spec *s, char kind, const Value *v)
{
    Value text;
    if (kind == 's') {
        text = value_text(r, *v);
    } else if (kind == 'r' || kind == 'a') {
        Buffer *repr = buffer_new(r, 0);
        print_repr(r, repr, v, 0);
        text = buffer_value(repr);
    } else {
        text = number_text(r, s, kind, v);
        put_padded(r, b, &text, s, true);
        return;
    }
    if (s->precision >= 0) text = text_slice(r, &text, 0, 1, s->precision);
    put_padded(r, b, &text, s, false);
}

static size_t read_count(const char *s, size_t n, int64_t *out)
{
    size_t i = 0;
    *out = 0;
    for (; i < n && s[i] >= '0' && s[i] <= '9'; i++)
        if (*out < 100000000) *out = *out * 10 + (s[i] - '0');
    return i;
}

Value text_percent(Render *r, const Value *format, const Value *args)
{
    const char *s = text_of(format);
    Buffer *b = buffer_new(r, format->n);
    uint32_t used = 0, given = args->kind == V_TUPLE ? args->list->n : 1;
    size_t n = format->n;
    for (size_t i = 0; i < n;) {
        if (s[i] != '%') {
            const char *next = memchr(s + i, '%', n - i);
            size_t len = next ? (size_t) (next - s) - i : n - i;
            buffer_put_part(r, b, format, i, len);
            i += len;
            continue;
        }
        Spec spec = { .precision = -1 };
        Value key = { .kind = V_UNSET };
        i++;
        if (i < n && s[i] == '(') {
            const char *end = memchr(s + i, ')', n - i);
            if (!end) render_fail(r, "the format has no ) after %%(");
            key = text_part(format, i + 1, (size_t) (end - s) - i - 1);
            i = (size_t) (end - s) + 1;
        }
        for (; i < n && strchr("-0+ #", s[i]) && s[i]; i++) {
            spec.minus |= s[i] == '-';
            spec.zero |= s[i] == '0';
            spec.plus |= s[i] == '+';
            spec.space |= s[i] == ' ';
            spec.alternate |= s[i] == '#';
        }
        i += read_count(s + i, n - i, &spec.width);
        if (i < n && s[i] == '.') i += 1 + read_count(s + i + 1, n - i - 1, &spec.precision);
        if (spec.precision > 100) render_fail(r, "a precision above 100 is not supported");
        if (i == n) render_fail(r, "the format ends after %%");
        char kind = s[i++];
        if (kind == '%') {
            buffer_put(r, b, "%", 1, text_client(format, i - 1));
            continue;
        }
        if (!kind || !strchr("sradiuxXofFeEgG", kind)) render_fail(r, "the conversion %%%c is not supported", kind);
        const Value *v;
        if (is_set(&key)) {
            if (args->kind != V_DICT) render_fail(r, "%%(name) needs a dict");
            v = dict_find(r, args->dict, &key);
            if (!v) render_fail(r, "the format's \"%.*s\" is not in the dict", SHOWN(text_of(&key), (size_t) key.n));
            used = given;
        } else {
            if (used == given) render_fail(r, "the format needs more than %u values", given);
            v = args->kind == V_TUPLE ? &args->list->item[used] : args;
            used++;
        }
        put_converted(r, b, &spec, kind, v);
    }
    if (used < given && args->kind != V_DICT && args->kind != V_LIST && args->kind != V_UNDEFINED)
        render_fail(r, "the format takes %u of %u values", used, given);
    return buffer_value(b);
}

/* [[fill]align][sign][0][width][.precision][kind] after the colon. */
static void put_braced(Render *r, Buffer *b, const Value *v, const char *s, size_t n)
{
    Spec spec = { .precision = -1 };
    size_t i = 0;
    char align = 0;
    if (n > 1 && strchr("<>", s[1]) && s[0] == ' ') i = 1;
    if (i < n && (s[i] == '<' || s[i] == '>')) align = s[i++];
    if (i < n && (s[i] == '+' || s[i] == ' ')) {
        spec.plus = s[i] == '+';
        spec.space = s[i++] == ' ';
    }
    if (i < n && s[i] == '0') spec.zero = true;
    i += read_count(s + i, n - i, &spec.width);
    if (i < n && s[i] == '.') i += 1 + read_count(s + i + 1, n - i - 1, &spec.precision);
    char kind = i < n ? s[i++] : v->kind == V_INT ? 'd' : 's';
    if (i != n || !strchr("sdfFeEgGxXo", kind) || spec.precision > 100)
        render_fail(r, "the format \"%.*s\" is not supported", SHOWN(s, n));
    spec.minus = align == '<' || (!align && kind == 's' && !is_number(v));
    put_converted(r, b, &spec, kind, v);
}

/* {} {0} {name}, optionally with :format; no attributes or items. */
Value text_braces(Render *r, const Value *format, const List *args, const Dict *named)
{
    const char *s = text_of(format);
    size_t n = format->n;
    int64_t automatic = 0;
    Buffer *b = buffer_new(r, n);
    for (size_t i = 0; i < n;) {
        if ((s[i] == '{' || s[i] == '}') && i + 1 < n && s[i + 1] == s[i]) {
            buffer_put_part(r, b, format, i, 1);
            i += 2;
        } else if (s[i] == '}') {
            render_fail(r, "the format has a single }");
        } else if (s[i] == '{') {
            const char *end = memchr(s + i, '}', n - i);
            if (!end) render_fail(r, "the format has no } after {");
            size_t len = (size_t) (end - s) - i - 1;
            const char *field = s + i + 1, *colon = memchr(field, ':', len);
            size_t name = colon ? (size_t) (colon - field) : len;
            int64_t index = automatic;
            const Value *v = NULL;
            if (name == 0) automatic++;
            if (name == 0 || read_count(field, name, &index) == name) {
                v = index < args->n ? &args->item[index] : NULL;
            } else {
                v = dict_find_name(named, field, name);
            }
            if (!v) render_fail(r, "the format's {%.*s} has no value", SHOWN(field, name));
            if (colon) put_braced(r, b, v, colon + 1, len - name - 1);
            else print_text(r, b, v);
            i += len + 2;
        } else {
            buffer_put_part(r, b, format, i, 1);
            i++;
        }
        render_spend(r, 1);
    }
    return buffer_value(b);
}
