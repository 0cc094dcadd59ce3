/* gpu_kv.h - where the keys and values of a head lie, for the kernels that store them and those that read them. */
#ifndef RATOON_BACKEND_GPU_GPU_KV_H
#define RATOON_BACKEND_GPU_GPU_KV_H

#include "backend/gpu/gpu.h"
#define KV_FN DEV
#include "backend/cpu/kv_panels.h"

enum { TQ3 = 128, TQ3_BYTES = 56 };

/* The keys or values of one head. */
struct Head {
    uint8_t  *base;                                /* of all heads */
    Type      type;
    int       panel, heads, head, dim;
    PanelHead parts;                               /* of types with integer codes */
};

DEV int row_bytes(Type t, int dim)
{
    return t == T_F32 ? 4 * dim : t == T_F16 || t == T_BF16 ? 2 * dim : dim / TQ3 * TQ3_BYTES;
}

DEV Head head_of(const LayerSpec &s, const StateLayer *l, int head, bool values)
{
    Head h;
    h.type = values ? s.v_type : s.k_type;
    h.panel = kv_panel(h.type, !values);
    h.heads = s.kv_heads;
    h.head = head;
    h.dim = values && s.value_dim ? s.value_dim : s.head_dim;
    h.base = (uint8_t *) (values ? ld_table(&l->v) : ld_table(&l->k));
    h.parts = panel_head(h.type, h.panel, h.dim / CODE_COLS);
    return h;
}

/* Where the head's part of the panel that has a slot begins; without panels, the head in that slot. */
DEV uint8_t *slot_of(const Head &h, int slot)
{
    if (!codes_are_integers(h.type)) {
        const size_t bytes = (size_t) row_bytes(h.type, h.dim);
        return h.base + bytes * ((size_t) slot * (size_t) h.heads + (size_t) h.head);
    }
    return h.base + h.parts.bytes * ((size_t) (slot / h.panel) * (size_t) h.heads + (size_t) h.head);
}

/* The slot of a position, or of the pending row that will have that position. */
DEV int slot_at(int wrap, int pos) { return wrap ? pos % wrap : pos; }

DEV_TABLE float tq3_level[8] = { -0.190685f, -0.117832f, -0.065717f, -0.021460f, 0.021460f, 0.065717f, 0.117832f,
                                 0.190685f };
DEV_TABLE uint32_t tq3_sign[2][4] = { { 0xE46A0359, 0x42F85949, 0xA4C63BBB, 0x49F250A9 },
                                      { 0x16ACEE90, 0x3F628FDC, 0xB7A5357A, 0xBEA56562 } };

/* A warp turns 128 values in shared memory as quant_rotate does, or back. */
DEV void tq3_turn(float *y, bool back)
{
    const int lane = TID & 31;
    for (int i = lane; i < TQ3; i += 32)
        if (tq3_sign[back][i / 32] >> i % 32 & 1) y[i] = -y[i];
    sync_warp();
    for (int h = 1; h < TQ3; h *= 2) {
        for (int i = lane; i < TQ3 / 2; i += 32) {
            const int j = i / h * 2 * h + i % h;
            const float a = y[j], b = y[j + h];
            y[j] = f32_add(a, b);
            y[j + h] = f32_sub(a, b);
        }
        sync_warp();
    }
    for (int i = lane; i < TQ3; i += 32) {
        const float v = f32_mul(y[i], 0.08838834764831845f);
        y[i] = tq3_sign[!back][i / 32] >> i % 32 & 1 ? -v : v;
    }
    sync_warp();
}

/* Value k of a block of 32, turned. */
DEV float tq3_value(const uint8_t *b, int k)
{
    const uint32_t low = ld(b + 2 + k / 4) >> 2 * (k % 4) & 3u, high = ld(b + 10 + k / 8) >> k % 8 & 1u;
    const uint32_t norm = ld(b) | (uint32_t) ld(b + 1) << 8;
    return f32_mul(tq3_level[low | high << 2], f32_of_half(norm));
}

/* ---- words of four codes ---- */

/* Four bits to bit 4 of four bytes. */
DEV uint32_t spread_fifth(uint32_t bits) { return ((bits & 15u) * 0x00204081u & 0x01010101u) << 4; }
DEV uint32_t less_code(uint32_t x, int offset)
{
    return ((x | 0x80808080u) - (uint32_t) offset * 0x01010101u) ^ 0x80808080u;
}

#endif
