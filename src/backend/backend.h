/* backend.h - the operations a model is written in.
 * Operations run in call order and return nothing; the first failure sticks, later calls do nothing, sync() reports it. A call may be
 * queued: its descriptors are copied at the call (plain data, no pointers to host arrays inside), and everything that changes from pass
 * to pass is read from backend memory when it runs. Output first; no output aliases an input unless "in place".
 * Matrices are row-major, rows = tokens. The arithmetic of every operation is that of doc/design.md "Exactness": a row's value depends
 * on its token, its path and the weights only. */
#ifndef RATOON_BACKEND_BACKEND_H
#define RATOON_BACKEND_BACKEND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backend/draw.h"
#include "base/error.h"
#include "format/quant.h"

enum { ROWS_DECODE = 64, POS_LANES = 4, MATMUL_MAX = 4, TILE = 256, SPLIT = 4096 };

/* data: backend memory, the host never reads it. Weights after upload(): whatever the backend packed. Vectors are [1, n]. */
typedef struct { Type type; int32_t rows, cols; void *data; } Tensor;

/* What a layer keeps between passes, and the numbers its operations need. The family fills it, state.c allocates by it. */
typedef enum { LAYER_NONE, LAYER_ATTENTION, LAYER_DELTA } LayerKind;
typedef struct {
    LayerKind kind;
    int32_t   heads, kv_heads, head_dim;           /* attention: query head h reads kv head h / (heads / kv_heads) */
    int32_t   window;                              /* key visible iff q_pos - k_pos < window; 0: everything */
    bool      causal;                              /* BLOCK rows see earlier rows of the block and themselves only */
    float     scale, softcap;                      /* score = scale * q.k; softcap 0: none (else cap * tanh(score / cap)) */
    Type      k_type, v_type;                      /* of stored keys and values */
    int32_t   k_heads, v_heads, k_dim, v_dim;      /* delta net: value head m reads key head m % k_heads */
    int32_t   conv_width;                          /* taps, e.g. 4; channels = 2 * k_heads * k_dim + v_heads * v_dim */
    float     eps;                                 /* of the l2 norm of q and k in the delta net */
} LayerSpec;

/* One layer of one session, in backend memory.
 *   k, v      slot = position, pending row i of a pass at base + i; a ring (drafter): slot = position % ring, BLOCK row i at ring + i.
 *             A slot is kv_row_bytes(type, kv_heads * head_dim) bytes. Slots of some types lie together, kv_slots(type, values) of them from a
 *             multiple of it on, in any order of bytes: there are whole such units of them. Rings are not of these types.
 *   rec_*     row i of the last TREE pass: conv input, decay, delta, and k (l2-normalised) in two banks. A pass of generation g writes
 *             bank g & 1 and reads the noted path's rows, which pass g - 1 wrote, from bank (g - 1) & 1.
 *   mark[3]   the gen whose path has been applied here: keys/values, window, matrices. Written last by the operation itself. */
typedef struct {
    void    *k, *v;
    int32_t  ring, *slot_pos;                      /* [ring] position held, -1: hole; ring 0: linear */
    float   *matrix, *window;                      /* [sets, v_heads, k_dim, v_dim]  [sets, conv_width - 1, channels], oldest first */
    float   *rec_x, *rec_a, *rec_d, *rec_k;        /* [64, channels] [64, v_heads] [64, v_heads, v_dim] [2, 64, k_heads, k_dim] */
    int32_t *mark;
} StateLayer;

typedef enum { SLICE_CHAIN, SLICE_TREE, SLICE_BLOCK } SliceKind;
typedef struct {                                   /* the rows of one session in a pass; backend memory */
    int32_t     kind, row0, n;
    int32_t     base;                              /* committed length = position of the first row */
    int32_t     gen, n_path, path[ROWS_DECODE];    /* position base - n_path + t is row path[t] of the session's last TREE pass */
    int32_t     set_in, set_out;                   /* CHAIN reads in and leaves the advanced matrices in out; TREE: equal */
    StateLayer *layer;                             /* [n_layers] */
    float      *taps;                              /* [tap slots, n_taps * dim] */
    Draw        draw;
} Slice;

enum { WANT_TAPS = 1, WANT_LOGITS = 2 };
typedef struct {                                   /* all rows of a pass, TREE and BLOCK slices first */
    int32_t  n, n_decode, n_slices, n_logits, span;/* launch shape = replay key; n_decode: rows of TREE and BLOCK slices; span: longest base, rounded up to a power of two */
    int32_t *token, *slice, *parent;               /* [n] from here backend memory at fixed addresses; parent: row within the slice, -1 committed. CHAIN: i - 1 */
    int32_t *pos, *lane;                           /* pos [n]: place in the text (slots, tiles, noise); lane [n, POS_LANES]: what rotation reads */
    int32_t *want, *tap_slot, *logit_row;          /* want [n]; tap_slot [n], -1: none; logit_row [n_logits]: row of x */
    Slice   *slices;                               /* [n_slices] */
} Rows;

/* Rotary embedding: angle of pair i = lane[lane_of[i]] * freq[i] in double, sine and cosine by base/mathd.h rounded to float and times
 * mscale; (a, b) -> (a cos - b sin, a sin + b cos). neox: pair (x[i], x[i + n_rot / 2]), else (x[2i], x[2i + 1]); others pass through. */
typedef struct {
    int32_t        n_rot;
    bool           neox;
    float          mscale;
    const double  *freq;                           /* [n_rot / 2] backend memory */
    const int32_t *lane_of;                        /* [n_rot / 2] backend memory; NULL: lane 0 */
} Rope;

enum { UPLOAD_ROWS = 64 };                          /* a weight is uploaded in pieces of whole multiples of it */
typedef struct Backend Backend;
struct Backend {
    const char *name;
    bool        counts;                            /* null: memory is not there, uploads need no data */
    bool        in_place;                          /* weights keep the file's layout: data of one that is in the file may point there, where it stays */
    /* sizes: pure; null asks them of the backend it stands for. weight_bytes 0: this type cannot be the weight of a product here */
    size_t (*weight_bytes)(Backend *b, Type t, int32_t rows, int32_t cols);       /* after repacking */
    size_t (*kv_row_bytes)(Backend *b, Type t, int32_t cols);                     /* 0: not a key/value type here, or cols are no whole blocks */
    int32_t (*kv_slots)(Backend *b, Type t, bool values);                         /* slots that lie together, 1: each by itself */
    void   (*kv_blank)(Backend *b, void *host, const LayerSpec *s, bool values, int32_t from, int32_t n); /* zeros in slots [from, n) of a host's copy of a layer's first n keys or values */
    size_t (*own_bytes)(Backend *b);                                              /* threads' workspace, staging, logs */
    /* memory and order. alloc gives zeroed memory aligned to 64 bytes, or NULL and the failure sticks */
    void  *(*alloc)(Backend *b, size_t bytes, const char *part);
    void   (*release)(Backend *b, void *p, size_t bytes);
    void   (*upload)(Backend *b, Tensor *w, const void *src, int32_t row0, int32_t rows);  /* packs rows [row0, row0 + rows) of w, src in the layout of GGUF type w->type, into w->data (weight_bytes long); row0 a multiple of UPLOAD_ROWS, so is rows but at the end; src may go when it returns */
    void   (*copy_in)(Backend *b, void *dst, const void *host, size_t n);         /* host is captured before it returns */
    void   (*copy_out)(Backend *b, void *host, const void *src, size_t n);        /* host is filled by the next sync */
    const void *(*view)(Backend *b, void *buf, const void *src, size_t n);        /* after sync: src itself if the host can read it, else copied to buf */
    void   (*fill)(Backend *b, void *dst, int value, size_t n);
    void   (*copy)(Backend *b, void *dst, const void *src, size_t n);             /* within backend memory */
    bool   (*pass_begin)(Backend *b, const void *key, size_t n);                  /* true: a recorded pass was queued, make no calls */
    void   (*pass_end)(Backend *b, bool complete);                                /* false: cancelled, do not record */
    Status (*sync)(Backend *b, Error *err);
    void   (*close)(Backend *b);
    /* rows in, rows out. F32 unless said; x [n, in] */
    void (*embed)(Backend *b, Tensor *x, const Tensor *table, const Tensor *ids); /* x[i] = decoded row ids[i] of the packed table; ids I32 [1, n] */
    void (*matmul)(Backend *b, int32_t n, Tensor *const *y, const Tensor *const *w, const Tensor *x);  /* y[j] = x w[j]^T, n <= MATMUL_MAX products that read the same x */
    void (*norm)(Backend *b, Tensor *y, const Tensor *x, const Tensor *w, float eps);                  /* y = (x * r) * w, r = 1 / sqrt(mean(x^2) + eps) */
    void (*head_norm)(Backend *b, Tensor *x, const Tensor *w, int32_t head_dim, float eps);            /* in place, each head_dim columns by themselves */
    void (*add)(Backend *b, Tensor *x, const Tensor *dx);                         /* in place */
    void (*bias)(Backend *b, Tensor *x, const Tensor *v);                         /* in place: x[i] += v */
    void (*glu)(Backend *b, Tensor *y, const Tensor *gate, const Tensor *up);     /* silu(gate) * up */
    void (*gate)(Backend *b, Tensor *x, const Tensor *logit);                     /* in place: x *= sigmoid(logit) */
    void (*gated_norm)(Backend *b, Tensor *x, const Tensor *w, const Tensor *z, int32_t head_dim, float eps);  /* in place: head_norm(x) * silu(z) */
    void (*split)(Backend *b, Tensor *y0, Tensor *y1, const Tensor *x, int32_t width);                 /* column groups of width, dealt out in turn: 0,2,4.. to y0, 1,3,5.. to y1 */
    void (*join)(Backend *b, Tensor *y, const Tensor *x0, const Tensor *x1);      /* y[i] = x0[i] | x1[i], columns side by side */
    void (*scale)(Backend *b, Tensor *x, float by, float softcap);                /* in place: x *= by; softcap > 0: softcap * tanh(x / softcap) */
    void (*logit_rows)(Backend *b, Tensor *y, const Tensor *x, const Rows *r);    /* y[j] = x[logit_row[j]] */
    void (*tap)(Backend *b, const Tensor *x, const Rows *r, int32_t j, int32_t n_taps);                /* slice.taps[tap_slot[i]] part j = x[i], where tap_slot[i] >= 0 */
    void (*tap_get)(Backend *b, Tensor *f, const Rows *r);                        /* f[i] = slice.taps[tap_slot[i]] */
    /* attention */
    void (*rope)(Backend *b, Tensor *x, const Rows *r, int32_t head_dim, const Rope *rope);            /* in place */
    void (*kv_put)(Backend *b, const Tensor *k, const Tensor *v, const Rows *r, int32_t il, const LayerSpec *s); /* moves the noted path down first */
    void (*attend)(Backend *b, Tensor *y, const Tensor *q, const Rows *r, int32_t il, const LayerSpec *s);
    /* gated delta net */
    void (*conv)(Backend *b, Tensor *y, const Tensor *x, const Tensor *w, const Rows *r, int32_t il, const LayerSpec *s); /* y = silu(causal convolution along the row's path); w [channels, conv_width] F32, tap 0 oldest */
    void (*delta)(Backend *b, Tensor *y, const Tensor *qkv, const Tensor *beta, const Tensor *alpha, const Tensor *a, const Tensor *dt,
                  const Rows *r, int32_t il, const LayerSpec *s);                 /* beta, alpha [n, v_heads] raw projections; a, dt [1, v_heads] */
    void (*fold)(Backend *b, const Rows *r, int32_t il, const LayerSpec *s);      /* any kind of layer, slices without rows: applies the noted path, result in set_out */
    /* drafters' extras */
    void (*block_conv)(Backend *b, Tensor *y, const Tensor *x, const Tensor *base, const Tensor *delta, int32_t side, int32_t taps, int32_t group,
                       const Rows *r);                                            /* DFlash2, spec speculation 1.9; zero before a slice's row 0 */
    void (*pair_scores)(Backend *b, Tensor *edge, const Tensor *pred, const Tensor *succ, const Tensor *ids, const Tensor *score, const Tensor *g,
                        const Rows *r);                                           /* DFlash2 selector, see draft_dflash.c */
    /* the end of a drafting pass: draw_top_k per logits row at the row's own pos; id I32, score F32 [n_logits, k] */
    void (*top_k)(Backend *b, Tensor *id, Tensor *score, const Tensor *logits, const Rows *r, int32_t k);
    /* optional: NULL is composed by step.c or done by the host, which is the test */
    void (*add_norm)(Backend *b, Tensor *y, Tensor *x, const Tensor *dx, const Tensor *w, float eps);  /* x += dx; y = norm(x) */
    void (*pick)(Backend *b, Tensor *id, const Tensor *logits, const Rows *r);    /* draw_next for every logits row, drawn at pos + 1; id I32 [1, n_logits] */
};

/* threads 0: all; level NULL: the best that this machine has (level.h); in_place: weights are not packed at load, but a group at a time in
 * every product: slower, the same bits, and what is resident is the file's pages, which the system may drop and read again. */
typedef struct { int32_t threads; const char *level; bool in_place; } CpuOptions;
Status backend_cpu_open(Backend **out, const CpuOptions *o, Error *err);
/* Counts bytes per part and computes nothing; asks `like` for sizes. Owns nothing of like. */
Status backend_null_open(Backend **out, Backend *like, Error *err);
/* What null has counted: bytes of each part, in order of first use. */
void   backend_null_parts(Backend *null, void (*part)(void *ud, const char *name, size_t bytes), void *ud);

#endif
