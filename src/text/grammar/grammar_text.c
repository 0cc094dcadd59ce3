/* Grammar texts (doc/grammar.md). One pass over the bytes: each rule's expression is kept, and rules are drawn once all
 * are known, since a rule may be used before it is defined. Groups nest at most GRAMMAR_NEST_MAX deep, which also
 * bounds the recursion here. */
#include <stdlib.h>
#include <string.h>

#include "base/grow.h"
#include "base/hex.h"
#include "text/grammar/grammar_graph.h"
#include "text/tokenizer/utf8.h"

typedef struct { size_t name, len, used; uint32_t expr; } Named;   /* used: byte offset of the first use */

typedef struct {
    Graph    b;
    Exprs    x;
    const char *s, *name;
    size_t   n, at;
    Named   *rule;                                 /* [rules] in the order of the graph's rules */
    size_t cap; uint32_t *slot, n_slots;           /* rules by name */
    CharRange *set; uint32_t n_set; size_t cap_set;
    const GrammarSchema *schema; size_t n_schemas;
    SchemaSet *drawn;                              /* the schemas, opened when the first one is needed */
    uint32_t n_named;                              /* rules of the text itself; those of schemas follow them */
    Error   *err;
    Status   st;
} Text;

static uint32_t expression(Text *t, uint32_t depth);

static Status bad_at(Text *t, size_t at, Status st, const char *what)
{
    size_t line = 1, start = 0, column = 1;
    if (t->st != ST_OK) return t->st;
    for (size_t i = 0; i < at; i++)
        if (t->s[i] == '\n') {
            line++;
            start = i + 1;
        }
    for (size_t i = start; i < at; i++) column += ((uint8_t) t->s[i] & 0xc0) != 0x80;
    t->st = fail(t->err, st, "%s:%zu:%zu: %s", t->name, line, column, what);
    return t->st;
}

static bool bad(Text *t, const char *what)
{
    bad_at(t, t->at, ST_FORMAT, what);
    return false;
}

/* Returns false, with an error, if the graph exceeded a limit. */
static bool sound(Text *t)
{
    if (t->b.st != ST_OK) bad_at(t, t->at, t->b.st, t->b.why);
    return t->st == ST_OK;
}

static int peek(const Text *t) { return t->at < t->n ? (uint8_t) t->s[t->at] : -1; }

static bool is_name(int c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
}

static void skip(Text *t, bool lines)
{
    for (int c; (c = peek(t)) >= 0; t->at++) {
        if (c == '#') {
            while (t->at < t->n && t->s[t->at] != '\n') t->at++;
            if (!lines || t->at == t->n) return;
        } else if (!(c == ' ' || c == '\t' || (lines && (c == '\n' || c == '\r')))) return;
    }
}

/* ---- rules by name ---- */

static uint32_t hash_name(const char *s, size_t n)
{
    uint32_t h = 2166136261u;
    for (size_t i = 0; i < n; i++) h = (h ^ (uint8_t) s[i]) * 16777619u;
    return h ^ h >> 15;
}

static bool grow(Text *t)
{
    size_t cap = t->cap;
    bool more = grow_to(&t->rule, &cap, cap + 1, 32, sizeof *t->rule);
    uint32_t n_slots = 4 * (uint32_t) cap, *slot = more ? calloc(n_slots, sizeof *slot) : NULL;
    if (!slot) {
        graph_fail(&t->b, ST_MEMORY, "out of memory");
        return sound(t);
    }
    for (uint32_t i = 0; i < t->b.g->n_rules; i++) {
        uint32_t h = hash_name(t->s + t->rule[i].name, t->rule[i].len);
        while (slot[h & (n_slots - 1)]) h++;
        slot[h & (n_slots - 1)] = i + 1;
    }
    free(t->slot);
    t->slot = slot;
    t->n_slots = n_slots;
    t->cap = cap;
    return true;
}

/* The rule with this name, created on its first mention. */
static uint32_t rule_of(Text *t, size_t at, size_t len)
{
    uint32_t h = hash_name(t->s + at, len), id;
    for (; (id = t->slot[h & (t->n_slots - 1)]); h++)
        if (t->rule[id - 1].len == len && memcmp(t->s + t->rule[id - 1].name, t->s + at, len) == 0) return id - 1;
    id = graph_rule(&t->b);
    if (id == GRAPH_NONE) {
        sound(t);
        return GRAPH_NONE;
    }
    t->rule[id] = (Named) { at, len, at, GRAPH_NONE };
    t->slot[h & (t->n_slots - 1)] = id + 1;
    return t->b.g->n_rules == t->cap && !grow(t) ? GRAPH_NONE : id;
}

/* ---- characters ---- */

static bool character(Text *t, uint32_t *cp)
{
    if (peek(t) != '\\') {
        size_t len = utf8_next(t->s + t->at, t->n - t->at, cp);
        if (len == 0) return bad(t, "not well-formed UTF-8");
        t->at += len;
        return true;
    }
    t->at++;
    static const char plain[] = "n\nr\rt\t\\\\\"\"[[]]^^--''";
    int c = peek(t), digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    for (size_t i = 0; i + 1 < sizeof plain; i += 2)
        if (plain[i] == c) {
            t->at++;
            *cp = (uint8_t) plain[i + 1];
            return true;
        }
    if (digits == 0)
        return bad(t, "unknown escape; expected one of \\n \\r \\t \\\\ \\\" \\[ \\] \\xHH \\uHHHH \\UHHHHHHHH");
    t->at++;
    for (*cp = 0; digits > 0; digits--, t->at++) {
        int d = hex_value(peek(t));
        if (d < 0) return bad(t, "expected a hexadecimal digit");
        *cp = *cp << 4 | (uint32_t) d;
    }
    if (*cp > 0x10ffff || (*cp >= 0xd800 && *cp <= 0xdfff)) return bad(t, "this code is no Unicode character");
    return true;
}

static uint32_t literal(Text *t)
{
    uint32_t list = expr_new(&t->b, &t->x, EXPR_SEQ, GRAPH_NONE), cp;
    size_t start = t->at++;
    while (peek(t) != '"') {
        if (peek(t) < 0 || peek(t) == '\n') {
            bad_at(t, start, ST_FORMAT, "this text has no end; expected \" on the same line");
            return GRAPH_NONE;
        }
        if (!character(t, &cp)) return GRAPH_NONE;
        expr_append(&t->x, list, expr_new(&t->b, &t->x, EXPR_CHAR, graph_class(&t->b, &(CharRange) { cp, cp }, 1)));
        if (!sound(t)) return GRAPH_NONE;
    }
    t->at++;
    return list;
}

static bool add_range(Text *t, uint32_t lo, uint32_t hi)
{
    if (!grow_to(&t->set, &t->cap_set, (size_t) t->n_set + 1, 64, sizeof *t->set)) {
        graph_fail(&t->b, ST_MEMORY, "out of memory");
        return sound(t);
    }
    t->set[t->n_set++] = (CharRange) { lo, hi };
    return true;
}

static int by_low(const void *a, const void *b)
{
    uint32_t x = ((const CharRange *) a)->lo, y = ((const CharRange *) b)->lo;
    return (x > y) - (x < y);
}

/* Replaces the set by its complement. */
static bool negate(Text *t)
{
    uint32_t n = t->n_set, from = 0;
    if (n > 1) qsort(t->set, n, sizeof *t->set, by_low);
    for (uint32_t i = 0; i < n; i++) {
        CharRange r = t->set[i];
        if (r.lo > from && !add_range(t, from, r.lo - 1)) return false;
        if (r.hi + 1 > from) from = r.hi + 1;
    }
    if (from <= 0x10ffff && !add_range(t, from, 0x10ffff)) return false;
    t->n_set -= n;
    if (t->n_set) memmove(t->set, t->set + n, t->n_set * sizeof *t->set);
    return true;
}

static uint32_t char_class(Text *t)
{
    size_t start = t->at++;
    bool not = peek(t) == '^';
    t->at += not;
    t->n_set = 0;
    while (peek(t) != ']') {
        uint32_t lo, hi;
        size_t at = t->at;
        if (peek(t) < 0 || peek(t) == '\n') {
            bad_at(t, start, ST_FORMAT, "this class has no end; expected ] on the same line");
            return GRAPH_NONE;
        }
        if (!character(t, &lo)) return GRAPH_NONE;
        hi = lo;
        if (peek(t) == '-' && t->at + 1 < t->n && t->s[t->at + 1] != ']') {
            t->at++;
            if (peek(t) == '\n' || !character(t, &hi)) {
                bad(t, "expected the end of a range");
                return GRAPH_NONE;
            }
            if (hi < lo) {
                bad_at(t, at, ST_FORMAT, "the range ends before it begins");
                return GRAPH_NONE;
            }
        }
        if (!add_range(t, lo, hi)) return GRAPH_NONE;
    }
    t->at++;
    if (t->n_set == 0 && !not) {
        bad_at(t, start, ST_FORMAT, "an empty class matches nothing");
        return GRAPH_NONE;
    }
    if (not && !negate(t)) return GRAPH_NONE;
    uint32_t e = expr_new(&t->b, &t->x, EXPR_CHAR, graph_class(&t->b, t->set, t->n_set));
    return sound(t) ? e : GRAPH_NONE;
}

/* ---- expressions ---- */

static bool number(Text *t, uint32_t *out)
{
    if (peek(t) < '0' || peek(t) > '9') return bad(t, "expected a number");
    for (*out = 0; peek(t) >= '0' && peek(t) <= '9'; t->at++) {
        *out = 10 * *out + (uint32_t) (peek(t) - '0');
        if (*out > GRAMMAR_NODES_MAX) return bad(t, "a repetition is at most 1048576");
    }
    return true;
}

/* "", "?", "*", "+", "{m}", "{m,}", "{m,n}" after a part. */
static uint32_t repeated(Text *t, uint32_t part)
{
    uint32_t min = 1, max = 1;
    size_t start = t->at;
    int c = peek(t);
    if (c == '?') min = 0;
    else if (c == '*') min = 0, max = GRAPH_NONE;
    else if (c == '+') max = GRAPH_NONE;
    else if (c != '{') return part;
    t->at++;
    if (c == '{') {
        skip(t, true);
        if (!number(t, &min)) return GRAPH_NONE;
        max = min;
        skip(t, true);
        if (peek(t) == ',') {
            t->at++;
            skip(t, true);
            max = GRAPH_NONE;
            if (peek(t) != '}' && !number(t, &max)) return GRAPH_NONE;
            skip(t, true);
        }
        if (peek(t) != '}') {
            bad(t, "expected } after a repetition");
            return GRAPH_NONE;
        }
        t->at++;
        if (max < min) {
            bad_at(t, start, ST_FORMAT, "the most is less than the least");
            return GRAPH_NONE;
        }
    }
    c = peek(t);
    if (c == '?' || c == '*' || c == '+' || c == '{') {
        bad(t, "a repetition of a repetition needs parentheses");
        return GRAPH_NONE;
    }
    uint32_t e = expr_new(&t->b, &t->x, EXPR_REPEAT, part);
    if (!sound(t)) return GRAPH_NONE;
    t->x.at[e].min = min;
    t->x.at[e].max = max;
    return e;
}

static uint32_t part(Text *t, uint32_t depth)
{
    int c = peek(t);
    if (c == '"') return literal(t);
    if (c == '[') return char_class(t);
    if (c == '.') {
        t->at++;
        return expr_new(&t->b, &t->x, EXPR_CHAR, graph_class(&t->b, &(CharRange) { 0, 0x10ffff }, 1));
    }
    if (c == '(') {
        size_t start = t->at++;
        if (depth == GRAMMAR_NEST_MAX) {
            bad_at(t, start, ST_FORMAT, "groups are nested deeper than 100");
            return GRAPH_NONE;
        }
        uint32_t e = expression(t, depth + 1);
        if (t->st == ST_OK && peek(t) != ')') bad_at(t, start, ST_FORMAT, "this group has no end; expected )");
        t->at++;
        return t->st == ST_OK ? e : GRAPH_NONE;
    }
    if (is_name(c)) {
        size_t start = t->at;
        while (is_name(peek(t))) t->at++;
        uint32_t r = rule_of(t, start, t->at - start);
        return r == GRAPH_NONE ? r : expr_new(&t->b, &t->x, EXPR_RULE, r);
    }
    if (c == '?' || c == '*' || c == '+' || c == '{') bad(t, "a repetition has nothing before it");
    else if (c == '<' || c == '!') bad(t, "tokens cannot be named in a grammar, only characters");
    else bad(t, "expected a text, a class, a rule's name or (");
    return GRAPH_NONE;
}

/* A name followed by ::= begins the next rule. */
static bool rule_begins(const Text *t)
{
    size_t at = t->at;
    while (at < t->n && is_name((uint8_t) t->s[at])) at++;
    if (at == t->at) return false;
    while (at < t->n && (t->s[at] == ' ' || t->s[at] == '\t')) at++;
    return t->n - at >= 3 && memcmp(t->s + at, "::=", 3) == 0;
}

/* Sequences of parts, with bars between alternatives, up to the end of the group or the text, or the next rule. Outside
 * groups a line end also ends the rule, unless a bar stands before or after it. */
static uint32_t expression(Text *t, uint32_t depth)
{
    uint32_t alt = expr_new(&t->b, &t->x, EXPR_ALT, GRAPH_NONE), seq = expr_new(&t->b, &t->x, EXPR_SEQ, GRAPH_NONE);
    skip(t, true);
    while (sound(t)) {
        int c = peek(t);
        if (c < 0 || c == ')' || (depth == 0 && rule_begins(t))) break;
        if (c == '\n' || c == '\r') {
            skip(t, true);
            c = peek(t);
            if (c != '|' && !(c < 0 || rule_begins(t)))
                bad(t, "expected a rule (name ::= ...) or | at the beginning of a line outside of groups");
            if (c != '|') break;
        }
        if (c == '|') {
            t->at++;
            expr_append(&t->x, alt, seq);
            seq = expr_new(&t->b, &t->x, EXPR_SEQ, GRAPH_NONE);
            skip(t, true);
            continue;
        }
        uint32_t p = part(t, depth);
        if (p != GRAPH_NONE) p = repeated(t, p);
        expr_append(&t->x, seq, p);
        if (t->st == ST_OK) skip(t, depth > 0);
    }
    expr_append(&t->x, alt, seq);
    return sound(t) ? alt : GRAPH_NONE;
}

static bool one_rule(Text *t)
{
    size_t start = t->at;
    while (is_name(peek(t))) t->at++;
    size_t len = t->at - start;
    if (len == 0) return bad(t, "expected a rule: name ::= ...");
    uint32_t r = rule_of(t, start, len);
    if (r == GRAPH_NONE) return false;
    skip(t, false);
    if (t->n - t->at < 3 || memcmp(t->s + t->at, "::=", 3) != 0) return bad(t, "expected ::= after a rule's name");
    if (t->rule[r].expr != GRAPH_NONE) {
        bad_at(t, start, ST_FORMAT, "this rule was defined before");
        return false;
    }
    t->at += 3;
    uint32_t e = expression(t, 0);
    if (t->st == ST_OK && peek(t) == ')') return bad(t, "this ) closes nothing");
    t->rule[r].expr = e;
    t->rule[r].name = start;
    skip(t, true);
    return t->st == ST_OK;
}

/* A rule that the text does not define may be a schema or a byte. */
static bool draw_schema(Text *t, uint32_t r)
{
    uint32_t rule;
    const Named *named = &t->rule[r];
    for (size_t i = 0; i < t->n_schemas; i++) {
        const GrammarSchema *g = &t->schema[i];
        if (strlen(g->rule) != named->len || memcmp(g->rule, t->s + named->used, named->len) != 0) continue;
        if (!g->schema) {
            rule = graph_byte(&t->b, g->lo, g->hi, NODE_DONE);
            t->b.g->rule[r].start = rule;
            return sound(t);
        }
        if (!t->drawn) t->st = schema_set_open(&t->drawn, &t->b, t->name, t->err);
        if (t->st == ST_OK) t->st = schema_set_draw(t->drawn, g, &rule);
        if (t->st != ST_OK) return false;
        uint32_t start = graph_call(&t->b, rule, NODE_DONE);
        t->b.g->rule[r].start = start;
        return sound(t);
    }
    bad_at(t, named->used, ST_FORMAT, "this rule is defined nowhere");
    return false;
}

static bool read_rules(Text *t)
{
    if (rule_of(t, t->n, 4) != 0) return false;    /* the name "root" is stored after the text */
    skip(t, true);
    while (t->at < t->n)
        if (!one_rule(t)) return false;
    if (t->rule[0].expr == GRAPH_NONE) return bad(t, "there is no rule root, with which a text begins");
    t->n_named = t->b.g->n_rules;
    for (uint32_t r = 0; r < t->n_named; r++) {
        if (t->rule[r].expr == GRAPH_NONE) {
            if (!draw_schema(t, r)) return false;
            continue;
        }
        t->at = t->rule[r].name;
        uint32_t start = expr_draw(&t->b, &t->x, t->rule[r].expr, false, NODE_DONE);
        if (!sound(t)) return false;
        t->b.g->rule[r].start = start;
    }
    return true;
}

Status grammar_parse(Grammar **out, const char *s, size_t n, const char *name, Error *err)
{
    return grammar_compose(out, s, n, name, NULL, 0, err);
}

Status grammar_compose(Grammar **out, const char *s, size_t n, const char *name, const GrammarSchema *schema,
                       size_t n_schemas, Error *err)
{
    Text t = { .name = name, .err = err, .n = n, .cap = 32, .n_slots = 128, .schema = schema, .n_schemas = n_schemas };
    *out = NULL;
    if (n >= 3 && memcmp(s, "\xef\xbb\xbf", 3) == 0) {
        s += 3;
        t.n = n -= 3;
    }
    if (n > GRAMMAR_TEXT_MAX)
        return fail(err, ST_FORMAT, "%s: a grammar of %zu bytes, expected at most %d", name, n, GRAMMAR_TEXT_MAX);
    TRY(graph_open(&t.b, err));
    char *text = malloc(n + 4);
    t.rule = malloc(t.cap * sizeof *t.rule);
    t.slot = calloc(t.n_slots, sizeof *t.slot);
    if (!text || !t.rule || !t.slot) t.st = fail(err, ST_MEMORY, "%s: out of memory", name);
    if (t.st == ST_OK) {
        if (n) memcpy(text, s, n);
        memcpy(text + n, "root", 4);
        t.s = text;
        read_rules(&t);
    }
    if (t.st == ST_OK) {
        uint32_t rule;
        const char *why;
        Status st = graph_finish(out, &t.b, &rule, &why);
        if (st != ST_OK && rule != GRAPH_NONE && rule >= t.n_named) {
            t.st = schema_set_blame(t.drawn, rule, st, why);
        } else if (st != ST_OK) {
            char line[ERROR_TEXT];
            snprintf(line, sizeof line, "rule %.*s: %s",
                     (int) (rule == GRAPH_NONE ? 4 : t.rule[rule].len < 64 ? t.rule[rule].len : 64),
                     rule == GRAPH_NONE ? "root" : text + t.rule[rule].name, why);
            bad_at(&t, rule == GRAPH_NONE ? 0 : t.rule[rule].name, st, line);
        }
    } else {
        graph_drop(&t.b);
    }
    schema_set_close(t.drawn);
    free(t.x.at);
    free(t.rule);
    free(t.slot);
    free(t.set);
    free(text);
    return t.st;
}
