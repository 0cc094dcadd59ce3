/* ratoon inspect: what a model file holds, without running it. A format tool: it reads any GGUF or safetensors file, known family or not. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "format/gguf.h"
#include "format/safetensors.h"
#include "programs/program.h"

/* One tensor of either format. */
typedef struct { const char *name, *type, *file; bool known; Type as; int32_t n_dims; int64_t dim[SAFE_DIMS]; uint64_t bytes; const uint8_t *data; } Row;

typedef struct {
    Options     o;
    Gguf       *gguf;
    Safetensors *safe;
    Progress    bar;
    uint64_t    done;
    int32_t     bad, unread;
} Inspect;

static int32_t n_rows(const Inspect *x) { return x->gguf ? gguf_n_tensors(x->gguf) : safetensors_n(x->safe); }

static Row row_at(const Inspect *x, int32_t i)
{
    if (x->gguf) {
        const GgufTensor *t = gguf_tensor_at(x->gguf, i);
        Row r = { t->name, gguf_tensor_type_name(t), t->file, t->known, t->type, t->n_dims, { 0 }, t->bytes, t->data };
        memcpy(r.dim, t->ne, sizeof t->ne);
        return r;
    }
    const SafeTensor *t = safetensors_at(x->safe, i);
    Row r = { t->name, t->i64 ? "I64" : type_info(t->type)->name, t->file, !t->i64, t->type, t->n_dims, { 0 }, t->bytes, t->data };
    memcpy(r.dim, t->shape, sizeof t->shape);
    return r;
}

/* The number of values that are NaN or infinite; -1: the type cannot be decoded here. A broken scale breaks all values of its block, so
 * decoding finds it too. */
static int64_t count_bad(Inspect *x, const Row *r)
{
    enum { PART = 1 << 14 };
    static const char none[1];
    if (!r->known || r->as == T_I32) return r->known ? 0 : -1;
    const TypeInfo *info = type_info(r->as);
    int64_t left = (int64_t) (r->bytes / (uint64_t) info->bytes) * info->block, bad = 0;
    const uint8_t *at = r->data ? r->data : (const uint8_t *) none;
    float *y = malloc(sizeof *y * PART);
    if (!y) return -1;
    while (left > 0 && !interrupts) {
        int64_t n = left < PART ? left : PART;
        quant_decode(y, r->as, at, n);
        for (int64_t i = 0; i < n; i++) bad += !isfinite(y[i]);
        at += type_row_bytes(r->as, n);
        left -= n;
        x->done += (uint64_t) type_row_bytes(r->as, n);
        progress_to(&x->bar, x->done);
    }
    free(y);
    return bad;
}

/* Names and texts out of a file, on one line of a terminal. */
static void print_clean(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++) putchar((unsigned char) s[i] < 32 || s[i] == 127 ? '?' : s[i]);
}

static json_t *keys_json(const Inspect *x)
{
    if (!x->gguf) return safetensors_config(x->safe) ? json_deep_copy(safetensors_config(x->safe)) : json_object();
    json_t *keys = json_object();
    char text[512];
    for (int32_t i = 0; i < gguf_n_keys(x->gguf); i++) {
        size_t n = gguf_key_text(x->gguf, i, text, sizeof text);
        json_object_set_new(keys, gguf_key(x->gguf, i),
                            json_pack("{s:s s:o}", "type", gguf_type_name(gguf_key_type(x->gguf, i)), "value", json_text(text, n < sizeof text ? n : sizeof text - 1)));
    }
    return keys;
}

static void print_keys(const Inspect *x)
{
    char text[160];
    if (!x->gguf) {
        char *config = safetensors_config(x->safe) ? json_dumps(safetensors_config(x->safe), JSON_INDENT(2)) : NULL;
        printf("safetensors, %d tensors%s\n%s\n", safetensors_n(x->safe), config ? ", config.json:" : ", no config.json", config ? config : "");
        free(config);
        return;
    }
    printf("GGUF version %d, %d keys, %d tensors, %.3f GB\n\n", gguf_version(x->gguf), gguf_n_keys(x->gguf), gguf_n_tensors(x->gguf), (double) gguf_file_bytes(x->gguf) / 1e9);
    for (int32_t i = 0; i < gguf_n_keys(x->gguf); i++) {
        size_t n = gguf_key_text(x->gguf, i, text, sizeof text);
        printf("  ");
        print_clean(gguf_key(x->gguf, i), strlen(gguf_key(x->gguf, i)));
        printf(" (%s) = ", gguf_type_name(gguf_key_type(x->gguf, i)));
        print_clean(text, n < sizeof text ? n : sizeof text - 1);
        puts(n < sizeof text ? "" : "...");
    }
    putchar('\n');
}

static void print_row(const Row *r, int64_t bad, bool checked)
{
    char shape[128] = "[";
    size_t n = 1;
    for (int32_t d = 0; d < r->n_dims; d++) n += (size_t) snprintf(shape + n, sizeof shape - n, "%s%lld", d ? ", " : "", (long long) r->dim[d]);
    snprintf(shape + n, sizeof shape - n, "]");
    printf("  %-8s %-22s %12llu bytes  ", r->type, shape, (unsigned long long) r->bytes);
    print_clean(r->name, strlen(r->name));
    if (checked && bad < 0) printf("   not checked: this type cannot be decoded here");
    if (checked && bad > 0) printf("   %lld VALUES ARE NOT FINITE", (long long) bad);
    putchar('\n');
}

static json_t *row_json(const Row *r, int64_t bad, bool checked)
{
    json_t *shape = json_array(), *t;
    for (int32_t d = 0; d < r->n_dims; d++) json_array_append_new(shape, json_integer(r->dim[d]));
    t = json_pack("{s:o s:s s:o s:I}", "name", json_text(r->name, strlen(r->name)), "type", r->type, "shape", shape, "bytes", (json_int_t) r->bytes);
    if (checked) json_object_set_new(t, "not_finite", bad < 0 ? json_null() : json_integer(bad));
    return t;
}

static int inspect(Inspect *x)
{
    const Options *o = &x->o;
    json_t *rows = json_array();
    uint64_t all = 0;
    if (!o->json) print_keys(x);
    for (int32_t i = 0; i < n_rows(x); i++) all += row_at(x, i).bytes;
    if (o->check_tensors) progress_start(&x->bar, "check", all);
    for (int32_t i = 0; i < n_rows(x) && !interrupts; i++) {
        Row r = row_at(x, i);
        int64_t bad = o->check_tensors ? count_bad(x, &r) : 0;
        if (x->gguf && o->check_tensors) {
            const GgufTensor *t = gguf_tensor_at(x->gguf, i);
            gguf_drop(x->gguf, t->file, t->data, (size_t) t->bytes);
        }
        x->bad += bad > 0;
        x->unread += bad < 0;
        if (bad > 0) complain(o, "%s: tensor %s has %lld values that are not finite", r.file, r.name, (long long) bad);
        if (o->json) json_array_append_new(rows, row_json(&r, bad, o->check_tensors));
        else print_row(&r, bad, o->check_tensors);
    }
    if (o->check_tensors) progress_end(&x->bar);
    int status = interrupts ? EXIT_INTERRUPTED : x->bad ? EXIT_FAILED : EXIT_FINE;
    if (!o->json) {
        if (o->check_tensors) printf("\n%d tensors checked, %d with values that are not finite\n", n_rows(x) - x->unread, x->bad);
        json_decref(rows);
        return output_done(o) ? EXIT_FAILED : status;
    }
    json_t *j = json_pack("{s:s s:s s:o s:o}", "file", o->word[0], "format", x->gguf ? "gguf" : "safetensors", "keys", keys_json(x), "tensors", rows);
    return json_print(o, j) ? status : EXIT_FAILED;
}

static bool ends(const char *s, const char *with)
{
    size_t n = strlen(s), m = strlen(with);
    return n >= m && strcmp(s + n - m, with) == 0;
}

int cmd_inspect(int argc, char **argv)
{
    Inspect x = { 0 };
    int status;
    struct stat st;
    Error err = { 0 };
    if (!options_read(&x.o, argc, argv, &status)) return status;
    if (x.o.n_words != 1) {
        complain(&x.o, "a FILE is needed (see ratoon inspect --help)");
        return EXIT_USAGE;
    }
    hear_interrupts();
    const char *path = x.o.word[0];
    bool folder = stat(path, &st) == 0 && S_ISDIR(st.st_mode);
    bool safe = folder || ends(path, ".safetensors") || ends(path, ".json");
    Status code = safe ? safetensors_open(&x.safe, path, &err) : gguf_open(&x.gguf, path, &err);
    status = code == ST_OK ? inspect(&x) : complain(&x.o, "%s", err.text);
    gguf_close(x.gguf);
    safetensors_close(x.safe);
    return status;
}
