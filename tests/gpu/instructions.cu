/* instructions.cu - kernels that do one thing each with a wrapper of gpu.h (instructions.h says what), compiled like
 * the program's and loaded by test_gpu_instructions.c alone. */
#include "backend/gpu/gpu_mathd.h"
#include "instructions.h"

DEV float f32(uint64_t u) { return f32_of_bits((uint32_t) u); }
DEV double f64(uint64_t u) { return f64_of_bits(u); }
DEV uint64_t word(float f) { return bits_of_f32(f); }
DEV uint64_t word(double f) { return bits_of_f64(f); }
DEV uint64_t word(int i) { return (uint32_t) i; }
DEV uint64_t word(uint32_t u) { return u; }

DEV uint64_t done(Instruction op, uint64_t a, uint64_t b, uint64_t c)
{
    const uint32_t a32 = (uint32_t) a, b32 = (uint32_t) b, c32 = (uint32_t) c;
    double sine, cosine;
    switch (op) {
    case I_F32_FMA:     return word(f32_fma(f32(a), f32(b), f32(c)));
    case I_F32_MUL:     return word(f32_mul(f32(a), f32(b)));
    case I_F32_ADD:     return word(f32_add(f32(a), f32(b)));
    case I_F32_SUB:     return word(f32_sub(f32(a), f32(b)));
    case I_F32_DIV:     return word(f32_div(f32(a), f32(b)));
    case I_F32_SQRT:    return word(f32_sqrt(f32(a)));
    case I_F32_MAX:     return word(f32_max(f32(a), f32(b)));
    case I_F32_MIN:     return word(f32_min(f32(a), f32(b)));
    case I_F32_OF_INT:  return word(f32_of_int((int) a32));
    case I_F32_OF_HALF: return word(f32_of_half(a32 & 0xffff));
    case I_HALF_OF_F32: return word(half_of_f32(f32(a)));
    case I_F32_OF_F64:  return word(f32_of_f64(f64(a)));
    case I_F64_OF_F32:  return word(f64_of_f32(f32(a)));
    case I_F64_OF_INT:  return word(f64_of_int((int) a32));
    case I_F64_FMA:     return word(f64_fma(f64(a), f64(b), f64(c)));
    case I_F64_MUL:     return word(f64_mul(f64(a), f64(b)));
    case I_F64_ADD:     return word(f64_add(f64(a), f64(b)));
    case I_F64_DIV:     return word(f64_div(f64(a), f64(b)));
    case I_F64_EXP:     return word(f64_exp(f64(a)));
    case I_F64_LOG:     return word(f64_log(f64(a)));
    case I_F64_LOG1P:   return word(f64_log1p(f64(a)));
    case I_F64_SIN:     f64_sincos(f64(a), &sine, &cosine); return word(sine);
    case I_F64_COS:     f64_sincos(f64(a), &sine, &cosine); return word(cosine);
    case I_DOT4:        return word(dot4(a32, b32, (int) c32));
    case I_DOT2LO:      return word(dot2lo(a32, b32, (int) c32));
    case I_DOT2HI:      return word(dot2hi(a32, b32, (int) c32));
    case I_BYTE_PERM:   return word(byte_perm(a32, b32, c32));
    case I_COUNT:       break;
    }
    return 0;
}

KERNEL(128, instr_word, WordArgs)
{
    pass_next();
    pass_wait();
    const int i = BID * 128 + TID;
    if (i < a.n) st(a.out + i, done(a.op, ld(a.a + i), ld(a.b + i), ld(a.c + i)));
}

KERNEL(64, instr_warp, WarpArgs)
{
    pass_next();
    pass_wait();
    const int i = BID * 64 + TID, value = ld(a.value + i), lane = ld(a.lane + i);
    st(a.out + 3 * i, shfl(value, lane));
    /* one mask for the warp: that of its first lane */
    st(a.out + 3 * i + 1, shfl_xor(value, shfl(lane, 0)));
    st(a.out + 3 * i + 2, (int) warp_ballot(value & 1));
}

KERNEL(32, instr_mma, MmaArgs)
{
    pass_next();
    pass_wait();
    const int i = BID * 32 + TID;
    uint32_t x[4], y[2];
    int c[4];
    for (int j = 0; j < 4; j++) x[j] = ld(a.a + 4 * i + j), c[j] = ld(a.c + 4 * i + j);
    for (int j = 0; j < 2; j++) y[j] = ld(a.b + 2 * i + j);
    if (a.kind == MMA_32) mma_16x8x32(c, x, y);
    else if (a.kind == MMA_32_U8) mma_16x8x32_u8(c, x, y);
    else mma_16x8x16(c, x, y[0]);
    for (int j = 0; j < 4; j++) st(a.out + 4 * i + j, c[j]);
}

enum { STAGES = 3 };
struct CopyShared { uint4 piece[STAGES][128]; };
struct CopyBigShared { uint4 unused[4096]; uint4 piece[STAGES][128]; };

template <class T> DEV void copied(const CopyArgs &a, T &s)
{
    const uint4 *from = (const uint4 *) a.from;
    uint4 *to = (uint4 *) a.to;
    UNROLL
    for (int i = 0; i < STAGES - 1; i++) {
        if (i < a.steps) copy16_async(&s.piece[i][TID], from + 128 * i + TID);
        copy_commit();
    }
    for (int i = 0; i < a.steps; i++) {
        const int ahead = i + STAGES - 1;
        if (ahead < a.steps) copy16_async(&s.piece[ahead % STAGES][TID], from + 128 * ahead + TID);
        copy_commit();
        copy_wait<STAGES - 1>();
        sync_block();
        st(to + 128 * i + TID, s.piece[i % STAGES][127 - TID]);
        sync_block();
    }
}

KERNEL(128, instr_copy, CopyArgs)
{
    SHARED(CopyShared, s);
    pass_next();
    pass_wait();
    copied(a, s);
}

KERNEL(128, instr_copy_big, CopyArgs)
{
    SHARED_BIG(CopyBigShared, s);
    pass_next();
    pass_wait();
    copied(a, s);
}

struct CountShared { int32_t sum; };

KERNEL(96, instr_count, CountArgs)
{
    SHARED(CountShared, s);
    pass_next();
    pass_wait();
    if (TID == 0) s.sum = 0;
    sync_block();
    st(a.out + BID * 96 + TID, atomic_add(a.counter, a.by));
    atomic_add(&s.sum, a.by);
    fence();
    sync_block();
    if (TID == 0) atomic_add(a.counter + 1, s.sum);
}

KERNEL(64, instr_chain, ChainArgs)
{
    pass_next();
    pass_wait();
    const int i = BID * 64 + TID;
    if (i < a.n) st(a.out + i, ld(a.in + ((int64_t) i * a.stride + 1) % a.n) + 1);
}

template <class T> DEV void moved(const WideArgs &a, int from, int to)
{
    for (int i = from + TID * (int) sizeof(T); i < to; i += 32 * (int) sizeof(T)) {
        const T *p = (const T *) (a.from + i);
        st((T *) (a.to + i), BID ? ld_weight(p) : ld(p));
    }
}

/* A seventh of the bytes each; the second block's half after the first's. */
KERNEL(32, instr_wide, WideArgs)
{
    pass_next();
    pass_wait();
    const int part = a.bytes / 14, start = BID * part * 7;
    moved<uint4>(a, start, start + part);
    moved<float4>(a, start + part, start + 2 * part);
    moved<uint2>(a, start + 2 * part, start + 3 * part);
    moved<float2>(a, start + 3 * part, start + 4 * part);
    moved<float>(a, start + 4 * part, start + 5 * part);
    moved<uint16_t>(a, start + 5 * part, start + 6 * part);
    moved<uint8_t>(a, start + 6 * part, start + 7 * part);
}
