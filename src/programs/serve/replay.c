#include "programs/serve/replay.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TURNS_MAX = 4096, CALLS_MAX = 32, BYTES_MAX = 64 << 20, BETWEEN_MAX = 256 };

/* One answer. opening: the text with which its prompt began the turn, such as "<|im_start|>assistant\n<think>\n". */
typedef struct {
    int32_t  users;
    uint64_t used;
    char     handle[96];
    char    *id[CALLS_MAX], *name[CALLS_MAX]; int32_t n_calls;
    char    *said;                                 /* its visible text */
    char    *opening;
    int32_t *token, n_token;
    size_t   bytes;
} Turn;

struct Replay {
    pthread_mutex_t lock;
    Turn   *turn[TURNS_MAX]; int32_t n_turns;
    size_t  bytes;
    uint64_t clock;
    char    secret[32];                            /* of the placeholders: nobody can have written it */
};

typedef struct { Turn *turn; char mark[64]; } Spliced;
struct ReplayPlan { Replay *replay; json_t *messages; Spliced *at; int32_t n; };

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

/* With the lock. */
static void drop(Turn *t)
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
    for (int32_t i = 0; i < r->n_turns; i++) drop(r->turn[i]);
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
        drop(r->turn[oldest]);
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
    return good;
}

/* What the prompt has behind the last end of somebody's turn: found from the end of the rendering without it. */
static char *opening_of(const Choice *c)
{
    const JobPrompt *p = c->prompt;
    return p->text && p->opening < p->n_text ? strdup(p->text + p->opening) : NULL;
}

void replay_job(Server *s, const Job *j)
{
    const Choice *c = &j->choice[0];
    if (!s->replay || j->q->dialect == DIALECT_COMPLETIONS || j->n_choice != 1 || j->q->continue_final) return;
    if (c->end.reason != FINISH_STOP && c->end.reason != FINISH_CALLS) return;
    if (!c->summary.calls && (!j->handle[0] || !c->summary.reason_tokens)) return;
    Turn *t = calloc(1, sizeof *t);
    if (!t) return;
    t->users = 1;
    strcpy(t->handle, j->handle);
    t->n_token = c->summary.tokens < c->fed ? c->summary.tokens : c->fed;
    t->token = malloc(sizeof *t->token * (size_t) (t->n_token + 1));
    t->opening = opening_of(c);
    if (t->token) memcpy(t->token, c->token, sizeof *t->token * (size_t) t->n_token);
    if (!t->token || !t->opening || !collect(t, j, c)) {
        drop(t);
        return;
    }
    t->bytes = sizeof *t + sizeof *t->token * (size_t) t->n_token + strlen(t->said);
    add(s->replay, t);
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

/* With the lock. */
static Turn *find(Replay *r, const char *handle, const json_t *message)
{
    const json_t *calls = json_object_get(message, "tool_calls");
    const char *content = json_string_value(json_object_get(message, "content"));
    for (int32_t i = r->n_turns - 1; i >= 0; i--) {
        Turn *t = r->turn[i];
        if (!names(t, handle, calls) || !same_calls(t, calls) || !all_ids(t, calls)) continue;
        if (!same_text(content ? content : "", t->said)) continue;
        t->used = ++r->clock;
        return t;
    }
    return NULL;
}

void replay_plan_free(ReplayPlan *p)
{
    if (!p) return;
    pthread_mutex_lock(&p->replay->lock);
    for (int32_t i = 0; i < p->n; i++) drop(p->at[i].turn);
    pthread_mutex_unlock(&p->replay->lock);
    json_decref(p->messages);
    free(p->at);
    free(p);
}

ReplayPlan *replay_plan(Server *s, const Request *q, const json_t *messages)
{
    Replay *r = s->replay;
    size_t i;
    json_t *m;
    if (!r || q->dialect == DIALECT_COMPLETIONS) return NULL;
    ReplayPlan *p = calloc(1, sizeof *p);
    if (!p) return NULL;
    p->replay = r;
    p->messages = json_copy((json_t *) messages);
    p->at = calloc(json_array_size(messages) + 1, sizeof *p->at);
    pthread_mutex_lock(&r->lock);
    json_array_foreach(messages, i, m) {
        const char *role = json_string_value(json_object_get(m, "role")), *handle = json_string_value(json_array_get(q->handles, i));
        Turn *t = p->at && p->messages && role && strcmp(role, "assistant") == 0 ? find(r, handle, m) : NULL;
        if (!t) continue;
        Spliced *x = &p->at[p->n];
        snprintf(x->mark, sizeof x->mark, "@@%s.%zu@@", r->secret, i);
        json_t *stand_in = json_pack("{s:s s:s}", "role", "assistant", "content", x->mark);
        if (!stand_in || json_array_set_new(p->messages, i, stand_in) != 0) continue;
        x->turn = t;
        t->users++;
        p->n++;
    }
    pthread_mutex_unlock(&r->lock);
    if (p->n > 0) return p;
    replay_plan_free(p);
    return NULL;
}

const json_t *replay_messages(const ReplayPlan *p) { return p->messages; }

/* ---- splicing ---- */

typedef struct { int32_t *t; size_t n, cap; } Ids;

static bool append_ids(Ids *to, const int32_t *t, size_t n)
{
    if (to->n + n > to->cap) {
        size_t cap = 2 * to->cap + n + 64;
        int32_t *more = realloc(to->t, cap * sizeof *more);
        if (!more) return false;
        to->t = more;
        to->cap = cap;
    }
    if (n > 0) memcpy(to->t + to->n, t, n * sizeof *t);
    to->n += n;
    return true;
}

/* Tokens of text[from, to) and what is to follow it, with the client's spans. */
static bool append_text(Ids *out, const rt_engine *g, const TemplateText *t, size_t from, size_t to, const char *then)
{
    size_t n = to - from, m = strlen(then), n_span = 0, count = 0, cap = n + m + 2;
    char *text = malloc(n + m + 1);
    rt_span *span = malloc((t->n_client + 1) * sizeof *span);
    int32_t *ids = malloc(cap * sizeof *ids);
    bool good = text && span && ids;
    for (size_t i = 0; good && i < t->n_client; i++) {
        size_t a = t->client[i].at, b = a + t->client[i].n;
        if (a < from) a = from;
        if (b > to) b = to;
        if (a < b) span[n_span++] = (rt_span) { a - from, b - a };
    }
    if (good) {
        memcpy(text, t->text + from, n);
        memcpy(text + n, then, m + 1);
        count = n + m > 0 ? rt_tokenize_prompt(g, text, n + m, span, n_span, ids, cap) : 0;
        size_t skip = out->n > 0 && count > 0 && rt_adds_bos(g) && ids[0] == rt_token_bos(g);          /* only a text's beginning has one */
        good = count <= cap && append_ids(out, ids + skip, count - skip);
    }
    free(text);
    free(span);
    free(ids);
    return good;
}

/* Where the turn begins whose content is at `mark`: the last place before it with the first line of its opening, nothing of a client's
 * between. SIZE_MAX: there is none. */
static size_t turn_begin(const TemplateText *t, size_t least, size_t mark, const char *opening)
{
    size_t line = strcspn(opening, "\n");
    line += opening[line] == '\n';
    for (size_t at = mark; at-- > least && mark - at <= BETWEEN_MAX;) {
        if (at + line > mark || memcmp(t->text + at, opening, line) != 0) continue;
        for (size_t i = 0; i < t->n_client; i++)
            if (t->client[i].at < mark && t->client[i].at + t->client[i].n > at) return SIZE_MAX;
        return at;
    }
    return SIZE_MAX;
}

bool replay_tokens(int32_t **t, int32_t *n, const ReplayPlan *p, const rt_engine *g, const TemplateText *text)
{
    Ids ids = { 0 };
    size_t from = 0;
    bool good = true;
    for (int32_t i = 0; good && i < p->n; i++) {
        const Turn *turn = p->at[i].turn;
        const char *found = strstr(text->text + from, p->at[i].mark);
        size_t mark = found ? (size_t) (found - text->text) : 0, begin = found ? turn_begin(text, from, mark, turn->opening) : SIZE_MAX;
        good = begin != SIZE_MAX && append_text(&ids, g, text, from, begin, turn->opening) && append_ids(&ids, turn->token, (size_t) turn->n_token);
        from = mark + strlen(p->at[i].mark);
        good = good && !strstr(text->text + from, p->at[i].mark);
    }
    good = good && append_text(&ids, g, text, from, text->n, "") && ids.n > 0 && ids.n <= INT32_MAX;
    if (!good) {
        free(ids.t);
        return false;
    }
    *t = ids.t;
    *n = (int32_t) ids.n;
    return true;
}
