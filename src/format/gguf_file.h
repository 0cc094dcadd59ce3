/* gguf_file.h - what an opened GGUF file is made of, shared by gguf.c (reading), gguf_keys.c (values) and gguf_write.c
 * (the numbers of the format). A part's header is a private copy: its counts, lengths and types are checked once and
 * cannot change afterwards.
 *
 *   | magic version n_tensors n_kv | key: name type value .. | tensor: name n_dims ne[] type offset .. | pad | data |
 *   '------------------------------------------ head (ours) -------------------------------------------'       mapped
 */
#ifndef RATOON_FORMAT_GGUF_FILE_H
#define RATOON_FORMAT_GGUF_FILE_H

#include <string.h>

#include "format/file.h"
#include "format/gguf.h"
#include "format/names.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "GGUF files are little-endian, and tensor data is used where it lies"
#endif

/* Far above any real model, and low enough that a hostile file costs little. Real headers have up to 10 MB, 60 keys and
 * 2,000 tensors. */
enum {
    GGUF_HEAD_MAX = 128 << 20, GGUF_STRING_MAX = 64 << 20, GGUF_KEY_BYTES_MAX = 65535, GGUF_KEYS_MAX = 65536,
    GGUF_TENSORS_MAX = 65536, GGUF_PARTS_MAX = 1024, GGUF_NAME_MAX = 63, GGUF_ALIGN_DEFAULT = 32, GGUF_ALIGN_MIN = 8,
    GGUF_ALIGN_MAX = 65536
};

typedef struct {
    const char    *name;
    GgufType       type, elem;              /* elem: type of the elements; equals type if not an array */
    uint64_t       count;                   /* elements; 1 if not an array */
    const uint8_t *value;                   /* as in the file, including the array's type and count; in the part's
                                             * head */
    size_t         bytes;                   /* of value */
    uint32_t      *strings;                 /* [count] for arrays of strings: where each starts in value */
} Key;

typedef struct {
    File     file;                                 /* path NULL: parsed from memory */
    char    *name;                                 /* for messages */
    uint8_t *head;
    Key     *keys;
    NameRef *order;                                /* [n_keys] sorted */
    int32_t  n_keys, version;
    size_t   size;                                 /* of the file */
} Part;

struct Gguf {
    Part       *parts;
    int32_t     n_parts, n_tensors;
    GgufTensor *tensors;
    NameRef    *order;                             /* [n_tensors] sorted */
};

static inline uint32_t load_u32(const uint8_t *p) { uint32_t v; memcpy(&v, p, sizeof v); return v; }
static inline uint64_t load_u64(const uint8_t *p) { uint64_t v; memcpy(&v, p, sizeof v); return v; }

int32_t gguf_type_bytes(GgufType t);               /* of one value; 0: strings and arrays, whose size varies */

/* Keys of one part; the public functions of the same names use the first part. */
const Key *part_key(const Part *p, const char *name);
/* a non-negative integer up to max; ST_END: missing */
Status     part_whole(const Part *p, const char *name, uint64_t *out, uint64_t max, Error *err);

#endif
