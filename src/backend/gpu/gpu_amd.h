/* gpu_amd.h - the dialect for AMD by the builtins of clang alone, without HIP's headers: clang -x hip
 * --cuda-device-only -nogpuinc -nogpulib -ffp-contract=off. A warp is 32 lanes; in waves of 64 two of them run side by
 * side. Compiled by `make cuda-archs`, not run anywhere yet. */
#define DEVICE __attribute__((device))
#define KERNEL(threads, name, Args) \
    extern "C" __attribute__((global)) __attribute__((amdgpu_flat_work_group_size(threads, threads))) void name(Args a)
#define KERNEL_BLOCKS(threads, blocks, name, Args) KERNEL(threads, name, Args)
#define DEV static inline DEVICE __attribute__((always_inline, unused))
#define DEV_TABLE static DEVICE const
#define TID ((int) __builtin_amdgcn_workitem_id_x())
#define BID ((int) __builtin_amdgcn_workgroup_id_x())
#define BID_Y ((int) __builtin_amdgcn_workgroup_id_y())
#define BLOCKS ((int) (__builtin_amdgcn_grid_size_x() / __builtin_amdgcn_workgroup_size_x()))
#define BLOCKS_Y ((int) (__builtin_amdgcn_grid_size_y() / __builtin_amdgcn_workgroup_size_y()))
#define SHARED(T, s) \
    static __attribute__((shared)) __attribute__((aligned(128))) unsigned char s##_bytes[sizeof(T)]; \
    T &s = *(T *) s##_bytes
#define SHARED_BIG(T, s) T &s = *(T *) gpu_shared
#define UNROLL _Pragma("unroll")
#define GPU_PRAGMA(text) _Pragma(#text)
#define UNROLL_BY(n) GPU_PRAGMA(unroll n)

extern __attribute__((shared)) __attribute__((aligned(128))) unsigned char gpu_shared[];

struct uint4 { uint32_t x, y, z, w; } __attribute__((aligned(16)));
struct uint2 { uint32_t x, y; } __attribute__((aligned(8)));
struct int2 { int x, y; } __attribute__((aligned(8)));
struct int4 { int x, y, z, w; } __attribute__((aligned(16)));
struct float2 { float x, y; } __attribute__((aligned(8)));
struct float4 { float x, y, z, w; } __attribute__((aligned(16)));

DEV void sync_block()
{
    __builtin_amdgcn_fence(__ATOMIC_SEQ_CST, "workgroup");
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_SEQ_CST, "workgroup");
}
DEV void sync_warp()
{
    __builtin_amdgcn_fence(__ATOMIC_SEQ_CST, "wavefront");
    __builtin_amdgcn_wave_barrier();
    __builtin_amdgcn_fence(__ATOMIC_SEQ_CST, "wavefront");
}
DEV void pass_wait() {}
DEV void pass_next() {}
DEV int lane_of_wave() { return (int) __builtin_amdgcn_mbcnt_hi(~0u, __builtin_amdgcn_mbcnt_lo(~0u, 0)); }
DEV int shfl(int v, int lane) { return __builtin_amdgcn_ds_bpermute(4 * ((lane_of_wave() & 32) + (lane & 31)), v); }
DEV int shfl_xor(int v, int m) { return shfl(v, (lane_of_wave() & 31) ^ m); }
DEV uint32_t warp_ballot(bool is)
{
    if (__builtin_amdgcn_wavefrontsize() == 64)
        return (uint32_t) (__builtin_amdgcn_ballot_w64(is) >> (lane_of_wave() & 32));
    return (uint32_t) __builtin_amdgcn_ballot_w64(is);
}
DEV int atomic_add(int32_t *p, int32_t n)
{
    return __hip_atomic_fetch_add(p, n, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}
DEV void fence() { __builtin_amdgcn_fence(__ATOMIC_SEQ_CST, "agent"); }

template <class T> DEV T ld(const T *p) { return *p; }
template <class T> DEV T ld_table(const T *p) { return *p; }
template <class T> DEV T ld_weight(const T *p) { return *p; }
template <class T, class V> DEV void st(T *p, V v) { *p = v; }

DEV float f32_fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
DEV float f32_mul(float a, float b) { return a * b; }
DEV float f32_add(float a, float b) { return a + b; }
DEV float f32_div(float a, float b) { return a / b; }
DEV float f32_sqrt(float a) { return __builtin_sqrtf(a); }
DEV float f32_of_int(int v) { return (float) v; }
DEV int int_of_f32(float v) { return (int) v; }
DEV double f64_sqrt(double a) { return __builtin_sqrt(a); }
DEV float f32_of_bits(uint32_t u) { return __builtin_bit_cast(float, u); }
DEV uint32_t bits_of_f32(float f) { return __builtin_bit_cast(uint32_t, f); }
DEV double f64_fma(double a, double b, double c) { return __builtin_fma(a, b, c); }
DEV double f64_mul(double a, double b) { return a * b; }
DEV double f64_add(double a, double b) { return a + b; }
DEV double f64_div(double a, double b) { return a / b; }
DEV double f64_of_int(int v) { return (double) v; }
DEV double f64_of_bits(uint64_t u) { return __builtin_bit_cast(double, u); }
DEV uint64_t bits_of_f64(double f) { return __builtin_bit_cast(uint64_t, f); }
DEV float f32_of_f64(double f) { return (float) f; }
DEV double f64_of_f32(float f) { return (double) f; }
DEV float f32_of_half(uint32_t h) { return (float) __builtin_bit_cast(_Float16, (uint16_t) h); }
DEV uint32_t half_of_f32(float f) { return __builtin_bit_cast(uint16_t, (_Float16) f); }

#if defined(__gfx1100__) || defined(__gfx1101__) || defined(__gfx1102__) || defined(__gfx1150__) || \
    defined(__gfx1151__) || defined(__gfx1200__) || defined(__gfx1201__)
DEV int dot4(uint32_t a, uint32_t b, int c) { return __builtin_amdgcn_sudot4(true, (int) a, true, (int) b, c, false); }
#elif defined(__gfx906__) || defined(__gfx908__) || defined(__gfx90a__) || defined(__gfx942__) || defined(__gfx1030__)
DEV int dot4(uint32_t a, uint32_t b, int c) { return __builtin_amdgcn_sdot4((int) a, (int) b, c, false); }
#else
DEV int dot4(uint32_t a, uint32_t b, int c)
{
    for (int i = 0; i < 4; i++) c += (int8_t) (a >> 8 * i) * (int8_t) (b >> 8 * i);
    return c;
}
#endif
DEV int dot2lo(uint32_t a, uint32_t b, int c)
{
    return c + (int16_t) a * (int8_t) b + (int16_t) (a >> 16) * (int8_t) (b >> 8);
}
DEV int dot2hi(uint32_t a, uint32_t b, int c) { return dot2lo(a, b >> 16, c); }
/* v_perm_b32 counts its first operand's bytes after the second's, and 8 to 11 copy signs of other bytes than PTX's. */
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
/* The fragments by shuffles and dot products. */
#define MMA_SIGNED
DEV void mma_16x8x32(int c[4], const uint32_t a[4], const uint32_t b[2])
{
    const int lane = lane_of_wave() & 31, row = lane & ~3, col = (lane & 3) * 8;
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
DEV void copy16_async(void *to, const void *from) { *(uint4 *) to = *(const uint4 *) from; }
DEV void copy16_early(void *to, const void *from) { copy16_async(to, from); }
DEV void copy_commit() {}
template <int N> DEV void copy_wait() {}
