/* cpu.c - the CPU backend: memory, forks, and the choice of kernels. Operations run when they are called, so sync has
 * nothing to wait for. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "backend/cpu/cpu.h"
#include "backend/cpu/cpu_memory.h"
#include "base/check.h"

/* ---- sizes ---- */

static size_t weight_bytes(Backend *b, Type t, int32_t rows, int32_t cols)
{
    size_t packed = matmul_packed_bytes(t, rows, cols), bytes;
    if (!cpu_of(b)->in_place || packed == 0) return packed;
    if (matmul_group_bytes(t, cols) > SCRATCH_BYTES || !check_mul(&bytes, (size_t) rows, type_row_bytes(t, cols)))
        return 0;
    return bytes;
}

static size_t fork_bytes(Backend *b, int32_t threads)
{
    const Cpu *c = cpu_of(b);
    return sizeof *c + (size_t) (threads ? threads : c->threads) * SCRATCH_BYTES + INPUT_BYTES;
}

/* ---- memory ---- */

/* Large pieces are mapped directly from the system, on huge pages if available. Every page is touched now: otherwise
 * decoding would take the page faults, and resident memory would lag behind the plan. */
enum { LARGE = 2 << 20, PAGE = 4096, TOUCHING = 8 };       /* TOUCHING: threads at most */

typedef struct { uint8_t *at; size_t bytes; } Span;

static void *touch_span(void *arg)
{
    const Span *s = arg;
    for (size_t at = 0; at < s->bytes; at += PAGE) ((volatile uint8_t *) s->at)[at] = 0;
    return NULL;
}

/* Makes the system provide the pages now. It clears each of them, so a large piece is shared between a few threads. */
static void touch(uint8_t *p, size_t bytes)
{
    const size_t least = (size_t) 64 << 20;
    pthread_t id[TOUCHING];
    Span span[TOUCHING];
    int32_t wanted = pool_size(0), n = 1, started = 0;
    while (n < TOUCHING && n < wanted && bytes / (size_t) (n + 1) >= least) n++;
    size_t part = bytes / (size_t) n / LARGE * LARGE;
    for (int32_t i = 0; i < n; i++) {
        span[i] = (Span) { p + part * (size_t) i, i < n - 1 ? part : bytes - part * (size_t) i };
        if (i == n - 1 || pthread_create(&id[started], NULL, touch_span, &span[i]) != 0) touch_span(&span[i]);
        else started++;
    }
    while (started > 0) pthread_join(id[--started], NULL);
}

/* Maps memory that begins where a huge page may; NULL: there is none. */
static uint8_t *map_aligned(size_t bytes)
{
    const size_t page = (size_t) sysconf(_SC_PAGESIZE), pages = (bytes + page - 1) / page * page;
    uint8_t *all = mmap(NULL, pages + LARGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (all == MAP_FAILED) return NULL;
    size_t before = (LARGE - (uintptr_t) all % LARGE) % LARGE;
    if (before > 0) munmap(all, before);
    munmap(all + before + pages, LARGE - before);
    return all + before;
}

static uint64_t nodes;                             /* with memory, where there are several and nobody has chosen */

static void find_nodes(void)
{
    int policy = 0;
    const bool chosen = syscall(SYS_get_mempolicy, &policy, NULL, 0ul, NULL, 0ul) != 0 || policy != 0;
    const uint64_t all = memory_nodes("");
    if (!chosen && (all & (all - 1))) nodes = all;
}

/* By the nodes in turn, unless whoever started the process has said where (numactl). */
static void spread(void *p, size_t bytes)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, find_nodes);
    if (nodes) memory_spread(p, bytes, nodes);
}

static void *take(size_t bytes)
{
    if (bytes >= LARGE) {
        uint8_t *p = bytes <= SIZE_MAX - 2 * LARGE ? map_aligned(bytes) : NULL;
        if (!p) return NULL;
        madvise(p, bytes, MADV_HUGEPAGE);          /* advice only; kernels without huge pages refuse it */
        spread(p, bytes);
        touch(p, bytes);
        return p;
    }
    size_t round = (bytes + 64) & ~(size_t) 63;
    void *p = aligned_alloc(64, round);
    if (p) memset(p, 0, round);
    return p;
}

static void give(void *p, size_t bytes)
{
    if (!p) return;
    if (bytes >= LARGE) munmap(p, bytes);
    else free(p);
}

static void *cpu_alloc(Backend *b, size_t bytes, const char *part)
{
    Cpu *c = cpu_of(b);
    if (cpu_failed(c)) return NULL;
    void *p = take(bytes);
    if (!p) fail(&c->error, ST_MEMORY, "%s: no memory for %zu bytes", part, bytes);
    return p;
}

static void cpu_release(Backend *b, void *p, size_t bytes)
{
    (void) b;
    give(p, bytes);
}

static void copy_in(Backend *b, void *dst, const void *host, size_t n)
{
    if (!cpu_failed(cpu_of(b)) && n) memcpy(dst, host, n);
}

static void copy_out(Backend *b, void *host, const void *src, size_t n)
{
    if (!cpu_failed(cpu_of(b)) && n) memcpy(host, src, n);
}

static const void *view(Backend *b, void *buf, const void *src, size_t n)
{
    (void) b, (void) buf, (void) n;
    return src;
}

static void fill(Backend *b, void *dst, int value, size_t n)
{
    if (!cpu_failed(cpu_of(b)) && n) memset(dst, value, n);
}

static void copy(Backend *b, void *dst, const void *src, size_t n)
{
    if (!cpu_failed(cpu_of(b)) && n) memmove(dst, src, n);
}

/* ---- weights ---- */

/* dst: where the piece's first group goes */
typedef struct { Tensor *w; const void *src; uint8_t *dst; int32_t rows, per_task; } PackJob;

static void pack_task(void *arg, int32_t i, int32_t thread)
{
    (void) thread;
    const PackJob *j = arg;
    int32_t groups = (int32_t) (((int64_t) j->rows + WEIGHT_GROUP - 1) / WEIGHT_GROUP), g0 = i * j->per_task;
    int32_t g1 = groups - g0 < j->per_task ? groups : g0 + j->per_task;
    matmul_pack(j->dst, j->w->type, j->src, j->rows, j->w->cols, g0, g1);
}

/* The map outlives the model, and products read the file's own layout. */
static bool attach(Backend *b, Tensor *w, const Source *s)
{
    if (!cpu_of(b)->in_place || !s->map) return false;
    if (w->n && s->stride != weight_bytes(b, w->type, w->rows, w->cols)) return false;
    w->data = (void *) (uintptr_t) s->map;
    return true;
}

static void upload(Backend *b, Tensor *w, int32_t i, const void *src, int32_t row0, int32_t rows)
{
    Cpu *c = cpu_of(b);
    if (cpu_failed(c)) return;
    if (!matmul_packed_bytes(w->type, w->rows, w->cols)) {
        fail(&c->error, ST_UNSUPPORTED, "upload: %d x %d values of type %s cannot be a weight", w->rows, w->cols,
             type_info(w->type)->name);
        return;
    }
    uint8_t *to = (uint8_t *) w->data + weight_bytes(b, w->type, w->rows, w->cols) * (size_t) i;
    if (c->in_place) {
        size_t row_bytes = type_row_bytes(w->type, w->cols);
        memcpy(to + (size_t) row0 * row_bytes, src, (size_t) rows * row_bytes);
        return;
    }
    PackJob j = { w, src, to + (size_t) (row0 / WEIGHT_GROUP) * matmul_group_bytes(w->type, w->cols), rows,
                  UPLOAD_ROWS / WEIGHT_GROUP };
    int32_t groups = (int32_t) (((int64_t) rows + WEIGHT_GROUP - 1) / WEIGHT_GROUP);
    cpu_run(c, pack_task, &j, (groups + j.per_task - 1) / j.per_task, (int64_t) rows * w->cols);
}

/* ---- experts of which memory holds only some ---- */

static Status store_needs(Backend *b, StoreNeeds *out, const Stacked *s, int32_t n, const StoreOptions *o, Error *err)
{
    return expert_store_needs(out, s, n, cpu_of(b)->in_place, b->chunk, cpu_experts_rows(s, n, o->used), o, err);
}

static Status store(Backend *b, const Stacked *s, int32_t n, void *memory, const StoreOptions *o, Error *err)
{
    Cpu *c = cpu_of(b);
    TRY(expert_store_open(c->store, s, n, c->in_place, memory, o, err));
    if (!o->count) return ST_OK;
    Pool *pool;
    TRY(pool_open(&pool, c->threads, err));
    Status st = expert_store_fill(*c->store, pool, o, err);
    pool_close(pool);
    return st;
}

static void store_stats(Backend *b, StoreStats *out)
{
    *out = (StoreStats) { 0 };
    if (*cpu_of(b)->store) expert_store_stats(*cpu_of(b)->store, out);
}

static void store_counts(Backend *b, uint64_t *counts)
{
    if (*cpu_of(b)->store) expert_store_counts(*cpu_of(b)->store, counts);
}

/* ---- passes ---- */

static bool pass_begin(Backend *b, const void *key, size_t n)
{
    (void) b, (void) key, (void) n;
    return false;                                  /* nothing is recorded here */
}

static void pass_end(Backend *b, bool complete) { (void) b, (void) complete; }

static Status cpu_sync(Backend *b, Error *err)
{
    Cpu *c = cpu_of(b);
    Status code = c->error.code;
    if (code != ST_OK && err) *err = c->error;
    c->error = (Error) { 0 };
    return code;
}

static void cpu_close(Backend *b)
{
    Cpu *c = cpu_of(b);
    if (!c->pool) {                                /* not a fork */
        expert_store_close(*c->store);
        free(c->store);
    }
    expert_reader_close(c->reader);
    pool_close(c->pool);
    give(c->scratch, (size_t) c->threads * SCRATCH_BYTES);
    give(c->input, INPUT_BYTES);
    roofline_close(c->roof);
    free(c);
}

/* ---- open ---- */

static void measure(Backend *b, int32_t n, uint64_t bytes, Peaks *fastest)
{
    Cpu *c = cpu_of(b);
    if (cpu_failed(c)) return;
    if (!c->roof && roofline_open(&c->roof, c->threads, c->level, &c->error) != ST_OK) return;
    roofline_round(fastest, c->roof, n < 1 ? 1 : n > c->threads ? c->threads : n, bytes);
}

static Status choose_level(CpuLevel *out, const char *name, Error *err)
{
    *out = level_best();
    if (!name) return ST_OK;
    if (!level_from_name(out, name)) return fail(err, ST_ARG, "cpu level: %s, expected " LEVEL_WORDS, name);
    if (!level_here(*out))
        return fail(err, ST_UNSUPPORTED, "cpu level: %s, but this processor has only %s", name,
                    level_name(level_best()));
    return ST_OK;
}

float half_table[1 << 16];
static pthread_once_t half_once = PTHREAD_ONCE_INIT;

static void half_table_fill(void)
{
    for (uint32_t h = 0; h < 1 << 16; h++) half_table[h] = half_to_float((uint16_t) h);
}

static Status cpu_fork(Backend *b, int32_t threads, Backend **out, Error *err)
{
    *out = NULL;
    Cpu *c = malloc(sizeof *c);
    if (!c) return fail(err, ST_MEMORY, "cpu backend: out of memory");
    *c = *cpu_of(b);
    c->error = (Error) { 0 };
    Status st = pool_open(&c->pool, threads ? threads : c->threads, err);
    if (st != ST_OK) {
        free(c);
        return st;
    }
    c->threads = pool_threads(c->pool);
    c->scratch = take((size_t) c->threads * SCRATCH_BYTES);
    c->input = take(INPUT_BYTES);
    if (!c->scratch || !c->input) st = fail(err, ST_MEMORY, "cpu backend: no memory for the workspace of %d threads",
                                            c->threads);
    if (st == ST_OK && *c->store) st = expert_reader_open(&c->reader, *c->store, err);
    if (st != ST_OK) {
        cpu_close(&c->be);
        return st;
    }
    *out = &c->be;
    return ST_OK;
}

static Status cpu_open(Backend **out, const char *detail, const BackendOptions *o, Error *err)
{
    static const RowKernels *const rows[LEVEL_COUNT] = LEVEL_TABLE(rows);
    static const AttendKernels *const att[LEVEL_COUNT] = LEVEL_PRODUCT_TABLE(attend);
    static const DeltaKernels *const dn[LEVEL_COUNT] = LEVEL_TABLE(delta);
    *out = NULL;
    CpuLevel level;
    TRY(pool_check(o->threads, err));
    TRY(choose_level(&level, detail, err));
    pthread_once(&half_once, half_table_fill);
    Cpu *c = calloc(1, sizeof *c);
    ExpertStore **none = calloc(1, sizeof *none);
    if (!c || !none) {
        free(c);
        free(none);
        return fail(err, ST_MEMORY, "cpu backend: out of memory");
    }
    c->store = none;
    c->threads = pool_size(o->threads);
    c->in_place = o->no_repack;
    c->level = level;
    c->part_bytes = matmul_part_bytes();
    c->mm = matmul_kernels(level);
    c->rows = rows[level];
    c->att = att[level];
    c->dn = dn[level];
    Backend *b = &c->be;
    *b = (Backend) {
        .name = "cpu", .level = level_name(level), .chunk = 256, .weight_bytes = weight_bytes, .memory = cpu_memory,
        .measure = measure, .attach = attach, .store_needs = store_needs, .store = store, .store_stats = store_stats,
        .store_counts = store_counts, .fork = cpu_fork, .fork_bytes = fork_bytes, .alloc = cpu_alloc,
        .release = cpu_release, .upload = upload, .copy_in = copy_in, .copy_out = copy_out, .view = view, .fill = fill,
        .copy = copy, .pass_begin = pass_begin, .pass_end = pass_end, .sync = cpu_sync, .close = cpu_close
    };
    cpu_rows_ops(b);
    cpu_experts_ops(b);
    cpu_canvas_ops(b);
    cpu_state_ops(b);
    *out = b;
    return ST_OK;
}

static bool cpu_there(void) { return true; }

const BackendEntry backend_cpu = { .name = "cpu", .there = cpu_there, .open = cpu_open };
