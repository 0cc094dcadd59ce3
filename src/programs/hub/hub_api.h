/* hub_api.h - what the hub knows about a repository: its commit, its files, and where a file's bytes are. */
#ifndef RATOON_PROGRAMS_HUB_API_H
#define RATOON_PROGRAMS_HUB_API_H

#include "programs/hub/hub_http.h"

/* sha256 "": the hub gives none, as for small files that git itself keeps. */
typedef struct { char *path; uint64_t bytes; char sha256[65]; } HubFile;
typedef struct { HubName name; char commit[72]; HubFile *at; size_t n, cap; } HubRepo;

/* Lists the files, by name. Returns false after reporting an error that tells missing repositories, missing revisions
 * and gated ones apart. Call hub_repo_free in any case. */
bool hub_repo_list(HubRepo *out, const HubEnv *e, const HubName *name);
void hub_repo_free(HubRepo *r);

/* A file as it can be fetched now: url may be a signed link that expires. */
typedef struct { char url[HUB_URL], etag[160]; uint64_t bytes; } HubPlace;
bool hub_resolve(HubPlace *out, const HubEnv *e, const HubRepo *repo, const HubFile *file);
/* Reports an answer that is not the wanted one. Returns false. */
bool hub_refused(const HubEnv *e, const HubName *name, const HubReply *reply, const char *file);

#endif
