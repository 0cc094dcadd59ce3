/* json_check.h - checks that bytes are one JSON value by RFC 8259 and nothing stricter: repeated names, any number and
 * \u0000 are fine. Written independently of the code that it checks. */
#ifndef RATOON_TESTS_HELP_JSON_CHECK_H
#define RATOON_TESTS_HELP_JSON_CHECK_H

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "text/tokenizer/utf8.h"

static size_t check_space(const char *s, size_t n, size_t i)
{
    while (i < n && (s[i] == ' ' || s[i] == '\t' || s[i] == '\n' || s[i] == '\r')) i++;
    return i;
}

/* Each returns the index behind what it read, 0 if that is not there. */
static size_t check_string(const char *s, size_t n, size_t i)
{
    if (i >= n || s[i] != '"') return 0;
    for (i++; i < n && s[i] != '"'; i++) {
        if ((unsigned char) s[i] < 0x20) return 0;
        if (s[i] != '\\') continue;
        if (++i >= n || !strchr("\"\\/bfnrtu", s[i]) || !s[i]) return 0;
        if (s[i] != 'u') continue;
        for (int k = 0; k < 4; k++)
            if (++i >= n || !s[i] || !strchr("0123456789abcdefABCDEF", s[i])) return 0;
    }
    return i < n ? i + 1 : 0;
}

static size_t check_digits(const char *s, size_t n, size_t i)
{
    size_t from = i;
    while (i < n && s[i] >= '0' && s[i] <= '9') i++;
    return i > from ? i : 0;
}

static size_t check_number(const char *s, size_t n, size_t i)
{
    if (i < n && s[i] == '-') i++;
    bool zero = i < n && s[i] == '0';
    if (zero) i++;
    else if (!(i = check_digits(s, n, i))) return 0;
    if (i < n && s[i] == '.' && !(i = check_digits(s, n, i + 1))) return 0;
    if (i < n && (s[i] == 'e' || s[i] == 'E')) {
        i++;
        if (i < n && (s[i] == '+' || s[i] == '-')) i++;
        if (!(i = check_digits(s, n, i))) return 0;
    }
    return i;
}

static size_t check_value(const char *s, size_t n, size_t i, int depth)
{
    i = check_space(s, n, i);
    if (i >= n || depth > 200) return 0;
    if (s[i] == '"') return check_string(s, n, i);
    if (s[i] == '{' || s[i] == '[') {
        char close = s[i] == '{' ? '}' : ']';
        bool object = s[i] == '{';
        i = check_space(s, n, i + 1);
        if (i < n && s[i] == close) return i + 1;
        for (;;) {
            if (object) {
                i = check_string(s, n, check_space(s, n, i));
                if (!i) return 0;
                i = check_space(s, n, i);
                if (i >= n || s[i++] != ':') return 0;
            }
            i = check_value(s, n, i, depth + 1);
            if (!i) return 0;
            i = check_space(s, n, i);
            if (i < n && s[i] == close) return i + 1;
            if (i >= n || s[i++] != ',') return 0;
        }
    }
    for (const char *const *w = (const char *const[]) { "true", "false", "null", NULL }; *w; w++)
        if (n - i >= strlen(*w) && memcmp(s + i, *w, strlen(*w)) == 0) return i + strlen(*w);
    return check_number(s, n, i);
}

static bool json_valid(const char *s, size_t n)
{
    size_t end = check_value(s, n, 0, 0);
    return end > 0 && check_space(s, n, end) == n && utf8_valid(s, n) == n;
}

#endif
