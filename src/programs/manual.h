/* manual.h - the manual page and the shell completions, generated from the tables of commands and options. */
#ifndef RATOON_PROGRAMS_MANUAL_H
#define RATOON_PROGRAMS_MANUAL_H

#include <stdio.h>

void manual_write(FILE *f);                        /* mdoc */
void completion_write(FILE *f, const char *shell); /* bash, zsh or fish */

#endif
