#include "format/names.h"

#include <stdlib.h>
#include <string.h>

/* Length of the UTF-8 sequence at s, at most n bytes; 0 if invalid (also for overlong forms and surrogates). */
static size_t utf8_length(const unsigned char *s, size_t n)
{
    if (s[0] < 0x80) return 1;
    size_t   length = s[0] >= 0xf0 ? 4 : s[0] >= 0xe0 ? 3 : 2;
    unsigned low = s[0] == 0xe0 ? 0xa0 : s[0] == 0xf0 ? 0x90 : 0x80,
             high = s[0] == 0xed ? 0x9f : s[0] == 0xf4 ? 0x8f : 0xbf;
    if (s[0] < 0xc2 || s[0] > 0xf4 || length > n || s[1] < low || s[1] > high) return 0;
    for (size_t i = 2; i < length; i++)
        if ((s[i] & 0xc0) != 0x80) return 0;
    return length;
}

bool names_valid(const char *s, size_t n)
{
    const unsigned char *u = (const unsigned char *) s;
    for (size_t i = 0; i < n; ) {
        size_t length = utf8_length(u + i, n - i);
        if (length == 0 || u[i] < 0x20 || u[i] == 0x7f) return false;
        i += length;
    }
    return n > 0;
}

int names_shown(const char *name)
{
    size_t n = strnlen(name, 65);
    if (n <= 64) return (int) n;
    n = 64;
    while (((unsigned char) name[n] & 0xc0) == 0x80) n--;
    return (int) n;
}

static int by_name(const void *a, const void *b)
{
    const NameRef *x = a, *y = b;
    int order = strcmp(x->name, y->name);
    return order ? order : (x->i > y->i) - (x->i < y->i);
}

const NameRef *names_sort(NameRef *refs, int32_t n)
{
    if (n > 1) qsort(refs, (size_t) n, sizeof *refs, by_name);
    for (int32_t i = 1; i < n; i++)
        if (strcmp(refs[i - 1].name, refs[i].name) == 0) return &refs[i];
    return NULL;
}

int32_t names_find(const NameRef *refs, int32_t n, const char *name)
{
    int32_t low = 0, high = n;
    while (low < high) {
        int32_t middle = low + (high - low) / 2;
        int     order = strcmp(name, refs[middle].name);
        if (order == 0) return refs[middle].i;
        if (order < 0) high = middle;
        else low = middle + 1;
    }
    return -1;
}
