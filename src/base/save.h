/* save.h - a small file whole or not at all: it is written beside its name, synced and renamed, so that at any time there is the old one or the
 * new one under the name, and nobody else may read it (mode 0600). */
#ifndef RATOON_BASE_SAVE_H
#define RATOON_BASE_SAVE_H

#include <stdbool.h>
#include <stdio.h>

#include "base/error.h"

/* write puts the contents into f; false: it could not. Nothing but a file is replaced (ST_ARG); ST_IO, ST_MEMORY with the path and why. */
Status save_file(const char *path, bool (*write)(void *ud, FILE *f), void *ud, Error *err);

#endif
