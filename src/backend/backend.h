/* backend.h - the operations a model is written in.
 * Operations run in call order and return nothing; the first failure sticks, later calls do nothing, and sync() reports
 * it. A failure that a device finds while queued work runs (a token beyond the table) may come after later calls: what
 * they have written is undefined.
 * A call may be queued: its descriptors are copied at the call (plain data, no pointers to host arrays inside), and
 * everything that changes from pass to pass is read from backend memory when the operation runs. Outputs come first; no
 * output aliases an input unless the comment says "in place".
 * Matrices are row-major, rows = tokens. doc/design.md "Exactness" defines the arithmetic of every operation: a row's
 * value depends only on its token, its path and the weights. */
#ifndef RATOON_BACKEND_BACKEND_H
#define RATOON_BACKEND_BACKEND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backend/pass.h"
#include "base/error.h"

/* What is done to the heads of queries and keys before attention: norms (NULL: none), then rotation by a table. */
typedef struct { const Tensor *q_norm, *k_norm, *turn; Rope rope; float eps; } Heads;

/* The weights of a mixture: stacks [experts][ffn, in], [experts][ffn, in], [experts][out, ffn]; memory that the
 * operation works in, for n rows: [n * used, ffn] twice, [n * used, out]. */
typedef struct { const Tensor *gate, *up, *down; Act act; Tensor *h, *wide, *each; } Experts;

/* The end of a denoising step: logits = softcap * tanh(scale * head x / softcap) (softcap 0: scale * head x), and the
 * table whose rows are mixed, times table_scale. Memory that the operation may work in: z [2 n, CANVAS_IDS],
 * wide [CANVAS_IDS, columns of the table]. */
typedef struct { const Tensor *head, *table; float scale, softcap, table_scale; Tensor *z, *wide; } CanvasEnd;

enum { UPLOAD_ROWS = 64 };                          /* weights are uploaded in pieces of a multiple of this many rows */

/* Where the rows of a weight are before the upload: in a mapped file at map (NULL: the loader has to convert them), the
 * matrices of a stack `stride` bytes apart. file: its path, offset: where in it. part: the part under which the memory
 * of a copy is counted. */
typedef struct { const uint8_t *map; uint64_t stride, offset; const char *file, *part; } Source;

/* The stacks of a mixture and the layer that it belongs to. */
enum { STACK_GATE, STACK_UP, STACK_DOWN, STACKS };
typedef struct { int32_t layer; Tensor *w[STACKS]; Source source[STACKS]; } Stacked;

/* How experts that are not in memory are read: AUTO is io_uring where the system grants it, else pread in a few
 * threads, both past the page cache where the file system allows. MMAP: from the mapped file. */
typedef enum { STORE_AUTO, STORE_URING, STORE_PREAD, STORE_MMAP } StoreIo;
/* ram: bytes that experts may take of main memory, device_ram: of a device's own; each kind of backend reads its own.
 * 0: all experts are loaded whole. ring: slots per layer for experts that come and go, 0: an eighth of all; ring_least:
 * of all layers together, at least, as far as there are so many experts. layers, used: of the model. count [layers,
 * experts]: how often earlier texts used each expert, NULL: unknown. progress: false cancels; NULL: none. */
typedef struct {
    uint64_t        ram, device_ram;
    StoreIo         io;
    int32_t         ring, ring_least, layers, used;
    const uint64_t *count;
    bool          (*progress)(void *ud, const char *what, int64_t done, int64_t total);
    void           *ud;
} StoreOptions;
/* bytes: memory that a store takes, 0: all experts fit, so they are loaded like other weights. host_bytes: main memory
 * that a device's store takes besides; uploads: it holds all experts, which are uploaded once the store is open; else
 * it holds some, and a file has all. chunk: rows of a prompt per pass: the more experts have to be read for each chunk,
 * the more rows should share them. */
typedef struct { size_t bytes, host_bytes; int32_t chunk; bool uploads; } StoreNeeds;
/* What a store has done since it was opened. chosen: experts that rows chose. A layer of a pass reads each expert
 * once: from a pinned slot, the ring, by a device over the bus from main memory, or, missed, from a file. latency:
 * reads of it by the power of two of their microseconds. io: how it is read; "bus": all are in main memory. */
enum { STORE_LATENCIES = 24 };
typedef struct {
    int64_t slots, pinned, bytes;
    int64_t chosen, pinned_hits, ring_hits, bus_hits, bus_bytes, misses, missed_bytes, evicted, promoted;
    int64_t latency[STORE_LATENCIES];
    double  waited, packing;                       /* seconds in which passes waited for reads, and packed them */
    char    io[24];
} StoreStats;

/* The most that a machine can do per second: bytes read from memory, int8 and f32 operations (a multiply-add is
 * two). */
typedef struct { double bytes_per_s, int8_ops_per_s, f32_ops_per_s; } Peaks;
typedef struct Backend Backend;
struct Backend {
    const char *name, *level;                      /* level: the processor's instructions it uses; NULL: no matter */
    /* The row counts that a decoding pass may be launched with, ascending up to ROWS_DECODE: other counts are rounded
     * up, so that few shapes are recorded. n_widths 0: every count is launched as it is. */
    const int32_t *widths;
    int32_t     n_widths;
    int32_t     chunk;                             /* rows of a prompt per pass, unless a caller says otherwise */
    /* device: whose own memory alloc takes, by its number among those that a model runs on, from 1; whoever opens
     * several numbers them, before forks are made. 0: main memory. shares: it is a part of main memory all the same,
     * and counted there. page: see backend_block. staging: bytes of main memory that such a backend and each of its
     * forks take besides. */
    int32_t     device;
    bool        shares;
    size_t      page, staging;
    /* sizes: pure functions; the null backend asks the backend it stands for. weight_bytes: 0 if this type cannot be
     * the weight of a product here */
    size_t (*weight_bytes)(Backend *b, Type t, int32_t rows, int32_t cols);       /* after repacking */
    /* of n slots; 0: not a key/value type here, or a head is not a whole number of blocks */
    size_t (*kv_bytes)(Backend *b, const LayerSpec *s, bool values, int32_t n);
    /* Bytes available and in total, of the memory that alloc takes; 0: unknown, so a device that is full has 1,
     * or a device that shares main memory. Callable from any thread. */
    void   (*memory)(Backend *b, uint64_t *free, uint64_t *total);
    /* One round of about a twentieth of a second on a fork, on the first n of its threads; rates higher than those in
     * `fastest` replace them. bytes: what is read again and again, 0: more than caches hold. A device measures nothing:
     * its rates are those that its clocks allow, and there are none, which sync says, where these are not known. */
    void   (*measure)(Backend *b, int32_t n, uint64_t bytes, Peaks *fastest);
    /* A view of the same memory for one step, with its own call order, threads or stream, workspace and first failure.
     * Operations run on forks only; memory calls and copies run on either. b outlives its forks, and close() of a fork
     * leaves the memory alone. threads 0: as many as b was opened with. fork, alloc and release may be called from any
     * thread; everything else of one fork from one thread at a time. */
    Status (*fork)(Backend *b, int32_t threads, Backend **out, Error *err);
    size_t (*fork_bytes)(Backend *b, int32_t threads);                      /* what such a fork takes for itself:
                                                                             * threads' workspace, staging, logs */
    /* memory and order. alloc returns zeroed memory aligned to 64 bytes, or NULL, and then the failure sticks */
    void  *(*alloc)(Backend *b, size_t bytes, const char *part);
    void   (*release)(Backend *b, void *p, size_t bytes);
    /* Returns true if the backend reads this weight in place or provides the data itself; it has then set w->data and
     * owns what that points to. Otherwise the loader allocates weight_bytes and uploads. */
    bool   (*attach)(Backend *b, Tensor *w, const Source *s);
    /* packs rows [row0, row0 + rows) of matrix i of w (0 if there is only one) into w->data (weight_bytes for each
     * matrix of a stack); src has the layout of GGUF type w->type; row0 is a multiple of UPLOAD_ROWS, and so is rows
     * except at the end; src may be freed after the call */
    void   (*upload)(Backend *b, Tensor *w, int32_t i, const void *src, int32_t row0, int32_t rows);
    /* Experts of which memory holds only some (expert_cache.h); NULL, all four: stacks are always held whole.
     * store_needs: a pure function. store: before steps are made, takes over the stacks; memory was allocated with so
     * many bytes. The others are read when rows choose them: from their files, or, where the store uploads, from main
     * memory, to which the loader uploads all stacks after this call. store_stats, store_counts [layers, experts]:
     * callable from any thread. */
    Status (*store_needs)(Backend *b, StoreNeeds *out, const Stacked *s, int32_t n, const StoreOptions *o, Error *err);
    Status (*store)(Backend *b, const Stacked *s, int32_t n, void *memory, const StoreOptions *o, Error *err);
    void   (*store_stats)(Backend *b, StoreStats *out);
    void   (*store_counts)(Backend *b, uint64_t *counts);
    void   (*copy_in)(Backend *b, void *dst, const void *host, size_t n);       /* host is captured before it returns */
    void   (*copy_out)(Backend *b, void *host, const void *src, size_t n);        /* host is filled by the next sync */
    const void *(*view)(Backend *b, void *buf, const void *src, size_t n);  /* after sync: src itself if the host can
                                                                             * read it, else copied to buf */
    /* Saves the first n slots of a layer's keys, or values, [kv_bytes] to host memory by the next sync, and loads them
     * again. keep [n], read at the call: slots with 0 are saved as zeros; NULL: all are kept. Slots after n that share
     * a panel with the last are zeros too. An image has the byte order of doc/cache.md, whatever the backend's own
     * is. */
    void   (*kv_save)(Backend *b, const LayerSpec *s, bool values, const void *slots, int32_t n, const uint8_t *keep,
                      uint8_t *host);
    void   (*kv_load)(Backend *b, const LayerSpec *s, bool values, void *slots, int32_t n, const uint8_t *host);
    void   (*fill)(Backend *b, void *dst, int value, size_t n);
    void   (*copy)(Backend *b, void *dst, const void *src, size_t n);             /* within backend memory */
    bool   (*pass_begin)(Backend *b, const void *key, size_t n);   /* true: a recorded pass was queued, so make no
                                                                    * calls */
    void   (*pass_end)(Backend *b, bool complete);                                /* false: cancelled, do not record */
    /* Between prepare(true) and prepare(false), passes with a key are recorded and not run (pass_begin is true where
     * that has been done), and at no other time: what decoding replays is there before it starts, and whatever has not
     * been recorded is run as it is called. NULL: passes are not recorded. */
    void   (*prepare)(Backend *b, bool on);
    /* ST_LOST: the device does nothing more for this process. */
    Status (*sync)(Backend *b, Error *err);
    void   (*close)(Backend *b);
    /* rows in, rows out. F32 unless stated otherwise; x [n, in] */
    /* x[i] = decoded row ids[i] of the packed table; ids I32 [1, n] */
    void (*embed)(Backend *b, Tensor *x, const Tensor *table, const Tensor *ids);
    /* y[j] = x w[j]^T, for n <= MATMUL_MAX products that read the same x */
    void (*matmul)(Backend *b, int32_t n, Tensor *const *y, const Tensor *const *w, const Tensor *x);
    /* y = (x * r) * w, r = 1 / sqrt(mean(x^2) + eps); w NULL: x * r, here and in head_norm and add_norm */
    void (*norm)(Backend *b, Tensor *y, const Tensor *x, const Tensor *w, float eps);
    /* in place, each group of head_dim columns separately; w [1, head_dim], or [1, columns of x]: a part for each of at
     * most 1024 groups */
    void (*head_norm)(Backend *b, Tensor *x, const Tensor *w, int32_t head_dim, float eps);
    void (*add)(Backend *b, Tensor *x, const Tensor *dx);                         /* in place */
    void (*bias)(Backend *b, Tensor *x, const Tensor *v);                         /* in place: x[i] += v */
    void (*glu)(Backend *b, Tensor *y, const Tensor *gate, const Tensor *up, Act act);           /* act(gate) * up */
    /* in place: x *= act(logit), one logit for each `width` columns; x->cols is a multiple of width */
    void (*gate)(Backend *b, Tensor *x, const Tensor *logit, Act act, int32_t width);
    /* in place: head_norm(x) * silu(z) */
    void (*gated_norm)(Backend *b, Tensor *x, const Tensor *w, const Tensor *z, int32_t head_dim, float eps);
    /* column groups of `width` alternate: 0,2,4.. to y0, 1,3,5.. to y1 */
    void (*split)(Backend *b, Tensor *y0, Tensor *y1, const Tensor *x, int32_t width);
    /* y[i] = x0[i] | x1[i], columns side by side */
    void (*join)(Backend *b, Tensor *y, const Tensor *x0, const Tensor *x1);
    void (*scale)(Backend *b, Tensor *x, float by, float softcap);          /* in place: x *= by; softcap > 0: softcap *
                                                                             * tanh(x / softcap) */
    void (*logit_rows)(Backend *b, Tensor *y, const Tensor *x, const Rows *r);    /* y[j] = x[logit_row[j]] */
    /* slice.taps[tap_slot[i]] part j = x[i], where tap_slot[i] >= 0 */
    void (*tap)(Backend *b, const Tensor *x, const Rows *r, int32_t j, int32_t n_taps);
    void (*tap_get)(Backend *b, Tensor *f, const Rows *r);                        /* f[i] = slice.taps[tap_slot[i]] */
    /* attention */
    /* t F32 [n, n_rot]: per row cosines [n_rot / 2], then sines [n_rot / 2] */
    void (*rope_table)(Backend *b, Tensor *t, const Rows *r, const Rope *rope);
    /* in place; t was made with the same rope for the rows of x */
    void (*rope)(Backend *b, Tensor *x, const Tensor *t, int32_t head_dim, const Rope *rope);
    /* moves the noted path to its final slots first */
    void (*kv_put)(Backend *b, const Tensor *k, const Tensor *v, const Rows *r, int32_t il, const LayerSpec *s);
    /* y [n, heads * value_dim] */
    void (*attend)(Backend *b, Tensor *y, const Tensor *q, const Rows *r, int32_t il, const LayerSpec *s);
    /* gated delta net */
    /* y = silu(causal convolution along the row's path); w [channels, conv_width] F32, tap 0 oldest */
    void (*conv)(Backend *b, Tensor *y, const Tensor *x, const Tensor *w, const Rows *r, int32_t il,
                 const LayerSpec *s);
    /* beta, alpha [n, v_heads] raw projections; a, dt [1, v_heads] */
    void (*delta)(Backend *b, Tensor *y, const Tensor *qkv, const Tensor *beta, const Tensor *alpha, const Tensor *a,
                  const Tensor *dt, const Rows *r, int32_t il, const LayerSpec *s);
    /* for any kind of layer and slices without rows: applies the noted path, result in set_out */
    void (*fold)(Backend *b, const Rows *r, int32_t il, const LayerSpec *s);
    /* mixtures of experts; NULL, both: this backend does not run them */
    /* Chooses r->used experts for each row from the router's logits [n, experts]: ids I32 and weight F32 [n, used],
     * best first. An expert ranks by p = its logit, or sigmoid of it, plus bias [1, experts] if that is not NULL; of
     * equals, the lower id is first, and NaN ranks last. Weights: exp(logit - the logit of rank 0), divided by their
     * sum in the order of ranks; or sigmoid, divided by the larger of their sum and 2^-14; then times scale; then, if
     * factor [1, experts] is not NULL, times that of the expert. Rows that do not count (Rows.count) get ids -1. */
    void (*route)(Backend *b, Tensor *ids, Tensor *weight, const Tensor *logits, const Tensor *bias,
                  const Tensor *factor, const Router *r, const Rows *rows);
    /* y [n, out] = sum over the row's ranks i, ascending from 0: y = fmaf(weight[i], down_e(act(gate_e x) * up_e x),
     * y), e = ids[i]; products of gate and up are multiplied by their stack's factor e first, if it has factors. Every
     * product is matmul's, so what a row gets does not depend on other rows. Rows with ids of -1 are left undefined. */
    void (*experts)(Backend *b, Tensor *y, const Tensor *x, const Tensor *ids, const Tensor *weight, const Experts *e);
    /* What `experts` has read on this fork since the last call of this, up to the last sync. NULL: not counted. */
    void (*routes)(Backend *b, Routes *out);
    /* models that denoise canvases; NULL: this backend does not run them */
    /* For each row, what CanvasRow says, found [n] of them, and soft [n, columns of the table] = table_scale * sum of
     * p * table row over the vocabulary, p = softmax(z), z = logits / t, t of the row's slice. Without a buffer of
     * logits: the vocabulary is divided into tiles of CANVAS_IDS ids, and for each, ascending:
     *   top' = max(top, z of the tile), again = exp(top - top'), e = exp(z - top'), 0 where z - top' < -30 ln 2
     *   lean = fmaf(again, fmaf(top - top', sum, lean), sum of e * (z - top')), from 0
     *   sum = fmaf(sum, again, sum of e)
     *   soft = fmaf(soft, again, sum of e * row), fmaf with ascending id where e > 0, from 0; without such ids and with
     *   again = 1 it stays as it is
     * (sums over z: 16 accumulators, fmaf where there is a product), then entropy = log(sum) - lean / sum in double,
     * and soft *= table_scale / sum. What is left out of a sum is below 2^-30 of its largest term for each id, so for a
     * vocabulary of V it changes p by at most V * 2^-30. */
    void (*canvas)(Backend *b, CanvasRow *found, Tensor *soft, const Tensor *x, const CanvasEnd *e, const Rows *r);
    /* drafters' extras */
    /* DFlash2, spec speculation 1.9; zero before a slice's row 0 */
    void (*block_conv)(Backend *b, Tensor *y, const Tensor *x, const Tensor *base, const Tensor *delta, int32_t side,
                       int32_t taps, int32_t group, const Rows *r);
    /* DFlash2 selector, see draft_dflash.c */
    void (*pair_scores)(Backend *b, Tensor *edge, const Tensor *pred, const Tensor *succ, const Tensor *ids,
                        const Tensor *score, const Tensor *g, const Rows *r);
    /* the end of a drafting pass: draw_top_k for each logits row at the row's own pos; id I32, score F32 [n_logits,
     * k] */
    void (*top_k)(Backend *b, Tensor *id, Tensor *score, const Tensor *logits, const Rows *r, int32_t k);
    /* optional: if NULL, step.c composes the operation or the host computes it, which is also how it is tested */
    /* x += dx; y = norm(x) */
    void (*add_norm)(Backend *b, Tensor *y, Tensor *x, const Tensor *dx, const Tensor *w, float eps);
    /* head_norm and rope of q and of k, kv_put, attend: y is the result of these; q and k are undefined afterwards */
    void (*attend_block)(Backend *b, Tensor *y, Tensor *q, Tensor *k, const Tensor *v, const Heads *h, const Rows *r,
                         int32_t il, const LayerSpec *s);
    /* draw_next for every logits row, drawn at pos + 1: id I32 and margin F32 (between the two largest logits; NaN if
     * these are not numbers) [1, n_logits]; mask: bits of the allowed ids, I32 [n_logits, (vocab + 31) / 32], NULL:
     * all. Only a backend that queues has it: while it works, the host makes the masks of all rows, parents first and a
     * child only where its parent's mask allows it. For other backends the host draws, and makes masks only for the
     * rows that acceptance visits. */
    void (*pick)(Backend *b, Tensor *id, Tensor *margin, const Tensor *logits, const Tensor *mask, const Rows *r);
};

/* What a block takes of the memory that alloc takes: one of more than half a page whole pages, smaller ones share them.
 * page 0: what it is. */
static inline size_t backend_block(const Backend *b, size_t bytes)
{
    return b->page && bytes > b->page / 2 ? (bytes + b->page - 1) / b->page * b->page : bytes;
}

/* threads 0: all. no_repack: weights are read from the mapped file and not packed at load: slower, the same bits, and
 * resident memory is the file's pages, which the system may drop and read again. */
typedef struct { int32_t threads; bool no_repack; } BackendOptions;

/* A card. backend: what backend_open takes for it ("cuda:0"); why: what keeps it from being used, and what to do about
 * it; "": nothing. */
typedef struct {
    char     backend[32], name[128], level[16], driver[32], why[256];
    uint64_t memory, free;                         /* in all; what is free of it, if it was opened; 0: unknown */
} BackendCard;

/* What a backend's folder exports. there: returns true if it can be opened on this machine. open: detail is what
 * follows the colon in "NAME:DETAIL", NULL without a colon. card: see backend_card; NULL: there are no cards. */
typedef struct {
    const char *name;
    bool   (*there)(void);
    Status (*card)(BackendCard *out, int32_t i, bool open, Error *err);
    void   (*driver)(const char *library);         /* see backend_driver; NULL: it has none */
    Status (*open)(Backend **out, const char *detail, const BackendOptions *o, Error *err);
} BackendEntry;

/* text: "auto" (the first one available), "NAME" or "NAME:DETAIL". */
Status backend_open(Backend **out, const char *text, const BackendOptions *o, Error *err);

/* Describes the i-th card that a backend sees; ST_END past the last. Another failure says why there is none, or, if it
 * is not ST_UNSUPPORTED, why its driver does not serve. open: opens the card as well, since what keeps it from being
 * used may show only then; that takes a moment, and memory of the card's meanwhile. */
Status backend_card(BackendCard *out, const char *backend, int32_t i, bool open, Error *err);

/* Names another library than the system's for the driver of a backend's cards, before that backend is first used. The
 * string is kept. */
void backend_driver(const char *backend, const char *library);

/* Counts bytes per part and computes nothing; asks `like` for sizes, and does not own it. */
Status backend_null_open(Backend **out, Backend *like, Error *err);
/* Sets the owner (a literal, "" at first) of everything counted from here on. */
void   backend_null_owner(Backend *null, const char *owner);
/* Reports what null has counted: bytes of each owner's parts, in order of first use. */
void   backend_null_parts(Backend *null, void (*part)(void *ud, const char *owner, const char *name, size_t bytes),
                          void *ud);

#endif
