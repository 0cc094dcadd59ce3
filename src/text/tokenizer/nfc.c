#include "text/tokenizer/nfc.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "base/grow.h"
#include "text/tokenizer/utf8.h"

enum { MARKS_MAX = 256 };

static Status append(NfcText *t, const char *s, size_t n)
{
    size_t need;
    if (n == 0) return ST_OK;
    if (!check_add(&need, t->n, n) || !grow_to(&t->s, &t->cap, need, 64, 1)) return ST_MEMORY;
    memcpy(t->s + t->n, s, n);
    t->n = need;
    return ST_OK;
}

static size_t ascii_length(const char *s, size_t n)
{
    size_t i = 0;
    while (i < n && (uint8_t) s[i] < 0x80) i++;
    return i;
}

/* Length of the well-formed characters outside ASCII at s, with at most MARKS_MAX combining marks in a row. */
static size_t beyond_length(const char *s, size_t n)
{
    size_t i = 0;
    int32_t marks = 0;
    while (i < n && (uint8_t) s[i] >= 0x80) {
        uint32_t cp;
        size_t len = utf8_next(s + i, n - i, &cp);
        if (len == 0) break;
        marks = utf8proc_get_property((utf8proc_int32_t) cp)->combining_class ? marks + 1 : 0;
        if (marks > MARKS_MAX) break;
        i += len;
    }
    return i;
}

static Status append_composed(NfcText *t, const char *s, size_t n)
{
    utf8proc_uint8_t *composed = NULL;
    utf8proc_ssize_t len = utf8proc_map((const utf8proc_uint8_t *) s, (utf8proc_ssize_t) n, &composed,
                                        UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    if (len < 0) return ST_MEMORY;                 /* the characters are well formed, so only memory can be missing */
    Status st = append(t, (const char *) composed, (size_t) len);
    free(composed);
    return st;
}

Status nfc_text(NfcText *out, const char *s, size_t n)
{
    out->n = 0;
    for (size_t i = 0; i < n;) {
        size_t ascii = ascii_length(s + i, n - i);
        size_t beyond = beyond_length(s + i + ascii, n - i - ascii);
        if (beyond == 0) {                         /* the end, or a bad byte, which is kept */
            size_t len = ascii + (i + ascii < n);
            TRY(append(out, s + i, len));
            i += len;
            continue;
        }
        size_t alone = ascii ? ascii - 1 : 0;      /* the last ASCII letter may combine with a mark */
        TRY(append(out, s + i, alone));
        TRY(append_composed(out, s + i + alone, ascii - alone + beyond));
        i += ascii + beyond;
    }
    return ST_OK;
}
