/* Forced calls: whatever tokens a model chooses under the grammar, the decoder reads one whole call that is valid by the tool's schema.
 * The model here is chance: any byte string or marker that the grammar allows. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>

#include "alloc_fault.h"
#include "base/json.h"
#include "json_check.h"
#include "text/grammar_automaton.h"
#include "text/grammar_mask.h"
#include "text/json_flow.h"
#include "text/reply_tools.h"

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t seed;
static uint32_t draw(uint32_t n)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t) (seed >> 33) % n;
}

static const char TOOLS[] =
    "[{\"name\": \"weather\", \"parameters\": {\"type\": \"object\", \"properties\": {\"city\": {\"type\": \"string\"}, \"days\": {\"type\": \"integer\", "
    "\"minimum\": 1, \"maximum\": 7}, \"unit\": {\"enum\": [\"C\", \"F\"]}, \"exact\": {\"type\": \"boolean\"}, \"how\": "
    "{\"type\": \"string\", \"const\": \"</par now\"}}, \"required\": [\"city\", \"unit\", \"how\"]}},"
    " {\"type\": \"function\", \"function\": {\"name\": \"write\", \"parameters\": {\"type\": \"object\", \"properties\": {\"path\": {\"$ref\": \"#/$defs/p\"}, "
    "\"tags\": {\"type\": \"array\", \"items\": {\"enum\": [\"a\", \"b\"]}, \"maxItems\": 2}, \"at\": {\"type\": \"number\", \"minimum\": 0, \"maximum\": 9}}, "
    "\"required\": [\"at\", \"path\"], \"$defs\": {\"p\": {\"type\": \"string\"}}}}},"
    " {\"name\": \"now\", \"input_schema\": {\"type\": \"object\", \"properties\": {}}}]";
static const CallFormat FORMATS[] = { CALLS_QWEN3, CALLS_QWEN35, CALLS_LAGUNA, CALLS_GEMMA4, CALLS_LLAMA3, CALLS_JSON };
enum { N_FORMATS = sizeof FORMATS / sizeof *FORMATS };

/* A vocabulary of single bytes, some words, and the marker inside; the last id ends. */
static const char *const WORDS[] = { "<|\"|>", "</parameter>", "</arg_value>", "\n</", "parameter>", "Oslo", "true", "\": ", "\", \"", "<", "<param", "city", "12", "}", "</tool_call>" };
enum { N_WORDS = sizeof WORDS / sizeof *WORDS, N_VOCAB = 256 + N_WORDS + 1, END = N_VOCAB - 1 };
static char byte_text[256];

static const char *bytes_of(void *ud, int32_t id, size_t *n)
{
    (void) ud;
    *n = id < 256 ? 1 : id == END ? 0 : strlen(WORDS[id - 256]);
    return id < 256 ? &byte_text[id] : id == END ? "" : WORDS[id - 256];
}

static bool ends(void *ud, int32_t id)
{
    (void) ud;
    return id == END;
}

/* What the grammar makes of a model that chooses by chance, once it has written about as much as it wants to. */
static void write_text(Bytes *out, GrammarMasks *masks, uint32_t want, const int32_t *closers)
{
    GrammarText *x;
    Error err = { 0 };
    uint32_t bits[(N_VOCAB + 31) / 32];
    assert_int_equal(grammar_text_open(&x, masks, 4000, &err), ST_OK);
    for (uint32_t step = 0; step < 3900 && !grammar_text_done(x); step++) {
        int32_t id = -1, n_allowed = 0;
        assert_true(grammar_text_mask(x, NULL, 0, bits));
        for (int32_t i = 0; i < N_VOCAB; i++) {
            if (!(bits[i / 32] >> (i % 32) & 1)) continue;
            n_allowed++;
            if (id < 0 || draw((uint32_t) n_allowed) == 0) id = i;
        }
        assert_true(id >= 0);
        for (const int32_t *c = closers; step > want && *c >= 0; c++)
            if (bits[*c / 32] >> (*c % 32) & 1) {
                id = *c;
                break;
            }
        if (id == END) break;
        size_t n;
        const char *s = bytes_of(NULL, id, &n);
        bytes_put(out, s, n);
        assert_true(grammar_text_append(x, id));
    }
    if (!grammar_text_done(x)) fail_msg("not done: %.*s", (int) out->n, out->at);      /* no text of these grammars has an end that could go on */
    grammar_text_close(x);
}

static bool is_type(const json_t *v, const char *type)
{
    return strcmp(type, "string") == 0 ? json_is_string(v) : strcmp(type, "integer") == 0 ? json_is_integer(v)
         : strcmp(type, "number") == 0 ? json_is_number(v) : strcmp(type, "boolean") == 0 ? json_is_boolean(v) : json_is_array(v);
}

static void check_arguments(const char *name, const char *s, size_t n, CallFormat format)
{
    json_error_t e;
    json_t *args = json_loadb(s, n, JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES, &e), *v;
    const char *k;
    if (!args || !json_valid(s, n)) fail_msg("%.*s: %s", (int) n, s, e.text);
    static const char *const NEED[][4] = { { "weather", "city", "unit", "how" }, { "write", "at", "path", "path" } };
    static const char *const TYPES[][2] = { { "city", "string" }, { "days", "integer" }, { "unit", "string" }, { "how", "string" }, { "exact", "boolean" }, { "path", "string" },
                                            { "tags", "array" }, { "at", "number" } };
    for (size_t i = 0; i < 2; i++)
        for (size_t j = 1; j < 4 && strcmp(name, NEED[i][0]) == 0; j++)
            if (!json_object_get(args, NEED[i][j])) fail_msg("%s: %s is missing in %.*s", name, NEED[i][j], (int) n, s);
    json_object_foreach(args, k, v) {
        bool known = false;
        for (size_t i = 0; i < sizeof TYPES / sizeof *TYPES; i++)
            if (strcmp(TYPES[i][0], k) == 0) {
                known = true;
                if (!is_type(v, TYPES[i][1])) fail_msg("%s is no %s in %.*s", k, TYPES[i][1], (int) n, s);
            }
        if (!known && format != CALLS_GEMMA4 && format != CALLS_QWEN35) fail_msg("%s in %.*s", k, (int) n, s);
    }
    v = json_object_get(args, "days");
    if (v) assert_in_range(json_integer_value(v), 1, 7);
    v = json_object_get(args, "unit");
    if (v) assert_true(strcmp(json_string_value(v), "C") == 0 || strcmp(json_string_value(v), "F") == 0);
    v = json_object_get(args, "how");
    if (v) assert_string_equal(json_string_value(v), "</par now");
    json_decref(args);
}

/* The decoder reads the whole; name: the only one allowed, or NULL. */
static void check_reply(const ForcedCall *f, CallFormat format, const json_t *tools, const Bytes *text, const char *name)
{
    Reply *r;
    ReplyEvent e;
    ReplySummary sum;
    Error err = { 0 };
    Bytes args = { 0 };
    char told[64] = "";
    ReplyOptions o = { .style = { format, THINK_NONE }, .tools = tools, .errors = CALL_ERRORS_TEXT, .think_max = -1 };
    assert_int_equal(reply_open(&r, &o, &err), ST_OK);
    assert_true(reply_token(r, 1, f->open, strlen(f->open)));
    size_t at = 0;
    while (at < text->n) {
        size_t n = 1 + draw(7);
        if (n > text->n - at) n = text->n - at;
        assert_true(reply_token(r, 1, text->at + at, n));
        at += n;
    }
    if (*f->close) assert_true(reply_token(r, 1, f->close, strlen(f->close)));
    assert_true(reply_end(r, REPLY_ENDED));
    while (reply_next(r, &e)) {
        if (e.kind == REPLY_CALL_BEGIN) snprintf(told, sizeof told, "%.*s", (int) e.n, e.bytes);
        else if (e.kind == REPLY_CALL_ARGS) bytes_put(&args, e.bytes, e.n);
        else if (e.kind != REPLY_CALL_END) fail_msg("format %s: text '%.*s' of %s%.*s%s", call_format_name(format), (int) e.n, e.bytes, f->open, (int) text->n, text->at ? text->at : "", f->close);
    }
    reply_summary(r, &sum);
    if (sum.calls != 1 || sum.failures || sum.unknown) fail_msg("%s: %d calls, %d failures: %s%.*s%s", call_format_name(format), sum.calls, sum.failures, f->open, (int) text->n, text->at, f->close);
    if (name) assert_string_equal(told, name);
    check_arguments(told, args.at, args.n, format);
    bytes_free(&args);
    reply_close(r);
}

static void chance(void **state)
{
    (void) state;
    json_t *tools = json_loads(TOOLS, 0, NULL);
    TokenTrie *trie;
    Error err = { 0 };
    for (int i = 0; i < 256; i++) byte_text[i] = (char) i;
    TokenSource from = { NULL, bytes_of, ends };
    assert_int_equal(token_trie_open(&trie, N_VOCAB, &from, &err), ST_OK);
    static const char *const CHOICES[][3] = { { NULL }, { "weather" }, { "write" }, { "now" }, { "now", "write" } };
    for (size_t f = 0; f < N_FORMATS; f++)
        for (size_t c = 0; c < sizeof CHOICES / sizeof *CHOICES; c++) {
            ForcedCall call;
            GrammarMasks *masks;
            size_t n = 0;
            while (n < 3 && CHOICES[c][n]) n++;
            if (forced_call(&call, FORMATS[f], tools, CHOICES[c], n, &err) != ST_OK) fail_msg("%s: %s", call_format_name(FORMATS[f]), err.text);
            assert_int_equal(grammar_masks_open(&masks, call.grammar, trie, 4 << 20, &err), ST_OK);
            for (int k = 0; k < 40; k++) {
                Bytes text = { 0 };
                seed = (uint64_t) (k + 1) * 77 + c;
                const int32_t closers[] = { FORMATS[f] == CALLS_QWEN35 ? 257 : FORMATS[f] == CALLS_LAGUNA ? 258 : FORMATS[f] == CALLS_GEMMA4 ? 256 : '"', '}', ']', -1 };
                write_text(&text, masks, 20 + draw(60), closers);
                check_reply(&call, FORMATS[f], tools, &text, n == 1 ? CHOICES[c][0] : NULL);
                bytes_free(&text);
            }
            grammar_masks_close(masks);
            forced_call_free(&call);
        }
    token_trie_close(trie);
    json_decref(tools);
}

static void refused(void **state)
{
    (void) state;
    static const struct { const char *tools, *name, *error; } rows[] = {
        { "[]", NULL, "tools is not a list of at least one" }, { "[{\"name\": \"a\"}]", "b", "no tool has the name 'b'" }, { "[{\"name\": 5}]", NULL, "tools[0].name is missing or not a string" },
        { "[{\"name\": \"a\", \"parameters\": {\"properties\": {\"x\": {\"type\": \"integer\", \"not\": {}}}}}]", NULL, "tool a: #/properties/x/not: the keyword 'not' cannot be honoured" },
        { "[{\"name\": \"a\", \"parameters\": {\"properties\": {\"x\": {\"$ref\": \"#/$defs/none\"}}}}]", NULL, NULL },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (size_t f = 0; f < N_FORMATS; f++) {
            json_t *tools = json_loads(rows[i].tools, 0, NULL);
            ForcedCall call;
            Error err = { 0 };
            Status st = forced_call(&call, FORMATS[f], tools, &rows[i].name, rows[i].name ? 1 : 0, &err);
            if (rows[i].error) {
                if (FORMATS[f] == CALLS_GEMMA4 && i == 3 && st == ST_OK) fail_msg("accepted");
                assert_int_not_equal(st, ST_OK);
                assert_string_equal(err.text, rows[i].error);
            } else if (st != ST_OK) assert_non_null(strstr(err.text, "tool a: #"));
            if (st != ST_OK) assert_null(call.open);
            forced_call_free(&call);
            json_decref(tools);
        }
}

/* Parts of a grammar text that are schemas, with their places in errors. */
static void composed(void **state)
{
    (void) state;
    json_t *root = json_loads("{\"properties\": {\"a\": {\"$ref\": \"#/$defs/n\"}, \"b\": {\"not\": {}}, \"c\": {\"anyOf\": [{\"$ref\": \"#/properties/c\"}, {\"type\": \"null\"}]}},"
                              "\"$defs\": {\"n\": {\"enum\": [1, \"x\"]}}}", 0, NULL);
    const json_t *props = json_object_get(root, "properties");
    GrammarSchema s[] = { { "first", json_object_get(props, "a"), root, "tool t", "/properties/a" }, { "second", json_true(), root, "tool t", "" } };
    Grammar *g;
    Automaton *a;
    Error err = { 0 };
    static const char TEXT[] = "root ::= \"<\" first \"|\" first \"|\" second \">\"";
    if (grammar_compose(&g, TEXT, sizeof TEXT - 1, "text", s, 2, &err) != ST_OK) fail_msg("%s", err.text);
    assert_int_equal(automaton_open(&a, g, 4 << 20, &err), ST_OK);
    static const struct { const char *text; bool whole; } rows[] = { { "<1|\"x\"|{\"k\": [true]}>", true }, { "<\"x\"|1|0>", true }, { "<2|1|0>", false }, { "<1|1|>", false }, { "< 1|1|1>", false } };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        uint32_t at = automaton_start(a);
        StateHolder h = { .id = &at, .n = 1 };
        automaton_hold(a, &h);
        for (const char *p = rows[i].text; *p && at != STATE_DEAD; p++) automaton_step(a, &at, &at, (uint8_t) *p);
        automaton_let_go(a, &h);
        if ((at != STATE_DEAD && automaton_accepts(a, at)) != rows[i].whole) fail_msg("%s", rows[i].text);
    }
    automaton_close(a);
    grammar_free(g);
    s[0].schema = json_object_get(props, "b");
    s[0].path = "/properties/b";
    assert_int_equal(grammar_compose(&g, TEXT, sizeof TEXT - 1, "text", s, 2, &err), ST_UNSUPPORTED);
    assert_string_equal(err.text, "tool t: #/properties/b/not: the keyword 'not' cannot be honoured");
    s[0].schema = json_object_get(props, "c");
    s[0].path = "/properties/c";
    assert_int_not_equal(grammar_compose(&g, TEXT, sizeof TEXT - 1, "text", s, 2, &err), ST_OK);
    if (strncmp(err.text, "tool t: #/properties/c", 22) != 0) fail_msg("%s", err.text);
    assert_int_equal(grammar_compose(&g, TEXT, sizeof TEXT - 1, "text", s + 1, 1, &err), ST_FORMAT);
    assert_string_equal(err.text, "text:1:14: this rule is defined nowhere");
    json_decref(root);
}

static void no_memory(void **state)
{
    (void) state;
    json_t *tools = json_loads(TOOLS, 0, NULL);
    for (size_t f = 0; f < N_FORMATS; f++) {
        bool whole = false;
        for (long k = 1; !whole && k < 20000; k += 1 + k / 20) {
            ForcedCall call;
            Error err = { 0 };
            long live = alloc_state.live;
            alloc_state.fail_in = k;
            Status st = forced_call(&call, FORMATS[f], tools, NULL, 0, &err);
            whole = alloc_state.fail_in > 0;
            alloc_state.fail_in = 0;
            if (st != ST_OK) assert_int_equal(st, ST_MEMORY);
            else if (!whole) fail_msg("%s: allocation %ld was not missed", call_format_name(FORMATS[f]), k);
            forced_call_free(&call);
            if (!ALLOC_SANITIZED) assert_int_equal(alloc_state.live, live);
        }
        assert_true(whole);
    }
    json_decref(tools);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(chance), cmocka_unit_test(refused), cmocka_unit_test(composed), cmocka_unit_test(no_memory) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
