/* out.h - bytes that grow, and JSON written into them in one pass. A lack of memory is noted once and makes every later call do nothing, so
 * that only the end has to look. Strings are always valid: what is no UTF-8 becomes U+FFFD. */
#ifndef RATOON_PROGRAMS_SERVE_OUT_H
#define RATOON_PROGRAMS_SERVE_OUT_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

typedef struct { char *s; size_t n, cap; bool failed; } Out;       /* s is not ended by a zero */

void out_free(Out *o);
void out_bytes(Out *o, const char *s, size_t n);
void out_text(Out *o, const char *s);              /* as it is */
void out_string(Out *o, const char *s, size_t n);  /* with quotes and escapes */
void out_value(Out *o, const json_t *v);           /* NULL: null */

/* A piece of JSON: ' stands for the double quote, %s is a string (NULL: null), %d and %lld whole numbers, %i true or false, %f a number with
 * three digits behind the point, %g one with seven in all (infinite: -9999, none: null). */
void out_json(Out *o, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Bytes of s that are no beginning of a character whose end is still to come. */
size_t whole_characters(const char *s, size_t n);

#endif
