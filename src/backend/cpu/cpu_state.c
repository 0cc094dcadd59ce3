/* cpu_state.c - operations on what a session keeps: keys and values, attention, convolution, delta rule, fold. Each
 * works on heads, rows or channels that share nothing, spread over the threads; the marks that say "the noted path has
 * been applied" are written here, after all threads have finished. */
#include <string.h>

#include "backend/cpu/cpu.h"
#include "backend/cpu/kv_store.h"



static size_t k_row(const LayerSpec *s) { return type_row_bytes(s->k_type, s->kv_heads * s->head_dim); }
static size_t v_row(const LayerSpec *s) { return type_row_bytes(s->v_type, s->kv_heads * value_dim(s)); }

/* ---- keys and values ---- */

static void move_slot(const Stored *p, int32_t to, int32_t from)
{
    if (!codes_are_integers(p->t)) {
        memcpy(stored_head(p, to, 0), stored_head(p, from, 0),
               (size_t) p->kv_heads * type_row_bytes(p->t, p->head_dim));
        return;
    }
    const int32_t blocks = p->head_dim / CODE_COLS;
    const PanelHead h = panel_head(p->t, p->panel, blocks);
    for (int32_t head = 0; head < p->kv_heads; head++)
        panel_copy(stored_head(p, to, head), to % p->panel, stored_head(p, from, head), from % p->panel, &h, p->t,
                   p->panel, blocks);
}

static size_t kv_bytes(Backend *b, const LayerSpec *s, bool values, int32_t n)
{
    (void) b;
    return kv_store_bytes(s, values, n);
}

/* The layout here is that of images, so all that remains is to clear the slots that are not kept. */
static void kv_save(Backend *b, const LayerSpec *s, bool values, const void *slots, int32_t n, const uint8_t *keep,
                    uint8_t *host)
{
    if (cpu_failed(cpu_of(b))) return;
    memcpy(host, slots, kv_store_bytes(s, values, n));
    kv_store_clear(s, values, host, n, keep);
}

static void kv_load(Backend *b, const LayerSpec *s, bool values, void *slots, int32_t n, const uint8_t *host)
{
    if (!cpu_failed(cpu_of(b))) memcpy(slots, host, kv_bytes(b, s, values, n));
}

/* The slot of a position, or of the pending row that will have that position. */
static int32_t slot_at(const StateLayer *l, int32_t pos) { return l->wrap ? pos % l->wrap : pos; }

/* Moves the path's rows down to their positions: path[t] >= t and ascending, so no row is overwritten before it has
 * moved. */
static void move_path(const Slice *s, StateLayer *l, const LayerSpec *spec)
{
    if (l->ring || l->mark[MARK_KV] == s->gen) return;
    const Stored k = stored_keys(l->k, spec), v = stored_values(l->v, spec);
    const int32_t first = s->base - s->n_path;
    for (int32_t t = 0; t < s->n_path; t++) {
        if (s->path[t] == t) continue;
        const int32_t to = slot_at(l, first + t), from = slot_at(l, first + s->path[t]);
        move_slot(&k, to, from);
        move_slot(&v, to, from);
    }
    l->mark[MARK_KV] = s->gen;
}

/* Job i handles keys or values of one head, since threads must not share a panel. */
typedef struct { Cpu *c; const Tensor *k, *v; const Rows *r; int32_t il; const LayerSpec *spec; } PutJob;

/* Stores a head in the form that attention reads. The encoders are the format's own, at every level. */
static void put_head(const Cpu *c, const Stored *p, int32_t slot, int32_t head, const float *x)
{
    uint8_t *to = stored_head(p, slot, head), block[CODE_BLOCK];
    if (type_info(p->t)->block == 1) {
        c->rows->store(to, p->t, x, p->head_dim);
    } else if (codes_are_integers(p->t)) {
        const PanelHead h = panel_head(p->t, p->panel, p->head_dim / CODE_COLS);
        for (int32_t i = 0; i < p->head_dim / CODE_COLS; i++) {
            quant_encode(block, p->t, x + i * CODE_COLS, CODE_COLS);
            panel_put(to, &h, p->t, p->panel, slot % p->panel, i, block);
        }
    } else {
        quant_encode(to, p->t, x, p->head_dim);
    }
}

/* The slot of row i of the pass; -1: a later row of its chain takes that slot. */
static int32_t put_slot(const PutJob *j, int32_t i)
{
    const Slice *s = &j->r->slices[j->r->slice[i]];
    const StateLayer *l = &s->layer[j->il];
    const int32_t ring = l->ring, row = i - s->row0;
    if (ring && s->kind == SLICE_CHAIN) return s->n - row > ring ? -1 : (s->base + row) % ring;
    return ring ? ring + row : slot_at(l, s->base + row);
}

static void put_task(void *arg, int32_t i, int32_t thread)
{
    (void) thread;
    const PutJob *j = arg;
    const int32_t head = i / 2, dim = i & 1 ? value_dim(j->spec) : j->spec->head_dim;
    for (int32_t row = 0; row < j->r->n; row++) {
        const StateLayer *l = &j->r->slices[j->r->slice[row]].layer[j->il];
        const Stored p = i & 1 ? stored_values(l->v, j->spec) : stored_keys(l->k, j->spec);
        const float *x = (const float *) (i & 1 ? j->v : j->k)->data +
                         (size_t) row * (size_t) (j->spec->kv_heads * dim);
        const int32_t slot = put_slot(j, row);
        if (slot >= 0) put_head(j->c, &p, slot, head, x + head * dim);
    }
}

static void kv_put(Backend *b, const Tensor *k, const Tensor *v, const Rows *r, int32_t il, const LayerSpec *s)
{
    Cpu *c = cpu_of(b);
    if (cpu_failed(c)) return;
    for (int32_t i = 0; i < r->n_slices; i++) move_path(&r->slices[i], &r->slices[i].layer[il], s);
    PutJob j = { c, k, v, r, il, s };
    for (int32_t i = 0; i < r->n; i++) {
        const Slice *slice = &r->slices[r->slice[i]];
        int32_t slot = put_slot(&j, i), *held = slice->layer[il].slot_pos;
        if (slot >= 0 && slice->layer[il].ring && slice->kind == SLICE_CHAIN)
            held[slot] = slice->base + i - slice->row0;
    }
    cpu_run(c, put_task, &j, 2 * s->kv_heads, (int64_t) r->n * s->kv_heads * s->head_dim);
}

/* ---- attention ---- */

/* How a slice is divided into jobs: key/value heads per job, query heads of each, rows; by_split: each job is further
 * divided by positions. */
typedef struct {
    int32_t kv, heads, rows, kv_parts, head_parts, row_parts, split0, splits, jobs;
    bool by_split;
} AttendShape;
typedef struct {
    Cpu *c;
    Tensor *y;
    const Tensor *q;
    const Rows *r;
    int32_t il, queries;
    const LayerSpec *spec;
    AttendShape whole;
} AttendAll;

/* The lower part of a thread's scratch belongs to its job; the upper parts of all threads hold the results of
 * splits. */
enum { JOB_BYTES = SCRATCH_BYTES / 2, SPLITS_MAX = 1024, STREAM_QUERIES = 16 };

static AttendShape attend_shape(const AttendAll *a, const Slice *s)
{
    int32_t group = a->spec->heads / a->spec->kv_heads;
    AttendShape p = { .kv = 1, .kv_parts = a->spec->kv_heads };
    p.heads = group < a->queries ? group : a->queries;
    p.rows = a->queries / p.heads;
    p.head_parts = (group + p.heads - 1) / p.heads;
    p.row_parts = (s->n + p.rows - 1) / p.rows;
    p.jobs = p.kv_parts * p.head_parts * p.row_parts;
    return p;
}

/* Job i of a slice. */
static AttendJob attend_job(const AttendAll *a, const Slice *s, const AttendShape *p, int32_t i)
{
    int32_t group = a->spec->heads / a->spec->kv_heads, head = i % p->head_parts * p->heads,
            kv = i / p->head_parts % p->kv_parts * p->kv;
    /* The last rows of a chunk see the most positions: they start first, so that no thread is left with a long job at
     * the end. */
    int32_t row = (p->row_parts - 1 - i / p->head_parts / p->kv_parts) * p->rows;
    return (AttendJob) {
        .y = a->y->data, .q = a->q->data, .slice = s, .layer = &s->layer[a->il], .spec = a->spec,
        .parent = a->r->parent + s->row0, .k_row = k_row(a->spec), .v_row = v_row(a->spec), .kv0 = kv, .n_kv = p->kv,
        .head0 = head, .n_heads = group - head < p->heads ? group - head : p->heads, .row0 = row,
        .n_rows = s->n - row < p->rows ? s->n - row : p->rows, .ahead = 1 };
}

static void attend_task(void *arg, int32_t i, int32_t thread)
{
    const AttendAll *a = arg;
    const Slice *s = a->r->slices;
    AttendShape p = attend_shape(a, s);
    while (i >= p.jobs) {
        i -= p.jobs;
        p = attend_shape(a, ++s);
    }
    AttendJob job = attend_job(a, s, &p, i);
    a->c->att->attend(&job, cpu_scratch(a->c, thread));
}

/* Bytes reserved for the result of each split: enough for the first job, which is the largest. */
static size_t part_room(const AttendAll *a)
{
    AttendJob job = attend_job(a, a->r->slices, &a->whole, 0);
    job.n_heads = a->whole.heads;
    job.n_rows = a->whole.rows;
    return (a->c->att->part_bytes(&job) + 63) & ~(size_t) 63;
}

static float *part_at(const AttendAll *a, int32_t i)
{
    size_t room = part_room(a);
    int32_t each = (int32_t) (JOB_BYTES / room);
    return (float *) (void *) ((uint8_t *) cpu_scratch(a->c, i / each) + JOB_BYTES + room * (size_t) (i % each));
}

static void part_task(void *arg, int32_t i, int32_t thread)
{
    const AttendAll *a = arg;
    AttendJob job = attend_job(a, a->r->slices, &a->whole, i / a->whole.splits);
    job.ahead = a->c->threads;                     /* splits are handed out in order */
    a->c->att->part(&job, a->whole.split0 + i % a->whole.splits, part_at(a, i), cpu_scratch(a->c, thread));
}

static void merge_task(void *arg, int32_t i, int32_t thread)
{
    const AttendAll *a = arg;
    float *part[SPLITS_MAX];
    AttendJob job = attend_job(a, a->r->slices, &a->whole, i);
    for (int32_t k = 0; k < a->whole.splits; k++) part[k] = part_at(a, i * a->whole.splits + k);
    a->c->att->merge(&job, part, a->whole.splits, cpu_scratch(a->c, thread));
}

static bool job_fits(const AttendAll *a, const Slice *s, const AttendShape *p)
{
    AttendJob job = attend_job(a, s, p, 0);
    job.n_heads = p->heads;
    job.n_rows = p->rows;
    return a->c->att->scratch(&job) <= JOB_BYTES;
}

/* Divides one session with a long text by positions. Where few queries read each key, memory is the limit, and one
 * stream is fastest: all heads of a slot together. Returns false if there are too few splits for the threads, or too
 * little room for their results. */
static bool cut_by_splits(AttendAll *a)
{
    const Slice *s = a->r->slices;
    const StateLayer *l = &s->layer[a->il];
    int32_t group = a->spec->heads / a->spec->kv_heads,
            lo = a->spec->window && s->base > a->spec->window ? s->base - a->spec->window : 0;
    if (l->ring || a->r->n_slices != 1 || s->n < 1) return false;
    int32_t splits = (s->base + s->n + SPLIT - 1) / SPLIT - lo / SPLIT;
    AttendShape p = attend_shape(a, s);
    if (group * s->n < STREAM_QUERIES && splits >= 2 * a->c->threads) {
        p = (AttendShape) { .kv = a->spec->kv_heads, .heads = group, .rows = s->n, .kv_parts = 1, .head_parts = 1,
                            .row_parts = 1, .jobs = 1 };
    } else if (p.jobs >= 2 * a->c->threads || splits < 2) {
        return false;
    }
    p.split0 = lo / SPLIT;
    p.splits = splits;
    a->whole = p;
    if (splits > SPLITS_MAX || !job_fits(a, s, &p)) return false;
    size_t room = part_room(a);
    return room <= JOB_BYTES && (int64_t) p.jobs * splits <= (int64_t) (JOB_BYTES / room) * a->c->threads;
}

static void attend(Backend *b, Tensor *y, const Tensor *q, const Rows *r, int32_t il, const LayerSpec *s)
{
    Cpu *c = cpu_of(b);
    if (cpu_failed(c)) return;
    for (int32_t i = 0; i < r->n_slices; i++)
        if (r->slices[i].layer[il].ring && (codes_are_integers(s->k_type) || codes_are_integers(s->v_type))) {
            fail(&c->error, ST_UNSUPPORTED, "attention: a ring of keys and values of type %s and %s, expected floats "
                 "or TQ3_0", type_info(s->k_type)->name, type_info(s->v_type)->name);
            return;
        }
    AttendAll a = { c, y, q, r, il, 32, s, { 0 } };
    int64_t seen = 0;
    for (int32_t i = 0; i < r->n_slices; i++) {
        int64_t last = (int64_t) r->slices[i].base + r->slices[i].n;
        seen += r->slices[i].n * (s->window && s->window < last ? s->window : last);
        for (AttendShape p = attend_shape(&a, &r->slices[i]); !job_fits(&a, &r->slices[i], &p);
             p = attend_shape(&a, &r->slices[i])) {
            if (a.queries == 1) {
                fail(&c->error, ST_UNSUPPORTED, "attention: heads of %d values are too wide",
                     s->head_dim > value_dim(s) ? s->head_dim : value_dim(s));
                return;
            }
            a.queries /= 2;
        }
    }
    int64_t work = 2 * seen * s->heads * (s->head_dim + value_dim(s));
    if (cut_by_splits(&a)) {
        cpu_run(c, part_task, &a, a.whole.jobs * a.whole.splits, work);
        cpu_run(c, merge_task, &a, a.whole.jobs, work);
        return;
    }
    /* Queries of one job share each widened key; when there are too few jobs for the threads, fewer queries share
     * it. */
    int32_t jobs;
    for (;;) {
        jobs = 0;
        for (int32_t i = 0; i < r->n_slices; i++) jobs += attend_shape(&a, &r->slices[i]).jobs;
        if (jobs >= 2 * c->threads || a.queries <= 4) break;
        a.queries /= 2;
    }
    cpu_run(c, attend_task, &a, jobs, work);
}

/* ---- delta net ---- */

typedef struct { Cpu *c; ConvJob job; } ConvAll;
typedef struct { Cpu *c; DeltaJob job; } DeltaAll;

static void conv_task(void *arg, int32_t i, int32_t thread)
{
    const ConvAll *a = arg;
    int32_t c0 = i * CONV_CHANNELS, c1 = a->job.channels - c0 < CONV_CHANNELS ? a->job.channels : c0 + CONV_CHANNELS;
    a->c->dn->conv(&a->job, c0, c1, cpu_scratch(a->c, thread));
}

/* Marks the state as that of the noted path: after a TREE, or a fold in place. */
static void set_mark(const Rows *r, int32_t il, int32_t mark)
{
    for (int32_t i = 0; i < r->n_slices; i++) {
        const Slice *s = &r->slices[i];
        if (s->kind == SLICE_TREE && s->set_in == s->set_out) s->layer[il].mark[mark] = s->gen;
    }
}

static void conv_all(Cpu *c, Tensor *y, const Tensor *x, const Tensor *w, const Rows *r, int32_t il, const LayerSpec *s)
{
    if (s->conv_width < 1 || s->conv_width > CONV_WIDTH_MAX) {
        fail(&c->error, ST_UNSUPPORTED, "convolution: %d taps, expected 1 to %d", s->conv_width, CONV_WIDTH_MAX);
        return;
    }
    ConvAll a = { c, {
        .y = y ? y->data : NULL, .x = x ? x->data : NULL, .w = w ? w->data : NULL, .slices = r->slices,
        .n_slices = r->n_slices, .il = il, .channels = 2 * s->k_heads * s->k_dim + s->v_heads * s->v_dim,
        .width = s->conv_width, .parent = r->parent } };
    int64_t work = (int64_t) a.job.channels * (8 + r->n * (20 + 2 * s->conv_width));
    cpu_run(c, conv_task, &a, (a.job.channels + CONV_CHANNELS - 1) / CONV_CHANNELS, work);
    set_mark(r, il, MARK_WINDOW);
}

static void conv(Backend *b, Tensor *y, const Tensor *x, const Tensor *w, const Rows *r, int32_t il, const LayerSpec *s)
{
    Cpu *c = cpu_of(b);
    if (!cpu_failed(c)) conv_all(c, y, x, w, r, il, s);
}

static void delta_task(void *arg, int32_t i, int32_t thread)
{
    const DeltaAll *a = arg;
    int32_t heads = a->job.spec->v_heads;
    a->c->dn->delta(&a->job, i / heads, i % heads, cpu_scratch(a->c, thread));
}

static void delta_all(DeltaAll *a, const Rows *r, int32_t il)
{
    const LayerSpec *s = a->job.spec;
    if (a->c->dn->delta_scratch(s) > SCRATCH_BYTES) {
        fail(&a->c->error, ST_UNSUPPORTED, "delta rule: keys of %d values are too wide", s->k_dim);
        return;
    }
    a->job.ahead = a->c->threads;                  /* heads are handed out in order */
    cpu_run(a->c, delta_task, a, r->n_slices * s->v_heads,
            (int64_t) (r->n + r->n_slices) * s->v_heads * s->k_dim * s->v_dim * 7);
    set_mark(r, il, MARK_MATRIX);
}

static void delta(Backend *b, Tensor *y, const Tensor *qkv, const Tensor *beta, const Tensor *alpha, const Tensor *a,
                  const Tensor *dt, const Rows *r, int32_t il, const LayerSpec *s)
{
    Cpu *c = cpu_of(b);
    if (cpu_failed(c)) return;
    DeltaAll all = { c, { .y = y->data, .qkv = qkv->data, .beta = beta->data, .alpha = alpha->data, .a = a->data,
                          .dt = dt->data, .slices = r->slices, .spec = s, .parent = r->parent, .il = il } };
    delta_all(&all, r, il);
}

static void fold(Backend *b, const Rows *r, int32_t il, const LayerSpec *s)
{
    Cpu *c = cpu_of(b);
    if (cpu_failed(c)) return;
    if (s->kind == LAYER_ATTENTION)
        for (int32_t i = 0; i < r->n_slices; i++) move_path(&r->slices[i], &r->slices[i].layer[il], s);
    if (s->kind != LAYER_DELTA) return;
    conv_all(c, NULL, NULL, NULL, r, il, s);
    DeltaAll all = { c, { .slices = r->slices, .spec = s, .parent = r->parent, .il = il } };
    if (!cpu_failed(c)) delta_all(&all, r, il);
}

void cpu_state_ops(Backend *b)
{
    b->kv_put = kv_put;
    b->kv_bytes = kv_bytes;
    b->kv_save = kv_save;
    b->kv_load = kv_load;
    b->attend = attend;
    b->conv = conv;
    b->delta = delta;
    b->fold = fold;
}
