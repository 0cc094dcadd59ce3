/* progress.h - one line on stderr that says how far a long job is. Nothing is drawn unless stderr is a terminal, and nothing in the
 * first third of a second: what is over by then needs no bar. */
#ifndef RATOON_PROGRAMS_PROGRESS_H
#define RATOON_PROGRAMS_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct {
    const char *label;                             /* shown as it is: nothing from a file */
    const char *unit;                              /* NULL, or what is counted ("tokens"): its rate is shown too; set after the start */
    uint64_t    total;
    double      begun, drawn;                      /* seconds */
    struct { double t; uint64_t done; } mark[2];   /* the rate is that since mark[0], which is some seconds old: long prompts slow down */
    bool        on;
} Progress;

void progress_start(Progress *p, const char *label, uint64_t total);
void progress_to(Progress *p, uint64_t done);      /* draws ten times a second at most */
double progress_end(Progress *p);                  /* wipes the line; seconds since the start */

#endif
