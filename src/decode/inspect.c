#include "decode/inspect.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/ranges.h"
#include "decode/diffuse.h"

/* Steps until all of the prompt but its root is committed, then commits the root as a row of its own: [0, n) is
 * committed. */
static Status commit(Spec *sp, Session *s, const int32_t *token, int32_t n, Error *err)
{
    TRY(session_prompt(s, token, n, err));
    while (s->line.target.P < n - 1) {
        TRY(spec_step(sp, &s, 1, err));
        if (s->line.status != ST_OK) {
            *err = s->line.error;
            return s->line.status;
        }
    }
    return spec_commit_root(sp, s, err);
}

/* logits and taps of n rows; NULL: not wanted. */
static Status give_rows(Spec *sp, const float *logits, const float *taps, int32_t first, int32_t n, InspectRow row,
                        void *ud, Error *err)
{
    Backend *be = sp->last->be;
    size_t vocab = (size_t) sp->m->vocab, width = (size_t) sp->m->tap_width;
    float *tap = malloc(sizeof *tap * (width + 1));
    if (!tap) return fail(err, ST_MEMORY, "rows: out of memory");
    for (int32_t i = 0; i < n; i++) {
        const float *seen = logits ? be->view(be, sp->view, logits + vocab * (size_t) i, sizeof *seen * vocab) : NULL;
        if (taps) be->copy_out(be, tap, taps + width * (size_t) i, sizeof *tap * width);
        Status st = be->sync(be, err);
        if (st != ST_OK) {
            free(tap);
            return st;
        }
        row(ud, first + i, seen, taps ? tap : NULL);
    }
    free(tap);
    return ST_OK;
}

static Status check_want(const Spec *sp, int want, Error *err)
{
    if (want < 1 || want > (WANT_LOGITS | WANT_TAPS))
        return fail(err, ST_ARG, "rows: wanted is %d, expected %d (taps), %d (logits) or both", want, WANT_TAPS,
                    WANT_LOGITS);
    if ((want & WANT_TAPS) && (sp->m->tap_width == 0 || !sp->last->chunk_taps))
        return fail(err, ST_ARG, "rows: taps are wanted, but the engine has none");
    return ST_OK;
}

static Status check_tokens(const Session *s, const char *what, const int32_t *token, int32_t n, Error *err)
{
    for (int32_t i = 0; i < n; i++)
        if (token[i] < 0 || token[i] >= s->line.m->vocab)
            return fail(err, ST_ARG, "rows: %s %d is %d, expected 0 to %d", what, i, token[i], s->line.m->vocab - 1);
    return ST_OK;
}

static Status check_rows(const Session *s, const int32_t *token, const int32_t *parent, int32_t n_prefix, int32_t n,
                         Error *err)
{
    if (n < 1 || (parent && n > ROWS_DECODE))
        return fail(err, ST_ARG, "rows: %d, expected 1 to %d in a tree", n, ROWS_DECODE);
    if (n > s->line.ctx - n_prefix)
        return fail(err, ST_FULL, "rows: %d after a prefix of %d, but the context holds %d", n, n_prefix, s->line.ctx);
    for (int32_t i = 0; parent && i < n; i++)
        if (parent[i] >= i || parent[i] < -1 || (i > 0 && parent[i] < 0))
            return fail(err, ST_ARG, "rows: parent %d is %d, expected %s", i, parent[i], i ? "an earlier row" : "-1");
    return check_tokens(s, "token", token, n, err);
}

/* Forgets the text. The committed part of a chain stays in case the next call continues from there; with n 0, after a
 * tree or a failure, everything is forgotten. */
static void keep_rows(Session *s, const int32_t *prefix, int32_t n_prefix, const int32_t *token, int32_t n)
{
    if (n == 0) {
        session_forget(s);
        return;
    }
    s->line.n_text = s->line.n_prompt = s->line.n_out = s->line.n_mark = 0;
    if (n_prefix > 0) memmove(s->line.text, prefix, sizeof *prefix * (size_t) n_prefix);
    memcpy(s->line.text + n_prefix, token, sizeof *token * (size_t) n);
    s->line.n_rows = n_prefix + n;
}

/* Evaluates rows after what is committed; those of a chain are committed in turn. */
static Status run_rows(Spec *sp, Session *s, const int32_t *token, const int32_t *parent, int32_t n, int want,
                       InspectRow row, void *ud, Error *err)
{
    Step *st = &sp->step;
    float *taps = want & WANT_TAPS ? sp->last->chunk_taps : NULL;
    int32_t most = sp->chunk < ROWS_DECODE ? sp->chunk : ROWS_DECODE;
    for (int32_t done = 0; done < n;) {
        int32_t part = parent ? n : n - done < most ? n - done : most;
        TRY((parent ? state_writable : state_ready)(&s->line.target, &st->on, err));
        pass_start(st);
        Slice *sl = pass_slice(st, &s->line.target, parent ? SLICE_TREE : SLICE_CHAIN, part, token + done, parent);
        sl->taps = taps;
        for (int32_t i = 0; i < part; i++) pass_want(st, sl, i, want, taps ? i : -1);
        PassOut out;
        TRY(model_pass(sp->m, st, &out, 0, err));
        TRY(step_wait(sp->last, err));
        TRY(give_rows(sp, want & WANT_LOGITS ? out.logits->data : NULL, taps, done, part, row, ud, err));
        if (!parent) state_advance(&s->line.target, part);
        done += part;
    }
    return ST_OK;
}

Status inspect_rows(Spec *sp, Session *s, const int32_t *prefix, int32_t n_prefix, const int32_t *token,
                    const int32_t *parent, int32_t n, int want, InspectRow row, void *ud, Error *err)
{
    TRY(check_want(sp, want, err));
    TRY(check_rows(s, token, parent, n_prefix, n, err));
    bool goes_on = n_prefix > 0 && s->line.n_rows == n_prefix &&
                   memcmp(s->line.text, prefix, sizeof *prefix * (size_t) n_prefix) == 0;
    s->line.n_rows = 0;
    if (!goes_on) session_forget(s);
    Status st = !goes_on && n_prefix > 0 ? commit(sp, s, prefix, n_prefix, err) : ST_OK;
    if (st == ST_OK) st = run_rows(sp, s, token, parent, n, want, row, ud, err);
    keep_rows(s, prefix, n_prefix, token, parent || st != ST_OK ? 0 : n);
    return st;
}

static Status check_canvas(const Session *s, int32_t n_prefix, const int32_t *token, int32_t n, const int32_t *before,
                           float t, Error *err)
{
    const int32_t canvas = s->line.m->diffusion.canvas;
    if (canvas == 0) return fail(err, ST_UNSUPPORTED, "canvas: the model does not write by denoising");
    if (n != canvas) return fail(err, ST_ARG, "canvas: %d tokens, expected %d", n, canvas);
    if (n_prefix >= s->line.ctx)
        return fail(err, ST_FULL, "canvas: a prefix of %d, but the context holds %d, with a token behind it", n_prefix,
                    s->line.ctx);
    if (!(t >= 0 && t <= TEMPERATURE_MAX))
        return fail(err, ST_ARG, "canvas: temperature is %g, expected 0 to %g", (double) t, TEMPERATURE_MAX);
    TRY(check_tokens(s, "token", token, n, err));
    return before ? check_tokens(s, "before", before, n, err) : ST_OK;
}

/* A pass has room for the logits of ROWS_DECODE rows, so a larger canvas runs several times, each time behind the step
 * before it, whose mean embeddings it replaces. */
static Status run_canvas(Spec *sp, Session *s, const int32_t *token, int32_t n, const int32_t *before, CanvasDraw d,
                         InspectRow row, void *ud, Error *err)
{
    for (int32_t done = 0; done < n; done += ROWS_DECODE) {
        const int32_t part = n - done < ROWS_DECODE ? n - done : ROWS_DECODE;
        PassOut out;
        if (before) TRY(diffuse_pass(sp, &(CanvasTurn) { s, before, d, false }, 1, 0, 0, &out, err));
        TRY(diffuse_pass(sp, &(CanvasTurn) { s, token, d, before != NULL }, 1, done, part, &out, err));
        TRY(give_rows(sp, out.logits->data, NULL, done, part, row, ud, err));
    }
    return ST_OK;
}

Status inspect_canvas(Spec *sp, Session *s, const int32_t *prefix, int32_t n_prefix, const int32_t *token, int32_t n,
                      const int32_t *before, float t, InspectRow row, void *ud, Error *err)
{
    TRY(check_canvas(s, n_prefix, token, n, before, t, err));
    const CanvasDraw d = { .t = t > 0 ? t : diffuse_temperature(&s->diffusion, 1), .greedy = true };
    session_forget(s);
    Status st = n_prefix > 0 ? commit(sp, s, prefix, n_prefix, err) : ST_OK;
    if (st == ST_OK) st = run_canvas(sp, s, token, n, before, d, row, ud, err);
    session_forget(s);
    return st;
}

static Status run_draft(Spec *sp, Session *s, int32_t anchor, InspectRow row, void *ud, Error *err)
{
    const Model *dm = s->dm;
    int32_t token[ROWS_DECODE];
    token[0] = anchor;
    for (int32_t i = 1; i < dm->block; i++) token[i] = dm->mask_id;
    pass_start(sp->last);
    Slice *sl = pass_slice(sp->last, &s->draft, SLICE_BLOCK, dm->block, token, NULL);
    for (int32_t i = 0; i < dm->block; i++) pass_want(sp->last, sl, i, WANT_LOGITS, -1);
    PassOut out;
    TRY(model_pass(dm, sp->last, &out, 0, err));
    TRY(step_wait(sp->last, err));
    return give_rows(sp, out.logits->data, NULL, 0, dm->block, row, ud, err);
}

Status inspect_draft_rows(Spec *sp, Session *s, const int32_t *prefix, int32_t n_prefix, int32_t anchor, InspectRow row,
                          void *ud, Error *err)
{
    const Model *dm = s->dm;
    if (dm && dm->hold)
        return fail(err, ST_UNSUPPORTED, "draft rows: an MTP layer drafts one token after another, not a block");
    if (!dm) return fail(err, ST_ARG, "draft rows: there is no drafter");
    if (dm->block > s->line.ctx - n_prefix)
        return fail(err, ST_FULL, "draft rows: a block of %d after %d tokens, but the context holds %d", dm->block,
                    n_prefix, s->line.ctx);
    if (anchor < 0 || anchor >= s->line.m->vocab)
        return fail(err, ST_ARG, "draft rows: anchor is %d, expected 0 to %d", anchor, s->line.m->vocab - 1);
    session_forget(s);
    Status st = n_prefix > 0 ? commit(sp, s, prefix, n_prefix, err) : ST_OK;
    if (st == ST_OK && n_prefix > 0) st = spec_flush_taps(sp, s, err);
    if (st == ST_OK) st = run_draft(sp, s, anchor, row, ud, err);
    session_forget(s);
    return st;
}

/* Slots of tokens that do not exist hold zeros or an earlier text's data: the pass takes the same time. Where layers
 * wrap they may be the text's own, which is then read again from the last checkpoint. */
Status inspect_time(Spec *sp, Session *s, int32_t after, int32_t n, int32_t repeats, double *ms, Error *err)
{
    if (s->line.n_rows > 0) session_forget(s);
    const int32_t P = s->line.target.P;
    if (after == -1) after = P;
    if (after < P) return fail(err, ST_ARG, "passes: %d rows after %d tokens, but %d are committed", n, after, P);
    if (after > s->line.ctx - n)
        return fail(err, ST_FULL, "passes: %d rows after %d tokens, but the context holds %d", n, after, s->line.ctx);
    TRY(state_writable(&s->line.target, &sp->step.on, err));
    spec_confirm(sp, s);                           /* its waiting taps are those of the actual end */
    /* fold first: a noted path belongs to the actual end of the text */
    if (after != P) TRY(step_fold(&sp->step, &s->line.target, err));
    Status st = ST_OK;
    s->line.target.P = after;
    step_routes(&sp->step);
    for (int32_t i = 0; i < repeats && st == ST_OK; i++) {
        double begun = seconds_now();
        st = spec_idle_pass(sp, s, n, 0, err);
        ms[i] = 1e3 * (seconds_now() - begun);
    }
    const Routes routes = step_routes(&sp->step);
    s->stats.experts_chosen += routes.chosen;
    s->stats.experts_read += routes.read;
    s->line.target.P = P;
    if (after != P && s->line.target.wraps) session_lose(s, after + n);
    return st;
}
