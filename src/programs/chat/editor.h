/* editor.h - messages typed at a terminal: libedit's line editing (Emacs keys, Ctrl-R, a history file), and messages of
 * several lines: a block between """ and """, a backslash at the end of a line, Alt-Enter, or a paste, whose line ends
 * belong to the text. */
#ifndef RATOON_PROGRAMS_CHAT_EDITOR_H
#define RATOON_PROGRAMS_CHAT_EDITOR_H

#include <stdbool.h>
#include <stddef.h>

#include "programs/options.h"

typedef struct Editor Editor;

/* Completes what is typed: calls found for each word that begins with `word`; `before` is the text before it. */
typedef void (*EditorWords)(const char *before, const char *word, void (*found)(void *list, const char *text),
                            void *list);

/* history: the file, created with its folders if missing; NULL: no history. Returns false after reporting an error.
 * Call editor_close afterwards. */
bool editor_open(Editor **out, const Options *o, const char *history, EditorWords words);
void editor_close(Editor *e);

/* INTERRUPTED: Ctrl-C, the typed text is dropped. END: Ctrl-D, or the terminal is gone. */
typedef enum { EDITED, EDIT_INTERRUPTED, EDIT_END, EDIT_NO_MEMORY } Edited;
/* Reads a message, without its last line end; malloc'd, valid UTF-8. prompt: shown before its first line. */
Edited editor_read(Editor *e, char **out, const char *prompt);

/* $XDG_STATE_HOME/ratoon/history, or under ~/.local/state; returns false if neither is known, or the path is too
 * long. */
bool editor_history_path(char *out, size_t cap);

#endif
