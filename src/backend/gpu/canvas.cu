/* canvas.cu - the end of a denoising step behind the head's products, CANVAS_TILES tiles of the vocabulary at a time
 * (Backend.canvas says what it is, cpu/cpu_canvas.c is the same in order).
 *
 *   canvas_rows  a row's largest values, sample and sums; products become terms
 *   canvas_mix   the rows of the table that have a term, decoded and added up; the end, after the last tile
 *
 * What a tile needs of those before it is the largest value so far alone, so the tiles of a launch are worked on side
 * by side, half a warp for each, lane by lane, and one thread adds up their sums in order. */
#include "backend/gpu/gpu_draw.h"
#include "backend/gpu/gpu_math.h"
#include "backend/gpu/gpu_unpack.h"

enum { CANVAS_THREADS = 16 * CANVAS_TILES, CANVAS_WARPS = CANVAS_THREADS / 32, EACH = CANVAS_IDS / 16 };

DEV bool canvas_ends(const CanvasArgs &a) { return a.id0 + CANVAS_GROUP >= a.vocab; }
DEV int canvas_tiles(const CanvasArgs &a)
{
    const int left = a.vocab - a.id0;
    return left < CANVAS_GROUP ? (left + CANVAS_IDS - 1) / CANVAS_IDS : (int) CANVAS_TILES;
}

/* ---- rows ---- */

struct CanvasShared {
    CanvasRow row;                                 /* before this launch */
    CanvasDraw draw;
    float    top[CANVAS_TILES], again[CANVAS_TILES], sum[CANVAS_TILES], lean[CANVAS_TILES];
    int      first[CANVAS_TILES], id[CANVAS_WARPS];
    uint64_t bar[CANVAS_WARPS], key[CANVAS_WARPS];
};

DEV void row_begins(CanvasShared &s, const CanvasArgs &a, const CanvasDraw *d)
{
    const CanvasRow *f = a.found + BID;
    const bool first = a.id0 == 0;
    s.row.score = first ? -f64_infinity() : ld(&f->score);
    s.row.top = first ? -f32_infinity() : ld(&f->top);
    s.row.sum = first ? 0 : ld(&f->sum);
    s.row.lean = first ? 0 : ld(&f->lean);
    s.row.best = first ? -1 : ld(&f->best);
    s.row.sample = first ? -1 : ld(&f->sample);
    s.draw.seed = ld(&d->seed), s.draw.block = ld(&d->block), s.draw.step = ld(&d->step);
    s.draw.t = ld(&d->t), s.draw.greedy = ld(&d->greedy);
    if (first) st(&a.found[BID].mask, -f32_infinity());
}

/* A tile's values into x, lane l has l + 16 b, and into z; its largest, and where that is first, for all lanes. The one
 * that is left out goes into *mask of its lane instead. */
DEV void tile_values(float (&x)[EACH], float *top, int *first, float *z, const CanvasArgs &a, float t, int ids,
                     int left_out, float *mask)
{
    const int lane = TID & 15;
    float most = -f32_infinity();
    UNROLL
    for (int b = 0; b < EACH; b++) {
        const int i = 16 * b + lane;
        x[b] = -f32_infinity();
        if (i >= ids) continue;
        float v = f32_mul(ld(z + i), a.scale);
        if (a.softcap > 0) v = f32_mul(a.softcap, f32_tanh(f32_div(v, a.softcap)));
        x[b] = f32_div(v, t);
        if (i == left_out) *mask = x[b], x[b] = -f32_infinity();
        st(z + i, x[b]);
        most = f32_max(x[b], most);
    }
    UNROLL
    for (int m = 8; m; m >>= 1) most = f32_max(most, shfl_xor_f(most, m));
    int at = CANVAS_IDS;
    UNROLL
    for (int b = EACH - 1; b >= 0; b--) at = x[b] == most ? 16 * b + lane : at;
    UNROLL
    for (int m = 8; m; m >>= 1) {
        const int other = shfl_xor(at, m);
        at = other < at ? other : at;
    }
    *top = f32_add(most, 0.0f);
    *first = at;
}

DEV uint64_t warp_most(uint64_t key)
{
    UNROLL
    for (int m = 16; m; m >>= 1) {
        const uint64_t other = shfl_xor_u64(key, m);
        key = other > key ? other : key;
    }
    return key;
}

DEV uint32_t canvas_word(const CanvasShared &s, int pos, int id)
{
    enum { FOR_SAMPLE = 1 };
    return philox(s.draw.seed, (uint32_t) pos, (uint32_t) s.draw.step, (uint32_t) id,
                  (uint32_t) s.draw.block << 2 | FOR_SAMPLE);
}

/* The best of the block's ids by value + noise, against the row's so far: of all bounds of the noise first, then of the
 * noise itself where it still can win. z, x: the tile's values; top: the largest up to it. The result is in s.key and
 * s.id behind the next barrier, for each warp. */
DEV void tile_sample(CanvasShared &s, const float (&x)[EACH], const float *z, float top, int pos, int id0, int ids)
{
    const int lane = TID & 15, warp = TID >> 5;
    const double least = f64_sub(f64_of_f32(top), 26.01);
    uint64_t bar = s.row.sample < 0 ? 0 : key_of_f64(s.row.score);
    uint32_t may = 0;
    UNROLL
    for (int b = 0; b < EACH; b++) {
        const int i = 16 * b + lane;
        const double at = f64_of_f32(x[b]);
        if (i >= ids || !(at >= least) || key_of_f64(f64_add(at, 22.8756)) < bar) continue;
        const uint64_t low = key_of_f64(f64_add(at, noise_least(noise_zeros(canvas_word(s, pos, id0 + i)))));
        bar = low > bar ? low : bar;
        may |= 1u << b;
    }
    bar = warp_most(bar);
    if ((TID & 31) == 0) s.bar[warp] = bar;
    sync_block();
    UNROLL
    for (int w = 0; w < CANVAS_WARPS; w++) bar = s.bar[w] > bar ? s.bar[w] : bar;
    uint64_t best = 0;
    int who = 0x7fffffff;
    for (; may; may &= may - 1) {
        const int i = 16 * ones_of((may & (0u - may)) - 1) + lane;
        const double at = f64_of_f32(ld(z + i));
        const uint32_t r = canvas_word(s, pos, id0 + i);
        if (key_of_f64(f64_add(at, noise_most(noise_zeros(r)))) < bar) continue;
        const uint64_t key = key_of_f64(f64_add(at, noise_of(r)));
        if (key > best) best = key, who = id0 + i;
    }
    const uint64_t most = warp_most(best);
    who = best == most ? who : 0x7fffffff;
    UNROLL
    for (int m = 16; m; m >>= 1) {
        const int other = shfl_xor(who, m);
        who = other < who ? other : who;
    }
    if ((TID & 31) == 0) s.key[warp] = most, s.id[warp] = who;
}

/* Terms of a tile, in place of its values, and their sums. */
DEV void tile_terms(float *sum, float *lean, const float (&x)[EACH], float *z, float top, int ids)
{
    const int lane = TID & 15;
    float s = 0, l = 0;
    UNROLL
    for (int b = 0; b < EACH; b++) {
        if (16 * b >= ids) continue;
        const float d = f32_sub(x[b], top);
        const bool none = d < -20.7944154f;
        const float e = none ? 0.0f : f32_exp(d);
        s = f32_add(s, e);
        l = f32_fma(e, none ? 0.0f : d, l);
        if (16 * b + lane < ids) st(z + 16 * b + lane, e);
    }
    *sum = sum_of_16(s);
    *lean = sum_of_16(l);
}

/* One thread: the row after the launch's tiles. */
DEV void row_ends(CanvasShared &s, const CanvasArgs &a)
{
    CanvasRow *f = a.found + BID;
    CanvasRow &row = s.row;
    for (int k = 0; k < canvas_tiles(a); k++) {
        const bool first = row.best < 0;
        const float before = row.top;
        if (s.top[k] > before) row.top = s.top[k], row.best = a.id0 + k * CANVAS_IDS + s.first[k];
        row.again = s.again[k];
        row.lean = first ? s.lean[k] : f32_fma(row.again, f32_fma(f32_sub(before, row.top), row.sum, row.lean),
                                               s.lean[k]);
        row.sum = f32_fma(row.sum, row.again, s.sum[k]);
    }
    if (s.draw.greedy) {
        row.sample = row.best;
    } else {
        uint64_t best = row.sample < 0 ? 0 : key_of_f64(row.score);
        for (int w = 0; w < CANVAS_WARPS; w++) {   /* ids of a warp's tiles follow those of the warp before */
            if (s.key[w] <= best) continue;
            best = s.key[w];
            row.sample = s.id[w];
            row.score = f64_of_bits(best >> 63 ? best & 0x7fffffffffffffffu : ~best);
        }
    }
    st(&f->score, row.score), st(&f->top, row.top), st(&f->sum, row.sum), st(&f->lean, row.lean);
    st(&f->again, row.again), st(&f->best, row.best), st(&f->sample, row.sample);
    if (canvas_ends(a)) {
        const double sum = f64_of_f32(row.sum);
        st(&f->entropy, f32_of_f64(f64_sub(f64_log(sum), f64_div(f64_of_f32(row.lean), sum))));
    }
}

KERNEL(CANVAS_THREADS, canvas_rows, CanvasArgs)
{
    SHARED(CanvasShared, s);
    pass_next();
    pass_wait();
    const int slice = ld(a.slice + BID);
    if (slice < 0) return;
    const int tile = TID >> 4, lane = TID & 15, id0 = a.id0 + tile * CANVAS_IDS, left = a.vocab - id0;
    const int ids = left < 0 ? 0 : left < CANVAS_IDS ? left : (int) CANVAS_IDS;
    const CanvasDraw *d = &a.slices[slice].canvas;
    const int mask = ld(&d->mask), left_out = mask > 0 ? mask - id0 : -1;
    float *z = a.z + (size_t) BID * CANVAS_GROUP + tile * CANVAS_IDS, x[EACH], top, sum, lean, of_mask = 0;
    int first;
    if (TID == 0) row_begins(s, a, d);
    tile_values(x, &top, &first, z, a, ld(&d->t), ids, left_out, &of_mask);
    if (lane == 0) s.top[tile] = top, s.first[tile] = first;
    sync_block();
    float before = s.row.top;
    for (int k = 0; k < tile; k++) before = s.top[k] > before ? s.top[k] : before;
    top = top > before ? top : before;
    if (!s.draw.greedy) tile_sample(s, x, z, top, ld(a.pos + BID), id0, ids);
    tile_terms(&sum, &lean, x, z, top, ids);
    if (lane == 0) {
        const float again = f32_exp(f32_sub(before, top));
        s.sum[tile] = sum, s.lean[tile] = lean, s.again[tile] = again;
        st(a.again + BID * CANVAS_TILES + tile, again);
    }
    sync_block();
    if (left_out >= 0 && left_out < ids && lane == left_out % 16) st(&a.found[BID].mask, of_mask);
    if (TID == 0) row_ends(s, a);
}

/* ---- mixed embeddings ---- */

/* A block has MIX_ROWS rows, a warp OWN_ROWS of them, and MIX_COLS columns of the table, a lane every 32nd; it goes
 * through the ids in parts of a warp's lanes. */
enum { OWN_ROWS = 8, MIX_ROWS = OWN_ROWS * CANVAS_WARPS, MIX_COLS = 64, OWN_COLS = MIX_COLS / 32, MIX_IDS = 32 };

/* term, by id: those of a warp's rows are its own. any: bits of ids that a warp has terms of, of two parts. */
struct MixShared {
    alignas(16) float term[MIX_IDS][MIX_ROWS + 4];
    float    value[MIX_IDS][MIX_COLS + 1];
    uint32_t any[2][CANVAS_WARPS];
};

/* Terms of the warp's rows with id `id`, its lane's; 0 where there is no such row or id. */
DEV void load_terms(float (&e)[OWN_ROWS], const CanvasArgs &a, int row0, uint32_t rows, int id)
{
    UNROLL
    for (int r = 0; r < OWN_ROWS; r++) {
        const bool there = (rows >> r & 1) && id < CANVAS_GROUP && a.id0 + id < a.vocab;
        e[r] = there ? ld(a.z + (size_t) (row0 + r) * CANVAS_GROUP + id) : 0.0f;
    }
}

/* The table's values of the ids in `used`; neighbouring threads have rows that lie side by side in a packed group. */
DEV void decode(MixShared &s, const CanvasArgs &a, int id0, int col0, uint32_t used)
{
    for (int at = TID; at < MIX_IDS * MIX_COLS; at += CANVAS_THREADS) {
        const int id = at / (16 * MIX_COLS) * 16 + at % 16, c = at / 16 % MIX_COLS;
        if (used >> id & 1 && col0 + c < a.table.cols)
            s.value[id][c] = table_value(a.table, a.id0 + id0 + id, col0 + c);
    }
}

/* ids: a bit for each that the warp has terms of. */
DEV void add_up(float (&acc)[OWN_ROWS][OWN_COLS], const MixShared &s, uint32_t ids)
{
    const int lane = TID & 31, warp = TID >> 5;
    for (; ids; ids &= ids - 1) {
        const int id = ones_of((ids & (0u - ids)) - 1);
        float e[OWN_ROWS], v[OWN_COLS];
        UNROLL
        for (int r = 0; r < OWN_ROWS; r += 4) {
            const float4 four = *(const float4 *) &s.term[id][OWN_ROWS * warp + r];
            e[r] = four.x, e[r + 1] = four.y, e[r + 2] = four.z, e[r + 3] = four.w;
        }
        UNROLL
        for (int c = 0; c < OWN_COLS; c++) v[c] = s.value[id][32 * c + lane];
        UNROLL
        for (int r = 0; r < OWN_ROWS; r++)
            UNROLL
            for (int c = 0; c < OWN_COLS; c++)
                if (e[r] != 0) acc[r][c] = f32_fma(e[r], v[c], acc[r][c]);
    }
}

KERNEL(CANVAS_THREADS, canvas_mix, CanvasArgs)
{
    SHARED(MixShared, s);
    pass_next();
    pass_wait();
    const int lane = TID & 31, warp = TID >> 5, row0 = BID_Y * MIX_ROWS + OWN_ROWS * warp, col0 = BID * MIX_COLS,
              cols = a.table.cols, parts = CANVAS_IDS / MIX_IDS * canvas_tiles(a);
    enum : uint32_t { HAS = 1u << OWN_ROWS };      /* of rows: bits of those there are, and have a term in this tile */
    uint32_t rows = 0;
    float soft[OWN_ROWS][OWN_COLS], acc[OWN_ROWS][OWN_COLS], next[OWN_ROWS];
    UNROLL
    for (int r = 0; r < OWN_ROWS; r++) {
        if (row0 + r < a.n && ld(a.slice + row0 + r) >= 0) rows |= 1u << r;
        UNROLL
        for (int c = 0; c < OWN_COLS; c++) {
            const int col = col0 + 32 * c + lane;
            const bool there = a.id0 > 0 && (rows >> r & 1) && col < cols;
            soft[r][c] = there ? ld(a.soft + (size_t) (row0 + r) * (size_t) cols + col) : 0.0f;
            acc[r][c] = 0;
        }
    }
    load_terms(next, a, row0, rows, lane);
    for (int part = 0; part < parts; part++) {
        uint32_t own = 0, used = 0;
        sync_warp();                               /* nobody reads the part before any more */
        UNROLL
        for (int r = 0; r < OWN_ROWS; r++) {
            const uint32_t ids = warp_ballot(next[r] != 0);
            own |= ids;
            if (ids) rows |= HAS << r;
            s.term[lane][OWN_ROWS * warp + r] = next[r];
        }
        if (lane == 0) s.any[part & 1][warp] = own;
        sync_block();
        load_terms(next, a, row0, rows, MIX_IDS * (part + 1) + lane);
        UNROLL
        for (int w = 0; w < CANVAS_WARPS; w++) used |= s.any[part & 1][w];
        if (used) {
            decode(s, a, MIX_IDS * part, col0, used);
            sync_block();
            add_up(acc, s, own);
        }
        if ((part + 1) % (CANVAS_IDS / MIX_IDS)) continue;
        UNROLL
        for (int r = 0; r < OWN_ROWS; r++) {
            const float again = rows >> r & 1
                              ? ld(a.again + (row0 + r) * CANVAS_TILES + part / (CANVAS_IDS / MIX_IDS)) : 0.0f;
            if (!(rows & HAS << r) && again == 1) continue;
            UNROLL
            for (int c = 0; c < OWN_COLS; c++) soft[r][c] = f32_fma(soft[r][c], again, acc[r][c]), acc[r][c] = 0;
        }
        rows &= HAS - 1;
    }
    UNROLL
    for (int r = 0; r < OWN_ROWS; r++) {
        if (!(rows >> r & 1)) continue;
        const float by = canvas_ends(a) ? f32_div(a.table_scale, ld(&a.found[row0 + r].sum)) : 1.0f;
        UNROLL
        for (int c = 0; c < OWN_COLS; c++) {
            const int col = col0 + 32 * c + lane;
            if (col < cols) st(a.soft + (size_t) (row0 + r) * (size_t) cols + col, f32_mul(soft[r][c], by));
        }
    }
}
