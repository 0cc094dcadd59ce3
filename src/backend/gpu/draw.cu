/* draw.cu - the ends of passes: draw_next, draw_top_k and draw_margin (backend/draw.c says what they are).
 * Orders are total, by (what is compared, id), so blocks may find their best in any division. Only sums have an order,
 * that of the sorted logits: draw_head sorts as much as is needed and adds one after the other.
 *
 *   draw_open    a row's parameters, and the logits that penalties and biases change
 *   draw_peak    each tile's largest logit
 *   draw_best    each tile's best by logit / T + noise; or, where filters need the sorted order, how many logits lie
 *                where and what all weigh
 *   draw_gather  the head of the sorted order
 *   draw_head    the token and the margin
 *   draw_rank    the drafter's candidates */
#include "backend/gpu/gpu_draw.h"

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
DEV int open_window(OpenShared &s, const DrawArgs &a, const Slice *sl, int row)
{
    const Draw *w = &sl->draw;
    const int most = ld(&w->p.rep_window), n_tail = ld(&w->n_tail);
    const bool any = ld(&w->p.rep) != 1.0f || ld(&w->p.freq) != 0.0f || ld(&w->p.presence) != 0.0f;
    if (!any) return 0;
    open_path(s, a, sl, row);
    const int all = n_tail + s.n_path, first = all > most ? all - most : 0, n = all - first;
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
    const int n_bias = ld(&w->n_bias), n_window = open_window(s, a, sl, row), b = TID - HISTORY;
    if (n_window == 0 && n_bias == 0) {
        if (TID == 0) st(&d->n_patches, 0);
        return;
    }
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
    for (int i = n_window ? 0 : HISTORY; i < HISTORY + n_bias; i = i + 1 == n_window ? HISTORY : i + 1)
        before += s.id[i] >= 0 && s.id[i] < id, all += s.id[i] >= 0;
    if (id >= 0) st(d->patch_id + before, id), st(d->patch + before, s.to[TID]);
    if (TID == 0) st(&d->n_patches, all);
}

/* By one thread. */
DEV void open_sampling(const DrawArgs &a, DrawRow *d, const Sampling *p, int row)
{
    const float temperature = ld(&p->temperature), top_p = ld(&p->top_p), min_p = ld(&p->min_p);
    const int top_k = ld(&p->top_k), pos = ld(a.pos + row);
    const uint64_t seed = ld(&p->seed);
    const bool filters = a.picks && (top_k > 0 || top_p < 1.0f);
    st(&d->way, (int) (temperature < 1e-5f ? DRAW_GREEDY : filters ? DRAW_HEAD : DRAW_NOISE));
    st(&d->top_k, top_k);
    st(&d->n_list, 0);
    st(&d->temperature, temperature);
    st(&d->top_p, top_p);
    st(&d->min_p, min_p);
    st(&d->seed, seed);
    st(&d->pos, (int64_t) pos + a.picks);
    if (min_p > 0) st(&d->likely, f64_sub(f64_log(f64_of_f32(min_p)), 1e-9));
}

enum { OPEN_THREADS = 576 };
KERNEL(OPEN_THREADS, draw_open, DrawArgs)
{
    SHARED(OpenShared, s);
    pass_next();
    pass_wait();
    DrawRow *d = row_at(a, BID);
    const int j = a.row0 + BID, count = ld(a.count + 2), at = ld(a.logit_row + j);
    const int row = j < count ? at : -1, slice = row < 0 ? -1 : ld(a.slice + row);
    if (slice < 0) {
        if (TID == 0) st(&d->way, (int) DRAW_SKIP);
    } else {
        const Slice *sl = a.slices + slice;
        if (TID == OPEN_THREADS - 1) open_sampling(a, d, &sl->draw.p, row);
        if (TID < DRAW_BINS) st(d->bin + TID, 0);
        open_row(s, a, d, sl, row);
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

struct PeakShared { Patches p; DrawBest list[8], top[1]; uint64_t two[16]; uint32_t odd[8]; };

/* The two larger ones of a >= b and two others like these; all are different, or 0. */
DEV void two_of(uint64_t &a, uint64_t &b, uint64_t other_a, uint64_t other_b)
{
    const bool mine = a > other_a;
    const uint64_t less = mine ? other_a : a, second = mine ? b : other_b;
    a = mine ? a : other_a;
    b = less > second ? less : second;
}

template <int LANES> DEV void lanes_two(uint64_t &a, uint64_t &b)
{
    UNROLL
    for (int m = LANES / 2; m; m >>= 1) {
        const uint64_t other_a = shfl_xor_u64(a, m), other_b = shfl_xor_u64(b, m);
        two_of(a, b, other_a, other_b);
    }
}

/* The tile's two best in a and b of the first warp, as key << 32 | ~id, 0: none. Begins and ends with a barrier. */
DEV void tile_two(uint64_t &a, uint64_t &b, PeakShared &s, const float (&x)[8], int first)
{
    a = b = 0;
    UNROLL
    for (int u = 0; u < 8; u++)
        if (x[u] > -f32_infinity())
            two_of(a, b, (uint64_t) key_of_f32(x[u]) << 32 | (uint32_t) ~(first + TID + 256 * u), 0);
    lanes_two<32>(a, b);
    sync_block();
    if ((TID & 31) == 0) s.two[TID >> 5] = a, s.two[8 + (TID >> 5)] = b;
    sync_block();
    if (TID < 32) {
        a = s.two[TID & 7], b = s.two[8 + (TID & 7)];
        lanes_two<8>(a, b);
    }
}

DEV void put_two(DrawBest *to, uint64_t best, const float *logits)
{
    st(&to->key, best >> 32);
    if (!best) return;
    const int id = (int) ~(uint32_t) best;
    st(&to->logit, ld(logits + id));
    st(&to->id, id);
}

KERNEL(256, draw_peak, DrawArgs)
{
    SHARED(PeakShared, s);
    pass_next();
    pass_wait();
    DrawRow *d = row_at(a, BID_Y);
    if (ld(&d->way) != DRAW_SKIP) {
        DrawTile *t = tiles_of(d) + BID;
        const int first = BID * DRAW_TILE;
        const float *logits = logits_of(a, BID_Y);
        float x[8];
        tile_load(x, logits, first, a.vocab);
        tile_patches(s.p, d, first);
        const bool as_it_is = !a.mask && s.p.n == 0;
        bool odd = false;
        UNROLL
        for (int u = 0; u < 8; u++) odd |= !(x[u] <= -DRAW_LOWEST), x[u] = finite_or_lowest(x[u]);
        if (a.picks || as_it_is) {
            uint64_t one, two;
            const uint32_t any = warp_ballot(odd);
            if ((TID & 31) == 0) s.odd[TID >> 5] = any;
            tile_two(one, two, s, x, first);
            if (TID == 0) {
                uint32_t all = 0;
                for (int w = 0; w < 8; w++) all |= s.odd[w];
                if (a.picks) st(&t->odd, all != 0);
                if (a.picks) put_two(&t->raw[0], one, logits), put_two(&t->raw[1], two, logits);
                if (as_it_is) put_two(&t->best, one, logits);
            }
        }
        if (!as_it_is) {
            uint64_t key[8];
            int id[8];
            tile_adjust(x, s.p, a, first);
            tile_keys(key, id, x, first);
            block_top<8, 8>(key, x, id, 1, s.list, s.top);
            if (TID == 0) put_best(&t->best, s.top[0]);
        }
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

DEV_TABLE double power[64] = {                      /* 2^(i / 64) */
    0x1.0000000000000p+0, 0x1.02c9a3e778061p+0, 0x1.059b0d3158574p+0, 0x1.0874518759bc8p+0,
    0x1.0b5586cf9890fp+0, 0x1.0e3ec32d3d1a2p+0, 0x1.11301d0125b51p+0, 0x1.1429aaea92de0p+0,
    0x1.172b83c7d517bp+0, 0x1.1a35beb6fcb75p+0, 0x1.1d4873168b9aap+0, 0x1.2063b88628cd6p+0,
    0x1.2387a6e756238p+0, 0x1.26b4565e27cddp+0, 0x1.29e9df51fdee1p+0, 0x1.2d285a6e4030bp+0,
    0x1.306fe0a31b715p+0, 0x1.33c08b26416ffp+0, 0x1.371a7373aa9cbp+0, 0x1.3a7db34e59ff7p+0,
    0x1.3dea64c123422p+0, 0x1.4160a21f72e2ap+0, 0x1.44e086061892dp+0, 0x1.486a2b5c13cd0p+0,
    0x1.4bfdad5362a27p+0, 0x1.4f9b2769d2ca7p+0, 0x1.5342b569d4f82p+0, 0x1.56f4736b527dap+0,
    0x1.5ab07dd485429p+0, 0x1.5e76f15ad2148p+0, 0x1.6247eb03a5585p+0, 0x1.6623882552225p+0,
    0x1.6a09e667f3bcdp+0, 0x1.6dfb23c651a2fp+0, 0x1.71f75e8ec5f74p+0, 0x1.75feb564267c9p+0,
    0x1.7a11473eb0187p+0, 0x1.7e2f336cf4e62p+0, 0x1.82589994cce13p+0, 0x1.868d99b4492edp+0,
    0x1.8ace5422aa0dbp+0, 0x1.8f1ae99157736p+0, 0x1.93737b0cdc5e5p+0, 0x1.97d829fde4e50p+0,
    0x1.9c49182a3f090p+0, 0x1.a0c667b5de565p+0, 0x1.a5503b23e255dp+0, 0x1.a9e6b5579fdbfp+0,
    0x1.ae89f995ad3adp+0, 0x1.b33a2b84f15fbp+0, 0x1.b7f76f2fb5e47p+0, 0x1.bcc1e904bc1d2p+0,
    0x1.c199bdd85529cp+0, 0x1.c67f12e57d14bp+0, 0x1.cb720dcef9069p+0, 0x1.d072d4a07897cp+0,
    0x1.d5818dcfba487p+0, 0x1.da9e603db3285p+0, 0x1.dfc97337b9b5fp+0, 0x1.e502ee78b3ff6p+0,
    0x1.ea4afa2a490dap+0, 0x1.efa1bee615a27p+0, 0x1.f50765b6e4540p+0, 0x1.fa7c1819e90d8p+0
};

/* exp(x - max) to within 1e-12 of itself, for x at most 45 below: a quarter of the operations in double that the exact
 * one takes, and only a bound on the sum needs it. */
DEV double weight_near(float x, float max)
{
    const int k = (int) f32_add(f32_mul(f32_sub(max, x), 92.33248f), 0.5f);
    const double r = f64_fma(f64_of_int(k), 0x1.62e42fefa39efp-7, f64_sub(f64_of_f32(x), f64_of_f32(max)));
    double p = f64_fma(r, 1.0 / 24, 1.0 / 6);
    p = f64_fma(p, r, 0.5);
    p = f64_fma(p, r, 1.0);
    p = f64_fma(p, r, 1.0);
    const int64_t whole = -k >> 6;
    return f64_mul(p, f64_of_bits(bits_of_f64(power[-k & 63]) + ((uint64_t) whole << 52)));
}

/* Counts the tile's logits, and weighs them if only that tells where top-p ends. */
DEV void best_count(BestShared &s, DrawRow *d, const float (&x)[8], float max)
{
    s.bin[TID] = 0;
    sync_block();
    const bool weigh = ld(&d->top_k) == 0;
    double mass = 0;
    UNROLL
    for (int u = 0; u < 8; u++) {
        const int bin = bin_of(x[u], max);
        if (bin < DRAW_BINS) atomic_add(&s.bin[bin], 1);
        if (weigh && f32_sub(max, x[u]) < 45.0f) mass = f64_add(mass, weight_near(x[u], max));
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
