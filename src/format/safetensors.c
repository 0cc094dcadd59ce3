/* safetensors.c - opens Hugging Face checkpoints. A file is a length, a JSON header, and data that the header must
 * cover exactly, without gaps; all of it is untrusted. Only our own table of names is kept of the header, so that the
 * JSON tree (ten times its size) is freed before anything else is read.
 *
 *   | u64 n | JSON of n bytes: {"name": {"dtype", "shape", "data_offsets": [begin, end]}, ...} | data ... | */
#include "format/safetensors.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/check.h"
#include "format/file.h"
#include "format/file_kind.h"
#include "format/names.h"

enum {
    HEADER_MAX = 100 * 1000 * 1000,                /* the limit of the reference library */
    TENSORS_MAX = 65536, SHARDS_MAX = 1024, INDEX_MAX = 64 << 20, CONFIG_MAX = 16 << 20
};

typedef struct {
    File   file;                                   /* path NULL: parsed from memory */
    char  *name;                                   /* for messages */
    char  *names;                                  /* the names of its tensors, one after the other */
    size_t size;
} Shard;

struct Safetensors {
    char       *path;
    Shard      *shards;
    int32_t     n_shards, n;
    SafeTensor *tensors;
    NameRef    *order;                             /* [n] sorted */
    json_t     *config;
};

typedef struct { uint64_t begin, end; int32_t i; } TensorSpan;

/* ---- one tensor of a header ---- */

static const struct { const char *name; Type type; size_t bytes; } dtypes[] = {
    { "F32", T_F32, 4 }, { "F16", T_F16, 2 }, { "BF16", T_BF16, 2 }, { "I32", T_I32, 4 }, { "I64", T_I32, 8 },
    { "BOOL", T_I32, 1 },
};

#define FAIL_TENSOR(p, t, err, format, ...) \
    fail(err, ST_FORMAT, "%s: tensor '%.*s': " format, (p)->name, names_shown((t)->name), (t)->name, __VA_ARGS__)

/* Reads the dtype and the size of one value. */
static Status read_dtype(const Shard *p, SafeTensor *t, const json_t *dtype, size_t *bytes, Error *err)
{
    const char *name = json_string_value(dtype);
    if (!name) return FAIL_TENSOR(p, t, err, "dtype is missing or not a %s", "string");
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++)
        if (strcmp(name, dtypes[i].name) == 0) {
            t->type = dtypes[i].type;
            t->dtype = dtypes[i].name;
            *bytes = dtypes[i].bytes;
            return ST_OK;
        }
    return FAIL_TENSOR(p, t, err, "dtype '%.*s', expected F32, F16, BF16, I32, I64 or BOOL", names_shown(name), name);
}

/* Reads the shape; sets t->bytes to the tensor's size with values of `each` bytes. */
static Status read_shape(const Shard *p, SafeTensor *t, const json_t *shape, size_t each, Error *err)
{
    size_t n = json_array_size(shape), total = each;
    if (!json_is_array(shape)) return FAIL_TENSOR(p, t, err, "shape is missing or not a %s", "list");
    if (n > SAFE_DIMS) return FAIL_TENSOR(p, t, err, "shape has %zu dimensions, expected at most %d", n, SAFE_DIMS);
    for (size_t i = 0; i < SAFE_DIMS; i++) t->shape[i] = 1;
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_array_get(shape, i);
        if (!json_is_integer(v) || json_integer_value(v) < 1)
            return FAIL_TENSOR(p, t, err, "shape[%zu] is not an integer of at least 1", i);
        t->shape[i] = json_integer_value(v);
        if (!check_mul(&total, total, (size_t) t->shape[i]))
            return FAIL_TENSOR(p, t, err, "its size overflows at shape[%zu], which is %lld", i,
                               (long long) t->shape[i]);
    }
    t->n_dims = (int32_t) n;
    t->bytes = total;
    return ST_OK;
}

/* data: size of the data section; start: where it begins in the file. */
static Status read_offsets(const Shard *p, const SafeTensor *t, const json_t *offsets, size_t each, size_t start,
                           size_t data, TensorSpan *e, Error *err)
{
    const json_t *a = json_array_get(offsets, 0), *b = json_array_get(offsets, 1);
    if (json_array_size(offsets) != 2 || !json_is_integer(a) || !json_is_integer(b))
        return FAIL_TENSOR(p, t, err, "data_offsets is missing or not a list of %d integers", 2);
    json_int_t begin = json_integer_value(a), end = json_integer_value(b);
    if (begin < 0 || end < begin || (uint64_t) end > data)
        return FAIL_TENSOR(p, t, err, "data_offsets [%lld, %lld] are reversed or outside the %zu bytes of data",
                           (long long) begin, (long long) end, data);
    if ((uint64_t) (end - begin) != t->bytes)
        return FAIL_TENSOR(p, t, err, "data_offsets [%lld, %lld] span %lld bytes, but dtype and shape need %llu",
                           (long long) begin, (long long) end, (long long) (end - begin),
                           (unsigned long long) t->bytes);
    /* The data is used in place, so it must be aligned. start is at most the file's size, as begin is. */
    if ((start + (size_t) begin) % each != 0)
        return FAIL_TENSOR(p, t, err, "begins at byte %zu of the file, expected a multiple of %zu: check the "
                           "header length", start + (size_t) begin, each);
    e->begin = (uint64_t) begin;
    e->end = (uint64_t) end;
    return ST_OK;
}

static Status read_tensor(const Shard *p, SafeTensor *t, const json_t *entry, size_t start, size_t data, TensorSpan *e,
                          Error *err)
{
    size_t each = 1;
    if (!json_is_object(entry)) return FAIL_TENSOR(p, t, err, "its entry is not an %s", "object");
    TRY(read_dtype(p, t, json_object_get(entry, "dtype"), &each, err));
    TRY(read_shape(p, t, json_object_get(entry, "shape"), each, err));
    return read_offsets(p, t, json_object_get(entry, "data_offsets"), each, start, data, e, err);
}

/* ---- one file ---- */

static int by_begin(const void *a, const void *b)
{
    const TensorSpan *x = a, *y = b;
    return x->begin != y->begin ? (x->begin > y->begin) - (x->begin < y->begin) : (x->i > y->i) - (x->i < y->i);
}

/* The tensors must cover the data exactly. */
static Status check_extents(const Shard *p, const SafeTensor *t, TensorSpan *e, int32_t n, size_t data, Error *err)
{
    uint64_t end = 0;
    if (n > 1) qsort(e, (size_t) n, sizeof *e, by_begin);
    for (int32_t i = 0; i < n; i++) {
        if (e[i].begin != end)
            return FAIL_TENSOR(p, &t[e[i].i], err, "data_offsets begin at %llu, expected %llu: the tensors %s",
                               (unsigned long long) e[i].begin, (unsigned long long) end,
                               e[i].begin < end ? "overlap" : "leave a hole");
        end = e[i].end;
    }
    if (end != data)
        return fail(err, ST_FORMAT, "%s: %zu bytes of data, but the tensors end at %llu", p->name, data,
                    (unsigned long long) end);
    return ST_OK;
}

static Status check_metadata(const Shard *p, const json_t *metadata, Error *err)
{
    const char   *key;
    const json_t *value;
    if (!metadata) return ST_OK;
    if (!json_is_object(metadata)) return fail(err, ST_FORMAT, "%s: __metadata__ is not an object", p->name);
    json_object_foreach((json_t *) (uintptr_t) metadata, key, value)
        if (!json_is_string(value))
            return fail(err, ST_FORMAT, "%s: __metadata__ '%.*s' is not a string", p->name, names_shown(key), key);
    return ST_OK;
}

/* Puts the tensors' names into p->names and their descriptions into t and e, in the order of the header. */
static Status read_entries(Shard *p, SafeTensor *t, TensorSpan *e, const json_t *header, size_t start, size_t data,
                           Error *err)
{
    const char   *key;
    const json_t *entry;
    size_t        bytes = 1;
    int32_t       i = 0;
    json_object_foreach((json_t *) (uintptr_t) header, key, entry) bytes += strlen(key) + 1;
    char *name = p->names = malloc(bytes);
    if (!name) return fail(err, ST_MEMORY, "%s: no memory for its names", p->name);
    json_object_foreach((json_t *) (uintptr_t) header, key, entry) {
        size_t n = strlen(key);
        if (strcmp(key, "__metadata__") == 0) continue;
        if (!names_valid(key, n))
            return fail(err, ST_FORMAT, "%s: the name of tensor number %d is empty or has control characters",
                        p->name, i);
        memcpy(name, key, n + 1);
        t[i] = (SafeTensor) { .name = name, .file = p->name };
        name += n + 1;
        TRY(read_tensor(p, &t[i], entry, start, data, &e[i], err));
        e[i].i = i;
        i++;
    }
    return ST_OK;
}

static Status read_header(Safetensors *s, Shard *p, const json_t *header, size_t start, const uint8_t *image,
                          Error *err)
{
    if (!json_is_object(header)) return fail(err, ST_FORMAT, "%s: the header is not a JSON object", p->name);
    const json_t *metadata = json_object_get(header, "__metadata__");
    size_t        n = json_object_size(header) - (metadata ? 1 : 0), data = p->size - start;
    TRY(check_metadata(p, metadata, err));
    if (n > (size_t) (TENSORS_MAX - s->n))
        return fail(err, ST_FORMAT, "%s: too many tensors, expected at most %d", p->name, TENSORS_MAX);
    SafeTensor *all = realloc(s->tensors, ((size_t) s->n + n + 1) * sizeof *all);
    if (all) s->tensors = all;
    TensorSpan *extents = malloc((n + 1) * sizeof *extents);
    Status  status = all && extents ? ST_OK : fail(err, ST_MEMORY, "%s: no memory for %zu tensors", p->name, n);
    if (status == ST_OK) status = read_entries(p, all + s->n, extents, header, start, data, err);
    if (status == ST_OK) status = check_extents(p, all + s->n, extents, (int32_t) n, data, err);
    if (status == ST_OK && n > 0 && !image) status = file_map(&p->file, err);
    if (status == ST_OK) {
        const uint8_t *bytes = image ? image : p->file.map;
        for (size_t i = 0; i < n; i++) all[s->n + extents[i].i].data = bytes + start + extents[i].begin;
        s->n += (int32_t) n;
    }
    free(extents);
    return status;
}

static Status shard_bytes(const Shard *p, void *out, size_t offset, size_t n, const uint8_t *image, Error *err)
{
    if (!image) return file_read(&p->file, out, offset, n, err);
    memcpy(out, image + offset, n);
    return ST_OK;
}

/* A header length that cannot be right: another kind of file is named for what it is. */
static Status refuse_header(Shard *p, uint64_t n, const uint8_t *image, Error *err)
{
    uint8_t head[FILE_KIND_BYTES];
    size_t have = p->size < sizeof head ? p->size : sizeof head;
    TRY(shard_bytes(p, head, 0, have, image, err));
    FileKind k = file_kind(head, have);
    if (k != FILE_SAFETENSORS && k != FILE_OTHER)
        return fail(err, ST_UNSUPPORTED, "%s: is %s, expected a safetensors file", p->name, file_kind_name(k));
    return fail(err, ST_FORMAT, "%s: the header length is %llu, expected 2 to %d and no more than the %zu bytes "
                "left in the file", p->name, (unsigned long long) n, HEADER_MAX, p->size - 8);
}

/* Adds the tensors of a shard whose name, size and file (or image) are set. */
static Status shard_read(Safetensors *s, Shard *p, const uint8_t *image, Error *err)
{
    uint64_t n;
    if (p->size < 8 + 2)
        return fail(err, ST_FORMAT, "%s: has %zu bytes, expected a safetensors header of at least 10", p->name,
                    p->size);
    TRY(shard_bytes(p, &n, 0, 8, image, err));
    if (n < 2 || n > HEADER_MAX || n > p->size - 8) return refuse_header(p, n, image, err);
    char *text = malloc((size_t) n);
    if (!text)
        return fail(err, ST_MEMORY, "%s: no memory for its header of %llu bytes", p->name, (unsigned long long) n);
    json_t *header = NULL;
    Status  status = shard_bytes(p, text, 8, (size_t) n, image, err);
    if (status == ST_OK && text[0] != '{')
        status = fail(err, ST_FORMAT, "%s: the header does not begin with '{'", p->name);
    if (status == ST_OK) status = json_read(&header, text, (size_t) n, p->name, err);
    free(text);
    if (status == ST_OK) status = read_header(s, p, header, 8 + (size_t) n, image, err);
    json_decref(header);
    return status;
}

static Status shard_open(Safetensors *s, const char *path, Error *err)
{
    Shard *p = &s->shards[s->n_shards++];
    TRY(file_open(&p->file, path, NULL, err));
    p->name = p->file.path;
    p->size = p->file.size;
    return shard_read(s, p, NULL, err);
}

static void shard_close(Shard *p)
{
    if (!p->file.path) free(p->name);
    file_close(&p->file);
    free(p->names);
}

/* ---- folders ---- */

/* Returns folder/name in memory that the caller frees; the folder is the first n bytes of path, "" being the current
 * one. */
static char *path_join(const char *path, size_t n, const char *name)
{
    while (n > 1 && path[n - 1] == '/') n--;
    size_t m = strlen(name);
    char  *out = malloc(n + m + 2);
    if (!out) return NULL;
    if (n > 0) memcpy(out, path, n);
    if (n > 0 && path[n - 1] != '/') out[n++] = '/';
    memcpy(out + n, name, m + 1);
    return out;
}

/* Loads a whole small JSON file, which must be an object. If it is missing and optional, returns ST_OK with *out
 * NULL. */
static Status object_load(json_t **out, const char *path, size_t max, bool optional, Error *err)
{
    File   f;
    bool   missing;
    Status status = file_open(&f, path, &missing, err);
    *out = NULL;
    if (status != ST_OK) return missing && optional ? ST_OK : status;
    char *text = NULL;
    if (f.size > max) status = fail(err, ST_FORMAT, "%s: has %zu bytes, expected at most %zu", path, f.size, max);
    else if (!(text = malloc(f.size + 1))) status = fail(err, ST_MEMORY, "%s: no memory for %zu bytes", path, f.size);
    else status = file_read(&f, text, 0, f.size, err);
    if (status == ST_OK) status = json_read(out, text, f.size, path, err);
    if (status == ST_OK && !json_is_object(*out)) {
        json_decref(*out);
        *out = NULL;
        status = fail(err, ST_FORMAT, "%s: is not a JSON object", path);
    }
    free(text);
    file_close(&f);
    return status;
}

/* A shard must be named as a file in the same folder. */
static bool shard_name_valid(const char *name)
{
    size_t n = strlen(name);
    return names_valid(name, n) && n < 256 && !strchr(name, '/') && name[0] != '.' && n > 12 &&
           strcmp(name + n - 12, ".safetensors") == 0;
}

/* Collects the distinct file names of the index, sorted and numbered; refs point into the JSON. */
static Status index_shards(NameRef *refs, int32_t *n, const json_t *map, const char *path, Error *err)
{
    const char   *key;
    const json_t *value;
    int32_t       m = 0, distinct = 0;
    json_object_foreach((json_t *) (uintptr_t) map, key, value) {
        const char *name = json_string_value(value);
        if (!name || !shard_name_valid(name))
            return fail(err, ST_FORMAT, "%s: weight_map '%.*s' names '%.*s', expected a .safetensors file in the "
                        "same folder", path, names_shown(key), key, name ? names_shown(name) : 0, name ? name : "");
        refs[m] = (NameRef) { name, m };
        m++;
    }
    names_sort(refs, m);
    for (int32_t i = 0; i < m; i++)
        if (distinct == 0 || strcmp(refs[distinct - 1].name, refs[i].name) != 0) {
            refs[distinct] = (NameRef) { refs[i].name, distinct };
            distinct++;
        }
    if (distinct < 1 || distinct > SHARDS_MAX)
        return fail(err, ST_FORMAT, "%s: weight_map names %d files, expected 1 to %d", path, distinct, SHARDS_MAX);
    *n = distinct;
    return ST_OK;
}

static Status index_tensors(Safetensors *s, Error *err)
{
    s->order = malloc(((size_t) s->n + 1) * sizeof *s->order);
    if (!s->order) return fail(err, ST_MEMORY, "%s: no memory for %d tensors", s->path, s->n);
    for (int32_t i = 0; i < s->n; i++) s->order[i] = (NameRef) { s->tensors[i].name, i };
    const NameRef *twice = names_sort(s->order, s->n);
    if (twice)
        return fail(err, ST_FORMAT, "%s: tensor '%.*s' occurs twice", s->tensors[twice->i].file,
                    names_shown(twice->name), twice->name);
    return ST_OK;
}

/* Checks that every tensor of the index is in the file that the index names; refs[i] is the file name of shard i. */
static Status index_check(const Safetensors *s, const json_t *map, const NameRef *refs, const char *path, Error *err)
{
    const char   *key;
    const json_t *value;
    json_object_foreach((json_t *) (uintptr_t) map, key, value) {
        const SafeTensor *t = safetensors_get(s, key);
        const char       *name = json_string_value(value);
        if (!t || t->file != s->shards[names_find(refs, s->n_shards, name)].name)
            return fail(err, ST_FORMAT, "%s: weight_map '%.*s': there is no such tensor in %s", path, names_shown(key),
                        key, name);
    }
    return ST_OK;
}

static Status index_open_with(Safetensors *s, const json_t *map, NameRef *refs, const char *path, size_t folder,
                              Error *err)
{
    int32_t n = 0;
    TRY(index_shards(refs, &n, map, path, err));
    s->shards = calloc((size_t) n, sizeof *s->shards);
    if (!s->shards) return fail(err, ST_MEMORY, "%s: no memory for %d files", path, n);
    for (int32_t i = 0; i < n; i++) {
        char  *name = path_join(path, folder, refs[i].name);
        Status status = name ? shard_open(s, name, err) : fail(err, ST_MEMORY, "%s: no memory for a file name", path);
        free(name);
        TRY(status);
    }
    TRY(index_tensors(s, err));
    return index_check(s, map, refs, path, err);
}

/* path is that of an index; its first `folder` bytes are its folder. */
static Status index_open(Safetensors *s, const char *path, size_t folder, Error *err)
{
    json_t *index;
    TRY(object_load(&index, path, INDEX_MAX, false, err));
    const json_t *map = json_object_get(index, "weight_map");
    NameRef      *refs = malloc((json_object_size(map) + 1) * sizeof *refs);
    Status        status;
    if (!json_is_object(map)) status = fail(err, ST_FORMAT, "%s: weight_map is missing or not an object", path);
    else if (json_object_size(map) > TENSORS_MAX)
        status = fail(err, ST_FORMAT, "%s: weight_map has %zu tensors, expected at most %d", path,
                      json_object_size(map), TENSORS_MAX);
    else if (!refs) status = fail(err, ST_MEMORY, "%s: no memory for its list of tensors", path);
    else status = index_open_with(s, map, refs, path, folder, err);
    free(refs);
    json_decref(index);
    return status;
}

static Status single_open(Safetensors *s, const char *path, Error *err)
{
    s->shards = calloc(1, sizeof *s->shards);
    if (!s->shards) return fail(err, ST_MEMORY, "%s: no memory to open it", path);
    TRY(shard_open(s, path, err));
    return index_tensors(s, err);
}

static Status config_open(Safetensors *s, const char *path, size_t folder, Error *err)
{
    char *name = path_join(path, folder, "config.json");
    if (!name) return fail(err, ST_MEMORY, "%s: no memory for a file name", path);
    Status status = object_load(&s->config, name, CONFIG_MAX, true, err);
    free(name);
    return status;
}

/* A whole model in one file takes precedence over an index, as in the reference library. */
static Status folder_open(Safetensors *s, const char *path, Error *err)
{
    size_t n = strlen(path);
    char  *single = path_join(path, n, "model.safetensors"),
          *index = path_join(path, n, "model.safetensors.index.json");
    Status status;
    if (!single || !index) status = fail(err, ST_MEMORY, "%s: no memory for a file name", path);
    else if (access(single, F_OK) == 0) status = single_open(s, single, err);
    else if (access(index, F_OK) == 0) status = index_open(s, index, n, err);
    else status = fail(err, ST_IO, "%s: has neither model.safetensors nor model.safetensors.index.json", path);
    free(single);
    free(index);
    return status == ST_OK ? config_open(s, path, n, err) : status;
}

static Status path_open(Safetensors *s, const char *path, Error *err)
{
    struct stat st;
    size_t      n = strlen(path);
    const char *slash = strrchr(path, '/');
    size_t      folder = slash ? (size_t) (slash - path) + 1 : 0;
    if (stat(path, &st) == 0 && S_ISDIR(st.st_mode)) return folder_open(s, path, err);
    TRY(n > 5 && strcmp(path + n - 5, ".json") == 0 ? index_open(s, path, folder, err) : single_open(s, path, err));
    return config_open(s, path, folder, err);
}

static Status image_read(Safetensors *s, const void *bytes, size_t n, Error *err)
{
    s->shards = calloc(1, sizeof *s->shards);
    if (!s->shards) return fail(err, ST_MEMORY, "%s: no memory to open it", s->path);
    Shard *p = &s->shards[s->n_shards++];
    p->name = strdup(s->path);
    if (!p->name) return fail(err, ST_MEMORY, "%s: no memory to open it", s->path);
    p->size = n;
    TRY(shard_read(s, p, bytes, err));
    return index_tensors(s, err);
}

/* Opens path, or the image of n bytes if there is one. */
static Status any_open(Safetensors **out, const char *path, const void *image, size_t n, Error *err)
{
    *out = NULL;
    Safetensors *s = calloc(1, sizeof *s);
    if (!s || !(s->path = strdup(path))) {
        free(s);
        return fail(err, ST_MEMORY, "%s: no memory to open it", path);
    }
    Status status = image ? image_read(s, image, n, err) : path_open(s, path, err);
    if (status != ST_OK) safetensors_close(s);
    else *out = s;
    return status;
}

Status safetensors_open(Safetensors **out, const char *path, Error *err) { return any_open(out, path, NULL, 0, err); }

Status safetensors_parse(Safetensors **out, const void *bytes, size_t n, const char *name, Error *err)
{
    return any_open(out, name, n > 0 ? bytes : "", n, err);
}

void safetensors_close(Safetensors *s)
{
    if (!s) return;
    for (int32_t i = 0; i < s->n_shards; i++) shard_close(&s->shards[i]);
    free(s->shards);
    free(s->tensors);
    free(s->order);
    free(s->path);
    json_decref(s->config);
    free(s);
}

Status safetensors_check_files(const Safetensors *s, Error *err)
{
    for (int32_t i = 0; i < s->n_shards; i++)
        if (s->shards[i].file.path) TRY(file_check(&s->shards[i].file, err));
    return ST_OK;
}

void safetensors_want(const Safetensors *s, const char *file, const uint8_t *at, size_t n)
{
    for (int32_t i = 0; i < s->n_shards; i++)
        if (s->shards[i].file.map && s->shards[i].name == file) file_want(&s->shards[i].file, at, n);
}

void safetensors_drop(const Safetensors *s, const char *file, const uint8_t *at, size_t n)
{
    for (int32_t i = 0; i < s->n_shards; i++)
        if (s->shards[i].file.map && s->shards[i].name == file) file_drop(&s->shards[i].file, at, n);
}

const json_t *safetensors_config(const Safetensors *s) { return s->config; }
const char *safetensors_path(const Safetensors *s) { return s->path; }
int32_t safetensors_n(const Safetensors *s) { return s->n; }
const SafeTensor *safetensors_at(const Safetensors *s, int32_t i) { return &s->tensors[i]; }

const SafeTensor *safetensors_get(const Safetensors *s, const char *name)
{
    int32_t i = names_find(s->order, s->n, name);
    return i < 0 ? NULL : &s->tensors[i];
}
