/* fuzz_gguf.c - any bytes as a GGUF file. A file that opens is read in every way that the program reads one. */
#include "format/gguf.h"
#include "programs/hub/hub_header.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

static volatile uint8_t sink;                      /* so that reads are not optimised away */

static void look_at_key(const Gguf *g, int32_t i, Error *err)
{
    const char *key = gguf_key(g, i), *s;
    char        text[64];
    size_t      n;
    uint32_t    u;
    uint64_t    wide, count = 0;
    int64_t     whole;
    float       f;
    bool        b;
    GgufType    elem;
    if (!gguf_has(g, key)) abort();
    if (gguf_key_text(g, i, text, sizeof text) == 0 || strlen(text) >= sizeof text) abort();
    gguf_key_raw(g, i, &n);
    gguf_get_u32(g, key, &u, err);
    gguf_get_u64(g, key, &wide, err);
    gguf_get_f32(g, key, &f, err);
    gguf_get_bool(g, key, &b, err);
    if (gguf_get_str(g, key, &s, &n, err) == ST_OK && n > 0) sink = (uint8_t) (s[0] + s[n - 1]);
    if (gguf_array(g, key, &elem, &count, err) != ST_OK) return;
    for (uint64_t j = 0; j < count && j < 64; j++) {
        gguf_array_i64(g, key, j, &whole, err);
        gguf_array_f32(g, key, j, &f, err);
        gguf_array_bool(g, key, j, &b, err);
        if (gguf_array_str(g, key, j, &s, &n, err) == ST_OK && n > 0) sink = (uint8_t) (s[0] + s[n - 1]);
    }
    if (gguf_array_i64(g, key, count, &whole, err) == ST_OK) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    Gguf *g;
    Error err = { 0 };
    Status status = gguf_parse(&g, bytes, n, "fuzz.gguf", &err);
    int64_t header = hub_header_length(bytes, n);
    if (header > (int64_t) n || (status == ST_OK && header <= 0)) abort();     /* what can be loaded can be planned */
    if (status != ST_OK) {
        if (g || status != err.code || strncmp(err.text, "fuzz.gguf: ", 11) != 0 || strchr(err.text, '\n')) abort();
        return 0;
    }
    for (int32_t i = 0; i < gguf_n_keys(g); i++) look_at_key(g, i, &err);
    for (int32_t i = 0; i < gguf_n_tensors(g); i++) {
        const GgufTensor *t = gguf_tensor_at(g, i);
        if (gguf_tensor(g, t->name) != t || !gguf_tensor_type_name(t)) abort();
        if (t->data < bytes || t->bytes > n || t->data > bytes + n - t->bytes) abort();
        sink = (uint8_t) (t->data[0] + t->data[t->bytes - 1]);
        gguf_drop(g, t->file, t->data, (size_t) t->bytes);
    }
    if (gguf_file_bytes(g) != n || gguf_check_files(g, &err) != ST_OK) abort();
    gguf_close(g);
    return 0;
}
