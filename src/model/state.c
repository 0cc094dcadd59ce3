#include "model/state.h"

#include <stdlib.h>
#include <string.h>

static int32_t channels(const LayerSpec *p) { return 2 * p->k_heads * p->k_dim + p->v_heads * p->v_dim; }
static size_t matrix_bytes(const LayerSpec *p)
{
    return sizeof(float) * (size_t) p->v_heads * (size_t) p->k_dim * (size_t) p->v_dim;
}
static size_t window_bytes(const LayerSpec *p)
{
    return sizeof(float) * (size_t) (p->conv_width - 1) * (size_t) channels(p);
}
/* Number of ring slots of a layer; 0: every position has a slot of its own. */
static int32_t wrap_of(const State *s, int32_t il)
{
    const LayerSpec *p = &s->spec[il];
    bool shorter = p->kind == LAYER_ATTENTION && !s->ring && p->ring > 0 && p->ring < s->ctx + s->pending;
    return shorter ? p->ring : 0;
}

static int32_t slots(const State *s, int32_t il)
{
    int32_t wrap = wrap_of(s, il);
    return wrap ? wrap : (s->ring ? s->ring : s->ctx) + s->pending;
}

static size_t kv_bytes(const State *s, int32_t il, bool values, int32_t n)
{
    Backend *be = stages_be(&s->owner, il);
    return be->kv_bytes(be, &s->spec[il], values, n);
}

/* What a layer owns. */
typedef struct { void **at; size_t bytes; const char *part; } Piece;
enum { PIECES = 10 };

static int32_t layer_pieces(const State *s, int32_t il, StateLayer *l, Piece out[PIECES])
{
    const LayerSpec *p = &s->spec[il];
    int32_t n = 0;
    if (p->kind == LAYER_NONE) return 0;
    out[n++] = (Piece) { (void **) &l->mark, 3 * sizeof(int32_t), "session tables" };
    if (p->kind == LAYER_ATTENTION) {
        const char *part = s->ring ? "drafter keys/values" : "keys/values";
        out[n++] = (Piece) { &l->k, kv_bytes(s, il, false, slots(s, il)), part };
        out[n++] = (Piece) { &l->v, kv_bytes(s, il, true, slots(s, il)), part };
        if (s->ring)
            out[n++] = (Piece) { (void **) &l->slot_pos, sizeof(int32_t) * (size_t) s->ring, "session tables" };
        if (wrap_of(s, il) && s->ckpt_max) {
            const size_t n_copies = (size_t) s->ckpt_max;
            out[n++] = (Piece) { &l->kept_k, n_copies * kv_bytes(s, il, false, slots(s, il)), "checkpoints" };
            out[n++] = (Piece) { &l->kept_v, n_copies * kv_bytes(s, il, true, slots(s, il)), "checkpoints" };
        }
    } else {
        size_t heads = (size_t) p->v_heads, rows = ROWS_DECODE;
        out[n++] = (Piece) { (void **) &l->matrix, matrix_bytes(p) * (size_t) s->n_sets, "delta matrices" };
        out[n++] = (Piece) { (void **) &l->window, window_bytes(p) * (size_t) s->n_sets, "convolution windows" };
        out[n++] = (Piece) { (void **) &l->rec_x, sizeof(float) * rows * (size_t) channels(p), "records" };
        out[n++] = (Piece) { (void **) &l->rec_a, sizeof(float) * 2 * rows * heads, "records" };
        out[n++] = (Piece) { (void **) &l->rec_d, sizeof(float) * rows * heads * (size_t) p->v_dim, "records" };
        out[n++] = (Piece) { (void **) &l->rec_k, sizeof(float) * 2 * rows * (size_t) p->k_heads * (size_t) p->k_dim,
                             "records" };
    }
    return n;
}

/* At least one. In a block pieces begin where those of a device do by themselves. */
static size_t piece_bytes(const Backend *be, const Piece *p)
{
    enum { APART = 256 };
    const size_t bytes = p->bytes ? p->bytes : 1;
    return be->page ? (bytes + APART - 1) / APART * APART : bytes;
}

static void count_piece(State *s, Backend *be, const Piece *p)
{
    int32_t i = 0;
    while (i < s->n_blocks && (!be->page || s->block[i].be != be || strcmp(s->block[i].part, p->part) != 0)) i++;
    if (i == s->n_blocks) s->block[s->n_blocks++] = (StateBlock) { .be = be, .part = p->part };
    s->block[i].bytes += piece_bytes(be, p);
}

/* In the order in which they were counted: the first block of the part that has bytes left is the piece's. */
static void place_piece(State *s, Backend *be, const Piece *p)
{
    StateBlock *b = s->block;
    while (b->be != be || strcmp(b->part, p->part) != 0 || b->given == b->bytes) b++;
    *p->at = b->at + b->given;
    b->given += piece_bytes(be, p);
}

static void each_piece(State *s, void (*use)(State *s, Backend *be, const Piece *p))
{
    for (int32_t il = 0; il < s->n_layers; il++) {
        Piece piece[PIECES];
        const int32_t n = layer_pieces(s, il, &s->host[il], piece);
        for (int32_t i = 0; i < n; i++) use(s, stages_be(&s->owner, il), &piece[i]);
    }
}

static Status open_layers(State *s, Error *err)
{
    each_piece(s, count_piece);
    for (int32_t i = 0; i < s->n_blocks; i++) {
        StateBlock *b = &s->block[i];
        b->at = b->be->alloc(b->be, b->bytes, b->part);
        if (!b->at) return b->be->sync(b->be, err);
    }
    each_piece(s, place_piece);
    for (int32_t il = 0; il < s->n_layers; il++) {
        Backend *be = stages_be(&s->owner, il);
        StateLayer *l = &s->host[il];
        l->ring = s->ring;
        l->wrap = wrap_of(s, il);
        if (l->slot_pos) be->fill(be, l->slot_pos, 0xff, sizeof(int32_t) * (size_t) s->ring);
    }
    return ST_OK;
}

static Status open_tables(State *s, Error *err)
{
    size_t bytes = sizeof *s->host * (size_t) s->n_layers;
    for (int32_t k = 0; k < s->owner.n; k++) {
        Backend *be = s->owner.at[k].be;
        s->layer[k] = be->alloc(be, bytes, "session tables");
        if (!s->layer[k]) return be->sync(be, err);
        be->copy_in(be, s->layer[k], s->host, bytes);
    }
    return stages_sync(&s->owner, err);
}

static void look_at_layers(State *s)
{
    s->chunk_max = INT32_MAX;
    s->reload = -1;
    for (int32_t il = 0; il < s->n_layers; il++) {
        const LayerSpec *p = &s->spec[il];
        s->recurrent |= p->kind == LAYER_DELTA;
        s->windowed |= p->kind == LAYER_ATTENTION && !s->ring && p->ring > 0;
        int32_t wrap = wrap_of(s, il), most = wrap - p->window - ROWS_DECODE;
        if (!wrap) continue;
        s->wraps = true;
        if (most < s->chunk_max) s->chunk_max = most;
    }
}

Status state_open(State *s, const Stages *owner, const LayerSpec *spec, int32_t n_layers, int32_t ctx, int32_t ring,
                  int32_t canvas, int32_t n_ckpt, Error *err)
{
    if (n_layers < 1 || ctx < 1 || ring < 0)
        return fail(err, ST_ARG, "session: %d layers, context of %d", n_layers, ctx);
    *s = (State) { .owner = *owner, .spec = spec, .n_layers = n_layers, .ctx = ctx, .ring = ring,
                    .pending = canvas > ROWS_DECODE ? canvas : ROWS_DECODE, .gen = 1 };
    look_at_layers(s);
    s->ckpt_max = !s->recurrent && !s->wraps ? 0 : n_ckpt > CHECKPOINTS_MAX ? CHECKPOINTS_MAX : n_ckpt;
    s->n_sets = 2 + s->ckpt_max;
    s->host = calloc((size_t) n_layers, sizeof *s->host);
    s->block = calloc((size_t) n_layers * PIECES, sizeof *s->block);
    Status st = s->host && s->block ? open_layers(s, err) : fail(err, ST_MEMORY, "session: out of memory");
    if (st == ST_OK) st = open_tables(s, err);
    if (st != ST_OK) {
        stages_sync(&s->owner, NULL);              /* the failure is already reported */
        state_close(s);
    }
    return st;
}

void state_close(State *s)
{
    for (int32_t i = 0; i < s->n_blocks; i++) {
        const StateBlock *b = &s->block[i];
        if (b->at) b->be->release(b->be, b->at, b->bytes);
    }
    for (int32_t k = 0; k < s->owner.n; k++)
        if (s->layer[k])
            s->owner.at[k].be->release(s->owner.at[k].be, s->layer[k], sizeof *s->host * (size_t) s->n_layers);
    free(s->host);
    free(s->block);
    *s = (State) { 0 };
}

bool state_set_kept(const State *s, int32_t set)
{
    for (int32_t i = 0; i < s->n_ckpt; i++)
        if (s->ckpt[i].set == set) return true;
    return false;
}

/* There are 2 + ckpt_max sets: the current one, one free and the checkpoints'. */
int32_t state_free_set(const State *s)
{
    int32_t set = 0;
    while (set == s->set || state_set_kept(s, set)) set++;
    return set;
}

void state_slice(const State *s, SliceKind kind, Slice *out)
{
    out->kind = (int32_t) kind;
    out->base = s->P;
    out->gen = s->gen;
    out->n_path = s->n_path;
    memcpy(out->path, s->path, sizeof(int32_t) * (size_t) s->n_path);
    out->set_in = s->set;
    out->set_out = kind == SLICE_CHAIN ? state_free_set(s) : s->set;
    out->layer = s->layer[0];
}

void state_keep(State *s, const int32_t *path, int32_t n)
{
    memcpy(s->path, path, sizeof(int32_t) * (size_t) n);
    s->n_path = n;
    s->P += n;
    if (s->P > s->high) s->high = s->P;
    s->gen++;
    s->confirmed = false;
}

void state_advance(State *s, int32_t n)
{
    s->set = state_free_set(s);
    s->n_path = 0;
    s->P += n;
    if (s->P > s->high) s->high = s->P;
    s->gen++;
    s->confirmed = true;
}

Status state_take(State *s, int32_t n)
{
    if (s->confirmed || n < 0 || n > s->n_path) return ST_ARG;
    s->P -= s->n_path - n;
    s->n_path = n;
    return ST_OK;
}

/* Whether a state without matrices still has everything that rows at pos attend to. */
static bool still_there(const State *s, int32_t pos)
{
    return pos >= s->from && (!s->wraps || pos >= s->high - ROWS_DECODE);
}

int32_t state_place(const State *s, int32_t pos, bool confirmed)
{
    if (pos >= s->P) return s->P;
    if (s->recurrent ? pos >= s->P - s->n_path && !confirmed : still_there(s, pos)) return pos;
    int32_t i = s->n_ckpt;
    while (i > 0 && s->ckpt[i - 1].pos > pos) i--;
    return i > 0 ? s->ckpt[i - 1].pos : 0;
}

/* Goes back to the last remaining checkpoint, or to the beginning. */
static void back_to_checkpoint(State *s)
{
    const Checkpoint *c = s->n_ckpt ? &s->ckpt[s->n_ckpt - 1] : NULL;
    s->confirmed = true;
    s->reload = c && s->wraps ? c->copy : -1;
    s->from = s->high = c ? c->pos : 0;            /* the copy has nothing before the window */
    if (!s->recurrent) return;
    s->blank = !c;
    s->set = c ? c->set : state_free_set(s);
}

int32_t state_back(State *s, int32_t pos)
{
    if (pos >= s->P) return s->P;
    int32_t path_start = s->P - s->n_path, place = state_place(s, pos, s->confirmed);
    bool in_path = pos >= path_start && (!s->confirmed || !s->recurrent);
    while (s->n_ckpt > 0 && s->ckpt[s->n_ckpt - 1].pos > place) s->n_ckpt--;
    if (!in_path) s->gen++;
    if (!in_path && (s->recurrent || !still_there(s, pos))) back_to_checkpoint(s);
    s->n_path = in_path ? pos - path_start : 0;
    s->P = place;
    return place;
}

/* Copies layers that wrap to a checkpoint's copy, or back from it. */
static void copy_rings(const State *s, const Stages *on, int32_t copy, bool back)
{
    for (int32_t il = 0; il < s->n_layers; il++) {
        const StateLayer *l = &s->host[il];
        Backend *be = stages_be(on, il);
        for (int32_t values = 0; l->wrap && values < 2; values++) {
            size_t bytes = kv_bytes(s, il, values, l->wrap);
            uint8_t *kept = (uint8_t *) (values ? l->kept_v : l->kept_k) + bytes * (size_t) copy;
            void *ring = values ? l->v : l->k;
            be->copy(be, back ? ring : kept, back ? kept : ring, bytes);
        }
    }
}

Status state_add_checkpoint(State *s, const Stages *on, int32_t set, Error *err)
{
    int32_t copy = 0;
    for (int32_t i = 0; i < s->n_ckpt; i++)
        if (s->ckpt[i].copy == copy) copy++, i = -1;
    copy_rings(s, on, copy, false);
    TRY(stages_sync(on, err));
    s->ckpt[s->n_ckpt++] = (Checkpoint) { s->P, set, copy };
    return ST_OK;
}

/* Matrices are zeroed when needed, not when the text goes back, so that the call can be repeated after a device
 * failure. */
Status state_ready(State *s, const Stages *on, Error *err)
{
    if (!s->blank && s->reload < 0) return ST_OK;
    if (s->reload >= 0) copy_rings(s, on, s->reload, true);
    for (int32_t il = 0; s->blank && il < s->n_layers; il++) {
        const LayerSpec *p = &s->spec[il];
        if (p->kind != LAYER_DELTA) continue;
        Backend *be = stages_be(on, il);
        be->fill(be, (uint8_t *) s->host[il].matrix + matrix_bytes(p) * (size_t) s->set, 0, matrix_bytes(p));
        be->fill(be, (uint8_t *) s->host[il].window + window_bytes(p) * (size_t) s->set, 0, window_bytes(p));
    }
    TRY(stages_sync(on, err));
    s->blank = false;
    s->reload = -1;
    return ST_OK;
}

Status state_writable(State *s, const Stages *on, Error *err)
{
    TRY(state_ready(s, on, err));
    if (!s->recurrent || !state_set_kept(s, s->set)) return ST_OK;
    int32_t to = state_free_set(s);
    for (int32_t il = 0; il < s->n_layers; il++) {
        const LayerSpec *p = &s->spec[il];
        if (p->kind != LAYER_DELTA) continue;
        Backend *be = stages_be(on, il);
        uint8_t *m = (uint8_t *) s->host[il].matrix, *w = (uint8_t *) s->host[il].window;
        be->copy(be, m + matrix_bytes(p) * (size_t) to, m + matrix_bytes(p) * (size_t) s->set, matrix_bytes(p));
        be->copy(be, w + window_bytes(p) * (size_t) to, w + window_bytes(p) * (size_t) s->set, window_bytes(p));
    }
    TRY(stages_sync(on, err));
    s->set = to;
    return ST_OK;
}

/* ---- images ---- */

/* Rows of a layer in an image: all positions, or at most the slots of its ring. */
static int32_t image_rows(const State *s, int32_t il, int32_t at)
{
    int32_t most = s->ring ? s->ring : wrap_of(s, il);
    return most && at > most ? most : at;
}

/* Bytes of a layer's pieces in an image, in order: the positions of a ring's slots, keys, values; or the set's matrix
 * and window. */
typedef struct { size_t pos, k, v, matrix, window; } ImageLayer;

static ImageLayer image_layer(const State *s, int32_t il, int32_t rows)
{
    const LayerSpec *p = &s->spec[il];
    if (p->kind == LAYER_DELTA) return (ImageLayer) { .matrix = matrix_bytes(p), .window = window_bytes(p) };
    if (p->kind != LAYER_ATTENTION) return (ImageLayer) { 0 };
    return (ImageLayer) { .pos = s->ring ? sizeof(int32_t) * (size_t) rows : 0, .k = kv_bytes(s, il, false, rows),
                          .v = kv_bytes(s, il, true, rows) };
}

static size_t layer_bytes(const ImageLayer *i) { return i->pos + i->k + i->v + i->matrix + i->window; }

size_t state_image_bytes(const State *s, int32_t at)
{
    size_t sum = 0;
    for (int32_t il = 0; il < s->n_layers; il++) {
        ImageLayer i = image_layer(s, il, image_rows(s, il, at));
        sum += layer_bytes(&i);
    }
    return sum;
}

/* Ring slots may hold positions at or beyond `at`, or from an earlier text; the image marks them empty. keep: [rows]
 * per layer. */
static Status ring_positions(const State *s, const Stages *on, int32_t at, uint8_t *out, uint8_t *keep, Error *err)
{
    int32_t rows = image_rows(s, 0, at), end = at < s->P ? at : s->P;
    size_t done = 0;
    for (int32_t il = 0; il < s->n_layers; il++) {
        ImageLayer i = image_layer(s, il, rows);
        Backend *be = stages_be(on, il);
        if (i.pos) be->copy_out(be, out + done, s->host[il].slot_pos, i.pos);
        done += layer_bytes(&i);
    }
    TRY(stages_sync(on, err));
    done = 0;
    for (int32_t il = 0; il < s->n_layers; il++) {
        ImageLayer i = image_layer(s, il, rows);
        for (int32_t slot = 0; i.pos && slot < rows; slot++) {
            uint8_t *place = out + done + sizeof(int32_t) * (size_t) slot;
            int32_t held;
            memcpy(&held, place, sizeof held);
            keep[(size_t) il * (size_t) rows + (size_t) slot] = held >= 0 && held < end;
            if (held < 0 || held >= end) memset(place, 0xff, sizeof held);
        }
        done += layer_bytes(&i);
    }
    return ST_OK;
}

/* Where an image of the state at `at` is taken from: a set, and a checkpoint's copy of the layers that wrap (-1: the
 * layers themselves). keep: see keep_bytes. */
typedef struct { int32_t at, set, copy; uint8_t *keep; } ImageSource;

/* A layer that wraps also holds positions outside its window and rows that were not kept: returns which slots count. */
static const uint8_t *within_window(const State *s, int32_t il, int32_t rows, const ImageSource *from)
{
    const int32_t wrap = s->host[il].wrap, window = s->spec[il].window;
    memset(from->keep, 0, (size_t) rows);
    for (int32_t pos = from->at > window ? from->at - window : 0; pos < from->at; pos++) from->keep[pos % wrap] = 1;
    return from->keep;
}

static void save_layer(const State *s, const Stages *on, int32_t il, int32_t rows, const ImageSource *from,
                       uint8_t *out)
{
    const LayerSpec *p = &s->spec[il];
    const StateLayer *l = &s->host[il];
    ImageLayer i = image_layer(s, il, rows);
    Backend *be = stages_be(on, il);
    if (i.k) {
        const uint8_t *k = l->k, *v = l->v, *keep = s->ring ? from->keep + (size_t) il * (size_t) rows : NULL;
        if (l->wrap) keep = within_window(s, il, rows, from);
        if (l->wrap && from->copy >= 0) {
            k = (uint8_t *) l->kept_k + kv_bytes(s, il, false, l->wrap) * (size_t) from->copy;
            v = (uint8_t *) l->kept_v + kv_bytes(s, il, true, l->wrap) * (size_t) from->copy;
        }
        be->kv_save(be, p, false, k, rows, keep, out + i.pos);
        be->kv_save(be, p, true, v, rows, keep, out + i.pos + i.k);
    } else if (i.matrix) {
        be->copy_out(be, out, (uint8_t *) l->matrix + i.matrix * (size_t) from->set, i.matrix);
        be->copy_out(be, out + i.matrix, (uint8_t *) l->window + i.window * (size_t) from->set, i.window);
    }
}

static Status save_all(const State *s, const Stages *on, const ImageSource *from, uint8_t *out, Error *err)
{
    if (s->ring) TRY(ring_positions(s, on, from->at, out, from->keep, err));
    for (int32_t il = 0; il < s->n_layers; il++) {
        int32_t rows = image_rows(s, il, from->at);
        ImageLayer i = image_layer(s, il, rows);
        save_layer(s, on, il, rows, from, out);
        out += layer_bytes(&i);
    }
    return stages_sync(on, err);
}

/* Bytes of keep: for a drafter's ring the slots of all layers, otherwise of one layer at a time. */
static size_t keep_bytes(const State *s, int32_t at)
{
    if (s->ring) return (size_t) s->n_layers * (size_t) image_rows(s, 0, at);
    size_t most = 0;
    for (int32_t il = 0; il < s->n_layers; il++)
        if (s->host[il].wrap && (size_t) s->host[il].wrap > most) most = (size_t) s->host[il].wrap;
    return most;
}

Status state_image(State *s, const Stages *on, int32_t at, uint8_t *out, Error *err)
{
    if (s->n_path) return fail(err, ST_ARG, "session: an image needs a folded state");
    if (!s->ring && at != state_place(s, at, true))
        return fail(err, ST_ARG, "session: no image at %d, expected the end or a checkpoint", at);
    ImageSource from = { .at = at, .set = s->set, .copy = -1 };
    for (int32_t i = 0; i < s->n_ckpt && at < s->P; i++)
        if (s->ckpt[i].pos == at) from.set = s->ckpt[i].set, from.copy = s->ckpt[i].copy;
    TRY(state_ready(s, on, err));
    from.keep = calloc(1, keep_bytes(s, at) + 1);
    if (!from.keep) return fail(err, ST_MEMORY, "session: out of memory for an image");
    Status st = save_all(s, on, &from, out, err);
    free(from.keep);
    return st;
}

static void load_layer(const State *s, const Stages *on, int32_t il, int32_t rows, const uint8_t *image)
{
    const LayerSpec *p = &s->spec[il];
    const StateLayer *l = &s->host[il];
    ImageLayer i = image_layer(s, il, rows);
    Backend *be = stages_be(on, il);
    if (i.pos) be->copy_in(be, l->slot_pos, image, i.pos);
    if (i.k) {
        be->kv_load(be, p, false, l->k, rows, image + i.pos);
        be->kv_load(be, p, true, l->v, rows, image + i.pos + i.k);
    } else if (i.matrix) {
        be->copy_in(be, (uint8_t *) l->matrix + i.matrix * (size_t) s->set, image, i.matrix);
        be->copy_in(be, (uint8_t *) l->window + i.window * (size_t) s->set, image + i.matrix, i.window);
    }
}

Status state_restore(State *s, const Stages *on, const uint8_t *image, int32_t P, Error *err)
{
    if (P < 0 || (!s->ring && P > s->ctx))
        return fail(err, ST_FULL, "session: an image of %d tokens does not fit a context of %d", P, s->ctx);
    s->n_ckpt = 0;
    s->n_path = 0;
    s->gen++;
    s->confirmed = true;
    s->blank = false;
    s->reload = -1;
    s->from = s->windowed ? P : 0;                 /* an image may have nothing before the window */
    s->P = s->high = P;
    for (int32_t il = 0; il < s->n_layers; il++) {
        Backend *be = stages_be(on, il);
        if (s->host[il].slot_pos) be->fill(be, s->host[il].slot_pos, 0xff, sizeof(int32_t) * (size_t) s->ring);
        if (!image) continue;
        int32_t rows = image_rows(s, il, P);
        ImageLayer i = image_layer(s, il, rows);
        load_layer(s, on, il, rows, image);
        image += layer_bytes(&i);
    }
    return s->ckpt_max > 0 ? state_add_checkpoint(s, on, s->set, err) : stages_sync(on, err);
}
