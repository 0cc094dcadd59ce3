/* grow.h - an array that grows by doubling, with sizes that cannot wrap.
 *
 *     if (!grow_to(&l->item, &l->cap, l->n + 1, 64, sizeof *l->item)) return no_memory(l);
 *     l->item[l->n++] = item;
 */
#ifndef RATOON_BASE_GROW_H
#define RATOON_BASE_GROW_H

#include <stdlib.h>
#include <string.h>

#include "base/check.h"

/* The new capacity that holds `need`: `cap` (or `first` if 0), doubled as often as needed. Returns 0 if it would
 * overflow. */
static inline size_t grow_room(size_t cap, size_t need, size_t first)
{
    if (cap == 0) cap = first;
    while (cap < need)
        if (!check_mul(&cap, cap, 2)) return 0;
    return cap;
}

/* array: the address of a pointer to *cap elements of `size` bytes, which gets room for `need`. Returns false when out
 * of memory, and then leaves the array and *cap unchanged. */
static inline bool grow_to(void *array, size_t *cap, size_t need, size_t first, size_t size)
{
    size_t room = grow_room(*cap, need, first), bytes;
    void *at, *more;
    if (need <= *cap) return true;
    if (room == 0 || !check_mul(&bytes, room, size)) return false;
    memcpy(&at, array, sizeof at);                 /* a pointer of any type is not a void ** */
    more = realloc(at, bytes);
    if (!more) return false;
    memcpy(array, &more, sizeof more);
    *cap = room;
    return true;
}

#endif
