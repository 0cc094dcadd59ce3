#include "programs/serve/answer/out.h"

#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/tokenizer/utf8.h"

/* How a byte is escaped in a string: 0 not at all, 'u' by number, otherwise the letter after the backslash. */
static char escape_of(unsigned char c)
{
    switch (c) {
    case '"': case '\\': return (char) c;
    case '\n': return 'n';
    case '\r': return 'r';
    case '\t': return 't';
    default:   return c < 0x20 || c == 0x7f ? 'u' : 0;
    }
}

static void put_escape(Out *o, unsigned char c, char how)
{
    char text[8];
    snprintf(text, sizeof text, how == 'u' ? "\\u%04x" : "\\%c", how == 'u' ? c : (unsigned char) how);
    out_text(o, text);
}

void out_string(Out *o, const char *s, size_t n)
{
    size_t from = 0;
    uint32_t cp;
    out_bytes(o, "\"", 1);
    for (size_t i = 0; i < n;) {
        size_t len = (unsigned char) s[i] < 0x80 ? 1 : utf8_next(s + i, n - i, &cp);
        char how = len == 1 ? escape_of((unsigned char) s[i]) : 0;
        if (len > 0 && !how) {
            i += len;
            continue;
        }
        out_bytes(o, s + from, i - from);
        if (len == 0) out_text(o, "\xef\xbf\xbd");
        else put_escape(o, (unsigned char) s[i], how);
        from = ++i;
    }
    out_bytes(o, s + from, n - from);
    out_bytes(o, "\"", 1);
}

static int put_piece(const char *s, size_t n, void *o)
{
    out_bytes(o, s, n);
    return ((Out *) o)->failed ? -1 : 0;
}

void out_value(Out *o, const json_t *v)
{
    if (!v) out_text(o, "null");
    else if (json_dump_callback(v, put_piece, o, JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(15)) != 0)
        o->failed = true;
}

static void put_number(Out *o, double x, char how)
{
    char text[64];
    if (isnan(x)) out_text(o, "null");
    else if (isinf(x)) out_text(o, x < 0 ? "-9999.0" : "9999.0");
    else {
        snprintf(text, sizeof text, how == 'f' ? "%.3f" : "%.7g", x);
        out_text(o, text);
    }
}

void out_json(Out *o, const char *format, ...)
{
    char text[32];
    va_list args;
    va_start(args, format);
    for (const char *f = format; *f;) {
        size_t n = strcspn(f, "'%");
        out_bytes(o, f, n);
        f += n;
        if (!*f) break;
        if (*f++ == '\'') {
            out_bytes(o, "\"", 1);
            continue;
        }
        const char *s;
        if (*f == 's') {
            if ((s = va_arg(args, const char *))) out_string(o, s, strlen(s));
            else out_text(o, "null");
        } else if (*f == 'd') {
            snprintf(text, sizeof text, "%d", va_arg(args, int));
            out_text(o, text);
        } else if (*f == 'i') {
            out_text(o, va_arg(args, int) ? "true" : "false");
        } else if (*f == 'l') {
            f += 2;
            snprintf(text, sizeof text, "%lld", va_arg(args, long long));
            out_text(o, text);
        } else {
            put_number(o, va_arg(args, double), *f);
        }
        f++;
    }
    va_end(args);
}

size_t whole_characters(const char *s, size_t n)
{
    for (size_t back = 1; back <= 3 && back <= n; back++) {
        unsigned char c = (unsigned char) s[n - back];
        if (c < 0x80) return n;
        if (c < 0xc0) continue;
        size_t len = c >= 0xf0 ? 4 : c >= 0xe0 ? 3 : 2;
        return len > back ? n - back : n;
    }
    return n;
}
