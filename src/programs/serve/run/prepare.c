/* prepare.c - turns the bytes of a request into a job for the engine thread: JSON, fields, a conversation's tokens and
 * cache points (conversation.h), constraints. All errors of a request are found here, before any byte of the answer is
 * sent. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/json.h"
#include "programs/chat/chat.h"
#include "programs/serve/run/conversation.h"
#include "programs/serve/run/job.h"
#include "programs/serve/run/replay.h"
#include "programs/serve/run/store.h"

/* Per request: at most 150 MB of values. */
enum { VALUES_MAX = 1 << 20, CONTAINERS_MAX = 1 << 18 };

bool prepare_json(json_t **out, Exchange *x)
{
    Error err = { 0 };
    size_t n;
    char *s = exchange_body(x, &n);
    if (s) json_without_zeros(s, n);               /* templates and much else take strings to end at a zero */
    Status st = json_read_bounded(out, s ? s : "", n, "the body", VALUES_MAX, CONTAINERS_MAX, &err);
    exchange_body_free(x);
    if (st == ST_OK) return true;
    exchange_error(x, st == ST_MEMORY ? 500 : 400, NULL, "%s", err.text);
    return false;
}

/* ---- a job ---- */

void job_free(Job *j)
{
    if (!j) return;
    for (int32_t i = 0; j->choice && i < j->n_choice; i++) {
        reply_close(j->choice[i].reply);
        grammar_text_close(j->choice[i].text);
        grammar_text_close(j->choice[i].held);
        free(j->choice[i].token);
    }
    for (int32_t i = 0; j->prompt && i < j->n_prompt; i++) {
        free(j->prompt[i].t);
        free(j->prompt[i].text);
    }
    free(j->choice);
    free(j->prompt);
    constraint_release(j->constraint);
    constraint_release(j->calls);
    answer_free(j->answer);
    request_free(j->q);
    if (j->x) exchange_release(j->x);
    free(j);
}

static bool fits(const Job *j, HttpError *e)
{
    const Server *s = j->server;
    for (int32_t i = 0; i < j->n_prompt; i++)
        if (j->prompt[i].n + 1 > s->ctx) return http_fail_context(e, j->q->dialect, j->prompt[i].n, s->ctx);
    return true;
}

static bool no_memory(HttpError *e) { return http_fail(e, 500, NULL, NULL, "out of memory for the prompt's tokens"); }

/* Texts and ids in turn; a text at the beginning gets BOS if the model wants it. */
static bool mixed_prompt(JobPrompt *p, const Server *s, const RequestPrompt *from, HttpError *e)
{
    size_t cap = 2, n = 0, i;
    json_t *v;
    json_array_foreach((json_t *) (uintptr_t) from->mixed, i, v) cap += 1 + json_string_length(v);
    if (conversation_too_long(s, DIALECT_LLAMA, cap, e)) return false;
    p->t = malloc(cap * sizeof *p->t);
    if (!p->t) return no_memory(e);
    json_array_foreach((json_t *) (uintptr_t) from->mixed, i, v) {
        if (json_is_integer(v)) {
            p->t[n++] = (int32_t) json_integer_value(v);
            continue;
        }
        size_t count = rt_tokenize(s->p.engine, json_string_value(v), json_string_length(v), true, p->t + n, cap - n);
        bool bos = count > 0 && rt_adds_bos(s->p.engine) && p->t[n] == rt_token_bos(s->p.engine);
        if (bos && i > 0) memmove(p->t + n, p->t + n + 1, --count * sizeof *p->t);
        n += count;
    }
    p->n = (int32_t) n;
    return true;
}

/* Prompts that are no conversation: text without template, with BOS if the model wants it, or ids, checked by
 * request_read. */
static bool raw_prompt(JobPrompt *p, const Server *s, const Request *q, const RequestPrompt *from, HttpError *e)
{
    rt_engine *g = s->p.engine;
    bool bos = from->text && rt_adds_bos(g) && rt_token_bos(g) >= 0;
    size_t cap = (from->text ? from->n : from->n_ids) + 2, n = 0;
    if (from->mixed) return mixed_prompt(p, s, from, e);
    if (from->text && conversation_too_long(s, q->dialect, from->n, e)) return false;
    p->t = malloc(cap * sizeof *p->t);
    if (!p->t) return no_memory(e);
    if (!from->text) {
        if (from->n_ids) memcpy(p->t, from->ids, from->n_ids * sizeof *p->t);
        n = from->n_ids;
    } else if (q->parse_special) {
        n = rt_tokenize(g, from->text, from->n, true, p->t, cap);
    } else {
        if (bos) p->t[0] = rt_token_bos(g);
        n = rt_tokenize(g, from->text, from->n, false, p->t + bos, cap - bos) + bos;
    }
    if (n == 0 && rt_token_bos(g) >= 0) p->t[n++] = rt_token_bos(g);
    if (n == 0 || n > cap || n > INT32_MAX)
        return http_fail(e, 400, NULL, "prompt", n ? "the prompt could not be tokenized" : "the prompt is empty, and "
                         "the model has no token to begin a text with");
    p->n = (int32_t) n;
    if (!q->echo) return true;
    p->n_text = from->text ? from->n : rt_detokenize(g, p->t, n, NULL, 0);
    p->text = malloc(p->n_text + 1);
    if (!p->text) return http_fail(e, 500, NULL, NULL, "out of memory");
    if (from->text) memcpy(p->text, from->text, from->n);
    else rt_detokenize(g, p->t, n, p->text, p->n_text + 1);
    return true;
}

static bool prompts(Job *j, HttpError *e)
{
    const Request *q = j->q;
    j->n_prompt = q->n_prompt > 0 ? (int32_t) q->n_prompt : 1;
    j->prompt = calloc((size_t) j->n_prompt, sizeof *j->prompt);
    if (!j->prompt) return http_fail(e, 500, NULL, NULL, "out of memory");
    for (int32_t i = 0; i < j->n_prompt; i++) {
        JobPrompt *p = &j->prompt[i];
        if (!(q->infill.is ? infill_prompt(p, j->server, q, e)
              : request_talks(q) ? conversation_prompt(p, j->server, q, true, e)
                                 : raw_prompt(p, j->server, q, &q->prompt[i], e)))
            return false;
    }
    return fits(j, e);
}

static bool biases(Job *j, HttpError *e)
{
    const Request *q = j->q;
    rt_engine *g = j->server->p.engine;
    enum { MOST = sizeof j->bias / sizeof *j->bias };
    for (size_t i = 0; i < q->n_bias; i++) {
        const RequestBias *b = &q->bias[i];
        int32_t ids[MOST + 1];
        size_t n = b->text ? rt_tokenize(g, b->text, b->n, false, ids, MOST + 1) : 1;
        if (!b->text) ids[0] = b->id;
        if (n + (size_t) j->n_bias > MOST)
            return http_fail(e, 400, NULL, "logit_bias", "logit_bias names more than %d tokens", MOST);
        for (size_t k = 0; k < n; k++) j->bias[j->n_bias++] = (rt_bias) { ids[k], b->add };
    }
    return true;
}

/* The token that opens a call, if the family has one. */
static int32_t call_opener(const Server *s)
{
    const char *marker = reply_call_mark(s->style);
    return marker ? rt_token_find(s->p.engine, marker, strlen(marker)) : -1;
}

static bool open_reply(RunChoice *c, HttpError *e)
{
    const Job *j = c->job;
    const Request *q = j->q;
    const Server *s = j->server;
    bool raw = !request_talks(q), forced = j->constraint && constraint_prefix(j->constraint);
    ReplyOptions o = {
        .style = raw ? (ReplyStyle) { CALLS_NONE, THINK_NONE } : s->style, .tools = q->tools,
        .calls_off = q->call_choice == CALL_NONE, .one_call = !q->parallel_calls || q->call_choice == CALL_NAMED,
        .bare_off = q->constraint != CONSTRAINT_NONE, .promote = s->style.calls == CALLS_QWEN35,
        .prompt = raw ? NULL : c->prompt->text, .n_prompt = raw ? 0 : c->prompt->n_text,
        .think_max = q->think_budget < 0 ? -1 : q->think_budget > INT32_MAX ? INT32_MAX : (int32_t) q->think_budget,
        .think_message = s->o.reasoning_message, .stop = q->stop, .n_stop = q->n_stop, .stop_in_reasoning = true,
        .think_inline = q->think_inline, .token = chat_token, .ud = s->p.engine };
    Error err = { 0 };
    if (!raw && s->style.calls == CALLS_NONE && forced) o.style.calls = CALLS_JSON;
    if (reply_open(&c->reply, &o, &err) == ST_OK) return true;
    return http_fail(e, err.code == ST_MEMORY ? 500 : 400, NULL, "tools", "%s", err.text);
}

static bool choices(Job *j, HttpError *e)
{
    const Request *q = j->q;
    const Server *s = j->server;
    uint64_t seed = q->sampling.seed;
    if (!q->has_seed) server_random(NULL, &seed, sizeof seed);
    if (!q->has_seed) seed >>= 1;                  /* so that it survives as a JSON number */
    j->n_choice = j->n_prompt * q->n;
    j->choice = calloc((size_t) j->n_choice, sizeof *j->choice);
    if (!j->choice) return http_fail(e, 500, NULL, NULL, "out of memory");
    for (int32_t i = 0; i < j->n_choice; i++) {
        RunChoice *c = &j->choice[i];
        *c = (RunChoice) { .job = j, .prompt = &j->prompt[i / q->n], .index = i, .slot = -1, .indent = -1,
                           .seed = seed + (uint64_t) (i % q->n) };
        int32_t room = s->ctx - c->prompt->n;
        c->to_context = q->max_tokens < 0 || q->max_tokens > room;
        c->limit = c->to_context ? room : (int32_t) q->max_tokens;
        c->shape = j->constraint || j->calls ? SHAPE_WAITS : SHAPE_FREE;
        if (!open_reply(c, e)) return false;
    }
    return true;
}

static bool make_answer(Job *j, HttpError *e)
{
    AnswerOptions o = { .request = j->q, .version = rt_version(),
                        .request_id = exchange_id(j->x), .created = (int64_t) time(NULL), .random = server_random,
                        .handle = j->handle[0] ? j->handle : NULL, .seed = j->choice[0].seed,
                        .show_seed = !j->q->has_seed && j->q->sampling.temperature >= 1e-5f };
    j->answer = answer_new(&o);
    if (!j->answer) return http_fail(e, 500, NULL, NULL, "out of memory");
    for (int32_t i = 0; i < j->n_prompt; i++) j->usage.prompt += j->prompt[i].n;
    return true;
}

/* Reads a hit from disk here, where nobody else has to wait. */
static void fetch(const Job *j)
{
    const Server *s = j->server;
    if (!s->cache || !s->o.cache_dir || !j->q->cached) return;
    for (int32_t i = 0; i < j->n_prompt; i++)
        cache_fetch(s->cache, s->identity, j->prompt[i].t, (size_t) j->prompt[i].n - 1);
}

/* Reads the fields, with access to what the request's owner has stored. */
static bool read_fields(Request **out, const Server *s, const Exchange *x, json_t *body, const RequestHeaders *h,
                        HttpError *e)
{
    StoreView view = { s->store, exchange_owner(x) };
    RequestDefaults d = s->defaults;
    d.lookup = (RequestLookup) { .ud = &view, .response = store_response, .item = store_item };
    return request_read(out, exchange_route(x)->dialect, body, h, &d, e);
}

/* A request that asks for no text: the model is there. */
static bool say_loaded(Job *j, HttpError *e)
{
    size_t n;
    AnswerOptions o = { .request = j->q, .version = rt_version(), .created = (int64_t) time(NULL),
                        .random = server_random };
    j->answer = answer_new(&o);
    if (!j->answer) return http_fail(e, 500, NULL, NULL, "out of memory");
    answer_open(j->answer);
    answer_end(j->answer, 0, &(AnswerEnd) { .reason = FINISH_STOP });
    answer_close(j->answer, o.created);
    const char *bytes = answer_take(j->answer, &n);
    char *body = bytes ? strndup(bytes, n) : NULL;
    exchange_reply(j->x, 200, NULL, body, n);
    return true;
}

static bool read_request(Job *j, json_t *body, HttpError *e)
{
    Server *s = j->server;
    RequestHeaders h = { exchange_header(j->x, "anthropic-beta") };
    if (!read_fields(&j->q, s, j->x, body, &h, e)) return false;
    if (j->q->only_load) return say_loaded(j, e);
    if (j->q->call_choice == CALL_NONE && call_opener(s) >= 0 && !s->defaults.denoises)
        j->bias[j->n_bias++] = (rt_bias) { call_opener(s), -INFINITY };
    if (!biases(j, e) || !prompts(j, e) || !constraint_of(&j->constraint, s->constraints, j->q, e) ||
        !constraint_of_calls(&j->calls, s->constraints, j->q, e))
        return false;
    bool calls = j->q->tools && json_array_size(j->q->tools) > 0 && j->q->call_choice == CALL_AUTO;
    j->call_marker = calls ? call_opener(s) : -1;
    replay_handle(j->handle, j->q);
    return choices(j, e) && make_answer(j, e);
}

void prepare_job(Server *s, Exchange *x)
{
    Job *j = calloc(1, sizeof *j);
    json_t *body = NULL;
    HttpError e = { 0 };
    if (!j) {
        exchange_error(x, 500, NULL, "out of memory");
        queue_leave(s->queue);
        return;
    }
    j->server = s;
    j->x = x;
    j->arrived = seconds_now();
    exchange_keep(x);
    bool good = prepare_json(&body, x);
    if (good && !read_request(j, body, &e)) {
        exchange_refuse(x, &e);
        good = false;
    }
    json_decref(body);
    if (!good || j->q->only_load) {
        job_free(j);
        queue_leave(s->queue);
        return;
    }
    for (int32_t i = 0; i < j->n_prompt; i++) conversation_points(s, j->q, &j->prompt[i]);
    fetch(j);
    if (s->o.request_timeout) j->deadline = j->arrived + s->o.request_timeout;
    j->written = j->counted = j->arrived;
    exchange_note(x);
    queue_put(s->queue, j);
}

/* ---- counting tokens ---- */

static bool count_of(Server *s, Exchange *x, JobPrompt *p, Request **q, bool replay)
{
    json_t *body = NULL;
    HttpError e = { 0 };
    RequestHeaders h = { 0 };
    *p = (JobPrompt) { 0 };
    *q = NULL;
    if (!prepare_json(&body, x)) return false;
    bool good = read_fields(q, s, x, body, &h, &e) && conversation_prompt(p, s, *q, replay, &e);
    json_decref(body);
    if (!good) exchange_refuse(x, &e);
    return good;
}

void prepare_count(Server *s, Exchange *x)
{
    JobPrompt p;
    Request *q;
    if (count_of(s, x, &p, &q, true)) {
        json_t *j = q->dialect == DIALECT_MESSAGES
                        ? json_pack("{s:i}", "input_tokens", (int) p.n)
                        : json_pack("{s:s s:i}", "object", "response.input_tokens", "input_tokens", (int) p.n);
        exchange_json(x, 200, j);
    }
    free(p.t);
    free(p.text);
    request_free(q);
}

void prepare_template(Server *s, Exchange *x)
{
    JobPrompt p;
    Request *q;
    if (count_of(s, x, &p, &q, false)) {
        ReplyOptions o = { .style = s->style, .prompt = p.text, .n_prompt = p.n_text, .think_max = -1,
                           .token = chat_token, .ud = s->p.engine };
        Reply *r = NULL;
        bool thinks = reply_open(&r, &o, NULL) == ST_OK && reply_mode(r) == REPLY_IN_REASON;
        reply_close(r);
        exchange_json(x, 200, json_pack("{s:o s:i s:b}", "prompt", json_text(p.text, p.n_text), "n_tokens", (int) p.n,
                                        "started_in_thinking", thinks));
    }
    free(p.t);
    free(p.text);
    request_free(q);
}
