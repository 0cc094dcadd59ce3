/* grammar.h - what a text may be: rules over characters, compiled from a grammar text or a JSON Schema.
 * Both compilers draw the same graph: nodes that consume one character of a class, branch, call a rule or end one. Bounded on the way
 * (nodes, classes, depth, steps), so that no input can make a compile long or large; what cannot be honoured is refused with its place.
 *
 *     root ::= "[" (item ("," item)*)? "]"
 *
 *     root:  '[' ──▶ ○ ──▶ call item ──▶ ○ ──▶ ']' ──▶ end          a rule is a piece of graph that ends in node 0;
 *                    │           ▲       │     ▲                     call: its text, then on with `next`
 *                    │           └─ ',' ◀┘     │
 *                    └─────────────────────────┘
 */
#ifndef RATOON_TEXT_GRAMMAR_H
#define RATOON_TEXT_GRAMMAR_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

enum { GRAMMAR_NODES_MAX = 1 << 20, GRAMMAR_RULES_MAX = 100000, GRAMMAR_STEPS_MAX = 1 << 22, GRAMMAR_NEST_MAX = 100, GRAMMAR_TEXT_MAX = 4 << 20 };

typedef struct Grammar Grammar;                    /* immutable: any number of threads may use one */

/* A grammar text: rules `name ::= ...`, the first one used is `root` (doc/grammar.md). ST_FORMAT: "NAME:LINE:COLUMN: ...". */
Status grammar_parse(Grammar **out, const char *s, size_t n, const char *name, Error *err);
/* A JSON Schema: the texts are JSON documents that are valid by it, in the property order and the spacing of doc/grammar.md.
 * ST_FORMAT, ST_UNSUPPORTED: "NAME: #/json/pointer: ...". The schema may be freed afterwards. */
Status grammar_schema(Grammar **out, const json_t *schema, const char *name, Error *err);
/* A grammar text some of whose rules are JSON Schemas: rule is used in the text and not defined there; it is a document valid by the schema,
 * without space before it. root, path: where its local $ref begin, and its own JSON pointer from there ("": itself). schema NULL: the rule is
 * one byte of [lo, hi], above 0x7f, that is part of no character - what a TokenSource makes of marks. */
typedef struct { const char *rule; const json_t *schema, *root; const char *name, *path; uint8_t lo, hi; } GrammarSchema;
Status grammar_compose(Grammar **out, const char *s, size_t n, const char *name, const GrammarSchema *schema, size_t n_schemas, Error *err);
void   grammar_free(Grammar *g);                   /* NULL is fine */
size_t grammar_bytes(const Grammar *g);            /* memory that it holds */

#endif
