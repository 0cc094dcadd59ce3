/* config.h - the configuration file: lines `key = value` with the names of options. Those before the first [command]
 * apply to every command that has the option. A line that starts with # is a comment; a value is everything after the
 * =, without surrounding blanks and one pair of quotes. */
#ifndef RATOON_PROGRAMS_CONFIG_H
#define RATOON_PROGRAMS_CONFIG_H

#include <stdbool.h>

/* section NULL: before the first one. key NULL: the line opens the section. where: "FILE:LINE". The strings live until
 * the program ends. */
typedef struct { const char *section, *key, *value, *where; } ConfigLine;

/* path NULL: $XDG_CONFIG_HOME/ratoon/config or ~/.config/ratoon/config; a missing file there counts as empty. Returns
 * false after reporting an error, as does take. */
bool config_read(const char *command, const char *path, bool (*take)(void *ud, const ConfigLine *line), void *ud);
const char *config_used(void);                     /* the path of the file that was read; "": none */

#endif
