/* The output decoder: scripts of whole answers (tests/reply/NAME.txt) cut into tokens in every way, the table of coercion, JSON put right,
 * what stops and counts, broken memory; forced calls are in test_reply_tools.c. A script is
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
#include "text/reply.h"
#include "text/reply_value.h"
#include "text/utf8.h"

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
        { "one_call", &s->one_call }, { "bare_off", &s->bare_off }, { "promote", &s->promote }, { "calls_off", &s->calls_off },
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

/* Whether the line belongs to the script. */
static void script_line(Script *s, char *line)
{
    char *arg = strchr(line, ' ');
    arg = arg ? arg + 1 : line + strlen(line);
    if (line[0] == '|' || line[0] == ':') {
        bytes_text(&s->in, line[1] == ' ' ? line + 2 : line + 1);
        if (line[0] == '|') bytes_char(&s->in, '\n');
    } else if (strncmp(line, "format ", 7) == 0) {
        if (!call_format_named(&s->format, arg)) fail_msg("%s:%d: unknown format %s", s->file, s->line, arg);
    } else if (strncmp(line, "think ", 6) == 0) s->think = strcmp(arg, "tags") == 0 ? THINK_TAGS : strcmp(arg, "channel") == 0 ? THINK_CHANNEL : THINK_NONE;
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

typedef struct { Bytes events; ReplySummary sum; ReplyStop stop; int32_t kept, tokens; Bytes open; int kind; int32_t call, last_from, last_tokens; } Played;

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
            if (!json_valid(p->open.at, p->open.n) || p->open.at[0] != '{') fail_msg("not a JSON object: %.*s", (int) p->open.n, p->open.at);
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

/* Marks are tokens if the script names them and `spelled` does not forbid it; control: they come without bytes. */
static void play(Played *p, Script *s, const json_t *tools, CutHow how, size_t at, bool spelled, bool control)
{
    Reply *r;
    Error err = { 0 };
    const char *stops[STOPS_MAX];
    for (size_t i = 0; i < s->n_stop; i++) stops[i] = s->stop[i];
    ReplyOptions o = { .style = { s->format, s->think }, .tools = tools, .calls_off = s->calls_off, .one_call = s->one_call, .bare_off = s->bare_off,
                       .promote = s->promote, .errors = s->errors, .prompt = s->prompt, .n_prompt = strlen(s->prompt), .think_inline = s->inline_,
                       .think_max = s->max, .stop = stops, .n_stop = s->n_stop, .stop_in_reasoning = s->stop_in_reasoning,
                       .token = spelled ? NULL : token_of, .ud = s };
    *p = (Played) { .kind = -1, .call = -1 };
    if (reply_open(&r, &o, &err) != ST_OK) fail_msg("%s: %s", s->name, err.text);
    size_t from = 0, i = 0;
    bool going = true;
    while (going && i < s->in.n) {
        int32_t mark = -1;
        for (int32_t k = 0; k < s->n_marks && !spelled; k++)
            if (s->in.n - i >= strlen(s->mark[k]) && memcmp(s->in.at + i, s->mark[k], strlen(s->mark[k])) == 0) mark = k;
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
        { "calls", p->sum.calls }, { "failures", p->sum.failures }, { "unknown", p->sum.unknown }, { "repeated", p->sum.repeated },
        { "unclosed", p->sum.reason_unclosed }, { "cut", p->sum.call_cut }, { "stop", p->sum.stop }, { "why", (int32_t) p->stop },
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
    print_error("%s: %s (%s)\n--- expected\n%.*s--- events\n%.*s", s->file, s->name, how, (int) s->want.n, s->want.at ? s->want.at : "",
                (int) p->events.n, p->events.at ? p->events.at : "");
    return false;
}

static size_t n_cases, n_plays;

static bool play_once(Script *s, const json_t *tools, CutHow how, size_t at, bool spelled, bool control)
{
    Played p;
    n_plays++;
    play(&p, s, tools, how, at, spelled, control);
    bool good = check_played(s, &p, spelled ? "marks spelled" : control ? "marks as control tokens" : "marks as tokens");
    played_free(&p);
    return good;
}

/* Every cut in two, bytes, and cuts by chance, with marks as tokens and spelled. */
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
    DIR *d = opendir("tests/reply");
    assert_non_null(d);
    all_tools = read_json("tests/reply/tools.json");
    n_cases = n_plays = 0;
    for (struct dirent *e; (e = readdir(d));) {
        size_t n = strlen(e->d_name);
        char path[512];
        if (n < 5 || strcmp(e->d_name + n - 4, ".txt") != 0) continue;
        snprintf(path, sizeof path, "tests/reply/%s", e->d_name);
        play_file(path, e->d_name);
    }
    closedir(d);
    json_decref(all_tools);
    print_message("%zu cases, played %zu times\n", n_cases, n_plays);
    assert_true(n_cases > 50);
    assert_int_equal(n_failed, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(scripts) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
