/* kv_store.h - where keys and values of a session lie, for all backends: slot by slot, or in panels (kv_panels.h). It
 * is also the order of images. */
#ifndef RATOON_BACKEND_CPU_KV_STORE_H
#define RATOON_BACKEND_CPU_KV_STORE_H

#include <string.h>

#include "backend/cpu/kv_panels.h"
#include "backend/pass.h"

/* Stores block c of a head, b in the file format, into slot s of the head's part of a panel. */
static inline void panel_put(uint8_t *head, const PanelHead *h, Type t, int32_t slots, int32_t s, int32_t c,
                             const uint8_t *b)
{
    const int32_t n = t == T_Q8_0 ? CODE_COLS : CODE_COLS / 2;
    const size_t half = 2 * (size_t) (c * slots + s);
    uint8_t *codes = head + h->codes + h->block * (size_t) c,
            *fifth = head + h->fifth + 8 * (size_t) (c * panel_lines(slots));
    int32_t line, byte;
    memcpy(head + half, b, 2), b += 2;
    if (codes_have_minimum(t)) memcpy(head + h->minima + half, b, 2), b += 2;
    if (codes_have_fifth(t)) {
        uint32_t bits;
        memcpy(&bits, b, 4), b += 4;
        for (int32_t k = 0; k < CODE_COLS; k++) {
            panel_place(&line, &byte, slots, s, k);
            uint8_t *at = fifth + 8 * line + byte / 8;
            *at = (uint8_t) ((*at & ~(1u << byte % 8)) | (bits >> k & 1) << byte % 8);
        }
    }
    for (int32_t k = 0; k < n; k++) {
        panel_place(&line, &byte, slots, s, k);
        codes[line * LINE + byte] = b[k];
    }
}

static inline void panel_get(uint8_t *b, const uint8_t *head, const PanelHead *h, Type t, int32_t slots, int32_t s,
                             int32_t c)
{
    const int32_t n = t == T_Q8_0 ? CODE_COLS : CODE_COLS / 2;
    const size_t half = 2 * (size_t) (c * slots + s);
    const uint8_t *codes = head + h->codes + h->block * (size_t) c,
                  *fifth = head + h->fifth + 8 * (size_t) (c * panel_lines(slots));
    int32_t line, byte;
    memcpy(b, head + half, 2), b += 2;
    if (codes_have_minimum(t)) memcpy(b, head + h->minima + half, 2), b += 2;
    if (codes_have_fifth(t)) {
        uint32_t bits = 0;
        for (int32_t k = 0; k < CODE_COLS; k++) {
            panel_place(&line, &byte, slots, s, k);
            bits |= (uint32_t) (fifth[8 * line + byte / 8] >> byte % 8 & 1) << k;
        }
        memcpy(b, &bits, 4), b += 4;
    }
    for (int32_t k = 0; k < n; k++) {
        panel_place(&line, &byte, slots, s, k);
        b[k] = codes[line * LINE + byte];
    }
}

enum { CODE_BLOCK = 34 };                          /* bytes of the longest block */

/* Copies a head's blocks from slot s to slot d, in another panel or the same. */
static inline void panel_copy(uint8_t *to, int32_t d, const uint8_t *from, int32_t s, const PanelHead *h, Type t,
                              int32_t slots, int32_t blocks)
{
    uint8_t b[CODE_BLOCK];
    for (int32_t c = 0; c < blocks; c++) {
        panel_get(b, from, h, t, slots, s, c);
        panel_put(to, h, t, slots, d, c, b);
    }
}

/* The keys or values of a layer: slots of type t in panels, kv_heads heads of head_dim columns. */
typedef struct { uint8_t *base; Type t; int32_t panel, kv_heads, head_dim; } Stored;

static inline Stored stored_keys(void *base, const LayerSpec *s)
{
    return (Stored) { base, s->k_type, kv_panel(s->k_type, true), s->kv_heads, s->head_dim };
}
static inline Stored stored_values(void *base, const LayerSpec *s)
{
    return (Stored) { base, s->v_type, kv_panel(s->v_type, false), s->kv_heads, value_dim(s) };
}

static inline uint8_t *stored_head(const Stored *p, int32_t slot, int32_t head)
{
    return p->base + panel_offset((size_t) p->kv_heads * type_row_bytes(p->t, p->head_dim), p->kv_heads, p->panel,
                                  slot, head);
}

/* Bytes of n slots, in whole panels; 0: the type cannot keep keys or values, or a head is not a whole number of
 * blocks. */
size_t kv_store_bytes(const LayerSpec *s, bool values, int32_t n);

/* In a copy of the first n slots: clears those with keep[slot] == 0 (NULL: none), and the rest of the last panel. */
void   kv_store_clear(const LayerSpec *s, bool values, void *slots, int32_t n, const uint8_t *keep);

#endif
