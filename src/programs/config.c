#include "programs/config.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "programs/program.h"

/* options point into this text */
static char *config_text;
static char used[4096];

const char *config_used(void) { return used; }

static bool default_path(char *out, size_t cap)
{
    return user_path(out, cap, "XDG_CONFIG_HOME", ".config", "config") && access(out, F_OK) == 0;
}

/* Removes surrounding blanks and terminates with a NUL. */
static char *trimmed(char *s, char *end)
{
    static const char blanks[] = " \t\r";
    while (end > s && strchr(blanks, end[-1])) end--;
    *end = 0;
    return s + strspn(s, blanks);
}

static bool refuse(const Options *o, const char *where, const char *what, const char *text)
{
    return complain(o, "%s: %s '%.60s', expected `key = value` or [command]", where, what, text) == 0;
}

/* 'text' and "text": what stands between the quotes; in the latter, \" and \\ stand for " and \, \n and \t for line
 * feed and tab. NULL: the closing quote is missing, or something follows it. */
static char *unquoted(char *s)
{
    char quote = *s, *out = s, *p = s + 1;
    if (quote != '"' && quote != '\'') return s;
    for (; *p && *p != quote; p++) {
        bool escaped = quote == '"' && *p == '\\' && p[1] && strchr("\"\\nt", p[1]);
        if (escaped) p++;
        *out++ = !escaped ? *p : *p == 'n' ? '\n' : *p == 't' ? '\t' : *p;
    }
    if (*p != quote || p[1]) return NULL;
    *out = 0;
    return s;
}

/* Parses one line, which is modified. *section: the current section. */
static bool read_line(const Options *o, char *s, char *end, const char *where, const char **section,
                      bool (*take)(void *ud, const ConfigLine *line), void *ud)
{
    s = trimmed(s, end);
    if (!*s || *s == '#') return true;
    size_t n = strlen(s);
    if (*s == '[') {
        if (s[n - 1] != ']') return refuse(o, where, "the section is not closed:", s);
        *section = trimmed(s + 1, s + n - 1);
        return take(ud, &(ConfigLine) { *section, NULL, NULL, where });
    }
    char *equals = strchr(s, '=');
    if (!equals) return refuse(o, where, "there is no = in", s);
    char *value = trimmed(equals + 1, s + n), *key = trimmed(s, equals);
    if (!*key) return refuse(o, where, "there is no key before", "=");
    value = unquoted(value);
    if (!value) return refuse(o, where, "the quotes do not close at the end of the value of", key);
    return take(ud, &(ConfigLine) { *section, key, value, where });
}

bool config_read(const char *command, const char *path, bool (*take)(void *ud, const ConfigLine *line), void *ud)
{
    char found[4096], where[4200];
    Options o = { .command = command };
    size_t n;
    if (!path && !default_path(found, sizeof found)) return true;
    if (!path) path = found;
    free(config_text);
    config_text = NULL;
    if (!text_read(&o, &config_text, &n, path)) return false;
    snprintf(used, sizeof used, "%s", path);
    char *p = config_text, *stop = p + n;
    const char *section = NULL;
    for (int line = 1; p < stop; line++) {
        char *end = memchr(p, '\n', (size_t) (stop - p));
        if (!end) end = stop;
        snprintf(where, sizeof where, "%s:%d", path, line);
        if (memchr(p, 0, (size_t) (end - p))) return refuse(&o, where, "there is a zero byte in", p);
        if (!read_line(&o, p, end, where, &section, take, ud)) return false;
        p = end + 1;
    }
    return true;
}
