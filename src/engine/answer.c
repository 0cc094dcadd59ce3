/* answer.c - answers: from a session's blocks to events, and rt_generate, which does all of it. */
#include <stdlib.h>
#include <string.h>

#include "engine/chat.h"
#include "engine/sized.h"

struct rt_reply {
    rt_session *s;
    Reply      *r;
    rt_grammar *grammar;                           /* applies once the reasoning has ended; NULL: it does, or none */
    int32_t     fed;
    rt_finish   finish;
    rt_status   failed;
};

static rt_status constrain(rt_reply *r)
{
    rt_grammar *g = r->grammar;
    r->grammar = NULL;
    rt_status st = rt_constrain(r->s, g);
    if (st == RT_OK) r->s->form_of = r;
    rt_grammar_free(g);
    return st;
}

/* Another reply, or the caller, may have set a constraint since. */
static void release(rt_reply *r)
{
    if (r->s->form_of == r) form_drop(r->s);
}

static Status check_reply(rt_session *s, const rt_reply_options *o, Error *err)
{
    if (o->n_stop < 0) return fail(err, ST_ARG, "n_stop: %d, expected 0 or more", o->n_stop);
    for (int32_t i = 0; i < o->n_stop; i++)
        if (!o->stop || !o->stop[i]) return fail(err, ST_ARG, "stop[%d]: NULL, expected a text", i);
    if (!s->g->tokenizer) return fail(err, ST_UNSUPPORTED, "reply: the model file has no tokenizer");
    if (o->grammar && s->s.canvas)
        return fail(err, (Status) refuse_denoising(s, "grammar"), "%s", rt_session_error(s));
    return ST_OK;
}

static Status open_reply(rt_reply *r, const rt_reply_options *o, Error *err)
{
    TRY(check_reply(r->s, o, err));
    TRY(chat_reply(&r->r, r->s->g, (const ChatText *) o->conversation, o, err));
    r->grammar = grammar_share(o->grammar);
    if (!o->grammar || reply_mode(r->r) != REPLY_IN_TEXT) return ST_OK;
    rt_status st = constrain(r);
    return st == RT_OK ? ST_OK : fail(err, (Status) st, "%s", rt_session_error(r->s));
}

rt_status rt_reply_new(rt_reply **out, rt_session *s, const rt_reply_options *o, rt_error *e)
{
    Error err = { 0 };
    rt_reply_options known;
    rt_reply *r = calloc(1, sizeof *r);
    *out = NULL;
    if (!r) return engine_report(e, fail(&err, ST_MEMORY, "reply: out of memory"), &err);
    r->s = s;
    Status code = sized_read(&known, &sized_reply_options, o, &err);
    if (code == ST_OK) code = open_reply(r, &known, &err);
    if (code == ST_OK) *out = r;
    else rt_reply_free(r);
    return engine_report(e, code, &err);
}

void rt_reply_free(rt_reply *r)
{
    if (!r) return;
    release(r);
    rt_grammar_free(r->grammar);
    reply_close(r->r);
    free(r);
}

/* ---- the end ---- */

static bool has_calls(const rt_reply *r)
{
    ReplySummary y;
    reply_summary(r->r, &y);
    return y.calls > y.call_cut;                   /* whole ones */
}

static rt_status no_memory(rt_reply *r)
{
    return r->failed = session_failed(r->s, ST_MEMORY, "reply: out of memory");
}

/* Whatever waited may still turn out to be a stop string. */
static rt_status finish(rt_reply *r, rt_finish why)
{
    release(r);
    if (reply_stop(r->r) == REPLY_GO && !reply_end(r->r, why == RT_FINISH_STOP ? REPLY_ENDED : REPLY_CUT))
        return no_memory(r);
    switch (reply_stop(r->r)) {
    case REPLY_GO:          break;
    case REPLY_STOP_STRING: why = RT_FINISH_STRING; break;
    case REPLY_STOP_CALL:   why = RT_FINISH_CALLS; break;
    case REPLY_STOP_TURN:   why = RT_FINISH_STOP; break;
    }
    r->finish = why == RT_FINISH_STOP && has_calls(r) ? RT_FINISH_CALLS : why;
    return RT_END;
}

rt_status rt_reply_end(rt_reply *r)
{
    if (r->finish == RT_GOES_ON && !r->failed) finish(r, RT_FINISH_CANCEL);
    return r->failed;
}

rt_finish rt_reply_finish(const rt_reply *r, int32_t *which)
{
    ReplySummary y;
    reply_summary(r->r, &y);
    if (which) *which = y.stop;
    return r->finish;
}

/* ---- blocks ---- */

/* The rest of the block was not to be generated. */
static rt_status cut(rt_reply *r, int32_t kept, rt_finish why)
{
    rt_take(r->s, kept > 0 ? kept : 0);
    return finish(r, why);
}

/* Reasoning has ended with this token: what the model wrote after it did not follow the grammar. */
static rt_status enter(rt_reply *r, int32_t kept)
{
    rt_take(r->s, kept);
    return constrain(r);
}

static rt_status at_end(rt_reply *r, const rt_block *b)
{
    if (b->status == RT_END) return finish(r, rt_constraint_done(r->s) ? RT_FINISH_STOP : RT_FINISH_LENGTH);
    if (b->status == RT_OK) return RT_OK;
    release(r);
    r->failed = b->status;
    return reply_end(r->r, REPLY_CUT) ? b->status : no_memory(r);
}

rt_status rt_reply_read(rt_reply *r, const rt_block *b)
{
    const Tokenizer *t = r->s->g->tokenizer;
    const int32_t before = r->fed;
    if (r->failed) return r->failed;
    if (r->finish != RT_GOES_ON) return RT_END;
    for (int32_t i = 0; i < b->n; i++) {
        size_t n;
        const char *bytes = tokenizer_bytes(t, b->token[i], false, &n);
        if (tokenizer_is_end(t, b->token[i])) return cut(r, i + 1, RT_FINISH_STOP);
        if (!reply_token(r->r, b->token[i], bytes, n)) return no_memory(r);
        r->fed++;
        if (reply_stop(r->r) != REPLY_GO) return cut(r, reply_kept(r->r) - before, RT_FINISH_STOP);
        if (r->grammar && reply_mode(r->r) == REPLY_IN_TEXT) return r->failed = enter(r, i + 1);
    }
    return at_end(r, b);
}

bool rt_reply_next(rt_reply *r, rt_event *event)
{
    static const rt_event_kind kinds[] = { [REPLY_REASON] = RT_REASONING, [REPLY_TEXT] = RT_TEXT,
                                           [REPLY_CALL_BEGIN] = RT_CALL, [REPLY_CALL_ARGS] = RT_ARGUMENTS,
                                           [REPLY_CALL_END] = RT_CALL_END };
    ReplyEvent x;
    if (!reply_next(r->r, &x)) return false;
    *event = (rt_event) { .kind = kinds[x.kind], .call = x.call, .bytes = x.n > 0 ? x.bytes : "", .n = x.n,
                          .from = x.from, .tokens = x.tokens };
    return true;
}

/* ---- everything in one call ---- */

static float recommended(const rt_engine *g, const char *key, float otherwise)
{
    float value;
    return engine_recommended(&value, g, key) ? value : otherwise;
}

void rt_sampling_recommended(const rt_engine *g, rt_sampling *p)
{
    if (g->model->diffusion.canvas) {              /* what its file says is in other keys, and the rest it has not */
        *p = RT_SAMPLING(.temperature = 1, .max_tokens = p->max_tokens, .seed = p->seed);
        return;
    }
    float window = p->rep_window > 0 ? (float) p->rep_window
                                     : recommended(g, "penalty_last_n", HISTORY);      /* 0: no penalties */
    p->temperature = recommended(g, "temp", 0.7f);
    p->top_p = recommended(g, "top_p", 0.9f);
    p->min_p = recommended(g, "min_p", 0);
    p->top_k = (int32_t) recommended(g, "top_k", 0);
    p->repetition = window > 0 ? recommended(g, "penalty_repeat", 1) : 1;
    p->rep_window = window > 0 ? (int32_t) window : HISTORY;
}

typedef struct { rt_step *st; rt_session *s; bool (*event)(void *ud, const rt_event *event); void *ud; } Caller;

static Status session_error(const rt_session *s, rt_status code, Error *err)
{
    return code == RT_OK ? ST_OK : fail(err, (Status) code, "%s", s->error);
}

static Status prompt_text(rt_session *s, const char *text, Error *err)
{
    const rt_engine *g = s->g;
    int32_t *t;
    size_t n;
    if (!g->tokenizer) return fail(err, ST_UNSUPPORTED, "text: the model file has no tokenizer");
    TRY(prompt_tokens(&t, &n, g, text, strlen(text), &(TextSpan) { 0, strlen(text) }, 1, err));
    if (n == 0 && rt_token_bos(g) >= 0) t[n++] = rt_token_bos(g);
    Status st = n == 0 ? fail(err, ST_ARG, "text: it is empty, and the model has no token to begin a text with")
                       : session_error(s, rt_prompt(s, t, n), err);
    free(t);
    return st;
}

static Status prompt(rt_session *s, const char *text, const rt_chat_text *c, Error *err)
{
    if (text) return prompt_text(s, text, err);
    if (!c) return fail(err, ST_ARG, "conversation: NULL, expected one, or a text");
    TRY(session_error(s, rt_prompt(s, c->token, c->n_token), err));
    return c->marked > 0 ? session_error(s, rt_mark(s, &c->marked, 1), err) : ST_OK;
}

/* Returns false if the caller wants no more. */
static bool tell(const Caller *c, rt_reply *r)
{
    rt_event x;
    while (rt_reply_next(r, &x))
        if (c->event && !c->event(c->ud, &x)) return false;
    return true;
}

static Status run(const Caller *c, rt_reply *r, Error *err)
{
    rt_status st = RT_OK;
    bool goes_on = true;
    while (st == RT_OK && goes_on) {
        rt_block b = { 0 };
        st = rt_next(c->st, c->s, &b);
        if (st == RT_ECANCEL) break;
        if (st < 0 && b.status == RT_OK) return fail(err, (Status) st, "%s", rt_step_error(c->st));
        st = rt_reply_read(r, &b);
        goes_on = tell(c, r);
    }
    if (st == RT_OK || st == RT_ECANCEL) {
        st = rt_reply_end(r);
        if (goes_on) tell(c, r);
    }
    return st < 0 ? fail(err, (Status) st, "%s", c->s->error) : ST_OK;
}

rt_status rt_generate(rt_step *st, rt_session *s, const char *text, const rt_reply_options *o,
                      bool (*event)(void *ud, const rt_event *event), void *ud, rt_finish *why, rt_error *e)
{
    Error err = { 0 };
    rt_reply_options known;
    rt_error inner = { 0 };
    rt_reply *r = NULL;
    Caller c = { st, s, event, ud };
    if (why) *why = RT_GOES_ON;
    Status code = sized_read(&known, &sized_reply_options, o, &err);
    if (code == ST_OK) code = check_reply(s, &known, &err);        /* before the session's text is replaced */
    if (code == ST_OK) code = prompt(s, text, known.conversation, &err);
    if (text) known.conversation = NULL;
    if (code == ST_OK) code = (Status) rt_reply_new(&r, s, &known, &inner);
    if (inner.code != RT_OK) fail(&err, code, "%s", inner.text);
    if (code == ST_OK) code = run(&c, r, &err);
    if (why && code == ST_OK) *why = r->finish;
    rt_reply_free(r);
    return engine_report(e, code, &err);
}
