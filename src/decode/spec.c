/* spec.c - one step: confirm, draft, pass, accept, keep. The order is that of doc/design.md "A step", and so is the reason for it: until
 * the pass has succeeded no session has changed but for taps that became drafter keys/values, which are committed text in any case. */
#include "decode/spec.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double) t.tv_sec + 1e-9 * (double) t.tv_nsec;
}

Status spec_open(Spec *sp, Backend *be, const Model *m, const Model *dm, Drafter *d, int32_t sessions_max, int32_t chunk, size_t scratch_bytes, Error *err)
{
    if (sessions_max < 1 || sessions_max > ROWS_DECODE || chunk < 1) return fail(err, ST_ARG, "step: %d sessions and chunks of %d, expected 1 to %d sessions", sessions_max, chunk, ROWS_DECODE);
    *sp = (Spec) { .m = m, .drafter = d, .chunk = chunk, .sessions_max = sessions_max };
    cost_reset(&sp->cost);
    company_reset(&sp->company);
    bool taps = m->tap_width > 0 && (dm ? d && d->uses_taps : true);               /* without a drafter taps are there to be looked at */
    int32_t n_max = ROWS_DECODE + chunk;
    if (n_max < TAP_SLOTS) n_max = TAP_SLOTS;      /* all waiting taps of a session in one pass */
    /* One slice more than sessions: the largest pass, which the plan runs, is a tree and a chunk of one session. */
    StepLimits lim = { .n_max = n_max, .slices_max = sessions_max + 1, .chunk = chunk < ROWS_DECODE ? ROWS_DECODE : chunk, .tap_width = taps ? m->tap_width : 0, .scratch_bytes = scratch_bytes };
    TRY(step_open(&sp->step, be, &lim, err));
    size_t n = (size_t) sessions_max;
    sp->lattice = calloc(n, sizeof *sp->lattice);
    sp->tree = calloc(n, sizeof *sp->tree);
    sp->turn = calloc(n, sizeof *sp->turn);
    sp->member = calloc(n, sizeof *sp->member);
    sp->scratch = aligned_alloc(64, (draw_scratch(m->vocab) + 63) / 64 * 64);
    sp->mask = calloc((size_t) m->vocab / 32 + 1, sizeof *sp->mask);
    sp->view = malloc(sizeof *sp->view * (size_t) m->vocab);
    if (!sp->lattice || !sp->tree || !sp->turn || !sp->member || !sp->scratch || !sp->mask || !sp->view) {
        spec_close(sp);
        return fail(err, ST_MEMORY, "step: out of memory");
    }
    return ST_OK;
}

void spec_close(Spec *sp)
{
    step_close(&sp->step);
    free(sp->lattice);
    free(sp->tree);
    free(sp->turn);
    free(sp->member);
    free(sp->scratch);
    free(sp->mask);
    free(sp->view);
    *sp = (Spec) { 0 };
}

/* ---- taps ---- */

static bool keeps_taps(const Spec *sp, const Session *s) { return sp->drafter && sp->drafter->uses_taps && s->dm && sp->budget != BUDGET_PLAIN; }

static int32_t taken(const Session *s) { return s->draft.P - s->dm->lead; }

/* The block of the last pass can no longer be shortened: its path's taps join the waiting list. Where positions are missing between
 * (the session was advanced by a step that keeps no taps), the drafter goes on behind a hole. */
static void confirm(const Spec *sp, Session *s)
{
    if (keeps_taps(sp, s)) {
        int32_t path = s->target.confirmed ? 0 : s->target.n_path;
        if (taken(s) + s->n_wait + path != s->target.P || (path > 0 && s->n_pend == 0)) {
            s->n_wait = 0;
            state_advance(&s->draft, s->target.P - taken(s));
        } else {
            for (int32_t t = 0; t < path; t++) s->wait[s->n_wait++] = s->pend[s->target.path[t]];
        }
    }
    s->n_pend = 0;
    s->target.confirmed = true;
}

/* Slots that neither wait nor belong to the pass: there are always ROWS_DECODE of them. */
static void take_slots(Session *s, int32_t n)
{
    bool used[TAP_SLOTS] = { false };
    for (int32_t j = 0; j < s->n_wait; j++) used[s->wait[j]] = true;
    for (int32_t slot = 0; s->n_pend < n; slot++)
        if (!used[slot]) s->pend[s->n_pend++] = slot;
}

/* Rows of taps become drafter keys/values: those that wait, or the rows of a chunk. next [n]: the tokens after them, which an MTP layer
 * reads beside the taps. */
static Status insert_taps(Spec *sp, Session *s, float *taps, const int32_t *slot, const int32_t *next, int32_t n, Error *err)
{
    Step *st = &sp->step;
    for (int32_t done = 0; done < n;) {
        int32_t part = n - done < TAP_SLOTS ? n - done : TAP_SLOTS;
        pass_start(st);
        Slice *sl = pass_slice(st, &s->draft, SLICE_CHAIN, part, next + done, NULL);
        sl->taps = taps;
        for (int32_t i = 0; i < part; i++) pass_want(st, sl, i, WANT_TAPS, slot ? slot[done + i] : done + i);
        TRY(model_context(s->dm, st, err));
        state_advance(&s->draft, part);
        done += part;
    }
    return ST_OK;
}

/* All but the newest `hold`, which the drafter itself starts from. */
static Status flush_waiting(Spec *sp, Session *s, int32_t hold, Error *err)
{
    int32_t n = s->n_wait - hold;
    if (n <= 0) return ST_OK;
    TRY(insert_taps(sp, s, s->taps, s->wait, s->text + taken(s) + 1, n, err));
    memmove(s->wait, s->wait + n, sizeof *s->wait * (size_t) hold);
    s->n_wait = hold;
    return ST_OK;
}

/* A chunk's taps lie in the step, so all of them are used up at once; those that are held move to the session. */
static Status insert_chunk(Spec *sp, Session *s, int32_t n, Error *err)
{
    Backend *be = sp->step.be;
    float *taps = sp->step.chunk_taps;
    int32_t held = n < s->dm->hold ? n : s->dm->hold;
    size_t row = (size_t) sp->m->tap_width;
    TRY(flush_waiting(sp, s, 0, err));
    TRY(insert_taps(sp, s, taps, NULL, s->text + taken(s) + 1, n - held, err));
    for (; s->n_wait < held; s->n_wait++) {
        s->wait[s->n_wait] = s->n_wait;
        be->copy(be, s->taps + row * (size_t) s->n_wait, taps + row * (size_t) (n - held + s->n_wait), sizeof *taps * row);
    }
    return held ? be->sync(be, err) : ST_OK;
}

/* ---- before the pass ---- */

/* The next place at which a chunk has to end, from P on: a mark, or the last token of the prompt. */
static int32_t next_stop(const Session *s)
{
    for (int32_t i = 0; i < s->n_mark; i++)
        if (s->mark[i] > s->target.P) return s->mark[i];
    return s->n_text - 1;
}

static bool is_stop(const Session *s)
{
    bool is = s->target.P == s->n_prompt - 1;
    for (int32_t i = 0; i < s->n_mark; i++) is |= s->mark[i] == s->target.P;
    return is;
}

/* The first session with prompt left gives a chunk, the others with prompt left wait their turn. */
static int32_t plan_turns(Spec *sp, Session *const *s, int32_t n)
{
    bool chunk_taken = false;
    int32_t decoding = 0;
    for (int32_t i = 0; i < n; i++) {
        Turn *t = &sp->turn[i];
        *t = (Turn) { .margin = NAN };
        s[i]->n_out = s[i]->last_accepted = 0;
        if (s[i]->status != ST_OK) continue;
        if (session_room(s[i]) < 1) {
            s[i]->status = ST_END;
            continue;
        }
        confirm(sp, s[i]);
        int32_t left = next_stop(s[i]) - s[i]->target.P;
        if (left > 0) {
            if (!chunk_taken) t->chunk = left < sp->chunk ? left : sp->chunk;
            chunk_taken = true;
        } else if (decoding < ROWS_DECODE) {
            t->decodes = true;
            decoding++;
        }
    }
    return decoding;
}

static bool guides(const Spec *sp, const Session *s) { return !s->plain && sp->budget == BUDGET_AUTO && (sp->drafter || s->ngram.head[0]); }

/* Some nodes, then twice as many, as long as the session could want still more: mostly the first are enough. */
static void grow(const Spec *sp, Growth *g, const Session *s, bool drafted, int32_t most)
{
    enum { FIRST = 8 };
    bool more = true;
    for (int32_t to = FIRST; more; to *= 2) {
        more = tree_grow(g, to < most ? to : most) == to && to < most && budget_more(&s->budget, &sp->cost, drafted, g->gain, to, most);
    }
}

/* How the text went on before, and what checking that alone would bring: to a session alone as a value, to one in company as a tree. */
static void look_up(Spec *sp, Session *s, Turn *t, Member *company, int32_t most)
{
    int32_t room = session_room(s) - 1, root = 0;
    if (s->plain || !s->ngram.head[0] || sp->simulate || sp->budget == BUDGET_PLAIN || room < 1) return;
    ngram_find(&t->guess, &s->ngram, s->text, s->n_text, room);
    if (t->guess.n == 0) return;
    t->proposed |= 1u << SOURCE_NGRAM;
    if (sp->budget != BUDGET_AUTO) return;
    const Lattice *lat = sp->lattice;
    Growth g;
    lattice_clear(sp->lattice);
    guess_join(sp->lattice, &t->guess, &s->calib);
    tree_begin(&g, sp->tree, &lat, &root, &room, 1, sp->chain);
    if (company) {
        tree_grow(&g, most);
        hope_add(&company->free, 0, g.gain, g.n);
    } else {
        grow(sp, &g, s, false, most);
        budget_choose_free(&s->budget, &sp->cost, g.gain, g.n, &t->free_value);
    }
}

/* Looks up the texts and asks who is to be drafted for: a session alone its own controller, several the one of the step. Returns how many. */
static int32_t plan_drafts(Spec *sp, Session *const *s, int32_t n, int32_t decoding)
{
    int32_t drafted = 0, at = 0;
    bool any = false;
    for (int32_t i = 0; i < n; i++) {
        Turn *t = &sp->turn[i];
        if (!t->decodes) continue;
        Member *m = &sp->member[at++];
        t->alone = decoding == 1;
        t->was_on = s[i]->budget.on;
        any |= guides(sp, s[i]);
        *m = (Member) { .may = !s[i]->plain && sp->drafter && sp->budget != BUDGET_PLAIN && session_room(s[i]) >= 2, .margin = s[i]->budget.margin, .hope = &s[i]->hope };
        look_up(sp, s[i], t, t->alone ? NULL : m, ROWS_DECODE - decoding);
        m->drafts = m->may && (sp->budget > 0 || (t->alone && budget_should_draft(&s[i]->budget, &sp->cost, t->free_value)));
    }
    if (decoding > 1 && any) company_plan(&sp->company, &sp->cost, sp->member, at);
    at = 0;
    for (int32_t i = 0; i < n; i++)
        if (sp->turn[i].decodes) drafted += sp->turn[i].drafted = sp->member[at++].drafts;
    return drafted;
}

static Status flush_for_step(Spec *sp, Session *const *s, int32_t n, Error *err)
{
    for (int32_t i = 0; i < n; i++) {
        const Turn *t = &sp->turn[i];
        if (!t->decodes || !keeps_taps(sp, s[i])) continue;
        if (t->drafted || s[i]->n_wait >= TAP_WAIT) TRY(flush_waiting(sp, s[i], s[i]->dm->hold, err));
    }
    return ST_OK;
}

/* What a session's tree promises, for when it decodes beside others. */
static void hear(Spec *sp, Session *s, const Growth *g, int32_t tree)
{
    double gain[ROWS_DECODE];
    company_hear(&sp->company, &s->hope, s->budget.margin, gain, tree_gains(gain, g, tree));
}

/* Grows the trees and returns how many nodes of all together to check. */
static int32_t choose_nodes(Spec *sp, Session *const *s, int32_t n, int32_t decoding, int32_t drafted, Growth *g)
{
    int32_t most = ROWS_DECODE - decoding, tree = 0;
    Session *one = NULL;
    double value;
    for (int32_t i = 0; i < n; i++)
        if (sp->turn[i].decodes) one = s[i];
    if (decoding == 1) grow(sp, g, one, drafted > 0, most);
    else tree_grow(g, most);
    for (int32_t i = 0; i < n; i++) {
        if (sp->turn[i].drafted) hear(sp, s[i], g, tree);
        tree += sp->turn[i].decodes;
    }
    if (decoding > 1) return company_choose(&sp->company, &sp->cost, decoding, drafted, g->gain, g->n);
    return drafted ? budget_choose(&one->budget, &sp->cost, g->gain, g->n) : budget_choose_free(&one->budget, &sp->cost, g->gain, g->n, &value);
}

/* The lattices of this step: the drafting model's for the sessions that ask it, and the guesses from the text beside them or alone. */
static Status make_lattices(Spec *sp, Session *const *s, int32_t n, const Lattice **lat, Error *err)
{
    Session *who[ROWS_DECODE];
    int32_t n_who = 0, at = 0, n_at = 0;
    for (int32_t i = 0; i < n; i++)
        if (sp->turn[i].drafted) who[n_who++] = s[i];
    if (n_who > 0) TRY(sp->drafter->propose(sp->drafter, sp, who, n_who, sp->lattice, err));
    for (int32_t j = 0; sp->simulate && j < n_who; j++) simulate_lattice(&sp->lattice[j], sp->simulate);
    int32_t alone = n_who;
    for (int32_t i = 0; i < n; i++) {
        Turn *t = &sp->turn[i];
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
        if (!sp->turn[i].decodes) continue;
        any |= sp->turn[i].proposed != 0;
        root[n_at] = s[i]->text[s[i]->n_text - 1];
        depth_max[n_at++] = session_room(s[i]) - 1;
    }
    Growth g;
    tree_begin(&g, sp->tree, lat, root, depth_max, n_at, sp->chain);
    if (any) tree_cut(&g, sp->budget == BUDGET_AUTO ? choose_nodes(sp, s, n, decoding, drafted, &g) : tree_grow(&g, sp->budget));
    for (int32_t j = 0; j < n_at; j++) tree_rows(&sp->tree[j]);
    return ST_OK;
}

/* ---- the pass ---- */

static void add_tree(Spec *sp, Session *s, Turn *t, const Tree *tree)
{
    Step *st = &sp->step;
    bool taps = keeps_taps(sp, s);
    t->slice = pass_slice(st, &s->target, SLICE_TREE, tree->n, tree->token, tree->parent);
    t->slice->taps = s->taps;
    if (taps) take_slots(s, tree->n);
    for (int32_t r = 0; r < tree->n; r++) pass_want(st, t->slice, r, WANT_LOGITS | (taps ? WANT_TAPS : 0), taps ? s->pend[r] : -1);
    session_draw(s, &t->slice->draw);
}

static void add_chunk(Spec *sp, Session *s, Turn *t)
{
    Step *st = &sp->step;
    t->slice = pass_slice(st, &s->target, SLICE_CHAIN, t->chunk, s->text + s->target.P, NULL);
    t->slice->taps = st->chunk_taps;
    for (int32_t r = 0; keeps_taps(sp, s) && r < t->chunk; r++) pass_want(st, t->slice, r, WANT_TAPS, r);
}

static Status run_pass(Spec *sp, Session *const *s, int32_t n, PassOut *out, Error *err)
{
    pass_start(&sp->step);
    int32_t tree = 0;
    for (int32_t i = 0; i < n; i++)
        if (sp->turn[i].decodes) add_tree(sp, s[i], &sp->turn[i], &sp->tree[tree++]);
    for (int32_t i = 0; i < n; i++)
        if (sp->turn[i].chunk) add_chunk(sp, s[i], &sp->turn[i]);
    return model_pass(sp->m, &sp->step, out, 0, err);
}

/* ---- after the pass ---- */

/* Row `row` of a pass's logits, until the next is asked for. */
static const float *logits_of(Spec *sp, const PassOut *out, int32_t row)
{
    Backend *be = sp->step.be;
    size_t bytes = sizeof(float) * (size_t) sp->m->vocab;
    return be->view(be, sp->view, (const uint8_t *) out->logits->data + bytes * (size_t) row, bytes);
}

/* What the walk asks at each visited row. */
typedef struct { Spec *sp; Session *s; const Tree *tree; const Turn *turn; const PassOut *out; int32_t logits0; } Walk;

static int32_t next_token(void *ud, int32_t row, const Path *so_far)
{
    Walk *w = ud;
    Spec *sp = w->sp;
    const Rows *r = &sp->step.host;
    if (w->out->next && !w->s->allow) {
        Backend *be = sp->step.be;
        const int32_t *ids = be->view(be, sp->view, w->out->next->data, sizeof(int32_t) * (size_t) r->n_logits);
        return ids[w->logits0 + row];
    }
    int32_t path[ROWS_DECODE];
    for (int32_t t = 1; t < so_far->n; t++) path[t - 1] = w->tree->token[so_far->row[t]];
    const float *logits = logits_of(sp, w->out, w->logits0 + row);
    const uint32_t *mask = NULL;
    if (w->s->allow && w->s->allow(w->s->allow_ud, path, (size_t) (so_far->n - 1), sp->mask)) mask = sp->mask;
    int64_t pos = r->pos[w->turn->slice->row0 + row] + 1;
    return draw_next(&w->turn->slice->draw, path, so_far->n - 1, logits, sp->m->vocab, pos, mask, sp->scratch);
}

static void end_with(Session *s, Status code, int32_t at, int32_t reason)
{
    s->status = code;
    if (reason == DRAW_NONE) fail(&s->error, code, "no token allowed at position %d", at);
    else fail(&s->error, code, "the logits at position %d are not finite", at);
    s->n_pend = 0;
}

/* With a simulated profile the edges that are entered are drawn, and the target's own choice follows where they end. */
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
        uint8_t bits = s->out_by[s->n_out] = proposed_by(tree, path->row[t]);
        for (int32_t by = 0; by < SOURCES; by++) st->accepted_by[by] += bits >> by & 1;
        s->out[s->n_out++] = tree->token[path->row[t]];
    }
    s->out[s->n_out++] = path->bonus;
    memcpy(s->text + s->n_text, s->out, sizeof *s->out * (size_t) s->n_out);
    s->n_text += s->n_out;
    s->n_made += s->n_out;
    s->last_accepted = path->n - 1;
    st->generated += s->n_out;
    st->accepted += path->n - 1;
    st->drafted += tree->n - 1;
    st->plain += tree->n == 1;
    state_keep(&s->target, path->row, path->n);
}

/* How sure the target was of what it said last: the two largest logits' distance. */
static double margin_of(Spec *sp, const PassOut *out, int32_t row)
{
    Draw greedy;
    int32_t id[2];
    float logit[2];
    greedy.p = draw_default();
    greedy.n_tail = greedy.n_bias = 0;
    draw_top_k(id, logit, 2, &greedy, logits_of(sp, out, row), sp->m->vocab, 0, sp->scratch);
    return id[1] < 0 ? NAN : (double) logit[0] - (double) logit[1];
}

static void finish_decoding(Spec *sp, Session *s, Turn *t, const Tree *tree, const PassOut *out, int32_t logits0)
{
    Walk w = { sp, s, tree, t, out, logits0 };
    Path path;
    s->stats.passes++;
    Status st = choose_path(sp, &w, &path);
    if (st != ST_OK) {
        end_with(s, st, s->target.P + path.n, path.bonus);
        return;
    }
    if (t->proposed) accept_learn(&s->calib, tree, &path, t->proposed);
    if (t->drafted && !t->alone) t->hoped = accept_hoped(tree, &path);
    if (t->drafted && sp->count) simulate_count(sp->count, tree, &path);
    if (sp->drafter && guides(sp, s) && !out->next) t->margin = margin_of(sp, out, logits0 + path.row[path.n - 1]);
    keep_block(s, tree, &path);
    for (int32_t i = 0; i < s->n_out && s->top >= 0; i++) logprob_row(&s->prob[i], logits_of(sp, out, logits0 + path.row[i]), sp->m->vocab, s->out[i], s->top);
}

static Status finish_chunk(Spec *sp, Session *s, const Turn *t, double seconds, Error *err)
{
    if (keeps_taps(sp, s)) TRY(insert_chunk(sp, s, t->chunk, err));
    state_advance(&s->target, t->chunk);
    s->stats.prefill_s += seconds;
    if (is_stop(s)) TRY(state_checkpoint(&s->target, &sp->step, err));
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

/* What the controller of a session alone learns from a step. */
static void observe(Spec *sp, Session *s, const Turn *t, const Tree *tree)
{
    Budget *b = &s->budget;
    budget_observe(b, &sp->cost, t->drafted, tree->n - 1, s->n_out, t->margin);
    if (b->on == t->was_on) return;
    if (b->on) say_change(sp, s, "drafting from token %d on: %d rows a pass, %.2f times plain decoding expected", s->n_made, tree->n, b->promised.tokens / b->promised.time);
    else say_change(sp, s, "no drafting from token %d on: next try after %d tokens", s->n_made, b->gap);
}

/* The same of all that decode, for the controller of the step. */
static void observe_all(Spec *sp, Session *const *s, int32_t n, int32_t decoding, int32_t drafted)
{
    int32_t tokens = 0, nodes = 0, got = 0, at = 0;
    double promised = 0;
    bool any = false;
    for (int32_t i = 0; i < n; i++) {
        if (!sp->turn[i].decodes) continue;
        const Tree *tree = &sp->tree[at++];
        any |= guides(sp, s[i]);
        nodes += tree->n - 1;
        tokens += s[i]->n_out;
        s[i]->budget.margin = sp->turn[i].margin;
        if (!sp->turn[i].drafted) continue;
        got += s[i]->last_accepted;
        promised += sp->turn[i].hoped;
    }
    if (any) company_observe(&sp->company, &sp->cost, decoding, drafted, nodes, tokens, promised, got);
}

/* ---- passes that bring nothing ---- */

/* n rows of any tokens as a tree: pending rows that are never kept. The pass moves the path noted before it, so that path is final. */
Status spec_idle_pass(Spec *sp, Session *s, int32_t n, int32_t chunk, Error *err)
{
    int32_t token[ROWS_DECODE] = { 0 };
    PassOut out;
    pass_start(&sp->step);
    bool taps = keeps_taps(sp, s);
    Slice *sl = pass_slice(&sp->step, &s->target, SLICE_TREE, n, token, NULL);
    sl->taps = s->taps;
    confirm(sp, s);
    if (taps) take_slots(s, n);
    for (int32_t i = 0; i < n; i++) pass_want(&sp->step, sl, i, WANT_LOGITS | (taps ? WANT_TAPS : 0), taps ? s->pend[i] : -1);
    s->n_pend = 0;
    if (chunk) {
        int32_t *zeros = calloc((size_t) chunk, sizeof *zeros);
        if (!zeros) return fail(err, ST_MEMORY, "step: out of memory");
        sl = pass_slice(&sp->step, &s->target, SLICE_CHAIN, chunk, zeros, NULL);
        free(zeros);
        sl->taps = sp->step.chunk_taps;
        for (int32_t i = 0; taps && i < chunk; i++) pass_want(&sp->step, sl, i, WANT_TAPS, i);
    }
    return model_pass(sp->m, &sp->step, &out, 0, err);
}

/* Fills the cost table before the first decoding pass: passes of different widths and a proposal, each at the fastest of up to five rounds,
 * since whatever else runs on the machine only adds. It takes about a second; a model whose passes are slow gets what fits into that or
 * into three plain passes, so the widths that show most come first, and the rest of the table is learned while decoding. */
static Status measure(Spec *sp, Session *s, Error *err)
{
    enum { ROUNDS = 5 };
    double best[COST_WIDTHS], draft_best = 1e9, limit = 1, t0 = now();
    size_t n = COST_WIDTHS;
    for (size_t i = 0; i < n; i++) best[i] = INFINITY;
    sp->measured = true;
    TRY(state_writable(&s->target, err));
    TRY(flush_waiting(sp, s, s->dm ? s->dm->hold : 0, err));
    for (int32_t round = 0; round < ROUNDS && (round == 0 || now() - t0 < limit); round++) {
        double start = now(), end;
        TRY(sp->drafter->propose(sp->drafter, sp, &s, 1, sp->lattice, err));
        if ((end = now()) - start < draft_best) draft_best = end - start;
        for (size_t i = 0; i < n; i++) {
            if (i > 0 && now() - t0 > limit) {
                if (round == 0) n = i;
                break;
            }
            if (s->target.P + cost_widths[i] > s->ctx) continue;
            start = now();
            TRY(spec_idle_pass(sp, s, cost_widths[i], 0, err));
            if ((end = now()) - start < best[i]) best[i] = end - start;
            if (i == 0 && 3 * best[0] > limit) limit = 3 * best[0];
        }
    }
    for (size_t i = 0; i < n; i++) cost_set_pass(&sp->cost, cost_widths[i], best[i]);
    cost_set_draft(&sp->cost, draft_best);
    return ST_OK;
}

Status spec_step(Spec *sp, Session *const *s, int32_t n, Error *err)
{
    if (n < 1 || n > sp->sessions_max) return fail(err, ST_ARG, "step: %d sessions, expected 1 to %d", n, sp->sessions_max);
    int32_t decoding = plan_turns(sp, s, n);
    bool chunk = false;
    for (int32_t i = 0; i < n; i++) chunk |= sp->turn[i].chunk > 0;
    if (!chunk && decoding == 0) return ST_OK;
    for (int32_t i = 0; i < n && sp->drafter && sp->budget == BUDGET_AUTO && !sp->measured; i++)
        if (sp->turn[i].decodes) TRY(measure(sp, s[i], err));
    double t0 = now();
    int32_t drafted = plan_drafts(sp, s, n, decoding);
    TRY(flush_for_step(sp, s, n, err));
    for (int32_t i = 0; i < n; i++)
        if (sp->turn[i].decodes || sp->turn[i].chunk) TRY((sp->turn[i].decodes ? state_writable : state_ready)(&s[i]->target, err));
    TRY(draft(sp, s, n, decoding, drafted, err));
    PassOut out;
    double t1 = now();
    if (drafted) cost_draft(&sp->cost, drafted, t1 - t0);
    Status st = run_pass(sp, s, n, &out, err);
    double passed = now();
    if (st != ST_OK) {
        for (int32_t i = 0; i < n; i++) s[i]->n_pend = 0;
        return st;
    }
    /* Rows of trees come first and all want logits, so a slice's logits begin at its first row. */
    int32_t tree = 0;
    for (int32_t i = 0; i < n; i++)
        if (sp->turn[i].decodes) finish_decoding(sp, s[i], &sp->turn[i], &sp->tree[tree++], &out, sp->turn[i].slice->row0);
    double t2 = now();
    if (!chunk) cost_pass(&sp->cost, sp->step.host.n, t2 - t1);
    if (decoding > 1) observe_all(sp, s, n, decoding, drafted);
    tree = 0;
    for (int32_t i = 0; i < n; i++) {
        if (!sp->turn[i].decodes) continue;
        s[i]->stats.decode_s += t2 - t0;
        s[i]->stats.pass_s += passed - t1;
        if (sp->turn[i].alone && guides(sp, s[i])) observe(sp, s[i], &sp->turn[i], &sp->tree[tree]);
        tree++;
    }
    /* From here blocks of this step are kept, so whatever happens to the chunk is its own session's affair. */
    for (int32_t i = 0; i < n; i++)
        if (sp->turn[i].chunk) s[i]->status = finish_chunk(sp, s[i], &sp->turn[i], t2 - t1, &s[i]->error);
    return ST_OK;
}

Status spec_flush_taps(Spec *sp, Session *s, Error *err)
{
    confirm(sp, s);
    return flush_waiting(sp, s, s->dm ? s->dm->hold : 0, err);
}

Status spec_commit_root(Spec *sp, Session *s, Error *err)
{
    confirm(sp, s);
    TRY(state_ready(&s->target, err));
    sp->turn[0] = (Turn) { .chunk = 1 };
    PassOut out;
    TRY(run_pass(sp, &s, 1, &out, err));
    return finish_chunk(sp, s, &sp->turn[0], 0, err);
}

Status spec_largest(Spec *sp, Session *s, Error *err)
{
    static const int32_t none[TAP_SLOTS];
    TRY(spec_idle_pass(sp, s, ROWS_DECODE, sp->chunk, err));
    if (!sp->drafter) return ST_OK;
    if (keeps_taps(sp, s)) TRY(insert_taps(sp, s, s->taps, NULL, none, TAP_SLOTS, err));
    Session *who[ROWS_DECODE];
    int32_t n = sp->drafter->rows ? ROWS_DECODE / sp->drafter->rows : 1;
    if (n > sp->sessions_max) n = sp->sessions_max;
    s->n_wait = s->dm ? s->dm->hold : 0;
    for (int32_t i = 0; i < n; i++) who[i] = s;
    return sp->drafter->propose(sp->drafter, sp, who, n, sp->lattice, err);
}
