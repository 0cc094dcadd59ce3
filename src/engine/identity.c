/* identity.c - the line of text under which a session's image is valid: everything that its bytes depend on except the
 * tokens. A model file counts as the same if its keys, its tensors' shapes, samples of each tensor's data, its size and
 * its time are the same: hashing all of it would take as long as loading it. Backend, instruction set, threads, chunks,
 * repacking and context size are not part of it, since none of them changes a bit. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "engine/engine.h"

/* RECIPE: incremented whenever doc/design.md, "Exactness", changes the value of a row */
enum { SAMPLE = 4096, RECIPE = 1 };

static void add(XXH3_state_t *x, const void *p, size_t n) { XXH3_128bits_update(x, p, n); }
static void add_text(XXH3_state_t *x, const char *s) { add(x, s, strlen(s) + 1); }

static void add_data(XXH3_state_t *x, const uint8_t *data, uint64_t bytes)
{
    size_t n = bytes < SAMPLE ? (size_t) bytes : SAMPLE;
    add(x, data, n);
    add(x, data + (bytes - n), n);
}

static void add_gguf(XXH3_state_t *x, const Gguf *g)
{
    uint64_t size = gguf_file_bytes(g);
    int64_t changed = gguf_changed(g);
    add(x, &size, sizeof size);
    add(x, &changed, sizeof changed);
    for (int32_t i = 0; i < gguf_n_keys(g); i++) {
        size_t n;
        const uint8_t *raw = gguf_key_raw(g, i, &n);
        add_text(x, gguf_key(g, i));
        add(x, raw, n);
    }
    for (int32_t i = 0; i < gguf_n_tensors(g); i++) {
        const GgufTensor *t = gguf_tensor_at(g, i);
        add_text(x, t->name);
        add(x, &t->ggml_type, sizeof t->ggml_type);
        add(x, t->ne, sizeof t->ne);
        add_data(x, t->data, t->bytes);
    }
}

static void add_safetensors(XXH3_state_t *x, const Safetensors *s)
{
    char *config = safetensors_config(s) ? json_dumps(safetensors_config(s), JSON_SORT_KEYS | JSON_COMPACT) : NULL;
    if (config) add_text(x, config);
    free(config);
    for (int32_t i = 0; i < safetensors_n(s); i++) {
        const SafeTensor *t = safetensors_at(s, i);
        add_text(x, t->name);
        add(x, t->shape, sizeof t->shape);
        add_data(x, t->data, t->bytes);
    }
}

static Status file_sum(char out[33], const Gguf *g, const Safetensors *s, Error *err)
{
    XXH3_state_t *x = XXH3_createState();
    if (!x) return fail(err, ST_MEMORY, "engine: out of memory");
    XXH3_128bits_reset(x);
    if (g) add_gguf(x, g);
    if (s) add_safetensors(x, s);
    XXH128_hash_t h = XXH3_128bits_digest(x);
    XXH3_freeState(x);
    snprintf(out, 33, "%016llx%016llx", (unsigned long long) h.high64, (unsigned long long) h.low64);
    return ST_OK;
}

Status engine_identity(rt_engine *g, int32_t window, Error *err)
{
    char model[33], draft[33] = "none";
    TRY(file_sum(model, g->model_file, NULL, err));
    if (g->draft && g->draft->hold) snprintf(draft, sizeof draft, "mtp");
    else if (g->draft) TRY(file_sum(draft, g->draft_gguf, g->draft_folder, err));
    const char *k = type_info(g->model->k_type)->name, *v = type_info(g->model->v_type)->name;
    snprintf(g->identity, sizeof g->identity, "ratoon recipe %d, model %s%s, keys/values %s/%s, window %d, "
             "drafter %s", RECIPE, model, g->model->n_quantised ? " as q8_0" : "", k, v, window, draft);
    return ST_OK;
}
