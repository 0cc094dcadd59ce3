/* test_oracle.c - our passes against the results of transformers: the models of tiny.h, the expectations of
 * tests/oracle/expect. Each of our values must lie within 1e-4 of the expected one (logits' deviation is 2): rows of a
 * chain in chunks, rows of a tree in one pass, taps, and a drafter's block from features that our own target pass
 * stored. Quantised mixtures are compared with llama.cpp, layer by layer, by how much rounding may matter. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "decode/diffuse.h"
#include "decode/inspect.h"
#include "decode/tree.h"
#include "model/model.h"
#include "remove_tree.h"
#include "tiny.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
/* last: its macro fail() would hide the declaration in base/error.h */
#include <cmocka.h>

static const double TOLERANCE = 1e-4;
enum { CHUNK = 29, RING = 512, WIDEST = 16 };

/* ---- expectation files (the format is described in tests/oracle/oracle.py) ---- */

/* layer: -1 logits, -2 selector scores (previous: the token before), else the state after that layer. */
typedef struct { int32_t row, layer, previous, n, id[WIDEST]; double mean, absmax, value[WIDEST]; } Probe;
typedef struct {
    char    name[32];
    int32_t n_prefix, n_tokens, n_parents, n_taps, n_probes;
    int32_t prefix[512], tokens[640], parents[ROWS_DECODE], taps[TAPS_MAX];
    double  noise[TAPS_MAX];                       /* quantised models, of each tap: llama.cpp from exact arithmetic */
    bool    canvas;                                /* the tokens are one, after a step of `before` at t */
    int32_t before[CANVAS_MAX], n_before, seed, steps;         /* steps: the tokens are written after the prefix */
    float   t;
    bool    alike;                                 /* and inputs of products are rounded as llama.cpp does it */
    Probe  *probe;
} Case;
typedef struct { bool draft; char name[32], file[4][32]; int32_t n_files, n_cases; Case cases[16]; } Expect;

static int32_t read_ids(int32_t *out, int32_t cap)
{
    int32_t n = atoi(strtok(NULL, " "));
    assert_in_range(n, 1, cap);
    for (int32_t i = 0; i < n; i++) out[i] = atoi(strtok(NULL, " "));
    return n;
}

static void read_noise(Case *c)
{
    assert_int_equal(atoi(strtok(NULL, " ")), c->n_taps);
    for (int32_t i = 0; i < c->n_taps; i++) c->noise[i] = atof(strtok(NULL, " "));
}

static void read_probe(Case *c, const char *kind)
{
    c->probe = realloc(c->probe, sizeof *c->probe * (size_t) (c->n_probes + 1));
    assert_non_null(c->probe);
    Probe *p = &c->probe[c->n_probes++];
    *p = (Probe) {.row = atoi(strtok(NULL, " ")), .layer = -1};
    if (strcmp(kind, "tap") == 0) p->layer = atoi(strtok(NULL, " "));
    if (strcmp(kind, "pair") == 0) p->layer = -2, p->previous = atoi(strtok(NULL, " "));
    else p->mean = atof(strtok(NULL, " ")), p->absmax = atof(strtok(NULL, " "));
    p->n = atoi(strtok(NULL, " "));
    assert_in_range(p->n, 1, WIDEST);
    for (int32_t i = 0; i < p->n; i++) p->id[i] = atoi(strtok(NULL, " ")), p->value[i] = atof(strtok(NULL, " "));
}

static Expect *read_expect(const char *name)
{
    char path[256], *line = NULL;
    size_t cap = 0;
    snprintf(path, sizeof path, "tests/oracle/expect/%s.txt", name);
    FILE *f = fopen(path, "r");
    if (!f) fail_msg("%s is missing (tests run in the repository's root)", path);
    Expect *e = calloc(1, sizeof *e);
    assert_non_null(e);
    Case *c = NULL;
    while (getline(&line, &cap, f) > 0) {
        line[strcspn(line, "\n")] = 0;
        if (line[0] == '#') continue;
        const char *kind = strtok(line, " ");
        if (strcmp(kind, "model") == 0 || strcmp(kind, "draft") == 0) {
            e->draft = kind[0] == 'd';
            snprintf(e->name, sizeof e->name, "%s", strtok(NULL, " "));
            for (char *w; (w = strtok(NULL, " ")) && e->n_files < 4; )
                snprintf(e->file[e->n_files++], sizeof e->file[0], "%s", w);
        } else if (strcmp(kind, "case") == 0) {
            assert_true(e->n_cases < 16);
            c = &e->cases[e->n_cases++];
            snprintf(c->name, sizeof c->name, "%s", strtok(NULL, " "));
        } else if (strcmp(kind, "prefix") == 0) c->n_prefix = read_ids(c->prefix, 512);
        else if (strcmp(kind, "tokens") == 0) c->n_tokens = read_ids(c->tokens, 640);
        else if (strcmp(kind, "parents") == 0) c->n_parents = read_ids(c->parents, ROWS_DECODE);
        else if (strcmp(kind, "taps") == 0) c->n_taps = read_ids(c->taps, TAPS_MAX);
        else if (strcmp(kind, "noise") == 0) read_noise(c);
        else if (strcmp(kind, "canvas") == 0) c->canvas = true, c->t = 1;
        else if (strcmp(kind, "before") == 0) c->n_before = read_ids(c->before, CANVAS_MAX);
        else if (strcmp(kind, "cooled") == 0) c->t = (float) atof(strtok(NULL, " "));
        else if (strcmp(kind, "write") == 0) c->seed = atoi(strtok(NULL, " ")), c->steps = atoi(strtok(NULL, " "));
        else read_probe(c, kind);
    }
    free(line);
    fclose(f);
    return e;
}

static void free_expect(Expect *e)
{
    for (int32_t i = 0; i < e->n_cases; i++) free(e->cases[i].probe);
    free(e);
}

/* ---- running ---- */

static char folder[] = "/tmp/ratoon-oracle-XXXXXX";

typedef struct { Backend *be; Gguf *gguf; Safetensors *st; Model *m; } Opened;
#define OK(call) do { if ((call) != ST_OK) fail_msg("%s", err.text); } while (0)

static Opened open_model(Backend *be, const char *path, bool hf, const Model *target)
{
    /* keys and values as the other programs have them */
    static const ModelOptions options = {.k_type = T_F32, .v_type = T_F32, .keep_types = true};
    Error  err;
    Opened o = {.be = be};
    if (hf) OK(safetensors_open(&o.st, path, &err));
    else OK(gguf_open(&o.gguf, path, &err));
    Weights w = {o.gguf, o.st};
    Stages stages = stages_one(be);
    OK(model_open(&o.m, &stages, &w, target, &options, &err));
    return o;
}

static void close_model(Opened *o)
{
    model_close(o->m);
    gguf_close(o->gguf);
    if (o->st) safetensors_close(o->st);
}

static Step open_step(Backend *be)
{
    Error err;
    Step  s;
    StepLimits limits = {.n_max = CANVAS_MAX, .slices_max = 1, .scratch_bytes = (size_t) 32 << 20};
    Stages stages = stages_one(be);
    OK(step_open(&s, &stages, &limits, &err));
    return s;
}

typedef struct { float *logits, *taps; } Results;                           /* [rows, vocab] [rows, tap_width], host */

/* One pass of n rows of a target; want: 0, or WANT_* for all rows. taps: backend memory for n rows, also copied to
 * out. */
static void pass(const Model *m, Step *s, State *st, SliceKind kind, int32_t n, const int32_t *token,
                 const int32_t *parent, int32_t want, float *taps, Results *out, int32_t row)
{
    Error   err;
    PassOut got;
    pass_start(s);
    Slice *sl = pass_slice(s, st, kind, n, token, parent);
    sl->taps = taps;
    for (int32_t i = 0; i < n && want; i++) pass_want(s, sl, i, want, want & WANT_TAPS ? i : -1);
    OK(model_pass(m, s, &got, 0, &err));
    if (out && want & WANT_LOGITS)
        s->be->copy_out(s->be, out->logits + (size_t) row * (size_t) m->vocab, got.logits->data,
                        sizeof(float) * (size_t) n * (size_t) m->vocab);
    if (out && want & WANT_TAPS)
        s->be->copy_out(s->be, out->taps + (size_t) row * (size_t) m->tap_width, taps,
                        sizeof(float) * (size_t) n * (size_t) m->tap_width);
    OK(s->be->sync(s->be, &err));
    if (kind == SLICE_CHAIN) state_advance(st, n);
}

static double difference(double got, double expected, double worst)
{
    double d = fabs(got - expected);
    return d > worst || isnan(d) ? d : worst;
}

/* The largest difference to an expected row: in its mean, largest magnitude and every named value; for logits no other
 * value may exceed the eighth largest. Tokens that a drafter's head lacks (-infinity) do not count. */
static double compare(const Probe *p, const float *x, int32_t n)
{
    double sum = 0, absmax = 0, other = -INFINITY, worst = 0;
    int32_t there = 0;
    for (int32_t i = 0; i < n; i++) {
        if (p->layer == -1 && x[i] == -INFINITY) continue;
        there++;
        sum += (double) x[i];
        absmax = fmax(absmax, fabs((double) x[i]));
        bool top = false;
        for (int32_t j = 0; j < 8 && j < p->n; j++) top |= p->id[j] == i;
        if (!top) other = fmax(other, (double) x[i]);
    }
    worst = difference(sum / there, p->mean, difference(absmax, p->absmax, 0));
    for (int32_t j = 0; j < p->n; j++) {
        assert_in_range(p->id[j], 0, n - 1);
        worst = difference((double) x[p->id[j]], p->value[j], worst);
    }
    return p->layer == -1 && p->n > 8 ? fmax(worst, other - p->value[7]) : worst;
}

/* A canvas's second step reads a mean of embeddings that nearly cancel each other, brought to the usual size. */
static void report(const char *file, const Case *c, double worst, const Probe *at)
{
    const double most = c->n_before ? 4 * TOLERANCE : TOLERANCE;
    print_message("  %-24s %-9s within %.1e\n", file, c->name, worst);
    if (!(worst <= most))
        fail_msg("%s %s: row %d layer %d differs by %g, expected at most %g", file, c->name, at->row, at->layer, worst,
                 most);
}

/* ---- targets ---- */

/* The values that p is about. */
static const float *row_of(const Probe *p, const Case *c, const Model *m, const Results *out)
{
    for (int32_t j = 0; j < c->n_taps; j++)
        if (c->taps[j] == p->layer)
            return out->taps + (size_t) p->row * (size_t) m->tap_width + (size_t) j * (size_t) m->dim;
    return out->logits + (size_t) p->row * (size_t) m->vocab;
}

static void judge_exact(const char *file, const Case *c, const Model *m, const Results *out)
{
    double worst = 0;
    const Probe *where = c->probe;
    for (int32_t i = 0; i < c->n_probes; i++) {
        const Probe *p = &c->probe[i];
        double d = compare(p, row_of(p, c, m, out), p->layer < 0 ? m->vocab : m->dim);
        if (!(d <= worst)) worst = d, where = p;
    }
    report(file, c, worst, where);
}

/* How far the known values of a layer's rows are from the expected ones, as a share of their norm, and in how many
 * rows they are the same. */
static double share_apart(int32_t *rows, int32_t *same, const Case *c, int32_t layer, const Model *m,
                          const Results *out)
{
    double apart = 0, norm = 0;
    *rows = *same = 0;
    for (int32_t i = 0; i < c->n_probes; i++) {
        const Probe *p = &c->probe[i];
        if (p->layer != layer) continue;
        double d2 = 0, x2 = 0;
        for (int32_t k = 0; k < p->n; k++) {
            double d = (double) row_of(p, c, m, out)[p->id[k]] - p->value[k];
            d2 += d * d, x2 += p->value[k] * p->value[k];
        }
        apart += d2, norm += x2;
        ++*rows, *same += d2 < TOLERANCE * TOLERANCE * x2;
    }
    return sqrt(apart / norm);
}

/* Both programs round the inputs of products. Two roundings that know nothing of each other take their results 1.4
 * times as far apart as one of them takes llama.cpp's from exact arithmetic: 1.5, since few values are known. In blocks
 * of 256 both round alike: there a difference comes from a sum that another order put on the other side of a rounding,
 * which most rows are spared. */
static void judge_quantised(const char *file, const Case *c, const Model *m, const Results *out)
{
    for (int32_t j = 0; j < c->n_taps; j++) {
        int32_t rows, same;
        double  apart = share_apart(&rows, &same, c, c->taps[j], m, out);
        print_message("  %-14s %-9s layer %d apart by %.5f, llama.cpp from exact %.5f, %d of %d rows the same\n", file,
                      c->name, c->taps[j], apart, c->noise[j], same, rows);
        if (!(apart <= 1.5 * c->noise[j]) || (c->alike && 2 * same < rows))
            fail_msg("%s %s: layer %d differs by %g of its norm, expected at most %g; %d of %d rows are the same", file,
                     c->name, c->taps[j], apart, 1.5 * c->noise[j], same, rows);
    }
}

/* A step of a canvas; out NULL: only for what the next one is conditioned on. */
static void canvas_pass(const Model *m, Step *s, const State *st, const int32_t *token, float t, float *soft,
                        bool conditioned, Results *out)
{
    const int32_t n = m->diffusion.canvas;
    Error   err;
    PassOut got;
    pass_start(s);
    Slice *sl = pass_slice(s, st, SLICE_BLOCK, n, token, NULL);
    sl->canvas = (CanvasDraw) {.t = t, .greedy = true};
    for (int32_t i = 0; out && i < n; i++) pass_want(s, sl, i, WANT_LOGITS, -1);
    pass_canvas(s, soft, soft, conditioned);
    OK(model_pass(m, s, &got, 0, &err));
    if (out)
        s->be->copy_out(s->be, out->logits, got.logits->data, sizeof(float) * (size_t) n * (size_t) m->vocab);
    OK(s->be->sync(s->be, &err));
}

typedef struct { float *logits; int32_t vocab, n; } SeenRows;

static void keep_row(void *ud, int32_t i, const float *logits, const float *taps)
{
    SeenRows *r = ud;
    assert_int_equal(i, r->n++);
    assert_null(taps);
    memcpy(r->logits + (size_t) i * (size_t) r->vocab, logits, sizeof *logits * (size_t) r->vocab);
}

/* What programs get of a canvas (inspect_canvas) is the same to the bit. */
static void look_inside(const char *file, const Case *c, const Model *m, const Results *want)
{
    Error   err;
    Session s;
    Spec    sp;
    const size_t bytes = sizeof(float) * (size_t) c->n_tokens * (size_t) m->vocab;
    SeenRows r = {malloc(bytes), m->vocab, 0};
    assert_non_null(r.logits);
    OK(session_open(&s, m, NULL, c->n_prefix + 1, 0, 0, false, &err));
    OK(spec_open(&sp, m, NULL, NULL, 1, CHUNK, 1, (size_t) 32 << 20, &err));
    for (int32_t twice = 0; twice < 2; twice++) {
        r.n = 0;
        OK(inspect_canvas(&sp, &s, c->prefix, c->n_prefix, c->tokens, c->n_tokens, c->n_before ? c->before : NULL, c->t,
                          keep_row, &r, &err));
        assert_int_equal(r.n, c->n_tokens);
        if (memcmp(r.logits, want->logits, bytes) != 0) fail_msg("%s %s: inspect_canvas differs", file, c->name);
    }
    spec_close(&sp);
    session_close(&s);
    free(r.logits);
}

static void run_canvas(const char *file, const Case *c, const Model *m, Step *s)
{
    Error    err;
    State    st;
    Backend *be = stages_last(&m->stages);
    const int32_t n = m->diffusion.canvas;
    const size_t soft_bytes = sizeof(float) * (size_t) n * (size_t) m->dim;
    assert_int_equal(c->n_tokens, n);
    OK(state_open(&st, &m->stages, m->spec, m->n_layers, c->n_prefix, 0, n, 0, &err));
    float *soft = be->alloc(be, soft_bytes, "canvas");
    Results out = {malloc(sizeof(float) * (size_t) n * (size_t) m->vocab), NULL};
    assert_true(soft && out.logits);
    for (int32_t at = 0; at < c->n_prefix; at += CHUNK)
        pass(m, s, &st, SLICE_CHAIN, c->n_prefix - at < CHUNK ? c->n_prefix - at : CHUNK, c->prefix + at, NULL, 0, NULL,
             NULL, 0);
    if (c->n_before) canvas_pass(m, s, &st, c->before, c->t, soft, false, NULL);
    canvas_pass(m, s, &st, c->tokens, 1, soft, c->n_before > 0, &out);
    judge_exact(file, c, m, &out);
    look_inside(file, c, m, &out);
    free(out.logits);
    be->release(be, soft, soft_bytes);
    state_close(&st);
}

/* What generate() writes with our noise. */
static void run_write(const char *file, const Case *c, const Model *m)
{
    Error   err;
    Session s, *one = &s;
    Spec    sp;
    int32_t n = 0, text[640];
    OK(session_open(&s, m, NULL, c->n_prefix + c->n_tokens, 0, 0, false, &err));
    OK(spec_open(&sp, m, NULL, NULL, 1, CHUNK, 1, (size_t) 32 << 20, &err));
    OK(session_prompt(&s, c->prefix, c->n_prefix, &err));
    s.line.sampling.seed = (uint64_t) c->seed;
    while (n < c->n_tokens) {
        OK(diffuse_step(&sp, &one, 1, &err));
        assert_int_equal(s.line.status, ST_OK);
        for (int32_t i = 0; i < s.line.n_out; i++) text[n++] = s.line.out[i];
    }
    print_message("  %-24s %-9s %d tokens in %lld steps\n", file, c->name, n, (long long) s.stats.steps);
    assert_int_equal(n, c->n_tokens);
    assert_memory_equal(text, c->tokens, sizeof *text * (size_t) n);
    assert_int_equal(s.stats.steps, c->steps);
    spec_close(&sp);
    session_close(&s);
}

static void run_case(const char *file, const Case *c, int32_t chunk, Model *m, Step *s)
{
    Error   err;
    Backend *be = stages_last(&m->stages);
    State   st;
    if (c->canvas || c->steps) {
        if (c->canvas) run_canvas(file, c, m, s);
        else run_write(file, c, m);
        return;
    }
    OK(model_set_taps(m, c->taps, c->n_taps, &err));
    OK(state_open(&st, &m->stages, m->spec, m->n_layers, c->n_prefix + c->n_tokens, 0, 0, 0, &err));
    size_t n = (size_t) c->n_tokens, tap_bytes = sizeof(float) * ROWS_DECODE * (size_t) m->tap_width;
    float *taps = be->alloc(be, tap_bytes + 64, "taps");
    Results out = {malloc(n * (size_t) m->vocab * sizeof(float)),
                   malloc((n * (size_t) m->tap_width + 1) * sizeof(float))};
    assert_true(taps && out.logits && out.taps);
    for (int32_t at = 0; at < c->n_prefix; at += chunk)
        pass(m, s, &st, SLICE_CHAIN, c->n_prefix - at < chunk ? c->n_prefix - at : chunk, c->prefix + at, NULL, 0, NULL,
             NULL, 0);
    int32_t want = WANT_LOGITS | (c->n_taps ? WANT_TAPS : 0);
    if (c->n_parents) pass(m, s, &st, SLICE_TREE, c->n_tokens, c->tokens, c->parents, want, taps, &out, 0);
    for (int32_t at = 0; at < c->n_tokens && !c->n_parents; at += chunk)
        pass(m, s, &st, SLICE_CHAIN, c->n_tokens - at < chunk ? c->n_tokens - at : chunk, c->tokens + at, NULL, want,
             taps, &out, at);
    if (c->noise[0] > 0) judge_quantised(file, c, m, &out);
    else judge_exact(file, c, m, &out);
    free(out.logits);
    free(out.taps);
    be->release(be, taps, tap_bytes + 64);
    state_close(&st);
}

static void test_model(void **state)
{
    Expect *e = read_expect(*state);
    for (int32_t f = 0; f < e->n_files; f++) {
        char  path[256];
        Error err;
        TinyModel tiny;
        Backend *be;
        snprintf(path, sizeof path, "%s/%s.gguf", folder, e->file[f]);
        assert_true(tiny_model_named(&tiny, e->file[f]));
        OK(tiny_model_write(&tiny, path, &err));
        OK(backend_open(&be, "cpu", &(BackendOptions) {0}, &err));
        Opened o = open_model(be, path, false, NULL);
        Step step = open_step(be);
        for (int32_t i = 0; i < e->n_cases; i++) run_case(e->file[f], &e->cases[i], CHUNK, o.m, &step);
        static const int32_t chunks[] = {1, 3, 7};
        for (size_t i = 0; i < sizeof chunks / sizeof *chunks; i++)
            run_case(e->file[f], &e->cases[0], chunks[i], o.m, &step);
        step_close(&step);
        close_model(&o);
        be->close(be);
        remove(path);
    }
    free_expect(e);
}

static bool in_blocks_of_32(const Gguf *g)
{
    for (int32_t i = 0; i < gguf_n_tensors(g); i++)
        if (type_info(gguf_tensor_at(g, i)->type)->block == 32) return true;
    return false;
}

/* A case is a file in a type or recipe of that name. */
static void test_quantised(void **state)
{
    Expect *e = read_expect(*state);
    for (int32_t i = 0; i < e->n_cases; i++) {
        Case *c = &e->cases[i];
        char  path[256];
        Error err;
        TinyModel tiny;
        Backend *be;
        snprintf(path, sizeof path, "%s/%s-%s.gguf", folder, e->name, c->name);
        assert_true(tiny_model_named(&tiny, e->name) && tiny_model_types(&tiny, c->name));
        OK(tiny_model_write(&tiny, path, &err));
        OK(backend_open(&be, "cpu", &(BackendOptions) {0}, &err));
        Opened o = open_model(be, path, false, NULL);
        Step step = open_step(be);
        c->alike = !in_blocks_of_32(o.gguf);
        run_case(e->name, c, CHUNK, o.m, &step);
        step_close(&step);
        close_model(&o);
        be->close(be);
        remove(path);
    }
    free_expect(e);
}

/* ---- drafters ---- */

/* Our selector's score of (previous, id) in row `row` of the block; NaN if id is not among its candidates. Rows of the
 * outputs start at 1. */
static double pair_score(const int32_t *id, const float *edge, int32_t row, int32_t previous, int32_t token)
{
    const int32_t *now = id + (row - 1) * LAT_K;
    for (int32_t a = 0; a < (row == 1 ? 1 : LAT_K); a++)
        for (int32_t b = 0; b < LAT_K; b++)
            if ((row == 1 || now[a - LAT_K] == previous) && now[b] == token)
                return (double) edge[((row - 1) * LAT_K + a) * LAT_K + b];
    return NAN;
}

static void run_draft(const char *file, const Case *c, Model *m, const Model *dm, Step *s)
{
    Error   err;
    PassOut got;
    Backend *be = stages_last(&m->stages);
    State   target, draft;
    OK(state_open(&target, &m->stages, m->spec, m->n_layers, c->n_prefix + ROWS_DECODE, 0, 0, 0, &err));
    OK(state_open(&draft, &dm->stages, dm->spec, dm->n_layers, c->n_prefix + ROWS_DECODE, RING, 0, 0, &err));
    size_t tap_bytes = sizeof(float) * CHUNK * (size_t) m->tap_width;
    float *taps = be->alloc(be, tap_bytes, "taps");
    assert_non_null(taps);
    static const int32_t no_token[CHUNK];
    for (int32_t at = 0; at < c->n_prefix; at += CHUNK) {
        int32_t n = c->n_prefix - at < CHUNK ? c->n_prefix - at : CHUNK;
        pass(m, s, &target, SLICE_CHAIN, n, c->prefix + at, NULL, WANT_TAPS, taps, NULL, 0);
        pass_start(s);
        Slice *sl = pass_slice(s, &draft, SLICE_CHAIN, n, no_token, NULL);
        sl->taps = taps;
        for (int32_t i = 0; i < n; i++) pass_want(s, sl, i, WANT_TAPS, i);
        model_context(dm, s);
        OK(step_wait(s, &err));
        state_advance(&draft, n);
    }
    int32_t token[ROWS_DECODE] = {c->tokens[0]}, rows = dm->block - 1;
    for (int32_t r = 1; r < dm->block; r++) token[r] = dm->mask_id;
    pass_start(s);
    Slice *sl = pass_slice(s, &draft, SLICE_BLOCK, dm->block, token, NULL);
    for (int32_t r = 1; r < dm->block; r++) pass_want(s, sl, r, WANT_LOGITS, -1);
    OK(model_pass(dm, s, &got, LAT_K, &err));
    size_t n_values = (size_t) rows * (size_t) m->vocab;
    float *logits = malloc(n_values * sizeof *logits), edge[ROWS_DECODE * LAT_K * LAT_K];
    int32_t id[ROWS_DECODE * LAT_K];
    assert_non_null(logits);
    be->copy_out(be, logits, got.logits->data, n_values * sizeof *logits);
    be->copy_out(be, id, got.id->data, sizeof *id * (size_t) rows * LAT_K);
    if (got.edge) be->copy_out(be, edge, got.edge->data, sizeof *edge * (size_t) rows * LAT_K * LAT_K);
    OK(be->sync(be, &err));
    double worst = 0;
    const Probe *where = c->probe;
    for (int32_t i = 0; i < c->n_probes; i++) {
        const Probe *p = &c->probe[i];
        double d = 0;
        if (p->layer == -1) d = compare(p, logits + (size_t) (p->row - 1) * (size_t) m->vocab, m->vocab);
        else assert_non_null(got.edge);
        for (int32_t j = 0; j < p->n && p->layer == -2; j++)
            d = difference(pair_score(id, edge, p->row, p->previous, p->id[j]), p->value[j], d);
        if (!(d <= worst)) worst = d, where = p;
    }
    report(file, c, worst, where);
    free(logits);
    be->release(be, taps, tap_bytes);
    state_close(&draft);
    state_close(&target);
}

static void test_draft(void **state)
{
    static const char *const layouts[] = {"-hf", "-luce.gguf", "-llama.gguf"};
    Expect *e = read_expect(*state);
    char  path[256], label[64];
    Error err;
    TinyModel tiny;
    TinyDraft tiny_d;
    const char *target;
    Backend *be;
    snprintf(path, sizeof path, "%s/%s.gguf", folder, e->file[0]);
    assert_true(tiny_model_named(&tiny, e->file[0]) && tiny_draft_named(&tiny_d, &target, e->name));
    OK(tiny_model_write(&tiny, path, &err));
    OK(backend_open(&be, "cpu", &(BackendOptions) {0}, &err));
    Opened o = open_model(be, path, false, NULL);
    Step step = open_step(be);
    for (int32_t l = 0; l < 3; l++) {
        snprintf(path, sizeof path, "%s/%s%s", folder, e->name, layouts[l]);
        OK(tiny_draft_write(&tiny_d, (TinyLayout) l, path, &err));
        Opened d = open_model(be, path, l == 0, o.m);
        OK(model_set_taps(o.m, d.m->tap, d.m->n_taps, &err));
        snprintf(label, sizeof label, "%s%s", e->name, layouts[l]);
        for (int32_t i = 0; i < e->n_cases; i++) run_draft(label, &e->cases[i], o.m, d.m, &step);
        close_model(&d);
    }
    step_close(&step);
    close_model(&o);
    be->close(be);
    free_expect(e);
}

/* No known file has grouped value heads; what cannot be computed correctly is refused by name. */
static void test_grouped_heads_are_refused(void **state)
{
    (void) state;
    char  path[256];
    Error err;
    TinyModel tiny;
    Backend *be;
    Gguf  *g;
    Model *m;
    snprintf(path, sizeof path, "%s/grouped.gguf", folder);
    assert_true(tiny_model_named(&tiny, "qwen35-grouped"));
    OK(tiny_model_write(&tiny, path, &err));
    OK(backend_open(&be, "cpu", &(BackendOptions) {0}, &err));
    OK(gguf_open(&g, path, &err));
    const ModelOptions options = {.k_type = T_COUNT, .v_type = T_COUNT};
    Stages stages = stages_one(be);
    assert_int_not_equal(model_open(&m, &stages, &(Weights) {.gguf = g}, NULL, &options, &err), ST_OK);
    assert_non_null(strstr(err.text, "v_head_reordered"));
    gguf_close(g);
    be->close(be);
}

static int remove_folder(void **state)
{
    (void) state;
    return remove_tree(folder);
}

#define MODEL(n) {.name = n, .test_func = test_model, .initial_state = (void *) n}
#define QUANTISED(n) {.name = n, .test_func = test_quantised, .initial_state = (void *) n}
#define DRAFT(n) {.name = n, .test_func = test_draft, .initial_state = (void *) n}

int main(int argc, char **argv)
{
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        MODEL("small-llama"), MODEL("small-qwen3"), MODEL("small-qwen35"), MODEL("small-qwen35-r3"),
        MODEL("small-laguna"), MODEL("small-laguna-each"), MODEL("laguna"), MODEL("laguna-each"), MODEL("llama"),
        MODEL("llama-tied"), MODEL("qwen3"), MODEL("qwen3-tied"), MODEL("qwen35"), MODEL("qwen35-r1"),
        MODEL("qwen35-r3"), MODEL("small-qwen3moe"), MODEL("small-qwen35moe"), MODEL("qwen3moe"), MODEL("qwen3moe-16"),
        MODEL("qwen35moe"), MODEL("small-gemma4"), MODEL("small-gemma4moe"), MODEL("gemma4"), MODEL("gemma4-values"),
        MODEL("gemma4moe"), MODEL("small-diffusion"), MODEL("small-diffusion-256"), MODEL("diffusion"),
        DRAFT("small-dflash"), DRAFT("small-swa"), DRAFT("small-dflash2"), DRAFT("dflash-qwen3"), DRAFT("dflash-swa"),
        DRAFT("dflash2"), DRAFT("dflash2-k8"), DRAFT("dflash-llama"), DRAFT("dflash-laguna"),
        DRAFT("small-dflash-laguna"), DRAFT("small-dspark"), DRAFT("small-library"),
        DRAFT("small-dflash-gemma4"),
        QUANTISED("qwen3moe-all"), QUANTISED("qwen35moe-all"), QUANTISED("laguna-all"),
        QUANTISED("qwen3moe-two"), QUANTISED("qwen35moe-two"), QUANTISED("laguna-two"),
        cmocka_unit_test(test_grouped_heads_are_refused),
    };
    if (!mkdtemp(folder)) return 1;
    return cmocka_run_group_tests_name("oracle", tests, NULL, remove_folder);
}
