/* engine.h - what stands behind the handles of ratoon.h. */
#ifndef RATOON_ENGINE_ENGINE_H
#define RATOON_ENGINE_ENGINE_H

#include "decode/image.h"
#include "decode/look.h"
#include "decode/spec.h"
#include "format/gguf.h"
#include "format/safetensors.h"
#include "model/model.h"
#include "ratoon.h"
#include "text/tokenizer.h"

struct rt_engine {
    Backend     *be, *real;                        /* real: what a counting be stands for, else NULL */
    rt_hooks     hooks;
    Gguf        *model_file, *draft_gguf;
    Safetensors *draft_folder;
    Model       *model, *draft;
    Tokenizer   *tokenizer, *draft_tokenizer;      /* NULL: the file carries none */
    char         identity[IMAGE_IDENTITY];         /* what images of its sessions are valid under; empty while it only counts */
};

struct rt_session { rt_engine *g; Session s; char error[ERROR_TEXT]; };

struct rt_step {
    rt_engine    *g;
    Spec          spec;
    ModelDrafter  drafter;
    Profile       profile;
    EdgeCount     count;
    Hooks         hooks;
    Error         error;
};

/* The engine on a given backend, which it then owns (plan.c opens one on null). */
Status engine_open(rt_engine **out, Backend *be, Backend *real, const rt_options *o, Error *err);
Status engine_backend(Backend **out, const rt_options *o, Error *err);
/* Fills in identity, when all files are open. */
Status engine_identity(rt_engine *g, int32_t window, Error *err);
Status engine_session(rt_session **out, rt_engine *g, const rt_session_options *o, Error *err);
/* Keys and values of one token. */
uint64_t engine_kv_bytes(const Model *m);
/* scratch 0: a step that only measures. */
Status engine_step(rt_step **out, rt_engine *g, const rt_step_options *o, size_t scratch, Error *err);
/* Scratch that the largest passes of such a step need, found on a counting copy of the engine. */
Status engine_scratch(size_t *out, rt_engine *g, const rt_step_options *o, Error *err);

#endif
