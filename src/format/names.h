/* names.h - finds keys and tensors by name. The index is sorted, not hashed: a file cannot choose names that make it slow, and a name
 * that occurs twice falls out of the sort. What counts as a name is decided here too, so that one can always be printed. */
#ifndef RATOON_FORMAT_NAMES_H
#define RATOON_FORMAT_NAMES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct { const char *name; int32_t i; } NameRef;

bool names_valid(const char *s, size_t n);         /* not empty, UTF-8, no control characters */
int  names_shown(const char *name);                /* bytes of a valid name that fit a message, ending between characters */

/* Sorts by name, equal names by i. Returns the first entry whose name occurred before (with the larger i), or NULL. */
const NameRef *names_sort(NameRef *refs, int32_t n);
int32_t names_find(const NameRef *refs, int32_t n, const char *name);      /* its i; -1: missing. refs are sorted */

#endif
