/* Chat templates: the output of Jinja2 for our own templates and for single expressions (tests/data/templates, made by
 * tests/oracle/templates.py), failures with their places, limits, marks of text that came from a client, memory that
 * runs out, several threads. Preparing a conversation: test_chat_prompt.c. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>

#include "vocab_check.h"

#include <pthread.h>

#include "alloc_fault.h"
#include "template_helper.h"

/* ---- what Jinja2 renders ---- */

static void same_text(const char *name, const json_t *want, Status st, const TemplateText *got,
                      const TemplateError *err)
{
    const char *text = json_string_value(json_object_get(want, "text"));
    if (!text) {
        if (st == ST_OK)
            print_error("%s: renders \"%s\", Jinja2 fails: %s\n", name, got->text,
                        json_string_value(json_object_get(want, "fails")));
        assert_true(st != ST_OK && err->error.text[0]);
        return;
    }
    if (st != ST_OK) print_error("%s: %s\n", name, err->error.text);
    assert_int_equal(st, ST_OK);
    if (got->n != strlen(text) || strcmp(got->text, text) != 0)
        print_error("%s:\n  got      %s\n  expected %s\n", name, got->text, text);
    assert_int_equal(got->n, strlen(text));
    assert_string_equal(got->text, text);
}

static void golden(void **state)
{
    (void) state;
    static const char *const NAMES[] = { "chatml", "headers", "reasoning", "macros", "recursive", "marked",
                                         "whitespace", "turns", "responses" };
    json_t *cases = read_json("tests/data/templates/conversations.json");
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++) {
        char path[128], name[128];
        TemplateError err;
        Template *t = open_file(NAMES[i]);
        snprintf(path, sizeof path, "tests/data/templates/expect/%s.json", NAMES[i]);
        json_t *expect = read_json(path), *head = json_array_get(expect, 0);
        time_t now = (time_t) json_integer_value(json_object_get(head, "now"));
        struct tm day;
        gmtime_r(&now, &day);
        assert_int_equal(json_array_size(expect), json_array_size(cases) + 1);
        for (size_t k = 0; k < json_array_size(cases); k++) {
            TemplateText text;
            json_t *want = json_array_get(expect, k + 1);
            Status st = render_case(&text, t, json_array_get(cases, k), json_object_get(head, "special_tokens"),
                                    &day, &err);
            snprintf(name, sizeof name, "%s x %s", NAMES[i], json_string_value(json_object_get(want, "name")));
            same_text(name, want, st, &text, &err);
            template_text_free(&text);
        }
        json_decref(expect);
        template_close(t);
    }
    json_decref(cases);
}

static void units(void **state)
{
    (void) state;
    json_t *all = read_json("tests/data/templates/units.json"), *first = json_array_get(all, 0);
    time_t now = 1795262400;
    struct tm day;
    gmtime_r(&now, &day);
    assert_true(json_array_size(all) > 60);
    for (size_t i = 1; i < json_array_size(all); i++) {
        json_t *u = json_array_get(all, i);
        const char *source = json_string_value(json_object_get(u, "template"));
        TemplateError err;
        TemplateText text = { 0 };
        Template *t;
        Status st = template_open(&t, source, strlen(source), "unit", &err);
        if (st == ST_OK) st = render_case(&text, t, first, NULL, &day, &err);
        same_text(source, u, st, &text, &err);
        template_text_free(&text);
        template_close(t);
    }
    json_decref(all);
}

/* ---- failures ---- */

typedef struct { const char *source; Status code; int32_t line, column; const char *says; } Wrong;

static void check_wrong(const Wrong *w)
{
    TemplateError err;
    TemplateText text;
    Status st = render_source(&text, w->source, "{\"s\": \"some\", \"d\": {}, \"none_\": null}", &err);
    template_text_free(&text);
    if (st != w->code || err.line != w->line || err.column != w->column || !strstr(err.error.text, w->says))
        print_error("%s\n  code %d, line %d, column %d: %s\n  expected code %d, line %d, column %d: %s\n", w->source,
                    st, err.line, err.column, err.error.text, w->code, w->line, w->column, w->says);
    assert_int_equal(st, w->code);
    assert_int_equal(err.line, w->line);
    assert_int_equal(err.column, w->column);
    assert_non_null(strstr(err.error.text, w->says));
    assert_true(err.caret >= 0 && (size_t) err.caret <= strlen(err.source));
}

static void failures(void **state)
{
    (void) state;
    static const Wrong ALL[] = {
        { "a\n{{ x | }}", ST_FORMAT, 2, 8, "expected a name, found \"}}\"" },
        { "{{ x | nosuch }}", ST_FORMAT, 1, 8, "no filter \"nosuch\"" },
        { "{{ x is nosuch }}", ST_FORMAT, 1, 9, "no test \"nosuch\"" },
        { "{% if x %}\n{{ 1 }}", ST_FORMAT, 2, 8, "expected {% endif %}" },
        { "{% for x in y %}{% endif %}", ST_FORMAT, 1, 20, "no statement \"endif\"" },
        { "{{ 'abc }}", ST_FORMAT, 1, 4, "string has no end" },
        { "{# abc", ST_FORMAT, 1, 1, "comment has no end" },
        { "{% raw %} x", ST_FORMAT, 1, 10, "raw block has no end" },
        { "{{ (1 ]}}", ST_FORMAT, 1, 7, "unexpected ], expected )" },
        { "{{ 1", ST_FORMAT, 1, 5, "expected }}, found the end of the template" },
        { "{{ \xc3\xa9\xc3\xa9 + ? }}", ST_FORMAT, 1, 9, "unexpected character ?" },
        { "{% include 'x' %}", ST_UNSUPPORTED, 1, 4, "\"include\" is not supported" },
        { "{% break %}", ST_FORMAT, 1, 4, "outside of a loop" },
        { "{% set none = 1 %}", ST_FORMAT, 1, 8, "cannot be assigned" },
        { "{{ f(*a) }}", ST_UNSUPPORTED, 1, 6, "not supported" },
        { "{{ '\\ud800' }}", ST_FORMAT, 1, 5, "no Unicode character" },
        { "{{ 99999999999999999999 }}", ST_FORMAT, 1, 4, "out of range" },
        { "a\xff", ST_FORMAT, 1, 2, "not UTF-8" },
        { "x\n  {{ nope.y }}", ST_FORMAT, 2, 11, "\"nope\" is undefined" },
        { "{{ d.a.b }}", ST_FORMAT, 1, 8, "\"a\" is undefined" },
        { "{{ none_() }}", ST_FORMAT, 1, 9, "none cannot be called" },
        { "{{ 1 + 'a' }}", ST_FORMAT, 1, 8, "between a integer and a string" },
        { "{{ 9223372036854775807 + 1 }}", ST_FORMAT, 1, 26, "64 bits" },
        { "{% set x.y = 1 %}", ST_FORMAT, 1, 10, "only a namespace" },
        { "{{ s.index('q') }}", ST_FORMAT, 1, 11, "not in the string" },
        { "{{ s|join(1, 2, 3) }}", ST_FORMAT, 1, 6, "join takes 2 arguments at most" },
        { "{{ '1'|int(base=1) }}", ST_FORMAT, 1, 8, "int's base is 1, expected 2 to 36" },
        { "{{ '1'|int(0, 37) }}", ST_FORMAT, 1, 8, "int's base is 37, expected 2 to 36" },
        { "{{ s|join(zz=1) }}", ST_FORMAT, 1, 6, "no parameter \"zz\"" },
        { "{{ {[1]: 2} }}", ST_FORMAT, 1, 5, "list cannot be a key" },
        { "{{ raise_exception('Told\nyou') }}", ST_ARG, 1, 19, "Told?you" },
    };
    for (size_t i = 0; i < sizeof ALL / sizeof *ALL; i++) check_wrong(&ALL[i]);
    TemplateError err;
    Template *t;
    char source[400];
    memset(source, 'x', sizeof source);            /* a long line: the place remains visible */
    memcpy(source + 300, "{{ ? }}", 7);
    assert_int_equal(template_open(&t, source, sizeof source, "long", &err), ST_FORMAT);
    assert_int_equal(err.column, 304);
    assert_int_equal(err.source[err.caret], '?');
}

static void lax(void **state)
{
    (void) state;
    TemplateError err;
    TemplateText text;
    Template *t;
    const char *source = "[{{ a.b.c }}{{ a['b'][0] }}]";
    assert_int_equal(template_open(&t, source, strlen(source), "lax", &err), ST_OK);
    assert_int_equal(template_render(&text, t, &(TemplateInput) { 0 }, &err), ST_FORMAT);
    assert_int_equal(template_render(&text, t, &(TemplateInput) { .lax = true }, &err), ST_OK);
    assert_string_equal(text.text, "[]");
    template_text_free(&text);
    template_close(t);
}

/* ---- limits ---- */

static char *repeated(const char *head, const char *part, size_t n, const char *tail)
{
    char *s = malloc(strlen(head) + n * strlen(part) + strlen(tail) + 1), *w = stpcpy(s, head);
    for (size_t i = 0; i < n; i++) w = stpcpy(w, part);
    strcpy(w, tail);
    return s;
}

static void check_limit(const char *source, const char *says)
{
    TemplateError err;
    TemplateText text;
    Status st = render_source(&text, source, "{}", &err);
    if (st != ST_FULL || !strstr(err.error.text, says)) print_error("%.60s: %d %s\n", source, st, err.error.text);
    assert_int_equal(st, ST_FULL);
    assert_non_null(strstr(err.error.text, says));
    assert_null(text.text);
}

static void check_nested(const char *head, const char *open, const char *middle, const char *close, size_t n,
                         const char *says)
{
    char *front = repeated(head, open, n, middle),
         *all = repeated(front, close, n, head[0] == '{' && head[1] == '{' ? " }}" : "");
    check_limit(all, says);
    free(front);
    free(all);
}

static void limits(void **state)
{
    (void) state;
    check_limit("{% set l = range(3500) %}{% for a in l %}{% for b in l %}{% if b %}{% endif %}{% endfor %}{% "
                "endfor %}", "10000000 steps");
    check_limit("{% set n = namespace(s='x') %}{% for a in range(100) %}{% set n.s = n.s + n.s %}{% endfor %}",
                "16 MiB");
    check_limit("{% for a in range(2000) %}{{ 'xxxxxxxxxx' * 1000 }}{% endfor %}", "16 MiB");
    check_limit("{{ 'x' * 10000000000 }}", "16 MiB");
    check_limit("{{ 'x'.join(['y' * 9000000, 'y' * 9000000]) }}", "16 MiB");
    check_limit("{{ ('x' * 10000).replace('x', 'y' * 10000) }}", "16 MiB");
    check_limit("{{ '%999999999d' % 1 }}", "16 MiB");
    check_limit("{{ 'x'.zfill(100000000) }}", "16 MiB");
    check_limit("{{ [1] * 1000000 }}", "longer than 100000");
    check_limit("{{ range(100001) }}", "at most 100000");
    check_limit("{{ range(0 - 9000000000000000000, 9000000000000000000) }}", "at most 100000");
    check_limit("{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}", "deeper than 64");
    check_limit("{% set n = namespace(l=range(100000)) %}{% for a in range(1000) %}{% set n.l = n.l + range(100000) "
                "%}{% endfor %}", "256 MiB");
    check_limit("{% set n = namespace(s='y' * 1000000) %}{% for a in range(100000) %}{{ 'x' in n.s }}{% endfor %}",
                "steps");
    check_limit("{% set s = ' ' * 8000000 %}{% for a in range(10000) %}{{ s|float }}{% endfor %}", "steps");
    check_limit("{{ ('a' * 4000000).rfind('a' * 2000000 ~ 'b') }}", "steps");
    check_limit("{% set s = 'k' * 8000000 %}{% set d = {s: 1} %}{% for a in range(10000) %}{{ d[s] }}{% endfor %}",
                "steps");
    check_limit("{% set s = 'k' * 8000000 %}{% for a in range(10000) %}{% set t = s.removesuffix(s) %}{% endfor %}",
                "steps");
    check_nested("{{ ", "(", "1", ")", 100, "deeper than 64");
    check_nested("{{ ", "[", "1", "]", 100000, "deeper than 64");
    check_nested("{{ ", "not ", "1", "", 100000, "deeper than 64");
    check_nested("{{ ", "-", "1", "", 100000, "deeper than 64");
    check_nested("{{ ", "1 if 1 else ", "1", "", 100000, "deeper than 64");
    check_nested("{{ ", "1 if ", "1", "", 70, "deeper than 64");
    check_nested("", "{% if 1 %}", "x", "{% endif %}", 100, "deeper than 64");
    TemplateError err;
    TemplateText text;
    Status st = render_source(&text, "{% set l = [] %}{% do l.append(l) %}{{ l }}", "{}", &err);
    assert_int_equal(st, ST_FORMAT);
    assert_non_null(strstr(err.error.text, "nested deeper than 200"));
    st = render_source(&text, "{% set l = [] %}{% set m = [] %}{% do l.append(l) %}{% do m.append(m) %}{{ l == m }}{{ "
                       "l|tojson }}", "{}", &err);
    assert_int_equal(st, ST_FORMAT);
}

static void parts_and_copies(void **state)
{
    (void) state;
    TemplateError err;
    TemplateText text;
    assert_int_equal(render_source(&text, "{{ 'a,b,c'.partition(',') }}{{ 'a,b,c'.rpartition(',') }}{{ "
                                   "'abc'.partition('x') }}{{ 'abc'.rpartition('x')[2] }}{% set l = [1] %}{% set m = "
                                   "l.copy() %}{% do m.append(2) %}{{ l }}{{ m }}", "{}", &err), ST_OK);
    assert_string_equal(text.text, "('a', ',', 'b,c')('a,b', ',', 'c')('abc', '', '')abc[1][1, 2]");
    template_text_free(&text);
    assert_int_equal(render_source(&text, "{{ 'a'.partition('') }}", "{}", &err), ST_FORMAT);
}

/* Long but flat input is fine: chains use no depth. */
static void long_and_flat(void **state)
{
    (void) state;
    static const struct { const char *head, *part, *tail, *ends; } FLAT[] = {
        { "{{ 0", " + 1", " }}", "20000" }, { "{{ 'a'", " ~ 'b'", " }}", "bb" }, { "{{ 1", " and 1", " }}", "1" },
        { "{{ 'x'", "|upper", " }}", "X" },
        { "{% if 0 %}", "{% elif 0 %}", "{% else %}e{% endif %}", "e" }, { "", "{{ 1 }}", "", "11" },
        { "{{ [", "1,", "]|length }}", "20000" },
        { "{{ 1", " < 2 > 1", " }}", "True" },
    };
    for (size_t i = 0; i < sizeof FLAT / sizeof *FLAT; i++) {
        char *s = repeated(FLAT[i].head, FLAT[i].part, 20000, FLAT[i].tail);
        TemplateError err;
        TemplateText text;
        Status st = render_source(&text, s, "{}", &err);
        if (st != ST_OK) print_error("%s\n", err.error.text);
        assert_int_equal(st, ST_OK);
        assert_true(text.n >= strlen(FLAT[i].ends) &&
                    strcmp(text.text + text.n - strlen(FLAT[i].ends), FLAT[i].ends) == 0);
        template_text_free(&text);
        free(s);
    }
}

/* Text gathered piece by piece takes linear time, not quadratic. */
static void gathering(void **state)
{
    (void) state;
    TemplateError err;
    TemplateText text;
    const char *source = "{% set n = namespace(s='', t='') %}{% for i in range(50000) %}{% set n.s = n.s + 'abcdefgh' "
                         "%}{% set n.t = n.t ~ i ~ '\n' %}{% endfor %}"
                         "{{ n.s|length }} {{ n.t|length }} {{ n.s == 'abcdefgh' * 50000 }}";
    assert_int_equal(render_source(&text, source, "{}", &err), ST_OK);
    assert_string_equal(text.text, "400000 288890 True");
    template_text_free(&text);
}

/* ---- marks ---- */

/* The rendered text with its marked parts between [ and ]. */
static void check_marks(const char *source, const char *messages, const char *want)
{
    TemplateError err;
    TemplateText text;
    Template *t;
    char got[1024], *w = got;
    json_t *m = json_loads(messages, JSON_DECODE_ANY, NULL);
    assert_non_null(m);
    assert_int_equal(template_open(&t, source, strlen(source), "marks", &err), ST_OK);
    TemplateVariable v = { "m", m, ORIGIN_MESSAGES };
    Status st = template_render(&text, t, &(TemplateInput) { .variable = &v, .n_variables = 1 }, &err);
    if (st != ST_OK) print_error("%s: %s\n", source, err.error.text);
    assert_int_equal(st, ST_OK);
    size_t k = 0;
    for (size_t i = 0; i <= text.n; i++) {
        if (k < text.n_client && text.client[k].at + text.client[k].n == i) {
            *w++ = ']';
            k++;
        }
        if (k < text.n_client && text.client[k].at == i) *w++ = '[';
        if (i < text.n) *w++ = text.text[i];
    }
    *w = 0;
    assert_int_equal(k, text.n_client);
    assert_string_equal(got, want);
    template_text_free(&text);
    template_close(t);
    json_decref(m);
}

static void marks(void **state)
{
    (void) state;
    static const char M[] = "[{\"role\": \"user\", \"name\": \"bob\", \"content\": \"Hi you\", \"tool_calls\": "
                            "[{\"type\": \"function\", \"function\": {\"name\": \"f\", "
                            "\"arguments\": {\"name\": \"x\", \"n\": 1}}}]}]";
    check_marks("<{{ m[0].role }}>{{ m[0].content }}<end>", M, "<user>[Hi you]<end>");
    check_marks("{{ '<' + m[0].role + '>' + m[0].content + '!' + m[0].content }}", M, "<user>[Hi you]![Hi you]");
    check_marks("{{ m[0].content|upper }}{{ m[0].content[3:] }}{{ m[0].content|trim('H') }}", M, "[HI YOUyoui you]");
    check_marks("{{ m[0].content.split(' ')|join('-') }}{{ m[0].content.replace('you', 'me') }}", M, "[Hi]-[youHi ]me");
    check_marks("{% set p = m[0].content.partition(' ') %}{{ p[2] }}{{ p[1] }}{{ p[0] }}", M, "[you Hi]");
    check_marks("{% set p = m[0].content.rpartition('yo') %}{{ p[1] }}", M, "[yo]");
    check_marks("{% set l = m[:1] %}{{ l.copy() == l }}", M, "True");
    check_marks("{{ ['a', m[0].content]|join(',') }}{% set x %}<{{ m[0].content }}>{% endset %}{{ x }}", M,
                "a,[Hi you]<[Hi you]>");
    check_marks("{% macro f(x) %}({{ x|capitalize }}){% endmacro %}{{ f(m[0].content) ~ '.' }}", M, "([Hi you]).");
    check_marks("{{ m[0].name }}{{ m[0].tool_calls[0].function.name }}{{ m[0].tool_calls[0].type }}", M,
                "bobffunction");
    check_marks("{{ m[0].tool_calls[0].function.arguments|tojson }}", M, "[{\"name\": \"x\", \"n\": 1}]");
    check_marks("{{ {'a': m[0].content}|tojson }}{{ m[0].content|tojson }}", M, "{\"a\": [\"Hi you\"]}[\"Hi you\"]");
    check_marks("{{ m[0].tool_calls[0].function.arguments }}{{ [m[0].content] }}", M,
                "[{'name': 'x', 'n': 1}][['Hi you']]");
    check_marks("{% for c in m[0].content %}{{ c }}.{% endfor %}{{ '%s|' % m[0].content }}", M,
                "[H].[i].[ ].[y].[o].[u].[Hi you]|");
    check_marks("{{ m[0].content|indent(1, true) }}{{ m[0].content|reverse }}{{ m[0].content|e }}", M,
                " [Hi youuoy iHHi you]");
    static const char TAGS[] = "[{\"role\": \"user\", \"content\": \"<a>&'b'\"}]";
    check_marks("{{ m[0].content|e }}{{ '<'|safe + m[0].content }}<", TAGS,
        "[&lt;a&gt;&amp;&#39;b&#39;]<[&lt;a&gt;&amp;&#39;b&#39;]<");
    check_marks("{{ ('' ~ m[0].content)|string }}{{ m[0].content|replace('H', '<') }}", M, "[Hi you]<[i you]");
}

/* A user's control tokens stay text, the template's become tokens; a text that begins with BOS gets no second one. */
static void tokens(void **state)
{
    (void) state;
    VocabImage v = image_begin("qwen2");
    int32_t start = image_text(&v, "<|s|>", TOKEN_CONTROL), think = image_text(&v, "<think>", TOKEN_USER),
            bos = image_text(&v, "<b>", TOKEN_CONTROL);
    image_u32(&v, "tokenizer.ggml.bos_token_id", (uint32_t) bos);
    image_key(&v, "tokenizer.ggml.add_bos_token", GV_BOOL);
    bytes_put(&v.keys, "\1", 1);
    Tokenizer *t = open_ok(&v);
    TemplateError err;
    TemplateText text;
    Template *tp;
    const char *source = "{{ bos }}<|s|>{{ m[0].content }}<|s|><think>{{ m[0].content[:3] }}{{ '|s|>' }}";
    json_t *m = json_pack("[{s:s s:s}]", "role", "user", "content", "<|s|><think>"), *b = json_string("<b>");
    for (int with = 0; with < 2; with++) {
        assert_int_equal(template_open(&tp, source, strlen(source), "tokens", &err), ST_OK);
        TemplateVariable var[] = { { "m", m, ORIGIN_MESSAGES }, { "bos", with ? b : NULL, ORIGIN_PROGRAM } };
        assert_int_equal(template_render(&text, tp, &(TemplateInput) { .variable = var, .n_variables = 2 },
                                         &err), ST_OK);
        TokenizeOptions o = { .add_special = true, .one_bos = true, .parse_special = true, .client = text.client,
                              .n_client = text.n_client };
        int32_t ids[64];
        size_t n = encode(t, ids, 64, text.text, text.n, o), counts[3] = { 0 };
        for (size_t i = 0; i < n; i++) {
            counts[0] += ids[i] == start;
            counts[1] += ids[i] == think;
            counts[2] += ids[i] == bos;
        }
        assert_int_equal(ids[0], bos);
        assert_int_equal(counts[0], 2);
        assert_int_equal(counts[1], 1);
        assert_int_equal(counts[2], 1);
        template_text_free(&text);
        template_close(tp);
    }
    json_decref(m);
    json_decref(b);
    tokenizer_close(t);
}

/* ---- memory, threads ---- */

static void memory_runs_out(void **state)
{
    (void) state;
    const char *source = "{% macro f(x) %}{{ x|tojson(indent=2) }}{% endmacro %}{% for i in range(2000) %}{{ f({'a': "
                         "[i, s]}) }}{% endfor %}{{ '[1]'|from_json }}";
    json_t *s = json_string("some");
    TemplateVariable v = { "s", s, ORIGIN_CLIENT };
    for (long n = 1; n < 1000; n++) {
        long live = alloc_state.live;
        Template *t;
        TemplateText text = { 0 };
        TemplateError err;
        alloc_state.fail_in = n;
        Status st = template_open(&t, source, strlen(source), "memory", &err);
        if (st == ST_OK) st = template_render(&text, t, &(TemplateInput) { .variable = &v, .n_variables = 1 }, &err);
        bool reached = alloc_state.fail_in == 0;
        alloc_state.fail_in = 0;
        if (reached && st != ST_OK) assert_true(st == ST_MEMORY || st == ST_FORMAT);
        if (st != ST_OK) assert_null(text.text);
        template_text_free(&text);
        template_close(t);
        if (!ALLOC_SANITIZED) assert_int_equal(alloc_state.live, live);
        if (!reached) {
            assert_int_equal(st, ST_OK);
            assert_true(n > 10);
            json_decref(s);
            return;
        }
    }
    assert_true(false);
}

typedef struct { const Template *t; json_t *c; char *text; } RenderJob;
static void *render_often(void *arg)
{
    RenderJob *j = arg;
    for (int i = 0; i < 50; i++) {
        TemplateText text;
        TemplateError err;
        if (render_case(&text, j->t, j->c, NULL, NULL, &err) != ST_OK) return NULL;
        free(j->text);
        j->text = strdup(text.text);
        template_text_free(&text);
    }
    return NULL;
}

static void threads(void **state)
{
    (void) state;
    json_t *cases = read_json("tests/data/templates/conversations.json");
    Template *t = open_file("reasoning");
    RenderJob job[4];
    pthread_t id[4];
    for (int i = 0; i < 4; i++) {
        job[i] = (RenderJob) { t, json_deep_copy(json_array_get(cases, 4)), NULL };
        assert_int_equal(pthread_create(&id[i], NULL, render_often, &job[i]), 0);
    }
    for (int i = 0; i < 4; i++) pthread_join(id[i], NULL);
    for (int i = 0; i < 4; i++) {
        assert_non_null(job[i].text);
        assert_string_equal(job[i].text, job[0].text);
    }
    for (int i = 0; i < 4; i++) {
        json_decref(job[i].c);
        free(job[i].text);
    }
    template_close(t);
    json_decref(cases);
}

int main(int argc, char **argv)
{
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden), cmocka_unit_test(units), cmocka_unit_test(failures), cmocka_unit_test(lax),
        cmocka_unit_test(limits), cmocka_unit_test(parts_and_copies),
        cmocka_unit_test(long_and_flat), cmocka_unit_test(gathering), cmocka_unit_test(marks),
        cmocka_unit_test(tokens),
        cmocka_unit_test(memory_runs_out), cmocka_unit_test(threads),
    };
    return cmocka_run_group_tests_name("template", tests, NULL, NULL);
}
