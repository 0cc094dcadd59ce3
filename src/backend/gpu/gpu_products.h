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

/* ---- up to 32 rows: the warps of a block share the columns of one group; integers meet in shared memory. Four warps,
 * or eight where there are few groups: then a multiprocessor has few blocks ---- */

template <class P, int NT, int WARPS> struct FewShared {
    /* Two of them where there is room: then the next round need not wait until the floats are added. */
    typedef int Part[WARPS][P::SCALES][1 + P::MINS][16][8 * NT + 1];
    enum { STAGES = WARPS == 4 ? 3 : 2,
           STAGED = NT * P::SCALES < 16,           /* scales, too, where there is room */
           SCALES = STAGED ? P::SCALES * 8 : 4, OF_WARP = (P::WORDS + NT * SCALES) * 4,
           PARTS = STAGES == 3 && STAGES * WARPS * OF_WARP + 2 * sizeof(Part) <= 48 << 10 ? 2 : 1 };
    uint32_t w[STAGES][WARPS][P::WORDS];
    float    scale[STAGES][WARPS][NT][SCALES];
    Part     part[PARTS];
};

/* What a lane needs of the rows of x for a unit, in registers. */
template <class P, int NT> struct UnitRows {
    uint2 code[P::SCALES][P::CHUNKS][NT], sums[NT];
    const uint2 *codes;                            /* of the first tile, at this lane */
    const uint2 *of_sums;
};
template <class P, int NT> struct BlockRows {
    enum { UNROLLED = 1 };
    const UnitRows<P, NT> &x;
    int c;
};
template <class P, int NT> DEV uint2 code_of(const BlockRows<P, NT> &x, int chunk, int j)
{
    return x.x.code[x.c][chunk][j];
}

template <class P, int NT> DEV void load_rows(UnitRows<P, NT> &x, int unit, int blocks)
{
    const uint2 *codes = x.codes + (size_t) unit * P::SCALES * P::CHUNKS * 32;
    UNROLL
    for (int c = 0; c < P::SCALES; c++) {
        if (unit * P::SCALES + c >= blocks) break;
        UNROLL
        for (int j = 0; j < NT; j++)
            UNROLL
            for (int k = 0; k < P::CHUNKS; k++)
                x.code[c][k][j] = ld(codes + (size_t) j * (size_t) blocks * P::CHUNKS * 32 + (c * P::CHUNKS + k) * 32);
    }
    UNROLL
    for (int j = 0; P::MINS && j < NT; j++)
        x.sums[j] = unit < blocks ? ld(x.of_sums + ((size_t) j * (size_t) blocks + (size_t) unit) * 32) : uint2{0, 0};
}

/* A result fragment, to columns col .. of a matrix in shared memory. */
template <int COLS> DEV void put_part(int (&to)[16][COLS], const int from[4], int col, int g, int t)
{
    UNROLL
    for (int k = 0; k < 4; k++) to[g + 8 * (k >> 1)][col + 2 * t + (k & 1)] = from[k];
}

template <class P, int NT, int WARPS>
DEV void stage_few(FewShared<P, NT, WARPS> &s, int slot, const MatmulArgs &a, const uint8_t *w, int tile0, int unit,
                   bool weights, bool rows)
{
    const int lane = TID & 31, warp = TID >> 5, blocks = a.act.blocks, left = blocks - unit * P::SCALES;
    if (weights) P::template stage<32>(s.w[slot][warp], w, unit, blocks, left, lane);
    enum { EACH = 2 * P::SCALES };                 /* copies of 16 bytes for a tile's scales */
    const int j = lane / EACH, i = lane % EACH;
    if (FewShared<P, NT, WARPS>::STAGED && rows && lane < NT * EACH && i / 2 < left)
        copy16_async(&s.scale[slot][warp][j][4 * i],
                     a.act.scale + ((size_t) (tile0 + j) * (size_t) blocks + (size_t) unit * P::SCALES) * 8 + 4 * i);
}

template <class P, int NT, int WARPS> DEV void few(const MatmulArgs &a, FewShared<P, NT, WARPS> &s)
{
    typedef FewShared<P, NT, WARPS> Shared;
    enum { STAGES = Shared::STAGES };
    const int lane = TID & 31, warp = TID >> 5, g = lane >> 2, t = lane & 3, blocks = a.act.blocks,
              units = (blocks + P::SCALES - 1) / P::SCALES, tile0 = BID * NT;
    const int row = TID & 15, col = TID >> 4;      /* of this thread's outputs, the latter in every tile, up to 7 */
    const int tiles = (a.n - 8 * tile0 - col + 7) / 8, outputs = col >= 8 ? 0 : tiles < NT ? tiles : NT;
    const int end = outputs ? blocks : 0;          /* of the blocks whose floats this thread adds */
    int group = BID_Y;
    const ProductArgs p = product_at(a, &group);
    const uint8_t *w = p.w + (size_t) group * P::group_bytes(blocks);
    float acc[NT];
    UNROLL
    for (int j = 0; j < NT; j++) acc[j] = 0;
    UNROLL
    for (int i = 0; i < 2; i++) stage_few(s, i, a, w, tile0, warp + i * WARPS, true, false);
    pass_next();
    pass_wait();
    UNROLL
    for (int i = 0; i < 2; i++) {
        stage_few(s, i, a, w, tile0, warp + i * WARPS, false, true);
        copy_commit();
    }
    UnitRows<P, NT> x;
    /* one tile: rows that do not exist are read as the last, which is in the cache */
    const int own = NT == 1 && 8 * tile0 + g >= a.n ? 4 * ((a.n - 1) & 7) + t : lane;
    x.codes = (const uint2 *) a.act.code + (size_t) tile0 * (size_t) blocks * P::CHUNKS * 32 + own;
    x.of_sums = (const uint2 *) a.act.sums + (size_t) tile0 * (size_t) blocks * 32 + own;
    load_rows(x, warp, blocks);
    for (int u0 = 0, round = 0; u0 < units; u0 += WARPS, round++) {
        const int u = u0 + warp, slot = round % STAGES;
        auto &part = s.part[round % Shared::PARTS];
        copy_wait<1>();
        sync_warp();
        const uint32_t *unit = s.w[slot][warp];
        UNROLL
        for (int c = 0; c < P::SCALES; c++) {
            if (u * P::SCALES + c >= blocks) break;
            int isum[1][NT][4];
            uint32_t min[2];
            P::template sums<1, NT>(isum, unit, c, BlockRows<P, NT>{x, c}, lane);
            P::mins(min, unit, g, t);
            UNROLL
            for (int j = 0; j < NT; j++) {
                put_part(part[warp][c][0], isum[0][j], 8 * j, g, t);
                if (!P::MINS) continue;
                int msum[4];
                min_sums(msum, min, x.sums[j]);
                put_part(part[warp][c][P::MINS], msum, 8 * j, g, t);
            }
        }
        load_rows(x, u + WARPS, blocks);
        sync_block();                              /* and nobody reads the slot of the round before any more */
        if (STAGES > 2) {
            stage_few(s, (round + 2) % STAGES, a, w, tile0, u + 2 * WARPS, true, true);
            copy_commit();
        }
        UNROLL
        for (int i = 0; i < WARPS * P::SCALES; i++) {
            const int b = u0 * P::SCALES + i, k = i / P::SCALES, c = i % P::SCALES;
            if (b >= end) break;
            UNROLL
            for (int j = 0; j < NT; j++) {
                if (NT > 1 && j >= outputs) break;
                const size_t at = ((size_t) (tile0 + j) * (size_t) blocks + (size_t) b) * 8 + (size_t) col;
                const int isum = part[k][c][0][row][8 * j + col];
                const int second = P::MINS ? part[k][c][P::MINS][row][8 * j + col]
                                 : P::ROW_SUMS ? ld((const int32_t *) a.act.sums + at) : 0;
                const float da = Shared::STAGED ? s.scale[slot][k][j][8 * c + col] : ld(a.act.scale + at);
                acc[j] = P::finish(acc[j], s.w[slot][k], c, row, isum, second, da);
            }
        }
        if (Shared::PARTS == 1) sync_block();
        if (STAGES == 2) {
            stage_few(s, slot, a, w, tile0, u + 2 * WARPS, true, true);
            copy_commit();
        }
    }
    copy_wait<0>();
    UNROLL
    for (int j = 0; j < NT; j++) {
        const int to = group * 16 + row, from = 8 * (tile0 + j) + col;
        if (j < outputs && to < p.rows) st(p.y + (size_t) from * (size_t) p.stride + to, acc[j]);
    }
}

/* ---- more rows: a block has MT groups by NT tiles of x in shared memory, a warp MW by NW of them in registers ---- */

template <class P, int MT, int NT> struct TileStage {
    enum { SUM_WORDS = P::MINS ? 64 : P::ROW_SUMS ? P::SCALES * 8 : 4 };
    uint32_t w[MT][P::WORDS];
    uint2    code[NT][P::SCALES * P::CHUNKS][32];
    uint32_t sums[NT][SUM_WORDS];
    float    scale[NT][P::SCALES * 8];
};

/* Quantised rows in shared memory, at this lane. */
template <class P> struct SharedRows {
    enum { UNROLLED = 0 };
    const uint2 *codes;
};
template <class P> DEV uint2 code_of(const SharedRows<P> &x, int chunk, int j)
{
    return x.codes[(j * P::SCALES * P::CHUNKS + chunk) * 32];
}

/* For each of NT tiles BYTES that follow one another, of which there are as many as `there` says, by all threads of the
 * block; tiles are `stride` bytes apart. BYTES: a power of two, at least 16. Not unrolled, which would cost
 * registers. */
template <int NT, int BYTES, int THREADS>
DEV void copy_tiles(void *to, const void *from, size_t stride, int there)
{
    UNROLL_BY(1)
    for (int i = 16 * TID; i < NT * BYTES; i += 16 * THREADS)
        if (i % BYTES < there)
            copy16_async((uint8_t *) to + i, (const uint8_t *) from + (size_t) (i / BYTES) * stride + i % BYTES);
}

template <class P, int MT, int NT, int THREADS>
DEV void stage_weights(TileStage<P, MT, NT> &s, const ProductArgs &p, int group0, int unit, int blocks)
{
    const int last = (p.rows + 15) / 16 - 1;       /* beyond it the last group again, for outputs that nobody wants */
    UNROLL
    for (int m = 0; m < MT; m++) {
        const int group = group0 + m < last ? group0 + m : last;
        P::template stage<THREADS>(s.w[m], p.w + (size_t) group * P::group_bytes(blocks), unit, blocks,
                                   blocks - unit * P::SCALES, TID);
    }
}

template <class P, int MT, int NT, int THREADS>
DEV void stage_rows(TileStage<P, MT, NT> &s, const ActRows &x, int tile0, int unit)
{
    enum { CODES = P::CHUNKS * 256, SUMS = P::MINS ? 256 : 32, SCALE = 32 };       /* bytes of a block */
    const size_t blocks = (size_t) x.blocks, block = (size_t) tile0 * blocks + (size_t) unit * P::SCALES;
    const int left = x.blocks - unit * P::SCALES;
    copy_tiles<NT, P::SCALES * CODES, THREADS>(s.code, x.code + block * CODES, blocks * CODES, left * CODES);
    copy_tiles<NT, P::SCALES * SCALE, THREADS>(s.scale, x.scale + block * 8, blocks * SCALE, left * SCALE);
    if (P::MINS || P::ROW_SUMS)
        copy_tiles<NT, P::SCALES * SUMS, THREADS>(s.sums, x.sums + block * SUMS, blocks * SUMS, left * SUMS);
}

/* Adds block c of a unit to a warp's outputs; tile: its first of the block's tiles of x. */
template <class P, int MW, int NW, int MT, int NT>
DEV void tile_block(float acc[MW][NW][4], const TileStage<P, MT, NT> &s, int c, int group, int tile, int lane)
{
    const int g = lane >> 2, t = lane & 3;
    const SharedRows<P> x = { s.code[tile][c * P::CHUNKS] + lane };
    int isum[MW][NW][4];
    uint32_t min[MW][2];
    P::template sums<MW, NW>(isum, s.w[group], c, x, lane);
    UNROLL
    for (int m = 0; m < MW; m++) P::mins(min[m], s.w[group + m], g, t);
    UNROLL
    for (int j = 0; j < NW; j++) {
        const float da[2] = { s.scale[tile + j][8 * c + 2 * t], s.scale[tile + j][8 * c + 2 * t + 1] };
        UNROLL
        for (int m = 0; m < MW; m++) {
            int second[4] = { 0, 0, 0, 0 };
            if (P::MINS) min_sums(second, min[m], ((const uint2 *) s.sums[tile + j])[lane]);
            UNROLL
            for (int i = 0; i < 4; i++) {
                if (P::ROW_SUMS) second[i] = (int) s.sums[tile + j][8 * c + 2 * t + (i & 1)];
                acc[m][j][i] = P::finish(acc[m][j][i], s.w[group + m], c, g + 8 * (i >> 1), isum[m][j][i], second[i],
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
    const int group0 = at * MT;
    float acc[MW][NW][4];
    UNROLL
    for (int m = 0; m < MW; m++)
        UNROLL
        for (int j = 0; j < NW; j++) acc[m][j][0] = acc[m][j][1] = acc[m][j][2] = acc[m][j][3] = 0;
    UNROLL
    for (int i = 0; i < STAGES - 1; i++)
        if (i < units) stage_weights<P, MT, NT, THREADS>(s[i], p, group0, i, blocks);
    pass_next();
    pass_wait();
    UNROLL
    for (int i = 0; i < STAGES - 1; i++) {
        if (i < units) stage_rows<P, MT, NT, THREADS>(s[i], a.act, tile0, i);
        copy_commit();
    }
    for (int u = 0; u < units; u++) {
        copy_wait<STAGES - 2>();
        sync_block();                              /* unit u is there, and nobody reads u - 1 any more */
        const int later = u + STAGES - 1;
        if (later < units) {
            stage_weights<P, MT, NT, THREADS>(s[later % STAGES], p, group0, later, blocks);
            stage_rows<P, MT, NT, THREADS>(s[later % STAGES], a.act, tile0, later);
        }
        copy_commit();
        UNROLL
        for (int c = 0; c < P::SCALES; c++) {
            if (u * P::SCALES + c >= blocks) break;
            tile_block<P, MW, NW>(acc, s[u % STAGES], c, group, x_tile, lane);
        }
    }
    copy_wait<0>();
    UNROLL
    for (int m = 0; m < MW; m++)
        UNROLL
        for (int j = 0; j < NW; j++)
            UNROLL
            for (int i = 0; i < 4; i++) {
                const int row = (group0 + group + m) * 16 + g + 8 * (i >> 1),
                          col = 8 * (tile0 + x_tile + j) + 2 * t + (i & 1);
                if (col < a.n && row < p.rows) st(p.y + (size_t) col * (size_t) p.stride + row, acc[m][j][i]);
            }
}

/* The shapes in which few and tile are used. */
template <class P, int NT> DEV void few_alone(const MatmulArgs &a)
{
    typedef FewShared<P, NT, 4> Shared;
    SHARED(Shared, s);
    few<P, NT, 4>(a, s);
}

template <class P, int NT> struct WideShared { TileStage<P, 4, NT> stage[2]; };

/* Weights of two packs: those of B are marked as `second`. */
template <class A, class B, int NT, int WARPS> union FewOfTwo {
    FewShared<A, NT, WARPS> first;
    FewShared<B, NT, WARPS> second;
};
template <class A, class B, int NT> union WideOfTwo { WideShared<A, NT> first; WideShared<B, NT> second; };

template <class A, class B, int NT, int WARPS> DEV void few_of_two(const MatmulArgs &a, FewOfTwo<A, B, NT, WARPS> &s)
{
    int at = BID_Y;
    if (product_at(a, &at).second) few<B, NT, WARPS>(a, s.second);
    else few<A, NT, WARPS>(a, s.first);
}

template <class A, class B, int NT> DEV void wide_of_two(const MatmulArgs &a, WideOfTwo<A, B, NT> &s)
{
    int at = BID_Y;
    if (product_at(a, &at).second) tile<B, 4, NT, 1, 4>(a, s.second.stage);
    else tile<A, 4, NT, 1, 4>(a, s.first.stage);
}

/* Blocks of `many` on a multiprocessor; those of sm_120 have shared memory for one or two with most packs, and K5 needs
 * more registers there than three would leave. */
#if __CUDA_ARCH__ >= 1200
enum { MANY_BLOCKS = 2 };
#else
enum { MANY_BLOCKS = 3 };
#endif

/* WIDE_BLOCKS: of wide8; two for a pack that spills in the registers that three leave. */
#define PRODUCTS(name, Pack) PRODUCTS_WIDE(name, Pack, 3)
#define PRODUCTS_WIDE(name, Pack, WIDE_BLOCKS) \
    KERNEL_BLOCKS(256, 3, matmul_##name##_deep1, MatmulArgs) \
    { \
        typedef FewShared<Pack, 1, 8> Shared; \
        SHARED_BIG(Shared, s); \
        few<Pack, 1, 8>(a, s); \
    } \
    KERNEL_BLOCKS(128, 6, matmul_##name##_few1, MatmulArgs) { few_alone<Pack, 1>(a); } \
    KERNEL(128, matmul_##name##_few2, MatmulArgs) { few_alone<Pack, 2>(a); } \
    KERNEL_BLOCKS(128, 3, matmul_##name##_few4, MatmulArgs) \
    { \
        typedef FewShared<Pack, 4, 4> Shared; \
        SHARED_BIG(Shared, s); \
        few<Pack, 4, 4>(a, s); \
    } \
    KERNEL_BLOCKS(128, 4, matmul_##name##_wide4, MatmulArgs) \
    { \
        typedef WideShared<Pack, 4> Shared; \
        SHARED(Shared, s); \
        tile<Pack, 4, 4, 1, 4>(a, s.stage); \
    } \
    KERNEL_BLOCKS(256, WIDE_BLOCKS, matmul_##name##_wide8, MatmulArgs) \
    { \
        typedef WideShared<Pack, 8> Shared; \
        SHARED_BIG(Shared, s); \
        tile<Pack, 4, 8, 1, 4>(a, s.stage); \
    } \
    KERNEL_BLOCKS(128, MANY_BLOCKS, matmul_##name##_many, MatmulArgs) \
    { \
        typedef WideShared<Pack, 8> Shared; \
        SHARED_BIG(Shared, s); \
        tile<Pack, 4, 8, 2, 4>(a, s.stage); \
    }

/* WHERE: SHARED, or SHARED_BIG for more than 48 KB. */
#define FEW_OF_TWO(kernel, threads, blocks, WHERE, PackA, PackB, NT, WARPS) \
    KERNEL_BLOCKS(threads, blocks, kernel, MatmulArgs) \
    { \
        typedef FewOfTwo<PackA, PackB, NT, WARPS> Shared; \
        WHERE(Shared, s); \
        few_of_two<PackA, PackB, NT, WARPS>(a, s); \
    }
#define WIDE_OF_TWO(kernel, threads, blocks, WHERE, PackA, PackB, NT) \
    KERNEL_BLOCKS(threads, blocks, kernel, MatmulArgs) \
    { \
        typedef WideOfTwo<PackA, PackB, NT> Shared; \
        WHERE(Shared, s); \
        wide_of_two<PackA, PackB, NT>(a, s); \
    }
#define PRODUCTS_OF_TWO(name, PackA, PackB) \
    FEW_OF_TWO(matmul_##name##_deep1, 256, 2, SHARED_BIG, PackA, PackB, 1, 8) \
    FEW_OF_TWO(matmul_##name##_few1, 128, 3, SHARED, PackA, PackB, 1, 4) \
    FEW_OF_TWO(matmul_##name##_few2, 128, 3, SHARED, PackA, PackB, 2, 4) \
    FEW_OF_TWO(matmul_##name##_few4, 128, 3, SHARED_BIG, PackA, PackB, 4, 4) \
    WIDE_OF_TWO(matmul_##name##_wide4, 128, 4, SHARED, PackA, PackB, 4) \
    WIDE_OF_TWO(matmul_##name##_wide8, 256, 2, SHARED_BIG, PackA, PackB, 8)

#endif
