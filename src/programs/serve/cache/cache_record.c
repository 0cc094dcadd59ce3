#include "programs/serve/cache/cache_record.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "base/bulk_sum.h"
#include "base/check.h"

static const char MAGIC[8] = "ratoonR";
enum { ALIGN = 64, KINDS = CACHE_INTERVAL + 1 };

/* In native byte order; a file of the other order shows a wrong version. sum: over the front after this field. */
typedef struct {
    char     magic[8];
    uint64_t sum;
    uint32_t version, kind;
    uint64_t n_file, n_image, image_sum;
    int32_t  n_tokens;
    uint32_t n_identity, n_note, zero;
    uint8_t  rest[RECORD_HEAD - 64];
} Head;
_Static_assert(sizeof(Head) == RECORD_HEAD, "a head without gaps");

RecordName record_name(const char *identity, size_t n_identity, const int32_t *tokens, int32_t n)
{
    XXH128_hash_t of = XXH3_128bits(identity, n_identity),
                  h = XXH3_128bits_withSeed(tokens, sizeof *tokens * (size_t) n, of.low64);
    return (RecordName) { h.high64 ^ of.high64, h.low64 };
}

static uint64_t front_sum(const uint8_t *front, size_t n)
{
    return XXH3_64bits(front + offsetof(Head, version), n - offsetof(Head, version));
}

/* Returns false if a limit is exceeded. */
static bool front_bytes(size_t *out, const Head *h)
{
    if (h->n_tokens < 1 || h->n_tokens > RECORD_TOKENS_MAX) return false;
    if (h->n_identity < 1 || h->n_identity > RECORD_IDENTITY_MAX || h->n_note > RECORD_NOTE_MAX) return false;
    return check_round_up(out, sizeof *h + sizeof(int32_t) * (size_t) h->n_tokens + h->n_identity + h->n_note, ALIGN);
}

Status record_front_bytes(size_t *n_front, const uint8_t *head, size_t n, uint64_t n_file, const char *name, Error *err)
{
    Head h;
    if (n < sizeof h) return fail(err, ST_FORMAT, "%s: %zu bytes, expected at least %zu", name, n, sizeof h);
    memcpy(&h, head, sizeof h);
    if (memcmp(h.magic, MAGIC, sizeof MAGIC) != 0)
        return fail(err, ST_UNSUPPORTED, "%s: it does not begin like a record of ratoon's cache", name);
    if (h.version != RECORD_VERSION)
        return fail(err, ST_UNSUPPORTED, "%s: version %u, expected %d", name, h.version, RECORD_VERSION);
    if (h.kind >= KINDS || !front_bytes(n_front, &h))
        return fail(err, ST_FORMAT, "%s: kind %u, %d tokens, a note of %u bytes: out of range", name, h.kind,
                    h.n_tokens, h.n_note);
    if (h.n_file != n_file || *n_front > n_file || n_file - *n_front != h.n_image)
        return fail(err, ST_FORMAT, "%s: its parts of %llu bytes do not fill the file's %llu", name,
                    (unsigned long long) h.n_file, (unsigned long long) n_file);
    return ST_OK;
}

static void point(Record *out, const Head *h, const uint8_t *front, size_t n_front)
{
    const uint8_t *tokens = front + sizeof *h, *identity = tokens + sizeof(int32_t) * (size_t) h->n_tokens;
    *out = (Record) {
        .kind = (CacheKind) h->kind, .tokens = (const int32_t *) (const void *) tokens,
        .identity = (const char *) identity, .note = identity + h->n_identity, .n_tokens = h->n_tokens,
        .n_identity = h->n_identity, .n_note = h->n_note, .n_front = n_front, .n_image = h->n_image,
        .image_sum = h->image_sum
    };
}

Status record_read(Record *out, const uint8_t *front, size_t n_front, uint64_t n_file, const char *name, Error *err)
{
    Head h;
    size_t need;
    TRY(record_front_bytes(&need, front, n_front < sizeof h ? n_front : sizeof h, n_file, name, err));
    if (n_front != need)
        return fail(err, ST_FORMAT, "%s: %zu bytes before the image, expected %zu", name, n_front, need);
    memcpy(&h, front, sizeof h);
    if (h.sum != front_sum(front, n_front))
        return fail(err, ST_FORMAT, "%s: the checksum of its tokens is wrong: it is damaged", name);
    point(out, &h, front, n_front);
    return ST_OK;
}

Status record_check_image(const Record *r, const uint8_t *image, const char *name, Error *err)
{
    if (bulk_sum(image, (size_t) r->n_image) == r->image_sum) return ST_OK;
    return fail(err, ST_FORMAT, "%s: the checksum of its image of %llu bytes is wrong: it is damaged", name,
                (unsigned long long) r->n_image);
}

uint8_t *record_new(Record *out, CacheKind kind, const char *identity, const int32_t *tokens, size_t n,
                    const void *note, size_t n_note, size_t n_image)
{
    size_t n_identity = strlen(identity), n_front, n_file;
    if (n > RECORD_TOKENS_MAX || n_identity > RECORD_IDENTITY_MAX || n_note > RECORD_NOTE_MAX) return NULL;
    Head h = { .version = RECORD_VERSION, .kind = (uint32_t) kind, .n_image = n_image, .n_tokens = (int32_t) n };
    h.n_identity = (uint32_t) n_identity;
    h.n_note = (uint32_t) n_note;
    memcpy(h.magic, MAGIC, sizeof h.magic);
    uint8_t *front = front_bytes(&n_front, &h) && check_add(&n_file, n_front, n_image) ? calloc(1, n_front) : NULL;
    if (!front) return NULL;
    h.n_file = n_file;
    memcpy(front, &h, sizeof h);
    point(out, &h, front, n_front);
    memcpy(front + sizeof h, tokens, sizeof *tokens * n);
    memcpy(front + sizeof h + sizeof *tokens * n, identity, n_identity);
    if (n_note) memcpy(front + sizeof h + sizeof *tokens * n + n_identity, note, n_note);
    return front;
}

void record_seal(Record *r, uint8_t *front, const uint8_t *image)
{
    Head h;
    memcpy(&h, front, sizeof h);
    h.kind = (uint32_t) r->kind;
    h.image_sum = r->image_sum = bulk_sum(image, (size_t) r->n_image);
    memcpy(front, &h, sizeof h);
    h.sum = front_sum(front, r->n_front);
    memcpy(front, &h, sizeof h);
}
