/* editor.h - messages typed at a terminal: libedit's line editing (Emacs keys, Ctrl-R, a history file), and several lines to a message: a
 * block between """ and """, a backslash at a line's end, Alt-Enter, or a paste, whose line ends belong to the text. */
#ifndef RATOON_PROGRAMS_EDITOR_H
#define RATOON_PROGRAMS_EDITOR_H

#include <stdbool.h>
#include <stddef.h>

#include "programs/options.h"

typedef struct Editor Editor;

/* The words that may follow what is typed: calls found for each that begins with `word`, which stands behind `before`. */
typedef void (*EditorWords)(const char *before, const char *word, void (*found)(void *list, const char *text), void *list);

/* history NULL: none is kept; otherwise the file, made with its folders where it is missing. False: said. editor_close afterwards. */
bool editor_open(Editor **out, const Options *o, const char *history, EditorWords words);
void editor_close(Editor *e);

/* INTERRUPTED: Ctrl-C, what was typed is dropped. END: Ctrl-D, or the terminal has gone. */
typedef enum { EDITED, EDIT_INTERRUPTED, EDIT_END, EDIT_NO_MEMORY } Edited;
/* A message without its last line end; malloc'd and valid UTF-8. prompt: shown before its first line. */
Edited editor_read(Editor *e, char **out, const char *prompt);

/* $XDG_STATE_HOME/ratoon/history, or below ~/.local/state; false: neither is known, or it is too long. */
bool editor_history_path(char *out, size_t cap);

#endif
