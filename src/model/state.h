/* state.h - committed state of a session, and the rows of the last pass that are not committed. Nothing here computes: a keep is a
 * note, and the bytes move in the next pass, in the operation that touches them first.
 *
 *   positions 0 ........ P - n_path ...... P           committed = [0, P); its last n_path positions still lie where the pass
 *                        `--- path ---'   `- pending    left them (rows path[t]) until the next pass, or fold, moves them
 *
 * Delta matrices and windows lie in numbered sets: the current one, one that a chunk writes, and one per checkpoint. A CHAIN reads the
 * current set and writes the free one, so it can be abandoned; a TREE folds the noted path into the current set in place. */
#ifndef RATOON_MODEL_STATE_H
#define RATOON_MODEL_STATE_H

#include "backend/backend.h"

typedef struct Step Step;
enum { CHECKPOINTS_MAX = 8 };
typedef struct { int32_t pos, set; } Checkpoint;                                  /* a set that holds the matrices after pos tokens */

typedef struct {
    Backend         *be;
    const LayerSpec *spec;                                                        /* [n_layers], the model's */
    int32_t          n_layers, ctx, ring;                                         /* keys/values: ctx + 64 slots, a ring: ring + 64, in whole units */
    bool             recurrent;                                                   /* some layer keeps matrices */
    int32_t          P;
    int32_t          gen, n_path, path[ROWS_DECODE];
    bool             confirmed;                                                   /* a pass has begun since the keep: take is over */
    int32_t          set, n_sets, ckpt_max;                                       /* set: current matrices and windows */
    bool             blank;                                                       /* that set is still to be zeroed: state_ready does it */
    Checkpoint       ckpt[CHECKPOINTS_MAX];                                       /* ascending pos */
    int32_t          n_ckpt;
    StateLayer      *layer, *host;                                                /* [n_layers] backend memory; the same pointers for the host's copies */
} State;

/* ring 0: linear, ctx + 64 slots and what fills the last unit. n_ckpt <= CHECKPOINTS_MAX sets for checkpoints (none are made for a model without delta layers). */
Status  state_open(State *s, Backend *be, const LayerSpec *spec, int32_t n_layers, int32_t ctx, int32_t ring, int32_t n_ckpt, Error *err);
void    state_close(State *s);
void    state_slice(const State *s, SliceKind kind, Slice *out);                  /* all that operations may know of a session; rows and draw are the step's */
void    state_keep(State *s, const int32_t *path, int32_t n);                     /* after a TREE: path[0] == 0, ascending; n >= 1 */
void    state_advance(State *s, int32_t n);                                       /* after a CHAIN: all n rows; the set written becomes current */
Status  state_take(State *s, int32_t n);                                          /* the first n >= 0 rows of the kept path; ST_ARG once confirmed */
int32_t state_place(const State *s, int32_t pos, bool confirmed);                 /* the deepest place <= pos; confirmed: as if the last block were */
int32_t state_back(State *s, int32_t pos);                                        /* to state_place; returns it */
Status  state_fold(State *s, Step *st, Error *err);                               /* finishes the noted path now, in place */
Status  state_checkpoint(State *s, Step *st, Error *err);                         /* folds into a free set; the oldest makes room */
Status  state_ready(State *s, Error *err);                                        /* before any pass: the start of a text has zeros for matrices */
Status  state_writable(State *s, Error *err);                                     /* before a TREE: state_ready, and a copy of the current set if it is a checkpoint's */

/* An image of the state at `at`, a place of the confirmed and folded state: keys/values of [0, at), windows and matrices of that place.
 * A ring, at any place: its rows of positions below `at` with a table of positions, -1 and zeros where it holds none; min(at, ring) rows. A
 * restored place of a recurrent state is a checkpoint. image NULL: nothing is known of [0, P); of a ring only, all of it is a hole. */
size_t  state_image_bytes(const State *s, int32_t at);
Status  state_image(State *s, int32_t at, uint8_t *out, Error *err);
Status  state_restore(State *s, const uint8_t *image, int32_t P, Error *err);

#endif
