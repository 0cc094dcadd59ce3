#include "programs/progress.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"

void progress_start(Progress *p, const char *label, uint64_t total)
{
    double t = seconds_now();
    *p = (Progress) { .label = label, .total = total, .begun = t, .mark = { { t, 0 }, { t, 0 } },
                      .on = isatty(STDERR_FILENO) == 1 };
}

void progress_start_long(Progress *p, const char *label, uint64_t total, bool quiet)
{
    progress_start(p, label, total);
    p->lines = !p->on && !quiet;
    p->on = p->on && !quiet;
    p->drawn = p->begun;
}

/* Per second, lately; 0: not known yet. */
static double rate_now(Progress *p, uint64_t done, double t)
{
    const double span = 4;
    if (t - p->mark[1].t > span) {
        p->mark[0] = p->mark[1];
        p->mark[1].t = t;
        p->mark[1].done = done;
    }
    double spent = t - p->mark[0].t;
    return done > p->mark[0].done && spent > 0 ? (double) (done - p->mark[0].done) / spent : 0;
}

/* "41 s", "12 min", "3 h 05 min" */
static void print_time(double s)
{
    if (s < 100) fprintf(stderr, "%.0f s", s);
    else if (s < 5970) fprintf(stderr, "%.0f min", s / 60);
    else fprintf(stderr, "%.0f h %02.0f min", floor(s / 3600), floor(fmod(s, 3600) / 60));
}

/* A line every ten seconds, and of jobs that are quicker one a tenth, but not more than one a second. */
static void print_line(Progress *p, uint64_t done)
{
    double t = seconds_now(), since = t - p->drawn;
    uint64_t tenth = p->total > 0 ? 10 * done / p->total : 10;
    if (done >= p->total || since < 1 || (since < 10 && tenth == p->tenth)) return;
    p->drawn = t;
    p->tenth = tenth;
    double rate = rate_now(p, done, t);
    fprintf(stderr, "%s: %llu of %llu%s%s done, ", p->label, (unsigned long long) done, (unsigned long long) p->total,
            p->unit ? " " : "", p->unit ? p->unit : "");
    print_time(t - p->begun);
    fputs(" so far", stderr);
    if (rate > 0) {
        fputs(", ", stderr);
        print_time((double) (p->total - done) / rate);
        fputs(" left", stderr);
    }
    fputc('\n', stderr);
}

static void draw_bar(Progress *p, uint64_t done)
{
    enum { WIDTH = 30 };
    const double quiet = 0.3;
    double t = seconds_now();
    if (t - p->begun < quiet || (t - p->drawn < 0.1 && done < p->total)) return;
    p->drawn = t;
    double rate = rate_now(p, done, t), share = p->total > 0 ? (double) done / (double) p->total : 1;
    char bar[WIDTH + 1];
    memset(bar, '.', WIDTH);
    memset(bar, '#', (size_t) (share * WIDTH));
    bar[WIDTH] = '\0';
    fprintf(stderr, "\r%s [%s] %3.0f%%", p->label, bar, 100 * share);
    if (p->unit && rate > 0) fprintf(stderr, "  %.*f %s/s", rate < 10 ? 1 : 0, rate, p->unit);
    if (rate > 0) {
        fputs("  ", stderr);
        print_time((double) (p->total - done) / rate);
        fputs(" left", stderr);
    }
    fputs("\033[K", stderr);
    fflush(stderr);
}

void progress_to(Progress *p, uint64_t done)
{
    if (p->on) draw_bar(p, done);
    else if (p->lines) print_line(p, done);
}

double progress_end(Progress *p)
{
    if (p->on) fputs("\r\033[K", stderr);
    return seconds_now() - p->begun;
}
