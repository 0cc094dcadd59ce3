/* simd_delta.c - the short convolution and the gated delta rule, with the state they keep from pass to pass. Both first
 * bring the committed state up to date: they apply the rows of the path noted last, whose records the previous pass
 * wrote, to the stored state. A TREE stores the result in place (the caller then writes the mark); a CHAIN leaves its
 * input set unchanged and stores the state after its last row in the output set. Channels, and columns of a head's
 * matrix, are independent of each other. */
#include <math.h>

#include "backend/cpu/kernels.h"
#include "backend/cpu/vmath.h"

static size_t round64(size_t n) { return (n + 63) & ~(size_t) 63; }

/* Rows of the noted path not yet applied to the stored state. */
static int32_t pending(const Slice *s, const StateLayer *l, int32_t mark)
{
    return l->mark[mark] == s->gen ? 0 : s->n_path;
}

/* ---- convolution ---- */

static size_t conv_scratch(int32_t width) { return sizeof(float) * CONV_CHANNELS * (size_t) width; }

/* Committed input j, oldest first: the stored window [0, width - 1), then the noted path. */
static const float *committed(const ConvJob *job, const Slice *s, const StateLayer *l, int32_t j)
{
    int32_t keep = job->width - 1;
    size_t ch = (size_t) job->channels;
    if (j < keep) return l->window + ((size_t) s->set_in * (size_t) keep + (size_t) j) * ch;
    return l->rec_x + (size_t) s->path[j - keep] * ch;
}

/* The input `back` places before row i of the slice; 0 is row i itself. n_path: pending rows. */
static const float *input(const ConvJob *job, const Slice *s, const StateLayer *l, int32_t n_path, int32_t i,
                          int32_t back)
{
    while (back > 0 && i >= 0) {
        i = job->parent[s->row0 + i];
        back--;
    }
    if (i >= 0) return job->x + (size_t) (s->row0 + i) * (size_t) job->channels;
    return committed(job, s, l, job->width - 2 + n_path - back);
}

/* Rows are so far apart that the hardware prefetcher does not foresee the next one: each row prefetches its columns of
 * a later row of x, and the place of its own record. */
static void conv_rows(const ConvJob *job, const Slice *s, const StateLayer *l, int32_t n_path, int32_t c0, int32_t n,
                      const float *w)
{
    enum { SOON = 2 };
    const size_t ch = (size_t) job->channels;
    for (int32_t i = 0; i < s->n; i++) {
        const float *in[CONV_WIDTH_MAX];
        for (int32_t t = 0; t < job->width; t++) in[t] = input(job, s, l, n_path, i, job->width - 1 - t) + c0;
        float *y = job->y + (size_t) (s->row0 + i) * ch + c0;
        const float *soon = job->x + (size_t) (s->row0 + (i + SOON < s->n ? i + SOON : i)) * ch + c0;
        const float *record = s->kind == SLICE_TREE ? l->rec_x + (size_t) i * ch + c0 : soon;
        for (int32_t c = 0; c < n; c += LANES) {
            __builtin_prefetch(soon + c);
            __builtin_prefetch(record + c, 1);
            V acc = v_set(0);
            for (int32_t t = 0; t < job->width; t++)
                acc = v_fma(v_load(w + t * CONV_CHANNELS + c), v_load_to(in[t] + c, n - c), acc);
            v_store_to(y + c, v_silu(acc), n - c);
        }
    }
}

/* Computes the window after the committed inputs and, for a CHAIN, after its rows. Ascending, so that each place is
 * read before it is written, even in place. */
static void conv_window(const ConvJob *job, const Slice *s, const StateLayer *l, int32_t n_path, int32_t c0, int32_t n)
{
    int32_t keep = job->width - 1, rows = s->kind == SLICE_CHAIN ? s->n : 0;
    for (int32_t j = 0; j < keep; j++) {
        int32_t at = n_path + rows + j;            /* index into window, path, rows */
        const float *from = at < keep + n_path ? committed(job, s, l, at) : job->x +
                            (size_t) (s->row0 + at - keep - n_path) * (size_t) job->channels;
        float *to = l->window + ((size_t) s->set_out * (size_t) keep + (size_t) j) * (size_t) job->channels;
        if (to != from) memcpy(to + c0, from + c0, sizeof(float) * (size_t) n);
    }
}

static void conv(const ConvJob *job, int32_t c0, int32_t c1, void *scratch)
{
    float *w = scratch;                            /* [width, CONV_CHANNELS]: channels side by side */
    int32_t n = c1 - c0;
    if (job->y) {
        for (int32_t t = 0; t < job->width; t++) {
            for (int32_t c = 0; c < n; c++)
                w[t * CONV_CHANNELS + c] = job->w[(size_t) (c0 + c) * (size_t) job->width + (size_t) t];
            for (int32_t c = n; c < CONV_CHANNELS && c < n + LANES; c++) w[t * CONV_CHANNELS + c] = 0;
        }
    }
    for (int32_t k = 0; k < job->n_slices; k++) {
        const Slice *s = &job->slices[k];
        const StateLayer *l = &s->layer[job->il];
        int32_t n_path = pending(s, l, 1);
        if (job->y) conv_rows(job, s, l, n_path, c0, n, w);
        if (s->kind != SLICE_BLOCK) conv_window(job, s, l, n_path, c0, n);
        if (s->kind != SLICE_TREE) continue;
        for (int32_t i = 0; i < s->n; i++)
            memcpy(l->rec_x + (size_t) i * (size_t) job->channels + c0,
                   job->x + (size_t) (s->row0 + i) * (size_t) job->channels + c0, sizeof(float) * (size_t) n);
    }
}

/* ---- delta rule ---- */

/* Columns of a slice: with 128 keys at most 24 KB, which stay in the first-level cache. Each vector of them is a
 * dependent chain of sums, so there are as many as the registers allow. */
enum { VECS = LANES == 16 ? 3 : 2, COLS = VECS * LANES };

/* One head's rows, ROWS_DECODE at a time, and its slice of columns. */
typedef struct {
    float *S;                   /* [k_dim, COLS] */
    float *aside;               /* [ROWS_DECODE, k_dim, COLS] S' of rows with children other than the next row */
    float *q, *k;               /* [ROWS_DECODE, pad] normalised */
    float *a, *b;               /* [ROWS_DECODE] decay, beta */
    float *path_a;              /* [ROWS_DECODE] decays of the noted path */
} Head;

static float *take(uint8_t *base, size_t *at, size_t floats)
{
    void *p = base ? base + *at : NULL;
    *at += round64(sizeof(float) * floats);
    return p;
}

/* Returns the length; with base NULL it does nothing else. */
static size_t delta_lay_out(Head *h, uint8_t *base, const LayerSpec *spec)
{
    size_t at = 0, k_dim = (size_t) spec->k_dim, pad = (k_dim + LANES - 1) / LANES * LANES;
    h->S = take(base, &at, k_dim * COLS);
    h->aside = take(base, &at, k_dim * COLS * ROWS_DECODE);
    h->q = take(base, &at, pad * ROWS_DECODE);
    h->k = take(base, &at, pad * ROWS_DECODE);
    h->a = take(base, &at, ROWS_DECODE);
    h->b = take(base, &at, ROWS_DECODE);
    h->path_a = take(base, &at, ROWS_DECODE);
    return at;
}

static size_t delta_scratch(const LayerSpec *spec)
{
    Head h;
    return delta_lay_out(&h, NULL, spec);
}

/* y = x * (1 / sqrt(sum of x^2 + eps)), and * by if that is not 1 */
static void l2_norm(float *y, const float *x, int32_t n, float eps, float by)
{
    V acc = v_set(0);
    for (int32_t i = 0; i < n; i += LANES) {
        V v = v_load_to(x + i, n - i);
        acc = v_fma(v, v, acc);
    }
    V r = v_set(1.0f / sqrtf(v_sum(acc) + eps)), f = v_set(by);
    for (int32_t i = 0; i < n; i += LANES) v_store_to(y + i, v_mul(v_mul(v_load_to(x + i, n - i), r), f), n - i);
}

/* Vectors stay in registers only if the compiler knows their number: all of these are inlined with a constant. */
#define COLUMNS static inline __attribute__((always_inline)) void

/* T = a * from, stored in S, and the sum of k_i * T_i. */
COLUMNS begin(V kv[VECS], float *S, const float *from, const float *k, float a, int32_t k_dim, int vecs)
{
    V av = v_set(a), sum[VECS];
    for (int j = 0; j < vecs; j++) sum[j] = v_set(0);
    for (int32_t i = 0; i < k_dim; i++) {
        V ki = v_set(k[i]);
        for (int j = 0; j < vecs; j++) {
            V t = v_mul(av, v_load(from + i * COLS + j * LANES));
            v_store(S + i * COLS + j * LANES, t);
            sum[j] = v_fma(ki, t, sum[j]);
        }
    }
    for (int j = 0; j < vecs; j++) kv[j] = sum[j];
}

/* S' = k d + T and the sum of q_i * S'_i; S' is written to `to`, or not at all if that is NULL: nobody reads a
 * leaf's. */
COLUMNS finish(V o[VECS], float *to, const float *S, const float *k, const V d[VECS], const float *q, int32_t k_dim,
               int vecs)
{
    V sum[VECS], dv[VECS];
    for (int j = 0; j < vecs; j++) sum[j] = v_set(0), dv[j] = d[j];
    for (int32_t i = 0; i < k_dim; i++) {
        V ki = v_set(k[i]), qi = v_set(q[i]);
        for (int j = 0; j < vecs; j++) {
            V t = v_fma(ki, dv[j], v_load(S + i * COLS + j * LANES));
            if (to) v_store(to + i * COLS + j * LANES, t);
            sum[j] = v_fma(qi, t, sum[j]);
        }
    }
    for (int j = 0; j < vecs; j++) o[j] = sum[j];
}

/* finish for one row and begin for its successor, in one pass over the slice. */
COLUMNS finish_begin(V o[VECS], V kv[VECS], float *to, float *S, const float *k, const V d[VECS], const float *q,
                     const float *k_next, float a_next, int32_t k_dim, int vecs)
{
    V av = v_set(a_next), sum[VECS], next[VECS], dv[VECS];
    for (int j = 0; j < vecs; j++) sum[j] = next[j] = v_set(0), dv[j] = d[j];
    for (int32_t i = 0; i < k_dim; i++) {
        V ki = v_set(k[i]), qi = v_set(q[i]), kn = v_set(k_next[i]);
        for (int j = 0; j < vecs; j++) {
            V t = v_fma(ki, dv[j], v_load(S + i * COLS + j * LANES));
            if (to) v_store(to + i * COLS + j * LANES, t);
            sum[j] = v_fma(qi, t, sum[j]);
            t = v_mul(av, t);
            v_store(S + i * COLS + j * LANES, t);
            next[j] = v_fma(kn, t, next[j]);
        }
    }
    for (int j = 0; j < vecs; j++) o[j] = sum[j], kv[j] = next[j];
}

/* T = a * S, S' = k d + T with a stored delta. */
COLUMNS replay(float *S, const float *k, float a, const float *d, int32_t k_dim, int32_t n, int vecs)
{
    V av = v_set(a), dv[VECS];
    for (int j = 0; j < vecs; j++) dv[j] = v_load_to(d + j * LANES, n - j * LANES);
    for (int32_t i = 0; i < k_dim; i++) {
        V ki = v_set(k[i]);
        float *s = S + i * COLS;
        for (int j = 0; j < vecs; j++) v_store(s + j * LANES, v_fma(ki, dv[j], v_mul(av, v_load(s + j * LANES))));
    }
}

COLUMNS load_slice(float *S, const float *matrix, int32_t k_dim, int32_t v_dim, int32_t n, int vecs)
{
    for (int32_t i = 0; i < k_dim; i++)
        for (int j = 0; j < vecs; j++)
            v_store(S + i * COLS + j * LANES,
                    v_load_to(matrix + (size_t) i * (size_t) v_dim + j * LANES, n - j * LANES));
}

COLUMNS store_slice(float *matrix, const float *S, int32_t k_dim, int32_t v_dim, int32_t n, int vecs)
{
    for (int32_t i = 0; i < k_dim; i++)
        for (int j = 0; j < vecs; j++)
            v_store_to(matrix + (size_t) i * (size_t) v_dim + j * LANES, v_load(S + i * COLS + j * LANES),
                       n - j * LANES);
}

/* What one head works on. */
typedef struct {
    const DeltaJob *job;
    const Slice    *s;
    StateLayer     *l;
    Head            h;
    int32_t         head, k_head, k_pad, n_path;
    uint8_t         child[ROWS_DECODE];            /* TREE: NEXT and LATER */
} DeltaTask;
enum { NEXT = 1, LATER = 2 };                      /* NEXT: the next row is a child; LATER: a later row is */

static float *matrix_of(const DeltaTask *t, int32_t set)
{
    const LayerSpec *p = t->job->spec;
    return t->l->matrix +
           ((size_t) set * (size_t) p->v_heads + (size_t) t->head) * (size_t) p->k_dim * (size_t) p->v_dim;
}

/* A row's decay in the bank that a pass of generation gen writes. */
static float *record_a(const DeltaTask *t, int32_t gen, int32_t row)
{
    return t->l->rec_a + ((size_t) (gen & 1) * ROWS_DECODE + (size_t) row) * (size_t) t->job->spec->v_heads + t->head;
}

/* A row of k in the same way. */
static float *record_k(const DeltaTask *t, int32_t gen, int32_t row)
{
    const LayerSpec *p = t->job->spec;
    return t->l->rec_k + (((size_t) (gen & 1) * ROWS_DECODE + (size_t) row) * (size_t) p->k_heads +
                          (size_t) t->k_head) * (size_t) p->k_dim;
}

static float *record_d(const DeltaTask *t, int32_t row)
{
    const LayerSpec *p = t->job->spec;
    return t->l->rec_d + ((size_t) row * (size_t) p->v_heads + (size_t) t->head) * (size_t) p->v_dim;
}

/* Normalised k and q, decay and beta of rows [r0, r0 + n) of the slice. */
static void head_rows(DeltaTask *t, int32_t r0, int32_t n)
{
    const DeltaJob *job = t->job;
    const LayerSpec *p = job->spec;
    size_t keys = (size_t) p->k_heads * (size_t) p->k_dim, width = 2 * keys + (size_t) p->v_heads * (size_t) p->v_dim;
    float by = 1.0f / sqrtf((float) p->k_dim);
    float A = job->a[t->head], dt = job->dt[t->head];
    for (int32_t i = 0; i < n; i++) {
        size_t row = (size_t) (t->s->row0 + r0 + i);
        const float *q = job->qkv + row * width + (size_t) t->k_head * (size_t) p->k_dim;
        l2_norm(t->h.q + i * t->k_pad, q, p->k_dim, p->eps, by);
        l2_norm(t->h.k + i * t->k_pad, q + keys, p->k_dim, p->eps, 1.0f);
        t->h.a[i] = job->alpha[row * (size_t) p->v_heads + (size_t) t->head] + dt;
        t->h.b[i] = job->beta[row * (size_t) p->v_heads + (size_t) t->head];
    }
    for (int32_t i = 0; i < n; i += LANES) {
        v_store_to(t->h.a + i, v_exp(v_mul(v_set(A), v_softplus(v_load_to(t->h.a + i, n - i)))), n - i);
        v_store_to(t->h.b + i, v_sigmoid(v_load_to(t->h.b + i, n - i)), n - i);
    }
}

/* A row's values of this head, from column c0 on. */
static const float *values_of(const DeltaTask *t, size_t row, int32_t c0)
{
    const LayerSpec *p = t->job->spec;
    size_t keys = 2 * (size_t) p->k_heads * (size_t) p->k_dim, width = keys + (size_t) p->v_heads * (size_t) p->v_dim;
    return t->job->qkv + row * width + keys + (size_t) t->head * (size_t) p->v_dim + (size_t) c0;
}

/* Prefetches distant data before row i of the slice's n rows: the values of row `later` of the pass, and an equal share
 * of the matrix of the head that this thread will probably have next. */
static inline void prefetch_rows(const DeltaTask *t, int32_t c0, int32_t i, int32_t n, size_t later)
{
    enum { LINE_FLOATS = 64 / sizeof(float) };
    const LayerSpec *p = t->job->spec;
    const float *v = values_of(t, later, c0);
    for (int32_t c = 0; c < COLS; c += LINE_FLOATS) __builtin_prefetch(v + c);
    if (t->head + t->job->ahead >= p->v_heads) return;
    const size_t all = (size_t) p->k_dim * (size_t) p->v_dim,
                 parts = (size_t) ((p->v_dim + COLS - 1) / COLS) * (size_t) n, part = (size_t) (c0 / COLS * n + i);
    const float *next = matrix_of(t, t->s->set_in) + (size_t) t->job->ahead * all;
    for (size_t at = all * part / parts / LINE_FLOATS * LINE_FLOATS; at < all * (part + 1) / parts; at += LINE_FLOATS)
        __builtin_prefetch(next + at, 0, 2);
}

/* Columns [c0, c0 + n), as `vecs` vectors, through rows [r0, r0 + rows) of the slice. */
COLUMNS columns(DeltaTask *t, int32_t r0, int32_t rows, int32_t c0, int32_t n, int vecs)
{
    const DeltaJob *job = t->job;
    const LayerSpec *p = job->spec;
    const Slice *s = t->s;
    bool tree = s->kind == SLICE_TREE;
    int32_t k_dim = p->k_dim, v_dim = p->v_dim;
    size_t values = (size_t) p->v_heads * (size_t) v_dim, slice = (size_t) k_dim * COLS;
    float *S = t->h.S;
    load_slice(S, matrix_of(t, r0 ? s->set_out : s->set_in) + c0, k_dim, v_dim, n, vecs);
    for (int32_t j = 0; r0 == 0 && j < t->n_path; j++)
        replay(S, record_k(t, s->gen - 1, s->path[j]), t->h.path_a[j], record_d(t, s->path[j]) + c0, k_dim, n, vecs);
    if (tree && (t->n_path || s->set_in != s->set_out))
        store_slice(matrix_of(t, s->set_out) + c0, S, k_dim, v_dim, n, vecs);
    V kv[VECS] = { v_set(0) };
    bool begun = false;                            /* S holds T of row i, and kv holds its sum */
    for (int32_t i = 0; i < rows; i++) {
        const float *k = t->h.k + i * t->k_pad, *q = t->h.q + i * t->k_pad;
        size_t row = (size_t) (s->row0 + r0 + i);
        prefetch_rows(t, c0, r0 + i, s->n, row + (i + 1 < rows));
        if (!begun) {
            int32_t up = tree ? job->parent[row] : i - 1;
            if (tree && up < 0 && i > 0) load_slice(S, matrix_of(t, s->set_out) + c0, k_dim, v_dim, n, vecs);
            begin(kv, S, tree && up >= 0 ? t->h.aside + (size_t) up * slice : S, k, t->h.a[i], k_dim, vecs);
        }
        const float *v = values_of(t, row, c0);
        V d[VECS], o[VECS];
        for (int j = 0; j < vecs; j++) {
            d[j] = v_mul(v_set(t->h.b[i]), v_sub(v_load_to(v + j * LANES, n - j * LANES), kv[j]));
            if (tree) v_store_to(record_d(t, i) + c0 + j * LANES, d[j], n - j * LANES);
        }
        float *aside = tree && t->child[i] & LATER ? t->h.aside + (size_t) i * slice : NULL;
        begun = tree ? t->child[i] & NEXT : i + 1 < rows;
        if (begun) finish_begin(o, kv, aside, S, k, d, q, k + t->k_pad, t->h.a[i + 1], k_dim, vecs);
        else finish(o, tree ? aside : S, S, k, d, q, k_dim, vecs);
        float *y = job->y + row * values + (size_t) t->head * (size_t) v_dim + (size_t) c0;
        for (int j = 0; j < vecs; j++) v_store_to(y + j * LANES, o[j], n - j * LANES);
    }
    if (s->kind == SLICE_CHAIN) store_slice(matrix_of(t, s->set_out) + c0, S, k_dim, v_dim, n, vecs);
}

static void all_columns(DeltaTask *t, int32_t r0, int32_t rows)
{
    for (int32_t c0 = 0; c0 < t->job->spec->v_dim; c0 += COLS) {
        int32_t n = t->job->spec->v_dim - c0 < COLS ? t->job->spec->v_dim - c0 : COLS;
        if (n <= LANES) columns(t, r0, rows, c0, n, 1);
        else if (VECS == 2 || n <= 2 * LANES) columns(t, r0, rows, c0, n, 2);
        else columns(t, r0, rows, c0, n, VECS);
    }
}

static void delta(const DeltaJob *job, int32_t slice, int32_t head, void *scratch)
{
    const LayerSpec *p = job->spec;
    const Slice *s = &job->slices[slice];
    DeltaTask t = { .job = job, .s = s, .l = &s->layer[job->il], .head = head, .k_head = head % p->k_heads };
    t.k_pad = (p->k_dim + LANES - 1) / LANES * LANES;
    t.n_path = pending(s, t.l, 2);
    delta_lay_out(&t.h, scratch, p);
    for (int32_t j = 0; j < t.n_path; j++)
        t.h.path_a[j] = *record_a(&t, s->gen - 1, s->path[j]);
    if (s->kind == SLICE_TREE) {
        for (int32_t i = 0; i < s->n; i++) {
            int32_t up = job->parent[s->row0 + i];
            if (up >= 0) t.child[up] |= up == i - 1 ? NEXT : LATER;
        }
    }
    int32_t r0 = 0;
    do {
        int32_t rows = s->n - r0 < ROWS_DECODE ? s->n - r0 : ROWS_DECODE;
        if (rows) head_rows(&t, r0, rows);
        all_columns(&t, r0, rows);
        r0 += rows;
    } while (r0 < s->n);
    if (s->kind != SLICE_TREE) return;
    for (int32_t i = 0; i < s->n; i++) {
        *record_a(&t, s->gen, i) = t.h.a[i];
        if (head < p->k_heads) memcpy(record_k(&t, s->gen, i), t.h.k + i * t.k_pad, sizeof(float) * (size_t) p->k_dim);
    }
}

const DeltaKernels LEVEL_NAME(delta) = { conv_scratch, conv, delta_scratch, delta };
