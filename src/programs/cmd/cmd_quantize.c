/* ratoon quantize IN.gguf OUT.gguf TYPE: the same model in fewer bytes. Keys are copied; each tensor is decoded and
 * encoded again row by row, or copied if it has its type already. A format tool: it works on files, and of the model
 * it only asks what the recipes ask. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/check.h"
#include "base/pool.h"
#include "format/gguf.h"
#include "format/recipe.h"
#include "programs/advice.h"
#include "programs/hub/hub_fetch.h"
#include "programs/program.h"
#include "programs/progress.h"
#include "programs/suggest.h"

static const char FILE_TYPE[] = "general.file_type";

enum { BATCH_VALUES = 4 << 20, TASK_VALUES = 1 << 16 };

/* One batch: rows of one tensor, decoded and encoded by all threads. */
typedef struct {
    const uint8_t *in;
    uint8_t       *out;
    Type           from, to;
    int64_t        cols, rows, rows_task;
    const float   *factor;                  /* that a plane's values are divided by; NULL: none */
    int64_t        row0, plane_rows;        /* of the tensor: where the batch begins, rows of a plane */
    float         *values;                  /* [threads, cols] */
    int64_t       *bad;                     /* [threads] first row with a value that the type cannot hold, or `rows` */
} Batch;

static void encode_rows(void *arg, int32_t task, int32_t thread)
{
    Batch *b = arg;
    size_t in_bytes = type_row_bytes(b->from, b->cols), out_bytes = type_row_bytes(b->to, b->cols);
    float *x = b->values + (size_t) thread * (size_t) b->cols;
    int64_t first = task * b->rows_task, last = first + b->rows_task < b->rows ? first + b->rows_task : b->rows;
    for (int64_t row = first; row < last; row++) {
        quant_decode(x, b->from, b->in + (size_t) row * in_bytes, b->cols);
        if (!quant_fits(b->to, x, b->cols) && row < b->bad[thread]) b->bad[thread] = row;
        for (int64_t i = 0; b->factor && i < b->cols; i++) x[i] /= b->factor[(b->row0 + row) / b->plane_rows];
        quant_encode(b->out + (size_t) row * out_bytes, b->to, x, b->cols);
    }
}

typedef struct {
    Gguf         *in;
    GgufWriter   *out;
    Pool         *pool;
    const Recipe *recipe;
    Type         *type;                            /* [tensors] */
    float       **factor;                          /* [tensors][planes] once it was needed; NULL: not yet, or none */
    const char   *lossy;                           /* type that was already quantised and is so again; NULL: none */
    Progress      progress;
    uint64_t      done;                            /* values */
} Job;

/* ---- factors of planes ---- */

/* Scales of NVFP4 have eight bits and end at 448 and 2^-9, so each plane of a stack (an expert) is divided by the
 * factor that takes its largest value to 448 times 6. The factors are the tensor X.scale beside X.weight, which models
 * may have for reasons of their own: then they are multiplied onto what is there. Gate and up in one tensor have none,
 * since llama.cpp would not read them. */
static bool wants_factors(const Job *j, int32_t i)
{
    const GgufTensor *t = gguf_tensor_at(j->in, i);
    return j->type[i] == T_NVFP4 && t->type != T_NVFP4 && !strstr(t->name, "ffn_gate_up_exps");
}

/* X.to for X.from; returns false if the name does not end so. */
static bool renamed(char out[160], const char *name, const char *from, const char *to)
{
    const size_t n = strlen(name), cut = strlen(from);
    if (n < cut || strcmp(name + n - cut, from) != 0) return false;
    return snprintf(out, 160, "%.*s%s", (int) (n - cut), name, to) < 160;
}

/* The weight whose factors are multiplied onto this tensor; -1: none. */
static int32_t weight_of(const Job *j, const GgufTensor *scale)
{
    char name[160];
    if (!renamed(name, scale->name, ".scale", ".weight")) return -1;
    for (int32_t i = 0; i < gguf_n_tensors(j->in); i++)
        if (strcmp(gguf_tensor_at(j->in, i)->name, name) == 0) return wants_factors(j, i) ? i : -1;
    return -1;
}

typedef struct { const GgufTensor *t; float *factor, *values; } Largest;

static void largest_of_plane(void *arg, int32_t plane, int32_t thread)
{
    const Largest *l = arg;
    const int64_t cols = l->t->ne[0], rows = l->t->ne[1];
    const size_t row_bytes = type_row_bytes(l->t->type, cols);
    float *x = l->values + (size_t) thread * (size_t) cols, most = 0;
    for (int64_t row = plane * rows; row < (plane + 1) * rows; row++) {
        quant_decode(x, l->t->type, l->t->data + (size_t) row * row_bytes, cols);
        for (int64_t i = 0; i < cols; i++) most = fabsf(x[i]) > most ? fabsf(x[i]) : most;
    }
    l->factor[plane] = most > 0 && isfinite(most) ? most / (448.0f * 6.0f) : 1.0f;
}

static Status find_factors(Job *j, int32_t i, Error *err)
{
    const GgufTensor *t = gguf_tensor_at(j->in, i);
    if (!wants_factors(j, i) || j->factor[i]) return ST_OK;
    Largest l = {.t = t, .factor = malloc((size_t) t->ne[2] * sizeof *l.factor),
                 .values = calloc((size_t) pool_threads(j->pool), (size_t) t->ne[0] * sizeof *l.values)};
    if (!l.factor || !l.values) {
        free(l.factor);
        free(l.values);
        return fail(err, ST_MEMORY, "%s: tensor %s: no memory for its factors", t->file, t->name);
    }
    pool_run(j->pool, largest_of_plane, &l, (int32_t) t->ne[2]);
    free(l.values);
    j->factor[i] = l.factor;
    return ST_OK;
}

/* A weight's own tensor of factors, where the input has none. */
static bool adds_scale(const Job *j, int32_t i, char name[160])
{
    return wants_factors(j, i) && renamed(name, gguf_tensor_at(j->in, i)->name, ".weight", ".scale") &&
           !gguf_tensor(j->in, name);
}

/* A tensor that is copied, or an existing X.scale times the factors of X.weight. */
static Status write_copy(Job *j, const GgufTensor *t, Error *err)
{
    const int32_t weight = weight_of(j, t);
    if (weight < 0) {
        gguf_write_data(j->out, t->data, t->bytes);
        return ST_OK;
    }
    TRY(find_factors(j, weight, err));
    for (int64_t e = 0; e < t->ne[0]; e++) {
        float v;
        memcpy(&v, t->data + (size_t) e * sizeof v, sizeof v);
        v *= j->factor[weight][e];
        gguf_write_data(j->out, &v, sizeof v);
    }
    return ST_OK;
}

/* ---- tensors ---- */

/* Whether there is no point in going on; what failed is told when the file is closed. */
static bool over(const Job *j) { return interrupts || gguf_write_failed(j->out); }

static Status write_rows(Job *j, int32_t index, Error *err)
{
    const GgufTensor *t = gguf_tensor_at(j->in, index);
    const Type to = j->type[index];
    int64_t cols = t->ne[0], rows = t->ne[1] * t->ne[2] * t->ne[3];
    int64_t batch_rows = cols < BATCH_VALUES ? BATCH_VALUES / cols : 1, threads = pool_threads(j->pool);
    size_t out_row = type_row_bytes(to, cols), in_row = type_row_bytes(t->type, cols), n_out, n_values;
    if (batch_rows > rows) batch_rows = rows;
    TRY(find_factors(j, index, err));
    Batch b = {.from = t->type, .to = to, .cols = cols, .rows_task = cols < TASK_VALUES ? TASK_VALUES / cols : 1,
               .factor = j->factor[index], .plane_rows = t->ne[1]};
    if (check_mul(&n_out, (size_t) batch_rows, out_row) && check_mul(&n_values, (size_t) threads, (size_t) cols) &&
        n_values < SIZE_MAX / sizeof *b.values) {
        b.out = malloc(n_out);
        b.values = malloc(n_values * sizeof *b.values);
        b.bad = malloc((size_t) threads * sizeof *b.bad);
    }
    Status st = b.out && b.values && b.bad ? ST_OK : fail(err, ST_MEMORY, "%s: tensor %s: no memory for rows of "
                                                          "%lld values", t->file, t->name, (long long) cols);
    for (int64_t row = 0; st == ST_OK && row < rows && !over(j); row += b.rows) {
        b.rows = rows - row < batch_rows ? rows - row : batch_rows;
        b.in = t->data + (size_t) row * in_row;
        b.row0 = row;
        for (int64_t i = 0; i < threads; i++) b.bad[i] = b.rows;
        pool_run(j->pool, encode_rows, &b, (int32_t) ((b.rows + b.rows_task - 1) / b.rows_task));
        int64_t bad = b.rows;
        for (int64_t i = 0; i < threads; i++) bad = b.bad[i] < bad ? b.bad[i] : bad;
        if (bad < b.rows)
            st = fail(err, ST_FORMAT,
                      "%s: tensor %s row %lld has a value that is not finite or too large for %s, expected at most %g",
                      t->file, t->name, (long long) (row + bad), type_info(to)->name, (double) quant_limit(to));
        else gguf_write_data(j->out, b.out, (size_t) b.rows * out_row);
        j->done += (uint64_t) (b.rows * cols);
        progress_to(&j->progress, j->done);
    }
    free(b.out);
    free(b.values);
    free(b.bad);
    return st;
}

static Status write_all(Job *j, Error *err)
{
    for (int32_t i = 0; i < gguf_n_tensors(j->in) && !over(j); i++) {
        const GgufTensor *t = gguf_tensor_at(j->in, i);
        char name[160];
        if (j->type[i] == t->type) {
            TRY(write_copy(j, t, err));
            j->done += (uint64_t) (t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3]);
        } else {
            TRY(write_rows(j, i, err));
        }
        if (adds_scale(j, i, name)) gguf_write_data(j->out, j->factor[i], (size_t) t->ne[2] * sizeof **j->factor);
        gguf_drop(j->in, t->file, t->data, (size_t) t->bytes);
        progress_to(&j->progress, j->done);
    }
    return interrupts ? fail(err, ST_CANCEL, "interrupted, nothing was written") : ST_OK;
}

/* Four or more query heads share a key/value head. In files with a list per layer, the first layer decides. */
static bool heads_grouped(const Gguf *g)
{
    const char *arch;
    size_t n;
    char key[2][128];
    uint64_t heads[2];
    if (gguf_get_str(g, "general.architecture", &arch, &n, NULL) != ST_OK || n > 64) return false;
    snprintf(key[0], sizeof key[0], "%.*s.attention.head_count", (int) n, arch);
    snprintf(key[1], sizeof key[1], "%.*s.attention.head_count_kv", (int) n, arch);
    for (int i = 0; i < 2; i++) {
        int64_t first = 0;
        if (gguf_get_u64(g, key[i], &heads[i], NULL) == ST_OK) continue;
        if (gguf_array_i64(g, key[i], 0, &first, NULL) != ST_OK || first < 0) return false;
        heads[i] = (uint64_t) first;
    }
    return heads[1] > 0 && heads[0] / heads[1] >= 4;
}

static RecipeModel recipe_model(const Gguf *g)
{
    RecipeModel m = {.tied = !gguf_tensor(g, "output.weight"), .grouped = heads_grouped(g)};
    for (int32_t i = 0; i < gguf_n_tensors(g); i++) {
        int32_t layer = recipe_layer(gguf_tensor_at(g, i)->name);
        if (layer >= m.n_layer) m.n_layer = layer + 1;
    }
    return m;
}

/* Chooses all types before anything is written, so that a tensor that cannot be handled is reported at once. */
static Status plan(Job *j, uint64_t *values, uint64_t *bytes, Error *err)
{
    int32_t n = gguf_n_tensors(j->in);
    RecipeModel model = recipe_model(j->in);
    j->type = malloc(((size_t) n + 1) * sizeof *j->type);
    j->factor = calloc((size_t) n + 1, sizeof *j->factor);
    if (!j->type || !j->factor) return fail(err, ST_MEMORY, "%s: no memory for %d tensors", gguf_path(j->in), n);
    for (int32_t i = 0; i < n; i++) {
        const GgufTensor *t = gguf_tensor_at(j->in, i);
        if (!t->known)
            return fail(err, ST_UNSUPPORTED, "%s: tensor %s has type %u, which cannot be decoded here", t->file,
                        t->name, t->ggml_type);
        j->type[i] = t->type == T_I32 ? T_I32 : recipe_type(j->recipe, &model, t->name, t->n_dims, t->ne);
        bool again = j->type[i] != t->type && type_info(t->type)->block > 1 && type_info(j->type[i])->block > 1;
        if (again && !j->lossy) j->lossy = type_info(t->type)->name;
        size_t rows = (size_t) (t->ne[1] * t->ne[2] * t->ne[3]);
        *values += (uint64_t) t->ne[0] * rows;
        *bytes += type_row_bytes(j->type[i], t->ne[0]) * rows;
    }
    for (int32_t i = 0; i < n; i++) {
        const GgufTensor *t = gguf_tensor_at(j->in, i);
        const int32_t weight = weight_of(j, t);
        if (weight >= 0 && (t->type != T_F32 || t->ne[0] != gguf_tensor_at(j->in, weight)->ne[2] || t->ne[1] != 1))
            return fail(err, ST_FORMAT, "%s: tensor %s has %lld values of type %s, expected %lld of F32", t->file,
                        t->name, (long long) t->ne[0], type_info(t->type)->name,
                        (long long) gguf_tensor_at(j->in, weight)->ne[2]);
    }
    return ST_OK;
}

static void write_head(Job *j)
{
    static const char VERSION[] = "general.quantization_version";
    for (int32_t i = 0; i < gguf_n_keys(j->in); i++) {
        const char *key = gguf_key(j->in, i);
        if (strcmp(key, FILE_TYPE) != 0 && strcmp(key, VERSION) != 0) gguf_write_key_of(j->out, j->in, i);
    }
    gguf_write_u32(j->out, VERSION, 2);
    gguf_write_u32(j->out, FILE_TYPE, recipe_file_type(j->recipe));
    for (int32_t i = 0; i < gguf_n_tensors(j->in); i++) {
        const GgufTensor *t = gguf_tensor_at(j->in, i);
        char name[160];
        gguf_write_tensor(j->out, t->name, j->type[i], t->n_dims, t->ne);
        if (adds_scale(j, i, name)) gguf_write_tensor(j->out, name, T_F32, 1, (const int64_t[]) {t->ne[2]});
    }
}

/* The input stays mapped while the output takes its name; doing that by mistake would lose the original. Another file
 * is replaced only if force is set. */
static Status check_output(const char *in, const char *out, bool force, Error *err)
{
    struct stat b;
    if (stat(out, &b) != 0) return errno == ENOENT ? ST_OK : fail(err, ST_IO, "%s: cannot be looked at: %m", out);
    if (input_has(in, out)) return fail(err, ST_ARG, "%s: is an input, expected another file to write", out);
    if (S_ISREG(b.st_mode) && !force)
        return fail(err, ST_ARG, "%s: exists already; name another file, or replace it with --force", out);
    return ST_OK;
}

/* What the input's file type is called, or the type of one of its tensors. */
static const char *lossy_name(const Job *j)
{
    uint32_t type;
    const Recipe *r = gguf_get_u32(j->in, FILE_TYPE, &type, NULL) == ST_OK ? recipe_of_type(type) : NULL;
    return r ? recipe_name(r) : j->lossy;
}

static Status quantize(Job *j, const Options *o, Error *err)
{
    char size[32], before[32];
    const char *in = o->word[0], *out = o->word[1];
    uint64_t values = 0, bytes = 0;
    TRY(gguf_open(&j->in, in, err));
    TRY(check_output(in, out, o->force, err));
    TRY(plan(j, &values, &bytes, err));
    if (j->lossy)
        log_line("warning: %s is quantised already (%s), and what that lost does not come back: for a better %s file, "
                 "quantise the F16 or BF16 original", in, lossy_name(j), recipe_name(j->recipe));
    TRY(pool_open(&j->pool, o->threads, err));
    TRY(gguf_write_open(&j->out, out, err));
    write_head(j);
    progress_start(&j->progress, "quantize", values);
    Status st = write_all(j, err);
    Status closed = gguf_write_close(j->out, st == ST_OK, err);
    double seconds = progress_end(&j->progress);
    if (st != ST_OK || closed != ST_OK) return st != ST_OK ? st : closed;
    hub_size(size, bytes);
    hub_size(before, gguf_file_bytes(j->in));
    fprintf(stderr, "%s: %s, %d tensors, %s (input %s), %.2f bits per weight, %.0f s\n", out,
            recipe_name(j->recipe), gguf_n_tensors(j->in), size, before,
            8.0 * (double) bytes / (double) (values ? values : 1), seconds);
    return ST_OK;
}

static void refuse_recipe(const Options *o)
{
    char names[256], best[128];
    Suggestion s = {.typed = o->word[2]};
    int n = 0;
    for (int32_t i = 0; recipe_at(i); i++) {
        suggest_try(&s, recipe_name(recipe_at(i)));
        n += snprintf(names + n, sizeof names - (size_t) n, "%s%s", i ? " " : "", recipe_name(recipe_at(i)));
    }
    complain(o, "unknown type '%s', expected one of %s%s", o->word[2], names, suggest_words(&s, best));
}

int cmd_quantize(int argc, char **argv)
{
    Options o;
    int status;
    if (!options_read(&o, argc, argv, &status)) return status;
    if (o.n_words != 3) {
        complain(&o, "IN.gguf, OUT.gguf and TYPE are needed (see ratoon quantize --help)");
        return EXIT_USAGE;
    }
    Job job = {.recipe = recipe_find(o.word[2])};
    if (!job.recipe) {
        refuse_recipe(&o);
        return EXIT_USAGE;
    }
    hear_interrupts();
    Error err = {0};
    Status st = quantize(&job, &o, &err);
    if (st != ST_OK) complain_file(&o, err.text, o.word[0], AS_GGUF);
    pool_close(job.pool);
    for (int32_t i = 0; job.factor && i < gguf_n_tensors(job.in); i++) free(job.factor[i]);
    gguf_close(job.in);
    free(job.factor);
    free(job.type);
    return st == ST_OK ? EXIT_FINE : st == ST_CANCEL ? EXIT_INTERRUPTED : EXIT_FAILED;
}
