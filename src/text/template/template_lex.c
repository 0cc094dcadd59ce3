/* template_lex.c - a template's source as tokens. Outside tags everything is text; how much of the text is trimmed by a
 * tag's dashes, by the start of its line and by the newline after it is decided here, exactly as Jinja2 does with
 * trim_blocks and lstrip_blocks. Inside tags white space only separates. */
#include <string.h>
#include <utf8proc.h>

#include "base/hex.h"
#include "text/template/template_impl.h"
#include "text/tokenizer/utf8.h"

enum { MODE_TEXT, MODE_PRINT, MODE_BLOCK, MODE_RAW };

void lexer_begin(Lexer *x, Fault *f, const char *s, size_t n)
{
    *x = (Lexer) { .fault = f, .s = s, .n = n, .line_start = true };
}

static bool has(const Lexer *x, size_t at, const char *s)
{
    size_t n = strlen(s);
    return n <= x->n - at && memcmp(x->s + at, s, n) == 0;
}

static Token token(TokenKind kind, size_t at, size_t end)
{
    return (Token) { kind, (uint32_t) at, (uint32_t) (end - at) };
}

/* Call when x->at is the end of what was read. */
static void note_line(Lexer *x) { x->line_start = x->at > 0 && x->s[x->at - 1] == '\n'; }

/* After the end of a tag, whose last byte was read: skips the white space that is trimmed with it. */
static void close_tag(Lexer *x, bool dash, bool newline)
{
    if (dash) x->at += strip_start(x->s + x->at, x->n - x->at);
    else if (newline && x->at < x->n && x->s[x->at] == '\n') x->at++;
    note_line(x);
}

/* Where the text [from, to) ends after trimming for a following tag with that sign. */
static size_t text_end(const Lexer *x, size_t from, size_t to, char sign, bool block)
{
    if (sign == '-') return from + strip_end(x->s + from, to - from);
    if (sign == '+' || !block) return to;
    size_t line = to;
    while (line > from && x->s[line - 1] != '\n') line--;
    if (line == from && !x->line_start) return to;
    return strip_start(x->s + line, to - line) == to - line ? line : to;
}

/* Length of "{% raw %}" (or another word) with its signs at `at`, 0 if it is not there; dash: a dash at its end. */
static size_t word_tag(const Lexer *x, size_t at, const char *word, bool *dash, bool plus)
{
    if (!has(x, at, "{%")) return 0;
    size_t i = at + 2;
    if (i < x->n && (x->s[i] == '-' || x->s[i] == '+')) i++;
    i += strip_start(x->s + i, x->n - i);
    if (!has(x, i, word)) return 0;
    i += strlen(word);
    i += strip_start(x->s + i, x->n - i);
    *dash = i < x->n && x->s[i] == '-';
    if (*dash || (plus && i < x->n && x->s[i] == '+')) {
        if (x->s[i] == '+') *dash = false;
        i++;
    }
    return has(x, i, "%}") ? i + 2 - at : 0;
}

static Token raw_text(Lexer *x)
{
    size_t from = x->at;
    for (size_t i = from; i < x->n; i++) {
        bool dash;
        size_t n = x->s[i] == '{' ? word_tag(x, i, "endraw", &dash, true) : 0;
        if (n == 0) continue;
        size_t end = text_end(x, from, i, x->s[i + 2], true);
        bool plus = x->s[i + n - 3] == '+';
        x->at = i + n;
        x->mode = MODE_TEXT;
        close_tag(x, dash, !plus);
        return token(T_TEXT, from, end);
    }
    fault(x->fault, ST_FORMAT, from, "this raw block has no end, expected {%% endraw %%}");
}

static void skip_comment(Lexer *x, size_t at)
{
    size_t from = at + 2 + (at + 2 < x->n && (x->s[at + 2] == '-' || x->s[at + 2] == '+')), i = from;
    while (i < x->n && !has(x, i, "#}")) i++;
    if (i == x->n) fault(x->fault, ST_FORMAT, at, "this comment has no end, expected #}");
    char sign = i > from ? x->s[i - 1] : 0;
    x->at = i + 2;
    close_tag(x, sign == '-', sign != '+');
}

/* Text up to the next tag; an empty text is a token too, which the parser drops. */
static Token lex_text(Lexer *x)
{
    size_t from = x->at, i = from;
    while (i < x->n &&
           !(x->s[i] == '{' && i + 1 < x->n && (x->s[i + 1] == '{' || x->s[i + 1] == '%' || x->s[i + 1] == '#')))
        i++;
    if (i == x->n) {
        x->at = x->n;
        return token(T_TEXT, from, i);
    }
    char kind = x->s[i + 1], sign = i + 2 < x->n ? x->s[i + 2] : 0;
    size_t end = text_end(x, from, i, sign, kind != '{');
    bool dash;
    size_t raw = word_tag(x, i, "raw", &dash, false);
    if (raw) {
        x->at = i + raw;
        x->mode = MODE_RAW;
        close_tag(x, dash, false);
    } else if (kind == '#') {
        skip_comment(x, i);
    } else {
        x->at = i;                                 /* the tag itself is the next token */
        x->mode = kind == '{' ? MODE_PRINT : MODE_BLOCK;
        x->n_open = -1;
    }
    return token(T_TEXT, from, end);
}

/* ---- inside tags ---- */

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

/* Digits with single underscores between them. */
static size_t digits(const Lexer *x, size_t at)
{
    size_t i = at;
    while (i < x->n && (is_digit(x->s[i]) ||
                        (x->s[i] == '_' && i > at && x->s[i - 1] != '_' && i + 1 < x->n && is_digit(x->s[i + 1]))))
        i++;
    return i;
}

static bool based_digit(char c, int base)
{
    if (base == 2) return c == '0' || c == '1';
    if (base == 8) return c >= '0' && c <= '7';
    return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

static int base_of(const char *s, size_t n)
{
    if (n < 3 || s[0] != '0') return 10;
    char c = (char) (s[1] | 32);
    return c == 'b' ? 2 : c == 'o' ? 8 : c == 'x' ? 16 : 10;
}

static Token lex_number(Lexer *x)
{
    size_t from = x->at, i;
    bool after_dot = from > 0 && x->s[from - 1] == '.';
    int base = base_of(x->s + from, x->n - from);
    if (base != 10) {
        i = from + 2;
        while (i < x->n &&
               (based_digit(x->s[i], base) || (x->s[i] == '_' && i + 1 < x->n && based_digit(x->s[i + 1], base))))
            i++;
        if (i > from + 2) {
            x->at = i;
            return token(T_INT, from, i);
        }
    }
    size_t whole = i = digits(x, from);
    bool real = false;
    if (!after_dot && i + 1 < x->n && x->s[i] == '.' && is_digit(x->s[i + 1])) {
        i = digits(x, i + 1);
        real = true;
    }
    if (!after_dot && i < x->n && (x->s[i] | 32) == 'e') {
        size_t e = i + 1;
        if (e < x->n && (x->s[e] == '+' || x->s[e] == '-')) e++;
        if (e < x->n && is_digit(x->s[e])) {
            i = digits(x, e);
            real = true;
        }
    }
    if (!real) {
        i = whole;
        if (x->s[from] == '0')                     /* as in Python 012 is not a number: the token ends after 0 */
            for (i = from + 1; i < whole && (x->s[i] == '0' || x->s[i] == '_');) i++;
    }
    x->at = i;
    return token(real ? T_FLOAT : T_INT, from, i);
}

static Token lex_string_token(Lexer *x)
{
    size_t from = x->at;
    char quote = x->s[from];
    for (size_t i = from + 1; i < x->n; i++) {
        if (x->s[i] == '\\') i++;
        else if (x->s[i] == quote) {
            x->at = i + 1;
            return token(T_STRING, from, i + 1);
        }
    }
    fault(x->fault, ST_FORMAT, from, "this string has no end, expected %c", quote);
}

static bool name_char(uint32_t cp, bool first)
{
    if (cp < 0x80)
        return (cp >= 'a' && cp <= 'z') || (cp >= 'A' && cp <= 'Z') || cp == '_' || (!first && cp >= '0' && cp <= '9');
    switch (utf8proc_category((utf8proc_int32_t) cp)) {
    case UTF8PROC_CATEGORY_LU: case UTF8PROC_CATEGORY_LL: case UTF8PROC_CATEGORY_LT: case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_NL:
        return true;
    case UTF8PROC_CATEGORY_MN: case UTF8PROC_CATEGORY_MC: case UTF8PROC_CATEGORY_ND: case UTF8PROC_CATEGORY_PC:
        return !first;
    default:
        return false;
    }
}

static size_t name_end(const Lexer *x)
{
    size_t i = x->at;
    while (i < x->n) {
        uint32_t cp;
        size_t len = utf8_next(x->s + i, x->n - i, &cp);
        if (len == 0 || !name_char(cp, i == x->at)) break;
        i += len;
    }
    return i;
}

/* Longer operators first. */
static const struct { const char *s; TokenKind kind; } OPERATORS[] = {
    { "//", T_FLOOR }, { "**", T_POW }, { "==", T_EQ }, { "!=", T_NE }, { ">=", T_GE }, { "<=", T_LE }, { "+", T_ADD },
    { "-", T_SUB }, { "/", T_DIV },
    { "*", T_MUL }, { "%", T_MOD }, { "~", T_TILDE }, { "[", T_LBRACKET }, { "]", T_RBRACKET }, { "(", T_LPAREN },
    { ")", T_RPAREN },
    { "{", T_LBRACE }, { "}", T_RBRACE }, { ">", T_GT }, { "<", T_LT }, { "=", T_ASSIGN }, { ".", T_DOT },
    { ":", T_COLON }, { "|", T_PIPE },
    { ",", T_COMMA }, { ";", T_SEMICOLON },
};

static void balance(Lexer *x, char c)
{
    if (c == '(' || c == '[' || c == '{') {
        if (x->n_open == TEMPLATE_NESTING_MAX)
            fault(x->fault, ST_FULL, x->at, "brackets are nested deeper than %d", TEMPLATE_NESTING_MAX);
        x->open[x->n_open++] = c == '(' ? ')' : c == '[' ? ']' : '}';
    } else if (c == ')' || c == ']' || c == '}') {
        if (x->n_open == 0) fault(x->fault, ST_FORMAT, x->at, "unexpected %c, no bracket is open", c);
        if (x->open[--x->n_open] != c)
            fault(x->fault, ST_FORMAT, x->at, "unexpected %c, expected %c", c, x->open[x->n_open]);
    }
}

/* The end of a tag counts only if all brackets are closed: }} may end two dicts. */
static bool tag_end(Lexer *x, Token *out)
{
    const char *end = x->mode == MODE_PRINT ? "}}" : "%}";
    char sign = x->s[x->at];
    bool signed_end = (sign == '-' || (sign == '+' && x->mode == MODE_BLOCK)) && has(x, x->at + 1, end);
    if (x->n_open > 0 || (!signed_end && !has(x, x->at, end))) return false;
    size_t from = x->at;
    bool block = x->mode == MODE_BLOCK;
    x->at += signed_end ? 3 : 2;
    *out = token(block ? T_BLOCK_END : T_PRINT_END, from, x->at);
    close_tag(x, signed_end && sign == '-', block && !signed_end);
    x->mode = MODE_TEXT;
    return true;
}

static Token lex_tag(Lexer *x)
{
    if (x->n_open < 0) {                           /* at its beginning */
        size_t from = x->at;
        x->at += 2;
        if (x->at < x->n && (x->s[x->at] == '-' || x->s[x->at] == '+')) x->at++;
        x->n_open = 0;
        return token(x->mode == MODE_PRINT ? T_PRINT_BEGIN : T_BLOCK_BEGIN, from, x->at);
    }
    x->at += strip_start(x->s + x->at, x->n - x->at);
    if (x->at == x->n) return token(T_END, x->at, x->at);
    Token t;
    if (tag_end(x, &t)) return t;
    char c = x->s[x->at];
    if (is_digit(c)) return lex_number(x);
    if (c == '"' || c == '\'') return lex_string_token(x);
    size_t end = name_end(x);
    if (end > x->at) {
        t = token(T_NAME, x->at, end);
        x->at = end;
        return t;
    }
    for (size_t i = 0; i < sizeof OPERATORS / sizeof *OPERATORS; i++) {
        if (!has(x, x->at, OPERATORS[i].s)) continue;
        balance(x, c);
        t = token(OPERATORS[i].kind, x->at, x->at + strlen(OPERATORS[i].s));
        x->at += t.n;
        return t;
    }
    uint32_t cp = 0;
    size_t len = utf8_next(x->s + x->at, x->n - x->at, &cp);
    fault(x->fault, ST_FORMAT, x->at, "unexpected character %.*s", (int) len, x->s + x->at);
}

Token lexer_next(Lexer *x)
{
    if (x->mode == MODE_RAW) return raw_text(x);
    if (x->mode != MODE_TEXT) return lex_tag(x);
    return x->at == x->n ? token(T_END, x->n, x->n) : lex_text(x);
}

/* ---- values of tokens ---- */

static uint32_t hex_escape(const Lexer *x, size_t at, size_t end, size_t n)
{
    uint32_t cp = 0;
    for (size_t i = 0; i < n; i++) {
        int d = at + i < end ? hex_value(x->s[at + i]) : -1;
        if (d < 0) fault(x->fault, ST_FORMAT, at - 2, "this escape needs %zu hexadecimal digits", n);
        cp = cp << 4 | (uint32_t) d;
    }
    if (cp > 0x10ffff || (cp >= 0xd800 && cp < 0xe000))
        fault(x->fault, ST_FORMAT, at - 2, "this escape is no Unicode character");
    return cp;
}

/* As in Python, an unknown escape stays as it is, including the backslash. */
size_t lexer_string(const Lexer *x, const Token *t, char *out)
{
    static const char LETTER[] = "ntrbfva\\'\"", MEANING[] = "\n\t\r\b\f\v\a\\'\"";
    size_t w = 0, end = t->at + t->n - 1;
    for (size_t i = t->at + 1; i < end; i++) {
        char c = x->s[i];
        if (c != '\\' || i + 1 == end) {
            out[w++] = c;
            continue;
        }
        c = x->s[++i];
        const char *known = strchr(LETTER, c);
        if (known && c) out[w++] = MEANING[known - LETTER];
        else if (c == '\n') continue;
        else if (c == 'x' || c == 'u' || c == 'U') {
            size_t n = c == 'x' ? 2 : c == 'u' ? 4 : 8;
            w += utf8_put(out + w, hex_escape(x, i + 1, end, n));
            i += n;
        } else if (c >= '0' && c <= '7') {
            uint32_t cp = 0;
            size_t k = 0;
            while (k < 3 && i + k < end && x->s[i + k] >= '0' && x->s[i + k] <= '7')
                cp = cp * 8 + (uint32_t) (x->s[i + k++] - '0');
            w += utf8_put(out + w, cp);
            i += k - 1;
        } else {
            out[w++] = '\\';
            out[w++] = c;
        }
    }
    return w;
}

Value lexer_number(const Lexer *x, const Token *t)
{
    char digit[64];
    size_t n = 0;
    for (size_t i = 0; i < t->n; i++) {
        if (x->s[t->at + i] == '_') continue;
        if (n == sizeof digit) fault(x->fault, ST_FORMAT, t->at, "this number has too many digits");
        digit[n++] = x->s[t->at + i];
    }
    if (t->kind == T_FLOAT) {
        double f;
        if (!read_float(&f, digit, n)) fault(x->fault, ST_FORMAT, t->at, "this number is out of range");
        return value_float(f);
    }
    int base = base_of(digit, n);
    int64_t v = 0;
    for (size_t i = base == 10 ? 0 : 2; i < n; i++)
        if (__builtin_mul_overflow(v, base, &v) || __builtin_add_overflow(v, hex_value(digit[i]), &v))
            fault(x->fault, ST_FORMAT, t->at, "this number is out of range, expected at most 64 bits");
    return value_int(v);
}

const char *token_name(TokenKind kind)
{
    static const char *const NAMES[] = {
        [T_END] = "the end of the template", [T_TEXT] = "text", [T_PRINT_BEGIN] = "{{", [T_PRINT_END] = "}}",
        [T_BLOCK_BEGIN] = "{%",
        [T_BLOCK_END] = "%}", [T_NAME] = "a name", [T_STRING] = "a string", [T_INT] = "a number",
        [T_FLOAT] = "a number", [T_ADD] = "+",
        [T_SUB] = "-", [T_MUL] = "*", [T_DIV] = "/", [T_FLOOR] = "//", [T_MOD] = "%", [T_POW] = "**", [T_TILDE] = "~",
        [T_EQ] = "==",
        [T_NE] = "!=", [T_LT] = "<", [T_GT] = ">", [T_LE] = "<=", [T_GE] = ">=", [T_ASSIGN] = "=", [T_DOT] = ".",
        [T_COLON] = ":",
        [T_COMMA] = ",", [T_PIPE] = "|", [T_SEMICOLON] = ";", [T_LPAREN] = "(", [T_RPAREN] = ")", [T_LBRACKET] = "[",
        [T_RBRACKET] = "]",
        [T_LBRACE] = "{", [T_RBRACE] = "}",
    };
    return NAMES[kind];
}
