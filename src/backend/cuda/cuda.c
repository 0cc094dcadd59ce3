/* cuda.c - the CUDA backend: cards, memory, copies, launches, recorded passes. */
#include "backend/cuda/cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct { const char *name; int32_t threads; size_t args, shared; } KernelInfo;
static const KernelInfo kernels[] = {
#define X(name, threads, Args, shared) { #name, threads, sizeof(Args), shared },
#include "backend/gpu/kernels.def"
#undef X
};

bool cuda_ok(Cuda *c, int code, const char *what)
{
    if (code && !cuda_failed(c)) cuda_fail(&c->error, c->card->cu, code, what);
    return code == 0;
}

static int enter(const CudaCard *card) { return card->cu->cuCtxSetCurrent(card->context); }
void cuda_enter(Cuda *c) { cuda_ok(c, enter(c->card), "making the context current"); }

/* ---- launches ---- */

enum { ATTR_STREAM_SERIALIZATION = 6 };            /* CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION */
typedef struct { int id; char pad[4]; union { uint64_t align; char all[64]; int on; } value; } CuAttr;

/* An operation may come after one on another card: stages take turns within one thread. */
static void launch(Cuda *c, GpuKernel k, int64_t blocks, int64_t blocks_y, const void *args, size_t bytes)
{
    const KernelInfo *info = &kernels[k];
    if (cuda_failed(c) || blocks == 0 || blocks_y == 0) return;
    if (blocks < 0 || blocks > INT32_MAX || blocks_y < 0 || blocks_y > 65535 || bytes != info->args) {
        fail(&c->error, ST_UNSUPPORTED, "cuda: %s on %lld x %lld blocks with %zu bytes, expected up to %d x 65535 "
             "and %zu", info->name, (long long) blocks, (long long) blocks_y, bytes, INT32_MAX, info->args);
        return;
    }
    CuAttr early = { .id = ATTR_STREAM_SERIALIZATION, .value.on = 1 };
    CuLaunch l = { .grid_x = (unsigned) blocks, .grid_y = (unsigned) blocks_y, .grid_z = 1,
                   .block_x = (unsigned) info->threads, .block_y = 1, .block_z = 1, .shared = (unsigned) info->shared,
                   .stream = c->stream, .attrs = &early, .n_attrs = c->early && c->card->cc >= 90 ? 1 : 0 };
    c->early = true;
    cuda_enter(c);
    if (cuda_failed(c)) return;
    cuda_ok(c, c->card->cu->cuLaunchKernelEx(&l, c->card->function[k], (void *[]) { (void *) (uintptr_t) args }, NULL),
            info->name);
}

void cuda_launch(Cuda *c, GpuKernel k, int64_t blocks, int64_t blocks_y, const void *args, size_t bytes)
{
    cuda_flush(c);
    launch(c, k, blocks, blocks_y, args, bytes);
}

void cuda_delay(Cuda *c, GpuKernel k, int64_t blocks, int64_t blocks_y, const void *args, size_t bytes, size_t act_at,
                const Tensor *y)
{
    cuda_flush(c);
    CudaDelayed *d = &c->delayed;
    _Static_assert(sizeof(NormArgs) <= sizeof d->args && sizeof(GluArgs) <= sizeof d->args &&
                   sizeof(AddArgs) <= sizeof d->args && sizeof(SplitArgs) <= sizeof d->args &&
                   sizeof(RouteArgs) <= sizeof d->args, "of all that are delayed");
    *d = (CudaDelayed) { .kernel = k, .blocks = blocks, .blocks_y = blocks_y, .bytes = bytes, .act_at = act_at,
                         .y = y->data, .rows = y->rows, .cols = y->cols };
    memcpy(d->args, args, bytes);
}

void cuda_flush(Cuda *c)
{
    const size_t bytes = c->delayed.bytes;
    c->quantised.x = NULL;                         /* what follows may write these rows */
    c->delayed.bytes = 0;
    if (bytes) launch(c, c->delayed.kernel, c->delayed.blocks, c->delayed.blocks_y, c->delayed.args, bytes);
}

/* A launch waits that makes y, and no rows or columns besides. */
static bool makes(const CudaDelayed *d, const Tensor *y)
{
    return d->bytes && d->y == y->data && d->rows == y->rows && d->cols == y->cols;
}

const void *cuda_waiting(const Cuda *c, GpuKernel k, const Tensor *y)
{
    return makes(&c->delayed, y) && c->delayed.kernel == k ? c->delayed.args : NULL;
}

bool cuda_quantise_with(Cuda *c, const Tensor *x, const ActRows act[2])
{
    CudaDelayed *d = &c->delayed;
    if (!makes(d, x) || d->act_at == 0 || d->blocks != d->rows) return false;
    memcpy(d->args + d->act_at, act, 2 * sizeof *act);
    cuda_flush(c);
    return true;
}

/* ---- memory ---- */

static void *cuda_alloc(Backend *b, size_t bytes, const char *part)
{
    Cuda *c = cuda_of(b);
    void *p = NULL;
    cuda_enter(c);
    if (cuda_failed(c)) return NULL;
    int code = c->card->cu->cuMemAlloc_v2(&p, bytes ? bytes : 1);
    if (code == CUDA_NO_MEMORY)
        fail(&c->error, ST_MEMORY, "%s: no device memory for %zu bytes on %s", part, bytes, c->card->name);
    if (!cuda_ok(c, code, part)) return NULL;
    if (cuda_ok(c, c->card->cu->cuMemsetD8Async(p, 0, bytes ? bytes : 1, c->stream), "clearing memory") &&
        cuda_ok(c, c->card->cu->cuStreamSynchronize(c->stream), "clearing memory")) return p;
    c->card->cu->cuMemFree_v2(p);
    return NULL;
}

static void cuda_release(Backend *b, void *p, size_t bytes)
{
    (void) bytes;
    enter(cuda_of(b)->card);
    if (p) cuda_of(b)->card->cu->cuMemFree_v2(p);
}

/* Of an open card. One that is full has a byte free, since 0 says that nothing is known. */
static size_t free_of(const CudaCard *card)
{
    size_t there = 0, all = 0;
    if (enter(card) || card->cu->cuMemGetInfo_v2(&there, &all)) return 0;
    return there > 0 ? there : 1;
}

/* Of memory that a card shares, the driver counts only what nobody uses, and not what the system can free: the CPU's
 * backend knows better. */
static void memory(Backend *b, uint64_t *free, uint64_t *total)
{
    const CudaCard *card = cuda_of(b)->card;
    *free = card->integrated ? 0 : free_of(card);
    *total = card->integrated ? 0 : card->memory;
}

void cuda_settle(Cuda *c)
{
    cuda_flush(c);
    cuda_ok(c, c->card->cu->cuStreamSynchronize(c->stream), "waiting for the device");
    for (int32_t i = 0; i < c->n_outs; i++)
        if (!cuda_failed(c)) memcpy(c->out[i].host, c->staging + c->out[i].at, c->out[i].bytes);
    c->n_outs = 0;
    c->staged_in = c->staged_out = 0;
}

static size_t staging_left(Cuda *c)
{
    if (c->staged_in + c->staged_out + 64 > STAGING || c->n_outs == OUTS_MAX) cuda_settle(c);
    return STAGING - c->staged_in - c->staged_out;
}

static size_t up64(size_t n) { return (n + 63) / 64 * 64; }

uint8_t *cuda_staging(Cuda *c, size_t n)
{
    if (staging_left(c) < up64(n)) cuda_settle(c);
    uint8_t *p = c->staging + c->staged_in;
    c->staged_in += up64(n);
    return p;
}

static void copy_in(Backend *b, void *dst, const void *host, size_t n)
{
    Cuda *c = cuda_of(b);
    cuda_enter(c);
    cuda_flush(c);
    for (size_t at = 0; at < n && !cuda_failed(c);) {
        size_t left = staging_left(c), piece = n - at < left ? n - at : left / 64 * 64;
        memcpy(c->staging + c->staged_in, (const uint8_t *) host + at, piece);
        cuda_ok(c, c->card->cu->cuMemcpyHtoDAsync_v2((uint8_t *) dst + at, c->staging + c->staged_in, piece, c->stream),
                "copying to the device");
        c->staged_in += up64(piece) < left ? up64(piece) : left;
        at += piece;
    }
}

static void copy_out(Backend *b, void *host, const void *src, size_t n)
{
    Cuda *c = cuda_of(b);
    cuda_enter(c);
    cuda_flush(c);
    for (size_t at = 0; at < n && !cuda_failed(c);) {
        size_t left = staging_left(c), piece = n - at < left ? n - at : left / 64 * 64;
        size_t take = up64(piece) < left ? up64(piece) : left;
        c->staged_out += take;
        size_t to = STAGING - c->staged_out;
        cuda_ok(c, c->card->cu->cuMemcpyDtoHAsync_v2(c->staging + to, (const uint8_t *) src + at, piece, c->stream),
                "copying from the device");
        c->out[c->n_outs++] = (CudaOut) { (uint8_t *) host + at, to, piece };
        at += piece;
    }
}

static const void *view(Backend *b, void *buf, const void *src, size_t n)
{
    copy_out(b, buf, src, n);
    cuda_settle(cuda_of(b));
    return buf;
}

static void fill(Backend *b, void *dst, int value, size_t n)
{
    Cuda *c = cuda_of(b);
    cuda_enter(c);
    cuda_flush(c);
    if (cuda_failed(c) || n == 0) return;
    c->early = false;
    cuda_ok(c, c->card->cu->cuMemsetD8Async(dst, (unsigned char) value, n, c->stream), "filling memory");
}

static void copy(Backend *b, void *dst, const void *src, size_t n)
{
    Cuda *c = cuda_of(b);
    cuda_enter(c);
    cuda_flush(c);
    if (cuda_failed(c) || n == 0) return;
    c->early = false;
    cuda_ok(c, c->card->cu->cuMemcpyDtoDAsync_v2(dst, src, n, c->stream), "copying on the device");
}

/* ---- rates ---- */

/* What the card's own figures say, and not a measurement: clocks, lanes and the width of its memory. Of some cards that
 * share the host's memory, drivers do not say them. */
static void measure(Backend *b, int32_t n, uint64_t bytes, Peaks *fastest)
{
    enum { ATTR_CLOCK = 13, ATTR_MEMORY_CLOCK = 36, ATTR_MEMORY_BITS = 37, TRANSFERS = 2 };
    static const struct { int32_t cc; double int8, f32; } per_clock[] = { /* of a multiprocessor */
        { 75, 2048, 128 }, { 80, 4096, 128 }, { 86, 2048, 256 }, { 90, 8192, 256 }, { 100, 16384, 256 },
        { 120, 2048, 256 } };
    Cuda *c = cuda_of(b);
    const CudaDriver *cu = c->card->cu;
    int clock = 0, memory_clock = 0, bits = 0;     /* kHz */
    size_t k = 0;
    (void) n, (void) bytes;
    cuda_ok(c, cu->cuDeviceGetAttribute(&clock, ATTR_CLOCK, c->card->device), "asking for clocks");
    cuda_ok(c, cu->cuDeviceGetAttribute(&memory_clock, ATTR_MEMORY_CLOCK, c->card->device), "asking for clocks");
    cuda_ok(c, cu->cuDeviceGetAttribute(&bits, ATTR_MEMORY_BITS, c->card->device), "asking for clocks");
    if (!cuda_failed(c) && (clock <= 0 || memory_clock <= 0 || bits <= 0))
        fail(&c->error, ST_UNSUPPORTED, "cuda: the driver does not say the clocks of %s, which its rates follow from",
             c->card->name);
    while (k + 1 < sizeof per_clock / sizeof *per_clock && per_clock[k + 1].cc <= c->card->cc) k++;
    const double clocks = 1e3 * clock * c->card->processors, read = 1e3 * memory_clock * TRANSFERS * bits / 8;
    const Peaks p = { read, clocks * per_clock[k].int8, clocks * per_clock[k].f32 };
    if (p.bytes_per_s > fastest->bytes_per_s) fastest->bytes_per_s = p.bytes_per_s;
    if (p.int8_ops_per_s > fastest->int8_ops_per_s) fastest->int8_ops_per_s = p.int8_ops_per_s;
    if (p.f32_ops_per_s > fastest->f32_ops_per_s) fastest->f32_ops_per_s = p.f32_ops_per_s;
}

/* ---- passes ---- */

static int32_t record_of(const Cuda *c, const void *key, size_t n)
{
    for (int32_t i = 0; i < c->n_records; i++)
        if (c->record[i].n == n && memcmp(c->record[i].key, key, n) == 0) return i;
    return -1;
}

static void prepare(Backend *b, bool on) { cuda_of(b)->preparing = on; }

void cuda_visit(Cuda *c)
{
    if (c->visitor.store) cuda_enter(c);
    if (!cuda_failed(c)) cuda_store_enter(&c->visitor, c->stream, &c->error);
}

/* Passes without records are run as they are called, so what keeps the driver from recording is no failure, unless the
 * stream has failed. What else is wrong with a pass is found when it is called. */
static void stop_recording(Cuda *c)
{
    if (!cuda_failed(c) || c->card->cu->cuStreamSynchronize(c->stream)) return;
    c->error = (Error) { 0 };
    c->records_full = true;
}

/* Returns false if the driver does not replay it, as for lack of memory: then this pass has no record any more. */
static bool replay(Cuda *c, int32_t i)
{
    const CudaDriver *cu = c->card->cu;
    c->early = false;
    if (cuda_ok(c, cu->cuGraphLaunch(c->record[i].graph, c->stream), "replaying a pass")) return true;
    stop_recording(c);
    if (cuda_failed(c)) return true;
    cuda_ok(c, cu->cuGraphExecDestroy(c->record[i].graph), "forgetting a pass");
    c->record[i] = c->record[--c->n_records];
    return false;
}

/* Makes of a graph what can be replayed, with all that this takes of device memory. NULL: there is no room for it, or
 * that has failed. */
static void *instantiate(Cuda *c, void *graph)
{
    const CudaDriver *cu = c->card->cu;
    const size_t before = free_of(c->card);
    void *exec = NULL;
    if (!cuda_ok(c, cu->cuGraphInstantiateWithFlags(&exec, graph, 0), "recording a pass")) return NULL;
    const bool there = cuda_ok(c, cu->cuGraphUpload(exec, c->stream), "recording a pass");
    const size_t after = free_of(c->card);
    c->record_bytes += before > after ? before - after : 0;
    if (c->record_bytes > (size_t) RECORDS_MAX * RECORD_BYTES) c->records_full = true;
    if (there && !c->records_full) return exec;
    cuda_ok(c, cu->cuGraphExecDestroy(exec), "recording a pass");
    return NULL;
}

/* A pass is captured, which does not run it; its end makes a graph of it. */
static bool pass_begin(Backend *b, const void *key, size_t n)
{
    enum { THREAD_LOCAL = 1 };
    Cuda *c = cuda_of(b);
    cuda_enter(c);
    cuda_flush(c);
    if (cuda_failed(c)) return false;
    if (!c->preparing) cuda_visit(c);
    const bool fits = n > 0 && n <= sizeof c->recording.key;
    const int32_t i = fits ? record_of(c, key, n) : -1;
    if (!c->preparing) return i >= 0 && replay(c, i);
    if (i >= 0) return true;
    if (!fits || c->n_records == RECORDS_MAX || c->records_full) return true;
    if (!cuda_ok(c, c->card->cu->cuStreamBeginCapture_v2(c->stream, THREAD_LOCAL), "recording a pass")) {
        stop_recording(c);
        return c->records_full;
    }
    c->recording = (CudaRecord) { .n = n };
    c->early = false;
    memcpy(c->recording.key, key, n);
    return false;
}

static void pass_end(Backend *b, bool complete)
{
    Cuda *c = cuda_of(b);
    cuda_enter(c);
    cuda_flush(c);
    const CudaDriver *cu = c->card->cu;
    void *graph = NULL;
    if (c->recording.n == 0) return;
    cuda_ok(c, cu->cuStreamEndCapture(c->stream, &graph), "recording a pass");
    void *exec = complete && !cuda_failed(c) ? instantiate(c, graph) : NULL;
    if (graph) cuda_ok(c, cu->cuGraphDestroy(graph), "recording a pass");
    c->recording.graph = exec;
    if (exec) c->record[c->n_records++] = c->recording;
    c->recording.n = 0;
    stop_recording(c);
}

static void count_routes(Cuda *c, const GpuReport *now)
{
    c->routes.chosen += (uint32_t) now->chosen - (uint32_t) c->told.chosen;
    c->routes.read += (uint32_t) now->read - (uint32_t) c->told.read;
    c->told = *now;
}

static void leave_store(Cuda *c)
{
    const bool counted = !cuda_failed(c);
    Error failed = { 0 };
    cuda_store_leave(&c->visitor, counted, &c->routes, &failed);
    if (counted) c->error = failed;
}

/* Some errors cost the whole process its context. They are known by what is documented of them, that every later call
 * fails too: here a wait for nothing. */
static void note_loss(Cuda *c)
{
    char *text = c->error.text;
    const size_t n = strlen(text);
    if (c->error.code != ST_BACKEND || c->card->cu->cuStreamSynchronize(c->stream) == 0) return;
    c->error.code = ST_LOST;
    snprintf(text + n, ERROR_TEXT - n, "; the card's context is lost: start the program again");
}

static Status cuda_sync(Backend *b, Error *err)
{
    Cuda *c = cuda_of(b);
    cuda_enter(c);
    GpuReport now = c->told;
    now.wrong = (GpuError) { 0 };
    if (c->forked && !cuda_failed(c)) copy_out(b, &now, c->report, sizeof now);
    if (c->visitor.passing && !cuda_failed(c))
        copy_out(b, c->visitor.now, c->visitor.counts, cuda_store_counters(c->visitor.store) * sizeof *c->visitor.now);
    cuda_settle(c);
    if (!cuda_failed(c)) count_routes(c, &now);
    leave_store(c);
    if (!cuda_failed(c) && now.wrong.code == GPU_BAD_TOKEN)
        fail(&c->error, ST_ARG, "embedding: token %d, expected 0 to %d", now.wrong.value, now.wrong.limit);
    if (c->forked && cuda_failed(c))               /* what a kernel has found besides is not the next sync's to tell */
        cuda_ok(c, c->card->cu->cuMemsetD8Async(&c->report->wrong, 0, sizeof now.wrong, c->stream), "clearing memory");
    note_loss(c);
    Status code = c->error.code;
    if (code != ST_OK && err) *err = c->error;
    c->error = (Error) { 0 };
    return code;
}

/* ---- open, fork, close ---- */

static const size_t WORK_BYTES = (size_t) WORK_HEAD + WORK_INPUT + WORK_SPLITS + WORK_DRAW + WORK_COUNTS + WORK_TABLE;

static size_t fork_bytes(Backend *b, int32_t threads)
{
    (void) b, (void) threads;
    return WORK_BYTES + (size_t) RECORDS_MAX * RECORD_BYTES;
}

static void close_card(CudaCard *card)
{
    for (int32_t i = 0; i < card->n_modules; i++) card->cu->cuModuleUnload(card->module[i]);
    free(card->module);
    if (card->context) card->cu->cuDevicePrimaryCtxRelease_v2(card->device);
    free(card);
}

static void cuda_close(Backend *b)
{
    Cuda *c = cuda_of(b);
    enter(c->card);
    if (c->stream) c->card->cu->cuStreamSynchronize(c->stream);
    for (int32_t i = 0; i < c->n_records; i++) c->card->cu->cuGraphExecDestroy(c->record[i].graph);
    if (c->forked) cuda_store_quit(&c->visitor);
    if (c->work) c->card->cu->cuMemFree_v2(c->work);
    if (c->staging) c->card->cu->cuMemFreeHost(c->staging);
    if (c->stream) c->card->cu->cuStreamDestroy_v2(c->stream);
    if (!c->forked) {
        cuda_store_close(c->visitor.store);
        close_card(c->card);
    }
    pool_close(c->pool);
    free(c);
}

/* Stream and staging, of a fork or of the backend itself. */
static Status take_stream(Cuda *c, Error *err)
{
    enum { NON_BLOCKING = 1 };
    const CudaDriver *cu = c->card->cu;
    int code = cu->cuStreamCreate(&c->stream, NON_BLOCKING);
    if (code) return cuda_fail(err, cu, code, "making a stream");
    code = cu->cuMemAllocHost_v2((void **) &c->staging, STAGING);
    if (code == CUDA_NO_MEMORY)
        return fail(err, ST_MEMORY, "cuda: no pinned memory for %d bytes of staging, which is main memory that a "
                    "card can read (WSL limits it)", STAGING);
    return code ? cuda_fail(err, cu, code, "taking staging memory") : ST_OK;
}

static Status cuda_fork(Backend *b, int32_t threads, Backend **out, Error *err)
{
    (void) threads;
    *out = NULL;
    const Cuda *from = cuda_of(b);
    Cuda *c = calloc(1, sizeof *c);
    if (!c) return fail(err, ST_MEMORY, "cuda: out of memory");
    c->be = from->be;
    c->card = from->card;
    c->forked = true;
    int code = enter(c->card);
    Status st = code ? cuda_fail(err, c->card->cu, code, "making the context current") : take_stream(c, err);
    if (st == ST_OK) st = cuda_store_visit(&c->visitor, from->visitor.store, err);
    if (st == ST_OK) {
        c->work = cuda_alloc(&c->be, WORK_BYTES, "backend workspace");
        if (!c->work) {
            if (err) *err = c->error;
            st = c->error.code;
        }
    }
    if (st != ST_OK) {
        cuda_close(&c->be);
        return st;
    }
    c->report = (GpuReport *) (void *) c->work;
    c->tickets = (int32_t *) (void *) (c->work + 256);
    c->input = c->work + WORK_HEAD;
    c->splits = c->input + WORK_INPUT;
    c->draw = c->splits + WORK_SPLITS;
    c->visitor.counts = (int32_t *) (void *) (c->draw + WORK_DRAW);
    c->visitor.table = (uint64_t *) (void *) (c->draw + WORK_DRAW + WORK_COUNTS);
    *out = &c->be;
    return ST_OK;
}

/* the driver's numbers */
enum { ATTR_MULTIPROCESSORS = 16, ATTR_INTEGRATED = 18, ATTR_CC_MAJOR = 75, ATTR_CC_MINOR = 76, FUNC_SHARED = 8 };

/* The images, ended by NULL. The tests' driver has kernels of its own, and finds all of them in each. */
static const uint8_t *const *kernel_images(void)
{
    static const uint8_t none[2][16];
    static const uint8_t *const emulated[] = { none[0], none[1], NULL };
    return cuda_driver_emulated() ? emulated : cuda_images;
}

/* What is known of a card without opening it, and whether that keeps it from being used. */
static Status find_card(CudaCard *card, int32_t ordinal, Error *err)
{
    enum { LEAST = 75 };                           /* what `make cuda` compiles for */
    const CudaDriver *cu = card->cu;
    int major = 0, minor = 0, code = cu->cuDeviceGet(&card->device, ordinal);
    if (code == 0) code = cu->cuDeviceGetName(card->name, sizeof card->name, card->device);
    if (code == 0) code = cu->cuDeviceGetAttribute(&major, ATTR_CC_MAJOR, card->device);
    if (code == 0) code = cu->cuDeviceGetAttribute(&minor, ATTR_CC_MINOR, card->device);
    if (code == 0) code = cu->cuDeviceGetAttribute(&card->processors, ATTR_MULTIPROCESSORS, card->device);
    if (code == 0) code = cu->cuDeviceGetAttribute(&card->integrated, ATTR_INTEGRATED, card->device);
    if (code == 0) code = cu->cuDeviceTotalMem_v2(&card->memory, card->device);
    if (code) return cuda_fail(err, cu, code, "looking at the device");
    card->cc = 10 * major + minor;
    snprintf(card->level, sizeof card->level, "sm_%d", card->cc);
    if (card->cc < LEAST)
        return fail(err, ST_UNSUPPORTED, "cuda: %s is %s, expected a card of sm_%d or newer", card->name, card->level,
                    LEAST);
    if (kernel_images()[0]) return ST_OK;
    int version = 0;
    cu->cuDriverGetVersion(&version);
    return fail(err, ST_UNSUPPORTED, "cuda: this ratoon was built without GPU kernels; `make cuda` builds them, for "
                "NVIDIA's driver 580 (CUDA 13.0) or newer, by an nvcc of CUDA 12 for 550 (12.4); the driver here is "
                "for CUDA %d.%d", version / 1000, version % 1000 / 10);
}

/* Loads the images and finds every kernel in one of them. */
static Status find_kernels(CudaCard *card, Error *err)
{
    const CudaDriver *cu = card->cu;
    const uint8_t *const *image = kernel_images();
    size_t n = 0;
    while (image[n]) n++;
    card->module = calloc(n, sizeof *card->module);
    if (!card->module) return fail(err, ST_MEMORY, "cuda: out of memory");
    for (; *image; image++) {
        int code = cu->cuModuleLoadData(&card->module[card->n_modules], *image);
        if (code == CUDA_NO_KERNELS)
            return fail(err, ST_UNSUPPORTED, "cuda: this ratoon has no kernels for %s (%s); `make cuda CUDA_ARCHS=%d` "
                        "builds them", card->name, card->level, card->cc);
        if (code) return cuda_fail(err, cu, code, "loading the kernels");
        card->n_modules++;
    }
    for (int32_t i = 0; i < GPU_KERNELS; i++) {
        int code = CUDA_NOT_FOUND;
        for (int32_t m = 0; m < card->n_modules && code == CUDA_NOT_FOUND; m++)
            code = cu->cuModuleGetFunction(&card->function[i], card->module[m], kernels[i].name);
        if (code == 0 && kernels[i].shared > 48 << 10)
            code = cu->cuFuncSetAttribute(card->function[i], FUNC_SHARED, (int) kernels[i].shared);
        if (code) return cuda_fail(err, cu, code, kernels[i].name);
    }
    return ST_OK;
}

static Status count_cards(int *n, const CudaDriver *cu, Error *err)
{
    const int code = cu->cuDeviceGetCount(n);
    if (code) return cuda_fail(err, cu, code, "counting devices");
    return *n ? ST_OK : fail(err, ST_UNSUPPORTED, "cuda: the driver sees no device" CUDA_HIDDEN);
}

static Status open_card(CudaCard *card, int32_t ordinal, Error *err)
{
    TRY(find_card(card, ordinal, err));
    int code = card->cu->cuDevicePrimaryCtxRetain(&card->context, card->device);
    if (code) return cuda_fail(err, card->cu, code, "opening the device");
    code = enter(card);
    return code ? cuda_fail(err, card->cu, code, "making the context current") : find_kernels(card, err);
}

static Status cuda_open(Backend **out, const char *detail, const BackendOptions *o, Error *err)
{
    (void) o;
    *out = NULL;
    char *end = NULL;
    long ordinal = detail ? strtol(detail, &end, 10) : 0;
    if (detail && (end == detail || *end || ordinal < 0 || ordinal > 1023))
        return fail(err, ST_ARG, "cuda device: %s, expected a number (cuda:0)", detail);
    int n = 0;
    const CudaDriver *cu;
    TRY(cuda_driver(&cu, err));
    TRY(count_cards(&n, cu, err));
    if (ordinal >= n)
        return fail(err, ST_UNSUPPORTED, "cuda: device %ld, expected 0 to %d" CUDA_HIDDEN, ordinal, n - 1);
    CudaCard *card = calloc(1, sizeof *card);
    Cuda *c = calloc(1, sizeof *c);
    if (!card || !c) {
        free(card);
        free(c);
        return fail(err, ST_MEMORY, "cuda: out of memory");
    }
    card->cu = cu;
    snprintf(card->opened_as, sizeof card->opened_as, detail ? "cuda:%ld" : "cuda", ordinal);
    c->card = card;
    Status st = open_card(card, (int32_t) ordinal, err);
    if (st != ST_OK) {
        close_card(card);
        free(c);
        return st;
    }
    st = take_stream(c, err);
    if (st != ST_OK) {
        cuda_close(&c->be);
        return st;
    }
    static const int32_t widths[] = { 1, 2, 4, 8, 12, 16, 24, 32, 48, 64 };
    c->be = (Backend) {
        .name = card->opened_as, .level = card->level, .widths = widths, .n_widths = sizeof widths / sizeof *widths,
        .chunk = 512, .device = 1, .shares = card->integrated != 0, .page = PAGE, .staging = STAGING,
        .memory = memory, .measure = measure, .fork = cuda_fork, .fork_bytes = fork_bytes, .alloc = cuda_alloc,
        .release = cuda_release, .copy_in = copy_in, .copy_out = copy_out, .view = view, .fill = fill, .copy = copy,
        .pass_begin = pass_begin, .pass_end = pass_end, .prepare = prepare, .sync = cuda_sync, .close = cuda_close
    };
    cuda_rows_ops(&c->be);
    cuda_matmul_ops(&c->be);
    cuda_experts_ops(&c->be);
    cuda_kv_ops(&c->be);
    cuda_attend_ops(&c->be);
    cuda_delta_ops(&c->be);
    cuda_draw_ops(&c->be);
    cuda_canvas_ops(&c->be);
    *out = &c->be;
    return ST_OK;
}

static bool cuda_there(void)
{
    const CudaDriver *cu;
    int n = 0;
    return cuda_driver(&cu, NULL) == ST_OK && count_cards(&n, cu, NULL) == ST_OK && kernel_images()[0];
}

/* Opening it also tells whether the driver takes the kernels. */
static Status cuda_card(BackendCard *out, int32_t i, bool open, Error *err)
{
    int n = 0, version = 0;
    Error why = { 0 };
    *out = (BackendCard) { 0 };
    const CudaDriver *cu;
    TRY(cuda_driver(&cu, err));
    TRY(count_cards(&n, cu, err));
    if (i >= n) return ST_END;
    CudaCard *card = calloc(1, sizeof *card);
    if (!card) return fail(err, ST_MEMORY, "cuda: out of memory");
    card->cu = cu;
    if ((open ? open_card : find_card)(card, i, &why) == ST_OK && open) out->free = free_of(card);
    cu->cuDriverGetVersion(&version);
    out->memory = card->memory;
    snprintf(out->backend, sizeof out->backend, "cuda:%d", i);
    snprintf(out->name, sizeof out->name, "%s", card->name);
    snprintf(out->level, sizeof out->level, "%s", card->level);
    snprintf(out->driver, sizeof out->driver, "CUDA %d.%d", version / 1000, version % 1000 / 10);
    snprintf(out->why, sizeof out->why, "%.255s", why.text);
    close_card(card);
    return ST_OK;
}

const BackendEntry backend_cuda = { .name = "cuda", .there = cuda_there, .card = cuda_card, .driver = cuda_driver_name,
                                    .open = cuda_open };
