/* kv_units.h - how keys and values with integer codes (blocks of 32 columns: scale times code, perhaps plus a minimum) lie in memory. Slots go
 * in units, 16 for keys and 128 for values, in the order in which attention reads them, and a line of 64 bytes is what a processor multiplies at
 * once: four columns of 16 keys, or 16 columns of four values. A unit takes the bytes of its slots' rows, head after head, and of each head
 *
 *     scales [blocks][slots]  half       minima [blocks][slots]  half       fifth bits [blocks][lines]  64 bits, one for each byte of a line
 *     codes  [blocks][lines][64]         of four bits: [blocks][lines / 2][64], the lower halves of line i, above them line i + lines / 2
 *
 * with codes as the format has them. Line i of keys is columns 4 i to 4 i + 3, slot after slot; of values columns 0 to 15 of slots 4 i to 4 i + 3,
 * column after column, and line 32 + i columns 16 to 31 of them. */
#ifndef RATOON_BACKEND_CPU_KV_UNITS_H
#define RATOON_BACKEND_CPU_KV_UNITS_H

#include <stdbool.h>
#include <string.h>

#include "format/quant.h"

enum { KEY_UNIT = 16, VALUE_UNIT = 128, FOUR = 4, CODE_COLS = 32, LINE = 64 };

static inline bool codes_are_integers(Type t) { return t == T_Q8_0 || t == T_Q5_1 || t == T_Q5_0 || t == T_Q4_1 || t == T_Q4_0; }
static inline bool codes_have_minimum(Type t) { return t == T_Q5_1 || t == T_Q4_1; }
static inline bool codes_have_fifth(Type t) { return t == T_Q5_1 || t == T_Q5_0; }

/* Slots of a unit of keys, or of values; other types lie slot by slot. */
static inline int32_t kv_unit(Type t, bool keys) { return !codes_are_integers(t) ? 1 : keys ? KEY_UNIT : VALUE_UNIT; }

/* Where a head's part of the unit of a slot begins; rows of `heads` heads are `row` bytes. */
static inline size_t unit_offset(size_t row, int32_t heads, int32_t slots, int32_t slot, int32_t head)
{
    return (size_t) slots * (row * (size_t) (slot / slots) + row / (size_t) heads * (size_t) head);
}

/* What is taken from codes of four or five bits, so that 0 stands for 0. */
static inline int32_t code_offset(Type t) { return t == T_Q5_0 ? 16 : t == T_Q4_0 ? 8 : 0; }

/* Lines of codes of a block when unpacked. */
static inline int32_t unit_lines(int32_t slots) { return CODE_COLS * slots / LINE; }

/* Where the parts of a head begin in a unit, and its bytes. */
typedef struct { size_t minima, fifth, codes, block, bytes; } UnitHead;    /* block: bytes of a block's codes */

static inline UnitHead unit_head(Type t, int32_t slots, int32_t blocks)
{
    const size_t halves = sizeof(uint16_t) * (size_t) slots * (size_t) blocks;
    UnitHead h = { .minima = halves };
    h.fifth = h.minima + (codes_have_minimum(t) ? halves : 0);
    h.codes = h.fifth + (codes_have_fifth(t) ? 2 * halves : 0);
    h.block = (size_t) slots * (t == T_Q8_0 ? CODE_COLS : CODE_COLS / 2);
    h.bytes = h.codes + h.block * (size_t) blocks;
    return h;
}

/* Byte k of a block's codes in a row is byte *byte of line *line in slot s of a unit. */
static inline void unit_place(int32_t *line, int32_t *byte, int32_t slots, int32_t s, int32_t k)
{
    *line = slots == KEY_UNIT ? k / 4 : k / 16 * (VALUE_UNIT / FOUR) + s / FOUR;
    *byte = slots == KEY_UNIT ? 4 * s + k % 4 : FOUR * (k % 16) + s % FOUR;
}

/* Block c of a head as the format has it, b, into slot s of its part of a unit. */
static inline void unit_put(uint8_t *head, const UnitHead *h, Type t, int32_t slots, int32_t s, int32_t c, const uint8_t *b)
{
    const int32_t n = t == T_Q8_0 ? CODE_COLS : CODE_COLS / 2;
    const size_t half = 2 * (size_t) (c * slots + s);
    uint8_t *codes = head + h->codes + h->block * (size_t) c, *fifth = head + h->fifth + 8 * (size_t) (c * unit_lines(slots));
    int32_t line, byte;
    memcpy(head + half, b, 2), b += 2;
    if (codes_have_minimum(t)) memcpy(head + h->minima + half, b, 2), b += 2;
    if (codes_have_fifth(t)) {
        uint32_t bits;
        memcpy(&bits, b, 4), b += 4;
        for (int32_t k = 0; k < CODE_COLS; k++) {
            unit_place(&line, &byte, slots, s, k);
            uint8_t *at = fifth + 8 * line + byte / 8;
            *at = (uint8_t) ((*at & ~(1u << byte % 8)) | (bits >> k & 1) << byte % 8);
        }
    }
    for (int32_t k = 0; k < n; k++) {
        unit_place(&line, &byte, slots, s, k);
        codes[line * LINE + byte] = b[k];
    }
}

static inline void unit_get(uint8_t *b, const uint8_t *head, const UnitHead *h, Type t, int32_t slots, int32_t s, int32_t c)
{
    const int32_t n = t == T_Q8_0 ? CODE_COLS : CODE_COLS / 2;
    const size_t half = 2 * (size_t) (c * slots + s);
    const uint8_t *codes = head + h->codes + h->block * (size_t) c, *fifth = head + h->fifth + 8 * (size_t) (c * unit_lines(slots));
    int32_t line, byte;
    memcpy(b, head + half, 2), b += 2;
    if (codes_have_minimum(t)) memcpy(b, head + h->minima + half, 2), b += 2;
    if (codes_have_fifth(t)) {
        uint32_t bits = 0;
        for (int32_t k = 0; k < CODE_COLS; k++) {
            unit_place(&line, &byte, slots, s, k);
            bits |= (uint32_t) (fifth[8 * line + byte / 8] >> byte % 8 & 1) << k;
        }
        memcpy(b, &bits, 4), b += 4;
    }
    for (int32_t k = 0; k < n; k++) {
        unit_place(&line, &byte, slots, s, k);
        b[k] = codes[line * LINE + byte];
    }
}

enum { CODE_BLOCK = 34 };                          /* bytes of the longest block */

/* A head's blocks from slot s to slot d of another unit, or the same. */
static inline void unit_copy(uint8_t *to, int32_t d, const uint8_t *from, int32_t s, const UnitHead *h, Type t, int32_t slots, int32_t blocks)
{
    uint8_t b[CODE_BLOCK];
    for (int32_t c = 0; c < blocks; c++) {
        unit_get(b, from, h, t, slots, s, c);
        unit_put(to, h, t, slots, d, c, b);
    }
}

#endif
