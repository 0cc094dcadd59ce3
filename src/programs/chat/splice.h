/* splice.h - prompts that contain earlier answers as exactly the tokens that the model wrote. The conversation is
 * rendered with an unguessable mark in place of each such answer. The rendering is split at the marks, and the prompt
 * is assembled from the tokens of the texts between them and those of the answers.
 *
 *     rendering    <user> One? <end> <assistant> @@secret.1@@ <end> <user> Two? <end> <assistant>
 *     prompt       [tokens of the text]          [the answer] [tokens of the text]
 */
#ifndef RATOON_PROGRAMS_CHAT_SPLICE_H
#define RATOON_PROGRAMS_CHAT_SPLICE_H

#include "programs/chat/chat.h"

typedef struct { char text[25]; } SpliceSecret;
typedef struct { char text[64]; } SpliceMark;

SpliceSecret splice_secret(const unsigned char random[12]);
/* what: "", or a word that distinguishes marks of one message. */
SpliceMark splice_mark(const SpliceSecret *s, const char *what, size_t message);
/* Finds the mark at [*at, *end) in the rendering, from byte `from` on. Returns false if it is absent or occurs more
 * than once. */
bool splice_find(size_t *at, size_t *end, const TemplateText *text, size_t from, const SpliceMark *mark);

/* Appends tokens to (*out)[*n], malloc'd, as chat_append does for text. Returns false if out of memory or if there are
 * too many; *out is unchanged. */
bool splice_tokens(int32_t **out, int32_t *n, const int32_t *t, int32_t count);

#endif
