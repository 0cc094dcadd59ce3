/* step.h - one pass: its rows, its scratch, and the operations as a family calls them. A family sees tensors and layer
 * numbers, never rows, sessions, trees, positions or lengths. The step owns a fork of the backend, scratch and tables;
 * the same launch shape always gets the same addresses, so a backend can record a pass and replay it.
 *
 * A model cut into stages runs on a chain of steps, one per stage. Rows go to the first; the last has taps and logits.
 * A drafter has one stage, the target's last, so its passes run on step_last. */
#ifndef RATOON_MODEL_STEP_H
#define RATOON_MODEL_STEP_H

#include "backend/stages.h"
#include "model/state.h"

/* n_max: rows of the largest pass; scratch_bytes: per stage, 0: measure it (on a counting backend); tap_width: n_taps *
 * dim, floats of a tap row; dim: floats of a row passed between stages; threads 0: as the backend was opened. */
typedef struct { int32_t n_max, slices_max, chunk, tap_width, dim, threads; size_t scratch_bytes; } StepLimits;

typedef struct {
    bool (*cancel)(void *ud, int32_t il);          /* true stops the pass; asked after every layer; NULL: never */
    void (*trace)(void *ud, Backend *be, const char *name, int32_t il, const Tensor *t);
    void *ud;
} Hooks;

/* One rotation; every stage of the model has a copy of its frequencies. */
typedef struct { Rope at[STAGES_MAX]; } StageRope;

enum { STEP_TENSORS = 96, STEP_ROPES = 8 };
typedef struct { float *soft; bool conditioned; } StepCanvas;
typedef struct Step Step;
struct Step {
    Backend     *be;                               /* its own fork */
    Step        *next;                             /* the following stage; NULL: this is the last */
    Stages       on;                               /* the forks from this stage to the last */
    int32_t      stage;                            /* index of this stage in the model */
    StepLimits   lim;
    const Hooks *hooks;                            /* NULL: none */
    uint8_t     *scratch;
    size_t       used, kept, peak;                 /* used: from the front, reset at pass_start and after each layer, so
                                                    * addresses repeat; kept: at the back, until the pass ends */
    Tensor       tensor[STEP_TENSORS];             /* descriptors of this pass, reset like scratch */
    int32_t      n_tensors;
    struct { const StageRope *of; Tensor table; } rope[STEP_ROPES];
    int32_t      n_ropes;                          /* tables of this pass, each made at its first use */
    uint8_t     *table_host, *table;               /* all tables of a pass in one block */
    size_t       table_bytes, slices_at;
    Rows         rows, host;                       /* the same tables seen from the backend and from the host */
    int32_t      n_real, n_logits_real;            /* rows and logits of the pass; counts in host may be rounded up */
    const State **state;                           /* [slices_max] the state of each slice */
    float       *carry;                            /* [n_max, dim + tap_width] host memory for rows on their way to the
                                                    * next stage; NULL: the last */
    float       *chunk_taps;                       /* [chunk, tap_width] backend memory of the last stage */
    StepCanvas  *canvas;                           /* [slices_max] of pass_canvas */
    int32_t      n_canvas;                         /* all slices of the pass, or 0 */
    bool         no_fused;                         /* tests: compose optional slots */
    bool         overflow;                         /* scratch or descriptors ran out: the pass will fail at its end */
};

Status step_open(Step *s, const Stages *model, const StepLimits *lim, Error *err);
void   step_close(Step *s);
/* The step of the last stage: where taps, logits and drafters are. */
static inline Step *step_last(Step *s) { while (s->next) s = s->next; return s; }
/* Sets the hooks of all stages; they must outlive the step. */
void   step_hooks(Step *s, const Hooks *hooks);
size_t step_peak(const Step *s);                   /* peak scratch, the largest of its stages */
size_t step_between(const Step *s);                /* bytes of main memory for rows on their way between stages */

/* Waits for everything queued in this stage: one round trip. */
Status step_wait(Step *s, Error *err);

/* A pass without rows that moves a session's noted path now: keys/values, windows and matrices, all in place. */
Status step_fold(Step *s, State *st, Error *err);
/* The same into a free set, which becomes a checkpoint; the oldest is replaced if necessary. */
Status step_checkpoint(Step *s, State *st, Error *err);

/* span of a pass over short texts: one split of attention, rows of the pass included; from here on, powers of two. */
enum { SPAN_LEAST = SPLIT / 2 };

/* A pass is: start, slices (decoding ones first), wants, commit; then the model's operations. */
void   pass_start(Step *s);
/* Adds n rows of a session: tokens, and for a TREE parents (NULL: a chain; CHAIN and BLOCK ignore it). Returns the
 * host's slice, whose draw the caller may set. TREE: parent[0] == -1, parent[i] < i. */
Slice *pass_slice(Step *s, const State *st, SliceKind kind, int32_t n, const int32_t *token, const int32_t *parent);
/* What row `row` of the slice is wanted for; tap_slot: its place in the slice's taps, used with WANT_TAPS. */
void   pass_want(Step *s, const Slice *slice, int32_t row, int32_t want, int32_t tap_slot);
/* Makes the slice that was added last a canvas; its draw is set besides (Slice.canvas). All slices of a pass are
 * canvases, or none is. before: the first stage's memory [rows of the slice, dim], from the canvas's last step if
 * `conditioned`; soft: the last stage's, the same if that is the first: this step's are in it after the pass, and
 * PassOut.found says the rest. */
void   pass_canvas(Step *s, float *before, float *soft, bool conditioned);
static inline bool step_is_canvas(const Step *s) { return s->n_canvas > 0; }
/* Canvas i of the pass: its rows of x, and its memory of pass_canvas in this stage, as wide as x. */
Tensor step_canvas_rows(const Step *s, const Tensor *x, int32_t i);
Tensor step_canvas_soft(const Step *s, const Tensor *x, int32_t i);
/* Copies the tables into every stage, with row counts rounded up to a launch shape: those of decoding passes, which are
 * recorded, and, if `few`, also of other passes with few rows. */
void   pass_tables(Step *s, bool few);
/* Begins one stage, whose tables are copied: pass_begin with the key (owner, launch shape). Returns true if the pass
 * was replayed: then make no calls. Tracing disables replay, and passes over canvases have none: each has memory of its
 * own. */
bool   pass_commit(Step *s, const void *owner);

/* Tensors in scratch; without `rows` they have the pass's rows. Their data lives until the layer ends. */
Tensor *step_new_tensor(Step *s, Type type, int32_t rows, int32_t cols);
Tensor *step_new_rows(Step *s, int32_t cols);
/* Marks the scratch in use now; step_reset returns to it. */
typedef struct { size_t used; int32_t n_tensors; } StepMark;
StepMark step_mark(const Step *s);
void     step_reset(Step *s, StepMark m);

/* Operations as families write them; results in scratch. A model has at most STEP_ROPES rotations. */
/* n products of the same x; creates y[j] */
void    step_linear(Step *s, int32_t n, Tensor **y, const Tensor *const *w, const Tensor *x);
Tensor *step_linear1(Step *s, const Tensor *x, const Tensor *w);
void    step_linear_to(Step *s, Tensor *y, const Tensor *x, const Tensor *w);
/* x: rows of the table for the tokens of the pass */
void    step_embed(Step *s, Tensor *x, const Tensor *table);
/* w NULL: no weights (all norms but step_gated_norm) */
Tensor *step_norm(Step *s, const Tensor *x, const Tensor *w, float eps);
Tensor *step_add_norm(Step *s, Tensor *x, const Tensor *dx, const Tensor *w, float eps);     /* x += dx; step_norm(x) */
/* In place, each group of head_dim columns separately, with weights for all or for each, as Backend.head_norm. */
void    step_head_norm(Step *s, Tensor *x, const Tensor *w, int32_t head_dim, float eps);
/* The same without weights, into new rows. */
Tensor *step_unit_heads(Step *s, const Tensor *x, int32_t head_dim, float eps);
void    step_gated_norm(Step *s, Tensor *x, const Tensor *w, const Tensor *z, int32_t head_dim, float eps);
void    step_add(Step *s, Tensor *x, const Tensor *dx);                            /* in place */
void    step_scale(Step *s, Tensor *x, float by);                                  /* in place */
void    step_add_bias(Step *s, Tensor *x, const Tensor *bias);                     /* does nothing if the file has no
                                                                                    * bias */
void    step_gate(Step *s, Tensor *x, const Tensor *logit, Act act, int32_t width);     /* in place, as Backend.gate */
Tensor *step_glu(Step *s, const Tensor *gate, const Tensor *up, Act act);           /* act(gate) * up */
/* step_split: column groups of `width` go alternately to y[0] and y[1], which it creates. step_join: columns side by
 * side. */
void    step_split(Step *s, Tensor **y, const Tensor *x, int32_t width);
Tensor *step_join(Step *s, const Tensor *x0, const Tensor *x1);
/* down (act(gate x) * up x); step_swiglu: with silu */
Tensor *step_ffn(Step *s, const Tensor *x, const Tensor *gate, const Tensor *up, const Tensor *down, Act act);
Tensor *step_swiglu(Step *s, const Tensor *x, const Tensor *gate, const Tensor *up, const Tensor *down);
/* The mixture of experts of x, by the router's logits [rows, experts]; bias and factor NULL: none (Backend.route).
 * gate, up, down: stacks. */
Tensor *step_moe(Step *s, int32_t il, const Tensor *x, const Tensor *logits, const Tensor *bias, const Tensor *factor,
                 const Router *r, const Tensor *gate, const Tensor *up, const Tensor *down, Act act);
/* What the mixtures of all stages have read since the last call, up to the last wait; zeros if no backend counts. */
Routes  step_routes(Step *s);
/* Rotates queries and keys, stores keys and values, and attends. */
Tensor *step_attend(Step *s, int32_t il, const LayerSpec *sp, Tensor *q, Tensor *k, Tensor *v, const StageRope *rope);
/* The same, with query and key heads normed first. */
Tensor *step_attend_normed(Step *s, int32_t il, const LayerSpec *sp, Tensor *q, Tensor *k, Tensor *v,
                           const Tensor *q_norm, const Tensor *k_norm, float eps, const StageRope *rope);
/* keys/values only */
void    step_store_kv(Step *s, int32_t il, const LayerSpec *sp, Tensor *k, Tensor *v, const StageRope *rope);
Tensor *step_short_conv(Step *s, int32_t il, const LayerSpec *sp, const Tensor *x, const Tensor *w);
Tensor *step_delta_rule(Step *s, int32_t il, const LayerSpec *sp, const Tensor *qkv, const Tensor *beta,
                        const Tensor *alpha, const Tensor *a, const Tensor *dt);
/* Drafters: each row's taps; DFlash2's convolution with kernels base + delta; its selector, which fills edge. */
Tensor *step_taps(Step *s, int32_t cols);
Tensor *step_block_conv(Step *s, const Tensor *x, const Tensor *base, const Tensor *delta, int32_t side, int32_t taps,
                        int32_t group);
void    step_pair_scores(Step *s, Tensor *edge, const Tensor *pred, const Tensor *succ, const Tensor *ids,
                         const Tensor *score, const Tensor *g);
void    step_trace(Step *s, const char *name, int32_t il, const Tensor *t);

#endif
