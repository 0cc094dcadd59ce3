/* model.h - families as data and a few functions; binding of weights; the layer loop.
 * A family is one file: a table of its tensors and their sizes, a reader of its keys into its own parameters, and
 * layer(), which reads top to bottom as mathematics. Loading, taps, cancellation, tracing and memory exist once, here.
 * A drafter is a family with a second entry point, for committed taps. */
#ifndef RATOON_MODEL_MODEL_H
#define RATOON_MODEL_MODEL_H

#include "backend/backend.h"
#include "format/hotness.h"
#include "model/step.h"
#include "model/weights.h"

typedef struct Model Model;

/* id, score [n_logits, k] and edge [n_logits, k * k] (Model.edges) are set if k > 0; hidden: the rows after the output
 * norm. found: [rows] of CanvasRow, of a pass over a canvas. */
typedef struct { Tensor *logits, *hidden, *id, *score, *edge, *found; } PassOut;

/* Of models that write by denoising a canvas of tokens (decode/diffuse.h). canvas: its rows; 0: the model does not. The
 * rest is how its file wants it done: steps of a canvas at most, temperatures of the last and the first one, entropies
 * in nats. trim, which no file has: see diffuse_trim. mask: the token of positions that are open, where they are locked
 * one by one (lock.h), 0: they are not; end: what then ends a text, -1: unknown. */
typedef struct {
    int32_t canvas, steps, stability, trim_from, mask, end;
    float   t_min, t_max, entropy_bound, confidence, trim;
} Diffusion;

enum { TAPS_MAX = 16, LAYERS_MAX = 4096 };

/* MATRIX: weight of a matrix product, packed by upload(). VECTOR: [1, cols] F32. PLAIN: [rows, cols] F32, unpacked.
 * TABLE: rows are looked up. EXPERTS: a stack of SIZE_EXPERTS matrices, [cols, rows, n] in the file. */
typedef enum { BIND_MATRIX, BIND_VECTOR, BIND_PLAIN, BIND_TABLE, BIND_EXPERTS } BindKind;
/* Symbolic sizes for a weight's rows and columns; a family's own begin at SIZE_OWN. */
enum { SIZE_ONE, SIZE_DIM, SIZE_FFN, SIZE_VOCAB, SIZE_Q, SIZE_KV, SIZE_HEAD, SIZE_EXPERTS, SIZE_EXPERT_FFN,
       SIZE_SHARED_FFN, SIZE_OWN };
typedef struct {
    const char *name;           /* without the layer's prefix; alternatives from other converters after '|' */
    size_t      place;          /* of the Tensor: in the layer's struct, in Model (global), or in the params (own) */
    int32_t     rows, cols;     /* SIZE_; a size of 0 means that this model lacks the tensor */
    BindKind    kind;
    bool        optional;
    LayerKind   only;           /* LAYER_NONE: every layer */
    const char *fused;          /* another tensor that contains these rows, after those of the preceding fused
                                 * entries */
} Bind;

typedef struct {
    const char *arch;
    const Bind *global; int32_t n_global;          /* tensors of Model */
    const Bind *own; int32_t n_own;                /* tensors of the params, in the first stage */
    const Bind *layer_bind; int32_t n_layer_bind;
    size_t      layer_bytes, params_bytes;         /* sizes of the family's structs: a layer's weights, and
                                                    * Model.params */
    bool        strict;                            /* a tensor that no entry names is an error (drafters) */
    const char *others;                            /* but not these, between '|': read() reads them, or they have no
                                                    * part in what is computed; NULL: none */
    Status    (*read)(Model *m, const Weights *w, Error *err);                     /* hyper-parameters */
    int32_t   (*size)(const Model *m, int32_t il, int32_t which);                  /* il -1: no layer; NULL:
                                                                                    * model_size */
    void      (*spec)(const Model *m, int32_t il, LayerSpec *out);                 /* what layer il keeps */
    void      (*embedded)(const Model *m, Step *s, Tensor *x);         /* what is done to embeddings before the first
                                                                        * layer; NULL: nothing */
    void      (*layer)(const Model *m, Step *s, int32_t il, Tensor *x);            /* x += layer(x) */
    Tensor   *(*context)(const Model *m, Step *s, Tensor *taps);            /* drafters: joined taps, which it may
                                                                             * change -> what context_layer reads */
    void      (*context_layer)(const Model *m, Step *s, int32_t il, const Tensor *c);  /* ends in step_store_kv() */
    void      (*edges)(const Model *m, Step *s, const PassOut *out);        /* drafters with Model.edges: fills
                                                                             * out->edge */
    Status    (*bound)(Model *m, Error *err);      /* called when all tensors are loaded; NULL: none */
} Family;

/* Tensors before and after the layers of every target: embedding, output norm, head (absent: tied to the embedding). */
enum { MODEL_ENDS = 3 };
extern const Bind model_ends[MODEL_ENDS];

extern const Family draft_dflash, draft_mtp;       /* targets: families.h */

struct Model {
    const Family *family;
    Stages        stages;                                                         /* whose memory holds the weights */
    char          name[128], arch[64], file[512];
    void         *params;                                                         /* family->params_bytes, its own */
    /* sizes every family has */
    int32_t       dim, n_layers, n_extra, vocab, ffn, ctx_train;            /* n_extra: layers after the trunk (MTP),
                                                                             * not loaded */
    int32_t       heads, kv_heads, head_dim, q_dim, kv_dim;
    int32_t       experts, expert_ffn, shared_ffn;                                /* mixtures; 0: none */
    Router        router;
    Diffusion     diffusion;
    float         eps, attention_scale, embed_scale, logit_scale, softcap;        /* scales 1, softcap 0: off */
    Type          k_type, v_type;
    /* taps: 0-based "after layer"; id n_layers is the state after the output norm */
    int32_t       n_taps, tap[TAPS_MAX], tap_width;
    /* drafters */
    const Model  *target;                                                         /* lends embedding and head */
    int32_t       lead, hold, first_layer;                                  /* MTP, others 0: distance of a row from its
                                                                             * tap's position; taps held back for the
                                                                             * next draft; layer number in the file */
    int32_t       block, mask_id, ring;
    int32_t      *head_row, n_head_rows;           /* own head for a part of the vocabulary: which of its rows each
                                                    * token has, -1: none; NULL: the head is whole */
    Tensor        head_bias;                       /* [1, vocab] -infinity for tokens without a row, 0 for others */
    bool          edges;                                                          /* its top k come with PassOut.edge
                                                                                   * (pair scores) */
    /* globals */
    Tensor        embed, out_norm, head;           /* embed in the first stage, the others in the last */
    Tensor        embed_end;       /* embed in the last stage: the head if it is tied, a drafter's embedding, what the
                                    * end of a canvas's step mixes */
    LayerSpec    *spec;                                                           /* [n_layers] */
    uint8_t      *layers;                                                        /* [n_layers] of family->layer_bytes */
    bool         *absent;          /* [n_layers] of a sample: layers that passes leave out; NULL: none */
    Tensor       *factors; int32_t n_factors;      /* of weights, see Tensor */
    struct { Backend *be; void *p; size_t bytes; } *owned; int32_t n_owned; size_t cap_owned; /* to release */
    uint64_t      weight_bytes;                                   /* all tensors, as packed or, if attached, as in the
                                                                   * file */
    uint64_t      n_weights;                                                      /* values in matrices */
    uint64_t      expert_bytes, n_expert_weights;                                 /* of these, in stacks of experts */
    uint64_t      device_expert_bytes;                            /* of these, in layers that run on a device */
    int32_t       n_quantised;                                    /* matrices of another type than in the file */
    StoreNeeds    store, device_store;             /* of the experts, on the CPU and on a device, if memory there does
                                                    * not hold all; bytes 0: it does */
};

/* What a file of used experts is of. */
HotnessModel model_hotness(const Model *m, const Gguf *g);

typedef struct {
    Type  k_type, v_type;   /* of a target; T_COUNT: F16, or F32 for a file that is F32 throughout */
    int32_t window;         /* of a target: limits layers without a window to this many positions; 0: no limit */
    bool  keep_types;       /* drafters: do not requantise matrices above 8 bits to Q8_0 */
    bool  q8_weights;       /* of a target: requantise matrices of 16 bits to Q8_0 */
    bool  lends;            /* of a target in several stages: a drafter will read its embedding, in the last stage */
    bool  sample;           /* of a target: load a layer of each kind, and the last; passes leave out the others */
    bool  overcommit;       /* do not check whether there is memory for the weights */
    StoreOptions store;     /* of a target: how much of its experts memory shall hold */
    const char *hotness;    /* the file that says how often earlier texts used each expert; NULL, or no such file:
                             * unknown */
    bool  mtp;              /* drafters: the target's own layer after its trunk, from the target's file */
    bool (*progress)(void *ud, const char *what, int64_t done, int64_t total);    /* false cancels; NULL: none */
    void *ud;
} ModelOptions;

/* Reads hyper-parameters, checks every tensor's name, shape and type, then uploads. target NULL: opens a target;
 * otherwise a drafter for it, which has one stage, the target's last. */
Status model_open(Model **out, const Stages *stages, const Weights *w, const Model *target, const ModelOptions *o,
                  Error *err);
void   model_close(Model *m);
/* Whether the file is a target of a family that is known: ST_UNSUPPORTED or ST_FORMAT say what it is instead. */
Status model_check(const Gguf *g, Error *err);
/* The family that reads this file, or NULL. */
const Family *model_family(const char *arch);
/* Sets which taps a pass of this target stores. ids ascending, each <= n_layers. */
Status model_set_taps(Model *m, const int32_t *ids, int32_t n, Error *err);

static inline void *model_layer(const Model *m, int32_t il) { return m->layers + m->family->layer_bytes * (size_t) il; }

/* Runs the rows of s, whose slices and wants are set, through all stages. It does not wait for the last one:
 * step_wait(step_last(s)) does, also for whatever is queued after it. ST_CANCEL between layers. Results live in the
 * scratch of the last stage until the next pass_start. */
Status model_pass(const Model *m, Step *s, PassOut *out, int32_t k, Error *err);
/* Lets stages on backends that record passes make ready for passes of this shape, whatever the tokens: nothing is run.
 * A failure is reported by the next wait. */
void   model_prepare(const Model *m, Step *s, int32_t k);
/* Drafters: turns waiting taps, named by the tap slots of CHAIN rows on the drafter's state, into keys/values. Does not
 * wait; step_wait does. */
void   model_context(const Model *m, Step *s);
void   model_prepare_context(const Model *m, Step *s);

/* For family files: the keys that every family has (block_count, embedding_length, feed_forward_length, context_length,
 * norm eps, vocabulary), checked; model_read_attention adds those of families whose layers all have the same heads. */
Status model_read_sizes(Model *m, const Weights *w, const char *arch, Error *err);
Status model_read_attention(Model *m, const Weights *w, const char *arch, Error *err);
/* The widths of a head, which are the same for keys and values, and the scale of scores. standard: if the file has no
 * key_length; 0: then that is an error. */
Status model_read_widths(Model *m, const Weights *w, const char *arch, int32_t standard, Error *err);
/* The keys of mixtures of experts, but for the gating and the size of shared experts. */
Status model_read_mixture(Model *m, const Weights *w, const char *arch, Error *err);
/* The sizes before SIZE_OWN from the fields of Model; 0 for others. */
int32_t model_size(const Model *m, int32_t which);
/* The spec of a causal attention layer with the model's heads. */
void   model_attention_spec(const Model *m, int32_t il, LayerSpec *out);
/* For family files: uploads frequencies base^(-2i/n_rot); a family can have several rotations, in its params. scaling:
 * the keys `arch.SCALING.type`, .factor and so on (NULL: not scaled); factors: the tensor of divisors, used if the file
 * has it (NULL: none); sections: which lane each pair reads (NULL: lane 0). */
typedef struct {
    int32_t        n_rot;
    bool           neox;
    float          base;
    const char    *scaling, *factors;
    const int32_t *sections;
} RopeSpec;
Status model_rope(Model *m, const Weights *w, const char *arch, const RopeSpec *r, StageRope *out, Error *err);
/* Allocates memory of a stage; model_close releases it. */
Status model_alloc(void **out, Model *m, int32_t stage, size_t bytes, const char *part, Error *err);

#endif
