#include "programs/serve/answer/answer_impl.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/grow.h"
#include "base/json.h"

/* ---- making one ---- */

static const Encoder *const ENCODERS[DIALECTS] = { &ENCODE_COMPLETIONS, &ENCODE_CHAT, &ENCODE_RESPONSES,
                                                   &ENCODE_MESSAGES, &ENCODE_LLAMA, &ENCODE_LLAMA, &ENCODE_OLLAMA,
                                                   &ENCODE_OLLAMA };

void new_id(Answer *a, char id[ID_MAX], const char *prefix)
{
    unsigned char random[12];
    a->o.random(a->o.ud, random, sizeof random);
    int n = snprintf(id, ID_MAX, "%s", prefix);
    for (size_t i = 0; i < sizeof random; i++) n += snprintf(id + n, ID_MAX - (size_t) n, "%02x", random[i]);
}

Answer *answer_new(const AnswerOptions *o)
{
    Answer *a = calloc(1, sizeof *a);
    if (!a) return NULL;
    a->q = o->request;
    a->encoder = ENCODERS[a->q->dialect];
    a->o = *o;
    a->n_choice = (size_t) a->q->n * (a->q->n_prompt > 0 ? a->q->n_prompt : 1);
    a->choice = calloc(a->n_choice, sizeof *a->choice);
    a->handle = o->handle ? strdup(o->handle) : NULL;
    a->request_id = strdup(o->request_id ? o->request_id : "");
    snprintf(a->fingerprint, sizeof a->fingerprint, "ratoon-%s", o->version);
    if (!a->choice || !a->request_id || (o->handle && !a->handle)) {
        answer_free(a);
        return NULL;
    }
    new_id(a, a->id, a->encoder->prefix);
    return a;
}

static void free_choice(AnswerChoice *c)
{
    for (size_t i = 0; i < c->n_item; i++) {
        out_free(&c->item[i].text);
        out_free(&c->item[i].name);
        free(c->item[i].drafted);
    }
    free(c->item);
    free(c->token);
    free(c->top);
    free(c->log);
    free(c->stop);
    out_free(&c->bytes);
}

void answer_free(Answer *a)
{
    if (!a) return;
    for (size_t i = 0; a->choice && i < a->n_choice; i++) free_choice(&a->choice[i]);
    free(a->choice);
    free(a->handle);
    free(a->request_id);
    out_free(&a->out);
    out_free(&a->shown);
    out_free(&a->response);
    free(a);
}

const char *answer_id(const Answer *a) { return a->id; }
const char *answer_type(const Answer *a) { return a->encoder->type; }
bool answer_done(const Answer *a) { return a->done; }
int32_t choice_number(const Answer *a, const AnswerChoice *c) { return (int32_t) (c - a->choice); }

/* Appends an element to a list; NULL: out of memory. */
static void *one_more(Answer *a, void *list, size_t *n, size_t *cap, size_t size)
{
    char *at;
    if (!grow_to(list, cap, *n + 1, 8, size)) {
        a->failed = true;
        return NULL;
    }
    memcpy(&at, list, sizeof at);                  /* a pointer of any type is not a char ** */
    return memset(at + (*n)++ * size, 0, size);
}

/* ---- items ---- */

static Item *last_item(AnswerChoice *c) { return c->n_item ? &c->item[c->n_item - 1] : NULL; }

/* Passes on what was not sent of the item yet, except for an incomplete character at its end. */
static void flush_item(Answer *a, AnswerChoice *c, Item *i, bool all)
{
    if (!a->q->stream || !a->opened || !i || i->ended) return;
    size_t to = i->text.n;
    if (!all && to > i->sent) to = i->sent + whole_characters(i->text.at + i->sent, to - i->sent);
    if (to == i->sent && (i->kind != ITEM_CALL || i->begun)) return;       /* a call is sent as soon as it has a name */
    if (!i->begun) {
        i->begun = true;
        a->encoder->begin(a, c, i);
    }
    if (to > i->sent) a->encoder->delta(a, c, i, i->text.at + i->sent, to - i->sent);
    i->sent = to;
}

static void end_item(Answer *a, AnswerChoice *c, Item *i)
{
    if (!i || i->ended) return;
    flush_item(a, c, i, true);
    i->ended = true;
    if (i->begun) a->encoder->end(a, c, i);
}

static Item *begin_item(Answer *a, AnswerChoice *c, ItemKind kind)
{
    end_item(a, c, last_item(c));
    Item *i = one_more(a, &c->item, &c->n_item, &c->cap_item, sizeof *c->item);
    if (!i) return NULL;
    i->kind = kind;
    i->logs_from = i->logs_to = c->n_log;
    if (kind == ITEM_CALL) {
        i->number = c->calls++;
        new_id(a, i->call_id, a->encoder->call_prefix);
    }
    return i;
}

Item *answer_empty_item(Answer *a, AnswerChoice *c) { return begin_item(a, c, ITEM_TEXT); }

static bool usable(const Answer *a, int32_t choice)
{
    return !a->failed && !a->done && a->opened && choice >= 0 && (size_t) choice < a->n_choice &&
           !a->choice[choice].ended;
}

/* Marks the tokens [from, to) as part of this text. */
static void own_tokens(Answer *a, AnswerChoice *c, Item *i, size_t from, size_t to)
{
    for (size_t t = from; a->q->logprobs && t < to && t < c->n_token; t++) {
        size_t *log = one_more(a, &c->log, &c->n_log, &c->cap_log, sizeof *c->log);
        if (log) *log = t;
    }
    i->logs_to = c->n_log;
}

static void add_drafted(Answer *a, Item *i, size_t from, size_t to)
{
    Range *last = i->n_drafted ? &i->drafted[i->n_drafted - 1] : NULL;
    if (from == to) return;
    if (last && last->to == from) {
        last->to = to;
        return;
    }
    Range *r = one_more(a, &i->drafted, &i->n_drafted, &i->cap_drafted, sizeof *r);
    if (r) *r = (Range) { from, to };
}

/* The last n bytes of the text end in the tokens [from, to). If they are exactly those tokens each counts by itself;
 * otherwise (a marker or half a character was removed) they count as drafted if all the tokens were. */
static void mark_drafted(Answer *a, const AnswerChoice *c, Item *i, size_t n, size_t from, size_t to)
{
    bool all = true, apart = true;
    if (!a->q->return_drafted || i->text.failed || c->bytes.failed || from >= to || to > c->n_token) return;
    size_t begin = i->text.n - n, at = begin;
    for (size_t t = from; t < to; t++) {
        const Alternative *is = &c->token[t].is;
        all &= c->token[t].drafted;
        apart = apart && is->n <= i->text.n - at &&
                (is->n == 0 || memcmp(i->text.at + at, c->bytes.at + is->at, is->n) == 0);
        if (apart) at += is->n;
    }
    if (!apart || at < i->text.n) {
        if (all) add_drafted(a, i, begin, i->text.n);
        return;
    }
    for (size_t t = from; t < to; t++) {
        size_t len = c->token[t].is.n;
        if (c->token[t].drafted) add_drafted(a, i, begin, begin + len);
        begin += len;
    }
}

static Item *item_for(Answer *a, AnswerChoice *c, ItemKind kind)
{
    Item *i = last_item(c);
    return i && i->kind == kind && !i->ended ? i : begin_item(a, c, kind);
}

void answer_event(Answer *a, int32_t choice, const ReplyEvent *e)
{
    if (!usable(a, choice)) return;
    AnswerChoice *c = &a->choice[choice];
    Item *i = NULL;
    if (e->tokens > c->heard) c->heard = e->tokens;
    switch (e->kind) {
    case REPLY_REASON:     i = item_for(a, c, ITEM_REASON); break;
    case REPLY_TEXT:       i = item_for(a, c, ITEM_TEXT); break;
    case REPLY_CALL_BEGIN: i = begin_item(a, c, ITEM_CALL); break;
    case REPLY_CALL_ARGS:  i = last_item(c); break;
    case REPLY_CALL_END:   return;      /* it ends when something follows: only then is it known whether it was cut */
    }
    if (!i) return;
    if (e->kind == REPLY_CALL_BEGIN) {
        out_bytes(&i->name, e->bytes, e->n);
        i->tool = request_tool(a->q, e->bytes, e->n);
    } else {
        out_bytes(&i->text, e->bytes, e->n);
        mark_drafted(a, c, i, e->n, c->echoed + (size_t) e->from, c->echoed + (size_t) e->tokens);
    }
    if (e->kind == REPLY_TEXT) own_tokens(a, c, i, c->echoed + (size_t) e->from, c->echoed + (size_t) e->tokens);
    a->failed |= i->text.failed || i->name.failed;
}

void answer_echo(Answer *a, int32_t choice, const char *bytes, size_t n)
{
    if (!usable(a, choice)) return;
    AnswerChoice *c = &a->choice[choice];
    Item *i = item_for(a, c, ITEM_TEXT);
    if (!i) return;
    out_bytes(&i->text, bytes, n);
    own_tokens(a, c, i, 0, c->n_token);
    c->echoed = c->n_token;
    a->failed |= i->text.failed;
}

/* ---- tokens ---- */

static Alternative keep_bytes(AnswerChoice *c, int32_t id, const char *s, size_t n, double logprob)
{
    Alternative x = { c->bytes.n, n, logprob, id };
    out_bytes(&c->bytes, s, n);
    return x;
}

void answer_token(Answer *a, int32_t choice, const AnswerToken *t)
{
    if (!usable(a, choice) || !(a->q->logprobs || a->q->return_tokens || a->q->return_drafted)) return;
    AnswerChoice *c = &a->choice[choice];
    Token *k = one_more(a, &c->token, &c->n_token, &c->cap_token, sizeof *c->token);
    if (!k) return;
    k->id = t->id;
    k->drafted = t->drafted;
    k->is = keep_bytes(c, t->id, t->bytes, t->n, t->logprob);
    k->top = c->n_top;
    for (int32_t i = 0; a->q->logprobs && i < t->n_top && i < a->q->top_logprobs; i++) {
        Alternative *x = one_more(a, &c->top, &c->n_top, &c->cap_top, sizeof *c->top);
        if (!x) return;
        *x = keep_bytes(c, t->top[i].id, t->top[i].bytes, t->top[i].n, t->top[i].logprob);
        k->n_top++;
    }
    a->failed |= c->bytes.failed;
}

/* ---- start and end ---- */

void answer_usage(Answer *a, const AnswerUsage *u) { a->usage = *u; }

void answer_keepalive(Answer *a, int64_t processed, int64_t total, double ms, bool event)
{
    char text[96];
    if (!a->q->stream || a->done || a->failed) return;
    if (a->opened || a->encoder == &ENCODE_OLLAMA) {       /* whose lines cannot be comments */
        a->commented = true;
        a->encoder->alive(a, processed, total, ms, event);
        return;
    }
    snprintf(text, sizeof text, total > 0 ? ": prefill %lld/%lld\n\n" : ": waiting\n\n", (long long) processed,
             (long long) total);
    out_text(&a->out, text);
    a->commented = true;
}

void answer_draft(Answer *a, int32_t choice, const char *bytes, size_t n, int32_t step)
{
    if (!usable(a, choice) || !a->q->stream || !a->q->include_drafts || !a->encoder->draft) return;
    a->encoder->draft(a, choice, bytes, n, step);
}

void answer_open(Answer *a)
{
    if (a->opened || a->done || a->failed) return;
    a->opened = true;
    if (a->q->stream) a->encoder->open(a);
}

static bool is_cut(const Item *i, const AnswerEnd *e)
{
    switch (i->kind) {
    case ITEM_CALL:   return e->call_cut;
    case ITEM_REASON: return e->reason_open;
    default:          return e->reason != FINISH_STOP && e->reason != FINISH_STOP_SEQUENCE && e->reason != FINISH_CALLS;
    }
}

void answer_end(Answer *a, int32_t choice, const AnswerEnd *e)
{
    if (!usable(a, choice)) return;
    AnswerChoice *c = &a->choice[choice];
    Item *i = last_item(c);
    c->end = *e;
    c->stop = e->stop ? strdup(e->stop) : NULL;
    a->failed |= e->stop && !c->stop;
    c->end.stop = c->stop;
    if (i) i->cut = is_cut(i, e);
    end_item(a, c, i);
    c->ended = true;
    a->n_ended++;
    /* the end of the last one waits for the figures of answer_close */
    if (a->n_ended == a->n_choice || !a->q->stream) return;
    c->finished = true;
    a->encoder->finish(a, c);
}

void answer_close(Answer *a, int64_t now)
{
    if (a->done || a->failed || !a->opened || a->n_ended < a->n_choice) return;
    a->now = now;
    if (a->q->stream) {
        for (size_t i = 0; i < a->n_choice; i++)
            if (!a->choice[i].finished) a->encoder->finish(a, &a->choice[i]);
        a->encoder->close(a);
    } else {
        a->encoder->body(a);
    }
    a->done = true;
}

void answer_fail(Answer *a, const HttpError *e, int64_t now)
{
    if (a->done || a->failed) return;
    a->now = now;
    if (a->q->stream && (a->opened || a->commented)) {
        for (size_t i = 0; i < a->n_choice; i++) flush_item(a, &a->choice[i], last_item(&a->choice[i]), true);
        a->encoder->fail(a, e);
    } else {
        size_t n;
        char *body = http_error_body(a->q->dialect, e, a->request_id, &n);
        if (body) out_bytes(&a->out, body, n);
        else a->failed = true;
        free(body);
    }
    a->done = true;
}

const char *answer_take(Answer *a, size_t *n)
{
    *n = 0;
    for (size_t i = 0; !a->failed && !a->done && i < a->n_choice; i++)
        flush_item(a, &a->choice[i], last_item(&a->choice[i]), false);
    if (a->failed || a->out.failed || a->response.failed) return NULL;
    Out taken = a->out;                 /* swapped, so that what was returned stays valid while the other fills */
    a->out = a->shown;
    a->out.n = 0;
    a->shown = taken;
    *n = taken.n;
    return taken.n ? taken.at : "";
}

char *answer_visible(const Answer *a, int32_t choice, size_t *n)
{
    const AnswerChoice *c = &a->choice[choice];
    *n = 0;
    for (size_t i = 0; i < c->n_item; i++)
        if (c->item[i].kind == ITEM_TEXT) *n += c->item[i].text.n;
    char *s = a->failed ? NULL : malloc(*n + 1), *w = s;
    for (size_t i = 0; s && i < c->n_item; i++)
        if (c->item[i].kind == ITEM_TEXT && c->item[i].text.n > 0)
            w = mempcpy(w, c->item[i].text.at, c->item[i].text.n);
    if (s) *w = 0;
    return s;
}

static const Item *call_of(const Answer *a, int32_t choice, int32_t call)
{
    if (choice < 0 || (size_t) choice >= a->n_choice) return NULL;
    const AnswerChoice *c = &a->choice[choice];
    for (size_t i = 0; i < c->n_item; i++)
        if (c->item[i].kind == ITEM_CALL && c->item[i].number == call) return &c->item[i];
    return NULL;
}

const char *answer_call_id(const Answer *a, int32_t choice, int32_t call)
{
    const Item *i = call_of(a, choice, call);
    return i ? i->call_id : NULL;
}

char *answer_call_name(const Answer *a, int32_t choice, int32_t call)
{
    const Item *i = call_of(a, choice, call);
    if (!i) return NULL;
    return i->tool ? strdup(i->tool->name) : strndup(i->name.at ? i->name.at : "", i->name.n);
}

const char *answer_response(const Answer *a, size_t *n)
{
    *n = a->done ? a->response.n : 0;
    return *n && !a->response.failed ? a->response.at : NULL;
}

/* ---- shared pieces ---- */

FinishReason finish_reason(const AnswerChoice *c)
{
    return c->end.reason == FINISH_STOP && has_text(c, ITEM_CALL) ? FINISH_CALLS : c->end.reason;
}

bool item_whole(const Item *i) { return !(i->kind == ITEM_CALL && i->cut); }

void write_name(Out *o, const Item *i)
{
    if (i->tool) out_string(o, i->tool->wire_name, strlen(i->tool->wire_name));
    else out_string(o, i->name.at ? i->name.at : "", i->name.n);
}

void write_input(Out *o, const Item *i)
{
    json_t *arguments = NULL;
    const char *s = i->text.at ? i->text.at : "";
    json_read_loose(&arguments, s, i->text.n, "arguments", NULL);
    const json_t *input = json_object_get(arguments, "input");
    if (json_is_string(input)) out_string(o, json_string_value(input), json_string_length(input));
    else out_string(o, s, i->text.n);
    json_decref(arguments);
}

bool has_text(const AnswerChoice *c, ItemKind kind)
{
    for (size_t i = 0; i < c->n_item; i++)
        if (c->item[i].kind == kind && (kind == ITEM_CALL ? item_whole(&c->item[i]) : c->item[i].text.n > 0))
            return true;
    return false;
}

void write_arguments(Out *o, const Item *i)
{
    json_t *v = NULL;
    const char *s = i->text.at ? i->text.at : "";
    bool object = json_read_loose(&v, s, i->text.n, "arguments", NULL) == ST_OK && json_is_object(v);
    json_decref(v);
    if (object) out_bytes(o, s, i->text.n);
    else if (i->text.n == 0) out_text(o, "{}");
    else {
        out_text(o, "{\"raw\":");
        out_string(o, s, i->text.n);
        out_text(o, "}");
    }
}

void write_text(Out *o, const AnswerChoice *c, ItemKind kind)
{
    Out all = { 0 };
    for (size_t i = 0; i < c->n_item; i++)
        if (c->item[i].kind == kind) out_bytes(&all, c->item[i].text.at, c->item[i].text.n);
    out_string(o, all.at ? all.at : "", all.n);
    o->failed |= all.failed;
    out_free(&all);
}

static void write_log(Out *o, const AnswerChoice *c, const Alternative *x)
{
    const char *s = c->bytes.at ? c->bytes.at + x->at : "";
    out_text(o, "{\"token\":");
    out_string(o, s, x->n);
    out_json(o, ",'logprob':%g,'bytes':[", x->logprob);
    for (size_t i = 0; i < x->n; i++) out_json(o, i ? ",%d" : "%d", (int) (unsigned char) s[i]);
    out_text(o, "]");
}

void write_logs(Out *o, const AnswerChoice *c, size_t from, size_t to)
{
    out_text(o, "[");
    for (size_t i = from; i < to; i++) {
        const Token *t = &c->token[c->log[i]];
        if (i > from) out_text(o, ",");
        write_log(o, c, &t->is);
        out_text(o, ",\"top_logprobs\":[");
        for (size_t k = 0; k < t->n_top; k++) {
            if (k) out_text(o, ",");
            write_log(o, c, &c->top[t->top + k]);
            out_text(o, "}");
        }
        out_text(o, "]}");
    }
    out_text(o, "]");
}

void write_drafted(Out *o, const Item *i, size_t from, size_t to, size_t base, bool *first)
{
    for (size_t k = 0; k < i->n_drafted; k++) {
        size_t begin = i->drafted[k].from > from ? i->drafted[k].from : from,
               end = i->drafted[k].to < to ? i->drafted[k].to : to;
        if (begin >= end) continue;
        out_json(o, *first ? "[%lld,%lld]" : ",[%lld,%lld]", (long long) (base + begin - from),
                 (long long) (base + end - from));
        *first = false;
    }
}

static double per(double a, double b) { return b > 0 ? a / b : 0; }

void write_usage(Out *o, const Answer *a)
{
    const AnswerUsage *u = &a->usage;
    out_json(o, "{'prompt_tokens':%lld,'completion_tokens':%lld,'total_tokens':%lld", (long long) u->prompt,
             (long long) u->completion, (long long) (u->prompt + u->completion));
    out_json(o, ",'prompt_tokens_details':{'cached_tokens':%lld,'cache_write_tokens':%lld}", (long long) u->cached,
             (long long) u->cache_write);
    out_json(o, ",'completion_tokens_details':{'reasoning_tokens':%lld}", (long long) u->reasoning);
    out_json(o, ",'timings':{'prefill_ms':%f,'decode_ms':%f,'decode_tokens_per_sec':%f}", u->prompt_ms, u->predicted_ms,
             per((double) u->completion * 1e3, u->predicted_ms));
    if (u->drafted > 0) out_json(o, ",'accept_rate':%f", per((double) u->accepted, (double) u->drafted));
    if (u->steps > 0)
        out_json(o, ",'blocks':%lld,'steps':%lld,'tokens_per_step':%f", (long long) u->blocks, (long long) u->steps,
                 per((double) u->completion, (double) u->steps));
    out_text(o, "}");
}

void write_timings(Out *o, const Answer *a)
{
    const AnswerUsage *u = &a->usage;
    double n = (double) (u->prompt - u->cached), k = (double) u->completion;
    out_json(o, "{'cache_n':%lld,'prompt_n':%lld,'prompt_ms':%f,'prompt_per_token_ms':%f,'prompt_per_second':%f",
             (long long) u->cached, (long long) (u->prompt - u->cached), u->prompt_ms, per(u->prompt_ms, n),
             per(n * 1e3, u->prompt_ms));
    out_json(o, ",'predicted_n':%lld,'predicted_ms':%f,'predicted_per_token_ms':%f,'predicted_per_second':%f",
             (long long) u->completion, u->predicted_ms, per(u->predicted_ms, k), per(k * 1e3, u->predicted_ms));
    out_json(o, ",'draft_n':%lld,'draft_n_accepted':%lld", (long long) u->drafted, (long long) u->accepted);
    if (u->steps > 0)
        out_json(o, ",'block_n':%lld,'step_n':%lld,'predicted_per_step':%f", (long long) u->blocks,
                 (long long) u->steps, per(k, (double) u->steps));
    out_text(o, "}");
}

void write_ignored(Out *o, const Answer *a)
{
    if (json_array_size(a->q->ignored) == 0) return;
    out_text(o, ",\"ignored\":");
    out_value(o, a->q->ignored);
}

void write_details(Out *o, const Answer *a, const AnswerChoice *c)
{
    bool degenerate = c->end.reason == FINISH_DEGENERATE;
    if (!request_talks(a->q) || (c->end.reason_tokens == 0 && !degenerate)) return;
    out_json(o, ",'finish_details':{'close_kind':%s,'thinking_tokens':%lld,'content_tokens':%lld,'total_tokens':%lld",
             c->end.forced_close ? "hard" : "natural", (long long) c->end.reason_tokens,
             (long long) (c->end.tokens - c->end.reason_tokens), (long long) c->end.tokens);
    if (degenerate) out_text(o, ",\"degenerate_decode\":true");
    out_text(o, "}");
}

/* ---- errors ---- */

void write_error(Out *o, const HttpError *e)
{
    out_json(o, "{'message':%s,'type':%s,'param':%s,'code':%s", e->message, e->type, e->param[0] ? e->param : NULL,
             e->code);
    if (e->n_ctx > 0)
        out_json(o, ",'n_prompt_tokens':%lld,'n_ctx':%lld", (long long) e->n_prompt, (long long) e->n_ctx);
    out_text(o, "}");
}

const char *error_type_messages(int status)
{
    switch (status) {
    case 401: return "authentication_error";
    case 403: return "permission_error";
    case 404: return "not_found_error";
    case 413: return "request_too_large";
    case 429: return "rate_limit_error";
    case 503: return "overloaded_error";
    default:  return status >= 500 && status != 501 ? "api_error" : "invalid_request_error";
    }
}

char *http_error_body(Dialect d, const HttpError *e, const char *request_id, size_t *n)
{
    Out o = { 0 };
    if (d == DIALECT_MESSAGES) {
        out_json(&o, "{'type':'error','error':{'type':%s,'message':%s},'request_id':%s}",
                 error_type_messages(e->status), e->message, request_id && *request_id ? request_id : NULL);
    } else if (is_llama(d)) {
        write_llama_error(&o, e);
    } else if (is_ollama(d)) {
        write_ollama_error(&o, e);
    } else {
        out_text(&o, "{\"error\":");
        write_error(&o, e);
        out_text(&o, "}");
    }
    *n = o.n;
    if (!o.failed) return o.at;
    out_free(&o);
    return NULL;
}
