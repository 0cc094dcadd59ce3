#include "programs/drafters.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/json.h"
#include "programs/model_name.h"

enum { TABLE_MAX = 1 << 20, TEXT_MAX = 1000, NAME_MAX_BYTES = 200 };

struct Drafters {
    json_t *root;
    const json_t *pairs;
};

/* ---- reading ---- */

static Status read_text(char **out, size_t *n, const char *path, Error *err)
{
    FILE *f = fopen(path, "rbe");
    char *text = f ? malloc(TABLE_MAX) : NULL;
    *out = NULL;
    if (!f) return fail(err, ST_IO, "%s: it cannot be opened", path);
    *n = text ? fread(text, 1, TABLE_MAX, f) : 0;
    bool bad = ferror(f) != 0;
    fclose(f);
    if (text && !bad && *n < TABLE_MAX) {
        *out = text;
        return ST_OK;
    }
    free(text);
    if (!text) return fail(err, ST_MEMORY, "%s: out of memory", path);
    return fail(err, bad ? ST_IO : ST_FORMAT, "%s: %s", path, bad ? "it cannot be read" : "larger than a megabyte");
}

/* ---- checking ---- */

/* Where an entry stands, for messages: "pairs[3] (Qwen3-4B)". */
typedef struct { const char *path; char at[120]; Error *err; } Place;

static Status wrong(const Place *p, const char *field, const char *expected)
{
    return fail(p->err, ST_FORMAT, "%s: %s: %s: expected %s", p->path, p->at, field, expected);
}

static bool good_text(const json_t *v, size_t max)
{
    const char *s = json_string_value(v);
    return s && *s && json_string_length(v) == strlen(s) && strlen(s) <= max;
}

static Status check_text(const Place *p, const json_t *o, const char *field, size_t max, bool needed)
{
    const json_t *v = json_object_get(o, field);
    if ((!v || json_is_null(v)) && !needed) return ST_OK;
    return good_text(v, max) ? ST_OK : wrong(p, field, "a text");
}

static Status check_number(const Place *p, const json_t *o, const char *field, int64_t max, bool needed)
{
    const json_t *v = json_object_get(o, field);
    if (!v && !needed) return ST_OK;
    if (json_is_integer(v) && json_integer_value(v) > 0 && json_integer_value(v) <= max) return ST_OK;
    return wrong(p, field, "a whole number above 0");
}

static Status check_texts(const Place *p, const json_t *o, const char *field, bool needed)
{
    const json_t *list = json_object_get(o, field), *v;
    size_t i;
    if (!list && !needed) return ST_OK;
    bool good = json_is_array(list) && json_array_size(list) > 0;
    json_array_foreach(list, i, v) good &= good_text(v, NAME_MAX_BYTES);
    return good ? ST_OK : wrong(p, field, "a list of texts");
}

static Status check_choice(const Place *p, const json_t *o, const char *field, const char *a, const char *b)
{
    char expected[80];
    const char *s = json_string_value(json_object_get(o, field));
    if (s && (strcmp(s, a) == 0 || strcmp(s, b) == 0)) return ST_OK;
    snprintf(expected, sizeof expected, "\"%s\" or \"%s\"", a, b);
    return wrong(p, field, expected);
}

/* "owner/name" of characters that the hub allows, so that it can be put into an address and a command. */
static bool good_repo(const char *s)
{
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    size_t n = s ? strspn(s, allowed) : 0;
    if (n == 0 || s[n] != '/' || s[0] == '.' || s[0] == '-') return false;
    size_t m = strspn(s + n + 1, allowed);
    return m > 0 && s[n + 1] != '.' && s[n + 1] != '-' && !s[n + 1 + m];
}

static Status check_drafter(const Place *p, const json_t *d)
{
    if (!json_is_object(d)) return wrong(p, "drafters", "objects");
    if (!good_repo(json_string_value(json_object_get(d, "repo")))) return wrong(p, "repo", "OWNER/NAME");
    TRY(check_choice(p, d, "format", "gguf", "safetensors"));
    bool gguf = strcmp(json_string_value(json_object_get(d, "format")), "gguf") == 0;
    TRY(check_text(p, d, "quant", 40, gguf));
    if (!gguf && json_is_string(json_object_get(d, "quant")))
        return wrong(p, "quant", "null for a folder of safetensors");
    TRY(check_number(p, d, "bytes", (int64_t) 1 << 42, true));
    TRY(check_choice(p, d, "kind", "dflash", "dflash2"));
    if (!json_is_boolean(json_object_get(d, "gated"))) return wrong(p, "gated", "true or false");
    TRY(check_choice(p, d, "state", "verified", "inferred"));
    TRY(check_text(p, d, "source", TEXT_MAX, true));
    return check_text(p, d, "note", TEXT_MAX, false);
}

static Status check_pair(Place *p, const json_t *pair, size_t i)
{
    const json_t *d;
    size_t k;
    const char *model = json_string_value(json_object_get(pair, "model"));
    snprintf(p->at, sizeof p->at, "pairs[%zu]%s%.60s%s", i, model ? " (" : "", model ? model : "", model ? ")" : "");
    if (!json_is_object(pair)) return wrong(p, "pairs", "objects");
    TRY(check_text(p, pair, "model", NAME_MAX_BYTES, true));
    TRY(check_text(p, pair, "architecture", 60, true));
    TRY(check_number(p, pair, "layers", 100000, false));
    TRY(check_number(p, pair, "width", 1 << 24, false));
    TRY(check_texts(p, pair, "names", true));
    TRY(check_texts(p, pair, "except", false));
    TRY(check_text(p, pair, "source", TEXT_MAX, true));
    const json_t *list = json_object_get(pair, "drafters");
    if (!json_is_array(list) || json_array_size(list) == 0) return wrong(p, "drafters", "a list of drafters");
    json_array_foreach(list, k, d) TRY(check_drafter(p, d));
    return ST_OK;
}

Status drafters_read(Drafters **out, const char *path, Error *err)
{
    char *text;
    size_t n = 0, i;
    json_t *pair;
    *out = NULL;
    TRY(read_text(&text, &n, path, err));
    Drafters *d = calloc(1, sizeof *d);
    Status st = d ? json_read(&d->root, text, n, path, err) : fail(err, ST_MEMORY, "%s: out of memory", path);
    free(text);
    Place p = { .path = path, .err = err };
    if (st == ST_OK) {
        d->pairs = json_object_get(d->root, "pairs");
        if (!json_is_array(d->pairs)) st = fail(err, ST_FORMAT, "%s: pairs: expected a list", path);
    }
    if (st == ST_OK)
        json_array_foreach(d->pairs, i, pair)
            if (st == ST_OK) st = check_pair(&p, pair, i);
    if (st == ST_OK) *out = d;
    else drafters_close(d);
    return st;
}

Status drafters_open(Drafters **out, Error *err)
{
    static const char *const places[] = { "share/drafters.json", "../share/ratoon/drafters.json" };
    char exe[4096], path[4200];
    *out = NULL;
    ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
    exe[n > 0 ? n : 0] = 0;
    char *slash = strrchr(exe, '/');
    if (!slash) return ST_END;
    *slash = 0;
    for (size_t i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s", exe, places[i]);
        if (access(path, F_OK) == 0) return drafters_read(out, path, err);
    }
    return ST_END;
}

void drafters_close(Drafters *d)
{
    if (!d) return;
    json_decref(d->root);
    free(d);
}

/* ---- asking ---- */

static bool number_agrees(const json_t *pair, const char *field, int32_t known)
{
    const json_t *v = json_object_get(pair, field);
    return !v || known == 0 || json_integer_value(v) == known;
}

/* Whether one of the texts is a word of the name, or (begins) its beginning. */
static bool says(const json_t *texts, const char *name, bool begins)
{
    size_t i;
    const json_t *v;
    NameWords words = name_words(name);
    json_array_foreach(texts, i, v) {
        NameWords with = name_words(json_string_value(v));
        if (begins ? name_begins(&words, &with) : name_has(&words, json_string_value(v))) return true;
    }
    return false;
}

static bool agrees(const json_t *pair, const DraftTarget *t)
{
    const char *arch = json_string_value(json_object_get(pair, "architecture"));
    bool named = false, other = false;
    if (t->arch && strcmp(t->arch, arch) != 0) return false;
    if (!number_agrees(pair, "layers", t->layers) || !number_agrees(pair, "width", t->width)) return false;
    for (size_t i = 0; i < TARGET_NAMES; i++) {
        if (!t->names[i]) continue;
        named |= says(json_object_get(pair, "names"), t->names[i], true);
        other |= says(json_object_get(pair, "except"), t->names[i], false);
    }
    return named && !other;
}

static PublishedDrafter published(const json_t *pair, const json_t *d)
{
    return (PublishedDrafter) {
        .model = json_string_value(json_object_get(pair, "model")),
        .repo = json_string_value(json_object_get(d, "repo")), .quant = json_string_value(json_object_get(d, "quant")),
        .kind = json_string_value(json_object_get(d, "kind")),
        .source = json_string_value(json_object_get(d, "source")),
        .note = json_string_value(json_object_get(d, "note")),
        .bytes = (uint64_t) json_integer_value(json_object_get(d, "bytes")),
        .gated = json_is_true(json_object_get(d, "gated")),
        .verified = strcmp(json_string_value(json_object_get(d, "state")), "verified") == 0,
    };
}

size_t drafters_for_target(const Drafters *d, PublishedDrafter *out, size_t cap, const DraftTarget *t)
{
    size_t n = 0, i, k;
    const json_t *pair, *one;
    if (!d) return 0;
    json_array_foreach(d->pairs, i, pair) {
        if (!agrees(pair, t)) continue;
        json_array_foreach(json_object_get(pair, "drafters"), k, one) {
            if (n < cap) out[n] = published(pair, one);
            n++;
        }
    }
    return n;
}

void drafter_name(char *out, size_t cap, const PublishedDrafter *p)
{
    snprintf(out, cap, "%s%s%s", p->repo, p->quant ? ":" : "", p->quant ? p->quant : "");
}
