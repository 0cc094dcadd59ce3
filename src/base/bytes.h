/* bytes.h - a growing byte string. An allocation failure sticks in `failed`, after which nothing is added: the writer
 * checks once, at the end. */
#ifndef RATOON_BASE_BYTES_H
#define RATOON_BASE_BYTES_H

#include <stdbool.h>
#include <stddef.h>

typedef struct { char *at; size_t n, cap; bool failed; } Bytes;    /* at [n], not NUL-terminated; NULL while empty */

bool bytes_room(Bytes *b, size_t n);               /* makes room for n more; returns false if failed */
void bytes_put(Bytes *b, const char *s, size_t n);
void bytes_char(Bytes *b, int c);
void bytes_text(Bytes *b, const char *s);          /* up to its NUL */
void bytes_free(Bytes *b);

#endif
