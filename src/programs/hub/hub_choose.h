/* hub_choose.h - which files of a repository a name means. */
#ifndef RATOON_PROGRAMS_HUB_CHOOSE_H
#define RATOON_PROGRAMS_HUB_CHOOSE_H

#include "programs/hub/hub_api.h"

/* The files to have, in the repository's order; first: the one to open. folder: a drafter as config.json and
 * safetensors, to be opened as a folder. */
typedef struct { const HubFile **at; size_t n; const HubFile *first; uint64_t bytes; bool folder; } HubChoice;

/* Returns false after reporting that there is no such file, with those that there are. at: free it. */
bool hub_choose(HubChoice *out, const HubEnv *e, const HubRepo *repo, HubKind wish);

/* The models of a repository, one per file or split file, by size. */
typedef struct { char quant[HUB_QUANT]; const char *file; uint64_t bytes; } HubVariant;
typedef struct { HubVariant *at; size_t n; } HubVariants;
bool hub_variants(HubVariants *out, const HubRepo *repo, HubKind kind);    /* free at; false: out of memory */

#endif
