/* constrain.c - texts of a given form: the grammars of ratoon_chat.h and the constraint of a session, which follows its
 * text by itself: every step appends its block, rt_take shortens it, rt_prompt begins it anew. */
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "engine/engine.h"
#include "ratoon_chat.h"
#include "text/grammar/grammar.h"

struct rt_grammar { Grammar *g; atomic_int users; };   /* the caller and the sessions that follow it */

static Status compile(Grammar **out, rt_grammar_kind kind, const char *text, size_t n, const char *name, Error *err)
{
    json_t *schema = NULL;
    if (kind == RT_GBNF) return grammar_parse(out, text, n, name, err);
    if (kind != RT_JSON_SCHEMA)
        return fail(err, ST_ARG, "%s: kind %d, expected RT_GBNF or RT_JSON_SCHEMA", name, (int) kind);
    TRY(json_read(&schema, text, n, name, err));
    Status st = grammar_schema(out, schema, name, err);
    json_decref(schema);
    return st;
}

rt_status rt_grammar_new(rt_grammar **out, rt_grammar_kind kind, const char *text, size_t n, const char *name,
                         rt_error *e)
{
    Error err = { 0 };
    rt_grammar *g = *out = calloc(1, sizeof *g);
    if (g) atomic_init(&g->users, 1);
    Status code = g ? compile(&g->g, kind, text, n, name, &err) : fail(&err, ST_MEMORY, "%s: out of memory", name);
    if (code != ST_OK) {
        free(g);
        *out = NULL;
    }
    return engine_report(e, code, &err);
}

void rt_grammar_free(rt_grammar *g)
{
    if (!g || atomic_fetch_sub(&g->users, 1) > 1) return;
    grammar_free(g->g);
    free(g);
}

rt_grammar *grammar_share(const rt_grammar *shared)
{
    rt_grammar *g = (rt_grammar *) (uintptr_t) shared;
    if (g) atomic_fetch_add(&g->users, 1);
    return g;
}

/* ---- the constraint of a session ---- */

static const char *bytes_of(void *ud, int32_t id, size_t *n) { return tokenizer_bytes(ud, id, false, n); }
static bool ends(void *ud, int32_t id) { return tokenizer_is_end(ud, id); }
static bool mask(void *ud, const int32_t *path, size_t n, uint32_t *bits)
{
    return grammar_text_mask(ud, path, n, bits);
}

/* The vocabulary's, made when it is first needed. */
static Status trie_of(TokenTrie **out, rt_engine *g, Error *err)
{
    TokenSource from = { .ud = g->tokenizer, .bytes = bytes_of, .ends = ends };
    Status st = ST_OK;
    if (!g->tokenizer) return fail(err, ST_UNSUPPORTED, "constraint: the model file has no tokenizer");
    pthread_mutex_lock(&g->lock);
    if (!g->trie) st = token_trie_open(&g->trie, g->model->vocab, &from, err);
    *out = g->trie;
    pthread_mutex_unlock(&g->lock);
    return st;
}

void session_goes_on(rt_session *s)
{
    if (s->s.line.status == ST_END || s->s.line.status == ST_NOTOKEN) s->s.line.status = ST_OK;
}

void form_drop(rt_session *s)
{
    if (!s->form) return;
    s->s.line.allow = NULL;
    grammar_text_close(s->form);
    grammar_masks_close(s->masks);
    rt_grammar_free(s->grammar);
    s->form = NULL;
    s->masks = NULL;
    s->grammar = NULL;
    s->form_of = NULL;
    session_goes_on(s);
}

rt_status rt_constrain(rt_session *s, const rt_grammar *g)
{
    Error err = { 0 };
    TokenTrie *trie = NULL;
    if (g && s->s.canvas) return refuse_denoising(s, "constraint");
    form_drop(s);
    session_goes_on(s);
    if (!g) return session_failed(s, ST_OK, "");
    Status code = trie_of(&trie, s->g, &err);
    if (code == ST_OK) code = grammar_masks_open(&s->masks, g->g, trie, 0, &err);
    if (code == ST_OK) code = grammar_text_open(&s->form, s->masks, s->s.line.ctx, &err);
    if (code == ST_OK) {
        s->s.line.allow = mask;
        s->s.line.allow_ud = s->form;
        s->grammar = grammar_share(g);
    } else {
        grammar_masks_close(s->masks);
        s->masks = NULL;
    }
    return session_failed(s, code, err.text);
}

bool rt_constraint_met(const rt_session *s) { return s->form && grammar_text_may_end(s->form); }
bool rt_constraint_done(const rt_session *s) { return s->form && grammar_text_done(s->form); }
const char *form_trouble(const rt_session *s) { return s->form ? grammar_text_trouble(s->form) : NULL; }
void form_restart(rt_session *s) { if (s->form) grammar_text_keep(s->form, 0); }

void form_shorten(rt_session *s, int32_t by)
{
    if (!s->form) return;
    int32_t n = grammar_text_length(s->form) - by;
    grammar_text_keep(s->form, n > 0 ? n : 0);
}

void form_follow(rt_session *s, rt_block *b)
{
    char line[96];
    for (int32_t i = 0; s->form && i < b->n; i++) {
        bool follows = grammar_text_append(s->form, b->token[i]);
        if (follows && !grammar_text_done(s->form)) continue;
        if (!follows) {                            /* only where something else than the masks draws: rt_simulate */
            snprintf(line, sizeof line, "constraint: token %d does not follow the grammar", b->token[i]);
            b->status = session_failed(s, ST_ARG, line);
        }
        session_take(&s->s, i + follows);
        b->n = i + follows;
    }
}
