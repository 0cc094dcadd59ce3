/* Where text is divided: against the models' own expressions in another engine (pretokens.h), against the same rules
 * written out by hand (spec/tokenizer.md section 4.1) on random text, and on long lines. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/tokenizer/pretokenize.h"
#include "text/tokenizer/utf8.h"

#include <cmocka.h>

#include <pcre2.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <utf8proc.h>

#include "pretokens.h"
#include "random_below.h"

static Pretokenizer *open_pre(const char *name)
{
    Pretokenizer *p = NULL;
    Error err = { 0 };
    assert_int_equal(pretokenize_open(&p, name, strlen(name), &err), ST_OK);
    return p;
}

/* Lengths of all pieces; their number. */
static size_t cut(PretokenCursor *c, size_t *out, size_t cap, const char *s, size_t n)
{
    size_t count = 0, sum = 0, piece;
    Status st;
    assert_int_equal(pretokenize_begin(c, s, n), ST_OK);
    while ((st = pretokenize_next(c, &piece)) == ST_OK) {
        assert_true(piece > 0);
        if (count < cap) out[count] = piece;
        count++;
        sum += piece;
    }
    assert_int_equal(st, ST_END);
    assert_int_equal(sum, n);
    return count;
}

static void like_other_engine(void **state)
{
    (void) state;
    for (int p = 0; p < PRETOKENS_PATTERNS; p++) {
        Pretokenizer *pre = open_pre(PRETOKENS_NAMES[p]);
        PretokenCursor *c;
        assert_int_equal(pretokenize_cursor(&c, pre), ST_OK);
        for (size_t i = 0; i < sizeof PRETOKENS / sizeof *PRETOKENS; i++) {
            size_t got[256], count = cut(c, got, 256, PRETOKENS[i].s, PRETOKENS[i].n);
            const uint8_t *want = PRETOKENS[i].cuts[p];
            for (size_t k = 0; k <= count; k++) {
                if (want[k] != (k < count ? got[k] : 0))
                    print_error("%s, text %zu '%s', piece %zu: %zu bytes, expected %d\n", pretokenize_name(pre), i,
                                PRETOKENS[i].s, k, k < count ? got[k] : 0, want[k]);
                assert_int_equal(want[k], k < count ? got[k] : 0);
            }
        }
        pretokenize_cursor_free(c);
        pretokenize_close(pre);
    }
}

/* ---- the rules in words ---- */

typedef struct { bool gpt2, mark; size_t digits; } WordList;
typedef enum { SPACE, LETTER, MARK, NUMBER, OTHER } Class;

static Class class_of(uint32_t c)
{
    if ((c >= 9 && c <= 13) || c == 0x20 || c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) ||
        c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000)
        return SPACE;
    switch (utf8proc_category((utf8proc_int32_t) c)) {
    case UTF8PROC_CATEGORY_LU: case UTF8PROC_CATEGORY_LL: case UTF8PROC_CATEGORY_LT: case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO: return LETTER;
    case UTF8PROC_CATEGORY_MN: case UTF8PROC_CATEGORY_MC: case UTF8PROC_CATEGORY_ME: return MARK;
    case UTF8PROC_CATEGORY_ND: case UTF8PROC_CATEGORY_NL: case UTF8PROC_CATEGORY_NO: return NUMBER;
    default: return OTHER;
    }
}

/* Marks count as letters, or as other characters. */
static Class class_in(const WordList *w, uint32_t c)
{
    Class k = class_of(c);
    return k == MARK ? (w->mark ? LETTER : OTHER) : k;
}

static size_t run_of(const WordList *w, const uint32_t *s, size_t p, size_t n, Class k)
{
    size_t q = p;
    while (q < n && class_in(w, s[q]) == k) q++;
    return q - p;
}

static uint32_t lower(const WordList *w, uint32_t c) { return !w->gpt2 && c >= 'A' && c <= 'Z' ? c + 32 : c; }

static size_t contraction(const WordList *w, const uint32_t *s, size_t p, size_t n)
{
    if (s[p] != '\'' || p + 1 >= n) return 0;
    uint32_t a = lower(w, s[p + 1]), b = p + 2 < n ? lower(w, s[p + 2]) : 0;
    if (a == 's' || a == 't' || a == 'm' || a == 'd') return 2;
    return (a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l') ? 3 : 0;
}

static size_t spaces(const WordList *w, const uint32_t *s, size_t p, size_t n)
{
    size_t k = run_of(w, s, p, n, SPACE), last = 0;
    if (!w->gpt2)
        for (size_t i = 0; i < k; i++)
            if (s[p + i] == '\r' || s[p + i] == '\n') last = i + 1;
    if (last) return last;
    return k > 1 && p + k < n ? k - 1 : k;
}

static size_t rule_gpt2(const WordList *w, const uint32_t *s, size_t p, size_t n)
{
    size_t k = contraction(w, s, p, n), q = s[p] == ' ' ? p + 1 : p;
    if (k) return k;
    if (q < n && class_in(w, s[q]) != SPACE) return q - p + run_of(w, s, q, n, class_in(w, s[q]));
    return spaces(w, s, p, n);
}

static size_t rule_qwen(const WordList *w, const uint32_t *s, size_t p, size_t n)
{
    size_t k = contraction(w, s, p, n), q = s[p] == ' ' ? p + 1 : p;
    Class c = class_in(w, s[p]);
    if (k) return k;
    if (c == LETTER) return run_of(w, s, p, n, LETTER);
    if (s[p] != '\r' && s[p] != '\n' && c != NUMBER && p + 1 < n && class_in(w, s[p + 1]) == LETTER)
        return 1 + run_of(w, s, p + 1, n, LETTER);
    if (c == NUMBER) {
        k = run_of(w, s, p, n, NUMBER);
        return k < w->digits ? k : w->digits;
    }
    if (q < n && class_in(w, s[q]) == OTHER) {
        q += run_of(w, s, q, n, OTHER);
        while (q < n && (s[q] == '\r' || s[q] == '\n')) q++;
        return q - p;
    }
    return spaces(w, s, p, n);
}

static size_t by_words(const WordList *w, const uint32_t *s, size_t p, size_t n)
{
    return w->gpt2 ? rule_gpt2(w, s, p, n) : rule_qwen(w, s, p, n);
}

static bool same_side(const char *name, const WordList *w, uint32_t a, uint32_t b)
{
    if (strcmp(name, "laguna") == 0) return (a == '\n') == (b == '\n');
    if (strcmp(name, "smollm") == 0) return class_in(w, a) != NUMBER && class_in(w, b) != NUMBER;
    return true;
}

static const struct { const char *name; WordList words; } PATTERNS[] = {
    { "qwen2", { false, false, 1 } }, { "qwen35", { false, true, 1 } }, { "llama-bpe", { false, false, 3 } },
    { "gpt-2", { true, false, 0 } },
    { "smollm", { true, false, 0 } }, { "laguna", { false, false, 1 } },
};

static const uint32_t TELLING[] = {
    '\'', '\'', 's', 'S', 't', 'r', 'E', 'v', 'e', 'l', 'L', 'm', 'D', 'a', 'Z', ' ', ' ', ' ', '\n', '\n', '\r', '\t',
    0, 1, '0', '7', '9', '=',
    '!', '_', '(', 0x85, 0xa0, 0x17f, 0x180e, 0x1680, 0x2003, 0x2028, 0x202f, 0x205f, 0x3000, 0x200b, 0xfeff, 0x301,
    0x323, 0x94d, 0x93e, 0x20dd, 0xe9, 0x416, 0x5d0, 0x4e2d, 0xac00, 0x2b0, 0x1c5, 0xaa, 0x660, 0xbd, 0x2167, 0x1f600,
    0x20ac, 0xe000, 0x1d4d0, 0x1d7d9, 0x10ffff, 0x378,
};

/* The two libraries follow different versions of Unicode: characters that one of them does not know are left out. */
static bool known_to_both(uint32_t c)
{
    static pcre2_code *unassigned;
    static pcre2_match_data *match;
    int code;
    PCRE2_SIZE at;
    if (!unassigned) {
        unassigned = pcre2_compile((PCRE2_SPTR) "\\p{Cn}", PCRE2_ZERO_TERMINATED, PCRE2_UTF, &code, &at, NULL);
        match = pcre2_match_data_create(1, NULL);
    }
    assert_non_null(unassigned);
    assert_non_null(match);
    char s[4];
    size_t n = utf8_put(s, c);
    return (c < 0xd800 || c >= 0xe000) && utf8proc_category((utf8proc_int32_t) c) != UTF8PROC_CATEGORY_CN &&
           pcre2_match(unassigned, (PCRE2_SPTR) s, n, 0, 0, match, NULL) == PCRE2_ERROR_NOMATCH;
}

static uint32_t random_character(void)
{
    if (random_below(12)) return TELLING[random_below(sizeof TELLING / sizeof *TELLING)];
    uint32_t c = random_below(random_below(2) ? 0x3000 : 0x110000);
    return known_to_both(c) ? c : 'x';
}

/* 10^5 texts in all patterns. Some get bad bytes, which the rules treat as symbols. */
static void like_the_words(void **state)
{
    (void) state;
    enum { MOST = 24 };
    PretokenCursor *c[6];
    Pretokenizer *pre[6];
    reseed();
    for (int p = 0; p < 6; p++) {
        pre[p] = open_pre(PATTERNS[p].name);
        assert_int_equal(pretokenize_cursor(&c[p], pre[p]), ST_OK);
    }
    for (int round = 0; round < 100000; round++) {
        uint32_t cp[MOST];
        size_t at[MOST + 1], length = 1 + random_below(MOST), n = 0;
        char text[4 * MOST];
        bool bad = round % 4 == 0;
        for (size_t i = 0; i < length; i++) {
            at[i] = n;
            cp[i] = random_character();
            if (bad && random_below(4) == 0) {  /* never a lead byte that the next character would complete */
                cp[i] = 1;
                text[n++] = (char) (random_below(2) ? 0xff : 0xc1);
            } else {
                n += utf8_put(text + n, cp[i]);
            }
        }
        at[length] = n;
        for (int p = 0; p < 6; p++) {
            const WordList *w = &PATTERNS[p].words;
            size_t got[MOST], count = cut(c[p], got, MOST, text, n), k = 0, q = 0, end = 0;
            while (q < length) {
                if (q == end)                      /* the first stage's piece */
                    for (end = q + 1; end < length && same_side(PATTERNS[p].name, w, cp[end - 1], cp[end]); end++) { }
                size_t piece = by_words(w, cp, q, end);
                if (k >= count || got[k] != at[q + piece] - at[q]) {
                    print_error("%s, round %d, piece %zu of '%.*s'\n", PATTERNS[p].name, round, k, (int) n, text);
                    assert_int_equal(k < count ? got[k] : 0, at[q + piece] - at[q]);
                }
                q += piece;
                k++;
            }
            assert_int_equal(k, count);
        }
    }
    for (int p = 0; p < 6; p++) {
        pretokenize_cursor_free(c[p]);
        pretokenize_close(pre[p]);
    }
}

/* One character repeated, in all patterns, in less than quadratic time; the whole is one piece, or each character
 * is. */
static void long_lines(void **state)
{
    (void) state;
    enum { N = 1000000 };
    static const struct { const char *s; size_t n, before_word; } LINES[] = {
        { "a", 1, 1 }, { "=", 1, 2 }, { " ", 1, 2 }, { "\n", 1, 2 }, { "\t ", 2, 2 }, { "\r\n", 2, 2 },
        { "\xcc\x81", 2, 2 },
        { "\xe4\xb8\xad", 3, 1 }, { "\xf0\x9f\x99\x82", 4, 2 }, { "\xee\x80\x80", 3, 2 }, { "\xd7\x90", 2, 1 },
        { "\xff", 1, 2 }, { "7", 1, 0 },
    };
    char *s = malloc(4 * N + 1);
    for (int p = 0; p < 6; p++) {
        Pretokenizer *pre = open_pre(PATTERNS[p].name);
        PretokenCursor *c;
        assert_int_equal(pretokenize_cursor(&c, pre), ST_OK);
        for (size_t i = 0; i < sizeof LINES / sizeof *LINES; i++) {
            size_t n = 0, pieces[4];
            while (n < N) {
                memcpy(s + n, LINES[i].s, LINES[i].n);
                n += LINES[i].n;
            }
            clock_t start = clock();
            size_t alone = cut(c, pieces, 4, s, n);
            if (LINES[i].before_word && strcmp(PATTERNS[p].name, "laguna") != 0) assert_int_equal(alone, 1);
            s[n] = 'x';                            /* the run no longer ends the text: look-ahead and backtracking */
            cut(c, pieces, 4, s, n + 1);
            double took = (double) (clock() - start) / CLOCKS_PER_SEC;
            if (took > 2) print_error("%s, line %zu: %.1f s\n", PATTERNS[p].name, i, took);
            assert_true(took < 10);                /* linear: about 0.1 s; quadratic: hours */
        }
        pretokenize_cursor_free(c);
        pretokenize_close(pre);
    }
    free(s);
}

static void names(void **state)
{
    (void) state;
    static const struct { const char *name, *pattern; bool llama3; } NAMES[] = {
        { "qwen2", "qwen2", false }, { "deepseek-r1-qwen", "qwen2", false }, { "megrez", "qwen2", false },
        { "qwen35", "qwen35", false },
        { "llama-bpe", "llama-bpe", true }, { "llama3", "llama-bpe", true }, { "llama-v3", "llama-bpe", true },
        { "falcon3", "llama-bpe", true },
        { "lfm2", "llama-bpe", true }, { "gpt-2", "gpt-2", false }, { "mpt", "gpt-2", false },
        { "olmo", "gpt-2", false },
        { "smollm", "smollm", false }, { "starcoder", "smollm", false }, { "refact", "smollm", false },
        { "command-r", "smollm", false },
        { "codeshell", "smollm", false }, { "laguna", "laguna", false }, { "gemma4", "gemma4", false },
    };
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++) {
        Pretokenizer *p = open_pre(NAMES[i].name);
        assert_string_equal(pretokenize_name(p), NAMES[i].pattern);
        assert_int_equal(pretokenize_llama3(p), NAMES[i].llama3);
        assert_int_equal(pretokenize_gemma4(p), strcmp(NAMES[i].pattern, "gemma4") == 0);
        pretokenize_close(p);
    }
    static const char *const REFUSED[] = { "", "default", "qwen", "qwen22", "QWEN2", "tekken", "gpt-2\n",
                                           "deepseek-llm" };
    for (size_t i = 0; i < sizeof REFUSED / sizeof *REFUSED; i++) {
        Pretokenizer *p = NULL;
        assert_int_equal(pretokenize_open(&p, REFUSED[i], strlen(REFUSED[i]), NULL), ST_UNSUPPORTED);
        assert_null(p);
    }
}

int main(int argc, char **argv)
{
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(like_other_engine), cmocka_unit_test(like_the_words), cmocka_unit_test(long_lines),
        cmocka_unit_test(names),
    };
    return cmocka_run_group_tests_name("pretokenize", tests, NULL, NULL);
}
