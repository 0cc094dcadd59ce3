/* chat_builtin.h - built-in templates for models that carry none: plain conversations in the markers of the large
 * model families. */
#ifndef RATOON_TEXT_CHAT_BUILTIN_H
#define RATOON_TEXT_CHAT_BUILTIN_H

#include <stdbool.h>

/* token: a marker that the vocabulary must contain; arch: only architectures whose name contains this, NULL: any. */
typedef struct { const char *name, *token, *arch, *source; } ChatBuiltin;

/* The first template whose marker is in the vocabulary; NULL if there is none. */
const ChatBuiltin *chat_builtin(const char *arch, bool (*has_token)(void *ud, const char *text), void *ud);

#endif
