/* template_helper.h - what the tests of templates share: files, and rendering in one call. Include after cmocka.h. */
#ifndef RATOON_TESTS_HELP_TEMPLATE_HELPER_H
#define RATOON_TESTS_HELP_TEMPLATE_HELPER_H

#include "text/chat_prompt.h"

static inline json_t *read_json(const char *path)
{
    json_error_t e;
    json_t *j = json_load_file(path, 0, &e);
    if (!j) print_error("%s: %s\n", path, e.text);
    assert_non_null(j);
    return j;
}

/* tests/data/templates/NAME.jinja */
static inline char *read_template(const char *name, size_t *n)
{
    char path[128], *s = malloc(1 << 16);
    snprintf(path, sizeof path, "tests/data/templates/%s.jinja", name);
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    *n = fread(s, 1, 1 << 16, f);
    fclose(f);
    return s;
}

static inline Template *open_file(const char *name)
{
    TemplateError err;
    Template *t;
    size_t n;
    char *s = read_template(name, &n);
    Status st = template_open(&t, s, n, name, &err);
    if (st != ST_OK) print_error("%s\n", err.error.text);
    assert_int_equal(st, ST_OK);
    free(s);
    return t;
}

static inline Status render_case(TemplateText *out, const Template *t, const json_t *c, const json_t *special,
                                 const struct tm *now, TemplateError *err)
{
    ChatRequest q = { .messages = json_object_get(c, "messages"), .tools = json_object_get(c, "tools"),
                      .documents = json_object_get(c, "documents"), .kwargs = json_object_get(c, "kwargs"),
                      .generation = json_is_true(json_object_get(c, "add_generation_prompt")), .now = now };
    return chat_prompt_exact(out, t, &q, special, false, err);
}

/* variables: a JSON object. */
static inline Status render_source(TemplateText *out, const char *source, const char *variables, TemplateError *err)
{
    Template *t;
    TemplateVariable v[16];
    size_t n = 0;
    *out = (TemplateText) { 0 };
    json_t *all = json_loads(variables, 0, NULL), *value;
    const char *key;
    assert_non_null(all);
    json_object_foreach(all, key, value) v[n++] = (TemplateVariable) { key, value, ORIGIN_PROGRAM };
    Status st = template_open(&t, source, strlen(source), "test", err);
    if (st == ST_OK) st = template_render(out, t, &(TemplateInput) { .variable = v, .n_variables = n }, err);
    template_close(t);
    json_decref(all);
    return st;
}

#endif
