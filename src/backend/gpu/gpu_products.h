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
    int      part[FEW_WARPS][P::PARTS][16][8 * NT + 1];
};

/* Quantised rows in global memory, at this lane. */
struct GlobalRows {
    const uint2 *codes, *sums;
    int tiles;
};
DEV uint2 code_of(const GlobalRows &x, int chunk, int j) { return ld(x.codes + (chunk * x.tiles + j) * 32); }
DEV uint2 sums_of(const GlobalRows &x, int j) { return ld(x.sums + j * 32); }

template <class P, int NT> DEV void few(const MatmulArgs &a)
{
    typedef FewShared<P, NT> Shared;
    SHARED(Shared, s);
    const int lane = TID & 31, warp = TID >> 5, g = lane >> 2, t = lane & 3, blocks = a.act.blocks,
              units = (blocks + P::SCALES - 1) / P::SCALES, rows = 8 * a.act.tiles, tile0 = BID * NT;
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
        const int u = u0 + warp, left = blocks - u * P::SCALES, row = TID & 15;
        float da[NT][FEW_WARPS][P::SCALES];
        int qsum[NT][FEW_WARPS][P::SCALES];
        UNROLL
        for (int j = 0; j < NT; j++)
            UNROLL
            for (int i = 0; i < FEW_WARPS * P::SCALES; i++) {
                const int b = u0 * P::SCALES + i, k = i / P::SCALES, c = i % P::SCALES;
                const size_t at = (size_t) b * (size_t) rows + (size_t) (8 * (tile0 + j) + (TID >> 4));
                da[j][k][c] = b < blocks ? ld(a.act.scale + at) : 0;
                qsum[j][k][c] = P::ROW_SUMS && b < blocks ? ld((const int32_t *) a.act.sums + at) : 0;
            }
        copy_wait<FEW_STAGES - 2>();
        sync_warp();
        if (left > 0) {
            const GlobalRows x = {
                (const uint2 *) a.act.code + ((size_t) u * (size_t) (P::CHUNKS * a.act.tiles) + (size_t) tile0) * 32 +
                lane, (const uint2 *) a.act.sums + ((size_t) u * (size_t) a.act.tiles + (size_t) tile0) * 32 + lane,
                a.act.tiles };
            int part[P::PARTS][NT][4];
            P::template sums<NT>(part, s.w[round % FEW_STAGES][warp], x, left, lane);
            UNROLL
            for (int i = 0; i < P::PARTS; i++)
                UNROLL
                for (int j = 0; j < NT; j++)
                    UNROLL
                    for (int c = 0; c < 4; c++)
                        if (P::SCALES == 1 || i < left)
                            s.part[warp][i][g + 8 * (c >> 1)][8 * j + 2 * t + (c & 1)] = part[i][j][c];
        }
        sync_block();
        UNROLL
        for (int k = 0; k < FEW_WARPS; k++) {
            const int there = blocks - (u0 + k) * P::SCALES;
            if (there <= 0) break;
            UNROLL
            for (int j = 0; j < NT; j++) {
                int part[P::PARTS];
                UNROLL
                for (int i = 0; i < P::PARTS; i++) part[i] = s.part[k][i][row][8 * j + (TID >> 4)];
                acc[j] = P::finish(acc[j], s.w[round % FEW_STAGES][k], row, part, da[j][k], qsum[j][k], there);
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
        const int row = group * 16 + (TID & 15), col = 8 * (tile0 + j) + (TID >> 4);
        if (col < a.n && row < p.rows) st(p.y + (size_t) col * (size_t) p.stride + row, acc[j]);
    }
}

#endif
