#include "programs/chat/splice.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

SpliceSecret splice_secret(const unsigned char random[12])
{
    SpliceSecret s;
    for (size_t i = 0; i < 12; i++) snprintf(s.text + 2 * i, sizeof s.text - 2 * i, "%02x", random[i]);
    return s;
}

SpliceMark splice_mark(const SpliceSecret *s, const char *what, size_t message)
{
    SpliceMark m;
    snprintf(m.text, sizeof m.text, "@@%s.%s%zu@@", s->text, what, message);
    return m;
}

bool splice_find(size_t *at, size_t *end, const TemplateText *text, size_t from, const SpliceMark *mark)
{
    size_t n = strlen(mark->text);
    const char *found = memmem(text->text + from, text->n - from, mark->text, n);
    if (!found) return false;
    *at = (size_t) (found - text->text);
    *end = *at + n;
    return !memmem(text->text + *end, text->n - *end, mark->text, n);
}

bool splice_tokens(int32_t **out, int32_t *n, const int32_t *t, int32_t count)
{
    int32_t *more = count <= INT32_MAX - *n ? realloc(*out, ((size_t) *n + (size_t) count + 1) * sizeof *more) : NULL;
    if (!more) return false;
    if (count > 0) memcpy(more + *n, t, (size_t) count * sizeof *t);
    *out = more;
    *n += count;
    return true;
}
