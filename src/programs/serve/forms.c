#include "programs/serve/forms.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { FORMS_KEPT = 8 };

struct Form {
    Forms   *forms;
    char    *key; size_t n_key;                    /* everything that it was made from */
    Grammar *grammar;
    GrammarMasks *masks;
    ForcedCall call;                               /* open NULL: not a call; its grammar is `grammar` */
    int32_t  users;                                /* the shelf is one */
};

struct Forms {
    pthread_mutex_t lock;
    const rt_engine *g;
    ReplyStyle style;
    TokenTrie *trie, *call_trie;                   /* made when first needed; call_trie: with the marker inside calls, where there is one */
    int32_t    inner_id;
    const char *inner;
    Form      *kept[FORMS_KEPT];                   /* newest first */
};

Forms *forms_new(const rt_engine *g, ReplyStyle style)
{
    Forms *f = calloc(1, sizeof *f);
    if (!f) return NULL;
    f->g = g;
    f->style = style;
    f->inner = reply_inner_marker(style.calls);
    f->inner_id = f->inner ? rt_token_find(g, f->inner, strlen(f->inner)) : -1;
    pthread_mutex_init(&f->lock, NULL);
    return f;
}

/* With the lock. */
static void drop(Form *x)
{
    if (--x->users > 0) return;
    grammar_masks_close(x->masks);
    if (x->call.open) forced_call_free(&x->call);
    else grammar_free(x->grammar);
    free(x->key);
    free(x);
}

void forms_free(Forms *f)
{
    if (!f) return;
    for (int i = 0; i < FORMS_KEPT; i++)
        if (f->kept[i]) drop(f->kept[i]);
    token_trie_close(f->trie);
    token_trie_close(f->call_trie);
    pthread_mutex_destroy(&f->lock);
    free(f);
}

void form_release(Form *x)
{
    if (!x) return;
    Forms *f = x->forms;
    pthread_mutex_lock(&f->lock);
    drop(x);
    pthread_mutex_unlock(&f->lock);
}

/* ---- tries ---- */

static const char *bytes_of(void *ud, int32_t id, size_t *n) { return rt_token_bytes(((Forms *) ud)->g, id, n); }
static bool ends(void *ud, int32_t id) { return rt_token_ends(((Forms *) ud)->g, id); }

static const char *call_bytes_of(void *ud, int32_t id, size_t *n)
{
    Forms *f = ud;
    if (id != f->inner_id) return bytes_of(ud, id, n);
    *n = strlen(f->inner);
    return f->inner;
}

static Status trie_for(TokenTrie **out, Forms *f, bool call, Error *err)
{
    bool own = call && f->inner_id >= 0;
    TokenTrie **at = own ? &f->call_trie : &f->trie;
    TokenSource from = { f, own ? call_bytes_of : bytes_of, ends };
    if (!*at) TRY(token_trie_open(at, (int32_t) property(f->g, "model.vocab"), &from, err));
    *out = *at;
    return ST_OK;
}

/* ---- making one ---- */

/* What the form is made from, as text: kind, format, names, tools or schema or grammar. */
static char *key_of(const Forms *f, const Request *q, const char *kind, size_t *n)
{
    json_t *j = json_pack("{s:s s:i s:s? s:O? s:s?}", "kind", kind, "calls", (int) f->style.calls, "name", q->call_choice == CALL_NAMED ? q->call_name : NULL, "of",
                          strcmp(kind, "call") == 0 ? q->tools : strcmp(kind, "schema") == 0 ? q->schema : NULL, "grammar", strcmp(kind, "grammar") == 0 ? q->grammar : NULL);
    char *s = j ? json_dumps(j, JSON_COMPACT) : NULL;
    json_decref(j);
    *n = s ? strlen(s) : 0;
    return s;
}

static Form *find(Forms *f, const char *key, size_t n)
{
    for (int i = 0; i < FORMS_KEPT && f->kept[i]; i++) {
        Form *x = f->kept[i];
        if (x->n_key != n || memcmp(x->key, key, n) != 0) continue;
        memmove(f->kept + 1, f->kept, sizeof *f->kept * (size_t) i);
        f->kept[0] = x;
        x->users++;
        return x;
    }
    return NULL;
}

static void keep(Forms *f, Form *x)
{
    if (f->kept[FORMS_KEPT - 1]) drop(f->kept[FORMS_KEPT - 1]);
    memmove(f->kept + 1, f->kept, sizeof *f->kept * (FORMS_KEPT - 1));
    f->kept[0] = x;
    x->users++;
}

static Status compile(Form *x, const Forms *f, const Request *q, bool call, Error *err)
{
    const char *field = q->constraint_field ? q->constraint_field : "response_format";
    if (call) {
        TRY(forced_call(&x->call, f->style.calls, q->tools, &q->call_name, q->call_choice == CALL_NAMED ? 1 : 0, err));
        x->grammar = x->call.grammar;
        return ST_OK;
    }
    if (q->constraint == CONSTRAINT_SCHEMA) return grammar_schema(&x->grammar, q->schema, field, err);
    return grammar_parse(&x->grammar, q->grammar, strlen(q->grammar), field, err);
}

static bool refused(HttpError *e, Status st, const Error *err, const char *field)
{
    return http_fail(e, st == ST_MEMORY ? 500 : 400, NULL, field, "%s", err->text);
}

bool form_of(Form **out, Forms *f, const Request *q, HttpError *e)
{
    bool call = q->tools && json_array_size(q->tools) > 0 && (q->call_choice == CALL_REQUIRED || q->call_choice == CALL_NAMED);
    const char *kind = call ? "call" : q->constraint == CONSTRAINT_SCHEMA ? "schema" : "grammar", *field = call ? "tools" : q->constraint_field;
    Error err = { 0 };
    size_t n;
    *out = NULL;
    if (!call && q->constraint == CONSTRAINT_NONE) return true;
    char *key = key_of(f, q, kind, &n);
    if (!key) return http_fail(e, 500, NULL, NULL, "out of memory");
    pthread_mutex_lock(&f->lock);
    *out = find(f, key, n);
    pthread_mutex_unlock(&f->lock);
    if (*out) {
        free(key);
        return true;
    }
    Form *x = calloc(1, sizeof *x);                /* compiled without the lock: two workers may make the same, and one of them stays */
    if (!x) {
        free(key);
        return http_fail(e, 500, NULL, NULL, "out of memory");
    }
    *x = (Form) { .forms = f, .key = key, .n_key = n, .users = 1 };
    Status st = compile(x, f, q, call, &err);
    TokenTrie *trie = NULL;
    pthread_mutex_lock(&f->lock);
    if (st == ST_OK) st = trie_for(&trie, f, call, &err);
    if (st == ST_OK) st = grammar_masks_open(&x->masks, x->grammar, trie, 0, &err);
    if (st == ST_OK) {
        keep(f, x);
        *out = x;
    } else {
        drop(x);
    }
    pthread_mutex_unlock(&f->lock);
    return st == ST_OK || refused(e, st, &err, field);
}

GrammarText *form_text(Form *x, int32_t n_max)
{
    GrammarText *t = NULL;
    return grammar_text_open(&t, x->masks, n_max, NULL) == ST_OK ? t : NULL;
}

const char *form_open(const Form *x) { return x->call.open; }
const char *form_close(const Form *x) { return x->call.open ? x->call.close : NULL; }
