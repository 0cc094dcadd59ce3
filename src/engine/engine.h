/* engine.h - the objects behind the handles of ratoon.h. Option structs passed to functions here are in this library's
 * version (sized.h), whatever their size field says. */
#ifndef RATOON_ENGINE_ENGINE_H
#define RATOON_ENGINE_ENGINE_H

#include <pthread.h>
#include <stdatomic.h>

#include "decode/diffuse.h"
#include "decode/image.h"
#include "decode/inspect.h"
#include "decode/spec.h"
#include "format/gguf.h"
#include "format/hotness.h"
#include "format/safetensors.h"
#include "model/model.h"
#include "ratoon_chat.h"
#include "ratoon_lab.h"
#include "text/grammar/grammar_mask.h"
#include "text/tokenizer/tokenizer.h"

/* SAMPLES: runs with a layer of each kind, without a tokenizer. PLANS: on backends that only count. SIZES: the same,
 * without what takes no backend's memory: tokenizers. */
typedef enum { ENGINE_RUNS, ENGINE_SAMPLES, ENGINE_PLANS, ENGINE_SIZES } EngineUse;

/* Bytes in main memory and in the memories of the devices, the first of which is IN_DEVICE. */
enum { IN_MAIN, IN_DEVICE, MEMORIES = IN_DEVICE + DEVICES_MAX };
typedef struct { uint64_t in[MEMORIES]; } Amount;
static inline int32_t memory_of(const Backend *b) { return b->shares ? IN_MAIN : b->device; }

static inline bool engine_counts(EngineUse use) { return use >= ENGINE_PLANS; }

struct rt_engine {
    Stages       have, on;                    /* its backends, closed with it: one, or the CPU's and devices; those of
                                               * them that run layers */
    EngineUse    use;
    bool         overcommit;                  /* allocate even if there is too little memory */
    pthread_mutex_t lock;                     /* held by calls that use the backends themselves: creating and freeing
                                               * sessions and steps, loading images */
    rt_hooks     hooks;
    Gguf        *model_file, *draft_gguf;
    Safetensors *draft_folder;
    Model       *model, *draft;
    Tokenizer   *tokenizer;                        /* NULL: the file has none */
    uint64_t     draft_hash;                       /* of the tokenizer in the drafter's file */
    bool         draft_has_tokenizer;
    uint64_t    *expert_counts;               /* what rt_experts_save has saved so far; NULL: nothing */
    TokenTrie   *trie;                        /* the vocabulary's, for constraints; NULL: not needed so far */
    char         identity[IMAGE_IDENTITY];    /* identity under which its sessions' images are valid; empty unless it
                                               * runs */
};

struct rt_session {
    rt_engine    *g;
    Session       s;
    GrammarMasks *masks;                           /* of its constraint; NULL: none */
    GrammarText  *form;                            /* the text since the constraint was set, or since the prompt */
    rt_grammar   *grammar;                         /* shared with its owner */
    const void   *form_of;                         /* the reply that set the constraint; NULL: rt_constrain did */
    char          error[ERROR_TEXT];
};

struct rt_step {
    rt_engine    *g;
    Spec          spec;
    ModelDrafter  drafter;
    Profile       profile;                         /* of rt_simulate */
    EdgeCount     count;
    rt_hooks      told;                            /* the caller's */
    Hooks         hooks;                           /* ours, which call them */
    atomic_bool   cancelled;                       /* rt_step_cancel was called and has not ended a pass yet */
    Error         error;
};

/* Write the outcome of a call where its caller finds it; both return the code. */
rt_status engine_report(rt_error *e, Status code, const Error *err);
rt_status session_failed(rt_session *s, Status code, const char *text);
/* What ends a text may have changed; an end that still holds is found again. */
void session_goes_on(rt_session *s);
/* What a session of a model that denoises cannot do, since its positions do not follow one another. */
rt_status refuse_denoising(rt_session *s, const char *what);

/* To be freed as often as it is shared; NULL stays NULL. */
rt_grammar *grammar_share(const rt_grammar *shared);
/* The constraint of a session (constrain.c); none of these does anything if there is none. */
void form_drop(rt_session *s);
void form_restart(rt_session *s);            /* the session has a new prompt */
void form_shorten(rt_session *s, int32_t by);
/* After a step: appends the block's tokens. The block, and the session's text, end where nothing can follow. */
void form_follow(rt_session *s, rt_block *b);
const char *form_trouble(const rt_session *s);       /* why no token was allowed, or NULL */

/* Opens the backend that the options name, or the devices, and in front of devices the CPU's. All layers are on the
 * last then. */
Status engine_backends(Stages *out, const rt_options *o, Error *err);
void   backends_close(Stages *s);
/* Opens counting backends that stand for these; ends are the same. */
Status backends_count(Stages *out, const Stages *like, Error *err);
/* Opens the engine on given backends, which it then owns, even if that fails. Each runs the layers up to its end, and
 * the last what is left. */
Status engine_open(rt_engine **out, Stages have, EngineUse use, const rt_options *o, Error *err);
/* Decides which layers run where, if there are devices (the ends in *have): on the CPU as gpu_layers says, or as few as
 * leave room on the devices for so many sessions and a step, NULL: the defaults; on each of several devices as many as
 * make it as full as the others; and how much of a device's memory experts may take, if that is RT_EXPERTS_AUTO. */
Status engine_place(Stages *have, rt_options *o, const rt_session_options *so, const rt_step_options *sto,
                    Error *err);
/* Decides how much main memory experts may take, if that is RT_EXPERTS_AUTO. */
Status engine_experts(rt_options *o, const Stages *have, const rt_session_options *so, const rt_step_options *sto,
                      Error *err);
/* Refuses what a device, or main memory for its experts, has no room for, even with the smallest session, before
 * anything is loaded. */
Status engine_check_device(const Stages *have, const rt_options *o, Error *err);
/* On counting backends: assigns further allocations to this owner. */
void   engine_owner(const rt_engine *g, const char *owner);
/* What has been counted on these backends; what is free where they run, 0: unknown. */
Amount  engine_counted(const Stages *s);
Amount  engine_free(const Stages *have);
/* What is in main memory besides: a session's look-up, its text and what goes with it, a step's trees likewise. */
size_t  engine_index_bytes(const rt_session *s);
size_t  engine_text_bytes(const rt_session *s);
size_t  engine_tree_bytes(const rt_step *st);
/* The most tokens of a session whose keys and values have room in a memory, as it is when the counted bytes have been
 * taken. */
int32_t engine_room(const rt_engine *g, int32_t memory);
/* The same of all devices' memories: the fewest. */
int32_t engine_device_room(const rt_engine *g);
/* The context of a session that asks for none, as far as main memory has room. */
int32_t engine_usual_ctx(const rt_engine *g);
/* Fills in identity once all files are open. */
Status engine_identity(rt_engine *g, int32_t window, Error *err);
Status engine_session(rt_session **out, rt_engine *g, const rt_session_options *o, Error *err);
/* The weights that a pass of one row reads and multiplies: all but an embedding that is not also the head, of which it
 * reads single rows; of a drafter with the head that the target lends it; of a mixture's experts, those of one row. */
typedef struct { uint64_t bytes, parameters; } PassWork;
PassWork engine_pass_work(const Model *m);
/* A value of the model file's general.sampling.* ("temp"). Returns false if the file has none that can be used. */
bool   engine_recommended(float *out, const rt_engine *g, const char *name);
/* Logs a warning for each of them that cannot be used. */
void   engine_recommended_check(const rt_engine *g);
/* Bytes of one token's keys and values; type: as if both were stored so (T_COUNT: as they are), 0: they cannot be. */
uint64_t engine_kv_bytes(const Model *m, Type type);
/* Prompt tokens per pass, unless a step says otherwise. */
static inline int32_t engine_chunk(const rt_engine *g)
{
    const StoreNeeds *s = &g->model->store, *d = &g->model->device_store;
    int32_t chunk = stages_last(&g->on)->chunk;
    if (s->bytes && s->chunk > chunk) chunk = s->chunk;
    return d->bytes && d->chunk > chunk ? d->chunk : chunk;
}
/* Bytes of a model's delta matrices. */
uint64_t engine_state_bytes(const Model *m);
/* Creates a step with the scratch that it needs, if there is memory for it. */
Status engine_step_new(rt_step **out, rt_engine *g, const rt_step_options *o, Error *err);
/* scratch 0: a step that only measures. */
Status engine_step(rt_step **out, rt_engine *g, const rt_step_options *o, size_t scratch, Error *err);
/* Scratch that the largest passes of such a step need, measured on a counting copy of the engine; bytes: total memory
 * of the step, NULL: not wanted. */
Status engine_scratch(size_t *scratch, Amount *bytes, rt_engine *g, const rt_step_options *o, Error *err);
/* See rt_card_check. */
Status engine_card_check(const rt_options *o, Error *err);
/* See rt_plan; needs is not NULL. */
Status engine_plan(const rt_options *o, const rt_session_options *so, const rt_step_options *sto,
                   void (*part)(void *ud, const char *owner, const char *name, size_t bytes), void *ud, rt_needs *needs,
                   Error *err);

#endif
