/* JSON Schemas. Every schema becomes a rule, found again by its address, so a recursive schema is a rule that calls
 * itself; a work list keeps the compiler itself from recursing. doc/grammar.md says what the texts look like (order of
 * members, spacing, one spelling per string of an enum). */
#include <inttypes.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/grow.h"
#include "text/grammar/grammar_merge.h"
#include "text/tokenizer/utf8.h"

typedef struct { const json_t *schema, *root; const char *name; char *path; uint32_t rule; } Job;

typedef struct SchemaSet {
    Merger   m;
    Graph   *b;
    Job     *job; uint32_t n_jobs; size_t cap_jobs;
    uint32_t *slot, n_slots;                       /* jobs by the schema's address and the root of its $ref */
    uint32_t ws, escape, string, integer, number, any;     /* rules; any: a value of any type */
    uint32_t raw;                                  /* class: characters that stand for themselves in a string */
    uint32_t drawn;                                /* jobs done so far */
} Schema;

enum { INDENT_MAX = 16, MEMBERS_MAX = 4096, NAME_MAX_CHARS = 256, LITERAL_DEPTH_MAX = 1000 };

static bool sound(Schema *s, const char *path)
{
    if (s->b->st != ST_OK) merge_fail(&s->m, s->b->st, path, "%s", s->b->why);
    return s->m.st == ST_OK;
}

static uint32_t no_memory(Schema *s)
{
    graph_fail(s->b, ST_MEMORY, "out of memory");
    return GRAPH_NONE;
}

/* ---- rules of schemas ---- */

static uint32_t slot_of(const Schema *s, const json_t *schema, const json_t *root)
{
    uint32_t h = (uint32_t) (((uintptr_t) schema >> 4) * 0x9e3779b97f4a7c15u >> 32);
    for (;; h++) {
        uint32_t id = s->slot[h & (s->n_slots - 1)];
        if (id == 0 || (s->job[id - 1].schema == schema && s->job[id - 1].root == root)) return h & (s->n_slots - 1);
    }
}

static bool grow_jobs(Schema *s)
{
    size_t cap = s->cap_jobs;
    bool more = grow_to(&s->job, &cap, (size_t) s->n_jobs + 1, 64, sizeof *s->job);
    uint32_t *slot = more ? calloc(4 * cap, sizeof *slot) : NULL;
    if (!slot) return merge_fail(&s->m, ST_MEMORY, "", "out of memory");
    free(s->slot);
    s->slot = slot;
    s->n_slots = 4 * (uint32_t) cap;
    s->cap_jobs = cap;
    for (uint32_t i = 0; i < s->n_jobs; i++) s->slot[slot_of(s, s->job[i].schema, s->job[i].root)] = i + 1;
    return true;
}

/* The rule of a schema; puts its drawing on the work list. */
static uint32_t rule_of(Schema *s, const json_t *schema, const char *path)
{
    char to[PATH_MAX_BYTES];
    snprintf(to, sizeof to, "%s", path);
    schema = merge_target(&s->m, schema, to);
    if (!schema || (s->n_jobs == s->cap_jobs && !grow_jobs(s))) return GRAPH_NONE;
    uint32_t at = slot_of(s, schema, s->m.root), rule;
    if (s->slot[at]) return s->job[s->slot[at] - 1].rule;
    char *copy = strdup(to);
    if (!copy || (rule = graph_rule(s->b)) == GRAPH_NONE) {
        free(copy);
        merge_fail(&s->m, copy ? s->b->st : ST_MEMORY, to, "%s", copy ? s->b->why : "out of memory");
        return GRAPH_NONE;
    }
    s->job[s->n_jobs++] = (Job) { schema, s->m.root, s->m.name, copy, rule };
    s->slot[at] = s->n_jobs;
    return rule;
}

static uint32_t call_schema(Schema *s, const json_t *schema, const char *path, uint32_t next)
{
    return schema ? graph_call(s->b, rule_of(s, schema, path), next) : graph_call(s->b, s->any, next);
}

static uint32_t space(Schema *s, uint32_t next) { return graph_call(s->b, s->ws, next); }

/* ---- strings ---- */

static uint32_t free_char(Schema *s, uint32_t next)
{
    return graph_split(s->b, graph_char(s->b, s->raw, next), graph_one(s->b, '\\', graph_call(s->b, s->escape, next)));
}

static uint32_t free_string(Schema *s, int64_t min, int64_t max, uint32_t next)
{
    uint32_t end = graph_one(s->b, '"', next), at = end;
    if (max < 0) {
        at = graph_loop(s->b, end);
        graph_close(s->b, at, free_char(s, at));
    }
    for (int64_t i = min; max >= 0 && i < max && at != GRAPH_NONE; i++) at = graph_split(s->b, free_char(s, at), end);
    for (int64_t i = 0; i < min && at != GRAPH_NONE; i++) at = free_char(s, at);
    return graph_one(s->b, '"', at);
}

#define DATE                                                                                                   \
    "(?:[1-9][0-9]{3}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|" \
    "02-(?:0[1-9]|1[0-9]|2[0-8]))"                                                                             \
             "|(?:[1-9][0-9](?:0[48]|[2468][048]|[13579][26])|(?:[2468][048]|[13579][26])00)-02-29)"
#define TIME "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]{1,6})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
#define OCTET "(?:[0-9]|[1-9][0-9]|1[0-9]{2}|2[0-4][0-9]|25[0-5])"
#define LABEL "[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
#define HOST LABEL "(?:\\." LABEL "){0,3}"

static const char *format_pattern(const char *name)
{
    static const char *const known[][2] = {
        { "date", "^" DATE "$" }, { "time", "^" TIME "$" }, { "date-time", "^" DATE "T" TIME "$" },
        { "duration",
          "^P(?:[0-9]{1,6}W|[0-9]{1,6}Y(?:[0-9]{1,6}M(?:[0-9]{1,6}D)?)?|[0-9]{1,6}M(?:[0-9]{1,6}D)?|[0-9]{1,6}D"
          "|(?:[0-9]{1,6}D)?T(?:[0-9]{1,6}H(?:[0-9]{1,6}M(?:[0-9]{1,6}S)?)?|[0-9]{1,6}M(?:[0-9]{1,6}S)?|"
          "[0-9]{1,6}S))$" },
        { "uuid", "^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$" },
        { "ipv4", "^" OCTET "(?:\\." OCTET "){3}$" }, { "ipv6", "^(?:[0-9a-f]{1,4}:){7}[0-9a-f]{1,4}$" },
        { "hostname", "^" HOST "$" },
        { "email", "^[a-zA-Z0-9_+-]{1,32}(?:\\.[a-zA-Z0-9_+-]{1,16}){0,2}@" HOST "\\.[a-zA-Z]{2,24}$" },
        { "uri", "^(?:https?|ftp)://" HOST
          "(?::[1-9][0-9]{0,3})?(?:/[a-zA-Z0-9._~!$&'()*+,;=:@/-]*)?(?:\\?[a-zA-Z0-9._~!$&'()*+,;=:@/?-]*)?$" },
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(known[i][0], name) == 0) return known[i][1];
    return NULL;
}

/* A pattern or format. minLength and maxLength are accepted only if they follow from it. */
static uint32_t pattern_string(Schema *s, const Flat *f, const char *path, uint32_t next)
{
    char at[PATH_MAX_BYTES];
    const char *key = f->pattern ? "pattern" : "format", *text = json_string_value(f->pattern ? f->pattern : f->format);
    path_add(at, path, key);
    if (f->pattern && f->format)
        return merge_fail(&s->m, ST_UNSUPPORTED, at, "pattern and format cannot be combined"), GRAPH_NONE;
    const char *regex = f->pattern ? text : format_pattern(text);
    if (!regex) return merge_fail(&s->m, ST_UNSUPPORTED, at, "the format '%.40s' cannot be honoured", text), GRAPH_NONE;
    Exprs x = { 0 };
    uint32_t e, min, max, way = GRAPH_NONE;
    size_t byte;
    if (!regex_parse(s->b, &x, regex, f->pattern ? json_string_length(f->pattern) : strlen(regex), false, &e, &byte)) {
        merge_fail(&s->m, s->b->st, at, "%s (at byte %zu of '%.80s')", s->b->why, byte, regex);
    } else {
        expr_length(&x, e, &min, &max);
        if ((int64_t) min < f->min_length ||
            (f->max_length >= 0 && (max == GRAPH_NONE || (int64_t) max > f->max_length)))
            merge_fail(&s->m, ST_UNSUPPORTED, at, "minLength or maxLength beside a %s of other lengths cannot be "
                       "honoured; put them into the pattern", key);
        else way = graph_one(s->b, '"', expr_draw(s->b, &x, e, true, graph_one(s->b, '"', next)));
        sound(s, at);
    }
    free(x.at);
    return way;
}

static uint32_t draw_string(Schema *s, const Flat *f, const char *path, uint32_t next)
{
    if (f->pattern || f->format) return pattern_string(s, f, path, next);
    if (f->max_length >= 0 && f->max_length < f->min_length) return GRAPH_NONE;
    if (f->min_length == 0 && f->max_length < 0) return graph_call(s->b, s->string, next);
    return free_string(s, f->min_length, f->max_length, next);
}

/* ---- texts of a list ---- */

typedef struct { const char *s; size_t n; } Piece;

static int by_bytes(const void *a, const void *b)
{
    const Piece *x = a, *y = b;
    int c = memcmp(x->s, y->s, x->n < y->n ? x->n : y->n);
    return c ? c : (x->n > y->n) - (x->n < y->n);
}

static size_t char_at(const Piece *p, size_t at, uint32_t *cp)
{
    size_t n = utf8_next(p->s + at, p->n - at, cp);
    return n ? n : 1;
}

/* Number of bytes, beyond `at`, that the sorted pieces [lo, hi) share; they are equal up to `at`. Whole characters
 * only. */
static size_t shared(const Piece *p, uint32_t lo, uint32_t hi, size_t at)
{
    const Piece *a = &p[lo], *b = &p[hi - 1];
    size_t n = a->n < b->n ? a->n : b->n, end = at;
    while (end < n && a->s[end] == b->s[end]) end++;
    while (end > at && end < a->n && ((uint8_t) a->s[end] & 0xc0) == 0x80) end--;
    if (end > at && end < b->n && ((uint8_t) b->s[end] & 0xc0) == 0x80)
        while (end > at && ((uint8_t) b->s[end] & 0xc0) == 0x80) end--;
    return end - at;
}

/* One of the sorted texts, drawn as a tree, so that a state has few places however many texts there are. */
static uint32_t one_of(Schema *s, const Piece *p, uint32_t lo, uint32_t hi, size_t at, int depth, uint32_t next)
{
    if (!graph_step(s->b)) return GRAPH_NONE;
    if (depth > LITERAL_DEPTH_MAX)
        return graph_fail(s->b, ST_UNSUPPORTED, "the texts of an enum share beginnings more than 1000 deep"),
            GRAPH_NONE;
    size_t same = shared(p, lo, hi, at), then = at + same;
    uint32_t way = GRAPH_NONE, i = lo;
    for (; i < hi && p[i].n == then; i++) way = next;
    while (i < hi) {
        uint32_t first = i, cp, other;
        char_at(&p[i], then, &cp);
        for (i++; i < hi && char_at(&p[i], then, &other) && other == cp; i++);
        way = graph_split(s->b, one_of(s, p, first, i, then, depth + 1, next), way);
    }
    return same ? graph_text(s->b, p[lo].s + at, same, way) : way;
}

static bool type_allows(const Flat *f, const json_t *v)
{
    uint32_t t = json_is_null(v) ? TYPE_NULL : json_is_boolean(v) ? TYPE_BOOLEAN : json_is_integer(v)
                 ? TYPE_INTEGER : json_is_string(v) ? TYPE_STRING : json_is_array(v) ? TYPE_ARRAY : json_is_object(v)
                 ? TYPE_OBJECT : json_real_value(v) == floor(json_real_value(v)) ? TYPE_INTEGER : TYPE_NUMBER;
    return (f->types & t) != 0;
}

/* Whether an enum value is valid by the keywords beside it; *known false: that cannot be decided here. */
static bool value_allowed(const Flat *f, const json_t *v, bool *known)
{
    *known = true;
    if (!type_allows(f, v)) return false;
    if (json_is_number(v)) {
        if (f->multiple) *known = false;
        return !((f->minimum && number_order(v, f->minimum) < 0) || (f->maximum && number_order(v, f->maximum) > 0) ||
                 (f->above && number_order(v, f->above) <= 0) || (f->below && number_order(v, f->below) >= 0));
    }
    if (json_is_string(v)) {
        int64_t chars = 0;
        for (const char *p = json_string_value(v), *end = p + json_string_length(v); p < end; p++)
            chars += ((uint8_t) *p & 0xc0) != 0x80;
        if (f->pattern || f->format) *known = false;
        return chars >= f->min_length && (f->max_length < 0 || chars <= f->max_length);
    }
    if (json_is_array(v)) *known = !f->prefix && !f->items && f->min_items == 0 && f->max_items < 0;
    if (json_is_object(v))
        *known = !f->props && !f->required && !f->additional && f->min_props == 0 && f->max_props < 0;
    return true;
}

/* The fewest digits that are x, with a point whatever the locale, and no plus or zeros before an exponent. */
static void put_shortest(char text[40], double x)
{
    char *to = text, *exponent = NULL;
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(text, 40, "%.*g", digits, x);
        if (strtod(text, NULL) == x) break;
    }
    if (x == floor(x) && fabs(x) < 1e15) snprintf(text, 40, "%.0f", x);    /* and not 1e5 */
    for (const char *p = text; *p; p++) {
        const bool leads = exponent && (*p == '+' || (*p == '0' && p[1] && (to == exponent || to[-1] == '-')));
        if (strchr("+-0123456789e", *p) && !leads) *to++ = *p;
        else if (!leads && (to == text || to[-1] != '.')) *to++ = '.';
        if (*p == 'e') exponent = to;
    }
    *to = 0;
}

/* The number in the n bytes at s, whatever the locale: the parser of JSON would not notice a lack of memory. */
static double read_real(const char *s, size_t n)
{
    char text[64];
    size_t at = 0;
    for (size_t i = 0; i < n && at < sizeof text - 8; i++) {
        if (s[i] != '.') text[at++] = s[i];
        else at += (size_t) snprintf(text + at, 8, "%s", localeconv()->decimal_point);
    }
    text[at] = 0;
    return strtod(text, NULL);
}

/* v as a model is likeliest to write it: reals, wherever they stand, have no more digits than they need. */
static char *spelled(const json_t *v)
{
    char *all = json_dumps(v, JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(17)), *to = all;
    bool quoted = false;
    for (const char *p = all; p && *p;) {
        const size_t n = quoted || !(*p == '-' || (*p >= '0' && *p <= '9')) ? 0 : strspn(p, "+-.0123456789eE");
        if (n) {
            char text[40] = "";
            const bool real = memchr(p, '.', n) || memchr(p, 'e', n);
            if (real) put_shortest(text, read_real(p, n));
            const bool shorter = real && strlen(text) < n;
            memmove(to, shorter ? text : p, shorter ? strlen(text) : n);
            to += shorter ? strlen(text) : n;
        } else {
            if (*p == '"') quoted = !quoted;
            if (quoted && *p == '\\') *to++ = *p++;
            *to++ = *p++;
        }
        p += n;
    }
    if (to) *to = 0;
    return all;
}

static uint32_t draw_values(Schema *s, const Flat *f, const char *path, uint32_t next)
{
    size_t n = json_array_size(f->values), kept = 0;
    Piece *p = calloc(n + 1, sizeof *p);
    uint32_t way = GRAPH_NONE;
    bool good = p != NULL;
    for (size_t i = 0; good && i < n; i++) {
        bool known;
        const json_t *v = json_array_get(f->values, i);
        bool allowed = value_allowed(f, v, &known);
        if (!known) {
            merge_fail(&s->m, ST_UNSUPPORTED, path, "enum or const cannot be combined with the other keywords here");
            break;
        }
        if (!allowed) continue;
        char *text = spelled(v);
        if (!text) good = false;
        else p[kept++] = (Piece) { text, strlen(text) };
    }
    if (!good) merge_fail(&s->m, ST_MEMORY, path, "out of memory");
    if (s->m.st == ST_OK && kept > 0) {
        qsort(p, kept, sizeof *p, by_bytes);
        way = one_of(s, p, 0, (uint32_t) kept, 0, 0, next);
    }
    for (size_t i = 0; i < kept; i++) free((char *) p[i].s);
    free(p);
    return way;
}

/* ---- objects ---- */

/* rest: any further characters and the closing quote; quote: the closing quote */
typedef struct { Piece *name; uint32_t n; uint32_t rest, quote; } Names;

static uint32_t other_chars(Schema *s, const uint32_t *cp, uint32_t n, uint32_t next)
{
    CharRange *r = malloc(sizeof *r * (n + 1));
    uint32_t from = 0, m = 0, way;
    if (!r) return no_memory(s);
    for (uint32_t i = 0; i < n; i++) {             /* ascending, as the names are */
        if (cp[i] > from) r[m++] = (CharRange) { from, cp[i] - 1 };
        from = cp[i] + 1;
    }
    r[m++] = (CharRange) { from, 0x10ffff };
    way = graph_json_char(s->b, graph_class(s->b, r, m), next);
    free(r);
    return way;
}

/* Any name except the given ones: after the characters that some of them share, a different character, an earlier end
 * or a later one. */
static uint32_t none_of(Schema *s, const Names *w, uint32_t lo, uint32_t hi, size_t at)
{
    uint32_t way = GRAPH_NONE, i = lo, n = 0, *cp;
    if (!graph_step(s->b)) return GRAPH_NONE;
    if (!(cp = malloc(sizeof *cp * (hi - lo + 1)))) return no_memory(s);
    while (i < hi && w->name[i].n == at) i++;
    bool is_name = i > lo;
    while (i < hi) {
        uint32_t first = i, other;
        size_t len = char_at(&w->name[i], at, &cp[n]);
        for (i++; i < hi && char_at(&w->name[i], at, &other) && other == cp[n]; i++);
        uint32_t sub = none_of(s, w, first, i, at + len);
        way = graph_split(s->b, graph_json_char(s->b, graph_class(s->b, &(CharRange) { cp[n], cp[n] }, 1), sub), way);
        n++;
    }
    way = graph_split(s->b, other_chars(s, cp, n, w->rest), way);
    free(cp);
    return is_name ? way : graph_split(s->b, w->quote, way);
}

static uint32_t other_name(Schema *s, const json_t *props, const char *path, uint32_t next)
{
    const char *k;
    json_t *v;
    Names w = { .name = calloc(json_object_size(props) + 1, sizeof(Piece)) };
    if (!w.name) return no_memory(s);
    w.quote = graph_one(s->b, '"', next);
    w.rest = graph_loop(s->b, w.quote);
    graph_close(s->b, w.rest, graph_json_char(s->b, graph_class(s->b, &(CharRange) { 0, 0x10ffff }, 1), w.rest));
    json_object_foreach((json_t *) props, k, v) {
        if (strlen(k) > NAME_MAX_CHARS) {
            merge_fail(&s->m, ST_UNSUPPORTED, path, "a property's name is longer than %d bytes, and other names are "
                       "allowed beside it", NAME_MAX_CHARS);
            free(w.name);
            return GRAPH_NONE;
        }
        w.name[w.n++] = (Piece) { k, strlen(k) };
    }
    if (w.n > 1) qsort(w.name, w.n, sizeof *w.name, by_bytes);
    uint32_t way = graph_one(s->b, '"', none_of(s, &w, 0, w.n, 0));
    free(w.name);
    return way;
}

static uint32_t member(Schema *s, const char *name, const json_t *schema, const char *path, uint32_t next)
{
    char at[PATH_MAX_BYTES], sub[PATH_MAX_BYTES];
    path_add(at, path, "properties");
    path_add(sub, at, name);
    uint32_t way = graph_one(s->b, ':', space(s, call_schema(s, schema, sub, next)));
    return graph_one(s->b, '"', graph_json_text(s->b, name, strlen(name), graph_one(s->b, '"', way)));
}

static bool object_limits(Schema *s, const Flat *f, const char *path, bool open)
{
    int64_t most = (int64_t) json_object_size(f->props), least = (int64_t) json_object_size(f->required);
    if (most > MEMBERS_MAX)
        return merge_fail(&s->m, ST_UNSUPPORTED, path, "an object with more than %d properties", MEMBERS_MAX);
    if (f->min_props > least)
        return merge_fail(&s->m, ST_UNSUPPORTED, path,
                          "minProperties beyond the number of required properties cannot be honoured");
    if (f->max_props >= 0 && (open || f->max_props < most))
        return merge_fail(&s->m, ST_UNSUPPORTED, path,
                          "maxProperties below the number of possible properties cannot be honoured");
    return true;
}

/* Drawn from the last property to the first. name[i]: what may come from property i on where a member must come;
 * after[i]: what may come after a member, with property i next. */
static uint32_t draw_object(Schema *s, Flat *f, const char *path, uint32_t next)
{
    const char *k;
    json_t *v;
    char at[PATH_MAX_BYTES];
    bool open = f->additional ? !json_is_false(f->additional) : json_object_size(f->props) == 0;
    json_t *props = f->props ? merge_copy(f->props) : json_object();        /* copies of a choice share it */
    if (!props) return no_memory(s);
    json_decref(f->props);
    f->props = props;
    json_object_foreach(f->required, k, v)         /* required, but only additionalProperties describes it */
        if (!json_object_get(f->props, k) &&
            json_object_set(f->props, k, f->additional ? f->additional : json_true()) != 0) return no_memory(s);
    if (!object_limits(s, f, path, open)) return GRAPH_NONE;
    uint32_t n = (uint32_t) json_object_size(f->props), i = 0;
    const char **name = malloc((n + 1) * sizeof *name);
    if (!name) return no_memory(s);
    json_object_foreach(f->props, k, v) name[i++] = k;

    uint32_t brace = graph_one(s->b, '}', next), close = space(s, brace), names = GRAPH_NONE, after = close;
    bool may_close = true;
    if (open) {
        path_add(at, path, "additionalProperties");
        after = graph_loop(s->b, close);
        names = graph_one(s->b, ':', space(s, call_schema(s, f->additional, at, after)));
        names = other_name(s, f->props, path, names);
        graph_close(s->b, after, graph_one(s->b, ',', space(s, names)));
    }
    for (i = n; i-- > 0;) {
        bool required = json_object_get(f->required, name[i]) != NULL;
        uint32_t own = member(s, name[i], json_object_get(f->props, name[i]), path, after);
        names = required ? own : graph_split(s->b, own, names);
        may_close &= !required;
        if (i > 0) after = graph_split(s->b, graph_one(s->b, ',', space(s, names)), may_close ? close : GRAPH_NONE);
    }
    free(name);
    uint32_t first = names == GRAPH_NONE ? GRAPH_NONE : space(s, names);
    return graph_one(s->b, '{', graph_split(s->b, first, may_close ? brace : GRAPH_NONE));
}

/* ---- arrays ---- */

static uint32_t draw_array(Schema *s, const Flat *f, const char *path, uint32_t next)
{
    char base[PATH_MAX_BYTES], at[PATH_MAX_BYTES], number[24];
    int64_t fixed = (int64_t) json_array_size(f->prefix), most = f->max_items, least = f->min_items, last;
    /* as with properties: only described items are allowed */
    if (fixed > 0 && !f->items && (most < 0 || most > fixed)) most = fixed > least ? fixed : least;
    if (json_is_false(f->items) && (most < 0 || most > fixed)) most = fixed;
    if (most >= 0 && most < least) return GRAPH_NONE;
    uint32_t bracket = graph_one(s->b, ']', next), close = space(s, bracket), after = close;
    last = most >= 0 ? most : fixed > least ? fixed : least;
    path_add(base, path, "items");
    if (most < 0) {
        after = graph_loop(s->b, close);
        graph_close(s->b, after, graph_one(s->b, ',', space(s, call_schema(s, f->items, base, after))));
    }
    /* after: with i elements written. The element before it has index i - 1. */
    uint32_t first = most < 0 && last == 0 ? call_schema(s, f->items, base, after) : GRAPH_NONE;
    for (int64_t i = last; i > 0 && graph_step(s->b); i--) {
        const json_t *schema = i <= fixed ? json_array_get(f->prefix, (size_t) i - 1) : f->items;
        if (i <= fixed) {
            char up[PATH_MAX_BYTES];
            path_add(up, path, "prefixItems");
            snprintf(number, sizeof number, "%" PRId64, i - 1);
            path_add(at, up, number);
        }
        first = call_schema(s, schema, i <= fixed ? at : base, after);
        if (i > 1)
            after = graph_split(s->b, graph_one(s->b, ',', space(s, first)), i - 1 >= least ? close : GRAPH_NONE);
    }
    uint32_t some = first == GRAPH_NONE ? GRAPH_NONE : space(s, first);
    return graph_one(s->b, '[', graph_split(s->b, some, least == 0 ? bracket : GRAPH_NONE));
}

/* ---- numbers ---- */

static uint32_t draw_number(Schema *s, const Flat *f, bool whole, const char *path, uint32_t next)
{
    NumberRange r = { .places = -1, .whole = whole };
    char at[PATH_MAX_BYTES];
    const json_t *lo = f->minimum, *hi = f->maximum;
    if (f->above && (!lo || number_order(f->above, lo) >= 0)) lo = f->above, r.above = true;
    if (f->below && (!hi || number_order(f->below, hi) <= 0)) hi = f->below, r.below = true;
    if (f->multiple) {
        double step = json_number_value(f->multiple);
        for (r.places = 0; r.places < 12 && fabs(step * pow(10, r.places) - 1) > 1e-9; r.places++);
        path_add(at, path, "multipleOf");
        if (r.places == 12)
            return merge_fail(&s->m, ST_UNSUPPORTED, at, "only 1, 0.1, 0.01 and so on can be honoured"), GRAPH_NONE;
        if (r.places == 0) r.whole = true;
    }
    if (!lo && !hi && !f->multiple) return graph_call(s->b, whole ? s->integer : s->number, next);
    char *min = lo ? spelled(lo) : NULL, *max = hi ? spelled(hi) : NULL;
    uint32_t way = GRAPH_NONE;
    r.min = min;
    r.max = max;
    if ((lo && !min) || (hi && !max)) graph_fail(s->b, ST_MEMORY, "out of memory");
    else way = graph_number(s->b, &r, next);
    free(min);
    free(max);
    return way;
}

/* ---- one schema ---- */

static uint32_t draw_flat(Schema *s, Flat *f, const char *path, int depth);

/* Whether the schema is nothing but a choice: then its ways are rules of their own. Otherwise what stands beside the
 * choice is merged into each way. */
static bool only_choice(const Flat *f)
{
    return json_array_size(f->choices) == 1 && f->types == TYPE_ALL && !f->typed && !f->spoken && !f->values &&
           !f->never;
}

static uint32_t draw_choices(Schema *s, const Flat *f, int depth)
{
    const json_t *group = json_array_get(f->choices, 0), *ways = json_array_get(group, 1);
    uint32_t way = GRAPH_NONE;
    for (size_t i = 0; i < json_array_size(ways) && s->m.st == ST_OK; i++) {
        char path[PATH_MAX_BYTES], number[24];
        snprintf(number, sizeof number, "%zu", i);
        path_add(path, json_string_value(json_array_get(group, 0)), number);
        const json_t *schema = json_array_get(ways, i);
        uint32_t own = GRAPH_NONE;
        if (only_choice(f)) {
            own = call_schema(s, schema, path, NODE_DONE);
        } else if (depth > GRAMMAR_NEST_MAX) {
            merge_fail(&s->m, ST_FORMAT, path, "anyOf and oneOf nest deeper than %d, or go in a circle",
                       GRAMMAR_NEST_MAX);
        } else {
            Flat one;
            if (!flat_copy(&one, f)) merge_fail(&s->m, ST_MEMORY, path, "out of memory");
            else {
                json_array_remove(one.choices, 0);
                if (flat_add(&s->m, &one, schema, path, 0)) own = draw_flat(s, &one, path, depth + 1);
            }
            flat_free(&one);
        }
        way = graph_split(s->b, own, way);
    }
    return way;
}

/* A schema without `type` whose keywords apply to certain types only means just these types. */
static uint32_t draw_flat(Schema *s, Flat *f, const char *path, int depth)
{
    if (f->never || !sound(s, path)) return GRAPH_NONE;
    if (json_array_size(f->choices) > 0) return draw_choices(s, f, depth);
    if (f->values) return draw_values(s, f, path, NODE_DONE);
    uint32_t types = !f->typed && f->spoken ? f->types & f->spoken : f->types, way = GRAPH_NONE;
    if (types & TYPE_NULL) way = graph_split(s->b, graph_text(s->b, "null", 4, NODE_DONE), way);
    if (types & TYPE_BOOLEAN)
        way = graph_split(s->b, graph_text(s->b, "true", 4, NODE_DONE),
                          graph_split(s->b, graph_text(s->b, "false", 5, NODE_DONE), way));
    if (types & (TYPE_NUMBER | TYPE_INTEGER))
        way = graph_split(s->b, draw_number(s, f, !(types & TYPE_NUMBER), path, NODE_DONE), way);
    if (types & TYPE_STRING) way = graph_split(s->b, draw_string(s, f, path, NODE_DONE), way);
    if (types & TYPE_ARRAY) way = graph_split(s->b, draw_array(s, f, path, NODE_DONE), way);
    if (types & TYPE_OBJECT) way = graph_split(s->b, draw_object(s, f, path, NODE_DONE), way);
    return way;
}

static bool draw_job(Schema *s, uint32_t i)
{
    Flat f;
    char path[PATH_MAX_BYTES];
    uint32_t rule = s->job[i].rule;
    snprintf(path, sizeof path, "%s", s->job[i].path);
    flat_init(&f);
    if (flat_add(&s->m, &f, s->job[i].schema, path, 0)) {
        uint32_t start = draw_flat(s, &f, path, 0);
        s->b->g->rule[rule].start = start;
    }
    flat_free(&f);
    return sound(s, path);
}

/* ---- what all schemas share ---- */

static uint32_t hex_digits(Graph *b, int n, uint32_t next)
{
    CharRange r[] = { { '0', '9' }, { 'A', 'F' }, { 'a', 'f' } };
    uint32_t cls = graph_class(b, r, 3);
    while (n-- > 0) next = graph_char(b, cls, next);
    return next;
}

static uint32_t one_hex(Graph *b, const char *ranges, uint32_t next)
{
    CharRange r[5];
    uint32_t n = 0;
    for (; *ranges; ranges += 2) r[n++] = (CharRange) { (uint8_t) ranges[0], (uint8_t) ranges[1] };
    return graph_char(b, graph_class(b, r, n), next);
}

/* After the backslash of an escape. Surrogates come in pairs, and \u0000 is left out, as in graph_json_char. */
static uint32_t draw_escape(Graph *b, uint32_t next)
{
    uint32_t h1 = hex_digits(b, 1, next), h2 = hex_digits(b, 2, next), h3 = hex_digits(b, 3, next);
    uint32_t zeros = graph_split(b, one_hex(b, "19AFaf", h1), graph_one(b, '0', one_hex(b, "19AFaf", next)));
    uint32_t low = graph_split(b, one_hex(b, "19AFaf", h2), graph_one(b, '0', zeros));
    uint32_t code = graph_split(b, one_hex(b, "19ACEFacef", h3),
                                graph_split(b, graph_one(b, '0', low),
                                            one_hex(b, "DDdd", graph_range(b, '0', '7', h2))));
    uint32_t second = graph_text(b, "\\u", 2, one_hex(b, "DDdd", one_hex(b, "CFcf", h2)));
    code = graph_split(b, code, one_hex(b, "DDdd", one_hex(b, "89ABab", hex_digits(b, 2, second))));
    CharRange plain[] = { { '"', '"' }, { '/', '/' }, { '\\', '\\' }, { 'b', 'b' }, { 'f', 'f' }, { 'n', 'n' },
                          { 'r', 'r' }, { 't', 't' } };
    return graph_split(b, graph_char(b, graph_class(b, plain, 8), next), graph_one(b, 'u', code));
}

/* Nothing, one space, or a line break with indentation. */
static uint32_t draw_space(Graph *b, uint32_t next)
{
    uint32_t indent = next;
    for (int i = 0; i < INDENT_MAX; i++) indent = graph_split(b, graph_one(b, ' ', indent), next);
    return graph_split(b, graph_one(b, ' ', next), graph_split(b, graph_one(b, '\n', indent), next));
}

static void draw_shared(Schema *s)
{
    Graph *b = s->b;
    CharRange raw[] = { { 0x20, 0x21 }, { 0x23, 0x5b }, { 0x5d, 0x10ffff } };
    s->raw = graph_class(b, raw, 3);
    s->ws = graph_rule(b);
    s->escape = graph_rule(b);
    s->string = graph_rule(b);
    s->integer = graph_rule(b);
    s->number = graph_rule(b);
    if (s->number == GRAPH_NONE) return;
    uint32_t start = draw_space(b, NODE_DONE);
    b->g->rule[s->ws].start = start;
    start = draw_escape(b, NODE_DONE);
    b->g->rule[s->escape].start = start;
    start = free_string(s, 0, -1, NODE_DONE);
    b->g->rule[s->string].start = start;
    start = graph_number(b, &(NumberRange) { .places = -1, .whole = true }, NODE_DONE);
    b->g->rule[s->integer].start = start;
    start = graph_number(b, &(NumberRange) { .places = -1 }, NODE_DONE);
    b->g->rule[s->number].start = start;
    s->any = rule_of(s, json_true(), "");
}

/* ---- sets of schemas ---- */

Status schema_set_open(SchemaSet **out, Graph *b, const char *name, Error *err)
{
    Schema *s = calloc(1, sizeof *s);
    *out = s;
    if (!s) return fail(err, ST_MEMORY, "%s: out of memory", name);
    s->b = b;
    s->m = (Merger) { .b = b, .root = json_true(), .name = name, .err = err, .made = json_array() };
    if (!s->m.made) merge_fail(&s->m, ST_MEMORY, "", "out of memory");
    else draw_shared(s);
    sound(s, "");
    return s->m.st;
}

Status schema_set_draw(SchemaSet *s, const GrammarSchema *g, uint32_t *rule)
{
    s->m.root = g->root;
    s->m.name = g->name;
    *rule = rule_of(s, g->schema, g->path);
    for (; s->drawn < s->n_jobs && sound(s, g->path) && draw_job(s, s->drawn); s->drawn++);
    sound(s, g->path);
    return s->m.st;
}

Status schema_set_blame(SchemaSet *s, uint32_t rule, Status st, const char *why)
{
    const Job *job = NULL;
    for (uint32_t i = 0; i < s->n_jobs; i++)
        if (s->job[i].rule == rule) job = &s->job[i];
    if (job) s->m.name = job->name;
    merge_fail(&s->m, st, job ? job->path : "", "%s", why);
    return st;
}

void schema_set_close(SchemaSet *s)
{
    if (!s) return;
    for (uint32_t i = 0; i < s->n_jobs; i++) free(s->job[i].path);
    free(s->job);
    free(s->slot);
    json_decref(s->m.made);
    free(s);
}

static Status draw_root(SchemaSet *s, const json_t *schema, const char *name)
{
    uint32_t rule;
    TRY(schema_set_draw(s, &(GrammarSchema) { .schema = schema, .root = schema, .name = name, .path = "" }, &rule));
    uint32_t start = space(s, graph_call(s->b, rule, NODE_DONE));
    s->b->g->rule[0].start = start;
    return sound(s, "") ? ST_OK : s->m.st;
}

Status grammar_schema(Grammar **out, const json_t *schema, const char *name, Error *err)
{
    Graph b;
    SchemaSet *s = NULL;
    *out = NULL;
    TRY(graph_open(&b, err));
    Status st = graph_rule(&b) == 0 ? ST_OK : fail(err, ST_MEMORY, "%s: out of memory", name);
    if (st == ST_OK) st = schema_set_open(&s, &b, name, err);
    if (st == ST_OK) st = draw_root(s, schema, name);
    if (st == ST_OK) {
        uint32_t rule;
        const char *why;
        st = graph_finish(out, &b, &rule, &why);
        if (st != ST_OK) schema_set_blame(s, rule, st, why);
    } else {
        graph_drop(&b);
    }
    schema_set_close(s);
    return st;
}
