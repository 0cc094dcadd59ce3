/* drafter_dflash.c - the DFlash drafter in the loop: [root, MASK, ...] of every session as one BLOCK pass, candidates
 * copied out. */
#include <stddef.h>

#include "decode/spec.h"

/* What the pass proposed; [row][rank], or [row][rank before][rank]. */
typedef struct { int32_t id[ROWS_DECODE * LAT_K]; float score[ROWS_DECODE * LAT_K * LAT_K]; } Proposal;

static void add_blocks(const ModelDrafter *d, Step *st, Session *const *s, int32_t n)
{
    int32_t token[ROWS_DECODE];
    pass_start(st);
    for (int32_t i = 0; i < n; i++) {
        token[0] = s[i]->line.text[s[i]->line.n_text - 1];
        for (int32_t r = 1; r < d->block; r++) token[r] = d->dm->mask_id;
        Slice *sl = pass_slice(st, &s[i]->draft, SLICE_BLOCK, d->block, token, NULL);
        line_draw(&s[i]->line, &sl->draw);
        for (int32_t r = 1; r < d->block; r++) pass_want(st, sl, r, WANT_LOGITS, -1);
    }
}

/* Proposes for sessions whose blocks fit into one pass. */
static Status propose_some(const ModelDrafter *d, Spec *sp, Session *const *s, int32_t n, Lattice *out, Error *err)
{
    Step *st = sp->last;
    Backend *be = st->be;
    const int32_t rows = d->block - 1;
    add_blocks(d, st, s, n);
    PassOut o;
    TRY(model_pass(d->dm, st, &o, LAT_K, err));
    Proposal *p = sp->work;
    size_t n_rows = (size_t) (n * rows);
    be->copy_out(be, p->id, o.id->data, sizeof *p->id * n_rows * LAT_K);
    be->copy_out(be, p->score, o.edge ? o.edge->data : o.score->data,
                 sizeof *p->score * n_rows * LAT_K * (o.edge ? LAT_K : 1));
    TRY(step_wait(st, err));
    int32_t depth = rows < LAT_DEPTH ? rows : LAT_DEPTH;
    for (int32_t i = 0; i < n; i++) {
        size_t at = (size_t) (i * rows) * LAT_K;
        const int32_t *id = p->id + at;
        const float *score = p->score + at * (o.edge ? LAT_K : 1);
        if (o.edge) lattice_from_pairs(&out[i], id, score, depth, LAT_K, &s[i]->calib, SOURCE_BLOCK);
        else lattice_from_scores(&out[i], id, score, depth, LAT_K, &s[i]->calib, SOURCE_BLOCK);
    }
    return ST_OK;
}

static const ModelDrafter *model_drafter(const Drafter *d)
{
    return (const ModelDrafter *) (const void *) ((const char *) d - offsetof(ModelDrafter, drafter));
}

static void prepare(Drafter *drafter, Spec *sp, Session *const *s, int32_t n)
{
    const ModelDrafter *d = model_drafter(drafter);
    if (n > ROWS_DECODE / d->block) return;        /* proposed for in several passes */
    add_blocks(d, sp->last, s, n);
    model_prepare(d->dm, sp->last, LAT_K);
}

static Status propose(Drafter *drafter, Spec *sp, Session *const *s, int32_t n, Lattice *out, Error *err)
{
    const ModelDrafter *d = model_drafter(drafter);
    int32_t most = ROWS_DECODE / d->block;
    for (int32_t done = 0; done < n; done += most) {
        int32_t part = n - done < most ? n - done : most;
        TRY(propose_some(d, sp, s + done, part, out + done, err));
    }
    return ST_OK;
}

void drafter_dflash(ModelDrafter *d, const Model *dm, int32_t block)
{
    if (block == 0) block = dm->block;
    *d = (ModelDrafter) { .drafter = { .uses_taps = true, .rows = block, .source = SOURCE_BLOCK,
                                       .work = sizeof(Proposal), .prepare = prepare, .propose = propose },
                          .dm = dm, .block = block };
}
