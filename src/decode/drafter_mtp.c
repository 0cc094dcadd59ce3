/* drafter_mtp.c - the target's own MTP layer in the loop: a BLOCK pass per depth, each with the rows of all earlier
 * depths, whose keys and values are recomputed since nothing of a block is kept. Row 0 reads the trunk's state that the
 * session held back, row d the layer's own output of depth d - 1, which is put into a free tap slot. The other
 * candidates become side branches of the chain. */
#include <stddef.h>

#include "base/mathd.h"
#include "decode/spec.h"

/* a chain less likely than this is not drafted further: each depth costs a pass of the head */
static const double FLOOR = 0.15;

/* One chain under way. */
typedef struct {
    int32_t n, token[ROWS_DECODE], id[LAT_DEPTH * LAT_K];
    float   score[LAT_DEPTH * LAT_K];
    double  path;
    bool    on;
} Chain;

/* Slots after the held one: they are free, as nothing else waits and no pass has taken any yet. */
static int32_t slot_of(const Session *s, int32_t row) { return (s->wait[0] + row) % TAP_SLOTS; }

static void add_blocks(Step *st, Session *const *s, int32_t n, const Chain *chain, int32_t depth)
{
    pass_start(st);
    for (int32_t i = 0; i < n; i++) {
        if (!chain[i].on) continue;
        Slice *sl = pass_slice(st, &s[i]->draft, SLICE_BLOCK, depth + 1, chain[i].token, NULL);
        sl->taps = s[i]->taps;
        line_draw(&s[i]->line, &sl->draw);
        for (int32_t r = 0; r <= depth; r++)
            pass_want(st, sl, r, WANT_TAPS | (r == depth ? WANT_LOGITS : 0), slot_of(s[i], r));
    }
}

static Status deepen(const ModelDrafter *d, Spec *sp, Session *const *s, int32_t n, Chain *chain, int32_t depth,
                     Error *err)
{
    Step *st = sp->last;
    Backend *be = st->be;
    size_t width = (size_t) d->dm->dim;
    add_blocks(st, s, n, chain, depth);
    PassOut o;
    TRY(model_pass(d->dm, st, &o, LAT_K, err));
    for (int32_t i = 0, at = 0; i < n; i++) {
        if (!chain[i].on) continue;
        be->copy_out(be, chain[i].id + depth * LAT_K, (const int32_t *) o.id->data + at * LAT_K,
                     sizeof(int32_t) * LAT_K);
        be->copy_out(be, chain[i].score + depth * LAT_K, (const float *) o.score->data + at * LAT_K,
                     sizeof(float) * LAT_K);
        be->copy(be, s[i]->taps + width * (size_t) slot_of(s[i], depth + 1),
                 (const float *) o.hidden->data + width * (size_t) at, sizeof(float) * width);
        at++;
    }
    return step_wait(st, err);
}

static Status propose_some(const ModelDrafter *d, Spec *sp, Session *const *s, int32_t n, Lattice *out, Error *err)
{
    Chain *chain = sp->work;
    bool any = false;
    for (int32_t i = 0; i < n; i++) {
        /* otherwise the held state is missing: the drafter has a hole */
        chain[i] = (Chain) { .token = { s[i]->line.text[s[i]->line.n_text - 1] }, .path = 1, .on = s[i]->n_wait == 1 };
        any |= chain[i].on;
    }
    for (int32_t depth = 0; any && depth < d->block - 1; depth++) {
        TRY(deepen(d, sp, s, n, chain, depth, err));
        any = false;
        for (int32_t i = 0; i < n; i++) {
            Chain *c = &chain[i];
            if (!c->on) continue;
            c->n = depth + 1;
            c->token[depth + 1] = c->id[depth * LAT_K];
            lattice_clear(&out[i]);
            lattice_branches(&out[i], c->id, c->score, c->n, LAT_K, LAT_K, &s[i]->calib, SOURCE_MTP);
            if (c->token[depth + 1] < 0) c->on = false;
            else c->path *= mathd_exp((double) out[i].edge[depth][0][0]);
            if (c->path < FLOOR && !sp->largest) c->on = false;
            any |= c->on;
        }
    }
    for (int32_t i = 0; i < n; i++)
        if (chain[i].n == 0) lattice_clear(&out[i]);
    return ST_OK;
}

static const ModelDrafter *model_drafter(const Drafter *d)
{
    return (const ModelDrafter *) (const void *) ((const char *) d - offsetof(ModelDrafter, drafter));
}

static void prepare(Drafter *drafter, Spec *sp, Session *const *s, int32_t n)
{
    const ModelDrafter *d = model_drafter(drafter);
    Chain *chain = sp->work;
    if (n > ROWS_DECODE / d->block) return;        /* proposed for in several passes */
    for (int32_t i = 0; i < n; i++) chain[i] = (Chain) { .on = true };
    for (int32_t depth = 0; depth < d->block - 1; depth++) {
        add_blocks(sp->last, s, n, chain, depth);
        model_prepare(d->dm, sp->last, LAT_K);
    }
}

static Status propose(Drafter *drafter, Spec *sp, Session *const *s, int32_t n, Lattice *out, Error *err)
{
    const ModelDrafter *d = model_drafter(drafter);
    int32_t most = ROWS_DECODE / d->block;
    for (int32_t done = 0; done < n; done += most)
        TRY(propose_some(d, sp, s + done, n - done < most ? n - done : most, out + done, err));
    return ST_OK;
}

void drafter_mtp(ModelDrafter *d, const Model *dm, int32_t block)
{
    if (block == 0) block = dm->block;
    *d = (ModelDrafter) { .drafter = { .uses_taps = true, .rows = block, .source = SOURCE_MTP,
                                       .work = sizeof(Chain) * (ROWS_DECODE / 2), .prepare = prepare,
                                       .propose = propose },
                          .dm = dm, .block = block };
}
