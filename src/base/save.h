/* save.h - writes a file completely or not at all: to a temporary file beside it, which is synced and renamed, so the
 * name always refers to the old file or the new one. A link stays a link: the file it points to is replaced, in its own
 * folder. Anything that is not a regular file is never replaced: character devices (/dev/null) and pipes with a reader
 * are written to, anything else is refused (ST_ARG). */
#ifndef RATOON_BASE_SAVE_H
#define RATOON_BASE_SAVE_H

#include <stdbool.h>
#include <stdio.h>

#include "base/error.h"

/* Who may read a new file: only its owner, or whoever the umask allows. A shared file that is replaced keeps its
 * permissions. */
typedef enum { SAVE_PRIVATE = 0600, SAVE_SHARED = 0666 } SaveMode;

typedef struct {
    FILE *file;                                    /* where the contents are written; NULL: not open */
    char *target, *temporary;                      /* temporary replaces target; temporary NULL: target is written to
                                                    * directly */
} Save;

/* Whether save_open could write there. Creates and changes nothing: for callers that work for long before they
 * write. */
Status save_check(const char *path, Error *err);
/* On failure *s is zero. ST_ARG, ST_IO and ST_MEMORY, with the path and the reason. */
Status save_open(Save *s, const char *path, SaveMode mode, Error *err);
/* keep true: the contents are complete, and any earlier write error is reported; false: discards everything. *s is zero
 * afterwards. */
Status save_close(Save *s, const char *path, bool keep, Error *err);

/* Makes the folders that path lies in, as far as they are missing; a path that ends in a slash is itself a folder.
 * Returns false with errno. */
bool save_folders(const char *path, unsigned mode);

/* All of that in one call. write puts the contents into f and returns false if it could not. */
Status save_file(const char *path, SaveMode mode, bool (*write)(void *ud, FILE *f), void *ud, Error *err);

#endif
