/* test_tree.c - lattices, trees, the walk and calibration, against naive definitions. */
#include "decode/accept.h"                /* before cmocka, which makes a macro of fail */
#include "decode/simulate.h"
#include "decode/tree.h"
#include "tree_helper.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

static uint64_t rng_state;
static uint32_t rng(void)
{
    rng_state = rng_state * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t) (rng_state >> 33);
}
static double uniform(void) { return rng() / 2147483648.0; }

/* ---------------------------------------------------------------- all prefixes of a lattice over V tokens */

enum { V = 4, L = 4, PREFIXES = 4 + 16 + 64 + 256 };
typedef struct { int32_t token[L], n; double weight; } Prefix;

/* Columns of depth d that hold the token and are reachable from `from`, and the larger of their edges. */
static uint32_t step(const Lattice *l, int32_t d, uint32_t from, int32_t token, double *edge)
{
    uint32_t to = 0;
    *edge = -INFINITY;
    for (int32_t k = 0; k < l->k; k++) {
        if (l->token[d][k] != token) continue;
        for (int32_t p = 0; p < l->k; p++) {
            if (!(from >> p & 1) || l->edge[d][p][k] == -INFINITY) continue;
            to |= 1u << k;
            if ((double) l->edge[d][p][k] > *edge) *edge = (double) l->edge[d][p][k];
        }
    }
    return to;
}

static double weight_of(const Lattice *l, const int32_t *token, int32_t n)
{
    uint32_t at = 1;
    double w = 0, edge;
    for (int32_t d = 0; d < n; d++) {
        at = step(l, d, at, token[d], &edge);
        if (!at) return -INFINITY;
        w += edge;
    }
    return w;
}

static int heavier(const void *a, const void *b)
{
    const Prefix *x = a, *y = b;
    return x->weight > y->weight ? -1 : x->weight < y->weight;
}

static int32_t all_prefixes(Prefix *out, const Lattice *l, int32_t depth_max)
{
    int32_t m = 0;
    for (int32_t n = 1, count = V; n <= L && n <= depth_max && n <= l->n_depth; n++, count *= V)
        for (int32_t c = 0; c < count; c++) {
            Prefix p = { .n = n };
            for (int32_t d = n - 1, x = c; d >= 0; d--, x /= V) p.token[d] = x % V;
            p.weight = weight_of(l, p.token, n);
            if (p.weight > -INFINITY) out[m++] = p;
        }
    return m;
}

/* Edges of at most a quarter: children of V tokens then never claim more than one together, and weights are plain sums
 * of edges. */
static void lattice_fill(Lattice *l, int32_t n_depth, int32_t k, int kind)
{
    memset(l, 0, sizeof *l);
    l->n_depth = n_depth;
    l->k = k;
    for (int32_t d = 0; d < n_depth; d++) {
        for (int32_t i = 0; i < k; i++)
            l->token[d][i] = rng() % 10 == 0 ? -1 : kind == 2 ? (int32_t) (rng() % V) : (int32_t) ((i + d) % V);
        for (int32_t p = 0; p < k; p++)
            for (int32_t i = 0; i < k; i++) {
                /* kind 1: ties everywhere */
                float e = kind == 1 ? -1.5f - 0.5f * (float) (rng() % 4) : (float) (-1.5 - 3 * uniform());
                if (rng() % 12 == 0) e = -INFINITY;
                if (kind == 0 && p > 0) e = l->edge[d][0][i];                           /* kind 0: independent depths */
                l->edge[d][p][i] = l->raw[d][p][i] = e;
            }
    }
    if (kind == 0) l->alike = (1u << k) - 1;
}

static int32_t path_of(const Tree *t, int32_t row, int32_t *token)
{
    int32_t n = t->depth[row];
    for (int32_t d = n; d > 0; d--, row = t->parent[row]) token[d - 1] = t->token[row];
    assert_int_equal(row, 0);
    return n;
}

static void tree_is_sound(const Tree *t, const Lattice *l)
{
    assert_int_equal(t->parent[0], -1);
    assert_int_equal(t->depth[0], 0);
    for (int32_t i = 1; i < t->n; i++) {
        int32_t token[ROWS_DECODE], n = path_of(t, i, token);
        assert_in_range(t->parent[i], 0, i - 1);
        assert_int_equal(t->depth[i], t->depth[t->parent[i]] + 1);
        assert_true(t->score[i] == weight_of(l, token, n));
        assert_int_equal(l->token[t->depth[i] - 1][t->rank[i]], t->token[i]);
        for (int32_t j = 1; j < i; j++) assert_false(t->parent[j] == t->parent[i] && t->token[j] == t->token[i]);
    }
}

static void tree_is_the_best(void **state)
{
    (void) state;
    rng_state = 1;
    static Prefix all[PREFIXES];
    for (int c = 0; c < 300; c++) {
        Lattice l;
        lattice_fill(&l, 1 + (int32_t) (rng() % L), 1 + (int32_t) (rng() % 6), c % 3);
        int32_t depth_max = rng() % 4 ? L : (int32_t) (rng() % L), root = 7, n = all_prefixes(all, &l, depth_max);
        qsort(all, (size_t) n, sizeof *all, heavier);
        const Lattice *lat = &l;
        Tree t, longest;
        tree_build(&longest, &lat, &root, &depth_max, 1, 63);
        tree_is_sound(&longest, &l);
        for (int32_t budget = 0; budget < 64; budget++) {
            tree_build(&t, &lat, &root, &depth_max, 1, budget);
            assert_int_equal(t.n - 1, budget < n ? budget : n);
            assert_int_equal(t.token[0], 7);
            for (int32_t i = 1; i < t.n; i++) {
                if (t.score[i] != all[i - 1].weight)
                    fail_msg("case %d budget %d: node %d weighs %g, the best prefix left weighs %g", c, budget, i,
                             t.score[i], all[i - 1].weight);
                assert_true(t.parent[i] == longest.parent[i] && t.token[i] == longest.token[i] &&
                            t.rank[i] == longest.rank[i]);
            }
        }
    }
}

/* The stated order, by looking at every child of every taken node in each round. */
static void order_over_several_lattices(void **state)
{
    (void) state;
    rng_state = 2;
    for (int c = 0; c < 150; c++) {
        enum { MANY = 3 };
        static Lattice l[MANY];
        const Lattice *lat[MANY];
        int32_t root[MANY] = { 1, 2, 3 }, depth_max[MANY], n = 1 + (int32_t) (rng() % MANY),
                budget = (int32_t) (rng() % 64);
        for (int i = 0; i < MANY; i++) {
            lattice_fill(&l[i], 1 + (int32_t) (rng() % L), 1 + (int32_t) (rng() % 5), c % 3);
            lat[i] = rng() % 8 ? &l[i] : NULL;
            depth_max[i] = 1 + (int32_t) (rng() % L);
        }
        Tree got[MANY], want[MANY];
        Growth g;                                       /* a few nodes at a time; a number that is too large is cut */
        tree_begin(&g, got, lat, root, depth_max, n, false);
        for (int32_t to = 0; to < budget; to += (int32_t) (rng() % 9)) tree_grow(&g, to);
        tree_grow(&g, budget + (int32_t) (rng() % 9));
        tree_cut(&g, budget);
        for (int32_t i = 0; i < n; i++) want[i] = (Tree) { .n = 1, .token = { root[i] }, .parent = { -1 } };
        for (int32_t left = budget < ROWS_DECODE - n ? budget : ROWS_DECODE - n; left > 0; left--) {
            double best = -INFINITY;
            int32_t bt = -1, bp = -1, bk = -1, bd = 0;
            for (int32_t i = 0; i < n; i++)
                for (int32_t p = 0; lat[i] && p < want[i].n; p++) {
                    int32_t d = want[i].depth[p], token[ROWS_DECODE];
                    if (d >= lat[i]->n_depth || d >= depth_max[i]) continue;
                    path_of(&want[i], p, token);
                    for (int32_t k = 0; k < lat[i]->k; k++) {
                        token[d] = lat[i]->token[d][k];
                        if (token[d] < 0 || tree_child(&want[i], p, token[d]) >= 0) continue;
                        double w = weight_of(lat[i], token, d + 1), own = -INFINITY, edge;
                        uint32_t at = 1;
                        for (int32_t x = 0; x < d; x++) at = step(lat[i], x, at, token[x], &edge);
                        for (int32_t q = 0; q < lat[i]->k; q++)
                            if ((at >> q & 1) && (double) lat[i]->edge[d][q][k] > own)
                                own = (double) lat[i]->edge[d][q][k];
                        /* a twin column has the larger edge */
                        if (w == -INFINITY || want[i].score[p] + own != w) continue;
                        bool better = w != best ? w > best : d + 1 != bd ? d + 1 < bd : i != bt ? i < bt : p != bp
                                      ? p < bp : k < bk;
                        if (better) { best = w; bt = i; bp = p; bk = k; bd = d + 1; }
                    }
                }
            if (bt < 0) break;
            Tree *t = &want[bt];
            t->token[t->n] = lat[bt]->token[bd - 1][bk];
            t->parent[t->n] = bp;
            t->depth[t->n] = bd;
            t->rank[t->n] = bk;
            t->score[t->n++] = best;
        }
        int32_t nodes = 0;
        for (int32_t i = 0; i < n; i++) {
            assert_int_equal(got[i].n, want[i].n);
            size_t bytes = (size_t) got[i].n * sizeof(int32_t);
            assert_memory_equal(got[i].token, want[i].token, bytes);
            assert_memory_equal(got[i].parent, want[i].parent, bytes);
            assert_memory_equal(got[i].depth, want[i].depth, bytes);
            assert_memory_equal(got[i].rank, want[i].rank, bytes);
            assert_memory_equal(got[i].score, want[i].score, (size_t) got[i].n * sizeof(double));
            nodes += got[i].n - 1;
        }
        assert_int_equal(g.n, nodes);
        double sum = 0, all = 0;
        for (int32_t i = 0; i < n; i++)
            for (int32_t row = 1; row < got[i].n; row++) sum += exp(got[i].score[row]);
        for (int32_t i = 0; i < nodes; i++) all += g.gain[i];
        assert_true(fabs(all - sum) < 1e-9);
        for (int32_t i = 1; i < nodes; i++) assert_true(g.gain[i] <= g.gain[i - 1]);
        if (nodes) assert_true(g.gain[0] <= 1 && g.gain[nodes - 1] > 0);
    }
}

/* The children of a row together claim at most one: where it was more, each is raised to the power that makes the sum
 * one. */
static void children_share_one(void **state)
{
    (void) state;
    rng_state = 6;
    int32_t shared = 0;
    for (int c = 0; c < 2000; c++) {
        Lattice l;
        double claim[V], before = 0, after = 0, power = 0;
        int32_t root = 0, depth_max = 1;
        const Lattice *lat = &l;
        Tree t;
        lattice_fill(&l, 1, 1 + (int32_t) (rng() % 6), 2);
        for (int32_t i = 0; i < l.k; i++)
            l.edge[0][0][i] = rng() % 8 ? l.edge[0][0][i] + (float) (1.5 * uniform()) : (float) (-1e-4 * (rng() % 3));
        for (int32_t token = 0; token < V; token++) {
            claim[token] = weight_of(&l, &token, 1);
            before += exp(claim[token]);
        }
        tree_build(&t, &lat, &root, &depth_max, 1, 63);
        for (int32_t i = 1; i < t.n; i++) {
            double was = claim[t.token[i]];
            after += exp(t.score[i]);
            if (i > 1) assert_true(t.score[i] <= t.score[i - 1] && was <= claim[t.token[i - 1]]);
            if (before <= 1) assert_true(t.score[i] == was);
            else if (was < -0.01) {                                   /* the same power for all of them */
                assert_true(power == 0 || fabs(t.score[i] / was / power - 1) < 1e-3);
                power = t.score[i] / was;
                assert_true(power > 0.999);
            }
        }
        if (before <= 1) assert_true(fabs(after - before) < 1e-9);
        else assert_true(after <= 1.002 && after > fmin(before, 1) - 1e-3);
        shared += before > 1.002;
    }
    assert_in_range(shared, 500, 1900);
}

/* A confident drafter, and a look-up that proposes another token for the same place: only one of them can come. */
static void the_surer_source_keeps_its_word(void **state)
{
    (void) state;
    static Lattice l;
    int32_t id[2] = { 5, 6 }, guess = 7, root = 0, depth_max = 1;
    float score[2] = { 9, 0 }, sure = -0.5f;
    const Lattice *lat = &l;
    Tree t;
    lattice_from_scores(&l, id, score, 1, 2, NULL, SOURCE_BLOCK);
    assert_true(lattice_chain(&l, &guess, &sure, 1, NULL, SOURCE_NGRAM));
    tree_build(&t, &lat, &root, &depth_max, 1, 3);
    assert_int_equal(t.token[1], 5);
    assert_int_equal(t.token[2], 7);
    assert_true(t.score[1] > log(0.99) && t.score[2] < log(0.01));
    assert_true(t.raw[2][SOURCE_NGRAM] == sure);                      /* it is judged by what it claimed */
}

static void rows_are_depth_first(void **state)
{
    (void) state;
    rng_state = 3;
    for (int c = 0; c < 200; c++) {
        Lattice l;
        lattice_fill(&l, L, 1 + (int32_t) (rng() % 5), c % 3);
        const Lattice *lat = &l;
        int32_t root = 0, depth_max = L;
        Tree before, after;
        tree_build(&before, &lat, &root, &depth_max, 1, (int32_t) (rng() % 64));
        after = before;
        tree_rows(&after);
        assert_int_equal(after.n, before.n);
        tree_is_sound(&after, &l);
        for (int32_t i = 1; i < after.n; i++) {
            /* A row's parent is the row before it or one of that row's ancestors; of two siblings the heavier comes
             * first. */
            int32_t up = i - 1;
            while (up >= 0 && up != after.parent[i]) up = after.parent[up];
            assert_true(up == after.parent[i]);
            for (int32_t j = 1; j < i; j++)
                if (after.parent[j] == after.parent[i]) assert_true(after.score[j] >= after.score[i]);
            int32_t token[L], n = path_of(&before, i, token), row = 0;
            for (int32_t d = 0; d < n; d++) assert_true((row = tree_child(&after, row, token[d])) > 0);
            assert_true(after.score[row] == before.score[i] && after.rank[row] == before.rank[i] &&
                        !memcmp(after.raw[row], before.raw[i], sizeof after.raw[row]));
        }
    }
}

static void chain_takes_best_children(void **state)
{
    (void) state;
    rng_state = 4;
    for (int c = 0; c < 200; c++) {
        Lattice l;
        lattice_fill(&l, L, 1 + (int32_t) (rng() % 5), c % 3);
        const Lattice *lat = &l;
        int32_t root = 0, depth_max = L, budget = (int32_t) (rng() % 6);
        Tree t, full;
        tree_chain(&t, &lat, &root, &depth_max, 1, budget);
        tree_build(&full, &lat, &root, &depth_max, 1, 63);
        tree_is_sound(&t, &l);
        assert_true(t.n - 1 <= (budget < L ? budget : L));
        for (int32_t i = 1, row = 0; i < t.n; i++) {
            assert_int_equal(t.parent[i], i - 1);
            double best = -INFINITY;
            for (int32_t token = 0; token < V; token++) {
                int32_t path[L], n = path_of(&t, i - 1, path);
                path[n] = token;
                best = fmax(best, weight_of(&l, path, n + 1));
            }
            assert_true(t.score[i] == best);
            if (row >= 0) row = tree_child(&full, row, t.token[i]);
        }
    }
}

static void limits(void **state)
{
    (void) state;
    rng_state = 5;
    static Lattice l;
    memset(&l, 0, sizeof l);
    l.n_depth = LAT_DEPTH;
    l.k = LAT_K;
    for (int32_t d = 0; d < LAT_DEPTH; d++)
        for (int32_t k = 0; k < LAT_K; k++) {
            l.token[d][k] = k;
            /* positive counts as 0 */
            for (int32_t p = 0; p < LAT_K; p++) l.edge[d][p][k] = k == 3 ? 0.5f : k == 5 ? NAN : -0.1f * (float) k;
        }
    static Tree t[ROWS_DECODE];
    const Lattice *lat[ROWS_DECODE];
    int32_t root[ROWS_DECODE], depth_max[ROWS_DECODE], rows = 0;
    for (int i = 0; i < ROWS_DECODE; i++) { lat[i] = &l; root[i] = i; depth_max[i] = 99; }
    tree_build(t, lat, root, depth_max, 1, 1000);
    assert_int_equal(t[0].n, ROWS_DECODE);
    for (int32_t i = 1; i < t[0].n; i++) assert_true(t[0].score[i] <= 0 && t[0].token[i] != 5);
    tree_build(t, lat, root, depth_max, 20, 1000);
    for (int i = 0; i < 20; i++) rows += t[i].n;
    assert_int_equal(rows, ROWS_DECODE);
    tree_build(t, lat, root, depth_max, ROWS_DECODE, 10);
    for (int i = 0; i < ROWS_DECODE; i++) assert_int_equal(t[i].n, 1);
    tree_build(t, lat, root, depth_max, 1, -3);
    assert_int_equal(t[0].n, 1);
    depth_max[0] = 0;
    tree_build(t, lat, root, depth_max, 1, 9);
    assert_int_equal(t[0].n, 1);
}

static void lattice_from_candidates(void **state)
{
    (void) state;
    static Lattice l;
    int32_t id[2 * 3] = { 5, 6, 7, 8, 9, -1 };
    float score[2 * 3] = { 2, 1, 0, 30000, 29999, -INFINITY };
    lattice_from_scores(&l, id, score, 2, 3, NULL, SOURCE_NGRAM);
    assert_int_equal(l.n_depth, 2);
    assert_int_equal(l.k, 3);
    for (int32_t p = 0; p < 3; p++) {
        double sum = 0;
        for (int32_t k = 0; k < 3; k++) sum += exp((double) l.edge[0][p][k]);
        assert_true(fabs(sum - 1) < 1e-6);
        assert_true(fabs((double) (l.edge[1][p][0] - l.edge[1][p][1]) - 1) < 1e-6);
        assert_true(l.edge[1][p][2] == -INFINITY && l.raw[1][p][2] == -INFINITY);
    }
    assert_int_equal(l.source[1][1], SOURCE_NGRAM);
    /* A single candidate: certain, as far as the source can tell. Calibration without data is the identity. */
    Calibration c;
    calib_reset(&c);
    lattice_from_scores(&l, id, score, 2, 1, &c, SOURCE_BLOCK);
    assert_true(l.edge[0][0][0] == 0);
    lattice_from_scores(&l, id, score, 2, 3, &c, SOURCE_BLOCK);
    for (int32_t k = 0; k < 3; k++) assert_true(fabsf(l.edge[0][1][k] - l.raw[0][1][k]) < 1e-5f);
    float pair[2 * 3 * 3];
    for (int i = 0; i < 18; i++) pair[i] = (float) (i * 7 % 5);
    lattice_from_pairs(&l, id, pair, 2, 3, NULL, SOURCE_BLOCK);
    for (int32_t p = 0; p < 3; p++) {
        double sum = 0;
        for (int32_t k = 0; k < 2; k++) sum += exp((double) l.edge[1][p][k]);
        assert_true(fabs(sum - 1) < 1e-6);
        assert_true(l.edge[1][p][2] == -INFINITY);
        assert_true(fabsf(l.edge[1][p][0] - l.edge[1][p][1] - (pair[9 + 3 * p] - pair[9 + 3 * p + 1])) < 1e-6f);
    }
    /* An empty lattice: no tree, no NaN. */
    int32_t none[2] = { -1, -1 };
    float low[2] = { -INFINITY, -INFINITY };
    lattice_from_scores(&l, none, low, 1, 2, &c, SOURCE_BLOCK);
    const Lattice *lat = &l;
    int32_t root = 1, depth_max = 9;
    Tree t;
    tree_build(&t, &lat, &root, &depth_max, 1, 9);
    assert_int_equal(t.n, 1);
}

/* ---------------------------------------------------------------- the walk */

typedef struct { const Tree *t; uint32_t seed; int32_t calls, fail_at, fail_with; } Target;

static int32_t choice(const Target *x, int32_t row)
{
    uint32_t h = x->seed;
    for (; row >= 0; row = x->t->parent[row]) h = (h ^ (uint32_t) x->t->token[row]) * 2654435761u + 12345u;
    return (int32_t) (h >> 16) % V;
}

static int32_t next_token(void *ud, int32_t row, const Path *so_far)
{
    Target *x = ud;
    assert_int_equal(so_far->row[so_far->n - 1], row);
    assert_int_equal(so_far->n, x->calls + 1);
    return x->calls++ == x->fail_at ? x->fail_with : choice(x, row);
}

static void walk_follows_the_target(void **state)
{
    (void) state;
    rng_state = 6;
    int32_t longest = 0;
    for (int c = 0; c < 500; c++) {
        Lattice l;
        lattice_fill(&l, L, 4, c % 3);
        const Lattice *lat = &l;
        int32_t root = (int32_t) (rng() % V), depth_max = L;
        Tree t;
        tree_build(&t, &lat, &root, &depth_max, 1, (int32_t) (rng() % 64));
        tree_rows(&t);
        Target x = { &t, rng(), 0, -1, 0 };
        Path p;
        assert_int_equal(accept_path(&p, &t, next_token, &x), ST_OK);
        assert_int_equal(p.row[0], 0);
        assert_int_equal(x.calls, p.n);
        for (int32_t i = 0; i < p.n; i++) {
            int32_t want = choice(&x, p.row[i]);
            if (i + 1 < p.n) {
                assert_true(t.parent[p.row[i + 1]] == p.row[i] && t.token[p.row[i + 1]] == want &&
                            p.row[i + 1] > p.row[i]);
            } else {
                assert_int_equal(p.bonus, want);
                assert_int_equal(tree_child(&t, p.row[i], want), -1);
            }
        }
        if (p.n > longest) longest = p.n;
        x.calls = 0;
        x.fail_at = p.n - 1;
        x.fail_with = c % 2 ? DRAW_NAN : DRAW_NONE;
        Path q;
        assert_int_equal(accept_path(&q, &t, next_token, &x), c % 2 ? ST_BACKEND : ST_NOTOKEN);
        assert_int_equal(q.bonus, x.fail_with);
        assert_int_equal(q.n, p.n);
    }
    assert_int_equal(longest, L + 1);
}

/* What a tree promised along the walked path: for each of its rows the sum of its children's claims, at most one. */
static void hoped_of_a_path(void **state)
{
    (void) state;
    static Tree t;
    t.n = 6;
    const int32_t parent[6] = { -1, 0, 0, 1, 3, 3 };
    const double edge[6] = { 1, 0.6, 0.3, 0.5, 0.9, 0.4 };
    for (int32_t i = 0; i < 6; i++) {
        t.parent[i] = parent[i];
        t.score[i] = i ? t.score[parent[i]] + log(edge[i]) : 0;
    }
    static const struct { Path path; double expected; } rows[] = {
        { { .n = 1, .row = { 0 } }, 0.9 }, { { .n = 2, .row = { 0, 2 } }, 0.9 }, { { .n = 2, .row = { 0, 1 } }, 1.4 },
        { { .n = 3, .row = { 0, 1, 3 } }, 2.4 },
        { { .n = 4, .row = { 0, 1, 3, 5 } }, 2.4 },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        double got = accept_expected(&t, &rows[i].path);
        if (fabs(got - rows[i].expected) > 1e-9) fail_msg("path %zu: %g, expected %g", i, got, rows[i].expected);
    }
}

/* ---------------------------------------------------------------- calibration */

static void map_is_monotone(const Calibration *c)
{
    for (int s = 0; s < SOURCES; s++)
        for (int d = 0; d < LAT_DEPTH; d++) {
            float last = -INFINITY;
            for (float x = -30; x <= 0; x += 0.01f) {
                float y = calib_edge(c, s, d, x);
                assert_true(y <= 0 && y >= last);
                last = y;
            }
            assert_true(calib_edge(c, s, d, -INFINITY) == -INFINITY);
            assert_true(calib_edge(c, s, d, NAN) == -INFINITY);
        }
}

static void calibration_learns(void **state)
{
    (void) state;
    rng_state = 7;
    Calibration c;
    calib_reset(&c);
    for (float x = -20; x <= 0; x += 0.07f) assert_true(fabsf(calib_edge(&c, 0, 3, x) - x) < 1e-5f);
    /* Claims .9, is right 3 times in 10. */
    for (int i = 0; i < 6000; i++) calib_count(&c, 0, 2, logf(0.9f), uniform() < 0.3);
    calib_fit(&c, 0, 2);
    assert_true(fabs(exp((double) calib_map(&c, 0, 2, logf(0.9f))) - 0.3) < 0.05);
    assert_true(fabsf(calib_map(&c, 0, 1, logf(0.9f)) - logf(0.9f)) < 1e-5f);   /* other depths learn nothing from it */
    /* It improves: old edges are forgotten. */
    for (int i = 0; i < 12000; i++) calib_count(&c, 0, 2, logf(0.9f), uniform() < 0.8);
    calib_fit(&c, 0, 2);
    assert_true(fabs(exp((double) calib_map(&c, 0, 2, logf(0.9f))) - 0.8) < 0.05);
    map_is_monotone(&c);
    /* Claims .6 and is always right: a probability never exceeds 1. */
    for (int i = 0; i < 6000; i++) calib_count(&c, 0, 4, logf(0.6f), true);
    calib_fit(&c, 0, 4);
    for (int b = 0; b < CALIB_BUCKETS; b++) assert_true(c.cell[0][4].value[b] <= 0);
    /* Arbitrary input, long enough that the weights are scaled down several times. */
    for (int i = 0; i < 200000; i++) {
        int32_t s = (int32_t) (rng() % SOURCES), d = (int32_t) (rng() % LAT_DEPTH);
        calib_count(&c, s, d, (float) (-12 * uniform() * uniform()), rng() % (uint32_t) (d + 2) == 0);
        if (i % 100 == 0) calib_fit(&c, s, d);
        if (i % 300 == 0) calib_level(&c, s, uniform(), rng() % 2);
    }
    map_is_monotone(&c);
    calib_count(&c, 9, 99, -1, true);                                /* outside: ignored, identity */
    /* Another text: the look-up regains its credit before it has been right again, the drafter keeps its own. */
    calib_reset(&c);
    for (int i = 0; i < 40; i++)
        for (int32_t by = 0; by < SOURCES; by++) calib_level(&c, by, 0.8, false);
    float block = c.scale[SOURCE_BLOCK], looked = c.scale[SOURCE_NGRAM];
    calib_next(&c);
    assert_true(looked < -2 && c.scale[SOURCE_NGRAM] > looked + 1 && c.scale[SOURCE_NGRAM] < 0 &&
                c.scale[SOURCE_BLOCK] == block);
    assert_true(calib_edge(&c, 9, 99, -1) == -1);
}

/* Lattices claim .9 for one token at each depth; the target agrees with probability .6. Only rows that the walk visited
 * may count. */
static void learning_from_paths(void **state)
{
    (void) state;
    rng_state = 8;
    static Calibration c;
    static Lattice l;
    calib_reset(&c);
    int32_t id[L * 2], root = 0, depth_max = L;
    float score[L * 2];
    for (int32_t d = 0; d < L; d++) {
        id[2 * d] = 1;
        id[2 * d + 1] = 2;
        score[2 * d] = 2.1972246f;
        score[2 * d + 1] = 0;
    }
    int32_t visited = 0;
    for (int i = 0; i < 3000; i++) {
        const Lattice *lat = &l;
        Tree t;
        lattice_from_scores(&l, id, score, L, 2, &c, SOURCE_BLOCK);
        tree_build(&t, &lat, &root, &depth_max, 1, 7);
        tree_rows(&t);
        Path p = { .n = 1 };
        for (int32_t row; uniform() < 0.6 && (row = tree_child(&t, p.row[p.n - 1], 1)) > 0;) p.row[p.n++] = row;
        p.bonus = 3;
        visited += p.n;
        accept_learn(&c, &t, &p, 1u << SOURCE_BLOCK);
    }
    for (int32_t d = 0; d < 3; d++) {
        double first = exp((double) calib_edge(&c, SOURCE_BLOCK, d, logf(0.9f))),
               second = exp((double) calib_edge(&c, SOURCE_BLOCK, d, logf(0.1f)));
        if (fabs(first - 0.6) > 0.12 || second > 0.05)
            fail_msg("depth %d: %g and %g, expected about 0.6 and 0", d, first, second);
    }
    assert_true(visited > 3000);
    /* A drafter that fails from now on is noticed by the scale within a few steps, and gets another chance later. */
    double before = exp((double) calib_edge(&c, SOURCE_BLOCK, 0, logf(0.9f)));
    calib_reset(&c);
    Tree t = { .n = 2, .parent = { -1, 0 }, .depth = { 0, 1 }, .token = { 0, 1 },
               .raw = { { -INFINITY, -INFINITY, -INFINITY }, { -0.1f, -INFINITY, -INFINITY } } };
    Path p = { .n = 1 };
    for (int i = 0; i < 6; i++) accept_learn(&c, &t, &p, 1u << SOURCE_BLOCK);
    double after = exp((double) calib_edge(&c, SOURCE_BLOCK, 0, logf(0.9f)));
    assert_true(before > 0.45 && after < 0.3);
    t.n = 1;
    for (int i = 0; i < 10; i++) accept_learn(&c, &t, &p, 1u << SOURCE_BLOCK);
    assert_true(exp((double) calib_edge(&c, SOURCE_BLOCK, 0, logf(0.9f))) > 0.55);
}

/* ---------------------------------------------------------------- simulated acceptance */

static void simulation_follows_the_profile(void **state)
{
    (void) state;
    rng_state = 9;
    static Lattice l;
    memset(&l, 0, sizeof l);
    l.n_depth = 3;
    l.k = 3;
    for (int32_t d = 0; d < 3; d++)
        for (int32_t k = 0; k < 3; k++) {
            l.token[d][k] = k;
            for (int32_t q = 0; q < 3; q++) l.edge[d][q][k] = -0.5f * (float) (k + 1);
        }
    const Lattice *lat = &l;
    int32_t root = 0, depth_max = 3;
    Tree t;
    tree_build(&t, &lat, &root, &depth_max, 1, 39);
    tree_rows(&t);
    assert_int_equal(t.n, 40);
    Profile in = { .n_depth = 3, .n_rank = 3, .edge = { { 0.6, 0.2, 0.1 }, { 0.5, 0.25, 0.25 }, { 0, 0, 0.9 } } }, out;
    assert_null(simulate_check(&in));
    static EdgeCount count;
    memset(&count, 0, sizeof count);
    for (uint64_t i = 0; i < 20000; i++) {
        Path p, q;
        simulate_path(&p, &t, &in, 42, i, 1000);
        simulate_path(&q, &t, &in, 42, i, 1000);
        assert_int_equal(p.bonus, 1000);
        assert_true(p.n == q.n && !memcmp(p.row, q.row, (size_t) p.n * sizeof *p.row));
        for (int32_t j = 1; j < p.n; j++) assert_int_equal(t.parent[p.row[j]], p.row[j - 1]);
        simulate_count(&count, &t, &p);
    }
    simulate_profile(&out, &count);
    assert_null(simulate_check(&out));
    assert_int_equal(out.n_depth, 3);
    assert_int_equal(out.n_rank, 3);
    for (int32_t d = 0; d < 3; d++)
        for (int32_t r = 0; r < 3; r++)
            if (fabs(out.edge[d][r] - in.edge[d][r]) > 0.015)
                fail_msg("depth %d rank %d: %g, expected %g", d, r, out.edge[d][r], in.edge[d][r]);
    /* A rank that the tree lacks ends the walk; its probability goes to no other rank. */
    tree_chain(&t, &lat, &root, &depth_max, 1, 1);
    int32_t taken = 0;
    for (uint64_t i = 0; i < 20000; i++) {
        Path p;
        simulate_path(&p, &t, &in, 1, i, 0);
        taken += p.n == 2;
    }
    assert_true(fabs(taken / 20000.0 - 0.6) < 0.015);

    /* A lattice made as confident as the profile: its best chain is worth the product of the best ranks. */
    static Lattice sure;
    sure = l;
    simulate_lattice(&sure, &in);
    const Lattice *const sures[] = { &sure };
    tree_chain(&t, sures, &root, &depth_max, 1, 1);
    double best = 0;
    for (int32_t r = 0; r < in.n_rank; r++) best = fmax(best, in.edge[0][r]);
    assert_int_equal(t.n, 2);
    assert_true(fabs(exp(t.score[1]) - best) < 1e-6);
    for (int32_t d = 0; d < sure.n_depth; d++) assert_memory_equal(sure.token[d], l.token[d], sizeof sure.token[d]);

    in.edge[1][1] = 0.5;
    assert_string_equal(simulate_check(&in), "sum");
    in.edge[1][1] = NAN;
    assert_string_equal(simulate_check(&in), "probability");
    in.n_rank = 17;
    assert_string_equal(simulate_check(&in), "ranks");
    in.n_depth = 0;
    assert_string_equal(simulate_check(&in), "depths");
    memset(&count, 0, sizeof count);
    simulate_profile(&out, &count);
    assert_string_equal(simulate_check(&out), "depths");

    /* A rank that is offered only where the drafter is unsure takes nothing from the likeliest. */
    count.offered[0][0] = 1000, count.accepted[0][0] = 950;
    count.offered[0][6] = 10, count.accepted[0][6] = 4;
    simulate_profile(&out, &count);
    assert_true(out.edge[0][0] == 0.95 && fabs(out.edge[0][6] - 0.05) < 1e-12 && !simulate_check(&out));
}

int main(int argc, char **argv)
{
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tree_is_the_best), cmocka_unit_test(order_over_several_lattices),
        cmocka_unit_test(children_share_one), cmocka_unit_test(the_surer_source_keeps_its_word),
        cmocka_unit_test(rows_are_depth_first), cmocka_unit_test(chain_takes_best_children), cmocka_unit_test(limits),
        cmocka_unit_test(lattice_from_candidates), cmocka_unit_test(walk_follows_the_target),
        cmocka_unit_test(hoped_of_a_path),
        cmocka_unit_test(calibration_learns), cmocka_unit_test(learning_from_paths),
        cmocka_unit_test(simulation_follows_the_profile),
    };
    return cmocka_run_group_tests_name("tree", tests, NULL, NULL);
}
