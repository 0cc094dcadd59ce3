/* hub_fetch.h - brings one file of a repository to its place in the cache: over several connections, each with a range
 * of the file, across broken connections, busy servers and links that expire; its SHA-256 is checked at the end. */
#ifndef RATOON_PROGRAMS_HUB_FETCH_H
#define RATOON_PROGRAMS_HUB_FETCH_H

#include "programs/hub/hub_api.h"

/* target: folder/blobs/TAG. Returns false after reporting an error, saying what is left of the file: the same call goes
 * on from there. */
bool hub_fetch(const HubEnv *e, const HubRepo *repo, const HubFile *file, const HubPlace *place, const char *target);
/* "4.37 GB" */
void hub_size(char out[32], uint64_t bytes);

#endif
