/* simd_attend.c - attention of some rows and heads over one or more key/value heads.
 * Keys and values go through registers sixteen positions at a time, each widened from its stored type for four queries
 * at once; a block that many queries read is widened once, into the first-level cache. Keys and values with integer
 * codes are not widened: kv_scores.h and kv_values.h multiply their codes, panel by panel (kv_panels.h). Rows of a tree
 * share the committed positions but not their own ancestors. For these, the scores of all pending rows are computed
 * together and moved to the lanes of their positions, and values that need widening are widened once for all rows:
 *
 *     position   0 ............... base | base + depth
 *     slot       position, or ring | base + row of the ancestor at that depth (modulo wrap in a layer that wraps)
 *                (CHAIN and BLOCK: nothing beyond `shared`) */
#include <math.h>

#include "backend/cpu/kernels.h"
#include "backend/cpu/kv_load.h"
#include "backend/cpu/kv_scores.h"
#include "backend/cpu/kv_values.h"
#include "backend/cpu/vmath.h"

/* MANY: the number of queries per key/value head from which widening into memory pays. */
enum { TILE_BLOCKS = TILE / LANES, GROUP_BLOCKS = VALUE_GROUP / LANES, MANY = 12,
       TREE_SLOTS = ROWS_DECODE + KEY_PANEL };

/* What a job keeps in its scratch; k_pad and v_pad are the widths of keys and values rounded up to 32 and padded with
 * zeros. Queries are ordered by key/value head, row, head. */
typedef struct {
    const AttendJob *job;
    int32_t k_pad, v_pad;
    int32_t n, n_each;              /* n queries, n_each of them per key/value head */
    int32_t shared0, shared1;       /* positions whose slot follows from the position alone, for all rows that see
                                     * them */
    bool    tree;
    float  *o, *O;                  /* [n, v_pad]; o: of this split, O: of the splits before it */
    bool    ints;                   /* the keys have integer codes; then: */
    IntQueries iq;
    PanelHead panel;                /* of a head's keys */
    size_t  iq_bytes;               /* including the padding between its arrays */
    float  *q;                      /* [n, k_pad], for keys without integer codes */
    float  *m, *l, *M, *L;          /* [n]; l 0: nothing seen yet */
    int32_t *lo, *hi, *own;         /* [rows of the job] shared positions that the row sees, and its own position */
    float  *s;                      /* [n, TILE] scores, then weights */
    uint16_t *seen;                 /* [n, TILE_BLOCKS] one bit per position */
    float  *keys;                   /* [LANES, the larger pad] widened keys or values of a block, or unpacked codes */
    float  *tree_s;                 /* [n, TREE_SLOTS] scores of the slots from tree0 on, not yet scaled: pending rows,
                                     * perhaps others before them */
    int32_t tree0;
    IntValues *values;              /* NULL: the values have no integer codes */
    Prefetch prefetch;
    float  *by_lane;                /* [n, ALL_LANES] weights of a group of positions with pending rows (kv_values.h) */
    const float *weights;           /* the group's weights, `step` apart from query to query */
    int32_t step;
    bool   *any;                    /* [n] the query sees something of the group */
    float  *tree_v;                 /* [kv heads of the job, rows of the slice, v_pad], for values without integer
                                     * codes */
    int32_t *anc;                   /* [rows of the job, ROWS_DECODE] rows of the path, by depth */
} AttendWork;

static size_t round64(size_t n) { return (n + 63) & ~(size_t) 63; }

static void *take(uint8_t *base, size_t *at, size_t bytes)
{
    void *p = base ? base + *at : NULL;
    *at += round64(bytes);
    return p;
}

static int32_t padded(int32_t width) { return (width + KV_COLS - 1) / KV_COLS * KV_COLS; }

/* Returns the length; with base NULL it does nothing else. */
static size_t lay_out(AttendWork *w, uint8_t *base, const AttendJob *j)
{
    size_t rows = (size_t) j->n_rows, n = (size_t) j->n_kv * (size_t) j->n_heads * rows, f = sizeof(float), at = 0;
    w->job = j;
    w->tree = j->slice->kind == SLICE_TREE;
    w->k_pad = padded(j->spec->head_dim);
    w->v_pad = padded(value_dim(j->spec));
    const size_t k_pad = (size_t) w->k_pad, v_pad = (size_t) w->v_pad;
    w->n = (int32_t) n;
    w->n_each = j->n_heads * j->n_rows;
    w->ints = codes_are_integers(j->spec->k_type);
    if (w->ints) {
        int32_t together = together_of(w->n_each);
        w->iq.blocks = w->k_pad / CODE_COLS;
        w->panel = panel_head(j->spec->k_type, KEY_PANEL, w->iq.blocks);
        w->iq.each = (w->n_each + together - 1) / together * together;
        size_t blocks = (size_t) j->n_kv * (size_t) w->iq.blocks * (size_t) w->iq.each;
        w->iq.scale = take(base, &at, blocks * f);
        w->iq.sum = take(base, &at, blocks * f);
        w->iq.code = take(base, &at, blocks * QUERY_ROOM);
        w->iq_bytes = at;
    } else {
        w->q = take(base, &at, n * k_pad * f);
    }
    w->o = take(base, &at, n * v_pad * f);
    w->O = take(base, &at, n * v_pad * f);
    w->m = take(base, &at, n * f);
    w->l = take(base, &at, n * f);
    w->M = take(base, &at, n * f);
    w->L = take(base, &at, n * f);
    w->lo = take(base, &at, rows * f);
    w->hi = take(base, &at, rows * f);
    w->own = take(base, &at, rows * f);
    w->s = take(base, &at, n * TILE * f);
    w->seen = take(base, &at, n * TILE_BLOCKS * sizeof(uint16_t));
    w->keys = take(base, &at, LANES * (k_pad > v_pad ? k_pad : v_pad) * f);
    const bool integers = codes_are_integers(j->spec->v_type);
    w->values = NULL;
    if (integers) {
        w->values = take(base, &at, sizeof(IntValues));
        w->any = take(base, &at, n * sizeof(bool));
    }
    if (!w->tree) return at;
    w->tree_s = take(base, &at, n * TREE_SLOTS * f);
    if (integers) w->by_lane = take(base, &at, n * ALL_LANES * f);
    else w->tree_v = take(base, &at, (size_t) j->n_kv * (size_t) j->slice->n * v_pad * f);
    w->anc = take(base, &at, rows * ROWS_DECODE * f);
    return at;
}

static size_t scratch_bytes(const AttendJob *j)
{
    AttendWork w;
    return lay_out(&w, NULL, j);
}

static int32_t row_of(const AttendWork *w, int32_t query) { return query % w->n_each / w->job->n_heads; }

/* ---- stored rows ---- */

INLINE void widen_as(float *y, Type t, const uint8_t *head, int32_t n, int32_t pad)
{
    int32_t i = 0;
    for (; i + KV_COLS <= n; i += KV_COLS) {
        V x[2];
        kv_load(x, t, head, i);
        v_store(y + i, x[0]);
        v_store(y + i + LANES, x[1]);
    }
    for (; i < n; i++) {                           /* only for types without blocks */
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
    default:     call(T_TQ3_0); break;      \
    }

/* y [pad] = the n stored values of a head. */
static void widen(float *y, Type t, const uint8_t *head, int32_t n, int32_t pad)
{
#define CALL(type) widen_as(y, type, head, n, pad)
    WITH_TYPE(t, CALL)
#undef CALL
}

/* The heads of sixteen positions, wherever they are, and how to read them. there: one bit for each position that
 * exists; the other pointers are readable addresses. */
typedef struct { const uint8_t *at[LANES]; Type t; int32_t width; uint32_t there; size_t ahead; } Block;

/* A head's part of a slot is a few lines of memory, with a stride that hardware prefetchers do not foresee. Each load
 * prefetches the same part of the slot one block further on, line by line between the multiply-adds, since a burst of
 * requests would stall them. A prefetch beyond the end is harmless. */
INLINE void load_ahead(V y[2], const Block *b, int32_t j, Type t, int32_t c)
{
    __builtin_prefetch((const void *) ((uintptr_t) b->at[j] + b->ahead + (uintptr_t) (c / KV_COLS) * kv_bytes(t)));
    kv_load(y, t, b->at[j], c);
}

/* Where the keys or values of a key/value head begin in a slot, or in the panel of that slot. Slots are named by
 * position: in a layer that wraps, panels are whole and sixteen aligned positions are adjacent; others may not be. */
static const uint8_t *head_at(const AttendJob *j, int32_t kv, int32_t slot, bool keys)
{
    const uint8_t *base = keys ? j->layer->k : j->layer->v;
    if (j->layer->wrap) slot %= j->layer->wrap;
    return base + panel_offset(keys ? j->k_row : j->v_row, j->spec->kv_heads,
                               kv_panel(keys ? j->spec->k_type : j->spec->v_type, keys), slot, j->kv0 + kv);
}

/* The slot of a tree's first pending row. */
static int32_t pending_slot(const AttendJob *j) { return j->layer->ring ? j->layer->ring : j->slice->base; }

/* The slot of a shared position; -1: none. */
static int32_t slot_of(const AttendWork *w, int32_t pos)
{
    const StateLayer *l = w->job->layer;
    if (pos < w->shared0 || pos >= w->shared1) return -1;
    if (!l->ring) return l->wrap ? pos % l->wrap : pos;
    const Slice *s = w->job->slice;
    if (s->kind == SLICE_BLOCK && pos >= s->base) return l->ring + (pos - s->base);
    return l->slot_pos[pos % l->ring] == pos ? pos % l->ring : -1;
}

/* Brings a block into the form in which floats are read. */
static void widen_block(AttendWork *w, Block *b)
{
    const int32_t n = b->width, pad = padded(n);
    if (KV_IN_REGISTERS && w->n_each < MANY && n % KV_COLS == 0) return;
    uintptr_t bytes = type_row_bytes(b->t, n);
    for (uint32_t rest = b->there; rest; rest &= rest - 1) {
        uintptr_t next = (uintptr_t) b->at[__builtin_ctz(rest)] + b->ahead;
        for (uintptr_t line = next & ~(uintptr_t) 63; line < next + bytes; line += 64)
            __builtin_prefetch((const void *) line);
    }
    for (int32_t i = 0; i < LANES; i++) {
        float *to = w->keys + i * pad;
        if (b->there >> i & 1) widen(to, b->t, b->at[i], n, pad);
        else memset(to, 0, sizeof(float) * (size_t) pad);
        b->at[i] = (const uint8_t *) to;
    }
    b->t = T_F32;
    b->ahead = 0;
}

/* Sets b to n adjacent slots, the first at `first`; the remaining pointers up to sixteen point there too. */
static void slots_block(const AttendWork *w, Block *b, const uint8_t *first, int32_t n, bool keys)
{
    const AttendJob *j = w->job;
    size_t row = keys ? j->k_row : j->v_row;
    b->t = keys ? j->spec->k_type : j->spec->v_type;
    b->width = keys ? j->spec->head_dim : value_dim(j->spec);
    b->there = (1u << n) - 1;
    b->ahead = LANES * row;
    for (int32_t i = 0; i < LANES; i++) b->at[i] = first + (i < n ? row * (size_t) i : 0);
}

/* Sets b to the block's shared positions. */
static void shared_block(const AttendWork *w, Block *b, int32_t kv, int32_t pos0, bool keys)
{
    const AttendJob *j = w->job;
    if (!j->layer->ring && pos0 >= w->shared0 && pos0 + LANES <= w->shared1) {
        slots_block(w, b, head_at(j, kv, pos0, keys), LANES, keys);
        return;
    }
    const uint8_t *zero = head_at(j, kv, 0, keys);
    slots_block(w, b, zero, 0, keys);
    for (int32_t i = 0; i < LANES; i++) {
        int32_t slot = slot_of(w, pos0 + i);
        if (slot < 0) continue;
        b->at[i] = zero + (keys ? j->k_row : j->v_row) * (size_t) slot;
        b->there |= 1u << i;
    }
}

/* Bits of the block's positions inside [lo, hi). */
static uint32_t range_bits(int32_t pos0, int32_t lo, int32_t hi)
{
    int32_t a = lo - pos0 < 0 ? 0 : lo - pos0, b = hi - pos0 > LANES ? LANES : hi - pos0;
    return a >= b ? 0 : ((1u << b) - 1) & ~((1u << a) - 1);
}

/* Bits of the block's positions that are on a tree row's own path and inside the row's window. */
static uint32_t path_bits(const AttendWork *w, int32_t row, int32_t pos0)
{
    int32_t base = w->job->slice->base, own = w->own[row], window = w->job->spec->window;
    int32_t first = window && own - window >= base ? own - window + 1 : base;
    return range_bits(pos0, first, own + 1);
}

/* The row of the slice that is at position pos of a row's path. */
static int32_t path_row(const AttendWork *w, int32_t row, int32_t pos)
{
    return w->anc[row * ROWS_DECODE + pos - w->job->slice->base];
}

/* The widened values of the positions in path_bits. */
static void path_block(const AttendWork *w, Block *b, int32_t kv, int32_t row, int32_t pos0)
{
    const float *from = w->tree_v + (size_t) kv * (size_t) w->job->slice->n * (size_t) w->v_pad;
    b->t = T_F32;
    b->width = value_dim(w->job->spec);
    b->there = path_bits(w, row, pos0);
    b->ahead = 0;
    for (int32_t i = 0; i < LANES; i++)
        b->at[i] = (const uint8_t *) (from + (b->there >> i & 1 ? path_row(w, row, pos0 + i) * w->v_pad : 0));
}

/* ---- scores ---- */

/* As many queries at a time as there are registers for their sums: SUMS sums, for SUMS / nq positions (scores) or
 * vectors of columns (values). */
enum { QUERIES = SUMS / 4 < 2 ? 2 : SUMS / 4 };

/* s [nq, stride] = q [nq, pad] . keys, not yet scaled. */
INLINE void scores_as(float *s, size_t stride, const float *q, const Block *b, Type t, int32_t pad, int nq)
{
    const int each = SUMS / nq;
    for (int32_t j = 0; j < LANES; j += each) {
        V acc[SUMS];
        float sum[SUMS];
        UNROLLED for (int i = 0; i < SUMS; i++) acc[i] = v_set(0);
        for (int32_t c = 0; c < pad; c += KV_COLS) {
            V left[QUERIES], right[QUERIES];
            UNROLLED for (int i = 0; i < nq; i++) left[i] = v_load(q + i * pad + c),
                right[i] = v_load(q + i * pad + c + LANES);
            UNROLLED for (int p = 0; p < each; p++) {
                V k[2];
                load_ahead(k, b, j + p, t, c);
                UNROLLED for (int i = 0; i < nq; i++) acc[i * each + p] = v_fma(left[i], k[0], acc[i * each + p]);
                UNROLLED for (int i = 0; i < nq; i++) acc[i * each + p] = v_fma(right[i], k[1], acc[i * each + p]);
            }
        }
        v_sums(sum, acc);
        for (int i = 0; i < nq; i++) memcpy(s + (size_t) i * stride + j, sum + i * each, sizeof(float) * (size_t) each);
    }
}

static void scores(float *s, size_t stride, const float *q, const Block *b, int32_t pad, int32_t nq)
{
#define CALL(type)                                              \
    if (nq == QUERIES)                                          \
        scores_as(s, stride, q, b, type, pad, QUERIES);         \
    else if (nq == 2) scores_as(s, stride, q, b, type, pad, 2); \
    else scores_as(s, stride, q, b, type, pad, 1)
    WITH_TYPE(KV_IN_REGISTERS ? b->t : T_F32, CALL)
#undef CALL
}

/* How many of n queries are processed together: QUERIES, 2 or 1. */
static int32_t together(int32_t n) { return n >= QUERIES ? QUERIES : n >= 2 ? 2 : 1; }

static V finish_scores(V s, const LayerSpec *spec)
{
    s = v_mul(s, v_set(spec->scale));
    if (spec->softcap > 0) s = v_mul(v_set(spec->softcap), v_tanh(v_div(s, v_set(spec->softcap))));
    return s;
}

/* A job with all heads of a slot reads memory as one stream, keys and values of a tile alternating; in other jobs each
 * panel prefetches the next. */
static bool in_one_stream(const AttendJob *j) { return j->n_kv == j->spec->kv_heads; }

/* Sets up the prefetch during work on the group of positions at pos0: what follows in the stream; at the end of a
 * split, the start of the split that this thread will probably have next. */
static void prefetch_find(AttendWork *w, int32_t pos0, bool keys)
{
    const AttendJob *j = w->job;
    const bool same = (pos0 + VALUE_GROUP) % TILE != 0;
    int64_t pos = !same && keys ? pos0 + VALUE_GROUP - TILE : pos0 + VALUE_GROUP;
    if (!keys && pos % SPLIT == 0) pos += (int64_t) (j->ahead - 1) * SPLIT;
    w->prefetch = (Prefetch) { 0 };
    if (!in_one_stream(j) || pos + VALUE_GROUP > w->shared1 ||
        !codes_are_integers(same == keys ? j->spec->k_type : j->spec->v_type))
        return;
    w->prefetch.at = head_at(j, 0, (int32_t) pos, same == keys);
    w->prefetch.half = VALUE_GROUP / 2 * (same == keys ? j->k_row : j->v_row);
    const int32_t by_head = j->n_kv * ((keys ? w->k_pad : w->v_pad) / CODE_COLS);
    w->prefetch.pace = w->prefetch.half /
                       (size_t) (keys ? by_head * (VALUE_GROUP / KEY_PANEL) + (same ? 0 : w->n * TILE_BLOCKS)
                                      : by_head);
}

/* s [query, stride] = scores of queries [i0, i1) of a key/value head with the panel of slot `slot`, not yet scaled. */
static void panel_scores(AttendWork *w, float *s, size_t stride, int32_t slot, int32_t kv, int32_t i0, int32_t i1)
{
    const AttendJob *j = w->job;
    IntKeys keys;
    const int32_t first = kv * w->n_each;
    const uint8_t *head = head_at(j, kv, slot, true);
    get_keys(&keys, (uint8_t *) w->keys, head, &w->panel, j->spec->k_type, w->iq.blocks);
    keys.prefetch = &w->prefetch;
    keys.next = head + (in_one_stream(j) ? w->panel.bytes : KEY_PANEL * j->k_row);
    keys.next_bytes = w->panel.bytes;
    int_scores(s + (size_t) first * stride, stride, &keys, &w->iq, kv, i0 - first, i1 - first);
}

static void block_scores(AttendWork *w, float *s, size_t stride, Block *b, int32_t i0, int32_t i1)
{
    widen_block(w, b);
    for (int32_t i = i0, nq; i < i1; i += nq) {
        nq = together(i1 - i);
        scores(s + (size_t) i * stride, stride, w->q + i * w->k_pad, b, w->k_pad, nq);
    }
}

/* The scores of all queries with all pending rows. */
static void pending_scores(AttendWork *w)
{
    const AttendJob *j = w->job;
    const int32_t slot0 = pending_slot(j), end = slot0 + j->slice->n;
    Block block;
    w->tree0 = w->ints ? slot0 / KEY_PANEL * KEY_PANEL : slot0;
    w->prefetch = (Prefetch) { 0 };
    if (w->ints) scores_open(&w->iq);
    for (int32_t kv = 0; kv < j->n_kv; kv++)
        for (int32_t slot = w->tree0; slot < end; slot += LANES) {
            const int32_t i0 = kv * w->n_each;
            float *s = w->tree_s + slot - w->tree0;
            if (w->ints) {
                panel_scores(w, s, TREE_SLOTS, slot, kv, i0, i0 + w->n_each);
                continue;
            }
            slots_block(w, &block, head_at(j, kv, slot, true), end - slot < LANES ? end - slot : LANES, true);
            for (int32_t i = 0; j->layer->wrap && slot + i < end && i < LANES; i++)
                block.at[i] = head_at(j, kv, slot + i, true);
            block_scores(w, s, TREE_SLOTS, &block, i0, i0 + w->n_each);
        }
    if (w->ints) tiles_close();
}

static void tile_scores(AttendWork *w, int32_t tile0, int32_t b0, int32_t b1)
{
    const AttendJob *j = w->job;
    Block block;
    w->prefetch = (Prefetch) { 0 };
    if (w->ints) scores_open(&w->iq);
    for (int32_t b = b0; b < b1; b++) {
        for (int32_t kv = 0; kv < j->n_kv; kv++) {
            int32_t pos0 = tile0 + b * LANES;
            int32_t i0 = kv * w->n_each, i1 = i0 + w->n_each;
            block.there = w->ints ? range_bits(pos0, w->shared0, w->shared1) : 0;
            if (w->ints && kv == 0 && pos0 % VALUE_GROUP == 0) prefetch_find(w, pos0, true);
            if (!w->ints && pos0 < w->shared1) shared_block(w, &block, kv, pos0, true);
            /* The rows of a chain are in the order of their positions, so those that see nothing of the block are at
             * the ends. */
            int32_t first = i1, last = i0;
            for (int32_t row = 0, i = i0; row < j->n_rows; row++) {
                uint32_t sees = block.there & range_bits(pos0, w->lo[row], w->hi[row]);
                if (sees && i < first) first = i;
                for (int32_t h = 0; h < j->n_heads; h++, i++) w->seen[i * TILE_BLOCKS + b] = (uint16_t) sees;
                if (sees) last = i;
            }
            if (first < last && w->ints) panel_scores(w, w->s + b * LANES, TILE, pos0, kv, first, last);
            else if (first < last) block_scores(w, w->s + b * LANES, TILE, &block, first, last);
        }
    }
    if (w->ints) tiles_close();
    if (!w->tree) return;
    for (int32_t kv = 0; kv < j->n_kv; kv++)
        for (int32_t row = 0; row < j->n_rows; row++)
            for (int32_t b = b0; b < b1; b++) {
                int32_t pos0 = tile0 + b * LANES, i0 = kv * w->n_each + row * j->n_heads;
                uint32_t bits = path_bits(w, row, pos0);
                for (uint32_t rest = bits; rest; rest &= rest - 1) {
                    int32_t p = __builtin_ctz(rest), from = path_row(w, row, pos0 + p) + pending_slot(j) - w->tree0;
                    for (int32_t i = i0; i < i0 + j->n_heads; i++)
                        w->s[i * TILE + b * LANES + p] = w->tree_s[i * TREE_SLOTS + from];
                }
                for (int32_t i = i0; bits && i < i0 + j->n_heads; i++) w->seen[i * TILE_BLOCKS + b] |= (uint16_t) bits;
            }
}

/* ---- weights ---- */

static float exp1(float x)
{
    float y;
    v_store_n(&y, v_exp(v_set(x)), 1);
    return y;
}

/* Returns true if the group at pos0 includes pending rows, for values with integer codes. */
static bool group_pends(const AttendWork *w, int32_t pos0)
{
    return w->tree && pos0 + VALUE_GROUP > w->job->slice->base;
}

/* Turns the scores of blocks [b0, b1) into weights, and sets the weights of the rest of their groups to 0. For values
 * with integer codes the weights are put in the order of lanes, unless the group has pending rows. o and l are rescaled
 * to the new maximum. */
static void tile_weights(AttendWork *w, int32_t i, int32_t tile0, int32_t b0, int32_t b1)
{
    enum { EACH = STEP / LANES };
    float *s = w->s + i * TILE;
    uint16_t *seen = w->seen + i * TILE_BLOCKS;
    const V nothing = v_set(-INFINITY);
    V top = nothing;
    for (int32_t b = b0; b < b1; b++) {
        if (!seen[b]) continue;
        V x = v_pick(seen[b], finish_scores(v_load(s + b * LANES), w->job->spec), nothing);
        v_store(s + b * LANES, x);
        seen[b] = (uint16_t) v_ne(x, nothing);
        top = v_max(x, top);                       /* never NaN: that comes with the weights */
    }
    float tile = v_top(top), m = w->m[i] > tile ? w->m[i] : tile, c = 1;
    if (m != w->m[i]) {
        float *o = w->o + i * w->v_pad;
        c = exp1(w->m[i] - m);
        for (int32_t k = 0; k < w->v_pad; k += LANES) v_store(o + k, v_mul(v_load(o + k), v_set(c)));
    }
    V mv = v_set(m), sum = v_set(0);
    for (int32_t b = b0 / GROUP_BLOCKS * GROUP_BLOCKS, end = (b1 + GROUP_BLOCKS - 1) / GROUP_BLOCKS * GROUP_BLOCKS;
         b < end; b += EACH) {
        V p[EACH];
        UNROLLED for (int k = 0; k < EACH; k++) {
            p[k] = v_set(0);
            if (b + k < b0 || b + k >= b1 || !seen[b + k]) continue;
            p[k] = v_pick(seen[b + k], v_exp(v_sub(v_load(s + (b + k) * LANES), mv)), p[k]);
            sum = v_add(sum, p[k]);
            prefetch_pieces(&w->prefetch, 1);
            prefetch_ask(&w->prefetch), prefetch_ask(&w->prefetch), prefetch_ask(&w->prefetch);
        }
        if (w->values && !group_pends(w, tile0 + b / GROUP_BLOCKS * VALUE_GROUP)) order_step(p);
        UNROLLED for (int k = 0; k < EACH; k++) v_store(s + (b + k) * LANES, p[k]);
    }
    w->m[i] = m;
    w->l[i] = fmaf(w->l[i], c, v_sum(sum));
}

/* ---- values ---- */

/* o [nq, pad] += p [nq, TILE] times the values of the positions set in bits, ascending; columns [c, c + 16 * vecs). */
INLINE void mix_columns(float *o, const float *p, const Block *b, Type t, int32_t pad, uint32_t bits, int32_t c, int nq,
                        int vecs)
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
#define CALL(type)                                         \
    if (nq == QUERIES)                                     \
        mix_as(o, p, b, type, pad, bits, QUERIES);         \
    else if (nq == 2) mix_as(o, p, b, type, pad, bits, 2); \
    else mix_as(o, p, b, type, pad, bits, 1)
    WITH_TYPE(KV_IN_REGISTERS ? b->t : T_F32, CALL)
#undef CALL
}

/* Puts the weights of query i for a tree's blocks [b0, b1) of the group in the order of lanes, those of its path at the
 * pending rows. */
static void path_by_lane(AttendWork *w, int32_t i, int32_t tile0, int32_t b0, int32_t b1)
{
    float *to = w->by_lane + i * ALL_LANES;
    memcpy(to, w->s + i * TILE + b0 / GROUP_BLOCKS * VALUE_GROUP, VALUE_GROUP * sizeof *to);
    memset(to + VALUE_GROUP, 0, (size_t) (w->values->lanes - VALUE_GROUP) * sizeof *to);
    const int32_t row = row_of(w, i);
    for (int32_t b = b0; b < b1; b++)
        for (uint32_t rest = path_bits(w, row, tile0 + b * LANES); rest; rest &= rest - 1) {
            int32_t p = b * LANES + __builtin_ctz(rest);
            to[VALUE_GROUP + w->job->slice->base % FOUR + path_row(w, row, tile0 + p)] = to[p % VALUE_GROUP];
            to[p % VALUE_GROUP] = 0;
        }
    order_lanes(to, w->values->lanes);
}

/* Finds where the values of each lane are; for lanes that no query sees, any readable address does. */
static void find_lanes(AttendWork *w, int32_t kv, int32_t pos0)
{
    const AttendJob *j = w->job;
    IntValues *v = w->values;
    const int32_t first = j->slice->base / FOUR * FOUR, last = j->slice->base + j->slice->n - 1;
    v->group = head_at(j, kv, pos0, false);
    v->four0 = first % VALUE_PANEL / FOUR;
    for (int32_t p = 0; p < (v->lanes - VALUE_GROUP) / FOUR; p++)
        v->pending[p] = head_at(j, kv, first + FOUR * p < last ? first + FOUR * p : last, false);
    v->next = !in_one_stream(j) && pos0 + 2 * VALUE_GROUP <= w->shared1 ? VALUE_GROUP * j->v_row : 0;
}

/* Rounds the weights of n queries from i on, for run r. */
static void round_run(AttendWork *w, int32_t r, int32_t i, int32_t n)
{
    for (int32_t k = 0; k < n; k += 4) {
        const float *s[4];
        for (int32_t m = 0; m < 4; m++) s[m] = w->weights + (k + m < n ? i + k + m : i + n - 1) * w->step;
        round_weights(w->values, r, k, s);
    }
}

/* The values of a head: runs of queries, block after block. While one run is rounded, the one before is multiplied and
 * the one before that added, so that the processor has work while it waits. */
static void head_values(AttendWork *w, int32_t kv)
{
    IntValues *v = w->values;
    const int32_t first = kv * w->n_each, each = (w->n_each + v->together - 1) / v->together, runs = v->blocks * each;
    for (int32_t r = 0; r < runs + 2; r++) {
        if (r >= 2) bring_products(v);
        if (r < runs) {
            const int32_t c = r / each, i = r % each * v->together;
            if (i == 0) get_block(v, c, c & 1);
            round_run(w, r, first + i, w->n_each - i < v->together ? w->n_each - i : v->together);
        }
        if (r > 0 && r <= runs) multiply(v, r - 1, (r - 1) / each & 1);
        if (r < 2) continue;
        const int32_t c = (r - 2) / each, i = (r - 2) % each * v->together;
        const Products p = { w->o + (first + i) * w->v_pad + c * CODE_COLS, w->v_pad, w->any + first + i,
                             w->n_each - i < v->together ? w->n_each - i : v->together };
        add_products(v, r - 2, &p);
    }
}

/* Weights times values with integer codes, for blocks [b0, b1) of a tile, which are in one group. */
static void group_values(AttendWork *w, int32_t tile0, int32_t b0, int32_t b1)
{
    const AttendJob *j = w->job;
    const int32_t pos0 = tile0 + b0 / GROUP_BLOCKS * VALUE_GROUP;
    IntValues *v = w->values;
    const bool pends = group_pends(w, pos0);
    v->lanes = VALUE_GROUP + (pends ? (j->slice->base % FOUR + j->slice->n + STEP - 1) / STEP * STEP : 0);
    w->weights = pends ? w->by_lane : w->s + (pos0 - tile0);
    w->step = pends ? ALL_LANES : TILE;
    for (int32_t i = 0; i < w->n; i++) {
        w->any[i] = false;
        for (int32_t b = b0; b < b1; b++) w->any[i] |= w->seen[i * TILE_BLOCKS + b] != 0;
        if (pends) path_by_lane(w, i, tile0, b0, b1);
    }
    prefetch_find(w, pos0, false);
    for (int32_t kv = 0; kv < j->n_kv; kv++) {
        find_lanes(w, kv, pos0);
        head_values(w, kv);
    }
}

/* One group after the other. */
static void integer_values(AttendWork *w, int32_t tile0, int32_t b0, int32_t b1)
{
    values_open(w->values, w->job->spec->v_type, value_dim(w->job->spec), w->n_each);
    w->values->prefetch = &w->prefetch;
    for (int32_t b = b0, end; b < b1; b = end) {
        end = b / GROUP_BLOCKS * GROUP_BLOCKS + GROUP_BLOCKS;
        group_values(w, tile0, b, b1 < end ? b1 : end);
    }
    tiles_close();
}

static void tile_values(AttendWork *w, int32_t tile0, int32_t b0, int32_t b1)
{
    const AttendJob *j = w->job;
    Block block;
    if (w->values) {
        integer_values(w, tile0, b0, b1);
        return;
    }
    for (int32_t kv = 0; kv < j->n_kv; kv++) {
        for (int32_t b = b0; b < b1; b++) {
            int32_t pos0 = tile0 + b * LANES;
            if (pos0 >= w->shared1) break;
            shared_block(w, &block, kv, pos0, false);
            widen_block(w, &block);
            for (int32_t i = kv * w->n_each, end = i + w->n_each, nq; i < end; i += nq) {
                uint32_t bits = w->seen[i * TILE_BLOCKS + b] & block.there;
                nq = together(end - i);
                for (int32_t k = 1; k < nq; k++)   /* together only where they see the same */
                    if ((w->seen[(i + k) * TILE_BLOCKS + b] & block.there) != bits) nq = k >= 2 ? 2 : 1;
                if (bits) mix(w->o + i * w->v_pad, w->s + i * TILE + b * LANES, &block, w->v_pad, bits, nq);
            }
        }
    }
    if (!w->tree) return;
    /* Pending positions come after all shared ones. */
    for (int32_t kv = 0; kv < j->n_kv; kv++)
        for (int32_t row = 0; row < j->n_rows; row++)
            for (int32_t b = b0; b < b1; b++) {
                path_block(w, &block, kv, row, tile0 + b * LANES);
                for (int32_t i = kv * w->n_each + row * j->n_heads, end = i + j->n_heads; block.there && i < end; i++) {
                    uint32_t bits = w->seen[i * TILE_BLOCKS + b] & block.there;
                    mix(w->o + i * w->v_pad, w->s + i * TILE + b * LANES, &block, w->v_pad, bits, 1);
                }
            }
}

/* together only if they see the same positions */

static void split_start(AttendWork *w)
{
    memset(w->o, 0, sizeof(float) * (size_t) w->n * (size_t) w->v_pad);
    for (int32_t i = 0; i < w->n; i++) {
        w->m[i] = -INFINITY;
        w->l[i] = 0;
    }
}

static void merge_start(AttendWork *w)
{
    memset(w->O, 0, sizeof(float) * (size_t) w->n * (size_t) w->v_pad);
    for (int32_t i = 0; i < w->n; i++) {
        w->M[i] = -INFINITY;
        w->L[i] = 0;
    }
}

/* Merges (o, m, l) of the next split into (O, M, L) of query i. A sum of 0: there was nothing that counts. */
static void split_merge(AttendWork *w, int32_t i, const float *o, float om, float ol)
{
    if (ol == 0) return;
    float *O = w->O + i * w->v_pad;
    if (w->L[i] == 0) {
        memcpy(O, o, sizeof(float) * (size_t) w->v_pad);
        w->M[i] = om;
        w->L[i] = ol;
        return;
    }
    float m = w->M[i] > om ? w->M[i] : om;
    float C = exp1(w->M[i] - m), c = exp1(om - m);
    for (int32_t k = 0; k < w->v_pad; k += LANES)
        v_store(O + k, v_fma(v_load(O + k), v_set(C), v_mul(v_load(o + k), v_set(c))));
    w->L[i] = fmaf(w->L[i], C, ol * c);
    w->M[i] = m;
}

/* Writes the results, rotated back if the values were rotated. */
static void write_rows(const AttendWork *w)
{
    const AttendJob *j = w->job;
    int32_t n = value_dim(j->spec), group = j->spec->heads / j->spec->kv_heads;
    size_t width = (size_t) j->spec->heads * (size_t) n;
    for (int32_t i = 0; i < w->n; i++) {
        int32_t row = j->row0 + row_of(w, i), head = (j->kv0 + i / w->n_each) * group + j->head0 + i % j->n_heads;
        float *y = j->y + (size_t) (j->slice->row0 + row) * width + (size_t) head * (size_t) n;
        const float *O = w->O + i * w->v_pad;
        for (int32_t c = 0; c < n; c += LANES) v_store_to(y + c, v_div(v_load(O + c), v_set(w->L[i])), n - c);
        if (kv_rotated(j->spec->v_type)) quant_unrotate(y, n);
    }
}

/* ---- the job ---- */

static void find_path(AttendWork *w, int32_t r)
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

static void prepare(AttendWork *w)
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
        const int32_t from = s->kind == SLICE_BLOCK && spec->canvas ? s->base : pos;
        w->lo[r] = spec->window && from - spec->window >= 0 ? from - spec->window + 1 : 0;
        w->hi[r] = w->tree ? s->base : s->kind == SLICE_BLOCK && !spec->causal ? s->base + s->n : pos + 1;
    }
    if (w->ints) memset(w->iq.scale, 0, w->iq_bytes);
    for (int32_t i = 0; i < w->n; i++) {
        int32_t row = j->row0 + row_of(w, i), head = (j->kv0 + i / w->n_each) * group + j->head0 + i % j->n_heads;
        const float *from = j->q + (size_t) (s->row0 + row) * width + (size_t) head * (size_t) spec->head_dim;
        if (w->ints) {
            put_queries(&w->iq, i / w->n_each, i % w->n_each, from);
            continue;
        }
        float *q = w->q + i * w->k_pad;
        memcpy(q, from, sizeof(float) * (size_t) spec->head_dim);
        for (int32_t c = spec->head_dim; c < w->k_pad; c++) q[c] = 0;
        if (kv_rotated(spec->k_type)) quant_rotate(q, spec->head_dim);
    }
    if (!w->tree || w->values) return;
    for (int32_t kv = 0; kv < j->n_kv; kv++)
        for (int32_t row = 0; row < s->n; row++) {
            size_t at = ((size_t) kv * (size_t) s->n + (size_t) row) * (size_t) w->v_pad;
            widen(w->tree_v + at, spec->v_type, head_at(j, kv, pending_slot(j) + row, false), value_dim(spec),
                  w->v_pad);
        }
}

/* The range of positions that any row of the job sees. */
static void span_of(int32_t *lo, int32_t *end, const AttendWork *w)
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

static void one_split(AttendWork *w, int32_t split, int32_t lo, int32_t end)
{
    split_start(w);
    if (w->tree && end > w->job->slice->base && end > split && w->job->slice->base < split + SPLIT) pending_scores(w);
    for (int32_t tile = split > lo ? split : lo / TILE * TILE; tile < end && tile < split + SPLIT; tile += TILE) {
        int32_t b0 = lo > tile ? (lo - tile) / LANES : 0,
                b1 = end - tile < TILE ? (end - tile + LANES - 1) / LANES : TILE_BLOCKS;
        tile_scores(w, tile, b0, b1);
        for (int32_t i = 0; i < w->n; i++) tile_weights(w, i, tile, b0, b1);
        tile_values(w, tile, b0, b1);
    }
}

static void attend(const AttendJob *j, void *scratch)
{
    AttendWork w;
    int32_t lo, end;
    lay_out(&w, scratch, j);
    prepare(&w);
    merge_start(&w);
    span_of(&lo, &end, &w);
    for (int32_t split = lo / SPLIT * SPLIT; split < end; split += SPLIT) {
        one_split(&w, split, lo, end);
        for (int32_t i = 0; i < w.n; i++) split_merge(&w, i, w.o + i * w.v_pad, w.m[i], w.l[i]);
    }
    write_rows(&w);
}

static size_t part_bytes(const AttendJob *j)
{
    const size_t n = (size_t) j->n_kv * (size_t) j->n_heads * (size_t) j->n_rows;
    return sizeof(float) * n * (size_t) (padded(value_dim(j->spec)) + 2);
}

static void attend_part(const AttendJob *j, int32_t split, float *part, void *scratch)
{
    AttendWork w;
    int32_t lo, end;
    lay_out(&w, scratch, j);
    prepare(&w);
    span_of(&lo, &end, &w);
    w.o = part;
    w.m = part + (size_t) w.n * (size_t) w.v_pad;
    w.l = w.m + w.n;
    if (split * SPLIT > lo) lo = split * SPLIT;
    if (end > split * SPLIT + SPLIT) end = split * SPLIT + SPLIT;
    one_split(&w, split * SPLIT, lo, end);
}

static void attend_merge(const AttendJob *j, float *const *part, int32_t n, void *scratch)
{
    AttendWork w;
    lay_out(&w, scratch, j);
    merge_start(&w);
    for (int32_t p = 0; p < n; p++) {
        const float *m = part[p] + (size_t) w.n * (size_t) w.v_pad, *l = m + w.n;
        for (int32_t i = 0; i < w.n; i++) split_merge(&w, i, part[p] + (size_t) i * (size_t) w.v_pad, m[i], l[i]);
    }
    write_rows(&w);
}

const AttendKernels LEVEL_NAME(attend) = { scratch_bytes, attend, part_bytes, attend_part, attend_merge };
