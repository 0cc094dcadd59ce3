/* file.h - opens, reads and maps regular files, for the readers of this folder. Opening never blocks and never touches
 * a device: FIFOs, folders and sockets are refused by name. Headers are copied with file_read into our own memory, so
 * that a file that changes meanwhile is parsed once, from one state; only tensor data is read through the map. */
#ifndef RATOON_FORMAT_FILE_H
#define RATOON_FORMAT_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include "base/error.h"

typedef struct {
    char          *path;                           /* NULL: not open */
    int            fd;
    size_t         size;                           /* when it was opened */
    struct timespec changed;
    const uint8_t *map;                            /* [size]; NULL before file_map */
} File;

/* On failure f is as after file_close; *missing (may be NULL) says whether the reason is that the file does not
 * exist. */
Status file_open(File *f, const char *path, bool *missing, Error *err);
Status file_read(const File *f, void *out, size_t offset, size_t n, Error *err);   /* all n bytes, or ST_IO */
Status file_map(File *f, Error *err);              /* size > 0 */
/* ST_IO if the file was cut or written to since it was opened. Reading a map beyond the end of a file that was cut
 * raises SIGBUS, which only the program can handle. */
Status file_check(const File *f, Error *err);
/* Asks the kernel to read n mapped bytes at `at` from the disk meanwhile. */
void   file_want(const File *f, const uint8_t *at, size_t n);
/* Tells the kernel that n mapped bytes at `at` are not needed any more. */
void   file_drop(const File *f, const uint8_t *at, size_t n);
void   file_close(File *f);                        /* a zeroed File is fine */

#endif
