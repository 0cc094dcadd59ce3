/* kept.h - small files in the user's cache folder, of one line for each key; the line written longest ago makes room
 * for a new one. A file that cannot be read or written is no error: what it holds can be found out again. */
#ifndef RATOON_PROGRAMS_KEPT_H
#define RATOON_PROGRAMS_KEPT_H

#include <stdbool.h>
#include <stddef.h>

enum { KEPT_MOST = 64, KEPT_KEY = 17, KEPT_TEXT = 2048 };      /* lines; bytes of a key and of a text with its end */

/* The file's name, and what its first line is: that of another version counts as no file. */
typedef struct { const char *name, *first; } KeptFile;

/* Where it is. Returns false if there is no such folder. */
bool kept_path(char *out, size_t cap, const KeptFile *f);
/* The key for everything that a line's text depends on. */
void kept_key(char out[KEPT_KEY], const char *all);
/* The text of a key. Returns false if there is none. */
bool kept_get(char out[KEPT_TEXT], const KeptFile *f, const char *key);
/* Keeps a text without line feeds, in place of an earlier one of this key. */
void kept_put(const KeptFile *f, const char *key, const char *text);

#endif
