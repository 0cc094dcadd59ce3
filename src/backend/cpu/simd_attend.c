/* simd_attend.c - attention of a few rows and heads over one key/value head.
 * Keys and values are widened to float sixteen positions at a time into the first-level cache and used by all queries of the job. Rows
 * of a tree share the committed positions; their own ancestors are widened once and brought into the lanes of their positions row by row:
 *
 *     position   0 ............... base | base + depth
 *     slot       position, or ring      | base + row of the ancestor at that depth        (CHAIN and BLOCK: nothing beyond `shared`)
 */
#include <math.h>

#include "backend/cpu/kernels.h"
#include "backend/cpu/vmath.h"

enum { TILE_BLOCKS = TILE / LANES };

/* What a job keeps in its scratch; pad is head_dim rounded up to 16, the rest zeros. */
typedef struct {
    const AttendJob *job;
    int32_t pad, n;                                /* n queries: row-major over (row, head) */
    int32_t shared0, shared1;                      /* positions that lie where their number says, for all rows that see them */
    bool    tree;
    float  *q, *o, *O;                             /* [n, pad]; o of this split, O of those before it */
    float  *m, *l, *M, *L;                         /* [n]; l 0: nothing seen yet */
    int32_t *lo, *hi;                              /* [n] shared positions that the query sees */
    int32_t *own;                                  /* [n] its own position */
    float  *s;                                     /* [n, TILE] scores, then weights */
    uint16_t *seen;                                /* [n, TILE_BLOCKS] one bit per position */
    float  *keys;                                  /* [LANES, pad] widened keys or values of a block */
    float  *tree_k, *tree_v;                       /* [ROWS_DECODE, pad] */
    int32_t *anc;                                  /* [rows of the job, ROWS_DECODE] rows of the path by depth */
    int32_t *depth;                                /* [rows of the job] */
} Work;

static size_t round64(size_t n) { return (n + 63) & ~(size_t) 63; }

static void *take(uint8_t *base, size_t *at, size_t bytes)
{
    void *p = base ? base + *at : NULL;
    *at += round64(bytes);
    return p;
}

/* Returns the length; with base NULL nothing but that. */
static size_t lay_out(Work *w, uint8_t *base, int32_t head_dim, int32_t queries)
{
    size_t n = (size_t) queries, pad = (size_t) (head_dim + LANES - 1) / LANES * LANES, f = sizeof(float);
    size_t at = 0;
    w->pad = (int32_t) pad;
    w->n = queries;
    w->q = take(base, &at, n * pad * f);
    w->o = take(base, &at, n * pad * f);
    w->O = take(base, &at, n * pad * f);
    w->m = take(base, &at, n * f);
    w->l = take(base, &at, n * f);
    w->M = take(base, &at, n * f);
    w->L = take(base, &at, n * f);
    w->lo = take(base, &at, n * f);
    w->hi = take(base, &at, n * f);
    w->own = take(base, &at, n * f);
    w->s = take(base, &at, n * TILE * f);
    w->seen = take(base, &at, n * TILE_BLOCKS * sizeof(uint16_t));
    w->keys = take(base, &at, LANES * pad * f);
    w->tree_k = take(base, &at, ROWS_DECODE * pad * f);
    w->tree_v = take(base, &at, ROWS_DECODE * pad * f);
    w->anc = take(base, &at, n * ROWS_DECODE * f);
    w->depth = take(base, &at, n * f);
    return at;
}

static size_t scratch_bytes(const LayerSpec *spec, int32_t queries)
{
    Work w;
    return lay_out(&w, NULL, spec->head_dim, queries);
}

/* y [pad] = n stored values from column `at` on. */
static void widen(float *y, Type t, const void *row, int32_t at, int32_t n, int32_t pad)
{
    int32_t i = 0;
    if (t == T_F32) {
        const float *x = (const float *) row + at;
        for (; i + LANES <= n; i += LANES) v_store(y + i, v_load(x + i));
        for (; i < n; i++) y[i] = x[i];
    } else if (t == T_F16) {
        const uint16_t *x = (const uint16_t *) row + at;
        for (; i + LANES <= n; i += LANES) v_store(y + i, v_load_half(x + i));
        for (; i < n; i++) y[i] = half_to_float(x[i]);
    } else {
        const uint16_t *x = (const uint16_t *) row + at;
        for (; i + LANES <= n; i += LANES) v_store(y + i, v_load_bf16(x + i));
        for (; i < n; i++) y[i] = bf16_to_float(x[i]);
    }
    for (; i < pad; i++) y[i] = 0;
}

/* A head's part of a slot is a few lines of memory with a stride that hardware does not foresee: the slot of the block after this one
 * is asked for now. A prefetch beyond the end is harmless. */
static void widen_slot(const Work *w, float *y, int32_t slot, bool keys)
{
    const AttendJob *j = w->job;
    size_t row = keys ? j->k_row : j->v_row;
    Type t = keys ? j->spec->k_type : j->spec->v_type;
    const uint8_t *at = (const uint8_t *) (keys ? j->layer->k : j->layer->v) + row * (size_t) slot;
    uintptr_t head = (uintptr_t) at + type_row_bytes(t, (int64_t) j->kv_head * j->spec->head_dim), bytes = type_row_bytes(t, j->spec->head_dim);
    for (uintptr_t line = 0; line < bytes; line += 64) __builtin_prefetch((const void *) (head + LANES * row + line));
    widen(y, t, at, j->kv_head * j->spec->head_dim, j->spec->head_dim, w->pad);
}

/* Where a shared position lies; -1: nowhere. */
static int32_t slot_of(const Work *w, int32_t pos)
{
    const StateLayer *l = w->job->layer;
    if (pos < w->shared0 || pos >= w->shared1) return -1;
    if (!l->ring) return pos;
    const Slice *s = w->job->slice;
    if (s->kind == SLICE_BLOCK && pos >= s->base) return l->ring + (pos - s->base);
    return l->slot_pos[pos % l->ring] == pos ? pos % l->ring : -1;
}

/* Widens the block's positions in [lo, hi) and returns one bit for each that was there. */
static uint32_t widen_block(const Work *w, int32_t pos0, int32_t lo, int32_t hi, bool keys)
{
    uint32_t there = 0;
    for (int32_t i = 0; i < LANES; i++) {
        int32_t slot = pos0 + i >= lo && pos0 + i < hi ? slot_of(w, pos0 + i) : -1;
        if (slot < 0) {
            memset(w->keys + i * w->pad, 0, sizeof(float) * (size_t) w->pad);
            continue;
        }
        there |= 1u << i;
        widen_slot(w, w->keys + i * w->pad, slot, keys);
    }
    return there;
}

/* Brings keys or values of a tree row's path into the lanes of their positions; one bit for each inside the row's window. */
static uint32_t gather_path(const Work *w, const float *from, int32_t row, int32_t pos0)
{
    int32_t base = w->job->slice->base, own = base + w->depth[row], window = w->job->spec->window;
    if (pos0 > own || pos0 + LANES <= base) return 0;
    uint32_t there = 0;
    for (int32_t i = 0; i < LANES; i++) {
        int32_t pos = pos0 + i;
        if (pos < base || pos > own || (window && own - pos >= window)) continue;
        memcpy(w->keys + i * w->pad, from + w->anc[row * ROWS_DECODE + pos - base] * w->pad, sizeof(float) * (size_t) w->pad);
        there |= 1u << i;
    }
    return there;
}

/* ---- scores ---- */

static V finish_scores(V s, const LayerSpec *spec)
{
    s = v_mul(s, v_set(spec->scale));
    if (spec->softcap > 0) s = v_mul(v_set(spec->softcap), v_tanh(v_div(s, v_set(spec->softcap))));
    return s;
}

static void block_scores(float s[LANES], const float *q, const float *keys, int32_t pad, const LayerSpec *spec)
{
    for (int32_t j = 0; j < LANES; j += SUMS) {
        V acc[SUMS];
        for (int32_t i = 0; i < SUMS; i++) acc[i] = v_set(0);
        for (int32_t c = 0; c < pad; c += LANES) {
            V qc = v_load(q + c);
            for (int32_t i = 0; i < SUMS; i++) acc[i] = v_fma(qc, v_load(keys + (j + i) * pad + c), acc[i]);
        }
        v_sums(s + j, acc);
    }
    v_store(s, finish_scores(v_load(s), spec));
}

/* Bits of the block's positions inside [lo, hi). */
static uint32_t range_bits(int32_t pos0, int32_t lo, int32_t hi)
{
    int32_t a = lo - pos0 < 0 ? 0 : lo - pos0, b = hi - pos0 > LANES ? LANES : hi - pos0;
    return a >= b ? 0 : ((1u << b) - 1) & ~((1u << a) - 1);
}

static void tile_scores(Work *w, int32_t tile0, int32_t b0, int32_t b1)
{
    const LayerSpec *spec = w->job->spec;
    for (int32_t b = b0; b < b1; b++) {
        int32_t pos0 = tile0 + b * LANES;
        uint32_t there = pos0 < w->shared1 ? widen_block(w, pos0, w->shared0, w->shared1, true) : 0;
        for (int32_t i = 0; i < w->n; i++) {
            uint32_t sees = there & range_bits(pos0, w->lo[i], w->hi[i]);
            w->seen[i * TILE_BLOCKS + b] = (uint16_t) sees;
            if (sees) block_scores(w->s + i * TILE + b * LANES, w->q + i * w->pad, w->keys, w->pad, spec);
        }
    }
    if (!w->tree) return;
    for (int32_t row = 0; row < w->job->n_rows; row++) {
        for (int32_t b = b0; b < b1; b++) {
            uint32_t there = gather_path(w, w->tree_k, row, tile0 + b * LANES);
            for (int32_t i = row * w->job->n_heads; there && i < (row + 1) * w->job->n_heads; i++) {
                float s[LANES];
                block_scores(s, w->q + i * w->pad, w->keys, w->pad, spec);
                float *to = w->s + i * TILE + b * LANES;
                v_store(to, v_pick(there, v_load(s), v_load(to)));
                w->seen[i * TILE_BLOCKS + b] |= (uint16_t) there;
            }
        }
    }
}

/* ---- weights ---- */

static float exp1(float x)
{
    float y;
    v_store_n(&y, v_exp(v_set(x)), 1);
    return y;
}

/* Scores become weights; o and l are brought to the new maximum. */
static void tile_weights(Work *w, int32_t i, int32_t b0, int32_t b1)
{
    float *s = w->s + i * TILE;
    uint16_t *seen = w->seen + i * TILE_BLOCKS;
    const V nothing = v_set(-INFINITY);
    V top = nothing;
    uint32_t any = 0;
    for (int32_t b = b0; b < b1; b++) {
        if (!seen[b]) continue;
        V x = v_pick(seen[b], v_load(s + b * LANES), nothing);
        v_store(s + b * LANES, x);
        seen[b] = (uint16_t) v_ne(x, nothing);
        any |= seen[b];
        top = v_max(top, x);
    }
    if (!any) return;
    float tile = v_top(top), m = w->m[i] > tile ? w->m[i] : tile, c = exp1(w->m[i] - m);
    V mv = v_set(m), sum = v_set(0);
    for (int32_t b = b0; b < b1; b++) {
        if (!seen[b]) continue;
        V p = v_pick(seen[b], v_exp(v_sub(v_load(s + b * LANES), mv)), v_set(0));
        v_store(s + b * LANES, p);
        sum = v_add(sum, p);
    }
    w->m[i] = m;
    w->l[i] = fmaf(w->l[i], c, v_sum(sum));
    float *o = w->o + i * w->pad;
    for (int32_t k = 0; k < w->pad; k += LANES) v_store(o + k, v_mul(v_load(o + k), v_set(c)));
}

/* ---- values ---- */

/* o += p[j] * v[j] for the set bits j ascending, four vectors of columns at a time. */
static void mix(float *o, const float *p, const float *v, int32_t pad, uint32_t bits)
{
    int32_t c = 0;
    for (; c + 4 * LANES <= pad; c += 4 * LANES) {
        V o0 = v_load(o + c), o1 = v_load(o + c + LANES), o2 = v_load(o + c + 2 * LANES), o3 = v_load(o + c + 3 * LANES);
        for (uint32_t rest = bits; rest; rest &= rest - 1) {
            int32_t j = __builtin_ctz(rest);
            const float *x = v + j * pad + c;
            V pj = v_set(p[j]);
            o0 = v_fma(pj, v_load(x), o0);
            o1 = v_fma(pj, v_load(x + LANES), o1);
            o2 = v_fma(pj, v_load(x + 2 * LANES), o2);
            o3 = v_fma(pj, v_load(x + 3 * LANES), o3);
        }
        v_store(o + c, o0);
        v_store(o + c + LANES, o1);
        v_store(o + c + 2 * LANES, o2);
        v_store(o + c + 3 * LANES, o3);
    }
    for (; c < pad; c += LANES) {
        V o0 = v_load(o + c);
        for (uint32_t rest = bits; rest; rest &= rest - 1) {
            int32_t j = __builtin_ctz(rest);
            o0 = v_fma(v_set(p[j]), v_load(v + j * pad + c), o0);
        }
        v_store(o + c, o0);
    }
}

static void tile_values(Work *w, int32_t tile0, int32_t b0, int32_t b1)
{
    for (int32_t b = b0; b < b1; b++) {
        int32_t pos0 = tile0 + b * LANES;
        if (pos0 >= w->shared1) break;
        uint32_t there = widen_block(w, pos0, w->shared0, w->shared1, false);
        for (int32_t i = 0; i < w->n; i++) {
            uint32_t bits = w->seen[i * TILE_BLOCKS + b] & there;
            if (bits) mix(w->o + i * w->pad, w->s + i * TILE + b * LANES, w->keys, w->pad, bits);
        }
    }
    if (!w->tree) return;
    /* Pending positions come after all shared ones. */
    for (int32_t row = 0; row < w->job->n_rows; row++) {
        for (int32_t b = b0; b < b1; b++) {
            uint32_t there = gather_path(w, w->tree_v, row, tile0 + b * LANES);
            for (int32_t i = row * w->job->n_heads; there && i < (row + 1) * w->job->n_heads; i++) {
                uint32_t bits = w->seen[i * TILE_BLOCKS + b] & there;
                mix(w->o + i * w->pad, w->s + i * TILE + b * LANES, w->keys, w->pad, bits);
            }
        }
    }
}

/* ---- splits ---- */

static void split_start(Work *w)
{
    memset(w->o, 0, sizeof(float) * (size_t) w->n * (size_t) w->pad);
    for (int32_t i = 0; i < w->n; i++) {
        w->m[i] = -INFINITY;
        w->l[i] = 0;
    }
}

static void split_merge(Work *w, int32_t i)
{
    if (w->m[i] == -INFINITY) return;              /* the query saw nothing in this split */
    float *o = w->o + i * w->pad, *O = w->O + i * w->pad;
    if (w->M[i] == -INFINITY) {
        memcpy(O, o, sizeof(float) * (size_t) w->pad);
        w->M[i] = w->m[i];
        w->L[i] = w->l[i];
        return;
    }
    float m = w->M[i] > w->m[i] ? w->M[i] : w->m[i];
    float C = exp1(w->M[i] - m), c = exp1(w->m[i] - m);
    for (int32_t k = 0; k < w->pad; k += LANES)
        v_store(O + k, v_fma(v_load(O + k), v_set(C), v_mul(v_load(o + k), v_set(c))));
    w->L[i] = fmaf(w->L[i], C, w->l[i] * c);
    w->M[i] = m;
}

/* ---- the job ---- */

static void prepare(Work *w)
{
    const AttendJob *j = w->job;
    const Slice *s = j->slice;
    const LayerSpec *spec = j->spec;
    size_t width = (size_t) spec->heads * (size_t) spec->head_dim;
    w->tree = s->kind == SLICE_TREE;
    w->shared0 = j->layer->ring && s->base > j->layer->ring ? s->base - j->layer->ring : 0;
    w->shared1 = w->tree ? s->base : s->base + s->n;
    for (int32_t r = 0; r < j->n_rows; r++) {
        int32_t row = j->row0 + r, depth = row;
        if (w->tree) {
            int32_t *path = w->anc + r * ROWS_DECODE, up = row, n = 0;
            for (; up >= 0 && n < ROWS_DECODE; up = j->parent[up]) path[n++] = up;
            for (int32_t a = 0, z = n - 1; a < z; a++, z--) {
                int32_t swap = path[a];
                path[a] = path[z];
                path[z] = swap;
            }
            w->depth[r] = depth = n - 1;
        }
        int32_t pos = s->base + depth;
        for (int32_t h = 0; h < j->n_heads; h++) {
            int32_t i = r * j->n_heads + h;
            float *q = w->q + i * w->pad;
            memcpy(q, j->q + (size_t) (s->row0 + row) * width + (size_t) (j->head0 + h) * (size_t) spec->head_dim, sizeof(float) * (size_t) spec->head_dim);
            for (int32_t c = spec->head_dim; c < w->pad; c++) q[c] = 0;
            w->own[i] = pos;
            w->lo[i] = spec->window && pos - spec->window >= 0 ? pos - spec->window + 1 : 0;
            w->hi[i] = w->tree ? s->base : s->kind == SLICE_BLOCK && !spec->causal ? s->base + s->n : pos + 1;
            w->M[i] = -INFINITY;
            w->L[i] = 0;
        }
    }
    if (!w->tree) return;
    int32_t slot0 = j->layer->ring ? j->layer->ring : s->base;
    for (int32_t row = 0; row < s->n; row++) {
        widen_slot(w, w->tree_k + row * w->pad, slot0 + row, true);
        widen_slot(w, w->tree_v + row * w->pad, slot0 + row, false);
    }
}

static void attend(const AttendJob *j, void *scratch)
{
    Work w = { .job = j };
    lay_out(&w, scratch, j->spec->head_dim, j->n_heads * j->n_rows);
    prepare(&w);
    int32_t lo = w.lo[0], end = w.tree ? 0 : w.hi[0];              /* positions that any query sees */
    for (int32_t i = 0; i < w.n; i++) {
        int32_t last = w.tree ? w.own[i] + 1 : w.hi[i];
        if (w.lo[i] < lo) lo = w.lo[i];
        if (last > end) end = last;
    }
    if (lo < w.shared0) lo = w.shared0;
    for (int32_t split = lo / SPLIT * SPLIT; split < end; split += SPLIT) {
        split_start(&w);
        for (int32_t tile = split > lo ? split : lo / TILE * TILE; tile < end && tile < split + SPLIT; tile += TILE) {
            int32_t b0 = lo > tile ? (lo - tile) / LANES : 0, b1 = end - tile < TILE ? (end - tile + LANES - 1) / LANES : TILE_BLOCKS;
            tile_scores(&w, tile, b0, b1);
            for (int32_t i = 0; i < w.n; i++) tile_weights(&w, i, b0, b1);
            tile_values(&w, tile, b0, b1);
        }
        for (int32_t i = 0; i < w.n; i++) split_merge(&w, i);
    }
    size_t width = (size_t) j->spec->heads * (size_t) j->spec->head_dim;
    for (int32_t i = 0; i < w.n; i++) {
        int32_t row = j->row0 + i / j->n_heads, head = j->head0 + i % j->n_heads, n = j->spec->head_dim;
        float *y = j->y + (size_t) (j->slice->row0 + row) * width + (size_t) head * (size_t) n;
        const float *O = w.O + i * w.pad;
        for (int32_t c = 0; c < n; c += LANES) v_store_to(y + c, v_div(v_load(O + c), v_set(w.L[i])), n - c);
    }
}

const AttendKernels LEVEL_NAME(attend) = { scratch_bytes, attend };
