#include "model/model.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/mathd.h"

static const Family *const families[] = { &family_llama, &family_qwen3, &family_qwen35 };

const Family *model_family(const char *arch)
{
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        if (strcmp(families[i]->arch, arch) == 0) return families[i];
    return NULL;
}

/* ---- memory ---- */

void *model_alloc(Model *m, size_t bytes, const char *part, Error *err)
{
    if (m->n_owned == m->cap_owned) {
        int32_t cap = m->cap_owned ? 2 * m->cap_owned : 256;
        void *grown = realloc(m->owned, sizeof *m->owned * (size_t) cap);
        if (!grown) {
            fail(err, ST_MEMORY, "%s: out of memory", m->file);
            return NULL;
        }
        m->owned = grown;
        m->cap_owned = cap;
    }
    void *p = m->be->alloc(m->be, bytes, part);
    if (!p) {
        fail(err, ST_MEMORY, "%s: out of memory for %s (%zu bytes)", m->file, part, bytes);
        return NULL;
    }
    m->owned[m->n_owned].p = p;
    m->owned[m->n_owned++].bytes = bytes;
    return p;
}

void model_close(Model *m)
{
    if (!m) return;
    for (int32_t i = 0; i < m->n_owned; i++) m->be->release(m->be, m->owned[i].p, m->owned[i].bytes);
    free(m->owned);
    free(m->recurrent);
    free(m->spec);
    free(m->layers);
    free(m);
}

/* ---- binding ---- */

/* A tensor that was found, and where it goes. The table is complete and checked before the first upload. */
typedef struct { const Bind *bind; Tensor *at; WeightView view; int64_t row0; int32_t rows, cols; } Found;
typedef struct { Model *m; const Weights *w; const ModelOptions *o; Found *found; int32_t n, cap; int64_t done, total; Error *err; } Loader;
enum { PIECE_BYTES = 16 << 20 };                    /* of a tensor in its file */

static int32_t size_of(const Model *m, size_t place) { return place ? *(const int32_t *) (const void *) ((const char *) m + place) : 1; }

/* Tries "prefix" + each alternative of names. */
static bool find_any(const Loader *l, const char *prefix, const char *names, WeightView *out)
{
    while (*names) {
        size_t n = strcspn(names, "|");
        char full[160];
        int len = snprintf(full, sizeof full, "%s%.*s", prefix, (int) n, names);
        if (len > 0 && (size_t) len < sizeof full && weights_find(l->w, full, out)) return true;
        names += n + (names[n] == '|');
    }
    return false;
}

static Status check_shape(const Loader *l, const Found *f)
{
    const WeightView *v = &f->view;
    int64_t want[2] = { f->cols, f->rows };
    if (!v->known) return fail(l->err, ST_UNSUPPORTED, "%s: tensor %s has a type that ratoon does not run", v->file, v->name);
    if (f->bind->kind == BIND_PLAIN && v->n_dims == 3 && v->ne[0] == want[0] && v->ne[1] < want[1] && v->ne[1] * v->ne[2] == want[1]) return ST_OK;
    if (v->n_dims > 2 || v->ne[0] != want[0] || v->ne[1] != want[1])
        return fail(l->err, ST_FORMAT, "%s: tensor %s has shape [%lld, %lld, %lld], expected [%lld, %lld]", v->file, v->name, (long long) v->ne[0],
                    (long long) v->ne[1], (long long) v->ne[2], (long long) want[0], (long long) want[1]);
    return ST_OK;
}

static Status add_found(Loader *l, const Found *f)
{
    if (l->n == l->cap) {
        int32_t cap = l->cap ? 2 * l->cap : 512;
        Found *grown = realloc(l->found, sizeof *grown * (size_t) cap);
        if (!grown) return fail(l->err, ST_MEMORY, "%s: out of memory", l->m->file);
        l->found = grown;
        l->cap = cap;
    }
    l->found[l->n++] = *f;
    return ST_OK;
}

/* A row of alternatives with 1-D shape stored as [n] or, by some writers, as [1, n]: both are compared after dropping ones. */
static Status bind_one(Loader *l, const Bind *b, uint8_t *base, const char *prefix, int64_t *fused_row)
{
    Model *m = l->m;
    Found f = { .bind = b, .at = (Tensor *) (void *) (base + b->place), .rows = size_of(m, b->rows), .cols = size_of(m, b->cols) };
    if (f.rows == 0 || f.cols == 0) return ST_OK;  /* a size that this model does not have */
    if (find_any(l, prefix, b->name, &f.view)) {
        TRY(check_shape(l, &f));
        return add_found(l, &f);
    }
    if (b->fused && find_any(l, prefix, b->fused, &f.view)) {
        f.row0 = *fused_row;
        *fused_row += f.rows;
        if (f.view.ne[0] != f.cols || f.view.n_dims > 2 || f.view.ne[1] < *fused_row || !f.view.known)
            return fail(l->err, ST_FORMAT, "%s: tensor %s has shape [%lld, %lld], expected [%d, at least %lld]", f.view.file, f.view.name,
                        (long long) f.view.ne[0], (long long) f.view.ne[1], f.cols, (long long) *fused_row);
        return add_found(l, &f);
    }
    if (b->optional) return ST_OK;
    return fail(l->err, ST_FORMAT, "%s: tensor %s%.*s is missing (shape [%d, %d])", m->file, prefix, (int) strcspn(b->name, "|"), b->name, f.cols, f.rows);
}

static Status bind_all(Loader *l)
{
    Model *m = l->m;
    const Family *fam = m->family;
    int64_t none = 0;
    for (int32_t i = 0; i < fam->n_global; i++) TRY(bind_one(l, &fam->global[i], (uint8_t *) m, "", &none));
    for (int32_t il = 0; il < m->n_layers; il++) {
        char prefix[32];
        int64_t fused_row = 0;
        snprintf(prefix, sizeof prefix, l->w->gguf ? "blk.%d." : "layers.%d.", m->first_layer + il);
        for (int32_t i = 0; i < fam->n_layer_bind; i++) {
            const Bind *b = &fam->layer_bind[i];
            if (b->only != LAYER_NONE && b->only != m->spec[il].kind) continue;
            TRY(bind_one(l, b, model_layer(m, il), prefix, &fused_row));
        }
        WeightView v;                              /* rows that nobody took would mean that the parts were cut in the wrong places */
        if (fused_row > 0 && find_any(l, prefix, "attn_qkv.weight", &v) && v.ne[1] != fused_row)
            return fail(l->err, ST_FORMAT, "%s: tensor %s has %lld rows, expected %lld", v.file, v.name, (long long) v.ne[1], (long long) fused_row);
    }
    return ST_OK;
}

static bool was_found(const Loader *l, const char *name)
{
    for (int32_t i = 0; i < l->n; i++)
        if (strcmp(l->found[i].view.name, name) == 0) return true;
    return false;
}

/* Whether leaving this tensor out would change what the model computes. Of a target only its own layers, embedding and output count:
 * files carry towers for images, layers that predict further ahead, and tables of older converters besides. */
static bool belongs(const Loader *l, const char *name)
{
    int il = 0, end = 0;
    if (l->m->family->strict) return true;
    if (l->m->target) return sscanf(name, "blk.%d.%n", &il, &end) == 1 && end > 0 && il == l->m->first_layer;
    if (sscanf(name, "blk.%d.%n", &il, &end) == 1 && end > 0) return il < l->m->n_layers || il >= l->m->n_layers + l->m->n_extra;
    return strncmp(name, "output", 6) == 0 || strncmp(name, "token_embd", 10) == 0;
}

/* A model with a tensor that is not understood would run and be wrong; a drafter would guess badly, which looks like a bad drafter. */
static Status refuse_unknown(const Loader *l)
{
    for (int32_t i = 0; i < weights_n(l->w); i++) {
        WeightView v;
        weights_at(l->w, i, &v);
        if (belongs(l, v.name) && !was_found(l, v.name))
            return fail(l->err, ST_UNSUPPORTED, "%s: tensor %s is unknown to the family '%s', and leaving it out would change what is computed", v.file, v.name,
                        l->m->family->arch);
    }
    return ST_OK;
}

/* ---- upload ---- */

static Type loaded_type(const Loader *l, const Found *f)
{
    if (f->bind->kind == BIND_VECTOR || f->bind->kind == BIND_PLAIN) return T_F32;
    bool wide = f->view.type == T_F32 || f->view.type == T_F16 || f->view.type == T_BF16;
    if (l->m->target && f->bind->kind == BIND_MATRIX && wide && !l->o->keep_types && f->cols % type_info(T_Q8_0)->block == 0) return T_Q8_0;
    return f->view.type;
}

static Status upload_vector(Loader *l, Found *f)
{
    size_t n, bytes;
    if (!check_mul(&n, (size_t) f->rows, (size_t) f->cols) || !check_mul(&bytes, n, sizeof(float)))
        return fail(l->err, ST_FORMAT, "%s: tensor %s is too large", f->view.file, f->view.name);
    float *v = malloc(bytes);
    void *p = model_alloc(l->m, bytes, "norms", l->err);
    if (!v || !p) {
        free(v);
        return fail(l->err, ST_MEMORY, "%s: out of memory for %s", f->view.file, f->view.name);
    }
    size_t row_bytes = type_row_bytes(f->view.type, f->cols);
    for (int32_t r = 0; r < f->rows; r++) quant_decode(v + (size_t) r * (size_t) f->cols, f->view.type, f->view.data + row_bytes * (size_t) r, f->cols);
    *f->at = (Tensor) { T_F32, f->rows, f->cols, p };
    l->m->be->copy_in(l->m->be, p, v, bytes);
    free(v);
    return ST_OK;
}

/* Tells how much is done; the answer may be to stop. */
static Status report(Loader *l)
{
    if (l->o->progress && !l->o->progress(l->o->ud, l->m->target ? "drafter" : "model", l->done, l->total))
        return fail(l->err, ST_CANCEL, "%s: loading was cancelled", l->m->file);
    return ST_OK;
}

/* n rows of another type, for the caller to free. */
static Status requantise(Loader *l, const Found *f, Type to, const uint8_t *src, int32_t n, uint8_t **out)
{
    size_t from_row = type_row_bytes(f->view.type, f->cols), to_row = type_row_bytes(to, f->cols);
    float *row = malloc(sizeof *row * (size_t) f->cols);
    *out = malloc(to_row * (size_t) n);
    if (!row || !*out) {
        free(row);
        free(*out);
        *out = NULL;
        return fail(l->err, ST_MEMORY, "%s: out of memory for %s", f->view.file, f->view.name);
    }
    for (int32_t r = 0; r < n; r++) {
        quant_decode(row, f->view.type, src + from_row * (size_t) r, f->cols);
        quant_encode(*out + to_row * (size_t) r, to, row, f->cols);
    }
    free(row);
    return ST_OK;
}

/* In pieces whose pages of the file are given back one by one: what is resident is the packed copy and a piece. */
static Status upload_rows(Loader *l, const Found *f)
{
    Model *m = l->m;
    Tensor *w = f->at;
    size_t row_bytes = type_row_bytes(f->view.type, f->cols), from = row_bytes * (size_t) f->row0;
    size_t piece = PIECE_BYTES / row_bytes / UPLOAD_ROWS * UPLOAD_ROWS;
    int32_t step = piece < UPLOAD_ROWS ? UPLOAD_ROWS : piece > INT32_MAX / 2 ? INT32_MAX / 2 : (int32_t) piece;
    for (int32_t r = 0, n; r < f->rows; r += n, from += row_bytes * (size_t) n) {
        n = f->rows - r < step ? f->rows - r : step;
        uint8_t *made = NULL;
        if (w->type != f->view.type) TRY(requantise(l, f, w->type, f->view.data + from, n, &made));
        m->be->upload(m->be, w, made ? made : f->view.data + from, r, n);
        free(made);
        weights_drop(l->w, &f->view, from, row_bytes * (size_t) n);
        l->done += (int64_t) n * f->cols;
        TRY(report(l));
    }
    return ST_OK;
}

static Status upload_matrix(Loader *l, Found *f)
{
    Model *m = l->m;
    Type type = loaded_type(l, f);
    size_t bytes = m->be->weight_bytes(m->be, type, f->rows, f->cols);
    if (bytes == 0)
        return fail(l->err, ST_UNSUPPORTED, "%s: tensor %s has type %s, which the backend '%s' has no product for", f->view.file, f->view.name,
                    type_info(type)->name, m->be->name);
    m->weight_bytes += bytes;
    m->n_weights += (uint64_t) f->rows * (uint64_t) f->cols;
    if (m->be->in_place && type == f->view.type) { /* the map outlives the model */
        *f->at = (Tensor) { type, f->rows, f->cols, (void *) (uintptr_t) (f->view.data + type_row_bytes(type, f->cols) * (size_t) f->row0) };
        return ST_OK;
    }
    void *p = model_alloc(m, bytes, m->target ? "drafter weights" : "weights", l->err);
    if (!p) return ST_MEMORY;
    *f->at = (Tensor) { type, f->rows, f->cols, p };
    return m->be->counts ? ST_OK : upload_rows(l, f);
}

static Status upload_all(Loader *l)
{
    for (int32_t i = 0; i < l->n; i++) l->total += (int64_t) l->found[i].rows * l->found[i].cols;
    for (int32_t i = 0; i < l->n; i++) {
        Found *f = &l->found[i];
        int64_t before = l->done;
        TRY(report(l));
        bool vector = f->bind->kind == BIND_VECTOR || f->bind->kind == BIND_PLAIN;
        TRY(vector ? upload_vector(l, f) : upload_matrix(l, f));
        TRY(l->m->be->sync(l->m->be, l->err));
        l->done = before + (int64_t) f->rows * f->cols;
    }
    return report(l);
}

/* ---- opening ---- */

/* A head is a whole number of its type's blocks. */
static Status check_kv(const Model *m, Type t, const char *what, Error *err)
{
    for (int32_t il = 0; il < m->n_layers; il++) {
        const LayerSpec *p = &m->spec[il];
        if (p->kind != LAYER_ATTENTION || m->be->kv_row_bytes(m->be, t, p->head_dim)) continue;
        const TypeInfo *info = type_info(t);
        if (p->head_dim % info->block == 0) return fail(err, ST_UNSUPPORTED, "%s: %s of type %s do not run on the backend %s", m->file, what, info->name, m->be->name);
        return fail(err, ST_UNSUPPORTED, "%s: the heads of layer %d are %d wide, expected a multiple of %d for %s of type %s", m->file, il, p->head_dim,
                    info->block, what, info->name);
    }
    return ST_OK;
}

static bool all_f32(const Weights *w)
{
    for (int32_t i = 0; i < weights_n(w); i++) {
        WeightView v;
        weights_at(w, i, &v);
        if (!v.known || v.type != T_F32) return false;
    }
    return true;
}

static Status load(Loader *l)
{
    Model *m = l->m;
    TRY(m->family->read(m, l->w, l->err));
    /* Keys and values are kept in f16, and in f32 for a file that is f32 throughout: nobody has such a file for speed. */
    Type kv = (m->target ? l->o->keep_types : all_f32(l->w)) ? T_F32 : T_F16;
    m->k_type = l->o->k_type == T_COUNT || m->target ? kv : l->o->k_type;
    m->v_type = l->o->v_type == T_COUNT || m->target ? kv : l->o->v_type;
    m->spec = calloc((size_t) m->n_layers, sizeof *m->spec);
    m->layers = calloc((size_t) m->n_layers, m->family->layer_bytes);
    if (!m->spec || !m->layers) return fail(l->err, ST_MEMORY, "%s: out of memory", m->file);
    for (int32_t il = 0; il < m->n_layers; il++) {
        LayerSpec *p = &m->spec[il];
        m->family->spec(m, il, p);
        if (!m->target && p->kind == LAYER_ATTENTION && p->window == 0) p->window = l->o->window;
    }
    TRY(check_kv(m, m->k_type, "keys", l->err));
    TRY(check_kv(m, m->v_type, "values", l->err));
    TRY(bind_all(l));
    TRY(refuse_unknown(l));
    TRY(upload_all(l));
    TRY(l->w->gguf ? gguf_check_files(l->w->gguf, l->err) : safetensors_check_files(l->w->st, l->err));
    if (m->family->bound) m->family->bound(m);
    if (!m->head.data) m->head = m->target ? m->target->head : m->embed;
    if (!m->embed.data && m->target) m->embed = m->target->embed;
    return ST_OK;
}

Status model_open(Model **out, Backend *be, const Weights *w, const Model *target, const ModelOptions *o, Error *err)
{
    *out = NULL;
    Model *m = calloc(1, sizeof *m);
    if (!m) return fail(err, ST_MEMORY, "%s: out of memory", weights_path(w));
    m->be = be;
    m->target = target;
    m->embed_scale = m->logit_scale = 1;
    snprintf(m->file, sizeof m->file, "%s", weights_path(w));
    Status st = ST_OK;
    if (target) {
        m->family = o->mtp ? &draft_mtp : &draft_dflash;
    } else if (!w->gguf) {
        st = fail(err, ST_UNSUPPORTED, "%s: a target model must be a GGUF file (convert it first); safetensors folders are read as drafters", m->file);
    } else {
        const char *s = NULL;
        size_t n = 0;
        st = gguf_get_str(w->gguf, "general.architecture", &s, &n, err);
        if (st == ST_END) st = fail(err, ST_FORMAT, "%s: key general.architecture is missing", m->file);
        if (st == ST_OK) {
            snprintf(m->arch, sizeof m->arch, "%.*s", (int) (n < sizeof m->arch ? n : sizeof m->arch - 1), s);
            m->family = model_family(m->arch);
            if (!m->family)
                st = fail(err, ST_UNSUPPORTED, "%s: general.architecture is '%s', expected one of llama, qwen3, qwen35", m->file, m->arch);
        }
        if (st == ST_OK && gguf_get_str(w->gguf, "general.name", &s, &n, NULL) == ST_OK)
            snprintf(m->name, sizeof m->name, "%.*s", (int) (n < sizeof m->name ? n : sizeof m->name - 1), s);
    }
    Loader l = { .m = m, .w = w, .o = o, .err = err };
    if (st == ST_OK) st = load(&l);
    free(l.found);
    if (st != ST_OK) {
        model_close(m);
        return st;
    }
    *out = m;
    return ST_OK;
}

Status model_set_taps(Model *m, const int32_t *ids, int32_t n, Error *err)
{
    if (n < 0 || n > TAPS_MAX) return fail(err, ST_ARG, "%s: %d taps, expected at most %d", m->file, n, TAPS_MAX);
    for (int32_t i = 0; i < n; i++) {
        if (ids[i] < 0 || ids[i] > m->n_layers || (i > 0 && ids[i] <= ids[i - 1]))
            return fail(err, ST_ARG, "%s: tap id %d, expected ascending ids from 0 to %d", m->file, ids[i], m->n_layers);
        m->tap[i] = ids[i];
    }
    m->n_taps = n;
    m->tap_width = n * m->dim;
    return ST_OK;
}

/* ---- what families share ---- */

#define N(field) offsetof(Model, field)
const Bind model_ends[MODEL_ENDS] = {
    { "token_embd.weight", N(embed), N(vocab), N(dim), BIND_MATRIX, false, LAYER_NONE, NULL },
    { "output_norm.weight", N(out_norm), 0, N(dim), BIND_VECTOR, false, LAYER_NONE, NULL },
    { "output.weight", N(head), N(vocab), N(dim), BIND_MATRIX, true, LAYER_NONE, NULL },
};
#undef N

/* The vocabulary's size is that of the embedding; a key and the token list must agree with it. */
static Status read_vocab(Model *m, const Weights *w, const char *arch, Error *err)
{
    WeightView v;
    if (!weights_find(w, "token_embd.weight", &v)) return fail(err, ST_FORMAT, "%s: tensor token_embd.weight is missing", m->file);
    if (v.n_dims != 2 || v.ne[1] < 1 || v.ne[1] > 1 << 24)
        return fail(err, ST_FORMAT, "%s: tensor token_embd.weight has shape [%lld, %lld], expected [%d, vocabulary]", v.file, (long long) v.ne[0], (long long) v.ne[1], m->dim);
    m->vocab = (int32_t) v.ne[1];
    int32_t key;
    TRY(weights_u32(w->gguf, arch, "vocab_size", 1, 1 << 24, m->vocab, &key, err));
    if (key != m->vocab) return fail(err, ST_FORMAT, "%s: %s.vocab_size is %d, but token_embd.weight has %d rows", m->file, arch, key, m->vocab);
    GgufType elem;
    uint64_t n;
    if (gguf_array(w->gguf, "tokenizer.ggml.tokens", &elem, &n, NULL) == ST_OK && n != (uint64_t) m->vocab)
        return fail(err, ST_FORMAT, "%s: tokenizer.ggml.tokens has %llu entries, but token_embd.weight has %d rows", m->file, (unsigned long long) n, m->vocab);
    return ST_OK;
}

/* Writers for whose models the scale is the usual one leave the key out, or write 0. */
static Status read_scale(Model *m, const Gguf *g, const char *arch, Error *err)
{
    char key[160];
    float given = 0;
    m->attention_scale = 1 / sqrtf((float) m->head_dim);
    snprintf(key, sizeof key, "%s.attention.scale", arch);
    if (gguf_get_f32(g, key, &given, NULL) == ST_OK && given == 0) return ST_OK;
    return weights_f32(g, arch, "attention.scale", m->attention_scale, &m->attention_scale, err);
}

Status model_read_attention(Model *m, const Weights *w, const char *arch, Error *err)
{
    const Gguf *g = w->gguf;
    int32_t v_len;
    TRY(weights_u32(g, arch, "block_count", 1, LAYERS_MAX, 0, &m->n_layers, err));
    TRY(weights_u32(g, arch, "embedding_length", 1, 1 << 17, 0, &m->dim, err));
    TRY(weights_u32(g, arch, "feed_forward_length", 1, 1 << 20, 0, &m->ffn, err));
    TRY(weights_u32(g, arch, "context_length", 1, 1 << 30, 4096, &m->ctx_train, err));
    TRY(weights_u32(g, arch, "attention.head_count", 1, 1024, 0, &m->heads, err));
    TRY(weights_u32(g, arch, "attention.head_count_kv", 1, 1024, m->heads, &m->kv_heads, err));
    if (m->heads % m->kv_heads)
        return fail(err, ST_FORMAT, "%s: %s.attention.head_count is %d, expected a multiple of head_count_kv %d", m->file, arch, m->heads, m->kv_heads);
    TRY(weights_u32(g, arch, "attention.key_length", 1, 1024, m->dim / m->heads, &m->head_dim, err));
    TRY(weights_u32(g, arch, "attention.value_length", 1, 1024, m->head_dim, &v_len, err));
    if (v_len != m->head_dim)
        return fail(err, ST_UNSUPPORTED, "%s: %s.attention.value_length is %d, expected the key length %d", m->file, arch, v_len, m->head_dim);
    if (m->head_dim % 16) return fail(err, ST_UNSUPPORTED, "%s: %s.attention.key_length is %d, expected a multiple of 16", m->file, arch, m->head_dim);
    TRY(weights_f32(g, arch, "attention.layer_norm_rms_epsilon", 0, &m->eps, err));
    TRY(read_scale(m, g, arch, err));
    m->q_dim = m->heads * m->head_dim;
    m->kv_dim = m->kv_heads * m->head_dim;
    return read_vocab(m, w, arch, err);
}

void model_attention_spec(const Model *m, int32_t il, LayerSpec *out)
{
    (void) il;
    *out = (LayerSpec) { .kind = LAYER_ATTENTION, .heads = m->heads, .kv_heads = m->kv_heads, .head_dim = m->head_dim, .causal = true,
                         .scale = m->attention_scale, .k_type = m->k_type, .v_type = m->v_type };
}

/* ---- rotation ---- */

/* Which position stream pair i reads: interleaved M-RoPE (spec targets.md 6.4). Text puts one number into all streams. */
static int32_t lane_of_pair(const int32_t *section, int32_t i)
{
    if (i % 3 == 1 && i < 3 * section[1]) return 1;
    if (i % 3 == 2 && i < 3 * section[2]) return 2;
    if (i % 3 == 0 && i < 3 * section[0]) return 0;
    return 3;
}

typedef struct { bool linear, yarn; float factor, attn_factor, beta_fast, beta_slow; int32_t original; } Scaling;

static Status read_scaling(Scaling *s, const Weights *w, const char *arch, Error *err)
{
    *s = (Scaling) { .factor = 1, .attn_factor = 1, .beta_fast = 32, .beta_slow = 1 };
    if (!w->gguf) return ST_OK;
    char key[128];
    const char *type = NULL;
    size_t n = 0;
    snprintf(key, sizeof key, "%s.rope.scaling.type", arch);
    Status st = gguf_get_str(w->gguf, key, &type, &n, err);
    if (st != ST_OK && st != ST_END) return st;
    s->linear = n == 6 && memcmp(type, "linear", 6) == 0;
    s->yarn = n == 4 && memcmp(type, "yarn", 4) == 0;
    if (n > 0 && !s->linear && !s->yarn && !(n == 4 && memcmp(type, "none", 4) == 0))
        return fail(err, ST_UNSUPPORTED, "%s: %s is '%.*s', expected none, linear or yarn", gguf_path(w->gguf), key, (int) (n < 40 ? n : 40), type);
    if (st == ST_END) s->linear = true;            /* a factor without a type is linear */
    TRY(weights_f32(w->gguf, arch, "rope.scaling.factor", 1, &s->factor, err));
    TRY(weights_f32(w->gguf, arch, "rope.scaling.attn_factor", 1, &s->attn_factor, err));
    TRY(weights_u32(w->gguf, arch, "rope.scaling.original_context_length", 1, 1 << 30, 1 << 30, &s->original, err));
    if (s->yarn && s->original == 1 << 30) return fail(err, ST_FORMAT, "%s: key %s.rope.scaling.original_context_length is missing", gguf_path(w->gguf), arch);
    return ST_OK;
}

/* Dimension at which a wave of this many turns fits the original context (yarn). */
static double yarn_corr(const Scaling *s, int32_t n_rot, double base, double turns)
{
    return n_rot * mathd_log(s->original / (2 * 3.14159265358979323846 * turns)) / (2 * mathd_log(base));
}

Status model_rope(Model *m, const Weights *w, const char *arch, int32_t n_rot, bool neox, float base, const int32_t *sections, Error *err)
{
    int32_t pairs = n_rot / 2;
    Scaling sc;
    TRY(read_scaling(&sc, w, arch, err));
    double *freq = malloc(sizeof *freq * (size_t) pairs);
    float *factor = malloc(sizeof *factor * (size_t) pairs);
    int32_t *lane = malloc(sizeof *lane * (size_t) pairs);
    Status st = freq && factor && lane ? ST_OK : fail(err, ST_MEMORY, "%s: out of memory", m->file);
    for (int32_t i = 0; st == ST_OK && i < pairs; i++) {
        factor[i] = 1;
        lane[i] = sections ? lane_of_pair(sections, i) : 0;
    }
    WeightView v;
    if (st == ST_OK && weights_find(w, "rope_freqs.weight", &v)) {
        if (!v.known || v.ne[0] != pairs || v.n_dims != 1)
            st = fail(err, ST_FORMAT, "%s: tensor rope_freqs.weight has %lld values, expected %d", v.file, (long long) v.ne[0], pairs);
        else
            quant_decode(factor, v.type, v.data, pairs);
    }
    double low = 0, high = 0;
    if (sc.yarn) {
        low = fmax(0, floor(yarn_corr(&sc, n_rot, (double) base, (double) sc.beta_fast)));
        high = fmin(n_rot - 1, ceil(yarn_corr(&sc, n_rot, (double) base, (double) sc.beta_slow)));
    }
    for (int32_t i = 0; st == ST_OK && i < pairs; i++) {
        if (!(factor[i] > 0)) {
            st = fail(err, ST_FORMAT, "%s: tensor rope_freqs.weight value %d is %g, expected a positive number", m->file, i, (double) factor[i]);
            break;
        }
        double f = mathd_exp(-2.0 * i / n_rot * mathd_log((double) base)) / (double) factor[i];
        if (sc.yarn) {
            double ramp = 1 - fmin(fmax((i - low) / fmax(0.001, high - low), 0), 1);
            freq[i] = f / (double) sc.factor * (1 - ramp) + f * ramp;
        } else {
            freq[i] = f / (double) sc.factor;
        }
    }
    m->rope = (Rope) { .n_rot = n_rot, .neox = neox, .mscale = sc.attn_factor };
    if (sc.yarn) m->rope.mscale *= (float) (1 + 0.1 * mathd_log((double) sc.factor));
    if (st == ST_OK) {
        double *place = model_alloc(m, sizeof *freq * (size_t) pairs, "norms", err);
        int32_t *place_lane = sections ? model_alloc(m, sizeof *lane * (size_t) pairs, "norms", err) : NULL;
        if (!place || (sections && !place_lane)) st = ST_MEMORY;
        if (st == ST_OK) {
            m->be->copy_in(m->be, place, freq, sizeof *freq * (size_t) pairs);
            if (sections) m->be->copy_in(m->be, place_lane, lane, sizeof *lane * (size_t) pairs);
            m->rope.freq = place;
            m->rope.lane_of = place_lane;
        }
    }
    free(freq);
    free(factor);
    free(lane);
    return st;
}

/* ---- passes ---- */

static bool cancelled(const Step *s, int32_t il) { return s->hooks && s->hooks->cancel && s->hooks->cancel(s->hooks->ud, il); }

static void store_taps(const Model *m, Step *s, int32_t id, const Tensor *x)
{
    for (int32_t j = 0; !m->target && j < m->n_taps; j++)             /* a drafter's list names layers of its target */
        if (m->tap[j] == id) s->be->tap(s->be, x, &s->rows, j, m->n_taps);
}

/* Output norm, head, and what is drawn from the logits. Only rows whose logits are wanted pass through, unless the normed state of
 * every row is a tap. */
static void finish(const Model *m, Step *s, const PassOut *out, const Tensor *x, int32_t k)
{
    Backend *be = s->be;
    int32_t last = m->n_taps && !m->target ? m->tap[m->n_taps - 1] : -1;
    if (last == m->n_layers) {
        Tensor *y = norm(s, x, &m->out_norm, m->eps);
        store_taps(m, s, m->n_layers, y);
    }
    if (s->host.n_logits == 0) return;
    Tensor *rows = new_tensor(s, T_F32, s->host.n_logits, m->dim);
    be->logit_rows(be, rows, x, &s->rows);
    be->norm(be, out->hidden, rows, &m->out_norm, m->eps);
    Tensor *y = out->logits;
    const Tensor *head = &m->head;
    be->matmul(be, 1, &y, &head, out->hidden);
    if (m->logit_scale != 1 || m->softcap > 0) be->scale(be, out->logits, m->logit_scale, m->softcap);
    if (k > 0) be->top_k(be, out->id, out->score, out->logits, &s->rows, k);
    if (out->edge) {
        Tensor *g = linear1(s, out->hidden, &m->selector_hidden);
        be->pair_scores(be, out->edge, &m->selector_pred, &m->selector_succ, out->id, out->score, g, &s->rows);
    }
    if (out->next) be->pick(be, out->next, out->logits, &s->rows);
}

Status model_pass(const Model *m, Step *s, PassOut *out, int32_t k, Error *err)
{
    Backend *be = s->be;
    int32_t n_logits = s->host.n_logits;
    *out = (PassOut) { 0 };
    out->logits = new_tensor(s, T_F32, n_logits, m->vocab);
    out->hidden = new_tensor(s, T_F32, n_logits, m->dim);
    if (k > 0) {
        out->id = new_tensor(s, T_I32, n_logits, k);
        out->score = new_tensor(s, T_F32, n_logits, k);
        if (m->selector_hidden.data) out->edge = new_tensor(s, T_F32, n_logits, k * k);
    } else if (be->pick && !s->host_draws && n_logits) {
        out->next = new_tensor(s, T_I32, 1, n_logits);
    }
    Tensor *x = new_rows(s, m->dim);
    if (pass_commit(s, m)) return be->sync(be, err);
    const Tensor ids = { T_I32, 1, s->host.n, s->rows.token };
    be->embed(be, x, &m->embed, &ids);
    if (m->embed_scale != 1) be->scale(be, x, m->embed_scale, 0);
    trace(s, "embed", -1, x);
    bool stop = false;
    StepMark mark = step_mark(s);
    for (int32_t il = 0; il < m->n_layers && !stop; il++) {
        m->family->layer(m, s, il, x);
        trace(s, "layer", il, x);
        store_taps(m, s, il, x);
        step_reset(s, mark);
        stop = cancelled(s, il);
    }
    if (!stop) finish(m, s, out, x, k);
    be->pass_end(be, !stop);
    Status st = be->sync(be, err);
    if (st != ST_OK) return st;
    if (s->overflow) return fail(err, ST_BACKEND, "%s: a pass of %d rows needs more scratch than was planned", m->file, s->host.n);
    return stop ? fail(err, ST_CANCEL, "the pass was cancelled") : ST_OK;
}

Status model_context(const Model *m, Step *s, Error *err)
{
    Backend *be = s->be;
    Tensor *taps = new_rows(s, m->target->tap_width);
    if (pass_commit(s, &m->family)) return be->sync(be, err);
    be->tap_get(be, taps, &s->rows);
    Tensor *c = m->family->context(m, s, taps);
    StepMark mark = step_mark(s);
    for (int32_t il = 0; il < m->n_layers; il++) {
        m->family->context_layer(m, s, il, c);
        step_reset(s, mark);
    }
    be->pass_end(be, true);
    Status st = be->sync(be, err);
    if (st == ST_OK && s->overflow) st = fail(err, ST_BACKEND, "%s: %d tap rows need more scratch than was planned", m->file, s->host.n);
    return st;
}
