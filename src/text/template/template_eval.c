/* template_eval.c - evaluates the tree: scopes, loops, macros and expressions, with Jinja2's semantics and Python's
 * arithmetic. Every node costs a step and every call a level, so that a render ends whatever the template does. */
#include <math.h>
#include <string.h>

#include "text/template/template_impl.h"

typedef enum { GO_ON, LEAVE_BREAK, LEAVE_CONTINUE } Flow;

static Value eval(Render *r, const Node *n);
static Flow exec(Render *r, const Node *n);

void render_fail(Render *r, const char *format, ...)
{
    char text[400];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    fault(&r->fault, ST_FORMAT, r->at, "%s", text);
}

void render_spend(Render *r, size_t work)
{
    r->steps += (int64_t) work;
    if (r->steps > r->steps_max)
        fault(&r->fault, ST_FULL, r->at, "the render takes more than %lld steps", (long long) r->steps_max);
}

static _Noreturn void undefined_fail(Render *r, const Value *v)
{
    if (v->n > 0) render_fail(r, "\"%.*s\" is undefined", SHOWN(text_of(v), (size_t) v->n));
    render_fail(r, "the value is undefined");
}

static void need_defined(Render *r, const Value *v)
{
    if (v->kind == V_UNDEFINED) undefined_fail(r, v);
}

Value render_text(Render *r, const Value *v) { return value_text(r, *v); }

static Value undefined_named(const Value *name)
{
    Value v = *name;
    v.kind = V_UNDEFINED;
    return v;
}

/* ---- scopes ---- */

static Scope *scope_new(Render *r, Scope *parent)
{
    Scope *s = heap_take(&r->heap, sizeof *s);
    s->parent = parent;
    return s;
}

/* A macro was defined here: the scope and its parents must live on. */
static void scope_keep(Scope *s)
{
    for (; s && !s->kept; s = s->parent) s->kept = true;
}

static Value look_up(Render *r, const Node *n)
{
    if (r->watched && r->asked == SIZE_MAX && text_is(&n->value, r->watched)) r->asked = r->page->n;
    for (const Scope *s = r->scope; s; s = s->parent) {
        const Value *v = dict_find(r, &s->vars, &n->value);
        if (v) return *v;
        r->steps++;
    }
    const Function *f = function_find(text_of(&n->value), n->value.n);
    if (f && (r->now || strcmp(f->name, "strftime_now") != 0)) return (Value) { .kind = V_FUNCTION, .function = f };
    return undefined_named(&n->value);
}

static void assign(Render *r, const Node *target, Value v)
{
    r->at = target->at;
    if (target->kind == N_NAME) {
        dict_set(r, &r->scope->vars, target->value, v);
    } else if (target->kind == N_TUPLE) {
        need_defined(r, &v);
        Value items = value_iterate(r, v);
        uint32_t n = 0;
        for (const Node *t = target->a; t; t = t->next) n++;
        if (items.list->n != n) render_fail(r, "%u values for %u names", items.list->n, n);
        n = 0;
        for (const Node *t = target->a; t; t = t->next) assign(r, t, items.list->item[n++]);
    } else {
        Value space = look_up(r, target->a);
        r->at = target->at;
        if (space.kind != V_NAMESPACE)
            render_fail(r, "only a namespace's attributes can be set, and \"%.*s\" is a %s",
                        SHOWN(text_of(&target->a->value), (size_t) target->a->value.n), kind_name(&space));
        dict_set(r, space.dict, target->value, v);
    }
}

/* ---- attributes and items ---- */

static Value method_or_undefined(Render *r, const Value *v, const Value *name)
{
    const MethodSpec *spec = method_find(v, text_of(name), name->n);
    if (!spec) return undefined_named(name);
    Method *m = heap_take(&r->heap, sizeof *m);
    *m = (Method) { spec, *v };
    return (Value) { .kind = V_METHOD, .method = m };
}

static Value loop_attribute(Render *r, const Value *v, const Value *name)
{
    const Loop *l = v->loop;
    if (text_is(name, "index")) return value_int(l->index + 1);
    if (text_is(name, "index0")) return value_int(l->index);
    if (text_is(name, "revindex")) return value_int(l->n - l->index);
    if (text_is(name, "revindex0")) return value_int(l->n - l->index - 1);
    if (text_is(name, "first")) return value_bool(l->index == 0);
    if (text_is(name, "last")) return value_bool(l->index + 1 == l->n);
    if (text_is(name, "length")) return value_int(l->n);
    if (text_is(name, "depth")) return value_int(l->depth + 1);
    if (text_is(name, "depth0")) return value_int(l->depth);
    if (text_is(name, "previtem")) return l->index > 0 ? l->item[l->index - 1] : undefined_named(name);
    if (text_is(name, "nextitem")) return l->index + 1 < l->n ? l->item[l->index + 1] : undefined_named(name);
    return method_or_undefined(r, v, name);
}

/* call: the attribute is about to be called, so a dict's method takes precedence over its key. */
Value get_attribute(Render *r, Value v, const Value *name, bool call)
{
    const Value *found = NULL;
    switch (v.kind) {
    case V_UNDEFINED:
        if (r->lax) return undefined_named(name);
        undefined_fail(r, &v);
    case V_LOOP: return loop_attribute(r, &v, name);
    case V_NAMESPACE:
        found = dict_find(r, v.dict, name);
        return found ? *found : undefined_named(name);
    case V_DICT:
        if (!call || !method_find(&v, text_of(name), name->n)) found = dict_find(r, v.dict, name);
        return found ? *found : method_or_undefined(r, &v, name);
    default: return method_or_undefined(r, &v, name);
    }
}

Value get_item(Render *r, Value v, const Value *key)
{
    int64_t i;
    if (v.kind == V_UNDEFINED && !r->lax) undefined_fail(r, &v);
    if (v.kind == V_DICT && (key->kind == V_STRING || is_number(key) || key->kind == V_NONE || key->kind == V_TUPLE)) {
        const Value *found = dict_find(r, v.dict, key);
        if (found) return *found;
    } else if ((v.kind == V_LIST || v.kind == V_TUPLE) && as_int(key, &i)) {
        const List *l = v.list;
        if (i < 0) i += l->n;
        return i >= 0 && i < l->n && !l->lazy ? l->item[i] : value_undefined();
    } else if (v.kind == V_STRING && as_int(key, &i)) {
        return text_char(r, &v, i);
    }
    if (key->kind == V_STRING && v.kind != V_UNDEFINED)
        return v.kind == V_DICT ? method_or_undefined(r, &v, key) : get_attribute(r, v, key, false);
    return value_undefined();
}

/* Takes a slice's bounds as Python does: they are clamped to the length. */
void slice_of(Render *r, int64_t n, const Value *start, const Value *stop, const Value *step, int64_t *first,
              int64_t *by, int64_t *count)
{
    int64_t s = 1, from, to;
    if (is_set(step) && step->kind != V_NONE && !as_int(step, &s))
        render_fail(r, "a slice's step has to be an integer, not a %s", kind_name(step));
    if (s == 0) render_fail(r, "a slice's step cannot be 0");
    if (s < -INT64_MAX) s = -INT64_MAX;
    bool down = s < 0;
    from = down ? n - 1 : 0;
    to = down ? -1 : n;
    const Value *bound[] = { start, stop };
    int64_t *at[] = { &from, &to };
    for (int i = 0; i < 2; i++) {
        if (!is_set(bound[i]) || bound[i]->kind == V_NONE) continue;
        int64_t v;
        if (!as_int(bound[i], &v))
            render_fail(r, "a slice's bounds have to be integers, not a %s", kind_name(bound[i]));
        if (v < 0) v += n;
        int64_t lowest = down ? -1 : 0, highest = down ? n - 1 : n;
        *at[i] = v < lowest ? lowest : v > highest ? highest : v;
    }
    *first = from;
    *by = s;
    *count = down ? (from > to ? (from - to - 1) / -s + 1 : 0) : (to > from ? (to - from - 1) / s + 1 : 0);
}

static Value slice(Render *r, const Node *n, Value v)
{
    Value bound[3] = { { .kind = V_UNSET }, { .kind = V_UNSET }, { .kind = V_UNSET } };
    const Node *part[3] = { n->a, n->b, n->c };
    for (int i = 0; i < 3; i++)
        if (part[i]) bound[i] = eval(r, part[i]);
    r->at = n->at;
    if (v.kind == V_UNDEFINED && !r->lax) undefined_fail(r, &v);
    int64_t first, by, count;
    if (v.kind == V_STRING) {
        slice_of(r, text_length(r, &v), &bound[0], &bound[1], &bound[2], &first, &by, &count);
        return text_slice(r, &v, first, by, count);
    }
    if (v.kind == V_UNDEFINED) return v;
    if ((v.kind != V_LIST && v.kind != V_TUPLE) || v.list->lazy)
        render_fail(r, "a %s has no slices", v.kind == V_LIST ? "generator" : kind_name(&v));
    slice_of(r, v.list->n, &bound[0], &bound[1], &bound[2], &first, &by, &count);
    Value out = list_new(r, v.kind, (size_t) count);
    out.list->client = v.list->client;
    render_spend(r, (size_t) count / 16);
    for (int64_t i = 0; i < count; i++) list_put(r, out.list, v.list->item[first + i * by]);
    return out;
}

/* ---- arithmetic ---- */

static _Noreturn void no_operation(Render *r, const char *op, const Value *a, const Value *b)
{
    need_defined(r, a);
    need_defined(r, b);
    render_fail(r, "%s does not work between a %s and a %s", op, kind_name(a), kind_name(b));
}

void render_too_large(Render *r) { render_fail(r, "the result does not fit into 64 bits"); }

static Value lists_joined(Render *r, const Value *a, const Value *b)
{
    Value out = list_new(r, a->kind, (size_t) a->list->n + b->list->n);
    render_spend(r, out.list->cap / 16);
    for (uint32_t i = 0; i < a->list->n; i++) list_put(r, out.list, a->list->item[i]);
    for (uint32_t i = 0; i < b->list->n; i++) list_put(r, out.list, b->list->item[i]);
    out.list->client = a->list->client && b->list->client ? a->list->client : 0;
    return out;
}

Value value_add(Render *r, Value a, const Value *b)
{
    int64_t x, y;
    if (a.kind == V_STRING && b->kind == V_STRING) {
        bool safe = a.safe || b->safe;
        Value left = safe ? text_escape(r, &a) : a, right = safe ? text_escape(r, b) : *b;
        a = text_join(r, left, &right);
        a.safe = safe;
        return a;
    }
    if (as_int(&a, &x) && as_int(b, &y)) {
        if (__builtin_add_overflow(x, y, &x)) render_too_large(r);
        return value_int(x);
    }
    if (is_number(&a) && is_number(b)) return value_float(as_float(&a) + as_float(b));
    if (a.kind == b->kind && (a.kind == V_LIST || a.kind == V_TUPLE) && !a.list->lazy && !b->list->lazy)
        return lists_joined(r, &a, b);
    no_operation(r, "+", &a, b);
}

static Value repeated(Render *r, const Value *v, int64_t times)
{
    if (v->kind == V_STRING) return text_repeat(r, v, times);
    if (times < 0) times = 0;
    if (v->list->n > 0 && times > TEMPLATE_RANGE_MAX / (int64_t) v->list->n)
        fault(&r->fault, ST_FULL, r->at, "a list is longer than %d", TEMPLATE_RANGE_MAX);
    if (v->list->n == 0) times = 0;
    Value out = list_new(r, v->kind, (size_t) times * v->list->n);
    render_spend(r, out.list->cap / 16);
    for (; times > 0; times--)
        for (uint32_t i = 0; i < v->list->n; i++) list_put(r, out.list, v->list->item[i]);
    return out;
}

static Value multiplied(Render *r, const Value *a, const Value *b)
{
    int64_t x, y;
    if (as_int(a, &x) && as_int(b, &y)) {
        if (__builtin_mul_overflow(x, y, &x)) render_too_large(r);
        return value_int(x);
    }
    if (is_number(a) && is_number(b)) return value_float(as_float(a) * as_float(b));
    bool a_repeats = a->kind == V_STRING || ((a->kind == V_LIST || a->kind == V_TUPLE) && !a->list->lazy);
    bool b_repeats = b->kind == V_STRING || ((b->kind == V_LIST || b->kind == V_TUPLE) && !b->list->lazy);
    if (a_repeats && as_int(b, &y)) return repeated(r, a, y);
    if (b_repeats && as_int(a, &x)) return repeated(r, b, x);
    no_operation(r, "*", a, b);
}

/* Quotient and remainder round down, as in Python. */
static Value divided(Render *r, Operator op, const Value *a, const Value *b)
{
    int64_t x, y;
    if (op == OP_MOD && a->kind == V_STRING) return text_percent(r, a, b);
    if (!is_number(a) || !is_number(b)) no_operation(r, op == OP_MOD ? "%" : op == OP_DIV ? "/" : "//", a, b);
    if (as_float(b) == 0) render_fail(r, "division by zero");
    if (op == OP_DIV) return value_float(as_float(a) / as_float(b));
    if (as_int(a, &x) && as_int(b, &y)) {
        if (y == -1) {
            if (op == OP_MOD) return value_int(0);
            if (x == INT64_MIN) render_too_large(r);
            return value_int(-x);
        }
        int64_t q = x / y, m = x % y;
        if (m != 0 && (m < 0) != (y < 0)) {
            q--;
            m += y;
        }
        return value_int(op == OP_MOD ? m : q);
    }
    double u = as_float(a), v = as_float(b), m = fmod(u, v), q = (u - m) / v;
    if (m != 0 && (m < 0) != (v < 0)) {
        m += v;
        q -= 1;
    }
    if (op == OP_MOD) return value_float(m != 0 ? m : copysign(0, v));
    double down = floor(q);
    if (q - down > 0.5) down += 1;
    return value_float(q != 0 ? down : copysign(0, u / v));
}

Value value_remainder(Render *r, const Value *a, const Value *b) { return divided(r, OP_MOD, a, b); }

static Value power(Render *r, const Value *a, const Value *b)
{
    int64_t x, n;
    if (!is_number(a) || !is_number(b)) no_operation(r, "**", a, b);
    if (as_int(a, &x) && as_int(b, &n) && n >= 0) {
        int64_t out = 1;
        while (n > 0) {
            if ((n & 1) && __builtin_mul_overflow(out, x, &out)) render_too_large(r);
            n >>= 1;
            if (n > 0 && __builtin_mul_overflow(x, x, &x)) render_too_large(r);
        }
        return value_int(out);
    }
    if (as_float(a) == 0 && as_float(b) < 0) render_fail(r, "division by zero");
    double out = pow(as_float(a), as_float(b));
    if (isnan(out) && !isnan(as_float(a)) && !isnan(as_float(b))) render_fail(r, "the power is no real number");
    return value_float(out);
}

static Value chained(Render *r, const Node *n)
{
    Value acc = eval(r, n->a);
    for (const Node *o = n->a->next; o; o = o->next) {
        Value v = eval(r, o);
        int64_t x, y;
        r->at = o->at;
        switch (o->op) {
        case OP_ADD: acc = value_add(r, acc, &v); break;
        case OP_SUB:
            if (as_int(&acc, &x) && as_int(&v, &y)) {
                if (__builtin_sub_overflow(x, y, &x)) render_too_large(r);
                acc = value_int(x);
            } else if (is_number(&acc) && is_number(&v)) {
                acc = value_float(as_float(&acc) - as_float(&v));
            } else {
                no_operation(r, "-", &acc, &v);
            }
            break;
        case OP_MUL: acc = multiplied(r, &acc, &v); break;
        case OP_POW: acc = power(r, &acc, &v); break;
        default: acc = divided(r, (Operator) o->op, &acc, &v); break;
        }
    }
    return acc;
}

static bool compared(Render *r, Operator op, const Value *a, const Value *b)
{
    switch (op) {
    case OP_EQ: return value_equal(r, a, b);
    case OP_NE: return !value_equal(r, a, b);
    case OP_IN: return value_contains(r, b, a);
    case OP_NOT_IN: return !value_contains(r, b, a);
    default: break;
    }
    need_defined(r, a);
    need_defined(r, b);
    if ((a->kind == V_FLOAT && isnan(a->f)) || (b->kind == V_FLOAT && isnan(b->f))) return false;
    int c = value_compare(r, a, b);
    return op == OP_LT ? c < 0 : op == OP_GT ? c > 0 : op == OP_LE ? c <= 0 : c >= 0;
}

/* a < b < c, chained as in Python. */
static Value comparison(Render *r, const Node *n)
{
    Value left = eval(r, n->a);
    for (const Node *o = n->a->next; o; o = o->next) {
        Value right = eval(r, o);
        r->at = o->at;
        if (!compared(r, (Operator) o->op, &left, &right)) return value_bool(false);
        left = right;
    }
    return value_bool(true);
}

/* ---- calls ---- */

/* Index of a name in a list of names separated by spaces, or -1. */
static int parameter_place(const char *params, const char *name, size_t n)
{
    int place = 0;
    for (const char *p = params; *p; place++) {
        size_t len = strcspn(p, " ");
        if (len == n && memcmp(p, name, n) == 0) return place;
        p += len + (p[len] == ' ');
    }
    return -1;
}

static int parameter_count(const char *params, bool *any)
{
    int n = 0;
    *any = false;
    for (const char *p = params; *p;) {
        size_t len = strcspn(p, " ");
        if (len == 1 && *p == '*') *any = true;
        else n++;
        p += len + (p[len] == ' ');
    }
    return n;
}

static void args_bind(Render *r, Args *out, const char *callee, const char *params, const List *given,
                      const Dict *named)
{
    bool any;
    uint32_t n = (uint32_t) parameter_count(params, &any);
    *out = (Args) { .at = { { .kind = V_UNSET } } };
    if (any) {
        out->more = list_new(r, V_LIST, 0).list;
        out->named = dict_new(r).dict;
    }
    for (uint32_t i = 0; given && i < given->n; i++) {
        if (i < n) out->at[i] = given->item[i];
        else if (any) list_put(r, out->more, given->item[i]);
        else render_fail(r, "%s takes %u arguments at most, and there are %u", callee, n, given->n);
    }
    for (uint32_t i = 0; named && i < named->n; i++) {
        const Value *name = &named->pair[i].key;
        int place = parameter_place(params, text_of(name), name->n);
        if (place >= 0 && place < (int) n) {
            if (is_set(&out->at[place]))
                render_fail(r, "%s has two values for \"%.*s\"", callee, SHOWN(text_of(name), (size_t) name->n));
            out->at[place] = named->pair[i].value;
        } else if (any) {
            dict_set(r, out->named, *name, named->pair[i].value);
        } else {
            render_fail(r, "%s has no parameter \"%.*s\"", callee, SHOWN(text_of(name), (size_t) name->n));
        }
    }
}

Value builtin_call(Render *r, const Builtin *b, Value value, const List *given, const Dict *named)
{
    Args args;
    args_bind(r, &args, b->name, b->params, given, named);
    return b->call(r, b, value, &args);
}

static void enter_call(Render *r)
{
    if (++r->calls > TEMPLATE_NESTING_MAX)
        fault(&r->fault, ST_FULL, r->at, "calls are nested deeper than %d", TEMPLATE_NESTING_MAX);
}

/* Runs a body with its own output and returns the text it wrote. */
static Value captured(Render *r, const Node *body, Scope *scope)
{
    Buffer *outer = r->out;
    Scope *before = r->scope;
    r->out = buffer_new(r, 0);
    r->scope = scope;
    exec(r, body);
    Value text = buffer_value(r->out);
    r->out = outer;
    r->scope = before;
    return text;
}

static Value macro_call(Render *r, const Macro *m, const List *given, const Dict *named)
{
    Scope *s = scope_new(r, m->scope), *before = r->scope;
    const uint8_t uses = m->node->op;
    uint32_t i = 0, n = given ? given->n : 0;
    Value more = list_new(r, V_TUPLE, 0), rest = dict_new(r), caller = value_undefined();
    uint64_t taken = 0;                            /* bit set of parameters given by position */
    enter_call(r);
    for (const Node *p = m->params; p; p = p->next, i++) {
        if (i >= n) continue;
        taken |= (uint64_t) 1 << i;
        dict_set(r, &s->vars, p->value, given->item[i]);
    }
    if (n > i && !(uses & MACRO_VARARGS))
        render_fail(r, "the macro \"%.*s\" takes %u arguments at most, and there are %u",
                    SHOWN(text_of(&m->name), (size_t) m->name.n), i, n);
    for (; i < n; i++) list_put(r, more.list, given->item[i]);
    for (uint32_t k = 0; named && k < named->n; k++) {
        const Pair *pair = &named->pair[k];
        const Node *p = m->params;
        for (i = 0; p && !value_equal(r, &p->value, &pair->key); p = p->next) i++;
        if (p && taken >> i & 1)
            render_fail(r, "the macro \"%.*s\" has two values for \"%.*s\"",
                        SHOWN(text_of(&m->name), (size_t) m->name.n), SHOWN(text_of(&pair->key), (size_t) pair->key.n));
        if (p) dict_set(r, &s->vars, p->value, pair->value);
        else if ((uses & MACRO_CALLER) && text_is(&pair->key, "caller")) caller = pair->value;
        else if (uses & MACRO_KWARGS) dict_set(r, rest.dict, pair->key, pair->value);
        else
            render_fail(r, "the macro \"%.*s\" has no parameter \"%.*s\"", SHOWN(text_of(&m->name), (size_t) m->name.n),
                        SHOWN(text_of(&pair->key), (size_t) pair->key.n));
    }
    r->scope = s;
    for (const Node *p = m->params; p; p = p->next)                /* defaults may use the parameters before them */
        if (!dict_find(r, &s->vars, &p->value))
            dict_set(r, &s->vars, p->value, p->a ? eval(r, p->a) : undefined_named(&p->value));
    if (uses & MACRO_VARARGS) dict_set(r, &s->vars, text_new(r, "varargs", 7), more);
    if (uses & MACRO_KWARGS) dict_set(r, &s->vars, text_new(r, "kwargs", 6), rest);
    if (uses & MACRO_CALLER) dict_set(r, &s->vars, text_new(r, "caller", 6), caller);
    Value out = captured(r, m->body, s);
    r->scope = before;
    r->calls--;
    return out;
}

static Flow run_loop(Render *r, const Node *n, Value over, int32_t depth, Scope *around);

static Value loop_call(Render *r, const Loop *l, const List *given)
{
    if (!l->node->op) render_fail(r, "the loop is not recursive");
    if (!given || given->n != 1) render_fail(r, "loop(...) takes one argument");
    Buffer *outer = r->out;
    Scope *before = r->scope;
    enter_call(r);
    r->out = buffer_new(r, 0);
    run_loop(r, l->node, given->item[0], l->depth + 1, l->scope);
    Value text = buffer_value(r->out);
    r->out = outer;
    r->scope = before;
    r->calls--;
    return text;
}

static Value call_value(Render *r, const Value *callee, const List *given, const Dict *named)
{
    Args args;
    switch (callee->kind) {
    case V_MACRO: return macro_call(r, callee->macro, given, named);
    case V_LOOP: return loop_call(r, callee->loop, given);
    case V_FUNCTION:
        args_bind(r, &args, callee->function->name, callee->function->params, given, named);
        return callee->function->call(r, &args);
    case V_METHOD: {
        const MethodSpec *spec = callee->method->spec;
        args_bind(r, &args, spec->name, spec->params, given, named);
        return spec->call(r, &callee->method->self, &args, spec->how);
    }
    default:
        need_defined(r, callee);
        render_fail(r, "a %s cannot be called", kind_name(callee));
    }
}

static List *positional(Render *r, const Node *call)
{
    if (!call->a) return NULL;
    List *l = list_new(r, V_LIST, 0).list;
    for (const Node *a = call->a; a; a = a->next) list_put(r, l, eval(r, a));
    return l;
}

static Dict *by_name(Render *r, const Node *call)
{
    if (!call->b) return NULL;
    Dict *d = dict_new(r).dict;
    for (const Node *a = call->b; a; a = a->next) {
        if (dict_find(r, d, &a->value))
            render_fail(r, "\"%.*s\" is given twice", SHOWN(text_of(&a->value), (size_t) a->value.n));
        dict_set(r, d, a->value, eval(r, a->a));
    }
    return d;
}

static Value apply(Render *r, const Node *op, Value v)
{
    List *given = positional(r, op);
    Dict *named = by_name(r, op);
    r->at = op->at;
    return builtin_call(r, op->builtin, v, given, named);
}

static bool is_name_defined(const Node *n)
{
    return n->a->kind == N_NAME && n->b && n->b->kind == N_TEST && strcmp(n->b->builtin->name, "defined") == 0;
}

/* Applies what follows an operand, from left to right. caller: of a call block, passed to the last call. */
static Value postfix(Render *r, const Node *n, const Value *caller)
{
    size_t asked = r->asked;
    Value v = eval(r, n->a);
    if (is_name_defined(n)) r->asked = asked;      /* this test does not reveal the variable's value */
    for (const Node *op = n->b; op; op = op->next) {
        render_spend(r, 1);
        switch (op->kind) {
        case N_ATTRIBUTE:
            r->at = op->at;
            v = get_attribute(r, v, &op->value, op->next && op->next->kind == N_CALL);
            break;
        case N_ITEM: {
            Value key = eval(r, op->a);
            r->at = op->at;
            v = get_item(r, v, &key);
            break;
        }
        case N_SLICE: v = slice(r, op, v); break;
        case N_FILTER: v = apply(r, op, v); break;
        case N_TEST: {
            Value says = apply(r, op, v);
            v = value_bool(value_true(&says) != (op->op != 0));
            break;
        }
        default: {                                 /* a call */
            List *given = positional(r, op);
            Dict *named = by_name(r, op);
            if (caller && !op->next) {
                if (!named) named = dict_new(r).dict;
                dict_set(r, named, text_new(r, "caller", 6), *caller);
            }
            r->at = op->at;
            v = call_value(r, &v, given, named);
            break;
        }
        }
    }
    return v;
}

/* ---- expressions ---- */

static Value eval_node(Render *r, const Node *n)
{
    Value v;
    switch (n->kind) {
    case N_VALUE: return n->value;
    case N_NAME: return look_up(r, n);
    case N_LIST: case N_TUPLE: {
        Value list = list_new(r, n->kind == N_LIST ? V_LIST : V_TUPLE, 0);
        for (const Node *o = n->a; o; o = o->next) list_put(r, list.list, eval(r, o));
        return list;
    }
    case N_DICT: {
        Value dict = dict_new(r);
        for (const Node *o = n->a; o; o = o->next->next) {
            Value key = eval(r, o);
            v = eval(r, o->next);
            r->at = o->at;
            dict_set(r, dict.dict, key, v);
        }
        return dict;
    }
    case N_IF_ELSE:
        v = eval(r, n->b);
        return value_true(&v) ? eval(r, n->a) : n->c ? eval(r, n->c) : value_undefined();
    case N_OR: case N_AND:
        v = eval(r, n->a);
        for (const Node *o = n->a->next; o && value_true(&v) == (n->kind == N_AND); o = o->next) v = eval(r, o);
        return v;
    case N_NOT:
        v = eval(r, n->a);
        return value_bool(!value_true(&v));
    case N_COMPARE: return comparison(r, n);
    case N_CHAIN: return chained(r, n);
    case N_CONCAT: {
        Value acc = value_text(r, eval(r, n->a));
        for (const Node *o = n->a->next; o; o = o->next) {
            v = value_text(r, eval(r, o));
            acc = text_join(r, acc, &v);
        }
        return acc;
    }
    case N_NEGATE: case N_PLUS: {
        int64_t i;
        v = eval(r, n->a);
        r->at = n->at;
        need_defined(r, &v);
        if (!is_number(&v)) render_fail(r, "a %s has no sign", kind_name(&v));
        if (as_int(&v, &i)) {
            if (n->kind == N_NEGATE && __builtin_sub_overflow(0, i, &i)) render_too_large(r);
            return value_int(i);
        }
        return value_float(n->kind == N_NEGATE ? -v.f : v.f);
    }
    default: return postfix(r, n, NULL);
    }
}

static Value eval(Render *r, const Node *n)
{
    r->at = n->at;
    render_spend(r, 1);
    if (++r->levels > LEVELS_MAX) fault(&r->fault, ST_FULL, n->at, "nested deeper than %d levels", LEVELS_MAX);
    Value v = eval_node(r, n);
    r->levels--;
    return v;
}

/* ---- statements ---- */

static Value filtered(Render *r, const Node *filters, Value v)
{
    for (const Node *f = filters; f; f = f->next) v = apply(r, f, v);
    return v;
}

/* The items that pass the loop's filter. */
static Value kept_items(Render *r, const Node *n, Value items, Scope *around)
{
    Value kept = list_new(r, V_LIST, 0);
    for (uint32_t i = 0; i < items.list->n; i++) {
        r->scope = scope_new(r, around);
        assign(r, n->a, items.list->item[i]);
        Value pass = eval(r, n->d->a);
        if (value_true(&pass)) list_put(r, kept.list, items.list->item[i]);
    }
    return kept;
}

static Flow run_loop(Render *r, const Node *n, Value over, int32_t depth, Scope *around)
{
    Scope *before = r->scope, *s = NULL;
    Flow flow = GO_ON;
    r->at = n->at;
    Value items = value_iterate(r, over), word = text_new(r, "loop", 4);
    if (n->d->a) items = kept_items(r, n, items, around);
    Loop *l = heap_take(&r->heap, sizeof *l);
    *l = (Loop) { .node = n, .item = items.list->item, .n = items.list->n, .depth = depth, .scope = around,
                  .changed = { .kind = V_UNSET } };
    for (; l->index < l->n && flow != LEAVE_BREAK; l->index++) {
        if (!s || s->kept) s = scope_new(r, around);
        s->vars.n = 0;
        s->vars.slot = NULL;
        r->scope = s;
        dict_set(r, &s->vars, word, (Value) { .kind = V_LOOP, .loop = l });
        assign(r, n->a, l->item[l->index]);
        render_spend(r, 1);
        flow = exec(r, n->c);
    }
    if (l->n == 0 && n->d->b) {
        r->scope = scope_new(r, around);
        flow = exec(r, n->d->b);
        r->scope = before;
        return flow;
    }
    r->scope = before;
    return GO_ON;
}

static void make_macro(Render *r, const Node *n)
{
    Macro *m = heap_take(&r->heap, sizeof *m);
    *m = (Macro) { .node = n, .scope = r->scope, .name = n->value, .body = n->b, .params = n->a };
    scope_keep(r->scope);
    dict_set(r, &r->scope->vars, n->value, (Value) { .kind = V_MACRO, .macro = m });
}

static void call_block(Render *r, const Node *n)
{
    Macro *m = heap_take(&r->heap, sizeof *m);
    *m = (Macro) { .node = n, .scope = r->scope, .name = text_new(r, "caller", 6), .body = n->b, .params = n->a };
    scope_keep(r->scope);
    Value caller = { .kind = V_MACRO, .macro = m }, v = postfix(r, n->c, &caller);
    print_text(r, r->out, &v);
}

static Flow exec_one(Render *r, const Node *n)
{
    Value v;
    switch (n->kind) {
    case N_TEXT: buffer_put_text(r, r->out, &n->value); return GO_ON;
    case N_PRINT:
        v = eval(r, n->a);
        print_text(r, r->out, &v);
        return GO_ON;
    case N_IF:
        for (; n; n = n->d) {
            v = eval(r, n->a);
            if (value_true(&v)) return exec(r, n->b);
            if (!n->d) return exec(r, n->c);
        }
        return GO_ON;
    case N_FOR: return run_loop(r, n, eval(r, n->b), 0, r->scope);
    case N_SET:
        assign(r, n->a, eval(r, n->b));
        return GO_ON;
    case N_SET_BLOCK:
        assign(r, n->a, filtered(r, n->c, captured(r, n->b, scope_new(r, r->scope))));
        return GO_ON;
    case N_FILTER_BLOCK:
        v = filtered(r, n->c, captured(r, n->b, scope_new(r, r->scope)));
        print_text(r, r->out, &v);
        return GO_ON;
    case N_MACRO: make_macro(r, n); return GO_ON;
    case N_CALL_BLOCK: call_block(r, n); return GO_ON;
    case N_DO: eval(r, n->a); return GO_ON;
    case N_BREAK: return LEAVE_BREAK;
    case N_CONTINUE: return LEAVE_CONTINUE;
    default: {                                     /* with, generation: a new scope, its values evaluated outside */
        Scope *before = r->scope, *s = scope_new(r, before);
        for (const Node *m = n->kind == N_WITH ? n->a : NULL; m; m = m->next) {
            v = eval(r, m->b);
            r->scope = s;
            assign(r, m->a, v);
            r->scope = before;
        }
        r->scope = s;
        Flow flow = exec(r, n->b);
        r->scope = before;
        return flow;
    }
    }
}

static Flow exec(Render *r, const Node *n)
{
    Flow flow = GO_ON;
    if (++r->levels > LEVELS_MAX) fault(&r->fault, ST_FULL, r->at, "nested deeper than %d levels", LEVELS_MAX);
    for (; n && flow == GO_ON; n = n->next) {
        r->at = n->at;
        render_spend(r, 1);
        flow = exec_one(r, n);
    }
    r->levels--;
    return flow;
}

void render_body(Render *r) { exec(r, r->t->body); }
