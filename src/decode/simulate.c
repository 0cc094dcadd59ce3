/* simulate.c - see simulate.h. A row's random number comes from the library's counter-based generator: key = seed,
 * counter = (step, row). */
#include "decode/simulate.h"

#include <math.h>
#include <string.h>

#include "base/mathd.h"

const char *simulate_check(const Profile *p)
{
    if (p->n_depth < 1 || p->n_depth > PROFILE_DEPTH) return "depths";
    if (p->n_rank < 1 || p->n_rank > PROFILE_RANK)       return "ranks";
    for (int32_t d = 0; d < p->n_depth; d++) {
        double sum = 0;
        for (int32_t r = 0; r < p->n_rank; r++) {
            if (!(p->edge[d][r] >= 0 && p->edge[d][r] <= 1)) return "probability";
            sum += p->edge[d][r];
        }
        if (sum > 1 + 1e-5) return "sum";          /* profiles are written with six digits */
    }
    return NULL;
}

/* At most one child is entered: rank r owns the interval of [0, 1) after those of the lower ranks, whether or not they
 * are in the tree. */
static int32_t child_drawn(const Tree *t, int32_t row, const Profile *p, double u)
{
    int32_t d = t->depth[row];
    if (d >= p->n_depth) return -1;
    double from = 0;
    for (int32_t r = 0; r < p->n_rank; r++) {
        double to = from + p->edge[d][r];
        if (u < to) {
            for (int32_t i = row + 1; i < t->n; i++) if (t->parent[i] == row && t->rank[i] == r) return i;
            return -1;
        }
        from = to;
    }
    return -1;
}

void simulate_lattice(Lattice *l, const Profile *p)
{
    for (int32_t d = 0; d < l->n_depth; d++)
        for (int32_t prev = 0; prev < l->k; prev++)
            for (int32_t r = 0; r < l->k; r++) {
                double e = d < p->n_depth && r < p->n_rank ? p->edge[d][r] : 0;
                l->edge[d][prev][r] = l->raw[d][prev][r] = e > 0 ? (float) mathd_log(e) : -INFINITY;
            }
}

void simulate_path(Path *out, const Tree *t, const Profile *p, uint64_t seed, uint64_t step, int32_t bonus)
{
    out->n = 0;
    out->bonus = bonus;
    for (int32_t row = 0; row >= 0;) {
        out->row[out->n++] = row;
        double u = draw_random(seed, (uint32_t) step, (uint32_t) (step >> 32), (uint32_t) row, 1) * 0x1p-32;
        row = child_drawn(t, row, p, u);
    }
}

void simulate_count(EdgeCount *c, const Tree *t, const Path *p)
{
    uint64_t visited = 0;
    for (int32_t i = 0; i < p->n; i++) visited |= (uint64_t) 1 << p->row[i];
    for (int32_t i = 1; i < t->n; i++) {
        if (!(visited >> t->parent[i] & 1) || t->depth[i] > PROFILE_DEPTH || t->rank[i] >= PROFILE_RANK) continue;
        c->offered[t->depth[i] - 1][t->rank[i]]++;
        c->accepted[t->depth[i] - 1][t->rank[i]] += visited >> i & 1;
    }
}

void simulate_profile(Profile *out, const EdgeCount *c)
{
    memset(out, 0, sizeof *out);
    for (int32_t d = 0; d < PROFILE_DEPTH; d++) {
        double left = 1;
        for (int32_t r = 0; r < PROFILE_RANK; r++) {
            if (!c->offered[d][r]) continue;
            out->edge[d][r] = fmin((double) c->accepted[d][r] / (double) c->offered[d][r], left);
            left -= out->edge[d][r];
            if (d >= out->n_depth) out->n_depth = d + 1;
            if (r >= out->n_rank) out->n_rank = r + 1;
        }
    }
}
