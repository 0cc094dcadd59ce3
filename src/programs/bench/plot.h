/* plot.h - charts of measurements as SVG: lines over a number, groups of bars, and maps of heat. A chart is
 * self-contained: it has its own background, light or dark like the reader's screen, labelled axes, and small print
 * that says how it was made. Texts may contain any bytes. Functions write to f; the caller checks for write errors. */
#ifndef RATOON_PROGRAMS_BENCH_PLOT_H
#define RATOON_PROGRAMS_BENCH_PLOT_H

#include <stdint.h>
#include <stdio.h>

enum { PLOT_LINES_MAX = 6, PLOT_POINTS_MAX = 64, PLOT_GROUPS_MAX = 16, PLOT_SMALL_MAX = 4 };

typedef struct {
    const char *title, *subtitle;
    const char *small[PLOT_SMALL_MAX]; int32_t n_small;                           /* long lines are wrapped */
} PlotText;

/* LINE_FLOOR: a lower limit; dashed, with the area below it shaded. colour: index in the palette. */
typedef enum { LINE_MEASURED, LINE_FLOOR } LineKind;
typedef struct {
    const char *name;
    LineKind    kind;
    int32_t     colour, n;
    double      x[PLOT_POINTS_MAX], y[PLOT_POINTS_MAX];                           /* x ascending */
    char        label[PLOT_POINTS_MAX][16];                                       /* beside the point; "": none */
} PlotLine;
void plot_lines(FILE *f, const PlotText *t, const char *x_axis, const char *y_axis, const PlotLine *line, int32_t n);

/* Bars from zero, one per series in each group. If groups have axes of their own, the tallest bar of each fills the
 * height; otherwise all share one scale, which is drawn. value: negative: no bar. */
typedef struct {
    char        name[48];
    double      value[PLOT_LINES_MAX];
    char        label[PLOT_LINES_MAX][24];                                        /* above the bar */
} PlotGroup;
typedef struct { const char *name[PLOT_LINES_MAX]; int32_t colour[PLOT_LINES_MAX], n; } PlotSeries;
/* y_axis NULL: each group has its own axis */
void plot_bars(FILE *f, const PlotText *t, const char *y_axis, const PlotSeries *s, const PlotGroup *group, int32_t n);

/* Cells in rows from the top and columns from the left. The larger the value [rows, cols], the darker; blank: 0. scale:
 * what blank and darkest mean. */
void plot_heat(FILE *f, const PlotText *t, const char *x_axis, const char *y_axis, const char *scale,
               const double *value, int32_t rows, int32_t cols);

#endif
