/* cpu_state.c - operations on what a session keeps: keys and values, attention, convolution, delta rule, fold.
 * Each works on heads, rows or channels that share nothing, spread over the threads; the marks that say "the noted path has been
 * applied" are written here, after all threads are done. */
#include <string.h>

#include "backend/cpu/cpu.h"

enum { MARK_KV, MARK_WINDOW, MARK_MATRIX };

static size_t k_row(const LayerSpec *s) { return type_row_bytes(s->k_type, s->kv_heads * s->head_dim); }
static size_t v_row(const LayerSpec *s) { return type_row_bytes(s->v_type, s->kv_heads * s->head_dim); }

/* ---- keys and values ---- */

/* The path's rows come down to their positions: path[t] >= t and ascending, so no row is overwritten before it has moved. */
static void move_path(const Slice *s, StateLayer *l, const LayerSpec *spec)
{
    if (l->ring || l->mark[MARK_KV] == s->gen) return;
    size_t kr = k_row(spec), vr = v_row(spec);
    uint8_t *k = (uint8_t *) l->k + kr * (size_t) (s->base - s->n_path), *v = (uint8_t *) l->v + vr * (size_t) (s->base - s->n_path);
    for (int32_t t = 0; t < s->n_path; t++) {
        if (s->path[t] == t) continue;
        memcpy(k + kr * (size_t) t, k + kr * (size_t) s->path[t], kr);
        memcpy(v + vr * (size_t) t, v + vr * (size_t) s->path[t], vr);
    }
    l->mark[MARK_KV] = s->gen;
}

typedef struct { Cpu *c; const Tensor *k, *v; const Rows *r; int32_t il; const LayerSpec *spec; } PutJob;

/* A row as attention will read it. Encoders are the format's own, at every level. */
static void put_row(const Cpu *c, void *slot, Type t, const float *x, int32_t n)
{
    if (type_info(t)->block == 1) c->rows->store(slot, t, x, n);
    else quant_encode(slot, t, x, n);
}

static void put_task(void *arg, int32_t i, int32_t thread)
{
    (void) thread;
    const PutJob *j = arg;
    const Slice *s = &j->r->slices[j->r->slice[i]];
    StateLayer *l = &s->layer[j->il];
    int32_t row = i - s->row0, slot = s->base + row, cols = j->spec->kv_heads * j->spec->head_dim;
    if (l->ring && s->kind == SLICE_CHAIN) {
        if (s->n - row > l->ring) return;          /* a later row of this chain takes the slot */
        slot %= l->ring;
        l->slot_pos[slot] = s->base + row;
    } else if (l->ring) {
        slot = l->ring + row;
    }
    put_row(j->c, (uint8_t *) l->k + k_row(j->spec) * (size_t) slot, j->spec->k_type, (const float *) j->k->data + (size_t) i * (size_t) cols, cols);
    put_row(j->c, (uint8_t *) l->v + v_row(j->spec) * (size_t) slot, j->spec->v_type, (const float *) j->v->data + (size_t) i * (size_t) cols, cols);
}

static void kv_put(Backend *b, const Tensor *k, const Tensor *v, const Rows *r, int32_t il, const LayerSpec *s)
{
    Cpu *c = cpu_of(b);
    if (cpu_failed(c)) return;
    for (int32_t i = 0; i < r->n_slices; i++) move_path(&r->slices[i], &r->slices[i].layer[il], s);
    PutJob j = { c, k, v, r, il, s };
    cpu_run(c, put_task, &j, r->n, (int64_t) r->n * s->kv_heads * s->head_dim);
}

/* ---- attention ---- */

/* How a slice is cut into jobs: key/value heads per job, query heads of each, rows; by_split: each job once more by positions. */
typedef struct { int32_t kv, heads, rows, kv_parts, head_parts, row_parts, split0, splits, jobs; bool by_split; } AttendShape;
typedef struct { Cpu *c; Tensor *y; const Tensor *q; const Rows *r; int32_t il, queries; const LayerSpec *spec; AttendShape whole; } AttendAll;

/* The lower part of a thread's scratch is its job's, the upper parts together hold what jobs by splits bring. */
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
    int32_t group = a->spec->heads / a->spec->kv_heads, head = i % p->head_parts * p->heads, kv = i / p->head_parts % p->kv_parts * p->kv;
    /* The last rows of a chunk see most: they start first, so that no thread is left with a long job at the end. */
    int32_t row = (p->row_parts - 1 - i / p->head_parts / p->kv_parts) * p->rows;
    return (AttendJob) {
        .y = a->y->data, .q = a->q->data, .slice = s, .layer = &s->layer[a->il], .spec = a->spec, .parent = a->r->parent + s->row0,
        .k_row = k_row(a->spec), .v_row = v_row(a->spec), .kv0 = kv, .n_kv = p->kv, .head0 = head, .n_heads = group - head < p->heads ? group - head : p->heads,
        .row0 = row, .n_rows = s->n - row < p->rows ? s->n - row : p->rows };
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

/* What job i of a slice's splits brings lies here; all take the room of the largest, the first. */
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

/* One session with a long text: cut by positions. Where few queries read each key, memory is what limits, and it is fastest in one
 * stream: all heads of a slot together. False: there are too few splits for the threads, or too little room for what they bring. */
static bool cut_by_splits(AttendAll *a)
{
    const Slice *s = a->r->slices;
    const StateLayer *l = &s->layer[a->il];
    int32_t group = a->spec->heads / a->spec->kv_heads, lo = a->spec->window && s->base > a->spec->window ? s->base - a->spec->window : 0;
    if (l->ring || a->r->n_slices != 1 || s->n < 1) return false;
    int32_t splits = (s->base + s->n + SPLIT - 1) / SPLIT - lo / SPLIT;
    AttendShape p = attend_shape(a, s);
    if (group * s->n < STREAM_QUERIES && splits >= 2 * a->c->threads) {
        p = (AttendShape) { .kv = a->spec->kv_heads, .heads = group, .rows = s->n, .kv_parts = 1, .head_parts = 1, .row_parts = 1, .jobs = 1 };
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
    AttendAll a = { c, y, q, r, il, 32, s, { 0 } };
    int64_t seen = 0;
    for (int32_t i = 0; i < r->n_slices; i++) {
        int64_t last = (int64_t) r->slices[i].base + r->slices[i].n;
        seen += r->slices[i].n * (s->window && s->window < last ? s->window : last);
        for (AttendShape p = attend_shape(&a, &r->slices[i]); !job_fits(&a, &r->slices[i], &p); p = attend_shape(&a, &r->slices[i])) {
            if (a.queries == 1) {
                fail(&c->error, ST_UNSUPPORTED, "attention: heads of %d values are too wide", s->head_dim);
                return;
            }
            a.queries /= 2;
        }
    }
    int64_t work = 4 * seen * s->heads * s->head_dim;
    if (cut_by_splits(&a)) {
        cpu_run(c, part_task, &a, a.whole.jobs * a.whole.splits, work);
        cpu_run(c, merge_task, &a, a.whole.jobs, work);
        return;
    }
    /* Queries of one job share each widened key; with too few jobs for the threads they share less. */
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

/* The state is now that of the noted path: a TREE, and a fold in place. */
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
        .y = y ? y->data : NULL, .x = x ? x->data : NULL, .w = w ? w->data : NULL, .slices = r->slices, .n_slices = r->n_slices, .il = il,
        .channels = 2 * s->k_heads * s->k_dim + s->v_heads * s->v_dim, .width = s->conv_width, .parent = r->parent } };
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
    cpu_run(a->c, delta_task, a, r->n_slices * s->v_heads, (int64_t) (r->n + r->n_slices) * s->v_heads * s->k_dim * s->v_dim * 7);
    set_mark(r, il, MARK_MATRIX);
}

static void delta(Backend *b, Tensor *y, const Tensor *qkv, const Tensor *beta, const Tensor *alpha, const Tensor *a, const Tensor *dt,
                  const Rows *r, int32_t il, const LayerSpec *s)
{
    Cpu *c = cpu_of(b);
    if (cpu_failed(c)) return;
    DeltaAll all = { c, { .y = y->data, .qkv = qkv->data, .beta = beta->data, .alpha = alpha->data, .a = a->data, .dt = dt->data,
                          .slices = r->slices, .spec = s, .parent = r->parent, .il = il } };
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
    b->attend = attend;
    b->conv = conv;
    b->delta = delta;
    b->fold = fold;
}
