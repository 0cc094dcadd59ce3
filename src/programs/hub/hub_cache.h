/* hub_cache.h - the models that are on this machine already: in the Hugging Face cache, whatever program put them
 * there, in LM Studio's folders and in Ollama's store. Nothing here touches the network.
 *
 *     HubLocals l;
 *     if (hub_locals(&l))
 *         for (size_t i = 0; i < l.n; i++) consider(l.at[i].repo, l.at[i].name, l.at[i].path);
 *     hub_locals_free(&l);
 */
#ifndef RATOON_PROGRAMS_HUB_CACHE_H
#define RATOON_PROGRAMS_HUB_CACHE_H

#include <stddef.h>

#include "programs/hub/hub_name.h"

typedef enum { HUB_CACHE, HUB_LMSTUDIO, HUB_OLLAMA } HubSource;

/* A GGUF file, a complete split file (under its first part), or a folder with config.json and safetensors.
 * repo: "ORG/NAME"; Ollama: its own name ("qwen3"). name: the file within the repository, "" for a folder; Ollama: the
 * tag ("4b"). path: what to open, a link in the snapshot for HUB_CACHE. bytes: all parts. commit: of a snapshot, else
 * "". current: the snapshot that refs/main names, or no snapshot at all. */
typedef struct {
    HubSource source;
    char     *repo, *name, *path, commit[72];
    uint64_t  bytes;
    bool      folder, current;
} HubLocal;
typedef struct { HubLocal *at; size_t n, cap; } HubLocals;

/* Everything there is, sorted by repository and name, current snapshots first. Returns false when out of memory. Call
 * hub_locals_free in any case. */
bool hub_locals(HubLocals *out);
void hub_locals_free(HubLocals *l);
/* "repo:name" in the words of the program it belongs to: what `ratoon models` shows and -m accepts. */
void hub_local_name(char *out, size_t cap, const HubLocal *l);
const char *hub_source_name(HubSource source);     /* "Hugging Face cache" ... */

/* The local model that ORG/NAME[@REVISION][:QUANT] means, by the order of hub_rank; NULL: none. */
const HubLocal *hub_locals_named(const HubLocals *l, const HubName *name, HubKind wish);
/* The local model that any other name means: one of Ollama's (qwen3:4b), or a file's name. */
const HubLocal *hub_locals_called(const HubLocals *l, const char *name);
/* Both at once, for a name as -m and -hf take it. Returns false if there is none. */
bool hub_find_local(char path[HUB_PATH], const char *text, HubKind wish);
/* What Ollama calls a file of its store, whose own name is a digest: `given`, completed, if that means it, else the
 * first of its names. Returns false if it is no such file. */
bool hub_ollama_name(char *out, size_t cap, const char *path, const char *given);

/* The Hugging Face cache's layout below `cache`: the folder of a repository, and a file in it. */
bool hub_repo_folder(char out[HUB_PATH], const char *cache, const char *repo);
/* The commit that refs/REVISION holds, or the revision itself if it is a commit; "" if unknown. revision "": main. */
void hub_ref_read(char commit[72], const char *folder, const char *revision);
/* folder/snapshots/COMMIT/PATH becomes a relative link to folder/blobs/ETAG. */
Status hub_link(const char *folder, const char *commit, const char *path, const char *etag, Error *err);
Status hub_ref_write(const char *folder, const char *revision, const char *commit, Error *err);
#define GENERATION_CONFIG "generation_config.json"  /* beside a model; see sampling.h */
Status hub_folders(const char *path, Error *err);   /* as save_folders */

#endif
