/* foreign.h - options of llama.cpp's programs that mean nothing here: they are accepted with a word about why, so that
 * a command line that was written for them runs. */
#ifndef RATOON_PROGRAMS_FOREIGN_H
#define RATOON_PROGRAMS_FOREIGN_H

#include <stdbool.h>
#include <stddef.h>

/* NO_VALUE; ONE_VALUE: the next word; SWITCH_VALUE: the next word if it is on, off, auto, 1, 0, true or false */
typedef enum { NO_VALUE, ONE_VALUE, SWITCH_VALUE } ForeignValue;

/* only: what it means is what this command does, so that others refuse it; "": all of them; NULL: none */
typedef struct { const char *names; ForeignValue value; const char *word, *only; } Foreign;

extern const Foreign foreign_options[];            /* ends with names of NULL */

const Foreign *foreign_find(const char *name, size_t n);        /* NULL: not one of them */
bool foreign_takes(const Foreign *f, const char *next);         /* next NULL: there is none */

#endif
