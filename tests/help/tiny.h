/* tiny.h - small random models, made on the spot: whole GGUF files and drafters that any engine can read, from a seed.
 * Every weight is a function of (seed, tensor name, index) in integer arithmetic, so every machine makes the same
 * file, and expectations computed from it elsewhere stay true. The spreads are those of trained models (no vector of
 * ones or zeros that would hide an error; logits' standard deviation about 2).
 *
 *   TinyModel m = tiny_model(TINY_QWEN35);  m.n_layer = 5;  tiny_model_write(&m, "/tmp/x/m.gguf", &err);
 *   TinyDraft d = tiny_draft(&m);           d.window = 16; tiny_draft_write(&d, TINY_LLAMA_CPP,
 *                                           "/tmp/x/d.gguf", &err); */
#ifndef RATOON_TESTS_HELP_TINY_H
#define RATOON_TESTS_HELP_TINY_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "format/gguf.h"
#include "format/quant.h"
#include "format/recipe.h"

/* ---- random numbers: a counter in, the same bits out everywhere ---- */

uint64_t tiny_key(uint64_t seed, const char *name);
uint64_t tiny_bits(uint64_t key, uint64_t i);
double   tiny_uniform(uint64_t key, uint64_t i);    /* [0, 1) in steps of 2^-32 */
double   tiny_normal(uint64_t key, uint64_t i);     /* mean 0, deviation 1: the sum of twelve 16-bit uniforms, exact */

/* ---- targets ---- */

/* dense ones first */
typedef enum { TINY_LLAMA, TINY_QWEN3, TINY_QWEN35, TINY_GEMMA4, TINY_QWEN3MOE, TINY_QWEN35MOE, TINY_LAGUNA,
               TINY_GEMMA4MOE, TINY_DIFFUSION } TinyFamily;

/* The same model written as other converters write it (targets.md section 14). */
typedef enum {
    TINY_PLAIN,
    TINY_OLLAMA,                    /* head_count_kv an array, ssm_dt without .bias, 3 rope sections, vision tensors */
    TINY_GROUPED                    /* ssm.v_head_reordered false: value heads grouped by key head */
} TinyStyle;

typedef struct {
    TinyFamily family;
    TinyStyle  style;                              /* qwen35 only */
    uint64_t   seed;
    int32_t    n_layer, hidden, ff, vocab, context;
    int32_t    n_head, n_head_kv, head_dim, n_rot; /* n_rot: qwen35 may rotate a part of the head, the
                                                    * others all of it */
    int32_t    k_heads, v_heads, state, interval;  /* qwen35: delta-net heads, their width, every interval-th layer
                                                    * is attention. gemma4: every interval-th layer is full */
    int32_t    full_dim;                           /* gemma4: width of the heads of full layers, of whose keys there is
                                                    * one */
    bool       own_values;                         /* gemma4: full layers have values of their own, and as many heads as
                                                    * others; and the file has nothing that is optional */
    int32_t    canvas;                             /* diffusion-gemma, which is else a gemma4 mixture */
    int32_t    n_mtp;                              /* qwen35: blocks behind the trunk that a loader skips */
    int32_t    n_expert, n_used, ff_expert;        /* mixtures: experts of a layer, chosen for a row, their width */
    int32_t    ff_shared;                          /* qwen35moe, laguna: width of the expert that every row passes */
    int32_t    n_dense;                            /* laguna: leading layers without experts */
    int32_t    window;                             /* laguna: of all layers but every fourth; 0: none have one. Those
                                                    * with a window have n_head_kv more heads. gemma4: of those that
                                                    * are not full */
    bool       gate_each;                          /* laguna: a gate per element, and all optional keys */
    bool       fused_experts;                      /* mixtures: gate and up of an expert in one tensor */
    float      rope_base, eps;
    bool       tied;
    bool       bias, ffn_bias, rope_freqs;         /* llama only: biases of attention, of the feed-forward part;
                                                    * llama3 scaling */
    bool       add_bos;
    Type       type, type_embd, type_head;         /* of matrices; a type that does not divide the columns
                                                    * becomes Q8_0. Types from grids: random blocks, since their
                                                    * encoders take seconds */
    const Recipe *recipe;                          /* the types of a quantised file in their place; NULL: none */
    Type       type_down;                          /* of every other layer's down stack; T_F32: as the others */
    bool       factors;                            /* layers' matrices come with an "X.scale" of powers of two, whose
                                                    * inverses they are multiplied by: the same model */
} TinyModel;

/* hidden 64, 3 layers (4 for qwen35: the last is attention), vocabulary 96 (too small for a tokenizer), 8 experts of
 * which a row uses 2, F32: it runs in milliseconds. */
TinyModel tiny_model(TinyFamily family);
/* One of tiny_names: hidden 256 with a tokenizer, "small-...", or a mixture that uses all of 3 experts ("-all") or 2 of
 * 8 ("-two"), in rows of whole blocks of 256. Returns false if the name is unknown. */
bool      tiny_model_named(TinyModel *out, const char *name);
/* A weight type or, where there is none of that name, a recipe for all matrices; returns false if it is neither. */
bool      tiny_model_types(TinyModel *m, const char *name);
Status    tiny_model_write(const TinyModel *m, const char *path, Error *err);

extern const char *const tiny_names[];             /* NULL-terminated */

enum { TINY_TOKENIZER_VOCAB = 320 };            /* from this vocabulary size on, files carry a byte-level tokenizer */
int32_t tiny_eos(int32_t vocab);                /* <|im_end|> */
int32_t tiny_mask(int32_t vocab);               /* <|mask|>, the drafters' mask token */

/* ---- drafters ---- */

typedef enum { TINY_HF, TINY_LUCE, TINY_LLAMA_CPP } TinyLayout;

enum { TINY_TAPS_MAX = 8 };
typedef enum { TINY_CAUSAL_ABSENT, TINY_CAUSAL_NO, TINY_CAUSAL_YES } TinyCausal;

typedef struct {
    uint64_t   seed;
    int32_t    n_layer, hidden, ff, vocab, context, n_head, n_head_kv, head_dim;
    int32_t    n_target_layer, n_tap, tap[TINY_TAPS_MAX];          /* 0-based "after layer" */
    int32_t    block, mask_id;
    int32_t    window;                  /* of the sliding layers; 0: none are */
    uint64_t   sliding;                 /* bit i: layer i slides */
    TinyCausal causal;                  /* absent: sliding layers are causal inside the block */
    bool       dflash2;
    int32_t    conv_group, rank, top_k; /* dflash2 */
    bool       laguna;                  /* norms of taps, gates, causal; HF layout: q, k and v in one tensor */
    bool       gate_each;               /* laguna: per element, not per head */
    bool       gemma;                   /* all layers but the last slide, which the Luce layout does not say, and a
                                         * soft cap */
    bool       markov;                  /* DSpark's head of this rank, guessing from row 1 on */
    int32_t    own_rows;                /* own embedding, and a head for so many tokens; 0: the target's */
    bool       library;                 /* HF layout: the dialect of speculators */
    bool       sections;                /* llama.cpp layout: rope.dimension_sections, as for a qwen35 target */
    bool       nested;                  /* HF layout: block_size in dflash_config and rope_theta in rope_parameters */
    bool       add_bos;
    float      rope_base, eps;
    Type       type;                    /* of matrices; the HF layout takes F32 or BF16 */
} TinyDraft;

/* A DFlash drafter that fits m: 3 full layers, block 8, heads as in m, taps spread over m's layers. */
TinyDraft tiny_draft(const TinyModel *m);
/* One of tiny_draft_names, with the name of its target. */
bool      tiny_draft_named(TinyDraft *out, const char **target, const char *name);
/* path: a folder (made if missing) for TINY_HF, else a file. All layouts of one type have the same weights. */
Status    tiny_draft_write(const TinyDraft *d, TinyLayout layout, const char *path, Error *err);

extern const char *const tiny_draft_names[];

/* ---- shared by tiny.c and tiny_draft.c ---- */

/* QUARTER: divisors that leave all but the first quarter of the pairs as they are. IDS: the tokens of a reduced head's
 * rows, whole numbers. */
typedef enum { TINY_MATRIX, TINY_NORM, TINY_SMALL, TINY_DT, TINY_DECAY, TINY_CONV, TINY_CONV_BASE,
               TINY_FREQS, TINY_QUARTER, TINY_IDS, TINY_FACTORS } TinyKind;

typedef struct {
    char     name[64];
    uint64_t key;
    TinyKind kind;
    double   scale;                                /* TINY_MATRIX: deviation times sqrt(columns); TINY_NORM: mean */
    Type     type;
    int64_t  row0;                                 /* it is the rows from here on of what the key makes */
    int32_t  n_dims;
    int64_t  ne[4];                                /* ne[0] contiguous */
    double   rope_base;                            /* TINY_FREQS */
    uint64_t second;                               /* fused_experts: the key of each plane's second half */
    bool     divided;                              /* plane p is divided by value p of TINY_FACTORS */
} TinyTensor;

enum { TINY_TENSORS_MAX = 1024 };
typedef struct { TinyTensor *at; int32_t n; } TinyList;

/* Adds a tensor; kinds other than TINY_MATRIX are written as F32. key_name: the name that seeds its random numbers. */
TinyTensor *tiny_add(TinyList *list, TinyKind kind, Type type, uint64_t seed, const char *key_name, const char *name,
                     int64_t ne0, int64_t ne1);
void   tiny_row(float *out, const TinyTensor *t, int64_t row);     /* ne[0] values */
int32_t tiny_own_token(int32_t row);            /* TINY_IDS */
Status tiny_write_tensors(GgufWriter *w, const TinyList *list, Error *err);
void   tiny_write_tokenizer(GgufWriter *w, const char *pre, int32_t vocab, bool add_bos, bool mask);

#endif
