#include "programs/hub/hub_walk.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

static bool enter(HubWalk *w)
{
    DIR *d = w->depth < HUB_DEPTH ? opendir(w->path) : NULL;
    if (!d) return false;
    w->dir[w->depth] = d;
    w->end[w->depth++] = strlen(w->path);
    return true;
}

void hub_walk(HubWalk *w, const char *root)
{
    *w = (HubWalk) { .root = strlen(root) };
    if (w->root >= HUB_PATH) return;
    strcpy(w->path, root);
    enter(w);
}

static void leave(HubWalk *w)
{
    closedir(w->dir[--w->depth]);
    w->path[w->end[w->depth]] = 0;
}

static bool show(HubWalk *w, bool folder)
{
    w->folder = folder;
    w->name = w->path + w->root + (w->path[w->root] == '/');
    return true;
}

bool hub_walk_next(HubWalk *w)
{
    while (w->depth > 0) {
        size_t end = w->end[w->depth - 1];
        struct dirent *e = readdir(w->dir[w->depth - 1]);
        struct stat st;
        if (!e) {
            leave(w);
            return show(w, true);
        }
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
        if (snprintf(w->path + end, HUB_PATH - end, "/%s", e->d_name) >= (int) (HUB_PATH - end) ||
            lstat(w->path, &st) != 0) continue;
        if (!S_ISDIR(st.st_mode)) return show(w, false);
        enter(w);
    }
    return false;
}

void hub_walk_end(HubWalk *w)
{
    while (w->depth > 0) leave(w);
}
