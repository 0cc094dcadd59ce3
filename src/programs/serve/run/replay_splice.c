/* replay_splice.c - assembles prompts that contain the tokens of earlier answers. */
#include "programs/serve/run/replay_impl.h"
#include "programs/serve/request/request.h"
#include "text/chat_prompt.h"

#include <stdlib.h>

#include <xxhash.h>

enum { BETWEEN_MAX = 256 };

typedef struct { StoredAnswer *stored; size_t message; SpliceMark mark; } Spliced;
struct ReplayPlan { Replay *replay; json_t *messages; Spliced *at; int32_t n; };

void replay_plan_free(ReplayPlan *p)
{
    if (!p) return;
    pthread_mutex_lock(&p->replay->lock);
    for (int32_t i = 0; i < p->n; i++) stored_drop(p->at[i].stored);
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
    if (!r || !s->chat || !request_talks(q)) return NULL;
    ReplayPlan *p = calloc(1, sizeof *p);
    if (!p) return NULL;
    p->replay = r;
    p->messages = json_copy((json_t *) messages);
    p->at = calloc(json_array_size(messages) + 1, sizeof *p->at);
    bool keep_calls = chat_prompt_caps(s->chat)->results_with_calls;   /* a placeholder calls nothing */
    pthread_mutex_lock(&r->lock);
    json_array_foreach(messages, i, m) {
        const char *handle = json_string_value(json_array_get(q->handles, i));
        bool stays = !role_is(m, "assistant") || (keep_calls && json_object_get(m, "tool_calls"));
        StoredAnswer *t = p->at && p->messages && !stays ? stored_named(r, handle, m) : NULL;
        if (!t) continue;
        Spliced *x = &p->at[p->n];
        x->mark = splice_mark(&r->secret, "", i);
        json_t *stand_in = json_pack("{s:s s:s}", "role", "assistant", "content", x->mark.text);
        x->stored = t;
        x->message = i;
        if (!stand_in || json_array_set_new(p->messages, i, stand_in) != 0) stored_drop(t);
        else p->n++;
    }
    pthread_mutex_unlock(&r->lock);
    if (p->n > 0) return p;
    replay_plan_free(p);
    return NULL;
}

const json_t *replay_messages(const ReplayPlan *p) { return p->messages; }

bool replay_holds(const ReplayPlan *p, const json_t *messages)
{
    int32_t held = p->n;
    for (size_t i = json_array_size(messages); i-- > 0 && !role_is(json_array_get(messages, i), "user");) {
        if (!role_is(json_array_get(messages, i), "assistant")) continue;
        if (held == 0 || p->at[--held].message != i) return false;
    }
    return true;
}

/* ---- splicing ---- */

/* Where the turn begins whose content is at `mark`: the last occurrence of the first line of its opening before it,
 * with no client text in between. SIZE_MAX: none. */
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

/* ---- finding answers ---- */

/* [at, end) of the rendering is replaced by this stored answer; named: it is a placeholder, and the answer comes with
 * its own opening. */
typedef struct { size_t at, end; const StoredAnswer *stored; bool named; } Cut;

/* Finds the placeholders, in order; returns false if one is missing or occurs twice. */
static bool find_marks(Cut *cut, const ReplayPlan *p, const TemplateText *t)
{
    size_t from = 0;
    for (int32_t i = 0; i < p->n; i++) {
        cut[i] = (Cut) { .stored = p->at[i].stored, .named = true };
        if (!splice_find(&cut[i].at, &cut[i].end, t, from, &p->at[i].mark)) return false;
        from = cut[i].end;
    }
    return true;
}

/* Hash of a text up to some position. Clients' spans count too, since they decide what is a control token. */
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

/* Calls found(ud, i, key) for each client's span i, key being the hash of the text before it, and finally for n_client.
 * Returns false if out of memory. */
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
    if (i < x->text->n_client)
        x->part[i] = (Part) { { key[0], key[1] }, x->text->text + x->text->client[i].at, x->text->client[i].n, NULL };
}

static int by_key(const void *a, const void *b)
{
    const Part *x = a, *y = b;
    return (x->key[0] > y->key[0]) - (x->key[0] < y->key[0]);
}

/* part: [n_client], in any order. The text may be long with many parts, so it is hashed without the lock, which is held
 * only for one pass over the stored turns. Returns false if out of memory. */
static bool find_told(Replay *r, const TemplateText *text, Part *part)
{
    Parts x = { text, part };
    pthread_mutex_lock(&r->lock);
    bool any = r->n_stored > 0;
    pthread_mutex_unlock(&r->lock);
    if (!any) return true;
    if (!walk(text, see_part, &x)) return false;
    qsort(part, text->n_client, sizeof *part, by_key);
    pthread_mutex_lock(&r->lock);
    stored_told(r, part, text->n_client);
    pthread_mutex_unlock(&r->lock);
    return true;
}

/* ---- assembling ---- */

/* Requires a control token after an answer found by its text: otherwise the tokenizer might merge the answer's last
 * bytes with what follows. */
static bool splice(int32_t **t, int32_t *n, const Cut *cut, size_t n_cut, const rt_engine *g, const TemplateText *text)
{
    size_t from = 0, n_bytes;
    bool good = true, told = false;
    *t = NULL;
    *n = 0;
    for (size_t i = 0; good && i <= n_cut; i++) {
        const StoredAnswer *stored = i < n_cut ? cut[i].stored : NULL;
        size_t end = !stored ? text->n : cut[i].named ? turn_begin(text, from, cut[i].at, stored->opening) : cut[i].at;
        int32_t before = *n;
        good = end != SIZE_MAX &&
               chat_append(g, t, n, text, from, end, stored && cut[i].named ? stored->opening : "");
        if (good && told) {
            good = *n > before;
            if (good) rt_token_bytes(g, (*t)[before], &n_bytes);
            good = good && n_bytes == 0;
        }
        if (!stored) break;
        good = good && splice_tokens(t, n, stored->token, stored->n_token);
        told = !cut[i].named;
        from = cut[i].end;
    }
    if (good && *n > 0) return true;
    free(*t);
    *t = NULL;
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
    size_t n_mark = p ? (size_t) p->n : 0, n_cut = n_mark;
    if (!r || (!p && !by_text)) return false;
    Cut *cut = calloc(n_mark + text->n_client + 1, sizeof *cut);
    Part *part = calloc(text->n_client + 1, sizeof *part);
    bool good = cut && part && (!p || find_marks(cut, p, text)) && (!by_text || find_told(r, text, part));
    for (size_t i = 0; good && i < text->n_client; i++) {
        size_t at = part[i].stored ? (size_t) (part[i].said - text->text) : 0;
        if (part[i].stored) cut[n_cut++] = (Cut) { at, at + part[i].n, part[i].stored, false };
    }
    if (good) qsort(cut, n_cut, sizeof *cut, by_place);
    good = good && n_cut > 0 && splice(t, n, cut, n_cut, g, text);
    if (!good && p && n_cut > n_mark && find_marks(cut, p, text)) good = splice(t, n, cut, n_mark, g, text);
    pthread_mutex_lock(&r->lock);
    for (size_t i = 0; part && i < text->n_client; i++)
        if (part[i].stored) stored_drop(part[i].stored);
    pthread_mutex_unlock(&r->lock);
    free(part);
    free(cut);
    return good;
}
