/* ratoon experts: which experts of a mixture texts use. The prompts are read and continued by plain decoding, so every
 * row is a token of a text; each layer's routes come by the engine's trace. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/save.h"
#include "programs/bench/plot.h"
#include "programs/generate.h"
#include "programs/sampling.h"

enum { PARTS = 3 };
static const double part[PARTS] = { 0.03, 0.125, 0.25 }, needed[PARTS] = { 0.5, 0.8, 0.9 };

/* p: first, since the hooks of a step share one pointer */
typedef struct {
    Program  p;
    Options  o;
    Prompts  prompts;
    Progress bar;
    int32_t  layers, experts, used;
    int64_t  *calls, *rows, *again;                /* [layers, experts] [layers] [layers] */
    int32_t  *last;                                /* [layers, experts] of the row before: `used` ids; -1: none */
    int64_t  generated;
} Routes;

/* What the counts of a layer say. share: of the calls, for the most used parts; need: experts for so much of them;
 * again: share of a row's experts that the row before used too. */
typedef struct { int32_t distinct, need[PARTS]; double share[PARTS], again; } Spread;

/* ---- counting ---- */

static bool among(const int32_t *id, int32_t n, int32_t e)
{
    for (int32_t i = 0; i < n; i++)
        if (id[i] == e) return true;
    return false;
}

static void count_row(Routes *r, int32_t layer, const float *row)
{
    int32_t *last = r->last + (size_t) layer * (size_t) r->experts;
    for (int32_t i = 0; i < r->used; i++) {
        int32_t e = (int32_t) row[i];
        r->calls[(size_t) layer * (size_t) r->experts + (size_t) e]++;
        r->again[layer] += among(last, r->used, e);
    }
    for (int32_t i = 0; i < r->used; i++) last[i] = (int32_t) row[i];
    r->rows[layer]++;
}

static void on_trace(void *ud, const char *name, int32_t layer, const float *rows, int32_t n, int32_t cols)
{
    Routes *r = ud;
    if (strcmp(name, "experts") != 0 || layer < 0 || layer >= r->layers || cols > r->experts) return;
    r->used = cols;
    for (int32_t i = 0; i < n; i++, rows += cols)
        if (rows[0] >= 0) count_row(r, layer, rows);               /* -1: no row of the text */
}

static bool room_for(Routes *r)
{
    r->layers = (int32_t) property(r->p.engine, "model.layers");
    r->experts = (int32_t) property(r->p.engine, "model.experts");
    if (r->experts == 0) {
        char arch[64] = "";
        rt_property(r->p.engine, "model.arch", arch, sizeof arch);
        return complain(&r->o, "%s: its layers have no experts (architecture %s)", r->p.files.model, arch) == 0;
    }
    size_t layers = (size_t) r->layers, all = layers * (size_t) r->experts;
    r->calls = calloc(all, sizeof *r->calls);
    r->last = malloc(all * sizeof *r->last);
    r->rows = calloc(layers, sizeof *r->rows);
    r->again = calloc(layers, sizeof *r->again);
    return (r->calls && r->last && r->rows && r->again) || complain(&r->o, "out of memory") == 0;
}

static bool run_prompt(Routes *r, rt_step *step, rt_session *session, const Prompt *prompt)
{
    int32_t *token = NULL, n = 0, most = r->o.n ? r->o.n : 64;
    Generated got = { .token = malloc(sizeof(int32_t) * (size_t) most) };
    rt_sampling s = sampling_of(&r->o, most);
    bool good = got.token || complain(&r->o, "out of memory") == 0;
    for (size_t i = 0; i < (size_t) r->layers * (size_t) r->experts; i++) r->last[i] = -1;
    good = good && text_tokens(&r->p, &token, &n, prompt->text, prompt->len, r->o.special) &&
           generate(&got, &r->p, step, session, token, n, &s, r->o.ignore_eos);
    r->generated += got.stats.generated;
    free(token);
    free(got.token);
    return good;
}

static bool run_prompts(Routes *r)
{
    rt_error e = { 0 };
    rt_step *step = NULL;
    rt_session *session = NULL;
    rt_hooks hooks = program_hooks(&r->p);
    hooks.trace = on_trace;
    rt_step_options so = RT_STEP_OPTIONS(.budget = BUDGET_OPTION_PLAIN, .chunk = r->o.chunk, .hooks = hooks);
    bool good = (rt_step_new(&step, r->p.engine, &so, &e) == RT_OK &&
                 rt_session_new(&session, r->p.engine, &RT_SESSION_OPTIONS(.ctx = r->o.ctx, .ngram = -1), &e) == RT_OK)
                || complain(&r->o, "%s", e.text) == 0;
    progress_start_long(&r->bar, "experts", (uint64_t) r->prompts.n, r->o.quiet);
    for (int32_t i = 0; good && i < r->prompts.n; i++) {
        good = run_prompt(r, step, session, &r->prompts.at[i]);
        progress_to(&r->bar, (uint64_t) i + 1);
    }
    progress_end(&r->bar);
    rt_session_free(session);
    rt_step_free(step);
    return good;
}

/* ---- what they say ---- */

static int most_first(const void *a, const void *b)
{
    int64_t x = *(const int64_t *) a, y = *(const int64_t *) b;
    return (x < y) - (x > y);
}

static int32_t part_of(double share, int32_t experts)
{
    int32_t n = (int32_t) lround(share * experts);
    return n > 0 ? n : 1;
}

/* sorted [experts]: scratch. The layer has rows. */
static Spread spread_of(const Routes *r, int32_t layer, int64_t *sorted)
{
    Spread s = { 0 };
    int64_t sum = 0, total = r->rows[layer] * r->used;
    memcpy(sorted, r->calls + (size_t) layer * (size_t) r->experts, sizeof *sorted * (size_t) r->experts);
    qsort(sorted, (size_t) r->experts, sizeof *sorted, most_first);
    for (int32_t e = 0; e < r->experts; e++) {
        sum += sorted[e];
        s.distinct += sorted[e] > 0;
        for (int32_t i = 0; i < PARTS; i++) {
            if (e + 1 == part_of(part[i], r->experts)) s.share[i] = (double) sum / (double) total;
            if (s.need[i] == 0 && (double) sum >= needed[i] * (double) total) s.need[i] = e + 1;
        }
    }
    s.again = (double) r->again[layer] / (double) total;
    return s;
}

/* Means of all layers with experts, and how many there are. */
typedef struct { double distinct, share[PARTS], need[PARTS], again; int32_t layers; int64_t rows; } Mean;

static void mean_add(Mean *m, const Spread *s, int64_t rows)
{
    double old = m->layers, all = ++m->layers;
    m->distinct = (m->distinct * old + s->distinct) / all;
    m->again = (m->again * old + s->again) / all;
    for (int32_t i = 0; i < PARTS; i++) {
        m->share[i] = (m->share[i] * old + s->share[i]) / all;
        m->need[i] = (m->need[i] * old + s->need[i]) / all;
    }
    m->rows = rows;
}

static json_t *spread_json(double distinct, const double *share, const double *need, double again)
{
    return json_pack("{s:f s:f s:f s:f s:f s:f s:f s:f}", "distinct", distinct, "share_3", share[0], "share_12_5",
                     share[1], "share_25", share[2], "needed_50", need[0], "needed_80", need[1], "needed_90", need[2],
                     "again", again);
}

static json_t *layer_json(const Routes *r, int32_t layer, const Spread *s)
{
    double need[PARTS] = { s->need[0], s->need[1], s->need[2] };
    json_t *j = spread_json(s->distinct, s->share, need, s->again), *calls = json_array();
    for (int32_t e = 0; e < r->experts; e++)
        json_array_append_new(calls, json_integer(r->calls[(size_t) layer * (size_t) r->experts + (size_t) e]));
    json_object_set_new(j, "layer", json_integer(layer));
    json_object_set_new(j, "calls", calls);
    return j;
}

static void print_line(const char *name, double distinct, const double *share, const double *need, double again)
{
    printf("%5s %9.0f %7.1f %% %7.1f %% %7.1f %% %6.0f %6.0f %6.0f %7.1f %%", name, distinct, 100 * share[0],
           100 * share[1], 100 * share[2], need[0], need[1], need[2], 100 * again);
}

/* The layer's line, with the numbers of its most used experts. */
static void print_layer(const Routes *r, int32_t layer, const Spread *s, const int64_t *sorted)
{
    char name[16];
    const int64_t *calls = r->calls + (size_t) layer * (size_t) r->experts;
    double need[PARTS] = { s->need[0], s->need[1], s->need[2] };
    snprintf(name, sizeof name, "%d", layer);
    print_line(name, s->distinct, s->share, need, s->again);
    printf("  ");
    for (int32_t e = 0, shown = 0; e < r->experts && shown < 4; e++)
        if (calls[e] >= sorted[3 < r->experts ? 3 : r->experts - 1] && calls[e] > 0) printf(" %d", e), shown++;
    printf("\n");
}

static bool draw(const Routes *r, const Mean *m, FILE *f)
{
    char subtitle[256], scale[128];
    double *times = calloc((size_t) r->layers * (size_t) r->experts, sizeof *times), most = 0;
    if (!times) return complain(&r->o, "out of memory") == 0;
    for (size_t i = 0; i < (size_t) r->layers * (size_t) r->experts; i++) {
        int64_t rows = r->rows[i / (size_t) r->experts];
        if (rows > 0) times[i] = (double) r->calls[i] * r->experts / ((double) rows * r->used);
        most = fmax(most, times[i]);
    }
    snprintf(subtitle, sizeof subtitle, "%.128s: %lld rows, each uses %d of %d experts in %d layers",
             base_name(r->p.files.model), (long long) m->rows, r->used, r->experts, m->layers);
    snprintf(scale, sizeof scale, "blank: never; darkest: %.1f times as often as if all were used alike", most);
    char shares[256];
    snprintf(shares, sizeof shares, "Mean of the layers: the most used 3 %% of the experts take %.0f %% of the calls, "
             "12.5 %% take %.0f %%, 25 %% take %.0f %%; 90 %% of the calls need %.0f experts.", 100 * m->share[0],
             100 * m->share[1], 100 * m->share[2], m->need[2]);
    const PlotText text = { "Which experts texts use", subtitle, { shares }, 1 };
    plot_heat(f, &text, "expert", "layer", scale, times, r->layers, r->experts);
    free(times);
    return true;
}

static bool write_svg(const Routes *r, const Mean *m)
{
    Save s;
    Error err = { 0 };
    if (!r->o.svg) return true;
    if (save_open(&s, r->o.svg, SAVE_SHARED, &err) != ST_OK) return complain(&r->o, "%s", err.text) == 0;
    bool good = draw(r, m, s.file);
    return save_close(&s, r->o.svg, good, &err) == ST_OK ? good : complain(&r->o, "%s", err.text) == 0;
}

static int report(const Routes *r)
{
    Mean m = { 0 };
    int64_t *sorted = malloc(sizeof *sorted * (size_t) r->experts);
    if (!sorted) return complain(&r->o, "out of memory");
    json_t *layers = json_array();
    if (!r->o.json)
        printf("layer  distinct  top 3 %%  top 12.5 %%  top 25 %%   50 %%   80 %%   90 %%    again   most used\n");
    for (int32_t i = 0; i < r->layers; i++) {
        if (r->rows[i] == 0) continue;
        Spread s = spread_of(r, i, sorted);
        mean_add(&m, &s, r->rows[i]);
        if (r->o.json) json_array_append_new(layers, layer_json(r, i, &s));
        else print_layer(r, i, &s, sorted);
    }
    free(sorted);
    if (!write_svg(r, &m)) {
        json_decref(layers);
        return EXIT_FAILED;
    }
    if (r->o.json)
        return json_print(&r->o, json_pack("{s:s s:i s:i s:i s:I s:I s:o s:o}", "model", base_name(r->p.files.model),
                                           "experts", r->experts, "used", r->used, "prompts", r->prompts.n, "rows",
                                           (json_int_t) m.rows, "generated", (json_int_t) r->generated, "mean",
                                           spread_json(m.distinct, m.share, m.need, m.again), "layers", layers))
                   ? EXIT_FINE : EXIT_FAILED;
    json_decref(layers);
    print_line("mean", m.distinct, m.share, m.need, m.again);
    printf("\n%lld rows of %d prompts, %lld tokens of them generated; each row uses %d of %d experts in %d layers\n",
           (long long) m.rows, r->prompts.n, (long long) r->generated, r->used, r->experts, m.layers);
    return output_done(&r->o);
}

int cmd_experts(int argc, char **argv)
{
    Routes r = { 0 };
    int status;
    if (!options_read(&r.o, argc, argv, &status)) return status;
    if (!r.o.prompts) {
        complain(&r.o, "--prompts FILE is needed (see ratoon experts --help)");
        return EXIT_USAGE;
    }
    status = EXIT_FAILED;
    if (outputs_good(&r.o, NULL) && prompts_read(&r.o, &r.prompts, r.o.prompts) &&
        program_open(&r.p, &r.o, 0, NULL, 0) && room_for(&r) && run_prompts(&r))
        status = report(&r);
    else if (interrupts)
        status = EXIT_INTERRUPTED;
    program_close(&r.p);
    prompts_free(&r.prompts);
    free(r.calls);
    free(r.rows);
    free(r.again);
    free(r.last);
    return status;
}
