/* gguf.h - reads GGUF v2/v3 files, single or split. The file is mapped and never trusted: every count is checked
 * against the bytes left before anything is allocated, every value is read by its declared type, and nothing outside
 * this module sees the raw image except tensor data of checked size. Rules R1-R9 and the cases G01-G19 are tests
 * (tests/unit/format/test_gguf.c). */
#ifndef RATOON_FORMAT_GGUF_H
#define RATOON_FORMAT_GGUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "format/quant.h"

typedef struct Gguf Gguf;

typedef struct {
    const char    *name;                           /* shorter than 64 bytes, unique */
    uint32_t       ggml_type;                      /* number in the file */
    bool           known;                          /* type is valid: our own number for ggml_type */
    Type           type;
    int32_t        n_dims;                         /* trailing dimensions of 1 dropped, at least 1 */
    int64_t        ne[4];                          /* ne[0] contiguous; missing ones 1 */
    uint64_t       bytes;                          /* size of data, checked against the file */
    const uint8_t *data;                           /* mapped, or in the caller's image (gguf_parse) */
    const char    *file;                           /* path of the part that holds it */
    uint64_t       offset;                         /* of data in it */
} GgufTensor;

typedef enum { GV_U8, GV_I8, GV_U16, GV_I16, GV_U32, GV_I32, GV_F32, GV_BOOL, GV_STRING, GV_ARRAY, GV_U64, GV_I64,
               GV_F64 } GgufType;

/* Opens path, and with a split file all its parts (given any one of them). Needs a regular file. Takes about the
 * header's size in memory; the data stays mapped until gguf_close. */
Status gguf_open(Gguf **out, const char *path, Error *err);
/* The same parser over n bytes, which the caller keeps alive; name is for messages. For fuzzing and tests; no split
 * files. */
Status gguf_parse(Gguf **out, const void *bytes, size_t n, const char *name, Error *err);
void   gguf_close(Gguf *g);                        /* NULL is fine */
/* ST_IO if a part was truncated or written to since it was opened. Call it before and after reading the data: reading
 * mapped data of a truncated file raises SIGBUS, and a handler for that belongs to the program, not to a library. Keys
 * and names are copies. */
Status gguf_check_files(const Gguf *g, Error *err);

const char *gguf_path(const Gguf *g);
int32_t     gguf_version(const Gguf *g);
uint64_t    gguf_file_bytes(const Gguf *g);     /* all parts */
int64_t     gguf_changed(const Gguf *g);        /* when the newest part was last written to, in nanoseconds of the file
                                                 * system's clock */

/* Tensors in file order. gguf_tensor: NULL if missing. */
int32_t           gguf_n_tensors(const Gguf *g);
const GgufTensor *gguf_tensor_at(const Gguf *g, int32_t i);
const GgufTensor *gguf_tensor(const Gguf *g, const char *name);
const char       *gguf_tensor_type_name(const GgufTensor *t);  /* also for unknown types: "IQ2_XS" */

/* Keys. gguf_get_*: ST_END if the key is missing (out untouched, no message); ST_FORMAT if it has another type or is
 * out of range, with a message naming file, key and both types or the value. Integers of any width are accepted if the
 * value fits. gguf_get_u32 also takes an array whose elements are all equal or zero (per-layer lists of some writers)
 * and returns its largest value. */
bool   gguf_has(const Gguf *g, const char *key);
Status gguf_get_u32(const Gguf *g, const char *key, uint32_t *out, Error *err);
Status gguf_get_u64(const Gguf *g, const char *key, uint64_t *out, Error *err);
Status gguf_get_f32(const Gguf *g, const char *key, float *out, Error *err);
Status gguf_get_bool(const Gguf *g, const char *key, bool *out, Error *err);
/* Points into the file's bytes, not NUL-terminated, valid until gguf_close. */
Status gguf_get_str(const Gguf *g, const char *key, const char **s, size_t *n, Error *err);
/* Arrays: gguf_array returns the count; elements are read one at a time, converted like the scalars. */
Status gguf_array(const Gguf *g, const char *key, GgufType *elem, uint64_t *count, Error *err);
Status gguf_array_i64(const Gguf *g, const char *key, uint64_t i, int64_t *out, Error *err);
Status gguf_array_f32(const Gguf *g, const char *key, uint64_t i, float *out, Error *err);
Status gguf_array_bool(const Gguf *g, const char *key, uint64_t i, bool *out, Error *err);
/* O(1): offsets are indexed at load */
Status gguf_array_str(const Gguf *g, const char *key, uint64_t i, const char **s, size_t *n, Error *err);

/* Keys in file order, for `inspect`. gguf_key_text writes the value in a short readable form (arrays: type, count,
 * first values). */
int32_t     gguf_n_keys(const Gguf *g);
const char *gguf_key(const Gguf *g, int32_t i);
GgufType    gguf_key_type(const Gguf *g, int32_t i);
/* The value as stored in the file after its type number (for copying). */
const uint8_t *gguf_key_raw(const Gguf *g, int32_t i, size_t *n);
size_t      gguf_key_text(const Gguf *g, int32_t i, char *out, size_t cap);    /* like snprintf */
const char *gguf_type_name(GgufType t);

/* Asks the kernel to read mapped pages from the disk meanwhile; like gguf_drop. */
void gguf_want(const Gguf *g, const char *file, const uint8_t *at, size_t n);
/* Tells the kernel that mapped pages are no longer needed (after repacking): n bytes at `at` within the data of a
 * tensor of `file`. */
void gguf_drop(const Gguf *g, const char *file, const uint8_t *at, size_t n);

/* Writing, for `quantize`, bench/make_synthetic and the tests' models. First keys and tensors, in order; then the data
 * of each tensor in the same order, in pieces of any size. v3, alignment 32; the file appears complete or not at all
 * (base/save.h). */
typedef struct GgufWriter GgufWriter;
Status gguf_write_open(GgufWriter **out, const char *path, Error *err);
void   gguf_write_u32(GgufWriter *w, const char *key, uint32_t v);
void   gguf_write_f32(GgufWriter *w, const char *key, float v);
void   gguf_write_bool(GgufWriter *w, const char *key, bool v);
void   gguf_write_str(GgufWriter *w, const char *key, const char *s, size_t n);
void   gguf_write_i32s(GgufWriter *w, const char *key, const int32_t *v, size_t n);
void   gguf_write_f32s(GgufWriter *w, const char *key, const float *v, size_t n);
void   gguf_write_bools(GgufWriter *w, const char *key, const bool *v, size_t n);
void   gguf_write_strs(GgufWriter *w, const char *key, const char *const *s, const size_t *n, size_t count);
/* copies key i of a file that was read, except general.alignment and split.*, which describe only that file */
void   gguf_write_key_of(GgufWriter *w, const Gguf *g, int32_t i);
void   gguf_write_tensor(GgufWriter *w, const char *name, Type t, int32_t n_dims, const int64_t *ne);
void   gguf_write_data(GgufWriter *w, const void *bytes, size_t n);
bool   gguf_write_failed(const GgufWriter *w);     /* nothing more is written */
/* reports the first failure and frees w. keep false: discards the file */
Status gguf_write_close(GgufWriter *w, bool keep, Error *err);

#endif
