/* program.h - what the commands share: opening an engine from options, saying things on standard error, hearing Ctrl-C, reading text
 * and lists of numbers. Standard output carries results only. */
#ifndef RATOON_PROGRAMS_PROGRAM_H
#define RATOON_PROGRAMS_PROGRAM_H

#include <jansson.h>
#include <signal.h>

#include "programs/options.h"
#include "programs/progress.h"
#include "ratoon.h"

extern volatile sig_atomic_t interrupts;           /* Ctrl-C so far; the second one ends the process with 130 */
void hear_interrupts(void);

/* One line "ratoon COMMAND: ..." on standard error; returns EXIT_FAILED. Control characters from outside become '?'. */
int complain(const Options *o, const char *format, ...) __attribute__((format(printf, 2, 3)));
void note(const Options *o, const char *format, ...) __attribute__((format(printf, 2, 3)));   /* unless --quiet */

/* Finds the files: the demo pair without -m, the drafter by neighbourhood without -d; says which. */
/* draft "": none, "mtp": the target's own layer; found_draft: nobody asked for it; own: the target's layer, where it has one, is welcome */
typedef struct { char model[4096], draft[4096]; bool found_draft, own; } Files;
bool files_find(Files *out, const Options *o, bool drafter);

/* The engine, a session and a step object of a command. taps: see rt_options. */
typedef struct {
    const Options *o;
    Files       files;
    rt_engine  *engine;
    rt_session *session;
    rt_step    *step;
    Progress    bar;
    bool        barred;
    /* The prompt that is being read: its tokens, those of finished passes, layers of the pass under way (see program_step). */
    int64_t     reading, read, layers, layers_done;
    /* NULL, or asked besides: how much is loaded (total 0: a layer of a pass is done). False cancels. */
    bool      (*watch)(void *ud, int64_t done, int64_t total);
    void       *watch_ud;
} Program;
/* OWN_SIGNALS: Ctrl-C is the command's own affair. */
enum { WITH_DRAFTER = 1, WITH_SESSION = 2, OWN_SIGNALS = 4 };
/* *p is zero but for `watch`. False: the reason has been said. program_close afterwards in any case. */
bool program_open(Program *p, const Options *o, int with, const int32_t *taps, int32_t n_taps);
bool program_session(Program *p);                  /* a session and a step object with the options' numbers */
void program_close(Program *p);
/* rt_prompt, and rt_step_run for one session: where reading the prompt takes a while they show how far it is, with rate and time left. */
rt_status program_prompt(Program *p, rt_session *s, const int32_t *prompt, int32_t n);
rt_status program_step(Program *p, rt_step *step, rt_session *s, rt_block *out);
rt_options program_options(Program *p, const int32_t *taps, int32_t n_taps);
rt_session_options program_session_options(const Options *o);
rt_step_options program_step_options(const Options *o);
rt_sampling program_sampling(const Options *o, int32_t max_tokens);

/* "1,2,3", or "@FILE" with numbers between commas or spaces; malloc'd. what: for messages. False: said. */
bool ids_read(const Options *o, int32_t **out, int32_t *n, const char *list, const char *what, int64_t min, int64_t max);
/* Whole file, or standard input for NULL; malloc'd, with a NUL behind it. False: said. */
bool text_read(const Options *o, char **out, size_t *n, const char *path);
/* The JSON value of a whole file, or of standard input for NULL; the caller's. False: said, and *out is NULL. */
bool json_file(const Options *o, json_t **out, const char *path);
/* Tokens of a text, with the model's BOS where it asks for one; malloc'd. False: said. */
bool text_tokens(const Program *p, int32_t **out, int32_t *n, const char *s, size_t len, bool special);
/* "prompt" of every line of a JSON lines file; group: its "class", or its "id" up to the slash, or "". */
typedef struct { char *text; size_t len; char group[32]; } Prompt;
typedef struct { Prompt *at; int32_t n; } Prompts;
bool prompts_read(const Options *o, Prompts *out, const char *path);
void prompts_free(Prompts *p);

/* One object on standard output; takes it. False: writing failed, said. */
bool json_print(const Options *o, json_t *object);
/* Everything on standard output has been written: EXIT_FINE, or EXIT_FAILED after saying why not. */
int  output_done(const Options *o);
const char *base_name(const char *path);
/* Where a file of ours lies for this user: in the folder that an XDG variable names, else in `folder` of the home. False: nowhere, or too long. */
bool user_path(char *out, size_t cap, const char *variable, const char *folder, const char *name);
/* A JSON string of bytes that may be anything: bad ones become U+FFFD. */
json_t *json_text(const char *s, size_t n);
/* A number that the engine knows about itself; 0: unknown. */
int64_t property(const rt_engine *g, const char *key);
double median(double *x, int32_t n);               /* sorts x */
double seconds_now(void);

int cmd_run(int argc, char **argv), cmd_logits(int argc, char **argv), cmd_tokenize(int argc, char **argv), cmd_detokenize(int argc, char **argv),
    cmd_inspect(int argc, char **argv), cmd_plan(int argc, char **argv), cmd_verify(int argc, char **argv), cmd_doctor(int argc, char **argv),
    cmd_eval(int argc, char **argv), cmd_bench(int argc, char **argv), cmd_quantize(int argc, char **argv),
    cmd_render(int argc, char **argv), cmd_serve(int argc, char **argv),
    cmd_chat(int argc, char **argv);

#endif
