/* tree_helper.h - builds a tree of a given number of nodes in one call. */
#ifndef RATOON_TESTS_HELP_TREE_HELPER_H
#define RATOON_TESTS_HELP_TREE_HELPER_H

#include "decode/tree.h"

static inline void tree_build(Tree *tree, const Lattice *const *lat, const int32_t *root, const int32_t *depth_max,
                              int32_t n, int32_t budget)
{
    Growth g;
    tree_begin(&g, tree, lat, root, depth_max, n, false);
    tree_grow(&g, budget);
}

static inline void tree_chain(Tree *tree, const Lattice *const *lat, const int32_t *root, const int32_t *depth_max,
                              int32_t n, int32_t budget)
{
    Growth g;
    tree_begin(&g, tree, lat, root, depth_max, n, true);
    tree_grow(&g, budget);
}

#endif
