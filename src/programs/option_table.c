#include "programs/option_table.h"

#include <stddef.h>
#include <string.h>

#include "base/ranges.h"
#include "programs/options.h"
#include "programs/suggest.h"
#include "ratoon.h"

enum {
    C_RUN = 1, C_LOGITS = 2, C_TOKENIZE = 4, C_DETOKENIZE = 8, C_INSPECT = 16, C_PLAN = 32, C_VERIFY = 64,
    C_DOCTOR = 128, C_EVAL = 256, C_BENCH = 512, C_QUANTIZE = 1024, C_RENDER = 2048, C_SERVE = 4096, C_CHAT = 8192,
    C_HELP = 16384, C_PULL = 32768, C_MODELS = 65536, C_HEALTH = 131072, C_EXPERTS = 262144,
    C_DRAWS = C_RUN | C_BENCH | C_CHAT | C_EXPERTS,
    C_LEARNS = C_DRAWS | C_SERVE,
    C_ALONE = C_LOGITS | C_EVAL | C_EXPERTS,       /* no drafter helps */
    C_LOADS = C_SERVE | C_CHAT | C_RUN | C_PLAN | C_VERIFY | C_DOCTOR | C_BENCH | C_ALONE,
    C_MODEL = C_LOADS | C_TOKENIZE | C_DETOKENIZE | C_RENDER,
    C_WORKS = 0x7fffffff & ~C_HELP,
};

static const struct { const char *name; uint32_t bit; } command_bits[] = {
    { "run", C_RUN }, { "logits", C_LOGITS }, { "tokenize", C_TOKENIZE }, { "detokenize", C_DETOKENIZE },
    { "inspect", C_INSPECT }, { "plan", C_PLAN },
    { "verify", C_VERIFY }, { "doctor", C_DOCTOR }, { "eval", C_EVAL }, { "bench", C_BENCH },
    { "quantize", C_QUANTIZE },
    { "render", C_RENDER }, { "serve", C_SERVE }, { "chat", C_CHAT }, { "help", C_HELP },
    { "pull", C_PULL }, { "models", C_MODELS }, { "health", C_HEALTH }, { "experts", C_EXPERTS },
};

#define AT(field) offsetof(Options, field)

/* Most rows end with the help text: they have no further names, values or heading. */
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"

const OptionSpec option_table[] = {
    { .heading = "Model" },
    { "--model", "-m", KIND_TEXT, "FILE", AT(model), 0, 0, C_MODEL & ~C_EXPERTS,
      "the target, a GGUF file (without it: the demo pair)" },
    { "--model", "-m", KIND_TEXT, "FILE", AT(model), 0, 0, C_EXPERTS, "a mixture of experts, a GGUF file" },
    { "--hf-repo", "-hf", KIND_TEXT, "REPO", AT(hf_repo), 0, 0, C_MODEL,
      "the target by name, ORG/NAME[:QUANT]: a local model, or else one that is fetched from Hugging Face" },
    { "--offline", NULL, KIND_FLAG, NULL, AT(offline), 0, 0, C_MODEL | C_PULL | C_INSPECT,
      "fetch nothing: only models on this machine are found (HF_HUB_OFFLINE=1 does the same)" },
    { "--yes", "-y", KIND_FLAG, NULL, AT(yes), 0, 0, C_MODELS, "remove without being asked" },
    { "--yes", "-y", KIND_FLAG, NULL, AT(yes), 0, 0, C_PULL, "fetch the published drafter too, without being asked" },
    { "--draft", "-d", KIND_TEXT, "FILE", AT(draft), 0, 0, C_LOADS & ~C_ALONE,
      "the drafter: a GGUF file, a Hugging Face folder, mtp (the target's own MTP layer) or none (default: "
      "one next to the target, else one of the caches, else its MTP layer)", .also = "-md --model-draft" },
    { "--draft", "-d", KIND_TEXT, "FILE", AT(draft), 0, 0, C_LOGITS,
      "write the logits of this drafter instead: [block, vocab], row 0 is the anchor's",
      .also = "-md --model-draft" },

    { .heading = "Text" },
    { "--prompt", "-p", KIND_TEXT, "TEXT", AT(prompt), 0, 0, C_RUN | C_TOKENIZE,
      "the prompt, used verbatim: no chat template (without -p and -f it is read from standard input)" },
    { "--prompt", "-p", KIND_TEXT, "TEXT", AT(prompt), 0, 0, C_CHAT,
      "answer this message and leave (without it: messages from the keyboard, or one from a pipe)" },
    { "--file", "-f", KIND_TEXT, "FILE", AT(file), 0, 0, C_RUN | C_TOKENIZE, "read the text from a file" },
    { "--file", "-f", KIND_TEXT, "FILE", AT(file), 0, 0, C_EVAL, "the text" },
    { "--tokens", NULL, KIND_TEXT, "IDS", AT(tokens), 0, 0, C_RUN, "the prompt as token ids: 1,2,3 or @FILE" },
    { "--tokens", NULL, KIND_TEXT, "IDS", AT(tokens), 0, 0, C_LOGITS,
      "the rows: 1,2,3 or @FILE; with -d one id, the anchor" },
    { "--tokens", NULL, KIND_TEXT, "IDS", AT(tokens), 0, 0, C_DETOKENIZE,
      "ids: 1,2,3 or @FILE (without it: standard input)" },
    { "--prefix", NULL, KIND_TEXT, "IDS", AT(prefix), 0, 0, C_LOGITS,
      "tokens to commit first, whose logits are not written: 7,8,9 or @FILE" },
    { "--parents", NULL, KIND_TEXT, "LIST", AT(parents), 0, 0, C_LOGITS,
      "evaluate the rows as one tree of at most 64: -1,0,0 (default: a chain)" },
    { "--canvas", NULL, KIND_FLAG, NULL, AT(canvas), 0, 0, C_LOGITS,
      "of a model that denoises: the rows are a canvas, as in a block's first step" },
    { "--before", NULL, KIND_TEXT, "IDS", AT(before), 0, 0, C_LOGITS,
      "with --canvas: as in the step after one over this canvas, whose softmax it is conditioned on: 4,5,6 or @FILE" },
    { "--taps", NULL, KIND_TEXT, "LAYERS", AT(taps), 0, 0, C_LOGITS,
      "also write FILE.taps: the output of these layers, float32 [rows, taps * hidden]" },
    { "--chat", NULL, KIND_FLAG, NULL, AT(chat), 0, 0, C_RUN,
      "treat the prompt as a user message and apply the chat template" },
    { "--system", NULL, KIND_TEXT, "TEXT", AT(system), 0, 0, C_RUN, "with --chat: the system message",
      .also = "-sys --system-prompt" },
    { "--system", NULL, KIND_TEXT, "TEXT", AT(system), 0, 0, C_CHAT, "the system message",
      .also = "-sys --system-prompt" },
    { "--think", NULL, KIND_FLAG, NULL, AT(think), 0, 0, C_RUN,
      "with --chat: let the model reason first, if its template offers the choice" },
    { "--think", NULL, KIND_FLAG, NULL, AT(think), 0, 0, C_CHAT,
      "let the model reason before it answers, if its template offers the choice" },
    { "--no-think", NULL, KIND_FLAG, NULL, AT(no_think), 0, 0, C_RUN, "with --chat: answer at once (the default)" },
    { "--no-think", NULL, KIND_FLAG, NULL, AT(no_think), 0, 0, C_CHAT, "answer at once (the default)" },
    { "--template", NULL, KIND_TEXT, "FILE", AT(template_file), 0, 0, C_RENDER,
      "a chat template to use instead of the model's", .also = "--chat-template-file" },
    { "--input", NULL, KIND_TEXT, "CASE.json", AT(input), 0, 0, C_RENDER,
      "the conversation: messages, tools, documents, add_generation_prompt, kwargs, special_tokens" },
    { "--template-now", NULL, KIND_SEED, "SECONDS", AT(template_now), 0, 0, C_RUN | C_RENDER | C_SERVE | C_CHAT,
      "the time that templates see, in seconds since 1970 (default: now)" },
    { "--template-lax", NULL, KIND_FLAG, NULL, AT(template_lax), 0, 0, C_RUN | C_RENDER | C_SERVE | C_CHAT,
      "in templates, an attribute of something undefined is undefined instead of an error" },
    { "--special", NULL, KIND_FLAG, NULL, AT(special), 0, 0, C_RUN | C_TOKENIZE | C_VERIFY | C_BENCH | C_EXPERTS,
      "parse special tokens such as <|im_start|> in the text, and add BOS if the model file asks for it" },
    { "--nfc", NULL, KIND_FLAG, NULL, AT(nfc), 0, 0, C_TOKENIZE,
      "normalise the text to NFC first, as Hugging Face tokenizers of Qwen do" },
    { "--prompts", NULL, KIND_TEXT, "FILE", AT(prompts), 0, 0, C_VERIFY | C_BENCH | C_EXPERTS,
      "JSON lines with \"prompt\"" },
    { "--text", NULL, KIND_TEXT, "FILE", AT(text), 0, 0, C_DOCTOR,
      "the text that the drafter has to guess (default: what the target writes)" },
    { "--n-predict", "-n", KIND_TOKENS, "N", AT(n), 1, 1 << 24, C_RUN | C_CHAT,
      "maximum number of tokens to generate (default: until the context is full)", .also = "--predict",
      .unset = "-1 -2" },
    { "--n-predict", "-n", KIND_TOKENS, "N", AT(n), 1, 1 << 24, C_VERIFY | C_EXPERTS, "tokens per prompt (default 64)",
      .also = "--predict", .unset = "-1 -2" },
    { "--n-predict", "-n", KIND_TOKENS, "N", AT(n), 1, 1 << 24, C_BENCH,
      "tokens to generate (default 128; with --prompt-tokens 32)", .also = "--predict", .unset = "-1 -2" },
    { "--window", NULL, KIND_TOKENS, "N", AT(window), 2, RT_CTX_MAX, C_EVAL,
      "tokens per window, each from an empty context (default: the context)" },
    { "--stop", NULL, KIND_TEXTS, "TEXT", AT(stop), 0, 0, C_RUN | C_CHAT,
      "stop before this text; up to 16 times" },
    { "--ignore-eos", NULL, KIND_FLAG, NULL, AT(ignore_eos), 0, 0, C_DRAWS & ~C_CHAT,
      "continue after the model's end token" },
    { "--grammar", NULL, KIND_TEXT, "FILE", AT(grammar), 0, 0, C_RUN | C_CHAT,
      "hold the text to this grammar (doc/grammar.md): a file, or the grammar itself if it contains ::=",
      .also = "--grammar-file" },
    { "--json-schema", NULL, KIND_TEXT, "FILE", AT(json_schema), 0, 0, C_RUN | C_CHAT,
      "hold the text to JSON that is valid under this schema: a file, or the schema itself if it begins with {",
      .also = "-j -jf --json-schema-file" },
    { "--no-history", NULL, KIND_FLAG, NULL, AT(no_history), 0, 0, C_CHAT,
      "do not keep what is typed (otherwise the last 1000 messages stay in ~/.local/state/ratoon/history)" },

    { .heading = "Sampling" },
    { "--temp", NULL, KIND_REAL, "T", AT(temp), 0, TEMPERATURE_MAX, C_DRAWS | C_SERVE,
      "temperature, 0: greedy (default: the model file's, else 0.7; bench, experts, and run without --chat: 0)",
      .also = "--temperature" },
    { "--temp", NULL, KIND_REAL, "T", AT(temp), 0, TEMPERATURE_MAX, C_LOGITS,
      "with --before: of its softmax (default: what the model file says of a block's first step)",
      .also = "--temperature" },
    { "--top-p", NULL, KIND_REAL, "P", AT(top_p), 0, 1, C_DRAWS | C_SERVE,
      "keep the likeliest tokens whose probabilities add up to P, 0: the first one (default: the model file's, else "
      "0.9; bench, experts, and run without --chat: 1, all)" },
    { "--top-k", NULL, KIND_INT, "K", AT(top_k), 0, INT32_MAX, C_DRAWS | C_SERVE,
      "keep the K likeliest tokens (default: the model file's, else 0: all)" },
    { "--min-p", NULL, KIND_REAL, "M", AT(min_p), 0, MIN_P_MAX, C_DRAWS | C_SERVE,
      "keep tokens at least M times as likely as the likeliest (default: the model file's, else 0)" },
    { "--diffusion", NULL, KIND_TEXT, "LIST", AT(diffusion), 0, 0, C_RUN | C_CHAT | C_SERVE | C_BENCH,
      "for models that denoise, such as steps=24,trim=0.9: steps, stability, confidence, t_max, t_min, entropy_bound, "
      "trim, trim_from, mask (doc/models/diffusion-gemma.md; default: the model file's)" },
    { "--sampler", NULL, KIND_CHOICE, "NAME", AT(sampler), 0, 0, C_RUN | C_CHAT | C_SERVE | C_BENCH,
      "for models that denoise: reference, or lock, an experiment: positions are locked one by one, from a canvas of "
      "mask tokens (default: reference)",
      .values = "reference|lock" },
    { "--rep-penalty", NULL, KIND_REAL, "R", AT(rep_penalty), REPETITION_MIN, REPETITION_MAX, C_DRAWS | C_SERVE,
      "divide the logits of tokens already seen by R (default: the model file's, else 1: off)",
      .also = "--repeat-penalty --repetition-penalty" },
    { "--freq-penalty", NULL, KIND_REAL, "F", AT(freq_penalty), -PENALTY_MAX, PENALTY_MAX, C_DRAWS | C_SERVE,
      "subtract F from a logit for each time its token was seen (default 0)", .also = "--frequency-penalty" },
    { "--presence-penalty", NULL, KIND_REAL, "P", AT(presence_penalty), -PENALTY_MAX, PENALTY_MAX, C_DRAWS | C_SERVE,
      "subtract P from the logits of tokens already seen (default 0)" },
    { "--rep-window", NULL, KIND_INT, "N", AT(rep_window), 1, REP_WINDOW_MAX, C_DRAWS | C_SERVE,
      "number of recent tokens that the penalties consider (default: the model file's, else 256)",
      .also = "--repeat-last-n", .unset = "-1" },
    { "--generation-config", NULL, KIND_TEXT, "FILE", AT(generation_config), 0, 0, C_SERVE | C_CHAT,
      "take what neither an option nor the model file says from a generation_config.json: this file, or (auto) the one "
      "beside the model", .values = "auto" },
    { "--generation-config", NULL, KIND_TEXT, "FILE", AT(generation_config), 0, 0, C_RUN,
      "with --chat: take what neither an option nor the model file says from a generation_config.json: this file, or "
      "(auto) the one beside the model", .values = "auto" },
    { "--seed", "-s", KIND_SEED, "S", AT(seed), 0, 0, C_DRAWS | C_VERIFY,
      "the same seed gives the same text, however it is decoded (default 0; chat and run --chat: one is drawn and "
      "shown)", .unset = "-1" },

    { .heading = "Speculation" },
    { "--budget", NULL, KIND_BUDGET, "auto|N", AT(budget), 1, 63, C_RUN | C_PLAN | C_BENCH | C_SERVE | C_CHAT,
      "draft tokens checked per pass; auto (the default) measures what pays, plain decoding included",
      .values = "auto" },
    { "--budget", NULL, KIND_TEXT, "LIST", AT(budgets), 0, 0, C_VERIFY, "tree budgets to try (default 8,22,60,auto)" },
    { "--tree", NULL, KIND_FLAG, NULL, AT(tree), 0, 0, C_RUN | C_BENCH | C_SERVE | C_CHAT,
      "check a tree of guesses (the default)" },
    { "--chain", NULL, KIND_FLAG, NULL, AT(chain), 0, 0, C_RUN | C_BENCH | C_SERVE | C_CHAT,
      "check only the likeliest guess of every depth" },
    { "--chain", NULL, KIND_FLAG, NULL, AT(chain), 0, 0, C_VERIFY, "only chains, no trees" },
    { "--ngram", NULL, KIND_SWITCH, "on|off", AT(ngram), 0, 0, C_RUN | C_PLAN | C_BENCH | C_VERIFY | C_SERVE | C_CHAT,
      "guess from the text so far; needs no drafter and pays on edits and quotations (default on)",
      .values = "on|off" },
    { "--draft-block", NULL, KIND_INT, "N", AT(draft_block), 2, 33,
      C_RUN | C_PLAN | C_BENCH | C_VERIFY | C_SERVE | C_CHAT,
      "tokens drafted per step, the root included (default: the drafter's training block size)" },
    { "--draft-ctx", NULL, KIND_TOKENS, "N", AT(draft_ctx), 1, RT_CTX_MAX, C_RUN | C_PLAN | C_BENCH | C_SERVE | C_CHAT,
      "positions in the drafter's KV cache, a ring (default: its window, at least 4096)",
      .also = "-cd --ctx-size-draft" },
    { "--draft-type", NULL, KIND_CHOICE, "TYPE", AT(draft_type), 0, 0, C_LOADS & ~C_ALONE,
      "q8_0: quantise drafters above 8 bits at load (default); keep: leave them as they are",
      .values = "q8_0|keep" },
    { "--draft-type", NULL, KIND_CHOICE, "TYPE", AT(draft_type), 0, 0, C_LOGITS,
      "keep: leave drafters as they are (default here); q8_0: quantise those above 8 bits at load",
      .values = "q8_0|keep" },

    { .heading = "Memory and speed" },
    { "--ctx", "-c", KIND_TOKENS, "N", AT(ctx), 1, RT_CTX_MAX, C_LOADS & ~C_SERVE,
      "context in tokens (default: the model's, but at most 8192 and what fits in memory)", .also = "--ctx-size",
      .unset = "-1 0" },
    { "--ctx", "-c", KIND_TOKENS, "N", AT(ctx), 1, RT_CTX_MAX, C_SERVE, "context of each session in tokens (default: "
      "the model's or 131072, or less so that all sessions fit in 80 % of free memory)",
      .also = "--ctx-size --max-ctx", .unset = "-1 0" },
    { "--parallel", NULL, KIND_INT, "N", AT(parallel), 1, 64, C_SERVE,
      "most requests that run at once, each in a session of --ctx tokens (default 4)", .also = "-np" },
    { "--parallel", NULL, KIND_INT, "N", AT(parallel), 1, 64, C_PLAN,
      "plan what serve takes for so many requests at once (default: what run and chat take)", .also = "-np" },
    { "--threads", "-t", KIND_INT, "N", AT(threads), 1, 256, C_LOADS & ~C_VERIFY,
      "worker threads (default: one per core)", .unset = "-1 0" },
    { "--threads", "-t", KIND_INT, "N", AT(threads), 1, 256, C_QUANTIZE, "worker threads (default: one per core)",
      .unset = "-1 0" },
    { "--force", NULL, KIND_FLAG, NULL, AT(force), 0, 0, C_QUANTIZE, "replace OUT.gguf if it exists" },
    { "--threads", "-t", KIND_TEXT, "LIST", AT(thread_list), 0, 0, C_VERIFY, "thread counts to try (default 1,2)" },
    { "--backend", NULL, KIND_TEXT, "LIST", AT(backend), 0, 0, C_VERIFY,
      "backends to try, such as cpu:portable,cpu or cpu,cuda:0+1: the text of the first is compared with that of the "
      "others too (default cpu)" },
    { "--backend", NULL, KIND_TEXT, "NAME", AT(backend), 0, 0, C_LOADS & ~C_VERIFY,
      "auto, cpu, cuda or cuda:N for the N-th NVIDIA card (from 0), cuda:N+M for several, or cpu:LEVEL with portable, "
      "avx2, avxvnni, avx512, amx, neon or i8mm (default auto: the first card that passes a check, with others if the "
      "model does not fit, as far as it does, else cpu)",
      .values = "auto|cpu|cuda|cuda:1|cuda:0+1|cpu:portable|cpu:avx2|cpu:avxvnni|cpu:avx512|cpu:amx|cpu:neon|"
                "cpu:i8mm" },
    { "--gpu-layers", "-ngl", KIND_LAYERS, "auto|all|N", AT(gpu_layers), 0, 1 << 16, C_LOADS,
      "with --backend cuda: how many of the last layers the GPU, or several, run, besides the head and the drafter; "
      "the CPU runs the others, and the text stays the same. auto: as many as fit; 0: none (default: all; without "
      "--backend auto)",
      .also = "--n-gpu-layers", .values = "auto|all" },
    { "--expert-ram", NULL, KIND_MEMORY, "auto|all|SIZE", AT(expert_ram), 0, 0, C_LOADS,
      "of a mixture of experts: memory for its experts, such as 12G, besides --expert-vram; the others are read from "
      "the file when the text needs them, and the text stays the same. auto: all, or as many as free memory has room "
      "for (default: auto)",
      .values = "auto|all" },
    { "--expert-vram", NULL, KIND_MEMORY, "auto|all|SIZE", AT(expert_vram), 0, 0, C_LOADS,
      "with --backend cuda, of a mixture of experts: the GPU's memory for the experts of its layers, such as 8G; it "
      "reads the others in main memory, and the text stays the same. auto: all, or as many as fit; several GPUs hold "
      "all (default: auto)",
      .values = "auto|all" },
    { "--expert-slots", NULL, KIND_INT, "N", AT(expert_slots), 1, 4096, C_LOADS,
      "with --expert-ram or --expert-vram: experts per layer that come and go, while the most used stay (default: an "
      "eighth of those in memory)", .also = "--spark-slots" },
    { "--expert-io", NULL, KIND_CHOICE, "HOW", AT(expert_io), 0, 0, C_LOADS,
      "with --expert-ram: how experts are read: io_uring, pread, or mmap through the page cache (default: auto, the "
      "first of them that works here)", .values = "auto|io_uring|pread|mmap" },
    { "--expert-profile", NULL, KIND_TEXT, "FILE", AT(expert_profile), 0, 0, C_LOADS,
      "with --expert-ram: which experts earlier texts used, so that those are in memory first (default: "
      "MODEL.gguf.spark.csv beside the model, if it is there)" },
    { "--spark", NULL, KIND_FLAG, NULL, AT(spark), 0, 0, C_LEARNS,
      "keep which experts texts use in MODEL.gguf.spark.csv beside the model (or --expert-profile), for the next "
      "start" },
    { "--spark-vram", NULL, KIND_MEMORY, "SIZE", AT(expert_ram), 1 << 30, 0, C_LOADS,
      "the same as --expert-ram, and a number without a unit counts GiB: the CPU keeps experts in main memory" },
    { "--spark-calibrate", NULL, KIND_TEXT, "FILE|DIR", AT(spark_calibrate), 0, 0, C_LEARNS,
      "with a part of the experts in memory: first read these texts (.txt, .md, .jsonl with \"prompt\"; at most 150 "
      "pieces of 2,000 bytes) to learn which experts are used, and keep it as --spark does" },
    { "--cache-type-k", "-ctk", KIND_CHOICE, "TYPE", AT(kv_k), 0, 0, C_LOADS, "type of stored keys: f32, f16, bf16, "
      "q8_0, q5_1, q5_0, q4_1, q4_0 or tq3_0 (default f16; f32 for a file that is f32 throughout)",
      .values = "f32|f16|bf16|q8_0|q5_1|q5_0|q4_1|q4_0|tq3_0" },
    { "--cache-type-v", "-ctv", KIND_CHOICE, "TYPE", AT(kv_v), 0, 0, C_LOADS,
      "type of stored values, from the same list", .values = "f32|f16|bf16|q8_0|q5_1|q5_0|q4_1|q4_0|tq3_0" },
    { "--fa-window", NULL, KIND_TOKENS, "N", AT(fa_window), 0, 1 << 24, C_LOADS,
      "limit the target's full attention to the last N positions; changes the text (default 0: no limit)" },
    { "--chunk", NULL, KIND_INT, "N", AT(chunk), 1, 4096, C_LOADS,
      "prompt tokens per pass (default: 256 on the CPU, 512 on a GPU)",
      .also = "-ub --ubatch-size" },
    { "--weight-type", NULL, KIND_CHOICE, "TYPE", AT(weight_type), 0, 0, C_LOADS,
      "keep: the model's weights are what its file has (default); q8_0: those of 16 bits are quantised at load, for "
      "nearly half the memory and time, which changes the text",
      .values = "keep|q8_0" },
    { "--no-repack", NULL, KIND_FLAG, NULL, AT(no_repack), 0, 0, C_LOADS,
      "read weights from the mapped file instead of copying them, for machines short of memory: slower, same text" },
    { "--overcommit", NULL, KIND_FLAG, NULL, AT(overcommit), 0, 0, C_LOADS,
      "go ahead even if the plan needs more memory than is free, which is otherwise refused" },

    { .heading = "Measurements" },
    { "--passes", NULL, KIND_TEXT, "LIST", AT(passes), 0, 0, C_BENCH, "row counts to time, such as 1,8,16" },
    { "--after", NULL, KIND_TEXT, "LIST", AT(after), 0, 0, C_BENCH,
      "with --passes: numbers of tokens in the context to time them after, in turn, such as 1024,32768 (default 0)" },
    { "--prompt-tokens", NULL, KIND_TEXT, "LIST", AT(prompt_tokens), 0, 0, C_BENCH,
      "time prompts of these numbers of tokens, and plain decoding of -n tokens: 128,512" },
    { "--serve", NULL, KIND_TEXT, "LIST", AT(serve), 0, 0, C_BENCH,
      "time these numbers of streams at once, as the server runs them, with and without speculation: 1,4; prompts "
      "come from --prompts, or are 64 made-up tokens each" },
    { "--roofline", NULL, KIND_FLAG, NULL, AT(roofline), 0, 0, C_BENCH,
      "measure what the machine can do at most, for each number of threads; needs no model" },
    { "--repeats", NULL, KIND_INT, "N", AT(repeats), 1, 10000, C_BENCH,
      "interleaved repeats in each round, of which the fastest counts (default 12; with --compare or "
      "--prompt-tokens 3)" },
    { "--pairs", NULL, KIND_INT, "N", AT(pairs), 1, 1000, C_BENCH,
      "with --prompts: interleaved runs of each variant, of which medians are reported (default 5; with --serve 3); "
      "with --compare: rounds (default 3)" },
    { "--compare", NULL, KIND_TEXT, "COMMAND", AT(compare), 0, 0, C_BENCH, "another program's benchmark of the same "
      "file, run by the shell in turn with ours; only one of them is in memory at a time" },
    { "--compare-rate", NULL, KIND_TEXT, "REGEX", AT(compare_rate), 0, 0, C_BENCH,
      "if COMMAND prints no JSON of llama-bench or llama-batched-bench: an extended regular expression whose first "
      "group is the tokens per second of decoding" },
    { "--compare-limit", NULL, KIND_INT, "S", AT(compare_limit), 1, 86400, C_BENCH,
      "give up a run of COMMAND after this many seconds (default 600)" },
    { "--simulate-acceptance", NULL, KIND_TEXT, "FILE", AT(simulate), 0, 0, C_BENCH,
      "draw the accepted guesses from a profile; results are labelled as simulated" },
    { "--write-profile", NULL, KIND_TEXT, "FILE", AT(write_profile), 0, 0, C_BENCH,
      "write the measured acceptance to a file for --simulate-acceptance", .writes = true },
    { "--hotness", NULL, KIND_TEXT, "FILE", AT(hotness), 0, 0, C_EXPERTS,
      "show the counts of a file that --write-hotness wrote; no prompts, and the model is not loaded" },
    { "--write-hotness", NULL, KIND_TEXT, "FILE", AT(write_hotness), 0, 0, C_EXPERTS,
      "add the counts to those of a file, usually MODEL.gguf.spark.csv, which is made if it does not exist",
      .writes = true },
    { "--modes", NULL, KIND_TEXT, "LIST", AT(modes), 0, 0, C_VERIFY,
      "greedy, t0.7, t1 (temperature 1, top-p .95, penalties); default all, without t1 for a model that denoises",
      .values = "greedy|t0.7|t1" },
    { "--check-tensors", NULL, KIND_FLAG, NULL, AT(check_tensors), 0, 0, C_INSPECT,
      "look for NaN and infinity in every tensor" },

    { .heading = "Server" },
    { "--host", NULL, KIND_TEXT, "ADDRESS", AT(host), 0, 0, C_SERVE,
      "where to listen: an address, a name, or unix:/path (default 127.0.0.1, this machine only)" },
    { "--host", NULL, KIND_TEXT, "ADDRESS", AT(host), 0, 0, C_HEALTH, "where the server listens (default 127.0.0.1)" },
    { "--port", NULL, KIND_INT, "N", AT(port), 0, 65535, C_SERVE, "TCP port, 0: any free one (default 8080)" },
    { "--port", NULL, KIND_INT, "N", AT(port), 0, 65535, C_HEALTH, "the server's TCP port (default 8080)" },
    { "--model-name", NULL, KIND_TEXT, "NAME", AT(model_name), 0, 0, C_SERVE,
      "the model's name in /v1/models and in answers (default: the file's)" },
    { "--alias", NULL, KIND_TEXTS, "NAME", AT(alias), 0, 0, C_SERVE,
      "additional name for the model; up to 16 times", .also = "-a" },
    { "--api-prefix", NULL, KIND_TEXT, "PATH", AT(api_prefix), 0, 0, C_SERVE | C_HEALTH,
      "a path in front of every route, for proxies that do not remove it" },

    { .heading = "Server: who may use it" },
    { "--api-key", NULL, KIND_TEXTS, "KEY", AT(api_key), 0, 0, C_SERVE,
      "require this key; up to 16 times; RATOON_API_KEY does the same (default: no key is required)" },
    { "--api-key-file", NULL, KIND_TEXT, "FILE", AT(api_key_file), 0, 0, C_SERVE,
      "read keys from a file, one per line; # begins a comment" },
    { "--generate-key", NULL, KIND_TEXT, "FILE", AT(generate_key), 0, 0, C_SERVE,
      "where no other key is given, require the one in FILE; if there is no such file, make a key, keep it there and "
      "print it" },
    { "--allow-host", NULL, KIND_TEXTS, "NAME", AT(allow_host), 0, 0, C_SERVE,
      "accept this name in the Host header besides localhost, where no key is required; up to 16 times" },
    { "--cors", NULL, KIND_TEXT, "ORIGINS", AT(cors), 0, 0, C_SERVE,
      "origins allowed by CORS: *, localhost, or a list with commas (default: none)" },
    { "--tls-cert", NULL, KIND_TEXT, "FILE", AT(tls_cert), 0, 0, C_SERVE, "speak TLS with this certificate (PEM)",
      .also = "--ssl-cert-file" },
    { "--tls-cert", NULL, KIND_TEXT, "FILE", AT(tls_cert), 0, 0, C_HEALTH,
      "the server speaks TLS with this certificate (PEM), which is trusted", .also = "--ssl-cert-file" },
    { "--tls-key", NULL, KIND_TEXT, "FILE", AT(tls_key), 0, 0, C_SERVE, "the private key of that certificate (PEM)",
      .also = "--ssl-key-file" },
    { "--public-metrics", NULL, KIND_FLAG, NULL, AT(public_metrics), 0, 0, C_SERVE, "require no key for /metrics" },

    { .heading = "Server: answers" },
    { "--default-max-tokens", NULL, KIND_TOKENS, "N", AT(default_max_tokens), 1, 1 << 24, C_SERVE,
      "most tokens of an answer when the request sets no limit (default 16000; Responses 32768)" },
    { "--max-tokens-limit", NULL, KIND_TOKENS, "N", AT(max_tokens_limit), 1, 1 << 24, C_SERVE,
      "most tokens of any answer (default: up to the context)" },
    { "--max-n", NULL, KIND_INT, "N", AT(max_n), 1, 64, C_SERVE, "largest `n` (choices) of one request (default 4)" },
    { "--reasoning", NULL, KIND_CHOICE, "on|off|auto", AT(reasoning), 0, 0, C_SERVE, "whether a model that can reason "
      "does so when the request does not say; auto: as its template has it (default off)",
      .values = "on|off|auto" },
    { "--reasoning-budget", NULL, KIND_TOKENS, "N", AT(reasoning_budget), 0, 1 << 24, C_SERVE,
      "end the reasoning after this many tokens (default: no limit)" },
    { "--reply-budget", NULL, KIND_TOKENS, "N", AT(reply_budget), 1, 1 << 24, C_SERVE,
      "tokens reserved for the answer when reasoning has a limit (default 4096)" },
    { "--reasoning-budget-message", NULL, KIND_TEXT, "TEXT", AT(reasoning_message), 0, 0, C_SERVE,
      "text put at the end of reasoning that was cut off (default: none)" },
    { "--preserve-thinking", NULL, KIND_CHOICE, "on|off|auto", AT(preserve_thinking), 0, 0, C_SERVE,
      "keep the reasoning of earlier turns in the prompt, if the template offers the choice; auto: when tools are "
      "declared (default auto)", .values = "on|off|auto" },
    { "--tool-format", NULL, KIND_CHOICE, "NAME", AT(tool_format), 0, 0, C_SERVE,
      "how the model writes tool calls (default: recognised from its chat template)",
      .values = "qwen3|hermes|qwen35|laguna|gemma4|llama3|json|none" },
    { "--prefill-assistant", NULL, KIND_FLAG, NULL, AT(prefill_assistant), 0, 0, C_SERVE,
      "continue the last message if it is the assistant's" },
    { "--strict-model", NULL, KIND_FLAG, NULL, AT(strict_model), 0, 0, C_SERVE,
      "answer requests for other names with 404 (otherwise any name is accepted and echoed)" },
    { "--strict-fields", NULL, KIND_FLAG, NULL, AT(strict_fields), 0, 0, C_SERVE,
      "answer fields that have no effect with 400 (otherwise the answer lists them in `ignored`)" },

    { .heading = "Server: limits" },
    { "--queue-size", NULL, KIND_INT, "N", AT(queue_size), 1, 65536, C_SERVE,
      "most requests that wait; further ones get 429 (default 32)" },
    { "--max-body", NULL, KIND_INT, "MIB", AT(max_body), 1, 1024, C_SERVE, "largest request (default 64)" },
    { "--max-connections", NULL, KIND_INT, "N", AT(max_connections), 1, 60000, C_SERVE,
      "most open connections; further ones get 503 (default 256)" },
    { "--write-timeout", NULL, KIND_INT, "S", AT(write_timeout), 1, 86400, C_SERVE,
      "cancel a request when its client has read nothing for this many seconds (default 30)" },
    { "--request-timeout", NULL, KIND_INT, "S", AT(request_timeout), 1, 1 << 24, C_SERVE,
      "most seconds for a request, waiting included (default: no limit)" },
    { "--keepalive", NULL, KIND_INT, "S", AT(keepalive), 1, 3600, C_SERVE,
      "seconds between keep-alive lines in a stream while the prompt is read (default 5)" },
    { "--cancel-on-eof", NULL, KIND_SWITCH, "on|off", AT(cancel_on_eof), 0, 0, C_SERVE,
      "treat a client that has closed its sending side as gone (default on)", .values = "on|off" },
    { "--shutdown-grace", NULL, KIND_INT, "S", AT(shutdown_grace), 0, 86400, C_SERVE,
      "seconds that running requests may still take after SIGTERM or Ctrl-C (default 5)" },

    { .heading = "Server: cache" },
    { "--cache-ram", NULL, KIND_INT, "MIB", AT(cache_ram), 0, 1 << 22, C_SERVE | C_PLAN,
      "memory for the prefix cache (default 8192, at most three quarters of what the model and the sessions leave "
      "free)" },
    { "--cache-dir", NULL, KIND_TEXT, "DIR", AT(cache_dir), 0, 0, C_SERVE,
      "keep the prefix cache on disk too, so that it survives a restart" },
    { "--cache-disk", NULL, KIND_INT, "MIB", AT(cache_disk), 1, 1 << 24, C_SERVE,
      "most disk space for --cache-dir (default 4096)" },
    { "--cache-min-tokens", NULL, KIND_TOKENS, "N", AT(cache_min_tokens), 1, 1 << 24, C_SERVE,
      "do not cache prefixes shorter than this (default 256)" },
    { "--snapshot-interval", NULL, KIND_TOKENS, "N", AT(cache_interval), 64, 1 << 24, C_SERVE,
      "cache the state of a long prompt every N tokens (default 8192)" },
    { "--store-ram", NULL, KIND_INT, "MIB", AT(store_ram), 0, 1 << 20, C_SERVE | C_PLAN,
      "memory for stored responses; the oldest are dropped first (default 256, at most an eighth of what the model and "
      "the sessions leave free; 0: none are stored)" },

    { .heading = "Output" },
    { "--out", "-o", KIND_TEXT, "FILE", AT(out), 0, 0, C_LOGITS,
      "file for the logits: float32 [rows, vocab]", .writes = true },
    { "--json", NULL, KIND_FLAG, NULL, AT(json), 0, 0, C_RUN | C_TOKENIZE | C_INSPECT | C_PLAN | C_EVAL | C_BENCH |
      C_VERIFY | C_DOCTOR | C_RENDER | C_PULL | C_MODELS | C_EXPERTS, "print one JSON object instead of text" },
    { "--csv", NULL, KIND_TEXT, "FILE", AT(csv), 0, 0, C_BENCH,
      "also write comma-separated values, with the command and machine in comments", .writes = true },
    { "--svg", NULL, KIND_TEXT, "FILE", AT(svg), 0, 0, C_BENCH | C_EXPERTS, "also draw the result", .writes = true },
    { "--stats", NULL, KIND_FLAG, NULL, AT(stats), 0, 0, C_RUN, "print statistics of the run on standard error" },
    { "--stats", NULL, KIND_FLAG, NULL, AT(stats), 0, 0, C_CHAT, "print statistics of each answer on standard error" },
    { "--quiet", "-q", KIND_FLAG, NULL, AT(quiet), 0, 0, C_LOADS | C_TOKENIZE | C_DETOKENIZE | C_RENDER |
      C_PULL | C_MODELS,
      "print nothing but errors on standard error" },
    { "--verbose", "-v", KIND_FLAG, NULL, AT(verbose), 0, 0, C_LOADS | C_TOKENIZE | C_DETOKENIZE | C_RENDER,
      "say more about the model, the drafter and where they were found" },

    { .heading = "General" },
    { "--config", NULL, KIND_TEXT, "FILE", AT(config), 0, 0, C_WORKS,
      "read options from FILE (default: $XDG_CONFIG_HOME/ratoon/config, if it exists); the command line wins" },
    { "--man", NULL, KIND_FLAG, NULL, AT(man), 0, 0, C_HELP, "print the manual page, in mdoc" },
    { "--completion", NULL, KIND_CHOICE, "bash|zsh|fish", AT(completion), 0, 0, C_HELP,
      "print the completions for that shell", .values = "bash|zsh|fish" },
};

const int32_t option_table_n = sizeof option_table / sizeof *option_table;

uint32_t command_bit(const char *name)
{
    for (size_t i = 0; i < sizeof command_bits / sizeof *command_bits; i++)
        if (strcmp(command_bits[i].name, name) == 0) return command_bits[i].bit;
    return 0;
}

uint32_t commands_that_work(void) { return C_WORKS; }

bool option_among(const char *names, const char *name, size_t n)
{
    bool is_long = n > 2 && name[1] == '-';
    for (const char *p = names; p && *p; p += strspn(p, " ")) {
        size_t m = strcspn(p, " "), i = 0;
        while (m == n && i < n && (p[i] == name[i] || (is_long && p[i] == '-' && name[i] == '_'))) i++;
        if (m == n && i == n) return true;
        p += m;
    }
    return false;
}

const OptionSpec *option_find(uint32_t owners, const char *name, size_t n)
{
    for (int32_t i = 0; i < option_table_n; i++) {
        const OptionSpec *s = &option_table[i];
        if (!(s->commands & owners)) continue;
        if (option_among(s->name, name, n) || option_among(s->alias, name, n) || option_among(s->also, name, n))
            return s;
    }
    return NULL;
}

const OptionSpec *option_named(uint32_t owners, const char *name)
{
    char dashed[64];
    int n = snprintf(dashed, sizeof dashed, "--%s", name);
    return n < (int) sizeof dashed ? option_find(owners, dashed, (size_t) n) : NULL;
}

bool option_takes_path(const OptionSpec *s)
{
    return s->value && (strstr(s->value, "FILE") || strstr(s->value, "DIR") || strstr(s->value, ".json"));
}

const char *option_suggest(char text[128], uint32_t owners, const char *typed)
{
    Suggestion near = { .typed = typed };
    for (int32_t i = 0; i < option_table_n; i++) {
        const OptionSpec *s = &option_table[i];
        if (!(s->commands & owners)) continue;
        suggest_try(&near, s->name);
        if (s->alias) suggest_try(&near, s->alias);
        suggest_list(&near, s->also, ' ');
    }
    return suggest_words(&near, text);
}
