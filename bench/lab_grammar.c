/* lab_grammar.c - benchmark of token masks: the cost of building the vocabulary's tree, of a mask for a new state, of a
 * mask for a known state, and of an average token in documents generated token by token.
 *
 *     make bench/lab_grammar && bench/lab_grammar [VOCAB]        default 151936 tokens, synthetic
 *
 * The vocabulary imitates Qwen's: every byte, words with and without a space, punctuation of code and JSON, spaces,
 * digits, other alphabets, parts of characters. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/json.h"
#include "text/grammar/grammar_mask.h"
#include "text/tokenizer/utf8.h"

typedef struct { char (*s)[40]; uint8_t *n; int32_t size; } Vocabulary;

static uint64_t seed = 1;
static uint32_t draw(uint32_t n)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t) (seed >> 33) % n;
}

static const char *bytes_of(void *ud, int32_t id, size_t *n)
{
    Vocabulary *v = ud;
    *n = v->n[id];
    return v->s[id];
}

static bool ends(void *ud, int32_t id) { return id == ((Vocabulary *) ud)->size - 1; }

static void make_token(char *s, uint8_t *n)
{
    static const char consonants[] = "bcdfghklmnprstvwz", vowels[] = "aeiou",
                      marks[] = "\"{}[]:,.;()'=/*-_+<>!&|\\\n\t #";
    uint32_t kind = draw(100), k = 0;
    if (kind < 62) {
        if (draw(2)) s[k++] = ' ';
        for (uint32_t len = 2 + draw(9), i = 0; i < len; i++) s[k++] = i % 2 ? vowels[draw(5)] : consonants[draw(17)];
        if (draw(4) == 0) s[s[0] == ' '] = (char) (s[s[0] == ' '] - 32);
    } else if (kind < 72) {
        for (uint32_t len = 1 + draw(5); k < len;) s[k++] = marks[draw(sizeof marks - 1)];
    } else if (kind < 74) {
        for (uint32_t len = 1 + draw(30); k < len;) s[k++] = draw(6) ? ' ' : '\n';
    } else if (kind < 75) {
        for (uint32_t len = 1 + draw(3); k < len;) s[k++] = (char) ('0' + draw(10));
    } else {
        static const uint32_t from[] = { 0x4e00, 0x430, 0xc0, 0xac00, 0x3041, 0x627, 0x1f300 },
                              many[] = { 5000, 32, 64, 3000, 80, 30, 400 };
        uint32_t a = draw(7) % (draw(2) ? 7 : 1);
        for (uint32_t len = 1 + draw(4), i = 0; i < len; i++) k += (uint32_t) utf8_put(s + k, from[a] + draw(many[a]));
        if (draw(12) == 0) k--;                    /* a part of a character */
    }
    *n = (uint8_t) k;
}

static Grammar *schema_of(const char *text)
{
    json_t *j;
    Grammar *g;
    Error err = { 0 };
    double t0 = seconds_now();
    if (json_read(&j, text, strlen(text), "schema", &err) != ST_OK || grammar_schema(&g, j, "schema", &err) != ST_OK) {
        fprintf(stderr, "%s\n", err.text);
        exit(1);
    }
    json_decref(j);
    printf("  compiled in %.0f us, %.0f KB\n", 1e6 * (seconds_now() - t0), (double) grammar_bytes(g) / 1e3);
    return g;
}

/* Large examples of realistic grammars: a schema with 200 optional properties, 1,000 values, 60 tools, expressions of a
 * language. */
static char *many(const char *head, const char *each, int n, const char *tail)
{
    size_t cap = strlen(head) + strlen(tail) + (size_t) n * (strlen(each) + 32) + 1, at = 0;
    char *s = malloc(cap);
    if (!s) exit(1);
    at += (size_t) sprintf(s, "%s", head);
    for (int i = 0; i < n; i++) at += (size_t) snprintf(s + at, cap - at, each, i ? "," : "", i * 7919 % 10007, i);
    sprintf(s + at, "%s", tail);
    return s;
}

static Grammar *grammar_of(const char *text)
{
    Grammar *g;
    Error err = { 0 };
    if (grammar_parse(&g, text, strlen(text), "grammar", &err) != ST_OK) {
        fprintf(stderr, "%s\n", err.text);
        exit(1);
    }
    return g;
}

static int by_time(const void *a, const void *b)
{
    return (*(const double *) a > *(const double *) b) - (*(const double *) a < *(const double *) b);
}

/* Generates documents from random allowed tokens, sometimes preferring to end; every mask is timed. */
static void measure(const char *name, const Grammar *g, const TokenTrie *t, const Vocabulary *v, int documents)
{
    enum { N = 400, ALL = 1 << 20 };
    GrammarMasks *m;
    Error err = { 0 };
    static double fresh[ALL], known[ALL];
    int n_fresh = 0, n_known = 0;
    double total = 0;
    uint32_t *bits = malloc(((size_t) v->size / 32 + 1) * 4);
    if (!bits || grammar_masks_open(&m, g, t, 0, &err) != ST_OK) exit(1);
    for (int d = 0; d < documents; d++) {
        GrammarText *x;
        if (grammar_text_open(&x, m, N, &err) != ST_OK) exit(1);
        for (int i = 0; i < N && !grammar_text_done(x); i++) {
            GrammarMasksStats a, b;
            grammar_masks_stats(m, &a);
            double t0 = seconds_now();
            grammar_text_mask(x, NULL, 0, bits);
            double spent = seconds_now() - t0;
            grammar_masks_stats(m, &b);
            total += spent;
            if (b.made > a.made && n_fresh < ALL) fresh[n_fresh++] = spent;
            if (b.made == a.made && n_known < ALL) known[n_known++] = spent;
            int32_t id = -1;
            static const char closing[] = "\"}],:";
            for (int tries = 0; tries < 6 && id < 0; tries++) {    /* bytes 0..255 are the first tokens */
                int32_t c = closing[draw(5)];
                if (draw(3) == 0 && bits[c / 32] >> c % 32 & 1) id = c;
            }
            bool any = false;
            for (int32_t w = 0; w < v->size / 32; w++) any |= bits[w] != 0;
            if (!any) {
                printf("  %s: %s, after %.0f ms\n", name, grammar_text_trouble(x), 1e3 * spent);
                break;
            }
            while (id < 0 || !(bits[id / 32] >> id % 32 & 1))
                id = id < 0 || draw(50) ? (int32_t) draw((uint32_t) v->size) : (int32_t) draw(256);
            if (!grammar_text_append(x, id)) exit(1);
        }
        grammar_text_close(x);
    }
    qsort(fresh, (size_t) n_fresh, sizeof *fresh, by_time);
    qsort(known, (size_t) n_known, sizeof *known, by_time);
    GrammarMasksStats st;
    grammar_masks_stats(m, &st);
    printf("  %-34s %7d masks, %5d new: median %4.0f, 99 %% %4.0f, most %4.0f us; known: %.1f us; in the mean %.1f us; "
           "%zu states;"
           " most steps %llu\n", name, n_fresh + n_known, n_fresh,
           1e6 * fresh[n_fresh / 2], 1e6 * fresh[n_fresh * 99 / 100], 1e6 * fresh[n_fresh - 1],
           n_known ? 1e6 * known[n_known / 2] : 0.0, 1e6 * total / (n_fresh + n_known), st.states,
           (unsigned long long) st.most);
    free(bits);
    grammar_masks_close(m);
}

int main(int argc, char **argv)
{
    static const char *const schemas[][2] = {
        { "person", "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\"},\"age\":{\"type\":\"integer\","
          "\"minimum\":0,\"maximum\":150},\"email\":{\"type\":[\"string\",\"null\"]},"
          "\"tags\":{\"type\":\"array\",\"items\":{\"type\":\"string\"}},\"role\":{\"enum\":[\"admin\","
          "\"user\",\"guest\"]},\"address\":{\"type\":\"object\",\"properties\":{\"street\":{\"type\":\"string\"},"
          "\"city\":{\"type\":\"string\"}},\"required\":[\"street\",\"city\"]}},\"required\":[\"name\",\"age\","
          "\"role\"]}" },
        { "any object", "{\"type\":\"object\"}" },
        { "strings of 0 to 200 characters", "{\"type\":\"array\",\"items\":{\"type\":\"string\",\"maxLength\":200}}" },
        { "open names", "{\"properties\":{\"alpha\":{},\"beta\":{}},\"additionalProperties\":{\"type\":\"string\"}}" },
        { "dates and patterns", "{\"type\":\"array\",\"items\":{\"anyOf\":[{\"format\":\"date-time\"},"
          "{\"pattern\":\"^[A-Z][a-z]+( [A-Z][a-z]+)*$\"},{\"type\":\"number\",\"minimum\":0,\"maximum\":1}]}}" },
    };
    Vocabulary v = { .size = argc > 1 ? atoi(argv[1]) : 151936 };
    if (v.size < 300) return 2;
    v.s = calloc((size_t) v.size, sizeof *v.s);
    v.n = calloc((size_t) v.size, 1);
    if (!v.s || !v.n) return 1;
    for (int32_t i = 0; i < v.size; i++) {
        if (i < 256) v.s[i][0] = (char) i, v.n[i] = 1;
        else make_token(v.s[i], &v.n[i]);
    }
    TokenTrie *t;
    Error err = { 0 };
    TokenSource from = { .ud = &v, .bytes = bytes_of, .ends = ends };
    double t0 = seconds_now();
    if (token_trie_open(&t, v.size, &from, &err) != ST_OK) return 1;
    printf("%d tokens: tree built in %.0f ms, %.1f MB\n", v.size, 1e3 * (seconds_now() - t0),
           (double) token_trie_bytes(t) / 1e6);
    for (size_t i = 0; i < sizeof schemas / sizeof *schemas; i++) {
        Grammar *g = schema_of(schemas[i][1]);
        measure(schemas[i][0], g, t, &v, 100);
        grammar_free(g);
    }
    char *large[] = {
        many("{\"type\":\"object\",\"properties\":{", "%s\"field_%d_%d\":{\"type\":\"string\"}", 200,
             "},\"required\":[]}"), many("{\"enum\":[", "%s\"value %d of %d\"", 1000, "]}"),
        many("{\"anyOf\":[", "%s{\"type\":\"object\",\"properties\":{\"name\":{\"const\":\"tool%d_%d\"},"
             "\"arguments\":{\"type\":\"object\"}},\"required\":[\"name\",\"arguments\"]}", 60, "]}"),
        many("{\"pattern\":\"^(", "%.0s(a|b|[c-z]){0,8}%d-%d|", 50, "[a-z ]{0,200})$\"}"),
    };
    for (size_t i = 0; i < sizeof large / sizeof *large; i++) {
        Grammar *g = schema_of(large[i]);
        measure((const char *[]) { "200 optional properties", "1000 values", "60 tools", "50 patterns" }[i], g, t,
                &v, 100);
        grammar_free(g);
        free(large[i]);
    }
    static const char *const texts[][2] = {
        { "a small C", "root ::= (stmt ws)*\nstmt ::= ident ws \"=\" ws expr \";\" | \"if\" ws \"(\" expr \")\" ws "
          "block | \"while\" ws \"(\" expr \")\" ws block | \"return\" ws expr? \";\" | block\n"
          "block ::= \"{\" ws (stmt ws)* \"}\"\nexpr ::= term (ws [-+*/<>&|]{1,2} ws term)*\nterm ::= ident (\"(\" "
          "(expr (\",\" ws expr)*)? \")\")? | [0-9]+ | \"(\" expr \")\" | \"\\\"\" [^\"\\\\]* \"\\\"\"\n"
          "ident ::= [a-zA-Z_] [a-zA-Z0-9_]*\nws ::= [ \\n\\t]*\n" },
        { "prose", "root ::= (sentence \" \"?)+\nsentence ::= word ((\" \" | \", \" | \"; \" | \" - \") word)* [.!?]\n"
          "word ::= [a-zA-Z'\\u00c0-\\u024f-]+ | [0-9]+\n" },
        { "any text but three words", "root ::= ([^s] | \"s\" [^t] | \"st\" [^o] | \"sto\" [^p])*\n" },
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        Grammar *g = grammar_of(texts[i][1]);
        measure(texts[i][0], g, t, &v, 100);
        grammar_free(g);
    }
    char *bad = many("root ::= r0", "%.0s%.0s | r%d", 900, "\n"), rules[64];
    char *all = malloc(strlen(bad) + 900 * 64);
    if (!all) return 1;
    strcpy(all, bad);
    for (int i = 0; i < 900; i++) {
        snprintf(rules, sizeof rules, "r%d ::= [^%c] r%d | \"z\"\n", i, 'a' + i % 26, (i * 7 + 1) % 900);
        strcat(all, rules);
    }
    Grammar *g = grammar_of(all);
    measure("900 rules at once", g, t, &v, 2);
    grammar_free(g);
    token_trie_close(t);
    free(v.s);
    free(v.n);
    return 0;
}
