/* model.h - families as data plus one function; binding of weights; the layer loop.
 * A family is one file: a table that names its tensors, a reader of its keys, and layer(), which reads top to bottom as mathematics.
 * Loading, taps, cancellation, tracing and memory exist once, here. A drafter is a family with a second entry for committed taps. */
#ifndef RATOON_MODEL_MODEL_H
#define RATOON_MODEL_MODEL_H

#include "backend/backend.h"
#include "model/step.h"
#include "model/weights.h"

typedef struct Model Model;

enum { TAPS_MAX = 16, LAYERS_MAX = 4096, DRAFT_LAYERS_MAX = 64 };

/* MATRIX: weight of a product, packed by upload(). VECTOR: [1, cols] F32. PLAIN: [rows, cols] F32 as it is. TABLE: rows are looked up. */
typedef enum { BIND_MATRIX, BIND_VECTOR, BIND_PLAIN, BIND_TABLE } BindKind;
typedef struct {
    const char *name;                              /* without the layer's prefix; alternatives of other writers after '|' */
    size_t      place;                             /* of the Tensor: in the layer's struct, or in Model for globals */
    size_t      rows, cols;                        /* of the int32_t in Model that holds the size; rows 0: 1 */
    BindKind    kind;
    bool        optional;
    LayerKind   only;                              /* LAYER_NONE: every layer */
    const char *fused;                             /* another tensor that holds these rows, after those of the fused entries before it */
} Bind;

typedef struct {
    const char *arch;
    const Bind *global; int32_t n_global;
    const Bind *layer_bind; int32_t n_layer_bind;
    size_t      layer_bytes;
    bool        strict;                            /* any tensor that no entry names is an error (drafters) */
    Status    (*read)(Model *m, const Weights *w, Error *err);                     /* hyper-parameters */
    void      (*spec)(const Model *m, int32_t il, LayerSpec *out);                 /* what layer il keeps */
    void      (*layer)(const Model *m, Step *s, int32_t il, Tensor *x);            /* x += layer(x) */
    Tensor   *(*context)(const Model *m, Step *s, const Tensor *taps);             /* drafters: joined taps -> what context_layer reads */
    void      (*context_layer)(const Model *m, Step *s, int32_t il, const Tensor *c);  /* ends in remember() */
    void      (*bound)(Model *m);                  /* when all tensors are there; NULL: nothing to do */
} Family;

/* What stands before and behind the layers of every target: embedding, output norm, head (absent: tied to the embedding). */
enum { MODEL_ENDS = 3 };
extern const Bind model_ends[MODEL_ENDS];

extern const Family family_llama, family_qwen3, family_qwen35, draft_dflash, draft_mtp;

struct Model {
    const Family *family;
    Backend      *be;
    char          name[128], arch[64], file[512];
    /* sizes every family has; those that a family lacks are 0 */
    int32_t       dim, n_layers, n_extra, vocab, ffn, ctx_train;                  /* n_extra: layers behind the trunk (MTP), not loaded */
    int32_t       heads, kv_heads, head_dim, q_dim, kv_dim, q_gate_dim;           /* q_gate_dim: 2 * q_dim, query and gate */
    int32_t       k_heads, v_heads, k_dim, v_dim, conv_width, conv_dim, inner_dim;/* delta net; inner = v_heads * v_dim */
    float         eps, attention_scale, embed_scale, logit_scale, softcap;        /* scales 1, softcap 0: off */
    Type          k_type, v_type;
    bool         *recurrent;                                                      /* [n_layers], qwen35 */
    Rope          rope;
    /* taps: 0-based "after layer"; id n_layers is the state after the output norm */
    int32_t       n_taps, tap[TAPS_MAX], tap_width;
    /* drafters */
    const Model  *target;                                                         /* lends embedding and head */
    int32_t       lead, hold, first_layer, join_dim;                              /* MTP, others 0: where a row stands beyond its tap's position; taps
                                                                                     that wait for the drafter itself; place in the file; 2 * dim */
    int32_t       block, mask_id, ring, target_layers, conv_taps, conv_group, conv_rows, conv_proj_dim, selector_rank, selector_vocab;
    bool          context_norm;
    int32_t       window[DRAFT_LAYERS_MAX];                                       /* per layer, 0: full */
    bool          causal[DRAFT_LAYERS_MAX];
    Tensor        fc, hidden_norm, selector_hidden, selector_pred, selector_succ;
    /* globals */
    Tensor        embed, out_norm, head;
    LayerSpec    *spec;                                                           /* [n_layers] */
    uint8_t      *layers;                                                         /* [n_layers] of family->layer_bytes */
    struct { void *p; size_t bytes; } *owned; int32_t n_owned, cap_owned;         /* backend memory to release */
    uint64_t      weight_bytes;                                                   /* all tensors, packed or, in place, as in the file */
    uint64_t      n_weights;                                                      /* values in matrices */
};

typedef struct {
    Type  k_type, v_type;                          /* of a target; T_COUNT: F16, and F32 for a file that is F32 throughout */
    int32_t window;                                /* of a target: layers that see everything see this many positions only; 0: everything */
    bool  keep_types;                              /* drafters: do not requantise matrices above 8 bits to Q8_0 */
    bool  mtp;                                     /* drafters: the target's own layer behind its trunk, from the target's file */
    bool (*progress)(void *ud, const char *what, int64_t done, int64_t total);    /* false cancels; NULL: none */
    void *ud;
} ModelOptions;

/* Reads hyper-parameters, checks every tensor's name, shape and type, then uploads. target NULL: a target model; else a drafter for it. */
Status model_open(Model **out, Backend *be, const Weights *w, const Model *target, const ModelOptions *o, Error *err);
void   model_close(Model *m);
/* The family that reads this file, or NULL. */
const Family *model_family(const char *arch);
/* Which taps a pass of this target stores. ids ascending, each <= n_layers. */
Status model_set_taps(Model *m, const int32_t *ids, int32_t n, Error *err);

static inline void *model_layer(const Model *m, int32_t il) { return m->layers + m->family->layer_bytes * (size_t) il; }

/* id, score [n_logits, k] and edge [n_logits, k * k] (DFlash2 only) where k > 0; next [1, n_logits] where the backend picks; hidden:
 * the rows after the output norm. */
typedef struct { Tensor *logits, *hidden, *id, *score, *edge, *next; } PassOut;
/* Runs the rows of s, whose slices and wants are set. ST_CANCEL between layers. Results live in scratch until the next pass_start. */
Status model_pass(const Model *m, Step *s, PassOut *out, int32_t k, Error *err);
/* Drafters: CHAIN rows on the drafter's state whose tap slots name waiting taps; they become keys/values. */
Status model_context(const Model *m, Step *s, Error *err);

/* For family files: the keys that every attention family has (block_count, embedding_length, heads, norm eps, vocabulary ...), checked. */
Status model_read_attention(Model *m, const Weights *w, const char *arch, Error *err);
/* The spec of a causal attention layer with the model's heads. */
void   model_attention_spec(const Model *m, int32_t il, LayerSpec *out);
/* For family files: frequencies base^(-2i/n_rot) with the file's scaling, uploaded. factors: [n_rot / 2] divisors or NULL. */
Status model_rope(Model *m, const Weights *w, const char *arch, int32_t n_rot, bool neox, float base, const int32_t *sections, Error *err);
/* Backend memory that model_close releases. */
void  *model_alloc(Model *m, size_t bytes, const char *part, Error *err);

#endif
