/* Messages: a sequence of blocks, each started, filled and stopped. */
#include "programs/serve/answer/answer_impl.h"

#include <string.h>

#include "base/json.h"

/* Begins an event, whose data repeats its type. The caller writes the rest and end_event. */
static void event(Answer *a, const char *type)
{
    out_text(&a->out, "event: ");
    out_text(&a->out, type);
    out_json(&a->out, "\ndata: {'type':%s", type);
}

static void end_event(Answer *a) { out_text(&a->out, "}\n\n"); }

static const char *signature(const Answer *a) { return a->handle ? a->handle : a->id; }

static void usage(Answer *a, int64_t output)
{
    const AnswerUsage *u = &a->usage;
    int64_t fresh = u->prompt - u->cached - u->cache_write;
    out_json(&a->out, "{'input_tokens':%lld,'cache_creation_input_tokens':%lld,'cache_read_input_tokens':%lld,"
             "'output_tokens':%lld}", (long long) (fresh > 0 ? fresh : 0), (long long) u->cache_write,
             (long long) u->cached, (long long) output);
}

static const char *stop_reason(const Answer *a, const AnswerChoice *c)
{
    switch (finish_reason(c)) {
    case FINISH_STOP:          return "end_turn";
    case FINISH_STOP_SEQUENCE: return "stop_sequence";
    case FINISH_CALLS:         return "tool_use";
    case FINISH_CONTEXT:       return a->q->beta_context_window ? "model_context_window_exceeded" : "max_tokens";
    default:                   return "max_tokens";
    }
}

/* ---- blocks ---- */

static void messages_open(Answer *a)
{
    event(a, "message_start");
    out_json(&a->out, ",'message':{'id':%s,'type':'message','role':'assistant','model':%s,'content':[],"
             "'stop_reason':null,'stop_sequence':null,'usage':", a->id, a->q->model);
    usage(a, 1);
    write_ignored(&a->out, a);
    out_text(&a->out, "}");
    end_event(a);
    event(a, "ping");
    end_event(a);
}

static void start_block(Answer *a, Item *i)
{
    i->index = (int32_t) a->next_index++;
    event(a, "content_block_start");
    out_json(&a->out, ",'index':%d,'content_block':", (int) i->index);
}

static void messages_begin(Answer *a, AnswerChoice *c, Item *i)
{
    (void) c;
    Out *o = &a->out;
    start_block(a, i);
    if (i->kind == ITEM_REASON) out_json(o, "{'type':'thinking','thinking':'','signature':''}");
    else if (i->kind == ITEM_TEXT) out_json(o, "{'type':'text','text':''}");
    else {
        out_json(o, "{'type':'tool_use','id':%s,'name':", i->call_id);
        write_name(o, i);
        out_text(o, ",\"input\":{}}");
    }
    end_event(a);
}

static void delta(Answer *a, const Item *i, const char *type, const char *key, const char *s, size_t n)
{
    event(a, "content_block_delta");
    out_json(&a->out, ",'index':%d,'delta':{'type':%s,%s:", (int) i->index, type, key);
    out_string(&a->out, s, n);
    out_text(&a->out, "}");
    end_event(a);
}

static void messages_delta(Answer *a, AnswerChoice *c, Item *i, const char *s, size_t n)
{
    (void) c;
    if (i->kind == ITEM_TEXT) delta(a, i, "text_delta", "text", s, n);
    else if (i->kind == ITEM_CALL) delta(a, i, "input_json_delta", "partial_json", s, n);
    else if (a->q->show_reasoning == SHOW_RAW) delta(a, i, "thinking_delta", "thinking", s, n);
}

static void stop_block(Answer *a, const Item *i)
{
    event(a, "content_block_stop");
    out_json(&a->out, ",'index':%d", (int) i->index);
    end_event(a);
}

static void messages_end(Answer *a, AnswerChoice *c, Item *i)
{
    (void) c;
    if (i->kind == ITEM_REASON) delta(a, i, "signature_delta", "signature", signature(a), strlen(signature(a)));
    stop_block(a, i);
}

/* A message must have at least one block that is not thinking. */
static void messages_finish(Answer *a, AnswerChoice *c)
{
    Item empty = { .kind = ITEM_TEXT };
    bool any = false;
    for (size_t i = 0; i < c->n_item; i++) any |= c->item[i].begun && c->item[i].kind != ITEM_REASON;
    if (!any) {
        messages_begin(a, c, &empty);
        stop_block(a, &empty);
    }
    c->finished = true;
}

static void messages_close(Answer *a)
{
    const AnswerChoice *c = &a->choice[0];
    event(a, "message_delta");
    out_json(&a->out, ",'delta':{'stop_reason':%s,'stop_sequence':%s},'usage':", stop_reason(a, c), c->end.stop);
    usage(a, a->usage.completion);
    out_text(&a->out, ",\"timings\":");
    write_timings(&a->out, a);
    write_details(&a->out, a, c);
    end_event(a);
    event(a, "message_stop");
    end_event(a);
}

static void messages_alive(Answer *a, int64_t processed, int64_t total, double ms, bool counted)
{
    (void) processed;
    (void) total;
    (void) ms;
    (void) counted;
    event(a, "ping");
    end_event(a);
}

static void messages_fail(Answer *a, const HttpError *e)
{
    event(a, "error");
    out_json(&a->out, ",'error':{'type':%s,'message':%s},'request_id':%s", error_type_messages(e->status), e->message,
             *a->request_id ? a->request_id : NULL);
    end_event(a);
}

/* ---- the body ---- */

static void write_block(Answer *a, const Item *i)
{
    Out *o = &a->out;
    const char *s = i->text.at ? i->text.at : "";
    if (i->kind == ITEM_REASON) {
        out_text(o, "{\"type\":\"thinking\",\"thinking\":");
        out_string(o, s, a->q->show_reasoning == SHOW_RAW ? i->text.n : 0);
        out_json(o, ",'signature':%s}", signature(a));
    } else if (i->kind == ITEM_TEXT) {
        out_text(o, "{\"type\":\"text\",\"text\":");
        out_string(o, s, i->text.n);
        out_text(o, "}");
    } else {
        out_json(o, "{'type':'tool_use','id':%s,'name':", i->call_id);
        write_name(o, i);
        out_text(o, ",\"input\":");
        write_arguments(o, i);
        out_text(o, "}");
    }
}

static void messages_body(Answer *a)
{
    Out *o = &a->out;
    const AnswerChoice *c = &a->choice[0];
    size_t shown = 0, thinking = 0;
    out_json(o, "{'id':%s,'type':'message','role':'assistant','model':%s,'content':[", a->id, a->q->model);
    for (size_t i = 0; i < c->n_item; i++) {
        const Item *it = &c->item[i];
        if (!item_whole(it) || (it->kind == ITEM_TEXT && it->text.n == 0)) continue;
        if (shown++) out_text(o, ",");
        thinking += it->kind == ITEM_REASON;
        write_block(a, it);
    }
    if (shown == thinking) out_json(o, shown ? ",{'type':'text','text':''}" : "{'type':'text','text':''}");
    out_json(o, "],'stop_reason':%s,'stop_sequence':%s,'usage':", stop_reason(a, c), c->end.stop);
    usage(a, a->usage.completion);
    out_text(o, ",\"timings\":");
    write_timings(o, a);
    write_details(o, a, c);
    if (a->o.show_seed) out_json(o, ",'seed':%lld", (long long) a->o.seed);
    write_ignored(o, a);
    out_text(o, "}");
}

/* An event of ours among those of Messages. Clients go on after events that they do not know. */
static void messages_draft(Answer *a, int32_t choice, const char *s, size_t n, int32_t step)
{
    event(a, "ratoon.draft");
    write_draft_member(&a->out, choice, s, n, step);
    end_event(a);
}

const Encoder ENCODE_MESSAGES = { "msg_", "toolu_", EVENTS, messages_open, messages_begin, messages_delta,
                                  messages_end, messages_finish, messages_close, messages_alive, messages_draft,
                                  messages_fail, messages_body };
