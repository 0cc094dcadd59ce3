/* options.h - every option of every command, in one table: the parser `--help`, the manual, the shells' completions and the
 * configuration file are made from it, so they agree. A command reads its words and options with options_read; what it does not find there was not given and has its default. Values are
 * checked against the table's range here, so commands see numbers that make sense. */
#ifndef RATOON_PROGRAMS_OPTIONS_H
#define RATOON_PROGRAMS_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum { EXIT_FINE = 0, EXIT_FAILED = 1, EXIT_USAGE = 2, EXIT_INTERRUPTED = 130 };
enum { WORDS_MAX = 4, TEXTS_MAX = 16 };
enum { BUDGET_OPTION_AUTO = 0, BUDGET_OPTION_PLAIN = -1 };

typedef struct { const char *at[TEXTS_MAX]; int32_t n; } TextList;     /* an option that may be given several times */

typedef struct {
    const char *command;
    const char *word[WORDS_MAX]; int32_t n_words;
    /* what is loaded */
    const char *model, *draft, *backend, *kv_k, *kv_v, *draft_type;
    int32_t     threads, ctx, draft_ctx, chunk, fa_window;
    bool        no_repack;
    /* what is asked */
    const char *prompt, *file, *tokens, *prefix, *parents, *taps, *prompts, *out;
    bool        chat, special, nfc;
    const char *system, *template_file, *input;
    bool        think, no_think, template_lax;
    uint64_t    template_now;
    /* how text is drawn */
    double      temp, top_p, min_p, rep_penalty, freq_penalty, presence_penalty;
    int32_t     top_k, rep_window, n;
    uint64_t    seed;
    TextList    stop;
    const char *grammar, *json_schema;
    bool        ignore_eos;
    /* how it is decoded */
    int32_t     budget, ngram, draft_block;        /* ngram: 0 as it comes, -1 off */
    bool        tree, chain;
    /* what is reported */
    bool        json, stats, quiet, check_tensors, roofline, no_history, man;
    const char *csv, *svg, *completion, *config;
    /* verify, bench, eval, doctor */
    const char *budgets, *thread_list, *modes, *passes, *after, *simulate, *write_profile, *text, *prompt_tokens, *serve, *compare, *compare_rate;
    int32_t     pairs, repeats, window, compare_limit;
    /* serve; 0: the default */
    const char *host, *cors, *api_key_file, *api_prefix, *tls_cert, *tls_key, *model_name, *reasoning, *preserve_thinking, *reasoning_message, *tool_format;
    const char *cache_dir;
    TextList    api_key, allow_host, alias;
    int32_t     port, parallel, queue_size, max_n, max_body, max_connections, write_timeout, keepalive, request_timeout, shutdown_grace;
    int32_t     default_max_tokens, max_tokens_limit, reasoning_budget, reply_budget;
    int32_t     cache_ram, cache_disk, cache_min_tokens, cache_interval, cancel_on_eof;            /* cancel_on_eof: 0 as it comes, -1 off */
    bool        strict_model, strict_fields, public_metrics, prefill_assistant;
    const char *where;                             /* NULL, or the place in a configuration file that is being read */
} Options;

typedef struct {
    const char *name;
    int       (*run)(int argc, char **argv);       /* argv[0]: the command's name */
    const char *words, *summary, *more;            /* more: what --help teaches below the options, with examples */
} Command;

extern const Command commands[];                   /* commands.c; ends with a name of NULL */

/* False: *status is the exit code (0 after --help, 2 after a wrong option, which has been named on stderr). */
bool options_read(Options *o, int argc, char **argv, int *status);
void options_help(FILE *f, const Command *c);
/* name without its dashes, as in a configuration file. False: there is no such option of this command, or the value is wrong; said. */
bool options_set(Options *o, const char *name, const char *value);

/* One option as the manual and the shells show it. */
typedef struct { const char *name, *alias, *value, *help; } OptionInfo;           /* alias NULL: none; value NULL: it takes none */
/* The next option of a command from *at on, which begins with 0; false: there is none. */
bool option_next(OptionInfo *out, const Command *c, int32_t *at);
const Command *command_find(const char *name);     /* NULL: none */
void commands_list(FILE *f);

#endif
