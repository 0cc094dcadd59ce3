/* kv_panels.h - the memory layout of keys and values with integer codes (blocks of 32 columns: scale times code, for
 * some types plus a minimum). Slots are grouped in panels, 16 for keys and 128 for values, in the order in which
 * attention reads them; a line of 64 bytes is what a processor multiplies at once: four columns of 16 keys, or 16
 * columns of four values. A panel takes as many bytes as its slots' rows. It holds head after head, and for each head
 *
 *     scales [blocks][slots]  half       minima [blocks][slots]  half
 *                             fifth bits [blocks][lines]  64 bits, one for each byte of a line
 *     codes  [blocks][lines][64]; codes of four bits: [blocks][lines / 2][64], line i in the lower halves, line
 *            i + lines / 2 in the upper ones
 *
 * with codes as in the file format. For keys, line i is columns 4 i to 4 i + 3, slot after slot. For values, line i is
 * columns 0 to 15 of slots 4 i to 4 i + 3, column after column, and line 32 + i is their columns 16 to 31. */
#ifndef RATOON_BACKEND_CPU_KV_PANELS_H
#define RATOON_BACKEND_CPU_KV_PANELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backend/cpu/line.h"
#include "format/quant.h"

/* Kernels for GPUs read the same layout and include this with a word of their own. */
#ifndef KV_FN
#define KV_FN static inline
#endif

enum { KEY_PANEL = 16, VALUE_PANEL = 128, FOUR = 4, CODE_COLS = 32 };

KV_FN bool codes_are_integers(Type t)
{
    return t == T_Q8_0 || t == T_Q5_1 || t == T_Q5_0 || t == T_Q4_1 || t == T_Q4_0;
}
KV_FN bool codes_have_minimum(Type t) { return t == T_Q5_1 || t == T_Q4_1; }
KV_FN bool codes_have_fifth(Type t) { return t == T_Q5_1 || t == T_Q5_0; }

/* Slots of a panel of keys, or of values; 1 for other types, which are stored slot by slot. */
KV_FN int32_t kv_panel(Type t, bool keys)
{
    return !codes_are_integers(t) ? 1 : keys ? KEY_PANEL : VALUE_PANEL;
}

/* Where a head's part begins in the panel that holds a slot; a row of `heads` heads has `row` bytes. */
KV_FN size_t panel_offset(size_t row, int32_t heads, int32_t slots, int32_t slot, int32_t head)
{
    return (size_t) slots * (row * (size_t) (slot / slots) + row / (size_t) heads * (size_t) head);
}

/* What is subtracted from codes of four or five bits so that 0 stands for 0. */
KV_FN int32_t code_offset(Type t) { return t == T_Q5_0 ? 16 : t == T_Q4_0 ? 8 : 0; }

/* Lines of codes of a block when unpacked. */
KV_FN int32_t panel_lines(int32_t slots) { return CODE_COLS * slots / LINE; }

/* Offsets of the parts of a head in a panel, and the head's size. */
typedef struct { size_t minima, fifth, codes, block, bytes; } PanelHead;    /* block: bytes of a block's codes */

KV_FN PanelHead panel_head(Type t, int32_t slots, int32_t blocks)
{
    const size_t halves = sizeof(uint16_t) * (size_t) slots * (size_t) blocks;
    PanelHead h;
    h.minima = halves;
    h.fifth = h.minima + (codes_have_minimum(t) ? halves : 0);
    h.codes = h.fifth + (codes_have_fifth(t) ? 2 * halves : 0);
    h.block = (size_t) slots * (t == T_Q8_0 ? CODE_COLS : CODE_COLS / 2);
    h.bytes = h.codes + h.block * (size_t) blocks;
    return h;
}

/* Byte k of a block's codes in a row is stored as byte *byte of line *line, for slot s of a panel. */
KV_FN void panel_place(int32_t *line, int32_t *byte, int32_t slots, int32_t s, int32_t k)
{
    *line = slots == KEY_PANEL ? k / 4 : k / 16 * (VALUE_PANEL / FOUR) + s / FOUR;
    *byte = slots == KEY_PANEL ? 4 * s + k % 4 : FOUR * (k % 16) + s % FOUR;
}

#endif
