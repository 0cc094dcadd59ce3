/* gpu_draw.h - what the kernels of draw.cu, draw_head.cu and canvas.cu share: orders as integers, noise, the best few,
 * a row's place in the workspace. */
#ifndef RATOON_BACKEND_GPU_GPU_DRAW_H
#define RATOON_BACKEND_GPU_GPU_DRAW_H

#include "backend/gpu/gpu_mathd.h"

#define DRAW_LOWEST (-0x1.fffffep127f)

DEV float f32_infinity() { return f32_of_bits(0x7f800000u); }

/* A float below every l with l >= bound. */
DEV float f32_below(double bound)
{
    if (bound < (double) DRAW_LOWEST) return -f32_infinity();
    if (bound > -(double) DRAW_LOWEST) return -DRAW_LOWEST;
    const uint32_t u = bits_of_f32(f32_of_f64(bound));
    return f32_of_bits((u & 0x7fffffffu) == 0 ? 0x80000001u : u >> 31 ? u + 1 : u - 1);
}

/* Integers in the order of floats, zeros equal. */
DEV uint32_t key_of_f32(float l)
{
    const uint32_t u = bits_of_f32(f32_add(l, 0.0f));
    return u >> 31 ? ~u : u | 0x80000000u;
}

DEV float f32_of_key(uint32_t k) { return f32_of_bits(k >> 31 ? k & 0x7fffffffu : ~k); }

DEV uint64_t key_of_f64(double s)
{
    const uint64_t u = bits_of_f64(f64_add(s, 0.0));
    return u >> 63 ? ~u : u | 0x8000000000000000u;
}

DEV uint64_t shfl_xor_u64(uint64_t v, int m)
{
    const uint32_t low = (uint32_t) shfl_xor((int) (uint32_t) v, m), high = (uint32_t) shfl_xor((int) (v >> 32), m);
    return (uint64_t) high << 32 | low;
}

DEV int ones_of(uint32_t v)
{
    v = v - (v >> 1 & 0x55555555u);
    v = (v & 0x33333333u) + (v >> 2 & 0x33333333u);
    return (int) (((v + (v >> 4)) & 0x0f0f0f0fu) * 0x01010101u >> 24);
}

/* ---- noise ---- */

DEV uint32_t philox(uint64_t key, uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3)
{
    uint32_t k0 = (uint32_t) key, k1 = (uint32_t) (key >> 32);
    for (int i = 0; i < 10; i++) {
        const uint64_t p = (uint64_t) 0xD2511F53u * c0, q = (uint64_t) 0xCD9E8D57u * c2;
        c0 = (uint32_t) (q >> 32) ^ c1 ^ k0;
        c1 = (uint32_t) q;
        c2 = (uint32_t) (p >> 32) ^ c3 ^ k1;
        c3 = (uint32_t) p;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return c0;
}

DEV uint32_t noise_word(uint64_t seed, int64_t pos, int id)
{
    return philox(seed, (uint32_t) pos, (uint32_t) ((uint64_t) pos >> 32), (uint32_t) id, 0);
}

/* (r + 0.5) 2^-32 */
DEV double noise_place(uint32_t r)
{
    return f64_mul(f64_add(f64_sub(f64_of_bits(0x4330000000000000u | r), 0x1p52), 0.5), 0x1p-32);
}

DEV double noise_of(uint32_t r) { return -f64_log(-f64_log1p(-noise_place(r))); }

/* Noise is never above and never below these. With 2^-(n + 1) <= v < 2^-n, -log1p(-v) is at least v, and for n > 0 at
 * most 2 ln 2 v; the constants exceed what is exact by more than any rounding error. */
DEV int noise_zeros(uint32_t r) { return 1022 - (int) (bits_of_f64(noise_place(r)) >> 52); }
DEV double noise_most(int zeros) { return f64_mul(f64_of_int(zeros + 1), 0.69315); }
DEV double noise_least(int zeros)
{
    return zeros == 0 ? -3.1316 : f64_sub(f64_mul(f64_of_int(zeros), 0.69314), 0.3268);
}

/* ---- the best few ---- */

/* The k best of a warp's N per lane into out, best first; what is used up gets key 0. */
template <int N>
DEV void warp_top(uint64_t (&key)[N], const float (&logit)[N], const int (&id)[N], int k, DrawBest *out)
{
    for (int r = 0; r < k; r++) {
        uint64_t best = 0;
        int who = 0x7fffffff;
        UNROLL
        for (int u = 0; u < N; u++)
            if (key[u] > best || (key[u] == best && key[u] && id[u] < who)) best = key[u], who = id[u];
        UNROLL
        for (int m = 16; m; m >>= 1) {
            const uint64_t other = shfl_xor_u64(best, m);
            const int other_who = shfl_xor(who, m);
            if (other > best || (other == best && other_who < who)) best = other, who = other_who;
        }
        if (best == 0) {                           /* in all lanes: nothing is left */
            if ((TID & 31) < k - r) out[r + (TID & 31)].key = 0;
            break;
        }
        UNROLL
        for (int u = 0; u < N; u++)
            if (key[u] == best && id[u] == who) {
                out[r].key = best, out[r].logit = logit[u], out[r].id = who;
                key[u] = 0;
            }
    }
}

/* The same for a block of W warps: list [W * k] is room, the result is top [k]. Barriers before and after. */
template <int N, int W>
DEV void block_top(uint64_t (&key)[N], const float (&logit)[N], const int (&id)[N], int k, DrawBest *list,
                   DrawBest *top)
{
    warp_top<N>(key, logit, id, k, list + (TID >> 5) * k);
    sync_block();
    if (TID < 32) {
        enum { M = W * DRAW_BEST / 32 };
        uint64_t key2[M];
        float logit2[M];
        int id2[M];
        UNROLL
        for (int u = 0; u < M; u++) {
            const int at = TID + 32 * u;
            key2[u] = 0, logit2[u] = 0, id2[u] = 0;
            if (at < W * k) key2[u] = list[at].key;
            if (key2[u]) logit2[u] = list[at].logit, id2[u] = list[at].id;
        }
        warp_top<M>(key2, logit2, id2, k, top);
    }
    sync_block();
}

/* The largest key of a block of W warps. A barrier before part is used again. */
template <int W>
DEV uint32_t block_max(uint32_t v, uint32_t *part)
{
    UNROLL
    for (int m = 16; m; m >>= 1) {
        const uint32_t other = (uint32_t) shfl_xor((int) v, m);
        v = other > v ? other : v;
    }
    if ((TID & 31) == 0) part[TID >> 5] = v;
    sync_block();
    v = 0;
    UNROLL
    for (int i = 0; i < W; i++) v = part[i] > v ? part[i] : v;
    return v;
}

/* ---- rows ---- */

DEV DrawRow *row_at(const DrawArgs &a, int i) { return (DrawRow *) (a.work + (int64_t) i * a.stride); }
DEV DrawTile *tiles_of(DrawRow *d) { return (DrawTile *) (d + 1); }
DEV DrawBest *bests_of(const DrawArgs &a, DrawRow *d) { return (DrawBest *) (tiles_of(d) + a.tiles); }
DEV const float *logits_of(const DrawArgs &a, int i) { return a.logits + (int64_t) (a.row0 + i) * a.vocab; }
DEV bool is_masked(const DrawArgs &a, int i, int id)
{
    const int64_t words = (a.vocab + 31) / 32;
    return !(ld(a.mask + (a.row0 + i) * words + id / 32) >> id % 32 & 1);
}
DEV float finite_or_lowest(float l) { return l <= -DRAW_LOWEST ? l : -f32_infinity(); }
DEV float tamed(float l) { return l <= -DRAW_LOWEST ? l : l > 0 ? -DRAW_LOWEST : -f32_infinity(); }

/* The sorted order: by logit descending, then id. */
DEV uint64_t sort_key(float x, int id) { return (uint64_t) ~key_of_f32(x) << 23 | (uint64_t) id; }

#endif
