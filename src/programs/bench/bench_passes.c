/* bench_passes.c - what a pass of n rows costs, also after long texts. Passes of all kinds alternate with measurements
 * of the machine's peaks; the fastest of each counts, since other load on the machine only adds time. */
#include <stdlib.h>
#include <string.h>

#include "programs/bench/bench.h"
#include "programs/expert_use.h"

enum { ROWS_MAX = 64, PASSES_MAX = PLOT_POINTS_MAX, PLACES_MAX = PLOT_LINES_MAX - 1 };

/* grouped by the text length `after`, `widths` passes each */
typedef struct {
    int32_t rows[PASSES_MAX], after[PASSES_MAX], n, widths;
    double  ms[PASSES_MAX];
    int64_t chosen[PASSES_MAX], read[PASSES_MAX];  /* experts of a mixture, as counted; 0: not counted */
    int64_t missed[PASSES_MAX];                    /* of these, not in memory */
} Passes;

/* Different experts that a pass reads in a layer. */
static double experts_of(const Bench *b, const Passes *x, int32_t i)
{
    return (double) x->read[i] / (double) x->chosen[i] * b->experts_used * x->rows[i];
}

static double missed_share(const Passes *x, int32_t i) { return (double) x->missed[i] / (double) x->read[i]; }

static double limit_of(const Bench *b, const Passes *x, int32_t i)
{
    if (!x->read[i]) return bench_limit_ms(b, x->rows[i], x->after[i]);
    const double more = b->expert_bytes * (experts_of(b, x, i) - b->experts_used) / b->experts;
    return bench_limit_of_ms(b, x->rows[i], x->after[i], more);
}

/* Reading memory for the peaks evicted the CPU caches: short passes are run several times in a row, as in decoding. */
static bool time_one(Bench *b, Passes *x, int32_t i, bool counts)
{
    double t[4];
    int32_t n = x->ms[i] > 0 && x->ms[i] < 20 ? 4 : 1;
    rt_stats before, now;
    const rt_expert_stats store = expert_use_since(&b->p, &(rt_expert_stats) { 0 });
    rt_stats_get(b->p.session, &before, sizeof before);
    rt_status st = rt_time_pass(b->p.step, b->p.session, x->after[i], x->rows[i], n, t);
    if (st != RT_OK) return st == RT_ECANCEL ? false : complain(&b->o, "%s", rt_step_error(b->p.step)) == 0;
    rt_stats_get(b->p.session, &now, sizeof now);
    if (counts) x->chosen[i] += now.experts_chosen - before.experts_chosen;
    if (counts) x->read[i] += now.experts_read - before.experts_read;
    if (counts) x->missed[i] += expert_use_since(&b->p, &store).misses;
    for (int32_t k = 0; counts && k < n; k++)
        if (x->ms[i] == 0 || t[k] < x->ms[i]) x->ms[i] = t[k];
    return true;
}

static bool measure(Bench *b, void *ud)
{
    Passes *x = ud;
    int32_t repeats = b->o.repeats ? b->o.repeats : b->o.compare ? 3 : 12;
    for (int32_t i = 0; i < x->n; i += x->n > 1 ? x->n - 1 : 1)        /* warm-up by the first and the last */
        if (!time_one(b, x, i, false)) return false;
    progress_start_long(&b->p.bar, "passes", (uint64_t) (repeats * x->n), b->o.quiet);
    b->p.barred = true;
    for (int32_t r = 0; r < repeats; r++) {
        bench_peaks(b);
        for (int32_t i = 0; i < x->n; i++) {
            if (!time_one(b, x, i, true)) return false;
            progress_to(&b->p.bar, (uint64_t) (r * x->n + i + 1));
        }
    }
    return true;
}

static double compare_ms(const Bench *b, int32_t rows, const char **what)
{
    double rate = compare_rows(&b->compared, rows, what);
    return rate > 0 ? 1e3 * rows / rate : 0;
}

static void print(Bench *b, void *ud)
{
    const Passes *x = ud;
    const char *what;
    char limit[40];
    bench_print_machine(b);
    if (b->o.compare) printf("in turn, %d rounds: %s\n", b->rounds, b->o.compare);
    for (int32_t i = 0; i < x->n; i++) {
        const int32_t first = i / x->widths * x->widths;
        if (b->o.after && i == first) printf("behind %d tokens\n", x->after[i]);
        printf("%3d rows %10.3f ms   %5.2fx of %d%s", x->rows[i], x->ms[i], x->ms[i] / x->ms[first], x->rows[first],
               bench_share(limit, b, limit_of(b, x, i) / x->ms[i], "limit"));
        if (x->read[i]) printf("   %5.1f experts of a layer", experts_of(b, x, i));
        if (x->missed[i]) printf(", %.1f %% of them missed", 100 * missed_share(x, i));
        if (first) printf("   %3.0f %% of the speed behind %d", 100 * x->ms[i - first] / x->ms[i], x->after[0]);
        double other = compare_ms(b, x->rows[i], &what);
        if (other > 0)
            printf("   %s: %10.3f ms (%s), %.2f times ours", b->compared_name, other, what, other / x->ms[i]);
        putchar('\n');
    }
    if (limit_of(b, x, 0) > x->ms[0]) printf("more than 100 %%: the weights of so small a model stay in the cache\n");
}

static json_t *as_json(Bench *b, void *ud)
{
    const Passes *x = ud;
    json_t *list = json_array(), *j = bench_json(b);
    const char *what;
    for (int32_t i = 0; i < x->n; i++) {
        double limit = limit_of(b, x, i), other = compare_ms(b, x->rows[i], &what);
        json_t *p = json_pack("{s:i s:i s:f s:f s:f}", "rows", x->rows[i], "after", x->after[i], "ms", x->ms[i],
                              "limit_ms", limit, "share_of_limit", limit / x->ms[i]);
        if (x->read[i]) json_object_set_new(p, "experts_read", json_real(experts_of(b, x, i)));
        if (x->read[i] && b->store.slots) json_object_set_new(p, "experts_missed", json_real(missed_share(x, i)));
        if (other > 0)
            json_object_update_new(p, json_pack("{s:f s:f s:s}", "compare_ms", other, "ratio", other / x->ms[i],
                                                "compare_kind", what));
        json_array_append_new(list, p);
    }
    json_object_set_new(j, "passes", list);
    return j;
}

static void write_csv(Bench *b, void *ud, FILE *f)
{
    const Passes *x = ud;
    const char *what;
    fprintf(f, "rows,after,ms,times_first,limit_ms,share_of_limit,compare_ms,ratio\n");
    for (int32_t i = 0; i < x->n; i++) {
        double limit = limit_of(b, x, i), other = compare_ms(b, x->rows[i], &what);
        fprintf(f, "%d,%d,%.4f,%.4f,%.4f,%.4f,", x->rows[i], x->after[i], x->ms[i],
                x->ms[i] / x->ms[i / x->widths * x->widths], limit, limit / x->ms[i]);
        if (other > 0) fprintf(f, "%.4f,%.4f\n", other, other / x->ms[i]);
        else fputs(",\n", f);
    }
}

/* Draws the lower limit of passes after `after` tokens, from 0 to the largest width, with its corner. */
static void add_limit(const Bench *b, PlotLine *l, double most, int32_t after)
{
    double flat = bench_limit_ms(b, 0, after), corner = flat / 1e3 / (2 * b->values / b->peaks.int8_ops_per_s);
    l->x[l->n] = 0;
    l->y[l->n++] = flat;
    if (corner < most) {
        l->x[l->n] = corner;
        l->y[l->n++] = flat;
    }
    l->x[l->n] = most;
    l->y[l->n++] = bench_limit_ms(b, (int32_t) most, after);
}

/* Lines must be drawn in ascending order of rows. */
static void in_order(int32_t *order, const int32_t *rows, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        int32_t k = i;
        for (; k > 0 && rows[order[k - 1]] > rows[i]; k--) order[k] = order[k - 1];
        order[k] = i;
    }
}

/* Every program's points are labelled as multiples of its own first one, so that labels can be compared. */
static void add_point(PlotLine *l, int32_t rows, double ms)
{
    l->x[l->n] = rows;
    l->y[l->n] = ms;
    snprintf(l->label[l->n], sizeof l->label[0], "%.2gx", ms / l->y[0]);
    l->n++;
}

static void draw(Bench *b, void *ud, FILE *f)
{
    const Passes *x = ud;
    static PlotLine line[PLOT_LINES_MAX];
    PlotText t;
    char name[PLOT_LINES_MAX][200], subtitle[200];
    const char *what = NULL;
    int32_t n = 0, order[PASSES_MAX];
    memset(line, 0, sizeof line);
    in_order(order, x->rows, x->widths);
    for (int32_t first = 0; first < x->n; first += x->widths, n++) {
        PlotLine *l = &line[n];
        if (b->o.after)
            snprintf(name[n], sizeof name[n], "after %d tokens, times its first pass", x->after[first]);
        else
            snprintf(name[n], sizeof name[n], "ratoon, times its first pass");
        *l = (PlotLine) { .name = name[n], .kind = LINE_MEASURED, .colour = n };
        for (int32_t k = 0; k < x->widths; k++) {
            const int32_t i = first + order[k];
            l->x[l->n] = x->rows[i];
            add_point(l, x->rows[i], x->ms[i]);
        }
    }
    if (b->peaks.bytes_per_s > 0) {
        snprintf(name[n], sizeof name[n], "limit%s: %.1f GB/s, int8 %.2f Tops/s%s", x->after[0] ? " of the first" : "",
                 b->peaks.bytes_per_s / 1e9, b->peaks.int8_ops_per_s / 1e12, bench_by_clocks(b));
        line[n] = (PlotLine) { .name = name[n], .kind = LINE_FLOOR };
        add_limit(b, &line[n], line[0].x[line[0].n - 1], x->after[0]);
        n++;
    }
    if (b->o.compare) {                            /* only with one text length */
        PlotLine *other = &line[n];
        snprintf(name[n], sizeof name[n], "%.24s, times its first pass", b->compared_name);
        *other = (PlotLine) { .name = name[n], .kind = LINE_MEASURED, .colour = 1 };
        for (int32_t k = 0; k < x->widths; k++) {
            double ms = compare_ms(b, x->rows[order[k]], &what);
            if (ms > 0) add_point(other, x->rows[order[k]], ms);
        }
        n += other->n > 0;
    }
    snprintf(subtitle, sizeof subtitle, "%.70s, fastest of interleaved passes", base_name(b->p.files.model));
    bench_plot_text(b, &t, "What a pass of n rows costs", subtitle);
    plot_lines(f, &t, "rows of the pass", "milliseconds", line, n);
}

static const BenchReport REPORT = { write_csv, draw, as_json, print };

/* Reads all combinations of rows and text lengths; if --ctx is not given, makes the context large enough for them. */
static bool read_passes(Bench *b, Passes *x)
{
    Options *o = &b->o;
    int32_t *rows = NULL, *after = NULL, places = 0, ctx = 0;
    bool good = ids_read(o, &rows, &x->widths, o->passes, "--passes", 1, ROWS_MAX) &&
                ids_read(o, &after, &places, o->after ? o->after : "0", "--after", 0, RT_CTX_MAX - ROWS_MAX);
    if (good && (places == 0 || places > PLACES_MAX))
        good = complain(o, "--after: %d numbers were given, expected 1 to %d", places, PLACES_MAX) == 0;
    if (good && (x->widths == 0 || x->widths > PASSES_MAX / places))
        good = complain(o, "--passes: %d numbers were given, expected 1 to %d", x->widths, PASSES_MAX / places) == 0;
    for (int32_t i = 0; good && i < x->widths * places; i++) {
        x->rows[i] = rows[i % x->widths];
        x->after[i] = after[i / x->widths];
        if (x->after[i] + ROWS_MAX > ctx) ctx = x->after[i] + ROWS_MAX;
    }
    if (good && o->after && o->ctx && o->ctx < ctx)
        good = complain(o, "--ctx %d is too small for --after, expected at least %d", o->ctx, ctx) == 0;
    if (o->after && !o->ctx) o->ctx = ctx;
    x->n = x->widths * places;
    free(rows);
    free(after);
    return good;
}

int bench_passes(Bench *b)
{
    Passes x = { 0 };
    if (!read_passes(b, &x)) return EXIT_USAGE;
    return bench_rounds(b, b->o.draft ? WITH_DRAFTER | WITH_SESSION : WITH_SESSION, measure, &x) &&
           bench_report(b, &REPORT, &x) ? EXIT_FINE : EXIT_FAILED;
}
