#include "programs/bench/plot.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "text/tokenizer/tokenizer.h"

/* Positions in user units, and the width of a character in them (11 px; wide faces take 0.55 of their size). */
static const double CHAR = 6.1;
enum { WIDTH = 760, LEFT = 74, RIGHT = 24, TITLE = 34, SUBTITLE = 54, LEGEND = 78, TOP = 98, PLOT = 270, AXIS = 46,
       SMALL = 15, SMALL_CHARS = 118 };

/* Colours by index: ours, the other program's, then four decoding modes. Each has a shade for light and one for dark
 * backgrounds. */
static const char *const shades[][2] = {
    { "#2563c9", "#6aa5ff" }, { "#d9822b", "#f0a75a" }, { "#8b95a1", "#9aa5b1" }, { "#58a6c9", "#7cc4e3" },
    { "#7a5cc4", "#a78bf0" }, { "#2f9e6a", "#5fd39b" },
};
enum { SHADES = sizeof shades / sizeof *shades };

/* ---- text ---- */

/* Writes the bytes as XML text: invalid UTF-8 becomes U+FFFD, control characters become blanks, and U+FFFE and U+FFFF,
 * which XML forbids, question marks. */
static void put_text(FILE *f, const char *s, size_t n)
{
    Utf8Stream u = { 0 };
    char *good = malloc(3 * (n + 8));
    if (!good) return;                             /* leave this text out */
    size_t len = utf8_stream(&u, good, s, n);
    len += utf8_stream_end(&u, good + len);
    for (size_t i = 0; i < len; i++) {
        unsigned char c = (unsigned char) good[i];
        if (c == 0xEF && i + 2 < len && (unsigned char) good[i + 1] == 0xBF && (unsigned char) good[i + 2] >= 0xBE) {
            fputc('?', f);
            i += 2;
        } else if (c == '<') fputs("&lt;", f);
        else if (c == '>') fputs("&gt;", f);
        else if (c == '&') fputs("&amp;", f);
        else if (c == '"') fputs("&quot;", f);
        else fputc(c < 32 || c == 127 ? ' ' : c, f);
    }
    free(good);
}

static void text_at(FILE *f, double x, double y, const char *class, const char *anchor, const char *s)
{
    fprintf(f, "<text x=\"%.1f\" y=\"%.1f\" class=\"%s\"", x, y, class);
    if (*anchor) fprintf(f, " text-anchor=\"%s\"", anchor);
    fputc('>', f);
    put_text(f, s, strlen(s));
    fputs("</text>\n", f);
}

/* How many bytes of s fit in a line of small print: up to a blank, or as many as fit. */
static size_t line_length(const char *s)
{
    size_t n = strlen(s), at = SMALL_CHARS;
    if (n <= SMALL_CHARS) return n;
    while (at > SMALL_CHARS / 2 && s[at] != ' ') at--;
    if (s[at] == ' ') return at;
    for (at = SMALL_CHARS; at > SMALL_CHARS - 4 && ((unsigned char) s[at] & 0xC0) == 0x80;) at--;
    return at;
}

static int32_t small_lines(const PlotText *t)
{
    int32_t n = 0;
    for (int32_t i = 0; i < t->n_small; i++)
        for (const char *s = t->small[i]; *s; n++) {
            s += line_length(s);
            s += strspn(s, " ");
        }
    return n;
}

/* ---- the frame ---- */

static void begin(FILE *f, const PlotText *t)
{
    int32_t height = TOP + PLOT + AXIS + 14 + SMALL * small_lines(t);
    fprintf(f, "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" height=\"%d\" "
            "role=\"img\">\n<title>", WIDTH, height, WIDTH, height);
    put_text(f, t->title, strlen(t->title));
    fputs("</title>\n<style>\n"
          "text { font-family: system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif; font-size: 12px; fill: "
          "#3a424d }\n"
          ".ground { fill: #ffffff; stroke: #d8dde3 } .title { font-size: 17px; font-weight: 600; fill: #14181f } "
          ".sub, .axis { fill: #5b6572 }\n"
          ".small { font-size: 10.5px; fill: #6b7582 } .grid { stroke: #e6e9ed } .base { stroke: #8b95a1 }\n"
          ".value { font-size: 11px; stroke: #ffffff; stroke-width: 3px; paint-order: stroke; stroke-linejoin: "
          "round }\n"
          ".floor { fill: #8b95a1; fill-opacity: .13 } .limit { fill: none; stroke: #8b95a1; stroke-width: 1.6; "
          "stroke-dasharray: 5 4 }\n", f);
    for (int32_t i = 0; i < SHADES; i++)
        fprintf(f, ".f%d { fill: %s } .l%d { fill: none; stroke: %s; stroke-width: 2.2 }\n", i, shades[i][0], i,
                shades[i][0]);
    fputs("@media (prefers-color-scheme: dark) {\n"
          "text { fill: #c3cad3 } .ground { fill: #12161c; stroke: #2c333d } .title { fill: #eef1f5 } .sub, "
          ".axis { fill: #9aa5b1 }\n"
          ".small { fill: #8b95a1 } .value { stroke: #12161c } .grid { stroke: #272e37 } .base { stroke: #6b7582 } "
          ".floor { fill: #9aa5b1 } .limit { stroke: #9aa5b1 }\n", f);
    for (int32_t i = 0; i < SHADES; i++)
        fprintf(f, ".f%d { fill: %s } .l%d { stroke: %s }\n", i, shades[i][1], i, shades[i][1]);
    fprintf(f, "}\n</style>\n<rect x=\".5\" y=\".5\" width=\"%d\" height=\"%d\" rx=\"8\" class=\"ground\"/>\n",
            WIDTH - 1, height - 1);
    text_at(f, 24, TITLE, "title", "", t->title);
    text_at(f, 24, SUBTITLE, "sub", "", t->subtitle);
}

static void end(FILE *f, const PlotText *t)
{
    double y = TOP + PLOT + AXIS + SMALL - 2;
    for (int32_t i = 0; i < t->n_small; i++)
        for (const char *s = t->small[i]; *s; y += SMALL) {
            char line[SMALL_CHARS + 1];
            size_t n = line_length(s);
            memcpy(line, s, n);
            line[n] = 0;
            text_at(f, 24, y, "small", "", line);
            s += n + strspn(s + n, " ");
        }
    fputs("</svg>\n", f);
}

static double legend(FILE *f, double x, const char *mark, int32_t colour, const char *name)
{
    if (strcmp(mark, "bar") == 0)
        fprintf(f, "<rect x=\"%.1f\" y=\"%d\" width=\"12\" height=\"10\" rx=\"2\" class=\"f%d\"/>\n", x, LEGEND - 9,
                colour);
    else if (strcmp(mark, "line") == 0)
        fprintf(f, "<path d=\"M%.1f %d h18\" class=\"l%d\"/><circle cx=\"%.1f\" cy=\"%d\" r=\"3.2\" class=\"f%d\"/>\n",
                x, LEGEND - 4, colour, x + 9, LEGEND - 4, colour);
    else
        fprintf(f, "<path d=\"M%.1f %d h18\" class=\"limit\"/>\n", x, LEGEND - 4);
    double at = x + (strcmp(mark, "bar") == 0 ? 18 : 24);
    text_at(f, at, LEGEND, "value", "", name);
    return at + CHAR * (double) strlen(name) + 18;
}

/* A step of 1, 2 or 5 times a power of ten, so that at most `ticks` of them reach the top. */
static double tick_step(double top, int32_t ticks)
{
    double raw = top / ticks, power = pow(10, floor(log10(raw)));
    double in = raw / power;
    return power * (in <= 1 ? 1 : in <= 2 ? 2 : in <= 5 ? 5 : 10);
}

/* Draws grid lines and their numbers; returns the value at the top of the axis. */
static double y_axis(FILE *f, double top, const char *name)
{
    if (!(top > 0) || !isfinite(top)) top = 1;
    double step = tick_step(top, 6), most = step * ceil(top / step - 1e-9);
    for (int32_t i = 0; i * step <= most * (1 + 1e-9); i++) {
        char number[32];
        double y = TOP + PLOT * (1 - i * step / most);
        snprintf(number, sizeof number, "%.6g", i * step);
        fprintf(f, "<path d=\"M%d %.1f H%d\" class=\"%s\"/>\n", LEFT, y, WIDTH - RIGHT, i == 0 ? "base" : "grid");
        text_at(f, LEFT - 8, y + 4, "axis", "end", number);
    }
    fprintf(f, "<text transform=\"translate(20 %.1f) rotate(-90)\" text-anchor=\"middle\" class=\"axis\">",
            TOP + PLOT / 2.0);
    put_text(f, name, strlen(name));
    fputs("</text>\n", f);
    return most;
}

/* ---- lines ---- */

/* Points and labels drawn so far, so that no label is written over them. y: of a label's baseline; a point counts as a
 * label around it. */
typedef struct { struct { double x0, x1, y; } at[2 * PLOT_LINES_MAX * PLOT_POINTS_MAX]; int32_t n; } Labels;

static void keep_free(Labels *there, double x0, double x1, double y)
{
    there->at[there->n].x0 = x0;
    there->at[there->n].x1 = x1;
    there->at[there->n++].y = y;
}

static void put_label(FILE *f, Labels *there, double x, double y, const char *s)
{
    double half = CHAR * (double) strlen(s) / 2, middle = x + half > WIDTH - 4 ? WIDTH - 4 - half : x;
    for (int32_t i = 0; i < there->n; i++)
        if (middle - half < there->at[i].x1 + 1 && middle + half > there->at[i].x0 - 1 && fabs(there->at[i].y - y) < 12)
            return;
    keep_free(there, middle - half, middle + half, y);
    text_at(f, middle, y, "value", "middle", s);
}

static void draw_line(FILE *f, const PlotLine *l, double x_max, double y_max)
{
    double x[PLOT_POINTS_MAX], y[PLOT_POINTS_MAX];
    for (int32_t i = 0; i < l->n; i++) {
        x[i] = LEFT + (WIDTH - LEFT - RIGHT) * l->x[i] / x_max;
        y[i] = TOP + PLOT * (1 - l->y[i] / y_max);
    }
    if (l->kind == LINE_FLOOR && l->n > 0) {
        fprintf(f, "<path d=\"M%.1f %d", x[0], TOP + PLOT);
        for (int32_t i = 0; i < l->n; i++) fprintf(f, " L%.1f %.1f", x[i], y[i]);
        fprintf(f, " L%.1f %d Z\" class=\"floor\"/>\n", x[l->n - 1], TOP + PLOT);
    }
    fputs("<path d=\"", f);
    for (int32_t i = 0; i < l->n; i++) fprintf(f, "%c%.1f %.1f ", i ? 'L' : 'M', x[i], y[i]);
    if (l->kind == LINE_FLOOR) fputs("\" class=\"limit\"/>\n", f);
    else fprintf(f, "\" class=\"l%d\"/>\n", l->colour);
    for (int32_t i = 0; i < l->n && l->kind == LINE_MEASURED; i++)
        fprintf(f, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3.4\" class=\"f%d\"/>\n", x[i], y[i], l->colour);
}

void plot_lines(FILE *f, const PlotText *t, const char *x_axis, const char *y_name, const PlotLine *line, int32_t n)
{
    double x_max = 0, y_max = 0, at = 24, free_from = 0;
    const PlotLine *ticks = NULL;                  /* its x values are the numbers on the axis */
    for (int32_t i = 0; i < n; i++) {
        if (line[i].kind == LINE_MEASURED && (!ticks || line[i].n > ticks->n)) ticks = &line[i];
        for (int32_t k = 0; k < line[i].n; k++) {
            x_max = fmax(x_max, line[i].x[k]);
            y_max = fmax(y_max, line[i].y[k]);
        }
    }
    if (!(x_max > 0)) x_max = 1;
    begin(f, t);
    for (int32_t i = 0; i < n; i++)
        at = legend(f, at, line[i].kind == LINE_MEASURED ? "line" : "limit", line[i].colour, line[i].name);
    double y_top = y_axis(f, y_max * 1.06, y_name);
    for (int32_t i = 0; i < n; i++)
        if (line[i].kind == LINE_FLOOR) draw_line(f, &line[i], x_max, y_top);
    for (int32_t i = n - 1; i >= 0; i--)           /* so that the first is on top */
        if (line[i].kind == LINE_MEASURED) draw_line(f, &line[i], x_max, y_top);
    Labels there;
    there.n = 0;
    for (int32_t labels = 0; labels < 2; labels++)
        for (int32_t i = 0; i < n; i++)
            for (int32_t k = 0; k < line[i].n && line[i].kind == LINE_MEASURED; k++) {
                double x = LEFT + (WIDTH - LEFT - RIGHT) * line[i].x[k] / x_max,
                       y = TOP + PLOT * (1 - line[i].y[k] / y_top);
                if (!labels) keep_free(&there, x - 2, x + 2, y + 4.5);
                else if (line[i].label[k][0]) put_label(f, &there, x, y - 9, line[i].label[k]);
            }
    for (int32_t k = 0; ticks && k < ticks->n; k++) {
        char number[32];
        double x = LEFT + (WIDTH - LEFT - RIGHT) * ticks->x[k] / x_max;
        fprintf(f, "<path d=\"M%.1f %d v5\" class=\"base\"/>\n", x, TOP + PLOT);
        int len = snprintf(number, sizeof number, "%.6g", ticks->x[k]);
        if (x - 3.6 * len < free_from) continue;
        text_at(f, x, TOP + PLOT + 19, "axis", "middle", number);
        free_from = x + 3.6 * len + 3;
    }
    text_at(f, LEFT + (WIDTH - LEFT - RIGHT) / 2.0, TOP + PLOT + 38, "axis", "middle", x_axis);
    end(f, t);
}

/* ---- bars ---- */

static double tallest(const PlotSeries *s, const PlotGroup *group, int32_t n)
{
    double top = 0;
    for (int32_t g = 0; g < n; g++)
        for (int32_t i = 0; i < s->n; i++) top = fmax(top, group[g].value[i]);
    return top > 0 && isfinite(top) ? top : 1;
}

void plot_bars(FILE *f, const PlotText *t, const char *y_name, const PlotSeries *s, const PlotGroup *group, int32_t n)
{
    begin(f, t);
    double at = 24, top = tallest(s, group, n) * 1.1, left = y_name ? LEFT : 24,
           room = (WIDTH - left - RIGHT) / (n > 0 ? n : 1);
    for (int32_t i = 0; i < s->n; i++) at = legend(f, at, "bar", s->colour[i], s->name[i]);
    if (y_name) top = y_axis(f, top, y_name);
    else fprintf(f, "<path d=\"M%.1f %d H%d\" class=\"base\"/>\n", left, TOP + PLOT, WIDTH - RIGHT);
    double gap = fmin(room * 0.22, 60), width = fmin((room - gap) / (s->n > 0 ? s->n : 1), 70);
    for (int32_t g = 0; g < n; g++) {
        double middle = left + room * (g + 0.5), most = y_name ? top : tallest(s, &group[g], 1) * 1.1;
        for (int32_t i = 0; i < s->n; i++) {
            double v = group[g].value[i], height = PLOT * v / most, x = middle + width * (i - s->n / 2.0);
            if (!(v >= 0) || !isfinite(v)) continue;
            fprintf(f, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" rx=\"2\" class=\"f%d\"/>\n", x + 1.5,
                    TOP + PLOT - height, width - 3, height, s->colour[i]);
            if (CHAR * (double) strlen(group[g].label[i]) <= width + gap / s->n + 8)
                text_at(f, x + width / 2, TOP + PLOT - height - 6, "value", "middle", group[g].label[i]);
        }
        text_at(f, middle, TOP + PLOT + 19, "axis", "middle", group[g].name);
    }
    end(f, t);
}

/* ---- heat ---- */

enum { SHADES_OF_HEAT = 12 };

/* 0: blank. The square root tells small values from each other. */
static int32_t heat_of(double value, double most)
{
    if (!(value > 0) || !isfinite(value)) return 0;
    int32_t h = (int32_t) ceil(SHADES_OF_HEAT * sqrt(value / most));
    return h < 1 ? 1 : h > SHADES_OF_HEAT ? SHADES_OF_HEAT : h;
}

static void heat_shade(FILE *f, int32_t heat)
{
    fprintf(f, "class=\"f0\" fill-opacity=\"%.2f\"/>\n", heat / (double) SHADES_OF_HEAT);
}

/* The numbers of rows or columns beside their cells. */
static void cell_numbers(FILE *f, bool down, int32_t n, double size)
{
    char number[16];
    int32_t step = (int32_t) fmax(1, tick_step(n, 8));
    for (int32_t i = 0; i < n; i += step) {
        double middle = (i + 0.5) * size;
        snprintf(number, sizeof number, "%d", i);
        if (down) text_at(f, LEFT - 8, TOP + middle + 4, "axis", "end", number);
        else text_at(f, LEFT + middle, TOP + PLOT + 19, "axis", "middle", number);
    }
}

void plot_heat(FILE *f, const PlotText *t, const char *x_axis, const char *y_name, const char *scale,
               const double *value, int32_t rows, int32_t cols)
{
    const double width = (WIDTH - LEFT - RIGHT) / (double) (cols > 0 ? cols : 1),
                 height = PLOT / (double) (rows > 0 ? rows : 1);
    double most = 0;
    for (int64_t i = 0; i < (int64_t) rows * cols; i++)
        if (isfinite(value[i])) most = fmax(most, value[i]);
    begin(f, t);
    for (int32_t h = 1; h <= SHADES_OF_HEAT; h++) {
        fprintf(f, "<rect x=\"%d\" y=\"%d\" width=\"8\" height=\"10\" ", 16 + 8 * h, LEGEND - 9);
        heat_shade(f, h);
    }
    text_at(f, 24 + 8 * SHADES_OF_HEAT + 8, LEGEND, "axis", "", scale);
    for (int32_t h = 1; h <= SHADES_OF_HEAT; h++) {                /* a path per shade, of runs of cells */
        fputs("<path d=\"", f);
        for (int32_t y = 0; y < rows; y++)
            for (int32_t x = 0, n; x < cols; x += n) {
                const double *cell = value + (int64_t) y * cols + x;
                for (n = 1; x + n < cols && heat_of(cell[n], most) == heat_of(cell[0], most);) n++;
                if (heat_of(cell[0], most) == h)
                    fprintf(f, "M%.1f %.1fh%.1fv%.1fh%.1fz", LEFT + x * width, TOP + y * height, n * width, height,
                            -n * width);
            }
        fputs("\" ", f);
        heat_shade(f, h);
    }
    fprintf(f, "<path d=\"M%d %dV%dH%d\" class=\"base\" fill=\"none\"/>\n", LEFT, TOP, TOP + PLOT, WIDTH - RIGHT);
    cell_numbers(f, true, rows, height);
    cell_numbers(f, false, cols, width);
    fprintf(f, "<text transform=\"translate(20 %.1f) rotate(-90)\" text-anchor=\"middle\" class=\"axis\">",
            TOP + PLOT / 2.0);
    put_text(f, y_name, strlen(y_name));
    fputs("</text>\n", f);
    text_at(f, LEFT + (WIDTH - LEFT - RIGHT) / 2.0, TOP + PLOT + 38, "axis", "middle", x_axis);
    end(f, t);
}
