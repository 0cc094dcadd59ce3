#include "programs/hub/hub_header.h"

#include <stdbool.h>
#include <string.h>

enum { STRING = 8, ARRAY = 9 };

/* short_of: the end was reached before the value; bad: no header looks like this. */
typedef struct { const uint8_t *at; size_t n, used; bool short_of, bad; } Walk;

static void skip(Walk *w, uint64_t n)
{
    w->short_of |= n > w->n - w->used;
    if (!w->short_of) w->used += (size_t) n;
}

static uint64_t number(Walk *w, size_t bytes)
{
    uint64_t v = 0;
    size_t from = w->used;
    skip(w, bytes);
    for (size_t i = 0; i < bytes && !w->short_of; i++) v |= (uint64_t) w->at[from + i] << (8 * i);
    return v;
}

/* Bytes of a value of a fixed size; 0: no such type. */
static uint64_t width(uint64_t type)
{
    static const uint8_t bytes[] = { 1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8 };
    return type < sizeof bytes ? bytes[type] : 0;
}

static void skip_value(Walk *w)
{
    uint64_t type = number(w, 4), count = 1;
    if (type == ARRAY) {
        type = number(w, 4);
        count = number(w, 8);
    }
    uint64_t one = width(type), all;
    if (w->short_of) return;
    if (type == STRING) {
        for (uint64_t i = 0; i < count && !w->short_of; i++) skip(w, number(w, 8));
    } else if (one == 0 || __builtin_mul_overflow(one, count, &all)) {
        w->bad = true;
    } else {
        skip(w, all);
    }
}

static int64_t gguf_length(const uint8_t *bytes, size_t n)
{
    Walk w = { .at = bytes, .n = n, .used = 8 };
    uint64_t tensors = number(&w, 8), keys = number(&w, 8);
    for (uint64_t i = 0; i < keys && !w.short_of && !w.bad; i++) {
        skip(&w, number(&w, 8));
        skip_value(&w);
    }
    for (uint64_t i = 0; i < tensors && !w.short_of && !w.bad; i++) {
        skip(&w, number(&w, 8));
        uint64_t dims = number(&w, 4);
        w.bad = dims > 8;
        skip(&w, dims * 8 + 4 + 8);
    }
    return w.bad ? -1 : w.short_of ? 0 : (int64_t) w.used;
}

int64_t hub_header_length(const void *bytes, size_t n)
{
    const uint8_t *b = bytes;
    Walk w = { .at = b, .n = n };
    if (n < 8) return 0;
    if (memcmp(b, "GGUF", 4) == 0) return b[4] == 2 || b[4] == 3 ? gguf_length(b, n) : -1;
    uint64_t json = number(&w, 8);
    if (json > 100u << 20 || json < 2 || (n > 8 && b[8] != '{')) return -1;
    return json + 8 <= n ? (int64_t) (json + 8) : 0;
}
