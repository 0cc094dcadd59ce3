#include "text/json_flow.h"

#include <stdlib.h>
#include <string.h>

#include "base/hex.h"

/* FIRST: after an opening bracket. ITEM, KEY: after a comma. AFTER: after a member or element. */
enum { VALUE, FIRST_KEY, KEY, COLON, FIRST, ITEM, AFTER, STRING, ESCAPE, HEX, WORD, DONE };
enum { HELD_SPACE_MAX = 1024 };

/* ---- escapes ---- */

static void put_escaped(Bytes *b, int c)
{
    static const char HEX_DIGIT[] = "0123456789abcdef", SHORT[] = "b\bf\fn\nr\rt\t\"\"\\\\";
    for (size_t i = 0; i + 1 < sizeof SHORT; i += 2)
        if (SHORT[i + 1] == c) {
            bytes_char(b, '\\');
            bytes_char(b, SHORT[i]);
            return;
        }
    if (c >= 0x20) {
        bytes_char(b, c);
        return;
    }
    bytes_put(b, "\\u00", 4);
    bytes_char(b, HEX_DIGIT[c >> 4]);
    bytes_char(b, HEX_DIGIT[c & 15]);
}

void bytes_escaped(Bytes *b, const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++) put_escaped(b, (uint8_t) s[i]);
}

/* ---- numbers and words ---- */

bool json_is_number_text(const char *s, size_t n)
{
    size_t i = 0, from;
    if (i < n && s[i] == '-') i++;
    for (from = i; i < n && s[i] >= '0' && s[i] <= '9'; i++);
    if (i == from || (s[from] == '0' && i > from + 1)) return false;
    if (i < n && s[i] == '.') {
        for (from = ++i; i < n && s[i] >= '0' && s[i] <= '9'; i++);
        if (i == from) return false;
    }
    if (i < n && (s[i] == 'e' || s[i] == 'E')) {
        i++;
        if (i < n && (s[i] == '+' || s[i] == '-')) i++;
        for (from = i; i < n && s[i] >= '0' && s[i] <= '9'; i++);
        if (i == from) return false;
    }
    return i == n;
}

static bool is_space(int c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }
static bool word_is(const Bytes *b, const char *s) { return b->n == strlen(s) && memcmp(b->at, s, b->n) == 0; }

static void put_string(Bytes *out, const Bytes *text)
{
    bytes_char(out, '"');
    bytes_escaped(out, text->at, text->n);
    bytes_char(out, '"');
}

static void trim_held(JsonFlow *f)
{
    Bytes *w = &f->held;
    while (w->n > 0 && is_space(w->at[w->n - 1])) w->n--;
}

static void put_key(JsonFlow *f)
{
    trim_held(f);
    put_string(f->out, &f->held);
}

/* Writes the word in `held` as a value. Returns false if it is not a value. */
static bool put_word(JsonFlow *f)
{
    static const char *const PLAIN[][2] = { { "true", "true" }, { "false", "false" }, { "null", "null" },
                                            { "True", "true" }, { "False", "false" }, { "None", "null" } };
    Bytes *w = &f->held;
    trim_held(f);
    for (size_t i = 0; i < (f->allow & FLOW_LOOSE ? 6 : 3); i++)
        if (word_is(w, PLAIN[i][0])) {
            bytes_text(f->out, PLAIN[i][1]);
            return true;
        }
    if (json_is_number_text(w->at, w->n)) bytes_put(f->out, w->at, w->n);
    else if ((f->allow & FLOW_BARE) && w->n > 0) put_string(f->out, w);
    else return false;
    return true;
}

/* ---- the automaton ---- */

void flow_start(JsonFlow *f, unsigned allow, Bytes *out)
{
    Bytes held = f->held;
    held.n = 0;
    *f = (JsonFlow) { .allow = allow, .held = held, .out = out, .state = VALUE };
    if (!(allow & FLOW_CALL)) return;
    bytes_char(out, '{');
    f->depth = 1;
    f->object[0] = 1;
    f->state = FIRST_KEY;
}

void flow_free(JsonFlow *f)
{
    bytes_free(&f->held);
    *f = (JsonFlow) { 0 };
}

bool flow_in_string(const JsonFlow *f) { return f->state == STRING || f->state == ESCAPE || f->state == HEX; }

static bool in_object(const JsonFlow *f)
{
    return f->depth > 0 && f->object[(f->depth - 1) / 64] >> ((f->depth - 1) % 64) & 1;
}
static bool in_call(const JsonFlow *f) { return f->depth == 1 && (f->allow & FLOW_CALL); }
static int closing(const JsonFlow *f) { return in_call(f) ? ')' : in_object(f) ? '}' : ']'; }

static void flush_held(JsonFlow *f)
{
    bytes_put(f->out, f->held.at, f->held.n);
    f->held.n = 0;
}

static FlowStep open_bracket(JsonFlow *f, bool object)
{
    if (f->depth == FLOW_DEPTH_MAX) return FLOW_BAD;
    flush_held(f);
    bytes_char(f->out, object ? '{' : '[');
    uint64_t bit = (uint64_t) 1 << (f->depth % 64), *word = &f->object[f->depth / 64];
    *word = object ? *word | bit : *word & ~bit;
    f->depth++;
    f->state = object ? FIRST_KEY : FIRST;
    return FLOW_MORE;
}

static FlowStep value_ended(JsonFlow *f)
{
    f->state = f->depth == 0 ? DONE : AFTER;
    return f->depth == 0 ? FLOW_DONE : FLOW_MORE;
}

static FlowStep close_bracket(JsonFlow *f)
{
    if (f->state == KEY || f->state == ITEM) f->held.n = 0;        /* a comma with nothing after it */
    flush_held(f);
    bytes_char(f->out, in_object(f) ? '}' : ']');
    f->depth--;
    return value_ended(f);
}

static bool opens_string(const JsonFlow *f, int c)
{
    return c == '"' || c == FLOW_QUOTE || ((f->allow & FLOW_LOOSE) && (c == '\'' || c == '`'));
}

static FlowStep open_string(JsonFlow *f, int c, bool key)
{
    flush_held(f);
    bytes_char(f->out, '"');
    f->quote = c;
    f->key = key;
    f->high = 0;
    f->state = STRING;
    return FLOW_MORE;
}

static bool is_word(const JsonFlow *f, int c, bool key)
{
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '+' ||
        c == '.' || c == '_')
        return true;
    if (c >= FLOW_QUOTE || c == '"' || c == ',' || c == '{' || c == '}' || c == '[' || c == ']') return false;
    if (f->allow & FLOW_BARE) return !key || c != ':';
    return key && (c == '$' || c >= 0x80) && (f->allow & FLOW_LOOSE);
}

static FlowStep open_word(JsonFlow *f, int c, bool key)
{
    if (!is_word(f, c, key) || (key && !(f->allow & FLOW_LOOSE))) return FLOW_BAD;
    flush_held(f);
    bytes_char(&f->held, c);
    f->key = key;
    f->state = WORD;
    return FLOW_MORE;
}

static FlowStep open_value(JsonFlow *f, int c)
{
    if (c == '{' || c == '[') return open_bracket(f, c == '{');
    return opens_string(f, c) ? open_string(f, c, false) : open_word(f, c, false);
}

static FlowStep open_key(JsonFlow *f, int c)
{
    return opens_string(f, c) ? open_string(f, c, true) : open_word(f, c, true);
}

static FlowStep string_ended(JsonFlow *f)
{
    bytes_char(f->out, '"');
    if (!f->key) return value_ended(f);
    f->state = COLON;
    return FLOW_MORE;
}

/* Replaces the first half of a surrogate pair whose second half did not come. */
static void drop_high(JsonFlow *f)
{
    if (f->high) bytes_put(f->out, "\\ufffd", 6);
    f->high = 0;
}

static FlowStep string_char(JsonFlow *f, int c)
{
    if (c == f->quote) {
        drop_high(f);
        return string_ended(f);
    }
    if (c == '\\' && f->quote != FLOW_QUOTE) {
        f->state = ESCAPE;
        return FLOW_MORE;
    }
    drop_high(f);
    if (c >= FLOW_QUOTE) return FLOW_BAD;
    put_escaped(f->out, c);
    return FLOW_MORE;
}

static FlowStep escape_char(JsonFlow *f, int c)
{
    f->state = STRING;
    if (c == 'u' || (c == 'x' && (f->allow & FLOW_LOOSE))) {
        f->state = HEX;
        f->digits = c == 'u' ? 4 : 2;
        f->code = 0;
        bytes_char(&f->held, c);
        return FLOW_MORE;
    }
    drop_high(f);
    if (c == '\'' || c == '`') {
        bytes_char(f->out, c);
        return FLOW_MORE;
    }
    if (c < FLOW_QUOTE && c != 0 && strchr("\"\\/bfnrt", c)) {
        bytes_char(f->out, '\\');
        bytes_char(f->out, c);
        return FLOW_MORE;
    }
    bytes_put(f->out, "\\\\", 2);                  /* not an escape: the backslash is literal */
    return string_char(f, c);
}

static void put_code(Bytes *out, uint32_t code)
{
    bytes_put(out, "\\u", 2);
    for (int shift = 12; shift >= 0; shift -= 4) bytes_char(out, "0123456789abcdef"[code >> shift & 15]);
}

static void put_unit(JsonFlow *f, uint32_t code)
{
    bool low = code >= 0xdc00 && code <= 0xdfff;
    if (low && f->high) {
        put_code(f->out, f->high);
        put_code(f->out, code);
        f->high = 0;
        return;
    }
    drop_high(f);
    if (code >= 0xd800 && code <= 0xdbff) f->high = code;
    else put_code(f->out, low ? 0xfffd : code);
}

/* Not an escape after all: writes what looked like one as text. */
static void unescape(JsonFlow *f)
{
    drop_high(f);
    bytes_put(f->out, "\\\\", 2);
    flush_held(f);
    f->state = STRING;
}

static FlowStep hex_char(JsonFlow *f, int c)
{
    int d = hex_value(c);
    if (d < 0) {
        unescape(f);
        return string_char(f, c);
    }
    f->code = f->code << 4 | (uint32_t) d;
    bytes_char(&f->held, c);
    if (--f->digits > 0) return FLOW_MORE;
    f->held.n = 0;
    f->state = STRING;
    put_unit(f, f->code);
    return FLOW_MORE;
}

/* Ends the word at the symbol after it. Returns false if the word is not a value. */
static bool end_word(JsonFlow *f)
{
    if (f->key) {
        put_key(f);
        f->state = COLON;
    } else {
        if (!put_word(f)) return false;
        value_ended(f);
    }
    f->held.n = 0;
    return true;
}

static FlowStep between(JsonFlow *f, int c)
{
    int state = f->state;
    if (state == AFTER && c == ',') {
        bytes_char(&f->held, ',');
        f->state = in_object(f) ? KEY : ITEM;
        return FLOW_MORE;
    }
    if (f->depth > 0 && c == closing(f) && (state == AFTER || state == FIRST || state == FIRST_KEY ||
                                            ((state == KEY || state == ITEM) && (f->allow & FLOW_LOOSE))))
        return close_bracket(f);
    if (state == COLON && c == (in_call(f) ? '=' : ':')) {
        bytes_char(&f->held, ':');
        f->state = VALUE;
        return FLOW_MORE;
    }
    if (state == KEY || state == FIRST_KEY) return open_key(f, c);
    return state == VALUE || state == FIRST || state == ITEM ? open_value(f, c) : FLOW_BAD;
}

FlowStep flow_put(JsonFlow *f, int c)
{
    switch (f->state) {
    case STRING: return string_char(f, c);
    case ESCAPE: return escape_char(f, c);
    case HEX:    return hex_char(f, c);
    case DONE:   return FLOW_PAST;
    case WORD:
        if (is_word(f, c, f->key) && !(c == closing(f) && f->depth > 0)) {
            bytes_char(&f->held, c);
            return FLOW_MORE;
        }
        if (!end_word(f)) return FLOW_BAD;
        if (f->state == DONE) return FLOW_PAST;
        break;
    default: break;
    }
    if (!is_space(c)) return between(f, c);
    if (f->depth > 0 && f->held.n < HELD_SPACE_MAX) bytes_char(&f->held, c);
    return FLOW_MORE;
}

bool flow_close(JsonFlow *f)
{
    bool whole = f->state == DONE;
    if (f->state == ESCAPE) unescape(f);
    if (f->state == HEX) unescape(f);
    if (f->state == STRING) {
        drop_high(f);
        string_ended(f);
    } else if (f->state == WORD) {
        bool word = f->key || put_word(f);
        if (f->key) put_key(f);
        else if (!word) bytes_text(f->out, "null");
        whole = word && !f->key && f->depth == 0;
        f->state = f->key ? COLON : f->depth == 0 ? DONE : AFTER;
    }
    f->held.n = 0;                                 /* separators with nothing after them */
    if (f->state == COLON || (f->state == VALUE && f->depth > 0)) bytes_text(f->out, ":null");
    else if (f->state == VALUE) bytes_text(f->out, "null");
    for (; f->depth > 0; f->depth--) bytes_char(f->out, in_object(f) ? '}' : ']');
    f->state = DONE;
    return whole;
}

bool flow_text(Bytes *out, const char *s, size_t n, unsigned allow, char *first)
{
    JsonFlow f = { 0 };
    size_t   before = out->n, i = 0;
    flow_start(&f, allow, out);
    FlowStep step = FLOW_MORE;
    while (i < n && step == FLOW_MORE) step = flow_put(&f, (uint8_t) s[i++]);
    while (step == FLOW_DONE && i < n && is_space(s[i])) i++;
    bool good = step != FLOW_BAD && step != FLOW_PAST && i == n && flow_close(&f);
    if (step == FLOW_PAST) {                       /* a word, then white space */
        for (i--; i < n && is_space(s[i]); i++);
        good = i == n;
    }
    flow_free(&f);
    if (!good) out->n = before;
    else *first = out->n > before ? out->at[before] : 0;
    return good && !out->failed;
}
