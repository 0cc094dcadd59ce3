/* hub.h - models by name: the way from "ORG/NAME:QUANT" to a path on this machine.
 *
 *     char path[HUB_PATH];
 *     if (hub_find_local(path, "unsloth/Qwen3-8B-GGUF:Q4_K_M", HUB_TARGET)) ...;   never asks the network
 *     if (hub_get(path, o, "unsloth/Qwen3-8B-GGUF:Q4_K_M", HUB_TARGET)) ...;        fetches what is missing
 */
#ifndef RATOON_PROGRAMS_HUB_H
#define RATOON_PROGRAMS_HUB_H

#include "programs/hub/hub_cache.h"
#include "programs/options.h"

/* A local model if there is one (then nothing is asked of the network), else it is fetched into the Hugging Face cache.
 * Returns false after reporting an error. */
bool hub_get(char path[HUB_PATH], const Options *o, const char *text, HubKind wish);
/* What `ratoon pull` does: asks the hub which commit is current, and fetches the files of it that are missing. ask: is
 * called when the hub has named the files, before they are fetched; after Ctrl-C there none is. NULL: nothing. */
bool hub_pull(char path[HUB_PATH], const Options *o, const char *text, HubKind wish, void (*ask)(void *ud), void *ud);

#endif
