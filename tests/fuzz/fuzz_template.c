/* fuzz_template.c - any bytes as a chat template; after a zero byte the variables as JSON. What must hold: the prompt
 * is UTF-8, its marks ascend and lie inside it, a second render gives the same bytes, and every failure has one line of
 * text. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "text/template/template.h"
#include "text/tokenizer/utf8.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

static void check_error(Status st, const TemplateError *err)
{
    if (st == ST_OK) return;
    if (st != err->error.code || (!err->error.text[0] && st != ST_ARG) || strchr(err->error.text, '\n')) abort();
    if (err->line < 0 || err->column < 0 ||
        (err->line > 0 && (err->caret < 0 || (size_t) err->caret > strlen(err->source))))
        abort();
}

static void check_text(const TemplateText *t)
{
    size_t end = 0;
    if (utf8_valid(t->text, t->n) != t->n || t->text[t->n]) abort();
    for (size_t i = 0; i < t->n_client; i++) {
        if (t->client[i].n == 0 || (i > 0 && t->client[i].at <= end) || t->client[i].n > t->n - t->client[i].at)
            abort();
        end = t->client[i].at + t->client[i].n;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    static const struct tm DAY = { .tm_year = 126, .tm_mon = 10, .tm_mday = 21, .tm_wday = 6, .tm_yday = 324 };
    const uint8_t *zero = n ? memchr(bytes, 0, n) : NULL;
    size_t n_source = zero ? (size_t) (zero - bytes) : n;
    TemplateVariable v[8];
    TemplateInput in = { .variable = v, .now = &DAY, .steps_max = 200000, .lax = n % 2 };
    TemplateError err;
    Template *t;
    json_t *all = NULL, *value;
    const char *key;
    Status st = template_open(&t, (const char *) bytes, n_source, "fuzz", &err);
    check_error(st, &err);
    if (st != ST_OK) return 0;
    if (zero && json_read(&all, (const char *) zero + 1, n - n_source - 1, "fuzz", NULL) == ST_OK)
        json_object_foreach(all, key, value)
            if (in.n_variables < 8) v[in.n_variables++] = (TemplateVariable) {
            key, value, strcmp(key, "messages") == 0 ? ORIGIN_MESSAGES : ORIGIN_CLIENT };
    TemplateText first, second;
    st = template_render(&first, t, &in, &err);
    check_error(st, &err);
    if (st == ST_OK) {
        check_text(&first);
        if (template_render(&second, t, &in, &err) != ST_OK || second.n != first.n ||
            memcmp(first.text, second.text, first.n) != 0)
            abort();
        template_text_free(&second);
    } else if (first.text) {
        abort();
    }
    template_text_free(&first);
    template_close(t);
    json_decref(all);
    return 0;
}
