/* error.h - how every part of ratoon says that something failed.
 * A function that can fail returns a Status and, where it has an Error, writes one line there: the file, field and
 * value, and what was expected. Nothing is printed, nothing aborts: the program that embeds the library decides. */
#ifndef RATOON_BASE_ERROR_H
#define RATOON_BASE_ERROR_H

#include <stdarg.h>

/* The values are those of rt_status in ratoon.h (checked in engine/api.c). */
typedef enum {
    ST_OK = 0, ST_END = 1, ST_ARG = -1, ST_MEMORY = -2, ST_IO = -3, ST_FORMAT = -4, ST_UNSUPPORTED = -5, ST_FULL = -6,
    ST_CANCEL = -7, ST_BACKEND = -8, ST_NOTOKEN = -9, ST_LOST = -10
} Status;

enum { ERROR_TEXT = 512 };
typedef struct { Status code; char text[ERROR_TEXT]; } Error;

/* Writes code and text, and returns code, so that a failing line reads `return fail(err, ST_FORMAT, "...")`. err may be
 * NULL. The text is cleaned: a tensor's name cannot break a log line. */
Status fail(Error *err, Status code, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Makes s safe to show as one line on a terminal and in a log, whatever its source: control characters (C1 included)
 * and bytes that are not UTF-8 become '?'. */
void line_clean(char *s);

/* Returns a failure to the caller. */
#define TRY(call) do { Status try_status_ = (call); if (try_status_ != ST_OK) return try_status_; } while (0)

#endif
