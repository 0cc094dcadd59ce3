#include "programs/serve/run/choice.h"
#include "ratoon_lab.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "programs/drive.h"
#include "programs/serve/answer/out.h"

static const rt_engine *engine_of(const RunChoice *c) { return c->job->server->p.engine; }

/* ---- tokens into the decoder ---- */

static bool out_of_memory(HttpError *e) { return http_fail(e, 500, NULL, NULL, "out of memory"); }
static ChoiceResult no_memory(HttpError *e)
{
    out_of_memory(e);
    return CHOICE_FAILED;
}

static bool watches_lines(const Request *q) { return q->n_indent > 0 || q->predict_ms > 0; }

/* How much of a text belongs to the answer: it ends before the first character of a line that is indented too little,
 * and with the line in which the time is over. */
static size_t lines_kept(RunChoice *c, const char *s, size_t n)
{
    const Request *q = c->job->q;
    for (size_t i = 0; i < n && !c->lines_over; i++) {
        if (s[i] == '\n') {
            c->indent = 0;
            c->lines_over = q->predict_ms > 0 && 1e3 * (seconds_now() - c->first_token) > (double) q->predict_ms;
            if (c->lines_over) return i;
        } else if (c->indent >= 0 && (s[i] == ' ' || s[i] == '\t')) {
            c->indent++;
        } else if (c->indent >= 0) {
            c->lines_over = c->indent < q->n_indent;
            if (c->lines_over) return i;
            c->indent = -1;
        }
    }
    return c->lines_over ? 0 : n;
}

static void tell(RunChoice *c)
{
    ReplyEvent ev;
    while (reply_next(c->reply, &ev)) {
        if (watches_lines(c->job->q)) ev.n = lines_kept(c, ev.bytes, ev.n);
        if (ev.n > 0 || ev.kind >= REPLY_CALL_BEGIN) answer_event(c->job->answer, c->index, &ev);
    }
}

static AnswerAlternative alternative(const rt_engine *g, int32_t id, double logprob)
{
    AnswerAlternative a = { .logprob = logprob, .id = id };
    a.bytes = rt_token_bytes(g, id, &a.n);
    return a;
}

/* lp NULL: the token was forced, so its probability is 1. */
static void tell_token(RunChoice *c, int32_t id, bool drafted, const rt_logprob *lp, double logprob)
{
    const Request *q = c->job->q;
    if (!q->logprobs && !q->return_tokens && !q->return_drafted) return;
    AnswerAlternative top[RT_TOP_MAX];
    AnswerToken t = { .id = id, .drafted = drafted, .logprob = lp ? lp->logprob : logprob, .top = top };
    for (; lp && t.n_top < lp->n; t.n_top++)
        top[t.n_top] = alternative(engine_of(c), lp->top[t.n_top].id, lp->top[t.n_top].logprob);
    t.bytes = rt_token_bytes(engine_of(c), id, &t.n);
    answer_token(c->job->answer, c->index, &t);
}

/* What must happen after a token. */
typedef enum { NEXT_TOKEN, NEXT_LINES_OVER, NEXT_DEGENERATE, NEXT_FORCED, NEXT_ENTER, NEXT_LEAVE } Next;

/* State while a choice goes through a block, or through forced tokens (block NULL). */
typedef struct {
    RunChoice        *c;
    const rt_block   *block;
    const rt_logprob *lp;
    HttpError        *e;
    Next              next;
    const char       *forced;                      /* for NEXT_FORCED */
} Way;

static bool follows(void *ud, int32_t id)
{
    const Way *w = ud;
    RunChoice *c = w->c;
    if (!w->block) {                               /* forced: the end of reasoning, which is free text */
        if (c->shape == SHAPE_HELD) grammar_text_append(c->held, id);
        return true;
    }
    if (c->shape == SHAPE_CONSTRAINED && !grammar_text_append(c->text, id)) {
        if (id != c->job->call_marker || grammar_text_length(c->text) > 0)
            return http_fail(w->e, 500, NULL, NULL, "token %d does not follow the grammar", id);
        /* a call instead of the constrained text: what follows it was sampled without the constraint's mask */
        c->shape = c->held ? SHAPE_HELD : SHAPE_OVER;
    }
    if (c->shape == SHAPE_HELD && !grammar_text_append(c->held, id))
        return http_fail(w->e, 500, NULL, NULL, "token %d does not follow the form of calls", id);
    return true;
}

static bool hear(void *ud, int32_t id, int32_t at)
{
    const Way *w = ud;
    RunChoice *c = w->c;
    c->last_token = seconds_now();
    if (c->first_token == 0) c->first_token = c->last_token;
    const bool drafted = w->block && at + 1 < w->block->n && !c->job->server->defaults.denoises;
    tell_token(c, id, drafted, w->lp ? &w->lp[at] : NULL, 0);
    tell(c);
    return true;
}

static Drive drive_of(Way *w)
{
    RunChoice *c = w->c;
    const Request *q = c->job->q;
    return (Drive) { .engine = engine_of(c), .ignore_eos = q->ignore_eos, .special = q->show_special,
                     .reply = c->reply, .token = &c->token, .n = &c->fed, .cap = &c->cap_token, .accept = follows,
                     .tell = hear, .ud = w };
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
    to->blocks += from->blocks;
    to->steps += from->steps;
    for (int i = 0; i < RT_SOURCES; i++) {
        to->drafted_by[i] += from->drafted_by[i];
        to->accepted_by[i] += from->accepted_by[i];
    }
}

/* Call before the session gets another prompt, if its current one is this choice's. */
static void take_stats(RunChoice *c, rt_session *s)
{
    rt_stats now;
    if (!c->noted) return;
    c->noted = false;
    rt_stats_get(s, &now, sizeof now);
    add_stats(&c->past, &now);
}

static MetricTokens token_figures(const RunChoice *c)
{
    bool first = c->index % c->job->q->n == 0;     /* several choices share a prompt */
    return (MetricTokens) { .prompt = first ? c->prompt->n : 0, .cached = first ? c->past.resumed : 0,
                            .content = c->summary.text_tokens, .reasoning = c->summary.reason_tokens,
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
    u->blocks += st->blocks;
    u->steps += st->steps;
}

/* Counts what was made of it; its summary is set. */
static void count(RunChoice *c, rt_session *s)
{
    Job *j = c->job;
    take_stats(c, s);
    MetricTokens t = token_figures(c);
    metrics_tokens(j->server->metrics, &t);
    metrics_work(j->server->metrics, &c->past);
    add_usage(&j->usage, &c->summary, &c->past);
}

void choice_drop(RunChoice *c, rt_session *s)
{
    reply_summary(c->reply, &c->summary);
    count(c, s);
    c->state = CHOICE_DONE;
}

void choice_end(RunChoice *c, rt_session *s, FinishReason reason)
{
    Job *j = c->job;
    Metrics *m = j->server->metrics;
    if (reply_stop(c->reply) == REPLY_GO) reply_end(c->reply, reason == FINISH_STOP ? REPLY_ENDED : REPLY_CUT);
    tell(c);
    reply_summary(c->reply, &c->summary);
    const ReplySummary *y = &c->summary;
    if (reason == FINISH_STOP && y->calls > y->call_cut) reason = FINISH_CALLS;
    c->end = (AnswerEnd) { .reason = reason, .stop = reason == FINISH_STOP_SEQUENCE && y->stop >= 0
                           ? j->q->stop[y->stop] : NULL, .reason_open = y->reason_unclosed, .call_cut = y->call_cut,
                           .forced_close = c->forced_close, .tokens = y->tokens, .reason_tokens = y->reason_tokens };
    answer_end(j->answer, c->index, &c->end);
    count(c, s);
    if (!j->constraint && !j->calls) program_judge(&j->server->p, &c->past);
    c->state = CHOICE_DONE;
    j->n_done++;
    if (c->past.passes > 0 && c->past.steps == 0)          /* a step that denoises accepts nothing */
        metrics_observe(m, HIST_ACCEPT, (double) c->past.generated / (double) c->past.passes);
    if (c->first_token > 0) metrics_observe(m, HIST_TTFT, c->first_token - j->arrived);
    if (c->fed > 1) metrics_observe(m, HIST_TPOT, (c->last_token - c->first_token) / (c->fed - 1));
}

void choice_usage(const RunChoice *c, const rt_session *s, AnswerUsage *u)
{
    rt_stats sum = c->past, now;
    ReplySummary y;
    reply_summary(c->reply, &y);
    if (c->noted) {
        rt_stats_get(s, &now, sizeof now);
        add_stats(&sum, &now);
    }
    add_usage(u, &y, &sum);
}

/* ---- sampling ---- */

/* The token mask under a constraint: the grammar's text, or a call instead, which only the very first token can open.
 * Such a call must follow the constraint on calls, if there is one. */
static bool mask(void *ud, const int32_t *path, size_t n, uint32_t *bits)
{
    RunChoice *c = ud;
    int32_t marker = c->job->call_marker;
    if (c->shape == SHAPE_HELD) return grammar_text_mask(c->held, path, n, bits);
    if (c->shape != SHAPE_CONSTRAINED) return false;
    bool first = marker >= 0 && grammar_text_length(c->text) == 0;
    if (first && n > 0 && path[0] == marker) return c->held && grammar_text_mask(c->held, path, n, bits);
    if (!grammar_text_mask(c->text, path, n, bits)) return false;
    if (first && n == 0 && !grammar_text_spent(c->text)) bits[marker / 32] |= 1u << marker % 32;
    return true;
}

static ChoiceResult session_failed(rt_session *s, HttpError *e)
{
    http_fail(e, 500, NULL, NULL, "%s", rt_session_error(s));
    return CHOICE_FAILED;
}

static ChoiceResult note_prompt(RunChoice *c, rt_session *s, const int32_t *t, size_t n, HttpError *e)
{
    if (rt_prompt(s, t, n) != RT_OK) return session_failed(s, e);
    c->noted = true;
    return CHOICE_GOES_ON;
}

static bool set_sampling(const RunChoice *c, rt_session *s)
{
    const Job *j = c->job;
    rt_sampling p = j->q->sampling;
    p.size = sizeof p;
    p.bias = j->bias;
    p.n_bias = j->n_bias;
    p.seed = c->seed;
    p.max_tokens = c->limit > c->fed ? c->limit - c->fed : 1;
    return rt_sampling_set(s, &p) == RT_OK;
}

/* ---- forced tokens, constraints ---- */

static ChoiceResult over(RunChoice *c, rt_session *s, FinishReason reason)
{
    choice_end(c, s, reason);
    return CHOICE_OVER;
}

static FinishReason at_limit(const RunChoice *c) { return c->to_context ? FINISH_CONTEXT : FINISH_LENGTH; }

static ChoiceResult stopped(RunChoice *c, rt_session *s)
{
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
    size_t count = rt_tokenize(g, text, len, true, t, cap),
           skip = count > 0 && rt_adds_bos(g) && t[0] == rt_token_bos(g);
    memmove(t, t + skip, (count - skip) * sizeof *t);
    *n = (int32_t) (count - skip);
    return t;
}

/* Makes the text so far [n_text] and that of `forced` the session's prompt; the decoder is fed the latter. */
static ChoiceResult force(RunChoice *c, rt_session *s, const int32_t *text, size_t n_text, const char *forced,
                          HttpError *e)
{
    int32_t n = 0, *t = tokens_of(engine_of(c), forced, &n), *all = malloc((n_text + (size_t) n + 1) * sizeof *all);
    ChoiceResult st = CHOICE_GOES_ON;
    Way w = { .c = c, .e = e };
    Drive d = drive_of(&w);
    bool fits = c->fed + n <= c->limit;
    if (t && all && fits) {
        memcpy(all, text, n_text * sizeof *all);
        memcpy(all + n_text, t, (size_t) n * sizeof *all);
        take_stats(c, s);
        st = note_prompt(c, s, all, n_text + (size_t) n, e);
        if (st == CHOICE_GOES_ON && drive_force(&d, t, n) == DRIVE_NO_MEMORY) st = no_memory(e);
        if (st == CHOICE_GOES_ON && !set_sampling(c, s)) st = session_failed(s, e);
    } else if (t && all) {
        st = over(c, s, at_limit(c));
    } else {
        st = no_memory(e);
    }
    free(t);
    free(all);
    return st;
}

/* In the middle of a text: continues from the session's own text. */
static ChoiceResult force_here(RunChoice *c, rt_session *s, const char *forced, HttpError *e)
{
    const int32_t *text;
    size_t n = rt_session_text(s, &text);
    ChoiceResult st = force(c, s, text, n, forced, e);
    if (st != CHOICE_GOES_ON) return st;
    if (reply_stop(c->reply) != REPLY_GO) return stopped(c, s);
    return c->fed >= c->limit ? over(c, s, at_limit(c)) : CHOICE_GOES_ON;
}

/* held is needed after a constraint, without one, and beside a constraint that a call may replace. */
static bool begin_held(RunChoice *c, HttpError *e)
{
    const Job *j = c->job;
    if (j->calls) c->held = constraint_text(j->calls, j->server->ctx);
    return !j->calls || c->held || out_of_memory(e);
}

static bool begin_constraint(RunChoice *c, HttpError *e)
{
    const Job *j = c->job;
    c->shape = j->constraint ? SHAPE_CONSTRAINED : SHAPE_HELD;
    if ((!j->constraint || j->call_marker >= 0) && !begin_held(c, e)) return false;
    if (j->constraint) c->text = constraint_text(j->constraint, j->server->ctx);
    return !j->constraint || c->text || out_of_memory(e);
}

static const char *opening(const Job *j) { return j->constraint ? constraint_prefix(j->constraint) : NULL; }

/* The reasoning, if any, is over: the constraint applies from here. */
static ChoiceResult enter_constraint(RunChoice *c, rt_session *s, HttpError *e)
{
    const char *open = opening(c->job);
    ChoiceResult st = open ? force_here(c, s, open, e) : CHOICE_GOES_ON;
    if (st != CHOICE_GOES_ON) return st;
    return begin_constraint(c, e) ? CHOICE_GOES_ON : CHOICE_FAILED;
}

static ChoiceResult leave_constraint(RunChoice *c, rt_session *s, HttpError *e)
{
    const Constraint *constraint = c->job->constraint;
    c->shape = SHAPE_OVER;
    if (constraint_ends_turn(constraint)) return over(c, s, FINISH_STOP);
    if (*constraint_suffix(constraint)) {
        ChoiceResult st = force_here(c, s, constraint_suffix(constraint), e);
        if (st != CHOICE_GOES_ON) return st;
    } else if (c->fed >= c->limit) {
        return over(c, s, at_limit(c));
    }
    if (c->job->calls) c->shape = SHAPE_HELD;
    return begin_held(c, e) ? CHOICE_GOES_ON : CHOICE_FAILED;
}

/* Detects three equal pieces of 8 to 64 tokens in a row at the end. */
static bool goes_round(const RunChoice *c)
{
    for (int32_t len = 8; len <= 64 && 3 * len <= c->fed; len++) {
        const int32_t *end = c->token + c->fed;
        size_t n = sizeof *end * (size_t) len;
        if (memcmp(end - len, end - 2 * len, n) == 0 && memcmp(end - len, end - 3 * len, n) == 0) return true;
    }
    return false;
}

/* ---- blocks ---- */

/* If the answer is short, half of it is reserved for the text, whatever the reserve. */
static bool budget_over(const RunChoice *c)
{
    const Request *q = c->job->q;
    int64_t reserve = q->reply_budget < c->limit / 2 ? q->reply_budget : c->limit / 2;
    return q->think_budget >= 0 && c->limit - c->fed <= reserve;
}

static bool comes_next(void *ud)
{
    Way *w = ud;
    RunChoice *c = w->c;
    size_t n;
    if (c->lines_over) w->next = NEXT_LINES_OVER;
    else if (c->forced_close && goes_round(c)) w->next = NEXT_DEGENERATE;
    else if ((w->forced = reply_force(c->reply, budget_over(c), &n))) w->next = NEXT_FORCED;
    else if (c->shape == SHAPE_WAITS && reply_mode(c->reply) == REPLY_IN_TEXT) w->next = NEXT_ENTER;
    else if (c->shape == SHAPE_CONSTRAINED && grammar_text_done(c->text)) w->next = NEXT_LEAVE;
    return w->next != NEXT_TOKEN;
}

static ChoiceResult close_reasoning(const Way *w, rt_session *s)
{
    RunChoice *c = w->c;
    c->forced_close = true;
    ChoiceResult st = force_here(c, s, w->forced, w->e);
    if (st != CHOICE_GOES_ON || c->shape != SHAPE_WAITS || reply_mode(c->reply) != REPLY_IN_TEXT) return st;
    return enter_constraint(c, s, w->e);
}

static ChoiceResult go_on(const Way *w, rt_session *s)
{
    switch (w->next) {
    case NEXT_LINES_OVER: return over(w->c, s, FINISH_LENGTH);
    case NEXT_DEGENERATE: return over(w->c, s, FINISH_DEGENERATE);
    case NEXT_FORCED:     return close_reasoning(w, s);
    case NEXT_ENTER:      return enter_constraint(w->c, s, w->e);
    case NEXT_LEAVE:      return leave_constraint(w->c, s, w->e);
    default:              return CHOICE_GOES_ON;
    }
}

static ChoiceResult block_failed(const Way *w, rt_session *s)
{
    const RunChoice *c = w->c;
    const char *why = c->shape == SHAPE_CONSTRAINED ? grammar_text_trouble(c->text) : c->shape == SHAPE_HELD
                      ? grammar_text_trouble(c->held) : NULL;
    http_fail(w->e, w->block->status == RT_ENOTOKEN ? 400 : 500, NULL, NULL, "%s%s%s", rt_session_error(s),
              why ? ": " : "", why ? why : "");
    return CHOICE_FAILED;
}

ChoiceResult choice_block(RunChoice *c, rt_session *s, const rt_block *block, HttpError *e)
{
    Way w = { .c = c, .block = block, .lp = rt_logprobs(s), .e = e };
    Drive d = drive_of(&w);
    d.cut = comes_next;
    switch (drive_block(&d, s, block)) {
    case DRIVE_ON:        return CHOICE_GOES_ON;
    case DRIVE_ENDED:     return over(c, s, FINISH_STOP);
    case DRIVE_STOPPED:   return stopped(c, s);
    case DRIVE_CUT:       return go_on(&w, s);
    case DRIVE_FULL:      return over(c, s, at_limit(c));
    case DRIVE_NO_MEMORY: return no_memory(e);
    case DRIVE_REFUSED:   return CHOICE_FAILED;    /* *e is set already */
    default:              return block_failed(&w, s);
    }
}

/* ---- the start ---- */

void choice_leave(const RunContext *b, rt_session *s, const Histories *h, const int32_t *t, size_t n)
{
    const int32_t *held;
    const Server *server = b->server;
    size_t n_held = rt_session_text(s, &held);
    if (!server->cache || n_held == 0) return;
    int32_t end = rt_save_place(s, (int32_t) n_held), least = server->o.cache_min_tokens,
            stays = n > 0 ? rt_resumable(s, t, n) : 0, saved = 0;
    for (int32_t i = 0; i < HISTORY_POINTS; i++) {
        int32_t at = h->at[i];
        if (at < least || at <= stays || at >= end || rt_save_place(s, at) != at) continue;
        if (cache_save(server->cache, server->identity, b->step, s, at, CACHE_HISTORY, NULL, 0)) saved = at;
    }
    bool next_turn = h->at[HISTORY_POINTS - 1] > 0 && stays >= h->at[HISTORY_POINTS - 1];
    if (end < least || end <= stays || end < saved + CACHE_GAIN || next_turn) return;
    cache_save(server->cache, server->identity, b->step, s, end, CACHE_END, NULL, 0);
}

void choice_forget(rt_session *s)
{
    const int32_t *t;
    if (rt_session_text(s, &t) == 0) return;
    int32_t first = t[0];
    rt_prompt(s, &first, 1);                /* the last token is always computed: this prompt shares nothing */
}

/* Rows of the prompt scored at a time for `echo` with log-probabilities; other streams wait for one piece. */
enum { SCORE_ROWS = 256 };
typedef struct { RunChoice *c; int32_t vocab, first; } Scoring;

static void score_row(void *ud, int32_t i, const float *logits, const float *taps)
{
    Scoring *x = ud;
    rt_logprob lp;
    const JobPrompt *p = x->c->prompt;
    (void) taps;
    i += x->first;
    rt_logprob_row(&lp, logits, x->vocab, p->t[i + 1], x->c->job->q->top_logprobs);
    tell_token(x->c, p->t[i + 1], false, &lp, 0);
}

static bool scores_prompt(const Request *q) { return q->echo && q->logprobs; }

ChoiceResult choice_score(RunChoice *c, const RunContext *b, rt_session *s, HttpError *e)
{
    const JobPrompt *p = c->prompt;
    int32_t left = p->n - 1 - c->done, n = left < SCORE_ROWS ? left : SCORE_ROWS;
    Scoring x = { c, b->server->vocab, c->done };
    if (c->done == 0) tell_token(c, p->t[0], false, NULL, NAN);
    rt_status st = n > 0 ? rt_rows(b->step, s, p->t, (size_t) c->done, p->t + c->done, NULL, n,
                                   RT_ROWS_LOGITS, score_row, &x) : RT_OK;
    if (st == RT_ECANCEL) return CHOICE_CANCELLED;
    if (st != RT_OK) {
        http_fail(e, 500, NULL, NULL, "%s", rt_step_error(b->step));
        return st == RT_ELOST ? CHOICE_LOST : CHOICE_FAILED;
    }
    c->done += n;
    c->scores = c->reads = n < left;
    return CHOICE_GOES_ON;
}

static void echo(RunChoice *c)
{
    const JobPrompt *p = c->prompt;
    const Request *q = c->job->q;
    if (!q->echo) return;
    for (int32_t i = 0; q->return_tokens && !q->logprobs && i < p->n; i++) tell_token(c, p->t[i], false, NULL, NAN);
    answer_echo(c->job->answer, c->index, p->text ? p->text : "", p->n_text);
}

static void mark_points(RunChoice *c, rt_session *s, int32_t resumed)
{
    int32_t at[RT_MARKS];
    size_t n = 0;
    for (c->next_point = 0; c->next_point < c->prompt->n_point && c->prompt->point[c->next_point].at <= resumed;)
        c->next_point++;
    c->saved = resumed;
    for (int32_t i = c->next_point; i < c->prompt->n_point; i++) at[n++] = c->prompt->point[i].at;
    if (n > 0) rt_mark(s, at, n);
}

/* A constraint may apply from the first token on; reasoning requested but not opened by the prompt comes first. */
static ChoiceResult first_tokens(RunChoice *c, rt_session *s, HttpError *e)
{
    const Job *j = c->job;
    const JobPrompt *p = c->prompt;
    const char *think = reply_think_open(j->server->style);
    if (c->shape != SHAPE_WAITS || reply_mode(c->reply) != REPLY_IN_TEXT)
        return note_prompt(c, s, p->t, (size_t) p->n, e);
    if (j->constraint && j->q->thinking == THINK_ON && think && request_talks(j->q))
        return force(c, s, p->t, (size_t) p->n, think, e);
    const char *open = opening(j);
    ChoiceResult st = open ? force(c, s, p->t, (size_t) p->n, open, e) : note_prompt(c, s, p->t, (size_t) p->n, e);
    return st == CHOICE_GOES_ON && !begin_constraint(c, e) ? CHOICE_FAILED : st;
}

void choice_ready(RunChoice *c, const RunContext *b, rt_session *s, Histories *h)
{
    const Server *server = b->server;
    const JobPrompt *p = c->prompt;
    const Request *q = c->job->q;
    choice_leave(b, s, h, q->cached ? p->t : NULL, q->cached ? (size_t) p->n : 0);
    if (!q->cached) choice_forget(s);
    else if (server->cache && !scores_prompt(q))
        cache_resume(server->cache, server->identity, s, p->t, (size_t) p->n, true, NULL, NULL);
    *h = (Histories) { 0 };
    for (int32_t i = p->n_point, k = HISTORY_POINTS; i-- > 0 && k > 0; )
        if (p->point[i].kind == CACHE_HISTORY) h->at[--k] = p->point[i].at;
    c->past = (rt_stats) { .resumed = scores_prompt(q) ? 0 : rt_resumable(s, p->t, (size_t) p->n) };
    c->scores = c->reads = scores_prompt(q);
    c->state = CHOICE_RUNNING;
}

/* A step's draft, up to the token that would end the text. */
static void tell_draft(void *ud, const int32_t *token, int32_t n, int32_t step)
{
    const RunChoice *c = ud;
    const bool ends = !c->job->q->ignore_eos;
    Out text = { 0 };
    for (int32_t i = 0; i < n && !(ends && rt_token_ends(engine_of(c), token[i])); i++) {
        size_t length;
        const char *bytes = rt_token_bytes(engine_of(c), token[i], &length);
        out_bytes(&text, bytes, length);
    }
    if (!text.failed) answer_draft(c->job->answer, c->index, text.at, text.n, step);
    out_free(&text);
}

static bool set_denoising(RunChoice *c, rt_session *s, HttpError *e)
{
    const Request *q = c->job->q;
    rt_diffusion d = q->diffusion;
    if (q->stream && q->include_drafts) d.draft = tell_draft, d.ud = c;
    if (rt_diffusion_set(s, &d) == RT_OK) return true;
    http_fail(e, 400, NULL, "diffusion", "%s", rt_session_error(s));
    return false;
}

ChoiceResult choice_start(RunChoice *c, rt_session *s, HttpError *e)
{
    const Request *q = c->job->q;
    rt_stats stats;
    echo(c);
    rt_speculate(s, q->spec_budget != 0);
    rt_logprobs_set(s, q->logprobs ? q->top_logprobs : -1);
    rt_allow(s, c->job->constraint || c->job->calls ? mask : NULL, c);
    if (c->job->server->defaults.denoises && !set_denoising(c, s, e)) return CHOICE_FAILED;
    ChoiceResult st = first_tokens(c, s, e);
    if (st != CHOICE_GOES_ON) return st;
    rt_stats_get(s, &stats, sizeof stats);
    c->done = (int32_t) stats.resumed;
    c->reads = c->done < stats.prompt_tokens - 1;
    if (!set_sampling(c, s)) return session_failed(s, e);
    mark_points(c, s, c->done);
    return c->limit == 0 && !c->reads ? over(c, s, FINISH_LENGTH) : CHOICE_GOES_ON;
}
