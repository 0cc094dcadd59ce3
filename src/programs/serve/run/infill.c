/* infill.c - the prompt of a text with a gap, in the form that models for code are trained on:
 *
 *     [REP] project \n ([SEP] filename \n text)* [SEP] filename \n     other texts of the project, if there are any
 *     [PRE] before the gap, begun [SUF] behind it [MID]                what the model writes next belongs into the gap
 *
 * If it does not fit, the beginning of the other texts goes first, then what is farthest from the gap: a quarter of the
 * room is for what stands behind it. */
#include <stdlib.h>
#include <string.h>

#include "programs/serve/run/job.h"

typedef struct { int32_t *t; size_t n; } Tokens;

static bool no_memory(HttpError *e) { return http_fail(e, 500, NULL, NULL, "out of memory for the prompt's tokens"); }

/* Appends the tokens of a client's text, in which no special token of any type is one. */
static bool add_text(Tokens *to, const Server *s, const char *text, size_t n)
{
    const rt_engine *g = s->p.engine;
    const rt_span all = { 0, n };
    int32_t *more = realloc(to->t, (to->n + n + 2) * sizeof *more);
    if (!more) return false;
    to->t = more;
    more += to->n;
    size_t count = n > 0 ? rt_tokenize_prompt(g, text, n, &all, 1, more, n + 2) : 0;
    if (count > 0 && rt_adds_bos(g) && more[0] == rt_token_bos(g)) memmove(more, more + 1, --count * sizeof *more);
    to->n += count;
    return true;
}

static bool add_id(Tokens *to, int32_t id)
{
    int32_t *more = realloc(to->t, (to->n + 1) * sizeof *more);
    if (!more) return false;
    to->t = more;
    more[to->n++] = id;
    return true;
}

/* No more of a text than could fit needs tokens: its end, or its beginning. */
static size_t most_bytes(const Server *s) { return ((size_t) s->ctx + 1) * (s->longest ? s->longest : 1); }

static void keep_end(const char **text, size_t *n, size_t most)
{
    if (*n <= most) return;
    *text += *n - most;
    *n = most;
    for (; *n > 0 && ((unsigned char) **text & 0xc0) == 0x80; --*n) ++*text;
}

static size_t keep_start(const char *text, size_t n, size_t most)
{
    if (n <= most) return n;
    while (most > 0 && ((unsigned char) text[most] & 0xc0) == 0x80) most--;
    return most;
}

/* The name of a text; a model without the mark for it gets a line of its own. */
static bool add_name(Tokens *to, const Server *s, const char *name)
{
    char line[600];
    bool marked = s->fim[FIM_SEP] >= 0;
    int n = snprintf(line, sizeof line, marked ? "%.500s\n" : "\n\n--- %.500s ---\n\n", name);
    return (!marked || add_id(to, s->fim[FIM_SEP])) && add_text(to, s, line, (size_t) n);
}

/* The first of the texts that could still fit, as the last ones do. */
static size_t first_extra(const json_t *extra, size_t most)
{
    size_t i = json_array_size(extra), bytes = 0;
    while (i > 0 && bytes <= most) bytes += json_string_length(json_object_get(json_array_get(extra, --i), "text"));
    return i;
}

static bool add_extra(Tokens *to, const Server *s, const json_t *extra)
{
    const size_t most = most_bytes(s);
    if (json_array_size(extra) == 0) return true;
    bool good = s->fim[FIM_REP] < 0 || (add_id(to, s->fim[FIM_REP]) && add_text(to, s, "project\n", 8));
    for (size_t i = first_extra(extra, most); i < json_array_size(extra); i++) {
        const json_t *one = json_array_get(extra, i), *name = json_object_get(one, "filename"),
                     *text = json_object_get(one, "text");
        const char *from = json_string_value(text);
        size_t n = json_string_length(text);
        keep_end(&from, &n, most);
        good = good && add_name(to, s, json_is_string(name) ? json_string_value(name) : "snippet") &&
               add_text(to, s, from, n);
    }
    return good && add_name(to, s, "current");
}

typedef struct { Tokens extra, prefix, begun, suffix; } Parts;

static bool tokenize(Parts *p, const Server *s, const Request *q)
{
    const RequestInfill *in = &q->infill;
    const char *prefix = in->prefix;
    size_t n_prefix = in->n_prefix, most = most_bytes(s);
    keep_end(&prefix, &n_prefix, most);
    return add_extra(&p->extra, s, in->extra) && add_text(&p->prefix, s, prefix, n_prefix) &&
           add_text(&p->begun, s, q->prompt->text, keep_start(q->prompt->text, q->prompt->n, most)) &&
           add_text(&p->suffix, s, in->suffix, keep_start(in->suffix, in->n_suffix, most));
}

/* Room is kept for the answer, at most a quarter of the context. */
static bool join(JobPrompt *to, const Parts *p, const Server *s, const Request *q, HttpError *e)
{
    const bool bos = rt_adds_bos(s->p.engine) && rt_token_bos(s->p.engine) >= 0;
    size_t answer = q->max_tokens < 0 || q->max_tokens > s->ctx / 4 ? (size_t) s->ctx / 4 : (size_t) q->max_tokens,
           used = 4 + bos + p->begun.n + answer, room = used < (size_t) s->ctx ? (size_t) s->ctx - used : 0;
    if (used > (size_t) s->ctx) return http_fail_context(e, q->dialect, (int64_t) (used - answer), s->ctx);
    size_t prefix = p->prefix.n, suffix = p->suffix.n;
    if (prefix + suffix > room) {
        size_t behind = room > prefix && room - prefix > room / 4 ? room - prefix : room / 4;
        if (suffix > behind) suffix = behind;
        if (prefix > room - suffix) prefix = room - suffix;
    }
    size_t left = room - prefix - suffix, extra = p->extra.n < left ? p->extra.n : left;
    int32_t *w = to->t = malloc((used + room) * sizeof *w);
    if (!w) return no_memory(e);
    if (bos) *w++ = rt_token_bos(s->p.engine);
    const struct { const int32_t *t; size_t n; int32_t mark; } ALL[] = {
        { p->extra.t + (p->extra.n - extra), extra, s->fim[FIM_PRE] },
        { p->prefix.t + (p->prefix.n - prefix), prefix, -1 }, { p->begun.t, p->begun.n, s->fim[FIM_SUF] },
        { p->suffix.t, suffix, s->fim[FIM_MID] } };
    for (size_t i = 0; i < sizeof ALL / sizeof *ALL; i++) {
        if (ALL[i].n > 0) w = mempcpy(w, ALL[i].t, ALL[i].n * sizeof *w);
        if (ALL[i].mark >= 0) *w++ = ALL[i].mark;
    }
    to->n = (int32_t) (w - to->t);
    return true;
}

bool infill_prompt(JobPrompt *p, const Server *s, const Request *q, HttpError *e)
{
    Parts parts = { 0 };
    bool good = tokenize(&parts, s, q) ? join(p, &parts, s, q, e) : no_memory(e);
    free(parts.extra.t);
    free(parts.prefix.t);
    free(parts.begun.t);
    free(parts.suffix.t);
    return good;
}
