#include "programs/serve/run.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const rt_engine *engine_of(const Choice *c) { return c->job->server->p.engine; }

/* ---- tokens into the decoder ---- */

static bool out_of_memory(HttpError *e) { return http_fail(e, 500, NULL, NULL, "out of memory"); }

static void tell(Choice *c)
{
    ReplyEvent ev;
    while (reply_next(c->reply, &ev)) answer_event(c->job->answer, c->index, &ev);
}

static AnswerAlternative alternative(const rt_engine *g, int32_t id, double logprob)
{
    AnswerAlternative a = { .logprob = logprob };
    a.bytes = rt_token_bytes(g, id, &a.n);
    return a;
}

/* lp NULL: it was forced, so its probability is 1. */
static void tell_token(Choice *c, int32_t id, bool drafted, const rt_logprob *lp, double logprob)
{
    const Request *q = c->job->q;
    if (!q->logprobs && !q->return_tokens && !q->return_drafted) return;
    AnswerAlternative top[RT_TOP_MAX];
    AnswerToken t = { .id = id, .drafted = drafted, .logprob = lp ? lp->logprob : logprob, .top = top };
    for (; lp && t.n_top < lp->n; t.n_top++) top[t.n_top] = alternative(engine_of(c), lp->top[t.n_top].id, lp->top[t.n_top].logprob);
    t.bytes = rt_token_bytes(engine_of(c), id, &t.n);
    answer_token(c->job->answer, c->index, &t);
}

static bool feed(Choice *c, int32_t id, bool drafted, const rt_logprob *lp)
{
    size_t n;
    const char *bytes = (c->job->q->show_special ? rt_token_text : rt_token_bytes)(engine_of(c), id, &n);
    if (c->fed == c->cap_token) {
        int32_t cap = c->cap_token ? 2 * c->cap_token : 256;
        int32_t *more = realloc(c->token, sizeof *more * (size_t) cap);
        if (!more) return false;
        c->token = more;
        c->cap_token = cap;
    }
    c->token[c->fed++] = id;
    c->last_token = seconds_now();
    if (c->first_token == 0) c->first_token = c->last_token;
    tell_token(c, id, drafted, lp, 0);
    bool good = reply_token(c->reply, id, bytes, n);
    tell(c);
    return good;
}

/* ---- figures ---- */

static void add_stats(rt_stats *to, const rt_stats *from)
{
    to->generated += from->generated;
    to->passes += from->passes;
    to->plain += from->plain;
    to->drafted += from->drafted;
    to->accepted += from->accepted;
    to->drafts += from->drafts;
    to->changes += from->changes;
    to->prefill_s += from->prefill_s;
    to->decode_s += from->decode_s;
    to->pass_s += from->pass_s;
    for (int i = 0; i < RT_SOURCES; i++) {
        to->drafted_by[i] += from->drafted_by[i];
        to->accepted_by[i] += from->accepted_by[i];
    }
}

/* Before the session gets another prompt, if the one it has is this choice's. */
static void take_stats(Choice *c, rt_session *s)
{
    rt_stats now;
    if (!c->noted) return;
    c->noted = false;
    rt_stats_get(s, &now);
    add_stats(&c->past, &now);
}

static MetricTokens token_figures(const Choice *c)
{
    bool first = c->index % c->job->q->n == 0;     /* several choices share a prompt */
    return (MetricTokens) { .prompt = first ? c->prompt->n : 0, .cached = first ? c->past.resumed : 0, .content = c->summary.text_tokens, .reasoning = c->summary.reason_tokens,
                            .calls = c->summary.call_tokens, .call_failures = c->summary.failures };
}

static void add_usage(AnswerUsage *u, const ReplySummary *y, const rt_stats *st)
{
    u->completion += y->tokens;
    u->reasoning += y->reason_tokens;
    u->prompt_ms += 1e3 * st->prefill_s;
    u->predicted_ms += 1e3 * st->decode_s;
    u->drafted += st->drafted;
    u->accepted += st->accepted;
}

void run_end(Choice *c, rt_session *s, FinishReason reason)
{
    Job *j = c->job;
    Metrics *m = j->server->metrics;
    if (reply_stop(c->reply) == REPLY_GO) reply_end(c->reply, reason == FINISH_STOP ? REPLY_ENDED : REPLY_CUT);
    tell(c);
    reply_summary(c->reply, &c->summary);
    const ReplySummary *y = &c->summary;
    if (reason == FINISH_STOP && y->calls > 0) reason = FINISH_CALLS;
    c->end = (AnswerEnd) { .reason = reason, .stop = reason == FINISH_STOP_SEQUENCE && y->stop >= 0 ? j->q->stop[y->stop] : NULL, .reason_open = y->reason_unclosed,
                           .call_cut = y->call_cut, .forced_close = c->forced_close, .tokens = y->tokens, .reason_tokens = y->reason_tokens };
    answer_end(j->answer, c->index, &c->end);
    take_stats(c, s);
    c->state = CHOICE_DONE;
    j->n_done++;
    MetricTokens t = token_figures(c);
    metrics_tokens(m, &t);
    metrics_work(m, &c->past);
    if (c->past.passes > 0) metrics_observe(m, HIST_ACCEPT, (double) c->past.generated / (double) c->past.passes);
    if (c->first_token > 0) metrics_observe(m, HIST_TTFT, c->first_token - j->arrived);
    if (c->fed > 1) metrics_observe(m, HIST_TPOT, (c->last_token - c->first_token) / (c->fed - 1));
    add_usage(&j->usage, y, &c->past);
}

void run_usage(const Choice *c, const rt_session *s, AnswerUsage *u)
{
    rt_stats sum = c->past, now;
    ReplySummary y;
    reply_summary(c->reply, &y);
    if (c->noted) {
        rt_stats_get(s, &now);
        add_stats(&sum, &now);
    }
    add_usage(u, &y, &sum);
}

/* ---- drawing ---- */

/* In form: the grammar's text, or a call in its place, which only the very first token can begin. Such a call is held where calls are. */
static bool mask(void *ud, const int32_t *path, size_t n, uint32_t *bits)
{
    Choice *c = ud;
    int32_t marker = c->job->call_marker;
    if (c->shape == SHAPE_HELD) return grammar_text_mask(c->held, path, n, bits);
    if (c->shape != SHAPE_FORM) return false;
    bool first = marker >= 0 && grammar_text_length(c->text) == 0;
    if (first && n > 0 && path[0] == marker) return c->held && grammar_text_mask(c->held, path, n, bits);
    if (!grammar_text_mask(c->text, path, n, bits)) return false;
    if (first && n == 0) bits[marker / 32] |= 1u << marker % 32;
    return true;
}

static RunState session_failed(rt_session *s, HttpError *e)
{
    http_fail(e, 500, NULL, NULL, "%s", rt_session_error(s));
    return RUN_FAILED;
}

static RunState note_prompt(Choice *c, rt_session *s, const int32_t *t, size_t n, HttpError *e)
{
    if (rt_prompt(s, t, n) != RT_OK) return session_failed(s, e);
    c->noted = true;
    return RUN_GOES_ON;
}

static bool set_sampling(const Choice *c, rt_session *s)
{
    const Job *j = c->job;
    rt_sampling p = j->q->sampling;
    p.bias = j->bias;
    p.n_bias = j->n_bias;
    p.seed = c->seed;
    p.max_tokens = c->limit > c->fed ? c->limit - c->fed : 1;
    return rt_sampling_set(s, &p) == RT_OK;
}

/* ---- forced tokens, forms ---- */

static RunState over(Choice *c, rt_session *s, FinishReason reason)
{
    run_end(c, s, reason);
    return RUN_OVER;
}

static FinishReason at_limit(const Choice *c) { return c->to_context ? FINISH_CONTEXT : FINISH_LENGTH; }

/* After a stop of the decoder. `before`: tokens that it had been fed when the last block began; what the block has beyond is given back. */
static RunState stopped(Choice *c, rt_session *s, int32_t before)
{
    int32_t kept = reply_kept(c->reply);
    rt_take(s, kept > before ? kept - before : 0);
    switch (reply_stop(c->reply)) {
    case REPLY_STOP_STRING: return over(c, s, FINISH_STOP_SEQUENCE);
    case REPLY_STOP_CALL:   return over(c, s, FINISH_CALLS);
    default:                return over(c, s, FINISH_STOP);
    }
}

static int32_t *tokens_of(const rt_engine *g, const char *text, int32_t *n)
{
    size_t len = strlen(text), cap = len + 2;
    int32_t *t = malloc(cap * sizeof *t);
    if (!t) return NULL;
    size_t count = rt_tokenize(g, text, len, true, t, cap), skip = count > 0 && rt_adds_bos(g) && t[0] == rt_token_bos(g);
    memmove(t, t + skip, (count - skip) * sizeof *t);
    *n = (int32_t) (count - skip);
    return t;
}

/* The text so far [n_text] and that of `forced` become the session's prompt; the decoder is fed the latter. */
static RunState force(Choice *c, rt_session *s, const int32_t *text, size_t n_text, const char *forced, HttpError *e)
{
    int32_t n = 0, *t = tokens_of(engine_of(c), forced, &n), *all = malloc((n_text + (size_t) n + 1) * sizeof *all);
    RunState st = RUN_GOES_ON;
    bool fits = c->fed + n <= c->limit;
    if (t && all && fits) {
        memcpy(all, text, n_text * sizeof *all);
        memcpy(all + n_text, t, (size_t) n * sizeof *all);
        take_stats(c, s);
        st = note_prompt(c, s, all, n_text + (size_t) n, e);
        for (int32_t i = 0; st == RUN_GOES_ON && i < n && reply_stop(c->reply) == REPLY_GO; i++) {
            if (!feed(c, t[i], false, NULL)) st = out_of_memory(e) ? RUN_OVER : RUN_FAILED;
            if (c->shape == SHAPE_HELD) grammar_text_append(c->held, t[i]);        /* the end of reasoning, which is free */
        }
        if (st == RUN_GOES_ON && !set_sampling(c, s)) st = session_failed(s, e);
    } else if (t && all) {
        st = over(c, s, at_limit(c));
    } else {
        st = out_of_memory(e) ? RUN_OVER : RUN_FAILED;
    }
    free(t);
    free(all);
    return st;
}

/* In the middle of a text: the session's own is the one to go on from. */
static RunState force_here(Choice *c, rt_session *s, const char *forced, HttpError *e)
{
    const int32_t *text;
    size_t n = rt_session_text(s, &text);
    int32_t before = c->fed;
    RunState st = force(c, s, text, n, forced, e);
    if (st != RUN_GOES_ON) return st;
    if (reply_stop(c->reply) != REPLY_GO) return stopped(c, s, before);
    return c->fed >= c->limit ? over(c, s, at_limit(c)) : RUN_GOES_ON;
}

/* held: after a form, or where there is none; and beside one in whose place there may be a call. */
static bool begin_held(Choice *c, HttpError *e)
{
    const Job *j = c->job;
    if (j->calls) c->held = form_text(j->calls, j->server->ctx);
    return !j->calls || c->held || out_of_memory(e);
}

static bool begin_form(Choice *c, HttpError *e)
{
    const Job *j = c->job;
    c->shape = j->form ? SHAPE_FORM : SHAPE_HELD;
    if ((!j->form || j->call_marker >= 0) && !begin_held(c, e)) return false;
    if (j->form) c->text = form_text(j->form, j->server->ctx);
    return !j->form || c->text || out_of_memory(e);
}

static const char *opening(const Job *j) { return j->form ? form_open(j->form) : NULL; }

/* The reasoning is over, if there was any: now the form counts. */
static RunState enter_form(Choice *c, rt_session *s, HttpError *e)
{
    const char *open = opening(c->job);
    RunState st = open ? force_here(c, s, open, e) : RUN_GOES_ON;
    if (st != RUN_GOES_ON) return st;
    return begin_form(c, e) ? RUN_GOES_ON : RUN_FAILED;
}

static RunState leave_form(Choice *c, rt_session *s, HttpError *e)
{
    const Form *form = c->job->form;
    c->shape = SHAPE_OVER;
    if (form_ends_turn(form)) return over(c, s, FINISH_STOP);
    if (*form_close(form)) {
        RunState st = force_here(c, s, form_close(form), e);
        if (st != RUN_GOES_ON) return st;
    } else if (c->fed >= c->limit) {
        return over(c, s, at_limit(c));
    }
    if (c->job->calls) c->shape = SHAPE_HELD;
    return begin_held(c, e) ? RUN_GOES_ON : RUN_FAILED;
}

/* Three equal pieces of 8 to 64 tokens at the end, one after the other. */
static bool goes_round(const Choice *c)
{
    for (int32_t len = 8; len <= 64 && 3 * len <= c->fed; len++) {
        const int32_t *end = c->token + c->fed;
        size_t n = sizeof *end * (size_t) len;
        if (memcmp(end - len, end - 2 * len, n) == 0 && memcmp(end - len, end - 3 * len, n) == 0) return true;
    }
    return false;
}

/* ---- blocks ---- */

/* Of a short answer half is kept for the text, whatever the reserve. */
static bool budget_over(const Choice *c)
{
    const Request *q = c->job->q;
    int64_t reserve = q->reply_budget < c->limit / 2 ? q->reply_budget : c->limit / 2;
    return q->think_budget >= 0 && c->limit - c->fed <= reserve;
}

RunState run_block(Choice *c, const Bench *b, rt_session *s, const rt_block *block, HttpError *e)
{
    const Request *q = c->job->q;
    const rt_logprob *lp = rt_logprobs(s);
    int32_t before = c->fed;
    (void) b;
    for (int32_t i = 0; i < block->n; i++) {
        int32_t id = block->token[i];
        size_t n;
        if (!q->ignore_eos && rt_token_ends(engine_of(c), id)) {
            rt_take(s, i + 1);
            return over(c, s, FINISH_STOP);
        }
        if (c->shape == SHAPE_FORM && !grammar_text_append(c->text, id)) {
            if (id != c->job->call_marker || grammar_text_length(c->text) > 0) {
                http_fail(e, 500, NULL, NULL, "token %d does not follow the grammar", id);
                return RUN_FAILED;
            }
            c->shape = c->held ? SHAPE_HELD : SHAPE_OVER;      /* a call in place of the form: what follows it was drawn without the form's mask */
        }
        if (c->shape == SHAPE_HELD && !grammar_text_append(c->held, id)) {
            http_fail(e, 500, NULL, NULL, "token %d does not follow the form of calls", id);
            return RUN_FAILED;
        }
        if (!feed(c, id, i + 1 < block->n, lp ? &lp[i] : NULL)) return out_of_memory(e) ? RUN_OVER : RUN_FAILED;
        if (reply_stop(c->reply) != REPLY_GO) return stopped(c, s, before);
        if (c->forced_close && goes_round(c)) {
            rt_take(s, i + 1);
            return over(c, s, FINISH_DEGENERATE);
        }
        const char *forced = reply_force(c->reply, budget_over(c), &n);
        if (forced) {
            rt_take(s, i + 1);
            c->forced_close = true;
            RunState st = force_here(c, s, forced, e);
            return st == RUN_GOES_ON && c->shape == SHAPE_WAITS && reply_mode(c->reply) == REPLY_IN_TEXT ? enter_form(c, s, e) : st;
        }
        if (c->shape == SHAPE_WAITS && reply_mode(c->reply) == REPLY_IN_TEXT) {
            rt_take(s, i + 1);
            return enter_form(c, s, e);
        }
        if (c->shape == SHAPE_FORM && grammar_text_done(c->text)) {
            rt_take(s, i + 1);
            return leave_form(c, s, e);
        }
    }
    if (block->status == RT_END) return over(c, s, at_limit(c));
    if (block->status < 0) {
        const char *why = c->shape == SHAPE_FORM ? grammar_text_trouble(c->text) : c->shape == SHAPE_HELD ? grammar_text_trouble(c->held) : NULL;
        http_fail(e, block->status == RT_ENOTOKEN ? 400 : 500, NULL, NULL, "%s%s%s", rt_session_error(s), why ? ": " : "", why ? why : "");
        return RUN_FAILED;
    }
    return RUN_GOES_ON;
}

/* ---- the start ---- */

void run_leave(const Bench *b, rt_session *s, const Histories *h, const int32_t *t, size_t n)
{
    const int32_t *held;
    const Server *server = b->server;
    size_t n_held = rt_session_text(s, &held);
    if (!server->cache || n_held == 0) return;
    int32_t end = rt_save_place(s, (int32_t) n_held), least = server->o.cache_min_tokens, stays = n > 0 ? rt_resumable(s, t, n) : 0, saved = 0;
    for (int32_t i = 0; i < HISTORY_PLACES; i++) {
        int32_t at = h->at[i];
        if (at < least || at <= stays || at >= end || rt_save_place(s, at) != at) continue;
        if (cache_save(server->cache, server->identity, b->step, s, at, CACHE_HISTORY, NULL, 0)) saved = at;
    }
    bool next_turn = h->at[HISTORY_PLACES - 1] > 0 && stays >= h->at[HISTORY_PLACES - 1];
    if (end < least || end <= stays || end < saved + CACHE_GAIN || next_turn) return;
    cache_save(server->cache, server->identity, b->step, s, end, CACHE_END, NULL, 0);
}

void run_forget(rt_session *s)
{
    const int32_t *t;
    if (rt_session_text(s, &t) == 0) return;
    int32_t first = t[0];
    rt_prompt(s, &first, 1);                       /* a prompt's last token is always computed, so this one shares nothing */
}

/* Rows of the prompt for `echo` with log-probabilities. */
typedef struct { Choice *c; int32_t vocab; } Scoring;

static void score_row(void *ud, int32_t i, const float *logits, const float *taps)
{
    Scoring *x = ud;
    rt_logprob lp;
    const JobPrompt *p = x->c->prompt;
    (void) taps;
    if (i + 1 >= p->n) return;
    rt_logprob_row(&lp, logits, x->vocab, p->t[i + 1], x->c->job->q->top_logprobs);
    tell_token(x->c, p->t[i + 1], false, &lp, 0);
}

static bool scores_prompt(const Request *q) { return q->echo && q->logprobs; }

static RunState echo(Choice *c, const Bench *b, rt_session *s, HttpError *e)
{
    const JobPrompt *p = c->prompt;
    const Request *q = c->job->q;
    Scoring x = { c, b->server->vocab };
    if (!q->echo) return RUN_GOES_ON;
    if (q->logprobs || q->return_tokens) tell_token(c, p->t[0], false, NULL, NAN);
    for (int32_t i = 1; q->return_tokens && !q->logprobs && i < p->n; i++) tell_token(c, p->t[i], false, NULL, NAN);
    if (scores_prompt(q) && p->n > 1) {
        rt_status st = rt_rows(b->step, s, NULL, 0, p->t, NULL, p->n - 1, score_row, &x);
        if (st == RT_ECANCEL) return RUN_CANCELLED;
        if (st != RT_OK) {
            http_fail(e, 500, NULL, NULL, "%s", rt_step_error(b->step));
            return RUN_FAILED;
        }
    }
    answer_echo(c->job->answer, c->index, p->text ? p->text : "", p->n_text);
    return RUN_GOES_ON;
}

static void mark_places(Choice *c, rt_session *s, int32_t resumed)
{
    int32_t at[RT_MARKS];
    size_t n = 0;
    for (c->next_place = 0; c->next_place < c->prompt->n_place && c->prompt->place[c->next_place].at <= resumed;) c->next_place++;
    c->saved = resumed;
    for (int32_t i = c->next_place; i < c->prompt->n_place; i++) at[n++] = c->prompt->place[i].at;
    if (n > 0) rt_mark(s, at, n);
}

/* A form may count from the first token on; reasoning that is asked for and that the prompt does not open comes before it. */
static RunState first_tokens(Choice *c, rt_session *s, HttpError *e)
{
    static const char *const opener[] = { [THINK_TAGS] = "<think>\n", [THINK_CHANNEL] = "<|channel>thought\n" };
    const Job *j = c->job;
    const JobPrompt *p = c->prompt;
    ThinkFormat think = j->server->style.think;
    if (c->shape != SHAPE_WAITS || reply_mode(c->reply) != REPLY_IN_TEXT) return note_prompt(c, s, p->t, (size_t) p->n, e);
    if (j->form && j->q->thinking == THINK_ON && think != THINK_NONE && j->q->dialect != DIALECT_COMPLETIONS) return force(c, s, p->t, (size_t) p->n, opener[think], e);
    const char *open = opening(j);
    RunState st = open ? force(c, s, p->t, (size_t) p->n, open, e) : note_prompt(c, s, p->t, (size_t) p->n, e);
    return st == RUN_GOES_ON && !begin_form(c, e) ? RUN_FAILED : st;
}

void run_ready(Choice *c, const Bench *b, rt_session *s, Histories *h)
{
    const Server *server = b->server;
    const JobPrompt *p = c->prompt;
    const Request *q = c->job->q;
    run_leave(b, s, h, q->cached ? p->t : NULL, q->cached ? (size_t) p->n : 0);
    if (!q->cached) run_forget(s);
    else if (server->cache && !scores_prompt(q)) cache_resume(server->cache, server->identity, s, p->t, (size_t) p->n, true, NULL, NULL);
    *h = (Histories) { 0 };
    for (int32_t i = p->n_place, k = HISTORY_PLACES; i-- > 0 && k > 0; )
        if (p->place[i].kind == CACHE_HISTORY) h->at[--k] = p->place[i].at;
    c->past = (rt_stats) { .resumed = scores_prompt(q) ? 0 : rt_resumable(s, p->t, (size_t) p->n) };
}

RunState run_start(Choice *c, const Bench *b, rt_session *s, HttpError *e)
{
    const Request *q = c->job->q;
    rt_stats stats;
    RunState st = echo(c, b, s, e);
    if (st != RUN_GOES_ON) return st;
    rt_speculate(s, q->spec_budget != 0);
    rt_logprobs_set(s, q->logprobs ? q->top_logprobs : -1);
    rt_allow(s, c->job->form || c->job->calls ? mask : NULL, c);
    st = first_tokens(c, s, e);
    if (st != RUN_GOES_ON) return st;
    rt_stats_get(s, &stats);
    c->state = CHOICE_RUNNING;
    c->done = (int32_t) stats.resumed;
    c->reads = c->done < stats.prompt_tokens - 1;
    if (!set_sampling(c, s)) return session_failed(s, e);
    mark_places(c, s, c->done);
    return c->limit == 0 && !c->reads ? over(c, s, FINISH_LENGTH) : RUN_GOES_ON;
}
