#include "programs/suggest.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum { LONGEST = 96 };                            /* names of model files are long */

static int32_t least(int32_t a, int32_t b) { return a < b ? a : b; }

static bool same(char a, char b) { return tolower((unsigned char) a) == tolower((unsigned char) b); }

/* Insertions, deletions, replacements and swaps of neighbours between two words of at most LONGEST bytes. */
static int32_t distance(const char *a, int32_t n, const char *b, int32_t m)
{
    int32_t rows[3][LONGEST + 1];
    for (int32_t j = 0; j <= m; j++) rows[0][j] = j;
    for (int32_t i = 1; i <= n; i++) {
        int32_t *now = rows[i % 3], *above = rows[(i + 2) % 3], *before = rows[(i + 1) % 3];
        now[0] = i;
        for (int32_t j = 1; j <= m; j++) {
            now[j] = least(least(above[j], now[j - 1]) + 1, above[j - 1] + !same(a[i - 1], b[j - 1]));
            if (i > 1 && j > 1 && same(a[i - 1], b[j - 2]) && same(a[i - 2], b[j - 1]))
                now[j] = least(now[j], before[j - 2] + 1);
        }
    }
    return rows[n % 3][m];
}

/* The longer a word, the more mistakes still leave it recognisable. */
static int32_t most(size_t n) { return n < 2 ? 0 : n < 5 ? 1 : n < 9 ? 2 : 3; }

static void try_part(Suggestion *s, const char *candidate, size_t length)
{
    size_t skip = strspn(candidate, "-"), m = length - skip;
    const char *a = s->typed + strspn(s->typed, "-");
    size_t n = strlen(a);
    if (n == 0 || n > LONGEST || m > LONGEST) return;
    int32_t d = distance(a, (int32_t) n, candidate + skip, (int32_t) m);
    if (d > most(n) || (s->best && d >= s->distance)) return;
    s->best = candidate;
    s->length = (int32_t) length;
    s->distance = d;
}

void suggest_try(Suggestion *s, const char *candidate) { try_part(s, candidate, strlen(candidate)); }

void suggest_list(Suggestion *s, const char *list, char between)
{
    const char ends[] = { between, 0 };
    for (const char *p = list; p && *p; p += *p == between) {
        size_t n = strcspn(p, ends);
        try_part(s, p, n);
        p += n;
    }
}

const char *suggest_words(const Suggestion *s, char text[128])
{
    text[0] = 0;
    if (s->best) snprintf(text, 128, "; did you mean %.*s?", s->length, s->best);
    return text;
}
