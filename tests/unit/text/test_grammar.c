/* Grammars: the texts they accept, by tables and against the simplest possible recogniser; the tokens they allow,
 * against trying every token; responses to schemas and to bad input. */
#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>

#include "alloc_fault.h"
#include "base/json.h"
#include "text/grammar/grammar_automaton.h"
#include "text/grammar/grammar_mask.h"

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static uint64_t seed;
static uint32_t draw(uint32_t n)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t) (seed >> 33) % n;
}

static Grammar *parsed(const char *text)
{
    Grammar *g;
    Error err = { 0 };
    if (grammar_parse(&g, text, strlen(text), "g", &err) != ST_OK) fail_msg("%s\n%s", err.text, text);
    return g;
}

static Grammar *schemed(const char *text)
{
    Grammar *g;
    json_t *j;
    Error err = { 0 };
    if (json_read(&j, text, strlen(text), "s", &err) != ST_OK || grammar_schema(&g, j, "s", &err) != ST_OK)
        fail_msg("%s\n%s", err.text, text);
    json_decref(j);
    return g;
}

/* Returns 0 if s is refused somewhere, 1 if it is a beginning, 2 if it is a whole text. */
static int read_text(Automaton *a, const char *s, size_t n)
{
    uint32_t at = automaton_start(a);
    StateHolder h = { .id = &at, .n = 1 };
    automaton_hold(a, &h);
    for (size_t i = 0; i < n && at != STATE_DEAD; i++) automaton_step(a, &at, &at, (uint8_t) s[i]);
    automaton_let_go(a, &h);
    return at == STATE_DEAD ? 0 : automaton_accepts(a, at) ? 2 : 1;
}

static Automaton *opened(const Grammar *g)
{
    Automaton *a;
    Error err = { 0 };
    if (automaton_open(&a, g, 4 << 20, &err) != ST_OK) fail_msg("%s", err.text);
    return a;
}

static void expect(const Grammar *g, const char *what, const char *const *yes, const char *const *no)
{
    Automaton *a = opened(g);
    for (; *yes; yes++)
        if (read_text(a, *yes, strlen(*yes)) != 2) fail_msg("%s\nshould accept '%s'", what, *yes);
    for (; *no; no++)
        if (read_text(a, *no, strlen(*no)) == 2) fail_msg("%s\nshould refuse '%s'", what, *no);
    automaton_close(a);
}

/* ---- grammar texts ---- */

#define TEXTS(...) (const char *const[]) { __VA_ARGS__, NULL }
#define NOTHING (const char *const[]) { NULL }

static void texts(void **state)
{
    static const struct { const char *grammar; const char *yes[8], *no[8]; } rows[] = {
        { "root ::= \"a\"", { "a" }, { "", "b", "aa" } },
        { "root ::= \"a\" | \"bc\" |", { "a", "bc", "" }, { "b", "ab" } },
        { "root ::= [a-c]+ [^0-9x]", { "ab", "aaa\xc3\xa9", "c\n" }, { "a", "a0", "ax", "d!" } },
        { "root ::= x{2} y{1,} z{0,2}\nx ::= \"x\"\ny::=\"y\"\n  z ::= \"z\" # end", { "xxy", "xxyyyz", "xxyzz" },
          { "xy", "xx", "xxyzzz" } },
        { "root ::= (\"a\" | \"b\"\n  \"c\")* \"\"? # comment\n\n", { "", "abc", "bcbca" }, { "b", "c" } },
        { "root ::= \"\\x41\\u00e9\\U0001F642\\n\\t\\\\\\\"\"", { "A\xc3\xa9\xf0\x9f\x99\x82\n\t\\\"" }, { "A" } },
        { "root ::= [\\]\\\\\\-^a-]{5}", { "]\\-^a", "-----" }, { "]\\-^b" } },
        { "root ::= .+", { "x", "\n", "\xe4\xbd\xa0\xf0\x9f\x99\x82" },
          { "", "\xff", "\xc0\x80", "\xed\xa0\x80", "\xe0\x80\x80", "\xf4\x90\x80\x80", "\xf0\x80\x80\x80" } },
        { "root ::= [\xc3\xa9-\xe4\xbd\xa0]", { "\xc3\xa9", "\xc3\xbf", "\xe4\xbd\xa0", "\xe0\xa0\x80" },
          { "\xc3\xa8", "\xe4\xbd\xa1", "\xc3", "a" } },
        { "root ::= [^a-zm]{2}", { "A1", "{`" }, { "An", "nA", "mm", "Az" } },
        { "root ::= [^\\u00e9]", { "e", "\xc3\xa8", "\xf0\x9f\x99\x82" }, { "\xc3\xa9", "" } },
        { "root ::= s\ns ::= \"(\" s \")\" s | \"\"", { "", "()", "(())()" }, { "(", "())", ")" } },
        { "root ::= list\nlist ::= item | item \",\" list\nitem ::= [0-9]+", { "1", "1,22,3" }, { "", "1,", ",1" } },
        { "root ::= e e\ne ::= \"a\"? \"b\"?", { "", "a", "ab", "abab", "aa", "bb", "ba" }, { "bba", "aaa" } },
        { "root ::= p\np ::= \"a\" p \"a\" | \"b\" p \"b\" | \"c\"", { "c", "abcba", "aacaa" },
          { "abcab", "acb", "aca a" } },
        { "root ::= never | \"x\"\nnever ::= \"a\" never", { "x" }, { "a", "aa" } },
        { "\xef\xbb\xbfroot ::= (((\"a\"?)*)+){0,3}", { "", "aaaa" }, { "b" } },
        { "root   ::= r-1_x\n  | \"z\"\nr-1_x ::= \"y\"\r\n", { "y", "z" }, { "x" } },
        { "root ::= \"\" | a\na ::= \"1\" a \"1\" | \"1\" a \"2\" | \"3\"", { "", "3", "131", "11322", "1113121" },
          { "13", "11" } },
    };
    (void) state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Grammar *g = parsed(rows[i].grammar);
        const char *yes[9] = { 0 }, *no[9] = { 0 };
        memcpy(yes, rows[i].yes, sizeof rows[i].yes);
        memcpy(no, rows[i].no, sizeof rows[i].no);
        if (!yes[0]) yes[0] = NULL;
        expect(g, rows[i].grammar, yes, no);
        grammar_free(g);
    }
}

static void nested_groups(void **state)
{
    (void) state;
    for (int depth = 99; depth < 103; depth++) {
        Grammar *g;
        Error err = { 0 };
        char text[300] = "root ::= ";
        for (int i = 0; i < depth; i++) strcat(text, "(");
        strcat(text, "\"a\"");
        for (int i = 0; i < depth; i++) strcat(text, ")");
        Status st = grammar_parse(&g, text, strlen(text), "g", &err);
        assert_int_equal(st, depth > 100 ? ST_FORMAT : ST_OK);
        if (st != ST_OK) assert_non_null(strstr(err.text, "g:1:110: groups are nested deeper than 100"));
        grammar_free(g);
    }
}

static void bad_texts(void **state)
{
    static const char *const rows[][2] = {
        { "", "g:1:1: there is no rule root" }, { "x ::= \"a\"", "there is no rule root" },
        { "root ::= \"a", "g:1:10: this text has no end" },
        { "root ::= [a", "g:1:10: this class has no end" },
        { "root ::= [z-a]", "g:1:11: the range ends before it begins" }, { "root ::= []", "an empty class" },
        { "root ::= (\"a\"", "g:1:10: this group has no end" }, { "root ::= \"a\")", "g:1:13: this ) closes nothing" },
        { "root ::= *", "g:1:10: a repetition has nothing before it" },
        { "root ::= \"a\" | +", "a repetition has nothing" },
        { "root ::= \"a\"{3,2}", "the most is less than the least" }, { "root ::= \"a\"{,2}", "expected a number" },
        { "root ::= \"a\"{99999999}", "at most 1048576" }, { "root ::= \"a\"**", "needs parentheses" },
        { "root ::= b\n\nb ::= c | \"\xc3\xa9\" d", "g:3:7: this rule is defined nowhere" },
        { "root ::= \"a\"\nroot ::= \"b\"", "g:2:1: this rule was defined before" }, { "root = \"a\"", "expected ::=" },
        { "root ::= \"\\q\"", "unknown escape" },
        { "root ::= \"\\xg\"", "hexadecimal" }, { "root ::= \"\\ud800\"", "no Unicode character" },
        { "root ::= \"\\udfff\"", "no Unicode character" }, { "root ::= \"\\U00110000\"", "no Unicode character" },
        { "root ::= \"\xff\"", "not well-formed UTF-8" },
        { "root ::= root \"a\" | \"b\"", "g:1:1: rule root: it can begin with itself" },
        { "root ::= a\na ::= \"\"? b\nb ::= \"x\"* a \"y\" | \"z\"", "it can begin with itself" },
        { "root ::= \"a\" root", "rule root: no text satisfies it" },
        { "root ::= a\na ::= [^\\U00000000-\\U0010FFFF]", "no text satisfies it" },
        { "root ::= <think>", "tokens cannot be named" }, { "root ::= \"a\"\n\"b\"", "g:2:1: expected a rule" },
        { "root ::= ((\"a\"{1000}){1000}){1000}", "too" }, { "root ::= (\"\"{1048576}){1048576}", "too many steps" },
        { "5 6", "expected ::=" }, { "root ::= !a", "tokens" }, { "=", "expected a rule" },
    };
    (void) state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Grammar *g;
        Error err = { 0 };
        Status st = grammar_parse(&g, rows[i][0], strlen(rows[i][0]), "g", &err);
        if (st != ST_FORMAT || !strstr(err.text, rows[i][1]))
            fail_msg("'%s' gave %d '%s', expected '%s'", rows[i][0], st, err.text, rows[i][1]);
        assert_null(g);
    }
    /* Nesting is bounded, in time too. */
    enum { N = 60000 };
    char *deep = malloc(N + 16);
    Grammar *g;
    Error err = { 0 };
    memcpy(deep, "root ::= ", 9);
    memset(deep + 9, '(', N);
    assert_int_equal(grammar_parse(&g, deep, N + 9, "g", &err), ST_FORMAT);
    assert_non_null(strstr(err.text, "nested deeper than 100"));
    free(deep);
}

/* ---- against the plainest recogniser ---- */

/* A random expression, as text and as a tree. */
typedef struct Tree Tree;
/* type: 'c' class, 's' sequence, 'a' alternatives, 'r' repeat, 'u' rule */
struct Tree { int type, min, max, rule; char lo, hi; Tree *part[3]; int n; };
static Tree trees[4096];
static int n_trees;
static Tree *rules[4];
static char *to;

static Tree *random_tree(int depth, bool may_call)
{
    Tree *t = &trees[n_trees++];
    *t = (Tree) { 0 };
    uint32_t kind = depth == 0 ? draw(2) : draw(6);
    if (kind < 2) {
        if (kind == 1 && may_call && draw(2)) {
            t->type = 'u';
            t->rule = (int) draw(4);
            to += sprintf(to, " r%d ", t->rule);
            return t;
        }
        t->type = 'c';
        t->lo = (char) ('a' + draw(3));
        t->hi = (char) ('a' + draw(3));
        if (t->hi < t->lo) t->hi = t->lo;
        to += t->lo == t->hi ? sprintf(to, "\"%c\" ", t->lo) : sprintf(to, "[%c-%c] ", t->lo, t->hi);
    } else if (kind < 4) {
        t->type = 's';
        t->n = (int) draw(4);
        if (t->n > 3) t->n = 3;
        to += sprintf(to, "(");
        for (int i = 0; i < t->n; i++) t->part[i] = random_tree(depth - 1, may_call || i > 0);
        to += sprintf(to, ")");
    } else if (kind == 4) {
        t->type = 'a';
        t->n = 2;
        to += sprintf(to, "(");
        for (int i = 0; i < t->n; i++) {
            if (i) to += sprintf(to, "|");
            t->part[i] = random_tree(depth - 1, may_call);
        }
        to += sprintf(to, ")");
    } else {
        static const struct {
            int min, max;
            const char *s;
        } times[] = { { 0, 1, "?" }, { 0, 99, "*" }, { 1, 99, "+" }, { 2, 2, "{2}" }, { 1, 3, "{1,3}" },
                      { 2, 99, "{2,}" } };
        uint32_t i = draw(6);
        t->type = 'r';
        t->min = times[i].min;
        t->max = times[i].max;
        to += sprintf(to, "(");
        t->part[0] = random_tree(depth - 1, may_call);
        to += sprintf(to, ")%s ", times[i].s);
    }
    return t;
}

/* The set of places where a match of t from `at` can end, as bits. Rules are asked for with what has been read
 * since their call, so that recursion without progress, which the compiler refuses, would be seen as an overflow
 * of `fuel`. */
static int fuel;
static uint32_t ends(const Tree *t, const char *s, int n, int at)
{
    if (--fuel < 0) return 0;
    uint32_t out = 0, now;
    switch (t->type) {
    case 'c': return at < n && s[at] >= t->lo && s[at] <= t->hi ? 1u << (at + 1) : 0;
    case 'u': return ends(rules[t->rule], s, n, at);
    case 'a': return ends(t->part[0], s, n, at) | ends(t->part[1], s, n, at);
    case 's':
        now = 1u << at;
        for (int i = 0; i < t->n; i++) {
            uint32_t next = 0;
            for (int k = 0; k <= n; k++)
                if (now >> k & 1) next |= ends(t->part[i], s, n, k);
            now = next;
        }
        return now;
    default:
        now = 1u << at;
        if (t->min == 0) out = now;
        for (int times = 1; times <= t->max && times <= n + t->min + 1; times++) {
            uint32_t next = 0;
            for (int k = 0; k <= n; k++)
                if (now >> k & 1) next |= ends(t->part[0], s, n, k);
            now = next;
            if (times >= t->min) out |= now;
        }
        return out;
    }
}

static void random_grammars(void **state)
{
    enum { LENGTH = 6 };
    int used = 0, refused = 0, whole = 0;
    (void) state;
    seed = 5;
    for (int round = 0; round < 1500; round++) {
        char text[65536];
        to = text;
        n_trees = 0;
        for (int r = 0; r < 4; r++) {
            to += sprintf(to, "r%d ::= ", r);
            rules[r] = random_tree(3, false);
            to += sprintf(to, "\n");
        }
        to += sprintf(to, "root ::= r0\n");
        Grammar *g;
        Error err = { 0 };
        if (grammar_parse(&g, text, strlen(text), "g", &err) != ST_OK) {
            if (!strstr(err.text, "begin with itself") && !strstr(err.text, "no text"))
                fail_msg("%s\n%s", err.text, text);
            refused++;
            continue;
        }
        used++;
        Automaton *a = opened(g);
        for (int i = 0; i < 300; i++) {
            char s[LENGTH + 1];
            int n = (int) draw(LENGTH + 1);
            for (int k = 0; k < n; k++) s[k] = (char) ('a' + draw(3));
            fuel = 2000000;
            bool yes = ends(rules[0], s, n, 0) >> n & 1;
            if (fuel < 0) continue;
            int got = read_text(a, s, (size_t) n);
            if ((got == 2) != yes) fail_msg("%s'%.*s': the automaton says %d, the recogniser %d", text, n, s, got, yes);
            whole += yes;
        }
        /* Every text that can go on can come to an end: breadth first from random beginnings. */
        for (int i = 0; i < 5; i++) {
            uint32_t at[600] = { automaton_start(a) };
            size_t n = 1;
            StateHolder h = { .id = at, .n = 600 };
            automaton_hold(a, &h);
            for (int k = 0; k < 4; k++)
                automaton_step(a, &at[599], &at[0], (uint8_t) ('a' + draw(3))), at[0] = at[599] ? at[599] : at[0];
            at[599] = STATE_DEAD;
            bool found = automaton_accepts(a, at[0]);
            for (size_t k = 0; k < n && !found; k++)
                for (int c = 'a'; c <= 'c' && n < 598; c++) {
                    automaton_step(a, &at[n], &at[k], (uint8_t) c);
                    found |= automaton_accepts(a, at[n]);
                    if (at[n] != STATE_DEAD) n++;
                }
            automaton_let_go(a, &h);
            if (!found && n < 598) fail_msg("%sgoes into a dead end", text);
        }
        automaton_close(a);
        grammar_free(g);
    }
    printf("%d grammars, %d refused, %d texts accepted\n", used, refused, whole);
    assert_true(used > 300 && whole > 3000);
}

/* ---- masks ---- */

enum { VOCAB = 700 };
typedef struct { char s[VOCAB][12]; size_t n[VOCAB]; } Words;

static const char *word_bytes(void *ud, int32_t id, size_t *n)
{
    Words *w = ud;
    *n = w->n[id];
    return w->s[id];
}

static bool word_ends(void *ud, int32_t id) { return (void) ud, id == 1 || id == VOCAB - 2; }

/* Every byte, then pieces of JSON, of characters, of anything. Length 0: a control token. */
static void random_words(Words *w)
{
    static const char *const bits[] = { "{", "}", "[", "]", "\"", ":", ",", " ", "\n", "a", "b", "c", "ab", "name",
                                        "age", "1", "0", "23", "-", ".", "e", "true", "null", "\\", "u00", "\xc3\xa9",
                                        "\xe4\xbd\xa0", "\xe4\xbd", "\xbd\xa0", "\xf0\x9f\x99\x82", "\xf0\x9f",
                                        "\x99\x82", "\xe0\xa0", "\xed\xa0\x80", "\xff" };
    *w = (Words) { 0 };
    for (int i = 0; i < 256; i++) w->n[i + 2] = 1, w->s[i + 2][0] = (char) i;
    for (int i = 258; i < VOCAB; i++)
        for (int k = (int) draw(4); k >= 0; k--) {
            const char *b = bits[draw(sizeof bits / sizeof *bits)];
            if (w->n[i] + strlen(b) > sizeof *w->s) break;
            memcpy(w->s[i] + w->n[i], b, strlen(b));
            w->n[i] += strlen(b);
        }
    w->n[300] = 0;
}

static const char *const MASK_GRAMMARS[] = {
    "root ::= .*",
    "root ::= [a-c ]* \"\\\"\"", "root ::= \"\\\"\" ([^\"\\\\] | \"\\\\\" [\"u])* \"\\\"\"", "root ::= .{0,20} \"]\"",
    "root ::= [a-z]{3,9} (\",\" [0-9]+)*",
    "root ::= \"[\" (root (\",\" root)*)? \"]\" | [0-9]+", "root ::= [\\u4e00-\\u9fff]+ | [^\\x00-\\x7f]{2,} \"a\"",
    "root ::= s\ns ::= \"a\" s \"b\" | \"a\" s \"c\" | \"\"",
};
/* Tokens below a single first byte: characters, and among them bytes that are not valid. */
static const char *const MASK_WORDS[8] = { "qa", "qb", "qab", "qabc", "q\xc0\x80", "qbc", "qx", "qxy" };
static const char *const MASK_SCHEMAS[] = {
    "{\"type\":\"object\"}", "{}", "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\","
    "\"maxLength\":8},\"age\":{\"type\":\"integer\",\"minimum\":1,\"maximum\":230}},\"required\":[\"name\"]}",
    "{\"type\":\"array\",\"items\":{\"enum\":[\"a\",\"ab\",\"b\",null,23]},\"minItems\":2}",
    "{\"type\":\"string\",\"pattern\":\"^[a-c\\u00e9]{2,}$\"}",
    "{\"type\":\"object\",\"properties\":{\"a\":{}},\"additionalProperties\":{\"type\":\"number\"}}",
};

static void compare_masks(const Grammar *g, const char *what, Words *w, size_t bytes)
{
    TokenTrie *t;
    GrammarMasks *m;
    GrammarText *x;
    Error err = { 0 };
    TokenSource from = { .ud = w, .bytes = word_bytes, .ends = word_ends };
    assert_int_equal(token_trie_open(&t, VOCAB, &from, &err), ST_OK);
    if (grammar_masks_open(&m, g, t, bytes, &err) != ST_OK) fail_msg("%s", err.text);
    assert_int_equal(grammar_text_open(&x, m, 64, &err), ST_OK);
    Automaton *plain = opened(g);
    char text[2048];
    size_t len = 0, at[65] = { 0 };
    for (int step = 0; step < 40; step++) {
        int32_t path[3], n_path = (int32_t) draw(3), n = 0, allowed[VOCAB], n_allowed;
        size_t start = len;
        uint32_t bits[(VOCAB + 31) / 32];
        for (;; n++) {                             /* along a path of allowed tokens, then append one of them */
            bool ended = !grammar_text_mask(x, path, (size_t) n, bits);
            if (ended) break;
            n_allowed = 0;
            int whole = read_text(plain, text, len);
            for (int32_t id = 0; id < VOCAB; id++) {
                bool bit = bits[id / 32] >> id % 32 & 1, yes = word_ends(NULL, id) ? whole == 2 : false;
                if (!word_ends(NULL, id) && w->n[id]) {
                    memcpy(text + len, w->s[id], w->n[id]);
                    yes = read_text(plain, text, len + w->n[id]) != 0;
                }
                if (bit != yes)
                    fail_msg("%s\nafter '%.*s' token %d '%.*s' is %d, expected %d", what, (int) len, text, id,
                             (int) w->n[id], w->s[id], bit, yes);
                if (yes && !word_ends(NULL, id)) allowed[n_allowed++] = id;
            }
            if (n == n_path || n_allowed == 0) break;
            path[n] = allowed[draw((uint32_t) n_allowed)];
            memcpy(text + len, w->s[path[n]], w->n[path[n]]);
            len += w->n[path[n]];
        }
        len = start;
        for (int32_t i = 0; i < n; i++) {
            assert_true(grammar_text_append(x, path[i]));
            memcpy(text + len, w->s[path[i]], w->n[path[i]]);
            len += w->n[path[i]];
            at[grammar_text_length(x)] = len;
        }
        assert_false(grammar_text_append(x, 300));
        if (draw(4) == 0 || grammar_text_length(x) > 40) {
            int32_t keep = (int32_t) draw((uint32_t) grammar_text_length(x) + 1);
            grammar_text_keep(x, keep);
            len = at[keep];
        }
        int whole = read_text(plain, text, len);
        assert_int_equal(grammar_text_may_end(x), whole == 2);
    }
    automaton_close(plain);
    grammar_text_close(x);
    grammar_masks_close(m);
    token_trie_close(t);
}

static void masks(void **state)
{
    static Words w;
    (void) state;
    seed = 11;
    for (int round = 0; round < 12; round++) {
        random_words(&w);
        for (int i = 0; i < 8; i++) w.n[258 + i] = (size_t) snprintf(w.s[258 + i], sizeof w.s[0], "%s", MASK_WORDS[i]);
        for (size_t i = 0; i < sizeof MASK_GRAMMARS / sizeof *MASK_GRAMMARS; i++) {
            Grammar *g = parsed(MASK_GRAMMARS[i]);
            compare_masks(g, MASK_GRAMMARS[i], &w, round % 2 ? 0 : 1);
            grammar_free(g);
        }
        for (size_t i = 0; i < sizeof MASK_SCHEMAS / sizeof *MASK_SCHEMAS; i++) {
            Grammar *g = schemed(MASK_SCHEMAS[i]);
            compare_masks(g, MASK_SCHEMAS[i], &w, round % 2 ? 0 : 1);
            grammar_free(g);
        }
    }
}

/* An end token ends the text: nothing may follow, and queries past it are not counted. */
static void ends_of_texts(void **state)
{
    static Words w;
    (void) state;
    seed = 3;
    random_words(&w);
    Grammar *g = parsed("root ::= \"a\" \"b\"?");
    TokenTrie *t;
    GrammarMasks *m;
    GrammarText *x;
    Error err = { 0 };
    uint32_t bits[(VOCAB + 31) / 32];
    TokenSource from = { .ud = &w, .bytes = word_bytes, .ends = word_ends };
    assert_int_equal(token_trie_open(&t, VOCAB, &from, &err), ST_OK);
    assert_int_equal(grammar_masks_open(&m, g, t, 0, &err), ST_OK);
    assert_int_equal(grammar_text_open(&x, m, 3, &err), ST_OK);
    assert_false(grammar_text_append(x, 1));
    assert_true(grammar_text_append(x, 2 + 'a'));
    assert_true(grammar_text_may_end(x) && !grammar_text_done(x));
    assert_true(grammar_text_mask(x, (int32_t[]) { 2 + 'b' }, 1, bits));
    assert_int_equal(bits[0], 1u << 1);            /* only the end tokens */
    assert_false(grammar_text_mask(x, (int32_t[]) { 2 + 'b', 1 }, 2, bits));
    assert_false(grammar_text_mask(x, (int32_t[]) { 1, 77 }, 2, bits));
    assert_true(grammar_text_append(x, 2 + 'b') && grammar_text_done(x));
    assert_false(grammar_text_append(x, 2 + 'b'));
    assert_true(grammar_text_append(x, VOCAB - 2) && grammar_text_done(x));
    assert_false(grammar_text_append(x, 1));
    grammar_text_keep(x, 1);
    assert_true(grammar_text_append(x, 1) && !grammar_text_append(x, 2 + 'b'));
    grammar_text_close(x);
    grammar_masks_close(m);
    token_trie_close(t);
    grammar_free(g);
}

/* States and contexts that no longer fit are forgotten; the text goes on as before, even from places whose state was
 * forgotten. */
static void forgetting(void **state)
{
    static Words w;
    enum { N = 3000 };
    (void) state;
    seed = 9;
    random_words(&w);
    Grammar *g = schemed("{\"type\":\"string\",\"maxLength\":20000}");
    TokenTrie *t;
    GrammarMasks *small, *large;
    GrammarText *x, *y;
    Error err = { 0 };
    TokenSource from = { .ud = &w, .bytes = word_bytes, .ends = word_ends };
    uint32_t a[(VOCAB + 31) / 32], b[(VOCAB + 31) / 32];
    assert_int_equal(token_trie_open(&t, VOCAB, &from, &err), ST_OK);
    assert_int_equal(grammar_masks_open(&small, g, t, 1, &err), ST_OK);
    assert_int_equal(grammar_masks_open(&large, g, t, 64 << 20, &err), ST_OK);
    assert_int_equal(grammar_text_open(&x, small, N, &err), ST_OK);
    assert_int_equal(grammar_text_open(&y, large, N, &err), ST_OK);
    for (int i = 0; i < N; i++) {
        assert_true(grammar_text_mask(x, NULL, 0, a) && grammar_text_mask(y, NULL, 0, b));
        assert_memory_equal(a, b, sizeof a);
        int32_t id = i == 0 ? 2 + '"' : (int32_t) draw(VOCAB);
        while (!(a[id / 32] >> id % 32 & 1) || (w.n[id] > 0 && i > 0 && memchr(w.s[id], '"', w.n[id])))
            id = (int32_t) draw(VOCAB);
        assert_true(grammar_text_append(x, id) && grammar_text_append(y, id));
        if (i % 500 == 499) {
            int32_t keep = (int32_t) draw((uint32_t) i);
            grammar_text_keep(x, keep);
            grammar_text_keep(y, keep);
        }
    }
    GrammarMasksStats st;
    grammar_masks_stats(small, &st);
    assert_true(st.states < 2000);
    grammar_text_close(x);
    grammar_text_close(y);
    grammar_masks_close(small);
    grammar_masks_close(large);
    token_trie_close(t);
    grammar_free(g);
}

/* root ::= r0 | ... | r899 ; rI ::= [^c] rJ | "z": every byte keeps nearly all 900 readings, and few sets of them
 * repeat. */
static Grammar *many_readings(void)
{
    enum { RULES = 900 };
    static char text[RULES * 64];
    size_t at = (size_t) sprintf(text, "root ::= r0");
    for (int i = 1; i < RULES; i++) at += (size_t) sprintf(text + at, " | r%d", i);
    for (int i = 0; i < RULES; i++)
        at += (size_t) sprintf(text + at, "\nr%d ::= [^%c] r%d | \"z\"", i, 'a' + i % 26, (i * 7 + 1) % RULES);
    return parsed(text);
}

/* A mask that takes too many steps is given up: nothing is allowed, the text reports why, and the unfinished mask is
 * not kept. Another text of the same vocabulary is not affected. */
static void steps_of_a_mask(void **state)
{
    static Words w;
    (void) state;
    seed = 33;
    random_words(&w);
    /* words that share no beginning, so that each byte of each is a step of its own */
    for (int32_t id = 2 + 256; id < VOCAB; id++) {
        w.n[id] = 8;
        for (int k = 0; k < 8; k++) w.s[id][k] = (char) ('a' + draw(25));
    }
    Grammar *bad = many_readings(), *good = schemed("{\"type\":\"object\"}");
    TokenTrie *t;
    GrammarMasks *m, *n;
    GrammarText *x, *y;
    Error err = { 0 };
    GrammarMasksStats st;
    uint32_t bits[(VOCAB + 31) / 32];
    TokenSource from = { .ud = &w, .bytes = word_bytes, .ends = word_ends };
    assert_int_equal(token_trie_open(&t, VOCAB, &from, &err), ST_OK);
    assert_int_equal(grammar_masks_open(&m, bad, t, 0, &err), ST_OK);
    assert_int_equal(grammar_masks_open(&n, good, t, 0, &err), ST_OK);
    assert_int_equal(grammar_text_open(&x, m, 8, &err), ST_OK);
    assert_int_equal(grammar_text_open(&y, n, 8, &err), ST_OK);
    assert_null(grammar_text_trouble(x));
    for (int again = 0; again < 4; again++) {          /* what is known by then makes no difference */
        assert_true(grammar_text_mask(x, NULL, 0, bits));
        for (size_t i = 0; i < sizeof bits / sizeof *bits; i++) assert_int_equal(bits[i], 0);
        assert_true(grammar_text_spent(x));
    }
    assert_non_null(strstr(grammar_text_trouble(x), "too many readings"));
    grammar_masks_stats(m, &st);
    assert_true(st.most > MASK_STEPS_MAX && st.most < MASK_STEPS_MAX + MASK_STEPS_MAX / 8);
    assert_true(grammar_text_append(x, 2 + 'b'));      /* a single token is cheap */
    assert_true(grammar_text_mask(y, NULL, 0, bits));
    assert_true(bits[(2 + '{') / 32] >> (2 + '{') % 32 & 1);
    assert_false(grammar_text_spent(y));
    assert_null(grammar_text_trouble(y));
    grammar_text_close(x);
    grammar_text_close(y);
    grammar_masks_close(m);
    grammar_masks_close(n);
    token_trie_close(t);
    grammar_free(bad);
    grammar_free(good);
}

/* Nothing is allocated while text is generated. */
static void no_allocation(void **state)
{
    static Words w;
    (void) state;
    seed = 21;
    random_words(&w);
    Grammar *g = schemed("{\"type\":\"object\"}");
    TokenTrie *t;
    GrammarMasks *m;
    GrammarText *x;
    Error err = { 0 };
    TokenSource from = { .ud = &w, .bytes = word_bytes, .ends = word_ends };
    uint32_t bits[(VOCAB + 31) / 32];
    assert_int_equal(token_trie_open(&t, VOCAB, &from, &err), ST_OK);
    assert_int_equal(grammar_masks_open(&m, g, t, 1, &err), ST_OK);
    assert_int_equal(grammar_text_open(&x, m, 2000, &err), ST_OK);
    long before = alloc_state.calls;
    for (int i = 0; i < 2000 && grammar_text_mask(x, NULL, 0, bits); i++) {
        int32_t id = (int32_t) draw(VOCAB);
        bool any = false;
        for (size_t k = 0; k < sizeof bits / sizeof *bits; k++) any |= bits[k] != 0;
        if (!any) break;
        while (!(bits[id / 32] >> id % 32 & 1)) id = (int32_t) draw(VOCAB);
        grammar_text_append(x, id);
    }
    assert_int_equal(alloc_state.calls, before);
    grammar_text_close(x);
    grammar_masks_close(m);
    token_trie_close(t);
    grammar_free(g);
}

/* ---- schemas ---- */

static void schemas(void **state)
{
    static const struct { const char *schema; const char *yes[10], *no[14]; } rows[] = {
        { "{}", { "null", "true", "1", "\"x\"", "[]", "{}", "{\"a\": [1, {\"b\":\n  null}]}", " 5", "-0.5e+10" },
          { "", "nul", "01", "[1,]", "{,}", "{\"a\"}", "1 ", "+1", ".5", "1.", "\"\x01\"", "[1  ,2]" } },
        { "true", { "{}" }, { "x" } },
        { "{\"type\":\"object\",\"title\":\"t\"}", { "{}", "{\"a\":1}", "{\n    \"a\": \"\\u00e9\\ud83d\\ude42\"\n}" },
          { "[]", "{\"a\":\"\\ud83d\"}", "{\"a\":\"\\u0000\"}", "{\"a\":1,}" } },
        { "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":{\"type\":\"boolean\"},"
          "\"c\":{\"type\":\"null\"}},\"required\":[\"b\"]}",
          { "{\"b\":true}", "{\"a\":1,\"b\":false}", "{\"b\":true,\"c\":null}",
            "{\"a\": 0, \"b\": true, \"c\": null}" },
          { "{}", "{\"a\":1}", "{\"b\":true,\"a\":1}", "{\"b\":true,\"b\":true}", "{\"b\":true,\"d\":1}",
            "{\"a\":-0,\"b\":true}" } },
        { "{\"properties\":{\"ab\":{},\"abc\":{},\"x\\ny\":{\"type\":\"null\"}},"
          "\"additionalProperties\":{\"type\":\"integer\"}}",
          { "{}", "{\"a\":1}", "{\"abcd\":2,\"\":3}",
            "{\"ab\":\"q\",\"b\":3}", "{\"x\\ny\":null}", "{\"\\n\\u0001\\\"\":4}", "{\"x\\n\":5,\"\xc3\xa9\":6}" },
          { "{\"a\":\"q\"}", "{\"a\":1,\"ab\":2}", "{\"abd\":\"\"}", "{\"\\u0061\":1}", "{\"x\\ny\":1}",
            "{\"q\":1,\"abc\":1}" } },
        { "{\"type\":\"array\",\"items\":{\"type\":\"integer\"},\"minItems\":1,\"maxItems\":3}",
          { "[1]", "[1,2]", "[ 1, 2,\n3 ]" }, { "[]", "[1,2,3,4]", "[\"a\"]", "[1,,2]" } },
        { "{\"type\":\"array\",\"minItems\":2}", { "[1,\"a\"]", "[[],{},null]" }, { "[]", "[1]" } },
        { "{\"type\":\"array\",\"prefixItems\":[{\"type\":\"integer\"},{\"type\":\"string\"}],"
          "\"items\":{\"type\":\"null\"}}", { "[]", "[1]", "[1,\"a\"]", "[1,\"a\",null,null]" },
          { "[\"a\"]", "[1,2]", "[1,\"a\",1]" } },
        { "{\"type\":\"array\",\"prefixItems\":[{\"type\":\"integer\"},{\"type\":\"string\"}],\"minItems\":2}",
          { "[1,\"a\"]" }, { "[1]", "[1,\"a\",null]" } },
        { "{\"type\":\"array\",\"prefixItems\":[{\"const\":1}],\"items\":false}", { "[]", "[1]" }, { "[1,1]", "[2]" } },
        { "{\"type\":\"string\",\"minLength\":2,\"maxLength\":3}",
          { "\"ab\"", "\"\xc3\xa9\xf0\x9f\x99\x82\\n\"", "\"\\ud83d\\ude42x\"" },
          { "\"a\"", "\"abcd\"", "ab", "\"\\ud83d\\ude42\"" } },
        { "{\"enum\":[\"a\",\"ab\",\"abc\",\"b\\\"\\n\\u00e9\\u4e00\\u4e01\",1,1.5,null,true,[1,{\"x\":2}]]}",
          { "\"a\"", "\"ab\"", "\"abc\"", "\"b\\\"\\n\xc3\xa9\xe4\xb8\x80\xe4\xb8\x81\"", "1", "1.5", "null", "true",
            "[1,{\"x\":2}]" },
          { "\"abcd\"", "\"\"", "2", "\"b\"", "false", "1.", "\"b\\\"\\n\xc3\xa9\xe4\xb8\x80\xe4\xb8\x80\"" } },
        { "{\"type\":\"string\",\"enum\":[\"a\",1,null],\"nullable\":true}", { "\"a\"", "null" }, { "1" } },
        { "{\"const\":0.1}", { "0.1" }, { "0.10", "0" } },
        { "{\"const\":{\"a\\\"1.50\":0.1,\"b\":[2.50,1,true]}}", { "{\"a\\\"1.50\":0.1,\"b\":[2.5,1,true]}" },
          { "{\"a\\\"1.5\":0.1,\"b\":[2.5,1,true]}" } },
        { "{\"enum\":[1e-7,1e22,-2.5e-300,1e16,100000.0,1e5]}", { "1e-7", "1e22", "-2.5e-300", "1e16", "100000" },
          { "1e-07", "1e+22", "1", "1e5" } },
        { "{\"allOf\":[{\"const\":1},{\"enum\":[1.0,2]}]}", { "1" }, { "2" } },
        { "{\"enum\":[9007199254740993,9007199254740991],\"maximum\":9007199254740992.0}", { "9007199254740991" },
          { "9007199254740993" } },
        { "{\"enum\":[3,2,-3,-2],\"exclusiveMaximum\":2.5,\"minimum\":-2.5}", { "2", "-2" }, { "3", "-3" } },
        { "{\"enum\":[9007199254740992,9007199254740994],\"minimum\":9007199254740993}", { "9007199254740994" },
          { "9007199254740992" } },
        { "{\"allOf\":[{\"type\":\"integer\",\"minimum\":9007199254740992},{\"minimum\":9007199254740993}]}",
          { "9007199254740993" }, { "9007199254740992" } },
        { "{\"enum\":[1,5,10],\"minimum\":4}", { "5", "10" }, { "1" } },
        { "{\"type\":\"string\",\"pattern\":\"^[a-z]+-\\\\d{2}$\"}", { "\"a-12\"", "\"abc-00\"" },
          { "\"a-1\"", "\"a-123\"", "\"A-12\"", "\"-12\"" } },
        { "{\"type\":\"string\",\"pattern\":\"b\\\"|^x|y$\"}", { "\"ab\\\"c\"", "\"x\\n\"", "\"\\\\y\"", "\"b\\\"\"" },
          { "\"b\"", "\"ax\"", "\"ya\"", "\"\"" } },
        { "{\"type\":\"string\",\"pattern\":\"^(?:\\\\w+\\\\s)*?[^\\\\W\\\\d]$\",\"minLength\":1}",
          { "\"a\"", "\"ab1 c\"", "\"a\\tb\xe2\x80\x83z\"" }, { "\"1\"", "\"\"", "\"a \"" } },
        { "{\"type\":\"string\",\"format\":\"date\"}",
          { "\"2024-02-29\"", "\"2023-12-31\"", "\"2000-02-29\"", "\"1999-04-30\"" },
          { "\"2023-02-29\"", "\"1900-02-29\"", "\"2023-13-01\"", "\"2023-04-31\"", "\"2023-00-10\"" } },
        { "{\"type\":\"string\",\"format\":\"date-time\"}",
          { "\"2024-02-29T23:59:59Z\"", "\"2024-01-01T00:00:00.25+05:30\"" },
          { "\"2024-02-30T00:00:00Z\"", "\"2024-01-01T24:00:00Z\"", "\"2024-01-01\"" } },
        { "{\"type\":\"string\",\"format\":\"uuid\"}", { "\"123e4567-e89b-12d3-a456-426614174000\"" },
          { "\"123e4567e89b12d3a456426614174000\"" } },
        { "{\"type\":\"string\",\"format\":\"ipv4\"}", { "\"127.0.0.1\"", "\"255.249.99.0\"" },
          { "\"256.0.0.1\"", "\"01.2.3.4\"", "\"1.2.3\"" } },
        { "{\"type\":\"string\",\"format\":\"email\"}", { "\"a.b+c@example.org\"" },
          { "\"a@b\"", "\"@x.org\"", "\"a b@x.org\"" } },
        { "{\"type\":\"string\",\"format\":\"duration\"}", { "\"P1DT2H\"", "\"P3W\"", "\"PT5S\"", "\"P1Y2M3D\"" },
          { "\"P\"", "\"PT\"", "\"1D\"" } },
        { "{\"type\":\"integer\"}", { "0", "7", "-12", "999999999999999999" },
          { "-0", "01", "1.0", "1e3", "-", "1000000000000000000" } },
        { "{\"type\":\"integer\",\"minimum\":-5,\"maximum\":123}", { "-5", "-1", "0", "9", "99", "123" },
          { "-6", "124", "200", "-10", "1230" } },
        { "{\"type\":\"integer\",\"exclusiveMinimum\":99,\"exclusiveMaximum\":1001}", { "100", "999", "1000" },
          { "99", "1001", "-100", "10" } },
        { "{\"type\":\"integer\",\"minimum\":2.5,\"maximum\":3.5}", { "3" }, { "2", "4" } },
        { "{\"type\":\"integer\",\"maximum\":-10}", { "-10", "-11", "-999" }, { "-9", "0", "10" } },
        { "{\"type\":\"integer\",\"minimum\":0,\"maximum\":9223372036854775807}", { "0", "922337203685477580" },
          { "-1" } },
        { "{\"type\":\"number\",\"minimum\":0,\"maximum\":1}", { "0", "0.5", "1", "1.0", "0.001" },
          { "1.01", "-0.1", "2", "1e0", "-0", "0." } },
        { "{\"type\":\"number\",\"exclusiveMinimum\":0,\"maximum\":0.25}", { "0.1", "0.25", "0.2499", "0.250", "0.01" },
          { "0", "0.0", "0.26", "0.2501", "0.3", "1" } },
        { "{\"type\":\"number\",\"minimum\":-1.5,\"exclusiveMaximum\":10.05}",
          { "-1.5", "-1.4999", "-1", "10.049", "9.99", "0", "10" }, { "-1.51", "-2", "10.05", "10.050", "11" } },
        { "{\"type\":\"number\",\"multipleOf\":0.01,\"minimum\":0}", { "5", "5.25", "5.1" }, { "5.255", "-1" } },
        { "{\"type\":\"number\",\"multipleOf\":1}", { "5", "-3" }, { "5.5" } },
        { "{\"type\":\"number\"}", { "1.25e-7", "-0", "0.1", "123456" }, { "1e", "1e999", "--1", "Infinity", "0x1" } },
        { "{\"type\":[\"string\",\"null\"]}", { "null", "\"\"" }, { "1" } },
        { "{\"anyOf\":[{\"type\":\"integer\"},{\"type\":\"string\",\"maxLength\":1}],\"description\":\"d\"}",
          { "5", "\"a\"" }, { "\"ab\"", "null" } },
        { "{\"type\":\"object\",\"properties\":{\"k\":{\"type\":\"string\"},\"a\":{\"type\":\"integer\"},"
          "\"b\":{\"type\":\"integer\"}},\"required\":[\"k\"],\"anyOf\":[{\"required\":[\"a\"]},"
          "{\"required\":[\"b\"]}]}", { "{\"k\":\"\",\"a\":1}", "{\"k\":\"\",\"b\":1}",
                                        "{\"k\":\"\",\"a\":1,\"b\":2}" }, { "{\"k\":\"\"}", "{\"a\":1}" } },
        { "{\"allOf\":[{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\",\"minimum\":3}}},"
          "{\"properties\":{\"a\":{\"maximum\":5},\"b\":{\"type\":\"null\"}},\"required\":[\"a\"]}]}",
          { "{\"a\":3}", "{\"a\":5,\"b\":null}" }, { "{}", "{\"a\":2}", "{\"a\":6}", "{\"a\":\"x\"}" } },
        { "{\"allOf\":[{\"properties\":{\"a\":{}},\"additionalProperties\":false},"
          "{\"properties\":{\"b\":{\"type\":\"integer\"}}}]}", { "{}", "{\"a\":1}" },
          { "{\"b\":1}", "{\"a\":1,\"b\":1}" } },
        { "{\"$defs\":{\"node\":{\"type\":\"object\","
          "\"properties\":{\"v\":{\"type\":\"integer\"},\"next\":{\"anyOf\":[{\"$ref\":\"#/$defs/node\"},"
          "{\"type\":\"null\"}]}},\"required\":[\"v\",\"next\"]}},\"$ref\":\"#/$defs/node\"}",
          { "{\"v\":1,\"next\":null}", "{\"v\":1,\"next\":{\"v\":2,\"next\":{\"v\":3,\"next\":null}}}" },
          { "{\"v\":1}", "{\"v\":1,\"next\":{}}" } },
        { "{\"type\":\"object\",\"properties\":{\"children\":{\"type\":\"array\",\"items\":{\"$ref\":\"#\"}}}}",
          { "{}", "{\"children\":[]}", "{\"children\":[{},{\"children\":[{}]}]}" }, { "{\"children\":[1]}" } },
        { "{\"definitions\":{\"a/b~c d\":{\"const\":1}},\"$ref\":\"#/definitions/a~1b~0c%20d\"}", { "1" }, { "2" } },
        { "{\"definitions\":{\"50% a/b\":{\"const\":1},\"50% a~1b\":{\"const\":2}},"
          "\"$ref\":\"#/definitions/50%25%20a%7e%31b\"}", { "1" }, { "2" } },
        { "{\"definitions\":{\"%25\":{\"const\":1},\"%\":{\"const\":2}},\"$ref\":\"#/definitions/%2525\"}", { "1" },
          { "2" } },
        { "{\"definitions\":{\"~1\":{\"const\":1},\"/\":{\"const\":2}},\"$ref\":\"#/definitions/~01\"}", { "1" },
          { "2" } },
        { "{\"oneOf\":[{\"properties\":{\"t\":{\"const\":\"a\"},\"x\":{\"type\":\"integer\"}},\"required\":[\"t\","
          "\"x\"]},{\"properties\":{\"t\":{\"const\":\"b\"}},\"required\":[\"t\"]}]}",
          { "{\"t\":\"a\",\"x\":1}", "{\"t\":\"b\"}" }, { "{\"t\":\"a\"}", "{\"t\":\"b\",\"x\":1}" } },
        { "{\"type\":\"object\",\"required\":[\"q\"]}", { "{\"q\":1}", "{\"q\":1,\"r\":2}" }, { "{}", "{\"r\":2}" } },
        { "{\"type\":\"object\",\"properties\":{\"a\":false,\"b\":true}}", { "{}", "{\"b\":0}" }, { "{\"a\":1}" } },
        { "{\"type\":\"object\",\"minProperties\":1,\"required\":[\"a\"],\"properties\":{\"a\":{\"type\":\"null\"}},"
          "\"maxProperties\":1}", { "{\"a\":null}" }, { "{}" } },
        { "{\"minLength\":1}", { "\"a\"" }, { "\"\"", "1" } },
    };
    (void) state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Grammar *g = schemed(rows[i].schema);
        const char *yes[11] = { 0 }, *no[15] = { 0 };
        memcpy(yes, rows[i].yes, sizeof rows[i].yes);
        memcpy(no, rows[i].no, sizeof rows[i].no);
        expect(g, rows[i].schema, yes, no);
        grammar_free(g);
    }
}

static void bad_schemas(void **state)
{
    static const char *const rows[][2] = {
        { "1", "s: #: expected a schema" }, { "{\"type\":\"text\"}", "#/type: expected null, boolean" },
        { "{\"type\":[]}", "#/type:" }, { "false", "#: no text satisfies it" },
        { "{\"properties\":{\"a/b\":{\"not\":{}}}}", "#/properties/a~1b/not: the keyword 'not' cannot be honoured" },
        { "{\"if\":{}}", "'if'" }, { "{\"patternProperties\":{}}", "'patternProperties'" },
        { "{\"uniqueItems\":true}", "'uniqueItems'" }, { "{\"contains\":{}}", "'contains'" },
        { "{\"tpye\":\"string\"}", "'tpye'" }, { "{\"dependentRequired\":{}}", "'dependentRequired'" },
        { "{\"propertyNames\":{}}", "'propertyNames'" },
        { "{\"anyOf\":[]}", "#/anyOf: expected a list of at least one schema" },
        { "{\"enum\":[]}", "#/enum: expected a list of at least one" },
        { "{\"$ref\":\"#/$defs/x\"}", "#/$ref: '#/$defs/x' leads nowhere" },
        { "{\"$defs\":{\"x\":{}},\"$ref\":\"#/$defs/x%00y\"}", "#/$ref: '#/$defs/x%00y' leads nowhere" },
        { "{\"allOf\":[{}],\"$ref\":\"#/allOf/+0\"}", "'#/allOf/+0' leads nowhere" },
        { "{\"$ref\":\"http://x/y\"}", "outside of this schema" }, { "{\"$ref\":\"#\"}", "circle" },
        { "{\"$defs\":{\"a\":{\"$ref\":\"#/$defs/b\"},\"b\":{\"$ref\":\"#/$defs/a\"}},\"$ref\":\"#/$defs/a\"}",
          "circle" }, { "{\"allOf\":[{\"$ref\":\"#\"}]}", "circle" },
        { "{\"anyOf\":[{\"$ref\":\"#\"},{\"type\":\"null\"}]}", "#: it can begin with itself" },
        { "{\"type\":\"object\",\"anyOf\":[{\"$ref\":\"#\"}]}", "circle" },
        { "{\"properties\":{\"a\":{\"$ref\":\"#\"}},\"required\":[\"a\"]}", "no text satisfies it" },
        { "{\"type\":\"string\",\"minLength\":2147483648}", "#: it grows beyond" },
        { "{\"type\":\"array\",\"minItems\":2147483648}", "#: it grows beyond" },
        { "{\"minLength\":-1}", "#/minLength: expected a whole number" }, { "{\"minLength\":1.5}", "#/minLength" },
        { "{\"pattern\":\"(\"}", "#/pattern: pattern: a group has no end" },
        { "{\"pattern\":\"a{99999999}\"}", "at most 1048576" }, { "{\"pattern\":\"(?=a)\"}", "look-around" },
        { "{\"pattern\":\"(a)\\\\1\"}", "references back" },
        { "{\"pattern\":\"a\\\\b\"}", "word boundaries" }, { "{\"pattern\":\"\\\\p{L}\"}", "Unicode properties" },
        { "{\"pattern\":\"a^b\"}", "^ and $" }, { "{\"pattern\":\"(a*)*)\"}", "closes nothing" },
        { "{\"pattern\":\"*\"}", "nothing before it" },
        { "{\"pattern\":\"a**\"}", "repetition of a repetition" }, { "{\"pattern\":\"[b-a]\"}", "ends before" },
        { "{\"pattern\":\"[a\"}", "class has no end" }, { "{\"pattern\":\"\\\\q{\"}", "repetition has nothing|" },
        { "{\"pattern\":\"((a{1000}){1000}){1000}\"}", "#/pattern" },
        { "{\"pattern\":\"^a+$\",\"maxLength\":5}", "minLength or maxLength beside" },
        { "{\"format\":\"regex\"}", "the format 'regex' cannot" },
        { "{\"type\":\"integer\",\"multipleOf\":7}", "#/multipleOf: only 1, 0.1" },
        { "{\"minimum\":\"1\"}", "#/minimum: expected a number" },
        { "{\"exclusiveMinimum\":true}", "expected a number" },
        { "{\"type\":\"integer\",\"minimum\":5,\"maximum\":4}", "no text satisfies it" },
        { "{\"type\":\"integer\",\"minimum\":1e300}", "no text satisfies it" }, { "{\"items\":[{}]}", "prefixItems" },
        { "{\"minProperties\":1}", "minProperties" },
        { "{\"maxProperties\":1}", "maxProperties" }, { "{\"enum\":[\"a\"],\"pattern\":\"a\"}", "cannot be combined" },
        { "{\"enum\":[\"a\"],\"type\":\"integer\"}", "no text satisfies it" },
        { "{\"required\":\"a\"}", "#/required: expected a list of names" },
        { "{\"properties\":[]}", "#/properties: expected an object" },
        { "{\"properties\":{\"a\":1}}", "#/properties/a: expected a schema" },
        { "{\"allOf\":[{\"pattern\":\"a\"},{\"pattern\":\"b\"}]}", "#/allOf/1/pattern: a second value" },
        { "{\"$dynamicRef\":\"#a\"}", "'$dynamicRef'" }, { "{\"allOf\":[{\"not\":{}}]}", "#/allOf/0/not" },
        { "{\"anyOf\":[{\"type\":\"null\"},{\"properties\":{\"a\":{\"else\":1}}}]}", "#/anyOf/1/properties/a/else" },
    };
    (void) state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Grammar *g;
        json_t *j;
        Error err = { 0 };
        assert_int_equal(json_read(&j, rows[i][0], strlen(rows[i][0]), "s", &err), ST_OK);
        Status st = grammar_schema(&g, j, "s", &err);
        json_decref(j);
        /* \q is a plain q; the { after it begins a repetition without a number */
        if (strcmp(rows[i][1], "repetition has nothing|") == 0) {
            assert_int_equal(st, ST_UNSUPPORTED);
            continue;
        }
        if (st == ST_OK || !strstr(err.text, rows[i][1]))
            fail_msg("'%s' gave %d '%s', expected '%s'", rows[i][0], st, err.text, rows[i][1]);
        assert_null(g);
    }
}

/* Regular expressions match whole texts, with or without anchors. */
static void expressions(void **state)
{
    static const struct { const char *regex, *yes[4], *no[5]; } good[] = {
        { "ab|c", { "ab", "c" }, { "a", "abc", "xc", "" } },
        { "^(?:\\+?\\d{2,3}[ -])*\\d+$", { "12", "+49 12", "49-030 1" }, { "+49", "12 ", "a12" } },
        { "[A-Z\u00e9][^\"\n]*", { "A", "\u00e9 b" }, { "a", "A\"", "AA\n" } },
        { "", { "" }, { "a" } },
    };
    static const char *const bad[][2] = {
        { "(", "r: pattern: a group has no end (at byte 1 of '(')" }, { "a\\bb", "word boundaries" },
        { "a$b", "^ and $" }, { "(?<=a)b", "look-around" }, { "((a{1000}){1000}){1000}", "r: " }, { "[]", "r: " },
    };
    (void) state;
    Grammar *g;
    Error err = { 0 };
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        const char *yes[11] = { 0 }, *no[15] = { 0 };
        memcpy(yes, good[i].yes, sizeof good[i].yes);
        memcpy(no, good[i].no, sizeof good[i].no);
        assert_int_equal(grammar_regex(&g, good[i].regex, strlen(good[i].regex), "r", &err), ST_OK);
        expect(g, good[i].regex, yes, no);
        grammar_free(g);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        Status st = grammar_regex(&g, bad[i][0], strlen(bad[i][0]), "r", &err);
        if (st == ST_OK || !strstr(err.text, bad[i][1]))
            fail_msg("'%s' gave %d '%s', expected '%s'", bad[i][0], st, err.text, bad[i][1]);
        assert_null(g);
    }
    for (long at = 1, live = alloc_state.live;; at++) {
        alloc_state.fail_in = at;
        Status st = grammar_regex(&g, good[1].regex, strlen(good[1].regex), "r", &err);
        bool over = alloc_state.fail_in > 0;
        alloc_state.fail_in = 0;
        assert_true(st == ST_OK || st == ST_MEMORY);
        grammar_free(g);
        if (!ALLOC_SANITIZED) assert_int_equal(alloc_state.live, live);
        if (over) break;
    }
}

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double) t.tv_sec + 1e-9 * (double) t.tv_nsec;
}

/* Input that is large or doubles at every step gets an answer, and soon. */
static void large_schemas(void **state)
{
    enum { CAP = 4 << 20 };
    char *s = malloc(CAP), *p;
    (void) state;
    for (int kind = 0; kind < 6; kind++) {
        p = s;
        if (kind == 0) {                           /* 100,000 values */
            p += sprintf(p, "{\"enum\":[");
            for (int i = 0; i < 100000; i++) p += sprintf(p, "%s\"value-%d\"", i ? "," : "", i * 7919);
            p += sprintf(p, "]}");
        } else if (kind == 1) {                    /* 2^40 merges */
            p += sprintf(p, "{\"$defs\":{");
            for (int i = 0; i < 40; i++)
                p += sprintf(p, "\"d%d\":{\"allOf\":[{\"$ref\":\"#/$defs/d%d\"},{\"$ref\":\"#/$defs/d%d\"}]},", i,
                             i + 1, i + 1);
            p += sprintf(p, "\"d40\":{}},\"$ref\":\"#/$defs/d0\"}");
        } else if (kind == 2) {                    /* 2^40 choices */
            p += sprintf(p, "{\"allOf\":[");
            for (int i = 0; i < 40; i++)
                p += sprintf(p, "%s{\"anyOf\":[{\"minLength\":1},{\"maxLength\":9}]}", i ? "," : "");
            p += sprintf(p, "]}");
        } else if (kind == 3) {                    /* properties that merge with themselves for ever */
            p += sprintf(p, "{\"$defs\":{\"a\":{\"allOf\":[{\"properties\":{\"x\":{\"$ref\":\"#/$defs/a\"}}},"
                         "{\"properties\":{\"x\":{\"$ref\":\"#/$defs/b\"}}}]},"
                         "\"b\":{\"properties\":{\"x\":{\"$ref\":\"#/$defs/a\"}}}},\"$ref\":\"#/$defs/a\"}");
        } else if (kind == 4) {                    /* 3,000 optional properties */
            p += sprintf(p, "{\"properties\":{");
            for (int i = 0; i < 3000; i++) p += sprintf(p, "%s\"p%d\":{\"type\":\"integer\"}", i ? "," : "", i);
            p += sprintf(p, "}}");
        } else {
            p += sprintf(p, "{\"enum\":[");        /* 600,000 bytes of shared beginnings */
            for (int i = 1; i < 1100; i++) p += sprintf(p, "%s\"%0*d\"", i > 1 ? "," : "", i, 0);
            p += sprintf(p, "]}");
        }
        Grammar *g;
        json_t *j;
        Error err = { 0 };
        assert_int_equal(json_read(&j, s, (size_t) (p - s), "s", &err), ST_OK);
        double t0 = seconds();
        Status st = grammar_schema(&g, j, "s", &err);
        double t = seconds() - t0;
        printf("large %d: %d in %.0f ms, %.1f MB %s\n", kind, st, 1e3 * t, g ? (double) grammar_bytes(g) / 1e6 : 0.0,
               err.text);
        assert_int_equal(st == ST_OK, kind == 0 || kind == 4);
        if (kind == 0)
            expect(g, "many values", TEXTS("\"value-0\"", "\"value-791892081\""), TEXTS("\"value-1\"", "\"value-\""));
        if (kind == 4)
            expect(g, "many properties", TEXTS("{\"p0\":1,\"p2999\":2}", "{}"), TEXTS("{\"p2\":1,\"p1\":2}"));
        assert_true(t < 5);
        json_decref(j);
        grammar_free(g);
    }
    free(s);
}

/* ---- random schemas, random documents, and a validator in the simplest way ---- */

static json_t *random_schema(int depth)
{
    switch (draw(depth > 0 ? 9 : 5)) {
    case 0: {
        json_t *s = json_pack("{s:s}", "type", draw(2) ? "integer" : "number");
        if (draw(2))
            json_object_set_new(s, "minimum", draw(2) ? json_integer((int) draw(300) - 150)
                                                      : json_real(((int) draw(2000) - 1000) / 40.0));
        if (draw(2)) json_object_set_new(s, "maximum", json_real((double) draw(8000) / 20 + 60));
        if (draw(4) == 0) json_object_set_new(s, "exclusiveMinimum", json_integer((int) draw(60) - 20));
        return s;
    }
    case 1: {
        json_t *s = json_pack("{s:s}", "type", "string");
        uint32_t n = draw(3);
        if (draw(2)) json_object_set_new(s, "minLength", json_integer(n));
        if (draw(2)) json_object_set_new(s, "maxLength", json_integer(n + draw(4)));
        return s;
    }
    case 2: return json_pack("{s:[s,s,i,n]}", "enum", "ab", "a", (int) draw(5));
    case 3: return json_pack("{s:[s,s]}", "type", "boolean", "null");
    case 4: return draw(2) ? json_pack("{s:s}", "const", "\xc3\xa9\"\n") : json_object();
    case 5: {
        json_t *s = json_pack("{s:s, s:o}", "type", "array", "items", random_schema(depth - 1));
        uint32_t n = draw(3);
        if (draw(2)) json_object_set_new(s, "minItems", json_integer(n));
        if (draw(2)) json_object_set_new(s, "maxItems", json_integer(n + draw(3)));
        return s;
    }
    case 6: return json_pack("{s:[o,o]}", "anyOf", random_schema(depth - 1), random_schema(depth - 1));
    default: {
        static const char *const names[] = { "a", "ab", "b", "\xc3\xa9", "a\"" };
        json_t *props = json_object(), *required = json_array(), *s = json_pack("{s:s}", "type", "object");
        for (uint32_t i = 0; i < 5; i++) {
            if (draw(2)) continue;
            json_object_set_new(props, names[i], random_schema(depth - 1));
            if (draw(2)) json_array_append_new(required, json_string(names[i]));
        }
        json_object_set_new(s, "properties", props);
        json_object_set_new(s, "required", required);
        if (draw(2))
            json_object_set_new(s, "additionalProperties", draw(2) ? json_boolean(draw(2)) : random_schema(depth - 1));
        return s;
    }
    }
}

static bool is_type(const json_t *v, const char *type)
{
    if (strcmp(type, "integer") == 0)
        return json_is_integer(v) || (json_is_real(v) && fabs(json_real_value(v)) < 0x1p63 &&
                                      json_real_value(v) == (double) (int64_t) json_real_value(v));
    return strcmp(type, "number") == 0 ? json_is_number(v) : strcmp(type, "string") == 0
           ? json_is_string(v) : strcmp(type, "array") == 0 ? json_is_array(v) : strcmp(type, "object") == 0
           ? json_is_object(v) : strcmp(type, "boolean") == 0 ? json_is_boolean(v) : json_is_null(v);
}

static bool valid(const json_t *s, const json_t *v)
{
    const json_t *x;
    if (json_is_boolean(s)) return json_is_true(s);
    if ((x = json_object_get(s, "type"))) {
        bool any = json_is_string(x) && is_type(v, json_string_value(x));
        for (size_t i = 0; i < json_array_size(x); i++) any |= is_type(v, json_string_value(json_array_get(x, i)));
        if (!any) return false;
    }
    if ((x = json_object_get(s, "const")) && !json_equal(x, v)) return false;
    if ((x = json_object_get(s, "enum"))) {
        bool any = false;
        for (size_t i = 0; i < json_array_size(x); i++) any |= json_equal(json_array_get(x, i), v);
        if (!any) return false;
    }
    if ((x = json_object_get(s, "anyOf"))) {
        bool any = false;
        for (size_t i = 0; i < json_array_size(x); i++) any |= valid(json_array_get(x, i), v);
        if (!any) return false;
    }
    if (json_is_number(v)) {
        if ((x = json_object_get(s, "minimum")) && json_number_value(v) < json_number_value(x)) return false;
        if ((x = json_object_get(s, "maximum")) && json_number_value(v) > json_number_value(x)) return false;
        if ((x = json_object_get(s, "exclusiveMinimum")) && json_number_value(v) <= json_number_value(x)) return false;
    }
    if (json_is_string(v)) {
        int n = 0;
        for (const char *p = json_string_value(v); *p; p++) n += ((uint8_t) *p & 0xc0) != 0x80;
        if ((x = json_object_get(s, "minLength")) && n < json_integer_value(x)) return false;
        if ((x = json_object_get(s, "maxLength")) && n > json_integer_value(x)) return false;
    }
    if (json_is_array(v)) {
        if ((x = json_object_get(s, "minItems")) && (json_int_t) json_array_size(v) < json_integer_value(x))
            return false;
        if ((x = json_object_get(s, "maxItems")) && (json_int_t) json_array_size(v) > json_integer_value(x))
            return false;
        for (size_t i = 0; i < json_array_size(v) && (x = json_object_get(s, "items")); i++)
            if (!valid(x, json_array_get(v, i))) return false;
    }
    if (json_is_object(v)) {
        const char *k;
        json_t *one;
        const json_t *props = json_object_get(s, "properties"), *required = json_object_get(s, "required");
        for (size_t i = 0; i < json_array_size(required); i++)
            if (!json_object_get(v, json_string_value(json_array_get(required, i)))) return false;
        json_object_foreach((json_t *) v, k, one) {
            const json_t *own = json_object_get(props, k);
            if (!own) own = json_object_get(s, "additionalProperties");
            if (own && !valid(own, one)) return false;
        }
    }
    return true;
}

/* A text that a grammar accepts, by choosing among the bytes that may follow; digits, letters and ends are likelier
 * than rare bytes. */
static bool random_text(Automaton *a, char *s, size_t cap, size_t *n)
{
    uint32_t at[2] = { automaton_start(a), STATE_DEAD };
    StateHolder h = { .id = at, .n = 2 };
    automaton_hold(a, &h);
    bool good = false;
    for (*n = 0; *n < cap; ) {
        if (automaton_accepts(a, at[0]) && (!automaton_goes_on(a, at[0]) || draw(4) == 0)) {
            good = true;
            break;
        }
        static const char ends[] = "\"}]0123456789,:ab ";
        for (int tries = 0; ; tries++) {
            uint8_t c = *n > 20 && tries < 40 ? (uint8_t) ends[draw(tries < 12 ? 4 : 18)]
                                              : tries % 3 ? (uint8_t) (32 + draw(95)) : (uint8_t) draw(256);
            automaton_step(a, &at[1], &at[0], c);
            if (at[1] == STATE_DEAD) continue;
            s[(*n)++] = (char) c;
            at[0] = at[1];
            break;
        }
    }
    automaton_let_go(a, &h);
    return good;
}

/* Appends to s a valid document for the schema that looks like texts of this program. Returns false if none was
 * found. */
static char *random_document(const json_t *s, char *p)
{
    const json_t *x;
    if (json_is_true(s) || json_object_size(s) == 0) return p + sprintf(p, "{\"q\": [1.5, null]}");
    if (json_is_false(s)) return NULL;
    if ((x = json_object_get(s, "const"))) return p + sprintf(p, "\"\xc3\xa9\\\"\\n\"");
    if ((x = json_object_get(s, "enum"))) {
        char *t = json_dumps(json_array_get(x, draw(4)), JSON_ENCODE_ANY);
        p += sprintf(p, "%s", t);
        free(t);
        return p;
    }
    if ((x = json_object_get(s, "anyOf"))) return random_document(json_array_get(x, draw(2)), p);
    const json_t *type = json_object_get(s, "type");
    if (json_is_array(type)) return p + sprintf(p, "%s", draw(3) == 0 ? "null" : draw(2) ? "true" : "false");
    const char *t = json_string_value(type);
    if (strcmp(t, "integer") == 0 || strcmp(t, "number") == 0) {
        for (int tries = 0; tries < 200; tries++) {
            int v = (int) draw(900) - 300;
            int len = *t == 'i' || draw(2) ? sprintf(p, "%d", v) : sprintf(p, "%d.%u", v, draw(100));
            json_t *j = json_loads(p, JSON_DECODE_ANY, NULL);
            bool good = j && valid(s, j) && strncmp(p, "-0", 2) != 0;
            json_decref(j);
            if (good) return p + len;
        }
        return NULL;
    }
    if (strcmp(t, "string") == 0) {
        static const char *const chars[] = { "a", "\xc3\xa9", "\\n", "\xf0\x9f\x99\x82", "\\u0041", "\\\"",
                                             "\\ud83d\\ude42", " " };
        json_int_t n = json_integer_value(json_object_get(s, "minLength")),
                   max = (x = json_object_get(s, "maxLength")) ? json_integer_value(x) : n + 3;
        n += draw((uint32_t) (max - n) + 1);
        *p++ = '"';
        while (n-- > 0) p += sprintf(p, "%s", chars[draw(8)]);
        return p + sprintf(p, "\"");
    }
    const char *k;
    json_t *v;
    bool first = true;
    if (strcmp(t, "array") == 0) {
        json_int_t n = json_integer_value(json_object_get(s, "minItems")),
                   max = (x = json_object_get(s, "maxItems")) ? json_integer_value(x) : n + 3;
        n += draw((uint32_t) (max - n) + 1);
        *p++ = '[';
        for (; n > 0; n--, first = false) {
            if (!first) p += sprintf(p, draw(2) ? "," : ", ");
            if (!(p = random_document(json_object_get(s, "items"), p))) return NULL;
        }
        return p + sprintf(p, "%s]", draw(3) && !first ? "\n" : "");
    }
    *p++ = '{';
    json_object_foreach(json_object_get(s, "properties"), k, v) {
        bool required = false;
        const json_t *list = json_object_get(s, "required");
        for (size_t i = 0; i < json_array_size(list); i++)
            required |= strcmp(json_string_value(json_array_get(list, i)), k) == 0;
        if (!required && draw(2)) continue;
        p += sprintf(p, "%s\"%s\":%s", first ? "" : ", ", strcmp(k, "a\"") ? k : "a\\\"", draw(2) ? " " : "");
        if (!(p = random_document(v, p))) return NULL;
        first = false;
    }
    x = json_object_get(s, "additionalProperties");
    if (x && !json_is_false(x) && draw(2)) {
        p += sprintf(p, "%s\"abc\": ", first ? "" : ",\n  ");
        if (!(p = random_document(x, p))) return NULL;
    }
    return p + sprintf(p, "}");
}

static void random_schemas(void **state)
{
    int made = 0, accepted = 0, mutated = 0, refused = 0;
    (void) state;
    seed = 77;
    for (int round = 0; round < 600; round++) {
        json_t *s = random_schema(3);
        Grammar *g;
        Error err = { 0 };
        char *text = json_dumps(s, JSON_ENCODE_ANY), doc[1 << 16];
        if (grammar_schema(&g, s, "s", &err) != ST_OK) {
            if (!strstr(err.text, "no text satisfies")) fail_msg("%s\n%s", err.text, text);
            json_decref(s);
            free(text);
            continue;
        }
        Automaton *a = opened(g);
        for (int i = 0; i < 20; i++) {
            size_t n;
            if (random_text(a, doc, 400, &n)) {    /* everything accepted is valid */
                json_t *j;
                if (json_read(&j, doc, n, "doc", &err) != ST_OK && !strstr(err.text, "duplicate"))
                    fail_msg("%s\n%.*s\n%s", text, (int) n, doc, err.text);
                if (j && !valid(s, j)) fail_msg("%s\naccepts %.*s", text, (int) n, doc);
                json_decref(j);
                made++;
            }
            char *end = random_document(s, doc);
            if (!end) continue;
            n = (size_t) (end - doc);
            if (read_text(a, doc, n) != 2) fail_msg("%s\nshould accept %.*s", text, (int) n, doc);
            accepted++;
            for (int k = 0; k < 10; k++) {      /* a byte changed, dropped or doubled: accepted only if still valid */
                char other[1 << 16];
                uint32_t place = draw((uint32_t) n), kind = draw(3);
                size_t len = n;
                memcpy(other, doc, n);
                if (kind == 0) other[place] = "0123456789-\",:{}[]ae.tn"[draw(23)];
                else if (kind == 1) memmove(other + place, doc + place + 1, n - place - 1), len--;
                else memmove(other + place + 1, doc + place, n - place), len++;
                json_t *j = json_loadb(other, len, JSON_DECODE_ANY, NULL);
                bool good = j && valid(s, j);
                json_decref(j);
                bool got = read_text(a, other, len) == 2;
                if (got && !good) fail_msg("%s\naccepts %.*s", text, (int) len, other);
                mutated++;
                refused += !good;
            }
        }
        automaton_close(a);
        grammar_free(g);
        json_decref(s);
        free(text);
    }
    printf("%d texts made, %d documents accepted, %d changed, %d of them invalid and refused\n", made, accepted,
           mutated, refused);
    assert_true(made > 3000 && accepted > 5000 && refused > 20000);
}

/* Lines of schema and text for another validator: tests/oracle/schema_oracle.py. */
static int emit(int count)
{
    seed = 123;
    while (count > 0) {
        json_t *s = random_schema(3);
        Grammar *g;
        char doc[401];
        size_t n;
        if (grammar_schema(&g, s, "s", NULL) == ST_OK) {
            Automaton *a = opened(g);
            for (int i = 0; i < 10; i++)
                if (random_text(a, doc, 400, &n)) {
                    doc[n] = 0;
                    json_t *line = json_pack("{s:O, s:s}", "schema", s, "text", doc);
                    json_dumpf(line, stdout, JSON_COMPACT);
                    putchar('\n');
                    json_decref(line);
                    count--;
                }
            automaton_close(a);
            grammar_free(g);
        }
        json_decref(s);
    }
    return 0;
}

/* Whatever allocation fails: JSON is read correctly or refused. */
static void json_no_memory(void **state)
{
    static const char text[] = "{\"a key of more than sixteen bytes\":\"a text of thirty bytes or more, "
                               "\\ud83c\\udf3f\\u00e9\\n\",\"b\":[123456789012345678,-1.25e-10,{\"c\":\"\\\"\"}]}";
    Error err = { 0 };
    json_t *want, *j;
    (void) state;
    assert_int_equal(json_read(&want, text, strlen(text), "s", &err), ST_OK);
    long refused = 0;
    for (long at = 1;; at++) {
        alloc_state.fail_in = at;
        Status st = json_read(&j, text, strlen(text), "s", &err);
        bool over = alloc_state.fail_in > 0;
        alloc_state.fail_in = 0;
        if (st == ST_OK) assert_true(json_equal(j, want));
        else assert_int_equal(st, ST_MEMORY);
        refused += st != ST_OK;
        json_decref(j);
        if (over) break;
    }
    assert_true(refused > 10);
    json_decref(want);
}

/* Every allocation fails once: an error is returned, nothing leaks. */
static void no_memory(void **state)
{
    static const char text[] = "root ::= a{2,3} | [^x-z] b\na ::= (\"y\" | b)+\nb ::= \"q\" b?";
    static const char schema[] = "{\"properties\":{\"a\":{\"anyOf\":[{\"type\":\"string\",\"pattern\":\"^a+\\\"$\"},"
                                 "{\"allOf\":[{\"enum\":[1.5,\"x\",3]},{\"enum\":[\"x\",1.5]}]}]},"
                                 "\"b\":{\"allOf\":[{\"minimum\":1},{\"maximum\":20.5}]}},"
                                 "\"required\":[\"c\"],\"additionalProperties\":{\"type\":\"array\",\"minItems\":1}}";
    static Words w;
    TokenSource from = { .ud = &w, .bytes = word_bytes, .ends = word_ends };
    (void) state;
    seed = 2;
    random_words(&w);
    for (int kind = 0; kind < 3; kind++) {
        Error err = { 0 };
        json_t *j;
        assert_int_equal(json_read(&j, schema, strlen(schema), "s", &err), ST_OK);
        Grammar *whole = parsed(text), *other = schemed(schema);
        size_t bytes = kind == 0 ? grammar_bytes(whole) : grammar_bytes(other);
        grammar_free(other);
        long live = alloc_state.live;
        for (long at = 1; ; at++) {
            Grammar *g = NULL;
            TokenTrie *t = NULL;
            GrammarMasks *m = NULL;
            GrammarText *x = NULL;
            alloc_state.fail_in = at;
            Status st = kind == 0 ? grammar_parse(&g, text, strlen(text), "g", &err) : kind == 1
                        ? grammar_schema(&g, j, "s", &err) : token_trie_open(&t, VOCAB, &from, &err);
            if (kind == 2 && st == ST_OK) st = grammar_masks_open(&m, whole, t, 1, &err);
            if (kind == 2 && st == ST_OK) st = grammar_text_open(&x, m, 10, &err);
            bool failed = alloc_state.fail_in == 0;
            alloc_state.fail_in = 0;
            if (st != ST_OK && !failed) fail_msg("%s", err.text);
            if (g && grammar_bytes(g) != bytes) fail_msg("allocation %ld that fails goes unnoticed", at);
            if (st != ST_OK && st != ST_MEMORY) fail_msg("allocation %ld: %d %s", at, st, err.text);
            grammar_text_close(x);
            grammar_masks_close(m);
            token_trie_close(t);
            grammar_free(g);
            if (!ALLOC_SANITIZED && alloc_state.live != live)
                fail_msg("kind %d: allocation %ld that fails leaves %ld behind", kind, at, alloc_state.live - live);
            if (!failed) break;
        }
        json_decref(j);
        grammar_free(whole);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts), cmocka_unit_test(nested_groups), cmocka_unit_test(bad_texts),
        cmocka_unit_test(random_grammars), cmocka_unit_test(masks), cmocka_unit_test(ends_of_texts),
        cmocka_unit_test(forgetting), cmocka_unit_test(steps_of_a_mask), cmocka_unit_test(no_allocation),
        cmocka_unit_test(schemas), cmocka_unit_test(bad_schemas), cmocka_unit_test(expressions),
        cmocka_unit_test(large_schemas),
        cmocka_unit_test(random_schemas), cmocka_unit_test(json_no_memory), cmocka_unit_test(no_memory),
    };
    if (argc > 2 && strcmp(argv[1], "emit") == 0) return emit(atoi(argv[2]));
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests_name("grammar", tests, NULL, NULL);
}
