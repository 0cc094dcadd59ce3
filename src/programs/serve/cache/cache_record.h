/* cache_record.h - the file format of cache records: pure functions that accept arbitrary bytes.
 *
 *   head 128 bytes | tokens i32 [n_tokens] | identity | note | zeros to 64 || image
 *   '---------------------------- front, head.sum -----------------------'    '- head.image_sum */
#ifndef RATOON_PROGRAMS_SERVE_CACHE_CACHE_RECORD_H
#define RATOON_PROGRAMS_SERVE_CACHE_CACHE_RECORD_H

#include "programs/serve/cache/cache.h"

enum { RECORD_HEAD = 128, RECORD_VERSION = 1, RECORD_IDENTITY_MAX = 1024, RECORD_NOTE_MAX = 16 << 20,
       RECORD_TOKENS_MAX = RT_CTX_MAX };

/* Names a record's file; computed from its text and identity. Two texts with the same name displace each other and do
 * no other harm. */
typedef struct { uint64_t high, low; } RecordName;
RecordName record_name(const char *identity, size_t n_identity, const int32_t *tokens, int32_t n);

/* What the front contains. tokens, identity and note point into the buffer read or written, which must outlive it. */
typedef struct {
    CacheKind      kind;
    const int32_t *tokens;
    const char    *identity;
    const uint8_t *note;
    int32_t        n_tokens;
    size_t         n_identity, n_note, n_front;
    uint64_t       n_image, image_sum;
} Record;

/* Size of the front, from its first n <= RECORD_HEAD bytes and the file's size. ST_FORMAT: damaged; ST_UNSUPPORTED: not
 * our format or another version. name is for messages. */
Status record_front_bytes(size_t *n_front, const uint8_t *head, size_t n, uint64_t n_file, const char *name,
                          Error *err);
/* front must be aligned for int32_t and as long as record_front_bytes says. */
Status record_read(Record *out, const uint8_t *front, size_t n_front, uint64_t n_file, const char *name, Error *err);
Status record_check_image(const Record *r, const uint8_t *image, const char *name, Error *err);

/* A new front, malloc'd, and its contents; NULL if out of memory or beyond the limits. It can be written once it is
 * sealed, with the kind it has by then. */
uint8_t *record_new(Record *out, CacheKind kind, const char *identity, const int32_t *tokens, size_t n,
                    const void *note, size_t n_note, size_t n_image);
void     record_seal(Record *r, uint8_t *front, const uint8_t *image);

#endif
