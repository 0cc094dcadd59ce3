/* The manual page, in mdoc. Every text from the tables is escaped: nothing of it can be taken for a macro. */
#include "programs/manual.h"

#include <string.h>

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

/* Running text, a sentence a line. */
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

/* Lines as they are. */
static void put_lines(FILE *f, const char *s)
{
    bool begins = true;
    for (; *s; s++) {
        if (begins && strchr(".'", *s)) fputs("\\&", f);
        begins = *s == '\n';
        put_char(f, *s);
    }
}

/* An argument of a macro: one word that is no macro's name. */
static void put_word(FILE *f, const char *s)
{
    fputs("\\&", f);
    for (; *s; s++) put_char(f, *s);
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
}

static void put_command(FILE *f, const Command *c)
{
    OptionInfo x;
    int32_t at = 0;
    bool any = false;
    fprintf(f, ".Ss ratoon %s%s%s\n", c->name, *c->words ? " " : "", c->words);
    put_text(f, c->summary);
    for (; option_next(&x, c, &at); any = true) {
        if (!any) fputs(".Bl -tag -width Ds\n", f);
        put_option(f, &x);
    }
    if (any) fputs(".El\n", f);
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
          "behind\n.Fl \\-\nthere are only words.\n.Fl \\-help\nexplains any command.\n.Sh COMMANDS\n", f);
    for (const Command *c = commands; c->name; c++) put_command(f, c);
    fputs(".Sh ENVIRONMENT\n.Bl -tag -width Ds\n"
          ".It Ev NO_COLOR\nIf set and not empty,\n.Nm\nwrites no colours.\n"
          ".It Ev XDG_CONFIG_HOME\nWhere the configuration file is looked for, instead of\n.Pa \\(ti/.config .\n"
          ".It Ev XDG_STATE_HOME\nWhere\n.Nm\n.Cm chat\nkeeps its history, instead of\n.Pa \\(ti/.local/state .\n.El\n", f);
    fputs(".Sh FILES\n.Bl -tag -width Ds\n"
          ".It Pa $XDG_CONFIG_HOME/ratoon/config\n"
          "Options as lines\n.Ql key = value ,\nwith the names of the options without their dashes.\n"
          "Flags are\n.Ql true\nor\n.Ql false .\n"
          "Lines before the first\n.Ql \\&[command]\nhold for every command that has the option, those behind it for that command.\n"
          "A line that begins with # is a comment.\nThe command line wins.\n"
          ".Bd -literal\nmodel = /srv/models/qwen3.5\\-4b.gguf\nthreads = 8\n\n[chat]\ntemp = 0.7\nsystem = Answer briefly.\n.Ed\n"
          ".It Pa $XDG_STATE_HOME/ratoon/history\nThe last 1000 messages typed in\n.Nm\n.Cm chat .\n.El\n"
          ".Sh EXIT STATUS\n.Bl -tag -width Ds\n.It 0\nSuccess, also where an answer was ended by Ctrl-C or a limit.\n"
          ".It 1\nFailure.\n.It 2\nWrong usage.\n.It 130\nA second Ctrl-C.\n.El\n", f);
}
