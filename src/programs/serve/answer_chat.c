/* Chat Completions: chunks whose deltas add up to a message. */
#include "programs/serve/answer_impl.h"

#include <string.h>

static const char *const REASON[] = { [FINISH_STOP] = "stop", [FINISH_STOP_SEQUENCE] = "stop", [FINISH_LENGTH] = "length", [FINISH_CONTEXT] = "length",
                                      [FINISH_CALLS] = "tool_calls", [FINISH_DEGENERATE] = "length", [FINISH_CANCELLED] = "length" };

/* A request with `functions` gets the call in the form of that time. */
static bool is_old(const Answer *a)
{
    return json_is_array(json_object_get(a->q->body, "functions")) && !json_is_array(json_object_get(a->q->body, "tools"));
}

static const char *reason(const Answer *a, const Choice *c)
{
    FinishReason r = finish_reason(c);
    return r == FINISH_CALLS && is_old(a) ? "function_call" : REASON[r];
}

static void head(Answer *a, const char *object)
{
    out_json(&a->out, "{'id':%s,'object':%s,'created':%lld,'model':%s,'system_fingerprint':%s", a->id, object, (long long) a->o.created, a->q->model, a->fingerprint);
}

/* ---- chunks ---- */

static void begin_chunk(Answer *a, const Choice *c)
{
    out_text(&a->out, "data: ");
    head(a, "chat.completion.chunk");
    out_json(&a->out, ",'choices':[{'index':%d,'delta':{", (int) choice_number(a, c));
}

/* The delta has been written. */
static void end_chunk(Answer *a, Choice *c, const char *finish, bool last)
{
    out_text(&a->out, "}");
    if (a->q->logprobs && c->n_log > c->logs_sent) {
        out_text(&a->out, ",\"logprobs\":{\"content\":");
        write_logs(&a->out, c, c->logs_sent, c->n_log);
        out_text(&a->out, "}");
        c->logs_sent = c->n_log;
    }
    if (a->q->return_tokens && c->n_token > c->tokens_sent) {
        out_text(&a->out, ",\"tokens\":[");
        for (size_t i = c->tokens_sent; i < c->n_token; i++) out_json(&a->out, i > c->tokens_sent ? ",%d" : "%d", (int) c->token[i].id);
        out_text(&a->out, "]");
        c->tokens_sent = c->n_token;
    }
    out_json(&a->out, ",'finish_reason':%s", finish);
    if (finish) write_details(&a->out, a, c);
    out_text(&a->out, "}]");
    if (last) write_ignored(&a->out, a);
    if (last && a->o.show_seed) out_json(&a->out, ",'seed':%lld", (long long) a->o.seed);
    if (a->q->include_usage) out_text(&a->out, ",\"usage\":null");
    if (a->q->timings_per_token || (last && !a->q->include_usage)) {
        out_text(&a->out, ",\"timings\":");
        write_timings(&a->out, a);
    }
    out_text(&a->out, "}\n\n");
}

static void chat_open(Answer *a)
{
    for (size_t i = 0; i < a->n_choice; i++) {
        begin_chunk(a, &a->choice[i]);
        out_text(&a->out, "\"role\":\"assistant\",\"content\":\"\"");
        end_chunk(a, &a->choice[i], NULL, false);
    }
}

static void chat_begin(Answer *a, Choice *c, Item *i)
{
    Out *o = &a->out;
    if (i->kind != ITEM_CALL || (is_old(a) && i->number > 0)) return;
    bool custom = i->tool && i->tool->kind == TOOL_CUSTOM;
    begin_chunk(a, c);
    if (is_old(a)) {
        out_text(o, "\"function_call\":{\"name\":");
        write_name(o, i);
        out_text(o, ",\"arguments\":\"\"}");
    } else {
        out_json(o, "'tool_calls':[{'index':%d,'id':%s,'type':%s,", (int) i->number, i->call_id, custom ? "custom" : "function");
        out_text(o, custom ? "\"custom\":{\"name\":" : "\"function\":{\"name\":");
        write_name(o, i);
        out_text(o, custom ? ",\"input\":\"\"}}]" : ",\"arguments\":\"\"}}]");
    }
    end_chunk(a, c, NULL, false);
}

static void chat_delta(Answer *a, Choice *c, Item *i, const char *s, size_t n)
{
    Out *o = &a->out;
    if (i->kind == ITEM_REASON && a->q->show_reasoning == SHOW_HIDDEN) return;
    if (i->kind == ITEM_CALL && ((i->tool && i->tool->kind == TOOL_CUSTOM) || (is_old(a) && i->number > 0))) return;
    begin_chunk(a, c);
    if (i->kind != ITEM_CALL) out_text(o, i->kind == ITEM_REASON ? "\"reasoning_content\":" : "\"content\":");
    else if (is_old(a)) out_text(o, "\"function_call\":{\"arguments\":");
    else out_json(o, "'tool_calls':[{'index':%d,'function':{'arguments':", (int) i->number);
    out_string(o, s, n);
    if (i->kind == ITEM_CALL) out_text(o, is_old(a) ? "}" : "}}]");
    end_chunk(a, c, NULL, false);
}

static void chat_end(Answer *a, Choice *c, Item *i)
{
    if (i->kind != ITEM_CALL || !i->tool || i->tool->kind != TOOL_CUSTOM || !item_whole(i)) return;
    begin_chunk(a, c);
    out_json(&a->out, "'tool_calls':[{'index':%d,'custom':{'input':", (int) i->number);
    write_input(&a->out, i);
    out_text(&a->out, "}}]");
    end_chunk(a, c, NULL, false);
}

static bool is_last(const Answer *a, const Choice *c)
{
    size_t open = 0;
    for (size_t i = 0; i < a->n_choice; i++) open += !a->choice[i].finished && &a->choice[i] != c;
    return open == 0;
}

static void chat_finish(Answer *a, Choice *c)
{
    bool last = is_last(a, c);
    begin_chunk(a, c);
    end_chunk(a, c, reason(a, c), last);
    c->finished = true;
}

static void chat_close(Answer *a)
{
    Out *o = &a->out;
    if (a->q->include_usage) {
        out_text(o, "data: ");
        head(a, "chat.completion.chunk");
        out_text(o, ",\"choices\":[],\"usage\":");
        write_usage(o, a);
        out_text(o, ",\"timings\":");
        write_timings(o, a);
        out_text(o, "}\n\n");
    }
    out_text(o, "data: [DONE]\n\n");
}

static void chat_alive(Answer *a, int64_t processed, int64_t total, double ms, bool event)
{
    (void) event;
    Out *o = &a->out;
    if (!a->q->return_progress) {
        out_json(o, ": prefill %lld/%lld\n\n", (long long) processed, (long long) total);
        return;
    }
    out_text(o, "data: ");
    head(a, "chat.completion.chunk");
    out_text(o, ",\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":null}]");
    out_json(o, ",'prompt_progress':{'total':%lld,'cache':%lld,'processed':%lld,'time_ms':%f}}\n\n", (long long) total, (long long) a->usage.cached, (long long) processed, ms);
}

static void chat_fail(Answer *a, const HttpError *e)
{
    out_text(&a->out, "data: {\"error\":");
    write_error(&a->out, e);
    out_text(&a->out, "}\n\n");
}

/* ---- the body ---- */

static void write_call(Out *o, const Item *i)
{
    bool custom = i->tool && i->tool->kind == TOOL_CUSTOM;
    out_json(o, "{'id':%s,'type':%s,", i->call_id, custom ? "custom" : "function");
    out_text(o, custom ? "\"custom\":{\"name\":" : "\"function\":{\"name\":");
    write_name(o, i);
    out_text(o, custom ? ",\"input\":" : ",\"arguments\":");
    if (custom) write_input(o, i);
    else out_string(o, i->text.n ? i->text.s : "{}", i->text.n ? i->text.n : 2);
    out_text(o, "}}");
}

static void write_calls(Answer *a, const Choice *c)
{
    Out *o = &a->out;
    bool first = true, old = is_old(a);
    if (!has_text(c, ITEM_CALL)) return;
    out_text(o, old ? ",\"function_call\":" : ",\"tool_calls\":[");
    for (size_t i = 0; i < c->n_item; i++) {
        const Item *call = &c->item[i];
        if (call->kind != ITEM_CALL || !item_whole(call) || (old && !first)) continue;
        if (!first) out_text(o, ",");
        first = false;
        if (!old) {
            write_call(o, call);
            continue;
        }
        out_text(o, "{\"name\":");
        write_name(o, call);
        out_text(o, ",\"arguments\":");
        out_string(o, call->text.n ? call->text.s : "{}", call->text.n ? call->text.n : 2);
        out_text(o, "}");
    }
    if (!old) out_text(o, "]");
}

static void write_choice(Answer *a, const Choice *c)
{
    Out *o = &a->out;
    out_json(o, "{'index':%d,'message':{'role':'assistant','content':", (int) choice_number(a, c));
    if (has_text(c, ITEM_CALL) && !has_text(c, ITEM_TEXT)) out_text(o, "null");
    else write_text(o, c, ITEM_TEXT);
    if (has_text(c, ITEM_REASON) && a->q->show_reasoning != SHOW_HIDDEN) {
        out_text(o, ",\"reasoning_content\":");
        write_text(o, c, ITEM_REASON);
    }
    write_calls(a, c);
    out_text(o, "},\"logprobs\":");
    if (a->q->logprobs) {
        out_text(o, "{\"content\":");
        write_logs(o, c, 0, c->n_log);
        out_text(o, ",\"refusal\":null}");
    } else out_text(o, "null");
    out_json(o, ",'finish_reason':%s", reason(a, c));
    write_details(o, a, c);
    if (a->q->return_tokens) {
        out_text(o, ",\"tokens\":[");
        for (size_t i = 0; i < c->n_token; i++) out_json(o, i ? ",%d" : "%d", (int) c->token[i].id);
        out_text(o, "]");
    }
    out_text(o, "}");
}

static void chat_body(Answer *a)
{
    Out *o = &a->out;
    head(a, "chat.completion");
    out_text(o, ",\"choices\":[");
    for (size_t i = 0; i < a->n_choice; i++) {
        if (i) out_text(o, ",");
        write_choice(a, &a->choice[i]);
    }
    out_text(o, "],\"usage\":");
    write_usage(o, a);
    out_text(o, ",\"timings\":");
    write_timings(o, a);
    if (a->o.show_seed) out_json(o, ",'seed':%lld", (long long) a->o.seed);
    write_ignored(o, a);
    out_text(o, "}");
}

const Encoder ENCODE_CHAT = { "chatcmpl-", "call_", chat_open, chat_begin, chat_delta, chat_end, chat_finish, chat_close, chat_alive, chat_fail, chat_body };
