/* template_is.c - the tests: what follows "is", and what select and similar filters apply by name. */
#include <string.h>
#include <utf8proc.h>

#include "text/template/template_impl.h"
#include "text/tokenizer/utf8.h"

enum { IS_BOOLEAN, IS_CALLABLE, IS_DEFINED, IS_FALSE, IS_FLOAT, IS_INTEGER, IS_ITERABLE, IS_MAPPING, IS_NONE, IS_NUMBER,
       IS_SEQUENCE, IS_STRING, IS_TRUE, IS_UNDEFINED };

static Value test_kind(Render *r, const Builtin *self, Value v, const Args *a)
{
    (void) r;
    (void) a;
    bool list = v.kind == V_LIST || v.kind == V_TUPLE;
    bool items = list || v.kind == V_STRING || v.kind == V_DICT || v.kind == V_UNDEFINED;
    switch (self->how) {
    case IS_BOOLEAN: return value_bool(v.kind == V_BOOL);
    case IS_CALLABLE:
        return value_bool(v.kind == V_MACRO || v.kind == V_METHOD || v.kind == V_FUNCTION || v.kind == V_LOOP ||
                          v.kind == V_UNDEFINED);
    case IS_DEFINED: return value_bool(v.kind != V_UNDEFINED);
    case IS_FALSE: return value_bool(v.kind == V_BOOL && !v.b);
    case IS_FLOAT: return value_bool(v.kind == V_FLOAT);
    case IS_INTEGER: return value_bool(v.kind == V_INT);
    case IS_ITERABLE: return value_bool(items || v.kind == V_LOOP);
    case IS_MAPPING: return value_bool(v.kind == V_DICT);
    case IS_NONE: return value_bool(v.kind == V_NONE);
    case IS_NUMBER: return value_bool(is_number(&v));
    case IS_SEQUENCE: return value_bool(items && !(list && v.list->lazy));
    case IS_STRING: return value_bool(v.kind == V_STRING);
    case IS_TRUE: return value_bool(v.kind == V_BOOL && v.b);
    default: return value_bool(v.kind == V_UNDEFINED);
    }
}

static const Value *other(Render *r, const Builtin *self, const Args *a)
{
    if (!is_set(&a->at[0])) render_fail(r, "the test \"%s\" needs a value to compare with", self->name);
    return &a->at[0];
}

static Value test_compare(Render *r, const Builtin *self, Value v, const Args *a)
{
    const Value *o = other(r, self, a);
    if (self->how == OP_EQ) return value_bool(value_equal(r, &v, o));
    if (self->how == OP_NE) return value_bool(!value_equal(r, &v, o));
    if (self->how == OP_IN) return value_bool(value_contains(r, o, &v));
    int c = value_compare(r, &v, o);
    return value_bool(self->how == OP_LT ? c < 0 : self->how == OP_GT ? c > 0 : self->how == OP_LE ? c <= 0 : c >= 0);
}

static Value test_sameas(Render *r, const Builtin *self, Value v, const Args *a)
{
    const Value *o = other(r, self, a);
    if (v.kind != o->kind) return value_bool(false);
    if (v.kind == V_LIST || v.kind == V_TUPLE || v.kind >= V_DICT) return value_bool(v.dict == o->dict);
    return value_bool(value_equal(r, &v, o));
}

static Value test_divisible(Render *r, const Builtin *self, Value v, const Args *a)
{
    Value by = self->how < 0 ? *other(r, self, a) : value_int(2);
    if (!is_number(&v) || !is_number(&by))
        render_fail(r, "the test \"%s\" needs a number, not a %s", self->name, kind_name(is_number(&v) ? &by : &v));
    Value rest = value_remainder(r, &v, &by);
    return value_bool(self->how == 1 ? as_float(&rest) == 1 : as_float(&rest) == 0);
}

/* At least one letter of this case, and none of the other. */
static Value test_case(Render *r, const Builtin *self, Value v, const Args *a)
{
    (void) a;
    v = render_text(r, &v);
    bool some = false;
    render_spend(r, v.n / 64);
    for (size_t i = 0; i < v.n;) {
        uint32_t cp = 0;
        size_t len = utf8_next(text_of(&v) + i, v.n - i, &cp);
        i += len ? len : 1;
        bool up = utf8proc_isupper((utf8proc_int32_t) cp), low = utf8proc_islower((utf8proc_int32_t) cp);
        if (self->how ? low : up) return value_bool(false);
        some |= self->how ? up : low;
    }
    return value_bool(some);
}

static Value test_named(Render *r, const Builtin *self, Value v, const Args *a)
{
    (void) r;
    (void) a;
    if (v.kind != V_STRING) return value_bool(false);
    return value_bool((self->how ? filter_find(text_of(&v), v.n) : test_find(text_of(&v), v.n)) != NULL);
}

static const Builtin TESTS[] = {
    { "boolean", test_kind, "", IS_BOOLEAN }, { "callable", test_kind, "", IS_CALLABLE },
    { "defined", test_kind, "", IS_DEFINED },
    { "false", test_kind, "", IS_FALSE }, { "float", test_kind, "", IS_FLOAT },
    { "integer", test_kind, "", IS_INTEGER },
    { "iterable", test_kind, "", IS_ITERABLE }, { "mapping", test_kind, "", IS_MAPPING },
    { "none", test_kind, "", IS_NONE },
    { "number", test_kind, "", IS_NUMBER }, { "sequence", test_kind, "", IS_SEQUENCE },
    { "string", test_kind, "", IS_STRING },
    { "true", test_kind, "", IS_TRUE }, { "undefined", test_kind, "", IS_UNDEFINED },
    { "eq", test_compare, "other", OP_EQ }, { "equalto", test_compare, "other", OP_EQ },
    { "==", test_compare, "other", OP_EQ },
    { "ne", test_compare, "other", OP_NE }, { "!=", test_compare, "other", OP_NE },
    { "lt", test_compare, "other", OP_LT },
    { "lessthan", test_compare, "other", OP_LT }, { "<", test_compare, "other", OP_LT },
    { "gt", test_compare, "other", OP_GT },
    { "greaterthan", test_compare, "other", OP_GT }, { ">", test_compare, "other", OP_GT },
    { "le", test_compare, "other", OP_LE },
    { "<=", test_compare, "other", OP_LE }, { "ge", test_compare, "other", OP_GE },
    { ">=", test_compare, "other", OP_GE },
    { "in", test_compare, "seq", OP_IN }, { "sameas", test_sameas, "other", 0 },
    { "divisibleby", test_divisible, "num", -1 },
    { "even", test_divisible, "", 0 }, { "odd", test_divisible, "", 1 }, { "lower", test_case, "", 0 },
    { "upper", test_case, "", 1 },
    { "filter", test_named, "", 1 }, { "test", test_named, "", 0 },
};

const Builtin *test_find(const char *name, size_t n)
{
    for (size_t i = 0; i < sizeof TESTS / sizeof *TESTS; i++)
        if (strlen(TESTS[i].name) == n && memcmp(TESTS[i].name, name, n) == 0) return &TESTS[i];
    return NULL;
}
