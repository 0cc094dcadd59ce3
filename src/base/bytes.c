#include "base/bytes.h"

#include "base/grow.h"

bool bytes_room(Bytes *b, size_t n)
{
    size_t need;
    if (!b->failed) b->failed = !check_add(&need, b->n, n) || !grow_to(&b->at, &b->cap, need, 64, 1);
    return !b->failed;
}

void bytes_put(Bytes *b, const char *s, size_t n)
{
    if (n == 0 || !bytes_room(b, n)) return;
    memcpy(b->at + b->n, s, n);
    b->n += n;
}

void bytes_char(Bytes *b, int c)
{
    char byte = (char) c;
    bytes_put(b, &byte, 1);
}

void bytes_text(Bytes *b, const char *s) { bytes_put(b, s, strlen(s)); }

void bytes_free(Bytes *b)
{
    free(b->at);
    *b = (Bytes) { 0 };
}
