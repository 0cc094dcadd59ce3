/* Opens and ends an answer's decoder: checks and copies options, looks up marks, looks at the prompt's end. */
#include <stdlib.h>
#include <string.h>

#include "text/reply/reply_impl.h"

enum { NAME_MAX_BYTES = 256 };

const Tool *tool_find(const Reply *r, const char *s, size_t n)
{
    for (size_t i = 0; i < r->n_tools; i++)
        if (strlen(r->tool[i].name) == n && memcmp(r->tool[i].name, s, n) == 0) return &r->tool[i];
    return NULL;
}

Status tool_read(Tool *out, const json_t *tool, size_t i, Error *err)
{
    const json_t *f = json_object_get(tool, "function"), *name, *schema;
    const char *in = f ? "function." : "";
    if (!f) f = tool;
    name = json_object_get(f, "name");
    schema = json_object_get(f, "parameters");
    if (!schema) schema = json_object_get(f, "input_schema");
    if (!json_is_object(tool)) return fail(err, ST_ARG, "tools[%zu] is not an object", i);
    if (!json_is_string(name)) return fail(err, ST_ARG, "tools[%zu].%sname is missing or not a string", i, in);
    size_t n = json_string_length(name);
    if (n == 0 || n > NAME_MAX_BYTES || strlen(json_string_value(name)) != n)
        return fail(err, ST_ARG, "tools[%zu].%sname has %zu bytes, expected 1 to %d", i, in, n, NAME_MAX_BYTES);
    if (schema && !json_is_object(schema) && !json_is_null(schema) && !json_is_boolean(schema))
        return fail(err, ST_ARG, "tools[%zu].%s%s is not an object", i, in,
                    json_object_get(f, "parameters") ? "parameters" : "input_schema");
    *out = (Tool) { json_string_value(name), json_is_object(schema) ? schema : NULL };
    return ST_OK;
}

static Status read_tools(Reply *r, const ReplyOptions *o, Error *err)
{
    size_t n = json_array_size(o->tools);
    if (o->tools && !json_is_array(o->tools)) return fail(err, ST_ARG, "tools is not a list");
    if (n == 0 || r->style.calls == CALLS_NONE) return ST_OK;
    r->tools_kept = json_incref((json_t *) o->tools);
    r->tool = calloc(n, sizeof *r->tool);
    if (!r->tool) return fail(err, ST_MEMORY, "out of memory");
    for (; r->n_tools < n; r->n_tools++)
        TRY(tool_read(&r->tool[r->n_tools], json_array_get(o->tools, r->n_tools), r->n_tools, err));
    r->calls_on = !o->calls_off;
    return ST_OK;
}

static Status read_stops(Reply *r, const ReplyOptions *o, Error *err)
{
    r->stop = calloc(o->n_stop + 1, sizeof *r->stop);
    r->stop_len = calloc(o->n_stop + 1, sizeof *r->stop_len);
    r->stop_index = calloc(o->n_stop + 1, sizeof *r->stop_index);
    if (!r->stop || !r->stop_len || !r->stop_index) return fail(err, ST_MEMORY, "out of memory");
    for (size_t i = 0; i < o->n_stop && i < INT32_MAX; i++) {
        if (!o->stop[i][0]) continue;
        r->stop[r->n_stop] = strdup(o->stop[i]);
        if (!r->stop[r->n_stop]) return fail(err, ST_MEMORY, "out of memory");
        r->stop_len[r->n_stop] = strlen(o->stop[i]);
        r->stop_index[r->n_stop++] = (int32_t) i;
    }
    return ST_OK;
}

/* If no tools were declared, marks of calls have no meaning, but their tokens still stand for their text. */
static void read_marks(Reply *r, const ReplyOptions *o)
{
    style_marks(r->style, r->mark);
    for (int k = 0; k < N_TOKEN_MARKS; k++) {
        r->mark_id[k] = o->token && r->mark[k] ? o->token(o->ud, r->mark[k]) : -1;
    }
}

static bool ends_with(const char *s, size_t n, const char *end)
{
    return n >= strlen(end) && memcmp(s + n - strlen(end), end, strlen(end)) == 0;
}

static void read_prompt(Reply *r, const ReplyOptions *o)
{
    size_t n = o->n_prompt;
    const char *open = r->mark[S_THINK - S_QUOTE];
    if (!open || !o->prompt) return;
    while (n > 0 && is_space(o->prompt[n - 1])) n--;
    if (!ends_with(o->prompt, n, open) &&
        !(r->style.think == THINK_CHANNEL && ends_with(o->prompt, n, "<|channel>thought")))
        return;
    r->at = AT_REASON;
    r->reason_start = true;
}

static Status make_force(Reply *r, const ReplyOptions *o, Error *err)
{
    Bytes b = { 0 };
    if (r->style.think == THINK_NONE) return ST_OK;
    bytes_text(&b, o->think_message ? o->think_message : "");
    bytes_text(&b, r->mark[S_THINK_END - S_QUOTE]);
    bytes_text(&b, r->style.think == THINK_CHANNEL ? "" : r->style.calls == CALLS_LAGUNA ? "\n" : "\n\n");
    r->n_force = b.n;
    bytes_char(&b, 0);
    r->force = b.at;
    return b.failed ? fail(err, ST_MEMORY, "out of memory") : ST_OK;
}

Status reply_open(Reply **out, const ReplyOptions *o, Error *err)
{
    *out = NULL;
    Reply *r = calloc(1, sizeof *r);
    if (!r) return fail(err, ST_MEMORY, "out of memory");
    r->style = o->style;
    r->errors = o->errors;
    r->one_call = o->one_call;
    r->bare_off = o->bare_off;
    r->think_inline = o->think_inline;
    r->stop_in_reasoning = o->stop_in_reasoning;
    r->think_max = o->think_max;
    r->at = AT_TEXT;
    r->line_start = r->text_empty = r->empty_before = true;
    r->last = -1;
    r->sum.stop = -1;
    Status st = read_tools(r, o, err);
    if (st == ST_OK) st = read_stops(r, o, err);
    if (st == ST_OK) {
        r->promote = o->promote && r->calls_on && recovers(r);
        read_marks(r, o);
        read_prompt(r, o);
        st = make_force(r, o, err);
    }
    if (st == ST_OK) *out = r;
    else reply_close(r);
    return st;
}

void reply_close(Reply *r)
{
    if (!r) return;
    for (size_t i = 0; r->stop && i < r->n_stop; i++) free(r->stop[i]);
    free(r->stop);
    free(r->stop_len);
    free(r->stop_index);
    free(r->tool);
    free(r->force);
    free(r->in);
    free(r->queue);
    bytes_free(&r->clean);
    bytes_free(&r->gap);
    bytes_free(&r->region);
    bytes_free(&r->text);
    call_free(&r->call);
    json_decref(r->tools_kept);
    free(r);
}
