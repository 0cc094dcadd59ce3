#include "programs/serve/run/conversation.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "programs/chat/chat.h"
#include "programs/serve/request/request.h"
#include "programs/serve/run/replay.h"
#include "ratoon_chat.h"
#include "text/chat_prompt.h"

/* Stands for a different continuation of a conversation. */
#define SIGN "\xc2\xa7"

static bool template_refused(HttpError *e, const TemplateError *t)
{
    if (t->error.code == ST_MEMORY) return http_fail(e, 500, NULL, NULL, "%s", t->error.text);
    return http_fail(e, 400, NULL, "messages", "the model's chat template cannot show this conversation: %s",
                     t->error.text);
}

static bool render(TemplateText *out, const Server *s, const Request *q, const json_t *messages, bool generation,
                   HttpError *e)
{
    TemplateError err;
    struct tm t = { 0 };
    time_t clock = s->o.template_now.given ? (time_t) s->o.template_now.value : time(NULL);
    localtime_r(&clock, &t);
    ChatRequest r = { .messages = messages, .tools = q->tools, .kwargs = q->kwargs, .generation = generation,
                      .now = &t };
    return chat_prompt_render(out, s->chat, &r, &err) == ST_OK || template_refused(e, &err);
}

bool conversation_too_long(const Server *s, Dialect d, size_t bytes, HttpError *e)
{
    size_t least = s->longest ? bytes / s->longest : 0;
    return least > (size_t) s->ctx && !http_fail_context(e, d, (int64_t) least, s->ctx);
}

static bool tokens_of(int32_t **out, int32_t *n, const Server *s, Dialect d, const TemplateText *t, HttpError *e)
{
    if (conversation_too_long(s, d, t->n, e)) return false;
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

/* Appends the text of the last message, which the answer continues. */
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

/* Text and tokens of a conversation, replaying stored answers. held, if not NULL: whether every answer to the user's
 * last message was found by its name. */
static bool rendered(TemplateText *text, int32_t **t, int32_t *n, Server *s, const Request *q, const json_t *messages,
                     bool generation, bool *held, HttpError *e)
{
    ReplayPlan *p = replay_plan(s, q, messages);
    if (held) *held = p && replay_holds(p, messages);
    if (p) {
        HttpError ignored = { 0 };
        bool good = render(text, s, q, replay_messages(p), generation, &ignored) &&
                    !conversation_too_long(s, q->dialect, text->n, &ignored) &&
                    replay_tokens(t, n, s, p, text, q->cached);
        replay_plan_free(p);
        if (good) return true;
        template_text_free(text);
        if (held) *held = false;
    }
    if (!render(text, s, q, messages, generation, e) || conversation_too_long(s, q->dialect, text->n, e)) return false;
    return replay_tokens(t, n, s, NULL, text, q->cached) || tokens_of(t, n, s, q->dialect, text, e);
}

/* ---- what one rendering shows ---- */

/* Walks along the tokens and their text: token i begins at byte `at`. */
typedef struct { const rt_engine *g; const JobPrompt *p; int32_t i; size_t at; } Walk;

/* A token that the tokenizer adds at the front has no text. */
static Walk walk_begin(const rt_engine *g, const JobPrompt *p)
{
    size_t n;
    const char *bos = rt_token_bos(g) >= 0 ? rt_token_text(g, rt_token_bos(g), &n) : NULL;
    bool own = bos && rt_adds_bos(g) && p->t[0] == rt_token_bos(g) &&
               !(p->n_text >= n && memcmp(p->text, bos, n) == 0);
    return (Walk) { g, p, own, 0 };
}

/* Returns false if the text differs from its tokens' bytes, as after normalisation. */
static bool walk_on(Walk *w)
{
    size_t n;
    const char *s = rt_token_text(w->g, w->p->t[w->i], &n);
    if (n > w->p->n_text - w->at || memcmp(w->p->text + w->at, s, n) != 0) return false;
    w->at += n;
    w->i++;
    return true;
}

static bool is_control(const rt_engine *g, int32_t id)
{
    size_t n;
    rt_token_bytes(g, id, &n);
    return n == 0;
}

/* Number of tokens shared with a conversation that continues differently from byte `at` on (in any script but that of
 * SIGN): those up to the last control token before it, plus those shared with the text from there followed by SIGN. -1:
 * unknown. */
static int32_t tokens_until(const rt_engine *g, const JobPrompt *p, const TemplateText *t, size_t at)
{
    if (p->n_text - at >= strlen(SIGN) && memcmp(p->text + at, SIGN, strlen(SIGN)) == 0) return -1;
    Walk w = walk_begin(g, p), last = w;
    while (w.at <= at && w.i < p->n) {
        if (is_control(g, p->t[w.i])) last = w;
        if (!walk_on(&w)) return -1;
    }
    int32_t first = last.i > 0, n = first, same = 0, *ids = calloc(1, sizeof *ids);
    bool good = ids && chat_append(g, &ids, &n, t, last.at, at, SIGN);
    while (good && first + same < n && last.i + same < p->n && ids[first + same] == p->t[last.i + same]) same++;
    free(ids);
    return good ? last.i + same : -1;
}

/* held: as for rendered(). */
static void tell_points(JobPrompt *p, const Server *s, const TemplateText *t, bool held)
{
    const rt_engine *g = s->p.engine;
    const ChatCaps *caps = chat_prompt_caps(s->chat);
    p->opening = t->asked < t->n ? t->asked : t->n;
    p->history = rt_tokens_before(g, p->t, (size_t) p->n, t->text, t->n, t->asked);
    if (t->parted != SIZE_MAX) p->shared = tokens_until(g, p, t, t->parted);
    p->whole = !caps->shortens || (held && !caps->rewrites);
}

/* ---- prompts ---- */

bool conversation_prompt(JobPrompt *p, Server *s, const Request *q, bool replay, HttpError *e)
{
    if (!s->chat) return http_fail(e, 400, NULL, NULL, "%s", s->chat_trouble);
    TemplateText t = { 0 };
    bool good, held = false;
    if (q->continue_final) {
        json_t *earlier = json_copy(q->messages);
        if (!earlier) return http_fail(e, 500, NULL, NULL, "out of memory");
        json_array_remove(earlier, json_array_size(earlier) - 1);
        good = render(&t, s, q, earlier, true, e) && append_last(&t, q->messages, e) &&
               tokens_of(&p->t, &p->n, s, q->dialect, &t, e);
        json_decref(earlier);
    } else if (replay) {
        good = rendered(&t, &p->t, &p->n, s, q, q->messages, true, &held, e);
    } else {
        good = render(&t, s, q, q->messages, true, e) && tokens_of(&p->t, &p->n, s, q->dialect, &t, e);
    }
    if (good) replay_key(p->key, &t);
    p->text = t.text;
    p->n_text = t.n;
    p->history = p->shared = -1;
    if (good && !q->continue_final && replay) tell_points(p, s, &t, held);
    t.text = NULL;
    template_text_free(&t);
    return good;
}

/* ---- cache points ---- */

static json_t *stranger(const json_t *messages)
{
    json_t *out = json_array();
    size_t i;
    json_t *m;
    json_array_foreach(messages, i, m) {
        if (role_is_system(m)) {
            json_array_append(out, m);
            continue;
        }
        json_array_append_new(out, json_pack("{s:s s:s}", "role", "user", "content", SIGN));
        break;
    }
    return out;
}

/* The conversation one turn later. */
static json_t *next_turn(const json_t *messages)
{
    json_t *out = json_copy((json_t *) (uintptr_t) messages);
    json_array_append_new(out, json_pack("{s:s s:s}", "role", "assistant", "content", SIGN));
    json_array_append_new(out, json_pack("{s:s s:s}", "role", "user", "content", SIGN));
    return out;
}

static bool is_users(const json_t *messages)
{
    return role_is(json_array_get(messages, json_array_size(messages) - 1), "user");
}

/* Number of tokens shared with another rendering of a part of the prompt. opening, if not NULL: where the texts
 * differ. */
static int32_t common(Server *s, const Request *q, const JobPrompt *p, const json_t *messages, bool generation,
                      size_t *opening)
{
    HttpError ignored = { 0 };
    TemplateText t = { 0 };
    int32_t *ids = NULL, n = 0, same = 0;
    if (messages && rendered(&t, &ids, &n, s, q, messages, generation, NULL, &ignored)) {
        same = cache_points_common(p->t, (size_t) p->n, ids, (size_t) n);
        size_t at = 0;
        while (opening && at < t.n && at < p->n_text && t.text[at] == p->text[at]) at++;
        if (opening) *opening = at;
    }
    free(ids);
    template_text_free(&t);
    return same;
}

/* Uses a further rendering if the first one does not show the point. */
static void history_point(CachePointsIn *in, Server *s, const Request *q, JobPrompt *p)
{
    in->history = p->history;
    if (in->history >= 0) return;
    p->opening = p->n_text;
    in->history = common(s, q, p, q->messages, false, &p->opening);
}

static int32_t shared_point(Server *s, const Request *q, const JobPrompt *p)
{
    if (p->shared >= 0) return p->shared;
    json_t *other = stranger(q->messages);
    int32_t n = common(s, q, p, other, true, NULL);
    json_decref(other);
    return n;
}

/* Templates that drop a turn's reasoning do so at the user's next message: tokens not affected; 0: no such point. */
static int32_t kept_point(Server *s, const Request *q, const JobPrompt *p)
{
    if (is_users(q->messages) || (p->history >= 0 && p->whole)) return 0;
    json_t *next = next_turn(q->messages);
    int32_t n = common(s, q, p, next, true, NULL);
    json_decref(next);
    return n;
}

void conversation_points(Server *s, const Request *q, JobPrompt *p)
{
    CachePointsIn in = { .n_prompt = p->n, .interval = s->o.cache_interval, .least = s->o.cache_min_tokens };
    bool whole = request_talks(q) && !q->continue_final, remembered = q->cached && p->n >= in.least;
    if (whole && (remembered || q->tools || q->dialect != DIALECT_CHAT)) history_point(&in, s, q, p);
    else p->opening = p->n_text;
    if (!remembered) return;
    if (whole) {
        in.shared = shared_point(s, q, p);
        in.kept = kept_point(s, q, p);
    }
    p->n_point = cache_points_of(p->point, &in);
}
