/* gpu_experts.h - products of mixtures of experts, for every pack. A warp has 16 rows of an expert's weights and up
 * to 32 of the rows that chose it, and needs no other warp: experts bring groups enough to fill a card, so that
 * columns need not be shared, and each lane adds the floats of its outputs itself. So an expert's weights are read
 * once for 32 rows. Inputs are gathered where they are read: a row's words of a step are a sector, wherever the row
 * is. */
#ifndef RATOON_BACKEND_GPU_GPU_EXPERTS_H
#define RATOON_BACKEND_GPU_GPU_EXPERTS_H

#include "backend/gpu/gpu_math.h"
#include "backend/gpu/gpu_packs.h"

enum { EXPERT_WARPS = 4, EXPERT_THREADS = 32 * EXPERT_WARPS };

struct ExpertEnd { int last[EXPERT_ROWS]; };

DEV ExpertItem expert_item(const ExpertsArgs &a)
{
    const int4 v = ld((const int4 *) a.item + BID);
    return ExpertItem{v.x, v.y, v.z, v.w};
}

/* The product of this block, and its tile there. */
DEV ExpertProduct expert_product(const ExpertsArgs &a, int *tile)
{
    const bool second = a.n_products > 1 && BID_Y >= a.product[1].tile0;
    ExpertProduct p = a.product[0];
    if (second) p = a.product[1];
    *tile = BID_Y - p.tile0;
    return p;
}

DEV const uint8_t *expert_matrix(const ExpertProduct &p, int expert)
{
    if (p.where) return (const uint8_t *) ld(p.where + expert) + p.matrix_bytes;
    return p.w + (size_t) expert * (size_t) p.matrix_bytes;
}

/* Every block has a part, also those without an item. */
DEV void clear_tickets(const ExpertsArgs &a)
{
    const int block = BID_Y * BLOCKS + BID, all = BLOCKS * BLOCKS_Y * EXPERT_THREADS;
    for (int i = block * EXPERT_THREADS + TID; i < a.n_clear; i += all) st(a.clear + i, 0);
}

/* ---- what the last tile does ---- */

DEV float glu_value(const ExpertAct &e, float h, float wide, float gate, float up)
{
    return f32_mul(f32_act(f32_mul(h, gate), e.function), f32_mul(wide, up));
}

DEV void glu_columns(const ExpertsArgs &a, int expert, int pair, int at)
{
    const ExpertAct &e = a.glu;
    const float gate = e.gate ? ld_weight(e.gate + expert) : 1, up = e.up ? ld_weight(e.up + expert) : 1;
    const size_t row = (size_t) pair * (size_t) e.cols;
    const int lane = TID & 31, col = 256 * at + 8 * lane;
    if (!e.rows[FORM_32].code && !e.rows[FORM_256].code) {
        for (int c = 256 * at + lane; c < e.cols && c < 256 * at + 256; c += 32)
            st(e.h + row + c, glu_value(e, ld(e.h + row + c), ld(e.wide + row + c), gate, up));
        return;
    }
    const bool there = col < e.cols;               /* a multiple of 32 */
    float v[8], h[8] = { 0 }, wide[8] = { 0 };
    if (there) eight_of(h, e.h + row + col), eight_of(wide, e.wide + row + col);
    UNROLL
    for (int i = 0; i < 8; i++) v[i] = glu_value(e, h[i], wide[i], gate, up);
    if (e.rows[FORM_32].code) quantise_columns<FORM_32>(e.rows[FORM_32], pair, at, v, there);
    if (e.rows[FORM_256].code) quantise_columns<FORM_256>(e.rows[FORM_256], pair, at, v, there);
}

DEV void glu_if_last(const ExpertsArgs &a, ExpertEnd &s, const ExpertItem &item, int tile)
{
    enum { OF_256 = 256 / EXPERT_COLS };
    const int at = tile / OF_256, parts = (a.glu.cols + 255) / 256;
    const int left = (a.glu.cols + EXPERT_COLS - 1) / EXPERT_COLS - at * OF_256;
    if (TID == 0)
        s.last[0] = atomic_add(a.glu.ticket + (size_t) BID * (size_t) parts + at, 1) ==
                    2 * (left < OF_256 ? left : OF_256) - 1;
    sync_block();
    fence();
    for (int i = TID >> 5; s.last[0] && i < item.n; i += EXPERT_WARPS)
        glu_columns(a, item.expert, ld(a.pair + item.first + i), at);
}

DEV void sum_if_last(const ExpertsArgs &a, ExpertEnd &s, const ExpertItem &item, int tile)
{
    const ExpertSum &e = a.sum;
    const int tiles = (e.cols + EXPERT_COLS - 1) / EXPERT_COLS, col = tile * EXPERT_COLS + TID % EXPERT_COLS;
    if (TID < item.n) {
        const int row = ld(a.pair + item.first + TID) / e.used;
        s.last[TID] = atomic_add(e.ticket + (size_t) row * (size_t) tiles + tile, 1) == e.used - 1;
    }
    sync_block();
    fence();
    for (int i = TID / EXPERT_COLS; i < item.n; i += EXPERT_THREADS / EXPERT_COLS) {
        if (!s.last[i] || col >= e.cols) continue;
        const int row = ld(a.pair + item.first + i) / e.used;
        float acc = 0;
        for (int j = 0; j < e.used; j++) {
            const size_t pair = (size_t) row * (size_t) e.used + (size_t) j;
            acc = f32_fma(ld(e.weight + pair), ld(e.each + pair * (size_t) e.cols + col), acc);
        }
        st(e.y + (size_t) row * (size_t) e.cols + col, acc);
    }
}

/* Called by all threads of a block that has stored its tile. */
DEV void end_tile(const ExpertsArgs &a, ExpertEnd &s, const ExpertItem &item, int tile)
{
    fence();
    sync_block();
    if (a.glu.ticket) glu_if_last(a, s, item, tile);
    else sum_if_last(a, s, item, tile);
}

/* ---- quantised weights ---- */

template <class P> struct ExpertShared {
    enum { STAGES = 4 * EXPERT_WARPS * P::WORDS * 4 <= 40 << 10 ? 4 : 3 };
    uint32_t  w[EXPERT_WARPS][STAGES][P::WORDS];
    ExpertEnd end;
};

/* Quantised rows in global memory, at this lane's row of each tile. */
template <int NT> struct GatheredRows {
    enum { ROLLED = 1 };
    const uint2 *codes[NT];
};
template <int NT> DEV uint2 code_of(const GatheredRows<NT> &x, int chunk, int j) { return ld(x.codes[j] + chunk * 32); }

template <class P, int NT, int STAGES>
DEV void expert_group(const ExpertsArgs &a, uint32_t (&s)[STAGES][P::WORDS], const ExpertProduct &p,
                      const ExpertItem &item, int group)
{
    const int lane = TID & 31, g = lane >> 2, t = lane & 3, blocks = a.act.blocks,
              units = (blocks + P::SCALES - 1) / P::SCALES;
    const uint8_t *w = expert_matrix(p, item.expert) + (size_t) group * P::group_bytes(blocks);
    typename P::Source from = P::source(w, blocks, 0, lane);
    UNROLL
    for (int i = 0; i < STAGES - 1; i++, P::skip(from, 1)) {
        P::template stage<32>(s[i], from, blocks - i * P::SCALES, lane);
        copy_commit();
    }
    /* block: of this lane's row of each tile, the first; and of its outputs, columns 2 t and 2 t + 1 of each tile:
     * pairs, and where the first of the rows' scales is */
    size_t block[NT], scale[NT][2];
    int own[NT], pair[NT][2];
    UNROLL
    for (int j = 0; j < NT; j++) {                 /* rows beyond the last stand for it */
        const int from = ld(a.pair + item.first + (8 * j + g < item.n ? 8 * j + g : item.n - 1));
        const int at = from / a.divide;
        block[j] = act_block(a.act, at >> 3, 0);
        own[j] = 4 * (at & 7) + t;
        UNROLL
        for (int k = 0; k < 2; k++) {
            const int row = shfl(at, 8 * t + 4 * k);
            pair[j][k] = shfl(from, 8 * t + 4 * k);
            scale[j][k] = act_block(a.act, row >> 3, 0) * 8 + (size_t) (row & 7);
        }
    }
    float acc[NT][4];
    UNROLL
    for (int j = 0; j < NT; j++) acc[j][0] = acc[j][1] = acc[j][2] = acc[j][3] = 0;
    for (int u = 0; u < units; u++) {
        copy_wait<STAGES - 2>();
        sync_warp();                               /* unit u is there, and no lane reads u - 1 any more */
        const int later = u + STAGES - 1;
        P::template stage<32>(s[later % STAGES], from, blocks - later * P::SCALES, lane);
        copy_commit();
        P::skip(from, 1);
        const uint32_t *unit = s[u % STAGES];
        enum { BLOCKS_AT_ONCE = NT == 1 ? P::SCALES : 1 };
        UNROLL_BY(BLOCKS_AT_ONCE)
        for (int c = 0; c < P::SCALES; c++) {
            const size_t b = (size_t) (u * P::SCALES + c) << a.act.tiles_log2;
            if (u * P::SCALES + c >= blocks) break;
            GatheredRows<NT> x;
            UNROLL
            for (int j = 0; j < NT; j++)
                x.codes[j] = (const uint2 *) a.act.code + (block[j] + b) * P::CHUNKS * 32 + own[j];
            float da[NT][2];
            int isum[1][NT][4], qsum[NT][2];
            uint32_t min[2];
            UNROLL
            for (int j = 0; j < NT; j++)
                UNROLL
                for (int k = 0; k < 2; k++) {
                    const size_t at = scale[j][k] + 8 * b;
                    da[j][k] = ld(a.act.scale + at);
                    qsum[j][k] = P::ROW_SUMS ? ld((const int32_t *) a.act.sums + at) : 0;
                }
            P::template sums<1, NT>(isum, unit, c, x, lane);
            P::mins(min, unit, g, t);
            UNROLL
            for (int j = 0; j < NT; j++) {
                int msum[4];
                if (P::MINS) min_sums(msum, min, ld((const uint2 *) a.act.sums + (block[j] + b) * 32 + own[j]));
                UNROLL
                for (int i = 0; i < 4; i++)
                    acc[j][i] = P::finish(acc[j][i], unit, c, 2 * g + (i >> 1), isum[0][j][i],
                                          P::MINS ? msum[i] : qsum[j][i & 1], da[j][i & 1]);
            }
        }
    }
    copy_wait<0>();
    UNROLL
    for (int j = 0; j < NT; j++)
        UNROLL
        for (int i = 0; i < 4; i++) {
            const int to = group * 16 + 2 * g + (i >> 1);
            if (8 * j + 2 * t + (i & 1) < item.n && to < p.rows)
                st(p.y + (size_t) pair[j][i & 1] * (size_t) p.rows + to, acc[j][i]);
        }
}

template <class P> DEV void expert_tiles(const ExpertsArgs &a)
{
    SHARED(ExpertShared<P>, s);
    pass_next();
    pass_wait();
    clear_tickets(a);
    if (BID >= ld(a.n_items)) return;
    int tile;
    const ExpertItem item = expert_item(a);
    const ExpertProduct p = expert_product(a, &tile);
    const int warp = TID >> 5, group = tile * EXPERT_GROUPS + warp;
    if (16 * group >= p.rows) ;                    /* nothing for this warp */
    else if (item.n <= 8) expert_group<P, 1>(a, s.w[warp], p, item, group);
    else if (item.n <= 16) expert_group<P, 2>(a, s.w[warp], p, item, group);
    else expert_group<P, 4>(a, s.w[warp], p, item, group);
    end_tile(a, s.end, item, tile);
}

#define EXPERTS(name, Pack) KERNEL_BLOCKS(EXPERT_THREADS, 3, experts_##name, ExpertsArgs) { expert_tiles<Pack>(a); }

#endif
