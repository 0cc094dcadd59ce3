#include "text/template/template.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/template/template_impl.h"
#include "text/tokenizer/utf8.h"

/* ---- failures ---- */

/* Line and column of a byte offset, and as much of its line around it as fits. */
static void locate(TemplateError *e, const char *s, size_t n, size_t at)
{
    enum { BEFORE = 60 };
    size_t line = 0, end = at, w = 0;
    e->line = 1;
    for (size_t i = 0; i < at; i++)
        if (s[i] == '\n') {
            e->line++;
            line = i + 1;
        }
    while (end < n && s[end] != '\n') end++;
    e->column = 1;
    for (size_t i = line; i < at; i++) e->column += ((uint8_t) s[i] & 0xc0) != 0x80;
    int32_t cut = e->column > BEFORE ? e->column - BEFORE : 0;     /* characters omitted in front */
    e->caret = e->column - 1 - cut;
    for (size_t i = line; i < end;) {
        uint32_t cp = 0;
        size_t len = utf8_next(s + i, end - i, &cp);
        if (len == 0) len = 1;
        if (cut > 0) {
            cut--;
        } else {
            if (w + len >= sizeof e->source) break;
            bool control = cp < 0x20 || (cp >= 0x7f && cp < 0xa0);
            memcpy(e->source + w, control ? " " : s + i, control ? 1 : len);
            w += control ? 1 : len;
        }
        i += len;
    }
    e->source[w] = 0;
}

void fault(Fault *f, Status code, size_t at, const char *format, ...)
{
    char text[400];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    TemplateError *e = f->err;
    *e = (TemplateError) { 0 };
    if (at != SIZE_MAX) locate(e, f->source, f->n, at < f->n ? at : f->n);
    if (code == ST_ARG) fail(&e->error, code, "%s", text);
    else if (at != SIZE_MAX) fail(&e->error, code, "%s: line %d, column %d: %s", f->name, e->line, e->column, text);
    else fail(&e->error, code, "%s: %s", f->name, text);
    longjmp(f->out, 1);
}

/* ---- templates ---- */

/* Converts line ends to \n and removes one at the very end. */
static size_t normalise(char *out, const char *s, size_t n)
{
    size_t w = 0;
    for (size_t i = 0; i < n; i++) {
        if (s[i] == '\r') {
            out[w++] = '\n';
            if (i + 1 < n && s[i + 1] == '\n') i++;
        } else {
            out[w++] = s[i];
        }
    }
    return w > 0 && out[w - 1] == '\n' ? w - 1 : w;
}

/* All of parsing that may fail by a longjmp. */
static bool parse(Template *t, Fault *f)
{
    if (setjmp(f->out)) return false;
    size_t valid = utf8_valid(t->source, t->n);
    if (valid < t->n) fault(f, ST_FORMAT, valid, "byte %zu is not UTF-8", valid);
    t->body = parse_template(t, f);
    return true;
}

Status template_open(Template **out, const char *source, size_t n, const char *name, TemplateError *err)
{
    TemplateError unwanted;
    if (!err) err = &unwanted;
    *err = (TemplateError) { 0 };
    *out = NULL;
    if (n > TEMPLATE_SOURCE_MAX)
        return fail(&err->error, ST_FULL, "%s: the template has %zu bytes, expected at most %d", name, n,
                    TEMPLATE_SOURCE_MAX);
    Template *t = calloc(1, sizeof *t);
    if (t) {
        t->source = malloc(n + 1);
        t->name = strdup(name);
    }
    if (!t || !t->source || !t->name) {
        template_close(t);
        return fail(&err->error, ST_MEMORY, "%s: out of memory for a template of %zu bytes", name, n);
    }
    t->n = normalise(t->source, source, n);
    t->source[t->n] = 0;
    Fault f = { .err = err, .name = t->name, .source = t->source, .n = t->n };
    t->heap = (Heap) { .max = TEMPLATE_MEMORY_MAX, .fault = &f };
    bool good = parse(t, &f);
    t->heap.fault = NULL;
    if (good) {
        *out = t;
        return ST_OK;
    }
    template_close(t);
    return err->error.code;
}

void template_close(Template *t)
{
    if (!t) return;
    heap_free(&t->heap);
    free(t->source);
    free(t->name);
    free(t);
}

bool template_mentions(const Template *t, const char *text) { return strstr(t->source, text) != NULL; }

/* ---- renders ---- */

static size_t place_of(const Buffer *b, Speaker who)
{
    size_t at = SIZE_MAX;
    for (uint32_t i = 0; i < b->n_client; i++) {
        const Span *s = &b->client[i];
        if (s->who == SPEAKER_CLIENT) continue;
        if (at == SIZE_MAX ? s->who > who : s->who < who) return SIZE_MAX;
        if (s->who == who && at == SIZE_MAX) at = s->at;
    }
    return at;
}

static bool finish(TemplateText *out, const Buffer *b)
{
    out->text = malloc((size_t) b->n + 1);
    out->client = malloc((b->n_client ? b->n_client : 1) * sizeof *out->client);
    if (!out->text || !out->client) return false;
    if (b->n) memcpy(out->text, b->bytes, b->n);
    out->text[b->n] = 0;
    out->n = b->n;
    for (uint32_t i = 0; i < b->n_client; i++) {
        TextSpan *last = out->n_client ? &out->client[out->n_client - 1] : NULL;
        if (last && last->at + last->n == b->client[i].at) last->n += b->client[i].n;
        else out->client[out->n_client++] = (TextSpan) { b->client[i].at, b->client[i].n };
    }
    return true;
}

static bool run(Render *r, TemplateText *out, const TemplateInput *in)
{
    if (setjmp(r->fault.out)) return false;
    r->root = r->scope = heap_take(&r->heap, sizeof *r->root);
    r->out = r->page = buffer_new(r, 0);
    for (size_t i = 0; i < in->n_variables; i++) {
        const TemplateVariable *v = &in->variable[i];
        if (v->value)
            dict_set(r, &r->root->vars, text_new(r, v->name, strlen(v->name)), value_from_json(r, v->value, v->origin));
    }
    render_body(r);
    out->asked = r->asked < r->out->n ? r->asked : r->out->n;
    out->parted = in->part < UINT32_MAX / 2 ? place_of(r->out, SPEAKER_MESSAGE + (Speaker) in->part) : SIZE_MAX;
    if (!finish(out, r->out)) fault(&r->fault, ST_MEMORY, SIZE_MAX, "out of memory for %u bytes of prompt", r->out->n);
    return true;
}

Status template_render(TemplateText *out, const Template *t, const TemplateInput *in, TemplateError *err)
{
    TemplateError unwanted;
    if (!err) err = &unwanted;
    *err = (TemplateError) { 0 };
    *out = (TemplateText) { 0 };
    Render *r = calloc(1, sizeof *r);
    if (!r) return fail(&err->error, ST_MEMORY, "%s: out of memory", t->name);
    r->fault = (Fault) { .err = err, .name = t->name, .source = t->source, .n = t->n };
    r->heap = (Heap) { .max = TEMPLATE_MEMORY_MAX, .fault = &r->fault };
    r->t = t;
    r->steps_max = in->steps_max ? in->steps_max : TEMPLATE_STEPS_MAX;
    r->now = in->now;
    r->lax = in->lax;
    r->watched = in->watched;
    r->asked = SIZE_MAX;
    if (!run(r, out, in)) template_text_free(out);
    heap_free(&r->heap);
    free(r);
    return err->error.code;
}

void template_text_free(TemplateText *text)
{
    free(text->text);
    free(text->client);
    *text = (TemplateText) { 0 };
}
