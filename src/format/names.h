/* names.h - finds keys and tensors by name. The index is sorted, not hashed: no choice of names can make it slow, and
 * sorting reveals duplicates. The rule for valid names is here too, so that a name can always be printed. */
#ifndef RATOON_FORMAT_NAMES_H
#define RATOON_FORMAT_NAMES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct { const char *name; int32_t i; } NameRef;

bool names_valid(const char *s, size_t n);  /* not empty, UTF-8, no control characters */
int  names_shown(const char *name);         /* bytes of a valid name that fit a message, cut between characters */

/* Sorts by name, equal names by i. Returns the first entry (the one with the larger i) whose name occurred before, or
 * NULL. */
const NameRef *names_sort(NameRef *refs, int32_t n);
int32_t names_find(const NameRef *refs, int32_t n, const char *name);      /* its i; -1: missing. refs are sorted */

#endif
