/* tree.c - the heaviest prefixes of a lattice, best first.
 *
 * The heap holds, for every node taken so far, its best child that has not been taken. Taking a child pushes its next
 * sibling and its own best child. Since no edge is positive nothing heavier can appear later, so nodes come out in
 * order of weight, parents always before their children, and growing can stop and resume after any node. Weights are
 * sums from the root (never differences), so equal paths have equal weights. */
#include "decode/tree.h"

#include <math.h>
#include <string.h>

#include "base/mathd.h"

/* ---------------------------------------------------------------- lattices */

/* out = log-softmax of score [k] over the candidates that hold a token. */
static void log_softmax(float *out, const int32_t *id, const float *score, int32_t k)
{
    double max = -INFINITY, sum = 0;
    for (int32_t i = 0; i < k; i++) if (id[i] >= 0 && (double) score[i] > max) max = (double) score[i];
    for (int32_t i = 0; i < k; i++) if (id[i] >= 0 && score[i] > -INFINITY) sum += mathd_exp((double) score[i] - max);
    double log_sum = mathd_log(sum);
    for (int32_t i = 0; i < k; i++)
        out[i] = id[i] < 0 || !(score[i] > -INFINITY) ? -INFINITY : (float) ((double) score[i] - max - log_sum);
}

static void lattice_row(Lattice *l, int32_t d, int32_t k_prev, const float *score, const Calibration *calib,
                        int32_t source)
{
    float *raw = l->raw[d][k_prev], *edge = l->edge[d][k_prev];
    log_softmax(raw, l->token[d], score, l->k);
    for (int32_t k = 0; k < l->k; k++)
        edge[k] = calib && raw[k] > -INFINITY ? calib_edge(calib, source, d, raw[k]) : raw[k];
}

static void lattice_tokens(Lattice *l, const int32_t *id, int32_t n_depth, int32_t k, int32_t source)
{
    l->n_depth = n_depth < LAT_DEPTH ? n_depth : LAT_DEPTH;
    l->k = k < LAT_K ? k : LAT_K;
    for (int32_t d = 0; d < l->n_depth; d++)
        for (int32_t i = 0; i < l->k; i++) {
            l->token[d][i] = id[d * k + i];
            l->source[d][i] = (uint8_t) source;
        }
}

void lattice_from_scores(Lattice *l, const int32_t *id, const float *score, int32_t n_depth, int32_t k,
                         const Calibration *calib, int32_t source)
{
    lattice_tokens(l, id, n_depth, k, source);
    l->alike = (1u << l->k) - 1;
    size_t row = (size_t) l->k * sizeof(float);
    for (int32_t d = 0; d < l->n_depth; d++) {
        lattice_row(l, d, 0, score + d * k, calib, source);
        for (int32_t p = 1; p < l->k; p++) {
            memcpy(l->edge[d][p], l->edge[d][0], row);
            memcpy(l->raw[d][p], l->raw[d][0], row);
        }
    }
}

void lattice_from_pairs(Lattice *l, const int32_t *id, const float *score, int32_t n_depth, int32_t k,
                        const Calibration *calib, int32_t source)
{
    lattice_tokens(l, id, n_depth, k, source);
    l->alike = 0;
    for (int32_t d = 0; d < l->n_depth; d++)
        for (int32_t p = 0; p < l->k; p++) lattice_row(l, d, p, score + (d * k + p) * k, calib, source);
}

void lattice_clear(Lattice *l)
{
    l->n_depth = l->k = 0;
    l->alike = 0;
}

/* Adds `columns` empty, unconnected columns, at least `n` depths deep. Returns the first of them, or -1. */
static int32_t lattice_widen(Lattice *l, int32_t columns, int32_t n)
{
    if (columns < 1 || l->k + columns > LAT_COLS || n > LAT_DEPTH) return -1;
    int32_t first = l->k, k = l->k + columns;
    for (int32_t d = 0; d < (n > l->n_depth ? n : l->n_depth); d++) {
        for (int32_t c = d < l->n_depth ? first : 0; c < k; c++) l->token[d][c] = -1;
        for (int32_t p = 0; p < k; p++)
            for (int32_t c = d < l->n_depth && p < first ? first : 0; c < k; c++)
                l->edge[d][p][c] = l->raw[d][p][c] = -INFINITY;
    }
    l->k = k;
    if (n > l->n_depth) l->n_depth = n;
    return first;
}

/* Depth 0 uses row 0, whatever column the chain has. */
static void lattice_hang(Lattice *l, int32_t d, int32_t above, int32_t column, int32_t token, float raw,
                         const Calibration *calib, int32_t source)
{
    int32_t p = d == 0 ? 0 : above;
    l->token[d][column] = token;
    l->source[d][column] = (uint8_t) source;
    l->raw[d][p][column] = raw;
    l->edge[d][p][column] = calib ? calib_edge(calib, source, d, raw) : raw;
}

bool lattice_chain(Lattice *l, const int32_t *token, const float *raw, int32_t n, const Calibration *calib,
                   int32_t source)
{
    int32_t c = lattice_widen(l, 1, n);
    for (int32_t d = 0; c >= 0 && d < n; d++) lattice_hang(l, d, c, c, token[d], raw[d], calib, source);
    return c >= 0;
}

bool lattice_branches(Lattice *l, const int32_t *id, const float *score, int32_t n, int32_t k, int32_t columns,
                      const Calibration *calib, int32_t source)
{
    int32_t c = lattice_widen(l, columns < k ? columns : k, n);
    if (c < 0) return false;
    for (int32_t d = 0; d < n; d++) {
        float raw[LAT_K];
        log_softmax(raw, id + d * k, score + d * k, k);
        for (int32_t i = 0; i < columns && i < k; i++)
            if (raw[i] > -INFINITY) lattice_hang(l, d, c, c + i, id[d * k + i], raw[i], calib, source);
    }
    return true;
}

/* ---------------------------------------------------------------- growing */

static bool pop_before(const Pop *a, const Pop *b)
{
    if (a->weight != b->weight) return a->weight > b->weight;
    if (a->depth != b->depth)   return a->depth < b->depth;
    if (a->tree != b->tree)     return a->tree < b->tree;
    return a->parent < b->parent;                   /* the heap holds one child per parent: its list orders by rank */
}

static void heap_put(Growth *g, Pop v)
{
    int32_t i = g->n_heap++;
    for (; i > 0 && pop_before(&v, &g->heap[(i - 1) / 2]); i = (i - 1) / 2) g->heap[i] = g->heap[(i - 1) / 2];
    g->heap[i] = v;
}

static Pop heap_take(Growth *g)
{
    Pop first = g->heap[0], v = g->heap[--g->n_heap];
    int32_t i = 0;
    for (;;) {
        int32_t c = 2 * i + 1;
        if (c >= g->n_heap) break;
        if (c + 1 < g->n_heap && pop_before(&g->heap[c + 1], &g->heap[c])) c++;
        if (!pop_before(&g->heap[c], &v)) break;
        g->heap[i] = g->heap[c];
        i = c;
    }
    g->heap[i] = v;
    return first;
}

/* Siblings are mutually exclusive, but sources that disagree do not know of each other: a drafter's near certainty plus
 * a look-up's 60 % would promise more than the one token that comes. If the probabilities sum to more than 1, all are
 * raised to the power that makes the sum 1, so the surest keeps nearly all of its claim and the others share the rest.
 * Newton's method, approaching that power from below; mostly no step is needed. */
static void share(Children *c)
{
    enum { STEPS = 32 };
    static const double SLACK = 1e-3, DOUBT = 1e-6;     /* DOUBT: any source can be wrong */
    static const float  NOTHING = -10;                  /* all children below it together claim less than the slack */
    double power = 1;
    for (int32_t step = 0; step < STEPS; step++) {
        double sum = 0, slope = 0;
        for (int32_t i = 0; i < c->n && c->at[i].edge > NOTHING; i++) {
            double edge = (double) c->at[i].edge - DOUBT, p = mathd_exp(power * edge);
            sum += p;
            slope -= p * edge;
        }
        if (sum <= 1 + SLACK) break;
        power += (sum - 1) / slope;
    }
    for (int32_t i = 0; i < c->n && power > 1; i++) c->at[i].edge = (float) (power * ((double) c->at[i].edge - DOUBT));
}

/* All children at lattice depth d of a node that occupies `columns` of the depth before. */
static void children_find(Children *out, const Lattice *l, int32_t d, uint32_t columns)
{
    out->n = 0;
    for (int32_t k = 0; k < l->k; k++) {
        Child c = { .edge = -INFINITY, .token = l->token[d][k], .rank = k, .columns = 1u << k };
        if (c.token < 0) continue;
        for (int32_t s = 0; s < SOURCES; s++) c.raw[s] = -INFINITY;
        float *raw = &c.raw[l->source[d][k]];
        for (uint32_t left = columns; left; left &= left - 1) {
            int32_t p = __builtin_ctz(left);
            if (!(l->edge[d][p][k] > c.edge)) continue;
            c.edge = l->edge[d][p][k];
            *raw = l->raw[d][p][k];
        }
        if (c.edge == -INFINITY) continue;
        if (c.edge > 0) c.edge = 0;
        int32_t at = 0;
        while (at < out->n && out->at[at].token != c.token) at++;
        if (at < out->n) {                                           /* same token in another column: one node */
            Child *same = &out->at[at];
            c.columns |= same->columns;
            for (int32_t s = 0; s < SOURCES; s++)
                if (same->raw[s] > c.raw[s]) c.raw[s] = same->raw[s];
            if (!(c.edge > same->edge)) {
                same->columns = c.columns;
                memcpy(same->raw, c.raw, sizeof c.raw);
                continue;
            }
        } else out->n++;
        for (; at > 0 && c.edge > out->at[at - 1].edge; at--) out->at[at] = out->at[at - 1];
        out->at[at] = c;
    }
    share(out);
}

/* The list of children at lattice depth d below these columns: shared with another node, or a new one. Columns whose
 * rows are equal have the same children. */
static int32_t children_of(Growth *g, int32_t tree, int32_t d, uint32_t columns)
{
    const Lattice *l = g->lat[tree];
    if (d == 0) columns = 1;
    else if (columns & l->alike) columns = (columns & ~l->alike) | (l->alike & -l->alike);
    for (int32_t i = g->n_lists - 1; i >= 0; i--)
        if (g->list[i].depth == d && g->list[i].columns == columns && g->list[i].tree == tree) return i;
    Children *c = &g->list[g->n_lists];
    c->tree = tree;
    c->depth = d;
    c->columns = columns;
    children_find(c, l, d, columns);
    return g->n_lists++;
}

static void offer(Growth *g, int32_t tree, int32_t parent, int32_t list, int32_t at)
{
    if (at >= g->list[list].n) return;
    const Tree *t = &g->tree[tree];
    heap_put(g, (Pop) { t->score[parent] + (double) g->list[list].at[at].edge, t->depth[parent] + 1, tree, parent,
                        list, at });
}

static void expand(Growth *g, int32_t tree, int32_t row, uint32_t columns)
{
    int32_t d = g->tree[tree].depth[row];
    if (g->lat[tree] && d < g->lat[tree]->n_depth && d < g->depth_max[tree])
        offer(g, tree, row, children_of(g, tree, d, columns), 0);
}

void tree_begin(Growth *g, Tree *tree, const Lattice *const *lat, const int32_t *root, const int32_t *depth_max,
                int32_t n, bool chain)
{
    g->tree = tree;
    g->lat = lat;
    g->depth_max = depth_max;
    g->n_trees = n;
    g->chain = chain;
    g->n = g->n_lists = g->n_heap = 0;
    for (int32_t i = 0; i < n; i++) {
        Tree *t = &tree[i];
        t->n = 1;
        t->token[0] = root[i];
        t->parent[0] = -1;
        t->depth[0] = t->rank[0] = 0;
        t->score[0] = 0;
        for (int32_t s = 0; s < SOURCES; s++) t->raw[0][s] = -INFINITY;
        expand(g, i, 0, 1);
    }
}

int32_t tree_grow(Growth *g, int32_t nodes)
{
    if (nodes > ROWS_DECODE - g->n_trees) nodes = ROWS_DECODE - g->n_trees;
    while (g->n < nodes && g->n_heap > 0) {
        Pop p = heap_take(g);
        const Child *c = &g->list[p.list].at[p.at];
        Tree *t = &g->tree[p.tree];
        int32_t row = t->n++;
        t->token[row] = c->token;
        t->parent[row] = p.parent;
        t->depth[row] = p.depth;
        t->rank[row] = c->rank;
        t->score[row] = p.weight;
        memcpy(t->raw[row], c->raw, sizeof c->raw);
        g->gain[g->n] = mathd_exp(p.weight);
        g->grown[g->n++] = (uint8_t) p.tree;
        if (!g->chain) offer(g, p.tree, p.parent, p.list, p.at + 1);
        expand(g, p.tree, row, c->columns);
    }
    return g->n;
}

void tree_cut(Growth *g, int32_t nodes)
{
    while (g->n > nodes && g->n > 0) g->tree[g->grown[--g->n]].n--;
}

int32_t tree_gains(double *gain, const Growth *g, int32_t tree)
{
    int32_t n = 0;
    for (int32_t i = 0; i < g->n; i++)
        if (g->grown[i] == tree) gain[n++] = g->gain[i];
    return n;
}

/* ---------------------------------------------------------------- reading */

void tree_rows(Tree *t)
{
    /* Siblings are in the order in which they left the heap, best first: linking from the back keeps that order in each
     * list. */
    int32_t child[ROWS_DECODE], next[ROWS_DECODE], row_of[ROWS_DECODE];
    for (int32_t i = 0; i < t->n; i++) child[i] = -1;
    for (int32_t i = t->n - 1; i > 0; i--) {
        next[i] = child[t->parent[i]];
        child[t->parent[i]] = i;
    }
    next[0] = -1;
    Tree from = *t;
    int32_t at = 0;
    for (int32_t row = 0; row < t->n; row++) {
        row_of[at] = row;
        t->token[row]  = from.token[at];
        t->parent[row] = at == 0 ? -1 : row_of[from.parent[at]];
        t->depth[row]  = from.depth[at];
        t->rank[row]   = from.rank[at];
        t->score[row]  = from.score[at];
        memcpy(t->raw[row], from.raw[at], sizeof from.raw[at]);
        if (child[at] >= 0) { at = child[at]; continue; }
        while (at > 0 && next[at] < 0) at = from.parent[at];
        if (at > 0) at = next[at];
    }
}

int32_t tree_child(const Tree *t, int32_t row, int32_t token)
{
    for (int32_t i = row + 1; i < t->n; i++) if (t->parent[i] == row && t->token[i] == token) return i;
    return -1;
}
