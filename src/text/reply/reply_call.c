/* Calls, as each family writes them. Until the name is known and what follows it fits, a call may still turn out to be
 * text: what was read is kept, and nothing is emitted. After that its arguments are emitted as they come, and a
 * malformed rest is closed. */
#include <stdlib.h>
#include <string.h>

#include "text/reply/reply_impl.h"

enum { NAME_MAX_BYTES = 256, KEY_MAX_BYTES = 1024, DOUBT_MAX = 1 << 16 };

/* ---- one call ---- */

static void call_reset(ReplyCall *c)
{
    Bytes *all[] = { &c->raw, &c->name, &c->key, &c->value, &c->out, &c->args, &c->doubt };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) all[i]->n = 0;
    json_decref(c->given);
    *c = (ReplyCall) { .raw = c->raw, .name = c->name, .key = c->key, .value = c->value, .out = c->out, .args = c->args,
                       .doubt = c->doubt, .flow.held = c->flow.held };
}

void call_free(ReplyCall *c)
{
    Bytes *all[] = { &c->raw, &c->name, &c->key, &c->value, &c->out, &c->args, &c->doubt };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) bytes_free(all[i]);
    json_decref(c->given);
    flow_free(&c->flow);
}

void call_open(Reply *r, CallState state, int closer, bool declared)
{
    ReplyCall *c = &r->call;
    call_reset(c);
    c->state = state;
    c->closer = closer;
    c->declared = declared;
    c->from = r->done;
    r->at = AT_CALL;
    r->broken_close = false;
}

bool call_begin(Reply *r)
{
    ReplyCall *c = &r->call;
    c->tool = tool_find(r, c->name.at, c->name.n);
    if (c->name.n == 0 || (c->declared && !c->tool)) return false;
    r->sum.calls++;
    r->sum.unknown += !c->tool;
    r->gap.n = 0;
    int32_t from = r->from;
    r->from = c->from;
    tell(r, REPLY_CALL_BEGIN, c->name.at, c->name.n);
    r->from = from;
    c->begun = true;
    c->raw.n = 0;
    tell(r, REPLY_CALL_ARGS, c->args.at, c->args.n);
    c->args.n = 0;
    return true;
}

void call_args(Reply *r, const char *s, size_t n)
{
    r->call.told |= n > 0;
    if (r->call.begun) tell(r, REPLY_CALL_ARGS, s, n);
    else bytes_put(&r->call.args, s, n);
}

void call_drain(Reply *r)
{
    call_args(r, r->call.out.at, r->call.out.n);
    r->call.out.n = 0;
}

void call_leave(Reply *r)
{
    ReplyCall *c = &r->call;
    r->last_bare = !c->closer;
    r->text_empty = false;
    r->at = AT_AFTER;
}

Step call_ended(Reply *r, CallState then, Step result)
{
    ReplyCall *c = &r->call;
    tell(r, REPLY_CALL_END, "", 0);
    c->ended = true;
    if (c->closer || then == X_CLOSE) c->state = then;
    else call_leave(r);
    return result;
}

/* ---- arguments written member by member ---- */

static void begin_member(Reply *r)
{
    ReplyCall *c = &r->call;
    c->out.n = 0;
    bytes_text(&c->out, c->members ? ", \"" : "{\"");
    bytes_escaped(&c->out, c->key.at, c->key.n);
    bytes_text(&c->out, "\": ");
    call_drain(r);
    c->members = true;
    c->value.n = 0;
    c->loose = false;
    if (!c->given) c->given = json_object();
    bytes_char(&c->key, 0);
    const char *name = c->given && !c->key.failed ? c->key.at : NULL;
    r->failed |= !name;
    if (name && json_object_get(c->given, name)) r->sum.repeated++;
    if (name && json_object_set_new(c->given, name, json_true()) != 0) r->failed = true;
    const json_t *own = name && c->tool ? value_parameter(c->tool->schema, name) : NULL;
    c->types = own ? value_types(c->tool->schema, own) : 0;
    c->as_text = false;
}

static void value_put(Reply *r, int symbol)
{
    ReplyCall *c = &r->call;
    if (c->skip_newline) {
        c->skip_newline = false;
        if (symbol == '\n') return;
    }
    bytes_char(&c->value, symbol);
    if (!c->as_text && value_is_text(c->types, c->value.n)) {
        c->as_text = true;
        call_args(r, "\"", 1);
    }
    if (!c->as_text) return;
    bytes_escaped(&c->out, c->value.at, c->value.n);
    c->value.n = 0;
    call_drain(r);
}

/* Makes the doubtful bytes part of the value. */
static void doubt_over(Reply *r)
{
    ReplyCall *k = &r->call;
    for (size_t i = 0; i < k->doubt.n; i++) {
        uint8_t c = (uint8_t) k->doubt.at[i];
        const char *text = c >= PRIVATE ? r->mark[c - PRIVATE] : NULL;
        if (!text) value_put(r, c);
        else
            for (; *text; text++) value_put(r, (uint8_t) *text);
    }
    k->doubt.n = 0;
    k->doubting = false;
}

static void end_member(Reply *r)
{
    ReplyCall *c = &r->call;
    if (c->as_text) call_args(r, "\"", 1);
    else {
        value_write(&c->out, c->types, c->value.at, c->value.n);
        call_drain(r);
    }
    c->value.n = 0;
}

static Step end_members(Reply *r, CallState then, Step result)
{
    ReplyCall *c = &r->call;
    if (!c->begun && !call_begin(r)) return call_broken(r);
    call_args(r, c->members ? "}" : "{}", c->members ? 1 : 2);
    return call_ended(r, then, result);
}

/* ---- errors ---- */

static bool in_value(const ReplyCall *c) { return c->state == X_VALUE || c->state == L_VALUE; }
static bool in_flow(const ReplyCall *c)
{
    return c->state == X_JSON || c->state == X_ARGS_CALL || c->state == G_ARGS || c->state == P_ARGS ||
           c->state == B_ARGS_FLOW;
}

/* Completes the arguments so far to a JSON object, unless the answer ended within them: half a command must not look
 * complete. What was read of a tag comes out as text. */
static void close_arguments(Reply *r)
{
    ReplyCall *c = &r->call;
    bool in_key = c->state == X_KEY || c->state == L_KEY || c->state == L_MID, xml = c->state == X_KEY,
         half = r->cut && !(c->has_args && !in_flow(c));
    if (half) {
        call_drain(r);
        if (!c->told) call_args(r, "{", 1);
    } else if (in_flow(c)) {
        flow_close(&c->flow);
        call_drain(r);
    } else if (!c->has_args) {
        if (in_value(c)) {
            doubt_over(r);
            end_member(r);
        }
        call_args(r, c->members ? "}" : "{}", c->members ? 1 : 2);
    }
    tell(r, REPLY_CALL_END, "", 0);
    c->ended = true;
    if (half) {                                    /* what waits is part of the call, not text */
        r->sum.call_cut = true;
        r->head = r->n_in;
        r->at = AT_AFTER;
        return;
    }
    if (!in_key || r->errors == CALL_ERRORS_DROP) return;
    for (const char *s = r->mark[(xml ? S_PARAM : S_KEY) - S_QUOTE]; *s; s++) text_put(r, (uint8_t) *s);
    text_bytes(r, &c->key);
    for (const char *s = c->state == L_MID ? r->mark[S_KEY_END - S_QUOTE] : ""; *s; s++) text_put(r, (uint8_t) *s);
}

/* The symbol that does not fit is processed again as text. */
Step call_broken(Reply *r)
{
    ReplyCall *c = &r->call;
    int32_t from = r->from, now = r->now;
    bool drop = r->errors == CALL_ERRORS_DROP && c->closer;
    r->sum.failures += c->begun || c->closer || !c->declared;
    r->from = c->begun ? r->done : c->from;
    r->now = r->done;
    r->at = AT_TEXT;
    if (c->begun) {
        r->line_start = true;
        r->text_empty = false;
        if (!c->ended) close_arguments(r);
        r->broken_close = c->closer != 0;
    } else if (!drop) {
        r->sum.call_tokens -= c->tokens;
        r->sum.text_tokens += c->tokens;
        text_bytes(r, &c->raw);
    }
    if (drop) r->at = AT_DROP;
    c->raw.n = 0;
    r->from = from;
    r->now = now;
    return AGAIN;
}

/* Whether the call is complete except for closing marks. */
static bool complete(const Reply *r)
{
    const ReplyCall *c = &r->call;
    if (c->state == L_NAME) return tool_find(r, c->name.at, c->name.n) != NULL;
    return c->state == X_BODY || c->state == X_ARGS_CALL_END || c->state == X_JSON_END || c->state == L_BODY ||
           json_body_complete(r);
}

static Step finish_complete(Reply *r)
{
    ReplyCall *c = &r->call;
    if (c->state >= B_OPEN) return json_body_finish(r) ? AGAIN : call_broken(r);
    if (c->state == X_JSON_END || c->state == X_ARGS_CALL_END) return call_ended(r, X_CLOSE, AGAIN);
    return end_members(r, X_CLOSE, AGAIN);
}

/* A mark that closes the call, or opens the next one, where the format does not allow it. */
static Step cut_short(Reply *r)
{
    return recovers(r) && complete(r) ? finish_complete(r) : call_broken(r);
}

/* The arguments are complete, so that a limit cut off nothing but closing marks. */
static bool whole(const Reply *r) { return recovers(r) && complete(r) && r->call.has_args && !in_flow(&r->call); }

void call_forget_closing(Reply *r)
{
    static const int closing[] = { S_CALL_END, S_FUNCTION_END, S_CODE_END };
    size_t n = r->n_in - r->head;
    if (n == 0 || (!r->call.ended && !whole(r))) return;
    for (size_t i = 0; i < sizeof closing / sizeof *closing; i++) {
        const char *text = call_marks(r) & BIT(closing[i]) ? r->mark[closing[i] - S_QUOTE] : NULL;
        size_t same = 0;
        while (text && same < n && text[same] && r->in[r->head + same].c == (uint8_t) text[same]) same++;
        if (same < n) continue;
        r->head = r->n_in;
        if (r->call.state == B_TRAIL) r->call.raw.n = 0;   /* stands before the mark, and would have been left out */
        return;
    }
}

void call_end(Reply *r, ReplyCause cause)
{
    ReplyCall *c = &r->call;
    if (c->doubting && recovers(r)) {              /* the value was never closed: tags in it were real tags */
        Bytes again = c->doubt;
        c->doubting = false;
        c->loose = true;
        in_give_back(r, &again);
        c->doubt.n = 0;
        return;
    }
    if (c->ended) {
        if (c->state == B_TRAIL) text_bytes(r, &c->raw);
        call_leave(r);
        return;
    }
    if (c->state == B_WHOLE && cause == REPLY_ENDED && json_body_whole(r)) return;
    if (cause == REPLY_ENDED ? recovers(r) && complete(r) : whole(r)) {
        finish_complete(r);
        if (r->at == AT_CALL && c->ended) call_leave(r);
        return;
    }
    r->cut |= c->begun;                            /* by its own end, if not by a limit */
    call_broken(r);
    if (r->at == AT_DROP) r->at = AT_AFTER;
}

/* ---- <function=NAME> and similar ---- */

static void trim_name(Bytes *b)
{
    static const char OUTER[] = " \t\"'";
    size_t from = 0;
    while (b->n > 0 && b->at[b->n - 1] && strchr(OUTER, b->at[b->n - 1])) b->n--;
    while (from < b->n && b->at[from] && strchr(OUTER, b->at[from])) from++;
    if (from > 0) memmove(b->at, b->at + from, b->n - from);
    b->n -= from;
}

static Step wrap_step(Reply *r, int c)
{
    ReplyCall *k = &r->call;
    bool laguna = r->style.calls == CALLS_LAGUNA;
    if (is_space(c)) return TAKEN;
    if (c == S_FUNCTION && (recovers(r) || r->style.calls == CALLS_QWEN35)) {
        k->state = X_NAME;
        return TAKEN;
    }
    if (c == '{' && (recovers(r) || r->style.calls == CALLS_QWEN3)) k->state = B_OPEN;
    else if (laguna && c < S_QUOTE) k->state = L_NAME;
    else return call_broken(r);
    return AGAIN;
}

static Step start_flow(Reply *r, CallState state, unsigned allow, Step result)
{
    ReplyCall *k = &r->call;
    flow_start(&k->flow, (recovers(r) ? FLOW_LOOSE : 0) | allow, &k->out);
    k->state = state;
    return result;
}

static Step name_step(Reply *r, int c)
{
    ReplyCall *k = &r->call;
    if (c == '>' || (c == '(' && recovers(r))) {
        trim_name(&k->name);
        if (!call_begin(r)) return call_broken(r);
        k->state = X_BODY;
        return c == '>' ? TAKEN : start_flow(r, X_ARGS_CALL, FLOW_LOOSE | FLOW_CALL, TAKEN);
    }
    if (c >= S_QUOTE || c == '\n' || c == '<' || k->name.n == NAME_MAX_BYTES) return call_broken(r);
    bytes_char(&k->name, c);
    return TAKEN;
}

/* Passes c to the flow of the arguments object. */
static Step flow_step(Reply *r, int c, CallState then)
{
    ReplyCall *k = &r->call;
    FlowStep step = flow_put(&k->flow, c);
    if (step == FLOW_BAD || step == FLOW_PAST) return call_broken(r);
    call_drain(r);
    if (step == FLOW_DONE) {
        k->has_args = true;
        k->state = then;
    }
    return TAKEN;
}

static Step body_step(Reply *r, int c)
{
    ReplyCall *k = &r->call;
    if (is_space(c) || (c == S_PARAM_END && k->members && recovers(r))) return TAKEN;
    if (c == S_PARAM) {
        k->key.n = 0;
        k->state = X_KEY;
        return TAKEN;
    }
    if (c == S_FUNCTION_END) return end_members(r, X_CLOSE, TAKEN);
    if (c == '{' && !k->members && (recovers(r) || r->style.calls == CALLS_LLAMA3))
        return start_flow(r, X_JSON, 0, AGAIN);
    return call_broken(r);
}

/* <NAME> at the beginning of an answer is a call only if a parameter or its closing tag follows. */
static Step tag_step(Reply *r, int c)
{
    if (is_space(c)) return TAKEN;
    if ((c != S_PARAM && c != S_FUNCTION_END) || !call_begin(r)) return call_broken(r);
    r->call.state = X_BODY;
    return AGAIN;
}

static Step key_step(Reply *r, int c, int end)
{
    ReplyCall *k = &r->call;
    bool xml = k->state == X_KEY;
    if (c == end) {
        trim_name(&k->key);
        if (!xml) {
            k->state = L_MID;
            return TAKEN;
        }
        begin_member(r);
        k->skip_newline = true;
        k->state = X_VALUE;
        return TAKEN;
    }
    if (c >= S_QUOTE || c == '\n' || (xml && c == '<') || k->key.n == KEY_MAX_BYTES) return call_broken(r);
    bytes_char(&k->key, c);
    return TAKEN;
}

static void doubt_put(Reply *r, const Unit *u)
{
    for (size_t i = 0; i < u->n; i++) bytes_char(&r->call.doubt, r->in[r->head + i].c);
}

/* A parameter tag inside a value makes the value doubtful: if the value is closed after all, the tag was part of its
 * text; if the call ends first, everything from the tag on is read again as tags. */
static Step xml_value_step(Reply *r, const Unit *u)
{
    ReplyCall *k = &r->call;
    int c = u->symbol;
    if (c == S_PARAM && !k->loose && !k->doubting) k->doubting = true;
    if (k->doubting && (c < S_QUOTE || c == S_PARAM)) {
        doubt_put(r, u);
        if (k->doubt.n > DOUBT_MAX) doubt_over(r);
        return TAKEN;
    }
    if (c < S_QUOTE) {
        value_put(r, c);
        return TAKEN;
    }
    if (k->doubting && c != S_PARAM_END) {
        k->doubting = false;
        k->loose = true;
        in_give_back(r, &k->doubt);
        k->doubt.n = 0;
        return AGAIN;
    }
    if (k->doubting) doubt_over(r);
    bool loose = k->loose;
    end_member(r);
    k->state = X_BODY;
    if (c == S_PARAM_END) return TAKEN;
    k->loose = loose;
    return AGAIN;
}

static Step json_end_step(Reply *r, int c)
{
    if (is_space(c) || (c == '>' && r->call.state == X_ARGS_CALL_END)) return TAKEN;
    return c == S_FUNCTION_END ? call_ended(r, X_CLOSE, TAKEN) : call_broken(r);
}

static Step close_step(Reply *r, int c)
{
    if (is_space(c) || (c == S_FUNCTION_END && recovers(r))) return TAKEN;
    if (c == S_FUNCTION && r->call.closer) {       /* a second call in one wrapper */
        call_open(r, X_WRAP, S_CALL_END, false);
        return AGAIN;
    }
    call_leave(r);
    return c == S_CALL_END ? TAKEN : AGAIN;
}

/* ---- Laguna ---- */

static bool is_name_char(int c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-' ||
           c == '.' || c == ':' || c == '/';
}

static Step laguna_name_step(Reply *r, int c)
{
    ReplyCall *k = &r->call;
    if (is_name_char(c) && k->name.n < NAME_MAX_BYTES) {
        bytes_char(&k->name, c);
        return TAKEN;
    }
    if ((c != '\n' && c != ' ' && c != '\r' && c != '\t' && c != S_KEY) || !call_begin(r)) return call_broken(r);
    k->state = L_BODY;
    return AGAIN;
}

static Step laguna_body_step(Reply *r, int c)
{
    ReplyCall *k = &r->call;
    if (is_space(c) || (c == S_VALUE_END && k->members && recovers(r))) return TAKEN;
    if (c != S_KEY) return call_broken(r);
    k->key.n = 0;
    k->state = L_KEY;
    return TAKEN;
}

static Step laguna_mid_step(Reply *r, int c)
{
    if (is_space(c)) return TAKEN;
    if (c != S_VALUE) return call_broken(r);
    begin_member(r);
    r->call.state = L_VALUE;
    return TAKEN;
}

static Step laguna_value_step(Reply *r, int c)
{
    if (c < S_QUOTE) {
        value_put(r, c);
        return TAKEN;
    }
    end_member(r);
    r->call.state = L_BODY;
    return c == S_VALUE_END ? TAKEN : AGAIN;
}

/* ---- Gemma, and Python-style calls ---- */

static Step gemma_wrap_step(Reply *r, int c)
{
    if (is_space(c)) return TAKEN;
    if (c == S_NAMED) {
        r->call.state = G_NAME;
        return TAKEN;
    }
    if (c != '{' || !recovers(r)) return call_broken(r);
    r->call.state = B_OPEN;
    return AGAIN;
}

static Step gemma_name_step(Reply *r, int c)
{
    ReplyCall *k = &r->call;
    if (c == '{' && k->name.n > 0) {
        for (size_t i = k->name.n; i-- > 0;)       /* keep the part after the last colon */
            if (k->name.at[i] == ':') {
                memmove(k->name.at, k->name.at + i + 1, k->name.n - i - 1);
                k->name.n -= i + 1;
                break;
            }
        return call_begin(r) ? start_flow(r, G_ARGS, FLOW_LOOSE | FLOW_BARE, AGAIN) : call_broken(r);
    }
    if (!is_name_char(c) || k->name.n == NAME_MAX_BYTES) return call_broken(r);
    bytes_char(&k->name, c);
    return TAKEN;
}

static Step gemma_args_step(Reply *r, int c)
{
    if (c >= S_QUOTE && c != S_QUOTE) return call_broken(r);
    Step s = flow_step(r, c, G_CLOSE);
    return r->at == AT_CALL && r->call.state == G_CLOSE ? call_ended(r, G_CLOSE, s) : s;
}

static Step python_wrap_step(Reply *r, int c)
{
    if (is_space(c)) return TAKEN;
    r->call.state = c == '{' ? B_OPEN : P_NAME;
    return AGAIN;
}

static Step python_name_step(Reply *r, int c)
{
    ReplyCall *k = &r->call;
    static const char CALLED[] = ".call";
    if (c == '(') {
        size_t n = sizeof CALLED - 1;
        /* NAME.call(: built-in tools, never declared; any other name could be code */
        if (k->name.n > n && memcmp(k->name.at + k->name.n - n, CALLED, n) == 0) {
            k->name.n -= n;
            k->declared = false;
        }
        return call_begin(r) ? start_flow(r, P_ARGS, FLOW_LOOSE | FLOW_CALL, TAKEN) : call_broken(r);
    }
    if (!is_name_char(c) || k->name.n == NAME_MAX_BYTES) return call_broken(r);
    bytes_char(&k->name, c);
    return TAKEN;
}

static Step python_args_step(Reply *r, int c)
{
    Step s = flow_step(r, c, G_CLOSE);
    return r->at == AT_CALL && r->call.state == G_CLOSE ? call_ended(r, G_CLOSE, s) : s;
}

/* ---- dispatch ---- */

bool call_in_value(const Reply *r)
{
    const ReplyCall *c = &r->call;
    return in_value(c) || ((in_flow(c) || (c->state > B_OPEN && c->state < B_TRAIL)) && flow_in_string(&c->flow));
}

uint32_t call_marks(const Reply *r)
{
    const ReplyCall *c = &r->call;
    uint32_t outer = BIT(S_CALL) | BIT(S_CALL_END), fallback = recovers(r) ? BIT(S_CALL_END) : 0;
    if (!c->closer) outer = BIT(S_CALL);
    if (c->closer == S_CODE_END) outer |= BIT(S_CODE_END);
    switch (c->state) {
    case X_WRAP:     return outer | BIT(S_FUNCTION);
    case X_NAME:
    case X_KEY:
    case P_WRAP:
    case P_NAME:     return 0;
    case X_TAG:      return BIT(S_PARAM) | BIT(S_FUNCTION_END);
    case X_BODY:     return outer | BIT(S_PARAM) | BIT(S_PARAM_END) | BIT(S_FUNCTION_END) | BIT(S_CALL_END);
    case X_VALUE:
        return BIT(S_PARAM_END) |
               (recovers(r) ? BIT(S_FUNCTION_END) | BIT(S_CALL_END) | (c->doubting ? 0 : BIT(S_PARAM)) : 0);
    case X_JSON:     return flow_in_string(&c->flow) ? fallback : outer;
    case X_JSON_END:
    case X_ARGS_CALL_END: return outer | BIT(S_FUNCTION_END);
    case X_CLOSE:    return BIT(S_CALL) | BIT(S_CALL_END) | BIT(S_FUNCTION) | BIT(S_FUNCTION_END);
    case L_NAME:
    case L_BODY:     return outer | BIT(S_KEY) | BIT(S_VALUE_END);
    case L_KEY:      return BIT(S_KEY_END);
    case L_MID:      return outer | BIT(S_VALUE);
    case L_VALUE:    return BIT(S_VALUE_END) | fallback;
    case G_WRAP:     return outer | BIT(S_NAMED);
    case G_ARGS:     return BIT(S_QUOTE) | (flow_in_string(&c->flow) ? fallback : outer);
    case G_CLOSE:    return BIT(S_CALL) | BIT(S_CALL_END) | BIT(S_TURN);
    default:         return flow_in_string(&c->flow) ? fallback : outer;
    }
}

Step call_step(Reply *r, const Unit *u)
{
    ReplyCall *c = &r->call;
    int s = u->symbol;
    if (s == S_STOP) return call_broken(r);
    if ((s == S_CALL || s == S_CALL_END || s == S_CODE_END) && !c->ended && !in_value(c))
        return (c->state == L_NAME || c->state == L_BODY) && s == S_CALL_END
               ? end_members(r, X_CLOSE, AGAIN) : cut_short(r);
    switch (c->state) {
    case X_WRAP:          return wrap_step(r, s);
    case X_NAME:          return name_step(r, s);
    case X_ARGS_CALL:     return flow_step(r, s, X_ARGS_CALL_END);
    case X_JSON:          return flow_step(r, s, X_JSON_END);
    case X_ARGS_CALL_END:
    case X_JSON_END:      return json_end_step(r, s);
    case X_TAG:           return tag_step(r, s);
    case X_BODY:          return body_step(r, s);
    case X_KEY:           return key_step(r, s, '>');
    case X_VALUE:         return xml_value_step(r, u);
    case X_CLOSE:
    case G_CLOSE:         return close_step(r, s);
    case L_NAME:          return laguna_name_step(r, s);
    case L_BODY:          return laguna_body_step(r, s);
    case L_KEY:           return key_step(r, s, S_KEY_END);
    case L_MID:           return laguna_mid_step(r, s);
    case L_VALUE:         return laguna_value_step(r, s);
    case G_WRAP:          return gemma_wrap_step(r, s);
    case G_NAME:          return gemma_name_step(r, s);
    case G_ARGS:          return gemma_args_step(r, s);
    case P_WRAP:          return python_wrap_step(r, s);
    case P_NAME:          return python_name_step(r, s);
    case P_ARGS:          return python_args_step(r, s);
    default:              return json_body_step(r, s);
    }
}
