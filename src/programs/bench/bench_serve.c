/* bench_serve.c - several streams at once, as the server's engine thread runs them: all in one pass, prompts a chunk at
 * a time and one after another. All streams start together and generate the same number of tokens, ignoring end tokens.
 * Plain decoding, speculation and all numbers of streams take turns.
 *
 *     stream 1   [prompt] token token token token ... token
 *     stream 2            [prompt] token token token ... token
 *                                  |-- tokens per second --|
 *
 * The rate is measured from the last stream's first token to the first stream's last, so that all of them are
 * running. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "programs/bench/bench.h"
#include "programs/expert_use.h"
#include "programs/sampling.h"

enum { COUNTS_MAX = 8, STREAMS_MAX = 64, WAYS = 2, PROMPT_TOKENS = 64 };
static const char *const WAY_NAME[WAYS] = { "plain", "speculation" };

typedef struct {
    rt_session *s;
    int32_t    *text, *first_text;                 /* [n]: of this run; of the first run, which all others must equal */
    bool        known, reads;
    int32_t     n;
    uint64_t    read;                              /* clock value when a chunk of its prompt was last read */
    double      first, last;                       /* when its first tokens arrived, and the latest */
} Stream;

/* One number of streams in one mode: values of all runs. */
typedef struct {
    double *tok_s, *whole;                         /* [pairs]: while all run; including prompts and ends */
    double *wait, *gap; int32_t n_wait, n_gap;     /* ms to first tokens; ms between tokens, even within a block */
    int64_t generated, passes, read;               /* read: experts of a mixture, in the passes of each stream */
    int64_t looked, missed;                        /* experts that passes looked for in memory, prompts included, and
                                                    * those that were not there */
} Cell;

typedef struct { double at; int32_t n; } Arrival;
/* read: per token; missed: share */
typedef struct { double tok_s, whole, wait, wait_95, gap, gap_95, accept, read, missed; } Figures;

typedef struct {
    Bench      *b;
    const Options *o;
    int32_t     count[COUNTS_MAX], n_counts, most, pairs, n;
    Prompts     prompts;
    int32_t    *prompt[STREAMS_MAX], n_prompt[STREAMS_MAX];
    Stream      stream[STREAMS_MAX];
    Cell        cell[COUNTS_MAX][WAYS];
    Figures     figure[COUNTS_MAX][WAYS];          /* results computed from the cells */
    double      pass_ms[COUNTS_MAX], one_ms;       /* of as many rows as streams; of one row */
    Arrival    *arrival; int32_t n_arrival;        /* of the current run: [streams * n] */
    rt_step    *step;
    rt_profile  profile;
    char        profile_name[64];
    int64_t     differing;
    Progress    bar;
} Serve;

/* ---- preparing ---- */

/* Prompts if --prompts is not given: they do not affect the model's speed, but do affect how much can be guessed. */
static int32_t *made_up(const Serve *v, int32_t at)
{
    uint64_t x = 0x9e3779b97f4a7c15u + (uint64_t) at, vocab = (uint64_t) property(v->b->p.engine, "model.vocab");
    int32_t *t = malloc(PROMPT_TOKENS * sizeof *t);
    for (int32_t i = 0; t && i < PROMPT_TOKENS; i++) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        t[i] = (int32_t) (x % vocab);
    }
    return t;
}

static bool prepare(Serve *v)
{
    size_t n = (size_t) v->n, pairs = (size_t) v->pairs;
    int32_t longest = 0;
    bool good = true;
    for (int32_t i = 0; good && i < v->most; i++) {
        Stream *x = &v->stream[i];
        if (v->prompts.n > 0) {
            const Prompt *p = &v->prompts.at[i % v->prompts.n];
            if (!text_tokens(&v->b->p, &v->prompt[i], &v->n_prompt[i], p->text, p->len, v->o->special)) return false;
        } else {
            v->prompt[i] = made_up(v, i);
            v->n_prompt[i] = PROMPT_TOKENS;
        }
        x->text = malloc(n * sizeof *x->text);
        x->first_text = malloc(n * sizeof *x->first_text);
        good = v->prompt[i] && x->text && x->first_text;
        if (v->n_prompt[i] > longest) longest = v->n_prompt[i];
    }
    for (int32_t c = 0; c < v->n_counts; c++)
        for (int32_t w = 0; w < WAYS; w++) {
            Cell *x = &v->cell[c][w];
            size_t waits = pairs * (size_t) v->count[c];
            x->tok_s = calloc(pairs, sizeof *x->tok_s);
            x->whole = calloc(pairs, sizeof *x->whole);
            x->wait = calloc(waits, sizeof *x->wait);
            x->gap = calloc(waits * n, sizeof *x->gap);
            good = good && x->tok_s && x->whole && x->wait && x->gap;
        }
    v->arrival = malloc((size_t) v->most * n * sizeof *v->arrival);
    if (!v->b->o.ctx) v->b->o.ctx = longest + v->n + STREAMS_MAX + 1;      /* room for the widest pass to be timed */
    return (good && v->arrival) || complain(v->o, "out of memory") == 0;
}

static bool open_streams(Serve *v)
{
    rt_error e = { 0 };
    rt_session_options so = program_session_options(v->o);
    rt_step_options st = program_step_options(&v->b->p);
    st.sessions = v->most;
    bool good = rt_step_new(&v->step, v->b->p.engine, &st, &e) == RT_OK;
    if (good && v->o->simulate && rt_simulate(v->step, &v->profile, v->o->seed.value) != RT_OK)
        return complain(v->o, "%s", rt_step_error(v->step)) == 0;
    for (int32_t i = 0; good && i < v->most; i++)
        good = rt_session_new(&v->stream[i].s, v->b->p.engine, &so, &e) == RT_OK;
    return good || complain(v->o, "%s", e.text) == 0;
}

static void close_streams(Serve *v)
{
    for (int32_t i = 0; i < v->most; i++) rt_session_free(v->stream[i].s);
    rt_step_free(v->step);
}

/* ---- a run ---- */

/* Starts from an empty context, whatever the session holds. */
static bool begin(Serve *v, int32_t at, int32_t n, bool speculates)
{
    Stream *x = &v->stream[at];
    const int32_t *t = v->prompt[at], other = t[0] == 0;
    rt_sampling p = sampling_of(v->o, n);
    p.seed = v->o->seed.value + (uint64_t) at;
    bool good = rt_prompt(x->s, &other, 1) == RT_OK && rt_prompt(x->s, t, (size_t) v->n_prompt[at]) == RT_OK &&
                rt_speculate(x->s, speculates) == RT_OK && rt_sampling_set(x->s, &p) == RT_OK;
    x->n = 0;
    x->reads = v->n_prompt[at] > 1;
    x->read = 0;
    return good || complain(v->o, "%s", rt_session_error(x->s)) == 0;
}

/* Puts the prompt that has waited longest first, then the streams that are decoding: the step reads a chunk of the
 * first session only. */
static int32_t gather(Serve *v, Stream **in, int32_t count, int32_t n)
{
    int32_t k = 0;
    Stream *reader = NULL;
    for (int32_t i = 0; i < count; i++) {
        Stream *x = &v->stream[i];
        if (x->reads && (!reader || x->read < reader->read)) reader = x;
    }
    if (reader) in[k++] = reader;
    for (int32_t i = 0; i < count; i++)
        if (!v->stream[i].reads && v->stream[i].n < n) in[k++] = &v->stream[i];
    return k;
}

/* cell NULL: records nothing. */
static void take(Serve *v, Cell *cell, Stream *x, const rt_block *b, double began, double now)
{
    if (b->n == 0) return;
    memcpy(x->text + x->n, b->token, sizeof *x->text * (size_t) b->n);
    v->arrival[v->n_arrival++] = (Arrival) { now, b->n };
    if (x->n == 0) x->first = now;
    if (cell && x->n == 0) cell->wait[cell->n_wait++] = 1e3 * (now - began);
    for (int32_t i = 0; cell && x->n > 0 && i < b->n; i++) cell->gap[cell->n_gap++] = 1e3 * (now - x->last) / b->n;
    x->n += b->n;
    x->last = now;
}

static bool pass(Serve *v, Cell *cell, Stream **in, int32_t k, uint64_t *clock, double began)
{
    rt_session *s[STREAMS_MAX];
    rt_block out[STREAMS_MAX];
    for (int32_t i = 0; i < k; i++) s[i] = in[i]->s;
    rt_status st = rt_step_run(v->step, s, out, (size_t) k);
    double now = seconds_now();
    if (st != RT_OK) return st == RT_ECANCEL ? false : complain(v->o, "%s", rt_step_error(v->step)) == 0;
    for (int32_t i = 0; i < k; i++) {
        if (out[i].status < 0) return complain(v->o, "%s", rt_session_error(s[i])) == 0;
        if (in[i]->reads) {
            const int32_t *text;
            int32_t n = (int32_t) rt_session_text(s[i], &text);
            in[i]->reads = rt_save_place(s[i], n - 1) < n - 1;
            in[i]->read = ++*clock;
        } else {
            if (out[i].n == 0)
                return complain(v->o, "a stream ended after %d tokens: --ctx %d is too small", in[i]->n,
                                v->b->o.ctx) == 0;
            take(v, cell, in[i], &out[i], began, now);
        }
    }
    return true;
}

/* A stream's text must be the same alone, in any batch, with and without speculation. */
static void check_text(Serve *v, Stream *x)
{
    size_t bytes = sizeof *x->text * (size_t) v->n;
    if (!x->known) memcpy(x->first_text, x->text, bytes);
    else v->differing += memcmp(x->first_text, x->text, bytes) != 0;
    x->known = true;
}

static void keep_rates(Serve *v, Cell *cell, int32_t count, int32_t pair, double began)
{
    double from = 0, to = INFINITY, end = 0;
    int64_t inside = 0;
    for (int32_t i = 0; i < count; i++) {
        const Stream *x = &v->stream[i];
        rt_stats st;
        rt_stats_get(x->s, &st, sizeof st);
        cell->generated += st.generated;
        cell->passes += st.passes;
        cell->read += st.experts_read;
        if (x->first > from) from = x->first;
        if (x->last < to) to = x->last;
        if (x->last > end) end = x->last;
    }
    for (int32_t i = 0; i < v->n_arrival; i++)
        if (v->arrival[i].at > from && v->arrival[i].at <= to) inside += v->arrival[i].n;
    cell->tok_s[pair] = to > from ? (double) inside / (to - from) : 0;
    cell->whole[pair] = count * v->n / (end - began);
}

static bool run(Serve *v, Cell *cell, int32_t count, int32_t n, bool speculates, int32_t pair)
{
    Stream *in[STREAMS_MAX];
    uint64_t clock = 0;
    int32_t k;
    v->n_arrival = 0;
    for (int32_t i = 0; i < count; i++)
        if (!begin(v, i, n, speculates)) return false;
    const rt_expert_stats before = expert_use_since(&v->b->p, &(rt_expert_stats) { 0 });
    double began = seconds_now();
    while ((k = gather(v, in, count, n)) > 0)
        if (!pass(v, cell, in, k, &clock, began)) return false;
    if (!cell) return true;
    keep_rates(v, cell, count, pair, began);
    const rt_expert_stats store = expert_use_since(&v->b->p, &before);
    cell->looked += expert_use_reads(&store);
    cell->missed += store.misses;
    for (int32_t i = 0; i < count && !(v->o->simulate && speculates); i++) check_text(v, &v->stream[i]);
    return true;
}

/* Takes the fastest of all pairs, since other load on the machine only adds time. */
static bool time_passes(Serve *v)
{
    double t[2];
    for (int32_t c = -1; c < v->n_counts; c++) {
        double *best = c < 0 ? &v->one_ms : &v->pass_ms[c];
        rt_status st = rt_time_pass(v->step, v->stream[0].s, -1, c < 0 ? 1 : v->count[c], 2, t);
        if (st != RT_OK) return st == RT_ECANCEL ? false : complain(v->o, "%s", rt_step_error(v->step)) == 0;
        for (int32_t i = 0; i < 2; i++)
            if (*best == 0 || t[i] < *best) *best = t[i];
    }
    return true;
}

static bool measure(Bench *b, void *ud)
{
    Serve *v = ud;
    int32_t warm = v->n < 16 ? v->n : 16, done = 0;
    if (property(b->p.engine, "model.canvas") > 0)
        return complain(v->o, "--serve: the model denoises, which has no speculation to compare with; --prompt-tokens "
                        "times its steps") == 0;
    bool good = prepare(v) && open_streams(v);
    /* costs get measured, pages are touched */
    for (int32_t w = 0; good && w < WAYS; w++) good = run(v, NULL, v->most, warm, w == 1, 0);
    bench_peaks(b);
    progress_start_long(&v->bar, "streams", (uint64_t) (v->pairs * v->n_counts * WAYS), v->o->quiet);
    for (int32_t pair = 0; good && pair < v->pairs; pair++) {
        for (int32_t c = 0; good && c < v->n_counts; c++)
            for (int32_t w = 0; good && w < WAYS; w++) {
                good = run(v, &v->cell[c][w], v->count[c], v->n, w == 1, pair);
                progress_to(&v->bar, (uint64_t) ++done);
            }
        good = good && time_passes(v);
    }
    progress_end(&v->bar);
    close_streams(v);
    return good;
}

/* ---- reporting ---- */

/* x is sorted: its 95th percentile (nearest rank). */
static double high(const double *x, int32_t n) { return n > 0 ? x[(95 * n + 99) / 100 - 1] : 0; }

static Figures figures(Serve *v, int32_t c, int32_t w)
{
    Cell *x = &v->cell[c][w];
    Figures f = { .tok_s = median(x->tok_s, v->pairs), .whole = median(x->whole, v->pairs),
                  .wait = median(x->wait, x->n_wait), .gap = median(x->gap, x->n_gap),
                  .accept = x->passes > 0 ? (double) x->generated / (double) x->passes : 0 };
    /* a pass counts for every stream that it decodes for */
    f.read = x->generated > 0 ? (double) x->read / v->count[c] / (double) x->generated : 0;
    f.missed = x->looked > 0 ? (double) x->missed / (double) x->looked : 0;
    f.wait_95 = high(x->wait, x->n_wait);
    f.gap_95 = high(x->gap, x->n_gap);
    return f;
}

/* Highest possible speed-up over one plain stream, if only passes took time. */
static double allowed(const Serve *v, int32_t c) { return v->count[c] * v->one_ms / v->pass_ms[c]; }

/* NULL: the numbers of streams did not include 1. */
static const Figures *single(const Serve *v, int32_t w)
{
    for (int32_t c = 0; c < v->n_counts; c++)
        if (v->count[c] == 1) return &v->figure[c][w];
    return NULL;
}

static void print(Bench *b, void *ud)
{
    const Serve *v = ud;
    printf("%s\n%s\n%d tokens each, medians of %d interleaved runs%s%s%s\n", b->model, b->machine, v->n,
           v->pairs, v->o->simulate ? "; SIMULATED acceptance, profile " : "", v->o->simulate ? v->profile_name : "",
           v->o->simulate ? " (with speculation the text means nothing)" : "");
    for (int32_t c = 0; c < v->n_counts; c++) {
        if (v->count[c] > 1)
            printf("a pass of %d rows takes %.2f times one of 1, which allows %.2f times the plain rate of one "
                   "stream\n", v->count[c], v->pass_ms[c] / v->one_ms, allowed(v, c));
        for (int32_t w = 0; w < WAYS; w++) {
            const Figures *x = &v->figure[c][w], *one = single(v, 0);
            printf("%2d stream%s %-11s %9.2f tokens/s", v->count[c], v->count[c] == 1 ? " " : "s", WAY_NAME[w],
                   x->tok_s);
            if (one && one->tok_s > 0) printf("  %5.2fx one plain", x->tok_s / one->tok_s);
            printf("  first token %.1f ms, 95 %%: %.1f  between tokens %.2f ms, 95 %%: %.2f", x->wait, x->wait_95,
                   x->gap, x->gap_95);
            if (w == 1) printf("  accept length %.2f", x->accept);
            if (x->read > 0) printf("  experts read %.1f per token", x->read);
            if (b->store.slots) printf(", %.1f %% missed", 100 * x->missed);
            putchar('\n');
        }
    }
}

static json_t *as_json(Bench *b, void *ud)
{
    const Serve *v = ud;
    json_t *list = json_array(), *j = bench_json(b);
    for (int32_t c = 0; c < v->n_counts; c++)
        for (int32_t w = 0; w < WAYS; w++) {
            const Figures *x = &v->figure[c][w];
            json_array_append_new(list, json_pack("{s:i s:s s:f s:f s:f s:f s:f s:f s:f s:f s:f s:b s:f}", "streams",
                                                  v->count[c], "way", WAY_NAME[w], "tok_s", x->tok_s, "whole_tok_s",
                                                  x->whole, "first_token_ms", x->wait, "first_token_ms_95", x->wait_95,
                                                  "token_ms", x->gap, "token_ms_95", x->gap_95, "accept_length",
                                                  x->accept, "pass_ms", v->pass_ms[c], "pass_ratio",
                                                  v->pass_ms[c] / v->one_ms, "simulated", v->o->simulate && w == 1,
                                                  "experts_read", x->read));
            if (b->store.slots)
                json_object_set_new(json_array_get(list, json_array_size(list) - 1), "experts_missed",
                                    json_real(x->missed));
        }
    json_object_update_new(j, json_pack("{s:i s:i s:I s:o}", "n", v->n, "pairs", v->pairs, "differing_texts",
                                        (json_int_t) v->differing, "streams", list));
    return j;
}

static void write_csv(Bench *b, void *ud, FILE *f)
{
    const Serve *v = ud;
    (void) b;
    fprintf(f, "streams,way,tok_s,whole_tok_s,first_token_ms,first_token_ms_95,token_ms,token_ms_95,accept_length,"
            "pass_ms,pass_ratio\n");
    for (int32_t c = 0; c < v->n_counts; c++)
        for (int32_t w = 0; w < WAYS; w++) {
            const Figures *x = &v->figure[c][w];
            fprintf(f, "%d,%s%s,%.4f,%.4f,%.3f,%.3f,%.4f,%.4f,%.4f,%.4f,%.4f\n", v->count[c], WAY_NAME[w],
                    v->o->simulate && w == 1 ? " (simulated)" : "", x->tok_s, x->whole, x->wait, x->wait_95, x->gap,
                    x->gap_95, x->accept, v->pass_ms[c], v->pass_ms[c] / v->one_ms);
        }
}

static void draw(Bench *b, void *ud, FILE *f)
{
    const Serve *v = ud;
    PlotGroup group[COUNTS_MAX];
    PlotSeries s = { .name = { WAY_NAME[0], WAY_NAME[1] }, .colour = { 2, 0 }, .n = WAYS };
    PlotText t;
    char subtitle[160];
    const Figures *one = single(v, 0);
    memset(group, 0, sizeof group);
    for (int32_t c = 0; c < v->n_counts; c++) {
        snprintf(group[c].name, sizeof group[c].name, "%d stream%s", v->count[c], v->count[c] == 1 ? "" : "s");
        for (int32_t w = 0; w < WAYS; w++) {
            group[c].value[w] = v->figure[c][w].tok_s;
            if (one && one->tok_s > 0 && one != &v->figure[c][w])
                snprintf(group[c].label[w], sizeof group[c].label[w], "%.2fx", v->figure[c][w].tok_s / one->tok_s);
            else
                snprintf(group[c].label[w], sizeof group[c].label[w], "%.4g", v->figure[c][w].tok_s);
        }
    }
    snprintf(subtitle, sizeof subtitle, "%s%d tokens each, medians of %d interleaved runs",
             v->o->simulate ? "SIMULATED acceptance; " : "", v->n, v->pairs);
    bench_plot_text(b, &t, "Streams at once, all of them in every pass", subtitle);
    plot_bars(f, &t, "tokens per second of all streams", &s, group, v->n_counts);
}

static const BenchReport REPORT = { write_csv, draw, as_json, print };

static int report(Serve *v)
{
    for (int32_t c = 0; c < v->n_counts; c++)
        for (int32_t w = 0; w < WAYS; w++) v->figure[c][w] = figures(v, c, w);
    bool good = bench_report(v->b, &REPORT, v);
    if (v->differing)
        good = complain(v->o, "%lld texts differ from the first run's (see ratoon verify)",
                        (long long) v->differing) == 0;
    return good ? EXIT_FINE : EXIT_FAILED;
}

int bench_serve(Bench *b)
{
    static Serve v;
    int32_t *counts = NULL;
    int status = EXIT_FAILED;
    v = (Serve) { .b = b, .o = &b->o, .pairs = b->o.pairs ? b->o.pairs : 3, .n = b->o.n ? b->o.n : 128 };
    if (!ids_read(&b->o, &counts, &v.n_counts, b->o.serve, "--serve", 1, STREAMS_MAX)) return EXIT_USAGE;
    if (v.n_counts == 0 || v.n_counts > COUNTS_MAX) {
        free(counts);
        complain(&b->o, "--serve: %d numbers were given, expected 1 to %d", v.n_counts, COUNTS_MAX);
        return EXIT_USAGE;
    }
    for (int32_t c = 0; c < v.n_counts; c++) {
        v.count[c] = counts[c];
        if (counts[c] > v.most) v.most = counts[c];
    }
    free(counts);
    bool ready = (!b->o.prompts || prompts_read(&b->o, &v.prompts, b->o.prompts)) &&
                 (!b->o.simulate || profile_read(&b->o, &v.profile, v.profile_name, b->o.simulate));
    if (ready && bench_rounds(b, WITH_DRAFTER, measure, &v)) status = report(&v);
    for (int32_t i = 0; i < v.most; i++) {
        free(v.prompt[i]);
        free(v.stream[i].text);
        free(v.stream[i].first_text);
    }
    for (int32_t c = 0; c < v.n_counts; c++)
        for (int32_t w = 0; w < WAYS; w++) {
            free(v.cell[c][w].tok_s);
            free(v.cell[c][w].whole);
            free(v.cell[c][w].wait);
            free(v.cell[c][w].gap);
        }
    free(v.arrival);
    prompts_free(&v.prompts);
    return status;
}
