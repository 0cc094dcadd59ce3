/* Forced calls: whatever tokens a model chooses under the grammar, the decoder reads one whole call that is valid by
 * the tool's schema. The model here is random: any byte string or marker that the grammar allows. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>

#include "alloc_fault.h"
#include "base/json.h"
#include "json_check.h"
#include "text/grammar/grammar_automaton.h"
#include "text/grammar/grammar_mask.h"
#include "text/json_flow.h"
#include "text/reply/reply_tools.h"

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
    "[{\"name\": \"weather\", \"parameters\": {\"type\": \"object\", \"properties\": {\"city\": {\"type\": "
    "\"string\"}, \"days\": {\"type\": \"integer\", "
    "\"minimum\": 1, \"maximum\": 7}, \"unit\": {\"enum\": [\"C\", "
    "\"F\"]}, \"exact\": {\"type\": \"boolean\"}, \"how\": "
    "{\"type\": \"string\", \"const\": \"</par now\"}}, \"required\": [\"city\", \"unit\", \"how\"]}},"
    " {\"type\": \"function\", \"function\": {\"name\": \"write\", \"parameters\": "
    "{\"type\": \"object\", \"properties\": {\"path\": {\"$ref\": \"#/$defs/p\"}, "
    "\"tags\": {\"type\": \"array\", \"items\": {\"enum\": [\"a\", \"b\"]}, \"maxItems\": 2}, \"at\": {\"type\": "
    "\"number\", \"minimum\": 0, \"maximum\": 9}}, "
    "\"required\": [\"at\", \"path\"], \"$defs\": {\"p\": {\"type\": \"string\"}}}}},"
    " {\"name\": \"now\", \"input_schema\": {\"type\": \"object\", \"properties\": {}}}]";
static const CallFormat FORMATS[] = { CALLS_QWEN3, CALLS_QWEN35, CALLS_LAGUNA, CALLS_GEMMA4, CALLS_LLAMA3, CALLS_JSON };
enum { N_FORMATS = sizeof FORMATS / sizeof *FORMATS };

/* A vocabulary of single bytes, some words, and the marker; the last id is the end token. */
static const char *const WORDS[] = { "<|\"|>", "</parameter>", "</arg_value>", "\n</", "parameter>", "Oslo", "true",
                                     "\": ", "\", \"", "<", "<param", "city", "12", "}", "</tool_call>" };
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

/* A text of a model that chooses at random under the grammar, and ends as soon as it may after about the wanted
 * length. */
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
    /* no text of these grammars has an end that could go on */
    if (!grammar_text_done(x)) fail_msg("not done: %.*s", (int) out->n, out->at);
    grammar_text_close(x);
}

static bool is_type(const json_t *v, const char *type)
{
    return strcmp(type, "string") == 0 ? json_is_string(v)
                                       : strcmp(type, "integer") == 0 ? json_is_integer(v) : strcmp(type, "number") == 0
           ? json_is_number(v) : strcmp(type, "boolean") == 0 ? json_is_boolean(v) : json_is_array(v);
}

static void check_arguments(const char *name, const char *s, size_t n, CallFormat format)
{
    json_error_t e;
    json_t *args = json_loadb(s, n, JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES, &e), *v;
    const char *k;
    if (!args || !json_valid(s, n)) fail_msg("%.*s: %s", (int) n, s, e.text);
    static const char *const NEED[][4] = { { "weather", "city", "unit", "how" }, { "write", "at", "path", "path" } };
    static const char *const TYPES[][2] = { { "city", "string" }, { "days", "integer" }, { "unit", "string" },
                                            { "how", "string" }, { "exact", "boolean" }, { "path", "string" },
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

/* The decoder reads all of it; name: the only tool allowed, or NULL. */
static void check_reply(const ForcedCall *f, CallFormat format, const json_t *tools, const Bytes *text,
                        const char *name)
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
        else if (e.kind != REPLY_CALL_END)
            fail_msg("format %s: text '%.*s' of %s%.*s%s", call_format_name(format), (int) e.n, e.bytes, f->open,
                     (int) text->n, text->at ? text->at : "", f->close);
    }
    reply_summary(r, &sum);
    if (sum.calls != 1 || sum.failures || sum.unknown)
        fail_msg("%s: %d calls, %d failures: %s%.*s%s", call_format_name(format), sum.calls, sum.failures, f->open,
                 (int) text->n, text->at, f->close);
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
    TokenSource from = { .bytes = bytes_of, .ends = ends };
    assert_int_equal(token_trie_open(&trie, N_VOCAB, &from, &err), ST_OK);
    static const char *const CHOICES[][3] = { { NULL }, { "weather" }, { "write" }, { "now" }, { "now", "write" } };
    for (size_t f = 0; f < N_FORMATS; f++)
        for (size_t c = 0; c < sizeof CHOICES / sizeof *CHOICES; c++) {
            ForcedCall call;
            GrammarMasks *masks;
            size_t n = 0;
            while (n < 3 && CHOICES[c][n]) n++;
            if (forced_call(&call, FORMATS[f], tools, CHOICES[c], n, &err) != ST_OK)
                fail_msg("%s: %s", call_format_name(FORMATS[f]), err.text);
            assert_int_equal(grammar_masks_open(&masks, call.grammar, trie, 4 << 20, &err), ST_OK);
            for (int k = 0; k < 40; k++) {
                Bytes text = { 0 };
                seed = (uint64_t) (k + 1) * 77 + c;
                const int32_t closers[] = { FORMATS[f] == CALLS_QWEN35 ? 257 : FORMATS[f] == CALLS_LAGUNA
                                            ? 258 : FORMATS[f] == CALLS_GEMMA4 ? 256 : '"', '}', ']', -1 };
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

/* ---- calls that are held where the model makes them ---- */

/* The same vocabulary, with the family's marks as control tokens at its end. */
typedef struct { ReplyStyle style; bool tokens; MarkToken mark[MARK_TOKENS_MAX]; size_t n_marks; } Held;
static const char *const MARK_TEXTS[] = { "<tool_call>", "</tool_call>", "<|tool_call>", "<tool_call|>", "<think>",
                                          "</think>", "<|channel>", "<channel|>", "<|python_tag|>", "<|\"|>",
                                          "<arg_key>" };
enum { N_MARK_TEXTS = sizeof MARK_TEXTS / sizeof *MARK_TEXTS, N_HELD = N_VOCAB + N_MARK_TEXTS + 1,
       SILENT = N_HELD - 1 };

static int32_t held_token(void *ud, const char *text)
{
    for (int32_t i = 0; ((Held *) ud)->tokens && i < (int32_t) N_MARK_TEXTS; i++)
        if (strcmp(MARK_TEXTS[i], text) == 0) return N_VOCAB + i;
    return -1;
}

static const char *held_bytes(void *ud, int32_t id, size_t *n)
{
    if (id < N_VOCAB) return bytes_of(ud, id, n);
    *n = 0;
    return "";
}

static const char *held_mark(void *ud, int32_t id, size_t *n)
{
    const Held *h = ud;
    for (size_t i = 0; i < h->n_marks; i++)
        if (h->mark[i].id == id) {
            *n = h->mark[i].n;
            return h->mark[i].bytes;
        }
    return NULL;
}

static void held_open(Held *h, ReplyStyle style, bool tokens, bool behind, const json_t *tools, const bool *strict,
                      Grammar **g, TokenTrie **trie, GrammarMasks **masks)
{
    Error err = { 0 };
    for (int i = 0; i < 256; i++) byte_text[i] = (char) i;
    *h = (Held) { .style = style, .tokens = tokens };
    h->n_marks = reply_mark_tokens(h->mark, style, held_token, h);
    TokenSource from = { h, held_bytes, ends, held_mark };
    assert_int_equal(token_trie_open(trie, N_HELD, &from, &err), ST_OK);
    if (held_calls(g, style, tools, strict, behind, &err) != ST_OK)
        fail_msg("%s: %s", call_format_name(style.calls), err.text);
    assert_int_equal(grammar_masks_open(masks, *g, *trie, 4 << 20, &err), ST_OK);
    grammar_masks_endless(*masks);
}

static bool is_set(const uint32_t *bits, int32_t id) { return bits[id / 32] >> (id % 32) & 1; }

/* Random tools, named as in TOOL_NAMES; only kinds of parameters that check_by_schema knows. */
static const char *const TOOL_NAMES[] = { "weather", "write", "weat" };
static json_t *random_tools(bool strict[3])
{
    static const char *const KINDS[] = {
        "{\"type\": \"string\"}", "{\"enum\": [\"on\", \"off\", \"a\\\"b\"]}",
        "{\"type\": \"integer\", \"minimum\": -3, \"maximum\": 12}", "{\"type\": \"boolean\"}",
        "{\"type\": \"number\"}", "{\"type\": \"array\", \"items\": {\"enum\": [\"x\", \"y\"]}, \"maxItems\": 3}",
        "{\"type\": [\"integer\", \"null\"]}", "{\"type\": \"object\", \"properties\": {\"k\": {\"type\": "
        "\"boolean\"}}, \"required\": [\"k\"], \"additionalProperties\": false}" };
    json_t *tools = json_array();
    size_t n = 1 + draw(3);
    for (size_t i = 0; i < n; i++) {
        json_t *props = json_object(), *required = json_array();
        for (uint32_t k = draw(5); k > 0; k--) {
            char name[2] = { (char) ('p' + k), 0 };
            json_object_set_new(props, name, json_loads(KINDS[draw(sizeof KINDS / sizeof *KINDS)], 0, NULL));
            if (draw(2)) json_array_append_new(required, json_string(name));
        }
        json_array_append_new(tools, json_pack("{s:s s:{s:s s:o s:o s:b}}", "name", TOOL_NAMES[i], "parameters", "type",
                                               "object", "properties", props, "required", required,
                                               "additionalProperties", 0));
        strict[i] = draw(3) > 0;
    }
    return tools;
}

static bool by_kind(const json_t *kind, const json_t *v, bool inside)
{
    const json_t *values = json_object_get(kind, "enum"), *type = json_object_get(kind, "type"), *one;
    size_t i;
    json_array_foreach(values, i, one)
        if (json_equal(one, v)) return true;
    if (values) return false;
    if (json_is_array(type)) return json_is_integer(v) || json_is_null(v);
    const char *t = json_string_value(type);
    if (strcmp(t, "object") == 0)
        return json_is_object(v) && (!inside || (json_object_size(v) == 1 && json_is_boolean(json_object_get(v, "k"))));
    if (strcmp(t, "array") != 0)
        return is_type(v, t) &&
               (!json_object_get(kind, "maximum") || (json_integer_value(v) >= -3 && json_integer_value(v) <= 12));
    bool good = json_is_array(v) && (!inside || json_array_size(v) <= 3);
    json_array_foreach(v, i, one) good &= !inside || by_kind(json_object_get(kind, "items"), one, inside);
    return good;
}

static void check_by_schema(const json_t *schema, const char *s, size_t n, CallFormat format)
{
    json_error_t e;
    json_t *args = json_loadb(s, n, JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES , &e), *v;
    const json_t *props = json_object_get(schema, "properties"), *name;
    const char *k;
    size_t i;
    if (!args || !json_valid(s, n)) fail_msg("%.*s: %s", (int) n, s, e.text);
    json_array_foreach(json_object_get(schema, "required"), i, name)
        if (!json_object_get(args, json_string_value(name))) fail_msg("%s is missing in %.*s", json_string_value(name),
                                                                      (int) n, s);
    json_object_foreach(args, k, v) {
        const json_t *kind = json_object_get(props, k);
        if (!kind || !by_kind(kind, v, format != CALLS_GEMMA4))
            fail_msg("%s of %.*s is not by %s", k, (int) n, s, json_dumps(schema, 0));
    }
    json_decref(args);
}

typedef struct {
    const json_t *tools;
    const bool *strict;
    CallFormat format;
    Bytes args, text;
    char name[64];
    int32_t strict_calls, free, masked;
} Told;

static void held_events(Reply *r, Told *t)
{
    ReplyEvent e;
    while (reply_next(r, &e)) {
        if (e.kind == REPLY_TEXT || e.kind == REPLY_REASON) bytes_put(&t->text, e.bytes, e.n);
        if (e.kind == REPLY_CALL_BEGIN) {
            snprintf(t->name, sizeof t->name, "%.*s", (int) e.n, e.bytes);
            t->args.n = 0;
        }
        if (e.kind == REPLY_CALL_ARGS) bytes_put(&t->args, e.bytes, e.n);
        for (size_t i = 0; e.kind == REPLY_CALL_END && i < json_array_size(t->tools); i++) {
            const json_t *tool = json_array_get(t->tools, i);
            if (!t->strict[i] || strcmp(json_string_value(json_object_get(tool, "name")), t->name) != 0) continue;
            t->strict_calls++;
            check_by_schema(json_object_get(tool, "parameters"), t->args.at, t->args.n, t->format);
        }
    }
}

/* Typical output of a model: marks and near misses, lines, blocks of code, beginnings of objects, bytes that are not
 * text. */
static const char *const LIKES[] = {
    "\n", " ", "a", "`", "```", "\n```\n", "<", "<tool_call>", "<tool_cal", "</tool_call>", "<|tool_call>",
    "<tool_call|>", "<think>", "</think>", "</thin</think>", "<|channel>", "thought\n", "<channel|>", "{", ";", "\xc3",
    "\xff", "\xf8", "\xe2\x82\xac", "{\"name\": \"weather\", \"parameters\":",
    "{\"name\":\"write\" ,\n\"arguments\" : ", "{\"type\": \"function\", \"name\": \"weat\", \"parameters\":",
    "{\"name\": \"weather\", \"days\":", "{\"name\": \"wea", "<|python_tag|>", "<<tool_call>", "\n<tool_call>",
    "\n<|tool_call>" };

/* Random tokens of a free text, sometimes a mark or a token without bytes. */
static int32_t like(const char **rest)
{
    if (!**rest && draw(4) == 0)
        return draw(3) == 0 ? SILENT : draw(6) == 0 ? END : N_VOCAB + (int32_t) draw(N_MARK_TEXTS);
    if (!**rest) *rest = LIKES[draw(sizeof LIKES / sizeof *LIKES)];
    return (uint8_t) *(*rest)++;
}

static int32_t allowed_by_chance(const uint32_t *bits, bool hurry, CallFormat format)
{
    const int32_t closers[] = { format == CALLS_QWEN35 ? 257 : format == CALLS_LAGUNA ? 258 : format == CALLS_GEMMA4
                                ? 256 : '"', '}', ']', '<', '/', -1 };
    int32_t id = -1, n = 0;
    for (int32_t i = 0; i < N_HELD; i++)
        if (is_set(bits, i) && draw((uint32_t) ++n) == 0) id = i;
    for (const int32_t *c = closers; hurry && *c >= 0; c++)
        if (is_set(bits, *c)) return *c;
    return id;
}

/* In free text every token is allowed, also right after a call. While the grammar follows a call the decoder is in one,
 * and (for calls that nothing else can open) only then. Every followed call is whole, and valid if the tool is
 * strict. */
static void held_text(Held *h, GrammarMasks *masks, Told *t, bool behind, uint32_t steps)
{
    /* A forced call, and the text after it that the decoder takes for the next one. */
    static const struct { CallFormat format; const char *call, *next; } FORCED[] = {
        { CALLS_QWEN3, "<tool_call>\n{\"name\": \"weather\", \"arguments\": {}}\n</tool_call>",
          "</tool_call><tool_call>" },
        { CALLS_QWEN35, "<tool_call>\n<function=weather>\n</function>\n</tool_call>", "</tool_call><tool_call>" },
        { CALLS_LAGUNA, "<tool_call>weather\n</tool_call>", "</tool_call><tool_call>" },
        { CALLS_GEMMA4, "<|tool_call>call:weather{}<tool_call|>", "<tool_call|><|tool_call>" },
        { CALLS_LLAMA3, "{\"name\": \"weather\", \"parameters\": {}}", ";{\"name\": \"weather\", \"parameters\":" },
        { CALLS_JSON, "{\"name\": \"weather\", \"arguments\": {}}", "; {\"name\": \"weather\", \"arguments\":" }
    };
    GrammarText *x;
    Reply *r;
    ReplySummary sum;
    Error err = { 0 };
    uint32_t bits[(N_HELD + 31) / 32], in_call = 0;
    const char *rest = draw(2) ? "" : "{\"name\": \"weather\", \"parameters\":";
    bool wrapped = t->format != CALLS_LLAMA3 && t->format != CALLS_JSON;
    ReplyOptions o = { .style = h->style, .tools = t->tools, .errors = wrapped ? CALL_ERRORS_TEXT : CALL_ERRORS_RECOVER,
                       .bare_off = wrapped, .think_max = -1, .token = held_token, .ud = h };
    Bytes all = { 0 };
    assert_int_equal(reply_open(&r, &o, &err), ST_OK);
    assert_int_equal(grammar_text_open(&x, masks, 8000, &err), ST_OK);
    for (size_t i = 0; behind && i < sizeof FORCED / sizeof *FORCED; i++) {
        if (FORCED[i].format != t->format) continue;
        for (const char *s = FORCED[i].call; *s; s++) assert_true(reply_token(r, (uint8_t) *s, s, 1));
        for (ReplyEvent e; reply_next(r, &e); ) {}
        if (draw(2)) rest = FORCED[i].next;
    }
    for (uint32_t step = 0; step < 7900; step++) {
        bool free = grammar_text_may_end(x), some = grammar_text_mask(x, NULL, 0, bits);
        if (free && step > steps) break;
        in_call = free ? 0 : in_call + 1;
        t->free += free;
        t->masked += free && some;
        if (!free) rest = "";
        if (!free) assert_true(some);
        int32_t id = free ? like(&rest) : allowed_by_chance(bits, in_call > 40, t->format);
        if (id < 0 || (some && !is_set(bits, id)))
            fail_msg("%s: token %d is not allowed after %.*s", call_format_name(t->format), id, (int) all.n,
                     all.at ? all.at : "");
        if (free)
            for (int32_t i = 0; some && i < N_HELD; i++)
                if (i < 256 || i >= END) assert_true(is_set(bits, i));
        size_t n;
        const char *s = held_bytes(NULL, id, &n);
        bytes_put(&all, s, n);
        if (id >= N_VOCAB && id < SILENT) bytes_text(&all, MARK_TEXTS[id - N_VOCAB]);
        assert_true(grammar_text_append(x, id));
        if (id != END) assert_true(reply_token(r, id, s, n));
        if (reply_stop(r) != REPLY_GO) fail_msg("a stop after %.*s", (int) all.n, all.at);
        held_events(r, t);
        bool reads = reply_mode(r) == REPLY_IN_CALL, follows = !grammar_text_may_end(x);
        if (follows ? !reads : wrapped && reads)
            fail_msg("%s: the decoder is %s a call after %.*s", call_format_name(t->format), reads ? "in" : "not in",
                     (int) all.n, all.at);
    }
    if (!grammar_text_may_end(x)) fail_msg("not done: %.*s", (int) all.n, all.at);
    assert_true(reply_end(r, REPLY_ENDED));
    held_events(r, t);
    reply_summary(r, &sum);
    if (wrapped && (sum.failures || sum.unknown))
        fail_msg("%s: %d failures: %.*s", call_format_name(t->format), sum.failures, (int) all.n, all.at);
    grammar_text_close(x);
    reply_close(r);
    bytes_free(&all);
}

static void held_by_chance(void **state)
{
    (void) state;
    static const ThinkFormat THINK[] = { THINK_TAGS, THINK_NONE, THINK_CHANNEL };
    for (size_t f = 0; f < N_FORMATS; f++) {
        int32_t strict_calls = 0, free_steps = 0, masked = 0;
        for (uint32_t round = 0; round < 10; round++) {
            seed = 1000 * f + round;
            bool strict[3];
            json_t *tools = random_tools(strict);
            Held h;
            Grammar *g;
            TokenTrie *trie;
            GrammarMasks *masks;
            held_open(&h, (ReplyStyle) { FORMATS[f], THINK[round % 3] }, round % 4 != 3, round % 2, tools, strict, &g,
                      &trie, &masks);
            for (int k = 0; k < 8; k++) {
                Told t = { .tools = tools, .strict = strict, .format = FORMATS[f] };
                held_text(&h, masks, &t, round % 2, 300);
                strict_calls += t.strict_calls;
                free_steps += t.free;
                masked += t.masked;
                bytes_free(&t.args);
                bytes_free(&t.text);
            }
            grammar_masks_close(masks);
            token_trie_close(trie);
            grammar_free(g);
            json_decref(tools);
        }
        if (4 * masked > free_steps)
            fail_msg("%s: %d of %d steps of free text were masked", call_format_name(FORMATS[f]), masked, free_steps);
        if (strict_calls < 20)
            fail_msg("%s: only %d calls of strict tools", call_format_name(FORMATS[f]), strict_calls);
    }
}

static void refused(void **state)
{
    (void) state;
    static const struct { const char *tools, *name, *error; } rows[] = {
        { "[]", NULL, "tools is not a list of at least one" },
        { "[{\"name\": \"a\"}]", "b", "no tool has the name 'b'" },
        { "[{\"name\": 5}]", NULL, "tools[0].name is missing or not a string" },
        { "[{\"name\": \"a\", \"parameters\": {\"properties\": {\"x\": {\"type\": \"integer\", \"not\": {}}}}}]", NULL,
          "tool a: #/properties/x/not: the keyword 'not' cannot be honoured" },
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

/* Parts of a grammar text that come from schemas, with their places in errors. */
static void composed(void **state)
{
    (void) state;
    json_t *root = json_loads("{\"properties\": {\"a\": {\"$ref\": \"#/$defs/n\"}, \"b\": {\"not\": {}}, \"c\": "
                              "{\"anyOf\": [{\"$ref\": \"#/properties/c\"}, {\"type\": \"null\"}]}},"
                              "\"$defs\": {\"n\": {\"enum\": [1, \"x\"]}}}", 0, NULL);
    const json_t *props = json_object_get(root, "properties");
    GrammarSchema s[] = { { "first", json_object_get(props, "a"), root, "tool t", "/properties/a", 0, 0 },
                          { "second", json_true(), root, "tool t", "", 0, 0 } };
    Grammar *g;
    Automaton *a;
    Error err = { 0 };
    static const char TEXT[] = "root ::= \"<\" first \"|\" first \"|\" second \">\"";
    if (grammar_compose(&g, TEXT, sizeof TEXT - 1, "text", s, 2, &err) != ST_OK) fail_msg("%s", err.text);
    assert_int_equal(automaton_open(&a, g, 4 << 20, &err), ST_OK);
    static const struct {
        const char *text;
        bool whole;
    } rows[] = { { "<1|\"x\"|{\"k\": [true]}>", true }, { "<\"x\"|1|0>", true }, { "<2|1|0>", false },
                 { "<1|1|>", false }, { "< 1|1|1>", false } };
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
        whole = false;
        for (long k = 1; !whole && k < 100000; k += 1 + k / 4) {
            Grammar *g;
            Error err = { 0 };
            long live = alloc_state.live;
            alloc_state.fail_in = k;
            Status st = held_calls(&g, (ReplyStyle) { FORMATS[f], THINK_TAGS }, tools, (bool[]) { true, false, true },
                                   false, &err);
            whole = alloc_state.fail_in > 0;
            alloc_state.fail_in = 0;
            if (st != ST_OK) assert_int_equal(st, ST_MEMORY);
            else if (!whole) fail_msg("%s: allocation %ld was not missed", call_format_name(FORMATS[f]), k);
            grammar_free(g);
            if (!ALLOC_SANITIZED) assert_int_equal(alloc_state.live, live);
        }
        assert_true(whole);
    }
    json_decref(tools);
}

/* Many tools with long names, and names too long to be watched. */
static void held_many(void **state)
{
    (void) state;
    static const struct { size_t n, name; Status st; } rows[] = { { 128, 64, ST_OK }, { 512, 250, ST_UNSUPPORTED } };
    for (size_t i = 0; i < 2; i++) {
        json_t *tools = json_array();
        bool strict[512];
        char name[256];
        for (size_t k = 0; k < rows[i].n; k++) {
            snprintf(name, sizeof name, "%zu%0*d", k, (int) rows[i].name - 4, 0);
            json_array_append_new(tools, json_pack("{s:s s:{s:s}}", "name", name, "parameters", "type", "object"));
            strict[k] = k % 2;
        }
        Grammar *g;
        Error err = { 0 };
        Status st = held_calls(&g, (ReplyStyle) { CALLS_LLAMA3, THINK_TAGS }, tools, strict, false, &err);
        if (st != rows[i].st) fail_msg("%zu tools: %s", rows[i].n, err.text);
        if (st != ST_OK)
            assert_string_equal(err.text, "strict: the names of 512 tools are too long to be watched for: 127378 bytes "
                                "in all, expected some 9,000 at most");
        grammar_free(g);
        json_decref(tools);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(chance), cmocka_unit_test(held_by_chance),
                                        cmocka_unit_test(refused), cmocka_unit_test(composed),
                                        cmocka_unit_test(no_memory), cmocka_unit_test(held_many) };
    if (getenv("ONE")) cmocka_set_test_filter(getenv("ONE"));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
