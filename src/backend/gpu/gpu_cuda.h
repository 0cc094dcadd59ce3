/* gpu_cuda.h - the dialect for nvcc and NVRTC. */
#if __CUDA_ARCH__ >= 700
#define ARGS_IN_PLACE __grid_constant__            /* no copy of them for each thread */
#else
#define ARGS_IN_PLACE
#endif
#define KERNEL(threads, name, Args) \
    extern "C" __global__ void __launch_bounds__(threads) name(const ARGS_IN_PLACE Args a)
#define KERNEL_BLOCKS(threads, blocks, name, Args) \
    extern "C" __global__ void __launch_bounds__(threads, blocks) name(const ARGS_IN_PLACE Args a)
#define DEV static __device__ __forceinline__
#define DEV_TABLE static __device__ const
#define TID ((int) threadIdx.x)
#define BID ((int) blockIdx.x)
#define BID_Y ((int) blockIdx.y)
#define BLOCKS ((int) gridDim.x)
#define BLOCKS_Y ((int) gridDim.y)
#define SHARED(T, s) __shared__ __align__(128) unsigned char s##_bytes[sizeof(T)]; T &s = *(T *) s##_bytes
#define SHARED_BIG(T, s) extern __shared__ __align__(128) unsigned char gpu_shared[]; T &s = *(T *) gpu_shared
#define UNROLL _Pragma("unroll")
#define GPU_PRAGMA(text) _Pragma(#text)
#define UNROLL_BY(n) GPU_PRAGMA(unroll n)

DEV void sync_block() { __syncthreads(); }
DEV void sync_warp() { __syncwarp(); }
#if __CUDA_ARCH__ >= 900
DEV void pass_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
DEV void pass_next() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
#else
DEV void pass_wait() {}
DEV void pass_next() {}
#endif
DEV int shfl(int v, int lane) { return __shfl_sync(0xffffffffu, v, lane); }
DEV int shfl_xor(int v, int m) { return __shfl_xor_sync(0xffffffffu, v, m); }
DEV uint32_t warp_ballot(bool is) { return __ballot_sync(0xffffffffu, is); }
DEV int atomic_add(int32_t *p, int32_t n) { return atomicAdd(p, n); }
DEV void fence() { __threadfence(); }

template <class T> DEV T ld(const T *p) { return *p; }
template <class T> DEV T ld_table(const T *p) { return *p; }
template <class T> DEV T ld_weight(const T *p) { return __ldcs(p); }
template <class T, class V> DEV void st(T *p, V v) { *p = v; }

DEV float f32_fma(float a, float b, float c) { return __fmaf_rn(a, b, c); }
DEV float f32_mul(float a, float b) { return __fmul_rn(a, b); }
DEV float f32_add(float a, float b) { return __fadd_rn(a, b); }
DEV float f32_div(float a, float b) { return __fdiv_rn(a, b); }
DEV float f32_sqrt(float a) { return __fsqrt_rn(a); }
DEV float f32_of_int(int v) { return __int2float_rn(v); }
DEV int int_of_f32(float v) { return __float2int_rz(v); }
DEV double f64_sqrt(double a) { return __dsqrt_rn(a); }
DEV float f32_of_bits(uint32_t u) { return __uint_as_float(u); }
DEV uint32_t bits_of_f32(float f) { return __float_as_uint(f); }
DEV double f64_fma(double a, double b, double c) { return __fma_rn(a, b, c); }
DEV double f64_mul(double a, double b) { return __dmul_rn(a, b); }
DEV double f64_add(double a, double b) { return __dadd_rn(a, b); }
DEV double f64_div(double a, double b) { return __ddiv_rn(a, b); }
DEV double f64_of_int(int v) { return __int2double_rn(v); }
DEV double f64_of_bits(uint64_t u) { return __longlong_as_double((long long) u); }
DEV uint64_t bits_of_f64(double f) { return (uint64_t) __double_as_longlong(f); }
DEV float f32_of_f64(double f) { return __double2float_rn(f); }
DEV double f64_of_f32(float f) { return (double) f; }
DEV float f32_of_half(uint32_t h)
{
    float f;
    asm("{.reg .b16 t; cvt.u16.u32 t, %1; cvt.f32.f16 %0, t;}" : "=f"(f) : "r"(h));
    return f;
}
DEV uint32_t half_of_f32(float f)                  /* to nearest even */
{
    uint32_t h;
    asm("{.reg .b16 t; cvt.rn.f16.f32 t, %1; cvt.u32.u16 %0, t;}" : "=r"(h) : "f"(f));
    return h;
}

/* sum of four products of int8, of two products of int16 by the lower or upper int8; bytes by selector (PTX prmt). */
#if __CUDA_ARCH__ >= 610
DEV int dot4(uint32_t a, uint32_t b, int c) { return __dp4a((int) a, (int) b, c); }
DEV int dot2lo(uint32_t a, uint32_t b, int c) { return __dp2a_lo((int) a, (int) b, c); }
DEV int dot2hi(uint32_t a, uint32_t b, int c) { return __dp2a_hi((int) a, (int) b, c); }
#else
DEV int dot4(uint32_t a, uint32_t b, int c)
{
    for (int i = 0; i < 4; i++) c += (int8_t) (a >> 8 * i) * (int8_t) (b >> 8 * i);
    return c;
}
DEV int dot2lo(uint32_t a, uint32_t b, int c)
{
    return c + (int16_t) a * (int8_t) b + (int16_t) (a >> 16) * (int8_t) (b >> 8);
}
DEV int dot2hi(uint32_t a, uint32_t b, int c) { return dot2lo(a, b >> 16, c); }
#endif
DEV uint32_t byte_perm(uint32_t a, uint32_t b, uint32_t select)        /* __byte_perm would drop the bit for signs */
{
    uint32_t r;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(select));
    return r;
}

#if __CUDA_ARCH__ >= 800
DEV void mma_16x8x32(int c[4], const uint32_t a[4], const uint32_t b[2])
{
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
DEV void mma_16x8x32_u8(int c[4], const uint32_t a[4], const uint32_t b[2])
{
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
DEV void mma_16x8x16(int c[4], const uint32_t a[2], uint32_t b)
{
    asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(b));
}
DEV void copy16_async(void *to, const void *from)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
                 :: "r"((unsigned) __cvta_generic_to_shared(to)), "l"(from) : "memory");
}
DEV void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N> DEV void copy_wait() { asm volatile("cp.async.wait_group %0;" :: "n"(N) : "memory"); }
#else
#if __CUDA_ARCH__ >= 750
DEV void mma_8x8x16(int &c0, int &c1, uint32_t a, uint32_t b)
{
    asm("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0,%1}, {%2}, {%3}, {%0,%1};"
        : "+r"(c0), "+r"(c1) : "r"(a), "r"(b));
}
DEV void mma_8x8x16_u8(int &c0, int &c1, uint32_t a, uint32_t b)
{
    asm("mma.sync.aligned.m8n8k16.row.col.s32.u8.s8.s32 {%0,%1}, {%2}, {%3}, {%0,%1};"
        : "+r"(c0), "+r"(c1) : "r"(a), "r"(b));
}
DEV void mma_16x8x32_u8(int c[4], const uint32_t a[4], const uint32_t b[2])
{
    mma_8x8x16_u8(c[0], c[1], a[0], b[0]), mma_8x8x16_u8(c[0], c[1], a[2], b[1]);
    mma_8x8x16_u8(c[2], c[3], a[1], b[0]), mma_8x8x16_u8(c[2], c[3], a[3], b[1]);
}
DEV void mma_16x8x32(int c[4], const uint32_t a[4], const uint32_t b[2])
{
    mma_8x8x16(c[0], c[1], a[0], b[0]), mma_8x8x16(c[0], c[1], a[2], b[1]);
    mma_8x8x16(c[2], c[3], a[1], b[0]), mma_8x8x16(c[2], c[3], a[3], b[1]);
}
DEV void mma_16x8x16(int c[4], const uint32_t a[2], uint32_t b)
{
    mma_8x8x16(c[0], c[1], a[0], b), mma_8x8x16(c[2], c[3], a[1], b);
}
#else
/* For chips without matrix units for integers: the fragments by shuffles and dot products. */
#define MMA_SIGNED
DEV void mma_16x8x32(int c[4], const uint32_t a[4], const uint32_t b[2])
{
    const int lane = TID & 31, row = lane & ~3, col = (lane & 3) * 8;
    for (int k = 0; k < 4; k++)
        for (int h = 0; h < 2; h++) {
            const uint32_t a0 = (uint32_t) shfl((int) a[2 * h], row + k);
            const uint32_t a1 = (uint32_t) shfl((int) a[2 * h + 1], row + k);
            const uint32_t b0 = (uint32_t) shfl((int) b[h], col + k), b1 = (uint32_t) shfl((int) b[h], col + 4 + k);
            c[0] = dot4(a0, b0, c[0]), c[1] = dot4(a0, b1, c[1]), c[2] = dot4(a1, b0, c[2]), c[3] = dot4(a1, b1, c[3]);
        }
}
DEV void mma_16x8x16(int c[4], const uint32_t a[2], uint32_t b)
{
    const uint32_t a4[4] = { a[0], a[1], 0, 0 }, b2[2] = { b, 0 };
    mma_16x8x32(c, a4, b2);
}
#endif
DEV void copy16_async(void *to, const void *from) { *(uint4 *) to = *(const uint4 *) from; }
DEV void copy_commit() {}
template <int N> DEV void copy_wait() {}
#endif
DEV void copy16_early(void *to, const void *from) { copy16_async(to, from); }
