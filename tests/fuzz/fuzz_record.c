/* fuzz_record.c - any bytes as a file of the prefix cache: as they are, and with sizes and checksums corrected, since
 * no fuzzer would find them. */
#include "programs/serve/cache/cache_record.h"

#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "inside.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

static void check(Status st, const Error *err)
{
    if (st != err->code || strncmp(err->text, "fuzz: ", 6) != 0 || strchr(err->text, '\n')) abort();
}

/* The front is read by itself, as from a file; sound: sums and sizes are corrected first. */
static void look(const uint8_t *bytes, size_t n, bool sound)
{
    enum { SUM = 8, FILE_SIZE = 24, IMAGE_SIZE = 32, IMAGE_SUM = 40 };             /* their offsets in the head */
    Record r;
    Error err = { 0 };
    size_t n_front = 0;
    uint8_t head[RECORD_HEAD];
    if (n >= sizeof head) memcpy(head, bytes, sizeof head);
    const uint8_t *first = n >= sizeof head ? head : bytes;
    if (sound && n >= sizeof head) {
        uint64_t size = n, image = 0;
        /* the front's size does not depend on the file's, which is checked later */
        for (int32_t i = 0; i < 2; i++) {
            memcpy(head + FILE_SIZE, &size, sizeof size);
            memcpy(head + IMAGE_SIZE, &image, sizeof image);
            record_front_bytes(&n_front, head, sizeof head, n, "fuzz", &err);
            image = n_front <= n ? n - n_front : 0;
        }
    }
    n_front = 0;
    err = (Error) { 0 };
    Status st = record_front_bytes(&n_front, first, n < sizeof head ? n : sizeof head, n, "fuzz", &err);
    if (st != ST_OK) {
        check(st, &err);
        return;
    }
    if (n_front < sizeof head || n_front > n) abort();
    uint8_t *front = malloc(n_front);
    if (!front) return;
    memcpy(front, bytes, n_front);
    memcpy(front, head, sizeof head);
    if (sound) {
        uint64_t sum = XXH3_64bits(bytes + n_front, n - n_front);
        memcpy(front + IMAGE_SUM, &sum, sizeof sum);
        sum = XXH3_64bits(front + SUM + sizeof sum, n_front - SUM - sizeof sum);
        memcpy(front + SUM, &sum, sizeof sum);
    }
    st = record_read(&r, front, n_front, n, "fuzz", &err);
    if (st == ST_OK) {
        if (r.n_front != n_front || r.n_image != n - n_front || r.n_tokens < 1 || r.kind > CACHE_INTERVAL) abort();
        inside(front, n_front, r.tokens, sizeof *r.tokens * (size_t) r.n_tokens);
        inside(front, n_front, r.identity, r.n_identity);
        inside(front, n_front, r.note, r.n_note);
        RecordName name = record_name(r.identity, r.n_identity, r.tokens, r.n_tokens);
        sink = (uint8_t) (name.high + name.low);
        st = record_check_image(&r, bytes + n_front, "fuzz", &err);
        if (sound && st != ST_OK) abort();
    } else if (sound) {
        abort();
    }
    if (st != ST_OK) check(st, &err);
    free(front);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    look(bytes, n, false);
    look(bytes, n, true);
    return 0;
}
