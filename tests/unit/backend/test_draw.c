/* test_draw.c - draw_next and draw_top_k against a naive version of the definition: one full sort, one noise value per
 * id. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "backend/draw.h"
#include "base/mathd.h"

/* ---------------------------------------------------------------- the definition */

static void philox(uint32_t out[4], const uint32_t counter[4], const uint32_t key[2])
{
    uint32_t c[4], k[2];
    memcpy(c, counter, sizeof c);
    memcpy(k, key, sizeof k);
    for (int round = 0; round < 10; round++) {
        if (round) { k[0] += 0x9E3779B9u; k[1] += 0xBB67AE85u; }
        uint64_t p0 = 0xD2511F53ull * c[0], p1 = 0xCD9E8D57ull * c[2];
        uint32_t next[4] = { (uint32_t) (p1 >> 32) ^ c[1] ^ k[0], (uint32_t) p1, (uint32_t) (p0 >> 32) ^ c[3] ^ k[1],
                             (uint32_t) p0 };
        memcpy(c, next, sizeof c);
    }
    memcpy(out, c, sizeof c);
}

static double noise(uint64_t seed, int64_t pos, int32_t id)
{
    uint32_t out[4], counter[4] = { (uint32_t) pos, (uint32_t) ((uint64_t) pos >> 32), (uint32_t) id, 0 };
    uint32_t key[2] = { (uint32_t) seed, (uint32_t) (seed >> 32) };
    philox(out, counter, key);
    double v = ((double) out[0] + 0.5) * 0x1p-32;
    return -mathd_log(-mathd_log1p(-v));
}

typedef struct { float l; int32_t id; double score; } Item;

static int by_logit(const void *a, const void *b)
{
    const Item *x = a, *y = b;
    if (x->l != y->l) return x->l > y->l ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}
static int by_score(const void *a, const void *b)
{
    const Item *x = a, *y = b;
    if (x->score != y->score) return x->score > y->score ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

static void naive_adjust(float *x, const Draw *d, const int32_t *path, int32_t n_path, int32_t n, const uint32_t *allow)
{
    int32_t window[HISTORY + 64], m = 0;
    for (int32_t i = 0; i < d->n_tail; i++) window[m++] = d->tail[i];
    for (int32_t i = 0; i < n_path; i++) window[m++] = path[i];
    const int32_t *w = window + (m > d->p.rep_window ? m - d->p.rep_window : 0);
    m = m > d->p.rep_window ? d->p.rep_window : m;
    for (int32_t id = 0; id < n; id++) {
        int32_t count = 0;
        for (int32_t i = 0; i < m; i++) count += w[i] == id;
        if (count) {
            x[id] = x[id] > 0 ? x[id] / d->p.rep : x[id] * d->p.rep;
            x[id] -= (float) count * d->p.freq + d->p.presence;
        }
        for (int32_t i = 0; i < d->n_bias; i++) if (d->bias[i].id == id) x[id] += d->bias[i].add;
        if (allow && !(allow[id / 32] >> (id % 32) & 1)) x[id] = -INFINITY;
    }
}

static int32_t naive_filter(Item *e, int32_t m, const Sampling *p, bool with_min_p)
{
    qsort(e, (size_t) m, sizeof *e, by_logit);
    if (p->top_k > 0 && m > p->top_k) m = p->top_k;
    if (p->top_p < 1) {
        double total = 0, sum = 0;
        for (int32_t i = 0; i < m; i++) total += mathd_exp((double) e[i].l - (double) e[0].l);
        int32_t i = 0;
        while (i < m && sum < (double) p->top_p * total) sum += mathd_exp((double) e[i].l - (double) e[0].l), i++;
        m = i;
    }
    if (with_min_p && p->min_p > 0) {
        int32_t kept = 0;
        float first = e[0].l;
        for (int32_t i = 0; i < m; i++)
            if (mathd_exp((double) e[i].l - (double) first) >= (double) p->min_p) e[kept++] = e[i];
        m = kept;
    }
    return m;
}

static int32_t naive_next(const Draw *d, const int32_t *path, int32_t n_path, const float *logits, int32_t n,
                          int64_t pos, const uint32_t *allow)
{
    float *x = malloc((size_t) n * sizeof *x);
    Item *e = malloc((size_t) n * sizeof *e);
    memcpy(x, logits, (size_t) n * sizeof *x);
    naive_adjust(x, d, path, n_path, n, allow);
    int32_t m = 0, got = DRAW_NONE;
    for (int32_t i = 0; i < n; i++) if (x[i] > -INFINITY) e[m++] = (Item) { x[i], i, (double) x[i] };
    if (m > 0 && d->p.temperature >= 1e-5f) {
        m = naive_filter(e, m, &d->p, true);
        for (int32_t i = 0; i < m; i++)
            e[i].score = (double) e[i].l / (double) d->p.temperature + noise(d->p.seed, pos, e[i].id);
    }
    if (m > 0) {
        qsort(e, (size_t) m, sizeof *e, by_score);
        got = e[0].id;
    }
    free(x);
    free(e);
    return got;
}

static void naive_top_k(int32_t *id, float *score, int32_t k, const Draw *d, const float *logits, int32_t n,
                        int64_t pos)
{
    float *x = malloc((size_t) n * sizeof *x), max = -INFINITY;
    Item *e = malloc((size_t) n * sizeof *e);
    for (int32_t i = 0; i < n; i++) x[i] = isfinite(logits[i]) ? logits[i] : -INFINITY;
    naive_adjust(x, d, NULL, 0, n, NULL);
    for (int32_t i = 0; i < n; i++) if (x[i] > max) max = x[i];
    int32_t m = 0;
    double T = (double) d->p.temperature;
    bool greedy = d->p.temperature < 1e-5f;
    for (int32_t i = 0; i < n; i++) {
        if (x[i] == -INFINITY) continue;
        if (greedy) { e[m++] = (Item) { x[i], i, (double) x[i] }; continue; }
        if (!((double) x[i] / T >= (double) max / T - 12)) continue;
        if (d->p.min_p > 0 && !(mathd_exp((double) x[i] - (double) max) >= (double) d->p.min_p)) continue;
        e[m++] = (Item) { x[i], i, (double) x[i] / T + noise(d->p.seed, pos, i) };
    }
    qsort(e, (size_t) m, sizeof *e, by_score);
    if (m > k) m = k;
    if (!greedy && m > 0) {
        m = naive_filter(e, m, &d->p, false);
        qsort(e, (size_t) m, sizeof *e, by_score);
    }
    for (int32_t i = 0; i < k; i++) {
        id[i] = i < m ? e[i].id : -1;
        score[i] = i < m ? (float) e[i].score : -INFINITY;
    }
    free(x);
    free(e);
}

/* ---------------------------------------------------------------- cases */

static uint64_t rng_state;
static uint32_t rng(void)
{
    rng_state = rng_state * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t) (rng_state >> 33);
}
static float uniform(void) { return (float) rng() / 2147483648.0f; }
static float normal(void)
{
    float s = 0;
    for (int i = 0; i < 12; i++) s += uniform();
    return s - 6;
}

static void *scratch_new(int32_t n)
{
    size_t bytes = (draw_scratch(n) + 63) / 64 * 64;
    void *p = aligned_alloc(64, bytes);
    assert_non_null(p);
    return p;
}

static void logits_fill(float *x, int32_t n)
{
    static const float spread[] = { 0, 0.01f, 1, 3, 8, 40, 1000 };
    float s = spread[rng() % 7];
    bool steps = rng() % 3 == 0;                                    /* many equal values: ties everywhere */
    for (int32_t i = 0; i < n; i++) {
        x[i] = s * normal();
        if (steps) x[i] = rintf(x[i]);
        if (rng() % 64 == 0) x[i] = -INFINITY;
        if (rng() % 64 == 0) x[i] = rng() % 2 ? 0.0f : -0.0f;
    }
}

static void draw_fill(Draw *d, int32_t n)
{
    static const float temps[] = { 0, 1e-6f, 1e-5f, 0.01f, 0.3f, 0.7f, 1, 1, 2, 50, 1e30f };
    static const float ps[] = { 1, 1, 0.95f, 0.5f, 0.999f, 1e-3f, 0.9999999f };
    memset(d, 0, sizeof *d);
    d->p = draw_default();
    d->p.temperature = temps[rng() % 11];
    d->p.top_p = ps[rng() % 7];
    d->p.min_p = rng() % 3 ? 0.0f : uniform() * 0.3f;
    d->p.top_k = rng() % 3 ? 0 : (int32_t) (rng() % 60) + 1;
    if (rng() % 20 == 0) d->p.top_k = INT32_MAX;
    if (rng() % 2) {
        d->p.rep = 0.7f + uniform();
        d->p.freq = uniform() * 2 - 1;
        d->p.presence = uniform() - 0.5f;
        d->p.rep_window = (int32_t) (rng() % (HISTORY + 1));
    }
    d->p.seed = (uint64_t) rng() << 32 | rng();
    d->n_tail = (int32_t) (rng() % (HISTORY + 1));
    int32_t kinds = (int32_t) (rng() % 2 ? 5 : n);
    for (int32_t i = 0; i < d->n_tail; i++) d->tail[i] = (int32_t) (rng() % (uint32_t) kinds);
    /* ids outside the vocabulary */
    if (d->n_tail > 3) { d->tail[d->n_tail - 1] = -1; d->tail[d->n_tail - 2] = n; }
    d->n_bias = rng() % 3 ? 0 : (int32_t) (rng() % 9);
    for (int32_t i = 0; i < d->n_bias; i++)
        d->bias[i] = (DrawBias) { (int32_t) (rng() % (uint32_t) (n + 2)) - 1, rng() % 5 ? normal() : -INFINITY };
}

static void next_is_definition(void **state)
{
    (void) state;
    rng_state = 1;
    enum { N = 5000 };
    float *x = malloc(N * sizeof *x);
    uint32_t allow[N / 32 + 1];
    void *scratch = scratch_new(N);
    int32_t drawn = 0;
    for (int t = 0; t < 3000; t++) {
        static const int32_t sizes[] = { 1, 2, 7, 33, 100, 1024, 1500, N };
        int32_t n = sizes[rng() % (t % 10 ? 6 : 8)], path[64], n_path = (int32_t) (rng() % 64);
        Draw d;
        logits_fill(x, n);
        draw_fill(&d, n);
        for (int32_t i = 0; i < n_path; i++) path[i] = (int32_t) (rng() % (uint32_t) n);
        bool mask = rng() % 4 == 0;
        uint32_t keep = rng() % 3;
        for (size_t i = 0; i < sizeof allow / sizeof *allow; i++)
            allow[i] = keep == 0 ? rng() << 1 : keep == 1 ? rng() & rng() & rng() & rng() : 0xffffffffu;
        int64_t pos = (int64_t) rng() << (rng() % 20);
        int32_t want = naive_next(&d, path, n_path, x, n, pos, mask ? allow : NULL);
        int32_t got = draw_next(&d, path, n_path, x, n, pos, mask ? allow : NULL, scratch);
        if (got != want)
            fail_msg("case %d: n %d T %g top_k %d top_p %g min_p %g: got %d, expected %d", t, n,
                     (double) d.p.temperature, d.p.top_k, (double) d.p.top_p, (double) d.p.min_p, got, want);
        drawn += got >= 0;
    }
    assert_true(drawn > 2500);
    free(x);
    free(scratch);
}

static void top_k_is_definition(void **state)
{
    (void) state;
    rng_state = 2;
    enum { N = 5000 };
    float *x = malloc(N * sizeof *x);
    void *scratch = scratch_new(N);
    for (int t = 0; t < 3000; t++) {
        static const int32_t sizes[] = { 1, 2, 7, 33, 100, 1024, 1500, N };
        int32_t n = sizes[rng() % (t % 10 ? 6 : 8)], k = (int32_t) (rng() % 16) + 1, id[16], want_id[16];
        float score[16], want_score[16];
        Draw d;
        logits_fill(x, n);
        if (rng() % 8 == 0) x[rng() % (uint32_t) n] = NAN;
        if (rng() % 8 == 0) x[rng() % (uint32_t) n] = INFINITY;
        draw_fill(&d, n);
        int64_t pos = rng();
        naive_top_k(want_id, want_score, k, &d, x, n, pos);
        draw_top_k(id, score, k, &d, x, n, pos, scratch);
        for (int32_t i = 0; i < k; i++)
            if (id[i] != want_id[i] || score[i] != want_score[i])
                fail_msg("case %d, candidate %d: got %d (%g), expected %d (%g)", t, i, id[i], (double) score[i],
                         want_id[i], (double) want_score[i]);
    }
    free(x);
    free(scratch);
}

/* A vocabulary of real size whose distribution resembles a model's, so that bands, bounds and the rough sum all
 * take part. */
static void large_vocabulary(void **state)
{
    (void) state;
    rng_state = 3;
    int32_t n = 151936;
    float *x = malloc((size_t) n * sizeof *x);
    void *scratch = scratch_new(n);
    for (int t = 0; t < 10; t++) {
        for (int32_t i = 0; i < n; i++) x[i] = 3 * normal() - 2;
        for (int i = 0; i < 50; i++) x[rng() % (uint32_t) n] = 8 + 5 * normal();
        Draw d = { .p = draw_default() };
        d.p.seed = (uint64_t) t;
        d.p.temperature = t % 2 ? 1 : 0.7f;
        for (int way = 0; way < 5; way++) {
            d.p.top_p = way == 1 || way == 3 ? 0.95f : way == 4 ? 0.9999f : 1;
            d.p.top_k = way == 2 || way == 3 ? 40 : 0;
            assert_int_equal(draw_next(&d, NULL, 0, x, n, t, NULL, scratch), naive_next(&d, NULL, 0, x, n, t, NULL));
        }
        int32_t id[16], want_id[16];
        float score[16], want[16];
        draw_top_k(id, score, 16, &d, x, n, t, scratch);
        naive_top_k(want_id, want, 16, &d, x, n, t);
        assert_memory_equal(id, want_id, sizeof id);
        assert_memory_equal(score, want, sizeof score);
    }
    free(x);
    free(scratch);
}

/* top_p set to the exact share of a prefix: the bound on the sum cannot decide, the sorted sum must. */
static void top_p_at_an_edge(void **state)
{
    (void) state;
    rng_state = 4;
    enum { N = 300 };
    float x[N];
    void *scratch = scratch_new(N);
    for (int t = 0; t < 400; t++) {
        Item e[N];
        for (int32_t i = 0; i < N; i++) { x[i] = 2 * normal(); e[i] = (Item) { x[i], i, 0 }; }
        qsort(e, N, sizeof *e, by_logit);
        double total = 0, sum = 0;
        for (int32_t i = 0; i < N; i++) total += mathd_exp((double) e[i].l - (double) e[0].l);
        int32_t cut = 1 + (int32_t) (rng() % 20);
        for (int32_t i = 0; i < cut; i++) sum += mathd_exp((double) e[i].l - (double) e[0].l);
        Draw d = { .p = draw_default() };
        d.p.temperature = 100;                                      /* nearly uniform over the survivors */
        d.p.top_p = (float) (sum / total);
        for (uint64_t seed = 0; seed < 20; seed++) {
            d.p.seed = seed;
            assert_int_equal(draw_next(&d, NULL, 0, x, N, t, NULL, scratch), naive_next(&d, NULL, 0, x, N, t, NULL));
        }
    }
    free(scratch);
}

static void noise_values(void **state)
{
    (void) state;
    /* The known-answer values of Random123. */
    static const uint32_t counter[3][4] = { { 0 }, { ~0u, ~0u, ~0u, ~0u },
                                            { 0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344 } };
    static const uint32_t key[3][2] = { { 0 }, { ~0u, ~0u }, { 0xa4093822, 0x299f31d0 } };
    static const uint32_t want[3] = { 0x6627e8d5, 0x408f276d, 0xd16cfe09 };
    for (int i = 0; i < 3; i++) {
        const uint32_t *c = counter[i];
        assert_int_equal(draw_random((uint64_t) key[i][1] << 32 | key[i][0], c[0], c[1], c[2], c[3]), want[i]);
    }
    double low = INFINITY, high = -INFINITY, sum = 0;
    for (int32_t i = 0; i < 20000; i++) {
        double g = draw_noise(77, -5 + i / 100, i);
        assert_true(g == noise(77, -5 + i / 100, i));
        if (g < low) low = g;
        if (g > high) high = g;
        sum += g;
    }
    assert_true(low >= -3.131 && high <= 22.875);
    assert_true(fabs(sum / 20000 - 0.5772) < 0.03);                 /* the mean of a Gumbel variable */
}

/* Draws at T = 1 follow softmax(logits): chi-square over 8 tokens, with positions as the source of randomness. */
static void draws_follow_the_distribution(void **state)
{
    (void) state;
    float x[8] = { 1, 0, -1, 2, 0.5f, 0.5f, -INFINITY, -3 };
    double p[8], total = 0, chi = 0;
    int32_t count[8] = { 0 }, trials = 40000;
    void *scratch = scratch_new(8);
    Draw d = { .p = draw_default() };
    d.p.temperature = 1;
    d.p.seed = 99;
    for (int i = 0; i < 8; i++) total += p[i] = exp((double) x[i]);
    for (int32_t i = 0; i < trials; i++) count[draw_next(&d, NULL, 0, x, 8, i, NULL, scratch)]++;
    for (int i = 0; i < 8; i++) {
        double e = trials * p[i] / total;
        if (p[i] > 0) chi += (count[i] - e) * (count[i] - e) / e;
    }
    assert_int_equal(count[6], 0);
    if (chi > 35) fail_msg("chi-square %g with 6 degrees of freedom", chi);
    free(scratch);
}

static void errors_and_limits(void **state)
{
    (void) state;
    enum { N = 200 };
    float x[N];
    void *scratch = scratch_new(N);
    Draw d = { .p = draw_default() };
    for (int way = 0; way < 3; way++) {
        d.p.temperature = way ? 1 : 0;
        d.p.top_p = way == 2 ? 0.9f : 1;
        for (int32_t at = 0; at < N; at++) {
            for (int32_t i = 0; i < N; i++) x[i] = (float) (i % 7);
            static const float bad[] = { NAN, INFINITY };
            for (int b = 0; b < 4; b++) {
                x[at] = b % 2 ? -bad[b / 2] : bad[b / 2];
                /* -inf is not an error */
                assert_int_equal(draw_next(&d, NULL, 0, x, N, 0, NULL, scratch) == DRAW_NAN, b != 3);
            }
        }
        for (int32_t i = 0; i < N; i++) x[i] = -INFINITY;
        assert_int_equal(draw_next(&d, NULL, 0, x, N, 0, NULL, scratch), DRAW_NONE);
        int32_t id[4];
        float score[4];
        draw_top_k(id, score, 4, &d, x, N, 0, scratch);
        for (int i = 0; i < 4; i++) assert_true(id[i] == -1 && score[i] == -INFINITY);
        for (int32_t i = 0; i < N; i++) x[i] = 1;
        uint32_t none[N / 32 + 1] = { 0 };
        assert_int_equal(draw_next(&d, NULL, 0, x, N, 0, none, scratch), DRAW_NONE);
        none[5] = 1u << 3;
        assert_int_equal(draw_next(&d, NULL, 0, x, N, 0, none, scratch), 163);
        assert_int_equal(draw_next(&d, NULL, 0, x, 0, 0, NULL, scratch), DRAW_NONE);
    }
    /* A bias too large for a float wins; the caller wanted it, the model made no error. */
    x[9] = 3e38f;
    d.n_bias = 1;
    d.bias[0] = (DrawBias) { 9, 3e38f };
    assert_int_equal(draw_next(&d, NULL, 0, x, N, 0, NULL, scratch), 9);
    free(scratch);
}

static void window_slides_over_the_path(void **state)
{
    (void) state;
    float x[4] = { 3, 2.5f, 0, 0 };
    void *scratch = scratch_new(4);
    Draw d = { .p = draw_default() };
    int32_t text[] = { 2, 0, 2 }, path[] = { 3, 3 };
    d.p.presence = 1;
    d.p.rep_window = 3;
    draw_set(&d, &d.p, text, 3);
    assert_int_equal(draw_next(&d, NULL, 0, x, 4, 0, NULL, scratch), 1);   /* window 2 0 2: token 0 gets a penalty */
    assert_int_equal(draw_next(&d, path, 1, x, 4, 0, NULL, scratch), 1);   /* 0 2 3 */
    assert_int_equal(draw_next(&d, path, 2, x, 4, 0, NULL, scratch), 0);   /* 2 3 3: it has left the window */
    free(scratch);
}

static void parameters(void **state)
{
    (void) state;
    Sampling p = draw_default();
    assert_null(draw_check(&p));
    static const struct { size_t place; float bad, good; const char *name; } floats[] = {
        { offsetof(Sampling, temperature), -1, 1e4f, "temperature" },
        { offsetof(Sampling, temperature), NAN, 0, "temperature" },
        { offsetof(Sampling, temperature), INFINITY, 2, "temperature" },
        { offsetof(Sampling, top_p), 0, 1, "top_p" }, { offsetof(Sampling, top_p), 1.01f, 0.1f, "top_p" },
        { offsetof(Sampling, top_p), NAN, 1, "top_p" },
        { offsetof(Sampling, min_p), 1.01f, 1, "min_p" }, { offsetof(Sampling, min_p), -0.1f, 0, "min_p" },
        { offsetof(Sampling, rep), 0, 1.3f, "rep" }, { offsetof(Sampling, rep), 101, 0.5f, "rep" },
        { offsetof(Sampling, freq), 2.1f, 2, "freq" }, { offsetof(Sampling, presence), -2.1f, -2, "presence" },
        { offsetof(Sampling, presence), NAN, 0, "presence" },
    };
    for (size_t i = 0; i < sizeof floats / sizeof *floats; i++) {
        p = draw_default();
        memcpy((char *) &p + floats[i].place, &floats[i].good, sizeof(float));
        assert_null(draw_check(&p));
        memcpy((char *) &p + floats[i].place, &floats[i].bad, sizeof(float));
        assert_non_null(draw_check(&p));
        assert_string_equal(draw_check(&p), floats[i].name);
    }
    p = draw_default(); p.top_k = -1;               assert_string_equal(draw_check(&p), "top_k");
    p = draw_default(); p.top_k = INT32_MAX;        assert_null(draw_check(&p));
    p = draw_default(); p.rep_window = HISTORY + 1; assert_string_equal(draw_check(&p), "rep_window");
    p = draw_default(); p.rep_window = -1;          assert_string_equal(draw_check(&p), "rep_window");

    int32_t text[HISTORY + 9];
    for (int32_t i = 0; i < HISTORY + 9; i++) text[i] = i;
    Draw d = { .n_bias = 1, .bias = { { 4, 1 } } };
    p = draw_default();
    draw_set(&d, &p, text, HISTORY + 9);
    assert_int_equal(d.n_tail, HISTORY);
    assert_int_equal(d.tail[0], 9);
    assert_int_equal(d.tail[HISTORY - 1], HISTORY + 8);
    draw_set(&d, &p, text, 2);
    assert_int_equal(d.n_tail, 2);
    assert_int_equal(d.tail[1], 1);
    assert_int_equal(d.n_bias, 1);
}

int main(int argc, char **argv)
{
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(noise_values), cmocka_unit_test(next_is_definition), cmocka_unit_test(top_k_is_definition),
        cmocka_unit_test(large_vocabulary), cmocka_unit_test(top_p_at_an_edge),
        cmocka_unit_test(draws_follow_the_distribution), cmocka_unit_test(errors_and_limits),
        cmocka_unit_test(window_slides_over_the_path), cmocka_unit_test(parameters),
    };
    return cmocka_run_group_tests_name("draw", tests, NULL, NULL);
}
