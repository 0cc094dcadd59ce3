/* hub_walk.h - goes through the files of a tree of folders, links not followed (but for the root itself), to a bounded
 * depth. A folder comes after everything in it, so that it can be removed when it is empty.
 *
 *     HubWalk w;
 *     for (hub_walk(&w, root); hub_walk_next(&w);) if (!w.folder) see(w.path, w.name);
 *     hub_walk_end(&w);                           only needed if the loop was left early
 */
#ifndef RATOON_PROGRAMS_HUB_WALK_H
#define RATOON_PROGRAMS_HUB_WALK_H

#include <dirent.h>

#include "programs/hub/hub_name.h"

enum { HUB_DEPTH = 24 };

typedef struct {
    char        path[HUB_PATH];
    const char *name;                              /* the path without the root; "" for the root itself */
    bool        folder;                            /* it is one, and everything in it has been seen */
    size_t      root, end[HUB_DEPTH];              /* lengths of the paths of open folders */
    int32_t     depth;
    DIR        *dir[HUB_DEPTH];
} HubWalk;

/* A root that cannot be opened has no files. */
void hub_walk(HubWalk *w, const char *root);
bool hub_walk_next(HubWalk *w);
void hub_walk_end(HubWalk *w);

#endif
