/* bench_prompts.c - plain, chain, tree and auto take turns on the same prompts. Each mode has its own session and step
 * object and is warmed up first; only decoding is timed, without the prompt. Ratios are taken within a pair of runs,
 * medians over the pairs. If another program is measured too, every pair is a round of its own. */
#include <stdlib.h>
#include <string.h>

#include "programs/bench/bench.h"
#include "programs/denoise.h"
#include "programs/expert_use.h"
#include "programs/generate.h"
#include "programs/sampling.h"

enum { WAYS = 4, GROUPS_MAX = PLOT_GROUPS_MAX, DEPTHS = 64 };

typedef struct {
    char        name[24];
    rt_step    *step;
    rt_session *session;
    rt_step_options so;
    double     *seconds, *tokens;                  /* [pairs, groups] */
    int64_t     generated, passes, drafted, accepted;
    int64_t     blocks, steps;                     /* of a model that denoises */
    int64_t     looked, missed;                    /* experts that passes looked for in memory, prompts included, and
                                                    * those that were not there */
    double      decode_s, pass_s;
    int64_t     group_generated[GROUPS_MAX], group_passes[GROUPS_MAX];
    int64_t     drafting, reached[DEPTHS];         /* see Generated */
} Way;

typedef struct { double seconds; int64_t tokens, passes; int32_t way, prompt, pair; } Run;      /* a line of the CSV */

typedef struct {
    Bench      *b;
    const Options *o;
    Prompts     prompts;
    int32_t   **prompt, *n_prompt, *group;         /* [prompts] */
    char        groups[GROUPS_MAX][32]; int32_t n_groups;
    Way         way[WAYS];
    int32_t     n_ways, pairs, pair, n;            /* pair: index of the next one */
    Run        *run; int32_t n_runs;               /* [pairs * prompts * ways] */
    Generated   got, first;                        /* first: plain decoding's text for the current prompt */
    int64_t     differing;
    rt_profile  profile, seen;                     /* profile: to sample from; seen: measured */
    bool        profiled;                          /* seen is valid */
    char        profile_name[64];
    bool        ignore_eos;
    bool        canvas;                            /* the model denoises */
    double     *scratch;                           /* [pairs]: for medians */
    Progress    bar;
} Runs;

static int32_t find_group(Runs *r, const char *name)
{
    int32_t i = 0;
    while (i < r->n_groups && strcmp(r->groups[i], name) != 0) i++;
    if (i == GROUPS_MAX) return GROUPS_MAX - 1;    /* more classes than a table shows: the rest count as the last */
    if (i == r->n_groups) snprintf(r->groups[r->n_groups++], sizeof r->groups[0], "%s", name);
    return i;
}

static bool prepare(Runs *r)
{
    const Program *p = &r->b->p;
    size_t n = (size_t) r->prompts.n;
    r->prompt = calloc(n, sizeof *r->prompt);
    r->n_prompt = calloc(n, sizeof *r->n_prompt);
    r->group = calloc(n, sizeof *r->group);
    r->got.token = malloc(sizeof *r->got.token * (size_t) r->n);
    r->first.token = malloc(sizeof *r->first.token * (size_t) r->n);
    r->run = calloc((size_t) r->pairs * n * WAYS, sizeof *r->run);
    if (!r->prompt || !r->n_prompt || !r->group || !r->got.token || !r->first.token || !r->run)
        return complain(r->o, "out of memory") == 0;
    int32_t longest = 0;
    for (int32_t i = 0; i < r->prompts.n; i++) {
        if (!text_tokens(p, &r->prompt[i], &r->n_prompt[i], r->prompts.at[i].text, r->prompts.at[i].len, p->o->special))
            return false;
        r->group[i] = find_group(r, r->prompts.at[i].group[0] ? r->prompts.at[i].group : "all");
        if (r->n_prompt[i] > longest) longest = r->n_prompt[i];
    }
    if (!r->b->o.ctx) r->b->o.ctx = longest + r->n + 1;
    return true;
}

/* Chooses what to compare: determined in the first round, the same in all. */
static bool choose_ways(Runs *r)
{
    const Options *o = r->o;
    int32_t nodes = o->budget > 0 ? o->budget : 22, depth = (int32_t) property(r->b->p.engine, "draft.block") - 1;
    r->canvas = property(r->b->p.engine, "model.canvas") > 0;
    sampling_for_texts(&r->b->o, &r->b->p);
    r->way[0] = (Way) { .so = RT_STEP_OPTIONS(.budget = BUDGET_OPTION_PLAIN) };
    snprintf(r->way[0].name, sizeof r->way[0].name, r->canvas ? "denoising" : "plain");
    r->n_ways = 1;
    if (r->b->p.files.draft[0]) {
        if (!o->tree)
            r->way[r->n_ways++] = (Way) { .name = "chain",
                                          .so = RT_STEP_OPTIONS(.budget = depth > 0 && depth < 63 ? depth : 63,
                                                                .chain = true) };
        if (!o->chain) {
            r->way[r->n_ways] = (Way) { .so = RT_STEP_OPTIONS(.budget = nodes) };
            snprintf(r->way[r->n_ways++].name, sizeof r->way[0].name, "tree %d", nodes);
            r->way[r->n_ways++] = (Way) { .name = "auto", .so = RT_STEP_OPTIONS(.budget = BUDGET_OPTION_AUTO) };
        }
    }
    for (int32_t w = 0; w < r->n_ways; w++) {
        Way *way = &r->way[w];
        way->so.chunk = o->chunk;
        way->so.draft_block = o->draft_block;
        size_t cells = (size_t) (r->pairs * r->n_groups);
        way->seconds = calloc(cells, sizeof *way->seconds);
        way->tokens = calloc(cells, sizeof *way->tokens);
        if (!way->seconds || !way->tokens) return complain(o, "out of memory") == 0;
    }
    return true;
}

static bool open_ways(Runs *r)
{
    rt_error e = { 0 };
    rt_session_options so = RT_SESSION_OPTIONS(.ctx = r->b->o.ctx, .draft_ctx = r->o->draft_ctx, .checkpoints = 1,
                                               .ngram = r->o->ngram);
    for (int32_t w = 0; w < r->n_ways; w++) {
        r->way[w].so.hooks = program_hooks(&r->b->p);
        if (rt_step_new(&r->way[w].step, r->b->p.engine, &r->way[w].so, &e) != RT_OK ||
            rt_session_new(&r->way[w].session, r->b->p.engine, &so, &e) != RT_OK)
            return complain(r->o, "%s", e.text) == 0;
        if (denoise_option(r->o) && rt_diffusion_set(r->way[w].session, &r->b->p.denoising) != RT_OK)
            return complain(r->o, "--%s", rt_session_error(r->way[w].session)) == 0;
        if (r->o->simulate && w > 0 && rt_simulate(r->way[w].step, &r->profile, r->o->seed.value) != RT_OK)
            return complain(r->o, "%s", rt_step_error(r->way[w].step)) == 0;
    }
    return true;
}

static void close_ways(Runs *r)
{
    for (int32_t w = 0; w < WAYS; w++) {
        rt_session_free(r->way[w].session);
        rt_step_free(r->way[w].step);
        r->way[w].session = NULL;
        r->way[w].step = NULL;
    }
}

/* ---- measuring ---- */

static bool one_run(Runs *r, Way *way, int32_t at, int32_t n)
{
    rt_sampling s = sampling_of(r->o, n);
    s.seed = r->o->seed.value + (uint64_t) at;
    return generate(&r->got, &r->b->p, way->step, way->session, r->prompt[at], r->n_prompt[at], &s, r->ignore_eos);
}

/* Costs get measured, calibration starts, pages are touched. */
static bool warm_up(Runs *r)
{
    for (int32_t w = 0; w < r->n_ways; w++)
        if (!one_run(r, &r->way[w], 0, r->n < 32 ? r->n : 32)) return false;
    return true;
}

static void count(Runs *r, Way *way, int32_t pair, int32_t at)
{
    const rt_stats *s = &r->got.stats;
    int32_t group = r->group[at], cell = pair * r->n_groups + group;
    way->seconds[cell] += r->got.seconds;
    way->tokens[cell] += (double) s->generated;
    way->generated += s->generated;
    way->passes += s->passes;
    way->blocks += s->blocks;
    way->steps += s->steps;
    way->drafted += s->drafted;
    way->accepted += s->accepted;
    way->decode_s += s->decode_s;
    way->pass_s += s->pass_s;
    way->group_generated[group] += s->generated;
    way->group_passes[group] += s->passes;
    way->drafting += r->got.drafting;
    for (int32_t d = 0; d < DEPTHS; d++) way->reached[d] += r->got.reached[d];
    r->run[r->n_runs++] = (Run) { .way = (int32_t) (way - r->way), .prompt = at, .pair = pair, .tokens = s->generated,
                                  .passes = s->passes, .seconds = r->got.seconds };
}

static void check_text(Runs *r, const Way *way)
{
    if (way == r->way) {
        r->first.n = r->got.n;
        memcpy(r->first.token, r->got.token, sizeof *r->got.token * (size_t) r->got.n);
    } else if (!r->o->simulate) {
        r->differing += r->first.n != r->got.n ||
                        memcmp(r->first.token, r->got.token, sizeof *r->got.token * (size_t) r->got.n) != 0;
    }
}

/* Keeps the profile of the mode with the largest budget, since it has seen the most ranks. */
static void keep_profile(Runs *r)
{
    int32_t widest = 0;
    for (int32_t w = 1; w < r->n_ways; w++)
        if (r->way[w].so.budget > r->way[widest].so.budget) widest = w;
    r->profiled = widest > 0;
    if (r->profiled) rt_step_profile(r->way[widest].step, &r->seen);
}

static bool one_pair(Runs *r)
{
    for (int32_t at = 0; at < r->prompts.n; at++)
        for (int32_t w = 0; w < r->n_ways; w++) {
            const rt_expert_stats before = expert_use_since(&r->b->p, &(rt_expert_stats) { 0 });
            if (!one_run(r, &r->way[w], at, r->n)) return false;
            const rt_expert_stats store = expert_use_since(&r->b->p, &before);
            r->way[w].looked += expert_use_reads(&store);
            r->way[w].missed += store.misses;
            check_text(r, &r->way[w]);
            count(r, &r->way[w], r->pair, at);
            progress_to(&r->bar, (uint64_t) r->n_runs);
        }
    r->pair++;
    return true;
}

/* One round: all pairs, or just one if another program runs in between. */
static bool measure(Bench *b, void *ud)
{
    Runs *r = ud;
    bool good = r->prompt || (prepare(r) && choose_ways(r));
    good = good && open_ways(r) && warm_up(r);
    progress_start_long(&r->bar, "runs", (uint64_t) (r->pairs * r->prompts.n * r->n_ways), r->o->quiet);
    while (good && r->pair < r->pairs) {
        good = one_pair(r);
        if (b->o.compare) break;
    }
    progress_end(&r->bar);
    if (good) keep_profile(r);
    close_ways(r);
    return good;
}

/* ---- reporting ---- */

static double over(double a, double b) { return b > 0 ? a / b : 0; }

/* Medians over the pairs: tokens per second, and their ratio to plain decoding of the same pair. group -1:
 * all prompts. */
static void medians(const Runs *r, const Way *way, int32_t group, double *speed, double *ratio)
{
    for (int32_t what = 0; what < 2; what++) {
        for (int32_t pair = 0; pair < r->pairs; pair++) {
            double t = 0, s = 0, pt = 0, ps = 0;
            for (int32_t g = 0; g < r->n_groups; g++) {
                if (group >= 0 && g != group) continue;
                int32_t cell = pair * r->n_groups + g;
                t += way->tokens[cell];
                s += way->seconds[cell];
                pt += r->way[0].tokens[cell];
                ps += r->way[0].seconds[cell];
            }
            r->scratch[pair] = what ? over(over(t, s), over(pt, ps)) : over(t, s);
        }
        *(what ? ratio : speed) = median(r->scratch, r->pairs);
    }
}

static double accept_length(const Way *way, int32_t group)
{
    return group < 0 ? over((double) way->generated, (double) way->passes)
                     : over((double) way->group_generated[group], (double) way->group_passes[group]);
}

/* For each position of a block, the share of passes with drafting that accepted a token there; 1 plus their sum is the
 * accept length of these passes. */
static json_t *acceptance_json(const Way *way)
{
    json_t *list = json_array();
    for (int32_t d = 0; d < DEPTHS && way->reached[d] > 0; d++)
        json_array_append_new(list, json_real(over((double) way->reached[d], (double) way->drafting)));
    return list;
}

/* The share of decoding time outside the target's passes: lookup, drafting, trees, acceptance, bookkeeping. */
static double beside(const Way *way) { return way->decode_s > 0 ? 1 - way->pass_s / way->decode_s : 0; }

static double missed_share(const Way *way) { return over((double) way->missed, (double) way->looked); }

static double compare_rate(const Runs *r)
{
    return r->o->compare ? compare_median(&r->b->compared, RATE_DECODE, 0) : 0;
}

static json_t *way_json(const Runs *r, const Way *way)
{
    double speed, ratio;
    json_t *groups = json_object();
    for (int32_t g = 0; g < r->n_groups; g++) {
        medians(r, way, g, &speed, &ratio);
        json_object_set_new(groups, r->groups[g], json_pack("{s:f s:f s:f}", "tok_s", speed, "ratio", ratio,
                                                            "accept_length", accept_length(way, g)));
    }
    medians(r, way, -1, &speed, &ratio);
    json_t *j = json_pack("{s:s s:f s:f s:f s:f s:I s:I s:I s:I s:I s:o s:o s:b}", "way", way->name, "tok_s", speed,
                          "ratio", ratio, "accept_length", accept_length(way, -1), "beside_passes", beside(way),
                          "generated", (json_int_t) way->generated, "passes", (json_int_t) way->passes, "drafted",
                          (json_int_t) way->drafted, "accepted", (json_int_t) way->accepted, "drafting_passes",
                          (json_int_t) way->drafting, "acceptance", acceptance_json(way), "classes", groups,
                          "simulated", r->o->simulate && way != r->way);
    if (r->canvas)
        json_object_update_new(j, json_pack("{s:I s:I s:f}", "blocks", (json_int_t) way->blocks, "steps",
                                            (json_int_t) way->steps, "step_ms",
                                            1e3 * over(way->decode_s, (double) way->steps)));
    if (compare_rate(r) > 0) json_object_set_new(j, "compare_ratio", json_real(speed / compare_rate(r)));
    if (r->b->store.slots) json_object_set_new(j, "experts_missed", json_real(missed_share(way)));
    return j;
}

static void print_way(const Runs *r, const Way *way)
{
    double speed, ratio;
    medians(r, way, -1, &speed, &ratio);
    if (r->canvas) {
        printf("%-10s %9.2f tokens/s  %.2f tokens a step  %.2f steps a block  %.3f ms a step\n", way->name, speed,
               accept_length(way, -1), over((double) way->steps, (double) way->blocks),
               1e3 * over(way->decode_s, (double) way->steps));
        return;
    }
    printf("%-10s %9.2f tokens/s  %.2fx plain  accept length %.2f%s", way->name, speed, ratio, accept_length(way, -1),
           r->o->simulate && way != r->way ? "  (simulated acceptance)" : "");
    if (compare_rate(r) > 0) printf("  %.2f times %s", speed / compare_rate(r), r->b->compared_name);
    printf("  %.0f %% beside the passes", 100 * beside(way));
    if (r->b->store.slots) printf("  %.1f %% of experts missed", 100 * missed_share(way));
    putchar('\n');
    for (int32_t g = 0; g < r->n_groups && r->n_groups > 1; g++) {
        medians(r, way, g, &speed, &ratio);
        printf("  %-16s %9.2f tokens/s  %.2fx plain  accept length %.2f\n", r->groups[g], speed, ratio,
               accept_length(way, g));
    }
    if (way->drafting == 0) return;
    printf("  accepted at position");
    for (int32_t d = 0; d < DEPTHS && way->reached[d] > 0; d++)
        printf(" %d: %.0f %%", d + 1, 100 * over((double) way->reached[d], (double) way->drafting));
    printf(" of %lld passes that drafted\n", (long long) way->drafting);
}

static json_t *as_json(Bench *b, void *ud)
{
    const Runs *r = ud;
    json_t *ways = json_array(), *j = bench_json(b);
    for (int32_t w = 0; w < r->n_ways; w++) json_array_append_new(ways, way_json(r, &r->way[w]));
    json_object_update_new(j, json_pack("{s:o s:i s:i s:i s:I s:o s:o}", "draft",
                                        r->b->p.files.draft[0] ? json_string(base_name(r->b->p.files.draft))
                                                               : json_null(), "prompts", r->prompts.n, "pairs",
                                        r->pairs, "n", r->n, "differing_texts", (json_int_t) r->differing, "simulated",
                                        r->o->simulate ? json_string(r->profile_name) : json_null(), "ways", ways));
    if (compare_rate(r) > 0) json_object_set_new(json_object_get(j, "compare"), "tok_s", json_real(compare_rate(r)));
    return j;
}

static void write_csv(Bench *b, void *ud, FILE *f)
{
    const Runs *r = ud;
    fprintf(f, "way,prompt,class,pair,tokens,passes,seconds\n");
    for (int32_t i = 0; i < r->n_runs; i++) {
        const Run *x = &r->run[i];
        fprintf(f, "%s%s,%d,\"", r->way[x->way].name, r->o->simulate && x->way > 0 ? " (simulated)" : "",
                x->prompt + 1);
        for (const char *s = r->groups[r->group[x->prompt]]; *s; s++)
            fprintf(f, "%s%c", *s == '"' ? "\"" : "", (unsigned char) *s < 32 ? ' ' : *s);
        fprintf(f, "\",%d,%lld,%lld,%.6f\n", x->pair + 1, (long long) x->tokens, (long long) x->passes, x->seconds);
    }
    for (int32_t i = 0; i < b->compared.n; i++)
        for (int32_t k = 0; b->compared.rate[i].kind == RATE_DECODE && k < b->compared.rate[i].rounds; k++)
            fprintf(f, "compared,,,%d,1,,%.6f\n", k + 1, 1 / b->compared.rate[i].tok_s[k]);
}

static void draw(Bench *b, void *ud, FILE *f)
{
    const Runs *r = ud;
    static PlotGroup group[GROUPS_MAX];
    PlotSeries s = { 0 };
    PlotText t;
    char subtitle[160];
    memset(group, 0, sizeof group);
    for (int32_t w = 0; w < r->n_ways; w++) {
        s.name[s.n] = r->way[w].name;
        s.colour[s.n++] = w == 0 ? 2 : w + 1 == r->n_ways ? 0 : 2 + w;
        for (int32_t g = 0; g < r->n_groups; g++) {
            double speed, ratio;
            medians(r, &r->way[w], g, &speed, &ratio);
            snprintf(group[g].name, sizeof group[g].name, "%s", r->groups[g]);
            group[g].value[w] = speed;
            snprintf(group[g].label[w], sizeof group[g].label[w], w == 0 ? "%.4g" : "%.2fx", w == 0 ? speed : ratio);
        }
    }
    if (compare_rate(r) > 0) {
        s.name[s.n] = b->compared_name;
        s.colour[s.n] = 1;
        for (int32_t g = 0; g < r->n_groups; g++) {
            group[g].value[s.n] = compare_rate(r);
            snprintf(group[g].label[s.n], sizeof group[g].label[0], "%.4g", compare_rate(r));
        }
        s.n++;
    }
    snprintf(subtitle, sizeof subtitle, "%s%d prompts, %d tokens each at most, medians of %d interleaved runs",
             r->o->simulate ? "SIMULATED acceptance; " : "", r->prompts.n, r->n, r->pairs);
    bench_plot_text(b, &t, "Decoding with and without speculation", subtitle);
    plot_bars(f, &t, "tokens per second", &s, group, r->n_groups);
}

static bool write_profile(Runs *r)
{
    if (!r->o->write_profile) return true;
    if (!r->profiled || r->o->simulate)
        return complain(r->o, "--write-profile needs a drafter and real acceptance") == 0;
    char name[320];
    snprintf(name, sizeof name, "%.120s with %.120s, %s", base_name(r->b->p.files.model),
             base_name(r->b->p.files.draft), base_name(r->o->prompts));
    return profile_write(r->o, &r->seen, name, r->o->write_profile);
}

static void print(Bench *b, void *ud)
{
    const Runs *r = ud;
    printf("%d prompts, %d tokens each at most, medians of %d interleaved runs%s%s%s\n", r->prompts.n, r->n, r->pairs,
           r->o->simulate ? "; SIMULATED acceptance, profile " : "", r->o->simulate ? r->profile_name : "",
           r->o->simulate ? " (the text means nothing)" : "");
    for (int32_t w = 0; w < r->n_ways; w++) print_way(r, &r->way[w]);
    if (compare_rate(r) > 0)
        printf("%-10s %9.2f tokens/s, in turn: %s\n", b->compared_name, compare_rate(r), r->o->compare);
}

static const BenchReport REPORT = { write_csv, draw, as_json, print };

static int report(Runs *r)
{
    r->scratch = calloc((size_t) r->pairs, sizeof *r->scratch);
    if (!r->scratch) return complain(r->o, "out of memory");
    bool good = write_profile(r);
    good &= bench_report(r->b, &REPORT, r);
    free(r->scratch);
    if (r->differing)
        good = complain(r->o, "%lld texts differ from plain decoding (see ratoon verify)",
                        (long long) r->differing) == 0;
    return good ? EXIT_FINE : EXIT_FAILED;
}

int bench_prompts(Bench *b)
{
    Runs r = { .b = b, .o = &b->o, .pairs = b->o.pairs ? b->o.pairs : b->o.compare ? 3 : 5, .n = b->o.n ? b->o.n : 128,
               .ignore_eos = b->o.ignore_eos || b->o.simulate };
    int status = EXIT_FAILED;
    bool ready = !b->o.simulate || profile_read(&b->o, &r.profile, r.profile_name, b->o.simulate);
    if (ready && prompts_read(&b->o, &r.prompts, b->o.prompts) && bench_rounds(b, WITH_DRAFTER, measure, &r))
        status = report(&r);
    for (int32_t i = 0; r.prompt && i < r.prompts.n; i++) free(r.prompt[i]);
    for (int32_t w = 0; w < r.n_ways; w++) {
        free(r.way[w].seconds);
        free(r.way[w].tokens);
    }
    free(r.prompt);
    free(r.n_prompt);
    free(r.group);
    free(r.run);
    free(r.got.token);
    free(r.first.token);
    prompts_free(&r.prompts);
    return status;
}
