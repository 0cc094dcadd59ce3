/* template_impl.h - what the parts of the template engine share: memory, failures, values, the tree.
 * Memory is a heap of chunks that is freed whole, when the template is closed or the render is over; nothing is freed
 * one by one. A failure leaves through one longjmp to the entry point, which owns nothing else; so no function here has
 * to pass errors on. Recursion follows the nesting of the source (bounded by the parser), macro calls and the depth
 * of values, each with its limit.
 *
 * A string is a view of a buffer. Appending to the string that ends where its buffer ends extends the buffer in place,
 * so that building a text piece by piece takes linear time; older views remain valid:
 *
 *      buffer  | h e l l o _ w o r l d |      |         "hello" and "hello world" are both views of it
 *      client            [-----]                        bytes from outside, as ascending spans of one speaker each
 */
#ifndef RATOON_TEXT_TEMPLATE_TEMPLATE_IMPL_H
#define RATOON_TEXT_TEMPLATE_TEMPLATE_IMPL_H

#include <setjmp.h>

#include "text/template/template.h"

enum { VALUE_DEPTH_MAX = 200, LEVELS_MAX = 1000 }; /* nesting of values; of nodes being evaluated, across all calls */

/* ---- failures and memory ---- */

typedef struct {
    jmp_buf        out;
    TemplateError *err;
    const char    *name, *source;                  /* every line end in source is \n */
    size_t         n;
} Fault;

/* Records the failure at that byte of the source and jumps to the entry point. SIZE_MAX: no place. */
_Noreturn void fault(Fault *f, Status code, size_t at, const char *format, ...) __attribute__((format(printf, 4, 5)));
/* A piece of text for a message, at most 40 bytes of it. */
#define SHOWN(s, n) (int) ((n) < 40 ? (n) : 40), (s)

typedef struct HeapChunk HeapChunk;
typedef struct { HeapChunk *last; size_t bytes, max; Fault *fault; } Heap;
void *heap_take(Heap *h, size_t n);                /* aligned for anything, zeroed; never NULL */
/* Enlarges p, keeping its first `old` bytes; in place if it is the heap's last piece. */
void *heap_grow(Heap *h, void *p, size_t old, size_t n);
void  heap_free(Heap *h);

/* ---- values ---- */

typedef enum {
    V_UNSET,                                       /* an argument that was not given */
    V_UNDEFINED, V_NONE, V_BOOL, V_INT, V_FLOAT, V_STRING, V_LIST, V_TUPLE, V_DICT, V_NAMESPACE, V_LOOP, V_MACRO,
    V_METHOD, V_FUNCTION
} ValueKind;

/* Who wrote a byte: 0 the template, 1 a client, 2 + i a client as message i. */
typedef uint32_t Speaker;
enum { SPEAKER_CLIENT = 1, SPEAKER_MESSAGE = 2 };
typedef struct { uint32_t at, n; Speaker who; } Span;
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
    bool     safe;                      /* strings: marked by the filter safe or escape, so that + escapes what it
                                         * appends */
    Speaker  client;                    /* numbers, booleans and none: origin, if outside */
    uint32_t at, n;                     /* strings: bytes [at, at + n) of the buffer; undefined: its name, likewise */
    union {
        bool b; int64_t i; double f;
        Buffer *text; List *list; Dict *dict; Loop *loop; Macro *macro; Method *method; const Function *function;
    };
} Value;

/* lazy: a generator in Python: always true, without length */
struct List { Value *item; uint32_t n, cap; Speaker client; bool lazy; };
typedef struct { Value key, value; } Pair;
/* in insertion order; slot: hash table, from 9 pairs on */
struct Dict { Pair *pair; uint32_t n, cap; uint32_t *slot, mask; Speaker client; };

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
void  buffer_put(Render *r, Buffer *b, const char *s, size_t n, Speaker who);
void  buffer_put_text(Render *r, Buffer *b, const Value *v);           /* a string with its marks of origin */
void  buffer_put_part(Render *r, Buffer *b, const Value *v, size_t at, size_t n);
Value buffer_value(Buffer *b);
Value text_new(Render *r, const char *s, size_t n);
Value text_part(const Value *v, size_t at, size_t n);
Value text_join(Render *r, Value a, const Value *b);                   /* concatenated, not safe */
bool  text_is(const Value *v, const char *s);
Speaker text_client(const Value *v, size_t at);                        /* who wrote that byte */
/* lists and dicts */
Value list_new(Render *r, ValueKind kind, size_t room);
void  list_put(Render *r, List *l, Value v);
Value dict_new(Render *r);
void  dict_set(Render *r, Dict *d, Value key, Value value);
Value *dict_find(Render *r, const Dict *d, const Value *key);          /* NULL: not found; an unhashable key is an
                                                                        * error */
Value *dict_find_name(const Dict *d, const char *name, size_t n);
bool  dict_remove(Render *r, Dict *d, const Value *key, Value *removed);
Value value_from_json(Render *r, const json_t *j, Origin origin);
/* Python's semantics of values */
bool  value_true(const Value *v);
bool  value_equal(Render *r, const Value *a, const Value *b);
int   value_compare(Render *r, const Value *a, const Value *b);        /* -1, 0, 1; an error if they cannot be
                                                                        * ordered */
void  pairs_sort(Render *r, Pair *pair, uint32_t n, bool reverse);     /* by key, stable */
bool  value_contains(Render *r, const Value *in, const Value *v);
const char *kind_name(const Value *v);
bool  is_number(const Value *v);                                       /* bool included, as in Python */
double as_float(const Value *v);
bool  as_int(const Value *v, int64_t *i);               /* int or bool */
Value value_iterate(Render *r, Value v);                /* as a list or tuple; an error if it cannot be iterated */
/* printing, template_print.c */
typedef struct { bool ascii, sorted, pretty; Value indent, item_sep, key_sep; } JsonStyle;
Value value_text(Render *r, Value v);                                  /* str(v) */
void  print_text(Render *r, Buffer *out, const Value *v);
void  print_repr(Render *r, Buffer *out, const Value *v, int32_t depth);
void  print_json(Render *r, Buffer *out, const Value *v, const JsonStyle *style, int32_t depth);
bool  read_float(double *out, const char *s, size_t n);                /* reads all of s, with a decimal point in any
                                                                        * locale */

/* strings, template_strings.c: what filters and methods share */
enum { STRIP_LEFT = 1, STRIP_RIGHT = 2 };
typedef enum { CASE_UPPER, CASE_LOWER, CASE_CAPITALIZE, CASE_TITLE, CASE_TITLE_WORDS, CASE_SWAP } TextCase;
bool   is_space(uint32_t cp);
size_t strip_end(const char *s, size_t n);                             /* length without trailing white space */
size_t strip_start(const char *s, size_t n);                           /* bytes of leading white space */
Value  text_strip(Render *r, const Value *v, const Value *chars, int sides);   /* chars unset or none: white space */
Value  text_escape(Render *r, const Value *v);                         /* for HTML; safe strings stay as they are */
Value  text_case(Render *r, const Value *v, TextCase how);
Value  text_replace(Render *r, const Value *v, const Value *old, const Value *new, int64_t count);  /* count < 0: all */
Value  text_split(Render *r, const Value *v, const Value *sep, int64_t max, bool right);
Value  text_lines(Render *r, const Value *v, bool keep_ends);
Value  text_slice(Render *r, const Value *v, int64_t start, int64_t step, int64_t count);
int64_t text_length(Render *r, const Value *v);                        /* characters */
Value  text_char(Render *r, const Value *v, int64_t index);            /* undefined if index is out of range */
int64_t text_find(Render *r, const Value *v, const Value *part, int64_t start, int64_t stop, bool right); /* -1: none */
int64_t text_count(Render *r, const Value *v, const Value *part);
Value  text_repeat(Render *r, const Value *v, int64_t times);
/* "%s" % args; args is a tuple, a dict or one value */
Value  text_percent(Render *r, const Value *format, const Value *args);
Value  text_braces(Render *r, const Value *format, const List *args, const Dict *named);

/* Start, step and number of the items that a Python slice selects from n. */
void slice_of(Render *r, int64_t n, const Value *start, const Value *stop, const Value *step, int64_t *first,
              int64_t *by, int64_t *count);

/* ---- the tree ---- */

typedef enum {
    /* statements; body in a, the other branch in b */
    N_TEXT, N_PRINT, N_IF, N_FOR, N_SET, N_SET_BLOCK, N_MACRO, N_CALL_BLOCK, N_FILTER_BLOCK, N_WITH, N_SCOPE, N_BREAK,
    N_CONTINUE, N_DO,
    /* expressions; operands in a, linked by next */
    N_NAME, N_VALUE, N_LIST, N_TUPLE, N_DICT, N_IF_ELSE, N_OR, N_AND, N_NOT, N_COMPARE, N_CHAIN, N_CONCAT, N_NEGATE,
    N_PLUS, N_MEMBER,
    /* operations on a base, in order (N_POSTFIX: base in a, operations in b) */
    N_POSTFIX, N_ATTRIBUTE, N_ITEM, N_SLICE, N_CALL, N_FILTER, N_TEST
} NodeKind;

typedef enum { OP_ADD, OP_SUB, OP_MUL, OP_DIV, OP_FLOOR, OP_MOD, OP_POW, OP_EQ, OP_NE, OP_LT, OP_GT, OP_LE, OP_GE,
               OP_IN, OP_NOT_IN } Operator;

typedef struct Node Node;
typedef struct Builtin Builtin;
struct Node {
    uint8_t  kind, op;          /* op: operator between this operand and those before it; flags of a macro; negated
                                 * test */
    uint32_t at;                /* byte offset in the source */
    Node    *next;
    Node    *a, *b, *c, *d;
    Value    value;             /* of N_VALUE and N_TEXT; otherwise a name */
    const Builtin *builtin;     /* of a filter or test */
};
enum { MACRO_VARARGS = 1, MACRO_KWARGS = 2, MACRO_CALLER = 4 };        /* special names that a macro's body uses */

struct Template {
    Heap   heap;
    char  *name, *source;
    size_t n;
    Node  *body;
};

/* tokens, template_lex.c */
typedef enum {
    T_END, T_TEXT, T_PRINT_BEGIN, T_PRINT_END, T_BLOCK_BEGIN, T_BLOCK_END, T_NAME, T_STRING, T_INT, T_FLOAT,
    T_ADD, T_SUB, T_MUL, T_DIV, T_FLOOR, T_MOD, T_POW, T_TILDE, T_EQ, T_NE, T_LT, T_GT, T_LE, T_GE, T_ASSIGN, T_DOT,
    T_COLON, T_COMMA, T_PIPE, T_SEMICOLON, T_LPAREN, T_RPAREN, T_LBRACKET, T_RBRACKET, T_LBRACE, T_RBRACE
} TokenKind;
typedef struct { TokenKind kind; uint32_t at, n; } Token;
typedef struct {
    Fault      *fault;
    const char *s;
    size_t      n, at;
    int         mode;                              /* what the next byte belongs to */
    bool        line_start;                        /* the last byte read was a newline */
    char        open[TEMPLATE_NESTING_MAX + 2];    /* open brackets */
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
struct Scope { Scope *parent; Dict vars; bool kept; };                 /* kept: a macro refers to it, so it must live
                                                                        * on */

struct Loop {
    const Node *node;
    const Value *item;
    uint32_t n, index;
    int32_t  depth;
    Scope   *scope;                                /* the scope around the loop */
    Value    changed;                              /* the last arguments of loop.changed */
};
/* also `caller` of a call block */
struct Macro { const Node *node; Scope *scope; Value name; const Node *body, *params; };

/* Arguments of a call in the order of the callee's parameters; V_UNSET for those not given. */
enum { ARGS_MAX = 8 };
typedef struct { Value at[ARGS_MAX]; List *more; Dict *named; } Args;   /* more, named: surplus arguments of a callee
                                                                         * that takes any number */

/* A filter or test; value: what it is applied to. params: names separated by spaces; "*" takes any arguments. */
struct Builtin {
    const char *name;
    Value (*call)(Render *r, const Builtin *self, Value value, const Args *args);
    const char *params;
    int32_t how;
};
struct Function { const char *name; Value (*call)(Render *r, const Args *args); const char *params; };
typedef struct {
    const char *name;
    Value (*call)(Render *r, Value *self, const Args *args, int32_t how);
    const char *params;
    int32_t how;
} MethodSpec;
struct Method { const MethodSpec *spec; Value self; };

struct Render {
    Fault    fault;
    Heap     heap;
    const Template *t;
    Buffer  *page, *out;                           /* page: the outermost output */
    Scope   *root, *scope;
    int64_t  steps, steps_max;
    int32_t  calls, levels;
    uint32_t at;                                   /* byte offset of the current node, for messages */
    const struct tm *now;
    bool     lax;
    const char *watched;                           /* name of a variable; NULL: none */
    size_t   asked;                                /* bytes of the page when its value was first read; SIZE_MAX: not
                                                    * yet */
};

_Noreturn void render_fail(Render *r, const char *format, ...) __attribute__((format(printf, 2, 3)));
_Noreturn void render_too_large(Render *r);        /* an integer of more than 64 bits */
void  render_spend(Render *r, size_t work);        /* counts steps beyond one per node: a step per item or per 256
                                                    * bytes */
Value render_text(Render *r, const Value *v);      /* v as a string; undefined gives "" */
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
