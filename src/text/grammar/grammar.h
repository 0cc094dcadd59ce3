/* grammar.h - which texts are allowed: rules over characters, compiled from a grammar text or a JSON Schema.
 * Both compilers build the same kind of graph: nodes that consume one character of a class, branch, call a rule or end
 * one. Nodes, classes, depth and steps are limited, so that no input makes compiling slow or large; what cannot be
 * enforced is refused with its place.
 *
 *     root ::= "[" (item ("," item)*)? "]"
 *
 *     root:  '[' ──▶ ○ ──▶ call item ──▶ ○ ──▶ ']' ──▶ end          a rule is a piece of graph that ends in node 0;
 *                    │           ▲       │     ▲                     call: its text, then continue at `next`
 *                    │           └─ ',' ◀┘     │
 *                    └─────────────────────────┘
 */
#ifndef RATOON_TEXT_GRAMMAR_GRAMMAR_H
#define RATOON_TEXT_GRAMMAR_GRAMMAR_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

enum { GRAMMAR_NODES_MAX = 1 << 20, GRAMMAR_RULES_MAX = 100000, GRAMMAR_STEPS_MAX = 1 << 22, GRAMMAR_NEST_MAX = 100,
       GRAMMAR_TEXT_MAX = 4 << 20 };

typedef struct Grammar Grammar;                    /* immutable: several threads may use one */

/* Compiles a grammar text: rules `name ::= ...`, starting from `root` (doc/grammar.md). ST_FORMAT:
 * "NAME:LINE:COLUMN: ...". */
Status grammar_parse(Grammar **out, const char *s, size_t n, const char *name, Error *err);
/* Compiles a JSON Schema: the texts are the JSON documents that it accepts, in the property order and the spacing of
 * doc/grammar.md. ST_FORMAT, ST_UNSUPPORTED: "NAME: #/json/pointer: ...". The schema may be freed afterwards. */
Status grammar_schema(Grammar **out, const json_t *schema, const char *name, Error *err);
/* Compiles a regular expression, as `pattern` of a schema takes it: the texts are those that it matches as a whole.
 * ST_FORMAT, ST_UNSUPPORTED: "NAME: ... (at byte N of '...')". */
Status grammar_regex(Grammar **out, const char *s, size_t n, const char *name, Error *err);
/* A rule that a grammar text uses but does not define: a document that the schema accepts, without leading space.
 * root, path: the document in which local $ref are looked up, and the schema's JSON pointer in it ("": root itself).
 * If schema is NULL, the rule is one byte of [lo, hi], above 0x7f and part of no character, such as a TokenSource
 * returns for marks. */
typedef struct {
    const char *rule;
    const json_t *schema, *root;
    const char *name, *path;
    uint8_t lo, hi;
} GrammarSchema;
Status grammar_compose(Grammar **out, const char *s, size_t n, const char *name, const GrammarSchema *schema,
                       size_t n_schemas, Error *err);
void   grammar_free(Grammar *g);                   /* NULL is fine */
size_t grammar_bytes(const Grammar *g);            /* memory that the grammar holds */

#endif
