/* hub_remove.h - takes a model out of the Hugging Face cache: its links in all snapshots, the blobs that no other link
 * of the repository uses, and, once no snapshot is left, the repository's folder with half downloads of ours. Files of
 * LM Studio and Ollama belong to them. */
#ifndef RATOON_PROGRAMS_HUB_REMOVE_H
#define RATOON_PROGRAMS_HUB_REMOVE_H

#include "programs/hub/hub_cache.h"
#include "programs/options.h"

typedef struct { char *link, *blob; bool chosen; uint64_t bytes; } HubLink;    /* blob NULL: not one of the folder's */
/* bytes: what becomes free. */
typedef struct { char folder[HUB_PATH], name[800]; HubLink *at; size_t n, cap; uint64_t bytes; } HubRemoval;

/* Works out what the name means, and changes nothing. Returns false after reporting an error. Call hub_removal_free in
 * any case. */
bool hub_removal(HubRemoval *out, const Options *o, const char *text);
bool hub_removal_do(const HubRemoval *r, const Options *o);
void hub_removal_free(HubRemoval *r);

#endif
