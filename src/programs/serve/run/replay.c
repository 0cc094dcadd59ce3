#include "programs/serve/run/replay_impl.h"

#include <stdio.h>
#include <stdlib.h>

Replay *replay_new(void)
{
    Replay *r = calloc(1, sizeof *r);
    unsigned char bytes[12];
    if (!r) return NULL;
    pthread_mutex_init(&r->lock, NULL);
    server_random(NULL, bytes, sizeof bytes);
    r->secret = splice_secret(bytes);
    return r;
}

void stored_drop(StoredAnswer *t)
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
    for (int32_t i = 0; i < r->n_stored; i++) stored_drop(r->stored[i]);
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

/* ---- storing ---- */

static void add(Replay *r, StoredAnswer *t)
{
    pthread_mutex_lock(&r->lock);
    while (r->n_stored == STORED_MAX || (r->n_stored > 0 && r->bytes + t->bytes > BYTES_MAX)) {
        int32_t oldest = 0;
        for (int32_t i = 1; i < r->n_stored; i++)
            if (r->stored[i]->used < r->stored[oldest]->used) oldest = i;
        r->bytes -= r->stored[oldest]->bytes;
        stored_drop(r->stored[oldest]);
        r->stored[oldest] = r->stored[--r->n_stored];
    }
    t->used = ++r->clock;
    r->bytes += t->bytes;
    r->stored[r->n_stored++] = t;
    pthread_mutex_unlock(&r->lock);
}

/* Collects what the client was sent and will send back. Returns false if out of memory or if there are too many
 * calls. */
static bool collect(StoredAnswer *t, const Job *j, const RunChoice *c)
{
    const char *id;
    t->said = answer_visible(j->answer, c->index, &t->n_said);
    for (; (id = answer_call_id(j->answer, c->index, t->n_calls)) != NULL; t->n_calls++) {
        if (t->n_calls == CALLS_MAX) return false;
        t->id[t->n_calls] = strdup(id);
        t->name[t->n_calls] = answer_call_name(j->answer, c->index, t->n_calls);
        if (!t->id[t->n_calls] || !t->name[t->n_calls]) {
            t->n_calls++;                          /* stored_drop frees it */
            return false;
        }
    }
    return t->said != NULL;
}

/* The part of the prompt after the end of the last turn: found by comparing with the rendering without it. */
static char *opening_of(const RunChoice *c)
{
    const JobPrompt *p = c->prompt;
    return p->text && p->opening < p->n_text ? strdup(p->text + p->opening) : NULL;
}

static StoredAnswer *new_stored(const RunChoice *c)
{
    StoredAnswer *t = calloc(1, sizeof *t);
    if (!t) return NULL;
    t->users = 1;
    t->n_token = c->summary.tokens < c->fed ? c->summary.tokens : c->fed;
    t->token = malloc(sizeof *t->token * (size_t) (t->n_token + 1));
    if (t->token) memcpy(t->token, c->token, sizeof *t->token * (size_t) t->n_token);
    return t;
}

static void keep(Replay *r, StoredAnswer *t, bool good)
{
    if (good) {
        t->bytes = sizeof *t + sizeof *t->token * (size_t) t->n_token + t->n_said;
        add(r, t);
    } else if (t) {
        stored_drop(t);
    }
}

static void remember_by_name(Server *s, const Job *j)
{
    const RunChoice *c = &j->choice[0];
    if (j->n_choice != 1 || (c->end.reason != FINISH_STOP && c->end.reason != FINISH_CALLS)) return;
    if (!c->summary.calls && (!j->handle[0] || !c->summary.reason_tokens)) return;
    StoredAnswer *t = new_stored(c);
    if (t) strcpy(t->handle, j->handle);
    if (t) t->opening = opening_of(c);
    keep(s->replay, t, t && t->token && t->opening && collect(t, j, c));
}

/* Whether the text, tokenized after the prompt, gives exactly these tokens. Only the prompt's end can merge with it. */
static bool are_the_texts(const rt_engine *g, const JobPrompt *p, const StoredAnswer *t)
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
        size_t n_before = rt_tokenize_prompt(g, text, tail, NULL, 0, before, cap),
               n_whole = rt_tokenize_prompt(g, text, n, &span, 1, whole, cap);
        same = n_before <= cap && n_whole <= cap && n_whole == n_before + (size_t) t->n_token &&
               memcmp(whole, before, n_before * sizeof *whole) == 0 &&
               memcmp(whole + n_before, t->token, (size_t) t->n_token * sizeof *whole) == 0;
    }
    free(text);
    free(whole);
    free(before);
    return same;
}

/* Sets the bytes of the tokens; returns false if one is a control token, which no client can send back as text. */
static bool plain_text(StoredAnswer *t, const rt_engine *g)
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

/* A text-only answer comes back as text; its tokens are stored if that text would tokenize differently. */
static void remember_by_text(Server *s, const RunChoice *c)
{
    const rt_engine *g = s->p.engine;
    bool ended = c->end.reason == FINISH_STOP || c->end.reason == FINISH_LENGTH || c->end.reason == FINISH_CONTEXT;
    if (!ended || c->fed == 0 || c->summary.calls || c->summary.reason_tokens || !c->prompt->text) return;
    StoredAnswer *t = new_stored(c);
    if (t) t->by_text = true;
    if (t) memcpy(t->key, c->prompt->key, sizeof t->key);
    keep(s->replay, t, t && t->token && plain_text(t, g) && !are_the_texts(g, c->prompt, t));
}

void replay_job(Server *s, const Job *j)
{
    if (!s->replay || !request_talks(j->q) || j->q->continue_final) return;
    remember_by_name(s, j);
    for (int32_t i = 0; i < j->n_choice && j->q->cached; i++) remember_by_text(s, &j->choice[i]);
}

/* ---- recognising ---- */

static bool same_calls(const StoredAnswer *t, const json_t *calls)
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

/* Ignores surrounding blanks, since clients trim them. */
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

static bool names(const StoredAnswer *t, const char *handle, const json_t *calls)
{
    if (handle && t->handle[0] && strcmp(handle, t->handle) == 0) return true;
    const char *id = json_string_value(json_object_get(json_array_get(calls, 0), "id"));
    return id && t->n_calls > 0 && strcmp(id, t->id[0]) == 0;
}

/* Whether the message has exactly the turn's ids, in order. */
static bool all_ids(const StoredAnswer *t, const json_t *calls)
{
    size_t i;
    json_t *call;
    json_array_foreach(calls, i, call) {
        const char *id = json_string_value(json_object_get(call, "id"));
        if (!id || strcmp(id, t->id[i]) != 0) return false;
    }
    return true;
}

static StoredAnswer *found(Replay *r, StoredAnswer *t)
{
    t->used = ++r->clock;
    t->users++;
    return t;
}

StoredAnswer *stored_named(Replay *r, const char *handle, const json_t *message)
{
    const json_t *calls = json_object_get(message, "tool_calls");
    const char *content = json_string_value(json_object_get(message, "content"));
    for (int32_t i = r->n_stored - 1; i >= 0; i--) {
        StoredAnswer *t = r->stored[i];
        if (t->by_text || !names(t, handle, calls) || !same_calls(t, calls) || !all_ids(t, calls)) continue;
        if (!same_text(content ? content : "", t->said)) continue;
        return found(r, t);
    }
    return NULL;
}

void stored_told(Replay *r, Part *part, size_t n)
{
    for (int32_t i = r->n_stored - 1; i >= 0; i--) {
        StoredAnswer *t = r->stored[i];
        size_t lo = 0, hi = n;
        while (t->by_text && lo < hi) {
            size_t mid = (lo + hi) / 2;
            if (part[mid].key[0] < t->key[0]) lo = mid + 1;
            else hi = mid;
        }
        for (; t->by_text && lo < n && part[lo].key[0] == t->key[0]; lo++) {
            Part *p = &part[lo];
            if (!p->stored && p->key[1] == t->key[1] && p->n == t->n_said && memcmp(p->said, t->said, p->n) == 0)
                p->stored = found(r, t);
        }
    }
}
