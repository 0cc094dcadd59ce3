#include "programs/serve/run/constraint.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "programs/chat/chat.h"

enum { CONSTRAINTS_KEPT = 8 };

struct Constraint {
    Constraints *constraints;
    char    *key; size_t n_key;                    /* everything that it was made from */
    Grammar *grammar;
    GrammarMasks *masks;
    ForcedCall call;                               /* open NULL: not a call; the call's grammar is `grammar` */
    int32_t  users;                                /* the list of kept ones counts as one */
};

struct Constraints {
    pthread_mutex_t lock;
    const rt_engine *g;
    ReplyStyle style;
    TokenTrie *trie, *call_trie;                /* made when first needed; call_trie: with the markers of calls if they
                                                 * are tokens */
    MarkToken  mark[MARK_TOKENS_MAX]; size_t n_marks;
    Constraint *kept[CONSTRAINTS_KEPT];         /* newest first */
};

Constraints *constraints_new(const rt_engine *g, ReplyStyle style)
{
    Constraints *f = calloc(1, sizeof *f);
    if (!f) return NULL;
    f->g = g;
    f->style = style;
    f->n_marks = reply_mark_tokens(f->mark, style, chat_token, (void *) g);
    pthread_mutex_init(&f->lock, NULL);
    return f;
}

/* With the lock held. */
static void drop(Constraint *x)
{
    if (--x->users > 0) return;
    grammar_masks_close(x->masks);
    if (x->call.open) forced_call_free(&x->call);
    else grammar_free(x->grammar);
    free(x->key);
    free(x);
}

void constraints_free(Constraints *f)
{
    if (!f) return;
    for (int i = 0; i < CONSTRAINTS_KEPT; i++)
        if (f->kept[i]) drop(f->kept[i]);
    token_trie_close(f->trie);
    token_trie_close(f->call_trie);
    pthread_mutex_destroy(&f->lock);
    free(f);
}

void constraint_release(Constraint *x)
{
    if (!x) return;
    Constraints *f = x->constraints;
    pthread_mutex_lock(&f->lock);
    drop(x);
    pthread_mutex_unlock(&f->lock);
}

/* ---- tries ---- */

static const char *bytes_of(void *ud, int32_t id, size_t *n) { return rt_token_bytes(((Constraints *) ud)->g, id, n); }
static bool ends(void *ud, int32_t id) { return rt_token_ends(((Constraints *) ud)->g, id); }

static const char *mark_of(void *ud, int32_t id, size_t *n)
{
    const Constraints *f = ud;
    for (size_t i = 0; i < f->n_marks; i++)
        if (f->mark[i].id == id) {
            *n = f->mark[i].n;
            return f->mark[i].bytes;
        }
    return NULL;
}

static Status trie_for(TokenTrie **out, Constraints *f, bool call, Error *err)
{
    bool own = call && f->n_marks > 0;
    TokenTrie **at = own ? &f->call_trie : &f->trie;
    TokenSource from = { f, bytes_of, ends, own ? mark_of : NULL };
    if (!*at) TRY(token_trie_open(at, (int32_t) property(f->g, "model.vocab"), &from, err));
    *out = *at;
    return ST_OK;
}

/* ---- making one ---- */

/* What a constraint is made from, as text: kind, format, names, tools or schema or grammar. */
/* HELD_BEHIND: after a forced call */
typedef enum { MAKE_NONE, MAKE_CALL, MAKE_HELD, MAKE_HELD_BEHIND, MAKE_SCHEMA, MAKE_GRAMMAR, MAKE_REGEX } MakeKind;

static bool holds(MakeKind kind) { return kind == MAKE_HELD || kind == MAKE_HELD_BEHIND; }

static char *key_of(const Constraints *f, const Request *q, MakeKind kind, size_t *n)
{
    bool calls = kind == MAKE_CALL || holds(kind);
    json_t *strict = json_array();
    for (size_t i = 0; holds(kind) && i < q->n_tool; i++)
        json_array_append_new(strict, json_boolean(q->tool[i].strict));
    json_t *j = json_pack("{s:i s:i s:o s:s? s:O? s:s?}", "kind", (int) kind, "calls", (int) f->style.calls,
                          "strict", strict, "name", q->call_choice == CALL_NAMED ? q->call_name : NULL, "of",
                          calls ? q->tools : kind == MAKE_SCHEMA ? q->schema : NULL, "grammar",
                          kind == MAKE_GRAMMAR || kind == MAKE_REGEX ? q->grammar : NULL);
    char *s = j && json_array_size(strict) == (holds(kind) ? q->n_tool : 0) ? json_dumps(j, JSON_COMPACT) : NULL;
    json_decref(j);
    *n = s ? strlen(s) : 0;
    return s;
}

static Constraint *find(Constraints *f, const char *key, size_t n)
{
    for (int i = 0; i < CONSTRAINTS_KEPT && f->kept[i]; i++) {
        Constraint *x = f->kept[i];
        if (x->n_key != n || memcmp(x->key, key, n) != 0) continue;
        memmove(f->kept + 1, f->kept, sizeof *f->kept * (size_t) i);
        f->kept[0] = x;
        x->users++;
        return x;
    }
    return NULL;
}

static void keep(Constraints *f, Constraint *x)
{
    if (f->kept[CONSTRAINTS_KEPT - 1]) drop(f->kept[CONSTRAINTS_KEPT - 1]);
    memmove(f->kept + 1, f->kept, sizeof *f->kept * (CONSTRAINTS_KEPT - 1));
    f->kept[0] = x;
    x->users++;
}

static Status compile_held(Constraint *x, const Constraints *f, const Request *q, bool behind, Error *err)
{
    bool *strict = calloc(q->n_tool, sizeof *strict);
    if (!strict) return fail(err, ST_MEMORY, "out of memory");
    for (size_t i = 0; i < q->n_tool; i++) strict[i] = q->tool[i].strict;
    Status st = held_calls(&x->grammar, f->style, q->tools, strict, behind, err);
    free(strict);
    return st;
}

static Status compile(Constraint *x, const Constraints *f, const Request *q, MakeKind kind, Error *err)
{
    const char *field = q->constraint_field ? q->constraint_field : "response_format";
    if (holds(kind)) return compile_held(x, f, q, kind == MAKE_HELD_BEHIND, err);
    if (kind == MAKE_SCHEMA) return grammar_schema(&x->grammar, q->schema, field, err);
    if (kind == MAKE_GRAMMAR) return grammar_parse(&x->grammar, q->grammar, strlen(q->grammar), field, err);
    if (kind == MAKE_REGEX) return grammar_regex(&x->grammar, q->grammar, strlen(q->grammar), field, err);
    TRY(forced_call(&x->call, f->style.calls, q->tools, &q->call_name, q->call_choice == CALL_NAMED ? 1 : 0, err));
    x->grammar = x->call.grammar;
    return ST_OK;
}

static bool refused(HttpError *e, Status st, const Error *err, const char *field)
{
    return http_fail(e, st == ST_MEMORY ? 500 : 400, NULL, field, "%s", err->text);
}

static bool make(Constraint **out, Constraints *f, const Request *q, MakeKind kind, HttpError *e)
{
    const char *field = kind == MAKE_CALL || holds(kind) ? "tools" : q->constraint_field;
    Error err = { 0 };
    size_t n;
    *out = NULL;
    if (kind == MAKE_NONE) return true;
    char *key = key_of(f, q, kind, &n);
    if (!key) return http_fail(e, 500, NULL, NULL, "out of memory");
    pthread_mutex_lock(&f->lock);
    *out = find(f, key, n);
    pthread_mutex_unlock(&f->lock);
    if (*out) {
        free(key);
        return true;
    }
    /* compiled without the lock: two workers may compile the same one, and one of the two is kept */
    Constraint *x = calloc(1, sizeof *x);
    if (!x) {
        free(key);
        return http_fail(e, 500, NULL, NULL, "out of memory");
    }
    *x = (Constraint) { .constraints = f, .key = key, .n_key = n, .users = 1 };
    Status st = compile(x, f, q, kind, &err);
    TokenTrie *trie = NULL;
    pthread_mutex_lock(&f->lock);
    if (st == ST_OK) st = trie_for(&trie, f, kind == MAKE_CALL || holds(kind), &err);
    if (st == ST_OK) st = grammar_masks_open(&x->masks, x->grammar, trie, 0, &err);
    if (st == ST_OK && holds(kind)) grammar_masks_endless(x->masks);
    if (st == ST_OK) {
        keep(f, x);
        *out = x;
    } else {
        drop(x);
    }
    pthread_mutex_unlock(&f->lock);
    return st == ST_OK || refused(e, st, &err, field);
}

static bool forced(const Request *q)
{
    return q->n_tool > 0 && (q->call_choice == CALL_REQUIRED || q->call_choice == CALL_NAMED);
}

bool constraint_of(Constraint **out, Constraints *f, const Request *q, HttpError *e)
{
    static const MakeKind KINDS[] = { [CONSTRAINT_NONE] = MAKE_NONE, [CONSTRAINT_SCHEMA] = MAKE_SCHEMA,
                                      [CONSTRAINT_GRAMMAR] = MAKE_GRAMMAR, [CONSTRAINT_REGEX] = MAKE_REGEX };
    return make(out, f, q, forced(q) ? MAKE_CALL : KINDS[q->constraint], e);
}

bool constraint_of_calls(Constraint **out, Constraints *f, const Request *q, HttpError *e)
{
    bool strict = false;
    for (size_t i = 0; i < q->n_tool; i++) strict |= q->tool[i].strict;
    return make(out, f, q, strict && q->call_choice != CALL_NONE &&
                f->style.calls != CALLS_NONE ? forced(q) ? MAKE_HELD_BEHIND : MAKE_HELD : MAKE_NONE, e);
}

GrammarText *constraint_text(Constraint *x, int32_t n_max)
{
    GrammarText *t = NULL;
    return grammar_text_open(&t, x->masks, n_max, NULL) == ST_OK ? t : NULL;
}

const char *constraint_prefix(const Constraint *x) { return x->call.open; }
bool        constraint_ends_turn(const Constraint *x) { return !x->call.open || x->call.ends_turn; }
const char *constraint_suffix(const Constraint *x) { return x->call.open ? x->call.close : NULL; }
