/* ratoon experts: which experts of a mixture texts use. The prompts are read and continued by plain decoding, so every
 * row is a token of a text; each layer's routes come by the engine's trace. The counts can be kept in a file and shown
 * again without the prompts. A format tool: of the model it only shows, it reads the header. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/save.h"
#include "format/hotness.h"
#include "programs/advice.h"
#include "programs/bench/plot.h"
#include "programs/generate.h"
#include "programs/model_facts.h"
#include "programs/sampling.h"

enum { PARTS = 3 };
static const double part[PARTS] = { 0.03, 0.125, 0.25 }, needed[PARTS] = { 0.5, 0.8, 0.9 };

/* p: first, since the hooks of a step share one pointer */
typedef struct {
    Program  p;
    Options  o;
    Prompts  prompts;
    Progress bar;
    ModelFacts facts;
    Hotness  calls;                                /* counted, or those of a file */
    int64_t *again;                                /* [layers]; NULL: of a file, which does not tell */
    int32_t *last;                                 /* [layers, experts] of the row before: `used` ids; -1: none */
    int64_t  generated;
} Routes;

/* What the counts of a layer say. share: of the calls, for the most used parts; need: experts for so much of them;
 * again: share of a row's experts that the row before used too; NAN: unknown. */
typedef struct { int32_t distinct, need[PARTS]; double share[PARTS], again; } Spread;

static HotnessModel model_of(const Routes *r)
{
    const ModelFacts *f = &r->facts;
    return (HotnessModel) { f->layers, f->experts, f->experts_used, f->name, f->bytes };
}

static uint64_t *calls_of(const Routes *r, int32_t layer)
{
    return r->calls.count + (size_t) layer * (size_t) r->calls.experts;
}

/* ---- counting ---- */

static bool among(const int32_t *id, int32_t n, int32_t e)
{
    for (int32_t i = 0; i < n; i++)
        if (id[i] == e) return true;
    return false;
}

static void count_row(Routes *r, int32_t layer, const float *row)
{
    const int32_t used = r->calls.used;
    int32_t *last = r->last + (size_t) layer * (size_t) r->calls.experts;
    for (int32_t i = 0; i < used; i++) {
        int32_t e = (int32_t) row[i];
        calls_of(r, layer)[e]++;
        r->again[layer] += among(last, used, e);
    }
    for (int32_t i = 0; i < used; i++) last[i] = (int32_t) row[i];
}

static void on_trace(void *ud, const char *name, int32_t layer, const float *rows, int32_t n, int32_t cols)
{
    Routes *r = ud;
    if (strcmp(name, "experts") != 0 || layer < 0 || layer >= r->calls.layers || cols != r->calls.used) return;
    for (int32_t i = 0; i < n; i++, rows += cols)
        if (rows[0] >= 0) count_row(r, layer, rows);               /* -1: no row of the text */
}

static bool room_for(Routes *r)
{
    Error err = { 0 };
    const HotnessModel of = model_of(r);
    if (hotness_new(&r->calls, &of, &err) != ST_OK) return complain(&r->o, "%s", err.text) == 0;
    r->last = malloc((size_t) of.layers * (size_t) of.experts * sizeof *r->last);
    r->again = calloc((size_t) of.layers, sizeof *r->again);
    return (r->last && r->again) || complain(&r->o, "out of memory") == 0;
}

static bool run_prompt(Routes *r, rt_step *step, rt_session *session, const Prompt *prompt)
{
    int32_t *token = NULL, n = 0, most = r->o.n ? r->o.n : 64;
    Generated got = { .token = malloc(sizeof(int32_t) * (size_t) most) };
    rt_sampling s = sampling_of(&r->o, most);
    bool good = got.token || complain(&r->o, "out of memory") == 0;
    for (size_t i = 0; i < (size_t) r->calls.layers * (size_t) r->calls.experts; i++) r->last[i] = -1;
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

/* ---- the file of counts ---- */

/* Counts of 0 if there is no such file yet. Returns false after reporting an error. */
static bool read_old(const Routes *r, Hotness *out)
{
    Error err = { 0 };
    const HotnessModel of = model_of(r);
    Status st = hotness_read(out, r->o.write_hotness, &of, &err);
    if (st == ST_END) st = hotness_new(out, &of, &err);
    return st == ST_OK || complain(&r->o, "%s", err.text) == 0;
}

/* Before the prompts, which may take hours. */
static bool old_fits(const Routes *r)
{
    Hotness old = { 0 };
    bool good = !r->o.write_hotness || read_old(r, &old);
    hotness_free(&old);
    return good;
}

/* The file is read again: others may have added to it meanwhile. */
static bool write_sum(const Routes *r)
{
    Error err = { 0 };
    Hotness sum;
    const HotnessModel of = model_of(r);
    if (!r->o.write_hotness) return true;
    if (!read_old(r, &sum)) return false;
    for (size_t i = 0; i < (size_t) of.layers * (size_t) of.experts; i++) sum.count[i] += r->calls.count[i];
    hotness_halve(&sum, HOTNESS_TOTAL);
    bool good = hotness_write(&sum, r->o.write_hotness, &of, &err) == ST_OK || complain(&r->o, "%s", err.text) == 0;
    if (good) note(&r->o, "%s: the counts were added", r->o.write_hotness);
    hotness_free(&sum);
    return good;
}

/* ---- what they say ---- */

static int most_first(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *) a, y = *(const uint64_t *) b;
    return (x < y) - (x > y);
}

static int32_t part_of(double share, int32_t experts)
{
    int32_t n = (int32_t) lround(share * experts);
    return n > 0 ? n : 1;
}

/* sorted [experts]: scratch. The layer has calls. */
static Spread spread_of(const Routes *r, int32_t layer, uint64_t *sorted)
{
    Spread s = { 0 };
    uint64_t sum = 0;
    const int32_t experts = r->calls.experts;
    const double total = (double) hotness_total(&r->calls, layer);
    memcpy(sorted, calls_of(r, layer), sizeof *sorted * (size_t) experts);
    qsort(sorted, (size_t) experts, sizeof *sorted, most_first);
    for (int32_t e = 0; e < experts; e++) {
        sum += sorted[e];
        s.distinct += sorted[e] > 0;
        for (int32_t i = 0; i < PARTS; i++) {
            if (e + 1 == part_of(part[i], experts)) s.share[i] = (double) sum / total;
            if (s.need[i] == 0 && (double) sum >= needed[i] * total) s.need[i] = e + 1;
        }
    }
    s.again = r->again ? (double) r->again[layer] / total : NAN;
    return s;
}

/* Means of all layers that have calls, and how many they are; rows: of the layer that has most. */
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
    if (rows > m->rows) m->rows = rows;
}

static json_t *spread_json(double distinct, const double *share, const double *need, double again)
{
    json_t *j = json_pack("{s:f s:f s:f s:f s:f s:f s:f}", "distinct", distinct, "share_3", share[0], "share_12_5",
                          share[1], "share_25", share[2], "needed_50", need[0], "needed_80", need[1], "needed_90",
                          need[2]);
    if (!isnan(again)) json_object_set_new(j, "again", json_real(again));
    return j;
}

static json_t *layer_json(const Routes *r, int32_t layer, const Spread *s)
{
    double need[PARTS] = { s->need[0], s->need[1], s->need[2] };
    json_t *j = spread_json(s->distinct, s->share, need, s->again), *calls = json_array();
    for (int32_t e = 0; e < r->calls.experts; e++)
        json_array_append_new(calls, json_integer((json_int_t) calls_of(r, layer)[e]));
    json_object_set_new(j, "layer", json_integer(layer));
    json_object_set_new(j, "calls", calls);
    return j;
}

static void print_line(const char *name, double distinct, const double *share, const double *need, double again)
{
    printf("%5s %9.0f %7.1f %% %7.1f %% %7.1f %% %6.0f %6.0f %6.0f", name, distinct, 100 * share[0],
           100 * share[1], 100 * share[2], need[0], need[1], need[2]);
    if (!isnan(again)) printf(" %7.1f %%", 100 * again);
}

/* The layer's line, with the numbers of its most used experts. */
static void print_layer(const Routes *r, int32_t layer, const Spread *s, const uint64_t *sorted)
{
    char name[16];
    const int32_t experts = r->calls.experts;
    const uint64_t *calls = calls_of(r, layer);
    double need[PARTS] = { s->need[0], s->need[1], s->need[2] };
    snprintf(name, sizeof name, "%d", layer);
    print_line(name, s->distinct, s->share, need, s->again);
    printf("  ");
    for (int32_t e = 0, shown = 0; e < experts && shown < 4; e++)
        if (calls[e] >= sorted[3 < experts ? 3 : experts - 1] && calls[e] > 0) printf(" %d", e), shown++;
    printf("\n");
}

static bool draw(const Routes *r, const Mean *m, FILE *f)
{
    char subtitle[256], scale[128];
    const Hotness *h = &r->calls;
    double *times = calloc((size_t) h->layers * (size_t) h->experts, sizeof *times), most = 0;
    if (!times) return complain(&r->o, "out of memory") == 0;
    for (int32_t i = 0; i < h->layers; i++) {
        const double total = (double) hotness_total(h, i);
        for (int32_t e = 0; e < h->experts && total > 0; e++) {
            const double x = (double) calls_of(r, i)[e] * h->experts / total;
            times[(size_t) i * (size_t) h->experts + (size_t) e] = x;
            most = fmax(most, x);
        }
    }
    snprintf(subtitle, sizeof subtitle, "%.128s: %lld rows, each uses %d of %d experts in %d layers",
             base_name(r->p.files.model), (long long) m->rows, h->used, h->experts, m->layers);
    snprintf(scale, sizeof scale, "blank: never; darkest: %.1f times as often as if all were used alike", most);
    char shares[256];
    snprintf(shares, sizeof shares, "Mean of the layers: the most used 3 %% of the experts take %.0f %% of the calls, "
             "12.5 %% take %.0f %%, 25 %% take %.0f %%; 90 %% of the calls need %.0f experts.", 100 * m->share[0],
             100 * m->share[1], 100 * m->share[2], m->need[2]);
    const PlotText text = { "Which experts texts use", subtitle, { shares }, 1 };
    plot_heat(f, &text, "expert", "layer", scale, times, h->layers, h->experts);
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

static bool print_json(const Routes *r, const Mean *m, json_t *layers)
{
    json_t *j = json_pack("{s:s s:i s:i s:I s:o s:o}", "model", base_name(r->p.files.model), "experts",
                          r->calls.experts, "used", r->calls.used, "rows", (json_int_t) m->rows, "mean",
                          spread_json(m->distinct, m->share, m->need, m->again), "layers", layers);
    if (r->o.hotness) {
        json_object_set_new(j, "hotness", json_text(base_name(r->o.hotness), strlen(base_name(r->o.hotness))));
    } else {
        json_object_set_new(j, "prompts", json_integer(r->prompts.n));
        json_object_set_new(j, "generated", json_integer(r->generated));
    }
    return json_print(&r->o, j);
}

static void print_sum(const Routes *r, const Mean *m)
{
    print_line("mean", m->distinct, m->share, m->need, m->again);
    printf("\n%lld rows", (long long) m->rows);
    if (!r->o.hotness)
        printf(" of %d prompts, %lld tokens of them generated", r->prompts.n, (long long) r->generated);
    printf("; each row uses %d of %d experts in %d layers\n", r->calls.used, r->calls.experts, m->layers);
}

static int report(const Routes *r)
{
    Mean m = { .again = r->again ? 0 : NAN };
    uint64_t *sorted = malloc(sizeof *sorted * (size_t) r->calls.experts);
    if (!sorted) return complain(&r->o, "out of memory");
    json_t *layers = json_array();
    if (!r->o.json)
        printf("layer  distinct  top 3 %%  top 12.5 %%  top 25 %%   50 %%   80 %%   90 %%%s   most used\n",
               r->again ? "    again" : "");
    for (int32_t i = 0; i < r->calls.layers; i++) {
        const uint64_t total = hotness_total(&r->calls, i);
        if (total == 0) continue;
        Spread s = spread_of(r, i, sorted);
        mean_add(&m, &s, (int64_t) (total / (uint64_t) r->calls.used));
        if (r->o.json) json_array_append_new(layers, layer_json(r, i, &s));
        else print_layer(r, i, &s, sorted);
    }
    free(sorted);
    if (!write_svg(r, &m)) {
        json_decref(layers);
        return EXIT_FAILED;
    }
    if (r->o.json) return print_json(r, &m, layers) ? EXIT_FINE : EXIT_FAILED;
    json_decref(layers);
    print_sum(r, &m);
    return output_done(&r->o);
}

/* ---- the command ---- */

/* From the header alone. */
static bool read_facts(Routes *r)
{
    Error err = { 0 };
    ModelFacts *f = &r->facts;
    const char *model = r->p.files.model;
    if (model_facts(f, model, &err) != ST_OK) return complain_file(&r->o, err.text, model, AS_MODEL) == 0;
    if (f->experts == 0)
        return complain(&r->o, "%s: its layers have no experts (architecture %s)", model, f->arch) == 0;
    if (f->layers > 0 && f->experts_used > 0 && f->experts_used <= f->experts) return true;
    return complain(&r->o, "%s: has %d layers whose rows use %d of %d experts, expected 1 or more of each", model,
                    f->layers, f->experts_used, f->experts) == 0;
}

static bool count(Routes *r)
{
    return outputs_good(&r->o, NULL) && prompts_read(&r->o, &r->prompts, r->o.prompts) &&
           program_open(&r->p, &r->o, 0, NULL, 0) && read_facts(r) && old_fits(r) && room_for(r) && run_prompts(r) &&
           write_sum(r);
}

static bool show(Routes *r)
{
    Error err = { 0 };
    if (!outputs_good(&r->o, NULL) || !program_find(&r->p, &r->o, ONLY_PLANS) || !read_facts(r)) return false;
    const HotnessModel of = model_of(r);
    return hotness_read(&r->calls, r->o.hotness, &of, &err) == ST_OK || complain(&r->o, "%s", err.text) == 0;
}

static bool options_agree(const Options *o)
{
    if (!o->prompts && !o->hotness)
        complain(o, "--prompts FILE (texts to count) or --hotness FILE (counts to show) is needed (see ratoon experts "
                 "--help)");
    else if (o->prompts && o->hotness)
        complain(o, "--hotness only shows what was counted; to add to it, give --prompts with --write-hotness");
    else if (o->write_hotness && !o->prompts)
        complain(o, "--write-hotness needs --prompts FILE, the texts to count");
    else if (o->write_hotness && (o->spark || o->spark_calibrate))
        complain(o, "--write-hotness and --spark keep the same counts: give one of them");
    else return true;
    return false;
}

int cmd_experts(int argc, char **argv)
{
    Routes r = { 0 };
    int status;
    if (!options_read(&r.o, argc, argv, &status)) return status;
    if (!options_agree(&r.o)) return EXIT_USAGE;
    status = EXIT_FAILED;
    if (r.o.hotness ? show(&r) : count(&r)) status = report(&r);
    else if (interrupts) status = EXIT_INTERRUPTED;
    program_close(&r.p);
    prompts_free(&r.prompts);
    hotness_free(&r.calls);
    free(r.again);
    free(r.last);
    return status;
}
