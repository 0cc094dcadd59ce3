/* replay_splice.c - prompts with the tokens of earlier answers in them. */
#include "programs/serve/replay_impl.h"

#include <stdio.h>
#include <stdlib.h>

#include <xxhash.h>

#include "programs/chat.h"

enum { BETWEEN_MAX = 256 };

typedef struct { Turn *turn; char mark[64]; } Spliced;
struct ReplayPlan { Replay *replay; json_t *messages; Spliced *at; int32_t n; };

void replay_plan_free(ReplayPlan *p)
{
    if (!p) return;
    pthread_mutex_lock(&p->replay->lock);
    for (int32_t i = 0; i < p->n; i++) turn_drop(p->at[i].turn);
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
        Turn *t = p->at && p->messages && role && strcmp(role, "assistant") == 0 ? turn_named(r, handle, m) : NULL;
        if (!t) continue;
        Spliced *x = &p->at[p->n];
        snprintf(x->mark, sizeof x->mark, "@@%s.%zu@@", r->secret, i);
        json_t *stand_in = json_pack("{s:s s:s}", "role", "assistant", "content", x->mark);
        x->turn = t;
        if (!stand_in || json_array_set_new(p->messages, i, stand_in) != 0) turn_drop(t);
        else p->n++;
    }
    pthread_mutex_unlock(&r->lock);
    if (p->n > 0) return p;
    replay_plan_free(p);
    return NULL;
}

const json_t *replay_messages(const ReplayPlan *p) { return p->messages; }

/* ---- splicing ---- */

typedef struct { int32_t *t, n; } Ids;

static bool append_ids(Ids *to, const int32_t *t, int32_t n)
{
    int32_t *more = n <= INT32_MAX - to->n ? realloc(to->t, ((size_t) to->n + (size_t) n + 1) * sizeof *more) : NULL;
    if (!more) return false;
    if (n > 0) memcpy(more + to->n, t, (size_t) n * sizeof *t);
    to->t = more;
    to->n += n;
    return true;
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

/* ---- where ---- */

/* What stands at [at, end) of the rendering is this turn's; named: that is a placeholder, and the turn comes with its own opening. */
typedef struct { size_t at, end; const Turn *turn; bool named; } Cut;

/* The placeholders, in order; false: one is missing, or there twice. */
static bool find_marks(Cut *cut, const ReplayPlan *p, const TemplateText *t)
{
    size_t from = 0;
    for (int32_t i = 0; i < p->n; i++) {
        const char *mark = p->at[i].mark, *found = strstr(t->text + from, mark);
        if (!found || strstr(found + strlen(mark), mark)) return false;
        cut[i] = (Cut) { (size_t) (found - t->text), (size_t) (found - t->text) + strlen(mark), p->at[i].turn, true };
        from = cut[i].end;
    }
    return true;
}

/* A text up to some place and who said what of it: clients' spans count as well as bytes, since they decide what a control token is. */
typedef struct { XXH3_state_t *state; size_t at; } Hash;

static void hash_to(Hash *h, const TemplateText *t, size_t at)
{
    XXH3_128bits_update(h->state, t->text + h->at, at - h->at);
    h->at = at;
}

static void hash_key(uint64_t key[2], const Hash *h)
{
    XXH128_hash_t d = XXH3_128bits_digest(h->state);
    key[0] = d.low64;
    key[1] = d.high64;
}

/* Each client's span behind the text before it: found(ud, i, key) for the i-th, and in the end for n_client. False: out of memory. */
static bool walk(const TemplateText *t, void (*found)(void *ud, size_t i, const uint64_t key[2]), void *ud)
{
    Hash h = { XXH3_createState(), 0 };
    uint64_t key[2];
    if (!h.state) return false;
    XXH3_128bits_reset(h.state);
    for (size_t i = 0; i < t->n_client; i++) {
        hash_to(&h, t, t->client[i].at);
        hash_key(key, &h);
        found(ud, i, key);
        XXH3_128bits_update(h.state, &t->client[i], sizeof t->client[i]);
        hash_to(&h, t, t->client[i].at + t->client[i].n);
    }
    hash_to(&h, t, t->n);
    hash_key(key, &h);
    found(ud, t->n_client, key);
    XXH3_freeState(h.state);
    return true;
}

static void see_whole(void *ud, size_t i, const uint64_t key[2])
{
    (void) i;
    memcpy(ud, key, 2 * sizeof *key);              /* the last one stays */
}

void replay_key(uint64_t key[2], const TemplateText *text)
{
    key[0] = key[1] = 0;
    walk(text, see_whole, key);
}

typedef struct { const TemplateText *text; Part *part; } Parts;

static void see_part(void *ud, size_t i, const uint64_t key[2])
{
    const Parts *x = ud;
    if (i < x->text->n_client) x->part[i] = (Part) { { key[0], key[1] }, x->text->text + x->text->client[i].at, x->text->client[i].n, NULL };
}

static int by_key(const void *a, const void *b)
{
    const Part *x = a, *y = b;
    return (x->key[0] > y->key[0]) - (x->key[0] < y->key[0]);
}

/* part: [n_client], in any order. The text may be long and its parts many, so others wait only while the turns are looked through once. False:
 * out of memory. */
static bool find_told(Replay *r, const TemplateText *text, Part *part)
{
    Parts x = { text, part };
    pthread_mutex_lock(&r->lock);
    bool any = r->n_turns > 0;
    pthread_mutex_unlock(&r->lock);
    if (!any) return true;
    if (!walk(text, see_part, &x)) return false;
    qsort(part, text->n_client, sizeof *part, by_key);
    pthread_mutex_lock(&r->lock);
    turns_told(r, part, text->n_client);
    pthread_mutex_unlock(&r->lock);
    return true;
}

/* ---- putting it together ---- */

/* Behind an answer that is known by its text a control token has to follow: what a text would merge with is not the answer's alone. */
static bool splice(Ids *ids, const Cut *cut, size_t n_cut, const rt_engine *g, const TemplateText *text)
{
    size_t from = 0, n_bytes;
    bool good = true, told = false;
    for (size_t i = 0; good && i <= n_cut; i++) {
        const Turn *turn = i < n_cut ? cut[i].turn : NULL;
        size_t end = !turn ? text->n : cut[i].named ? turn_begin(text, from, cut[i].at, turn->opening) : cut[i].at;
        int32_t before = ids->n;
        good = end != SIZE_MAX && chat_append(g, &ids->t, &ids->n, text, from, end, turn && cut[i].named ? turn->opening : "");
        if (good && told) {
            good = ids->n > before;
            if (good) rt_token_bytes(g, ids->t[before], &n_bytes);
            good = good && n_bytes == 0;
        }
        if (!turn) break;
        good = good && append_ids(ids, turn->token, turn->n_token);
        told = !cut[i].named;
        from = cut[i].end;
    }
    if (good && ids->n > 0) return true;
    free(ids->t);
    *ids = (Ids) { 0 };
    return false;
}

static int by_place(const void *a, const void *b)
{
    const Cut *x = a, *y = b;
    return (x->at > y->at) - (x->at < y->at);
}

bool replay_tokens(int32_t **t, int32_t *n, Server *s, const ReplayPlan *p, const TemplateText *text, bool by_text)
{
    Replay *r = s->replay;
    const rt_engine *g = s->p.engine;
    Ids ids = { 0 };
    size_t n_mark = p ? (size_t) p->n : 0, n_cut = n_mark;
    if (!r || (!p && !by_text)) return false;
    Cut *cut = calloc(n_mark + text->n_client + 1, sizeof *cut);
    Part *part = calloc(text->n_client + 1, sizeof *part);
    bool good = cut && part && (!p || find_marks(cut, p, text)) && (!by_text || find_told(r, text, part));
    for (size_t i = 0; good && i < text->n_client; i++) {
        size_t at = part[i].turn ? (size_t) (part[i].said - text->text) : 0;
        if (part[i].turn) cut[n_cut++] = (Cut) { at, at + part[i].n, part[i].turn, false };
    }
    if (good) qsort(cut, n_cut, sizeof *cut, by_place);
    good = good && n_cut > 0 && splice(&ids, cut, n_cut, g, text);
    if (!good && p && n_cut > n_mark && find_marks(cut, p, text)) good = splice(&ids, cut, n_mark, g, text);
    pthread_mutex_lock(&r->lock);
    for (size_t i = 0; part && i < text->n_client; i++)
        if (part[i].turn) turn_drop(part[i].turn);
    pthread_mutex_unlock(&r->lock);
    free(part);
    free(cut);
    if (!good) return false;
    *t = ids.t;
    *n = ids.n;
    return true;
}
