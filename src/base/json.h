/* json.h - the one place where JSON from outside meets the parser (jansson). */
#ifndef RATOON_BASE_JSON_H
#define RATOON_BASE_JSON_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"

/* Parses n bytes of JSON (any value; a leading byte order mark is skipped). Duplicate keys and \u0000 are refused.
 * Nesting is limited to 128, values to JSON_VALUES_MAX, and containers among them to JSON_CONTAINERS_MAX, before the
 * parser runs: that bounds its stack and memory. This is the program's one JSON entry. The caller owns the result
 * (json_decref). name is for messages. ST_FORMAT, ST_MEMORY. */
enum { JSON_VALUES_MAX = 4 << 20, JSON_CONTAINERS_MAX = 1 << 20 };
Status json_read(json_t **out, const char *bytes, size_t n, const char *name, Error *err);
/* The same for what a model wrote: of a key given twice the last value counts, and strings may have zeros
 * (json_string_length). */
Status json_read_loose(json_t **out, const char *bytes, size_t n, const char *name, Error *err);
/* Makes U+FFFD of every \u0000 in n bytes of JSON, in place, for readers that take strings to end at a zero. */
void json_without_zeros(char *bytes, size_t n);
/* json_read with the caller's own bounds: an empty object of two bytes takes 220 as a value. */
Status json_read_bounded(json_t **out, const char *bytes, size_t n, const char *name, size_t values_max,
                         size_t containers_max, Error *err);
/* Calls see for j and everything in it; key is NULL except for members of objects. Returns false if j is nested deeper
 * than JSON_EACH_DEPTH, which is more than json_read accepts. */
enum { JSON_EACH_DEPTH = 160 };
bool json_each(json_t *j, void (*see)(void *ud, const char *key, const json_t *value), void *ud);

#endif
