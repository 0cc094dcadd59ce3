/* lab_experts.c - benchmark of mixtures of experts: the operation `experts` against the same products of single
 * matrices, with as many rows each, in the same run.
 *
 *   lab_experts [--backend cpu:avx2] [--types Q4_K/Q6_K] [--shape 2048x512] [--experts 256] [--used 8] [--layers 8]
 *               [--rows 1,2,4,8,64,256] [--threads 2] [--rounds 9]
 *
 * --types: of gate and up, and of down. --shape: width of the model x of an expert. Layers take turns, so that weights
 * come from memory. Rows choose experts at random, each of them equally likely. For each number of rows a round runs
 * the mixture and, one expert after the other, its three products by `matmul` (gate and up in one call) with the
 * activation between them; the fastest quarter counts. GB/s: bytes of the different experts that rows chose. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/backend.h"
#include "base/clock.h"

enum { MAX_LIST = 16 };

typedef struct {
    Backend *b;
    Type     wide, down;
    int32_t  dim, ffn, experts, used, layers;
    Tensor  *gates, *ups, *downs;                  /* [layers] stacks */
    Tensor   x, y, ids, weight, h, up, each;       /* of the most rows */
} Lab;

static _Noreturn void die(const char *what)
{
    fprintf(stderr, "lab_experts: %s\n", what);
    exit(1);
}

static void *room(Lab *l, size_t bytes)
{
    void *p = l->b->alloc(l->b, bytes, "lab");
    if (!p) die("out of memory");
    return p;
}

static uint64_t next_random(uint64_t *s)
{
    *s = *s * 6364136223846793005u + 1442695040888963407u;
    return *s >> 33;
}

/* Blocks of random floats, encoded once; every expert has the same bytes in memory of its own. */
static Tensor stack(Lab *l, Type t, int32_t rows, int32_t cols)
{
    const size_t row_bytes = type_row_bytes(t, cols);
    float *row = malloc(sizeof *row * (size_t) cols);
    uint8_t *file = malloc(row_bytes * (size_t) rows);
    if (!row || !file) die("out of memory");
    uint64_t seed = 7;
    for (int32_t r = 0; r < rows; r++) {
        for (int32_t c = 0; c < cols; c++) row[c] = ((float) (next_random(&seed) % 2001) - 1000) * 2e-5f;
        quant_encode(file + row_bytes * (size_t) r, t, row, cols);
    }
    const size_t each = l->b->weight_bytes(l->b, t, rows, cols);
    Tensor w = { .type = t, .rows = rows, .cols = cols, .data = room(l, each * (size_t) l->experts), .n = l->experts };
    for (int32_t e = 0; e < l->experts; e++) l->b->upload(l->b, &w, e, file, 0, rows);
    free(row);
    free(file);
    return w;
}

static Tensor floats(Lab *l, int32_t rows, int32_t cols)
{
    return (Tensor) { .type = T_F32, .rows = rows, .cols = cols,
                      .data = room(l, sizeof(float) * (size_t) rows * (size_t) cols) };
}

static Tensor first_rows(const Tensor *t, int32_t row0, int32_t rows)
{
    return (Tensor) { .type = t->type, .rows = rows, .cols = t->cols,
                      .data = (float *) t->data + (size_t) row0 * (size_t) t->cols };
}

static Tensor matrix(const Lab *l, const Tensor *w, int32_t e)
{
    const size_t each = l->b->weight_bytes(l->b, w->type, w->rows, w->cols);
    return (Tensor) { .type = w->type, .rows = w->rows, .cols = w->cols,
                      .data = (uint8_t *) w->data + each * (size_t) e };
}

/* Fills in the rows' experts; returns how many are different, and in times [experts] how often each was chosen. */
static int32_t choose(Lab *l, int32_t n, int32_t *times, uint64_t *seed)
{
    int32_t *ids = l->ids.data, different = 0;
    memset(times, 0, sizeof *times * (size_t) l->experts);
    for (int32_t i = 0; i < n; i++)
        for (int32_t j = 0; j < l->used; j++) {
            int32_t e, before;
            do {
                e = (int32_t) (next_random(seed) % (uint64_t) l->experts);
                for (before = 0; before < j && ids[i * l->used + before] != e; before++) continue;
            } while (before < j);
            ids[i * l->used + j] = e;
            different += times[e]++ == 0;
        }
    return different;
}

static void wait_for(Lab *l)
{
    Error err = { 0 };
    if (l->b->sync(l->b, &err) != ST_OK) die(err.text);
}

static double mixture_seconds(Lab *l, int32_t layer, int32_t n)
{
    Tensor x = first_rows(&l->x, 0, n), y = first_rows(&l->y, 0, n), ids = first_rows(&l->ids, 0, n),
           weight = first_rows(&l->weight, 0, n);
    const Experts e = { &l->gates[layer], &l->ups[layer], &l->downs[layer], ACT_SILU, &l->h, &l->up, &l->each };
    const double start = seconds_now();
    l->b->experts(l->b, &y, &x, &ids, &weight, &e);
    wait_for(l);
    return seconds_now() - start;
}

static double single_seconds(Lab *l, int32_t layer, const int32_t *times)
{
    double sum = 0;
    for (int32_t e = 0; e < l->experts; e++) {
        if (!times[e]) continue;
        const Tensor gate = matrix(l, &l->gates[layer], e), up = matrix(l, &l->ups[layer], e),
                     down = matrix(l, &l->downs[layer], e), x = first_rows(&l->x, 0, times[e]);
        Tensor h = first_rows(&l->h, 0, times[e]), wide = first_rows(&l->up, 0, times[e]),
               y = first_rows(&l->each, 0, times[e]), *out = &y;
        const Tensor *in = &down;
        const double start = seconds_now();
        l->b->matmul(l->b, 2, (Tensor *[]) { &h, &wide }, (const Tensor *[]) { &gate, &up }, &x);
        l->b->glu(l->b, &h, &h, &wide, ACT_SILU);
        l->b->matmul(l->b, 1, &out, &in, &h);
        sum += seconds_now() - start;
    }
    wait_for(l);
    return sum;
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *) a, y = *(const double *) b;
    return x < y ? -1 : x > y;
}

static void measure(Lab *l, int32_t n, int32_t rounds)
{
    double *took[2] = { malloc(sizeof(double) * (size_t) rounds), malloc(sizeof(double) * (size_t) rounds) }, read = 0;
    int32_t *times = malloc(sizeof *times * (size_t) l->experts);
    if (!took[0] || !took[1] || !times) die("out of memory");
    uint64_t seed = 3;
    for (int32_t r = 0; r < rounds; r++) {
        const int32_t different = choose(l, n, times, &seed), layer = 2 * r % l->layers;
        read += different;
        took[0][r] = mixture_seconds(l, layer, n);
        took[1][r] = single_seconds(l, (layer + 1) % l->layers, times);
    }
    for (int k = 0; k < 2; k++) qsort(took[k], (size_t) rounds, sizeof(double), ascending);
    const double bytes = (double) (2 * l->b->weight_bytes(l->b, l->wide, l->ffn, l->dim) +
                                   l->b->weight_bytes(l->b, l->down, l->dim, l->ffn)) * read / rounds;
    const double together = took[0][rounds / 4], apart = took[1][rounds / 4];
    printf("%6d  %9.1f  %12.1f  %12.1f  %9.2f  %9.1f\n", n, read / rounds, 1e6 * together, 1e6 * apart,
           together / apart, bytes / together / 1e9);
    fflush(stdout);
    free(took[0]);
    free(took[1]);
    free(times);
}

static int list(int32_t *out, const char *text)
{
    int n = 0;
    for (char *end; n < MAX_LIST; text = end + 1) {
        out[n++] = (int32_t) strtol(text, &end, 10);
        if (*end != ',') break;
    }
    return n;
}

int main(int argc, char **argv)
{
    Lab l = { .wide = T_Q4_K, .down = T_Q4_K, .dim = 2048, .ffn = 512, .experts = 256, .used = 8, .layers = 4 };
    const char *name = "cpu";
    int32_t rows[MAX_LIST], rounds = 9, most = 1;
    int n_rows = list(rows, "1,2,4,8,16,64,256,512");
    BackendOptions o = { .threads = 2 };
    for (int i = 1; i + 1 < argc; i += 2) {
        const char *value = argv[i + 1];
        char wide[16], down[16];
        if (!strcmp(argv[i], "--backend")) name = value;
        else if (!strcmp(argv[i], "--types") && sscanf(value, "%15[^/]/%15s", wide, down) == 2 &&
                 type_from_name(&l.wide, wide) && type_from_name(&l.down, down)) continue;
        else if (!strcmp(argv[i], "--shape") && sscanf(value, "%dx%d", &l.dim, &l.ffn) == 2) continue;
        else if (!strcmp(argv[i], "--experts")) l.experts = atoi(value);
        else if (!strcmp(argv[i], "--used")) l.used = atoi(value);
        else if (!strcmp(argv[i], "--layers")) l.layers = atoi(value);
        else if (!strcmp(argv[i], "--rows")) n_rows = list(rows, value);
        else if (!strcmp(argv[i], "--threads")) o.threads = atoi(value);
        else if (!strcmp(argv[i], "--rounds")) rounds = atoi(value);
        else die("an option is not understood: see the head of bench/lab_experts.c");
    }
    if (l.used < 1 || l.used > EXPERTS_USED_MAX || l.used > l.experts || l.layers < 2 || rounds < 1)
        die("expected 1 to 32 used of at least as many experts, 2 layers, 1 round");
    Backend *opened;
    Error err = { 0 };
    if (backend_open(&opened, name, &o, &err) != ST_OK || opened->fork(opened, 0, &l.b, &err) != ST_OK) die(err.text);
    if (!l.b->experts || opened->device) die("this backend's memory is not the host's, or it runs no mixtures");
    if (!l.b->weight_bytes(l.b, l.wide, l.ffn, l.dim) || !l.b->weight_bytes(l.b, l.down, l.dim, l.ffn))
        die("these types do not fit the shape");
    for (int i = 0; i < n_rows; i++) most = rows[i] > most ? rows[i] : most;
    l.gates = calloc((size_t) l.layers * 3, sizeof *l.gates);
    if (!l.gates) die("out of memory");
    l.ups = l.gates + l.layers;
    l.downs = l.ups + l.layers;
    for (int32_t k = 0; k < l.layers; k++) {
        l.gates[k] = stack(&l, l.wide, l.ffn, l.dim);
        l.ups[k] = stack(&l, l.wide, l.ffn, l.dim);
        l.downs[k] = stack(&l, l.down, l.dim, l.ffn);
    }
    l.x = floats(&l, most, l.dim);
    l.y = floats(&l, most, l.dim);
    l.weight = floats(&l, most, l.used);
    l.ids = floats(&l, most, l.used);
    l.ids.type = T_I32;
    l.h = floats(&l, most * l.used, l.ffn);
    l.up = floats(&l, most * l.used, l.ffn);
    l.each = floats(&l, most * l.used, l.dim);
    for (int64_t i = 0; i < (int64_t) most * l.dim; i++) ((float *) l.x.data)[i] = sinf((float) i);
    for (int64_t i = 0; i < (int64_t) most * l.used; i++) ((float *) l.weight.data)[i] = 1.0f / (float) l.used;
    printf("%s %s, %d threads, %s/%s, %d of %d experts %dx%d\n  rows  different  together us     apart us      ratio"
           "       GB/s\n", l.b->name, l.b->level ? l.b->level : "", o.threads, type_info(l.wide)->name,
           type_info(l.down)->name, l.used, l.experts, l.dim, l.ffn);
    for (int i = 0; i < n_rows; i++) measure(&l, rows[i], rounds);
    l.b->close(l.b);
    opened->close(opened);
    free(l.gates);
    return 0;
}
