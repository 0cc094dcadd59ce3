/* Shell completions. Values come from the table of options where it lists them; models are .gguf files and folders. */
#include <string.h>

#include "format/recipe.h"
#include "programs/manual.h"
#include "programs/options.h"

typedef enum { VALUE_NONE, VALUE_MODEL, VALUE_FILE, VALUE_WORDS, VALUE_OTHER } ValueKind;

static ValueKind value_kind(const OptionInfo *x)
{
    if (!x->value) return VALUE_NONE;
    if (x->values) return VALUE_WORDS;
    if (strcmp(x->name, "--model") == 0 || strcmp(x->name, "--draft") == 0) return VALUE_MODEL;
    return x->path ? VALUE_FILE : VALUE_OTHER;
}

/* Writes "on|off" as "on off". */
static void put_words(FILE *f, const char *values)
{
    for (const char *p = values; *p; p++) fputc(*p == '|' ? ' ' : *p, f);
}

/* The types of `quantize`, for a command whose words have one. */
static void put_types(FILE *f, const Command *c)
{
    if (!strstr(c->words, "TYPE")) return;
    for (int32_t i = 0; recipe_at(i); i++) fprintf(f, "%s%s", i ? " " : "", recipe_name(recipe_at(i)));
}

/* Writes the first clause, for a place between single quotes. marks: characters that need a backslash there; quote: how
 * a single quote is written. */
static void put_help(FILE *f, const char *help, const char *marks, const char *quote)
{
    for (const char *p = help; *p && *p != ';' && !(*p == ' ' && p[1] == '('); p++) {
        if (strchr(marks, *p)) fputc('\\', f);
        if (*p == '\'') fputs(quote, f);
        else fputc(*p, f);
    }
}

static void put_zsh_help(FILE *f, const char *help) { put_help(f, help, "[]:\\", "'\\''"); }
static void put_fish_help(FILE *f, const char *help) { put_help(f, help, "\\", "\\'"); }

/* ---- bash ---- */

static void bash_command(FILE *f, const Command *c)
{
    OptionInfo x;
    fprintf(f, "    %s)\n        words='--help", c->name);
    for (int32_t at = 0; option_next(&x, c, &at);)
        fprintf(f, " %s%s%s", x.name, x.alias ? " " : "", x.alias ? x.alias : "");
    fputs("'\n        case \"$previous\" in\n", f);
    for (int32_t at = 0; option_next(&x, c, &at);) {
        static const char *const kinds[] = { [VALUE_MODEL] = "models", [VALUE_FILE] = "files", [VALUE_WORDS] = "words",
                                             [VALUE_OTHER] = "other" };
        ValueKind kind = value_kind(&x);
        if (kind == VALUE_NONE) continue;
        fprintf(f, "        %s%s%s) ", x.name, x.alias ? "|" : "", x.alias ? x.alias : "");
        if (kind == VALUE_WORDS) {
            fputs("values='", f);
            put_words(f, x.values);
            fputs("'; ", f);
        }
        fprintf(f, "kind=%s ;;\n", kinds[kind]);
    }
    fputs("        esac\n        types='", f);
    put_types(f, c);
    fputs("' ;;\n", f);
}

static void bash(FILE *f)
{
    fputs("# bash completion of ratoon, written by `ratoon help --completion bash`\n"
          "_ratoon() {\n"
          "    local current=\"${COMP_WORDS[COMP_CWORD]}\" previous=\"${COMP_WORDS[COMP_CWORD-1]}\" words='' values='' "
          "kind='' types='' commands='", f);
    for (const Command *c = commands; c->name; c++) fprintf(f, "%s%s", c == commands ? "" : " ", c->name);
    fputs("'\n    COMPREPLY=()\n"
          "    if [ \"$COMP_CWORD\" -eq 1 ]; then\n"
          "        COMPREPLY=($(compgen -W \"$commands --help --version\" -- \"$current\"))\n"
          "        return\n"
          "    fi\n"
          "    case \"${COMP_WORDS[1]}\" in\n", f);
    for (const Command *c = commands; c->name; c++) bash_command(f, c);
    fputs("    esac\n"
          "    if [ \"$previous\" = help ] && [ \"$COMP_CWORD\" -eq 2 ]; then words=\"$words $commands\"; fi\n"
          "    case \"$kind\" in\n"
          "    words) COMPREPLY=($(compgen -W \"$values\" -- \"$current\")) ;;\n"
          "    other) ;;\n"
          "    models) compopt -o filenames 2>/dev/null\n"
          "        mapfile -t COMPREPLY < <(compgen -f -X '!*.gguf' -- \"$current\"; compgen -d -- \"$current\") ;;\n"
          "    files) compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -f -- \"$current\") ;;\n"
          "    *) if [ \"${current#-}\" != \"$current\" ] || [ \"$previous\" = help ]; then\n"
          "            COMPREPLY=($(compgen -W \"$words\" -- \"$current\"))\n"
          "        else\n"
          "            compopt -o filenames 2>/dev/null\n"
          "            mapfile -t COMPREPLY < <(compgen -W \"$types\" -- \"$current\"; compgen -f -- \"$current\")\n"
          "        fi ;;\n"
          "    esac\n"
          "}\n"
          "complete -F _ratoon ratoon\n", f);
}

/* ---- zsh ---- */

static void zsh_value(FILE *f, const OptionInfo *x)
{
    switch (value_kind(x)) {
    case VALUE_NONE: break;
    case VALUE_MODEL: fputs(":model:_files -g \"*.gguf\"", f); break;
    case VALUE_FILE: fputs(":file:_files", f); break;
    case VALUE_WORDS:
        fputs(":value:(", f);
        put_words(f, x->values);
        fputc(')', f);
        break;
    case VALUE_OTHER: fputs(":value: ", f); break;
    }
}

static void zsh_option(FILE *f, const char *name, const OptionInfo *x)
{
    fprintf(f, " \\\n            '*%s[", name);
    put_zsh_help(f, x->help);
    fputc(']', f);
    zsh_value(f, x);
    fputc('\'', f);
}

static void zsh(FILE *f)
{
    OptionInfo x;
    fputs("#compdef ratoon\n"
          "# zsh completion of ratoon, written by `ratoon help --completion zsh`\n"
          "_ratoon() {\n"
          "    local -a commands\n"
          "    commands=(\n", f);
    for (const Command *c = commands; c->name; c++) {
        fprintf(f, "        '%s:", c->name);
        put_zsh_help(f, c->summary);
        fputs("'\n", f);
    }
    fputs("    )\n"
          "    if (( CURRENT == 2 )); then\n"
          "        _describe 'command' commands\n"
          "        return\n"
          "    fi\n"
          "    local command=$words[2]\n"
          "    words=(\"${(@)words[2,-1]}\")\n"
          "    (( CURRENT-- ))\n"
          "    case $command in\n", f);
    for (const Command *c = commands; c->name; c++) {
        fprintf(f, "    %s)\n        _arguments", c->name);
        for (int32_t at = 0; option_next(&x, c, &at);) {
            zsh_option(f, x.name, &x);
            if (x.alias) zsh_option(f, x.alias, &x);
        }
        fputs(" \\\n            '--help[explains the command]'", f);
        if (strcmp(c->name, "help") == 0) fputs(" \\\n            '1:command:(($commands))'", f);
        else if (strstr(c->words, "TYPE")) {
            fputs(" \\\n            '1:file:_files' '2:file:_files' '3:type:(", f);
            put_types(f, c);
            fputs(")'", f);
        } else if (*c->words) fputs(" \\\n            '*:file:_files'", f);
        fputs(" ;;\n", f);
    }
    fputs("    esac\n"
          "}\n"
          "if [ \"$funcstack[1]\" = _ratoon ]; then _ratoon \"$@\"; else compdef _ratoon ratoon; fi\n", f);
}

/* ---- fish ---- */

static void fish(FILE *f)
{
    OptionInfo x;
    fputs("# fish completion of ratoon, written by `ratoon help --completion fish`\n", f);
    for (const Command *c = commands; c->name; c++) {
        fprintf(f, "complete -c ratoon -f -n __fish_use_subcommand -a %s -d '", c->name);
        put_fish_help(f, c->summary);
        fputs("'\n", f);
    }
    for (const Command *c = commands; c->name; c++) {
        for (int32_t at = 0; option_next(&x, c, &at);) {
            ValueKind kind = value_kind(&x);
            fprintf(f, "complete -c ratoon -n '__fish_seen_subcommand_from %s' -l %s", c->name, x.name + 2);
            if (x.alias)
                fprintf(f, " -%c %s", x.alias[1] == '-' ? 'l' : x.alias[2] ? 'o' : 's',
                        x.alias + (x.alias[1] == '-' ? 2 : 1));
            if (kind == VALUE_FILE || kind == VALUE_MODEL) fputs(" -r -F", f);
            if (kind == VALUE_OTHER) fputs(" -x", f);
            if (kind == VALUE_WORDS) {
                fputs(" -x -a '", f);
                put_words(f, x.values);
                fputc('\'', f);
            }
            fputs(" -d '", f);
            put_fish_help(f, x.help);
            fputs("'\n", f);
        }
    }
    fputs("complete -c ratoon -n '__fish_seen_subcommand_from quantize' -a '", f);
    put_types(f, command_find("quantize"));
    fputs("'\ncomplete -c ratoon -f -n '__fish_seen_subcommand_from help' -a '", f);
    for (const Command *c = commands; c->name; c++) fprintf(f, "%s%s", c == commands ? "" : " ", c->name);
    fputs("'\n", f);
}

void completion_write(FILE *f, const char *shell)
{
    if (strcmp(shell, "bash") == 0) bash(f);
    else if (strcmp(shell, "zsh") == 0) zsh(f);
    else fish(f);
}
