/* utf8.h - decodes one character at a time from bytes that may be anything.
 * Only what Unicode calls well formed counts (table 3-7): no overlong forms, no surrogates, nothing above U+10FFFF.
 * Everything in src/text that looks at characters of outside text uses these functions. */
#ifndef RATOON_TEXT_TOKENIZER_UTF8_H
#define RATOON_TEXT_TOKENIZER_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Length of the well-formed character that s starts with, 1 to 4, and the character in *cp; 0 if there is none. */
size_t utf8_next(const char *s, size_t n, uint32_t *cp);

/* Writes cp (at most U+10FFFF) to out, 1 to 4 bytes. */
size_t utf8_put(char *out, uint32_t cp);

/* Length of the longest well-formed beginning of s. */
size_t utf8_valid(const char *s, size_t n);

#endif
