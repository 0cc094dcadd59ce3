/* gpu_unpack.h - values of a weight that is packed as the CPU packs it (cpu/matmul_layout.h), one at a time. */
#ifndef RATOON_BACKEND_GPU_GPU_UNPACK_H
#define RATOON_BACKEND_GPU_GPU_UNPACK_H

#include "backend/gpu/gpu.h"

DEV_TABLE int8_t iq4[16] = { -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113 };
DEV_TABLE int8_t iq3_xxs[16] = { 4, 12, 20, 28, 36, 44, 52, 62, -4, -12, -20, -28, -36, -44, -52, -62 };
DEV_TABLE int8_t iq3_s[16] = { 1, 3, 5, 7, 9, 11, 13, 15, -1, -3, -5, -7, -9, -11, -13, -15 };
DEV_TABLE int8_t iq2[8] = { 8, 25, 43, 0, -8, -25, -43, 0 };
DEV_TABLE int8_t fp4[16] = { 0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12 };

/* Byte of a group's block, and halves there. */
struct Group {
    const uint8_t *lines;
    int lane;
};
DEV int byte_of(const Group &b, int line, int at) { return ld_weight(b.lines + line * 64 + at); }
DEV int code_of(const Group &b, int line, int column) { return byte_of(b, line, b.lane * 4 + (column & 3)); }
DEV float half_of(const Group &b, int line, int at)
{
    return f32_of_half((uint32_t) ld_weight((const uint16_t *) (b.lines + line * 64) + at + b.lane));
}
DEV float float_of(const Group &b, int line) { return ld_weight((const float *) (b.lines + line * 64) + b.lane); }

/* Column i of a block of 32 without its scale. */
DEV int code_32(const PackedTable &a, const Group &b, int i)
{
    if (a.type == T_Q8_0) return code_of(b, i >> 2, i) - 128;
    const int vector = i >> 2 & 3, high = i >> 4;
    const int nibble = code_of(b, vector, i) >> 4 * high & 15;
    if (a.type == T_IQ4_NL) return iq4[nibble];
    if (a.type == T_MXFP4 || a.type == T_NVFP4) return fp4[nibble];
    if (a.lines == 4) return nibble - a.offset;
    return (nibble | (code_of(b, 4, i) >> (2 * vector + high) & 1) << 4) - a.offset;
}

DEV float value_32(const PackedTable &a, const uint8_t *group, int lane, int block, int i)
{
    const int blocks = a.cols / 32;
    const uint8_t *planes = group + (size_t) blocks * (size_t) (a.lines * 64);
    const size_t plane = ((size_t) blocks * 32 + 63) / 64 * 64;
    const Group b = { group + (size_t) block * (size_t) (a.lines * 64), lane };
    const Group d = { planes + (size_t) block * 32, lane }, m = { d.lines + plane, lane };
    const uint32_t bits = ld_weight((const uint16_t *) d.lines + lane);
    const float scale = a.type == T_NVFP4 ? f32_of_ue4m3_half(ld_weight(d.lines + (i >> 4) * 16 + lane))
                      : a.type == T_MXFP4 ? f32_of_bits(bits << 16) : f32_of_half(bits);
    const float v = f32_mul(scale, f32_of_int(code_32(a, b, i)));
    return a.planes == 2 ? f32_add(v, half_of(m, 0, 0)) : v;
}

/* The 6 bits of the minimum of sub-block s, from the scale lines of K4 and K5. */
DEV int k4_min(const Group &b, int line, int s)
{
    const int at = (s >> 1 & 1) * 32 + b.lane * 2 + (s & 1);
    if (s < 4) return byte_of(b, line + 2, at) & 63;
    return byte_of(b, line, at) >> 6 | byte_of(b, line + 1, at) >> 6 << 2 | byte_of(b, line + 2, at) >> 6 << 4;
}

DEV float value_256(const PackedTable &a, const uint8_t *group, int lane, int block, int i)
{
    const Group b = { group + (size_t) block * (size_t) (a.lines * 64), lane };
    const int pair = i >> 6, sub = i >> 5, high = sub & 1, vector = i >> 2 & 7, s16 = i >> 4;
    const bool two = a.type == T_IQ2_XXS || a.type == T_IQ2_XS || a.type == T_IQ2_S;
    int code, scale, min = 0;
    bool has_min = true, floats = false;
    if (a.type == T_Q2_K) {
        const int both = byte_of(b, 16, s16 * 16 + lane);
        code = code_of(b, s16, i) >> 2 * (vector & 3) & 3, scale = both & 15, min = both >> 4;
    } else if (a.type == T_Q3_K || two) {
        code = code_of(b, s16, i) >> 2 * (vector & 3) & 3;
        code |= (code_of(b, 16 + sub, i) >> (2 * (vector & 3) + (s16 & 1)) & 1) << 2;
        code = two ? iq2[code] : code - 4;
        scale = (int8_t) byte_of(b, 24, (s16 >> 1) * 32 + lane * 2 + (s16 & 1)), has_min = false, floats = true;
    } else if (a.type == T_Q6_K) {
        const int low = code_of(b, 4 * (i >> 5) + (vector & 3), i) >> 4 * (s16 & 1) & 15;
        code = (low | (code_of(b, 32 + s16, i) >> 2 * (vector & 3) & 3) << 4) - 32;
        scale = (int8_t) byte_of(b, 48, (s16 >> 1) * 32 + lane * 2 + (s16 & 1)), has_min = false;
    } else {
        code = code_of(b, 8 * pair + vector, i) >> 4 * high & 15;
        if (a.type == T_IQ4_XS || a.type == T_IQ3_XXS || a.type == T_IQ3_S) {
            code = a.type == T_IQ4_XS ? iq4[code] : a.type == T_IQ3_S ? iq3_s[code] : iq3_xxs[code];
            scale = (int8_t) byte_of(b, 32, sub * 16 + lane), has_min = false, floats = true;
        } else {
            const int line = a.lines - 4;
            if (a.type == T_Q5_K)
                code |= (code_of(b, 32 + 2 * pair + (vector >> 2), i) >> (2 * (vector & 3) + high) & 1) << 4;
            scale = byte_of(b, line, sub * 16 + lane) & 63, min = k4_min(b, line, sub);
        }
    }
    const float d = floats ? float_of(b, a.lines - 1) : half_of(b, a.lines - 1, 0);
    const float v = f32_mul(f32_mul(d, f32_of_int(scale)), f32_of_int(code));
    return has_min ? f32_sub(v, f32_mul(half_of(b, a.lines - 1, 16), f32_of_int(min))) : v;
}

DEV float value_wide(const PackedTable &a, const uint8_t *group, int lane, int i)
{
    const size_t at = (size_t) i * 16 + (size_t) lane;
    if (a.type == T_F32) return ld_weight((const float *) group + at);
    const uint32_t half = ld_weight((const uint16_t *) group + at);
    return a.type == T_F16 ? f32_of_half(half) : f32_of_bits(half << 16);
}

DEV float table_value(const PackedTable &a, int row, int i)
{
    const uint8_t *group = a.data + (size_t) (row / 16) * (size_t) a.group_bytes;
    if (a.block == 1) return value_wide(a, group, row % 16, i);
    if (a.block == 32) return value_32(a, group, row % 16, i / 32, i % 32);
    return value_256(a, group, row % 16, i / 256, i % 256);
}

#endif
