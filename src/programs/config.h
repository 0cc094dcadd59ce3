/* config.h - the configuration file: lines `key = value` with the names of the options, those before the first [command] for every command
 * that has the option. # begins a comment line; a value is all that stands behind the =, without the blanks around it. */
#ifndef RATOON_PROGRAMS_CONFIG_H
#define RATOON_PROGRAMS_CONFIG_H

#include <stdbool.h>

/* section NULL: before the first one. key NULL: the line opens the section. where: "FILE:LINE". Texts live until the program ends. */
typedef struct { const char *section, *key, *value, *where; } ConfigLine;

/* path NULL: $XDG_CONFIG_HOME/ratoon/config or ~/.config/ratoon/config, where a missing file is none. take returns false after saying why.
 * False: said. */
bool config_read(const char *command, const char *path, bool (*take)(void *ud, const ConfigLine *line), void *ud);

#endif
