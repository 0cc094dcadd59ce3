/* bench_prompts.c - plain, chain, tree and auto take turns on the same prompts. Each way has a session and a step object of its own and
 * is warmed up first; what is timed is decoding, without the prompt. Ratios are taken inside a pair of runs, medians over the pairs. */
#include <stdlib.h>
#include <string.h>

#include "programs/bench.h"
#include "programs/generate.h"

enum { WAYS = 4, GROUPS_MAX = 16 };

typedef struct {
    char        name[24];
    rt_step    *step;
    rt_session *session;
    rt_step_options so;
    double     *seconds, *tokens;                  /* [pairs, groups] */
    int64_t     generated, passes, drafted, accepted;
    int64_t     group_generated[GROUPS_MAX], group_passes[GROUPS_MAX];
} Way;

typedef struct {
    Bench      *b;
    const Options *o;
    Prompts     prompts;
    int32_t   **prompt, *n_prompt, *group;         /* [prompts] */
    char        groups[GROUPS_MAX][32]; int32_t n_groups;
    Way         way[WAYS];
    int32_t     n_ways, pairs, n;
    Generated   got, first;                        /* first: plain decoding's text of the prompt under way */
    int64_t     differing;
    rt_profile  profile;
    char        profile_name[64];
    bool        ignore_eos;
    Progress    bar;
} Runs;

static int32_t find_group(Runs *r, const char *name)
{
    int32_t i = 0;
    while (i < r->n_groups && strcmp(r->groups[i], name) != 0) i++;
    if (i == GROUPS_MAX) return GROUPS_MAX - 1;    /* more classes than a table shows: the rest counts as the last */
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
    if (!r->prompt || !r->n_prompt || !r->group || !r->got.token || !r->first.token) return complain(r->o, "out of memory") == 0;
    int32_t longest = 0;
    for (int32_t i = 0; i < r->prompts.n; i++) {
        if (!text_tokens(p, &r->prompt[i], &r->n_prompt[i], r->prompts.at[i].text, r->prompts.at[i].len, p->o->special)) return false;
        r->group[i] = find_group(r, r->prompts.at[i].group[0] ? r->prompts.at[i].group : "all");
        if (r->n_prompt[i] > longest) longest = r->n_prompt[i];
    }
    if (!r->b->o.ctx) r->b->o.ctx = longest + r->n + 1;
    return true;
}

static bool open_ways(Runs *r)
{
    const Options *o = r->o;
    int32_t nodes = o->budget > 0 ? o->budget : 22, depth = (int32_t) property(r->b->p.engine, "draft.block") - 1;
    rt_error e = { 0 };
    r->way[0] = (Way) { .name = "plain", .so = { .budget = BUDGET_OPTION_PLAIN } };
    r->n_ways = 1;
    if (r->b->p.files.draft[0]) {
        if (!o->tree) r->way[r->n_ways++] = (Way) { .name = "chain", .so = { .budget = depth > 0 && depth < 63 ? depth : 63, .chain = true } };
        if (!o->chain) {
            r->way[r->n_ways] = (Way) { .so = { .budget = nodes } };
            snprintf(r->way[r->n_ways++].name, sizeof r->way[0].name, "tree %d", nodes);
            r->way[r->n_ways++] = (Way) { .name = "auto", .so = { .budget = BUDGET_OPTION_AUTO } };
        }
    }
    for (int32_t w = 0; w < r->n_ways; w++) {
        Way *way = &r->way[w];
        way->so.chunk = o->chunk;
        way->so.draft_block = o->draft_block;
        if (o->simulate && w > 0) {
            way->so.simulate = &r->profile;
            way->so.simulate_seed = o->seed;
        }
        size_t cells = (size_t) (r->pairs * r->n_groups);
        way->seconds = calloc(cells, sizeof *way->seconds);
        way->tokens = calloc(cells, sizeof *way->tokens);
        if (!way->seconds || !way->tokens) return complain(o, "out of memory") == 0;
        rt_session_options so = { .ctx = r->b->o.ctx, .draft_ctx = o->draft_ctx, .checkpoints = 1, .ngram = o->ngram };
        if (rt_step_new(&way->step, r->b->p.engine, &way->so, &e) != RT_OK || rt_session_new(&way->session, r->b->p.engine, &so, &e) != RT_OK)
            return complain(o, "%s", e.text) == 0;
    }
    return true;
}

static void close_ways(Runs *r)
{
    for (int32_t w = 0; w < WAYS; w++) {
        rt_session_free(r->way[w].session);
        rt_step_free(r->way[w].step);
        free(r->way[w].seconds);
        free(r->way[w].tokens);
    }
}

/* ---- measuring ---- */

static bool one_run(Runs *r, Way *way, int32_t at, int32_t n)
{
    rt_sampling s = program_sampling(r->o, n);
    s.seed = r->o->seed + (uint64_t) at;
    return generate(&r->got, &r->b->p, way->step, way->session, r->prompt[at], r->n_prompt[at], &s, r->ignore_eos);
}

/* Costs are measured, calibration begins, memory is touched. */
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
    way->drafted += s->drafted;
    way->accepted += s->accepted;
    way->group_generated[group] += s->generated;
    way->group_passes[group] += s->passes;
    if (r->o->csv)
        printf("%s%s,%d,%s,%d,%lld,%lld,%.6f\n", way->name, r->o->simulate && way != r->way ? " (simulated)" : "", at + 1, r->groups[group], pair + 1,
               (long long) s->generated, (long long) s->passes, r->got.seconds);
}

static void check_text(Runs *r, const Way *way)
{
    if (way == r->way) {
        r->first.n = r->got.n;
        memcpy(r->first.token, r->got.token, sizeof *r->got.token * (size_t) r->got.n);
    } else if (!r->o->simulate) {
        r->differing += r->first.n != r->got.n || memcmp(r->first.token, r->got.token, sizeof *r->got.token * (size_t) r->got.n) != 0;
    }
}

static bool measure(Runs *r)
{
    if (r->o->csv) printf("way,prompt,class,pair,tokens,passes,seconds\n");
    progress_start(&r->bar, "bench", (uint64_t) (r->pairs * r->prompts.n * r->n_ways));
    uint64_t done = 0;
    for (int32_t pair = 0; pair < r->pairs; pair++)
        for (int32_t at = 0; at < r->prompts.n; at++)
            for (int32_t w = 0; w < r->n_ways; w++) {
                if (!one_run(r, &r->way[w], at, r->n)) return false;
                check_text(r, &r->way[w]);
                count(r, &r->way[w], pair, at);
                progress_to(&r->bar, ++done);
            }
    progress_end(&r->bar);
    return true;
}

/* ---- reporting ---- */

static double over(double a, double b) { return b > 0 ? a / b : 0; }

/* Medians over the pairs: tokens per second, and their ratio to plain decoding of the same pair. group -1: all prompts. */
static void medians(const Runs *r, const Way *way, int32_t group, double *speed, double *ratio, double *x)
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
            x[pair] = what ? over(over(t, s), over(pt, ps)) : over(t, s);
        }
        *(what ? ratio : speed) = median(x, r->pairs);
    }
}

static json_t *way_json(const Runs *r, const Way *way, double *x)
{
    double speed, ratio;
    json_t *groups = json_object();
    for (int32_t g = 0; g < r->n_groups; g++) {
        medians(r, way, g, &speed, &ratio, x);
        json_object_set_new(groups, r->groups[g], json_pack("{s:f s:f s:f}", "tok_s", speed, "ratio", ratio, "accept_length",
                                                            over((double) way->group_generated[g], (double) way->group_passes[g])));
    }
    medians(r, way, -1, &speed, &ratio, x);
    return json_pack("{s:s s:f s:f s:f s:I s:I s:I s:I s:o s:b}", "way", way->name, "tok_s", speed, "ratio", ratio, "accept_length",
                     over((double) way->generated, (double) way->passes), "generated", (json_int_t) way->generated, "passes", (json_int_t) way->passes, "drafted",
                     (json_int_t) way->drafted, "accepted", (json_int_t) way->accepted, "classes", groups, "simulated", r->o->simulate && way != r->way);
}

static void print_way(const Runs *r, const Way *way, double *x)
{
    double speed, ratio;
    medians(r, way, -1, &speed, &ratio, x);
    printf("%-10s %9.2f tokens/s  %.2fx plain  accept length %.2f%s\n", way->name, speed, ratio, over((double) way->generated, (double) way->passes),
           r->o->simulate && way != r->way ? "  (simulated acceptance)" : "");
    for (int32_t g = 0; g < r->n_groups && r->n_groups > 1; g++) {
        medians(r, way, g, &speed, &ratio, x);
        printf("  %-16s %9.2f tokens/s  %.2fx plain  accept length %.2f\n", r->groups[g], speed, ratio,
               over((double) way->group_generated[g], (double) way->group_passes[g]));
    }
}

static int report(Runs *r)
{
    double *x = calloc((size_t) r->pairs, sizeof *x);
    if (!x) return complain(r->o, "out of memory");
    int status = EXIT_FINE;
    if (r->o->json) {
        json_t *ways = json_array();
        for (int32_t w = 0; w < r->n_ways; w++) json_array_append_new(ways, way_json(r, &r->way[w], x));
        json_t *j = json_pack("{s:s s:o s:i s:i s:i s:I s:o s:o}", "model", base_name(r->b->p.files.model), "draft",
                              r->b->p.files.draft[0] ? json_string(base_name(r->b->p.files.draft)) : json_null(), "prompts", r->prompts.n, "pairs", r->pairs,
                              "n", r->n, "differing_texts", (json_int_t) r->differing, "simulated", r->o->simulate ? json_string(r->profile_name) : json_null(), "ways", ways);
        if (!json_print(r->o, j)) status = EXIT_FAILED;
    } else if (!r->o->csv) {
        printf("%d prompts, %d tokens each at most, medians of %d interleaved runs%s%s%s\n", r->prompts.n, r->n, r->pairs,
               r->o->simulate ? "; SIMULATED acceptance, profile " : "", r->o->simulate ? r->profile_name : "", r->o->simulate ? " (the text means nothing)" : "");
        for (int32_t w = 0; w < r->n_ways; w++) print_way(r, &r->way[w], x);
    }
    free(x);
    if (output_done(r->o)) status = EXIT_FAILED;
    if (r->differing) status = complain(r->o, "%lld texts differ from plain decoding (see ratoon verify)", (long long) r->differing);
    return status;
}

/* The way that looked at the most nodes has seen the most ranks. */
static bool write_profile(Runs *r)
{
    rt_profile p;
    int32_t widest = 0;
    if (!r->o->write_profile) return true;
    for (int32_t w = 1; w < r->n_ways; w++)
        if (r->way[w].so.budget > r->way[widest].so.budget) widest = w;
    if (widest == 0 || r->o->simulate) return complain(r->o, "--write-profile needs a drafter and real acceptance") == 0;
    rt_step_profile(r->way[widest].step, &p);
    char name[320];
    snprintf(name, sizeof name, "%.120s with %.120s, %s", base_name(r->b->p.files.model), base_name(r->b->p.files.draft), base_name(r->o->prompts));
    return profile_write(r->o, &p, name, r->o->write_profile);
}

int bench_prompts(Bench *b)
{
    Runs r = { .b = b, .o = &b->o, .pairs = b->o.pairs ? b->o.pairs : 5, .n = b->o.n ? b->o.n : 128, .ignore_eos = b->o.ignore_eos || b->o.simulate };
    int status = EXIT_FAILED;
    bool ready = !b->o.simulate || profile_read(&b->o, &r.profile, r.profile_name, b->o.simulate);
    if (ready && prompts_read(&b->o, &r.prompts, b->o.prompts)) {
        if (program_open(&b->p, &b->o, WITH_DRAFTER, NULL, 0) && prepare(&r) && open_ways(&r) && warm_up(&r) && measure(&r)) {
            status = report(&r);
            if (!write_profile(&r)) status = EXIT_FAILED;
        } else if (interrupts) {
            status = EXIT_INTERRUPTED;
        }
        close_ways(&r);
        program_close(&b->p);
    }
    for (int32_t i = 0; r.prompt && i < r.prompts.n; i++) free(r.prompt[i]);
    free(r.prompt);
    free(r.n_prompt);
    free(r.group);
    free(r.got.token);
    free(r.first.token);
    prompts_free(&r.prompts);
    return status;
}
