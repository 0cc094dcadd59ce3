#include "programs/stops.h"

#include <stdlib.h>
#include <string.h>

/* Room for more bytes and one more token. */
static bool grow(Stops *s, size_t more)
{
    if (s->n + more > s->cap) {
        size_t cap = s->cap ? s->cap : 4096;
        while (cap < s->n + more) cap *= 2;
        char *text = realloc(s->text, cap);
        if (!text) return false;
        s->text = text;
        s->cap = cap;
    }
    if (s->n_tokens == s->cap_tokens) {
        int32_t cap = s->cap_tokens ? s->cap_tokens * 2 : 1024;
        size_t *end = realloc(s->end, sizeof *end * (size_t) cap);
        if (!end) return false;
        s->end = end;
        s->cap_tokens = cap;
    }
    return true;
}

/* What was shown cannot be part of a match: it would have waited. */
static void search(Stops *s)
{
    for (size_t at = s->shown; at < s->n; at++) {
        for (int32_t i = 0; i < s->stop->n; i++) {
            size_t len = strlen(s->stop->at[i]);
            if (len > s->n - at || memcmp(s->text + at, s->stop->at[i], len) != 0) continue;
            s->n = at;
            s->hit = true;
            return;
        }
    }
}

/* Bytes at the end of the text that are the beginning of a stop string. */
static size_t held(const Stops *s)
{
    size_t most = 0;
    for (int32_t i = 0; i < s->stop->n; i++) {
        size_t len = strlen(s->stop->at[i]), wait = s->n - s->shown;
        for (size_t k = len - 1 < wait ? len - 1 : wait; k > most; k--)
            if (memcmp(s->text + s->n - k, s->stop->at[i], k) == 0) most = k;
    }
    return most;
}

bool stops_feed(Stops *s, const char *bytes, size_t n)
{
    if (s->hit) return true;
    if (!grow(s, 3 * (n + 4))) return false;
    s->n += utf8_stream(&s->utf8, s->text + s->n, bytes, n);
    s->end[s->n_tokens++] = s->n + (size_t) s->utf8.n;
    search(s);
    return true;
}

bool stops_finish(Stops *s)
{
    if (s->hit) return true;
    if (!grow(s, 16)) return false;
    s->n += utf8_stream_end(&s->utf8, s->text + s->n);
    search(s);
    s->finished = true;
    return true;
}

const char *stops_show(Stops *s, size_t *n)
{
    size_t until = s->hit || s->finished ? s->n : s->n - held(s), from = s->shown;
    *n = until - from;
    s->shown = until;
    return s->text + from;
}

int32_t stops_tokens(const Stops *s)
{
    int32_t n = s->n_tokens;
    while (s->hit && n > 0 && s->end[n - 1] > s->n) n--;
    return n;
}

void stops_free(Stops *s)
{
    free(s->text);
    free(s->end);
    *s = (Stops) { 0 };
}
