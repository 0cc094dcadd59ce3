#include "base/error.h"

#include <stdio.h>

/* Length of the character at s if it may be shown; 0 for a control character or malformed UTF-8. */
static size_t shown(const unsigned char *s)
{
    if (*s < 0x80) return *s >= 0x20 && *s != 0x7f;
    size_t n = *s < 0xc2 || *s > 0xf4 ? 0 : *s < 0xe0 ? 2 : *s < 0xf0 ? 3 : 4;
    unsigned char least = *s == 0xc2 || *s == 0xe0 ? 0xa0 : *s == 0xf0 ? 0x90 : 0x80;    /* C1, overlong */
    unsigned char most = *s == 0xed ? 0x9f : *s == 0xf4 ? 0x8f : 0xbf;      /* surrogates, above U+10FFFF */
    if (n == 0 || s[1] < least || s[1] > most) return 0;
    for (size_t i = 2; i < n; i++)
        if ((s[i] & 0xc0) != 0x80) return 0;
    return n;
}

void line_clean(char *s)
{
    for (size_t n; *s; s += n) {
        n = shown((const unsigned char *) s);
        if (n == 0) *s = '?', n = 1;
    }
}

Status fail(Error *err, Status code, const char *format, ...)
{
    if (err) {
        va_list args;
        va_start(args, format);
        vsnprintf(err->text, sizeof err->text, format, args);
        va_end(args);
        line_clean(err->text);
        err->code = code;
    }
    return code;
}
