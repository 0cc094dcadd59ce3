/* model_facts.h - what a model file is, from its header alone: a target, a DFlash drafter or something else, and the
 * numbers by which a drafter fits a target or not. The library has the last word when it loads the pair; this only
 * tells good candidates from bad ones without loading anything. A format tool (see tests/deps.py). */
#ifndef RATOON_PROGRAMS_MODEL_FACTS_H
#define RATOON_PROGRAMS_MODEL_FACTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

typedef enum { MODEL_TARGET, MODEL_DRAFTER, MODEL_PROJECTOR } ModelKind;

typedef struct {
    ModelKind kind;
    char      arch[64], name[128];                 /* general.architecture, general.name; of a folder: its class, "" */
    int32_t   layers;                              /* of a target without MTP; of a drafter the target's; 0: unknown */
    int32_t   width, vocab;                        /* hidden size, vocabulary; 0: unknown */
    int32_t   experts, experts_used;               /* of a layer, of a row; 0: not a mixture, or a folder */
    bool      own_layer;                           /* a target with an MTP layer */
    bool      canvas;                              /* a target that denoises: nothing drafts for it */
    int32_t   last_tap;                            /* of a drafter: the last target layer that it reads; 0: unknown */
    char      type[16];                            /* general.file_type by name ("Q4_K_M"); "": none, or unknown */
    char      unread[16];                          /* the first tensor type that is not known here; "": none */
    uint64_t  bytes;                               /* of all parts */
    uint64_t  tokens;                              /* hash of the tokenizer's tokens; 0: the file carries none */
} ModelFacts;

/* path: a GGUF file (any part of a split one), or a folder with config.json and safetensors. Reads headers only. */
Status model_facts(ModelFacts *out, const char *path, Error *err);

/* Whether its layers have experts, in numbers that can be. */
bool   model_facts_mixture(const ModelFacts *f);

/* Whether d can draft for t as far as the headers say; else why not, as in "its hidden size is 1024, the model's
 * 2560". */
bool   model_facts_fit(char why[160], const ModelFacts *d, const ModelFacts *t);

#endif
