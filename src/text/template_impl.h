/* template_impl.h - what the parts of the template engine share: memory, failures, values, the tree.
 * Memory is a heap of chunks that is freed whole, once the template is closed or the render is over, so nothing is freed one by one.
 * A failure leaves through one longjmp to the entry point, which owns no other resource; that keeps every function here a plain
 * expression of what it computes. Recursion follows the nesting of the source (bounded by the parser), calls of macros and the depth of
 * values, each with its limit.
 *
 * A string is a view of a buffer. Appending to the string that ends where its buffer ends extends the buffer in place, so that text
 * gathered piece by piece costs what it is long; older views stay what they were:
 *
 *      buffer  | h e l l o _ w o r l d |      |         "hello" and "hello world" are both views of it
 *      client            [-----]                        bytes from outside, as ascending spans
 */
#ifndef RATOON_TEXT_TEMPLATE_IMPL_H
#define RATOON_TEXT_TEMPLATE_IMPL_H

#include <setjmp.h>

#include "text/template.h"

enum { VALUE_DEPTH_MAX = 200, LEVELS_MAX = 1000 };     /* nesting of values; of nodes under evaluation, through all calls */

/* ---- failures and memory ---- */

typedef struct {
    jmp_buf        out;
    TemplateError *err;
    const char    *name, *source;                  /* newlines are \n in it */
    size_t         n;
} Fault;

/* Notes the failure at that byte of the source and leaves. SIZE_MAX: no place. */
_Noreturn void fault(Fault *f, Status code, size_t at, const char *format, ...) __attribute__((format(printf, 4, 5)));
/* A piece of text for a message: cut to 40 bytes. */
#define SHOWN(s, n) (int) ((n) < 40 ? (n) : 40), (s)

typedef struct HeapChunk HeapChunk;
typedef struct { HeapChunk *last; size_t bytes, max; Fault *fault; } Heap;
void *heap_take(Heap *h, size_t n);                /* aligned for anything, zeroed; never NULL */
/* Larger memory with the same first `old` bytes; in place where it is the heap's last piece. */
void *heap_grow(Heap *h, void *p, size_t old, size_t n);
void  heap_free(Heap *h);

/* ---- values ---- */

typedef enum {
    V_UNSET,                                       /* an argument that was not given */
    V_UNDEFINED, V_NONE, V_BOOL, V_INT, V_FLOAT, V_STRING, V_LIST, V_TUPLE, V_DICT, V_NAMESPACE, V_LOOP, V_MACRO, V_METHOD, V_FUNCTION
} ValueKind;

typedef struct { uint32_t at, n; } Span;
typedef struct {
    char    *bytes;
    uint32_t n, cap;
    Span    *client;                               /* [n_client] */
    uint32_t n_client, cap_client;
} Buffer;

typedef struct List List;
typedef struct Dict Dict;
typedef struct Loop Loop;
typedef struct Macro Macro;
typedef struct Method Method;
typedef struct Function Function;

typedef struct {
    uint8_t  kind;
    bool     client;                               /* numbers, booleans and none: from outside */
    bool     safe;                                 /* strings: through the filter safe or escape, so that + escapes what it adds */
    uint32_t at, n;                                /* strings: bytes [at, at + n) of the buffer; undefined: likewise, its name */
    union {
        bool b; int64_t i; double f;
        Buffer *text; List *list; Dict *dict; Loop *loop; Macro *macro; Method *method; const Function *function;
    };
} Value;

struct List { Value *item; uint32_t n, cap; bool client, lazy; };      /* lazy: a generator in Python: always true, no length */
typedef struct { Value key, value; } Pair;
struct Dict { Pair *pair; uint32_t n, cap; uint32_t *slot, mask; bool client; };   /* in order of insertion; slot: from 9 pairs on */

static inline Value value_none(void) { return (Value) { .kind = V_NONE }; }
static inline Value value_bool(bool b) { return (Value) { .kind = V_BOOL, .b = b }; }
static inline Value value_int(int64_t i) { return (Value) { .kind = V_INT, .i = i }; }
static inline Value value_float(double f) { return (Value) { .kind = V_FLOAT, .f = f }; }
static inline Value value_undefined(void) { return (Value) { .kind = V_UNDEFINED }; }
static inline const char *text_of(const Value *v) { return v->text && v->text->bytes ? v->text->bytes + v->at : ""; }
static inline bool is_set(const Value *v) { return v->kind != V_UNSET; }

typedef struct Render Render;

/* buffers and strings */
Buffer *buffer_new(Render *r, size_t room);
void  buffer_put(Render *r, Buffer *b, const char *s, size_t n, bool client);
void  buffer_put_text(Render *r, Buffer *b, const Value *v);           /* a string with its marks */
void  buffer_put_part(Render *r, Buffer *b, const Value *v, size_t at, size_t n);
Value buffer_value(Buffer *b);
Value text_new(Render *r, const char *s, size_t n);
Value text_part(const Value *v, size_t at, size_t n);
Value text_join(Render *r, Value a, const Value *b);                   /* one after the other, not safe */
bool  text_is(const Value *v, const char *s);
bool  text_client(const Value *v, size_t at);                          /* whether that byte came from outside */
/* lists and dicts */
Value list_new(Render *r, ValueKind kind, size_t room);
void  list_put(Render *r, List *l, Value v);
Value dict_new(Render *r);
void  dict_set(Render *r, Dict *d, Value key, Value value);
Value *dict_find(Render *r, const Dict *d, const Value *key);          /* NULL: none; an unhashable key is an error */
Value *dict_find_name(const Dict *d, const char *name, size_t n);
bool  dict_remove(Render *r, Dict *d, const Value *key, Value *removed);
Value value_from_json(Render *r, const json_t *j, Origin origin);
/* what Python says of them */
bool  value_true(const Value *v);
bool  value_equal(Render *r, const Value *a, const Value *b);
int   value_compare(Render *r, const Value *a, const Value *b);        /* -1, 0, 1; an error where they have no order */
void  pairs_sort(Render *r, Pair *pair, uint32_t n, bool reverse);     /* by key, stable */
bool  value_contains(Render *r, const Value *in, const Value *v);
const char *kind_name(const Value *v);
bool  is_number(const Value *v);                                       /* bool included, as in Python */
double as_float(const Value *v);
bool  as_int(const Value *v, int64_t *i);                              /* int or bool */
Value value_iterate(Render *r, Value v);                               /* as a list or tuple; an error where it cannot be iterated */
/* printing, template_print.c */
typedef struct { bool ascii, sorted, pretty; Value indent, item_sep, key_sep; } JsonStyle;
Value value_text(Render *r, Value v);                                  /* str(v) */
void  print_text(Render *r, Buffer *out, const Value *v);
void  print_repr(Render *r, Buffer *out, const Value *v, int32_t depth);
void  print_json(Render *r, Buffer *out, const Value *v, const JsonStyle *style, int32_t depth);
bool  read_float(double *out, const char *s, size_t n);                /* all of s, with a point whatever the locale */

/* strings, template_strings.c: what filters and methods have in common */
enum { STRIP_LEFT = 1, STRIP_RIGHT = 2 };
typedef enum { CASE_UPPER, CASE_LOWER, CASE_CAPITALIZE, CASE_TITLE, CASE_TITLE_WORDS, CASE_SWAP } TextCase;
bool   is_space(uint32_t cp);
size_t strip_end(const char *s, size_t n);                             /* length without white space at the end */
size_t strip_start(const char *s, size_t n);                           /* bytes of white space at the start */
Value  text_strip(Render *r, const Value *v, const Value *chars, int sides);   /* chars: unset or none: white space */
Value  text_escape(Render *r, const Value *v);                         /* for HTML; what is safe stays */
Value  text_case(Render *r, const Value *v, TextCase how);
Value  text_replace(Render *r, const Value *v, const Value *old, const Value *new, int64_t count);     /* count < 0: all */
Value  text_split(Render *r, const Value *v, const Value *sep, int64_t max, bool right);
Value  text_lines(Render *r, const Value *v, bool keep_ends);
Value  text_slice(Render *r, const Value *v, int64_t start, int64_t step, int64_t count);
int64_t text_length(Render *r, const Value *v);                        /* characters */
Value  text_char(Render *r, const Value *v, int64_t index);            /* undefined where there is none */
int64_t text_find(Render *r, const Value *v, const Value *part, int64_t start, int64_t stop, bool right);  /* -1: none */
int64_t text_count(Render *r, const Value *v, const Value *part);
Value  text_repeat(Render *r, const Value *v, int64_t times);
Value  text_percent(Render *r, const Value *format, const Value *args);        /* "%s" % args; args a tuple, or a dict, or one value */
Value  text_braces(Render *r, const Value *format, const List *args, const Dict *named);

/* Start, step and number of the items that Python's slice takes of n. */
void slice_of(Render *r, int64_t n, const Value *start, const Value *stop, const Value *step, int64_t *first, int64_t *by, int64_t *count);

/* ---- the tree ---- */

typedef enum {
    /* statements; body in a, the other branch in b */
    N_TEXT, N_PRINT, N_IF, N_FOR, N_SET, N_SET_BLOCK, N_MACRO, N_CALL_BLOCK, N_FILTER_BLOCK, N_WITH, N_SCOPE, N_BREAK, N_CONTINUE, N_DO,
    /* expressions; operands in a and on along next */
    N_NAME, N_VALUE, N_LIST, N_TUPLE, N_DICT, N_IF_ELSE, N_OR, N_AND, N_NOT, N_COMPARE, N_CHAIN, N_CONCAT, N_NEGATE, N_PLUS, N_MEMBER,
    /* one after another on a base (N_POSTFIX: base in a, operations in b) */
    N_POSTFIX, N_ATTRIBUTE, N_ITEM, N_SLICE, N_CALL, N_FILTER, N_TEST
} NodeKind;

typedef enum { OP_ADD, OP_SUB, OP_MUL, OP_DIV, OP_FLOOR, OP_MOD, OP_POW, OP_EQ, OP_NE, OP_LT, OP_GT, OP_LE, OP_GE, OP_IN, OP_NOT_IN } Operator;

typedef struct Node Node;
typedef struct Builtin Builtin;
struct Node {
    uint8_t  kind, op;                             /* op: how this operand is tied to the ones before it; flags of a macro; negated test */
    uint32_t at;                                   /* byte of the source */
    Node    *next;
    Node    *a, *b, *c, *d;
    Value    value;                                /* of N_VALUE and N_TEXT; else a name */
    const Builtin *builtin;                        /* of a filter or test */
};
enum { MACRO_VARARGS = 1, MACRO_KWARGS = 2, MACRO_CALLER = 4 };        /* names that a macro's body uses */

struct Template {
    Heap   heap;
    char  *name, *source;
    size_t n;
    Node  *body;
};

/* tokens, template_lex.c */
typedef enum {
    T_END, T_TEXT, T_PRINT_BEGIN, T_PRINT_END, T_BLOCK_BEGIN, T_BLOCK_END, T_NAME, T_STRING, T_INT, T_FLOAT,
    T_ADD, T_SUB, T_MUL, T_DIV, T_FLOOR, T_MOD, T_POW, T_TILDE, T_EQ, T_NE, T_LT, T_GT, T_LE, T_GE, T_ASSIGN, T_DOT, T_COLON, T_COMMA, T_PIPE,
    T_SEMICOLON, T_LPAREN, T_RPAREN, T_LBRACKET, T_RBRACKET, T_LBRACE, T_RBRACE
} TokenKind;
typedef struct { TokenKind kind; uint32_t at, n; } Token;
typedef struct {
    Fault      *fault;
    const char *s;
    size_t      n, at;
    int         mode;                              /* what the next byte is part of */
    bool        line_start;                        /* what was read last ended with a newline */
    char        open[TEMPLATE_NESTING_MAX + 2];    /* brackets to be closed */
    int32_t     n_open;
} Lexer;
void  lexer_begin(Lexer *x, Fault *f, const char *s, size_t n);
Token lexer_next(Lexer *x);
/* Value of a string or number token; strings get memory from the heap. */
size_t lexer_string(const Lexer *x, const Token *t, char *out);        /* at most t->n bytes */
Value lexer_number(const Lexer *x, const Token *t);
const char *token_name(TokenKind kind);            /* for "expected ..." */

Node *parse_template(Template *t, Fault *f);

/* ---- rendering ---- */

typedef struct Scope Scope;
struct Scope { Scope *parent; Dict vars; bool kept; };                 /* kept: a macro refers to it */

struct Loop {
    const Node *node;
    const Value *item;
    uint32_t n, index;
    int32_t  depth;
    Scope   *scope;                                /* around the loop */
    Value    changed;                              /* the last arguments of loop.changed */
};
struct Macro { const Node *node; Scope *scope; Value name; const Node *body, *params; };   /* also the caller of a call block */

/* Arguments of a call in the order of the callee's parameters; V_UNSET where none was given. */
enum { ARGS_MAX = 8 };
typedef struct { Value at[ARGS_MAX]; List *more; Dict *named; } Args;   /* more, named: what takes any number */

/* A filter or test: value is what it is applied to. params: names between spaces, "*" takes any arguments. */
struct Builtin { const char *name; Value (*call)(Render *r, const Builtin *self, Value value, const Args *args); const char *params; int32_t how; };
struct Function { const char *name; Value (*call)(Render *r, const Args *args); const char *params; };
typedef struct { const char *name; Value (*call)(Render *r, Value *self, const Args *args, int32_t how); const char *params; int32_t how; } MethodSpec;
struct Method { const MethodSpec *spec; Value self; };

struct Render {
    Fault    fault;
    Heap     heap;
    const Template *t;
    Buffer  *out;
    Scope   *root, *scope;
    int64_t  steps, steps_max;
    int32_t  calls, levels;
    uint32_t at;                                   /* of the node at work, for messages */
    const struct tm *now;
    bool     lax;
};

_Noreturn void render_fail(Render *r, const char *format, ...) __attribute__((format(printf, 2, 3)));
void  render_spend(Render *r, size_t work);        /* steps beyond one per node: a step for each item, or 256 bytes */
Value render_text(Render *r, const Value *v);      /* v as a string; undefined: "" */
void  render_body(Render *r);
Value get_attribute(Render *r, Value v, const Value *name, bool call);
Value get_item(Render *r, Value v, const Value *key);
Value value_add(Render *r, Value a, const Value *b);
Value value_remainder(Render *r, const Value *a, const Value *b);      /* a % b */

const Builtin *filter_find(const char *name, size_t n);                /* NULL: none */
const Builtin *test_find(const char *name, size_t n);
const MethodSpec *method_find(const Value *v, const char *name, size_t n);
const Function *function_find(const char *name, size_t n);
Value builtin_call(Render *r, const Builtin *b, Value value, const List *given, const Dict *named);

#endif
