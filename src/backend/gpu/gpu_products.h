/* gpu_products.h - the kernels of products with quantised weights, for every pack. An output's bits depend on its two
 * rows alone, so any of these may be chosen. */
#ifndef RATOON_BACKEND_GPU_GPU_PRODUCTS_H
#define RATOON_BACKEND_GPU_GPU_PRODUCTS_H

#include "backend/gpu/gpu_packs.h"

/* The product that tile `at` of a launch belongs to, and the tile within it. */
DEV ProductArgs product_at(const MatmulArgs &a, int *at)
{
    ProductArgs p = a.product[0];
    UNROLL
    for (int j = 1; j < MATMUL_MAX; j++)
        if (j < a.n_products && *at >= a.product[j].tile0) p = a.product[j];
    *at -= p.tile0;
    return p;
}

/* ---- up to 16 rows: the warps of a block share the columns of one group; integers meet in shared memory ---- */

/* SHARED_LEAST: of a block, on every card (sm_75 has no more). FEW_STAGES leave it for more blocks; where there are few
 * groups there are few blocks, and with DEEP_STAGES each brings more weights ahead, also before pass_wait. */
enum { FEW_WARPS = 4, FEW_STAGES = 3, DEEP_STAGES = 6, SHARED_LEAST = 64 << 10 };

/* With up to `MOST` stages, as there is room. */
template <class P, int NT, int MOST> struct FewShared {
    /* Result fragments. Two of each where there is room: then the next round need not wait until the floats are
     * added. */
    typedef int4 Part[FEW_WARPS][P::SCALES][1 + P::MINS][NT][32];
    enum { STAGED = NT * P::SCALES < 16,           /* scales, too, where there is room */
           SCALES = STAGED ? P::SCALES * 8 : 4, STAGE = FEW_WARPS * (P::WORDS + NT * SCALES) * 4,
           ROOM = MOST == FEW_STAGES ? 48 << 10 : SHARED_LEAST, FIT = (ROOM - (int) sizeof(Part)) / STAGE,
           STAGES = FIT < MOST ? FIT : MOST, PARTS = STAGES * STAGE + 2 * (int) sizeof(Part) <= ROOM ? 2 : 1 };
    static_assert(STAGES >= 2, "no room");
    uint32_t w[STAGES][FEW_WARPS][P::WORDS];
    float    scale[STAGES][FEW_WARPS][NT][SCALES];
    Part     part[PARTS];
};

/* Where lane 4 g + t has its results of a tile: such that neither the lanes that write them nor those that read two
 * columns of all rows meet in a bank. */
DEV int part_of(int g, int t) { return 8 * t + ((g + 2 * t) & 7); }
/* Where row and column of a tile are, in words. */
DEV int part_word(int row, int col) { return 4 * part_of(row >> 1, col >> 1) + 2 * (row & 1) + (col & 1); }

/* What a lane needs of the rows of x for a unit, in registers; and where it is, at this lane. */
template <class P, int NT> struct UnitRows {
    uint2 code[P::SCALES][P::CHUNKS][NT], sums[NT];
    const uint2 *codes, *of_sums;                  /* of the first tile */
};
template <class P, int NT> struct BlockRows {
    enum { ROLLED = 0 };
    const UnitRows<P, NT> &x;
    int c;
};
template <class P, int NT> DEV uint2 code_of(const BlockRows<P, NT> &x, int chunk, int j)
{
    return x.x.code[x.c][chunk][j];
}

/* Loads a unit, of which `left` blocks exist, and goes on by so many units. */
template <class P, int NT> DEV void load_rows(UnitRows<P, NT> &x, int tiles_log2, int left, int units)
{
    UNROLL
    for (int c = 0; c < P::SCALES; c++) {
        if (c >= left) break;
        const uint2 *codes = x.codes + (c * P::CHUNKS * 32 << tiles_log2);
        UNROLL
        for (int j = 0; j < NT; j++)
            UNROLL
            for (int k = 0; k < P::CHUNKS; k++) x.code[c][k][j] = ld(codes + (j * P::CHUNKS + k) * 32);
    }
    UNROLL
    for (int j = 0; P::MINS && j < NT; j++)
        if (left > 0) x.sums[j] = ld(x.of_sums + j * 32);
    x.codes += units * P::SCALES * P::CHUNKS * 32 << tiles_log2, x.of_sums += units * 32 << tiles_log2;
}

/* What a lane copies: its part of a unit's weights and of its scales of x. */
template <class P> struct FewSource {
    typename P::Source w;
    const uint8_t *scale;
};
template <class P, int NT, int MOST>
DEV void stage_few(FewShared<P, NT, MOST> &s, int slot, const FewSource<P> &from, int left, bool weights, bool rows)
{
    const int lane = TID & 31, warp = TID >> 5;
    if (weights) P::template stage<32>(s.w[slot][warp], from.w, left, lane);
    enum { EACH = 2 * P::SCALES };                 /* copies of 16 bytes for a tile's scales */
    const int j = lane / EACH, i = lane % EACH;
    if (FewShared<P, NT, MOST>::STAGED && rows && lane < NT * EACH && i / 2 < left)
        copy16_async(&s.scale[slot][warp][j][4 * i], from.scale);
}

template <class P, int NT, int MOST> DEV void few(const MatmulArgs &a, FewShared<P, NT, MOST> &s)
{
    typedef FewShared<P, NT, MOST> Shared;
    enum { STAGES = Shared::STAGES, WARPS = FEW_WARPS, AHEAD = STAGES - 1 };
    const int lane = TID & 31, warp = TID >> 5, g = lane >> 2, t = lane & 3, blocks = a.act.blocks,
              units = (blocks + P::SCALES - 1) / P::SCALES, tile0 = BID * NT;
    const int row = TID & 15, col = TID >> 4;      /* of this thread's outputs, the latter in every tile, up to 7 */
    const int tiles = (a.n - 8 * tile0 - col + 7) / 8, outputs = tiles < NT ? tiles : NT;
    const int end = outputs ? blocks : 0;          /* of the blocks whose floats this thread adds */
    const int result = part_word(row, col);
    int group = BID_Y;
    const ProductArgs p = product_at(a, &group);
    const uint8_t *w = p.w + (size_t) group * P::group_bytes(blocks);
    const size_t scale = act_block(a.act, tile0 + lane / (2 * P::SCALES), warp * P::SCALES + lane / 2 % P::SCALES);
    FewSource<P> from = { P::source(w, blocks, warp, lane),
                          (const uint8_t *) (a.act.scale + scale * 8 + 4 * (lane & 1)) };
    const int round = 32 * WARPS * P::SCALES << a.act.tiles_log2;      /* bytes of scales */
    float acc[NT];
    UNROLL
    for (int j = 0; j < NT; j++) acc[j] = 0;
    UNROLL
    for (int i = 0; i < AHEAD; i++, P::skip(from.w, WARPS))
        stage_few(s, i, from, blocks - (warp + i * WARPS) * P::SCALES, true, false);
    pass_next();
    pass_wait();
    UNROLL
    for (int i = 0; i < AHEAD; i++, from.scale += round) {
        stage_few(s, i, from, blocks - (warp + i * WARPS) * P::SCALES, false, true);
        copy_commit();
    }
    UnitRows<P, NT> x = {};
    /* one tile: rows that do not exist are read as the last, which is in the cache */
    const int own = NT == 1 && 8 * tile0 + g >= a.n ? 4 * ((a.n - 1) & 7) + t : lane;
    const size_t block = act_block(a.act, tile0, warp * P::SCALES);
    x.codes = (const uint2 *) a.act.code + block * P::CHUNKS * 32 + own;
    x.of_sums = (const uint2 *) a.act.sums + block * 32 + own;
    load_rows(x, a.act.tiles_log2, blocks - warp * P::SCALES, WARPS);
    int slot = 0, next = AHEAD, turn = 0;
    for (int u0 = 0; u0 < units; u0 += WARPS) {
        const int u = u0 + warp, left = blocks - u * P::SCALES;
        auto &part = s.part[turn];
        copy_wait<AHEAD - 1>();
        sync_warp();
        const uint32_t *unit = s.w[slot][warp];
        UNROLL
        for (int c = 0; c < P::SCALES; c++) {
            /* nobody reads what is made of a unit that is not there, and asking costs more */
            if (P::SCALES > 1 && c >= left) break;
            int isum[1][NT][4];
            uint32_t min[2];
            P::template sums<1, NT>(isum, unit, c, BlockRows<P, NT>{x, c}, lane);
            P::mins(min, unit, g, t);
            UNROLL
            for (int j = 0; j < NT; j++) {
                const int *i = isum[0][j];
                part[warp][c][0][j][part_of(g, t)] = int4{i[0], i[1], i[2], i[3]};
                if (!P::MINS) continue;
                int m[4];
                min_sums(m, min, x.sums[j]);
                part[warp][c][P::MINS][j][part_of(g, t)] = int4{m[0], m[1], m[2], m[3]};
            }
        }
        load_rows(x, a.act.tiles_log2, left - WARPS * P::SCALES, WARPS);
        sync_block();                              /* and nobody reads the slot of the round before any more */
        stage_few(s, next, from, left - AHEAD * WARPS * P::SCALES, true, true);
        copy_commit();
        UNROLL
        for (int i = 0; i < WARPS * P::SCALES; i++) {
            const int b = u0 * P::SCALES + i, k = i / P::SCALES, c = i % P::SCALES;
            if (b >= end) break;
            UNROLL
            for (int j = 0; j < NT; j++) {
                if (NT > 1 && j >= outputs) break;
                const size_t at = Shared::STAGED && !P::ROW_SUMS
                                ? 0 : act_block(a.act, tile0 + j, b) * 8 + (size_t) col;
                const int isum = ((const int *) part[k][c][0][j])[result];
                const int second = P::MINS ? ((const int *) part[k][c][P::MINS][j])[result]
                                 : P::ROW_SUMS ? ld((const int32_t *) a.act.sums + at) : 0;
                const float da = Shared::STAGED ? s.scale[slot][k][j][8 * c + col] : ld(a.act.scale + at);
                acc[j] = P::finish(acc[j], s.w[slot][k], c, row, isum, second, da);
            }
        }
        if (Shared::PARTS == 1) sync_block();
        P::skip(from.w, WARPS), from.scale += round;
        slot = slot + 1 < STAGES ? slot + 1 : 0, next = next + 1 < STAGES ? next + 1 : 0;
        turn = (turn + 1) % Shared::PARTS;
    }
    copy_wait<0>();
    UNROLL
    for (int j = 0; j < NT; j++) {
        const int to = group * 16 + row, from = 8 * (tile0 + j) + col;
        if (j < outputs && to < p.rows) st(p.y + (size_t) from * (size_t) p.stride + to, acc[j]);
    }
}

/* ---- more rows: a block has MT groups by NT tiles of x in shared memory, a warp MW by NW of them in registers ---- */

/* Blocks of `many` on a multiprocessor; those of sm_120 have shared memory for one or two with most packs, and what is
 * unrolled would take all registers that two leave. On sm_75 it would take more than three leave. */
#if __CUDA_ARCH__ >= 1200
enum { MANY_BLOCKS = 2, TILE_ROLLED = 1 };
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
enum { MANY_BLOCKS = 3, TILE_ROLLED = 1 };
#else
enum { MANY_BLOCKS = 3, TILE_ROLLED = 0 };
#endif

template <class P, int MT, int NT> struct TileStage {
    enum { SUM_WORDS = P::MINS ? 64 : P::ROW_SUMS ? 8 : 4 };
    uint32_t w[MT][P::WORDS];
    uint2    code[P::SCALES][NT][P::CHUNKS][32];
    uint32_t sums[P::SCALES][NT][SUM_WORDS];
    float    scale[P::SCALES][NT][8];
};

/* Quantised rows in shared memory, at this lane. */
template <class P> struct SharedRows {
    enum { ROLLED = TILE_ROLLED };
    const uint2 *codes;
};
template <class P> DEV uint2 code_of(const SharedRows<P> &x, int chunk, int j)
{
    return x.codes[(j * P::CHUNKS + chunk) * 32];
}

/* What a thread copies for the next unit: its parts of a group's weights and of the rows. */
template <class P> struct TileSource {
    typename P::Source w;
    const uint8_t *code, *sums, *scale;
};

/* BYTES, a multiple of 16, by all threads of the block; both addresses are this thread's. */
template <int BYTES, int THREADS> DEV void copy_all(uint8_t *to, const uint8_t *from)
{
    enum { ROUND = 16 * THREADS };
    UNROLL
    for (int i = 0; i < BYTES; i += ROUND)
        if (i + ROUND <= BYTES || i + 16 * TID < BYTES) copy16_async(to + i, from + i);
}

template <class P, int MT, int NT, int THREADS>
DEV void stage_weights(TileStage<P, MT, NT> &s, TileSource<P> &from, int left)
{
    enum { EACH = THREADS / MT };                  /* threads of a group */
    P::template stage<EACH>(s.w[TID / EACH], from.w, left, TID % EACH);
    P::skip(from.w, 1);
}

template <class P, int MT, int NT, int THREADS>
DEV void stage_rows(TileStage<P, MT, NT> &s, TileSource<P> &from, int tiles_log2, int left)
{
    enum { CODES = P::CHUNKS * 256, SUMS = P::MINS ? 256 : 32, SCALE = 32 };       /* bytes of a block of a tile */
    UNROLL
    for (int c = 0; c < P::SCALES; c++) {
        if (P::SCALES > 1 && c >= left) break;
        copy_all<NT * CODES, THREADS>((uint8_t *) s.code[c] + 16 * TID, from.code);
        copy_all<NT * SCALE, THREADS>((uint8_t *) s.scale[c] + 16 * TID, from.scale);
        if (P::MINS || P::ROW_SUMS) copy_all<NT * SUMS, THREADS>((uint8_t *) s.sums[c] + 16 * TID, from.sums);
        from.code += CODES << tiles_log2, from.scale += SCALE << tiles_log2, from.sums += SUMS << tiles_log2;
    }
}

/* Adds block c of a unit to the outputs of a warp's first LIVE tiles; tile: its first of the block's tiles of x. */
template <class P, int MW, int LIVE, int NW, int MT, int NT>
DEV void tile_block(float (&acc)[MW][NW][4], const TileStage<P, MT, NT> &s, int c, int group, int tile, int lane)
{
    const int g = lane >> 2, t = lane & 3;
    const SharedRows<P> x = { s.code[c][tile][0] + lane };
    int isum[MW][LIVE][4];
    uint32_t min[MW][2];
    P::template sums<MW, LIVE>(isum, s.w[group], c, x, lane);
    UNROLL
    for (int m = 0; m < MW; m++) P::mins(min[m], s.w[group + m], g, t);
    UNROLL
    for (int j = 0; j < LIVE; j++) {
        const float2 both = *(const float2 *) &s.scale[c][tile + j][2 * t];
        const float da[2] = { both.x, both.y };
        UNROLL
        for (int m = 0; m < MW; m++) {
            int second[4] = { 0, 0, 0, 0 };
            if (P::MINS) min_sums(second, min[m], ((const uint2 *) s.sums[c][tile + j])[lane]);
            UNROLL
            for (int i = 0; i < 4; i++) {
                if (P::ROW_SUMS) second[i] = (int) s.sums[c][tile + j][2 * t + (i & 1)];
                acc[m][j][i] = P::finish(acc[m][j][i], s.w[group + m], c, 2 * g + (i >> 1), isum[m][j][i], second[i],
                                         da[i & 1]);
            }
        }
    }
}

template <class P, int MT, int NT, int MW, int NW, int STAGES>
DEV void tile(const MatmulArgs &a, TileStage<P, MT, NT> (&s)[STAGES])
{
    enum { THREADS = 32 * (MT / MW) * (NT / NW) };
    const int lane = TID & 31, warp = TID >> 5, g = lane >> 2, t = lane & 3, blocks = a.act.blocks,
              units = (blocks + P::SCALES - 1) / P::SCALES, tile0 = BID * NT,
              group = warp % (MT / MW) * MW, x_tile = warp / (MT / MW) * NW;       /* of this warp, in the block */
    int at = BID_Y;
    const ProductArgs p = product_at(a, &at);
    /* Beyond the last group it is copied again, for outputs that nobody wants. */
    const int group0 = at * MT, last = (p.rows + 15) / 16 - 1, copied = group0 + TID / (THREADS / MT);
    const size_t first = act_block(a.act, tile0, 0), own = (size_t) (16 * TID);
    TileSource<P> from = {
        P::source(p.w + (size_t) (copied < last ? copied : last) * P::group_bytes(blocks), blocks, 0,
                  TID % (THREADS / MT)),
        a.act.code + first * P::CHUNKS * 256 + own, a.act.sums + first * (P::MINS ? 256 : 32) + own,
        (const uint8_t *) (a.act.scale + first * 8) + own };
    float acc[MW][NW][4];
    UNROLL
    for (int m = 0; m < MW; m++)
        UNROLL
        for (int j = 0; j < NW; j++) acc[m][j][0] = acc[m][j][1] = acc[m][j][2] = acc[m][j][3] = 0;
    UNROLL
    for (int i = 0; i < STAGES - 1; i++)
        if (i < units) stage_weights<P, MT, NT, THREADS>(s[i], from, blocks - i * P::SCALES);
    pass_next();
    pass_wait();
    UNROLL
    for (int i = 0; i < STAGES - 1; i++) {
        if (i < units) stage_rows<P, MT, NT, THREADS>(s[i], from, a.act.tiles_log2, blocks - i * P::SCALES);
        copy_commit();
    }
    const bool three = NT == 4 && NW == 4 && a.n - 8 * tile0 <= 24;    /* as trees of 22 rows have */
    int slot = 0, next = STAGES - 1;
    for (int u = 0; u < units; u++) {
        copy_wait<STAGES - 2>();
        sync_block();                              /* unit u is there, and nobody reads u - 1 any more */
        const int left = blocks - (u + STAGES - 1) * P::SCALES;
        if (left > 0) {
            stage_weights<P, MT, NT, THREADS>(s[next], from, left);
            stage_rows<P, MT, NT, THREADS>(s[next], from, a.act.tiles_log2, left);
        }
        copy_commit();
        UNROLL
        for (int c = 0; c < P::SCALES; c++) {
            if (P::SCALES > 1 && u * P::SCALES + c >= blocks) break;
            if (three) tile_block<P, MW, NT == 4 ? 3 : NW>(acc, s[slot], c, group, x_tile, lane);
            else tile_block<P, MW, NW>(acc, s[slot], c, group, x_tile, lane);
        }
        slot = slot + 1 < STAGES ? slot + 1 : 0, next = next + 1 < STAGES ? next + 1 : 0;
    }
    copy_wait<0>();
    UNROLL
    for (int m = 0; m < MW; m++)
        UNROLL
        for (int j = 0; j < NW; j++)
            UNROLL
            for (int i = 0; i < 4; i++) {
                const int row = (group0 + group + m) * 16 + 2 * g + (i >> 1),
                          col = 8 * (tile0 + x_tile + j) + 2 * t + (i & 1);
                if (col < a.n && row < p.rows) st(p.y + (size_t) col * (size_t) p.stride + row, acc[m][j][i]);
            }
}

/* The shapes in which few and tile are used. */
template <class P, int NT> struct WideShared {
    typedef TileStage<P, 4, NT> Stage;
    enum { STAGES = 3 * sizeof(Stage) <= SHARED_LEAST ? 3 : 2 };
    Stage stage[STAGES];
};

/* Weights of two packs: those of B are marked as `second`. */
template <class A, class B, int NT, int MOST> union FewOfTwo {
    FewShared<A, NT, MOST> first;
    FewShared<B, NT, MOST> second;
};
template <class A, class B, int NT> union WideOfTwo { WideShared<A, NT> first; WideShared<B, NT> second; };

template <class A, class B, int NT, int MOST> DEV void few_of_two(const MatmulArgs &a, FewOfTwo<A, B, NT, MOST> &s)
{
    int at = BID_Y;
    if (product_at(a, &at).second) few(a, s.second);
    else few(a, s.first);
}

template <class A, class B, int NT, int MW, int NW> DEV void wide_of_two(const MatmulArgs &a, WideOfTwo<A, B, NT> &s)
{
    int at = BID_Y;
    if (product_at(a, &at).second) tile<B, 4, NT, MW, NW>(a, s.second.stage);
    else tile<A, 4, NT, MW, NW>(a, s.first.stage);
}

/* blocks: of a multiprocessor */
#define PRODUCT(blocks, kernel, WHERE, Shared, ...) \
    KERNEL_BLOCKS(128, blocks, kernel, MatmulArgs) \
    { \
        WHERE(Shared, s); \
        __VA_ARGS__; \
    }
#define PRODUCTS(name, Pack) \
    typedef FewShared<Pack, 1, FEW_STAGES> Few1_##name; \
    typedef FewShared<Pack, 1, DEEP_STAGES> Deep1_##name; \
    typedef FewShared<Pack, 2, DEEP_STAGES> Deep2_##name; \
    typedef WideShared<Pack, 2> Wide2_##name; \
    typedef WideShared<Pack, 4> Wide4_##name; \
    typedef WideShared<Pack, 8> Many_##name; \
    PRODUCT(6, matmul_##name##_few1, SHARED, Few1_##name, few(a, s)) \
    PRODUCT(3, matmul_##name##_deep1, SHARED_BIG, Deep1_##name, few(a, s)) \
    PRODUCT(3, matmul_##name##_deep2, SHARED_BIG, Deep2_##name, few(a, s)) \
    PRODUCT(4, matmul_##name##_wide2, SHARED_BIG, Wide2_##name, tile<Pack, 4, 2, 1, 2>(a, s.stage)) \
    PRODUCT(4, matmul_##name##_wide4, SHARED_BIG, Wide4_##name, tile<Pack, 4, 4, 1, 4>(a, s.stage)) \
    PRODUCT(MANY_BLOCKS, matmul_##name##_many, SHARED_BIG, Many_##name, tile<Pack, 4, 8, 2, 4>(a, s.stage))

#define PRODUCTS_OF_TWO(name, A, B) \
    typedef FewOfTwo<A, B, 1, FEW_STAGES> Few1_##name; \
    typedef FewOfTwo<A, B, 1, DEEP_STAGES> Deep1_##name; \
    typedef FewOfTwo<A, B, 2, DEEP_STAGES> Deep2_##name; \
    typedef WideOfTwo<A, B, 2> Wide2_##name; \
    typedef WideOfTwo<A, B, 4> Wide4_##name; \
    typedef WideOfTwo<A, B, 8> Many_##name; \
    PRODUCT(5, matmul_##name##_few1, SHARED, Few1_##name, few_of_two(a, s)) \
    PRODUCT(3, matmul_##name##_deep1, SHARED_BIG, Deep1_##name, few_of_two(a, s)) \
    PRODUCT(3, matmul_##name##_deep2, SHARED_BIG, Deep2_##name, few_of_two(a, s)) \
    PRODUCT(4, matmul_##name##_wide2, SHARED_BIG, Wide2_##name, wide_of_two<A, B, 2, 1, 2>(a, s)) \
    PRODUCT(4, matmul_##name##_wide4, SHARED_BIG, Wide4_##name, wide_of_two<A, B, 4, 1, 4>(a, s)) \
    PRODUCT(MANY_BLOCKS, matmul_##name##_many, SHARED_BIG, Many_##name, wide_of_two<A, B, 8, 2, 4>(a, s))

#endif
