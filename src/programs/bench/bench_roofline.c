/* bench_roofline.c - the machine's peak rates for one thread, two, four and so on up to all, in interleaved rounds; of
 * a GPU what its clocks allow. */
#include <string.h>

#include "programs/bench/bench.h"

enum { COUNTS_MAX = 12 };

typedef struct { int32_t threads[COUNTS_MAX], n; rt_peaks peaks[COUNTS_MAX]; } Counts;       /* threads 0: a GPU */

/* width: of the number. */
static const char *whose(char out[24], int32_t threads, int width)
{
    if (threads) snprintf(out, 24, "%*d thread%s", width, threads, threads == 1 ? "" : "s");
    else snprintf(out, 24, "the card");
    return out;
}

static bool measure(Bench *b, Counts *x)
{
    rt_error e = { 0 };
    int32_t repeats = b->o.repeats ? b->o.repeats : 12;
    if (rt_roofline_new(&b->roof, b->o.backend, b->threads, &e) != RT_OK) return complain(&b->o, "%s", e.text) == 0;
    progress_start_long(&b->p.bar, "roofline", (uint64_t) (repeats * x->n), b->o.quiet);
    for (int32_t r = 0; r < repeats && !interrupts; r++)
        for (int32_t i = 0; i < x->n && !interrupts; i++) {
            rt_roofline_round(b->roof, x->threads[i], 0, &x->peaks[i]);
            progress_to(&b->p.bar, (uint64_t) (r * x->n + i + 1));
        }
    progress_end(&b->p.bar);
    rt_roofline_free(b->roof);
    b->roof = NULL;
    return !interrupts;
}

static json_t *as_json(Bench *b, void *ud)
{
    const Counts *x = ud;
    json_t *list = json_array(), *j = bench_json(b);
    for (int32_t i = 0; i < x->n; i++)
        json_array_append_new(list, json_pack("{s:i s:f s:f s:f}", "threads", x->threads[i], "bytes_per_s",
                                              x->peaks[i].bytes_per_s, "int8_ops_per_s", x->peaks[i].int8_ops_per_s,
                                              "f32_ops_per_s", x->peaks[i].f32_ops_per_s));
    json_object_set_new(j, "roofline", list);
    return j;
}

static void draw(Bench *b, void *ud, FILE *f)
{
    const Counts *x = ud;
    static PlotGroup group[3];
    static const char *const names[3] = { "memory, GB/s", "int8, Gops/s", "f32, Gflop/s" };
    int32_t n = x->n < PLOT_LINES_MAX ? x->n : PLOT_LINES_MAX;
    char name[PLOT_LINES_MAX][24];
    PlotSeries s = { .n = n };
    PlotText t;
    memset(group, 0, sizeof group);
    for (int32_t k = 0; k < n; k++) {
        const int32_t i = x->n - n + k;
        const double value[3] = { x->peaks[i].bytes_per_s / 1e9, x->peaks[i].int8_ops_per_s / 1e9,
                                  x->peaks[i].f32_ops_per_s / 1e9 };
        s.name[k] = whose(name[k], x->threads[i], 0);
        s.colour[k] = n - k == 1 ? 0 : 2 + k % 4;  /* all threads: our colour */
        for (int32_t g = 0; g < 3; g++) {
            snprintf(group[g].name, sizeof group[g].name, "%s", names[g]);
            group[g].value[k] = value[g];
            snprintf(group[g].label[k], sizeof group[g].label[k], "%.4g", value[g]);
        }
    }
    bench_plot_text(b, &t, "What this machine can do at most",
                    b->by_clocks ? "each group to its own scale, by the card's clocks"
                                 : "each group to its own scale, fastest of interleaved rounds");
    plot_bars(f, &t, NULL, &s, group, 3);
}

static void write_csv(Bench *b, void *ud, FILE *f)
{
    const Counts *x = ud;
    (void) b;
    fprintf(f, "threads,bytes_per_s,int8_ops_per_s,f32_ops_per_s\n");
    for (int32_t i = 0; i < x->n; i++)
        fprintf(f, "%d,%.0f,%.0f,%.0f\n", x->threads[i], x->peaks[i].bytes_per_s, x->peaks[i].int8_ops_per_s,
                x->peaks[i].f32_ops_per_s);
}

static void print(Bench *b, void *ud)
{
    const Counts *x = ud;
    char who[24];
    printf("%s%s\n", b->machine, bench_by_clocks(b));
    for (int32_t i = 0; i < x->n; i++)
        printf("%-11s  memory %7.1f GB/s   int8 %8.1f Gops/s   f32 %8.1f Gflop/s\n", whose(who, x->threads[i], 3),
               x->peaks[i].bytes_per_s / 1e9, x->peaks[i].int8_ops_per_s / 1e9, x->peaks[i].f32_ops_per_s / 1e9);
}

static const BenchReport REPORT = { write_csv, draw, as_json, print };

int bench_roofline(Bench *b)
{
    Counts x = { 0 };
    hear_interrupts();
    bench_card(b, b->o.backend);
    for (int32_t t = 1; !b->by_clocks && t < b->threads && x.n < COUNTS_MAX - 1; t *= 2) x.threads[x.n++] = t;
    x.threads[x.n++] = b->by_clocks ? 0 : b->threads;
    return measure(b, &x) && bench_report(b, &REPORT, &x) ? EXIT_FINE : EXIT_FAILED;
}
