#include "device_backend.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(p, n) ((void) (p), (void) (n))
#define ASAN_UNPOISON_MEMORY_REGION(p, n) ((void) (p), (void) (n))
#endif

typedef enum {
    OP_COPY_IN, OP_COPY_OUT, OP_FILL, OP_COPY, OP_EMBED, OP_MATMUL, OP_NORM, OP_HEAD_NORM, OP_ADD, OP_BIAS, OP_GLU, OP_GATE, OP_GATED_NORM,
    OP_SPLIT, OP_JOIN, OP_SCALE, OP_LOGIT_ROWS, OP_TAP, OP_TAP_GET, OP_ROPE, OP_KV_PUT, OP_ATTEND, OP_CONV, OP_DELTA, OP_FOLD, OP_BLOCK_CONV,
    OP_PAIR_SCORES, OP_TOP_K, OP_ADD_NORM, OP_PICK
} Op;

/* A call with copies of all it was given; padding is zero, so that two can be compared as bytes. data: what copy_in captured. */
typedef struct {
    int64_t   op;
    Tensor    t[2 * MATMUL_MAX + 1];
    Rows      rows;
    LayerSpec spec;
    Rope      rope;
    int32_t   num[4];
    float     real[2];
    void     *dst;
    const void *src;
    size_t    n;
    uint8_t  *data;
} Command;

typedef struct { uint8_t key[128]; size_t n_key; Command *at; int32_t n; bool compared; } Record;
enum { RECORDS_MAX = 1024 };

typedef struct { size_t at, bytes; } Block;        /* in use, ascending */

/* Addresses; only what lies below `high` was ever used. */
static const size_t ARENA = (size_t) 512 << 20;

typedef struct {
    Backend   be;
    Backend  *cpu;
    DeviceLog log;
    Error     error;                               /* the first failure since the last sync */
    uint8_t  *arena;
    size_t    high;
    Block    *block; int32_t n_blocks, cap_blocks;
    Command  *queue; int32_t n_queue, cap_queue;
    Record   *record; int32_t n_records;
    int32_t   current, pass_at;                    /* the record of the pass that is open, -1: none; where it began in the queue */
    bool      in_pass;
    void     *scratch; size_t scratch_bytes;       /* of pick */
} Device;

static Device *device_of(Backend *b) { return (Device *) (void *) b; }
DeviceLog *device_log(Backend *b) { return &device_of(b)->log; }

static void complain(Device *d, const char *what)
{
    if (!d->log.complaint[0]) snprintf(d->log.complaint, sizeof d->log.complaint, "%s", what);
}

static void *grow(void *p, int32_t n, int32_t *cap, size_t each)
{
    if (n < *cap) return p;
    *cap = *cap ? 2 * *cap : 64;
    p = realloc(p, each * (size_t) *cap);
    if (!p) abort();
    return p;
}

/* ---- memory ---- */

static void access_arena(Device *d, int how)
{
    if (d->high && mprotect(d->arena, d->high, how) != 0) abort();
}

static bool inside(const Device *d, const void *p, size_t n)
{
    const uint8_t *q = p;
    return q >= d->arena && n <= d->high && q <= d->arena + d->high - n;
}

static void run_queue(Device *d);

static void count_part(Device *d, const char *name, size_t bytes)
{
    int32_t i = 0;
    while (i < d->log.n_parts && strcmp(d->log.part[i].name, name) != 0) i++;
    if (i == DEVICE_PARTS) i--;
    if (i == d->log.n_parts) snprintf(d->log.part[d->log.n_parts++].name, sizeof d->log.part[0].name, "%s", name);
    d->log.part[i].bytes += bytes;
}

/* The first gap that is wide enough, with 64 bytes of no man's land behind each block. */
static void *device_alloc(Backend *b, size_t bytes, const char *part)
{
    Device *d = device_of(b);
    d->log.allocs++;
    if (d->error.code != ST_OK) return NULL;
    if (d->log.alloc_fail_in && --d->log.alloc_fail_in == 0) {
        fail(&d->error, ST_MEMORY, "%s: no memory for %zu bytes", part, bytes);
        return NULL;
    }
    run_queue(d);
    size_t round = (bytes + 63) / 64 * 64, at = 0;
    int32_t i = 0;
    for (; i < d->n_blocks && d->block[i].at < at + round + 64; i++) at = d->block[i].at + (d->block[i].bytes + 63) / 64 * 64 + 64;
    d->block = grow(d->block, d->n_blocks, &d->cap_blocks, sizeof *d->block);
    memmove(d->block + i + 1, d->block + i, sizeof *d->block * (size_t) (d->n_blocks - i));
    d->block[i] = (Block) { at, bytes };
    d->n_blocks++;
    size_t end = (at + round + 64 + 4095) / 4096 * 4096;
    if (end > ARENA) abort();
    if (end > d->high) d->high = end;
    count_part(d, part, bytes);
    d->log.live += (int64_t) bytes;
    ASAN_UNPOISON_MEMORY_REGION(d->arena + at, round);
    access_arena(d, PROT_READ | PROT_WRITE);
    memset(d->arena + at, 0, round);
    access_arena(d, PROT_NONE);
    return d->arena + at;
}

static void device_release(Backend *b, void *p, size_t bytes)
{
    Device *d = device_of(b);
    run_queue(d);
    for (int32_t i = 0; i < d->n_blocks; i++) {
        if (d->arena + d->block[i].at != (uint8_t *) p) continue;
        if (d->block[i].bytes != bytes) complain(d, "release: other bytes than were allocated");
        d->log.live -= (int64_t) d->block[i].bytes;
        ASAN_POISON_MEMORY_REGION(p, (bytes + 63) / 64 * 64);
        memmove(d->block + i, d->block + i + 1, sizeof *d->block * (size_t) (--d->n_blocks - i));
        return;
    }
    complain(d, "release: this was never allocated");
}

/* ---- making commands ---- */

static void put_tensor(Device *d, Tensor *to, const Tensor *t)
{
    to->type = t->type, to->rows = t->rows, to->cols = t->cols, to->data = t->data;
    if (t->rows > 0 && t->cols > 0 && !inside(d, t->data, 1)) complain(d, "a tensor outside the device's memory");
}

static void put_rows(Device *d, Rows *to, const Rows *r)
{
    to->n = r->n, to->n_decode = r->n_decode, to->n_slices = r->n_slices, to->n_logits = r->n_logits, to->span = r->span;
    to->token = r->token, to->slice = r->slice, to->parent = r->parent, to->pos = r->pos, to->lane = r->lane;
    to->want = r->want, to->tap_slot = r->tap_slot, to->logit_row = r->logit_row, to->slices = r->slices;
    if (!inside(d, r->token, 1) || !inside(d, r->slices, 1)) complain(d, "row tables outside the device's memory");
}

static void put_spec(LayerSpec *to, const LayerSpec *s)
{
    to->kind = s->kind, to->heads = s->heads, to->kv_heads = s->kv_heads, to->head_dim = s->head_dim, to->window = s->window;
    to->causal = s->causal, to->scale = s->scale, to->softcap = s->softcap, to->k_type = s->k_type, to->v_type = s->v_type;
    to->k_heads = s->k_heads, to->v_heads = s->v_heads, to->k_dim = s->k_dim, to->v_dim = s->v_dim, to->conv_width = s->conv_width;
    to->eps = s->eps;
}

static Command *add(Backend *b, Op op)
{
    Device *d = device_of(b);
    d->queue = grow(d->queue, d->n_queue, &d->cap_queue, sizeof *d->queue);
    Command *c = memset(&d->queue[d->n_queue++], 0, sizeof *c);
    c->op = (int64_t) op;
    if (d->in_pass && d->current >= 0 && op <= OP_COPY) complain(d, "a copy inside a pass that is recorded");
    return c;
}

static Command *add_tensors(Backend *b, Op op, int32_t n, const Tensor *const *t)
{
    Command *c = add(b, op);
    for (int32_t i = 0; i < n; i++) put_tensor(device_of(b), &c->t[i], t[i]);
    return c;
}
#define TENSORS(b, op, ...) add_tensors(b, op, (int32_t) (sizeof((const Tensor *[]) { __VA_ARGS__ }) / sizeof(const Tensor *)), (const Tensor *[]) { __VA_ARGS__ })

static void device_copy_in(Backend *b, void *dst, const void *host, size_t n)
{
    Command *c = add(b, OP_COPY_IN);
    c->dst = dst, c->n = n;
    if (!inside(device_of(b), dst, n)) complain(device_of(b), "copy_in: to where the device has no memory");
    c->data = malloc(n + 1);
    if (!c->data) abort();
    memcpy(c->data, host, n);
}

static void device_copy_out(Backend *b, void *host, const void *src, size_t n)
{
    Command *c = add(b, OP_COPY_OUT);
    c->dst = host, c->src = src, c->n = n;
    if (!inside(device_of(b), src, n)) complain(device_of(b), "copy_out: from where the device has no memory");
}

static void device_fill(Backend *b, void *dst, int value, size_t n)
{
    Command *c = add(b, OP_FILL);
    c->dst = dst, c->num[0] = value, c->n = n;
}

static void device_copy(Backend *b, void *dst, const void *src, size_t n)
{
    Command *c = add(b, OP_COPY);
    c->dst = dst, c->src = src, c->n = n;
}

static const void *device_view(Backend *b, void *buf, const void *src, size_t n)
{
    Device *d = device_of(b);
    if (d->n_queue) complain(d, "view: before sync");
    access_arena(d, PROT_READ);
    memcpy(buf, src, n);
    access_arena(d, PROT_NONE);
    return buf;
}

static void device_upload(Backend *b, Tensor *w, const void *src, int32_t row0, int32_t rows)
{
    Device *d = device_of(b);
    run_queue(d);
    if (d->error.code != ST_OK) return;
    access_arena(d, PROT_READ | PROT_WRITE);
    d->cpu->upload(d->cpu, w, src, row0, rows);
    Status st = d->cpu->sync(d->cpu, &d->error);
    access_arena(d, PROT_NONE);
    if (st != ST_OK) d->error.code = st;
}

static void op_embed(Backend *b, Tensor *x, const Tensor *t, const Tensor *i) { TENSORS(b, OP_EMBED, x, t, i); }
static void op_norm(Backend *b, Tensor *y, const Tensor *x, const Tensor *w, float e) { TENSORS(b, OP_NORM, y, x, w)->real[0] = e; }
static void op_add(Backend *b, Tensor *x, const Tensor *dx) { TENSORS(b, OP_ADD, x, dx); }
static void op_bias(Backend *b, Tensor *x, const Tensor *v) { TENSORS(b, OP_BIAS, x, v); }
static void op_glu(Backend *b, Tensor *y, const Tensor *g, const Tensor *u) { TENSORS(b, OP_GLU, y, g, u); }
static void op_gate(Backend *b, Tensor *x, const Tensor *l) { TENSORS(b, OP_GATE, x, l); }
static void op_split(Backend *b, Tensor *y, Tensor *z, const Tensor *x, int32_t w) { TENSORS(b, OP_SPLIT, y, z, x)->num[0] = w; }
static void op_join(Backend *b, Tensor *y, const Tensor *x, const Tensor *z) { TENSORS(b, OP_JOIN, y, x, z); }
static void op_add_norm(Backend *b, Tensor *y, Tensor *x, const Tensor *dx, const Tensor *w, float e) { TENSORS(b, OP_ADD_NORM, y, x, dx, w)->real[0] = e; }

static void op_matmul(Backend *b, int32_t n, Tensor *const *y, const Tensor *const *w, const Tensor *x)
{
    Command *c = add(b, OP_MATMUL);
    c->num[0] = n;
    put_tensor(device_of(b), &c->t[0], x);
    for (int32_t i = 0; i < n; i++) put_tensor(device_of(b), &c->t[1 + i], y[i]), put_tensor(device_of(b), &c->t[1 + MATMUL_MAX + i], w[i]);
}

static void op_head_norm(Backend *b, Tensor *x, const Tensor *w, int32_t dim, float e)
{
    Command *c = TENSORS(b, OP_HEAD_NORM, x, w);
    c->num[0] = dim, c->real[0] = e;
}

static void op_gated_norm(Backend *b, Tensor *x, const Tensor *w, const Tensor *z, int32_t dim, float e)
{
    Command *c = TENSORS(b, OP_GATED_NORM, x, w, z);
    c->num[0] = dim, c->real[0] = e;
}

static void op_scale(Backend *b, Tensor *x, float by, float cap)
{
    Command *c = TENSORS(b, OP_SCALE, x);
    c->real[0] = by, c->real[1] = cap;
}

static void op_logit_rows(Backend *b, Tensor *y, const Tensor *x, const Rows *r) { put_rows(device_of(b), &TENSORS(b, OP_LOGIT_ROWS, y, x)->rows, r); }
static void op_tap_get(Backend *b, Tensor *f, const Rows *r) { put_rows(device_of(b), &TENSORS(b, OP_TAP_GET, f)->rows, r); }
static void op_pick(Backend *b, Tensor *id, const Tensor *l, const Rows *r) { put_rows(device_of(b), &TENSORS(b, OP_PICK, id, l)->rows, r); }

static void op_tap(Backend *b, const Tensor *x, const Rows *r, int32_t j, int32_t n)
{
    Command *c = TENSORS(b, OP_TAP, x);
    put_rows(device_of(b), &c->rows, r);
    c->num[0] = j, c->num[1] = n;
}

static void op_rope(Backend *b, Tensor *x, const Rows *r, int32_t dim, const Rope *p)
{
    Command *c = TENSORS(b, OP_ROPE, x);
    put_rows(device_of(b), &c->rows, r);
    c->num[0] = dim;
    c->rope.n_rot = p->n_rot, c->rope.neox = p->neox, c->rope.mscale = p->mscale, c->rope.freq = p->freq, c->rope.lane_of = p->lane_of;
}

static Command *with_layer(Backend *b, Command *c, const Rows *r, int32_t il, const LayerSpec *s)
{
    put_rows(device_of(b), &c->rows, r);
    put_spec(&c->spec, s);
    c->num[0] = il;
    return c;
}

static void op_kv_put(Backend *b, const Tensor *k, const Tensor *v, const Rows *r, int32_t il, const LayerSpec *s) { with_layer(b, TENSORS(b, OP_KV_PUT, k, v), r, il, s); }
static void op_attend(Backend *b, Tensor *y, const Tensor *q, const Rows *r, int32_t il, const LayerSpec *s) { with_layer(b, TENSORS(b, OP_ATTEND, y, q), r, il, s); }
static void op_conv(Backend *b, Tensor *y, const Tensor *x, const Tensor *w, const Rows *r, int32_t il, const LayerSpec *s) { with_layer(b, TENSORS(b, OP_CONV, y, x, w), r, il, s); }
static void op_fold(Backend *b, const Rows *r, int32_t il, const LayerSpec *s) { with_layer(b, add(b, OP_FOLD), r, il, s); }

static void op_delta(Backend *b, Tensor *y, const Tensor *qkv, const Tensor *beta, const Tensor *alpha, const Tensor *a, const Tensor *dt,
                     const Rows *r, int32_t il, const LayerSpec *s)
{
    with_layer(b, TENSORS(b, OP_DELTA, y, qkv, beta, alpha, a, dt), r, il, s);
}

static void op_block_conv(Backend *b, Tensor *y, const Tensor *x, const Tensor *base, const Tensor *delta, int32_t side, int32_t taps, int32_t group, const Rows *r)
{
    Command *c = TENSORS(b, OP_BLOCK_CONV, y, x, base, delta);
    c->num[0] = side, c->num[1] = taps, c->num[2] = group;
    put_rows(device_of(b), &c->rows, r);
}

static void op_pair_scores(Backend *b, Tensor *edge, const Tensor *pred, const Tensor *succ, const Tensor *ids, const Tensor *score, const Tensor *g, const Rows *r)
{
    put_rows(device_of(b), &TENSORS(b, OP_PAIR_SCORES, edge, pred, succ, ids, score, g)->rows, r);
}

static void op_top_k(Backend *b, Tensor *id, Tensor *score, const Tensor *l, const Rows *r, int32_t k)
{
    Command *c = TENSORS(b, OP_TOP_K, id, score, l);
    c->num[0] = k;
    put_rows(device_of(b), &c->rows, r);
}

/* ---- running them ---- */

/* The token after each row whose logits are wanted, from what lies in the device's memory alone. */
static void run_pick(Device *d, const Command *c)
{
    const Rows *r = &c->rows;
    int32_t *id = c->t[0].data, n = c->t[1].cols;
    if (draw_scratch(n) > d->scratch_bytes) {
        free(d->scratch);
        d->scratch_bytes = (draw_scratch(n) + 63) / 64 * 64;
        d->scratch = aligned_alloc(64, d->scratch_bytes);
        if (!d->scratch) abort();
    }
    for (int32_t j = 0; j < r->n_logits; j++) {
        int32_t row = r->logit_row[j], back[ROWS_DECODE], path[ROWS_DECODE], n_path = 0;
        const Slice *sl = &r->slices[r->slice[row]];
        for (int32_t i = row - sl->row0; sl->kind == SLICE_TREE && r->parent[sl->row0 + i] >= 0; i = r->parent[sl->row0 + i]) back[n_path++] = r->token[sl->row0 + i];
        for (int32_t i = 0; i < n_path; i++) path[i] = back[n_path - 1 - i];
        id[j] = draw_next(&sl->draw, path, n_path, (const float *) c->t[1].data + (size_t) j * (size_t) n, n, r->pos[row] + 1, NULL, d->scratch);
    }
}

static void run(Device *d, Command *c)
{
    Backend *u = d->cpu;
    Tensor  *t = c->t;
    const Rows *r = &c->rows;
    switch ((Op) c->op) {
    case OP_COPY_IN: memcpy(c->dst, c->data, c->n); break;
    case OP_COPY_OUT: memcpy(c->dst, c->src, c->n); break;
    case OP_FILL: memset(c->dst, c->num[0], c->n); break;
    case OP_COPY: memmove(c->dst, c->src, c->n); break;
    case OP_EMBED: u->embed(u, &t[0], &t[1], &t[2]); break;
    case OP_MATMUL: {
        Tensor *y[MATMUL_MAX];
        const Tensor *w[MATMUL_MAX];
        for (int32_t i = 0; i < c->num[0]; i++) y[i] = &t[1 + i], w[i] = &t[1 + MATMUL_MAX + i];
        u->matmul(u, c->num[0], y, w, &t[0]);
        break;
    }
    case OP_NORM: u->norm(u, &t[0], &t[1], &t[2], c->real[0]); break;
    case OP_HEAD_NORM: u->head_norm(u, &t[0], &t[1], c->num[0], c->real[0]); break;
    case OP_ADD: u->add(u, &t[0], &t[1]); break;
    case OP_BIAS: u->bias(u, &t[0], &t[1]); break;
    case OP_GLU: u->glu(u, &t[0], &t[1], &t[2]); break;
    case OP_GATE: u->gate(u, &t[0], &t[1]); break;
    case OP_GATED_NORM: u->gated_norm(u, &t[0], &t[1], &t[2], c->num[0], c->real[0]); break;
    case OP_SPLIT: u->split(u, &t[0], &t[1], &t[2], c->num[0]); break;
    case OP_JOIN: u->join(u, &t[0], &t[1], &t[2]); break;
    case OP_SCALE: u->scale(u, &t[0], c->real[0], c->real[1]); break;
    case OP_LOGIT_ROWS: u->logit_rows(u, &t[0], &t[1], r); break;
    case OP_TAP: u->tap(u, &t[0], r, c->num[0], c->num[1]); break;
    case OP_TAP_GET: u->tap_get(u, &t[0], r); break;
    case OP_ROPE: u->rope(u, &t[0], r, c->num[0], &c->rope); break;
    case OP_KV_PUT: u->kv_put(u, &t[0], &t[1], r, c->num[0], &c->spec); break;
    case OP_ATTEND: u->attend(u, &t[0], &t[1], r, c->num[0], &c->spec); break;
    case OP_CONV: u->conv(u, &t[0], &t[1], &t[2], r, c->num[0], &c->spec); break;
    case OP_DELTA: u->delta(u, &t[0], &t[1], &t[2], &t[3], &t[4], &t[5], r, c->num[0], &c->spec); break;
    case OP_FOLD: u->fold(u, r, c->num[0], &c->spec); break;
    case OP_BLOCK_CONV: u->block_conv(u, &t[0], &t[1], &t[2], &t[3], c->num[0], c->num[1], c->num[2], r); break;
    case OP_PAIR_SCORES: u->pair_scores(u, &t[0], &t[1], &t[2], &t[3], &t[4], &t[5], r); break;
    case OP_TOP_K: u->top_k(u, &t[0], &t[1], &t[2], r, c->num[0]); break;
    case OP_ADD_NORM: u->add_norm(u, &t[0], &t[1], &t[2], &t[3], c->real[0]); break;
    case OP_PICK: run_pick(d, c); break;
    }
}

static void run_queue(Device *d)
{
    if (d->n_queue == 0) return;
    access_arena(d, PROT_READ | PROT_WRITE);
    for (int32_t i = 0; i < d->n_queue; i++) {
        Command *c = &d->queue[i];
        if (d->error.code == ST_OK && d->log.fail_in && --d->log.fail_in == 0) fail(&d->error, ST_BACKEND, "device: the chosen call failed");
        if (d->error.code == ST_OK) {
            d->log.commands++;
            run(d, c);
            if (d->cpu->sync(d->cpu, &d->error) != ST_OK) d->error.code = ST_BACKEND;
        }
        free(c->data);
    }
    access_arena(d, PROT_NONE);
    d->n_queue = 0;
}

static Status device_sync(Backend *b, Error *err)
{
    Device *d = device_of(b);
    run_queue(d);
    if (d->log.complaint[0]) return fail(err, ST_BACKEND, "device: %s", d->log.complaint);
    Status code = d->error.code;
    if (code != ST_OK && err) *err = d->error;
    d->error = (Error) { 0 };
    return code;
}

/* ---- recording ---- */

static bool device_pass_begin(Backend *b, const void *key, size_t n)
{
    Device *d = device_of(b);
    if (d->in_pass) complain(d, "pass_begin: inside a pass");
    d->in_pass = true;
    d->current = -1;
    d->pass_at = d->n_queue;
    if (n == 0 || n > sizeof d->record->key) {
        if (n) complain(d, "pass_begin: a key of more than 128 bytes");
        return false;
    }
    int32_t i = 0;
    while (i < d->n_records && (d->record[i].n_key != n || memcmp(d->record[i].key, key, n) != 0)) i++;
    if (i == RECORDS_MAX) return false;
    if (i == d->n_records) {
        Record *r = &d->record[d->n_records++];
        memcpy(r->key, key, n);
        r->n_key = n;
    }
    d->current = i;
    Record *r = &d->record[i];
    if (!r->compared || d->log.forgets) return false;
    for (int32_t c = 0; c < r->n; c++) *add(b, (Op) r->at[c].op) = r->at[c];
    d->log.replayed++;
    d->in_pass = false;
    return true;
}

static void device_pass_end(Backend *b, bool complete)
{
    Device *d = device_of(b);
    if (!d->in_pass) complain(d, "pass_end: no pass has begun");
    d->in_pass = false;
    if (!complete || d->current < 0) return;
    Record *r = &d->record[d->current];
    int32_t n = d->n_queue - d->pass_at;
    const Command *made = d->queue + d->pass_at;
    if (!r->at) {
        r->at = malloc(sizeof *r->at * (size_t) (n + 1));
        if (!r->at) abort();
        memcpy(r->at, made, sizeof *r->at * (size_t) n);
        r->n = n;
        d->log.recorded++;
        return;
    }
    char line[160];
    int32_t same = 0;
    while (same < n && same < r->n && memcmp(&made[same], &r->at[same], sizeof *made) == 0) same++;
    if (same < n || n != r->n) {
        snprintf(line, sizeof line, "two passes of one key differ in call %d of %d (operations %d and %d)", same, n,
                 same < r->n ? (int) r->at[same].op : -1, same < n ? (int) made[same].op : -1);
        complain(d, line);
    }
    r->compared = true;
    d->log.compared++;
}

static size_t weight_bytes(Backend *b, Type t, int32_t rows, int32_t cols) { Backend *u = device_of(b)->cpu; return u->weight_bytes(u, t, rows, cols); }
static size_t kv_row_bytes(Backend *b, Type t, int32_t cols) { Backend *u = device_of(b)->cpu; return u->kv_row_bytes(u, t, cols); }
static int32_t kv_slots(Backend *b, Type t, bool values) { Backend *u = device_of(b)->cpu; return u->kv_slots(u, t, values); }
static void kv_blank(Backend *b, void *h, const LayerSpec *s, bool v, int32_t from, int32_t n) { Backend *u = device_of(b)->cpu; u->kv_blank(u, h, s, v, from, n); }
static size_t own_bytes(Backend *b) { Backend *u = device_of(b)->cpu; return u->own_bytes(u); }

static void device_close(Backend *b)
{
    Device *d = device_of(b);
    for (int32_t i = 0; i < d->n_records; i++) free(d->record[i].at);
    for (int32_t i = 0; i < d->n_queue; i++) free(d->queue[i].data);
    ASAN_UNPOISON_MEMORY_REGION(d->arena, ARENA);
    munmap(d->arena, ARENA);
    d->cpu->close(d->cpu);
    free(d->record);
    free(d->queue);
    free(d->block);
    free(d->scratch);
    free(d);
}

Status device_backend_open(Backend **out, Backend *cpu, Error *err)
{
    *out = NULL;
    Device *d = calloc(1, sizeof *d);
    Record *record = calloc(RECORDS_MAX, sizeof *record);
    void *arena = mmap(NULL, ARENA, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (!d || !record || arena == MAP_FAILED) {
        free(d);
        free(record);
        return fail(err, ST_MEMORY, "device: out of memory");
    }
    *d = (Device) { .cpu = cpu, .arena = arena, .record = record, .current = -1 };
    ASAN_POISON_MEMORY_REGION(arena, ARENA);
    d->be = (Backend) {
        .name = "device", .weight_bytes = weight_bytes, .kv_row_bytes = kv_row_bytes, .kv_slots = kv_slots, .kv_blank = kv_blank, .own_bytes = own_bytes, .alloc = device_alloc,
        .release = device_release, .upload = device_upload, .copy_in = device_copy_in, .copy_out = device_copy_out, .view = device_view,
        .fill = device_fill, .copy = device_copy, .pass_begin = device_pass_begin, .pass_end = device_pass_end, .sync = device_sync,
        .close = device_close, .embed = op_embed, .matmul = op_matmul, .norm = op_norm, .head_norm = op_head_norm, .add = op_add,
        .bias = op_bias, .glu = op_glu, .gate = op_gate, .gated_norm = op_gated_norm, .split = op_split, .join = op_join, .scale = op_scale,
        .logit_rows = op_logit_rows, .tap = op_tap, .tap_get = op_tap_get, .rope = op_rope, .kv_put = op_kv_put, .attend = op_attend,
        .conv = op_conv, .delta = op_delta, .fold = op_fold, .block_conv = op_block_conv, .pair_scores = op_pair_scores, .top_k = op_top_k,
        .add_norm = cpu->add_norm ? op_add_norm : NULL, .pick = op_pick,
    };
    *out = &d->be;
    return ST_OK;
}
