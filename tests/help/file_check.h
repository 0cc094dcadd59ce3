/* file_check.h - what the tests of file readers share: the error, CPU time, the check of a message, a folder. Include
 * it after the reader's header. */
#ifndef RATOON_TESTS_HELP_FILE_CHECK_H
#define RATOON_TESTS_HELP_FILE_CHECK_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>

#include "base/error.h"                            /* before cmocka.h, which has a macro named fail */
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "remove_tree.h"

static Error err;

/* CPU seconds of this process, so that a busy machine fails no test. */
static inline double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double) t.tv_sec + (double) t.tv_nsec / 1e9;
}

/* The message must be one line that names the file and contains text. */
static inline void check_message(Status status, Status expected, const char *file, const char *text)
{
    if (status != expected || !strstr(err.text, file) || !strstr(err.text, text))
        print_error("status %d (expected %d), '%s' (expected %s and '%s')\n", status, expected, err.text, file, text);
    assert_int_equal(status, expected);
    assert_int_equal(err.code, expected);
    assert_non_null(strstr(err.text, file));
    assert_non_null(strstr(err.text, text));
    assert_null(strchr(err.text, '\n'));
}

/* ---- a folder for files ---- */

static char folder[64];

static inline int new_folder(const char *name)
{
    snprintf(folder, sizeof folder, "/tmp/ratoon-%s-XXXXXX", name);
    return mkdtemp(folder) ? 0 : -1;
}

/* One of four buffers in turn. */
static inline const char *in_folder(const char *name)
{
    static char path[4][256];
    static int  turn;
    turn = (turn + 1) % 4;
    snprintf(path[turn], sizeof path[turn], "%s/%s", folder, name);
    return path[turn];
}

static inline const char *save_bytes(const char *name, const void *bytes, size_t n)
{
    const char *path = in_folder(name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
    return path;
}

static inline int remove_folder(void **state)
{
    (void) state;
    return remove_tree(folder);
}

#endif
