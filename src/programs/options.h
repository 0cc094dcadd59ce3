/* options.h - every option of every command, in one table (option_table.c) from which the parser, `--help`, the manual,
 * the shell completions and the configuration file are derived, so they agree. A command reads its words and options
 * with options_read; options that were not given have their defaults. Values are checked against the table's ranges
 * here, so commands see only sensible numbers. */
#ifndef RATOON_PROGRAMS_OPTIONS_H
#define RATOON_PROGRAMS_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "ratoon_lab.h"

enum { EXIT_FINE = 0, EXIT_FAILED = 1, EXIT_USAGE = 2, EXIT_MISFIT = 3, EXIT_INTERRUPTED = 130 };
enum { WORDS_MAX = 4, TEXTS_MAX = 16 };
enum { BUDGET_OPTION_AUTO = 0, BUDGET_OPTION_PLAIN = -1 };

typedef struct { const char *at[TEXTS_MAX]; int32_t n; } TextList;     /* an option that may be given several times */
typedef struct { uint64_t value; bool given; } Seed;

typedef struct {
    const char *command;
    const char *word[WORDS_MAX]; int32_t n_words;
    bool        first_word;                        /* the model is a word that could have been the prompt's first */
    /* what to load */
    const char *model, *hf_repo, *draft, *backend, *kv_k, *kv_v, *draft_type, *weight_type;
    int32_t     threads, ctx, draft_ctx, chunk, fa_window, gpu_layers;             /* gpu_layers: see rt_options */
    bool        no_repack, overcommit, offline, yes;
    rt_card     card;                              /* the card that "auto" is; its name is empty: none */
    Seed        expert_ram, expert_vram;           /* see rt_options; not given: RT_EXPERTS_AUTO */
    const char *expert_io, *expert_profile, *spark_calibrate;
    int32_t     expert_slots;
    bool        spark;
    /* the input */
    const char *prompt, *file, *tokens, *prefix, *parents, *taps, *prompts, *out;
    bool        chat, special, nfc;
    const char *system, *template_file, *input;
    bool        think, no_think, template_lax;
    Seed        template_now;
    /* how to sample; not given: NAN, top_k -1, rep_window 0 (see sampling.h) */
    double      temp, top_p, min_p, rep_penalty, freq_penalty, presence_penalty;
    int32_t     top_k, rep_window, n;
    Seed        seed;
    TextList    stop;
    const char *grammar, *json_schema, *generation_config, *diffusion, *sampler;
    bool        ignore_eos;
    /* how to decode */
    int32_t     budget, ngram, draft_block;        /* ngram: 0 automatic, -1 off */
    bool        tree, chain;
    /* what to report */
    bool        json, stats, quiet, verbose, check_tensors, roofline, canvas, no_history, man, force;
    const char *csv, *svg, *completion, *config;
    /* verify, bench, eval, doctor, experts */
    const char *budgets, *thread_list, *modes, *passes, *after, *simulate, *write_profile, *text, *prompt_tokens,
               *serve, *before, *compare, *compare_rate, *hotness, *write_hotness;
    int32_t     pairs, repeats, window, compare_limit;
    /* serve; 0: the default */
    const char *host, *cors, *api_key_file, *generate_key, *api_prefix, *tls_cert, *tls_key, *model_name, *reasoning,
               *preserve_thinking, *reasoning_message, *tool_format;
    const char *cache_dir;
    TextList    api_key, allow_host, alias;
    int32_t     port, parallel, queue_size, max_n, max_body, max_connections, write_timeout, keepalive, request_timeout,
                shutdown_grace;
    int32_t     default_max_tokens, max_tokens_limit, reasoning_budget, reply_budget;
    int32_t     store_ram;                         /* -1: the default */
    /* cancel_on_eof: 0 automatic, -1 off */
    int32_t     cache_ram, cache_disk, cache_min_tokens, cache_interval, cancel_on_eof;
    bool        strict_model, strict_fields, public_metrics, prefill_assistant;
    const char *where;                             /* position in the configuration file being read, or NULL */
} Options;

typedef struct {
    const char *name;
    int       (*run)(int argc, char **argv);       /* argv[0]: the command's name */
    const char *words, *summary, *more;            /* more: shown by --help below the options, with examples */
    const char *heading;                           /* of the group of commands that begins here, or NULL */
} Command;

extern const Command commands[];                   /* commands.c; ends with a name of NULL */

/* Returns false if the command is not to run: *status is then the exit code (0 after --help, 2 after a wrong option,
 * reported on stderr). */
bool options_read(Options *o, int argc, char **argv, int *status);
void options_help(FILE *f, const Command *c);
/* name without its dashes, as in a configuration file. Returns false after reporting that this command has no such
 * option or the value is wrong. */
bool options_set(Options *o, const char *name, const char *value);

/* An option as the manual and the shells show it. */
/* group: the heading it stands under; alias NULL: none; value NULL: it takes none; also, values: as in the table;
 * path: the value is one; owners: see command_owns */
typedef struct {
    const char *group, *name, *alias, *value, *help, *also, *values;
    bool path; uint32_t owners;
} OptionInfo;
/* The next option of a command, or of any with c NULL, from *at on, which starts at 0; returns false when there are no
 * more. */
bool option_next(OptionInfo *out, const Command *c, int32_t *at);
void option_variable(char out[64], const char *name);        /* "RATOON_N_PREDICT" of "--n-predict" */
bool command_owns(const Command *c, uint32_t owners);
const Command *command_find(const char *name);     /* NULL: none */
int command_unknown(const char *by, const char *name);          /* says so, and which one is near; EXIT_USAGE */
void commands_help(FILE *f);

#endif
