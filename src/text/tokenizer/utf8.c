#include "text/tokenizer/utf8.h"

#include <string.h>

#include "text/tokenizer/tokenizer.h"

/* Length of a character by its first byte; 0 if none starts with it. */
static int32_t lead_length(uint8_t b)
{
    if (b < 0x80) return 1;
    if (b < 0xc2) return 0;                        /* continuation bytes; C0 and C1 would be overlong */
    if (b < 0xe0) return 2;
    if (b < 0xf0) return 3;
    return b < 0xf5 ? 4 : 0;
}

/* Whether b may stand at place i (1..3) after the given first byte. The second byte decides about overlong forms (E0,
 * F0), surrogates (ED) and characters above U+10FFFF (F4). */
static bool continues(uint8_t lead, int32_t i, uint8_t b)
{
    uint8_t lo = 0x80, hi = 0xbf;
    if (i == 1) {
        if (lead == 0xe0) lo = 0xa0;
        if (lead == 0xed) hi = 0x9f;
        if (lead == 0xf0) lo = 0x90;
        if (lead == 0xf4) hi = 0x8f;
    }
    return b >= lo && b <= hi;
}

size_t utf8_next(const char *s, size_t n, uint32_t *cp)
{
    if (n == 0) return 0;
    const uint8_t *b = (const uint8_t *) s;
    int32_t len = lead_length(b[0]);
    if (len == 0 || (size_t) len > n) return 0;
    uint32_t c = len == 1 ? b[0] : b[0] & (0x7fu >> len);
    for (int32_t i = 1; i < len; i++) {
        if (!continues(b[0], i, b[i])) return 0;
        c = c << 6 | (b[i] & 0x3fu);
    }
    *cp = c;
    return (size_t) len;
}

size_t utf8_put(char *out, uint32_t cp)
{
    if (cp < 0x80) {
        out[0] = (char) cp;
        return 1;
    }
    size_t len = cp < 0x800 ? 2 : cp < 0x10000 ? 3 : 4;
    for (size_t i = len - 1; i > 0; i--) {
        out[i] = (char) (0x80 | (cp & 0x3f));
        cp >>= 6;
    }
    out[0] = (char) ((0xf00u >> len) | cp);
    return len;
}

size_t utf8_valid(const char *s, size_t n)
{
    size_t at = 0;
    while (at < n) {
        uint32_t cp;
        size_t len = utf8_next(s + at, n - at, &cp);
        if (len == 0) break;
        at += len;
    }
    return at;
}

static size_t put_replacement(char *out)
{
    memcpy(out, "\xef\xbf\xbd", 3);
    return 3;
}

/* The tail is always the beginning of a character, so one byte decides: either it continues the character, or the tail
 * was bad (one U+FFFD for all of it, as Unicode recommends) and the byte is read afresh. */
size_t utf8_stream(Utf8Stream *u, char *out, const char *bytes, size_t n)
{
    size_t w = 0;
    for (size_t i = 0; i < n; i++) {
        uint8_t b = (uint8_t) bytes[i];
        if (u->n > 0) {
            if (continues(u->tail[0], u->n, b)) {
                u->tail[u->n++] = b;
                if (u->n == lead_length(u->tail[0])) {
                    memcpy(out + w, u->tail, (size_t) u->n);
                    w += (size_t) u->n;
                    u->n = 0;
                }
                continue;
            }
            w += put_replacement(out + w);
            u->n = 0;
        }
        int32_t len = lead_length(b);
        if (len == 1) {
            out[w++] = (char) b;
        } else if (len == 0) {
            w += put_replacement(out + w);
        } else {
            u->tail[0] = b;
            u->n = 1;
        }
    }
    return w;
}

size_t utf8_stream_end(Utf8Stream *u, char *out)
{
    if (u->n == 0) return 0;
    u->n = 0;
    return put_replacement(out);
}
