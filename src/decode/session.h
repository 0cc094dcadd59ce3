/* session.h - one text and its state: what was given, what was generated, how tokens are drawn, and what speculation
 * keeps for it. A session is in one step at a time; between steps it can be given another prompt, shortened, or moved
 * back. */
#ifndef RATOON_DECODE_SESSION_H
#define RATOON_DECODE_SESSION_H

#include "decode/batch_budget.h"
#include "decode/budget.h"
#include "decode/calib.h"
#include "decode/logprob.h"
#include "decode/lock.h"
#include "decode/ngram.h"
#include "decode/tree.h"
#include "model/model.h"
#include "model/state.h"

/* Slots for a session's tap rows: those waiting to become drafter keys/values, and those of the current pass. */
enum { TAP_WAIT = 32, TAP_SLOTS = TAP_WAIT + 2 * ROWS_DECODE, MARKS_MAX = 32 };

/* drafted, accepted: rows; also by source, where a row that two sources proposed counts for both. drafts: proposals of
 * the drafting model; plain: passes of one row; changes: how often the controller started or stopped using the drafting
 * model. */
typedef struct {
    int64_t prompt_tokens, resumed, generated, passes, drafted, accepted, drafts, plain, changes, drafted_by[SOURCES],
            accepted_by[SOURCES];
    int64_t experts_missed, experts_missed_bytes;
    double  experts_wait_s;
    int64_t experts_chosen, experts_read;          /* in the passes that it decoded in, by the rows of all sessions */
    double  prefill_s, decode_s, pass_s;           /* pass_s: the part of decode_s in the target's passes */
    int64_t blocks, steps;                         /* denoised; steps: of unfinished ones, too */
} SpecStats;

/* What every way of decoding keeps for a text. */
typedef struct {
    const Model *m;
    State    target;
    int32_t *text, n_text, ctx;                    /* committed tokens and the root, or the rest of the prompt: at most
                                                    * ctx tokens */
    int32_t  n_rows;                               /* text[0, n_rows) was committed by inspect_rows, for its next call;
                                                    * then there is no text: n_text is 0 */
    int32_t  n_prompt, max_tokens, n_made;         /* n_made: tokens since the prompt, at most max_tokens */
    int32_t  mark[MARKS_MAX], n_mark;              /* ascending places in the prompt at which a chunk ends and leaves a
                                                    * checkpoint */
    Sampling sampling;
    DrawBias bias[BIAS_MAX]; int32_t n_bias;
    /* mask for the token after text + path; NULL: all */
    bool   (*allow)(void *ud, const int32_t *path, size_t n, uint32_t *bits);
    void    *allow_ud;
    int32_t  out[CANVAS_MAX], n_out;               /* the last block */
    int32_t  top;                                  /* number of likeliest tokens in prob, -1: prob is not computed */
    Logprob  prob[ROWS_DECODE + 1];                /* for the tokens in out, if has_prob */
    bool     has_prob;
    Status   status;                               /* ST_OK, ST_END, or the error that ended it */
    Error    error;
} Line;

/* Fills in how to draw: the same for a drafter's candidates and for the target's rows. */
void    line_draw(const Line *l, Draw *d);
/* How many tokens may still be generated: up to the request's limit or the end of the context. */
int32_t line_room(const Line *l);
/* How many tokens of a prompt session_prompt would keep. */
int32_t line_resumable(const Line *l, const int32_t *tokens, int32_t n);
/* Replaces the marks: ascending, in [1, n_prompt), at most MARKS_MAX. */
Status  line_mark(Line *l, const int32_t *at, int32_t n, Error *err);
/* Whether P is where a chunk leaves a checkpoint: at a mark, or before the last token of the prompt. */
bool    line_leaves_checkpoint(const Line *l);

/* The block that is being written by denoising (diffuse.h; lock, idle: lock.h). block: how many were finished since the
 * prompt; step: how many it has had, 0: it begins with the next one. token: what the next step reads; best: the
 * likeliest tokens of the last one, which were the same in `same` steps before it; soft: what it said, for the next
 * one, [canvas, dim] in the last stage's memory; before: the same in the first stage's, which reads it; soft itself if
 * they are one. */
typedef struct {
    int32_t   block, step, same, idle;             /* idle: steps that have locked nothing, in a row */
    int32_t   token[CANVAS_MAX], best[CANVAS_MAX];
    CanvasRow found[CANVAS_MAX];
    LockRow   lock[CANVAS_MAX];
    float    *soft, *before;
} Canvas;

/* Told the likeliest tokens of a canvas after each of its steps, from 1. */
typedef void (*DraftHook)(void *ud, const int32_t *token, int32_t n, int32_t step);

/* A line plus what speculation keeps for it. */
typedef struct {
    Line     line;
    const Model *dm;                               /* NULL: no drafter that reads taps */
    State    draft;                                /* draft.P - dm->lead: positions whose taps went into the ring */
    Ngram    ngram;                                /* empty: no look-up */
    float   *taps;                                 /* [TAP_SLOTS, tap_width] backend memory */
    int32_t  wait[TAP_SLOTS], n_wait;              /* slots of committed rows: positions draft.P - dm->lead + j */
    int32_t  pend[ROWS_DECODE], n_pend;            /* slots of the last pass's rows */
    bool     plain;                                /* no guesses, whatever the step's options say */
    int32_t  last_accepted;                        /* drafted tokens in the last block, so that take can correct the
                                                    * statistics */
    uint8_t  out_by[ROWS_DECODE + 1];              /* bits of the sources that proposed its tokens */
    Budget   budget;                               /* used while it decodes alone */
    Forecast forecast;                             /* what its trees promise, used while it decodes with others */
    Calibration calib;
    Canvas  *canvas;                               /* NULL: the model does not denoise */
    Diffusion diffusion;                           /* how: as the model's file says, unless somebody else does */
    DraftHook on_draft;                            /* NULL: nobody is told */
    void    *on_draft_ud;
    SpecStats stats;
} Session;

/* Uses the model's own backends, like session_close: no step of another thread may use them meanwhile. draft_ring 0:
 * the drafter's default. n_ckpt: checkpoints for going back. ngram: look up the text for guesses. */
Status session_open(Session *s, const Model *m, const Model *dm, int32_t ctx, int32_t draft_ring, int32_t n_ckpt,
                    bool ngram, Error *err);
/* What it has allocated besides the look-up and what is in backends' memory. */
size_t session_bytes(const Session *s);
void   session_close(Session *s);
/* Records the text and goes back to the last possible place within the prefix that it shares with what is committed;
 * computes nothing. n in [1, ctx]. */
Status session_prompt(Session *s, const int32_t *tokens, int32_t n, Error *err);
/* Keeps the first 0 <= n <= n_out tokens of the last block; refused (ST_ARG) once the session's next pass has begun. */
Status session_take(Session *s, int32_t n);
/* Rows up to position `end` have been written that do not belong to the text: goes back to where what its next tokens
 * see is still there. The text stays, so the next steps read it from there on. */
void   session_lose(Session *s, int32_t end);
/* Forgets the text and every state: the next prompt starts from nothing. */
void   session_forget(Session *s);
/* Adds what the experts of a pass that it took part in were; decoded: not for its prompt. */
void   session_count_routes(Session *s, const Routes *r, bool decoded);
#endif
