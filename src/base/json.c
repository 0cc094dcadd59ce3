/* jansson recurses on nesting and makes an object of every value, so a
 * scan over the bytes bounds both first. */
#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include "base/json.h"

enum { JSON_DEPTH_MAX = 128, JSON_VALUES_MAX = 4 << 20, JSON_CONTAINERS_MAX = 1 << 20 };

/* Counts brackets and commas outside strings. Whether the text is JSON at all is the parser's affair. */
static Status scan(const char *s, size_t n, const char *name, Error *err)
{
    bool   in_string = false;
    size_t depth = 0, containers = 0, commas = 0;
    for (size_t i = 0; i < n; i++) {
        char c = s[i];
        if (in_string) {
            if (c == '\\') i++;
            else if (c == '"') in_string = false;
        } else if (c == '"') in_string = true;
        else if (c == ',') commas++;
        else if (c == '[' || c == '{') {
            containers++;
            if (++depth > JSON_DEPTH_MAX)
                return fail(err, ST_FORMAT, "%s: JSON nesting at byte %zu is deeper than %d", name, i, JSON_DEPTH_MAX);
        } else if ((c == ']' || c == '}') && depth > 0) depth--;
        if (containers > JSON_CONTAINERS_MAX || commas + containers > JSON_VALUES_MAX)
            return fail(err, ST_FORMAT, "%s: JSON has too many values by byte %zu, expected at most %d, %d of them lists or objects", name, i,
                        JSON_VALUES_MAX, JSON_CONTAINERS_MAX);
    }
    return ST_OK;
}

Status json_read(json_t **out, const char *bytes, size_t n, const char *name, Error *err)
{
    json_error_t problem;
    *out = NULL;
    if (n >= 3 && memcmp(bytes, "\xef\xbb\xbf", 3) == 0) {
        bytes += 3;
        n -= 3;
    }
    const char *zero = n > 0 ? memchr(bytes, 0, n) : NULL;             /* jansson 2.14 swallows one behind a whole number */
    if (zero) return fail(err, ST_FORMAT, "%s: JSON has a zero byte at byte %zu", name, (size_t) (zero - bytes));
    TRY(scan(bytes, n, name, err));
    memset(&problem, 0, sizeof problem);
    errno = 0;
    *out = json_loadb(bytes, n, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &problem);
    /* jansson 2.14 takes a failed allocation for a syntax error in most places, and in its lexer for nothing at all: it then returns
     * a text that lacks a byte. Only errno tells. */
    if (errno == ENOMEM) {
        json_decref(*out);
        *out = NULL;
        return fail(err, ST_MEMORY, "%s: no memory for its JSON", name);
    }
    if (*out) return ST_OK;
    return fail(err, ST_FORMAT, "%s: JSON line %d, column %d: %s", name, problem.line, problem.column, problem.text);
}
