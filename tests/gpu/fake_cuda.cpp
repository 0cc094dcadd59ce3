/* fake_cuda.cpp - a driver without a device: the functions of libcuda.so.1 that the backend calls, over the emulator,
 * so that all of the backend runs as it is. Device memory is out of the host's reach except while work runs; work is
 * queued and done at the next synchronisation, of another stream if that waits for an event. An event that is asked for
 * has not passed twice, and then it has.
 * A call that needs a context fails where the calling thread has none; any call can be made to fail, and what is in use
 * is counted (fake_cuda.h). What a recording forbids ends the test, since the backend would go on without records.
 * Every card has a context and memory of its own. Whatever was made in one (memory on both sides of the bus, streams,
 * events, modules, functions, graphs) fails in a thread that has another one, and a kernel that touches another card's
 * memory ends the test. Drivers let much of that pass: copies in another card's stream, waits for its events, releases,
 * and, with unified addresses, its memory and what it has pinned. The backend has no need of that, so here it is a
 * mistake.
 * RATOON_EMU_DRY=FILE: nothing is computed or kept, however large; every launch is a line in FILE instead (kernel,
 * blocks, blocks_y, threads, bytes of large shared memory; of products also columns, and rows of the weights of the
 * kernel's first pack and its second), and so are recorded passes ("replay") and waits ("sync").
 * RATOON_EMU_CC=CC: of the card, else 90; "61,90": there are two, and so on up to FAKE_CARDS
 * RATOON_EMU_PROCESSORS=N: multiprocessors that the card says that it has, else 1
 * RATOON_EMU_MEMORY_CLOCK=KHZ: the clock of its memory, else 1000000; 0: the driver does not know it
 * RATOON_EMU_MEMORY=BYTES: of each card, else all that is emulated; "6000000,4000000": of the first and the others
 * RATOON_EMU_TAKEN=BYTES: of it, by other programs
 * RATOON_EMU_INTEGRATED=1: the card says that its memory is the host's
 * RATOON_EMU_GIVES=BYTES: of its memory no more can be had, whatever it says is free
 * RATOON_EMU_PINS=BYTES: of main memory no more can be pinned
 * RATOON_EMU_SPOILED=KERNEL: the floats of that kernel are a little wrong
 * RATOON_EMU_LOST=FILE: as soon as there is a FILE the context is lost (fake_cuda.h) */
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <vector>
#include <sys/mman.h>
#include <unistd.h>
#include "backend/gpu/gpu.h"

#include "fake_cuda.h"
#include "instructions.h"
#include "planted.h"

#define X(name, threads, Args, shared) extern "C" void name(const Args &);
#include "backend/gpu/kernels.def"
#include "instructions.def"
#include "planted.def"
#undef X
static const EmuKernel kernels[] = {
#define X(name, threads, Args, shared) \
    { #name, [](const void *a) { name(*(const Args *) a); }, threads, sizeof(Args), shared },
#include "backend/gpu/kernels.def"
#include "instructions.def"
#include "planted.def"
#undef X
};

enum { OK = 0, INVALID = 1, NO_MEMORY = 2, NO_CARD = 101, NO_CONTEXT = 201, NO_KERNELS = 209, BAD_HANDLE = 400,
       NOT_FOUND = 500, NOT_READY = 600, CONTEXT_GONE = 709, RECORDED = 900 };
typedef std::function<void()> Work;
struct Card;
/* Whatever can be given to a call as a handle has its card first. */
struct Function { Card *card = nullptr; const EmuKernel *kernel = nullptr; };
/* Its address is the context. */
struct Card {
    EmuMemory memory = {};                         /* made when the context is first retained */
    int       retained = 0;
    std::map<uintptr_t, size_t> live;              /* blocks in use, by address */
    std::map<uintptr_t, size_t> fresh;             /* those of them whose rubbish has not been written yet */
    size_t    high = 0;
    Function  function[sizeof kernels / sizeof *kernels];
};
static_assert((int) FAKE_CARDS == (int) EMU_CARDS, "as many as can have memory");
struct Module { Card *card; };
struct HostBlock { Card *card; size_t bytes; };
/* done: pieces of work that are no longer in the queue. epoch: begun by the last of them that waits for all before it,
 * as everything does but a launch behind a launch. */
/* launch: is the last of it. */
struct Graph { Card *card; std::vector<Work> work = {}; bool launch = false; int64_t bytes = 0; };
struct Stream {
    Card              *card;
    std::deque<Work>   queue;
    Graph             *capture = nullptr;
    uint64_t           done = 0;
    uint32_t           epoch = 0;
    explicit Stream(Card *of) : card(of) { begin_epoch(); }
    void begin_epoch() { static uint32_t begun; epoch = ++begun; }
};
/* What was queued up to `end` comes before the event; stream NULL: it was never recorded. */
struct Event { Card *card; Stream *stream = nullptr; uint64_t end = 0; int asked = 0; };
struct Launch { unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z, shared; void *stream, *attrs;
                unsigned n_attrs; };

static Card cards[FAKE_CARDS];
static std::map<uintptr_t, HostBlock> host;        /* blocks of pinned memory */
static std::recursive_mutex lock;
typedef std::lock_guard<std::recursive_mutex> Locked;

static FILE *dry;
static thread_local Card *current;                 /* whose context this thread has; NULL: none */
static thread_local int recorded;                  /* streams that this thread records */

static size_t pages_up(size_t n) { return (n + 4095) / 4096 * 4096; }
static uint8_t *there(const void *p) { return (uint8_t *) ((uintptr_t) p + (uintptr_t) emu_memory.away); }

/* In the current card's memory. */
static bool inside(const void *p, size_t n)
{
    auto i = current->live.upper_bound((uintptr_t) p);
    if (i == current->live.begin()) return false;
    --i;
    return (uintptr_t) p + n <= i->first + i->second;
}

/* The host's side of a copy. What nobody has pinned is fine. */
static bool pinned_elsewhere(const void *p)
{
    auto i = host.upper_bound((uintptr_t) p);
    if (i == host.begin()) return false;
    --i;
    return (uintptr_t) p < i->first + i->second.bytes && i->second.card != current;
}

static void spoil_fresh()
{
    for (auto &b : current->fresh) if (!dry) memset(there((void *) b.first), emu.order & 1 ? 0xff : 0xcd, b.second);
    current->fresh.clear();
}

/* Whole pages of zeros come from the system, so that large blocks cost nothing until they are used. */
static void fill(void *d, unsigned char v, size_t n)
{
    uint8_t *p = there(d), *from = (uint8_t *) pages_up((size_t) p);
    uint8_t *end = (uint8_t *) ((uintptr_t) (p + n) / 4096 * 4096);
    if (v == 0 && from < end) {
        madvise(from, (size_t) (end - from), MADV_DONTNEED);
        memset(p, 0, (size_t) (from - p)), memset(end, 0, (size_t) (p + n - end));
    } else memset(p, v, n);
}

static int put(void *stream, Work w)
{
    Stream *s = (Stream *) stream;
    if (s->capture) s->capture->work.push_back(w), s->capture->launch = false;
    else s->queue.push_back(w);
    return OK;
}

static int put_waiting(void *stream, Work w)
{
    return put(stream, [=] { ((Stream *) stream)->begin_epoch(), w(); });
}

static void drain(Stream *s, uint64_t end)
{
    if (!s->queue.empty()) spoil_fresh();
    while (!s->queue.empty() && s->done < end) {
        const Work w = s->queue.front();
        s->queue.pop_front();
        s->done++;
        w();
    }
}

/* What is queued is lost. */
static void lose(Stream *s)
{
    s->done += s->queue.size();
    s->queue.clear();
}

static int called();

/* Whether the thread has a context. From here on emulated memory is that of its card, whose work alone this call can
 * run: all handles have to be of it. */
static int ready()
{
    if (!current) return NO_CONTEXT;
    if (!current->retained) return CONTEXT_GONE;
    emu_memory = current->memory;
    return OK;
}
template <class... H> static bool ours(const H *... handle)
{
    return ((*(Card *const *) (const void *) handle == current) && ...);
}

static void forbid(bool so, const char *call)
{
    if (so) emu_fatal("%s in a recording", call);
}

static int64_t setting(const char *name, int64_t otherwise)
{
    const char *value = getenv(name);
    return value ? atoll(value) : otherwise;
}

/* A list, whose last one is that of all other cards, too. Returns how many it has. */
static int settings(const char *name, int64_t out[FAKE_CARDS])
{
    const char *value = getenv(name);
    int n = value ? 1 : 0;
    for (int i = 0; value && i < FAKE_CARDS; i++) {
        const char *comma = strchr(value, ',');
        out[i] = atoll(value);
        if (comma && n < FAKE_CARDS) value = comma + 1, n++;
    }
    return n;
}

#pragma GCC visibility push(default)
extern "C" {

/* Also tells the backend that the kernels are here. */
FakeCuda ratoon_emulated_driver = [] {
    FakeCuda f = {};
    int64_t cc[FAKE_CARDS];
    const int n_cc = settings("RATOON_EMU_CC", cc);
    f.version = 13000, f.cc = (int) setting("RATOON_EMU_CC", 90), f.devices = n_cc > 1 ? n_cc : 1;
    for (int i = 0; n_cc > 1 && i < FAKE_CARDS; i++) f.card_cc[i] = (int) cc[i];
    f.memory = setting("RATOON_EMU_MEMORY", 0), f.taken = setting("RATOON_EMU_TAKEN", 0);
    int64_t memory[FAKE_CARDS];
    if (settings("RATOON_EMU_MEMORY", memory) > 1) memcpy(f.card_memory, memory, sizeof memory);
    f.spoiled = getenv("RATOON_EMU_SPOILED");
    f.integrated = setting("RATOON_EMU_INTEGRATED", 0) != 0;
    return f;
}();
#define fake ratoon_emulated_driver

/* Begins every function: counts it, and returns if it is to fail, or lacks the context that it needs. */
#define CALL Locked l(lock); if (int code = called()) return code
#define CALL_IN_CONTEXT CALL; if (int code = ready()) return code
/* The same for what is done with handles, all of which are of that context. */
#define OURS(...) if (!ours(__VA_ARGS__)) return BAD_HANDLE
#define CALL_WITH(...) CALL_IN_CONTEXT; OURS(__VA_ARGS__)
/* The same for what takes memory, which cannot be recorded. */
#define CALL_TAKES CALL_IN_CONTEXT; forbid(recorded, __func__); if (fake.sealed) return fake.refused++, NO_MEMORY
/* Begins a release, which does its work even if it is made to fail, but not for another context. */
#define RELEASES Locked l(lock); if (int code = ready()) return code

int cuInit(unsigned)
{
    CALL;
#if defined(__FMA__)
    if (!__builtin_cpu_supports("fma") || !__builtin_cpu_supports("avx2")) {
        fprintf(stderr, "emulated GPU: compiled for another processor; make clean\n");
        return INVALID;
    }
#endif
    emu.order = (int) setting("RATOON_EMU_ORDER", 0);
    const char *to = getenv("RATOON_EMU_DRY");
    if (to && !(dry = fopen(to, "w"))) return INVALID;
    return OK;
}
int cuDriverGetVersion(int *v) { CALL; *v = fake.version; return OK; }
int cuGetErrorName(int code, const char **s)
{
    *s = code == INVALID ? "CUDA_ERROR_INVALID_VALUE"
       : code == NO_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY"
       : code == NO_CARD ? "CUDA_ERROR_INVALID_DEVICE"
       : code == NO_CONTEXT ? "CUDA_ERROR_INVALID_CONTEXT"
       : code == BAD_HANDLE ? "CUDA_ERROR_INVALID_HANDLE"
       : code == CONTEXT_GONE ? "CUDA_ERROR_CONTEXT_IS_DESTROYED"
       : code == NOT_READY ? "CUDA_ERROR_NOT_READY"
       : code == RECORDED ? "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"
       : code == NOT_FOUND ? "CUDA_ERROR_NOT_FOUND" : "CUDA_ERROR_UNKNOWN";
    return OK;
}
int cuGetErrorString(int code, const char **s)
{
    *s = code == INVALID ? "invalid argument" : code == NO_MEMORY ? "out of memory"
       : code == NO_CARD ? "invalid device ordinal"
       : code == NO_CONTEXT ? "invalid device context"
       : code == BAD_HANDLE ? "invalid resource handle"
       : code == CONTEXT_GONE ? "context is destroyed"
       : code == NOT_READY ? "device not ready"
       : code == RECORDED ? "operation not permitted when stream is capturing"
       : code == NOT_FOUND ? "named symbol not found" : "unknown error";
    return OK;
}
int cuDeviceGetCount(int *n) { CALL; *n = fake.devices; return OK; }
static bool there_is(int device) { return device >= 0 && device < fake.devices && device < FAKE_CARDS; }
int cuDeviceGet(int *d, int i) { CALL; *d = i; return there_is(i) ? OK : NO_CARD; }
int cuDeviceGetName(char *s, int n, int) { CALL; snprintf(s, (size_t) n, "emulated GPU"); return OK; }
int cuDeviceGetAttribute(int *v, int what, int device)
{
    CALL;
    if (!there_is(device)) return NO_CARD;
    const int cc = fake.card_cc[device] ? fake.card_cc[device] : fake.cc;
    const std::map<int, int> known = { { 13, 1000000 }, { 16, (int) setting("RATOON_EMU_PROCESSORS", 1) },
                                       { 36, (int) setting("RATOON_EMU_MEMORY_CLOCK", 1000000) }, { 37, 512 },
                                       { 18, fake.integrated }, { 41, 1 } };
    auto i = known.find(what);
    *v = what == 75 ? cc / 10 : what == 76 ? cc % 10 : i == known.end() ? 0 : i->second;
    return OK;
}
/* Of a card, if a test has said so; 0: it has all that is emulated of one. */
static int64_t said_memory(int device) { return fake.card_memory[device] ? fake.card_memory[device] : fake.memory; }
static size_t emulated_memory() { return (size_t) (dry ? 200 : 8) << 30; }
static size_t memory_bytes(int device)
{
    return said_memory(device) ? (size_t) said_memory(device) : emulated_memory();
}
static int number() { return (int) (current - cards); }
static void count_bytes(int64_t n) { fake.device_bytes += n, fake.card_bytes[number()] += n; }
int cuDeviceTotalMem_v2(size_t *all, int device)
{
    CALL;
    if (!there_is(device)) return NO_CARD;
    *all = memory_bytes(device);
    return OK;
}
int cuDevicePrimaryCtxRetain(void **c, int device)
{
    CALL;
    if (!there_is(device)) return NO_CARD;
    Card *card = &cards[device];
    if (!card->memory.size && !emu_memory_make(&card->memory, emulated_memory())) return NO_MEMORY;
    card->retained++;
    fake.live++;
    *c = card;
    return OK;
}
int cuDevicePrimaryCtxRelease_v2(int device)
{
    Locked l(lock);
    if (!there_is(device)) return NO_CARD;
    if (!cards[device].retained) return NO_CONTEXT;
    cards[device].retained--;
    fake.live--;
    return called();
}
/* Does its work even if it is made to fail: what is released after that finds its context. */
int cuCtxSetCurrent(void *c)
{
    Locked l(lock);
    int device = 0;
    while (c && device < FAKE_CARDS && c != &cards[device]) device++;
    if (device == FAKE_CARDS || (c && !cards[device].retained)) return NO_CONTEXT;
    current = (Card *) c;
    return called();
}
int cuMemGetInfo_v2(size_t *left, size_t *all)
{
    CALL_IN_CONTEXT;
    const bool said = said_memory(number()) != 0;
    const size_t has = memory_bytes(number()), taken = (size_t) fake.taken,
                 used = (said ? (size_t) fake.card_bytes[number()] : current->high) + taken;
    *all = has, *left = has > used ? has - used : 0;
    return OK;
}

/* What a block takes of the card: as the driver hands it out. */
static int64_t in_pages(size_t n)
{
    const int64_t page = 2 << 20, bytes = (int64_t) n;
    return bytes > page / 2 ? (bytes + page - 1) / page * page : bytes;
}

/* The first gap that is wide enough, 256 bytes behind each block kept free; what is new is rubbish. */
int cuMemAlloc_v2(void **p, size_t n)
{
    CALL_TAKES;
    const char *gives = getenv("RATOON_EMU_GIVES");
    const int64_t mine = fake.card_bytes[number()] + in_pages(n), has = said_memory(number());
    if ((gives && mine > atoll(gives)) || (has && mine + fake.taken > has)) return NO_MEMORY;
    uintptr_t at = emu_memory.base;
    const size_t need = (n + 511) / 256 * 256;
    for (auto &b : current->live) {
        if (b.first - at >= need) break;
        at = b.first + (b.second + 511) / 256 * 256;
    }
    if (at - emu_memory.base + need > emu_memory.size) return NO_MEMORY;
    if (at - emu_memory.base + need > current->high) current->high = at - emu_memory.base + need;
    current->live[at] = current->fresh[at] = n;
    emu_memory_take(at, n);
    fake.live++;
    count_bytes(in_pages(n));
    *p = (void *) at;
    return OK;
}
int cuMemFree_v2(void *p)
{
    RELEASES;
    auto i = current->live.find((uintptr_t) p);
    if (i == current->live.end()) return INVALID;
    emu_memory_drop(i->first, i->second);
    count_bytes(-in_pages(i->second));
    current->fresh.erase(i->first);
    current->live.erase(i);
    fake.live--;
    return called();
}
int cuMemAllocHost_v2(void **p, size_t n)
{
    CALL_TAKES;
    const char *pins = getenv("RATOON_EMU_PINS");
    if (pins && fake.host_bytes + (int64_t) n > atoll(pins)) return NO_MEMORY;
    if (!(*p = aligned_alloc(4096, pages_up(n)))) return NO_MEMORY;
    host[(uintptr_t) *p] = HostBlock{current, n};
    emu_host_take((uintptr_t) *p, n);
    fake.live++;
    fake.host_bytes += (int64_t) n;
    return OK;
}
int cuMemFreeHost(void *p)
{
    RELEASES;
    auto i = host.find((uintptr_t) p);
    if (i == host.end() || i->second.card != current) return INVALID;
    fake.host_bytes -= (int64_t) i->second.bytes;
    emu_host_drop(i->first);
    host.erase(i);
    free(p);
    fake.live--;
    return called();
}
int cuMemcpyHtoDAsync_v2(void *d, const void *h, size_t n, void *s)
{
    CALL_WITH(s);
    if (!inside(d, n) || pinned_elsewhere(h)) return INVALID;
    Stream *stream = (Stream *) s;
    const bool now = fake.eager && stream->queue.empty() && !stream->capture;
    fake.copied += (int64_t) n;
    put_waiting(s, [=] {
        if (!inside(d, n)) emu_fatal("a copy to %p, which was released meanwhile", d);
        if (dry) return;
        memcpy(there(d), h, n);
        emu_memory_host_wrote((uintptr_t) d, n);
    });
    if (now) drain(stream, UINT64_MAX);
    return OK;
}
int cuMemcpyDtoHAsync_v2(void *h, const void *d, size_t n, void *s)
{
    CALL_WITH(s);
    if (!inside(d, n) || pinned_elsewhere(h)) return INVALID;
    return put_waiting(s, [=] { if (dry) memset(h, 0, n); else memcpy(h, there(d), n); });
}
int cuMemcpyDtoDAsync_v2(void *d, const void *from, size_t n, void *s)
{
    CALL_WITH(s);
    if (!inside(d, n) || !inside(from, n)) return INVALID;
    return put_waiting(s, [=] { if (!dry) memmove(there(d), there(from), n); });
}
int cuMemsetD8Async(void *d, unsigned char v, size_t n, void *s)
{
    CALL_WITH(s);
    auto i = current->fresh.find((uintptr_t) d);
    if (i != current->fresh.end() && i->second == n && !((Stream *) s)->capture) current->fresh.erase(i);
    return inside(d, n) ? put_waiting(s, [=] { if (!dry) fill(d, v, n); }) : INVALID;
}
int cuModuleLoadData(void **m, const void *)
{
    CALL_TAKES;
    if (fake.no_kernels) return NO_KERNELS;
    fake.live++;
    *m = new Module{current};
    return OK;
}
int cuModuleUnload(void *m) { RELEASES; OURS(m); delete (Module *) m; fake.live--; return called(); }
int cuModuleGetFunction(void **f, void *m, const char *name)
{
    CALL_WITH(m);
    Function *function = current->function;
    for (auto &k : kernels) {
        *function = Function{current, &k};
        if (!strcmp(k.name, name)) { *f = function; return OK; }
        function++;
    }
    return NOT_FOUND;
}
int cuFuncSetAttribute(void *f, int, int) { CALL_WITH(f); return OK; }
static void list_launch(const EmuKernel *k, const void *args, int blocks, int blocks_y)
{
    fprintf(dry, "%s %d %d %d %zu", k->name, blocks, blocks_y, k->threads, k->shared);
    if (strncmp(k->name, "matmul_", 7) == 0 && k->args == sizeof(MatmulArgs)) {
        const MatmulArgs &a = *(const MatmulArgs *) args;
        int rows[2] = { 0, 0 };
        for (int i = 0; i < a.n_products; i++) rows[a.product[i].second] += a.product[i].rows;
        fprintf(dry, " %d %d %d", a.cols, rows[0], rows[1]);
    }
    fprintf(dry, "\n");
}

int cuLaunchKernelEx(const Launch *c, const Function *function, void **params, void **)
{
    CALL_WITH(c->stream, function);
    const EmuKernel *k = function->kernel;
    if (c->grid_z != 1 || c->block_y != 1 || c->block_z != 1 || (int) c->block_x != k->threads || !c->grid_x ||
        !c->grid_y || c->grid_y > 65535 || c->shared != k->shared)
        return INVALID;
    std::vector<uint8_t> args((uint8_t *) params[0], (uint8_t *) params[0] + k->args);      /* captured at the call */
    const int gx = (int) c->grid_x, gy = (int) c->grid_y;
    const size_t shared = c->shared;
    fake.launches++, fake.card_launches[number()]++;
    Stream *s = (Stream *) c->stream;
    forbid(c->n_attrs && s->capture && !s->capture->launch, "an early launch behind anything else");
    put(s, [=] {
        emu_memory.epoch = s->epoch;
        if (fake.launched) fake.launched(k->name);
        emu.spoils = fake.spoiled && strcmp(fake.spoiled, k->name) == 0 ? &fake.spoils : nullptr;
        if (dry) list_launch(k, args.data(), gx, gy);
        else emu_launch(k, args.data(), gx, gy, shared);
    });
    if (s->capture) s->capture->launch = true;
    return OK;
}
int cuStreamCreate(void **s, unsigned) { CALL_TAKES; fake.live++; *s = new Stream(current); return OK; }
int cuStreamDestroy_v2(void *s) { RELEASES; OURS(s); delete (Stream *) s; fake.live--; return called(); }
int cuStreamSynchronize(void *s)                    /* if it fails, what was queued is lost */
{
    Locked l(lock);
    const int code = called();
    if (code) lose((Stream *) s);
    if (code) return code;
    if (int none = ready()) return none;
    OURS(s);
    forbid(recorded, __func__);
    fake.waits++;
    drain((Stream *) s, UINT64_MAX);
    if (dry) fprintf(dry, "sync\n"), fflush(dry);
    return OK;
}
int cuEventCreate(void **e, unsigned) { CALL_TAKES; fake.live++; *e = new Event{current}; return OK; }
int cuEventDestroy_v2(void *e) { RELEASES; OURS(e); delete (Event *) e; fake.live--; return called(); }
int cuEventRecord(void *e, void *s)
{
    CALL_WITH(e, s);
    Stream *stream = (Stream *) s;
    forbid(stream->capture, __func__);
    *(Event *) e = Event{current, stream, stream->done + stream->queue.size(), 0};
    return OK;
}
int cuEventQuery(void *e)                           /* if it fails, what was queued is lost: a copy has failed */
{
    enum { PATIENCE = 2 };
    Locked l(lock);
    Event *event = (Event *) e;
    const int code = called();
    if (code && event->stream) lose(event->stream);
    if (code) return code;
    if (int none = ready()) return none;
    OURS(e);
    if (!event->stream || event->stream->done >= event->end) return OK;
    if (event->asked++ < PATIENCE) return NOT_READY;
    drain(event->stream, event->end);
    return OK;
}
int cuStreamWaitEvent(void *s, void *e, unsigned)
{
    CALL_WITH(s, e);
    const Event event = *(Event *) e;
    forbid(((Stream *) s)->capture, __func__);
    return event.stream ? put(s, [=] { drain(event.stream, event.end); }) : OK;
}
/* The host's work must not call the driver: a call would be counted while this one is not at its end. */
int cuLaunchHostFunc(void *s, void (*work)(void *), void *arg)
{
    CALL_WITH(s);
    return put_waiting(s, [=] {
        const int64_t calls = fake.calls;
        if (!dry) work(arg);
        if (fake.calls != calls) emu_fatal("the host's work in a stream calls the driver");
    });
}
int cuStreamBeginCapture_v2(void *s, int)
{
    CALL_TAKES;
    OURS(s);
    if (fake.unrecorded) return RECORDED;
    ((Stream *) s)->capture = new Graph{current};
    recorded++;
    return OK;
}
int cuStreamEndCapture(void *s, void **g)          /* the recording has ended even if this fails */
{
    RELEASES;
    OURS(s);
    Graph *graph = ((Stream *) s)->capture;
    *g = ((Stream *) s)->capture = nullptr;
    if (!graph) return INVALID;
    recorded--;
    const int code = called();
    if (code) delete graph;
    else *g = graph, fake.live++;
    return code;
}
int cuGraphInstantiateWithFlags(void **e, void *g, unsigned long long)
{
    CALL_TAKES;
    OURS(g);
    fake.live++;
    Graph *exec = new Graph(*(Graph *) g);
    exec->bytes = fake.graph_bytes;
    count_bytes(exec->bytes);
    *e = exec;
    return OK;
}
int cuGraphUpload(void *e, void *s) { CALL_TAKES; OURS(e, s); return OK; }
int cuGraphLaunch(void *e, void *s)
{
    CALL_WITH(e, s);
    fake.replays++, fake.card_replays[number()]++;
    put_waiting(s, [] { if (dry) fprintf(dry, "replay\n"); });
    for (auto &w : ((Graph *) e)->work) put(s, w);
    return put_waiting(s, [] {});
}
int cuGraphExecDestroy(void *e)
{
    RELEASES;
    OURS(e);
    count_bytes(-((Graph *) e)->bytes);
    delete (Graph *) e;
    fake.live--;
    return called();
}
int cuGraphDestroy(void *g) { RELEASES; OURS(g); delete (Graph *) g; fake.live--; return called(); }

}
#pragma GCC visibility pop

static int called()
{
    enum { ILLEGAL_ADDRESS = 700 };
    static const char *const sign = getenv("RATOON_EMU_LOST");
    fake.calls++;
    if (fake.lost || (sign && access(sign, F_OK) == 0)) return ILLEGAL_ADDRESS;
    return fake.fail_in && --fake.fail_in == 0 ? fake.fail_with : OK;
}
