/* hub_remote.h - a model that is not on this machine, as far as its header tells: read by range requests, at most 24 MB
 * in all, and written as a stub: a sparse temporary file with the header's bytes and the whole model's size. rt_plan
 * and `inspect` work on the stub's path as on the file itself; running it would decode zeros.
 *
 *     HubRemote r;
 *     if (hub_remote_open(&r, o, "unsloth/Qwen3-8B-GGUF:Q4_K_M", HUB_TARGET)) {
 *         o->model = r.path;                      for rt_plan; r.bytes is what a download takes
 *         for (size_t i = 0; i < r.variants.n; i++) offer(r.variants.at[i].quant, r.variants.at[i].bytes);
 *     }
 *     hub_remote_close(&r);
 *
 * Ask hub_find_local first: what is here already needs no network. */
#ifndef RATOON_PROGRAMS_HUB_REMOTE_H
#define RATOON_PROGRAMS_HUB_REMOTE_H

#include "programs/hub/hub_choose.h"

typedef struct {
    char        path[HUB_PATH];                    /* the stub, or the folder of a safetensors drafter's stubs */
    char        folder[HUB_PATH];                  /* temporary */
    HubRepo     repo;                              /* commit and all files */
    char        file[600], quant[HUB_QUANT];       /* which file was chosen, and its type */
    uint64_t    bytes;                             /* all parts */
    HubVariants variants;                          /* the repository's models of the same kind, by size */
} HubRemote;

/* Returns false after reporting an error. Call hub_remote_close in any case. */
bool hub_remote_open(HubRemote *r, const Options *o, const char *text, HubKind wish);
/* Removes the stub. */
void hub_remote_close(HubRemote *r);

#endif
