/* Numbers between decimal limits, digit by digit: as long as a number agrees with a limit, the limit's next digit
 * bounds its next digit; once it differs, its digits are free. Limits are compared exactly, as decimals. Numbers are
 * restricted to what a double distinguishes (15 digits) and whole numbers to what 64 bits hold (18 digits), so that a
 * reader's rounding cannot move one across its limit. */
#include <stdlib.h>
#include <string.h>

#include "text/grammar/grammar_graph.h"

enum { WHOLE_DIGITS = 18, REAL_DIGITS = 15, FRACTION_MAX = 40 };

/* open: the limit itself is excluded */
typedef struct { char i[24], f[FRACTION_MAX + 1]; int ni, nf; bool negative, huge, given, open; } Decimal;

typedef struct {
    Graph   *b;
    Decimal  lo, hi;                        /* of the magnitude; !given: no limit */
    int      n, places;                     /* digits before and after the point of the numbers being drawn */
    bool     whole;
    uint32_t next, fraction[REAL_DIGITS + 1], digits[WHOLE_DIGITS + 1];      /* free of both limits, by digits left */
} Range;

/* "[-]digits[.digits][e[+-]digits]" */
static Decimal decimal(const char *s, bool open)
{
    Decimal d = { .given = s != NULL, .open = open };
    char all[64];
    int n = 0, point = -1, zeros = 0;
    if (!s) return d;
    if (*s == '-') {
        d.negative = true;
        s++;
    }
    for (; (*s >= '0' && *s <= '9') || *s == '.'; s++) {
        if (*s == '.') point = n;
        else if (n < (int) sizeof all) all[n++] = *s;
    }
    if (point < 0) point = n;
    if (*s == 'e' || *s == 'E') point += atoi(s + 1);
    while (zeros < n && all[zeros] == '0') zeros++;
    memmove(all, all + zeros, (size_t) (n - zeros));
    n -= zeros;
    point -= zeros;
    while (n > 0 && all[n - 1] == '0') n--;
    if (n == 0) point = 0;
    d.huge = point > WHOLE_DIGITS;
    for (int k = 0; !d.huge && k < point; k++) d.i[d.ni++] = k < n ? all[k] : '0';
    if (d.ni == 0) d.i[d.ni++] = '0';
    /* Beyond the digits that are ever written it only matters whether the rest is zero: the last digit says so. */
    for (int k = point; k < n && d.nf < FRACTION_MAX; k++) d.f[d.nf++] = k < 0 ? '0' : all[k];
    if (n > 0 && d.nf == FRACTION_MAX) d.f[FRACTION_MAX - 1] = '1';
    return d;
}

static bool is_zero(const Decimal *d) { return !d->huge && d->ni == 1 && d->i[0] == '0' && d->nf == 0; }

static uint32_t digit_range(Range *r, int lo, int hi, uint32_t next)
{
    return lo > hi ? GRAPH_NONE : graph_range(r->b, (uint32_t) lo, (uint32_t) hi, next);
}

/* Whether a number may end here, k digits after the point. */
static bool may_end(const Range *r, int k, bool tlo, bool thi)
{
    if (tlo && (k < r->lo.nf || r->lo.open)) return false;
    return !(thi && k >= r->hi.nf && r->hi.open);
}

/* What may follow k >= 0 digits after the point; at k == 0 at least one digit must. */
static uint32_t fraction(Range *r, int k, bool tlo, bool thi)
{
    bool free = !tlo && !thi && k > 0;
    if (free && r->fraction[k] != GRAPH_NONE) return r->fraction[k];
    uint32_t way = k > 0 && may_end(r, k, tlo, thi) ? r->next : GRAPH_NONE;
    if (k < r->places) {
        int lo = tlo && k < r->lo.nf ? r->lo.f[k] : '0', hi = thi ? k < r->hi.nf ? r->hi.f[k] : '0' : '9';
        if (!tlo && !thi) way = graph_split(r->b, digit_range(r, '0', '9', fraction(r, k + 1, false, false)), way);
        else {
            for (int d = lo; d <= hi; d++) {
                bool l = tlo && d == lo, h = thi && d == hi;
                int last = d;
                while (!l && !h && last + 1 < hi + !thi) last++;          /* between the limits: one branch */
                way = graph_split(r->b, digit_range(r, d, last, fraction(r, k + 1, l, h)), way);
                d = last;
            }
        }
    }
    if (free) r->fraction[k] = way;
    return way;
}

static uint32_t tail(Range *r, bool tlo, bool thi)
{
    uint32_t way = may_end(r, 0, tlo, thi) ? r->next : GRAPH_NONE;
    if (r->places == 0) return way;
    return graph_split(r->b, graph_one(r->b, '.', fraction(r, 0, tlo, thi)), way);
}

/* What may follow k of r->n digits before the point. */
static uint32_t integral(Range *r, int k, bool tlo, bool thi)
{
    if (k == r->n) return tail(r, tlo, thi);
    bool free = !tlo && !thi && k > 0;
    if (free && r->digits[k] != GRAPH_NONE) return r->digits[k];
    int least = k == 0 && r->n > 1 ? '1' : '0', lo = tlo && r->lo.i[k] > least ? r->lo.i[k] : least,
        hi = thi ? r->hi.i[k] : '9';
    uint32_t way = GRAPH_NONE;
    for (int d = lo; d <= hi; d++) {
        bool l = tlo && d == r->lo.i[k], h = thi && d == hi;
        int last = d;
        while (!l && !h && last + 1 < hi + !thi) last++;
        way = graph_split(r->b, digit_range(r, d, last, integral(r, k + 1, l, h)), way);
        d = last;
    }
    if (free) r->digits[k] = way;
    return way;
}

static uint32_t magnitude(Graph *b, const NumberRange *want, Decimal lo, Decimal hi, uint32_t next)
{
    int longest = want->whole ? WHOLE_DIGITS : REAL_DIGITS;
    uint32_t way = GRAPH_NONE;
    if (lo.given && (lo.huge || lo.ni > longest)) return GRAPH_NONE;
    if (hi.huge || hi.ni > longest) hi.given = false;
    for (int n = 1; n <= longest; n++) {
        if ((lo.given && n < lo.ni) || (hi.given && n > hi.ni)) continue;
        Range r = { .b = b, .lo = lo, .hi = hi, .n = n, .whole = want->whole, .next = next };
        r.places = want->whole ? 0 : REAL_DIGITS - n;
        if (want->places >= 0 && want->places < r.places) r.places = want->places;
        memset(r.fraction, 0xff, sizeof r.fraction);
        memset(r.digits, 0xff, sizeof r.digits);
        way = graph_split(b, integral(&r, 0, lo.given && n == lo.ni, hi.given && n == hi.ni), way);
    }
    return way;
}

/* Any number: "-"? digits ("." digits)? ([eE] [+-]? digits)?, each part of bounded length. */
static uint32_t any_number(Graph *b, uint32_t next)
{
    enum { EXPONENT = 2 };
    uint32_t e = next, f = GRAPH_NONE, i;
    for (int k = 0; k < EXPONENT; k++) e = graph_range(b, '0', '9', graph_split(b, k > 0 ? e : GRAPH_NONE, next));
    uint32_t sign = graph_class(b, (CharRange[]) { { '+', '+' }, { '-', '-' } }, 2),
             letter = graph_class(b, (CharRange[]) { { 'E', 'E' }, { 'e', 'e' } }, 2);
    e = graph_split(b, graph_char(b, letter, graph_split(b, graph_char(b, sign, e), e)), next);
    for (int k = 0; k < REAL_DIGITS; k++) f = graph_range(b, '0', '9', graph_split(b, f, e));
    f = graph_split(b, graph_one(b, '.', f), e);
    i = f;
    for (int k = 1; k < REAL_DIGITS; k++) i = graph_split(b, graph_range(b, '0', '9', i), f);
    i = graph_split(b, graph_range(b, '1', '9', i), graph_one(b, '0', f));
    return graph_split(b, graph_one(b, '-', i), i);
}

uint32_t graph_number(Graph *b, const NumberRange *want, uint32_t next)
{
    if (!want->min && !want->max && !want->whole && want->places < 0) return any_number(b, next);
    Decimal min = decimal(want->min, want->above), max = decimal(want->max, want->below), zero = decimal("0", false);
    Decimal above_zero = decimal("0", true);
    uint32_t way = GRAPH_NONE;
    bool max_below = max.given && max.negative && !is_zero(&max),
         min_below = !min.given || (min.negative && !is_zero(&min));
    if (!max_below) way = magnitude(b, want, min_below ? zero : min, max, next);
    if (min_below)
        way = graph_split(b, graph_one(b, '-', magnitude(b, want, max_below ? max : above_zero, min, next)), way);
    return way;
}
