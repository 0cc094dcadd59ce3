/* spec.c - one step: confirm, draft, pass, accept, keep. The order and its reason are in doc/design.md, "A step": until
 * the pass has succeeded no session has changed, except that taps may have become drafter keys/values, which belong to
 * committed text in any case. */
#include "decode/spec.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"

/*  One bit per id. */
static size_t mask_words(const Model *m) { return ((size_t) m->vocab + 31) / 32; }
static size_t mask_bytes(const Spec *sp)
{
    return mask_words(sp->m) * (sp->last->be->pick ? ROWS_DECODE : 1) * sizeof *sp->mask;
}
static size_t draw_bytes(const Model *m) { return (draw_scratch(m->vocab) + 63) / 64 * 64; }
static size_t work_bytes(const Drafter *d) { return d && d->work ? d->work : 1; }

/* Values of a mixture's experts that a row multiplies. */
static double expert_weights(const Model *m)
{
    return m->experts ? (double) m->n_expert_weights * m->router.used / m->experts : 0;
}

/* Values of the matrices that a pass of one row multiplies: all but an embedding that is not also the head, and experts
 * that the row does not use. */
static double pass_weights(const Model *m)
{
    bool apart = !m->target && m->embed.data && m->embed.data != m->head.data;
    double all = (double) m->n_weights - (double) m->n_expert_weights + expert_weights(m);
    return all - (apart ? (double) m->embed.rows * m->embed.cols : 0);
}

static double head_weights(const Model *m) { return (double) m->head.rows * m->head.cols; }

/* What the table can know of the models themselves. A proposal is a pass of the drafter, or of the target's own layer
 * one for each depth, and the head may be the target's. */
static void expect_costs(Spec *sp, const Model *m, const Model *dm)
{
    double all = pass_weights(m), head = head_weights(m);
    if (m->experts) cost_experts(&sp->cost, expert_weights(m) / all, m->router.used, m->experts);
    sp->body = all > head && head > 0 ? (all - head) / all : 1;
    if (!dm || !sp->drafter || !(all > 0)) return;
    double lent = dm->head.data == m->head.data ? head : 0, passes = dm->hold ? sp->drafter->rows - 1 : 1;
    cost_guess_draft(&sp->cost, fmin(fmax(passes * (pass_weights(dm) + lent) / all, 0.02), 4));
}

Status spec_open(Spec *sp, const Model *m, const Model *dm, Drafter *d, int32_t sessions_max, int32_t chunk,
                 int32_t threads, size_t scratch_bytes, Error *err)
{
    if (sessions_max < 1 || sessions_max > ROWS_DECODE || chunk < 1)
        return fail(err, ST_ARG, "step: %d sessions and chunks of %d, expected 1 to %d sessions", sessions_max, chunk,
                    ROWS_DECODE);
    *sp = (Spec) { .m = m, .drafter = d, .chunk = chunk, .sessions_max = sessions_max };
    cost_reset(&sp->cost);
    batch_reset(&sp->batch);
    expect_costs(sp, m, dm);
    /* without a drafter taps are for inspection */
    bool taps = m->tap_width > 0 && (dm ? d && d->uses_taps : true);
    int32_t n_max = ROWS_DECODE + chunk;
    if (n_max < TAP_SLOTS) n_max = TAP_SLOTS;      /* all waiting taps of a session in one pass */
    if (n_max < m->diffusion.canvas) n_max = m->diffusion.canvas;
    /* One slice more than sessions: the largest pass, which planning runs, is a tree and a chunk of one session. */
    StepLimits lim = { .n_max = n_max, .slices_max = sessions_max + 1,
                       .chunk = chunk < ROWS_DECODE ? ROWS_DECODE : chunk, .tap_width = taps ? m->tap_width : 0,
                       .dim = m->dim, .threads = threads, .scratch_bytes = scratch_bytes };
    TRY(step_open(&sp->step, &m->stages, &lim, err));
    sp->last = step_last(&sp->step);
    cost_stairs(&sp->cost, sp->last->be->widths, sp->last->be->n_widths);
    size_t n = (size_t) sessions_max;
    sp->lattice = calloc(n, sizeof *sp->lattice);
    sp->tree = calloc(n, sizeof *sp->tree);
    sp->role = calloc(n, sizeof *sp->role);
    sp->member = calloc(n, sizeof *sp->member);
    sp->growth = calloc(1, sizeof *sp->growth);
    sp->work = calloc(1, work_bytes(d));
    sp->scratch = aligned_alloc(64, draw_bytes(m));
    sp->mask = calloc(1, mask_bytes(sp));
    sp->view = malloc(sizeof *sp->view * (size_t) m->vocab);
    if (!sp->lattice || !sp->tree || !sp->role || !sp->member || !sp->growth || !sp->work || !sp->scratch ||
        !sp->mask || !sp->view) {
        spec_close(sp);
        return fail(err, ST_MEMORY, "step: out of memory");
    }
    return ST_OK;
}

size_t spec_bytes(const Spec *sp)
{
    const size_t each = sizeof *sp->lattice + sizeof *sp->tree + sizeof *sp->role + sizeof *sp->member;
    return (size_t) sp->sessions_max * each + sizeof *sp->growth + work_bytes(sp->drafter) + draw_bytes(sp->m) +
           mask_bytes(sp) + sizeof *sp->view * (size_t) sp->m->vocab;
}

void spec_close(Spec *sp)
{
    step_close(&sp->step);
    free(sp->lattice);
    free(sp->tree);
    free(sp->role);
    free(sp->member);
    free(sp->growth);
    free(sp->work);
    free(sp->scratch);
    free(sp->mask);
    free(sp->view);
    *sp = (Spec) { 0 };
}

/* ---- taps ---- */

static bool keeps_taps(const Spec *sp, const Session *s)
{
    return sp->drafter && sp->drafter->uses_taps && s->dm && sp->budget != BUDGET_PLAIN;
}

static int32_t taken(const Session *s) { return s->draft.P - s->dm->lead; }

/* If positions are missing in between (a step that keeps no taps advanced the session), the drafter continues after a
 * hole. */
void spec_confirm(const Spec *sp, Session *s)
{
    if (keeps_taps(sp, s)) {
        int32_t path = s->line.target.confirmed ? 0 : s->line.target.n_path;
        if (taken(s) + s->n_wait + path != s->line.target.P || (path > 0 && s->n_pend == 0)) {
            s->n_wait = 0;
            state_advance(&s->draft, s->line.target.P - taken(s));
        } else {
            for (int32_t t = 0; t < path; t++) s->wait[s->n_wait++] = s->pend[s->line.target.path[t]];
        }
    }
    s->n_pend = 0;
    s->line.target.confirmed = true;
}

/* Takes n free tap slots; there are always ROWS_DECODE of them. */
static void take_slots(Session *s, int32_t n)
{
    bool used[TAP_SLOTS] = { false };
    for (int32_t j = 0; j < s->n_wait; j++) used[s->wait[j]] = true;
    for (int32_t slot = 0; s->n_pend < n; slot++)
        if (!used[slot]) s->pend[s->n_pend++] = slot;
}

/* Turns rows of taps into drafter keys/values: those that wait, or the rows of a chunk. next [n]: the tokens after
 * them, which an MTP layer reads with the taps. Only queued: they are valid after the next successful step_wait. */
static void insert_taps(Spec *sp, Session *s, float *taps, const int32_t *slot, const int32_t *next, int32_t n)
{
    Step *st = sp->last;
    for (int32_t done = 0; done < n;) {
        int32_t part = n - done < TAP_SLOTS ? n - done : TAP_SLOTS;
        pass_start(st);
        Slice *sl = pass_slice(st, &s->draft, SLICE_CHAIN, part, next + done, NULL);
        sl->taps = taps;
        for (int32_t i = 0; i < part; i++) pass_want(st, sl, i, WANT_TAPS, slot ? slot[done + i] : done + i);
        model_context(s->dm, st);
        state_advance(&s->draft, part);
        done += part;
    }
}

static TapsNote note_taps(const Session *s)
{
    TapsNote note = { .queued = true, .draft = s->draft, .n_wait = s->n_wait };
    memcpy(note.wait, s->wait, sizeof note.wait);
    return note;
}

/* Undoes the bookkeeping of queued work that failed; inserting the same rows again is harmless. */
static void back_to(Session *s, const TapsNote *note)
{
    s->draft = note->draft;
    s->n_wait = note->n_wait;
    memcpy(s->wait, note->wait, sizeof note->wait);
}

/* Queues all waiting taps but the newest `hold`, from which the drafter starts. */
static void queue_waiting(Spec *sp, Session *s, int32_t hold)
{
    int32_t n = s->n_wait - hold;
    if (n <= 0) return;
    insert_taps(sp, s, s->taps, s->wait, s->line.text + taken(s) + 1, n);
    memmove(s->wait, s->wait + n, sizeof *s->wait * (size_t) hold);
    s->n_wait = hold;
}

static Status flush_waiting(Spec *sp, Session *s, int32_t hold, Error *err)
{
    if (s->n_wait <= hold) return ST_OK;
    TapsNote note = note_taps(s);
    queue_waiting(sp, s, hold);
    Status st = step_wait(sp->last, err);
    if (st != ST_OK) back_to(s, &note);
    return st;
}

/* A chunk's taps lie in the step's memory, so all of them are used up at once; the held ones are copied to the
 * session. */
static Status insert_chunk(Spec *sp, Session *s, int32_t n, Error *err)
{
    Backend *be = sp->last->be;
    float *taps = sp->last->chunk_taps;
    int32_t held = n < s->dm->hold ? n : s->dm->hold;
    size_t row = (size_t) sp->m->tap_width;
    TapsNote note = note_taps(s);
    queue_waiting(sp, s, 0);
    insert_taps(sp, s, taps, NULL, s->line.text + taken(s) + 1, n - held);
    for (; s->n_wait < held; s->n_wait++) {
        s->wait[s->n_wait] = s->n_wait;
        be->copy(be, s->taps + row * (size_t) s->n_wait, taps + row * (size_t) (n - held + s->n_wait),
                 sizeof *taps * row);
    }
    Status st = step_wait(sp->last, err);
    if (st != ST_OK) back_to(s, &note);
    return st;
}

/* ---- passes recorded in advance ---- */

static bool records(const Step *s)
{
    bool any = false;
    for (; s; s = s->next) any |= s->be->prepare != NULL;
    return any;
}

/* Trees of n sessions, of all widths. */
static void prepare_trees(Spec *sp, Session *s, int32_t n)
{
    static const int32_t token[ROWS_DECODE];
    const Backend *be = sp->last->be;
    for (int32_t i = 0; i < be->n_widths; i++) {
        const int32_t rows = be->widths[i];
        if (rows < n) continue;
        pass_start(&sp->step);
        for (int32_t k = 0; k < n; k++) {
            const int32_t of_this = k < n - 1 ? 1 : rows - k;
            const Slice *sl = pass_slice(&sp->step, &s->line.target, SLICE_TREE, of_this, token, NULL);
            for (int32_t r = 0; r < of_this; r++) pass_want(&sp->step, sl, r, WANT_LOGITS, -1);
        }
        model_prepare(sp->m, &sp->step, 0);
    }
}

static void prepare_context(Spec *sp, Session *s)
{
    static const int32_t token[ROWS_DECODE];
    const Backend *be = sp->last->be;
    for (int32_t i = 0; i < be->n_widths; i++) {
        pass_start(sp->last);
        pass_slice(sp->last, &s->draft, SLICE_CHAIN, be->widths[i], token, NULL);
        model_prepare_context(s->dm, sp->last);
    }
}

/* Steps of `first` to `last` sessions, whose longest text is short, then longer. */
static void prepare_steps(Spec *sp, Session *s, int32_t first, int32_t last)
{
    Session *who[ROWS_DECODE];
    for (int32_t n = 0; n < last; n++) who[n] = s;
    for (int64_t span = SPAN_LEAST; first <= last; span *= 2) {
        s->line.target.P = s->draft.P = span < s->line.ctx ? (int32_t) span : s->line.ctx;
        for (int32_t n = first; n <= last; n++) {
            prepare_trees(sp, s, n);
            if (s->dm && sp->drafter && sp->drafter->prepare) sp->drafter->prepare(sp->drafter, sp, who, n);
        }
        if (span >= s->line.ctx) break;
    }
}

/* Every shape that a pass of a decoding step can have is recorded before the first token, so that nothing has to be
 * after that. Shapes do not depend on the session but for the length of its text. A backend may have room for so many
 * records only: steps of a single session come first, with what every step needs, then those of several with short
 * texts, and what is left out is run as it is called. */
static Status prepare(Spec *sp, Session *s, Error *err)
{
    const bool traced = sp->step.hooks && sp->step.hooks->trace;
    if (s->line.ctx <= sp->prepared || traced || !records(&sp->step)) return ST_OK;
    const int32_t target = s->line.target.P, draft = s->draft.P;
    prepare_steps(sp, s, 1, 1);
    if (keeps_taps(sp, s)) prepare_context(sp, s);
    prepare_steps(sp, s, 2, sp->sessions_max);
    s->line.target.P = target;
    s->draft.P = draft;
    TRY(stages_sync(&sp->step.on, err));
    sp->prepared = s->line.ctx;
    return ST_OK;
}

/* ---- before the pass ---- */

/* The next place after P at which a chunk must end: a mark, or the last token of the prompt. */
static int32_t next_stop(const Session *s)
{
    for (int32_t i = 0; i < s->line.n_mark; i++)
        if (s->line.mark[i] > s->line.target.P) return s->line.mark[i];
    return s->line.n_text - 1;
}

static int32_t least_of(int32_t a, int32_t b) { return a < b ? a : b; }

/* The first session with prompt left runs a chunk; the others with prompt left wait their turn. */
static int32_t plan_turns(Spec *sp, Session *const *s, int32_t n)
{
    bool chunk_taken = false;
    int32_t decoding = 0;
    for (int32_t i = 0; i < n; i++) {
        StepRole *t = &sp->role[i];
        *t = (StepRole) { .margin = NAN };
        s[i]->line.n_out = s[i]->last_accepted = 0;
        if (s[i]->line.status != ST_OK) continue;
        if (line_room(&s[i]->line) < 1) {
            s[i]->line.status = ST_END;
            continue;
        }
        spec_confirm(sp, s[i]);
        int32_t left = next_stop(s[i]) - s[i]->line.target.P;
        if (left > 0) {
            if (!chunk_taken) t->chunk = least_of(left, least_of(sp->chunk, s[i]->line.target.chunk_max));
            chunk_taken = true;
        } else if (decoding < ROWS_DECODE) {
            t->decodes = true;
            decoding++;
        }
    }
    return decoding;
}

static bool guides(const Spec *sp, const Session *s)
{
    return !s->plain && sp->budget == BUDGET_AUTO && (sp->drafter || s->ngram.head[0]);
}

/* Grows a few nodes, then twice as many while the session could use more; usually the first few suffice. */
static void grow(const Spec *sp, Growth *g, const Session *s, bool drafted, int32_t most)
{
    enum { FIRST = 8 };
    bool more = true;
    for (int32_t to = FIRST; more; to *= 2) {
        more = tree_grow(g, to < most ? to : most) == to && to < most &&
               budget_more(&s->budget, &sp->cost, drafted, g->gain, to, most);
    }
}

/* Looks up how the text continued earlier, and what verifying these guesses alone would gain: a value for a session
 * that decodes alone, a forecast for one in a batch. */
static void look_up(Spec *sp, Session *s, StepRole *t, Member *member, int32_t most)
{
    int32_t room = line_room(&s->line) - 1, root = 0;
    if (s->plain || !s->ngram.head[0] || sp->simulate || sp->budget == BUDGET_PLAIN || room < 1) return;
    ngram_find(&t->guess, &s->ngram, s->line.text, s->line.n_text, room);
    if (t->guess.n == 0) return;
    t->proposed |= 1u << SOURCE_NGRAM;
    if (sp->budget != BUDGET_AUTO) return;
    const Lattice *lat = sp->lattice;
    Growth *g = sp->growth;
    lattice_clear(sp->lattice);
    guess_join(sp->lattice, &t->guess, &s->calib);
    tree_begin(g, sp->tree, &lat, &root, &room, 1, sp->chain);
    if (member) {
        tree_grow(g, most);
        forecast_add(&member->free, 0, g->gain, g->n);
    } else {
        grow(sp, g, s, false, most);
        budget_choose_free(&s->budget, &sp->cost, g->gain, g->n, &t->free_value);
    }
}

/* Looks up the texts and decides which sessions draft: a single session's own controller decides, or the step's for
 * several. Returns how many draft. */
static int32_t plan_drafts(Spec *sp, Session *const *s, int32_t n, int32_t decoding)
{
    int32_t drafted = 0, at = 0;
    bool any = false;
    for (int32_t i = 0; i < n; i++) {
        StepRole *t = &sp->role[i];
        if (!t->decodes) continue;
        Member *m = &sp->member[at++];
        t->alone = decoding == 1;
        t->was_on = s[i]->budget.on;
        any |= guides(sp, s[i]);
        *m = (Member) { .may = !s[i]->plain && sp->drafter && sp->budget != BUDGET_PLAIN && line_room(&s[i]->line) >= 2,
                        .margin = s[i]->budget.margin, .forecast = &s[i]->forecast };
        look_up(sp, s[i], t, t->alone ? NULL : m, ROWS_DECODE - decoding);
        m->drafts = m->may &&
                    (sp->budget > 0 || (t->alone && budget_should_draft(&s[i]->budget, &sp->cost, t->free_value)));
    }
    if (decoding > 1 && any) batch_plan(&sp->batch, &sp->cost, sp->member, at);
    at = 0;
    for (int32_t i = 0; i < n; i++)
        if (sp->role[i].decodes) drafted += sp->role[i].drafted = sp->member[at++].drafts;
    return drafted;
}

/* Queued before the proposal (or the pass, if there is none), so its wait covers these too. */
static void flush_for_step(Spec *sp, Session *const *s, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        StepRole *t = &sp->role[i];
        if (!t->decodes || !keeps_taps(sp, s[i]) || s[i]->n_wait <= s[i]->dm->hold) continue;
        if (!t->drafted && s[i]->n_wait < TAP_WAIT) continue;
        t->taps = note_taps(s[i]);
        queue_waiting(sp, s[i], s[i]->dm->hold);
    }
}

static void flushed(Spec *sp, Session *const *s, int32_t n, bool good)
{
    for (int32_t i = 0; i < n; i++) {
        TapsNote *note = &sp->role[i].taps;
        if (!good && note->queued) back_to(s[i], note);
        note->queued = false;
    }
}

/* Records what a session's tree promises, for when it decodes with others. */
static void hear(Spec *sp, Session *s, const Growth *g, int32_t tree)
{
    double gain[ROWS_DECODE];
    batch_hear(&sp->batch, &s->forecast, s->budget.margin, gain, tree_gains(gain, g, tree));
}

/* Grows the trees and returns how many nodes to verify in total. */
static int32_t choose_nodes(Spec *sp, Session *const *s, int32_t n, int32_t decoding, int32_t drafted)
{
    Growth *g = sp->growth;
    int32_t most = ROWS_DECODE - decoding, tree = 0;
    Session *one = NULL;
    double value;
    for (int32_t i = 0; i < n; i++)
        if (sp->role[i].decodes) one = s[i];
    if (decoding == 1) grow(sp, g, one, drafted > 0, most);
    else tree_grow(g, most);
    for (int32_t i = 0; i < n; i++) {
        if (sp->role[i].drafted) hear(sp, s[i], g, tree);
        tree += sp->role[i].decodes;
    }
    if (decoding > 1) return batch_choose(&sp->batch, &sp->cost, decoding, drafted, g->gain, g->n);
    return drafted ? budget_choose(&one->budget, &sp->cost, g->gain, g->n)
                   : budget_choose_free(&one->budget, &sp->cost, g->gain, g->n, &value);
}

/* The lattices of this step: the drafting model's for sessions that draft, with the guesses from the text added or
 * alone. */
static Status make_lattices(Spec *sp, Session *const *s, int32_t n, const Lattice **lat, Error *err)
{
    Session *who[ROWS_DECODE];
    int32_t n_who = 0, at = 0, n_at = 0;
    for (int32_t i = 0; i < n; i++)
        if (sp->role[i].drafted) who[n_who++] = s[i];
    if (n_who > 0) TRY(sp->drafter->propose(sp->drafter, sp, who, n_who, sp->lattice, err));
    for (int32_t j = 0; sp->simulate && j < n_who; j++) simulate_lattice(&sp->lattice[j], sp->simulate);
    int32_t alone = n_who;
    for (int32_t i = 0; i < n; i++) {
        StepRole *t = &sp->role[i];
        if (!t->decodes) continue;
        Lattice *l = NULL;
        if (t->drafted) {
            l = &sp->lattice[at++];
            if (l->n_depth > 0) t->proposed |= 1u << sp->drafter->source;
            s[i]->stats.drafts++;
        } else if (t->guess.n > 0) {
            lattice_clear(l = &sp->lattice[alone++]);
        }
        if (l) guess_join(l, &t->guess, &s[i]->calib);
        lat[n_at++] = l;
    }
    return ST_OK;
}

static Status draft(Spec *sp, Session *const *s, int32_t n, int32_t decoding, int32_t drafted, Error *err)
{
    const Lattice *lat[ROWS_DECODE] = { NULL };
    int32_t root[ROWS_DECODE] = { 0 }, depth_max[ROWS_DECODE] = { 0 }, n_at = 0;
    bool any = false;
    TRY(make_lattices(sp, s, n, lat, err));
    for (int32_t i = 0; i < n; i++) {              /* one heap over the sessions that decode */
        if (!sp->role[i].decodes) continue;
        any |= sp->role[i].proposed != 0;
        root[n_at] = s[i]->line.text[s[i]->line.n_text - 1];
        depth_max[n_at++] = line_room(&s[i]->line) - 1;
    }
    Growth *g = sp->growth;
    tree_begin(g, sp->tree, lat, root, depth_max, n_at, sp->chain);
    if (any)
        tree_cut(g, sp->budget == BUDGET_AUTO ? choose_nodes(sp, s, n, decoding, drafted) : tree_grow(g, sp->budget));
    for (int32_t j = 0; j < n_at; j++) tree_rows(&sp->tree[j]);
    return ST_OK;
}

/* ---- the pass ---- */

static void add_tree(Spec *sp, Session *s, StepRole *t, const Tree *tree)
{
    Step *st = &sp->step;
    bool taps = keeps_taps(sp, s);
    t->slice = pass_slice(st, &s->line.target, SLICE_TREE, tree->n, tree->token, tree->parent);
    t->slice->taps = s->taps;
    if (taps) take_slots(s, tree->n);
    for (int32_t r = 0; r < tree->n; r++)
        pass_want(st, t->slice, r, WANT_LOGITS | (taps ? WANT_TAPS : 0), taps ? s->pend[r] : -1);
    line_draw(&s->line, &t->slice->draw);
}

static void add_chunk(Spec *sp, Session *s, StepRole *t)
{
    Step *st = &sp->step;
    t->slice = pass_slice(st, &s->line.target, SLICE_CHAIN, t->chunk, s->line.text + s->line.target.P, NULL);
    t->slice->taps = sp->last->chunk_taps;
    for (int32_t r = 0; keeps_taps(sp, s) && r < t->chunk; r++) pass_want(st, t->slice, r, WANT_TAPS, r);
}

/* Masks of a tree's rows [n, words]: what the session allows after each. A row that its parent's mask forbids is never
 * visited. */
static void fill_masks(const Session *s, const Tree *tree, uint32_t *mask, size_t words)
{
    enum { MASKED = 1, DEAD = 2 };
    uint8_t is[ROWS_DECODE] = { 0 };
    for (int32_t row = 0; row < tree->n; row++) {
        int32_t up = tree->parent[row], path[ROWS_DECODE], n = tree->depth[row], token = tree->token[row];
        uint32_t *bits = mask + words * (size_t) row;
        const uint32_t *before = mask + words * (size_t) (up < 0 ? 0 : up);
        if (up >= 0 && (is[up] & DEAD || (is[up] & MASKED && !(before[token / 32] >> token % 32 & 1)))) is[row] = DEAD;
        for (int32_t at = row, i = n; i > 0; at = tree->parent[at]) path[--i] = tree->token[at];
        if (!(is[row] & DEAD) && s->line.allow && s->line.allow(s->line.allow_ud, path, (size_t) n, bits))
            is[row] = MASKED;
        else
            memset(bits, 0xff, sizeof *bits * words);
    }
}

/* If the backend picks: queues draws and margins of all rows after the pass; the masks are made while it runs. s NULL:
 * a pass run only for its time and memory. */
static void pick_rows(Spec *sp, Session *const *s, int32_t n, const PassOut *out)
{
    Step *st = sp->last;
    Backend *be = st->be;
    int32_t rows = st->host.n_logits, real = st->n_logits_real, tree = 0;
    const size_t words = mask_words(sp->m);
    bool masked = !s;
    sp->picked = be->pick && !sp->host_draws && rows > 0;
    if (!sp->picked) return;
    for (int32_t i = 0; s && i < n; i++) masked |= sp->role[i].decodes && s[i]->line.allow;
    Tensor *id = step_new_tensor(st, T_I32, 1, rows), *gap = step_new_tensor(st, T_F32, 1, rows),
           *mask = masked ? step_new_tensor(st, T_I32, rows, (int32_t) words) : NULL;
    for (int32_t i = 0; s && masked && i < n; i++)
        if (sp->role[i].decodes)
            fill_masks(s[i], &sp->tree[tree++], sp->mask + words * (size_t) sp->role[i].slice->row0, words);
    if (masked) be->copy_in(be, mask->data, sp->mask, sizeof *sp->mask * words * (size_t) real);
    be->pick(be, id, gap, out->logits, mask, &st->rows);
    be->copy_out(be, sp->next, id->data, sizeof *sp->next * (size_t) rows);
    be->copy_out(be, sp->gap, gap->data, sizeof *sp->gap * (size_t) rows);
}

static Status run_pass(Spec *sp, Session *const *s, int32_t n, PassOut *out, Error *err)
{
    pass_start(&sp->step);
    int32_t tree = 0;
    for (int32_t i = 0; i < n; i++)
        if (sp->role[i].decodes) add_tree(sp, s[i], &sp->role[i], &sp->tree[tree++]);
    for (int32_t i = 0; i < n; i++)
        if (sp->role[i].chunk) add_chunk(sp, s[i], &sp->role[i]);
    TRY(model_pass(sp->m, &sp->step, out, 0, err));
    pick_rows(sp, s, n, out);
    return step_wait(sp->last, err);
}

/* ---- after the pass ---- */

/* Row `row` of a pass's logits, valid until the next call. */
static const float *logits_of(Spec *sp, const PassOut *out, int32_t row)
{
    Backend *be = sp->last->be;
    size_t bytes = sizeof(float) * (size_t) sp->m->vocab;
    return be->view(be, sp->view, (const uint8_t *) out->logits->data + bytes * (size_t) row, bytes);
}

/* What next_token needs at each visited row. */
typedef struct {
    Spec *sp;
    Session *s;
    const Tree *tree;
    const StepRole *role;
    const PassOut *out;
    int32_t logits0;
} Walk;

static int32_t next_token(void *ud, int32_t row, const Path *so_far)
{
    Walk *w = ud;
    Spec *sp = w->sp;
    const Rows *r = &sp->step.host;
    if (sp->picked) return sp->next[w->logits0 + row];
    int32_t path[ROWS_DECODE];
    for (int32_t t = 1; t < so_far->n; t++) path[t - 1] = w->tree->token[so_far->row[t]];
    const float *logits = logits_of(sp, w->out, w->logits0 + row);
    const uint32_t *mask = NULL;
    if (w->s->line.allow && w->s->line.allow(w->s->line.allow_ud, path, (size_t) (so_far->n - 1), sp->mask))
        mask = sp->mask;
    int64_t pos = r->pos[w->role->slice->row0 + row] + 1;
    return draw_next(&w->role->slice->draw, path, so_far->n - 1, logits, sp->m->vocab, pos, mask, sp->scratch);
}

static void end_with(Session *s, Status code, int32_t at, int32_t reason)
{
    s->line.status = code;
    if (reason == DRAW_NONE) fail(&s->line.error, code, "no token allowed at position %d", at);
    else fail(&s->line.error, code, "the logits at position %d are not finite", at);
    s->n_pend = 0;
}

/* With a simulated profile the accepted edges are drawn; the target's own choice follows at the end of the path. */
static Status choose_path(Spec *sp, Walk *w, Path *path)
{
    if (!sp->simulate) return accept_path(path, w->tree, next_token, w);
    simulate_path(path, w->tree, sp->simulate, sp->simulate_seed, sp->simulate_step++, 0);
    Path so_far = *path;
    path->bonus = next_token(w, path->row[path->n - 1], &so_far);
    if (path->bonus >= 0) return ST_OK;
    return path->bonus == DRAW_NONE ? ST_NOTOKEN : ST_BACKEND;
}

static uint8_t proposed_by(const Tree *tree, int32_t row)
{
    uint32_t bits = 0;
    for (int32_t by = 0; by < SOURCES; by++) bits |= (uint32_t) (tree->raw[row][by] > -INFINITY) << by;
    return (uint8_t) bits;
}

static void keep_block(Session *s, const Tree *tree, const Path *path)
{
    SpecStats *st = &s->stats;
    for (int32_t row = 1; row < tree->n; row++)
        for (int32_t by = 0; by < SOURCES; by++) st->drafted_by[by] += proposed_by(tree, row) >> by & 1;
    for (int32_t t = 1; t < path->n; t++) {
        uint8_t bits = s->out_by[s->line.n_out] = proposed_by(tree, path->row[t]);
        for (int32_t by = 0; by < SOURCES; by++) st->accepted_by[by] += bits >> by & 1;
        s->line.out[s->line.n_out++] = tree->token[path->row[t]];
    }
    s->line.out[s->line.n_out++] = path->bonus;
    memcpy(s->line.text + s->line.n_text, s->line.out, sizeof *s->line.out * (size_t) s->line.n_out);
    s->line.n_text += s->line.n_out;
    s->line.n_made += s->line.n_out;
    s->last_accepted = path->n - 1;
    st->generated += s->line.n_out;
    st->accepted += path->n - 1;
    st->drafted += tree->n - 1;
    st->plain += tree->n == 1;
    state_keep(&s->line.target, path->row, path->n);
}

/* How sure the target was of its last token: the distance between the two largest logits. */
static double margin_of(Spec *sp, const PassOut *out, int32_t row)
{
    if (sp->picked) return (double) sp->gap[row];
    return (double) draw_margin(logits_of(sp, out, row), sp->m->vocab, sp->scratch);
}

/* The block's tokens are the text's in any case. */
static void add_logprobs(Spec *sp, Session *s, const PassOut *out, int32_t logits0, const Path *path)
{
    s->line.has_prob = s->line.top >= 0;
    if (!s->line.has_prob) return;
    for (int32_t i = 0; i < s->line.n_out; i++)
        logprob_row(&s->line.prob[i], logits_of(sp, out, logits0 + path->row[i]), sp->m->vocab, s->line.out[i],
                    s->line.top);
    const Status st = step_wait(sp->last, &s->line.error);     /* whether all of these logits have come */
    if (st != ST_OK) s->line.status = st;
}

/* What the target chose before a row at which it has no choice is the text's: plain decoding would bring it, and then
 * fail. So does the next pass, whose first row that is. */
static bool end_before(const Tree *tree, Path *path)
{
    if (path->n == 1) return false;
    path->bonus = tree->token[path->row[--path->n]];
    return true;
}

static void finish_decoding(Spec *sp, Session *s, StepRole *t, const Tree *tree, const PassOut *out, int32_t logits0)
{
    Walk w = { sp, s, tree, t, out, logits0 };
    Path path;
    s->stats.passes++;
    const Status st = choose_path(sp, &w, &path);
    const bool whole = st == ST_OK;                /* else the last guess was right, but looks as if it were not */
    if (!whole && !end_before(tree, &path)) {
        end_with(s, st, s->line.target.P + path.n, path.bonus);
        return;
    }
    if (whole && t->proposed) accept_learn(&s->calib, tree, &path, t->proposed);
    if (whole && t->drafted && !t->alone) t->expected = accept_expected(tree, &path);
    if (whole && t->drafted && sp->count) simulate_count(sp->count, tree, &path);
    if (sp->drafter && guides(sp, s)) t->margin = margin_of(sp, out, logits0 + path.row[path.n - 1]);
    keep_block(s, tree, &path);
    add_logprobs(sp, s, out, logits0, &path);
}

static Status finish_chunk(Spec *sp, Session *s, const StepRole *t, double seconds, Error *err)
{
    if (keeps_taps(sp, s)) TRY(insert_chunk(sp, s, t->chunk, err));
    state_advance(&s->line.target, t->chunk);
    s->stats.prefill_s += seconds;
    if (line_leaves_checkpoint(&s->line)) TRY(step_checkpoint(&sp->step, &s->line.target, err));
    return ST_OK;
}

static void say_change(Spec *sp, Session *s, const char *format, ...) __attribute__((format(printf, 3, 4)));
static void say_change(Spec *sp, Session *s, const char *format, ...)
{
    char line[160];
    va_list args;
    s->stats.changes++;
    if (!sp->log) return;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    sp->log(sp->log_ud, line);
}

/* What the controller of a single decoding session learns from a step. */
static void observe(Spec *sp, Session *s, const StepRole *t, const Tree *tree)
{
    Budget *b = &s->budget;
    budget_observe(b, &sp->cost, t->drafted, tree->n - 1, s->line.n_out, t->margin);
    if (b->on == t->was_on) return;
    if (b->on)
        say_change(sp, s, "drafting from token %d on: %d rows a pass, %.2f times plain decoding expected",
                   s->line.n_made, tree->n, b->promised.tokens / b->promised.time);
    else
        say_change(sp, s, "no drafting from token %d on: next try after %d tokens", s->line.n_made, b->gap);
}

/* The same for several decoding sessions, for the step's controller. */
static void observe_all(Spec *sp, Session *const *s, int32_t n, int32_t decoding, int32_t drafted)
{
    int32_t tokens = 0, nodes = 0, got = 0, at = 0;
    double promised = 0;
    bool any = false;
    for (int32_t i = 0; i < n; i++) {
        if (!sp->role[i].decodes) continue;
        const Tree *tree = &sp->tree[at++];
        any |= guides(sp, s[i]);
        nodes += tree->n - 1;
        tokens += s[i]->line.n_out;
        s[i]->budget.margin = sp->role[i].margin;
        if (!sp->role[i].drafted) continue;
        got += s[i]->last_accepted;
        promised += sp->role[i].expected;
    }
    if (any) batch_observe(&sp->batch, &sp->cost, decoding, drafted, nodes, tokens, promised, got);
}

/* ---- passes whose rows are not kept ---- */

/* n rows of arbitrary tokens as a tree: pending rows that are never kept. The tokens differ, since experts follow from
 * them. */
Status spec_idle_pass(Spec *sp, Session *s, int32_t n, int32_t chunk, Error *err)
{
    int32_t token[ROWS_DECODE];
    for (int32_t i = 0; i < n; i++) token[i] = (int32_t) (sp->idle_token++ * 7919u % (uint32_t) sp->m->vocab);
    PassOut out;
    TRY(prepare(sp, s, err));
    pass_start(&sp->step);
    bool taps = keeps_taps(sp, s);
    Slice *sl = pass_slice(&sp->step, &s->line.target, SLICE_TREE, n, token, NULL);
    sl->taps = s->taps;
    if (taps) take_slots(s, n);
    for (int32_t i = 0; i < n; i++)
        pass_want(&sp->step, sl, i, WANT_LOGITS | (taps ? WANT_TAPS : 0), taps ? s->pend[i] : -1);
    s->n_pend = 0;
    if (chunk) {
        int32_t *zeros = calloc((size_t) chunk, sizeof *zeros);
        if (!zeros) return fail(err, ST_MEMORY, "step: out of memory");
        sl = pass_slice(&sp->step, &s->line.target, SLICE_CHAIN, chunk, zeros, NULL);
        free(zeros);
        sl->taps = sp->last->chunk_taps;
        for (int32_t i = 0; taps && i < chunk; i++) pass_want(&sp->step, sl, i, WANT_TAPS, i);
    }
    TRY(model_pass(sp->m, &sp->step, &out, 0, err));
    pick_rows(sp, NULL, 0, &out);
    return step_wait(sp->last, err);
}

typedef struct { double began, drafted, passed; Routes routes; } StepTimes;

/* Everything up to the end of the pass: a failure here leaves all sessions as they were. */
static Status draft_and_pass(Spec *sp, Session *const *s, int32_t n, int32_t decoding, int32_t drafted, PassOut *out,
                             StepTimes *t, Error *err)
{
    flush_for_step(sp, s, n);
    TRY(draft(sp, s, n, decoding, drafted, err));
    t->drafted = seconds_now();
    if (drafted) {
        flushed(sp, s, n, true);
        cost_draft(&sp->cost, drafted, t->drafted - t->began);
    }
    step_routes(&sp->step);                        /* forgets those of other passes */
    TRY(run_pass(sp, s, n, out, err));
    t->passed = seconds_now();
    t->routes = step_routes(&sp->step);
    flushed(sp, s, n, true);
    return ST_OK;
}

Status spec_step(Spec *sp, Session *const *s, int32_t n, Error *err)
{
    if (n < 1 || n > sp->sessions_max)
        return fail(err, ST_ARG, "step: %d sessions, expected 1 to %d", n, sp->sessions_max);
    for (int32_t i = 0; i < n; i++) TRY(prepare(sp, s[i], err));
    int32_t decoding = plan_turns(sp, s, n);
    bool chunk = false;
    for (int32_t i = 0; i < n; i++) chunk |= sp->role[i].chunk > 0;
    if (!chunk && decoding == 0) return ST_OK;
    StepTimes t = { .began = seconds_now() };
    PassOut out;
    int32_t drafted = plan_drafts(sp, s, n, decoding);
    for (int32_t i = 0; i < n; i++)
        if (sp->role[i].decodes || sp->role[i].chunk)
            TRY((sp->role[i].decodes ? state_writable : state_ready)(&s[i]->line.target, &sp->step.on, err));
    Status st = draft_and_pass(sp, s, n, decoding, drafted, &out, &t, err);
    if (st != ST_OK) {
        flushed(sp, s, n, false);
        for (int32_t i = 0; i < n; i++) s[i]->n_pend = 0;
        return st;
    }
    /* Tree rows come first and all want logits, so a slice's logits begin at its first row. */
    int32_t tree = 0;
    for (int32_t i = 0; i < n; i++)
        if (sp->role[i].decodes)
            finish_decoding(sp, s[i], &sp->role[i], &sp->tree[tree++], &out, sp->role[i].slice->row0);
    double t2 = seconds_now();
    if (!chunk) cost_routes(&sp->cost, sp->step.n_real, t.routes.chosen, t.routes.read);
    if (!chunk)
        cost_misses(&sp->cost, sp->step.n_real, t.routes.missed, t.routes.waited / (t.passed - t.drafted));
    if (!chunk) cost_pass(&sp->cost, sp->step.n_real, t.passed - t.drafted);
    else if (decoding == 0) cost_chunk(&sp->cost, sp->step.n_real,
                                       (t.passed - t.drafted - t.routes.waited) / sp->body);
    if (decoding > 1) observe_all(sp, s, n, decoding, drafted);
    tree = 0;
    for (int32_t i = 0; i < n; i++) {
        if (sp->role[i].decodes || sp->role[i].chunk) session_count_routes(s[i], &t.routes, sp->role[i].decodes);
        if (!sp->role[i].decodes) continue;
        s[i]->stats.decode_s += t2 - t.began;
        s[i]->stats.pass_s += t.passed - t.drafted;
        if (sp->role[i].alone && guides(sp, s[i])) observe(sp, s[i], &sp->role[i], &sp->tree[tree]);
        tree++;
    }
    /* This step's blocks are kept by now, so a failing chunk is only its own session's error. */
    for (int32_t i = 0; i < n; i++)
        if (sp->role[i].chunk)
            s[i]->line.status = finish_chunk(sp, s[i], &sp->role[i], t2 - t.drafted, &s[i]->line.error);
    return ST_OK;
}

Status spec_flush_taps(Spec *sp, Session *s, Error *err)
{
    spec_confirm(sp, s);
    return flush_waiting(sp, s, s->dm ? s->dm->hold : 0, err);
}

Status spec_commit_root(Spec *sp, Session *s, Error *err)
{
    spec_confirm(sp, s);
    TRY(state_ready(&s->line.target, &sp->step.on, err));
    sp->role[0] = (StepRole) { .chunk = 1 };
    PassOut out;
    TRY(run_pass(sp, &s, 1, &out, err));
    return finish_chunk(sp, s, &sp->role[0], 0, err);
}

Status spec_largest(Spec *sp, Session *s, Error *err)
{
    static const int32_t none[TAP_SLOTS];
    sp->largest = true;
    spec_confirm(sp, s);
    TRY(spec_idle_pass(sp, s, ROWS_DECODE, sp->chunk, err));
    if (!sp->drafter) return ST_OK;
    if (keeps_taps(sp, s)) insert_taps(sp, s, s->taps, NULL, none, TAP_SLOTS);
    Session *who[ROWS_DECODE];
    int32_t n = sp->drafter->rows ? ROWS_DECODE / sp->drafter->rows : 1;
    if (n > sp->sessions_max) n = sp->sessions_max;
    s->n_wait = s->dm ? s->dm->hold : 0;
    for (int32_t i = 0; i < n; i++) who[i] = s;
    return sp->drafter->propose(sp->drafter, sp, who, n, sp->lattice, err);
}
