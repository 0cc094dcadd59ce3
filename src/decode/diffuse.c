#include "decode/diffuse.h"

#include <math.h>
#include <string.h>

#include "base/clock.h"

static int32_t least_of(int32_t a, int32_t b) { return a < b ? a : b; }

/* ---- the rules ---- */

float diffuse_temperature(const Diffusion *d, int32_t step)
{
    const double left = d->steps - step + 1, low = (double) d->t_min;
    return (float) (low + ((double) d->t_max - low) * left / d->steps);
}

int32_t diffuse_accept(bool *accepted, const CanvasRow *row, int32_t n, float bound)
{
    int32_t order[CANVAS_MAX], count = 0;
    double sum = 0;
    for (int32_t i = 0; i < n; i++) {
        int32_t at = i;
        for (; at > 0 && row[order[at - 1]].entropy > row[i].entropy; at--) order[at] = order[at - 1];
        order[at] = i;
        accepted[i] = false;
    }
    while (count < n && sum <= (double) bound) {
        accepted[order[count]] = true;
        sum += (double) row[order[count++]].entropy;
    }
    return count;
}

bool diffuse_done(const Diffusion *d, const CanvasRow *row, int32_t n, int32_t same)
{
    double sum = 0;
    for (int32_t i = 0; i < n; i++) sum += (double) row[i].entropy;
    return same >= d->stability && sum / n < (double) d->confidence;
}

int32_t diffuse_trim(const Diffusion *d, const CanvasRow *row, int32_t n)
{
    for (int32_t i = d->trim_from > 0 ? d->trim_from : 1; i < n && d->trim > 0; i++) {
        const bool echo = row[i].best == row[i - 1].best || (i + 1 < n && row[i].best == row[i + 1].best);
        if (echo && 1 / row[i].sum < d->trim) return i;
    }
    return n;
}

/* ---- a step of a canvas ---- */

static bool locks(const Session *s) { return s->diffusion.mask > 0; }

/* What draws in the step after `step`, which is 0 for the first canvas. Steps may be fewer than have been done, if they
 * were set within a block: then this one is the last. */
static CanvasDraw draw_of(const Session *s, int32_t step)
{
    static const float GREEDY = 1e-5f;
    const Sampling *p = &s->line.sampling;
    const float t = diffuse_temperature(&s->diffusion, step > 0 ? least_of(step, s->diffusion.steps) : 1),
                by = t * p->temperature;
    const bool cold = p->temperature < GREEDY || by < GREEDY;
    return (CanvasDraw) { .seed = p->seed, .block = s->canvas->block, .step = step, .t = cold ? fmaxf(t, GREEDY) : by,
                          .greedy = cold || locks(s), .mask = s->diffusion.mask };
}

static void begin_block(Session *s)
{
    const CanvasDraw d = draw_of(s, 0);
    Canvas *c = s->canvas;
    for (int32_t i = 0; i < s->line.m->diffusion.canvas; i++)
        c->token[i] = locks(s) ? s->diffusion.mask : draw_canvas_any(&d, s->line.target.P + i, s->line.m->vocab);
    c->same = c->idle = 0;
    lock_begin(c->lock, s->line.m->diffusion.canvas);
}

int32_t diffuse_most(const Spec *sp)
{
    return least_of(sp->step.lim.n_max / sp->m->diffusion.canvas, sp->sessions_max);
}

Status diffuse_pass(Spec *sp, const CanvasTurn *t, int32_t n, int32_t want, int32_t n_want, PassOut *out, Error *err)
{
    Step *first = &sp->step, *last = sp->last;
    const size_t rows = (size_t) sp->m->diffusion.canvas, values = rows * (size_t) sp->m->dim;
    pass_start(first);
    for (int32_t i = 0; i < n; i++) {
        const Canvas *c = t[i].s->canvas;
        Slice *sl = pass_slice(first, &t[i].s->line.target, SLICE_BLOCK, (int32_t) rows, t[i].token, NULL);
        sl->canvas = t[i].draw;
        for (int32_t k = 0; i == 0 && k < n_want; k++) pass_want(first, sl, want + k, WANT_LOGITS, -1);
        pass_canvas(first, c->before, c->soft, t[i].conditioned);
    }
    TRY(model_pass(sp->m, first, out, 0, err));
    for (size_t i = 0; i < (size_t) n; i++) {
        Canvas *c = t[i].s->canvas;
        last->be->copy_out(last->be, c->found, (CanvasRow *) out->found->data + i * rows, sizeof *c->found * rows);
        if (first != last)
            last->be->copy_out(last->be, first->carry + i * values, c->soft, sizeof(float) * values);
    }
    TRY(step_wait(last, err));
    for (size_t i = 0; first != last && i < (size_t) n; i++)
        first->be->copy_in(first->be, t[i].s->canvas->before, first->carry + i * values, sizeof(float) * values);
    return ST_OK;
}

/* The position of the first row that has no finite result; -1: all have one. */
static int32_t not_finite(const Session *s)
{
    for (int32_t i = 0; i < s->line.m->diffusion.canvas; i++)
        if (!isfinite(s->canvas->found[i].entropy)) return s->line.target.P + i;
    return -1;
}

/* What the next step reads, and whether there is none. */
static bool renew(Session *s, const CanvasDraw *d)
{
    Canvas *c = s->canvas;
    const int32_t n = s->line.m->diffusion.canvas;
    bool accepted[CANVAS_MAX], changed = c->step == 0;
    diffuse_accept(accepted, c->found, n, s->diffusion.entropy_bound);
    for (int32_t i = 0; i < n; i++) {
        c->token[i] = accepted[i] ? c->found[i].sample
                                  : draw_canvas_any(d, s->line.target.P + i, s->line.m->vocab);
        changed |= c->best[i] != c->found[i].best;
        c->best[i] = c->found[i].best;
    }
    c->step++;
    c->same = changed ? 0 : c->same + 1;
    return c->step >= s->diffusion.steps || diffuse_done(&s->diffusion, c->found, n, c->same);
}

enum { IDLE = 2 };                                  /* steps that lock nothing, after which a text has ended */

/* The same where positions are locked. */
static bool renew_locked(Session *s)
{
    Canvas *c = s->canvas;
    const int32_t n = s->line.m->diffusion.canvas;
    const bool some = lock_step(c->lock, c->found, n, s->diffusion.stability, s->diffusion.entropy_bound) > 0;
    for (int32_t i = 0; i < n; i++) {
        c->best[i] = c->lock[i].token;
        c->token[i] = c->lock[i].locked ? c->best[i] : s->diffusion.mask;
    }
    c->step++;
    c->idle = some ? 0 : c->idle + 1;
    return c->step >= s->diffusion.steps || c->idle == IDLE || lock_first_open(c->lock, n) == n;
}

/* How many tokens the block has if this step is its last. */
static int32_t block_length(Session *s)
{
    Canvas *c = s->canvas;
    const int32_t all = s->line.m->diffusion.canvas;
    const int32_t end = locks(s) ? lock_block(c->best, c->lock, all, c->idle == IDLE, s->diffusion.end)
                                 : diffuse_trim(&s->diffusion, c->found, all);
    return least_of(end, line_room(&s->line));
}

static void finish_block(Session *s, int32_t n)
{
    Line *l = &s->line;
    memcpy(l->out, s->canvas->best, sizeof *l->out * (size_t) n);
    memcpy(l->text + l->n_text, l->out, sizeof *l->out * (size_t) n);
    l->n_out = n;
    l->n_text += n;
    l->n_made += n;
    s->canvas->block++;
    s->canvas->step = 0;
    s->stats.generated += n;
    s->stats.blocks++;
}

static void finish_step(Session *s, const CanvasDraw *d)
{
    const Canvas *c = s->canvas;
    s->stats.steps++;
    const int32_t bad = not_finite(s);
    if (bad >= 0) {
        s->line.status = ST_BACKEND;
        fail(&s->line.error, ST_BACKEND, "the logits at position %d are not finite", bad);
        return;
    }
    const bool done = locks(s) ? renew_locked(s) : renew(s, d);
    const int32_t length = block_length(s);
    if (s->on_draft) s->on_draft(s->on_draft_ud, c->best, length, c->step);
    if (done) finish_block(s, length);
}

static Status denoise(Spec *sp, Session *const *s, int32_t n, Error *err)
{
    CanvasTurn turn[ROWS_DECODE];
    PassOut out;
    for (int32_t i = 0; i < n; i++) {
        const Canvas *c = s[i]->canvas;
        if (c->step == 0) begin_block(s[i]);
        turn[i] = (CanvasTurn) { s[i], c->token, draw_of(s[i], c->step + 1), c->step > 0 };
    }
    Status st = diffuse_pass(sp, turn, n, 0, 0, &out, err);
    for (int32_t i = 0; i < n && st != ST_OK && st != ST_CANCEL; i++)
        s[i]->canvas->step = 0;                                    /* what it has left behind is unknown */
    TRY(st);
    for (int32_t i = 0; i < n; i++) finish_step(s[i], &turn[i].draw);
    return ST_OK;
}

/* ---- text that is not committed ---- */

/* The next place after P at which a chunk must end: a mark, the last token of the prompt, or the end. */
static int32_t next_stop(const Line *l)
{
    int32_t stop = l->n_text;
    if (l->target.P < l->n_prompt - 1) stop = l->n_prompt - 1;
    for (int32_t i = 0; i < l->n_mark; i++)
        if (l->mark[i] > l->target.P) stop = least_of(stop, l->mark[i]);
    return stop;
}

static Status commit(Spec *sp, Session *s, Error *err)
{
    Line *l = &s->line;
    const int32_t P = l->target.P, n = least_of(next_stop(l) - P, least_of(sp->chunk, l->target.chunk_max));
    PassOut out;
    TRY(state_ready(&l->target, &sp->step.on, err));
    pass_start(&sp->step);
    pass_slice(&sp->step, &l->target, SLICE_CHAIN, n, l->text + P, NULL);
    TRY(model_pass(sp->m, &sp->step, &out, 0, err));
    TRY(step_wait(sp->last, err));
    state_advance(&l->target, n);
    /* the chunk is committed, so if this fails it is the session's own error */
    if (line_leaves_checkpoint(l)) l->status = step_checkpoint(&sp->step, &l->target, &l->error);
    return ST_OK;
}

/* ---- the loop ---- */

static bool has_work(const Session *s) { return s->line.status == ST_OK && line_room(&s->line) > 0; }
static bool has_text(const Session *s) { return s->line.target.P < s->line.n_text; }

/* The sessions of the next pass: the first one that has work, from the one whose turn it is on, and, if that has a
 * step of its canvas before it, those behind it that have, too. The next turn is that of the session behind the first,
 * so all come to be first. Returns how many there are; 0: none has work. */
static int32_t whose_turn(Spec *sp, Session **with, Session *const *s, int32_t n)
{
    int32_t most = 1, count = 0;
    const uint32_t from = sp->turn;
    for (int32_t i = 0; i < n; i++) {
        s[i]->line.n_out = 0;
        if (s[i]->line.status == ST_OK && line_room(&s[i]->line) < 1) s[i]->line.status = ST_END;
    }
    for (int32_t i = 0; i < n && count < most; i++) {
        const uint32_t at = (from + (uint32_t) i) % (uint32_t) n;
        if (!has_work(s[at]) || (count > 0 && has_text(s[at]))) continue;
        if (count == 0) {
            sp->turn = (at + 1) % (uint32_t) n;
            if (!has_text(s[at])) most = diffuse_most(sp);
        }
        with[count++] = s[at];
    }
    return count;
}

Status diffuse_step(Spec *sp, Session *const *s, int32_t n, Error *err)
{
    if (n < 1 || n > sp->sessions_max)
        return fail(err, ST_ARG, "step: %d sessions, expected 1 to %d", n, sp->sessions_max);
    Session *with[ROWS_DECODE];
    const int32_t now = whose_turn(sp, with, s, n);
    if (now == 0) return ST_OK;
    const double begun = seconds_now();
    const bool prompt = with[0]->line.target.P < with[0]->line.n_prompt, text = has_text(with[0]);
    step_routes(&sp->step);                        /* forgets those of other passes */
    TRY(text ? commit(sp, with[0], err) : denoise(sp, with, now, err));
    const double took = seconds_now() - begun;
    const Routes routes = step_routes(&sp->step);
    for (int32_t i = 0; i < now; i++) {
        SpecStats *stats = &with[i]->stats;
        session_count_routes(with[i], &routes, !text);
        *(prompt ? &stats->prefill_s : &stats->decode_s) += took;
        if (prompt) continue;
        stats->pass_s += took;
        stats->passes++;
    }
    return ST_OK;
}

/* With logits of as many rows as others have, which a look inside wants. One session's canvas stands for all: nothing
 * is computed in a step that only measures. */
Status diffuse_largest(Spec *sp, Session *s, Error *err)
{
    static const int32_t token[CANVAS_MAX];
    CanvasTurn turn[ROWS_DECODE];
    PassOut out;
    for (int32_t i = 0; i < diffuse_most(sp); i++) turn[i] = (CanvasTurn) { s, token, { .t = 1 }, true };
    return diffuse_pass(sp, turn, diffuse_most(sp), 0, least_of(sp->m->diffusion.canvas, ROWS_DECODE), &out, err);
}
