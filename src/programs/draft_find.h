/* draft_find.h - finds the drafter of a target when the user named none. Files and folders with "dflash" or "draft" in
 * their names count, in any case, and are judged by their headers (model_facts.h): first those next to the model, then
 * those in the caches of this user. In a cache a drafter must also belong to the model, by the table of published pairs
 * or by its name, because models of different makers may have the same shape.
 *
 * Of several that fit: one with the model's name and size ("Qwen3.6-27B-DFlash-Q8_0" for "Qwen3.6-27B-Q4_K_M"), then
 * one that names the same size ("27B"), then the smaller file, then the first by name. */
#ifndef RATOON_PROGRAMS_DRAFT_FIND_H
#define RATOON_PROGRAMS_DRAFT_FIND_H

#include "programs/model_facts.h"
#include "programs/options.h"

typedef struct {
    char path[4096];                               /* "": none was found */
    char name[512];                                /* how messages call it */
    const char *where;                             /* "next to the model" */
    char ignored[512], why[512];                   /* the first one next to the model that does not fit; "": none */
    int32_t n_ignored;
} DraftFound;

void draft_find(DraftFound *out, const char *model, const ModelFacts *target);
/* Says with `note` what was found, or where a drafter was looked for and how to get the published one. */
void draft_tell(const DraftFound *f, const Options *o, const char *model, const ModelFacts *target);

#endif
