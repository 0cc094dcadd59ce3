/* lab_attend.c - benchmark of what a pass reads from its sessions: attention over long contexts, and the delta rule.
 *
 *   lab_attend [--types f16,q8_0/q4_0] [--ctx 1024,32768] [--rows 1,8] [--heads 16/4x256] [--delta 32/16x128]
 *              [--mib 1200] [--threads 2] [--level avx512] [--rounds 5]
 *
 * --types gives keys/values, or one type for both. Each type and context gets several layers, `mib` megabytes in all,
 * so that keys and values come from memory, as they do in a real pass after the weights. The limit of an attention is
 * max(bytes / bandwidth, multiply-adds / float peak), both measured between the rounds. The rounds of all row counts
 * are interleaved, and the fastest layer counts. --delta V/KxD adds the delta rule with V value heads, K key heads and
 * D x D matrices: microseconds per head and row, limit 1. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/backend.h"
#include "backend/cpu/level.h"
#include "backend/cpu/roofline.h"
#include "base/clock.h"

enum { MAX_LIST = 16, PUT_ROWS = 256, ROWS_MAX = ROWS_DECODE };

static void *need(void *p)
{
    if (p) return p;
    fprintf(stderr, "lab_attend: out of memory\n");
    exit(1);
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

static void randoms(float *x, size_t n, uint64_t seed)
{
    uint64_t s = seed * 0x9e3779b97f4a7c15u + 1;
    for (size_t i = 0; i < n; i++) {
        s = s * 6364136223846793005u + 1442695040888963407u;
        x[i] = (float) (int32_t) (s >> 32) * 0x1p-31f;
    }
}

static void check(Backend *b)
{
    Error err = { 0 };
    if (b->sync(b, &err) == ST_OK) return;
    fprintf(stderr, "lab_attend: %s\n", err.text);
    exit(1);
}

typedef struct { Roofline *roof; Peaks fastest; } Limits;

static Tensor f32(int32_t rows, int32_t cols, float *x)
{
    return (Tensor) { .type = T_F32, .rows = rows, .cols = cols, .data = x };
}

/* A pass with the tree rows of one session: a chain of n rows. */
typedef struct { Rows r; Slice s; int32_t zero[PUT_ROWS], parent[PUT_ROWS], pos[PUT_ROWS]; } Pass;

static void pass_of(Pass *p, SliceKind kind, int32_t n, int32_t base, int32_t gen, StateLayer *l)
{
    memset(p, 0, sizeof *p);
    p->s = (Slice) { .kind = (int32_t) kind, .n = n, .base = base, .gen = gen, .set_out = kind == SLICE_CHAIN,
                     .layer = l };
    p->r = (Rows) { .n = n, .n_decode = kind == SLICE_CHAIN ? 0 : n, .n_slices = 1, .span = 1, .slice = p->zero,
                    .parent = p->parent, .pos = p->pos, .slices = &p->s };
    for (int32_t i = 0; i < n; i++) p->parent[i] = i - 1, p->pos[i] = base + i;
    while (p->r.span < base) p->r.span *= 2;
}

static void attention(Backend *b, LayerSpec spec, int32_t ctx, const int32_t *rows, int n_rows, size_t mib, int rounds,
                      Limits *limits)
{
    int32_t kc = spec.kv_heads * spec.head_dim, qc = spec.heads * spec.head_dim, mark[3] = { 0 };
    const size_t k_bytes = b->kv_bytes(b, &spec, false, ctx + ROWS_DECODE),
                 v_bytes = b->kv_bytes(b, &spec, true, ctx + ROWS_DECODE), one = k_bytes + v_bytes;
    if (!k_bytes || !v_bytes) {
        printf("%s/%s does not fit %d columns\n", type_info(spec.k_type)->name, type_info(spec.v_type)->name, kc);
        return;
    }
    int32_t layers = (int32_t) ((mib << 20) / one);
    if (layers < 1) layers = 1;
    StateLayer *l = need(calloc((size_t) layers, sizeof *l));
    float *k = need(malloc(sizeof(float) * (size_t) PUT_ROWS * (size_t) kc)),
          *v = need(malloc(sizeof(float) * (size_t) PUT_ROWS * (size_t) kc));
    float *q = need(malloc(sizeof(float) * (size_t) ROWS_MAX * (size_t) qc)),
          *y = need(malloc(sizeof(float) * (size_t) ROWS_MAX * (size_t) qc));
    Pass p;
    for (int32_t i = 0; i < layers; i++) {
        l[i].mark = mark;
        l[i].k = need(b->alloc(b, k_bytes, "keys"));
        l[i].v = need(b->alloc(b, v_bytes, "values"));
    }
    double put = 0;
    for (int32_t at = 0; at < ctx; at += PUT_ROWS) {
        int32_t n = ctx - at < PUT_ROWS ? ctx - at : PUT_ROWS;
        randoms(k, (size_t) (n * kc), (uint64_t) (2 * at));
        randoms(v, (size_t) (n * kc), (uint64_t) (2 * at + 1));
        Tensor tk = f32(n, kc, k), tv = f32(n, kc, v);
        pass_of(&p, SLICE_CHAIN, n, at, 1, l);
        double start = seconds_now();
        b->kv_put(b, &tk, &tv, &p.r, 0, &spec);
        put += seconds_now() - start;
    }
    for (int32_t i = 1; i < layers; i++) {
        memcpy(l[i].k, l[0].k, k_bytes);
        memcpy(l[i].v, l[0].v, v_bytes);
    }
    randoms(q, (size_t) ROWS_MAX * (size_t) qc, 5);
    printf("%s/%s  %d positions, %zu bytes each, %d layers of %.0f MB; stored at %.2f us a row\n",
           type_info(spec.k_type)->name, type_info(spec.v_type)->name, ctx, one / (size_t) (ctx + ROWS_DECODE), layers,
           (double) one * 1e-6, put / ctx * 1e6);
    double best[MAX_LIST];
    for (int i = 0; i < n_rows; i++) best[i] = INFINITY;
    for (int round = 0; round < rounds; round++) {
        roofline_round(&limits->fastest, limits->roof, roofline_threads(limits->roof), 0);
        for (int i = 0; i < n_rows; i++) {
            for (int32_t il = 0; il < layers; il++) {
                Tensor tk = f32(rows[i], kc, k), tv = f32(rows[i], kc, v),
                       tq = f32(rows[i], qc, q), ty = f32(rows[i], qc, y);
                pass_of(&p, SLICE_TREE, rows[i], ctx, 1, l);
                b->kv_put(b, &tk, &tv, &p.r, il, &spec);
                double start = seconds_now();
                b->attend(b, &ty, &tq, &p.r, il, &spec);
                best[i] = fmin(best[i], seconds_now() - start);
            }
        }
    }
    check(b);
    double bandwidth = limits->fastest.bytes_per_s, peak = limits->fastest.f32_ops_per_s / 2;
    printf("  limits: %.1f GB/s, float %.0f GMAC/s\n", bandwidth * 1e-9, peak * 1e-9);
    for (int i = 0; i < n_rows; i++) {
        double bytes = (double) one / (ctx + ROWS_DECODE) * ctx, macs = 2.0 * rows[i] * qc * ctx,
               limit = fmax(bytes / bandwidth, macs / peak);
        printf("  rows %2d  %10.1f us  %6.2f GB/s  %6.1f GMAC/s  T(n)/T(1) %5.2f  %3.0f %% of the limit\n", rows[i],
               best[i] * 1e6, bytes / best[i] * 1e-9, macs / best[i] * 1e-9, best[i] / best[0], 100 * limit / best[i]);
    }
    fflush(stdout);
    for (int32_t i = 0; i < layers; i++) b->release(b, l[i].k, k_bytes), b->release(b, l[i].v, v_bytes);
    free(l), free(k), free(v), free(q), free(y);
}

/* Several layers, so that matrices come from memory. */
static void delta(Backend *b, const LayerSpec *s, const int32_t *rows, int n_rows, size_t mib, int rounds)
{
    size_t matrix = sizeof(float) * (size_t) s->v_heads * (size_t) s->k_dim * (size_t) s->v_dim;
    int32_t layers = (int32_t) ((mib << 20) / matrix), ch = 2 * s->k_heads * s->k_dim + s->v_heads * s->v_dim,
            vals = s->v_heads * s->v_dim, mark[3] = { 1, 1, 1 };
    if (layers < 1) layers = 1;
    if (layers > 400) layers = 400;
    StateLayer *l = need(calloc((size_t) layers, sizeof *l));
    for (int32_t i = 0; i < layers; i++) {
        l[i].mark = mark;
        l[i].matrix = need(b->alloc(b, matrix, "matrices"));
        randoms(l[i].matrix, matrix / sizeof(float), (uint64_t) i);
        l[i].rec_a = need(b->alloc(b, sizeof(float) * ROWS_DECODE * (size_t) s->v_heads, "records"));
        l[i].rec_d = need(b->alloc(b, sizeof(float) * ROWS_DECODE * (size_t) vals, "records"));
        l[i].rec_k = need(b->alloc(b, sizeof(float) * 2 * ROWS_DECODE * (size_t) (s->k_heads * s->k_dim), "records"));
    }
    float *x = need(malloc(sizeof(float) * ROWS_MAX * (size_t) (ch + vals + 2 * s->v_heads))),
          *y = x + ROWS_MAX * (size_t) ch, *beta = y + ROWS_MAX * (size_t) vals,
          *alpha = beta + ROWS_MAX * (size_t) s->v_heads, *a = need(malloc(sizeof(float) * 2 * (size_t) s->v_heads)),
          *dt = a + s->v_heads;
    randoms(x, (size_t) ROWS_MAX * (size_t) (ch + vals + 2 * s->v_heads), 3);
    for (int32_t h = 0; h < s->v_heads; h++) a[h] = -1, dt[h] = 0;
    for (int i = 0; i < n_rows; i++) {
        double best = INFINITY, path = INFINITY;
        for (int round = 0; round < rounds; round++) {
            for (int32_t il = 0; il < layers; il++) {
                Pass p;
                /* every second layer has a noted path to fold in */
                pass_of(&p, SLICE_TREE, rows[i], 100, 1 + (il & 1), l);
                p.s.n_path = rows[i];
                for (int32_t t = 0; t < rows[i]; t++) p.s.path[t] = t;
                mark[2] = 1;
                Tensor ty = f32(rows[i], vals, y), tx = f32(rows[i], ch, x),
                       tb = f32(rows[i], s->v_heads, beta), ta = f32(rows[i], s->v_heads, alpha),
                       td = f32(1, s->v_heads, a), tt = f32(1, s->v_heads, dt);
                double start = seconds_now();
                b->delta(b, &ty, &tx, &tb, &ta, &td, &tt, &p.r, il, s);
                double took = seconds_now() - start;
                if (il & 1) path = fmin(path, took);
                else best = fmin(best, took);
            }
        }
        printf("delta %d/%dx%d, %d layers, rows %2d: %9.1f us, %.2f us per head and row; with a path of %2d to fold "
               "%9.1f us\n", s->v_heads, s->k_heads, s->k_dim, layers, rows[i], best * 1e6,
               best * 1e6 / s->v_heads / rows[i], rows[i], path * 1e6);
    }
    check(b);
    for (int32_t i = 0; i < layers; i++) {
        b->release(b, l[i].matrix, matrix);
        b->release(b, l[i].rec_a, sizeof(float) * ROWS_DECODE * (size_t) s->v_heads);
        b->release(b, l[i].rec_d, sizeof(float) * ROWS_DECODE * (size_t) vals);
        b->release(b, l[i].rec_k, sizeof(float) * 2 * ROWS_DECODE * (size_t) (s->k_heads * s->k_dim));
    }
    free(l), free(x), free(a);
}

/* "q8_0" or "q8_0/q4_0". */
static bool read_types(Type *k, Type *v, char *name)
{
    char *slash = strchr(name, '/');
    if (slash) *slash = 0;
    return type_from_name(k, name) && type_from_name(v, slash ? slash + 1 : name);
}

int main(int argc, char **argv)
{
    char types[512] = "f16,bf16,q8_0,q5_1,q5_0,q4_1,q4_0,tq3_0";
    int32_t ctx[MAX_LIST], rows[MAX_LIST];
    int n_ctx = list(ctx, "32768"), n_rows = list(rows, "1,8"), rounds = 5;
    LayerSpec spec = { .kind = LAYER_ATTENTION, .heads = 16, .kv_heads = 4, .head_dim = 256, .scale = 1 / 16.0f,
                       .causal = true };
    LayerSpec dn = { .kind = LAYER_DELTA, .conv_width = 4, .eps = 1e-6f };
    size_t mib = 1200;
    BackendOptions how = { .threads = 2 };
    char backend[32] = "cpu";
    CpuLevel level = level_best();
    for (int i = 1; i + 1 < argc; i += 2) {
        const char *value = argv[i + 1];
        if (!strcmp(argv[i], "--types")) snprintf(types, sizeof types, "%s", value);
        else if (!strcmp(argv[i], "--ctx")) n_ctx = list(ctx, value);
        else if (!strcmp(argv[i], "--rows")) n_rows = list(rows, value);
        else if (!strcmp(argv[i], "--heads") &&
                 sscanf(value, "%" SCNd32 "/%" SCNd32 "x%" SCNd32, &spec.heads, &spec.kv_heads, &spec.head_dim) == 3)
            continue;
        else if (!strcmp(argv[i], "--delta") &&
                 sscanf(value, "%" SCNd32 "/%" SCNd32 "x%" SCNd32, &dn.v_heads, &dn.k_heads, &dn.k_dim) == 3)
            dn.v_dim = dn.k_dim;
        else if (!strcmp(argv[i], "--mib"))
            mib = strtoul(value, NULL, 10);
        else if (!strcmp(argv[i], "--threads"))
            how.threads = atoi(value);
        else if (!strcmp(argv[i], "--rounds"))
            rounds = atoi(value);
        else if (!strcmp(argv[i], "--level") && level_from_name(&level, value) && level_here(level))
            snprintf(backend, sizeof backend, "cpu:%s", value);
        else {
            fprintf(stderr, "lab_attend: %s %s is not understood, or the level is not here\n", argv[i], value);
            return 2;
        }
    }
    for (int i = 0; i < n_rows; i++)
        if (rows[i] < 1 || rows[i] > ROWS_MAX) {
            fprintf(stderr, "lab_attend: %d rows, expected 1 to %d\n", rows[i], ROWS_MAX);
            return 2;
        }
    Limits limits = { 0 };
    Backend *cpu, *b;
    Error err;
    if (roofline_open(&limits.roof, how.threads, level, &err) != ST_OK ||
        backend_open(&cpu, backend, &how, &err) != ST_OK || cpu->fork(cpu, 0, &b, &err) != ST_OK) {
        fprintf(stderr, "lab_attend: %s\n", err.text);
        return 1;
    }
    printf("%s, %d threads\n", level_name(level), how.threads);
    for (int c = 0; c < n_ctx; c++) {
        char names[512];
        snprintf(names, sizeof names, "%s", types);
        for (char *save, *name = strtok_r(names, ",", &save); name; name = strtok_r(NULL, ",", &save)) {
            if (!read_types(&spec.k_type, &spec.v_type, name)) {
                fprintf(stderr, "lab_attend: type %s is unknown\n", name);
                return 2;
            }
            attention(b, spec, ctx[c], rows, n_rows, mib, rounds, &limits);
        }
    }
    if (dn.v_heads) delta(b, &dn, rows, n_rows, mib, rounds);
    roofline_close(limits.roof);
    b->close(b);
    cpu->close(cpu);
    return 0;
}
