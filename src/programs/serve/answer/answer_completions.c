/* Completions: only text. */
#include "programs/serve/answer/answer_impl.h"

#include <string.h>

static const char *finish_name(const AnswerChoice *c)
{
    return c->end.reason == FINISH_STOP || c->end.reason == FINISH_STOP_SEQUENCE || c->end.reason == FINISH_CALLS
           ? "stop" : "length";
}

static const char OBJECT[] = "text_completion";

/* Writes a token as a string, as the old API does: one that is not valid text by itself is written as bytes, so that
 * two different tokens look different. */
static void write_token(Out *o, const AnswerChoice *c, const Alternative *x)
{
    const char *s = c->bytes.at ? c->bytes.at + x->at : "";
    Out plain = { 0 };
    json_t *text = x->n ? json_stringn(s, x->n) : json_string("");
    if (text) out_string(o, s, x->n);
    else {
        out_text(&plain, "bytes:");
        for (size_t i = 0; i < x->n; i++) {
            static const char HEX[] = "0123456789abcdef";
            unsigned char b = (unsigned char) s[i];
            out_bytes(&plain, (char[]) { '\\', 'x', HEX[b >> 4], HEX[b & 15] }, 4);
        }
        out_string(o, plain.at ? plain.at : "", plain.n);
    }
    json_decref(text);
    out_free(&plain);
}

static void write_top(Out *o, const AnswerChoice *c, const Token *t)
{
    if (t->n_top == 0) {
        out_text(o, "null");
        return;
    }
    out_text(o, "{");
    for (size_t k = 0; k < t->n_top; k++) {
        if (k) out_text(o, ",");
        write_token(o, c, &c->top[t->top + k]);
        out_json(o, ":%g", c->top[t->top + k].logprob);
    }
    out_text(o, "}");
}

static size_t characters(const AnswerChoice *c, const Alternative *x)
{
    size_t n = 0;
    for (size_t i = 0; i < x->n; i++) n += ((unsigned char) c->bytes.at[x->at + i] & 0xc0) != 0x80;
    return n;
}

/* Writes those of the tokens not written yet. */
static void write_logprobs(Answer *a, AnswerChoice *c)
{
    Out *o = &a->out;
    size_t from = c->logs_sent, to = c->n_log;
    if (!a->q->logprobs || (from == to && a->q->stream)) {
        out_text(o, "null");
        return;
    }
    out_text(o, "{\"tokens\":[");
    for (size_t i = from; i < to; i++) {
        if (i > from) out_text(o, ",");
        write_token(o, c, &c->token[c->log[i]].is);
    }
    out_text(o, "],\"token_logprobs\":[");
    for (size_t i = from; i < to; i++) out_json(o, i > from ? ",%g" : "%g", c->token[c->log[i]].is.logprob);
    out_text(o, "],\"top_logprobs\":");
    if (a->q->top_logprobs == 0) out_text(o, "null");
    else {
        for (size_t i = from; i < to; i++) {
            out_text(o, i > from ? "," : "[");
            write_top(o, c, &c->token[c->log[i]]);
        }
        out_text(o, from == to ? "[]" : "]");
    }
    out_text(o, ",\"text_offset\":[");
    for (size_t i = from; i < to; i++) {
        out_json(o, i > from ? ",%lld" : "%lld", (long long) c->characters);
        c->characters += characters(c, &c->token[c->log[i]].is);
    }
    out_text(o, "]}");
    c->logs_sent = to;
}

static void chunk(Answer *a, AnswerChoice *c, const char *s, size_t n, const char *finish, bool last)
{
    Out *o = &a->out;
    out_text(o, "data: ");
    write_head(a, OBJECT);
    out_json(o, ",'choices':[{'index':%d,'text':", (int) choice_number(a, c));
    out_string(o, s, n);
    out_text(o, ",\"logprobs\":");
    write_logprobs(a, c);
    write_tokens(a, c);
    out_json(o, ",'finish_reason':%s}]", finish);
    write_chunk_end(a, last);
}

static void nothing_to_open(Answer *a) { (void) a; }

static void nothing(Answer *a, AnswerChoice *c, Item *i)
{
    (void) a;
    (void) c;
    (void) i;
}

static void text_delta(Answer *a, AnswerChoice *c, Item *i, const char *s, size_t n)
{
    (void) i;
    chunk(a, c, s, n, NULL, false);
}

static void text_finish(Answer *a, AnswerChoice *c)
{
    chunk(a, c, "", 0, finish_name(c), is_last_choice(a, c));
    c->finished = true;
}

static void text_close(Answer *a) { write_stream_end(a, OBJECT); }

static void text_draft(Answer *a, int32_t choice, const char *s, size_t n, int32_t step)
{
    write_draft(a, OBJECT, choice, s, n, step);
}

static void text_alive(Answer *a, int64_t processed, int64_t total, double ms, bool event)
{
    (void) event;
    write_alive(a, OBJECT, "{\"index\":0,\"text\":\"\",\"logprobs\":null,\"finish_reason\":null}", processed,
                total, ms);
}

static void text_body(Answer *a)
{
    Out *o = &a->out;
    write_head(a, OBJECT);
    out_text(o, ",\"choices\":[");
    for (size_t i = 0; i < a->n_choice; i++) {
        AnswerChoice *c = &a->choice[i];
        out_json(o, i ? ",{'index':%d,'text':" : "{'index':%d,'text':", (int) i);
        write_text(o, c, ITEM_TEXT);
        out_text(o, ",\"logprobs\":");
        write_logprobs(a, c);
        write_tokens(a, c);
        out_json(o, ",'finish_reason':%s}", finish_name(c));
    }
    write_body_end(a);
}

const Encoder ENCODE_COMPLETIONS = { "cmpl-", "call_", EVENTS, nothing_to_open, nothing, text_delta, nothing,
                                     text_finish, text_close, text_alive, text_draft, write_stream_error,
                                     text_body };
