/* cuda.h - internals of the CUDA backend: what its operations share. A card is opened once per backend and shared by
 * its forks: context, kernels, what the device is. A fork has a stream, a workspace in device memory, staging memory
 * that the device reads and writes by itself, and recorded passes. All of that is taken when the fork is made, so
 * passes allocate nothing, and fork_bytes is exact but for the records. Weights are packed as the CPU packs them, keys
 * and values lie as the CPU's do, and every kernel gives the CPU's bits, so kernels may be chosen by shape. Only files
 * of this folder include this. */
#ifndef RATOON_BACKEND_CUDA_CUDA_H
#define RATOON_BACKEND_CUDA_CUDA_H

#include <pthread.h>

#include "backend/backend.h"
#include "backend/cuda/driver.h"
#include "backend/cuda/store.h"
#include "backend/gpu/args.h"
#include "base/pool.h"

typedef enum {
#define X(name, threads, Args, shared) GPU_##name,
#include "backend/gpu/kernels.def"
#undef X
    GPU_KERNELS
} GpuKernel;

/* Parts of a fork's workspace, in device memory. */
enum {
    WORK_HEAD = 8 << 10,                           /* what a kernel found wrong, and tickets */
    TICKETS = 512,                                 /* sessions in a pass; each kind of state has as many */
    WORK_INPUT = 64 << 20,                         /* the quantised rows of a product */
    WORK_SPLITS = 64 << 20,                        /* attention: partial results of splits */
    WORK_DRAW = 16 << 20,                          /* top_k and pick; canvas */
    WORK_COUNTS = STORE_COUNTERS * 4,              /* how often experts were chosen */
    WORK_TABLE = EXPERTS_MAX * 8                   /* where those of a call are */
};
/* In which the driver hands out memory. */
enum { PAGE = 2 << 20 };

typedef struct {
    const CudaDriver *cu;
    void   *context, *function[GPU_KERNELS];
    void  **module;                                /* [n_modules] */
    int32_t n_modules, device;
    int32_t cc, processors;                        /* compute capability, 86 for 8.6; multiprocessors */
    size_t  memory;                                /* in all */
    int     integrated;                            /* not 0: it is the host's */
    char    name[128], level[16], opened_as[16];
} CudaCard;

typedef struct { void *host; size_t at, bytes; } CudaOut;      /* what the next sync hands over from staging */
/* A launch that waits for the next call: if that is a product that reads its rows y, it quantises them, too. */
typedef struct {
    GpuKernel   kernel;
    int64_t     blocks, blocks_y;
    size_t      bytes, act_at;                     /* of the argument struct, and where its ActRows [2] are; bytes 0:
                                                    * nothing waits; act_at 0: it has none */
    const void *y;
    int32_t     rows, cols;
    _Alignas(16) uint8_t args[256];
} CudaDelayed;

/* Rows x that lie quantised at the start of the input buffer, in `bytes`, until the next call; x NULL: none. */
typedef struct { const void *x; int32_t rows, cols, forms; size_t bytes; ActRows act[2]; } CudaInput;

typedef struct { uint8_t key[128]; size_t n; void *graph; } CudaRecord;
/* RECORD_BYTES: of device memory are planned for each recorded pass of some hundred launches, an estimate, since the
 * driver does not say it: passes are recorded until they have taken all that was planned. */
enum { STAGING = 32 << 20, OUTS_MAX = 256, RECORDS_MAX = 256, RECORD_BYTES = 256 << 10 };

typedef struct {
    Backend   be;                                  /* first, so that the table's Backend * points to a Cuda */
    CudaCard *card;
    bool      forked;
    void     *stream;
    uint8_t  *work, *input, *splits, *draw;        /* forks only: the workspace and its parts */
    GpuReport *report, told;                       /* device memory, what kernels tell; as it was at the last sync */
    Routes    routes;                              /* since they were last asked for */
    CudaVisitor visitor;                           /* of the store; the backend's own has only that */
    Pool     *pool;                                /* packs what is uploaded; NULL: nothing was so far */
    int32_t  *tickets;                             /* [3, TICKETS] device memory, zeros between launches: whoever takes
                                                    * the last ticket of a slice writes its mark (MARK_*); and one more
                                                    * for the router's blocks */
    uint8_t  *staging;                             /* pinned: copies in from the front, copies out from the back */
    size_t    staged_in, staged_out;
    CudaOut   out[OUTS_MAX];
    int32_t   n_outs;
    CudaRecord record[RECORDS_MAX];
    int32_t   n_records;
    size_t    record_bytes;                        /* of device memory, that they took */
    bool      records_full;                        /* the device has no memory for one more, or does not record */
    CudaRecord recording;                          /* the open pass; n 0: none is recorded */
    bool      preparing;
    bool      early;                               /* the next launch may begin before what is queued has ended; in
                                                    * recordings only behind a launch */
    CudaDelayed delayed;
    CudaInput quantised;
    Error     error;                               /* the first failure since the last sync */
} Cuda;

static inline Cuda *cuda_of(Backend *b) { return (Cuda *) (void *) b; }
static inline bool cuda_failed(const Cuda *c) { return c->error.code != ST_OK; }

/* Notes the first failure; returns true if code is success. */
bool cuda_ok(Cuda *c, int code, const char *what);

/* Makes the card's context that of the calling thread. */
void cuda_enter(Cuda *c);


/* Queues a kernel on blocks x blocks_y blocks with its argument struct, which is copied; nothing after a failure, and
 * nothing for no blocks. */
void cuda_launch(Cuda *c, GpuKernel k, int64_t blocks, int64_t blocks_y, const void *args, size_t bytes);
#define LAUNCH(c, kernel, blocks, blocks_y, Args, ...) \
    cuda_launch(c, GPU_##kernel, blocks, blocks_y, &(Args) { __VA_ARGS__ }, sizeof(Args))

/* Queues a kernel that makes the rows of y at the next call of this fork, whatever that is: cuda_quantise_with lets it
 * quantise them as well, and cuda_waiting lets another kernel do its work. */
void cuda_delay(Cuda *c, GpuKernel k, int64_t blocks, int64_t blocks_y, const void *args, size_t bytes, size_t act_at,
                const Tensor *y);
void cuda_flush(Cuda *c);
/* The arguments of a launch of k that waits and makes the rows of y; NULL: there is none. Who does its work sets
 * delayed.bytes to 0. */
const void *cuda_waiting(const Cuda *c, GpuKernel k, const Tensor *y);
/* Returns true if the rows of x are made by a launch that waited: it now quantises them into act, and is queued. */
bool cuda_quantise_with(Cuda *c, const Tensor *x, const ActRows act[2]);

/* Waits for the stream, and hands over what was copied out. */
void cuda_settle(Cuda *c);

/* Returns true if there is a ticket for each session of the pass; if not, that is the failure. */
bool cuda_has_tickets(Cuda *c, const Rows *r);

/* Moves the noted paths of all slices, keys and values of layer il, where that has not been done. */
void cuda_kv_move(Cuda *c, const Rows *r, int32_t il, const LayerSpec *s);

/* Stores the keys and values of a pass, after what a->heads does to them and to queries; the rest of a is set here. */
void cuda_kv_put(Cuda *c, KvPutArgs *a);

/* Returns true if heads can be turned so; else that is the failure. */
bool cuda_can_turn(Cuda *c, const Rope *rope, int32_t head_dim);

/* n bytes of staging, at most STAGING / 2, to be filled and copied to the device; free again after the next wait. */
uint8_t *cuda_staging(Cuda *c, size_t n);

/* The parts of a buffer in which n quantised rows lie; returns the bytes. forms: a mask of 1 << ActForm. */
size_t cuda_place_rows(ActRows act[2], uint8_t *at, int32_t forms, int32_t n, int32_t cols);

/* Before work that reads experts is queued. */
void cuda_visit(Cuda *c);

/* How kernels find the rows of a packed weight. */
PackedTable cuda_table(const Tensor *w);

/* Each fills in its part of the operation table. */
void cuda_rows_ops(Backend *b);                    /* ops_rows.c: norms, elementwise, rotation, taps */
void cuda_matmul_ops(Backend *b);                  /* ops_matmul.c: weights, embed, matmul */
void cuda_experts_ops(Backend *b);                 /* ops_experts.c: mixtures of experts */
void cuda_kv_ops(Backend *b);                      /* ops_kv.c: keys and values */
void cuda_attend_ops(Backend *b);                  /* ops_attend.c: attention */
void cuda_delta_ops(Backend *b);                   /* ops_delta.c: convolution, delta rule, fold */
void cuda_draw_ops(Backend *b);                    /* ops_draw.c: top_k, pick, the drafters' extras */
void cuda_canvas_ops(Backend *b);                  /* ops_canvas.c: ends of denoising steps */

#endif
