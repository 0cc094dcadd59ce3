/* command_line.h - what stands on a command line: options with their values, and words. A command says what its words
 * are by a pattern (Command.words): a word that is named as an option, "[MODEL]" or "[PROMPT...]", is that option's
 * value, and others are kept in Options.word. */
#ifndef RATOON_PROGRAMS_COMMAND_LINE_H
#define RATOON_PROGRAMS_COMMAND_LINE_H

#include "programs/foreign.h"
#include "programs/option_table.h"
#include "programs/options.h"

/* value NULL: a flag without a value. where: what an error names in front of the option; NULL: nothing */
typedef struct { const OptionSpec *spec; const char *value, *where; } Given;
typedef struct { const Foreign *option; const char *name; } GivenForeign;

typedef struct {
    Given        *given; int32_t n;
    GivenForeign *foreign; int32_t n_foreign;
    const char  **word; int32_t n_words, n_early;  /* the first n_early stand before "--" */
    const char   *bare;                            /* the prompt's first word, if it could be a model's name; or NULL */
} CommandLine;

/* o->command is set. True: run the command; *status as for options_read. Call line_free in any case. */
bool line_read(CommandLine *l, Options *o, int argc, char **argv, int *status);
void line_free(CommandLine *l);
/* Room for a text of n bytes until the program ends, zeroed; NULL: out of memory. */
char *line_keep(size_t n);

#endif
