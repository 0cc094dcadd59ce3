#include "model/model.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/grow.h"
#include "base/mathd.h"
#include "base/path.h"
#include "model/families.h"

#define DECLARED(family) extern const Family family;
#define LISTED(family) &family,
FAMILIES(DECLARED)
static const Family *const built_in[] = { FAMILIES(LISTED) };
enum { BUILT_IN = sizeof built_in / sizeof *built_in };

/* Families from a statically linked program, ending with NULL: the tests' family. */
extern const Family *const families_linked[] __attribute__((weak));

/* Returns NULL after the last. */
static const Family *family_at(int32_t i)
{
    if (i < BUILT_IN) return built_in[i];
    return families_linked ? families_linked[i - BUILT_IN] : NULL;
}

const Family *model_family(const char *arch)
{
    for (int32_t i = 0; family_at(i); i++)
        if (strcmp(family_at(i)->arch, arch) == 0) return family_at(i);
    return NULL;
}

static Status refuse_arch(const char *file, const char *arch, Error *err)
{
    char names[256] = "";
    for (int32_t i = 0; family_at(i); i++) {
        size_t n = strlen(names);
        snprintf(names + n, sizeof names - n, "%s%s", i ? ", " : "", family_at(i)->arch);
    }
    return fail(err, ST_UNSUPPORTED, "%s: general.architecture is '%s', which is not supported (supported: %s)", file,
                arch, names);
}

/* A string key, cut to fit; ST_END: it is missing. */
static Status text_of(char *out, size_t cap, const Gguf *g, const char *key, Error *err)
{
    const char *s = "";
    size_t n = 0;
    Status st = gguf_get_str(g, key, &s, &n, err);
    snprintf(out, cap, "%.*s", (int) (n < cap ? n : cap - 1), s);
    return st;
}

Status model_check(const Gguf *g, Error *err)
{
    char type[32], arch[64];
    if (text_of(type, sizeof type, g, "general.type", NULL) == ST_OK &&
        (strcmp(type, "adapter") == 0 || strcmp(type, "mmproj") == 0 || strcmp(type, "imatrix") == 0))
        return fail(err, ST_UNSUPPORTED, "%s: general.type is '%s', expected 'model'", gguf_path(g), type);
    Status st = text_of(arch, sizeof arch, g, "general.architecture", err);
    if (st == ST_END) return fail(err, ST_FORMAT, "%s: key general.architecture is missing", gguf_path(g));
    if (st != ST_OK) return st;
    if (!model_family(arch)) return refuse_arch(gguf_path(g), arch, err);
    return gguf_n_tensors(g) > 0 ? ST_OK : fail(err, ST_FORMAT, "%s: it holds no tensors", gguf_path(g));
}

/* ---- memory ---- */

Status model_alloc(void **out, Model *m, int32_t stage, size_t bytes, const char *part, Error *err)
{
    Backend *be = m->stages.at[stage].be;
    Error why = { 0 };
    if (!grow_to(&m->owned, &m->cap_owned, (size_t) m->n_owned + 1, 256, sizeof *m->owned))
        return fail(err, ST_MEMORY, "%s: out of memory", m->file);
    *out = be->alloc(be, bytes, part);
    if (!*out) {
        const Status st = be->sync(be, &why);
        return fail(err, st, "%s: %s", m->file, why.text);
    }
    m->owned[m->n_owned].be = be;
    m->owned[m->n_owned].p = *out;
    m->owned[m->n_owned++].bytes = bytes;
    return ST_OK;
}

void model_close(Model *m)
{
    if (!m) return;
    for (int32_t i = 0; i < m->n_owned; i++) m->owned[i].be->release(m->owned[i].be, m->owned[i].p, m->owned[i].bytes);
    free(m->owned);
    free(m->factors);
    free(m->params);
    free(m->head_row);
    free(m->spec);
    free(m->layers);
    free(m->absent);
    free(m);
}

/* ---- binding ---- */

/* A tensor that was found, and its destination. The table is complete and checked before the first upload. */
typedef struct {
    const Bind *bind;
    Tensor     *at;
    WeightView  view;
    int64_t     row0;
    int32_t     rows, cols, n, stage, layer;       /* n: matrices; layer -1: none */
    const int32_t *from;                           /* [rows] which row of the file each is, -1: zeros; NULL: all, in
                                                    * order */
    size_t      bytes;                             /* to upload; 0: the backend reads the file */
    bool        placed;                            /* into memory of the backend's store, and not of the stage's room */
    const Tensor *factors;                         /* see Tensor */
    float       factor;
} Found;
/* up: forks that pack and upload, created at a stage's first tensor. room: what is left of a stage's memory for
 * matrices, which is taken in one piece: hundreds of smaller ones would have few huge pages, and a page fault for every
 * 4 KB. */
typedef struct {
    Model *m;
    const Weights *w;
    const ModelOptions *o;
    Found *found;
    int32_t n; size_t cap;
    int64_t done, total;
    struct { int32_t at; size_t from, bytes; } ahead;         /* what the disk is asked for: up to here, bytes in all */
    size_t read;                                              /* bytes of the files that were used */
    Bind again;                                    /* binds the embedding once more, in a model with several stages */
    Backend *up[STAGES_MAX];
    uint8_t *room[STAGES_MAX];
    struct { Stacked *s; int32_t n; StoreNeeds needs; } store[STAGES_MAX];    /* bytes 0: stacks are loaded whole */
    Hotness hot;                                   /* count NULL: unknown */
    Error *err;
} Loader;
/* bytes of a tensor read from the file at once; bytes of the next ones that the disk reads meanwhile */
enum { PIECE_BYTES = 16 << 20, AHEAD_BYTES = 64 << 20, ALIGNED = 64 };     /* ALIGNED: every matrix, as alloc does */

static int32_t size_of(const Model *m, int32_t il, int32_t which)
{
    return m->family->size ? m->family->size(m, il, which) : model_size(m, which);
}

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

static Status refuse_type(const Loader *l, const WeightView *v)
{
    char names[256] = "";
    for (int t = 0; t < T_COUNT; t++) {
        size_t n = strlen(names);
        if (type_info((Type) t)->weight)
            snprintf(names + n, sizeof names - n, "%s%s", n ? ", " : "", type_info((Type) t)->name);
    }
    const char *type = l->w->gguf ? gguf_tensor_type_name(gguf_tensor(l->w->gguf, v->name))
                                  : safetensors_get(l->w->st, v->name)->dtype;
    return fail(l->err, ST_UNSUPPORTED, "%s: tensor %s has type %s, which is not supported (supported: %s)", v->file,
                v->name, type, names);
}

static Status check_shape(const Loader *l, const Found *f)
{
    const WeightView *v = &f->view;
    int64_t want[2] = { f->cols, f->from ? l->m->n_head_rows : f->rows };
    if (!v->known)
        return refuse_type(l, v);
    if (f->bind->kind == BIND_PLAIN && v->n_dims == 3 && v->ne[0] == want[0] && v->ne[1] < want[1] &&
        v->ne[1] * v->ne[2] == want[1])
        return ST_OK;
    if (f->bind->kind == BIND_EXPERTS) {
        if (v->n_dims <= 3 && v->ne[0] == want[0] && v->ne[1] == want[1] && v->ne[2] == f->n) return ST_OK;
        return fail(l->err, ST_FORMAT, "%s: tensor %s has shape [%lld, %lld, %lld], expected [%lld, %lld, %d]", v->file,
                    v->name, (long long) v->ne[0], (long long) v->ne[1], (long long) v->ne[2], (long long) want[0],
                    (long long) want[1], f->n);
    }
    if (v->n_dims > 2 || v->ne[0] != want[0] || v->ne[1] != want[1])
        return fail(l->err, ST_FORMAT, "%s: tensor %s has shape [%lld, %lld, %lld], expected [%lld, %lld]", v->file,
                    v->name, (long long) v->ne[0], (long long) v->ne[1], (long long) v->ne[2], (long long) want[0],
                    (long long) want[1]);
    return ST_OK;
}

static Status add_found(Loader *l, const Found *f)
{
    if (!grow_to(&l->found, &l->cap, (size_t) l->n + 1, 512, sizeof *l->found))
        return fail(l->err, ST_MEMORY, "%s: out of memory", l->m->file);
    l->found[l->n++] = *f;
    return ST_OK;
}

static const Bind factor_bind = { .name = "scale", .kind = BIND_VECTOR };

/* Whether an entry of the family binds this tensor. */
static bool has_entry(const Loader *l, const char *prefix, const char *name)
{
    const size_t n = strlen(prefix);
    for (int32_t i = 0; i < l->m->family->n_layer_bind; i++)
        if (strcmp(l->m->family->layer_bind[i].name, name + n) == 0) return true;
    return false;
}

/* "X.weight" may come with "X.scale", by which its products are multiplied: one value, or one for each matrix of a
 * stack. Files of NVFP4 have them, and some call them "X.weight.scale". */
static Status bind_factor(Loader *l, Found *f, const char *prefix)
{
    Model *m = l->m;
    const Family *fam = m->family;
    const char *name = f->view.name;
    char names[2][160];
    Found v = { .bind = &factor_bind, .stage = f->stage, .layer = f->layer, .rows = 1, .cols = f->n, .n = 1 };
    if ((f->bind->kind != BIND_MATRIX && f->bind->kind != BIND_EXPERTS) || !ends_with(name, ".weight")) return ST_OK;
    snprintf(names[0], sizeof names[0], "%.*s.scale", (int) (strlen(name) - strlen(".weight")), name);
    snprintf(names[1], sizeof names[1], "%s.scale", name);
    if (has_entry(l, prefix, names[0]) || !(weights_find(l->w, names[0], &v.view) ||
                                            weights_find(l->w, names[1], &v.view))) return ST_OK;
    if (!v.view.known) return refuse_type(l, &v.view);
    if (v.view.ne[0] != f->n || v.view.n_dims > 1 + (v.view.ne[1] == 1))
        return fail(l->err, ST_FORMAT, "%s: tensor %s has shape [%lld, %lld], expected [%d]", v.view.file, v.view.name,
                    (long long) v.view.ne[0], (long long) v.view.ne[1], f->n);
    if (!m->factors) m->factors = calloc((size_t) fam->n_own + (size_t) m->n_layers * (size_t) fam->n_layer_bind,
                                         sizeof *m->factors);
    if (!m->factors) return fail(l->err, ST_MEMORY, "%s: out of memory", m->file);
    v.at = &m->factors[m->n_factors++];
    if (f->bind->kind == BIND_EXPERTS) f->factors = v.at;
    else quant_decode(&f->factor, v.view.type, v.view.data, 1);
    if (f->bind->kind == BIND_MATRIX && !(isfinite(f->factor) && f->factor != 0))
        return fail(l->err, ST_FORMAT, "%s: tensor %s is %g, expected a finite number that is not 0", v.view.file,
                    v.view.name, (double) f->factor);
    return add_found(l, &v);
}

/* The tensor that holds the rows of several entries, and how many rows have been given out. */
typedef struct { const char *name; int64_t rows; } Fused;

/* Goes on to another such tensor, NULL: none. Leftover rows of the last one would mean that it was cut at the wrong
 * places. */
static Status end_fused(Loader *l, const char *prefix, Fused *f, const char *next)
{
    WeightView v;
    if (f->name && next && strcmp(f->name, next) == 0) return ST_OK;
    if (f->name && find_any(l, prefix, f->name, &v) && v.ne[1] != f->rows)
        return fail(l->err, ST_FORMAT, "%s: tensor %s has %lld rows, expected %lld", v.file, v.name,
                    (long long) v.ne[1], (long long) f->rows);
    *f = (Fused) { next, 0 };
    return ST_OK;
}

/* Some writers store 1-D tensors as [1, n] instead of [n]: shapes are compared without dimensions of 1. */
static Status bind_one(Loader *l, const Bind *b, int32_t il, int32_t stage, uint8_t *base, const char *prefix,
                       Fused *fused)
{
    Model *m = l->m;
    Found f = { .bind = b, .stage = stage, .layer = il, .at = (Tensor *) (void *) (base + b->place),
                .rows = size_of(m, il, b->rows), .cols = size_of(m, il, b->cols),
                .n = b->kind == BIND_EXPERTS ? size_of(m, il, SIZE_EXPERTS) : 1 };
    if (f.rows == 0 || f.cols == 0 || f.n == 0) return ST_OK;  /* this model lacks the tensor */
    if (base == (uint8_t *) m && b->place == offsetof(Model, head)) f.from = m->head_row;
    if (find_any(l, prefix, b->name, &f.view)) {
        TRY(check_shape(l, &f));
        if (base != (uint8_t *) m) TRY(bind_factor(l, &f, prefix));    /* not of tables, which are read in other ways */
        return add_found(l, &f);
    }
    if (b->fused && find_any(l, prefix, b->fused, &f.view)) {
        TRY(end_fused(l, prefix, fused, b->fused));
        f.row0 = fused->rows;
        fused->rows += f.rows;
        if (!f.view.known) return refuse_type(l, &f.view);
        if (f.view.ne[0] != f.cols || f.view.n_dims > 3 || f.view.ne[1] < fused->rows || f.view.ne[2] != f.n)
            return fail(l->err, ST_FORMAT, "%s: tensor %s has shape [%lld, %lld, %lld], expected [%d, at least %lld, "
                        "%d]", f.view.file, f.view.name, (long long) f.view.ne[0], (long long) f.view.ne[1],
                        (long long) f.view.ne[2], f.cols, (long long) fused->rows, f.n);
        TRY(bind_factor(l, &f, prefix));
        return add_found(l, &f);
    }
    if (b->optional && !f.from) return ST_OK;
    char n[16] = "";
    if (b->kind == BIND_EXPERTS) snprintf(n, sizeof n, ", %d", f.n);
    return fail(l->err, ST_FORMAT, "%s: tensor %s%.*s is missing (shape [%d, %d%s])", m->file, prefix,
                (int) strcspn(b->name, "|"), b->name, f.cols, f.from ? m->n_head_rows : f.rows, n);
}

/* Whether the last of several stages reads the embedding, too: a drafter does, the end of a canvas's step, and a head
 * that is tied to it. */
static bool embeds_at_end(const Loader *l)
{
    const Family *fam = l->m->family;
    WeightView head;
    for (int32_t i = 0; i < fam->n_global; i++)
        if (fam->global[i].place == offsetof(Model, head) && find_any(l, "", fam->global[i].name, &head))
            return l->o->lends || l->m->diffusion.canvas > 0;
    return true;
}

static Status bind_all(Loader *l)
{
    Model *m = l->m;
    const Family *fam = m->family;
    Fused none = { 0 };
    const int32_t last = m->stages.n - 1;
    for (int32_t i = 0; i < fam->n_global; i++) {
        const Bind *b = &fam->global[i];
        bool embed = b->place == offsetof(Model, embed);
        TRY(bind_one(l, b, -1, embed ? 0 : last, (uint8_t *) m, "", &none));
        if (!embed || last == 0 || !embeds_at_end(l)) continue;
        l->again = *b;                             /* a second copy for users in the last stage */
        l->again.place = offsetof(Model, embed_end);
        TRY(bind_one(l, &l->again, -1, last, (uint8_t *) m, "", &none));
    }
    for (int32_t i = 0; i < fam->n_own; i++) TRY(bind_one(l, &fam->own[i], -1, 0, m->params, "", &none));
    for (int32_t il = 0; il < m->n_layers; il++) {
        char prefix[32];
        Fused fused = { 0 };
        snprintf(prefix, sizeof prefix, l->w->gguf ? "blk.%d." : "layers.%d.", m->first_layer + il);
        for (int32_t i = 0; i < fam->n_layer_bind; i++) {
            const Bind *b = &fam->layer_bind[i];
            if (b->only != LAYER_NONE && b->only != m->spec[il].kind) continue;
            TRY(bind_one(l, b, il, stages_of(&m->stages, il), model_layer(m, il), prefix, &fused));
        }
        TRY(end_fused(l, prefix, &fused, NULL));
    }
    return ST_OK;
}

static bool was_found(const Loader *l, const char *name)
{
    for (int32_t i = 0; i < l->n; i++)
        if (strcmp(l->found[i].view.name, name) == 0) return true;
    return false;
}

/* Whether the family knows this tensor without an entry. */
static bool among_others(const Loader *l, const char *name)
{
    const char *at = l->m->family->others;
    for (size_t n; at && *at; at += n + (at[n] == '|')) {
        n = strcspn(at, "|");
        if (strlen(name) == n && memcmp(at, name, n) == 0) return true;
    }
    return false;
}

/* Whether omitting this tensor would change what the model computes. For a target only its own layers, embedding and
 * output count: files may also have image towers, layers that predict further ahead, and tables from older
 * converters. The input_scale of NVFP4 is for activations of four bits, which we do not have. */
static bool belongs(const Loader *l, const char *name)
{
    int il = 0, end = 0;
    if (ends_with(name, ".input_scale")) return false;
    if (l->m->family->strict) return !among_others(l, name);
    if (l->m->target) return sscanf(name, "blk.%d.%n", &il, &end) == 1 && end > 0 && il == l->m->first_layer;
    if (sscanf(name, "blk.%d.%n", &il, &end) == 1 && end > 0)
        return il < l->m->n_layers || il >= l->m->n_layers + l->m->n_extra;
    return strncmp(name, "output", 6) == 0 || strncmp(name, "token_embd", 10) == 0;
}

/* A target with an unknown tensor would run and be wrong; a drafter would just guess badly, which looks like a bad
 * drafter. */
static Status refuse_unknown(const Loader *l)
{
    for (int32_t i = 0; i < weights_n(l->w); i++) {
        WeightView v;
        weights_at(l->w, i, &v);
        if (belongs(l, v.name) && !was_found(l, v.name))
            return fail(l->err, ST_UNSUPPORTED, "%s: tensor %s is unknown to the family '%s', and leaving it out would "
                        "change what is computed", v.file, v.name, l->m->family->arch);
    }
    return ST_OK;
}

/* ---- what is loaded ---- */

static bool is_vector(const Found *f) { return f->bind->kind == BIND_VECTOR || f->bind->kind == BIND_PLAIN; }

static Type loaded_type(const Loader *l, const Found *f)
{
    if (is_vector(f)) return T_F32;
    const bool halves = f->view.type == T_F16 || f->view.type == T_BF16;
    const bool wanted = l->m->target ? !l->o->keep_types && (halves || f->view.type == T_F32)
                                     : l->o->q8_weights && halves;
    const bool router = f->bind->rows == SIZE_EXPERTS;    /* small, and what all else depends on */
    return wanted && f->bind->kind != BIND_TABLE && !router && f->cols % type_info(T_Q8_0)->block == 0
           ? T_Q8_0 : f->view.type;
}

/* What was found of a layer, which stands together. */
typedef struct { const Found *at; int32_t n; } FoundLayer;

/* Whether two layers are the same operations with weights of the same types. */
static bool same_kind(const Loader *l, const FoundLayer *layer, int32_t a, int32_t b)
{
    const LayerSpec *p = &l->m->spec[a], *q = &l->m->spec[b];
    const Found *x = layer[a].at, *y = layer[b].at;
    if (layer[a].n != layer[b].n || p->kind != q->kind || p->heads != q->heads || p->kv_heads != q->kv_heads ||
        p->head_dim != q->head_dim || p->value_dim != q->value_dim || p->window != q->window) return false;
    for (int32_t i = 0; i < layer[a].n; i++)
        if (x[i].bind != y[i].bind || loaded_type(l, &x[i]) != loaded_type(l, &y[i]) || x[i].rows != y[i].rows ||
            x[i].cols != y[i].cols || x[i].n != y[i].n) return false;
    return true;
}

/* Keeps the first layer of each kind, and the last layer: something reads then what each kind makes of a prompt. */
static Status take_sample(Loader *l)
{
    Model *m = l->m;
    int32_t n = 0;
    FoundLayer *layer = calloc((size_t) m->n_layers, sizeof *layer);
    m->absent = calloc((size_t) m->n_layers, sizeof *m->absent);
    if (!layer || !m->absent) {
        free(layer);
        return fail(l->err, ST_MEMORY, "%s: out of memory", m->file);
    }
    for (int32_t i = l->n - 1; i >= 0; i--)
        if (l->found[i].layer >= 0) {
            FoundLayer *of = &layer[l->found[i].layer];
            of->at = &l->found[i];
            of->n++;
        }
    for (int32_t il = 0; il < m->n_layers - 1; il++)
        for (int32_t j = 0; j < il && !m->absent[il]; j++)
            m->absent[il] = !m->absent[j] && same_kind(l, layer, j, il);
    free(layer);
    for (int32_t i = 0; i < l->n; i++)
        if (l->found[i].layer < 0 || !m->absent[l->found[i].layer]) l->found[n++] = l->found[i];
    l->n = n;
    return ST_OK;
}

/* ---- upload ---- */

static Status upload_vector(Loader *l, Found *f)
{
    void *p;
    TRY(model_alloc(&p, l->m, f->stage, f->bytes, "norms", l->err));
    float *v = malloc(f->bytes);
    if (!v) return fail(l->err, ST_MEMORY, "%s: out of memory for %s", f->view.file, f->view.name);
    size_t row_bytes = type_row_bytes(f->view.type, f->cols);
    for (int32_t r = 0; r < f->rows; r++)
        quant_decode(v + (size_t) r * (size_t) f->cols, f->view.type, f->view.data + row_bytes * (size_t) r, f->cols);
    *f->at = (Tensor) { .type = T_F32, .rows = f->rows, .cols = f->cols, .data = p };
    Backend *be = l->m->stages.at[f->stage].be;
    be->copy_in(be, p, v, f->bytes);
    Status st = be->sync(be, l->err);
    free(v);
    return st;
}

/* Reports progress; the hook may cancel. */
static Status report(Loader *l)
{
    if (l->o->progress && !l->o->progress(l->o->ud, l->m->target ? "drafter" : "model", l->done, l->total))
        return fail(l->err, ST_CANCEL, "%s: loading was cancelled", l->m->file);
    return ST_OK;
}

/* Makes n rows from row0 on, of another type or of rows that lie apart in the file (src: all its rows); the caller
 * frees *out. A target's value that a type of blocks would make finite is refused, as `ratoon quantize` does: what is
 * broken must not look whole. */
static Status make_rows(Loader *l, const Found *f, Type to, const uint8_t *src, int32_t row0, int32_t n, uint8_t **out)
{
    size_t from_row = type_row_bytes(f->view.type, f->cols), to_row = type_row_bytes(to, f->cols);
    float *row = malloc(sizeof *row * (size_t) f->cols);
    *out = calloc((size_t) n, to_row);             /* zeros in every type */
    if (!row || !*out) {
        free(row);
        free(*out);
        *out = NULL;
        return fail(l->err, ST_MEMORY, "%s: out of memory for %s", f->view.file, f->view.name);
    }
    Status st = ST_OK;
    for (int32_t r = 0; r < n && st == ST_OK; r++) {
        const int32_t at = f->from ? f->from[row0 + r] : row0 + r;
        if (at < 0) continue;
        if (to == f->view.type) {
            memcpy(*out + to_row * (size_t) r, src + from_row * (size_t) at, to_row);
            continue;
        }
        quant_decode(row, f->view.type, src + from_row * (size_t) at, f->cols);
        if (!l->m->target && type_info(to)->block > 1 && !quant_fits(to, row, f->cols))
            st = fail(l->err, ST_FORMAT, "%s: %s row %lld has a value that is not finite or too large for %s, expected "
                      "at most %g", f->view.file, f->view.name, (long long) (f->row0 + at), type_info(to)->name,
                      (double) quant_limit(to));
        quant_encode(*out + to_row * (size_t) r, to, row, f->cols);
    }
    free(row);
    if (st != ST_OK) {
        free(*out);
        *out = NULL;
    }
    return st;
}

/* Bytes of a tensor in its file. */
static size_t file_bytes(const Found *f)
{
    const int64_t rows = f->from ? f->view.ne[1] : f->rows;
    return f->bytes ? type_row_bytes(f->view.type, f->cols) * (size_t) rows * (size_t) f->n : 0;
}

/* Lets the disk work while weights are packed: asks for the bytes that come next, in the order of loading. The matrices
 * of a stack may lie apart in the file, between those of another one. */
static void read_ahead(Loader *l)
{
    while (l->ahead.at < l->n && l->ahead.bytes < l->read + AHEAD_BYTES) {
        const Found *f = &l->found[l->ahead.at];
        const size_t all = file_bytes(f), row_bytes = type_row_bytes(f->view.type, f->cols);
        if (l->ahead.from < all) {
            const size_t each = all / (size_t) f->n, i = l->ahead.from / each, from = l->ahead.from % each,
                         n = each - from < PIECE_BYTES ? each - from : PIECE_BYTES;
            weights_want(l->w, &f->view, row_bytes * ((size_t) f->row0 + i * (size_t) f->view.ne[1]) + from, n);
            l->ahead.bytes += n;
            l->ahead.from += n;
        }
        if (l->ahead.from < all) continue;
        l->ahead.from = 0;
        l->ahead.at++;
    }
}

/* Uploads matrix i in pieces and releases each piece's file pages, so only the packed copy and one piece are
 * resident. */
static Status upload_rows(Loader *l, const Found *f, int32_t i)
{
    Backend *be = l->m->stages.at[f->stage].be, **up = &l->up[f->stage];
    if (!*up) TRY(be->fork(be, 0, up, l->err));
    Tensor *w = f->at;
    size_t row_bytes = type_row_bytes(f->view.type, f->cols),
           start = row_bytes * ((size_t) f->row0 + (size_t) i * (size_t) f->view.ne[1]), from = start;
    size_t piece = PIECE_BYTES / row_bytes / UPLOAD_ROWS * UPLOAD_ROWS;
    int32_t step = piece < UPLOAD_ROWS ? UPLOAD_ROWS : piece > INT32_MAX / 2 ? INT32_MAX / 2 : (int32_t) piece;
    for (int32_t r = 0, n; r < f->rows; r += n, from += row_bytes * (size_t) n) {
        n = f->rows - r < step ? f->rows - r : step;
        read_ahead(l);
        if (!f->from) l->read += row_bytes * (size_t) n;
        uint8_t *made = NULL;
        if (f->from || w->type != f->view.type) TRY(make_rows(l, f, w->type, f->view.data + start, r, n, &made));
        (*up)->upload(*up, w, i, made ? made : f->view.data + from, r, n);
        free(made);
        if (!f->from) weights_drop(l->w, &f->view, from, row_bytes * (size_t) n);
        l->done += (int64_t) n * f->cols;
        TRY(report(l));
    }
    if (f->from) weights_drop(l->w, &f->view, start, file_bytes(f));
    return (*up)->sync(*up, l->err);
}

static int64_t values_of(const Found *f) { return (int64_t) f->rows * f->cols * f->n; }

static const char *part_of(const Loader *l) { return l->m->target ? "drafter weights" : "weights"; }

/* A matrix or stack without its data. */
static Tensor descriptor(const Loader *l, const Found *f)
{
    return (Tensor) { loaded_type(l, f), f->rows, f->cols, NULL, f->bind->kind == BIND_EXPERTS ? f->n : 0, f->factors,
                      f->factor };
}

static Source source_of(const Loader *l, const Found *f)
{
    const Type type = loaded_type(l, f);
    const size_t row_bytes = type_row_bytes(type, f->cols);
    Source s = { .stride = row_bytes * (size_t) f->view.ne[1], .part = part_of(l) };
    if (type != f->view.type || f->from) return s;
    s.map = f->view.data + row_bytes * (size_t) f->row0;
    s.offset = f->view.offset + row_bytes * (size_t) f->row0;
    s.file = f->view.file;
    return s;
}

static bool is_stored(const Loader *l, const Found *f)
{
    return f->bind->kind == BIND_EXPERTS && l->store[f->stage].needs.bytes > 0;
}

/* A store that holds all experts in main memory, to which they are uploaded. */
static bool has_all(const Loader *l, int32_t stage) { return l->store[stage].needs.uploads; }

/* Bytes of a stage's experts that lie in main memory, if that has room for all. */
static double main_bytes(const Loader *l, int32_t stage)
{
    Backend *be = l->m->stages.at[stage].be;
    const uint64_t device = be->device ? l->o->store.device_ram : 0;
    double bytes = 0;
    for (int32_t i = 0; i < l->store[stage].n; i++)
        for (int32_t p = 0; p < STACKS; p++) {
            const Tensor *w = l->store[stage].s[i].w[p];
            bytes += (double) be->weight_bytes(be, w->type, w->rows, w->cols) * w->n;
        }
    return bytes > (double) device ? bytes - (double) device : 0;
}

/* With what the model's keys say, and of main memory the stage's share: of a device, whose stage is the last one, what
 * the others leave. */
static StoreOptions store_options(const Loader *l, int32_t stage)
{
    StoreOptions o = l->o->store;
    double all = 0;
    for (int32_t k = 0; k < l->m->stages.n; k++) all += main_bytes(l, k);
    const double share = all > 0 ? main_bytes(l, stage) / all : 1;
    if (!l->m->stages.at[stage].be->device && share < 1) o.ram = (uint64_t) ((double) o.ram * share);
    for (int32_t k = 0; k < stage && o.ram > 0; k++) {
        const uint64_t taken = l->store[k].needs.bytes;
        o.ram = taken < o.ram ? o.ram - taken : 1;
    }
    o.layers = l->m->n_layers;
    o.used = l->m->router.used;
    o.count = l->hot.count;
    return o;
}

/* Lists the mixtures of a stage; families bind their stacks in the order of STACK_. */
static Status list_mixtures(Loader *l, int32_t stage)
{
    int32_t n = 0;
    Stacked *s = calloc((size_t) l->m->n_layers, sizeof *s);
    if (!s) return fail(l->err, ST_MEMORY, "%s: out of memory", l->m->file);
    for (int32_t i = 0, p = 0; i < l->n; i++) {
        const Found *f = &l->found[i];
        if (f->bind->kind != BIND_EXPERTS || f->stage != stage) continue;
        if (loaded_type(l, f) != f->view.type)
            return fail(l->err, ST_UNSUPPORTED, "%s: tensor %s: experts that are quantised at load (weight_type q8_0) "
                        "have to be in memory, all of them", f->view.file, f->view.name);
        *f->at = descriptor(l, f);
        s[n].layer = f->layer;
        s[n].w[p] = f->at;
        s[n].source[p] = source_of(l, f);
        p = (p + 1) % STACKS;
        n += p == 0;
    }
    l->store[stage].s = s;
    l->store[stage].n = n;
    return ST_OK;
}

HotnessModel model_hotness(const Model *m, const Gguf *g)
{
    return (HotnessModel) { m->n_layers, m->experts, m->router.used, m->name[0] ? m->name : NULL, gguf_file_bytes(g) };
}

static Status read_hotness(Loader *l)
{
    const HotnessModel of = model_hotness(l->m, l->w->gguf);
    Status st = hotness_read(&l->hot, l->o->hotness, &of, l->err);
    return st == ST_END ? ST_OK : st;
}

/* Why a stage's store cannot be: with what was asked for all stages, if what this one gets of it is too little. */
static Status say_share(Loader *l, const Backend *be, uint64_t got)
{
    const char field[] = "expert_ram: ";
    const Error why = *l->err;
    if (got == l->o->store.ram || strncmp(why.text, field, sizeof field - 1) != 0) return why.code;
    return fail(l->err, why.code, "%s%llu bytes, of which the layers on %s get %s", field,
                (unsigned long long) l->o->store.ram, be->name, why.text + sizeof field - 1);
}

/* Asks the backends what they need where memory shall not hold all experts. */
static Status plan_stores(Loader *l)
{
    Model *m = l->m;
    const StoreOptions *asked = &l->o->store;
    if (m->experts == 0 || m->target || (asked->ram == 0 && asked->device_ram == 0)) return ST_OK;
    if (l->o->hotness) TRY(read_hotness(l));
    for (int32_t k = 0; k < m->stages.n; k++) {
        Backend *be = m->stages.at[k].be;
        if (be->store_needs && (be->device ? asked->device_ram : asked->ram) > 0) TRY(list_mixtures(l, k));
    }
    for (int32_t k = 0; k < m->stages.n; k++) {
        Backend *be = m->stages.at[k].be;
        const StoreOptions o = store_options(l, k);
        StoreNeeds *needs = &l->store[k].needs;
        if (l->store[k].n && be->store_needs(be, needs, l->store[k].s, l->store[k].n, &o, l->err) != ST_OK)
            return say_share(l, be, o.ram);
        if (needs->bytes) *(be->device ? &m->device_store : &m->store) = *needs;
    }
    return ST_OK;
}

/* Hands the mixtures over: before anything is uploaded to stores that hold all experts, to the others at the end. */
static Status open_stores(Loader *l, bool all)
{
    for (int32_t k = 0; k < l->m->stages.n; k++) {
        const size_t bytes = l->store[k].needs.bytes;
        Backend *be = l->m->stages.at[k].be;
        if (bytes == 0 || has_all(l, k) != all) continue;
        void *memory;
        TRY(model_alloc(&memory, l->m, k, bytes, "experts", l->err));
        const StoreOptions o = store_options(l, k);
        TRY(be->store(be, l->store[k].s, l->store[k].n, memory, &o, l->err));
    }
    return ST_OK;
}

/* What the loader does not read itself. */
static bool left_out(const Loader *l, const Found *f) { return is_stored(l, f) && !f->placed; }

/* Determines what to allocate for a tensor, unless the backend reads it in place. */
static Status place(Loader *l, Found *f)
{
    Model *m = l->m;
    if (is_vector(f)) {
        size_t n;
        if (!check_mul(&n, (size_t) f->rows, (size_t) f->cols) || !check_mul(&f->bytes, n, sizeof(float)))
            return fail(l->err, ST_FORMAT, "%s: tensor %s is too large", f->view.file, f->view.name);
        return ST_OK;
    }
    Type type = loaded_type(l, f);
    Backend *be = m->stages.at[f->stage].be;
    size_t each = be->weight_bytes(be, type, f->rows, f->cols);
    if (each == 0)
        return fail(l->err, ST_UNSUPPORTED, "%s: tensor %s has type %s, which the backend '%s' has no product for",
                    f->view.file, f->view.name, type_info(type)->name, be->name);
    size_t padded;
    if (!check_mul(&f->bytes, each, (size_t) f->n) || !check_add(&padded, f->bytes, ALIGNED - 1))
        return fail(l->err, ST_FORMAT, "%s: tensor %s is too large", f->view.file, f->view.name);
    if (f->bind != &l->again) {
        m->weight_bytes += f->bytes;
        m->n_weights += (uint64_t) values_of(f);
        m->n_quantised += type != f->view.type;
        if (f->bind->kind == BIND_EXPERTS) {
            m->expert_bytes += f->bytes;
            if (be->device) m->device_expert_bytes += f->bytes;
            m->n_expert_weights += (uint64_t) values_of(f);
        }
    }
    const Source s = source_of(l, f);
    *f->at = descriptor(l, f);
    f->placed = is_stored(l, f) && has_all(l, f->stage);
    const bool there = left_out(l, f) || (!f->placed && be->attach(be, f->at, &s));
    f->bytes = there ? 0 : padded / ALIGNED * ALIGNED;
    return ST_OK;
}

static Status upload_matrix(Loader *l, Found *f)
{
    if (f->bytes == 0) return ST_OK;
    if (!f->placed) {
        f->at->data = l->room[f->stage];
        l->room[f->stage] += f->bytes;
    }
    for (int32_t i = 0; i < f->n && f->at->data; i++)     /* a store that only counts has no place for them */
        TRY(upload_rows(l, f, i));
    return ST_OK;
}

/* Bytes that a stage needs for vectors or for matrices, besides a store's. */
static uint64_t stage_bytes(const Loader *l, int32_t stage, bool vectors)
{
    uint64_t sum = 0;
    for (int32_t i = 0; i < l->n; i++)
        if (l->found[i].stage == stage && is_vector(&l->found[i]) == vectors && !l->found[i].placed)
            sum += l->found[i].bytes;
    return sum;
}

/* The system would grant more memory than there is, and kill the process once it is used. */
static Status check_memory(const Loader *l)
{
    const Model *m = l->m;
    for (int32_t k = 0; k < m->stages.n && !l->o->overcommit; k++) {
        uint64_t need = stage_bytes(l, k, true) + stage_bytes(l, k, false) + l->store[k].needs.bytes, there = 0, total;
        Backend *be = m->stages.at[k].be;
        be->memory(be, &there, &total);
        if (there > 0 && need > there)
            return fail(l->err, ST_MEMORY, "%s: its weights take %.2f GB, but %.2f GB of %s are free", m->file,
                        (double) need / 1e9, (double) there / 1e9, be->device ? "device memory" : "memory");
    }
    return ST_OK;
}

static Status take_room(Loader *l)
{
    for (int32_t k = 0; k < l->m->stages.n; k++) {
        const uint64_t need = stage_bytes(l, k, false);
        void *room = NULL;
        if (need > 0) TRY(model_alloc(&room, l->m, k, need, part_of(l), l->err));
        l->room[k] = room;
    }
    return ST_OK;
}

static Status upload_all(Loader *l)
{
    TRY(plan_stores(l));
    for (int32_t i = 0; i < l->n; i++) TRY(place(l, &l->found[i]));
    TRY(check_memory(l));
    read_ahead(l);                                 /* the disk reads while the system clears memory */
    TRY(take_room(l));
    TRY(open_stores(l, true));
    for (int32_t i = 0; i < l->n; i++) l->total += left_out(l, &l->found[i]) ? 0 : values_of(&l->found[i]);
    for (int32_t i = 0; i < l->n; i++) {
        Found *f = &l->found[i];
        int64_t before = l->done;
        if (left_out(l, f)) continue;
        TRY(report(l));
        if (is_vector(f) || f->from) l->read += file_bytes(f);
        TRY(is_vector(f) ? upload_vector(l, f) : upload_matrix(l, f));
        l->done = before + values_of(f);
    }
    TRY(open_stores(l, false));
    return report(l);
}

/* ---- opening ---- */

/* Checks what operations rely on, for families whose layers differ. */
static Status check_heads(const Model *m, Error *err)
{
    for (int32_t il = 0; il < m->n_layers; il++) {
        const LayerSpec *p = &m->spec[il];
        if (p->kind != LAYER_ATTENTION) continue;
        if (p->kv_heads < 1 || p->heads % p->kv_heads)
            return fail(err, ST_FORMAT, "%s: layer %d has %d query heads, expected a multiple of its %d key heads",
                        m->file, il, p->heads, p->kv_heads);
        if (p->head_dim % 16 || value_dim(p) % 16)
            return fail(err, ST_UNSUPPORTED, "%s: the keys of layer %d are %d wide, its values %d, expected multiples "
                        "of 16", m->file, il, p->head_dim, value_dim(p));
    }
    return ST_OK;
}

/* Checks that a head is a whole number of its type's blocks. */
static Status check_kv(const Model *m, bool values, const char *what, Error *err)
{
    for (int32_t il = 0; il < m->n_layers; il++) {
        const LayerSpec *p = &m->spec[il];
        Backend *be = stages_be(&m->stages, il);
        if (p->kind != LAYER_ATTENTION || be->kv_bytes(be, p, values, 1)) continue;
        Type t = values ? p->v_type : p->k_type;
        const TypeInfo *info = type_info(t);
        const int32_t width = values ? value_dim(p) : p->head_dim;
        if (width % info->block == 0)
            return fail(err, ST_UNSUPPORTED, "%s: %s of type %s do not run on the backend %s", m->file, what,
                        info->name, be->name);
        return fail(err, ST_UNSUPPORTED, "%s: the heads of layer %d are %d wide, expected a multiple of %d for %s of "
                    "type %s", m->file, il, width, info->block, what, info->name);
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

/* Slots so that neither a chunk of CHUNK rows nor a tree overwrites what its rows attend to; whole panels of any
 * type. */
static int32_t ring_for(int32_t window)
{
    enum { CHUNK = 512, PANEL = 128 };
    return (window + CHUNK + ROWS_DECODE + PANEL - 1) / PANEL * PANEL;
}

static Status load(Loader *l)
{
    Model *m = l->m;
    m->params = calloc(1, m->family->params_bytes);
    if (!m->params) return fail(l->err, ST_MEMORY, "%s: out of memory", m->file);
    TRY(m->family->read(m, l->w, l->err));
    /* Keys and values are f16, or f32 if the file is f32 throughout: nobody uses such a file for speed. */
    Type kv = (m->target ? l->o->keep_types : all_f32(l->w)) ? T_F32 : T_F16;
    m->k_type = l->o->k_type == T_COUNT || m->target ? kv : l->o->k_type;
    m->v_type = l->o->v_type == T_COUNT || m->target ? kv : l->o->v_type;
    m->spec = calloc((size_t) m->n_layers, sizeof *m->spec);
    m->layers = calloc((size_t) m->n_layers, m->family->layer_bytes);
    if (!m->spec || !m->layers) return fail(l->err, ST_MEMORY, "%s: out of memory", m->file);
    for (int32_t il = 0; il < m->n_layers; il++) {
        LayerSpec *p = &m->spec[il];
        m->family->spec(m, il, p);
        if (!m->target && p->window > 0) p->ring = ring_for(p->window);
        if (!m->target && p->kind == LAYER_ATTENTION && p->window == 0) p->window = l->o->window;
    }
    TRY(check_heads(m, l->err));
    TRY(check_kv(m, false, "keys", l->err));
    TRY(check_kv(m, true, "values", l->err));
    TRY(bind_all(l));
    TRY(refuse_unknown(l));
    if (l->o->sample) TRY(take_sample(l));
    TRY(upload_all(l));
    TRY(l->w->gguf ? gguf_check_files(l->w->gguf, l->err) : safetensors_check_files(l->w->st, l->err));
    if (m->family->bound) TRY(m->family->bound(m, l->err));
    if (!m->embed.data && m->target) m->embed = m->target->embed_end;
    if (m->stages.n == 1) m->embed_end = m->embed;
    if (!m->head.data) m->head = m->target ? m->target->head : m->embed_end;
    return ST_OK;
}

Status model_open(Model **out, const Stages *stages, const Weights *w, const Model *target, const ModelOptions *o,
                  Error *err)
{
    *out = NULL;
    Model *m = calloc(1, sizeof *m);
    if (!m) return fail(err, ST_MEMORY, "%s: out of memory", weights_path(w));
    m->stages = target ? stages_one(stages_last(stages)) : *stages;
    m->target = target;
    m->embed_scale = m->logit_scale = 1;
    snprintf(m->file, sizeof m->file, "%s", weights_path(w));
    Status st = ST_OK;
    if (target) {
        m->family = o->mtp ? &draft_mtp : &draft_dflash;
    } else if (!w->gguf) {
        st = fail(err, ST_UNSUPPORTED, "%s: a target model must be a GGUF file (convert it first); safetensors folders "
                  "are read as drafters", m->file);
    } else {
        st = model_check(w->gguf, err);
        text_of(m->arch, sizeof m->arch, w->gguf, "general.architecture", NULL);
        text_of(m->name, sizeof m->name, w->gguf, "general.name", NULL);
        m->family = model_family(m->arch);
    }
    Loader l = { .m = m, .w = w, .o = o, .err = err };
    if (st == ST_OK) st = load(&l);
    free(l.found);
    for (int32_t k = 0; k < STAGES_MAX; k++) free(l.store[k].s);
    hotness_free(&l.hot);
    for (int32_t k = 0; k < m->stages.n; k++)
        if (l.up[k]) l.up[k]->close(l.up[k]);
    if (st != ST_OK) {
        stages_sync(&m->stages, NULL);             /* the failure is already reported */
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
            return fail(err, ST_ARG, "%s: tap id %d, expected ascending ids from 0 to %d", m->file, ids[i],
                        m->n_layers);
        m->tap[i] = ids[i];
    }
    m->n_taps = n;
    m->tap_width = n * m->dim;
    return ST_OK;
}

/* ---- what families share ---- */

#define N(field) offsetof(Model, field)
const Bind model_ends[MODEL_ENDS] = {
    { "token_embd.weight", N(embed), SIZE_VOCAB, SIZE_DIM, BIND_MATRIX, false, LAYER_NONE, NULL },
    { "output_norm.weight", N(out_norm), SIZE_ONE, SIZE_DIM, BIND_VECTOR, false, LAYER_NONE, NULL },
    { "output.weight", N(head), SIZE_VOCAB, SIZE_DIM, BIND_MATRIX, true, LAYER_NONE, NULL },
};
#undef N

int32_t model_size(const Model *m, int32_t which)
{
    const int32_t size[SIZE_OWN] = { [SIZE_ONE] = 1, [SIZE_DIM] = m->dim, [SIZE_FFN] = m->ffn, [SIZE_VOCAB] = m->vocab,
                                     [SIZE_Q] = m->q_dim, [SIZE_KV] = m->kv_dim, [SIZE_HEAD] = m->head_dim,
                                     [SIZE_EXPERTS] = m->experts, [SIZE_EXPERT_FFN] = m->expert_ffn,
                                     [SIZE_SHARED_FFN] = m->shared_ffn };
    return which < SIZE_OWN ? size[which] : 0;
}

/* The embedding gives the vocabulary's size; the key and the token list must agree with it. */
static Status read_vocab(Model *m, const Weights *w, const char *arch, Error *err)
{
    WeightView v;
    if (!weights_find(w, "token_embd.weight", &v))
        return fail(err, ST_FORMAT, "%s: tensor token_embd.weight is missing", m->file);
    if (v.n_dims != 2 || v.ne[1] < 1 || v.ne[1] > 1 << 24)
        return fail(err, ST_FORMAT, "%s: tensor token_embd.weight has shape [%lld, %lld], expected [%d, vocabulary]",
                    v.file, (long long) v.ne[0], (long long) v.ne[1], m->dim);
    m->vocab = (int32_t) v.ne[1];
    int32_t key;
    TRY(weights_u32(w->gguf, arch, "vocab_size", 1, 1 << 24, m->vocab, &key, err));
    if (key != m->vocab)
        return fail(err, ST_FORMAT, "%s: %s.vocab_size is %d, but token_embd.weight has %d rows", m->file, arch, key,
                    m->vocab);
    GgufType elem;
    uint64_t n;
    if (gguf_array(w->gguf, "tokenizer.ggml.tokens", &elem, &n, NULL) == ST_OK && n != (uint64_t) m->vocab)
        return fail(err, ST_FORMAT, "%s: tokenizer.ggml.tokens has %llu entries, but token_embd.weight has %d rows",
                    m->file, (unsigned long long) n, m->vocab);
    return ST_OK;
}

/* Converters omit the key, or write 0, if the scale is the usual one. */
static Status read_factor(const Gguf *g, const char *arch, const char *name, float usual, float *out, Error *err)
{
    char key[160];
    float given = 0;
    *out = usual;
    snprintf(key, sizeof key, "%s.%s", arch, name);
    if (gguf_get_f32(g, key, &given, NULL) == ST_OK && given == 0) return ST_OK;
    return weights_f32(g, arch, name, usual, out, err);
}

Status model_read_sizes(Model *m, const Weights *w, const char *arch, Error *err)
{
    const Gguf *g = w->gguf;
    TRY(weights_u32(g, arch, "block_count", 1, LAYERS_MAX, 0, &m->n_layers, err));
    TRY(weights_u32(g, arch, "embedding_length", 1, 1 << 17, 0, &m->dim, err));
    char experts[80];                              /* mixtures may have no dense layer */
    snprintf(experts, sizeof experts, "%s.expert_count", arch);
    TRY(weights_u32(g, arch, "feed_forward_length", 1, 1 << 20, gguf_has(g, experts) ? 1 : 0, &m->ffn, err));
    TRY(weights_u32(g, arch, "context_length", 1, 1 << 30, 4096, &m->ctx_train, err));
    TRY(weights_f32(g, arch, "attention.layer_norm_rms_epsilon", 0, &m->eps, err));
    return read_vocab(m, w, arch, err);
}

Status model_read_widths(Model *m, const Weights *w, const char *arch, int32_t standard, Error *err)
{
    const Gguf *g = w->gguf;
    int32_t v_len;
    TRY(weights_u32(g, arch, "attention.key_length", 1, 1024, standard, &m->head_dim, err));
    TRY(weights_u32(g, arch, "attention.value_length", 1, 1024, m->head_dim, &v_len, err));
    if (v_len != m->head_dim)
        return fail(err, ST_UNSUPPORTED, "%s: %s.attention.value_length is %d, expected the key length %d", m->file,
                    arch, v_len, m->head_dim);
    if (m->head_dim % 16)
        return fail(err, ST_UNSUPPORTED, "%s: %s.attention.key_length is %d, expected a multiple of 16", m->file, arch,
                    m->head_dim);
    return read_factor(g, arch, "attention.scale", 1 / sqrtf((float) m->head_dim), &m->attention_scale, err);
}

Status model_read_attention(Model *m, const Weights *w, const char *arch, Error *err)
{
    const Gguf *g = w->gguf;
    TRY(model_read_sizes(m, w, arch, err));
    TRY(weights_u32(g, arch, "attention.head_count", 1, 1024, 0, &m->heads, err));
    TRY(weights_u32(g, arch, "attention.head_count_kv", 1, 1024, m->heads, &m->kv_heads, err));
    if (m->heads % m->kv_heads)
        return fail(err, ST_FORMAT, "%s: %s.attention.head_count is %d, expected a multiple of head_count_kv %d",
                    m->file, arch, m->heads, m->kv_heads);
    TRY(model_read_widths(m, w, arch, m->dim / m->heads, err));
    m->q_dim = m->heads * m->head_dim;
    m->kv_dim = m->kv_heads * m->head_dim;
    return ST_OK;
}

Status model_read_mixture(Model *m, const Weights *w, const char *arch, Error *err)
{
    const Gguf *g = w->gguf;
    TRY(weights_u32(g, arch, "expert_count", 1, EXPERTS_MAX, 0, &m->experts, err));
    TRY(weights_u32(g, arch, "expert_used_count", 1, EXPERTS_USED_MAX, 0, &m->router.used, err));
    if (m->router.used > m->experts)
        return fail(err, ST_FORMAT, "%s: %s.expert_used_count is %d, expected at most expert_count %d", m->file, arch,
                    m->router.used, m->experts);
    TRY(weights_u32(g, arch, "expert_feed_forward_length", 1, 1 << 20, 0, &m->expert_ffn, err));
    TRY(read_factor(g, arch, "expert_weights_scale", 1, &m->router.scale, err));
    for (int32_t i = 0; i < m->stages.n; i++)
        if (!m->stages.at[i].be->experts)
            return fail(err, ST_UNSUPPORTED, "%s: the backend '%s' does not run mixtures of experts", m->file,
                        m->stages.at[i].be->name);
    return ST_OK;
}

void model_attention_spec(const Model *m, int32_t il, LayerSpec *out)
{
    (void) il;
    *out = (LayerSpec) { .kind = LAYER_ATTENTION, .heads = m->heads, .kv_heads = m->kv_heads, .head_dim = m->head_dim,
                         .causal = true, .scale = m->attention_scale, .k_type = m->k_type, .v_type = m->v_type };
}

/* ---- rotation ---- */

/* Which position stream pair i reads: interleaved M-RoPE (spec targets.md 6.4). For text all streams are equal. */
static int32_t lane_of_pair(const int32_t *section, int32_t i)
{
    if (i % 3 == 1 && i < 3 * section[1]) return 1;
    if (i % 3 == 2 && i < 3 * section[2]) return 2;
    if (i % 3 == 0 && i < 3 * section[0]) return 0;
    return 3;
}

typedef struct { bool linear, yarn; float factor, attn_factor, beta_fast, beta_slow; int32_t original; } Scaling;

/* Reads a scaling's key; *out keeps its default if the file lacks it. */
static Status scaling_f32(const Gguf *g, const char *arch, const char *scaling, const char *name, float *out,
                          Error *err)
{
    char key[96];
    snprintf(key, sizeof key, "%s.%s", scaling, name);
    return weights_f32(g, arch, key, *out, out, err);
}

/* yarn_attn_factor is not read: converters write the checkpoint's attention factor there, which is 1 + 0.1 ln factor
 * once more, or 1. */
static Status read_scaling(Scaling *s, const Gguf *g, const char *arch, const char *scaling, Error *err)
{
    *s = (Scaling) { .factor = 1, .attn_factor = 1, .beta_fast = 32, .beta_slow = 1 };
    if (!g || !scaling) return ST_OK;
    char key[160];
    const char *type = NULL;
    size_t n = 0;
    snprintf(key, sizeof key, "%s.%s.type", arch, scaling);
    Status st = gguf_get_str(g, key, &type, &n, err);
    if (st != ST_OK && st != ST_END) return st;
    s->linear = n == 6 && memcmp(type, "linear", 6) == 0;
    s->yarn = n == 4 && memcmp(type, "yarn", 4) == 0;
    if (n > 0 && !s->linear && !s->yarn && !(n == 4 && memcmp(type, "none", 4) == 0))
        return fail(err, ST_UNSUPPORTED, "%s: %s is '%.*s', expected none, linear or yarn", gguf_path(g), key,
                    (int) (n < 40 ? n : 40), type);
    if (st == ST_END) s->linear = true;            /* a factor without a type is linear */
    TRY(scaling_f32(g, arch, scaling, "factor", &s->factor, err));
    TRY(scaling_f32(g, arch, scaling, "attn_factor", &s->attn_factor, err));
    if (!s->yarn) return ST_OK;
    TRY(scaling_f32(g, arch, scaling, "yarn_beta_fast", &s->beta_fast, err));
    TRY(scaling_f32(g, arch, scaling, "yarn_beta_slow", &s->beta_slow, err));
    snprintf(key, sizeof key, "%s.original_context_length", scaling);
    return weights_u32(g, arch, key, 1, 1 << 30, 0, &s->original, err);
}

/* Dimension at which a wave of this many turns fits the original context (yarn). */
static double yarn_corr(const Scaling *s, int32_t n_rot, double base, double turns)
{
    return n_rot * mathd_log(s->original / (2 * 3.14159265358979323846 * turns)) / (2 * mathd_log(base));
}

/* Copies the frequencies, and the lane that each reads, into a stage's memory. */
static Status place_rope(Model *m, Rope *rope, int32_t stage, const double *freq, const int32_t *lane, Error *err)
{
    Backend *be = m->stages.at[stage].be;
    size_t pairs = (size_t) rope->n_rot / 2;
    void *place, *place_lane = NULL;
    TRY(model_alloc(&place, m, stage, sizeof *freq * pairs, "norms", err));
    if (lane) TRY(model_alloc(&place_lane, m, stage, sizeof *lane * pairs, "norms", err));
    be->copy_in(be, place, freq, sizeof *freq * pairs);
    if (lane) be->copy_in(be, place_lane, lane, sizeof *lane * pairs);
    rope->freq = place;
    rope->lane_of = place_lane;
    return be->sync(be, err);
}

/* Divisors of the frequencies, [n_rot / 2]: ones, or a tensor's values. */
static Status read_factors(const Model *m, const Weights *w, const RopeSpec *r, float *factor, Error *err)
{
    const int32_t pairs = r->n_rot / 2;
    for (int32_t i = 0; i < pairs; i++) factor[i] = 1;
    WeightView v;
    if (!r->factors || !weights_find(w, r->factors, &v)) return ST_OK;
    if (!v.known || v.ne[0] != pairs || v.n_dims != 1)
        return fail(err, ST_FORMAT, "%s: tensor %s has %lld values, expected %d", v.file, r->factors,
                    (long long) v.ne[0], pairs);
    quant_decode(factor, v.type, v.data, pairs);
    for (int32_t i = 0; i < pairs; i++)
        if (!(factor[i] > 0))
            return fail(err, ST_FORMAT, "%s: tensor %s value %d is %g, expected a positive number", m->file,
                        r->factors, i, (double) factor[i]);
    return ST_OK;
}

/* freq [n_rot / 2] holds the divisors on entry. */
static void scale_freqs(double *freq, const RopeSpec *r, const Scaling *sc)
{
    const double base = (double) r->base;
    double low = 0, high = 0;
    if (sc->yarn) {
        low = fmax(0, floor(yarn_corr(sc, r->n_rot, base, (double) sc->beta_fast)));
        high = fmin(r->n_rot - 1, ceil(yarn_corr(sc, r->n_rot, base, (double) sc->beta_slow)));
    }
    for (int32_t i = 0; i < r->n_rot / 2; i++) {
        double f = mathd_exp(-2.0 * i / r->n_rot * mathd_log(base)) / freq[i];
        double ramp = sc->yarn ? 1 - fmin(fmax((i - low) / fmax(0.001, high - low), 0), 1) : 0;
        freq[i] = sc->yarn ? f / (double) sc->factor * (1 - ramp) + f * ramp : f / (double) sc->factor;
    }
}

Status model_rope(Model *m, const Weights *w, const char *arch, const RopeSpec *r, StageRope *out, Error *err)
{
    const size_t pairs = (size_t) r->n_rot / 2;
    Scaling sc;
    TRY(read_scaling(&sc, w->gguf, arch, r->scaling, err));
    double *freq = malloc(sizeof *freq * pairs);
    float *factor = malloc(sizeof *factor * pairs);
    int32_t *lane = malloc(sizeof *lane * pairs);
    Status st = freq && factor && lane ? ST_OK : fail(err, ST_MEMORY, "%s: out of memory", m->file);
    if (st == ST_OK) st = read_factors(m, w, r, factor, err);
    if (st == ST_OK) {
        for (size_t i = 0; i < pairs; i++) {
            freq[i] = (double) factor[i];
            lane[i] = r->sections ? lane_of_pair(r->sections, (int32_t) i) : 0;
        }
        scale_freqs(freq, r, &sc);
    }
    Rope rope = { .n_rot = r->n_rot, .neox = r->neox, .mscale = sc.attn_factor };
    if (sc.yarn) rope.mscale *= (float) (1 + 0.1 * mathd_log((double) sc.factor));
    for (int32_t k = 0; st == ST_OK && k < m->stages.n; k++) {
        out->at[k] = rope;
        st = place_rope(m, &out->at[k], k, freq, r->sections ? lane : NULL, err);
    }
    free(freq);
    free(factor);
    free(lane);
    return st;
}

/* ---- passes ---- */

static bool cancelled(const Step *s, int32_t il)
{
    return s->hooks && s->hooks->cancel && s->hooks->cancel(s->hooks->ud, il);
}

/* x and the tapped rows that travel with it between stages: the first n taps, since taps ascend with the layers. */
typedef struct { Tensor *x, *tapped[TAPS_MAX]; int32_t n; } Flow;

static void store_taps(const Model *m, Step *s, Flow *flow, int32_t id, const Tensor *x)
{
    const size_t bytes = sizeof(float) * (size_t) x->rows * (size_t) x->cols;
    for (int32_t j = 0; !m->target && j < m->n_taps; j++) {           /* a drafter's list refers to its target's
                                                                       * layers */
        if (m->tap[j] != id) continue;
        if (!s->next) s->be->tap(s->be, x, &s->rows, j, m->n_taps);
        else if (j < flow->n) s->be->copy(s->be, flow->tapped[j]->data, x->data, bytes);
    }
}

/* What the rows of canvases say, and what their next steps are conditioned on: one canvas after the other, in the same
 * memory. */
static void finish_canvases(const Model *m, Step *s, const PassOut *out, const Tensor *x)
{
    const Tensor *y = step_norm(s, x, &m->out_norm, m->eps);
    Tensor *z = step_new_tensor(s, T_F32, 2 * m->diffusion.canvas, CANVAS_IDS),
           *wide = step_new_tensor(s, T_F32, CANVAS_IDS, m->dim);
    const CanvasEnd e = { &m->head, &m->embed_end, m->logit_scale, m->softcap, m->embed_scale, z, wide };
    for (int32_t i = 0; i < s->n_canvas; i++) {
        const int32_t row0 = s->host.slices[i].row0;
        const Tensor rows = step_canvas_rows(s, y, i);
        Tensor soft = step_canvas_soft(s, y, i);
        Rows of = s->rows;
        of.slice += row0;
        of.pos += row0;
        s->be->canvas(s->be, (CanvasRow *) out->found->data + row0, &soft, &rows, &e, &of);
    }
}

/* Output norm, head, and the top k of the logits. Only rows whose logits are wanted are computed, but the norm of all
 * rows if it is a tap. */
static void finish(const Model *m, Step *s, const PassOut *out, Flow *flow, int32_t k)
{
    Backend *be = s->be;
    const Tensor *x = flow->x;
    int32_t last = m->n_taps && !m->target ? m->tap[m->n_taps - 1] : -1;
    if (last == m->n_layers) {
        Tensor *y = step_norm(s, x, &m->out_norm, m->eps);
        store_taps(m, s, flow, m->n_layers, y);
    }
    if (step_is_canvas(s)) finish_canvases(m, s, out, x);
    if (s->host.n_logits == 0) return;
    Tensor *rows = step_new_tensor(s, T_F32, s->host.n_logits, m->dim);
    be->logit_rows(be, rows, x, &s->rows);
    be->norm(be, out->hidden, rows, &m->out_norm, m->eps);
    Tensor *y = out->logits;
    const Tensor *head = &m->head;
    be->matmul(be, 1, &y, &head, out->hidden);
    if (m->logit_scale != 1 || m->softcap > 0) be->scale(be, out->logits, m->logit_scale, m->softcap);
    step_add_bias(s, out->logits, &m->head_bias);
    if (k > 0) be->top_k(be, out->id, out->score, out->logits, &s->rows, k);
    if (out->edge) m->family->edges(m, s, out);
}

/* Makes the tensors for the last stage's results. */
static void make_results(const Model *m, Step *s, PassOut *out, int32_t k)
{
    int32_t n_logits = s->host.n_logits;
    out->logits = step_new_tensor(s, T_F32, n_logits, m->vocab);
    out->hidden = step_new_tensor(s, T_F32, n_logits, m->dim);
    if (step_is_canvas(s))
        out->found = step_new_tensor(s, T_F32, s->host.n, (int32_t) (sizeof(CanvasRow) / sizeof(float)));
    if (k > 0) {
        out->id = step_new_tensor(s, T_I32, n_logits, k);
        out->score = step_new_tensor(s, T_F32, n_logits, k);
        if (m->edges) out->edge = step_new_tensor(s, T_F32, n_logits, k * k);
    }
}

/* Rows in scratch for x, for the taps of earlier stages, and, in all but the last stage, for this stage's own taps.
 * None for taps in a step that keeps none. */
static void make_flow(const Model *m, Step *s, Flow *flow)
{
    flow->x = step_new_rows(s, m->dim);
    int32_t end = s->next ? m->stages.at[s->stage].end : s->stage ? m->stages.at[s->stage - 1].end : 0;
    const int32_t most = m->target || s->lim.tap_width == 0 ? 0 : m->n_taps;
    for (flow->n = 0; flow->n < most && m->tap[flow->n] < end; flow->n++)
        flow->tapped[flow->n] = step_new_rows(s, m->dim);
}

/* Sends rows through the host, in the order of the next stage's Flow. */
static Status send_rows(Step *s, const Flow *flow, Error *err)
{
    size_t n = (size_t) s->n_real * (size_t) flow->x->cols;
    float *at = s->carry;
    s->be->copy_out(s->be, at, flow->x->data, sizeof *at * n);
    for (int32_t j = 0; j < flow->n; j++) s->be->copy_out(s->be, at += n, flow->tapped[j]->data, sizeof *at * n);
    return step_wait(s, err);
}

static void receive_rows(Step *s, const float *carry, const Flow *flow, const int32_t sent)
{
    size_t n = (size_t) s->n_real * (size_t) flow->x->cols;
    s->be->copy_in(s->be, flow->x->data, carry, sizeof *carry * n);
    for (int32_t j = 0; j < sent; j++)
        s->be->copy_in(s->be, flow->tapped[j]->data, carry += n, sizeof *carry * n);
}

/* Makes the calls of a stage, which a backend may record. Returns whether it was cancelled. */
static bool run_layers(const Model *m, Step *s, Flow *flow, const PassOut *out, int32_t k)
{
    Backend *be = s->be;
    Tensor *x = flow->x;
    int32_t il = s->stage ? m->stages.at[s->stage - 1].end : 0, end = m->stages.at[s->stage].end;
    if (s->stage == 0) {
        step_embed(s, x, &m->embed);
        if (m->embed_scale != 1) be->scale(be, x, m->embed_scale, 0);
    }
    StepMark mark = step_mark(s);
    if (s->stage == 0) {
        if (m->family->embedded) m->family->embedded(m, s, x);
        step_reset(s, mark);
        step_trace(s, "embed", -1, x);
    }
    for (int32_t j = 0; !s->next && j < flow->n; j++) be->tap(be, flow->tapped[j], &s->rows, j, m->n_taps);
    bool stop = false;
    for (; il < m->n_layers && il < end && !stop; il++) {
        if (m->absent && m->absent[il]) continue;
        m->family->layer(m, s, il, x);
        step_trace(s, "layer", il, x);
        store_taps(m, s, flow, il, x);
        step_reset(s, mark);
        stop = cancelled(s, il);
    }
    if (!stop && !s->next) finish(m, s, out, flow, k);
    be->pass_end(be, !stop);
    return stop;
}

/* Makes or replays the calls of a stage. Returns whether it was cancelled, which a replay asks once it is queued. */
static bool run_stage(const Model *m, Step *s, Flow *flow, const PassOut *out, int32_t k)
{
    return pass_commit(s, m) ? cancelled(s, m->n_layers - 1) : run_layers(m, s, flow, out, k);
}

/* Runs the stages in turn; the last one may still compute. */
static Status run_stages(const Model *m, Step *first, PassOut *out, int32_t k, Error *err)
{
    const float *carry = NULL;
    int32_t stage = 0, sent = 0;
    for (Step *s = first; s; s = s->next, stage++) {
        Flow flow;
        s->stage = stage;
        if (!s->next) make_results(m, s, out, k);
        make_flow(m, s, &flow);
        if (carry) receive_rows(s, carry, &flow, sent);
        if (run_stage(m, s, &flow, out, k)) {
            TRY(step_wait(s, err));
            return fail(err, ST_CANCEL, "the pass was cancelled");
        }
        if (s->next) TRY(send_rows(s, &flow, err));
        carry = s->carry;
        sent = flow.n;
    }
    return ST_OK;
}

/* After a failure or a cancellation no stage is left with work: others would wait for it, or be told of its failures
 * later. */
Status model_pass(const Model *m, Step *first, PassOut *out, int32_t k, Error *err)
{
    *out = (PassOut) { 0 };
    pass_tables(first, false);
    const Status st = run_stages(m, first, out, k, err);
    if (st != ST_OK) stages_sync(&first->on, NULL);
    return st;
}

/* Hooks are for passes that run: there is nothing to cancel, and nothing to trace. */
static const Hooks *begin_prepare(Step *s)
{
    const Hooks *hooks = s->hooks;
    s->hooks = NULL;
    s->be->prepare(s->be, true);
    return hooks;
}

static void end_prepare(Step *s, const Hooks *hooks)
{
    s->be->prepare(s->be, false);
    s->hooks = hooks;
}

void model_prepare(const Model *m, Step *first, int32_t k)
{
    PassOut out = { 0 };
    int32_t stage = 0;
    pass_tables(first, false);
    for (Step *s = first; s; s = s->next) {
        Flow flow;
        s->stage = stage++;
        if (!s->be->prepare) continue;
        if (!s->next) make_results(m, s, &out, k);
        make_flow(m, s, &flow);
        const Hooks *hooks = begin_prepare(s);
        run_stage(m, s, &flow, &out, k);
        end_prepare(s, hooks);
    }
}

void model_prepare_context(const Model *m, Step *s)
{
    if (!s->be->prepare) return;
    const Hooks *hooks = begin_prepare(s);
    model_context(m, s);
    end_prepare(s, hooks);
}

void model_context(const Model *m, Step *s)
{
    Backend *be = s->be;
    s->stage = 0;
    s->host.span = SPAN_LEAST;                     /* nothing here reads the texts before it */
    pass_tables(s, true);
    Tensor *taps = step_new_rows(s, m->target->tap_width);
    if (pass_commit(s, &m->family)) return;
    be->tap_get(be, taps, &s->rows);
    Tensor *c = m->family->context(m, s, taps);
    StepMark mark = step_mark(s);
    for (int32_t il = 0; il < m->n_layers; il++) {
        m->family->context_layer(m, s, il, c);
        step_reset(s, mark);
    }
    be->pass_end(be, true);
}
