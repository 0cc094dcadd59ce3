/* commands.c - the register of commands, and the two that speak about the others. */
#include <string.h>

#include "programs/manual.h"
#include "programs/program.h"

static int cmd_help(int argc, char **argv);
static int cmd_version(int argc, char **argv);

const Command commands[] = {
    { "run", cmd_run, "", "Continues a text. The text goes to standard output as it is made; everything else goes to standard error.",
      "Examples:\n"
      "  ratoon run -p 'def fibonacci(n):' -n 80\n"
      "  ratoon run -m qwen3.5-4b.gguf -d dflash-qwen3.5-4b.gguf --chat -p 'Why is the sky blue?' --temp 0.7 --stats\n"
      "  ratoon run -m model.gguf -d none -f notes.txt --stop '\\n\\n' --json\n"
      "  ratoon run -m model.gguf -p 'A person: ' --json-schema '{\"properties\":{\"name\":{\"type\":\"string\"},\"age\":{\"type\":\"integer\"}}}'\n"
      "Speculation never changes the text: with a drafter or without, for any --budget, the same seed gives the same tokens.\n"
      "Ctrl-C once ends the text (exit code 0), twice ends the program (130).\n" },
    { "chat", cmd_chat, "", "Talks with a model, at the terminal or with one message from a pipe.",
      "Examples:\n"
      "  ratoon chat -m qwen3.5-4b.gguf --temp 0.7 --system 'Answer briefly.'\n"
      "  git diff | ratoon chat -m model.gguf --system 'Review this change.'\n"
      "At the terminal /help lists the commands, Ctrl-C ends an answer (twice: the program, exit code 130), Ctrl-D leaves. Several lines make\n"
      "one message between \"\"\" and \"\"\", with \\ at a line's end, with Alt-Enter, or pasted. An answer stays in the history as the tokens\n"
      "that the model wrote, so that no turn is read twice. From a pipe all of the input is one message, and commands are text.\n" },
    { "serve", cmd_serve, "", "Answers the HTTP interfaces of OpenAI (Chat, Completions, Responses) and Anthropic (Messages) with a local model.",
      "Examples:\n"
      "  ratoon serve                                                      the demo pair on http://127.0.0.1:8080\n"
      "  ratoon serve -m qwen3.5-4b.gguf -d dflash-qwen3.5-4b.gguf --parallel 4 --cache-dir ~/.cache/ratoon\n"
      "  ratoon serve -m model.gguf --host 0.0.0.0 --api-key-file keys.txt --tls-cert cert.pem --tls-key key.pem\n"
      "  curl http://127.0.0.1:8080/v1/chat/completions -d '{\"messages\":[{\"role\":\"user\",\"content\":\"Hello\"}]}'\n"
      "Clients take http://127.0.0.1:8080/v1 as OpenAI's base URL and http://127.0.0.1:8080 as Anthropic's, with any key; doc/serving.md has\n"
      "a working configuration for each. The port opens at once; until the model is loaded answers are 503. Requests run together, and what\n"
      "one of them says never depends on the others. SIGTERM or Ctrl-C lets running requests end (--shutdown-grace), a second one does not.\n" },
    { "tokenize", cmd_tokenize, "", "Prints the token ids of a text, one line of numbers between commas.",
      "Examples:\n  ratoon tokenize -m model.gguf -p 'Hello, world'\n  ratoon tokenize -m model.gguf --special -f prompt.txt --json\n" },
    { "detokenize", cmd_detokenize, "", "Prints the text of token ids.", "Example:\n  ratoon detokenize -m model.gguf --tokens 1,2,3\n" },
    { "render", cmd_render, "", "Prints the prompt that a chat template gives for a conversation, exactly as it is.",
      "Examples:\n  ratoon render -m model.gguf --input case.json\n  ratoon render --template chat.jinja --input case.json --json\n"
      "--json adds which bytes came from the conversation, and with -m the tokens.\n" },
    { "logits", cmd_logits, "", "Writes the logits of rows as float32, for comparison with other programs.",
      "Examples:\n"
      "  ratoon logits -m model.gguf --tokens 1,2,3 --out chain.f32                            [3, vocab]\n"
      "  ratoon logits -m model.gguf --prefix 7,8,9 --tokens 1,2,3 --parents -1,0,0 --out tree.f32\n"
      "  ratoon logits -m model.gguf --tokens @ids.txt --taps 1,4 --out x.f32                  also x.f32.taps\n"
      "  ratoon logits -m model.gguf -d draft.gguf --prefix 7,8,9 --tokens 1 --out block.f32   [block, vocab]\n" },
    { "plan", cmd_plan, "", "Lists every part of the memory that a run takes, before anything large is loaded.",
      "Example:\n  ratoon plan -m model.gguf -d draft.gguf --ctx 32768\n" },
    { "inspect", cmd_inspect, "FILE", "Shows what a GGUF file, a safetensors file or a Hugging Face folder holds: keys, tensors, types.",
      "Examples:\n  ratoon inspect model.gguf\n  ratoon inspect --check-tensors model.gguf\n  ratoon inspect --json draft/\n" },
    { "verify", cmd_verify, "", "Decodes prompts with and without speculation and compares the tokens. Exit code 1 if any differs.",
      "Examples:\n"
      "  ratoon verify -m model.gguf -d draft.gguf --prompts prompts.jsonl\n"
      "  ratoon verify --prompts prompts.jsonl -n 32 --budget 22 --modes greedy --threads 2\n"
      "The whole matrix is {greedy, t0.7, t1} x {chain, tree of 8, 22, 60, auto} x {1, 2 threads}.\n" },
    { "doctor", cmd_doctor, "", "Says whether a drafter fits a target: shapes, tap layers, tokenizers, and how well it guesses 64 tokens.",
      "Example:\n  ratoon doctor -m model.gguf -d draft.gguf\n" },
    { "eval", cmd_eval, "FILE", "Perplexity of a text file.", "Example:\n  ratoon eval -m model.gguf --window 2048 text.txt\n" },
    { "bench", cmd_bench, "", "Measures: passes (--passes), prompt and decoding rates (--prompt-tokens), decoding with and without speculation (--prompts), streams at once (--serve), the machine (--roofline).",
      "Examples:\n"
      "  ratoon bench --roofline\n"
      "  ratoon bench -m model.gguf --passes 1,8,16 --csv passes.csv --svg passes.svg\n"
      "  ratoon bench -m model.gguf --prompt-tokens 512 --compare 'llama-bench -m model.gguf -t 2 -p 512 -n 32 -o json'\n"
      "  ratoon bench -m model.gguf -d draft.gguf --prompts prompts.jsonl -n 128 --pairs 5\n"
      "  ratoon bench -m model.gguf --serve 1,2,4 --prompts prompts.jsonl\n"
      "  ratoon bench -m big.gguf -d random-draft.gguf --prompts prompts.jsonl --simulate-acceptance profile.json\n"
      "  ratoon bench -m model.gguf --prompt-tokens 64 --compare 'other -m model.gguf' --compare-rate 'speed: *([0-9.]+) t/s'\n"
      "Shares are of max(bytes of the weights / bandwidth, operations / int8 peak), both measured between the passes.\n"
      "With --serve rates count from the last stream's first token to the first stream's last; between tokens: pieces share their time.\n"
      "With --compare every round loads our model, measures, releases it all, then runs COMMAND; a first run of COMMAND warms up and does\n"
      "not count. Of both the fastest counts (with --prompts the median). \"pp N\" of llama-bench stands beside prompts and passes of N\n"
      "rows, \"tg\" beside decoding, N parallel sequences of llama-batched-bench beside passes of N rows. The last match of REGEX counts.\n" },
    { "quantize", cmd_quantize, "IN.gguf OUT.gguf TYPE", "Writes the same model in fewer bytes.",
      "TYPE is one of F32 F16 BF16 Q8_0 Q6_K Q5_K_M Q4_K_M Q4_0. Vectors, norms, convolutions and routers stay F32.\n"
      "IN may be any part of a split file; OUT appears when it is complete.\n"
      "Example:\n  ratoon quantize qwen3.5-4b-BF16.gguf qwen3.5-4b-Q4_K_M.gguf Q4_K_M\n" },
    { "help", cmd_help, "[COMMAND]", "Explains a command; writes the manual page and the completions of shells.",
      "Examples:\n  ratoon help --man | man -l -\n  ratoon help --completion bash > ~/.local/share/bash-completion/completions/ratoon\n" },
    { "version", cmd_version, "", "Prints the version.", "" },
    { 0 },
};

const Command *command_find(const char *name)
{
    for (const Command *c = commands; c->name; c++)
        if (strcmp(c->name, name) == 0) return c;
    return NULL;
}

void commands_list(FILE *f)
{
    fputs("Usage: ratoon COMMAND [options]\n\n"
          "Runs language models on this machine, several tokens per pass, with exactly the text of ordinary decoding.\n\n", f);
    for (const Command *c = commands; c->name; c++) fprintf(f, "  %-12s%s\n", c->name, c->summary);
    fputs("\nStart with:   ratoon run -p 'def hello(name):'\nThe rest:     ratoon help COMMAND, or the manual: ratoon help --man | man -l -\n", f);
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
        if (completion_write(stdout, o.completion)) return output_done(&o);
        fprintf(stderr, "ratoon help: --completion is '%s', expected bash, zsh or fish\n", o.completion);
        return EXIT_USAGE;
    }
    if (o.n_words == 0) {
        commands_list(stdout);
        return output_done(&o);
    }
    const Command *c = command_find(o.word[0]);
    if (!c) {
        fprintf(stderr, "ratoon help: unknown command '%s' (see ratoon help)\n", o.word[0]);
        return EXIT_USAGE;
    }
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
