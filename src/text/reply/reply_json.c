/* The body of a call that is a JSON object: {"name": NAME, "arguments": OBJECT}, members in any order, also within
 * "function". The arguments are emitted as they come if the name came before them. */
#include <string.h>

#include "base/json.h"
#include "text/reply/reply_impl.h"

enum { TRAIL_MAX = 256 };

static bool is(const Bytes *b, const char *s) { return b->n == strlen(s) && memcmp(b->at, s, b->n) == 0; }

static Step start(Reply *r, CallState state, int c)
{
    ReplyCall *k = &r->call;
    Bytes *out = state == B_ARGS_FLOW ? &k->out : &k->value;
    k->value.n = 0;
    flow_start(&k->flow, recovers(r) ? FLOW_LOOSE : 0, out);
    k->state = state;
    return flow_put(&k->flow, c) == FLOW_BAD ? call_broken(r) : TAKEN;
}

/* Decodes a JSON string to bytes. Returns false if text is not a string. */
static bool decode(const Bytes *text, Bytes *out)
{
    json_t *v = json_loadb(text->at ? text->at : "", text->n, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    bool good = json_is_string(v);
    out->n = 0;
    if (good) bytes_put(out, json_string_value(v), json_string_length(v));
    json_decref(v);
    return good;
}

/* The arguments have begun and the name is known: from here on this is a call. */
static bool may_tell(Reply *r)
{
    return r->call.begun || (r->call.has_name && r->call.has_args ? call_begin(r) : true);
}

static bool name_came(Reply *r)
{
    ReplyCall *k = &r->call;
    if (!decode(&k->value, &k->name) || k->name.n == 0 || memchr(k->name.at, 0, k->name.n)) return false;
    k->has_name = true;
    if (k->declared && !tool_find(r, k->name.at, k->name.n)) return false;
    return may_tell(r);
}

/* Arguments given as a string contain the object as text; null and "" mean none. */
static bool text_came(Reply *r)
{
    ReplyCall *k = &r->call;
    char first = '{';
    bool none = is(&k->value, "null");
    if (!none && !decode(&k->value, &k->key)) return false;
    k->out.n = 0;
    if (none || k->key.n == 0) bytes_text(&k->out, "{}");
    else if (!flow_text(&k->out, k->key.at, k->key.n, recovers(r) ? FLOW_LOOSE : 0, &first) || first != '{')
        return false;
    k->has_args = true;
    if (!may_tell(r)) return false;
    call_drain(r);
    return true;
}

/* The members of an answer that is a bare object must be those of a call, or the arguments of the only tool. */
static bool may_be_skipped(const Reply *r)
{
    const ReplyCall *k = &r->call;
    if (!k->declared || is(&k->key, "type") || is(&k->key, "id") || is(&k->key, "name") || is(&k->key, "function"))
        return true;
    if (r->n_tools != 1 || k->level != 1 || !r->tool[0].schema || k->closer || !recovers(r)) return false;
    char name[256];
    if (k->key.n >= sizeof name) return false;
    memcpy(name, k->key.at, k->key.n);
    name[k->key.n] = 0;
    return value_parameter(r->tool[0].schema, name) != NULL;
}

static Step value_step(Reply *r, int c)
{
    ReplyCall *k = &r->call;
    bool quote = c == '"' || (recovers(r) && c == '\'');
    if (is_space(c)) return TAKEN;
    if (is(&k->key, "function") && k->level == 1 && c == '{' && !k->has_name) {
        k->level = 2;
        k->state = B_KEY;
        return TAKEN;
    }
    if (quote && !k->has_name && (is(&k->key, "name") || (is(&k->key, "function") && k->level == 1)))
        return start(r, B_NAME_FLOW, c);
    if (!k->has_args && (is(&k->key, "arguments") || is(&k->key, "parameters"))) {
        if (c != '{') return start(r, B_TEXT_FLOW, c);
        k->has_args = true;
        if (!may_tell(r)) return call_broken(r);
        return start(r, B_ARGS_FLOW, c);
    }
    return may_be_skipped(r) ? start(r, B_SKIP_FLOW, c) : call_broken(r);
}

static bool value_came(Reply *r)
{
    ReplyCall *k = &r->call;
    switch (k->state) {
    case B_KEY_FLOW:
        k->state = B_COLON;
        return decode(&k->value, &k->key);
    case B_NAME_FLOW: k->state = B_NEXT; return name_came(r);
    case B_TEXT_FLOW: k->state = B_NEXT; return text_came(r);
    default:          k->state = B_NEXT; return true;
    }
}

static Step flow_came(Reply *r, int c)
{
    ReplyCall *k = &r->call;
    bool args = k->state == B_ARGS_FLOW;
    FlowStep step = flow_put(&k->flow, c);
    if (args) call_drain(r);
    if (step == FLOW_BAD) return call_broken(r);
    if (step == FLOW_MORE) return TAKEN;
    if (step == FLOW_PAST && args) return call_broken(r);
    if (!value_came(r)) return call_broken(r);
    return step == FLOW_DONE ? TAKEN : AGAIN;
}

bool json_body_complete(const Reply *r) { return r->call.state == B_NEXT && r->call.has_name && r->call.has_args; }

bool json_body_finish(Reply *r)
{
    ReplyCall *k = &r->call;
    if (!k->begun && !call_begin(r)) return false;
    if (!k->has_args) call_args(r, "{}", 2);
    k->has_args = true;
    call_ended(r, B_TRAIL, TAKEN);
    return true;
}

static Step body_came(Reply *r)
{
    ReplyCall *k = &r->call;
    if (k->level == 2) {
        k->level = 1;
        k->state = B_NEXT;
        return TAKEN;
    }
    if (!k->has_name && !k->has_args && k->declared && !k->closer && r->n_tools == 1 && recovers(r)) {
        k->state = B_WHOLE;
        return TAKEN;
    }
    if (!k->has_name || (!k->has_args && k->declared)) return call_broken(r);
    return json_body_finish(r) ? TAKEN : call_broken(r);
}

/* Whatever stands between a complete object and its closing mark is left out; without a closing mark it is text. */
static Step trail_step(Reply *r, int c)
{
    ReplyCall *k = &r->call;
    if (c == S_CALL_END || c == S_CODE_END) {
        call_leave(r);
        return TAKEN;
    }
    if (is_space(c) && k->raw.n == 0) return TAKEN;
    if (c >= S_QUOTE || k->raw.n == TRAIL_MAX) {
        call_leave(r);
        r->at = c == S_CALL ? AT_AFTER : AT_TEXT;
        text_bytes(r, &k->raw);
        return AGAIN;
    }
    bytes_char(&k->raw, c);
    return TAKEN;
}

bool json_body_whole(Reply *r)
{
    ReplyCall *k = &r->call;
    json_t *v = NULL;
    bool good = json_read(&v, k->raw.at, k->raw.n, "answer", NULL) == ST_OK && json_object_size(v) > 0 &&
                value_satisfies(r->tool[0].schema, v);
    json_decref(v);
    if (!good) return false;
    k->name.n = 0;
    bytes_text(&k->name, r->tool[0].name);
    while (k->raw.n > 0 && is_space(k->raw.at[k->raw.n - 1])) k->raw.n--;
    bytes_put(&k->args, k->raw.at, k->raw.n);
    if (!call_begin(r)) return false;
    call_ended(r, B_TRAIL, TAKEN);
    return true;
}

Step json_body_step(Reply *r, int c)
{
    ReplyCall *k = &r->call;
    switch (k->state) {
    case B_OPEN:
        if (is_space(c)) return TAKEN;
        if (c != '{') return call_broken(r);
        k->level = 1;
        k->state = B_KEY;
        return TAKEN;
    case B_KEY:
        if (is_space(c)) return TAKEN;
        if (c == '}') return body_came(r);
        return c == '"' || (recovers(r) && c == '\'') ? start(r, B_KEY_FLOW, c) : call_broken(r);
    case B_COLON:
        if (is_space(c)) return TAKEN;
        if (c != ':') return call_broken(r);
        k->state = B_VALUE;
        return TAKEN;
    case B_VALUE: return value_step(r, c);
    case B_NEXT:
        if (is_space(c)) return TAKEN;
        if (c == '}') return body_came(r);
        if (c != ',') return call_broken(r);
        k->state = B_KEY;
        return TAKEN;
    case B_TRAIL: return trail_step(r, c);
    case B_WHOLE: return is_space(c) ? TAKEN : call_broken(r);
    default:      return flow_came(r, c);
    }
}
