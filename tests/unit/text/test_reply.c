/* The output decoder: scripts of whole answers (tests/data/reply/NAME.txt) cut into tokens in every way, the table of
 * coercion, repaired JSON, stops and counts, failing memory; forced calls are in test_reply_tools.c. A script is
 *
 *     case NAME                    options before the first case hold for all of the file
 *     format F, think tags|channel|none, tools NAMES, tokens MARKS, prompt "...", stop "...", set OPTION, max N
 *     | a line of the answer       (: the same without its line break)
 *     cut                          it ended at a limit; otherwise the model ended it
 *     reason "...", text "...", call NAME ARGUMENTS      the events, fragments joined
 *     sum NAME=NUMBER ...          of the summary, stop and kept besides */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>

#include "alloc_fault.h"
#include "base/json.h"
#include "json_check.h"
#include "text/json_flow.h"
#include "text/reply/reply.h"
#include "text/reply/reply_value.h"
#include "text/tokenizer/utf8.h"

#include <cmocka.h>

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t seed;
static uint32_t draw(uint32_t n)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t) (seed >> 33) % n;
}

/* ---- scripts ---- */

enum { MARKS_MAX = 16, STOPS_MAX = 8 };
typedef struct {
    char file[64], name[128];
    int  line;
    CallFormat format;
    ThinkFormat think;
    char tools[256], prompt[256];
    char mark[MARKS_MAX][32]; int32_t n_marks;
    char stop[STOPS_MAX][32]; size_t n_stop;
    bool one_call, bare_off, promote, calls_off, inline_, stop_in_reasoning, tokens_only;
    CallErrors errors;
    int32_t max;
    ReplyCause cause;
    Bytes in, want;
    char sum[256];
} Script;

static json_t *all_tools;

static json_t *read_json(const char *path)
{
    json_error_t e;
    json_t *j = json_load_file(path, 0, &e);
    if (!j) fail_msg("%s:%d: %s", path, e.line, e.text);
    return j;
}

static json_t *some_tools(const char *names)
{
    json_t *list = json_array(), *tool;
    char copy[256], *rest = copy, *name;
    size_t i;
    snprintf(copy, sizeof copy, "%s", names);
    while ((name = strsep(&rest, " ")))
        json_array_foreach(all_tools, i, tool) {
            const json_t *f = json_object_get(tool, "function") ? json_object_get(tool, "function") : tool;
            if (strcmp(json_string_value(json_object_get(f, "name")), name) == 0) json_array_append(list, tool);
        }
    return list;
}

static int32_t token_of(void *ud, const char *text)
{
    const Script *s = ud;
    for (int32_t i = 0; i < s->n_marks; i++)
        if (strcmp(s->mark[i], text) == 0) return 1000 + i;
    return -1;
}

static void quoted(char *out, size_t cap, const char *json, const Script *s)
{
    json_t *v = json_loads(json, JSON_DECODE_ANY, NULL);
    if (!json_is_string(v)) fail_msg("%s:%d: not a JSON string: %s", s->file, s->line, json);
    snprintf(out, cap, "%s", json_string_value(v));
    json_decref(v);
}

static void set_option(Script *s, const char *name)
{
    struct { const char *name; bool *flag; } flags[] = {
        { "one_call", &s->one_call }, { "bare_off", &s->bare_off }, { "promote", &s->promote },
        { "calls_off", &s->calls_off },
        { "inline", &s->inline_ }, { "stop_in_reasoning", &s->stop_in_reasoning }, { "tokens_only", &s->tokens_only },
    };
    if (strcmp(name, "text") == 0) s->errors = CALL_ERRORS_TEXT;
    else if (strcmp(name, "drop") == 0) s->errors = CALL_ERRORS_DROP;
    else {
        for (size_t i = 0; i < sizeof flags / sizeof *flags; i++)
            if (strcmp(flags[i].name, name) == 0) {
                *flags[i].flag = true;
                return;
            }
        fail_msg("%s:%d: unknown option %s", s->file, s->line, name);
    }
}

static void read_marks(Script *s, char *list)
{
    char *name;
    s->n_marks = 0;
    while ((name = strsep(&list, " ")) && s->n_marks < MARKS_MAX)
        if (*name) snprintf(s->mark[s->n_marks++], 32, "%s", name);
}

/* Returns whether the line belongs to the script. */
static void script_line(Script *s, char *line)
{
    char *arg = strchr(line, ' ');
    arg = arg ? arg + 1 : line + strlen(line);
    if (line[0] == '|' || line[0] == ':') {
        bytes_text(&s->in, line[1] == ' ' ? line + 2 : line + 1);
        if (line[0] == '|') bytes_char(&s->in, '\n');
    } else if (strncmp(line, "format ", 7) == 0) {
        if (!call_format_named(&s->format, arg)) fail_msg("%s:%d: unknown format %s", s->file, s->line, arg);
    } else if (strncmp(line, "think ", 6) == 0)
        s->think = strcmp(arg, "tags") == 0 ? THINK_TAGS : strcmp(arg, "channel") == 0 ? THINK_CHANNEL : THINK_NONE;
    else if (strncmp(line, "tools", 5) == 0) snprintf(s->tools, sizeof s->tools, "%s", arg);
    else if (strncmp(line, "tokens", 6) == 0) read_marks(s, arg);
    else if (strncmp(line, "prompt ", 7) == 0) quoted(s->prompt, sizeof s->prompt, arg, s);
    else if (strncmp(line, "stop ", 5) == 0) quoted(s->stop[s->n_stop++], 32, arg, s);
    else if (strncmp(line, "set ", 4) == 0) set_option(s, arg);
    else if (strncmp(line, "max ", 4) == 0) s->max = atoi(arg);
    else if (strcmp(line, "cut") == 0) s->cause = REPLY_CUT;
    else if (strncmp(line, "sum ", 4) == 0) snprintf(s->sum, sizeof s->sum, " %s ", arg);
    else if (strncmp(line, "reason ", 7) == 0 || strncmp(line, "text ", 5) == 0 || strncmp(line, "call ", 5) == 0) {
        bytes_text(&s->want, line);
        bytes_char(&s->want, '\n');
    } else fail_msg("%s:%d: cannot read '%s'", s->file, s->line, line);
}

/* ---- playing ---- */

typedef struct {
    Bytes events;
    ReplySummary sum;
    ReplyStop stop;
    int32_t kept, tokens;
    Bytes open;
    int kind;
    int32_t call, broken, last_from, last_tokens;
} Played;

static void put_quoted(Bytes *out, const Bytes *text)
{
    bytes_char(out, '"');
    bytes_escaped(out, text->at, text->n);
    bytes_text(out, "\"\n");
}

static void close_event(Played *p)
{
    if (p->kind == REPLY_REASON || p->kind == REPLY_TEXT) {
        bytes_text(&p->events, p->kind == REPLY_REASON ? "reason " : "text ");
        put_quoted(&p->events, &p->open);
    }
    p->open.n = 0;
    p->kind = -1;
}

static void take_events(Played *p, Reply *r)
{
    ReplyEvent e;
    while (reply_next(r, &e)) {
        assert_true(e.from >= 0 && e.from <= e.tokens && e.tokens <= p->tokens);
        assert_true(e.tokens >= p->last_tokens && e.from >= p->last_from);
        p->last_tokens = e.tokens;
        p->last_from = e.from;
        assert_int_equal(utf8_valid(e.bytes, e.n), e.n);
        switch (e.kind) {
        case REPLY_REASON:
        case REPLY_TEXT:
            assert_true(e.n > 0 && e.call == -1 && p->call < 0);
            if (p->kind != (int) e.kind) close_event(p);
            p->kind = (int) e.kind;
            bytes_put(&p->open, e.bytes, e.n);
            break;
        case REPLY_CALL_BEGIN:
            close_event(p);
            assert_true(p->call < 0);
            p->call = e.call;
            bytes_text(&p->events, "call ");
            bytes_put(&p->events, e.bytes, e.n);
            bytes_char(&p->events, ' ');
            break;
        case REPLY_CALL_ARGS:
            assert_true(e.n > 0 && e.call == p->call);
            bytes_put(&p->open, e.bytes, e.n);
            break;
        case REPLY_CALL_END:
            assert_int_equal(e.call, p->call);
            p->broken += !json_valid(p->open.at, p->open.n);
            if (p->open.n == 0 || p->open.at[0] != '{')
                fail_msg("not of a JSON object: %.*s", (int) p->open.n, p->open.n ? p->open.at : "");
            bytes_put(&p->events, p->open.at, p->open.n);
            bytes_char(&p->events, '\n');
            p->open.n = 0;
            p->call = -1;
            break;
        }
    }
}

typedef enum { CUT_NOT, CUT_BYTES, CUT_AT, CUT_DRAW } CutHow;

static bool feed(Played *p, Reply *r, const char *s, size_t n, int32_t id)
{
    p->tokens++;
    assert_true(reply_token(r, id, s, n));
    if (draw(4) > 0) take_events(p, r);
    if (reply_stop(r) == REPLY_GO) return true;
    take_events(p, r);
    return false;
}

/* Marks are tokens if the script names them and `spelled` does not forbid it; control: such tokens have no bytes. */
static void play(Played *p, Script *s, const json_t *tools, CutHow how, size_t at, bool spelled, bool control)
{
    Reply *r;
    Error err = { 0 };
    const char *stops[STOPS_MAX];
    for (size_t i = 0; i < s->n_stop; i++) stops[i] = s->stop[i];
    ReplyOptions o = { .style = { s->format, s->think }, .tools = tools, .calls_off = s->calls_off,
                       .one_call = s->one_call, .bare_off = s->bare_off, .promote = s->promote, .errors = s->errors,
                       .prompt = s->prompt, .n_prompt = strlen(s->prompt), .think_inline = s->inline_,
                       .think_max = s->max, .stop = stops, .n_stop = s->n_stop,
                       .stop_in_reasoning = s->stop_in_reasoning, .token = spelled ? NULL : token_of, .ud = s };
    *p = (Played) { .kind = -1, .call = -1 };
    if (reply_open(&r, &o, &err) != ST_OK) fail_msg("%s: %s", s->name, err.text);
    size_t from = 0, i = 0;
    bool going = true;
    while (going && i < s->in.n) {
        int32_t mark = -1;
        for (int32_t k = 0; k < s->n_marks && !spelled; k++)
            if (s->in.n - i >= strlen(s->mark[k]) && memcmp(s->in.at + i, s->mark[k], strlen(s->mark[k])) == 0)
                mark = k;
        bool cut = mark >= 0 || how == CUT_BYTES || (how == CUT_AT && i == at) || (how == CUT_DRAW && draw(3) == 0);
        if (cut && i > from) {
            going = feed(p, r, s->in.at + from, i - from, 5);
            from = i;
        }
        if (going && mark >= 0) {
            going = feed(p, r, s->mark[mark], control ? 0 : strlen(s->mark[mark]), 1000 + mark);
            from = i += strlen(s->mark[mark]);
        } else i++;
    }
    if (going && i > from) going = feed(p, r, s->in.at + from, i - from, 5);
    assert_true(reply_end(r, s->cause));
    take_events(p, r);
    close_event(p);
    assert_int_equal(p->call, -1);
    reply_summary(r, &p->sum);
    assert_int_equal(p->broken, p->sum.call_cut);
    p->stop = reply_stop(r);
    p->kept = reply_kept(r);
    assert_int_equal(p->sum.tokens, p->kept);
    assert_int_equal(p->sum.reason_tokens + p->sum.text_tokens + p->sum.call_tokens, p->kept);
    assert_true(p->kept <= p->tokens && (p->stop != REPLY_GO || p->kept == p->tokens));
    reply_close(r);
}

static void played_free(Played *p)
{
    bytes_free(&p->events);
    bytes_free(&p->open);
}

static size_t n_failed;

static bool check_sum(const Script *s, const Played *p)
{
    const struct { const char *name; int32_t value; } values[] = {
        { "calls", p->sum.calls }, { "failures", p->sum.failures }, { "unknown", p->sum.unknown },
        { "repeated", p->sum.repeated },
        { "unclosed", p->sum.reason_unclosed }, { "cut", p->sum.call_cut }, { "stop", p->sum.stop },
        { "why", (int32_t) p->stop },
    };
    char *at = (char *) s->sum, name[32];
    int value, n;
    while (sscanf(at, " %31[a-z]=%d%n", name, &value, &n) == 2) {
        bool known = false;
        for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
            if (strcmp(values[i].name, name) != 0) continue;
            known = true;
            if (values[i].value == value) continue;
            print_error("%s: %s: %s is %d, expected %d\n", s->file, s->name, name, values[i].value, value);
            return false;
        }
        if (!known) fail_msg("%s: %s: unknown %s", s->file, s->name, name);
        at += n;
    }
    if (strspn(at, " ") != strlen(at)) fail_msg("%s: %s: cannot read '%s'", s->file, s->name, at);
    return true;
}

static bool check_played(const Script *s, const Played *p, const char *how)
{
    if (p->events.n == s->want.n && memcmp(p->events.at, s->want.at, s->want.n) == 0) return check_sum(s, p);
    print_error("%s: %s (%s)\n--- expected\n%.*s--- events\n%.*s", s->file, s->name, how, (int) s->want.n,
                s->want.at ? s->want.at : "", (int) p->events.n, p->events.at ? p->events.at : "");
    return false;
}

static size_t n_cases, n_plays;

static bool play_once(Script *s, const json_t *tools, CutHow how, size_t at, bool spelled, bool control)
{
    Played p;
    n_plays++;
    play(&p, s, tools, how, at, spelled, control);
    bool good = check_played(s, &p,
                             spelled ? "marks spelled" : control ? "marks as control tokens" : "marks as tokens");
    played_free(&p);
    return good;
}

/* Every cut in two, single bytes, and random cuts, with marks as tokens and spelled out. */
static void play_all(Script *s)
{
    json_t *tools = some_tools(s->tools);
    bool good = true;
    n_cases++;
    for (int spelled = s->n_marks == 0; good && spelled < (s->tokens_only ? 1 : 2); spelled++) {
        for (int k = 0; good && k < 48; k++) {
            seed = (uint64_t) k;
            good = play_once(s, tools, k < 2 ? CUT_NOT : k < 4 ? CUT_BYTES : CUT_DRAW, 0, spelled, k % 2 && !spelled);
        }
        for (size_t at = 1; good && at < s->in.n; at++) good = play_once(s, tools, CUT_AT, at, spelled, false);
    }
    n_failed += !good;
    json_decref(tools);
}

static void script_free(Script *s)
{
    bytes_free(&s->in);
    bytes_free(&s->want);
}

static void play_file(const char *path, const char *file)
{
    FILE *f = fopen(path, "r");
    char *line = NULL;
    size_t cap = 0;
    Script common = { .max = -1 }, s = { 0 };
    bool in_case = false;
    int number = 0;
    if (!f) fail_msg("%s: cannot be opened", path);
    snprintf(common.file, sizeof common.file, "%s", file);
    for (ssize_t n; (n = getline(&line, &cap, f)) >= 0;) {
        number++;
        while (n > 0 && line[n - 1] == '\n') line[--n] = 0;
        if (line[0] == '#' || line[0] == 0) continue;
        if (strncmp(line, "case ", 5) == 0) {
            if (in_case) play_all(&s);
            script_free(&s);
            s = common;
            snprintf(s.name, sizeof s.name, "%.100s (line %d)", line + 5, number);
            in_case = true;
            continue;
        }
        Script *to = in_case ? &s : &common;
        to->line = number;
        script_line(to, line);
    }
    if (in_case) play_all(&s);
    script_free(&s);
    free(line);
    fclose(f);
}

static void scripts(void **state)
{
    (void) state;
    DIR *d = opendir("tests/data/reply");
    assert_non_null(d);
    all_tools = read_json("tests/data/reply/tools.json");
    n_cases = n_plays = 0;
    for (struct dirent *e; (e = readdir(d));) {
        size_t n = strlen(e->d_name);
        char path[512];
        if (n < 5 || strcmp(e->d_name + n - 4, ".txt") != 0) continue;
        snprintf(path, sizeof path, "tests/data/reply/%s", e->d_name);
        play_file(path, e->d_name);
    }
    closedir(d);
    json_decref(all_tools);
    print_message("%zu cases, played %zu times\n", n_cases, n_plays);
    assert_true(n_cases > 50);
    assert_int_equal(n_failed, 0);
}

/* ---- coercion ---- */

static void coercion(void **state)
{
    (void) state;
    FILE *f = fopen("tests/data/reply/coercion.tsv", "r");
    char *line = NULL;
    size_t cap = 0;
    int rows = 0;
    assert_non_null(f);
    json_t *defs = json_loads("{\"count\": {\"type\": \"integer\"}, \"chain\": {\"$ref\": \"#/$defs/count\"}, "
                              "\"circle\": {\"$ref\": \"#/$defs/circle\"},"
                              "\"a/b~c\": {\"type\": \"boolean\"}, \"50% off\": {\"type\": \"integer\"},"
                              "\"%25\": {\"type\": \"boolean\"}, \"list\": [{}, {\"type\": \"integer\"}]}", 0, NULL);
    while (getline(&line, &cap, f) >= 0) {
        char *rest = line, *schema_text = strsep(&rest, "\t"), *text = strsep(&rest, "\t"), *want = strsep(&rest, "\n");
        if (line[0] == '#' || line[0] == '\n') continue;
        json_t *schema = json_loads(schema_text, 0, NULL), *in = json_loads(text, JSON_DECODE_ANY, NULL),
               *root = json_pack("{s:O}", "$defs", defs);
        if (!schema || !in || !want) fail_msg("cannot read: %s", line);
        Bytes out = { 0 };
        value_write(&out, value_types(root, schema), json_string_value(in), json_string_length(in));
        bytes_char(&out, 0);
        if (strcmp(out.at, want) != 0) fail_msg("%s %s: %s, expected %s", schema_text, text, out.at, want);
        assert_true(json_valid(out.at, out.n - 1));
        bytes_free(&out);
        json_decref(schema);
        json_decref(in);
        json_decref(root);
        rows++;
    }
    assert_true(rows > 60);
    json_decref(defs);
    free(line);
    fclose(f);
}

/* ---- JSON put right ---- */

static void put_right(void **state)
{
    (void) state;
    static const struct { unsigned allow; const char *in, *out; } rows[] = {    /* out NULL: refused */
        { 0, "{\"a\" : [1, -2.5e+3 , \"x\"], \"b\":{}}", "{\"a\" : [1, -2.5e+3 , \"x\"], \"b\":{}}" },
        { 0, " true ", "true" }, { 0, "12", "12" }, { 0, "01", NULL },
        { 0, "'a'", NULL }, { 0, "[1,]", NULL }, { 0, "{a: 1}", NULL }, { 0, "{\"a\" 1}", NULL }, { 0, "[1 2]", NULL },
        { 0, "", NULL }, { 0, "{} x", NULL },
        { 0, "\"\\u00e9\\ud83d\\ude00\"", "\"\\u00e9\\ud83d\\ude00\"" },
        { 0, "\"\\ude00\\ud83dx\"", "\"\\ufffd\\ufffdx\"" }, { 0, "\"a\nb\\q\\'\"", "\"a\\nb\\\\q'\"" },
        { 0, "\"\\u12x\"", "\"\\\\u12x\"" }, { 0, "]", NULL }, { 0, "nul", NULL }, { 0, "[}", NULL },
        { 0, "{\"a\":1]", NULL }, { 0, ":", NULL }, { 0, "True", NULL },
        { FLOW_LOOSE, "{a: 'x\"y', `b`: None, 1: [True, False,],}",
          "{\"a\": \"x\\\"y\", \"b\": null, \"1\": [true, false]}" }, { FLOW_LOOSE, "[word]", NULL },
        { FLOW_LOOSE, "'\\x41\\u0042'", "\"\\u0041\\u0042\"" },
        { FLOW_LOOSE | FLOW_BARE, "{a:New York ,b:[x y,2]}", "{\"a\":\"New York\",\"b\":[\"x y\",2]}" },
        { FLOW_LOOSE | FLOW_BARE, "{a b : {\xc3\xa9/$c: 1}, 'd e' : 2}",
          "{\"a b\": {\"\xc3\xa9/$c\": 1}, \"d e\" : 2}" },
        { FLOW_CALL | FLOW_LOOSE, "q='a', n=(", NULL },
        { FLOW_CALL | FLOW_LOOSE, "q='a', n={'k': [1]})", "{\"q\":\"a\", \"n\":{\"k\": [1]}}" },
        { FLOW_CALL | FLOW_LOOSE, ")", "{}" },
        { FLOW_CALL | FLOW_LOOSE, "1)", NULL },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Bytes out = { 0 };
        char first;
        bool good = flow_text(&out, rows[i].in, strlen(rows[i].in), rows[i].allow, &first);
        bytes_char(&out, 0);
        if (good != (rows[i].out != NULL) || (good && strcmp(out.at, rows[i].out) != 0))
            fail_msg("%s: %s", rows[i].in, good ? out.at : "refused");
        if (!good) assert_int_equal(out.n, 1);
        bytes_free(&out);
    }
}

/* Cut at any place, the output so far is a beginning that can be closed, and it never takes anything back. */
static void closed_anywhere(void **state)
{
    (void) state;
    static const char *const texts[] = { "{\"a\": [1, {\"b\": \"x\\n\\u00e9\\ud83d\\ude00\"}, true , null], \"c\": "
                                         "-1.5e-3}", "{'k': ('x"  , "[[[[{\"a\":{\"b\":[1,2,{", "\"\\ud83d\\u" };
    for (size_t t = 0; t < sizeof texts / sizeof *texts; t++)
        for (size_t n = 0; n <= strlen(texts[t]); n++) {
            JsonFlow f = { 0 };
            Bytes out = { 0 };
            flow_start(&f, FLOW_LOOSE, &out);
            FlowStep step = FLOW_MORE;
            for (size_t i = 0; i < n && step == FLOW_MORE; i++) step = flow_put(&f, (uint8_t) texts[t][i]);
            size_t before = out.n;
            Bytes told = { 0 };
            bytes_put(&told, out.at, out.n);
            flow_close(&f);
            if (!json_valid(out.at, out.n)) fail_msg("%.*s: %.*s", (int) n, texts[t], (int) out.n, out.at);
            if (before) assert_memory_equal(out.at, told.at, before);
            bytes_free(&out);
            bytes_free(&told);
            flow_free(&f);
        }
}

/* ---- what stops, counts and is forced ---- */

static Reply *opened(const ReplyOptions *o)
{
    Reply *r;
    Error err = { 0 };
    if (reply_open(&r, o, &err) != ST_OK) fail_msg("%s", err.text);
    return r;
}

static int32_t id_of(void *ud, const char *text)
{
    (void) ud;
    return strcmp(text, "<think>") == 0 ? 1 : strcmp(text, "</think>") == 0 ? 2 : strcmp(text, "<tool_call>") == 0
           ? 3 : strcmp(text, "</tool_call>") == 0 ? 4 : -1;
}

static void say(Reply *r, const char *text) { assert_true(reply_token(r, 9, text, strlen(text))); }

static void expect(Reply *r, ReplyKind kind, const char *bytes, int32_t from, int32_t tokens)
{
    ReplyEvent e;
    if (!reply_next(r, &e)) fail_msg("no event, expected '%s'", bytes);
    if (e.kind != kind || e.n != strlen(bytes) || memcmp(e.bytes, bytes, e.n) != 0 || e.from != from ||
        e.tokens != tokens)
        fail_msg("event %d '%.*s' [%d, %d), expected %d '%s' [%d, %d)", (int) e.kind, (int) e.n, e.bytes, e.from,
                 e.tokens, (int) kind, bytes, from, tokens);
}

static void none_waits(Reply *r)
{
    ReplyEvent e;
    if (reply_next(r, &e)) fail_msg("event '%.*s'", (int) e.n, e.bytes);
}

/* Only text that may become a mark or a stop string is held back, and only until that is decided. */
static void what_waits(void **state)
{
    (void) state;
    json_t *tools = json_loads("[{\"name\": \"f\"}]", 0, NULL);
    const char *stop = "END";
    ReplyOptions o = { .style = { CALLS_QWEN3, THINK_TAGS }, .think_max = -1, .stop = &stop, .n_stop = 1,
                       .token = id_of };
    Reply *r = opened(&o);
    say(r, "Hello");
    expect(r, REPLY_TEXT, "Hello", 0, 1);
    say(r, " E");
    expect(r, REPLY_TEXT, " ", 1, 1);
    say(r, "N");
    none_waits(r);
    say(r, "<");
    expect(r, REPLY_TEXT, "EN<", 1, 4);            /* not at the start of a line */
    say(r, "\n<thi");
    expect(r, REPLY_TEXT, "\n", 4, 4);
    say(r, "s <tool_call>");                       /* without tools, call marks are text */
    expect(r, REPLY_TEXT, "<this <tool_call>", 4, 6);
    say(r, "\xc3");
    none_waits(r);
    say(r, "\xa9\xe2\x82");
    expect(r, REPLY_TEXT, "\xc3\xa9", 6, 7);
    assert_true(reply_end(r, REPLY_ENDED));
    expect(r, REPLY_TEXT, "\xef\xbf\xbd", 7, 8);
    none_waits(r);
    reply_close(r);
    o.tools = tools;
    r = opened(&o);
    say(r, "Hello \n");                            /* space before a call would not be shown */
    expect(r, REPLY_TEXT, "Hello", 0, 0);
    say(r, "x");
    expect(r, REPLY_TEXT, " \nx", 0, 2);
    reply_close(r);
    json_decref(tools);
}

/* The tokens before a stop count, even if they came in other blocks; tokens that overlap it do not. */
static void what_counts(void **state)
{
    (void) state;
    json_t *tools = json_loads("[{\"name\": \"f\"}]", 0, NULL);
    const char *stops[] = { "", "xyz" };
    ReplySummary s;
    ReplyOptions o = { .style = { CALLS_QWEN3, THINK_TAGS }, .think_max = -1, .stop = stops, .n_stop = 2,
                       .token = id_of, .prompt = "<think>\n ", .n_prompt = 9, .tools = tools };
    Reply *r = opened(&o);
    assert_int_equal(reply_mode(r), REPLY_IN_REASON);
    say(r, "one");
    say(r, " two");
    assert_true(reply_token(r, 2, NULL, 0));
    assert_int_equal(reply_mode(r), REPLY_IN_TEXT);
    say(r, "\n\n");
    say(r, "a");
    assert_true(reply_token(r, 77, "", 0));        /* a control token without meaning */
    say(r, "bx");
    say(r, "y");
    reply_summary(r, &s);
    assert_true(s.tokens == 8 && s.reason_tokens == 3 && s.text_tokens == 5);
    say(r, "zc");
    assert_int_equal(reply_stop(r), REPLY_STOP_STRING);
    assert_int_equal(reply_kept(r), 6);
    say(r, "ignored");
    assert_true(reply_end(r, REPLY_CUT));
    reply_summary(r, &s);
    assert_true(s.tokens == 6 && s.reason_tokens == 3 && s.text_tokens == 3 && s.call_tokens == 0 && s.stop == 1);
    expect(r, REPLY_REASON, "one two", 0, 2);      /* not fetched in between: joined */
    expect(r, REPLY_TEXT, "ab", 4, 6);
    none_waits(r);
    reply_close(r);

    o.one_call = true;
    o.prompt = NULL;
    r = opened(&o);
    say(r, "See.");
    assert_true(reply_token(r, 3, "<tool_call>", 11));
    assert_int_equal(reply_mode(r), REPLY_IN_CALL);
    say(r, "{\"name\": \"f\", \"arg");
    say(r, "uments\": {}}");
    assert_int_equal(reply_stop(r), REPLY_GO);
    assert_true(reply_token(r, 4, "</tool_call>", 12));
    assert_int_equal(reply_stop(r), REPLY_STOP_CALL);
    assert_int_equal(reply_kept(r), 5);
    reply_summary(r, &s);
    assert_true(s.tokens == 5 && s.text_tokens == 1 && s.call_tokens == 4 && s.calls == 1);
    reply_close(r);
    json_decref(tools);
}

/* The end of the reasoning is forced between tokens, never within a character or a mark. */
static void forced_end(void **state)
{
    (void) state;
    ReplySummary s;
    size_t n;
    ReplyOptions o = { .style = { CALLS_QWEN3, THINK_TAGS }, .think_max = 2, .think_message = "\nEnough.\n",
                       .token = id_of, .prompt = "<think>", .n_prompt = 7 };
    Reply *r = opened(&o);
    assert_null(reply_force(r, false, &n));
    assert_non_null(reply_force(r, true, &n));
    say(r, "a");
    assert_null(reply_force(r, false, &n));
    say(r, "b\xe2\x82");
    assert_null(reply_force(r, false, &n));
    say(r, "\xac</th");
    assert_null(reply_force(r, false, &n));
    say(r, "e");
    const char *text = reply_force(r, false, &n);
    assert_string_equal(text, "\nEnough.\n</think>\n\n");
    assert_int_equal(n, strlen(text));
    say(r, "\nEnough.\n");
    assert_true(reply_token(r, 2, "</think>", 8));
    say(r, "\n\n");
    assert_null(reply_force(r, true, &n));
    say(r, "Yes.");
    assert_true(reply_end(r, REPLY_ENDED));
    reply_summary(r, &s);
    assert_true(s.reason_tokens == 6 && s.text_tokens == 2 && !s.reason_unclosed);
    reply_close(r);
    o.style = (ReplyStyle) { CALLS_GEMMA4, THINK_CHANNEL };
    o.think_message = NULL;
    o.think_max = 0;
    o.prompt = "<|channel>thought\n";
    o.n_prompt = strlen(o.prompt);
    r = opened(&o);
    assert_string_equal(reply_force(r, false, &n), "<channel|>");
    reply_close(r);
}

static void styles(void **state)
{
    (void) state;
    static const struct { const char *source, *arch, *token; CallFormat calls; ThinkFormat think; } rows[] = {
        { "...<tool_call>\\n<function=NAME><parameter=x>...<think>", "", NULL, CALLS_QWEN35, THINK_TAGS },
        { "{'<tool_call>'}", "llama", NULL, CALLS_QWEN3, THINK_NONE },
        { "<tool_call>..<arg_key>", "qwen3", "</think>", CALLS_LAGUNA, THINK_TAGS },
        { "<|tool_call>call: <|channel>", "", NULL, CALLS_GEMMA4, THINK_CHANNEL },
        { "<|start_header_id|>..\"parameters\": ", "llama", NULL, CALLS_LLAMA3, THINK_NONE },
        { "<|start_header_id|>", "llama", "<|python_tag|>", CALLS_LLAMA3, THINK_NONE },
        { NULL, "qwen35", NULL, CALLS_QWEN35, THINK_NONE }, { NULL, "qwen3moe", NULL, CALLS_QWEN3, THINK_NONE },
        { NULL, "gemma4", NULL, CALLS_GEMMA4, THINK_CHANNEL },
        { NULL, "laguna", "</think>", CALLS_LAGUNA, THINK_TAGS },
        { NULL, "llama", "<|im_start|>", CALLS_QWEN3, THINK_NONE }, { "plain", "llama", NULL, CALLS_JSON, THINK_NONE },
    };
    CallFormat f = CALLS_JSON;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Script s = { .n_marks = rows[i].token ? 1 : 0 };
        if (rows[i].token) snprintf(s.mark[0], sizeof s.mark[0], "%s", rows[i].token);
        ReplyStyle got = reply_style(rows[i].source, rows[i].source ? strlen(rows[i].source) : 0, rows[i].arch,
                                     token_of, &s);
        if (got.calls != rows[i].calls || got.think != rows[i].think)
            fail_msg("row %zu: %s, %d", i, call_format_name(got.calls), (int) got.think);
        assert_true(call_format_named(&f, call_format_name(got.calls)) && f == got.calls);
    }
    assert_true(call_format_named(&f, "hermes") && f == CALLS_QWEN3);
    assert_false(call_format_named(&f, "other"));
    static const struct { const char *tools, *error; } bad[] = {
        { "{}", "tools is not a list" }, { "[1]", "tools[0] is not an object" },
        { "[{\"name\": \"a\"}, {}]", "tools[1].name is missing or not a string" },
        { "[{\"type\": \"function\", \"function\": {\"name\": \"\"}}]",
          "tools[0].function.name has 0 bytes, expected 1 to 256" },
        { "[{\"name\": \"a\", \"parameters\": 5}]", "tools[0].parameters is not an object" },
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        json_t *tools = json_loads(bad[i].tools, 0, NULL);
        Error err = { 0 };
        Reply *r;
        assert_int_equal(reply_open(&r, &(ReplyOptions) { .style = { CALLS_QWEN3, THINK_NONE }, .tools = tools }, &err),
                         ST_ARG);
        assert_null(r);
        assert_string_equal(err.text, bad[i].error);
        json_decref(tools);
    }
}

/* A megabyte in one parameter, as text, as JSON, and as JSON in a text: the time of each grows at most linearly. */
static void long_arguments(void **state)
{
    (void) state;
    enum { LENGTH = 1 << 20 };
    static const struct { CallFormat format; const char *before, *after; } rows[] = {
        { CALLS_QWEN35, "<tool_call><function=f><parameter=text>", "</parameter></function></tool_call>" },
        { CALLS_QWEN3, "<tool_call>{\"name\": \"f\", \"arguments\": {\"text\": \"", "\"}}</tool_call>" },
        { CALLS_QWEN35, "<tool_call><function=f><parameter=list>[\"", "\"]</parameter></function></tool_call>" },
    };
    json_t *tools = json_loads("[{\"name\": \"f\", \"parameters\": {\"properties\": {\"text\": {\"type\": \"string\"}, "
                               "\"list\": {\"type\": \"array\"}}}}]", 0, NULL);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        ReplyOptions o = { .style = { rows[i].format, THINK_NONE }, .think_max = -1, .tools = tools };
        Reply *r = opened(&o);
        ReplyEvent e;
        ReplySummary sum;
        size_t told = 0, events = 0;
        say(r, rows[i].before);
        for (size_t n = 0; n < LENGTH; n += 8) {
            say(r, n % 64 ? "line o f" : "</param ");
            while (reply_next(r, &e)) told += e.kind == REPLY_CALL_ARGS ? e.n : 0, events++;
        }
        say(r, rows[i].after);
        assert_true(reply_end(r, REPLY_ENDED));
        while (reply_next(r, &e)) told += e.kind == REPLY_CALL_ARGS ? e.n : 0;
        reply_summary(r, &sum);
        assert_true(sum.calls == 1 && sum.failures == 0 && told > LENGTH && told < LENGTH + 32);
        if (i < 2) assert_true(events > LENGTH / 10);
        reply_close(r);
    }
    json_decref(tools);
}

/* Wherever an answer ends in a call: its arguments are a whole object, or it is cut and nothing follows them. They are
 * whole after a limit only if all of them were written. */
static void cut_anywhere(void **state)
{
    (void) state;
    static const struct { CallFormat format; const char *text; } rows[] = {
        { CALLS_QWEN35, "<tool_call>\n<function=f>\n<parameter=text>\na </function> b\n</parameter>\n<parameter=list>\n"
          "[1, 2]\n</parameter>\n</function>\n</tool_call>" },
        { CALLS_QWEN35, "<tool_call>\n<function=f>\n{\"text\": \"a\", \"list\": [1]}\n</function>\n</tool_call>" },
        { CALLS_QWEN3,
          "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"text\": \"a\", \"list\": [1]}}\n</tool_call>" },
        { CALLS_QWEN3, "<tool_call>\n{\"arguments\": \"{\\\"text\\\": 1}\", \"name\": \"f\"}\n</tool_call>" },
        { CALLS_QWEN3,
          "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"text\": \"a\"}, \"id\": \"x\"}\n</tool_call>" },
        { CALLS_LAGUNA, "<tool_call>f\n<arg_key>text</arg_key>\n<arg_value>a </tool_call> b</arg_value>\n"
          "<arg_key>list</arg_key>\n<arg_value>[1]</arg_value>\n</tool_call>" },
        { CALLS_QWEN3, "<tool_call>\n<function=f(text=\"a\", list=[1])>\n</function>\n</tool_call>" },
        { CALLS_QWEN3, "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"text\": \"a\"}\n</tool_call>" },
        { CALLS_GEMMA4, "<|tool_call>call:f{text:<|\"|>a<|\"|>,list:[1]}<tool_call|>" },
        { CALLS_LLAMA3, "{\"name\": \"f\", \"parameters\": {\"text\": \"a\", \"list\": [1]}}" },
    };
    json_t *tools = json_loads("[{\"name\": \"f\", \"parameters\": {\"properties\": {\"text\": {\"type\": \"string\"}, "
                               "\"list\": {\"type\": \"array\"}}}}]", 0, NULL);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const char *text = rows[i].text;
        ReplyOptions o = { .style = { rows[i].format, THINK_NONE }, .think_max = -1, .tools = tools };
        Bytes all = { 0 }, args = { 0 };
        for (size_t n = strlen(text), by_limit = 1; n > 0; n -= by_limit, by_limit = !by_limit) {
            Reply *r = opened(&o);
            ReplyEvent e;
            ReplySummary sum;
            bool begun = false, ended = false;
            args.n = 0;
            for (size_t k = 0; k < n; k++) assert_true(reply_token(r, 5, text + k, 1));
            assert_true(reply_end(r, by_limit ? REPLY_CUT : REPLY_ENDED));
            int32_t behind = 0;
            while (reply_next(r, &e)) {
                behind += ended;
                begun |= e.kind == REPLY_CALL_BEGIN;
                ended |= e.kind == REPLY_CALL_END;
                if (e.kind == REPLY_CALL_ARGS) bytes_put(&args, e.bytes, e.n);
            }
            reply_summary(r, &sum);
            if (n == strlen(text)) bytes_put(&all, args.at, args.n);
            bool whole = begun && (by_limit ? args.n == all.n && memcmp(args.at, all.at, all.n) == 0 : !sum.call_cut);
            if (begun != ended || sum.call_cut != (begun && !whole) ||
                (begun && json_valid(args.at, args.n) != whole) || (behind > 0 && (by_limit || sum.call_cut)))
                fail_msg("%.*s: %.*s, %s, %d events behind it", (int) n, text, (int) args.n, args.at ? args.at : "",
                         sum.call_cut ? "cut" : "not cut", behind);
            assert_true(sum.tokens == (int32_t) n && (!begun || sum.call_tokens + sum.text_tokens == sum.tokens));
            reply_close(r);
        }
        bytes_free(&all);
        bytes_free(&args);
    }
    json_decref(tools);
}

/* Every allocation of an answer fails once: the decoder reports it, and nothing is lost or leaked. */
static void no_memory(void **state)
{
    (void) state;
    static const char *const SAID[] = { "I th\xc3\xa9nk", "</think>", "Text ", "<tool_call>",
                                        "<function=f><parameter=a>\nsome text", "\n</parameter><parameter=b>{'k': "
                                        "[1, 2]}", "</parameter></function>", "</tool_call>", "<tool_call>",
                                        "{\"name\": \"f\", \"arguments\": {\"a\": \"x\"}}", "</tool_call>", "more" };
    json_t *tools = json_loads("[{\"name\": \"f\", \"parameters\": {\"properties\": {\"a\": {\"type\": \"string\"}, "
                               "\"b\": {\"type\": \"object\"}}}}]", 0, NULL);
    const char *stop = "STOP";
    bool whole = false;
    for (long k = 1; !whole && k < 500; k++) {
        ReplyOptions o = { .style = { CALLS_QWEN35, THINK_TAGS }, .think_max = -1, .prompt = "<think>", .n_prompt = 7,
                           .stop = &stop, .n_stop = 1, .tools = tools };
        Reply *r;
        long live = alloc_state.live;
        alloc_state.fail_in = k;
        bool good = reply_open(&r, &o, NULL) == ST_OK, opened_it = good;
        for (size_t i = 0; good && i < sizeof SAID / sizeof *SAID; i++)
            good = reply_token(r, 5, SAID[i], strlen(SAID[i]));
        good = good && reply_end(r, REPLY_ENDED);
        whole = alloc_state.fail_in > 0;
        alloc_state.fail_in = 0;
        if (opened_it && !good) assert_false(reply_token(r, 5, "x", 1));
        assert_true(good || !whole);
        reply_close(r);
        if (!ALLOC_SANITIZED) assert_int_equal(alloc_state.live, live);
    }
    assert_true(whole);
    json_decref(tools);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scripts), cmocka_unit_test(coercion), cmocka_unit_test(put_right),
        cmocka_unit_test(closed_anywhere), cmocka_unit_test(what_waits), cmocka_unit_test(what_counts),
        cmocka_unit_test(forced_end), cmocka_unit_test(styles), cmocka_unit_test(long_arguments),
        cmocka_unit_test(cut_anywhere), cmocka_unit_test(no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
