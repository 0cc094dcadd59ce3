#include "programs/options.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "programs/config.h"

typedef enum { KIND_FLAG, KIND_TEXT, KIND_TEXTS, KIND_INT, KIND_SEED, KIND_REAL, KIND_BUDGET, KIND_SWITCH } Kind;

enum {
    C_RUN = 1, C_LOGITS = 2, C_TOKENIZE = 4, C_DETOKENIZE = 8, C_INSPECT = 16, C_PLAN = 32, C_VERIFY = 64, C_DOCTOR = 128, C_EVAL = 256,
    C_BENCH = 512, C_QUANTIZE = 1024, C_RENDER = 2048, C_SERVE = 4096, C_CHAT = 8192, C_HELP = 16384,
    C_DRAWS = C_RUN | C_BENCH | C_CHAT,
    C_LOADS = C_SERVE | C_CHAT | C_RUN | C_LOGITS | C_PLAN | C_VERIFY | C_DOCTOR | C_EVAL | C_BENCH,
    C_MODEL = C_LOADS | C_TOKENIZE | C_DETOKENIZE | C_RENDER,
    C_WORKS = 0x7fffffff & ~C_HELP,
};

static const struct { const char *name; uint32_t bit; } command_bits[] = {
    { "run", C_RUN }, { "logits", C_LOGITS }, { "tokenize", C_TOKENIZE }, { "detokenize", C_DETOKENIZE }, { "inspect", C_INSPECT }, { "plan", C_PLAN },
    { "verify", C_VERIFY }, { "doctor", C_DOCTOR }, { "eval", C_EVAL }, { "bench", C_BENCH }, { "quantize", C_QUANTIZE },
    { "render", C_RENDER }, { "serve", C_SERVE }, { "chat", C_CHAT }, { "help", C_HELP },
};

typedef struct {
    const char *name, *alias;                      /* alias NULL: none */
    Kind        kind;
    const char *value;                             /* how --help calls it */
    size_t      place;
    double      min, max;                          /* numbers only */
    uint32_t    commands;
    const char *help;
} OptionSpec;

#define AT(field) offsetof(Options, field)

static const OptionSpec table[] = {
    { "--model", "-m", KIND_TEXT, "FILE", AT(model), 0, 0, C_MODEL, "the target, a GGUF file (without it: the demo pair)" },
    { "--draft", "-d", KIND_TEXT, "FILE", AT(draft), 0, 0, C_LOADS & ~(C_LOGITS | C_EVAL),
      "the drafter, a GGUF file or a Hugging Face folder; mtp: the target's own MTP layer; none: no drafter (without it: dflash-*.gguf or draft/ beside the target, then its MTP layer)" },
    { "--draft", "-d", KIND_TEXT, "FILE", AT(draft), 0, 0, C_LOGITS, "write this drafter's logits instead: [block, vocab], row 0 the anchor's" },
    { "--prompt", "-p", KIND_TEXT, "TEXT", AT(prompt), 0, 0, C_RUN | C_TOKENIZE, "the text, as it is (without -p and -f: standard input)" },
    { "--file", "-f", KIND_TEXT, "FILE", AT(file), 0, 0, C_RUN | C_TOKENIZE, "the text, from a file" },
    { "--tokens", NULL, KIND_TEXT, "IDS", AT(tokens), 0, 0, C_RUN, "the prompt as token ids: 1,2,3 or @FILE" },
    { "--tokens", NULL, KIND_TEXT, "IDS", AT(tokens), 0, 0, C_LOGITS, "the rows: 1,2,3 or @FILE; with -d one id, the anchor" },
    { "--tokens", NULL, KIND_TEXT, "IDS", AT(tokens), 0, 0, C_DETOKENIZE, "ids: 1,2,3 or @FILE (without it: standard input)" },
    { "--chat", NULL, KIND_FLAG, NULL, AT(chat), 0, 0, C_RUN, "the prompt is what a user says, put into the form of the model's chat template" },
    { "--system", NULL, KIND_TEXT, "TEXT", AT(system), 0, 0, C_RUN, "with --chat: the system message before it" },
    { "--think", NULL, KIND_FLAG, NULL, AT(think), 0, 0, C_RUN, "with --chat: the model may reason first, where its template has that choice" },
    { "--no-think", NULL, KIND_FLAG, NULL, AT(no_think), 0, 0, C_RUN, "with --chat: it answers at once (the default)" },
    { "--system", NULL, KIND_TEXT, "TEXT", AT(system), 0, 0, C_CHAT, "the system message" },
    { "--think", NULL, KIND_FLAG, NULL, AT(think), 0, 0, C_CHAT, "the model may reason before it answers, where its template has that choice" },
    { "--no-think", NULL, KIND_FLAG, NULL, AT(no_think), 0, 0, C_CHAT, "it answers at once (the default)" },
    { "--no-history", NULL, KIND_FLAG, NULL, AT(no_history), 0, 0, C_CHAT, "what is typed is not kept (otherwise the last 1000 messages in $XDG_STATE_HOME/ratoon/history)" },
    { "--template", NULL, KIND_TEXT, "FILE", AT(template_file), 0, 0, C_RENDER, "a chat template, instead of a model's" },
    { "--input", NULL, KIND_TEXT, "CASE.json", AT(input), 0, 0, C_RENDER, "the conversation: messages, tools, documents, add_generation_prompt, kwargs, special_tokens" },
    { "--template-now", NULL, KIND_SEED, "SECONDS", AT(template_now), 0, 0, C_RUN | C_RENDER | C_SERVE | C_CHAT, "the clock that a template sees, in seconds since 1970 (default: now)" },
    { "--template-lax", NULL, KIND_FLAG, NULL, AT(template_lax), 0, 0, C_RUN | C_RENDER | C_SERVE | C_CHAT, "an attribute of something undefined is undefined, not an error" },
    { "--special", NULL, KIND_FLAG, NULL, AT(special), 0, 0, C_RUN | C_TOKENIZE | C_VERIFY | C_BENCH, "control tokens written in the text become tokens, BOS is added where the file asks for it" },
    { "--nfc", NULL, KIND_FLAG, NULL, AT(nfc), 0, 0, C_TOKENIZE, "normalise the text to NFC first, as Hugging Face tokenizers of Qwen do" },
    { "--n-predict", "-n", KIND_INT, "N", AT(n), 1, 1 << 24, C_DRAWS | C_VERIFY, "tokens to generate at most (run, chat: to the context's end; verify 64; bench 128, with --prompt-tokens 32)" },
    { "--ctx", NULL, KIND_INT, "N", AT(ctx), 1, 1 << 24, C_LOADS & ~C_SERVE, "context in tokens (default: the model's, 8192, or what fits in memory)" },
    { "--ctx", "--max-ctx", KIND_INT, "N", AT(ctx), 1, 1 << 24, C_SERVE, "context of each session in tokens (default: the model's or 131072, halved until all sessions fit in 80 % of free memory)" },
    { "--host", NULL, KIND_TEXT, "ADDRESS", AT(host), 0, 0, C_SERVE, "where to listen: an address, a name, or unix:/path (default 127.0.0.1, this machine only)" },
    { "--port", NULL, KIND_INT, "N", AT(port), 0, 65535, C_SERVE, "TCP port, 0: any free one (default 8080)" },
    { "--parallel", NULL, KIND_INT, "N", AT(parallel), 1, 64, C_SERVE, "requests that run at once, each with a session of --ctx tokens (default 4)" },
    { "--queue-size", NULL, KIND_INT, "N", AT(queue_size), 1, 65536, C_SERVE, "requests that may wait; more get 429 (default 32)" },
    { "--max-n", NULL, KIND_INT, "N", AT(max_n), 1, 64, C_SERVE, "most answers of one request (default 4)" },
    { "--model-name", NULL, KIND_TEXT, "NAME", AT(model_name), 0, 0, C_SERVE, "the model's name in /v1/models and in answers (default: the file's)" },
    { "--alias", NULL, KIND_TEXTS, "NAME", AT(alias), 0, 0, C_SERVE, "a further name of it; may be given up to 16 times" },
    { "--strict-model", NULL, KIND_FLAG, NULL, AT(strict_model), 0, 0, C_SERVE, "requests for other names get 404 (without it any name is taken and echoed)" },
    { "--strict-fields", NULL, KIND_FLAG, NULL, AT(strict_fields), 0, 0, C_SERVE, "fields without an effect get 400 (without it they are named in the answer's `ignored`)" },
    { "--api-key", NULL, KIND_TEXTS, "KEY", AT(api_key), 0, 0, C_SERVE, "ask for this key; may be given up to 16 times; also RATOON_API_KEY (default: no key is asked)" },
    { "--api-key-file", NULL, KIND_TEXT, "FILE", AT(api_key_file), 0, 0, C_SERVE, "keys, one per line; # begins a comment" },
    { "--allow-host", NULL, KIND_TEXTS, "NAME", AT(allow_host), 0, 0, C_SERVE, "a name that the Host header may carry besides localhost, where no key is asked" },
    { "--cors", NULL, KIND_TEXT, "ORIGINS", AT(cors), 0, 0, C_SERVE, "web pages that may ask: *, localhost, or origins between commas (default: none)" },
    { "--tls-cert", NULL, KIND_TEXT, "FILE", AT(tls_cert), 0, 0, C_SERVE, "speak TLS with this certificate (PEM)" },
    { "--tls-key", NULL, KIND_TEXT, "FILE", AT(tls_key), 0, 0, C_SERVE, "and this key (PEM)" },
    { "--api-prefix", NULL, KIND_TEXT, "PATH", AT(api_prefix), 0, 0, C_SERVE, "a path in front of every route, as some proxies leave it" },
    { "--public-metrics", NULL, KIND_FLAG, NULL, AT(public_metrics), 0, 0, C_SERVE, "/metrics asks for no key" },
    { "--max-body", NULL, KIND_INT, "MIB", AT(max_body), 1, 1024, C_SERVE, "largest request (default 64)" },
    { "--max-connections", NULL, KIND_INT, "N", AT(max_connections), 1, 60000, C_SERVE, "open connections; more get 503 (default 256)" },
    { "--write-timeout", NULL, KIND_INT, "S", AT(write_timeout), 1, 86400, C_SERVE, "seconds that a client may leave its answer unread before it is cancelled (default 30)" },
    { "--keepalive", NULL, KIND_INT, "S", AT(keepalive), 1, 3600, C_SERVE, "seconds between signs of life in a stream while the prompt is read (default 5)" },
    { "--request-timeout", NULL, KIND_INT, "S", AT(request_timeout), 1, 1 << 24, C_SERVE, "seconds that a request may take, waiting included (default: no limit)" },
    { "--shutdown-grace", NULL, KIND_INT, "S", AT(shutdown_grace), 0, 86400, C_SERVE, "seconds that running requests have after SIGTERM or Ctrl-C (default 5)" },
    { "--cancel-on-eof", NULL, KIND_SWITCH, "on|off", AT(cancel_on_eof), 0, 0, C_SERVE, "a client that has closed its sending side counts as gone (default on)" },
    { "--default-max-tokens", NULL, KIND_INT, "N", AT(default_max_tokens), 1, 1 << 24, C_SERVE, "tokens of an answer whose request names no limit (default 16000; Responses 32768)" },
    { "--max-tokens-limit", NULL, KIND_INT, "N", AT(max_tokens_limit), 1, 1 << 24, C_SERVE, "tokens of any answer (default: up to the context)" },
    { "--reasoning", NULL, KIND_TEXT, "on|off|auto", AT(reasoning), 0, 0, C_SERVE, "whether models that can reason first do so where a request does not say; auto: as their template has it (default off)" },
    { "--reasoning-budget", NULL, KIND_INT, "N", AT(reasoning_budget), 0, 1 << 24, C_SERVE, "tokens of reasoning after which it is ended (default: no limit)" },
    { "--reply-budget", NULL, KIND_INT, "N", AT(reply_budget), 1, 1 << 24, C_SERVE, "where reasoning has a limit: tokens kept for the answer (default 4096)" },
    { "--reasoning-budget-message", NULL, KIND_TEXT, "TEXT", AT(reasoning_message), 0, 0, C_SERVE, "what the model is made to say when its reasoning is ended (default: nothing)" },
    { "--preserve-thinking", NULL, KIND_TEXT, "on|off|auto", AT(preserve_thinking), 0, 0, C_SERVE, "reasoning of earlier turns stays in the prompt, where the template has the choice; auto: where tools are declared (default auto)" },
    { "--tool-format", NULL, KIND_TEXT, "NAME", AT(tool_format), 0, 0, C_SERVE, "how the model writes tool calls (default: seen from its chat template)" },
    { "--prefill-assistant", NULL, KIND_FLAG, NULL, AT(prefill_assistant), 0, 0, C_SERVE, "a conversation that ends with the assistant is continued there" },
    { "--cache-ram", NULL, KIND_INT, "MIB", AT(cache_ram), 0, 1 << 22, C_SERVE, "memory for states of earlier prompts (default 8192, at most a quarter of what is free)" },
    { "--cache-dir", NULL, KIND_TEXT, "DIR", AT(cache_dir), 0, 0, C_SERVE, "keep them on disk too, so that they survive a restart" },
    { "--cache-disk", NULL, KIND_INT, "MIB", AT(cache_disk), 1, 1 << 24, C_SERVE, "bytes of --cache-dir (default 4096)" },
    { "--cache-min-tokens", NULL, KIND_INT, "N", AT(cache_min_tokens), 1, 1 << 24, C_SERVE, "shorter beginnings are not worth remembering (default 256)" },
    { "--snapshot-interval", NULL, KIND_INT, "N", AT(cache_interval), 64, 1 << 24, C_SERVE, "in long prompts remember every so many tokens (default 8192)" },
    { "--draft-ctx", NULL, KIND_INT, "N", AT(draft_ctx), 1, 1 << 20, C_RUN | C_PLAN | C_BENCH | C_SERVE | C_CHAT, "the drafter's ring of keys and values (default: its window, at least 4096)" },
    { "--chunk", NULL, KIND_INT, "N", AT(chunk), 1, 4096, C_LOADS, "prompt tokens per pass (default 256)" },
    { "--temp", NULL, KIND_REAL, "T", AT(temp), 0, 1000, C_DRAWS | C_SERVE, "temperature; below 1e-5 greedy (default 0)" },
    { "--top-p", NULL, KIND_REAL, "P", AT(top_p), 0.000001, 1, C_DRAWS | C_SERVE, "keep the likeliest tokens that hold this much probability (default 1: all)" },
    { "--top-k", NULL, KIND_INT, "K", AT(top_k), 0, 1 << 24, C_DRAWS | C_SERVE, "keep the K likeliest tokens (default 0: all)" },
    { "--min-p", NULL, KIND_REAL, "M", AT(min_p), 0, 0.999999, C_DRAWS | C_SERVE, "keep tokens at least M times as likely as the likeliest (default 0)" },
    { "--rep-penalty", NULL, KIND_REAL, "R", AT(rep_penalty), 0.01, 100, C_DRAWS | C_SERVE, "divide the logits of tokens seen (default 1: off)" },
    { "--freq-penalty", NULL, KIND_REAL, "F", AT(freq_penalty), -100, 100, C_DRAWS | C_SERVE, "subtract F for every time a token was seen (default 0)" },
    { "--presence-penalty", NULL, KIND_REAL, "P", AT(presence_penalty), -100, 100, C_DRAWS | C_SERVE, "subtract P from tokens that were seen (default 0)" },
    { "--rep-window", NULL, KIND_INT, "N", AT(rep_window), 1, 256, C_DRAWS | C_SERVE, "tokens that penalties look back on (default 256)" },
    { "--seed", NULL, KIND_SEED, "S", AT(seed), 0, 0, C_DRAWS | C_VERIFY, "the same seed gives the same text, however it is decoded (default 0)" },
    { "--stop", NULL, KIND_TEXTS, "TEXT", AT(stop), 0, 0, C_RUN, "end before this text appears; may be given up to 16 times" },
    { "--grammar", NULL, KIND_TEXT, "FILE", AT(grammar), 0, 0, C_RUN, "the text must follow this grammar (doc/grammar.md)" },
    { "--json-schema", NULL, KIND_TEXT, "FILE", AT(json_schema), 0, 0, C_RUN, "the text must be JSON that is valid by this schema: a file, or the schema itself from its {" },
    { "--ignore-eos", NULL, KIND_FLAG, NULL, AT(ignore_eos), 0, 0, C_DRAWS & ~C_CHAT, "go on after the model's end token" },
    { "--budget", NULL, KIND_BUDGET, "auto|N", AT(budget), 1, 63, C_RUN | C_PLAN | C_BENCH | C_SERVE | C_CHAT, "draft tokens checked per pass; auto measures what pays, plain decoding included" },
    { "--ngram", NULL, KIND_SWITCH, "on|off", AT(ngram), 0, 0, C_RUN | C_PLAN | C_BENCH | C_VERIFY | C_SERVE | C_CHAT,
      "guess from what the text says already: needs no drafter, pays on edits and quotations (default on)" },
    { "--draft-block", NULL, KIND_INT, "N", AT(draft_block), 2, 33, C_RUN | C_PLAN | C_BENCH | C_VERIFY | C_SERVE | C_CHAT,
      "rows of a proposal, the root's with them (default: what the drafter was trained for; beyond it is worth measuring)" },
    { "--budget", NULL, KIND_TEXT, "LIST", AT(budgets), 0, 0, C_VERIFY, "tree budgets to try (default 8,22,60,auto)" },
    { "--tree", NULL, KIND_FLAG, NULL, AT(tree), 0, 0, C_RUN | C_BENCH | C_SERVE | C_CHAT, "check a tree of guesses (the default)" },
    { "--chain", NULL, KIND_FLAG, NULL, AT(chain), 0, 0, C_RUN | C_BENCH | C_SERVE | C_CHAT, "check only the likeliest guess of every depth" },
    { "--chain", NULL, KIND_FLAG, NULL, AT(chain), 0, 0, C_VERIFY, "only chains, no trees" },
    { "--prefix", NULL, KIND_TEXT, "IDS", AT(prefix), 0, 0, C_LOGITS, "tokens committed first, not in the output: 7,8,9 or @FILE" },
    { "--parents", NULL, KIND_TEXT, "LIST", AT(parents), 0, 0, C_LOGITS, "the rows are one tree of at most 64: -1,0,0 (without it: a chain)" },
    { "--taps", NULL, KIND_TEXT, "LAYERS", AT(taps), 0, 0, C_LOGITS, "also write FILE.taps: the output of these layers, float32 [rows, taps * hidden]" },
    { "--out", "-o", KIND_TEXT, "FILE", AT(out), 0, 0, C_LOGITS, "where the logits go: float32 [rows, vocab]" },
    { "--prompts", NULL, KIND_TEXT, "FILE", AT(prompts), 0, 0, C_VERIFY | C_BENCH, "JSON lines with \"prompt\"" },
    { "--threads", NULL, KIND_INT, "N", AT(threads), 1, 256, C_LOADS & ~C_VERIFY, "worker threads (default: one per core)" },
    { "--threads", NULL, KIND_INT, "N", AT(threads), 1, 256, C_QUANTIZE, "worker threads (default: one per core)" },
    { "--threads", NULL, KIND_TEXT, "LIST", AT(thread_list), 0, 0, C_VERIFY, "thread counts to try (default 1,2)" },
    { "--backend", NULL, KIND_TEXT, "NAME", AT(backend), 0, 0, C_LOADS, "auto, cpu, or cpu:LEVEL with portable, avx2, avxvnni, avx512, amx, neon or i8mm" },
    { "--cache-type-k", "-ctk", KIND_TEXT, "TYPE", AT(kv_k), 0, 0, C_LOADS, "type of stored keys: f32, f16, bf16, q8_0, q5_1, q5_0, q4_1, q4_0 or tq3_0 (default f16; f32 for a file that is f32 throughout)" },
    { "--cache-type-v", "-ctv", KIND_TEXT, "TYPE", AT(kv_v), 0, 0, C_LOADS, "type of stored values, likewise" },
    { "--fa-window", NULL, KIND_INT, "N", AT(fa_window), 0, 1 << 24, C_LOADS, "look back N positions only in the target's full attention; changes the text (default 0: everything)" },
    { "--draft-type", NULL, KIND_TEXT, "TYPE", AT(draft_type), 0, 0, C_LOADS & ~(C_LOGITS | C_EVAL), "q8_0: drafters above 8 bits are quantised at load (default); keep: as they are" },
    { "--draft-type", NULL, KIND_TEXT, "TYPE", AT(draft_type), 0, 0, C_LOGITS, "keep (default here) or q8_0: drafters above 8 bits are quantised at load" },
    { "--no-repack", NULL, KIND_FLAG, NULL, AT(no_repack), 0, 0, C_LOADS, "weights are read from the mapped file and not copied, for machines short of memory: slower, the same text" },
    { "--modes", NULL, KIND_TEXT, "LIST", AT(modes), 0, 0, C_VERIFY, "greedy, t0.7, t1 (temperature 1, top-p .95, penalties); default all" },
    { "--passes", NULL, KIND_TEXT, "LIST", AT(passes), 0, 0, C_BENCH, "time passes of these many rows: 1,8,16" },
    { "--after", NULL, KIND_TEXT, "LIST", AT(after), 0, 0, C_BENCH, "with --passes: time them behind these many tokens, in turn (default 0): 1024,32768" },
    { "--prompt-tokens", NULL, KIND_TEXT, "LIST", AT(prompt_tokens), 0, 0, C_BENCH, "time prompts of these many tokens, and -n tokens of plain decoding: 128,512" },
    { "--serve", NULL, KIND_TEXT, "LIST", AT(serve), 0, 0, C_BENCH,
      "time these many streams at once, as the server runs them, plain and with speculation: 1,4; their prompts from --prompts, or 64 made-up tokens each" },
    { "--roofline", NULL, KIND_FLAG, NULL, AT(roofline), 0, 0, C_BENCH, "measure what the machine can do at most, per number of threads; needs no model" },
    { "--repeats", NULL, KIND_INT, "N", AT(repeats), 1, 10000, C_BENCH,
      "interleaved repeats of which the fastest counts, in each round (default 12; with --compare or --prompt-tokens 3)" },
    { "--pairs", NULL, KIND_INT, "N", AT(pairs), 1, 1000, C_BENCH,
      "with --prompts: interleaved runs of each way, whose medians are reported (default 5; with --serve 3); with --compare: rounds (default 3)" },
    { "--compare", NULL, KIND_TEXT, "COMMAND", AT(compare), 0, 0, C_BENCH, "another program's benchmark of the same file, run by the shell in turn with ours, one of them in memory at a time" },
    { "--compare-rate", NULL, KIND_TEXT, "REGEX", AT(compare_rate), 0, 0, C_BENCH,
      "where COMMAND prints no JSON of llama-bench or llama-batched-bench: an extended regular expression, its first group the tokens per second of decoding" },
    { "--compare-limit", NULL, KIND_INT, "S", AT(compare_limit), 1, 86400, C_BENCH, "seconds after which one run of COMMAND is given up (default 600)" },
    { "--simulate-acceptance", NULL, KIND_TEXT, "FILE", AT(simulate), 0, 0, C_BENCH, "draw which guesses are accepted from a profile; results are labelled simulated" },
    { "--write-profile", NULL, KIND_TEXT, "FILE", AT(write_profile), 0, 0, C_BENCH, "write the acceptance that was measured, for --simulate-acceptance" },
    { "--text", NULL, KIND_TEXT, "FILE", AT(text), 0, 0, C_DOCTOR, "the text that the drafter has to guess (default: what the target itself goes on to say)" },
    { "--window", NULL, KIND_INT, "N", AT(window), 2, 1 << 24, C_EVAL, "tokens per window, each from an empty context (default: the context)" },
    { "--check-tensors", NULL, KIND_FLAG, NULL, AT(check_tensors), 0, 0, C_INSPECT, "look for NaN and infinity in every tensor" },
    { "--json", NULL, KIND_FLAG, NULL, AT(json), 0, 0, C_RUN | C_TOKENIZE | C_INSPECT | C_PLAN | C_EVAL | C_BENCH | C_VERIFY | C_DOCTOR | C_RENDER, "print one JSON object instead of text" },
    { "--csv", NULL, KIND_TEXT, "FILE", AT(csv), 0, 0, C_BENCH, "also write comma-separated values, what was run and where in comments" },
    { "--svg", NULL, KIND_TEXT, "FILE", AT(svg), 0, 0, C_BENCH, "also draw the result" },
    { "--stats", NULL, KIND_FLAG, NULL, AT(stats), 0, 0, C_RUN, "print figures of the run on standard error" },
    { "--stats", NULL, KIND_FLAG, NULL, AT(stats), 0, 0, C_CHAT, "print figures of each answer on standard error" },
    { "--quiet", "-q", KIND_FLAG, NULL, AT(quiet), 0, 0, C_LOADS | C_TOKENIZE | C_DETOKENIZE | C_RENDER, "say nothing on standard error but errors" },
    { "--config", NULL, KIND_TEXT, "FILE", AT(config), 0, 0, C_WORKS, "take options from FILE (default: $XDG_CONFIG_HOME/ratoon/config, if there is one); the command line wins" },
    { "--man", NULL, KIND_FLAG, NULL, AT(man), 0, 0, C_HELP, "print the manual page, in mdoc" },
    { "--completion", NULL, KIND_TEXT, "bash|zsh|fish", AT(completion), 0, 0, C_HELP, "print the completions of that shell" },
};

enum { N_OPTIONS = sizeof table / sizeof *table };

static uint32_t command_bit(const char *name)
{
    for (size_t i = 0; i < sizeof command_bits / sizeof *command_bits; i++)
        if (strcmp(command_bits[i].name, name) == 0) return command_bits[i].bit;
    return 0;
}

static const OptionSpec *find(uint32_t bit, const char *name, size_t n)
{
    for (int32_t i = 0; i < N_OPTIONS; i++) {
        const OptionSpec *s = &table[i];
        if (!(s->commands & bit)) continue;
        if (strlen(s->name) == n && memcmp(s->name, name, n) == 0) return s;
        if (s->alias && strlen(s->alias) == n && memcmp(s->alias, name, n) == 0) return s;
    }
    return NULL;
}

/* "ratoon COMMAND: FILE:LINE: ...". Returns false. */
static bool refuse(const Options *o, const char *format, ...) __attribute__((format(printf, 2, 3)));
static bool refuse(const Options *o, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fprintf(stderr, "ratoon %s: %s%s", o->command, o->where ? o->where : "", o->where ? ": " : "");
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
    return false;
}

/* Between its limits, written without a point for whole numbers. */
static bool out_of_range(const Options *o, const OptionSpec *s, const char *value)
{
    return refuse(o, "%s is '%s', expected a %snumber from %.10g to %.10g", s->name, value, s->kind == KIND_REAL ? "" : "whole ", s->min, s->max);
}

static bool read_value(Options *o, const OptionSpec *s, const char *value)
{
    char *end = NULL, *place = (char *) o + s->place;
    errno = 0;
    switch (s->kind) {
    case KIND_FLAG:
        *(bool *) place = true;
        return true;
    case KIND_TEXT:
        *(const char **) place = value;
        return true;
    case KIND_TEXTS: {
        TextList *list = (TextList *) place;
        if (!*value || list->n == TEXTS_MAX || strlen(value) > 512) return refuse(o, "%s expects a text of 1 to 512 bytes, at most %d times", s->name, TEXTS_MAX);
        list->at[list->n++] = value;
        return true;
    }
    case KIND_SWITCH:
        if (strcmp(value, "on") != 0 && strcmp(value, "off") != 0) return refuse(o, "%s is '%s', expected on or off", s->name, value);
        *(int32_t *) place = strcmp(value, "on") == 0 ? 0 : -1;
        return true;
    case KIND_BUDGET:
        if (strcmp(value, "auto") == 0) {
            *(int32_t *) place = BUDGET_OPTION_AUTO;
            return true;
        }
        /* fall through */
    case KIND_INT: {
        long long v = strtoll(value, &end, 10);
        if (end == value || *end || errno || (double) v < s->min || (double) v > s->max) return out_of_range(o, s, value);
        *(int32_t *) place = (int32_t) v;
        return true;
    }
    case KIND_SEED: {
        unsigned long long v = strtoull(value, &end, 10);
        if (end == value || *end || errno || strchr(value, '-')) return refuse(o, "%s is '%s', expected a whole number from 0 to 18446744073709551615", s->name, value);
        *(uint64_t *) place = v;
        return true;
    }
    case KIND_REAL: {
        double v = strtod(value, &end);
        if (end == value || *end || !isfinite(v) || v < s->min || v > s->max) return out_of_range(o, s, value);
        *(double *) place = v;
        return true;
    }
    }
    return false;
}

/* ---- the configuration file ---- */

static const OptionSpec *find_name(uint32_t bit, const char *name)
{
    char dashed[64];
    int n = snprintf(dashed, sizeof dashed, "--%s", name);
    return n < (int) sizeof dashed ? find(bit, dashed, (size_t) n) : NULL;
}

bool options_set(Options *o, const char *name, const char *value)
{
    const OptionSpec *s = find_name(command_bit(o->command), name);
    if (!s || strcmp(name, "config") == 0) return refuse(o, "there is no option '%s' of ratoon %s", name, o->command);
    if (s->kind != KIND_FLAG) return read_value(o, s, value);
    bool on = strcmp(value, "true") == 0;
    if (!on && strcmp(value, "false") != 0) return refuse(o, "%s is '%s', expected true or false", s->name, value);
    *(bool *) ((char *) o + s->place) = on;
    return true;
}

/* A line of the file: of this command, of another (whose values are looked at all the same), or of all that have the option. */
static bool take_line(void *ud, const ConfigLine *l)
{
    Options *o = ud, other = { .command = l->section, .where = l->where };
    bool good;
    o->where = l->where;
    if (l->section && !command_bit(l->section)) good = refuse(o, "there is no command '%s' with options", l->section);
    else if (!l->key) good = true;
    else if (l->section) good = options_set(strcmp(l->section, o->command) == 0 ? o : &other, l->key, l->value);
    else if (!find_name(C_WORKS, l->key)) good = refuse(o, "there is no option '%s'", l->key);
    else good = !find_name(command_bit(o->command), l->key) || options_set(o, l->key, l->value);
    o->where = NULL;
    return good;
}

/* ---- the command line ---- */

static int32_t words_max(const char *words)
{
    int32_t n = words[0] ? 1 : 0;
    for (const char *p = words; *p; p++) n += *p == ' ';
    return n;
}

static bool wrong(int *status, const Options *o, const char *what, const char *arg)
{
    fprintf(stderr, "ratoon %s: %s '%s' (see ratoon %s --help)\n", o->command, what, arg, o->command);
    *status = EXIT_USAGE;
    return false;
}

typedef struct { const OptionSpec *spec; const char *value; } Given;

/* Words, and options in the order of their places. True: the command is to run; *status as options_read. */
static bool read_words(Options *o, Given *given, int32_t *n, int argc, char **argv, int *status)
{
    const Command *c = command_find(argv[0]);
    uint32_t bit = command_bit(argv[0]);
    bool only_words = false;
    for (int i = 1; i < argc; i++) {
        const char *a = argv[i];
        if (only_words || a[0] != '-' || !a[1]) {
            if (o->n_words == words_max(c->words) || o->n_words == WORDS_MAX) return wrong(status, o, "unexpected argument", a);
            o->word[o->n_words++] = a;
            continue;
        }
        if (strcmp(a, "--") == 0) {
            only_words = true;
            continue;
        }
        if (strcmp(a, "--help") == 0 || strcmp(a, "-h") == 0) {
            options_help(stdout, c);
            return false;
        }
        const char *equals = a[1] == '-' ? strchr(a, '=') : NULL;
        const OptionSpec *s = find(bit, a, equals ? (size_t) (equals - a) : strlen(a));
        if (!s) return wrong(status, o, "unknown option", a);
        if (s->kind == KIND_FLAG && equals) return wrong(status, o, "no value is expected in", a);
        if (s->kind != KIND_FLAG && !equals && i + 1 == argc) return wrong(status, o, "a value is missing after", a);
        given[(*n)++] = (Given) { s, s->kind == KIND_FLAG ? NULL : equals ? equals + 1 : argv[++i] };
        if (strcmp(s->name, "--config") == 0) o->config = given[*n - 1].value;
    }
    return true;
}

static void unset(Options *o, const OptionSpec *s)
{
    char *place = (char *) o + s->place;
    if (s->kind == KIND_FLAG) *(bool *) place = false;
    else if (s->kind == KIND_TEXT) *(const char **) place = NULL;
    else if (s->kind == KIND_TEXTS) *(TextList *) place = (TextList) { 0 };
}

/* What the file says gives way to the command line: lists begin anew, and the other one of two that exclude each other is off. */
static void make_way(Options *o, const Given *given, int32_t n)
{
    static const char *const pairs[][2] = { { "think", "no-think" }, { "tree", "chain" }, { "grammar", "json-schema" }, { "prompt", "file" },
                                            { "prompt", "tokens" }, { "file", "tokens" } };
    uint32_t bit = command_bit(o->command);
    for (int32_t i = 0; i < n; i++) {
        unset(o, given[i].spec);
        for (size_t k = 0; k < sizeof pairs / sizeof *pairs; k++) {
            const OptionSpec *a = find_name(bit, pairs[k][0]), *b = find_name(bit, pairs[k][1]);
            if (given[i].spec == a && b) unset(o, b);
            if (given[i].spec == b && a) unset(o, a);
        }
    }
}

bool options_read(Options *o, int argc, char **argv, int *status)
{
    Given *given = calloc((size_t) argc, sizeof *given);
    int32_t n = 0;
    *o = (Options) { .command = argv[0], .top_p = 1, .rep_penalty = 1, .port = -1, .shutdown_grace = -1, .cache_ram = -1, .reasoning_budget = -1 };
    *status = EXIT_FINE;
    if (!given) return wrong(status, o, "out of memory for the options of", o->command);
    bool runs = read_words(o, given, &n, argc, argv, status), good = runs;
    if (good && (command_bit(o->command) & C_WORKS)) {
        good = config_read(o->command, o->config, take_line, o);
        make_way(o, given, n);
    }
    for (int32_t i = 0; good && i < n; i++) good = read_value(o, given[i].spec, given[i].value);
    if (runs && !good) *status = EXIT_USAGE;
    free(given);
    if (good && o->tree && o->chain) return wrong(status, o, "there can be only one of --tree and", "--chain");
    return good;
}

/* The help text in a column beside the option, broken at spaces. */
static void print_wrapped(FILE *f, const char *text, int indent, int width)
{
    int at = 0;
    for (const char *p = text; *p;) {
        int n = (int) strcspn(p, " ");
        if (at > 0 && at + 1 + n > width) {
            fprintf(f, "\n%*s", indent, "");
            at = 0;
        }
        at += fprintf(f, "%s%.*s", at > 0 ? " " : "", n, p);
        p += n;
        while (*p == ' ') p++;
    }
    fputc('\n', f);
}

bool option_next(OptionInfo *out, const Command *c, int32_t *at)
{
    uint32_t bit = command_bit(c->name);
    while (*at < N_OPTIONS) {
        const OptionSpec *s = &table[(*at)++];
        *out = (OptionInfo) { s->name, s->alias, s->value, s->help };
        if (s->commands & bit) return true;
    }
    return false;
}

void options_help(FILE *f, const Command *c)
{
    enum { COLUMN = 30, WIDTH = 100 };
    uint32_t bit = command_bit(c->name);
    fprintf(f, "Usage: ratoon %s [options]%s%s\n\n%s\n\n", c->name, *c->words ? " " : "", c->words, c->summary);
    if (bit) fputs("Options:\n", f);
    OptionInfo x;
    for (int32_t i = 0; option_next(&x, c, &i);) {
        char left[64];
        int n = snprintf(left, sizeof left, "  %s%s%s%s%s", x.alias ? x.alias : "", x.alias ? ", " : "", x.name, x.value ? " " : "", x.value ? x.value : "");
        fprintf(f, "%s%*s", left, n < COLUMN ? COLUMN - n : 1, "");
        print_wrapped(f, x.help, COLUMN, WIDTH - COLUMN);
    }
    if (*c->more) fprintf(f, "\n%s", c->more);
}
