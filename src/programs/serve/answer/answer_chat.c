/* Chat Completions: chunks whose deltas add up to a message. */
#include "programs/serve/answer/answer_impl.h"

#include <string.h>

static const char *const REASON[] = {
    [FINISH_STOP] = "stop", [FINISH_STOP_SEQUENCE] = "stop", [FINISH_LENGTH] = "length", [FINISH_CONTEXT] = "length",
    [FINISH_CALLS] = "tool_calls", [FINISH_DEGENERATE] = "length", [FINISH_CANCELLED] = "length" };

/* A request with `functions` gets its call in the old form. */
static bool is_old(const Answer *a)
{
    return json_is_array(json_object_get(a->q->body, "functions")) &&
           !json_is_array(json_object_get(a->q->body, "tools"));
}

static const char *reason(const Answer *a, const AnswerChoice *c)
{
    FinishReason r = finish_reason(c);
    return r == FINISH_CALLS && is_old(a) ? "function_call" : REASON[r];
}

static const char CHUNK[] = "chat.completion.chunk";

/* ---- chunks ---- */

static void begin_chunk(Answer *a, const AnswerChoice *c)
{
    out_text(&a->out, "data: ");
    write_head(a, CHUNK);
    out_json(&a->out, ",'choices':[{'index':%d,'delta':{", (int) choice_number(a, c));
}

/* Ends a chunk after its delta: n bytes of the item, from where it was sent; 0 if the delta has none. */
static void end_chunk(Answer *a, AnswerChoice *c, const Item *item, size_t n, const char *finish, bool last)
{
    out_text(&a->out, "}");
    if (a->q->logprobs && c->n_log > c->logs_sent) {
        out_text(&a->out, ",\"logprobs\":{\"content\":");
        write_logs(&a->out, c, c->logs_sent, c->n_log);
        out_text(&a->out, "}");
        c->logs_sent = c->n_log;
    }
    if (c->n_token > c->tokens_sent) write_tokens(a, c);
    if (a->q->return_drafted && n > 0) {
        bool first = true;
        out_text(&a->out, ",\"drafted\":[");
        write_drafted(&a->out, item, item->sent, item->sent + n, 0, &first);
        out_text(&a->out, "]");
    }
    out_json(&a->out, ",'finish_reason':%s", finish);
    if (finish) write_details(&a->out, a, c);
    out_text(&a->out, "}]");
    write_chunk_end(a, last);
}

static void chat_open(Answer *a)
{
    for (size_t i = 0; i < a->n_choice; i++) {
        begin_chunk(a, &a->choice[i]);
        out_text(&a->out, "\"role\":\"assistant\",\"content\":\"\"");
        end_chunk(a, &a->choice[i], NULL, 0, NULL, false);
    }
}

static void chat_begin(Answer *a, AnswerChoice *c, Item *i)
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
        out_json(o, "'tool_calls':[{'index':%d,'id':%s,'type':%s,", (int) i->number, i->call_id,
                 custom ? "custom" : "function");
        out_text(o, custom ? "\"custom\":{\"name\":" : "\"function\":{\"name\":");
        write_name(o, i);
        out_text(o, custom ? ",\"input\":\"\"}}]" : ",\"arguments\":\"\"}}]");
    }
    end_chunk(a, c, NULL, 0, NULL, false);
}

static void chat_delta(Answer *a, AnswerChoice *c, Item *i, const char *s, size_t n)
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
    end_chunk(a, c, i, n, NULL, false);
}

static void chat_end(Answer *a, AnswerChoice *c, Item *i)
{
    if (i->kind != ITEM_CALL || !i->tool || i->tool->kind != TOOL_CUSTOM || !item_whole(i)) return;
    begin_chunk(a, c);
    out_json(&a->out, "'tool_calls':[{'index':%d,'custom':{'input':", (int) i->number);
    write_input(&a->out, i);
    out_text(&a->out, "}}]");
    end_chunk(a, c, NULL, 0, NULL, false);
}

static void chat_finish(Answer *a, AnswerChoice *c)
{
    bool last = is_last_choice(a, c);
    begin_chunk(a, c);
    end_chunk(a, c, NULL, 0, reason(a, c), last);
    c->finished = true;
}

static void chat_close(Answer *a) { write_stream_end(a, CHUNK); }

static void chat_alive(Answer *a, int64_t processed, int64_t total, double ms, bool event)
{
    (void) event;
    write_alive(a, CHUNK, "{\"index\":0,\"delta\":{},\"finish_reason\":null}", processed, total, ms);
}

static void chat_draft(Answer *a, int32_t choice, const char *s, size_t n, int32_t step)
{
    write_draft(a, CHUNK, choice, s, n, step);
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
    else out_string(o, i->text.n ? i->text.at : "{}", i->text.n ? i->text.n : 2);
    out_text(o, "}}");
}

static void write_calls(Answer *a, const AnswerChoice *c)
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
        out_string(o, call->text.n ? call->text.at : "{}", call->text.n ? call->text.n : 2);
        out_text(o, "}");
    }
    if (!old) out_text(o, "]");
}

static void write_choice(Answer *a, AnswerChoice *c)
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
    write_tokens(a, c);
    if (a->q->return_drafted) {
        bool first = true;
        size_t at = 0;
        out_text(o, ",\"drafted\":[");
        for (size_t i = 0; i < c->n_item; i++) {
            if (c->item[i].kind != ITEM_TEXT) continue;
            write_drafted(o, &c->item[i], 0, c->item[i].text.n, at, &first);
            at += c->item[i].text.n;
        }
        out_text(o, "]");
    }
    out_text(o, "}");
}

static void chat_body(Answer *a)
{
    Out *o = &a->out;
    write_head(a, "chat.completion");
    out_text(o, ",\"choices\":[");
    for (size_t i = 0; i < a->n_choice; i++) {
        if (i) out_text(o, ",");
        write_choice(a, &a->choice[i]);
    }
    write_body_end(a);
}

const Encoder ENCODE_CHAT = { "chatcmpl-", "call_", EVENTS, chat_open, chat_begin, chat_delta, chat_end, chat_finish,
                              chat_close, chat_alive, chat_draft, write_stream_error, chat_body };
