#include "programs/turn.h"

#include <stdlib.h>
#include <string.h>

typedef struct { char *s; size_t n, cap; } Text;

typedef struct {
    Talk    *talk;
    Voice   *voice;
    Reply   *reply;
    TalkAnswer *out;
    int32_t  cap_token, first_text;                /* first_text: the token in which the visible answer begins, -1: there is none so far */
    Text     text, reasoning;
} Answering;

static bool append(Text *t, const char *s, size_t n)
{
    if (t->n + n + 1 > t->cap) {
        size_t cap = 2 * t->cap + n + 64;
        char *more = realloc(t->s, cap);
        if (!more) return false;
        t->s = more;
        t->cap = cap;
    }
    if (n > 0) memcpy(t->s + t->n, s, n);
    t->s[t->n += n] = 0;
    return true;
}

static bool keep_token(Answering *a, int32_t id)
{
    if (a->out->n == a->cap_token) {
        int32_t cap = a->cap_token ? 2 * a->cap_token : 1024;
        int32_t *more = realloc(a->out->token, sizeof *more * (size_t) cap);
        if (!more) return false;
        a->out->token = more;
        a->cap_token = cap;
    }
    a->out->token[a->out->n++] = id;
    return true;
}

static int32_t reason_tokens(const Answering *a)
{
    ReplySummary y;
    reply_summary(a->reply, &y);
    return y.reason_tokens;
}

/* What the decoder has to tell, shown and kept. */
static bool tell(Answering *a)
{
    ReplyEvent e;
    while (reply_next(a->reply, &e)) {
        if (e.kind != REPLY_REASON && e.kind != REPLY_TEXT) continue;
        if (e.kind == REPLY_TEXT && a->first_text < 0) a->first_text = e.from;
        if (!append(e.kind == REPLY_TEXT ? &a->text : &a->reasoning, e.bytes, e.n)) return false;
        voice_say(a->voice, &e, e.kind == REPLY_TEXT ? reason_tokens(a) : 0);
    }
    return true;
}

/* Keeps a block's tokens up to the end of the model's turn. */
static TurnEnd take_block(Answering *a, const rt_block *b, bool *over)
{
    const Program *p = a->talk->p;
    for (int32_t i = 0; i < b->n; i++) {
        if (rt_token_ends(p->engine, b->token[i])) {
            rt_take(p->session, i + 1);
            *over = true;
            return TURN_ENDED;
        }
        size_t n;
        const char *bytes = rt_token_bytes(p->engine, b->token[i], &n);
        if (!keep_token(a, b->token[i]) || !reply_token(a->reply, b->token[i], bytes, n) || !tell(a)) {
            complain(p->o, "out of memory for the answer");
            *over = true;
            return TURN_FAILED;
        }
    }
    return TURN_ENDED;
}

static TurnEnd decode(Answering *a, int32_t n_prompt)
{
    Program *p = a->talk->p;
    for (bool over = false;;) {
        rt_block b = { 0 };
        rt_status st = interrupts ? RT_ECANCEL : program_step(p, p->step, p->session, &b);
        if (st == RT_ECANCEL) return TURN_CANCELLED;
        if (st == RT_OK && b.n == 0) st = b.status;
        if (st == RT_END) return n_prompt + a->out->n >= rt_session_ctx(p->session) ? TURN_FULL : TURN_LENGTH;
        if (st != RT_OK) {
            complain(p->o, "%s", *rt_step_error(p->step) ? rt_step_error(p->step) : rt_session_error(p->session));
            return TURN_FAILED;
        }
        TurnEnd end = take_block(a, &b, &over);
        if (over) return end;
        if (a->voice->broken) return TURN_FAILED;
    }
}

/* Where the visible answer begins among the tokens, if its bytes are theirs: markers and blanks around it are not. */
static int32_t spoken_from(const Answering *a)
{
    const rt_engine *g = a->talk->p->engine;
    const TalkAnswer *out = a->out;
    if (a->first_text < 0) return out->n;
    size_t at = 0;
    for (int32_t i = a->first_text; i < out->n; i++) {
        size_t n;
        const char *bytes = rt_token_bytes(g, out->token[i], &n);
        if (at + n > a->text.n || (n > 0 && memcmp(a->text.s + at, bytes, n) != 0)) return a->first_text == 0 ? 0 : -1;
        at += n;
    }
    return at == a->text.n || a->first_text == 0 ? a->first_text : -1;
}

TurnEnd turn_run(TalkAnswer *out, Talk *t, const Question *q, const rt_sampling *s, Voice *v)
{
    Program *p = t->p;
    Answering a = { .talk = t, .voice = v, .out = out, .first_text = -1 };
    Error err = { 0 };
    ReplyOptions ro = { .style = t->style, .prompt = q->opening, .n_prompt = q->n_opening, .think_max = -1, .calls_off = true,
                        .token = chat_token, .ud = p->engine };
    *out = (TalkAnswer) { 0 };
    if (reply_open(&a.reply, &ro, &err) != ST_OK) {
        complain(p->o, "%s", err.text);
        return TURN_FAILED;
    }
    TurnEnd end = TURN_FAILED;
    if (program_prompt(p, p->session, q->token, q->n) != RT_OK || rt_sampling_set(p->session, s) != RT_OK) complain(p->o, "%s", rt_session_error(p->session));
    else if (q->mark > 0 && rt_mark(p->session, &q->mark, 1) != RT_OK) complain(p->o, "%s", rt_session_error(p->session));
    else end = decode(&a, q->n);
    bool good = reply_end(a.reply, end == TURN_ENDED ? REPLY_ENDED : REPLY_CUT) && tell(&a) && append(&a.text, "", 0) && append(&a.reasoning, "", 0);
    voice_end(v, reason_tokens(&a));
    ReplySummary y;
    reply_summary(a.reply, &y);
    out->unclosed = y.reason_unclosed;
    if (good) out->spoken = spoken_from(&a);
    else if (end != TURN_FAILED) complain(p->o, "out of memory for the answer");
    out->text = a.text.s;
    out->reasoning = a.reasoning.s;
    reply_close(a.reply);
    return good ? end : TURN_FAILED;
}

void turn_answer_free(TalkAnswer *a)
{
    free(a->token);
    free(a->text);
    free(a->reasoning);
    *a = (TalkAnswer) { 0 };
}

void turn_stats(const Program *p)
{
    rt_stats s;
    rt_stats_get(p->session, &s);
    fprintf(stderr, "%lld tokens, %.1f per second, accept length %.2f; prompt %lld tokens, %lld of them held, %.2f s\n", (long long) s.generated,
            s.decode_s > 0 ? (double) s.generated / s.decode_s : 0.0, s.passes > 0 ? (double) s.generated / (double) s.passes : 0.0, (long long) s.prompt_tokens,
            (long long) s.resumed, s.prefill_s);
}
