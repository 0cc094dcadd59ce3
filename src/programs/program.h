/* program.h - what the commands share: opening an engine from options, messages on standard error, Ctrl-C, reading text
 * and lists of numbers. Standard output carries results only. */
#ifndef RATOON_PROGRAMS_PROGRAM_H
#define RATOON_PROGRAMS_PROGRAM_H

#include <jansson.h>
#include <signal.h>

#include "base/clock.h"
#include "base/path.h"
#include "programs/acceptance.h"
#include "programs/options.h"
#include "programs/progress.h"
#include "ratoon.h"

extern volatile sig_atomic_t interrupts;           /* presses of Ctrl-C; the second one ends the process with 130 */
void hear_interrupts(void);
/* Waits for a line of standard input. Returns false at its end, and at once after Ctrl-C. */
bool line_typed(char *line, int cap);

/* Prints one line "ratoon COMMAND: ..." on standard error and returns EXIT_FAILED. Control characters from outside
 * become '?'. "After reporting an error" below means that it was called. */
int complain(const Options *o, const char *format, ...) __attribute__((format(printf, 2, 3)));
void note(const Options *o, const char *format, ...) __attribute__((format(printf, 2, 3)));   /* unless --quiet */
void detail(const Options *o, const char *format, ...) __attribute__((format(printf, 2, 3))); /* with --verbose */
/* Prints a log line, cleaned by line_clean: anything that came over the network or from a file goes to standard error
 * through this. */
void log_line(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Finds the files: the demo pair without -m, a drafter next to the target without -d. Notes which were chosen. */
/* draft "": none, "mtp": the target's own layer. found_draft: the drafter was found, not asked for. own: the target's
 * own layer may be used if it has one. demo: no model was named. */
/* ignored: a drafter that was found but does not fit, and why not; "": none. name: what the model is called: as its
 * file is, or in Ollama's store as it is there. type: what its header says of its tensors ("Q4_K_M"); "": nothing. */
typedef struct {
    char model[4096], draft[4096];
    bool found_draft, own, demo;
    char ignored[512], why[512], name[256], type[16];
} Files;
bool files_find(Files *out, const Options *o, bool drafter);
/* Fetches what the options name by -hf or hf:, and puts its paths, which live in out, into o: for a command that wants
 * this done before it starts threads. Returns false after reporting an error. */
bool files_fetch(Files *out, Options *o);
/* Whether the files that the options name can be written, and are none of those that are read. Says why not. f NULL:
 * before the files are found, which does it again. */
bool outputs_good(const Options *o, const Files *f);
bool output_apart(const Options *o, const Files *f, const char *path);              /* the same of a path alone */
/* Whether path is that file, another part of it if it is split, or lies in that folder. */
bool input_has(const char *input, const char *path);
void taps_path(char out[4200], const Options *o);  /* the second file of `logits`, with --taps */

/* Where a model runs. backend "": what the options name; gpu_layers, expert_ram, expert_vram: see rt_needs; card_layers
 * [cards]: of each of several GPUs. */
typedef struct {
    char     backend[64];
    int32_t  gpu_layers, cards, card_layers[RT_CARDS_MAX];
    uint64_t expert_ram, expert_vram;
} Placement;

/* The engine, session and step object of a command. taps: see rt_options. */
typedef struct {
    const Options *o;
    Files       files;
    rt_card     card;                              /* the one that "auto" is; its name is empty: none */
    rt_engine  *engine;
    rt_session *session;
    rt_step    *step;
    Progress    bar;
    bool        barred;
    /* The prompt being read: its tokens, those of finished passes, and the layers of the current pass (see
     * program_step). */
    int64_t     reading, read, layers, layers_done;
    /* Optional extra callback that reports how much is loaded (total 0: a layer of a pass is done). Returning false
     * cancels. */
    bool      (*watch)(void *ud, int64_t done, int64_t total);
    void       *watch_ud;
    Acceptance  acceptance;                        /* of the drafter, in all texts so far */
    bool        plans;                             /* nothing will be loaded */
    bool        no_card;                           /* no GPU that was not asked for can be used: the CPU runs all */
    uint32_t    passed, failed;                    /* bits of the cards that have been checked, by their numbers */
    bool        settled;                           /* on which cards it runs */
    bool        placed;                            /* program_place has found the placement */
    Placement   place;
    /* Of the experts (expert_profile.h). path: malloc'd, NULL: none; there: it exists, and is this model's; kept: when
     * it was last written. */
    struct { char *path; bool there, keeps; double kept; } profile;
    rt_diffusion denoising;                        /* --diffusion */
    rt_expert_stats loaded;                        /* what experts had done when loading was over */
} Program;
/* OWN_SIGNALS: the command handles Ctrl-C itself. ONLY_PLANS: nothing will be loaded. */
enum { WITH_DRAFTER = 1, WITH_SESSION = 2, OWN_SIGNALS = 4, ONLY_PLANS = 8 };
/* *p must be zero except for `watch`. Returns false after reporting an error. Call program_close afterwards in any
 * case. */
bool program_open(Program *p, const Options *o, int with, const int32_t *taps, int32_t n_taps);
/* The two halves of program_open: finding the files, and loading them. */
bool program_find(Program *p, const Options *o, int with);
/* Has the first part of the model that was found read from the disk meanwhile: there is something to plan first. */
void program_read_early(const Program *p);
bool program_load(Program *p, int with, const int32_t *taps, int32_t n_taps);
/* rt_plan of the files that were found. A drafter that was not asked for is dropped from here on if it does not fit. */
typedef void (*PlanPart)(void *ud, const char *owner, const char *name, size_t bytes);
rt_status program_plan(Program *p, const rt_session_options *so, const rt_step_options *st, PlanPart part, void *ud,
                       rt_needs *needs, rt_error *e);
/* Settles how many layers a GPU runs, if the options name one, and how much memory a mixture's experts take, by what
 * there is room for besides so many sessions. *n: what is needed; zeros without a GPU or a mixture. */
rt_status program_place(Program *p, int32_t sessions, rt_needs *n, rt_error *e);
/* Whether further cards may run a part of the model, since none was asked for; and settles that all that can be used
 * do. RT_END: there are no others, or they have no room for a mixture; nothing changes. */
bool      program_may_spread(const Program *p, const rt_needs *n);
rt_status program_spread(Program *p, int32_t sessions, rt_needs *n, rt_error *e);
uint64_t  card_bytes(const rt_card_needs *c, int32_t sessions);        /* of its memory */
const char *program_backend(const Program *p);     /* as given, or as program_place has found it; NULL: neither */
/* What to do where that was too short in spite of the count, because others have taken it or --overcommit was given; ""
 * if why, a message of the library, is not about it. */
const char *program_gpu_hint(char out[160], const Program *p, const char *why);
/* Returns whether keys and values of type q8_0 would take a gigabyte less for so many tokens, and says so in out. row:
 * their bytes per token now; q8: then. */
bool kv_hint(char out[200], uint64_t row, uint64_t q8, double tokens);
void program_kv_hint(const Program *p, int32_t sessions);        /* notes it, for sessions of the options' context */
const char *program_gpu_text(char out[64], const Program *p);    /* ", 3 of 8 layers on the GPU"; "": none */
void program_expert_note(const Program *p);        /* notes how much of a mixture's experts is in memory, if not all */
bool program_session(Program *p);                  /* a session and a step object with the options' numbers */
void program_check_ctx(const Program *p);          /* notes a --ctx beyond what the model was trained for */
void program_close(Program *p);
/* rt_prompt, and rt_step_run for one session. If reading the prompt takes a while they show progress, rate and time
 * left. */
rt_status program_prompt(Program *p, rt_session *s, const int32_t *prompt, int32_t n);
int  complain_prompt(const Program *p, const rt_session *s, rt_status status);     /* why program_prompt failed */
rt_status program_step(Program *p, rt_step *step, rt_session *s, rt_block *out);
/* After a text that nothing constrained: warns once if the drafter turns out to guess almost nothing. */
void program_judge(Program *p, const rt_stats *s);
rt_options program_options(Program *p, const int32_t *taps, int32_t n_taps);
/* With --parallel: of a session of the server's. */
rt_session_options program_session_options(const Options *o);
rt_step_options program_step_options(Program *p);
void program_end_bar(Program *p);                  /* the progress bar's line, if there is one */
rt_hooks program_hooks(Program *p);                /* for steps: the progress bar of a prompt, and Ctrl-C */

/* Reads "1,2,3", or "@FILE" with numbers separated by commas or spaces; malloc'd. what: for messages. Returns false
 * after reporting an error. */
bool ids_read(const Options *o, int32_t **out, int32_t *n, const char *list, const char *what, int64_t min,
              int64_t max);
/* Reads a whole file, or standard input if path is NULL; malloc'd, NUL-terminated. Returns false after reporting an
 * error. */
bool text_read(const Options *o, char **out, size_t *n, const char *path);
/* Parses a whole file, or standard input if path is NULL, as JSON; the caller owns the value. Returns false with *out
 * NULL after reporting an error. */
bool json_file(const Options *o, json_t **out, const char *path);
/* Tokens of a text, with BOS if the model wants one; malloc'd. Returns false after reporting an error. */
bool text_tokens(const Program *p, int32_t **out, int32_t *n, const char *s, size_t len, bool special);
/* "prompt" of each line of a JSON lines file. group: its "class", or its "id" up to the slash, or "". */
typedef struct { char *text; size_t len; char group[32]; } Prompt;
typedef struct { Prompt *at; int32_t n; } Prompts;
bool prompts_read(const Options *o, Prompts *out, const char *path);
void prompts_free(Prompts *p);

/* After a command that failed: with --json, prints {"error": "..."} on standard output if nothing was printed there. */
void error_print(void);
void error_as_json(void);                          /* --json was given, among options that could not be read */
/* Prints one object on standard output and releases it. Returns false after reporting that writing failed. */
bool json_print(const Options *o, json_t *object);
/* Flushes standard output: returns EXIT_FINE, or what output_failed does. */
int  output_done(const Options *o);
/* Writing standard output has failed, with the reason in errno: returns EXIT_FAILED after reporting it. If its reader
 * has gone (`| head`) the process ends without a word, by SIGPIPE, as other programs do. */
int  output_failed(const Options *o);
/* Writes text of a model or a file. On a terminal control characters are shown as '?', so that a text cannot move the
 * cursor or change the window; elsewhere it is written byte for byte. Returns false if writing failed. */
bool text_show(FILE *f, const char *s, size_t n);
/* Path of one of our files for this user: in the folder named by an XDG variable, else in `folder` of the home. Returns
 * false if neither is known, the home does not exist, or the path is too long. */
bool user_path(char *out, size_t cap, const char *variable, const char *folder, const char *name);
/* A JSON string of arbitrary bytes: invalid ones become U+FFFD. */
json_t *json_text(const char *s, size_t n);
/* A number that the engine reports about itself; 0: unknown. */
int64_t property(const rt_engine *g, const char *key);
double median(double *x, int32_t n);               /* sorts x */

int cmd_run(int argc, char **argv), cmd_logits(int argc, char **argv),
    cmd_tokenize(int argc, char **argv), cmd_detokenize(int argc, char **argv), cmd_inspect(int argc, char **argv),
    cmd_plan(int argc, char **argv), cmd_verify(int argc, char **argv), cmd_doctor(int argc, char **argv),
    cmd_eval(int argc, char **argv), cmd_experts(int argc, char **argv), cmd_bench(int argc, char **argv),
    cmd_quantize(int argc, char **argv), cmd_render(int argc, char **argv), cmd_serve(int argc, char **argv),
    cmd_health(int argc, char **argv), cmd_chat(int argc, char **argv), cmd_pull(int argc, char **argv),
    cmd_models(int argc, char **argv);

#endif
