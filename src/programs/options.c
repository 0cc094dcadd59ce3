#include "programs/options.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "programs/cards.h"
#include "programs/command_line.h"
#include "programs/config.h"
#include "programs/program.h"
#include "programs/suggest.h"
#include "ratoon.h"
#include "ratoon_lab.h"

/* Prints "ratoon COMMAND: WHERE: ...". Returns false. */
static bool refuse(const Options *o, const char *format, ...) __attribute__((format(printf, 2, 3)));
static bool refuse(const Options *o, const char *format, ...)
{
    char text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return complain(o, "%s%s%s", o->where ? o->where : "", o->where ? ": " : "", text) == 0;
}

/* Reports the option's limits; whole numbers are written without a decimal point. */
static bool out_of_range(const Options *o, const OptionSpec *s, const char *value)
{
    return refuse(o, "%s is '%s', expected a %snumber from %.10g to %.10g", s->name, value,
                  s->kind == KIND_REAL ? "" : "whole ", s->min, s->max);
}

/* "a, b or c" of "a|b|c" */
static void list_values(char out[256], const char *values)
{
    size_t n = 0;
    for (const char *p = values; *p && n < 250; p++) {
        const char *between = strchr(p + 1, '|') ? ", " : " or ";
        if (*p == '|') n += (size_t) snprintf(out + n, 256 - n, "%s", between);
        else out[n++] = *p;
    }
    out[n] = 0;
}

static bool is_choice(Options *o, const OptionSpec *s, const char *value)
{
    char all[256], hint[128];
    Suggestion near = { .typed = value };
    for (const char *p = s->values; *p; p += *p == '|') {
        size_t n = strcspn(p, "|");
        if (strlen(value) == n && memcmp(p, value, n) == 0) return true;
        p += n;
    }
    list_values(all, s->values);
    suggest_list(&near, s->values, '|');
    return refuse(o, "%s is '%s', expected %s%s", s->name, value, all, suggest_words(&near, hint));
}

/* A path that begins with ~/ is in the home folder, also where no shell has looked at it. */
static const char *at_home(const OptionSpec *s, const char *value)
{
    const char *home = getenv("HOME");
    if (!option_takes_path(s) || strncmp(value, "~/", 2) != 0 || !home) return value;
    size_t n = strlen(home) + strlen(value);
    char *path = line_keep(n);
    if (path) snprintf(path, n, "%s%s", home, value + 1);
    return path ? path : value;
}

static bool read_flag(Options *o, const OptionSpec *s, const char *value)
{
    bool on = !value || strcmp(value, "true") == 0 || strcmp(value, "1") == 0;
    if (!on && strcmp(value, "false") != 0 && strcmp(value, "0") != 0)
        return refuse(o, "%s is '%s', expected true or false", s->name, value);
    *(bool *) ((char *) o + s->place) = on;
    return true;
}

/* "12G", "1.5GiB", "800M": units are powers of 1024. plain: bytes that a number without one counts; 0: it needs one.
 * Returns false if it is none of these, or too small or large. */
static bool memory_bytes_of(uint64_t *out, const char *value, double plain)
{
    char *end = NULL;
    const double v = strtod(value, &end);
    static const char units[] = "KMGT";
    const char *const unit = *end ? strchr(units, toupper((unsigned char) *end)) : NULL;
    if (end == value || !isfinite(v) || (*end ? !unit : plain == 0)) return false;
    if (unit && end[1] && strcasecmp(end + 1, "B") != 0 && strcasecmp(end + 1, "iB") != 0) return false;
    const double bytes = unit ? ldexp(v, 10 * (int) (unit - units + 1)) : v * plain;
    if (!(bytes >= 1 && bytes < 0x1p62)) return false;
    *out = (uint64_t) bytes;
    return true;
}

/* To what it is where nothing was given; numbers that may be unset are 0 then. */
static void unset(Options *o, const OptionSpec *s)
{
    char *place = (char *) o + s->place;
    if (s->kind == KIND_FLAG) *(bool *) place = false;
    else if (s->kind == KIND_TEXT) *(const char **) place = NULL;
    else if (s->kind == KIND_TEXTS) *(TextList *) place = (TextList) { 0 };
    else if (s->unset && s->kind == KIND_SEED) *(Seed *) place = (Seed) { 0 };
    else if (s->unset) *(int32_t *) place = 0;
}

/* value NULL: a flag that was given without one. */
static bool read_value(Options *o, const OptionSpec *s, const char *value)
{
    char *end = NULL, *place = (char *) o + s->place;
    errno = 0;
    if (s->unset && option_among(s->unset, value, strlen(value))) {
        unset(o, s);
        return true;
    }
    switch (s->kind) {
    case KIND_FLAG: return read_flag(o, s, value);
    case KIND_CHOICE:
        if (!is_choice(o, s, value)) return false;
        /* fall through */
    case KIND_TEXT:
        *(const char **) place = at_home(s, value);
        return true;
    case KIND_TEXTS: {
        TextList *list = (TextList *) place;
        if (!*value || list->n == TEXTS_MAX || strlen(value) > 512)
            return refuse(o, "%s expects a text of 1 to 512 bytes, at most %d times", s->name, TEXTS_MAX);
        list->at[list->n++] = value;
        return true;
    }
    case KIND_SWITCH:
        if (strcmp(value, "on") != 0 && strcmp(value, "off") != 0)
            return refuse(o, "%s is '%s', expected on or off", s->name, value);
        *(int32_t *) place = strcmp(value, "on") == 0 ? 0 : -1;
        return true;
    case KIND_BUDGET:
        if (strcmp(value, "auto") == 0) {
            *(int32_t *) place = BUDGET_OPTION_AUTO;
            return true;
        }
        /* fall through */
    case KIND_TOKENS:
    case KIND_INT: {
        long long v = strtoll(value, &end, 10);
        if (s->kind == KIND_TOKENS && end > value && (*end == 'k' || *end == 'K')) {
            v = v < 0 || v > INT32_MAX ? -1 : 1024 * v;
            end++;
        }
        if (end == value || *end || errno || (double) v < s->min || (double) v > s->max)
            return out_of_range(o, s, value);
        *(int32_t *) place = (int32_t) v;
        return true;
    }
    case KIND_LAYERS: {
        long long v = strtoll(value, &end, 10);
        const bool automatic = strcmp(value, "auto") == 0, all = strcmp(value, "all") == 0;
        if (!automatic && !all && (end == value || *end || errno || v < 0 || (double) v > s->max))
            return refuse(o, "%s is '%s', expected auto, all or a number of layers", s->name, value);
        *(int32_t *) place = automatic ? RT_LAYERS_AUTO : all ? 0 : v == 0 ? RT_LAYERS_NONE : (int32_t) v;
        return true;
    }
    case KIND_SEED: {
        unsigned long long v = strtoull(value, &end, 10);
        if (end == value || *end || errno || strchr(value, '-'))
            return refuse(o, "%s is '%s', expected a whole number from 0 to 18446744073709551615", s->name, value);
        *(Seed *) place = (Seed) { v, true };
        return true;
    }
    case KIND_MEMORY: {
        Seed *memory = (Seed *) place;
        memory->given = true;
        memory->value = strcmp(value, "auto") == 0 ? RT_EXPERTS_AUTO : 0;
        if (memory->value || strcmp(value, "all") == 0) return true;
        return memory_bytes_of(&memory->value, value, s->min) ||
               refuse(o, "%s is '%s', expected auto, all, or memory with a unit such as 12G or 800M", s->name, value);
    }
    case KIND_REAL: {
        double v = strtod(value, &end);
        if (end == value || *end || !isfinite(v) || v < s->min || v > s->max) return out_of_range(o, s, value);
        *(double *) place = v;
        return true;
    }
    }
    return false;
}

/* ---- the configuration file ---- */

/* A key is a long name without its dashes, and is suggested so. */
static const char *suggest_key(char hint[128], uint32_t owners, const char *typed)
{
    option_suggest(hint, owners, typed);
    char *dashes = strstr(hint, " --");
    if (dashes) memmove(dashes + 1, dashes + 3, strlen(dashes + 3) + 1);
    return hint;
}

bool options_set(Options *o, const char *name, const char *value)
{
    char hint[128];
    uint32_t bit = command_bit(o->command);
    const OptionSpec *s = option_named(bit, name);
    if (s && strcmp(name, "config") != 0) return read_value(o, s, value);
    return refuse(o, "there is no option '%s' of ratoon %s%s", name, o->command, suggest_key(hint, bit, name));
}

static bool section_good(Options *o, const char *name)
{
    char hint[128];
    Suggestion near = { .typed = name };
    if (command_bit(name)) return true;
    for (const Command *c = commands; c->name; c++)
        if (command_bit(c->name)) suggest_try(&near, c->name);
    return refuse(o, "there is no command '%s' with options%s", name, suggest_words(&near, hint));
}

static bool key_good(Options *o, const char *key)
{
    char hint[128];
    if (option_named(commands_that_work(), key)) return true;
    return refuse(o, "there is no option '%s'%s", key, suggest_key(hint, commands_that_work(), key));
}

/* What the file says of `serve` is where `health` finds it. */
static bool own_section(const Options *o, const ConfigLine *l)
{
    if (strcmp(o->command, "health") == 0 && strcmp(l->section, "serve") == 0)
        return option_named(command_bit(o->command), l->key) != NULL;
    return strcmp(l->section, o->command) == 0;
}

/* Takes a line of the file: for this command, for another (only validated), or for every command with this option. */
static bool take_line(void *ud, const ConfigLine *l)
{
    Options *o = ud, other = { .command = l->section, .where = l->where };
    o->where = l->where;
    bool good = l->section ? section_good(o, l->section) : key_good(o, l->key);
    if (good && l->section && l->key)
        good = options_set(own_section(o, l) ? o : &other, l->key, l->value);
    else if (good && l->key && option_named(command_bit(o->command), l->key))
        good = options_set(o, l->key, l->value);
    o->where = NULL;
    return good;
}

/* ---- the environment, and the command line ---- */

/* Removes values from before that these override: lists start empty, and if two options exclude each other, giving one
 * unsets the other. */
static void make_way(Options *o, const Given *given, int32_t n)
{
    static const char *const pairs[][2] = { { "think", "no-think" }, { "tree", "chain" }, { "grammar", "json-schema" },
                                            { "prompt", "file" }, { "prompt", "tokens" }, { "file", "tokens" },
                                            { "model", "hf-repo" } };
    uint32_t bit = command_bit(o->command);
    for (int32_t i = 0; i < n; i++) {
        unset(o, given[i].spec);            /* of a list, only what is given last counts */
        for (size_t k = 0; k < sizeof pairs / sizeof *pairs; k++) {
            const OptionSpec *a = option_named(bit, pairs[k][0]), *b = option_named(bit, pairs[k][1]);
            if (given[i].spec == a && b) unset(o, b);
            if (given[i].spec == b && a) unset(o, a);
        }
    }
}

static bool take_all(Options *o, const Given *given, int32_t n)
{
    bool good = true;
    make_way(o, given, n);
    for (int32_t i = 0; good && i < n; i++) {
        o->where = given[i].where;
        good = read_value(o, given[i].spec, given[i].value);
    }
    o->where = NULL;
    return good;
}

void option_variable(char out[64], const char *name)
{
    snprintf(out, 64, "RATOON_%s", name + strspn(name, "-"));
    for (char *p = out; *p; p++) *p = *p == '-' ? '_' : (char) toupper((unsigned char) *p);
}

/* RATOON_CTX and the like; those that are empty count as unset. RATOON_API_KEY may hold several keys and is read by
 * `serve`. */
static bool take_environment(Options *o)
{
    Given *given = calloc((size_t) option_table_n, sizeof *given);
    char (*name)[64] = calloc((size_t) option_table_n, sizeof *name);
    uint32_t bit = command_bit(o->command);
    int32_t n = 0;
    for (int32_t i = 0; given && name && i < option_table_n; i++) {
        const OptionSpec *s = &option_table[i];
        if (!(s->commands & bit) || strcmp(s->name, "--api-key") == 0) continue;
        option_variable(name[n], s->name);
        const char *value = getenv(name[n]);
        if (value && *value) given[n] = (Given) { s, value, name[n] }, n++;
    }
    bool good = given && name ? take_all(o, given, n) : refuse(o, "out of memory");
    free(given);
    free(name);
    return good;
}

static bool take_layers(Options *o, const CommandLine *l)
{
    const char *named = getenv("RATOON_CONFIG"), *path = o->config ? o->config : named && *named ? named : NULL;
    bool works = (command_bit(o->command) & commands_that_work()) != 0;
    if (works && (!config_read(o->command, path, take_line, o) || !take_environment(o))) return false;
    if (!take_all(o, l->given, l->n)) return false;
    return !o->tree || !o->chain || refuse(o, "there can be only one of --tree and --chain");
}

/* "auto" is the first card that can be used, as far as the model fits, and else the CPU: a card that is there and
 * cannot be used is named, with the reason. Whether it computes what the CPU computes is found out once the model is
 * known (cards.h). A driver that is named is the tests', whose cards are slow. Not for lists of backends, which compare
 * them. */
static void choose_backend(Options *o)
{
    const OptionSpec *s = option_named(command_bit(o->command), "backend");
    const char *driver = getenv("RATOON_CUDA_DRIVER");
    rt_card card, refused = { 0 };
    rt_error e;
    rt_status st;
    if (!s || strcmp(s->value, "NAME") != 0 || (o->backend && strcmp(o->backend, "auto") != 0)) return;
    if ((driver && *driver) || o->gpu_layers == RT_LAYERS_NONE || o->no_repack) return;
    for (int32_t i = 0; (st = rt_card_at(&card, "cuda", i, true, &e)) == RT_OK; i++) {
        if (!card.why[0]) {
            o->card = card;
            o->backend = o->card.backend;
            if (o->gpu_layers == 0) o->gpu_layers = RT_LAYERS_AUTO;
            return;
        }
        if (!refused.name[0]) refused = card;
    }
    if (refused.name[0]) snprintf(e.text, sizeof e.text, "%s", refused.why);
    else if (st == RT_END || st == RT_EUNSUPPORTED) return;
    card_unused(o, refused.name[0] ? refused.name : "the NVIDIA card", "cpu", e.text);
}

/* Whether the words ask for an object, as far as that can be said of words with a mistake. */
static bool json_asked(const Options *o, int argc, char **argv)
{
    if (!option_named(command_bit(o->command), "json")) return false;
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++)
        if (strcmp(argv[i], "--json") == 0) return true;
    return false;
}

bool options_read(Options *o, int argc, char **argv, int *status)
{
    CommandLine l;
    *o = (Options) { .command = argv[0], .temp = NAN, .top_p = NAN, .min_p = NAN, .rep_penalty = NAN,
                     .freq_penalty = NAN, .presence_penalty = NAN, .top_k = -1, .port = -1, .shutdown_grace = -1,
                     .cache_ram = -1, .store_ram = -1, .reasoning_budget = -1 };
    *status = EXIT_FINE;
    bool good = line_read(&l, o, argc, argv, status);
    if (good && !take_layers(o, &l)) {
        *status = EXIT_USAGE;
        good = false;
    }
    if (good) choose_backend(o);
    if (!good && json_asked(o, argc, argv)) error_as_json();
    for (int32_t i = 0; good && i < l.n_foreign; i++) note(o, "%s: %s", l.foreign[i].name, l.foreign[i].option->word);
    if (good && l.bare && !o->model && !o->hf_repo && strcmp(o->command, "chat") == 0)
        note(o, "no model '%s' is on this machine (ratoon models): it is taken as the message", l.bare);
    line_free(&l);
    return good;
}

bool option_next(OptionInfo *out, const Command *c, int32_t *at)
{
    uint32_t bit = c ? command_bit(c->name) : UINT32_MAX;
    const char *group = "";
    for (int32_t i = 0; i < option_table_n; i++) {
        const OptionSpec *s = &option_table[i];
        if (s->heading) group = s->heading;
        if (i < *at || !(s->commands & bit)) continue;
        *out = (OptionInfo) { group, s->name, s->alias, s->value, s->help, s->also, s->values, option_takes_path(s),
                              s->commands };
        *at = i + 1;
        return true;
    }
    return false;
}

bool command_owns(const Command *c, uint32_t owners) { return (command_bit(c->name) & owners) != 0; }
