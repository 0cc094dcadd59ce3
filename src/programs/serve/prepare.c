/* prepare.c - from a request's bytes to a job that the engine thread can run: JSON, fields, template, tokens, forms, places. All that can be
 * wrong with a request is found here, before a byte of the answer is sent. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/json.h"
#include "programs/chat.h"
#include "programs/serve/job.h"
#include "programs/serve/replay.h"

static double now(void) { return seconds_now(); }

bool prepare_json(json_t **out, Exchange *x)
{
    Error err = { 0 };
    size_t n;
    const char *s = exchange_body(x, &n);
    Status st = json_read(out, s, n, "the body", &err);
    exchange_body_free(x);
    if (st == ST_OK) return true;
    exchange_error(x, st == ST_MEMORY ? 500 : 400, NULL, "%s", err.text);
    return false;
}

/* ---- tokens of a conversation ---- */

static bool template_refused(HttpError *e, const TemplateError *t)
{
    if (t->error.code == ST_MEMORY) return http_fail(e, 500, NULL, NULL, "%s", t->error.text);
    return http_fail(e, 400, NULL, "messages", "the model's chat template cannot show this conversation: %s", t->error.text);
}

static bool render(TemplateText *out, const Server *s, const Request *q, const json_t *messages, bool generation, HttpError *e)
{
    TemplateError err;
    struct tm t = { 0 };
    time_t clock = s->o.template_now ? (time_t) s->o.template_now : time(NULL);
    localtime_r(&clock, &t);
    ChatRequest r = { .messages = messages, .tools = q->tools, .kwargs = q->kwargs, .generation = generation, .now = &t };
    return chat_prompt_render(out, s->chat, &r, &err) == ST_OK || template_refused(e, &err);
}

/* A text that cannot fit whatever its tokens are is not worth finding them. */
static bool too_long(const Server *s, Dialect d, size_t bytes, HttpError *e)
{
    size_t least = s->longest ? bytes / s->longest : 0;
    return least > (size_t) s->ctx && !http_fail_context(e, d, (int64_t) least, s->ctx);
}

static bool tokens_of(int32_t **out, int32_t *n, const Server *s, Dialect d, const TemplateText *t, HttpError *e)
{
    if (too_long(s, d, t->n, e)) return false;
    rt_span *span = malloc((t->n_client + 1) * sizeof *span);
    int32_t *ids = NULL;
    size_t cap = t->n / 2 + 64, count = 0;
    for (size_t i = 0; span && i < t->n_client; i++) span[i] = (rt_span) { t->client[i].at, t->client[i].n };
    for (int round = 0; span && round < 2; round++) {
        int32_t *more = realloc(ids, cap * sizeof *ids);
        if (!more) break;
        ids = more;
        count = rt_tokenize_prompt(s->p.engine, t->text, t->n, span, t->n_client, ids, cap);
        if (count <= cap) break;
        cap = count;
    }
    free(span);
    if (!ids || count > cap || count > INT32_MAX) {
        free(ids);
        return http_fail(e, 500, NULL, NULL, "out of memory for the prompt's tokens");
    }
    if (count == 0) {
        free(ids);
        return http_fail(e, 400, NULL, "messages", "the prompt is empty");
    }
    *out = ids;
    *n = (int32_t) count;
    return true;
}

/* The text of the last message, which the answer goes on with. */
static bool append_last(TemplateText *t, const json_t *messages, HttpError *e)
{
    const json_t *content = json_object_get(json_array_get(messages, json_array_size(messages) - 1), "content");
    const char *s = json_is_string(content) ? json_string_value(content) : "";
    size_t n = strlen(s);
    char *text = realloc(t->text, t->n + n + 1);
    if (text) t->text = text;
    TextSpan *span = realloc(t->client, (t->n_client + 1) * sizeof *span);
    if (span) t->client = span;
    if (!text || !span) return http_fail(e, 500, NULL, NULL, "out of memory");
    if (n > 0) t->client[t->n_client++] = (TextSpan) { t->n, n };
    memcpy(t->text + t->n, s, n + 1);
    t->n += n;
    return true;
}

/* Text and tokens of a conversation, answers that are remembered among them. */
static bool rendered(TemplateText *text, int32_t **t, int32_t *n, Server *s, const Request *q, const json_t *messages, bool generation, HttpError *e)
{
    ReplayPlan *p = replay_plan(s, q, messages);
    if (p) {
        HttpError ignored = { 0 };
        bool good = render(text, s, q, replay_messages(p), generation, &ignored) && !too_long(s, q->dialect, text->n, &ignored) && replay_tokens(t, n, s, p, text, q->cached);
        replay_plan_free(p);
        if (good) return true;
        template_text_free(text);
        *text = (TemplateText) { 0 };
    }
    if (!render(text, s, q, messages, generation, e) || too_long(s, q->dialect, text->n, e)) return false;
    return replay_tokens(t, n, s, NULL, text, q->cached) || tokens_of(t, n, s, q->dialect, text, e);
}

/* replay false: as the template has it, for those who want to see that. */
static bool chat_prompt(JobPrompt *p, Server *s, const Request *q, bool replay, HttpError *e)
{
    if (!s->chat) return http_fail(e, 400, NULL, NULL, "%s", s->chat_trouble);
    TemplateText t = { 0 };
    bool good;
    if (q->continue_final) {
        json_t *earlier = json_copy(q->messages);
        if (!earlier) return http_fail(e, 500, NULL, NULL, "out of memory");
        json_array_remove(earlier, json_array_size(earlier) - 1);
        good = render(&t, s, q, earlier, true, e) && append_last(&t, q->messages, e) && tokens_of(&p->t, &p->n, s, q->dialect, &t, e);
        json_decref(earlier);
    } else if (replay) {
        good = rendered(&t, &p->t, &p->n, s, q, q->messages, true, e);
    } else {
        good = render(&t, s, q, q->messages, true, e) && tokens_of(&p->t, &p->n, s, q->dialect, &t, e);
    }
    if (good) replay_key(p->key, &t);
    p->text = t.text;
    p->n_text = t.n;
    t.text = NULL;
    template_text_free(&t);
    return good;
}

/* ---- where it is to be remembered ---- */

static json_t *stranger(const json_t *messages)
{
    json_t *out = json_array();
    size_t i;
    json_t *m;
    json_array_foreach(messages, i, m) {
        const char *role = json_string_value(json_object_get(m, "role"));
        if (role && (strcmp(role, "system") == 0 || strcmp(role, "developer") == 0)) {
            json_array_append(out, m);
            continue;
        }
        json_array_append_new(out, json_pack("{s:s s:s}", "role", "user", "content", "\xc2\xa7"));
        break;
    }
    return out;
}

/* The conversation a turn further on. */
static json_t *next_turn(const json_t *messages)
{
    json_t *out = json_copy((json_t *) (uintptr_t) messages);
    json_array_append_new(out, json_pack("{s:s s:s}", "role", "assistant", "content", "\xc2\xa7"));
    json_array_append_new(out, json_pack("{s:s s:s}", "role", "user", "content", "\xc2\xa7"));
    return out;
}

static bool is_users(const json_t *messages)
{
    const char *role = json_string_value(json_object_get(json_array_get(messages, json_array_size(messages) - 1), "role"));
    return role && strcmp(role, "user") == 0;
}

/* Tokens that the prompt has in common with another rendering of a part of it. opening, if not NULL: where their texts part. */
static int32_t common(Server *s, const Request *q, const JobPrompt *p, const json_t *messages, bool generation, size_t *opening)
{
    HttpError ignored = { 0 };
    TemplateText t = { 0 };
    int32_t *ids = NULL, n = 0, same = 0;
    if (messages && rendered(&t, &ids, &n, s, q, messages, generation, &ignored)) {
        same = places_common(p->t, (size_t) p->n, ids, (size_t) n);
        size_t at = 0;
        while (opening && at < t.n && at < p->n_text && t.text[at] == p->text[at]) at++;
        if (opening) *opening = at;
    }
    free(ids);
    template_text_free(&t);
    return same;
}

/* The rendering without the beginning of the answer tells where it begins: for the places, and for the replay of this answer. */
static void find_places(Server *s, const Request *q, JobPrompt *p)
{
    PlacesIn in = { .n_prompt = p->n, .interval = s->o.cache_interval, .least = s->o.cache_min_tokens };
    bool whole = q->dialect != DIALECT_COMPLETIONS && !q->continue_final, remembered = q->cached && p->n >= in.least;
    p->opening = p->n_text;
    if (whole && (remembered || q->tools || q->dialect != DIALECT_CHAT)) in.history = common(s, q, p, q->messages, false, &p->opening);
    if (!remembered) return;
    if (whole) {
        json_t *other = stranger(q->messages);
        in.shared = common(s, q, p, other, true, NULL);
        json_decref(other);
        /* What templates drop of a turn, its reasoning, they drop with the next word of the user. */
        json_t *next = is_users(q->messages) ? NULL : next_turn(q->messages);
        in.kept = common(s, q, p, next, true, NULL);
        json_decref(next);
    }
    p->n_place = places_of(p->place, &in);
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
    form_release(j->form);
    form_release(j->calls);
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

/* Prompts of Completions: text as it is, with BOS where the model wants it, or ids, whose range request_read has checked. */
static bool raw_prompt(JobPrompt *p, const Server *s, const Request *q, const RequestPrompt *from, HttpError *e)
{
    rt_engine *g = s->p.engine;
    bool bos = from->text && rt_adds_bos(g) && rt_token_bos(g) >= 0;
    size_t cap = (from->text ? from->n : from->n_ids) + 2, n = 0;
    if (from->text && too_long(s, q->dialect, from->n, e)) return false;
    p->t = malloc(cap * sizeof *p->t);
    if (!p->t) return http_fail(e, 500, NULL, NULL, "out of memory for the prompt's tokens");
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
    if (n == 0 || n > cap || n > INT32_MAX) return http_fail(e, 400, NULL, "prompt", n ? "the prompt could not be tokenized" : "the prompt is empty, and the model has no token to begin a text with");
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
    j->n_prompt = q->dialect == DIALECT_COMPLETIONS ? (int32_t) q->n_prompt : 1;
    j->prompt = calloc((size_t) j->n_prompt, sizeof *j->prompt);
    if (!j->prompt) return http_fail(e, 500, NULL, NULL, "out of memory");
    for (int32_t i = 0; i < j->n_prompt; i++) {
        JobPrompt *p = &j->prompt[i];
        if (q->dialect == DIALECT_COMPLETIONS ? !raw_prompt(p, j->server, q, &q->prompt[i], e) : !chat_prompt(p, j->server, q, true, e)) return false;
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
        if (n + (size_t) j->n_bias > MOST) return http_fail(e, 400, NULL, "logit_bias", "logit_bias names more than %d tokens", MOST);
        for (size_t k = 0; k < n; k++) j->bias[j->n_bias++] = (rt_bias) { ids[k], b->add };
    }
    return true;
}

/* The token that opens a call, where the family has one. */
static int32_t call_opener(const Server *s)
{
    static const char *const text[] = { [CALLS_QWEN3] = "<tool_call>", [CALLS_QWEN35] = "<tool_call>", [CALLS_LAGUNA] = "<tool_call>", [CALLS_GEMMA4] = "<|tool_call>",
                                        [CALLS_JSON] = NULL };
    const char *marker = text[s->style.calls];
    return marker ? rt_token_find(s->p.engine, marker, strlen(marker)) : -1;
}

static bool open_reply(Choice *c, HttpError *e)
{
    const Job *j = c->job;
    const Request *q = j->q;
    const Server *s = j->server;
    bool raw = q->dialect == DIALECT_COMPLETIONS, forced = j->form && form_open(j->form);
    ReplyOptions o = { .style = raw ? (ReplyStyle) { CALLS_NONE, THINK_NONE } : s->style, .tools = q->tools, .calls_off = q->call_choice == CALL_NONE,
                       .one_call = !q->parallel_calls || q->call_choice == CALL_NAMED, .bare_off = q->constraint != CONSTRAINT_NONE, .promote = s->style.calls == CALLS_QWEN35,
                       .prompt = raw ? NULL : c->prompt->text, .n_prompt = raw ? 0 : c->prompt->n_text,
                       .think_max = q->think_budget < 0 ? -1 : q->think_budget > INT32_MAX ? INT32_MAX : (int32_t) q->think_budget, .think_message = s->o.reasoning_message,
                       .stop = q->stop, .n_stop = q->n_stop, .stop_in_reasoning = true, .think_inline = q->think_inline, .token = chat_token, .ud = s->p.engine };
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
    if (!q->has_seed) seed >>= 1;                  /* as a JSON number it comes back */
    j->n_choice = j->n_prompt * q->n;
    j->choice = calloc((size_t) j->n_choice, sizeof *j->choice);
    if (!j->choice) return http_fail(e, 500, NULL, NULL, "out of memory");
    for (int32_t i = 0; i < j->n_choice; i++) {
        Choice *c = &j->choice[i];
        *c = (Choice) { .job = j, .prompt = &j->prompt[i / q->n], .index = i, .slot = -1, .seed = seed + (uint64_t) (i % q->n) };
        int32_t room = s->ctx - c->prompt->n;
        c->to_context = q->max_tokens < 0 || q->max_tokens > room;
        c->limit = c->to_context ? room : (int32_t) q->max_tokens;
        c->shape = j->form || j->calls ? SHAPE_WAITS : SHAPE_FREE;
        if (!open_reply(c, e)) return false;
    }
    return true;
}

static bool make_answer(Job *j, HttpError *e)
{
    AnswerOptions o = { .request = j->q, .version = rt_version(), .request_id = exchange_id(j->x), .created = (int64_t) time(NULL), .random = server_random,
                        .handle = j->handle[0] ? j->handle : NULL, .seed = j->choice[0].seed, .show_seed = !j->q->has_seed && j->q->sampling.temperature >= 1e-5f };
    j->answer = answer_new(&o);
    if (!j->answer) return http_fail(e, 500, NULL, NULL, "out of memory");
    for (int32_t i = 0; i < j->n_prompt; i++) j->usage.prompt += j->prompt[i].n;
    return true;
}

/* A hit on disk is read here, where nobody else waits for it. */
static void fetch(const Job *j)
{
    const Server *s = j->server;
    if (!s->cache || !s->o.cache_dir || !j->q->cached) return;
    for (int32_t i = 0; i < j->n_prompt; i++)
        cache_fetch(s->cache, s->identity, j->prompt[i].t, (size_t) j->prompt[i].n - 1);
}

static bool read_request(Job *j, json_t *body, HttpError *e)
{
    Server *s = j->server;
    RequestHeaders h = { exchange_header(j->x, "anthropic-beta") };
    if (!request_read(&j->q, exchange_route(j->x)->dialect, body, &h, &s->defaults, e)) return false;
    if (j->q->call_choice == CALL_NONE && call_opener(s) >= 0) j->bias[j->n_bias++] = (rt_bias) { call_opener(s), -INFINITY };
    if (!biases(j, e) || !prompts(j, e) || !form_of(&j->form, s->forms, j->q, e) || !form_of_calls(&j->calls, s->forms, j->q, e)) return false;
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
    j->arrived = now();
    exchange_keep(x);
    bool good = prepare_json(&body, x);
    if (good && !read_request(j, body, &e)) {
        exchange_refuse(x, &e);
        good = false;
    }
    json_decref(body);
    if (!good) {
        job_free(j);
        queue_leave(s->queue);
        return;
    }
    for (int32_t i = 0; i < j->n_prompt; i++) find_places(s, j->q, &j->prompt[i]);
    fetch(j);
    if (s->o.request_timeout) j->deadline = j->arrived + s->o.request_timeout;
    j->written = j->counted = j->arrived;
    queue_put(s->queue, j);
}

/* ---- counting ---- */

static bool count_of(Server *s, Exchange *x, JobPrompt *p, Request **q, bool replay)
{
    json_t *body = NULL;
    HttpError e = { 0 };
    RequestHeaders h = { 0 };
    *p = (JobPrompt) { 0 };
    *q = NULL;
    if (!prepare_json(&body, x)) return false;
    bool good = request_read(q, exchange_route(x)->dialect, body, &h, &s->defaults, &e) && chat_prompt(p, s, *q, replay, &e);
    json_decref(body);
    if (!good) exchange_refuse(x, &e);
    return good;
}

static void reply_json(Exchange *x, json_t *j)
{
    char *text = j ? json_dumps(j, JSON_COMPACT) : NULL;
    json_decref(j);
    exchange_reply(x, 200, NULL, text, text ? strlen(text) : 0);
}

void prepare_count(Server *s, Exchange *x)
{
    JobPrompt p;
    Request *q;
    if (count_of(s, x, &p, &q, true)) {
        if (q->dialect == DIALECT_MESSAGES) reply_json(x, json_pack("{s:i}", "input_tokens", (int) p.n));
        else reply_json(x, json_pack("{s:s s:i}", "object", "response.input_tokens", "input_tokens", (int) p.n));
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
        ReplyOptions o = { .style = s->style, .prompt = p.text, .n_prompt = p.n_text, .think_max = -1, .token = chat_token, .ud = s->p.engine };
        Reply *r = NULL;
        bool thinks = reply_open(&r, &o, NULL) == ST_OK && reply_mode(r) == REPLY_IN_REASON;
        reply_close(r);
        reply_json(x, json_pack("{s:o s:i s:b}", "prompt", json_text(p.text, p.n_text), "n_tokens", (int) p.n, "started_in_thinking", thinks));
    }
    free(p.t);
    free(p.text);
    request_free(q);
}
