/* From bytes to symbols: which marks may begin at the queue's head, and whether that can be decided yet. The head waits
 * exactly as long as it is a proper prefix of a mark that has a meaning here, or of a stop string. */
#include <stdlib.h>
#include <string.h>

#include "base/grow.h"
#include "text/reply/reply_impl.h"

enum { SPACE_MAX = 256, LOOK_MAX = 1024 };         /* white space between marks that belong together; lookahead */

/* ---- what waits ---- */

bool in_reserve(Reply *r, size_t more)
{
    if (r->head > 0 && r->head == r->n_in) r->head = r->n_in = 0;
    if (r->n_in + more <= r->cap_in) return true;
    if (r->head > 0) {
        memmove(r->in, r->in + r->head, (r->n_in - r->head) * sizeof *r->in);
        r->n_in -= r->head;
        r->head = 0;
    }
    if (grow_to(&r->in, &r->cap_in, r->n_in + more, 256, sizeof *r->in)) return true;
    r->failed = true;
    return false;
}

/* Replaces the first `old` bytes by n bytes, which end with the same token. */
static bool replace_head(Reply *r, size_t old, const char *s, size_t n, int32_t done)
{
    if (!in_reserve(r, n)) return false;
    size_t rest = r->n_in - r->head - old;
    memmove(r->in + r->head + n, r->in + r->head + old, rest * sizeof *r->in);
    for (size_t i = 0; i < n; i++) r->in[r->head + i] = (Held) { (uint8_t) s[i], i + 1 == n ? done : r->done };
    r->n_in = r->head + n + rest;
    return true;
}

bool in_give_back(Reply *r, const Bytes *bytes) { return replace_head(r, 0, bytes->at, bytes->n, r->done); }

/* ---- lookahead ---- */

typedef enum { NO, MORE, YES } Found;
typedef struct { const Reply *r; size_t at; bool final; } Look;

static bool at_end(const Look *l) { return l->at >= l->r->n_in; }
static int  byte_at(const Look *l) { return at_end(l) ? -1 : l->r->in[l->at].c; }

static Found spelled(Look *l, const char *text, size_t n)
{
    const Reply *r = l->r;
    for (size_t i = 0; i < n; i++) {
        if (l->at + i >= r->n_in) return l->final ? NO : MORE;
        if (r->in[l->at + i].c != (uint8_t) text[i]) return NO;
    }
    l->at += n;
    return YES;
}

static Found mark(Look *l, int symbol)
{
    const char *text = l->r->mark[symbol - S_QUOTE];
    if (!text) return NO;
    if (symbol < S_FUNCTION && byte_at(l) == PRIVATE + symbol - S_QUOTE) {
        l->at++;
        return YES;
    }
    return spelled(l, text, strlen(text));
}

/* Skips white space. NO: there is more than allowed between two marks. */
static Found space(Look *l)
{
    for (size_t n = 0; n <= SPACE_MAX; n++, l->at++)
        if (!is_space(byte_at(l))) return YES;
    return NO;
}

static Found either(Found a, Found b) { return a > b ? a : b; }

static Found one_of(const Look *from, const int *symbols)
{
    Found f = NO;
    for (; *symbols; symbols++) {
        Look l = *from;
        f = either(f, mark(&l, *symbols));
    }
    return f;
}
#define ONE_OF(l, ...) one_of(l, (const int[]) { __VA_ARGS__, 0 })

/* After white space, one of the marks, or the end of the answer unless a limit caused it. */
static Found then_end_or(Look l, const int *symbols)
{
    if (space(&l) == NO) return NO;
    if (at_end(&l)) return !l.final ? MORE : l.r->cut ? NO : YES;
    return one_of(&l, symbols);
}

/* <parameter=NAME> with a declared name that has no value yet: perhaps the last value was not closed. */
static Found next_parameter(Look *l)
{
    Found f = mark(l, S_PARAM), best = NO;
    const ReplyCall *c = &l->r->call;
    size_t end = l->at;
    if (f != YES || !c->tool) return f == YES ? NO : f;
    const json_t *props = json_object_get(value_target(c->tool->schema, c->tool->schema), "properties");
    const char *name;
    json_t *v;
    json_object_foreach((json_t *) props, name, v) {
        Look name_at = *l;
        if (json_object_get(c->given, name)) continue;
        f = spelled(&name_at, name, strlen(name));
        if (f == YES) f = spelled(&name_at, ">", 1);
        best = either(best, f);
    }
    l->at = end;
    return best;
}

/* A mark inside a value ends it only if what follows fits the format, since values are raw text and may be about such
 * marks: </parameter> followed by the next tag; </function> and </tool_call> if the value was never closed and nothing
 * else follows. */
static Found value_end(Look *l, int symbol)
{
    const Reply *r = l->r;
    const ReplyCall *c = &r->call;
    bool xml = c->state == X_VALUE;
    int own = xml ? S_PARAM_END : S_VALUE_END;
    Look end = *l;
    Found f;
    if (xml && byte_at(&end) == '\n') end.at++;
    if (at_end(&end)) return l->final ? NO : MORE;
    if (symbol == S_PARAM) f = next_parameter(&end);
    else f = mark(&end, symbol);
    if (f != YES) return f;
    if (symbol == own) {
        for (Look next = end;;) {
            if (space(&next) == NO || next.at - l->at > LOOK_MAX) return NO;
            if (at_end(&next)) f = l->final ? YES : MORE;
            else f = xml ? ONE_OF(&next, S_PARAM, S_FUNCTION_END, S_CALL_END) : ONE_OF(&next, S_KEY, S_CALL_END);
            if (f != NO || !recovers(r)) break;
            f = mark(&next, own);                  /* closed twice */
            if (f != YES) break;
            end = next;
        }
    } else if (symbol == S_FUNCTION_END) {
        Look next = end;
        f = then_end_or(next, (const int[]) { S_CALL_END, 0 });
        if (f == YES && space(&next) == YES && mark(&next, S_CALL_END) == YES)
            f = then_end_or(next, (const int[]) { S_CALL, 0 });
    } else if (symbol == S_CALL_END) {
        f = then_end_or(end, (const int[]) { S_CALL, S_TURN, 0 });
    }
    if (f == YES) l->at = end.at;
    return f;
}

static Found tag(Look *l)
{
    Found best = NO;
    for (size_t i = 0; i < l->r->n_tools && best != YES; i++) {
        Look at = *l;
        const char *name = l->r->tool[i].name;
        Found f = spelled(&at, "<", 1);
        if (f == YES) f = spelled(&at, name, strlen(name));
        if (f == YES) f = spelled(&at, ">", 1);
        if (f == YES) l->at = at.at;
        best = either(best, f);
    }
    return best;
}

/* ---- marks of a state ---- */

static uint32_t text_marks(const Reply *r)
{
    uint32_t m = BIT(S_THINK) | BIT(S_THINK_END);
    if (r->broken_close) m |= BIT(S_CALL_END);
    if (!r->calls_on) return m;
    m |= BIT(S_CALL) | BIT(S_PYTHON) | BIT(S_TURN);
    if (recovers(r) || r->style.calls == CALLS_LLAMA3) m |= BIT(S_FUNCTION);
    if (recovers(r)) m |= BIT(S_NAMED);
    if (recovers(r) && r->text_empty) m |= BIT(S_TAG) | BIT(S_CODE);
    return m;
}

static uint32_t marks(const Reply *r)
{
    switch (r->at) {
    case AT_REASON:
        if (r->in_region) return BIT(S_THINK_END) | BIT(S_CALL) | BIT(S_CALL_END);
        return BIT(S_THINK_END) | (r->reason_start ? BIT(S_THINK) | BIT(S_CHANNEL) : 0) |
               (r->promote ? BIT(S_CALL) : 0);
    case AT_TEXT:  return text_marks(r);
    case AT_CALL:  return call_marks(r);
    case AT_AFTER: return (text_marks(r) | BIT(S_CALL_END)) & ~(BIT(S_NAMED) | BIT(S_TAG) | BIT(S_CODE));
    default:       return BIT(S_CALL_END) | BIT(S_CALL);
    }
}

/* In text a mark spelled as bytes counts only at the beginning of a line and outside fenced code, except for the end of
 * a broken call. */
static bool may_begin(const Reply *r, int symbol)
{
    if (r->at != AT_TEXT || symbol == S_CALL_END || r->in[r->head].c == PRIVATE + symbol - S_QUOTE) return true;
    if (symbol == S_NAMED) return r->last < 0 || strchr(" \n\t\r,;:([{})]>_", r->last);
    return r->line_start && !r->fence;
}

static Found at_head(const Reply *r, int symbol, bool final, size_t *n)
{
    Look l = { r, r->head, final };
    if (!may_begin(r, symbol)) return NO;
    Found f = symbol == S_TAG ? tag(&l)
                              : r->at == AT_CALL && call_in_value(r) ? value_end(&l, symbol) : mark(&l, symbol);
    *n = l.at - r->head;
    return f;
}

static bool stops_here(const Reply *r)
{
    if (r->at == AT_REASON) return r->stop_in_reasoning;
    return r->at == AT_CALL ? !r->call.begun && !r->call.closer : r->at != AT_DROP;
}

static Found stop_at_head(const Reply *r, bool final, Unit *out)
{
    Found best = NO;
    out->n = 0;
    for (size_t i = 0; i < r->n_stop; i++) {
        Look l = { r, r->head, final };
        Found f = spelled(&l, r->stop[i], r->stop_len[i]);
        if (f == YES && r->stop_len[i] > out->n) *out = (Unit) { S_STOP, r->stop_len[i], r->stop_index[i] };
        best = either(best, f);
    }
    return best;
}

bool in_next(Reply *r, bool final, Unit *out)
{
    while (r->head < r->n_in) {
        Found best = stops_here(r) ? stop_at_head(r, final, out) : NO;
        if (best == YES) return true;
        int c = r->in[r->head].c;
        uint32_t m = marks(r);
        for (int k = 0; k < N_MARKS; k++) {
            size_t n = 0;
            if (!(m >> k & 1) || (k + S_QUOTE != S_TAG && !r->mark[k])) continue;
            Found f = at_head(r, k + S_QUOTE, final, &n);
            if (f == YES) {
                *out = (Unit) { k + S_QUOTE, n, -1 };
                return true;
            }
            best = either(best, f);
        }
        if (best == MORE) return false;
        if (c < PRIVATE) {
            *out = (Unit) { c, 1, -1 };
            return true;
        }
        /* A token without meaning here is treated as its text. */
        const char *text = r->mark[c - PRIVATE];
        if (!replace_head(r, 1, text, strlen(text), r->in[r->head].done)) return false;
    }
    return false;
}
