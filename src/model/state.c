#include "model/state.h"

#include <stdlib.h>
#include <string.h>

#include "model/step.h"

static int32_t channels(const LayerSpec *p) { return 2 * p->k_heads * p->k_dim + p->v_heads * p->v_dim; }
static size_t matrix_bytes(const LayerSpec *p) { return sizeof(float) * (size_t) p->v_heads * (size_t) p->k_dim * (size_t) p->v_dim; }
static size_t window_bytes(const LayerSpec *p) { return sizeof(float) * (size_t) (p->conv_width - 1) * (size_t) channels(p); }
/* n slots, and those that lie together with the last. */
static size_t whole(const State *s, Type t, bool values, size_t n)
{
    size_t unit = (size_t) s->be->kv_slots(s->be, t, values);
    return (n + unit - 1) / unit * unit;
}

static size_t slots(const State *s) { return (size_t) (s->ring ? s->ring : s->ctx) + ROWS_DECODE; }

static size_t k_row(const State *s, const LayerSpec *p) { return s->be->kv_row_bytes(s->be, p->k_type, p->kv_heads * p->head_dim); }
static size_t v_row(const State *s, const LayerSpec *p) { return s->be->kv_row_bytes(s->be, p->v_type, p->kv_heads * p->head_dim); }

/* One table says what a layer owns, for allocation and release alike. */
typedef struct { void **at; size_t bytes; const char *part; } Piece;
enum { PIECES = 10 };

static int32_t layer_pieces(const State *s, const LayerSpec *p, StateLayer *l, Piece out[PIECES])
{
    int32_t n = 0;
    if (p->kind == LAYER_NONE) return 0;
    out[n++] = (Piece) { (void **) &l->mark, 3 * sizeof(int32_t), "session tables" };
    if (p->kind == LAYER_ATTENTION) {
        const char *part = s->ring ? "drafter keys/values" : "keys/values";
        out[n++] = (Piece) { &l->k, k_row(s, p) * whole(s, p->k_type, false, slots(s)), part };
        out[n++] = (Piece) { &l->v, v_row(s, p) * whole(s, p->v_type, true, slots(s)), part };
        if (s->ring) out[n++] = (Piece) { (void **) &l->slot_pos, sizeof(int32_t) * (size_t) s->ring, "session tables" };
    } else {
        size_t heads = (size_t) p->v_heads, rows = ROWS_DECODE;
        out[n++] = (Piece) { (void **) &l->matrix, matrix_bytes(p) * (size_t) s->n_sets, "delta matrices" };
        out[n++] = (Piece) { (void **) &l->window, window_bytes(p) * (size_t) s->n_sets, "convolution windows" };
        out[n++] = (Piece) { (void **) &l->rec_x, sizeof(float) * rows * (size_t) channels(p), "records" };
        out[n++] = (Piece) { (void **) &l->rec_a, sizeof(float) * rows * heads, "records" };
        out[n++] = (Piece) { (void **) &l->rec_d, sizeof(float) * rows * heads * (size_t) p->v_dim, "records" };
        out[n++] = (Piece) { (void **) &l->rec_k, sizeof(float) * 2 * rows * (size_t) p->k_heads * (size_t) p->k_dim, "records" };
    }
    return n;
}

Status state_open(State *s, Backend *be, const LayerSpec *spec, int32_t n_layers, int32_t ctx, int32_t ring, int32_t n_ckpt, Error *err)
{
    if (n_layers < 1 || ctx < 1 || ring < 0) return fail(err, ST_ARG, "session: %d layers, context of %d", n_layers, ctx);
    *s = (State) { .be = be, .spec = spec, .n_layers = n_layers, .ctx = ctx, .ring = ring, .gen = 1 };
    for (int32_t il = 0; il < n_layers; il++) s->recurrent |= spec[il].kind == LAYER_DELTA;
    s->ckpt_max = !s->recurrent ? 0 : n_ckpt > CHECKPOINTS_MAX ? CHECKPOINTS_MAX : n_ckpt;
    s->n_sets = 2 + s->ckpt_max;
    s->host = calloc((size_t) n_layers, sizeof *s->host);
    s->layer = be->alloc(be, sizeof *s->layer * (size_t) n_layers, "session tables");
    if (!s->host || !s->layer) {
        state_close(s);
        return fail(err, ST_MEMORY, "session: out of memory");
    }
    for (int32_t il = 0; il < n_layers; il++) {
        Piece piece[PIECES];
        int32_t n = layer_pieces(s, &spec[il], &s->host[il], piece);
        s->host[il].ring = ring;
        for (int32_t i = 0; i < n; i++) {
            *piece[i].at = be->alloc(be, piece[i].bytes, piece[i].part);
            if (!*piece[i].at) {
                state_close(s);
                return fail(err, ST_MEMORY, "session: out of memory for %s of layer %d (%zu bytes)", piece[i].part, il, piece[i].bytes);
            }
        }
        if (s->host[il].slot_pos) be->fill(be, s->host[il].slot_pos, 0xff, sizeof(int32_t) * (size_t) ring);
    }
    be->copy_in(be, s->layer, s->host, sizeof *s->layer * (size_t) n_layers);
    return be->sync(be, err);
}

void state_close(State *s)
{
    if (!s->be) return;
    for (int32_t il = 0; s->host && il < s->n_layers; il++) {
        Piece piece[PIECES];
        int32_t n = layer_pieces(s, &s->spec[il], &s->host[il], piece);
        for (int32_t i = 0; i < n; i++)
            if (*piece[i].at) s->be->release(s->be, *piece[i].at, piece[i].bytes);
    }
    if (s->layer) s->be->release(s->be, s->layer, sizeof *s->layer * (size_t) s->n_layers);
    free(s->host);
    *s = (State) { 0 };
}

static bool set_is_checkpoint(const State *s, int32_t set)
{
    for (int32_t i = 0; i < s->n_ckpt; i++)
        if (s->ckpt[i].set == set) return true;
    return false;
}

/* There is always one: sets = current + one + checkpoints. */
static int32_t free_set(const State *s)
{
    int32_t set = 0;
    while (set == s->set || set_is_checkpoint(s, set)) set++;
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
    out->set_out = kind == SLICE_CHAIN ? free_set(s) : s->set;
    out->layer = s->layer;
}

void state_keep(State *s, const int32_t *path, int32_t n)
{
    memcpy(s->path, path, sizeof(int32_t) * (size_t) n);
    s->n_path = n;
    s->P += n;
    s->gen++;
    s->confirmed = false;
}

void state_advance(State *s, int32_t n)
{
    s->set = free_set(s);
    s->n_path = 0;
    s->P += n;
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

int32_t state_place(const State *s, int32_t pos, bool confirmed)
{
    if (pos >= s->P) return s->P;
    if (!s->recurrent || (pos >= s->P - s->n_path && !confirmed)) return pos;
    int32_t i = s->n_ckpt;
    while (i > 0 && s->ckpt[i - 1].pos > pos) i--;
    return i > 0 ? s->ckpt[i - 1].pos : 0;
}

int32_t state_back(State *s, int32_t pos)
{
    if (pos >= s->P) return s->P;
    int32_t path_start = s->P - s->n_path, place = state_place(s, pos, s->confirmed);
    bool in_path = pos >= path_start && (!s->confirmed || !s->recurrent);
    while (s->n_ckpt > 0 && s->ckpt[s->n_ckpt - 1].pos > place) s->n_ckpt--;
    if (!in_path) s->gen++;
    if (!in_path && s->recurrent) {
        s->confirmed = true;
        s->blank = s->n_ckpt == 0;
        s->set = s->blank ? free_set(s) : s->ckpt[s->n_ckpt - 1].set;
    }
    s->n_path = in_path ? pos - path_start : 0;
    s->P = place;
    return place;
}

/* Zeroed when it is needed and not when the text went back, so that a device that fails meanwhile can be asked again. */
Status state_ready(State *s, Error *err)
{
    if (!s->blank) return ST_OK;
    for (int32_t il = 0; il < s->n_layers; il++) {
        const LayerSpec *p = &s->spec[il];
        if (p->kind != LAYER_DELTA) continue;
        s->be->fill(s->be, (uint8_t *) s->host[il].matrix + matrix_bytes(p) * (size_t) s->set, 0, matrix_bytes(p));
        s->be->fill(s->be, (uint8_t *) s->host[il].window + window_bytes(p) * (size_t) s->set, 0, window_bytes(p));
    }
    TRY(s->be->sync(s->be, err));
    s->blank = false;
    return ST_OK;
}

/* A pass without rows: each layer's fold moves what the noted path left, keys/values in place, window and matrix into set_out. */
static Status fold_into(State *s, Step *st, int32_t set_out, Error *err)
{
    pass_start(st);
    Slice *sl = pass_slice(st, s, SLICE_TREE, 0, NULL, NULL);
    sl->set_out = set_out;
    pass_tables(st);
    for (int32_t il = 0; il < s->n_layers; il++)
        if (s->spec[il].kind != LAYER_NONE) s->be->fold(s->be, &st->rows, il, &s->spec[il]);
    return s->be->sync(s->be, err);
}

Status state_fold(State *s, Step *st, Error *err)
{
    s->confirmed = true;
    if (s->n_path == 0) return ST_OK;
    TRY(state_writable(s, err));
    TRY(fold_into(s, st, s->set, err));
    s->n_path = 0;
    s->gen++;
    return ST_OK;
}

Status state_checkpoint(State *s, Step *st, Error *err)
{
    if (s->ckpt_max == 0) return ST_OK;
    if (s->n_ckpt > 0 && s->ckpt[s->n_ckpt - 1].pos == s->P) return ST_OK;
    if (s->n_ckpt == s->ckpt_max) {
        memmove(s->ckpt, s->ckpt + 1, sizeof *s->ckpt * (size_t) (s->n_ckpt - 1));
        s->n_ckpt--;
    }
    s->confirmed = true;
    TRY(state_ready(s, err));
    int32_t set = free_set(s);
    TRY(fold_into(s, st, set, err));
    s->ckpt[s->n_ckpt++] = (Checkpoint) { s->P, set };
    return ST_OK;
}

Status state_writable(State *s, Error *err)
{
    TRY(state_ready(s, err));
    if (!s->recurrent || !set_is_checkpoint(s, s->set)) return ST_OK;
    int32_t to = free_set(s);
    for (int32_t il = 0; il < s->n_layers; il++) {
        const LayerSpec *p = &s->spec[il];
        if (p->kind != LAYER_DELTA) continue;
        uint8_t *m = (uint8_t *) s->host[il].matrix, *w = (uint8_t *) s->host[il].window;
        s->be->copy(s->be, m + matrix_bytes(p) * (size_t) to, m + matrix_bytes(p) * (size_t) s->set, matrix_bytes(p));
        s->be->copy(s->be, w + window_bytes(p) * (size_t) to, w + window_bytes(p) * (size_t) s->set, window_bytes(p));
    }
    TRY(s->be->sync(s->be, err));
    s->set = to;
    return ST_OK;
}

/* The pieces of an image, in order; move copies one of them in either direction. set: whose matrices and windows. */
typedef void (*MovePiece)(const State *s, void *place, size_t bytes, uint8_t *at);

static size_t image_rows(const State *s, int32_t at) { return (size_t) (s->ring && at > s->ring ? s->ring : at); }

static size_t image_walk(const State *s, int32_t at, int32_t set, MovePiece move, uint8_t *image)
{
    size_t done = 0, rows = image_rows(s, at);
    for (int32_t il = 0; il < s->n_layers; il++) {
        const LayerSpec *p = &s->spec[il];
        const StateLayer *l = &s->host[il];
        struct { void *place; size_t bytes; } piece[3] = { 0 };
        if (p->kind == LAYER_ATTENTION) {
            if (s->ring) piece[0].place = l->slot_pos, piece[0].bytes = sizeof(int32_t) * rows;
            piece[1].place = l->k, piece[1].bytes = k_row(s, p) * whole(s, p->k_type, false, rows);
            piece[2].place = l->v, piece[2].bytes = v_row(s, p) * whole(s, p->v_type, true, rows);
        } else if (p->kind == LAYER_DELTA) {
            piece[0].place = (uint8_t *) l->matrix + matrix_bytes(p) * (size_t) set, piece[0].bytes = matrix_bytes(p);
            piece[1].place = (uint8_t *) l->window + window_bytes(p) * (size_t) set, piece[1].bytes = window_bytes(p);
        }
        for (int32_t i = 0; i < 3; i++) {
            if (move && piece[i].bytes) move(s, piece[i].place, piece[i].bytes, image + done);
            done += piece[i].bytes;
        }
    }
    return done;
}

static void piece_out(const State *s, void *place, size_t bytes, uint8_t *at) { s->be->copy_out(s->be, at, place, bytes); }
static void piece_in(const State *s, void *place, size_t bytes, uint8_t *at) { s->be->copy_in(s->be, place, at, bytes); }

/* Slots behind the text that lie together with its last; the image says nothing of them. */
static void clear_rest(const State *s, int32_t at, uint8_t *image)
{
    for (int32_t il = 0; il < s->n_layers; il++) {
        const LayerSpec *p = &s->spec[il];
        if (p->kind == LAYER_DELTA) image += matrix_bytes(p) + window_bytes(p);
        if (p->kind != LAYER_ATTENTION) continue;
        const size_t k = whole(s, p->k_type, false, (size_t) at), v = whole(s, p->v_type, true, (size_t) at);
        s->be->kv_blank(s->be, image, p, false, at, (int32_t) k);
        image += k_row(s, p) * k;
        s->be->kv_blank(s->be, image, p, true, at, (int32_t) v);
        image += v_row(s, p) * v;
    }
}

/* A ring's slots may hold positions from `at` on, or of a text before this one; the image says nothing of them. */
static void clear_strangers(const State *s, int32_t at, uint8_t *image)
{
    size_t rows = image_rows(s, at);
    int32_t end = at < s->P ? at : s->P;
    for (int32_t il = 0; il < s->n_layers; il++) {
        const LayerSpec *p = &s->spec[il];
        if (p->kind != LAYER_ATTENTION) continue;
        uint8_t *pos = image, *k = pos + sizeof(int32_t) * rows, *v = k + k_row(s, p) * rows;
        for (size_t i = 0; i < rows; i++) {
            int32_t held;
            memcpy(&held, pos + sizeof held * i, sizeof held);
            if (held >= 0 && held < end) continue;
            held = -1;
            memcpy(pos + sizeof held * i, &held, sizeof held);
            memset(k + k_row(s, p) * i, 0, k_row(s, p));
            memset(v + v_row(s, p) * i, 0, v_row(s, p));
        }
        image = v + v_row(s, p) * rows;
    }
}

size_t state_image_bytes(const State *s, int32_t at) { return image_walk(s, at, 0, NULL, NULL); }

Status state_image(State *s, int32_t at, uint8_t *out, Error *err)
{
    if (s->n_path) return fail(err, ST_ARG, "session: an image needs a folded state");
    if (!s->ring && at != state_place(s, at, true)) return fail(err, ST_ARG, "session: no image at %d, expected the end or a checkpoint", at);
    int32_t set = s->set;
    for (int32_t i = 0; i < s->n_ckpt && at < s->P; i++)
        if (s->ckpt[i].pos == at) set = s->ckpt[i].set;
    if (at == s->P) TRY(state_ready(s, err));
    image_walk(s, at, set, piece_out, out);
    TRY(s->be->sync(s->be, err));
    if (s->ring) clear_strangers(s, at, out);
    else clear_rest(s, at, out);
    return ST_OK;
}

Status state_restore(State *s, const uint8_t *image, int32_t P, Error *err)
{
    if (P < 0 || (!s->ring && P > s->ctx)) return fail(err, ST_FULL, "session: an image of %d tokens does not fit a context of %d", P, s->ctx);
    s->n_ckpt = 0;
    s->n_path = 0;
    s->gen++;
    s->confirmed = true;
    s->blank = false;
    s->P = P;
    for (int32_t il = 0; il < s->n_layers; il++)
        if (s->host[il].slot_pos) s->be->fill(s->be, s->host[il].slot_pos, 0xff, sizeof(int32_t) * (size_t) s->ring);
    if (image) image_walk(s, P, s->set, piece_in, (uint8_t *) (uintptr_t) image);
    if (s->ckpt_max > 0) s->ckpt[s->n_ckpt++] = (Checkpoint) { P, s->set };
    return s->be->sync(s->be, err);
}
