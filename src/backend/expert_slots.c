#include "backend/expert_slots.h"

#include <stdlib.h>

#include "backend/cpu/matmul.h"

/* RING: its share of the slots, unless told. HALF_LIFE: see CacheShape; the hit rate is back within about twice as
 * many rows after the traffic has changed (doc/speed.md). */
enum { RING = 8, HALF_LIFE = 96 };

static size_t up_to(size_t n, size_t to) { return (n + to - 1) / to * to; }

/* ---- kinds ---- */

static Status add_layer(ExpertSlots *a, const Stacked *s, bool in_place, Error *err)
{
    SlotLayer *l = &a->layer[s->layer];
    size_t bytes = 0;
    int32_t k = 0;
    for (int32_t p = 0; p < STACKS; p++) {
        const Tensor *w = s->w[p];
        l->at[p] = up_to(bytes, 64);
        l->packed[p] = in_place ? type_row_bytes(w->type, w->cols) * (size_t) w->rows
                                : matmul_packed_bytes(w->type, w->rows, w->cols);
        bytes = l->at[p] + l->packed[p];
    }
    bytes = up_to(bytes, SLOT_ALIGN);
    while (k < a->kinds && a->kind[k].bytes != bytes) k++;
    if (k == SLOT_KINDS)
        return fail(err, ST_UNSUPPORTED, "%s: experts of more than %d different sizes", a->option, SLOT_KINDS);
    if (k == a->kinds) a->kind[a->kinds++] = (SlotKind) { .bytes = bytes };
    l->kind = k;
    a->kind[k].layers++;
    a->kind[k].experts += a->experts;
    return ST_OK;
}

Status slots_open(ExpertSlots *out, const char *option, const Stacked *s, int32_t n, bool in_place,
                  const StoreOptions *o, Error *err)
{
    Status st = ST_OK;
    *out = (ExpertSlots) { .option = option, .layers = o->layers, .experts = n ? s[0].w[STACK_GATE]->n : 0,
                           .ring_least = o->ring_least > 1 ? o->ring_least : 1 };
    out->layer = calloc((size_t) o->layers, sizeof *out->layer);
    if (!out->layer) return fail(err, ST_MEMORY, "%s: out of memory", option);
    for (int32_t il = 0; il < o->layers; il++) out->layer[il].kind = -1;
    for (int32_t i = 0; st == ST_OK && i < n; i++) st = add_layer(out, &s[i], in_place, err);
    if (st != ST_OK) slots_close(out);
    return st;
}

void slots_close(ExpertSlots *a)
{
    free(a->layer);
    a->layer = NULL;
}

uint64_t slots_for_all(const ExpertSlots *a)
{
    uint64_t all = 0;
    for (int32_t k = 0; k < a->kinds; k++) all += (uint64_t) a->kind[k].experts * a->kind[k].bytes;
    return all;
}

static int32_t least_ring(const ExpertSlots *a, const SlotKind *k)
{
    return a->ring_least < k->experts ? a->ring_least : (int32_t) k->experts;
}

uint64_t slots_least(const ExpertSlots *a)
{
    uint64_t sum = 0;
    for (int32_t k = 0; k < a->kinds; k++) sum += a->kind[k].bytes * (uint64_t) least_ring(a, &a->kind[k]);
    return sum;
}

/* ---- slots ---- */

/* Where nothing is known this takes the layers in turn, so that all get the same share. */
static int wanted_first(const void *x, const void *y)
{
    const Wanted *a = x, *b = y;
    if (a->count != b->count) return a->count > b->count ? -1 : 1;
    if (a->expert != b->expert) return a->expert < b->expert ? -1 : 1;
    return (a->layer > b->layer) - (a->layer < b->layer);
}

Wanted *slots_wanted(const ExpertSlots *a, const uint64_t *count, size_t *n)
{
    Wanted *w = malloc((size_t) a->layers * (size_t) a->experts * sizeof *w);
    *n = 0;
    for (int32_t il = 0; w && il < a->layers; il++)
        for (int32_t e = 0; a->layer[il].kind >= 0 && e < a->experts; e++)
            w[(*n)++] = (Wanted) { count ? count[(size_t) il * (size_t) a->experts + (size_t) e] : 0, il, e };
    if (w) qsort(w, *n, sizeof *w, wanted_first);
    return w;
}

bool slots_have_room(const ExpertSlots *a, const Wanted *w, int32_t *taken)
{
    const int32_t k = a->layer[w->layer].kind;
    return taken[k] < a->kind[k].slots && ++taken[k];
}

static void place_kinds(ExpertSlots *a)
{
    int32_t first = 0;
    a->bytes = 0;
    for (int32_t k = 0; k < a->kinds; k++) {
        a->kind[k].first = first;
        a->kind[k].begin = a->bytes;
        first += a->kind[k].slots;
        a->bytes += a->kind[k].bytes * (size_t) a->kind[k].slots;
    }
}

/* Every kind gets its part of the ring, without what the least rings of others need, then slots for its most wanted
 * experts. The count alone decides, not the count per byte: a miss costs time in proportion to the bytes that a slot
 * would have taken. */
Status slots_divide(ExpertSlots *a, uint64_t bytes, const StoreOptions *o, Error *err)
{
    const uint64_t all = slots_for_all(a), spare = bytes - slots_least(a);
    uint64_t used = 0;
    size_t n;
    for (int32_t k = 0; k < a->kinds; k++) {
        SlotKind *kind = &a->kind[k];
        const int32_t least = least_ring(a, kind);
        const double of_all = (double) kind->experts / (double) all, most = least + of_all * (double) spare;
        const double share = of_all * (double) bytes / RING;
        const double want = o->ring ? (double) o->ring * kind->layers : share < most ? share : most;
        kind->slots = kind->ring = want < least ? least : want < (double) kind->experts ? (int32_t) want
                                                                                        : (int32_t) kind->experts;
        used += (uint64_t) kind->ring * kind->bytes;
    }
    if (used > bytes)
        return fail(err, ST_ARG, "expert_slots: %d per layer take %.2f GB, but experts may take %.2f GB", o->ring,
                    (double) used / 1e9, (double) bytes / 1e9);
    Wanted *w = slots_wanted(a, o->count, &n);
    if (!w) return fail(err, ST_MEMORY, "%s: out of memory", a->option);
    for (size_t i = 0; i < n; i++) {
        SlotKind *kind = &a->kind[a->layer[w[i].layer].kind];
        if (kind->bytes > bytes - used || kind->slots >= kind->experts) continue;
        kind->slots++;
        used += kind->bytes;
    }
    free(w);
    place_kinds(a);
    return ST_OK;
}

Status slots_cache(ExpertCache **out, StoreStats *stats, const ExpertSlots *a, const StoreOptions *o, Error *err)
{
    int32_t slots[SLOT_KINDS], ring[SLOT_KINDS];
    int32_t *kind = malloc((size_t) a->layers * sizeof *kind);
    *out = NULL;
    if (!kind) return fail(err, ST_MEMORY, "%s: out of memory", a->option);
    for (int32_t il = 0; il < a->layers; il++) kind[il] = a->layer[il].kind;
    for (int32_t k = 0; k < a->kinds; k++) {
        slots[k] = a->kind[k].slots;
        ring[k] = a->kind[k].ring;
        stats->slots += slots[k];
        stats->pinned += slots[k] - ring[k];
    }
    Status st = expert_cache_open(out, &(CacheShape) { a->layers, a->experts, a->kinds, kind, slots, ring, HALF_LIFE },
                                  err);
    free(kind);
    if (st == ST_OK && o->count) expert_cache_seed(*out, o->count, o->used);
    return st;
}

size_t slots_place(const ExpertSlots *a, int32_t layer, int32_t slot)
{
    const SlotKind *kind = &a->kind[a->layer[layer].kind];
    return kind->begin + kind->bytes * (size_t) (slot - kind->first);
}
