/* state.h - committed state of a session, and the pending rows of the last pass. Nothing here computes: a keep is only
 * recorded, and the bytes move in the next pass, in the operation that touches them first.
 *
 *   positions 0 ........ P - n_path ...... P           committed = [0, P); its last n_path positions stay where the
 *                        `---- path ----'   `- pending   pass left them (rows path[t]) until the next pass, or fold,
 *                                                        moves them
 *
 * Delta matrices and windows are stored in numbered sets: the current one, one that a chunk writes, and one per
 * checkpoint. A CHAIN reads the current set and writes the free one, so it can be abandoned; a TREE folds the noted
 * path into the current set in place.
 *
 * Layers with a window (LayerSpec.ring) use a ring of as many slots as the window, the largest chunk and 64 rows need.
 * Going back up to 64 positions needs nothing else; going back farther needs a checkpoint, which has a copy of the
 * ring.
 *
 * Memory is allocated from the model's backends (state_open) and returned to them. Functions that move bytes take the
 * backends to queue on: `on` holds the forks of the step that the session is in, or the model's own backends while it
 * is in none; the stages are the same. */
#ifndef RATOON_MODEL_STATE_H
#define RATOON_MODEL_STATE_H

#include "backend/stages.h"

enum { CHECKPOINTS_MAX = 8 };
/* The set with the matrices after pos tokens, and the copy of the layers that wrap. */
typedef struct { int32_t pos, set, copy; } Checkpoint;

/* A block of a backend's memory: a piece of a layer, or, where memory comes in pages, all pieces of that part. given:
 * of its bytes, to pieces. */
typedef struct { Backend *be; const char *part; size_t bytes, given; uint8_t *at; } StateBlock;

typedef struct {
    Stages           owner;                        /* whose memory it uses */
    const LayerSpec *spec;                         /* [n_layers], the model's */
    int32_t          n_layers, ctx, ring;          /* keys/values have ctx + pending slots, or ring + pending, rounded
                                                    * up to whole panels */
    int32_t          pending;                      /* rows that a pass may have beyond the committed ones: 64, or those
                                                    * of a canvas */
    bool             recurrent, windowed, wraps;   /* any layer keeps matrices; has a window; wraps */
    int32_t          chunk_max;                    /* maximum rows of a CHAIN, so that no row overwrites what another
                                                    * still attends to */
    int32_t          from, high;                   /* layers with a window: nothing is there for rows before `from`;
                                                    * if they wrap, nor for those more than 64 before `high` */
    int32_t          reload;                       /* checkpoint's copy that state_ready must restore, -1: none */
    int32_t          P;
    int32_t          gen, n_path, path[ROWS_DECODE];
    bool             confirmed;                    /* a pass has begun since the keep: take is refused */
    int32_t          set, n_sets, ckpt_max;        /* set: the current matrices and windows */
    bool             blank;                        /* the current set must still be zeroed: state_ready does it */
    Checkpoint       ckpt[CHECKPOINTS_MAX];        /* ascending pos */
    int32_t          n_ckpt;
    StateLayer      *host, *layer[STAGES_MAX];     /* [n_layers] pointers into each layer's backend; the same in each
                                                    * stage's memory */
    StateBlock      *block;                        /* in which these lie */
    int32_t          n_blocks;
} State;

/* ring 0: linear, ctx slots and those of a tree, or of a canvas of so many rows, rounded up to whole panels. n_ckpt <=
 * CHECKPOINTS_MAX checkpoints (none for a model that can go back anywhere). */
Status  state_open(State *s, const Stages *owner, const LayerSpec *spec, int32_t n_layers, int32_t ctx, int32_t ring,
                   int32_t canvas, int32_t n_ckpt, Error *err);
void    state_close(State *s);
/*  all that operations may know about a session, for the first stage; the step fills rows and draw */
void    state_slice(const State *s, SliceKind kind, Slice *out);
void    state_keep(State *s, const int32_t *path, int32_t n);     /* after a TREE: path[0] == 0, ascending; n >= 1 */
void    state_advance(State *s, int32_t n);             /* after a CHAIN: all n rows; the set written becomes current */
Status  state_take(State *s, int32_t n);             /* the first n >= 0 rows of the kept path; ST_ARG once confirmed */
/* the last possible place <= pos; confirmed: as if the last block were confirmed */
int32_t state_place(const State *s, int32_t pos, bool confirmed);
int32_t state_back(State *s, int32_t pos);                        /* to state_place; returns it */
int32_t state_free_set(const State *s);                    /* neither the current nor a checkpoint's; there is always
                                                            * one */
bool    state_set_kept(const State *s, int32_t set);              /* a checkpoint holds it */
/* Adds a checkpoint at the end of the folded state, whose matrices are in the set; there must be room. */
Status  state_add_checkpoint(State *s, const Stages *on, int32_t set, Error *err);
/* before any pass: zeroes the matrices at the start of a text, and restores a checkpoint's copy */
Status  state_ready(State *s, const Stages *on, Error *err);
/* before a TREE: state_ready, and copies the current set if it belongs to a checkpoint */
Status  state_writable(State *s, const Stages *on, Error *err);

/* An image of the state at `at`, a place of the confirmed and folded state: keys/values of [0, at), and windows and
 * matrices at that place. A ring can be saved at any place: min(at, ring) rows of positions below `at` with a table of
 * their positions (-1 and zeros for empty slots). A restored place of a recurrent state becomes a checkpoint. image
 * NULL (rings only): nothing is known of [0, P), all of it is a hole. */
size_t  state_image_bytes(const State *s, int32_t at);
Status  state_image(State *s, const Stages *on, int32_t at, uint8_t *out, Error *err);
Status  state_restore(State *s, const Stages *on, const uint8_t *image, int32_t P, Error *err);

#endif
