#include "device_backend.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(p, n) ((void) (p), (void) (n))
#define ASAN_UNPOISON_MEMORY_REGION(p, n) ((void) (p), (void) (n))
#endif

typedef enum {
    OP_COPY_IN, OP_COPY_OUT, OP_KV_SAVE, OP_KV_LOAD, OP_FILL, OP_COPY, OP_EMBED, OP_MATMUL, OP_NORM, OP_HEAD_NORM,
    OP_ADD, OP_BIAS, OP_GLU, OP_GATE, OP_GATED_NORM, OP_SPLIT, OP_JOIN, OP_SCALE, OP_LOGIT_ROWS, OP_TAP, OP_TAP_GET,
    OP_ROPE_TABLE, OP_ROPE, OP_KV_PUT, OP_ATTEND, OP_CONV, OP_DELTA, OP_FOLD, OP_BLOCK_CONV, OP_PAIR_SCORES, OP_TOP_K,
    OP_ADD_NORM, OP_ATTEND_BLOCK, OP_PICK, OP_ROUTE, OP_EXPERTS, OP_CANVAS
} Op;

/* A call with copies of all its arguments; padding is zero, so that two can be compared as bytes. data: what copy_in
 * captured. */
typedef struct {
    int64_t   op;
    Tensor    t[2 * MATMUL_MAX + 4];
    Rows      rows;
    LayerSpec spec;
    Rope      rope;
    int32_t   num[4];
    float     real[3];
    void     *dst;
    const void *src;
    size_t    n;
    uint8_t  *data;
} Command;

typedef struct { uint8_t key[128]; size_t n_key; Command *at; int32_t n; bool compared; } Record;
enum { RECORDS_MAX = 1024 };

typedef struct { size_t at, bytes; } Block;        /* in use, ascending */

/* Addresses; blocks in use lie below `high`. */
static const size_t ARENA = (size_t) 512 << 20;

/* Shared by all forks. A card runs one queue at a time, and its memory is accessible only meanwhile. */
typedef struct {
    pthread_mutex_t lock;                          /* recursive */
    Backend  *cpu;
    DeviceLog log;
    uint8_t  *arena;
    size_t    high;
    Block    *block; int32_t n_blocks, cap_blocks;
} Card;

typedef struct {
    Backend   be;
    Card     *card;
    Backend  *cpu;                               /* runs the commands; a fork of the card's for a fork */
    bool      forked;
    Error     error;                             /* the first failure since the last sync */
    Command  *queue; int32_t n_queue, cap_queue;
    Record   *record; int32_t n_records;
    int32_t   current, pass_at;                  /* the record of the open pass, -1: none; its start in the queue */
    bool      in_pass, preparing;
    void     *scratch; size_t scratch_bytes;     /* of pick */
} Device;

static Device *device_of(Backend *b) { return (Device *) (void *) b; }
DeviceLog *device_log(Backend *b) { return &device_of(b)->card->log; }
static void lock(Device *d) { pthread_mutex_lock(&d->card->lock); }
static void unlock(Device *d) { pthread_mutex_unlock(&d->card->lock); }

static void count(Device *d, int64_t *counter)
{
    lock(d);
    ++*counter;
    unlock(d);
}

static void complain(Device *d, const char *what)
{
    DeviceLog *log = &d->card->log;
    lock(d);
    if (!log->complaint[0]) snprintf(log->complaint, sizeof log->complaint, "%s", what);
    unlock(d);
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

static size_t page_bytes(void) { return (size_t) sysconf(_SC_PAGESIZE); }
static size_t pages_up(size_t at) { return (at + page_bytes() - 1) / page_bytes() * page_bytes(); }

static void access_pages(Device *d, size_t from, size_t to, int how)
{
    from = from / page_bytes() * page_bytes();
    if (to > from && mprotect(d->card->arena + from, pages_up(to) - from, how) != 0) abort();
}
static void access_arena(Device *d, int how) { access_pages(d, 0, d->card->high, how); }

static bool inside(Device *d, const void *p, size_t n)
{
    const uint8_t *q = p;
    lock(d);
    bool is = q >= d->card->arena && n <= d->card->high && q <= d->card->arena + d->card->high - n;
    unlock(d);
    return is;
}

static void run_queue(Device *d);

static void count_part(DeviceLog *log, const char *name, size_t bytes)
{
    int32_t i = 0;
    while (i < log->n_parts && strcmp(log->part[i].name, name) != 0) i++;
    if (i == DEVICE_PARTS) i--;
    if (i == log->n_parts) snprintf(log->part[log->n_parts++].name, sizeof log->part[0].name, "%s", name);
    log->part[i].bytes += bytes;
}

/* The first gap that is wide enough, with 64 guard bytes behind each block. */
static void *place_block(Device *d, size_t bytes, const char *part)
{
    Card *c = d->card;
    c->log.allocs++;
    if (c->log.alloc_fail_in && --c->log.alloc_fail_in == 0) {
        fail(&d->error, ST_MEMORY, "%s: no memory for %zu bytes", part, bytes);
        return NULL;
    }
    size_t round = (bytes + 63) / 64 * 64, at = 0;
    int32_t i = 0;
    for (; i < c->n_blocks && c->block[i].at < at + round + 64; i++)
        at = c->block[i].at + (c->block[i].bytes + 63) / 64 * 64 + 64;
    if (round > ARENA || at > ARENA - round - page_bytes()) {
        fail(&d->error, ST_MEMORY, "%s: no memory for %zu bytes", part, bytes);
        return NULL;
    }
    c->block = grow(c->block, c->n_blocks, &c->cap_blocks, sizeof *c->block);
    memmove(c->block + i + 1, c->block + i, sizeof *c->block * (size_t) (c->n_blocks - i));
    c->block[i] = (Block) { at, bytes };
    c->n_blocks++;
    size_t end = pages_up(at + round + 64);
    if (end > c->high) c->high = end;
    count_part(&c->log, part, bytes);
    c->log.live += (int64_t) bytes;
    ASAN_UNPOISON_MEMORY_REGION(c->arena + at, round);
    access_pages(d, at, at + round, PROT_READ | PROT_WRITE);
    memset(c->arena + at, 0, round);
    access_pages(d, at, at + round, PROT_NONE);
    return c->arena + at;
}

static void *device_alloc(Backend *b, size_t bytes, const char *part)
{
    Device *d = device_of(b);
    if (d->error.code != ST_OK) return NULL;
    run_queue(d);
    lock(d);
    void *p = place_block(d, bytes, part);
    unlock(d);
    return p;
}

static void drop_block(Device *d, void *p, size_t bytes)
{
    Card *c = d->card;
    int32_t i = 0;
    while (i < c->n_blocks && c->arena + c->block[i].at != (uint8_t *) p) i++;
    if (i == c->n_blocks) {
        complain(d, "release: this was never allocated");
        return;
    }
    if (c->block[i].bytes != bytes) complain(d, "release: other bytes than were allocated");
    c->log.live -= (int64_t) c->block[i].bytes;
    ASAN_POISON_MEMORY_REGION(p, (bytes + 63) / 64 * 64);
    memmove(c->block + i, c->block + i + 1, sizeof *c->block * (size_t) (--c->n_blocks - i));
    const Block *last = c->n_blocks ? &c->block[c->n_blocks - 1] : NULL;
    c->high = last ? pages_up(last->at + (last->bytes + 63) / 64 * 64 + 64) : 0;
}

static void device_release(Backend *b, void *p, size_t bytes)
{
    Device *d = device_of(b);
    run_queue(d);
    lock(d);
    drop_block(d, p, bytes);
    unlock(d);
}

/* ---- making commands ---- */

static void put_tensor(Device *d, Tensor *to, const Tensor *t)
{
    to->type = t->type, to->rows = t->rows, to->cols = t->cols, to->data = t->data, to->n = t->n;
    if (t->rows > 0 && t->cols > 0 && !inside(d, t->data, 1)) complain(d, "a tensor outside the device's memory");
}

static void put_rows(Device *d, Rows *to, const Rows *r)
{
    to->n = r->n, to->n_decode = r->n_decode, to->n_slices = r->n_slices, to->n_logits = r->n_logits,
        to->span = r->span;
    to->token = r->token, to->slice = r->slice, to->parent = r->parent, to->pos = r->pos, to->lane = r->lane;
    to->count = r->count, to->want = r->want, to->tap_slot = r->tap_slot, to->logit_row = r->logit_row,
        to->slices = r->slices;
    if (!inside(d, r->token, 1) || !inside(d, r->slices, 1)) complain(d, "row tables outside the device's memory");
}

static void put_spec(LayerSpec *to, const LayerSpec *s)
{
    to->kind = s->kind, to->heads = s->heads, to->kv_heads = s->kv_heads, to->head_dim = s->head_dim,
        to->value_dim = s->value_dim, to->window = s->window, to->ring = s->ring;
    to->causal = s->causal, to->canvas = s->canvas, to->scale = s->scale, to->softcap = s->softcap,
        to->k_type = s->k_type, to->v_type = s->v_type;
    to->k_heads = s->k_heads, to->v_heads = s->v_heads, to->k_dim = s->k_dim, to->v_dim = s->v_dim,
        to->conv_width = s->conv_width;
    to->eps = s->eps;
}

static size_t kv_bytes(Backend *b, const LayerSpec *s, bool values, int32_t n);

static Command *add(Backend *b, Op op)
{
    Device *d = device_of(b);
    d->queue = grow(d->queue, d->n_queue, &d->cap_queue, sizeof *d->queue);
    Command *c = memset(&d->queue[d->n_queue++], 0, sizeof *c);
    c->op = (int64_t) op;
    if (d->in_pass && d->current >= 0 && op <= OP_FILL) complain(d, "a copy or fill inside a pass that is recorded");
    return c;
}

/* NULL, where an operation may do without, stays NULL. */
static Command *add_tensors(Backend *b, Op op, int32_t n, const Tensor *const *t)
{
    Command *c = add(b, op);
    for (int32_t i = 0; i < n; i++)
        if (t[i]) put_tensor(device_of(b), &c->t[i], t[i]);
    return c;
}
#define TENSORS(b, op, ...)                                                                             \
    add_tensors(b, op, (int32_t) (sizeof((const Tensor *[]) { __VA_ARGS__ }) / sizeof(const Tensor *)), \
                (const Tensor *[]) { __VA_ARGS__ })

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

/* num: values or keys, the number of slots, whether there is data: the list of slots to keep, or the image. */
static Command *kv_move(Backend *b, Op op, const LayerSpec *s, bool values, const void *slots, int32_t n,
                        const void *data, size_t bytes)
{
    Command *c = add(b, op);
    put_spec(&c->spec, s);
    c->num[0] = values, c->num[1] = n, c->num[2] = data != NULL, c->src = slots, c->n = bytes;
    if (n && !inside(device_of(b), slots, kv_bytes(b, s, values, n)))
        complain(device_of(b), "keys/values outside the device's memory");
    c->data = malloc(bytes + 1);
    if (!c->data) abort();
    if (data) memcpy(c->data, data, bytes);
    return c;
}

static void device_kv_save(Backend *b, const LayerSpec *s, bool values, const void *slots, int32_t n,
                           const uint8_t *keep, uint8_t *host)
{
    kv_move(b, OP_KV_SAVE, s, values, slots, n, keep, keep ? (size_t) n : 0)->dst = host;
}

static void device_kv_load(Backend *b, const LayerSpec *s, bool values, void *slots, int32_t n, const uint8_t *host)
{
    kv_move(b, OP_KV_LOAD, s, values, slots, n, host, kv_bytes(b, s, values, n));
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
    count(d, &d->card->log.trips);
    lock(d);
    access_arena(d, PROT_READ);
    memcpy(buf, src, n);
    access_arena(d, PROT_NONE);
    unlock(d);
    return buf;
}

static void device_upload(Backend *b, Tensor *w, int32_t i, const void *src, int32_t row0, int32_t rows)
{
    Device *d = device_of(b);
    run_queue(d);
    if (d->error.code != ST_OK) return;
    lock(d);
    access_arena(d, PROT_READ | PROT_WRITE);
    d->cpu->upload(d->cpu, w, i, src, row0, rows);
    Status st = d->cpu->sync(d->cpu, &d->error);
    access_arena(d, PROT_NONE);
    unlock(d);
    if (st != ST_OK) d->error.code = st;
}

static void op_embed(Backend *b, Tensor *x, const Tensor *t, const Tensor *i) { TENSORS(b, OP_EMBED, x, t, i); }
static void op_norm(Backend *b, Tensor *y, const Tensor *x, const Tensor *w, float e)
{
    TENSORS(b, OP_NORM, y, x, w)->real[0] = e;
}
static void op_add(Backend *b, Tensor *x, const Tensor *dx) { TENSORS(b, OP_ADD, x, dx); }
static void op_bias(Backend *b, Tensor *x, const Tensor *v) { TENSORS(b, OP_BIAS, x, v); }
static void op_glu(Backend *b, Tensor *y, const Tensor *g, const Tensor *u, Act act)
{
    TENSORS(b, OP_GLU, y, g, u)->num[0] = (int32_t) act;
}
static void op_gate(Backend *b, Tensor *x, const Tensor *l, Act act, int32_t width)
{
    Command *c = TENSORS(b, OP_GATE, x, l);
    c->num[0] = (int32_t) act, c->num[1] = width;
}
static void op_split(Backend *b, Tensor *y, Tensor *z, const Tensor *x, int32_t w)
{
    TENSORS(b, OP_SPLIT, y, z, x)->num[0] = w;
}
static void op_join(Backend *b, Tensor *y, const Tensor *x, const Tensor *z) { TENSORS(b, OP_JOIN, y, x, z); }
static void op_add_norm(Backend *b, Tensor *y, Tensor *x, const Tensor *dx, const Tensor *w, float e)
{
    TENSORS(b, OP_ADD_NORM, y, x, dx, w)->real[0] = e;
}

static void op_matmul(Backend *b, int32_t n, Tensor *const *y, const Tensor *const *w, const Tensor *x)
{
    Command *c = add(b, OP_MATMUL);
    c->num[0] = n;
    put_tensor(device_of(b), &c->t[0], x);
    for (int32_t i = 0; i < n; i++)
        put_tensor(device_of(b), &c->t[1 + i], y[i]), put_tensor(device_of(b), &c->t[1 + MATMUL_MAX + i], w[i]);
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

static void op_logit_rows(Backend *b, Tensor *y, const Tensor *x, const Rows *r)
{
    put_rows(device_of(b), &TENSORS(b, OP_LOGIT_ROWS, y, x)->rows, r);
}
static void op_tap_get(Backend *b, Tensor *f, const Rows *r)
{
    put_rows(device_of(b), &TENSORS(b, OP_TAP_GET, f)->rows, r);
}

static void op_pick(Backend *b, Tensor *id, Tensor *margin, const Tensor *l, const Tensor *mask, const Rows *r)
{
    Command *c = TENSORS(b, OP_PICK, id, margin, l);
    if (mask) put_tensor(device_of(b), &c->t[3], mask);
    put_rows(device_of(b), &c->rows, r);
}

static void op_tap(Backend *b, const Tensor *x, const Rows *r, int32_t j, int32_t n)
{
    Command *c = TENSORS(b, OP_TAP, x);
    put_rows(device_of(b), &c->rows, r);
    c->num[0] = j, c->num[1] = n;
}

static void put_rope(Rope *to, const Rope *p)
{
    to->n_rot = p->n_rot, to->neox = p->neox, to->mscale = p->mscale, to->freq = p->freq, to->lane_of = p->lane_of;
}

static void op_rope_table(Backend *b, Tensor *t, const Rows *r, const Rope *p)
{
    Command *c = TENSORS(b, OP_ROPE_TABLE, t);
    put_rows(device_of(b), &c->rows, r);
    put_rope(&c->rope, p);
}

static void op_rope(Backend *b, Tensor *x, const Tensor *t, int32_t dim, const Rope *p)
{
    Command *c = TENSORS(b, OP_ROPE, x, t);
    c->num[0] = dim;
    put_rope(&c->rope, p);
}

static Command *with_layer(Backend *b, Command *c, const Rows *r, int32_t il, const LayerSpec *s)
{
    put_rows(device_of(b), &c->rows, r);
    put_spec(&c->spec, s);
    c->num[0] = il;
    return c;
}

static void op_kv_put(Backend *b, const Tensor *k, const Tensor *v, const Rows *r, int32_t il, const LayerSpec *s)
{
    with_layer(b, TENSORS(b, OP_KV_PUT, k, v), r, il, s);
}
static void op_attend(Backend *b, Tensor *y, const Tensor *q, const Rows *r, int32_t il, const LayerSpec *s)
{
    with_layer(b, TENSORS(b, OP_ATTEND, y, q), r, il, s);
}
static void op_attend_block(Backend *b, Tensor *y, Tensor *q, Tensor *k, const Tensor *v, const Heads *h, const Rows *r,
                            int32_t il, const LayerSpec *s)
{
    Command *c = with_layer(b, TENSORS(b, OP_ATTEND_BLOCK, y, q, k, v, h->turn, h->q_norm, h->k_norm), r, il, s);
    c->real[0] = h->eps;
    put_rope(&c->rope, &h->rope);
    count(device_of(b), &device_of(b)->card->log.blocks);
}
static void op_conv(Backend *b, Tensor *y, const Tensor *x, const Tensor *w, const Rows *r, int32_t il,
                    const LayerSpec *s)
{
    with_layer(b, TENSORS(b, OP_CONV, y, x, w), r, il, s);
}
static void op_fold(Backend *b, const Rows *r, int32_t il, const LayerSpec *s)
{
    with_layer(b, add(b, OP_FOLD), r, il, s);
}

static void op_delta(Backend *b, Tensor *y, const Tensor *qkv, const Tensor *beta, const Tensor *alpha, const Tensor *a,
                     const Tensor *dt, const Rows *r, int32_t il, const LayerSpec *s)
{
    with_layer(b, TENSORS(b, OP_DELTA, y, qkv, beta, alpha, a, dt), r, il, s);
}

static void op_block_conv(Backend *b, Tensor *y, const Tensor *x, const Tensor *base, const Tensor *delta, int32_t side,
                          int32_t taps, int32_t group, const Rows *r)
{
    Command *c = TENSORS(b, OP_BLOCK_CONV, y, x, base, delta);
    c->num[0] = side, c->num[1] = taps, c->num[2] = group;
    put_rows(device_of(b), &c->rows, r);
}

static void op_pair_scores(Backend *b, Tensor *edge, const Tensor *pred, const Tensor *succ, const Tensor *ids,
                           const Tensor *score, const Tensor *g, const Rows *r)
{
    put_rows(device_of(b), &TENSORS(b, OP_PAIR_SCORES, edge, pred, succ, ids, score, g)->rows, r);
}

static void op_top_k(Backend *b, Tensor *id, Tensor *score, const Tensor *l, const Rows *r, int32_t k)
{
    Command *c = TENSORS(b, OP_TOP_K, id, score, l);
    c->num[0] = k;
    put_rows(device_of(b), &c->rows, r);
}

static void op_route(Backend *b, Tensor *ids, Tensor *weight, const Tensor *logits, const Tensor *bias,
                     const Tensor *factor, const Router *how, const Rows *r)
{
    Command *c = TENSORS(b, OP_ROUTE, ids, weight, logits, bias, factor);
    c->num[0] = (int32_t) how->gating, c->num[1] = how->used, c->real[0] = how->scale;
    put_rows(device_of(b), &c->rows, r);
}

static void op_experts(Backend *b, Tensor *y, const Tensor *x, const Tensor *ids, const Tensor *weight,
                       const Experts *e)
{
    Command *c = TENSORS(b, OP_EXPERTS, y, x, ids, weight, e->gate, e->up, e->down, e->h, e->wide, e->each,
                         e->gate->factors, e->up->factors);
    c->num[0] = (int32_t) e->act;
}

static void op_canvas(Backend *b, CanvasRow *found, Tensor *soft, const Tensor *x, const CanvasEnd *e, const Rows *r)
{
    Command *c = TENSORS(b, OP_CANVAS, soft, x, e->head, e->table, e->z, e->wide);
    c->real[0] = e->scale, c->real[1] = e->softcap, c->real[2] = e->table_scale;
    c->dst = found;
    put_rows(device_of(b), &c->rows, r);
}

/* ---- running them ---- */

/* The token after each row whose logits are wanted, computed only from the device's memory. */
static void run_pick(Device *d, const Command *c)
{
    const Rows *r = &c->rows;
    int32_t *id = c->t[0].data, n = c->t[2].cols;
    float *margin = c->t[1].data;
    const uint32_t *mask = c->t[3].data;
    if (draw_scratch(n) > d->scratch_bytes) {
        free(d->scratch);
        d->scratch_bytes = (draw_scratch(n) + 63) / 64 * 64;
        d->scratch = aligned_alloc(64, d->scratch_bytes);
        if (!d->scratch) abort();
    }
    for (int32_t j = 0; j < r->n_logits; j++) {
        int32_t row = r->logit_row[j], back[ROWS_DECODE], path[ROWS_DECODE], n_path = 0;
        const Slice *sl = &r->slices[r->slice[row]];
        for (int32_t i = row - sl->row0; sl->kind == SLICE_TREE && r->parent[sl->row0 + i] >= 0;
             i = r->parent[sl->row0 + i])
            back[n_path++] = r->token[sl->row0 + i];
        for (int32_t i = 0; i < n_path; i++) path[i] = back[n_path - 1 - i];
        const float *logits = (const float *) c->t[2].data + (size_t) j * (size_t) n;
        id[j] = draw_next(&sl->draw, path, n_path, logits, n, r->pos[row] + 1,
                          mask ? mask + (size_t) j * (size_t) c->t[3].cols : NULL, d->scratch);
        margin[j] = draw_margin(logits, n, d->scratch);
    }
}

static const Tensor *or_null(const Tensor *t) { return t->data ? t : NULL; }

/* The block, computed by its parts. */
static void run_attend_block(Backend *u, Command *c)
{
    Tensor *y = &c->t[0], *q = &c->t[1], *k = &c->t[2];
    const Tensor *v = &c->t[3], *turn = &c->t[4], *q_norm = or_null(&c->t[5]), *k_norm = or_null(&c->t[6]);
    int32_t dim = c->spec.head_dim;
    if (q_norm) u->head_norm(u, q, q_norm, dim, c->real[0]);
    if (k_norm) u->head_norm(u, k, k_norm, dim, c->real[0]);
    u->rope(u, q, turn, dim, &c->rope);
    u->rope(u, k, turn, dim, &c->rope);
    u->kv_put(u, k, v, &c->rows, c->num[0], &c->spec);
    u->attend(u, y, q, &c->rows, c->num[0], &c->spec);
}

/* Commands are queued with the number of rows that they are launched with; the CPU, which runs them, rounds nothing up.
 * all, of: bit masks of the tensors that have a row for each row of the pass, or of its logits. */
static void real_rows(Command *c)
{
    static const struct { Op op; uint32_t all, logits; } rows[] = {
        { OP_TAP, 1, 0 }, { OP_TAP_GET, 1, 0 }, { OP_KV_PUT, 3, 0 }, { OP_ATTEND, 3, 0 }, { OP_ATTEND_BLOCK, 15, 0 },
        { OP_CONV, 3, 0 }, { OP_DELTA, 15, 0 }, { OP_BLOCK_CONV, 11, 0 }, { OP_LOGIT_ROWS, 2, 1 }, { OP_TOP_K, 0, 7 },
        { OP_PAIR_SCORES, 0, 1 | 8 | 16 | 32 }, { OP_PICK, 0, 4 | 8 },
    };
    Rows *r = &c->rows;
    if (!r->count) return;
    r->n = r->count[0], r->n_decode = r->count[1], r->n_logits = r->count[2];
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int32_t k = 0; rows[i].op == (Op) c->op && k < 2 * MATMUL_MAX; k++) {
            if (rows[i].all >> k & 1) c->t[k].rows = r->n;
            if (rows[i].logits >> k & 1) c->t[k].rows = r->n_logits;
        }
}

static void run_route(Backend *u, Command *c)
{
    const Router how = { (Gating) c->num[0], c->num[1], c->real[0] };
    u->route(u, &c->t[0], &c->t[1], &c->t[2], or_null(&c->t[3]), or_null(&c->t[4]), &how, &c->rows);
}

static void run_experts(Backend *u, Command *c)
{
    Tensor *t = c->t;
    Tensor gate = t[4], up = t[5];
    gate.factors = or_null(&t[10]), up.factors = or_null(&t[11]);
    const Experts e = { &gate, &up, &t[6], (Act) c->num[0], &t[7], &t[8], &t[9] };
    u->experts(u, &t[0], &t[1], &t[2], &t[3], &e);
}

static void run_canvas(Backend *u, Command *c)
{
    Tensor *t = c->t;
    const CanvasEnd e = { &t[2], &t[3], c->real[0], c->real[1], c->real[2], &t[4], &t[5] };
    u->canvas(u, c->dst, &t[0], &t[1], &e, &c->rows);
}

static void run(Device *d, Command *c)
{
    Backend *u = d->cpu;
    Tensor  *t = c->t;
    const Rows *r = &c->rows;
    real_rows(c);
    switch ((Op) c->op) {
    case OP_COPY_IN: memcpy(c->dst, c->data, c->n); break;
    case OP_COPY_OUT: memcpy(c->dst, c->src, c->n); break;
    case OP_KV_SAVE: u->kv_save(u, &c->spec, c->num[0], c->src, c->num[1], c->num[2] ? c->data : NULL, c->dst); break;
    case OP_KV_LOAD: u->kv_load(u, &c->spec, c->num[0], (void *) (uintptr_t) c->src, c->num[1], c->data); break;
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
    case OP_NORM: u->norm(u, &t[0], &t[1], or_null(&t[2]), c->real[0]); break;
    case OP_HEAD_NORM: u->head_norm(u, &t[0], or_null(&t[1]), c->num[0], c->real[0]); break;
    case OP_ADD: u->add(u, &t[0], &t[1]); break;
    case OP_BIAS: u->bias(u, &t[0], &t[1]); break;
    case OP_GLU: u->glu(u, &t[0], &t[1], &t[2], (Act) c->num[0]); break;
    case OP_GATE: u->gate(u, &t[0], &t[1], (Act) c->num[0], c->num[1]); break;
    case OP_GATED_NORM: u->gated_norm(u, &t[0], &t[1], &t[2], c->num[0], c->real[0]); break;
    case OP_SPLIT: u->split(u, &t[0], &t[1], &t[2], c->num[0]); break;
    case OP_JOIN: u->join(u, &t[0], &t[1], &t[2]); break;
    case OP_SCALE: u->scale(u, &t[0], c->real[0], c->real[1]); break;
    case OP_LOGIT_ROWS: u->logit_rows(u, &t[0], &t[1], r); break;
    case OP_TAP: u->tap(u, &t[0], r, c->num[0], c->num[1]); break;
    case OP_TAP_GET: u->tap_get(u, &t[0], r); break;
    case OP_ROPE_TABLE: u->rope_table(u, &t[0], r, &c->rope); break;
    case OP_ROPE: u->rope(u, &t[0], &t[1], c->num[0], &c->rope); break;
    case OP_KV_PUT: u->kv_put(u, &t[0], &t[1], r, c->num[0], &c->spec); break;
    case OP_ATTEND: u->attend(u, &t[0], &t[1], r, c->num[0], &c->spec); break;
    case OP_CONV: u->conv(u, &t[0], &t[1], &t[2], r, c->num[0], &c->spec); break;
    case OP_DELTA: u->delta(u, &t[0], &t[1], &t[2], &t[3], &t[4], &t[5], r, c->num[0], &c->spec); break;
    case OP_FOLD: u->fold(u, r, c->num[0], &c->spec); break;
    case OP_BLOCK_CONV: u->block_conv(u, &t[0], &t[1], &t[2], &t[3], c->num[0], c->num[1], c->num[2], r); break;
    case OP_PAIR_SCORES: u->pair_scores(u, &t[0], &t[1], &t[2], &t[3], &t[4], &t[5], r); break;
    case OP_TOP_K: u->top_k(u, &t[0], &t[1], &t[2], r, c->num[0]); break;
    case OP_ADD_NORM: u->add_norm(u, &t[0], &t[1], &t[2], or_null(&t[3]), c->real[0]); break;
    case OP_ATTEND_BLOCK: run_attend_block(u, c); break;
    case OP_PICK: run_pick(d, c); break;
    case OP_ROUTE: run_route(u, c); break;
    case OP_EXPERTS: run_experts(u, c); break;
    case OP_CANVAS: run_canvas(u, c); break;
    }
}

static void run_queue(Device *d)
{
    if (d->n_queue == 0) return;
    DeviceLog *log = &d->card->log;
    lock(d);
    access_arena(d, PROT_READ | PROT_WRITE);
    for (int32_t i = 0; i < d->n_queue; i++) {
        Command *c = &d->queue[i];
        if (d->error.code == ST_OK && log->fail_in && --log->fail_in == 0)
            fail(&d->error, ST_BACKEND, "device: the chosen call failed");
        if (d->error.code == ST_OK) {
            log->commands++;
            run(d, c);
            if (d->cpu->sync(d->cpu, &d->error) != ST_OK) d->error.code = ST_BACKEND;
        }
        free(c->data);
    }
    access_arena(d, PROT_NONE);
    unlock(d);
    d->n_queue = 0;
}

static Status device_sync(Backend *b, Error *err)
{
    Device *d = device_of(b);
    if (d->n_queue) count(d, &d->card->log.trips);
    run_queue(d);
    if (d->card->log.complaint[0]) return fail(err, ST_BACKEND, "device: %s", d->card->log.complaint);
    Status code = d->error.code;
    if (code != ST_OK && err) *err = d->error;
    d->error = (Error) { 0 };
    return code;
}

/* ---- recording ---- */

static void device_prepare(Backend *b, bool on)
{
    Device *d = device_of(b);
    if (d->in_pass) complain(d, "prepare: inside a pass");
    d->preparing = on;
}

static bool device_pass_begin(Backend *b, const void *key, size_t n)
{
    Device *d = device_of(b);
    if (d->in_pass) complain(d, "pass_begin: inside a pass");
    d->in_pass = true;
    d->current = -1;
    if (n == 0 && d->preparing) complain(d, "pass_begin: a pass without a key cannot be recorded");
    d->pass_at = d->n_queue;
    if (n == 0 || n > sizeof d->record->key) {
        if (n) complain(d, "pass_begin: a key of more than 128 bytes");
        return false;
    }
    int32_t i = 0;
    while (i < d->n_records && (d->record[i].n_key != n || memcmp(d->record[i].key, key, n) != 0)) i++;
    if (d->preparing && (i < d->n_records || i == RECORDS_MAX)) {
        d->in_pass = false;
        return true;
    }
    if (i == d->n_records && !d->preparing) {
        count(d, &d->card->log.unprepared);
        return false;
    }
    Record *r = &d->record[i];
    if (i == d->n_records) {
        d->n_records++;
        memcpy(r->key, key, n);
        r->n_key = n;
    }
    d->current = i;
    if (d->preparing || !r->compared || d->card->log.forgets) return false;
    for (int32_t c = 0; c < r->n; c++) *add(b, (Op) r->at[c].op) = r->at[c];
    count(d, &d->card->log.replayed);
    d->in_pass = false;
    return true;
}

static void device_pass_end(Backend *b, bool complete)
{
    Device *d = device_of(b);
    if (!d->in_pass) complain(d, "pass_end: no pass has begun");
    d->in_pass = false;
    if (!complete && d->preparing) complain(d, "pass_end: a recording was cancelled");
    if (!complete || d->current < 0) return;
    Record *r = &d->record[d->current];
    int32_t n = d->n_queue - d->pass_at;
    const Command *made = d->queue + d->pass_at;
    if (d->preparing) {
        r->at = malloc(sizeof *r->at * (size_t) (n + 1));
        if (!r->at) abort();
        memcpy(r->at, made, sizeof *r->at * (size_t) n);
        r->n = n;
        d->n_queue = d->pass_at;
        count(d, &d->card->log.recorded);
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
    count(d, &d->card->log.compared);
}

static size_t weight_bytes(Backend *b, Type t, int32_t rows, int32_t cols)
{
    Backend *u = device_of(b)->cpu;
    return u->weight_bytes(u, t, rows, cols);
}
static size_t kv_bytes(Backend *b, const LayerSpec *s, bool values, int32_t n)
{
    Backend *u = device_of(b)->cpu;
    return u->kv_bytes(u, s, values, n);
}
static bool attach(Backend *b, Tensor *w, const Source *s) { (void) b, (void) w, (void) s; return false; }
static void measure(Backend *b, int32_t n, uint64_t bytes, Peaks *fastest)
{
    Backend *u = device_of(b)->cpu;
    u->measure(u, n, bytes, fastest);
}

static void memory(Backend *b, uint64_t *there, uint64_t *total)
{
    Device *d = device_of(b);
    lock(d);
    const uint64_t live = (uint64_t) d->card->log.live;
    *total = d->card->log.memory ? d->card->log.memory : ARENA;
    *there = *total > live ? *total - live : 1;
    unlock(d);
}

static size_t fork_bytes(Backend *b, int32_t threads)
{
    Backend *u = device_of(b)->card->cpu;
    return u->fork_bytes(u, threads);
}

static void close_card(Card *c)
{
    if (c->n_blocks) {
        fprintf(stderr, "device: %d blocks were never released\n", c->n_blocks);
        abort();
    }
    ASAN_UNPOISON_MEMORY_REGION(c->arena, ARENA);
    munmap(c->arena, ARENA);
    c->cpu->close(c->cpu);
    pthread_mutex_destroy(&c->lock);
    free(c->block);
    free(c);
}

static void device_close(Backend *b)
{
    Device *d = device_of(b);
    for (int32_t i = 0; i < d->n_records; i++) free(d->record[i].at);
    for (int32_t i = 0; i < d->n_queue; i++) free(d->queue[i].data);
    free(d->record);
    free(d->queue);
    free(d->scratch);
    if (d->forked) d->cpu->close(d->cpu);
    else close_card(d->card);
    free(d);
}

static Status device_fork(Backend *b, int32_t threads, Backend **out, Error *err)
{
    *out = NULL;
    Device *d = malloc(sizeof *d);
    Record *record = calloc(RECORDS_MAX, sizeof *record);
    if (!d || !record) abort();
    *d = (Device) { .be = *b, .card = device_of(b)->card, .forked = true, .record = record, .current = -1 };
    Status st = d->card->cpu->fork(d->card->cpu, threads, &d->cpu, err);
    if (st != ST_OK) {
        free(d);
        free(record);
        return st;
    }
    *out = &d->be;
    return ST_OK;
}

/* Widths of launches such as a graphics processor would have. */
static const int32_t widths[] = { 1, 2, 4, 8, 12, 16, 24, 32, 48, ROWS_DECODE };

Status device_backend_open(Backend **out, Backend *cpu, Error *err)
{
    *out = NULL;
    Device *d = calloc(1, sizeof *d);
    Card *card = calloc(1, sizeof *card);
    Record *record = calloc(RECORDS_MAX, sizeof *record);
    void *arena = mmap(NULL, ARENA, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (!d || !card || !record || arena == MAP_FAILED) {
        free(d);
        free(card);
        free(record);
        return fail(err, ST_MEMORY, "device: out of memory");
    }
    *card = (Card) { .cpu = cpu, .arena = arena };
    pthread_mutexattr_t recursive;
    pthread_mutexattr_init(&recursive);
    pthread_mutexattr_settype(&recursive, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(&card->lock, &recursive);
    pthread_mutexattr_destroy(&recursive);
    *d = (Device) { .card = card, .cpu = cpu, .record = record, .current = -1 };
    ASAN_POISON_MEMORY_REGION(arena, ARENA);
    d->be = (Backend) {
        .name = "device", .widths = widths, .n_widths = sizeof widths / sizeof *widths, .chunk = 256,
        .device = true, .weight_bytes = weight_bytes,
        .kv_bytes = kv_bytes, .kv_save = device_kv_save, .kv_load = device_kv_load, .attach = attach, .memory = memory,
        .measure = measure, .fork = device_fork,
        .fork_bytes = fork_bytes, .alloc = device_alloc, .release = device_release, .upload = device_upload,
        .copy_in = device_copy_in, .copy_out = device_copy_out, .view = device_view, .fill = device_fill,
        .copy = device_copy, .pass_begin = device_pass_begin, .pass_end = device_pass_end,
        .prepare = device_prepare, .sync = device_sync,
        .close = device_close, .embed = op_embed, .matmul = op_matmul, .norm = op_norm, .head_norm = op_head_norm,
        .add = op_add, .bias = op_bias, .glu = op_glu, .gate = op_gate, .gated_norm = op_gated_norm, .split = op_split,
        .join = op_join, .scale = op_scale, .logit_rows = op_logit_rows, .tap = op_tap, .tap_get = op_tap_get,
        .rope_table = op_rope_table, .rope = op_rope, .kv_put = op_kv_put, .attend = op_attend, .conv = op_conv,
        .delta = op_delta, .fold = op_fold, .block_conv = op_block_conv, .pair_scores = op_pair_scores,
        .top_k = op_top_k,
        .add_norm = cpu->add_norm ? op_add_norm : NULL, .attend_block = op_attend_block, .pick = op_pick,
        .route = op_route, .experts = op_experts,
        .canvas = op_canvas,
    };
    *out = &d->be;
    return ST_OK;
}
