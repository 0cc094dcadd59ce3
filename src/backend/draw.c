/* draw.c - the pure function from logits to a token, and the drafter's ranking under the same noise.
 *
 * The definition is a full sort and a noise value per id. A vocabulary of 250,000 allows neither per row, so the code
 * looks at the logits in vector passes and handles individually only the ids that can still matter:
 *   - noise spans less than 26.01, so ids far below the maximum cannot win; and since g <= (leading zeros of r + 1) *
 *     ln 2, the two logarithms are computed only for ids whose random word could still beat the best so far;
 *   - filters need only the head of the sorted order: it is produced in bands of falling logits, each sorted when
 *     it is needed;
 *   - top-p needs the sum of everything, but only to decide where the head ends: a bound on the sum settles nearly all
 *     cases, and the full sum in sorted order the rest.
 * The result equals that of the definition, to the bit (tests/unit/backend/test_draw.c compares them). */
#include "backend/draw.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "base/mathd.h"

static const double NOISE_SPAN = 26.01;                        /* more than the difference of the noise's highest and
                                                                * lowest values */
static const double NOISE_TOP  = 22.8756;                      /* more than its highest value */
static const float  GREEDY     = 1e-5f;
static const double DRAFT_SPAN = 12.0;

enum { TOP_MAX = 16, BLOCK = 1024, WINDOW_SLOTS = 1024 };

/* ---------------------------------------------------------------- parameters */

Sampling draw_default(void)
{
    return (Sampling) { .temperature = 0.0f, .top_p = 1.0f, .min_p = 0.0f, .rep = 1.0f, .freq = 0.0f, .presence = 0.0f,
                       .top_k = 0, .rep_window = HISTORY, .seed = 0 };
}

/* Compares with the limits as floats, since a number parsed as a float may round to a limit. False for NaN. */
static bool within(float x, double lo, double hi) { return x >= (float) lo && x <= (float) hi; }

const char *draw_check(const Sampling *p)
{
    if (!within(p->temperature, 0, TEMPERATURE_MAX))            return "temperature";
    if (!within(p->top_p, TOP_P_MIN, 1))                        return "top_p";
    if (!within(p->min_p, 0, MIN_P_MAX))                        return "min_p";
    if (!within(p->rep, REPETITION_MIN, REPETITION_MAX))        return "rep";
    if (!within(p->freq, -PENALTY_MAX, PENALTY_MAX))            return "freq";
    if (!within(p->presence, -PENALTY_MAX, PENALTY_MAX))        return "presence";
    if (p->top_k < 0)                                           return "top_k";
    if (p->rep_window < 0 || p->rep_window > HISTORY)           return "rep_window";
    return NULL;
}

void draw_set(Draw *d, const Sampling *p, const int32_t *text, int32_t n)
{
    d->p = *p;
    d->n_tail = n < HISTORY ? n : HISTORY;
    if (d->n_tail > 0) memcpy(d->tail, text + (n - d->n_tail), (size_t) d->n_tail * sizeof *text);
}

/* ---------------------------------------------------------------- noise */

static inline uint32_t philox(uint64_t key, uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3)
{
    uint32_t k0 = (uint32_t) key, k1 = (uint32_t) (key >> 32);
    for (int i = 0; i < 10; i++) {
        uint64_t a = (uint64_t) 0xD2511F53u * c0, b = (uint64_t) 0xCD9E8D57u * c2;
        c0 = (uint32_t) (b >> 32) ^ c1 ^ k0;
        c1 = (uint32_t) b;
        c2 = (uint32_t) (a >> 32) ^ c3 ^ k1;
        c3 = (uint32_t) a;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return c0;
}

uint32_t draw_random(uint64_t key, uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3)
{
    return philox(key, c0, c1, c2, c3);
}

static inline uint32_t noise_word(uint64_t seed, int64_t pos, int32_t id)
{
    return philox(seed, (uint32_t) pos, (uint32_t) ((uint64_t) pos >> 32), (uint32_t) id, 0);
}

static double noise_of(uint32_t r)
{
    double v = ((double) r + 0.5) * 0x1p-32;
    return -mathd_log(-mathd_log1p(-v));
}

/* Never below noise_of(r): -log1p(-v) >= v, and v > 2^-(zeros + 1). The constant exceeds ln 2 by more than any rounding
 * error. */
static double noise_bound(uint32_t r)
{
    int zeros = __builtin_clzll(((uint64_t) r << 1 | 1) << 31);
    return (zeros + 1) * 0.69315;
}

double draw_noise(uint64_t seed, int64_t pos, int32_t id) { return noise_of(noise_word(seed, pos, id)); }

/* ---------------------------------------------------------------- passes over the logits, four lanes at a time */

typedef float   F4 __attribute__((vector_size(16)));
typedef int32_t I4 __attribute__((vector_size(16)));
typedef uint32_t U4 __attribute__((vector_size(16)));
typedef float   F4Load __attribute__((vector_size(16), aligned(4), may_alias));

static F4 load4(const float *x) { return *(const F4Load *) x; }
static F4 max4(F4 a, F4 x)
{
    I4 more = x > a;
    return (F4)(((I4)x & more) | ((I4)a & ~more));
}

/* The largest logit and its first id. odd: there is a NaN or +inf, and max and id are meaningless. */
typedef struct { float max; int32_t id; bool odd; } Peak;

static Peak peak_find(const float *x, int32_t n)
{
    const F4 top = { FLT_MAX, FLT_MAX, FLT_MAX, FLT_MAX }, low = { -INFINITY, -INFINITY, -INFINITY, -INFINITY };
    Peak p = { -INFINITY, 0, false };
    int32_t where = 0;
    for (int32_t at = 0; at < n; at += BLOCK) {
        int32_t end = n - at < BLOCK ? n : at + BLOCK, i = at;
        F4 a = low, b = low;
        I4 fine = { -1, -1, -1, -1 };
        for (; i + 8 <= end; i += 8) {
            F4 u = load4(x + i), v = load4(x + i + 4);
            fine &= (u <= top) & (v <= top);
            a = max4(a, u);
            b = max4(b, v);
        }
        a = max4(a, b);
        float m = -INFINITY;
        bool ok = fine[0] & fine[1] & fine[2] & fine[3];
        for (int j = 0; j < 4; j++) if (a[j] > m) m = a[j];
        for (; i < end; i++) {
            ok = ok && x[i] <= FLT_MAX;
            if (x[i] > m) m = x[i];
        }
        p.odd |= !ok;
        if (m > p.max) { p.max = m; where = at; }
    }
    if (p.max > -INFINITY) {
        while (x[where] != p.max) where++;
        p.id = where;
    }
    return p;
}

/* The first i >= from with x[i] > lo, or n. */
static int32_t next_above(const float *x, int32_t from, int32_t n, float lo)
{
    const F4 l = { lo, lo, lo, lo };
    int32_t i = from;
    if (i < n && x[i] > lo) return i;                                /* where most ids qualify, this saves the vector
                                                                      * work */
    while (i + 8 <= n) {
        I4 m = (load4(x + i) > l) | (load4(x + i + 4) > l);
        if (m[0] | m[1] | m[2] | m[3]) break;
        i += 8;
    }
    while (i < n && !(x[i] > lo)) i++;
    return i;
}

/* Sum of exp(x - max), accurate to 1e-4: 2^y by a polynomial of degree 5 on [-1/2, 1/2] (error 3e-6), y in float
 * (1e-5), float sums of 256 values per lane (2e-5). Used only as a bound; the values that decide are double. */
static const double ROUGH = 1.01e-4;

static double sum_rough(const float *x, int32_t n, float max)
{
    const F4 floor4 = { -120, -120, -120, -120 };
    /* adding it rounds to an integer, kept in the low bits */
    const F4 magic = { 12582912, 12582912, 12582912, 12582912 };
    double sum = 0;
    for (int32_t at = 0; at < n; at += BLOCK) {
        int32_t end = n - at < BLOCK ? n : at + BLOCK;
        F4 acc = { 0, 0, 0, 0 };
        for (int32_t i = at; i < end; i += 4) {
            F4 v = floor4;
            if (i + 4 <= end) v = load4(x + i);
            else for (int32_t j = i; j < end; j++) v[j - i] = x[j];
            F4 y = max4(floor4, (v - max) * 1.44269504f), t = y + magic, f = y - (t - magic);
            F4 q = 1.0f +
                   f * (0.69314718f + f * (0.24022651f + f * (0.05550411f + f * (0.00961813f + f * 0.00133336f))));
            F4 e = (F4)((U4)q + (((U4)t - (U4)magic) << 23));
            if (i + 4 > end) for (int32_t j = end; j < i + 4; j++) e[j - i] = 0;
            acc += e;
        }
        sum += (double) acc[0] + acc[1] + acc[2] + acc[3];
    }
    return sum;
}

/* ---------------------------------------------------------------- penalties, bias, mask */

static bool penalised(const Sampling *p)
{
    return p->rep_window > 0 && (p->rep != 1.0f || p->freq != 0.0f || p->presence != 0.0f);
}

/* A logit that a huge bias or a tiny rep makes infinite becomes the largest float, so that only the model's own logits
 * can cause an error. */
static float tame(float l) { return l <= FLT_MAX ? l : l > 0 ? FLT_MAX : -INFINITY; }

/* Applies to each distinct token of the window once: first repetition (l > 0 ? l / rep : l * rep), then l - (count *
 * freq + presence), in float. */
static void penalise(float *x, int32_t n, const Draw *d, const int32_t *path, int32_t n_path)
{
    int32_t slot_id[WINDOW_SLOTS], order[HISTORY], n_order = 0;      /* open addressing, at most a quarter full */
    uint16_t slot_count[WINDOW_SLOTS];
    memset(slot_id, -1, sizeof slot_id);
    int32_t total = d->n_tail + n_path, first = total > d->p.rep_window ? total - d->p.rep_window : 0;
    for (int32_t i = first; i < total; i++) {
        int32_t id = i < d->n_tail ? d->tail[i] : path[i - d->n_tail];
        if (id < 0 || id >= n) continue;
        uint32_t s = ((uint32_t) id * 2654435761u) >> 22;
        while (slot_id[s] >= 0 && slot_id[s] != id) s = (s + 1) % WINDOW_SLOTS;
        if (slot_id[s] < 0) {
            slot_id[s] = id;
            slot_count[s] = 0;
            order[n_order++] = (int32_t) s;
        }
        slot_count[s]++;
    }
    for (int32_t i = 0; i < n_order; i++) {
        float *l = &x[slot_id[order[i]]], v = *l > 0 ? *l / d->p.rep : *l * d->p.rep;
        *l = tame(v - ((float) slot_count[order[i]] * d->p.freq + d->p.presence));
    }
}

/* Returns the logits with penalties, bias and mask applied, in copy; or the logits themselves if none applies. */
static const float *adjust(float *copy, const Draw *d, const int32_t *path, int32_t n_path, const float *logits,
                           int32_t n, const uint32_t *allow, bool drop_odd)
{
    bool penalty = penalised(&d->p);
    if (!penalty && d->n_bias == 0 && !allow && !drop_odd) return logits;
    memcpy(copy, logits, (size_t) n * sizeof *copy);
    if (drop_odd)
        for (int32_t i = 0; i < n; i++) if (!(copy[i] <= FLT_MAX)) copy[i] = -INFINITY;
    if (penalty) penalise(copy, n, d, path, n_path);
    for (int32_t i = 0; i < d->n_bias; i++) {
        const DrawBias *b = &d->bias[i];
        if (b->id >= 0 && b->id < n) copy[b->id] = tame(copy[b->id] + b->add);
    }
    for (int32_t at = 0; allow && at < n; at += 32) {
        uint32_t out = ~allow[at / 32];
        for (int32_t i = at; out && i < n; i++, out >>= 1) if (out & 1) copy[i] = -INFINITY;
    }
    return copy;
}

/* ---------------------------------------------------------------- the best few of l / T + g */

typedef struct { double score; float logit; int32_t id; } Scored;
typedef struct { int32_t n, k; Scored at[TOP_MAX]; } Top;            /* best first: score descending, id ascending */

static bool scored_before(double score, int32_t id, const Scored *than)
{
    return score > than->score || (score == than->score && id < than->id);
}

static void top_offer(Top *t, double score, float logit, int32_t id)
{
    if (t->n == t->k) {
        if (!scored_before(score, id, &t->at[t->k - 1])) return;
        t->n--;
    }
    int32_t i = t->n++;
    for (; i > 0 && scored_before(score, id, &t->at[i - 1]); i--) t->at[i] = t->at[i - 1];
    t->at[i] = (Scored) { score, logit, id };
}

/* Offers z + g of one id, z = l / T, without computing the logarithms if they cannot matter. */
static inline void top_offer_noisy(Top *t, const Draw *d, int64_t pos, double z, float logit, int32_t id)
{
    uint32_t r = noise_word(d->p.seed, pos, id);
    if (t->n == t->k && z + noise_bound(r) < t->at[t->k - 1].score) return;
    top_offer(t, z + noise_of(r), logit, id);
}

/* A float below every l with (double)l > bound. */
static float float_below(double bound)
{
    if (bound < -FLT_MAX) return -INFINITY;
    if (bound > FLT_MAX) return FLT_MAX;
    return nextafterf((float) bound, -INFINITY);
}

/* Offers all ids with l / T at least zmax - span, and exp(l - max) >= min_p if that is on. Those near the maximum go
 * first: they raise the bar so far that most of the others cost only their random word. */
static void top_noisy(Top *t, const Draw *d, const float *x, int32_t n, int64_t pos, Peak peak, double span,
                      double min_p)
{
    double T = (double) d->p.temperature, zmax = (double) peak.max / T, slack = fabs(zmax) * 1e-12;
    float near = float_below((zmax - fmin(4.0, span) - slack) * T),
          far = float_below((zmax - span * (1 + 1e-12) - slack) * T);
    /* above it exp decides */
    float likely = min_p > 0 ? float_below((double) peak.max + mathd_log(min_p) - 1e-9) : -INFINITY;
    double last = -INFINITY;                                    /* the score to beat, and the logit that this
                                                                 * requires */
    float bar = -INFINITY;
    for (int band = 0; band < 2; band++) {
        float hi = band == 0 ? INFINITY : near, lo = fmaxf(fmaxf(band == 0 ? near : far, bar), likely);
        for (int32_t i = next_above(x, 0, n, lo); i < n; i = next_above(x, i + 1, n, lo)) {
            double z = (double) x[i] / T;
            if (x[i] > hi || !(z >= zmax - span)) continue;
            if (min_p > 0 && !(mathd_exp((double) x[i] - (double) peak.max) >= min_p)) continue;
            top_offer_noisy(t, d, pos, z, x[i], i);
            if (t->n == t->k && t->at[t->k - 1].score > last) {
                last = t->at[t->k - 1].score;
                bar = float_below((last - NOISE_TOP - slack) * T);
                lo = fmaxf(lo, bar);
            }
        }
    }
}

/* ---------------------------------------------------------------- the sorted order, as far as it is needed */

typedef struct { uint32_t key; int32_t id; } Entry;                  /* key ascending = logit descending */
typedef struct {
    const float *x; int32_t n;
    float        max, lo;                                            /* entries are all ids with x > lo, sorted */
    double       width;
    Entry       *entry, *other; int32_t count;
} Head;

static uint32_t entry_key(float l)
{
    uint32_t u;
    l += 0.0f;                                                       /* -0 equals 0 and must tie with it */
    memcpy(&u, &l, sizeof u);
    return u >> 31 ? u : ~u ^ 0x80000000u;
}

/* Stable by key. Ids come in ascending order, so ties stay sorted by id. */
static void entry_sort(Entry *e, Entry *other, int32_t n)
{
    if (n <= 32) {
        for (int32_t i = 1; i < n; i++) {
            Entry v = e[i];
            int32_t j = i;
            for (; j > 0 && e[j - 1].key > v.key; j--) e[j] = e[j - 1];
            e[j] = v;
        }
        return;
    }
    Entry *from = e, *to = other;
    for (int shift = 0; shift < 32; shift += 8) {
        int32_t start[257] = { 0 };
        for (int32_t i = 0; i < n; i++) start[(from[i].key >> shift & 255) + 1]++;
        if (start[(from[0].key >> shift & 255) + 1] == n) continue;  /* all digits equal */
        for (int j = 1; j < 257; j++) start[j] += start[j - 1];
        for (int32_t i = 0; i < n; i++) to[start[from[i].key >> shift & 255]++] = from[i];
        Entry *swap = from;
        from = to;
        to = swap;
    }
    if (from != e) memcpy(e, from, (size_t) n * sizeof *e);
}

static bool head_whole(const Head *h) { return h->lo == -INFINITY; }

/* Adds the next band: down to 4, 8, .. 64 below the maximum, then all the rest. */
static void head_extend(Head *h)
{
    float hi = h->lo;
    h->lo = h->width > 64 ? -INFINITY : float_below((double) h->max - h->width);
    h->width *= 2;
    int32_t first = h->count;
    for (int32_t i = next_above(h->x, 0, h->n, h->lo); i < h->n; i = next_above(h->x, i + 1, h->n, h->lo))
        if (!(h->x[i] > hi)) h->entry[h->count++] = (Entry) { entry_key(h->x[i]), i };
    entry_sort(h->entry + first, h->other, h->count - first);
}

static double head_weight(const Head *h, int32_t i)
{
    return mathd_exp((double) h->x[h->entry[i].id] - (double) h->max);
}

/* Sum of the weights of the first n in sorted order. Once a term is below 2^-53, it and all later ones leave a sum >= 1
 * unchanged. */
static double head_sum(const Head *h, int32_t n)
{
    double sum = 0;
    for (int32_t i = 0; i < n; i++) {
        double w = head_weight(h, i);
        if (w < 0x1p-53) break;
        sum += w;
    }
    return sum;
}

/* How many of the first n reach top_p of the total, which lies in [lo, hi]; -1 if these bounds do not decide it, or the
 * head is too short. */
static int32_t head_reach(const Head *h, int32_t n, double top_p, double lo, double hi)
{
    double sum = 0;
    for (int32_t i = 0; i < n; i++) {
        double before = sum;
        sum += head_weight(h, i);
        if (sum >= top_p * hi) return lo == hi || before < top_p * lo ? i + 1 : -1;
    }
    return -1;
}

/* How many ids of the sorted order survive top-k and top-p. */
static int32_t head_filter(Head *h, int32_t top_k, double top_p)
{
    if (top_k > 0) {
        while (h->count < top_k && !head_whole(h)) head_extend(h);
        int32_t n = h->count < top_k ? h->count : top_k;
        if (top_p >= 1.0) return n;
        double total = head_sum(h, n);
        return head_reach(h, n, top_p, total, total);
    }
    double rough = sum_rough(h->x, h->n, h->max), lo = rough * (1 - ROUGH), hi = rough * (1 + ROUGH), sum = 0;
    for (int32_t done = 0; !(sum >= top_p * hi) && !head_whole(h);) {
        head_extend(h);
        for (; done < h->count; done++) sum += head_weight(h, done);
    }
    int32_t n = head_reach(h, h->count, top_p, lo, hi);
    if (n > 0) return n;
    while (!head_whole(h)) head_extend(h);
    double total = head_sum(h, h->count);
    return head_reach(h, h->count, top_p, total, total);
}

/* ---------------------------------------------------------------- drawing */

/* scratch: the adjusted copy, then two arrays of entries. */
static size_t copy_bytes(int32_t n) { return ((size_t) n * sizeof(float) + 63) / 64 * 64; }
size_t draw_scratch(int32_t n)
{
    return n <= 0 ? 64 : copy_bytes(n) + 2 * ((size_t) n * sizeof(Entry) + 63) / 64 * 64 + 64;
}

int32_t draw_next(const Draw *d, const int32_t *path, int32_t n_path, const float *logits, int32_t n, int64_t pos,
                  const uint32_t *allow, void *scratch)
{
    if (n <= 0) return DRAW_NONE;
    Peak peak = peak_find(logits, n);
    if (peak.odd) return DRAW_NAN;
    const float *x = adjust(scratch, d, path, n_path, logits, n, allow, false);
    if (x != logits) peak = peak_find(x, n);
    if (peak.max == -INFINITY) return DRAW_NONE;
    if (d->p.temperature < GREEDY) return peak.id;

    Top best = { .k = 1 };
    double top_p = (double) d->p.top_p, min_p = (double) d->p.min_p;
    if (d->p.top_k == 0 && top_p >= 1.0) {
        top_noisy(&best, d, x, n, pos, peak, NOISE_SPAN, min_p);
        return best.at[0].id;
    }
    Entry *entry = (Entry *) ((char *) scratch + copy_bytes(n));
    Head h = { .x = x, .n = n, .max = peak.max, .lo = INFINITY, .width = 4, .entry = entry, .other = entry + n };
    int32_t kept = head_filter(&h, d->p.top_k, top_p);
    for (int32_t i = 0; i < kept; i++) {
        int32_t id = h.entry[i].id;
        if (min_p > 0 && !(head_weight(&h, i) >= min_p)) continue;   /* the first has weight 1 */
        top_offer_noisy(&best, d, pos, (double) x[id] / (double) d->p.temperature, x[id], id);
    }
    return best.at[0].id;
}

/* Top-k and top-p over the candidates alone, by logit descending then id; those removed lose their id. */
static void top_filter(Top *t, int32_t top_k, double top_p)
{
    int32_t order[TOP_MAX], kept = 0;
    for (int32_t i = 0; i < t->n; i++) {
        int32_t j = i;
        const Scored *v = &t->at[i];
        for (; j > 0; j--) {
            const Scored *u = &t->at[order[j - 1]];
            if (u->logit > v->logit || (u->logit == v->logit && u->id < v->id)) break;
            order[j] = order[j - 1];
        }
        order[j] = i;
    }
    kept = top_k > 0 && top_k < t->n ? top_k : t->n;
    if (top_p < 1.0 && kept > 0) {
        double weight[TOP_MAX], total = 0, sum = 0;
        for (int32_t i = 0; i < kept; i++) {
            weight[i] = mathd_exp((double) t->at[order[i]].logit - (double) t->at[order[0]].logit);
            total += weight[i];
        }
        int32_t reach = 0;
        while (reach < kept && sum < top_p * total) sum += weight[reach++];
        kept = reach;
    }
    for (int32_t i = kept; i < t->n; i++) t->at[order[i]].id = -1;
    int32_t n = 0;
    for (int32_t i = 0; i < t->n; i++) if (t->at[i].id >= 0) t->at[n++] = t->at[i];
    t->n = n;
}

void draw_top_k(int32_t *id, float *score, int32_t k, const Draw *d, const float *logits, int32_t n, int64_t pos,
                void *scratch)
{
    Top top = { .k = k < TOP_MAX ? k : TOP_MAX };
    Peak peak = peak_find(logits, n);
    const float *x = adjust(scratch, d, NULL, 0, logits, n, NULL, peak.odd);
    if (x != logits) peak = peak_find(x, n);
    if (peak.max > -INFINITY && top.k > 0) {
        if (d->p.temperature < GREEDY) {
            float lo = -INFINITY;
            for (int32_t i = next_above(x, 0, n, lo); i < n; i = next_above(x, i + 1, n, lo)) {
                top_offer(&top, (double) x[i], x[i], i);
                if (top.n == top.k) lo = top.at[top.k - 1].logit;    /* a later id with the same logit would lose the
                                                                      * tie */
            }
        } else {
            top_noisy(&top, d, x, n, pos, peak, DRAFT_SPAN, (double) d->p.min_p);
            top_filter(&top, d->p.top_k, (double) d->p.top_p);
        }
    }
    for (int32_t i = 0; i < k; i++) {
        id[i] = i < top.n ? top.at[i].id : -1;
        score[i] = i < top.n ? (float) top.at[i].score : -INFINITY;
    }
}

/* ---------------------------------------------------------------- canvases */

/* The last word of the counter, which is 0 for draw_noise; blocks are fewer than 2^20. */
enum { FOR_SAMPLE = 1, FOR_ANY = 2 };

static uint32_t canvas_word(const CanvasDraw *d, int64_t pos, int32_t id, uint32_t purpose)
{
    return philox(d->seed, (uint32_t) pos, (uint32_t) d->step, (uint32_t) id, (uint32_t) d->block << 2 | purpose);
}

bool draw_canvas_may(const CanvasRow *row, float top) { return (double) top >= (double) row->top - NOISE_SPAN; }

void draw_canvas(CanvasRow *row, const CanvasDraw *d, int64_t pos, const float *z, int32_t n, int32_t id0)
{
    const double least = (double) row->top - NOISE_SPAN;
    for (int32_t i = 0; i < n; i++) {
        const double at = (double) z[i];
        if (!(at >= least) || at + NOISE_TOP < row->score) continue;
        const uint32_t r = canvas_word(d, pos, id0 + i, FOR_SAMPLE);
        if (at + noise_bound(r) < row->score) continue;
        const double score = at + noise_of(r);
        if (score > row->score || row->sample < 0) {
            row->score = score;
            row->sample = id0 + i;
        }
    }
}

int32_t draw_canvas_any(const CanvasDraw *d, int64_t pos, int32_t vocab)
{
    return (int32_t) ((uint64_t) canvas_word(d, pos, 0, FOR_ANY) * (uint64_t) vocab >> 32);
}

float draw_margin(const float *logits, int32_t n, void *scratch)
{
    Draw greedy;
    int32_t id[2];
    float logit[2];
    greedy.p = draw_default();
    greedy.n_tail = greedy.n_bias = 0;
    draw_top_k(id, logit, 2, &greedy, logits, n, 0, scratch);
    return id[1] < 0 ? NAN : logit[0] - logit[1];
}
