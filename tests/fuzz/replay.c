/* replay.c - runs a fuzz target over every file of the folders on the command line, without a fuzzer, so that the
 * corpora are part of the ordinary tests. The target aborts when something is wrong. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

/* Returns 1 if it ran, 0 if this is no regular file, -1 if it failed. Each input has memory of its exact size, so that
 * a sanitizer notices its end. */
static int replay_file(const char *path)
{
    struct stat st;
    if (stat(path, &st) != 0) return -1;
    if (!S_ISREG(st.st_mode)) return 0;
    size_t   n = (size_t) st.st_size;
    uint8_t *bytes = malloc(n ? n : 1);
    FILE    *f = fopen(path, "rb");
    int      result = bytes && f && fread(bytes, 1, n, f) == n ? 1 : -1;
    if (result == 1) LLVMFuzzerTestOneInput(bytes, n);
    if (f) fclose(f);
    free(bytes);
    return result;
}

static int replay_folder(const char *folder)
{
    char path[4096];
    int  n = 0;
    DIR *d = opendir(folder);
    if (!d) return -1;
    for (struct dirent *e; n >= 0 && (e = readdir(d)); ) {
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        int result = replay_file(path);
        if (result < 0) fprintf(stderr, "%s: cannot be read\n", path);
        n = result < 0 ? -1 : n + result;
    }
    closedir(d);
    return n;
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "usage: %s FOLDER...\n", argv[0]);
        return 2;
    }
    for (int i = 1; i < argc; i++) {
        int n = replay_folder(argv[i]);
        if (n < 1) {
            fprintf(stderr, "%s: no inputs\n", argv[i]);
            return 1;
        }
        printf("%s: %d inputs\n", argv[i], n);
    }
    return 0;
}
