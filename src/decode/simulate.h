/* simulate.h - acceptance drawn from a profile instead of decided by the target's text: what a drafter of known quality
 * would gain on a model for which none has been trained. All real work of drafting, pass and keep still runs; only the
 * accepted edges are drawn. Figures obtained this way must be labelled as such. */
#ifndef RATOON_DECODE_SIMULATE_H
#define RATOON_DECODE_SIMULATE_H

#include <stdint.h>

#include "decode/accept.h"

/* edge[d][r]: probability that the target's token is the child of lattice rank r at depth d + 1, given that its parent
 * was reached. Ranks exclude each other: each depth sums to at most 1. */
enum { PROFILE_DEPTH = 16, PROFILE_RANK = 16 };
typedef struct { int32_t n_depth, n_rank; double edge[PROFILE_DEPTH][PROFILE_RANK]; } Profile;

/* Returns NULL, or what is wrong: "depths", "ranks", "probability" (outside [0, 1]), "sum" (a depth's exceeds 1). */
const char *simulate_check(const Profile *p);
/* The path of this step, a pure function of (tree, profile, seed, step); bonus is passed through, as no choice of the
 * target follows from the draw. */
void simulate_path(Path *out, const Tree *t, const Profile *p, uint64_t seed, uint64_t step, int32_t bonus);

/* Gives a drafter's lattice the profile's probabilities, so that trees and the controller see what a drafter of that
 * quality would show them: the tokens stay, the edges become the profile's. */
void simulate_lattice(Lattice *l, const Profile *p);

/* Counts real acceptance, to make a profile from it. offered: edges of that depth and rank whose parent was reached. */
typedef struct { int64_t offered[PROFILE_DEPTH][PROFILE_RANK], accepted[PROFILE_DEPTH][PROFILE_RANK]; } EdgeCount;
void simulate_count(EdgeCount *c, const Tree *t, const Path *p);
/* accepted / offered per rank, clipped so that a depth's probabilities sum to at most 1: late ranks are offered only
 * when the drafter is unsure, so the unclipped sum may exceed 1. */
void simulate_profile(Profile *out, const EdgeCount *c);

#endif
