#include "programs/model_name.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/path.h"
#include "programs/hub/hub_name.h"

/* Bytes without ".gguf" and a part's "-00001-of-00002". */
static size_t bare_length(const char *name)
{
    int32_t part, parts;
    return gguf_stem(name) - (hub_split(name, &part, &parts) ? strlen("-00001-of-00002") : 0);
}

/* Whether s[i] goes on with the word that s[i - 1] ends: a letter after anything ("27b"), digits after digits, a point
 * between digits. */
static bool goes_on(const char *s, size_t i, size_t n)
{
    unsigned char c = (unsigned char) s[i], before = i ? (unsigned char) s[i - 1] : 0;
    if (c == '.') return isdigit(before) && i + 1 < n && isdigit((unsigned char) s[i + 1]);
    if (isalpha(c)) return isalnum(before);
    return isdigit(before) || (before == '.' && i > 1 && isdigit((unsigned char) s[i - 2]));
}

NameWords name_words(const char *name)
{
    NameWords w = { { 0 } };
    size_t n = bare_length(name), used = 0;
    for (size_t i = 0; i < n && used + 3 < sizeof w.at; i++) {
        unsigned char c = (unsigned char) name[i];
        bool on = goes_on(name, i, n);
        if (!isalnum(c) && !(c == '.' && on)) continue;
        if (!on && used) w.at[used++] = ' ';
        w.at[used++] = (char) tolower(c);
    }
    if (used) w.at[used] = ' ';
    return w;
}

static size_t word_length(const char *at) { return strcspn(at, " "); }

static bool word_is(const char *at, const char *word)
{
    size_t n = word_length(at);
    return n == strlen(word) && memcmp(at, word, n) == 0;
}

static bool one_of(const char *at, const char *const *list)
{
    for (; *list; list++)
        if (word_is(at, *list)) return true;
    return false;
}

/* "dflash", "dflash 2" (which ends up as two words), "draft" ... */
static size_t mark_length(const char *at)
{
    static const char *const marks[] = { "dflash", "draft", "drafter", "drafts", "speculator", "gguf", NULL };
    if (!one_of(at, marks)) return 0;
    size_t n = word_length(at) + 1;
    return word_is(at, "dflash") && word_is(at + n, "2") ? n + 2 : n;
}

static bool is_quant(const char *at)
{
    static const char *const letters[] = { "q", "iq", "tq", "bf", "f", "fp", "mxfp", "nvfp", "int", NULL };
    if (word_is(at, "ud")) return true;            /* "UD-Q4_K_XL" */
    return one_of(at, letters) && isdigit((unsigned char) at[word_length(at) + 1]);
}

NameWords name_model(const char *name)
{
    NameWords words = name_words(name), out = { { 0 } };
    const char *at = words.at;
    for (size_t n; (n = mark_length(at)) > 0;) at += n;
    const char *end = at;
    while (*end && !is_quant(end) && mark_length(end) == 0) end += word_length(end) + 1;
    memcpy(out.at, at, (size_t) (end - at));
    return out;
}

static bool begins(const char *s, const char *with) { return strncmp(s, with, strlen(with)) == 0; }

bool name_begins(const NameWords *words, const NameWords *with)
{
    const char *second = words->at + word_length(words->at);
    return with->at[0] && (begins(words->at, with->at) || (*second && begins(second + 1, with->at)));
}

bool name_has(const NameWords *words, const char *word)
{
    for (const char *at = words->at; *at; at += word_length(at) + 1)
        if (word_is(at, word)) return true;
    return false;
}

bool name_size(char out[16], const NameWords *words)
{
    for (const char *at = words->at; *at; at += word_length(at) + 1) {
        size_t n = word_length(at), digits = strspn(at, "0123456789.");
        if (digits == 0 || digits + 1 != n || n > 15 || (at[digits] != 'b' && at[digits] != 'm')) continue;
        snprintf(out, 16, "%.*s", (int) n, at);
        return true;
    }
    return false;
}

bool name_says_drafter(const char *name) { return strcasestr(name, "dflash") || strcasestr(name, "draft"); }
