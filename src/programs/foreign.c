#include "programs/foreign.h"

#include <string.h>

#include "programs/option_table.h"

const Foreign foreign_options[] = {
    { "-ngld --gpu-layers-draft", ONE_VALUE, false, "the drafter runs where the last layers run; not needed" },
    { "-dev --device -mg --main-gpu", ONE_VALUE, false, "--backend cuda:N chooses a GPU; ignored" },
    { "-sm --split-mode -ts --tensor-split", ONE_VALUE, false, "one GPU is used; ignored" },
    { "-nkvo --no-kv-offload", NO_VALUE, false, "keys and values are where their layer runs; ignored" },
    { "-fa --flash-attn", SWITCH_VALUE, false, "attention is always computed this way; not needed" },
    { "--mlock", NO_VALUE, false, "memory is not locked; ignored" },
    { "--mmap --no-mmap", NO_VALUE, false, "weights are packed into memory anyway (--no-repack: read where the file is "
      "mapped); ignored" },
    { "-b --batch-size", ONE_VALUE, false, "--chunk sets the prompt tokens of a pass; ignored" },
    { "--jinja", NO_VALUE, false, "the model's chat template is always used; not needed" },
    { "--no-warmup", NO_VALUE, false, "there is no warm-up; not needed" },
    { "--no-display-prompt", NO_VALUE, false, "the prompt is never shown; not needed" },
    { "-no-cnv --no-conversation", NO_VALUE, false, "only `ratoon chat` is a conversation; not needed" },
    { "-i --interactive -cnv --conversation", NO_VALUE, true, "for a conversation use `ratoon chat`" },
    { 0 },
};

const Foreign *foreign_find(const char *name, size_t n)
{
    for (const Foreign *f = foreign_options; f->names; f++)
        if (option_among(f->names, name, n)) return f;
    return NULL;
}

bool foreign_takes(const Foreign *f, const char *next)
{
    if (!next || f->value == NO_VALUE) return false;
    return f->value == ONE_VALUE || strcmp(next, "on") == 0 || strcmp(next, "off") == 0 || strcmp(next, "auto") == 0;
}
