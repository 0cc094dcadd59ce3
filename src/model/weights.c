#include "model/weights.h"

#include <math.h>
#include <stdio.h>

const char *weights_path(const Weights *w) { return w->gguf ? gguf_path(w->gguf) : safetensors_path(w->st); }
int32_t weights_n(const Weights *w) { return w->gguf ? gguf_n_tensors(w->gguf) : safetensors_n(w->st); }

static void from_gguf(WeightView *out, const GgufTensor *t)
{
    *out = (WeightView) { .name = t->name, .file = t->file, .known = t->known && t->type != T_I32, .type = t->type,
                          .n_dims = t->n_dims, .data = t->data, .offset = t->offset };
    for (int32_t i = 0; i < 4; i++) out->ne[i] = t->ne[i];
}

static void from_safetensors(WeightView *out, const SafeTensor *t)
{
    *out = (WeightView) { .name = t->name, .file = t->file, .known = t->type != T_I32, .type = t->type, .data = t->data,
                          .ne = { 1, 1, 1, 1 } };
    for (int32_t i = 0; i < t->n_dims; i++) out->ne[i] = t->shape[t->n_dims - 1 - i];
    out->n_dims = t->n_dims;
    while (out->n_dims > 1 && out->ne[out->n_dims - 1] == 1) out->n_dims--;
    if (out->n_dims < 1) out->n_dims = 1;
}

void weights_at(const Weights *w, int32_t i, WeightView *out)
{
    if (w->gguf) from_gguf(out, gguf_tensor_at(w->gguf, i));
    else from_safetensors(out, safetensors_at(w->st, i));
}

bool weights_find(const Weights *w, const char *name, WeightView *out)
{
    if (w->gguf) {
        const GgufTensor *t = gguf_tensor(w->gguf, name);
        if (t) from_gguf(out, t);
        return t != NULL;
    }
    static const char *const prefix[] = { "", "model.", "draft_model." };          /* used by third-party checkpoints */
    for (size_t i = 0; i < sizeof prefix / sizeof *prefix; i++) {
        char full[200];
        snprintf(full, sizeof full, "%s%s", prefix[i], name);
        const SafeTensor *t = safetensors_get(w->st, full);
        if (!t) continue;
        from_safetensors(out, t);
        return true;
    }
    return false;
}

void weights_want(const Weights *w, const WeightView *v, size_t from, size_t n)
{
    if (w->gguf) gguf_want(w->gguf, v->file, v->data + from, n);
    else safetensors_want(w->st, v->file, v->data + from, n);
}

void weights_drop(const Weights *w, const WeightView *v, size_t from, size_t n)
{
    if (w->gguf) gguf_drop(w->gguf, v->file, v->data + from, n);
    else safetensors_drop(w->st, v->file, v->data + from, n);
}

Status weights_u32(const Gguf *g, const char *arch, const char *name, int32_t min, int32_t max, int32_t standard,
                   int32_t *out, Error *err)
{
    char key[160];
    snprintf(key, sizeof key, "%s.%s", arch, name);
    uint32_t v = 0;
    Status st = gguf_get_u32(g, key, &v, err);
    if (st == ST_END) {
        if (standard < min || standard > max) return fail(err, ST_FORMAT, "%s: key %s is missing", gguf_path(g), key);
        *out = standard;
        return ST_OK;
    }
    if (st != ST_OK) return st;
    if (v > (uint32_t) max || (int32_t) v < min)
        return fail(err, ST_FORMAT, "%s: %s is %u, expected %d to %d", gguf_path(g), key, v, min, max);
    *out = (int32_t) v;
    return ST_OK;
}

Status weights_each_u32(const Gguf *g, const char *arch, const char *name, int32_t n, int32_t min, int32_t max,
                        int32_t standard, int32_t *out, Error *err)
{
    char key[160];
    snprintf(key, sizeof key, "%s.%s", arch, name);
    GgufType elem;
    uint64_t len;
    if (gguf_array(g, key, &elem, &len, NULL) != ST_OK) {
        TRY(weights_u32(g, arch, name, min, max, standard, out, err));
        for (int32_t i = 1; i < n; i++) out[i] = out[0];
        return ST_OK;
    }
    if (len != (uint64_t) n)
        return fail(err, ST_FORMAT, "%s: %s has %llu values, expected %d", gguf_path(g), key, (unsigned long long) len,
                    n);
    for (int32_t i = 0; i < n; i++) {
        int64_t v;
        TRY(gguf_array_i64(g, key, (uint64_t) i, &v, err));
        if (v < min || v > max)
            return fail(err, ST_FORMAT, "%s: %s value %d is %lld, expected %d to %d", gguf_path(g), key, i,
                        (long long) v, min, max);
        out[i] = (int32_t) v;
    }
    return ST_OK;
}

Status weights_f32(const Gguf *g, const char *arch, const char *name, float standard, float *out, Error *err)
{
    char key[160];
    snprintf(key, sizeof key, "%s.%s", arch, name);
    float v = 0;
    Status st = gguf_get_f32(g, key, &v, err);
    if (st == ST_END) {
        if (!(standard > 0)) return fail(err, ST_FORMAT, "%s: key %s is missing", gguf_path(g), key);
        *out = standard;
        return ST_OK;
    }
    if (st != ST_OK) return st;
    if (!(v > 0 && v <= 1e30f))
        return fail(err, ST_FORMAT, "%s: %s is %g, expected a positive number", gguf_path(g), key, (double) v);
    *out = v;
    return ST_OK;
}
