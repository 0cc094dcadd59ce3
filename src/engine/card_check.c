/* card_check.c - whether a card computes what the CPU computes: a sample of a model runs on both. It has a layer of
 * each kind that the model has, with their own weights, so it takes every kernel that the model's passes take. */
#include <math.h>
#include <stdlib.h>

#include <xxhash.h>

#include "backend/draw.h"
#include "engine/engine.h"

/* SHORT: tokens before a tree, a canvas and the text, of which TEXT tokens are written. LEAST, MOST: tokens of the
 * prompt, of which the CPU has no more than WORK multiplications to make; beyond 4,096 attention merges parts. ROOM:
 * the rows behind it. STEPS: of progress, a PART of which is loading on either side. */
enum { SHORT = 40, TEXT = 24, LEAST = 100, MOST = 4400, ROOM = 300, STEPS = 1000, PART = 250 };
static const double WORK = 5e11;

/* Rows of the widths for which kernels differ: at the beginning, behind the prompt, one chain after the other, and
 * trees; of a canvas, of which `tree` says whether it goes on from an earlier step. */
typedef struct { int32_t n, before; bool tree; } Rowed;
enum { PROMPT = -1, CANVAS = 0 };
static const Rowed passes[] = { { SHORT, 0, false }, { 1, PROMPT, false }, { 7, PROMPT, false }, { 15, PROMPT, false },
                                { 30, PROMPT, false }, { 50, PROMPT, false }, { 6, SHORT, true }, { 22, SHORT, true },
                                { 64, SHORT, true } },
                   canvases[] = { { CANVAS, SHORT, false }, { CANVAS, SHORT, true } };

/* One of the two sides: its objects, and what came of a call: sums of rows, or tokens. */
typedef struct {
    rt_engine  *g;
    rt_session *s;
    rt_step    *st;
    uint64_t    sum[CANVAS_MAX];
    int32_t     n, token[CANVAS_MAX];
} Side;
typedef struct {
    Side     side[2];                              /* the CPU and the card */
    int32_t *token, prompt;                        /* token: [prompt + ROOM] */
    rt_hooks told;
    int64_t  done, share;                          /* of STEPS: before what is being done, and in it */
} Check;

/* ---- progress ---- */

static bool forward(void *ud, const char *what, int64_t done, int64_t total)
{
    const Check *c = ud;
    if (!c->told.progress) return true;
    if (total <= 0) return c->told.progress(c->told.ud, what, done, total);
    const double part = (double) c->share * (double) done / (double) total;
    return c->told.progress(c->told.ud, "check", c->done + (int64_t) part, STEPS);
}

static Status begin(Check *c, int64_t done, int64_t share, Error *err)
{
    c->done = done;
    c->share = share;
    return forward(c, "check", 0, 1) ? ST_OK : fail(err, ST_CANCEL, "the check was cancelled");
}

/* ---- both sides ---- */

static Status open_engine(Check *c, Side *side, const rt_options *o, Error *err)
{
    const bool device = side == &c->side[1];
    Stages have;
    rt_options of = *o;
    if (!device) of.backend = "cpu";
    of.draft = of.expert_profile = NULL;
    of.n_taps = of.gpu_layers = 0;
    of.expert_ram = of.expert_vram = 0;
    of.hooks = (rt_hooks) { .ud = c, .progress = forward };
    TRY(engine_backends(&have, &of, err));
    if (device && (!stages_last(&have)->device || have.n > 2)) {
        backends_close(&have);
        return fail(err, ST_ARG, "backend: '%s', expected a card's", of.backend ? of.backend : "auto");
    }
    return engine_open(&side->g, have, ENGINE_SAMPLES, &of, err);
}

static Status open_session(Check *c, Side *side, Error *err)
{
    const rt_session_options so = { .ctx = c->prompt + ROOM, .checkpoints = -1 };
    const rt_step_options st = { .hooks = { .ud = c, .progress = forward } };
    TRY(engine_session(&side->s, side->g, &so, err));
    return engine_step_new(&side->st, side->g, &st, err);
}

static void close_side(Side *side)
{
    rt_step_free(side->st);
    rt_session_free(side->s);
    rt_close(side->g);
}

/* How long a prompt the CPU can read without keeping people waiting; and the tokens of everything. */
static Status choose_tokens(Check *c, Error *err)
{
    const Model *m = c->side[0].g->model;
    const double row = (double) engine_pass_work(m).parameters - (double) m->head.rows * (double) m->head.cols;
    double most = row * MOST > WORK ? WORK / row : MOST;
    if (most > m->ctx_train - ROOM) most = m->ctx_train - ROOM;
    c->prompt = most > LEAST ? (int32_t) most : LEAST;
    const int32_t n = c->prompt + ROOM;
    c->token = malloc(sizeof *c->token * (size_t) n);
    if (!c->token) return fail(err, ST_MEMORY, "the check: out of memory");
    for (int32_t i = 0; i < n; i++)
        c->token[i] = (int32_t) (draw_random(1, (uint32_t) i, 0, 0, 0) % (uint32_t) m->vocab);
    for (int32_t i = SHORT / 2; i < SHORT; i++) c->token[i] = c->token[i - SHORT / 2];     /* to be looked up */
    return ST_OK;
}

/* ---- what is compared ---- */

/* Not a number is not a number, whatever its bits. */
static uint64_t sum_of(const float *v, int32_t n)
{
    enum { PIECE = 1024 };
    uint64_t sum = 0;
    for (int32_t i = 0; i < n; i += PIECE) {
        float piece[PIECE];
        const int32_t m = n - i < PIECE ? n - i : PIECE;
        for (int32_t j = 0; j < m; j++) piece[j] = isnan(v[i + j]) ? NAN : v[i + j];
        sum = XXH3_64bits_withSeed(piece, sizeof *piece * (size_t) m, sum);
    }
    return sum;
}

static void take_row(void *ud, int32_t i, const float *logits, const float *taps)
{
    (void) taps;
    Side *side = ud;
    side->sum[i] = sum_of(logits, side->g->model->vocab);
}

static rt_status run_rows(Check *c, Side *side, const Rowed *r, int32_t before)
{
    const int32_t *prefix = c->token, *token = prefix + before, n = r->n;
    int32_t parent[ROWS_DECODE] = { -1 };
    if (n == CANVAS)
        return rt_canvas_rows(side->st, side->s, prefix, (size_t) before, token, side->g->model->diffusion.canvas,
                              r->tree ? token + 1 : NULL, 0, take_row, side);
    for (int32_t i = 1; i < n && r->tree; i++)
        parent[i] = i - 1 - (int32_t) (draw_random(2, (uint32_t) i, 0, 0, 0) % 3) % i;
    return rt_rows(side->st, side->s, prefix, (size_t) before, token, r->tree ? parent : NULL, n, RT_ROWS_LOGITS,
                   take_row, side);
}

/* The block's tokens, and sums of what their logits say, if that is asked for. */
static void take_block(Side *side, const rt_block *b, int32_t most)
{
    const rt_logprob *seen = rt_logprobs(side->s);
    for (int32_t i = 0; i < b->n && side->n < most; i++) {
        side->sum[side->n] = seen ? XXH3_64bits(&seen[i].logprob, sizeof seen[i].logprob) : 0;
        for (int32_t k = 0; seen && k < seen[i].n; k++)
            side->sum[side->n] = XXH3_64bits_withSeed(&seen[i].top[k], sizeof seen[i].top[k], side->sum[side->n]);
        side->token[side->n++] = b->token[i];
    }
}

/* A text on one side, drawn with everything that there is to draw with, or a block that is denoised in two steps.
 * shown: with the likeliest tokens, for which logits are read where a card else draws by itself. */
static rt_status run_text(Check *c, Side *side, bool shown)
{
    const int32_t canvas = side->g->model->diffusion.canvas, most = canvas ? canvas : TEXT;
    const rt_sampling draw = { .size = sizeof draw, .temperature = 0.8f, .top_p = 0.9f, .min_p = 0.01f, .top_k = 50,
                               .repetition = 1.1f, .seed = 3 },
                      denoise = { .size = sizeof denoise, .temperature = 1, .seed = 3 };
    const rt_diffusion steps = { .size = sizeof steps, .steps = 2 };
    rt_status st = rt_sampling_set(side->s, canvas ? &denoise : &draw);
    if (st == RT_OK && canvas) st = rt_diffusion_set(side->s, &steps);
    else if (st == RT_OK) st = rt_logprobs_set(side->s, shown ? RT_TOP_MAX : -1);
    if (st == RT_OK) st = rt_prompt(side->s, c->token, SHORT);
    for (side->n = 0; st == RT_OK && side->n < most;) {
        rt_block b;
        st = rt_next(side->st, side->s, &b);
        if (st >= RT_OK) take_block(side, &b, most);
    }
    return st == RT_END ? RT_OK : st;
}

static Status differs(const Check *c, Error *err, const char *what, int32_t i, int32_t n)
{
    return fail(err, ST_BACKEND, "%s does not compute what the CPU computes: %s %d of %d differs",
                stages_last(&c->side[1].g->on)->name, what, i + 1, n);
}

static Status side_failed(const Side *side, rt_status st, Error *err)
{
    const char *why = *rt_step_error(side->st) ? rt_step_error(side->st) : rt_session_error(side->s);
    return fail(err, (Status) st, "%s", why);
}

static Status compare_rows(Check *c, const Rowed *r, int32_t before, Error *err)
{
    const int32_t n = r->n == CANVAS ? c->side[0].g->model->diffusion.canvas : r->n;
    for (int32_t k = 0; k < 2; k++) {
        const rt_status st = run_rows(c, &c->side[k], r, before);
        if (st != RT_OK) return side_failed(&c->side[k], st, err);
    }
    for (int32_t i = 0; i < n; i++)
        if (c->side[0].sum[i] != c->side[1].sum[i])
            return differs(c, err, r->n == CANVAS ? "a canvas's row" : r->tree ? "a tree's row" : "row", i, n);
    return ST_OK;
}

static Status compare_text(Check *c, bool shown, Error *err)
{
    const Side *a = &c->side[0], *b = &c->side[1];
    for (int32_t k = 0; k < 2; k++) {
        const rt_status st = run_text(c, &c->side[k], shown);
        if (st != RT_OK) return side_failed(&c->side[k], st, err);
    }
    int32_t i = 0;
    while (i < a->n && i < b->n && a->token[i] == b->token[i] && a->sum[i] == b->sum[i]) i++;
    return i < a->n || i < b->n ? differs(c, err, "token", i, a->n) : ST_OK;
}

static Status compare(Check *c, Error *err)
{
    const bool denoises = c->side[0].g->model->diffusion.canvas > 0;
    const Rowed *r = denoises ? canvases : passes;
    const int32_t n = (int32_t) (denoises ? sizeof canvases : sizeof passes) / (int32_t) sizeof *r;
    const int32_t share = (STEPS - 2 * PART) / (n + 2);
    for (int32_t i = 0, at = c->prompt; i < n; i++) {
        TRY(begin(c, 2 * PART + i * share, share, err));
        TRY(compare_rows(c, &r[i], r[i].before == PROMPT ? at : r[i].before, err));
        if (r[i].before == PROMPT) at += r[i].n;
    }
    for (int32_t shown = 0; shown < 2 - denoises; shown++) {
        TRY(begin(c, 2 * PART + (n + shown) * share, share, err));
        TRY(compare_text(c, shown > 0, err));
    }
    return begin(c, STEPS, 0, err);
}

Status engine_card_check(const rt_options *o, Error *err)
{
    Check *c = calloc(1, sizeof *c);
    if (!c) return fail(err, ST_MEMORY, "the check: out of memory");
    c->told = o->hooks;
    Status st = begin(c, 0, PART, err);
    if (st == ST_OK) st = open_engine(c, &c->side[1], o, err);        /* first: what is refused is seen at once */
    if (st == ST_OK) st = begin(c, PART, PART, err);
    if (st == ST_OK) st = open_engine(c, &c->side[0], o, err);
    if (st == ST_OK) st = choose_tokens(c, err);
    for (int32_t k = 0; k < 2 && st == ST_OK; k++) st = open_session(c, &c->side[k], err);
    if (st == ST_OK) st = compare(c, err);
    for (int32_t k = 0; k < 2; k++) close_side(&c->side[k]);
    free(c->token);
    free(c);
    return st;
}
