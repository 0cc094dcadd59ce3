/* grammar_graph.h - the graph of a grammar and how it is drawn: backwards, from what follows to what comes first.
 * Every grammar_* drawing function takes the node that comes after and returns the entry node. A rule's last node is
 * NODE_DONE. GRAPH_NONE stands for "impossible": a failed drawing returns it, and an alternative that is GRAPH_NONE
 * is left out. */
#ifndef RATOON_TEXT_GRAMMAR_GRAMMAR_GRAPH_H
#define RATOON_TEXT_GRAMMAR_GRAMMAR_GRAPH_H

#include "text/grammar/grammar.h"

typedef struct { uint32_t lo, hi; } CharRange;     /* inclusive */

/* A set of characters (scalar values: no surrogates). first: the bytes that its characters can begin with. Or, if
 * raw, a set of single bytes above 0x7f that are part of no character; its ranges are offset by RAW_CODE. */
enum { RAW_CODE = 0x110000 };
typedef struct {
    uint32_t at, n;                                /* ranges, ascending and disjoint */
    bool     wide;                                 /* contains every character above ASCII */
    bool     raw;
    uint64_t first[4];
} CharClass;

typedef enum { NODE_END, NODE_CHAR, NODE_CALL, NODE_SPLIT } NodeType;
typedef struct {
    uint8_t  type;
    bool     live;                  /* the rule's end can be reached from here; other nodes are never entered */
    uint32_t arg;                   /* CHAR: class; CALL: rule; SPLIT: the other branch */
    uint32_t next;
    uint32_t run;                   /* CHAR: at least this many characters of its class in a row are allowed from
                                     * here */
} Node;
enum { NODE_DONE = 0 };
#define GRAPH_NONE UINT32_MAX
#define RUN_ENDLESS UINT32_MAX

typedef struct { uint32_t rule, ret; } Call;       /* ret: where the caller continues */

/* chars, calls: what a rule can begin with, without what its callees begin with. order: a rule that can begin with a
 * call comes before the called rule. */
typedef struct {
    uint32_t start, order;
    bool     nullable, live;
    uint32_t chars, n_chars, calls, n_calls;       /* into entry_char, entry_call */
} Rule;

struct Grammar {
    Node      *node;  uint32_t n_nodes;
    Rule      *rule;  uint32_t n_rules;            /* rule 0 is the root */
    CharClass *cls;   uint32_t n_classes;
    CharRange *range; uint32_t n_ranges;
    uint32_t  *entry_char, n_entry_chars;
    Call      *entry_call; uint32_t n_entry_calls;
    uint32_t  *by_order;                           /* [n_rules] rule by order number; dead rules have none */
};

/* ---- drawing ---- */

typedef struct {
    Grammar   *g;
    size_t     cap_nodes, cap_rules, cap_classes, cap_ranges;
    uint32_t  *slot, n_slots;                      /* classes by hash */
    uint32_t   ascii[128];                         /* class of this one character, plus 1; 0: none yet */
    uint32_t   steps;
    Status     st;                                 /* sticky: after an error every drawing returns GRAPH_NONE */
    const char *why;                               /* without the place, which the caller knows */
} Graph;

Status   graph_open(Graph *b, Error *err);
void     graph_drop(Graph *b);                     /* frees it without a result */
bool     graph_step(Graph *b);                     /* counts work that draws nothing; false: too much */
void     graph_fail(Graph *b, Status st, const char *why);
/* Sorts and joins the ranges in place; returns the class of the set. */
uint32_t graph_class(Graph *b, CharRange *r, uint32_t n);
uint32_t graph_rule(Graph *b);                     /* a new rule without a start */
uint32_t graph_char(Graph *b, uint32_t cls, uint32_t next);
uint32_t graph_one(Graph *b, uint32_t cp, uint32_t next);
uint32_t graph_range(Graph *b, uint32_t lo, uint32_t hi, uint32_t next);
/* one byte of these, above 0x7f, that is part of no character */
uint32_t graph_byte(Graph *b, uint8_t lo, uint8_t hi, uint32_t next);
uint32_t graph_call(Graph *b, uint32_t rule, uint32_t next);
uint32_t graph_split(Graph *b, uint32_t one, uint32_t other);
uint32_t graph_loop(Graph *b, uint32_t next);      /* a branch whose first way graph_close sets */
void     graph_close(Graph *b, uint32_t loop, uint32_t body);
uint32_t graph_text(Graph *b, const char *s, size_t n, uint32_t next);         /* well-formed UTF-8 */
/* Checks and finishes the graph. *bad_rule: the rule that an error is about. b is consumed either way. */
Status   graph_finish(Grammar **out, Graph *b, uint32_t *bad_rule, const char **why);

/* ---- parsed expressions: what grammar texts and patterns have in common ---- */

typedef enum { EXPR_EMPTY, EXPR_CHAR, EXPR_SEQ, EXPR_ALT, EXPR_REPEAT, EXPR_RULE } ExprType;
typedef struct {
    uint8_t  type;
    uint32_t arg;                                  /* CHAR: class; RULE: rule; SEQ, ALT: last part; REPEAT: part */
    uint32_t link;                                 /* the part before this one in its SEQ or ALT */
    uint32_t min, max;                             /* REPEAT; max GRAPH_NONE: unlimited */
} Expr;
typedef struct { Expr *at; uint32_t n; size_t cap; } Exprs;

uint32_t expr_new(Graph *b, Exprs *x, ExprType type, uint32_t arg);         /* GRAPH_NONE: out of memory, or too many */
void     expr_append(Exprs *x, uint32_t list, uint32_t part);
/* json: the characters are those of a JSON string, in the one spelling that doc/grammar.md gives. */
uint32_t expr_draw(Graph *b, const Exprs *x, uint32_t e, bool json, uint32_t next);
/* Length in characters of the shortest and longest text; *max GRAPH_NONE: no limit. Only for expressions without
 * rules. */
void     expr_length(const Exprs *x, uint32_t e, uint32_t *min, uint32_t *max);

/* One character of a JSON string, in its only spelling: as itself, or with the escape that JSON requires. */
uint32_t graph_json_char(Graph *b, uint32_t cls, uint32_t next);
uint32_t graph_json_text(Graph *b, const char *s, size_t n, uint32_t next);    /* the inside of a string */

/* ---- pieces of JSON (grammar_number.c, grammar_regex.c) ---- */

/* Decimal limits as text, in the form strtod reads; NULL: none. */
/* places: digits after the point, -1: any number */
typedef struct { const char *min, *max; bool above, below; int32_t places; bool whole; } NumberRange;
uint32_t graph_number(Graph *b, const NumberRange *r, uint32_t next);
/* A regular expression over characters; whole: for a whole text, else for a part of it. *at: byte of the error. */
bool     regex_parse(Graph *b, Exprs *x, const char *s, size_t n, bool whole, uint32_t *out, size_t *at);

/* ---- JSON Schemas as rules of a graph (grammar_schema.c) ---- */

/* Rules drawn once are shared by all schemas of the set. Errors name the schema and the place in it. Close *out even
 * after a failure. */
typedef struct SchemaSet SchemaSet;
Status schema_set_open(SchemaSet **out, Graph *b, const char *name, Error *err);
Status schema_set_draw(SchemaSet *s, const GrammarSchema *g, uint32_t *rule);
/* Turns what graph_finish found wrong with a rule into an error of the schema that the rule belongs to. */
Status schema_set_blame(SchemaSet *s, uint32_t rule, Status st, const char *why);
void   schema_set_close(SchemaSet *s);

/* ---- characters ---- */

/* Reads one more byte of a character of the class. part 0: at the character's beginning. CHAR_MORE: *part encodes
 * what has been read. */
typedef enum { CHAR_NO, CHAR_MORE, CHAR_DONE } CharStep;
CharStep class_step(const Grammar *g, uint32_t cls, uint32_t *part, uint8_t byte);

#endif
