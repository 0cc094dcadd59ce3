/* llama.cpp's /completion and /infill: one object, or chunks that end with it. The last object has all figures, or only
 * those fields that the request names, and what was ignored in any case. */
#include "programs/serve/answer/answer_impl.h"

#include <string.h>

#include "base/json.h"

static int64_t predicted(const AnswerChoice *c) { return c->ended ? c->end.tokens : c->heard; }

static const char *stop_type(const AnswerChoice *c)
{
    switch (c->end.reason) {
    case FINISH_STOP:          return "eos";
    case FINISH_STOP_SEQUENCE: return "word";
    default:                   return "limit";
    }
}

/* ---- pieces ---- */

static void write_probability(Out *o, const AnswerChoice *c, const Alternative *x)
{
    const char *s = c->bytes.at ? c->bytes.at + x->at : "";
    out_json(o, "{'id':%d,'token':", (int) x->id);
    out_string(o, s, x->n);
    out_text(o, ",\"bytes\":[");
    for (size_t i = 0; i < x->n; i++) out_json(o, i ? ",%d" : "%d", (int) (unsigned char) s[i]);
    out_json(o, "],'logprob':%g", x->logprob);
}

/* Those of the tokens not written yet. */
static void write_probabilities(Answer *a, AnswerChoice *c)
{
    Out *o = &a->out;
    if (!a->q->logprobs || c->logs_sent == c->n_log) return;
    out_text(o, ",\"completion_probabilities\":[");
    for (size_t i = c->logs_sent; i < c->n_log; i++) {
        const Token *t = &c->token[c->log[i]];
        if (i > c->logs_sent) out_text(o, ",");
        write_probability(o, c, &t->is);
        out_text(o, ",\"top_logprobs\":[");
        for (size_t k = 0; k < t->n_top; k++) {
            if (k) out_text(o, ",");
            write_probability(o, c, &c->top[t->top + k]);
            out_text(o, "}");
        }
        out_text(o, "]}");
    }
    out_text(o, "]");
    c->logs_sent = c->n_log;
}

static void write_settings(Out *o, const Answer *a)
{
    const Request *q = a->q;
    const rt_sampling *s = &q->sampling;
    out_json(o, "{'n_predict':%lld,'seed':%lld,'temperature':%g,'top_k':%d,'top_p':%g,'min_p':%g", (long long)
             q->max_tokens, (long long) a->o.seed, s->temperature, (int) s->top_k, s->top_p > 0 ? s->top_p : 1,
             s->min_p);
    out_json(o, ",'repeat_last_n':%d,'repeat_penalty':%g,'presence_penalty':%g,'frequency_penalty':%g",
             (int) s->rep_window, s->repetition > 0 ? s->repetition : 1, s->presence, s->frequency);
    out_text(o, ",\"stop\":[");
    for (size_t i = 0; i < q->n_stop; i++) out_json(o, i ? ",%s" : "%s", q->stop[i]);
    out_json(o, "],'n_probs':%d,'ignore_eos':%i,'stream':%i,'cache_prompt':%i,'n_indent':%d}",
             q->logprobs ? (int) q->top_logprobs : 0, q->ignore_eos, q->stream, q->cached, (int) q->n_indent);
}

static void write_ids(Answer *a, AnswerChoice *c)
{
    out_text(&a->out, ",\"tokens\":[");
    for (size_t i = c->tokens_sent; a->q->return_tokens && i < c->n_token; i++)
        out_json(&a->out, i > c->tokens_sent ? ",%d" : "%d", (int) c->token[i].id);
    out_text(&a->out, "]");
    c->tokens_sent = c->n_token;
}

/* The answer's last object, with the whole text if it was not streamed. */
static void write_end(Answer *a, AnswerChoice *c)
{
    Out *o = &a->out;
    bool line = false;
    for (size_t i = 0; i < c->n_item; i++)
        line |= c->item[i].text.n > 0 && memchr(c->item[i].text.at, '\n', c->item[i].text.n);
    out_text(o, "{\"index\":0,\"content\":");
    if (a->q->stream) out_text(o, "\"\"");
    else write_text(o, c, ITEM_TEXT);
    write_ids(a, c);
    out_json(o, ",'id_slot':-1,'stop':true,'model':%s,'tokens_predicted':%lld,'tokens_evaluated':%lld", a->q->model,
             (long long) predicted(c), (long long) a->usage.prompt);
    out_text(o, ",\"generation_settings\":");
    write_settings(o, a);
    if (!a->q->infill.is && a->q->prompt->text) {
        out_text(o, ",\"prompt\":");
        out_string(o, a->q->prompt->text, a->q->prompt->n);
    }
    out_json(o, ",'has_new_line':%i,'truncated':%i,'stop_type':%s,'stopping_word':%s,'tokens_cached':%lld,'timings':",
             line, c->end.reason == FINISH_CONTEXT, stop_type(c), c->end.stop ? c->end.stop : "",
             (long long) (a->usage.prompt + predicted(c)));
    write_timings(o, a);
    write_probabilities(a, c);
    write_ignored(o, a);
    out_text(o, "}");
}

/* Fields by name; a path with slashes names one inside others, and stays its name. */
static json_t *named_fields(const json_t *all, const json_t *names)
{
    json_t *out = json_object(), *name;
    size_t i;
    json_array_foreach((json_t *) (uintptr_t) names, i, name) {
        const json_t *at = all;
        char key[128];
        for (const char *s = json_string_value(name); at; s += strcspn(s, "/") + 1) {
            size_t n = strcspn(s, "/");
            if (n >= sizeof key) at = NULL;
            else {
                memcpy(key, s, n);
                key[n] = 0;
                at = json_object_get(at, key);
            }
            if (!s[n]) break;
        }
        if (at) json_object_set(out, json_string_value(name), (json_t *) (uintptr_t) at);
    }
    return out;
}

static void write_last(Answer *a, AnswerChoice *c)
{
    Out *o = &a->out;
    if (json_array_size(a->q->response_fields) == 0) {
        write_end(a, c);
        return;
    }
    json_t *all = NULL;
    size_t from = o->n;
    write_end(a, c);
    if (o->failed || json_read_loose(&all, o->at + from, o->n - from, "answer", NULL) != ST_OK) {
        o->failed = true;
        return;
    }
    json_t *few = named_fields(all, a->q->response_fields), *ignored = json_object_get(all, "ignored");
    if (ignored) json_object_set(few, "ignored", ignored);
    o->n = from;
    out_value(o, few);
    json_decref(few);
    json_decref(all);
}

/* ---- events ---- */

static void begin_chunk(Answer *a, AnswerChoice *c, const char *s, size_t n)
{
    Out *o = &a->out;
    out_text(o, "data: {\"index\":0,\"content\":");
    out_string(o, s, n);
    write_ids(a, c);
    out_json(o, ",'stop':false,'id_slot':-1,'tokens_predicted':%lld,'tokens_evaluated':%lld",
             (long long) predicted(c), (long long) a->usage.prompt);
}

static void llama_open(Answer *a) { (void) a; }

static void llama_nothing(Answer *a, AnswerChoice *c, Item *i)
{
    (void) a;
    (void) c;
    (void) i;
}

static void llama_delta(Answer *a, AnswerChoice *c, Item *i, const char *s, size_t n)
{
    (void) i;
    begin_chunk(a, c, s, n);
    if (a->q->timings_per_token) {
        out_text(&a->out, ",\"timings\":");
        write_timings(&a->out, a);
    }
    write_probabilities(a, c);
    out_text(&a->out, "}\n\n");
}

static void llama_finish(Answer *a, AnswerChoice *c)
{
    out_text(&a->out, "data: ");
    write_last(a, c);
    out_text(&a->out, "\n\n");
    c->finished = true;
}

static void llama_close(Answer *a) { (void) a; }

static void llama_alive(Answer *a, int64_t processed, int64_t total, double ms, bool event)
{
    (void) event;
    if (!a->q->return_progress) {
        out_json(&a->out, ": prefill %lld/%lld\n\n", (long long) processed, (long long) total);
        return;
    }
    begin_chunk(a, &a->choice[0], "", 0);
    out_json(&a->out, ",'prompt_progress':{'total':%lld,'cache':%lld,'processed':%lld,'time_ms':%f}}\n\n",
             (long long) total, (long long) a->usage.cached, (long long) processed, ms);
}

static void llama_fail(Answer *a, const HttpError *e)
{
    out_text(&a->out, "data: ");
    write_llama_error(&a->out, e);
    out_text(&a->out, "\n\n");
}

static void llama_body(Answer *a) { write_last(a, &a->choice[0]); }

void write_llama_error(Out *o, const HttpError *e)
{
    bool context = e->n_ctx > 0;
    out_json(o, "{'error':{'code':%d,'message':%s,'type':%s,'param':%s", e->status, e->message,
             context ? "exceed_context_size_error" : e->type, e->param[0] ? e->param : NULL);
    if (context)
        out_json(o, ",'n_prompt_tokens':%lld,'n_ctx':%lld", (long long) e->n_prompt, (long long) e->n_ctx);
    out_text(o, "}}");
}

const Encoder ENCODE_LLAMA = { "cmpl-", "call_", EVENTS, llama_open, llama_nothing,
                               llama_delta, llama_nothing, llama_finish, llama_close, llama_alive, NULL, llama_fail,
                               llama_body };
