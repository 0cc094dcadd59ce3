/* manual.h - the manual page and the completions of shells, written from the tables of commands and options. */
#ifndef RATOON_PROGRAMS_MANUAL_H
#define RATOON_PROGRAMS_MANUAL_H

#include <stdbool.h>
#include <stdio.h>

void manual_write(FILE *f);                        /* mdoc */
/* False: no such shell. */
bool completion_write(FILE *f, const char *shell);

#endif
