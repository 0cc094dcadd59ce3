#include "programs/constraint.h"

#include <stdlib.h>
#include <string.h>

#include "base/json.h"

bool constraint_read(Constraint *c, const Options *o)
{
    *c = (Constraint) { 0 };
    const char *from = o->grammar ? o->grammar : o->json_schema;
    bool in_line = o->json_schema && from[0] == '{';
    char *s = NULL;
    size_t n;
    Error err = { 0 };
    if (!from) return true;
    if (!in_line && !text_read(o, &s, &n, from)) return false;
    Status st;
    if (o->grammar) {
        st = grammar_parse(&c->grammar, s, n, base_name(from), &err);
    } else {
        const char *name = in_line ? "--json-schema" : base_name(from), *text = in_line ? from : s;
        json_t *schema = NULL;
        st = json_read(&schema, text, in_line ? strlen(from) : n, name, &err);
        if (st == ST_OK) st = grammar_schema(&c->grammar, schema, name, &err);
        json_decref(schema);
    }
    free(s);
    if (st != ST_OK) complain(o, "%s", err.text);
    return st == ST_OK;
}

static const char *bytes_of(void *ud, int32_t id, size_t *n) { return rt_token_bytes(ud, id, n); }
static bool ends(void *ud, int32_t id) { return rt_token_ends(ud, id); }
static bool mask(void *ud, const int32_t *path, size_t n, uint32_t *bits) { return grammar_text_mask(ud, path, n, bits); }

bool constraint_begin(Constraint *c, Program *p)
{
    Error err = { 0 };
    if (!c->grammar) return true;
    if (!rt_has_tokenizer(p->engine)) return complain(p->o, "%s: it carries no tokenizer, so tokens cannot follow a grammar", p->files.model) == 0;
    TokenSource from = { .ud = p->engine, .bytes = bytes_of, .ends = ends };
    Status st = token_trie_open(&c->trie, (int32_t) property(p->engine, "model.vocab"), &from, &err);
    if (st == ST_OK) st = grammar_masks_open(&c->masks, c->grammar, c->trie, 0, &err);
    if (st == ST_OK) st = grammar_text_open(&c->text, c->masks, rt_session_ctx(p->session), &err);
    if (st != ST_OK) return complain(p->o, "%s", err.text) == 0;
    return rt_allow(p->session, mask, c->text) == RT_OK || complain(p->o, "%s", rt_session_error(p->session)) == 0;
}

bool constraint_token(Constraint *c, int32_t token) { return !c->text || grammar_text_append(c->text, token); }
bool constraint_done(const Constraint *c) { return c->text && grammar_text_done(c->text); }
const char *constraint_trouble(const Constraint *c) { return c->text ? grammar_text_trouble(c->text) : NULL; }

void constraint_close(Constraint *c)
{
    grammar_text_close(c->text);
    grammar_masks_close(c->masks);
    token_trie_close(c->trie);
    grammar_free(c->grammar);
    *c = (Constraint) { 0 };
}
