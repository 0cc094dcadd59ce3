/* option_table.h - the table of options: one row per option, or several where commands understand it differently.
 * Rows stand in groups, as --help and the manual show them; a row that has only a heading begins one. */
#ifndef RATOON_PROGRAMS_OPTION_TABLE_H
#define RATOON_PROGRAMS_OPTION_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* CHOICE: a text that is one of `values`. TOKENS: an INT that may end in k or K, for 1024. MEMORY: auto, all, or bytes
 * with a unit, into a Seed: RT_EXPERTS_AUTO, 0 or the bytes; min: bytes of the unit of a plain number, 0: it needs one
 */
typedef enum { KIND_FLAG, KIND_TEXT, KIND_TEXTS, KIND_CHOICE, KIND_INT, KIND_TOKENS, KIND_SEED, KIND_REAL, KIND_BUDGET,
               KIND_SWITCH, KIND_LAYERS, KIND_MEMORY } Kind;

typedef struct {
    const char *name, *alias;                      /* alias NULL: none */
    Kind        kind;
    const char *value;                             /* the value's name in --help; with FILE or DIR in it, a path */
    size_t      place;                             /* of its field in Options */
    double      min, max;                          /* numbers only */
    uint32_t    commands;                          /* their bits; 0 in a heading */
    const char *help;
    const char *also;                              /* further names, mostly llama.cpp's: "-md --x"; NULL: none */
    const char *values;                            /* "on|off": offered by shells, all that a CHOICE may be; or NULL */
    bool        writes;                            /* the path is written, not read */
    const char *unset;                             /* numbers that stand for the default, as in llama.cpp; or NULL */
    const char *heading;                           /* of the group that begins here; NULL in an option's row */
} OptionSpec;

extern const OptionSpec option_table[];
extern const int32_t option_table_n;

uint32_t command_bit(const char *name);            /* 0: the command has no options */
uint32_t commands_that_work(void);                 /* the bits of all commands that read the configuration file */

/* The first n bytes of name, with dashes; in long names _ is as good as -. NULL: these commands have no such option. */
const OptionSpec *option_find(uint32_t owners, const char *name, size_t n);
const OptionSpec *option_named(uint32_t owners, const char *name);     /* "n-predict", without dashes */
/* Whether it is one of the names, which are separated by spaces. */
bool option_among(const char *names, const char *name, size_t n);
bool option_takes_path(const OptionSpec *s);
/* "; did you mean --prompt?", or "". text is where it is written. */
const char *option_suggest(char text[128], uint32_t owners, const char *typed);

#endif
