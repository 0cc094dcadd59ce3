/* cpu.c - the CPU backend: memory, and the choice of kernels. Operations run when they are called, so sync has nothing to wait for. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "backend/cpu/cpu.h"
#include "backend/cpu/kv_units.h"
#include "base/check.h"

/* ---- sizes ---- */

static size_t weight_bytes(Backend *b, Type t, int32_t rows, int32_t cols)
{
    size_t packed = matmul_packed_bytes(t, rows, cols), bytes;
    if (!b->in_place || packed == 0) return packed;
    if (matmul_group_bytes(t, cols) > SCRATCH_BYTES || !check_mul(&bytes, (size_t) rows, type_row_bytes(t, cols))) return 0;
    return bytes;
}

static size_t kv_row_bytes(Backend *b, Type t, int32_t cols)
{
    (void) b;
    static const bool keeps[T_COUNT] = { [T_F32] = true, [T_F16] = true, [T_BF16] = true, [T_Q8_0] = true, [T_Q5_1] = true, [T_Q5_0] = true,
                                         [T_Q4_1] = true, [T_Q4_0] = true, [T_TQ3_0] = true };
    return t >= 0 && t < T_COUNT && keeps[t] && cols % type_info(t)->block == 0 ? type_row_bytes(t, cols) : 0;
}

static int32_t kv_slots(Backend *b, Type t, bool values)
{
    (void) b;
    return kv_unit(t, !values);
}

static size_t own_bytes(Backend *b)
{
    const Cpu *c = cpu_of(b);
    return sizeof *c + (size_t) c->threads * SCRATCH_BYTES + INPUT_BYTES + sizeof *c->turns;
}

/* ---- memory ---- */

/* Large pieces come from the system directly, on huge pages where there are any. Every page is touched at once: what is granted but not
 * there would be missed in the middle of a text, and the plan would not be what is resident. */
enum { LARGE = 2 << 20, PAGE = 4096 };

static void *take(size_t bytes)
{
    if (bytes >= LARGE) {
        void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED) return NULL;
        madvise(p, bytes, MADV_HUGEPAGE);          /* a wish; refused by kernels without them */
        for (size_t at = 0; at < bytes; at += PAGE) ((volatile uint8_t *) p)[at] = 0;
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

typedef struct { Tensor *w; const void *src; uint8_t *dst; int32_t rows, per_task; } PackJob;   /* dst: of the piece's first group */

static void pack_task(void *arg, int32_t i, int32_t thread)
{
    (void) thread;
    const PackJob *j = arg;
    int32_t groups = (int32_t) (((int64_t) j->rows + GROUP - 1) / GROUP), g0 = i * j->per_task;
    int32_t g1 = groups - g0 < j->per_task ? groups : g0 + j->per_task;
    matmul_pack(j->dst, j->w->type, j->src, j->rows, j->w->cols, g0, g1);
}

static void upload(Backend *b, Tensor *w, const void *src, int32_t row0, int32_t rows)
{
    Cpu *c = cpu_of(b);
    if (cpu_failed(c)) return;
    if (!matmul_packed_bytes(w->type, w->rows, w->cols)) {
        fail(&c->error, ST_UNSUPPORTED, "upload: %d x %d values of type %s cannot be a weight", w->rows, w->cols, type_info(w->type)->name);
        return;
    }
    if (b->in_place) {
        size_t row_bytes = type_row_bytes(w->type, w->cols);
        memcpy((uint8_t *) w->data + (size_t) row0 * row_bytes, src, (size_t) rows * row_bytes);
        return;
    }
    PackJob j = { w, src, (uint8_t *) w->data + (size_t) (row0 / GROUP) * matmul_group_bytes(w->type, w->cols), rows, UPLOAD_ROWS / GROUP };
    int32_t groups = (int32_t) (((int64_t) rows + GROUP - 1) / GROUP);
    cpu_run(c, pack_task, &j, (groups + j.per_task - 1) / j.per_task, (int64_t) rows * w->cols);
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
    pool_close(c->pool);
    give(c->scratch, (size_t) c->threads * SCRATCH_BYTES);
    give(c->input, INPUT_BYTES);
    give(c->turns, sizeof *c->turns);
    free(c);
}

/* ---- open ---- */

static Status choose_level(CpuLevel *out, const char *name, Error *err)
{
    *out = level_best();
    if (!name) return ST_OK;
    if (!level_from_name(out, name)) return fail(err, ST_ARG, "cpu level: %s, expected " LEVEL_WORDS, name);
    if (!level_here(*out)) return fail(err, ST_UNSUPPORTED, "cpu level: %s, but this processor has only %s", name, level_name(level_best()));
    return ST_OK;
}

float half_table[1 << 16];
static pthread_once_t half_once = PTHREAD_ONCE_INIT;

static void half_table_fill(void)
{
    for (uint32_t h = 0; h < 1 << 16; h++) half_table[h] = half_to_float((uint16_t) h);
}

Status backend_cpu_open(Backend **out, const CpuOptions *o, Error *err)
{
    static const RowKernels *const rows[LEVEL_COUNT] = LEVEL_TABLE(rows);
    static const AttendKernels *const att[LEVEL_COUNT] = LEVEL_PRODUCT_TABLE(attend);
    static const DeltaKernels *const dn[LEVEL_COUNT] = LEVEL_TABLE(delta);
    *out = NULL;
    CpuLevel level;
    TRY(choose_level(&level, o->level, err));
    pthread_once(&half_once, half_table_fill);
    Cpu *c = calloc(1, sizeof *c);
    if (!c) return fail(err, ST_MEMORY, "cpu backend: out of memory");
    Status st = pool_open(&c->pool, o->threads, err);
    if (st != ST_OK) {
        free(c);
        return st;
    }
    c->threads = pool_threads(c->pool);
    c->part_bytes = matmul_part_bytes();
    c->mm = matmul_kernels(level);
    c->rows = rows[level];
    c->att = att[level];
    c->dn = dn[level];
    c->scratch = take((size_t) c->threads * SCRATCH_BYTES);
    c->input = take(INPUT_BYTES);
    c->turns = take(sizeof *c->turns);
    if (!c->scratch || !c->input || !c->turns) {
        cpu_close(&c->be);
        return fail(err, ST_MEMORY, "cpu backend: no memory for the workspace of %d threads", c->threads);
    }
    Backend *b = &c->be;
    *b = (Backend) {
        .name = "cpu", .in_place = o->in_place, .weight_bytes = weight_bytes, .kv_row_bytes = kv_row_bytes, .kv_slots = kv_slots, .own_bytes = own_bytes, .alloc = cpu_alloc,
        .release = cpu_release, .upload = upload, .copy_in = copy_in, .copy_out = copy_out, .view = view, .fill = fill, .copy = copy,
        .pass_begin = pass_begin, .pass_end = pass_end, .sync = cpu_sync, .close = cpu_close
    };
    cpu_rows_ops(b);
    cpu_state_ops(b);
    *out = b;
    return ST_OK;
}
