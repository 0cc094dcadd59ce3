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

/* ---- few rows: the warps of a block share the columns of one group; integers meet in shared memory ---- */

enum { FEW_WARPS = 4, FEW_STAGES = 3 };
template <class P, int NT> struct FewShared {
    uint32_t w[FEW_STAGES][FEW_WARPS][P::WORDS];
    int      part[FEW_WARPS][P::SCALES][1 + P::MINS][16][8 * NT + 1];
};

/* Quantised rows in global memory, at this lane. */
struct GlobalRows {
    const uint2 *codes, *sums;
    int tiles;
};
DEV uint2 code_of(const GlobalRows &x, int chunk, int j) { return ld(x.codes + (chunk * x.tiles + j) * 32); }
DEV uint2 sums_of(const GlobalRows &x, int j) { return ld(x.sums + j * 32); }

/* A result fragment, to columns col .. of a matrix in shared memory. */
template <int COLS> DEV void put_part(int (&to)[16][COLS], const int from[4], int col, int g, int t)
{
    UNROLL
    for (int k = 0; k < 4; k++) to[g + 8 * (k >> 1)][col + 2 * t + (k & 1)] = from[k];
}

template <class P, int NT> DEV void few(const MatmulArgs &a, FewShared<P, NT> &s)
{
    const int lane = TID & 31, warp = TID >> 5, g = lane >> 2, t = lane & 3, blocks = a.act.blocks,
              units = (blocks + P::SCALES - 1) / P::SCALES, rows = 8 * a.act.tiles, tile0 = BID * NT;
    const int row = TID & 15, col = TID >> 4;      /* of this thread's outputs, the latter in every tile */
    int group = BID_Y;
    const ProductArgs p = product_at(a, &group);
    const uint8_t *w = p.w + (size_t) group * P::group_bytes(blocks);
    float acc[NT];
    UNROLL
    for (int j = 0; j < NT; j++) acc[j] = 0;
    UNROLL
    for (int i = 0; i < FEW_STAGES - 1; i++) {
        const int u = warp + i * FEW_WARPS;
        P::stage(s.w[i][warp], w, u, blocks, blocks - u * P::SCALES, lane, 32);
        copy_commit();
    }
    pass_next();
    pass_wait();
    for (int u0 = 0, round = 0; u0 < units; u0 += FEW_WARPS, round++) {
        const int u = u0 + warp, left = blocks - u * P::SCALES;
        float da[FEW_WARPS * P::SCALES][NT];
        int qsum[FEW_WARPS * P::SCALES][NT];
        UNROLL
        for (int i = 0; i < FEW_WARPS * P::SCALES; i++)
            UNROLL
            for (int j = 0; j < NT; j++) {
                const int b = u0 * P::SCALES + i;
                const size_t at = (size_t) b * (size_t) rows + (size_t) (8 * (tile0 + j) + col);
                da[i][j] = b < blocks ? ld(a.act.scale + at) : 0;
                qsum[i][j] = P::ROW_SUMS && b < blocks ? ld((const int32_t *) a.act.sums + at) : 0;
            }
        copy_wait<FEW_STAGES - 2>();
        sync_warp();
        UNROLL
        for (int c = 0; c < P::SCALES; c++) {
            if (c >= left) break;
            const size_t b = (size_t) (u * P::SCALES + c), tiles = (size_t) a.act.tiles;
            const GlobalRows x = { (const uint2 *) a.act.code + (b * P::CHUNKS * tiles + (size_t) tile0) * 32 + lane,
                                   (const uint2 *) a.act.sums + (b * tiles + (size_t) tile0) * 32 + lane,
                                   a.act.tiles };
            const uint32_t *unit = s.w[round % FEW_STAGES][warp];
            int isum[1][NT][4];
            uint32_t min[2];
            P::template sums<1, NT>(isum, unit, c, x, lane);
            P::mins(min, unit, g, t);
            UNROLL
            for (int j = 0; j < NT; j++) {
                put_part(s.part[warp][c][0], isum[0][j], 8 * j, g, t);
                if (!P::MINS) continue;
                int msum[4];
                min_sums(msum, min, sums_of(x, j));
                put_part(s.part[warp][c][P::MINS], msum, 8 * j, g, t);
            }
        }
        sync_block();
        UNROLL
        for (int i = 0; i < FEW_WARPS * P::SCALES; i++) {
            if (u0 * P::SCALES + i >= blocks) break;
            const int k = i / P::SCALES, c = i % P::SCALES;
            UNROLL
            for (int j = 0; j < NT; j++) {
                const int isum = s.part[k][c][0][row][8 * j + col];
                const int second = P::MINS ? s.part[k][c][P::MINS][row][8 * j + col] : qsum[i][j];
                acc[j] = P::finish(acc[j], s.w[round % FEW_STAGES][k], c, row, isum, second, da[i][j]);
            }
        }
        sync_block();
        const int later = u + (FEW_STAGES - 1) * FEW_WARPS;
        P::stage(s.w[(round + FEW_STAGES - 1) % FEW_STAGES][warp], w, later, blocks, blocks - later * P::SCALES, lane,
                 32);
        copy_commit();
    }
    copy_wait<0>();
    UNROLL
    for (int j = 0; j < NT; j++) {
        const int to = group * 16 + row, from = 8 * (tile0 + j) + col;
        if (from < a.n && to < p.rows) st(p.y + (size_t) from * (size_t) p.stride + to, acc[j]);
    }
}

/* ---- more rows: a block has MT groups by NT tiles of x in shared memory, a warp MW by NW of them in registers ---- */

template <class P, int MT, int NT> struct TileStage {
    enum { SUM_WORDS = P::MINS ? NT * 64 : P::ROW_SUMS ? P::SCALES * NT * 8 : 4 };
    uint32_t w[MT][P::WORDS];
    uint2    code[P::SCALES * P::CHUNKS][NT][32];
    uint32_t sums[SUM_WORDS];
    float    scale[P::SCALES][8 * NT];
};

/* Quantised rows in shared memory, at this lane. */
template <int NT> struct SharedRows { const uint2 *codes, *sums; };
template <int NT> DEV uint2 code_of(const SharedRows<NT> &x, int chunk, int j)
{
    return x.codes[(chunk * NT + j) * 32];
}
template <int NT> DEV uint2 sums_of(const SharedRows<NT> &x, int j) { return x.sums[j * 32]; }

/* bytes: a multiple of 16, copied by all threads of the block. One round or two: unrolled further, copying would be
 * most of a kernel's code. */
template <int THREADS> DEV void copy_block(void *to, const void *from, int bytes)
{
    UNROLL_BY(1)
    for (int i = 16 * TID; i < bytes; i += 16 * THREADS) copy16_async((uint8_t *) to + i, (const uint8_t *) from + i);
}

template <class P, int MT, int NT, int THREADS>
DEV void stage_weights(TileStage<P, MT, NT> &s, const ProductArgs &p, int group0, int unit, int blocks)
{
    const int last = (p.rows + 15) / 16 - 1;       /* beyond it the last group again, for outputs that nobody wants */
    UNROLL
    for (int m = 0; m < MT; m++) {
        const int group = group0 + m < last ? group0 + m : last;
        P::stage(s.w[m], p.w + (size_t) group * P::group_bytes(blocks), unit, blocks, blocks - unit * P::SCALES, TID,
                 THREADS);
    }
}

template <class P, int MT, int NT, int THREADS>
DEV void stage_rows(TileStage<P, MT, NT> &s, const ActRows &x, int tile0, int unit)
{
    const size_t tiles = (size_t) x.tiles, tile = (size_t) tile0;
    UNROLL
    for (int c = 0; c < P::SCALES; c++) {
        const int b = unit * P::SCALES + c;
        if (b >= x.blocks) break;
        UNROLL_BY(1)
        for (int k = 0; k < P::CHUNKS; k++)
            copy_block<THREADS>(s.code[c * P::CHUNKS + k], x.code + (((size_t) b * P::CHUNKS + (size_t) k) * tiles +
                                                                     tile) * 256, NT * 256);
        copy_block<THREADS>(s.scale[c], x.scale + ((size_t) b * tiles + tile) * 8, NT * 32);
        if (P::ROW_SUMS) copy_block<THREADS>(s.sums + c * NT * 8, x.sums + ((size_t) b * tiles + tile) * 32, NT * 32);
        else if (P::MINS) copy_block<THREADS>(s.sums, x.sums + ((size_t) b * tiles + tile) * 256, NT * 256);
    }
}

/* Adds block c of a unit to a warp's outputs; tile: its first of the block's tiles of x. */
template <class P, int MW, int NW, int MT, int NT>
DEV void tile_block(float acc[MW][NW][4], const TileStage<P, MT, NT> &s, int c, int group, int tile, int lane)
{
    const int g = lane >> 2, t = lane & 3;
    const SharedRows<NT> x = { s.code[c * P::CHUNKS][tile] + lane, (const uint2 *) s.sums + tile * 32 + lane };
    int isum[MW][NW][4];
    uint32_t min[MW][2];
    P::template sums<MW, NW>(isum, s.w[group], c, x, lane);
    UNROLL
    for (int m = 0; m < MW; m++) P::mins(min[m], s.w[group + m], g, t);
    UNROLL
    for (int j = 0; j < NW; j++) {
        const int col = 8 * (tile + j) + 2 * t;
        const float da[2] = { s.scale[c][col], s.scale[c][col + 1] };
        UNROLL
        for (int m = 0; m < MW; m++) {
            int second[4] = { 0, 0, 0, 0 };
            if (P::MINS) min_sums(second, min[m], sums_of(x, j));
            UNROLL
            for (int i = 0; i < 4; i++) {
                if (P::ROW_SUMS) second[i] = (int) s.sums[c * NT * 8 + col + (i & 1)];
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
    typedef FewShared<P, NT> Shared;
    SHARED(Shared, s);
    few<P, NT>(a, s);
}

/* Weights of two packs: those of B are marked as `second`. */
template <class A, class B, int NT> DEV void few_of_two(const MatmulArgs &a)
{
    typedef union { FewShared<A, NT> first; FewShared<B, NT> second; } Shared;
    SHARED(Shared, s);
    int at = BID_Y;
    if (product_at(a, &at).second) few<B, NT>(a, s.second);
    else few<A, NT>(a, s.first);
}

template <class P> struct Wide4Shared { TileStage<P, 2, 4> stage[3]; };
template <class P> DEV void wide4(const MatmulArgs &a)
{
    SHARED(Wide4Shared<P>, s);
    tile<P, 2, 4, 1, 1>(a, s.stage);
}

template <class P> struct WideShared { TileStage<P, 4, 8> stage[2]; };

template <class A, class B> DEV void wide4_of_two(const MatmulArgs &a)
{
    typedef union { Wide4Shared<A> first; Wide4Shared<B> second; } Shared;
    SHARED(Shared, s);
    int at = BID_Y;
    if (product_at(a, &at).second) tile<B, 2, 4, 1, 1>(a, s.second.stage);
    else tile<A, 2, 4, 1, 1>(a, s.first.stage);
}

template <class A, class B> DEV void wide8_of_two(const MatmulArgs &a)
{
    typedef union { WideShared<A> first; WideShared<B> second; } Shared;
    SHARED_BIG(Shared, s);
    int at = BID_Y;
    if (product_at(a, &at).second) tile<B, 4, 8, 1, 4>(a, s.second.stage);
    else tile<A, 4, 8, 1, 4>(a, s.first.stage);
}

/* Blocks of `many` on a multiprocessor; those of sm_120 have shared memory for one or two with most packs, and K5 needs
 * more registers there than three would leave. */
#if __CUDA_ARCH__ >= 1200
enum { MANY_BLOCKS = 2 };
#else
enum { MANY_BLOCKS = 3 };
#endif

/* WIDE_KERNEL: KERNEL, or KERNEL_OF_TWO for a pack that spills in the registers that the compiler gives to wide8, where
 * it sees room for three blocks. */
#define KERNEL_OF_TWO(threads, name, Args) KERNEL_BLOCKS(threads, 2, name, Args)
#define PRODUCTS(name, Pack) PRODUCTS_WIDE(name, Pack, KERNEL)
#define PRODUCTS_WIDE(name, Pack, WIDE_KERNEL) \
    KERNEL(128, matmul_##name##_few1, MatmulArgs) { few_alone<Pack, 1>(a); } \
    KERNEL(128, matmul_##name##_few2, MatmulArgs) { few_alone<Pack, 2>(a); } \
    KERNEL(256, matmul_##name##_wide4, MatmulArgs) { wide4<Pack>(a); } \
    WIDE_KERNEL(256, matmul_##name##_wide8, MatmulArgs) \
    { \
        SHARED_BIG(WideShared<Pack>, s); \
        tile<Pack, 4, 8, 1, 4>(a, s.stage); \
    } \
    KERNEL_BLOCKS(128, MANY_BLOCKS, matmul_##name##_many, MatmulArgs) \
    { \
        SHARED_BIG(WideShared<Pack>, s); \
        tile<Pack, 4, 8, 2, 4>(a, s.stage); \
    }

#define PRODUCTS_OF_TWO(name, PackA, PackB) \
    KERNEL_BLOCKS(128, 3, matmul_##name##_few1, MatmulArgs) { few_of_two<PackA, PackB, 1>(a); } \
    KERNEL_BLOCKS(128, 3, matmul_##name##_few2, MatmulArgs) { few_of_two<PackA, PackB, 2>(a); } \
    KERNEL(256, matmul_##name##_wide4, MatmulArgs) { wide4_of_two<PackA, PackB>(a); } \
    KERNEL_BLOCKS(256, 2, matmul_##name##_wide8, MatmulArgs) { wide8_of_two<PackA, PackB>(a); }

#endif
