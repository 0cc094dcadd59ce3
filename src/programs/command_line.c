#include "programs/command_line.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/path.h"
#include "programs/hub/hub_cache.h"
#include "programs/program.h"
#include "programs/suggest.h"

static bool wrong(int *status, const Options *o, const char *what, const char *arg, const char *hint)
{
    complain(o, "%s '%s'%s (see ratoon %s --help)", what, arg, hint, o->command);
    *status = EXIT_USAGE;
    return false;
}

/* ---- texts that live as long as the program ---- */

typedef struct Kept Kept;
struct Kept { Kept *next; char text[]; };
static Kept *kept;

char *line_keep(size_t n)
{
    Kept *k = calloc(1, sizeof *k + n + 1);
    if (!k) return NULL;
    k->next = kept;
    kept = k;
    return k->text;
}

/* ---- words ---- */

/* ORG/NAME, ORG/NAME:QUANT */
static bool names_repository(const char *s)
{
    const char *slash = strchr(s, '/'), *colon = strchr(s, ':');
    if (!slash || slash == s || !slash[1] || slash[1] == ':' || strchr(slash + 1, '/')) return false;
    if (colon && (colon < slash || !colon[1])) return false;
    for (const char *p = s; *p; p++)
        if (!isalnum((unsigned char) *p) && !strchr("-._/:@", *p)) return false;
    return true;
}

/* Whether a first word is a model rather than a text: a file or folder that exists, *.gguf, a name or address of the
 * hub, ORG/NAME[:QUANT], or the name of a model on this machine. */
static bool names_model(const char *s)
{
    struct stat st;
    char path[HUB_PATH];
    return has_suffix(s, ".gguf") || hub_prefix(s) || (*s && stat(s, &st) == 0) || names_repository(s) ||
           (*s && !strpbrk(s, " \t\n") && hub_find_local(path, s, HUB_TARGET));
}

/* Whether s, or a name and a tag with a colon between them, has only letters, digits and "-._", and begins with a
 * letter. */
static bool is_name(const char *s, bool tagged)
{
    const char *colon = strchr(s, ':');
    for (const char *p = s; *p; p++)
        if (!isalnum((unsigned char) *p) && !strchr("-._", *p) && p != colon) return false;
    return isalpha((unsigned char) *s) && (colon ? tagged && colon[1] : !tagged);
}

/* Whether a word reads like a model that is not here: a path, nearly *.gguf, or Ollama's NAME:TAG. */
static bool reads_like_model(const char *s)
{
    const char *dot = strrchr(s, '.');
    const size_t dots = strspn(s, ".");
    Suggestion near = { .typed = dot ? dot + 1 : "" };
    suggest_try(&near, "gguf");
    if (strpbrk(s, " \t\n")) return false;
    const bool path = dots <= 2 && s[dots] == '/' && isalnum((unsigned char) s[dots + 1]);
    return near.best || path || strncmp(s, "~/", 2) == 0 || is_name(s, true);
}

static bool was_given(const CommandLine *l, const OptionSpec *s)
{
    for (int32_t i = 0; i < l->n; i++)
        if (l->given[i].spec == s) return true;
    return false;
}

/* The model may be given as -m or as -hf. */
static bool slot_filled(const CommandLine *l, const OptionSpec *s, uint32_t bit)
{
    const OptionSpec *model = option_named(bit, "model"), *repo = option_named(bit, "hf-repo");
    return s && (was_given(l, s) || (s == model && was_given(l, repo)));
}

/* A part of a pattern: [MODEL], [PROMPT...], FILE. */
typedef struct { const OptionSpec *spec; bool needed, rest; const char *next; } Slot;

static Slot slot_at(const char *p, uint32_t bit)
{
    char name[32] = "";
    size_t n = strcspn(p, " "), k = 0;
    Slot s = { .needed = *p != '[', .rest = n > 4 && strncmp(p + n - 4, "...]", 4) == 0, .next = p + n };
    for (size_t i = 0; i < n && k < sizeof name - 1; i++)
        if (isalpha((unsigned char) p[i])) name[k++] = (char) tolower((unsigned char) p[i]);
    s.spec = option_named(bit, name);
    s.next += strspn(s.next, " ");
    return s;
}

/* The words that the rest of a pattern cannot do without. */
static int32_t words_needed(const CommandLine *l, const char *pattern, uint32_t bit)
{
    int32_t n = 0;
    while (*pattern) {
        Slot s = slot_at(pattern, bit);
        n += s.needed && !slot_filled(l, s.spec, bit);
        pattern = s.next;
    }
    return n;
}

/* Whether the word is a model, although the pattern goes on behind it with words of which `needed` must be there. One
 * that only reads like a model counts where more follows, and in a chat, which needs no other word. */
static bool model_comes(const CommandLine *l, const Options *o, int32_t at, int32_t needed)
{
    const char *word = l->word[at];
    if (at >= l->n_early) return false;
    if (names_model(word)) return l->n_words - at > needed || has_suffix(word, ".gguf");
    return (l->n_words - at > 1 || strcmp(o->command, "chat") == 0) && reads_like_model(word);
}

/* A word that is taken as text although llama3.2 and the like are models' names: it stands alone, or has a digit. */
static const char *bare_name(const CommandLine *l, int32_t at)
{
    const char *word = l->word[at];
    const bool name = at < l->n_early && is_name(word, false);
    return name && (l->n_words - at == 1 || strpbrk(word, "0123456789")) ? word : NULL;
}

/* Words from number `at` on, with spaces between them. */
static const char *joined(const CommandLine *l, int32_t at)
{
    size_t n = 0, k = 0;
    for (int32_t i = at; i < l->n_words; i++) n += strlen(l->word[i]) + 1;
    char *text = line_keep(n);
    for (int32_t i = at; text && i < l->n_words; i++)
        k += (size_t) sprintf(text + k, "%s%s", i > at ? " " : "", l->word[i]);
    return text;
}

static bool place_words(CommandLine *l, Options *o, const char *pattern, int *status)
{
    uint32_t bit = command_bit(o->command);
    int32_t at = 0;
    while (*pattern && at < l->n_words) {
        Slot s = slot_at(pattern, bit);
        pattern = s.next;
        bool model = s.spec && strcmp(s.spec->name, "--model") == 0;
        if (slot_filled(l, s.spec, bit)) continue;
        if (model && *pattern && !model_comes(l, o, at, words_needed(l, pattern, bit))) {
            l->bare = bare_name(l, at);
            continue;
        }
        o->first_word |= model && *pattern;
        if (!s.spec) {
            o->word[o->n_words++] = l->word[at++];
            continue;
        }
        const char *value = s.rest ? joined(l, at) : l->word[at];
        if (!value) return wrong(status, o, "out of memory for", l->word[at], "");
        l->given[l->n++] = (Given) { .spec = s.spec, .value = value };
        at = s.rest ? l->n_words : at + 1;
    }
    return at == l->n_words || wrong(status, o, "unexpected argument", l->word[at], "");
}

/* ---- options ---- */

/* -n5: an option of one letter with its number. *value: the number. */
static const OptionSpec *find_attached(uint32_t bit, const char *a, const char **value)
{
    if (a[1] == '-' || !a[2] || !strchr("0123456789.-", a[2])) return NULL;
    const OptionSpec *s = option_find(bit, a, 2);
    bool number = s && (s->kind == KIND_INT || s->kind == KIND_TOKENS || s->kind == KIND_SEED || s->kind == KIND_REAL);
    if (number) *value = a + 2;
    return number ? s : NULL;
}

static bool unknown(int *status, const Options *o, const char *a)
{
    char hint[128], name[64];
    snprintf(name, sizeof name, "%.*s", (int) strcspn(a, "="), a);
    if (strcmp(o->command, "serve") == 0 && option_among("--think --no-think", name, strlen(name)))
        return wrong(status, o, "unknown option", a, "; --reasoning on|off|auto says whether the model reasons");
    return wrong(status, o, "unknown option", a, option_suggest(hint, command_bit(o->command), name));
}

/* Returns how many further arguments belong to it, or -1: it is none of these options, or means something that this
 * command is not. */
static int32_t read_foreign(CommandLine *l, const Options *o, int left, char **argv, int *status)
{
    const Foreign *f = foreign_find(argv[0], strlen(argv[0]));
    if (!f) return unknown(status, o, argv[0]) - 1;
    if (f->only && strcmp(o->command, f->only) != 0) {
        complain(o, "%s: %s", argv[0], f->word);
        *status = EXIT_USAGE;
        return -1;
    }
    if (!f->only) l->foreign[l->n_foreign++] = (GivenForeign) { f, argv[0] };
    return foreign_takes(f, left > 1 ? argv[1] : NULL);
}

/* Likewise. */
static int32_t read_option(CommandLine *l, Options *o, int left, char **argv, int *status)
{
    const char *a = argv[0], *value = NULL, *equals = a[1] == '-' ? strchr(a, '=') : NULL;
    uint32_t bit = command_bit(o->command);
    const OptionSpec *s = option_find(bit, a, equals ? (size_t) (equals - a) : strlen(a));
    int32_t taken = 0;
    if (equals) value = equals + 1;
    if (!s) s = find_attached(bit, a, &value);
    if (!s) return read_foreign(l, o, left, argv, status);
    if (s->kind == KIND_FLAG && value) return wrong(status, o, "no value is expected in", a, "") - 1;
    if (s->kind != KIND_FLAG && !value) {
        if (left < 2) return wrong(status, o, "a value is missing after", a, "") - 1;
        value = argv[1];
        taken = 1;
    }
    l->given[l->n++] = (Given) { .spec = s, .value = value };
    if (strcmp(s->name, "--config") == 0) o->config = value;
    return taken;
}

static bool read_all(CommandLine *l, Options *o, int argc, char **argv, int *status)
{
    bool only_words = false;
    for (int i = 1; i < argc; i++) {
        const char *a = argv[i];
        if (only_words || a[0] != '-' || !a[1]) {
            l->word[l->n_words++] = a;
            l->n_early += !only_words;
        } else if (strcmp(a, "--") == 0) {
            only_words = true;
        } else if (strcmp(a, "--help") == 0 || strcmp(a, "-h") == 0) {
            options_help(stdout, command_find(o->command));
            return false;
        } else {
            int32_t taken = read_option(l, o, argc - i, argv + i, status);
            if (taken < 0) return false;
            i += taken;
        }
    }
    return true;
}

bool line_read(CommandLine *l, Options *o, int argc, char **argv, int *status)
{
    *l = (CommandLine) { .given = calloc((size_t) argc, sizeof *l->given),
                         .foreign = calloc((size_t) argc, sizeof *l->foreign),
                         .word = calloc((size_t) argc, sizeof *l->word) };
    if (!l->given || !l->foreign || !l->word)
        return wrong(status, o, "out of memory for the options of", o->command, "");
    return read_all(l, o, argc, argv, status) && place_words(l, o, command_find(o->command)->words, status);
}

void line_free(CommandLine *l)
{
    free(l->given);
    free(l->foreign);
    free(l->word);
}
