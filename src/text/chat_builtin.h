/* chat_builtin.h - templates of ours for models that carry none: the plain conversation in the markers of the great families. */
#ifndef RATOON_TEXT_CHAT_BUILTIN_H
#define RATOON_TEXT_CHAT_BUILTIN_H

#include <stdbool.h>

/* token: a marker that the vocabulary has to hold; arch: only for these architectures (a part of the name), NULL any. */
typedef struct { const char *name, *token, *arch, *source; } ChatBuiltin;

/* The first whose marker the vocabulary has; NULL: none. */
const ChatBuiltin *chat_builtin(const char *arch, bool (*has_token)(void *ud, const char *text), void *ud);

#endif
