/* gpu_quantise.h - rows of x become int8 codes with a scale per block, as the CPU's quantise makes them (matmul.h),
 * in the order of ActRows. For kernels that have a row at hand: every warp calls quantise_columns for 256 columns. */
#ifndef RATOON_BACKEND_GPU_GPU_QUANTISE_H
#define RATOON_BACKEND_GPU_GPU_QUANTISE_H

#include "backend/gpu/gpu.h"

enum { FORM_32, FORM_256, FORMS };

/* Where a block of a tile is, in blocks of a tile. */
DEV size_t act_block(const ActRows &a, int tile, int block)
{
    const size_t row = (size_t) (tile >> a.tiles_log2) * (size_t) a.blocks + (size_t) block;
    return (row << a.tiles_log2) + (size_t) (tile & ((1 << a.tiles_log2) - 1));
}

struct QuantisedScale { float up, scale; };        /* up 0: the block counts as zero, or is no number */

/* most: the largest magnitude's bits, where a NaN is larger than everything else. */
DEV QuantisedScale quantised_scale(uint32_t most)
{
    const float amax = f32_of_bits(most);
    if (most >= 0x7f800000u) return QuantisedScale{0, f32_of_bits(0x7fc00000u)};
    if (amax < 0x1p-100f) return QuantisedScale{0, 0};
    return QuantisedScale{f32_div(127.0f, amax), f32_div(amax, 127.0f)};
}

DEV uint32_t most_of(uint32_t most, int lanes)     /* among groups of so many lanes */
{
    for (int m = 1; m < lanes; m <<= 1) {
        const uint32_t other = (uint32_t) shfl_xor((int) most, m);
        most = other > most ? other : most;
    }
    return most;
}

/* What a lane has of a row. */
DEV void eight_of(float v[8], const float *p)
{
    const float4 f = ld((const float4 *) p), g = ld((const float4 *) p + 1);
    v[0] = f.x, v[1] = f.y, v[2] = f.z, v[3] = f.w, v[4] = g.x, v[5] = g.y, v[6] = g.z, v[7] = g.w;
}

/* Stores columns 256 at .. 256 at + 255 of a row, of which lane l of the calling warp has 8 l .. 8 l + 7 in v. With
 * blocks of 32 the row may end within them: there = this lane's columns exist. */
template <int FORM> DEV void quantise_columns(const ActRows &a, int row, int at, const float v[8], bool there)
{
    const int lane = TID & 31, g = row & 7;
    uint32_t most = 0;
    UNROLL
    for (int i = 0; i < 8; i++) {
        const uint32_t bits = bits_of_f32(v[i]) & 0x7fffffffu;
        most = bits > most ? bits : most;
    }
    const QuantisedScale s = quantised_scale(most_of(most, FORM == FORM_256 ? 32 : 4));
    uint32_t q[2] = { 0, 0 };
    int sum = 0;
    UNROLL
    for (int i = 0; i < 8; i++) {                  /* adding 1.5 * 2^23 rounds half to even */
        const int c = s.up == 0 ? 0 : (int) (bits_of_f32(f32_add(f32_mul(v[i], s.up), 12582912.0f)) - 0x4b400000u);
        sum += c;
        q[i >> 2] |= (uint32_t) (c & 255) << 8 * (i & 3);
    }
    /* word w of the eight of 32 columns is the thread's (w & 3), its first or second one */
    const size_t block = act_block(a, row >> 3, FORM == FORM_256 ? at : 8 * at + (lane >> 2));
    const size_t step = FORM == FORM_256 ? 8 * block + (size_t) (lane >> 2) : block;
    uint32_t *code = (uint32_t *) a.code + (step * 32 + (size_t) (4 * g + 2 * (lane & 1))) * 2 + (lane >> 1 & 1);
    if (there) st(code, q[0]), st(code + 2, q[1]);
    sum += shfl_xor(sum, 1);
    if (FORM == FORM_256) {
        const int low = ((sum + 64) & 127) - 64, high = (sum - low) >> 7, at_byte = lane & 6;
        uint32_t lo = (uint32_t) (low & 255) << 4 * at_byte, hi = (uint32_t) (high & 255) << 4 * at_byte;
        UNROLL
        for (int m = 2; m <= 4; m <<= 1) lo |= (uint32_t) shfl_xor((int) lo, m), hi |= (uint32_t) shfl_xor((int) hi, m);
        if ((lane & 7) == 0) st((uint2 *) a.sums + block * 32 + (4 * g + (lane >> 3)), uint2{lo, hi});
        if (lane == 0) st(a.scale + block * 8 + g, s.scale);
    } else {
        sum += shfl_xor(sum, 2);
        const size_t to = block * 8 + (size_t) g;
        if ((lane & 3) == 0 && there) st((int32_t *) a.sums + to, sum), st(a.scale + to, s.scale);
    }
}

#endif
