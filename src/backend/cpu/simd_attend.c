/* simd_attend.c - attention of some rows and heads over one or more key/value heads.
 * Keys and values go through registers sixteen positions at a time, and each is widened from its stored type for four queries at once; a
 * block that many queries read is widened once into the first-level cache. Rows of a tree share the committed positions; what they do
 * not share, their own ancestors, is widened once for all and read at the lanes of its positions:
 *
 *     position   0 ............... base | base + depth
 *     slot       position, or ring      | base + row of the ancestor at that depth        (CHAIN and BLOCK: nothing beyond `shared`)
 */
#include <math.h>

#include "backend/cpu/kernels.h"
#include "backend/cpu/kv_load.h"
#include "backend/cpu/vmath.h"

enum { TILE_BLOCKS = TILE / LANES, MANY = 12 };    /* queries of a key/value head from which on widening into memory is worth it */

/* What a job keeps in its scratch; pad is head_dim rounded up to 32, the rest zeros. Queries are ordered by key/value head, row, head. */
typedef struct {
    const AttendJob *job;
    int32_t pad, n, n_each;                        /* n queries, n_each of them per key/value head */
    int32_t shared0, shared1;                      /* positions that lie where their number says, for all rows that see them */
    bool    tree;
    float  *q, *o, *O;                             /* [n, pad]; o of this split, O of those before it */
    float  *m, *l, *M, *L;                         /* [n]; l 0: nothing seen yet */
    int32_t *lo, *hi, *own;                        /* [rows of the job] shared positions that the row sees, and its own position */
    float  *s;                                     /* [n, TILE] scores, then weights */
    uint16_t *seen;                                /* [n, TILE_BLOCKS] one bit per position */
    float  *keys;                                  /* [LANES, pad] widened keys or values of a block */
    float  *tree_k, *tree_v;                       /* [kv heads of the job, rows of the slice, pad] */
    int32_t *anc;                                  /* [rows of the job, ROWS_DECODE] rows of the path by depth */
} Work;

static size_t round64(size_t n) { return (n + 63) & ~(size_t) 63; }

static void *take(uint8_t *base, size_t *at, size_t bytes)
{
    void *p = base ? base + *at : NULL;
    *at += round64(bytes);
    return p;
}

static int32_t pad_of(const LayerSpec *spec) { return (spec->head_dim + KV_COLS - 1) / KV_COLS * KV_COLS; }

/* Returns the length; with base NULL nothing but that. */
static size_t lay_out(Work *w, uint8_t *base, const AttendJob *j)
{
    size_t rows = (size_t) j->n_rows, n = (size_t) j->n_kv * (size_t) j->n_heads * rows, pad = (size_t) pad_of(j->spec), f = sizeof(float), at = 0;
    w->job = j;
    w->tree = j->slice->kind == SLICE_TREE;
    w->pad = (int32_t) pad;
    w->n = (int32_t) n;
    w->n_each = j->n_heads * j->n_rows;
    w->q = take(base, &at, n * pad * f);
    w->o = take(base, &at, n * pad * f);
    w->O = take(base, &at, n * pad * f);
    w->m = take(base, &at, n * f);
    w->l = take(base, &at, n * f);
    w->M = take(base, &at, n * f);
    w->L = take(base, &at, n * f);
    w->lo = take(base, &at, rows * f);
    w->hi = take(base, &at, rows * f);
    w->own = take(base, &at, rows * f);
    w->s = take(base, &at, n * TILE * f);
    w->seen = take(base, &at, n * TILE_BLOCKS * sizeof(uint16_t));
    w->keys = take(base, &at, LANES * pad * f);
    if (!w->tree) return at;
    w->tree_k = take(base, &at, (size_t) j->n_kv * (size_t) j->slice->n * pad * f);
    w->tree_v = take(base, &at, (size_t) j->n_kv * (size_t) j->slice->n * pad * f);
    w->anc = take(base, &at, rows * ROWS_DECODE * f);
    return at;
}

static size_t scratch_bytes(const AttendJob *j)
{
    Work w;
    return lay_out(&w, NULL, j);
}

static int32_t row_of(const Work *w, int32_t query) { return query % w->n_each / w->job->n_heads; }

/* ---- stored rows ---- */

#define INLINE static inline __attribute__((always_inline))

/* Arrays of vectors stay in registers only where every loop over them is unrolled. */
#define UNROLLED _Pragma("GCC unroll 16")

INLINE void widen_as(float *y, Type t, const uint8_t *head, int32_t n, int32_t pad)
{
    int32_t i = 0;
    for (; i + KV_COLS <= n; i += KV_COLS) {
        V x[2];
        kv_load(x, t, head, i);
        v_store(y + i, x[0]);
        v_store(y + i + LANES, x[1]);
    }
    for (; i < n; i++) {                           /* types without blocks only */
        uint16_t h = 0;
        if (t == T_F32) memcpy(&y[i], head + 4 * i, sizeof *y);
        else memcpy(&h, head + 2 * i, sizeof h);
        if (t == T_F16) y[i] = half_to_float(h);
        if (t == T_BF16) y[i] = bf16_to_float(h);
    }
    for (; i < pad; i++) y[i] = 0;
}

/* Calls f(..., t, ...) with the type as a constant. */
#define WITH_TYPE(t, call)                  \
    switch (t) {                            \
    case T_F32:  call(T_F32); break;        \
    case T_F16:  call(T_F16); break;        \
    case T_BF16: call(T_BF16); break;       \
    case T_Q8_0: call(T_Q8_0); break;       \
    case T_Q5_1: call(T_Q5_1); break;       \
    case T_Q5_0: call(T_Q5_0); break;       \
    case T_Q4_1: call(T_Q4_1); break;       \
    case T_Q4_0: call(T_Q4_0); break;       \
    default:     call(T_TQ3_0); break;      \
    }

/* y [pad] = a head's n stored values. */
static void widen(float *y, Type t, const uint8_t *head, int32_t n, int32_t pad)
{
#define CALL(type) widen_as(y, type, head, n, pad)
    WITH_TYPE(t, CALL)
#undef CALL
}

/* The heads of sixteen positions, wherever they lie, and how they are to be read. there: one bit for each that exists; the others point
 * at something that can be read. */
typedef struct { const uint8_t *at[LANES]; Type t; uint32_t there; size_t ahead; } Block;

/* A head's part of a slot is a few lines of memory with a stride that hardware does not foresee: what is read now is asked for in the
 * slot of the block after this one, line by line between the multiply-adds, since a burst of requests would stop them. A prefetch beyond
 * the end is harmless. */
INLINE void load_ahead(V y[2], const Block *b, int32_t j, Type t, int32_t c)
{
    __builtin_prefetch((const void *) ((uintptr_t) b->at[j] + b->ahead + (uintptr_t) (c / KV_COLS) * kv_bytes(t)));
    kv_load(y, t, b->at[j], c);
}

/* Where the values of a key/value head begin in a slot. */
static const uint8_t *head_at(const AttendJob *j, int32_t kv, int32_t slot, bool keys)
{
    Type t = keys ? j->spec->k_type : j->spec->v_type;
    const uint8_t *base = keys ? j->layer->k : j->layer->v;
    return base + (keys ? j->k_row : j->v_row) * (size_t) slot + type_row_bytes(t, (int64_t) (j->kv0 + kv) * j->spec->head_dim);
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

static void widen_block(Work *w, Block *b)
{
    for (int32_t i = 0; i < LANES; i++) {
        float *to = w->keys + i * w->pad;
        if (b->there >> i & 1) widen(to, b->t, b->at[i], w->job->spec->head_dim, w->pad);
        else memset(to, 0, sizeof(float) * (size_t) w->pad);
        b->at[i] = (const uint8_t *) to;
    }
    b->t = T_F32;
    b->ahead = 0;
}

/* The block's shared positions. */
static void shared_block(Work *w, Block *b, int32_t kv, int32_t pos0, bool keys)
{
    const AttendJob *j = w->job;
    const uint8_t *zero = head_at(j, kv, 0, keys);
    size_t row = keys ? j->k_row : j->v_row;
    b->t = keys ? j->spec->k_type : j->spec->v_type;
    b->there = 0;
    b->ahead = LANES * row;
    bool many = !KV_IN_REGISTERS || w->n_each >= MANY || j->spec->head_dim % KV_COLS;
    uintptr_t bytes = type_row_bytes(b->t, j->spec->head_dim);
    if (!j->layer->ring && pos0 >= w->shared0 && pos0 + LANES <= w->shared1) {
        for (int32_t i = 0; i < LANES; i++) b->at[i] = zero + row * (size_t) (pos0 + i);
        b->there = (1u << LANES) - 1;
    } else {
        for (int32_t i = 0; i < LANES; i++) {
            int32_t slot = slot_of(w, pos0 + i);
            b->at[i] = slot < 0 ? zero : zero + row * (size_t) slot;
            if (slot >= 0) b->there |= 1u << i;
        }
    }
    if (!many) return;
    for (uint32_t rest = b->there; rest; rest &= rest - 1) {
        uintptr_t next = (uintptr_t) b->at[__builtin_ctz(rest)] + b->ahead;
        for (uintptr_t line = next & ~(uintptr_t) 63; line < next + bytes; line += 64) __builtin_prefetch((const void *) line);
    }
    widen_block(w, b);
}

/* The positions of a tree row's own path that lie in the block, inside the row's window. */
static void path_block(const Work *w, Block *b, int32_t kv, int32_t row, int32_t pos0, bool keys)
{
    int32_t base = w->job->slice->base, own = w->own[row], window = w->job->spec->window;
    const float *from = (keys ? w->tree_k : w->tree_v) + (size_t) kv * (size_t) w->job->slice->n * (size_t) w->pad;
    b->t = T_F32;
    b->there = 0;
    b->ahead = 0;
    if (pos0 > own || pos0 + LANES <= base) return;
    for (int32_t i = 0; i < LANES; i++) {
        int32_t pos = pos0 + i;
        b->at[i] = (const uint8_t *) from;
        if (pos < base || pos > own || (window && own - pos >= window)) continue;
        b->at[i] = (const uint8_t *) (from + w->anc[row * ROWS_DECODE + pos - base] * w->pad);
        b->there |= 1u << i;
    }
}

/* ---- scores ---- */

/* As many queries at a time as the registers hold beside their sums: SUMS of them, for SUMS / nq positions (scores) or vectors of
 * columns (values). */
enum { QUERIES = SUMS / 4 < 2 ? 2 : SUMS / 4 };

/* s [nq, TILE] = q [nq, pad] . keys, not yet scaled. */
INLINE void scores_as(float *s, const float *q, const Block *b, Type t, int32_t pad, int nq)
{
    const int each = SUMS / nq;
    for (int32_t j = 0; j < LANES; j += each) {
        V acc[SUMS];
        float sum[SUMS];
        UNROLLED for (int i = 0; i < SUMS; i++) acc[i] = v_set(0);
        for (int32_t c = 0; c < pad; c += KV_COLS) {
            V left[QUERIES], right[QUERIES];
            UNROLLED for (int i = 0; i < nq; i++) left[i] = v_load(q + i * pad + c), right[i] = v_load(q + i * pad + c + LANES);
            UNROLLED for (int p = 0; p < each; p++) {
                V k[2];
                load_ahead(k, b, j + p, t, c);
                UNROLLED for (int i = 0; i < nq; i++) acc[i * each + p] = v_fma(left[i], k[0], acc[i * each + p]);
                UNROLLED for (int i = 0; i < nq; i++) acc[i * each + p] = v_fma(right[i], k[1], acc[i * each + p]);
            }
        }
        v_sums(sum, acc);
        for (int i = 0; i < nq; i++) memcpy(s + i * TILE + j, sum + i * each, sizeof(float) * (size_t) each);
    }
}

static void scores(float *s, const float *q, const Block *b, int32_t pad, int32_t nq)
{
#define CALL(type) if (nq == QUERIES) scores_as(s, q, b, type, pad, QUERIES); else if (nq == 2) scores_as(s, q, b, type, pad, 2); else scores_as(s, q, b, type, pad, 1)
    WITH_TYPE(KV_IN_REGISTERS ? b->t : T_F32, CALL)
#undef CALL
}

/* How many of n queries go together: QUERIES, 2 or 1. */
static int32_t together(int32_t n) { return n >= QUERIES ? QUERIES : n >= 2 ? 2 : 1; }

static V finish_scores(V s, const LayerSpec *spec)
{
    s = v_mul(s, v_set(spec->scale));
    if (spec->softcap > 0) s = v_mul(v_set(spec->softcap), v_tanh(v_div(s, v_set(spec->softcap))));
    return s;
}

/* Bits of the block's positions inside [lo, hi). */
static uint32_t range_bits(int32_t pos0, int32_t lo, int32_t hi)
{
    int32_t a = lo - pos0 < 0 ? 0 : lo - pos0, b = hi - pos0 > LANES ? LANES : hi - pos0;
    return a >= b ? 0 : ((1u << b) - 1) & ~((1u << a) - 1);
}

/* Scores of queries [i0, i1) in block b, finished. */
static void block_scores(Work *w, const Block *block, int32_t b, int32_t i0, int32_t i1)
{
    for (int32_t i = i0, nq; i < i1; i += nq) {
        nq = together(i1 - i);
        float *s = w->s + i * TILE + b * LANES;
        scores(s, w->q + i * w->pad, block, w->pad, nq);
        for (int32_t k = 0; k < nq; k++) v_store(s + k * TILE, finish_scores(v_load(s + k * TILE), w->job->spec));
    }
}

static void tile_scores(Work *w, int32_t tile0, int32_t b0, int32_t b1)
{
    const AttendJob *j = w->job;
    Block block;
    for (int32_t b = b0; b < b1; b++) {
        int32_t pos0 = tile0 + b * LANES;
        for (int32_t kv = 0; kv < j->n_kv; kv++) {
            int32_t i0 = kv * w->n_each, i1 = i0 + w->n_each;
            block.there = 0;
            if (pos0 < w->shared1) shared_block(w, &block, kv, pos0, true);
            /* Rows are in the order of their positions in a chain, so those that see nothing of the block are at the ends. */
            int32_t first = i1, last = i0;
            for (int32_t i = i0; i < i1; i++) {
                int32_t row = row_of(w, i);
                uint32_t sees = block.there & range_bits(pos0, w->lo[row], w->hi[row]);
                w->seen[i * TILE_BLOCKS + b] = (uint16_t) sees;
                if (!sees) continue;
                if (i < first) first = i;
                last = i + 1;
            }
            if (first < last) block_scores(w, &block, b, first, last);
        }
    }
    if (!w->tree) return;
    for (int32_t kv = 0; kv < j->n_kv; kv++)
        for (int32_t row = 0; row < j->n_rows; row++)
            for (int32_t b = b0; b < b1; b++) {
                path_block(w, &block, kv, row, tile0 + b * LANES, true);
                for (int32_t i = kv * w->n_each + row * j->n_heads, end = i + j->n_heads; block.there && i < end; i++) {
                    float s[LANES], *to = w->s + i * TILE + b * LANES;
                    scores(s, w->q + i * w->pad, &block, w->pad, 1);
                    v_store(to, v_pick(block.there, finish_scores(v_load(s), j->spec), v_load(to)));
                    w->seen[i * TILE_BLOCKS + b] |= (uint16_t) block.there;
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

/* o [nq, pad] += p [nq, TILE] of the set bits' positions, ascending, times their values; columns [c, c + 16 * vecs). */
INLINE void mix_columns(float *o, const float *p, const Block *b, Type t, int32_t pad, uint32_t bits, int32_t c, int nq, int vecs)
{
    V acc[SUMS];
    UNROLLED for (int i = 0; i < nq; i++)
        UNROLLED for (int k = 0; k < vecs; k++) acc[i * vecs + k] = v_load(o + i * pad + c + k * LANES);
    for (uint32_t rest = bits; rest; rest &= rest - 1) {
        int32_t j = __builtin_ctz(rest);
        V v[SUMS];
        UNROLLED for (int k = 0; k < vecs; k += 2) load_ahead(v + k, b, j, t, c + k * LANES);
        UNROLLED for (int i = 0; i < nq; i++) {
            V pj = v_set(p[i * TILE + j]);
            UNROLLED for (int k = 0; k < vecs; k++) acc[i * vecs + k] = v_fma(pj, v[k], acc[i * vecs + k]);
        }
    }
    UNROLLED for (int i = 0; i < nq; i++)
        UNROLLED for (int k = 0; k < vecs; k++) v_store(o + i * pad + c + k * LANES, acc[i * vecs + k]);
}

INLINE void mix_as(float *o, const float *p, const Block *b, Type t, int32_t pad, uint32_t bits, int nq)
{
    const int vecs = SUMS / nq < 8 ? SUMS / nq : 8;
    int32_t c = 0;
    for (; c + vecs * LANES <= pad; c += vecs * LANES) mix_columns(o, p, b, t, pad, bits, c, nq, vecs);
    for (; c < pad; c += KV_COLS) mix_columns(o, p, b, t, pad, bits, c, nq, 2);
}

static void mix(float *o, const float *p, const Block *b, int32_t pad, uint32_t bits, int32_t nq)
{
#define CALL(type) if (nq == QUERIES) mix_as(o, p, b, type, pad, bits, QUERIES); else if (nq == 2) mix_as(o, p, b, type, pad, bits, 2); else mix_as(o, p, b, type, pad, bits, 1)
    WITH_TYPE(KV_IN_REGISTERS ? b->t : T_F32, CALL)
#undef CALL
}

static void tile_values(Work *w, int32_t tile0, int32_t b0, int32_t b1)
{
    const AttendJob *j = w->job;
    Block block;
    for (int32_t b = b0; b < b1; b++) {
        int32_t pos0 = tile0 + b * LANES;
        if (pos0 >= w->shared1) break;
        for (int32_t kv = 0; kv < j->n_kv; kv++) {
            shared_block(w, &block, kv, pos0, false);
            for (int32_t i = kv * w->n_each, end = i + w->n_each, nq; i < end; i += nq) {
                uint32_t bits = w->seen[i * TILE_BLOCKS + b] & block.there;
                nq = together(end - i);
                for (int32_t k = 1; k < nq; k++)   /* together only where they see the same */
                    if ((w->seen[(i + k) * TILE_BLOCKS + b] & block.there) != bits) nq = k >= 2 ? 2 : 1;
                if (bits) mix(w->o + i * w->pad, w->s + i * TILE + b * LANES, &block, w->pad, bits, nq);
            }
        }
    }
    if (!w->tree) return;
    /* Pending positions come after all shared ones. */
    for (int32_t kv = 0; kv < j->n_kv; kv++)
        for (int32_t row = 0; row < j->n_rows; row++)
            for (int32_t b = b0; b < b1; b++) {
                path_block(w, &block, kv, row, tile0 + b * LANES, false);
                for (int32_t i = kv * w->n_each + row * j->n_heads, end = i + j->n_heads; block.there && i < end; i++) {
                    uint32_t bits = w->seen[i * TILE_BLOCKS + b] & block.there;
                    mix(w->o + i * w->pad, w->s + i * TILE + b * LANES, &block, w->pad, bits, 1);
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

static void merge_start(Work *w)
{
    for (int32_t i = 0; i < w->n; i++) {
        w->M[i] = -INFINITY;
        w->L[i] = 0;
    }
}

/* (o, m, l) of the next split into (O, M, L) of query i. */
static void split_merge(Work *w, int32_t i, const float *o, float om, float ol)
{
    if (om == -INFINITY) return;                   /* the query saw nothing in this split */
    float *O = w->O + i * w->pad;
    if (w->M[i] == -INFINITY) {
        memcpy(O, o, sizeof(float) * (size_t) w->pad);
        w->M[i] = om;
        w->L[i] = ol;
        return;
    }
    float m = w->M[i] > om ? w->M[i] : om;
    float C = exp1(w->M[i] - m), c = exp1(om - m);
    for (int32_t k = 0; k < w->pad; k += LANES)
        v_store(O + k, v_fma(v_load(O + k), v_set(C), v_mul(v_load(o + k), v_set(c))));
    w->L[i] = fmaf(w->L[i], C, ol * c);
    w->M[i] = m;
}

/* Results, turned back if the values were turned. */
static void write_rows(const Work *w)
{
    const AttendJob *j = w->job;
    int32_t n = j->spec->head_dim, group = j->spec->heads / j->spec->kv_heads;
    size_t width = (size_t) j->spec->heads * (size_t) n;
    for (int32_t i = 0; i < w->n; i++) {
        int32_t row = j->row0 + row_of(w, i), head = (j->kv0 + i / w->n_each) * group + j->head0 + i % j->n_heads;
        float *y = j->y + (size_t) (j->slice->row0 + row) * width + (size_t) head * (size_t) n;
        const float *O = w->O + i * w->pad;
        for (int32_t c = 0; c < n; c += LANES) v_store_to(y + c, v_div(v_load(O + c), v_set(w->L[i])), n - c);
        if (kv_turned(j->spec->v_type)) quant_unrotate(y, n);
    }
}

/* ---- the job ---- */

static void find_path(Work *w, int32_t r)
{
    const AttendJob *j = w->job;
    int32_t *path = w->anc + r * ROWS_DECODE, n = 0;
    for (int32_t up = j->row0 + r; up >= 0 && n < ROWS_DECODE; up = j->parent[up]) path[n++] = up;
    for (int32_t a = 0, z = n - 1; a < z; a++, z--) {
        int32_t swap = path[a];
        path[a] = path[z];
        path[z] = swap;
    }
    w->own[r] = j->slice->base + n - 1;
}

static void prepare(Work *w)
{
    const AttendJob *j = w->job;
    const Slice *s = j->slice;
    const LayerSpec *spec = j->spec;
    int32_t group = spec->heads / spec->kv_heads;
    size_t width = (size_t) spec->heads * (size_t) spec->head_dim;
    w->shared0 = j->layer->ring && s->base > j->layer->ring ? s->base - j->layer->ring : 0;
    w->shared1 = w->tree ? s->base : s->base + s->n;
    for (int32_t r = 0; r < j->n_rows; r++) {
        w->own[r] = s->base + j->row0 + r;
        if (w->tree) find_path(w, r);
        int32_t pos = w->own[r];
        w->lo[r] = spec->window && pos - spec->window >= 0 ? pos - spec->window + 1 : 0;
        w->hi[r] = w->tree ? s->base : s->kind == SLICE_BLOCK && !spec->causal ? s->base + s->n : pos + 1;
    }
    for (int32_t i = 0; i < w->n; i++) {
        int32_t row = j->row0 + row_of(w, i), head = (j->kv0 + i / w->n_each) * group + j->head0 + i % j->n_heads;
        float *q = w->q + i * w->pad;
        memcpy(q, j->q + (size_t) (s->row0 + row) * width + (size_t) head * (size_t) spec->head_dim, sizeof(float) * (size_t) spec->head_dim);
        for (int32_t c = spec->head_dim; c < w->pad; c++) q[c] = 0;
        if (kv_turned(spec->k_type)) quant_rotate(q, spec->head_dim);
    }
    if (!w->tree) return;
    int32_t slot0 = j->layer->ring ? j->layer->ring : s->base;
    for (int32_t kv = 0; kv < j->n_kv; kv++)
        for (int32_t row = 0; row < s->n; row++) {
            size_t at = ((size_t) kv * (size_t) s->n + (size_t) row) * (size_t) w->pad;
            widen(w->tree_k + at, spec->k_type, head_at(j, kv, slot0 + row, true), spec->head_dim, w->pad);
            widen(w->tree_v + at, spec->v_type, head_at(j, kv, slot0 + row, false), spec->head_dim, w->pad);
        }
}

/* The positions that any row of the job sees. */
static void span_of(int32_t *lo, int32_t *end, const Work *w)
{
    *lo = w->lo[0];
    *end = 0;
    for (int32_t r = 0; r < w->job->n_rows; r++) {
        int32_t last = w->tree ? w->own[r] + 1 : w->hi[r];
        if (w->lo[r] < *lo) *lo = w->lo[r];
        if (last > *end) *end = last;
    }
    if (*lo < w->shared0) *lo = w->shared0;
}

static void one_split(Work *w, int32_t split, int32_t lo, int32_t end)
{
    split_start(w);
    for (int32_t tile = split > lo ? split : lo / TILE * TILE; tile < end && tile < split + SPLIT; tile += TILE) {
        int32_t b0 = lo > tile ? (lo - tile) / LANES : 0, b1 = end - tile < TILE ? (end - tile + LANES - 1) / LANES : TILE_BLOCKS;
        tile_scores(w, tile, b0, b1);
        for (int32_t i = 0; i < w->n; i++) tile_weights(w, i, b0, b1);
        tile_values(w, tile, b0, b1);
    }
}

static void attend(const AttendJob *j, void *scratch)
{
    Work w;
    int32_t lo, end;
    lay_out(&w, scratch, j);
    prepare(&w);
    merge_start(&w);
    span_of(&lo, &end, &w);
    for (int32_t split = lo / SPLIT * SPLIT; split < end; split += SPLIT) {
        one_split(&w, split, lo, end);
        for (int32_t i = 0; i < w.n; i++) split_merge(&w, i, w.o + i * w.pad, w.m[i], w.l[i]);
    }
    write_rows(&w);
}

static size_t part_bytes(const AttendJob *j)
{
    return sizeof(float) * (size_t) j->n_kv * (size_t) j->n_heads * (size_t) j->n_rows * (size_t) (pad_of(j->spec) + 2);
}

static void attend_part(const AttendJob *j, int32_t split, float *part, void *scratch)
{
    Work w;
    int32_t lo, end;
    lay_out(&w, scratch, j);
    prepare(&w);
    span_of(&lo, &end, &w);
    w.o = part;
    w.m = part + (size_t) w.n * (size_t) w.pad;
    w.l = w.m + w.n;
    if (split * SPLIT > lo) lo = split * SPLIT;
    if (end > split * SPLIT + SPLIT) end = split * SPLIT + SPLIT;
    one_split(&w, split * SPLIT, lo, end);
}

static void attend_merge(const AttendJob *j, float *const *part, int32_t n, void *scratch)
{
    Work w;
    lay_out(&w, scratch, j);
    merge_start(&w);
    for (int32_t p = 0; p < n; p++) {
        const float *m = part[p] + (size_t) w.n * (size_t) w.pad, *l = m + w.n;
        for (int32_t i = 0; i < w.n; i++) split_merge(&w, i, part[p] + (size_t) i * (size_t) w.pad, m[i], l[i]);
    }
    write_rows(&w);
}

const AttendKernels LEVEL_NAME(attend) = { scratch_bytes, attend, part_bytes, attend_part, attend_merge };
