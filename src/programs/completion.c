/* Completions of shells. A value is completed where its name says what it is: FILE and the like by files, "on|off" by its words. */
#include <string.h>

#include "programs/manual.h"
#include "programs/options.h"

typedef enum { VALUE_NONE, VALUE_FILE, VALUE_WORDS, VALUE_OTHER } ValueKind;

static ValueKind value_kind(const char *value)
{
    if (!value) return VALUE_NONE;
    if (strstr(value, "FILE") || strstr(value, "DIR") || strstr(value, ".json")) return VALUE_FILE;
    return strchr(value, '|') ? VALUE_WORDS : VALUE_OTHER;
}

/* "on|off" as "on off"; words in capitals stand for something and are left out. */
static void put_words(FILE *f, const char *value)
{
    for (const char *p = value; *p;) {
        size_t n = strcspn(p, "|");
        if (n > 0 && (*p < 'A' || *p > 'Z')) fprintf(f, "%s%.*s", p == value ? "" : " ", (int) n, p);
        p += n + (p[n] == '|');
    }
}

/* Up to the first end of a part, without what a shell would take for itself. */
static void put_help(FILE *f, const char *help)
{
    for (const char *p = help; *p && *p != ';' && !(*p == ' ' && p[1] == '('); p++)
        if (!strchr("'\"`$\\[]:", *p)) fputc(*p, f);
}

/* ---- bash ---- */

static void bash_command(FILE *f, const Command *c)
{
    OptionInfo x;
    fprintf(f, "    %s)\n        words='--help", c->name);
    for (int32_t at = 0; option_next(&x, c, &at);) fprintf(f, " %s%s%s", x.name, x.alias ? " " : "", x.alias ? x.alias : "");
    fputs("'\n        case \"$previous\" in\n", f);
    for (int32_t at = 0; option_next(&x, c, &at);) {
        ValueKind kind = value_kind(x.value);
        if (kind == VALUE_NONE) continue;
        fprintf(f, "        %s%s%s) ", x.name, x.alias ? "|" : "", x.alias ? x.alias : "");
        if (kind == VALUE_WORDS) {
            fputs("values='", f);
            put_words(f, x.value);
            fputs("'; kind=words ;;\n", f);
        } else {
            fputs(kind == VALUE_FILE ? "kind=files ;;\n" : "kind=other ;;\n", f);
        }
    }
    fputs("        esac ;;\n", f);
}

static void bash(FILE *f)
{
    fputs("# bash completion of ratoon, written by `ratoon help --completion bash`\n"
          "_ratoon() {\n"
          "    local current=\"${COMP_WORDS[COMP_CWORD]}\" previous=\"${COMP_WORDS[COMP_CWORD-1]}\" words='' values='' kind='' commands='", f);
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
          "    files) compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -f -- \"$current\") ;;\n"
          "    *) if [ \"${current#-}\" != \"$current\" ] || [ \"$previous\" = help ]; then\n"
          "            COMPREPLY=($(compgen -W \"$words\" -- \"$current\"))\n"
          "        else\n"
          "            compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -f -- \"$current\")\n"
          "        fi ;;\n"
          "    esac\n"
          "}\n"
          "complete -F _ratoon ratoon\n", f);
}

/* ---- zsh ---- */

static void zsh_value(FILE *f, const char *value)
{
    switch (value_kind(value)) {
    case VALUE_NONE: break;
    case VALUE_FILE: fputs(":file:_files", f); break;
    case VALUE_WORDS:
        fputs(":value:(", f);
        put_words(f, value);
        fputc(')', f);
        break;
    case VALUE_OTHER: fputs(":value: ", f); break;
    }
}

static void zsh_option(FILE *f, const char *name, const OptionInfo *x)
{
    fprintf(f, " \\\n            '*%s[", name);
    put_help(f, x->help);
    fputc(']', f);
    zsh_value(f, x->value);
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
        put_help(f, c->summary);
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
        else if (*c->words) fputs(" \\\n            '*:file:_files'", f);
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
        put_help(f, c->summary);
        fputs("'\n", f);
    }
    for (const Command *c = commands; c->name; c++) {
        for (int32_t at = 0; option_next(&x, c, &at);) {
            ValueKind kind = value_kind(x.value);
            fprintf(f, "complete -c ratoon -n '__fish_seen_subcommand_from %s' -l %s", c->name, x.name + 2);
            if (x.alias) fprintf(f, " -%c %s", x.alias[1] == '-' ? 'l' : x.alias[2] ? 'o' : 's', x.alias + (x.alias[1] == '-' ? 2 : 1));
            if (kind == VALUE_FILE) fputs(" -r -F", f);
            if (kind == VALUE_OTHER) fputs(" -x", f);
            if (kind == VALUE_WORDS) {
                fputs(" -x -a '", f);
                put_words(f, x.value);
                fputc('\'', f);
            }
            fputs(" -d '", f);
            put_help(f, x.help);
            fputs("'\n", f);
        }
    }
    fputs("complete -c ratoon -f -n '__fish_seen_subcommand_from help' -a '", f);
    for (const Command *c = commands; c->name; c++) fprintf(f, "%s%s", c == commands ? "" : " ", c->name);
    fputs("'\n", f);
}

bool completion_write(FILE *f, const char *shell)
{
    static const struct { const char *name; void (*write)(FILE *f); } shells[] = { { "bash", bash }, { "zsh", zsh }, { "fish", fish } };
    for (size_t i = 0; i < sizeof shells / sizeof *shells; i++) {
        if (strcmp(shells[i].name, shell) != 0) continue;
        shells[i].write(f);
        return true;
    }
    return false;
}
