#include "programs/foreign.h"

#include <string.h>

#include "programs/option_table.h"

/* Most rows end with the word: they hold for every command. */
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"

const Foreign foreign_options[] = {
    { "-ngld --gpu-layers-draft", ONE_VALUE, "the drafter runs where the last layers run; not needed" },
    { "-dev --device -mg --main-gpu", ONE_VALUE, "--backend cuda:N or cuda:N+M chooses GPUs; ignored" },
    { "-sm --split-mode -ts --tensor-split", ONE_VALUE, "--backend cuda:N+M divides the layers by "
      "the GPUs' free memory; ignored" },
    { "-nkvo --no-kv-offload", NO_VALUE, "keys and values are where their layer runs; ignored" },
    { "-ncmoe --n-cpu-moe -ot --override-tensor", ONE_VALUE, "a GPU holds as many experts as fit, or as --expert-vram "
      "says; ignored" },
    { "-cmoe --cpu-moe", NO_VALUE, "a GPU holds as many experts as fit, or as --expert-vram says; ignored" },
    { "-fa --flash-attn", SWITCH_VALUE, "attention is always computed this way; not needed" },
    { "--swa-full", NO_VALUE, "windowed layers keep what is needed to go back; not needed" },
    { "-kvu --kv-unified", NO_VALUE, "each session has keys and values of its own; ignored" },
    { "--mlock", NO_VALUE, "memory is not locked; ignored" },
    { "--mmap --no-mmap", NO_VALUE, "weights are packed into memory anyway (--no-repack: read where the file is "
      "mapped); ignored" },
    { "-b --batch-size", ONE_VALUE, "--chunk sets the prompt tokens of a pass; ignored" },
    { "-tb --threads-batch", ONE_VALUE, "--threads counts for prompts too; ignored" },
    { "--prio --poll --numa", ONE_VALUE, "threads are left to the system; ignored" },
    { "--draft-max --draft-n --draft-min --draft-p-min", ONE_VALUE, "--budget says how many guesses a pass checks; "
      "ignored" },
    { "--jinja", NO_VALUE, "the model's chat template is always used; not needed" },
    { "--chat-template-kwargs", ONE_VALUE, "whether a model reasons is set with --reasoning on|off of serve, and with "
      "--think of chat and run --chat", "" },
    { "--reasoning-format", ONE_VALUE, "reasoning is always told apart from the answer; ignored" },
    { "-e --escape --no-escape", NO_VALUE, "texts are taken as they are, without escapes; ignored" },
    { "--no-context-shift", NO_VALUE, "nothing is dropped from a context that is full; not needed" },
    { "--no-mmproj", NO_VALUE, "models read text alone; not needed" },
    { "--no-warmup", NO_VALUE, "there is no warm-up; not needed" },
    { "--no-display-prompt", NO_VALUE, "the prompt is never shown; not needed" },
    { "--color", SWITCH_VALUE, "colours are for terminals alone; ignored" },
    { "--perf --no-perf", NO_VALUE, "--stats of run and chat shows times; ignored" },
    { "--log-disable", NO_VALUE, "--quiet prints nothing but errors; ignored" },
    { "-no-cnv --no-conversation", NO_VALUE, "only `ratoon chat` is a conversation; not needed" },
    { "-i --interactive -cnv --conversation", NO_VALUE, "for a conversation use `ratoon chat`", "chat" },
    { "-cb --cont-batching", NO_VALUE, "requests always run together; not needed" },
    { "--metrics --slots --props", NO_VALUE, "serve always has this endpoint; not needed" },
    { "--no-webui", NO_VALUE, "serve always has its page; ignored" },
    { "-to --timeout", ONE_VALUE, "serve has --write-timeout and --request-timeout; ignored" },
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
    return f->value == ONE_VALUE || option_among("on off auto 1 0 true false", next, strlen(next));
}
