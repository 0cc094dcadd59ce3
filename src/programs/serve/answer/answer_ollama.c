/* Ollama's /api/chat and /api/generate: one object, or lines of JSON, the last of which has the figures. */
#include "programs/serve/answer/answer_impl.h"

#include <string.h>
#include <time.h>

static bool talks(const Answer *a) { return a->q->dialect == DIALECT_OLLAMA_CHAT; }

static void begin_line(Answer *a)
{
    char when[40] = "";
    time_t t = (time_t) a->o.created;
    struct tm utc;
    if (gmtime_r(&t, &utc)) strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", &utc);
    out_json(&a->out, "{'model':%s,'created_at':%s", a->q->model, when);
}

static void write_call(Out *o, const Item *i)
{
    out_json(o, "{'id':%s,'function':{'index':%d,'name':", i->call_id, (int) i->number);
    write_name(o, i);
    out_text(o, ",\"arguments\":");
    write_arguments(o, i);
    out_text(o, "}}");
}

/* A text stands in `message` for a chat, else in `response`. */
static void begin_message(Answer *a) { out_text(&a->out, talks(a) ? ",\"message\":{\"role\":\"assistant\"" : ""); }

static void write_content(Answer *a, ItemKind kind, const char *s, size_t n)
{
    Out *o = &a->out;
    out_text(o, talks(a) ? ",\"content\":" : ",\"response\":");
    out_string(o, s, kind == ITEM_TEXT ? n : 0);
    if (kind != ITEM_REASON) return;
    out_text(o, ",\"thinking\":");
    out_string(o, s, n);
}

static void end_message(Answer *a) { out_text(&a->out, talks(a) ? "}" : ""); }

static void write_new_logs(Answer *a, AnswerChoice *c)
{
    if (!a->q->logprobs || c->logs_sent == c->n_log) return;
    out_text(&a->out, ",\"logprobs\":");
    write_logs(&a->out, c, c->logs_sent, c->n_log);
    c->logs_sent = c->n_log;
}

static const char *done_reason(const Answer *a, const AnswerChoice *c)
{
    FinishReason r = finish_reason(c);
    if (a->q->only_load) return "load";
    return r == FINISH_STOP || r == FINISH_STOP_SEQUENCE || r == FINISH_CALLS ? "stop" : "length";
}

/* Milliseconds as nanoseconds. */
static long long ns(double ms) { return (long long) (1e6 * ms); }

static void end_last_line(Answer *a, const AnswerChoice *c)
{
    const AnswerUsage *u = &a->usage;
    Out *o = &a->out;
    out_json(o, ",'done':true,'done_reason':%s", done_reason(a, c));
    if (!a->q->only_load)
        out_json(o, ",'total_duration':%lld,'load_duration':0,'prompt_eval_count':%lld,'prompt_eval_duration':%lld,"
                 "'eval_count':%lld,'eval_duration':%lld", ns(u->prompt_ms + u->predicted_ms), (long long) u->prompt,
                 ns(u->prompt_ms), (long long) u->completion, ns(u->predicted_ms));
    if (a->o.show_seed) out_json(o, ",'seed':%lld", (long long) a->o.seed);
    write_ignored(o, a);
    out_text(o, "}");
}

/* ---- lines ---- */

static void ollama_open(Answer *a) { (void) a; }

static void ollama_begin(Answer *a, AnswerChoice *c, Item *i)
{
    (void) a;
    (void) c;
    (void) i;
}

static void ollama_delta(Answer *a, AnswerChoice *c, Item *i, const char *s, size_t n)
{
    if (i->kind == ITEM_CALL) return;              /* sent whole */
    begin_line(a);
    begin_message(a);
    write_content(a, i->kind, s, n);
    end_message(a);
    write_new_logs(a, c);
    out_text(&a->out, ",\"done\":false}\n");
}

static void ollama_end(Answer *a, AnswerChoice *c, Item *i)
{
    (void) c;
    if (i->kind != ITEM_CALL || !item_whole(i)) return;
    begin_line(a);
    begin_message(a);
    write_content(a, ITEM_CALL, "", 0);
    out_text(&a->out, ",\"tool_calls\":[");
    write_call(&a->out, i);
    out_text(&a->out, "]");
    end_message(a);
    out_text(&a->out, ",\"done\":false}\n");
}

static void ollama_finish(Answer *a, AnswerChoice *c)
{
    begin_line(a);
    begin_message(a);
    write_content(a, ITEM_CALL, "", 0);
    end_message(a);
    write_new_logs(a, c);
    end_last_line(a, c);
    out_text(&a->out, "\n");
    c->finished = true;
}

static void ollama_close(Answer *a) { (void) a; }

/* Every line is read as a part of the answer, so this one has an empty text. */
static void ollama_alive(Answer *a, int64_t processed, int64_t total, double ms, bool event)
{
    (void) processed;
    (void) total;
    (void) ms;
    (void) event;
    begin_line(a);
    begin_message(a);
    write_content(a, ITEM_CALL, "", 0);
    end_message(a);
    out_text(&a->out, ",\"done\":false}\n");
}

void write_ollama_error(Out *o, const HttpError *e) { out_json(o, "{'error':%s}", e->message); }

static void ollama_fail(Answer *a, const HttpError *e)
{
    write_ollama_error(&a->out, e);
    out_text(&a->out, "\n");
}

/* ---- the body ---- */

static void ollama_body(Answer *a)
{
    Out *o = &a->out;
    AnswerChoice *c = &a->choice[0];
    bool first = true;
    begin_line(a);
    begin_message(a);
    out_text(o, talks(a) ? ",\"content\":" : ",\"response\":");
    write_text(o, c, ITEM_TEXT);
    if (has_text(c, ITEM_REASON)) {
        out_text(o, ",\"thinking\":");
        write_text(o, c, ITEM_REASON);
    }
    if (has_text(c, ITEM_CALL)) out_text(o, ",\"tool_calls\":[");
    for (size_t i = 0; i < c->n_item; i++) {
        if (c->item[i].kind != ITEM_CALL || !item_whole(&c->item[i])) continue;
        if (!first) out_text(o, ",");
        first = false;
        write_call(o, &c->item[i]);
    }
    if (has_text(c, ITEM_CALL)) out_text(o, "]");
    end_message(a);
    write_new_logs(a, c);
    end_last_line(a, c);
}

const Encoder ENCODE_OLLAMA = { "ollama-", "call_", "application/x-ndjson", ollama_open, ollama_begin, ollama_delta,
                                ollama_end, ollama_finish, ollama_close, ollama_alive, NULL, ollama_fail,
                                ollama_body };
