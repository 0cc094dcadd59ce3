/* out.h - writes JSON into a growing buffer in one pass. An out-of-memory is recorded in the buffer, so only the end
 * has to check for it. Strings are always valid: invalid UTF-8 becomes U+FFFD. */
#ifndef RATOON_PROGRAMS_SERVE_ANSWER_OUT_H
#define RATOON_PROGRAMS_SERVE_ANSWER_OUT_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/bytes.h"

typedef Bytes Out;

static inline void out_free(Out *o) { bytes_free(o); }
static inline void out_bytes(Out *o, const char *s, size_t n) { bytes_put(o, s, n); }
static inline void out_text(Out *o, const char *s) { bytes_text(o, s); }       /* unescaped */
void out_string(Out *o, const char *s, size_t n);  /* with quotes and escapes */
void out_value(Out *o, const json_t *v);           /* NULL: null */

/* A piece of JSON: ' stands for the double quote, %s is a string (NULL: null), %d and %lld integers, %i true or false,
 * %f a number with three decimals, %g one with seven significant digits (infinite: -9999, NaN: null). */
void out_json(Out *o, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Length of s without an incomplete character at its end. */
size_t whole_characters(const char *s, size_t n);

#endif
