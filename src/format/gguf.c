/* gguf.c - opens GGUF files. The problem: every number of a header may be false. The invariant: nothing is allocated,
 * indexed or multiplied by a number that has not been compared, by subtraction, with the bytes left in the file. */
#include "format/gguf.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/check.h"
#include "format/file_kind.h"
#include "format/gguf_file.h"

enum { HEAD_LEAST = 4 + 4 + 8 + 8, HEAD_CHUNK = 256 << 10, KEY_MIN_BYTES = 8 + 4 + 1,
       TENSOR_MIN_BYTES = 8 + 4 + 8 + 4 + 8, PLACE = 96 };

/* ---- reading the header, a little ahead of the parser ---- */

typedef struct {
    Part          *part;
    const uint8_t *image;                          /* the bytes to copy, or NULL: read from part->file */
    size_t         at, have, capacity;             /* parsed up to, copied up to, size of part->head */
    const char    *kind;                           /* what is being read, for messages: "key" or "tensor", ... */
    int64_t        index;                          /* ... its number in the list ... */
    const char    *name;                           /* ... and its name, once that is known */
    Error         *err;
} Reader;

/* "key 'general.name'" or "key number 3". */
static const char *place(const Reader *r, char out[static PLACE])
{
    if (r->name) snprintf(out, PLACE, "%s '%.*s'", r->kind, names_shown(r->name), r->name);
    else snprintf(out, PLACE, "%s number %lld", r->kind, (long long) r->index);
    return out;
}

#define FAIL_AT(r, status, format, ...) \
    fail((r)->err, status, "%s: %s: " format, (r)->part->name, place(r, (char[PLACE]) { 0 }), __VA_ARGS__)

/* Makes the next n bytes readable at head + at. */
static Status need(Reader *r, uint64_t n)
{
    if (n > r->part->size - r->at)
        return FAIL_AT(r, ST_FORMAT, "needs %llu bytes, but only %zu are left in the file", (unsigned long long) n,
                       r->part->size - r->at);
    if (n > r->capacity - r->at) return FAIL_AT(r, ST_FORMAT, "the header is longer than %d bytes", GGUF_HEAD_MAX);
    size_t end = r->at + (size_t) n;
    if (end <= r->have) return ST_OK;
    if (end < r->have + HEAD_CHUNK) end = r->capacity - r->have < HEAD_CHUNK ? r->capacity : r->have + HEAD_CHUNK;
    if (r->image) memcpy(r->part->head + r->have, r->image + r->have, end - r->have);
    else TRY(file_read(&r->part->file, r->part->head + r->have, r->have, end - r->have, r->err));
    r->have = end;
    return ST_OK;
}

static Status read_u32(Reader *r, uint32_t *out)
{
    TRY(need(r, 4));
    *out = load_u32(r->part->head + r->at);
    r->at += 4;
    return ST_OK;
}

static Status read_u64(Reader *r, uint64_t *out)
{
    TRY(need(r, 8));
    *out = load_u64(r->part->head + r->at);
    r->at += 8;
    return ST_OK;
}

/* Reads a name and the u32 after it. The copy is ours, so the name is terminated in place, over that number's first
 * byte. */
static Status read_name(Reader *r, size_t max, uint32_t *next)
{
    uint64_t n;
    TRY(read_u64(r, &n));
    if (n > max)
        return FAIL_AT(r, ST_FORMAT, "its name has %llu bytes, expected at most %zu", (unsigned long long) n, max);
    TRY(need(r, n));
    char *name = (char *) r->part->head + r->at;
    if (!names_valid(name, (size_t) n))
        return fail(r->err, ST_FORMAT, "%s: %s: its name is empty or not plain UTF-8", r->part->name,
                    place(r, (char[PLACE]) { 0 }));
    r->at += (size_t) n;
    TRY(read_u32(r, next));
    name[n] = 0;
    r->name = name;
    return ST_OK;
}

/* ---- keys ---- */

static Status skip_string(Reader *r)
{
    uint64_t n;
    TRY(read_u64(r, &n));
    if (n > GGUF_STRING_MAX)
        return FAIL_AT(r, ST_FORMAT, "a string has %llu bytes, expected at most %d", (unsigned long long) n,
                       GGUF_STRING_MAX);
    TRY(need(r, n));
    r->at += (size_t) n;
    return ST_OK;
}

static Status check_bools(const Reader *r, const uint8_t *v, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (v[i] > 1) return FAIL_AT(r, ST_FORMAT, "a bool is %d, expected 0 or 1", v[i]);
    return ST_OK;
}

/* Skips count values of type t; if they are strings, k->strings gets their offsets. */
static Status skip_values(Reader *r, Key *k, GgufType t, uint64_t count)
{
    if (t == GV_STRING) {
        for (uint64_t i = 0; i < count; i++) {
            if (k->strings) k->strings[i] = (uint32_t) (r->part->head + r->at - k->value);     /* below GGUF_HEAD_MAX */
            TRY(skip_string(r));
        }
        return ST_OK;
    }
    size_t each = (size_t) gguf_type_bytes(t);
    if (count > (r->part->size - r->at) / each)
        return FAIL_AT(r, ST_FORMAT, "%llu values of type %s, but only %zu bytes are left in the file",
                       (unsigned long long) count, gguf_type_name(t), r->part->size - r->at);
    size_t bytes = (size_t) count * each;
    TRY(need(r, bytes));
    if (t == GV_BOOL) TRY(check_bools(r, r->part->head + r->at, bytes));
    r->at += bytes;
    return ST_OK;
}

static Status read_array(Reader *r, Key *k)
{
    uint32_t elem;
    TRY(read_u32(r, &elem));
    if (elem == GV_ARRAY)
        return FAIL_AT(r, ST_FORMAT, "an array of arrays, expected an array of values (type %u)", elem);
    if (elem > GV_F64) return FAIL_AT(r, ST_FORMAT, "array of value type %u, expected 0 to %d", elem, GV_F64);
    k->elem = (GgufType) elem;
    TRY(read_u64(r, &k->count));
    if (k->elem == GV_STRING) {
        if (k->count > (r->part->size - r->at) / 8)
            return FAIL_AT(r, ST_FORMAT, "%llu strings, but only %zu bytes are left in the file",
                           (unsigned long long) k->count, r->part->size - r->at);
        /* The file may be larger than a header can be, so the bytes left do not limit the table. */
        if (k->count > (r->capacity - r->at) / 8)
            return FAIL_AT(r, ST_FORMAT, "the header is longer than %d bytes", GGUF_HEAD_MAX);
        k->strings = malloc(k->count ? (size_t) k->count * sizeof *k->strings : 1);
        if (!k->strings) return FAIL_AT(r, ST_MEMORY, "no memory for %llu strings", (unsigned long long) k->count);
    }
    return skip_values(r, k, k->elem, k->count);
}

static Status read_key(Reader *r, Key *k)
{
    uint32_t type;
    TRY(read_name(r, GGUF_KEY_BYTES_MAX, &type));
    if (type > GV_F64) return FAIL_AT(r, ST_FORMAT, "value type %u, expected 0 to %d", type, GV_F64);
    *k = (Key) { .name = r->name, .type = (GgufType) type, .elem = (GgufType) type, .count = 1,
                 .value = r->part->head + r->at };
    size_t start = r->at;
    TRY(k->type == GV_ARRAY ? read_array(r, k) : skip_values(r, k, k->type, 1));
    k->bytes = r->at - start;
    return ST_OK;
}

static Status read_keys(Reader *r, uint64_t n)
{
    Part *p = r->part;
    p->keys = calloc((size_t) n, sizeof *p->keys);
    p->order = malloc((size_t) n * sizeof *p->order);
    if (!p->keys || !p->order)
        return fail(r->err, ST_MEMORY, "%s: no memory for %llu keys", p->name, (unsigned long long) n);
    r->kind = "key";
    for (uint64_t i = 0; i < n; i++) {
        r->index = (int64_t) i;
        r->name = NULL;
        p->n_keys++;                               /* before it is read, so that a failed key's memory is freed too */
        TRY(read_key(r, &p->keys[i]));
        p->order[i] = (NameRef) { p->keys[i].name, (int32_t) i };
    }
    const NameRef *twice = names_sort(p->order, p->n_keys);
    if (twice)
        return fail(r->err, ST_FORMAT, "%s: key '%.*s' occurs twice", p->name, names_shown(twice->name), twice->name);
    return ST_OK;
}

static Status read_alignment(const Part *p, uint64_t *alignment, Error *err)
{
    *alignment = GGUF_ALIGN_DEFAULT;
    Status status = part_whole(p, "general.alignment", alignment, UINT32_MAX, err);
    if (status != ST_OK && status != ST_END) return status;
    if (*alignment < GGUF_ALIGN_MIN || *alignment > GGUF_ALIGN_MAX || (*alignment & (*alignment - 1)) != 0)
        return fail(err, ST_FORMAT, "%s: general.alignment is %llu, expected a power of two from %d to %d", p->name,
                    (unsigned long long) *alignment, GGUF_ALIGN_MIN, GGUF_ALIGN_MAX);
    return ST_OK;
}

/* ---- tensors ---- */

/* ggml's numbers for types that we cannot compute with. block 0: removed from ggml; their meaning is lost. */
typedef struct { const char *name; int32_t block, bytes; } ForeignType;
static const ForeignType foreign_types[] = {
    [4] = { "Q4_2", 0, 0 }, [5] = { "Q4_3", 0, 0 }, [31] = { "Q4_0_4_4", 0, 0 }, [32] = { "Q4_0_4_8", 0, 0 },
    [33] = { "Q4_0_8_8", 0, 0 },
    [36] = { "IQ4_NL_4_4", 0, 0 }, [37] = { "IQ4_NL_4_8", 0, 0 }, [38] = { "IQ4_NL_8_8", 0, 0 },
    [9] = { "Q8_1", 32, 36 }, [15] = { "Q8_K", 256, 292 }, [19] = { "IQ1_S", 256, 50 },
    [24] = { "I8", 1, 1 }, [25] = { "I16", 1, 2 }, [27] = { "I64", 1, 8 }, [28] = { "F64", 1, 8 },
    [29] = { "IQ1_M", 256, 56 },
    [34] = { "TQ1_0", 256, 54 }, [35] = { "TQ2_0", 256, 66 },
    [41] = { "Q1_0", 128, 18 }, [42] = { "Q2_0", 64, 18 },
};
enum { N_FOREIGN = sizeof foreign_types / sizeof *foreign_types };

const char *gguf_tensor_type_name(const GgufTensor *t)
{
    return t->known ? type_info(t->type)->name : foreign_types[t->ggml_type].name;
}

static Status read_type(const Reader *r, GgufTensor *t, int32_t *block, int32_t *bytes)
{
    t->known = type_from_ggml(&t->type, t->ggml_type);
    if (t->known) {
        *block = type_info(t->type)->block;
        *bytes = type_info(t->type)->bytes;
        return ST_OK;
    }
    if (t->ggml_type >= N_FOREIGN || !foreign_types[t->ggml_type].name)
        return FAIL_AT(r, ST_UNSUPPORTED, "type number %u is unknown, expected 0 to %d", t->ggml_type, N_FOREIGN - 1);
    const ForeignType *f = &foreign_types[t->ggml_type];
    if (f->block == 0)
        return FAIL_AT(r, ST_UNSUPPORTED, "type number %u (%s) was removed from GGUF, expected a current type",
                       t->ggml_type, f->name);
    *block = f->block;
    *bytes = f->bytes;
    return ST_OK;
}

static Status read_shape(Reader *r, GgufTensor *t, uint32_t n_dims)
{
    if (n_dims < 1 || n_dims > 4) return FAIL_AT(r, ST_FORMAT, "%u dimensions, expected 1 to 4", n_dims);
    int64_t product = 1;
    for (uint32_t i = 0; i < 4; i++) t->ne[i] = 1;
    for (uint32_t i = 0; i < n_dims; i++) {
        uint64_t ne;
        TRY(read_u64(r, &ne));
        t->ne[i] = (int64_t) ne;
        if (t->ne[i] < 1)
            return FAIL_AT(r, ST_FORMAT, "dimension %u is %lld, expected at least 1", i, (long long) t->ne[i]);
        if (__builtin_mul_overflow(product, t->ne[i], &product))
            return FAIL_AT(r, ST_FORMAT, "the product of its dimensions overflows at dimension %u, which is %lld", i,
                           (long long) t->ne[i]);
    }
    t->n_dims = (int32_t) n_dims;
    while (t->n_dims > 1 && t->ne[t->n_dims - 1] == 1) t->n_dims--;
    return ST_OK;
}

typedef struct { uint64_t offset; int32_t i; } Extent;

static Status read_tensor(Reader *r, GgufTensor *t, uint64_t *offset, uint64_t alignment)
{
    uint32_t n_dims;
    TRY(read_name(r, GGUF_NAME_MAX, &n_dims));
    *t = (GgufTensor) { .name = r->name, .file = r->part->name };
    TRY(read_shape(r, t, n_dims));
    int32_t block = 1, bytes = 0;
    TRY(read_u32(r, &t->ggml_type));
    TRY(read_type(r, t, &block, &bytes));
    if (t->ne[0] % block != 0)
        return FAIL_AT(r, ST_FORMAT, "rows of %lld values, expected a multiple of %d for type %s", (long long) t->ne[0],
                       block, gguf_tensor_type_name(t));
    size_t total = (size_t) (t->ne[0] / block);
    if (!check_mul(&total, total, (size_t) bytes) || !check_mul(&total, total, (size_t) t->ne[1]) ||
        !check_mul(&total, total, (size_t) t->ne[2]) || !check_mul(&total, total, (size_t) t->ne[3]))
        return FAIL_AT(r, ST_FORMAT, "shape [%lld, %lld, %lld, %lld] of type %s overflows", (long long) t->ne[0],
                       (long long) t->ne[1], (long long) t->ne[2], (long long) t->ne[3], gguf_tensor_type_name(t));
    t->bytes = total;
    TRY(read_u64(r, offset));
    if (*offset % alignment != 0)
        return FAIL_AT(r, ST_FORMAT, "offset %llu, expected a multiple of %llu", (unsigned long long) *offset,
                       (unsigned long long) alignment);
    return ST_OK;
}

static int by_offset(const void *a, const void *b)
{
    const Extent *x = a, *y = b;
    return x->offset != y->offset ? (x->offset > y->offset) - (x->offset < y->offset) : (x->i > y->i) - (x->i < y->i);
}

/* Checks that tensors are inside the data section and do not overlap. */
static Status check_extents(const Part *p, const GgufTensor *t, Extent *e, int32_t n, size_t data, Error *err)
{
    for (int32_t i = 0; i < n; i++)
        if (e[i].offset > data || t[i].bytes > data - e[i].offset)
            return fail(err, ST_FORMAT, "%s: tensor '%s' has %llu bytes at offset %llu, but the data section has "
                        "only %zu: the file is cut off", p->name, t[i].name, (unsigned long long) t[i].bytes,
                        (unsigned long long) e[i].offset, data);
    qsort(e, (size_t) n, sizeof *e, by_offset);
    for (int32_t i = 1; i < n; i++)
        if (e[i].offset - e[i - 1].offset < t[e[i - 1].i].bytes)
            return fail(err, ST_FORMAT, "%s: tensor '%s' at offset %llu overlaps tensor '%s'", p->name, t[e[i].i].name,
                        (unsigned long long) e[i].offset, t[e[i - 1].i].name);
    return ST_OK;
}

static Status read_tensor_list(Reader *r, GgufTensor *t, Extent *e, int32_t n)
{
    Part    *p = r->part;
    uint64_t alignment;
    TRY(read_alignment(p, &alignment, r->err));
    r->kind = "tensor";
    for (int32_t i = 0; i < n; i++) {
        r->index = i;
        r->name = NULL;
        e[i].i = i;
        TRY(read_tensor(r, &t[i], &e[i].offset, alignment));
    }
    size_t start;
    if (!check_round_up(&start, r->at, (size_t) alignment) || start > p->size) start = p->size;
    TRY(check_extents(p, t, e, n, p->size - start, r->err));
    if (n > 0 && !r->image) TRY(file_map(&p->file, r->err));
    const uint8_t *data = (r->image ? r->image : p->file.map) + (n > 0 ? start : 0);
    for (int32_t i = 0; i < n; i++) {
        t[e[i].i].data = data + e[i].offset;
        t[e[i].i].offset = start + e[i].offset;
    }
    return ST_OK;
}

static Status read_tensors(Reader *r, Gguf *g, uint64_t n)
{
    if (n > (r->part->size - r->at) / TENSOR_MIN_BYTES || n > (uint64_t) (GGUF_TENSORS_MAX - g->n_tensors))
        return fail(r->err, ST_FORMAT, "%s: n_tensors is %llu, but only %zu bytes are left and at most %d are accepted",
                    r->part->name, (unsigned long long) n, r->part->size - r->at, GGUF_TENSORS_MAX);
    GgufTensor *all = realloc(g->tensors, ((size_t) g->n_tensors + (size_t) n + 1) * sizeof *all);
    if (all) g->tensors = all;
    Extent *extents = malloc(((size_t) n + 1) * sizeof *extents);
    Status status = all && extents ? read_tensor_list(r, all + g->n_tensors, extents, (int32_t) n)
                                   : fail(r->err, ST_MEMORY, "%s: no memory for %llu tensors", r->part->name,
                                          (unsigned long long) n);
    free(extents);
    if (status == ST_OK) g->n_tensors += (int32_t) n;
    return status;
}

/* ---- one part ---- */

/* A file that is no GGUF file is named for what it is, or by its first four bytes. */
static Status check_kind(const Part *p, const uint8_t *head, size_t n, Error *err)
{
    FileKind k = file_kind(head, n);
    if (k == FILE_GGUF && n >= HEAD_LEAST) return ST_OK;
    if (k == FILE_EMPTY) return fail(err, ST_FORMAT, "%s: is empty, expected a GGUF file", p->name);
    if (k == FILE_TEXT)
        return fail(err, ST_FORMAT, "%s: is not a GGUF file (it starts with '%.*s')", p->name, n < 4 ? (int) n : 4,
                    (const char *) head);
    if (k != FILE_GGUF && k != FILE_OTHER)
        return fail(err, ST_UNSUPPORTED, "%s: is %s, expected a GGUF file", p->name, file_kind_name(k));
    if (n < HEAD_LEAST)
        return fail(err, ST_FORMAT, "%s: has %zu bytes, expected a GGUF header of at least %d", p->name, n, HEAD_LEAST);
    return fail(err, ST_FORMAT, "%s: is not a GGUF file (it starts with the bytes %02x %02x %02x %02x)", p->name,
                head[0], head[1], head[2], head[3]);
}

static Status check_version(const Part *p, uint32_t version, Error *err)
{
    uint32_t swapped = __builtin_bswap32(version);
    if (version == 2 || version == 3) return ST_OK;
    if ((version & 0xffff) == 0 && swapped >= 1 && swapped <= 3)
        return fail(err, ST_UNSUPPORTED, "%s: big-endian GGUF version %u, expected little-endian version 2 or 3",
                    p->name, swapped);
    return fail(err, ST_UNSUPPORTED, "%s: GGUF version %u, expected 2 or 3", p->name, version);
}

/* Reads the header of a part whose name, size and file (or image) are set, and adds its tensors to g. */
static Status part_read(Gguf *g, Part *p, const uint8_t *image, Error *err)
{
    Reader r = { .part = p, .image = image, .kind = "header", .err = err };
    r.capacity = p->size < GGUF_HEAD_MAX ? p->size : GGUF_HEAD_MAX;
    p->head = malloc(r.capacity + 1);              /* only pages that are written become resident */
    if (!p->head) return fail(err, ST_MEMORY, "%s: no memory for its header", p->name);
    size_t first = p->size < FILE_KIND_BYTES ? p->size : FILE_KIND_BYTES;
    TRY(need(&r, first));
    TRY(check_kind(p, p->head, first, err));
    uint32_t version = load_u32(p->head + 4);
    TRY(check_version(p, version, err));
    p->version = (int32_t) version;
    uint64_t n_tensors = load_u64(p->head + 8), n_keys = load_u64(p->head + 16);
    r.at = HEAD_LEAST;
    if (n_keys < 1 || n_keys > GGUF_KEYS_MAX || n_keys > (p->size - r.at) / KEY_MIN_BYTES)
        return fail(err, ST_FORMAT, "%s: n_kv is %llu, expected 1 to %d and room for them in %zu bytes", p->name,
                    (unsigned long long) n_keys, GGUF_KEYS_MAX, p->size - r.at);
    /* checked again after the keys; checked here so that keys are not read in vain */
    if (n_tensors > (p->size - r.at) / TENSOR_MIN_BYTES)
        return fail(err, ST_FORMAT, "%s: n_tensors is %llu, but there is no room for them in %zu bytes", p->name,
                    (unsigned long long) n_tensors, p->size - r.at);
    TRY(read_keys(&r, n_keys));
    return read_tensors(&r, g, n_tensors);
}

static Status part_open(Gguf *g, const char *path, Error *err)
{
    Part *p = &g->parts[g->n_parts++];
    TRY(file_open(&p->file, path, NULL, err));
    p->size = p->file.size;
    p->name = p->file.path;
    return part_read(g, p, NULL, err);
}

static void part_close(Part *p)
{
    for (int32_t i = 0; i < p->n_keys; i++) free(p->keys[i].strings);
    free(p->keys);
    free(p->order);
    free(p->head);
    if (!p->file.path) free(p->name);
    file_close(&p->file);
}

/* ---- whole files: PREFIX-00001-of-00003.gguf and its sisters ---- */

enum { SPLIT_TAIL = sizeof "-00001-of-00003.gguf" - 1 };

static bool split_digits(const char *s, uint32_t *out)
{
    *out = 0;
    for (int i = 0; i < 5; i++) {
        if (s[i] < '0' || s[i] > '9') return false;
        *out = *out * 10 + (uint32_t) (s[i] - '0');
    }
    return true;
}

/* no counts from 1, as in the name. */
static bool split_name(const char *path, uint32_t *no, uint32_t *count)
{
    size_t n = strlen(path);
    if (n < SPLIT_TAIL) return false;
    const char *tail = path + n - SPLIT_TAIL;
    return tail[0] == '-' && split_digits(tail + 1, no) && memcmp(tail + 6, "-of-", 4) == 0 &&
           split_digits(tail + 10, count) && memcmp(tail + 15, ".gguf", 5) == 0;
}

/* Returns the path of part no (from 1), in memory that the caller frees. */
static char *split_path(const char *path, uint32_t no, uint32_t count)
{
    size_t n = strlen(path);
    char  *out = malloc(n + 16);
    if (out) {
        memcpy(out, path, n - SPLIT_TAIL);
        snprintf(out + n - SPLIT_TAIL, SPLIT_TAIL + 16, "-%05u-of-%05u.gguf", no, count);
    }
    return out;
}

/* Checks a split.* key that must have one value; if the file is known to be a part, a missing key is an error too. */
static Status split_check(const Part *p, const char *key, uint64_t expected, Error *err)
{
    uint64_t value;
    Status   status = part_whole(p, key, &value, UINT32_MAX, err);
    if (status == ST_END)
        return fail(err, ST_FORMAT, "%s: %s is missing, expected %llu", p->name, key, (unsigned long long) expected);
    if (status != ST_OK) return status;
    if (value != expected)
        return fail(err, ST_FORMAT, "%s: %s is %llu, expected %llu", p->name, key, (unsigned long long) value,
                    (unsigned long long) expected);
    return ST_OK;
}

/* Usually only the first part names its architecture; a part that names another one belongs to another model. */
static Status split_check_model(const Part *first, const Part *p, Error *err)
{
    const Key *a = part_key(first, "general.architecture"), *b = part_key(p, "general.architecture");
    if (a && b && (a->type != b->type || a->bytes != b->bytes || memcmp(a->value, b->value, a->bytes) != 0))
        return fail(err, ST_FORMAT, "%s: general.architecture differs from that of %s: a part of another model",
                    p->name, first->name);
    return ST_OK;
}

static Status split_open_rest(Gguf *g, const char *path, uint32_t count, Error *err)
{
    uint64_t total = 0;
    Status   has_total = part_whole(&g->parts[0], "split.tensors.count", &total, INT32_MAX, err);
    if (has_total != ST_OK && has_total != ST_END) return has_total;
    TRY(split_check(&g->parts[0], "split.no", 0, err));
    for (uint32_t i = 1; i < count; i++) {
        char *name = split_path(path, i + 1, count);
        if (!name) return fail(err, ST_MEMORY, "%s: no memory for the name of part %u", path, i + 1);
        Status status = part_open(g, name, err);
        free(name);
        TRY(status);
        const Part *p = &g->parts[i];
        TRY(split_check(p, "split.no", i, err));
        TRY(split_check(p, "split.count", count, err));
        if (has_total == ST_OK && part_key(p, "split.tensors.count"))
            TRY(split_check(p, "split.tensors.count", total, err));
        TRY(split_check_model(&g->parts[0], p, err));
    }
    if (has_total == ST_OK && total != (uint64_t) g->n_tensors)
        return fail(err, ST_FORMAT, "%s: split.tensors.count is %llu, but the %u parts have %d tensors",
                    g->parts[0].name, (unsigned long long) total, count, g->n_tensors);
    return ST_OK;
}

static Status parts_open(Gguf *g, const char *path, Error *err)
{
    uint32_t no = 1, of = 1;
    bool     split = split_name(path, &no, &of);
    if (split && (of < 1 || of > GGUF_PARTS_MAX || no < 1 || no > of))
        return fail(err, ST_FORMAT, "%s: part %u of %u by its name, expected 1 to %d parts counted from 1", path, no,
                    of, GGUF_PARTS_MAX);
    g->parts = calloc(of, sizeof *g->parts);
    char *first = split ? split_path(path, 1, of) : strdup(path);
    Status status = g->parts && first ? part_open(g, first, err)
                                      : fail(err, ST_MEMORY, "%s: no memory to open it", path);
    free(first);
    TRY(status);
    const Part *p = &g->parts[0];
    if (of > 1) TRY(split_check(p, "split.count", of, err));
    uint64_t count = 1;
    status = part_whole(p, "split.count", &count, UINT32_MAX, err);
    if (status != ST_OK && status != ST_END) return status;
    if (count != of)
        return fail(err, ST_FORMAT, "%s: split.count is %llu, but by its name this is part 1 of %u", p->name,
                    (unsigned long long) count, of);
    return of > 1 ? split_open_rest(g, path, of, err) : ST_OK;
}

static Status index_tensors(Gguf *g, Error *err)
{
    g->order = malloc(((size_t) g->n_tensors + 1) * sizeof *g->order);
    if (!g->order) return fail(err, ST_MEMORY, "%s: no memory for %d tensors", gguf_path(g), g->n_tensors);
    for (int32_t i = 0; i < g->n_tensors; i++) g->order[i] = (NameRef) { g->tensors[i].name, i };
    const NameRef *twice = names_sort(g->order, g->n_tensors);
    if (twice) return fail(err, ST_FORMAT, "%s: tensor '%s' occurs twice", g->tensors[twice->i].file, twice->name);
    return ST_OK;
}

Status gguf_open(Gguf **out, const char *path, Error *err)
{
    *out = NULL;
    Gguf *g = calloc(1, sizeof *g);
    if (!g) return fail(err, ST_MEMORY, "%s: no memory to open it", path);
    Status status = parts_open(g, path, err);
    if (status == ST_OK) status = index_tensors(g, err);
    if (status != ST_OK) gguf_close(g);
    else *out = g;
    return status;
}

static Status image_read(Gguf *g, const void *bytes, size_t n, const char *name, Error *err)
{
    g->parts = calloc(1, sizeof *g->parts);
    if (!g->parts) return fail(err, ST_MEMORY, "%s: no memory to open it", name);
    Part *p = &g->parts[g->n_parts++];
    p->name = strdup(name);
    if (!p->name) return fail(err, ST_MEMORY, "%s: no memory to open it", name);
    p->size = n;
    TRY(part_read(g, p, bytes, err));
    return index_tensors(g, err);
}

Status gguf_parse(Gguf **out, const void *bytes, size_t n, const char *name, Error *err)
{
    *out = NULL;
    Gguf *g = calloc(1, sizeof *g);
    if (!g) return fail(err, ST_MEMORY, "%s: no memory to open it", name);
    Status status = image_read(g, bytes, n, name, err);
    if (status != ST_OK) gguf_close(g);
    else *out = g;
    return status;
}

void gguf_close(Gguf *g)
{
    if (!g) return;
    for (int32_t i = 0; i < g->n_parts; i++) part_close(&g->parts[i]);
    free(g->parts);
    free(g->tensors);
    free(g->order);
    free(g);
}

Status gguf_check_files(const Gguf *g, Error *err)
{
    for (int32_t i = 0; i < g->n_parts; i++)
        if (g->parts[i].file.path) TRY(file_check(&g->parts[i].file, err));
    return ST_OK;
}

const char *gguf_path(const Gguf *g) { return g->parts[0].name; }
int32_t gguf_version(const Gguf *g) { return g->parts[0].version; }
int32_t gguf_n_tensors(const Gguf *g) { return g->n_tensors; }
const GgufTensor *gguf_tensor_at(const Gguf *g, int32_t i) { return &g->tensors[i]; }

uint64_t gguf_file_bytes(const Gguf *g)
{
    uint64_t sum = 0;
    for (int32_t i = 0; i < g->n_parts; i++) sum += g->parts[i].size;
    return sum;
}

int64_t gguf_changed(const Gguf *g)
{
    int64_t newest = 0;
    for (int32_t i = 0; i < g->n_parts; i++) {
        int64_t at = (int64_t) g->parts[i].file.changed.tv_sec * 1000000000 + g->parts[i].file.changed.tv_nsec;
        if (at > newest) newest = at;
    }
    return newest;
}

const GgufTensor *gguf_tensor(const Gguf *g, const char *name)
{
    int32_t i = names_find(g->order, g->n_tensors, name);
    return i < 0 ? NULL : &g->tensors[i];
}

void gguf_want(const Gguf *g, const char *file, const uint8_t *at, size_t n)
{
    for (int32_t i = 0; i < g->n_parts; i++)
        if (g->parts[i].file.map && g->parts[i].name == file) file_want(&g->parts[i].file, at, n);
}

void gguf_drop(const Gguf *g, const char *file, const uint8_t *at, size_t n)
{
    for (int32_t i = 0; i < g->n_parts; i++)
        if (g->parts[i].file.map && g->parts[i].name == file) file_drop(&g->parts[i].file, at, n);
}
