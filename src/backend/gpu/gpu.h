/* gpu.h - the dialect that kernels are written in. nvcc, clang for AMD (gpu_amd.h), and g++ (tests/gpu/emu.h, which
 * runs kernels on the processor) compile the same kernel files. Every float operation goes through a wrapper that
 * rounds once and may not be contracted, whatever the compiler's flags; every access to global memory goes through ld,
 * ld_table, ld_weight or st, which the emulator watches.
 *
 *   KERNEL(threads, name, Args)   a kernel with one argument, `a`, a struct of args.h; listed in kernels.def
 *   KERNEL_BLOCKS(threads, blocks, name, Args)    the same, with registers for so many blocks of a multiprocessor
 *   TID BID BID_Y BLOCKS BLOCKS_Y thread and block; blocks are one row of threads, grids are (BLOCKS, BLOCKS_Y)
 *   SHARED(T, s)                  the block's shared memory as a struct, at most 48 KB
 *   SHARED_BIG(T, s)              the same, up to 96 KB; its size stands in kernels.def
 *   pass_wait()                   every thread calls it once, before it touches anything that a pass writes: what the
 *                                 launch before has written is there from then on. Only weights may be read earlier,
 *                                 by ld_table what the host alone writes: a pass's slices, a session's layers; and by
 *                                 copy16_early what the pass leaves alone
 *   pass_next()                   says that the next launch may begin (its threads stop at their pass_wait)
 *   sync_block() sync_warp()      barriers; each orders memory among its threads
 *   shfl shfl_xor warp_ballot     all 32 lanes of a warp take part
 *   mma_16x8x32(c, a, b)          c [16, 8] += a [16, 32] b [8, 32]^T, int8 to int32; lane = 4 g + t has of A the words
 *                                 a0 (row g, columns 4 t ..), a1 (row g + 8), a2, a3 (the same, columns 16 + 4 t ..),
 *                                 of B b0 (column g, 4 t ..), b1 (16 + 4 t ..), of C c0, c1 (row g, columns 2 t,
 *                                 2 t + 1), c2, c3 (row g + 8)
 *   mma_16x8x32_u8(c, a, b)       the same for bytes of A without a sign
 *   mma_16x8x16(c, a, b)          c [16, 8] += a [16, 16] b [8, 16]^T: the same with a0, a1, b0 alone
 *   copy16_async copy_commit copy_wait<N>   16 bytes from global to shared memory, which arrive at the wait at the
 *                                 latest
 *   copy16_early                  the same before pass_wait, of what passes before this one have written and this one
 *                                 does not, which also moves rows of the noted path: a pass begins with copies of the
 *                                 host, behind all launches before them
 *   atomic_add(p, n)              in global or shared memory, returns what was there; fence() orders this thread's
 *                                 writes for others
 *   UNROLL UNROLL_BY(n)           the loop that follows is unrolled wholly, or n times
 * No recursion, no local arrays indexed by what is not known when compiling (they would go to memory), no printf. */
#ifndef RATOON_BACKEND_GPU_GPU_H
#define RATOON_BACKEND_GPU_GPU_H

#include "backend/gpu/args.h"

#if defined(GPU_EMU)
#include "emu.h"
#elif defined(__HIP__) || defined(__AMDGCN__)
#include "backend/gpu/gpu_amd.h"
#else
#include "backend/gpu/gpu_cuda.h"
#endif

#if defined(MMA_SIGNED)
/* A byte is its lower seven bits, and twice half of its upper one: both are signed bytes, too. */
DEV void mma_16x8x32_u8(int c[4], const uint32_t a[4], const uint32_t b[2])
{
    uint32_t low[4], half[4];
    for (int i = 0; i < 4; i++) low[i] = a[i] & 0x7f7f7f7fu, half[i] = a[i] >> 1 & 0x40404040u;
    mma_16x8x32(c, low, b), mma_16x8x32(c, half, b), mma_16x8x32(c, half, b);
}
#endif

/* Bits of floats in shuffles. */
DEV float shfl_f(float v, int lane) { return f32_of_bits((uint32_t) shfl((int) bits_of_f32(v), lane)); }
DEV float shfl_xor_f(float v, int m) { return f32_of_bits((uint32_t) shfl_xor((int) bits_of_f32(v), m)); }
/* Sums of 16 lanes, halves 8, 4, 2, 1 (design, Exactness 3). */
DEV float sum_of_16(float v)
{
    for (int m = 8; m; m >>= 1) v = f32_add(v, shfl_xor_f(v, m));
    return v;
}
/* A scale quant_ue4m3 (cpu/matmul_layout.h), halved. */
DEV float f32_of_ue4m3_half(uint32_t s) { return f32_mul(f32_of_half(s << 7), 128.0f); }
DEV float f32_sub(float a, float b) { return f32_add(a, -b); }
DEV float f32_max(float a, float b) { return a > b ? a : b; }      /* vec.h's v_max: b where one is NaN */
DEV float f32_min(float a, float b) { return a < b ? a : b; }

#endif
