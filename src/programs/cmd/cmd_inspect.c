/* ratoon inspect: lists the contents of a model file without running it. A format tool: it reads any GGUF or
 * safetensors file, of known families or not. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/path.h"
#include "format/gguf.h"
#include "format/safetensors.h"
#include "programs/advice.h"
#include "programs/hub/hub_cache.h"
#include "programs/hub/hub_remote.h"
#include "programs/program.h"

/* A tensor of either format. */
typedef struct {
    const char *name, *type, *file;
    bool known;
    Type as;
    int32_t n_dims;
    int64_t dim[SAFE_DIMS];
    uint64_t bytes;
    const uint8_t *data;
} Row;

typedef struct {
    Options     o;
    Gguf       *gguf;
    Safetensors *safe;
    Progress    bar;
    uint64_t    done;
    int32_t     bad, unread;
    char        path[HUB_PATH];                    /* what the word means */
    HubRemote   remote;                            /* the header of a model that is not here */
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
    const bool known = t->type != T_I32 || strcmp(t->dtype, "I32") == 0;
    Row r = { t->name, t->dtype, t->file, known, t->type, t->n_dims, { 0 }, t->bytes, t->data };
    memcpy(r.dim, t->shape, sizeof t->shape);
    return r;
}

/* Counts NaN and infinite values; -1: the type cannot be decoded here. A bad scale makes all values of its block bad,
 * so decoding finds it too. */
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

/* Prints a name or text from a file on one line. */
static void print_line(const char *s, size_t n)
{
    for (size_t from = 0, i = 0; i <= n; i++) {
        if (i < n && (unsigned char) s[i] >= 32 && s[i] != 127) continue;
        text_show(stdout, s + from, i - from);
        if (i < n) putchar('?');
        from = i + 1;
    }
}

/* JSON has no NaN and no infinity: null. */
static json_t *real_json(double v) { return isfinite(v) ? json_real(v) : json_null(); }

/* With as few digits as tell it from its neighbours: 1e-06. */
static json_t *float_json(float v)
{
    char text[32] = "0";
    for (int digits = 6; digits <= 9; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, (double) v);
        if (strtof(text, NULL) == v) break;
    }
    return real_json(strtod(text, NULL));
}

#define READ(type, at) (*(type *) memcpy(&(type) { 0 }, at, sizeof(type)))

/* A scalar or string of a checked file; *bytes: what it takes there. */
static json_t *value_json(GgufType t, const uint8_t *at, size_t *bytes)
{
    static const size_t sizes[] = { [GV_U8] = 1, [GV_I8] = 1, [GV_U16] = 2, [GV_I16] = 2, [GV_U32] = 4, [GV_I32] = 4,
                                    [GV_F32] = 4, [GV_BOOL] = 1, [GV_STRING] = 8, [GV_U64] = 8, [GV_I64] = 8,
                                    [GV_F64] = 8 };
    *bytes = t == GV_STRING ? 8 + (size_t) READ(uint64_t, at) : sizes[t];
    switch (t) {
    case GV_U8:     return json_integer(at[0]);
    case GV_I8:     return json_integer(READ(int8_t, at));
    case GV_U16:    return json_integer(READ(uint16_t, at));
    case GV_I16:    return json_integer(READ(int16_t, at));
    case GV_U32:    return json_integer(READ(uint32_t, at));
    case GV_I32:    return json_integer(READ(int32_t, at));
    case GV_U64:    return at[7] & 0x80 ? json_real((double) READ(uint64_t, at)) : json_integer(READ(int64_t, at));
    case GV_I64:    return json_integer(READ(int64_t, at));
    case GV_F32:    return float_json(READ(float, at));
    case GV_F64:    return real_json(READ(double, at));
    case GV_BOOL:   return json_boolean(at[0]);
    case GV_STRING: return json_text((const char *) at + 8, *bytes - 8);
    default:        return json_null();
    }
}

/* A long array is cut: its length is told. */
static json_t *array_json(const uint8_t *at)
{
    enum { SHOWN = 32 };
    json_t *values = json_array();
    GgufType t = (GgufType) READ(uint32_t, at);
    uint64_t n = READ(uint64_t, at + 4);
    size_t bytes;
    at += 12;
    for (uint64_t i = 0; i < n && i < SHOWN; i++, at += bytes) json_array_append_new(values, value_json(t, at, &bytes));
    return json_pack("{s:s s:s s:I s:o}", "type", "array", "items", gguf_type_name(t), "length", (json_int_t) n,
                     "value", values);
}

static json_t *keys_json(const Inspect *x)
{
    if (!x->gguf) return safetensors_config(x->safe) ? json_deep_copy(safetensors_config(x->safe)) : json_object();
    json_t *keys = json_object();
    for (int32_t i = 0; i < gguf_n_keys(x->gguf); i++) {
        size_t n;
        GgufType t = gguf_key_type(x->gguf, i);
        const uint8_t *at = gguf_key_raw(x->gguf, i, &n);
        json_object_set_new(keys, gguf_key(x->gguf, i),
                            t == GV_ARRAY ? array_json(at) : json_pack("{s:s s:o}", "type", gguf_type_name(t), "value",
                                                                       value_json(t, at, &n)));
    }
    return keys;
}

static void print_keys(const Inspect *x)
{
    char text[160];
    if (!x->gguf) {
        char *config = safetensors_config(x->safe) ? json_dumps(safetensors_config(x->safe), JSON_INDENT(2)) : NULL;
        printf("safetensors, %d tensors%s\n", safetensors_n(x->safe), config ? ", config.json:" : ", no config.json");
        if (config) text_show(stdout, config, strlen(config));
        putchar('\n');
        free(config);
        return;
    }
    printf("GGUF version %d, %d keys, %d tensors, %.3f GB\n\n", gguf_version(x->gguf), gguf_n_keys(x->gguf),
           gguf_n_tensors(x->gguf), (double) gguf_file_bytes(x->gguf) / 1e9);
    for (int32_t i = 0; i < gguf_n_keys(x->gguf); i++) {
        size_t n = gguf_key_text(x->gguf, i, text, sizeof text);
        printf("  ");
        print_line(gguf_key(x->gguf, i), strlen(gguf_key(x->gguf, i)));
        printf(" (%s) = ", gguf_type_name(gguf_key_type(x->gguf, i)));
        print_line(text, n < sizeof text ? n : sizeof text - 1);
        puts(n < sizeof text ? "" : "...");
    }
    putchar('\n');
}

static void print_row(const Row *r, int64_t bad, bool checked)
{
    char shape[128] = "[";
    size_t n = 1;
    for (int32_t d = 0; d < r->n_dims; d++)
        n += (size_t) snprintf(shape + n, sizeof shape - n, "%s%lld", d ? ", " : "", (long long) r->dim[d]);
    snprintf(shape + n, sizeof shape - n, "]");
    printf("  %-8s %-22s %12llu bytes  ", r->type, shape, (unsigned long long) r->bytes);
    print_line(r->name, strlen(r->name));
    if (checked && bad < 0) printf("   not checked: this type cannot be decoded here");
    if (checked && bad > 0) printf("   %lld VALUES ARE NOT FINITE", (long long) bad);
    putchar('\n');
}

static json_t *row_json(const Row *r, int64_t bad, bool checked)
{
    json_t *shape = json_array(), *t;
    for (int32_t d = 0; d < r->n_dims; d++) json_array_append_new(shape, json_integer(r->dim[d]));
    t = json_pack("{s:o s:s s:o s:I}", "name", json_text(r->name, strlen(r->name)), "type", r->type, "shape", shape,
                  "bytes", (json_int_t) r->bytes);
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
        if (o->check_tensors)
            printf("\n%d tensors checked, %d with values that are not finite\n", n_rows(x) - x->unread, x->bad);
        json_decref(rows);
        return output_done(o) ? EXIT_FAILED : status;
    }
    json_t *j = json_pack("{s:s s:s s:o s:o}", "file", o->word[0], "format", x->gguf ? "gguf" : "safetensors", "keys",
                          keys_json(x), "tensors", rows);
    return json_print(o, j) ? status : EXIT_FAILED;
}

/* hf:ORG/NAME[:QUANT] is a file on this machine, or else a stub with the header of the hub's. */
static bool locate(Inspect *x)
{
    const char *name = x->o.word[0];
    if (!hub_prefix(name))
        return snprintf(x->path, HUB_PATH, "%s", name) < HUB_PATH || complain(&x->o, "the path is too long") == 0;
    if (hub_find_local(x->path, name, HUB_TARGET)) return true;
    if (x->o.check_tensors)
        return complain(&x->o, "%s: is not on this machine, and --check-tensors needs all of it (ratoon pull)",
                        name) == 0;
    if (!hub_remote_open(&x->remote, &x->o, name, HUB_TARGET)) return false;
    strcpy(x->path, x->remote.path);
    return true;
}

static int inspect_file(Inspect *x)
{
    Error err = { 0 };
    bool safe = is_folder(x->path) || has_suffix(x->path, ".safetensors") || has_suffix(x->path, ".json");
    Status code = safe ? safetensors_open(&x->safe, x->path, &err) : gguf_open(&x->gguf, x->path, &err);
    int status = code == ST_OK ? inspect(x) : complain_file(&x->o, err.text, x->path, AS_GGUF);
    gguf_close(x->gguf);
    safetensors_close(x->safe);
    return status;
}

int cmd_inspect(int argc, char **argv)
{
    Inspect x = { 0 };
    int status;
    if (!options_read(&x.o, argc, argv, &status)) return status;
    if (x.o.n_words != 1) {
        complain(&x.o, "a FILE is needed (see ratoon inspect --help)");
        return EXIT_USAGE;
    }
    hear_interrupts();
    status = locate(&x) ? inspect_file(&x) : EXIT_FAILED;
    hub_remote_close(&x.remote);
    return status;
}
