/* Responses: numbered events that add, fill and finish every item of the output, and the complete object at the end. */
#include "programs/serve/answer/answer_impl.h"

#include <string.h>

#include "base/json.h"

/* ---- events ---- */

/* Begins an event; the caller writes the rest and end_event. */
static void event(Answer *a, const char *type)
{
    out_text(&a->out, "event: ");
    out_text(&a->out, type);
    out_json(&a->out, "\ndata: {'type':%s,'sequence_number':%lld", type, (long long) a->sequence++);
}

static void end_event(Answer *a) { out_text(&a->out, "}\n\n"); }

static void item_event(Answer *a, const char *type, const Item *i)
{
    event(a, type);
    out_json(&a->out, ",'item_id':%s,'output_index':%d", i->id, (int) i->index);
}

static void put_all(Out *o, const Item *i) { out_string(o, i->text.at ? i->text.at : "", i->text.n); }

/* ---- items ---- */

static ToolKind call_kind(const Item *i) { return i->tool ? i->tool->kind : TOOL_FUNCTION; }

static bool is_shown(const Answer *a, const Item *i)
{
    return i->kind != ITEM_REASON || a->q->show_reasoning != SHOW_HIDDEN;
}

static const char *id_prefix(const Item *i)
{
    static const char *const CALLS[] = { [TOOL_FUNCTION] = "fc_", [TOOL_CUSTOM] = "ctc_", [TOOL_SHELL] = "lsh_" };
    return i->kind == ITEM_REASON ? "rs_" : i->kind == ITEM_TEXT ? "msg_" : CALLS[call_kind(i)];
}

/* The arguments of local_shell are its action; missing members get neutral values. */
static void write_action(Out *o, const Item *i)
{
    json_t *arguments = NULL, *action = json_object();
    if (json_read_loose(&arguments, i->text.at ? i->text.at : "", i->text.n, "arguments", NULL) != ST_OK ||
        !json_is_object(arguments)) {
        json_decref(arguments);
        arguments = json_object();
    }
    bool good = json_object_set_new(action, "type", json_string("exec")) == 0 &&
                json_object_update_missing(action, arguments) == 0;
    if (good && !json_object_get(action, "command")) good = json_object_set_new(action, "command", json_array()) == 0;
    if (good && !json_object_get(action, "env")) good = json_object_set_new(action, "env", json_object()) == 0;
    if (good) out_value(o, action);
    else o->failed = true;
    json_decref(arguments);
    json_decref(action);
}

/* Writes an item. status: in_progress has no content yet. */
static void write_item(Out *o, const Answer *a, const AnswerChoice *c, const Item *i, const char *status)
{
    bool empty = strcmp(status, "in_progress") == 0;
    int show = a->q->show_reasoning;
    if (i->kind == ITEM_REASON) {
        out_json(o, "{'type':'reasoning','id':%s,'status':%s,'summary':[", i->id, status);
        if (!empty && show == SHOW_SUMMARY) {
            out_text(o, "{\"type\":\"summary_text\",\"text\":");
            put_all(o, i);
            out_text(o, "}");
        }
        out_text(o, "]");
        if (show == SHOW_RAW) {
            out_text(o, ",\"content\":[");
            if (!empty) {
                out_text(o, "{\"type\":\"reasoning_text\",\"text\":");
                put_all(o, i);
                out_text(o, "}");
            }
            out_text(o, "]");
        }
        out_json(o, ",'encrypted_content':%s}", a->q->reason_handle && !empty ? a->handle : NULL);
    } else if (i->kind == ITEM_TEXT) {
        out_json(o, "{'type':'message','id':%s,'status':%s,'role':'assistant','content':[", i->id, status);
        if (!empty) {
            out_text(o, "{\"type\":\"output_text\",\"text\":");
            put_all(o, i);
            out_text(o, ",\"annotations\":[],\"logprobs\":");
            write_logs(o, c, i->logs_from, i->logs_to);
            out_text(o, "}");
        }
        out_text(o, "]}");
    } else {
        static const char *const TYPE[] = { [TOOL_FUNCTION] = "function_call", [TOOL_CUSTOM] = "custom_tool_call",
                                            [TOOL_SHELL] = "local_shell_call" };
        ToolKind kind = call_kind(i);
        out_json(o, "{'type':%s,'id':%s,'status':%s,'call_id':%s", TYPE[kind], i->id, status, i->call_id);
        if (kind == TOOL_SHELL) {
            out_text(o, ",\"action\":");
            write_action(o, i);
        } else {
            out_text(o, ",\"name\":");
            write_name(o, i);
            if (i->tool && i->tool->wire_namespace) out_json(o, ",'namespace':%s", i->tool->wire_namespace);
            out_text(o, kind == TOOL_CUSTOM ? ",\"input\":" : ",\"arguments\":");
            if (empty) out_text(o, "\"\"");
            else if (kind == TOOL_CUSTOM) write_input(o, i);
            else out_string(o, i->text.n ? i->text.at : "{}", i->text.n ? i->text.n : 2);
        }
        out_text(o, "}");
    }
}

/* ---- the response object ---- */

static const char *status_of(const Answer *a)
{
    FinishReason r = finish_reason(&a->choice[0]);
    return r == FINISH_STOP || r == FINISH_STOP_SEQUENCE || r == FINISH_CALLS ? "completed" : "incomplete";
}

/* Writes a field as in the request, or else its default. */
static void echo(Out *o, const Answer *a, const char *key, const char *otherwise)
{
    const json_t *v = json_object_get(a->q->body, key);
    out_json(o, ",%s:", key);
    if (v && !json_is_null(v)) out_value(o, v);
    else out_text(o, otherwise);
}

static void response_head(Out *o, const Answer *a, const char *status)
{
    out_json(o, "{'id':%s,'object':'response','created_at':%lld,'status':%s,'model':%s", a->id,
             (long long) a->o.created, status, a->q->model);
    echo(o, a, "instructions", "null");
    echo(o, a, "max_output_tokens", "null");
    out_json(o, ",'parallel_tool_calls':%i,'previous_response_id':%s", a->q->parallel_calls, a->q->previous_response);
    echo(o, a, "reasoning", "{\"effort\":null,\"summary\":null}");
    out_json(o, ",'store':%i,'temperature':%g,'top_p':%g", a->q->store, (double) a->q->sampling.temperature,
             a->q->sampling.top_p > 0 ? (double) a->q->sampling.top_p : 1);
    echo(o, a, "text", "{\"format\":{\"type\":\"text\"}}");
    echo(o, a, "tool_choice", "\"auto\"");
    echo(o, a, "tools", "[]");
    out_text(o, ",\"truncation\":\"disabled\"");
    echo(o, a, "metadata", "{}");
    write_ignored(o, a);
}

static const char *item_status(const Item *i) { return i->cut ? "incomplete" : "completed"; }

/* e NULL: no error. */
static void write_response(Out *o, Answer *a, const char *status, const HttpError *e)
{
    const AnswerUsage *u = &a->usage;
    const AnswerChoice *c = &a->choice[0];
    bool first = true;
    response_head(o, a, status);
    if (e) out_json(o, ",'error':{'code':%s,'message':%s}", e->code ? e->code : "server_error", e->message);
    else out_text(o, ",\"error\":null");
    if (strcmp(status, "incomplete") == 0) out_json(o, ",'incomplete_details':{'reason':'max_output_tokens'}");
    else out_text(o, ",\"incomplete_details\":null");
    out_text(o, ",\"output\":[");
    for (size_t i = 0; i < c->n_item; i++) {
        if (!*c->item[i].id) continue;
        if (!first) out_text(o, ",");
        first = false;
        write_item(o, a, c, &c->item[i], e && !c->item[i].ended ? "incomplete" : item_status(&c->item[i]));
    }
    out_json(o, "],'usage':{'input_tokens':%lld,'input_tokens_details':{'cached_tokens':%lld,"
             "'cache_write_tokens':%lld}", (long long) u->prompt, (long long) u->cached, (long long) u->cache_write);
    out_json(o, ",'output_tokens':%lld,'output_tokens_details':{'reasoning_tokens':%lld},'total_tokens':%lld}",
             (long long) u->completion, (long long) u->reasoning, (long long) (u->prompt + u->completion));
    out_text(o, ",\"timings\":");
    write_timings(o, a);
    write_details(o, a, c);
    if (a->o.show_seed) out_json(o, ",'seed':%lld", (long long) a->o.seed);
    if (strcmp(status, "completed") == 0) out_json(o, ",'completed_at':%lld", (long long) a->now);
    else out_text(o, ",\"completed_at\":null");
    out_text(o, "}");
}

static void shell_event(Answer *a, const char *type)
{
    event(a, type);
    out_text(&a->out, ",\"response\":");
    response_head(&a->out, a, "in_progress");
    out_text(&a->out, ",\"error\":null,\"incomplete_details\":null,\"output\":[],\"usage\":null}");
    end_event(a);
}

/* ---- the stream ---- */

static void responses_open(Answer *a)
{
    shell_event(a, "response.created");
    shell_event(a, "response.in_progress");
}

static void part(Answer *a, const Item *i, const char *type, bool done)
{
    Out *o = &a->out;
    item_event(a, type, i);
    bool summary = i->kind == ITEM_REASON && a->q->show_reasoning == SHOW_SUMMARY;
    out_json(o, summary ? ",'summary_index':0" : ",'content_index':0");
    out_json(o, ",'part':{'type':%s,'text':",
             i->kind == ITEM_TEXT ? "output_text" : summary ? "summary_text" : "reasoning_text");
    if (done) put_all(o, i);
    else out_text(o, "\"\"");
    if (i->kind == ITEM_TEXT) {
        out_text(o, ",\"annotations\":[],\"logprobs\":");
        write_logs(o, &a->choice[0], i->logs_from, done ? i->logs_to : i->logs_from);
    }
    out_text(o, "}");
    end_event(a);
}

static void added(Answer *a, AnswerChoice *c, Item *i)
{
    new_id(a, i->id, id_prefix(i));
    i->index = (int32_t) a->next_index++;
    event(a, "response.output_item.added");
    out_json(&a->out, ",'output_index':%d,'item':", (int) i->index);
    write_item(&a->out, a, c, i, "in_progress");
    end_event(a);
}

static void responses_begin(Answer *a, AnswerChoice *c, Item *i)
{
    /* a shell's action is sent whole */
    if (!is_shown(a, i) || (i->kind == ITEM_CALL && call_kind(i) == TOOL_SHELL)) return;
    added(a, c, i);
    if (i->kind == ITEM_TEXT || (i->kind == ITEM_REASON && a->q->show_reasoning == SHOW_RAW))
        part(a, i, "response.content_part.added", false);
    if (i->kind == ITEM_REASON && a->q->show_reasoning == SHOW_SUMMARY)
        part(a, i, "response.reasoning_summary_part.added", false);
}

/* Names of a text's events; NULL: it has none. */
typedef struct { const char *delta, *done, *place, *key; } TextEvents;
static const TextEvents *text_events(const Answer *a, const Item *i)
{
    static const TextEvents TEXT = { "response.output_text.delta", "response.output_text.done", "content_index",
                                     "text" },
                            RAW = { "response.reasoning_text.delta", "response.reasoning_text.done", "content_index",
                                    "text" },
                            SUMMARY = { "response.reasoning_summary_text.delta", "response.reasoning_summary_text.done",
                                        "summary_index", "text" },
                            CALL = { "response.function_call_arguments.delta", "response.function_call_arguments.done",
                                     NULL, "arguments" },
                            CUSTOM = { "response.custom_tool_call_input.delta", "response.custom_tool_call_input.done",
                                       NULL, "input" };
    if (i->kind == ITEM_TEXT) return &TEXT;
    if (i->kind == ITEM_CALL)
        return call_kind(i) == TOOL_FUNCTION ? &CALL : call_kind(i) == TOOL_CUSTOM ? &CUSTOM : NULL;
    return a->q->show_reasoning == SHOW_RAW ? &RAW : a->q->show_reasoning == SHOW_SUMMARY ? &SUMMARY : NULL;
}

static void text_event(Answer *a, const Item *i, const char *type)
{
    const TextEvents *t = text_events(a, i);
    item_event(a, type, i);
    if (t->place) out_json(&a->out, ",%s:0", t->place);
}

static void responses_delta(Answer *a, AnswerChoice *c, Item *i, const char *s, size_t n)
{
    const TextEvents *t = text_events(a, i);
    /* the text of a custom call is known only at its end */
    if (!t || (i->kind == ITEM_CALL && call_kind(i) == TOOL_CUSTOM)) return;
    text_event(a, i, t->delta);
    out_text(&a->out, ",\"delta\":");
    out_string(&a->out, s, n);
    if (i->kind == ITEM_TEXT) {
        out_text(&a->out, ",\"logprobs\":");
        write_logs(&a->out, c, c->logs_sent, c->n_log);
        c->logs_sent = c->n_log;
    }
    end_event(a);
}

static void text_done(Answer *a, AnswerChoice *c, const Item *i)
{
    Out *o = &a->out;
    const TextEvents *t = text_events(a, i);
    bool custom = i->kind == ITEM_CALL && call_kind(i) == TOOL_CUSTOM;
    if (custom) {
        text_event(a, i, t->delta);
        out_text(o, ",\"delta\":");
        write_input(o, i);
        end_event(a);
    }
    text_event(a, i, t->done);
    if (i->kind == ITEM_CALL && !custom) {
        out_text(o, ",\"name\":");
        write_name(o, i);
    }
    out_json(o, ",%s:", t->key);
    if (custom) write_input(o, i);
    else if (i->kind == ITEM_CALL && i->text.n == 0) out_text(o, "\"{}\"");
    else put_all(o, i);
    if (i->kind == ITEM_TEXT) {
        out_text(o, ",\"logprobs\":");
        write_logs(o, c, i->logs_from, i->logs_to);
    }
    end_event(a);
}

static void responses_end(Answer *a, AnswerChoice *c, Item *i)
{
    if (!is_shown(a, i)) return;
    if (!*i->id) added(a, c, i);
    if (text_events(a, i)) text_done(a, c, i);
    if (i->kind == ITEM_TEXT || (i->kind == ITEM_REASON && a->q->show_reasoning == SHOW_RAW))
        part(a, i, "response.content_part.done", true);
    if (i->kind == ITEM_REASON && a->q->show_reasoning == SHOW_SUMMARY)
        part(a, i, "response.reasoning_summary_part.done", true);
    event(a, "response.output_item.done");
    out_json(&a->out, ",'output_index':%d,'item':", (int) i->index);
    write_item(&a->out, a, c, i, item_status(i));
    end_event(a);
}

/* An answer without content still has an empty message. */
static Item *empty_message(Answer *a, AnswerChoice *c)
{
    for (size_t i = 0; i < c->n_item; i++)
        if (c->item[i].kind != ITEM_REASON && (c->item[i].kind == ITEM_CALL || c->item[i].text.n > 0)) return NULL;
    Item *i = answer_empty_item(a, c);
    if (i) i->cut = strcmp(status_of(a), "incomplete") == 0;
    return i;
}

static void responses_finish(Answer *a, AnswerChoice *c)
{
    Item *i = empty_message(a, c);
    if (i) {
        responses_begin(a, c, i);
        i->ended = true;
        responses_end(a, c, i);
    }
    c->finished = true;
}

static void end_with(Answer *a, const char *status, const HttpError *e)
{
    char type[64] = "response.";
    write_response(&a->response, a, status, e);
    event(a, strcat(type, status));
    out_text(&a->out, ",\"response\":");
    out_bytes(&a->out, a->response.at, a->response.n);
    end_event(a);
}

static void responses_close(Answer *a) { end_with(a, status_of(a), NULL); }

static void responses_alive(Answer *a, int64_t processed, int64_t total, double ms, bool counted)
{
    (void) ms;
    if (counted) shell_event(a, "response.in_progress");
    else out_json(&a->out, ": prefill %lld/%lld\n\n", (long long) processed, (long long) total);
}

static void responses_fail(Answer *a, const HttpError *e)
{
    if (!a->opened) shell_event(a, "response.created");
    end_with(a, "failed", e);
}

static void responses_body(Answer *a)
{
    AnswerChoice *c = &a->choice[0];
    empty_message(a, c);
    for (size_t i = 0; i < c->n_item; i++) {
        Item *it = &c->item[i];
        if (is_shown(a, it) && (it->kind != ITEM_TEXT || it->text.n > 0 || i + 1 == c->n_item))
            new_id(a, it->id, id_prefix(it));
    }
    write_response(&a->response, a, status_of(a), NULL);
    out_bytes(&a->out, a->response.at, a->response.n);
}

/* The name says whose event it is, as OpenAI may have a response.draft one day. */
static void responses_draft(Answer *a, int32_t choice, const char *s, size_t n, int32_t step)
{
    event(a, "response.ratoon.draft");
    write_draft_member(&a->out, choice, s, n, step);
    end_event(a);
}

const Encoder ENCODE_RESPONSES = { "resp_", "call_", EVENTS, responses_open, responses_begin, responses_delta,
                                   responses_end, responses_finish, responses_close, responses_alive, responses_draft,
                                   responses_fail, responses_body };
