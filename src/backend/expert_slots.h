/* expert_slots.h - how a store divides memory among the experts of which it does not hold all. A slot takes the
 * matrices of an expert, one behind the other. Layers whose experts have as many bytes share slots: they are of one
 * kind, of which a part is the ring (expert_cache.h). */
#ifndef RATOON_BACKEND_EXPERT_SLOTS_H
#define RATOON_BACKEND_EXPERT_SLOTS_H

#include "backend/backend.h"
#include "backend/expert_cache.h"

enum { SLOT_KINDS = 16, SLOT_ALIGN = 4096 };
/* at: of each matrix in a slot; packed: its bytes; kind -1: a layer without experts, where all else is 0. */
typedef struct { size_t at[STACKS], packed[STACKS]; int32_t kind; } SlotLayer;
/* bytes: of a slot; experts, layers: of this kind; first: the first slot, begin: where it is. */
typedef struct { size_t bytes, begin; int64_t experts; int32_t layers, slots, ring, first; } SlotKind;
typedef struct {
    const char *option;                            /* that says how many bytes there are, for errors */
    SlotLayer  *layer;                             /* [layers] */
    int32_t     layers, experts, kinds, ring_least;
    SlotKind    kind[SLOT_KINDS];
    size_t      bytes;                             /* of all slots */
} ExpertSlots;

/* Finds the kinds; there are no slots yet. in_place: matrices have the file's own layout. The caller closes it. */
Status   slots_open(ExpertSlots *out, const char *option, const Stacked *s, int32_t n, bool in_place,
                    const StoreOptions *o, Error *err);
void     slots_close(ExpertSlots *a);              /* a zeroed one is fine */
/* Bytes that slots for all experts would take; that the least ring of each kind takes. */
uint64_t slots_for_all(const ExpertSlots *a);
uint64_t slots_least(const ExpertSlots *a);
/* Divides so many bytes, at least slots_least, by o->ring and o->count. */
Status   slots_divide(ExpertSlots *a, uint64_t bytes, const StoreOptions *o, Error *err);

/* All experts, the most wanted first: by count [layers, experts], NULL: unknown, then the layers in turn. malloc'd;
 * NULL: no memory. */
typedef struct { uint64_t count; int32_t layer, expert; } Wanted;
Wanted  *slots_wanted(const ExpertSlots *a, const uint64_t *count, size_t *n);
/* Whether there is a slot for it that was never filled, if it is asked for the experts in their order. taken [kinds]: 0
 * at first. */
bool     slots_have_room(const ExpertSlots *a, const Wanted *w, int32_t *taken);

/* A cache for these slots, with the scores that o->count leaves. Adds their number to stats. */
Status   slots_cache(ExpertCache **out, StoreStats *stats, const ExpertSlots *a, const StoreOptions *o, Error *err);
/* Where the slot of a layer's expert is within the memory of all slots. */
size_t   slots_place(const ExpertSlots *a, int32_t layer, int32_t slot);

#endif
