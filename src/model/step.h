/* step.h - one pass: its rows, its scratch, and the operations as a family calls them. A family sees tensors and layer numbers, never
 * rows, sessions, trees, positions or lengths. The step owns scratch and tables; the same launch shape meets the same addresses, so
 * that a backend may record a pass and replay it. */
#ifndef RATOON_MODEL_STEP_H
#define RATOON_MODEL_STEP_H

#include "backend/backend.h"
#include "model/state.h"

/* n_max: rows of the largest pass; scratch_bytes 0: measure (on a backend that only counts). n_taps * dim: width of a tap row. */
typedef struct { int32_t n_max, slices_max, chunk, tap_width; size_t scratch_bytes; } StepLimits;

typedef struct {
    bool (*cancel)(void *ud, int32_t il);          /* true stops the pass; asked after every layer; NULL: never */
    void (*trace)(void *ud, const char *name, int32_t il, const Tensor *t);
    void *ud;
} Hooks;

enum { STEP_TENSORS = 96 };
struct Step {
    Backend     *be;
    StepLimits   lim;
    const Hooks *hooks;                            /* NULL: none */
    uint8_t     *scratch;
    size_t       used, peak;                       /* used is reset at pass_start, and after each layer to where it began: addresses repeat */
    Tensor       tensor[STEP_TENSORS];             /* descriptors of this pass, reset like scratch */
    int32_t      n_tensors;
    uint8_t     *table_host, *table;               /* all tables of a pass in one block */
    size_t       table_bytes, slices_at;
    Rows         rows, host;                       /* the same tables seen from the backend and from the host */
    float       *chunk_taps;                       /* [chunk, tap_width] backend memory */
    bool         no_fused, host_draws;             /* tests: compose optional slots, ignore pick */
    bool         overflow;                         /* scratch or descriptors ran out: the pass fails at its end */
};

Status step_open(Step *s, Backend *be, const StepLimits *lim, Error *err);
void   step_close(Step *s);

/* A pass: start, slices (decoding ones first), wants, commit; then the model. */
void   pass_start(Step *s);
/* Adds n rows of a session: tokens, and for a TREE parents (NULL: a chain; CHAIN and BLOCK ignore it). Returns the host's slice, whose
 * draw the caller may set. TREE: parent[0] == -1, parent[i] < i. */
Slice *pass_slice(Step *s, State *st, SliceKind kind, int32_t n, const int32_t *token, const int32_t *parent);
/* What row `row` of the slice is wanted for; tap_slot: its place in the slice's taps, used with WANT_TAPS. */
void   pass_want(Step *s, const Slice *slice, int32_t row, int32_t want, int32_t tap_slot);
void   pass_tables(Step *s);                       /* copies the tables in; for operations outside a recorded pass */
/* Tables in, and pass_begin with the key (owner, launch shape). True: replayed, make no calls. Tracing forbids replay. */
bool   pass_commit(Step *s, const void *owner);

/* Tensors in scratch. rows of the pass unless said. The data of a tensor lives until the layer ends. */
Tensor *new_tensor(Step *s, Type type, int32_t rows, int32_t cols);
Tensor *new_rows(Step *s, int32_t cols);
/* Scratch as it is now; back to it. */
typedef struct { size_t used; int32_t n_tensors; } StepMark;
StepMark step_mark(const Step *s);
void     step_reset(Step *s, StepMark m);

/* Operations as families write them; results in scratch. */
void    linear(Step *s, int32_t n, Tensor **y, const Tensor *const *w, const Tensor *x);               /* n products that read the same x; y[j] is made here */
Tensor *linear1(Step *s, const Tensor *x, const Tensor *w);
Tensor *norm(Step *s, const Tensor *x, const Tensor *w, float eps);
Tensor *add_norm(Step *s, Tensor *x, const Tensor *dx, const Tensor *w, float eps);                    /* x += dx; norm(x) */
void    add_bias(Step *s, Tensor *x, const Tensor *bias);                                              /* nothing where the file has none */
Tensor *swiglu(Step *s, const Tensor *x, const Tensor *gate, const Tensor *up, const Tensor *down);
Tensor *attend(Step *s, int32_t il, const LayerSpec *sp, Tensor *q, Tensor *k, Tensor *v, const Rope *rope);
void    remember(Step *s, int32_t il, const LayerSpec *sp, Tensor *k, Tensor *v, const Rope *rope);    /* keys/values only */
Tensor *short_conv(Step *s, int32_t il, const LayerSpec *sp, const Tensor *x, const Tensor *w);
Tensor *delta_rule(Step *s, int32_t il, const LayerSpec *sp, const Tensor *qkv, const Tensor *beta, const Tensor *alpha, const Tensor *a, const Tensor *dt);
void    trace(Step *s, const char *name, int32_t il, const Tensor *t);

#endif
