/* lab_matmul.c - benchmark of the matrix product: check against the portable level, time, and share of the machine's
 * limit, per type and row count.
 *
 *   lab_matmul [--types Q4_K,Q6_K] [--rows 1,8,16] [--shape 9216x2560] [--mib 1500] [--threads 2] [--level avx512]
 *   [--rounds 5]
 *
 * One round is a pass over different matrices of the shape, `mib` megabytes in all, so that weights come from memory
 * (use more than the machine's last-level cache); shapes of a small model with --mib 1 stay in the cache. Row counts,
 * reading and the peak alternate matrix by matrix; for each, the slowest product of the fastest quarter counts: a
 * single lucky matrix may still be in the cache, and a busy neighbour is never quiet for a whole round. The limit of a
 * pass is max(bytes / bandwidth, operations / int8 peak), both measured in the same run: the bandwidth by reading the
 * same matrices, the peak by the roofline's loops (float types: multiply-adds). */
#include <inttypes.h>
#include <immintrin.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "backend/cpu/matmul.h"
#include "backend/cpu/roofline.h"
#include "base/clock.h"
#include "base/pool.h"

enum { MAX_LIST = 32, SLICES_PER_THREAD = 16 };

typedef struct {
    Type    t;
    int32_t n, rows, cols, matrices, groups_per_task;
    uint8_t *packed;
    size_t  matrix_bytes;
    float  *x, *y;
    void   *act;
    const MatmulKernels *kernels;
    uint64_t sink[64];
} Lab;

static void *need(void *p)
{
    if (p) return p;
    fprintf(stderr, "lab_matmul: out of memory\n");
    exit(1);
}

/* On huge pages, like the backend's. */
static void *get(size_t n)
{
    const size_t page = n < (64u << 10) ? 4096 : 2u << 20, bytes = (n + page - 1) / page * page;
    void *p = need(aligned_alloc(page, bytes));
    madvise(p, bytes, MADV_HUGEPAGE);
    return p;
}

static int32_t groups_of(const Lab *lab) { return (lab->rows + WEIGHT_GROUP - 1) / WEIGHT_GROUP; }
static int32_t tasks_of(const Lab *lab) { return (groups_of(lab) + lab->groups_per_task - 1) / lab->groups_per_task; }

typedef struct { Lab *lab; int32_t matrix; } Job;

static void product_task(void *arg, int32_t i, int32_t thread)
{
    (void) thread;
    Job *job = arg;
    Lab *lab = job->lab;
    int32_t g0 = i * lab->groups_per_task, g1 = g0 + lab->groups_per_task;
    if (g1 > groups_of(lab)) g1 = groups_of(lab);
    const void *act = lab->act ? lab->act : lab->x;
    lab->kernels->product(lab->y, (size_t) lab->rows, lab->t, lab->packed + (size_t) job->matrix * lab->matrix_bytes,
                          act, lab->n, lab->rows, lab->cols, g0, g1);
}

static void read_task(void *arg, int32_t i, int32_t thread)
{
    Job *job = arg;
    Lab *lab = job->lab;
    size_t bytes = lab->matrix_bytes / (size_t) tasks_of(lab) / 256 * 256;
    const uint8_t *p = lab->packed + (size_t) job->matrix * lab->matrix_bytes + (size_t) i * bytes;
    __m128i a = _mm_setzero_si128(), b = a, c = a, d = a;
    /* one load per cache line and four chains: few enough loads that memory is the limit */
    for (size_t at = 0; at < bytes; at += 256) {
        a = _mm_xor_si128(a, _mm_load_si128((const __m128i *) (const void *) (p + at)));
        b = _mm_xor_si128(b, _mm_load_si128((const __m128i *) (const void *) (p + at + 64)));
        c = _mm_xor_si128(c, _mm_load_si128((const __m128i *) (const void *) (p + at + 128)));
        d = _mm_xor_si128(d, _mm_load_si128((const __m128i *) (const void *) (p + at + 192)));
        _mm_prefetch((const char *) p + at + 4096, _MM_HINT_T0);
        _mm_prefetch((const char *) p + at + 4096 + 64, _MM_HINT_T0);
        _mm_prefetch((const char *) p + at + 4096 + 128, _MM_HINT_T0);
        _mm_prefetch((const char *) p + at + 4096 + 192, _MM_HINT_T0);
    }
    a = _mm_xor_si128(_mm_xor_si128(a, b), _mm_xor_si128(c, d));
    lab->sink[thread & 63] += (uint64_t) _mm_cvtsi128_si64(a);
}

static double seconds(Lab *lab, Pool *pool, PoolTask task, int32_t matrix)
{
    Job job = {lab, matrix};
    double start = seconds_now();
    pool_run(pool, task, &job, tasks_of(lab));
    return seconds_now() - start;
}

static int ascending(const void *a, const void *b)
{
    float x = *(const float *) a, y = *(const float *) b;
    return x < y ? -1 : x > y;
}

static double quartile(float *s, int32_t n)
{
    qsort(s, (size_t) n, sizeof *s, ascending);
    return (double) s[n / 4];
}

/* Peaks, from the roofline's loops: multiply-adds per second of all threads. */
enum { PEAK_STEPS = 20000 };
typedef struct { const RooflineKernels *kernels; bool floats; double ops[64]; } Peak;
static void peak_task(void *arg, int32_t i, int32_t thread)
{
    (void) thread;
    Peak *peak = arg;
    peak->ops[i & 63] = (peak->floats ? peak->kernels->flops : peak->kernels->dots)(PEAK_STEPS);
}

static double peak_seconds(Pool *pool, Peak *peak)
{
    double start = seconds_now();
    pool_run(pool, peak_task, peak, pool_threads(pool));
    return seconds_now() - start;
}

/* Random blocks; halves stay finite because their exponents are masked. */
static void random_weights(uint8_t *w, Type t, size_t bytes)
{
    uint64_t s = 88172645463325252u;
    const TypeInfo *info = type_info(t);
    for (size_t i = 0; i + 8 <= bytes; i += 8) {
        s ^= s << 13, s ^= s >> 7, s ^= s << 17;
        memcpy(w + i, &s, 8);
    }
    for (size_t b = 0; b + (size_t) info->bytes <= bytes; b += (size_t) info->bytes) {
        uint8_t *p = w + b;
        float f = ((float) p[0] - 127.5f) / 64;
        uint16_t half = half_from_float(f / 64);
        if (t == T_F32) memcpy(p, &f, 4);
        else if (t == T_F16) memcpy(p, &half, 2);
        else if (t == T_BF16) half = bf16_from_float(f), memcpy(p, &half, 2);
        else {
            int at = t == T_Q2_K ? 80 : t == T_Q3_K ? 108 : t == T_Q6_K ? 208 : 0;
            if (t == T_MXFP4) p[0] = 118;
            else if (t == T_NVFP4) memset(p, 4, 4);
            else memcpy(p + at, &half, 2);
            if (t == T_Q2_K || t == T_Q4_1 || t == T_Q5_1 || t == T_Q4_K || t == T_Q5_K) memcpy(p + at + 2, &half, 2);
        }
    }
}

/* Checks the first groups of the first matrix only, as the plain product is slow. */
static bool check(const Lab *lab)
{
    int32_t groups = groups_of(lab) < 8 ? groups_of(lab) : 8,
            rows = groups * WEIGHT_GROUP < lab->rows ? groups * WEIGHT_GROUP : lab->rows;
    const void *act = lab->act ? lab->act : lab->x;
    float *want = get((size_t) lab->n * (size_t) rows * sizeof *want),
          *got = get((size_t) lab->n * (size_t) rows * sizeof *got);
    matmul_portable.product(want, (size_t) rows, lab->t, lab->packed, act, lab->n, rows, lab->cols, 0, groups);
    lab->kernels->product(got, (size_t) rows, lab->t, lab->packed, act, lab->n, rows, lab->cols, 0, groups);
    bool same = memcmp(want, got, (size_t) lab->n * (size_t) rows * sizeof *want) == 0;
    free(want);
    free(got);
    return same;
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

static void bench(Pool *pool, CpuLevel level, Type t, int32_t rows, int32_t cols, const int32_t *ns, int n_ns,
                  size_t mib, int rounds)
{
    Lab lab = {.t = t, .rows = rows, .cols = cols, .kernels = matmul_kernels(level)};
    lab.matrix_bytes = matmul_packed_bytes(t, rows, cols);
    if (!lab.matrix_bytes) {
        printf("%-7s does not fit %d columns\n", type_info(t)->name, cols);
        return;
    }
    lab.matrices = (int32_t) ((mib << 20) / lab.matrix_bytes);
    if (lab.matrices < 1) lab.matrices = 1;
    lab.groups_per_task = groups_of(&lab) / (pool_threads(pool) * SLICES_PER_THREAD);
    if (lab.groups_per_task < 1) lab.groups_per_task = 1;
    int32_t n_max = 1;
    for (int i = 0; i < n_ns; i++) n_max = ns[i] > n_max ? ns[i] : n_max;
    size_t src_bytes = (size_t) rows * type_row_bytes(t, cols);
    uint8_t *src = get(src_bytes);
    random_weights(src, t, src_bytes);
    lab.packed = get(lab.matrix_bytes * (size_t) lab.matrices);
    double pack_start = seconds_now();
    matmul_pack(lab.packed, t, src, rows, cols, 0, groups_of(&lab));
    double pack_s = seconds_now() - pack_start;
    for (int32_t m = 1; m < lab.matrices; m++)
        memcpy(lab.packed + (size_t) m * lab.matrix_bytes, lab.packed, lab.matrix_bytes);
    ActForm form = matmul_act_form(t);
    lab.x = get((size_t) n_max * (size_t) cols * sizeof *lab.x);
    for (size_t i = 0; i < (size_t) n_max * (size_t) cols; i++) lab.x[i] = sinf((float) i);
    lab.y = get((size_t) n_max * (size_t) rows * sizeof *lab.y);

    static const RooflineKernels *const rooflines[LEVEL_COUNT] = LEVEL_PRODUCT_TABLE(roofline);
    Peak peaks = {.kernels = rooflines[level], .floats = form == ACT_F32};
    enum { READ = MAX_LIST, PEAK, WAYS };
    int32_t turns = rounds * lab.matrices;
    float *took = get((size_t) WAYS * (size_t) turns * sizeof *took);
    bool same[MAX_LIST];
    void *act[MAX_LIST] = {0};
    int32_t parts[MAX_LIST], part[MAX_LIST];       /* many rows are multiplied in parts, as in the backend, where the
                                                    * last part may be shorter */
    for (int i = 0; i < n_ns; i++) {
        int32_t most = matmul_part_rows(form, cols, matmul_part_bytes());
        parts[i] = (ns[i] + most - 1) / most;
        lab.n = part[i] = (ns[i] + parts[i] - 1) / parts[i];
        if (form != ACT_F32) {
            act[i] = lab.act = get(matmul_act_bytes(form, lab.n, cols));
            lab.kernels->quantise(lab.act, form, lab.x, lab.n, cols, 0, lab.n);
        }
        same[i] = check(&lab);
    }
    for (int32_t turn = 0; turn < turns; turn++) {
        int32_t m = turn * (n_ns + 1);             /* every product reads a different matrix from the one before it */
        took[READ * turns + turn] = (float) seconds(&lab, pool, read_task, m % lab.matrices);
        took[PEAK * turns + turn] = (float) peak_seconds(pool, &peaks);
        for (int i = 0; i < n_ns; i++) {
            lab.n = part[i];
            lab.act = act[i];
            double s = 0;
            for (int32_t j = 0; j < parts[i]; j++) s += seconds(&lab, pool, product_task, (m + 1 + i) % lab.matrices);
            took[i * turns + turn] = (float) s;
        }
    }
    double best[MAX_LIST], read_best = quartile(took + READ * turns, turns),
           peak_best = quartile(took + PEAK * turns, turns);
    for (int i = 0; i < n_ns; i++) best[i] = quartile(took + i * turns, turns);
    double bytes = (double) lab.matrix_bytes, macs1 = (double) rows * cols,
           peak = peaks.ops[0] / 2 * pool_threads(pool) / peak_best;
    printf("%-7s %dx%d  %d matrices, %.0f MB, read %.1f GB/s, peak %.0f GMAC/s, packed at %.0f MB/s by one thread\n",
           type_info(t)->name, rows, cols, lab.matrices, bytes * lab.matrices * 1e-6, bytes / read_best * 1e-9,
           peak * 1e-9, (double) src_bytes / pack_s * 1e-6);
    printf("  rows      us            GB/s   GMAC/s   T(n)/T(1)  share of limit\n");
    for (int i = 0; i < n_ns; i++) {
        double limit = fmax(read_best, macs1 * ns[i] / peak);
        printf("  %4d  %12.2f  %7.1f  %7.1f  %9.2f  %12.0f%%%s\n", ns[i], best[i] * 1e6, bytes / best[i] * 1e-9,
               macs1 * ns[i] / best[i] * 1e-9, best[i] / best[0], 100 * limit / best[i],
               same[i] ? "" : "  DIFFERS FROM PORTABLE");
    }
    fflush(stdout);
    free(src);
    free(lab.packed);
    free(lab.x);
    for (int i = 0; i < n_ns; i++) free(act[i]);
    free(took);
    free(lab.y);
}

int main(int argc, char **argv)
{
    const char *types = "Q4_K,Q5_K,Q6_K,Q2_K,Q3_K,"
                        "IQ4_XS,IQ2_XXS,IQ3_XXS,IQ3_S,Q8_0,Q4_0,Q4_1,Q5_0,Q5_1,IQ4_NL,MXFP4,NVFP4,F32,F16,BF16";
    int32_t ns[MAX_LIST], rows = 9216, cols = 2560;
    int n_ns = list(ns, "1,2,4,8,16,22,32,64"), threads = 2, rounds = 5;
    size_t mib = 1500;
    CpuLevel level = level_best();
    for (int i = 1; i + 1 < argc; i += 2) {
        const char *value = argv[i + 1];
        if (!strcmp(argv[i], "--types")) types = value;
        else if (!strcmp(argv[i], "--rows")) n_ns = list(ns, value);
        else if (!strcmp(argv[i], "--shape") && sscanf(value, "%" SCNd32 "x%" SCNd32, &rows, &cols) == 2) continue;
        else if (!strcmp(argv[i], "--mib")) mib = strtoul(value, NULL, 10);
        else if (!strcmp(argv[i], "--threads")) threads = atoi(value);
        else if (!strcmp(argv[i], "--rounds")) rounds = atoi(value);
        else if (!strcmp(argv[i], "--level") && level_from_name(&level, value) && level_here(level)) continue;
        else {
            fprintf(stderr, "lab_matmul: %s %s is not understood, or the level is not here\n", argv[i], value);
            return 2;
        }
    }
    Pool *pool;
    Error err;
    if (pool_open(&pool, threads, &err) != ST_OK) {
        fprintf(stderr, "lab_matmul: %s\n", err.text);
        return 1;
    }
    printf("%s, %d threads\n", level_name(level), threads);
    char names[256];
    snprintf(names, sizeof names, "%s", types);
    for (char *save, *name = strtok_r(names, ",", &save); name; name = strtok_r(NULL, ",", &save)) {
        Type t;
        if (!type_from_name(&t, name)) {
            fprintf(stderr, "lab_matmul: type %s is unknown\n", name);
            return 2;
        }
        bench(pool, level, t, rows, cols, ns, n_ns, mib, rounds);
    }
    pool_close(pool);
    return 0;
}
