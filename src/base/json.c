/* jansson recurses on nesting and allocates an object for every value, so a scan over the bytes limits both first. It
 * also measures the tokens, since jansson's lexer does not notice when its buffer cannot grow. */
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/hex.h"
#include "base/json.h"

enum { JSON_DEPTH_MAX = 128, LEXER_BUFFER = 16 };  /* LEXER_BUFFER: initial size of jansson's lexer buffer, in bytes */
#define STRICT_FLAGS (JSON_REJECT_DUPLICATES | JSON_DECODE_ANY)
#define LOOSE_FLAGS (JSON_ALLOW_NUL | JSON_DECODE_ANY)

/* text: bytes of all strings and keys once decoded; longest: of the longest string as written; number: of the longest
 * number. */
typedef struct { size_t text, longest, number; } Tokens;

static unsigned hex4(const char *s)
{
    unsigned v = 0;
    for (int i = 0; i < 4; i++) v = v * 16 + (unsigned) hex_value(s[i]);
    return v;
}

/* Scans the string that begins after the quote at i; returns the index of its closing quote, or n. Invalid JSON is
 * counted too: the parser refuses it. */
static size_t scan_string(const char *s, size_t n, size_t i, Tokens *t)
{
    size_t from = i;
    for (i++; i < n && s[i] != '"'; i++) {
        t->text++;
        if (s[i] != '\\' || ++i + 4 >= n || s[i] != 'u') continue;
        unsigned c = hex4(s + i + 1);
        bool half = c >= 0xd800 && c < 0xe000;     /* half of a surrogate pair: two of its four bytes */
        t->text += c < 0x80 ? 0 : c < 0x800 || half ? 1 : 2;
        i += 4;
    }
    if (i - from > t->longest) t->longest = i - from;
    return i;
}

static bool in_number(char c)
{
    return (c >= '0' && c <= '9') || c == '-' || c == '+' || c == '.' || c == 'e' || c == 'E';
}

/* Counts brackets and commas outside strings. The parser decides whether the text is JSON at all. */
static Status scan(Tokens *t, const char *s, size_t n, const char *name, size_t values_max, size_t containers_max,
                   Error *err)
{
    size_t depth = 0, containers = 0, commas = 0, number = 0;
    *t = (Tokens) { 0 };
    for (size_t i = 0; i < n; i++) {
        char c = s[i];
        number = in_number(c) ? number + 1 : 0;
        if (number > t->number) t->number = number;
        if (c == '"') i = scan_string(s, n, i, t);
        else if (c == ',') commas++;
        else if (c == '[' || c == '{') {
            containers++;
            if (++depth > JSON_DEPTH_MAX)
                return fail(err, ST_FORMAT, "%s: JSON nesting at byte %zu is deeper than %d", name, i, JSON_DEPTH_MAX);
        } else if ((c == ']' || c == '}') && depth > 0) depth--;
        if (containers > containers_max || commas + containers > values_max)
            return fail(err, ST_FORMAT, "%s: JSON has too many values by byte %zu, expected at most %zu, %zu of them "
                        "lists or objects", name, i, values_max, containers_max);
    }
    return ST_OK;
}

/* The lexer's buffer is doubled and copied until the longest token fits. If it could not grow, the lexer would try
 * again for each byte. */
static bool lexer_fits(const Tokens *t)
{
    void *room = t->longest > SIZE_MAX / 4 ? NULL : malloc(4 * t->longest + LEXER_BUFFER);
    bool fits = room != NULL;
    free(room);
    return fits;
}

bool json_each(json_t *j, void (*see)(void *ud, const char *key, const json_t *value), void *ud)
{
    struct { json_t *j; size_t at; void *iter; } walk[JSON_EACH_DEPTH], *w = walk;
    see(ud, NULL, j);
    *w = (__typeof__(*w)) { j, 0, json_object_iter(j) };
    while (w >= walk) {
        const char *key = w->iter ? json_object_iter_key(w->iter) : NULL;
        json_t *in = w->iter ? json_object_iter_value(w->iter) : json_array_get(w->j, w->at++);
        if (w->iter) w->iter = json_object_iter_next(w->j, w->iter);
        if (!in) {
            w--;
            continue;
        }
        see(ud, key, in);
        if (!json_is_array(in) && !json_is_object(in)) continue;
        if (++w == walk + JSON_EACH_DEPTH) return false;
        *w = (__typeof__(*w)) { in, 0, json_object_iter(in) };
    }
    return true;
}

static void add_text(void *ud, const char *key, const json_t *value)
{
    *(size_t *) ud += (key ? strlen(key) : 0) + json_string_length(value);
}

/* Returns true if no string lacks a byte. Numbers are certain if they fit the lexer's initial buffer; longer ones, and
 * strings of which a second key has replaced some, if a second parse gives the same. */
static bool is_whole(json_t *j, const char *bytes, size_t n, const Tokens *t, size_t flags)
{
    size_t text = 0;
    if (!json_each(j, add_text, &text)) return false;
    if (text == t->text && t->number < LEXER_BUFFER) return true;
    if (text != t->text && (flags & JSON_REJECT_DUPLICATES)) return false;
    json_t *again = json_loadb(bytes, n, flags, NULL);
    bool same = again && json_equal(j, again);
    json_decref(again);
    return same;
}

static Status parse(json_t **out, const char *bytes, size_t n, size_t flags, const char *name, size_t values_max,
                    size_t containers_max, Error *err)
{
    json_error_t problem;
    *out = NULL;
    if (n >= 3 && memcmp(bytes, "\xef\xbb\xbf", 3) == 0) {
        bytes += 3;
        n -= 3;
    }
    const char *zero = n > 0 ? memchr(bytes, 0, n) : NULL;      /* jansson 2.14 swallows a zero byte after an integer */
    if (zero) return fail(err, ST_FORMAT, "%s: JSON has a zero byte at byte %zu", name, (size_t) (zero - bytes));
    Tokens t;
    TRY(scan(&t, bytes, n, name, values_max, containers_max, err));
    if (!lexer_fits(&t)) return fail(err, ST_MEMORY, "%s: no memory for its JSON", name);
    memset(&problem, 0, sizeof problem);
    errno = 0;
    *out = json_loadb(bytes, n, flags, &problem);
    /* jansson 2.14 reports a failed allocation as a syntax error in most places, and in its lexer not at all: it then
     * returns text with missing bytes. errno does not tell: numbers clear it, and malloc may set it and still find
     * memory elsewhere. */
    if (*out ? !is_whole(*out, bytes, n, &t, flags) : errno == ENOMEM) {
        json_decref(*out);
        *out = NULL;
        return fail(err, ST_MEMORY, "%s: no memory for its JSON", name);
    }
    if (*out) return ST_OK;
    bool null = json_error_code(&problem) == json_error_null_character;      /* whose text names a flag of the parser */
    return fail(err, ST_FORMAT, "%s: JSON line %d, column %d: %s", name, problem.line, problem.column,
                null ? "a string has \\u0000, which is not taken here" : problem.text);
}

Status json_read(json_t **out, const char *bytes, size_t n, const char *name, Error *err)
{
    return parse(out, bytes, n, STRICT_FLAGS, name, JSON_VALUES_MAX, JSON_CONTAINERS_MAX, err);
}

Status json_read_loose(json_t **out, const char *bytes, size_t n, const char *name, Error *err)
{
    return parse(out, bytes, n, LOOSE_FLAGS, name, JSON_VALUES_MAX, JSON_CONTAINERS_MAX, err);
}

Status json_read_bounded(json_t **out, const char *bytes, size_t n, const char *name, size_t values_max,
                         size_t containers_max, Error *err)
{
    return parse(out, bytes, n, STRICT_FLAGS, name, values_max, containers_max, err);
}

void json_without_zeros(char *bytes, size_t n)
{
    static const char zero[6] = "\\u0000", instead[6] = "\\ufffd";
    for (size_t i = 0; i + 1 < n; i++) {
        if (bytes[i] != '\\') continue;
        if (n - i >= sizeof zero && memcmp(bytes + i, zero, sizeof zero) == 0)
            memcpy(bytes + i, instead, sizeof instead);
        i++;                                       /* an escaped backslash begins no escape */
    }
}
