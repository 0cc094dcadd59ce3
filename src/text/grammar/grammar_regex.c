/* The regular part of ECMAScript's expressions: patterns of JSON Schema, and expressions for a whole text. A pattern is
 * searched for, so without ^ anything may precede it and without $ anything may follow; anchors may stand only at the
 * ends of the outermost alternatives. Look-around, backreferences and word boundaries are refused: they are not
 * regular, or not worth their cost. */
#include <stdlib.h>
#include <string.h>

#include "base/hex.h"
#include "text/grammar/grammar_graph.h"
#include "text/tokenizer/utf8.h"

enum { SET_MAX = 512 };
typedef struct { CharRange r[SET_MAX]; uint32_t n; } Set;

typedef struct {
    Graph  *b;
    Exprs  *x;
    const char *s;
    size_t  n, at;
    uint32_t any;                                  /* class of every character */
    bool    whole;                                 /* matches a whole text, with or without anchors */
    bool    good;
} Regex;

static uint32_t alternatives(Regex *r, uint32_t depth);

static bool bad(Regex *r, const char *why)
{
    if (r->good) graph_fail(r->b, ST_UNSUPPORTED, why);
    r->good = false;
    return false;
}

static int peek(const Regex *r) { return r->at < r->n ? (uint8_t) r->s[r->at] : -1; }
static bool ahead(const Regex *r, const char *s)
{
    return r->n - r->at >= strlen(s) && memcmp(r->s + r->at, s, strlen(s)) == 0;
}

static void add(Regex *r, Set *set, uint32_t lo, uint32_t hi)
{
    if (set->n == SET_MAX) bad(r, "pattern: a class has more than 512 parts");
    else set->r[set->n++] = (CharRange) { lo, hi };
}

static void negate(Regex *r, Set *set)
{
    Set out = { .n = 0 };
    uint32_t from = 0;
    for (uint32_t i = 1; i < set->n; i++)          /* insertion sort: there are few parts */
        for (uint32_t k = i; k > 0 && set->r[k].lo < set->r[k - 1].lo; k--) {
            CharRange t = set->r[k];
            set->r[k] = set->r[k - 1];
            set->r[k - 1] = t;
        }
    for (uint32_t i = 0; i < set->n; i++) {
        if (set->r[i].lo > from) add(r, &out, from, set->r[i].lo - 1);
        if (set->r[i].hi + 1 > from) from = set->r[i].hi + 1;
    }
    if (from <= 0x10ffff) add(r, &out, from, 0x10ffff);
    *set = out;
}

/* Adds \d \w \s or their opposites to set. */
static bool named_class(Regex *r, Set *set, int c)
{
    static const CharRange digit[] = { { '0', '9' } },
                           word[] = { { '0', '9' }, { 'A', 'Z' }, { '_', '_' }, { 'a', 'z' } },
                           space[] = { { 9, 13 }, { ' ', ' ' }, { 0xa0, 0xa0 }, { 0x1680, 0x1680 }, { 0x2000, 0x200a },
                                       { 0x2028, 0x2029 }, { 0x202f, 0x202f }, { 0x205f, 0x205f }, { 0x3000, 0x3000 },
                                       { 0xfeff, 0xfeff } };
    int low = c | 0x20;
    const CharRange *from = low == 'd' ? digit : low == 'w' ? word : low == 's' ? space : NULL;
    uint32_t n = low == 'd' ? 1 : low == 'w' ? 4 : 10;
    if (!from) return false;
    Set one = { .n = n };
    memcpy(one.r, from, n * sizeof *from);
    if (c != low) negate(r, &one);
    for (uint32_t i = 0; i < one.n; i++) add(r, set, one.r[i].lo, one.r[i].hi);
    return true;
}

static bool hex_code(Regex *r, int digits, uint32_t *cp)
{
    for (*cp = 0; digits > 0; digits--, r->at++) {
        int d = hex_value(peek(r));
        if (d < 0) return bad(r, "pattern: expected a hexadecimal digit");
        *cp = *cp << 4 | (uint32_t) d;
    }
    return true;
}

/* Reads what follows a backslash. */
static bool escaped(Regex *r, uint32_t *cp)
{
    static const char control[] = "t\tn\nr\rf\fv\v";
    int c = peek(r);
    for (size_t i = 0; i + 1 < sizeof control; i += 2)
        if (control[i] == c) {
            r->at++;
            *cp = (uint8_t) control[i + 1];
            return true;
        }
    if (c == 'x' || c == 'u') {
        r->at++;
        if (c == 'u' && peek(r) == '{') {
            r->at++;
            for (*cp = 0; peek(r) != '}'; r->at++) {
                int d = hex_value(peek(r));
                if (d < 0 || *cp > 0x10ffff) return bad(r, "pattern: expected \\u{HEX}");
                *cp = *cp << 4 | (uint32_t) d;
            }
            r->at++;
        } else if (!hex_code(r, c == 'x' ? 2 : 4, cp)) return false;
        if (*cp >= 0xd800 && *cp <= 0xdbff && ahead(r, "\\u")) {
            uint32_t low;
            r->at += 2;
            if (!hex_code(r, 4, &low)) return false;
            if (low >= 0xdc00 && low <= 0xdfff) *cp = 0x10000 + ((*cp - 0xd800) << 10) + (low - 0xdc00);
        }
        if (*cp > 0x10ffff || (*cp >= 0xd800 && *cp <= 0xdfff))
            return bad(r, "pattern: this code is no Unicode character");
        return true;
    }
    if (c >= '1' && c <= '9') return bad(r, "pattern: references back are not regular");
    if (c == 'b' || c == 'B') return bad(r, "pattern: word boundaries (\\b) are not supported");
    if (c == 'p' || c == 'P') return bad(r, "pattern: Unicode properties (\\p) are not supported");
    if (c < 0 || c >= 0x80 || c == 'c' || c == 'k' || c == '0' || hex_value(c) >= 0 || (c | 32) == 'z' ||
        (c | 32) == 'g')
        return bad(r, "pattern: unknown escape");
    r->at++;
    *cp = (uint32_t) c;
    return true;
}

static bool plain(Regex *r, uint32_t *cp)
{
    size_t len = utf8_next(r->s + r->at, r->n - r->at, cp);
    r->at += len;
    return len > 0 || bad(r, "pattern: not well-formed UTF-8");
}

static uint32_t class_of(Regex *r, Set *set)
{
    return r->good ? expr_new(r->b, r->x, EXPR_CHAR, graph_class(r->b, set->r, set->n)) : GRAPH_NONE;
}

/* Reads one end of a range, or a class by itself. */
static bool member(Regex *r, Set *set, uint32_t *cp, bool *single)
{
    *single = true;
    if (peek(r) != '\\') return plain(r, cp);
    r->at++;
    int c = peek(r);
    if (c >= 0 && c < 0x80 && named_class(r, set, c)) {
        r->at++;
        *single = false;
        return r->good;
    }
    if (c == 'b') {                                /* in a class \b is the backspace */
        r->at++;
        *cp = 8;
        return true;
    }
    if (c == '-') {
        r->at++;
        *cp = '-';
        return true;
    }
    return escaped(r, cp);
}

static uint32_t char_class(Regex *r)
{
    Set set = { .n = 0 };
    bool not, single, last;
    r->at++;
    not = peek(r) == '^';
    r->at += not;
    while (peek(r) != ']') {
        uint32_t lo, hi;
        if (peek(r) < 0) return bad(r, "pattern: a class has no end"), GRAPH_NONE;
        if (!member(r, &set, &lo, &single)) return GRAPH_NONE;
        if (!single) continue;
        hi = lo;
        if (peek(r) == '-' && r->at + 1 < r->n && r->s[r->at + 1] != ']') {
            r->at++;
            if (!member(r, &set, &hi, &last)) return GRAPH_NONE;
            if (!last || hi < lo) return bad(r, "pattern: a range in a class ends before it begins"), GRAPH_NONE;
        }
        add(r, &set, lo, hi);
    }
    r->at++;
    if (not) negate(r, &set);
    return class_of(r, &set);
}

static bool count(Regex *r, uint32_t *out)
{
    if (peek(r) < '0' || peek(r) > '9') return bad(r, "pattern: expected a number after {");
    for (*out = 0; peek(r) >= '0' && peek(r) <= '9'; r->at++) {
        *out = 10 * *out + (uint32_t) (peek(r) - '0');
        if (*out > GRAMMAR_NODES_MAX) return bad(r, "pattern: a repetition is at most 1048576");
    }
    return true;
}

static uint32_t repeated(Regex *r, uint32_t what)
{
    uint32_t min = 1, max = 1;
    int c = peek(r);
    if (c == '?') min = 0;
    else if (c == '*') min = 0, max = GRAPH_NONE;
    else if (c == '+') max = GRAPH_NONE;
    else if (c != '{') return what;
    r->at++;
    if (c == '{') {
        if (!count(r, &min)) return GRAPH_NONE;
        max = min;
        if (peek(r) == ',') {
            r->at++;
            max = GRAPH_NONE;
            if (peek(r) != '}' && !count(r, &max)) return GRAPH_NONE;
        }
        if (peek(r) != '}' || max < min) return bad(r, "pattern: expected {m}, {m,} or {m,n} with m <= n"), GRAPH_NONE;
        r->at++;
    }
    if (peek(r) == '?') r->at++;                   /* lazy repeats match the same texts */
    c = peek(r);
    if (c == '*' || c == '+' || c == '?' || c == '{')
        return bad(r, "pattern: a repetition of a repetition"), GRAPH_NONE;
    uint32_t e = expr_new(r->b, r->x, EXPR_REPEAT, what);
    if (e == GRAPH_NONE) return e;
    r->x->at[e].min = min;
    r->x->at[e].max = max;
    return e;
}

static uint32_t group(Regex *r, uint32_t depth)
{
    if (depth == GRAMMAR_NEST_MAX) return bad(r, "pattern: groups are nested deeper than 100"), GRAPH_NONE;
    r->at++;
    if (ahead(r, "?:")) r->at += 2;
    else if (ahead(r, "?=") || ahead(r, "?!") || ahead(r, "?<=") || ahead(r, "?<!"))
        return bad(r, "pattern: look-around is not supported"), GRAPH_NONE;
    else if (ahead(r, "?<")) {
        while (r->at < r->n && r->s[r->at] != '>') r->at++;
        r->at++;
    } else if (ahead(r, "?")) return bad(r, "pattern: unknown kind of group"), GRAPH_NONE;
    uint32_t e = alternatives(r, depth + 1);
    if (peek(r) != ')') return bad(r, "pattern: a group has no end"), GRAPH_NONE;
    r->at++;
    return e;
}

static uint32_t part(Regex *r, uint32_t depth)
{
    Set set = { .n = 0 };
    uint32_t cp;
    int c = peek(r);
    switch (c) {
    case '(': return group(r, depth);
    case '[': return char_class(r);
    case '.':
        r->at++;
        add(r, &set, '\n', '\n');
        add(r, &set, '\r', '\r');
        add(r, &set, 0x2028, 0x2029);
        negate(r, &set);
        return class_of(r, &set);
    case '*': case '+': case '?': case '{': return bad(r, "pattern: a repetition has nothing before it"), GRAPH_NONE;
    case '^': case '$':
        return bad(r, "pattern: ^ and $ may stand only at the ends of the whole pattern or of its outermost "
                   "alternatives"), GRAPH_NONE;
    case '\\':
        r->at++;
        c = peek(r);
        if (c >= 0 && c < 0x80 && named_class(r, &set, c)) {
            r->at++;
            return class_of(r, &set);
        }
        if (!escaped(r, &cp)) return GRAPH_NONE;
        break;
    default:
        if (!plain(r, &cp)) return GRAPH_NONE;
    }
    add(r, &set, cp, cp);
    return class_of(r, &set);
}

static uint32_t anything(Regex *r)
{
    uint32_t e = expr_new(r->b, r->x, EXPR_REPEAT, expr_new(r->b, r->x, EXPR_CHAR, r->any));
    if (e == GRAPH_NONE) return e;
    r->x->at[e].min = 0;
    r->x->at[e].max = GRAPH_NONE;
    return e;
}

static uint32_t sequence(Regex *r, uint32_t depth)
{
    uint32_t seq = expr_new(r->b, r->x, EXPR_SEQ, GRAPH_NONE);
    bool anchored = depth == 0 && peek(r) == '^', ended = false;
    if (anchored) r->at++;
    else if (depth == 0 && !r->whole) expr_append(r->x, seq, anything(r));
    while (r->good && r->b->st == ST_OK && peek(r) >= 0 && peek(r) != '|' && peek(r) != ')') {
        if (depth == 0 && peek(r) == '$' && (r->at + 1 == r->n || r->s[r->at + 1] == '|')) {
            r->at++;
            ended = true;
            break;
        }
        uint32_t p = part(r, depth);
        if (p != GRAPH_NONE) p = repeated(r, p);
        expr_append(r->x, seq, p);
    }
    if (depth == 0 && !ended && !r->whole) expr_append(r->x, seq, anything(r));
    return seq;
}

static uint32_t alternatives(Regex *r, uint32_t depth)
{
    uint32_t alt = expr_new(r->b, r->x, EXPR_ALT, GRAPH_NONE);
    expr_append(r->x, alt, sequence(r, depth));
    while (r->good && r->b->st == ST_OK && peek(r) == '|') {
        r->at++;
        expr_append(r->x, alt, sequence(r, depth));
    }
    return alt;
}

bool regex_parse(Graph *b, Exprs *x, const char *s, size_t n, bool whole, uint32_t *out, size_t *at)
{
    Regex r = { .b = b, .x = x, .s = s, .n = n, .whole = whole, .good = true };
    r.any = graph_class(b, &(CharRange) { 0, 0x10ffff }, 1);
    *out = alternatives(&r, 0);
    if (r.good && r.at < n) bad(&r, "pattern: a ) closes nothing");
    *at = r.at < n ? r.at : n;
    return r.good && b->st == ST_OK;
}

Status grammar_regex(Grammar **out, const char *s, size_t n, const char *name, Error *err)
{
    Graph b;
    Exprs x = { 0 };
    uint32_t e, bad_rule;
    size_t at = 0;
    const char *why = "out of memory";
    *out = NULL;
    if (n > GRAMMAR_TEXT_MAX)
        return fail(err, ST_FORMAT, "%s: an expression of %zu bytes, expected at most %d", name, n, GRAMMAR_TEXT_MAX);
    TRY(graph_open(&b, err));
    const uint32_t root = graph_rule(&b);
    Status st = ST_OK;
    if (root == GRAPH_NONE || !regex_parse(&b, &x, s, n, true, &e, &at)) {
        st = b.st;
        why = b.why;
    } else {
        const uint32_t start = expr_draw(&b, &x, e, false, NODE_DONE);
        st = b.st;
        why = b.why;
        if (st == ST_OK) b.g->rule[root].start = start;
    }
    free(x.at);
    if (st == ST_OK) st = graph_finish(out, &b, &bad_rule, &why);
    else graph_drop(&b);
    return st == ST_OK ? ST_OK : fail(err, st, "%s: %s (at byte %zu of '%.80s')", name, why, at, s);
}
