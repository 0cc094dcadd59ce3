/* remove_tree.h - removes a folder with all that is in it. */
#ifndef RATOON_TESTS_HELP_REMOVE_TREE_H
#define RATOON_TESTS_HELP_REMOVE_TREE_H

#include <ftw.h>
#include <stdio.h>

static inline int remove_one(const char *path, const struct stat *st, int kind, struct FTW *at)
{
    (void) st, (void) kind, (void) at;
    return remove(path);
}

static inline int remove_tree(const char *folder) { return nftw(folder, remove_one, 16, FTW_DEPTH | FTW_PHYS); }

#endif
