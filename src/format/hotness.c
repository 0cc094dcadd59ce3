#include "format/hotness.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/save.h"
#include "format/file.h"

#define MOST ((uint64_t) 1 << 53)                  /* whole numbers that a double holds exactly */
enum { NAME = 128, SHOWN = 40 };                   /* a name with its NUL; bytes of a wrong value in an error */

static const char MODEL_LINE[] = "# model: bytes=", MODEL_NAME[] = " name=";

/* A part of the text. */
typedef struct { const char *at; size_t n; } Span;

static bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r'; }

static Span trim(const char *at, size_t n)
{
    while (n > 0 && is_blank(at[n - 1])) n--;
    for (; n > 0 && is_blank(*at); n--) at++;
    return (Span) { at, n };
}

/* Up to the next `end`, which is passed over, or all that is left. */
static Span next_part(Span *rest, char end)
{
    const char *found = memchr(rest->at, end, rest->n);
    const size_t n = found ? (size_t) (found - rest->at) : rest->n, passed = n + (found != NULL);
    Span part = trim(rest->at, n);
    rest->at += passed;
    rest->n -= passed;
    return part;
}

/* The whole number at the beginning of s, which is passed over. Returns false if there is none, or one above MOST. */
static bool take_number(uint64_t *out, Span *s)
{
    size_t digits = 0;
    for (*out = 0; digits < s->n && s->at[digits] >= '0' && s->at[digits] <= '9'; digits++) {
        *out = 10 * *out + (uint64_t) (s->at[digits] - '0');
        if (*out > MOST) return false;
    }
    s->at += digits;
    s->n -= digits;
    return digits > 0;
}

static int shown(Span s) { return (int) (s.n < SHOWN ? s.n : SHOWN); }

static void clean_name(char out[NAME], const char *name)
{
    snprintf(out, NAME, "%s", name ? name : "");
    line_clean(out);
    for (char *p = out; (p = strchr(p, '=')); ) *p = '?';       /* nothing in a name may look like a field */
    Span s = trim(out, strlen(out));
    memmove(out, s.at, s.n);
    out[s.n] = 0;
}

/* ---- reading ---- */

typedef struct {
    const char *path;
    Span        rest;                              /* what has not been read */
    int32_t     line, rows;                        /* read so far */
    bool        ours;                              /* a line names the model */
    const HotnessModel *of;
    Hotness    *out;
    Error      *err;
} Reader;

static bool next_line(Reader *r, Span *line)
{
    if (r->rest.n == 0) return false;
    *line = next_part(&r->rest, '\n');
    r->line++;
    return true;
}

static bool has_prefix(Span s, const char *prefix)
{
    const size_t n = strlen(prefix);
    return s.n >= n && memcmp(s.at, prefix, n) == 0;
}

static Status read_model(Reader *r, Span line)
{
    char mine[NAME];
    uint64_t bytes;
    if (!has_prefix(line, MODEL_LINE)) return ST_OK;
    const Span all = line;
    line = (Span) { line.at + sizeof MODEL_LINE - 1, line.n - (sizeof MODEL_LINE - 1) };
    if (!take_number(&bytes, &line) || !has_prefix(line, MODEL_NAME))
        return fail(r->err, ST_FORMAT, "%s: line %d is '%.*s', expected '%sBYTES%sNAME'", r->path, r->line, shown(all),
                    all.at, MODEL_LINE, MODEL_NAME);
    const Span name = trim(line.at + sizeof MODEL_NAME - 1, line.n - (sizeof MODEL_NAME - 1));
    clean_name(mine, r->of->name);
    r->ours = true;
    if (bytes == r->of->bytes && name.n == strlen(mine) && memcmp(name.at, mine, name.n) == 0) return ST_OK;
    return fail(r->err, ST_FORMAT, "%s: line %d: belongs to the model '%.*s' of %" PRIu64 " bytes, expected '%s' of "
                "%" PRIu64, r->path, r->line, (int) (name.n < NAME ? name.n : NAME), name.at, bytes, mine,
                r->of->bytes);
}

/* Before all else, so that a file of another model is refused by name and not by its numbers. */
static Status read_models(const Reader *start, bool *ours)
{
    Reader r = *start;
    for (Span line; next_line(&r, &line);) TRY(read_model(&r, line));
    *ours = r.ours;
    return ST_OK;
}

/* key: with its =. A field that the line does not have may have any value. */
static Status check_field(const Reader *r, Span line, const char *key, int32_t expected)
{
    uint64_t n;
    const char *found = memmem(line.at, line.n, key, strlen(key));
    if (!found) return ST_OK;
    Span value = { found + strlen(key), 0 };
    while (value.at + value.n < line.at + line.n && !is_blank(value.at[value.n])) value.n++;
    Span rest = value;
    if (take_number(&n, &rest) && rest.n == 0 && n == (uint64_t) expected) return ST_OK;
    return fail(r->err, ST_FORMAT, "%s: line %d: %s%.*s, expected the model's %d", r->path, r->line, key, shown(value),
                value.at, expected);
}

static Status read_comment(const Reader *r, Span line)
{
    if (!memmem(line.at, line.n, "n_layer=", 8)) return ST_OK;
    TRY(check_field(r, line, "n_layer=", r->of->layers));
    TRY(check_field(r, line, "n_expert=", r->of->experts));
    return check_field(r, line, "n_expert_used=", r->of->used);
}

static Status check_width(const Reader *r, Span line)
{
    size_t values = 1;
    for (size_t i = 0; i < line.n; i++) values += line.at[i] == ',';
    if (values == (size_t) r->of->experts) return ST_OK;
    return fail(r->err, ST_FORMAT, "%s: line %d has %zu values, expected %d, one for each expert", r->path, r->line,
                values, r->of->experts);
}

static Status read_row(Reader *r, Span line)
{
    if (r->rows == r->of->layers)
        return fail(r->err, ST_FORMAT, "%s: line %d is a row too many, expected %d, one for each layer", r->path,
                    r->line, r->of->layers);
    TRY(check_width(r, line));
    uint64_t *count = r->out->count + (size_t) r->rows * (size_t) r->of->experts;
    for (int32_t i = 0; i < r->of->experts; i++) {
        const Span value = next_part(&line, ',');
        Span rest = value;
        if (!take_number(&count[i], &rest) || rest.n > 0)
            return fail(r->err, ST_FORMAT, "%s: line %d, value %d is '%.*s', expected a whole number up to %" PRIu64,
                        r->path, r->line, i + 1, shown(value), value.at, MOST);
    }
    const uint64_t total = hotness_total(r->out, r->rows++);
    if (total <= MOST) return ST_OK;
    return fail(r->err, ST_FORMAT, "%s: line %d: its values add up to %" PRIu64 ", expected at most %" PRIu64, r->path,
                r->line, total, MOST);
}

static Status read_lines(Reader *r)
{
    const char last = r->rest.n ? r->rest.at[r->rest.n - 1] : 0;
    TRY(read_models(r, &r->ours));
    for (Span line; next_line(r, &line);)
        if (line.n > 0) TRY(*line.at == '#' ? read_comment(r, line) : read_row(r, line));
    if (r->rows < r->of->layers)
        return fail(r->err, ST_FORMAT, "%s: ends after %d rows, expected %d, one for each layer: was it cut?", r->path,
                    r->rows, r->of->layers);
    if (r->ours && last != '\n')                   /* we end every line; a last value may be cut too */
        return fail(r->err, ST_FORMAT, "%s: line %d does not end, expected a line feed: was it cut?", r->path, r->line);
    return ST_OK;
}

Status hotness_parse(Hotness *out, const char *text, size_t n, const char *name, const HotnessModel *of, Error *err)
{
    Reader r = { .path = name, .rest = { text, n }, .of = of, .out = out, .err = err };
    TRY(hotness_new(out, of, err));
    Status st = read_lines(&r);
    if (st != ST_OK) hotness_free(out);
    return st;
}

/* The largest file for a model: values of up to 16 digits with a comma and a few blanks, and 64 KiB of comments. */
static Status check_size(const File *f, const HotnessModel *of, Error *err)
{
    enum { VALUE = 24, COMMENTS = 1 << 16 };
    size_t most;
    if (check_mul(&most, (size_t) of->layers * (size_t) of->experts, VALUE) && check_add(&most, most, COMMENTS) &&
        f->size <= most)
        return ST_OK;
    return fail(err, ST_FORMAT, "%s: has %zu bytes, expected no more than counts of %d layers with %d experts take",
                f->path, f->size, of->layers, of->experts);
}

static Status read_file(Hotness *out, const File *f, const HotnessModel *of, Error *err)
{
    TRY(check_size(f, of, err));
    char *text = malloc(f->size + 1);              /* not 0 bytes */
    if (!text) return fail(err, ST_MEMORY, "%s: no memory to read it", f->path);
    Status st = file_read(f, text, 0, f->size, err);
    if (st == ST_OK) st = hotness_parse(out, text, f->size, f->path, of, err);
    free(text);
    return st;
}

Status hotness_read(Hotness *out, const char *path, const HotnessModel *of, Error *err)
{
    File f;
    bool missing;
    *out = (Hotness) { 0 };
    Status st = file_open(&f, path, &missing, err);
    if (st != ST_OK) return missing ? fail(err, ST_END, "%s: there is no such file", path) : st;
    st = read_file(out, &f, of, err);
    file_close(&f);
    return st;
}

/* ---- writing ---- */

typedef struct { const Hotness *h; const HotnessModel *of; } Written;

static bool put(void *ud, FILE *f)
{
    const Written *w = ud;
    const Hotness *h = w->h;
    char name[NAME];
    clean_name(name, w->of->name);
    fprintf(f, "# hotness table: n_layer=%d n_expert=%d n_expert_used=%d\n", h->layers, h->experts, h->used);
    fprintf(f, "# one line for each layer, one count for each expert\n");
    fprintf(f, "%s%" PRIu64 "%s%s\n", MODEL_LINE, w->of->bytes, MODEL_NAME, name);
    for (size_t i = 0, width = (size_t) h->experts; i < (size_t) h->layers * width; i++)
        fprintf(f, "%" PRIu64 "%c", h->count[i], (i + 1) % width ? ',' : '\n');
    return !ferror(f);
}

Status hotness_write(const Hotness *h, const char *path, const HotnessModel *of, Error *err)
{
    for (int32_t i = 0; i < h->layers; i++) {
        const uint64_t total = hotness_total(h, i);
        if (total > MOST)
            return fail(err, ST_ARG, "%s: the counts of layer %d add up to %" PRIu64 ", expected at most %" PRIu64,
                        path, i, total, MOST);
    }
    return save_file(path, SAVE_SHARED, put, &(Written) { h, of }, err);
}

/* ---- counts ---- */

Status hotness_new(Hotness *out, const HotnessModel *of, Error *err)
{
    *out = (Hotness) { of->layers, of->experts, of->used,
                       calloc((size_t) of->layers * (size_t) of->experts, sizeof *out->count) };
    if (out->count) return ST_OK;
    *out = (Hotness) { 0 };
    return fail(err, ST_MEMORY, "no memory for counts of %d layers with %d experts", of->layers, of->experts);
}

uint64_t hotness_total(const Hotness *h, int32_t layer)
{
    uint64_t sum = 0;
    const uint64_t *count = h->count + (size_t) layer * (size_t) h->experts;
    for (int32_t e = 0; e < h->experts; e++)
        if (__builtin_add_overflow(sum, count[e], &sum)) return UINT64_MAX;
    return sum;
}

static bool exceeds(const Hotness *h, uint64_t most)
{
    for (int32_t i = 0; i < h->layers; i++)
        if (hotness_total(h, i) > most) return true;
    return false;
}

void hotness_halve(Hotness *h, uint64_t most)
{
    while (exceeds(h, most))
        for (size_t i = 0; i < (size_t) h->layers * (size_t) h->experts; i++) h->count[i] /= 2;
}

void hotness_free(Hotness *h)
{
    free(h->count);
    *h = (Hotness) { 0 };
}
