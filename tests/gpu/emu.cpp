/* emu.cpp - the fibers behind emu.h. */
#include "backend/gpu/gpu.h"

Emu emu;

/* Saves what a call must preserve, and the floating point control is the same for all. */
extern "C" void emu_switch(void **save, void *to);
#if defined(__x86_64__)
asm(".globl emu_switch\n.type emu_switch,@function\nemu_switch:\n"
    "push %rbp; push %rbx; push %r12; push %r13; push %r14; push %r15\n"
    "mov %rsp,(%rdi); mov %rsi,%rsp\n"
    "pop %r15; pop %r14; pop %r13; pop %r12; pop %rbx; pop %rbp\nret\n");
enum { SAVED = 6 };
#elif defined(__aarch64__)
asm(".globl emu_switch\n.type emu_switch,%function\nemu_switch:\n"
    "sub sp,sp,#160\nstp x19,x20,[sp]\nstp x21,x22,[sp,#16]\nstp x23,x24,[sp,#32]\nstp x25,x26,[sp,#48]\n"
    "stp x27,x28,[sp,#64]\nstp x29,x30,[sp,#80]\n"
    "stp d8,d9,[sp,#96]\nstp d10,d11,[sp,#112]\nstp d12,d13,[sp,#128]\nstp d14,d15,[sp,#144]\n"
    "mov x9,sp\nstr x9,[x0]\nmov sp,x1\n"
    "ldp x19,x20,[sp]\nldp x21,x22,[sp,#16]\nldp x23,x24,[sp,#32]\nldp x25,x26,[sp,#48]\n"
    "ldp x27,x28,[sp,#64]\nldp x29,x30,[sp,#80]\n"
    "ldp d8,d9,[sp,#96]\nldp d10,d11,[sp,#112]\nldp d12,d13,[sp,#128]\nldp d14,d15,[sp,#144]\nadd sp,sp,#160\nret\n");
#endif

static void to_lane(int tid)
{
    void **save = &emu.lane[emu.tid].sp;
    if (tid == emu.tid) return;
    emu.tid = tid;
    emu_switch(save, emu.lane[tid].sp);
}

void emu_fatal(const char *what)
{
    fprintf(stderr, "emulated GPU: %s, block (%d, %d), thread %d: %s\n", emu.kernel->name, emu.bid, emu.bid_y,
            emu.tid, what);
    abort();
}

/* Products of the documented fragments: lane = 4 g + t. A: a0 row g, a1 row g + 8, columns 4 t; a2, a3
 * the same, columns 16 + 4 t. B: column g. */
static void mma(EmuLane *l)
{
    alignas(32) int16_t A[16][32], B[8][32];
    for (int i = 0; i < 32; i++) {
        int g = i >> 2, t = i & 3;
        const int8_t *a = (const int8_t *)l[i].in, *b = a + 16;
        for (int j = 0; j < 4; j++) {
            A[g][4 * t + j] = a[j], A[g + 8][4 * t + j] = a[4 + j];
            A[g][16 + 4 * t + j] = a[8 + j], A[g + 8][16 + 4 * t + j] = a[12 + j];
            B[g][4 * t + j] = b[j], B[g][16 + 4 * t + j] = b[4 + j];
        }
    }
    for (int i = 0; i < 32; i++)
        for (int c = 0; c < 4; c++) {
            const int16_t *a = A[(i >> 2) + 8 * (c >> 1)], *b = B[2 * (i & 3) + (c & 1)];
            int sum = 0;
            for (int k = 0; k < 32; k++) sum += a[k] * b[k];
            l[i].io[c] = (int)((uint32_t)l[i].io[c] + (uint32_t)sum);
        }
}

/* All lanes of the warp have come to the same. */
static void together(int warp, EmuKind kind)
{
    EmuLane *l = &emu.lane[warp * EMU_WARP];
    if (kind == EMU_SHFL) for (int i = 0; i < EMU_WARP; i++) l[i].io[2] = l[l[i].io[1]].io[0];
    if (kind == EMU_BALLOT) {
        uint32_t bits = 0;
        for (int i = 0; i < EMU_WARP; i++) bits |= (uint32_t) (l[i].io[0] & 1) << i;
        for (int i = 0; i < EMU_WARP; i++) l[i].io[2] = (int) bits;
    }
    if (kind == EMU_MMA) mma(l);
    for (int i = 0; i < EMU_WARP; i++) l[i].at = EMU_RUNS;
    emu.waiting[warp] = 0;
}

/* The next lane of a warp that runs, after place p; -1: none. */
static int next_in_warp(int warp, int p)
{
    for (int i = 0; i < EMU_WARP; i++) {
        int tid = warp * EMU_WARP + emu.place[(p + 1 + i) % EMU_WARP];
        if (emu.lane[tid].at == EMU_RUNS) return tid;
    }
    return -1;
}

static void leave(void)
{
    for (;;) {
        const int warp = emu.tid / EMU_WARP, warps = emu.n / EMU_WARP;
        int next = next_in_warp(warp, emu.place_of[emu.tid % EMU_WARP]);
        if (next >= 0) { to_lane(next); return; }
        for (int i = 0; i < EMU_WARP; i++) {
            EmuKind k = emu.lane[warp * EMU_WARP + i].at;
            if (k != EMU_SYNC_BLOCK && k != EMU_DONE) emu_fatal("lanes of a warp wait for different things");
        }
        for (int w = 0; w < warps; w++)
            if ((next = next_in_warp(emu.warp_place[w], EMU_WARP - 1)) >= 0) { to_lane(next); return; }
        bool sync = false, done = false;
        for (int i = 0; i < emu.n; i++) sync |= emu.lane[i].at == EMU_SYNC_BLOCK, done |= emu.lane[i].at == EMU_DONE;
        if (sync && done) emu_fatal("some threads ended, others wait for them at a barrier");
        if (done) { emu_switch(&emu.lane[emu.tid].sp, emu.sp); return; }
        for (int i = 0; i < emu.n; i++) emu.lane[i].at = EMU_RUNS;
        next = emu.warp_place[0] * EMU_WARP + emu.place[0];
        if (next == emu.tid) return;
        to_lane(next);
        return;
    }
}

void emu_meet(EmuKind kind)
{
    EmuLane *l = &emu.lane[emu.tid];
    int warp = emu.tid / EMU_WARP;
    l->at = kind;
    if (kind != EMU_SYNC_BLOCK) {
        if (emu.waiting[warp]++ == 0) emu.kind[warp] = kind;
        if (emu.kind[warp] != kind) emu_fatal("lanes of a warp do different things together");
        if (emu.waiting[warp] == EMU_WARP) { together(warp, kind); return; }
    }
    leave();
}

static void start(void)
{
    emu.kernel->run(emu.args);
    if (emu.lane[emu.tid].n_copies) emu_fatal("asynchronous copies that nobody waited for");
    if (!emu.lane[emu.tid].waited) emu_fatal("ends without pass_wait");
    emu.lane[emu.tid].at = EMU_DONE;
    leave();
    abort();
}

/* order: of lanes and warps 0 ascending, 1 descending, 2 scattered; + 4: blocks descending. */
void emu_launch(const EmuKernel *k, const void *args, int blocks, int blocks_y, size_t shared)
{
    const int threads = k->threads, how = emu.order & 3;
    if (!emu.stacks) emu.stacks = (uint8_t *) aligned_alloc(4096, (size_t) EMU_THREADS * EMU_STACK);
    emu.kernel = k, emu.args = args, emu.n = threads, emu.blocks = blocks, emu.blocks_y = blocks_y;
    for (int i = 0; i < EMU_WARP; i++) emu.place[i] = how == 0 ? i : how == 1 ? 31 - i : (i * 11 + 5) & 31;
    for (int i = 0; i < EMU_WARP; i++) emu.place_of[emu.place[i]] = i;
    memset(emu.waiting, 0, sizeof emu.waiting);
    for (int i = 0; i < threads / EMU_WARP; i++) emu.warp_place[i] = how == 0 ? i : threads / EMU_WARP - 1 - i;
    for (int64_t at = 0; at < (int64_t) blocks * blocks_y; at++) {
        const int64_t b = emu.order & 4 ? (int64_t) blocks * blocks_y - 1 - at : at;
        emu.bid = (int) (b % blocks), emu.bid_y = (int) (b / blocks);
        memset(emu.shared, 0xa5, shared > 49152 ? shared : 49152);
        for (int i = 0; i < threads; i++) {
            EmuLane *l = &emu.lane[i];
            l->at = EMU_RUNS, l->waited = false, l->n_copies = l->group = 0;
            void **sp = (void **) (emu.stacks + (size_t) (i + 1) * EMU_STACK) - 2;
#if defined(__x86_64__)
            *--sp = NULL;                           /* at entry rsp is 8 beyond a multiple of 16 */
            *--sp = (void *) start;
            sp -= SAVED;
#else
            sp -= 20;
            sp[11] = (void *) start;
#endif
            l->sp = sp;
        }
        emu.tid = emu.warp_place[0] * EMU_WARP + emu.place[0];
        emu_switch(&emu.sp, emu.lane[emu.tid].sp);
    }
}
