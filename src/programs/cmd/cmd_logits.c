/* ratoon logits: the model's outputs as plain numbers, for comparison with other programs. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/save.h"
#include "programs/program.h"
#include "ratoon_lab.h"

typedef struct { Save logits, taps; size_t vocab, width; } RowFiles;

typedef struct {
    RowFiles  out;
    int32_t *tokens, *prefix, *parents, *taps, *before;
    int32_t n_tokens, n_prefix, n_parents, n_taps, n_before;
} Request;

static void on_row(void *ud, int32_t i, const float *logits, const float *taps)
{
    RowFiles *f = ud;
    (void) i;
    fwrite(logits, sizeof *logits, f->vocab, f->logits.file);          /* the streams remember errors */
    if (f->taps.file && taps) fwrite(taps, sizeof *taps, f->width, f->taps.file);
}

static bool read_request(Request *r, const Options *o)
{
    if (!o->tokens || !o->out) return complain(o, "--tokens and --out are needed (see ratoon logits --help)") == 0;
    if (!ids_read(o, &r->tokens, &r->n_tokens, o->tokens, "--tokens", 0, INT32_MAX)) return false;
    if (o->prefix && !ids_read(o, &r->prefix, &r->n_prefix, o->prefix, "--prefix", 0, INT32_MAX)) return false;
    if (o->parents && !ids_read(o, &r->parents, &r->n_parents, o->parents, "--parents", -1, 63)) return false;
    if (o->taps && !ids_read(o, &r->taps, &r->n_taps, o->taps, "--taps", 0, INT32_MAX)) return false;
    if (o->before && !ids_read(o, &r->before, &r->n_before, o->before, "--before", 0, INT32_MAX)) return false;
    if (r->n_tokens == 0) return complain(o, "--tokens: no token was given") == 0;
    if (o->parents && r->n_parents != r->n_tokens)
        return complain(o, "--parents: %d numbers for %d tokens", r->n_parents, r->n_tokens) == 0;
    if (o->draft && (r->n_tokens != 1 || o->parents || o->taps))
        return complain(o, "-d: the drafter's logits need one anchor in --tokens, no --parents and no --taps") == 0;
    if (o->canvas && (o->draft || o->parents || o->taps))
        return complain(o, "--canvas: goes with --prefix and --before, not with -d, --parents or --taps") == 0;
    if ((o->before && !o->canvas) || (!isnan(o->temp) && !o->before))
        return complain(o, "--before goes with --canvas, and --temp with --before") == 0;
    if (o->before && r->n_before != r->n_tokens)
        return complain(o, "--before: %d numbers for %d tokens", r->n_before, r->n_tokens) == 0;
    return true;
}

static Status open_files(Request *r, const char *logits, const char *taps, Error *err)
{
    TRY(save_open(&r->out.logits, logits, SAVE_SHARED, err));
    return r->n_taps ? save_open(&r->out.taps, taps, SAVE_SHARED, err) : ST_OK;
}

static Status close_files(Request *r, const char *logits, const char *taps, bool keep, Error *err)
{
    Status st = r->out.taps.file ? save_close(&r->out.taps, taps, keep, err) : ST_OK;
    if (!r->out.logits.file) return st;
    Status last = save_close(&r->out.logits, logits, keep && st == ST_OK, err);
    return st == ST_OK ? last : st;
}

static rt_status compute(Program *p, Request *r)
{
    size_t n = (size_t) r->n_prefix;
    if (p->o->canvas)
        return rt_canvas_rows(p->step, p->session, r->prefix, n, r->tokens, r->n_tokens, r->before,
                              isnan(p->o->temp) ? 0 : (float) p->o->temp, on_row, &r->out);
    if (p->files.draft[0]) return rt_draft_rows(p->step, p->session, r->prefix, n, r->tokens[0], on_row, &r->out);
    return rt_rows(p->step, p->session, r->prefix, n, r->tokens, r->parents, r->n_tokens,
                   RT_ROWS_LOGITS | (r->n_taps ? RT_ROWS_TAPS : 0), on_row, &r->out);
}

static int write_rows(Program *p, Request *r, const Options *o)
{
    char taps[4200];
    Error err = { 0 };
    taps_path(taps, o);
    r->out.vocab = (size_t) property(p->engine, "model.vocab");
    r->out.width = (size_t) property(p->engine, "model.dim") * (size_t) r->n_taps;
    Status opened = open_files(r, o->out, taps, &err);
    rt_status st = opened == ST_OK ? compute(p, r) : RT_OK;
    Status closed = close_files(r, o->out, taps, opened == ST_OK && st == RT_OK, &err);
    if (opened != ST_OK || closed != ST_OK) return complain(o, "%s", err.text);
    if (st == RT_ECANCEL) return EXIT_INTERRUPTED;
    if (st != RT_OK) return complain(o, "%s", rt_step_error(p->step));
    note(o, "%s: float32 [%s, %zu]", o->out, p->files.draft[0] ? "block" : o->canvas ? "canvas" : "rows", r->out.vocab);
    return EXIT_FINE;
}

int cmd_logits(int argc, char **argv)
{
    Options o;
    int status;
    if (!options_read(&o, argc, argv, &status)) return status;
    if (!o.draft_type) o.draft_type = "keep";      /* for comparison with programs that do not quantise */
    if (!o.draft) o.draft = "none";
    bool draft = strcmp(o.draft, "none") != 0;
    if (!draft) o.draft = NULL;
    Request r = { 0 };
    Program p = { 0 };
    status = EXIT_USAGE;
    if (read_request(&r, &o)) {
        status = EXIT_FAILED;
        if (!o.ctx && r.n_tokens + r.n_prefix > 1024) o.ctx = r.n_tokens + r.n_prefix + 64;
        int with = (draft ? WITH_DRAFTER : 0) | WITH_SESSION;
        if (outputs_good(&o, NULL) && program_open(&p, &o, with, r.taps, r.n_taps)) status = write_rows(&p, &r, &o);
        program_close(&p);
    }
    free(r.tokens);
    free(r.prefix);
    free(r.parents);
    free(r.taps);
    free(r.before);
    return status;
}
