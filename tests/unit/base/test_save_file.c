/* A small file is saved completely or not at all: whatever goes wrong, the old one remains, and no other file is
 * left. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>

#include "base/save.h"

#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/syscall.h>
#include <unistd.h>

static char folder[64], path[128];

/* A disk that takes the bytes and fails to keep them. */
static bool no_fsync;
int fsync(int fd)
{
    if (!no_fsync) return (int) syscall(SYS_fsync, fd);
    errno = EIO;
    return -1;
}

static bool put(void *ud, FILE *f) { return fputs(ud, f) >= 0; }

static bool put_and_fail(void *ud, FILE *f)
{
    fputs(ud, f);
    return false;
}

static bool put_much(void *ud, FILE *f)
{
    for (int i = 0; i < 100000; i++) fputs(ud, f);
    return true;                                   /* the stream has the error */
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
    assert_int_equal(save_file(path, SAVE_PRIVATE, put_and_fail, "half", &err), ST_IO);
    assert_non_null(strstr(err.text, "file: cannot be written"));
    assert_int_equal(files(), 0);
    assert_int_equal(save_file(path, SAVE_PRIVATE, put, "first", &err), ST_OK);
    holds("first");
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    assert_int_equal(save_file(path, SAVE_PRIVATE, put, "the second", &err), ST_OK);
    holds("the second");
    assert_int_equal(save_file(path, SAVE_PRIVATE, put_and_fail, "half", &err), ST_IO);
    holds("the second");

    no_fsync = true;
    assert_int_equal(save_file(path, SAVE_PRIVATE, put, "third", &err), ST_IO);
    no_fsync = false;
    assert_non_null(strstr(err.text, "Input/output error"));
    holds("the second");

    struct rlimit before, little = { 4096, 0 };
    getrlimit(RLIMIT_FSIZE, &before);
    little.rlim_max = before.rlim_max;
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &little);
    Status code = save_file(path, SAVE_PRIVATE, put_much, "much ", &err);
    setrlimit(RLIMIT_FSIZE, &before);
    assert_int_equal(code, ST_IO);
    assert_non_null(strstr(err.text, "File too large"));
    holds("the second");

    assert_int_equal(save_file(folder, SAVE_PRIVATE, put, "x", &err), ST_ARG);
    assert_non_null(strstr(err.text, "is a folder, expected a file"));
    snprintf(none, sizeof none, "%s/none/file", folder);
    assert_int_equal(save_file(none, SAVE_PRIVATE, put, "x", &err), ST_IO);
    assert_non_null(strstr(err.text, "No such file"));
    holds("the second");
    unlink(path);
    rmdir(folder);
}

/* ---- names that are no plain file ---- */

static char *in_folder(char out[160], const char *name)
{
    snprintf(out, 160, "%s/%s", folder, name);
    return out;
}

static void make_folder(void)
{
    strcpy(folder, "/tmp/ratoon-test-XXXXXX");
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/file", folder);
}

static void remove_folder(void)
{
    char line[160];
    snprintf(line, sizeof line, "rm -rf %s", folder);
    assert_int_equal(system(line), 0);
}

static mode_t mode_of(const char *name)
{
    struct stat st;
    char at[160];
    return lstat(in_folder(at, name), &st) == 0 ? st.st_mode : 0;
}

/* A link remains, and the file it points to is replaced in its own folder. */
static void links_are_followed(void **state)
{
    (void) state;
    Error err = { 0 };
    char link[160], there[160], at[160];
    make_folder();
    assert_int_equal(mkdir(in_folder(there, "there"), 0700), 0);
    assert_int_equal(save_file(in_folder(at, "there/real"), SAVE_SHARED, put, "old", &err), ST_OK);
    assert_int_equal(symlink("there/real", in_folder(link, "link")), 0);
    assert_int_equal(save_file(link, SAVE_SHARED, put, "new", &err), ST_OK);
    assert_true(S_ISLNK(mode_of("link")) && S_ISREG(mode_of("there/real")));
    strcpy(path, at);
    strcpy(folder, there);
    holds("new");
    *strrchr(folder, '/') = 0;
    assert_int_equal(files(), 2);
    assert_int_equal(symlink("nothing", in_folder(link, "broken")), 0);
    assert_int_equal(save_file(link, SAVE_SHARED, put, "x", &err), ST_ARG);
    assert_non_null(strstr(err.text, "broken: is a link to nothing"));
    assert_int_equal(save_check(link, &err), ST_ARG);
    assert_true(S_ISLNK(mode_of("broken")) && !mode_of("nothing"));
    assert_int_equal(symlink("there", in_folder(link, "folder")), 0);
    assert_int_equal(save_file(link, SAVE_SHARED, put, "x", &err), ST_ARG);
    assert_non_null(strstr(err.text, "folder: is a folder"));
    remove_folder();
}

static void permissions_stay(void **state)
{
    (void) state;
    Error err = { 0 };
    mode_t mask = umask(027);
    make_folder();
    assert_int_equal(save_file(path, SAVE_SHARED, put, "x", &err), ST_OK);
    assert_int_equal(mode_of("file") & 0777, 0640);
    assert_int_equal(chmod(path, 0604), 0);
    assert_int_equal(save_file(path, SAVE_SHARED, put, "y", &err), ST_OK);
    assert_int_equal(mode_of("file") & 0777, 0604);
    assert_int_equal(save_file(path, SAVE_PRIVATE, put, "z", &err), ST_OK);
    assert_int_equal(mode_of("file") & 0777, 0600);
    umask(mask);
    remove_folder();
}

/* Pipes and devices are written to; they are not replaced. */
static void streams_are_written_to(void **state)
{
    (void) state;
    Error err = { 0 };
    char pipe[160], got[16] = "";
    make_folder();
    assert_int_equal(mkfifo(in_folder(pipe, "pipe"), 0600), 0);
    assert_int_equal(save_file(pipe, SAVE_PRIVATE, put, "x", &err), ST_IO);
    assert_non_null(strstr(err.text, "pipe: cannot be written: nobody reads from it"));
    int in = open(pipe, O_RDONLY | O_NONBLOCK);
    assert_int_equal(save_check(pipe, &err), ST_OK);
    assert_int_equal(save_file(pipe, SAVE_PRIVATE, put, "through", &err), ST_OK);
    assert_int_equal(read(in, got, sizeof got), 7);
    assert_string_equal(got, "through");
    close(in);
    assert_true(S_ISFIFO(mode_of("pipe")));
    assert_int_equal(files(), 1);
    remove_folder();
}

/* Scratch nodes with the numbers of /dev/null and /dev/full; making them needs root and a file system that allows
 * opening them. */
static void devices_are_written_to(void **state)
{
    (void) state;
    Error err = { 0 };
    char null[160], full[160], disk[160];
    make_folder();
    bool made = mknod(in_folder(null, "null"), S_IFCHR | 0666, makedev(1, 3)) == 0 &&
                mknod(in_folder(full, "full"), S_IFCHR | 0666, makedev(1, 7)) == 0 &&
                mknod(in_folder(disk, "disk"), S_IFBLK | 0600, makedev(7, 250)) == 0 && access(null, W_OK) == 0;
    int fd = made ? open(null, O_WRONLY) : -1;
    if (fd < 0) {
        remove_folder();
        skip();
    }
    close(fd);
    assert_int_equal(save_file(null, SAVE_SHARED, put, "gone", &err), ST_OK);
    assert_int_equal(save_file(full, SAVE_SHARED, put, "too much", &err), ST_IO);
    assert_non_null(strstr(err.text, "full: cannot be written: No space left"));
    assert_int_equal(save_file(disk, SAVE_SHARED, put, "x", &err), ST_ARG);
    assert_non_null(strstr(err.text, "disk: is a block device"));
    assert_true(S_ISCHR(mode_of("null")) && S_ISCHR(mode_of("full")) && S_ISBLK(mode_of("disk")));
    assert_int_equal(files(), 3);
    remove_folder();
}

/* save_check returns what save_open will, and creates nothing. */
static void checks_before(void **state)
{
    (void) state;
    Error err = { 0 };
    char at[160];
    make_folder();
    assert_int_equal(save_check(path, &err), ST_OK);
    assert_int_equal(files(), 0);
    assert_int_equal(save_check(in_folder(at, "none/file"), &err), ST_IO);
    assert_non_null(strstr(err.text, "none/file: cannot be created: No such file"));
    assert_int_equal(save_check(folder, &err), ST_ARG);
    assert_int_equal(save_check("", &err), ST_IO);
    assert_int_equal(save_check("/a-file", &err), access("/", W_OK) == 0 ? ST_OK : ST_IO);
    assert_int_equal(save_check("a-file", &err), access(".", W_OK) == 0 ? ST_OK : ST_IO);
    remove_folder();
}

static void folders_are_made(void **state)
{
    (void) state;
    char deep[256], file[300];
    struct stat st;
    make_folder();
    snprintf(deep, sizeof deep, "%s/a/b/", folder);
    snprintf(file, sizeof file, "%sfile", deep);
    assert_true(save_folders(file, 0700));
    assert_int_equal(stat(deep, &st), 0);
    assert_int_equal(stat(file, &st), -1);
    assert_true(save_folders(deep, 0700));         /* they are there already */
    fclose(fopen(file, "w"));
    snprintf(file, sizeof file, "%sfile/c/d", deep);
    assert_false(save_folders(file, 0700));
    assert_int_equal(errno, ENOTDIR);
    snprintf(file, sizeof file, "%sfile", deep);
    assert_int_equal(unlink(file), 0);
    deep[strlen(deep) - 1] = 0;
    assert_int_equal(rmdir(deep), 0);
    *strrchr(deep, '/') = 0;
    assert_int_equal(rmdir(deep), 0);
    remove_folder();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whole_or_not_at_all), cmocka_unit_test(links_are_followed), cmocka_unit_test(permissions_stay),
        cmocka_unit_test(streams_are_written_to), cmocka_unit_test(devices_are_written_to),
        cmocka_unit_test(checks_before), cmocka_unit_test(folders_are_made),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
