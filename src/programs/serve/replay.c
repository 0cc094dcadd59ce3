#include "programs/serve/replay_impl.h"

#include <stdio.h>
#include <stdlib.h>

Replay *replay_new(void)
{
    Replay *r = calloc(1, sizeof *r);
    unsigned char bytes[12];
    if (!r) return NULL;
    pthread_mutex_init(&r->lock, NULL);
    server_random(NULL, bytes, sizeof bytes);
    for (size_t i = 0; i < sizeof bytes; i++) sprintf(r->secret + 2 * i, "%02x", bytes[i]);
    return r;
}

void turn_drop(Turn *t)
{
    if (--t->users > 0) return;
    for (int32_t i = 0; i < t->n_calls; i++) {
        free(t->id[i]);
        free(t->name[i]);
    }
    free(t->said);
    free(t->opening);
    free(t->token);
    free(t);
}

void replay_free(Replay *r)
{
    if (!r) return;
    for (int32_t i = 0; i < r->n_turns; i++) turn_drop(r->turn[i]);
    pthread_mutex_destroy(&r->lock);
    free(r);
}

void replay_handle(char out[96], const Request *q)
{
    unsigned char bytes[24];
    out[0] = 0;
    if (q->dialect != DIALECT_RESPONSES && q->dialect != DIALECT_MESSAGES) return;
    server_random(NULL, bytes, sizeof bytes);
    strcpy(out, "v1.");
    for (size_t i = 0; i < sizeof bytes; i++) sprintf(out + 3 + 2 * i, "%02x", bytes[i]);
}

/* ---- remembering ---- */

static void add(Replay *r, Turn *t)
{
    pthread_mutex_lock(&r->lock);
    while (r->n_turns == TURNS_MAX || (r->n_turns > 0 && r->bytes + t->bytes > BYTES_MAX)) {
        int32_t oldest = 0;
        for (int32_t i = 1; i < r->n_turns; i++)
            if (r->turn[i]->used < r->turn[oldest]->used) oldest = i;
        r->bytes -= r->turn[oldest]->bytes;
        turn_drop(r->turn[oldest]);
        r->turn[oldest] = r->turn[--r->n_turns];
    }
    t->used = ++r->clock;
    r->bytes += t->bytes;
    r->turn[r->n_turns++] = t;
    pthread_mutex_unlock(&r->lock);
}

/* The visible text, as the decoder told it: decoded once more, since an answer keeps only what its dialect needs. */
typedef struct { char *s; size_t n; } Said;

static bool collect(Turn *t, const Job *j, const Choice *c)
{
    const Server *s = j->server;
    ReplyOptions o = { .style = s->style, .tools = j->q->tools, .think_max = -1, .prompt = c->prompt->text, .n_prompt = c->prompt->n_text,
                       .stop = j->q->stop, .n_stop = j->q->n_stop, .bare_off = j->q->constraint != CONSTRAINT_NONE, .promote = s->style.calls == CALLS_QWEN35 };
    Reply *r = NULL;
    ReplyEvent ev;
    Said said = { calloc(1, 1), 0 };
    bool good = said.s && reply_open(&r, &o, NULL) == ST_OK;
    for (int32_t i = 0; good && i <= c->fed; i++) {
        size_t n;
        const char *bytes = i < c->fed ? rt_token_bytes(s->p.engine, c->token[i], &n) : NULL;
        good = i < c->fed ? reply_token(r, c->token[i], bytes, n) : reply_stop(r) != REPLY_GO || reply_end(r, REPLY_ENDED);
        while (good && reply_next(r, &ev)) {
            if (ev.kind == REPLY_TEXT) {
                char *more = realloc(said.s, said.n + ev.n + 1);
                good = more != NULL;
                if (!more) break;
                said.s = more;
                memcpy(more + said.n, ev.bytes, ev.n);
                more[said.n += ev.n] = 0;
            } else if (ev.kind == REPLY_CALL_BEGIN) {
                const char *id = answer_call_id(j->answer, c->index, ev.call);
                const RequestTool *tool = request_tool(j->q, ev.bytes, ev.n);
                good = t->n_calls < CALLS_MAX && id;
                if (!good) break;
                t->id[t->n_calls] = strdup(id);
                t->name[t->n_calls] = tool ? strdup(tool->name) : strndup(ev.bytes, ev.n);
                good = t->id[t->n_calls] && t->name[t->n_calls];
                t->n_calls++;
            }
        }
    }
    reply_close(r);
    t->said = said.s;
    t->n_said = said.n;
    return good;
}

/* What the prompt has behind the last end of somebody's turn: found from the end of the rendering without it. */
static char *opening_of(const Choice *c)
{
    const JobPrompt *p = c->prompt;
    return p->text && p->opening < p->n_text ? strdup(p->text + p->opening) : NULL;
}

static Turn *new_turn(const Choice *c)
{
    Turn *t = calloc(1, sizeof *t);
    if (!t) return NULL;
    t->users = 1;
    t->n_token = c->summary.tokens < c->fed ? c->summary.tokens : c->fed;
    t->token = malloc(sizeof *t->token * (size_t) (t->n_token + 1));
    if (t->token) memcpy(t->token, c->token, sizeof *t->token * (size_t) t->n_token);
    return t;
}

static void keep(Replay *r, Turn *t, bool good)
{
    if (good) {
        t->bytes = sizeof *t + sizeof *t->token * (size_t) t->n_token + t->n_said;
        add(r, t);
    } else if (t) {
        turn_drop(t);
    }
}

static void remember_by_name(Server *s, const Job *j)
{
    const Choice *c = &j->choice[0];
    if (j->n_choice != 1 || (c->end.reason != FINISH_STOP && c->end.reason != FINISH_CALLS)) return;
    if (!c->summary.calls && (!j->handle[0] || !c->summary.reason_tokens)) return;
    Turn *t = new_turn(c);
    if (t) strcpy(t->handle, j->handle);
    if (t) t->opening = opening_of(c);
    keep(s->replay, t, t && t->token && t->opening && collect(t, j, c));
}

/* Whether the text would get these very tokens behind the prompt's. Only the end of the prompt can merge with it. */
static bool are_the_texts(const rt_engine *g, const JobPrompt *p, const Turn *t)
{
    enum { TAIL = 64 };
    size_t tail = p->n_text < TAIL ? p->n_text : TAIL, n = tail + t->n_said, cap = n + 2;
    while (tail > 0 && ((unsigned char) p->text[p->n_text - tail] & 0xc0) == 0x80) tail--, n--;
    char *text = malloc(n + 1);
    int32_t *whole = malloc(cap * sizeof *whole), *before = malloc(cap * sizeof *before);
    bool same = false;
    if (text && whole && before) {
        memcpy(text, p->text + p->n_text - tail, tail);
        memcpy(text + tail, t->said, t->n_said);
        rt_span span = { tail, t->n_said };
        size_t n_before = rt_tokenize_prompt(g, text, tail, NULL, 0, before, cap), n_whole = rt_tokenize_prompt(g, text, n, &span, 1, whole, cap);
        same = n_before <= cap && n_whole <= cap && n_whole == n_before + (size_t) t->n_token && memcmp(whole, before, n_before * sizeof *whole) == 0 &&
               memcmp(whole + n_before, t->token, (size_t) t->n_token * sizeof *whole) == 0;
    }
    free(text);
    free(whole);
    free(before);
    return same;
}

/* The bytes of the tokens; false: one of them is a control token, which no client can send back as text. */
static bool plain_text(Turn *t, const rt_engine *g)
{
    size_t n, room = 0;
    for (int32_t i = 0; i < t->n_token; i++) {
        rt_token_bytes(g, t->token[i], &n);
        if (n == 0) return false;
        room += n;
    }
    t->said = malloc(room + 1);
    for (int32_t i = 0; t->said && i < t->n_token; i++) {
        const char *bytes = rt_token_bytes(g, t->token[i], &n);
        memcpy(t->said + t->n_said, bytes, n);
        t->n_said += n;
    }
    return t->said && t->n_said > 0;
}

/* An answer of text alone comes back as text; where that text would get other tokens, these are remembered. */
static void remember_by_text(Server *s, const Choice *c)
{
    const rt_engine *g = s->p.engine;
    bool ended = c->end.reason == FINISH_STOP || c->end.reason == FINISH_LENGTH || c->end.reason == FINISH_CONTEXT;
    if (!ended || c->fed == 0 || c->summary.calls || c->summary.reason_tokens || !c->prompt->text) return;
    Turn *t = new_turn(c);
    if (t) t->by_text = true;
    if (t) memcpy(t->key, c->prompt->key, sizeof t->key);
    keep(s->replay, t, t && t->token && plain_text(t, g) && !are_the_texts(g, c->prompt, t));
}

void replay_job(Server *s, const Job *j)
{
    if (!s->replay || j->q->dialect == DIALECT_COMPLETIONS || j->q->continue_final) return;
    remember_by_name(s, j);
    for (int32_t i = 0; i < j->n_choice && j->q->cached; i++) remember_by_text(s, &j->choice[i]);
}

/* ---- recognising ---- */

static bool same_calls(const Turn *t, const json_t *calls)
{
    size_t i;
    json_t *call;
    if ((int32_t) json_array_size(calls) != t->n_calls) return false;
    json_array_foreach(calls, i, call) {
        const char *name = json_string_value(json_object_get(json_object_get(call, "function"), "name"));
        if (!name || strcmp(name, t->name[i]) != 0) return false;
    }
    return true;
}

/* As clients trim: without blanks around it. */
static bool same_text(const char *a, const char *b)
{
    static const char blanks[] = " \t\r\n";
    a += strspn(a, blanks);
    b += strspn(b, blanks);
    size_t n = strlen(a), m = strlen(b);
    while (n > 0 && strchr(blanks, a[n - 1])) n--;
    while (m > 0 && strchr(blanks, b[m - 1])) m--;
    return n == m && memcmp(a, b, n) == 0;
}

static bool names(const Turn *t, const char *handle, const json_t *calls)
{
    if (handle && t->handle[0] && strcmp(handle, t->handle) == 0) return true;
    const char *id = json_string_value(json_object_get(json_array_get(calls, 0), "id"));
    return id && t->n_calls > 0 && strcmp(id, t->id[0]) == 0;
}

/* Every id of the message is the turn's, in order. */
static bool all_ids(const Turn *t, const json_t *calls)
{
    size_t i;
    json_t *call;
    json_array_foreach(calls, i, call) {
        const char *id = json_string_value(json_object_get(call, "id"));
        if (!id || strcmp(id, t->id[i]) != 0) return false;
    }
    return true;
}

static Turn *found(Replay *r, Turn *t)
{
    t->used = ++r->clock;
    t->users++;
    return t;
}

Turn *turn_named(Replay *r, const char *handle, const json_t *message)
{
    const json_t *calls = json_object_get(message, "tool_calls");
    const char *content = json_string_value(json_object_get(message, "content"));
    for (int32_t i = r->n_turns - 1; i >= 0; i--) {
        Turn *t = r->turn[i];
        if (t->by_text || !names(t, handle, calls) || !same_calls(t, calls) || !all_ids(t, calls)) continue;
        if (!same_text(content ? content : "", t->said)) continue;
        return found(r, t);
    }
    return NULL;
}

void turns_told(Replay *r, Part *part, size_t n)
{
    for (int32_t i = r->n_turns - 1; i >= 0; i--) {
        Turn *t = r->turn[i];
        size_t lo = 0, hi = n;
        while (t->by_text && lo < hi) {
            size_t mid = (lo + hi) / 2;
            if (part[mid].key[0] < t->key[0]) lo = mid + 1;
            else hi = mid;
        }
        for (; t->by_text && lo < n && part[lo].key[0] == t->key[0]; lo++) {
            Part *p = &part[lo];
            if (!p->turn && p->key[1] == t->key[1] && p->n == t->n_said && memcmp(p->said, t->said, p->n) == 0) p->turn = found(r, t);
        }
    }
}
