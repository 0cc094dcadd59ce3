/* safetensors.h - reads a Hugging Face checkpoint folder or file: model.safetensors, or the shards of
 * model.safetensors.index.json, with the config.json beside it. Hardened like gguf.h; cases S01-S07 are tests
 * (tests/unit/format/test_safetensors.c). */
#ifndef RATOON_FORMAT_SAFETENSORS_H
#define RATOON_FORMAT_SAFETENSORS_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/json.h"
#include "format/quant.h"

typedef struct Safetensors Safetensors;

enum { SAFE_DIMS = 8 };                            /* image towers have convolutions with 5 */

typedef struct {
    const char    *name;
    Type           type;                     /* T_F32, T_F16, T_BF16, T_I32 for whole numbers; other dtypes are refused
                                              * by name when read */
    const char    *dtype;                    /* as in the file; whole numbers may be I64 or BOOL (tables of reduced
                                              * vocabularies), whose data is not that of T_I32 */
    int32_t        n_dims;                   /* 0 for a scalar */
    int64_t        shape[SAFE_DIMS];         /* outermost first, as in the file; 1 beyond n_dims */
    uint64_t       bytes;
    const uint8_t *data;
    const char    *file;
} SafeTensor;

/* path: a folder, a .safetensors file, or an index.json. */
Status safetensors_open(Safetensors **out, const char *path, Error *err);
/* The image of one file; name is for messages. For fuzzing and tests. */
Status safetensors_parse(Safetensors **out, const void *bytes, size_t n, const char *name, Error *err);
void   safetensors_close(Safetensors *s);          /* NULL is fine */
/* ST_IO if a file was truncated or written to since it was opened; see gguf_check_files. */
Status safetensors_check_files(const Safetensors *s, Error *err);

/* Like gguf_want and gguf_drop. */
void                safetensors_want(const Safetensors *s, const char *file, const uint8_t *at, size_t n);
void safetensors_drop(const Safetensors *s, const char *file, const uint8_t *at, size_t n);

/* the folder's config.json, an object; NULL if there is none */
const json_t     *safetensors_config(const Safetensors *s);
const char       *safetensors_path(const Safetensors *s);
int32_t           safetensors_n(const Safetensors *s);
const SafeTensor *safetensors_at(const Safetensors *s, int32_t i);
const SafeTensor *safetensors_get(const Safetensors *s, const char *name);


#endif
