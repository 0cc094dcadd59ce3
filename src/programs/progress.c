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
    *p = (Progress) { .label = label, .total = total, .begun = now(), .on = isatty(STDERR_FILENO) == 1 };
}

void progress_to(Progress *p, uint64_t done)
{
    enum { WIDTH = 30 };
    if (!p->on) return;
    double t = now();
    if (t - p->drawn < 0.1 && done < p->total) return;
    p->drawn = t;
    double share = p->total > 0 ? (double) done / (double) p->total : 1, spent = t - p->begun;
    char bar[WIDTH + 1];
    memset(bar, '.', WIDTH);
    memset(bar, '#', (size_t) (share * WIDTH));
    bar[WIDTH] = '\0';
    fprintf(stderr, "\r%s [%s] %3.0f%% %4.0f s left\033[K", p->label, bar, 100 * share, share > 0 ? spent * (1 - share) / share : 0.0);
    fflush(stderr);
}

double progress_end(Progress *p)
{
    if (p->on) fputs("\r\033[K", stderr);
    return now() - p->begun;
}
