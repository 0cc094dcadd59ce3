/*  session.c - one text, its state, and going back in it. */
#include <stdlib.h>
#include <string.h>

#include "decode/session.h"

/* ---- the line ---- */

static Status line_open(Line *l, const Model *m, int32_t ctx, int32_t n_ckpt, Error *err)
{
    *l = (Line) { .m = m, .ctx = ctx, .sampling = draw_default(), .max_tokens = ctx, .top = -1 };
    l->text = malloc(sizeof *l->text * (size_t) (ctx + 1));
    if (!l->text) return fail(err, ST_MEMORY, "session: out of memory for %d tokens", ctx);
    return state_open(&l->target, &m->stages, m->spec, m->n_layers, ctx, 0, m->diffusion.canvas, n_ckpt, err);
}

static void line_close(Line *l)
{
    state_close(&l->target);
    free(l->text);
}

void line_draw(const Line *l, Draw *d)
{
    draw_set(d, &l->sampling, l->text, l->n_text);
    d->n_bias = l->n_bias;
    memcpy(d->bias, l->bias, sizeof *l->bias * (size_t) l->n_bias);
}

int32_t line_room(const Line *l)
{
    int32_t by_ctx = l->ctx - l->n_text, by_limit = l->max_tokens - l->n_made;
    return by_ctx < by_limit ? by_ctx : by_limit;
}

/* How many tokens the prompt shares with the text, not counting the prompt's last one: it is the root, whose pass is
 * still to come. */
static int32_t line_shared(const Line *l, const int32_t *tokens, int32_t n)
{
    int32_t same = 0, most = l->n_text < n - 1 ? l->n_text : n - 1;
    while (same < most && l->text[same] == tokens[same]) same++;
    return same;
}

int32_t line_resumable(const Line *l, const int32_t *tokens, int32_t n)
{
    return n < 1 ? 0 : state_place(&l->target, line_shared(l, tokens, n), l->target.confirmed);
}

static Status line_check(const Line *l, const int32_t *tokens, int32_t n, Error *err)
{
    if (n < 1) return fail(err, ST_ARG, "prompt: it has no tokens");
    if (n > l->ctx) return fail(err, ST_FULL, "prompt: %d tokens, but the context holds %d", n, l->ctx);
    for (int32_t i = 0; i < n; i++)
        if (tokens[i] < 0 || tokens[i] >= l->m->vocab)
            return fail(err, ST_ARG, "prompt: token %d is %d, expected 0 to %d", i, tokens[i], l->m->vocab - 1);
    return ST_OK;
}

static void line_set(Line *l, const int32_t *tokens, int32_t n)
{
    memcpy(l->text, tokens, sizeof *tokens * (size_t) n);
    l->n_text = l->n_prompt = n;
    l->n_rows = l->n_made = l->n_out = l->n_mark = 0;
    l->status = ST_OK;
    l->error = (Error) { 0 };
}

Status line_mark(Line *l, const int32_t *at, int32_t n, Error *err)
{
    if (n < 0 || n > MARKS_MAX) return fail(err, ST_ARG, "marks: %d, expected at most %d", n, MARKS_MAX);
    for (int32_t i = 0; i < n; i++)
        if (at[i] <= (i ? at[i - 1] : 0) || at[i] >= l->n_prompt)
            return fail(err, ST_ARG, "marks: mark %d is %d, expected more than %d and less than the prompt's %d tokens",
                        i, at[i], i ? at[i - 1] : 0, l->n_prompt);
    l->n_mark = n;
    for (int32_t i = 0; i < n; i++) l->mark[i] = at[i];
    return ST_OK;
}

bool line_leaves_checkpoint(const Line *l)
{
    bool is = l->target.P == l->n_prompt - 1;
    for (int32_t i = 0; i < l->n_mark; i++) is |= l->mark[i] == l->target.P;
    return is;
}

/* ---- the session ---- */

static size_t soft_bytes(const Model *m) { return sizeof(float) * (size_t) m->diffusion.canvas * (size_t) m->dim; }

static Status open_canvas(Session *s, const Model *m, Error *err)
{
    Backend *be = stages_last(&m->stages), *first = m->stages.at[0].be;
    s->diffusion = m->diffusion;
    s->line.sampling.temperature = 1;              /* what the file says */
    s->canvas = calloc(1, sizeof *s->canvas);
    if (!s->canvas) return fail(err, ST_MEMORY, "session: out of memory for a canvas");
    s->canvas->soft = be->alloc(be, soft_bytes(m), "canvas");
    s->canvas->before = first == be ? s->canvas->soft : first->alloc(first, soft_bytes(m), "canvas");
    return s->canvas->soft && s->canvas->before ? ST_OK : stages_sync(&m->stages, err);
}

static void close_canvas(Session *s)
{
    const Model *m = s->line.m;
    Backend *be = stages_last(&m->stages), *first = m->stages.at[0].be;
    const Canvas *c = s->canvas;
    if (c && c->before && c->before != c->soft) first->release(first, c->before, soft_bytes(m));
    if (c && c->soft) be->release(be, c->soft, soft_bytes(m));
    free(s->canvas);
}

static void blank_canvas(Session *s)
{
    if (s->canvas) s->canvas->block = s->canvas->step = 0;
}

Status session_open(Session *s, const Model *m, const Model *dm, int32_t ctx, int32_t draft_ring, int32_t n_ckpt,
                    bool ngram, Error *err)
{
    *s = (Session) { .dm = dm };
    budget_reset(&s->budget);
    calib_reset(&s->calib);
    Status st = line_open(&s->line, m, ctx, n_ckpt, err);
    if (st == ST_OK && m->diffusion.canvas) st = open_canvas(s, m, err);
    if (st == ST_OK && ngram && !s->canvas) st = ngram_open(&s->ngram, ctx, err);
    if (st == ST_OK && dm) {
        int32_t ring = draft_ring ? draft_ring : dm->ring;
        if (ring > ctx) ring = ctx;         /* a file may claim any window, but it need not exceed the context */
        st = state_open(&s->draft, &dm->stages, dm->spec, dm->n_layers, ctx, ring, 0, 0, err);
        if (st == ST_OK) {
            Backend *be = stages_last(&m->stages);
            s->taps = be->alloc(be, sizeof(float) * TAP_SLOTS * (size_t) m->tap_width, "taps");
            if (!s->taps) st = be->sync(be, err);
            else if (dm->lead) state_advance(&s->draft, dm->lead);
        }
    }
    if (st != ST_OK) session_close(s);
    return st;
}

size_t session_bytes(const Session *s)
{
    const State *t = &s->line.target, *d = &s->draft;
    return sizeof *s->line.text * (size_t) (s->line.ctx + 1) + (s->canvas ? sizeof *s->canvas : 0) +
           sizeof *t->host * (size_t) t->n_layers + sizeof *d->host * (size_t) d->n_layers;
}

void session_close(Session *s)
{
    if (!s->line.m) return;
    Backend *be = stages_last(&s->line.m->stages);
    if (s->taps) be->release(be, s->taps, sizeof(float) * TAP_SLOTS * (size_t) s->line.m->tap_width);
    state_close(&s->draft);
    close_canvas(s);
    line_close(&s->line);
    ngram_close(&s->ngram);
    *s = (Session) { 0 };
}

/* Waiting taps are those of positions [taken, taken + n_wait); those at or beyond `end` are dropped. */
static void forget_taps(Session *s, int32_t end)
{
    if (!s->dm) return;
    int32_t taken = s->draft.P - s->dm->lead;
    if (end < taken) {
        state_back(&s->draft, end + s->dm->lead);
        s->n_wait = 0;
    } else if (taken + s->n_wait > end) {
        s->n_wait = end - taken;
    }
}

Status session_prompt(Session *s, const int32_t *tokens, int32_t n, Error *err)
{
    Line *l = &s->line;
    TRY(line_check(l, tokens, n, err));
    int32_t same = line_shared(l, tokens, n);
    int32_t path_start = l->target.P - (l->target.confirmed ? 0 : l->target.n_path);
    int32_t P = state_back(&l->target, same);
    if (P < path_start) s->n_pend = 0;
    forget_taps(s, P < path_start ? P : path_start);
    ngram_cut(&s->ngram, l->text, same);
    if (same < l->n_text / 2) calib_next(&s->calib);
    line_set(l, tokens, n);
    blank_canvas(s);
    s->last_accepted = 0;
    s->stats = (SpecStats) { .prompt_tokens = n, .resumed = P };
    budget_next(&s->budget);
    s->forecast = (Forecast) { 0 };
    return ST_OK;
}

void session_forget(Session *s)
{
    s->line.target.n_ckpt = 0;
    state_back(&s->line.target, 0);
    s->n_pend = 0;
    forget_taps(s, 0);
    ngram_cut(&s->ngram, s->line.text, 0);
    blank_canvas(s);
    s->line.n_text = s->line.n_prompt = s->line.n_rows = s->line.n_out = s->line.n_mark = 0;
    s->line.status = ST_OK;
}

void session_lose(Session *s, int32_t end)
{
    State *t = &s->line.target;
    if (t->P == 0) return;
    if (end > t->high) t->high = end;
    const int32_t P = state_back(t, t->P - 1);
    s->n_pend = 0;
    forget_taps(s, P);
}

void session_count_routes(Session *s, const Routes *r, bool decoded)
{
    s->stats.experts_missed += r->missed;
    s->stats.experts_missed_bytes += r->missed_bytes;
    s->stats.experts_wait_s += r->waited;
    if (!decoded) return;
    s->stats.experts_chosen += r->chosen;
    s->stats.experts_read += r->read;
}

Status session_take(Session *s, int32_t n)
{
    if (n < 0 || n > s->line.n_out) return ST_ARG;
    if (n == s->line.n_out) return ST_OK;
    int32_t gone = s->line.n_out - n;
    /* a denoised block is committed by the passes after it */
    if (s->canvas ? s->line.target.P > s->line.n_text - gone : state_take(&s->line.target, n) != ST_OK) return ST_ARG;
    ngram_cut(&s->ngram, s->line.text, s->line.n_text - gone);
    s->line.n_text -= gone;
    s->line.n_made -= gone;
    s->stats.generated -= gone;
    /* a block is accepted tokens, then one of the target's own */
    int32_t accepted = n < s->last_accepted ? n : s->last_accepted;
    s->stats.accepted -= s->last_accepted - accepted;
    for (int32_t i = accepted; i < s->last_accepted; i++)
        for (int32_t by = 0; by < SOURCES; by++) s->stats.accepted_by[by] -= s->out_by[i] >> by & 1;
    s->last_accepted = accepted;
    s->line.n_out = n;
    if (s->line.status == ST_END) s->line.status = ST_OK;
    return ST_OK;
}
