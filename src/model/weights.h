/* weights.h - source of a model's tensors and keys: a GGUF file, or a Hugging Face folder (drafters only). One view of
 * both, with dimensions in GGUF order (contiguous first). */
#ifndef RATOON_MODEL_WEIGHTS_H
#define RATOON_MODEL_WEIGHTS_H

#include "format/gguf.h"
#include "format/safetensors.h"

typedef struct { const Gguf *gguf; const Safetensors *st; } Weights;              /* exactly one is not NULL */

typedef struct {
    const char       *name, *file;
    bool              known;                       /* type is one that we support for weights (no integers) */
    Type              type;
    int32_t           n_dims;                      /* trailing ones dropped */
    int64_t           ne[4];
    const uint8_t    *data;
    uint64_t          offset;                      /* of data in a GGUF file */
} WeightView;

const char *weights_path(const Weights *w);
int32_t     weights_n(const Weights *w);
void        weights_at(const Weights *w, int32_t i, WeightView *out);
bool        weights_find(const Weights *w, const char *name, WeightView *out);

/* Has n bytes from `from` of a tensor's data read from the disk meanwhile. */
void        weights_want(const Weights *w, const WeightView *v, size_t from, size_t n);
/* Releases n bytes from `from` of a tensor's data, which are no longer needed; call it now and then while reading a
 * large tensor. */
void        weights_drop(const Weights *w, const WeightView *v, size_t from, size_t n);

/* Reads key `arch.name` of a GGUF file, in [min, max]. A missing key yields `standard`, or an error if that is out of
 * range. */
Status weights_u32(const Gguf *g, const char *arch, const char *name, int32_t min, int32_t max, int32_t standard,
                   int32_t *out, Error *err);
/* The same for each of n layers: out [n]; the key is an array of n values, or one number for all. */
Status weights_each_u32(const Gguf *g, const char *arch, const char *name, int32_t n, int32_t min, int32_t max,
                        int32_t standard, int32_t *out, Error *err);
/* Finite and in (0, 1e30]; missing: standard, or an error if that is 0. */
Status weights_f32(const Gguf *g, const char *arch, const char *name, float standard, float *out, Error *err);

#endif
