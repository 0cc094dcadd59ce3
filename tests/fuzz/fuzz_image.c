/* fuzz_image.c - any bytes as the image of a session: as they are, and with size and checksum corrected, since no
 * fuzzer would find them. */
#include "decode/image.h"

#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "inside.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

static void look(const uint8_t *bytes, size_t n)
{
    Image im;
    Error err = { 0 };
    Status st = image_read(&im, bytes, n, &err);
    if (st != ST_OK) {
        if (st != err.code || strncmp(err.text, "image: ", 7) != 0 || strchr(err.text, '\n')) abort();
        return;
    }
    if (im.n_tokens < 1 || im.n_identity >= IMAGE_IDENTITY || im.n_wait < 0 || im.n_wait > TAP_SLOTS) abort();
    inside(bytes, n, im.identity, im.n_identity);
    inside(bytes, n, im.tokens, sizeof(int32_t) * (size_t) im.n_tokens);
    inside(bytes, n, im.target, im.n_target);
    inside(bytes, n, im.draft, im.n_draft);
    inside(bytes, n, im.taps, im.n_taps);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    enum { SUM = 8, SIZE = 24, HEAD = 72 };        /* their offsets in the head */
    uint64_t size = n, sum;
    look(bytes, n);
    if (n < HEAD) return 0;
    uint8_t *copy = malloc(n);
    if (!copy) return 0;
    memcpy(copy, bytes, n);
    memcpy(copy + SIZE, &size, sizeof size);
    sum = XXH3_64bits(copy + SUM + sizeof sum, n - SUM - sizeof sum);
    memcpy(copy + SUM, &sum, sizeof sum);
    look(copy, n);
    free(copy);
    return 0;
}
