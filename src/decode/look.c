#include "decode/look.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Steps until all of the prompt but its root is committed, then the root as a row of its own: [0, n) is committed. */
static Status commit(Spec *sp, Session *s, const int32_t *token, int32_t n, Error *err)
{
    TRY(session_prompt(s, token, n, err));
    while (s->target.P < n - 1) {
        TRY(spec_step(sp, &s, 1, err));
        if (s->status != ST_OK) {
            *err = s->error;
            return s->status;
        }
    }
    return spec_commit_root(sp, s, err);
}

static Status give_rows(Spec *sp, const PassOut *out, int32_t first, int32_t n, const float *taps, LookRow row, void *ud, Error *err)
{
    Backend *be = sp->step.be;
    size_t vocab = (size_t) sp->m->vocab, width = (size_t) sp->m->tap_width;
    float *tap = malloc(sizeof *tap * (width + 1));
    if (!tap) return fail(err, ST_MEMORY, "rows: out of memory");
    for (int32_t i = 0; i < n; i++) {
        const float *logits = be->view(be, sp->view, (const float *) out->logits->data + vocab * (size_t) i, sizeof(float) * vocab);
        if (taps) be->copy_out(be, tap, taps + width * (size_t) i, sizeof *tap * width);
        Status st = be->sync(be, err);
        if (st != ST_OK) {
            free(tap);
            return st;
        }
        row(ud, first + i, logits, taps ? tap : NULL);
    }
    free(tap);
    return ST_OK;
}

static Status check_rows(const Session *s, const int32_t *token, const int32_t *parent, int32_t n_prefix, int32_t n, Error *err)
{
    if (n < 1 || (parent && n > ROWS_DECODE)) return fail(err, ST_ARG, "rows: %d, expected 1 to %d in a tree", n, ROWS_DECODE);
    if (n > s->ctx - n_prefix) return fail(err, ST_FULL, "rows: %d after a prefix of %d, but the context holds %d", n, n_prefix, s->ctx);
    for (int32_t i = 0; i < n; i++) {
        if (token[i] < 0 || token[i] >= s->m->vocab) return fail(err, ST_ARG, "rows: token %d is %d, expected 0 to %d", i, token[i], s->m->vocab - 1);
        if (parent && (parent[i] >= i || parent[i] < -1 || (i > 0 && parent[i] < 0)))
            return fail(err, ST_ARG, "rows: parent %d is %d, expected %s", i, parent[i], i ? "an earlier row" : "-1");
    }
    return ST_OK;
}

Status spec_rows(Spec *sp, Session *s, const int32_t *prefix, int32_t n_prefix, const int32_t *token, const int32_t *parent, int32_t n,
                 LookRow row, void *ud, Error *err)
{
    TRY(check_rows(s, token, parent, n_prefix, n, err));
    session_forget(s);
    if (n_prefix > 0) TRY(commit(sp, s, prefix, n_prefix, err));
    Step *st = &sp->step;
    bool taps = sp->m->tap_width > 0 && st->chunk_taps != NULL;
    int32_t most = sp->chunk < ROWS_DECODE ? sp->chunk : ROWS_DECODE;
    for (int32_t done = 0; done < n;) {
        int32_t part = parent ? n : n - done < most ? n - done : most;
        TRY((parent ? state_writable : state_ready)(&s->target, err));
        pass_start(st);
        Slice *sl = pass_slice(st, &s->target, parent ? SLICE_TREE : SLICE_CHAIN, part, token + done, parent);
        sl->taps = st->chunk_taps;
        for (int32_t i = 0; i < part; i++) pass_want(st, sl, i, WANT_LOGITS | (taps ? WANT_TAPS : 0), taps ? i : -1);
        PassOut out;
        TRY(model_pass(sp->m, st, &out, 0, err));
        TRY(give_rows(sp, &out, done, part, taps ? st->chunk_taps : NULL, row, ud, err));
        if (!parent) state_advance(&s->target, part);
        done += part;
    }
    session_forget(s);
    return ST_OK;
}

Status spec_draft_rows(Spec *sp, Session *s, const int32_t *prefix, int32_t n_prefix, int32_t anchor, LookRow row, void *ud, Error *err)
{
    const Model *dm = s->dm;
    if (dm && dm->hold) return fail(err, ST_UNSUPPORTED, "draft rows: an MTP layer drafts one token after another, not a block");
    if (!dm) return fail(err, ST_ARG, "draft rows: there is no drafter");
    if (dm->block > s->ctx - n_prefix) return fail(err, ST_FULL, "draft rows: a block of %d after %d tokens, but the context holds %d", dm->block, n_prefix, s->ctx);
    if (anchor < 0 || anchor >= s->m->vocab) return fail(err, ST_ARG, "draft rows: anchor is %d, expected 0 to %d", anchor, s->m->vocab - 1);
    session_forget(s);
    if (n_prefix > 0) {
        TRY(commit(sp, s, prefix, n_prefix, err));
        TRY(spec_flush_taps(sp, s, err));
    }
    int32_t token[ROWS_DECODE];
    token[0] = anchor;
    for (int32_t i = 1; i < dm->block; i++) token[i] = dm->mask_id;
    pass_start(&sp->step);
    Slice *sl = pass_slice(&sp->step, &s->draft, SLICE_BLOCK, dm->block, token, NULL);
    for (int32_t i = 0; i < dm->block; i++) pass_want(&sp->step, sl, i, WANT_LOGITS, -1);
    PassOut out;
    TRY(model_pass(dm, &sp->step, &out, 0, err));
    TRY(give_rows(sp, &out, 0, dm->block, NULL, row, ud, err));
    session_forget(s);
    return ST_OK;
}

/* Behind tokens that are not there lie zeros, or what an earlier text left: it takes the same time. */
Status spec_time(Spec *sp, Session *s, int32_t after, int32_t n, int32_t repeats, double *ms, Error *err)
{
    const int32_t P = s->target.P;
    if (after == -1) after = P;
    if (after < P) return fail(err, ST_ARG, "passes: %d rows after %d tokens, but %d are committed", n, after, P);
    if (after > s->ctx - n) return fail(err, ST_FULL, "passes: %d rows after %d tokens, but the context holds %d", n, after, s->ctx);
    TRY(state_writable(&s->target, err));
    if (after != P) TRY(state_fold(&s->target, &sp->step, err));       /* a noted path lies behind the tokens that are there */
    Status st = ST_OK;
    s->target.P = after;
    for (int32_t i = 0; i < repeats && st == ST_OK; i++) {
        struct timespec a, b;
        clock_gettime(CLOCK_MONOTONIC, &a);
        st = spec_idle_pass(sp, s, n, 0, err);
        clock_gettime(CLOCK_MONOTONIC, &b);
        ms[i] = (double) (b.tv_sec - a.tv_sec) * 1e3 + (double) (b.tv_nsec - a.tv_nsec) * 1e-6;
    }
    s->target.P = P;
    return st;
}
