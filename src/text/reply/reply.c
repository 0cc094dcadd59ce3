/* The decoder outside calls: reasoning, text, what comes after a call; tokens in, events out. */
#include <stdlib.h>
#include <string.h>

#include "base/grow.h"
#include "text/reply/reply_impl.h"

enum { REGION_MAX = 1 << 16 };

/* ---- events ---- */

/* Emits bytes. Adjacent bytes of one kind that have not been read yet form one event. */
void tell(Reply *r, ReplyKind kind, const char *s, size_t n)
{
    int32_t call = kind == REPLY_REASON || kind == REPLY_TEXT ? -1 : r->sum.calls - 1;
    Queued *last = r->n_queue > r->read ? &r->queue[r->n_queue - 1] : NULL;
    size_t at = r->text.n;
    if (n == 0 && kind != REPLY_CALL_END) return;
    bytes_put(&r->text, s, n);
    if (last && last->kind == kind && last->call == call && kind != REPLY_CALL_BEGIN && kind != REPLY_CALL_END) {
        last->n += n;
        last->tokens = r->now;
        return;
    }
    if (!grow_to(&r->queue, &r->cap_queue, r->n_queue + 1, 16, sizeof *r->queue)) {
        r->failed = true;
        return;
    }
    r->queue[r->n_queue++] = (Queued) { (uint8_t) kind, call, at, n, r->from, r->now };
}

bool reply_next(Reply *r, ReplyEvent *out)
{
    if (r->read == r->n_queue) return false;
    const Queued *q = &r->queue[r->read++];
    *out = (ReplyEvent) { q->kind, q->call, r->text.at ? r->text.at + q->at : "", q->n, q->from, q->tokens };
    return true;
}

/* Frees events that have been read, once more comes. */
static void forget_taken(Reply *r)
{
    if (r->read < r->n_queue) return;
    r->read = r->n_queue = 0;
    r->text.n = 0;
}

static void tell_char(Reply *r, ReplyKind kind, int c)
{
    char byte = (char) c;
    tell(r, kind, &byte, 1);
}

/* Emits white space that turned out to belong to the text. */
static void flush_gap(Reply *r, ReplyKind kind)
{
    int32_t from = r->from;
    r->from = r->gap_from;
    tell(r, kind, r->gap.at, r->gap.n);
    r->from = from;
    r->gap.n = 0;
}

static void gap_put(Reply *r, int c)
{
    if (r->gap.n == 0) r->gap_from = r->from;
    bytes_char(&r->gap, c);
}

/* ---- text ---- */

static void follow_lines(Reply *r, int c)
{
    bool tick = c == '`' && (r->line_start || r->ticks > 0);
    r->ticks = tick ? r->ticks + 1 : 0;
    if (r->ticks == 3) r->fence = !r->fence;
    if (c == '\n') r->line_start = true;
    else if (!is_space(c)) r->line_start = false;
    r->last = c;
}

void text_put(Reply *r, int c)
{
    bool space = is_space(c);
    follow_lines(r, c);
    if (r->trim && (c == ' ' || c == '\n')) return;
    r->trim = false;
    if (space && (r->calls_on || (r->text_empty && r->style.think != THINK_NONE))) {
        gap_put(r, c);
        return;
    }
    flush_gap(r, REPLY_TEXT);
    tell_char(r, REPLY_TEXT, c);
    r->text_empty &= space;
}

static void expand(Reply *r, const char *s, size_t n, void (*put)(Reply *r, int c))
{
    for (size_t i = 0; i < n; i++) {
        uint8_t c = (uint8_t) s[i];
        const char *text = c >= PRIVATE ? r->mark[c - PRIVATE] : NULL;
        if (!text) put(r, c);
        else
            for (; *text; text++) put(r, (uint8_t) *text);
    }
}

void text_bytes(Reply *r, const Bytes *bytes) { expand(r, bytes->at, bytes->n, text_put); }

/* Shows a mark as text: reasoning is emitted as it came. */
static void show_mark(Reply *r, const Unit *u)
{
    if (!r->think_inline) return;
    for (const char *s = r->mark[u->symbol - S_QUOTE]; *s; s++) text_put(r, (uint8_t) *s);
}

static Step begin_reason(Reply *r, const Unit *u)
{
    if (r->text_empty && !r->think_inline) r->gap.n = 0;
    show_mark(r, u);
    flush_gap(r, REPLY_TEXT);
    r->at = AT_REASON;
    r->reason_start = true;
    r->empty_before = r->text_empty;
    return TAKEN;
}

/* The text restarts at the beginning of a line, outside any code block. */
static void after_close(Reply *r, const Unit *u)
{
    show_mark(r, u);
    r->trim = !r->think_inline;
    r->line_start = true;
    r->fence = false;
    r->ticks = 0;
}

static Step stray_close(Reply *r, const Unit *u)
{
    after_close(r, u);
    return TAKEN;
}

static void stop_now(Reply *r, ReplyStop why)
{
    r->stopped = why;
    r->head = r->n_in;
}

static Step stop_string(Reply *r, const Unit *u)
{
    flush_gap(r, r->at == AT_REASON ? (r->think_inline ? REPLY_TEXT : REPLY_REASON) : REPLY_TEXT);
    r->sum.stop = u->which;
    stop_now(r, REPLY_STOP_STRING);
    return AGAIN;
}

/* Whether the symbol opens a call, in text or after another call. */
static bool opens_call(Reply *r, const Unit *u, Step *step)
{
    *step = TAKEN;
    switch (u->symbol) {
    case S_CALL:     call_open(r, r->style.calls == CALLS_GEMMA4 ? G_WRAP : X_WRAP, S_CALL_END, false); return true;
    case S_FUNCTION: call_open(r, X_NAME, 0, true); return true;
    case S_PYTHON:   call_open(r, P_WRAP, 0, true); return true;
    case S_NAMED:    call_open(r, G_NAME, 0, true); return true;
    case S_CODE:     call_open(r, B_OPEN, S_CODE_END, true); return true;
    case S_TAG:
        call_open(r, X_TAG, 0, true);
        for (size_t i = r->head + 1; i + 1 < r->head + u->n; i++) bytes_char(&r->call.name, r->in[i].c);
        return true;
    default: return false;
    }
}

/* An answer that begins as a JSON object may as a whole be a call. */
static bool bare_may_begin(const Reply *r)
{
    bool own = r->style.calls == CALLS_LLAMA3 || r->style.calls == CALLS_JSON;
    return r->calls_on && !r->bare_off && (own || recovers(r)) && (r->at == AT_AFTER ? r->last_bare : r->text_empty);
}

static Step text_step(Reply *r, const Unit *u)
{
    Step step;
    if (opens_call(r, u, &step)) return step;
    switch (u->symbol) {
    case S_STOP:      return stop_string(r, u);
    case S_THINK:     return begin_reason(r, u);
    case S_THINK_END: return stray_close(r, u);
    case S_TURN:
        flush_gap(r, REPLY_TEXT);
        stop_now(r, REPLY_STOP_TURN);
        return AGAIN;
    case S_CALL_END:
        r->broken_close = false;
        r->at = AT_AFTER;
        return TAKEN;
    case '{':
        if (!bare_may_begin(r)) break;
        call_open(r, B_OPEN, 0, true);
        return AGAIN;
    default: break;
    }
    text_put(r, u->symbol);
    return TAKEN;
}

static Step after_step(Reply *r, const Unit *u)
{
    Step step;
    if (is_space(u->symbol) || u->symbol == S_CALL_END) return TAKEN;
    if (r->last_bare && (u->symbol == ';' || u->symbol == ',')) return TAKEN;
    if (opens_call(r, u, &step)) return step;
    if (u->symbol == S_STOP || u->symbol == S_THINK || u->symbol == S_THINK_END || u->symbol == S_TURN)
        return text_step(r, u);
    if (u->symbol == '{' && bare_may_begin(r)) {
        call_open(r, B_OPEN, 0, true);
        return AGAIN;
    }
    r->at = AT_TEXT;
    r->text_empty = false;
    return AGAIN;
}

static Step drop_step(Reply *r, const Unit *u)
{
    if (u->symbol != S_CALL && u->symbol != S_CALL_END) return TAKEN;
    r->at = AT_AFTER;
    return u->symbol == S_CALL ? AGAIN : TAKEN;
}

/* ---- reasoning ---- */

/* Line breaks after the opening and before the closing mark are not part of the reasoning. */
static void reason_put(Reply *r, int c)
{
    if (r->think_inline) {
        text_put(r, c);
        return;
    }
    if (c == '\n' && r->reason_start) return;
    r->reason_start = false;
    if (c == '\n') {
        gap_put(r, c);
        return;
    }
    flush_gap(r, REPLY_REASON);
    tell_char(r, REPLY_REASON, c);
}

static void flush_region(Reply *r)
{
    expand(r, r->region.at, r->region.n, reason_put);
    r->region.n = 0;
    r->in_region = r->region_closed = false;
}

static Step close_reason(Reply *r, const Unit *u)
{
    if (!r->think_inline) r->gap.n = 0;
    r->at = AT_TEXT;
    after_close(r, u);
    r->text_empty = r->empty_before;
    return TAKEN;
}

/* Whether a call's first byte may be c; anything else is text about calls. */
static bool call_may_go_on(const Reply *r, int c)
{
    if (r->style.calls == CALLS_GEMMA4) return c == 'c' || c == '{';
    return c == '{' || c == '<' ||
           (r->style.calls == CALLS_LAGUNA && ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'));
}

static Step region_step(Reply *r, const Unit *u)
{
    bool byte = u->symbol < S_QUOTE, solid = byte && !is_space(u->symbol);
    if (u->symbol == S_THINK_END || u->symbol == S_STOP || r->region.n > REGION_MAX ||
        (solid && (r->region_closed || (r->region_begins && !call_may_go_on(r, u->symbol))))) {
        flush_region(r);
        return AGAIN;
    }
    if (u->symbol == S_CALL) r->region_closed = false;
    if (u->symbol == S_CALL_END) r->region_closed = true;
    if (!byte) r->region_begins = u->symbol == S_CALL;
    else if (solid) r->region_begins = false;
    bytes_char(&r->region, byte ? u->symbol : PRIVATE + u->symbol - S_QUOTE);
    return TAKEN;
}

static Step reason_step(Reply *r, const Unit *u)
{
    if (r->in_region) return region_step(r, u);
    switch (u->symbol) {
    case S_STOP:      return stop_string(r, u);
    case S_THINK_END: return close_reason(r, u);
    case S_CALL:
        r->in_region = true;
        return region_step(r, u);
    case S_THINK:
    case S_CHANNEL:
        show_mark(r, u);
        return TAKEN;
    default:
        reason_put(r, u->symbol);
        return TAKEN;
    }
}

/* ---- consuming what waits ---- */

static void count(Reply *r, Place before, int32_t n)
{
    ReplySummary *s = &r->sum;
    if (before == AT_REASON || r->at == AT_REASON) s->reason_tokens += n;
    else if (before == AT_TEXT && r->at == AT_TEXT) s->text_tokens += n;
    else s->call_tokens += n;
    if (r->at == AT_CALL && !r->call.begun) r->call.tokens += n;
}

static void take(Reply *r, Place before, const Unit *u)
{
    if (r->at == AT_CALL && !r->call.begun)
        for (size_t i = 0; i < u->n; i++) bytes_char(&r->call.raw, r->in[r->head + i].c);
    r->head += u->n;
    count(r, before, r->now - r->done);
    r->done = r->now;
}

static void pump(Reply *r, bool final)
{
    Unit u;
    while (!r->stopped && !r->failed && in_next(r, final, &u)) {
        Place before = r->at;
        Step step;
        r->from = r->done;
        r->now = r->in[r->head + u.n - 1].done;
        switch (r->at) {
        case AT_REASON: step = reason_step(r, &u); break;
        case AT_TEXT:   step = text_step(r, &u); break;
        case AT_CALL:   step = call_step(r, &u); break;
        case AT_AFTER:  step = after_step(r, &u); break;
        default:        step = drop_step(r, &u); break;
        }
        if (step == TAKEN) take(r, before, &u);
        if (r->one_call && r->call.ended && r->at != AT_CALL && !r->stopped) stop_now(r, REPLY_STOP_CALL);
    }
}

/* ---- tokens ---- */

static bool sound(Reply *r)
{
    const ReplyCall *c = &r->call;
    const Bytes *all[] = { &r->clean, &r->gap, &r->region, &r->text, &c->raw, &c->name, &c->key, &c->value, &c->out,
                           &c->args, &c->doubt, &c->flow.held };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) r->failed |= all[i]->failed;
    return !r->failed;
}

static bool in_put(Reply *r, const char *s, size_t n)
{
    if (!in_reserve(r, n)) return false;
    int32_t before = r->n_in > r->head ? r->in[r->n_in - 1].done : r->done;
    for (size_t i = 0; i < n; i++) r->in[r->n_in++] = (Held) { (uint8_t) s[i], i + 1 == n ? r->whole : before };
    return true;
}

/* Adds the token's bytes, as far as they form whole characters. */
static bool put_bytes(Reply *r, const char *bytes, size_t n)
{
    char end[16];
    bool waited = r->utf8.n > 0;
    size_t k;
    if (!bytes) {                                  /* the end: what waits never becomes a character */
        k = utf8_stream_end(&r->utf8, end);
        r->whole = r->n_tokens;
        return in_put(r, end, k);
    }
    size_t room = 3 * (n + 4);
    r->clean.n = 0;
    if (!bytes_room(&r->clean, room)) return false;
    k = utf8_stream(&r->utf8, r->clean.at, bytes, n);
    if (r->utf8.n == 0) r->whole = r->n_tokens;
    else if (k > 0 || !waited) r->whole = r->n_tokens - 1;
    return in_put(r, r->clean.at, k);
}

static int mark_of(const Reply *r, int32_t id)
{
    for (int k = 0; k < N_TOKEN_MARKS; k++)
        if (r->mark_id[k] >= 0 && r->mark_id[k] == id) return k;
    return -1;
}

bool reply_token(Reply *r, int32_t id, const char *bytes, size_t n)
{
    if (r->failed || r->stopped || r->ended) return !r->failed;
    forget_taken(r);
    int mark = mark_of(r, id);
    if (mark >= 0) {
        char byte = (char) (PRIVATE + mark);
        if (!put_bytes(r, NULL, 0)) return false;
        r->whole = ++r->n_tokens;
        if (!in_put(r, &byte, 1)) return false;
    } else {
        r->n_tokens++;
        if (!put_bytes(r, bytes ? bytes : "", n)) {
            r->failed = true;
            return false;
        }
    }
    /* A token without bytes of its own ends together with what came before it. */
    if (r->n_in > r->head) r->in[r->n_in - 1].done = r->whole;
    else {
        count(r, r->at, r->whole - r->done);
        r->done = r->whole;
    }
    pump(r, false);
    return sound(r);
}

/* Consumes everything that waits. A call that breaks leaves text, which may hold another call. */
static void pump_rest(Reply *r, ReplyCause cause)
{
    pump(r, true);
    while (r->at == AT_CALL && !r->stopped && !r->failed) {
        r->from = r->now = r->done;
        call_end(r, cause);
        pump(r, true);
    }
}

/* Parses a complete call at the end of reasoning that was never closed, with a separate decoder. Returns false if there
 * is none. */
static bool promote_region(Reply *r)
{
    Reply sub = { .style = r->style, .errors = r->errors, .calls_on = true, .tool = r->tool, .n_tools = r->n_tools,
                  .line_start = true, .text_empty = true, .at = AT_TEXT, .last = -1, .think_max = -1, .sum.stop = -1,
                  .one_call = r->one_call };
    ReplyEvent e;
    memcpy(sub.mark, r->mark, sizeof sub.mark);
    bool good = in_put(&sub, r->region.at, r->region.n);
    if (good) pump_rest(&sub, REPLY_ENDED);
    good = good && sound(&sub) && sub.sum.calls > 0 && sub.sum.failures == 0;
    for (size_t i = 0; i < sub.n_queue; i++)
        good &= sub.queue[i].kind != REPLY_TEXT && sub.queue[i].kind != REPLY_REASON;
    if (good) flush_gap(r, r->think_inline ? REPLY_TEXT : REPLY_REASON);
    while (good && reply_next(&sub, &e)) {
        r->sum.calls += e.kind == REPLY_CALL_BEGIN;
        tell(r, e.kind, e.bytes, e.n);
    }
    if (good) {
        r->sum.unknown += sub.sum.unknown;
        r->sum.repeated += sub.sum.repeated;
        r->region.n = 0;
        r->in_region = false;
        r->at = AT_AFTER;
    }
    r->failed |= sub.failed;
    call_free(&sub.call);
    free(sub.in);
    free(sub.queue);
    bytes_free(&sub.text);
    bytes_free(&sub.gap);
    return good;
}

bool reply_end(Reply *r, ReplyCause cause)
{
    if (r->failed || r->stopped || r->ended) return !r->failed;
    forget_taken(r);
    if (!put_bytes(r, NULL, 0)) r->failed = true;
    if (r->n_in > r->head) r->in[r->n_in - 1].done = r->whole;
    r->cut = cause == REPLY_CUT;
    if (r->cut && r->at == AT_CALL) call_forget_closing(r);
    pump_rest(r, cause);
    if (!r->stopped) {
        r->from = r->done;
        r->now = r->n_tokens;
        if (r->in_region && !(cause == REPLY_ENDED && promote_region(r))) flush_region(r);
        r->sum.reason_unclosed = r->at == AT_REASON;
        if (r->at == AT_REASON || r->at == AT_TEXT)
            flush_gap(r, r->at == AT_REASON && !r->think_inline ? REPLY_REASON : REPLY_TEXT);
        count(r, r->at, r->n_tokens - r->done);
        r->done = r->n_tokens;
    }
    r->ended = true;
    return sound(r);
}

/* ---- state of the answer ---- */

ReplyStop reply_stop(const Reply *r) { return r->stopped; }
int32_t reply_kept(const Reply *r) { return r->stopped ? r->done : r->n_tokens; }
ReplyMode reply_mode(const Reply *r)
{
    return r->at == AT_REASON ? REPLY_IN_REASON : r->at == AT_CALL || r->at == AT_DROP ? REPLY_IN_CALL : REPLY_IN_TEXT;
}

void reply_summary(const Reply *r, ReplySummary *out)
{
    int32_t waits = r->stopped ? 0 : r->n_tokens - r->done;
    *out = r->sum;
    out->tokens = reply_kept(r);
    *(r->at == AT_REASON ? &out->reason_tokens : r->at == AT_TEXT ? &out->text_tokens : &out->call_tokens) += waits;
}

const char *reply_force(const Reply *r, bool now, size_t *n)
{
    *n = 0;
    if (r->at != AT_REASON || r->stopped || r->ended || r->utf8.n > 0 || r->head < r->n_in) return NULL;
    if (!now && (r->think_max < 0 || r->sum.reason_tokens < r->think_max)) return NULL;
    *n = r->n_force;
    return r->force;
}
