#include "programs/serve/routes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "programs/serve/run/scheduler.h"
#include "programs/serve/run/job.h"
#include "programs/serve/http/page.h"
#include "programs/serve/run/store.h"
#include "text/tokenizer/utf8.h"

static void reply_text(Exchange *x, int status, const char *text)
{
    char *s = strdup(text);
    exchange_reply(x, status, NULL, s, s ? strlen(s) : 0);
}

/* Returns true, or answers the exchange if the model is loading or the server is shutting down. */
static bool server_ready(Server *s, Exchange *x)
{
    if (s->state == SERVER_READY) return true;
    if (s->state == SERVER_LOADING) exchange_error(x, 503, "loading", "Loading model");
    else exchange_error(x, 503, NULL, "the server is shutting down");
    return false;
}

/* ---- health ---- */

static void health(void *ud, Exchange *x)
{
    Server *s = ud;
    const char *verbose = exchange_query(x, "verbose");
    if (s->state == SERVER_LOADING) {
        exchange_add(x, "Retry-After", "1");
        exchange_failed(x, "Loading model");
        exchange_json(x, 503, json_pack("{s:{s:s s:s s:n s:s} s:f}", "error", "message", "Loading model", "type",
                                     "unavailable_error", "param", "code", "loading", "progress", s->loaded / 1000.0));
        return;
    }
    if (!verbose || strcmp(verbose, "1") != 0) {
        reply_text(x, 200, "{\"status\":\"ok\"}");
        return;
    }
    SchedulerNow now = { 0 };
    if (s->scheduler) scheduler_now(s->scheduler, &now);
    exchange_json(x, 200, json_pack("{s:s s:s s:i s:i s:i s:i}", "status", "ok", "state", s->state == SERVER_READY
                                 ? "ready" : "draining", "waiting", queue_waiting(s->queue), "running", now.running,
                                 "connections", http_connections(s->http), "sessions", s->o.parallel));
}

static void live(void *ud, Exchange *x)
{
    (void) ud;
    reply_text(x, 200, "{\"status\":\"ok\"}");
}

static void ready(void *ud, Exchange *x)
{
    if (server_ready(ud, x)) reply_text(x, 200, "{\"status\":\"ok\"}");
}

static void nothing(void *ud, Exchange *x)         /* Claude Code's event log: accepted and dropped */
{
    (void) ud;
    reply_text(x, 200, "{}");
}

static void not_built(void *ud, Exchange *x)
{
    (void) ud;
    exchange_error(x, 501, NULL, "'%s' is not supported", exchange_path(x));
}

/* ---- the model ---- */

static void models(void *ud, Exchange *x)
{
    if (server_ready(ud, x)) exchange_json(x, 200, models_list(ud));
}

static void model(void *ud, Exchange *x)
{
    if (!server_ready(ud, x)) return;
    json_t *j = models_one(ud, exchange_tail(x));
    if (j) exchange_json(x, 200, j);
    else exchange_error(x, 404, "model_not_found", "unknown model '%.200s'", exchange_tail(x));
}

static void props(void *ud, Exchange *x)
{
    if (server_ready(ud, x)) exchange_json(x, 200, models_props(ud));
}

static void tags(void *ud, Exchange *x)
{
    if (server_ready(ud, x)) exchange_json(x, 200, ollama_tags(ud));
}

static void running(void *ud, Exchange *x)
{
    if (server_ready(ud, x)) exchange_json(x, 200, ollama_running(ud));
}

static void version(void *ud, Exchange *x)
{
    (void) ud;
    exchange_json(x, 200, json_pack("{s:s}", "version", rt_version()));
}

static void show_now(Server *s, Exchange *x)
{
    json_t *body = NULL;
    if (!prepare_json(&body, x)) return;
    const char *given = json_string_value(json_object_get(body, "model"));
    if (!given) given = json_string_value(json_object_get(body, "name"));
    json_t *j = given ? ollama_show(s, given) : NULL;
    if (j) exchange_json(x, 200, j);
    else if (given) exchange_error(x, 404, "model_not_found", "model '%.200s' not found", given);
    else exchange_error(x, 400, NULL, "model: expected the name of a model");
    json_decref(body);
}

static void metrics(void *ud, Exchange *x)
{
    Server *s = ud;
    if (!server_ready(s, x)) return;
    SchedulerNow e;
    size_t n;
    scheduler_now(s->scheduler, &e);
    MetricsNow now = { queue_waiting(s->queue), e.running, http_connections(s->http), s->ctx, e.used, s->o.parallel,
                       { 0 } };
    rt_expert_stats_get(s->p.engine, &now.experts, sizeof now.experts);
    char *text = metrics_text(s->metrics, &now, s->cache, &n);
    exchange_reply(x, 200, "text/plain; version=0.0.4; charset=utf-8", text, n);
}

/* As llama.cpp's server reports it, plus figures of speculation. */
static void slots(void *ud, Exchange *x)
{
    Server *s = ud;
    if (!server_ready(s, x)) return;
    SchedulerSlot *slot = calloc(SCHEDULER_SLOTS_MAX, sizeof *slot);
    json_t *list = slot ? json_array() : NULL;
    int32_t n = slot ? scheduler_slots(s->scheduler, slot) : 0;
    for (int32_t i = 0; i < n; i++) {
        const SchedulerSlot *r = &slot[i];
        json_t *one = json_pack("{s:i s:i s:b s:s s:i}", "id", (int) i, "n_ctx", (int) s->ctx, "is_processing", r->busy,
                                "state", !r->busy ? "idle" : r->reads ? "prefill" : "decode", "n_tokens",
                                (int) r->held);
        bool mine = r->owner == exchange_owner(x);
        if (r->busy)
            json_object_update_new(one,
                                   json_pack("{s:s? s:s? s:i s:i s:f s:{s:i s:b} s:{s:i s:i s:b}}", "request",
                                             mine ? r->id : NULL, "model", mine ? r->model : NULL,
                                             "n_prompt_tokens", (int) r->prompt,
                                             "n_prompt_tokens_processed", (int) r->read, "accept_length",
                                             r->accept_length, "params", "n_predict", (int) (r->generated + r->left),
                                             "stream", r->stream, "next_token", "n_decoded", (int) r->generated,
                                             "n_remain", (int) r->left, "has_next_token", r->left > 0));
        json_array_append_new(list, one);
    }
    free(slot);
    exchange_json(x, list ? 200 : 500, list);
}

/* ---- tokens ---- */

static bool flag(const json_t *body, const char *name, bool otherwise)
{
    const json_t *v = json_object_get(body, name);
    return v ? json_is_true(v) : otherwise;
}

/* Writes a string, or a list of bytes if they are not whole characters. Returns false when memory runs out. */
static bool write_piece(FILE *f, const rt_engine *g, int32_t id)
{
    size_t n;
    const char *s = rt_token_bytes(g, id, &n);
    fprintf(f, "{\"id\":%d,\"piece\":", id);
    if (utf8_valid(s, n) == n) {
        json_t *text = json_stringn(s, n);
        bool good = text && json_dumpf(text, f, JSON_ENCODE_ANY) == 0;
        json_decref(text);
        fputc('}', f);
        return good;
    }
    for (size_t i = 0; i < n; i++) fprintf(f, "%c%d", i ? ',' : '[', (unsigned char) s[i]);
    fputs("]}", f);
    return true;
}

/* Written directly: as JSON values the list would take ten times the memory. */
static void reply_tokens(Exchange *x, const rt_engine *g, const int32_t *ids, size_t n, bool pieces)
{
    char *text = NULL;
    size_t len = 0;
    FILE *f = ids ? open_memstream(&text, &len) : NULL;
    bool good = f != NULL;
    if (f) fputs("{\"tokens\":[", f);
    for (size_t i = 0; good && i < n; i++) {
        if (i) fputc(',', f);
        if (pieces) good = write_piece(f, g, ids[i]);
        else fprintf(f, "%d", ids[i]);
    }
    if (f) fprintf(f, "],\"count\":%zu}", n);
    good &= f && !ferror(f);
    good &= f && fclose(f) == 0;
    if (good) {
        exchange_reply(x, 200, NULL, text, len);
        return;
    }
    free(text);
    exchange_error(x, 500, NULL, "out of memory");
}

/* Sixteen bytes per token of the context, several times what fits into it; at least 256 KiB. */
static size_t text_max(const Server *s) { return 16 * (size_t) s->ctx > 256 << 10 ? 16 * (size_t) s->ctx : 256 << 10; }

static void tokenize_now(Server *s, Exchange *x)
{
    static const char *const names[] = { "content", "prompt", "text" };
    rt_engine *g = s->p.engine;
    json_t *body = NULL, *text = NULL;
    if (!prepare_json(&body, x)) return;
    for (int i = 0; i < 3 && !text; i++) text = json_object_get(body, names[i]);
    if (!json_is_string(text)) {
        exchange_error(x, 400, NULL, "content: expected a text");
        json_decref(body);
        return;
    }
    if (json_string_length(text) > text_max(s)) {
        exchange_error(x, 413, NULL, "content has %zu bytes, at most %zu are taken: 16 for each token of the context",
                       json_string_length(text), text_max(s));
        json_decref(body);
        return;
    }
    const char *in = json_string_value(text);
    size_t n = json_string_length(text), cap = n + 2, count = 0;
    bool special = flag(body, "parse_special", true), pieces = flag(body, "with_pieces", false),
         bos = flag(body, "add_special", false) && rt_adds_bos(g);
    int32_t *ids = malloc(cap * sizeof *ids);
    if (ids) count = rt_tokenize(g, in, n, special, ids + 1, cap - 1);
    /* With special tokens the library adds BOS itself if the file asks for it. */
    size_t from = 1;
    if (count > 0 && !bos && special && rt_adds_bos(g) && ids[1] == rt_token_bos(g)) {
        from++;
        count--;
    } else if (ids && bos && !special && rt_token_bos(g) >= 0) {
        ids[--from] = rt_token_bos(g);
        count++;
    }
    json_decref(body);
    reply_tokens(x, g, ids ? ids + from : NULL, count, pieces);
    free(ids);
}

static void detokenize_now(Server *s, Exchange *x)
{
    json_t *body = NULL, *list, *v;
    size_t i, n;
    if (!prepare_json(&body, x)) return;
    list = json_object_get(body, "tokens");
    n = json_array_size(list);
    if (n > text_max(s)) {
        exchange_error(x, 413, NULL, "tokens has %zu numbers, at most %zu are taken: 16 for each token of the context",
                       n, text_max(s));
        json_decref(body);
        return;
    }
    int32_t *ids = json_is_array(list) ? malloc((n + 1) * sizeof *ids) : NULL;
    bool good = ids != NULL;
    json_array_foreach(list, i, v) {
        if (!good || !json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) >= s->vocab) {
            good = false;
            break;
        }
        ids[i] = (int32_t) json_integer_value(v);
    }
    if (good) {
        size_t bytes = rt_detokenize(s->p.engine, ids, n, NULL, 0);
        char *text = malloc(bytes + 1);
        if (text) rt_detokenize(s->p.engine, ids, n, text, bytes + 1);
        exchange_json(x, 200, text ? json_pack("{s:o}", "content", json_text(text, bytes)) : NULL);
        free(text);
    } else {
        exchange_error(x, 400, NULL, "tokens: expected a list of numbers from 0 to %d", s->vocab - 1);
    }
    free(ids);
    json_decref(body);
}

static void on_worker(Server *s, Exchange *x, void (*run)(Server *, Exchange *))
{
    if (server_ready(s, x) && !queue_task(s->queue, run, s, x)) exchange_error(x, 500, NULL, "out of memory");
}

static void on_the_side(Server *s, Exchange *x, void (*run)(Server *, Exchange *))
{
    if (!server_ready(s, x)) return;
    SideTask taken = queue_side(s->queue, run, s, x);
    if (taken == SIDE_NO_MEMORY) exchange_error(x, 500, NULL, "out of memory");
    if (taken != SIDE_FULL) return;
    exchange_add(x, "Retry-After", "1");
    exchange_error(x, 429, "server_busy", "%d requests of this kind are waiting already (--queue-size)",
                   s->o.queue_size);
}

static void tokenize(void *ud, Exchange *x) { on_the_side(ud, x, tokenize_now); }
static void detokenize(void *ud, Exchange *x) { on_the_side(ud, x, detokenize_now); }
static void count(void *ud, Exchange *x) { on_the_side(ud, x, prepare_count); }
static void show(void *ud, Exchange *x) { on_the_side(ud, x, show_now); }
static void apply_template(void *ud, Exchange *x) { on_the_side(ud, x, prepare_template); }

/* ---- text ---- */

static void generate(void *ud, Exchange *x)
{
    Server *s = ud;
    if (!server_ready(s, x)) return;
    if (!queue_enter(s->queue)) {
        char after[16];
        double wait = metrics_seconds_per_request(s->metrics) * s->o.queue_size / s->o.parallel;
        snprintf(after, sizeof after, "%d", wait < 1 ? 1 : wait > 60 ? 60 : (int) wait);
        exchange_add(x, "Retry-After", after);
        exchange_error(x, 429, "server_busy", "%d requests are waiting already (--queue-size); try again in %s seconds",
                       s->o.queue_size, after);
        return;
    }
    if (queue_task(s->queue, prepare_job, s, x)) return;
    queue_leave(s->queue);
    exchange_error(x, 500, NULL, "out of memory");
}

static void cancel_id(Server *s, Exchange *x, const char *id)
{
    bool found = queue_cancel(s->queue, exchange_owner(x), id, CANCEL_ASKED);
    if (found) exchange_json(x, 200, json_pack("{s:s s:b}", "id", id, "cancelled", 1));
    else exchange_error(x, 404, NULL, "no request '%.100s' is waiting or running", id);
}

static void cancel_now(Server *s, Exchange *x)
{
    json_t *body = NULL;
    if (!prepare_json(&body, x)) return;
    const char *id = json_string_value(json_object_get(body, "id"));
    if (id) cancel_id(s, x, id);
    else exchange_error(x, 400, NULL, "id: expected the id of a response or a request");
    json_decref(body);
}

static void cancel(void *ud, Exchange *x) { on_worker(ud, x, cancel_now); }

/* GET, DELETE /v1/responses/ID; POST /v1/responses/ID/cancel */
static void response(void *ud, Exchange *x)
{
    Server *s = ud;
    char id[80];
    const char *tail = exchange_tail(x), *slash = strchr(tail, '/');
    size_t n;
    if (!server_ready(s, x)) return;
    snprintf(id, sizeof id, "%.*s", slash ? (int) (slash - tail < 79 ? slash - tail : 79) : 79, tail);
    if (exchange_method(x) == METHOD_POST) {
        if (slash && strcmp(slash, "/cancel") == 0) cancel_id(s, x, id);
        else exchange_error(x, 404, NULL, "unknown endpoint '%.200s'", exchange_path(x));
        return;
    }
    const char *stream = exchange_query(x, "stream");
    if (exchange_method(x) == METHOD_GET && stream && strcmp(stream, "false") != 0) {
        exchange_error(x, 400, NULL, "stream is '%.20s', expected false: a stored response comes as JSON", stream);
        return;
    }
    char *text = slash ? NULL : store_text(s->store, exchange_owner(x), id, &n);
    if (!text) {
        exchange_error(x, 404, NULL, "there is no response '%.80s'", tail);
    } else if (exchange_method(x) == METHOD_GET) {
        exchange_reply(x, 200, NULL, text, n);
    } else {
        free(text);
        store_remove(s->store, exchange_owner(x), id);
        exchange_json(x, 200, json_pack("{s:s s:s s:b}", "id", id, "object", "response", "deleted", 1));
    }
}

/* ---- the cache ---- */

static void cache(void *ud, Exchange *x)
{
    Server *s = ud;
    CacheStats c = { 0 };
    if (!server_ready(s, x)) return;
    if (s->cache) cache_stats(s->cache, &c);
    exchange_json(x,
               200, json_pack("{s:I s:I s:I s:I s:I s:I s:I s:I s:I}", "ram_bytes", (json_int_t) c.ram_bytes,
                              "ram_limit", (json_int_t) c.ram_limit, "ram_records", (json_int_t) c.ram_records,
                              "disk_bytes", (json_int_t) c.disk_bytes, "disk_records", (json_int_t) c.disk_records,
                              "hits_ram", (json_int_t) c.hits_ram, "hits_disk", (json_int_t) c.hits_disk, "hit_tokens",
                              (json_int_t) c.hit_tokens, "response_bytes", (json_int_t) store_bytes(s->store)));
}

/* ---- the table ---- */

#define CHAT DIALECT_CHAT
static const Route routes[] = {
    { "/", METHOD_GET, ROUTE_OPEN, CHAT, page_answer },
    { "/health", METHOD_GET, ROUTE_OPEN, CHAT, health },
    { "/health/live", METHOD_GET, ROUTE_OPEN, CHAT, live },
    { "/health/ready", METHOD_GET, ROUTE_OPEN, CHAT, ready },
    { "/v1/models", METHOD_GET, 0, CHAT, models },
    { "/v1/models/*", METHOD_GET, 0, CHAT, model },
    { "/props", METHOD_GET, 0, CHAT, props },
    { "/metrics", METHOD_GET, ROUTE_METRICS, CHAT, metrics },
    { "/slots", METHOD_GET, 0, CHAT, slots },
    { "/cache", METHOD_GET, 0, CHAT, cache },
    { "/tokenize", METHOD_POST, 0, CHAT, tokenize },
    { "/detokenize", METHOD_POST, 0, CHAT, detokenize },
    { "/apply-template", METHOD_POST, 0, CHAT, apply_template },
    { "/v1/completions", METHOD_POST, ROUTE_TEXT, DIALECT_COMPLETIONS, generate },
    { "/v1/chat/completions", METHOD_POST, ROUTE_TEXT, CHAT, generate },
    { "/v1/chat/completions/input_tokens", METHOD_POST, 0, CHAT, count },
    { "/v1/responses", METHOD_POST, ROUTE_TEXT, DIALECT_RESPONSES, generate },
    { "/v1/responses/input_tokens", METHOD_POST, 0, DIALECT_RESPONSES, count },
    { "/v1/responses/*", METHOD_GET | METHOD_DELETE | METHOD_POST, 0, DIALECT_RESPONSES, response },
    { "/v1/messages", METHOD_POST, ROUTE_TEXT, DIALECT_MESSAGES, generate },
    { "/v1/messages/count_tokens", METHOD_POST, 0, DIALECT_MESSAGES, count },
    { "/completion", METHOD_POST, ROUTE_TEXT, DIALECT_LLAMA, generate },
    { "/infill", METHOD_POST, ROUTE_TEXT, DIALECT_INFILL, generate },
    { "/api/chat", METHOD_POST, ROUTE_TEXT, DIALECT_OLLAMA_CHAT, generate },
    { "/api/generate", METHOD_POST, ROUTE_TEXT, DIALECT_OLLAMA_GENERATE, generate },
    { "/api/tags", METHOD_GET, 0, DIALECT_OLLAMA_CHAT, tags },
    { "/api/ps", METHOD_GET, 0, DIALECT_OLLAMA_CHAT, running },
    { "/api/show", METHOD_POST, 0, DIALECT_OLLAMA_CHAT, show },
    { "/api/version", METHOD_GET, 0, DIALECT_OLLAMA_CHAT, version },
    { "/v1/cancel", METHOD_POST, 0, CHAT, cancel },
    { "/api/event_logging/batch", METHOD_POST, 0, DIALECT_MESSAGES, nothing },
    { "/v1/embeddings", METHOD_POST, ROUTE_REFUSED, CHAT, not_built },
    { "/v1/audio/*", METHOD_POST, ROUTE_REFUSED, CHAT, not_built },
    { "/v1/images/*", METHOD_POST, ROUTE_REFUSED, CHAT, not_built },
    { "/api/embed", METHOD_POST, ROUTE_REFUSED, DIALECT_OLLAMA_CHAT, not_built },
    { "/api/embeddings", METHOD_POST, ROUTE_REFUSED, DIALECT_OLLAMA_CHAT, not_built },
    { "/api/pull", METHOD_POST, ROUTE_REFUSED, DIALECT_OLLAMA_CHAT, not_built },
    { "/api/push", METHOD_POST, ROUTE_REFUSED, DIALECT_OLLAMA_CHAT, not_built },
    { "/api/create", METHOD_POST, ROUTE_REFUSED, DIALECT_OLLAMA_CHAT, not_built },
    { "/api/copy", METHOD_POST, ROUTE_REFUSED, DIALECT_OLLAMA_CHAT, not_built },
    { "/api/delete", METHOD_DELETE, ROUTE_REFUSED, DIALECT_OLLAMA_CHAT, not_built },
};

const Route *routes_table(int32_t *n)
{
    *n = sizeof routes / sizeof *routes;
    return routes;
}
