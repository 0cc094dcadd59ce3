/* commands.c - the table of commands, and the two commands about commands. */
#include <string.h>

#include "base/path.h"
#include "programs/manual.h"
#include "programs/program.h"
#include "programs/suggest.h"

static int cmd_help(int argc, char **argv);
static int cmd_version(int argc, char **argv);

/* Most entries end with the text: only the first of a group has a heading. */
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"

const Command commands[] = {
    { "run", cmd_run, "[MODEL] [PROMPT...]", "Complete a prompt; the text goes to standard output.",
      "Examples:\n"
      "  ratoon run model.gguf 'def fibonacci(n):' -n 80\n"
      "  ratoon run -m qwen3.5-4b.gguf --chat -p 'Why is the sky blue?' --stats\n"
      "  ratoon run -m model.gguf -d none -f notes.txt --stop '\\n\\n' --json\n"
      "  ratoon run -m model.gguf -p 'A person: ' --json-schema person.json\n"
      "\n"
      "The first word is the model if it is a file or folder, ends in .gguf, begins\n"
      "with hf:, hf.co/ or https://huggingface.co/, has the form ORG/NAME[:QUANT], or\n"
      "is the name of a model on this machine, such as qwen3:4b (ratoon models). With\n"
      "-m, behind --, and otherwise, all words are the prompt. Without a model, the\n"
      "demo pair runs.\n"
      "\n"
      "Speculation never changes the text: with or without a drafter, and for any\n"
      "--budget, the same seed gives the same tokens. Ctrl-C ends the text, with\n"
      "exit code 130. Where nothing else is given, plain prompts are decoded greedily;\n"
      "with --chat the model file's settings count, else --temp 0.7 --top-p 0.9.\n", "Generate" },
    { "chat", cmd_chat, "[MODEL] [PROMPT...]", "Chat with a model at the terminal, or answer one message from a pipe.",
      "Examples:\n"
      "  ratoon chat qwen3.5-4b.gguf --temp 0.7 --system 'Answer briefly.'\n"
      "  ratoon chat qwen3.5-4b.gguf 'Why is the sky blue?'      one answer\n"
      "  git diff | ratoon chat -m model.gguf --system 'Review this change.'\n"
      "\n"
      "At the terminal, /help lists the commands, Ctrl-C ends an answer, twice within\n"
      "a second it ends the program (exit code 130), and Ctrl-D leaves. To write a\n"
      "message of several lines, put it between \"\"\" and \"\"\", end lines with \\, press\n"
      "Alt-Enter, or paste it. Answers stay in the history as the tokens that the model\n"
      "wrote, so no turn is read twice. From a pipe, the whole input is one message and\n"
      "commands are plain text.\n" },
    { "serve", cmd_serve, "[MODEL]", "Serve a model over HTTP, with the APIs of OpenAI, Anthropic, llama.cpp and "
      "Ollama, and a web page.",
      "Examples:\n"
      "  ratoon serve                  the demo pair on http://127.0.0.1:8080\n"
      "  ratoon serve -m qwen3.5-4b.gguf --parallel 4 --cache-dir ~/.cache/ratoon\n"
      "  ratoon serve -m model.gguf --host 0.0.0.0 --api-key-file keys.txt \\\n"
      "         --tls-cert cert.pem --tls-key key.pem\n"
      "  curl http://127.0.0.1:8080/v1/chat/completions \\\n"
      "         -d '{\"messages\":[{\"role\":\"user\",\"content\":\"Hello\"}]}'\n"
      "\n"
      "The base URL is http://127.0.0.1:8080/v1 for OpenAI clients (Chat Completions,\n"
      "Completions, Responses) and http://127.0.0.1:8080 for Anthropic clients\n"
      "(Messages); any key will do. doc/serving.md has a working configuration for\n"
      "each client. The port opens at once; until the model is loaded, answers are\n"
      "503. Requests run together and never change each other's text. After SIGTERM\n"
      "or Ctrl-C running requests may finish (--shutdown-grace); a second signal ends\n"
      "them.\n" },
    { "health", cmd_health, "[URL]", "Ask a server whether it is ready. Exit code 0: it is; 1: it is not, and why.",
      "Examples:\n"
      "  ratoon health\n"
      "  ratoon health http://127.0.0.1:9000\n"
      "  ratoon health 9000                               the same\n"
      "  until ratoon health; do sleep 1; done\n"
      "\n"
      "Without URL it is the server of this machine that `serve` would be with the same\n"
      "options, variables and configuration file. No key is needed, and none is sent.\n" },
    { "pull", cmd_pull, "REPO[:QUANT]", "Fetch a model of Hugging Face to this machine, and print its path.",
      "Examples:\n"
      "  ratoon pull unsloth/Qwen3-8B-GGUF:Q4_K_M\n"
      "  ratoon pull unsloth/Qwen3-8B-GGUF@main:Qwen3-8B-Q8_0.gguf\n"
      "  ratoon pull --yes unsloth/Qwen3-8B-GGUF\n"
      "  ratoon chat -hf unsloth/Qwen3-8B-GGUF:Q4_K_M\n"
      "\n"
      "At a terminal the drafter that was published for the model is offered with it;\n"
      "--yes fetches both.\n"
      "\n"
      "Without QUANT it is Q4_K_M, else UD-Q4_K_M, else Q4_0, else the first that there\n"
      "is. Files go to the Hugging Face cache. What breaks off goes on with the same\n"
      "command. HF_HOME, HF_HUB_CACHE, HF_ENDPOINT, HF_TOKEN and HF_HUB_OFFLINE mean\n"
      "what they mean to huggingface_hub (doc/models.md).\n", "Models" },
    { "models", cmd_models, "[rm NAME]", "List the models on this machine, or remove one.",
      "Examples:\n"
      "  ratoon models\n"
      "  ratoon models rm unsloth/Qwen3-8B-GGUF:Q4_K_M\n"
      "\n"
      "Models of the Hugging Face cache, of LM Studio and of Ollama are found; -m takes\n"
      "the names that are listed. Only those of the Hugging Face cache can be removed.\n" },
    { "plan", cmd_plan, "[MODEL]", "Say whether a model fits in memory and how fast it will be.",
      "Examples:\n"
      "  ratoon plan -m model.gguf --ctx 32768\n"
      "  ratoon plan -hf unsloth/Qwen3-8B-GGUF:Q4_K_M     before downloading it\n"
      "  ratoon plan -m model.gguf --parallel 4           as serve would run it\n"
      "\n"
      "Nothing large is loaded; of a model that is not here only the header is read.\n"
      "Exit code 0: it fits; 3: it does not, and what would is listed; 1: an error.\n"
      "Speeds are estimates, from what the machine reads and computes just now and from\n"
      "published accept lengths.\n" },
    { "doctor", cmd_doctor, "[MODEL]", "Load a model and measure: does it run, how fast, does its drafter match?",
      "Examples:\n"
      "  ratoon doctor model.gguf\n"
      "  ratoon doctor -m model.gguf -d draft.gguf --text mine.txt\n"
      "\n"
      "It measures the machine, some passes, and how often the drafter guesses right in\n"
      "texts that the model writes, and ends in a verdict. Exit code 0: it runs; 3: it\n"
      "does not fit in memory; 1: an error, or no card for --backend cuda.\n" },
    { "inspect", cmd_inspect, "FILE", "Show the keys, tensors and types of a GGUF file, safetensors file or "
      "model folder.",
      "Examples:\n"
      "  ratoon inspect model.gguf\n"
      "  ratoon inspect --check-tensors model.gguf\n"
      "  ratoon inspect --json draft/\n"
      "  ratoon inspect hf:unsloth/Qwen3-8B-GGUF:Q4_K_M\n"
      "\n"
      "Of a model by name that is not on this machine only the header is fetched.\n" },
    { "quantize", cmd_quantize, "IN.gguf OUT.gguf TYPE", "Write the same model in fewer bytes.",
      "Example:\n"
      "  ratoon quantize qwen3.5-4b-BF16.gguf qwen3.5-4b-Q4_K_M.gguf Q4_K_M\n"
      "\n"
      "TYPE is one of F32 F16 BF16 Q8_0 Q6_K Q5_1 Q5_K_M Q5_K_S Q5_0 Q4_1 Q4_K_M\n"
      "Q4_K_S Q4_0 IQ4_NL IQ4_XS Q3_K_L Q3_K_M Q3_K_S Q2_K, the largest files first;\n"
      "NVFP4_MOE, MXFP4_MOE: such a type for a mixture's experts, Q8_0 for the rest.\n"
      "Vectors, norms, convolutions and routers stay F32. IN may be any part of a split\n"
      "file, best the F16 or BF16 original: what was lost before does not come back.\n"
      "OUT appears when it is complete.\n" },
    { "verify", cmd_verify, "[MODEL]", "Compare tokens with and without speculation. Exit code 1 if any differ.",
      "Examples:\n"
      "  ratoon verify -m model.gguf -d draft.gguf --prompts prompts.jsonl\n"
      "  ratoon verify --prompts prompts.jsonl -n 32 --budget 22 --modes greedy \\\n"
      "         --threads 2\n"
      "\n"
      "The whole matrix is {greedy, t0.7, t1} x {chain, tree of 8, 22, 60, auto} x\n"
      "{1, 2 threads}, of a model that denoises {greedy, t0.7} x {1, 2 threads}.\n", "Measure and check" },
    { "bench", cmd_bench, "[MODEL]", "Measure passes, prompts, decoding, streams at once, and the machine itself.",
      "Examples:\n"
      "  ratoon bench --roofline\n"
      "  ratoon bench -m model.gguf --passes 1,8,16 --csv passes.csv --svg passes.svg\n"
      "  ratoon bench -m model.gguf --prompt-tokens 512 \\\n"
      "         --compare 'llama-bench -m model.gguf -t 2 -p 512 -n 32 -o json'\n"
      "  ratoon bench -m model.gguf --prompts prompts.jsonl -n 128 --pairs 5\n"
      "  ratoon bench -m model.gguf --serve 1,2,4 --prompts prompts.jsonl\n"
      "  ratoon bench -m big.gguf -d random.gguf --prompts prompts.jsonl \\\n"
      "         --simulate-acceptance profile.json\n"
      "  ratoon bench -m model.gguf --prompt-tokens 64 \\\n"
      "         --compare 'other -m model.gguf' --compare-rate 'speed: *([0-9.]+) t/s'\n"
      "\n"
      "The limit of a pass is the larger of (bytes of the weights / bandwidth) and\n"
      "(operations / int8 peak), both measured between the passes. With --serve, rates\n"
      "count from the first token of the last stream to the first end of a stream, and\n"
      "tokens that arrive together share their time.\n"
      "\n"
      "With --compare, every round loads our model, measures it and frees it, and then\n"
      "runs COMMAND. A first run of COMMAND only warms up. The fastest run of each\n"
      "counts; with --prompts, the median. \"pp N\" of llama-bench is shown beside\n"
      "prompts and passes of N rows, \"tg\" beside decoding, and N parallel sequences of\n"
      "llama-batched-bench beside passes of N rows. The last match of REGEX counts.\n" },
    { "eval", cmd_eval, "[MODEL] FILE", "Compute the perplexity of a text file.",
      "Example:\n"
      "  ratoon eval -m model.gguf --window 2048 text.txt\n" },
    { "experts", cmd_experts, "[MODEL]", "Count which experts of a mixture texts use.",
      "Examples:\n"
      "  ratoon experts -m qwen3.6-35b-a3b.gguf --prompts prompts.jsonl\n"
      "  ratoon experts -m model.gguf --prompts mine.jsonl -n 1 --svg experts.svg\n"
      "  ratoon experts -m model.gguf --prompts mine.jsonl \\\n"
      "         --write-hotness model.gguf.spark.csv           keeps the counts\n"
      "  ratoon experts -m model.gguf --hotness model.gguf.spark.csv    only shows them\n"
      "\n"
      "Each prompt is read and continued. For each layer: experts that were used at\n"
      "all; what share of the calls the most used 3, 12.5 and 25 % took (at least one\n"
      "expert); how many experts 50, 80 and 90 % of the calls need; how many of a row's\n"
      "experts the row before used too; and the four most used ones. With -n 1 only the\n"
      "prompts count. With --hotness, rows are the calls of the layer that has most,\n"
      "divided by the experts that a row uses (doc/experts.md).\n" },
    { "tokenize", cmd_tokenize, "[MODEL] [PROMPT...]", "Print the token ids of a text, separated by commas.",
      "Examples:\n"
      "  ratoon tokenize -m model.gguf -p 'Hello, world'\n"
      "  ratoon tokenize -m model.gguf --special -f prompt.txt --json\n", "Text and tokens" },
    { "detokenize", cmd_detokenize, "[MODEL] [TOKENS]", "Print the text of token ids.",
      "Example:\n"
      "  ratoon detokenize -m model.gguf --tokens 1,2,3\n" },
    { "render", cmd_render, "", "Print the prompt that a chat template makes of a conversation, byte for byte.",
      "Examples:\n"
      "  ratoon render -m model.gguf --input case.json\n"
      "  ratoon render --template chat.jinja --input case.json --json\n"
      "\n"
      "--json adds which bytes came from the conversation and, with -m, the tokens.\n" },
    { "logits", cmd_logits, "", "Write the logits of rows as float32, for comparison with other programs.",
      "Examples:\n"
      "  ratoon logits -m model.gguf --tokens 1,2,3 --out chain.f32\n"
      "  ratoon logits -m model.gguf --prefix 7,8,9 --tokens 1,2,3 --parents -1,0,0 \\\n"
      "         --out tree.f32\n"
      "  ratoon logits -m model.gguf --tokens @ids.txt --taps 1,4 --out x.f32\n"
      "  ratoon logits -m model.gguf -d draft.gguf --prefix 7,8 --tokens 1 --out d.f32\n"
      "  ratoon logits -m diffusion.gguf --canvas --prefix 7,8 --tokens @canvas.txt \\\n"
      "         --before @noise.txt --out c.f32\n"
      "\n"
      "The first and second write [3, vocab], the third also x.f32.taps, the fourth\n"
      "[block, vocab], the last [canvas, vocab].\n" },
    { "help", cmd_help, "[COMMAND]", "Explain a command; write the manual page and shell completions.",
      "Examples:\n"
      "  ratoon help --man | man -l -\n"
      "  ratoon help --completion bash \\\n"
      "         > ~/.local/share/bash-completion/completions/ratoon\n", "About" },
    { "version", cmd_version, "", "Print the version.", "" },
    { 0 },
};

const Command *command_find(const char *name)
{
    for (const Command *c = commands; c->name; c++)
        if (strcmp(c->name, name) == 0) return c;
    return NULL;
}

/* What other programs call a command of ours; NULL: none of these. */
static const char *command_elsewhere(const char *name)
{
    static const char *const pairs[][2] = { { "list", "models" }, { "ls", "models" }, { "ps", "models" },
                                            { "rm", "models rm" }, { "show", "inspect" } };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        if (strcmp(pairs[i][0], name) == 0) return pairs[i][1];
    return NULL;
}

int command_unknown(const char *by, const char *name)
{
    char hint[128];
    Suggestion near = { .typed = name };
    const char *meant = command_elsewhere(name);
    for (const Command *c = commands; c->name; c++) suggest_try(&near, c->name);
    suggest_words(&near, hint);
    if (meant) snprintf(hint, sizeof hint, "; did you mean ratoon %s?", meant);
    else if (!near.best && (*name == '-' || strchr(name, '/') || has_suffix(name, ".gguf")))
        snprintf(hint, sizeof hint, "; a command comes first, as in ratoon run %.40s ...", name);
    log_line("%s: unknown command '%s'%s (see ratoon help)", by, name, hint);
    return EXIT_USAGE;
}

static int cmd_help(int argc, char **argv)
{
    Options o;
    int status;
    if (!options_read(&o, argc, argv, &status)) return status;
    if ((o.man || o.completion) && (o.n_words > 0 || (o.man && o.completion))) {
        fputs("ratoon help: --man and --completion stand alone\n", stderr);
        return EXIT_USAGE;
    }
    if (o.man) {
        manual_write(stdout);
        return output_done(&o);
    }
    if (o.completion) {
        completion_write(stdout, o.completion);
        return output_done(&o);
    }
    if (o.n_words == 0) {
        commands_help(stdout);
        return output_done(&o);
    }
    const Command *c = command_find(o.word[0]);
    if (!c) return command_unknown("ratoon help", o.word[0]);
    options_help(stdout, c);
    return output_done(&o);
}

static int cmd_version(int argc, char **argv)
{
    Options o;
    int status;
    if (!options_read(&o, argc, argv, &status)) return status;
    printf("ratoon %s\n", rt_version());
    return output_done(&o);
}
