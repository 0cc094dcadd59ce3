/* json.h - the one place where JSON from outside meets the parser (jansson). */
#ifndef RATOON_BASE_JSON_H
#define RATOON_BASE_JSON_H

#include <jansson.h>
#include <stddef.h>

#include "base/error.h"

/* Parses JSON of n bytes (any value; a byte order mark in front is skipped) with duplicate keys refused, and nesting bounded by 128 and
 * values by four million, a million of them containers, before the parser runs: that bounds its stack and memory (the one JSON entry
 * of the program). The result is the caller's (json_decref). name is for messages. ST_FORMAT, ST_MEMORY. */
Status json_read(json_t **out, const char *bytes, size_t n, const char *name, Error *err);

#endif
