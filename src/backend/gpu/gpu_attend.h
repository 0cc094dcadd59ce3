/* gpu_attend.h - what the kernels of attention share: which queries a block has, and what they see. */
#ifndef RATOON_BACKEND_GPU_GPU_ATTEND_H
#define RATOON_BACKEND_GPU_GPU_ATTEND_H

#include "backend/gpu/gpu_kv.h"
#include "backend/gpu/gpu_math.h"

enum { ATTEND_THREADS = 256, ATTEND_WARPS = ATTEND_THREADS / 32, SPLIT_TILES = SPLIT / TILE };

/* Shared memory. lo, hi: the positions that a query sees, which are [lo, hi), in a ring only those that are there. Of
 * trees also: path: one bit for each pending row on the query's path; of row r: row_path, and its depth below the
 * committed positions. */
struct Sight {
    int      lo[ATTEND_QUERIES], hi[ATTEND_QUERIES];
    uint64_t path[ATTEND_QUERIES], row_path[ROWS_DECODE];
    int      depth[ROWS_DECODE], parent[ROWS_DECODE];
    int      last;
};

/* The same for all threads of a block. first, n: queries, counted by row and head within the key/value head; lo, hi:
 * what any of them sees. stored: positions before this one lie where passes before this one have put them; from there
 * on this pass moves rows of the noted path, and stores its own. shared: positions from here on are pending rows of a
 * tree. */
struct Item {
    const StateLayer *l;
    int index, kv, first, n, group;
    int kind, row0, rows, base, ring, wrap;
    int lo, hi, stored, shared, tile0, tiles;
    const int32_t *slot_pos;
};

template <bool EARLY> DEV void send16(void *to, const void *from)
{
    if (EARLY) copy16_early(to, from);
    else copy16_async(to, from);
}

/* Queries from n on stand for the last. */
DEV int item_row(const Item &i, int e) { return (i.first + (e < i.n ? e : i.n - 1)) / i.group; }
DEV int item_head(const Item &i, int e) { return i.kv * i.group + (i.first + (e < i.n ? e : i.n - 1)) % i.group; }

/* Finds item `index` of the launch, from tables alone; false: there is none. Called by the whole block. */
DEV bool find_item(Item &i, Sight &v, const AttendArgs &a, int index)
{
    const Slice *s = a.rows.slices;
    int g = (a.item0 + index) / a.spec.kv_heads, k = 0;
    i.index = index;
    i.kv = (a.item0 + index) % a.spec.kv_heads;
    i.group = a.spec.heads / a.spec.kv_heads;
    for (;; k++, s++) {
        if (k == a.rows.n_slices) return false;
        /* All are on their way before the first is looked at. */
        i.rows = ld_table(&s->n), i.kind = ld_table(&s->kind), i.row0 = ld_table(&s->row0), i.base = ld_table(&s->base);
        i.l = ld_table(&s->layer) + a.il;
        i.stored = i.base - ld_table(&s->n_path);
        const int groups = (i.rows * i.group + ATTEND_QUERIES - 1) / ATTEND_QUERIES;
        if (g < groups) break;
        g -= groups;
    }
    i.ring = ld_table(&i.l->ring), i.wrap = ld_table(&i.l->wrap), i.slot_pos = ld_table(&i.l->slot_pos);
    i.first = ATTEND_QUERIES * g;
    i.n = i.rows * i.group - i.first < ATTEND_QUERIES ? i.rows * i.group - i.first : ATTEND_QUERIES;
    const bool tree = i.kind == SLICE_TREE;
    i.shared = i.base + (tree ? 0 : i.rows);
    if (tree) {
        const int r = TID;
        if (r < i.rows) v.parent[r] = ld_table(a.rows.parent + i.row0 + r);
        sync_block();
        if (r < i.rows) {
            uint64_t path = 0;
            int depth = 0;
            UNROLL_BY(1)
            for (int up = r; up >= 0 && depth < ROWS_DECODE; up = v.parent[up]) path |= (uint64_t) 1 << up, depth++;
            v.row_path[r] = path;
            v.depth[r] = depth - 1;
        }
        sync_block();
    }
    if (TID < ATTEND_QUERIES) {
        const int row = item_row(i, TID), own = i.base + (tree ? v.depth[row] : row);
        const int from = i.kind == SLICE_BLOCK && a.spec.canvas ? i.base : own;
        const int first = a.spec.window && from - a.spec.window >= 0 ? from - a.spec.window + 1 : 0;
        const int there = i.ring && i.base > i.ring ? i.base - i.ring : 0;
        v.lo[TID] = first < there ? there : first;
        v.hi[TID] = i.kind == SLICE_BLOCK && !a.spec.causal ? i.base + i.rows : own + 1;
        v.path[TID] = tree ? v.row_path[row] : 0;
    }
    sync_block();
    i.lo = v.lo[0], i.hi = v.hi[0];
    for (int e = 1; e < ATTEND_QUERIES; e++) {
        i.lo = v.lo[e] < i.lo ? v.lo[e] : i.lo;
        i.hi = v.hi[e] > i.hi ? v.hi[e] : i.hi;
    }
    i.tile0 = i.lo / TILE;
    i.tiles = (i.hi + TILE - 1) / TILE - i.tile0;
    return true;
}

/* Tiles [t0, t1) of an item are its split n. */
DEV int split_of(const Item &i, int tile) { return (i.tile0 + tile) / SPLIT_TILES - i.tile0 / SPLIT_TILES; }
DEV void split_tiles(int *t0, int *t1, const Item &i, int n)
{
    const int from = (i.tile0 / SPLIT_TILES + n) * SPLIT_TILES - i.tile0, to = from + SPLIT_TILES;
    *t0 = from < 0 ? 0 : from;
    *t1 = to < i.tiles ? to : i.tiles;
}

/* The slot of a position before `shared`; -1: not there. */
DEV int shared_slot(const Item &i, int pos)
{
    if (!i.ring) return slot_at(i.wrap, pos);
    if (i.kind == SLICE_BLOCK && pos >= i.base) return i.ring + (pos - i.base);
    return ld(i.slot_pos + pos % i.ring) == pos ? pos % i.ring : -1;
}

/* The slot of a tree's pending row. */
DEV int pending_slot(const Item &i, int row) { return i.ring ? i.ring + row : slot_at(i.wrap, i.base + row); }

/* Value c of a head that is not in integer codes; 0 from `dim` on. */
DEV float load_one(Type t, const uint8_t *head, int c, int dim)
{
    if (c >= dim) return 0.0f;
    if (t == T_TQ3_0) return tq3_value(head + c / 32 * 14, c % 32);
    if (t == T_F32) return ld((const float *) head + c);
    const uint32_t h = ld((const uint16_t *) head + c);
    return t == T_F16 ? f32_of_half(h) : f32_of_bits(h << 16);
}

/* Where query e has its row of a [rows, heads, width]. */
DEV size_t head_row(const AttendArgs &a, const Item &i, int e, int width)
{
    return ((size_t) (i.row0 + item_row(i, e)) * (size_t) a.spec.heads + (size_t) item_head(i, e)) * (size_t) width;
}
DEV const float *query_of(const AttendArgs &a, const Item &i, int e)
{
    return a.q + head_row(a, i, e, a.spec.head_dim);
}

DEV float *weights_of(const AttendArgs &a, const Item &i, int e)
{
    return a.weight + ((size_t) i.index * ATTEND_QUERIES + (size_t) e) * (size_t) a.tiles * TILE;
}
DEV float *change_of(const AttendArgs &a, const Item &i, int e)
{
    return a.change + ((size_t) i.index * ATTEND_QUERIES + (size_t) e) * (size_t) a.tiles;
}
DEV float *tops_of(const AttendArgs &a, const Item &i, int e)      /* of parts */
{
    return a.tops + ((size_t) i.index * ATTEND_QUERIES + (size_t) e) * (size_t) a.tiles * SCORE_PARTS;
}
DEV float *top_of(const AttendArgs &a, const Item &i, int e, int split)
{
    return a.top + (((size_t) i.index * ATTEND_QUERIES + (size_t) e) * (size_t) a.splits + (size_t) split) * 2;
}
DEV float *partial_of(const AttendArgs &a, const Item &i, int e, int split)
{
    const size_t query = (size_t) i.index * ATTEND_QUERIES + (size_t) e;
    return a.partial + (query * (size_t) a.splits + (size_t) split) * (size_t) a.v_pad;
}
DEV int32_t *tickets_of(const AttendArgs &a, const Item &i)
{
    return a.tickets + (size_t) i.index * (size_t) (a.splits + a.v_pad / ATTEND_COLS_FEW);
}

/* True for all threads of the last of n blocks to come, which then sees what the others have written. */
DEV bool last_to_come(Sight &v, int32_t *ticket, int n)
{
    fence();
    sync_block();
    if (TID == 0) {
        v.last = atomic_add(ticket, 1) == n - 1;
        if (v.last) st(ticket, 0);
    }
    sync_block();
    fence();
    return v.last != 0;
}

#endif
