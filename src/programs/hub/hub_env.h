/* hub_env.h - what the environment says about the hub: the variables of huggingface_hub, with their meaning there, so
 * that both use the same folders, the same token and the same mirror. */
#ifndef RATOON_PROGRAMS_HUB_ENV_H
#define RATOON_PROGRAMS_HUB_ENV_H

#include "programs/hub/hub_name.h"
#include "programs/options.h"

typedef struct {
    const Options *o;                              /* for messages */
    char endpoint[512];                            /* HF_ENDPOINT, without a / at its end */
    char token[512];                               /* HF_TOKEN, HF_TOKEN_PATH or HF_HOME/token; "": none */
    bool offline;                                  /* --offline or HF_HUB_OFFLINE=1 */
} HubEnv;

/* Returns false after reporting a variable that cannot be used. */
bool hub_env_read(HubEnv *e, const Options *o);
/* HF_HUB_CACHE, else HF_HOME/hub, else ~/.cache/huggingface/hub. Returns false if none is known. */
bool hub_cache_folder(char out[HUB_PATH]);
/* Returns false after saying that nothing is fetched offline. what: the file or repository. */
bool hub_online(const HubEnv *e, const char *what);

#endif
