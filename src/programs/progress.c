#include "programs/progress.h"

#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double) t.tv_sec + 1e-9 * (double) t.tv_nsec;
}

void progress_start(Progress *p, const char *label, uint64_t total)
{
    double t = now();
    *p = (Progress) { .label = label, .total = total, .begun = t, .mark = { { t, 0 }, { t, 0 } }, .on = isatty(STDERR_FILENO) == 1 };
}

void progress_to(Progress *p, uint64_t done)
{
    enum { WIDTH = 30 };
    const double quiet = 0.3, span = 4;
    if (!p->on) return;
    double t = now();
    if (t - p->begun < quiet || (t - p->drawn < 0.1 && done < p->total)) return;
    p->drawn = t;
    if (t - p->mark[1].t > span) {
        p->mark[0] = p->mark[1];
        p->mark[1].t = t;
        p->mark[1].done = done;
    }
    double share = p->total > 0 ? (double) done / (double) p->total : 1, spent = t - p->mark[0].t;
    double rate = done > p->mark[0].done && spent > 0 ? (double) (done - p->mark[0].done) / spent : 0;
    char bar[WIDTH + 1];
    memset(bar, '.', WIDTH);
    memset(bar, '#', (size_t) (share * WIDTH));
    bar[WIDTH] = '\0';
    fprintf(stderr, "\r%s [%s] %3.0f%%", p->label, bar, 100 * share);
    if (p->unit && rate > 0) fprintf(stderr, "  %.*f %s/s", rate < 10 ? 1 : 0, rate, p->unit);
    if (rate > 0) fprintf(stderr, "  %.0f s left", (double) (p->total - done) / rate);
    fputs("\033[K", stderr);
    fflush(stderr);
}

double progress_end(Progress *p)
{
    if (p->on) fputs("\r\033[K", stderr);
    return now() - p->begun;
}
