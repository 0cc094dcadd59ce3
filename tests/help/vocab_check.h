/* vocab_check.h - what the tests of the tokenizer share: a small vocabulary, opening it, and comparing ids. */
#ifndef RATOON_TESTS_HELP_VOCAB_CHECK_H
#define RATOON_TESTS_HELP_VOCAB_CHECK_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>

#include "vocab_image.h"                           /* before cmocka.h, which has a macro named fail */

#include <cmocka.h>

static inline Tokenizer *open_ok(VocabImage *v)
{
    Tokenizer *t;
    Error err = { 0 };
    Status st = image_open(&t, v, &err);
    if (st != ST_OK) print_error("%s\n", err.text);
    assert_int_equal(st, ST_OK);
    return t;
}

static inline size_t encode(const Tokenizer *t, int32_t *ids, size_t cap, const char *s, size_t n, TokenizeOptions o)
{
    Status st = ST_IO;
    size_t count = tokenizer_encode(t, ids, cap, s, n, o, &st);
    assert_int_equal(st, ST_OK);
    return count;
}

/* The ids of s must be these, ended by -1. */
static inline void check_ids(const Tokenizer *t, const char *s, TokenizeOptions o, const int32_t *want)
{
    int32_t got[64];
    size_t count = encode(t, got, 64, s, strlen(s), o);
    for (size_t i = 0; i <= count; i++) {
        int32_t id = i < count ? got[i] : -1;
        if (id != want[i]) print_error("'%s', token %zu: %d, expected %d\n", s, i, id, want[i]);
        assert_int_equal(id, want[i]);
    }
}

#define ID_LIST(...) ((const int32_t[]) { __VA_ARGS__, -1 })
#define PLAIN    ((TokenizeOptions) { 0 })
#define SPECIAL  ((TokenizeOptions) { .parse_special = true })

/* lo=256, low=257, er=258, " l"=259 */
static inline VocabImage low_image(const char *pre)
{
    VocabImage v = image_begin(pre);
    image_merge(&v, "l o");
    image_merge(&v, "lo w");
    image_merge(&v, "e r");
    image_merge(&v, "\xc4\xa0 l");
    return v;
}

/* Of Gemma's kind: " "=256, newline=257, l=258, o=259, w=260, e with acute=261, lo=262, low=263, " low"=264, "w" and
 * that e=265, 2 newlines=266; 3 newlines=267 and <h>=268 are tokens that no merge makes. */
static inline VocabImage gemma_image(void)
{
    static const char *const LETTERS[] = { "\xe2\x96\x81", "\n", "l", "o", "w", "\xc3\xa9" },
                             *const MERGES[] = { "l o", "lo w", "\xe2\x96\x81 low", "w \xc3\xa9", "\n \n" };
    VocabImage v = image_begin_gemma();
    for (size_t i = 0; i < sizeof LETTERS / sizeof *LETTERS; i++) image_text(&v, LETTERS[i], TOKEN_NORMAL);
    for (size_t i = 0; i < sizeof MERGES / sizeof *MERGES; i++) image_merge(&v, MERGES[i]);
    image_text(&v, "\n\n\n", TOKEN_NORMAL);
    image_text(&v, "<h>", TOKEN_NORMAL);
    return v;
}

#endif
