/* progress.h - one line on stderr that shows the progress of a long job. Nothing is drawn unless stderr is a terminal,
 * and nothing in the first third of a second, since shorter jobs need no bar. Jobs that may take minutes say plain
 * lines now and then where stderr is a file or a pipe. */
#ifndef RATOON_PROGRAMS_PROGRESS_H
#define RATOON_PROGRAMS_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct {
    const char *label;                           /* printed unescaped: must not come from a file */
    const char *unit;                            /* what is counted ("tokens"), to show its rate too, or NULL; set after
                                                  * the start */
    uint64_t    total;
    double      begun, drawn;                    /* seconds */
    struct { double t; uint64_t done; } mark[2]; /* the rate is measured since mark[0], a few seconds ago, since long
                                                  * prompts slow down */
    uint64_t    tenth;                           /* of the last plain line */
    bool        on, lines;                       /* a bar on a terminal; plain lines elsewhere */
} Progress;

void progress_start(Progress *p, const char *label, uint64_t total);
void progress_start_long(Progress *p, const char *label, uint64_t total, bool quiet);
void progress_to(Progress *p, uint64_t done);      /* draws at most ten times a second */
double progress_end(Progress *p);                  /* erases the line; returns the seconds since the start */

#endif
