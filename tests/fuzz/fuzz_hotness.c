/* fuzz_hotness.c - any bytes as a file of counts, for a small model. What is read is written and read again, with the
 * same counts. */
#include "format/hotness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

enum { LAYERS = 3, EXPERTS = 4 };

static const HotnessModel model = { LAYERS, EXPERTS, 2, "Small Mix 1.0", 123456 };

static void check_error(Status status, const Error *err)
{
    if (status != err->code || strncmp(err->text, "fuzz: ", 6) != 0 || strchr(err->text, '\n')) abort();
}

/* Rows without comments, as other programs may write them. */
static size_t print(char *out, size_t cap, const Hotness *h)
{
    size_t n = 0;
    for (int32_t i = 0; i < LAYERS * EXPERTS; i++)
        n += (size_t) snprintf(out + n, cap - n, "%llu%c", (unsigned long long) h->count[i],
                               (i + 1) % EXPERTS ? ',' : '\n');
    return n;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    Hotness h, again;
    Error err = { 0 };
    char text[LAYERS * EXPERTS * 24];
    Status status = hotness_parse(&h, (const char *) bytes, n, "fuzz", &model, &err);
    if (status != ST_OK) {
        if (h.count) abort();
        check_error(status, &err);
        return 0;
    }
    if (hotness_parse(&again, text, print(text, sizeof text, &h), "fuzz", &model, &err) != ST_OK ||
        memcmp(again.count, h.count, sizeof *h.count * LAYERS * EXPERTS) != 0)
        abort();
    hotness_halve(&h, 100);
    for (int32_t i = 0; i < LAYERS; i++)
        if (hotness_total(&h, i) > 100) abort();
    hotness_free(&h);
    hotness_free(&again);
    return 0;
}
