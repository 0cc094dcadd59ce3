#include "format/file_kind.h"

#include <stdbool.h>
#include <string.h>
#include <strings.h>

static bool begins(const uint8_t *s, size_t n, const char *with)
{
    size_t m = strlen(with);
    return n >= m && strncasecmp((const char *) s, with, m) == 0;
}

static bool is_text(const uint8_t *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if ((s[i] < 32 && (s[i] < 8 || s[i] > 13)) || s[i] == 127) return false;
    return true;
}

/* After a byte order mark and blanks. */
static FileKind text_kind(const uint8_t *s, size_t n)
{
    size_t skip = begins(s, n, "\xef\xbb\xbf") ? 3 : 0;
    while (skip < n && s[skip] <= ' ') skip++;
    s += skip;
    n -= skip;
    if (begins(s, n, "version https://git-lfs")) return FILE_LFS;
    if (begins(s, n, "<!doctype") || begins(s, n, "<html") || begins(s, n, "<?xml")) return FILE_HTML;
    if (n > 0 && (*s == '{' || *s == '[')) return memmem(s, n, "schemaVersion", 13) ? FILE_MANIFEST : FILE_JSON;
    return FILE_TEXT;
}

FileKind file_kind(const uint8_t *head, size_t n)
{
    static const struct { const char magic[6]; uint8_t n; FileKind kind; } magics[] = {
        { "FUGG", 4, FILE_SWAPPED }, { "lmgg", 4, FILE_GGML }, { "fmgg", 4, FILE_GGML }, { "tjgg", 4, FILE_GGML },
        { "algg", 4, FILE_GGML }, { "ggml", 4, FILE_GGML }, { "ggmf", 4, FILE_GGML }, { "ggjt", 4, FILE_GGML },
        { "PK\3\4", 4, FILE_ARCHIVE }, { "\x1f\x8b", 2, FILE_ARCHIVE }, { "\xfd" "7zXZ", 5, FILE_ARCHIVE },
        { "7z\xbc\xaf", 4, FILE_ARCHIVE }, { "\x28\xb5\x2f\xfd", 4, FILE_ARCHIVE }, { "\x80\2", 2, FILE_PICKLE },
    };
    if (n > FILE_KIND_BYTES) n = FILE_KIND_BYTES;
    if (n == 0) return FILE_EMPTY;
    if (memcmp(head, "GGUF", n < 4 ? n : 4) == 0) return FILE_GGUF;
    for (size_t i = 0; i < sizeof magics / sizeof *magics; i++)
        if (n >= magics[i].n && memcmp(head, magics[i].magic, magics[i].n) == 0) return magics[i].kind;
    if (n > 8 && head[8] == '{' && memcmp(head + 4, "\0\0\0", 4) == 0) return FILE_SAFETENSORS;
    if (n >= 12 && memcmp(head + 8, "blk.", 4) == 0) return FILE_IMATRIX;
    return is_text(head, n) ? text_kind(head, n) : FILE_OTHER;
}

const char *file_kind_name(FileKind k)
{
    static const char *const names[] = {
        [FILE_GGUF] = "a GGUF file", [FILE_EMPTY] = "an empty file",
        [FILE_SWAPPED] = "a GGUF file with its bytes swapped", [FILE_GGML] = "an old GGML file",
        [FILE_SAFETENSORS] = "a safetensors file", [FILE_PICKLE] = "a PyTorch file",
        [FILE_ARCHIVE] = "an archive (zip, gz, PyTorch)", [FILE_IMATRIX] = "an importance matrix",
        [FILE_LFS] = "a Git LFS pointer", [FILE_HTML] = "a web page", [FILE_MANIFEST] = "an Ollama manifest",
        [FILE_JSON] = "JSON text", [FILE_TEXT] = "a text file", [FILE_OTHER] = "something else",
    };
    return names[k];
}
