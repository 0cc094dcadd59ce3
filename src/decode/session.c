/* session.c - one line of text, its state, and going back in it. */
#include <stdlib.h>
#include <string.h>

#include "decode/spec.h"

Status session_open(Session *s, const Model *m, const Model *dm, int32_t ctx, int32_t draft_ring, int32_t n_ckpt, bool ngram, Error *err)
{
    *s = (Session) { .m = m, .dm = dm, .ctx = ctx, .sampling = draw_default(), .max_tokens = ctx, .top = -1 };
    budget_reset(&s->budget);
    calib_reset(&s->calib);
    s->text = malloc(sizeof *s->text * (size_t) (ctx + 1));
    if (!s->text) return fail(err, ST_MEMORY, "session: out of memory for %d tokens", ctx);
    Status st = ngram ? ngram_open(&s->ngram, ctx, err) : ST_OK;
    if (st == ST_OK) st = state_open(&s->target, m->be, m->spec, m->n_layers, ctx, 0, n_ckpt, err);
    if (st == ST_OK && dm) {
        int32_t ring = draft_ring ? draft_ring : dm->ring;
        if (ring > ctx) ring = ctx;                /* a file may claim any window; nobody looks back further than the text */
        st = state_open(&s->draft, m->be, dm->spec, dm->n_layers, ctx, ring, 0, err);
        if (st == ST_OK) {
            s->taps = m->be->alloc(m->be, sizeof(float) * TAP_SLOTS * (size_t) m->tap_width, "taps");
            if (!s->taps) st = fail(err, ST_MEMORY, "session: out of memory for taps");
            else if (dm->lead) state_advance(&s->draft, dm->lead);
        }
    }
    if (st != ST_OK) session_close(s);
    return st;
}

void session_close(Session *s)
{
    if (!s->m) return;
    if (s->taps) s->m->be->release(s->m->be, s->taps, sizeof(float) * TAP_SLOTS * (size_t) s->m->tap_width);
    state_close(&s->draft);
    state_close(&s->target);
    ngram_close(&s->ngram);
    free(s->text);
    *s = (Session) { 0 };
}

void session_draw(const Session *s, Draw *d)
{
    draw_set(d, &s->sampling, s->text, s->n_text);
    d->n_bias = s->n_bias;
    memcpy(d->bias, s->bias, sizeof *s->bias * (size_t) s->n_bias);
}

int32_t session_room(const Session *s)
{
    int32_t by_ctx = s->ctx - s->n_text, by_limit = s->max_tokens - s->n_made;
    return by_ctx < by_limit ? by_ctx : by_limit;
}

/* Waiting taps are those of positions [taken, taken + n_wait); what lies at or beyond `end` is forgotten. */
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

/* Tokens that the prompt shares with the text, but for its last one: that is the root, whose pass is still to come. */
static int32_t shared(const Session *s, const int32_t *tokens, int32_t n)
{
    int32_t same = 0, most = s->n_text < n - 1 ? s->n_text : n - 1;
    while (same < most && s->text[same] == tokens[same]) same++;
    return same;
}

int32_t session_resumable(const Session *s, const int32_t *tokens, int32_t n)
{
    return n < 1 ? 0 : state_place(&s->target, shared(s, tokens, n), s->target.confirmed);
}

Status session_prompt(Session *s, const int32_t *tokens, int32_t n, Error *err)
{
    if (n < 1) return fail(err, ST_ARG, "prompt: it has no tokens");
    if (n > s->ctx) return fail(err, ST_FULL, "prompt: %d tokens, but the context holds %d", n, s->ctx);
    for (int32_t i = 0; i < n; i++)
        if (tokens[i] < 0 || tokens[i] >= s->m->vocab) return fail(err, ST_ARG, "prompt: token %d is %d, expected 0 to %d", i, tokens[i], s->m->vocab - 1);
    int32_t same = shared(s, tokens, n);
    int32_t path_end = s->target.P, path_start = path_end - (s->target.confirmed ? 0 : s->target.n_path);
    int32_t P = state_back(&s->target, same);
    if (P < path_start) s->n_pend = 0;
    forget_taps(s, P < path_start ? P : path_start);
    ngram_cut(&s->ngram, s->text, same);
    if (same < s->n_text / 2) calib_next(&s->calib);
    memcpy(s->text, tokens, sizeof *tokens * (size_t) n);
    s->n_text = s->n_prompt = n;
    s->n_made = s->n_out = s->last_accepted = s->n_mark = 0;
    s->status = ST_OK;
    s->error = (Error) { 0 };
    s->stats = (SpecStats) { .prompt_tokens = n, .resumed = P };
    budget_next(&s->budget);
    s->hope = (Hope) { 0 };
    return ST_OK;
}

Status session_mark(Session *s, const int32_t *at, int32_t n, Error *err)
{
    if (n < 0 || n > MARKS_MAX) return fail(err, ST_ARG, "marks: %d, expected at most %d", n, MARKS_MAX);
    for (int32_t i = 0; i < n; i++)
        if (at[i] <= (i ? at[i - 1] : 0) || at[i] >= s->n_prompt)
            return fail(err, ST_ARG, "marks: mark %d is %d, expected more than %d and less than the prompt's %d tokens", i, at[i], i ? at[i - 1] : 0, s->n_prompt);
    s->n_mark = n;
    for (int32_t i = 0; i < n; i++) s->mark[i] = at[i];
    return ST_OK;
}

void session_forget(Session *s)
{
    s->target.n_ckpt = 0;
    state_back(&s->target, 0);
    s->n_pend = 0;
    forget_taps(s, 0);
    ngram_cut(&s->ngram, s->text, 0);
    s->n_text = s->n_prompt = s->n_out = s->n_mark = 0;
    s->status = ST_OK;
}

Status session_take(Session *s, int32_t n)
{
    if (n < 0 || n > s->n_out) return ST_ARG;
    if (n == s->n_out) return ST_OK;
    if (state_take(&s->target, n) != ST_OK) return ST_ARG;
    int32_t gone = s->n_out - n;
    ngram_cut(&s->ngram, s->text, s->n_text - gone);
    s->n_text -= gone;
    s->n_made -= gone;
    s->stats.generated -= gone;
    int32_t accepted = n < s->last_accepted ? n : s->last_accepted;               /* a block is drafted tokens, then one of the target's own */
    s->stats.accepted -= s->last_accepted - accepted;
    for (int32_t i = accepted; i < s->last_accepted; i++)
        for (int32_t by = 0; by < SOURCES; by++) s->stats.accepted_by[by] -= s->out_by[i] >> by & 1;
    s->last_accepted = accepted;
    s->n_out = n;
    if (s->status == ST_END) s->status = ST_OK;
    return ST_OK;
}
