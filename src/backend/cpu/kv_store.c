#include "backend/cpu/kv_store.h"

static Stored stored(void *base, const LayerSpec *s, bool values)
{
    return values ? stored_values(base, s) : stored_keys(base, s);
}

size_t kv_store_bytes(const LayerSpec *s, bool values, int32_t n)
{
    static const bool keeps[T_COUNT] = { [T_F32] = true, [T_F16] = true, [T_BF16] = true, [T_Q8_0] = true,
                                         [T_Q5_1] = true, [T_Q5_0] = true, [T_Q4_1] = true, [T_Q4_0] = true,
                                         [T_TQ3_0] = true };
    const Stored p = stored(NULL, s, values);
    const size_t panels = ((size_t) n + (size_t) p.panel - 1) / (size_t) p.panel;
    if (!keeps[p.t] || p.head_dim % type_info(p.t)->block != 0) return 0;
    return panels * (size_t) p.panel * (size_t) p.kv_heads * type_row_bytes(p.t, p.head_dim);
}

static void blank_slot(const Stored *p, int32_t slot)
{
    static const uint8_t zeros[CODE_BLOCK];
    for (int32_t head = 0; head < p->kv_heads; head++) {
        uint8_t *at = stored_head(p, slot, head);
        if (!codes_are_integers(p->t)) {
            memset(at, 0, type_row_bytes(p->t, p->head_dim));
            continue;
        }
        const PanelHead h = panel_head(p->t, p->panel, p->head_dim / CODE_COLS);
        for (int32_t c = 0; c < p->head_dim / CODE_COLS; c++)
            panel_put(at, &h, p->t, p->panel, slot % p->panel, c, zeros);
    }
}

void kv_store_clear(const LayerSpec *s, bool values, void *slots, int32_t n, const uint8_t *keep)
{
    const Stored p = stored(slots, s, values);
    for (int32_t slot = n; slot % p.panel != 0; slot++) blank_slot(&p, slot);
    for (int32_t slot = 0; keep && slot < n; slot++)
        if (!keep[slot]) blank_slot(&p, slot);
}
