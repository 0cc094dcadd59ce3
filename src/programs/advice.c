#include "programs/advice.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/path.h"
#include "format/file_kind.h"
#include "format/gguf.h"
#include "programs/suggest.h"

#define AGAIN "fetch it again (ratoon pull resumes a download)"
#define CONVERT "ratoon reads GGUF: look for a GGUF repository of the model, or use llama.cpp's convert_hf_to_gguf.py"

/* ---- a file that is missing ---- */

/* Whether names that both end in .gguf are near without it: else the ending makes short names alike. */
static bool stems_near(const char *typed, const char *name)
{
    char a[256], b[256];
    Suggestion s = { .typed = a };
    if (!has_suffix(typed, ".gguf") || !has_suffix(name, ".gguf")) return true;
    snprintf(a, sizeof a, "%.*s", (int) gguf_stem(typed), typed);
    snprintf(b, sizeof b, "%.*s", (int) gguf_stem(name), name);
    suggest_try(&s, b);
    return s.best != NULL;
}

/* The name nearest to what was typed, and that of a file which begins so: "qwen3" for qwen3-Q4_K_M.gguf. */
static bool near_name(char out[256], const char *path)
{
    char folder[4096], best[256] = "";
    Suggestion s = { .typed = base_name(path) };
    size_t n = strlen(s.typed);
    out[0] = 0;
    folder_of(folder, path);
    DIR *d = n ? opendir(folder) : NULL;
    if (!d) return false;
    for (struct dirent *e; (e = readdir(d));) {
        if (!out[0] && has_suffix(e->d_name, ".gguf") && strncasecmp(e->d_name, s.typed, n) == 0)
            snprintf(out, 256, "%s", e->d_name);
        if (stems_near(s.typed, e->d_name)) suggest_try(&s, e->d_name);
        if (s.best == e->d_name) s.best = strcpy(best, e->d_name);
    }
    closedir(d);
    if (best[0]) strcpy(out, best);
    return out[0] != 0;
}

static void of_missing(char *out, const char *path, AdviceRole role)
{
    char name[256];
    const char *base = base_name(path);
    if (near_name(name, path))
        snprintf(out, ADVICE_TEXT, "; did you mean %.*s%s?", (int) (base - path), path, name);
    else if (role == AS_MODEL)
        snprintf(out, ADVICE_TEXT, "; ratoon models lists those on this machine, -hf OWNER/NAME fetches one");
    else if (role == AS_DRAFTER)
        snprintf(out, ADVICE_TEXT, "; -d none runs without a drafter");
}

/* ---- a folder ---- */

static int by_text(const void *a, const void *b) { return strcmp(a, b); }

/* Counts the GGUF files of a folder; first: the one that sorts first. */
static int32_t gguf_files(char first[256], const char *folder)
{
    int32_t n = 0;
    first[0] = 0;
    DIR *d = opendir(folder);
    for (struct dirent *e; d && (e = readdir(d));) {
        if (!has_suffix(e->d_name, ".gguf")) continue;
        if (n++ == 0 || by_text(e->d_name, first) < 0) snprintf(first, 256, "%s", e->d_name);
    }
    if (d) closedir(d);
    return n;
}

static void of_folder(char *out, const char *path, AdviceRole role)
{
    char first[256], config[4200];
    size_t n = strlen(path);
    const char *slash = n > 0 && path[n - 1] == '/' ? "" : "/";
    int32_t files = gguf_files(first, path);
    snprintf(config, sizeof config, "%s%sconfig.json", path, slash);
    if (files == 1) snprintf(out, ADVICE_TEXT, "; name the file in it: %s%s%s", path, slash, first);
    else if (files > 1)
        snprintf(out, ADVICE_TEXT, "; name one of its %d GGUF files, such as %s%s%s", files, path, slash, first);
    else if (role != AS_DRAFTER && access(config, F_OK) == 0) snprintf(out, ADVICE_TEXT, "; " CONVERT);
    else if (role != AS_DRAFTER) snprintf(out, ADVICE_TEXT, "; ratoon needs a GGUF file, and there is none in it");
}

/* ---- files of other kinds ---- */

static const char *of_kind(FileKind k, AdviceRole role)
{
    switch (k) {
    case FILE_EMPTY: return "the download did not begin: " AGAIN;
    case FILE_LFS: return "fetch the file itself with git lfs pull, or with ratoon pull";
    case FILE_HTML: return "the link led to a page instead of the file; ratoon pull fetches the file";
    case FILE_MANIFEST: return "the model is the blob named by its layer of type application/vnd.ollama.image.model";
    case FILE_JSON: return "it may be a server's message instead of the file: look into it, then " AGAIN;
    case FILE_SAFETENSORS: return role == AS_DRAFTER ? NULL : CONVERT;
    case FILE_PICKLE: case FILE_ARCHIVE: case FILE_GGML: return CONVERT;
    case FILE_IMATRIX: return "it helps other programs to quantise; name the model itself";
    case FILE_TEXT: return role == AS_DRAFTER ? "a drafter is a GGUF file, or a folder with config.json and safetensors"
                                              : "the model is a GGUF file; text is given with -p or -f";
    default: return NULL;
    }
}

/* ---- GGUF files ---- */

static bool says(const Gguf *g, const char *key, const char *word)
{
    const char *s;
    size_t n;
    return gguf_get_str(g, key, &s, &n, NULL) == ST_OK && memmem(s, n, word, strlen(word)) != NULL;
}

/* A file that is complete, but not what was asked for, or in types that do not run. Drafters and projectors given for
 * the model are refused before (files.c). */
static const char *of_header(const Gguf *g, AdviceRole role)
{
    if (role == AS_GGUF) return NULL;
    if (says(g, "general.type", "adapter"))
        return "merge it into its model first, with llama.cpp's llama-export-lora";
    if (says(g, "general.type", "imatrix")) return of_kind(FILE_IMATRIX, role);
    if (role == AS_DRAFTER && !says(g, "general.architecture", "dflash"))
        return "-d takes a drafter, -m the model; -d none runs without a drafter";
    if (gguf_n_tensors(g) == 0) return "it is a vocabulary alone: name the model's own file";
    for (int32_t i = 0; i < gguf_n_tensors(g); i++)
        if (!gguf_tensor_at(g, i)->known) return "take another quantisation of the model, such as Q4_K_M or Q8_0";
    return NULL;
}

static const char *of_gguf(const char *path, AdviceRole role)
{
    Gguf *g;
    Error e = { 0 };
    Status st = gguf_open(&g, path, &e);
    if (st == ST_OK) {
        const char *text = of_header(g, role);
        gguf_close(g);
        return text;
    }
    if (st == ST_IO) return "a split model needs all its parts, as they are named, in one folder";
    if (st == ST_UNSUPPORTED) return "look for a newer GGUF of the model";
    return st == ST_FORMAT ? "it may be incomplete: " AGAIN : NULL;
}

/* ---- all of them ---- */

static FileKind look(const char *path)
{
    uint8_t head[FILE_KIND_BYTES];
    FILE *f = fopen(path, "rbe");
    if (!f) return FILE_OTHER;
    size_t n = fread(head, 1, sizeof head, f);
    bool good = !ferror(f);
    fclose(f);
    return good ? file_kind(head, n) : FILE_OTHER;
}

const char *advice(char out[ADVICE_TEXT], const char *path, AdviceRole role)
{
    struct stat st;
    out[0] = 0;
    int why = stat(path, &st) != 0 || access(path, R_OK) != 0 ? errno : 0;
    if (why == ENOENT) {
        of_missing(out, path, role);
    } else if (why == EACCES) {
        snprintf(out, ADVICE_TEXT, "; make it readable for you (chmod a+r, and a+x for its folder), or ask its owner");
    } else if (why) {
        return out;
    } else if (S_ISDIR(st.st_mode) && role != AS_TEXT) {
        of_folder(out, path, role);
    } else if (S_ISREG(st.st_mode) && role != AS_TEXT) {
        FileKind k = look(path);
        const char *text = k == FILE_GGUF ? of_gguf(path, role) : of_kind(k, role);
        if (text) snprintf(out, ADVICE_TEXT, "; %s", text);
    }
    return out;
}

int complain_file(const Options *o, const char *error, const char *path, AdviceRole role)
{
    char text[ADVICE_TEXT];
    return complain(o, "%s%s", error, advice(text, path, role));
}

int complain_files(const Options *o, const char *error, const Files *f)
{
    bool draft = f->draft[0] && strncmp(error, f->draft, strlen(f->draft)) == 0;
    return complain_file(o, error, draft ? f->draft : f->model, draft ? AS_DRAFTER : AS_MODEL);
}
