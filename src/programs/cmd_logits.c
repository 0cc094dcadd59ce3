/* ratoon logits: what the model computes, as plain numbers, for comparison with other programs. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "programs/program.h"

typedef struct { FILE *logits, *taps; size_t vocab, width; bool bad; } RowFiles;

typedef struct {
    RowFiles  out;
    int32_t *tokens, *prefix, *parents, *taps;
    int32_t n_tokens, n_prefix, n_parents, n_taps;
} Request;

static void on_row(void *ud, int32_t i, const float *logits, const float *taps)
{
    RowFiles *f = ud;
    (void) i;
    f->bad |= fwrite(logits, sizeof *logits, f->vocab, f->logits) != f->vocab;
    if (f->taps && taps) f->bad |= fwrite(taps, sizeof *taps, f->width, f->taps) != f->width;
}

static bool read_request(Request *r, const Options *o)
{
    if (!o->tokens || !o->out) return complain(o, "--tokens and --out are needed (see ratoon logits --help)") == 0;
    if (!ids_read(o, &r->tokens, &r->n_tokens, o->tokens, "--tokens", 0, INT32_MAX)) return false;
    if (o->prefix && !ids_read(o, &r->prefix, &r->n_prefix, o->prefix, "--prefix", 0, INT32_MAX)) return false;
    if (o->parents && !ids_read(o, &r->parents, &r->n_parents, o->parents, "--parents", -1, 63)) return false;
    if (o->taps && !ids_read(o, &r->taps, &r->n_taps, o->taps, "--taps", 0, INT32_MAX)) return false;
    if (r->n_tokens == 0) return complain(o, "--tokens: no token was given") == 0;
    if (o->parents && r->n_parents != r->n_tokens) return complain(o, "--parents: %d numbers for %d tokens", r->n_parents, r->n_tokens) == 0;
    if (o->draft && (r->n_tokens != 1 || o->parents || o->taps)) return complain(o, "-d: the drafter's logits need one anchor in --tokens, no --parents and no --taps") == 0;
    return true;
}

static FILE *create(const Options *o, const char *path)
{
    FILE *f = fopen(path, "wb");
    if (!f) complain(o, "%s: %s", path, strerror(errno));
    return f;
}

static bool finish(const Options *o, FILE *f, bool bad, const char *path)
{
    if (!f) return true;
    bad |= fclose(f) != 0;
    if (bad) complain(o, "%s: could not be written: %s", path, strerror(errno));
    return !bad;
}

static int write_rows(Program *p, Request *r, const Options *o)
{
    char taps_path[4200];
    snprintf(taps_path, sizeof taps_path, "%s.taps", o->out);
    r->out.vocab = (size_t) property(p->engine, "model.vocab");
    r->out.width = (size_t) property(p->engine, "model.dim") * (size_t) r->n_taps;
    r->out.logits = create(o, o->out);
    if (!r->out.logits) return EXIT_FAILED;
    if (r->n_taps && !(r->out.taps = create(o, taps_path))) {
        fclose(r->out.logits);
        return EXIT_FAILED;
    }
    bool draft = p->files.draft[0] != 0;
    rt_status st = draft ? rt_draft_rows(p->step, p->session, r->prefix, (size_t) r->n_prefix, r->tokens[0], on_row, &r->out)
                         : rt_rows(p->step, p->session, r->prefix, (size_t) r->n_prefix, r->tokens, r->parents, r->n_tokens, on_row, &r->out);
    bool written = finish(o, r->out.logits, r->out.bad, o->out);
    written &= finish(o, r->out.taps, r->out.bad, taps_path);
    if (st == RT_ECANCEL) return EXIT_INTERRUPTED;
    if (st != RT_OK) return complain(o, "%s", rt_step_error(p->step));
    if (!written) return EXIT_FAILED;
    note(o, "%s: float32 [%s, %zu]", o->out, draft ? "block" : "rows", r->out.vocab);
    return EXIT_FINE;
}

int cmd_logits(int argc, char **argv)
{
    Options o;
    int status;
    if (!options_read(&o, argc, argv, &status)) return status;
    if (!o.draft_type) o.draft_type = "keep";      /* compared with programs that do not quantise */
    if (!o.draft) o.draft = "none";
    bool draft = strcmp(o.draft, "none") != 0;
    if (!draft) o.draft = NULL;
    Request r = { 0 };
    Program p = { 0 };
    status = EXIT_USAGE;
    if (read_request(&r, &o)) {
        status = EXIT_FAILED;
        if (!o.ctx && r.n_tokens + r.n_prefix > 1024) o.ctx = r.n_tokens + r.n_prefix + 64;
        if (program_open(&p, &o, (draft ? WITH_DRAFTER : 0) | WITH_SESSION, r.taps, r.n_taps)) status = write_rows(&p, &r, &o);
        program_close(&p);
    }
    free(r.tokens);
    free(r.prefix);
    free(r.parents);
    free(r.taps);
    return status;
}
