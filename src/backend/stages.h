/* stages.h - which backend runs which layers. A model may be divided into stages, each with its own backend: embedding
 * and first layers on the first; last layers, head and drafter on the last. Rows travel between stages through the
 * host. Usually there is one stage; the most are the CPU's and those of DEVICES_MAX devices. */
#ifndef RATOON_BACKEND_STAGES_H
#define RATOON_BACKEND_STAGES_H

#include "backend/backend.h"

enum { DEVICES_MAX = 8, STAGES_MAX = 1 + DEVICES_MAX };
/* Stage k runs the layers from the end of stage k - 1 up to its own end; the last stage's end is INT32_MAX. Backends
 * are borrowed. */
typedef struct { int32_t n; struct { Backend *be; int32_t end; } at[STAGES_MAX]; } Stages;

static inline Stages stages_one(Backend *be) { return (Stages) { .n = 1, .at = { { be, INT32_MAX } } }; }
static inline Backend *stages_last(const Stages *s) { return s->at[s->n - 1].be; }

static inline int32_t stages_of(const Stages *s, int32_t il)
{
    int32_t k = 0;
    while (il >= s->at[k].end) k++;
    return k;
}

static inline Backend *stages_be(const Stages *s, int32_t il) { return s->at[stages_of(s, il)].be; }

/* Waits for all stages and reports the first failure; none of them keeps a failure afterwards. */
static inline Status stages_sync(const Stages *s, Error *err)
{
    Status first = ST_OK;
    for (int32_t k = 0; k < s->n; k++) {
        Status st = s->at[k].be->sync(s->at[k].be, first == ST_OK ? err : NULL);
        if (first == ST_OK) first = st;
    }
    return first;
}

#endif
