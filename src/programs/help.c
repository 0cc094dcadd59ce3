/* help.c - what `ratoon help` and --help print: 80 columns, options in groups. */
#include <string.h>

#include "programs/options.h"

enum { WIDTH = 80, COLUMN = 27 };

/* Prints a text wrapped at spaces; the first line begins in column `indent`, where the cursor is. */
static void print_wrapped(FILE *f, const char *text, int indent)
{
    int at = 0;
    for (const char *p = text; *p;) {
        int n = (int) strcspn(p, " ");
        if (at > 0 && at + 1 + n > WIDTH - indent) {
            fprintf(f, "\n%*s", indent, "");
            at = 0;
        }
        at += fprintf(f, "%s%.*s", at > 0 ? " " : "", n, p);
        p += n;
        while (*p == ' ') p++;
    }
    fputc('\n', f);
}

static void print_entry(FILE *f, const char *left, const char *text)
{
    int n = fprintf(f, "  %s", left);
    if (n > COLUMN - 2) fputc('\n', f), n = 0;
    fprintf(f, "%*s", COLUMN - n, "");
    print_wrapped(f, text, COLUMN);
}

static void print_option(FILE *f, const OptionInfo *x)
{
    char left[80];
    snprintf(left, sizeof left, "%s%s%s%s%s", x->alias ? x->alias : "", x->alias ? ", " : "", x->name,
             x->value ? " " : "", x->value ? x->value : "");
    print_entry(f, left, x->help);
}

void options_help(FILE *f, const Command *c)
{
    const char *group = NULL;
    OptionInfo x;
    fprintf(f, "Usage: ratoon %s [options]%s%s\n\n", c->name, *c->words ? " " : "", c->words);
    print_wrapped(f, c->summary, 0);
    for (int32_t at = 0; option_next(&x, c, &at); group = x.group) {
        if (group != x.group) fprintf(f, "\n%s:\n", x.group);
        print_option(f, &x);
    }
    if (*c->more) fprintf(f, "\n%s", c->more);
}

void commands_help(FILE *f)
{
    fputs("Usage: ratoon COMMAND [options]\n\n"
          "Runs language models on this machine, several tokens per pass. The text is\n"
          "exactly that of ordinary decoding.\n", f);
    for (const Command *c = commands; c->name; c++) {
        if (c->heading) fprintf(f, "\n%s:\n", c->heading);
        int n = fprintf(f, "  %-12s", c->name);
        print_wrapped(f, c->summary, n);
    }
    fputs("\nStart with:   ratoon run -p 'def hello(name):'\n"
          "Then:         ratoon COMMAND --help, or man ratoon (ratoon help --man)\n", f);
}
