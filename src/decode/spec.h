/* spec.h - the loop: what a session is, and one step of several sessions.
 * A step is one pass of the target for all its sessions: decoding sessions bring a tree (of the root alone in plain decoding), and one
 * session may bring a chunk of its prompt. Before it, the text is asked how it went on before (ngram.h, free), waiting taps become drafter
 * keys/values and the drafter proposes, where the controller lets it; after it, each session keeps the path that its own next tokens
 * chose. A pass that is cancelled or fails leaves every session as it was. */
#ifndef RATOON_DECODE_SPEC_H
#define RATOON_DECODE_SPEC_H

#include "decode/accept.h"
#include "decode/budget.h"
#include "decode/calib.h"
#include "decode/company.h"
#include "decode/logprob.h"
#include "decode/ngram.h"
#include "decode/simulate.h"
#include "decode/tree.h"
#include "model/model.h"
#include "model/state.h"
#include "model/step.h"

/* A session's tap rows: those that wait to become drafter keys/values, and those of the pass that is under way. */
enum { TAP_WAIT = 32, TAP_SLOTS = TAP_WAIT + 2 * ROWS_DECODE, MARKS_MAX = 32 };

typedef struct Session Session;
typedef struct Spec Spec;
typedef struct Drafter Drafter;                    /* dflash; a test's oracle or noise */
struct Drafter {
    bool uses_taps;                                /* then all waiting taps are keys/values before propose is called */
    int32_t rows;                                  /* of one proposal's pass, for the plan; 0: none */
    int32_t source;                                /* SOURCE_...: under which its edges are learned */
    /* One lattice for each session; n_depth 0: nothing. May run passes. */
    Status (*propose)(Drafter *d, Spec *sp, Session *const *s, int32_t n, Lattice *out, Error *err);
};

/* drafted, accepted: rows; by source too, where a row that two sources proposed counts for both. drafts: proposals of the drafting model;
 * plain: passes of one row; changes: how often the controller changed its mind about the drafting model. */
typedef struct {
    int64_t prompt_tokens, resumed, generated, passes, drafted, accepted, drafts, plain, changes, drafted_by[SOURCES], accepted_by[SOURCES];
    double  prefill_s, decode_s, pass_s;           /* pass_s: of decode_s, in the target's passes */
} SpecStats;

struct Session {
    const Model *m, *dm;                           /* dm NULL: no drafter that reads taps */
    State    target, draft;                        /* draft.P - dm->lead: positions whose taps went into the ring */
    Ngram    ngram;                                /* empty: the text is not looked up */
    int32_t *text, n_text, ctx;                    /* committed tokens and the root, or the rest of the prompt: at most ctx tokens */
    int32_t  n_prompt, max_tokens, n_made;         /* n_made: tokens since the prompt, at most max_tokens */
    int32_t  mark[MARKS_MAX], n_mark;              /* ascending places of the prompt where a chunk ends and leaves a checkpoint */
    float   *taps;                                 /* [TAP_SLOTS, tap_width] backend memory */
    int32_t  wait[TAP_SLOTS], n_wait;              /* slots of committed rows: positions draft.P - dm->lead + j */
    int32_t  pend[ROWS_DECODE], n_pend;            /* slots of the last pass's rows */
    Sampling sampling;
    DrawBias bias[BIAS_MAX]; int32_t n_bias;
    bool   (*allow)(void *ud, const int32_t *path, size_t n, uint32_t *bits);      /* mask for the token after text + path; NULL: all */
    void    *allow_ud;
    bool     plain;                                /* no guesses, whatever the step would do */
    int32_t  out[ROWS_DECODE + 1], n_out;          /* the last block */
    int32_t  last_accepted;                        /* drafted tokens in it, for the statistics of take */
    int32_t  top;                                  /* likeliest tokens in prob, -1: prob is not computed */
    Logprob  prob[ROWS_DECODE + 1];                /* of out */
    uint8_t  out_by[ROWS_DECODE + 1];              /* bits of the sources that proposed out[i] */
    Budget   budget;                               /* while it decodes alone */
    Hope     hope;                                 /* what its trees promise, for when it does not */
    Calibration calib;
    SpecStats stats;
    Status   status;                               /* ST_OK, ST_END, or why it ended */
    Error    error;
};

/* draft_ring 0: the drafter's own. n_ckpt: checkpoints for going back. ngram: the text is looked up for guesses. */
Status session_open(Session *s, const Model *m, const Model *dm, int32_t ctx, int32_t draft_ring, int32_t n_ckpt, bool ngram, Error *err);
void   session_close(Session *s);
/* Notes the text and goes back to the deepest place that it shares with what is committed; computes nothing. n in [1, ctx]. */
Status session_prompt(Session *s, const int32_t *tokens, int32_t n, Error *err);
/* Tokens of that prompt that session_prompt would go back to. */
int32_t session_resumable(const Session *s, const int32_t *tokens, int32_t n);
/* Replaces the marks: ascending, in [1, n_prompt), at most MARKS_MAX. */
Status session_mark(Session *s, const int32_t *at, int32_t n, Error *err);
/* Keeps the first 0 <= n <= n_out tokens of the last block; refused (ST_ARG) once the session's next pass has begun. */
Status session_take(Session *s, int32_t n);
/* Forgets the text and every state: the next prompt starts from nothing. */
void   session_forget(Session *s);
/* How a decoding session draws: the same for its drafter's candidates and for the target's rows. */
void   session_draw(const Session *s, Draw *d);
/* The tokens that may still be made: the limit of the request or the end of the context. */
int32_t session_room(const Session *s);

/* What a session does in the step that is under way. alone: no other decodes; drafted: the drafting model is asked; proposed: bits of the sources that have
 * something to say; hoped: of accept_hoped. */
typedef struct { bool decodes, alone, drafted, was_on; int32_t chunk; uint32_t proposed; double free_value, margin, hoped; Slice *slice; Guess guess; } Turn;

/* What a step object owns besides its pass. */
enum { BUDGET_AUTO = 0, BUDGET_PLAIN = -1 };
struct Spec {
    Step      step;
    const Model *m;
    Drafter  *drafter;                             /* NULL: none */
    int32_t   chunk, budget;                       /* budget: BUDGET_AUTO, BUDGET_PLAIN or nodes without the root, at most 63 */
    bool      chain;
    Cost      cost;                                /* measured pass times */
    Company   company;                             /* decides where several sessions decode */
    bool      measured;                            /* the cost table was filled at start */
    const Profile *simulate;                       /* NULL; else which edges are accepted is drawn from it, not decided by the target */
    uint64_t  simulate_seed, simulate_step;
    EdgeCount *count;                              /* NULL; else real acceptance is counted here */
    void    (*log)(void *ud, const char *line);    /* the controller's changes of mind; NULL: nobody listens */
    void     *log_ud;
    int32_t   sessions_max;
    Lattice  *lattice;                             /* [sessions_max] */
    Tree     *tree;                                /* [sessions_max] of the pass */
    Turn     *turn;                                /* [sessions_max] */
    Member   *member;                              /* [sessions_max] those that decode */
    void     *scratch;                             /* of the sampler */
    uint32_t *mask;                                /* [vocab / 32] */
    float    *view;                                /* [vocab] one row of logits, where the host cannot read them */
};
Status spec_open(Spec *sp, Backend *be, const Model *m, const Model *dm, Drafter *d, int32_t sessions_max, int32_t chunk, size_t scratch_bytes, Error *err);
void   spec_close(Spec *sp);
/* One pass for all of them; s[i]->out holds what each got. n <= sessions_max. Fails as a whole (ST_CANCEL, ST_BACKEND) only if the pass
 * did; an error of one session ends that one (its status). */
Status spec_step(Spec *sp, Session *const *s, int32_t n, Error *err);

/* Makes the root of a finished prompt committed text, without drawing from it. */
Status spec_commit_root(Spec *sp, Session *s, Error *err);
/* Waiting taps become drafter keys/values now. */
Status spec_flush_taps(Spec *sp, Session *s, Error *err);
/* A pass of n rows of any tokens after the committed text, and a chunk beside it if chunk > 0; nothing is kept. */
Status spec_idle_pass(Spec *sp, Session *s, int32_t n, int32_t chunk, Error *err);
/* The largest passes that spec_step can ask for: on a backend that counts they leave the peak of scratch in sp->step.peak. */
Status spec_largest(Spec *sp, Session *s, Error *err);

/* Drafters that are models. DFlash: one BLOCK pass per proposal. MTP: the target's own layer, a pass per depth. block: rows of a proposal
 * with the root's, at most LAT_DEPTH + 1; 0: what the model was trained for. */
typedef struct { Drafter drafter; const Model *dm; int32_t block; } ModelDrafter;
void   drafter_dflash(ModelDrafter *d, const Model *dm, int32_t block);
void   drafter_mtp(ModelDrafter *d, const Model *dm, int32_t block);

#endif
