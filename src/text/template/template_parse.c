/* template_parse.c - from tokens to a tree, by Jinja2's grammar. Operators of equal precedence become one node with a
 * list of operands, and everything that follows an operand (.name, [..], (..), |filter, is test) a list on one node:
 * the tree is only as deep as the source is nested, which is bounded here, however long the source is. */
#include <string.h>

#include "text/template/template_impl.h"

typedef struct {
    Fault   *fault;
    Heap    *heap;
    Lexer    lexer;
    Token    now, ahead;
    bool     has_ahead;
    int32_t  depth, loops;
    uint8_t  used;                                 /* MACRO_*: special names seen since this was cleared */
} Parser;

/* ---- tokens ---- */

static void next(Parser *p)
{
    p->now = p->has_ahead ? p->ahead : lexer_next(&p->lexer);
    p->has_ahead = false;
}

static Token look(Parser *p)
{
    if (!p->has_ahead) p->ahead = lexer_next(&p->lexer);
    p->has_ahead = true;
    return p->ahead;
}

static const char *source_at(const Parser *p, const Token *t) { return p->lexer.s + t->at; }
static bool token_says(const Parser *p, const Token *t, const char *word)
{
    return t->kind == T_NAME && strlen(word) == t->n && memcmp(source_at(p, t), word, t->n) == 0;
}

static bool is(const Parser *p, TokenKind kind) { return p->now.kind == kind; }
static bool is_word(const Parser *p, const char *word) { return token_says(p, &p->now, word); }

static _Noreturn void unexpected(Parser *p, const char *expected)
{
    const Token *t = &p->now;
    if (t->kind == T_END) fault(p->fault, ST_FORMAT, t->at, "expected %s, found %s", expected, token_name(t->kind));
    fault(p->fault, ST_FORMAT, t->at, "expected %s, found \"%.*s\"", expected, SHOWN(source_at(p, t), (size_t) t->n));
}

static Token expect(Parser *p, TokenKind kind)
{
    Token t = p->now;
    if (t.kind != kind) unexpected(p, token_name(kind));
    next(p);
    return t;
}

static bool skip(Parser *p, TokenKind kind)
{
    if (!is(p, kind)) return false;
    next(p);
    return true;
}

static bool skip_word(Parser *p, const char *word)
{
    if (!is_word(p, word)) return false;
    next(p);
    return true;
}

static void expect_word(Parser *p, const char *word)
{
    if (!skip_word(p, word)) unexpected(p, word);
}

/* ---- nodes ---- */

static Node *node(Parser *p, NodeKind kind, uint32_t at)
{
    Node *n = heap_take(p->heap, sizeof *n);
    n->kind = (uint8_t) kind;
    n->at = at;
    return n;
}

/* A string in the template's memory. Its buffer has no spare room, so nothing is ever appended in place. */
static Value fixed_text(Parser *p, const char *s, size_t n)
{
    Buffer *b = heap_take(p->heap, sizeof *b);
    b->bytes = heap_take(p->heap, n + 1);
    memcpy(b->bytes, s, n);
    b->n = b->cap = (uint32_t) n;
    return (Value) { .kind = V_STRING, .n = (uint32_t) n, .text = b };
}

static Node *value_node(Parser *p, Value v, uint32_t at)
{
    Node *n = node(p, N_VALUE, at);
    n->value = v;
    return n;
}

/* A list of nodes under construction. */
typedef struct { Node *first, **end; } Nodes;
static void add(Nodes *l, Node *n)
{
    if (!l->first) l->end = &l->first;
    *l->end = n;
    l->end = &n->next;
}

static void enter(Parser *p)
{
    if (++p->depth > TEMPLATE_NESTING_MAX)
        fault(p->fault, ST_FULL, p->now.at, "nested deeper than %d", TEMPLATE_NESTING_MAX);
}
static void leave(Parser *p) { p->depth--; }

/* ---- expressions ---- */

static Node *parse_expression(Parser *p);
static Node *parse_or(Parser *p);
static Node *parse_unary(Parser *p, bool with_filters);
static Node *parse_tuple(Parser *p, bool conditional, const char *end, bool parentheses);

static Node *parse_name(Parser *p)
{
    static const struct { const char *name; uint8_t bit; } SPECIAL[] = {
        { "varargs", MACRO_VARARGS }, { "kwargs", MACRO_KWARGS }, { "caller", MACRO_CALLER } };
    Token t = expect(p, T_NAME);
    if (token_says(p, &t, "true") || token_says(p, &t, "True")) return value_node(p, value_bool(true), t.at);
    if (token_says(p, &t, "false") || token_says(p, &t, "False")) return value_node(p, value_bool(false), t.at);
    if (token_says(p, &t, "none") || token_says(p, &t, "None")) return value_node(p, value_none(), t.at);
    for (size_t i = 0; i < 3; i++)
        if (token_says(p, &t, SPECIAL[i].name)) p->used |= SPECIAL[i].bit;
    Node *n = node(p, N_NAME, t.at);
    n->value = fixed_text(p, source_at(p, &t), t.n);
    return n;
}

/* Adjacent strings are concatenated. */
static Node *parse_strings(Parser *p)
{
    uint32_t at = p->now.at;
    char *all = NULL;
    size_t n = 0;
    while (is(p, T_STRING)) {
        all = heap_grow(p->heap, all, n, n + p->now.n);
        n += lexer_string(&p->lexer, &p->now, all + n);
        next(p);
    }
    return value_node(p, fixed_text(p, all, n), at);
}

static Node *parse_list(Parser *p)
{
    Nodes items = { 0 };
    Node *n = node(p, N_LIST, expect(p, T_LBRACKET).at);
    while (!is(p, T_RBRACKET)) {
        if (items.first) expect(p, T_COMMA);
        if (is(p, T_RBRACKET)) break;
        add(&items, parse_expression(p));
    }
    expect(p, T_RBRACKET);
    n->a = items.first;
    return n;
}

/* Keys and values alternate. */
static Node *parse_dict(Parser *p)
{
    Nodes items = { 0 };
    Node *n = node(p, N_DICT, expect(p, T_LBRACE).at);
    while (!is(p, T_RBRACE)) {
        if (items.first) expect(p, T_COMMA);
        if (is(p, T_RBRACE)) break;
        add(&items, parse_expression(p));
        expect(p, T_COLON);
        add(&items, parse_expression(p));
    }
    expect(p, T_RBRACE);
    n->a = items.first;
    return n;
}

static Node *parse_primary(Parser *p)
{
    switch (p->now.kind) {
    case T_NAME: return parse_name(p);
    case T_STRING: return parse_strings(p);
    case T_INT:
    case T_FLOAT: {
        Node *n = value_node(p, lexer_number(&p->lexer, &p->now), p->now.at);
        next(p);
        return n;
    }
    case T_LPAREN: {
        next(p);
        Node *n = parse_tuple(p, true, NULL, true);
        expect(p, T_RPAREN);
        return n;
    }
    case T_LBRACKET: return parse_list(p);
    case T_LBRACE: return parse_dict(p);
    default: unexpected(p, "an expression");
    }
}

/* Positional arguments in a, named ones in b, each an N_MEMBER with the name. */
static void parse_args(Parser *p, Node *call)
{
    Nodes given = { 0 }, named = { 0 };
    expect(p, T_LPAREN);
    while (!is(p, T_RPAREN)) {
        if (given.first || named.first) {
            expect(p, T_COMMA);
            if (is(p, T_RPAREN)) break;
        }
        if (is(p, T_MUL) || is(p, T_POW))
            fault(p->fault, ST_UNSUPPORTED, p->now.at, "arguments by * and ** are not supported");
        if (is(p, T_NAME) && look(p).kind == T_ASSIGN) {
            Node *n = node(p, N_MEMBER, p->now.at);
            n->value = fixed_text(p, source_at(p, &p->now), p->now.n);
            next(p);
            next(p);
            n->a = parse_expression(p);
            add(&named, n);
        } else {
            if (named.first) unexpected(p, "name=value, as the argument before it");
            add(&given, parse_expression(p));
        }
    }
    expect(p, T_RPAREN);
    call->a = given.first;
    call->b = named.first;
}

static Node *parse_slice_part(Parser *p)
{
    return is(p, T_COLON) || is(p, T_RBRACKET) || is(p, T_COMMA) ? NULL : parse_expression(p);
}

static Node *parse_subscript(Parser *p)
{
    uint32_t at = expect(p, T_LBRACKET).at;
    Node *first = parse_slice_part(p), *n;
    if (is(p, T_COLON)) {
        n = node(p, N_SLICE, at);
        n->a = first;
        next(p);
        n->b = parse_slice_part(p);
        if (skip(p, T_COLON)) n->c = parse_slice_part(p);
    } else {
        if (!first) unexpected(p, "an expression");
        n = node(p, N_ITEM, at);
        n->a = first;
    }
    if (!is(p, T_RBRACKET)) unexpected(p, "]");
    next(p);
    return n;
}

static Node *parse_attribute(Parser *p)
{
    uint32_t at = expect(p, T_DOT).at;
    if (is(p, T_INT)) {
        Node *n = node(p, N_ITEM, at);
        n->a = value_node(p, lexer_number(&p->lexer, &p->now), p->now.at);
        next(p);
        return n;
    }
    Token t = p->now;
    if (t.kind != T_NAME) unexpected(p, "a name or a number");
    next(p);
    Node *n = node(p, N_ATTRIBUTE, t.at);
    n->value = fixed_text(p, source_at(p, &t), t.n);
    return n;
}

static Node *parse_call(Parser *p)
{
    Node *n = node(p, N_CALL, p->now.at);
    parse_args(p, n);
    return n;
}

static Node *parse_filter(Parser *p)
{
    Token t = expect(p, T_NAME);
    Node *n = node(p, N_FILTER, t.at);
    n->value = fixed_text(p, source_at(p, &t), t.n);
    n->builtin = filter_find(source_at(p, &t), t.n);
    if (!n->builtin)
        fault(p->fault, ST_FORMAT, t.at, "there is no filter \"%.*s\"", SHOWN(source_at(p, &t), (size_t) t.n));
    if (is(p, T_LPAREN)) parse_args(p, n);
    return n;
}

static Node *parse_postfix(Parser *p, Node *base, bool filters);

static Node *parse_test(Parser *p)
{
    expect_word(p, "is");
    bool negated = skip_word(p, "not");
    Token t = expect(p, T_NAME);
    Node *n = node(p, N_TEST, t.at);
    n->op = negated;
    n->value = fixed_text(p, source_at(p, &t), t.n);
    n->builtin = test_find(source_at(p, &t), t.n);
    if (!n->builtin)
        fault(p->fault, ST_FORMAT, t.at, "there is no test \"%.*s\"", SHOWN(source_at(p, &t), (size_t) t.n));
    if (is(p, T_LPAREN)) {
        parse_args(p, n);
    } else if ((is(p, T_NAME) && !is_word(p, "else") && !is_word(p, "or") && !is_word(p, "and")) || is(p, T_STRING) ||
               is(p, T_INT) || is(p, T_FLOAT) || is(p, T_LBRACKET) || is(p, T_LBRACE)) {
        if (is_word(p, "is"))
            fault(p->fault, ST_FORMAT, p->now.at, "tests cannot follow one another, expected \"and\"");
        enter(p);
        n->a = parse_postfix(p, parse_primary(p), false);
        leave(p);
    }
    return n;
}

static Node *parse_postfix(Parser *p, Node *base, bool filters)
{
    Nodes ops = { 0 };
    for (bool go = true; go;) {                    /* first the operations that bind to the operand itself */
        if (is(p, T_DOT)) add(&ops, parse_attribute(p));
        else if (is(p, T_LBRACKET)) add(&ops, parse_subscript(p));
        else if (is(p, T_LPAREN)) add(&ops, parse_call(p));
        else go = false;
    }
    for (bool go = filters; go;) {
        if (skip(p, T_PIPE)) add(&ops, parse_filter(p));
        else if (is_word(p, "is")) add(&ops, parse_test(p));
        else if (is(p, T_LPAREN)) add(&ops, parse_call(p));
        else go = false;
    }
    if (!ops.first) return base;
    Node *n = node(p, N_POSTFIX, base->at);
    n->a = base;
    n->b = ops.first;
    return n;
}

static Node *parse_unary(Parser *p, bool with_filters)
{
    Node *base;
    if (is(p, T_SUB) || is(p, T_ADD)) {
        base = node(p, is(p, T_SUB) ? N_NEGATE : N_PLUS, p->now.at);
        enter(p);
        next(p);
        base->a = parse_unary(p, false);
        leave(p);
    } else {
        base = parse_primary(p);
    }
    return parse_postfix(p, base, with_filters);
}

/* Operands of equal precedence, each with the operator before it. op: returns the operator at the current token,
 * skipping it, or -1. */
static Node *parse_rank(Parser *p, NodeKind kind, Node *(*operand)(Parser *p), int (*op)(Parser *p))
{
    Node *first = operand(p);
    Nodes all = { 0 };
    for (int o; (o = op(p)) >= 0;) {
        if (!all.first) add(&all, first);
        Node *n = operand(p);
        n->op = (uint8_t) o;
        add(&all, n);
    }
    if (!all.first) return first;
    Node *n = node(p, kind, first->at);
    n->a = all.first;
    return n;
}

static int one_of(Parser *p, const TokenKind *kind, const Operator *op, int n)
{
    for (int i = 0; i < n; i++)
        if (skip(p, kind[i])) return (int) op[i];
    return -1;
}

static int op_power(Parser *p) { return skip(p, T_POW) ? OP_POW : -1; }
static int op_product(Parser *p)
{
    static const TokenKind T[] = { T_MUL, T_DIV, T_FLOOR, T_MOD };
    static const Operator O[] = { OP_MUL, OP_DIV, OP_FLOOR, OP_MOD };
    return one_of(p, T, O, 4);
}
static int op_concat(Parser *p) { return skip(p, T_TILDE) ? OP_ADD : -1; }
static int op_sum(Parser *p)
{
    static const TokenKind T[] = { T_ADD, T_SUB };
    static const Operator O[] = { OP_ADD, OP_SUB };
    return one_of(p, T, O, 2);
}
static int op_compare(Parser *p)
{
    static const TokenKind T[] = { T_EQ, T_NE, T_LT, T_GT, T_LE, T_GE };
    static const Operator O[] = { OP_EQ, OP_NE, OP_LT, OP_GT, OP_LE, OP_GE };
    if (skip_word(p, "in")) return OP_IN;
    if (is_word(p, "not")) {
        Token t = look(p);
        if (!token_says(p, &t, "in")) return -1;
        next(p);
        next(p);
        return OP_NOT_IN;
    }
    return one_of(p, T, O, 6);
}
static int op_and(Parser *p) { return skip_word(p, "and") ? 0 : -1; }
static int op_or(Parser *p) { return skip_word(p, "or") ? 0 : -1; }

static Node *parse_operand(Parser *p) { return parse_unary(p, true); }
static Node *parse_power(Parser *p) { return parse_rank(p, N_CHAIN, parse_operand, op_power); }
static Node *parse_product(Parser *p) { return parse_rank(p, N_CHAIN, parse_power, op_product); }
static Node *parse_concat(Parser *p) { return parse_rank(p, N_CONCAT, parse_product, op_concat); }
static Node *parse_sum(Parser *p) { return parse_rank(p, N_CHAIN, parse_concat, op_sum); }
static Node *parse_compare(Parser *p) { return parse_rank(p, N_COMPARE, parse_sum, op_compare); }

static Node *parse_not(Parser *p)
{
    if (!is_word(p, "not")) return parse_compare(p);
    Node *n = node(p, N_NOT, p->now.at);
    enter(p);
    next(p);
    n->a = parse_not(p);
    leave(p);
    return n;
}

static Node *parse_and(Parser *p) { return parse_rank(p, N_AND, parse_not, op_and); }
static Node *parse_or(Parser *p) { return parse_rank(p, N_OR, parse_and, op_or); }

/* value if condition else other; undefined without else. */
static Node *parse_expression(Parser *p)
{
    enter(p);
    int32_t deeper = 0;
    Node *n = parse_or(p);
    while (is_word(p, "if")) {
        Node *choice = node(p, N_IF_ELSE, p->now.at);
        next(p);
        choice->a = n;
        choice->b = parse_or(p);
        if (skip_word(p, "else")) choice->c = parse_expression(p);
        n = choice;
        enter(p);                                  /* a nested choice is deeper, however it is written */
        deeper++;
    }
    p->depth -= deeper;
    leave(p);
    return n;
}

static bool tuple_ends(Parser *p, const char *end)
{
    return is(p, T_PRINT_END) || is(p, T_BLOCK_END) || is(p, T_RPAREN) || (end && is_word(p, end));
}

/* Expressions separated by commas; a single one without a comma is returned as it is. */
static Node *parse_tuple(Parser *p, bool conditional, const char *end, bool parentheses)
{
    Nodes items = { 0 };
    uint32_t at = p->now.at;
    bool tuple = false;
    while (!tuple_ends(p, end)) {
        add(&items, conditional ? parse_expression(p) : parse_or(p));
        if (!is(p, T_COMMA)) break;
        next(p);
        tuple = true;
    }
    if (!tuple && items.first) return items.first;
    if (!tuple && !parentheses) unexpected(p, "an expression");
    Node *n = node(p, N_TUPLE, at);
    n->a = items.first;
    return n;
}

/* ---- statements ---- */

static Node *parse_body(Parser *p, const char *const *ends);
#define BODY(p, ...) parse_body(p, (const char *const[]) { __VA_ARGS__, NULL })

/* A name, ns.name (N_ATTRIBUTE with the namespace's name in a), or a tuple of them. */
static Node *parse_target_one(Parser *p, bool members)
{
    if (is(p, T_LPAREN)) {
        enter(p);
        next(p);
        Nodes all = { 0 };
        Node *n = node(p, N_TUPLE, p->now.at);
        while (!is(p, T_RPAREN)) {
            if (all.first) expect(p, T_COMMA);
            if (is(p, T_RPAREN)) break;
            add(&all, parse_target_one(p, members));
        }
        expect(p, T_RPAREN);
        leave(p);
        n->a = all.first;
        return n;
    }
    Token t = p->now;
    if (t.kind != T_NAME) unexpected(p, "a name");
    static const char *const FIXED[] = { "true", "false", "none", "True", "False", "None" };
    for (size_t i = 0; i < sizeof FIXED / sizeof *FIXED; i++)
        if (token_says(p, &t, FIXED[i])) fault(p->fault, ST_FORMAT, t.at, "\"%s\" cannot be assigned to", FIXED[i]);
    next(p);
    Node *n = node(p, N_NAME, t.at);
    n->value = fixed_text(p, source_at(p, &t), t.n);
    if (!members || !is(p, T_DOT)) return n;
    next(p);
    t = expect(p, T_NAME);
    Node *member = node(p, N_ATTRIBUTE, t.at);
    member->value = fixed_text(p, source_at(p, &t), t.n);
    member->a = n;
    return member;
}

static Node *parse_target(Parser *p, bool members)
{
    Node *first = parse_target_one(p, members);
    if (!is(p, T_COMMA)) return first;
    Nodes all = { 0 };
    add(&all, first);
    Node *n = node(p, N_TUPLE, first->at);
    while (skip(p, T_COMMA)) {
        if (!is(p, T_NAME) && !is(p, T_LPAREN)) break;
        if (is_word(p, "in")) break;
        add(&all, parse_target_one(p, members));
    }
    n->a = all.first;
    return n;
}

/* {% set x = .. %}: target a, value b. {% set x | filter %}body{% endset %}: target a, body b, filters c. */
static Node *parse_set(Parser *p, uint32_t at)
{
    Node *target = parse_target(p, true);
    Node *n = node(p, is(p, T_ASSIGN) ? N_SET : N_SET_BLOCK, at);
    n->a = target;
    if (skip(p, T_ASSIGN)) {
        n->b = parse_tuple(p, true, NULL, false);
        return n;
    }
    Nodes filters = { 0 };
    while (skip(p, T_PIPE)) add(&filters, parse_filter(p));
    n->c = filters.first;
    n->b = BODY(p, "endset");
    next(p);
    return n;
}

/* Target a, iterated value b, body c; d: an N_MEMBER with the filter a and the else body b; op: recursive. */
static Node *parse_for(Parser *p, uint32_t at)
{
    Node *n = node(p, N_FOR, at), *rest = node(p, N_MEMBER, at);
    n->a = parse_target(p, false);
    expect_word(p, "in");
    n->b = parse_tuple(p, false, "recursive", false);
    n->d = rest;
    if (skip_word(p, "if")) rest->a = parse_expression(p);
    n->op = skip_word(p, "recursive");
    p->loops++;
    n->c = BODY(p, "endfor", "else");
    p->loops--;
    if (skip_word(p, "else")) rest->b = BODY(p, "endfor");
    next(p);
    return n;
}

/* Test a, body b, else body c; d: an N_IF for elif. */
static Node *parse_if(Parser *p, uint32_t at)
{
    Node *first = node(p, N_IF, at), *n = first;
    for (;;) {
        n->a = parse_tuple(p, false, NULL, false);
        n->b = BODY(p, "elif", "else", "endif");
        uint32_t here = p->now.at;
        if (skip_word(p, "elif")) {
            n->d = node(p, N_IF, here);            /* d, not c: a chain, which adds no depth */
            n = n->d;
        } else {
            if (skip_word(p, "else")) n->c = BODY(p, "endif");
            next(p);
            return first;
        }
    }
}

/* Parameters: an N_MEMBER each, with the default in a. */
static Node *parse_parameters(Parser *p)
{
    Nodes all = { 0 };
    bool defaults = false;
    int n = 0;
    expect(p, T_LPAREN);
    while (!is(p, T_RPAREN)) {
        if (all.first) expect(p, T_COMMA);
        Token t = expect(p, T_NAME);
        Node *m = node(p, N_MEMBER, t.at);
        m->value = fixed_text(p, source_at(p, &t), t.n);
        if (skip(p, T_ASSIGN)) {
            m->a = parse_expression(p);
            defaults = true;
        } else if (defaults) {
            fault(p->fault, ST_FORMAT, t.at, "parameter \"%.*s\" needs a default, as the one before it",
                  SHOWN(source_at(p, &t), (size_t) t.n));
        }
        if (++n > 64) fault(p->fault, ST_FULL, t.at, "a macro has more than 64 parameters");
        add(&all, m);
    }
    expect(p, T_RPAREN);
    return all.first;
}

/* The body of a macro or call block; *used: whether it uses its caller and surplus arguments. */
static Node *parse_macro_body(Parser *p, const char *end, uint8_t *used)
{
    uint8_t outside = p->used;
    int32_t loops = p->loops;
    p->used = 0;
    p->loops = 0;                                  /* a break inside a macro cannot end a loop around it */
    Node *body = BODY(p, end);
    *used = p->used;
    p->used = outside | p->used;
    p->loops = loops;
    next(p);
    return body;
}

static Node *parse_macro(Parser *p, uint32_t at)
{
    Node *n = node(p, N_MACRO, at);
    Token t = expect(p, T_NAME);
    n->value = fixed_text(p, source_at(p, &t), t.n);
    n->a = parse_parameters(p);
    n->b = parse_macro_body(p, "endmacro", &n->op);
    return n;
}

/* {% call(params) macro(args) %}body{% endcall %}: parameters a, body b, the call c. */
static Node *parse_call_block(Parser *p, uint32_t at)
{
    Node *n = node(p, N_CALL_BLOCK, at);
    if (is(p, T_LPAREN)) n->a = parse_parameters(p);
    n->c = parse_expression(p);
    Node *last = n->c->kind == N_POSTFIX ? n->c->b : NULL;
    while (last && last->next) last = last->next;
    if (!last || last->kind != N_CALL) fault(p->fault, ST_FORMAT, n->c->at, "expected a call");
    n->b = parse_macro_body(p, "endcall", &n->op);
    return n;
}

static Node *parse_filter_block(Parser *p, uint32_t at)
{
    Node *n = node(p, N_FILTER_BLOCK, at);
    Nodes filters = { 0 };
    do add(&filters, parse_filter(p)); while (skip(p, T_PIPE));
    n->c = filters.first;
    n->b = BODY(p, "endfilter");
    next(p);
    return n;
}

/* Body b; in a, an N_MEMBER per variable with target a and value b. */
static Node *parse_with(Parser *p, uint32_t at)
{
    Node *n = node(p, N_WITH, at);
    Nodes all = { 0 };
    while (!is(p, T_BLOCK_END)) {
        if (all.first) expect(p, T_COMMA);
        Node *m = node(p, N_MEMBER, p->now.at);
        m->a = parse_target_one(p, false);
        expect(p, T_ASSIGN);
        m->b = parse_expression(p);
        add(&all, m);
    }
    n->a = all.first;
    n->b = BODY(p, "endwith");
    next(p);
    return n;
}

static Node *parse_statement(Parser *p)
{
    static const char *const REFUSED[] = { "include", "import", "from", "extends", "block", "autoescape", "trans",
                                           "print" };
    if (!is(p, T_NAME)) unexpected(p, "a statement");
    Token t = p->now;
    next(p);
    if (token_says(p, &t, "set")) return parse_set(p, t.at);
    if (token_says(p, &t, "if")) return parse_if(p, t.at);
    if (token_says(p, &t, "for")) return parse_for(p, t.at);
    if (token_says(p, &t, "macro")) return parse_macro(p, t.at);
    if (token_says(p, &t, "call")) return parse_call_block(p, t.at);
    if (token_says(p, &t, "filter")) return parse_filter_block(p, t.at);
    if (token_says(p, &t, "with")) return parse_with(p, t.at);
    /* marks the assistant's part for training; it has its own scope, otherwise no effect */
    if (token_says(p, &t, "generation")) {
        Node *n = node(p, N_SCOPE, t.at);
        n->b = BODY(p, "endgeneration");
        next(p);
        return n;
    }
    if (token_says(p, &t, "do")) {
        Node *n = node(p, N_DO, t.at);
        n->a = parse_tuple(p, true, NULL, false);
        return n;
    }
    if (token_says(p, &t, "break") || token_says(p, &t, "continue")) {
        if (p->loops == 0)
            fault(p->fault, ST_FORMAT, t.at, "\"%.*s\" outside of a loop", SHOWN(source_at(p, &t), (size_t) t.n));
        return node(p, token_says(p, &t, "break") ? N_BREAK : N_CONTINUE, t.at);
    }
    for (size_t i = 0; i < sizeof REFUSED / sizeof *REFUSED; i++)
        if (token_says(p, &t, REFUSED[i]))
            fault(p->fault, ST_UNSUPPORTED, t.at, "the statement \"%s\" is not supported", REFUSED[i]);
    fault(p->fault, ST_FORMAT, t.at, "there is no statement \"%.*s\"", SHOWN(source_at(p, &t), (size_t) t.n));
}

static bool ends_body(Parser *p, const char *const *ends)
{
    for (; ends && *ends; ends++)
        if (is_word(p, *ends)) return true;
    return false;
}

/* Everything up to a tag with one of those words, which becomes the current token; without ends, the rest of the
 * template. */
static Node *parse_items(Parser *p, const char *const *ends)
{
    Nodes all = { 0 };
    for (;;) {
        Token t = p->now;
        if (t.kind == T_END) {
            if (!ends) return all.first;
            while (strncmp(*ends, "end", 3) != 0) ends++;
            fault(p->fault, ST_FORMAT, t.at, "expected {%% %s %%}, found the end of the template", *ends);
        }
        next(p);
        if (t.kind == T_TEXT) {
            if (t.n == 0) continue;
            Node *n = node(p, N_TEXT, t.at);
            n->value = fixed_text(p, source_at(p, &t), t.n);
            add(&all, n);
        } else if (t.kind == T_PRINT_BEGIN) {
            Node *n = node(p, N_PRINT, t.at);
            n->a = parse_tuple(p, true, NULL, false);
            if (!is(p, T_PRINT_END)) unexpected(p, "}}");
            next(p);
            add(&all, n);
        } else {                                   /* outside tags this can only be {% */
            if (ends_body(p, ends)) return all.first;
            add(&all, parse_statement(p));
            if (!is(p, T_BLOCK_END)) unexpected(p, "%}");
            next(p);
        }
    }
}

static Node *parse_body(Parser *p, const char *const *ends)
{
    skip(p, T_COLON);
    if (!is(p, T_BLOCK_END)) unexpected(p, "%}");
    next(p);
    enter(p);
    Node *n = parse_items(p, ends);
    leave(p);
    return n;
}

Node *parse_template(Template *t, Fault *f)
{
    Parser p = { .fault = f, .heap = &t->heap };
    lexer_begin(&p.lexer, f, t->source, t->n);
    next(&p);
    return parse_items(&p, NULL);
}
