/* emu.h - the dialect of kernels (src/backend/gpu/gpu.h) on the processor: blocks in turn, the threads of a block as
 * fibers on stacks of their own, all on one host thread. A thread runs until it meets others (barrier, shuffle, matrix
 * instruction); the last of a warp to come computes for all. The order of lanes, warps and blocks is a choice
 * (emu.order), and whether asynchronous copies arrive at once or not before they are waited for: results that depend on
 * it are races.
 *
 * What a card would let pass, or answer with anything, ends the process with a line that names kernel, block and
 * thread:
 *   - lanes of a warp that do not come together to the same, threads that end while others wait for them
 *   - global memory touched in another way than by ld, ld_table, ld_weight, st, atomic_add, copy16_* (kernels get
 *     addresses in a range that nobody can touch; what is there lies elsewhere), or not aligned, or outside of what is
 *     allocated, or another card's; of the host's memory anything but reads of what is pinned for the card
 *   - anything that a pass writes touched before pass_wait; memory that some kernel has written prefetched before it,
 *     by copy16_early memory that a launch has written which may still run
 *   - shared memory written behind the kernel's struct; under ASan, also read
 * Shared memory and new device memory are full of rubbish (in some orders NaN). */
#ifndef RATOON_TESTS_GPU_EMU_H
#define RATOON_TESTS_GPU_EMU_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(EMU_WATCHED)
/* Copied at once, as on a card, and not member by member: one access is to be reported. */
#define EMU_VECTOR4(name, T) \
    struct alignas(16) name { \
        typedef T All __attribute__((vector_size(16))); \
        union { struct { T x, y, z, w; }; All all; }; \
        name() = default; \
        name(T a, T b, T c, T d) : x(a), y(b), z(c), w(d) {} \
        name(const name &o) : all(o.all) {} \
        name &operator=(const name &o) { all = o.all; return *this; } \
    }
#define EMU_VECTOR2(name, T) \
    struct alignas(8) name { \
        typedef T All __attribute__((vector_size(8))); \
        union { struct { T x, y; }; All all; }; \
        name() = default; \
        name(T a, T b) : x(a), y(b) {} \
        name(const name &o) : all(o.all) {} \
        name &operator=(const name &o) { all = o.all; return *this; } \
    }
#else
#define EMU_VECTOR4(name, T) struct alignas(16) name { T x, y, z, w; }
#define EMU_VECTOR2(name, T) struct alignas(8) name { T x, y; }
#endif
EMU_VECTOR4(uint4, uint32_t);
EMU_VECTOR4(int4, int);
EMU_VECTOR4(float4, float);
EMU_VECTOR2(uint2, uint32_t);
EMU_VECTOR2(int2, int);
EMU_VECTOR2(float2, float);

enum { EMU_WARP = 32, EMU_THREADS = 1024, EMU_SHARED = 100 << 10, EMU_COPIES = 256, EMU_GRANULE = 256 };
enum EmuKind : uint8_t { EMU_RUNS, EMU_SYNC_WARP, EMU_SHFL, EMU_BALLOT, EMU_MMA, EMU_MMA_U8, EMU_SYNC_BLOCK, EMU_DONE };
struct EmuCopy { void *to; const void *from; int group; bool here; };
struct alignas(64) EmuLane {
    void    *sp;
    EmuKind  at;
    bool     waited;                               /* has called pass_wait */
    int      group, n_copies;
    int      io[4];
    uint32_t in[6];
};
struct EmuKernel { const char *name; void (*run)(const void *args); int threads; size_t args, shared; };
struct Emu {
    int      tid, bid, bid_y, blocks, blocks_y, n, order;
    bool     running;
    int64_t *spoils;                               /* how many floats that this kernel stores were spoiled; NULL: none
                                                    * are to be */
    int      after[EMU_WARP];                      /* the lane that runs after this one */
    size_t   struct_bytes;                         /* of the block's SHARED, once a thread has come to it */
    const EmuKernel *kernel;
    const void *args;
    void    *sp;                                   /* of the caller */
    EmuLane  lane[EMU_THREADS];
    int      first_lane, warp_place[EMU_THREADS / EMU_WARP];
    EmuKind  kind[EMU_THREADS / EMU_WARP];         /* what those who wait in the warp wait for */
    int      waiting[EMU_THREADS / EMU_WARP];
    int      runs[EMU_THREADS / EMU_WARP], done;   /* lanes of the warp that run; threads of the block that ended */
    EmuCopy  copy[EMU_THREADS][EMU_COPIES];
    alignas(128) uint8_t shared[EMU_SHARED];
};
extern Emu emu;
void emu_meet(EmuKind kind);
[[noreturn]] void emu_fatal(const char *what, ...) __attribute__((format(printf, 1, 2)));
void emu_launch(const EmuKernel *k, const void *args, int blocks, int blocks_y, size_t shared);
uint8_t *emu_shared(size_t bytes, bool big);

/* The memory of a card: [base, base + size) are the addresses that kernels and the host's code see, `away` from what is
 * there. For each granule of 256 bytes, how many from its start are allocated, and whether a kernel has written to it.
 * For every 16 bytes, the epoch in which one did: another one begins with whatever waits for all launches before it.
 * Pinned memory of the host has the same addresses for kernels, which may read it. emu_memory is that of the card whose
 * work runs: kernels and the functions below know no other, and what is pinned meanwhile is that card's alone. */
struct EmuMemory {
    uintptr_t base;
    size_t    size;
    ptrdiff_t away;
    uint16_t *valid;
    uint8_t  *written;
    uint32_t *epochs, epoch;
};
enum { EMU_CARDS = 8 };
extern EmuMemory emu_memory;
bool emu_memory_make(EmuMemory *out, size_t size); /* for one of at most EMU_CARDS */
void emu_memory_take(uintptr_t p, size_t bytes);
void emu_memory_drop(uintptr_t p, size_t bytes);
void emu_memory_host_wrote(uintptr_t p, size_t bytes);
void emu_host_take(uintptr_t p, size_t bytes);
void emu_host_drop(uintptr_t p);
void *emu_access(uintptr_t p, size_t bytes, size_t align); /* the slow way: where it is, if that is fine */
static inline bool emu_on_device(const void *p) { return (uintptr_t) p - emu_memory.base < emu_memory.size; }

/* Where the library is built for it accesses are watched (emu_watch.h): those to global memory here, to shared memory
 * by the compiler's reports. It reports nothing of emu.cpp, where what is no plain access is done then. */
#if defined(EMU_WATCHED)
#include "emu_watch.h"
#define EMU_WATCH(call) call
#else
#define EMU_WATCH(call) ((void) 0)
#endif
int32_t emu_add(int32_t *there, int32_t n);
void emu_arrive(void *to, const void *from);

template <class T> static inline T *emu_there(const T *p)
{
    const uintptr_t at = (uintptr_t) p - emu_memory.base;
    if (__builtin_expect(at >= emu_memory.size || emu_memory.valid[at / EMU_GRANULE] < at % EMU_GRANULE + sizeof(T) ||
                         at % alignof(T), 0))
        return (T *) emu_access((uintptr_t) p, sizeof(T), alignof(T));
    return (T *) ((uintptr_t) p + (uintptr_t) emu_memory.away);
}
static inline uint32_t *emu_epoch_of(const void *p)
{
    return &emu_memory.epochs[((uintptr_t) p - emu_memory.base) / 16];
}
template <class T> static inline T *emu_written(T *p)
{
    T *there = emu_there(p);
    if (!emu_on_device(p)) emu_fatal("writes to the host's memory (%p)", (const void *) p);
    emu_memory.written[((uintptr_t) p - emu_memory.base) / EMU_GRANULE] = 1;
    *emu_epoch_of(p) = emu_memory.epoch;
    return there;
}
/* What may be read before pass_wait. */
template <class T> static inline const T *emu_constant(const T *p)
{
    const T *there = emu_there(p);
    if (!emu.lane[emu.tid].waited && emu_on_device(p) &&
        emu_memory.written[((uintptr_t) p - emu_memory.base) / EMU_GRANULE])
        emu_fatal("reads %p, which a kernel has written, before pass_wait", (const void *) p);
    return there;
}

#define KERNEL(threads, name, Args) extern "C" void name(const Args &a); void name(const Args &a)
#define KERNEL_BLOCKS(threads, blocks, name, Args) KERNEL(threads, name, Args)
#define DEV static inline __attribute__((unused))
#define DEV_TABLE static const
#define UNROLL
#define UNROLL_BY(n)
#define TID (emu.tid)
#define BID (emu.bid)
#define BID_Y (emu.bid_y)
#define BLOCKS (emu.blocks)
#define BLOCKS_Y (emu.blocks_y)
#define SHARED(T, s) static_assert(sizeof(T) <= 48 << 10, "more than 48 KB of shared memory"); \
    T &s = *(T *) emu_shared(sizeof(T), false)
#define SHARED_BIG(T, s) static_assert(sizeof(T) <= 96 << 10, "more than 96 KB of shared memory"); \
    T &s = *(T *) emu_shared(sizeof(T), true)

DEV void sync_block() { emu_meet(EMU_SYNC_BLOCK); }
DEV void sync_warp() { emu_meet(EMU_SYNC_WARP); }
DEV void pass_wait()
{
    if (emu.lane[emu.tid].waited) emu_fatal("waits for the launch before twice");
    emu.lane[emu.tid].waited = true;
}
DEV void pass_next() {}
DEV int shfl(int v, int from)
{
    EmuLane *l = &emu.lane[emu.tid];
    l->io[0] = v, l->io[1] = from & 31;
    emu_meet(EMU_SHFL);
    return l->io[2];
}
DEV int shfl_xor(int v, int m) { return shfl(v, (emu.tid & 31) ^ m); }
DEV uint32_t warp_ballot(bool is)
{
    EmuLane *l = &emu.lane[emu.tid];
    l->io[0] = is;
    emu_meet(EMU_BALLOT);
    return (uint32_t) l->io[2];
}
DEV int atomic_add(int32_t *p, int32_t n)
{
    const bool shared = (uintptr_t) p - (uintptr_t) emu.shared < emu.struct_bytes;
    if (!shared && !emu.lane[emu.tid].waited) emu_fatal("atomic_add before pass_wait");
    int32_t *there = shared ? p : emu_written(p);
    EMU_WATCH(emu_race_add(there, shared));
    return emu_add(there, n);
}
DEV void fence() { EMU_WATCH(emu_race_fence()); }

template <class T> DEV T ld(const T *p)
{
    if (!emu.lane[emu.tid].waited) emu_fatal("reads what a pass writes before pass_wait");
    const T *there = emu_there(p);
    EMU_WATCH(emu_count(there, sizeof(T), EMU_LOAD));
    return *there;
}
template <class T> DEV T ld_table(const T *p)
{
    const T *there = emu_constant(p);
    EMU_WATCH(emu_count(there, sizeof(T), EMU_LOAD));
    return *there;
}
template <class T> DEV T ld_weight(const T *p)
{
    const T *there = emu_constant(p);
    EMU_WATCH(emu_count(there, sizeof(T), EMU_WEIGHT));
    return *there;
}
template <class T> static inline void emu_spoil(T *) {}
static inline void emu_spoil(float *p)
{
    uint32_t u;
    memcpy(&u, p, sizeof u), u ^= 1 << 13, memcpy(p, &u, sizeof u);     /* the last bit that a half keeps */
    ++*emu.spoils;
}
static inline void emu_spoil(float2 *p) { emu_spoil(&p->x); }
static inline void emu_spoil(float4 *p) { emu_spoil(&p->x); }
template <class T, class V> DEV void st(T *p, V v)
{
    if (!emu.lane[emu.tid].waited) emu_fatal("writes before pass_wait");
    T *there = emu_written(p);
    EMU_WATCH(emu_count(there, sizeof(T), EMU_STORE));
    *there = v;
    if (__builtin_expect(emu.spoils != nullptr, 0)) emu_spoil(there);
}

DEV float f32_fma(float a, float b, float c) { return fmaf(a, b, c); }
DEV float f32_mul(float a, float b) { return a * b; }
DEV float f32_add(float a, float b) { return a + b; }
DEV float f32_div(float a, float b) { return a / b; }
DEV float f32_sqrt(float a) { return sqrtf(a); }
DEV float f32_of_int(int v) { return (float) v; }
DEV int int_of_f32(float v) { return (int) v; }
DEV double f64_sqrt(double a) { return sqrt(a); }
DEV float f32_of_bits(uint32_t u) { float f; memcpy(&f, &u, 4); return f; }
DEV uint32_t bits_of_f32(float f) { uint32_t u; memcpy(&u, &f, 4); return u; }
DEV double f64_fma(double a, double b, double c) { return fma(a, b, c); }
DEV double f64_mul(double a, double b) { return a * b; }
DEV double f64_add(double a, double b) { return a + b; }
DEV double f64_div(double a, double b) { return a / b; }
DEV double f64_of_int(int v) { return v; }
DEV double f64_of_bits(uint64_t u) { double f; memcpy(&f, &u, 8); return f; }
DEV uint64_t bits_of_f64(double f) { uint64_t u; memcpy(&u, &f, 8); return u; }
DEV float f32_of_f64(double f) { return (float) f; }
DEV double f64_of_f32(float f) { return f; }
DEV float f32_of_half(uint32_t h)
{
    const uint32_t e = h >> 10 & 31, m = h & 1023, s = (h & 0x8000) << 16;
    if (e == 31) return f32_of_bits(s | 0x7f800000u | (m ? 0x400000u : 0) | m << 13);
    if (e) return f32_of_bits(s | (e + 112) << 23 | m << 13);
    const float f = (float) m * 0x1p-24f;
    return s ? -f : f;
}
DEV uint32_t half_of_f32(float f)                  /* to nearest even */
{
    const uint32_t u = bits_of_f32(f), s = u >> 16 & 0x8000, a = u & 0x7fffffffu;
    if (a > 0x7f800000u) return 0x7fff;            /* as the device makes it */
    if (a >= 0x477ff000u) return s | 0x7c00;
    if (a < 0x38800000u) return s | (uint32_t) nearbyintf(f32_of_bits(a) * 0x1p24f);
    return s | ((a - 0x38000000u + 0xfff + (a >> 13 & 1)) >> 13);
}
DEV int dot4(uint32_t a, uint32_t b, int c)
{
    uint32_t sum = (uint32_t) c;                   /* wraps, as on a card */
    for (int i = 0; i < 4; i++) sum += (uint32_t) ((int8_t) (a >> 8 * i) * (int8_t) (b >> 8 * i));
    return (int) sum;
}
DEV int dot2lo(uint32_t a, uint32_t b, int c)
{
    const uint32_t low = (uint32_t) ((int16_t) a * (int8_t) b);
    return (int) ((uint32_t) c + low + (uint32_t) ((int16_t) (a >> 16) * (int8_t) (b >> 8)));
}
DEV int dot2hi(uint32_t a, uint32_t b, int c) { return dot2lo(a, b >> 16, c); }
DEV uint32_t byte_perm(uint32_t a, uint32_t b, uint32_t select)
{
    const uint64_t v = (uint64_t) b << 32 | a;
    uint32_t r = 0;
    for (int i = 0; i < 4; i++) {
        const uint32_t by = select >> 4 * i & 15, byte = (uint32_t) (v >> 8 * (by & 7)) & 255;
        r |= (by & 8 ? (byte & 128 ? 255u : 0u) : byte) << 8 * i;
    }
    return r;
}
static inline void emu_mma(int c[4], const uint32_t a[4], const uint32_t b[2], EmuKind kind)
{
    EmuLane *l = &emu.lane[emu.tid];
    memcpy(l->in, a, 16), memcpy(l->in + 4, b, 8), memcpy(l->io, c, 16);
    emu_meet(kind);
    memcpy(c, l->io, 16);
}
DEV void mma_16x8x32(int c[4], const uint32_t a[4], const uint32_t b[2]) { emu_mma(c, a, b, EMU_MMA); }
DEV void mma_16x8x32_u8(int c[4], const uint32_t a[4], const uint32_t b[2]) { emu_mma(c, a, b, EMU_MMA_U8); }
DEV void mma_16x8x16(int c[4], const uint32_t a[2], uint32_t b)
{
    const uint32_t a4[4] = { a[0], a[1], 0, 0 }, b2[2] = { b, 0 };
    mma_16x8x32(c, a4, b2);
}
bool emu_arrives_now();
DEV void emu_copy16(void *to, const uint4 *there)
{
    EmuLane *l = &emu.lane[emu.tid];
    if (l->n_copies == EMU_COPIES) emu_fatal("too many asynchronous copies in flight");
    if ((uintptr_t) to % 16 || (uint8_t *) to < emu.shared || (uint8_t *) to + 16 > emu.shared + emu.struct_bytes)
        emu_fatal("an asynchronous copy to %p: not shared memory, or not aligned to 16 bytes", to);
    EMU_WATCH(emu_count(there, 16, EMU_WEIGHT));
    EMU_WATCH(emu_count(to, 16, EMU_STORE));
    EMU_WATCH(emu_race_copy(to, false));
    const bool now = emu_arrives_now();
    if (now) emu_arrive(to, there);
    emu.copy[emu.tid][l->n_copies++] = EmuCopy{to, there, l->group, now};
}
DEV void copy16_async(void *to, const void *from) { emu_copy16(to, emu_constant((const uint4 *) from)); }
DEV void copy16_early(void *to, const void *from)
{
    if (emu_on_device(from) && *emu_epoch_of(from) == emu_memory.epoch)
        emu_fatal("sends for %p, which a launch of this pass has written, before pass_wait", from);
    emu_copy16(to, emu_there((const uint4 *) from));
}
DEV void copy_commit() { emu.lane[emu.tid].group++; }
template <int N> DEV void copy_wait()
{
    EmuLane *l = &emu.lane[emu.tid];
    EmuCopy *c = emu.copy[emu.tid];
    int kept = 0;
    for (int i = 0; i < l->n_copies; i++) {
        if (c[i].group >= l->group - N) {
            c[kept++] = c[i];
        } else {
            if (!c[i].here) emu_arrive(c[i].to, c[i].from);
            EMU_WATCH(emu_race_copy(c[i].to, true));
        }
    }
    l->n_copies = kept;
}

#endif
