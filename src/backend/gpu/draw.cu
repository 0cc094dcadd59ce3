/* draw.cu - the ends of passes: draw_next, draw_top_k and draw_margin (backend/draw.c says what they are), and
 * DFlash2's extras. Orders are total, by (what is compared, id), so blocks may find their best in any division. Only
 * sums have an order, that of the sorted logits: draw_head sorts as much as is needed and adds one after the other.
 *
 *   draw_open    a row's parameters, and the logits that penalties and biases change
 *   draw_peak    each tile's largest logit
 *   draw_best    each tile's best by logit / T + noise; or, where filters need the sorted order, how many logits lie
 *                where and what all weigh
 *   draw_gather  the head of the sorted order
 *   draw_head    the token and the margin
 *   draw_rank    the drafter's candidates */
#include "backend/gpu/gpu_mathd.h"
#include "backend/gpu/gpu_unpack.h"

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

DEV uint32_t noise_word(uint64_t seed, int64_t pos, int id)
{
    uint32_t k0 = (uint32_t) seed, k1 = (uint32_t) (seed >> 32);
    uint32_t c0 = (uint32_t) pos, c1 = (uint32_t) ((uint64_t) pos >> 32), c2 = (uint32_t) id, c3 = 0;
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

struct OpenShared {
    int32_t parent[ROWS_DECODE], token[ROWS_DECODE], back[ROWS_DECODE], n_path;
    int32_t window[HISTORY], bias_id[BIAS_MAX], id[DRAW_PATCHES];
    float   add[BIAS_MAX], to[DRAW_PATCHES];
};

/* The tokens of the row's path below the root, from the row up. Ends with a barrier. */
DEV void open_path(OpenShared &s, const DrawArgs &a, const Slice *sl, int row)
{
    const int row0 = ld(&sl->row0), n = a.picks && ld(&sl->kind) == SLICE_TREE ? ld(&sl->n) : 0;
    if (TID < n) s.parent[TID] = ld(a.parent + row0 + TID), s.token[TID] = ld(a.token + row0 + TID);
    sync_block();
    if (TID == 0) {
        int found = 0;
        for (int i = row - row0; n > 0 && s.parent[i] >= 0; i = s.parent[i]) s.back[found++] = s.token[i];
        s.n_path = found;
    }
    sync_block();
}

/* Loads the window [n] that penalties see; returns n. Ends with a barrier. */
DEV int open_window(OpenShared &s, const Draw *w)
{
    const int most = ld(&w->p.rep_window), n_tail = ld(&w->n_tail), all = n_tail + s.n_path;
    const bool any = ld(&w->p.rep) != 1.0f || ld(&w->p.freq) != 0.0f || ld(&w->p.presence) != 0.0f;
    const int first = all > most ? all - most : 0, n = any ? all - first : 0;
    if (TID < n) {
        const int at = first + TID;
        s.window[TID] = at < n_tail ? ld(w->tail + at) : s.back[all - 1 - at];
    }
    sync_block();
    return n;
}

/* One thread per place of the window: the penalty of a token that is there for the first time. */
DEV void open_penalty(OpenShared &s, const DrawArgs &a, const Draw *w, const float *logits, int n)
{
    const int id = s.window[TID];
    bool first = id >= 0 && id < a.vocab;
    int times = 0;
    for (int i = 0; first && i < n; i++) {
        const bool same = s.window[i] == id;
        times += same;
        first = !(same && i < TID);
    }
    if (!first) return;
    const float l = finite_or_lowest(ld(logits + id)), rep = ld(&w->p.rep);
    const float v = l > 0 ? f32_div(l, rep) : f32_mul(l, rep);
    const float less = f32_add(f32_mul(f32_of_int(times), ld(&w->p.freq)), ld(&w->p.presence));
    s.id[TID] = id;
    s.to[TID] = tamed(f32_sub(v, less));
}

/* One thread per bias: the first one of an id adds them all, to what the penalty left. */
DEV void open_bias(OpenShared &s, const DrawArgs &a, const float *logits, int b, int n_window, int n_bias)
{
    const int id = s.bias_id[b];
    if (id < 0 || id >= a.vocab) return;
    for (int i = 0; i < b; i++) if (s.bias_id[i] == id) return;
    float l = finite_or_lowest(ld(logits + id));
    for (int i = 0; i < n_window; i++) if (s.id[i] == id) l = s.to[i];
    for (int i = b; i < n_bias; i++) if (s.bias_id[i] == id) l = tamed(f32_add(l, s.add[i]));
    s.id[HISTORY + b] = id;
    s.to[HISTORY + b] = l;
}

DEV void open_row(OpenShared &s, const DrawArgs &a, DrawRow *d, const Slice *sl, int row)
{
    const Draw *w = &sl->draw;
    const float *logits = logits_of(a, BID);
    open_path(s, a, sl, row);
    const int n_window = open_window(s, w), n_bias = ld(&w->n_bias), b = TID - HISTORY;
    if (TID < n_bias) s.bias_id[TID] = ld(&w->bias[TID].id), s.add[TID] = ld(&w->bias[TID].add);
    if (TID < DRAW_PATCHES) s.id[TID] = -1;
    sync_block();
    if (TID < n_window) open_penalty(s, a, w, logits, n_window);
    sync_block();
    if (b >= 0 && b < n_bias) open_bias(s, a, logits, b, n_window, n_bias);
    sync_block();
    bool taken = false;                            /* by a bias, which has added itself to the penalty */
    for (int i = HISTORY; TID < n_window && i < HISTORY + n_bias; i++) taken |= s.id[i] >= 0 && s.id[i] == s.id[TID];
    sync_block();
    if (taken) s.id[TID] = -1;
    sync_block();
    const int id = TID < DRAW_PATCHES ? s.id[TID] : -1;
    int before = 0, all = 0;
    for (int i = 0; i < HISTORY + n_bias; i++) before += s.id[i] >= 0 && s.id[i] < id, all += s.id[i] >= 0;
    if (id >= 0) st(d->patch_id + before, id), st(d->patch + before, s.to[TID]);
    if (TID == 0) st(&d->n_patches, all);
}

KERNEL(576, draw_open, DrawArgs)
{
    SHARED(OpenShared, s);
    pass_next();
    pass_wait();
    DrawRow *d = row_at(a, BID);
    const int j = a.row0 + BID;
    int row = -1, slice = -1;
    if (j < ld(a.count + 2)) row = ld(a.logit_row + j), slice = ld(a.slice + row);
    if (slice < 0) {
        if (TID == 0) st(&d->way, (int) DRAW_SKIP);
    } else {
        const Slice *sl = a.slices + slice;
        open_row(s, a, d, sl, row);
        if (TID < DRAW_BINS) st(d->bin + TID, 0);
        if (TID == 0) {
            const Sampling *p = &sl->draw.p;
            const float temperature = ld(&p->temperature), top_p = ld(&p->top_p), min_p = ld(&p->min_p);
            const bool filters = a.picks && (ld(&p->top_k) > 0 || top_p < 1.0f);
            st(&d->way, (int) (temperature < 1e-5f ? DRAW_GREEDY : filters ? DRAW_HEAD : DRAW_NOISE));
            st(&d->top_k, ld(&p->top_k));
            st(&d->n_list, 0);
            st(&d->temperature, temperature);
            st(&d->top_p, top_p);
            st(&d->min_p, min_p);
            st(&d->seed, ld(&p->seed));
            st(&d->pos, (int64_t) ld(a.pos + row) + a.picks);
            if (min_p > 0) st(&d->likely, f64_sub(f64_log(f64_of_f32(min_p)), 1e-9));
        }
    }
}

/* ---- tiles ---- */

struct Patches { int32_t n, id[DRAW_PATCHES]; float to[DRAW_PATCHES]; };

/* Those of the block's tile. Begins and ends with a barrier. */
DEV void tile_patches(Patches &p, DrawRow *d, int first)
{
    const int n = ld(&d->n_patches);
    if (TID == 0) p.n = 0;
    sync_block();
    for (int i = TID; i < n; i += 256) {
        const int id = ld(d->patch_id + i);
        if (id < first || id >= first + DRAW_TILE) continue;
        const int at = atomic_add(&p.n, 1);
        p.id[at] = id;
        p.to[at] = ld(d->patch + i);
    }
    sync_block();
}

/* Thread t has the ids first + t + 256 u. */
DEV void tile_load(float (&x)[8], const float *logits, int first, int vocab)
{
    UNROLL
    for (int u = 0; u < 8; u++) {
        const int id = first + TID + 256 * u;
        x[u] = id < vocab ? ld(logits + id) : -f32_infinity();
    }
}

DEV void tile_adjust(float (&x)[8], const Patches &p, const DrawArgs &a, int first)
{
    UNROLL
    for (int u = 0; u < 8; u++) x[u] = finite_or_lowest(x[u]);
    for (int i = 0; i < p.n; i++) {
        const int id = p.id[i] - first - TID;
        UNROLL
        for (int u = 0; u < 8; u++) if (id == 256 * u) x[u] = p.to[i];
    }
    UNROLL
    for (int u = 0; u < 8; u++) {
        const int id = first + TID + 256 * u;
        if (a.mask && id < a.vocab && is_masked(a, BID_Y, id)) x[u] = -f32_infinity();
    }
}

DEV void tile_keys(uint64_t (&key)[8], int (&id)[8], const float (&x)[8], int first)
{
    UNROLL
    for (int u = 0; u < 8; u++) key[u] = x[u] > -f32_infinity() ? key_of_f32(x[u]) : 0, id[u] = first + TID + 256 * u;
}

DEV void put_best(DrawBest *to, const DrawBest &b)
{
    st(&to->key, b.key);
    st(&to->logit, b.logit);
    st(&to->id, b.id);
}

struct PeakShared { Patches p; DrawBest list[8 * 2], top[2]; uint32_t odd[8]; };

KERNEL(256, draw_peak, DrawArgs)
{
    SHARED(PeakShared, s);
    pass_next();
    pass_wait();
    DrawRow *d = row_at(a, BID_Y);
    if (ld(&d->way) != DRAW_SKIP) {
        DrawTile *t = tiles_of(d) + BID;
        const int first = BID * DRAW_TILE;
        float x[8];
        uint64_t key[8];
        int id[8];
        tile_patches(s.p, d, first);
        tile_load(x, logits_of(a, BID_Y), first, a.vocab);
        if (a.picks) {
            bool odd = false;
            UNROLL
            for (int u = 0; u < 8; u++) odd |= !(x[u] <= -DRAW_LOWEST), x[u] = finite_or_lowest(x[u]);
            const uint32_t any = warp_ballot(odd);
            if ((TID & 31) == 0) s.odd[TID >> 5] = any;
            tile_keys(key, id, x, first);
            block_top<8, 8>(key, x, id, 2, s.list, s.top);
            if (TID == 0) {
                uint32_t all = 0;
                for (int w = 0; w < 8; w++) all |= s.odd[w];
                st(&t->odd, all != 0);
                put_best(&t->raw[0], s.top[0]);
                put_best(&t->raw[1], s.top[1]);
            }
            sync_block();
        }
        tile_adjust(x, s.p, a, first);
        tile_keys(key, id, x, first);
        block_top<8, 8>(key, x, id, 1, s.list, s.top);
        if (TID == 0) put_best(&t->best, s.top[0]);
    }
}

/* What decides whether an id can still win. */
struct Chance { double T, zmax, max, min_p, span; uint64_t seed; int64_t pos; };

DEV bool chance_fits(const Chance &c, float x, double z)
{
    if (!(z >= f64_sub(c.zmax, c.span))) return false;
    return !(c.min_p > 0) || f64_exp(f64_sub(f64_of_f32(x), c.max)) >= c.min_p;
}

struct BestShared {
    Patches  p;
    uint32_t part[8];
    float    least[DRAW_TILES], bar;
    int32_t  n[8], bin[DRAW_BINS];
    double   mass[8];
    DrawBest maybe[8][256], list[8 * DRAW_BEST], top[DRAW_BEST];
};

/* A score that the best k reach: the k-th of what the tiles' largest reach at least. */
DEV double best_bar(BestShared &s, const DrawArgs &a, DrawRow *d, const Chance &c)
{
    float least = -f32_infinity();
    if (TID < a.tiles) {
        const DrawTile *t = tiles_of(d) + TID;
        if (ld(&t->best.key)) {
            const float x = ld(&t->best.logit);
            const double z = f64_div(f64_of_f32(x), c.T);
            if (chance_fits(c, x, z))
                least = f32_below(f64_add(z, noise_least(noise_zeros(noise_word(c.seed, c.pos, ld(&t->best.id))))));
        }
    }
    s.least[TID] = least;
    if (TID == 0) s.bar = -f32_infinity();
    sync_block();
    int before = 0;
    for (int i = 0; i < a.tiles; i++) before += s.least[i] > least || (s.least[i] == least && i < TID);
    if (TID < a.tiles && before == a.k - 1) s.bar = least;
    sync_block();
    return f64_of_f32(s.bar);
}

/* The tile's best by score: noise bounds first, the logarithms for those that are left, packed together. */
DEV void best_noisy(BestShared &s, const DrawArgs &a, DrawRow *d, const Chance &c, float (&x)[8], int first)
{
    const double bar = best_bar(s, a, d, c);
    const double abs_max = c.zmax < 0 ? -c.zmax : c.zmax, slack = f64_mul(f64_add(abs_max, 30.0), 1e-12);
    const double far = f64_sub(f64_sub(c.zmax, f64_mul(c.span, 1 + 1e-12)), slack);
    float low = f32_below(f64_mul(far, c.T));
    const float reach = f32_below(f64_mul(f64_sub(f64_sub(bar, 22.8756), slack), c.T));
    low = reach > low ? reach : low;
    if (c.min_p > 0) {
        const float likely = f32_below(f64_add(c.max, ld(&d->likely)));
        low = likely > low ? likely : low;
    }
    const double per = f64_div(1.0, c.T);
    DrawBest *maybe = s.maybe[TID >> 5];
    int n = 0;
    UNROLL
    for (int u = 0; u < 8; u++) {
        const int id = first + TID + 256 * u;
        bool may = x[u] > low;
        if (may) {
            const double most = noise_most(noise_zeros(noise_word(c.seed, c.pos, id)));
            may = f64_add(f64_add(f64_mul(f64_of_f32(x[u]), per), most), slack) >= bar;
        }
        const uint32_t who = warp_ballot(may);
        if (may) {
            DrawBest *b = maybe + n + ones_of(who & ((1u << (TID & 31)) - 1));
            b->logit = x[u];
            b->id = id;
        }
        n += ones_of(who);
    }
    sync_warp();
    for (int i = TID & 31; i < n; i += 32) {
        const double z = f64_div(f64_of_f32(maybe[i].logit), c.T);
        const bool fits = chance_fits(c, maybe[i].logit, z);
        maybe[i].key = fits ? key_of_f64(f64_add(z, noise_of(noise_word(c.seed, c.pos, maybe[i].id)))) : 0;
    }
    uint64_t key[8];
    int id[8];
    UNROLL
    for (int u = 0; u < 8; u++) {
        const int i = (TID & 31) + 32 * u;
        key[u] = 0, id[u] = 0;
        if (i < n) key[u] = maybe[i].key, x[u] = maybe[i].logit, id[u] = maybe[i].id;
    }
    block_top<8, 8>(key, x, id, a.k, s.list, s.top);
}

/* A logit's bin, DRAW_BINS: none. */
DEV int bin_of(float x, float max)
{
    const float below = f32_mul(f32_sub(max, x), 16.0f);
    return below < (float) DRAW_BINS ? (int) below : (int) DRAW_BINS;
}

/* Counts the tile's logits, and weighs them if only that tells where top-p ends. */
DEV void best_count(BestShared &s, DrawRow *d, const float (&x)[8], float max)
{
    s.bin[TID] = 0;
    sync_block();
    const bool weigh = ld(&d->top_k) == 0;
    double mass = 0;
    for (int u = 0; u < 8; u++) {
        const float v = x[u];
        const int bin = bin_of(v, max);
        if (bin < DRAW_BINS) atomic_add(&s.bin[bin], 1);
        if (weigh && f32_sub(max, v) < 45.0f) mass = f64_add(mass, f64_exp(f64_sub(f64_of_f32(v), f64_of_f32(max))));
    }
    UNROLL
    for (int m = 16; m; m >>= 1) mass = f64_add(mass, f64_of_bits(shfl_xor_u64(bits_of_f64(mass), m)));
    if ((TID & 31) == 0) s.mass[TID >> 5] = mass;
    sync_block();
    if (s.bin[TID]) atomic_add(&d->bin[TID], s.bin[TID]);
    if (TID == 0) {
        for (int w = 1; w < 8; w++) mass = f64_add(mass, s.mass[w]);
        st(&(tiles_of(d) + BID)->mass, mass);
    }
}

/* The row's largest logit; -infinity if there is none. */
template <int W>
DEV float row_max(const DrawArgs &a, DrawRow *d, uint32_t *part)
{
    uint32_t key = 0;
    if (TID < a.tiles) key = (uint32_t) ld(&(tiles_of(d) + TID)->best.key);
    key = block_max<W>(key, part);
    return key ? f32_of_key(key) : -f32_infinity();
}

KERNEL(256, draw_best, DrawArgs)
{
    SHARED(BestShared, s);
    pass_next();
    pass_wait();
    DrawRow *d = row_at(a, BID_Y);
    const int way = ld(&d->way), first = BID * DRAW_TILE;
    if (way != DRAW_SKIP && !(way == DRAW_GREEDY && a.picks)) {
        float x[8];
        tile_patches(s.p, d, first);
        const float max = row_max<8>(a, d, s.part);
        tile_load(x, logits_of(a, BID_Y), first, a.vocab);
        tile_adjust(x, s.p, a, first);
        if (way == DRAW_HEAD) {
            best_count(s, d, x, max);
        } else {
            if (way == DRAW_GREEDY) {
                uint64_t key[8];
                int id[8];
                tile_keys(key, id, x, first);
                block_top<8, 8>(key, x, id, a.k, s.list, s.top);
            } else {
                Chance c;
                c.T = f64_of_f32(ld(&d->temperature));
                c.max = f64_of_f32(max);
                c.zmax = f64_div(c.max, c.T);
                c.min_p = f64_of_f32(ld(&d->min_p));
                c.span = a.picks ? 26.01 : 12.0;
                c.seed = ld(&d->seed);
                c.pos = ld(&d->pos);
                best_noisy(s, a, d, c, x, first);
            }
            if (TID < a.k) put_best(bests_of(a, d) + BID * a.k + TID, s.top[TID]);
        }
    }
}

struct GatherShared { Patches p; uint32_t part[8]; int32_t bin[DRAW_BINS], sum[DRAW_BINS], full, enough; };

/* The last bin of the head: all that fit the list, but no more than top-k needs; -1: not even the first fits. */
DEV int gather_end(GatherShared &s, DrawRow *d)
{
    const int top_k = ld(&d->top_k), want = top_k > 0 ? top_k : 0x7fffffff;
    s.bin[TID] = ld(d->bin + TID);
    if (TID == 0) s.full = -1, s.enough = DRAW_BINS - 1;
    sync_block();
    int sum = 0;
    for (int i = 0; i <= TID; i++) sum += s.bin[i];
    s.sum[TID] = sum;
    sync_block();
    if (sum <= DRAW_LIST && (TID == DRAW_BINS - 1 || s.sum[TID + 1] > DRAW_LIST)) s.full = TID;
    if (sum >= want && (TID == 0 || s.sum[TID - 1] < want)) s.enough = TID;
    sync_block();
    return s.full < s.enough ? s.full : s.enough;
}

DEV uint64_t sort_key(float x, int id) { return (uint64_t) ~key_of_f32(x) << 23 | (uint64_t) id; }

KERNEL(256, draw_gather, DrawArgs)
{
    SHARED(GatherShared, s);
    pass_next();
    pass_wait();
    DrawRow *d = row_at(a, BID_Y);
    if (ld(&d->way) == DRAW_HEAD) {
        const int first = BID * DRAW_TILE;
        float x[8];
        tile_patches(s.p, d, first);
        const float max = row_max<8>(a, d, s.part);
        const int end = gather_end(s, d);
        tile_load(x, logits_of(a, BID_Y), first, a.vocab);
        tile_adjust(x, s.p, a, first);
        UNROLL
        for (int u = 0; u < 8; u++)
            if (bin_of(x[u], max) <= end)
                st(d->list + atomic_add(&d->n_list, 1), sort_key(x[u], first + TID + 256 * u));
    }
}

/* ---- the token of a row ---- */

enum { HEAD_THREADS = 512, HEAD_WARPS = 16, HEAD_DIGITS = 2048 };
struct HeadShared {
    uint64_t entry[DRAW_LIST];                     /* a band of the sorted order */
    double   weight[HEAD_THREADS];
    int32_t  bin[HEAD_DIGITS], part[HEAD_THREADS], patch_id[DRAW_PATCHES];
    float    patch[DRAW_PATCHES];
    DrawBest list[HEAD_WARPS * 2], top[2];
    uint32_t max[HEAD_WARPS];
    uint64_t band_from, to;                        /* what the band in entry begins with */
    double   sum, score;                           /* of the best so far */
    uint64_t best;
    int32_t  best_id, n, band_n, stop, state, digit, before;
};

/* What one thread decides for all: go on, the end is found, or the bounds of the sum do not tell. */
enum { HEAD_ON, HEAD_END, HEAD_UNSURE };

/* What stays the same while a row is drawn. */
struct Head {
    const float *logits;
    DrawRow *d;
    double T, max, top_p, min_p;
    uint64_t seed;
    int64_t pos;
    int top_k, n_patches, n_list;
};

/* Calls f with the sort key of every id that has a logit. */
template <class F>
DEV void head_scan(HeadShared &s, const DrawArgs &a, const Head &h, F f)
{
    int p = 0;
    for (int first = 0; first < a.vocab; first += 8 * HEAD_THREADS) {
        float x[8];
        UNROLL
        for (int u = 0; u < 8; u++) {
            const int id = first + TID + HEAD_THREADS * u;
            x[u] = id < a.vocab ? ld(h.logits + id) : -f32_infinity();
        }
        for (; p < h.n_patches && s.patch_id[p] < first + 8 * HEAD_THREADS; p++) {
            const int id = s.patch_id[p] - first - TID;
            UNROLL
            for (int u = 0; u < 8; u++) if (id == HEAD_THREADS * u) x[u] = s.patch[p];
        }
        UNROLL
        for (int u = 0; u < 8; u++) {
            const int id = first + TID + HEAD_THREADS * u;
            if (x[u] > -f32_infinity() && !(a.mask && is_masked(a, BID, id))) f(sort_key(x[u], id));
        }
    }
}

/* The first digit with which more than a band has been counted, HEAD_DIGITS: none, and how many are before it. */
DEV void head_digit(HeadShared &s)
{
    int sum = 0;
    for (int i = 0; i < 4; i++) sum += s.bin[4 * TID + i];
    s.part[TID] = sum;
    sync_block();
    if (TID == 0) {
        int at = 0, digit;
        sum = 0;
        while (at < HEAD_THREADS && sum + s.part[at] <= DRAW_LIST) sum += s.part[at++];
        digit = 4 * at;
        while (digit < HEAD_DIGITS && sum + s.bin[digit] <= DRAW_LIST) sum += s.bin[digit++];
        s.digit = digit;
        s.before = sum;
    }
    sync_block();
}

/* Where a band that begins with from may end: as many as fit, digit by digit of 11 bits. */
DEV uint64_t head_end(HeadShared &s, const DrawArgs &a, const Head &h, uint64_t from)
{
    uint64_t prefix = 0;
    for (int shift = 44;; shift -= 11) {
        for (int i = TID; i < HEAD_DIGITS; i += HEAD_THREADS) s.bin[i] = 0;
        sync_block();
        head_scan(s, a, h, [&](uint64_t key) {
            if (key >= from && key >> (shift + 11) == prefix) atomic_add(&s.bin[key >> shift & (HEAD_DIGITS - 1)], 1);
        });
        sync_block();
        head_digit(s);
        prefix = prefix << 11 | (uint64_t) s.digit;
        if (s.before > 0 || s.digit == HEAD_DIGITS || shift == 0) return prefix << shift;
        sync_block();
    }
}

/* Sorts the n entries. Begins and ends with a barrier. */
DEV void head_sort(HeadShared &s, int n)
{
    int room = 2;
    while (room < n) room *= 2;
    for (int i = n + TID; i < room; i += HEAD_THREADS) s.entry[i] = ~(uint64_t) 0;
    sync_block();
    for (int size = 2; size <= room; size *= 2)
        for (int apart = size / 2; apart; apart /= 2) {
            for (int i = TID; i < room / 2; i += HEAD_THREADS) {
                const int at = 2 * i - (i & (apart - 1));
                const uint64_t x = s.entry[at], y = s.entry[at + apart];
                if ((x > y) == !(at & size)) s.entry[at] = y, s.entry[at + apart] = x;
            }
            sync_block();
        }
}

/* Makes entry the band that begins with from; returns its length, 0 at the end of the order. */
DEV int head_band(HeadShared &s, const DrawArgs &a, const Head &h, uint64_t from)
{
    if (s.band_from == from) return s.band_n;
    sync_block();
    if (TID == 0) s.n = from ? 0 : h.n_list;
    if (from == 0 && h.n_list > 0) {
        for (int i = TID; i < h.n_list; i += HEAD_THREADS) s.entry[i] = ld(h.d->list + i);
        sync_block();
    } else {
        const uint64_t to = head_end(s, a, h, from);
        head_scan(s, a, h, [&](uint64_t key) {
            if (key >= from && key < to) s.entry[atomic_add(&s.n, 1)] = key;
        });
        sync_block();
    }
    if (TID == 0) s.band_from = from, s.band_n = s.n;
    head_sort(s, s.n);
    return s.band_n;
}

/* Adds the weights of entries [at, at + m) one after the other, up to where top-p ends or, for the total, up to where
 * nothing changes it any more. */
DEV void head_add(HeadShared &s, const Head &h, int m, bool total, double low, double high)
{
    double sum = s.sum;
    s.stop = m, s.state = HEAD_ON;
    for (int i = 0; i < m && s.state == HEAD_ON; i++) {
        const double w = s.weight[i], before = sum;
        if (total && w < 0x1p-53) {
            s.state = HEAD_END;
            break;
        }
        sum = f64_add(sum, w);
        if (total || !(sum >= f64_mul(h.top_p, high))) continue;
        s.stop = i + 1;
        s.state = low == high || before < f64_mul(h.top_p, low) ? HEAD_END : HEAD_UNSURE;
    }
    s.sum = sum;
}

/* Offers entries [at, at + s.stop) to the best. Ends with a barrier. */
DEV void head_offer(HeadShared &s, const Head &h, int at)
{
    uint64_t key[1] = { 0 };
    float x[1] = { 0 };
    int id[1] = { 0 };
    double z = 0, most = 0;
    uint32_t word = 0, least = 0;
    bool may = TID < s.stop && (!(h.min_p > 0) || s.weight[TID] >= h.min_p);
    if (may) {
        const uint64_t e = s.entry[at + TID];
        x[0] = f32_of_key(~(uint32_t) (e >> 23));
        id[0] = (int) (e & 0x7fffff);
        z = f64_div(f64_of_f32(x[0]), h.T);
        word = noise_word(h.seed, h.pos, id[0]);
        const int zeros = noise_zeros(word);
        most = f64_add(z, noise_most(zeros));
        least = key_of_f32(f32_below(f64_add(z, noise_least(zeros))));
    }
    const uint32_t bar = block_max<HEAD_WARPS>(least, s.max);
    if (may && most >= f64_of_f32(f32_of_key(bar)) && !(s.best && most < s.score))
        key[0] = key_of_f64(f64_add(z, noise_of(word)));
    block_top<1, HEAD_WARPS>(key, x, id, 1, s.list, s.top);
    if (TID == 0 && (s.top[0].key > s.best || (s.top[0].key == s.best && s.best && s.top[0].id < s.best_id))) {
        s.best = s.top[0].key;
        s.best_id = s.top[0].id;
        s.score = f64_add(f64_div(f64_of_f32(s.top[0].logit), h.T), noise_of(noise_word(h.seed, h.pos, s.best_id)));
    }
    sync_block();
}

/* Goes through the sorted order: for the total of the weights, or for the best up to where top-k and top-p end, the
 * total being in [low, high]. Returns false if that does not tell where top-p ends. */
DEV bool head_sweep(HeadShared &s, const DrawArgs &a, const Head &h, bool total, double low, double high)
{
    const bool weighted = h.top_p < 1.0, weights = weighted || h.min_p > 0;
    int left = h.top_k > 0 ? h.top_k : 0x7fffffff;
    uint64_t from = 0;
    sync_block();
    if (TID == 0) s.sum = 0, s.best = 0;
    for (;;) {
        int n = head_band(s, a, h, from);
        n = n < left ? n : left;
        if (n == 0) return total || !weighted || low == high;
        left -= n;
        for (int at = 0; at < n; at += HEAD_THREADS) {
            const int m = n - at < HEAD_THREADS ? n - at : (int) HEAD_THREADS;
            if (weights && TID < m) {
                const float x = f32_of_key(~(uint32_t) (s.entry[at + TID] >> 23));
                s.weight[TID] = f64_exp(f64_sub(f64_of_f32(x), h.max));
            }
            sync_block();
            if (TID == 0) {
                if (weighted) head_add(s, h, m, total, low, high);
                else s.stop = m, s.state = HEAD_ON;
            }
            sync_block();
            const int state = s.state;
            if (!total && state != HEAD_UNSURE) head_offer(s, h, at);
            else sync_block();
            if (state != HEAD_ON) return state == HEAD_END;
        }
        from = s.entry[n - 1] + 1;
    }
}

/* The sum of all weights in any order, off by less than 1e-10 of itself, tells nearly always where top-p ends; else the
 * sum in sorted order does. */
DEV int head_draw(HeadShared &s, const DrawArgs &a, const Head &h)
{
    double low = 0, high = 0;
    bool bounded = h.top_p < 1.0 && h.top_k == 0;
    for (int i = TID; i < h.n_patches; i += HEAD_THREADS)
        s.patch_id[i] = ld(h.d->patch_id + i), s.patch[i] = ld(h.d->patch + i);
    if (TID == 0) s.band_from = ~(uint64_t) 0;
    if (TID < a.tiles) s.weight[TID] = ld(&(tiles_of(h.d) + TID)->mass);
    sync_block();
    if (bounded) {
        double mass = 0;
        for (int i = 0; i < a.tiles; i++) mass = f64_add(mass, s.weight[i]);
        low = f64_mul(mass, 1 - 2e-10);
        high = f64_mul(mass, 1 + 2e-10);
    }
    bool total = h.top_p < 1.0 && !bounded;
    for (;;) {
        const bool told = head_sweep(s, a, h, total, low, high);
        if (!total && told) return s.best_id;
        if (total) low = high = s.sum;
        total = !total;
    }
}

KERNEL(512, draw_head, DrawArgs)
{
    SHARED(HeadShared, s);
    pass_next();
    pass_wait();
    DrawRow *d = row_at(a, BID);
    const int way = ld(&d->way), j = a.row0 + BID;
    if (way != DRAW_SKIP) {
        const DrawTile *t = tiles_of(d);
        uint64_t key[1] = { 0 };
        float x[1] = { 0 };
        int id[1] = { 0 };
        if (TID < 2 * a.tiles) {
            const DrawBest *b = &t[TID / 2].raw[TID % 2];
            key[0] = ld(&b->key);
            if (key[0]) x[0] = ld(&b->logit), id[0] = ld(&b->id);
        }
        block_top<1, HEAD_WARPS>(key, x, id, 2, s.list, s.top);
        if (TID == 0)
            st(a.out + j, s.top[1].key ? f32_sub(s.top[0].logit, s.top[1].logit) : f32_of_bits(0x7fc00000u));
        sync_block();
        key[0] = 0;
        uint32_t odd = 0;
        if (TID < a.tiles) {
            const DrawBest *b = &t[TID].best;
            odd = ld(&t[TID].odd) != 0;
            key[0] = ld(&b->key);
            if (key[0]) x[0] = ld(&b->logit), id[0] = ld(&b->id);
        }
        block_top<1, HEAD_WARPS>(key, x, id, 1, s.list, s.top);
        odd = block_max<HEAD_WARPS>(odd, s.max);
        const bool any = s.top[0].key != 0;
        const float max = s.top[0].logit;
        int token = odd ? DRAW_NAN : !any ? DRAW_NONE : s.top[0].id;
        sync_block();
        if (token >= 0 && way == DRAW_NOISE) {
            key[0] = 0;
            if (TID < a.tiles) {
                const DrawBest *b = bests_of(a, d) + TID;
                key[0] = ld(&b->key);
                if (key[0]) x[0] = ld(&b->logit), id[0] = ld(&b->id);
            }
            block_top<1, HEAD_WARPS>(key, x, id, 1, s.list, s.top);
            token = s.top[0].id;
        } else if (token >= 0 && way == DRAW_HEAD) {
            Head h;
            h.logits = logits_of(a, BID);
            h.d = d;
            h.T = f64_of_f32(ld(&d->temperature));
            h.max = f64_of_f32(max);
            h.top_p = f64_of_f32(ld(&d->top_p));
            h.min_p = f64_of_f32(ld(&d->min_p));
            h.seed = ld(&d->seed);
            h.pos = ld(&d->pos);
            h.top_k = ld(&d->top_k);
            h.n_patches = ld(&d->n_patches);
            h.n_list = ld(&d->n_list);
            token = head_draw(s, a, h);
        }
        if (TID == 0) st(a.id + j, token);
    }
}

/* ---- the candidates of a row ---- */

struct RankShared {
    DrawBest list[HEAD_WARPS * DRAW_BEST], top[DRAW_BEST];
    double   weight[DRAW_BEST];
    int32_t  kept, order[DRAW_BEST];
};

/* Top-k and top-p over the n candidates alone, by logit descending then id; those removed lose their key. One warp. */
DEV void rank_filter(RankShared &s, DrawRow *d, int n)
{
    const int top_k = ld(&d->top_k), limit = top_k > 0 && top_k < n ? top_k : n;
    const double top_p = f64_of_f32(ld(&d->top_p));
    int rank = 0;
    if (TID < n) {
        const DrawBest b = s.top[TID];
        for (int i = 0; i < n; i++)
            rank += s.top[i].logit > b.logit || (s.top[i].logit == b.logit && s.top[i].id < b.id);
        s.order[rank] = TID;
    }
    sync_warp();
    if (top_p < 1.0) {
        if (TID < limit)
            s.weight[TID] = f64_exp(f64_sub(f64_of_f32(s.top[s.order[TID]].logit),
                                            f64_of_f32(s.top[s.order[0]].logit)));
        sync_warp();
        if (TID == 0) {
            double total = 0, sum = 0;
            int kept = 0;
            for (int i = 0; i < limit; i++) total = f64_add(total, s.weight[i]);
            while (kept < limit && sum < f64_mul(top_p, total)) sum = f64_add(sum, s.weight[kept++]);
            s.kept = kept;
        }
    } else if (TID == 0) {
        s.kept = limit;
    }
    sync_warp();
    if (TID < n && rank >= s.kept) s.top[TID].key = 0;
    sync_warp();
}

KERNEL(512, draw_rank, DrawArgs)
{
    SHARED(RankShared, s);
    pass_next();
    pass_wait();
    DrawRow *d = row_at(a, BID);
    const int way = ld(&d->way);
    if (way != DRAW_SKIP) {
        const DrawBest *all = bests_of(a, d);
        uint64_t key[8];
        float x[8];
        int id[8];
        UNROLL
        for (int u = 0; u < 8; u++) {
            const int i = TID + 512 * u;
            key[u] = 0, x[u] = 0, id[u] = 0;
            if (i < a.tiles * a.k) key[u] = ld(&all[i].key);
            if (key[u]) x[u] = ld(&all[i].logit), id[u] = ld(&all[i].id);
        }
        block_top<8, HEAD_WARPS>(key, x, id, a.k, s.list, s.top);
        if (TID < 32) {
            int n = 0, place = 0, kept = 0;
            while (n < a.k && s.top[n].key) n++;
            if (way == DRAW_NOISE && n > 0) rank_filter(s, d, n);
            for (int i = 0; i < n; i++) place += i < TID && s.top[i].key, kept += s.top[i].key != 0;
            const int64_t at = (int64_t) (a.row0 + BID) * a.wanted;
            if (TID < n && s.top[TID].key) {
                const DrawBest b = s.top[TID];
                float score = b.logit;
                if (way == DRAW_NOISE) {
                    const double z = f64_div(f64_of_f32(b.logit), f64_of_f32(ld(&d->temperature)));
                    score = f32_of_f64(f64_add(z, noise_of(noise_word(ld(&d->seed), ld(&d->pos), b.id))));
                }
                st(a.id + at + place, b.id);
                st(a.out + at + place, score);
            }
            for (int i = kept + TID; i < a.wanted; i += 32) st(a.id + at + i, -1), st(a.out + at + i, -f32_infinity());
        }
    }
}

/* ---- DFlash2's extras ---- */

KERNEL(128, draw_block_conv, BlockConvArgs)
{
    pass_next();
    pass_wait();
    const int c = BID * 128 + TID, i = BID_Y, slice = ld(a.slice + i);
    if (c < a.cols && slice >= 0) {
        const int before = i - ld(&a.slices[slice].row0) + 1, taps = before < a.taps ? before : a.taps;
        const float *x = a.x + (int64_t) i * a.cols + c, *delta = a.delta + (int64_t) i * a.deltas + c / a.group;
        float acc = 0;
        for (int t = 0; t < taps; t++) {
            const float w = f32_add(ld_weight(a.base + (int64_t) t * a.cols + c), ld(delta + t * (a.cols / a.group)));
            acc = f32_fma(w, ld(x - (int64_t) t * a.cols), acc);
        }
        st(a.y + (int64_t) i * a.cols + c, acc);
    }
}

enum { PAIR_STEP = 1024 };
struct PairShared { float before[PAIR_STEP]; };

/* A block per logits row and candidate of the row before, 16 threads per candidate that follows: the sum over the rank
 * of (pred * g) * succ in 16 lanes, halves 8, 4, 2, 1 (design, Exactness 3). */
KERNEL(256, draw_pairs, PairArgs)
{
    SHARED(PairShared, s);
    pass_next();
    pass_wait();
    const int j = BID_Y;
    if (j < ld(a.count + 2)) {
        const int rank = a.pred.cols, lane = TID & 15, slice = ld(a.slice + ld(a.logit_row + j));
        const bool first = j == 0 || ld(a.slice + ld(a.logit_row + j - 1)) != slice;
        const Slice *sl = a.slices + slice;
        const int prev = first ? ld(a.token + ld(&sl->row0)) : ld(a.ids + (int64_t) (j - 1) * a.k + BID);
        const float set = ld(&sl->draw.p.temperature), temperature = set < 1e-5f ? 1.0f : set;
        for (int from = 0; from < a.k; from += 16) {
            const int i = from + TID / 16, id = i < a.k ? ld(a.ids + (int64_t) j * a.k + i) : -1;
            float acc = 0;
            for (int base = 0; prev >= 0 && base < rank; base += PAIR_STEP) {
                sync_block();
                for (int c = TID; c < PAIR_STEP && base + c < rank; c += 256)
                    s.before[c] = f32_mul(table_value(a.pred, prev, base + c), ld(a.g + (int64_t) j * rank + base + c));
                sync_block();
                for (int c = lane; id >= 0 && c - lane < PAIR_STEP && base + c - lane < rank; c += 16) {
                    const bool there = base + c < rank;
                    acc = f32_fma(there ? s.before[c] : 0.0f, there ? table_value(a.succ, id, base + c) : 0.0f, acc);
                }
            }
            for (int m = 8; m; m >>= 1) acc = f32_add(acc, shfl_xor_f(acc, m));
            if (i < a.k && lane == 0) {
                const float alone = ld(a.score + (int64_t) j * a.k + i);
                const bool none = prev < 0 || id < 0 || alone == -f32_infinity();
                st(a.edge + ((int64_t) j * a.k + BID) * a.k + i,
                   none ? -f32_infinity() : f32_add(alone, f32_div(acc, temperature)));
            }
        }
    }
}
