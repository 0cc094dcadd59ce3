/* fuzz_reply.c - any tokens for the output decoder. Four bytes of options, then bytes; 0xff and a number is a mark as a
 * token, 0xfe ends a token, 0xfd and a number is a piece of some format. What must hold: names and arguments of calls
 * come in order; every call's arguments are one JSON object, or the beginning of one if the call was cut off; texts are
 * whole characters; the division into tokens changes nothing; text is part of the input, in its order, and all of it
 * except marks of reasoning and space if there was no call. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "json_check.h"
#include "text/json_flow.h"
#include "text/reply/reply.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

static const char TOOLS[] =
    "[{\"name\":\"weather\",\"parameters\":{\"properties\":{\"city\":{\"type\":\"string\"},"
    "\"days\":{\"type\":\"integer\"},\"o\":{\"type\":[\"object\",\"array\"]},"
    "\"n\":{\"type\":[\"string\",\"null\"]}},\"required\":[\"city\"]}},{\"type\":\"function\","
    "\"function\":{\"name\":\"now\"}}]";
static const char *const MARKS[] = { "<think>", "</think>", "<|channel>", "<channel|>", "<tool_call>", "</tool_call>",
                                     "<|tool_call>", "<tool_call|>", "<|\"|>", "<|tool_response>", "<|python_tag|>",
                                     "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>" };
static const char *const PIECES[] = {
    "<function=", "<function=weather>", "</function>", "<parameter=", "<parameter=city>\n", "<parameter=days>",
    "\n</parameter>\n", "weather", "now", "call:weather{",
    "{\"name\": \"weather\", \"arguments\": ", "{\"city\": \"Oslo\"", "}", "\"", "'", "\\", "\\u12", "\\ud83d", "true",
    "None", "12.5e", "[", "]", ", ", ": ", "thought\n",
    "<tool_code>", "</tool_code>", "<weather>", "```", "\n", " ", "city", "brave.call(q=", ")", ";", "{", "\xc3\xa9",
    "\xe2\x82", "STOP", "<arg_key>city</arg_key>", "\"function\": {",
    "\"parameters\": ", "<parameter=o>", "<parameter=n>nu", "ab", "abc", "((", "=", "<",
};
enum { N_MARKS = sizeof MARKS / sizeof *MARKS, N_PIECES = sizeof PIECES / sizeof *PIECES };

/* shown: text and reasoning */
typedef struct { Bytes spelled, shown, events, open; int kind; int32_t call, calls, broken; ReplyStop stop; } Played;

static int32_t token_of(void *ud, const char *text)
{
    (void) ud;
    for (int32_t i = 0; i < N_MARKS; i++)
        if (strcmp(MARKS[i], text) == 0) return 10 + i;
    return -1;
}

static void need(bool what) { if (!what) abort(); }

static void close_event(Played *p)
{
    if (p->kind == REPLY_TEXT || p->kind == REPLY_REASON) {
        need(utf8_valid(p->open.at, p->open.n) == p->open.n);
        bytes_char(&p->events, p->kind == REPLY_TEXT ? 1 : 2);
        bytes_put(&p->events, p->open.at, p->open.n);
    }
    p->open.n = 0;
    p->kind = -1;
}

static void take_events(Played *p, Reply *r)
{
    ReplyEvent e;
    while (reply_next(r, &e)) {
        need(utf8_valid(e.bytes, e.n) == e.n && e.from >= 0 && e.from <= e.tokens);
        if (e.kind == REPLY_TEXT || e.kind == REPLY_REASON) {
            need(p->call < 0 && e.call == -1 && e.n > 0);
            if (p->kind != (int) e.kind) close_event(p);
            p->kind = (int) e.kind;
            bytes_put(&p->open, e.bytes, e.n);
            bytes_put(&p->shown, e.bytes, e.n);
        } else if (e.kind == REPLY_CALL_BEGIN) {
            close_event(p);
            need(p->call < 0 && e.call == p->calls && e.n > 0);
            p->call = p->calls++;
            bytes_char(&p->events, 3);
            bytes_put(&p->events, e.bytes, e.n);
        } else {
            need(e.call == p->call && p->call >= 0);
            if (e.kind == REPLY_CALL_ARGS) bytes_put(&p->open, e.bytes, e.n);
            else {
                need(p->open.n > 0 && p->open.at[0] == '{');
                p->broken += !json_valid(p->open.at, p->open.n);
                bytes_char(&p->events, 4);
                bytes_put(&p->events, p->open.at, p->open.n);
                p->open.n = 0;
                p->call = -1;
            }
        }
    }
}

/* single: a token per byte, whatever the input says. */
static ReplySummary play(Played *p, const ReplyOptions *o, const uint8_t *s, size_t n, bool control, bool single,
                         ReplyCause cause)
{
    Reply *r;
    Error err;
    Bytes part = { 0 };
    ReplySummary sum;
    *p = (Played) { .kind = -1, .call = -1 };
    need(reply_open(&r, o, &err) == ST_OK);
    for (size_t i = 0; i <= n; i++) {
        bool mark = i + 1 < n && s[i] == 0xff, piece = i + 1 < n && s[i] == 0xfd;
        const char *text = mark ? MARKS[s[i + 1] % N_MARKS] : piece ? PIECES[s[i + 1] % N_PIECES] : "";
        if (i < n && !mark && !piece && s[i] < 0xfd) bytes_put(&part, (const char *) s + i, 1);
        if (piece) bytes_text(&part, text);
        if ((i == n || mark || s[i] == 0xfe || single) && part.n > 0) {
            bytes_put(&p->spelled, part.at, part.n);
            for (size_t k = 0; k < part.n && single; k++) need(reply_token(r, 1, part.at + k, 1));
            if (!single) need(reply_token(r, 1, part.at, part.n));
            part.n = 0;
        }
        if (mark) {
            bytes_text(&p->spelled, text);
            need(reply_token(r, 10 + s[i + 1] % N_MARKS, text, control ? 0 : strlen(text)));
        }
        if (i < n && s[i] != 0xfc) take_events(p, r);
        i += mark || piece;
    }
    need(reply_end(r, cause));
    take_events(p, r);
    close_event(p);
    need(p->call < 0);
    reply_summary(r, &sum);
    p->stop = reply_stop(r);
    need(p->broken == sum.call_cut);
    need(sum.tokens == reply_kept(r) && sum.tokens == sum.reason_tokens + sum.text_tokens + sum.call_tokens &&
         sum.calls == p->calls);
    need(sum.reason_tokens >= 0 && sum.text_tokens >= 0 && sum.call_tokens >= 0);
    bytes_free(&part);
    reply_close(r);
    return sum;
}

static size_t occurrences(const Bytes *in, const char *what)
{
    size_t n = 0, len = strlen(what);
    for (size_t i = 0; i + len <= in->n; i++)
        if (memcmp(in->at + i, what, len) == 0) n += len;
    return n;
}

static bool solid(char c) { return c > ' ' && (uint8_t) c < 0x80; }

/* Shown text consists of input bytes in their order; all: only marks may be missing. Only printable ASCII is
 * compared. */
static void check_text(const Played *p, bool all)
{
    const Bytes *in = &p->spelled;
    size_t at = 0, lost = 0, marks = 0;
    for (size_t i = 0; i < p->shown.n; i++) {
        if (!solid(p->shown.at[i])) continue;
        for (; at < in->n && in->at[at] != p->shown.at[i]; at++) lost += solid(in->at[at]);
        need(at++ < in->n);
    }
    for (; at < in->n; at++) lost += solid(in->at[at]);
    for (int i = 0; i < 4; i++) marks += occurrences(in, MARKS[i]);
    need(!all || lost <= marks + occurrences(in, "thought"));
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    static json_t *tools;
    static const char *const STOPS[] = { "STOP", "abc", "b", "\n\n" };
    if (n < 4) return 0;
    if (!tools) tools = json_loads(TOOLS, 0, NULL);
    uint8_t a = bytes[0], b = bytes[1], c = bytes[2], d = bytes[3];
    ReplyOptions o = { .style = { (CallFormat) (a % 7), (ThinkFormat) (a / 7 % 3) }, .errors = (CallErrors) (b % 3),
                       .one_call = b & 8, .bare_off = b & 16, .promote = b & 32, .think_inline = b & 64,
                       .calls_off = (b & 128) && (b & 4), .tools = c & 1 ? NULL : tools, .stop_in_reasoning = c & 2,
                       .stop = STOPS, .n_stop = c / 4 % 5, .prompt = d % 4 == 0 ? "<think>\n" : d % 4 == 1
                       ? "<|channel>thought\n" : "x", .think_max = 7, .token = c & 32 ? NULL : token_of };
    o.n_prompt = strlen(o.prompt);
    bool control = (c & 64) && (c & 32) == 0 && o.style.calls != CALLS_NONE;
    ReplyCause cause = c & 128 ? REPLY_CUT : REPLY_ENDED;
    Played one, other;
    ReplySummary sum = play(&one, &o, bytes + 4, n - 4, control, false, cause);
    play(&other, &o, bytes + 4, n - 4, control, true, cause);
    need(one.events.n == other.events.n &&
         (one.events.n == 0 || memcmp(one.events.at, other.events.at, one.events.n) == 0));
    check_text(&one, !control && one.stop == REPLY_GO && sum.calls == 0 && o.errors != CALL_ERRORS_DROP);
    for (int i = 0; i < 2; i++) {
        Played *p = i ? &one : &other;
        bytes_free(&p->events);
        bytes_free(&p->spelled);
        bytes_free(&p->shown);
        bytes_free(&p->open);
    }
    return 0;
}
