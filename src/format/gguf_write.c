/* gguf_write.c - writes GGUF v3 files. Keys and tensor infos are collected in memory and written before the first data
 * (or at the end); the first failure sticks, later calls do nothing, and gguf_write_close reports it. This file refuses
 * everything that the reader would refuse: a file that was kept can be opened. */
#include <stdio.h>
#include <stdlib.h>

#include "base/bytes.h"
#include "base/check.h"
#include "base/save.h"
#include "format/gguf_file.h"

typedef struct {
    char     name[GGUF_NAME_MAX + 1];
    int32_t  type, n_dims;                         /* type: ggml's number */
    int64_t  ne[4];
    uint64_t bytes;
} OutTensor;


struct GgufWriter {
    char      *path;
    Save       save;
    Bytes      keys;                               /* in the byte layout of the file */
    char     **names;                              /* [n_keys] */
    OutTensor *tensors;
    int32_t    n_keys, n_tensors;
    bool       started;                            /* the header has been written */
    int32_t    current;                            /* the tensor whose data comes next ... */
    uint64_t   done;                               /* ... and how much of it has been written */
    Error      error;                              /* the first one */
};

#define STICK(w, status, format, ...) \
    do { if ((w)->error.code == ST_OK) fail(&(w)->error, status, "%s: " format, (w)->path, __VA_ARGS__); } while (0)

Status gguf_write_open(GgufWriter **out, const char *path, Error *err)
{
    *out = NULL;
    GgufWriter *w = calloc(1, sizeof *w);
    if (w) w->path = strdup(path);
    Status status = w && w->path ? save_open(&w->save, path, SAVE_SHARED, err)
                                 : fail(err, ST_MEMORY, "%s: no memory to write it", path);
    if (status != ST_OK) {
        gguf_write_close(w, false, NULL);
        return status;
    }
    *out = w;
    return ST_OK;
}

/* ---- keys ---- */

static void put(GgufWriter *w, const void *bytes, size_t n)
{
    size_t end;
    if (w->error.code != ST_OK) return;
    if (!check_add(&end, w->keys.n, n) || end > GGUF_HEAD_MAX) {
        STICK(w, ST_ARG, "keys of more than %d bytes", GGUF_HEAD_MAX);
        return;
    }
    bytes_put(&w->keys, bytes, n);
    if (w->keys.failed) STICK(w, ST_MEMORY, "no memory for %zu bytes of keys", end);
}

static void put_u32(GgufWriter *w, uint32_t v) { put(w, &v, sizeof v); }
static void put_u64(GgufWriter *w, uint64_t v) { put(w, &v, sizeof v); }

static void put_string(GgufWriter *w, const char *s, size_t n)
{
    if (n > GGUF_STRING_MAX) STICK(w, ST_ARG, "a string of %zu bytes, expected at most %d", n, GGUF_STRING_MAX);
    put_u64(w, n);
    put(w, s, n);
}

/* Writes the name and type of a key; its value follows. */
static void put_key(GgufWriter *w, const char *key, GgufType type)
{
    size_t n = strlen(key);
    if (w->error.code != ST_OK) return;
    if (w->started) STICK(w, ST_ARG, "key '%.*s' comes after the first data", names_shown(key), key);
    else if (n > GGUF_KEY_BYTES_MAX || !names_valid(key, n))
        STICK(w, ST_ARG, "key number %d is empty, too long or not plain UTF-8", w->n_keys);
    else if (strcmp(key, "general.alignment") == 0)
        STICK(w, ST_ARG, "key '%s' cannot be written: the alignment is %d", key, GGUF_ALIGN_DEFAULT);
    else if (w->n_keys == GGUF_KEYS_MAX)
        STICK(w, ST_ARG, "more than %d keys", GGUF_KEYS_MAX);
    if (w->error.code != ST_OK) return;
    char **names = realloc(w->names, ((size_t) w->n_keys + 1) * sizeof *names);
    if (names) w->names = names;
    if (!names || !(names[w->n_keys] = strdup(key))) {
        STICK(w, ST_MEMORY, "no memory for key number %d", w->n_keys);
        return;
    }
    w->n_keys++;
    put_string(w, key, n);
    put_u32(w, type);
}

static void put_array(GgufWriter *w, const char *key, GgufType elem, size_t count)
{
    put_key(w, key, GV_ARRAY);
    put_u32(w, elem);
    put_u64(w, count);
}

void gguf_write_u32(GgufWriter *w, const char *key, uint32_t v) { put_key(w, key, GV_U32); put_u32(w, v); }
void gguf_write_f32(GgufWriter *w, const char *key, float v) { put_key(w, key, GV_F32); put(w, &v, sizeof v); }
void gguf_write_bool(GgufWriter *w, const char *key, bool v) { put_key(w, key, GV_BOOL); put(w, &(uint8_t) { v }, 1); }
void gguf_write_str(GgufWriter *w, const char *key, const char *s, size_t n)
{
    put_key(w, key, GV_STRING);
    put_string(w, s, n);
}

void gguf_write_i32s(GgufWriter *w, const char *key, const int32_t *v, size_t n)
{
    put_array(w, key, GV_I32, n);
    for (size_t i = 0; i < n; i++) put(w, &v[i], sizeof v[i]);
}

void gguf_write_f32s(GgufWriter *w, const char *key, const float *v, size_t n)
{
    put_array(w, key, GV_F32, n);
    for (size_t i = 0; i < n; i++) put(w, &v[i], sizeof v[i]);
}

void gguf_write_bools(GgufWriter *w, const char *key, const bool *v, size_t n)
{
    put_array(w, key, GV_BOOL, n);
    for (size_t i = 0; i < n; i++) put(w, &(uint8_t) { v[i] }, 1);
}

void gguf_write_strs(GgufWriter *w, const char *key, const char *const *s, const size_t *n, size_t count)
{
    put_array(w, key, GV_STRING, count);
    for (size_t i = 0; i < count; i++) put_string(w, s[i], n[i]);
}

void gguf_write_key_of(GgufWriter *w, const Gguf *g, int32_t i)
{
    size_t         n;
    const uint8_t *value = gguf_key_raw(g, i, &n);
    const char    *key = gguf_key(g, i);
    if (strcmp(key, "general.alignment") == 0 || strncmp(key, "split.", 6) == 0) return;
    put_key(w, key, gguf_key_type(g, i));
    put(w, value, n);
}

/* ---- tensors ---- */

/* Returns false, with the error stored, if a reader would not accept the tensor. */
static bool tensor_describe(GgufWriter *w, OutTensor *o, const char *name, Type t, int32_t n_dims, const int64_t *ne)
{
    size_t n = strlen(name), total;
    if (w->started) STICK(w, ST_ARG, "tensor '%.*s' comes after the first data", names_shown(name), name);
    else if (n > GGUF_NAME_MAX || !names_valid(name, n))
        STICK(w, ST_ARG, "tensor number %d: its name is empty, too long or not plain UTF-8", w->n_tensors);
    else if (n_dims < 1 || n_dims > 4)
        STICK(w, ST_ARG, "tensor '%s' has %d dimensions, expected 1 to 4", name, n_dims);
    else if (w->n_tensors == GGUF_TENSORS_MAX)
        STICK(w, ST_ARG, "more than %d tensors", GGUF_TENSORS_MAX);
    if (w->error.code != ST_OK) return false;
    const TypeInfo *type = type_info(t);
    *o = (OutTensor) { .type = type->ggml, .n_dims = n_dims, .ne = { 1, 1, 1, 1 } };
    memcpy(o->name, name, n);
    for (int32_t i = 0; i < n_dims; i++) o->ne[i] = ne[i];
    if (o->ne[0] < 1 || o->ne[1] < 1 || o->ne[2] < 1 || o->ne[3] < 1 || o->ne[0] % type->block != 0 || o->type < 0 ||
        !check_mul(&total, (size_t) (o->ne[0] / type->block), (size_t) type->bytes) ||
        !check_mul(&total, total, (size_t) o->ne[1]) || !check_mul(&total, total, (size_t) o->ne[2]) ||
        !check_mul(&total, total, (size_t) o->ne[3]) || total > INT64_MAX / 2) {
        STICK(w, ST_ARG, "tensor '%s' of type %s has shape [%lld, %lld, %lld, %lld], expected positive sizes and rows "
              "of a multiple of %d", name, type->name, (long long) o->ne[0], (long long) o->ne[1], (long long) o->ne[2],
              (long long) o->ne[3], type->block);
        return false;
    }
    o->bytes = total;
    return true;
}

void gguf_write_tensor(GgufWriter *w, const char *name, Type t, int32_t n_dims, const int64_t *ne)
{
    OutTensor o;
    if (w->error.code != ST_OK || !tensor_describe(w, &o, name, t, n_dims, ne)) return;
    OutTensor *tensors = realloc(w->tensors, ((size_t) w->n_tensors + 1) * sizeof *tensors);
    if (!tensors) {
        STICK(w, ST_MEMORY, "no memory for tensor '%s'", name);
        return;
    }
    w->tensors = tensors;
    tensors[w->n_tensors++] = o;
}

/* ---- the file ---- */

static void out(GgufWriter *w, const void *bytes, size_t n)
{
    if (w->error.code == ST_OK && n > 0 && fwrite(bytes, 1, n, w->save.file) != n)
        STICK(w, ST_IO, "%zu bytes cannot be written: %m", n);
}

static void out_u32(GgufWriter *w, uint32_t v) { out(w, &v, sizeof v); }
static void out_u64(GgufWriter *w, uint64_t v) { out(w, &v, sizeof v); }

/* Writes zeros from position `at` to the next multiple of the alignment. */
static void out_pad(GgufWriter *w, uint64_t at)
{
    static const uint8_t zeros[GGUF_ALIGN_DEFAULT];
    out(w, zeros, (size_t) (-at % GGUF_ALIGN_DEFAULT));
}

static void check_names(GgufWriter *w)
{
    int32_t  most = w->n_keys > w->n_tensors ? w->n_keys : w->n_tensors;
    NameRef *refs = malloc(((size_t) most + 1) * sizeof *refs);
    if (!refs) {
        STICK(w, ST_MEMORY, "no memory for %d names", most);
        return;
    }
    for (int32_t i = 0; i < w->n_keys; i++) refs[i] = (NameRef) { w->names[i], i };
    const NameRef *twice = names_sort(refs, w->n_keys);
    if (twice) STICK(w, ST_ARG, "key '%.*s' was written twice", names_shown(twice->name), twice->name);
    for (int32_t i = 0; i < w->n_tensors; i++) refs[i] = (NameRef) { w->tensors[i].name, i };
    twice = names_sort(refs, w->n_tensors);
    if (twice) STICK(w, ST_ARG, "tensor '%s' was written twice", twice->name);
    free(refs);
}

static void start(GgufWriter *w)
{
    if (w->started) return;
    w->started = true;
    if (w->n_keys == 0) STICK(w, ST_ARG, "no keys, expected at least %s", "general.architecture");
    check_names(w);
    out(w, "GGUF", 4);
    out_u32(w, 3);
    out_u64(w, (uint64_t) w->n_tensors);
    out_u64(w, (uint64_t) w->n_keys);
    out(w, w->keys.at, w->keys.n);
    uint64_t at = 24 + w->keys.n, offset = 0;
    for (int32_t i = 0; i < w->n_tensors; i++) {
        const OutTensor *t = &w->tensors[i];
        size_t           n = strlen(t->name);
        out_u64(w, n);
        out(w, t->name, n);
        out_u32(w, (uint32_t) t->n_dims);
        out(w, t->ne, (size_t) t->n_dims * sizeof *t->ne);
        out_u32(w, (uint32_t) t->type);
        out_u64(w, offset);
        at += 8 + n + 4 + (size_t) t->n_dims * sizeof *t->ne + 4 + 8;
        if (__builtin_add_overflow(offset, t->bytes, &offset) || offset > INT64_MAX / 2)
            STICK(w, ST_ARG, "tensor '%s' makes the file too large", t->name);
        offset += -offset % GGUF_ALIGN_DEFAULT;
    }
    if (at > GGUF_HEAD_MAX)
        STICK(w, ST_ARG, "a header of %llu bytes, expected at most %d", (unsigned long long) at, GGUF_HEAD_MAX);
    out_pad(w, at);
}

void gguf_write_data(GgufWriter *w, const void *bytes, size_t n)
{
    start(w);
    for (const uint8_t *at = bytes; n > 0 && w->error.code == ST_OK; ) {
        if (w->current == w->n_tensors) {
            STICK(w, ST_ARG, "%zu bytes of data too much behind the last of %d tensors", n, w->n_tensors);
            return;
        }
        uint64_t left = w->tensors[w->current].bytes - w->done;
        size_t   piece = n < left ? n : (size_t) left;
        out(w, at, piece);
        at += piece;
        n -= piece;
        w->done += piece;
        if (w->done == w->tensors[w->current].bytes) {
            out_pad(w, w->done);
            w->done = 0;
            w->current++;
        }
    }
}

bool gguf_write_failed(const GgufWriter *w) { return w->error.code != ST_OK; }

static void finish(GgufWriter *w)
{
    start(w);
    if (w->current < w->n_tensors)
        STICK(w, ST_ARG, "tensor '%s' has %llu of %llu bytes", w->tensors[w->current].name,
              (unsigned long long) w->done, (unsigned long long) w->tensors[w->current].bytes);
    bool complete = w->error.code == ST_OK;
    save_close(&w->save, w->path, complete, complete ? &w->error : NULL);
}

Status gguf_write_close(GgufWriter *w, bool keep, Error *err)
{
    if (!w) return ST_OK;
    if (keep) finish(w);
    else if (w->save.file) save_close(&w->save, w->path, false, NULL);
    Status status = keep ? w->error.code : ST_OK;
    if (status != ST_OK && err) *err = w->error;
    for (int32_t i = 0; i < w->n_keys; i++) free(w->names[i]);
    free(w->names);
    free(w->tensors);
    bytes_free(&w->keys);
    free(w->path);
    free(w);
    return status;
}
