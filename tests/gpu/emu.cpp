/* emu.cpp - the fibers behind emu.h, and its device memory. */
#include "backend/gpu/gpu.h"

#include <map>
#include <signal.h>
#include <stdarg.h>
#include <sys/mman.h>
#if defined(__AVX2__)
#include <immintrin.h>
#endif
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(p, n) ((void) (p), (void) (n))
#define ASAN_UNPOISON_MEMORY_REGION(p, n) ((void) (p), (void) (n))
#endif
/* Sanitizers are for kernels; what switches between threads would be most of their time. */
#define UNCHECKED __attribute__((no_sanitize("address", "undefined")))

Emu emu;
EmuMemory emu_memory;

/* Saves what a call must preserve, and the floating point control is the same for all. */
extern "C" void emu_switch(void **save, void *to);
#if defined(__x86_64__)
asm(".hidden emu_switch\n.globl emu_switch\n.type emu_switch,@function\nemu_switch:\n"
    "push %rbp; push %rbx; push %r12; push %r13; push %r14; push %r15\n"
    "mov %rsp,(%rdi); mov %rsi,%rsp\n"
    "pop %r15; pop %r14; pop %r13; pop %r12; pop %rbx; pop %rbp\n"
    "pop %rcx; jmp *%rcx\n");                      /* the processor guesses it better than a return */
enum { SAVED = 6 };
#elif defined(__aarch64__)
asm(".hidden emu_switch\n.globl emu_switch\n.type emu_switch,%function\nemu_switch:\n"
    "sub sp,sp,#160\nstp x19,x20,[sp]\nstp x21,x22,[sp,#16]\nstp x23,x24,[sp,#32]\nstp x25,x26,[sp,#48]\n"
    "stp x27,x28,[sp,#64]\nstp x29,x30,[sp,#80]\n"
    "stp d8,d9,[sp,#96]\nstp d10,d11,[sp,#112]\nstp d12,d13,[sp,#128]\nstp d14,d15,[sp,#144]\n"
    "mov x9,sp\nstr x9,[x0]\nmov sp,x1\n"
    "ldp x19,x20,[sp]\nldp x21,x22,[sp,#16]\nldp x23,x24,[sp,#32]\nldp x25,x26,[sp,#48]\n"
    "ldp x27,x28,[sp,#64]\nldp x29,x30,[sp,#80]\n"
    "ldp d8,d9,[sp,#96]\nldp d10,d11,[sp,#112]\nldp d12,d13,[sp,#128]\nldp d14,d15,[sp,#144]\nadd sp,sp,#160\nret\n");
#endif

void emu_fatal(const char *what, ...)
{
    va_list args;
    va_start(args, what);
    fflush(stdout);
    if (emu.running)
        fprintf(stderr, "emulated GPU: %s, block (%d, %d), thread %d: ", emu.kernel->name, emu.bid, emu.bid_y, emu.tid);
    else fprintf(stderr, "emulated GPU: ");
    vfprintf(stderr, what, args);
    fputc('\n', stderr);
    abort();
}

/* ---- device memory ---- */

static struct sigaction before;
static EmuMemory made[EMU_CARDS];
static int n_made;

static bool is_any_cards(uintptr_t p)
{
    for (int i = 0; i < n_made; i++) if (p - made[i].base < made[i].size) return true;
    return false;
}

static void on_segv(int, siginfo_t *info, void *)
{
    if (is_any_cards((uintptr_t) info->si_addr))
        emu_fatal(emu.running ? "touches device memory (%p) by other means than ld, ld_table, ld_weight, st, atomic_add"
                              : "the host touches device memory (%p)", info->si_addr);
    sigaction(SIGSEGV, &before, NULL);             /* again, for whom it concerns */
}

static void *reserve(size_t bytes, int how)
{
    return mmap(NULL, bytes, how, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
}

bool emu_memory_make(EmuMemory *out, size_t size)
{
    if (n_made == EMU_CARDS) return false;
    void *seen = reserve(size, PROT_NONE), *there = reserve(size, PROT_READ | PROT_WRITE);
    void *valid = reserve(size / EMU_GRANULE * sizeof(uint16_t), PROT_READ | PROT_WRITE);
    void *written = reserve(size / EMU_GRANULE, PROT_READ | PROT_WRITE);
    void *epochs = reserve(size / 16 * sizeof(uint32_t), PROT_READ | PROT_WRITE);
    if (seen == MAP_FAILED || there == MAP_FAILED || valid == MAP_FAILED || written == MAP_FAILED ||
        epochs == MAP_FAILED)
        return false;
    const ptrdiff_t away = (ptrdiff_t) ((uintptr_t) there - (uintptr_t) seen);
    *out = made[n_made] = EmuMemory{(uintptr_t) seen, size, away, (uint16_t *) valid, (uint8_t *) written,
                                    (uint32_t *) epochs, 0};
    if (n_made++) return true;
    struct sigaction act = {};
    act.sa_sigaction = on_segv, act.sa_flags = SA_SIGINFO;
    sigaction(SIGSEGV, &act, &before);
    return true;
}

static void mark(uintptr_t p, size_t bytes, bool taken)
{
    const size_t first = (p - emu_memory.base) / EMU_GRANULE, n = (bytes + EMU_GRANULE - 1) / EMU_GRANULE;
    memset(emu_memory.written + first, 0, n);
    for (size_t i = 0; i < n; i++) {
        const size_t left = bytes - i * EMU_GRANULE;
        emu_memory.valid[first + i] = (uint16_t) (!taken ? 0 : left < EMU_GRANULE ? left : (size_t) EMU_GRANULE);
    }
}

void emu_memory_take(uintptr_t p, size_t bytes) { mark(p, bytes, true); }
void emu_memory_drop(uintptr_t p, size_t bytes) { mark(p, bytes, false); }

/* What lies in whole granules is no longer a kernel's. */
void emu_memory_host_wrote(uintptr_t p, size_t bytes)
{
    const size_t from = p - emu_memory.base, first = (from + EMU_GRANULE - 1) / EMU_GRANULE;
    const size_t rest = (from + bytes) % EMU_GRANULE;
    size_t end = (from + bytes) / EMU_GRANULE;
    if (rest && emu_memory.valid[end] <= rest) end++;      /* up to a block's end */
    if (end > first) memset(emu_memory.written + first, 0, end - first);
}

/* Blocks of the host's memory, by address; base: of the memory of the card that they are pinned for. */
struct Pinned { size_t bytes; uintptr_t base; };
static std::map<uintptr_t, Pinned> pinned;

void emu_host_take(uintptr_t p, size_t bytes) { pinned[p] = Pinned{bytes, emu_memory.base}; }
void emu_host_drop(uintptr_t p) { pinned.erase(p); }

static bool is_pinned(uintptr_t p, size_t bytes)
{
    auto i = pinned.upper_bound(p);
    if (i == pinned.begin()) return false;
    --i;
    return p + bytes <= i->first + i->second.bytes && i->second.base == emu_memory.base;
}

void *emu_access(uintptr_t p, size_t bytes, size_t align)
{
    const uintptr_t at = p - emu_memory.base;
    const bool host = is_pinned(p, bytes);
    if (!host && at >= emu_memory.size && is_any_cards(p))
        emu_fatal("%zu bytes at %p, which is another card's memory", bytes, (void *) p);
    if (!host && (at >= emu_memory.size || emu_memory.size - at < bytes))
        emu_fatal("%zu bytes at %p, which is no address of device memory", bytes, (void *) p);
    if (p % align) emu_fatal("%zu bytes at %p, which is not aligned to %zu", bytes, (void *) p, align);
    if (host) return (void *) p;
    for (size_t i = 0; i < bytes; i++)
        if (emu_memory.valid[(at + i) / EMU_GRANULE] <= (at + i) % EMU_GRANULE)
            emu_fatal("%zu bytes at %p, byte %zu of which is not in allocated memory", bytes, (void *) p, i);
    return (void *) (p + (uintptr_t) emu_memory.away);
}

/* ---- shared memory ---- */

enum { GUARD = 2048 };                             /* bytes behind the struct that nobody may write */
static const uint8_t rubbish[4] = { 0xa5, 0xff, 0x7f, 0xc1 };
static size_t dirty;                               /* bytes of shared memory that are not rubbish as they were */

static void shared_new()
{
    ASAN_UNPOISON_MEMORY_REGION(emu.shared, EMU_SHARED);
    memset(emu.shared, rubbish[emu.order & 3], dirty);
    emu.struct_bytes = 0;
}

static void shared_check()
{
    const size_t from = emu.struct_bytes, most = EMU_SHARED, end = from + GUARD < most ? from + GUARD : most;
    dirty = end;
    ASAN_UNPOISON_MEMORY_REGION(emu.shared, EMU_SHARED);
    if (from < end && (emu.shared[from] != rubbish[emu.order & 3] ||
                       memcmp(emu.shared + from, emu.shared + from + 1, end - from - 1)))
        emu_fatal("shared memory was written within %zu bytes behind its struct", end - from);
}

uint8_t *emu_shared(size_t bytes, bool big)
{
    if (emu.struct_bytes == bytes) return emu.shared;
    if (emu.struct_bytes) emu_fatal("two structs of shared memory");
    if (big && bytes > emu.kernel->shared) emu_fatal("kernels.def says %zu bytes of shared memory, the kernel uses %zu",
                                                     emu.kernel->shared, bytes);
    emu.struct_bytes = bytes;
    ASAN_POISON_MEMORY_REGION(emu.shared + bytes, EMU_SHARED - bytes);
    return emu.shared;
}

/* ---- meetings ---- */

/* Products of the documented fragments: lane = 4 g + t. A: a0 row g, a1 row g + 8, columns 4 t; a2, a3 the same,
 * columns 16 + 4 t. B: column g. */
UNCHECKED static void mma(EmuLane *l, bool u8)
{
    alignas(32) int8_t a8[16][32], b8[8][4][8];    /* of B's column for each t: what its lane has */
    alignas(32) int16_t a[16][32], b[16][8][2];    /* b by pairs of columns: what one instruction multiplies */
    alignas(32) int32_t c[16][8];
    for (int i = 0; i < 32; i++) {
        const int g = i >> 2, t = i & 3;
        memcpy(a8[g] + 4 * t, &l[i].in[0], 4), memcpy(a8[g + 8] + 4 * t, &l[i].in[1], 4);
        memcpy(a8[g] + 16 + 4 * t, &l[i].in[2], 4), memcpy(a8[g + 8] + 16 + 4 * t, &l[i].in[3], 4);
        memcpy(b8[g][t], &l[i].in[4], 8);
        memcpy(&c[g][2 * t], &l[i].io[0], 8), memcpy(&c[g + 8][2 * t], &l[i].io[2], 8);
    }
    const int16_t sign = u8 ? 255 : -1;
    for (int r = 0; r < 16; r++)
        for (int k = 0; k < 32; k++) a[r][k] = (int16_t) (a8[r][k] & sign);
    for (int t = 0; t < 4; t++)
        for (int h = 0; h < 4; h++)
            for (int n = 0; n < 8; n++)
                for (int k = 0; k < 2; k++) b[8 * (h / 2) + 2 * t + h % 2][n][k] = b8[n][t][2 * h + k];
    for (int r = 0; r < 16; r++) {
#if defined(__AVX2__)
        __m256i sum = _mm256_load_si256((const __m256i *) c[r]);
        for (int k = 0; k < 16; k++) {
            int32_t pair;
            memcpy(&pair, &a[r][2 * k], 4);
            const __m256i both = _mm256_load_si256((const __m256i *) b[k]);
            sum = _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_set1_epi32(pair), both));
        }
        _mm256_store_si256((__m256i *) c[r], sum);
#else
        for (int n = 0; n < 8; n++) {
            int32_t sum = 0;
            for (int k = 0; k < 16; k++) sum += a[r][2 * k] * b[k][n][0] + a[r][2 * k + 1] * b[k][n][1];
            c[r][n] = (int32_t) ((uint32_t) c[r][n] + (uint32_t) sum);
        }
#endif
    }
    for (int i = 0; i < 32; i++) {
        const int g = i >> 2, t = i & 3;
        memcpy(&l[i].io[0], &c[g][2 * t], 8), memcpy(&l[i].io[2], &c[g + 8][2 * t], 8);
    }
}

/* All lanes of the warp have come to the same. */
UNCHECKED static void together(int warp, EmuKind kind)
{
    EmuLane *l = &emu.lane[warp * EMU_WARP];
    if (kind == EMU_SHFL) for (int i = 0; i < EMU_WARP; i++) l[i].io[2] = l[l[i].io[1]].io[0];
    if (kind == EMU_BALLOT) {
        uint32_t bits = 0;
        for (int i = 0; i < EMU_WARP; i++) bits |= (uint32_t) (l[i].io[0] & 1) << i;
        for (int i = 0; i < EMU_WARP; i++) l[i].io[2] = (int) bits;
    }
    if (kind == EMU_MMA || kind == EMU_MMA_U8) mma(l, kind == EMU_MMA_U8);
    if (kind == EMU_SYNC_WARP) EMU_WATCH(emu_race_met(warp));
    for (int i = 0; i < EMU_WARP; i++) l[i].at = EMU_RUNS;
    emu.waiting[warp] = 0, emu.runs[warp] = EMU_WARP;
}

UNCHECKED static void to_lane(int tid)
{
    void **save = &emu.lane[emu.tid].sp;
    if (tid == emu.tid) return;
    emu.tid = tid;
    emu_switch(save, emu.lane[tid].sp);
}

/* The first lane of a warp that runs, from this one on; -1: none. */
UNCHECKED static int next_in_warp(int warp, int lane)
{
    if (emu.runs[warp] == 0) return -1;
    for (int i = 0; i < EMU_WARP; i++, lane = emu.after[lane])
        if (emu.lane[warp * EMU_WARP + lane].at == EMU_RUNS) return warp * EMU_WARP + lane;
    return -1;
}

UNCHECKED static void leave()
{
    const int warp = emu.tid / EMU_WARP, warps = emu.n / EMU_WARP;
    int next = next_in_warp(warp, emu.after[emu.tid % EMU_WARP]);
    if (next >= 0) { to_lane(next); return; }
    for (int i = 0; i < EMU_WARP; i++) {
        const EmuKind k = emu.lane[warp * EMU_WARP + i].at;
        if (k != EMU_SYNC_BLOCK && k != EMU_DONE) emu_fatal("lanes of a warp wait for different things");
    }
    for (int w = 0; w < warps; w++)
        if ((next = next_in_warp(emu.warp_place[w], emu.first_lane)) >= 0) { to_lane(next); return; }
    if (emu.done && emu.done < emu.n) emu_fatal("some threads ended, others wait for them at a barrier");
    if (emu.done) { emu_switch(&emu.lane[emu.tid].sp, emu.sp); return; }
    EMU_WATCH(emu_race_met(-1));
    for (int i = 0; i < emu.n; i++) emu.lane[i].at = EMU_RUNS;
    for (int w = 0; w < warps; w++) emu.runs[w] = EMU_WARP;
    to_lane(emu.warp_place[0] * EMU_WARP + emu.first_lane);
}

UNCHECKED void emu_meet(EmuKind kind)
{
    const int tid = emu.tid, warp = tid / EMU_WARP;
    EmuLane *l = &emu.lane[tid];
    l->at = kind;
    emu.runs[warp]--;
    if (kind != EMU_SYNC_BLOCK) {
        if (emu.waiting[warp]++ == 0) emu.kind[warp] = kind;
        if (emu.kind[warp] != kind) emu_fatal("lanes of a warp do different things together");
        if (emu.waiting[warp] == EMU_WARP) { together(warp, kind); return; }
    }
    const int next = (tid & ~(EMU_WARP - 1)) + emu.after[tid % EMU_WARP];      /* mostly it can run */
    if (emu.lane[next].at == EMU_RUNS) {
        emu.tid = next;
        emu_switch(&l->sp, emu.lane[next].sp);
        return;
    }
    leave();
}

/* ---- blocks ---- */

UNCHECKED static void start()
{
    emu.kernel->run(emu.args);
    EmuLane *l = &emu.lane[emu.tid];
    if (l->n_copies) emu_fatal("asynchronous copies that nobody waited for");
    if (!l->waited) emu_fatal("ends without pass_wait");
    l->at = EMU_DONE;
    emu.runs[emu.tid / EMU_WARP]--, emu.done++;
    leave();
    abort();
}

/* Stacks with a page behind each that nobody can touch. Their tops are apart by more than whole pages: otherwise all
 * threads would share a few lines of the cache. */
#if defined(__SANITIZE_ADDRESS__)
enum { STACK = 256 << 10, PAGE = 4096 };
#else
enum { STACK = 64 << 10, PAGE = 4096 };
#endif
static uint8_t *stacks;

static bool make_stacks()
{
    stacks = (uint8_t *) reserve((size_t) EMU_THREADS * (STACK + PAGE), PROT_READ | PROT_WRITE);
    if (stacks == MAP_FAILED) return false;
    for (size_t i = 0; i < EMU_THREADS; i++) mprotect(stacks + i * (STACK + PAGE), PAGE, PROT_NONE);
    return true;
}

UNCHECKED static void *fresh_stack(int i)
{
    void **sp = (void **) (stacks + (size_t) (i + 1) * (STACK + PAGE) - (size_t) (i % 16) * 256) - 2;
#if defined(__x86_64__)
    *--sp = NULL;                                  /* at entry rsp is 8 beyond a multiple of 16 */
    *--sp = (void *) start;
    return sp - SAVED;
#else
    sp -= 20;
    sp[11] = (void *) start;
    return sp;
#endif
}

static int below(int n)
{
    static uint32_t seed = 1;
    seed = seed * 1664525 + 1013904223;
    return (int) ((seed >> 16) % (uint32_t) n);
}

static void put_in_order(int how, int warps)
{
    int place[EMU_WARP];
    const int by = how == 3 ? 2 * below(16) + 1 : 11, plus = how == 3 ? below(32) : 5;
    for (int i = 0; i < EMU_WARP; i++) place[i] = how == 0 ? i : how == 1 ? 31 - i : (i * by + plus) & 31;
    for (int i = 0; i < EMU_WARP; i++) emu.after[place[i]] = place[(i + 1) % EMU_WARP];
    emu.first_lane = place[0];
    for (int i = 0; i < warps; i++) emu.warp_place[i] = how == 0 ? i : warps - 1 - i;
    if (how == 3)
        for (int i = warps - 1; i > 0; i--) {
            const int j = below(i + 1), was = emu.warp_place[i];
            emu.warp_place[i] = emu.warp_place[j], emu.warp_place[j] = was;
        }
}

int32_t emu_add(int32_t *there, int32_t n)
{
    const int32_t was = *there;
    *there = (int32_t) ((uint32_t) was + (uint32_t) n);
    return was;
}
void emu_arrive(void *to, const void *from) { memcpy(to, from, 16); }

bool emu_arrives_now()
{
    const int how = emu.order & 3;
    return how == 1 || (how > 1 && below(2) == 1);
}

/* order: of lanes and warps 0 ascending, 1 descending, 2 scattered, 3 anew in every block; + 4: blocks descending.
 * Asynchronous copies arrive in 0 as late as can be, in 1 at once, in 2 and 3 the one way or the other. */
UNCHECKED void emu_launch(const EmuKernel *k, const void *args, int blocks, int blocks_y, size_t)
{
    const int threads = k->threads, how = emu.order & 3;
    const int64_t n = (int64_t) blocks * blocks_y;
    if (!stacks && !make_stacks()) emu_fatal("no memory for stacks");
    emu.kernel = k, emu.args = args, emu.n = threads, emu.blocks = blocks, emu.blocks_y = blocks_y;
    memset(emu.waiting, 0, sizeof emu.waiting);
    put_in_order(how, threads / EMU_WARP);
    emu.running = true;
    dirty = EMU_SHARED;
    for (int64_t at = 0; at < n; at++) {
        const int64_t b = emu.order & 4 ? n - 1 - at : at;
        emu.bid = (int) (b % blocks), emu.bid_y = (int) (b / blocks);
        if (how == 3) put_in_order(how, threads / EMU_WARP);
        shared_new();
        EMU_WATCH(emu_count_begin(at, n));
        EMU_WATCH(emu_race_begin(at));
        for (int i = 0; i < threads; i++) {
            EmuLane *l = &emu.lane[i];
            l->at = EMU_RUNS, l->waited = false, l->n_copies = l->group = 0;
            l->sp = fresh_stack(i);
        }
        for (int w = 0; w < threads / EMU_WARP; w++) emu.runs[w] = EMU_WARP;
        emu.done = 0;
        emu.tid = emu.warp_place[0] * EMU_WARP + emu.first_lane;
        emu_switch(&emu.sp, emu.lane[emu.tid].sp);
        EMU_WATCH(emu_count_end());
        EMU_WATCH(emu_race_end());
        shared_check();
    }
    emu.running = false;
}
