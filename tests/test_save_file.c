/* A small file is whole or not there: whatever goes wrong, the old one stays and nothing lies beside it. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>

#include "base/save.h"

#include <cmocka.h>

#include <dirent.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[64], path[128];

static bool put(void *ud, FILE *f) { return fputs(ud, f) >= 0; }

static bool put_and_fail(void *ud, FILE *f)
{
    fputs(ud, f);
    return false;
}

static bool put_much(void *ud, FILE *f)
{
    for (int i = 0; i < 100000; i++) fputs(ud, f);
    return true;                                   /* it is the stream that knows */
}

static int32_t files(void)
{
    int32_t n = 0;
    DIR *d = opendir(folder);
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d)); ) n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

static void holds(const char *text)
{
    char got[64] = "";
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    size_t n = fread(got, 1, sizeof got - 1, f);
    fclose(f);
    assert_int_equal(n, strlen(text));
    assert_string_equal(got, text);
    assert_int_equal(files(), 1);
}

static void whole_or_not_at_all(void **state)
{
    (void) state;
    Error err = { 0 };
    struct stat st;
    char none[160];
    strcpy(folder, "/tmp/ratoon-test-XXXXXX");
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/file", folder);
    assert_int_equal(save_file(path, put_and_fail, "half", &err), ST_IO);
    assert_non_null(strstr(err.text, "file: it could not be written"));
    assert_int_equal(files(), 0);
    assert_int_equal(save_file(path, put, "first", &err), ST_OK);
    holds("first");
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    assert_int_equal(save_file(path, put, "the second", &err), ST_OK);
    holds("the second");
    assert_int_equal(save_file(path, put_and_fail, "half", &err), ST_IO);
    holds("the second");

    struct rlimit before, little = { 4096, 0 };
    getrlimit(RLIMIT_FSIZE, &before);
    little.rlim_max = before.rlim_max;
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &little);
    Status code = save_file(path, put_much, "much ", &err);
    setrlimit(RLIMIT_FSIZE, &before);
    assert_int_equal(code, ST_IO);
    assert_non_null(strstr(err.text, "File too large"));
    holds("the second");

    assert_int_equal(save_file(folder, put, "x", &err), ST_ARG);
    assert_non_null(strstr(err.text, "it is no file"));
    assert_int_equal(save_file("/dev/null", put, "x", &err), ST_ARG);
    snprintf(none, sizeof none, "%s/none/file", folder);
    assert_int_equal(save_file(none, put, "x", &err), ST_IO);
    assert_non_null(strstr(err.text, "No such file"));
    holds("the second");
    unlink(path);
    rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(whole_or_not_at_all) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
