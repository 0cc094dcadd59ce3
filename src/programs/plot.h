/* plot.h - pictures of measurements as SVG: lines over a number, and groups of bars. A picture stands alone: it brings its own ground,
 * light or dark as the reader's screen is, says what is on its axes, and carries in small print how it was made. Any bytes may be in the
 * texts. Functions write to f and leave it to the caller to look for write errors. */
#ifndef RATOON_PROGRAMS_PLOT_H
#define RATOON_PROGRAMS_PLOT_H

#include <stdint.h>
#include <stdio.h>

enum { PLOT_LINES_MAX = 6, PLOT_POINTS_MAX = 64, PLOT_GROUPS_MAX = 16, PLOT_SMALL_MAX = 4 };

typedef struct {
    const char *title, *subtitle;
    const char *small[PLOT_SMALL_MAX]; int32_t n_small;                           /* long lines are broken */
} PlotText;

/* LINE_FLOOR: nothing can be below it; dashed, and the ground under it is shaded. colour: a number of the palette. */
typedef enum { LINE_MEASURED, LINE_FLOOR } LineKind;
typedef struct {
    const char *name;
    LineKind    kind;
    int32_t     colour, n;
    double      x[PLOT_POINTS_MAX], y[PLOT_POINTS_MAX];                           /* x ascending */
    char        label[PLOT_POINTS_MAX][16];                                       /* beside the point; "": none */
} PlotLine;
void plot_lines(FILE *f, const PlotText *t, const char *x_axis, const char *y_axis, const PlotLine *line, int32_t n);

/* Bars from zero, one per series in each group. A group with an axis of its own fills the height with its tallest bar; else all share one
 * scale, which is drawn. value: negative: no bar. */
typedef struct {
    char        name[48];
    double      value[PLOT_LINES_MAX];
    char        label[PLOT_LINES_MAX][24];                                        /* above the bar */
} PlotGroup;
typedef struct { const char *name[PLOT_LINES_MAX]; int32_t colour[PLOT_LINES_MAX], n; } PlotSeries;
void plot_bars(FILE *f, const PlotText *t, const char *y_axis, const PlotSeries *s, const PlotGroup *group, int32_t n);   /* y_axis NULL: axes of their own */

#endif
