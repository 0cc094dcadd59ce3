/* path.h - what names of files say: the parts of a path, how it ends, whether a folder is there. */
#ifndef RATOON_BASE_PATH_H
#define RATOON_BASE_PATH_H

#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

static inline const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* The folder that a path lies in. */
static inline void folder_of(char out[4096], const char *path)
{
    snprintf(out, 4096, "%s", path);
    char *slash = strrchr(out, '/');
    if (!slash) strcpy(out, ".");
    else slash[slash == out] = 0;
}

static inline bool ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), m = strlen(end);
    return n >= m && memcmp(s + n - m, end, m) == 0;
}

/* The same for the suffix of a file name, which counts in any case; the name may not be the suffix alone. */
static inline bool has_suffix(const char *name, const char *suffix)
{
    size_t n = strlen(name), m = strlen(suffix);
    return n > m && strcasecmp(name + n - m, suffix) == 0;
}

/* Bytes of a name without its ".gguf". */
static inline size_t gguf_stem(const char *name) { return strlen(name) - (has_suffix(name, ".gguf") ? 5 : 0); }

static inline bool is_folder(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

#endif
