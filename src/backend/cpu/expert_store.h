/* expert_store.h - the experts of a model of which memory holds only some: slots in memory, and the file that has all.
 * One store serves a backend and its forks: the cache says who is in which slot, and a lock is around it. Every fork
 * has a reader, which reads what its pass misses: all experts of a layer at once, while those in memory are computed.
 * What has arrived is packed into its slot by the fork's threads and used like any other weights, so neither where an
 * expert was nor how it was read can change a bit.
 * A reader that waits for others holds nothing that they could wait for. */
#ifndef RATOON_BACKEND_CPU_EXPERT_STORE_H
#define RATOON_BACKEND_CPU_EXPERT_STORE_H

#include "backend/backend.h"
#include "base/pool.h"

typedef struct ExpertStore ExpertStore;
typedef struct ExpertReader ExpertReader;

/* What the data of a stack's tensor points to while a store holds it: its layer, and where in a slot its matrices
 * are. */
typedef struct { int32_t layer; size_t at; } StoredStack;

/* s [n]: a mixture each. in_place: slots have the file's own layout. usual, most: rows of a prompt per pass without
 * a store, and at most. ST_ARG: o->ram is too little for even one
 * expert of each size. */
Status expert_store_needs(StoreNeeds *out, const Stacked *s, int32_t n, bool in_place, int32_t usual,
                          int32_t most, const StoreOptions *o, Error *err);
/* Opens the files and puts a StoredStack into the data of each stack's tensor. memory has as many bytes as that
 * function says, and must outlive the store. */
Status expert_store_open(ExpertStore **out, const Stacked *s, int32_t n, bool in_place, void *memory,
                         const StoreOptions *o, Error *err);
void   expert_store_close(ExpertStore *s);                                        /* NULL is fine */
/* Reads the experts with the highest counts until all slots are full. */
Status expert_store_fill(ExpertStore *s, Pool *pool, const StoreOptions *o, Error *err);
/* Any thread. counts [layers, experts]: how often rows chose each expert. */
void   expert_store_stats(ExpertStore *s, StoreStats *out);
void   expert_store_counts(ExpertStore *s, uint64_t *counts);

/* One thread at a time; s outlives it. */
Status expert_reader_open(ExpertReader **out, ExpertStore *s, Error *err);
void   expert_reader_close(ExpertReader *r);                                      /* NULL is fine */

/* Whether the stack is one of those that the store holds. */
bool   expert_reader_has(const ExpertReader *r, const Tensor *w);
/* Counts what n_rows rows chose, times [n] each, and holds the experts that are in memory: at[i] is the slot, NULL if
 * expert i is not there. */
void   expert_reader_choose(ExpertReader *r, int32_t layer, const int32_t *expert, const int32_t *times, int32_t n,
                            int32_t n_rows, const uint8_t **at);
/* HELD: another fork has read it meanwhile, and it is held now. BUSY: another fork is reading it. FULL: all buffers or
 * slots are in use. */
typedef enum { EXPERT_BEGUN, EXPERT_HELD, EXPERT_BUSY, EXPERT_FULL } ExpertBegin;
/* Begins to read an expert that was not there; tag comes back with the load. */
ExpertBegin expert_reader_begin(ExpertReader *r, int32_t layer, int32_t expert, int32_t tag, const uint8_t **at);
/* Waits until something has arrived, packs all that has, and holds it: writes tags and slots, returns their number, 0:
 * nothing is in flight. An expert that could not be read has at NULL, with the reason in *err if that has none yet. */
enum { EXPERT_LOADS = 16 };                        /* that are read at once by all forks together */
int32_t expert_reader_arrived(ExpertReader *r, Pool *pool, int32_t tag[EXPERT_LOADS],
                              const uint8_t *at[EXPERT_LOADS], Error *err);
/* Holds an expert for another use than a pass's, which is not counted; returns its slot, NULL: it is not in memory. */
const uint8_t *expert_reader_keep(ExpertReader *r, int32_t layer, int32_t expert);
/* wide: many rows passed, as of a prompt; what it has read is not worth another expert's slot. */
void   expert_reader_release(ExpertReader *r, int32_t layer, int32_t expert, bool wide);
/* For a reader to which begin said BUSY or FULL while it holds and reads nothing: waits until another fork has changed
 * something since expert_reader_now gave `since`. */
uint64_t expert_reader_now(ExpertReader *r);
void   expert_reader_wait(ExpertReader *r, uint64_t since);
/* What this reader's passes missed since the last call. */
void   expert_reader_missed(ExpertReader *r, Routes *add);

#endif
