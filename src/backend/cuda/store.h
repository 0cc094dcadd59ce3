/* store.h - experts of which device memory holds only some. All experts of the device's layers lie packed in pinned
 * memory of the host, which kernels read over the bus by themselves; slots in device memory hold copies of some
 * (expert_slots.h, expert_cache.h). A table in device memory has the address of each expert: of its slot, or of the
 * host's memory. Kernels find weights through it, so neither the calls of a pass nor its records depend on what is
 * where, no pass waits for the host, and no bit can change.
 *
 * Where the host's memory has no room for all, it has slots as well, and a file has all (cpu/expert_store.h). Then a
 * call of experts waits in the stream, between its lists and its products, for work of the host: that reads what is
 * neither on the device nor in the host's memory, and makes the table of this call, which is a fork's own. A call holds
 * what it uses, at most the experts of a layer, until the next one; the host's ring has room for as many. Forks pass in
 * turn, since each could wait for what another holds.
 *
 * Passes count on the device what their rows choose. After a wait the host reads these counts, and experts move: a
 * stream of the store's own copies them while later passes run. First the table says of an expert that gives way that
 * it is in the host's memory; every fork's next pass comes after that. Then its slot is overwritten; and once this is
 * done, the table gets the address of the slot. All that happens at moments at which no fork has a pass in flight, so
 * slots and table are constant while any pass runs. Where forks are never idle together, nothing moves. Only what the
 * host's memory has is copied, so nothing is read from a file for that.
 *
 * One store serves a backend and its forks. All memory is taken when it is opened. */
#ifndef RATOON_BACKEND_CUDA_STORE_H
#define RATOON_BACKEND_CUDA_STORE_H

#include "backend/backend.h"
#include "backend/cuda/driver.h"

typedef struct CudaStore CudaStore;

/* What the data of a stack's tensor points to while a store has it; at: where its matrices are in a slot. */
typedef struct { int32_t layer; size_t at; } CudaStack;

/* counters: how many a fork has for its counts. memory: device memory of as many bytes as were needed, which outlives
 * the store. The context is current. */
enum { STORE_COUNTERS = 256 << 10 };
Status cuda_store_needs(StoreNeeds *out, const Stacked *s, int32_t n, int32_t chunk, const StoreOptions *o, Error *err);
Status cuda_store_open(CudaStore **out, const CudaDriver *cu, int device, const Stacked *s, int32_t n, void *memory,
                       const StoreOptions *o, Error *err);
void   cuda_store_close(CudaStore *s);             /* NULL is fine */
void   cuda_store_stats(CudaStore *s, StoreStats *out);
void   cuda_store_counts(CudaStore *s, uint64_t *counts);

/* The stack that the store has; NULL: another tensor. s NULL is fine. */
const CudaStack *cuda_store_has(const CudaStore *s, const Tensor *w);
/* Where matrix i of a stack is to be packed; *slot: where it has to be copied besides, NULL: it has no slot. */
uint8_t *cuda_store_matrix(const CudaStore *s, const CudaStack *of, int32_t i, uint8_t **slot);
/* Experts of a layer; of all layers. */
int32_t cuda_store_experts(const CudaStore *s);
size_t  cuda_store_counters(const CudaStore *s);

typedef struct CudaFetch CudaFetch;

/* A fork. counts: its counters in device memory; now: as they are, filled before the fork leaves; told: as they
 * were. */
typedef struct {
    CudaStore *store;                              /* NULL: stacks are whole */
    bool       passing;                            /* work that reads experts may be in flight */
    int64_t    turns;                              /* of the table, which the stream has waited for */
    int32_t   *counts, *now, *told;
    uint64_t  *table;                              /* [experts] device memory: of its last call, with a `fetch` */
    CudaFetch *fetch;                              /* the host's work for it; NULL: there is none */
} CudaVisitor;

/* Makes a visitor of s, NULL: of none; the caller sets its counts and table. Then cuda_store_quit, whatever comes of
 * it. */
Status cuda_store_visit(CudaVisitor *v, CudaStore *s, Error *err);
/* Before work is queued that reads experts: the stream waits for the table's last change, and, if a file has experts,
 * the caller for the forks that are passing: whoever enters goes on to leave before it enters with another fork. */
Status cuda_store_enter(CudaVisitor *v, void *stream, Error *err);
/* Between the lists of a call and its products, recorded or not: makes the table be right. Returns it, [experts] in
 * device memory; *code: what the driver says. */
const uint64_t *cuda_store_table(const CudaVisitor *v, int32_t layer, void *stream, int *code);
/* After the stream has been waited for. counted: v->now has the counts; what they say is added to routes, and experts
 * may move. */
Status cuda_store_leave(CudaVisitor *v, bool counted, Routes *routes, Error *err);
/* A fork ends, whose stream has been waited for and whose records are gone: no copy is in flight afterwards. */
void   cuda_store_quit(CudaVisitor *v);

#endif
