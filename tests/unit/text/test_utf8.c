/* Characters of outside text: what counts as UTF-8, streaming in portions of any size, and normalisation in
 * portions. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>

#include "base/error.h"
#include "text/tokenizer/nfc.h"
#include "text/tokenizer/tokenizer.h"
#include "text/tokenizer/utf8.h"

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

/* The Unicode standard's table 3-7, row by row: first byte, second byte, bytes in all. */
static const struct { uint8_t lo, hi, lo2, hi2; size_t n; } TABLE[] = {
    { 0x00, 0x7f, 0, 0, 1 }, { 0xc2, 0xdf, 0x80, 0xbf, 2 }, { 0xe0, 0xe0, 0xa0, 0xbf, 3 },
    { 0xe1, 0xec, 0x80, 0xbf, 3 },
    { 0xed, 0xed, 0x80, 0x9f, 3 }, { 0xee, 0xef, 0x80, 0xbf, 3 }, { 0xf0, 0xf0, 0x90, 0xbf, 4 },
    { 0xf1, 0xf3, 0x80, 0xbf, 4 },
    { 0xf4, 0xf4, 0x80, 0x8f, 4 },
};

/* Number of bytes of s that fit its row of the table; *whole: they are a complete character. */
static size_t fit(const uint8_t *s, size_t n, bool *whole)
{
    *whole = false;
    for (size_t r = 0; r < sizeof TABLE / sizeof *TABLE; r++) {
        if (s[0] < TABLE[r].lo || s[0] > TABLE[r].hi) continue;
        size_t k = 1;
        while (k < TABLE[r].n && k < n && s[k] >= (k == 1 ? TABLE[r].lo2 : 0x80) &&
               s[k] <= (k == 1 ? TABLE[r].hi2 : 0xbf))
            k++;
        *whole = k == TABLE[r].n;
        return k;
    }
    return 1;
}

/* The text that a reader of all of s at once makes: one U+FFFD for each bad beginning, taken as long as possible. */
static size_t expected_text(char *out, const uint8_t *s, size_t n)
{
    size_t w = 0;
    for (size_t i = 0; i < n;) {
        bool whole;
        size_t k = fit(s + i, n - i, &whole);
        memcpy(out + w, whole ? (const char *) s + i : "\xef\xbf\xbd", whole ? k : 3);
        w += whole ? k : 3;
        i += k;
    }
    return w;
}

static const uint8_t EDGES[] = {
    0x00, 0x41, 0x7f, 0x80, 0x8f, 0x90, 0x9f, 0xa0, 0xbf, 0xc0, 0xc1, 0xc2, 0xdf, 0xe0, 0xe1, 0xec, 0xed, 0xee, 0xef,
    0xf0, 0xf1, 0xf3, 0xf4, 0xf5, 0xff,
};
enum { N_EDGES = sizeof EDGES };

static void check_stream(const uint8_t *s, size_t n)
{
    char want[32], got[48];
    size_t n_want = expected_text(want, s, n);
    for (size_t cut = 0; cut <= n + 1; cut++) {    /* in two portions, and byte by byte */
        Utf8Stream u = { 0 };
        size_t w = 0;
        if (cut <= n) {
            w += utf8_stream(&u, got + w, (const char *) s, cut);
            assert_int_equal(utf8_valid(got, w), w);
            w += utf8_stream(&u, got + w, (const char *) s + cut, n - cut);
        } else {
            for (size_t i = 0; i < n; i++) w += utf8_stream(&u, got + w, (const char *) s + i, 1);
        }
        assert_in_range(u.n, 0, 3);
        assert_int_equal(utf8_valid(got, w), w);   /* no incomplete character is ever written */
        w += utf8_stream_end(&u, got + w);
        assert_int_equal(u.n, 0);
        assert_int_equal(w, n_want);
        assert_memory_equal(got, want, w);
    }
}

static void stream_all_edges(void **state)
{
    (void) state;
    uint8_t s[5];
    for (int a = 0; a < N_EDGES; a++)
        for (int b = 0; b < N_EDGES; b++)
            for (int c = 0; c < N_EDGES; c++)
                for (int d = 0; d < N_EDGES; d++) {
                    memcpy(s, (uint8_t[]) { EDGES[a], EDGES[b], EDGES[c], EDGES[d], 0x41 }, 5);
                    check_stream(s, (size_t) (1 + (a + b + c + d) % 5));
                    if (d % 8 == 0) check_stream(s, 4);
                }
}

static void stream_holds_back(void **state)
{
    (void) state;
    Utf8Stream u = { 0 };
    char out[16];
    assert_int_equal(utf8_stream(&u, out, "a\xf0\x9f\x99", 4), 1);
    assert_int_equal(u.n, 3);
    assert_int_equal(utf8_stream(&u, out, "\x82", 1), 4);
    assert_memory_equal(out, "\xf0\x9f\x99\x82", 4);
    assert_int_equal(utf8_stream(&u, out, "\xed\xa0", 2), 6);   /* never valid, so nothing is held back */
    assert_int_equal(utf8_stream_end(&u, out), 0);
    assert_int_equal(utf8_stream(&u, out, "\xe2\x82", 2), 0);
    assert_int_equal(utf8_stream_end(&u, out), 3);
    assert_memory_equal(out, "\xef\xbf\xbd", 3);
}

static void every_character(void **state)
{
    (void) state;
    for (uint32_t cp = 0; cp < 0x110000; cp++) {
        char s[4];
        uint32_t back = ~cp;
        size_t n = utf8_put(s, cp);
        if (cp >= 0xd800 && cp < 0xe000) {
            assert_int_equal(utf8_next(s, n, &back), 0);
            continue;
        }
        assert_int_equal(utf8_next(s, n, &back), n);
        assert_int_equal(back, cp);
        for (size_t cut = 0; cut < n; cut++) assert_int_equal(utf8_next(s, cut, &back), 0);
    }
}

static void valid_length(void **state)
{
    (void) state;
    for (int a = 0; a < 256; a++)
        for (int b = 0; b < 256; b++) {
            bool whole;
            uint8_t s[4] = { (uint8_t) a, (uint8_t) b, 0x80, 0x80 };
            size_t k = fit(s, 4, &whole);
            uint32_t cp;
            assert_int_equal(utf8_next((const char *) s, 4, &cp), whole ? k : 0);
        }
    assert_int_equal(utf8_valid("", 0), 0);
    assert_int_equal(utf8_valid("ab\xff", 3), 2);
    assert_int_equal(utf8_valid("ab\xe2\x82", 4), 2);
}

static uint64_t random_next(uint64_t *s)
{
    *s ^= *s << 13;
    *s ^= *s >> 7;
    *s ^= *s << 17;
    return *s;
}

/* Letters that compose, marks of several classes, Hangul parts, singletons, ASCII between. */
static const uint32_t COMPOSING[] = {
    'a', 'e', ' ', 'o', 0x301, 0x300, 0x323, 0x327, 0x345, 0xe9, 0x1ea5, 0x212b, 0x2126, 0x1100, 0x1161, 0x11a8, 0xac00,
    0x4e2d, 0x5d0, 0x5bc, 0x5b0, 0x958, 0x93c, 0x915, 0x1d15e, 0xfb1d, 0x3b1, 0x313, 0x342, 0x1f600, 0x200d, 0xf73,
    0xf71, 0xf72,
};

static void nfc_like_utf8proc(void **state)
{
    (void) state;
    uint64_t seed = 88172645463325252u;
    NfcText out = { 0 };
    for (int round = 0; round < 20000; round++) {
        char s[160];
        size_t n = 0, length = random_next(&seed) % 24;
        for (size_t i = 0; i < length; i++)
            n += utf8_put(s + n, COMPOSING[random_next(&seed) % (sizeof COMPOSING / sizeof *COMPOSING)]);
        s[n] = 0;
        utf8proc_uint8_t *want = utf8proc_NFC((const utf8proc_uint8_t *) s);
        assert_int_equal(nfc_text(&out, s, n), ST_OK);
        assert_int_equal(out.n, strlen((char *) want));
        if (out.n) assert_memory_equal(out.s, want, out.n);
        free(want);
    }
    assert_int_equal(nfc_text(&out, "e\xcc\x81\xff\xcc\x81z\xe2\x82", 9), ST_OK);   /* bad bytes stay in place */
    assert_int_equal(out.n, 8);
    assert_memory_equal(out.s, "\xc3\xa9\xff\xcc\x81z\xe2\x82", 8);
    free(out.s);
}

/* Sorting a million marks of alternating classes would take hours. */
static void nfc_mark_run(void **state)
{
    (void) state;
    enum { N = 1000000 };
    char *s = malloc(2 * N);
    for (int i = 0; i < N; i++) memcpy(s + 2 * i, i % 2 ? "\xcc\xa3" : "\xcc\x81", 2);
    NfcText out = { 0 };
    assert_int_equal(nfc_text(&out, s, 2 * N), ST_OK);
    assert_int_equal(out.n, 2 * N);
    free(out.s);
    free(s);
}

/* What a log line may contain: every character but the controls, nothing else; each bad byte becomes one '?'. */
static void clean_lines(void **state)
{
    (void) state;
    for (uint32_t cp = 1; cp <= 0x10ffff; cp++) {
        if (cp >= 0xd800 && cp < 0xe000) continue;
        char s[8] = "a", t[8];
        size_t n = 1 + utf8_put(s + 1, cp);
        memcpy(t, s, sizeof t);
        line_clean(t);
        bool control = cp < 0x20 || (cp >= 0x7f && cp < 0xa0);
        if (control) memset(s + 1, '?', n - 1);
        assert_string_equal(t, s);
    }
    uint64_t seed = 5;
    for (int round = 0; round < 200000; round++) { /* bytes of all kinds, mostly leads and continuations */
        unsigned char s[8] = { 0 }, t[8];
        for (int i = 0; i < 6; i++) s[i] = (unsigned char) (1 + random_next(&seed) % 255);
        if (round & 1) s[0] |= 0xc0;
        for (int i = 1; i < 3 && (round & 1); i++) s[i] = (unsigned char) (0x80 | (s[i] & 0x3f));
        memcpy(t, s, sizeof t);
        line_clean((char *) t);
        for (size_t i = 0, len; s[i]; i += len) {
            uint32_t cp = 0;
            len = utf8_next((char *) s + i, 6 - i, &cp);
            bool bad = len == 0 || cp < 0x20 || (cp >= 0x7f && cp < 0xa0);
            if (len == 0) len = 1;
            for (size_t k = i; k < i + len; k++) assert_int_equal(t[k], bad ? '?' : s[k]);
        }
    }
    Error err;
    (fail)(&err, ST_FORMAT, "tensor '%s'", "a\xc2\x9b" "2J\x1b[m\xff");
    assert_string_equal(err.text, "tensor 'a??2J?[m?'");
}

int main(int argc, char **argv)
{
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stream_all_edges), cmocka_unit_test(stream_holds_back), cmocka_unit_test(every_character),
        cmocka_unit_test(valid_length), cmocka_unit_test(nfc_like_utf8proc), cmocka_unit_test(nfc_mark_run),
        cmocka_unit_test(clean_lines),
    };
    return cmocka_run_group_tests_name("utf8", tests, NULL, NULL);
}
