/* bench_passes.c - what a pass of n rows costs. Passes of all widths and the machine's peaks take turns; the fastest of each counts,
 * since whatever else runs on the machine only adds. */
#include <stdlib.h>
#include <string.h>

#include "programs/bench.h"

enum { WIDTHS_MAX = PLOT_POINTS_MAX };

typedef struct { int32_t rows[WIDTHS_MAX], n; double ms[WIDTHS_MAX]; } Passes;

/* Reading memory for the peaks emptied the caches: passes of a few milliseconds are run several times in a row, as decoding does. */
static bool time_one(Bench *b, Passes *x, int32_t i, bool counts)
{
    double t[4];
    int32_t n = x->ms[i] > 0 && x->ms[i] < 20 ? 4 : 1;
    rt_status st = rt_time_pass(b->p.step, b->p.session, x->rows[i], n, t);
    if (st != RT_OK) return st == RT_ECANCEL ? false : complain(&b->o, "%s", rt_step_error(b->p.step)) == 0;
    for (int32_t k = 0; counts && k < n; k++)
        if (x->ms[i] == 0 || t[k] < x->ms[i]) x->ms[i] = t[k];
    return true;
}

static bool measure(Bench *b, void *ud)
{
    Passes *x = ud;
    int32_t repeats = b->o.repeats ? b->o.repeats : b->o.compare ? 3 : 12;
    for (int32_t i = 0; i < x->n; i += x->n > 1 ? x->n - 1 : 1)        /* the ends warm up: memory is touched */
        if (!time_one(b, x, i, false)) return false;
    progress_start(&b->p.bar, "passes", (uint64_t) (repeats * x->n));
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

static double peer_ms(const Bench *b, int32_t rows, const char **what)
{
    double rate = peer_rows(&b->peer, rows, what);
    return rate > 0 ? 1e3 * rows / rate : 0;
}

static void print(Bench *b, void *ud)
{
    const Passes *x = ud;
    const char *what;
    printf("%s\n%s: memory %.1f GB/s, int8 %.2f Tops/s, f32 %.2f Tflop/s\n", b->model, b->machine, b->peaks.bytes_per_s / 1e9, b->peaks.int8_ops_per_s / 1e12, b->peaks.f32_ops_per_s / 1e12);
    if (b->o.compare) printf("in turn, %d rounds: %s\n", b->rounds, b->o.compare);
    for (int32_t i = 0; i < x->n; i++) {
        printf("%3d rows %10.3f ms   %5.2fx of %d   %3.0f %% of the limit", x->rows[i], x->ms[i], x->ms[i] / x->ms[0], x->rows[0], 100 * bench_limit_ms(b, x->rows[i]) / x->ms[i]);
        double other = peer_ms(b, x->rows[i], &what);
        if (other > 0) printf("   %s: %10.3f ms (%s), %.2f times ours", b->peer_name, other, what, other / x->ms[i]);
        putchar('\n');
    }
    if (bench_limit_ms(b, x->rows[0]) > x->ms[0]) printf("more than 100 %%: the weights of so small a model stay in the cache\n");
}

static json_t *as_json(Bench *b, void *ud)
{
    const Passes *x = ud;
    json_t *list = json_array(), *j = bench_json(b);
    const char *what;
    for (int32_t i = 0; i < x->n; i++) {
        double limit = bench_limit_ms(b, x->rows[i]), other = peer_ms(b, x->rows[i], &what);
        json_t *p = json_pack("{s:i s:f s:f s:f}", "rows", x->rows[i], "ms", x->ms[i], "limit_ms", limit, "share_of_limit", limit / x->ms[i]);
        if (other > 0) json_object_update_new(p, json_pack("{s:f s:f s:s}", "compare_ms", other, "ratio", other / x->ms[i], "compare_kind", what));
        json_array_append_new(list, p);
    }
    json_object_set_new(j, "passes", list);
    return j;
}

static void write_csv(Bench *b, void *ud, FILE *f)
{
    const Passes *x = ud;
    const char *what;
    fprintf(f, "rows,ms,times_first,limit_ms,share_of_limit,compare_ms,ratio\n");
    for (int32_t i = 0; i < x->n; i++) {
        double limit = bench_limit_ms(b, x->rows[i]), other = peer_ms(b, x->rows[i], &what);
        fprintf(f, "%d,%.4f,%.4f,%.4f,%.4f,", x->rows[i], x->ms[i], x->ms[i] / x->ms[0], limit, limit / x->ms[i]);
        if (other > 0) fprintf(f, "%.4f,%.4f\n", other, other / x->ms[i]);
        else fputs(",\n", f);
    }
}

/* The limit is drawn from nothing to the widest pass, with its corner. */
static void add_limit(const Bench *b, PlotLine *l, double most)
{
    double corner = b->bytes / b->peaks.bytes_per_s / (2 * b->values / b->peaks.int8_ops_per_s);
    l->x[l->n] = 0;
    l->y[l->n++] = bench_limit_ms(b, 0);
    if (corner < most) {
        l->x[l->n] = corner;
        l->y[l->n++] = bench_limit_ms(b, 0);
    }
    l->x[l->n] = most;
    l->y[l->n++] = bench_limit_ms(b, (int32_t) most);
}

static void draw(Bench *b, void *ud, FILE *f)
{
    const Passes *x = ud;
    static PlotLine line[3];
    PlotText t;
    char name[200], other_name[80], subtitle[200];
    const char *what = NULL;
    int32_t n = 2;
    memset(line, 0, sizeof line);
    bool cached = bench_limit_ms(b, x->rows[0]) > x->ms[0];            /* then a share of the memory's limit says nothing */
    line[0] = (PlotLine) { .name = cached ? "ratoon, times the first" : "ratoon, share of the limit", .kind = LINE_MEASURED, .colour = 0 };
    snprintf(name, sizeof name, "limit: %.1f GB/s, int8 %.2f Tops/s", b->peaks.bytes_per_s / 1e9, b->peaks.int8_ops_per_s / 1e12);
    snprintf(other_name, sizeof other_name, "%.24s, times ratoon", b->peer_name);
    line[1] = (PlotLine) { .name = name, .kind = LINE_FLOOR };
    line[2] = (PlotLine) { .name = other_name, .kind = LINE_MEASURED, .colour = 1 };
    int32_t order[WIDTHS_MAX];
    for (int32_t i = 0; i < x->n; i++) {           /* ascending, as lines are drawn */
        int32_t k = i;
        for (; k > 0 && x->rows[order[k - 1]] > x->rows[i]; k--) order[k] = order[k - 1];
        order[k] = i;
    }
    for (int32_t k = 0; k < x->n; k++) {
        int32_t i = order[k];
        PlotLine *l = &line[0];
        l->x[l->n] = x->rows[i];
        if (cached) snprintf(l->label[l->n], sizeof l->label[0], "%.2gx", x->ms[i] / x->ms[0]);
        else snprintf(l->label[l->n], sizeof l->label[0], "%.0f %%", 100 * bench_limit_ms(b, x->rows[i]) / x->ms[i]);
        l->y[l->n++] = x->ms[i];
        double other = peer_ms(b, x->rows[i], &what);
        l = &line[2];
        if (!(other > 0)) continue;
        n = 3;
        l->x[l->n] = x->rows[i];
        snprintf(l->label[l->n], sizeof l->label[0], "%.1fx", other / x->ms[i]);
        l->y[l->n++] = other;
    }
    add_limit(b, &line[1], line[0].x[line[0].n - 1]);
    snprintf(subtitle, sizeof subtitle, "%.70s, fastest of interleaved passes", base_name(b->p.files.model));
    bench_plot_text(b, &t, "What a pass of n rows costs", subtitle);
    plot_lines(f, &t, "rows of the pass", "milliseconds", line, n);
}

static const BenchReport REPORT = { write_csv, draw, as_json, print };

int bench_passes(Bench *b)
{
    Passes x = { 0 };
    int32_t *rows = NULL, n = 0;
    if (!ids_read(&b->o, &rows, &n, b->o.passes, "--passes", 1, 64)) return EXIT_USAGE;
    if (n == 0 || n > WIDTHS_MAX) {
        free(rows);
        complain(&b->o, "--passes: %d numbers were given, expected 1 to %d", n, WIDTHS_MAX);
        return EXIT_USAGE;
    }
    memcpy(x.rows, rows, sizeof *rows * (size_t) n);
    x.n = n;
    free(rows);
    return bench_rounds(b, b->o.draft ? WITH_DRAFTER | WITH_SESSION : WITH_SESSION, measure, &x) && bench_report(b, &REPORT, &x) ? EXIT_FINE : EXIT_FAILED;
}
