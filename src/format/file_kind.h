/* file_kind.h - what a file is that was given for a model, by its first bytes: downloads that went wrong and formats of
 * other programs have names, so that messages can use them. */
#ifndef RATOON_FORMAT_FILE_KIND_H
#define RATOON_FORMAT_FILE_KIND_H

#include <stddef.h>
#include <stdint.h>

enum { FILE_KIND_BYTES = 64 };                     /* as many as are looked at */

typedef enum {
    FILE_GGUF, FILE_EMPTY, FILE_SWAPPED, FILE_GGML, FILE_SAFETENSORS, FILE_PICKLE, FILE_ARCHIVE, FILE_IMATRIX, FILE_LFS,
    FILE_HTML, FILE_MANIFEST, FILE_JSON, FILE_TEXT, FILE_OTHER
} FileKind;

/* n: the bytes at hand, fewer than FILE_KIND_BYTES only if the file ends there. */
FileKind    file_kind(const uint8_t *head, size_t n);
const char *file_kind_name(FileKind k);            /* "a web page"; FILE_OTHER: "something else" */

#endif
