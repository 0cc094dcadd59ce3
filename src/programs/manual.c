/* The manual page, in mdoc. All text from the tables is escaped, so that none of it is read as a macro. */
#include "programs/manual.h"

#include <string.h>

#include "programs/foreign.h"
#include "programs/options.h"
#include "ratoon.h"

static void put_char(FILE *f, char c)
{
    if (c == '\\') fputs("\\e", f);
    else if (c == '-') fputs("\\-", f);
    else if (c == '\'') fputs("\\(aq", f);
    else if (c == '`') fputs("\\(ga", f);
    else if (c == '^') fputs("\\(ha", f);
    else if (c == '~') fputs("\\(ti", f);
    else fputc(c, f);
}

/* Running text, one sentence per line. */
static void put_text(FILE *f, const char *s)
{
    bool begins = true;
    for (; *s; s++) {
        if (begins && strchr(".'", *s)) fputs("\\&", f);
        begins = false;
        put_char(f, *s);
        if (strchr(".?!", *s) && s[1] == ' ') {
            fputc('\n', f);
            while (s[1] == ' ') s++;
            begins = true;
        }
    }
    fputc('\n', f);
}

/* Lines, unchanged. */
static void put_lines(FILE *f, const char *s)
{
    bool begins = true;
    for (; *s; s++) {
        if (begins && strchr(".'", *s)) fputs("\\&", f);
        begins = *s == '\n';
        put_char(f, *s);
    }
}

/* An argument of a macro: one word that is not taken for a macro name. */
static void put_word(FILE *f, const char *s)
{
    fputs("\\&", f);
    for (; *s; s++) put_char(f, *s);
}

/* The commands that have this option, as a sentence. */
static void put_owners(FILE *f, uint32_t owners)
{
    bool any = false;
    for (const Command *c = commands; c->name; c++) {
        if (!command_owns(c, owners)) continue;
        fprintf(f, "%s%s", any ? ", " : "(", c->name);
        any = true;
    }
    fputs(")\n", f);
}

static void put_option(FILE *f, const OptionInfo *x)
{
    fputs(".It ", f);
    if (x->alias) {
        fputs("Fl ", f);
        put_word(f, x->alias + 1);
        fputs(" , ", f);
    }
    fputs("Fl ", f);
    put_word(f, x->name + 1);
    if (x->value) {
        fputs(" Ar ", f);
        put_word(f, x->value);
    }
    fputc('\n', f);
    put_text(f, x->help);
    if (x->also) {
        fputs("Also ", f);
        put_text(f, x->also);
    }
    put_owners(f, x->owners);
}

static void put_options(FILE *f)
{
    const char *group = NULL;
    OptionInfo x;
    for (int32_t at = 0; option_next(&x, NULL, &at); group = x.group) {
        if (group != x.group) fprintf(f, "%s.Ss %s\n.Bl -tag -width Ds\n", group ? ".El\n" : "", x.group);
        put_option(f, &x);
    }
    fputs(".El\n", f);
}

static void put_foreign(FILE *f)
{
    fputs(".Sh LLAMA.CPP\nThese options of llama.cpp's programs are accepted, with a line that says why they mean "
          "nothing here.\n.Fl cnv\nand\n.Fl i\nare those of\n.Cm chat ,\n.Fl \\-chat\\-template\\-kwargs\nis refused.\n"
          ".Bl -tag -width Ds\n", f);
    for (const Foreign *x = foreign_options; x->names; x++) {
        fputs(".It ", f);
        put_text(f, x->names);
        put_text(f, x->word);
    }
    fputs(".El\n", f);
}

static void put_command(FILE *f, const Command *c)
{
    fprintf(f, ".Ss ratoon %s%s%s\n", c->name, *c->words ? " " : "", c->words);
    put_text(f, c->summary);
    if (!*c->more) return;
    fputs(".Bd -literal\n", f);
    put_lines(f, c->more);
    fputs(".Ed\n", f);
}

void manual_write(FILE *f)
{
    fputs(".Dd $Mdocdate$\n.Dt RATOON 1\n", f);
    fprintf(f, ".Os ratoon %s\n", rt_version());
    fputs(".Sh NAME\n.Nm ratoon\n.Nd runs language models on this machine, several tokens per pass\n", f);
    fputs(".Sh SYNOPSIS\n.Nm\n.Ar command\n.Op Ar options\n.Sh DESCRIPTION\n.Nm\n"
          "runs language models from GGUF files.\n"
          "A small drafter guesses the next tokens, and the model checks all guesses in one pass.\n"
          "The text is exactly that of ordinary decoding: what is guessed, and by whom, changes no byte of it.\n"
          ".Pp\n"
          "Results go to standard output, everything else to standard error.\n"
          "Options are written\n.Fl \\-name Ar value\nor\n.Fl \\-name Ns = Ns Ar value ;\n"
          "behind\n.Fl \\-\nthere are only words.\n.Fl \\-help\nexplains any command.\n"
          "Numbers may follow an option of one letter without a space\n.Pq Fl n5 ,\n"
          "and _ in a long name is as good as \\-.\n"
          "Numbers of tokens may end in k, for 1024.\n.Pp\n"
          "The first word is the model if\n.Fl m\nis not given: a file or folder that exists, a name that ends in "
          ".gguf or begins with hf:, hf.co/ or https://huggingface.co/,\n.Ar ORG/NAME Ns Op Ar :QUANT ,\n"
          "or the name of a model on this machine, such as qwen3:4b\n.Pq Nm Cm models .\n"
          "A path,\n.Ar NAME:TAG\nor a word that nearly ends in .gguf is also taken as the model where words follow, "
          "and in\n.Cm chat .\n"
          "Where a command has a prompt, other words are the prompt.\n.Sh COMMANDS\n", f);
    for (const Command *c = commands; c->name; c++) put_command(f, c);
    fputs(".Sh OPTIONS\nThe commands that have an option stand in brackets behind it.\n", f);
    put_options(f);
    put_foreign(f);
    fputs(".Sh ENVIRONMENT\n.Bl -tag -width Ds\n"
          ".It Ev RATOON_MODEL , RATOON_CTX , RATOON_HOST No ...\n"
          "Every option of a command may stand in a variable with its long name: in capitals, with _ for \\-.\n"
          "Flags are\n.Ql true\nor\n.Ql false .\n"
          "The command line wins over variables, and they win over the configuration file.\n"
          "Empty ones count for nothing.\n"
          ".It Ev RATOON_API_KEY\nKeys for\n.Nm\n.Cm serve ,\nseparated by commas, besides those of\n"
          ".Fl \\-api\\-key .\n"
          ".It Ev NO_COLOR\nIf set and not empty,\n.Nm\nwrites no colours.\n"
          ".It Ev XDG_CACHE_HOME\nWhere the times of passes and the checks of cards are kept, instead of\n"
          ".Pa \\(ti/.cache ;\nfetched models, too, unless\n.Ev HF_HOME\nor\n.Ev HF_HUB_CACHE\nsays otherwise.\n"
          ".It Ev XDG_CONFIG_HOME\nWhere the configuration file is looked for, instead of\n.Pa \\(ti/.config .\n"
          ".It Ev XDG_STATE_HOME\nWhere\n.Nm\n.Cm chat\nkeeps its history, instead of\n"
          ".Pa \\(ti/.local/state .\n.El\n", f);
    fputs(".Sh FILES\n.Bl -tag -width Ds\n"
          ".It Pa $XDG_CONFIG_HOME/ratoon/config\n"
          "Options as lines\n.Ql key = value ,\nwith the names of the options without their dashes.\n"
          "Flags are\n.Ql true\nor\n.Ql false .\n"
          "Lines before the first\n.Ql \\&[command]\nhold for every command that has the option, those behind it for "
          "that command.\n"
          "A line that begins with # is a comment.\n"
          "A value may stand in quotes; in double ones, \\en, \\et, \\e\\(dq and \\e\\e have their usual meaning.\n"
          "A path that begins with \\(ti/ is in the home folder.\nThe command line wins.\n"
          ".Bd -literal\nmodel = /srv/models/qwen3.5\\-4b.gguf\nthreads = 8\n\n[chat]\ntemp = 0.7\n"
          "system = Answer briefly.\n.Ed\n"
          ".It Pa $XDG_CACHE_HOME/ratoon/costs\nWhat was learned about the times of passes. It can be removed at "
          "any time.\n"
          ".It Pa $XDG_CACHE_HOME/ratoon/cards\nWhich cards have passed their check, with which models. It can be "
          "removed at any time.\n"
          ".It Pa \\(ti/.local/state/ratoon/history\nThe last 1000 messages typed in\n.Nm\n.Cm chat .\n.El\n"
          ".Sh EXIT STATUS\n.Bl -tag -width Ds\n.It 0\nSuccess, also where an answer was ended by a limit.\n"
          ".It 1\nFailure.\n.It 2\nWrong usage.\n.It 3\nThe model does not fit in memory\n"
          ".Pq Cm plan , doctor .\n.It 130\nCtrl-C; in a chat, twice within a second.\n"
          ".It 141\nThe reader of standard output has gone; the program ends by SIGPIPE.\n.El\n", f);
}
