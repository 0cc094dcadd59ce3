/* Tokenizers against vectors that we did not make; a developer's tool, not part of `make test` (it needs
 * vocabulary files).
 *   peer_tokenizer FOLDER          every ggml-vocab-NAME.gguf of a supported kind with its .inp and .out (llama.cpp's
 *                                  models folder)
 *   peer_tokenizer ids GGUF TEXT   the ids of a text file, one per line, to compare with
 *                                  tests/oracle/tokenizer_oracle.py
 * Prints counts and exits with 1 when anything differs. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "text/tokenizer/tokenizer.h"

static char *file_read(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rb");
    if (!f) return NULL;
    char *s = NULL;
    size_t cap = 0;
    *n = 0;
    do {
        if (*n == cap && !(s = realloc(s, cap = cap ? 2 * cap : 65536))) exit(2);
        *n += fread(s + *n, 1, cap - *n, f);
    } while (*n == cap);
    fclose(f);
    s[*n] = 0;                                     /* the last read was short, so there is room */
    return s;
}

/* CPU seconds of this process: other programs do not count. */
static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double) t.tv_sec + 1e-9 * (double) t.tv_nsec;
}

static Tokenizer *open_or_exit(Gguf **g, const char *path, double *took)
{
    Error err = { 0 };
    Tokenizer *t = NULL;
    if (gguf_open(g, path, &err) != ST_OK) {
        fprintf(stderr, "%s\n", err.text);
        exit(2);
    }
    double start = seconds();
    if (tokenizer_open(&t, *g, &err) != ST_OK) {
        fprintf(stderr, "%s\n", err.text);
        exit(2);
    }
    *took = seconds() - start;
    return t;
}

static int print_ids(const char *path, const char *text)
{
    Gguf *g;
    double took;
    Tokenizer *t = open_or_exit(&g, path, &took);
    size_t n;
    char *s = file_read(text, &n);
    if (!s) return 2;
    double start = seconds();
    size_t count = tokenizer_encode(t, NULL, 0, s, n, (TokenizeOptions) { 0 }, NULL);
    double first = seconds() - start;
    int32_t *ids = malloc((count + 1) * sizeof *ids);
    if (!ids) return 2;
    start = seconds();
    tokenizer_encode(t, ids, count, s, n, (TokenizeOptions) { 0 }, NULL);
    fprintf(stderr, "opened in %.0f ms, %zu bytes to %zu tokens in %.0f ms (%.0f ms uncached)\n", 1e3 * took, n, count,
            1e3 * (seconds() - start), 1e3 * first);
    for (size_t i = 0; i < count; i++) printf("%d\n", ids[i]);
    free(ids);
    free(s);
    tokenizer_close(t);
    gguf_close(g);
    return 0;
}

/* One case: the ids of s must match a line of decimals, and decode to the same bytes. */
static int run_case(const Tokenizer *t, const char *s, size_t n, char *line)
{
    static int32_t ids[65536];
    static char text[1 << 20];
    size_t count = tokenizer_encode(t, ids, 65536, s, n, (TokenizeOptions) { 0 }, NULL), k = 0;
    int same = 1;
    for (char *at = line, *next;; at = next, k++) {
        long id = strtol(at, &next, 10);
        if (next == at) break;
        if (k >= count || ids[k] != id) same = 0;
    }
    size_t back = tokenizer_decode(t, text, sizeof text, ids, count, true);
    return same && k == count && back == n && memcmp(text, s, n) == 0;
}

static int run_vectors(const char *folder, const char *name)
{
    static const char MARK[] = "\n__ggml_vocab_test__\n";
    char path[4096];
    Gguf *g;
    size_t n, n_out;
    double took;
    snprintf(path, sizeof path, "%s/ggml-vocab-%s.gguf.inp", folder, name);
    char *inp = file_read(path, &n);
    snprintf(path, sizeof path, "%s/ggml-vocab-%s.gguf.out", folder, name);
    char *out = file_read(path, &n_out);
    snprintf(path, sizeof path, "%s/ggml-vocab-%s.gguf", folder, name);
    if (!inp || !out) {
        fprintf(stderr, "%s: vectors missing\n", path);
        exit(2);
    }
    Tokenizer *t = open_or_exit(&g, path, &took);
    int cases = 0, good = 0;
    char *line = out;
    for (char *at = inp;; cases++) {
        char *mark = memmem(at, (size_t) (inp + n - at), MARK, strlen(MARK)), *end = mark ? mark : inp + n;
        char *stop = memchr(line, '\n', (size_t) (out + n_out - line));
        if (stop) *stop = 0;
        int ok = run_case(t, at, (size_t) (end - at), line);
        good += ok;
        if (!ok) printf("%s: case %d differs\n", name, cases);
        if (!mark) {
            cases++;
            break;
        }
        line = stop ? stop + 1 : out + n_out;
        at = mark + strlen(MARK);
    }
    printf("%-12s %d of %d cases (opened in %.0f ms)\n", name, good, cases, 1e3 * took);
    tokenizer_close(t);
    gguf_close(g);
    free(inp);
    free(out);
    return good != cases || cases == 0;
}

int main(int argc, char **argv)
{
    static const char *const NAMES[] = { "qwen2", "qwen35", "llama-bpe", "gpt-2", "mpt", "refact", "starcoder",
                                         "command-r", "gemma-4" };
    if (argc == 4 && strcmp(argv[1], "ids") == 0) return print_ids(argv[2], argv[3]);
    if (argc != 2) {
        fprintf(stderr, "usage: peer_tokenizer FOLDER | peer_tokenizer ids GGUF TEXT\n");
        return 2;
    }
    int failed = 0;
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++) failed |= run_vectors(argv[1], NAMES[i]);
    return failed;
}
