/* spec.h - the loop: one step of several sessions.
 * A step is one pass of the target for all its sessions: decoding sessions bring a tree (of the root alone in plain
 * decoding), and one session may bring a chunk of its prompt. Before the pass the text is looked up for guesses
 * (ngram.h, free), waiting taps become drafter keys/values and the drafter proposes, if the controller allows it; after
 * the pass each session keeps the path that its own next tokens chose. A pass that is cancelled or fails leaves every
 * session as it was. */
#ifndef RATOON_DECODE_SPEC_H
#define RATOON_DECODE_SPEC_H

#include "decode/accept.h"
#include "decode/session.h"
#include "decode/simulate.h"
#include "model/step.h"

typedef struct Spec Spec;
typedef struct Drafter Drafter;                    /* dflash; a test's oracle or noise */
struct Drafter {
    bool uses_taps;                                /* all waiting taps become keys/values before propose is called */
    int32_t rows;                                  /* rows of one proposal's pass, for the memory plan; 0: none */
    int32_t source;                                /* SOURCE_... under which its edges are learned */
    size_t work;                                   /* bytes of sp->work that propose computes in */
    /* Prepares the passes of proposals for n sessions like these (model_prepare). NULL: propose runs none. */
    void   (*prepare)(Drafter *d, Spec *sp, Session *const *s, int32_t n);
    /* Fills one lattice per session; n_depth 0: no proposal. May run passes. */
    Status (*propose)(Drafter *d, Spec *sp, Session *const *s, int32_t n, Lattice *out, Error *err);
};

/* A session's drafter before taps were queued to become its keys/values: restored if the queued work fails. */
typedef struct { bool queued; State draft; int32_t n_wait, wait[TAP_SLOTS]; } TapsNote;

/* What a session does in the current step. alone: no other session decodes; drafted: the drafting model is asked;
 * proposed: bits of the sources that proposed something; expected: from accept_expected. */
typedef struct {
    bool     decodes, alone, drafted, was_on;
    int32_t  chunk;
    uint32_t proposed;
    double   free_value, margin, expected;
    Slice   *slice;
    Guess    guess;
    TapsNote taps;
} StepRole;

/* What a step object owns besides its pass. */
enum { BUDGET_AUTO = 0, BUDGET_PLAIN = -1 };
struct Spec {
    Step      step, *last;                      /* last: of the model's last stage, where taps, logits and the
                                                 * drafter are */
    const Model *m;
    Drafter  *drafter;                          /* NULL: none */
    int32_t   chunk, budget;                    /* budget: BUDGET_AUTO, BUDGET_PLAIN or nodes without the root,
                                                 * at most 63 */
    bool      chain;
    Cost      cost;                             /* what passes and proposals take */
    double    body;                             /* share of the head-less part in the operations of a pass */
    BatchBudget batch;                          /* decides when several sessions decode */
    const Profile *simulate;                    /* not NULL: accepted edges are drawn from it instead of decided by the
                                                 * target */
    uint64_t  simulate_seed, simulate_step;
    EdgeCount *count;                           /* not NULL: real acceptance is counted here */
    void    (*log)(void *ud, const char *line); /* told when the controller starts or stops drafting; NULL: none */
    void     *log_ud;
    uint32_t  turn;                             /* which session of a step that denoises comes first (diffuse.h) */
    int32_t   sessions_max, prepared;           /* prepared: passes after texts of up to so many tokens are recorded */
    Lattice  *lattice;                          /* [sessions_max] */
    Tree     *tree;                             /* [sessions_max] of the pass */
    StepRole *role;                             /* [sessions_max] */
    Member   *member;                           /* [sessions_max] those that decode */
    Growth   *growth;                           /* of the trees, one step at a time: too large for a small stack, */
    void     *work;                             /* as is what the drafter works in */
    void     *scratch;                          /* of the sampler */
    uint32_t *mask;                             /* [vocab / 32] for one row, or for all of a pass if the backend
                                                 * picks */
    float    *view;                             /* [vocab] one row of logits, if the host cannot read the backend's
                                                 * memory */
    bool      largest;                          /* spec_largest: proposals go to their full depth */
    bool      host_draws;                       /* tests: the backend's pick is not used */
    uint32_t  idle_token;                         /* counts the tokens of passes that are not kept */
    bool      picked;                           /* the two arrays below are valid for the last pass */
    int32_t   next[ROWS_DECODE];                /* of each row, the token after it */
    float     gap[ROWS_DECODE];                 /* and its margin */
};
Status spec_open(Spec *sp, const Model *m, const Model *dm, Drafter *d, int32_t sessions_max, int32_t chunk,
                 int32_t threads, size_t scratch_bytes, Error *err);
void   spec_close(Spec *sp);
/* What it has allocated besides what is in backends' memory. */
size_t spec_bytes(const Spec *sp);
/* One pass for all sessions; s[i]->line.out holds each session's block. n <= sessions_max. Fails as a whole (ST_CANCEL,
 * ST_BACKEND) only if the pass did; an error of one session ends that one (its status). */
Status spec_step(Spec *sp, Session *const *s, int32_t n, Error *err);

/* Makes the root of a finished prompt committed text, without drawing from it. */
Status spec_commit_root(Spec *sp, Session *s, Error *err);
/* Waiting taps become drafter keys/values now. */
Status spec_flush_taps(Spec *sp, Session *s, Error *err);
/* Makes the last block final: it can no longer be shortened, and its path's taps join the waiting list. */
void   spec_confirm(const Spec *sp, Session *s);
/* A pass of n rows of arbitrary tokens after the committed text, plus a chunk if chunk > 0; nothing is kept. The last
 * block is confirmed before, since the pass moves its path. */
Status spec_idle_pass(Spec *sp, Session *s, int32_t n, int32_t chunk, Error *err);
/* Runs the largest passes that spec_step can ask for: on a counting backend they leave the peak scratch size for
 * step_peak. */
Status spec_largest(Spec *sp, Session *s, Error *err);

/* Drafters that are models. DFlash: one BLOCK pass per proposal. MTP: the target's own layer, a pass per depth. block:
 * rows of a proposal including the root, at most LAT_DEPTH + 1; 0: what the model was trained for. */
typedef struct { Drafter drafter; const Model *dm; int32_t block; } ModelDrafter;
void   drafter_dflash(ModelDrafter *d, const Model *dm, int32_t block);
void   drafter_mtp(ModelDrafter *d, const Model *dm, int32_t block);

#endif
