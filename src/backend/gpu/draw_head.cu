/* draw_head.cu - the last step of drawing: the token of a row, the candidates of a row. draw.cu lists the steps. */
#include "backend/gpu/gpu_draw.h"

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

/* The sum of all weights in any order tells nearly always where top-p ends, else the sum in sorted order does. Of the
 * true sum the first is off by less than 2e-12 of it, the second by 1.2e-10: n 2^-53 for n additions, and the same for
 * what it leaves out below 2^-53, with n at most 2^19. */
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
