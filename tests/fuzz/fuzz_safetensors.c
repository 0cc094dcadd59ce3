/* fuzz_safetensors.c - any bytes as a safetensors file, and as JSON. */
#include "format/safetensors.h"
#include "programs/hub/hub_header.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

static volatile uint8_t sink;                      /* so that reads are not optimised away */

static void check_error(Status status, const Error *err)
{
    if (status != err->code || strncmp(err->text, "fuzz: ", 6) != 0 || strchr(err->text, '\n')) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    Safetensors *s;
    json_t      *json;
    Error        err = { 0 };
    Status       status = json_read(&json, (const char *) bytes, n, "fuzz", &err);
    if (status == ST_OK) json_decref(json);
    else check_error(status, &err);
    status = safetensors_parse(&s, bytes, n, "fuzz", &err);
    if (status != ST_OK) {
        if (s) abort();
        check_error(status, &err);
        return 0;
    }
    int64_t header = hub_header_length(bytes, n);
    if (header <= 0 || header > (int64_t) n) abort();
    for (int32_t i = 0; i < safetensors_n(s); i++) {
        const SafeTensor *t = safetensors_at(s, i);
        if (safetensors_get(s, t->name) != t || t->n_dims < 0 || t->n_dims > SAFE_DIMS) abort();
        if (t->data < bytes || t->bytes > n || t->data > bytes + n - t->bytes) abort();
        sink = (uint8_t) (t->data[0] + t->data[t->bytes - 1]);
    }
    if (safetensors_config(s)) abort();
    safetensors_close(s);
    return 0;
}
